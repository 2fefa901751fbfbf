//! `laggard.marks/1`: everything a live job's analysis was given, one JSON value a line.
//!
//! The first line is a header. After it an object is an [`Input`] by its `is`, and a list
//! is a mark: `[rank, at_ns, step, kind, on_loop_thread, code, args...]`, trailing zeros of
//! `args` left out.

use std::fs::File;
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use flate2::Compression;
use flate2::write::GzEncoder;
use model::{Event, Input, Mark, MarkKind, RankNs, Source, SourceNote};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use verdict::{Job, Settings};

use crate::FormatError;

const SCHEMA: &str = "laggard.marks/1";
/// Bytes of JSON, before compression, after which a recording is full.
const FULL_AT_BYTES: u64 = 4 << 30;
/// Far above the longest line that is written, and little to keep in memory.
const LONGEST_LINE_BYTES: u64 = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct JournalHeader {
    schema: String,
    job: String,
}

/// Writes a recording while the job runs.
pub struct JournalWriter {
    out: Out,
    path: PathBuf,
    /// Bytes of JSON so far.
    written: u64,
    line: Vec<u8>,
}

enum Out {
    Plain(BufWriter<File>),
    Gzip(Box<GzEncoder<BufWriter<File>>>),
    Zstd(Box<zstd::stream::write::Encoder<'static, BufWriter<File>>>),
}

impl Out {
    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Plain(out) => out,
            Self::Gzip(out) => out,
            Self::Zstd(out) => out,
        }
    }
}

impl std::fmt::Debug for JournalWriter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("JournalWriter")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl JournalWriter {
    /// Begins a recording at `path`, compressed if its name ends in `.gz` or `.zst`.
    ///
    /// # Errors
    /// What the operating system says, or that it is a pipe: a slow reader would
    /// hold up the writer.
    pub fn create(path: &Path, job: &str) -> io::Result<Self> {
        if fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo()) {
            let reason = "it is a pipe; a recording goes to a file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let file = BufWriter::new(File::create(path)?);
        let out = match path.extension().and_then(|extension| extension.to_str()) {
            // Fast rather than small: it is written beside a job that needs the cores.
            Some("gz") => Out::Gzip(Box::new(GzEncoder::new(file, Compression::fast()))),
            Some("zst") => Out::Zstd(Box::new(zstd::stream::write::Encoder::new(file, 1)?)),
            _ => Out::Plain(file),
        };
        let mut journal = Self {
            out,
            path: path.to_owned(),
            written: 0,
            line: Vec::new(),
        };
        let header = JournalHeader {
            schema: SCHEMA.to_owned(),
            job: job.to_owned(),
        };
        serde_json::to_writer(&mut journal.line, &header)?;
        journal.line.push(b'\n');
        journal.end_line()?;
        Ok(journal)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds an input.
    ///
    /// # Errors
    /// What the operating system says; [`io::ErrorKind::FileTooLarge`] once the recording
    /// is full. It can be read up to there.
    pub fn write(&mut self, input: &Input) -> io::Result<()> {
        self.line.clear();
        input_line(input, &mut self.line)?;
        self.end_line()
    }

    fn end_line(&mut self) -> io::Result<()> {
        self.written += self.line.len() as u64;
        // Nothing of this line is written: the recording ends with a whole one.
        if self.written > FULL_AT_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.out.writer().write_all(&self.line)
    }

    /// Hands everything written so far to the operating system.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.writer().flush()
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn finish(self) -> io::Result<()> {
        match self.out {
            Out::Plain(mut out) => out.flush(),
            Out::Gzip(out) => out.finish()?.flush(),
            Out::Zstd(out) => out.finish()?.flush(),
        }
    }
}

/// A note, in words as well for versions that do not know its kind.
#[derive(Serialize)]
#[serde(tag = "is", rename = "note")]
struct NoteLine<'a> {
    text: String,
    #[serde(skip_serializing_if = "SourceNote::is_text")]
    note: &'a SourceNote,
}

/// Adds the line of an input.
///
/// # Errors
/// None that is known: what is written to memory has room.
pub fn input_line(input: &Input, line: &mut Vec<u8>) -> io::Result<()> {
    match input {
        Input::Mark { rank, mark } => {
            let (code, numbers) = mark.event.encode();
            // Recordings are mostly marks, and most marks have no numbers.
            let used = numbers
                .iter()
                .rposition(|it| *it != 0)
                .map_or(0, |at| at + 1);
            let (at, step, kind) = (mark.at.0, mark.step, mark.kind() as u8);
            let on_loop = u8::from(mark.on_loop_thread);
            write!(line, "[{rank},{at},{step},{kind},{on_loop},{code}")?;
            for number in numbers.iter().take(used) {
                write!(line, ",{number}")?;
            }
            line.push(b']');
        }
        Input::Note(note) => {
            let text = narrate::source_note(note);
            serde_json::to_writer(&mut *line, &NoteLine { text, note })?;
        }
        other => serde_json::to_writer(&mut *line, other)?,
    }
    line.push(b'\n');
    Ok(())
}

/// The lines of a journal, none kept beyond [`LONGEST_LINE_BYTES`].
pub(crate) struct Lines<R>(pub(crate) R);

impl<R: BufRead> Iterator for Lines<R> {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut line = Vec::new();
        let mut limited = self.0.by_ref().take(LONGEST_LINE_BYTES);
        match limited.read_until(b'\n', &mut line) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) => return Some(Err(error)),
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        // It was cut by the limit, not by the end of the file.
        } else if line.len() as u64 == LONGEST_LINE_BYTES {
            let reason = format!("a line is longer than {LONGEST_LINE_BYTES} bytes");
            return Some(Err(io::Error::new(io::ErrorKind::FileTooLarge, reason)));
        }
        Some(Ok(line))
    }
}

/// A recorded stream of inputs.
#[derive(Clone, Debug)]
pub struct Journal {
    inputs: Vec<Input>,
}

impl Journal {
    /// What the analysis was given, in order.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// Whether the first bytes of a file are those of a journal.
    pub(crate) fn begins(bytes: &[u8]) -> bool {
        let line = bytes
            .split(|byte| *byte == b'\n')
            .next()
            .unwrap_or_default();
        serde_json::from_slice::<JournalHeader>(line).is_ok_and(|header| header.schema == SCHEMA)
    }

    /// Reads a journal.
    ///
    /// A recording that was cut off, as by a full disk or a kill, is read up to the cut.
    pub(crate) fn read(path: &Path, reader: impl BufRead) -> Result<Self, FormatError> {
        let mut inputs = Vec::new();
        // The first line is the header that the file was known by.
        let mut lines = Lines(reader).zip(1..).skip(1).peekable();
        while let Some((line, number)) = lines.next() {
            let line = match line {
                Ok(line) => line,
                // The end of a packed recording is missing: what came before it is whole.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                    let place = format!("line {number}");
                    return Err(FormatError::content(path, place, error.to_string()));
                }
                Err(source) => {
                    return Err(FormatError::Io {
                        path: path.to_owned(),
                        source,
                    });
                }
            };
            match input_of(&line) {
                Ok(input) => inputs.push(input),
                // The writer was killed in the middle of its last line.
                Err(_) if lines.peek().is_none() => break,
                Err(reason) => {
                    return Err(FormatError::content(path, format!("line {number}"), reason));
                }
            }
        }
        if inputs.is_empty() {
            let path = path.to_owned();
            return Err(FormatError::NoRank { path });
        }
        Ok(Self { inputs })
    }

    pub(crate) fn replay(&self, id: &str, settings: Settings) -> Job {
        let mut job = Job::new(id, Source::Marks, settings);
        for input in &self.inputs {
            job.take(input.clone());
        }
        job.finish();
        job
    }
}

/// Whether the line of an input is that of a mark.
pub(crate) fn is_mark(line: &[u8]) -> bool {
    line.starts_with(b"[")
}

pub(crate) fn input_of(line: &[u8]) -> Result<Input, String> {
    if !is_mark(line) {
        return serde_json::from_slice(line).map_err(|error| error.to_string());
    }
    let MarkNumbers { values, count } =
        serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let ([rank, at, step, kind, on_loop, code, numbers @ ..], 6..) = (values, count) else {
        return Err(format!("a mark has at least 6 numbers, this one {count}"));
    };
    let kind = u8::try_from(kind)
        .ok()
        .and_then(MarkKind::from_number)
        .ok_or_else(|| format!("unknown kind of mark {kind}"))?;
    let code = fitting(code)?;
    let mark = Mark {
        at: RankNs(at),
        step: fitting(step)?,
        on_loop_thread: on_loop != 0,
        event: Event::decode(kind, code, numbers)
            .ok_or_else(|| format!("unknown numbers in a mark of kind {}", kind as u8))?,
    };
    Ok(Input::Mark {
        rank: fitting(rank)?,
        mark,
    })
}

/// A number of a mark as the type of its place.
fn fitting<T: TryFrom<u64>>(number: u64) -> Result<T, String> {
    T::try_from(number).map_err(|_too_large| "a number is too large for its place".to_owned())
}

/// The numbers of a mark, those that are left out zero.
struct MarkNumbers {
    // Six of every mark, and up to five arguments: those of a slot of the ring.
    values: [u64; 11],
    count: usize,
}

/// Without a list of its own for each of the marks, which are nearly all there is to read.
impl<'de> Deserialize<'de> for MarkNumbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = MarkNumbers;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("6 to 11 numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<MarkNumbers, A::Error> {
                let mut numbers = MarkNumbers {
                    values: [0; 11],
                    count: 0,
                };
                while let Some(value) = list.next_element()? {
                    let count = numbers.count;
                    let place = numbers.values.get_mut(count);
                    *place.ok_or_else(|| A::Error::invalid_length(count + 1, &self))? = value;
                    numbers.count += 1;
                }
                Ok(numbers)
            }
        }
        deserializer.deserialize_seq(Each)
    }
}

#[cfg(test)]
mod tests {
    use model::ProfileNote;

    use super::*;

    fn line_of(note: SourceNote) -> String {
        let mut line = Vec::new();
        input_line(&Input::Note(note), &mut line).unwrap();
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn a_note_is_written_in_words_and_read_by_its_kind() {
        let far = SourceNote::Profile(ProfileNote::TooFar(7));
        let line = line_of(far.clone());
        assert_eq!(
            line,
            r#"{"is":"note","text":"an order to profile ranks was refused: step 7 is far ahead","note":{"profile":{"too_far":7}}}"#
                .to_owned()
                + "\n"
        );
        assert_eq!(input_of(line.as_bytes()), Ok(Input::Note(far)));
        let undelivered = line_of(SourceNote::Undelivered);
        let read = input_of(undelivered.as_bytes());
        assert_eq!(read, Ok(Input::Note(SourceNote::Undelivered)));
    }

    #[test]
    fn a_note_of_another_version_keeps_its_words() {
        let earlier = r#"{"is":"note","text":"rank 3 is slow"}"#;
        let text = SourceNote::Text("rank 3 is slow".to_owned());
        assert_eq!(input_of(earlier.as_bytes()), Ok(Input::Note(text.clone())));
        assert_eq!(line_of(text.clone()).trim_end(), earlier);
        // Kinds, and fields of a kind, that are not there yet.
        for later in [
            r#"{"tides":{"rank":3}}"#,
            r#"{"probe_faults":{"by_rank":{}}}"#,
            "[3]",
        ] {
            let line = format!(r#"{{"is":"note","text":"rank 3 is slow","note":{later}}}"#);
            assert_eq!(
                input_of(line.as_bytes()),
                Ok(Input::Note(text.clone())),
                "{later}"
            );
        }
        assert!(input_of(br#"{"is":"note"}"#).is_err());
    }
}
