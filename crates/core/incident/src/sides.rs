//! Whether late ranks have a slow device or a slow host, and what their lateness costs where hosts
//! run ahead of their devices.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use frontier::{Excess, Gates, QueueReplay, StepAccount, WindowFrontier};
use model::{
    Block, DeviceWindow, Ending, Meeting, Pace, Side, StageId, StepRow, Window, medians_of_others,
};

use crate::alike::is_no_slower;
use crate::behind::falls_behind;
use crate::blocks::ERRORS;
use crate::costs::share_out;
use crate::fault::{Stretch, Turns, charge, find_in_stages, join_stages, judge};
use crate::lateness::Lateness;
use crate::onset::onset;
use crate::pace::{Seen, is_steady, pace_of};
use crate::struck::{strikes_row, usual_s};
use crate::{Fault, FaultKind, IncidentSettings};

/// Share of lateness that the host must have determined for it to be the host's. Ours.
pub(crate) const HOST_SHARE: f64 = 0.5;
/// How far hosts must be ahead of their devices for the two clocks to tell different stories: in
/// seconds, and as a share of the step. Ours: below, what a host is late by its device is late by.
const AHEAD_S: f64 = 1e-3;
const AHEAD_SHARE: f64 = 0.05;
/// Times the run-ahead by which a host must be late now and then for its device to be late, too,
/// without being seen. Ours: what is queued differs from step to step.
const BEYOND_RATIO: f64 = 2.0;
/// Share of what ranks take longer now and then that others must be late by in each step for the
/// former to be a wait for the latter. Ours: all of it, but for what was not sampled.
const WAITED_SHARE: f64 = 0.6;
/// Share of a host's lateness that its own work explains, below which it may be late for what it reads back.
/// Ours.
const READS_SHARE: f64 = 0.5;
/// Strikes from which the same share of the sampled steps since the first is enough: a run of them.
const GOES_ON: usize = 4;
/// Sampled steps before a fault, and since, from which they show how much longer steps became; and the share
/// of what is to be saved below which something else changed, too. Ours.
const FREE_ROWS: usize = 5;
const KEPT_MIN: f64 = 0.5;

/// Sampled steps of a window's ranks, accounted on their devices' clocks.
#[derive(Clone, Debug)]
pub struct DeviceAccount {
    /// The steps.
    pub sampled: DeviceWindow,
    /// Their account.
    pub found: WindowFrontier,
    /// Stages in which hosts of the job read something back, so far.
    pub reads_in: BTreeSet<StageId>,
}

/// The steps that a fault stands for which sampled ones show.
struct Reach {
    /// How many sampled steps there are since it began, and of these while it went on.
    since: usize,
    sampled: usize,
    /// How many steps pay for it.
    paying: usize,
    /// Those that it strikes, as far as that is known.
    strikes: Vec<u64>,
}

impl Reach {
    /// A fault with what it costs in all steps, whose cost is that of one in so many sampled ones.
    fn charge(&self, fault: Fault, sampled: usize) -> Fault {
        let stands_for = self.paying as f64 / self.sampled.max(1) as f64;
        Fault {
            strikes: self.strikes.clone(),
            sampled: true,
            ..fault.times(sampled as f64 * stands_for)
        }
    }
}

/// What is known of the devices behind a window of the hosts.
#[derive(Clone, Copy, Debug)]
pub enum Devices<'account> {
    /// Nothing: hosts are judged by their own clocks.
    Unseen,
    /// Too few steps were sampled since the last account, which said how far hosts are ahead.
    Awaited {
        /// Seconds, as [`DeviceWindow::run_ahead_most_s`].
        run_ahead_s: f64,
        /// Stages in which hosts of the job read something back, so far.
        reads_in: &'account BTreeSet<StageId>,
    },
    /// An account of the steps since the last one.
    Accounted(&'account DeviceAccount),
}

impl Devices<'_> {
    /// How lateness that moves over the hosts of a window is taken. Where they run ahead it may cost
    /// nothing; if it does, devices show it.
    pub(crate) fn turns(self, window: &Window) -> Turns {
        match self.run_ahead_s(window) {
            Some(_) => Turns::Apart,
            None => Turns::Rotate,
        }
    }

    /// How far hosts may be ahead of their devices, if they are so far that it matters, or do not wait for
    /// one another: then they wait at full queues, and may look late for that.
    fn run_ahead_s(self, window: &Window) -> Option<f64> {
        match self {
            Self::Awaited { run_ahead_s, .. } => Some(run_ahead_s),
            Self::Accounted(account) if account.runs_ahead() || window.runs_ahead => {
                Some(account.sampled.run_ahead_most_s)
            }
            _ => None,
        }
    }

    /// Whether hosts wait for their devices in a stage.
    fn are_read_in(self, stage: StageId) -> bool {
        match self {
            Self::Awaited { reads_in, .. } => reads_in.contains(&stage),
            Self::Accounted(account) => account.reads_in.contains(&stage),
            Self::Unseen => false,
        }
    }
}

/// Share of a fault's stages, where it strikes, that lies right behind collectives if these are what it waits
/// for. Ours.
const BEHIND_SHARE: f64 = 0.5;
/// Sampled steps without it, at least, by which a fault is over, and the chance below which they are none
/// that it left out. Ours.
const OVER_ROWS: usize = 2;
const OVER_CHANCE: f64 = 0.01;
/// Delays that are remembered. Ours: a job has fewer faults than that.
const MAX_DELAYS: usize = 64;

/// By ranks and stage in which they are late now and then: by how much their devices were late, in
/// seconds, when that was last sampled.
#[derive(Debug, Default)]
pub(crate) struct SampledDelays(BTreeMap<(Vec<u32>, StageId), f64>);

impl SampledDelays {
    /// Takes the faults that devices show.
    fn take(&mut self, found: &[Fault]) {
        let held_up = found.iter().filter(|it| it.side == Some(Side::Host));
        let delays = held_up.map(|it| ((it.ranks.clone(), it.stage), it.lateness_s));
        self.0.extend(delays);
        while self.0.len() > MAX_DELAYS {
            self.0.pop_first();
        }
    }

    /// The share of a fault's lateness that delays devices.
    fn kept(&self, fault: &Fault) -> Option<f64> {
        let delay_s = self.0.get(&(fault.ranks.clone(), fault.stage))?;
        Some((delay_s / fault.lateness_s).min(1.0))
    }
}

fn is_same(one: &Fault, other: &Fault) -> bool {
    one.ranks == other.ranks && one.stage == other.stage
}

/// Whose lateness is: the host's or the device's, by how much of it the host may have held up its
/// device for, at least and at most; `None` if that does not tell.
pub(crate) fn side_of(late_s: f64, [host_least_s, host_most_s]: [f64; 2]) -> Option<Side> {
    if host_least_s >= HOST_SHARE * late_s {
        Some(Side::Host)
    } else {
        (host_most_s < HOST_SHARE * late_s).then_some(Side::Device)
    }
}

impl DeviceAccount {
    /// Whether hosts are so far ahead that what they are late by need not delay their devices.
    pub fn runs_ahead(&self) -> bool {
        let least_s = AHEAD_S.max(AHEAD_SHARE * self.found.median_step_s());
        self.sampled.run_ahead_s >= least_s
    }

    /// Whether hosts determined half of what a stage took on the devices, or more.
    pub(crate) fn is_host_bound(&self, stage: StageId) -> bool {
        let (mut all_s, mut bound_s) = (0.0, 0.0);
        let planes = &self.sampled.host_bound_least_s;
        for (block, bound) in self.sampled.window.blocks.iter().zip(planes) {
            let stages = block.boundaries.iter().map(|boundary| boundary.stage);
            let stages = stages.flat_map(|stage| std::iter::repeat_n(stage, block.ranks));
            let cells = block.durations_s.iter().zip(bound).zip(stages.cycle());
            for ((device_s, bound_s_here), _) in cells.filter(|(_, known)| *known == stage) {
                all_s += device_s;
                bound_s += bound_s_here;
            }
        }
        bound_s >= HOST_SHARE * all_s
    }

    /// Whether it shows what devices wait for one another: of a rank that is alone in its role it does not.
    pub(crate) fn shows_waits(&self) -> bool {
        let window = &self.sampled.window;
        window.ranks.len() > 1 && window.meeting != Meeting::Unseen
    }

    /// Ranks that are late on their devices' clocks, and what of them is slow, as faults of the
    /// steps since the last account, of which these were sampled.
    ///
    /// `hosts` are those that hosts show in the same steps.
    fn faults(
        &self,
        hosts: &[Fault],
        stretch: Stretch<'_>,
        gates: &Gates,
        settings: &IncidentSettings,
    ) -> Vec<Fault> {
        let Self { sampled, found, .. } = self;
        let lateness = Lateness::of_window(&sampled.window, found, gates, settings);
        let turns = match sampled.window.meeting {
            Meeting::Unseen => Turns::WaitForOne,
            Meeting::Issued | Meeting::Seen => Turns::Rotate,
        };
        let mut faults = find_in_stages(&sampled.window, found, &lateness, gates, turns);
        self.take_sides(&mut faults, &lateness);
        let faults = join_as_hosts(faults, hosts);
        // A host and a device that are both slow are two faults of one rank.
        let mut faults = join_stages(faults);
        self.take_sides(&mut faults, &lateness);
        faults.retain(|it| it.side == Some(Side::Device) || !is_no_slower(self, it, &lateness));
        self.leave_out_waits(&mut faults);
        let mut absorbed = self.absorbed(&faults, hosts, stretch.steps.len());
        let tried = absorbed.len();
        let mut charged = self.charge([&faults[..], &absorbed].concat(), stretch);
        absorbed.retain(|it| charged.iter().any(|one| is_same(one, it) && one.hidden));
        if absorbed.len() < tried {
            // What no other fault hides a device shows itself.
            charged = self.charge([&faults[..], &absorbed].concat(), stretch);
        }
        // No device waits for them yet.
        let is_absorbed = |it: &&mut Fault| absorbed.iter().any(|one| is_same(one, it));
        charged
            .iter_mut()
            .filter(is_absorbed)
            .for_each(|it| it.side = None);
        self.leave_out_hidden(&mut charged);
        charged
    }

    /// Hosts that are late in most of so many steps where they launch nothing, and whose devices are not: these
    /// may have enough left to do only as long as another rank is later.
    fn absorbed(&self, faults: &[Fault], hosts: &[Fault], steps: usize) -> Vec<Fault> {
        if self.sampled.window.meeting == Meeting::Unseen || faults.is_empty() {
            return Vec::new();
        }
        let launches_nothing = |it: &Fault| {
            let is_read_in = self.reads_in.contains(&it.stage);
            it.stage == StageId::DATA || (it.stage == StageId::CALLBACKS && !is_read_in)
        };
        let is_known = |it: &Fault| {
            let mut there = faults.iter().filter(|known| known.is_in(it.stage));
            there.any(|known| known.ranks == it.ranks)
        };
        let is_one = |it: &&Fault| {
            it.kind == FaultKind::LateRanks
                && is_steady(it.strikes.len(), steps)
                && launches_nothing(it)
                && !is_known(it)
        };
        let absorbed = hosts.iter().filter(is_one).map(|it| Fault {
            side: Some(Side::Host),
            hides: Vec::new(),
            ..it.clone()
        });
        absorbed.collect()
    }

    /// Whether communicators divide the ranks.
    fn divides_ranks(&self) -> bool {
        let mut blocks = self.sampled.window.blocks.iter();
        blocks.any(Block::is_divided)
    }

    /// Leaves out devices that are slow behind another fault where communicators divide the ranks: which
    /// of theirs one waits for at a place is not always known, and what costs nothing may be such a wait.
    fn leave_out_hidden(&self, faults: &mut Vec<Fault>) {
        if !self.divides_ranks() {
            return;
        }
        let may_wait = |it: &mut Fault| it.hidden && it.side == Some(Side::Device);
        let left_out: Vec<Fault> = faults.extract_if(.., may_wait).collect();
        for fault in faults {
            fault
                .hides
                .retain(|hidden| !left_out.iter().any(|it| hidden.is(it)));
        }
    }

    /// Leaves out who may as well wait for one that is late in each step, where ranks do not meet in
    /// each step: those that take longer now and then, as it falls behind until they meet and the others
    /// then wait for all of that at once; and those that are late elsewhere in each step by less, or that
    /// are most of the ranks, as where each hands its work on to the next. What the latter seem to cost is
    /// what they wait. Also those that are late now and then, right behind collectives. Where ranks call
    /// different things, also lateness that rotates, and what is slow where some rank sends or receives.
    fn leave_out_waits(&self, faults: &mut Vec<Fault>) {
        if self.sampled.window.calls_differ() {
            // Each waits for another one in turn, and what a device waits for looks like its work.
            faults.retain(|it| it.kind != FaultKind::Rotating || it.stage == StageId::DATA);
            let points_in = &self.sampled.points_in;
            let may_wait = |it: &Fault| it.stages().any(|it| points_in.contains(&it.stage));
            faults.retain(|it| it.side == Some(Side::Host) || !may_wait(it));
        }
        if self.sampled.window.meeting != Meeting::Unseen {
            return;
        }
        let rows = self.found.steps.len();
        let is_steady = |fault: &Fault| is_steady(fault.strikes.len(), rows);
        let is_late = |fault: &Fault| fault.kind == FaultKind::LateRanks;
        let ranks = self.sampled.window.ranks.len();
        let may_be = |it: &Fault| is_late(it) && is_steady(it) && 2 * it.ranks.len() <= ranks;
        let steady = faults.extract_if(.., |it| may_be(it));
        let mut steady: Vec<Fault> = steady.collect();
        steady.sort_by(|one, other| one.late_sum_s().total_cmp(&other.late_sum_s()));
        let latest = steady.pop();
        faults.extend(steady);
        let is_latest = |rank: &u32| latest.iter().any(|latest| latest.ranks.contains(rank));
        faults.retain(|it| {
            let is_its = it.ranks.iter().all(is_latest);
            !is_late(it) || is_steady(it) || is_its || !self.is_behind_collectives(it)
        });
        let Some(mut latest) = latest else {
            return;
        };
        let late_s = latest.late_sum_s();
        let is_other = |fault: &Fault| fault.ranks.iter().all(|it| !latest.ranks.contains(it));
        let waits = |fault: &mut Fault| {
            let waits = is_steady(fault) || late_s >= WAITED_SHARE * fault.late_sum_s();
            is_late(fault) && is_other(fault) && waits
        };
        let waits: Vec<Fault> = faults.extract_if(.., waits).collect();
        let waited = waits.iter().filter(|it| is_steady(it));
        let waited_s: f64 = waited.map(|it| it.cost_s).sum();
        // It costs no more than it is late by.
        latest.cost_s = (latest.cost_s + waited_s).min(late_s.max(latest.cost_s));
        latest.gain_alone_s = latest.gain_alone_s.max(latest.cost_s);
        latest.hidden = false;
        latest.hides.clear();
        faults.insert(0, latest);
    }

    /// Whether a fault lies mostly right behind collectives that join its ranks with others.
    fn is_behind_collectives(&self, fault: &Fault) -> bool {
        let window = &self.sampled.window;
        let (mut behind_s, mut all_s) = (0.0, 0.0);
        for account in &self.found.steps {
            let block = &window.blocks[account.block];
            let row = account.row * block.boundaries.len();
            for (at, boundary) in block.boundaries.iter().enumerate() {
                if !fault.strikes_in(block, account.row, boundary.stage) {
                    continue;
                }
                let took_s = &block.durations_s[(row + at) * block.ranks..][..block.ranks];
                let columns = fault
                    .ranks
                    .iter()
                    .filter_map(|it| window.ranks.binary_search(it).ok());
                let took_s: f64 = columns.map(|column| took_s[column]).sum();
                all_s += took_s;
                let before = at
                    .checked_sub(1)
                    .map(|before| block.boundaries[before].ending);
                if before.is_some_and(Ending::joins) {
                    behind_s += took_s;
                }
            }
        }
        behind_s > 0.0 && behind_s >= BEHIND_SHARE * all_s
    }

    /// What faults of the sampled steps cost in the steps that these stand for: by the queues of
    /// hosts and devices, where these can be run again.
    fn charge(&self, faults: Vec<Fault>, stretch: Stretch<'_>) -> Vec<Fault> {
        let (mut late, others): (Vec<Fault>, Vec<Fault>) = faults
            .into_iter()
            .partition(|fault| fault.kind == FaultKind::LateRanks);
        let is_alone = |fault: &Fault| {
            let mut there = late.iter().filter(|it| it.stage == fault.stage);
            there.all(|it| it.ranks == fault.ranks)
        };
        let reached: Vec<Reach> = late
            .iter()
            .map(|fault| self.reach(fault, is_alone(fault), stretch))
            .collect();
        let replay = self.run_again(&mut late);
        // A fault may strike only steps that have other boundaries, such as those with a checkpoint.
        let runs = |at: &usize| {
            replay
                .as_ref()
                .is_some_and(|it| it.has_most(&self.excess(&late[*at]).rows))
        };
        let (run, not_run): (Vec<usize>, Vec<usize>) = (0..late.len()).partition(runs);
        let mut charged: Vec<Fault> = not_run
            .into_iter()
            .map(|at| reached[at].charge(late[at].clone(), 1))
            .collect();
        if let Some(replay) = replay {
            let sampled = self.found.steps.len();
            let most = run.iter().map(|at| reached[*at].since).max();
            // All of them were run already.
            let some = most.filter(|since| *since < sampled);
            let since = some.and_then(|since| {
                let rows = &self.found.steps[sampled - since..];
                Some((since, replay.since(rows.first()?.step)?))
            });
            let (rows, replay) = since.unwrap_or((sampled, replay));
            let of_run = |some: &[usize]| some.iter().map(|it| run[*it]).collect::<Vec<usize>>();
            let is_steady = |at: &usize| is_steady(self.excess(&late[*at]).rows.len(), rows);
            let are_steady = run.iter().all(is_steady);
            let kept = are_steady.then(|| self.kept_share(rows, || replay.gain_s(&run)));
            let kept = kept.unwrap_or(1.0);
            let shares = share_out(run.len(), |some| kept * replay.gain_s(&of_run(some)));
            let mut again = Vec::new();
            for it in &shares {
                let fault = Fault {
                    hides: Vec::new(),
                    ..late[run[it.at]].clone()
                };
                charge(&mut again, fault, it);
            }
            // Gains are those of one step.
            let again = shares.iter().map(|it| run[it.at]).zip(again);
            charged.extend(again.map(|(at, fault)| reached[at].charge(fault, rows)));
        }
        let others = others
            .into_iter()
            .map(|fault| (self.reach(&fault, false, stretch), fault))
            .map(|(reach, fault)| reach.charge(fault, 1));
        charged.into_iter().chain(others).collect()
    }

    /// The share of what fixing all faults of the last rows would save by which these are longer than the rows
    /// before: communication that a slow rank hides takes time again without it. All of it where too few rows
    /// are before, and where these are as long for another reason, as at the begin of a job.
    fn kept_share(&self, rows: usize, gain_s: impl FnOnce() -> f64) -> f64 {
        let steps = &self.found.steps;
        let (before, since) = steps.split_at(steps.len() - rows);
        if before.len() < FREE_ROWS || since.len() < FREE_ROWS {
            return 1.0;
        }
        let took_s =
            |steps: &[StepAccount]| usual_s(steps.iter().map(|it| it.makespan_s).collect());
        let ((before_s, one), (since_s, other)) = (took_s(before), took_s(since));
        let share = (since_s - before_s + ERRORS * (one + other).sqrt()) / gain_s();
        if share < KEPT_MIN {
            1.0
        } else {
            share.min(1.0)
        }
    }

    /// The sampled steps, with what they would be without each fault. A host whose own work explains less
    /// than half of what it is late by may be late for what it reads back: so it is if that explains it.
    fn run_again(&self, faults: &mut [Fault]) -> Option<QueueReplay> {
        if faults.is_empty() {
            return None;
        }
        let mut excess: Vec<Excess> = faults.iter().map(|fault| self.excess(fault)).collect();
        let replay = QueueReplay::of_window(&self.sampled, &excess)?;
        let explains = |replay: &QueueReplay, at: usize, of: &Excess, fault: &Fault| {
            let struck_share = of.rows.len() as f64 / self.found.steps.len() as f64;
            replay.gain_s(&[at]) >= READS_SHARE * fault.lateness_s * struck_share
        };
        for (at, (of, fault)) in excess.iter_mut().zip(&*faults).enumerate() {
            of.reads_back = fault.side == Some(Side::Host) && !explains(&replay, at, of, fault);
        }
        if !excess.iter().any(|it| it.reads_back) {
            return Some(replay);
        }
        let without = QueueReplay::of_window(&self.sampled, &excess)?;
        let mut all = true;
        let tried = excess.iter_mut().zip(faults).enumerate();
        for (at, (of, fault)) in tried.filter(|(_, (of, _))| of.reads_back) {
            of.reads_back = explains(&without, at, of, fault);
            fault.reads_back = of.reads_back;
            all &= of.reads_back;
        }
        if all {
            return Some(without);
        }
        QueueReplay::of_window(&self.sampled, &excess)
    }

    /// The steps that a fault of the sampled ones stands for. One that goes on once it has struck
    /// strikes each step since, until it is over: of those before and behind, more or fewer may be sampled.
    /// `is_alone` says that no other rank is late there, from which it may have taken over. One that strikes the
    /// first sampled step may have begun before the last account, behind the last step that was sampled for it.
    fn reach(&self, fault: &Fault, is_alone: bool, stretch: Stretch<'_>) -> Reach {
        let steps = stretch.steps;
        let accounts = &self.found.steps;
        let blocks = &self.sampled.window.blocks;
        let rows = accounts
            .iter()
            .map(|account| strikes_row(fault, &blocks[account.block], account.row));
        let is_struck: Vec<bool> = rows.collect();
        let struck = is_struck.iter().filter(|is_struck| **is_struck).count();
        let at = is_struck.iter().position(|is_struck| *is_struck);
        let at = at.unwrap_or_default();
        let last = is_struck.iter().rposition(|is_struck| *is_struck);
        let behind = last.map_or(0, |last| last + 1);
        // Of one that strikes most steps, fewer show that it is over.
        let missed_share = 1.0 - struck as f64 / (behind.saturating_sub(at) + 1) as f64;
        let free_rows = accounts.len() - behind;
        let is_over = free_rows >= OVER_ROWS && missed_share.powf(free_rows as f64) <= OVER_CHANCE;
        let end = if is_over { behind } else { accounts.len() };
        let since = accounts.len() - at;
        let first = accounts.get(at).map_or(0, |account| account.step);
        let last = stretch.last.filter(|last| at == 0 && !last.shows(fault));
        let free = match at.checked_sub(1) {
            Some(free) => Some(accounts[free].step),
            None => last.map(|last| last.sampled),
        };
        let earlier = last.map_or(&[][..], |last| &last.steps);
        let since_steps = [earlier, steps].concat();
        let shown = free.and_then(|free| onset(&since_steps, free, first));
        let is_steady = |of: usize| is_steady(struck, of);
        let goes_on = shown.is_some() && is_alone && struck >= GOES_ON && is_steady(since);
        // Of the first steps of a job more are sampled: those behind it stand for others. Where
        // communicators divide the ranks, what lasts a while may be a wait.
        let went_on = is_over && struck >= GOES_ON && is_steady(end - at) && !self.divides_ranks();
        if !is_steady(accounts.len()) && !goes_on && !went_on {
            return Reach {
                since: accounts.len(),
                sampled: accounts.len(),
                paying: steps.len(),
                strikes: self
                    .recurring(fault, steps)
                    .unwrap_or_else(|| fault.strikes.clone()),
            };
        }
        // Anywhere between the two: in the middle, as far as is known.
        let middle = free.map(|free| (free + 1).midpoint(first));
        let paying_from = shown.or(middle).unwrap_or_default();
        // A strike may lie in the step before its row.
        let before = first.saturating_sub(fault.strikes.first().copied().unwrap_or(first));
        let begin = shown.or(middle).unwrap_or(first).saturating_sub(before);
        let over = accounts.get(end).map_or(u64::MAX, |free| {
            (accounts[end - 1].step + 1).midpoint(free.step)
        });
        let numbers = |reach: Range<u64>| {
            let numbers = since_steps.iter().map(|(step, _)| *step);
            numbers.filter(move |step| reach.contains(step))
        };
        Reach {
            since,
            sampled: end - at,
            paying: numbers(paying_from..over).count(),
            strikes: numbers(begin..over.saturating_sub(before)).collect(),
        }
    }

    /// The steps that a fault strikes which strikes every n-th of those sampled: every n-th of all.
    fn recurring(&self, fault: &Fault, steps: &[(u64, f64)]) -> Option<Vec<u64>> {
        let blocks = &self.sampled.window.blocks;
        let accounts = self.found.steps.iter();
        let sampled = accounts.map(|it| blocks[it.block].step_of(it.row, fault.stage));
        let (seen, last) = (sampled.collect(), *fault.strikes.last()?);
        let Pace::Every { steps: period } = pace_of(&fault.strikes, &seen, last) else {
            return None;
        };
        // One strike may be another fault's.
        let strikes = || fault.strikes.iter().map(|strike| strike % period);
        let phase = strikes().max_by_key(|phase| strikes().filter(|it| it == phase).count())?;
        let since = steps.iter().map(|(step, _)| *step);
        let since = since.skip_while(|step| *step < fault.strikes[0]);
        Some(since.filter(|step| step % period == phase).collect())
    }

    /// A fault as the replay of queues takes it.
    fn excess(&self, fault: &Fault) -> Excess {
        let Self { sampled, found, .. } = self;
        let window = &sampled.window;
        let columns = fault
            .ranks
            .iter()
            .filter_map(|rank| window.ranks.binary_search(rank).ok());
        let accounts = found.steps.iter();
        let struck = accounts
            .filter(|account| strikes_row(fault, &window.blocks[account.block], account.row));
        Excess {
            columns: columns.collect(),
            stages: fault.stages().map(|it| it.stage).collect(),
            side: fault.side,
            rows: struck.map(|account| account.step).collect(),
            reads_back: false,
        }
    }

    fn take_sides(&self, faults: &mut [Fault], lateness: &Lateness<'_>) {
        let late = faults.iter_mut();
        for fault in late.filter(|fault| fault.kind == FaultKind::LateRanks) {
            self.take_side(fault, lateness);
        }
    }

    /// Whose the lateness of a fault is: the host's if it may have held its device up for longer
    /// than the other ranks' hosts did theirs, by half of the lateness; the device's if it cannot.
    ///
    /// # Source
    /// Ours: docs/math/device.md.
    fn take_side(&self, fault: &mut Fault, lateness: &Lateness<'_>) {
        let Self { sampled, found, .. } = self;
        let (mut late_s, mut least_s, mut most_s) = (0.0, 0.0, 0.0);
        let mut level_s = 0.0;
        for (row, account) in found.steps.iter().enumerate() {
            let block = &sampled.window.blocks[account.block];
            let stages = block.boundaries.iter().map(|boundary| boundary.stage);
            let places = stages.enumerate();
            let its = places.filter(|(_, stage)| fault.strikes_in(block, account.row, *stage));
            for (at, _) in its {
                let own_s = lateness.own_s(StepRow(row), at);
                let usual_s = medians_of_others(own_s);
                let first = (account.row * block.boundaries.len() + at) * block.ranks;
                let cells = |plane: &[Vec<f64>]| {
                    let cells = &plane[account.block][first..first + block.ranks];
                    // A host that waits for others there holds its device up no more than they do.
                    let cells: Vec<f64> = cells.iter().zip(own_s).map(|(a, b)| a.min(*b)).collect();
                    let usual = medians_of_others(&cells);
                    (cells, usual)
                };
                let (bound_least_s, usual_least_s) = cells(&sampled.host_bound_least_s);
                let (bound_most_s, usual_most_s) = cells(&sampled.host_bound_most_s);
                for rank in &fault.ranks {
                    let Ok(column) = sampled.window.ranks.binary_search(rank) else {
                        continue;
                    };
                    late_s += (own_s[column] - usual_s[column]).max(0.0);
                    // Differences of two ranges: least against most, and most against least.
                    least_s += bound_least_s[column] - usual_most_s[column];
                    most_s += bound_most_s[column] - usual_least_s[column];
                    level_s += usual_s[column] / fault.ranks.len() as f64;
                }
            }
        }
        fault.side = side_of(late_s, [least_s, most_s]);
        fault.level_s = level_s / fault.strikes.len().max(1) as f64;
        // A device has no lines of code.
        if fault.side == Some(Side::Device) {
            fault.place = None;
        }
    }
}

/// Joins faults of the sampled steps that are one by the clocks of the hosts: where a queue absorbs a part of
/// what a host is late by, its device is late by more in the steps in which that queue is empty.
fn join_as_hosts(faults: Vec<Fault>, hosts: &[Fault]) -> Vec<Fault> {
    let is_hosts = |it: &Fault| it.kind == FaultKind::LateRanks && it.side == Some(Side::Host);
    let mut joined: Vec<Fault> = Vec::new();
    for fault in faults {
        let of_host = hosts.iter().filter(|it| is_same(it, &fault));
        let is_one = is_hosts(&fault) && of_host.count() == 1;
        let mut of_hosts = joined.iter_mut().filter(|it| is_one && is_hosts(it));
        match of_hosts.find(|it| is_same(it, &fault)) {
            Some(known) => known.join_strikes(&fault),
            None => joined.push(fault),
        }
    }
    joined
}

/// The faults of a window, once it is known what its devices did.
///
/// Where hosts run ahead, lateness of a host counts as far as its device was late for it, and
/// sampled steps tell. What strikes now and then may strike between them: it is charged by how much
/// its device was late when that was last sampled, or else, if the devices had not nearly as much
/// work left, what they had not.
/// # Source
/// Ours: docs/math/device.md.
pub(crate) fn settle(
    faults: Vec<Fault>,
    window: &Window,
    devices: Devices<'_>,
    delays: &mut SampledDelays,
    stretch: Stretch<'_>,
    gates: &Gates,
    settings: &IncidentSettings,
) -> Vec<Fault> {
    let Some(run_ahead_s) = devices.run_ahead_s(window) else {
        return faults;
    };
    let seen: Seen = stretch.numbers().collect();
    let last_step = stretch.numbers().last().unwrap_or_default();
    let is_steady = |fault: &Fault| pace_of(&fault.strikes, &seen, last_step) == Pace::Steady;
    let account = match devices {
        Devices::Accounted(account) => Some(account),
        _ => None,
    };
    let found = account.map(|account| account.faults(&faults, stretch, gates, settings));
    let mut found = found.unwrap_or_default();
    let (steady, mut faults): (Vec<Fault>, Vec<Fault>) = faults.into_iter().partition(is_steady);
    delays.take(&found);
    // Which steps a host struck now and then it knows of all, the device only of those sampled.
    for fault in found.iter_mut().filter(|fault| !is_steady(fault)) {
        let mut hosts = faults.iter().filter(|_| fault.side == Some(Side::Host));
        if let Some(host) = hosts.find(|it| is_same(fault, it) && fault.is_as_late_as(it)) {
            fault.strikes.clone_from(&host.strikes);
            fault.sampled = false;
        }
    }
    // Of ranks that are apart for as long as they are together, clocks do not show who falls behind. If
    // pauses of one were sampled before, and nothing of another rank's ever, the others wait for it.
    let sampled = faults.iter().filter(|it| delays.kept(it).is_some());
    let late: BTreeSet<Vec<u32>> = sampled
        .chain(&steady)
        .chain(&found)
        .map(|it| it.ranks.clone())
        .collect();
    let is_only = |fault: &Fault| {
        let is_seen = found.iter().any(|it| is_same(it, fault));
        late.len() == 1 && late.contains(&fault.ranks) && !is_seen
    };
    faults.retain_mut(|fault| {
        // The queue takes as much of a strike as its host was ahead. Where something is read back a
        // host waits for its device, and by that for the late ones; ranks that call different things do
        // so anywhere, as each waits for another.
        let left_s = fault.lateness_s - run_ahead_s;
        let is_beyond = fault.lateness_s >= BEYOND_RATIO * run_ahead_s;
        let waits = devices.are_read_in(fault.stage)
            || (window.calls_differ() && fault.stage != StageId::DATA);
        let unseen = is_beyond && !waits && !fault.in_turn;
        let known = delays.kept(fault);
        let is_known = known.is_some() && is_beyond && is_only(fault);
        let kept = known
            .or(unseen.then_some(left_s / fault.lateness_s))
            .filter(|_| is_known || falls_behind(fault, window));
        fault.cost_s *= kept.unwrap_or(0.0);
        fault.gain_alone_s *= kept.unwrap_or(0.0);
        fault.side = Some(Side::Host);
        kept.is_some()
    });
    // A host that is late in each step is late for its device where that has nothing left.
    let of_hosts = |fault: &&mut Fault| fault.side == Some(Side::Host) && !is_steady(fault);
    for fault in found.iter_mut().filter(of_hosts) {
        let is_it = |host: &&Fault| host.ranks == fault.ranks && host.is_in(fault.stage);
        if let Some(host) = steady.iter().find(is_it) {
            // The host says in which steps it was late, the device what that cost: spread over all.
            fault.strikes.clone_from(&host.strikes);
            fault.sampled = false;
            fault.lateness_s = fault.cost_s / fault.strikes.len() as f64;
        }
    }
    // Of what strikes now and then the hosts saw all, of the rest the devices see the truth. Of two that are
    // late by different amounts there the one counts of which more was seen.
    let is_hosts = |one: &Fault, it: &Fault| {
        is_same(one, it) && (one.is_as_late_as(it) || it.late_sum_s() >= one.late_sum_s())
    };
    found.retain(|one| is_steady(one) || !faults.iter().any(|it| is_hosts(one, it)));
    faults.retain(|one| !found.iter().any(|it| is_same(one, it)));
    faults.extend(found);
    judge(&mut faults, stretch, settings);
    faults.sort_by(|a, b| b.cost_s.total_cmp(&a.cost_s));
    faults
}
