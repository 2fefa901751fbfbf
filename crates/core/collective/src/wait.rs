//! What is stuck in one group.

use std::collections::{BTreeMap, BTreeSet};

use model::{CollectiveOp, InFlight};

use crate::progress::{CollectiveSignature, GroupProgress, LastIssue};

/// A collective that does not end: some ranks are in it and others are not, or all are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// Name of the group.
    pub group: String,
    /// How many collectives were issued in the group, this one included; 0 if it is known who
    /// is there and not in which collective.
    pub number: u64,
    /// Which collective, as most of those say that have not gone on to the next.
    pub op: CollectiveOp,
    /// Ranks that entered it.
    pub entered: Vec<u32>,
    /// Members of the group that did not; where ranks disagree, those of which nothing is seen.
    pub missing: Vec<u32>,
    /// Its sizes and types, as most of those in it say; empty if nothing is known.
    pub detail: String,
    /// Ranks that entered something else under this number; all ranks if it cannot be told which
    /// of them did.
    pub odd: Vec<Odd>,
    /// Those missing that have done nothing since they entered the collective before.
    pub still_before: Vec<u32>,
    /// What recorders of the ranks say of it, if all that are seen entered it.
    pub open: Option<Open>,
}

/// What a rank entered that the others did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Odd {
    /// The rank.
    pub rank: u32,
    /// Its collective.
    pub op: CollectiveOp,
    /// Its sizes and types.
    pub detail: String,
}

/// How far the ranks have come in a collective that all of them entered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// Ranks on which it has not ended.
    pub under_way: Vec<u32>,
    /// Those of them whose device has not begun it.
    pub not_started: Vec<u32>,
    /// Ranks on which it has ended.
    pub ended: Vec<u32>,
}

impl Open {
    /// Ranks that the others are seen to wait for in it: their devices have not begun what
    /// others have begun, or not finished what others have finished. Empty if all are alike.
    pub fn behind(&self) -> &[u32] {
        let begun = self.ended.len() + self.under_way.len() - self.not_started.len();
        if !self.not_started.is_empty() && begun > 0 {
            &self.not_started
        } else if self.ended.is_empty() {
            &[]
        } else {
            &self.under_way
        }
    }
}

impl Wait {
    /// Whether it cannot be told which of the ranks that entered different things is wrong.
    pub fn is_undecided(&self) -> bool {
        self.odd.iter().any(|odd| (odd.op, &odd.detail) == (self.op, &self.detail))
    }

    /// Ranks that entered the same, together; each side by its first rank.
    pub fn sides(&self) -> Vec<(Vec<u32>, &Odd)> {
        let mut sides: Vec<(Vec<u32>, &Odd)> = Vec::new();
        for odd in &self.odd {
            match sides
                .iter_mut()
                .find(|(_, first)| (first.op, &first.detail) == (odd.op, &odd.detail))
            {
                Some((ranks, _)) => ranks.push(odd.rank),
                None => sides.push((vec![odd.rank], odd)),
            }
        }
        sides
    }

    /// Ranks that others wait for in it.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = u32> {
        let behind = self.open.as_ref().map(Open::behind).unwrap_or_default();
        self.missing.iter().chain(behind).copied()
    }

    /// Ranks that wait in it for others.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u32> {
        let (waits, behind) = match &self.open {
            Some(open) => (&open.under_way, open.behind()),
            None => (&self.entered, &[][..]),
        };
        waits.iter().filter(|rank| !behind.contains(rank)).copied()
    }

    /// Whether ranks are in it and nobody is known to be waited for.
    pub(crate) fn holds_all(&self) -> bool {
        self.open.is_some() && self.odd.is_empty() && self.awaited().next().is_none()
    }
}

/// The first collective of a group that not all its members entered, or the last one if they
/// entered different ones.
///
/// Members that are `seen` elsewhere have entered none. Of others nothing is known, and they
/// are missing only where nobody else is.
pub(crate) fn wait_in(group: &GroupProgress, seen: &BTreeSet<u32>) -> Option<Wait> {
    let numbers = group.last.values().map(|issue| issue.number);
    let furthest = numbers.clone().max()?;
    let no_part = group
        .members
        .iter()
        .any(|rank| !group.last.contains_key(rank) && seen.contains(rank));
    let least = if no_part { 0 } else { numbers.min()? };
    // A disagreement comes before what numbers say, whoever has gone on since.
    if let Some(wait) = disagreement(group, seen) {
        return Some(wait);
    }
    let first = group.under_way.values().map(|first| first.number).min();
    if let Some(first) = first.filter(|first| *first <= least) {
        return Some(not_ended(group, first, seen));
    }
    let mut number = furthest.min(least.saturating_add(1));
    // With members of which nothing is seen, whoever is behind may wait for them.
    let has_unseen = group.members.iter().any(|rank| !seen.contains(rank));
    let mut hindmost = group.last.values().filter(|issue| issue.number == least);
    if has_unseen && !no_part && hindmost.all(|issue| !issue.left) {
        number = least;
    }
    let (in_it, behind): (BTreeMap<u32, &LastIssue>, BTreeMap<u32, &LastIssue>) = group
        .last
        .iter()
        .map(|(rank, issue)| (*rank, issue))
        .partition(|(_, issue)| issue.number >= number);
    if in_it.values().all(|issue| issue.completed) {
        return None;
    }
    let known = no_part || !behind.is_empty();
    let missing: Vec<u32> = group
        .members
        .iter()
        .filter(|rank| !in_it.contains_key(rank) && (!known || seen.contains(rank)))
        .copied()
        .collect();
    // Who went on to the next one has overwritten what it entered here.
    let whats: Vec<(u32, &CollectiveSignature)> = in_it
        .iter()
        .filter(|(_, issue)| issue.number == number)
        .map(|(rank, issue)| (*rank, &issue.what))
        .collect();
    let unknown = group.members.len().saturating_sub(whats.len());
    let (what, odd) = outvoted(&whats, unknown);
    if missing.is_empty() && odd.is_empty() {
        return None;
    }
    Some(Wait {
        group: group.name.clone(),
        number,
        op: what.map_or(CollectiveOp::UNKNOWN, |what| what.op),
        detail: what.map(CollectiveSignature::detail).unwrap_or_default(),
        entered: in_it.keys().copied().collect(),
        still_before: behind
            .iter()
            .filter(|(_, issue)| !issue.left && issue.number.saturating_add(1) == number)
            .map(|(rank, _)| *rank)
            .collect(),
        missing,
        odd,
        open: None,
    })
}

/// A collective that all members of a group that are seen have entered, and that has not ended
/// on some of them.
fn not_ended(group: &GroupProgress, number: u64, seen: &BTreeSet<u32>) -> Wait {
    let mut open = Open::default();
    for (rank, first) in group.under_way.iter().filter(|(_, it)| it.number == number) {
        open.under_way.push(*rank);
        if first.how == InFlight::NotStarted {
            open.not_started.push(*rank);
        }
    }
    let ended = group.ended.iter().filter(|(_, ended)| **ended >= number);
    open.ended.extend(ended.map(|(rank, _)| *rank));
    let whats: Vec<(u32, &CollectiveSignature)> = group
        .last
        .iter()
        .filter_map(|(rank, last)| {
            let first = group.under_way.get(rank).filter(|first| first.number == number);
            let last = (last.number == number).then_some(&last.what);
            Some((*rank, first.map(|first| &first.what).or(last)?))
        })
        .collect();
    let unseen = group.members.difference(seen);
    let (what, odd) = outvoted(&whats, unseen.clone().count());
    // It cannot end on a rank before all have entered it.
    let missing =
        if open.ended.is_empty() { unseen.copied().collect() } else { Vec::new() };
    Wait {
        group: group.name.clone(),
        number,
        op: what.map_or(CollectiveOp::UNKNOWN, |what| what.op),
        detail: what.map(CollectiveSignature::detail).unwrap_or_default(),
        entered: group.last.keys().copied().collect(),
        missing,
        odd,
        still_before: Vec::new(),
        open: Some(open),
    }
}

/// The group of all ranks, if all have come to make it and some do not get done.
pub(crate) fn unmade(group: &GroupProgress) -> Option<Wait> {
    let entered: Vec<u32> = group
        .last
        .iter()
        .filter(|(_, issue)| !issue.completed)
        .map(|(rank, _)| *rank)
        .collect();
    let (_, first) = group.last.first_key_value()?;
    (group.is_of_init() && !entered.is_empty()).then(|| Wait {
        group: group.name.clone(),
        number: first.number,
        op: CollectiveOp::INIT,
        entered,
        ..Wait::default()
    })
}

/// The last collective of a group if all its members have issued it and none another since.
pub(crate) fn issued_alike(group: &GroupProgress) -> Option<Wait> {
    let mut last = group.last.values();
    let first = last.next()?;
    let are_alike =
        last.all(|issue| (issue.number, &issue.what) == (first.number, &first.what));
    let is_of_all = group.members.iter().all(|rank| group.last.contains_key(rank));
    (is_of_all && are_alike && !group.is_of_init()).then(|| Wait {
        group: group.name.clone(),
        number: first.number,
        op: first.what.op,
        detail: first.what.detail(),
        entered: group.last.keys().copied().collect(),
        ..Wait::default()
    })
}

/// The first collective of late that ranks disagree on, whoever has gone on since: gloo lets
/// those pass whose tensors are smaller.
fn disagreement(group: &GroupProgress, seen: &BTreeSet<u32>) -> Option<Wait> {
    let (number, said) = group.recent.iter().find(|(_, said)| !said.others.is_empty())?;
    let others: BTreeMap<u32, &CollectiveSignature> =
        said.others.iter().map(|(rank, what)| (*rank, what)).collect();
    let whats: Vec<(u32, &CollectiveSignature)> = group
        .last
        .iter()
        .filter(|(_, last)| last.number >= *number)
        .map(|(rank, _)| (*rank, *others.get(rank).unwrap_or(&&said.first)))
        .collect();
    let (what, odd) = outvoted(&whats, group.members.len().saturating_sub(whats.len()));
    let what = what?;
    let is_decided =
        odd.iter().all(|odd| (odd.op, &odd.detail) != (what.op, &what.detail()));
    // Who has not come yet may say which of them is right, and may be who is waited for.
    let some_are_late = group
        .last
        .iter()
        .any(|(rank, last)| last.number < *number && seen.contains(rank));
    if !is_decided && some_are_late {
        return None;
    }
    Some(Wait {
        group: group.name.clone(),
        number: *number,
        op: what.op,
        detail: what.detail(),
        entered: whats.iter().map(|(rank, _)| *rank).collect(),
        missing: group.members.difference(seen).copied().collect(),
        odd,
        ..Wait::default()
    })
}

/// What most ranks say a collective is, and who says something else: all of them if those of
/// which it is `unknown` what they say could make the lesser part the larger, or as large.
fn outvoted<'a>(
    said: &[(u32, &'a CollectiveSignature)],
    unknown: usize,
) -> (Option<&'a CollectiveSignature>, Vec<Odd>) {
    let mut votes: BTreeMap<&CollectiveSignature, usize> = BTreeMap::new();
    for (_, what) in said {
        *votes.entry(what).or_default() += 1;
    }
    let Some((most, count)) = votes.iter().max_by_key(|(_, count)| **count) else {
        return (None, Vec::new());
    };
    let next =
        votes.iter().filter(|(what, _)| *what != most).map(|(_, count)| count).max();
    let Some(next) = next else { return (Some(*most), Vec::new()) };
    let is_decided = *count > next + unknown;
    let odd = said
        .iter()
        .filter(|(_, what)| !is_decided || what != most)
        .map(|(rank, what)| Odd { rank: *rank, op: what.op, detail: what.detail() })
        .collect();
    (Some(*most), odd)
}

/// Ranks that wait for a rank that, in the end, waits for them.
///
/// # Complexity
/// Each wait is looked at once for every rank in it and every rank it lacks.
pub(crate) fn circle(waits: &[&Wait]) -> BTreeSet<u32> {
    let mut left: BTreeSet<u32> = waits.iter().flat_map(|w| w.entered.clone()).collect();
    let mut entered: Vec<usize> = waits.iter().map(|wait| wait.entered.len()).collect();
    let mut missing: Vec<usize> = waits
        .iter()
        .map(|wait| wait.missing.iter().filter(|rank| left.contains(rank)).count())
        .collect();
    // For each rank the waits it is in, and those that wait for it.
    let mut is_in: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    let mut awaited: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, wait) in waits.iter().enumerate() {
        for rank in &wait.entered {
            is_in.entry(*rank).or_default().push(at);
        }
        for rank in &wait.missing {
            awaited.entry(*rank).or_default().push(at);
        }
    }
    let none = Vec::new();
    let mut to_look_at: Vec<u32> = left.iter().copied().collect();
    while let Some(rank) = to_look_at.pop() {
        let inside = is_in.get(&rank).unwrap_or(&none);
        let awaiting = awaited.get(&rank).unwrap_or(&none);
        let stays = inside.iter().any(|at| missing[*at] > 0)
            && awaiting.iter().any(|at| entered[*at] > 0);
        if stays || !left.remove(&rank) {
            continue;
        }
        // Where it was the last one, the others of the wait are looked at again.
        for at in inside {
            entered[*at] -= 1;
            if entered[*at] == 0 {
                to_look_at.extend(&waits[*at].missing);
            }
        }
        for at in awaiting {
            missing[*at] -= 1;
            if missing[*at] == 0 {
                to_look_at.extend(&waits[*at].entered);
            }
        }
    }
    left
}
