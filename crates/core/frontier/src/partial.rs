//! Collectives for which some ranks wait and others do not.

use model::{Block, Growth, StageId};

use crate::positions::wait_segment;
use crate::replay::{OVERTAKEN_SHARE, START_SKEW_S, group_of, is_overtaken, last_arrivals};

/// Steps in which a rank must be early, by more than steps of ranks begin apart. Ours: fewer agree by
/// chance.
const MIN_STEPS: usize = 3;
/// By how much a rank that waits takes longer than those that do not, relative to how early it is.
/// Ours: it loses all of that, and no more; on a card 0.92 to 1.09.
const LOSES: std::ops::RangeInclusive<f64> = 0.85..=1.15;
/// Share of what it takes longer from which its own host is what it waits for.
const HELD_SHARE: f64 = 0.5;

/// Who is joined right behind a boundary, if some ranks wait there for the last one of their group to
/// get there and others do not: of a broadcast along a ring, those behind the late rank wait. Each takes
/// as much longer there than the quickest as it is early, is never past the next boundary before the
/// last one is at this, and is not held up by its own host meanwhile. `None` if no rank does so. In a backward
/// pass it is only asked behind an issue: its collectives are recorded.
///
/// `rows` are the [`positions`](crate::positions::positions) of the block, and `held_s` is in place of
/// each of its durations the part for which a host held its device up.
/// # Shape
/// `[rank]`, as in [`Block::groups`]: who is early and does not wait is in a group of its own.
/// # Source
/// Ours: docs/math/meetings.md.
pub(crate) fn waiting_groups(
    block: &Block,
    rows: &[Vec<f64>],
    held_s: &[f64],
    at: usize,
) -> Option<Vec<u32>> {
    let ranks = block.ranks;
    let groups = block.groups.as_deref();
    let mut seen = vec![Seen::default(); ranks];
    let to = wait_segment(block, at)?;
    let is_recorded = block.boundaries[at].ending.joins();
    if !is_recorded && block.boundaries[to].stage == StageId::BACKWARD {
        return None;
    }
    for (prefixes, held_s) in rows
        .iter()
        .zip(held_s.chunks_exact((block.boundaries.len() * ranks).max(1)))
    {
        let here = &prefixes[at * ranks..(at + 1) * ranks];
        let there = prefixes[to * ranks..].iter().take(ranks);
        let next = there.zip(here).map(|(there, here)| there - here);
        let held = |rank| (at + 1..=to).map(|it| held_s[it * ranks + rank]).sum();
        let next: Vec<Segment> = next
            .enumerate()
            .map(|(rank, took_s)| Segment {
                took_s,
                held_s: held(rank),
            })
            .collect();
        let quickest = next.iter().min_by(|a, b| a.took_s.total_cmp(&b.took_s))?;
        let last_s = last_arrivals(groups, at, here);
        for (rank, seen) in seen.iter_mut().enumerate() {
            let early_s = last_s[rank] - here[rank];
            if early_s >= START_SKEW_S {
                seen.add(early_s, next[rank], *quickest);
            }
        }
    }
    let is_early: Vec<bool> = seen
        .iter()
        .map(|it| it.early_s.len() >= MIN_STEPS)
        .collect();
    let waits: Vec<bool> = seen.into_iter().map(Seen::waits).collect();
    let alone = |rank: usize| is_early[rank] && !waits[rank];
    let joined = (0..ranks).map(|rank| {
        if alone(rank) {
            Block::alone(rank)
        } else {
            group_of(groups, at * ranks + rank)
        }
    });
    waits.contains(&true).then(|| joined.collect())
}

/// What a rank takes next, and for how much of that its host holds its device up.
#[derive(Clone, Copy, Debug)]
struct Segment {
    took_s: f64,
    held_s: f64,
}

/// The steps in which a rank is early.
#[derive(Clone, Debug, Default)]
struct Seen {
    early_s: Vec<f64>,
    /// What it takes next.
    takes_s: Vec<f64>,
    /// By how much that is more than the quickest takes, and is held up.
    longer_s: f64,
    held_longer_s: f64,
    overtaken: usize,
}

impl Seen {
    fn add(&mut self, early_s: f64, next: Segment, quickest: Segment) {
        self.overtaken += usize::from(is_overtaken(early_s, next.took_s));
        self.longer_s += next.took_s - quickest.took_s;
        self.held_longer_s += next.held_s - quickest.held_s;
        self.early_s.push(early_s);
        self.takes_s.push(next.took_s);
    }

    fn waits(self) -> bool {
        let steps = self.early_s.len();
        let early_s: f64 = self.early_s.iter().sum();
        steps >= MIN_STEPS
            && self.overtaken as f64 <= OVERTAKEN_SHARE * steps as f64
            && LOSES.contains(&(self.longer_s / early_s))
            && self.held_longer_s <= HELD_SHARE * self.longer_s
            && Growth::of(vec![self.early_s], vec![self.takes_s]).is_possible()
    }
}

#[cfg(test)]
mod tests {
    use model::{Boundary, Ending, MarkKind, Sync};

    use super::*;
    use crate::replay::prefixes;

    /// Milliseconds of three ranks in a data wait and a forward pass, forty steps.
    fn block(row_ms: impl Fn(usize) -> [f64; 6]) -> Block {
        let boundary = |stage| Boundary {
            stage,
            after: MarkKind::DataEnd,
            ending: Ending::Mark(MarkKind::BackwardBegin),
            sync: Sync::None,
        };
        Block {
            boundaries: [StageId::DATA, StageId::FORWARD].map(boundary).into(),
            groups: None,
            steps: (0..40).collect(),
            durations_s: (0..40).flat_map(row_ms).map(|ms| ms * 1e-3).collect(),
            ranks: 3,
            carried: 0,
        }
    }

    /// Who is joined behind the data wait, where hosts hold their devices up for so much of each time.
    fn joined_of(block: &Block, bound_ms: impl Fn(usize) -> [f64; 6]) -> Option<Vec<u32>> {
        let rows: Vec<Vec<f64>> = block.rows().map(|(_, row)| prefixes(row, 3)).collect();
        let held_s: Vec<f64> = (0..40).flat_map(bound_ms).map(|ms| ms * 1e-3).collect();
        waiting_groups(block, &rows, &held_s, 0)
    }

    fn joined(row_ms: impl Fn(usize) -> [f64; 6]) -> Option<Vec<u32>> {
        joined_of(&block(row_ms), |_| [0.0; 6])
    }

    /// What varies from step to step, in milliseconds.
    fn varies(step: usize, by: usize) -> f64 {
        (step * 5 % by) as f64 * 0.3
    }

    #[test]
    fn behind_a_late_rank_of_a_ring_ranks_wait_and_the_first_does_not() {
        let late = |step| 30.0 + varies(step, 7);
        let joined = joined(|step| [0.0, late(step), 0.0, 2.0, 2.0, late(step) + 1.0]);
        assert_eq!(joined, Some(vec![Block::alone(0), 0, 0]));
    }

    /// Ranks 0 and 1 gather with each other; rank 2 is later than both, and they do not wait for it.
    #[test]
    fn a_rank_waits_for_the_last_one_of_its_communicator() {
        let late = |step| 30.0 + varies(step, 7);
        let mut block = block(|step| [0.0, late(step), 50.0, late(step) + 1.0, 2.0, 2.0]);
        block.groups = Some([7, 7, 8, 0, 0, 0].into());
        assert_eq!(joined_of(&block, |_| [0.0; 6]), Some(vec![7, 7, 8]));
    }

    #[test]
    fn who_takes_longer_by_more_than_it_is_early_does_not_wait() {
        let late = |step| 30.0 + varies(step, 7);
        let joined = joined(|step| [0.0, late(step), 0.0, 2.0, 2.0, 1.2 * late(step) + 2.0]);
        assert_eq!(joined, None);
    }

    /// What a rank takes there longer is as much as another one was late by before.
    #[test]
    fn nobody_waits_in_a_backward_pass_for_what_is_not_recorded() {
        let late = |step| 30.0 + varies(step, 7);
        let mut block = block(|step| [0.0, late(step), 0.0, 2.0, 2.0, late(step) + 1.0]);
        let mut boundaries = block.boundaries.to_vec();
        boundaries[1].stage = StageId::BACKWARD;
        block.boundaries = boundaries.into();
        assert_eq!(joined_of(&block, |_| [0.0; 6]), None);
    }

    /// By chance a host is late by as much as another rank was before.
    #[test]
    fn who_is_held_up_by_its_own_host_does_not_wait_for_others() {
        let late = |step| 30.0 + varies(step, 7);
        let block = block(|step| [0.0, late(step), 0.0, 2.0, 2.0, late(step) + 1.0]);
        let held = |step| [0.0, late(step), 0.0, 1.0, 1.0, late(step)];
        assert_eq!(joined_of(&block, held), None);
    }

    #[test]
    fn who_works_as_long_as_another_is_late_does_not_wait() {
        let works = |step| 31.0 + varies(step, 11);
        let joined = joined(|step| {
            [
                0.0,
                30.0 + 3.0 * varies(step, 7),
                0.0,
                2.0,
                2.0,
                works(step),
            ]
        });
        assert_eq!(joined, None);
    }

    #[test]
    fn what_all_take_is_no_wait() {
        let joined = joined(|step| [0.0, 30.0 + varies(step, 7), 0.0, 40.0, 40.0, 40.0]);
        assert_eq!(joined, None);
    }
}
