use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Block, Boundary, Growth, Meeting, StageId, Sync, Window};

use crate::partial::waiting_groups;
use crate::positions::{positions, wait_segment};

/// Time, in seconds, by which a rank may seem to leave a synchronisation before its last
/// rank arrived: the steps of different ranks do not start at exactly the same instant.
pub(crate) const START_SKEW_S: f64 = 2e-3;
/// The same as a share of the wait: the longer the wait, the surer it is one.
pub(crate) const START_SKEW_SHARE: f64 = 0.1;
/// How far apart ranks may leave a segment, relative to how far apart they entered it, to come
/// together in it. Ours: own work would have to make up for half of it by chance.
const TOGETHER_SHARE: f64 = 0.5;

/// How far from usual ranks must typically be at a collective to tell whether they are waited for, in
/// seconds. Ours: below, marks scatter by as much.
const VARIES_S: f64 = 1e-5;
/// Share of cases in which a rank may go on before the last one is there although all wait for it.
/// Ours: starts of steps scatter.
pub(crate) const OVERTAKEN_SHARE: f64 = 0.1;
/// Share of the steps in which a rank must be the last one at a boundary to be always last. Ours.
const ALWAYS_LAST_SHARE: f64 = 0.9;

/// One step taken apart into own work and waits, so that it can be run again with some of
/// the work changed.
///
/// A rank that issued a collective waits, in the first later segment that outlasts the last
/// arrival, until its whole group has arrived; the rest of every segment is its own work.
/// Running the parts unchanged gives the step back exactly.
/// # Units
/// Seconds since the rank's own start of the step; clocks are never compared.
/// # Source
/// Ours: docs/math/replay.md. StageFrontier leaves the split latent; knowing when each rank
/// issues each collective is what allows it.
#[derive(Clone, Debug)]
pub struct Replay<'block> {
    boundaries: &'block [Boundary],
    groups: Option<&'block [u32]>,
    ranks: usize,
    /// `[boundary][rank]`.
    row: &'block [f64],
    /// `[boundary]`. Ranks wait in few segments: the others are in the row as they are.
    waits: Vec<Option<SegmentWaits>>,
    makespan_s: f64,
}

/// Ranks that wait in a segment.
#[derive(Clone, Debug)]
struct SegmentWaits {
    /// `[rank]`: own work.
    own_s: Vec<f64>,
    /// By rank.
    waits: Vec<SegmentWait>,
}

/// A rank waits in a segment until the last rank of its group is where it was itself before.
#[derive(Clone, Copy, Debug)]
struct SegmentWait {
    rank: usize,
    /// The boundary at which the last one arrives.
    met: usize,
    /// How long before that arrival the rank seemed to go on, in seconds.
    early_s: f64,
}

impl<'block> Replay<'block> {
    /// Takes apart one row of a block.
    ///
    /// # Properties
    /// `makespan_with(&[])` is the makespan of the row, to rounding.
    pub fn of_row(block: &'block Block, row: &'block [f64]) -> Self {
        let ranks = block.ranks;
        let mut replay = Self {
            boundaries: &block.boundaries,
            groups: block.groups.as_deref(),
            ranks,
            row,
            waits: Vec::with_capacity(block.boundaries.len()),
            makespan_s: 0.0,
        };
        let mut ends = vec![0.0; ranks];
        let mut arrivals = Vec::with_capacity(block.boundaries.len());
        // The boundary before at which each rank issued what it has not waited for yet.
        let mut pending = vec![None; ranks];
        for (boundary, row) in row.chunks_exact(ranks.max(1)).enumerate() {
            let mut waits: Option<SegmentWaits> = None;
            for (rank, end) in ends.iter_mut().enumerate() {
                let start = *end;
                *end += row[rank];
                let Some(met) = pending[rank] else {
                    continue;
                };
                let last: &LastArrivals = &arrivals[met];
                let arrival = last.of(group_of(replay.groups, met * ranks + rank));
                let skew_s = start_skew_s(arrival - start);
                // A segment that ends well before the last arrival is work that overlaps the collective: the rank
                // waits in a later one.
                if *end >= arrival - skew_s {
                    let early_s = (arrival - *end).max(0.0);
                    let wait = (arrival - early_s - start).max(0.0);
                    let waits = waits.get_or_insert_with(|| SegmentWaits {
                        own_s: row.to_vec(),
                        waits: Vec::new(),
                    });
                    waits.own_s[rank] = (row[rank] - wait).max(0.0);
                    waits.waits.push(SegmentWait { rank, met, early_s });
                    pending[rank] = None;
                }
            }
            replay.waits.push(waits);
            if joins(&block.boundaries[boundary]) {
                // Not before: the segment that ends with an issue is no wait for it. A wait
                // still pending is dropped: a rank that issues again was not held by it.
                pending.fill(Some(boundary));
            }
            // Only when all ranks are there is it known when the last one was.
            arrivals.push(LastArrivals::at(
                &block.boundaries[boundary],
                replay.groups,
                boundary,
                &ends,
            ));
        }
        replay.makespan_s = ends.into_iter().fold(f64::NEG_INFINITY, f64::max);
        replay
    }

    /// The row's own makespan, in seconds.
    pub fn makespan_s(&self) -> f64 {
        self.makespan_s
    }

    /// Own work of each rank in a segment, in seconds.
    pub fn own_s(&self, boundary: usize) -> &[f64] {
        match &self.waits[boundary] {
            Some(waits) => &waits.own_s,
            None => &self.row[boundary * self.ranks..(boundary + 1) * self.ranks],
        }
    }

    /// Runs the step with other own times and returns the new makespan in seconds.
    ///
    /// # Shape
    /// `changed_s` is `[boundary][rank]`; where a boundary has nothing, or is missing, all ranks work
    /// as they did.
    ///
    /// # Properties
    /// Not larger than before if no own time grows.
    pub fn makespan_with(&self, changed_s: &[Option<Vec<f64>>]) -> f64 {
        self.ends_with(changed_s)
            .into_iter()
            .fold(f64::NEG_INFINITY, f64::max)
    }

    /// The same, and when each rank ends the step, in seconds since its own start of it.
    pub fn ends_with(&self, changed_s: &[Option<Vec<f64>>]) -> Vec<f64> {
        let mut now = vec![0.0f64; self.ranks];
        let mut arrivals: Vec<LastArrivals> = Vec::with_capacity(self.boundaries.len());
        for (boundary, waits) in self.waits.iter().enumerate() {
            for SegmentWait { rank, met, early_s } in waits.iter().flat_map(|it| &it.waits) {
                let group = group_of(self.groups, met * self.ranks + rank);
                // As early as it was measured: unchanged work must give the measured step back.
                now[*rank] = now[*rank].max(arrivals[*met].of(group) - early_s);
            }
            let changed_s = changed_s.get(boundary).and_then(Option::as_deref);
            let own_s = changed_s.unwrap_or_else(|| self.own_s(boundary));
            for (now, own_s) in now.iter_mut().zip(own_s) {
                *now += own_s;
            }
            let of_boundary = &self.boundaries[boundary];
            arrivals.push(LastArrivals::at(of_boundary, self.groups, boundary, &now));
        }
        now
    }
}

/// Whether ranks meet at a boundary.
fn joins(boundary: &Boundary) -> bool {
    match boundary.sync {
        Sync::None => false,
        Sync::Assumed => true,
        // Point-to-point operations join two ranks of the group, and nobody says which.
        Sync::Issue(op) => !op.is_point_to_point(),
    }
}

/// The group of a cell, `[boundary][rank]`; 0 where all ranks are in one.
pub(crate) fn group_of(groups: Option<&[u32]>, cell: usize) -> u32 {
    groups.map_or(0, |groups| groups[cell])
}

/// When the last rank of each group gets to a boundary.
enum LastArrivals {
    /// All are in one group, as they mostly are.
    OfAll(f64),
    ByGroup(BTreeMap<u32, f64>),
}

impl LastArrivals {
    /// By when each rank gets to the boundary of this number.
    fn new(groups: Option<&[u32]>, boundary: usize, at: &[f64]) -> Self {
        let Some(groups) = groups else {
            return Self::OfAll(at.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        };
        let mut last = BTreeMap::new();
        for (group, at_s) in groups[boundary * at.len()..].iter().zip(at) {
            let latest = last.entry(*group).or_insert(f64::NEG_INFINITY);
            *latest = latest.max(*at_s);
        }
        Self::ByGroup(last)
    }

    /// The same, of nobody if ranks do not meet there.
    fn at(of: &Boundary, groups: Option<&[u32]>, boundary: usize, at: &[f64]) -> Self {
        if joins(of) {
            Self::new(groups, boundary, at)
        } else {
            Self::OfAll(f64::NEG_INFINITY)
        }
    }

    /// Of a group that has a rank there.
    fn of(&self, group: u32) -> f64 {
        match self {
            Self::OfAll(last) => *last,
            Self::ByGroup(last) => last[&group],
        }
    }
}

/// For each rank, when the last one of its group gets to a boundary.
pub(crate) fn last_arrivals(groups: Option<&[u32]>, boundary: usize, at: &[f64]) -> Vec<f64> {
    let last = LastArrivals::new(groups, boundary, at);
    let cells = boundary * at.len()..(boundary + 1) * at.len();
    cells.map(|cell| last.of(group_of(groups, cell))).collect()
}

/// Running sums over the boundaries, `[boundary][rank]`.
pub(crate) fn prefixes(row: &[f64], ranks: usize) -> Vec<f64> {
    let mut sums = row.to_vec();
    for cell in ranks..sums.len() {
        sums[cell] += sums[cell - ranks];
    }
    sums
}

/// Stages that seem to hold a synchronisation, judged from durations alone.
///
/// Ranks that enter such a stage apart leave it together: its spread shrinks to less than
/// half. Where ranks never get apart the answer is empty.
/// # Source
/// Ours: docs/math/replay.md.
pub fn synchronising_stages(window: &Window) -> Vec<StageId> {
    let mut before: BTreeMap<StageId, f64> = BTreeMap::new();
    let mut after: BTreeMap<StageId, f64> = BTreeMap::new();
    for block in &window.blocks {
        for (_, row) in block.rows() {
            let prefixes = prefixes(row, block.ranks);
            let mut entered = 0.0;
            for (at, boundary) in prefixes.chunks_exact(block.ranks).zip(&*block.boundaries) {
                let left = spread(at);
                *before.entry(boundary.stage).or_default() += entered;
                *after.entry(boundary.stage).or_default() += left;
                entered = left;
            }
        }
    }
    let rows = window.rows() as f64;
    before
        .into_iter()
        .filter(|(stage, before)| {
            *before > rows * START_SKEW_S && after[stage] < TOGETHER_SHARE * before
        })
        .map(|(stage, _)| stage)
        .collect()
}

/// Marks where ranks synchronise in the blocks of a window that have no recorded collective.
///
/// They do in the stages that hold collectives in other blocks; if there are none, in the
/// [`synchronising_stages`], or in the backward pass if ranks never get apart.
pub fn assume_synchronisation(window: &mut Window) {
    let mut stages: Vec<StageId> = window
        .blocks
        .iter()
        .flat_map(|block| block.boundaries.iter())
        .filter(|boundary| boundary.sync != Sync::None)
        .map(|boundary| boundary.stage)
        .collect();
    if stages.is_empty() {
        stages = synchronising_stages(window);
    }
    if stages.is_empty() {
        // Data parallelism reduces its gradients there.
        stages.push(StageId::BACKWARD);
    }
    for block in &mut window.blocks {
        if block
            .boundaries
            .iter()
            .any(|boundary| boundary.sync != Sync::None)
        {
            continue;
        }
        let mut boundaries = block.boundaries.to_vec();
        for at in 1..boundaries.len() {
            if stages.contains(&boundaries[at].stage) {
                boundaries[at - 1].sync = Sync::Assumed;
            }
        }
        block.boundaries = boundaries.into();
    }
}

/// Marks where ranks synchronise in a window whose ranks do not meet where they issue
/// collectives: before the segments in which they are seen to come together, and before the one
/// that ends where they meet.
///
/// Nobody waits for others in its data loader.
/// # Source
/// Ours: docs/math/meetings.md.
pub fn join_where_seen(window: &mut Window) {
    let seen = window.meeting == Meeting::Seen;
    for block in &mut window.blocks {
        join(block, seen, &[]);
    }
}

/// The same of devices, which also wait for each other where one needs at once what a collective
/// brings: behind the issues at which they are seen to wait for the last one. Of a collective that nobody
/// recorded, only some may wait.
///
/// `held_s` is, in place of each duration of the blocks, the part for which a host held its device up.
/// # Source
/// Ours: docs/math/meetings.md.
pub fn join_devices_where_seen(window: &mut Window, held_s: &[Vec<f64>]) {
    let seen = window.meeting == Meeting::Seen;
    for (block, held_s) in window.blocks.iter_mut().zip(held_s) {
        let rows = positions(block);
        let awaited = awaited(block, &rows);
        join(block, seen, &awaited);
        join_some(block, &rows, held_s);
    }
}

/// Joins ranks of a block where only some of them wait; `rows` are its [`positions`], and hosts hold
/// their devices up for `held_s` of its durations.
fn join_some(block: &mut Block, rows: &[Vec<f64>], held_s: &[f64]) {
    let ranks = block.ranks;
    let mut boundaries = block.boundaries.to_vec();
    let cells = boundaries.len() * ranks;
    let mut groups = block
        .groups
        .as_deref()
        .map_or_else(|| vec![0; cells], <[u32]>::to_vec);
    for at in 0..boundaries.len().saturating_sub(1) {
        let here = at * ranks..(at + 1) * ranks;
        // Where communicators divide the job it is not known which of them a wait elsewhere is for.
        let is_open = block.groups.is_some() && groups[here.clone()].contains(&0);
        let is_joined = boundaries[at].sync != Sync::None;
        if is_joined || is_open || boundaries[at + 1].stage == StageId::DATA {
            continue;
        }
        if let Some(joined) = waiting_groups(block, rows, held_s, at) {
            boundaries[at].sync = Sync::Assumed;
            groups[here].copy_from_slice(&joined);
        }
    }
    if groups.iter().any(|group| *group != 0) {
        block.groups = Some(groups.into());
    }
    block.boundaries = boundaries.into();
}

/// `seen` says whether ranks are seen to meet at the cut, `awaited` behind which boundaries they wait
/// although they do not come together.
fn join(block: &mut Block, seen: bool, awaited: &[bool]) {
    let together = comes_together(block);
    let mut boundaries = block.boundaries.to_vec();
    let mut groups = block.groups.as_deref().map(<[u32]>::to_vec);
    for at in 0..boundaries.len() {
        let is_next_data = |next: &Boundary| next.stage == StageId::DATA;
        boundaries[at].sync = Sync::None;
        if boundaries.get(at + 1).is_none_or(is_next_data) {
            continue;
        }
        // The last segment ends at the cut, which is where ranks are seen to meet.
        let meet = together[at + 1] || seen && at + 2 == together.len();
        if meet || awaited.get(at) == Some(&true) {
            boundaries[at].sync = Sync::Assumed;
        }
        // All of them: through ranks that are in several groups, if not by one collective.
        if let Some(groups) = groups.as_mut().filter(|_| meet) {
            groups[at * block.ranks..(at + 1) * block.ranks].fill(0);
        }
    }
    block.groups = groups.map(Arc::from);
    block.boundaries = boundaries.into();
}

/// Whether ranks leave each segment of a block less than half as far apart as they enter it.
fn comes_together(block: &Block) -> Vec<bool> {
    let mut sums = vec![(0.0, 0.0); block.boundaries.len()];
    for (_, row) in block.rows() {
        let prefixes = prefixes(row, block.ranks);
        let mut entered = 0.0;
        for (at, sum) in prefixes.chunks_exact(block.ranks).zip(&mut sums) {
            let left = spread(at);
            *sum = (sum.0 + entered, sum.1 + left);
            entered = left;
        }
    }
    let notable_s = block.steps.len() as f64 * START_SKEW_S;
    sums.into_iter()
        .map(|(entered, left)| entered > notable_s && left < TOGETHER_SHARE * entered)
        .collect()
}

/// Whether ranks wait, right behind each boundary at which they issue a collective, for the last of
/// them to get there: none goes past the next boundary before, and by how much a rank is earlier
/// than usual its next segment takes longer.
///
/// Where a rank is late by as much in one segment after the other, all take equally long. Only what
/// varies from step to step then tells those who wait from those who work. What gathers the
/// parameters of layers is needed at once in each of them or in none. So with what the last rank
/// takes, the gathers of a stage are judged together, unless one itself refutes it.
///
/// `rows` are its [`positions`].
fn awaited(block: &Block, rows: &[Vec<f64>]) -> Vec<bool> {
    let growths: Vec<Option<WaitGrowth>> = (0..block.boundaries.len())
        .map(|at| WaitGrowth::of(block, rows, at))
        .collect();
    let mut gathers: BTreeMap<StageId, Growth> = BTreeMap::new();
    for (boundary, growth) in block.boundaries.iter().zip(&growths) {
        if let Some(by_last) = growth.and_then(|growth| growth.by_last) {
            *gathers.entry(boundary.stage).or_default() += by_last;
        }
    }
    let is_certain = |growth: &Growth| growth.varies_by(VARIES_S) && growth.is_certain();
    let is_awaited = |(boundary, growth): (&Boundary, Option<WaitGrowth>)| {
        growth.is_some_and(|WaitGrowth { by_early, by_last }| {
            let is_needed = || gathers.get(&boundary.stage).is_some_and(is_certain);
            is_certain(&by_early) || by_last.is_some_and(|it| it.is_possible() && is_needed())
        })
    };
    let boundaries = block.boundaries.iter();
    boundaries.zip(growths).map(is_awaited).collect()
}

/// How much the segment behind a boundary at which a collective is issued grows.
#[derive(Clone, Copy, Debug)]
struct WaitGrowth {
    /// With how early ranks are there.
    by_early: Growth,
    /// Of a gather: with what the segment before takes the rank that is always last there, if one is.
    /// Rows of different ranks do not begin at the same instant, so that how early they are scatters,
    /// and the slope is too small; what a segment takes is exact.
    by_last: Option<Growth>,
}

impl WaitGrowth {
    /// Of a boundary, where `rows` are the [`positions`] of the block. `None` if ranks do
    /// not meet there, or go past the next boundary before the last one is there.
    fn of(block: &Block, rows: &[Vec<f64>], at: usize) -> Option<Self> {
        let ranks = block.ranks;
        let sync = block.boundaries[at].sync;
        let joins = matches!(sync, Sync::Issue(op) if !op.is_point_to_point());
        if !joins {
            return None;
        }
        let to = wait_segment(block, at)?;
        let groups = block.groups.as_deref();
        // `[rank][row]`, in seconds: how long before the last of its group a rank is here, and what
        // its next segment takes.
        let mut early_s = vec![Vec::with_capacity(rows.len()); ranks];
        let mut next_s = early_s.clone();
        let mut overtaken = 0;
        for prefixes in rows {
            let here = &prefixes[at * ranks..(at + 1) * ranks];
            let last = LastArrivals::new(groups, at, here);
            for rank in 0..ranks {
                let early = last.of(group_of(groups, at * ranks + rank)) - here[rank];
                let next = prefixes[to * ranks + rank] - here[rank];
                overtaken += u32::from(is_overtaken(early, next));
                early_s[rank].push(early);
                next_s[rank].push(next);
            }
        }
        let cells = (block.steps.len() * ranks) as f64;
        if f64::from(overtaken) > OVERTAKEN_SHARE * cells {
            return None;
        }
        let is_last = |early_s: &Vec<f64>| {
            let last = early_s.iter().filter(|early_s| **early_s <= 0.0).count();
            last as f64 >= ALWAYS_LAST_SHARE * rows.len() as f64
        };
        let by_last = matches!(sync, Sync::Issue(op) if op.is_all_gather()).then(|| {
            let last = early_s.iter().position(is_last);
            // Of several groups each has a last one.
            let last = last.filter(|_| groups.is_none());
            last.map_or_else(Growth::default, |last| {
                let took = block.rows().map(|(_, row)| row[at * ranks + last]);
                let took_s: Vec<f64> = took.collect();
                let mut others_s = next_s.clone();
                others_s.remove(last);
                Growth::of(vec![took_s; others_s.len()], others_s)
            })
        });
        let by_early = Growth::of(early_s, next_s);
        Some(Self { by_early, by_last })
    }
}

/// Whether a rank that is so early goes on before the last one is there, by more than rows of ranks
/// begin apart.
pub(crate) fn is_overtaken(early_s: f64, takes_s: f64) -> bool {
    takes_s < early_s - start_skew_s(early_s)
}

/// By how much rows of ranks may begin apart, beside how early a rank is.
fn start_skew_s(early_s: f64) -> f64 {
    START_SKEW_S.max(START_SKEW_SHARE * early_s)
}

/// Seconds that even the last rank of each step spent in the segment that ends where ranks meet:
/// there it no longer waits for others, but for its device. Zero where hosts meet as they issue.
///
/// # Source
/// Ours: docs/math/meetings.md.
pub fn device_wait_s(window: &Window) -> f64 {
    if window.meeting != Meeting::Seen {
        return 0.0;
    }
    window
        .blocks
        .iter()
        .flat_map(|block| block.rows().map(|(_, row)| (row, block.ranks)))
        .map(|(row, ranks)| {
            let last = &row[row.len().saturating_sub(ranks)..];
            last.iter().copied().fold(f64::INFINITY, f64::min)
        })
        // A row without ranks has no last segment.
        .filter(|seconds| seconds.is_finite())
        .sum()
}

pub(crate) fn spread(values: &[f64]) -> f64 {
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    max - values.iter().copied().fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use model::{CollectiveOp, Ending, MarkKind};
    use proptest::prelude::*;

    use super::*;

    fn block(ranks: usize, syncs: &[Sync], row: &[f64]) -> Block {
        let boundary = |sync: &Sync| Boundary {
            stage: StageId::FORWARD,
            after: MarkKind::DataEnd,
            ending: Ending::Mark(MarkKind::BackwardBegin),
            sync: *sync,
        };
        Block {
            boundaries: syncs.iter().map(boundary).collect(),
            groups: None,
            steps: vec![0],
            durations_s: row.to_vec(),
            ranks,
            carried: 0,
        }
    }

    const ISSUE: Sync = Sync::Issue(CollectiveOp(3));

    fn any_block() -> impl Strategy<Value = Block> {
        (1usize..6, 1usize..8).prop_flat_map(|(ranks, boundaries)| {
            let sync = prop_oneof![Just(Sync::None), Just(ISSUE), Just(Sync::Assumed)];
            let syncs = prop::collection::vec(sync, boundaries);
            let row = prop::collection::vec(0.0..1.0f64, boundaries * ranks);
            (syncs, row).prop_map(move |(syncs, row)| block(ranks, &syncs, &row))
        })
    }

    proptest! {
        #[test]
        fn a_step_replayed_unchanged_is_the_step(block in any_block()) {
            let row = block.row(0);
            let replay = Replay::of_row(&block, row);
            let again = replay.makespan_with(&[]);
            prop_assert!((again - replay.makespan_s()).abs() < 1e-9);
        }

        #[test]
        fn less_work_never_makes_the_step_longer(
            block in any_block(), kept in 0.0..1.0f64, slow in 0usize..6,
        ) {
            let replay = Replay::of_row(&block, block.row(0));
            let slow = slow % block.ranks;
            let less = (0..block.boundaries.len()).map(|boundary| {
                let mut own_s = replay.own_s(boundary).to_vec();
                own_s[slow] *= kept;
                Some(own_s)
            });
            let less = replay.makespan_with(&less.collect::<Vec<_>>());
            prop_assert!(less <= replay.makespan_s() + 1e-9);
        }
    }

    /// Two of three ranks wait for the third in a backward pass they entered early.
    #[test]
    fn fixing_the_straggler_takes_the_waits_with_it() {
        let row = [0.05, 0.0, 0.0, 0.01, 0.01, 0.01, 0.002, 0.052, 0.052];
        let block = block(3, &[Sync::None, ISSUE, Sync::None], &row);
        let replay = Replay::of_row(&block, &row);
        assert!((replay.own_s(2)[1] - 0.002).abs() < 1e-9);
        let fixed = replay.makespan_with(&[Some(vec![0.0, 0.0, 0.0])]);
        assert!((replay.makespan_s() - fixed - 0.05).abs() < 1e-9);
    }

    /// Asynchronous collectives: work goes on between issues, the wait comes at the end.
    #[test]
    fn work_between_two_issues_is_not_taken_for_a_wait() {
        let row = [0.05, 0.0, 0.003, 0.003, 0.002, 0.052];
        let block = block(2, &[ISSUE, ISSUE, Sync::None], &row);
        let replay = Replay::of_row(&block, &row);
        assert!((replay.own_s(1)[1] - 0.003).abs() < 1e-9);
        let fixed = replay.makespan_with(&[Some(vec![0.0, 0.0])]);
        assert!((replay.makespan_s() - fixed - 0.05).abs() < 1e-9);
    }

    /// Rank 1 comes 50 ms earlier to its data wait, which takes 50 ms longer.
    #[test]
    fn nobody_waits_for_others_in_its_data_loader() {
        let row = [0.06, 0.01, 0.01, 0.06, 0.03, 0.03];
        let mut block = block(2, &[Sync::None; 3], &row);
        let mut boundaries = block.boundaries.to_vec();
        boundaries[1].stage = StageId::DATA;
        block.boundaries = boundaries.into();
        let mut window = Window {
            meeting: Meeting::Seen,
            ..Window::from(block)
        };
        join_where_seen(&mut window);
        let syncs: Vec<Sync> = window.blocks[0]
            .boundaries
            .iter()
            .map(|boundary| boundary.sync)
            .collect();
        assert_eq!(syncs, [Sync::None, Sync::Assumed, Sync::None]);
    }

    fn joined(window: &Window) -> Vec<bool> {
        let boundaries = window.blocks[0].boundaries.iter();
        boundaries
            .map(|boundary| boundary.sync == Sync::Assumed)
            .collect()
    }

    /// Steps of three ranks, of which the last is 20 ms late in each of four segments, all but the
    /// last of which end where a collective is issued. Whether the others wait for it there, or
    /// take as long in the second by themselves. Their steps begin up to so many seconds apart.
    fn late_in_each_segment(wait: bool, op: CollectiveOp, apart_s: f64) -> Window {
        let mut durations_s = Vec::new();
        // Xorshift: what looks random must be independent from segment to segment.
        let mut random = 88_172_645_463_325_252_u64;
        for _ in 0..40 {
            let mut any = || {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                (random % 1000) as f64 * 1e-3
            };
            let mut at = [0.0f64; 3].map(|_| apart_s * any());
            let mut arrived = 0.0f64;
            for segment in 0..4 {
                let mut row = [0.0; 3];
                for rank in 0..3u32 {
                    let noise = 0.002 * any();
                    let own = if rank == 2 || !wait { 0.025 } else { 0.005 } + noise;
                    let is_first = segment == 0 && rank < 2;
                    let own = if is_first { 0.005 + noise } else { own };
                    let begin = at[rank as usize];
                    let free = if wait && segment > 0 {
                        begin.max(arrived)
                    } else {
                        begin
                    };
                    row[rank as usize] = free + own - begin;
                }
                (0..3).for_each(|rank| at[rank] += row[rank]);
                arrived = at.iter().copied().fold(0.0, f64::max);
                durations_s.extend(row);
            }
        }
        let [issue, none] = [Sync::Issue(op), Sync::None];
        let mut block = block(3, &[issue, issue, issue, none], &[]);
        (block.steps, block.durations_s) = ((0..40).collect(), durations_s);
        let held_s = [vec![0.0; block.durations_s.len()]];
        let mut window = Window {
            meeting: Meeting::Seen,
            ..Window::from(block)
        };
        join_devices_where_seen(&mut window, &held_s);
        window
    }

    #[test]
    fn who_waits_behind_a_collective_takes_longer_the_earlier_it_is() {
        let waits = late_in_each_segment(true, CollectiveOp::ALLREDUCE, 0.0);
        assert_eq!(joined(&waits), [true, true, true, false]);
        let block = &waits.blocks[0];
        let replay = Replay::of_row(block, block.row(3));
        let late_s: f64 = (0..4)
            .map(|at| replay.own_s(at)[2] - replay.own_s(at)[0])
            .sum();
        assert!((late_s - 0.08).abs() < 0.005, "{late_s}");
        let works = late_in_each_segment(false, CollectiveOp::ALLREDUCE, 0.0);
        assert_eq!(joined(&works), [false, false, true, false]);
    }

    #[test]
    fn gathers_are_waited_for_by_what_the_last_rank_takes_though_steps_begin_apart() {
        let waits = late_in_each_segment(true, CollectiveOp::ALLGATHER_BASE, 0.008);
        assert_eq!(joined(&waits), [true, true, true, false]);
        let works = late_in_each_segment(false, CollectiveOp::ALLGATHER_BASE, 0.008);
        assert_eq!(joined(&works), [false, false, true, false]);
        // Of gradients that are reduced it is not known that all are needed at once.
        let reduces = late_in_each_segment(true, CollectiveOp::ALLREDUCE, 0.008);
        assert_eq!(joined(&reduces), [false, false, true, false]);
    }

    /// A group of two does not wait for ranks outside it.
    #[test]
    fn a_collective_joins_its_own_group_only() {
        let row = [0.1, 0.0, 0.0, 0.0, 0.001, 0.101, 0.001, 0.001];
        let mut block = block(4, &[ISSUE, Sync::None], &row);
        block.groups = Some([7, 7, 8, 8, 0, 0, 0, 0].into());
        let replay = Replay::of_row(&block, &row);
        assert!((replay.own_s(1)[1] - 0.001).abs() < 1e-9);
        assert!((replay.own_s(1)[2] - 0.001).abs() < 1e-9);
    }
}
