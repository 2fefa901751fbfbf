use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use collector::Silence;
use serde::Deserialize;
use serde_json::json;

use crate::output::print;
use crate::server::ServerArgs;

/// Suppress new alerts for a while
///
/// Incidents still open when a silence ends are sent then. Without a job and --all, lists the
/// silences that are not over. Adding or ending a silence needs the admin's token.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  laggard silence pretrain-7 --for 2h --reason \"storage is moved\"
  laggard silence --all --for 30m
  laggard silence
  laggard silence --end 3")]
pub(crate) struct SilenceArgs {
    /// Job whose alerts to suppress
    #[arg(requires = "span")]
    job: Option<String>,
    /// Suppress the alerts of all jobs
    #[arg(long, conflicts_with = "job", requires = "span")]
    all: bool,
    /// Duration, such as 90s, 30m, 2h or 1d
    #[arg(long = "for", id = "span", value_name = "TIME", value_parser = span)]
    span: Option<Duration>,
    /// Reason, shown in the list
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// End a silence, by its number in the list
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["job", "all", "span"])]
    end: Option<u64>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Deserialize)]
struct SilenceList {
    silences: Vec<Silence>,
}

fn span(typed: &str) -> Result<Duration, String> {
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    units
        .into_iter()
        .find_map(|(unit, seconds)| {
            let count: u32 = typed.strip_suffix(unit)?.parse().ok()?;
            Some(Duration::from_secs(u64::from(count) * seconds))
        })
        .ok_or_else(|| "write a number and s, m, h or d, as in 2h".to_owned())
}

pub(crate) fn silence(args: &SilenceArgs) -> Result<ExitCode> {
    let server = args.server.server()?;
    let now_s = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    if let Some(number) = args.end {
        server.ask("DELETE", &format!("silences/{number}"), None)?;
    } else if let Some(span) = args.span {
        // clap checks that a job has a time, but not that a time has a job.
        anyhow::ensure!(args.all || args.job.is_some(), "name a job, or use --all");
        let until_s = now_s.saturating_add(span.as_secs());
        let silence = json!({ "job": args.job, "until_s": until_s, "reason": args.reason });
        server.ask("POST", "silences", Some(silence))?;
    }
    // After a change too: the list shows what it has led to, and the number that ends it.
    let text = server.get("silences")?;
    let SilenceList { silences } =
        serde_json::from_str(&text).context("the collector's answer is not a list of silences")?;
    let mut lines = String::new();
    for Silence {
        id,
        job,
        from_s,
        until_s,
        reason,
    } in silences
    {
        let job = job.unwrap_or_else(|| "all jobs".to_owned());
        // One that is yet to begin has all its time left.
        let left_s = until_s.saturating_sub(now_s.max(from_s));
        let begins = if from_s > now_s { "yet to begin, " } else { "" };
        // Rounded up: one with seconds left is not over.
        let minutes = left_s.div_ceil(60);
        lines += &format!("{id:>4}  {job}  {begins}{minutes} min left  {reason}\n");
    }
    if lines.is_empty() {
        lines += "no silence\n";
    }
    print(&lines)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        assert_eq!(span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(span("2h"), Ok(Duration::from_hours(2)));
        for wrong in ["", "h", "2", "-1h", "1.5h", "2hh", "9999999999d", "5ä"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }
}
