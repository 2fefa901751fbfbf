use std::collections::{BTreeMap, BTreeSet};

use model::{CollectiveOp, DeviceArrival, Failure, MarkKind, RankNs, StallKind, Standstill, Wait};

use crate::wait::{deadlock_cycle, issued_alike, unmade, wait_in};
use crate::{Collectives, streams};

/// A job in which nothing moves.
#[derive(Clone, Debug, PartialEq)]
pub struct Stall {
    /// Why.
    pub kind: StallKind,
    /// Ranks that everybody waits for, or that wait in a circle; never empty.
    pub culprits: Vec<u32>,
    /// Those of them whose process has ended.
    pub gone: Vec<u32>,
    /// The stuck collectives the culprits are part of; empty only with `halts`.
    pub waits: Vec<Wait>,
    /// All ranks that wait in some collective.
    pub waiting: Vec<u32>,
    /// The last thing each culprit did that we know of.
    pub last_kinds: BTreeMap<u32, MarkKind>,
    /// The furthest step a rank is in.
    pub step: u64,
    /// The last mark of any rank.
    pub since: RankNs,
    /// What the live tables of the ranks say is wrong.
    pub failure: Option<Failure>,
    /// Where pipelines stand still, if no collective says why nothing moves.
    pub halts: Vec<Standstill>,
    /// Whose devices were seen to get to collectives that all have issued.
    pub devices: Vec<DeviceArrival>,
}

impl Stall {
    /// Whether the job has not begun: ranks make the group of all ranks.
    pub fn is_of_start(&self) -> bool {
        self.waits
            .first()
            .is_some_and(|wait| wait.op == CollectiveOp::INIT)
    }

    /// The culprits that may be accused. That nothing is seen of a rank says nothing of what it
    /// does, and of ranks that entered different things the larger part is right, which may be
    /// among those that are not seen.
    ///
    /// A start is reported by its launcher: who is not observed there has not begun.
    pub fn accused(&self) -> Vec<u32> {
        let is_open = match self.kind {
            StallKind::Unseen => !self.is_of_start(),
            StallKind::Desync => self
                .waits
                .iter()
                .any(|it| it.is_undecided() && !it.missing.is_empty()),
            StallKind::Inside => {
                self.failure.is_none() && !self.is_of_start() && !self.is_of_devices()
            }
            StallKind::Nowhere => true,
            StallKind::Missing | StallKind::Livelock | StallKind::Deadlock => false,
        };
        if is_open {
            Vec::new()
        } else {
            self.culprits.clone()
        }
    }

    /// Whether recorders or marks say whose devices are behind the others in a collective.
    pub fn is_of_devices(&self) -> bool {
        self.kind == StallKind::Inside
            && self
                .waits
                .iter()
                .filter_map(|wait| wait.open.as_ref())
                .any(|it| it.behind().iter().any(|rank| self.culprits.contains(rank)))
    }

    /// The same, if something else tells that of the culprits only `roots` are waited for, and the
    /// others wait for these elsewhere; without roots nothing else. The collectives that roots are
    /// missing from stand in front.
    #[must_use]
    pub fn narrowed(mut self, roots: &BTreeSet<u32>) -> Self {
        // Roots among other ranks are of another wait and say nothing of these.
        if self.culprits.iter().any(|rank| roots.contains(rank)) {
            let others = self.culprits.extract_if(.., |rank| !roots.contains(rank));
            self.waiting.extend(others);
            self.waiting.sort_unstable();
            self.gone.retain(|rank| roots.contains(rank));
            self.waits
                .sort_by_key(|wait| !wait.missing.iter().any(|rank| roots.contains(rank)));
        }
        self
    }
}

/// Finds what is stuck in a job that does not move.
///
/// # Properties
/// If a collective lacks members there is a culprit (MY-P2).
/// # Source
/// Mycroft (2025), root group and MinOp.
pub(crate) fn stuck(job: &Collectives, step: u64, since: RankNs) -> Option<Stall> {
    let seen = job.seen();
    let waits = job
        .groups
        .values()
        .filter_map(|group| wait_in(group, &seen))
        .collect();
    rooted(job, &seen, waits, step, since)
}

/// The stall of a job in which ranks wait in these collectives.
fn rooted(
    job: &Collectives,
    seen: &BTreeSet<u32>,
    mut waits: Vec<Wait>,
    step: u64,
    since: RankNs,
) -> Option<Stall> {
    let lacking: Vec<&Wait> = waits
        .iter()
        .filter(|wait| !wait.missing.is_empty())
        .collect();
    let missing: BTreeSet<u32> = lacking.iter().flat_map(|w| w.missing.clone()).collect();
    let awaited: BTreeSet<u32> = waits.iter().flat_map(Wait::awaited).collect();
    let wait_for_others: BTreeSet<u32> = waits
        .iter()
        .filter(|wait| wait.awaited().next().is_some())
        .flat_map(Wait::waiting)
        .collect();
    // Who is in a collective of which nobody knows why it does not end cannot come elsewhere.
    let held: BTreeSet<u32> = waits
        .iter()
        .filter(|wait| wait.holds_all())
        .flat_map(Wait::waiting)
        .collect();
    // The roots of the wait graph: awaited, and waiting for nobody (docs/math/collective.md).
    let mut roots: BTreeSet<u32> = awaited.difference(&wait_for_others).copied().collect();
    // Before ranks are taken out below: a circle is that nobody is free, not that nobody is left.
    let is_circle = roots.is_empty() && !missing.is_empty();
    // Where no device has begun it, what stands before it holds them.
    let is_begun = |wait: &&Wait| wait.holds_all() && wait.has_begun();
    let held_inside: BTreeSet<u32> = waits
        .iter()
        .filter(is_begun)
        .flat_map(Wait::waiting)
        .collect();
    roots.retain(|rank| !held_inside.contains(rank) && !job.in_transfers.contains(rank));
    // Of one that is seen it is known that it has not come; of others only that nothing is known.
    if roots.iter().any(|rank| seen.contains(rank)) {
        roots.retain(|rank| seen.contains(rank));
    }
    let desynced: BTreeSet<u32> = waits
        .iter()
        .flat_map(|w| w.desyncs.iter().map(|it| it.rank))
        .collect();
    // Where no number is known, a rank that is not there could not be reached.
    let is_numbered = lacking.iter().any(|wait| wait.number > 0);
    let unseen = is_numbered && roots.is_disjoint(seen);
    // Who entered something else did so whatever those do of which nothing is recorded.
    let differs = unseen && !desynced.is_empty();
    let (kind, culprits) = if !roots.is_empty() && !differs {
        // Who has ended waits for nobody.
        if unseen && wait_for_others.iter().all(|rank| job.is_gone(*rank)) {
            return None;
        }
        if unseen {
            (StallKind::Unseen, roots)
        } else if roots.is_disjoint(&missing) {
            (StallKind::Inside, roots)
        } else {
            (
                StallKind::Missing,
                roots.intersection(&missing).copied().collect(),
            )
        }
    } else if is_circle && !differs {
        (StallKind::Deadlock, deadlock_cycle(&lacking))
    } else if !desynced.is_empty() {
        (StallKind::Desync, desynced)
    } else if !held.is_empty() {
        (StallKind::Inside, held)
    } else {
        // Making the group of all ranks is known by its begin and end: all came, not all are done.
        let wait = job.groups.values().find_map(unmade)?;
        let entered: BTreeSet<u32> = wait.entered.iter().copied().collect();
        let gone: BTreeSet<u32> = entered
            .iter()
            .copied()
            .filter(|rank| job.is_gone(*rank))
            .collect();
        waits = vec![wait];
        (
            StallKind::Inside,
            // A process that ended while it made the group keeps the others from it.
            if gone.is_empty() { entered } else { gone },
        )
    };
    let waiting: BTreeSet<u32> = waits
        .iter()
        .flat_map(|wait| wait.entered.iter().copied())
        .filter(|rank| !culprits.contains(rank))
        .collect();
    Some(Stall {
        kind,
        gone: culprits
            .iter()
            .filter(|rank| job.is_gone(**rank))
            .copied()
            .collect(),
        last_kinds: culprits
            .iter()
            .filter_map(|rank| Some((*rank, job.ranks.get(rank)?.kind?)))
            .collect(),
        waits: concerned(&waits, kind, &culprits),
        culprits: culprits.into_iter().collect(),
        waiting: waiting.into_iter().collect(),
        step,
        since,
        failure: None,
        halts: Vec::new(),
        devices: Vec::new(),
    })
}

/// The waits that the culprits have a part in.
fn concerned(waits: &[Wait], kind: StallKind, culprits: &BTreeSet<u32>) -> Vec<Wait> {
    let mut concerned: Vec<Wait> = waits
        .iter()
        .filter(|wait| {
            let is_inside = kind == StallKind::Inside && wait.missing.is_empty();
            (is_inside && wait.entered.iter().any(|rank| culprits.contains(rank)))
                || wait.awaited().any(|rank| culprits.contains(&rank))
                || wait.desyncs.iter().any(|it| culprits.contains(&it.rank))
        })
        .cloned()
        .collect();
    // Where they stand first, and before what a device has begun none; of others the one that most ranks are in
    // says most.
    concerned.sort_by_key(|wait| {
        let is_elsewhere = kind == StallKind::Inside && !wait.missing.is_empty();
        let is_behind = kind == StallKind::Inside && !wait.has_begun();
        (
            is_elsewhere,
            is_behind,
            std::cmp::Reverse(wait.entered.len()),
        )
    });
    concerned
}

/// A job whose ranks do nothing and wait for nobody that is known by what hosts issued: for the
/// devices that are behind, if marks tell which.
pub(crate) fn standing(job: &Collectives, step: u64, since: RankNs) -> Option<Stall> {
    let devices = streams::arrivals(job);
    let stall = streams::waits(&devices)
        .and_then(|waits| rooted(job, &job.seen(), waits, step, since))
        .filter(Stall::is_of_devices)
        .or_else(|| together(job, step, since))?;
    Some(Stall { devices, ..stall })
}

/// A job whose ranks do nothing and wait for nobody that is known: all of them, with the last
/// collective that all of a group issued alike.
fn together(job: &Collectives, step: u64, since: RankNs) -> Option<Stall> {
    let ranks: BTreeSet<u32> = job.ranks.keys().copied().collect();
    let wait = job
        .groups
        .values()
        // Several groups may have been issued alike: that of most ranks is where the job is.
        .filter_map(issued_alike)
        .max_by_key(|wait| wait.entered.len());
    (!ranks.is_empty()).then(|| Stall {
        kind: StallKind::Nowhere,
        culprits: ranks.into_iter().collect(),
        gone: Vec::new(),
        waits: wait.into_iter().collect(),
        waiting: Vec::new(),
        last_kinds: BTreeMap::new(),
        step,
        since,
        failure: None,
        halts: Vec::new(),
        devices: Vec::new(),
    })
}

#[cfg(test)]
mod tests;
