use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;

use crate::judge::{Done, HeldUp, Judge, Measure, PipelineRanks, RankIteration};
use crate::meetings::Meetings;
use crate::own_work::OwnWork;
use crate::{Graph, ScheduleSettings};
use model::{BlockPlace, CollectiveIssue, PipelineBlock, PipelineRankState, Standstill};

/// Iterations of a rank that wait for other ranks' at most; older ones are forgotten.
const WAITING: usize = 64;
/// Blocks of one iteration that are kept; no schedule has more.
pub(crate) const MAX_BLOCKS: usize = 1 << 13;

/// Follows the pipelines of a job by the blocks its ranks begin and end.
///
/// An iteration is what a rank works on until a block comes again. Times of different ranks are
/// not compared: an iteration's length is the longest that one rank was in it.
///
/// # Properties
/// Memory is bounded by ranks times blocks of an iteration.
#[derive(Debug)]
pub struct Watch {
    ranks: BTreeMap<u32, RankBlocks>,
    judge: Judge,
    /// The next iteration to be looked at.
    next: u64,
    /// Ranks that have not finished it.
    behind: usize,
    work: OwnWork,
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
    iterations: u64,
    /// Blocks of an iteration, as the last whole one had them.
    usual_blocks: usize,
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
}

impl Watch {
    /// Nothing was seen yet.
    pub fn new(settings: ScheduleSettings) -> Self {
        Self {
            ranks: BTreeMap::new(),
            judge: Judge::new(settings, Measure::Span),
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
    pub fn begin(&mut self, rank: u32, at_ns: u64, place: BlockPlace) -> Option<HeldUp> {
        let behind = &mut self.behind;
        let seen = self.ranks.entry(rank).or_insert_with(|| {
            // It has yet to finish the iteration that is looked at next.
            *behind += 1;
            RankBlocks::default()
        });
        (seen.first_rank, seen.stages) = (place.first_rank, place.stages);
        let done = seen.current.has(&place).then(|| seen.turn());
        if seen.current.blocks.is_empty() {
            seen.current.began_ns = at_ns;
        }
        seen.open = Some((place, at_ns));
        seen.receives = false;
        self.look(done?)
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
            self.meetings.enter(issue.group, issue.number, at_ns, block);
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
    pub fn end(&mut self, rank: u32, step: u32, at_ns: u64, place: BlockPlace) -> Option<HeldUp> {
        let seen = self.ranks.get_mut(&rank)?;
        let (begun, began_ns) = seen.open.take()?;
        // Marks in between were lost: this would be the time of several blocks.
        if begun != place || seen.current.blocks.len() >= MAX_BLOCKS {
            return None;
        }
        let took_s = at_ns.saturating_sub(began_ns) as f64 * 1e-9;
        self.work.add(rank, step.into(), took_s);
        (seen.current.ended_ns, seen.current.step) = (at_ns, step);
        // Where sends are not marked, every rank would seem to owe one.
        seen.owes = seen.sends;
        seen.current.blocks.push(Done {
            place,
            began_ns,
            ended_ns: at_ns,
        });
        // As many as the last iteration had: it is over, though the next one has not begun.
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
            let Some(number) = ranks
                .iter()
                .filter_map(|rank| Some(self.ranks.get(rank)?.iterations))
                .min()
            else {
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
                let done = if seen.iterations > number {
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
            .map(|copy| self.work.during(*copy, steps))
            .collect();
        Some(Worked {
            own_s: self.work.during(rank, steps),
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
            let Some(place) = last.blocks.iter().map(|done| done.place.stage).min() else {
                continue;
            };
            let pipeline = by_first.entry(seen.first_rank).or_default();
            pipeline.places.insert(place, *rank);
            pipeline
                .seen
                .extend(last.blocks.iter().map(|done| done.place.stage));
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
        // A rank that is further on was counted when it finished this one.
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
            while seen.done.len() > 1 && seen.done.front().is_some_and(|done| done.number < next) {
                seen.done.pop_front();
            }
        }
        self.behind = self
            .ranks
            .values()
            .filter(|seen| seen.iterations <= next)
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
        let state = match graph.predecessors(node)[1] {
            Some(source) if !finished[source] => PipelineRankState::Waits,
            Some(_) if self.receives => PipelineRankState::Receives,
            _ => PipelineRankState::Idles,
        };
        Some((node, state))
    }

    /// The iteration is over; the numbers of those that are kept.
    fn turn(&mut self) -> RangeInclusive<u64> {
        self.usual_blocks = self.current.blocks.len();
        let number = self.current.number;
        self.iterations += 1;
        let next = RankIteration {
            number: self.iterations,
            ..RankIteration::default()
        };
        self.done
            .push_back(std::mem::replace(&mut self.current, next));
        if self.done.len() > WAITING {
            self.done.pop_front();
        }
        self.done.front().map_or(number, |done| done.number)..=number
    }
}

#[cfg(test)]
mod tests;
