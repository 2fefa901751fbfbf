//! The words of a rank that was killed.

use collective::Stall;
use model::{
    Evidence, Incident, IncidentKind, Method, Pace, Severity, StallKind, Subject,
};

use crate::Scene;
use crate::hang::{collective, of_wait};
use crate::words::who;

/// Words the end of a rank that was killed, and who was left waiting for it.
///
/// `signal` is what killed it, where that is known; `open` is whether the job ended with it,
/// and did not start again.
pub fn death(
    rank: u32,
    signal: Option<i32>,
    step: u32,
    stall: Option<&Stall>,
    scene: Scene<'_>,
    id: String,
) -> Incident {
    let open = !scene.ended;
    let mut text = match signal {
        Some(signal) => {
            let name = name(signal);
            format!("rank {rank} was killed by signal {signal}{name} in step {step}")
        }
        None => format!("rank {rank} ended abruptly in step {step}"),
    };
    let mut waits = stall.into_iter().flat_map(|stall| &stall.waits);
    let wait = waits.find(|wait| wait.missing.contains(&rank));
    if let Some(wait) = wait {
        let were = if wait.entered.len() == 1 { "was" } else { "were" };
        let entered = who(&wait.entered);
        text +=
            &format!(", before it entered {} ({entered} {were} in it)", collective(wait));
    }
    let values = signal.map(|signal| ("signal", f64::from(signal)));
    let seen = "its process ended without closing its ring";
    let ended = Evidence::new(Method::Host, "killed", seen, values.as_slice());
    let (ranks, step) = (vec![rank], u64::from(step));
    Incident {
        id,
        kind: IncidentKind::Hang,
        severity: if open { Severity::Critical } else { Severity::Warning },
        open,
        subject: Subject {
            hosts: scene.hosts_of(&ranks),
            ranks,
            collective: wait.map(collective),
            ..Subject::default()
        },
        pace: Pace::Once { step },
        first_step: step,
        last_step: step,
        victims: wait
            .map(|wait| wait.entered.iter().copied().collect())
            .unwrap_or_default(),
        cost_s: 0.0,
        cost_gpu_s: 0.0,
        cost_share: 0.0,
        gain_alone_s: 0.0,
        next_in_line: Vec::new(),
        contradictions: Vec::new(),
        facts: Vec::new(),
        actions: Vec::new(),
        stacks: Vec::new(),
        progress: Vec::new(),
        text,
        evidence: std::iter::once(ended)
            .chain(wait.map(|wait| of_wait(StallKind::Missing, wait)))
            .collect(),
        advice: advice(rank, signal),
    }
}

fn name(signal: i32) -> &'static str {
    match signal {
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        _ => "",
    }
}

pub(crate) fn advice(rank: u32, signal: Option<i32>) -> String {
    match signal {
        Some(9) => {
            "look in the kernel's log of its host for \"Out of memory\", and at who may \
                    kill processes there; the other ranks are fine"
                .to_owned()
        }
        Some(7) => {
            format!("look at the shared memory of rank {rank}'s host: is it full?")
        }
        _ => format!(
            "look at the last lines of rank {rank}'s output, and at its core dump"
        ),
    }
}
