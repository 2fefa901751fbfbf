use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::sync::Arc;

use crate::{CollectiveOp, Ending, Growth, MarkKind, RankNs, StageId, median};

/// Where the cycle of the training loop is cut into steps for accounting.
///
/// # Source
/// Ours, docs/math/frontier.md: a delay after the last synchronisation of a cycle belongs to the step
/// that pays for it, the next one; so the cut stands where the ranks last met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// Before the data wait, as published.
    Data,
    /// After the last mark of this kind in the cycle.
    After(MarkKind),
}

/// Ranks of which those that wait may be most: no median shows what is usual.
// docs/math/meetings.md: of four or more, most show what a stage usually takes.
pub const FEW_RANKS: usize = 3;

/// What a window shows of where its ranks meet.
///
/// # Source
/// Ours, docs/math/meetings.md: to issue a collective is to meet only where the host blocks in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Meeting {
    /// At the end of the stage in which they issue collectives; nothing speaks against it.
    #[default]
    Issued,
    /// At the cut, later than they issue collectives: hosts run ahead of their devices.
    Seen,
    /// Nowhere, although they get apart: the cut is the published one.
    Unseen,
}

/// How a boundary joins the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sync {
    /// Not at all, as far as is known.
    None,
    /// The segment ends as the rank issues a collective; the ranks that come first wait in a
    /// later segment.
    Issue(CollectiveOp),
    /// The next stage holds a synchronisation whose arrival times nobody recorded.
    Assumed,
}

/// The end of one segment in every rank's step, in time order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Boundary {
    /// The stage the segment before it is charged to.
    pub stage: StageId,
    /// The mark that opened the segment.
    pub after: MarkKind,
    /// What ends it.
    pub ending: Ending,
    /// How it joins the ranks.
    pub sync: Sync,
}

/// Steps of one window that share their boundaries.
///
/// # Shape
/// `durations_s[step][boundary][rank]`, rank fastest; `groups[boundary][rank]` names the
/// communicator of an issue boundary.
/// # Units
/// Seconds, not negative.
#[derive(Clone, Debug)]
pub struct Block {
    /// The boundaries of each step.
    pub boundaries: Arc<[Boundary]>,
    /// Communicator of each rank at each boundary, or [`Block::alone`] for one that waits for nobody; `None` if
    /// all ranks share each.
    pub groups: Option<Arc<[u32]>>,
    /// Step numbers, ascending.
    pub steps: Vec<u64>,
    /// The matrix.
    pub durations_s: Vec<f64>,
    /// Number of ranks.
    pub ranks: usize,
    /// How many of the first boundaries lie in the step before, on the other side of where
    /// the loop counts.
    pub carried: usize,
}

impl Block {
    /// The group of a rank that is alone where others wait for one another: a number that no communicator has
    /// but by chance.
    pub fn alone(rank: usize) -> u32 {
        u32::MAX - rank as u32
    }

    /// Whether communicators divide the ranks, and not only who waits and who does not.
    pub fn is_divided(&self) -> bool {
        let mut groups = self.groups.iter().flat_map(|groups| groups.iter());
        groups.any(|group| *group != 0 && *group <= Self::alone(self.ranks))
    }

    /// Values of one step: `[boundary][rank]`.
    pub fn row(&self, index: usize) -> &[f64] {
        let size = self.boundaries.len() * self.ranks;
        self.durations_s
            .get(index * size..(index + 1) * size)
            .unwrap_or_default()
    }

    /// What ranks take for a row by their own clocks, in seconds: the median.
    pub fn took_s(&self, row: usize) -> f64 {
        let mut all_s = vec![0.0; self.ranks];
        add_by_rank(&mut all_s, self.row(row));
        median(&mut all_s).unwrap_or(0.0)
    }

    /// The step in which a stage of a row happened. Accounting charges what follows the last
    /// synchronisation to the step that pays for it; a person looks for it in the one before, in
    /// which the stage began.
    pub fn step_of(&self, row: usize, stage: StageId) -> u64 {
        let mut boundaries = self.boundaries.iter();
        let place = boundaries.position(|boundary| boundary.stage == stage);
        // A row with carried boundaries follows a step before it, so that its number is not 0.
        self.steps[row].saturating_sub(u64::from(place.is_some_and(|at| at < self.carried)))
    }

    /// All steps with their values.
    pub fn rows(&self) -> impl Iterator<Item = (u64, &[f64])> {
        self.steps
            .iter()
            .enumerate()
            .map(|(index, step)| (*step, self.row(index)))
    }
}

/// How well the named stages close over the measured wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Closure {
    /// Share of wall time no named stage covers.
    pub residual_share: f64,
    /// Share of wall time that stages claim twice.
    pub overlap_share: f64,
}

/// Forward times measured on the device beside the host's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceEvents {
    /// Whether the channel was enabled at all.
    pub enabled: bool,
    /// Seconds of each event that became ready.
    pub ready_s: Vec<f64>,
    /// Events that never did.
    pub lost: usize,
}

/// Consecutive aligned steps of comparable ranks under one schema.
#[derive(Clone, Debug)]
pub struct Window {
    /// First step.
    pub first_step: u64,
    /// Number of steps, incomplete ones included.
    pub steps: u64,
    /// The ranks of the matrix, ascending; column `i` of a block is `ranks[i]`.
    pub ranks: Vec<u32>,
    /// Ranks that should be there and are not.
    pub missing_ranks: Vec<u32>,
    /// Ranks of the job that nobody here can see, on other hosts.
    pub unseen_ranks: usize,
    /// Steps that at least one rank did not deliver whole.
    pub incomplete_steps: u64,
    /// What these took on the rank that took longest, in seconds.
    pub incomplete_s: f64,
    /// The steps, grouped by their boundaries.
    pub blocks: Vec<Block>,
    /// Where the steps were cut.
    pub cut: Cut,
    /// Whether its ranks meet there.
    pub meeting: Meeting,
    /// Whether hosts are seen not to wait for each other where they issue collectives: they run
    /// ahead of their devices.
    pub runs_ahead: bool,
    /// How long ranks take to the cut by how early they issue their last collective, where steps
    /// are cut behind it: a host that waits there takes longer the earlier it is.
    pub waits: Growth,
    /// Closure of the named stages.
    pub closure: Closure,
    /// Device-side forward times.
    pub device: DeviceEvents,
    /// Steps whose accumulation factor differs from the window's.
    pub odd_accumulation_steps: u64,
    /// Whether micro-steps were summed before they reached us.
    pub accumulation_collapsed: bool,
    /// Distinct parallel roles among the ranks.
    pub roles: usize,
    /// Ranks in its group over ranks in all groups: 1 unless roles divide the job, whose
    /// windows then cover the same steps and together count once.
    pub group_share: f64,
    /// Steps whose collectives differed over the ranks.
    pub mismatched_steps: u64,
    /// Whether batches that were read ahead could not be given to the step that uses them.
    pub unsafe_prefetch: bool,
}

/// Adds the values of each rank, which stand side by side at each boundary.
fn add_by_rank(sums: &mut [f64], values: &[f64]) {
    for at_boundary in values.chunks(sums.len().max(1)) {
        for (sum, value) in sums.iter_mut().zip(at_boundary) {
            *sum += value;
        }
    }
}

impl Window {
    /// Steps in the matrix.
    pub fn rows(&self) -> usize {
        self.blocks.iter().map(|block| block.steps.len()).sum()
    }

    /// What the rank that takes longest takes for all of the matrix by its own clock, in seconds.
    pub fn longest_s(&self) -> f64 {
        let mut all_s = vec![0.0; self.ranks.len()];
        for block in &self.blocks {
            add_by_rank(&mut all_s, &block.durations_s);
        }
        all_s.into_iter().fold(0.0, f64::max)
    }

    /// Whether ranks call different things in most of its steps, as where each hands its work on to the
    /// next.
    pub fn calls_differ(&self) -> bool {
        2 * self.mismatched_steps > self.rows() as u64
    }

    /// The stages of the matrix, in order of id (schema order).
    pub fn stages(&self) -> Vec<StageId> {
        let all = self.blocks.iter().flat_map(|block| block.boundaries.iter());
        let mut stages: Vec<StageId> = all.map(|boundary| boundary.stage).collect();
        stages.sort_unstable();
        stages.dedup();
        stages
    }
}

/// When a device got to the begin or the end of a block, on clocks that go on over a run of
/// sampled steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTime {
    /// When the host made the mark, on its own clock: which mark it is.
    pub host: RankNs,
    /// When the device got there.
    pub device: RankNs,
    /// A clock that goes on only while the host must have held the device up.
    pub host_bound_least: RankNs,
    /// One that goes on while it may have.
    pub host_bound_most: RankNs,
}

/// Some sampled steps of ranks that are compared, on their devices' clocks.
#[derive(Clone, Debug)]
pub struct DeviceWindow {
    /// What segments took on the devices, waits for other ranks included.
    pub window: Window,
    /// In place of each duration of the window, in the same order of blocks: the least of it in
    /// which the host may have held the device up.
    pub host_bound_least_s: Vec<Vec<f64>>,
    /// The most.
    pub host_bound_most_s: Vec<Vec<f64>>,
    /// How far hosts are ahead of their devices where that is most in a step: the median over
    /// steps and ranks, in seconds, at least.
    pub run_ahead_s: f64,
    /// The same, at most.
    pub run_ahead_most_s: f64,
    /// What hosts read back from their devices.
    pub read_backs: ReadBacks,
    /// What the hosts did meanwhile.
    pub host: HostTimes,
    /// Stages in which some rank sends or receives.
    pub points_in: BTreeSet<StageId>,
}

/// What hosts did in the steps of a [`DeviceWindow`].
///
/// # Units
/// Seconds, on each host's own clock.
/// # Shape
/// One value in place of each duration of the window, in the same order of blocks.
#[derive(Clone, Debug, Default)]
pub struct HostTimes {
    /// What a segment took, waits included.
    pub took_s: Vec<Vec<f64>>,
    /// The part of it in which something was read back; 0 where nothing was.
    pub read_s: Vec<Vec<f64>>,
    /// The part of it behind its last read-back.
    pub after_read_s: Vec<Vec<f64>>,
    /// What the device took of the segment before that read-back.
    pub device_before_read_s: Vec<Vec<f64>>,
    /// How far a host is ahead of its device where a row begins, at least and at most, by block,
    /// row and rank.
    pub ahead_s: Vec<Vec<[f64; 2]>>,
}

/// What hosts read back from their devices in sampled steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadBacks {
    /// Steps, each of one rank.
    pub steps: u64,
    /// What these took, in seconds.
    pub step_s: f64,
    /// Stages in which it happened.
    pub stages: BTreeSet<StageId>,
    /// By the line that wanted it, [`StageId::OTHER`] for lines without a name.
    pub lines: BTreeMap<StageId, ReadBacksOfLine>,
    /// Where hosts waited although nothing was read back.
    pub silent: ReadBacksOfLine,
}

impl AddAssign<&Self> for ReadBacks {
    fn add_assign(&mut self, other: &Self) {
        self.steps += other.steps;
        self.step_s += other.step_s;
        self.stages.extend(&other.stages);
        for (line, more) in &other.lines {
            *self.lines.entry(*line).or_default() += more;
        }
        self.silent += &other.silent;
    }
}

/// Where hosts wait for their devices to read something back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReadBacksOfLine {
    /// How many.
    pub count: u64,
    /// Seconds that hosts waited.
    pub wait_s: f64,
    /// Seconds, at most, in which a device then had nothing to do before its host was ahead again.
    pub idle_most_s: f64,
}

impl AddAssign<&Self> for ReadBacksOfLine {
    fn add_assign(&mut self, other: &Self) {
        self.count += other.count;
        self.wait_s += other.wait_s;
        self.idle_most_s += other.idle_most_s;
    }
}

/// Complete steps of ranks 0, 1, 2, … of one role, cut as published.
impl From<Block> for Window {
    fn from(block: Block) -> Self {
        Self {
            first_step: block.steps.first().copied().unwrap_or_default(),
            steps: block.steps.len() as u64,
            ranks: (0..).take(block.ranks).collect(),
            missing_ranks: Vec::new(),
            unseen_ranks: 0,
            incomplete_steps: 0,
            incomplete_s: 0.0,
            blocks: vec![block],
            cut: Cut::Data,
            meeting: Meeting::default(),
            runs_ahead: false,
            waits: Growth::default(),
            closure: Closure::default(),
            device: DeviceEvents::default(),
            odd_accumulation_steps: 0,
            accumulation_collapsed: false,
            roles: 1,
            group_share: 1.0,
            mismatched_steps: 0,
            unsafe_prefetch: false,
        }
    }
}
