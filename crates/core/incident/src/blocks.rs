//! Ranks whose blocks hold up a pipeline while it runs.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use model::{
    AbsorbedBlock, Action, Claim, Cost, Fact, Finding, HeldUpSteps, JobContext, Observation,
    Origin, PipelineAction, PipelineBlock, PipelineFact, Side, SlowPart, Standstill, StepSpan,
    Subject,
};
use schedule::{HeldUp, SlowBlock};

use crate::IncidentSettings;
use crate::pace::{Seen, pace_of};
use crate::sides::side_of;

/// Part of a delay from which what took it is named.
const NAMED_FROM: f64 = 0.2;
/// Sampled steps that blocks must hold up to be worth a word. Ours.
const SAMPLE_MIN: u64 = 3;
/// Part of what blocks cost in sampled steps that these must really have taken longer. Ours, as in
/// single iterations.
const REAL_SHARE: f64 = 0.25;
/// Standard errors within which it is known by how much steps took longer.
pub(crate) const ERRORS: f64 = 2.0;
/// Struck steps remembered of the same ranks, the latest: enough to tell their pace.
const MAX_STEPS: usize = 512;

/// The steps of a job in which blocks were looked at.
#[derive(Clone, Debug, Default)]
pub struct Looked {
    /// The sampled ones; nothing if all are.
    sampled: Option<Seen>,
    last_step: u64,
}

impl Looked {
    /// None yet, and only steps that are named are.
    pub fn sampled() -> Self {
        Self {
            sampled: Some(Seen::default()),
            last_step: 0,
        }
    }

    /// All up to this one.
    pub fn until(&mut self, step: u32) {
        self.last_step = self.last_step.max(step.into());
    }

    /// These as well, in ascending order.
    pub fn at(&mut self, steps: impl IntoIterator<Item = u32>) {
        for step in steps {
            self.until(step);
            self.sampled
                .iter_mut()
                .for_each(|seen| seen.extend([step.into()]));
        }
    }

    /// Those from one on.
    fn since(&self, first: u64) -> Seen {
        self.sampled
            .clone()
            .unwrap_or_else(|| (first..=self.last_step).into())
    }

    /// How many of a range were.
    fn count(&self, steps: RangeInclusive<u64>) -> u64 {
        let all: Seen = steps.clone().into();
        self.sampled.as_ref().unwrap_or(&all).count(steps)
    }
}

/// Steps in which the same ranks held up their pipelines at the same stage.
#[derive(Clone, Debug, Default)]
pub struct SlowBlocks {
    /// Who.
    pub ranks: Vec<u32>,
    /// Their place in the pipeline.
    pub stage: usize,
    first_step: u64,
    /// The last ones that were struck, ascending.
    steps: VecDeque<u64>,
    /// How many were, and how many were looked at from the first to the last of them: in a long job
    /// neither is remembered step by step.
    struck_steps: u64,
    looked_steps: u64,
    blocks: BTreeMap<PipelineBlock, StruckBlock>,
    lost_s: f64,
    /// The most that one step lost.
    longest_s: f64,
    took_s: f64,
    usual_s: f64,
    /// The sum of the squares of what steps took longer than usual, in square seconds.
    longer_squared: f64,
}

/// A block in all steps in which it was slow.
#[derive(Clone, Debug, Default)]
struct StruckBlock {
    times: usize,
    took_s: f64,
    usual_s: f64,
    excess_s: f64,
    /// The parts of its host, and how often these were known.
    host_s: [f64; 2],
    host_times: usize,
}

impl StruckBlock {
    fn add(&mut self, slow: &SlowBlock) {
        self.times += 1;
        self.took_s += slow.took_s;
        self.usual_s += slow.usual_s;
        self.excess_s += slow.excess_s();
        if let Some([least_s, most_s]) = slow.host_s {
            self.host_times += 1;
            self.host_s[0] += least_s;
            self.host_s[1] += most_s;
        }
    }
}

impl SlowBlocks {
    /// Nothing yet, of ranks at a stage.
    pub fn new(ranks: Vec<u32>, stage: usize) -> Self {
        Self {
            ranks,
            stage,
            ..Self::default()
        }
    }

    /// What it cost so far in the steps that were looked at, in seconds: no more than these took
    /// longer than usual, as far as that is known, as hosts that are late anyway hide a part of it.
    pub fn lost_s(&self) -> f64 {
        let count = self.struck_steps.max(1) as f64;
        let longer_s = self.took_s - self.usual_s;
        let variance = (self.longer_squared / count - (longer_s / count).powi(2)).max(0.0);
        // What is usual is known from about as many steps.
        let error_s = (2.0 * variance * count).sqrt();
        self.lost_s.min((longer_s + ERRORS * error_s).max(0.0))
    }

    /// The last step that was lost to them.
    pub fn last_step(&self) -> Option<u64> {
        self.steps.back().copied()
    }

    /// Whether they held up one of the last steps that were looked at.
    pub fn go_on(&self, looked: &Looked) -> bool {
        self.last_step()
            // One step that happens to be quick does not end it.
            .is_some_and(|last| last.saturating_add(2) >= looked.last_step)
    }

    /// Whether they cost enough to be worth a word, of steps that are a sample of all: what strikes one of
    /// them says nothing of the others, unless it is a stall.
    pub fn is_notable(&self, looked: &Looked, settings: &IncidentSettings) -> bool {
        // If each step is looked at, the gates of the schedule have judged the cost already.
        if self.struck_steps == 0 || looked.sampled.is_none() {
            return true;
        }
        let usual_s = self.usual_s / self.struck_steps as f64;
        let meanwhile_s = usual_s * self.looked_steps as f64;
        let steady_s = settings.steady_share_min * meanwhile_s;
        let stall_s = settings.stall_min_s.max(settings.stall_min_steps * usual_s);
        // What transfers and late hosts hide costs nothing. One step scatters too much to say so.
        let is_real = self.took_s - self.usual_s >= REAL_SHARE * self.lost_s;
        self.struck_steps >= SAMPLE_MIN && self.lost_s() >= steady_s && is_real
            || self.longest_s >= stall_s
    }

    /// Takes a step that lost `lost_s` to these blocks.
    pub fn strike(&mut self, held: &HeldUp, lost_s: f64, blocks: &[SlowBlock], looked: &Looked) {
        let step = u64::from(held.step);
        // Several iterations of one step strike it once.
        if self.last_step().is_none_or(|last| last < step) {
            if self.steps.is_empty() {
                self.first_step = step;
            }
            let unseen_from = self.last_step().map_or(step, |last| last + 1);
            self.looked_steps += looked.count(unseen_from..=step);
            self.struck_steps += 1;
            self.steps.push_back(step);
            if self.steps.len() > MAX_STEPS {
                self.steps.pop_front();
            }
        }
        self.longest_s = self.longest_s.max(lost_s);
        self.lost_s += lost_s;
        self.took_s += held.took_s;
        self.usual_s += held.usual_s;
        self.longer_squared += (held.took_s - held.usual_s).powi(2);
        for slow in blocks {
            self.blocks.entry(slow.block).or_default().add(slow);
        }
    }

    /// Whether it is the ranks' hosts or their devices that are slow, if the devices' clocks say.
    fn side(&self) -> Option<Side> {
        let (mut late_s, mut least_s, mut most_s) = (0.0, 0.0, 0.0);
        for slow in self.blocks.values() {
            // Parts of hosts are summed: where one is not known, the sum is not.
            if slow.host_times < slow.times {
                return None;
            }
            late_s += slow.excess_s;
            least_s += slow.host_s[0];
            most_s += slow.host_s[1];
        }
        side_of(late_s, [least_s, most_s])
    }

    /// The finding about them.
    ///
    /// # Units
    /// `exposed_s` is what all steps took, in seconds.
    pub fn finding(
        &self,
        context: JobContext<'_>,
        id: String,
        settings: &IncidentSettings,
        looked: &Looked,
        exposed_s: f64,
    ) -> Finding {
        let last_step = looked.last_step;
        let (first, last) = (self.first_step, self.last_step().unwrap_or_default());
        let steps: Vec<u64> = self.steps.iter().copied().collect();
        let pace = pace_of(&steps, &looked.since(first), last_step);
        let open = !context.ended && self.go_on(looked);
        // The sample stands for the steps behind its last strike only while the blocks go on.
        let until = if open { last_step } else { last };
        let until = until.max(last);
        let looked_steps = self.looked_steps + looked.count(last + 1..=until);
        // Does not underflow: strikes ascend, and `until` is not before the last.
        let lost_s = self.lost_s() * (until - first + 1) as f64 / looked_steps.max(1) as f64;
        // Scaled up from a sample it may exceed what the steps took.
        let cost_share = lost_s / exposed_s.max(lost_s);
        let (side, part) = (self.side(), self.part());
        let count = self.struck_steps.max(1) as f64;
        let claim = HeldUpSteps {
            ranks: self.ranks.clone(),
            stage: self.stage,
            part: part.clone(),
            side,
            pace,
            steps: StepSpan { first, last, open },
            took_s: self.took_s / count,
            usual_s: self.usual_s / count,
            lost_s: self.lost_s() / count,
            cost_share,
        };
        Finding {
            severity: settings.severity(cost_share),
            open,
            subject: Subject {
                ranks: self.ranks.clone(),
                hosts: context.hosts_of(&self.ranks),
                stage: Some(format!("pipeline stage {}", self.stage)),
                block: Some(part.to_string()),
                side,
                ..Subject::default()
            },
            pace,
            first_step: first,
            last_step: last,
            victims: context.others(&self.ranks),
            cost: Cost::saved_whole(lost_s, cost_share),
            facts: self
                .blocks
                .iter()
                .map(|(block, slow)| fact(*block, slow))
                .collect(),
            actions: vec![Action::InPipeline(PipelineAction::LookAtBlocks {
                ranks: self.ranks.clone(),
                side,
            })],
            ..Finding::new(Origin::Blocks, id, Claim::HeldUpSteps(Box::new(claim)))
        }
    }

    /// The one block, or the passes of several; what had little part in it is not named.
    fn part(&self) -> SlowPart {
        let mut of_blocks = BTreeMap::new();
        let mut of_passes = BTreeMap::new();
        for (block, slow) in &self.blocks {
            of_blocks.insert(block, slow.excess_s);
            *of_passes.entry(block.pass).or_insert(0.0) += slow.excess_s;
        }
        let all_s: f64 = of_blocks.values().sum();
        let least_s = all_s * NAMED_FROM;
        let is_alone = |excess_s: f64| all_s - excess_s < least_s;
        if let Some((block, _)) = of_blocks.iter().find(|(_, own_s)| is_alone(**own_s)) {
            return SlowPart::Block(**block);
        }
        of_passes.retain(|_, excess_s| *excess_s >= least_s);
        SlowPart::Passes(of_passes.into_keys().collect())
    }
}

fn fact(block: PipelineBlock, slow: &StruckBlock) -> Fact {
    let what = PipelineFact::CriticalBlock {
        block,
        took_s: slow.took_s / slow.times as f64,
        usual_s: slow.usual_s / slow.times as f64,
        times: slow.times,
    };
    Observation::Pipeline(Box::new(what)).into()
}

/// Where a pipeline stands still, as a fact.
pub fn halted(halt: Standstill) -> Fact {
    Observation::Pipeline(Box::new(PipelineFact::Standstill(halt))).into()
}

/// Whether ranks are late for their own blocks, or wait for other stages: what they worked in
/// blocks beside what the same stages of other pipelines did, in seconds.
pub fn own_blocks(ranks: &[u32], own_s: f64, copies_s: f64) -> Fact {
    let what = PipelineFact::OwnBlocks {
        ranks: ranks.to_vec(),
        own_s,
        copies_s,
    };
    Observation::Pipeline(Box::new(what)).into()
}

/// The slow blocks that the pipeline's slack took.
pub fn absorbed(held: &HeldUp) -> impl Iterator<Item = AbsorbedBlock> {
    let absorbed = held.absorbed.iter();
    absorbed.map(|(rank, slow)| slow.absorbed(held.step.into(), Some(*rank)))
}

#[cfg(test)]
mod tests {
    use model::Pass;

    use super::*;

    /// What is named of blocks that took so many seconds too long.
    fn named(blocks: &[(Pass, u32, f64)]) -> String {
        let slow: Vec<SlowBlock> = blocks.iter().map(slow).collect();
        let mut incident = SlowBlocks::new(vec![1], 1);
        incident.strike(&held(12), 0.3, &slow, &Looked::default());
        incident.part().to_string()
    }

    fn slow(&(pass, microbatch, excess_s): &(Pass, u32, f64)) -> SlowBlock {
        SlowBlock {
            pipeline: 0,
            stage: 1,
            block: PipelineBlock {
                pass,
                microbatch,
                chunk: 0,
            },
            node: 0,
            took_s: 0.02 + excess_s,
            usual_s: 0.02,
            slack_s: 0.0,
            host_s: None,
        }
    }

    fn held(step: u32) -> HeldUp {
        let (causes, absorbed) = (Vec::new(), Vec::new());
        HeldUp {
            step,
            took_s: 0.6,
            usual_s: 0.2,
            lost_s: 0.4,
            causes,
            absorbed,
        }
    }

    #[test]
    fn what_had_little_part_in_a_delay_is_not_named() {
        use Pass::{Backward, Forward};
        let one = [(Backward, 3, 0.3)];
        assert_eq!(named(&one), "backward of microbatch 3");
        let busy = [(Forward, 6, 0.02), (Backward, 3, 0.3), (Backward, 4, 0.04)];
        assert_eq!(named(&busy), "backward of microbatch 3");
        let two = [(Forward, 6, 0.02), (Backward, 3, 0.3), (Backward, 4, 0.3)];
        assert_eq!(named(&two), "backward");
        let both = [(Forward, 6, 0.2), (Backward, 3, 0.3), (Backward, 4, 0.3)];
        assert_eq!(named(&both), "forward and backward");
    }

    /// What a fault is found to be that strikes each of so many steps, which are looked at if `is_looked`
    /// says so, `later` steps after it ended.
    fn found(steps: u32, is_looked: impl Fn(u32) -> bool, later: u32) -> (SlowBlocks, Finding) {
        let mut incident = SlowBlocks::new(vec![1], 1);
        let mut looked = Looked::sampled();
        for step in (0..steps).filter(|step| is_looked(*step)) {
            looked.at([step]);
            let blocks = [slow(&(Pass::Backward, 3, 0.3))];
            incident.strike(&held(step), 0.3, &blocks, &looked);
        }
        looked.at((steps..steps + later).filter(|step| is_looked(*step)));
        let (names, hosts, seen) = Default::default();
        let context = JobContext::new(&names, &hosts, &seen);
        let settings = IncidentSettings::default();
        let finding = incident.finding(context, "s1".to_owned(), &settings, &looked, 1e6);
        (incident, finding)
    }

    #[test]
    fn blocks_cost_no_more_than_their_steps_took_longer() {
        let slow = [slow(&(Pass::Backward, 3, 0.3))];
        let lost_s = |took_s: [f64; 4]| {
            let mut blocks = SlowBlocks::new(vec![1], 1);
            for (step, took_s) in (1..).zip(took_s) {
                let held = HeldUp {
                    took_s,
                    ..held(step)
                };
                blocks.strike(&held, 0.15, &slow, &Looked::default());
            }
            blocks.lost_s()
        };
        // The schedule says 0.15 s of each, and they took 0.1 s longer than 0.2 s.
        assert!((lost_s([0.3; 4]) - 0.4).abs() < 1e-9);
        // Where they scatter so, it is not known that they did not take 0.15 s longer.
        assert!((lost_s([0.2, 0.4, 0.2, 0.4]) - 0.6).abs() < 1e-9);
    }

    #[test]
    fn a_stage_that_is_slow_for_ever_takes_no_more_memory_and_costs_all_of_it() {
        let (incident, finding) = found(100_000, |_| true, 0);
        assert_eq!(incident.steps.len(), MAX_STEPS);
        assert_eq!((finding.first_step, finding.last_step), (0, 99_999));
        assert_eq!(finding.pace, model::Pace::Steady);
        assert!((finding.cost.exposed_s - 30_000.0).abs() < 1e-3);
    }

    #[test]
    fn what_sampled_steps_cost_stays_the_same_when_they_are_forgotten() {
        let is_sampled = |step| step % 10 == 0;
        let (_, finding) = found(191, is_sampled, 0);
        let (_, long_ago) = found(191, is_sampled, 100_000);
        // 20 of 191 were looked at.
        assert!((finding.cost.exposed_s - 0.3 * 191.0).abs() < 1e-6);
        assert_eq!(long_ago.cost.exposed_s, finding.cost.exposed_s);
    }
}
