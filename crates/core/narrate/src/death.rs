//! Ranks that were killed, or ended by themselves.

use model::{Death, KilledRanks};

use crate::fact::Worded;
use crate::stall::collective;
use crate::words::{of, who};

pub(crate) fn headline(killed: &KilledRanks) -> String {
    let KilledRanks {
        ranks,
        death: Death { signal, code },
        error,
        step,
        wait,
    } = killed;
    let whose = who(ranks);
    let mut text = match (signal, code, error) {
        (Some(signal), ..) => format!("{whose} was killed by {}", named(*signal)),
        (None, _, Some(error)) => format!("{whose} raised {error}"),
        (None, Some(code), None) => format!("{whose} ended with {}", exit_code(*code)),
        (None, None, None) if ranks.len() > 1 => format!("{whose} ended with different exit codes"),
        // The launcher collected the exit status before laggard could.
        (None, None, None) => format!("{whose} ended abruptly"),
    };
    // A log does not know of steps.
    if *step > 0 {
        text += &format!(" in step {step}");
    }
    if let Some(wait) = wait {
        let were = of(&wait.entered, "was", "were");
        let entered = who(&wait.entered);
        text += &format!(
            ", before it entered {} ({entered} {were} in it)",
            collective(wait)
        );
    }
    text
}

/// How a process ended, by its exit code; below zero a signal.
pub(crate) fn how(code: i32) -> String {
    match code {
        0.. => format!("with {}", exit_code(code)),
        -6 => format!("by {}, which watchdogs also send", named(6)),
        // A recording may have any number here, and `i32::MIN` has no counterpart.
        _ => format!("by {}", named(code.saturating_neg())),
    }
}

/// Shells and containers add 128 to a signal.
fn exit_code(code: i32) -> String {
    match code {
        129..=159 if !name(code - 128).is_empty() => {
            format!("exit code {code}, which stands for {}", named(code - 128))
        }
        _ => format!("exit code {code}"),
    }
}

pub(crate) fn named(signal: i32) -> String {
    format!("signal {signal}{}", name(signal))
}

fn name(signal: i32) -> &'static str {
    match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        // As on x86 and ARM; some architectures number it otherwise.
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    }
}

pub(crate) fn fact(Death { signal, code }: Death) -> Worded {
    let signal = signal.map(|signal| ("signal", f64::from(signal)));
    let value = signal.or(code.map(|code| ("exit_code", f64::from(code))));
    let text = match code {
        Some(code) => format!("its process ended with {}", exit_code(code)),
        None => "its process did not exit cleanly".to_owned(),
    };
    Worded::new("killed", text, value.as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_that_stands_for_a_signal_says_so() {
        assert_eq!(
            how(137),
            "with exit code 137, which stands for signal 9 (SIGKILL)"
        );
        for code in [1, 128, 160] {
            assert_eq!(how(code), format!("with exit code {code}"));
        }
        assert_eq!(how(-9), "by signal 9 (SIGKILL)");
    }
}
