//! The jobs that recordings are of.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Error, Result, anyhow, bail};
use formats::{
    FormatError, Limits, RankTrace, Recording, Snapshot, TraceSet, job_folder, load_watched,
    load_with_meta, read_rank_logs,
};
use model::{Input, SourceNote};
use verdict::{Job, Settings};

use crate::loading::load_all;
use crate::output::say;

/// What one file gives.
enum Loaded {
    Ranks(Vec<RankTrace>),
    Other(Recording),
}

impl Loaded {
    /// Reads a file. Traces are cut down here, on the core that has read them: whole, those of a
    /// job would not fit into memory together.
    fn read(
        file: &Path,
        meta: Option<&Path>,
        settings: &Settings,
        read: &AtomicU64,
    ) -> Result<Self, FormatError> {
        let recording = match meta {
            Some(meta) => load_with_meta(file, meta, Limits::default())?,
            None => load_watched(file, Limits::default(), read)?,
        };
        Ok(match recording {
            Recording::Trace(trace) => Self::Ranks(RankTrace::all(file, trace, &settings.pattern)),
            other => Self::Other(other),
        })
    }
}

/// What a job was read from.
pub(crate) enum JobSource<'files> {
    /// The traces of all ranks.
    Traces(&'files TraceSet),
    /// A file of its own.
    File(&'files Recording),
    /// Snapshots and logs that lie together.
    Folder,
}

/// Reads the recordings at `paths` and hands over the jobs they are of, with what they were read
/// from. Files of other tools in one folder are one job; one of them that cannot be read is left out, and
/// said to be.
///
/// # Errors
/// What the formats say of a file that was named, or of a folder's where no other can be read;
/// what `each` says; and if there is no job at all.
pub(crate) fn for_each_job(
    paths: &[PathBuf],
    meta: Option<&Path>,
    settings: &Settings,
    mut each: impl FnMut(Job, JobSource<'_>) -> Result<()>,
) -> Result<()> {
    // By folder, over all paths: files of one job may be named one by one.
    let mut snapshots = BTreeMap::new();
    let mut traces = BTreeMap::new();
    let mut found = 0;
    let mut damaged: BTreeMap<PathBuf, Vec<FormatError>> = BTreeMap::new();
    // What other files say may show what these are. With whether they were found in a folder.
    let mut unknown: BTreeMap<PathBuf, (bool, FormatError)> = BTreeMap::new();
    for path in paths {
        let (files, in_folder) = files_at(path)?;
        let mut failed: Option<FormatError> = None;
        let mut taken = Ok(());
        let load_one = |file: &Path, read: &AtomicU64| Loaded::read(file, meta, settings, read);
        load_all(&files, load_one, |file, loaded| {
            let folder = job_folder(file);
            match loaded {
                Ok(Loaded::Ranks(ranks)) => {
                    for rank in ranks {
                        let folder = rank.folder();
                        traces.entry(folder).or_insert_with(Vec::new).push(rank);
                    }
                }
                Ok(Loaded::Other(Recording::Part(part))) => {
                    let parts = snapshots.entry(folder).or_insert_with(Vec::new);
                    parts.push((file.to_owned(), part));
                }
                Ok(Loaded::Other(recording)) => {
                    let id = file.display().to_string();
                    found += 1;
                    // All files are read anyway; after a failure no further one is replayed.
                    if taken.is_ok() {
                        let job = recording.replay(&id, settings.clone());
                        taken = each(job, JobSource::File(&recording));
                    }
                }
                Err(error @ FormatError::Unknown { .. }) => {
                    unknown.insert(file.to_owned(), (in_folder, error));
                }
                Err(error) if in_folder => {
                    damaged.entry(folder).or_default().push(error);
                }
                Err(error) => failed = failed.take().or(Some(error)),
            }
        });
        if let Some(error) = failed {
            return Err(refused(&error));
        }
        taken?;
    }
    let left = read_rank_logs(&mut snapshots, unknown.keys().cloned().collect());
    // After the bar, which the lines would tear apart.
    for (in_folder, error) in left.iter().map(|file| &unknown[file]) {
        // A folder may hold anything; a file that somebody named is meant to be read.
        if !in_folder {
            return Err(refused(error));
        }
        say(&format!("laggard: skipped: {error}"));
    }
    if found == 0 && snapshots.is_empty() && traces.is_empty() {
        match damaged.values().flatten().next() {
            Some(error) => return Err(refused(error)),
            // clap demands at least one path.
            None => bail!("no recording found in {}", paths[0].display()),
        }
    }
    for error in damaged.values().flatten() {
        say(&format!("laggard: left out: {}", refused(error)));
    }
    for (folder, parts) in snapshots {
        // Logs of several jobs often lie in one folder, and are read one by one.
        let whole = match &parts[..] {
            [(file, _)] => file,
            _ => &folder,
        };
        let id = whole.display().to_string();
        let snapshot = Snapshot::new(parts.into_iter().map(|(_, part)| part).collect());
        snapshot.check_layout(settings).with_context(|| {
            format!("the layout does not fit {id}: correct --tp, --pp and the other sizes")
        })?;
        let mut job = snapshot.replay(&id, settings.clone());
        note_left_out(&mut job, damaged.get(&folder));
        each(job, JobSource::Folder)?;
    }
    for (folder, ranks) in traces {
        for set in TraceSet::sets(ranks) {
            let mut job = set.replay(&set.name(&folder), settings.clone());
            note_left_out(&mut job, damaged.get(&folder));
            each(job, JobSource::Traces(&set))?;
        }
    }
    Ok(())
}

/// Tells a job which files of its folder it lacks.
fn note_left_out(job: &mut Job, damaged: Option<&Vec<FormatError>>) {
    for error in damaged.into_iter().flatten() {
        job.take(Input::Note(SourceNote::LeftOut(error.to_string())));
    }
}

/// What is wrong with a file, and what to do about it.
pub(crate) fn refused(error: &FormatError) -> Error {
    anyhow!("{error}\n  {}", error.hint())
}

fn unread(path: &Path) -> String {
    format!("failed to read {}", path.display())
}

/// The files behind a path, in order, and whether it is a folder.
fn files_at(path: &Path) -> Result<(Vec<PathBuf>, bool)> {
    if !fs::metadata(path).with_context(|| unread(path))?.is_dir() {
        return Ok((vec![path.to_owned()], false));
    }
    let mut files = Vec::new();
    let mut entries: Vec<PathBuf> = fs::read_dir(path)
        .with_context(|| unread(path))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()
        .with_context(|| unread(path))?;
    // As the system lists them they differ from host to host.
    entries.sort();
    for entry in entries {
        // A folder that links to itself would never end.
        if fs::symlink_metadata(&entry)
            .with_context(|| unread(path))?
            .is_dir()
        {
            files.extend(files_at(&entry)?.0);
        } else if entry.is_file() {
            // Neither a pipe nor a socket: reading from one may wait for ever.
            files.push(entry);
        }
    }
    Ok((files, true))
}
