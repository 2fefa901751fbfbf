use model::{PassRatios, PassSpread, RankColumn, Removal, SlowdownCause, WhatIf};

use crate::OpKind::{self, BackwardCompute, ForwardCompute};
use crate::PipelineTrace;
use crate::analysis::{heaviest, highest, mean, median};
use crate::trace::TraceCell;

/// Share of the slowdown a cause must explain.
// This and the next four are ours: they separate the three traces that the authors publish.
const REMOVED_SHARE_MIN: f64 = 0.5;
/// Share of the steps in which a faulty rank must be the slowest.
const TOP_SHARE_MIN: f64 = 0.9;
/// Variation of passes of one rank, standard deviation over mean, that makes its input uneven.
const VARIATION_MIN: f64 = 0.1;
/// Correlation of forward and backward passes of the same microbatch, likewise.
const CORRELATION_MIN: f64 = 0.95;
/// Part of the stage's excess that every data-parallel rank must show.
const SHARED_EXCESS_MIN: f64 = 0.5;

/// Names the causes of a slowdown, the first one first; empty if there is too little of it.
pub(crate) fn causes(trace: &PipelineTrace, what_if: &WhatIf) -> Vec<SlowdownCause> {
    let Some(parts) = &what_if.stragglers else {
        return Vec::new();
    };
    let passes = Passes::new(trace);
    let top = top_cells(parts);
    let worst_cell = TraceCell {
        dp_rank: heaviest(&parts.dp_ranks),
        stage: heaviest(&parts.stages),
    };
    let TraceCell { dp_rank, stage } = worst_cell;
    let steps = top.len() as f64;
    let mut causes = Vec::new();
    let top_steps = top.iter().filter(|cell| **cell == worst_cell).count();
    let top_share = top_steps as f64 / steps;
    // One pipeline cannot tell a slow rank from a heavy stage.
    if trace.dp() > 1 && explains(what_if.slowest_ranks.as_ref()) && top_share >= TOP_SHARE_MIN {
        let others = (0..trace.dp()).filter(|other| *other != dp_rank);
        causes.push(SlowdownCause::Rank {
            rank: trace.rank(worst_cell),
            dp_rank: dp_rank as u32,
            stage: stage as u32,
            passes: passes.ratios(
                &[worst_cell],
                &others
                    .map(|dp_rank| TraceCell { dp_rank, stage })
                    .collect::<Vec<_>>(),
            ),
            top_share,
        });
    }
    let spread = passes.spread();
    let mut seen = vec![0usize; trace.dp()];
    for cell in &top {
        seen[cell.dp_rank] += 1;
    }
    // A rank that is always the slowest is slow for another reason than its input.
    let changes = seen
        .iter()
        .all(|count| (*count as f64 / steps) < TOP_SHARE_MIN);
    let varies = spread.forward > VARIATION_MIN && spread.backward > VARIATION_MIN;
    if varies && spread.correlation > CORRELATION_MIN && (changes || trace.dp() == 1) {
        let worst = highest(what_if.simulated_s.iter().copied());
        causes.push(SlowdownCause::Data {
            spread,
            top_dp_ranks: seen.iter().filter(|count| **count > 0).count(),
            worst: (what_if.steps[worst], top[worst].dp_rank as u32),
        });
    }
    // A stage is heavy on every data-parallel rank: what is slow on one of them is that rank's.
    if explains(what_if.slowest_stage.as_ref()) && passes.all_share(stage) {
        let (own, others): (Vec<_>, Vec<_>) = trace.cells().partition(|cell| cell.stage == stage);
        let passes = passes.ratios(&own, &others);
        causes.push(SlowdownCause::Stage {
            stage: stage as u32,
            passes,
        });
    }
    if causes.is_empty() {
        let part = &parts.op_types[heaviest(&parts.op_types)];
        let (op_type, slowdown) = (part.name.clone(), part.slowdown);
        causes.push(SlowdownCause::Unexplained { op_type, slowdown });
    }
    causes
}

fn explains(removal: Option<&Removal>) -> bool {
    removal.is_some_and(|removal| removal.removed_share >= REMOVED_SHARE_MIN)
}

/// The slowest data-parallel rank and stage of each step.
fn top_cells(parts: &model::Attribution) -> Vec<TraceCell> {
    let steps = parts
        .stages
        .first()
        .map_or(0, |part| part.step_slowdowns.len());
    let mut top = Vec::with_capacity(steps);
    for step in 0..steps {
        let [dp_rank, stage] = [&parts.dp_ranks, &parts.stages]
            .map(|parts| highest(parts.iter().map(|part| part.step_slowdowns[step])));
        top.push(TraceCell { dp_rank, stage });
    }
    top
}

/// Durations of passes, by rank.
struct Passes<'a> {
    trace: &'a PipelineTrace,
}

impl<'a> Passes<'a> {
    fn new(trace: &'a PipelineTrace) -> Self {
        Self { trace }
    }

    /// Durations of one operation on one data-parallel rank over the steps.
    fn of(&self, op: usize, RankColumn(dp_rank): RankColumn) -> impl Iterator<Item = f64> {
        self.trace
            .durations(op)
            .iter()
            .copied()
            .skip(dp_rank)
            .step_by(self.trace.dp())
    }

    fn median(&self, direction: OpKind, cells: &[TraceCell]) -> f64 {
        let mut all = Vec::new();
        for cell in cells {
            for op in self.trace.of_kind(direction, cell.stage) {
                all.extend(self.of(op, RankColumn(cell.dp_rank)));
            }
        }
        median(&mut all)
    }

    fn ratios(&self, own: &[TraceCell], others: &[TraceCell]) -> PassRatios {
        let [forward, backward] = [ForwardCompute, BackwardCompute].map(|direction| {
            let usual = self.median(direction, others);
            // Without others nothing is known to differ from them.
            if usual > 0.0 {
                self.median(direction, own) / usual
            } else {
                1.0
            }
        });
        PassRatios { forward, backward }
    }

    /// Whether a stage has more work than the others on every data-parallel rank alike.
    fn all_share(&self, stage: usize) -> bool {
        let (dp, pp) = (self.trace.dp(), self.trace.pp());
        // No other stage to have more work than.
        if pp < 2 {
            return false;
        }
        let mut excess: Vec<f64> = (0..dp)
            .map(|dp_rank| {
                let (own, others): (Vec<_>, Vec<_>) = (0..pp)
                    .map(|stage| TraceCell { dp_rank, stage })
                    .partition(|cell| cell.stage == stage);
                let [own, others] = [own, others].map(|cells| {
                    self.median(ForwardCompute, &cells) + self.median(BackwardCompute, &cells)
                });
                own / others - 1.0
            })
            .collect();
        let least = excess.iter().copied().fold(f64::MAX, f64::min);
        let usual = median(&mut excess);
        usual > PassRatios::ALIKE - 1.0 && least >= SHARED_EXCESS_MIN * usual
    }

    fn spread(&self) -> PassSpread {
        let mut found = [Vec::new(), Vec::new(), Vec::new()];
        for stage in 0..self.trace.pp() {
            let pairs = self.pairs(stage);
            let mut chunks: Vec<i32> = pairs.iter().map(|(chunk, ..)| *chunk).collect();
            chunks.sort_unstable();
            chunks.dedup();
            for chunk in chunks {
                // By chunk: parts of a model that differ in size are no spread of its input.
                for dp_rank in 0..self.trace.dp() {
                    let (mut forward, mut backward) = (Vec::new(), Vec::new());
                    for (_, forward_op, backward_op) in pairs.iter().filter(|pair| pair.0 == chunk)
                    {
                        forward.extend(self.of(*forward_op, RankColumn(dp_rank)));
                        backward.extend(self.of(*backward_op, RankColumn(dp_rank)));
                    }
                    found[0].push(covariance(&forward, &forward).sqrt() / mean(&forward));
                    found[1].push(covariance(&backward, &backward).sqrt() / mean(&backward));
                    found[2].push(correlation(&forward, &backward));
                }
            }
        }
        let [forward, backward, correlation] = found.map(|mut values| {
            // Passes without a time, or a single microbatch, divide zero by zero.
            values.retain(|value| value.is_finite());
            median(&mut values)
        });
        PassSpread {
            forward,
            backward,
            correlation,
        }
    }

    /// Chunk, forward pass and backward pass of each microbatch of a stage.
    fn pairs(&self, stage: usize) -> Vec<(i32, usize, usize)> {
        let mut backward: Vec<usize> = self.trace.of_kind(BackwardCompute, stage).collect();
        // Microbatches come back in another order than they went forward in, where parts of the
        // model interleave.
        backward.sort_by_key(|op| self.key(*op));
        self.trace
            .of_kind(ForwardCompute, stage)
            .filter_map(|op| {
                let key = self.key(op);
                let at = backward
                    .binary_search_by_key(&key, |it| self.key(*it))
                    .ok()?;
                Some((key.0, op, backward[at]))
            })
            .collect()
    }

    /// Chunk and microbatch of a pass.
    fn key(&self, op: usize) -> (i32, i32) {
        let op = &self.trace.ops()[op];
        (op.chunk, op.microbatch)
    }
}

fn covariance(left: &[f64], right: &[f64]) -> f64 {
    let (left_mean, right_mean) = (mean(left), mean(right));
    let sum: f64 = left
        .iter()
        .zip(right)
        .map(|(l, r)| (l - left_mean) * (r - right_mean))
        .sum();
    sum / left.len() as f64
}

/// Pearson's.
fn correlation(left: &[f64], right: &[f64]) -> f64 {
    covariance(left, right) / (covariance(left, left) * covariance(right, right)).sqrt()
}
