//! Where the ranks of a window are seen to meet.

use std::collections::BTreeMap;

use model::{Cut, Ending, FEW_RANKS, Growth, MarkKind, Meeting, RankStep};

use crate::align::JobStep;
use crate::build::{Agreement, Issues, RankRow, agree, rank_rows, went_alike};

/// Share of steps in which a stage must hold a collective for the cut to rely on it.
const REGULAR_SHARE: f64 = 0.8;
/// Share of what a rank was behind at a collective that may be left where ranks met since. Ours:
/// a wait takes all of it, noise puts some back.
const LEFT_SHARE: f64 = 0.5;
/// Share of the lateness at another cut that may vanish where ranks issue collectives if that cut is
/// to be believed. Ours: where more of it does, noise decides.
const ISSUED_SHARE: f64 = 0.25;
/// Share of exposed time from which lateness that does not vanish speaks against a cut. Ours: that
/// of a candidate for a fault. What vanishes speaks for one however small it is: noise does too.
const APART_SHARE: f64 = 0.02;
/// Lateness that must vanish at a cut, relative to the cut where most does: of those the first is
/// where ranks met.
const FIRST_SHARE: f64 = 0.7;
/// Ranks that are followed from collective to cut: more show no more.
const MAX_FOLLOWED: usize = 16;
/// How far from usual they must typically be at a collective to show whether they are waited for, in
/// seconds. Ours: clocks do not tick finer.
const VARIES_S: f64 = 1e-6;

/// Where the steps of a window are cut, and what it shows of its hosts.
#[derive(Debug)]
pub(crate) struct ChosenCut {
    pub(crate) cut: Cut,
    pub(crate) meeting: Meeting,
    /// Whether hosts run ahead of their devices.
    pub(crate) runs_ahead: bool,
    /// How hosts wait behind their last collective.
    pub(crate) waits: Growth,
}

impl ChosenCut {
    /// A cut that nothing is measured of.
    pub(crate) fn unmeasured(cut: Cut) -> Self {
        Self {
            cut,
            meeting: Meeting::Issued,
            runs_ahead: false,
            waits: Growth::default(),
        }
    }
}

/// Chooses where steps are cut. Also says whether ranks measurably meet there, and whether hosts run
/// ahead of their devices.
///
/// The cut is where ranks issue collectives unless the window speaks against it: then it is
/// the first place behind where most of their lateness is seen to vanish, or else the published
/// one. A healthy window speaks against nothing.
/// # Source
/// Ours: docs/math/meetings.md.
pub(crate) fn choose_cut(
    previous: Option<&JobStep>,
    steps: &[JobStep],
    ranks: &[u32],
) -> ChosenCut {
    let issued = issued_cut(steps, ranks);
    let Cut::After(kind) = issued else {
        return ChosenCut::unmeasured(issued);
    };
    // One rank meets nobody.
    if ranks.len() < 2 {
        return ChosenCut::unmeasured(issued);
    }
    let mut candidates: Vec<CandidateCut> = [issued]
        .into_iter()
        .chain(cuts_behind(kind, steps, ranks))
        .map(|cut| CandidateCut::new(cut, ranks.len().min(MAX_FOLLOWED)))
        .collect();
    // Step by step: segments of many ranks are in the cache for one candidate after the other.
    let mut was_alike = previous.is_some_and(|step| went_alike(step, ranks));
    for (index, step) in steps.iter().enumerate() {
        let before = index.checked_sub(1).map_or(previous, |at| steps.get(at));
        let is_alike = went_alike(step, ranks);
        for candidate in &mut candidates {
            candidate.add_step(before, step, ranks, was_alike && is_alike);
        }
        was_alike = is_alike;
    }
    let most_s = candidates
        .iter()
        .map(CandidateCut::met_s)
        .fold(0.0, f64::max);
    // Where most ranks may be waiting, lateness alone does not show which of them wait.
    let few = ranks.len() <= FEW_RANKS;
    let first = candidates
        .iter()
        .find(|candidate| candidate.is_seen(few) && candidate.met_s() >= FIRST_SHARE * most_s);
    let runs_ahead = !candidates[0].may_wait();
    let is_elsewhere = few && runs_ahead;
    let (cut, meeting) = match first {
        Some(candidate)
            if candidate.cut != issued
                && (is_elsewhere || candidates[0].met_s() <= ISSUED_SHARE * candidate.late_s) =>
        {
            (candidate.cut, Meeting::Seen)
        }
        None if is_elsewhere || candidates[0].is_refuted() => (Cut::Data, Meeting::Unseen),
        _ => (issued, Meeting::Issued),
    };
    ChosenCut {
        cut,
        meeting,
        runs_ahead: runs_ahead || meeting != Meeting::Issued,
        waits: candidates[0].growth(),
    }
}

/// What a window looks like if its ranks meet at a cut.
#[derive(Debug)]
struct CandidateCut {
    cut: Cut,
    /// Sums over the steps, in seconds. How far the last rank was behind the others when it
    /// issued a collective, where that was most.
    late_s: f64,
    /// What is left of it at the end of the step.
    left_s: f64,
    /// By how much ranks came together before any of them issued a collective: nobody waits there.
    unexplained_s: f64,
    exposed_s: f64,
    /// Of the first ranks, `[rank][step]` in seconds: how early they are at their last collective,
    /// and what they take from there until the cut.
    early_s: Vec<Vec<f64>>,
    takes_s: Vec<Vec<f64>>,
}

impl CandidateCut {
    fn new(cut: Cut, followed: usize) -> Self {
        Self {
            cut,
            late_s: 0.0,
            left_s: 0.0,
            unexplained_s: 0.0,
            exposed_s: 0.0,
            early_s: vec![Vec::new(); followed],
            takes_s: vec![Vec::new(); followed],
        }
    }

    /// Adds what ranks did between this cut and the one before; `alike` if they are known to have
    /// the same boundaries there.
    fn add_step(&mut self, before: Option<&JobStep>, step: &JobStep, ranks: &[u32], alike: bool) {
        let rows = rank_rows(before, step, ranks, self.cut).unwrap_or_default();
        // Ranks are compared at each boundary, so they must have the same ones.
        if !rows.is_empty() && (alike || matches!(agree(&rows), Agreement::Whole)) {
            self.add(&rows);
        }
    }

    fn add(&mut self, rows: &[RankRow<'_>]) {
        let mut ends_s = vec![0.0; rows.len()];
        let mut cells: Vec<_> = rows.iter().map(|row| row.cells(Issues::Kept)).collect();
        let (mut late_s, mut apart_s) = (0.0f64, 0.0f64);
        let mut issued = false;
        let followed = self.early_s.len();
        let (mut issued_s, mut last_s) = (vec![0.0; followed], 0.0f64);
        loop {
            let mut ending = None;
            for (end_s, cells) in ends_s.iter_mut().zip(&mut cells) {
                let Some((segment, seconds)) = cells.next() else {
                    continue;
                };
                *end_s += seconds;
                ending = Some(segment.ending);
            }
            let Some(ending) = ending else { break };
            let joins = match ending {
                Ending::Issue { op, .. } => !op.is_point_to_point(),
                // Where no issues are recorded, backward is taken to hold them.
                Ending::Mark(kind) => !issued && kind == MarkKind::BackwardBegin,
            };
            if issued && !joins {
                continue;
            }
            let spread_s = spread(&ends_s);
            if !issued {
                apart_s = apart_s.max(spread_s);
            }
            if joins {
                if !issued {
                    self.unexplained_s += apart_s - spread_s;
                }
                issued = true;
                // Nobody is later than the last is behind the first, which is found sooner.
                if spread_s > late_s {
                    late_s = late_s.max(lateness(&ends_s));
                }
                issued_s.copy_from_slice(&ends_s[..followed]);
                last_s = ends_s.iter().copied().fold(0.0, f64::max);
            }
        }
        let cells = self.early_s.iter_mut().zip(&mut self.takes_s);
        for ((early_s, takes_s), (issued_s, end_s)) in cells.zip(issued_s.iter().zip(&ends_s)) {
            early_s.push(last_s - issued_s);
            takes_s.push(end_s - issued_s);
        }
        self.late_s += late_s;
        // What they came apart since is not left of this lateness.
        self.left_s += spread(&ends_s).min(late_s);
        self.exposed_s += ends_s.into_iter().fold(0.0, f64::max);
    }

    /// Lateness that was seen to vanish.
    fn met_s(&self) -> f64 {
        self.late_s - self.left_s
    }

    fn is_seen(&self, few: bool) -> bool {
        self.late_s > 0.0 && self.left_s <= LEFT_SHARE * self.late_s && (!few || self.may_wait())
    }

    fn growth(&self) -> Growth {
        Growth::of(self.early_s.clone(), self.takes_s.clone())
    }

    /// Whether a rank that is early may wait for the last one, as far as what varies shows. Of two
    /// ranks whichever waits looks late where it waits; but a wait follows the other rank's noise.
    fn may_wait(&self) -> bool {
        let growth = self.growth();
        !growth.varies_by(VARIES_S) || growth.is_possible()
    }

    fn is_refuted(&self) -> bool {
        let apart_s = APART_SHARE * self.exposed_s;
        let stays = self.late_s > apart_s && self.left_s > LEFT_SHARE * self.late_s;
        stays || self.unexplained_s > apart_s.max(self.met_s())
    }
}

/// Cuts behind the last mark of a kind in the cycle, in order; the last one is the published.
fn cuts_behind(kind: MarkKind, steps: &[JobStep], ranks: &[u32]) -> Vec<Cut> {
    let mut places: BTreeMap<u8, (MarkKind, usize, usize)> = BTreeMap::new();
    for piece in whole_pieces(steps, ranks) {
        let kinds: Vec<MarkKind> = piece
            .segments
            .iter()
            .filter_map(|segment| match segment.ending {
                Ending::Mark(kind) => Some(kind),
                Ending::Issue { .. } => None,
            })
            .collect();
        let Some(from) = kinds.iter().rposition(|known| *known == kind) else {
            continue;
        };
        // What ends the last segment belongs to the next step.
        for at in from + 1..kinds.len().saturating_sub(1) {
            // A cut is behind the last mark of its kind.
            if kinds[at + 1..].contains(&kinds[at]) {
                continue;
            }
            let entry = places.entry(kinds[at] as u8).or_insert((kinds[at], 0, 0));
            entry.1 += 1;
            entry.2 = entry.2.max(at - from);
        }
    }
    let needed = REGULAR_SHARE * steps.len() as f64;
    let mut regular: Vec<_> = places
        .into_values()
        .filter(|(_, count, _)| *count as f64 >= needed)
        .collect();
    regular.sort_by_key(|(.., place)| *place);
    regular
        .into_iter()
        .map(|(kind, ..)| Cut::After(kind))
        .chain([Cut::Data])
        .collect()
}

/// What the first of the ranks delivered of steps that it went through from begin to end: all run
/// the same loop, so one stands for them.
fn whole_pieces<'steps>(
    steps: &'steps [JobStep],
    ranks: &[u32],
) -> impl Iterator<Item = &'steps RankStep> {
    let first = ranks.first().copied();
    steps
        .iter()
        .filter_map(move |step| step.ranks.get(&first?))
        .filter(|piece| piece.complete)
}

fn spread(ends_s: &[f64]) -> f64 {
    let last = ends_s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    last - ends_s.iter().copied().fold(f64::INFINITY, f64::min)
}

/// How far the last rank is behind the lower median: a rank ahead of all others is not met, they
/// are not waited for.
fn lateness(ends_s: &[f64]) -> f64 {
    let mut ends_s = ends_s.to_vec();
    let middle = (ends_s.len() - 1) / 2;
    let (_, median_s, later_s) = ends_s.select_nth_unstable_by(middle, f64::total_cmp);
    later_s.iter().copied().fold(*median_s, f64::max) - *median_s
}

/// Where ranks meet if to issue is to meet: after the last collective that most steps
/// have, or at the end of backward if none is seen. A loop without either meets nobody knows where.
fn issued_cut(steps: &[JobStep], ranks: &[u32]) -> Cut {
    // Mark kinds that end a stretch with collectives, with their last place in the cycle.
    let mut seen: BTreeMap<u8, (MarkKind, usize, usize, bool)> = BTreeMap::new();
    let mut goes_back = false;
    for piece in whole_pieces(steps, ranks) {
        let mut issued = false;
        let mut here: BTreeMap<u8, (MarkKind, usize, bool)> = BTreeMap::new();
        for (at, segment) in piece.segments.iter().enumerate() {
            match segment.ending {
                Ending::Issue { op, .. } => issued |= !op.is_point_to_point(),
                Ending::Mark(kind) => {
                    goes_back |= kind == MarkKind::BackwardEnd;
                    if issued {
                        let last = at + 1 == piece.segments.len();
                        here.insert(kind as u8, (kind, at, last));
                    }
                    issued = false;
                }
            }
        }
        for (number, (kind, at, last)) in here {
            let entry = seen.entry(number).or_insert((kind, 0, 0, false));
            entry.1 += 1;
            entry.2 = entry.2.max(at);
            entry.3 |= last;
        }
    }
    let needed = REGULAR_SHARE * steps.len() as f64;
    let last = seen
        .into_values()
        .filter(|(_, count, ..)| *count as f64 >= needed)
        .max_by_key(|(_, _, place, _)| *place);
    match last {
        // What ends the last segment belongs to the next step.
        Some((_, _, _, true)) => Cut::Data,
        Some((kind, ..)) => Cut::After(kind),
        None if goes_back && ranks.len() > 1 => Cut::After(MarkKind::BackwardEnd),
        None => Cut::Data,
    }
}
