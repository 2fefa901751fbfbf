//! Connections that were slow, as telemetry of work requests tells.

use model::{
    Action, Claim, ConnectionClaim, Cost, Finding, JobContext, LinkFault, LostIterations,
    Observation, Origin, Severity, SlowConnection, Subject,
};
use schedule::Networked;

/// The finding about a connection that lost bandwidth or stood still.
///
/// `ends` are the ranks at its ends; `iterations` what iterations lost meanwhile, with what all
/// took.
pub fn link_slowed(
    link: &SlowConnection,
    ends: Option<[u32; 2]>,
    iterations: Option<(&Networked, f64)>,
    context: JobContext<'_>,
    id: String,
) -> Finding {
    let lost = iterations.map(|(networked, _)| LostIterations {
        first: networked.span.0,
        last: networked.span.1,
        lost_s: networked.lost_s,
    });
    let (cost_s, cost_share) = match iterations {
        Some((Networked { lost_s, .. }, total_s)) => (
            *lost_s,
            // At most 1, and 0 instead of no number where neither took time.
            lost_s / total_s.max(*lost_s).max(f64::MIN_POSITIVE),
        ),
        None => (link.lost_s(), 0.0),
    };
    let is_still = link.open && matches!(link.fault, LinkFault::Stalled { .. });
    let ranks = ends.map_or(Vec::new(), Vec::from);
    let claim = ConnectionClaim {
        connection: link.clone(),
        ranks: ends,
        lost,
    };
    Finding {
        severity: if is_still {
            Severity::Critical
        } else {
            Severity::Warning
        },
        open: link.open,
        subject: Subject {
            hosts: context.hosts_of(&ranks),
            ranks: ranks.clone(),
            ..Subject::default()
        },
        first_step: lost.map_or(0, |lost| lost.first),
        last_step: lost.map_or(0, |lost| lost.last),
        victims: context.others(&ranks),
        cost: Cost::saved_whole(cost_s, cost_share),
        facts: vec![
            Observation::Connection(Box::new(link.clone())).into(),
            Observation::Path {
                is_broken: link.is_broken(),
            }
            .into(),
        ],
        actions: vec![Action::LookAtPort {
            port: link.ends.port.clone(),
            ranks,
        }],
        ..Finding::new(
            Origin::Connections,
            id,
            Claim::SlowConnection(Box::new(claim)),
        )
    }
}
