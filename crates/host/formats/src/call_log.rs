//! NCCL call logs of MegaTrace: one file a rank, a line each call of NCCL's host interface.

mod write;

use std::collections::HashMap;
use std::io::BufRead;
use std::path::Path;

use model::{CollectiveOp, LogDefect};
use schedule::{Call, Lane, RankCalls};

use crate::file_name::worded_rank;
use crate::recording::io_error;
use crate::{FormatError, Limits};

pub use write::{WrittenCalls, write_call_logs};

/// What stands at the beginning of a log, in all its generations.
pub(crate) const BEGINNINGS: [&str; 4] = ["] Fun ", "[Func nccl", ",NCCL_API,", ",CUDA_KERNEL,"];

/// Lines of a hundred that may be damaged: threads share the writer's ring, which tears
/// entries now and then.
const MAX_DAMAGED_SHARE: f64 = 0.01;

/// Ranks of a job; more are a line that is damaged, or no rank.
pub(crate) const MAX_RANKS: u32 = 1 << 20;

/// Lanes of one pointer among which that of a line is looked for, the latest. Ours: an address is
/// used again when its communicator is no more, a few times in a job.
const MAX_OF_POINTER: usize = 256;

/// Nanoseconds from here on have no room in a signed number; a time after it is a damaged line.
const YEAR_2262_NS: u64 = 1 << 63;

/// The log of one rank.
#[derive(Clone, Debug)]
pub(crate) struct CallLog {
    pub(crate) calls: RankCalls,
    /// Lines that could not be read, and the number of the first.
    damaged: Option<(u64, u64)>,
    /// Runs before the last, which are left out.
    earlier_runs: u64,
    /// Whether the last line is cut off: it was being written.
    cut: bool,
}

/// One line, as far as it is a call.
#[derive(Default)]
struct CallLine<'a> {
    at_ns: Option<u64>,
    rank: Option<u32>,
    host: Option<&'a str>,
    op: Option<CollectiveOp>,
    size: Option<u64>,
    pointer: &'a str,
    hash: &'a str,
    count: Option<u64>,
}

enum ParsedLine<'a> {
    Call(CallLine<'a>),
    /// Something that is no call of NCCL's.
    Other,
    /// A new run begins, or the last one ends.
    Header,
    Damaged,
}

impl CallLog {
    /// Reads a log of any generation.
    pub(crate) fn read(
        path: &Path,
        mut reader: impl BufRead,
        limits: Limits,
    ) -> Result<Self, FormatError> {
        let mut log = Self {
            calls: RankCalls::default(),
            damaged: None,
            earlier_runs: 0,
            cut: false,
        };
        let (mut rank, mut after_header, mut bytes) = (None, false, Vec::new());
        let mut places = Lanes::default();
        let mut number = 0;
        loop {
            bytes.clear();
            // As bytes: a torn entry need not be UTF-8, and is to cost its line only.
            let length = reader
                .read_until(b'\n', &mut bytes)
                .map_err(|error| io_error(path, error, limits))?;
            if length == 0 {
                break;
            }
            number += 1;
            let whole = bytes.last() == Some(&b'\n');
            let found = match std::str::from_utf8(bytes.trim_ascii())
                .map_or(ParsedLine::Damaged, read_line)
            {
                ParsedLine::Call(found) => found,
                ParsedLine::Other => continue,
                ParsedLine::Header => {
                    after_header = true;
                    continue;
                }
                ParsedLine::Damaged if !whole => {
                    log.cut = true;
                    break;
                }
                ParsedLine::Damaged => {
                    let (_, damaged) = log.damaged.get_or_insert((number, 0));
                    *damaged += 1;
                    continue;
                }
            };
            if let Some(said) = found.rank {
                let rank = *rank.get_or_insert(said);
                if rank != said {
                    let reason = format!(
                        "rank {said} in a log of rank {rank}: a file is the log of one rank"
                    );
                    return Err(FormatError::content(path, format!("line {number}"), reason));
                }
            }
            // A header after calls begins another run of the job in the same file: its calls must
            // not be joined with those of the run before.
            if std::mem::take(&mut after_header) && !log.calls.calls.is_empty() {
                log.calls.calls.clear();
                log.earlier_runs += 1;
            }
            log.calls.host = log.calls.host.or_else(|| found.host.map(ToOwned::to_owned));
            let lane = places.of(&mut log.calls.lanes, found.pointer, found.hash);
            let call = (found.at_ns, found.op, found.size);
            if let (Some(at_ns), Some(op), Some(size)) = call {
                let count = found.count;
                log.calls.calls.push(Call {
                    at_ns,
                    op,
                    size,
                    lane,
                    count,
                });
            }
        }
        if let Some((first, damaged)) = log.damaged
            && damaged as f64 > number as f64 * MAX_DAMAGED_SHARE
        {
            let reason = format!(
                "it is not a call, like {damaged} of {number} lines; calls look like \
                 \"[1755877674.24] [Rank 0] Fun AllReduce Data 1 stream 0x5\""
            );
            return Err(FormatError::content(path, format!("line {first}"), reason));
        }
        // The generation with commas does not say the rank in its lines.
        log.calls.rank = rank.or_else(|| worded_rank(path)).ok_or_else(|| {
            FormatError::content(
                path,
                "its name",
                "neither its lines nor its name give its rank: use a name such as rank_3.log",
            )
        })?;
        // Threads put their entries into the writer's ring in the order they get there, not in
        // that of their times.
        log.calls.calls.sort_by_key(|call| call.at_ns);
        Ok(log)
    }

    /// What should stand beside a verdict on this log.
    pub(crate) fn defects(&self) -> impl Iterator<Item = LogDefect> {
        let damaged = self
            .damaged
            .map(|(first, lines)| LogDefect::Damaged { lines, first });
        let cut = self.cut.then_some(LogDefect::CutOff);
        let runs = (self.earlier_runs > 0).then(|| LogDefect::Runs(self.earlier_runs + 1));
        [damaged, cut, runs].into_iter().flatten()
    }
}

/// Finds a line's lane; mostly it is that of the line before.
#[derive(Default)]
struct Lanes {
    last: usize,
    /// The places of all lanes by their pointers: a log may have tens of thousands.
    places: HashMap<String, Vec<usize>>,
}

impl Lanes {
    /// The writer's lines have room for 127 characters and end with the hash: of one communicator
    /// the hash is whole in some lines and cut off in longer ones.
    fn of(&mut self, lanes: &mut Vec<Lane>, pointer: &str, hash: &str) -> u32 {
        let hash = decimal(hash);
        let is_its = |lane: &Lane| lane.pointer == pointer && is_same(&lane.hash, &hash);
        if !lanes.get(self.last).is_some_and(is_its) {
            let known = self.places.get(pointer).map_or(&[][..], Vec::as_slice);
            let recent = &known[known.len().saturating_sub(MAX_OF_POINTER)..];
            let place = recent.iter().copied().find(|at| is_its(&lanes[*at]));
            self.last = place.unwrap_or_else(|| {
                lanes.push(Lane {
                    pointer: pointer.to_owned(),
                    hash: String::new(),
                });
                let place = lanes.len() - 1;
                self.places
                    .entry(pointer.to_owned())
                    .or_default()
                    .push(place);
                place
            });
        }
        // A longer one was cut off less: the lane keeps the most that is known of its hash.
        let known = &mut lanes[self.last].hash;
        if known.len() < hash.len() {
            *known = hash.into_owned();
        }
        self.last as u32
    }
}

/// Whether one hash is the other or its beginning. Who has none is not who has one.
fn is_same(one: &str, other: &str) -> bool {
    one.is_empty() == other.is_empty() && (one.starts_with(other) || other.starts_with(one))
}

/// A hash as a signed decimal number, however it was written; zero is none: split
/// communicators all have it.
fn decimal(hash: &str) -> std::borrow::Cow<'_, str> {
    let hexadecimal = hash
        .strip_prefix("0x")
        .map(|hex| u64::from_str_radix(hex, 16));
    let unsigned = match hexadecimal {
        Some(value) => value.ok(),
        None => hash
            .parse::<u64>()
            .ok()
            // Below 2^63 both spellings are one, and the text may be cut off: it stays as it is.
            .filter(|value| i64::try_from(*value).is_err()),
    };
    match unsigned {
        Some(0) => "".into(),
        Some(value) => value.cast_signed().to_string().into(),
        None if hash == "0" => "".into(),
        None => hash.into(),
    }
}

fn read_line(line: &str) -> ParsedLine<'_> {
    if line.is_empty() {
        return ParsedLine::Other;
    }
    if line.starts_with("===") {
        return ParsedLine::Header;
    }
    let mut found = CallLine::default();
    let read = if line.starts_with('[') {
        read_words(line, &mut found)
    } else {
        match read_fields(line, &mut found) {
            Some(true) => Some(()),
            Some(false) => return ParsedLine::Other,
            None => None,
        }
    };
    let complete = found.at_ns.is_some() && found.op.is_some() && found.size.is_some();
    if read.is_some() && complete {
        ParsedLine::Call(found)
    } else {
        ParsedLine::Damaged
    }
}

/// Reads `[key value] … key value …`: the generations of MegaTrace's own patch.
fn read_words<'a>(mut line: &'a str, found: &mut CallLine<'a>) -> Option<()> {
    while let Some(bracket) = line.strip_prefix('[') {
        let (inside, rest) = bracket.split_once(']')?;
        match inside.split_once(' ') {
            Some((key, value)) => read_pair(key, value, found)?,
            None => match time_ns(inside) {
                Some(at_ns) => found.at_ns = Some(at_ns),
                // The first is an address, the second a name: the last one stays.
                None => found.host = Some(inside),
            },
        }
        line = rest.trim_start();
    }
    let mut words = line.split_ascii_whitespace();
    while let Some(key) = words.next() {
        read_pair(key, words.next()?, found)?;
    }
    Some(())
}

fn read_pair<'a>(key: &str, value: &'a str, found: &mut CallLine<'a>) -> Option<()> {
    match key {
        "Rank" => found.rank = Some(value.parse().ok().filter(|rank| *rank < MAX_RANKS)?),
        "Fun" | "Func" => found.op = Some(op_of(value)?),
        // Elements, but bytes of AllGather and Broadcast, whose counts NCCL changes before the
        // patch sees them: sizes are comparable within one function only.
        "Data" => found.size = Some(value.parse().ok()?),
        // PyTorch has a stream for each group and device: within a process it stands for the group.
        "stream" => found.pointer = value,
        // Counts launches: calls of one group share it, and it stays 0 in a communicator of one
        // rank.
        "opCount" => found.count = Some(value.parse().ok()?),
        "groupHash" => found.hash = value,
        // `save_count`, `PCI` and what later versions may add.
        _ => {}
    }
    Some(())
}

/// Reads `time,NCCL_API,AllGather,count=1,…`; whether it is a call of NCCL's.
fn read_fields<'a>(line: &'a str, found: &mut CallLine<'a>) -> Option<bool> {
    let mut fields = line.split(',');
    found.at_ns = Some(time_ns(fields.next()?)?);
    if fields.next()? != "NCCL_API" {
        return Some(false);
    }
    found.op = Some(op_of(fields.next()?)?);
    for field in fields {
        match field.split_once('=')? {
            ("count", value) => found.size = Some(value.parse().ok()?),
            // The communicator tells more than the stream it is used on.
            ("comm", value) => found.pointer = value,
            ("group_hash", value) => found.hash = value,
            ("rank", value) => read_pair("Rank", value, found)?,
            ("op_count" | "opCount", value) => found.count = Some(value.parse().ok()?),
            _ => {}
        }
    }
    Some(true)
}

fn op_of(name: &str) -> Option<CollectiveOp> {
    let name = name.strip_prefix("nccl").unwrap_or(name);
    // Almost all lines are one of these; looking a name up takes as long as the whole line.
    let op = match name {
        "AllReduce" => CollectiveOp::ALLREDUCE,
        "AllGather" => CollectiveOp::ALLGATHER,
        "ReduceScatter" => CollectiveOp::REDUCE_SCATTER,
        "Send" => CollectiveOp::SEND,
        "Recv" => CollectiveOp::RECEIVE,
        _ => CollectiveOp::from_name(name),
    };
    (op != CollectiveOp::UNKNOWN).then_some(op)
}

/// Nanoseconds of `1755877674.248008482`, or of as many nanoseconds. Never by way of a float:
/// it has no room for them.
fn time_ns(text: &str) -> Option<u64> {
    let Some((seconds, fraction)) = text.split_once('.') else {
        // Seconds since 1970 have ten digits, nanoseconds nineteen.
        return text
            .parse()
            .ok()
            .filter(|ns| *ns < YEAR_2262_NS && text.len() >= 16);
    };
    if fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let digits: u64 = fraction.parse().ok()?;
    let fraction_ns = digits * 10u64.pow(9 - fraction.len() as u32);
    let seconds: u64 = seconds.parse().ok()?;
    seconds
        .checked_mul(1_000_000_000)?
        .checked_add(fraction_ns)
        .filter(|ns| *ns < YEAR_2262_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<CallLog, FormatError> {
        CallLog::read(Path::new("rank_7.log"), text.as_bytes(), Limits::default())
    }

    /// One call, in every generation of the format.
    #[test]
    fn all_generations_say_the_same() {
        let lines = [
            "[1755590104.254021144] [Rank 2] Fun AllReduce Data 8 stream 0x5",
            "[save_count 1] [1755590104.254021144] [Rank 2] Fun AllReduce Data 8 stream 0x5 \
             opCount 3",
            "[save_count 1] [1755590104.254021144] [Rank 2] Fun AllReduce Data 8 stream 0x5 \
             opCount 3 groupHash -5956285979098587305",
            "[10.0.0.1] [node7] [save_count 79] [1755590104.254021144] [Rank 2] \
             [PCI 0000:18:00.0] [Func ncclAllReduce] [Data 8] [stream (nil)] [opCount 3] \
             [groupHash 0xad56e3f1b6b35357]",
            "=== run ===\n1755590104.254021144,NCCL_API,AllReduce,count=8,datatype=4,\
             stream=0x1,comm=0x5,group_hash=0xad56e3f1b6b35357\n\
             1755590104.3,CUDA_KERNEL,func=k,grid=(1,1,1),block=(1,1,1),stream=0x1,is_nccl=0",
        ];
        let hashes = ["", "", "-5956285979098587305"];
        for (at, line) in lines.into_iter().enumerate() {
            let log = read(&format!("{line}\n")).unwrap().calls;
            let [call] = log.calls[..] else {
                panic!("{} calls", log.calls.len())
            };
            assert_eq!(call.at_ns, 1_755_590_104_254_021_144);
            assert_eq!((call.op.name(), call.size), ("ALLREDUCE", 8));
            assert_eq!(call.count, [None, Some(3), Some(3), Some(3), None][at]);
            assert_eq!(log.rank, if at == 4 { 7 } else { 2 });
            let hash = &log.lanes[0].hash;
            if let Some(wanted) = hashes.get(at) {
                assert_eq!(hash, wanted);
            } else {
                assert_eq!(hash, &decimal("0xad56e3f1b6b35357"));
            }
            assert_eq!(log.host.as_deref(), (at == 3).then_some("node7"));
        }
    }

    #[test]
    fn a_hash_is_the_same_number_however_it_is_written() {
        let signed = "-5956285979098587305";
        assert_eq!(decimal("12490458094610964311"), signed);
        assert_eq!(
            decimal(&format!("{:#x}", 12_490_458_094_610_964_311_u64)),
            signed
        );
        assert_eq!(decimal(signed), signed);
        // Cut off by the writer's buffer: still its beginning.
        assert_eq!(decimal("-5956285979098"), "-5956285979098");
        assert_eq!((decimal("0"), decimal("0x0")), ("".into(), "".into()));
    }

    /// As the calls of one communicator are logged whose names and sizes differ in length.
    #[test]
    fn a_hash_that_is_cut_off_in_long_lines_is_the_same_communicator() {
        let line = |op: &str, size: u64, pointer: &str, hash: &str| {
            format!(
                "[1755590104.254021144] [Rank 2] Fun {op} Data {size} stream {pointer} \
                 opCount 3 groupHash {hash}\n"
            )
        };
        let (whole, cut) = ("-5956285979098587305", "-595628597909858");
        let log = read(
            &[
                line("ReduceScatter", 2_684_239_872, "0x55919d27b4b0", cut),
                line("AllGather", 5_368_479_744, "0x55919d27b4b0", whole),
                line("ReduceScatter", 2_684_239_872, "0x55919d27b4b0", cut),
                // Of another communicator, of one without a hash, and on another stream.
                line("AllReduce", 1, "0x55919d27b4b0", "-5956285979099"),
                line("AllReduce", 1, "0x55919d27b4b0", "0"),
                line("AllReduce", 1, "0x55919d27b4b1", cut),
            ]
            .concat(),
        );
        let log = log.unwrap().calls;
        let lanes: Vec<u32> = log.calls.iter().map(|call| call.lane).collect();
        assert_eq!(lanes, [0, 0, 0, 1, 2, 3]);
        let hashes: Vec<&str> = log.lanes.iter().map(|lane| lane.hash.as_str()).collect();
        assert_eq!(hashes, [whole, "-5956285979099", "", cut]);
    }

    /// One after the other they would be compared a billion times.
    #[test]
    fn a_log_of_many_streams_is_read_in_time_and_each_is_a_lane() {
        let line = |stream: u32| format!("[1.5] [Rank 2] Fun Send Data 8 stream {stream:#x}\n");
        let text: String = (0..2).flat_map(|_| (0..50_000).map(line)).collect();
        let log = read(&text).unwrap().calls;
        assert_eq!(log.lanes.len(), 50_000);
        assert_eq!(log.calls[50_007].lane, 7);
    }

    #[test]
    fn the_last_run_of_several_counts() {
        let line = |ns| format!("{ns},NCCL_API,AllReduce,count=8,comm=0x5\n");
        let (first, last) = (1_755_590_104_000_000_000_u64, 1_755_590_105_000_000_000_u64);
        let text = format!(
            "=== run ===\n{}=== end ===\n=== run ===\n{}=== end ===\n",
            line(first),
            line(last)
        );
        let log = read(&text).unwrap();
        assert_eq!(log.calls.calls.len(), 1);
        assert_eq!(log.calls.calls[0].at_ns, last);
        assert_eq!(log.defects().collect::<Vec<_>>(), [LogDefect::Runs(2)]);
    }

    #[test]
    fn torn_lines_are_counted_and_many_are_refused() {
        let line = "[1755590104.254021144] [Rank 2] Fun AllReduce Data 8 stream 0x5\n";
        let torn = "[1755590104.25] [Rank 2] Fun AllRedu[1755590\n";
        let log = read(&(line.repeat(60) + torn + &line.repeat(60))).unwrap();
        assert_eq!((log.calls.calls.len(), log.damaged), (120, Some((61, 1))));
        let refused = read(&(line.to_owned() + torn)).unwrap_err().to_string();
        assert!(
            refused.starts_with("rank_7.log, at line 2: it is not a call"),
            "{refused}"
        );
        let log = read(&(line.to_owned() + "[17555")).unwrap();
        assert!(log.cut);
    }

    #[test]
    fn a_file_is_of_one_rank() {
        let line = |rank| format!("[1.5] [Rank {rank}] Fun Send Data 8 stream 0x5\n");
        let refused = read(&(line(2) + &line(3))).unwrap_err().to_string();
        assert_eq!(
            refused,
            "rank_7.log, at line 2: rank 3 in a log of rank 2: a file is the log of one rank"
        );
        let line = "1755590104.2,NCCL_API,AllReduce,count=8,comm=0x5\n";
        let nameless = Path::new("pod_17.log");
        assert!(CallLog::read(nameless, line.as_bytes(), Limits::default()).is_err());
    }
}
