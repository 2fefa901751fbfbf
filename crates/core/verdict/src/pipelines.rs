use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use diagnosis::Detector;
use incident::{IncidentSettings, Looked, SlowBlocks, absorbed, halted};
use model::{
    AbsorbedBlock, Announcement, BlockPlace, BlockTime, Claim, CollectiveIssue, CollectiveOp,
    Event, Fact, Finding, Input, JobContext, Mark, Pass, RankNs, StageId, Standstill, UnlikeDevice,
};
use schedule::{
    DeviceBlock, DeviceWatch, HeldUp, ScheduleSettings, SlowBlock, UnlikeStage, Watch, Worked,
    holding_up,
};

/// Ranks and stages of which it is kept that they held up their pipelines: those that did last, and the
/// costliest of the others.
const MAX_SLOW: usize = 64;
/// Blocks that were slow at no cost of which it is kept, the latest.
const MAX_ABSORBED: usize = 256;

/// Marks of blocks of one rank that may wait for their device: what it launches in a few steps.
const MAX_MARKED: usize = 4096;
/// Steps after which a rank whose device has reported nothing is one without.
const LAST_UNSEEN: u32 = 128;

/// Pipelines of a running job, and who held them up.
///
/// Blocks count by the clocks of devices, where these are seen: a host may only have launched
/// them.
#[derive(Debug)]
pub(crate) struct Pipelines {
    schedule: ScheduleSettings,
    settings: IncidentSettings,
    watch: Watch,
    devices: DeviceWatch,
    /// Marks of blocks whose device times are to come, of each rank.
    marked: BTreeMap<u32, VecDeque<Marked>>,
    /// Whether a device has reported when it got to a mark.
    has_devices: bool,
    looked: Looked,
    slow: Vec<Numbered>,
    absorbed: Vec<AbsorbedBlock>,
    /// Of those that were slow, in all starts of the job.
    numbers: u64,
}

/// A mark of a block in a step that may be sampled.
#[derive(Clone, Copy, Debug)]
struct Marked {
    at: RankNs,
    step: u32,
    begins: bool,
    place: BlockPlace,
}

/// Slow blocks, in the order in which they were found.
#[derive(Debug)]
struct Numbered {
    number: u64,
    blocks: SlowBlocks,
    /// Whether they are worth a word.
    notable: bool,
}

impl Pipelines {
    pub(crate) fn new(schedule: ScheduleSettings, settings: IncidentSettings) -> Self {
        Self {
            devices: DeviceWatch::new(schedule.clone()),
            watch: Watch::new(schedule.clone()),
            schedule,
            settings,
            marked: BTreeMap::new(),
            has_devices: false,
            looked: Looked::default(),
            slow: Vec::new(),
            absorbed: Vec::new(),
            numbers: 0,
        }
    }

    /// Takes a mark; the numbers of blocks that are slow for the first time, for [`Self::claim`]. In
    /// a step that is left out none is called slow.
    fn mark(&mut self, rank: u32, mark: &Mark, left_out: impl Fn(u32) -> bool) -> Vec<u64> {
        let (begins, place) = match mark.event {
            Event::CollectiveIssue(issue) => {
                self.issue(rank, mark.at, &issue);
                return Vec::new();
            }
            Event::BlockBegin(place) => (true, place),
            Event::BlockEnd(place) => (false, place),
            _ => return Vec::new(),
        };
        // Of what a rank could not say there are no stages.
        if place.stage >= place.stages {
            return Vec::new();
        }
        // Any step may be sampled: more are asked for while something is suspected.
        if self.has_devices || mark.step < LAST_UNSEEN {
            let marked = self.marked.entry(rank).or_default();
            if marked.len() == MAX_MARKED {
                marked.pop_front();
            }
            marked.push_back(Marked {
                at: mark.at,
                step: mark.step,
                begins,
                place,
            });
        }
        // Also where devices report times: hangs, and which rank waits for which, go by the host's
        // marks.
        let held = self.watch.mark(rank, mark);
        if self.has_devices {
            // What the host launches says nothing of its device.
            return Vec::new();
        }
        self.looked.until(mark.step);
        let new = held.iter().flat_map(|held| self.take(held, &left_out));
        new.collect()
    }

    fn issue(&mut self, rank: u32, at: RankNs, issue: &CollectiveIssue) {
        match *issue {
            CollectiveIssue {
                op: CollectiveOp::RECEIVE,
                ..
            } => self.watch.receive(rank),
            CollectiveIssue {
                op: CollectiveOp::SEND,
                ..
            } => self.watch.send(rank),
            // Without a number nothing shows which issues of several ranks belong together.
            CollectiveIssue { number: 1.., .. } => self.watch.meet(rank, at.0, issue),
            _ => {}
        }
    }

    /// Takes when the device of a rank got to marks of blocks in a run of sampled steps; which blocks
    /// are slow for the first time, as [`Self::mark`] does.
    pub(crate) fn device(
        &mut self,
        rank: u32,
        times: &[BlockTime],
        left_out: impl Fn(u32) -> bool,
    ) -> Vec<u64> {
        let blocks = self.blocks(rank, times);
        let found = self.devices.take(rank, &blocks, &self.watch);
        // Before the blocks are taken: what is notable depends on how many steps were looked at.
        self.looked.at(self.devices.take_steps());
        let new = found.iter().flat_map(|held| self.take(held, &left_out));
        new.collect()
    }

    /// A device tells its times: hosts are not believed any more.
    pub(crate) fn see_device(&mut self) {
        if !self.has_devices {
            self.has_devices = true;
            // What hosts showed until now were launches.
            self.looked = Looked::sampled();
            self.slow.clear();
            self.absorbed.clear();
        }
    }

    /// The blocks whose begin and end a device got to at these times.
    fn blocks(&mut self, rank: u32, times: &[BlockTime]) -> Vec<DeviceBlock> {
        let Some(marked) = self.marked.get_mut(&rank) else {
            return Vec::new();
        };
        let mut open: Option<(BlockPlace, BlockTime)> = None;
        let mut blocks = Vec::new();
        for time in times {
            // What was given up before has no time.
            while marked.front().is_some_and(|mark| mark.at < time.host) {
                marked.pop_front();
            }
            let Some(mark) = marked.pop_front_if(|mark| mark.at == time.host) else {
                // Without its begin or its end a block has no length.
                open = None;
                continue;
            };
            let Marked {
                step,
                begins,
                place,
                ..
            } = mark;
            let begun = open.take().filter(|(begun, _)| *begun == place);
            if begins {
                open = Some((place, *time));
            } else if let Some((_, begin)) = begun {
                blocks.push(DeviceBlock {
                    step,
                    place,
                    begin,
                    end: *time,
                });
            }
        }
        blocks
    }

    fn take(&mut self, held: &HeldUp, left_out: impl Fn(u32) -> bool) -> Vec<u64> {
        if left_out(held.step) {
            return Vec::new();
        }
        self.absorbed.extend(absorbed(held));
        self.absorbed
            .drain(..self.absorbed.len().saturating_sub(MAX_ABSORBED));
        let mut by_stage: BTreeMap<usize, (Vec<u32>, Vec<SlowBlock>)> = BTreeMap::new();
        for (rank, slow) in &held.causes {
            let (ranks, blocks) = by_stage.entry(slow.stage).or_default();
            ranks.push(*rank);
            blocks.push(*slow);
        }
        // Each cause took longer than usual, so that this divides.
        let all_s: f64 = held.causes.iter().map(|(_, slow)| slow.excess_s()).sum();
        let mut new = Vec::new();
        for (stage, (mut ranks, blocks)) in by_stage {
            ranks.sort_unstable();
            ranks.dedup();
            let known = self
                .slow
                .iter()
                .position(|slow| slow.blocks.ranks == ranks && slow.blocks.stage == stage);
            let at = known.unwrap_or_else(|| {
                self.numbers += 1;
                let blocks = SlowBlocks::new(ranks, stage);
                self.slow.push(Numbered {
                    number: self.numbers,
                    blocks,
                    notable: false,
                });
                self.slow.len() - 1
            });
            let excess_s: f64 = blocks.iter().map(SlowBlock::excess_s).sum();
            // Divided by how much longer each was, so that together they cost what was lost.
            let lost_s = held.lost_s * excess_s / all_s;
            if let Some(slow) = self.slow.get_mut(at) {
                slow.blocks.strike(held, lost_s, &blocks, &self.looked);
                if !slow.notable && slow.blocks.is_notable(&self.looked, &self.settings) {
                    slow.notable = true;
                    new.push(slow.number);
                }
            }
        }
        if self.slow.len() > MAX_SLOW {
            // What struck now stays: what makes room at once never shows what it costs.
            let struck_now = |slow: &Numbered| slow.blocks.last_step() == Some(held.step.into());
            self.slow.sort_by(|a, b| {
                let newest_first = struck_now(b).cmp(&struck_now(a));
                newest_first.then_with(|| costliest_first(a, b))
            });
            self.slow.truncate(MAX_SLOW);
        }
        new
    }

    /// What [`Self::mark`] gave the number of; `None` if it made room for costlier ones.
    pub(crate) fn claim(&self, number: u64, context: JobContext<'_>) -> Option<Claim> {
        let slow = &self.slow.iter().find(|slow| slow.number == number)?.blocks;
        let id = String::new();
        Some(
            slow.finding(context, id, &self.settings, &self.looked, context.exposed_s)
                .claim,
        )
    }

    /// Where ranks of pipelines are, of a job that hangs.
    pub(crate) fn standing(&self) -> Vec<Standstill> {
        self.watch.standing()
    }

    /// The same as facts, of the ranks that hold it up or, if they are in no pipeline, of those
    /// that hold the pipelines up.
    pub(crate) fn halted(&self, ranks: &[u32]) -> impl Iterator<Item = Fact> {
        let all = self.watch.standing();
        let here = all
            .iter()
            .filter(|it| ranks.contains(&it.rank))
            .copied()
            .collect();
        let mut halts = holding_up(here);
        if halts.is_empty() {
            halts = holding_up(all);
        }
        halts.into_iter().map(halted)
    }

    /// Whether more should be known of the devices: blocks of one of them were slow a moment ago.
    pub(crate) fn suspects_devices(&self) -> bool {
        self.has_devices && self.slow.iter().any(|it| it.blocks.go_on(&self.looked))
    }

    /// Whether blocks of pipelines are marked that cannot be seen: hosts only launch them.
    pub(crate) fn are_unseen(&self) -> bool {
        !self.has_devices && self.watch.is_ahead()
    }

    /// Whether ranks may seem late that wait for another stage.
    pub(crate) fn has_waits(&self) -> bool {
        self.watch.has_blocks()
    }

    /// What a rank worked in its blocks about these steps, beside its copies in other pipelines.
    pub(crate) fn own_work(&self, rank: u32, steps: &RangeInclusive<u64>) -> Option<Worked> {
        if self.has_devices {
            return self.devices.own_work(rank, steps, &self.watch);
        }
        self.watch.own_work(rank, steps)
    }

    /// Devices that take longer for a pass than those of other stages, and always did.
    pub(crate) fn unlike_devices(&self, context: JobContext<'_>) -> Vec<UnlikeDevice> {
        let unlike = self
            .devices
            .unlike(self.settings.steady_share_min, &self.watch)
            .into_iter();
        let device = |it: UnlikeStage| UnlikeDevice {
            rank: it.rank,
            stage: context
                .names
                .name(match it.pass {
                    Pass::Forward => StageId::FORWARD,
                    Pass::Backward | Pass::Weight => StageId::BACKWARD,
                })
                .to_owned(),
            side: it.side,
            took_s: it.took_s,
            others_s: it.others_s,
        };
        unlike.map(device).collect()
    }

    /// Slow blocks nobody had to wait for.
    pub(crate) fn absorbed(&self) -> &[AbsorbedBlock] {
        &self.absorbed
    }
}

impl Detector for Pipelines {
    fn observe(&mut self, input: &Input, context: JobContext<'_>) -> Vec<Announcement> {
        match input {
            Input::Group { group, members, .. } => {
                self.watch.join(*group, members.len());
                Vec::new()
            }
            Input::Mark { rank, mark } => {
                let new = self.mark(*rank, mark, |step| context.is_left_out(step));
                if new.is_empty() {
                    return Vec::new();
                }
                let claims = new.into_iter().filter_map(|new| self.claim(new, context));
                claims.map(Announcement::Found).collect()
            }
            _ => Vec::new(),
        }
    }

    /// What held the pipelines up, costliest first.
    fn findings(&self, context: JobContext<'_>) -> Vec<Finding> {
        let mut slow: Vec<&Numbered> = self.slow.iter().filter(|slow| slow.notable).collect();
        slow.sort_by(|a, b| costliest_first(a, b));
        slow.into_iter()
            .map(|Numbered { number, blocks, .. }| {
                blocks.finding(
                    context,
                    format!("s{number}"),
                    &self.settings,
                    &self.looked,
                    context.exposed_s,
                )
            })
            .collect()
    }

    fn restart(&mut self) {
        let absorbed = std::mem::take(&mut self.absorbed);
        let fresh = Self::new(self.schedule.clone(), self.settings.clone());
        *self = Self {
            // Those of earlier starts stay in the verdict, as incidents do.
            absorbed,
            numbers: self.numbers,
            ..fresh
        };
    }
}

fn costliest_first(a: &Numbered, b: &Numbered) -> Ordering {
    b.blocks.lost_s().total_cmp(&a.blocks.lost_s())
}

#[cfg(test)]
mod tests {
    use model::{Pass, PipelineBlock};

    use super::*;

    /// A step that lost so many seconds to these ranks, each at a stage of its number.
    fn held_up(step: u32, lost_s: f64, ranks: &[u32]) -> HeldUp {
        let slow = |rank: &u32| {
            let slow = SlowBlock {
                pipeline: 0,
                stage: *rank as usize,
                block: PipelineBlock {
                    pass: Pass::Forward,
                    microbatch: 0,
                    chunk: 0,
                },
                node: 0,
                took_s: 0.2,
                usual_s: 0.1,
                slack_s: 0.0,
                host_s: None,
            };
            (*rank, slow)
        };
        HeldUp {
            step,
            took_s: 0.3 + lost_s,
            usual_s: 0.3,
            lost_s,
            causes: ranks.iter().map(slow).collect(),
            absorbed: Vec::new(),
        }
    }

    fn pipelines() -> Pipelines {
        Pipelines::new(ScheduleSettings::default(), IncidentSettings::default())
    }

    #[test]
    fn blocks_of_steps_that_are_profiled_are_not_slow() {
        let mut pipelines = pipelines();
        let mut new = |step| {
            let held = held_up(step, 0.1, &[1]);
            pipelines.take(&held, |step| (5..=15).contains(&step))
        };
        assert_eq!([5, 15, 16].map(&mut new), [vec![], vec![], vec![1]]);
    }

    #[test]
    fn each_slow_block_is_announced_however_many_are_known() {
        let mut pipelines = pipelines();
        let (names, hosts, seen) = Default::default();
        let context = JobContext::new(&names, &hosts, &seen);
        for rank in 0..2 * MAX_SLOW as u32 {
            // The later, the cheaper.
            let held = held_up(rank, 0.1 - f64::from(rank) * 1e-4, &[rank]);
            let new = pipelines.take(&held, |_| false);
            let claims = new.iter().filter_map(|new| pipelines.claim(*new, context));
            let ranks: Vec<Vec<u32>> = claims
                .map(|claim| match claim {
                    Claim::HeldUpSteps(held) => held.ranks,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(ranks, [[rank]]);
        }
        assert_eq!(pipelines.slow.len(), MAX_SLOW);
        // Of two ranks in one step both are.
        let held = held_up(200, 0.1, &[200, 201]);
        assert_eq!(pipelines.take(&held, |_| false).len(), 2);
    }
}
