//! Traces of PyTorch's profiler: Chrome trace events in JSON, of all versions.
//!
//! The file is read in blocks and each event is used and forgotten, so memory follows the slices
//! that are kept, 32 bytes each, and not the size of the file. What is malformed is passed over
//! up to the next event, counted and told.

mod build;
mod scan;

use std::io::{self, Read};

use scan::{Stop, event, next_event, unquoted, value_end, visible};
use trace::Trace;

use build::Builder;

/// Bytes read at a time.
const BLOCK_BYTES: usize = 1 << 20;
/// Bytes one event, or one value beside the events, may take.
const MAX_EVENT_BYTES: usize = 64 << 20;
/// Places of malformed events that are told.
const MAX_PLACES: usize = 3;

/// Reads a trace.
///
/// # Errors
/// What the reader says; malformed content is no error.
pub(crate) fn read(reader: impl Read) -> io::Result<Trace> {
    let mut scanner = Scanner {
        blocks: Blocks::new(reader),
        builder: Builder::default(),
        first_key: Vec::new(),
        shift_ns: 0,
        malformed: 0,
        places: Vec::new(),
    };
    let ended = scanner.document()?;
    Ok(scanner.finish(ended))
}

/// A window over the file: all bytes that may still be needed.
struct Blocks<R> {
    reader: R,
    bytes: Vec<u8>,
    /// Where the unread bytes begin, and end.
    from: usize,
    to: usize,
    /// Place in the file of the first byte of the window.
    offset: u64,
    is_at_end: bool,
    /// Whether more was needed than there is.
    is_spent: bool,
    /// Why it ended before its end.
    damage: Option<String>,
}

impl<R: Read> Blocks<R> {
    fn new(reader: R) -> Self {
        let bytes = vec![0; BLOCK_BYTES];
        Self {
            reader,
            bytes,
            from: 0,
            to: 0,
            offset: 0,
            is_at_end: false,
            is_spent: false,
            damage: None,
        }
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    /// Place in the file of what comes next.
    fn place(&self) -> u64 {
        self.offset + self.from as u64
    }

    /// Reads more; `false` at the end of the file, or if what is unread is too long already.
    fn more(&mut self) -> io::Result<bool> {
        if self.is_at_end || self.to - self.from >= MAX_EVENT_BYTES {
            return Ok(false);
        }
        self.bytes.copy_within(self.from..self.to, 0);
        self.offset += self.from as u64;
        (self.from, self.to) = (0, self.to - self.from);
        if self.to + BLOCK_BYTES / 2 > self.bytes.len() {
            self.bytes.resize(self.bytes.len() * 2, 0);
        }
        while self.to < self.bytes.len() {
            match self.reader.read(&mut self.bytes[self.to..]) {
                Ok(0) => {
                    self.is_at_end = true;
                    break;
                }
                Ok(read) => self.to += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What a damaged archive gave before its damage is as good as ever.
                Err(error) if is_damage(&error) && self.offset + self.to as u64 > 0 => {
                    self.is_at_end = true;
                    self.damage = Some(error.to_string());
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The next byte that is not white space or a comma, left where it is.
    fn next(&mut self) -> io::Result<Option<u8>> {
        loop {
            let skipped = self
                .rest()
                .iter()
                .position(|byte| !byte.is_ascii_whitespace() && *byte != b',');
            if let Some(skipped) = skipped {
                self.from += skipped;
                return Ok(Some(self.bytes[self.from]));
            }
            self.from = self.to;
            if !self.more()? || self.from == self.to {
                return Ok(None);
            }
        }
    }
}

/// Whether an error is about the bytes of an archive rather than about reading them.
fn is_damage(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof)
}

/// How a document ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Well,
    /// In the middle of something.
    CutOff,
}

struct Scanner<R> {
    blocks: Blocks<R>,
    builder: Builder,
    /// The key that stands first in events of this file.
    first_key: Vec<u8>,
    /// What is to be added to all times.
    shift_ns: i64,
    malformed: u64,
    places: Vec<u64>,
}

impl<R: Read> Scanner<R> {
    fn document(&mut self) -> io::Result<Ended> {
        match self.blocks.next()? {
            Some(b'[') => {
                self.blocks.from += 1;
                self.events()
            }
            Some(b'{') => {
                self.blocks.from += 1;
                self.object()
            }
            _ => Ok(Ended::CutOff),
        }
    }

    /// The members of the document.
    fn object(&mut self) -> io::Result<Ended> {
        loop {
            match self.blocks.next()? {
                None => return Ok(Ended::CutOff),
                Some(b'}') => return Ok(Ended::Well),
                Some(_) => {}
            }
            let rest = self.blocks.rest();
            match key_of(rest) {
                Ok((b"traceEvents", from)) if rest[from] == b'[' => {
                    self.blocks.from += from + 1;
                    if self.events()? == Ended::CutOff {
                        return Ok(Ended::CutOff);
                    }
                }
                Ok((key, from)) => match value_end(rest, from) {
                    Ok(end) => {
                        let value = unquoted(&rest[from..end]);
                        self.builder.describe(key, value, &mut self.shift_ns);
                        self.blocks.from += end;
                    }
                    Err(stop) => self.pass_over(stop)?,
                },
                Err(stop) => self.pass_over(stop)?,
            }
            if self.blocks.is_spent {
                return Ok(Ended::CutOff);
            }
        }
    }

    /// Reads more of a member, or goes on behind what is wrong with it.
    fn pass_over(&mut self, stop: Stop) -> io::Result<()> {
        match stop {
            Stop::More => {
                self.blocks.is_spent = !self.blocks.more()?;
                Ok(())
            }
            Stop::Malformed(at) => {
                self.note_malformed(self.blocks.place() + at as u64);
                self.blocks.from += at.max(1);
                self.skip_member()
            }
        }
    }

    /// Goes on at the next line that looks like a member, after one that is damaged.
    fn skip_member(&mut self) -> io::Result<()> {
        loop {
            let rest = self.blocks.rest();
            let lines = memchr::memchr_iter(b'\n', rest).map(|at| at + 1);
            let begins = |at: &usize| {
                let line = rest[*at..].trim_ascii_start();
                line.starts_with(b"\"") && line.iter().take(60).any(|byte| *byte == b':')
            };
            if let Some(at) = { lines }.find(begins) {
                self.blocks.from += at;
                return Ok(());
            }
            if !self.blocks.more()? {
                self.blocks.from = self.blocks.to;
                return Ok(());
            }
        }
    }

    /// The events, up to the end of their list.
    fn events(&mut self) -> io::Result<Ended> {
        loop {
            match self.blocks.next()? {
                None => return Ok(Ended::CutOff),
                Some(b']') => {
                    self.blocks.from += 1;
                    return Ok(Ended::Well);
                }
                Some(b'{') => {}
                Some(_) => {
                    self.note_malformed(self.blocks.place());
                    if !self.resume(1)? {
                        return Ok(Ended::CutOff);
                    }
                }
            }
            let bytes = &self.blocks.bytes[self.blocks.from..self.blocks.to];
            match event(bytes) {
                Ok((event, length)) => {
                    if self.first_key.is_empty()
                        && let Ok((key, _)) = key_of(&bytes[1..])
                    {
                        self.first_key = key.to_vec();
                    }
                    self.builder.take(&event);
                    self.blocks.from += length;
                }
                Err(Stop::More) => {
                    // An open string or bracket may swallow all that follows.
                    let place = self.blocks.place();
                    if !self.blocks.more()? {
                        if !self.resume(1)? {
                            return Ok(Ended::CutOff);
                        }
                        self.note_malformed(place);
                    }
                }
                Err(Stop::Malformed(at)) => {
                    self.note_malformed(self.blocks.place() + at as u64);
                    if !self.resume(1)? {
                        return Ok(Ended::CutOff);
                    }
                }
            }
        }
    }

    /// Goes on at the next event, at least `from` bytes on; `false` if there is none.
    fn resume(&mut self, from: usize) -> io::Result<bool> {
        self.blocks.from = (self.blocks.from + from).min(self.blocks.to);
        if self.first_key.is_empty() {
            self.first_key = b"ph".to_vec();
        }
        loop {
            if let Some(at) = next_event(self.blocks.rest(), &self.first_key) {
                self.blocks.from += at;
                return Ok(true);
            }
            // The beginning of an event may stand at the end of the window.
            let kept = self.blocks.rest().len().min(256);
            self.blocks.from = self.blocks.to - kept;
            if !self.blocks.more()? {
                self.blocks.from = self.blocks.to;
                return Ok(false);
            }
        }
    }

    fn note_malformed(&mut self, place: u64) {
        self.malformed += 1;
        if self.places.len() < MAX_PLACES {
            self.places.push(place);
        }
    }

    fn finish(self, ended: Ended) -> Trace {
        const CENTURY_BEGAN_NS: i64 = 946_684_800 * 1_000_000_000;
        let mut trace = self.builder.finish(self.shift_ns);
        let first = trace.slices.first().map_or(0, |slice| slice.start_ns);
        trace.absolute = first > CENTURY_BEGAN_NS;
        if self.malformed > 0 {
            let places = self.places.iter().map(u64::to_string).collect::<Vec<_>>();
            let more = if self.malformed as usize > places.len() { ", …" } else { "" };
            trace.losses.push(format!(
                "{} events are not JSON and were passed over, at byte {}{more}",
                self.malformed,
                places.join(", ")
            ));
        }
        if ended == Ended::CutOff {
            let place = self.blocks.place();
            let why =
                self.blocks.damage.map(|why| format!(": {why}")).unwrap_or_default();
            trace.losses.push(format!("the file is cut off, at byte {place}{why}"));
        }
        trace
    }
}

/// The key of the first member, and where its value begins.
fn key_of(bytes: &[u8]) -> Result<(&[u8], usize), Stop> {
    let from = visible(bytes, 0)?;
    if bytes[from] != b'"' {
        return Err(Stop::Malformed(from));
    }
    let end = value_end(bytes, from)?;
    let colon = visible(bytes, end)?;
    if bytes[colon] != b':' {
        return Err(Stop::Malformed(colon));
    }
    Ok((&bytes[from + 1..end - 1], visible(bytes, colon + 1)?))
}

#[cfg(test)]
mod tests;
