use model::{AbsorbedBlock, PipelineBlock};
use std::collections::{BTreeMap, VecDeque};

use crate::lanes::median_s;
use crate::{Expectation, Graph, ScheduleSettings, Timing};

/// Healthy iterations by which it is known what one usually takes: the latest.
const USUAL_OF: usize = 256;

/// Follows the iterations of a job and says which blocks made one slow.
///
/// # Source
/// MegaTrace (2026), slowdown localisation: performance gate, straggler groups, critical
/// path, expectation; docs/math/schedule.md, which corrects the listing's rule for straggler
/// groups.
#[derive(Clone, Debug)]
pub struct Localiser {
    settings: ScheduleSettings,
    graph: Graph,
    expectation: Expectation,
    /// What the latest healthy iterations took, in seconds.
    healthy_s: VecDeque<f64>,
    usual_s: f64,
    timing: Timing,
}

/// What was found in a slow iteration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slowdown {
    /// What the iteration took longer than usual, in seconds.
    pub lost_s: f64,
    /// What each of its pipelines takes by the graph, in seconds; 0 for those that are not among
    /// the slowest.
    pub makespans_s: Vec<f64>,
    /// Blocks that held it up, costliest first.
    pub causes: Vec<SlowBlock>,
    /// Blocks that were slow as well, which the pipeline's bubble absorbed.
    pub absorbed: Vec<SlowBlock>,
}

/// A block that took longer than expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowBlock {
    /// Which of the pipelines.
    pub pipeline: usize,
    /// Which stage of it.
    pub stage: usize,
    /// Which of the stage's blocks.
    pub block: PipelineBlock,
    /// Its node in the graph.
    pub node: usize,
    /// What it took, in seconds.
    pub took_s: f64,
    /// What it usually takes.
    pub usual_s: f64,
    /// How much longer it could have taken without anybody noticing.
    pub slack_s: f64,
    /// Seconds of [`SlowBlock::excess_s`] for which its host may have held its device up, at least
    /// and at most; `None` by the host's clock.
    pub host_s: Option<[f64; 2]>,
}

impl SlowBlock {
    /// How much too long it took, in seconds.
    pub fn excess_s(&self) -> f64 {
        self.took_s - self.usual_s
    }

    /// The same where it held nobody up, in a step or iteration.
    pub fn absorbed(&self, step: u64, rank: Option<u32>) -> AbsorbedBlock {
        let Self { stage, block, .. } = *self;
        let excess_s = self.excess_s();
        // As it was before the delay: what that used up, and what it left.
        let slack_s = excess_s + self.slack_s;
        AbsorbedBlock {
            step,
            rank,
            stage,
            block,
            excess_s,
            slack_s,
        }
    }
}

impl Localiser {
    /// Nothing was seen yet.
    pub fn new(graph: Graph, settings: &ScheduleSettings) -> Self {
        Self {
            expectation: Expectation::new(graph.nodes(), settings),
            settings: settings.clone(),
            graph,
            healthy_s: VecDeque::new(),
            usual_s: 0.0,
            timing: Timing::default(),
        }
    }

    /// The schedule's graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// What an iteration usually takes, in seconds; 0 before one was seen. It is the median where
    /// the paper has a mean: a job may take several iterations to warm up.
    pub fn usual_s(&self) -> f64 {
        self.usual_s
    }

    /// What the latest healthy iterations took, in seconds, the last one first. Those are left out
    /// that were taken for healthy before it was known what is usual.
    pub(crate) fn healthy_s(&self) -> impl Iterator<Item = f64> {
        self.healthy_s
            .iter()
            .rev()
            .copied()
            .filter(|took_s| self.passes(*took_s))
    }

    /// Whether an iteration is slow enough to be looked at.
    pub fn is_slow(&self, took_s: f64) -> bool {
        self.healthy_s.len() >= self.settings.min_iterations as usize && !self.passes(took_s)
    }

    fn passes(&self, took_s: f64) -> bool {
        self.settings.passes_gate(took_s, self.usual_s)
    }

    /// Takes an iteration as one that is as usual, or not. The first, in which jobs warm up, is to
    /// be left out by the caller.
    ///
    /// # Shape
    /// `pipelines[pipeline][node]`; a block that was not seen is not finite.
    pub fn learn(&mut self, took_s: f64, pipelines: &[Vec<f64>], passed_gate: bool) {
        for durations_s in pipelines {
            self.expectation.learn(durations_s, passed_gate);
        }
        if passed_gate {
            self.healthy_s.push_back(took_s);
            if self.healthy_s.len() > USUAL_OF {
                self.healthy_s.pop_front();
            }
            self.usual_s = median_s(self.healthy_s.iter().copied()).unwrap_or(0.0);
        }
    }

    /// Says which blocks made an iteration slow.
    pub fn judge(&mut self, took_s: f64, pipelines: &[Vec<f64>]) -> Slowdown {
        let lost_s = took_s - self.usual_s;
        let mut found = Slowdown {
            lost_s,
            ..Slowdown::default()
        };
        let sums: Vec<f64> = pipelines
            .iter()
            // A single block that was not seen would make the sum NaN.
            .map(|durations| durations.iter().filter(|it| it.is_finite()).sum())
            .collect();
        let longest = sums.iter().copied().fold(0.0, f64::max);
        let mut durations_s = Vec::new();
        found.makespans_s = vec![0.0; pipelines.len()];
        for (pipeline, seen_s) in pipelines.iter().enumerate() {
            // Pipelines wait for one another: what holds up one that is not among the slowest
            // costs nothing.
            if sums[pipeline] < longest * (1.0 - self.settings.straggler_share) {
                continue;
            }
            self.fill(seen_s, &mut durations_s);
            self.graph.time(&durations_s, &mut self.timing);
            found.makespans_s[pipeline] = self.timing.makespan_s;
            for (node, took_s) in durations_s.iter().copied().enumerate() {
                if !self.expectation.is_slow(node, took_s) {
                    continue;
                }
                let (stage, block) = self.graph.block(node);
                let (usual_s, slack_s) = (self.usual_of(node), self.timing.slack_s[node]);
                let slow = SlowBlock {
                    pipeline,
                    stage,
                    block,
                    node,
                    took_s,
                    usual_s,
                    slack_s,
                    host_s: None,
                };
                if self.timing.is_critical(node) {
                    found.causes.push(slow);
                } else {
                    found.absorbed.push(slow);
                }
            }
        }
        self.drop_noise(&mut found.causes, lost_s);
        for slow in [&mut found.causes, &mut found.absorbed] {
            slow.sort_by(|a, b| b.excess_s().total_cmp(&a.excess_s()));
        }
        found
    }

    /// Leaves out stages of which a few noisy blocks took too long: together too little to be a cause
    /// of so many lost seconds.
    pub(crate) fn drop_noise(&self, causes: &mut Vec<SlowBlock>, lost_s: f64) {
        let mut stages: BTreeMap<(usize, usize), f64> = BTreeMap::new();
        for slow in &*causes {
            *stages.entry((slow.pipeline, slow.stage)).or_default() += slow.excess_s();
        }
        // Nor does a huge cause beside it make one small that alone would be seen.
        let least_s = lost_s.min(self.usual_s) * self.settings.cause_share_min;
        causes.retain(|slow| stages[&(slow.pipeline, slow.stage)] >= least_s);
    }

    /// What the slowest of the pipelines takes by the graph, in seconds.
    pub(crate) fn makespan_s(&mut self, pipelines: &[Vec<f64>]) -> f64 {
        let (mut durations_s, mut longest_s) = (Vec::new(), 0.0f64);
        for seen_s in pipelines {
            self.fill(seen_s, &mut durations_s);
            self.graph.time(&durations_s, &mut self.timing);
            longest_s = longest_s.max(self.timing.makespan_s);
        }
        longest_s
    }

    /// How much sooner the slowest pipelines of an iteration would have been done, in seconds, had
    /// the causes found in it taken what they usually take.
    pub fn saved_s(&mut self, found: &Slowdown, pipelines: &[Vec<f64>]) -> f64 {
        let mut causes = found.causes.clone();
        causes.sort_by_key(|slow| slow.pipeline);
        let mut makespans_s = found.makespans_s.clone();
        let mut durations_s = Vec::new();
        for causes in causes.chunk_by(|a, b| a.pipeline == b.pipeline) {
            let pipeline = causes[0].pipeline;
            self.fill(&pipelines[pipeline], &mut durations_s);
            // All at once: what slack one delay leaves to another makes savings of single blocks
            // differ from what they save together (MT-P4).
            for slow in causes {
                durations_s[slow.node] = slow.usual_s;
            }
            self.graph.time(&durations_s, &mut self.timing);
            makespans_s[pipeline] = self.timing.makespan_s;
        }
        let [took_s, without_s] = [&found.makespans_s, &makespans_s]
            .map(|makespans_s| makespans_s.iter().copied().fold(0.0, f64::max));
        took_s - without_s
    }

    /// What blocks took; those that were not seen take what they usually take.
    fn fill(&self, seen_s: &[f64], durations_s: &mut Vec<f64>) {
        durations_s.clear();
        durations_s.extend(seen_s.iter().enumerate().map(|(node, seen_s)| {
            if seen_s.is_finite() {
                *seen_s
            } else {
                self.usual_of(node)
            }
        }));
    }

    fn usual_of(&self, node: usize) -> f64 {
        self.expectation.of(node).unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Scheme;

    proptest! {
        /// What a delay costs beyond its slack is what would have been saved without it.
        #[test]
        fn what_is_saved_is_what_a_delay_costs(
            at in 0..64_usize, delay_s in 0.05..3.0_f64, pipelines in 1..4_usize,
        ) {
            let graph = Graph::new(Scheme::OneForwardOneBackward.plan(4, 8)).unwrap();
            let usual_s = vec![0.02; graph.nodes()];
            let mut timing = Timing::default();
            graph.time(&usual_s, &mut timing);
            let cost_s = (delay_s - timing.slack_s[at]).max(0.0);
            let mut localiser = Localiser::new(graph, &ScheduleSettings::default());
            localiser.learn(timing.makespan_s, std::slice::from_ref(&usual_s), true);
            let mut seen_s = vec![usual_s; pipelines];
            seen_s[0][at] += delay_s;
            let took_s = timing.makespan_s + cost_s;
            let found = localiser.judge(took_s, &seen_s);
            let saved_s = localiser.saved_s(&found, &seen_s);
            prop_assert!((saved_s - cost_s).abs() < 1e-9, "{saved_s} {cost_s}");
            prop_assert_eq!(found.causes.is_empty(), cost_s == 0.0);
        }
    }
}
