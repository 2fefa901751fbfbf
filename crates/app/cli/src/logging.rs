//! What a command logs of its work, for operators; what it says to people is `output`'s.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::prelude::*;

use crate::environment;

/// The target of what the command itself says, where that is logged: it always passes.
pub(crate) const SAID: &str = "laggard::said";

/// Whether what is said is logged too, as everything on standard error is JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// How a command that serves writes to standard error.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct LogArgs {
    /// Format of standard error: text, or one JSON object per line; LAGGARD_LOG holds the level
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum LogFormat {
    #[default]
    Text,
    Json,
}

impl LogArgs {
    /// Begins to log what LAGGARD_LOG asks for: nothing where it is not set, as text; warnings
    /// and what is said, as JSON.
    ///
    /// # Errors
    /// LAGGARD_LOG holds no level.
    pub(crate) fn start(self) -> Result<()> {
        let is_json = self.log_format == LogFormat::Json;
        let Some(levels) = levels(environment::log_level().as_deref(), is_json)? else {
            return Ok(());
        };
        // Relaxed: no other thread runs yet.
        IS_JSON.store(is_json, Ordering::Relaxed);
        // A span's end says how long a batch took.
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .with_span_events(FmtSpan::CLOSE);
        let registry = tracing_subscriber::registry();
        if is_json {
            registry
                .with(lines.json().flatten_event(true).with_filter(levels))
                .init();
        } else {
            registry.with(lines.with_filter(levels)).init();
        }
        Ok(())
    }
}

/// Whether what is said goes to the log.
pub(crate) fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// What passes; `None` where nothing does.
fn levels(typed: Option<&str>, is_json: bool) -> Result<Option<Targets>> {
    let levels = match typed {
        None if !is_json => return Ok(None),
        None => Targets::new().with_default(LevelFilter::WARN),
        Some(typed) => typed.parse().map_err(|error| {
            anyhow!(
                "{}={typed}: {error}; write error, warn, info, debug or trace, or filters such as \
                 warn,laggard_collector=debug",
                environment::LOG
            )
        })?,
    };
    Ok(Some(levels.with_target(SAID, LevelFilter::INFO)))
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_level_is_for_all_or_for_a_crate_and_what_is_said_always_passes() {
        assert!(levels(None, false).unwrap().is_none());
        let passes = |typed, is_json, target: &str, level: Level| {
            levels(typed, is_json)
                .unwrap()
                .unwrap()
                .would_enable(target, &level)
        };
        assert!(passes(None, true, "laggard_bus", Level::WARN));
        assert!(!passes(None, true, "laggard_bus", Level::INFO));
        assert!(passes(None, true, SAID, Level::INFO));
        let typed = Some("warn,laggard_collector=debug");
        assert!(passes(
            typed,
            false,
            "laggard_collector::intake",
            Level::DEBUG
        ));
        assert!(!passes(typed, false, "laggard_agent", Level::INFO));
        assert!(passes(typed, true, SAID, Level::INFO));
        let refused = levels(Some("loud=very"), false).unwrap_err().to_string();
        assert!(refused.starts_with("LAGGARD_LOG=loud=very: "), "{refused}");
    }
}
