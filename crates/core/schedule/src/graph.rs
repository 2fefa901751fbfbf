use std::collections::BTreeMap;

use crate::Plan;
use model::{Pass, PipelineBlock};

/// Seconds up to which a block's slack is none. Sums of durations differ by rounding; exact
/// equality is fragile.
const SLACK_S: f64 = 1e-9;

/// Time by which a block must begin too soon, to say that its rank did not wait. Clocks tell
/// nanoseconds, and a launch takes many microseconds.
const TOO_SOON_NS: i128 = 1000;

/// The blocks of a pipeline and who waits for whom.
///
/// A graph holds no times: one serves all iterations and all replicas of a schedule.
///
/// # Shape
/// Node `first_of(stage) + place` is the block at that place of the stage's order.
/// # Source
/// MegaTrace (2026), its dependency graph; docs/math/schedule.md.
#[derive(Clone, Debug)]
pub struct Graph {
    plan: Plan,
    /// First node of each stage, and the number of nodes.
    firsts: Vec<u32>,
    /// Node before it on the same stage.
    before: Vec<Option<u32>>,
    /// Node whose output it takes.
    source: Vec<Option<u32>>,
    /// Nodes in an order in which nobody stands before whom it waits for.
    order: Vec<u32>,
}

/// A schedule in which blocks wait for one another in a circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the schedule waits for itself: {blocks} blocks can never begin")]
pub struct Circular {
    /// How many.
    pub blocks: usize,
}

impl Graph {
    /// The graph of a schedule.
    ///
    /// # Errors
    /// [`Circular`] for an order that cannot be worked off.
    pub fn new(plan: Plan) -> Result<Self, Circular> {
        let mut firsts = vec![0];
        for stage in 0..plan.stages() {
            firsts.push(firsts[stage] + plan.order(stage).len() as u32);
        }
        let nodes = plan.blocks();
        let mut places = BTreeMap::new();
        for (stage, first) in firsts.iter().take(plan.stages()).enumerate() {
            for (block, node) in plan.order(stage).iter().zip(*first..) {
                places.insert((stage, *block), node);
            }
        }
        let (mut before, mut source) = (vec![None; nodes], vec![None; nodes]);
        for ((stage, block), node) in &places {
            before[*node as usize] = (*node > firsts[*stage]).then(|| node - 1);
            let from = plan.source(*stage, *block).or_else(|| {
                // Nothing comes from another stage: on the last one backward takes what forward
                // gave, and weights follow on backward everywhere.
                let own = match block.pass {
                    Pass::Backward => PipelineBlock {
                        pass: Pass::Forward,
                        ..*block
                    },
                    Pass::Weight => PipelineBlock {
                        pass: Pass::Backward,
                        ..*block
                    },
                    // The forward pass of a later chunk where there is one stage only.
                    Pass::Forward => PipelineBlock {
                        chunk: block.chunk.checked_sub(1)?,
                        ..*block
                    },
                };
                Some((*stage, own))
            });
            source[*node as usize] = from.and_then(|from| places.get(&from).copied());
        }
        let order = topological(&before, &source);
        if order.len() < nodes {
            return Err(Circular {
                blocks: nodes - order.len(),
            });
        }
        Ok(Self {
            plan,
            firsts,
            before,
            source,
            order,
        })
    }

    /// The schedule.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Number of blocks.
    pub fn nodes(&self) -> usize {
        self.before.len()
    }

    /// The nodes of a stage, in order of execution.
    pub fn nodes_of(&self, stage: usize) -> std::ops::Range<usize> {
        self.firsts[stage] as usize..self.firsts[stage + 1] as usize
    }

    /// Stage and block of a node.
    pub fn block(&self, node: usize) -> (usize, PipelineBlock) {
        // The first is 0, so one is always at or below. Stages without blocks share their first
        // with the next one, and the last of those has the node.
        let stage = self.firsts.partition_point(|first| *first as usize <= node) - 1;
        (
            stage,
            self.plan.order(stage)[node - self.firsts[stage] as usize],
        )
    }

    /// The node before this one on its stage, and the node whose output it takes.
    pub fn predecessors(&self, node: usize) -> [Option<usize>; 2] {
        [self.before[node], self.source[node]].map(|node| node.map(|node| node as usize))
    }

    /// Works the schedule off with these durations.
    ///
    /// # Shape
    /// `durations_s[node]`.
    /// # Properties
    /// Slack is never negative and some path from begin to end has none (MT-P2); lengthening
    /// one block by `x` changes the makespan by `max(0, x - slack)` (MT-P3).
    /// # Complexity
    /// Linear in the blocks, without allocation if `timing` was used before.
    /// # Source
    /// MegaTrace (2026); the rule for blocks nobody waits for is in docs/math/schedule.md,
    /// the published listing lacks it.
    pub fn time(&self, durations_s: &[f64], timing: &mut Timing) {
        timing.ends_s.clear();
        timing.ends_s.resize(self.nodes(), 0.0);
        timing.makespan_s = 0.0;
        for node in self.order.iter().map(|node| *node as usize) {
            let waits_s = [self.before[node], self.source[node]]
                .map(|node| node.map_or(0.0, |node| timing.ends_s[node as usize]));
            let end_s = waits_s[0].max(waits_s[1]) + durations_s[node];
            timing.ends_s[node] = end_s;
            timing.makespan_s = timing.makespan_s.max(end_s);
        }
        // Latest ends that do not move the makespan.
        timing.slack_s.clear();
        timing.slack_s.resize(self.nodes(), timing.makespan_s);
        for node in self.order.iter().rev().map(|node| *node as usize) {
            let latest_begin_s = timing.slack_s[node] - durations_s[node];
            for before in [self.before[node], self.source[node]].into_iter().flatten() {
                let latest_s = &mut timing.slack_s[before as usize];
                *latest_s = latest_s.min(latest_begin_s);
            }
        }
        for (slack_s, end_s) in timing.slack_s.iter_mut().zip(&timing.ends_s) {
            *slack_s -= end_s;
        }
    }

    /// Whether ranks cannot have waited for one another's blocks: what a block gives is there too
    /// late for the next stage, or what that gives back, whatever the clocks of the two. That is
    /// so of hosts that only launch blocks, and what they call a block is no work.
    ///
    /// # Shape
    /// `begun_ns[node]` and `ended_ns[node]`, on the clock of the node's rank.
    /// # Source
    /// Ours: docs/math/device.md.
    pub(crate) fn is_ahead(&self, begun_ns: &[u64], ended_ns: &[u64]) -> bool {
        let stages = self.plan.stages();
        // The least time from a block to the one that takes its output, by the stages of both.
        let mut least_ns = vec![i128::MAX; stages * stages];
        for to in 0..stages {
            for node in self.nodes_of(to) {
                let [_, source] = self.predecessors(node);
                let times_ns =
                    source.and_then(|source| Some((begun_ns.get(node)?, ended_ns.get(source)?)));
                let (Some(source), Some((begun_ns, ended_ns))) = (source, times_ns) else {
                    continue;
                };
                let (from, _) = self.block(source);
                // Clocks of two hosts: either may be ahead, so that the difference needs a sign.
                let passed_ns = i128::from(*begun_ns) - i128::from(*ended_ns);
                let known_ns = &mut least_ns[from * stages + to];
                *known_ns = passed_ns.min(*known_ns);
            }
        }
        // There and back the clocks cancel out.
        (0..stages).any(|from| {
            (0..=from).any(|to| {
                let [there_ns, back_ns] =
                    [from * stages + to, to * stages + from].map(|link| least_ns[link]);
                there_ns.max(back_ns) < i128::MAX && there_ns + back_ns < -TOO_SOON_NS
            })
        })
    }

    /// Where a pipeline that does not move stands: blocks that are not finished although all
    /// they wait for is.
    ///
    /// # Properties
    /// A single rank that is stuck gives a single one, and every other unfinished block comes
    /// after it (MT-P5).
    /// # Source
    /// MegaTrace (2026), partial graph; docs/math/schedule.md.
    pub fn halts(&self, finished: &[bool]) -> Vec<usize> {
        (0..self.nodes())
            .filter(|node| !finished[*node])
            .filter(|node| {
                self.predecessors(*node)
                    .into_iter()
                    .flatten()
                    .all(|node| finished[node])
            })
            .collect()
    }
}

/// Kahn's algorithm: shorter than all nodes where some wait in a circle.
fn topological(before: &[Option<u32>], source: &[Option<u32>]) -> Vec<u32> {
    let nodes = before.len();
    // Eight bits do: a block waits for two others at most.
    let (mut waits, mut after) = (vec![0u8; nodes], vec![Vec::new(); nodes]);
    for predecessors in [before, source] {
        for (from, to) in predecessors.iter().zip(0u32..) {
            let Some(from) = from else { continue };
            waits[to as usize] += 1;
            after[*from as usize].push(to);
        }
    }
    let mut order: Vec<u32> = (0..nodes as u32)
        .filter(|node| waits[*node as usize] == 0)
        .collect();
    let mut at = 0;
    while let Some(node) = order.get(at) {
        for next in std::mem::take(&mut after[*node as usize]) {
            waits[next as usize] -= 1;
            if waits[next as usize] == 0 {
                order.push(next);
            }
        }
        at += 1;
    }
    order
}

/// When the blocks of a [`Graph`] end, and how late each may be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timing {
    /// End of each node, from the begin of the first.
    pub ends_s: Vec<f64>,
    /// How much longer each node could take without anybody noticing.
    pub slack_s: Vec<f64>,
    /// End of the last.
    pub makespan_s: f64,
}

impl Timing {
    /// Whether the makespan depends on a node.
    pub fn is_critical(&self, node: usize) -> bool {
        self.slack_s[node] <= SLACK_S
    }
}

#[cfg(test)]
mod tests;
