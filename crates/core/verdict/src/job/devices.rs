//! The devices behind the hosts of a job.

use std::ops::Range;

use frontier::{Baseline, analyse, join_devices_where_seen};
use incident::{DeviceAccount, Devices};
use model::{
    Cut, DeviceTime, DevicesSeen, Finding, Mark, Meeting, RankNs, ReadBackSummary,
    ReadBacks, Side, StageId, StageNames, VerdictNote, Window,
};
use steps::{DeviceClock, runs_from};

use super::Job;
use crate::escalation::{known_step_s, step_in};
use crate::{Rule, Settings, Suspicion};

/// Share of exposed time from which hosts mostly wait for their devices. Ours: what no host does is
/// then the larger part.
const DEVICE_WAIT_SHARE: f64 = 0.5;
/// Share of the step from which a line that reads back is spoken of. Ours: what it may cost, at most.
const READ_BACK_SHARE: f64 = 0.1;
/// Windows after which devices that gave no account are seen no more: nothing of them arrives.
/// Ours: one in ten steps is sampled, so that one of a few windows has enough.
const MAX_AWAITED: u32 = 5;

/// Sampled steps of a job, and how far its hosts are ahead of their devices.
#[derive(Debug, Default)]
pub(super) struct DeviceSteps {
    clock: DeviceClock,
    sampled_steps: u64,
    read_backs: ReadBacks,
    /// When marks of more steps were last asked for.
    asked_at: Option<RankNs>,
    /// As the last account has it, if it matters, and the windows since.
    run_ahead: Option<(f64, u32)>,
    /// Windows in which hosts are seen to run ahead, and the others.
    ahead: u64,
    not_ahead: u64,
}

impl DeviceSteps {
    /// The account of a window's ranks, if enough of their steps were sampled by now.
    pub(super) fn account(
        &mut self,
        window: &Window,
        settings: &Settings,
        baseline: &Baseline,
    ) -> Option<DeviceAccount> {
        *if window.runs_ahead { &mut self.ahead } else { &mut self.not_ahead } += 1;
        let last_step = window.first_step + window.steps.saturating_sub(1);
        let last_step = u32::try_from(last_step).unwrap_or(u32::MAX);
        let Some(mut sampled) = self.clock.take_window(&window.ranks, last_step) else {
            self.run_ahead = self.run_ahead.and_then(|(seconds, windows)| {
                (windows < MAX_AWAITED).then_some((seconds, windows + 1))
            });
            return None;
        };
        // A compute stream waits where it joins those of collectives, not where these are issued.
        if sampled.window.meeting == Meeting::Issued && sampled.window.cut != Cut::Data {
            sampled.window.meeting = Meeting::Seen;
        }
        join_devices_where_seen(&mut sampled.window);
        let found = analyse(&sampled.window, &settings.frontier, baseline);
        self.sampled_steps += found.steps.len() as u64;
        self.read_backs += &sampled.read_backs;
        let reads_in = self.read_backs.stages.clone();
        let account = DeviceAccount { sampled, found, reads_in };
        self.run_ahead =
            account.runs_ahead().then_some((account.sampled.run_ahead_most_s, 0));
        Some(account)
    }

    /// What is known of the devices behind a window with that account.
    pub(super) fn seen_by<'a>(
        &'a self,
        account: Option<&'a DeviceAccount>,
    ) -> Devices<'a> {
        match (account, self.run_ahead) {
            (Some(account), _) => Devices::Accounted(account),
            (None, Some((run_ahead_s, _))) => {
                Devices::Awaited { run_ahead_s, reads_in: &self.read_backs.stages }
            }
            (None, None) => Devices::Unseen,
        }
    }

    /// Forgets steps that say nothing of the job.
    pub(super) fn leave_out(&mut self, is_left_out: impl Fn(u32) -> bool) {
        self.clock.leave_out(is_left_out);
    }

    /// Steps that devices were accounted in.
    pub(super) fn sampled_steps(&self) -> u64 {
        self.sampled_steps
    }

    /// Whether hosts are seen to run ahead of their devices in most windows.
    pub(super) fn hosts_run_ahead(&self) -> bool {
        self.ahead > self.not_ahead
    }

    /// What is read back, by what it may cost: the most first.
    pub(super) fn read_backs(&self, names: &StageNames) -> Vec<ReadBackSummary> {
        let ReadBacks { steps, step_s, lines, .. } = &self.read_backs;
        // A recording may say that its steps took no time.
        let read = lines.iter().filter(|(_, of_line)| of_line.count > 0 && *step_s > 0.0);
        let mut lines: Vec<_> = read
            .map(|(line, of_line)| ReadBackSummary {
                line: (*line != StageId::OTHER).then(|| names.name(*line).to_owned()),
                per_step: of_line.count as f64 / *steps as f64,
                wait_share: of_line.wait_s / step_s,
                // Without it a host is done earlier by no more than it waits.
                idle_share_max: of_line.idle_most_s.min(of_line.wait_s) / step_s,
            })
            .collect();
        lines.sort_by(|a, b| b.idle_share_max.total_cmp(&a.idle_share_max));
        lines
    }

    pub(super) fn restart(&mut self) {
        *self = Self { sampled_steps: self.sampled_steps, ..Self::default() };
    }
}

impl Job {
    /// Takes what the device of a rank did at a mark.
    pub(super) fn device_time(&mut self, rank: u32, mark: &Mark, time: &DeviceTime) {
        let named = self.ranks.get(&rank).zip(time.reached.event());
        let stage = named.map_or(StageId::OTHER, |(input, event)| input.stage(&event));
        let blocks = self.devices.clock.push(rank, mark, time, stage);
        self.detectors.pipelines.see_device();
        if blocks.is_empty() {
            return;
        }
        let left_out = |step| self.aligner.is_left_out(step);
        let new = self.detectors.pipelines.device(rank, &blocks, left_out);
        self.tell_blocks(new);
    }

    /// Says whose blocks are slow for the first time.
    pub(super) fn tell_blocks(&mut self, new: Option<usize>) {
        let claim =
            new.and_then(|new| self.detectors.pipelines.claim(new, self.context()));
        self.lines.extend(claim.map(|claim| narrate::headline(&claim)));
    }

    /// Steps in which all devices should be marked: something is suspected, and hosts run ahead of
    /// them. `now` is the clock of the marks, `ahead_s` what it takes to reach all ranks.
    pub fn wanted_device_steps(
        &mut self,
        now: RankNs,
        ahead_s: f64,
    ) -> Option<Range<u32>> {
        const RULE: Rule = Suspicion::DevicesUnseen.rule();
        let is_recent = |asked: RankNs| now.seconds_since(asked) < RULE.every_s;
        let is_suspected = self.escalation.is_slow() || self.tracker.suspects_devices();
        if self.devices.run_ahead.is_none()
            || !is_suspected
            || self.devices.asked_at.is_some_and(is_recent)
        {
            return None;
        }
        self.devices.asked_at = Some(now);
        let usual_s = self.usual_step_s();
        let first = step_in(ahead_s, self.step(), usual_s);
        Some(runs_from(first, RULE.lasts_s / known_step_s(usual_s)))
    }

    /// Share of exposed time in which all hosts waited for their devices, if that is most of it.
    pub(super) fn device_wait_share(&self) -> Option<f64> {
        let share = self.device_wait_s / self.exposed_s;
        (share >= DEVICE_WAIT_SHARE).then_some(share)
    }

    /// Lines that read back so that devices may have nothing to do for a notable part of the step.
    pub(super) fn read_back_notes(&self) -> impl Iterator<Item = VerdictNote> {
        let lines = self.devices.read_backs(&self.names).into_iter();
        lines
            .filter(|line| line.idle_share_max >= READ_BACK_SHARE)
            .map(VerdictNote::ReadBack)
    }

    /// What is said of hosts that wait for their devices, or run ahead of them.
    pub(super) fn device_wait_note(&self) -> Option<VerdictNote> {
        let Some(share) = self.device_wait_share() else {
            let is_unseen =
                self.devices.hosts_run_ahead() && self.devices.sampled_steps() == 0;
            return is_unseen.then_some(VerdictNote::DevicesUnseen);
        };
        let incidents = self.tracker.findings(self.context());
        let is_device = |one: &Finding| one.subject.side == Some(Side::Device);
        let devices = if self.devices.sampled_steps() == 0 {
            DevicesSeen::None
        } else if incidents.iter().any(is_device) {
            DevicesSeen::Slower
        } else {
            DevicesSeen::Alike
        };
        Some(VerdictNote::DeviceWait { share, devices })
    }
}
