//! Ranks that were killed, or ended by themselves.

use collective::Stall;
use model::{
    Action, Claim, Death, Finding, IncidentKind, JobContext, KilledRank, Observation, Origin, Pace,
    RankPart, Severity, Subject,
};

/// The finding about a rank that ended and should not have, and who was left waiting for it.
///
/// Open if the job ended with it, and did not start again.
pub fn death(
    rank: u32,
    death: Death,
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
    let ended = Observation::Killed(death);
    let waits = wait.map(|wait| Observation::Wait {
        wait: Box::new(wait.clone()),
        is_unseen: false,
    });
    let killed = KilledRank {
        rank,
        death,
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
            part: part(death),
        }],
        ..Finding::new(Origin::Death, id, Claim::Killed(Box::new(killed)))
    }
}

fn part(Death { signal, code }: Death) -> RankPart {
    match signal {
        // Its traceback says why.
        None if code.is_some() => RankPart::EndedOutput,
        // SIGKILL is what the kernel's out-of-memory killer sends.
        Some(9) => RankPart::Memory,
        // SIGBUS is what a write into a mapping gets once /dev/shm is full.
        Some(7) => RankPart::SharedMemory,
        _ => RankPart::LastOutput,
    }
}
