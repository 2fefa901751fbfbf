//! Traces of PyTorch's profiler: Chrome trace events in JSON, of all versions.
//!
//! The file is read in blocks and each event is used and forgotten, so memory follows the slices
//! that are kept, 32 bytes each, and not the size of the file. What is malformed is passed over
//! up to the next event, counted and reported.

mod build;
mod scan;

use std::io::{self, Read};

use memchr::memmem;
use scan::{ScanStop, event, next_event, unquoted, value_end, visible};
use trace::Trace;

use build::{TraceBuilder, YEAR_2000_NS};

/// Bytes read at a time.
const BLOCK_BYTES: usize = 1 << 20;
/// Bytes one event, or one value beside the events, may take.
const MAX_EVENT_BYTES: usize = 64 << 20;
/// Bytes that damaged values beside the events may swallow, to be read again, before the rest is
/// given up.
const MAX_SWALLOWED_BYTES: u64 = MAX_EVENT_BYTES as u64;
/// Places of malformed events that are named.
const MAX_PLACES: usize = 3;
/// Members of a document that are looked for behind one that is damaged, on whatever line.
const MEMBERS: [&[u8]; 3] = [EVENTS, b"\"distributedInfo\"", b"\"baseTimeNanoseconds\""];
const EVENTS: &[u8] = b"\"traceEvents\"";

/// Reads a trace.
///
/// # Errors
/// What the reader says; malformed content is no error.
pub(crate) fn read(reader: impl Read) -> io::Result<Trace> {
    let mut scanner = Scanner {
        blocks: FileWindow::new(reader),
        builder: TraceBuilder::default(),
        first_key: Vec::new(),
        shift_ns: 0,
        malformed: 0,
        places: Vec::new(),
        swallowed: 0,
        next_begins: (0, false),
    };
    let ended = scanner.document()?;
    Ok(scanner.finish(ended))
}

/// A window over the file: all bytes that may still be needed.
struct FileWindow<R> {
    reader: R,
    bytes: Vec<u8>,
    /// Where the unread bytes begin, and end.
    from: usize,
    to: usize,
    /// Place in the file of the first byte of the window.
    offset: u64,
    is_at_end: bool,
    /// Why it ended before its end.
    damage: Option<String>,
}

impl<R: Read> FileWindow<R> {
    fn new(reader: R) -> Self {
        let bytes = vec![0; BLOCK_BYTES];
        Self {
            reader,
            bytes,
            from: 0,
            to: 0,
            offset: 0,
            is_at_end: false,
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
        // To the front, so that an event that two blocks share still lies in one slice.
        self.bytes.copy_within(self.from..self.to, 0);
        self.offset += self.from as u64;
        (self.from, self.to) = (0, self.to - self.from);
        // Doubled, so that an event of many blocks is moved a few times only.
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
                // A comma counts as white space: strict parsers refuse a whole trace for a trailing
                // one.
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
enum DocumentEnd {
    Well,
    /// In the middle of something.
    CutOff,
}

struct Scanner<R> {
    blocks: FileWindow<R>,
    builder: TraceBuilder,
    /// The key that stands first in events of this file.
    first_key: Vec<u8>,
    /// What is to be added to all times.
    shift_ns: i64,
    malformed: u64,
    places: Vec<u64>,
    /// Bytes of damaged values beside the events that were read in vain.
    swallowed: u64,
    /// Up to which place in the file no event begins behind the one that is read, and whether one
    /// does there.
    next_begins: (u64, bool),
}

impl<R: Read> Scanner<R> {
    fn document(&mut self) -> io::Result<DocumentEnd> {
        match self.blocks.next()? {
            // Tools that save a trace anew may keep only the list of events, which the format
            // allows.
            Some(b'[') => {
                self.blocks.from += 1;
                self.events()
            }
            Some(b'{') => {
                self.blocks.from += 1;
                self.object()
            }
            _ => Ok(DocumentEnd::CutOff),
        }
    }

    /// The members of the document.
    fn object(&mut self) -> io::Result<DocumentEnd> {
        let mut ended = DocumentEnd::CutOff;
        loop {
            match self.blocks.next()? {
                None => return Ok(ended),
                // The end of the document, or of what a damaged member has left.
                Some(b'}') => {
                    self.blocks.from += 1;
                    ended = DocumentEnd::Well;
                    continue;
                }
                Some(_) => {}
            }
            let rest = self.blocks.rest();
            let stop = match key_of(rest) {
                Ok((b"traceEvents", from)) if rest[from] == b'[' => {
                    self.blocks.from += from + 1;
                    // What stands behind the events counts too: Kineto wrote `baseTimeNanoseconds`
                    // there up to March 2025, and writes `distributedInfo` of on-demand traces
                    // there.
                    if self.events()? == DocumentEnd::CutOff {
                        return Ok(DocumentEnd::CutOff);
                    }
                    continue;
                }
                Ok((key, from)) => match value_end(rest, from) {
                    Ok(end) if memmem::find(&rest[from..end], EVENTS).is_none() => {
                        let value = unquoted(&rest[from..end]);
                        self.builder.describe(key, value, &mut self.shift_ns);
                        self.blocks.from += end;
                        continue;
                    }
                    // A bracket that is not closed has swallowed the events.
                    Ok(end) => {
                        self.swallowed += end as u64;
                        ScanStop::Malformed(from)
                    }
                    Err(stop) => stop,
                },
                Err(stop) => stop,
            };
            if !self.pass_over(stop)? {
                return Ok(DocumentEnd::CutOff);
            }
        }
    }

    /// Reads more of a member, or goes on behind what is wrong with it; `false` if there is nothing
    /// to go on with.
    fn pass_over(&mut self, stop: ScanStop) -> io::Result<bool> {
        let place = self.blocks.place();
        let (at, swallowed) = match stop {
            ScanStop::More if self.blocks.more()? => return Ok(true),
            // Cut off, or a bracket that is not closed.
            ScanStop::More => (0, self.blocks.rest().len()),
            ScanStop::Malformed(at) => (at, at),
        };
        self.swallowed += swallowed as u64;
        // A quote too many may have swallowed where the events begin.
        let swallowed = memmem::find(&self.blocks.rest()[..at], EVENTS);
        self.blocks.from += swallowed.unwrap_or(at).max(1);
        if self.swallowed > MAX_SWALLOWED_BYTES || !self.skip_member()? {
            return Ok(false);
        }
        self.note_malformed(place + at as u64);
        Ok(true)
    }

    /// Goes on at the next member, after one that is damaged: at a line that looks like one, or at
    /// one that is needed. `false` if there is none.
    fn skip_member(&mut self) -> io::Result<bool> {
        loop {
            let rest = self.blocks.rest();
            // Keys are shorter than 60 bytes: a quote without a colon soon behind it is text.
            let line = memchr::memchr_iter(b'\n', rest)
                .map(|at| at + 1)
                .find(|at| {
                    let line = rest[*at..].trim_ascii_start();
                    line.starts_with(b"\"") && line.iter().take(60).any(|byte| *byte == b':')
                });
            let before = &rest[..line.unwrap_or(rest.len())];
            let needed = MEMBERS
                .iter()
                .filter_map(|key| memmem::find(before, key))
                .min();
            if let Some(at) = needed.or(line) {
                self.blocks.from += at;
                return Ok(true);
            }
            if !self.blocks.more()? {
                self.blocks.from = self.blocks.to;
                return Ok(false);
            }
        }
    }

    /// The events, up to the end of their list.
    fn events(&mut self) -> io::Result<DocumentEnd> {
        loop {
            match self.blocks.next()? {
                None => return Ok(DocumentEnd::CutOff),
                Some(b']') => {
                    self.blocks.from += 1;
                    return Ok(DocumentEnd::Well);
                }
                Some(b'{') => {}
                Some(_) => {
                    self.note_malformed(self.blocks.place());
                    if !self.resume(1)? {
                        return Ok(DocumentEnd::CutOff);
                    }
                }
            }
            let limit = self.event_limit();
            let bytes = &self.blocks.rest()[..limit];
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
                Err(ScanStop::More) => {
                    // An open string or bracket may swallow all that follows.
                    let place = self.blocks.place();
                    let is_all = limit == self.blocks.rest().len();
                    let (_, is_open) = std::mem::take(&mut self.next_begins);
                    // The next event was looked for when less had been read: it is looked for
                    // again.
                    if !is_all && !is_open {
                        continue;
                    }
                    // An event begins before this one ends, or nothing follows: this one is
                    // damaged.
                    if is_open || !self.blocks.more()? {
                        if !self.resume(1)? {
                            return Ok(DocumentEnd::CutOff);
                        }
                        self.note_malformed(place);
                    }
                }
                Err(ScanStop::Malformed(at)) => {
                    self.note_malformed(self.blocks.place() + at as u64);
                    if !self.resume(1)? {
                        return Ok(DocumentEnd::CutOff);
                    }
                }
            }
        }
    }

    /// Bytes the event that comes next may have: all that are there, or, in a file that is damaged,
    /// up to where another begins. What one open bracket after the other swallows would be read
    /// again and again.
    fn event_limit(&mut self) -> usize {
        let (place, rest) = (self.blocks.place(), self.blocks.rest());
        if self.malformed == 0 {
            return rest.len();
        }
        if self.next_begins.0 <= place {
            let next = next_event(&rest[1..], &self.first_key).map(|at| at + 1);
            let at = next.unwrap_or(rest.len());
            self.next_begins = (place + at as u64, next.is_some());
        }
        ((self.next_begins.0 - place) as usize).min(rest.len())
    }

    /// Goes on at the next event, at least `from` bytes on; `false` if there is none.
    fn resume(&mut self, from: usize) -> io::Result<bool> {
        self.blocks.from = (self.blocks.from + from).min(self.blocks.to);
        if self.first_key.is_empty() {
            // No event could be read so far: `ph` stands first in those that Kineto writes.
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

    fn finish(self, ended: DocumentEnd) -> Trace {
        let mut trace = self.builder.finish(self.shift_ns);
        // No field says what times count from: they were absolute up to April 2024, and the base
        // makes them so since.
        let first = trace.slices.first().map_or(0, |slice| slice.start_ns);
        trace.absolute = first > YEAR_2000_NS;
        if self.malformed > 0 {
            let places = self.places.iter().map(u64::to_string).collect::<Vec<_>>();
            let more = if self.malformed as usize > places.len() {
                ", …"
            } else {
                ""
            };
            trace.losses.push(format!(
                "{} events are not JSON and were skipped, at byte {}{more}",
                self.malformed,
                places.join(", ")
            ));
        }
        if ended == DocumentEnd::CutOff {
            let place = self.blocks.place();
            let why = self
                .blocks
                .damage
                .map(|why| format!(": {why}"))
                .unwrap_or_default();
            trace
                .losses
                .push(format!("the file is cut off, at byte {place}{why}"));
        }
        trace
    }
}

/// The key of the first member, and where its value begins.
fn key_of(bytes: &[u8]) -> Result<(&[u8], usize), ScanStop> {
    let from = visible(bytes, 0)?;
    if bytes[from] != b'"' {
        return Err(ScanStop::Malformed(from));
    }
    let end = value_end(bytes, from)?;
    let colon = visible(bytes, end)?;
    if bytes[colon] != b':' {
        return Err(ScanStop::Malformed(colon));
    }
    Ok((&bytes[from + 1..end - 1], visible(bytes, colon + 1)?))
}

#[cfg(test)]
mod tests;
