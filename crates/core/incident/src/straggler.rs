//! Ranks that make collectives slow from the inside.

use model::{
    Action, Claim, Cost, Finding, HoldUp, JobContext, Observation, Origin, RankPart, Ranks,
    Severity, Straggler, Subject,
};

/// The finding about ranks that slow operations wait for.
///
/// `first_step` and `last_step` are those of the job while it lasted.
pub fn straggler(
    found: &Straggler,
    context: JobContext<'_>,
    id: String,
    (first_step, last_step): (u64, u64),
    open: bool,
) -> Finding {
    let victims: Ranks = found.wait.entered.iter().copied().collect();
    let claim = Claim::Straggler {
        found: Box::new(found.clone()),
        first_step,
    };
    let most = found.ranks.len() > 1 && found.ranks.len() * 2 > context.seen.len();
    Finding {
        // Flows cost seconds of operations, not a share of steps: severity by share does not apply.
        // What holds for most ranks accuses none of them.
        severity: if most {
            Severity::Info
        } else {
            Severity::Warning
        },
        open,
        subject: Subject {
            ranks: found.ranks.clone(),
            hosts: context.hosts_of(&found.ranks),
            ..Subject::default()
        },
        first_step,
        last_step,
        victims: victims.without(&found.ranks),
        cost: Cost::saved_whole(found.cost_s, 0.0),
        facts: vec![Observation::Straggler(Box::new(found.clone())).into()],
        actions: vec![Action::LookAtRanks {
            ranks: found.ranks.clone(),
            part: part(found),
        }],
        ..Finding::new(Origin::Flows, id, claim)
    }
}

fn part(found: &Straggler) -> RankPart {
    match found.cause {
        HoldUp::NotDelivered if found.either => RankPart::LinkEnds,
        HoldUp::NotDelivered => RankPart::SlowCard,
        HoldUp::NotTransmitted | HoldUp::ReceiverNotReady | HoldUp::ProxyStill => {
            RankPart::SlowProxy
        }
        HoldUp::GpuNotStarted | HoldUp::GpuNotReady | HoldUp::GpuNotTaking => RankPart::SlowGpu,
        HoldUp::NotEntered | HoldUp::DeadlockCycle | HoldUp::Unknown => RankPart::WorkBefore,
    }
}
