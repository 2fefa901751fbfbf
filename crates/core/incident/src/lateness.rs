//! How much more own work than its peers a rank did, step by step.

use std::collections::BTreeSet;

use frontier::{Gates, Replay, WindowFrontier};
use model::{RankColumn, StageSlot, StepRow, Window};

use crate::IncidentSettings;

/// Quantiles between which a rank's times are spread by noise alone. The smaller of the two
/// distances counts: faults lengthen up to three steps of four, which leaves the lower one
/// clean, and a few short steps, as at the end of an epoch, leave the upper one clean.
const SPREAD_QUANTILES: [f64; 3] = [0.05, 0.25, 0.5];

/// Share of a window's steps in which a rank must be late for single steps not to matter.
const EVERY_STEP_SHARE: f64 = 0.9;
/// Chance that noise makes a rank the later one in as many steps, below which it is none. Ours: that of 12
/// steps of 12.
const CHANCE: f64 = 2.5e-4;

/// Own work and lateness of every rank in every step of a window.
pub(crate) struct Lateness<'window> {
    /// One per row, in step order.
    pub(crate) replays: Vec<Replay<'window>>,
    /// `[row][stage][rank]`: seconds beyond the median of the other ranks where that is
    /// worth a word and more than noise, else zero. A rank that is late in every step is
    /// late beyond noise, however far single steps scatter.
    late_s: Vec<f64>,
    stages: usize,
    ranks: usize,
}

impl<'window> Lateness<'window> {
    pub(crate) fn of_window(
        window: &'window Window,
        found: &WindowFrontier,
        gates: &Gates,
        settings: &IncidentSettings,
    ) -> Self {
        let (stages, ranks) = (found.stages.len(), window.ranks.len());
        let mut replays = Vec::with_capacity(found.steps.len());
        let mut own_s = Vec::with_capacity(found.steps.len() * stages * ranks);
        for account in &found.steps {
            let block = &window.blocks[account.block];
            let replay = Replay::of_row(block, block.row(account.row));
            let mut totals = vec![0.0; stages * ranks];
            for (at, boundary) in block.boundaries.iter().enumerate() {
                let Some(slot) = found.slot(boundary.stage) else {
                    continue;
                };
                let in_stage = &mut totals[slot * ranks..(slot + 1) * ranks];
                for (total_s, own_s) in in_stage.iter_mut().zip(replay.own_s(at)) {
                    // A stage is late as a whole: what a rank loses before one issue it may make up
                    // before the next.
                    *total_s += own_s;
                }
            }
            own_s.extend(totals);
            replays.push(replay);
        }
        let mut lateness = Self {
            replays,
            late_s: vec![0.0; own_s.len()],
            stages,
            ranks,
        };
        for slot in (0..stages).map(StageSlot) {
            let all = lateness.rows();
            let own_s: Vec<&[f64]> = all.map(|row| &own_s[lateness.cells(row, slot)]).collect();
            let beside_s: Vec<Vec<f64>> = own_s.iter().copied().map(beside_others).collect();
            // What a step takes on all ranks alike makes nobody late, and of two ranks the noise of
            // one is not the other's.
            let spread_s = spread_s(&own_s, ranks).min(spread_s(&beside_s, ranks));
            let noise_s = spread_s * settings.noise_factor;
            let mut steps_late = vec![0_usize; ranks];
            for (row, account) in found.steps.iter().enumerate() {
                let notable_s = gates.notable_s(account.makespan_s);
                let cells = lateness.cells(StepRow(row), slot);
                for (rank, cell) in cells.enumerate() {
                    let late_s = beside_s[row][rank];
                    // A single rank is its own median.
                    if ranks > 1 && late_s > notable_s {
                        lateness.late_s[cell] = late_s;
                        steps_late[rank] += 1;
                    }
                }
            }
            // Only behind all rows is it known who is late in each, which no noise is.
            let rows = lateness.replays.len();
            for (rank, steps_late) in steps_late.into_iter().enumerate() {
                let always = steps_late as f64 >= EVERY_STEP_SHARE * rows as f64
                    && chance(steps_late, rows) <= CHANCE;
                for row in lateness.rows().filter(|_| !always) {
                    let cell = lateness.cells(row, slot).start + rank;
                    if lateness.late_s[cell] <= noise_s {
                        lateness.late_s[cell] = 0.0;
                    }
                }
            }
        }
        lateness
    }

    /// Seconds a rank was late in a stage of a row; zero if it was not.
    pub(crate) fn late_s(&self, row: StepRow, slot: StageSlot, rank: RankColumn) -> f64 {
        self.late_s[(row.0 * self.stages + slot.0) * self.ranks + rank.0]
    }

    /// Seconds by which the latest of some ranks was late there: a step is as late as its latest
    /// rank, several late ranks do not add up.
    pub(crate) fn latest_s(
        &self,
        row: StepRow,
        slot: StageSlot,
        columns: &BTreeSet<RankColumn>,
    ) -> f64 {
        columns
            .iter()
            .map(|rank| self.late_s(row, slot, *rank))
            .fold(0.0, f64::max)
    }

    /// How many times some rank is the latest in a stage for a while, in these rows.
    pub(crate) fn turns(&self, slot: StageSlot, rows: &BTreeSet<StepRow>) -> usize {
        let latest = rows.iter().map(|row| {
            let late_s = |rank: &usize| self.late_s(*row, slot, RankColumn(*rank));
            (0..self.ranks).max_by(|a, b| late_s(a).total_cmp(&late_s(b)))
        });
        let mut turns: Vec<Option<usize>> = latest.collect();
        turns.dedup();
        turns.len()
    }

    /// Own work of each rank in a segment of a row, in seconds.
    pub(crate) fn own_s(&self, row: StepRow, boundary: usize) -> &[f64] {
        self.replays[row.0].own_s(boundary)
    }

    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    pub(crate) fn rows(&self) -> impl ExactSizeIterator<Item = StepRow> + use<> {
        (0..self.replays.len()).map(StepRow)
    }

    fn cells(&self, row: StepRow, slot: StageSlot) -> std::ops::Range<usize> {
        let first = (row.0 * self.stages + slot.0) * self.ranks;
        first..first + self.ranks
    }
}

/// The chance that noise, which is as often positive as not, is positive in so many of some steps or in more.
fn chance(late: usize, steps: usize) -> f64 {
    let (mut ways, mut chance) = (0.5_f64.powf(steps as f64), 0.0);
    for missed in 0..=steps.saturating_sub(late) {
        chance += ways;
        ways *= steps.saturating_sub(missed) as f64 / (missed + 1) as f64;
    }
    chance
}

/// The median over the ranks of how far the times of each scatter, `[row][rank]`.
fn spread_s(rows_s: &[impl AsRef<[f64]>], ranks: usize) -> f64 {
    let mut times = Vec::with_capacity(rows_s.len());
    let mut spreads: Vec<f64> = (0..ranks)
        .map(|rank| {
            times.clear();
            times.extend(rows_s.iter().map(|row| row.as_ref()[rank]));
            times.sort_unstable_by(f64::total_cmp);
            let [low, middle, high] = SPREAD_QUANTILES.map(|share| {
                // Shares are below 1: the index lies behind the last time only where there is none.
                let at = (share * times.len() as f64) as usize;
                times.get(at).copied().unwrap_or(0.0)
            });
            (middle - low).min(high - middle)
        })
        .collect();
    model::median(&mut spreads).unwrap_or(0.0)
}

/// By how much each value exceeds the median of the others.
pub(crate) fn beside_others(values: &[f64]) -> Vec<f64> {
    // In the median of all, one late rank of two would hide half of its own lateness.
    let medians = model::medians_of_others(values).into_iter();
    values
        .iter()
        .zip(medians)
        .map(|(value, median)| value - median)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_makes_nobody_late_in_all_of_twelve_steps() {
        assert!((chance(1, 2) - 0.75).abs() < 1e-12);
        let is_noise = |late, steps| chance(late, steps) > CHANCE;
        assert!(!is_noise(12, 12) && !is_noise(18, 20) && !is_noise(5000, 5000));
        assert!(is_noise(11, 11) && is_noise(13, 14) && is_noise(0, 0));
    }
}
