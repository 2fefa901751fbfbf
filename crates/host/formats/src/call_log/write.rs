//! Our own recordings as MegaTrace's logs of calls, so that others can check what is said.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

use model::{CollectiveIssue, CollectiveOp, Event, Input, RankNs};
use schedule::Unit;

use super::op_of;
use crate::Journal;

/// What a recording gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenCalls {
    /// Ranks, a file each.
    pub ranks: usize,
    /// Calls.
    pub calls: u64,
    /// Collectives left out: NCCL has no call for them.
    pub left_out: u64,
}

/// One rank's log.
#[derive(Default)]
struct RankCallLog {
    text: String,
    /// Operations so far, by communicator.
    counts: BTreeMap<u64, u64>,
}

/// Writes the collectives a recording tells as MegaTrace's patch would, with hashes (V2): files
/// `rank_<r>.log` in a folder that is made if need be.
///
/// Times are those of the marks; `Data` is in bytes also of calls that count elements, where it is
/// not known how long these are. Sends and receives of a group are a communicator
/// of their own. Of a job that was restarted the last start is written.
/// # Errors
/// What the operating system says.
pub fn write_call_logs(journal: &Journal, folder: &Path) -> io::Result<WrittenCalls> {
    let (mut logs, mut written) = (BTreeMap::new(), WrittenCalls::default());
    for input in journal.inputs() {
        match input {
            Input::Mark { rank, mark } => {
                let Event::CollectiveIssue(issue) = &mark.event else {
                    continue;
                };
                let log: &mut RankCallLog = logs.entry(*rank).or_default();
                let is_written = log.add(*rank, mark.at, issue);
                written.calls += u64::from(is_written);
                written.left_out += u64::from(!is_written);
            }
            // A jump in the counts tells readers that something is missing.
            Input::Lost { rank, records } => {
                let counts = logs.entry(*rank).or_default().counts.values_mut();
                counts.for_each(|count| *count = count.saturating_add(*records));
            }
            Input::Restart { .. } => {
                logs.clear();
                written = WrittenCalls::default();
            }
            _ => {}
        }
    }
    written.ranks = logs.len();
    fs::create_dir_all(folder)?;
    for (rank, log) in logs {
        fs::write(folder.join(format!("rank_{rank}.log")), log.text)?;
    }
    Ok(written)
}

impl RankCallLog {
    /// Adds a collective, if NCCL has a call for it.
    fn add(&mut self, rank: u32, at: RankNs, issue: &CollectiveIssue) -> bool {
        let CollectiveIssue {
            op,
            group,
            number,
            bytes,
            element_bytes,
            ..
        } = *issue;
        // Zero would be no communicator. Who sends does not count with the group.
        let hash = u64::from(group) + 1 + (u64::from(op.is_point_to_point()) << 32);
        let next = self.counts.entry(hash).or_default();
        let count = number.checked_sub(1).unwrap_or(*next);
        *next = count.saturating_add(1);
        let Some(name) = nccl_name(op) else {
            return false;
        };
        let (seconds, ns) = (at.0 / 1_000_000_000, at.0 % 1_000_000_000);
        let bytes = bytes.unwrap_or(0);
        let data = match op_of(name).map(Unit::of) {
            Some(Unit::Elements) => bytes / element_bytes.max(1),
            _ => bytes,
        };
        // One `save_count` for all: MegaTrace's hang check reads only the last flush of each rank.
        // A stream for each communicator: in logs without hashes the stream stands for the group.
        let line = writeln!(
            self.text,
            "[save_count 1] [{seconds}.{ns:09}] [Rank {rank}] Fun {name} Data {data} stream \
             {hash:#x} opCount {count} groupHash {hash}"
        );
        line.is_ok()
    }
}

/// What PyTorch's backend calls of NCCL for an operation.
fn nccl_name(op: CollectiveOp) -> Option<&'static str> {
    Some(match op.name() {
        // A barrier sums one element.
        "ALLREDUCE" | "ALLREDUCE_COALESCED" | "BARRIER" => "AllReduce",
        "ALLGATHER"
        | "ALLGATHER_BASE"
        | "ALLGATHER_COALESCED"
        | "ALLGATHER_INTO_TENSOR_COALESCED" => "AllGather",
        "REDUCE_SCATTER" | "REDUCE_SCATTER_BASE" | "REDUCE_SCATTER_TENSOR_COALESCED" => {
            "ReduceScatter"
        }
        "BROADCAST" => "Broadcast",
        "REDUCE" => "Reduce",
        "SEND" => "Send",
        "RECV" => "Recv",
        _ => return None,
    })
}
