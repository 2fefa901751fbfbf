//! `laggard profile`: asks the agent of a running job for a profile window.

use std::fs;
use std::io::stdout;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use agent::ProfileRequest;
use anyhow::{Context, Result, bail};
use ring::RingDirectory;
use verdict::MAX_WINDOW_S;

use crate::environment;
use crate::output::{print, say};
use crate::render::{Colour, verdict_text};

/// How often it is looked for the answer.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Profile ranks of a running job
///
/// The ranks record the same few steps with PyTorch's profiler. laggard compares what their
/// functions cost, and prints the result. Without --ranks it chooses the late ranks and two of
/// their peers, or four ranks if none is late. The job must run under `laggard run`, on this host.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  laggard profile
  laggard profile 1795268852-7029 --ranks 0-3,7 --seconds 5
  laggard profile --json | jq .profile.functions[0]")]
pub(crate) struct ProfileArgs {
    /// Job to profile, by its id; optional while only one runs
    job: Option<String>,
    /// Ranks of this host to profile, such as 0-3,7
    #[arg(long)]
    ranks: Option<String>,
    /// Seconds to record, at most 60 [default: `max_s` in `[profile]` of the settings]
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// Seconds to wait for the answer
    #[arg(long, value_name = "N", default_value_t = 300.0)]
    patience: f64,
    /// Print the verdict as one line of JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn profile(args: &ProfileArgs) -> Result<ExitCode> {
    let request = ProfileRequest {
        ranks: args.ranks.as_deref().map_or(Ok(Vec::new()), ranks_of)?,
        seconds: args
            .seconds
            .map(|seconds| positive("--seconds", seconds).and_then(short))
            .transpose()?,
    };
    let patience = Duration::try_from_secs_f64(positive("--patience", args.patience)?)?;
    let job = find(&environment::ring_root(), args.job.as_deref())?;
    request.ask(&job).context("failed to ask the job's agent")?;
    let asked = Instant::now();
    let verdict = loop {
        // The answer comes first: an agent that ends after it removes the directory.
        match ProfileRequest::answer(&job)? {
            Some(Ok(verdict)) => break verdict,
            Some(Err(why)) => bail!("nothing was profiled: {why}"),
            None => {}
        }
        // Its agent removes it at the end.
        if !job.path().is_dir() {
            bail!("the job ended before its ranks were profiled");
        }
        if asked.elapsed() > patience {
            bail!(
                "no answer after {patience:?}: check that the job runs under laggard run and that it steps"
            );
        }
        std::thread::sleep(LOOK_EVERY);
    };
    if args.json {
        print(&format!("{}\n", serde_json::to_string(&verdict)?))?;
    } else {
        print(&verdict_text(&verdict, Colour::of(&stdout()), false))?;
    }
    if verdict.profile.is_none() {
        say("laggard: no rank recorded anything; the notes say why");
    }
    // Not 1, which stands for findings: nothing was found out.
    Ok(ExitCode::from(u8::from(verdict.profile.is_none()) * 2))
}

fn positive(name: &str, value: f64) -> Result<f64> {
    if value > 0.0 && value.is_finite() {
        return Ok(value);
    }
    bail!("{name} {value} is not a duration: write seconds above 0")
}

/// Seconds that a window may last.
fn short(seconds: f64) -> Result<f64> {
    if seconds <= MAX_WINDOW_S {
        return Ok(seconds);
    }
    bail!(
        "--seconds {seconds} is too long: at most {MAX_WINDOW_S}, because training holds the \
         recording in memory and waits until it is written"
    )
}

/// Ranks from text as in `0-3,7`.
fn ranks_of(text: &str) -> Result<Vec<u32>> {
    const MAX: usize = 1 << 17;
    let mut ranks = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>())
        else {
            bail!("--ranks {text}: {part:?} is not a rank: write ranks as in 0-3,7");
        };
        // A range may name four billion ranks.
        ranks.extend((first..=last).take(MAX - ranks.len().min(MAX)));
    }
    Ok(ranks)
}

/// The directory of a job that runs here.
fn find(root: &Path, job: Option<&str>) -> Result<RingDirectory> {
    // A root that does not exist holds no jobs, and the message says where they were looked for.
    let mut running: Vec<String> = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    running.sort();
    let id = match (job, running.as_slice()) {
        (Some(job), _) if running.iter().any(|id| id == job) => job,
        (None, [id]) => id,
        (_, []) => bail!(
            "no job runs under laggard here (looked in {})",
            root.display()
        ),
        (Some(job), _) => {
            bail!(
                "no job {job} runs here; running jobs: {}",
                running.join(", ")
            )
        }
        (None, _) => bail!("several jobs run here, name one: {}", running.join(", ")),
    };
    // This checks that nobody else can write to it, and makes none where it is gone by now.
    Ok(RingDirectory::open(&root.join(id))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_read_as_they_are_written() {
        assert_eq!(ranks_of("0-2,7").unwrap(), [0, 1, 2, 7]);
        for wrong in ["", "x", "1-", "1,,2", "-1"] {
            assert!(ranks_of(wrong).is_err(), "{wrong}");
        }
        assert_eq!(ranks_of("0-4294967295").unwrap().len(), 1 << 17);
    }

    #[test]
    fn a_window_of_more_than_a_minute_is_refused() {
        assert!(short(60.0).is_ok());
        let refused = short(61.0).unwrap_err().to_string();
        assert!(
            refused.starts_with("--seconds 61 is too long: at most 60"),
            "{refused}"
        );
    }

    #[test]
    fn a_job_is_found_by_its_id_or_because_it_is_the_only_one() {
        let root = tempfile::tempdir().unwrap();
        assert!(find(root.path(), None).is_err());
        RingDirectory::create(root.path(), "a").unwrap();
        assert!(find(root.path(), None).unwrap().path().ends_with("a"));
        RingDirectory::create(root.path(), "b").unwrap();
        assert!(find(root.path(), None).is_err());
        assert!(find(root.path(), Some("b")).unwrap().path().ends_with("b"));
        assert!(find(root.path(), Some("c")).is_err());
        // As its directory is called, and not as one that would be made for a job of that name.
        fs::create_dir(root.path().join("a b")).unwrap();
        assert!(
            find(root.path(), Some("a b"))
                .unwrap()
                .path()
                .ends_with("a b")
        );
    }
}
