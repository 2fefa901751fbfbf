use std::collections::BTreeMap;

use model::{Block, RankColumn, StageId, StageSlot, Window, median};

/// Ranks whose step totals are gathered at a time, which bounds the extra memory.
const RANK_CHUNK: usize = 256;

/// What a stage would take without the stall under question.
///
/// # Source
/// StageFrontier (2026): the three choices it names.
#[derive(Clone, Debug, PartialEq)]
pub enum Baseline {
    /// Each rank's own median over the window.
    RankMedian,
    /// The median over ranks of the ranks' medians; the default without a reference.
    CohortMedian,
    /// Seconds from a run without the stall; a stage not named keeps its time.
    Reference(BTreeMap<StageId, f64>),
}

/// Baseline seconds of each stage, for every rank or one by one.
#[derive(Clone, Debug, PartialEq)]
pub struct StageBaseline {
    stages: usize,
    /// `[stage]`, or `[stage][rank]` if `per_rank`.
    seconds: Vec<f64>,
    /// Ranks of the window if each has a value of its own.
    per_rank: Option<usize>,
}

impl StageBaseline {
    /// One value a stage, the same for all ranks.
    pub fn uniform(seconds: Vec<f64>) -> Self {
        Self {
            stages: seconds.len(),
            seconds,
            per_rank: None,
        }
    }

    /// Takes the baseline of `window` for `stages`.
    ///
    /// # Shape
    /// `slots[block][boundary]` is an index into `stages`.
    pub fn of_window(
        window: &Window,
        stages: &[StageId],
        slots: &[Vec<usize>],
        baseline: &Baseline,
    ) -> Self {
        if let Baseline::Reference(reference) = baseline {
            let seconds = stages
                .iter()
                // No time of a stage exceeds an infinite baseline: it keeps its own.
                .map(|stage| reference.get(stage).copied().unwrap_or(f64::INFINITY))
                .collect();
            return Self::uniform(seconds);
        }
        let ranks = window.ranks.len();
        let mut medians = vec![0.0; stages.len() * ranks];
        for first in (0..ranks).step_by(RANK_CHUNK) {
            let chunk = first..ranks.min(first + RANK_CHUNK);
            rank_medians(window, stages.len(), slots, chunk, &mut medians);
        }
        if *baseline == Baseline::RankMedian {
            return Self {
                stages: stages.len(),
                seconds: medians,
                per_rank: Some(ranks),
            };
        }
        Self::uniform(
            medians
                .chunks_mut(ranks.max(1))
                .map(|row| median(row).unwrap_or(0.0))
                .collect(),
        )
    }

    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.stages
    }

    /// The largest of `prefixes` after each rank's total of `stage` was cut to its baseline; the
    /// first of them is that of `first_rank`.
    pub(crate) fn largest_relieved(
        &self,
        StageSlot(stage): StageSlot,
        RankColumn(first_rank): RankColumn,
        prefixes: &[f64],
        totals: &[f64],
    ) -> f64 {
        let mut largest = f64::NEG_INFINITY;
        let pairs = prefixes.iter().zip(totals);
        match self.per_rank {
            None => {
                let base = self.seconds[stage];
                // Not `f64::max`, as in the accounting: each row passes here by default.
                for (prefix, total) in pairs {
                    let value = relieved(*prefix, *total, base);
                    largest = if value > largest { value } else { largest };
                }
            }
            Some(ranks) => {
                // It goes on with the next stage: the zip ends with the chunk.
                let bases = &self.seconds[stage * ranks + first_rank..];
                for ((prefix, total), base) in pairs.zip(bases) {
                    largest = largest.max(relieved(*prefix, *total, *base));
                }
            }
        }
        largest
    }
}

/// A prefix after the `total` in it that one stage took was cut to its baseline.
fn relieved(prefix: f64, total: f64, base: f64) -> f64 {
    // What took less than its baseline is not lengthened to it: a gain is never negative (SF-P8).
    let excess = total - base;
    prefix - if excess > 0.0 { excess } else { 0.0 }
}

/// Medians over the steps of each stage's total, for the ranks in `chunk`.
fn rank_medians(
    window: &Window,
    stages: usize,
    slots: &[Vec<usize>],
    chunk: std::ops::Range<usize>,
    medians: &mut [f64],
) {
    let rows = window.rows();
    let width = chunk.len();
    // [stage][rank][step]: what the median is taken of lies together.
    let mut totals = vec![0.0; stages * width * rows];
    let mut at = 0;
    for (block, slots) in window.blocks.iter().zip(slots) {
        for (_, row) in block.rows() {
            add_stage_totals(block, row, slots, &chunk, |slot, rank, seconds| {
                totals[(slot * width + rank) * rows + at] += seconds;
            });
            at += 1;
        }
    }
    let ranks = window.ranks.len();
    for (index, values) in totals.chunks_mut(rows.max(1)).enumerate() {
        let (slot, rank) = (index / width, index % width);
        medians[slot * ranks + chunk.start + rank] = median(values).unwrap_or(0.0);
    }
}

fn add_stage_totals(
    block: &Block,
    row: &[f64],
    slots: &[usize],
    chunk: &std::ops::Range<usize>,
    mut add: impl FnMut(usize, usize, f64),
) {
    for (durations, slot) in row.chunks_exact(block.ranks).zip(slots) {
        for (rank, seconds) in durations[chunk.clone()].iter().enumerate() {
            add(*slot, rank, *seconds);
        }
    }
}
