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
        Some(signal) => format!("rank {rank} was killed by signal {signal}{}", name(*signal)),
        // The launcher collected the exit status before laggard could.
        None => format!("rank {rank} ended abruptly"),
    };
    // A log does not know of steps.
    if *step > 0 {
        text += &format!(" in step {step}");
    }
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
        // TERM, INT and HUP are missing: people and launchers end jobs by them.
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
    let text = "its process did not end in good order".to_owned();
    Worded::new("killed", text, values.as_slice())
}
