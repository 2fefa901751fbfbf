//! Ranks that arrive late in timed collectives, and communicators that became slow.

use model::{
    Action, Claim, Cost, Finding, IncidentKind, JobContext, LateArrivals, Observation, Origin,
    RankPart, SlowCommunicator, Subject,
};

use crate::IncidentSettings;

/// Places of one finding that are listed.
const SHOWN_PLACES: usize = 3;

/// The finding about ranks that constantly arrive after the others.
pub fn late(
    late: &LateArrivals,
    context: JobContext<'_>,
    id: String,
    settings: &IncidentSettings,
) -> Finding {
    let ranks = late.ranks.clone();
    let places = late.places.iter().take(SHOWN_PLACES).cloned();
    Finding {
        severity: settings.severity(late.cost_share),
        open: late.open,
        subject: Subject {
            ranks: ranks.clone(),
            hosts: context.hosts_of(&ranks),
            ..Subject::default()
        },
        victims: late.waited.iter().chain(&late.victims).copied().collect(),
        cost: Cost::saved_whole(late.cost_s, late.cost_share),
        facts: places
            .map(|place| {
                Observation::Arrival {
                    ranks: ranks.clone(),
                    place,
                }
                .into()
            })
            .collect(),
        actions: vec![Action::LookAtRanks {
            ranks: ranks.clone(),
            part: RankPart::ConstantWorkBefore,
        }],
        ..Finding::new(
            Origin::Arrivals,
            id,
            Claim::LateToCollective(Box::new(late.clone())),
        )
    }
}

/// The finding about a communicator that became slow.
pub fn slowed(
    slow: &SlowCommunicator,
    context: JobContext<'_>,
    id: String,
    settings: &IncidentSettings,
) -> Finding {
    Finding {
        kind: IncidentKind::Degraded,
        severity: settings.severity(slow.cost_share),
        open: slow.open,
        subject: Subject {
            hosts: context.hosts_of(&slow.ranks),
            ..Subject::default()
        },
        victims: slow.ranks.iter().copied().collect(),
        cost: Cost::saved_whole(slow.cost_s, slow.cost_share),
        facts: vec![Observation::Bandwidth(Box::new(slow.clone())).into()],
        actions: vec![Action::LookAtRanks {
            ranks: Vec::new(),
            part: RankPart::HostLinks,
        }],
        ..Finding::new(
            Origin::Bandwidth,
            id,
            Claim::SlowCommunicator(Box::new(slow.clone())),
        )
    }
}
