use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use incident::{IncidentSettings, Scene, SlowBlocks, absorbed, halted};
use model::{CollectiveOp, Evidence, Incident, Mark, MarkKind};
use schedule::{
    HeldUp, Pass, Place, ScheduleSettings, SlowBlock, Standstill, Watch, Worked,
    holding_up,
};

/// Ranks and stages of which it is kept that they held up their pipelines, the costliest.
const MAX_SLOW: usize = 64;
/// Blocks that were slow at no cost of which it is kept, the latest.
const MAX_ABSORBED: usize = 256;

/// Pipelines of a running job, and who held them up.
#[derive(Debug)]
pub(crate) struct Pipelines {
    watch: Watch,
    slow: Vec<Numbered>,
    absorbed: Vec<String>,
    last_step: u64,
    /// Of those that were slow, in all starts of the job.
    numbers: u64,
}

/// Slow blocks, in the order in which they were found.
#[derive(Debug)]
struct Numbered {
    number: u64,
    blocks: SlowBlocks,
}

impl Pipelines {
    pub(crate) fn new(settings: ScheduleSettings) -> Self {
        let (slow, absorbed) = (Vec::new(), Vec::new());
        Self { watch: Watch::new(settings), slow, absorbed, last_step: 0, numbers: 0 }
    }

    /// The job is started over; no number is given twice.
    pub(crate) fn restart(&mut self, settings: ScheduleSettings) {
        let absorbed = std::mem::take(&mut self.absorbed);
        *self = Self { absorbed, numbers: self.numbers, ..Self::new(settings) };
    }

    /// A group has so many members.
    pub(crate) fn join(&mut self, group: u32, members: usize) {
        self.watch.join(group, members);
    }

    /// Takes a mark; whose blocks are slow for the first time, for [`Self::line`]. In a step that
    /// is left out none is called slow.
    pub(crate) fn mark(
        &mut self,
        rank: u32,
        mark: &Mark,
        left_out: impl Fn(u32) -> bool,
    ) -> Option<usize> {
        if mark.kind == MarkKind::CollectiveIssue {
            let [group, _, number, ..] = mark.args;
            match (CollectiveOp(mark.code), u32::try_from(group)) {
                (CollectiveOp::RECEIVE, _) => self.watch.receive(rank),
                (CollectiveOp::SEND, _) => self.watch.send(rank),
                (_, Ok(group)) if number > 0 => {
                    self.watch.meet(rank, group, number, mark.at.0);
                }
                _ => {}
            }
        }
        let place = place_of(mark)?;
        let held = if mark.kind == MarkKind::BlockBegin {
            self.watch.begin(rank, mark.at.0, place)
        } else {
            self.watch.end(rank, mark.step, mark.at.0, place)
        };
        self.last_step = self.last_step.max(mark.step.into());
        self.take(&held?, left_out)
    }

    fn take(&mut self, held: &HeldUp, left_out: impl Fn(u32) -> bool) -> Option<usize> {
        if left_out(held.step) {
            return None;
        }
        self.absorbed.extend(absorbed(held));
        self.absorbed.drain(..self.absorbed.len().saturating_sub(MAX_ABSORBED));
        let mut by_stage: BTreeMap<usize, (Vec<u32>, Vec<SlowBlock>)> = BTreeMap::new();
        for (rank, slow) in &held.causes {
            let (ranks, blocks) = by_stage.entry(slow.stage).or_default();
            ranks.push(*rank);
            blocks.push(*slow);
        }
        let all_s: f64 = held.causes.iter().map(|(_, slow)| slow.excess_s()).sum();
        let mut first_new = None;
        for (stage, (mut ranks, blocks)) in by_stage {
            ranks.sort_unstable();
            ranks.dedup();
            let known = self.slow.iter().position(|slow| {
                slow.blocks.ranks == ranks && slow.blocks.stage == stage
            });
            let at = known.unwrap_or_else(|| {
                self.numbers += 1;
                let blocks = SlowBlocks::new(ranks, stage);
                self.slow.push(Numbered { number: self.numbers, blocks });
                first_new.get_or_insert(self.slow.len() - 1);
                self.slow.len() - 1
            });
            let excess_s: f64 = blocks.iter().map(SlowBlock::excess_s).sum();
            let lost_s = held.lost_s * excess_s / all_s;
            if let Some(slow) = self.slow.get_mut(at) {
                slow.blocks.strike(held, lost_s, &blocks);
            }
        }
        if self.slow.len() > MAX_SLOW {
            self.slow.sort_by(costliest_first);
            self.slow.truncate(MAX_SLOW);
            return None;
        }
        first_new
    }

    /// What held the pipelines up, costliest first.
    pub(crate) fn incidents(
        &self,
        scene: Scene<'_>,
        settings: &IncidentSettings,
        exposed_s: f64,
    ) -> Vec<Incident> {
        let mut slow: Vec<&Numbered> = self.slow.iter().collect();
        slow.sort_by(|a, b| costliest_first(a, b));
        let told = slow.into_iter().map(|Numbered { number, blocks }| {
            let id = format!("s{number}");
            blocks.incident(scene, id, settings, self.last_step, exposed_s)
        });
        told.collect()
    }

    /// Words what [`Self::mark`] pointed at.
    pub(crate) fn line(
        &self,
        at: usize,
        scene: Scene<'_>,
        settings: &IncidentSettings,
    ) -> Option<String> {
        let slow = &self.slow.get(at)?.blocks;
        Some(slow.incident(scene, String::new(), settings, self.last_step, 0.0).text)
    }

    /// Where ranks of pipelines are, of a job that hangs.
    pub(crate) fn standing(&self) -> Vec<Standstill> {
        self.watch.standing()
    }

    /// The same as evidence, of the ranks that hold it up or, if they are in no pipeline, of those
    /// that hold the pipelines up.
    pub(crate) fn halted(&self, ranks: &[u32]) -> impl Iterator<Item = Evidence> {
        let all = self.watch.standing();
        let here = all.iter().filter(|it| ranks.contains(&it.rank)).copied().collect();
        let mut halts = holding_up(here);
        if halts.is_empty() {
            halts = holding_up(all);
        }
        halts.into_iter().map(|halt| halted(&halt))
    }

    /// Whether ranks may seem late that wait for another stage.
    pub(crate) fn has_waits(&self) -> bool {
        self.watch.has_blocks()
    }

    /// What a rank worked in its blocks about these steps, beside its copies in other pipelines.
    pub(crate) fn own_work(
        &self,
        rank: u32,
        steps: &RangeInclusive<u64>,
    ) -> Option<Worked> {
        self.watch.own_work(rank, steps)
    }

    /// Slow blocks nobody had to wait for.
    pub(crate) fn absorbed(&self) -> &[String] {
        &self.absorbed
    }
}

fn costliest_first(a: &Numbered, b: &Numbered) -> Ordering {
    b.blocks.lost_s().total_cmp(&a.blocks.lost_s())
}

fn place_of(mark: &Mark) -> Option<Place> {
    if !matches!(mark.kind, MarkKind::BlockBegin | MarkKind::BlockEnd) {
        return None;
    }
    let pass = Pass::of_code(mark.code)?;
    let [stage, microbatch, stages, first_rank, _] = mark.args.map(u32::try_from);
    let place = Place {
        pass,
        stage: stage.ok()?,
        microbatch: microbatch.ok()?,
        stages: stages.ok()?,
        first_rank: first_rank.ok()?,
    };
    // Of what a rank could not say there are no stages.
    (place.stage < place.stages).then_some(place)
}

#[cfg(test)]
mod tests {
    use schedule::Block;

    use super::*;

    #[test]
    fn blocks_of_steps_that_are_profiled_are_not_slow() {
        let mut pipelines = Pipelines::new(ScheduleSettings::default());
        let slow = SlowBlock {
            pipeline: 0,
            stage: 1,
            block: Block { pass: Pass::Forward, microbatch: 0, chunk: 0 },
            node: 0,
            took_s: 0.2,
            usual_s: 0.1,
            slack_s: 0.0,
        };
        let mut held = |step| {
            let causes = vec![(1, slow)];
            let (took_s, usual_s, lost_s) = (0.4, 0.3, 0.1);
            let absorbed = Vec::new();
            let held = HeldUp { step, took_s, usual_s, lost_s, causes, absorbed };
            pipelines.take(&held, |step| (5..=15).contains(&step))
        };
        assert_eq!([5, 15, 16].map(&mut held), [None, None, Some(0)]);
    }
}
