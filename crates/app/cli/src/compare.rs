use std::io::stdout;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use comparison::{Change, Comparison, MIN_CHANGE_SHARE, Outcome, Run};
use formats::{Limits, load_verdict, parse_verdict};
use model::{Severity, Verdict};
use protocol::url_segment;
use verdict::Settings;

use crate::output::print;
use crate::recordings::{for_each_job, refused};
use crate::render::{Colour, seconds};
use crate::server::{CollectorClient, ServerArgs};
use crate::settings::SettingsArgs;

/// Compare two runs: what changed beyond noise, and where
///
/// A and B are recordings (`laggard run --record`, or anything `laggard analyze` reads), verdicts
/// (`--json`), or jobs of a collector. Every step of a recording counts, and every window of the
/// others. B is slower if its steps take longer by more than --min-change, and by more than the
/// noise of both runs explains. docs/compare.md describes the test, and how often it errs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  laggard compare before.jsonl.zst after.jsonl.zst
  laggard compare --fail-on regression main.jsonl.zst branch.jsonl.zst    (1 if slower)
  laggard compare pretrain-6 pretrain-7 --collector http://10.0.0.1:8765
  laggard compare --json before.json after.json | jq .outcome")]
pub(crate) struct CompareArgs {
    /// Baseline: recording, verdict or job
    a: String,
    /// Run to judge: recording, verdict or job
    b: String,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
    /// Exit with 1 if B is slower than A, hangs while A does not, or may be slower and has a new
    /// incident of at least severity warning; with 2 if there are too few steps
    #[arg(long, value_name = "WHAT")]
    fail_on: Option<FailOnOutcome>,
    /// Smallest change that counts, in percent of a step
    #[arg(
        long,
        value_name = "PERCENT",
        value_parser = percent_share,
        default_value_t = Share(MIN_CHANGE_SHARE)
    )]
    min_change: Share,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum FailOnOutcome {
    Regression,
}

/// A share, typed as percent.
#[derive(Clone, Copy, Debug)]
struct Share(f64);

impl std::fmt::Display for Share {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.0 * 100.0)
    }
}

fn percent_share(typed: &str) -> Result<Share, String> {
    match typed.parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(Share(percent / 100.0)),
        _ => Err("write a number from 0 to 100".to_owned()),
    }
}

pub(crate) fn compare(args: &CompareArgs) -> Result<ExitCode> {
    let settings = args.settings.load()?;
    let server = args.server.server()?;
    let a = run_of(&args.a, &settings, &server)?;
    let b = run_of(&args.b, &settings, &server)?;
    let found = comparison::compare(&a, &b, args.min_change.0);
    let text = if args.json {
        serde_json::to_string_pretty(&found)? + "\n"
    } else {
        comparison_text(&found, Colour::of(&stdout()))
    };
    print(&text).context("failed to print the comparison")?;
    match args.fail_on {
        Some(FailOnOutcome::Regression) if found.regression => Ok(ExitCode::from(1)),
        Some(FailOnOutcome::Regression) if found.outcome == Outcome::Undecided => {
            // An error, and so exit status 2: a check in CI that cannot decide must not pass.
            bail!("too little was recorded to tell whether B is slower; the notes say what to do")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// The run behind a name: a file or folder if there is one, else a job of the collector.
fn run_of(name: &str, settings: &Settings, server: &CollectorClient) -> Result<Run> {
    let path = Path::new(name);
    // Verdicts first: as recordings they would be refused.
    if path.is_file()
        && let Some(verdict) =
            load_verdict(path, Limits::default()).map_err(|error| refused(&error))?
    {
        return Ok(Run::of_verdict(verdict));
    }
    if !path.exists() {
        return Ok(Run::of_verdict(verdict_of_job(name, server)?));
    }
    let mut runs = Vec::new();
    for_each_job(&[path.to_owned()], None, settings, |job, _| {
        runs.push(Run::of_job(&job));
        Ok(())
    })?;
    // The length is taken after `pop`: it counts the jobs beside the one that was taken.
    match (runs.pop(), runs.len()) {
        (Some(run), 0) => Ok(run),
        (_, more) => bail!("{name} holds {} jobs: name one recording", more + 1),
    }
}

fn verdict_of_job(job: &str, server: &CollectorClient) -> Result<Verdict> {
    let text = server
        .get(&format!("jobs/{}/verdict", url_segment(job)))
        .with_context(|| format!("{job} is neither a file nor a readable job"))?;
    parse_verdict(job, text.as_bytes(), Limits::default()).map_err(|error| refused(&error))
}

fn comparison_text(found: &Comparison, colour: Colour) -> String {
    let mut text = String::new();
    for (name, run) in [("A", &found.a), ("B", &found.b)] {
        let seen = format!(
            "{} ranks, {} steps in {} blocks",
            run.ranks, run.steps, run.blocks
        );
        text += &format!("{name} {}: {seen}\n", colour.bold(&run.id));
    }
    let head = match (found.outcome, &found.step) {
        (Outcome::Slower, Some(step)) => {
            colour.severity(Severity::Critical, &format!("SLOWER  {}", step_text(step)))
        }
        (Outcome::Faster, Some(step)) => colour.good(&format!("FASTER  {}", step_text(step))),
        // Only a change that is large enough to count was tested.
        (_, Some(step)) if step.chance.is_some() => {
            colour.severity(Severity::Warning, &format!("NOT SURE  {}", step_text(step)))
        }
        (_, Some(step)) => colour.good(&format!("NO CHANGE BEYOND NOISE  {}", step_text(step))),
        (_, None) => "NO ANSWER  too little was recorded".to_owned(),
    };
    text += &format!("\n{head}\n");
    for rank in &found.ranks {
        let later = if rank.change.change_s > 0.0 {
            "later"
        } else {
            "less late"
        };
        let by_s = seconds(rank.change.change_s.abs());
        text += &format!(
            "  who   rank {} is {by_s} {later} in {}\n",
            rank.rank, rank.stage
        );
    }
    for function in &found.functions {
        let (a, b) = (seconds(function.a_s), seconds(function.b_s));
        // One profile a run gives no spread to test against.
        text += &format!(
            "  what  {}: {a} -> {b} a step (not tested)\n",
            function.function
        );
    }
    for incident in &found.incidents {
        let which = if incident.is_new { "new " } else { "gone" };
        text += &format!("  {which}  {}\n", incident.text);
    }
    if !found.stages.is_empty() {
        text += &format!("\n{}", stage_table(found));
    }
    for note in &found.notes {
        text += &format!("note: {note}\n");
    }
    text
}

fn step_text(step: &Change) -> String {
    let (a, b) = (seconds(step.a_s), seconds(step.b_s));
    let text = format!("a step: {a} -> {b}, {}", signed_percent(step.change_share));
    match step.chance {
        Some(chance) if step.is_sure() => format!("{text}; chance {}", odds(chance)),
        Some(chance) => format!("{text}; chance {}, too high to be sure", odds(chance)),
        None => text,
    }
}

fn stage_table(found: &Comparison) -> String {
    let longest = found.stages.iter().map(|stage| stage.stage.len()).max();
    let width = longest.unwrap_or(0).max("stage".len());
    let mut table = format!(
        "{:width$}  {:>9}  {:>9}  {:>9}  sure\n",
        "stage", "A", "B", "of a step"
    );
    for stage in &found.stages {
        let change = &stage.change;
        table += &format!(
            "{:width$}  {:>9}  {:>9}  {:>9}  {}\n",
            stage.stage,
            seconds(change.a_s),
            seconds(change.b_s),
            signed_percent(change.change_share),
            if change.is_sure() { "yes" } else { "-" },
        );
    }
    table
}

fn signed_percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

fn odds(chance: f64) -> String {
    if chance < 0.0001 {
        "below 0.01 %".to_owned()
    } else {
        format!("{:.2} %", chance * 100.0)
    }
}
