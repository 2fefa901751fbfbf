//! Logs of NCCL Inspector: completed collectives and how long each rank was in them.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

use model::{CollectiveOp, Input, InspectorNote, SourceNote};
use serde::Deserialize;

use crate::ranks::{ProcessPlace, job_ranks, tell_hosts};
use crate::ras::is_hexadecimal;
use crate::recording::io_error;
use crate::{FormatError, Limits};

/// The log of one process, or of several, one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct InspectorLog {
    /// By communicator: its hash and size.
    members: BTreeMap<(String, u32), CommMembers>,
    /// Collectives that were timed by the host, and say nothing of arrivals.
    host_timed: u64,
    /// Whether the last line is cut off: it was being written.
    cut: bool,
}

/// Rank in the communicator, and the process it runs in.
type CommMembers = BTreeMap<(u32, ProcessPlace), Vec<TimedCollective>>;

#[derive(Clone, Copy, Debug)]
struct TimedCollective {
    op: CollectiveOp,
    number: u64,
    bytes: u64,
    busy_ns: u64,
}

#[derive(Deserialize)]
struct InspectorLine {
    #[serde(default)]
    header: Option<CommHeader>,
    #[serde(default)]
    metadata: Option<Metadata>,
    #[serde(default)]
    coll_perf: Option<CollPerf>,
}

#[derive(Deserialize)]
struct CommHeader {
    id: String,
    rank: u32,
    n_ranks: u32,
}

#[derive(Deserialize)]
struct Metadata {
    inspector_output_format_version: String,
    #[serde(default)]
    hostname: String,
    #[serde(default)]
    pid: i64,
}

#[derive(Deserialize)]
struct CollPerf {
    coll: String,
    coll_sn: u64,
    coll_msg_size_bytes: u64,
    coll_exec_time_us: f64,
    #[serde(default)]
    coll_timing_source: Option<String>,
}

impl InspectorLog {
    /// Reads a log, a JSON object a line.
    pub(crate) fn read(
        path: &Path,
        mut reader: impl BufRead,
        limits: Limits,
    ) -> Result<Self, FormatError> {
        let mut log = Self::default();
        let mut text = Vec::new();
        for number in 1.. {
            text.clear();
            let length = reader
                .read_until(b'\n', &mut text)
                .map_err(|error| io_error(path, error, limits))?;
            if length == 0 {
                break;
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            let mut json = serde_json::Deserializer::from_slice(&text);
            let line: InspectorLine = match serde_path_to_error::deserialize(&mut json) {
                Ok(line) => line,
                Err(error) if error.inner().is_eof() && text.last() != Some(&b'\n') => {
                    log.cut = true;
                    break;
                }
                Err(error) => {
                    let place = format!("line {number}, {}", error.path());
                    // serde_json repeats line and column at the end of its message.
                    let reason = error.inner().to_string();
                    let reason = reason.split(" at line ").next().unwrap_or_default();
                    return Err(FormatError::content(path, place, reason));
                }
            };
            log.add(line).map_err(|(place, reason)| {
                FormatError::content(path, format!("line {number}, {place}"), reason)
            })?;
        }
        Ok(log)
    }

    fn add(&mut self, line: InspectorLine) -> Result<(), (&'static str, String)> {
        // Lines about sends, receives and the log itself.
        let Some(timed) = line.coll_perf else {
            return Ok(());
        };
        let header = line
            .header
            .ok_or_else(|| ("header", "it is missing".to_owned()))?;
        let metadata = line
            .metadata
            .ok_or_else(|| ("metadata", "it is missing".to_owned()))?;
        let version = &metadata.inspector_output_format_version;
        // NCCL up to 2.30 writes 4.0; later minor versions only add fields.
        if !version.starts_with("v4.") {
            let reason = format!("{version:?} is not v4.x, the only version that laggard reads");
            return Err(("metadata.inspector_output_format_version", reason));
        }
        if !is_hexadecimal(&header.id) {
            let reason = format!("{:?} is not a hexadecimal number such as 0x1f", header.id);
            return Err(("header.id", reason));
        }
        if header.rank >= header.n_ranks {
            let CommHeader { rank, n_ranks, .. } = header;
            let reason = format!("rank {rank} in a communicator of {n_ranks}");
            return Err(("header.rank", reason));
        }
        let busy_us = timed.coll_exec_time_us;
        // Up to four months, which also keeps their nanoseconds within 64 bits.
        if !(0.0..1e13).contains(&busy_us) {
            let reason = format!("{busy_us} µs is not a duration");
            return Err(("coll_perf.coll_exec_time_us", reason));
        }
        if timed
            .coll_timing_source
            // The host sees when a collective is enqueued, the kernel when it runs.
            .is_some_and(|source| !source.starts_with("kernel"))
        {
            self.host_timed += 1;
            return Ok(());
        }
        let communicator = self.members.entry((header.id, header.n_ranks)).or_default();
        // The device is not said: a process counts as one rank.
        let place = (metadata.hostname, metadata.pid, 0);
        communicator
            .entry((header.rank, place))
            .or_default()
            .push(TimedCollective {
                op: CollectiveOp::from_name(&timed.coll),
                number: timed.coll_sn,
                bytes: timed.coll_msg_size_bytes,
                busy_ns: (busy_us * 1e3) as u64,
            });
        Ok(())
    }
}

/// What logs say of one rank of a communicator.
struct InspectedRank<'a> {
    place: &'a ProcessPlace,
    /// Of each of its files.
    timed: Vec<&'a [TimedCollective]>,
}

/// Tells a job what logs say; groups are numbered from `group` on.
pub(crate) fn tell(logs: &[&InspectorLog], group: u32, take: &mut dyn FnMut(Input)) {
    let mut all: BTreeMap<&(String, u32), BTreeMap<u32, InspectedRank>> = BTreeMap::new();
    let mut notes = Vec::new();
    for (communicator, ranks) in logs.iter().flat_map(|log| &log.members) {
        let members = all.entry(communicator).or_default();
        for ((rank, place), timed) in ranks {
            let member = members.entry(*rank).or_insert_with(|| InspectedRank {
                place,
                timed: Vec::new(),
            });
            if member.place == place {
                member.timed.push(timed);
            } else {
                let (hash, _) = communicator;
                notes.push(InspectorNote::TwoProcesses {
                    communicator: hash.clone(),
                    rank: *rank,
                });
            }
        }
    }
    let places: Vec<Vec<(u32, ProcessPlace)>> = all
        .values()
        .map(|ranks| {
            ranks
                .iter()
                .map(|(rank, member)| (*rank, member.place.clone()))
                .collect()
        })
        .collect();
    let (ranks, numbering) = job_ranks(&places);
    numbering.note().into_iter().for_each(&mut *take);
    tell_hosts(&places, &ranks, take);
    let missing: Vec<_> = all
        .iter()
        .filter(|((_, size), ranks)| ranks.len() < *size as usize)
        .collect();
    if let Some(((hash, size), ranks)) = missing.first() {
        notes.push(InspectorNote::Lacking {
            lacking: missing.len() as u64,
            communicators: all.len() as u64,
            communicator: hash.clone(),
            logs: u64::from(*size) - ranks.len() as u64,
            size: *size,
        });
    }
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for (hash, _) in all.keys() {
        *sizes.entry(hash).or_default() += 1;
    }
    for ((group, ((hash, size), members)), of_job) in (group..).zip(&all).zip(&ranks) {
        let mut name = format!("comm {hash}");
        // Communicators of different sizes may share the hash.
        if sizes[hash.as_str()] > 1 {
            name += &format!(" of {size}");
        }
        take(Input::Group {
            group,
            name,
            members: of_job.values().copied().collect(),
        });
        for (rank, member) in members {
            let Some(rank) = of_job.get(rank).copied() else {
                continue;
            };
            for timed in member.timed.iter().copied().flatten() {
                let TimedCollective {
                    op,
                    number,
                    bytes,
                    busy_ns,
                } = *timed;
                take(Input::Timed {
                    rank,
                    group,
                    op,
                    number,
                    bytes,
                    busy_ns,
                });
            }
        }
    }
    let host_timed = logs
        .iter()
        .fold(0, |sum: u64, log| sum.saturating_add(log.host_timed));
    if host_timed > 0 {
        notes.push(InspectorNote::HostTimed(host_timed));
    }
    let cut = logs.iter().filter(|log| log.cut).count();
    if cut > 0 {
        notes.push(InspectorNote::CutOff(cut as u64));
    }
    for note in notes {
        take(Input::Note(SourceNote::Inspector(note)));
    }
}
