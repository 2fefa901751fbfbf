use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::{CollectiveIssue, Pass};

/// Collectives of one group that not all members have entered: more are not under way at once
/// inside a block.
const MAX_OPEN: usize = 16;
/// Part of a block's delay that a rank must have been waited for alone to have caused it. The same
/// as for call logs.
const MOSTLY: f64 = 0.5;

/// A block that a rank worked on: the rank's iteration, the stage of the model, the pass, the
/// microbatch and the rank.
pub(crate) type BlockKey = (u64, u32, Pass, u32, u32);

/// Who of the ranks that share a stage is waited for where they meet inside blocks.
///
/// All of them are held up by the one that comes last; their blocks take equally long.
#[derive(Debug, Default)]
pub(crate) struct Meetings {
    /// Number of members, by group.
    sizes: BTreeMap<u32, usize>,
    /// By group and number.
    open: BTreeMap<u32, VecDeque<(u64, Vec<BlockArrival>)>>,
    late: BTreeMap<BlockKey, LateArrival>,
}

#[derive(Clone, Copy, Debug)]
struct BlockArrival {
    at_ns: u64,
    block: BlockKey,
}

/// What a rank was waited for alone in a block.
#[derive(Debug, Default)]
struct LateArrival {
    alone_s: f64,
    others: BTreeSet<u32>,
}

impl Meetings {
    pub(crate) fn join(&mut self, group: u32, members: usize) {
        self.sizes.insert(group, members);
    }

    /// A rank enters a collective of a group inside a block.
    pub(crate) fn enter(&mut self, issue: &CollectiveIssue, at_ns: u64, block: BlockKey) {
        let CollectiveIssue { group, number, .. } = *issue;
        let Some(size) = self.sizes.get(&group).copied().filter(|size| *size > 1) else {
            return;
        };
        let open = self.open.entry(group).or_default();
        let at = open
            .iter()
            .position(|(other, _)| *other == number)
            .unwrap_or_else(|| {
                if open.len() == MAX_OPEN {
                    // A member whose mark was lost never comes to the oldest.
                    open.pop_front();
                }
                open.push_back((number, Vec::new()));
                open.len() - 1
            });
        let Some((_, came)) = open.get_mut(at) else {
            return;
        };
        came.push(BlockArrival { at_ns, block });
        if came.len() < size {
            return;
        }
        let Some((_, mut came)) = open.remove(at) else {
            return;
        };
        came.sort_by_key(|arrival| arrival.at_ns);
        if let [others @ .., second, last] = &came[..] {
            let late = self.late.entry(last.block).or_default();
            // Until the second last came, others were missing too.
            late.alone_s += last.at_ns.saturating_sub(second.at_ns) as f64 * 1e-9;
            // The last part of a key is the rank.
            late.others
                .extend(others.iter().chain([second]).map(|other| other.block.4));
        }
    }

    /// The rank that came so late to a block that another in it took too long for this reason, by
    /// so many seconds. `None` for who was late to it itself.
    pub(crate) fn waited_for(&self, block: &BlockKey, excess_s: f64) -> Option<u32> {
        let least_s = excess_s * MOSTLY;
        if self
            .late
            .get(block)
            .is_some_and(|late| late.alone_s > least_s)
        {
            return None;
        }
        let (iteration, stage, pass, microbatch, rank) = *block;
        // The rank stands last in a key: those of all ranks at one block are neighbours.
        let first = (iteration, stage, pass, microbatch, 0);
        let last = (iteration, stage, pass, microbatch, u32::MAX);
        self.late
            .range(first..=last)
            .filter(|(_, late)| late.others.contains(&rank) && late.alone_s > least_s)
            .max_by(|(_, a), (_, b)| a.alone_s.total_cmp(&b.alone_s))
            .map(|((.., rank), _)| *rank)
    }

    /// Forgets iterations before this one.
    pub(crate) fn pass(&mut self, next: u64) {
        // The least key of that iteration: keys begin with its number.
        self.late = self.late.split_off(&(next, 0, Pass::Forward, 0, 0));
    }
}

#[cfg(test)]
mod tests {
    use model::CollectiveOp;

    use super::*;

    fn issue(number: u64) -> CollectiveIssue {
        CollectiveIssue::new(CollectiveOp::ALLREDUCE, 5, number)
    }

    const fn block(rank: u32, microbatch: u32) -> BlockKey {
        (7, 1, Pass::Backward, microbatch, rank)
    }

    #[test]
    fn who_waits_inside_a_block_is_not_slow() {
        let mut meetings = Meetings::default();
        meetings.join(5, 3);
        // Rank 2 comes 0.4 s later than the others to the second of two collectives.
        for (number, late_ns) in [(1, 1_000), (2, 400_000_000)] {
            for rank in [0, 1, 2] {
                let at_ns = number * 1_000_000_000 + if rank == 2 { late_ns } else { 0 };
                meetings.enter(&issue(number), at_ns, block(rank, 3));
            }
        }
        let waited_for = |meetings: &Meetings, microbatch, excess_s| {
            [0, 1, 2].map(|rank| meetings.waited_for(&block(rank, microbatch), excess_s))
        };
        assert_eq!(waited_for(&meetings, 3, 0.41), [Some(2), Some(2), None]);
        // Nobody came late enough to blocks that are slower, or that nobody met in.
        assert_eq!(waited_for(&meetings, 3, 1.0), [None; 3]);
        assert_eq!(waited_for(&meetings, 4, 0.41), [None; 3]);
        meetings.pass(8);
        assert_eq!(waited_for(&meetings, 3, 0.41), [None; 3]);
    }

    #[test]
    fn a_meeting_that_is_never_complete_says_nothing() {
        let mut meetings = Meetings::default();
        meetings.enter(&issue(1), 0, block(0, 0));
        meetings.join(5, 2);
        for number in 0..100 {
            meetings.enter(&issue(number), 0, block(0, 0));
        }
        assert!(meetings.late.is_empty() && meetings.open[&5].len() == MAX_OPEN);
    }
}
