//! Jobs whose ranks did not all come to begin.

use std::collections::BTreeSet;

use model::{CollectiveOp, Input};

use super::said::Work;
use super::{WatchdogLog, entered};

/// Times that ranks print how many have come before others that have not are late. Ours: a minute.
const MANY_TIMES: u32 = 6;

/// Ranks that wait for others to begin.
pub(super) struct Start {
    /// What they wait in, if that is known.
    op: &'static str,
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
        let work = Work {
            number: 1,
            op: self.op.to_owned(),
            detail: String::new(),
        };
        for rank in &self.waiting {
            take(entered(*rank, group, 1, Some(&work), false));
        }
        for rank in &self.missing {
            take(entered(*rank, group, 0, None, true));
        }
    }
}

impl WatchdogLog {
    /// What ranks wait in before there is a group of all, or a communicator of it.
    pub(super) fn starts(&self) -> Vec<Start> {
        let mut starts = Vec::new();
        let counted = self.counted();
        let roots: BTreeSet<u32> = self.awaited_ids.values().copied().collect();
        // One that came further in any group, or raised anything, may have a reason of its own.
        let is_silent = |rank: &u32| {
            !counted.contains(rank)
                && !self.following.contains(rank)
                && !self.errors.contains_key(rank)
        };
        for root in roots.into_iter().filter(is_silent) {
            let waiting = self.awaited_ids.iter().filter(|(_, of)| **of == root);
            let waiting: BTreeSet<u32> = waiting.map(|(rank, _)| *rank).collect();
            starts.push(Start {
                op: "",
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
                starts.push(Start {
                    op: CollectiveOp::INIT.name(),
                    missing: all.clone().filter(|rank| !waiting.contains(rank)).collect(),
                    members: all.collect(),
                    waiting,
                });
            }
        }
        starts
    }
}
