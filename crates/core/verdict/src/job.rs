mod accounting;
mod announcements;
mod compared;
mod devices;
mod document;
mod earlier;
mod fusion;
mod mark_streams;
mod notes;
mod placement;
mod profile;
mod profile_window;
mod recorded;
mod side_channels;
mod windows;

use model::{
    Announcement, Event, Input, JobContext, Mark, NetworkFault, RankNs, Source, StageId,
    StageNames, VerdictNote,
};
use steps::Aligner;

use crate::detectors::Detectors;
use crate::escalation::Escalation;
use crate::record::WindowRecords;
use crate::usages::Usages;
use crate::{Series, Settings};
use accounting::Accounting;
use announcements::Announcements;
use earlier::EarlierStarts;
use mark_streams::MarkStreams;
use notes::{Counted, Notes};
use placement::Placement;
use side_channels::SideChannels;

pub use profile::ProfiledRank;

/// One job, from marks to verdict.
#[derive(Debug)]
pub struct Job {
    id: String,
    source: Source,
    pub(crate) settings: Settings,
    names: StageNames,
    placement: Placement,
    streams: MarkStreams,
    aligner: Aligner,
    detectors: Detectors,
    earlier: EarlierStarts,
    accounting: Accounting,
    announcements: Announcements,
    records: WindowRecords,
    notes: Notes,
    side_channels: SideChannels,
    escalation: Escalation,
    usages: Usages,
}

impl Job {
    /// A job nothing is known of yet.
    pub fn new(id: &str, source: Source, settings: Settings) -> Self {
        let mut names = StageNames::default();
        let baseline = settings.baseline(&mut names);
        Self {
            id: id.to_owned(),
            source,
            names,
            placement: Placement::default(),
            streams: MarkStreams::default(),
            aligner: Aligner::new(settings.window.clone()),
            detectors: Detectors::new(&settings, baseline.clone()),
            earlier: EarlierStarts::default(),
            accounting: Accounting::new(settings.frontier.clone(), baseline),
            announcements: Announcements::default(),
            records: WindowRecords::default(),
            notes: Notes::default(),
            side_channels: SideChannels::default(),
            usages: Usages::default(),
            escalation: Escalation::new(settings.profile.clone(), settings.trigger.clone()),
            settings,
        }
    }

    /// The job's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Names of the job's stages.
    pub fn names(&self) -> &StageNames {
        &self.names
    }

    /// Gives a stage an id, for windows that are built elsewhere.
    pub fn intern(&mut self, stage: &str) -> StageId {
        self.names.intern(stage)
    }

    /// Exposed time and lag over the run.
    pub fn series(&self) -> &Series {
        self.accounting.series()
    }

    /// Takes the next thing there is to know about the job.
    pub fn take(&mut self, input: Input) {
        // Most inputs are marks. They are handed on as they came: to move or copy one costs as much
        // as to look at it.
        if let Input::Mark { rank, mark } = &input {
            self.mark(*rank, mark, &input);
            return;
        }
        self.observe(&input);
        match input {
            Input::Rank {
                rank,
                host,
                role,
                first_local,
                locals,
                world_size,
            } => {
                let host_ranks = first_local..first_local.saturating_add(locals);
                self.aligner.expect_host(rank, &host, host_ranks, role);
                self.placement.place(rank, host);
                self.aligner.set_world_size(world_size);
            }
            Input::Name { rank, name } => {
                let stage = self.names.intern(&name);
                self.streams.name(rank, stage);
            }
            Input::Note(note) => self.note(VerdictNote::Source(note)),
            Input::Lost { rank, records } => self.streams.lose(rank, records),
            Input::NoProgress { at } => {
                let last_at = self.last_at();
                let is_blocked =
                    last_at.is_some_and(|last_at| self.escalation.is_blocked(at, last_at));
                self.detectors
                    .collectives
                    .hangs
                    // Where each rank of a pipeline stands is worked out only if the job has
                    // stalled.
                    .quiet(at, is_blocked, || self.detectors.pipelines.standing());
            }
            Input::EndAsked { at } => {
                let standing = || self.detectors.pipelines.standing();
                self.detectors.collectives.hangs.end_asked(at, standing);
            }
            Input::ProfileOrdered {
                ranks,
                first_step,
                steps,
            } => {
                let steps = first_step..first_step.saturating_add(steps);
                self.order_profile(&ranks, &steps);
            }
            Input::Profiled { rank, window } => self.escalation.take_window(rank, *window),
            Input::Usage {
                rank,
                first_step,
                last_step,
                usage,
            } => {
                let steps = u64::from(first_step)..=u64::from(last_step);
                self.usages.take(rank, steps, usage);
            }
            Input::Device {
                ranks,
                first_step,
                last_step,
                usage,
            } => {
                let steps = u64::from(first_step)..=u64::from(last_step);
                self.usages.take_device(ranks, steps, *usage);
            }
            Input::ProfileEnded { ranks } => self.end_profile(&ranks),
            Input::Network {
                rank,
                fault: fault @ NetworkFault::Slower { .. },
            } => {
                self.note(VerdictNote::Network { rank, fault });
            }
            Input::Entered { rank, .. }
            // Of a recording without marks this is all that shows that a rank is there.
            | Input::Timed { rank, .. }
            | Input::Communicator { rank, .. } => self.placement.see(rank),
            Input::Left { rank, step, .. } => {
                // Its last step first: once it is gone, steps are settled without it.
                self.finish_rank(rank);
                self.aligner.leave(rank);
                let step = self.aligner.job_step(rank, step);
                self.notes.count(Counted::RankLeft(rank, step), 1);
                self.take_windows();
            }
            Input::Restart { attempt } => {
                self.restart();
                if attempt == 0 {
                    // It may be another training.
                    self.detectors.stages.tracker.forget_best();
                }
            }
            Input::Failed { .. }
            | Input::Group { .. }
            | Input::Killed { .. }
            | Input::InFlightSnapshot { .. }
            // Taken above.
            | Input::Mark { .. }
            | Input::Network { .. }
            | Input::Slow { .. }
            | Input::Stack { .. }
            | Input::StacksComplete
            | Input::SnapshotComplete => {
                // Of methods only.
            }
        }
    }

    /// All ranks start over; what was found stays.
    fn restart(&mut self) {
        // Before anything is forgotten: what is still open belongs to the start that has ended.
        self.end_profile(&[]);
        self.finish();
        let found = self.fused(JobContext {
            ended: true,
            ..self.context()
        });
        self.earlier.add(found, self.aligner.steps());
        self.aligner = Aligner::new(self.settings.window.clone());
        self.detectors.restart();
        self.escalation.restart();
        self.accounting.restart();
        // Other steps have the same numbers from now on.
        self.usages = Usages::default();
        self.notes.restart();
    }

    /// Ranks whose stacks would help to say why the job does not move.
    pub fn wanted_stacks(&self) -> Vec<u32> {
        self.detectors
            .collectives
            .hangs
            .wanted_stacks(self.placement.hosts().keys().copied())
    }

    /// The last mark of any rank.
    pub fn last_at(&self) -> Option<RankNs> {
        self.detectors.collectives.hangs.last_at()
    }

    /// Whether ranks have only repeated what they had done, for so long that others may wait in vain.
    pub fn is_repeating(&self, now: RankNs) -> bool {
        self.detectors.collectives.hangs.is_repeating(now)
    }

    /// Seconds without a mark after which the job may be said to hang.
    pub fn patience_s(&self) -> f64 {
        self.detectors.collectives.hangs.patience_s()
    }

    pub(crate) fn context(&self) -> JobContext<'_> {
        JobContext {
            exposed_s: self.accounting.exposed_in_start_s(),
            has_stages: self.accounting.steps() > 0.0,
            left_out: self.aligner.left_out(),
            counted_once: self.notes.are_counted_once(),
            ..self.placement.context(&self.names)
        }
    }

    /// Each method takes the next thing there is to know.
    fn observe(&mut self, input: &Input) {
        let context = JobContext {
            left_out: self.aligner.left_out(),
            ..self.placement.context(&self.names)
        };
        self.announcements
            .extend(self.detectors.observe(input, context));
    }

    /// Takes a mark, which is in `input`.
    fn mark(&mut self, rank: u32, mark: &Mark, input: &Input) {
        if let Event::DeviceTime(time) = &mark.event {
            // A device's time is no mark of the loop: it ends no stall, no segment and no step.
            self.device_time(rank, mark, time);
            return;
        }
        // A mark may end a stall, of which is spoken first.
        let moves = self.detectors.collectives.hangs.mark(rank, mark);
        self.announcements.moves_again(moves);
        if matches!(mark.event, Event::ProfilerBegin | Event::ProfilerEnd) {
            // While a profiler starts or stops a step takes longer, and says nothing of the job. Where ranks
            // run ahead, what holds one of them up reaches the others in later steps.
            let step = self.aligner.job_step(rank, mark.step);
            let last = self.step().max(step);
            self.aligner.leave_out_also(step..=last);
        }
        self.observe(input);
        let stage = self.streams.stage(rank, &mark.event);
        self.side_channels.take(stage, &mark.event);
        if let Some(step) = self.streams.push(rank, mark, stage) {
            self.placement.see(rank);
            self.escalation.step(rank, &step);
            self.aligner.push(rank, step);
            self.take_windows();
        } else if mark.event == Event::OptimizerEnd {
            // An optimizer has run: the rank trains, though none of its steps is whole yet.
            self.placement.see(rank);
        }
    }

    fn finish_rank(&mut self, rank: u32) {
        if let Some(step) = self.streams.finish(rank) {
            self.aligner.push(rank, step);
        }
    }

    /// Ends the job: what is still open is closed.
    pub fn finish(&mut self) {
        // Open steps first: the aligner settles without what it does not have.
        for rank in self.streams.open() {
            self.finish_rank(rank);
        }
        self.aligner.finish();
        self.take_windows();
        let context = self.placement.context(&self.names);
        self.announcements.extend(self.detectors.finish(context));
    }

    /// What was announced since the last call, for people who watch.
    pub fn take_announcements(&mut self) -> Vec<Announcement> {
        self.announcements.take()
    }

    /// Number of ranks seen so far.
    pub fn ranks(&self) -> usize {
        self.placement.seen().len()
    }

    /// Number of steps seen so far.
    pub fn steps(&self) -> u64 {
        self.earlier.steps() + self.aligner.steps()
    }
}

#[cfg(test)]
mod tests;
