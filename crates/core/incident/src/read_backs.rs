//! What lateness of hosts costs between read-backs that are seen, where hosts run ahead of devices
//! that make no marks.

use frontier::WindowFrontier;
use model::{Block, RankColumn, StageId, StepRow, Window, median, medians_of_others};

use crate::fault::recharge;
use crate::{Fault, FaultKind, IncidentSettings};

/// Seconds that all ranks must wait at a read-back to be seen to wait there, and times by which that
/// must exceed how much the segment varies else. Ours: marks scatter.
const WAIT_S: f64 = 1e-3;
const WAIT_SCATTER: f64 = 4.0;
/// How far apart ranks may be by what they took from one read-back to the next to meet at both: in
/// seconds, and as a share of how long they wait. Ours: they leave it as their devices tell them.
const APART_S: f64 = 2e-3;
const APART_SHARE: f64 = 0.1;
/// Steps from one read-back to the next, at least: most must show what the segment takes without one.
/// Where each step reads back, nothing is queued before it.
const STEPS_MIN: usize = 3;
/// Read-backs of a window that must be equally far apart. Ours: a pause of all ranks is none.
const READ_BACKS_MIN: usize = 3;

/// Stretches of a window from one read-back, at which the hosts of all ranks wait for their devices,
/// to the next.
///
/// # Source
/// Ours: docs/math/meetings.md.
#[derive(Debug)]
pub(crate) struct ReadBacks<'window> {
    block: &'window Block,
    /// The boundary that ends the segment in which something is read back.
    at: usize,
    /// Rows in which it is, ascending, all equally far apart.
    rows: Vec<usize>,
    /// What the segment takes of each rank where nothing is read back, in seconds.
    usual_s: Vec<f64>,
}

/// A rank in a step of a stretch: when, in seconds since the read-back, it is behind the stages of
/// its faults, and by how much each fault made it late there.
#[derive(Debug)]
struct LateStep {
    end_s: f64,
    late_s: Vec<f64>,
}

/// A stretch: for each late rank what it took, and its steps.
type LateStretch = Vec<(f64, Vec<LateStep>)>;

impl<'window> ReadBacks<'window> {
    /// Finds them. `None` if hosts are not seen to read back, or do so in each step.
    pub(crate) fn of_window(window: &'window Window) -> Option<Self> {
        // Time runs on from one row to the next only in neighbouring steps of one kind.
        let [block] = &window.blocks[..] else {
            return None;
        };
        let are_consecutive = block.steps.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        if !are_consecutive || block.ranks < 2 {
            return None;
        }
        let places =
            // Loaders of all ranks may pause every so many steps, with nothing read back.
            (0..block.boundaries.len()).filter(|at| block.boundaries[*at].stage != StageId::DATA);
        places
            .filter_map(|at| Self::at_boundary(block, at))
            .find(ReadBacks::meet)
    }

    fn at_boundary(block: &'window Block, at: usize) -> Option<Self> {
        let (rows, usual_s) = waits(block, at)?;
        // `waits` gives three rows or none.
        let steps = rows[1] - rows[0];
        let is_regular = rows.windows(2).all(|pair| pair[1] - pair[0] == steps);
        (is_regular && steps >= STEPS_MIN).then_some(Self {
            block,
            at,
            rows,
            usual_s,
        })
    }

    /// Whether all ranks take equally long from each read-back to the next.
    fn meet(&self) -> bool {
        let (mut apart_s, mut waited_s) = (0.0, 0.0);
        for pair in self.rows.windows(2) {
            let took_s: Vec<f64> = (0..self.block.ranks)
                .map(|rank| self.cells_s(pair, rank).sum())
                .collect();
            let most_s = took_s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            apart_s += most_s - took_s.into_iter().fold(f64::INFINITY, f64::min);
            let waits =
                (0..self.block.ranks).map(|rank| self.wait_s(StepRow(pair[1]), RankColumn(rank)));
            waited_s += waits.fold(f64::INFINITY, f64::min);
        }
        let stretches = self.rows.len() as f64 - 1.0;
        apart_s <= (APART_S * stretches).max(APART_SHARE * waited_s)
    }

    /// Steps from one read-back to the next.
    fn steps(&self) -> usize {
        self.rows[1] - self.rows[0]
    }

    fn wait_s(&self, row: StepRow, rank: RankColumn) -> f64 {
        self.block.row(row.0)[self.at * self.block.ranks + rank.0] - self.usual_s[rank.0]
    }

    /// Places `(row, boundary)` of a stretch in order, from the read-back on.
    fn places(&self, pair: &[usize]) -> impl Iterator<Item = (usize, usize)> + use<> {
        let places = self.block.boundaries.len();
        let (first, last) = (pair[0] * places + self.at, pair[1] * places + self.at);
        (first..last).map(move |place| (place / places, place % places))
    }

    /// What a rank takes in each of them. A read-back is taken to begin its segment: what the rank does
    /// there itself comes behind it.
    fn cells_s(&self, pair: &[usize], rank: usize) -> impl Iterator<Item = f64> {
        let (first, wait_s) = (pair[0], self.wait_s(StepRow(pair[1]), RankColumn(rank)));
        let own_s = self.places(pair).map(move |(row, boundary)| {
            if row == first && boundary == self.at {
                self.usual_s[rank]
            } else {
                self.block.row(row)[boundary * self.block.ranks + rank]
            }
        });
        own_s.chain([wait_s])
    }

    /// What each of the ranks that are late in a stretch does there.
    fn stretch(&self, pair: &[usize], faults: &[(&Fault, Vec<usize>)]) -> LateStretch {
        let places = self.block.boundaries.len();
        let ranks = 0..self.block.ranks;
        let late_ranks = ranks.filter(|rank| faults.iter().any(|(_, its)| its.contains(rank)));
        // Of each place of a fault, what the others of each rank take there.
        let others_s: Vec<Vec<f64>> = self
            .places(pair)
            .map(|(row, boundary)| {
                let stage = self.block.boundaries[boundary].stage;
                if !faults.iter().any(|(fault, _)| fault.is_in(stage)) {
                    return Vec::new();
                }
                if row == pair[0] && boundary == self.at {
                    return medians_of_others(&self.usual_s);
                }
                let first = boundary * self.block.ranks;
                medians_of_others(&self.block.row(row)[first..first + self.block.ranks])
            })
            .collect();
        let mut stretch = Vec::new();
        for rank in late_ranks {
            let mut late: Vec<LateStep> = Vec::with_capacity(self.steps());
            let mut now_s = 0.0;
            let cells = self.places(pair).zip(self.cells_s(pair, rank));
            for (place, ((row, boundary), own_s)) in cells.enumerate() {
                now_s += own_s;
                // Here a step goes from the place of the read-back to the same place a row later.
                if place % places == 0 {
                    late.push(LateStep {
                        end_s: now_s,
                        late_s: vec![0.0; faults.len()],
                    });
                }
                // Never: the first place of a stretch begins a step.
                let Some(step) = late.last_mut() else {
                    continue;
                };
                let stage = self.block.boundaries[boundary].stage;
                for (late_s, (fault, columns)) in step.late_s.iter_mut().zip(faults) {
                    if !fault.is_in(stage) || !columns.contains(&rank) {
                        continue;
                    }
                    step.end_s = now_s;
                    if fault.strikes_in(self.block, row, stage) {
                        *late_s += (own_s - others_s[place][rank]).max(0.0);
                    }
                }
            }
            let took_s = self.cells_s(pair, rank).sum();
            stretch.push((took_s, late));
        }
        stretch
    }
}

/// Rows in which all ranks take longer in a segment than they usually do, and what each usually takes.
/// `None` if there are hardly any.
fn waits(block: &Block, at: usize) -> Option<(Vec<usize>, Vec<f64>)> {
    let took_s = |row: usize, rank: usize| block.row(row)[at * block.ranks + rank];
    let count = block.steps.len();
    let mut rows: Vec<usize> = (0..count).collect();
    let mut usual_s = Vec::with_capacity(block.ranks);
    for rank in 0..block.ranks {
        let mut all_s: Vec<f64> = (0..count).map(|row| took_s(row, rank)).collect();
        let usual = median(&mut all_s)?;
        let mut scatter_s: Vec<f64> = all_s.iter().map(|it| (it - usual).abs()).collect();
        let notable_s = WAIT_S.max(WAIT_SCATTER * median(&mut scatter_s)?);
        rows.retain(|row| took_s(*row, rank) - usual > notable_s);
        // Ranks may be many, and mostly the first shows that nothing is read back here.
        if rows.len() < READ_BACKS_MIN {
            return None;
        }
        usual_s.push(usual);
    }
    Some((rows, usual_s))
}

/// Whether something seems to be read back in a few steps, be it at no fixed distance.
pub(crate) fn may_read_back(block: &Block) -> bool {
    (0..block.boundaries.len()).any(|at| waits(block, at).is_some())
}

/// What all stretches gain without some of the faults, in seconds.
///
/// A device does the same in each step, no less than it would need to be done at the read-back had
/// it nothing left to do at any one of its host's late ends: of the steps behind the last at which it
/// waited for its host, lateness is absorbed.
fn gain_s(stretches: &[LateStretch], steps: usize, fixed: &[usize]) -> f64 {
    let mut gained_s = 0.0;
    for stretch in stretches {
        let device_s = stretch
            .iter()
            .flat_map(|(took_s, late)| {
                let ends = late.iter().enumerate();
                // A stretch has as many late steps as steps, so that at least one is left.
                ends.map(move |(at, step)| (took_s - step.end_s) / (steps - at) as f64)
            })
            .fold(f64::INFINITY, f64::min);
        let took_s = stretch
            .iter()
            .map(|(took_s, _)| *took_s)
            .fold(0.0, f64::max);
        let mut without_s = 0.0f64;
        for (_, late) in stretch {
            let mut saved_s = 0.0;
            for (at, step) in late.iter().enumerate() {
                saved_s += fixed.iter().map(|fault| step.late_s[*fault]).sum::<f64>();
                // T' of docs/math/meetings.md: the latest of all late ends decides.
                without_s = without_s.max(step.end_s - saved_s + (steps - at) as f64 * device_s);
            }
        }
        gained_s += (took_s - without_s).max(0.0);
    }
    gained_s
}

/// Charges late ranks what they cost between read-backs that are seen, and says whether any are; what
/// launch queues absorb costs nothing.
pub(crate) fn charge_between(
    faults: &mut Vec<Fault>,
    window: &Window,
    found: &WindowFrontier,
    settings: &IncidentSettings,
) -> bool {
    let Some(read_backs) = ReadBacks::of_window(window) else {
        return false;
    };
    let is_late = |fault: &Fault| fault.kind == FaultKind::LateRanks;
    let late = faults.iter().filter(|fault| is_late(fault));
    let with_columns: Vec<(&Fault, Vec<usize>)> = late
        .map(|fault| {
            let ranks = fault.ranks.iter();
            let columns = ranks.filter_map(|rank| window.ranks.binary_search(rank).ok());
            (fault, columns.collect())
        })
        .collect();
    let pairs = read_backs.rows.windows(2);
    let stretches: Vec<LateStretch> = pairs
        .map(|pair| read_backs.stretch(pair, &with_columns))
        .collect();
    // What ranks are late by in all steps, and in those between read-backs.
    let late_s: Vec<[f64; 2]> = with_columns
        .iter()
        .enumerate()
        .map(|(at, (fault, columns))| {
            let steps = stretches.iter().flatten().flat_map(|(_, late)| late);
            let between_s = steps.map(|step| step.late_s[at]).sum::<f64>();
            let all_s = fault.late_sum_s();
            [all_s, between_s / columns.len().max(1) as f64]
        })
        .collect();
    let steps = read_backs.steps();
    recharge(faults, is_late, found, settings, |some| {
        let [all_s, between_s] =
            [0, 1].map(|of| some.iter().map(|at| late_s[*at][of]).sum::<f64>());
        // What is late between read-backs stands for what is late before the first one as well.
        gain_s(&stretches, steps, some) * all_s / between_s.max(f64::MIN_POSITIVE)
    });
    true
}

#[cfg(test)]
mod tests {
    use model::MarkKind;

    use super::*;
    use crate::testkit::{block, faults_of};

    /// Steps of four ranks whose devices take `device_s` of each, with a read-back in every tenth.
    /// Rank 2 is `late_s` late in its loader.
    fn window(device_s: f64, late_s: f64) -> Window {
        window_of(device_s, |_| late_s)
    }

    /// The same, where it is late by step.
    fn window_of(device_s: f64, late_s: impl Fn(usize) -> f64) -> Window {
        let segments = [
            (StageId::DATA, MarkKind::DataEnd),
            (StageId::FORWARD, MarkKind::BackwardBegin),
            (StageId::CALLBACKS, MarkKind::DataBegin),
        ];
        let (data_s, forward_s, callback_s) = (0.002, 0.006, 0.001);
        let mut durations_s = Vec::new();
        for step in 0..50 {
            let late = |rank: usize, step| if rank == 2 { late_s(step) } else { 0.0 };
            let noise_s = |rank: usize| ((step * 4 + rank) * 7919 % 13) as f64 * 1e-6;
            durations_s.extend((0..4).map(|rank| data_s + late(rank, step) + noise_s(rank)));
            durations_s.extend([forward_s; 4]);
            let reads = step % 10 == 9;
            // What the last device is done at, if it never waits for a host but at first, or always.
            let own_s = data_s + forward_s + callback_s;
            let lost_s = |rank: usize, last: usize| -> f64 {
                (step / 10 * 10..=last).map(|step| late(rank, step)).sum()
            };
            let starts_s = (0..10).map(|at| {
                let begun_s = at as f64 * own_s + callback_s + data_s;
                begun_s + lost_s(2, step / 10 * 10 + at) + (10 - at) as f64 * device_s
            });
            let done_s = starts_s.fold(0.0, f64::max);
            durations_s.extend((0..4).map(|rank| {
                let wait_s = (done_s - 10.0 * own_s - lost_s(rank, step)).max(0.0);
                callback_s + if reads { wait_s } else { 0.0 }
            }));
        }
        block(&segments, 4, 50, durations_s).into()
    }

    /// What faults of the window cost a step, in seconds.
    fn charged_s(window: &Window) -> f64 {
        let faults = faults_of(window, |faults, found, settings| {
            assert_eq!(faults[0].ranks, [2]);
            assert!(charge_between(faults, window, found, settings));
        });
        faults.iter().map(|fault| fault.cost_s).sum::<f64>() / 50.0
    }

    #[test]
    fn lateness_behind_which_a_device_is_busy_costs_its_first_step_only() {
        // 29 ms of the host, and 40 of the device.
        assert!((charged_s(&window(0.040, 0.020)) - 0.002).abs() < 1e-4);
    }

    #[test]
    fn lateness_of_which_a_part_is_absorbed_costs_the_rest() {
        // 39 ms of the host beside 20 of the device, which has 11 of each step left without the fault.
        let without_s = 0.003 + 10.0 * 0.020;
        let with_s = 0.033 + 9.0 * 0.039 + 0.020;
        let gain_s = (with_s - without_s) / 10.0;
        assert!((charged_s(&window(0.020, 0.030)) - gain_s).abs() < 1e-4);
    }

    #[test]
    fn what_is_late_once_is_not_charged_for_steps_in_which_nothing_is() {
        // Between read-backs lie 40 of 50 steps, and the one that is late. Devices take 20 ms of each.
        let late_s = |step: usize| if step == 15 { 0.3 } else { 0.0 };
        let window = window_of(0.020, late_s);
        let faults = faults_of(&window, |faults, found, settings| {
            assert!(charge_between(faults, &window, found, settings));
        });
        // Behind five steps of the host and its pause the device has five steps left, instead of ten
        // steps in all.
        let gain_s = 5.0 * 0.009 + 0.3 + 5.0 * 0.020 - 10.0 * 0.020;
        let cost_s = faults[0].cost_s;
        assert!((cost_s - gain_s).abs() < 1e-3, "{cost_s}");
    }

    #[test]
    fn where_ranks_do_not_take_equally_long_none_meet() {
        let mut window = window(0.040, 0.020);
        let values = window.blocks[0].durations_s.iter_mut().enumerate();
        values
            .filter(|(at, _)| at % 4 == 2)
            .for_each(|(_, seconds)| *seconds *= 1.1);
        assert!(ReadBacks::of_window(&window).is_none());
    }
}
