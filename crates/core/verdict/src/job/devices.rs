//! The devices behind the hosts of a job.

use frontier::{Baseline, analyse, join_where_seen};
use incident::{DeviceAccount, Devices};
use model::{Cut, Incident, Mark, MarkKind, Meeting, Side, StageId, Window};
use steps::DeviceClock;

use super::Job;
use crate::Settings;

/// Share of exposed time from which hosts mostly wait for their devices. Ours: what no host does is
/// then the larger part.
const DEVICE_WAIT_SHARE: f64 = 0.5;
/// Windows after which devices that gave no account are seen no more: nothing of them arrives.
/// Ours: one in ten steps is sampled, so that one of a few windows has enough.
const MAX_AWAITED: u32 = 5;

/// Sampled steps of a job, and how far its hosts are ahead of their devices.
#[derive(Debug, Default)]
pub(super) struct DeviceSteps {
    clock: DeviceClock,
    sampled_steps: u64,
    /// As the last account has it, if it matters, and the windows since.
    run_ahead: Option<(f64, u32)>,
}

impl DeviceSteps {
    /// The account of a window's ranks, if enough of their steps were sampled by now.
    pub(super) fn account(
        &mut self,
        window: &Window,
        settings: &Settings,
        baseline: &Baseline,
    ) -> Option<DeviceAccount> {
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
        join_where_seen(&mut sampled.window);
        let found = analyse(&sampled.window, &settings.frontier, baseline);
        self.sampled_steps += found.steps.len() as u64;
        let account = DeviceAccount { sampled, found };
        self.run_ahead = account.runs_ahead().then_some((account.sampled.run_ahead_s, 0));
        Some(account)
    }

    /// What is known of the devices behind a window with that account.
    pub(super) fn seen_by<'a>(&self, account: Option<&'a DeviceAccount>) -> Devices<'a> {
        match (account, self.run_ahead) {
            (Some(account), _) => Devices::Accounted(account),
            (None, Some((run_ahead_s, _))) => Devices::Awaited { run_ahead_s },
            (None, None) => Devices::Unseen,
        }
    }

    /// Steps that devices were accounted in.
    pub(super) fn sampled_steps(&self) -> u64 {
        self.sampled_steps
    }

    pub(super) fn restart(&mut self) {
        *self = Self { sampled_steps: self.sampled_steps, ..Self::default() };
    }
}

impl Job {
    /// Takes what the device of a rank did at a mark.
    pub(super) fn device_time(&mut self, rank: u32, mark: &Mark) {
        let kind = u8::try_from(mark.code).ok().and_then(MarkKind::from_number);
        let code = (mark.args[2] >> 32) as u16;
        let ranks = self.ranks.get(&rank).zip(kind);
        let stage = ranks.map(|(input, kind)| input.stage(kind, code));
        let stage = stage.unwrap_or(StageId::OTHER);
        let blocks = self.devices.clock.push(rank, mark, stage);
        self.pipelines.see_device();
        if blocks.is_empty() {
            return;
        }
        let left_out = |step| self.aligner.is_left_out(step);
        let new = self.pipelines.device(rank, &blocks, left_out);
        self.tell_blocks(new);
    }

    /// Says whose blocks are slow for the first time.
    pub(super) fn tell_blocks(&mut self, new: Option<usize>) {
        let line = new.and_then(|new| self.pipelines.line(new, self.scene()));
        self.lines.extend(line);
    }

    /// Share of exposed time in which all hosts waited for their devices, if that is most of it.
    pub(super) fn device_wait_share(&self) -> Option<f64> {
        let share = self.device_wait_s / self.exposed_s;
        (share >= DEVICE_WAIT_SHARE).then_some(share)
    }

    /// What is said of it.
    pub(super) fn device_wait_text(&self) -> Option<String> {
        let share = self.device_wait_share()?;
        let waits = format!(
            "the hosts spend {:.0} % of the step where they wait for their devices",
            100.0 * share
        );
        let incidents = self.tracker.incidents(self.scene());
        let is_device = |one: &Incident| one.subject.side == Some(Side::Device);
        Some(if self.devices.sampled_steps() == 0 {
            format!(
                "{waits}; which device is slow, and what a host does there itself, cannot be \
                 seen without device marks"
            )
        } else if incidents.iter().any(is_device) {
            waits
        } else {
            format!("{waits}; no device is slower than the others")
        })
    }
}
