//! The devices behind the hosts of a job.

use std::ops::Range;

use model::{
    Announcement, DeviceTime, DevicesSeen, Mark, RankNs, Side, StageId, UnlikeDevice, VerdictNote,
};
use steps::runs_from;

use super::Job;
use crate::escalation::{known_step_s, step_in};
use crate::{Rule, Suspicion};

/// Share of exposed time from which hosts mostly wait for their devices. Ours: what no host does is
/// then the larger part.
const DEVICE_WAIT_SHARE: f64 = 0.5;
/// Share of the step from which a line that reads back is spoken of. Ours: what it may cost, at most.
const READ_BACK_SHARE: f64 = 0.1;

impl Job {
    /// Takes what the device of a rank did at a mark.
    pub(super) fn device_time(&mut self, rank: u32, mark: &Mark, time: &DeviceTime) {
        let hangs = &mut self.detectors.collectives.hangs;
        hangs.device_time(rank, mark.at, time);
        let event = time.reached.event();
        let stage = event.map_or(StageId::OTHER, |event| self.streams.stage(rank, &event));
        // Steps of devices are those of their hosts.
        let of_job = |step| self.aligner.job_step(rank, step);
        let (mut mark, mut time) = (*mark, *time);
        (mark.step, time.first_step) = (of_job(mark.step), of_job(time.first_step));
        let clock = &mut self.detectors.stages.devices.clock;
        let blocks = clock.push(rank, &mark, &time, stage);
        // Also at a mark of no block: that the device reports at all turns the host's blocks into
        // launches.
        self.detectors.pipelines.see_device();
        if blocks.is_empty() {
            return;
        }
        let new = self
            .detectors
            .pipelines
            .device(rank, &blocks, |step| self.aligner.is_left_out(step));
        self.tell_blocks(&new);
    }

    /// Says which blocks are slow for the first time.
    fn tell_blocks(&mut self, new: &[u64]) {
        let (pipelines, context) = (&self.detectors.pipelines, self.context());
        let claims = new.iter().filter_map(|new| pipelines.claim(*new, context));
        let found: Vec<Announcement> = claims.map(Announcement::Found).collect();
        self.announcements.extend(found);
    }

    /// Steps in which all devices should be marked: something is suspected, and hosts run ahead of
    /// them or work in a pipeline. `now` is the clock of the marks, `ahead_s` what it takes to reach all ranks.
    pub fn wanted_device_steps(&mut self, now: RankNs, ahead_s: f64) -> Option<Range<u32>> {
        const RULE: Rule = Suspicion::DevicesUnseen.rule();
        let stages = &self.detectors.stages;
        let asked_at = stages.devices.asked_at;
        if asked_at.is_some_and(|at| now.seconds_since(at) < RULE.every_s) {
            return None;
        }
        let is_late = self.escalation.is_slow() || stages.tracker.suspects_devices();
        // Blocks count by their devices however far hosts are ahead.
        // Where hosts do not run ahead, both clocks agree, and the hosts' account has all steps.
        let is_suspected = stages.devices.run_ahead.is_some() && is_late
            || self.detectors.pipelines.suspects_devices()
            || stages.suspects_alone();
        if !is_suspected {
            return None;
        }
        self.detectors.stages.devices.asked_at = Some(now);
        let usual_s = self.usual_step_s();
        let first = step_in(ahead_s, self.step(), usual_s);
        Some(runs_from(first, RULE.lasts_s / known_step_s(usual_s)))
    }

    /// Share of exposed time in which all hosts waited for their devices, if that is most of it.
    pub(super) fn device_wait_share(&self) -> Option<f64> {
        let share = self.accounting.device_wait_share();
        (share >= DEVICE_WAIT_SHARE).then_some(share)
    }

    /// Whether nothing shows how hosts and devices go together, in a job where nothing else stands
    /// out.
    pub(super) fn hosts_may_run_ahead(&self) -> bool {
        let stages = &self.detectors.stages;
        let may_run_ahead = if self.source.has_marks() {
            stages.devices.hosts_may_run_ahead()
        } else {
            self.devices_are_uncompared()
        };
        may_run_ahead && stages.tracker.findings(self.context()).is_empty()
    }

    /// Whether profiles have devices, and no collective in which these wait for one another.
    fn devices_are_uncompared(&self) -> bool {
        self.detectors.functions.profiled.iter().any(|profiled| {
            let times = profiled.summary.collectives.as_ref();
            let ranks = &profiled.summary.ranks;
            ranks.len() > 1
                && ranks.iter().any(|rank| rank.device_idle_share.is_some())
                && (profiled.hand_on || times.is_none_or(|times| times.matched == 0))
        })
    }

    /// Ranks that are alone in their roles and were compared with nobody, of hosts that run in a loop
    /// of their own.
    pub(super) fn uncompared_ranks(&self) -> Vec<u32> {
        if self.source.has_marks() {
            let ranks = self.detectors.stages.across.uncompared();
            return ranks.into_iter().collect();
        }
        // A profile of one rank.
        match self.detectors.functions.profiled.as_ref() {
            Some(profiled) if profiled.summary.ranks.len() == 1 => {
                profiled.summary.ranks.iter().map(|it| it.rank).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Devices that take longer than those of other roles from the first step on, which their parts of
    /// the model may ask for.
    pub(super) fn unlike_devices(&self) -> Vec<UnlikeDevice> {
        let mut unlike = self.detectors.stages.unlike_devices(self.context());
        unlike.extend(self.detectors.pipelines.unlike_devices(self.context()));
        unlike
    }

    /// Lines that read back so that devices may have nothing to do for a notable part of the step.
    pub(super) fn read_back_notes(&self) -> impl Iterator<Item = VerdictNote> {
        let silent = self.detectors.stages.devices.silent_waits();
        let silent = silent.filter(|(_, idle_share_max)| *idle_share_max >= READ_BACK_SHARE);
        let silent = silent.map(|(per_step, idle_share_max)| VerdictNote::SilentWait {
            per_step,
            idle_share_max,
        });
        let lines = self
            .detectors
            .stages
            .devices
            .read_backs(&self.names)
            .into_iter();
        lines
            .filter(|line| line.idle_share_max >= READ_BACK_SHARE)
            .map(VerdictNote::ReadBack)
            .chain(silent)
    }

    /// What is said of hosts that wait for their devices, or run ahead of them.
    pub(super) fn device_wait_note(&self, hosts_may_run_ahead: bool) -> Option<VerdictNote> {
        let Some(share) = self.device_wait_share() else {
            let devices = &self.detectors.stages.devices;
            // Devices that gave an account need no note that they were not observed.
            return if devices.sampled_steps() > 0 {
                None
            } else if devices.hosts_run_ahead() {
                Some(if self.source.has_marks() {
                    VerdictNote::DevicesUnseen
                } else {
                    VerdictNote::StagesOfHosts
                })
            } else {
                hosts_may_run_ahead.then_some(if self.source.has_marks() {
                    VerdictNote::DevicesMayBeUnseen
                } else {
                    VerdictNote::DevicesUncompared
                })
            };
        };
        let incidents = self.detectors.stages.tracker.findings(self.context());
        let devices = if self.detectors.stages.devices.sampled_steps() == 0 {
            DevicesSeen::None
        } else if incidents
            .iter()
            .any(|incident| incident.subject.side == Some(Side::Device))
        {
            DevicesSeen::Slower
        } else {
            DevicesSeen::Alike
        };
        Some(VerdictNote::DeviceWait { share, devices })
    }
}
