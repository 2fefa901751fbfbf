//! Ranks that were killed.

use model::KilledRank;

use crate::fact::Worded;
use crate::stall::collective;
use crate::words::who;

pub(crate) fn headline(killed: &KilledRank) -> String {
    let KilledRank {
        rank,
        signal,
        step,
        wait,
    } = killed;
    let mut text = match signal {
        Some(signal) => {
            let name = name(*signal);
            format!("rank {rank} was killed by signal {signal}{name} in step {step}")
        }
        None => format!("rank {rank} ended abruptly in step {step}"),
    };
    if let Some(wait) = wait {
        let were = if wait.entered.len() == 1 {
            "was"
        } else {
            "were"
        };
        let entered = who(&wait.entered);
        text += &format!(
            ", before it entered {} ({entered} {were} in it)",
            collective(wait)
        );
    }
    text
}

fn name(signal: i32) -> &'static str {
    match signal {
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        // As on x86 and ARM; some architectures number it otherwise.
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        _ => "",
    }
}

pub(crate) fn fact(signal: Option<i32>) -> Worded {
    let values = signal.map(|signal| ("signal", f64::from(signal)));
    let text = "its process ended without closing its ring".to_owned();
    Worded::new("killed", text, values.as_slice())
}
