//! Where the ranks of a window are seen to meet.

use std::collections::{BTreeMap, VecDeque};

use model::{Cut, Ending, FEW_RANKS, Growth, MarkKind, Meeting, RankStep, lower_median};

use crate::cells::{CellRange, Cells, DeliveredSteps, Issues, rank_rows};
use crate::clocks::{lags_s, meets_on_hosts};

/// Share of steps in which a stage must hold a collective for the cut to rely on it.
const REGULAR_SHARE: f64 = 0.8;
/// Share of what a rank was behind at a collective that may be left where ranks met since. Ours:
/// a wait takes all of it, noise puts some back.
const LEFT_SHARE: f64 = 0.5;
/// The same where nothing but that shows that they met. Ours.
const TOGETHER_SHARE: f64 = 0.25;
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
/// Steps by which ranks must be followed on their own clocks. Ours: in fewer a single delay decides.
const FOLLOWED_STEPS: usize = 20;
/// Windows over which they are followed so. Ours: the last ones are of the same job, and one alone may
/// leave open what several together show.
const FOLLOWED_WINDOWS: usize = 4;
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
    /// Where ranks issue collectives, if they come together before any of them does so, and are still
    /// together there: one that nobody recorded may have joined them.
    pub(crate) unrecorded: Option<Cut>,
}

impl ChosenCut {
    /// A cut that nothing is measured of.
    pub(crate) fn unmeasured(cut: Cut) -> Self {
        Self {
            cut,
            meeting: Meeting::Issued,
            runs_ahead: false,
            waits: Growth::default(),
            unrecorded: None,
        }
    }

    /// The same, if ranks are seen to meet where steps begin.
    pub(crate) fn met_at_data(self) -> Self {
        Self {
            cut: Cut::Data,
            meeting: Meeting::Seen,
            runs_ahead: true,
            ..self
        }
    }
}

/// What ranks showed on their own clocks in the last windows in which they seemed to run ahead.
#[derive(Debug, Default)]
pub(crate) struct OwnClocks {
    windows: VecDeque<(usize, Growth)>,
}

impl OwnClocks {
    fn push(&mut self, steps: usize, growth: Growth) {
        self.windows.truncate(FOLLOWED_WINDOWS - 1);
        self.windows.push_front((steps, growth));
    }

    /// Of all of them together: how ranks wait, if they are followed by enough steps.
    fn growth(&self) -> Option<Growth> {
        let mut all = Growth::default();
        let mut followed = 0;
        for (steps, growth) in &self.windows {
            followed += steps;
            all += *growth;
        }
        (followed >= FOLLOWED_STEPS).then_some(all)
    }
}

/// Chooses where steps are cut. Also says whether ranks measurably meet there, and whether hosts run
/// ahead of their devices.
///
/// The cut is where ranks issue collectives unless the window speaks against it: then it is
/// the first place behind where most of their lateness is seen to vanish, or else the published
/// one. A healthy window speaks against nothing. `hosts` says where each rank runs.
/// # Source
/// Ours: docs/math/meetings.md.
pub(crate) fn choose_cut(
    steps: &DeliveredSteps<'_>,
    hosts: &[Option<&str>],
    clocks: &mut OwnClocks,
) -> ChosenCut {
    let cuts = cuts_behind_issues(steps);
    let met = meets_on_hosts(&cuts, steps, hosts).map(|cut| {
        let lags_s = lags_s(cut, steps, hosts.len());
        let growth = CandidateCut::measured(cut, steps, &lags_s, hosts.len()).growth();
        (cut, growth)
    });
    // Hosts that run ahead may be together where they launch.
    let met = met.filter(|(_, waits)| waits.varies_by(VARIES_S) && waits.is_possible());
    if let Some((cut, waits)) = met {
        return ChosenCut {
            waits,
            ..ChosenCut::unmeasured(cut)
        };
    }
    let issued = issued_cut(&cuts, steps);
    let chosen = choose_with(steps, clocks, issued, |_| false);
    on_one_clock(chosen, issued, steps, hosts)
}

/// The same, where the cut at which ranks issue collectives is also taken if it `is_certain`.
fn choose_with(
    steps: &DeliveredSteps<'_>,
    clocks: &mut OwnClocks,
    issued: Cut,
    is_certain: impl Fn(&CandidateCut) -> bool,
) -> ChosenCut {
    let ranks = steps.steps.first().map_or(0, |step| step.pieces.len());
    let Cut::After(kind) = issued else {
        return ChosenCut::unmeasured(issued);
    };
    // One rank meets nobody.
    if ranks < 2 {
        return ChosenCut::unmeasured(issued);
    }
    let first = CandidateCut::measured(issued, steps, &[], ranks);
    if is_certain(&first) || first.is_beyond_doubt(steps, ranks) {
        return ChosenCut {
            cut: issued,
            meeting: Meeting::Issued,
            runs_ahead: !first.may_wait(),
            waits: first.growth(),
            unrecorded: None,
        };
    }
    let behind = cuts_behind(kind, steps).into_iter();
    let behind = behind.map(|cut| CandidateCut::measured(cut, steps, &[], ranks));
    let chosen = choose_among(
        &[first].into_iter().chain(behind).collect::<Vec<_>>(),
        ranks,
    );
    on_own_clocks(chosen, issued, steps, ranks, clocks)
}

/// The same for devices. These may meet in an earlier stage, in which they use at once what a
/// collective brings, as in a tensor-parallel forward pass, and be apart where the last collectives
/// are issued. That cut is preferred if much more lateness vanishes there, or if devices only seem to
/// wait for others at the one that is chosen: `are_held_up` says that their hosts hold them up there.
/// Then they may also meet where the last collective is issued, as they wait for one before it.
/// Where several communicators divide the ranks, `waits_s` says how long devices wait for the last rank of
/// theirs if rows begin at a cut: the cut at which much more is waited is preferred, too.
/// Where they lose exactly what they are early by behind the last issue, that they meet there is certain.
///
/// # Source
/// Ours: docs/math/device.md.
pub(crate) fn choose_device_cut(
    steps: &DeliveredSteps<'_>,
    are_held_up: impl Fn(Cut) -> bool,
    waits_s: impl Fn(Cut) -> Option<f64>,
) -> ChosenCut {
    let ranks = steps.steps.first().map_or(0, |step| step.pieces.len());
    let is_exact = |issued: &CandidateCut| issued.is_exact(ranks);
    let mut earlier = cuts_behind_issues(steps);
    let issued = issued_cut(&earlier, steps);
    let chosen = choose_with(steps, &mut OwnClocks::default(), issued, is_exact);
    if ranks < 2 {
        return chosen;
    }
    let measured = |cut| CandidateCut::measured(cut, steps, &[], ranks);
    let is_seen = |it: &CandidateCut| it.is_seen(ranks <= FEW_RANKS) && !it.is_unexplained();
    earlier.pop();
    let seen = earlier.into_iter().map(measured).filter(is_seen);
    let best = seen.max_by(|one, other| one.met_s().total_cmp(&other.met_s()));
    let met_s = measured(chosen.cut).met_s();
    let is_waited_more = |best: &CandidateCut| {
        let is_less =
            |chosen_s| waits_s(best.cut).is_some_and(|best_s| chosen_s < FIRST_SHARE * best_s);
        // Nothing if no communicators divide the ranks: then the other cut need not be asked.
        waits_s(chosen.cut).is_some_and(is_less)
    };
    let preferred = match best {
        Some(best) if met_s < FIRST_SHARE * best.met_s() || is_waited_more(&best) => Some(best),
        best => {
            let last_issue = measured(Cut::After(MarkKind::CollectiveIssue));
            let last_issue = Some(last_issue).filter(CandidateCut::gets_together);
            let mut met = best.into_iter().chain(last_issue);
            // Asked last, as it takes as long as an account, and most windows have no other place.
            met.find(|it| !are_held_up(it.cut) && are_held_up(chosen.cut))
        }
    };
    match preferred {
        Some(met) => ChosenCut {
            cut: met.cut,
            meeting: Meeting::Seen,
            runs_ahead: true,
            waits: met.growth(),
            unrecorded: None,
        },
        None => chosen,
    }
}

/// Cuts at which devices may meet, behind the collectives of a stage, with the chosen one as the last.
pub(crate) fn cuts_beside(chosen: Cut, steps: &DeliveredSteps<'_>) -> Vec<Cut> {
    let mut cuts = cuts_behind_issues(steps);
    cuts.retain(|cut| *cut != chosen);
    cuts.push(chosen);
    cuts
}

/// Looks again at the cut where ranks issue collectives, if ranks are not seen to meet anywhere.
/// Ranks that share cores leave a meeting apart: what they are apart counts twice where each begins
/// at 0, and once on their own clocks.
fn on_own_clocks(
    chosen: ChosenCut,
    issued: Cut,
    steps: &DeliveredSteps<'_>,
    ranks: usize,
    clocks: &mut OwnClocks,
) -> ChosenCut {
    if chosen.meeting == Meeting::Seen {
        *clocks = OwnClocks::default();
    }
    if chosen.meeting == Meeting::Seen || !chosen.runs_ahead || ranks > MAX_FOLLOWED {
        return chosen;
    }
    let candidate = CandidateCut::measured(issued, steps, &lags_s(issued, steps, ranks), ranks);
    let growth = candidate.growth();
    clocks.push(candidate.steps, growth);
    match clocks.growth() {
        // What held before may hold no more.
        Some(waits)
            if waits.varies_by(VARIES_S)
                && waits.is_proven()
                && growth.is_possible()
                && !candidate.is_unexplained() =>
        {
            ChosenCut {
                cut: issued,
                meeting: Meeting::Issued,
                runs_ahead: false,
                waits,
                unrecorded: None,
            }
        }
        _ => chosen,
    }
}

/// Looks again at the cuts behind the one where ranks issue collectives, if ranks that share a host's clock are
/// apart at the one that is chosen. If most ranks are late, each in another stage, the one that waits
/// for them seems to be late where it reads back.
fn on_one_clock(
    chosen: ChosenCut,
    issued: Cut,
    steps: &DeliveredSteps<'_>,
    hosts: &[Option<&str>],
) -> ChosenCut {
    // Hosts that wait nowhere may be together where they launch.
    let (Cut::After(kind), Meeting::Seen) = (issued, chosen.meeting) else {
        return chosen;
    };
    let mut cuts = cuts_behind(kind, steps);
    cuts.retain(|cut| *cut != chosen.cut);
    cuts.push(chosen.cut);
    match meets_on_hosts(&cuts, steps, hosts) {
        Some(cut) => ChosenCut { cut, ..chosen },
        None => chosen,
    }
}

/// Chooses among the cut where ranks issue collectives, which is the first, and those behind.
fn choose_among(candidates: &[CandidateCut], ranks: usize) -> ChosenCut {
    let issued = candidates[0].cut;
    let most_s = candidates
        .iter()
        .map(CandidateCut::met_s)
        .fold(0.0, f64::max);
    // Where most ranks may be waiting, lateness alone does not show which of them wait.
    let few = ranks <= FEW_RANKS;
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
        unrecorded: candidates[0].joins_unrecorded().then_some(issued),
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
    /// By how much ranks got apart from this cut until the begin of the step.
    begin_apart_s: f64,
    /// Steps that were measured.
    steps: usize,
    /// Of the first ranks, `[rank][step]` in seconds: how early they are at their last collective,
    /// and what they take from there until the cut.
    early_s: Vec<Vec<f64>>,
    takes_s: Vec<Vec<f64>>,
}

impl CandidateCut {
    /// What a window looks like if its ranks meet at a cut. `lags_s` is where they are at the cut
    /// before, `[step][rank]`; if it is empty, all begin there at 0.
    fn measured(cut: Cut, steps: &DeliveredSteps<'_>, lags_s: &[f64], ranks: usize) -> Self {
        let followed = ranks.min(MAX_FOLLOWED);
        let mut measured = Self {
            cut,
            late_s: 0.0,
            left_s: 0.0,
            unexplained_s: 0.0,
            exposed_s: 0.0,
            begin_apart_s: 0.0,
            steps: 0,
            early_s: vec![Vec::new(); followed],
            takes_s: vec![Vec::new(); followed],
        };
        let mut seconds = Vec::new();
        let mut ends_s = vec![0.0; ranks];
        let mut lags_s = lags_s.chunks_exact(ranks);
        for (before, step) in steps.pairs() {
            match lags_s.next() {
                Some(lags_s) => ends_s.copy_from_slice(lags_s),
                None => ends_s.fill(0.0),
            }
            // Ranks are compared at each boundary, so they must have the same ones.
            if let Some(row) = steps.between(before, step, cut) {
                measured.add(row.parts, &mut ends_s);
                continue;
            }
            seconds.clear();
            let rows = rank_rows(before, step, cut);
            let cells = rows.and_then(|rows| Cells::of(&rows, Issues::Kept, &mut seconds));
            if let Some(cells) = cells {
                measured.add(cells.parts(&seconds), &mut ends_s);
            }
        }
        measured
    }

    /// Adds what ranks took between the cut before and this one. `ends_s` is where they were at the
    /// cut before, and is written over.
    fn add(&mut self, cells: [CellRange<'_>; 2], ends_s: &mut [f64]) {
        let carried = cells[0].boundaries.len();
        let mut begin_apart_s = 0.0f64;
        let (mut earliest_s, mut most_s) = (0.0, 0.0);
        let (mut late_s, mut apart_s) = (0.0f64, 0.0f64);
        let mut issued = false;
        let followed = self.early_s.len();
        let (mut issued_s, mut last_s) = (vec![0.0; followed], 0.0f64);
        for (at, (boundary, took_s)) in cells.into_iter().flat_map(CellRange::rows).enumerate() {
            (earliest_s, most_s) = add_up(ends_s, took_s);
            if at < carried {
                begin_apart_s = begin_apart_s.max(most_s - earliest_s);
            }
            let joins = match boundary.ending {
                Ending::Issue { op, .. } => !op.is_point_to_point(),
                // Where no issues are recorded, backward is taken to hold them.
                Ending::Mark(kind) => !issued && kind == MarkKind::BackwardBegin,
            };
            if issued && !joins {
                continue;
            }
            let spread_s = most_s - earliest_s;
            if !issued {
                apart_s = apart_s.max(spread_s);
            }
            if joins {
                if !issued {
                    self.unexplained_s += apart_s - spread_s;
                }
                issued = true;
                if is_later(ends_s, most_s, late_s) {
                    late_s = lateness(ends_s, most_s);
                }
                issued_s.copy_from_slice(&ends_s[..followed]);
                last_s = most_s;
            }
        }
        let cells = self.early_s.iter_mut().zip(&mut self.takes_s);
        for ((early_s, takes_s), (issued_s, end_s)) in cells.zip(issued_s.iter().zip(ends_s)) {
            early_s.push(last_s - issued_s);
            takes_s.push(*end_s - issued_s);
        }
        self.begin_apart_s += begin_apart_s;
        self.steps += 1;
        self.late_s += late_s;
        // What they came apart since is not left of this lateness.
        self.left_s += (most_s - earliest_s).min(late_s);
        self.exposed_s += most_s;
    }

    /// Lateness that was seen to vanish.
    fn met_s(&self) -> f64 {
        self.late_s - self.left_s
    }

    fn is_seen(&self, few: bool) -> bool {
        self.late_s > 0.0 && self.left_s <= LEFT_SHARE * self.late_s && (!few || self.may_wait())
    }

    /// Whether ranks that were apart are together here, whatever varies.
    fn gets_together(&self) -> bool {
        let is_left = self.left_s > TOGETHER_SHARE * self.late_s;
        self.late_s > 0.0 && !is_left && !self.is_unexplained()
    }

    /// Whether ranks come together here by losing what they are early by, and by nothing else.
    fn is_exact(&self, ranks: usize) -> bool {
        self.is_seen(ranks <= FEW_RANKS) && self.growth().is_exact()
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

    /// Whether no cut behind this one, where ranks issue collectives, can be preferred to it. At
    /// such a cut a rank is at most as much later as ranks get apart until there.
    fn is_beyond_doubt(&self, steps: &DeliveredSteps<'_>, ranks: usize) -> bool {
        let all = self.steps == steps.steps.len();
        let is_elsewhere = ranks <= FEW_RANKS && !self.may_wait();
        let late_s = self.late_s + self.begin_apart_s;
        all && !is_elsewhere && !self.is_refuted() && self.met_s() > ISSUED_SHARE * late_s
    }

    fn is_refuted(&self) -> bool {
        let apart_s = APART_SHARE * self.exposed_s;
        let stays = self.late_s > apart_s && self.left_s > LEFT_SHARE * self.late_s;
        stays || self.is_unexplained()
    }

    fn joins_unrecorded(&self) -> bool {
        let was_apart_s = self.late_s + self.unexplained_s;
        self.is_unexplained() && self.left_s <= LEFT_SHARE * was_apart_s
    }

    fn is_unexplained(&self) -> bool {
        self.unexplained_s > self.met_s().max(APART_SHARE * self.exposed_s)
    }
}

/// Cuts at which ranks that issue collectives may meet, if most steps have any: the last one is at
/// [`Cut::Data`].
pub(crate) fn cuts_at_marks(steps: &DeliveredSteps<'_>) -> Vec<Cut> {
    let mut cuts = cuts_behind_issues(steps);
    if let Some(Cut::After(kind)) = cuts.last().copied() {
        cuts.extend(cuts_behind(kind, steps));
    }
    cuts
}

/// Cuts behind the last mark of a kind in the cycle, in order; the last one is the published.
fn cuts_behind(kind: MarkKind, steps: &DeliveredSteps<'_>) -> Vec<Cut> {
    let mut places: BTreeMap<u8, (MarkKind, usize, usize)> = BTreeMap::new();
    for piece in steps.whole_pieces() {
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
    let needed = REGULAR_SHARE * steps.steps.len() as f64;
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

/// Adds what ranks took to where they are, and returns the least and the largest. Ranks may be many:
/// lanes are compared side by side, where a single fold waits for each comparison.
fn add_up(ends_s: &mut [f64], took_s: &[f64]) -> (f64, f64) {
    const LANES: usize = 4;
    let (mut least, mut largest) = ([f64::INFINITY; LANES], [f64::NEG_INFINITY; LANES]);
    let (ends_chunks, ends_rest) = ends_s.as_chunks_mut::<LANES>();
    let (took_chunks, took_rest) = took_s.as_chunks::<LANES>();
    for (ends_s, took_s) in ends_chunks.iter_mut().zip(took_chunks) {
        for lane in 0..LANES {
            ends_s[lane] += took_s[lane];
            // Not `f64::min`: it cares for NaN, which takes three instructions instead of one.
            least[lane] = if least[lane] < ends_s[lane] {
                least[lane]
            } else {
                ends_s[lane]
            };
            largest[lane] = if largest[lane] > ends_s[lane] {
                largest[lane]
            } else {
                ends_s[lane]
            };
        }
    }
    for (end_s, took_s) in ends_rest.iter_mut().zip(took_rest) {
        *end_s += took_s;
        least[0] = least[0].min(*end_s);
        largest[0] = largest[0].max(*end_s);
    }
    (
        least.into_iter().fold(f64::INFINITY, f64::min),
        largest.into_iter().fold(f64::NEG_INFINITY, f64::max),
    )
}

/// How far the last rank, which is at `last_s`, is behind the lower median: a rank ahead of all others
/// is not met, they are not waited for.
pub(crate) fn lateness(ends_s: &[f64], last_s: f64) -> f64 {
    last_s - lower_median(&mut ends_s.to_vec()).unwrap_or(last_s)
}

/// Whether [`lateness`] is larger than this: counting shows it much sooner than selecting.
fn is_later(ends_s: &[f64], last_s: f64, late_s: f64) -> bool {
    let ahead = ends_s.iter().filter(|end_s| last_s - **end_s > late_s);
    ahead.count() > (ends_s.len() - 1) / 2
}

/// Where ranks meet if to issue is to meet: after the last collective that most steps
/// have, or at the end of backward if none is seen. A loop without either meets nobody knows where.
fn issued_cut(behind_issues: &[Cut], steps: &DeliveredSteps<'_>) -> Cut {
    let meet = steps
        .steps
        .first()
        .is_some_and(|step| step.pieces.len() > 1);
    let goes_back = |piece: &RankStep| {
        let mut segments = piece.segments.iter();
        segments.any(|segment| segment.ending == Ending::Mark(MarkKind::BackwardEnd))
    };
    match behind_issues.last() {
        Some(cut) => *cut,
        None if meet && steps.whole_pieces().any(goes_back) => Cut::After(MarkKind::BackwardEnd),
        None => Cut::Data,
    }
}

/// Cuts at the end of each stretch in which most steps issue collectives, in the order of the cycle.
fn cuts_behind_issues(steps: &DeliveredSteps<'_>) -> Vec<Cut> {
    // Mark kinds that end a stretch with collectives, with their last place in the cycle.
    let mut seen: BTreeMap<u8, (MarkKind, usize, usize, bool)> = BTreeMap::new();
    for piece in steps.whole_pieces() {
        let mut issued = false;
        let mut here: BTreeMap<u8, (MarkKind, usize, bool)> = BTreeMap::new();
        for (at, segment) in piece.segments.iter().enumerate() {
            match segment.ending {
                Ending::Issue { op, .. } => issued |= !op.is_point_to_point(),
                Ending::Mark(kind) => {
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
    let needed = REGULAR_SHARE * steps.steps.len() as f64;
    let mut regular: Vec<_> = seen
        .into_values()
        .filter(|(_, count, ..)| *count as f64 >= needed)
        .collect();
    regular.sort_by_key(|(_, _, place, _)| *place);
    let cuts = regular.into_iter().map(|(kind, _, _, last)| {
        // What ends the last segment belongs to the next step.
        if last { Cut::Data } else { Cut::After(kind) }
    });
    cuts.collect()
}

#[cfg(test)]
mod tests;
