use frontier::WindowFrontier;
use model::{FEW_RANKS, Meeting, Pace, StageId, Window};

use super::Track;
use crate::cause::Best;
use crate::fault::LastAccount;
use crate::pace::{Seen, pace_of};
use crate::sides::SampledDelays;
use crate::{Devices, Fault, FaultKind};

/// Steps without an account of their devices that are remembered. Few windows are awaited, but one of a
/// recording may have any number of steps: faults are judged over the latest.
const MAX_UNACCOUNTED: usize = 1024;
/// Steps of the last account that are remembered: a fault may have begun in those behind its last sampled one.
/// Ours: of the others so many show what steps took before.
const MAX_EARLIER: usize = 64;

/// What was seen of ranks that are compared with one another.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// Of its last window.
    pub(super) ranks: Vec<u32>,
    /// Its windows in which hosts that wait look like hosts that work, the others, and the steps of
    /// the former in which a host did either.
    ambiguous: u32,
    clear: u32,
    pub(super) ambiguous_steps: u64,
    /// The steps of the former.
    pub(super) unjudged: Seen,
    /// Its best windows.
    pub(super) best: Best,
    pub(super) steps: Seen,
    /// Those of its steps whose devices were accounted for because they were sampled.
    pub(super) sampled: Seen,
    /// Steps since devices were last accounted for, ascending, and what each took, in seconds.
    pub(super) unaccounted: Vec<(u64, f64)>,
    /// The account before these.
    pub(super) last: Option<LastAccount>,
    /// What lateness now and then delays devices by.
    pub(super) delays: SampledDelays,
}

impl Group {
    /// Takes the steps of a window. What they took, in seconds.
    pub(super) fn take(&mut self, found: &WindowFrontier) -> f64 {
        let known = self.unaccounted.len();
        self.unaccounted.extend(found.took_s());
        let new = self.unaccounted[known..].iter();
        let took_s = new.map(|(_, took_s)| took_s).sum();
        let forgotten = self.unaccounted.len().saturating_sub(MAX_UNACCOUNTED);
        self.unaccounted.drain(..forgotten);
        self.steps.extend(found.steps.iter().map(|it| it.step));
        took_s
    }

    /// Takes the sampled steps that its devices are accounted for by, in which faults of these ranks were found
    /// in these stages: all steps before are.
    pub(super) fn account(&mut self, devices: Devices<'_>, found: Vec<(Vec<u32>, StageId)>) {
        if let Devices::Accounted(account) = devices {
            let sampled = &account.found.steps;
            self.sampled.extend(sampled.iter().map(|it| it.step));
            let of_last = self.unaccounted.len().saturating_sub(MAX_EARLIER);
            self.last = sampled.last().map(|last| LastAccount {
                steps: self.unaccounted.split_off(of_last),
                sampled: last.step,
                found,
            });
        }
        if !matches!(devices, Devices::Awaited { .. }) {
            self.unaccounted.clear();
        }
    }

    /// Exposed seconds of steps without an account of their devices, from one on.
    pub(super) fn unaccounted_s(&self, from: u64) -> f64 {
        let since = self.unaccounted.iter().filter(|(step, _)| *step >= from);
        since.map(|(_, took_s)| took_s).sum()
    }

    /// The same of all steps since one that is known of, which may lie before the last account.
    pub(super) fn exposed_since_s(&self, from: u64) -> f64 {
        let earlier = self.last.iter().flat_map(|last| &last.steps);
        let earlier = earlier.filter(|(step, _)| *step >= from);
        earlier.map(|(_, took_s)| took_s).sum::<f64>() + self.unaccounted_s(from)
    }

    /// When a track strikes, of its steps until one. A period may show only in those that were sampled.
    pub(super) fn pace_of(&self, track: &Track, until: u64) -> Pace {
        match track.fault.kind {
            FaultKind::Rotating => return Pace::Rotating,
            FaultKind::LateRanks => {}
            _ => return Pace::Steady,
        }
        let strikes: Vec<u64> = track.strikes.iter().copied().collect();
        let pace = pace_of(&strikes, &self.steps, until);
        let is_sampled = track.fault.sampled && pace == Pace::Sporadic;
        let sampled = is_sampled.then(|| pace_of(&strikes, &self.sampled, until));
        sampled
            .filter(|pace| matches!(pace, Pace::Every { .. }))
            .unwrap_or(pace)
    }

    /// Steps without a strike of a track up to a step. Of one that only sampled steps show those count
    /// that were sampled, of another one of devices those in which these were accounted for, and of one
    /// of hosts those that show which of them wait.
    pub(super) fn missed(&self, track: &Track, until: u64) -> u64 {
        let since = track.last_step.saturating_add(1);
        if track.fault.sampled {
            return self.sampled.count(since..=until);
        }
        let unknown = if track.fault.side.is_some() {
            let unaccounted = self.unaccounted.iter().filter(|(step, _)| *step >= since);
            unaccounted.count() as u64
        } else if track.names_hosts() {
            self.unjudged.count(since..=until)
        } else {
            0
        };
        self.steps.count(since..=until).saturating_sub(unknown)
    }

    /// Whether most of its windows show which hosts wait and which work. By chance a few seem to.
    pub(super) fn is_clear(&self) -> bool {
        self.clear > self.ambiguous || self.ambiguous == 0
    }

    /// The faults of a window whose ranks are not mistaken for those that wait for them, and
    /// whether nothing in the window shows where its ranks meet.
    pub(super) fn distinguishable(
        &mut self,
        late: Vec<Fault>,
        window: &Window,
        is_blind: bool,
    ) -> (Vec<Fault>, bool) {
        // Of few hosts that run ahead, one that waits for its device looks like one that works.
        let may_mistake = is_blind && window.ranks.len() <= FEW_RANKS;
        let is_ambiguous = may_mistake && window.meeting == Meeting::Unseen;
        let most = window.ranks.len().div_ceil(2);
        let (mut late, unclear): (Vec<Fault>, Vec<Fault>) = late.into_iter().partition(|fault| {
            // Nobody waits for a device in its data loader. Elsewhere ranks that are as many as the
            // others may as well be those that wait, for ranks that are late in other places.
            // Where ranks measurably meet, waits are known.
            let is_majority =
                is_blind && window.meeting != Meeting::Seen && fault.ranks.len() >= most;
            fault.stage == StageId::DATA || !(is_ambiguous || is_majority)
        });
        let struck = unclear
            .iter()
            .filter(|fault| fault.notable)
            .map(|fault| fault.strikes.len() as u64)
            .max();
        if is_ambiguous || struck.is_some() {
            self.ambiguous_steps += struck.unwrap_or(0);
            self.ambiguous += 1;
        } else {
            self.clear += 1;
        }
        for fault in &mut late {
            fault
                .hides
                .retain(|hidden| !unclear.iter().any(|it| hidden.is(it)));
        }
        if may_mistake {
            // What seems hidden behind a late rank may as well be the wait for it.
            late.retain(|fault| !fault.hidden);
            for fault in &mut late {
                fault.hides.clear();
            }
        }
        (late, is_ambiguous)
    }
}
