use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::str;

use model::RankNs;
use serde::Deserialize;

/// Bytes of packed batches that are kept in memory.
const MEMORY_BYTES: usize = 8 << 20;
/// Bytes of packed batches that are kept on disk: half a day of eight ranks that make ten
/// steps a second.
const DISK_BYTES: u64 = 256 << 20;
/// Lines of a batch, before they are packed.
pub(crate) const BATCH_BYTES: usize = 1 << 20;
/// Inputs that later ones stand on, however old they are: who the ranks are, and what became of
/// them. There are few of each.
const KEPT: [&str; 9] = [
    "rank",
    "name",
    "note",
    "left",
    "killed",
    "failed",
    "restart",
    "group",
    "communicator",
];

/// Lines that wait to be sent, oldest first; bounded.
///
/// What finds no room in memory goes to a nameless file, and what finds none there is
/// thinned: marks are dropped and counted, who the ranks are is kept.
/// # Properties
/// Lines come out in the order they went in, each once or counted, in parts of at most
/// [`BATCH_BYTES`] or one line.
#[derive(Debug)]
pub(crate) struct Spool {
    /// What is left of what was dropped: older than all else.
    thinned: Thinned,
    disk: Option<SpoolFile>,
    disk_bytes: u64,
    memory: VecDeque<Vec<u8>>,
    memory_bytes: usize,
    memory_room_bytes: usize,
    /// The time up to which everything was put in, and was handed out.
    pushed_watermark: RankNs,
    popped_watermark: RankNs,
}

/// Lines, and the time up to which everything is sent with them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SpooledLines {
    pub(crate) watermark: RankNs,
    pub(crate) lines: Vec<u8>,
}

#[derive(Debug, Default)]
struct Thinned {
    watermark: RankNs,
    lines: Vec<u8>,
    lost: BTreeMap<u32, u64>,
}

/// A file that is written round and round.
#[derive(Debug)]
struct SpoolFile {
    file: File,
    room_bytes: u64,
    /// Lengths of what stands in it, from `begin` on.
    lengths: VecDeque<u32>,
    /// Bytes taken out, and put in, so far.
    begin: u64,
    end: u64,
}

impl Default for Spool {
    fn default() -> Self {
        Self::new(MEMORY_BYTES, DISK_BYTES)
    }
}

impl Spool {
    fn new(memory_room_bytes: usize, disk_bytes: u64) -> Self {
        Self {
            thinned: Thinned::default(),
            disk: None,
            disk_bytes,
            memory: VecDeque::new(),
            memory_bytes: 0,
            memory_room_bytes,
            pushed_watermark: RankNs::default(),
            popped_watermark: RankNs::default(),
        }
    }

    /// Adds lines; makes room if there is none.
    pub(crate) fn push(&mut self, SpooledLines { watermark, lines }: &SpooledLines) {
        let mut parts = cut(lines).peekable();
        while let Some(part) = parts.next() {
            // Only with the last part everything is sent.
            if parts.peek().is_none() {
                self.pushed_watermark = *watermark;
            }
            self.add(&pack(self.pushed_watermark, part));
        }
    }

    fn add(&mut self, packed: &[u8]) {
        self.memory_bytes += packed.len();
        self.memory.push_back(packed.to_vec());
        while self.memory_bytes > self.memory_room_bytes {
            let Some(oldest) = self.memory.pop_front() else {
                return;
            };
            self.memory_bytes -= oldest.len();
            self.put_away(&oldest);
        }
    }

    /// Whether all were taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.thinned.is_empty()
            && self.memory.is_empty()
            && self
                .disk
                .as_ref()
                .is_none_or(|disk| disk.lengths.is_empty())
    }

    /// The oldest lines; `None` if all were taken.
    pub(crate) fn pop(&mut self) -> Option<SpooledLines> {
        let SpooledLines { watermark, lines } = self.oldest()?;
        // What the disk has lost says nothing of the time.
        self.popped_watermark = self.popped_watermark.max(watermark);
        Some(SpooledLines {
            watermark: self.popped_watermark,
            lines,
        })
    }

    fn oldest(&mut self) -> Option<SpooledLines> {
        if let Some(thinned) = self.thinned.take(self.popped_watermark) {
            return Some(thinned);
        }
        if let Some(oldest) = self.disk.as_mut().and_then(SpoolFile::pop) {
            return Some(oldest);
        }
        let packed = self.memory.pop_front()?;
        self.memory_bytes -= packed.len();
        Some(unpack(&packed))
    }

    fn put_away(&mut self, packed: &[u8]) {
        if self.disk.is_none() {
            // Tried again each time: a disk that was full may have room by then.
            self.disk = SpoolFile::new(self.disk_bytes).ok();
        }
        if let Some(disk) = &mut self.disk {
            while disk.end - disk.begin + packed.len() as u64 > disk.room_bytes {
                let Some(oldest) = disk.pop() else { break };
                self.thinned.add(&oldest);
            }
            if packed.len() as u64 <= disk.room_bytes && disk.push(packed).is_ok() {
                return;
            }
            // A full disk: all that is older goes first.
            while let Some(oldest) = disk.pop() {
                self.thinned.add(&oldest);
            }
        }
        self.thinned.add(&unpack(packed));
    }
}

fn pack(watermark: RankNs, lines: &[u8]) -> Vec<u8> {
    let mut packed = watermark.0.to_le_bytes().to_vec();
    // The packer fails only for want of memory.
    packed.extend(zstd::bulk::compress(lines, 1).unwrap_or_default());
    packed
}

fn unpack(packed: &[u8]) -> SpooledLines {
    let Some((watermark, packed)) = packed.split_first_chunk() else {
        return SpooledLines::default();
    };
    let lines = zstd::stream::decode_all(packed).unwrap_or_default();
    SpooledLines {
        watermark: RankNs(u64::from_le_bytes(*watermark)),
        lines,
    }
}

impl Thinned {
    fn add(&mut self, batch: &SpooledLines) {
        self.watermark = self.watermark.max(batch.watermark);
        thin(&batch.lines, &mut self.lines, &mut self.lost);
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.lost.is_empty()
    }

    /// The next part; `before` is the time up to which everything was sent before it.
    fn take(&mut self, before: RankNs) -> Option<SpooledLines> {
        let first = cut(&self.lines).next().map_or(0, <[u8]>::len);
        if first < self.lines.len() {
            let rest = self.lines.split_off(first);
            let lines = std::mem::replace(&mut self.lines, rest);
            return Some(SpooledLines {
                watermark: before,
                lines,
            });
        }
        let mut lines = std::mem::take(&mut self.lines);
        for (rank, records) in std::mem::take(&mut self.lost) {
            lines.extend(lost_line(rank, records).into_bytes());
        }
        (!lines.is_empty()).then_some(SpooledLines {
            watermark: self.watermark,
            lines,
        })
    }
}

/// Cuts lines into parts of at most [`BATCH_BYTES`], or of one line.
fn cut(mut lines: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let most = lines.len().min(BATCH_BYTES);
        let end = match lines[..most].iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None => lines.iter().position(|byte| *byte == b'\n')? + 1,
        };
        let (part, rest) = lines.split_at(end);
        lines = rest;
        Some(part)
    })
}

/// The line that says how many records of a rank were lost.
pub(crate) fn lost_line(rank: u32, records: u64) -> String {
    format!("{{\"is\":\"lost\",\"rank\":{rank},\"records\":{records}}}\n")
}

/// Keeps of lines what later ones stand on, and counts the marks that are dropped.
pub(crate) fn thin(lines: &[u8], kept: &mut Vec<u8>, lost: &mut BTreeMap<u32, u64>) {
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        if let Some(mark) = line.strip_prefix(b"[") {
            let rank = mark.split(|byte| *byte == b',').next().unwrap_or_default();
            let rank = str::from_utf8(rank).ok().and_then(|rank| rank.parse().ok());
            *lost.entry(rank.unwrap_or(0)).or_default() += 1;
        } else if is(line, "lost") {
            if let Ok(LostLine { rank, records }) = serde_json::from_slice(line) {
                *lost.entry(rank).or_default() += records;
            }
        } else if is_kept(line) {
            kept.extend_from_slice(line);
        }
    }
}

/// What a line says of lost records.
#[derive(Deserialize)]
struct LostLine {
    rank: u32,
    records: u64,
}

/// Whether later lines stand on this one, however old it is.
fn is_kept(line: &[u8]) -> bool {
    KEPT.iter().any(|kind| is(line, kind))
}

/// Whether a line is an input of this kind.
pub(crate) fn is(line: &[u8], kind: &str) -> bool {
    let rest = line
        .strip_prefix(b"{\"is\":\"")
        .and_then(|rest| rest.strip_prefix(kind.as_bytes()));
    // The quote ends the word: "rank" is not "ranks".
    rest.is_some_and(|rest| rest.starts_with(b"\""))
}

impl SpoolFile {
    fn new(room_bytes: u64) -> io::Result<Self> {
        // Without a name: the system removes it however this process ends.
        let file = tempfile::tempfile()?;
        Ok(Self {
            file,
            room_bytes,
            lengths: VecDeque::new(),
            begin: 0,
            end: 0,
        })
    }

    /// How much of `length` bytes from `from` on stands before the file's end, and where.
    fn place(&self, from: u64, length: usize) -> (u64, usize) {
        // Counts go on for ever and places go round, so that full and empty are not alike.
        let at = from % self.room_bytes;
        let before_end = usize::try_from(self.room_bytes - at).unwrap_or(usize::MAX);
        (at, length.min(before_end))
    }

    fn push(&mut self, packed: &[u8]) -> io::Result<()> {
        let (at, length) = self.place(self.end, packed.len());
        let (first, rest) = packed.split_at(length);
        self.file.write_all_at(first, at)?;
        self.file.write_all_at(rest, 0)?;
        self.lengths.push_back(packed.len() as u32);
        self.end += packed.len() as u64;
        Ok(())
    }

    /// The oldest; without lines if the disk has lost it.
    fn pop(&mut self) -> Option<SpooledLines> {
        let length = self.lengths.pop_front()?;
        let mut packed = vec![0; length as usize];
        let (at, before_end) = self.place(self.begin, packed.len());
        let (first, rest) = packed.split_at_mut(before_end);
        // A part that cannot be read is lost, and its place in the file is free all the same.
        let read = self
            .file
            .read_exact_at(first, at)
            .and_then(|()| self.file.read_exact_at(rest, 0));
        self.begin += u64::from(length);
        Some(read.map_or_else(|_| SpooledLines::default(), |()| unpack(&packed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(number: u64) -> SpooledLines {
        let lines = format!(
            "{{\"is\":\"name\",\"rank\":1,\"name\":\"n{number}\"}}\n[1,{number},0,1,1,0]\n\
             {{\"is\":\"quiet\",\"at\":{number}}}\n"
        );
        SpooledLines {
            watermark: RankNs(number),
            lines: lines.into_bytes(),
        }
    }

    fn all(spool: &mut Spool) -> Vec<SpooledLines> {
        std::iter::from_fn(|| spool.pop()).collect()
    }

    #[test]
    fn lines_come_out_in_their_order_whether_from_memory_or_from_disk() {
        for memory_bytes in [0, 300, 1 << 20] {
            let mut spool = Spool::new(memory_bytes, 1 << 20);
            (0..50).for_each(|number| spool.push(&reported(number)));
            assert_eq!(spool.pop(), Some(reported(0)));
            (50..60).for_each(|number| spool.push(&reported(number)));
            assert!(!spool.is_empty());
            assert_eq!(all(&mut spool), (1..60).map(reported).collect::<Vec<_>>());
            assert!(spool.is_empty());
        }
    }

    /// Each kind of input is either worth keeping or worth nothing once it is old; lost records
    /// are added up.
    #[test]
    fn of_every_kind_of_input_it_is_known_whether_it_is_kept() {
        let passing = "look quiet end_asked stack stacks_told slow network timed entered stuck usage \
                       device profile_ordered profiled profile_ended lost";
        let error = serde_json::from_str::<model::Input>("{\"is\":\"?\"}").unwrap_err();
        let (_, kinds) = error.to_string().split_once("one of ").map_or_else(
            || panic!("{error}"),
            |(first, rest)| (first.to_owned(), rest.to_owned()),
        );
        let mut kinds: Vec<&str> = kinds.split('`').skip(1).step_by(2).collect();
        let mut known: Vec<&str> = passing.split(' ').chain(KEPT).collect();
        kinds.sort_unstable();
        known.sort_unstable();
        assert_eq!(kinds, known);
    }

    #[test]
    fn what_devices_did_long_ago_takes_no_room_and_what_is_kept_comes_in_parts() {
        // There is no room, but for what is kept in any case.
        let mut spool = Spool::new(1, 1);
        let device = format!("{{\"is\":\"device\",\"ranks\":[0]{}}}\n", " ".repeat(400));
        let rank = format!("{{\"is\":\"rank\",\"rank\":0{}}}\n", " ".repeat(400));
        let lost = "{\"is\":\"lost\",\"rank\":3,\"records\":2}\n";
        for watermark in 0..100 {
            let lines = [device.repeat(500), rank.repeat(100), lost.to_owned()].concat();
            spool.push(&SpooledLines {
                watermark: RankNs(watermark),
                lines: lines.into_bytes(),
            });
        }
        // Too much to be known of: nothing waits behind it but what is thinned.
        let parts = all(&mut spool);
        assert!(
            parts
                .iter()
                .all(|part| part.lines.len() <= BATCH_BYTES + lost.len())
        );
        assert!(parts.is_sorted_by_key(|part| part.watermark));
        let (newest, before) = parts.split_last().unwrap();
        assert_eq!(newest.watermark, RankNs(99));
        assert!(before.iter().all(|part| part.watermark < RankNs(99)));
        let text: String = parts
            .iter()
            .map(|part| str::from_utf8(&part.lines).unwrap())
            .collect();
        assert_eq!(text.matches("\"device\"").count(), 0);
        assert_eq!(text.matches("\"rank\",").count(), 100 * 100);
        assert_eq!(text.matches("\"lost\"").count(), 1);
        assert!(text.ends_with(&lost_line(3, 200)));
    }

    #[test]
    fn what_finds_no_room_is_counted_and_names_are_kept() {
        for disk_bytes in [1, 500, 1000] {
            let mut spool = Spool::new(300, disk_bytes);
            (0..1000).for_each(|number| spool.push(&reported(number)));
            let lines: Vec<u8> = all(&mut spool).into_iter().flat_map(|t| t.lines).collect();
            let lines = String::from_utf8(lines).unwrap();
            let names = lines.lines().filter(|line| line.contains("\"name\":"));
            let numbered = |(at, line): (usize, &str)| line.contains(&format!("\"n{at}\""));
            assert_eq!(names.clone().count(), 1000);
            assert!(names.enumerate().all(numbered));
            let marks = lines.lines().filter(|line| line.starts_with('[')).count();
            let (_, lost) = lines.split_once("\"records\":").unwrap();
            let lost: usize = lost.split('}').next().unwrap().parse().unwrap();
            assert!(marks > 0 && marks + lost == 1000, "{marks} and {lost}");
        }
    }
}
