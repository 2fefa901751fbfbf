mod group;

use std::collections::{BTreeSet, VecDeque};

use frontier::{Gates, WindowFrontier, localise};
use model::{
    Action, Claim, Cost, Fact, Finding, IncidentKind, JobContext, Label, LateRanks, LateStage,
    Meeting, NextInLine, Observation, Origin, Pace, Ranks, Side, StageAccount, StageId, StageNames,
    StepPart, StepPlace, StepSpan, Subject, Window,
};

use crate::cause::{Best, common_causes};
use crate::fault::{Record, STRIKES_MIN, Stretch};
use crate::pace::Seen;
use crate::queued::charge_queued;
use crate::read_backs::charge_between;
use crate::sides::settle;
use crate::struck::charge_struck;
use crate::vouch::vouch;
use crate::{Devices, Fault, FaultKind, Hidden, IncidentSettings, find_faults};
use group::Group;

/// Struck steps remembered of one incident: enough to tell its pace.
const MAX_STRIKES: usize = 512;
/// Faults remembered of one job; the cheapest closed one makes room.
const MAX_TRACKS: usize = 256;
/// Steps of a job from which a few more are too few to find something in. Ours.
const MANY_STEPS: u64 = 20;
/// Windows without a trace after which a fault that was never worth a word is forgotten.
const UNSPOKEN_WINDOWS: u32 = 10;
/// Times its own distance after which a periodic fault counts as gone.
const MISSED_STRIKES: u64 = 3;
/// Steps without a strike after which a fault counts as over that struck in most steps, or
/// now and then.
const STEADY_PATIENCE: u64 = 10;
const SPORADIC_PATIENCE: u64 = 50;

/// Whether a group of ranks and those of a window have one in common: roles divide the ranks,
/// so that it is the same group then, even if some left it.
fn meet(group: &[u32], window: &Window) -> bool {
    group
        .iter()
        .any(|rank| window.ranks.binary_search(rank).is_ok())
}

/// Follows the faults of a job from window to window.
#[derive(Debug, Default)]
pub struct Tracker {
    settings: IncidentSettings,
    gates: Gates,
    tracks: Vec<Track>,
    groups: Vec<Group>,
    next_id: u64,
    last_step: u64,
    /// Whether hosts were late in the last window, and their devices not seen.
    is_unsettled: bool,
}

/// One incident in the making.
#[derive(Clone, Debug)]
struct Track {
    id: u64,
    /// Ranks of the last window that showed it: its role's, where roles divide the job.
    compared: Vec<u32>,
    /// Whether it is worth speaking of.
    spoken: bool,
    windows: u32,
    /// As of the last window that showed it.
    pace: Pace,
    fault: Fault,
    strikes: VecDeque<u64>,
    struck_steps: u64,
    first_step: u64,
    /// The first step that sampled ones stood for when it was first seen, and the exposed seconds from there
    /// to the first strike that was seen.
    sampled_from: Option<(u64, f64)>,
    last_step: u64,
    late_sum_s: f64,
    cost_s: f64,
    gain_alone_s: f64,
    hides: Vec<Hidden>,
    victims: Ranks,
    /// Exposed seconds from the first step to the end of the last window that showed it.
    exposed_s: f64,
    /// Exposed seconds of later windows, which count only if it comes back.
    quiet_s: f64,
    quiet_windows: u32,
    labels: BTreeSet<Label>,
    lag_s: f64,
    share: f64,
    gain: f64,
}

impl Tracker {
    /// A tracker for one job.
    pub fn new(settings: IncidentSettings, gates: Gates) -> Self {
        Self {
            settings,
            gates,
            ..Self::default()
        }
    }

    /// What counts as an incident.
    pub fn settings(&self) -> &IncidentSettings {
        &self.settings
    }

    /// Takes the next window of the job. Returns what showed in it, costliest first; nothing if
    /// the window was healthy.
    ///
    /// Raises the labels of a window whose waits were measured to follow the
    /// synchronisation model.
    pub fn observe(
        &mut self,
        window: &Window,
        found: &mut WindowFrontier,
        devices: Devices<'_>,
        context: JobContext<'_>,
    ) -> Vec<Finding> {
        // The group leaves the list while the tracker finds and follows its faults.
        let place = self
            .groups
            .iter()
            .position(|group| meet(&group.ranks, window));
        let mut group = place
            .map(|at| self.groups.swap_remove(at))
            .unwrap_or_default();
        let took_s = group.take(found);
        let mut faults = self.faults(window, found, devices, &mut group);
        group.ranks.clone_from(&window.ranks);
        self.last_step = self
            .last_step
            .max(found.steps.last().map_or(0, |last| last.step));
        let open: Vec<bool> = self
            .tracks
            .iter()
            .map(|track| self.is_open(track) && meet(&track.compared, window))
            .collect();
        for (track, _) in self.tracks.iter_mut().zip(&open).filter(|(_, open)| **open) {
            // Quiet until `follow` finds the fault in this window, too.
            track.quiet_s += took_s;
        }
        // Where a rank was named before, its stage is not asked about again.
        faults.retain(|fault| {
            fault.kind != FaultKind::UnknownRank
                || !self.tracks.iter().any(|track| {
                    track.spoken
                        && track.fault.kind == FaultKind::LateRanks
                        && track.fault.stage == fault.stage
                })
        });
        let late = faults
            .iter()
            .filter(|f| f.notable && f.kind == FaultKind::LateRanks);
        let late_stages: Vec<StageId> = late.map(|fault| fault.stage).collect();
        vouch(window, found, &late_stages, &self.gates);
        let found_in = faults.iter().map(|it| (it.ranks.clone(), it.stage));
        let found_in: Vec<(Vec<u32>, StageId)> = found_in.collect();
        let shown: Vec<u64> = faults
            .into_iter()
            .map(|fault| self.follow(fault, window, found, &group))
            .collect();
        let awaits = matches!(devices, Devices::Awaited { .. });
        group.account(devices, found_in);
        let is_unjudged = group.unjudged.count(window.first_step..=self.last_step) > 0;
        self.groups.push(group);
        // Tracks that are new lie behind those in `open`, and `zip` ends before them.
        for (track, _) in self.tracks.iter_mut().zip(open).filter(|(_, open)| *open) {
            // What devices showed last holds until they are accounted for again.
            let is_awaited = awaits && track.fault.side.is_some();
            let is_unknown = is_awaited || (is_unjudged && track.names_hosts());
            let is_seen = shown.contains(&track.id) || is_unknown;
            track.quiet_windows += u32::from(!is_seen);
        }
        self.forget();
        let tracks = self
            .spoken()
            .into_iter()
            .filter(|(track, _)| shown.contains(&track.id));
        tracks
            .map(|(track, ranks)| self.finding(track, &ranks, context))
            .collect()
    }

    /// Whether more should be known of the devices: one of them goes on to be slow, or to be held
    /// up, or hosts are late and nobody saw what that did to their devices.
    pub fn suspects_devices(&self) -> bool {
        self.is_unsettled
            || self
                .tracks
                .iter()
                .filter(|track| track.spoken && track.fault.side.is_some())
                .any(|it| self.is_open(it))
    }

    /// Steps in which a host was late, or waited for its device, and which did what is unknown.
    pub fn ambiguous_steps(&self) -> u64 {
        let groups = self.groups.iter().filter(|group| !group.is_clear());
        groups.map(|group| group.ambiguous_steps).sum()
    }

    /// What a window shows, once it is known what its devices did.
    fn faults(
        &mut self,
        window: &Window,
        found: &WindowFrontier,
        devices: Devices<'_>,
        group: &mut Group,
    ) -> Vec<Fault> {
        let (gates, settings) = (&self.gates, &self.settings);
        let mut late = find_faults(window, found, gates, settings, devices.turns(window));
        let is_blind = window.runs_ahead && matches!(devices, Devices::Unseen);
        // Read-backs that are seen bound the cost. Without them it follows from full queues, or
        // from what struck steps take longer.
        let is_charged = is_blind && charge_between(&mut late, window, found, settings);
        if is_blind && !is_charged {
            if window.meeting != Meeting::Seen {
                charge_queued(&mut late, window, found, settings);
            }
            charge_struck(&mut late, window, found, settings);
        }
        let (late, is_ambiguous) = group.distinguishable(late, window, is_blind);
        if is_ambiguous {
            group.unjudged.extend(found.steps.iter().map(|it| it.step));
        }
        self.is_unsettled =
            matches!(devices, Devices::Awaited { .. }) && late.iter().any(|fault| fault.notable);
        let exposed_s = group.unaccounted_s(0);
        let mut faults = settle(
            late,
            window,
            devices,
            &mut group.delays,
            Stretch {
                steps: &group.unaccounted,
                exposed_s,
                median_s: found.median_step_s(),
                last: group.last.as_ref(),
            },
            gates,
            settings,
        );
        // Faults of steps without an account are costs of more steps than these.
        let causes = common_causes(window, found, &faults, &group.best, devices, settings);
        // A host that runs ahead may wait for data and lose nothing.
        faults.extend(
            causes
                .into_iter()
                .filter(|it| !is_ambiguous || it.kind != FaultKind::InputBound),
        );
        group.best.take(window, found, devices);
        faults
    }

    /// The job is started over: its steps are counted anew, and what is found now is another
    /// incident than what was. What its steps take at best is still known.
    pub fn restart(&mut self) {
        self.tracks.clear();
        self.last_step = 0;
        for group in &mut self.groups {
            group.steps = Seen::default();
            group.unjudged = Seen::default();
            group.sampled = Seen::default();
            group.unaccounted.clear();
            group.last = None;
        }
    }

    /// What steps take at best is not known any more.
    pub fn forget_best(&mut self) {
        for group in &mut self.groups {
            group.best = Best::default();
        }
    }

    /// What was found so far, costliest first.
    pub fn findings(&self, context: JobContext<'_>) -> Vec<Finding> {
        let tracks = self.spoken().into_iter();
        tracks
            .map(|(track, ranks)| self.finding(track, &ranks, context))
            .collect()
    }

    /// Whether the ranks that a track names are distinguishable from those that wait for them.
    fn is_clear(&self, track: &Track) -> bool {
        !track.names_hosts() || self.group_of(track).is_none_or(Group::is_clear)
    }

    /// Those whom the ranks of a track are compared with now, which need not be all that once were.
    fn group_of(&self, track: &Track) -> Option<&Group> {
        let named = &track.fault.ranks;
        let its = if named.is_empty() {
            &track.compared
        } else {
            named
        };
        let mut groups = self.groups.iter();
        groups.find(|group| group.ranks.iter().any(|rank| its.contains(rank)))
    }

    /// What is spoken of, costliest first, and the ranks that were compared. That all of a role
    /// became slower while all of another did is one incident.
    fn spoken(&self) -> Vec<(&Track, Vec<u32>)> {
        let mut tracks: Vec<(&Track, Vec<u32>)> = Vec::new();
        for track in self
            .tracks
            .iter()
            .filter(|it| it.spoken && self.is_clear(it))
        {
            match tracks
                .iter_mut()
                .find(|(first, _)| track.degrades_with(first))
            {
                Some((_, ranks)) => {
                    ranks.extend(&track.compared);
                    ranks.sort_unstable();
                    ranks.dedup();
                }
                None => tracks.push((track, track.compared.clone())),
            }
        }
        tracks.sort_by(|(a, _), (b, _)| b.cost_s.total_cmp(&a.cost_s).then(a.id.cmp(&b.id)));
        tracks
    }

    /// Adds a fault to the track it continues, or to a new one; returns the track's id.
    fn follow(
        &mut self,
        fault: Fault,
        window: &Window,
        found: &WindowFrontier,
        group: &Group,
    ) -> u64 {
        let known = self.tracks.iter().position(|track| {
            self.is_open(track) && meet(&track.compared, window) && track.fault.continues(&fault)
        });
        let at = known.unwrap_or_else(|| {
            let first_step = fault.strikes.first().copied().unwrap_or(window.first_step);
            // A fault of devices strikes steps of windows whose devices were awaited, too.
            let exposed_s = group.exposed_since_s(first_step);
            let mut track = Track::new(self.next_id, &fault, first_step, exposed_s);
            if fault.side == Some(Side::Device) {
                let first = group.unaccounted.first();
                let first = first.filter(|(step, _)| *step <= first_step);
                track.sampled_from =
                    first.map(|(step, _)| (*step, group.unaccounted_s(0) - exposed_s));
            }
            self.tracks.push(track);
            self.next_id += 1;
            self.tracks.len() - 1
        });
        let track = &mut self.tracks[at];
        track.compared.clone_from(&window.ranks);
        track.exposed_s += std::mem::take(&mut track.quiet_s);
        track.quiet_windows = 0;
        track.windows += 1;
        let notable = fault.notable;
        track.add(fault);
        let slot = found.slot(track.fault.stage);
        track.labels.extend(&found.labels);
        track.share = slot.map_or(0.0, |slot| found.share[slot]);
        track.gain = slot.map_or(0.0, |slot| found.gain[slot]);
        track.lag_s = localise(window, found, track.fault.stage, &self.gates).lag_s;
        track.pace = group.pace_of(track, self.last_step);
        let (track, steps) = (&self.tracks[at], group.steps.count(0..=self.last_step));
        let spoken = self.is_notable(track, notable, steps, found);
        self.tracks[at].spoken |= spoken;
        self.tracks[at].id
    }

    /// Whether a window, or several together, are reason enough to speak of a fault: it is `alone` in the last
    /// one, and the job has had so many steps.
    fn is_notable(&self, track: &Track, alone: bool, steps: u64, found: &WindowFrontier) -> bool {
        if track.fault.kind == FaultKind::Degraded {
            return alone || track.windows >= self.settings.degraded_windows;
        }
        let record = Record {
            kind: track.fault.kind,
            pace: track.pace,
            strikes: track.struck_steps,
            lateness_s: track.lateness_s(),
            weight_s: track.cost_s,
            exposed_s: track.since().1,
            step_s: found.median_step_s(),
        };
        let is_notable = alone || record.is_notable(&self.settings);
        is_notable && !(steps >= MANY_STEPS && record.may_be_chance(&self.settings))
    }

    /// Whether the fault goes on at the end of what was seen.
    fn goes_on(&self, track: &Track) -> bool {
        // Nobody sees its ranks any more.
        let missed = self
            .group_of(track)
            .map_or(u64::MAX, |group| group.missed(track, self.last_step));
        let patience = match track.pace {
            Pace::Every { steps } => MISSED_STRIKES * steps,
            Pace::Sporadic => SPORADIC_PATIENCE,
            Pace::Once { .. } => 0,
            Pace::Steady | Pace::Rotating => STEADY_PATIENCE,
        };
        missed < patience
    }

    /// Whether the fault may still come back: it did a short while ago.
    fn is_open(&self, track: &Track) -> bool {
        if !track.spoken {
            return track.quiet_windows < UNSPOKEN_WINDOWS;
        }
        let missed = self.last_step.saturating_sub(track.last_step);
        let expected = match track.pace {
            Pace::Every { steps } => missed < MISSED_STRIKES * steps,
            _ => false,
        };
        expected || track.quiet_windows < self.settings.resolve_windows
    }

    fn forget(&mut self) {
        let gone: Vec<u64> = self
            .tracks
            .iter()
            .filter(|track| !track.spoken && !self.is_open(track))
            .map(|track| track.id)
            .collect();
        self.tracks.retain(|track| !gone.contains(&track.id));
        while self.tracks.len() > MAX_TRACKS {
            let closed = self
                .tracks
                .iter()
                .enumerate()
                .filter(|(_, track)| !self.is_open(track));
            let cheapest = closed.min_by(|a, b| a.1.cost_s.total_cmp(&b.1.cost_s));
            // If all still go on, the oldest makes room.
            let at = cheapest.map_or(0, |(at, _)| at);
            self.tracks.remove(at);
        }
    }

    fn finding(&self, track: &Track, compared: &[u32], context: JobContext<'_>) -> Finding {
        let Fault {
            kind,
            ranks,
            stage,
            side,
            ..
        } = &track.fault;
        let share = track.cost_share();
        let open = !context.ended && self.goes_on(track);
        let next_in_line = track.next_in_line(context.names);
        Finding {
            kind: match kind {
                FaultKind::Degraded => IncidentKind::Degraded,
                _ => IncidentKind::Slow,
            },
            severity: self.settings.severity(share),
            open,
            subject: Subject {
                ranks: ranks.clone(),
                hosts: context.hosts_of(ranks),
                stage: Some(context.names.name(*stage).to_owned()),
                side: *side,
                ..Subject::default()
            },
            pace: track.pace,
            first_step: track.since().0,
            last_step: track.last_step,
            victims: match kind {
                FaultKind::Degraded => compared.iter().copied().collect(),
                _ => track.victims.clone(),
            },
            cost: Cost {
                exposed_s: track.cost_s,
                share,
                gain_alone_s: track.gain_alone_s,
            },
            next_in_line,
            facts: vec![Fact::from(track.observation(context.names))],
            actions: track.actions(context.names),
            ..Finding::new(
                Origin::Stages,
                format!("i{}", track.id + 1),
                track.claim(compared, open, context),
            )
        }
    }
}

impl Fault {
    /// Whether `later` is this fault, seen again.
    fn continues(&self, later: &Self) -> bool {
        let same_stage = self.is_in(later.stage);
        // Only late ranks have strikes of several sizes; one cause of all ranks may grow.
        let same_size = self.is_as_late_as(later) || self.kind != FaultKind::LateRanks;
        // Whose it is may have been seen since.
        let side_fits = self.side == later.side || self.side.is_none() || later.side.is_none();
        self.kind == later.kind && self.ranks == later.ranks && same_stage && same_size && side_fits
    }
}

impl Track {
    fn new(id: u64, fault: &Fault, first_step: u64, exposed_s: f64) -> Self {
        Self {
            id,
            compared: Vec::new(),
            spoken: false,
            windows: 0,
            pace: Pace::Sporadic,
            fault: fault.clone(),
            strikes: VecDeque::new(),
            struck_steps: 0,
            first_step,
            sampled_from: None,
            last_step: first_step,
            late_sum_s: 0.0,
            cost_s: 0.0,
            gain_alone_s: 0.0,
            hides: Vec::new(),
            victims: Ranks::default(),
            exposed_s,
            quiet_s: 0.0,
            quiet_windows: 0,
            labels: BTreeSet::new(),
            lag_s: 0.0,
            share: 0.0,
            gain: 0.0,
        }
    }

    /// Whether it names ranks by what their hosts show where hosts may wait for devices.
    fn names_hosts(&self) -> bool {
        let names_ranks = matches!(self.fault.kind, FaultKind::LateRanks | FaultKind::Rotating);
        names_ranks && self.fault.side.is_none() && self.fault.stage != StageId::DATA
    }

    fn add(&mut self, fault: Fault) {
        // Another fault of the same window may have struck some of these steps, or later ones.
        let known = self.strikes.make_contiguous();
        let new: Vec<u64> = fault
            .strikes
            .iter()
            .copied()
            .filter(|step| known.binary_search(step).is_err())
            .collect();
        self.struck_steps += new.len() as u64;
        self.late_sum_s += fault.late_sum_s();
        self.cost_s += fault.cost_s;
        self.add_hidden(&fault);
        self.gain_alone_s += fault.gain_alone_s;
        self.last_step = self
            .last_step
            .max(fault.strikes.last().copied().unwrap_or(0));
        self.victims = self.victims.and(&fault.victims);
        self.strikes.extend(new);
        self.strikes.make_contiguous().sort_unstable();
        while self.strikes.len() > MAX_STRIKES {
            self.strikes.pop_front();
        }
        // A fault that once cost something by itself is hidden no more.
        let hidden = self.fault.hidden && fault.hidden;
        let side = fault.side.or(self.fault.side);
        self.fault = Fault {
            side,
            hidden,
            ..fault
        };
    }

    /// Takes in what it hides, before its own gain: in a window without one of these, fixing both saves as much
    /// as fixing it alone.
    fn add_hidden(&mut self, fault: &Fault) {
        let is_same = |one: &Hidden, it: &Hidden| one.ranks == it.ranks && one.stage == it.stage;
        for known in &mut self.hides {
            match fault.hides.iter().find(|hidden| is_same(known, hidden)) {
                Some(hidden) => {
                    known.lateness_s = hidden.lateness_s;
                    known.gain_alone_s += hidden.gain_alone_s;
                    known.gain_both_s += hidden.gain_both_s;
                }
                None => known.gain_both_s += fault.gain_alone_s,
            }
        }
        for hidden in &fault.hides {
            if !self.hides.iter().any(|known| is_same(known, hidden)) {
                self.hides.push(Hidden {
                    gain_both_s: self.gain_alone_s + hidden.gain_both_s,
                    ..hidden.clone()
                });
            }
        }
    }

    /// Whether other ranks became slower in the same steps.
    fn degrades_with(&self, other: &Self) -> bool {
        let kinds = [self.fault.kind, other.fault.kind];
        kinds.iter().all(|kind| *kind == FaultKind::Degraded)
            && self.first_step <= other.last_step
            && other.first_step <= self.last_step
            && !self
                .compared
                .iter()
                .any(|rank| other.compared.contains(rank))
    }

    /// The first step in which it may have struck, and the exposed seconds since: a few strikes without a
    /// pattern may stand for earlier ones.
    fn since(&self) -> (u64, f64) {
        let is_often = self.struck_steps >= STRIKES_MIN;
        match (self.pace, self.sampled_from) {
            (Pace::Sporadic, Some((step, before_s))) if !is_often => {
                (step, self.exposed_s + before_s)
            }
            _ => (self.first_step, self.exposed_s),
        }
    }

    fn cost_share(&self) -> f64 {
        let (_, exposed_s) = self.since();
        if exposed_s > 0.0 {
            (self.cost_s / exposed_s).min(1.0)
        } else {
            0.0
        }
    }

    fn lateness_s(&self) -> f64 {
        self.late_sum_s / self.struck_steps.max(1) as f64
    }

    /// Its stages, in the shares of the last window that showed it.
    fn late_stages(&self, names: &StageNames) -> impl Iterator<Item = LateStage> {
        self.fault.stages().map(|it| LateStage {
            stage: names.name(it.stage).to_owned(),
            lateness_s: it.share * self.lateness_s(),
        })
    }

    fn next_in_line(&self, names: &StageNames) -> Vec<NextInLine> {
        let next = self.hides.iter().map(|hidden| NextInLine {
            ranks: hidden.ranks.clone(),
            stage: names.name(hidden.stage).to_owned(),
            lateness_s: hidden.lateness_s,
            gain_alone_s: hidden.gain_alone_s,
            gain_both_s: hidden.gain_both_s,
        });
        next.collect()
    }

    fn claim(&self, compared: &[u32], open: bool, context: JobContext<'_>) -> Claim {
        let Fault {
            kind, place, side, ..
        } = &self.fault;
        let stage = context.names.name(self.fault.stage).to_owned();
        let place = place.clone();
        // One rank alone is not all of them, whether the others were not recorded or there are none.
        let is_part = compared.len() == 1 || compared.len() < context.seen.len();
        let group = is_part.then(|| compared.to_vec());
        let (lateness_s, cost_share) = (self.lateness_s(), self.cost_share());
        let steps = StepSpan {
            first: self.since().0,
            last: self.last_step,
            open,
        };
        match kind {
            FaultKind::LateRanks => Claim::LateRanks(LateRanks {
                ranks: self.fault.ranks.clone(),
                stage,
                other_stages: self.late_stages(context.names).skip(1).collect(),
                place,
                side: *side,
                usual_s: self.fault.level_s,
                lateness_s,
                pace: self.pace,
                steps,
                cost_share,
                gain_alone_s: self.gain_alone_s,
                hidden: self.fault.hidden,
                next_in_line: self.next_in_line(context.names),
            }),
            FaultKind::Rotating => Claim::Rotating {
                stage,
                place,
                lateness_s,
                cost_share,
                steps,
            },
            FaultKind::InputBound => Claim::InputBound {
                stage,
                group,
                lateness_s,
                cost_share,
                steps,
            },
            FaultKind::Degraded => Claim::Slower {
                stage,
                group,
                side: *side,
                lateness_s,
                steps,
            },
            FaultKind::UnknownRank => Claim::UnknownRank {
                stage,
                stage_share: self.share,
                steps,
            },
        }
    }

    fn observation(&self, names: &StageNames) -> Observation {
        let strong = self.labels.iter().find(|label| label.is_strong());
        let label = strong
            .copied()
            .unwrap_or(if self.labels.contains(&Label::CoCritical) {
                Label::CoCritical
            } else {
                Label::FrontierAccounting
            });
        let account = StageAccount {
            label,
            stages: self.late_stages(names).collect(),
            struck_steps: self.struck_steps,
            lateness_s: self.lateness_s(),
            gain_alone_s: self.gain_alone_s,
            stage_share: self.share,
            stage_gain: self.gain,
            median_lag_s: self.lag_s,
        };
        match self.fault.kind {
            FaultKind::LateRanks | FaultKind::Rotating => Observation::OwnWork(account),
            FaultKind::InputBound => Observation::StageCharged(account),
            FaultKind::Degraded => Observation::StepsSlower(account),
            FaultKind::UnknownRank => Observation::LeftTogether(account),
        }
    }

    fn actions(&self, names: &StageNames) -> Vec<Action> {
        let Fault {
            kind,
            stage,
            side,
            place,
            reads_back,
            ..
        } = &self.fault;
        let ranks = self.fault.ranks.clone();
        let first = match kind {
            FaultKind::Rotating if matches!(*stage, StageId::FORWARD | StageId::BACKWARD) => {
                Action::CompareBatches
            }
            FaultKind::Rotating => Action::LookAtWhatRanksShare,
            FaultKind::InputBound => Action::LookAtInputPipeline,
            FaultKind::Degraded => Action::LookAtWhatChanged,
            FaultKind::UnknownRank => Action::RecordArrivals,
            FaultKind::LateRanks if *side == Some(Side::Device) => Action::CompareDevices { ranks },
            FaultKind::LateRanks if *reads_back => Action::RemoveReadBacks { ranks },
            FaultKind::LateRanks => Action::LookAtStage {
                ranks,
                part: match place {
                    Some(StepPlace::BeforeBackward) => StepPart::BeforeBackward,
                    _ => step_part(*stage, names),
                },
            },
        };
        let period = match self.pace {
            Pace::Every { steps } => Some(Action::LookForPeriod { steps }),
            _ => None,
        };
        std::iter::once(first).chain(period).collect()
    }
}

pub(crate) fn step_part(stage: StageId, names: &StageNames) -> StepPart {
    match stage {
        StageId::DATA => StepPart::Loader,
        StageId::DATA_GAP => StepPart::BetweenPasses,
        StageId::FORWARD => StepPart::Forward,
        StageId::BACKWARD => StepPart::Backward,
        StageId::CALLBACKS => StepPart::Callbacks,
        StageId::OPTIMIZER => StepPart::Optimizer,
        StageId::OTHER => StepPart::Uncovered,
        _ => StepPart::Named(names.name(stage).to_owned()),
    }
}

#[cfg(test)]
mod tests;
