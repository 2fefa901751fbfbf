//! Stages of steps, by the marks of hosts and the times of their devices.

use std::collections::BTreeMap;

use diagnosis::Detector;
use frontier::{Baseline, Gates, WindowFrontier, analyse, join_devices_where_seen};
use incident::{AcrossRoles, DeviceAccount, Devices, Tracker};
use model::{
    Claim, Cut, Finding, Growth, JobContext, Meeting, RankNs, ReadBackSummary, ReadBacks, StageId,
    StageNames, UnlikeDevice, Window,
};
use steps::DeviceClock;

use crate::Settings;
use crate::totals::Totals;

/// Windows after which devices that gave no account are seen no more: nothing of them arrives.
/// Ours: one in ten steps is sampled, so that one of a few windows has enough.
const MAX_AWAITED: u32 = 5;

/// Sampled steps of a job, and how far its hosts are ahead of their devices.
#[derive(Debug, Default)]
pub(crate) struct DeviceSteps {
    pub(crate) clock: DeviceClock,
    /// Sampled steps, by the first of the ranks that they were accounted with: the stages of a pipeline
    /// are accounted apart.
    sampled: BTreeMap<u32, u64>,
    /// Sampled steps in which hosts run ahead.
    totals: Totals,
    read_backs: ReadBacks,
    /// When marks of more steps were last asked for.
    pub(crate) asked_at: Option<RankNs>,
    /// As the last account has it, if it matters, and the windows since.
    pub(crate) run_ahead: Option<(f64, u32)>,
    /// Windows in which hosts are seen to run ahead, and the others.
    ahead: u64,
    not_ahead: u64,
    /// Accounts of devices without issues of collectives that their hosts have, and the others.
    unmarked: u64,
    marked: u64,
    /// Steps of accounts, or of their hosts, in which collectives differ between ranks, and the others.
    differing: u64,
    alike: u64,
    /// How hosts wait in windows in which they are not seen to run ahead.
    waits: Growth,
}

/// Whether ranks issue collectives that may join more than two of them.
fn has_issues(window: &Window) -> bool {
    let mut boundaries = window.blocks.iter().flat_map(|block| &*block.boundaries);
    boundaries.any(|boundary| boundary.ending.joins())
}

impl DeviceSteps {
    /// The account of a window's ranks, if enough of their steps were sampled by now.
    pub(crate) fn account(
        &mut self,
        window: &Window,
        gates: &Gates,
        baseline: &Baseline,
        hosts: &BTreeMap<u32, String>,
    ) -> Option<DeviceAccount> {
        if window.runs_ahead {
            self.ahead += 1;
        } else {
            self.not_ahead += 1;
            self.waits += window.waits;
        }
        let last_step = window.first_step + window.steps.saturating_sub(1);
        // Windows of files may have any step numbers. Sampled steps have 32 bits.
        let last_step = u32::try_from(last_step).unwrap_or(u32::MAX);
        let Some(mut sampled) = self.clock.take_window(&window.ranks, last_step, hosts) else {
            self.run_ahead = self.run_ahead.and_then(|(seconds, windows)| {
                (windows < MAX_AWAITED).then_some((seconds, windows + 1))
            });
            return None;
        };
        // What older PyTorch's recorder says of hosts may come too late for some ranks.
        let by_device = has_issues(&sampled.window);
        let seen = if by_device { &sampled.window } else { window };
        self.differing += seen.mismatched_steps;
        self.alike += (seen.rows() as u64).saturating_sub(seen.mismatched_steps);
        let differ = self.differ();
        // A compute stream waits where it joins those of collectives, not where these are issued. Ranks
        // that call different things, as where each hands its work on to the next, share none.
        if sampled.window.meeting == Meeting::Issued && sampled.window.cut != Cut::Data {
            sampled.window.meeting = if differ {
                Meeting::Unseen
            } else {
                Meeting::Seen
            };
        }
        // Before PyTorch 2.15 no hook marks on the device what a host issues (docs/math/device.md).
        if has_issues(window) && !has_issues(&sampled.window) {
            self.unmarked += 1;
        } else {
            self.marked += 1;
        }
        // That they come together somewhere then shows no wait: each may wait for another one.
        if !differ || sampled.window.meeting == Meeting::Seen {
            join_devices_where_seen(&mut sampled.window, &sampled.host_bound_least_s);
        }
        let found = analyse(&sampled.window, gates, baseline);
        let first = window.ranks.first().copied().unwrap_or_default();
        *self.sampled.entry(first).or_default() += found.steps.len() as u64;
        self.read_backs += &sampled.read_backs;
        let reads_in = self.read_backs.stages.clone();
        let account = DeviceAccount {
            sampled,
            found,
            reads_in,
        };
        if account.runs_ahead() {
            self.totals
                .add(&account.sampled.window, &account.found, gates);
        }
        // The most: by the least, 5 of 100 pauses that a queue hides were incidents.
        self.run_ahead = account
            .runs_ahead()
            .then_some((account.sampled.run_ahead_most_s, 0));
        Some(account)
    }

    /// What is known of the devices behind a window with that account.
    pub(crate) fn seen_by<'a>(&'a self, account: Option<&'a DeviceAccount>) -> Devices<'a> {
        match (account, self.run_ahead) {
            (Some(account), _) => Devices::Accounted(account),
            (None, Some((run_ahead_s, _))) => Devices::Awaited {
                run_ahead_s,
                reads_in: &self.read_backs.stages,
            },
            (None, None) => Devices::Unseen,
        }
    }

    /// Forgets steps that say nothing of the job.
    pub(crate) fn leave_out(&mut self, is_left_out: impl Fn(u32) -> bool) {
        self.clock.leave_out(is_left_out);
    }

    /// Steps that devices were accounted in.
    pub(crate) fn sampled_steps(&self) -> u64 {
        self.sampled.values().copied().max().unwrap_or_default()
    }

    /// Where the time of steps went on the devices, if hosts run ahead of them in most sampled ones.
    pub(crate) fn totals(&self) -> Option<&Totals> {
        let accounted: u64 = self.sampled.values().sum();
        (2.0 * self.totals.steps > accounted as f64).then_some(&self.totals)
    }

    /// Whether ranks call different things in most steps: none of their devices' waits is known.
    pub(crate) fn differ(&self) -> bool {
        self.differing > self.alike
    }

    /// Whether it is unknown where devices wait for one another.
    pub(crate) fn waits_unseen(&self) -> bool {
        self.issues_unseen() || self.differ()
    }

    /// Whether hosts issue collectives of which nothing is seen on their devices.
    pub(crate) fn issues_unseen(&self) -> bool {
        self.unmarked > self.marked
    }

    /// Whether hosts are seen to run ahead of their devices in half of the windows or more.
    pub(crate) fn hosts_run_ahead(&self) -> bool {
        self.ahead > 0 && self.ahead >= self.not_ahead
    }

    /// Whether hosts may run ahead of their devices all the same: where ranks issue collectives,
    /// nothing shows that they wait for one another.
    pub(crate) fn hosts_may_run_ahead(&self) -> bool {
        self.waits.is_measured() && !self.waits.is_certain()
    }

    /// What is read back, by what it may cost: the most first.
    pub(crate) fn read_backs(&self, names: &StageNames) -> Vec<ReadBackSummary> {
        let ReadBacks {
            steps,
            step_s,
            lines,
            ..
        } = &self.read_backs;
        // A recording may say that its steps took no time.
        let read = lines
            .iter()
            .filter(|(_, of_line)| of_line.count > 0 && *step_s > 0.0);
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

    /// Where hosts wait for their devices although nothing is read back: how often in the average step
    /// of the average rank, and in which share of the step devices have nothing to do for it, at most.
    pub(crate) fn silent_waits(&self) -> Option<(f64, f64)> {
        let ReadBacks {
            steps,
            step_s,
            silent,
            ..
        } = &self.read_backs;
        let idle_s = silent.idle_most_s.min(silent.wait_s);
        (silent.count > 0 && *step_s > 0.0)
            .then(|| (silent.count as f64 / *steps as f64, idle_s / step_s))
    }

    pub(crate) fn restart(&mut self) {
        // The verdict counts sampled steps over all starts of a job, as it does steps.
        *self = Self {
            sampled: std::mem::take(&mut self.sampled),
            totals: std::mem::take(&mut self.totals),
            ..Self::default()
        };
    }
}

/// Faults of stages, followed from window to window.
#[derive(Debug)]
pub(crate) struct Stages {
    gates: Gates,
    baseline: Baseline,
    pub(crate) tracker: Tracker,
    pub(crate) devices: DeviceSteps,
    /// Ranks that are alone in their roles.
    pub(crate) across: AcrossRoles,
}

impl Stages {
    pub(crate) fn new(settings: &Settings, baseline: Baseline) -> Self {
        Self {
            gates: settings.frontier.clone(),
            baseline,
            tracker: Tracker::new(settings.incident.clone(), settings.frontier.clone()),
            devices: DeviceSteps::default(),
            across: AcrossRoles::default(),
        }
    }

    /// Takes a window that is closed; what it shows.
    pub(crate) fn close_window(
        &mut self,
        window: &Window,
        found: &mut WindowFrontier,
        context: JobContext<'_>,
    ) -> Vec<Finding> {
        // Before the account: steps that a profiler lengthens would count as usual ones.
        self.devices.leave_out(|step| context.is_left_out(step));
        let account = self
            .devices
            .account(window, &self.gates, &self.baseline, context.hosts);
        self.across.take(
            window,
            found.exposed_s,
            account.as_ref(),
            self.tracker.settings(),
        );
        let devices = self.devices.seen_by(account.as_ref());
        let shown = self.tracker.observe(window, found, devices, context);
        let mut late = Vec::new();
        // Of a rank that is alone in its role only an account tells more.
        if account.is_some() {
            late = self
                .across
                .findings_of(&window.ranks, self.tracker.settings(), context);
            late.retain(|it| it.open);
        }
        with_alone(late, shown)
    }

    /// Whether more should be known of the devices of ranks that are alone in their roles.
    pub(crate) fn suspects_alone(&self) -> bool {
        self.across.suspects_devices(self.tracker.settings())
    }

    /// Devices that take longer than those of other roles, and always did.
    pub(crate) fn unlike_devices(&self, context: JobContext<'_>) -> Vec<UnlikeDevice> {
        self.across.unlike_devices(self.tracker.settings(), context)
    }
}

/// What is found of ranks that are alone in their roles, and of the others, costliest first.
fn with_alone(mut late: Vec<Finding>, mut found: Vec<Finding>) -> Vec<Finding> {
    // A rank that is late beside other roles does not only wait for data.
    found.retain(|it| {
        let is_same = |late: &Finding| {
            matches!(&it.claim, Claim::InputBound { group: Some(group), .. }
                if *group == late.subject.ranks && it.subject.stage == late.subject.stage)
        };
        !late.iter().any(is_same)
    });
    late.extend(found);
    late.sort_by(|a, b| b.cost.exposed_s.total_cmp(&a.cost.exposed_s));
    late
}

impl Detector for Stages {
    fn findings(&self, context: JobContext<'_>) -> Vec<Finding> {
        let late = self.across.findings(self.tracker.settings(), context);
        with_alone(late, self.tracker.findings(context))
    }

    fn restart(&mut self) {
        self.across.restart();
        self.tracker.restart();
        self.devices.restart();
    }
}
