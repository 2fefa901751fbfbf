//! Ranks that were killed.

use collective::Stall;
use model::{
    Action, Claim, Finding, IncidentKind, JobContext, KilledRank, Observation, Origin, Pace,
    RankPart, Severity, Subject,
};

/// The finding about a rank that was killed, and who was left waiting for it.
///
/// `signal` is what killed it, where that is known; `open` is whether the job ended with it,
/// and did not start again.
pub fn death(
    rank: u32,
    signal: Option<i32>,
    step: u64,
    stall: Option<&Stall>,
    context: JobContext<'_>,
    id: String,
) -> Finding {
    let open = !context.ended;
    let ranks = vec![rank];
    let wait = stall
        .into_iter()
        .flat_map(|stall| &stall.waits)
        .find(|wait| wait.missing.contains(&rank));
    let ended = Observation::Killed { signal };
    let waits = wait.map(|wait| Observation::Wait {
        wait: Box::new(wait.clone()),
        is_unseen: false,
    });
    let killed = KilledRank {
        rank,
        signal,
        step,
        wait: wait.cloned(),
    };
    Finding {
        kind: IncidentKind::Hang,
        severity: if open {
            Severity::Critical
        } else {
            Severity::Warning
        },
        open,
        subject: Subject {
            hosts: context.hosts_of(&ranks),
            ranks: ranks.clone(),
            ..Subject::default()
        },
        pace: Pace::Once { step },
        first_step: step,
        last_step: step,
        victims: wait
            .map(|wait| wait.entered.iter().copied().collect())
            .unwrap_or_default(),
        facts: [ended].into_iter().chain(waits).map(Into::into).collect(),
        actions: vec![Action::LookAtRanks {
            ranks,
            part: part(signal),
        }],
        ..Finding::new(Origin::Death, id, Claim::Killed(Box::new(killed)))
    }
}

fn part(signal: Option<i32>) -> RankPart {
    match signal {
        // SIGKILL is what the kernel's out-of-memory killer sends.
        Some(9) => RankPart::Memory,
        // SIGBUS is what a write into a mapping gets once /dev/shm is full.
        Some(7) => RankPart::SharedMemory,
        _ => RankPart::LastOutput,
    }
}
