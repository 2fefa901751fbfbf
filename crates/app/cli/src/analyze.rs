use std::fs::File;
use std::io::{self, BufWriter, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use formats::{IncidentTrace, RECORDING_KINDS, Recording, TraceSet, write_perfetto};
use model::{Severity, Verdict};

use crate::export::ExportArgs;
use crate::output::print;
use crate::recordings::{JobSource, for_each_job};
use crate::render::{Colour, verdict_text};
use crate::run::write_report;
use crate::settings::{LayoutArgs, SettingsArgs};

/// Analyze recordings
#[derive(Debug, clap::Args)]
#[command(long_about = long_about(), after_help = "\
Examples:
  laggard analyze recording.json.gz
  laggard analyze --json recordings/ | jq '.verdicts[].incidents[0].text'
  laggard analyze --report verdict.html recording.json.gz
  laggard analyze --perfetto annotated.json traces/    (one PyTorch Profiler trace for each rank)
  laggard analyze --perfetto moment.json job.jsonl    (from `laggard run --record`)
  laggard analyze hang/    (dumps, stacks and a RAS reply of one job)
  laggard analyze --tp 2 --pp 4 logs/    (calls of NCCL, one file for each rank)
  laggard analyze --export-calls calls/ --export-what-if job.parquet job.jsonl
  laggard analyze --fail-on warning recording.json && echo fine")]
pub(crate) struct AnalyzeArgs {
    /// Files and folders
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Metadata (YAML) of a what-if trace, if it is not beside it
    #[arg(long, value_name = "FILE")]
    meta: Option<PathBuf>,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
    /// Also print the victims of each incident, and slow places that cost nothing
    #[arg(long, short)]
    verbose: bool,
    /// Write a self-contained HTML report of a single recording
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the traces of a single job, annotated, for ui.perfetto.dev; for a recording of
    /// `laggard run`, the steps around its first incident
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// Exit with 1 if an incident is at least this severe
    #[arg(long, value_name = "SEVERITY")]
    fail_on: Option<FailOnSeverity>,
    #[command(flatten)]
    export: ExportArgs,
    #[command(flatten)]
    layout: LayoutArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum FailOnSeverity {
    Info,
    Warning,
    Critical,
}

impl From<FailOnSeverity> for Severity {
    fn from(level: FailOnSeverity) -> Self {
        match level {
            FailOnSeverity::Info => Self::Info,
            FailOnSeverity::Warning => Self::Warning,
            FailOnSeverity::Critical => Self::Critical,
        }
    }
}

fn long_about() -> String {
    format!(
        "Analyze recordings\n\nDetects what a file is: {RECORDING_KINDS}. Searches folders, and \
         skips other files in them."
    )
}

pub(crate) fn analyze(args: &AnalyzeArgs) -> Result<ExitCode> {
    let mut settings = args.settings.load()?;
    args.layout.over(&mut settings.layout);
    let mut verdicts = Vec::new();
    let mut last = None;
    let (mut annotated, mut exported) = (0, 0);
    let meta = args.meta.as_deref();
    for_each_job(&args.paths, meta, &settings, |job, source| {
        let verdict = job.verdict();
        match (source, &args.perfetto) {
            (JobSource::Traces(set), Some(path)) => {
                annotated += 1;
                write_annotated(path, set, &verdict)?;
            }
            (JobSource::File(recording), perfetto) => {
                if let Recording::Journal(journal) = recording {
                    exported += 1;
                    args.export.write(journal)?;
                }
                if let Some(path) = perfetto {
                    annotated += usize::from(write_incident_trace(path, recording, &verdict)?);
                }
            }
            _ => {}
        }
        verdicts.push(verdict);
        // A job is large, and there may be many.
        last = args.report.is_some().then_some(job);
        Ok(())
    })?;
    // How many jobs a folder holds is known only when all of it is read.
    if args.perfetto.is_some() && annotated != 1 {
        bail!(
            "--perfetto takes traces, or a recording of `laggard run` or `laggard serve`, of a \
             single job, found {annotated}"
        );
    }
    if args.export.is_asked() && exported != 1 {
        bail!("an export takes one recording of `laggard run`, found {exported}");
    }
    // Before the report: if that cannot be written, the verdict is there all the same.
    print(&render(&verdicts, args)?).context("failed to print the verdict")?;
    if let (Some(path), Some(job)) = (&args.report, &last) {
        if verdicts.len() > 1 {
            bail!(
                "--report takes a single recording, found {}",
                verdicts.len()
            );
        }
        write_report(path, job)?;
    }
    let worst = verdicts
        .iter()
        .flat_map(|verdict| &verdict.incidents)
        .map(|incident| incident.severity)
        .max();
    let fails = args
        .fail_on
        // `None` is below every level: without an incident nothing fails.
        .is_some_and(|level| worst >= Some(level.into()));
    Ok(ExitCode::from(u8::from(fails)))
}

/// Writes what the traces of a job show.
fn write_annotated(path: &Path, set: &TraceSet, verdict: &Verdict) -> Result<()> {
    write_to(path, |out| write_perfetto(set, verdict, out))
}

/// Writes the steps around the first incident; whether the recording is one that has steps.
fn write_incident_trace(path: &Path, recording: &Recording, verdict: &Verdict) -> Result<bool> {
    let inputs: Box<dyn Iterator<Item = _>> = match recording {
        Recording::Journal(journal) => Box::new(journal.inputs().iter().map(|input| (input, 0))),
        Recording::Stored(batches) => Box::new(batches.inputs()),
        _ => return Ok(false),
    };
    let mut trace = verdict
        .incidents
        .first()
        .and_then(|first| IncidentTrace::of(verdict, &first.id))
        .context("--perfetto shows the steps around the first incident; there is none")?;
    inputs.for_each(|(input, shift_ns)| trace.take(input, shift_ns));
    write_to(path, |out| trace.write(out))?;
    Ok(true)
}

fn write_to(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<()> {
    File::create(path)
        .and_then(|file| {
            let mut out = BufWriter::new(file);
            write(&mut out)?;
            // Dropped, it would not say that the disk is full.
            out.flush()
        })
        .with_context(|| format!("failed to write {}", path.display()))
}

fn render(verdicts: &[Verdict], args: &AnalyzeArgs) -> Result<String> {
    if args.json {
        let document = match verdicts {
            [verdict] => serde_json::to_string_pretty(verdict)?,
            several => serde_json::to_string_pretty(&serde_json::json!({
                "schema": "laggard.verdicts/1",
                "verdicts": several,
            }))?,
        };
        return Ok(document + "\n");
    }
    let colour = Colour::of(&stdout());
    let texts: Vec<String> = verdicts
        .iter()
        .map(|verdict| verdict_text(verdict, colour, args.verbose))
        .collect();
    Ok(texts.join("\n"))
}
