//! Jobs whose ranks did not all come to begin.

use std::collections::{BTreeMap, BTreeSet};

use model::{CollectiveOp, Input};

use super::record::has_any;
use super::said::{MAX_RANKS, Said, Work, number};
use super::{WatchdogLog, entered};

/// Times that ranks print how many have come before others that have not are late. Ours: a minute.
const MANY_TIMES: u32 = 6;

/// A rank that waited in vain for what another one must give to make a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AwaitedId {
    /// Itself and the other, as their group counts them.
    pub(super) rank: u32,
    pub(super) of: u32,
    /// Whether that is the group of all ranks.
    pub(super) is_of_all: bool,
}

/// `rank: 3, key: store_based_barrier_key:1 (world_size=8, worker_count=7, …`, printed while a rank waits
/// for the others, before there is a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CameToStart {
    pub(super) rank: u32,
    /// The number of the barrier: one for each group that is made.
    pub(super) barrier: u32,
    pub(super) ranks: u32,
    pub(super) have_come: u32,
    /// Whether the rank gave up by now.
    pub(super) gave_up: bool,
}

/// `[7] is setting up NCCL communicator and retrieving ncclUniqueId from [0] … got error: wait timeout after
/// 600000ms, keys: /default_pg/0//cuda//0`.
///
/// Keys of other groups have the name of the group behind `default_pg/0//`, and those of a send and its
/// receive end in both ranks. The text names rank 0 even where the rank waits for another.
pub(super) fn awaited_id(record: &str, printed_by: Option<u32>) -> Option<Said> {
    let rank: u32 = number(record.split("] is setting up").next()?.rsplit_once('[')?.1)?;
    let of: Option<u32> = record
        .split_once("ncclUniqueId from [")
        .and_then(|(_, of)| number(of));
    let by_key = record
        .split_once("by key '")
        .and_then(|(_, key)| key.split('\'').next());
    // Other errors are those of the store.
    let is_awaited = has_any(record, &["imeout", "imed out"]);
    let is_of_two = by_key.is_none_or(|key| key.contains(':'));
    let Some(of) = of.filter(|of| is_awaited && !is_of_two && rank.max(*of) < MAX_RANKS) else {
        return Some(Said::Follows(printed_by?));
    };
    let path = record.split_once("default_pg/0//");
    let path = path.map(|(_, path)| {
        path.split([' ', ',', ')', '"', '\''])
            .next()
            .unwrap_or(path)
    });
    // The kind of the device, and the number of the communicator.
    let is_of_all = path.is_some_and(|path| {
        path.split_once("//").is_some_and(|(device, number)| {
            number == "0" && device.chars().all(|c| c.is_ascii_lowercase())
        })
    });
    let is_of_all = is_of_all && printed_by.is_none_or(|it| it == rank);
    Some(Said::AwaitedId {
        rank: printed_by.or(is_of_all.then_some(rank)),
        awaited: AwaitedId {
            rank,
            of,
            is_of_all,
        },
    })
}

pub(super) fn came_to_start(record: &str) -> Option<CameToStart> {
    let after = |word| number(record.split_once(word)?.1);
    // As the error has it that ends the wait.
    let rank = after("rank: ").or_else(|| after("barrier on rank "))?;
    let barrier = after("barrier_key:")?;
    let ranks = after("world_size=")?;
    // Since PyTorch 2.1 it counts the ranks of the group that is made, which later may be some of all.
    let joined = after("num_workers_joined=").filter(|_| barrier == 0);
    let have_come = joined.or_else(|| after("worker_count="))?;
    (rank < ranks && ranks <= MAX_RANKS).then_some(CameToStart {
        rank,
        barrier,
        ranks,
        have_come,
        gave_up: record.contains("Timed out"),
    })
}

/// Ranks that wait for others to begin.
pub(super) struct Start {
    /// What they wait in, if that is known, and its number.
    op: &'static str,
    number: u64,
    members: BTreeSet<u32>,
    waiting: BTreeSet<u32>,
    /// Those of the others that are known not to have come.
    missing: BTreeSet<u32>,
}

impl Start {
    pub(super) fn take(&self, group: u32, take: &mut dyn FnMut(Input)) {
        take(Input::Group {
            group,
            name: "default".to_owned(),
            members: self.members.iter().copied().collect(),
        });
        let number = self.number;
        let work = Work {
            number,
            op: self.op.to_owned(),
            detail: String::new(),
            ranks: 0,
        };
        for rank in &self.waiting {
            take(entered(*rank, group, number, Some(&work), false));
        }
        for rank in &self.missing {
            take(entered(*rank, group, number.saturating_sub(1), None, true));
        }
    }
}

impl WatchdogLog {
    /// Who waited in vain for whom to make a communicator, of all ranks or of some group.
    pub(super) fn awaited(&self, of_all: bool) -> BTreeMap<u32, BTreeSet<u32>> {
        let mut awaited: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for it in self.awaited_ids.iter().filter(|it| it.is_of_all == of_all) {
            awaited.entry(it.of).or_default().insert(it.rank);
        }
        awaited
    }

    /// What ranks wait in before there is a group of all, or a communicator of it.
    pub(super) fn starts(&self) -> Vec<Start> {
        let mut starts = Vec::new();
        let counted = self.counted();
        // One that came further in any group, or raised anything, may have a reason of its own.
        let is_silent = |rank: &u32| {
            !counted.contains(rank)
                && !self.following.contains(rank)
                && !self.errors.contains_key(rank)
        };
        let awaited = self.awaited(true).into_iter();
        for (root, waiting) in awaited.filter(|(root, _)| is_silent(root)) {
            starts.push(Start {
                op: "",
                number: 1,
                members: waiting.iter().copied().chain([root]).collect(),
                waiting,
                missing: [root].into(),
            });
        }
        let came = self.came_to_start.values();
        let last = came.clone().map(|(it, _)| it).max_by_key(|it| it.have_come);
        // Each prints it every ten seconds, and a slow start is none that has stalled.
        let wait_long = came
            .clone()
            .all(|(it, times)| it.gave_up || *times >= MANY_TIMES);
        if let Some(last) = last.filter(|_| wait_long && counted.is_empty()) {
            let waiting: BTreeSet<u32> = self.came_to_start.keys().copied().collect();
            let all = 0..last.ranks;
            // Of others that came no line is in the log.
            let are_all_seen = waiting.len() as u32 == last.have_come;
            if are_all_seen && last.have_come < last.ranks {
                // A later one is that of another group, which all ranks make.
                let (op, number) = match last.barrier {
                    0 | 1 => (CollectiveOp::INIT.name(), 1),
                    later => (CollectiveOp::BARRIER.name(), u64::from(later)),
                };
                starts.push(Start {
                    op,
                    number,
                    missing: all.clone().filter(|rank| !waiting.contains(rank)).collect(),
                    members: all.collect(),
                    waiting,
                });
            }
        }
        starts
    }
}
