//! Pipelines by the clocks of their devices, in sampled steps.

use std::collections::BTreeMap;

use model::{BlockPlace, BlockTime, Pass};

use crate::judge::{Done, HeldUp, Judge, Judged, Measure, PipelineRanks, RankIteration};
use crate::watch::MAX_BLOCKS;
use crate::{ScheduleSettings, Watch};

/// Sampled iterations that wait for other ranks'.
const MAX_WAITING: usize = 64;
/// Part of what a rank's blocks took too long that those of most other ranks must not have taken
/// too long as well, to name it: what is slow everywhere is not its own. Ours.
const OWN_SHARE: f64 = 0.5;

/// A block of a sampled step, by its device's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceBlock {
    /// The step of the training loop.
    pub step: u32,
    /// Which.
    pub place: BlockPlace,
    /// When the device got to its begin.
    pub begin: BlockTime,
    /// When it was done with it.
    pub end: BlockTime,
}

/// Follows the pipelines of a job by what blocks take on its devices.
///
/// A host that runs ahead of its device only launches a block; its clock says nothing of it. Only
/// sampled steps have device times, so iterations are known by their step. What blocks take is
/// compared with what the same blocks usually take on the devices.
///
/// # Properties
/// Memory is bounded by 64 iterations of all ranks.
#[derive(Debug)]
pub struct DeviceWatch {
    judge: Judge,
    /// By step, and by which of the step's.
    waiting: BTreeMap<(u32, usize), BTreeMap<u32, TimedIteration>>,
    /// What blocks usually take, by the stage of the model, the pass and the microbatch.
    usual: BTreeMap<(u32, Pass, u32), Usual>,
    /// Of iterations that were looked at since these were last taken.
    steps: Vec<u32>,
}

/// An iteration of a rank.
#[derive(Debug, Default)]
struct TimedIteration {
    done: RankIteration,
    /// Of each block the least and the most of it for which the host may have held the device up.
    held_s: Vec<[f64; 2]>,
}

/// Means of a block in healthy iterations.
#[derive(Clone, Copy, Debug, Default)]
struct Usual {
    blocks: u32,
    took_s: f64,
    held_s: [f64; 2],
}

impl Usual {
    fn learn(&mut self, took_s: f64, held_s: [f64; 2]) {
        self.blocks = self.blocks.saturating_add(1);
        let weight = 1.0 / f64::from(self.blocks);
        self.took_s += (took_s - self.took_s) * weight;
        for (mean_s, held_s) in self.held_s.iter_mut().zip(held_s) {
            *mean_s += (held_s - *mean_s) * weight;
        }
    }
}

impl DeviceBlock {
    /// The least and the most of it for which the host may have held the device up, in seconds.
    fn held_s(&self) -> [f64; 2] {
        let Self { begin, end, .. } = self;
        let least_s = end.host_bound_least.seconds_since(begin.host_bound_least);
        [
            least_s,
            end.host_bound_most.seconds_since(begin.host_bound_most),
        ]
    }
}

impl DeviceWatch {
    /// Nothing was seen yet.
    pub fn new(settings: ScheduleSettings) -> Self {
        Self {
            judge: Judge::new(settings, Measure::Blocks),
            waiting: BTreeMap::new(),
            usual: BTreeMap::new(),
            steps: Vec::new(),
        }
    }

    /// Takes the blocks of a run of sampled steps of a rank, in order; the iterations that blocks
    /// held up, once those of all ranks of the pipelines in `watch` are there.
    pub fn take(&mut self, rank: u32, blocks: &[DeviceBlock], watch: &Watch) -> Vec<HeldUp> {
        for of_step in blocks.chunk_by(|one, other| one.step == other.step) {
            for (at, timed) in iterations(of_step).into_iter().enumerate() {
                let key = (timed.done.step, at);
                self.waiting.entry(key).or_default().insert(rank, timed);
            }
        }
        while self.waiting.len() > MAX_WAITING {
            // A rank whose device times are lost would keep its steps waiting for ever.
            self.waiting.pop_first();
        }
        let pipelines = watch.pipelines();
        let ranks: Vec<u32> = pipelines.iter().flat_map(|it| it.ranks.clone()).collect();
        // Who works in which pipeline is not known before a whole iteration was seen.
        if ranks.is_empty() {
            return Vec::new();
        }
        let complete: Vec<(u32, usize)> = self
            .waiting
            .iter()
            .filter(|(_, timed)| ranks.iter().all(|rank| timed.contains_key(rank)))
            .map(|(key, _)| *key)
            .collect();
        let mut found = Vec::new();
        for key in complete {
            let Some(timed) = self.waiting.remove(&key) else {
                continue;
            };
            // Blocks of a rank come in order: of a step before this one none comes any more.
            self.waiting = self.waiting.split_off(&key);
            self.steps.push(key.0);
            found.extend(self.look(&timed, &pipelines));
        }
        found
    }

    /// The sampled steps that were looked at since the last call.
    pub fn take_steps(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.steps)
    }

    fn look(
        &mut self,
        timed: &BTreeMap<u32, TimedIteration>,
        pipelines: &[PipelineRanks],
    ) -> Option<HeldUp> {
        let Judged { held, is_usual } = self.judge.judge(
            pipelines,
            |rank| timed.get(&rank).map(|timed| &timed.done),
            // When ranks meet inside a block is known by their hosts' clocks only.
            |_, _, _, _| None,
        );
        if is_usual {
            self.learn(timed);
        }
        let mut held = held?;
        self.drop_common(&mut held, timed);
        let count = pipelines.first().map_or(1, |it| it.ranks.len() as u32);
        for (rank, slow) in &mut held.causes {
            let Some(timed) = timed.get(rank) else {
                continue;
            };
            let block = timed
                .done
                .blocks
                .iter()
                .zip(&timed.held_s)
                .find(|(done, _)| {
                    let BlockPlace {
                        pass,
                        microbatch,
                        stage,
                        ..
                    } = done.place;
                    (pass, microbatch, stage / count)
                        == (slow.block.pass, slow.block.microbatch, slow.block.chunk)
                });
            // The least beyond the usual most, and the other way round: whatever the truth is lies
            // between.
            slow.host_s = block.map(|(done, [least_s, most_s])| {
                let [usual_least_s, usual_most_s] = self.usual_of(done).held_s;
                [least_s - usual_most_s, most_s - usual_least_s]
            });
        }
        Some(held)
    }

    /// Leaves out ranks whose blocks are no slower than most ranks' are.
    fn drop_common(&self, held: &mut HeldUp, timed: &BTreeMap<u32, TimedIteration>) {
        let by_rank: BTreeMap<u32, f64> = timed
            .iter()
            .map(|(rank, timed)| (*rank, self.excess_ratio(timed)))
            .collect();
        let all_s = held.excess_s();
        held.causes.retain(|(rank, _)| {
            let mut others: Vec<f64> = by_rank
                .iter()
                .filter(|(other, _)| *other != rank)
                .map(|(_, excess)| *excess)
                .collect();
            let own = by_rank.get(rank).copied().unwrap_or(0.0);
            let common = model::median(&mut others).unwrap_or(0.0);
            own - common >= OWN_SHARE * own
        });
        // What was lost to ranks that are no longer named is not the others' cost.
        if !held.causes.is_empty() {
            held.lost_s *= held.excess_s() / all_s;
        }
    }

    /// Time by which a rank's blocks took too long, as a part of what they usually take.
    fn excess_ratio(&self, timed: &TimedIteration) -> f64 {
        let (mut excess_s, mut usual_s) = (0.0, 0.0);
        for done in &timed.done.blocks {
            let usual = self.usual_of(done).took_s;
            excess_s += (done.took_s() - usual).max(0.0);
            usual_s += usual;
        }
        excess_s / usual_s
    }

    fn usual_of(&self, done: &Done) -> Usual {
        self.usual.get(&key_of(done)).copied().unwrap_or_default()
    }

    fn learn(&mut self, timed: &BTreeMap<u32, TimedIteration>) {
        let blocks = timed
            .values()
            .flat_map(|it| it.done.blocks.iter().zip(&it.held_s));
        for (done, held_s) in blocks {
            self.usual
                .entry(key_of(done))
                .or_default()
                .learn(done.took_s(), *held_s);
        }
    }
}

fn key_of(done: &Done) -> (u32, Pass, u32) {
    (done.place.stage, done.place.pass, done.place.microbatch)
}

/// The iterations in the blocks of a step: one ends where a block comes again.
fn iterations(blocks: &[DeviceBlock]) -> Vec<TimedIteration> {
    let mut found: Vec<TimedIteration> = Vec::new();
    for block in blocks.iter().take(MAX_BLOCKS) {
        let DeviceBlock {
            step,
            place,
            begin,
            end,
        } = *block;
        let (began_ns, ended_ns) = (begin.device.0, end.device.0);
        if found.last().is_none_or(|timed| timed.done.has(&place)) {
            let done = RankIteration {
                step,
                began_ns,
                ..RankIteration::default()
            };
            found.push(TimedIteration {
                done,
                held_s: Vec::new(),
            });
        }
        let Some(timed) = found.last_mut() else {
            continue;
        };
        timed.done.blocks.push(Done {
            place,
            began_ns,
            ended_ns,
        });
        timed.done.ended_ns = ended_ns;
        timed.held_s.push(block.held_s());
    }
    found
}

#[cfg(test)]
mod tests;
