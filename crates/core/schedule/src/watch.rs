use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;

use crate::judge::{Done, HeldUp, Judge, Measure, PipelineRanks, RankIteration, key_of_place};
use crate::meetings::Meetings;
use crate::own_work::{OwnWork, RunParts};
use crate::{Graph, ScheduleSettings};
use model::{
    BlockPlace, CollectiveIssue, Event, Mark, PipelineBlock, PipelineRankState, Standstill,
};

/// Iterations of a rank that wait for other ranks' at most; older ones are forgotten.
const WAITING: usize = 64;
/// Blocks of one iteration that are kept; no schedule has more.
pub(crate) const MAX_BLOCKS: usize = 1 << 13;

/// Follows the pipelines of a job by the blocks its ranks begin and end.
///
/// An iteration is what a rank works on until a block comes again, or one of another step. Times of
/// different ranks are not compared: an iteration's length is the longest that one rank was in it.
///
/// # Properties
/// Memory is bounded by ranks times blocks of an iteration.
#[derive(Debug)]
pub struct Watch {
    ranks: BTreeMap<u32, RankBlocks>,
    judge: Judge,
    /// The latest iterations that any rank began: numbers, ascending, and their steps.
    begun: VecDeque<(u64, u32)>,
    /// The next iteration to be looked at.
    next: u64,
    /// Ranks that are not done with it.
    behind: usize,
    parts: RunParts,
    meetings: Meetings,
}

/// Those of ranks that stand still whom the others wait for, as far as can be told.
///
/// # Source
/// MegaTrace (2026), halt point: the first unfinished block whose predecessors are finished;
/// docs/math/schedule.md. What is sent and asked for tells a rank that never sent from the
/// one that it never sent to.
pub fn holding_up(mut ranks: Vec<Standstill>) -> Vec<Standstill> {
    let first = ranks.iter().map(|it| it.state).min();
    // States are in the order of blame. A rank whose input cannot be there holds nobody up.
    ranks.retain(|it| Some(it.state) == first && it.state < PipelineRankState::Waits);
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
struct PipelineMembers {
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
    /// What it works on, or the iteration behind its last one until it begins another.
    current: RankIteration,
    /// The block it works on, and since when.
    open: Option<(BlockPlace, u64)>,
    done: VecDeque<RankIteration>,
    /// Whether it has asked for input since its last block.
    receives: bool,
    /// Whether its sends are seen.
    sends: bool,
    /// Whether it has sent nothing since its last block, though they are.
    owes: bool,
    work: OwnWork,
}

impl Watch {
    /// Nothing was seen yet.
    pub fn new(settings: ScheduleSettings) -> Self {
        Self {
            ranks: BTreeMap::new(),
            judge: Judge::new(settings, Measure::Span),
            begun: VecDeque::new(),
            next: 0,
            behind: 0,
            parts: RunParts::default(),
            meetings: Meetings::default(),
        }
    }

    /// A rank begins or ends a block; other marks say nothing here.
    pub fn mark(&mut self, rank: u32, mark: &Mark) -> Vec<HeldUp> {
        match mark.event {
            Event::BlockBegin(place) => self.begin(rank, mark, place),
            Event::BlockEnd(place) => self.end(rank, mark, place),
            _ => Vec::new(),
        }
    }

    fn begin(&mut self, rank: u32, mark: &Mark, place: BlockPlace) -> Vec<HeldUp> {
        let (step, at_ns) = (mark.step, mark.at.0);
        let (seen, before) = match self.ranks.entry(rank) {
            Entry::Occupied(known) => {
                let seen = known.into_mut();
                let before = seen.current.number;
                (seen, Some(before))
            }
            // `look` counts a new rank for the first time.
            Entry::Vacant(new) => (new.insert(RankBlocks::default()), None),
        };
        (seen.first_rank, seen.stages) = (place.first_rank, place.stages);
        seen.resume(step, &place);
        let is_begun = !seen.current.blocks.is_empty();
        if is_begun && (seen.current.has(&place) || seen.current.step != step) {
            seen.turn();
        }
        if seen.current.blocks.is_empty() {
            let number = seen
                .number_in(step)
                .unwrap_or_else(|| first_in(&self.begun, step));
            (seen.current.number, seen.current.step) = (number, step);
            seen.current.began_ns = at_ns;
            if self.begun.back().is_none_or(|(last, _)| *last < number) {
                self.begun.push_back((number, step));
                self.begun.drain(..self.begun.len().saturating_sub(WAITING));
            }
        }
        // What it asked for before was the input of this block.
        seen.open = Some((place, at_ns));
        seen.receives = false;
        // One block more of the same iteration: most marks of a job end here.
        if before == Some(seen.current.number) {
            return Vec::new();
        }
        self.look(rank, before)
    }

    /// Whether ranks did not wait for their input in most iterations, as hosts do that only launch
    /// blocks: none of them is called slow then.
    pub fn is_ahead(&self) -> bool {
        self.judge.is_ahead()
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
    pub fn meet(&mut self, rank: u32, at_ns: u64, issue: &CollectiveIssue) {
        let Some(seen) = self.ranks.get(&rank) else {
            return;
        };
        if let Some((place, _)) = seen.open {
            let BlockPlace {
                stage,
                pass,
                microbatch,
                ..
            } = place;
            let block = (seen.current.number, stage, pass, microbatch, rank);
            self.meetings.enter(issue, at_ns, block);
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

    fn end(&mut self, rank: u32, mark: &Mark, place: BlockPlace) -> Vec<HeldUp> {
        let (step, at_ns) = (mark.step, mark.at.0);
        while !self.parts.have(step.into()) {
            self.parts.double();
            self.ranks.values_mut().for_each(|seen| seen.work.join());
        }
        let Some(seen) = self.ranks.get_mut(&rank) else {
            return Vec::new();
        };
        // Else marks in between were lost: this would be the time of several blocks.
        let open = seen.open.take().filter(|(begun, _)| *begun == place);
        let Some((_, began_ns)) = open.filter(|_| seen.current.blocks.len() < MAX_BLOCKS) else {
            return Vec::new();
        };
        let key = key_of_place(&place);
        let before = seen.current.number;
        let took_s = at_ns.saturating_sub(began_ns) as f64 * 1e-9;
        seen.work.add(self.parts, step.into(), took_s);
        (seen.current.ended_ns, seen.current.step) = (at_ns, step);
        // Where sends are not marked, every rank would seem to owe one.
        seen.owes = seen.sends;
        seen.current.blocks.push(Done {
            key,
            began_ns,
            ended_ns: at_ns,
        });
        // As the last iteration ended: it is over, though the next one has not begun.
        let blocks = &seen.current.blocks;
        // By the count alone, one lost mark or an evaluation would cut all later iterations in the
        // wrong place.
        let is_last = |last: &RankIteration| {
            last.blocks.len() == blocks.len() && last.blocks.last().map(|it| it.key) == Some(key)
        };
        if !seen.done.back().is_some_and(is_last) {
            return Vec::new();
        }
        seen.turn();
        self.look(rank, Some(before))
    }

    /// Where each rank stands that is not done with the iteration under way. Empty unless the
    /// schedule is known and all its ranks were seen.
    pub fn standing(&self) -> Vec<Standstill> {
        let mut found = Vec::new();
        let at_work = self
            .ranks
            .values()
            .any(|seen| seen.receives || seen.open.is_some() || !seen.current.blocks.is_empty());
        if !at_work {
            // Between two iterations, or after the last.
            return found;
        }
        for PipelineRanks { ranks, stages } in self.pipelines() {
            // The least advanced rank's: the others wait for it there.
            let its = ranks.iter().filter_map(|rank| self.ranks.get(rank));
            let Some(number) = its.map(|seen| self.at_work_on(seen)).min() else {
                continue;
            };
            let Some(graph) = self.judge.graphs().find(|graph| {
                graph.plan().stages() == ranks.len()
                    && ranks.len() as u32 * graph.plan().chunks() == stages
            }) else {
                continue;
            };
            let mut finished = vec![false; graph.nodes()];
            for (at, rank) in ranks.iter().enumerate() {
                let Some(seen) = self.ranks.get(rank) else {
                    continue;
                };
                // A rank that is on with the next iteration is done with all of this one.
                let done = if seen.current.number > number {
                    usize::MAX
                } else {
                    seen.current.blocks.len()
                };
                graph
                    .nodes_of(at)
                    .take(done)
                    .for_each(|node| finished[node] = true);
            }
            for (at, rank) in ranks.iter().enumerate() {
                let Some(seen) = self.ranks.get(rank) else {
                    continue;
                };
                if let Some((node, state)) = seen.standing(graph, at, &finished) {
                    let (stage, block) = graph.block(node);
                    found.push(Standstill {
                        rank: *rank,
                        stage,
                        block,
                        state,
                    });
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
        self.beside_copies(rank, |rank| {
            let seen = self.ranks.get(&rank);
            seen.map_or(0.0, |seen| seen.work.during(self.parts, steps))
        })
    }

    /// The same of what each rank has worked by `worked_s`, in seconds.
    pub(crate) fn beside_copies(&self, rank: u32, worked_s: impl Fn(u32) -> f64) -> Option<Worked> {
        let pipelines: Vec<Vec<u32>> = self
            .pipelines()
            .into_iter()
            .map(|pipeline| pipeline.ranks)
            .collect();
        let ranks = pipelines.iter().find(|ranks| ranks.contains(&rank))?;
        let place = ranks.iter().position(|other| *other == rank)?;
        let mut copies_s: Vec<f64> = pipelines
            .iter()
            .filter(|other| *other != ranks)
            .filter_map(|other| other.get(place))
            .map(|copy| worked_s(*copy))
            .collect();
        Some(Worked {
            own_s: worked_s(rank),
            copies_s: model::median(&mut copies_s)?,
            pipeline: ranks.clone(),
        })
    }

    /// The ranks of each pipeline by their place in it, where the blocks of all its stages were
    /// seen: of a pipeline that reaches beyond this host only a part is here; and how many stages
    /// its model has.
    pub(crate) fn pipelines(&self) -> Vec<PipelineRanks> {
        let mut by_first: BTreeMap<u32, PipelineMembers> = BTreeMap::new();
        for (rank, seen) in &self.ranks {
            // Of the iteration under way not all blocks are there yet.
            let last = seen.done.back().unwrap_or(&seen.current);
            let Some(place) = last.blocks.iter().map(|done| done.key.0).min() else {
                continue;
            };
            let pipeline = by_first.entry(seen.first_rank).or_default();
            pipeline.places.insert(place, *rank);
            pipeline
                .seen
                .extend(last.blocks.iter().map(|done| done.key.0));
            pipeline.stages = seen.stages;
        }
        by_first
            .into_values()
            .filter(|pipeline| {
                let count = pipeline.places.len() as u32;
                // Stages lie on ranks in turn, so that the first ones of all ranks count from 0.
                pipeline.places.keys().copied().eq(0..count)
                    && pipeline.seen.iter().copied().eq(0..pipeline.stages)
                    && count > 1
                    && pipeline.stages % count == 0
            })
            .map(|it| PipelineRanks {
                ranks: it.places.into_values().collect(),
                stages: it.stages,
            })
            .collect()
    }

    /// The iteration that a rank works on, or is to work on next: one that another has begun.
    fn at_work_on(&self, seen: &RankBlocks) -> u64 {
        let RankBlocks { current, open, .. } = seen;
        if open.is_some() || !current.blocks.is_empty() {
            return current.number;
        }
        // Where marks were lost, numbers have gaps: no rank stands in an iteration that none began.
        let mut numbers = self.begun.iter().map(|(number, _)| *number);
        numbers
            .find(|number| *number >= current.number)
            .unwrap_or(current.number)
    }

    /// Looks at the next iterations as far as all ranks are done with them, now that one is on with
    /// another than it was `before`.
    ///
    /// # Complexity
    /// Constant, and linear in the ranks once in an iteration.
    fn look(&mut self, rank: u32, before: Option<u64>) -> Vec<HeldUp> {
        let Some(seen) = self.ranks.get(&rank) else {
            return Vec::new();
        };
        let is_behind = |number: u64| usize::from(number <= self.next);
        self.behind += is_behind(seen.current.number);
        self.behind -= before.map_or(0, is_behind);
        let oldest = seen.done.front().map_or(0, |done| done.number);
        if seen.done.len() == WAITING && oldest > self.next {
            // What some rank has forgotten is passed over.
            self.pass(oldest);
        }
        let mut found = Vec::new();
        // Ends: each turn moves `next` on, at last to an iteration that some rank has not ended.
        while self.behind == 0 {
            // Of an iteration whose marks a rank lost it has none.
            let firsts = self.ranks.values().map(|seen| seen.first_from(self.next));
            let Some(number) = firsts.min() else {
                break;
            };
            if number > self.next {
                self.pass(number);
                continue;
            }
            let pipelines = self.pipelines();
            found.extend(self.judge(number, &pipelines));
            self.pass(number + 1);
        }
        found
    }

    /// Goes on to another iteration and forgets those before.
    fn pass(&mut self, next: u64) {
        self.next = next;
        self.meetings.pass(next);
        for seen in self.ranks.values_mut() {
            // The last one stays: it says who stands where.
            while seen.done.len() > 1 && seen.done.front().is_some_and(|done| done.number < next) {
                seen.done.pop_front();
            }
        }
        self.behind = self
            .ranks
            .values()
            .filter(|seen| seen.current.number <= next)
            .count();
    }

    fn judge(&mut self, number: u64, pipelines: &[PipelineRanks]) -> Option<HeldUp> {
        self.judge.judge(
            pipelines,
            |rank| {
                let seen = self.ranks.get(&rank)?;
                seen.done.iter().find(|done| done.number == number)
            },
            |_, done| done.took_s(),
            |rank,
             stage,
             PipelineBlock {
                 pass, microbatch, ..
             },
             excess_s| {
                let block = (number, stage, pass, microbatch, rank);
                self.meetings.waited_for(&block, excess_s)
            },
        )
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
    ) -> Option<(usize, PipelineRankState)> {
        let mut nodes = graph.nodes_of(at);
        let next = nodes.clone().find(|node| !finished[*node]);
        if self.open.is_some() {
            return Some((next?, PipelineRankState::Works));
        }
        let before = nodes.rfind(|node| finished[*node]);
        if let Some(before) = before
            && self.owes
            // What stays on the stage is owed to nobody.
            && graph.plan().target(at, graph.block(before).1).is_some()
        {
            return Some((before, PipelineRankState::Owes));
        }
        let node = next?;
        // The second predecessor is the block whose output it takes.
        let state = match graph.predecessors(node)[1] {
            Some(source) if !finished[source] => PipelineRankState::Waits,
            Some(_) if self.receives => PipelineRankState::Receives,
            _ => PipelineRankState::Idles,
        };
        Some((node, state))
    }

    /// The iteration is over.
    fn turn(&mut self) {
        let next = RankIteration {
            number: self.current.number + 1,
            ..RankIteration::default()
        };
        self.done
            .push_back(std::mem::replace(&mut self.current, next));
        if self.done.len() > WAITING {
            self.done.pop_front();
        }
    }

    /// Goes on with an iteration that only seemed to be over, if the next block is one of it: the one
    /// before had fewer, as evaluation has, or some of its marks were lost.
    fn resume(&mut self, step: u32, place: &BlockPlace) {
        if !self.current.blocks.is_empty() {
            return;
        }
        let goes_on = |last: &mut RankIteration| last.step == step && !last.has(place);
        if let Some(last) = self.done.pop_back_if(goes_on) {
            self.current = last;
        }
    }

    /// The number of an iteration that it begins in a step: of those that it passed over, all marks
    /// were lost. Counted from its last one, as steps need not be counted alike on all stages.
    fn number_in(&self, step: u32) -> Option<u64> {
        let last = self.done.back()?;
        // At least 1: a step may have several iterations.
        Some(last.number + u64::from(step.saturating_sub(last.step).max(1)))
    }

    /// The first of its iterations from a number on, begun or not.
    fn first_from(&self, number: u64) -> u64 {
        let mut numbers = self.done.iter().map(|done| done.number);
        numbers
            .find(|done| *done >= number)
            .unwrap_or(self.current.number)
    }
}

/// The number of the first iteration of a rank that joins in a step in which others may have begun
/// theirs.
fn first_in(begun: &VecDeque<(u64, u32)>, step: u32) -> u64 {
    let known = begun.iter().find(|(_, known)| *known >= step);
    match (known, begun.back()) {
        (Some((number, _)), _) => *number,
        // Does not underflow: none of the known steps is as late as this one.
        (None, Some((number, last))) => number + u64::from(step - last),
        (None, None) => 0,
    }
}

#[cfg(test)]
mod tests;
