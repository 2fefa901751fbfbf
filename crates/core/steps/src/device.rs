//! Sampled steps on the clock of the device.

mod groups;
mod on_hosts;
mod reads;

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

use model::{
    Block, BlockTime, Cut, DeviceTime, DeviceWindow, Event, HostTimes, Mark, Meeting, RankNs,
    RankStep, ReadBacks, StageId,
};

use self::groups::waits_in_groups_s;
use self::on_hosts::MetOnHosts;
use self::reads::{Reads, Waits};
use crate::Segmenter;
use crate::align::JobStep;
use crate::build::build_cut;
use crate::cells::{DeliveredSteps, is_of_kind};
use crate::meeting::{choose_device_cut, cuts_beside};

/// Marks one run of sampled steps may have; a rank that sends more is not believed.
const MAX_MARKS: usize = 16_384;
/// Sampled steps that wait for the other ranks' or for an account.
const MAX_STEPS: usize = 64;
/// Rows an account needs to tell a fault from noise. Ours: a steady fault strikes five times.
const MIN_ROWS: usize = 5;

/// Share of what devices take longer than the quickest from which their hosts hold them up. Ours.
const HELD_SHARE: f64 = 0.5;

/// Steps that are sampled together: one after another, so that what precedes a step is seen, too.
const RUN_STEPS: u32 = 4;
/// A host that is ahead of its device by no more has only just launched something. Ours: several
/// times what a launch takes.
const LAUNCH_S: f64 = 1e-4;
/// Steps that may be asked for at a time: enough for an account.
pub const MAX_ASKED_STEPS: u32 = 8 * RUN_STEPS;
/// One run of so many is sampled.
const ONE_OF: u32 = 10;
/// Steps in which every second run is: a job has its first verdict soon.
const FIRST_STEPS: u32 = 128;

/// The run of steps that a step belongs to, sampled or not as a whole.
pub fn run_of(step: u32) -> RangeInclusive<u32> {
    let first = step - step % RUN_STEPS;
    first..=first.saturating_add(RUN_STEPS - 1)
}

/// Whole runs of steps, from `step` on: about so many steps, two runs at least.
pub fn runs_from(step: u32, steps: f64) -> Range<u32> {
    let first = step.saturating_add(RUN_STEPS - 1) / RUN_STEPS * RUN_STEPS;
    // Two runs side by side have the five rows of an account, one has not.
    let runs = (steps.min(f64::from(MAX_ASKED_STEPS)) as u32 / RUN_STEPS).max(2);
    first..first.saturating_add(runs * RUN_STEPS)
}

/// Whether device marks are made in a step: of one in ten on average, the same on all ranks and
/// at no fixed distance.
pub fn is_sampled(step: u32) -> bool {
    // Multiplicative hashing by the golden ratio, as Knuth has it; high bits are well mixed.
    // One is added, as zero would hash to zero.
    let hash = (step / RUN_STEPS).wrapping_add(1).wrapping_mul(0x9e37_79b9) >> 16;
    hash.is_multiple_of(if step < FIRST_STEPS { 2 } else { ONE_OF })
}

/// What the device did at one mark of the host.
#[derive(Clone, Copy, Debug)]
struct DevicePoint {
    mark: Mark,
    stage: StageId,
    host: RankNs,
    device: RankNs,
}

impl DevicePoint {
    /// By how much the host's clock stands before the device's, if the device got to the mark at
    /// once.
    fn offset_ns(&self) -> i128 {
        i128::from(self.host.0) - i128::from(self.device.0)
    }

    /// How far the host was ahead here, if the clocks are apart by at least and at most as much.
    fn run_ahead(&self, offset_ns: [i128; 2]) -> RunAhead {
        let [least_s, most_s] = offset_ns.map(|ns| (ns - self.offset_ns()) as f64 * 1e-9);
        RunAhead { least_s, most_s }
    }
}

/// How far the host was ahead of its device at a mark, in seconds.
///
/// The clocks of host and device are not compared: a device gets to a mark after the host made it
/// and before the host saw that it did. Over a run of steps this bounds the offset of the clocks
/// from both sides.
///
/// Once the host has made a mark, all before it is launched. Of the time that the device takes up
/// to that mark, the host can only have held it up in what lies more than the run-ahead before its
/// end.
/// # Source
/// Ours: docs/math/device.md.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RunAhead {
    least_s: f64,
    most_s: f64,
}

impl RunAhead {
    fn or_further(self, other: Self) -> Self {
        let least_s = self.least_s.max(other.least_s);
        Self {
            least_s,
            most_s: self.most_s.max(other.most_s),
        }
    }
}

/// What a segment of a sampled step is measured in. Each is a clock that goes on over a run.
#[derive(Clone, Copy, Debug)]
enum StepClock {
    /// The device's own.
    Device,
    /// Goes on only while the host must have held the device up, and while it may have.
    HostBoundLeast,
    HostBoundMost,
    /// The host's own.
    Host,
    /// Goes on only while the host reads something back.
    Reading,
    /// The host's behind the last read-back of a segment.
    AfterRead,
    /// The device's up to where the last read-back of a segment begins.
    BeforeRead,
}

const CLOCKS: usize = 7;

/// One sampled step of one rank: the same segments on each clock.
#[derive(Clone, Debug)]
struct SampledStep {
    on: [RankStep; CLOCKS],
    /// By how much the host's clock stands before that of its device, at least and at most.
    offset_ns: [i128; 2],
    /// How far the host is ahead at its first mark, and where that is most.
    begins_ahead: RunAhead,
    furthest: RunAhead,
    read_backs: ReadBacks,
}

impl SampledStep {
    fn device(&self) -> &RankStep {
        self.on(StepClock::Device)
    }

    fn on(&self, clock: StepClock) -> &RankStep {
        &self.on[clock as usize]
    }

    /// How far the host is ahead at the last mark of a kind: at least and at most, in seconds.
    fn ahead_s(&self, cut: Cut) -> [f64; 2] {
        let RunAhead { least_s, most_s } = self.begins_ahead;
        let [device_s, host_s] = [StepClock::Device, StepClock::Host].map(|clock| {
            let RankStep {
                start, segments, ..
            } = self.on(clock);
            let last = segments
                .iter()
                .rfind(|it| matches!(cut, Cut::After(kind) if is_of_kind(it.ending, kind)));
            last.map_or(0.0, |last| last.end.seconds_since(*start))
        });
        // While the host gets on more slowly than its device, that catches up with it.
        let more_s = device_s - host_s;
        [(least_s + more_s).max(0.0), (most_s + more_s).max(0.0)]
    }
}

/// What a run of sampled steps showed.
#[derive(Debug, Default)]
struct RunTimes {
    steps: Vec<SampledStep>,
    /// Of its marks of blocks, in order.
    blocks: Vec<BlockTime>,
}

/// Turns the device marks of one rank into sampled steps.
#[derive(Debug, Default)]
struct RankDeviceMarks {
    run: SampledRun,
    /// Where the clocks of [`SampledStep`] stood at the end of the last run: one that follows at
    /// once begins with the mark which that one ended with.
    ended: [u64; CLOCKS],
    waits: Waits,
}

/// Device marks of steps that follow one another.
#[derive(Debug, Default)]
struct SampledRun {
    first_step: Option<u32>,
    points: Vec<DevicePoint>,
    /// When the host saw that the device had got to a mark, less when the device did: the least
    /// so far.
    seen_ns: Option<i128>,
    /// The same of when it looked and the device had not: the most so far.
    missed_ns: Option<i128>,
    broken: bool,
}

impl RankDeviceMarks {
    /// Takes the next time, given by `mark`; `stage` is the job-wide id behind the name that the
    /// device reached, where it reached one. Returns what the run showed that it ends.
    fn push(&mut self, mark: &Mark, time: &DeviceTime, stage: StageId) -> RunTimes {
        let DeviceTime {
            reached,
            made_at,
            device_ns,
            first_step,
            place,
            seen_within_us,
        } = *time;
        // What the run before still lacks will not come.
        if self.run.first_step != Some(first_step) {
            self.run = SampledRun {
                first_step: Some(first_step),
                ..SampledRun::default()
            };
        }
        let run = &mut self.run;
        // Where a mark is lost, nobody knows what its neighbours took.
        run.broken |= place != run.points.len() as u64 || run.points.len() >= MAX_MARKS;
        let Some(event) = reached.event() else {
            let run = std::mem::take(run);
            return if run.broken {
                RunTimes::default()
            } else {
                run.times(&mut self.ended, &mut self.waits)
            };
        };
        if run.broken {
            return RunTimes::default();
        }
        // An upper bound of what the clocks are apart: the host saw it no sooner. And a lower one, if the
        // host had looked before (docs/math/device.md).
        let seen_ns = i128::from(mark.at.0) - i128::from(device_ns);
        run.seen_ns = Some(run.seen_ns.map_or(seen_ns, |known| known.min(seen_ns)));
        if seen_within_us > 0 {
            let missed_ns = seen_ns - i128::from(seen_within_us) * 1_000;
            run.missed_ns = Some(
                run.missed_ns
                    .map_or(missed_ns, |known| known.max(missed_ns)),
            );
        }
        let device = RankNs(device_ns);
        let mark = Mark {
            at: device,
            event,
            ..*mark
        };
        run.points.push(DevicePoint {
            mark,
            stage,
            host: made_at,
            device,
        });
        RunTimes::default()
    }
}

impl SampledRun {
    /// What a run tells that is whole, on clocks that go on from `clocks`.
    fn times(self, clocks: &mut [u64; CLOCKS], waits: &mut Waits) -> RunTimes {
        // The lower bound: no device gets to a mark before its host has made it, or has looked in vain
        // (docs/math/device.md).
        let made_ns = self.points.iter().map(DevicePoint::offset_ns);
        let Some(least_ns) = made_ns.chain(self.missed_ns).max() else {
            return RunTimes::default();
        };
        let most_ns = self.seen_ns.unwrap_or(least_ns).max(least_ns);
        let offset_ns = [least_ns, most_ns];
        let begin = self.points.first().map_or(0, |first| first.device.0);
        let on_clock_ns = i128::from(begin) - i128::from(clocks[0]);
        waits.take(&self.points, offset_ns);
        let mut segmenters: [Segmenter; CLOCKS] = Default::default();
        let (mut steps, mut blocks) = (Vec::new(), Vec::new());
        let mut before: Option<(&DevicePoint, RunAhead)> = None;
        let mut furthest = RunAhead::default();
        let mut begins_ahead = self
            .points
            .first()
            .map(|point| point.run_ahead(offset_ns))
            .unwrap_or_default();
        let mut reads = Reads::default();
        for point in &self.points {
            let ahead = point.run_ahead(offset_ns);
            if let Some((from, was_ahead)) = before {
                let device_s = point.device.seconds_since(from.device);
                let host_s = point.host.seconds_since(from.host);
                // The host can have held it up for what the device took less the run-ahead, if for
                // anything.
                let held_s = [ahead.most_s, ahead.least_s]
                    .map(|ahead_s| (device_s - ahead_s).clamp(0.0, device_s));
                reads.pass(from, point, ahead.least_s, held_s[1], RankNs(clocks[0]));
                if let Some(waits_s) = waits.waited_s([from, point], [was_ahead, ahead]) {
                    reads.wait(waits_s, RankNs(clocks[0]));
                }
                let [reading_s, after_s, before_s] = reads.split(from, point);
                // In the order of `StepClock`, by whose numbers steps are found.
                let passed_s = [
                    device_s, held_s[0], held_s[1], host_s, reading_s, after_s, before_s,
                ];
                for (clock, seconds) in clocks.iter_mut().zip(passed_s) {
                    *clock = clock.saturating_add((seconds * 1e9).round() as u64);
                }
            }
            before = Some((point, ahead));
            if matches!(point.mark.event, Event::BlockBegin(_) | Event::BlockEnd(_)) {
                let [device, host_bound_least, host_bound_most, ..] = clocks.map(RankNs);
                let host = point.host;
                blocks.push(BlockTime {
                    host,
                    device,
                    host_bound_least,
                    host_bound_most,
                });
            }
            furthest = furthest.or_further(ahead);
            let ended: Vec<RankStep> = segmenters
                .iter_mut()
                .zip(&*clocks)
                .filter_map(|(segmenter, at)| {
                    segmenter.push(
                        &Mark {
                            at: RankNs(*at),
                            ..point.mark
                        },
                        point.stage,
                    )
                })
                .collect();
            // The same marks on each clock: all end a step here, or none does.
            if let Ok(on) = <[RankStep; CLOCKS]>::try_from(ended) {
                let furthest = std::mem::take(&mut furthest);
                let begins_ahead = std::mem::replace(&mut begins_ahead, ahead);
                let read_backs = reads.take(&on[0]);
                steps.push(SampledStep {
                    on,
                    offset_ns: offset_ns.map(|ns| ns + on_clock_ns),
                    begins_ahead,
                    furthest,
                    read_backs,
                });
            }
        }
        RunTimes { steps, blocks }
    }
}

/// Collects the sampled steps of a job.
///
/// # Properties
/// Memory is bounded by 64 steps of all ranks.
#[derive(Debug, Default)]
pub struct DeviceClock {
    ranks: BTreeMap<u32, RankDeviceMarks>,
    steps: BTreeMap<u32, BTreeMap<u32, SampledStep>>,
    met: MetOnHosts,
}

impl DeviceClock {
    /// Forgets steps that say nothing of the job.
    pub fn leave_out(&mut self, is_left_out: impl Fn(u32) -> bool) {
        self.steps.retain(|step, _| !is_left_out(*step));
    }

    /// Takes what a mark of a rank tells of its device, with the stage whose name that reached.
    /// Returns when the device got to marks of blocks, once all of a run of sampled steps are
    /// known.
    pub fn push(
        &mut self,
        rank: u32,
        mark: &Mark,
        time: &DeviceTime,
        stage: StageId,
    ) -> Vec<BlockTime> {
        let RunTimes { steps, blocks } =
            self.ranks.entry(rank).or_default().push(mark, time, stage);
        for step in steps {
            self.steps
                .entry(step.device().step)
                .or_default()
                .insert(rank, step);
        }
        while self.steps.len() > MAX_STEPS {
            self.steps.pop_first();
        }
        blocks
    }

    /// The sampled steps of these ranks up to a step, once they are enough for an account; they
    /// are not given again. `hosts` says where each rank runs.
    pub fn take_window(
        &mut self,
        ranks: &[u32],
        last_step: u32,
        hosts: &BTreeMap<u32, String>,
    ) -> Option<DeviceWindow> {
        let numbers: Vec<u32> = self
            .steps
            .range(..=last_step)
            .filter(|(_, sampled)| ranks.iter().all(|rank| sampled.contains_key(rank)))
            .map(|(step, _)| *step)
            .collect();
        // Of a step without the one before it nobody knows what was carried into it.
        let rows = numbers
            .windows(2)
            .filter(|pair| pair[0] + 1 == pair[1])
            .count();
        if rows < MIN_ROWS {
            return None;
        }
        let sampled: Vec<(u32, BTreeMap<u32, SampledStep>)> = numbers
            .iter()
            .filter_map(|step| {
                let all = self.steps.get_mut(step)?;
                let taken = ranks
                    .iter()
                    .filter_map(|rank| Some((*rank, all.remove(rank)?)));
                Some((*step, taken.collect()))
            })
            .collect();
        self.steps.retain(|_, sampled| !sampled.is_empty());
        let device = plane(&sampled, StepClock::Device);
        let steps = DeliveredSteps::new(None, &device, ranks);
        // Devices meet where streams join, not where hosts issue, so their own times choose the
        // cut.
        let held_up = |cut| are_held_up(&sampled, ranks, cut).unwrap_or(false);
        let chosen = choose_device_cut(&steps, held_up, |cut| {
            let window = build_cut(DeliveredSteps::new(None, &device, ranks), ranks, cut)?;
            // On the other clocks only where that is of use.
            window.blocks.iter().any(Block::is_divided).then_some(())?;
            waits_in_groups_s(&window, &held_s(&sampled, ranks, cut)?)
        });
        let (mut cut, mut meeting) = (chosen.cut, chosen.meeting);
        let seen = chosen.unrecorded.filter(|_| meeting == Meeting::Seen);
        if let Some(issued) = seen.filter(|_| held_up(cut)) {
            (cut, meeting) = (issued, Meeting::Issued);
        }
        let cuts = cuts_beside(cut, &steps);
        if let Some(on_hosts) = self.met.at(&cuts, &steps, &sampled, ranks, hosts) {
            (cut, meeting) = on_hosts;
        }
        let mut window = build_cut(steps, ranks, cut)?;
        window.meeting = meeting;
        // Steps between the sampled ones are no hole in what was seen.
        (window.incomplete_steps, window.incomplete_s) = (0, 0.0);
        let mut ahead_s = Vec::with_capacity(window.blocks.len());
        for block in &window.blocks {
            let mut of_block = Vec::new();
            for step in &block.steps {
                // A row begins at the cut, which may lie in the step before.
                let begins_in = step - u64::from(cut != Cut::Data);
                let at = sampled.binary_search_by_key(&begins_in, |(step, _)| u64::from(*step));
                if let Ok(at) = at {
                    of_block.extend(sampled[at].1.values().map(|it| it.ahead_s(cut)));
                }
            }
            ahead_s.push(of_block);
        }
        // All clocks have the same marks and ranks, so each of these has the blocks of `window`, in
        // its order.
        let host = HostTimes {
            took_s: durations_s(&sampled, StepClock::Host, ranks, cut)?,
            read_s: durations_s(&sampled, StepClock::Reading, ranks, cut)?,
            after_read_s: durations_s(&sampled, StepClock::AfterRead, ranks, cut)?,
            device_before_read_s: durations_s(&sampled, StepClock::BeforeRead, ranks, cut)?,
            ahead_s,
        };
        let segments = device.iter().flat_map(|step| step.ranks.values());
        let segments = segments.flat_map(|step| &step.segments);
        let points_in = segments
            .filter(|it| it.ending.is_point_to_point())
            .map(|it| it.stage)
            .collect();
        let (mut least_s, mut most_s) = (Vec::new(), Vec::new());
        let mut read_backs = ReadBacks::default();
        for step in sampled.iter().flat_map(|(_, ranks)| ranks.values()) {
            least_s.push(step.furthest.least_s);
            most_s.push(step.furthest.most_s);
            read_backs += &step.read_backs;
        }
        Some(DeviceWindow {
            host_bound_least_s: durations_s(&sampled, StepClock::HostBoundLeast, ranks, cut)?,
            host_bound_most_s: durations_s(&sampled, StepClock::HostBoundMost, ranks, cut)?,
            host,
            run_ahead_s: model::median(&mut least_s).unwrap_or(0.0),
            run_ahead_most_s: model::median(&mut most_s).unwrap_or(0.0),
            read_backs,
            points_in,
            window,
        })
    }
}

/// Sampled steps of all ranks, ascending.
type SampledSteps = [(u32, BTreeMap<u32, SampledStep>)];

/// The steps on one of their clocks.
fn plane(sampled: &SampledSteps, clock: StepClock) -> Vec<JobStep> {
    sampled
        .iter()
        .map(|(step, ranks)| JobStep {
            step: *step,
            ranks: ranks
                .iter()
                .map(|(rank, it)| (*rank, it.on(clock).clone()))
                .collect(),
        })
        .collect()
}

/// Whether the devices that seem to wait for others in the segment that ends at the cut mostly have
/// nothing to do: their hosts hold them up, and do not read back meanwhile.
fn are_held_up(sampled: &SampledSteps, ranks: &[u32], cut: Cut) -> Option<bool> {
    let device = plane(sampled, StepClock::Device);
    let window = build_cut(DeliveredSteps::new(None, &device, ranks), ranks, cut)?;
    let held_s = held_s(sampled, ranks, cut)?;
    let (mut longer_s, mut held_longer_s) = (0.0, 0.0);
    for (block, held_s) in window.blocks.iter().zip(held_s) {
        let cells = block.boundaries.len() * block.ranks;
        for ((_, took_s), held_s) in block.rows().zip(held_s.chunks_exact(cells)) {
            let last = took_s.len().saturating_sub(block.ranks);
            let least_s = took_s[last..].iter().copied().fold(f64::INFINITY, f64::min);
            for (took_s, held_s) in took_s[last..].iter().zip(&held_s[last..]) {
                let more_s = took_s - least_s;
                longer_s += more_s;
                held_longer_s += held_s.min(more_s);
            }
        }
    }
    Some(held_longer_s > HELD_SHARE * longer_s)
}

/// By block, for how long of each segment hosts hold their devices up and do not read back meanwhile.
fn held_s(sampled: &SampledSteps, ranks: &[u32], cut: Cut) -> Option<Vec<Vec<f64>>> {
    let on = |clock| durations_s(sampled, clock, ranks, cut);
    let mut held_s = on(StepClock::HostBoundLeast)?;
    let (read_s, after_s) = (on(StepClock::Reading)?, on(StepClock::AfterRead)?);
    let cells = held_s.iter_mut().flatten().zip(read_s.iter().flatten());
    for ((held_s, read_s), after_s) in cells.zip(after_s.iter().flatten()) {
        // What it waits for while its host reads back may be another device.
        if *read_s > 0.0 {
            *held_s = held_s.min(*after_s);
        }
    }
    Some(held_s)
}

/// By block, what segments take on one of the clocks of the steps.
fn durations_s(
    sampled: &SampledSteps,
    clock: StepClock,
    ranks: &[u32],
    cut: Cut,
) -> Option<Vec<Vec<f64>>> {
    let steps = plane(sampled, clock);
    let window = build_cut(DeliveredSteps::new(None, &steps, ranks), ranks, cut)?;
    Some(
        window
            .blocks
            .into_iter()
            .map(|block| block.durations_s)
            .collect(),
    )
}

#[cfg(test)]
mod tests;
