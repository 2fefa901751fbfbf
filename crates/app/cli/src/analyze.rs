use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result, bail};
use formats::{
    FormatError, Limits, RankTrace, Recording, Snapshot, TraceSet, load_watched,
    load_with_meta, write_perfetto,
};
use model::{Severity, Verdict};

use crate::loading::load_all;
use crate::output::{print, say};
use crate::render::{Colour, verdict_text};
use crate::run::write_report;
use crate::settings::{LayoutArgs, SettingsArgs};

/// Analyze recordings
///
/// Reads stage matrices, mark events, what `laggard run --record` wrote and `laggard serve`
/// kept, Flight Recorder dumps, traces of PyTorch's profiler and of Nsight Systems, py-spy
/// stacks, replies of NCCL's RAS, logs of NCCL Inspector, logs of NCCL calls and what-if
/// traces, plain or compressed, and finds out by itself what a file is. Folders are searched;
/// files in them that are no recordings are skipped.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  laggard analyze recording.json.gz
  laggard analyze --json recordings/ | jq '.verdicts[].incidents[0].text'
  laggard analyze --report verdict.html recording.json.gz
  laggard analyze --perfetto annotated.json traces/    (a PyTorch Profiler trace a rank)
  laggard analyze hang/    (dumps, stacks and a RAS reply of one job)
  laggard analyze --tp 2 --pp 4 logs/    (calls of NCCL, a file a rank)
  laggard analyze --fail-on warning recording.json && echo fine")]
pub(crate) struct AnalyzeArgs {
    /// Files and folders
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Metadata (YAML) of a what-if trace, if it does not lie beside it
    #[arg(long, value_name = "FILE")]
    meta: Option<PathBuf>,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
    /// Also tell what was slow and cost nothing
    #[arg(long, short)]
    verbose: bool,
    /// Write a self-contained HTML report of a single recording
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the traces of a single job, annotated, for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// Exit with 1 if an incident is at least this severe
    #[arg(long, value_name = "SEVERITY")]
    fail_on: Option<FailOn>,
    #[command(flatten)]
    layout: LayoutArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum FailOn {
    Info,
    Warning,
    Critical,
}

impl From<FailOn> for Severity {
    fn from(level: FailOn) -> Self {
        match level {
            FailOn::Info => Self::Info,
            FailOn::Warning => Self::Warning,
            FailOn::Critical => Self::Critical,
        }
    }
}

/// What one file gives.
enum Loaded {
    Ranks(Vec<RankTrace>),
    Other(Recording),
}

pub(crate) fn analyze(args: &AnalyzeArgs) -> Result<ExitCode> {
    let mut settings = args.settings.load()?;
    args.layout.over(&mut settings.layout);
    let mut verdicts = Vec::new();
    let mut last = None;
    // Files of other tools about a job: those of one folder are one job.
    let mut snapshots = BTreeMap::new();
    let mut traces = BTreeMap::new();
    let mut skipped = Vec::new();
    let mut annotated = 0;
    let mut failed: Option<FormatError> = None;
    for path in &args.paths {
        let (files, in_folder) = files_at(path)?;
        let read = |file: &Path, read: &AtomicU64| {
            let loaded = match &args.meta {
                Some(meta) => load_with_meta(file, meta, Limits::default()),
                None => load_watched(file, Limits::default(), read),
            };
            loaded.map(|recording| match recording {
                Recording::Trace(trace) => {
                    Loaded::Ranks(RankTrace::all(file, trace, &settings.pattern))
                }
                other => Loaded::Other(other),
            })
        };
        load_all(&files, read, |file, loaded| {
            let folder = || file.parent().unwrap_or(Path::new(".")).to_owned();
            match loaded {
                Ok(Loaded::Ranks(ranks)) => {
                    traces.entry(folder()).or_insert_with(Vec::new).extend(ranks);
                }
                Ok(Loaded::Other(Recording::Part(part))) => {
                    snapshots.entry(folder()).or_insert_with(Vec::new).push(part);
                }
                Ok(Loaded::Other(recording)) => {
                    let id = file.display().to_string();
                    let job = recording.replay(&id, settings.clone());
                    verdicts.push(job.verdict());
                    last = args.report.is_some().then_some(job);
                }
                Err(error @ FormatError::Unknown { .. }) if in_folder => {
                    skipped.push(error);
                }
                Err(error) => failed = failed.take().or(Some(error)),
            }
        });
        for error in skipped.drain(..) {
            say(&format!("laggard: skipped: {error}"));
        }
        if let Some(error) = failed {
            bail!("{error}\n  {}", error.hint());
        }
    }
    for (folder, parts) in snapshots {
        let id = folder.display().to_string();
        let snapshot = Snapshot::new(parts);
        snapshot.check_layout(&settings).with_context(|| {
            format!("the layout is not that of {id}: correct --tp, --pp and their like")
        })?;
        let job = snapshot.replay(&id, settings.clone());
        verdicts.push(job.verdict());
        last = args.report.is_some().then_some(job);
    }
    for (folder, ranks) in traces {
        for set in TraceSet::sets(ranks) {
            let job = set.replay(&set.name(&folder), settings.clone());
            let verdict = job.verdict();
            if let Some(path) = &args.perfetto {
                annotated += 1;
                write_annotated(path, &set, &verdict)?;
            }
            verdicts.push(verdict);
            last = args.report.is_some().then_some(job);
        }
    }
    if args.perfetto.is_some() && annotated != 1 {
        bail!("--perfetto takes the traces of a single job, found {annotated}");
    }
    if verdicts.is_empty() {
        bail!("no recording found in {}", args.paths[0].display());
    }
    print(&render(&verdicts, args)?).context("failed to print the verdict")?;
    if let (Some(path), Some(job)) = (&args.report, &last) {
        if verdicts.len() > 1 {
            bail!("--report takes a single recording, found {}", verdicts.len());
        }
        write_report(path, job)?;
    }
    let worst =
        verdicts.iter().flat_map(|v| &v.incidents).map(|incident| incident.severity);
    let fails = args.fail_on.is_some_and(|level| worst.max() >= Some(level.into()));
    Ok(ExitCode::from(u8::from(fails)))
}

fn write_annotated(path: &Path, set: &TraceSet, verdict: &Verdict) -> Result<()> {
    let place = || format!("failed to write {}", path.display());
    let mut out = BufWriter::new(File::create(path).with_context(place)?);
    write_perfetto(set, verdict, &mut out).and_then(|()| out.flush()).with_context(place)
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
    let texts =
        verdicts.iter().map(|verdict| verdict_text(verdict, colour, args.verbose));
    Ok(texts.collect::<Vec<_>>().join("\n"))
}

/// The files behind a path, in order, and whether it is a folder.
fn files_at(path: &Path) -> Result<(Vec<PathBuf>, bool)> {
    let place = || format!("failed to read {}", path.display());
    if !fs::metadata(path).with_context(place)?.is_dir() {
        return Ok((vec![path.to_owned()], false));
    }
    let mut files = Vec::new();
    let mut entries: Vec<PathBuf> = fs::read_dir(path)
        .with_context(place)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()
        .with_context(place)?;
    entries.sort();
    for entry in entries {
        // A folder that links to itself would never end.
        if fs::symlink_metadata(&entry).with_context(place)?.is_dir() {
            files.extend(files_at(&entry)?.0);
        } else if entry.is_file() {
            files.push(entry);
        }
    }
    Ok((files, true))
}
