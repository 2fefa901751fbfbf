//! How much more own work than its peers a rank did, step by step.

use frontier::{Replay, WindowFrontier, median};
use model::Window;

use crate::IncidentSettings;

/// Quantiles between which a rank's times are spread by noise alone. The smaller of the two
/// distances counts: faults lengthen up to three steps of four, which leaves the lower one
/// clean, and a few short steps, as at the end of an epoch, leave the upper one clean.
const SPREAD_QUANTILES: [f64; 3] = [0.05, 0.25, 0.5];

/// Own work and lateness of every rank in every step of a window.
pub(crate) struct Lateness<'window> {
    /// One per row, in step order.
    pub(crate) replays: Vec<Replay<'window>>,
    /// `[row][stage][rank]`: seconds beyond the median of the other ranks where that is
    /// more than noise, else zero.
    late_s: Vec<f64>,
    stages: usize,
    ranks: usize,
}

impl<'window> Lateness<'window> {
    pub(crate) fn of_window(
        window: &'window Window,
        found: &WindowFrontier,
        notable_s: impl Fn(f64) -> f64,
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
                let Some(slot) = found.slot(boundary.stage) else { continue };
                for rank in 0..ranks {
                    totals[slot * ranks + rank] += replay.own_s(at, rank);
                }
            }
            own_s.extend(totals);
            replays.push(replay);
        }
        let mut lateness =
            Self { replays, late_s: vec![0.0; own_s.len()], stages, ranks };
        for slot in 0..stages {
            let noise_s = lateness.spread_s(&own_s, slot) * settings.noise_factor;
            for (row, account) in found.steps.iter().enumerate() {
                let cells = lateness.cells(row, slot);
                let threshold_s = notable_s(account.makespan_s).max(noise_s);
                let own_s = &own_s[cells.clone()];
                for (rank, cell) in cells.enumerate() {
                    let late_s = own_s[rank] - median_of_others(own_s, rank);
                    if ranks > 1 && late_s > threshold_s {
                        lateness.late_s[cell] = late_s;
                    }
                }
            }
        }
        lateness
    }

    /// Seconds a rank was late in a stage of a row; zero if it was not.
    pub(crate) fn late_s(&self, row: usize, slot: usize, rank: usize) -> f64 {
        self.late_s[(row * self.stages + slot) * self.ranks + rank]
    }

    pub(crate) fn rows(&self) -> usize {
        self.replays.len()
    }

    fn cells(&self, row: usize, slot: usize) -> std::ops::Range<usize> {
        let first = (row * self.stages + slot) * self.ranks;
        first..first + self.ranks
    }

    /// Typical spread of one rank's own time in a stage.
    fn spread_s(&self, own_s: &[f64], slot: usize) -> f64 {
        let mut spreads: Vec<f64> = (0..self.ranks)
            .map(|rank| {
                let times =
                    (0..self.rows()).map(|row| own_s[self.cells(row, slot).start + rank]);
                let mut times: Vec<f64> = times.collect();
                times.sort_by(f64::total_cmp);
                let at = |q: f64| times.get((q * times.len() as f64) as usize).copied();
                let [low, middle, high] = SPREAD_QUANTILES.map(|q| at(q).unwrap_or(0.0));
                (middle - low).min(high - middle)
            })
            .collect();
        median(&mut spreads).unwrap_or(0.0)
    }
}

/// Median of `values` without the one at `rank`; the value itself if there is no other.
pub(crate) fn median_of_others(values: &[f64], rank: usize) -> f64 {
    let mut others: Vec<f64> = values
        .iter()
        .enumerate()
        .filter(|(at, _)| *at != rank)
        .map(|(_, v)| *v)
        .collect();
    median(&mut others).unwrap_or(values[rank])
}
