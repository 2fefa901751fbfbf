//! Pipelines by the clocks of their devices, in sampled steps.

mod launches;
mod level;
mod steady;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use model::{BlockPlace, BlockTime, Pass, Side};

use crate::judge::{
    Done, HeldUp, Judge, Measure, PipelineRanks, PlaceKey, RankIteration, key_of_place,
};
use crate::own_work::{OwnWork, RunParts};
use crate::watch::MAX_BLOCKS;
use crate::{ScheduleSettings, SlowBlock, Watch, Worked};
use launches::Launches;
use level::Level;
use steady::{OwnTimes, Steady, Struck};

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

/// Times what other hosts take to launch a pass from which a host is unlike them. Ours: the last
/// stage, which launches the loss as well and whose queue is empty, takes almost twice as long.
const LAUNCH_TIMES: f64 = 2.5;

/// A device that takes longer for a pass than those of other ranks of its pipeline, and always did: its
/// stage of the model may ask for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnlikeStage {
    /// The rank.
    pub rank: u32,
    /// The pass.
    pub pass: Pass,
    /// Whether it takes longer by itself, or because its host holds it up.
    pub side: Side,
    /// Seconds that it takes in an iteration by itself, or for which its host holds it up.
    pub took_s: f64,
    /// Those of the others, at most.
    pub others_s: f64,
}

/// Follows the pipelines of a job by what blocks take on its devices.
///
/// A host that runs ahead of its device only launches a block; its clock says nothing of it. Only
/// sampled steps have device times, so iterations are known by their step. What blocks take is
/// compared with what the same blocks usually take on the devices: first what the device must have
/// taken by itself, which scatters little, then what is left, for which hosts may have held it up.
///
/// # Properties
/// Memory is bounded by 64 iterations of all ranks.
#[derive(Debug)]
pub struct DeviceWatch {
    settings: ScheduleSettings,
    judge: Judge,
    /// By step, and by which of the step's.
    waiting: BTreeMap<(u32, usize), BTreeMap<u32, TimedIteration>>,
    /// What blocks usually take, by the stage of the model, the pass and the microbatch.
    usual: BTreeMap<PlaceKey, Usual>,
    launches: Launches,
    steady: Steady,
    /// Of iterations that were looked at since these were last taken.
    steps: Vec<u32>,
    work: SampledWork,
}

/// What devices took for their blocks in each part of a run.
#[derive(Debug, Default)]
struct SampledWork {
    parts: RunParts,
    by_rank: BTreeMap<u32, OwnWork>,
    /// How many steps were looked at.
    looked: OwnWork,
    last_step: u64,
}

impl SampledWork {
    fn add(&mut self, step: u64, timed: &BTreeMap<u32, TimedIteration>) {
        while !self.parts.have(step) {
            self.parts.double();
            self.by_rank.values_mut().for_each(OwnWork::join);
            self.looked.join();
        }
        // Of several iterations of a step each counts for its work, and the first for the step.
        if self.last_step < step || self.by_rank.is_empty() {
            self.looked.add(self.parts, step, 1.0);
            self.last_step = step;
        }
        for (rank, timed) in timed {
            let took_s = timed.done.blocks.iter().map(Done::took_s).sum();
            let work = self.by_rank.entry(*rank).or_default();
            work.add(self.parts, step, took_s);
        }
    }
}

/// Of ranks' blocks.
type Parts = BTreeMap<(u32, PlaceKey), Part>;

/// What a block took, by what it is known to be due to.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// What it usually takes, with all waits of the device.
    usual_s: f64,
    /// Whether enough of it was seen to say that.
    is_known: bool,
    /// What the device took by itself beyond that, at least. Where a host held its device up by less
    /// than usual, the device has more to do, and has not become slow.
    more_s: f64,
    /// What it took, less what the device took beyond the usual.
    rest_s: f64,
}

/// An iteration of a rank.
#[derive(Debug, Default)]
struct TimedIteration {
    done: RankIteration,
    /// Of each block the least and the most of it for which the host may have held the device up.
    held_s: Vec<[f64; 2]>,
    /// What the host took to launch the blocks of each pass.
    launched_s: BTreeMap<Pass, f64>,
}

/// What a block usually takes, and for how long of it its host may hold the device up.
#[derive(Clone, Debug, Default)]
struct Usual {
    took_s: Level,
    held_s: [Level; 2],
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
            judge: Judge::new(settings.clone(), Measure::Blocks),
            settings,
            waiting: BTreeMap::new(),
            usual: BTreeMap::new(),
            launches: Launches::default(),
            steady: Steady::default(),
            steps: Vec::new(),
            work: SampledWork::default(),
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
            self.work.add(key.0.into(), &timed);
            found.extend(self.look(&timed, &pipelines));
        }
        found
    }

    /// Devices that take longer for a pass than those of other ranks, and always did, by at least
    /// `share_min` of an iteration. One that its host holds up is one if that takes several times as
    /// long to launch the pass. None where pipelines stand side by side: the same stages of others show
    /// what a stage asks for.
    pub fn unlike(&self, share_min: f64, watch: &Watch) -> Vec<UnlikeStage> {
        if watch.pipelines().len() > 1 {
            return Vec::new();
        }
        let mut unlike = self.steady.unlike(share_min);
        unlike.retain(|it| {
            let launches = || self.launches.times_others(it.rank, it.pass);
            it.side == Side::Device || launches().is_some_and(|times| times >= LAUNCH_TIMES)
        });
        unlike
    }

    /// As [`Watch::own_work`], of what devices took for the blocks of sampled steps, for as many steps as
    /// these represent. `None` if there are none of them.
    pub fn own_work(
        &self,
        rank: u32,
        steps: &RangeInclusive<u64>,
        watch: &Watch,
    ) -> Option<Worked> {
        let SampledWork {
            parts,
            by_rank,
            looked,
            last_step,
        } = &self.work;
        let looked = looked.during(*parts, steps);
        if looked == 0.0 {
            return None;
        }
        let stands_for = parts.steps_around(steps, *last_step) as f64 / looked;
        watch.beside_copies(rank, |rank| {
            let work = by_rank.get(&rank);
            work.map_or(0.0, |work| stands_for * work.during(*parts, steps))
        })
    }

    /// The sampled steps that were looked at since the last call.
    pub fn take_steps(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.steps)
    }

    fn look(
        &mut self,
        timed: &BTreeMap<u32, TimedIteration>,
        pipelines: &[PipelineRanks],
    ) -> Vec<HeldUp> {
        let parts = self.parts(timed);
        let stages = pipelines.first().map_or(1, |it| it.ranks.len() as u32);
        let of = |rank| timed.get(&rank).map(|timed| &timed.done);
        let by_rest = self.judge.judge(
            pipelines,
            of,
            // The schedule takes NaN for a block that was not recorded.
            |rank, done| part_of(&parts, rank, done).map_or(f64::NAN, |it| it.rest_s),
            // When ranks meet inside a block is known by their hosts' clocks only.
            |_, _, _, _| None,
        );
        let by_work = self
            .judge
            .compare(pipelines, of, &self.settings, |rank, done| {
                let Part {
                    usual_s, more_s, ..
                } = *part_of(&parts, rank, done).filter(|it| it.is_known)?;
                Some([usual_s + more_s, usual_s])
            });
        let mut launched_s: BTreeMap<Pass, BTreeMap<u32, f64>> = BTreeMap::new();
        for (rank, timed) in timed {
            for (pass, took_s) in &timed.launched_s {
                launched_s.entry(*pass).or_default().insert(*rank, *took_s);
            }
        }
        let late_hosts = self.launches.take(&launched_s);
        let by_work = by_work.map(|held| HeldUp {
            // The judge sees what is left of blocks without their devices: to it iterations with
            // slow devices are as usual as others.
            usual_s: self.steady.usual_span_s().unwrap_or(held.usual_s),
            ..Self::by_devices(held, &parts)
        });
        let by_rest = by_rest.map(|mut held| {
            // A device waits for its host in a pipeline for many reasons, as a queue that a
            // read-back emptied: only a host that took longer itself is one.
            keep_causes(&mut held, |rank| late_hosts.contains(&rank));
            self.set_host_parts(&mut held, timed, stages);
            held
        });
        let own_s = own_times(timed);
        // Before `steady.take` and `learn`: the iteration must not be compared with itself.
        let lost = self.lost_to_slower(timed, &own_s, pipelines, by_work.as_ref());
        let slower = lost.keys().map(|(rank, _)| *rank);
        let not_usual = late_hosts.into_iter().chain(slower).collect();
        let spans_s = timed.values().map(|timed| timed.done.took_s());
        let steady = self.steady.take(&own_s, spans_s.fold(0.0, f64::max), lost);
        self.learn(timed, &parts, not_usual);
        let held = match (by_work, by_rest) {
            (Some(mut held), Some(rest)) => {
                held.lost_s += rest.lost_s;
                held.causes.extend(rest.causes);
                held.absorbed.extend(rest.absorbed);
                Some(held)
            }
            (by_work, by_rest) => by_work.or(by_rest),
        };
        held.into_iter().chain(steady).collect()
    }

    /// What the iteration lost to each device that is slower in a pass, if only by less than a block
    /// must be too long by.
    fn lost_to_slower(
        &self,
        timed: &BTreeMap<u32, TimedIteration>,
        own_s: &OwnTimes,
        pipelines: &[PipelineRanks],
        by_blocks: Option<&HeldUp>,
    ) -> BTreeMap<(u32, Pass), Struck> {
        let slower = self.steady.slower(own_s);
        if slower.is_empty() {
            return BTreeMap::new();
        }
        // However little each of its blocks takes longer, all of them do.
        let any_excess = ScheduleSettings {
            performance_gate: 1.0,
            block_excess: 0.0,
            cause_share_min: 0.0,
            ..self.settings.clone()
        };
        let of = |rank| timed.get(&rank).map(|timed| &timed.done);
        let is_named = |rank| {
            let mut named = by_blocks.iter().flat_map(|held| &held.causes);
            named.any(|(named, _)| *named == rank)
        };
        slower
            .into_iter()
            .filter_map(|(key, times)| {
                let times_s = |rank, done: &Done| {
                    let usual_s = self.usual.get(&done.key)?.took_s.known()?;
                    let is_slower = key == (rank, done.key.1);
                    Some([if is_slower { times * usual_s } else { usual_s }, usual_s])
                };
                let mut held = self.judge.compare(pipelines, of, &any_excess, times_s)?;
                all_by_devices(&mut held);
                // Named for its blocks, it is charged for these.
                let is_reported = is_named(key.0);
                Some((key, Struck { held, is_reported }))
            })
            .collect()
    }

    /// What blocks of ranks took, by parts.
    fn parts(&self, timed: &BTreeMap<u32, TimedIteration>) -> Parts {
        let blocks = timed.iter().flat_map(|(rank, timed)| {
            let blocks = timed.done.blocks.iter().zip(&timed.held_s);
            blocks.map(|(done, held_s)| (*rank, done, held_s))
        });
        blocks
            .map(|(rank, done, [_, held_most_s])| {
                let took_s = done.took_s();
                let level = self.usual.get(&done.key).map(|usual| &usual.took_s);
                let usual_s = level.and_then(Level::usual).unwrap_or(took_s);
                let more_s = (took_s - held_most_s - usual_s).max(0.0);
                let part = Part {
                    usual_s,
                    is_known: level.is_some_and(Level::is_known),
                    more_s,
                    rest_s: took_s - more_s,
                };
                ((rank, done.key), part)
            })
            .collect()
    }

    /// What is left of it without ranks whose devices are no slower than most.
    fn by_devices(mut held: HeldUp, parts: &Parts) -> HeldUp {
        let mut by_rank: BTreeMap<u32, [f64; 2]> = BTreeMap::new();
        for ((rank, _), part) in parts {
            let [more_s, usual_s] = by_rank.entry(*rank).or_default();
            *more_s += part.more_s;
            *usual_s += part.usual_s;
        }
        // As a part of the usual: stages of a model have unlike work.
        let excess: Vec<f64> = by_rank
            .values()
            .map(|[more_s, usual_s]| more_s / usual_s)
            .collect();
        let others = model::medians_of_others(&excess);
        let beside = excess.into_iter().zip(others);
        let own_ranks: BTreeSet<u32> = by_rank
            .into_keys()
            .zip(beside)
            .filter(|&(_, (own, common))| own - common >= OWN_SHARE * own)
            .map(|(rank, _)| rank)
            .collect();
        keep_causes(&mut held, |rank| own_ranks.contains(&rank));
        all_by_devices(&mut held);
        held
    }

    /// Whether a device took too long for a block by itself.
    fn is_slow(&self, part: &Part) -> bool {
        part.more_s > self.settings.block_excess * part.usual_s
    }

    /// Says for how much longer than usual hosts may have held their devices up.
    fn set_host_parts(
        &self,
        held: &mut HeldUp,
        timed: &BTreeMap<u32, TimedIteration>,
        stages: u32,
    ) {
        for (rank, slow) in &mut held.causes {
            let key = key_of_slow(slow, stages);
            let Some(timed) = timed.get(rank) else {
                continue;
            };
            let mut blocks = timed.done.blocks.iter().zip(&timed.held_s);
            let block = blocks.find(|(done, _)| done.key == key);
            // The least beyond the usual most, and the other way round: whatever the truth is lies
            // between.
            slow.host_s = block.and_then(|(_, [least_s, most_s])| {
                let [usual_least_s, usual_most_s] = &self.usual.get(&key)?.held_s;
                Some([
                    least_s - usual_most_s.usual()?,
                    most_s - usual_least_s.usual()?,
                ])
            });
        }
    }

    /// Learns what ranks took that are not late and whose devices are not slow.
    fn learn(
        &mut self,
        timed: &BTreeMap<u32, TimedIteration>,
        parts: &Parts,
        mut late: BTreeSet<u32>,
    ) {
        let slow = parts.iter().filter(|(_, part)| self.is_slow(part));
        late.extend(slow.map(|((rank, _), _)| *rank));
        let mut seen: BTreeMap<PlaceKey, [Vec<f64>; 3]> = BTreeMap::new();
        for (_, timed) in timed.iter().filter(|(rank, _)| !late.contains(rank)) {
            for (done, [least_s, most_s]) in timed.done.blocks.iter().zip(&timed.held_s) {
                let parts_s = [done.took_s(), *least_s, *most_s];
                let of_block = seen.entry(done.key).or_default();
                for (all_s, part_s) in of_block.iter_mut().zip(parts_s) {
                    all_s.push(part_s);
                }
            }
        }
        for (key, mut parts_s) in seen {
            let usual = self.usual.entry(key).or_default();
            let [held_least_s, held_most_s] = &mut usual.held_s;
            let levels = [&mut usual.took_s, held_least_s, held_most_s];
            // Pipelines side by side have the same blocks: one value an iteration.
            for (level, all_s) in levels.into_iter().zip(&mut parts_s) {
                level.learn(model::median(all_s));
            }
        }
    }
}

/// Says that no host has a part in it: for what may be a host's, no device is named.
fn all_by_devices(held: &mut HeldUp) {
    for (_, slow) in &mut held.causes {
        slow.host_s = Some([0.0, 0.0]);
    }
}

/// What devices took for the blocks of each pass.
fn own_times(timed: &BTreeMap<u32, TimedIteration>) -> OwnTimes {
    let mut own_s = OwnTimes::new();
    for (rank, timed) in timed {
        for (done, [held_least_s, held_most_s]) in timed.done.blocks.iter().zip(&timed.held_s) {
            let own = own_s.entry((*rank, done.key.1)).or_default();
            own.least_s += done.took_s() - held_most_s;
            own.most_s += done.took_s();
            own.held_s += held_least_s;
        }
    }
    own_s
}

/// Leaves out other causes, and what was lost to them.
fn keep_causes(held: &mut HeldUp, is_kept: impl Fn(u32) -> bool) {
    let all_s = held.excess_s();
    held.causes.retain(|(rank, _)| is_kept(*rank));
    held.lost_s = if held.causes.is_empty() {
        0.0
    } else {
        // In proportion: what each block alone would have cost is not known.
        held.lost_s * held.excess_s() / all_s
    };
}

fn part_of<'parts>(parts: &'parts Parts, rank: u32, done: &Done) -> Option<&'parts Part> {
    parts.get(&(rank, done.key))
}

/// Which block it is, in pipelines of so many ranks.
fn key_of_slow(slow: &SlowBlock, ranks: u32) -> PlaceKey {
    // With interleaving, parts of the model lie on the ranks in turn.
    let stage = slow.stage as u32 + slow.block.chunk * ranks;
    (stage, slow.block.pass, slow.block.microbatch)
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
        // The device's clock; the host's only tells which mark it was, and what a launch took.
        let (began_ns, ended_ns) = (begin.device.0, end.device.0);
        if found.last().is_none_or(|timed| timed.done.has(&place)) {
            let done = RankIteration {
                step,
                began_ns,
                ..RankIteration::default()
            };
            found.push(TimedIteration {
                done,
                ..TimedIteration::default()
            });
        }
        let Some(timed) = found.last_mut() else {
            continue;
        };
        timed.done.blocks.push(Done {
            key: key_of_place(&place),
            began_ns,
            ended_ns,
        });
        timed.done.ended_ns = ended_ns;
        timed.held_s.push(block.held_s());
        let launched_s = timed.launched_s.entry(place.pass).or_default();
        *launched_s += end.host.seconds_since(begin.host);
    }
    found
}

#[cfg(test)]
mod tests;
