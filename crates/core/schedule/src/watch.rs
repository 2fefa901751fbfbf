use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;

use crate::meetings::Meetings;
use crate::own_work::OwnWork;
use crate::{Block, Graph, Localiser, Pass, Plan, ScheduleSettings, SlowBlock};

/// Iterations of a rank that wait for other ranks' at most; older ones are forgotten.
const WAITING: usize = 64;
/// Blocks of one iteration that are kept; no schedule has more.
const MAX_BLOCKS: usize = 1 << 13;
/// Schedules that are followed side by side, such as training and evaluation.
const MAX_PLANS: usize = 4;
/// Healthy iterations by which it is known how much their times scatter.
const SCATTER_OF: usize = 32;
/// As many are needed to know that.
const SCATTER_MIN: usize = 5;
/// A slow iteration is further from the usual than so many times the furthest of them. Ours:
/// the published gate alone takes one hiccup of a busy host for a fault.
const SCATTERS: f64 = 3.0;

/// Part of what an iteration lost that its slow blocks must account for. Ours.
const EXPLAINED_SHARE: f64 = 0.5;

/// A block as the rank that works on it names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// What it computes.
    pub pass: Pass,
    /// Which stage of the model.
    pub stage: u32,
    /// Which microbatch.
    pub microbatch: u32,
    /// Stages of the model.
    pub stages: u32,
    /// The lowest rank of the pipeline.
    pub first_rank: u32,
}

/// Follows the pipelines of a job by the blocks its ranks begin and end.
///
/// An iteration is what a rank works on until a block comes again. Times of different ranks are
/// not compared: an iteration's length is the longest that one rank was in it.
///
/// # Properties
/// Memory is bounded by ranks times blocks of an iteration.
#[derive(Debug)]
pub struct Watch {
    settings: ScheduleSettings,
    ranks: BTreeMap<u32, RankBlocks>,
    /// Schedules that were seen.
    plans: Vec<Localiser>,
    /// The next iteration to be looked at.
    next: u64,
    /// Ranks that have not finished it.
    behind: usize,
    work: OwnWork,
    meetings: Meetings,
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

/// The block at which a rank of a pipeline stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standstill {
    /// The rank that is to work on it.
    pub rank: u32,
    /// Its place in the pipeline.
    pub stage: usize,
    /// The block.
    pub block: Block,
    /// What is known of the rank.
    pub standing: Standing,
}

/// What a rank does that stands still. What comes first explains what comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It has begun the block.
    Works,
    /// It has finished the block and does not send its output.
    Owes,
    /// It could begin the block, and asks for no input.
    Idles,
    /// It could begin the block, but for the input that it has asked for.
    Receives,
    /// The input of the block cannot be there yet.
    Waits,
}

/// Those of ranks that stand still whom the others wait for, as far as can be told.
///
/// # Source
/// MegaTrace (2026), halt point: the first unfinished block whose predecessors are finished; SPEC.md
/// §3.7. What is sent and asked for tells a rank that never sent from the one that it never sent to.
pub fn holding_up(mut ranks: Vec<Standstill>) -> Vec<Standstill> {
    let first = ranks.iter().map(|it| it.standing).min();
    ranks.retain(|it| Some(it.standing) == first && it.standing < Standing::Waits);
    ranks
}

/// What a rank worked in blocks, beside the ranks at its place in other pipelines.
#[derive(Clone, Debug, PartialEq)]
pub struct Worked {
    /// The rank's own, in seconds.
    pub own_s: f64,
    /// The median of the others'.
    pub copies_s: f64,
    /// The ranks of its pipeline.
    pub pipeline: Vec<u32>,
}

/// What was seen of one pipeline.
#[derive(Debug, Default)]
struct Members {
    /// Its ranks, by the first stage that each holds.
    places: BTreeMap<u32, u32>,
    /// Stages that were worked on.
    seen: BTreeSet<u32>,
    /// Stages of its model.
    stages: u32,
}

#[derive(Debug, Default)]
struct RankBlocks {
    first_rank: u32,
    stages: u32,
    iterations: u64,
    /// Blocks of an iteration, as the last whole one had them.
    usual_blocks: usize,
    current: Iteration,
    done: VecDeque<Iteration>,
    /// Whether it has asked for input since its last block.
    receives: bool,
    /// Whether its sends are seen.
    sends: bool,
    /// Whether it has sent nothing since its last block, though they are.
    owes: bool,
}

#[derive(Clone, Debug, Default)]
struct Iteration {
    number: u64,
    step: u32,
    began_ns: u64,
    ended_ns: u64,
    /// Stage of the model, pass and microbatch of each block, and what it took.
    blocks: Vec<(u32, Pass, u32, f64)>,
    open: Option<(Place, u64)>,
}

impl Iteration {
    fn has(&self, place: &Place) -> bool {
        let same = |(stage, pass, microbatch, _): &(u32, Pass, u32, f64)| {
            (*stage, *pass, *microbatch) == (place.stage, place.pass, place.microbatch)
        };
        self.blocks.iter().any(same)
    }

    fn took_s(&self) -> f64 {
        self.ended_ns.saturating_sub(self.began_ns) as f64 * 1e-9
    }
}

impl Watch {
    /// Nothing was seen yet.
    pub fn new(settings: ScheduleSettings) -> Self {
        Self {
            settings,
            ranks: BTreeMap::new(),
            plans: Vec::new(),
            next: 0,
            behind: 0,
            work: OwnWork::default(),
            meetings: Meetings::default(),
        }
    }

    /// A rank begins a block.
    ///
    /// # Units
    /// `at_ns` is the rank's own clock.
    pub fn begin(&mut self, rank: u32, at_ns: u64, place: Place) -> Option<HeldUp> {
        let behind = &mut self.behind;
        let seen = self.ranks.entry(rank).or_insert_with(|| {
            *behind += 1;
            RankBlocks::default()
        });
        (seen.first_rank, seen.stages) = (place.first_rank, place.stages);
        let done = seen.current.has(&place).then(|| seen.turn());
        if seen.current.blocks.is_empty() {
            seen.current.began_ns = at_ns;
        }
        seen.current.open = Some((place, at_ns));
        seen.receives = false;
        self.look(done?)
    }

    /// Whether any were seen.
    pub fn has_blocks(&self) -> bool {
        !self.ranks.is_empty()
    }

    /// A group has so many members.
    pub fn join(&mut self, group: u32, members: usize) {
        self.meetings.join(group, members);
    }

    /// A rank enters a collective of a group. Those that ranks of a stage enter inside a block say
    /// which of them the others wait for.
    ///
    /// # Units
    /// `at_ns` is a clock that the group's members share.
    pub fn meet(&mut self, rank: u32, group: u32, number: u64, at_ns: u64) {
        let Some(seen) = self.ranks.get(&rank) else { return };
        if let Some((place, _)) = seen.current.open {
            let Place { stage, pass, microbatch, .. } = place;
            let block = (seen.current.number, stage, pass, microbatch, rank);
            self.meetings.enter(group, number, at_ns, block);
        }
    }

    /// A rank hands its output over.
    pub fn send(&mut self, rank: u32) {
        if let Some(seen) = self.ranks.get_mut(&rank) {
            (seen.sends, seen.owes) = (true, false);
        }
    }

    /// A rank asks for another's output.
    pub fn receive(&mut self, rank: u32) {
        if let Some(seen) = self.ranks.get_mut(&rank) {
            seen.receives = true;
        }
    }

    /// It ends the block.
    pub fn end(
        &mut self,
        rank: u32,
        step: u32,
        at_ns: u64,
        place: Place,
    ) -> Option<HeldUp> {
        let seen = self.ranks.get_mut(&rank)?;
        let (begun, began_ns) = seen.current.open.take()?;
        if begun != place || seen.current.blocks.len() >= MAX_BLOCKS {
            return None;
        }
        let took_s = at_ns.saturating_sub(began_ns) as f64 * 1e-9;
        self.work.add(rank, step.into(), took_s);
        (seen.current.ended_ns, seen.current.step) = (at_ns, step);
        seen.owes = seen.sends;
        seen.current.blocks.push((place.stage, place.pass, place.microbatch, took_s));
        if seen.current.blocks.len() != seen.usual_blocks {
            return None;
        }
        let done = seen.turn();
        self.look(done)
    }

    /// Where each rank stands that is not done with the iteration under way. Empty unless the
    /// schedule is known and all its ranks were seen.
    pub fn standing(&self) -> Vec<Standstill> {
        let mut found = Vec::new();
        let works = |seen: &RankBlocks| {
            seen.receives
                || seen.current.open.is_some()
                || !seen.current.blocks.is_empty()
        };
        if !self.ranks.values().any(works) {
            // Between two iterations, or after the last.
            return found;
        }
        for (ranks, stages) in self.pipelines() {
            let furthest = ranks.iter().filter_map(|rank| self.ranks.get(rank));
            let Some(number) = furthest.map(|seen| seen.iterations).min() else {
                continue;
            };
            let Some(graph) = self.plans.iter().map(Localiser::graph).find(|graph| {
                graph.plan().stages() == ranks.len()
                    && ranks.len() as u32 * graph.plan().chunks() == stages
            }) else {
                continue;
            };
            let mut finished = vec![false; graph.nodes()];
            for (at, rank) in ranks.iter().enumerate() {
                let Some(seen) = self.ranks.get(rank) else { continue };
                let done = if seen.iterations > number {
                    usize::MAX
                } else {
                    seen.current.blocks.len()
                };
                graph.nodes_of(at).take(done).for_each(|node| finished[node] = true);
            }
            for (at, rank) in ranks.iter().enumerate() {
                let Some(seen) = self.ranks.get(rank) else { continue };
                if let Some((node, standing)) = seen.standing(graph, at, &finished) {
                    let (stage, block) = graph.block(node);
                    found.push(Standstill { rank: *rank, stage, block, standing });
                }
            }
        }
        found
    }

    /// What a rank and its pipeline have worked in blocks about these steps, and what the same
    /// stages of other pipelines have. `None` without others.
    ///
    /// # Units
    /// Seconds.
    pub fn own_work(&self, rank: u32, steps: &RangeInclusive<u64>) -> Option<Worked> {
        let pipelines: Vec<Vec<u32>> =
            self.pipelines().into_iter().map(|(ranks, _)| ranks).collect();
        let ranks = pipelines.iter().find(|ranks| ranks.contains(&rank))?;
        let place = ranks.iter().position(|other| *other == rank)?;
        let copies = pipelines.iter().filter(|other| *other != ranks);
        let copies = copies.filter_map(|other| other.get(place));
        let mut copies: Vec<f64> =
            copies.map(|copy| self.work.during(*copy, steps)).collect();
        Some(Worked {
            own_s: self.work.during(rank, steps),
            copies_s: model::median(&mut copies)?,
            pipeline: ranks.clone(),
        })
    }

    /// The ranks of each pipeline by their place in it, where the blocks of all its stages were
    /// seen: of a pipeline that reaches beyond this host only a part is here; and how many stages
    /// its model has.
    fn pipelines(&self) -> Vec<(Vec<u32>, u32)> {
        let mut by_first: BTreeMap<u32, Members> = BTreeMap::new();
        for (rank, seen) in &self.ranks {
            let last = seen.done.back().unwrap_or(&seen.current);
            let Some(place) = last.blocks.iter().map(|(stage, ..)| *stage).min() else {
                continue;
            };
            let pipeline = by_first.entry(seen.first_rank).or_default();
            pipeline.places.insert(place, *rank);
            pipeline.seen.extend(last.blocks.iter().map(|(stage, ..)| *stage));
            pipeline.stages = seen.stages;
        }
        let whole = by_first.into_values().filter(|pipeline| {
            let count = pipeline.places.len() as u32;
            pipeline.places.keys().copied().eq(0..count)
                && pipeline.seen.iter().copied().eq(0..pipeline.stages)
                && count > 1
                && pipeline.stages % count == 0
        });
        whole.map(|it| (it.places.into_values().collect(), it.stages)).collect()
    }

    /// Looks at the next iteration if all ranks have finished it, now that one has finished those
    /// in `done`.
    ///
    /// # Complexity
    /// Constant, and linear in the ranks once in an iteration.
    fn look(&mut self, done: RangeInclusive<u64>) -> Option<HeldUp> {
        let number = self.next;
        if *done.start() > number {
            // What some rank has forgotten is passed over.
            self.pass(*done.start());
            return None;
        }
        self.behind -= usize::from(*done.end() == number);
        if self.behind > 0 {
            return None;
        }
        let pipelines = self.pipelines();
        let held = self.judge(number, &pipelines);
        self.pass(number + 1);
        held
    }

    /// Goes on to another iteration and forgets those before.
    fn pass(&mut self, next: u64) {
        self.next = next;
        self.meetings.pass(next);
        for seen in self.ranks.values_mut() {
            // The last one stays: it says who stands where.
            while seen.done.len() > 1
                && seen.done.front().is_some_and(|done| done.number < next)
            {
                seen.done.pop_front();
            }
        }
        let behind = |seen: &&RankBlocks| seen.iterations <= next;
        self.behind = self.ranks.values().filter(behind).count();
    }

    fn judge(&mut self, number: u64, pipelines: &[(Vec<u32>, u32)]) -> Option<HeldUp> {
        let of = |rank: &u32| {
            let seen = self.ranks.get(rank)?;
            seen.done.iter().find(|done| done.number == number)
        };
        let first = pipelines.first()?;
        let plan = plan_of(&first.0, of)?;
        let alike =
            |ranks: &Vec<u32>| plan_of(ranks, of).is_some_and(|other| other == plan);
        let pipelines: Vec<&Vec<u32>> = pipelines
            .iter()
            .map(|(ranks, _)| ranks)
            .filter(|ranks| alike(ranks))
            .collect();
        let durations = |ranks: &&Vec<u32>| -> Vec<f64> {
            let blocks = ranks.iter().filter_map(of).flat_map(|done| &done.blocks);
            blocks.map(|(.., took_s)| *took_s).collect()
        };
        let durations_s: Vec<Vec<f64>> = pipelines.iter().map(durations).collect();
        let iterations = pipelines.iter().flat_map(|ranks| ranks.iter()).filter_map(of);
        let took_s = iterations.map(Iteration::took_s).fold(0.0, f64::max);
        let step = of(first.0.first()?)?.step;
        let at = self.plans.iter().position(|known| *known.graph().plan() == plan);
        let Some(localiser) = at.and_then(|at| self.plans.get_mut(at)) else {
            // The first of its kind, in which jobs warm up.
            let graph = Graph::new(plan).ok()?;
            if self.plans.len() >= MAX_PLANS {
                self.plans.remove(0);
            }
            self.plans.push(Localiser::new(graph, &self.settings));
            return None;
        };
        let slow = stands_out(localiser, took_s);
        let (found, usual_s) =
            (localiser.judge(took_s, &durations_s), localiser.usual_s());
        let saved_s = if slow { localiser.saved_s(&found, &durations_s) } else { 0.0 };
        // Slow for another reason, as a link, is what would hardly have been less so without them.
        let held_up = slow && saved_s >= EXPLAINED_SHARE * found.lost_s;
        let healthy = !localiser.is_slow(took_s);
        localiser.learn(took_s, &durations_s, healthy);
        let told = |slow: SlowBlock| {
            Some((*pipelines.get(slow.pipeline)?.get(slow.stage)?, slow))
        };
        // What would have been noticed, had anybody waited for it.
        let notable_s = usual_s / self.settings.performance_gate - usual_s;
        let absorbed =
            found.absorbed.into_iter().filter(|slow| slow.excess_s() > notable_s);
        let mut causes = if held_up { found.causes } else { Vec::new() };
        let count = pipelines.first().map_or(1, |ranks| ranks.len() as u32);
        // A block that only waited is the late rank's; what is left of others is noise.
        for slow in &mut causes {
            let Some((rank, _)) = told(*slow) else { continue };
            let Block { pass, microbatch, chunk } = slow.block;
            let stage = slow.stage as u32 + chunk * count;
            let block = (number, stage, pass, microbatch, rank);
            let late = self.meetings.waited_for(&block, slow.excess_s());
            let has =
                |late| pipelines.iter().position(|it| it.get(slow.stage) == Some(&late));
            slow.pipeline = late.and_then(has).unwrap_or(slow.pipeline);
        }
        let mut seen = BTreeSet::new();
        causes.retain(|slow| seen.insert((slow.pipeline, slow.node)));
        localiser.drop_noise(&mut causes, found.lost_s);
        let held = HeldUp {
            step,
            took_s,
            usual_s,
            lost_s: saved_s.min(found.lost_s),
            causes: causes.into_iter().filter_map(told).collect(),
            absorbed: absorbed.filter_map(told).collect(),
        };
        let silent = usual_s == 0.0 || held.causes.is_empty() && held.absorbed.is_empty();
        (!silent).then_some(held)
    }
}

impl RankBlocks {
    /// What a rank at this place does about its next block, or the one before, by their nodes.
    /// `None` if it is done with all of an iteration.
    fn standing(
        &self,
        graph: &Graph,
        at: usize,
        finished: &[bool],
    ) -> Option<(usize, Standing)> {
        let mut nodes = graph.nodes_of(at);
        let next = nodes.clone().find(|node| !finished[*node]);
        if self.current.open.is_some() {
            return Some((next?, Standing::Works));
        }
        let before = nodes.rfind(|node| finished[*node]);
        let has_target =
            |node: &usize| graph.plan().target(at, graph.block(*node).1).is_some();
        if let Some(before) = before.filter(has_target).filter(|_| self.owes) {
            return Some((before, Standing::Owes));
        }
        let node = next?;
        let standing = match graph.predecessors(node)[1] {
            Some(source) if !finished[source] => Standing::Waits,
            Some(_) if self.receives => Standing::Receives,
            _ => Standing::Idles,
        };
        Some((node, standing))
    }

    /// The iteration is over; the numbers of those that are kept.
    fn turn(&mut self) -> RangeInclusive<u64> {
        self.usual_blocks = self.current.blocks.len();
        let number = self.current.number;
        self.iterations += 1;
        let next = Iteration { number: self.iterations, ..Iteration::default() };
        self.done.push_back(std::mem::replace(&mut self.current, next));
        if self.done.len() > WAITING {
            self.done.pop_front();
        }
        self.done.front().map_or(number, |done| done.number)..=number
    }
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
fn plan_of<'a>(
    ranks: &[u32],
    of: impl Fn(&u32) -> Option<&'a Iteration>,
) -> Option<Plan> {
    let count = ranks.len() as u32;
    let order = |(rank, place): (&u32, u32)| -> Option<Vec<Block>> {
        let blocks = of(rank)?.blocks.iter();
        let block = |(stage, pass, microbatch, _): &(u32, Pass, u32, f64)| {
            let (pass, microbatch) = (*pass, *microbatch);
            let chunk = stage / count;
            (stage % count == place).then_some(Block { pass, microbatch, chunk })
        };
        blocks.map(block).collect()
    };
    let stages = ranks.iter().zip(0..).map(order).collect::<Option<Vec<_>>>()?;
    Some(Plan::observed(stages))
}

#[cfg(test)]
mod tests;
