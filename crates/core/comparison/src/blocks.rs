//! What steps of a run took, in blocks of neighbours.

use std::collections::BTreeMap;

use model::Verdict;
use verdict::Job;

/// Blocks each run needs: the test's approximation holds from there.
pub(crate) const MIN_BLOCKS: usize = 8;
/// Blocks a run is divided into at most: enough that one odd block does not matter, and few
/// enough that neighbours are not all alike.
const MAX_BLOCKS: usize = 32;
/// Steps of a block, where a run has enough: what strikes every fifth step shall strike most
/// blocks, and from 320 steps on what strikes every tenth.
const BLOCK_STEPS: u64 = 5;
/// No step takes 30 years: numbers beyond are no times.
const LONGEST_S: f64 = 1e9;
/// The shares of a window sum to 1, but for rounding.
const LARGEST_SHARE: f64 = 1.001;

/// One run of a job: its verdict and what its steps took.
#[derive(Clone, Debug)]
pub struct Run {
    pub(crate) verdict: Verdict,
    /// Ranks whose lags are known.
    pub(crate) ranks: Vec<u32>,
    pub(crate) blocks: Vec<StepBlock>,
}

/// Neighbouring steps, and what they took together; stages in the order of the verdict's.
///
/// Sums, not medians, of the steps: what strikes every tenth step must show in most blocks.
/// What strikes once shows in one block, which a test by ranks does not mind.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StepBlock {
    pub(crate) steps: u64,
    /// Exposed seconds of each stage.
    stage_s: Vec<f64>,
    /// Seconds the ranks came late to the end of each stage, rank by rank.
    lag_s: Vec<Vec<f64>>,
}

impl Run {
    /// The run of a job that was analysed here: every analysed step counts.
    pub fn of_job(job: &Job) -> Self {
        let verdict = job.verdict();
        let (series, names) = (job.series(), job.names());
        let mut samples = Vec::new();
        for column in series.columns() {
            let mut block = StepBlock::new(column.steps, verdict.stages.len());
            for (stage, seconds) in &column.advance_s {
                let name = names.name(*stage);
                if let Some(at) = verdict.stages.iter().position(|it| it.name == name) {
                    block.stage_s[at] = *seconds;
                    let lags = column.lag_s.get(stage).into_iter().flatten();
                    block.lag_s[at] = lags.map(|lag| f64::from(*lag)).collect();
                }
            }
            samples.push(block);
        }
        Self {
            ranks: series.ranks().to_vec(),
            blocks: divide(&samples),
            verdict,
        }
    }

    /// The run a verdict is about: its windows count, and lags of ranks are not known.
    pub fn of_verdict(verdict: Verdict) -> Self {
        // Those of ranks of other roles begin with the same step: their mean counts.
        let mut samples: BTreeMap<u64, StepBlock> = BTreeMap::new();
        for window in &verdict.windows {
            // The verdict is read from a file, which may say anything.
            if window.steps == 0
                || !(0.0..=LONGEST_S).contains(&window.step_s)
                || !window
                    .shares
                    .iter()
                    .all(|it| (0.0..=LARGEST_SHARE).contains(it))
            {
                continue;
            }
            let mut block = StepBlock::new(window.steps, verdict.stages.len());
            for (sum, share) in block.stage_s.iter_mut().zip(&window.shares) {
                // A window has shares of a mean step; blocks are joined by adding, so they need
                // seconds.
                *sum = share * window.step_s * window.steps as f64;
            }
            samples.entry(window.first_step).or_default().absorb(&block);
        }
        let samples: Vec<StepBlock> = samples.into_values().collect();
        Self {
            verdict,
            // A verdict has no lags by rank and step. No rank is compared, rather than all as
            // unchanged.
            ranks: Vec::new(),
            blocks: divide(&samples),
        }
    }

    /// Mean exposed seconds of a step, block by block.
    pub(crate) fn steps_s(&self) -> Vec<f64> {
        self.each(|block| block.stage_s.iter().sum())
    }

    /// Mean exposed seconds of a stage in a step, block by block.
    pub(crate) fn stage_s(&self, stage: &str) -> Vec<f64> {
        let at = self
            .verdict
            .stages
            .iter()
            .position(|known| known.name == stage);
        self.each(|block| {
            // A stage that only the other run has takes no time in this one.
            at.and_then(|at| block.stage_s.get(at))
                .copied()
                .unwrap_or(0.0)
        })
    }

    /// Mean lag of a rank at the end of a stage, block by block.
    pub(crate) fn lag_s(&self, stage: &str, rank: u32) -> Vec<f64> {
        let at = self
            .verdict
            .stages
            .iter()
            .position(|known| known.name == stage);
        let rank = self.ranks.binary_search(&rank).ok();
        self.each(|block| {
            let lags = at.and_then(|at| block.lag_s.get(at));
            rank.and_then(|rank| lags?.get(rank))
                .copied()
                .unwrap_or(0.0)
        })
    }

    fn each(&self, sum: impl Fn(&StepBlock) -> f64) -> Vec<f64> {
        self.blocks
            .iter()
            // By step: blocks of one run need not hold as many of them.
            .map(|block| sum(block) / block.steps as f64)
            .collect()
    }
}

impl StepBlock {
    fn new(steps: u64, stages: usize) -> Self {
        Self {
            steps,
            stage_s: vec![0.0; stages],
            lag_s: vec![Vec::new(); stages],
        }
    }

    fn absorb(&mut self, other: &Self) {
        // Documents may have any numbers.
        self.steps = self.steps.saturating_add(other.steps);
        add(&mut self.stage_s, &other.stage_s);
        // The block that `divide` begins with is empty and knows of no stages.
        let stages = self.lag_s.len().max(other.lag_s.len());
        self.lag_s.resize(stages, Vec::new());
        for (sums, lags) in self.lag_s.iter_mut().zip(&other.lag_s) {
            add(sums, lags);
        }
    }
}

fn add(sums: &mut Vec<f64>, values: &[f64]) {
    sums.resize(values.len().max(sums.len()), 0.0);
    sums.iter_mut()
        .zip(values)
        .for_each(|(sum, value)| *sum += value);
}

/// Joins neighbours until there are few enough.
fn divide(samples: &[StepBlock]) -> Vec<StepBlock> {
    let steps = samples.iter().map(|sample| sample.steps);
    let steps = steps.fold(0, u64::saturating_add);
    let count = usize::try_from(steps / BLOCK_STEPS).unwrap_or(MAX_BLOCKS);
    // No block may be empty: what it takes is divided by its steps.
    let count = count.clamp(MIN_BLOCKS, MAX_BLOCKS).min(samples.len());
    let mut blocks = vec![StepBlock::default(); count];
    for (at, sample) in samples.iter().enumerate() {
        // A sample is never torn, and those of a block are neighbours in time: what makes them
        // alike is corrected for.
        blocks[at * count / samples.len()].absorb(sample);
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_a_document_may_have_any_number_of_steps() {
        let sample = StepBlock::new(u64::MAX, 1);
        let mut both = sample.clone();
        both.absorb(&sample);
        assert_eq!(both.steps, u64::MAX);
        assert_eq!(divide(&[sample.clone(), sample]).len(), 2);
    }
}
