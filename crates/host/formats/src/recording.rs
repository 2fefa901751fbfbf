#[cfg(feature = "nsys")]
use std::fs::File;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use model::Source;
use serde::Deserialize;
use serde::de::DeserializeOwned;
#[cfg(feature = "nsys")]
use trace::Trace;
use verdict::{Job, Settings};
use whatif::Findings;

#[cfg(feature = "nsys")]
use crate::nsys;
use crate::open::{OVER_LIMIT, open, open_bytes};
use crate::watchdog_log::WatchdogLog;
use crate::{
    FormatError, Journal, Limits, MarkEvents, ProfilerTrace, RankTrace, RasJob, Snapshot,
    SnapshotPart, StageMatrix, StoredBatches, TraceSet, call_log, kineto, pickle, py_spy, ras,
    ras_text, stored, what_if, work_requests,
};

/// One job, as recorded in one file.
#[derive(Debug)]
pub enum Recording {
    /// Durations of stages, step by step.
    Matrix(Box<StageMatrix>),
    /// Marks of every rank.
    Events(MarkEvents),
    /// Everything a live job's analysis was given.
    Journal(Journal),
    /// What a collector kept of a job.
    Stored(StoredBatches),
    /// What another tool says of a job, or of one of its ranks.
    Part(SnapshotPart),
    /// What every operation of sampled steps shows.
    WhatIf(Box<Findings>),
    /// What a profiler recorded of a rank.
    Trace(ProfilerTrace),
}

/// Reads a recording.
///
/// # Errors
/// Every variant of [`FormatError`].
pub fn load(path: &Path, limits: Limits) -> Result<Recording, FormatError> {
    load_watched(path, limits, &AtomicU64::new(0))
}

/// As [`load`]; adds the bytes it reads of the file, packed as they are, to `read` as it goes.
///
/// # Errors
/// As [`load`].
#[cfg_attr(
    not(feature = "nsys"),
    expect(unused_mut, reason = "its magic is peeked at")
)]
pub fn load_watched(
    path: &Path,
    limits: Limits,
    read: &AtomicU64,
) -> Result<Recording, FormatError> {
    let mut reader = open(path, limits, read)?;
    #[cfg(feature = "nsys")]
    if is_report(&mut reader) {
        // SQLite reads a file that is not packed itself, page by page; another is unpacked into
        // memory, of which there is less.
        let mut start = [0; nsys::MAGIC.len()];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
        let is_plain = read.is_ok() && start == nsys::MAGIC;
        let traces = if is_plain {
            nsys::read_file(path)
        } else {
            nsys::read_packed(path, reader, limits)
        };
        return traces.map(report);
    }
    let refused = match load_from(path, reader, limits) {
        Ok(recording) => return Ok(recording),
        Err(refused) => refused,
    };
    // Not in `read`: progress has counted these bytes once.
    let unwatched = AtomicU64::new(0);
    let again = || open(path, limits, &unwatched).ok();
    if let Some(recording) = again().and_then(|again| printed(&refused, again)) {
        return Ok(recording);
    }
    Err(match refused {
        // Only a document that is meant for us has mistakes worth telling.
        FormatError::Json { ref place, .. } if place == "[0]" => {
            let found = "it is neither a JSON list of lists nor output of a watchdog, a launcher \
                         or PyTorch's checks of collectives"
                .to_owned();
            FormatError::Unknown {
                path: path.to_owned(),
                found,
            }
        }
        // It was read up to the mistake: from its beginning it says whether it is meant for us.
        FormatError::Json { .. } => again()
            .and_then(|again| foreign(path, again))
            .unwrap_or(refused),
        other => other,
    })
}

/// Reads a what-if trace whose metadata is another file than those beside it; any other
/// recording as [`load`].
///
/// # Errors
/// As [`load`].
pub fn load_with_meta(path: &Path, meta: &Path, limits: Limits) -> Result<Recording, FormatError> {
    let unwatched = AtomicU64::new(0);
    let mut reader = open(path, limits, &unwatched)?;
    if !is_what_if(&mut reader) {
        return load(path, limits);
    }
    what_if(path, reader, meta, limits)
}

/// Reads a recording from memory; `name` stands for the file in errors.
///
/// # Errors
/// As [`load`].
pub fn load_bytes(name: &str, bytes: &[u8], limits: Limits) -> Result<Recording, FormatError> {
    let path = PathBuf::from(name);
    let reader = match open_bytes(bytes, limits) {
        Ok(reader) => reader,
        Err(source) => return Err(FormatError::Io { path, source }),
    };
    load_from(&path, reader, limits).or_else(|refused| {
        let again = open_bytes(bytes, limits).ok();
        again
            .and_then(|again| printed(&refused, again))
            .ok_or(refused)
    })
}

/// What a job printed, in a file that was refused as anything else: its watchdog's lines stand
/// behind whatever the script has to say, so that no beginning shows what it is.
fn printed(refused: &FormatError, reader: impl BufRead) -> Option<Recording> {
    use FormatError::{Content, Json, Unknown};
    if !matches!(refused, Content { .. } | Json { .. } | Unknown { .. }) {
        return None;
    }
    let log = WatchdogLog::read(reader, None).ok().flatten()?;
    Some(Recording::Part(SnapshotPart::watchdog(log)))
}

/// What a rank printed, in a log that is its own.
pub(crate) fn rank_log(path: &Path, rank: u32) -> Option<SnapshotPart> {
    let unwatched = AtomicU64::new(0);
    let reader = open(path, Limits::default(), &unwatched).ok()?;
    let log = WatchdogLog::read(reader, Some(rank)).ok().flatten();
    Some(SnapshotPart::watchdog(log?))
}

fn load_from(
    path: &Path,
    mut reader: impl BufRead,
    limits: Limits,
) -> Result<Recording, FormatError> {
    // By the first byte, then by keys near it. Several formats begin alike, so the order of the
    // arms counts.
    match skip_replies(&mut reader)
        .and_then(|()| first_visible(&mut reader))
        .map_err(|source| io_error(path, source, limits))?
    {
        // A pickle says its protocol first, since protocol 2.
        Some(0x80) => {
            let mut bytes = Vec::new();
            reader
                .read_to_end(&mut bytes)
                .map_err(|error| io_error(path, error, limits))?;
            let document = pickle::read(&bytes).map_err(|refused| {
                FormatError::content(path, format!("byte {}", refused.at), refused.reason)
            })?;
            Ok(Recording::Part(SnapshotPart::dump(path, document)?))
        }
        Some(b'T') if begins_as(&mut reader, work_requests::HEADER.as_bytes()) => Ok(
            Recording::Part(SnapshotPart::work_requests(path, reader, limits)?),
        ),
        Some(b'P' | b'T') if py_spy::begins(reader.fill_buf().unwrap_or_default()) => {
            let text = whole(path, reader, limits)?;
            Ok(Recording::Part(SnapshotPart::stack_text(path, &text)?))
        }
        Some(b'N' | b'J' | b'C' | b'G')
            if ras_text::begins(reader.fill_buf().unwrap_or_default()) =>
        {
            let text = whole(path, reader, limits)?;
            Ok(Recording::Part(SnapshotPart::ras_text(path, &text)?))
        }
        Some(b'P') if begins_as(&mut reader, &stored::MAGIC) => {
            Ok(Recording::Stored(StoredBatches::read(path, reader)?))
        }
        Some(b'P') if is_what_if(&mut reader) => {
            what_if(path, reader, &what_if::layout_beside(path)?, limits)
        }
        #[cfg(feature = "nsys")]
        Some(b'S') if is_report(&mut reader) => nsys::read_packed(path, reader, limits).map(report),
        Some(b'{') if begins_with(&mut reader, &TRACE_KEYS) => read_trace(path, reader, limits),
        // Before lists of JSON: a line of a call log begins with a bracket too.
        Some(b'[' | b'=' | b'0'..=b'9') if is_call_log(&mut reader) => {
            Ok(Recording::Part(SnapshotPart::calls(path, reader, limits)?))
        }
        Some(b'[') if begins_with(&mut reader, &EVENT_KEYS) => read_trace(path, reader, limits),
        Some(b'{') if begins_with(&mut reader, &LOG_KEYS) => Ok(Recording::Part(
            SnapshotPart::inspector(path, reader, limits)?,
        )),
        Some(b'{') if begins_with(&mut reader, &RAS_KEYS) => {
            let text = whole(path, reader, limits)?;
            let text = ras::with_commas(&text);
            Ok(Recording::Part(SnapshotPart::ras(
                path,
                parse(path, text.as_bytes(), limits)?,
            )?))
        }
        Some(b'{') if begins_with(&mut reader, &DUMP_KEYS) => Ok(Recording::Part(
            SnapshotPart::dump(path, parse(path, reader, limits)?)?,
        )),
        Some(b'[') if begins_with(&mut reader, &STACK_KEYS) => Ok(Recording::Part(
            SnapshotPart::stacks(path, parse(path, reader, limits)?)?,
        )),
        Some(b'{') if Journal::begins(reader.fill_buf().unwrap_or_default()) => {
            Ok(Recording::Journal(Journal::read(path, reader)?))
        }
        Some(b'{') => {
            // Any other object is read as a stage matrix, so that a mistake in one is named by its
            // place. `foreign` takes those back that say they are something else.
            let matrix: StageMatrix = parse(path, reader, limits)?;
            matrix.check(path)?;
            Ok(Recording::Matrix(Box::new(matrix)))
        }
        Some(b'[') => {
            let ranks = parse(path, reader, limits)?;
            Ok(Recording::Events(MarkEvents::new(path, ranks)?))
        }
        other => {
            let found = other.map_or("it is empty".to_owned(), |byte| {
                let begin = reader.fill_buf().unwrap_or_default();
                error_in(begin).unwrap_or_else(|| {
                    if is_text(begin) {
                        "it is text, and no line of it is a launcher's, a watchdog's or NCCL's"
                            .to_owned()
                    } else {
                        format!("it begins with {:?} (byte {byte})", char::from(byte))
                    }
                })
            });
            Err(FormatError::Unknown {
                path: path.to_owned(),
                found,
            })
        }
    }
}

/// What a tool said instead of writing the file, as py-spy without the right to look at a process.
fn error_in(start: &[u8]) -> Option<String> {
    let start = String::from_utf8_lossy(&start[..start.len().min(1 << 10)]);
    let first = start.lines().next()?;
    first
        .starts_with("Error: ")
        .then(|| format!("a tool wrote {first:?} to it"))
}

/// Whether a file begins with text.
fn is_text(start: &[u8]) -> bool {
    let start = &start[..start.len().min(1 << 10)];
    // A character may be cut off.
    let is_whole = |whole: usize| start.len() - whole < 4;
    let is_read =
        std::str::from_utf8(start).map_or_else(|error| is_whole(error.valid_up_to()), |_| true);
    is_read && !start.iter().any(|byte| matches!(byte, 0..=8 | 14..=26))
}

/// What is wrong with a well-formed document that was not meant for us, or not for this
/// version.
fn foreign(path: &Path, reader: impl BufRead) -> Option<FormatError> {
    #[derive(Deserialize)]
    struct Begin {
        #[serde(default)]
        schema: Option<String>,
    }
    let mut json = serde_json::Deserializer::from_reader(reader);
    let found = match Begin::deserialize(&mut json).ok()?.schema {
        Some(schema) if schema.starts_with("stage-matrix/") => return None,
        Some(schema) if schema.starts_with("laggard.") => {
            let reason = format!("{schema:?} is not a recording that this version reads");
            return Some(FormatError::content(path, "schema", reason));
        }
        Some(schema) => format!("its schema is {schema:?}"),
        None => "it is a JSON object without a schema".to_owned(),
    };
    Some(FormatError::Unknown {
        path: path.to_owned(),
        found,
    })
}

/// Keys of a Flight Recorder dump.
const DUMP_KEYS: [&str; 2] = ["\"collective_seq_id\"", "\"pg_config\""];
/// Keys of what `py-spy dump --json` prints.
const STACK_KEYS: [&str; 2] = ["\"os_thread_id\"", "\"frames\""];

/// Keys of a line of NCCL Inspector.
const LOG_KEYS: [&str; 2] = ["\"inspector_output_format_version\"", "\"coll_perf\""];
/// Keys of a reply of NCCL's RAS in JSON.
const RAS_KEYS: [&str; 2] = ["\"communicators_count\"", "\"collective_counts\""];

/// Keys of a trace of PyTorch's profiler: one of them stands at its beginning in all versions.
const TRACE_KEYS: [&str; 3] = [
    "\"traceEvents\"",
    "\"deviceProperties\"",
    "\"schemaVersion\"",
];
/// Keys of a trace that is only its list of events.
const EVENT_KEYS: [&str; 2] = ["\"ph\":", "\"ph\" :"];

#[cfg(feature = "nsys")]
fn is_report(reader: &mut impl BufRead) -> bool {
    reader
        .fill_buf()
        .is_ok_and(|start| start.starts_with(nsys::MAGIC))
}

#[cfg(feature = "nsys")]
fn report(traces: Vec<Trace>) -> Recording {
    Recording::Trace(ProfilerTrace {
        tool: Source::Nsys,
        traces,
    })
}

fn read_trace(path: &Path, reader: impl BufRead, limits: Limits) -> Result<Recording, FormatError> {
    let trace = kineto::read(reader).map_err(|error| io_error(path, error, limits))?;
    if trace.slices.is_empty() {
        let found = match trace.losses.first() {
            Some(loss) => format!("it is a trace of which nothing can be used: {loss}"),
            None => "it is a trace without events".to_owned(),
        };
        return Err(FormatError::Unknown {
            path: path.to_owned(),
            found,
        });
    }
    Ok(Recording::Trace(ProfilerTrace {
        tool: Source::Kineto,
        traces: vec![trace],
    }))
}

/// All of a text.
fn whole(path: &Path, mut reader: impl Read, limits: Limits) -> Result<String, FormatError> {
    let mut text = String::new();
    reader
        .read_to_string(&mut text)
        .map_err(|error| io_error(path, error, limits))?;
    Ok(text)
}

/// Passes over what RAS answers before its reply, and what a terminal shows before a report in words: a
/// client may have written that down too.
fn skip_replies(reader: &mut impl BufRead) -> std::io::Result<()> {
    let before = ras_text::preamble(reader.fill_buf()?);
    reader.consume(before);
    loop {
        let start = reader.fill_buf()?;
        let line = start
            .iter()
            .position(|byte| *byte == b'\n')
            .map(|end| &start[..end]);
        let Some(line) = line.filter(|line| ras_text::is_acknowledgement(line)) else {
            return Ok(());
        };
        let length = line.len() + 1;
        reader.consume(length);
    }
}

/// Whether one of the first lines is a call of NCCL's.
fn is_call_log(reader: &mut impl BufRead) -> bool {
    let start = reader.fill_buf().unwrap_or_default();
    // Headers of earlier runs may stand before the first call.
    let start = String::from_utf8_lossy(&start[..start.len().min(1 << 12)]);
    call_log::BEGINNINGS
        .iter()
        .any(|beginning| start.contains(beginning))
}

fn is_what_if(reader: &mut impl BufRead) -> bool {
    begins_as(reader, what_if::MAGIC)
}

fn begins_as(reader: &mut impl BufRead, magic: &[u8]) -> bool {
    reader
        .fill_buf()
        .is_ok_and(|start| start.starts_with(magic))
}

fn what_if(
    path: &Path,
    mut reader: impl BufRead,
    meta: &Path,
    limits: Limits,
) -> Result<Recording, FormatError> {
    let unwatched = AtomicU64::new(0);
    let text = whole(meta, open(meta, limits, &unwatched)?, limits)?;
    let layout = what_if::read_layout(meta, &text)?;
    let mut bytes = Vec::new();
    reader
        .read_to_end(&mut bytes)
        .map_err(|error| io_error(path, error, limits))?;
    Ok(Recording::WhatIf(Box::new(what_if::read_what_if(
        path, &bytes, layout, limits,
    )?)))
}

/// Whether one of the keys stands at the beginning, where a document shows what it is.
pub(crate) fn begins_with(reader: &mut impl BufRead, keys: &[&str]) -> bool {
    let start = reader.fill_buf().unwrap_or_default();
    let start = String::from_utf8_lossy(&start[..start.len().min(1 << 16)]);
    keys.iter().any(|key| start.contains(key))
}

/// The first byte that is not white space, left in the reader.
fn first_visible(reader: &mut impl BufRead) -> std::io::Result<Option<u8>> {
    loop {
        let buffer = reader.fill_buf()?;
        let Some(byte) = buffer.first().copied() else {
            return Ok(None);
        };
        if !byte.is_ascii_whitespace() {
            return Ok(Some(byte));
        }
        reader.consume(1);
    }
}

pub(crate) fn parse<T: DeserializeOwned>(
    path: &Path,
    reader: impl BufRead,
    limits: Limits,
) -> Result<T, FormatError> {
    let mut json = serde_json::Deserializer::from_reader(reader);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let place = error.path().to_string();
        json_error(path, &place, error.into_inner(), limits)
    })?;
    // A document with something behind it is two files in one, or damaged.
    json.end()
        .map_err(|error| json_error(path, ".", error, limits))?;
    Ok(value)
}

fn json_error(path: &Path, place: &str, error: serde_json::Error, limits: Limits) -> FormatError {
    if error.is_io() {
        return io_error(path, error.into(), limits);
    }
    let reason = error.to_string();
    // serde_json repeats line and column at the end of its message.
    let reason = reason
        .split(" at line ")
        .next()
        .unwrap_or_default()
        .to_owned();
    FormatError::Json {
        path: path.to_owned(),
        line: error.line(),
        column: error.column(),
        place: place.to_owned(),
        reason,
    }
}

pub(crate) fn io_error(path: &Path, source: std::io::Error, limits: Limits) -> FormatError {
    if source.to_string() == OVER_LIMIT {
        let limit_bytes = limits.unpacked_bytes;
        return FormatError::TooLarge {
            path: path.to_owned(),
            limit_bytes,
        };
    }
    FormatError::Io {
        path: path.to_owned(),
        source,
    }
}

impl Recording {
    /// Which job a reply of NCCL's RAS is about; `None` of other recordings.
    pub fn ras_job(&self) -> Option<RasJob> {
        match self {
            Self::Part(part) => part.ras_job(),
            _ => None,
        }
    }

    /// Runs the recording through the analysis and returns the finished job.
    pub fn replay(&self, id: &str, settings: Settings) -> Job {
        match self {
            Self::Matrix(matrix) => matrix.replay(id, settings),
            Self::Events(events) => events.replay(id, settings),
            Self::Journal(journal) => journal.replay(id, settings),
            Self::Stored(batches) => batches.replay(id, settings),
            Self::WhatIf(findings) => {
                let mut job = Job::new(id, Source::WhatIf, settings);
                job.add_what_if((**findings).clone());
                job
            }
            Self::Part(part) => Snapshot::new(vec![part.clone()]).replay(id, settings),
            Self::Trace(trace) => {
                let path = Path::new(id);
                let ranks = RankTrace::all(path, trace.clone(), &settings.pattern);
                TraceSet::one(ranks).replay(id, settings)
            }
        }
    }
}
