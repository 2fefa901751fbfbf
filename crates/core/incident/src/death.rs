//! Ranks that were killed, or ended by themselves.

use std::collections::BTreeMap;

use collective::Stall;
use model::{
    Action, Claim, Death, Fact, Finding, IncidentKind, JobContext, KilledRanks, Observation,
    Origin, Pace, RankPart, Severity, Subject,
};

/// The finding about a rank that ended and should not have, and who was left waiting for it.
///
/// Open if the job ended with it, and did not start again. Its `error` is what it printed.
pub fn death(
    rank: u32,
    (death, error): (Death, Option<String>),
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
    let part = part(death, error.as_deref());
    let killed = KilledRanks {
        ranks: ranks.clone(),
        death,
        error,
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
        actions: vec![Action::LookAtRanks { ranks, part }],
        ..Finding::new(Origin::Death, id, Claim::Killed(Box::new(killed)))
    }
}

/// The finding about ranks that ended by themselves, each with an exit code, where nothing tells for whose
/// sake: it accuses nobody. `stood` is what is known of the job before.
pub fn failures(
    codes: &BTreeMap<u32, i32>,
    step: u64,
    stood: Option<Finding>,
    context: JobContext<'_>,
    id: String,
) -> Finding {
    let mut alike: BTreeMap<i32, Vec<u32>> = BTreeMap::new();
    for (rank, code) in codes {
        alike.entry(*code).or_default().push(*rank);
    }
    let death = |code: Option<i32>| Death { signal: None, code };
    let ended = alike.iter().map(|(code, ranks)| Fact {
        ranks: ranks.clone(),
        ..Observation::Killed(death(Some(*code))).into()
    });
    let code = alike.keys().next().filter(|_| alike.len() == 1);
    let ranks: Vec<u32> = codes.keys().copied().collect();
    let actions = vec![Action::LookAtRanks {
        ranks: ranks.clone(),
        part: RankPart::EndedOutput,
    }];
    let facts = if stood.is_none() && code.is_some() {
        Vec::new()
    } else {
        ended.collect()
    };
    let mut finding = stood.unwrap_or_else(|| {
        let killed = KilledRanks {
            ranks,
            death: death(code.copied()),
            error: None,
            step,
            wait: None,
        };
        Finding {
            kind: IncidentKind::Hang,
            severity: Severity::Warning,
            open: !context.ended,
            pace: Pace::Once { step },
            first_step: step,
            last_step: step,
            ..Finding::new(Origin::Death, id, Claim::Killed(Box::new(killed)))
        }
    });
    finding.facts.extend(facts);
    // It is too late for stacks.
    finding.actions = actions;
    finding
}

fn part(Death { signal, code }: Death, error: Option<&str>) -> RankPart {
    // As drivers word what a device did. An assertion in a kernel is of the script.
    let is_of_device = |error: &str| {
        let is_drivers = ["CUDA error", "HIP error"]
            .iter()
            .any(|it| error.contains(it));
        is_drivers && !error.contains("assert")
    };
    match signal {
        None if error.is_some_and(is_of_device) => RankPart::LaggingDevice,
        // Its traceback says why.
        None if code.is_some() || error.is_some() => RankPart::EndedOutput,
        // SIGKILL is what the kernel's out-of-memory killer sends.
        Some(9) => RankPart::Memory,
        // SIGBUS is what a write into a mapping gets once /dev/shm is full.
        Some(7) => RankPart::SharedMemory,
        _ => RankPart::LastOutput,
    }
}
