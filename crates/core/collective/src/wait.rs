//! What is stuck in one group.

use std::collections::{BTreeMap, BTreeSet};

use model::{CollectiveOp, Desync, DeviceProgress, InFlight, Wait};

use crate::progress::{CollectiveSignature, GroupProgress, LastIssue};

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
    // A disagreement counts before numbers do, even if ranks have gone on since.
    if let Some(wait) = disagreement(group, seen) {
        return Some(wait);
    }
    let first = group.under_way.values().map(|first| first.number).min();
    if let Some(first) = first.filter(|first| *first <= least) {
        return Some(not_ended(group, first, seen));
    }
    // Those who are furthest behind have entered `least`: the next one is the first that lacks
    // them.
    let mut number = furthest.min(least.saturating_add(1));
    // With members of which nothing is recorded, a rank that is behind may wait for them.
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
    // It has ended on all that came: nobody waits in it.
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
    let (what, desyncs) = outvoted(&whats, unknown);
    let mut under_way = group.under_way.values();
    let of_number = under_way.find(|it| it.number == number);
    let what = what
        .or_else(|| of_number.map(|it| &it.what))
        .or_else(|| group.recent.get(&number).map(|said| &said.first));
    if missing.is_empty() && desyncs.is_empty() {
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
        desyncs,
        open: None,
    })
}

/// A collective that all members of a group that are seen have entered, and that has not ended
/// on some of them.
fn not_ended(group: &GroupProgress, number: u64, seen: &BTreeSet<u32>) -> Wait {
    let mut open = DeviceProgress::default();
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
            let first = group
                .under_way
                .get(rank)
                .filter(|first| first.number == number);
            let last = (last.number == number).then_some(&last.what);
            Some((*rank, first.map(|first| &first.what).or(last)?))
        })
        .collect();
    let unseen = group.members.difference(seen);
    let (what, desyncs) = outvoted(&whats, unseen.clone().count());
    // It cannot end on a rank before all have entered it.
    let missing = if open.ended.is_empty() {
        unseen.copied().collect()
    } else {
        Vec::new()
    };
    let mut entered: Vec<u32> = group.last.keys().copied().collect();
    let op = what.map_or(CollectiveOp::UNKNOWN, |what| what.op);
    // What has a root may end there before others have what they wait for.
    if op != CollectiveOp::UNKNOWN && !op.joins_all() {
        entered.retain(|rank| !open.ended.contains(rank));
        open.ended.clear();
    }
    Wait {
        group: group.name.clone(),
        number,
        op,
        detail: what.map(CollectiveSignature::detail).unwrap_or_default(),
        entered,
        missing,
        desyncs,
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
    let are_alike = last.all(|issue| (issue.number, &issue.what) == (first.number, &first.what));
    let is_of_all = group
        .members
        .iter()
        .all(|rank| group.last.contains_key(rank));
    (is_of_all && are_alike && !group.is_of_init()).then(|| Wait {
        group: group.name.clone(),
        number: first.number,
        op: first.what.op,
        detail: first.what.detail(),
        entered: group.last.keys().copied().collect(),
        ..Wait::default()
    })
}

/// The first collective of late that ranks disagree on, even if some have gone on since: gloo lets
/// those pass whose tensors are smaller.
fn disagreement(group: &GroupProgress, seen: &BTreeSet<u32>) -> Option<Wait> {
    let (number, said) = group
        .recent
        .iter()
        .find(|(_, said)| !said.others.is_empty())?;
    let others: BTreeMap<u32, &CollectiveSignature> = said
        .others
        .iter()
        .map(|(rank, what)| (*rank, what))
        .collect();
    let whats: Vec<(u32, &CollectiveSignature)> = group
        .last
        .iter()
        // Who has gone on was in it as well.
        .filter(|(_, last)| last.number >= *number)
        .map(|(rank, _)| (*rank, *others.get(rank).unwrap_or(&&said.first)))
        .collect();
    let (what, desyncs) = outvoted(&whats, group.members.len().saturating_sub(whats.len()));
    let what = what?;
    let is_decided = desyncs
        .iter()
        .all(|it| (it.op, &it.detail) != (what.op, &what.detail()));
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
        desyncs,
        ..Wait::default()
    })
}

/// What most ranks say a collective is, and who says something else: all of them if those of
/// which it is `unknown` what they say could make the lesser part the larger, or as large.
fn outvoted<'a>(
    said: &[(u32, &'a CollectiveSignature)],
    unknown: usize,
) -> (Option<&'a CollectiveSignature>, Vec<Desync>) {
    let mut votes: BTreeMap<&CollectiveSignature, usize> = BTreeMap::new();
    for (_, what) in said {
        *votes.entry(what).or_default() += 1;
    }
    let Some((most, count)) = votes.iter().max_by_key(|(_, count)| **count) else {
        return (None, Vec::new());
    };
    let next = votes
        .iter()
        .filter(|(what, _)| *what != most)
        .map(|(_, count)| count)
        .max();
    let Some(next) = next else {
        return (Some(*most), Vec::new());
    };
    let is_decided = *count > next + unknown;
    let desyncs = said
        .iter()
        .filter(|(_, what)| !is_decided || what != most)
        .map(|(rank, what)| Desync {
            rank: *rank,
            op: what.op,
            detail: what.detail(),
        })
        .collect();
    (Some(*most), desyncs)
}

/// Ranks that wait for a rank that, in the end, waits for them.
///
/// # Complexity
/// Each wait is looked at once for every rank in it and every rank it lacks.
pub(crate) fn deadlock_cycle(waits: &[&Wait]) -> BTreeSet<u32> {
    // Ranks are taken out that wait for none of those left, or for whom none of those waits. What
    // remains are the circles, and ranks between two of them.
    let mut left: BTreeSet<u32> = waits.iter().flat_map(|w| w.entered.clone()).collect();
    let mut entered: Vec<usize> = waits.iter().map(|wait| wait.entered.len()).collect();
    let mut missing: Vec<usize> = waits
        .iter()
        .map(|wait| {
            wait.missing
                .iter()
                // Who is in no wait waits for nobody and is in no circle.
                .filter(|rank| left.contains(rank))
                .count()
        })
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
        let stays =
            inside.iter().any(|at| missing[*at] > 0) && awaiting.iter().any(|at| entered[*at] > 0);
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
