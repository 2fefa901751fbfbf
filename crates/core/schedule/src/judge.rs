//! Whether an iteration of a pipeline was held up, and by which blocks.

use std::collections::{BTreeSet, VecDeque};

use crate::lanes::median_s;
use crate::{Graph, Localiser, Plan, ScheduleSettings, SlowBlock};
use model::{BlockPlace, Pass, PipelineBlock};

/// Schedules that are followed side by side, such as training and evaluation.
const MAX_PLANS: usize = 4;
/// Healthy iterations by which it is known what one takes: the latest.
const SPANS_OF: usize = 256;
/// Healthy iterations by which it is known how much their times scatter.
const SCATTER_OF: usize = 32;
/// As many are needed to know that.
const SCATTER_MIN: usize = 5;
/// A slow iteration is further from the usual than so many times the furthest of them. Ours:
/// the published gate alone takes one hiccup of a busy host for a fault.
pub(crate) const SCATTERS: f64 = 3.0;
/// Part of what an iteration lost that its slow blocks must account for. Ours.
const EXPLAINED_SHARE: f64 = 0.5;
/// Part of what slow blocks must have cost that an iteration must really have taken longer, where
/// blocks alone are compared. Ours: what transfers hide costs nothing.
pub(crate) const REAL_SHARE: f64 = 0.25;
/// Iterations for which ranks that did not wait for their input are taken not to do so. Ours.
const AHEAD_FOR: u32 = 16;

/// The ranks of a pipeline, and how its model is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PipelineRanks {
    /// By their place in it.
    pub(crate) ranks: Vec<u32>,
    /// Stages of the model.
    pub(crate) stages: u32,
}

/// What a rank did in an iteration.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankIteration {
    /// Which of the rank's.
    pub(crate) number: u64,
    /// The step of the training loop.
    pub(crate) step: u32,
    pub(crate) began_ns: u64,
    pub(crate) ended_ns: u64,
    /// In the order in which it worked them off.
    pub(crate) blocks: Vec<Done>,
}

/// Which block of a pipeline it is: stage of the model, pass and microbatch.
pub(crate) type PlaceKey = (u32, Pass, u32);

pub(crate) fn key_of_place(place: &BlockPlace) -> PlaceKey {
    (place.stage, place.pass, place.microbatch)
}

/// A block that a rank is done with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) key: PlaceKey,
    pub(crate) began_ns: u64,
    pub(crate) ended_ns: u64,
}

impl Done {
    pub(crate) fn took_s(&self) -> f64 {
        self.ended_ns.saturating_sub(self.began_ns) as f64 * 1e-9
    }
}

impl RankIteration {
    pub(crate) fn has(&self, place: &BlockPlace) -> bool {
        let key = key_of_place(place);
        self.blocks.iter().any(|done| done.key == key)
    }

    pub(crate) fn took_s(&self) -> f64 {
        self.ended_ns.saturating_sub(self.began_ns) as f64 * 1e-9
    }
}

/// An iteration in which blocks took longer than usual, costliest first.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldUp {
    /// The step of the training loop.
    pub step: u32,
    /// What it took, in seconds.
    pub took_s: f64,
    /// What it usually takes.
    pub usual_s: f64,
    /// What it lost to the blocks that held it up.
    pub lost_s: f64,
    /// Ranks and blocks that held it up, none if it is not slow or for another reason.
    pub causes: Vec<(u32, SlowBlock)>,
    /// Those that were slow as well, and nobody had to wait for.
    pub absorbed: Vec<(u32, SlowBlock)>,
}

impl HeldUp {
    /// Seconds by which the blocks that held it up took too long.
    pub(crate) fn excess_s(&self) -> f64 {
        self.causes.iter().map(|(_, slow)| slow.excess_s()).sum()
    }
}

/// By what iterations are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// From the first block of a rank to its last.
    Span,
    /// What the blocks take one after another, as the schedule has it: what transfers take, which
    /// scatters more, is left out.
    Blocks,
}

/// A schedule that was seen.
#[derive(Debug)]
struct Followed {
    localiser: Localiser,
    /// What the latest healthy iterations took, from first to last block.
    spans_s: VecDeque<f64>,
}

/// Compares iterations with those before, on whichever clock.
#[derive(Debug)]
pub(crate) struct Judge {
    settings: ScheduleSettings,
    measure: Measure,
    plans: Vec<Followed>,
    iterations: u64,
    /// Of these, those in which ranks did not wait for their input.
    ahead: u64,
    /// Iterations for which that counts on.
    ahead_for: u32,
}

impl Judge {
    pub(crate) fn new(settings: ScheduleSettings, measure: Measure) -> Self {
        let plans = Vec::new();
        Self {
            settings,
            measure,
            plans,
            iterations: 0,
            ahead: 0,
            ahead_for: 0,
        }
    }

    /// The schedules that were seen.
    pub(crate) fn graphs(&self) -> impl Iterator<Item = &Graph> {
        self.plans.iter().map(|plan| plan.localiser.graph())
    }

    /// Whether ranks did not wait for their input in most iterations: what their blocks take is
    /// then not what work takes.
    pub(crate) fn is_ahead(&self) -> bool {
        self.ahead * 2 > self.iterations
    }

    /// Looks at an iteration of pipelines.
    ///
    /// `of` is what a rank did in it, `took_s` what counts of a block of it, and `late` the rank that
    /// another waited for in a block of a stage of the model which took so many seconds too long.
    pub(crate) fn judge<'a>(
        &mut self,
        pipelines: &[PipelineRanks],
        of: impl Fn(u32) -> Option<&'a RankIteration>,
        took_s: impl Fn(u32, &Done) -> f64,
        late: impl Fn(u32, u32, PipelineBlock, f64) -> Option<u32>,
    ) -> Option<HeldUp> {
        let (plan, pipelines) = alike(pipelines, &of)?;
        let durations_s: Vec<Vec<f64>> = pipelines
            .iter()
            .map(|ranks| {
                blocks_of(ranks, &of)
                    .map(|(rank, done)| took_s(rank, done))
                    .collect()
            })
            .collect();
        let (step, span_s) = span_of(&pipelines, &of)?;
        // By index: `iter_mut().find()` would keep `plans` borrowed where the plan is new.
        let at = self
            .plans
            .iter()
            .position(|known| *known.localiser.graph().plan() == plan);
        let Some(Followed { localiser, spans_s }) = at.and_then(|at| self.plans.get_mut(at)) else {
            // The first of its kind, in which jobs warm up.
            let graph = Graph::new(plan).ok()?;
            if self.plans.len() >= MAX_PLANS {
                self.plans.remove(0);
            }
            let localiser = Localiser::new(graph, &self.settings);
            self.plans.push(Followed {
                localiser,
                spans_s: VecDeque::new(),
            });
            return None;
        };
        self.iterations += 1;
        self.ahead_for = self.ahead_for.saturating_sub(1);
        let (mut begun_ns, mut ended_ns) = (Vec::new(), Vec::new());
        let is_ahead = pipelines.iter().any(|ranks| {
            begun_ns.clear();
            ended_ns.clear();
            for (_, done) in blocks_of(ranks, &of) {
                begun_ns.push(done.began_ns);
                ended_ns.push(done.ended_ns);
            }
            localiser.graph().is_ahead(&begun_ns, &ended_ns)
        });
        if is_ahead {
            self.ahead += 1;
            self.ahead_for = AHEAD_FOR;
        }
        // One iteration that looks as if ranks had waited does not say that blocks are work again.
        if self.ahead_for > 0 {
            return None;
        }
        let took_s = match self.measure {
            Measure::Span => span_s,
            Measure::Blocks => localiser.makespan_s(&durations_s),
        };
        let slow = stands_out(localiser, took_s);
        let found = localiser.judge(took_s, &durations_s);
        let usual_s = median_s(spans_s.iter().copied()).unwrap_or(0.0);
        let saved_s = if slow {
            localiser.saved_s(&found, &durations_s)
        } else {
            0.0
        };
        // Slow for another reason, as a link, is what would hardly have been less so without them.
        let is_real = self.measure == Measure::Span || span_s - usual_s >= REAL_SHARE * saved_s;
        let held_up = slow && saved_s >= EXPLAINED_SHARE * found.lost_s && is_real;
        // Judged before it is learnt: it must not be compared with itself.
        let is_usual = !localiser.is_slow(took_s);
        localiser.learn(took_s, &durations_s, is_usual);
        if is_usual {
            spans_s.push_back(span_s);
            if spans_s.len() > SPANS_OF {
                spans_s.pop_front();
            }
        }
        // What would have been noticed, had anybody waited for it.
        let notable_s = usual_s / self.settings.performance_gate - usual_s;
        let mut absorbed = found.absorbed;
        absorbed.retain(|slow| slow.excess_s() > notable_s);
        let mut causes = if held_up { found.causes } else { Vec::new() };
        blame_late(&mut causes, &pipelines, late);
        // Several that waited for one rank are now the same block of it.
        let mut seen = BTreeSet::new();
        causes.retain(|slow| seen.insert((slow.pipeline, slow.node)));
        localiser.drop_noise(&mut causes, found.lost_s);
        let held = HeldUp {
            step,
            took_s: span_s,
            usual_s,
            lost_s: saved_s.min(found.lost_s),
            causes: with_ranks(&pipelines, causes),
            absorbed: with_ranks(&pipelines, absorbed),
        };
        // 0 before the first healthy iteration: nothing is known to be longer than usual.
        let silent = usual_s == 0.0 || held.causes.is_empty() && held.absorbed.is_empty();
        (!silent).then_some(held)
    }

    /// Looks at an iteration of pipelines as [`Self::judge`] does, which has looked at it, where it
    /// is known what each block took and what it usually does. No iteration has to be as another.
    pub(crate) fn compare<'a>(
        &self,
        pipelines: &[PipelineRanks],
        of: impl Fn(u32) -> Option<&'a RankIteration>,
        settings: &ScheduleSettings,
        times_s: impl Fn(u32, &Done) -> Option<[f64; 2]>,
    ) -> Option<HeldUp> {
        // Ranks that did not wait for their input worked no blocks.
        if self.ahead_for > 0 {
            return None;
        }
        let (plan, pipelines) = alike(pipelines, &of)?;
        let followed = self
            .plans
            .iter()
            .find(|it| *it.localiser.graph().plan() == plan)?;
        let usual_span_s = median_s(followed.spans_s.iter().copied())?;
        let (step, span_s) = span_of(&pipelines, &of)?;
        let mut localiser = Localiser::new(followed.localiser.graph().clone(), settings);
        let times_s: Vec<Vec<[f64; 2]>> = pipelines
            .iter()
            .map(|ranks| {
                blocks_of(ranks, &of)
                    .map(|(rank, done)| times_s(rank, done))
                    .collect()
            })
            .collect::<Option<_>>()?;
        let [took_s, usual_s] = [0, 1].map(|which| {
            let pipelines = times_s.iter();
            pipelines
                .map(|of_blocks| of_blocks.iter().map(|it| it[which]).collect())
                .collect::<Vec<Vec<f64>>>()
        });
        let [makespan_s, usual_makespan_s] =
            [&took_s, &usual_s].map(|durations_s| localiser.makespan_s(durations_s));
        if settings.passes_gate(makespan_s, usual_makespan_s) {
            return None;
        }
        localiser.learn(usual_makespan_s, &usual_s, true);
        let found = localiser.judge(makespan_s, &took_s);
        let held = HeldUp {
            step,
            took_s: span_s,
            usual_s: usual_span_s,
            lost_s: localiser.saved_s(&found, &took_s).min(found.lost_s),
            causes: with_ranks(&pipelines, found.causes),
            absorbed: Vec::new(),
        };
        (!held.causes.is_empty()).then_some(held)
    }
}

/// The schedule of the first pipeline, and the ranks of all that work by it: what is usual is known
/// by node, and a pipeline that works in another order has other nodes.
fn alike<'a, 'ranks>(
    pipelines: &'ranks [PipelineRanks],
    of: &impl Fn(u32) -> Option<&'a RankIteration>,
) -> Option<(Plan, Vec<&'ranks [u32]>)> {
    let plan = plan_of(&pipelines.first()?.ranks, of)?;
    let alike = pipelines
        .iter()
        .filter(|it| plan_of(&it.ranks, of).is_some_and(|other| other == plan))
        .map(|pipeline| pipeline.ranks.as_slice())
        .collect();
    Some((plan, alike))
}

/// The step, and the longest that a rank was in the iteration, in seconds.
fn span_of<'a>(
    pipelines: &[&[u32]],
    of: &impl Fn(u32) -> Option<&'a RankIteration>,
) -> Option<(u32, f64)> {
    let step = of(*pipelines.first()?.first()?)?.step;
    let ranks = pipelines.iter().copied().flatten();
    let spans_s = ranks
        .filter_map(|rank| of(*rank))
        .map(RankIteration::took_s);
    Some((step, spans_s.fold(0.0, f64::max)))
}

/// The blocks of a pipeline's ranks, one rank after another.
fn blocks_of<'a>(
    ranks: &[u32],
    of: &impl Fn(u32) -> Option<&'a RankIteration>,
) -> impl Iterator<Item = (u32, &'a Done)> {
    ranks
        .iter()
        .filter_map(|rank| Some((*rank, of(*rank)?)))
        .flat_map(|(rank, done)| done.blocks.iter().map(move |block| (rank, block)))
}

/// Blames late ranks for blocks that only waited for them.
fn blame_late(
    causes: &mut [SlowBlock],
    pipelines: &[&[u32]],
    late: impl Fn(u32, u32, PipelineBlock, f64) -> Option<u32>,
) {
    let count = pipelines.first().map_or(1, |ranks| ranks.len() as u32);
    for slow in causes {
        let Some(rank) = rank_of(pipelines, slow) else {
            continue;
        };
        let stage = slow.stage as u32 + slow.block.chunk * count;
        // What is left of others is noise.
        if let Some(late) = late(rank, stage, slow.block, slow.excess_s())
            && let Some(pipeline) = pipelines
                .iter()
                .position(|it| it.get(slow.stage) == Some(&late))
        {
            slow.pipeline = pipeline;
        }
    }
}

fn rank_of(pipelines: &[&[u32]], slow: &SlowBlock) -> Option<u32> {
    pipelines.get(slow.pipeline)?.get(slow.stage).copied()
}

fn with_ranks(pipelines: &[&[u32]], blocks: Vec<SlowBlock>) -> Vec<(u32, SlowBlock)> {
    blocks
        .into_iter()
        .filter_map(|slow| Some((rank_of(pipelines, &slow)?, slow)))
        .collect()
}

/// Whether an iteration took longer than healthy ones scatter.
fn stands_out(localiser: &Localiser, took_s: f64) -> bool {
    let latest_s: Vec<f64> = localiser.healthy_s().take(SCATTER_OF).collect();
    let usual_s = localiser.usual_s();
    let furthest_s = latest_s.iter().copied().fold(usual_s, f64::max) - usual_s;
    localiser.is_slow(took_s)
        && latest_s.len() >= SCATTER_MIN
        && took_s - usual_s > SCATTERS * furthest_s
}

/// The order in which the ranks of a pipeline worked, if its stages lie on them in turn: rank
/// `p` of `P` has the stages `p`, `p + P` and so on. `None` for schedules that fold the model.
fn plan_of<'a>(ranks: &[u32], of: impl Fn(u32) -> Option<&'a RankIteration>) -> Option<Plan> {
    let count = ranks.len() as u32;
    let mut stages = Vec::with_capacity(ranks.len());
    for (rank, at) in ranks.iter().zip(0..) {
        let mut order = Vec::new();
        for done in &of(*rank)?.blocks {
            let (stage, pass, microbatch) = done.key;
            if stage % count != at {
                return None;
            }
            order.push(PipelineBlock {
                pass,
                microbatch,
                chunk: stage / count,
            });
        }
        stages.push(order);
    }
    Some(Plan::observed(stages))
}
