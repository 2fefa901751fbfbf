mod found;

use std::collections::BTreeSet;

use frontier::{Gates, WindowFrontier};
use model::{
    Boundary, Ending, MarkKind, Pace, RankColumn, Ranks, StageId, StageSlot, StepPlace, StepRow,
    Window, median, medians_of_others,
};

use crate::IncidentSettings;
use crate::costs::{Charge, share_out};
use crate::lateness::Lateness;
use crate::pace::{STEADY_SHARE, Seen, pace_of};
pub use found::{Fault, FaultKind, Hidden, LateShare};

/// Candidate faults one stage may have in a window.
const MAX_FAULTS_PER_STAGE: usize = 3;
/// Candidates that are weighed against each other.
const MAX_CANDIDATES: usize = 8;
/// Share of exposed time below which lateness is not even a candidate.
const CANDIDATE_SHARE: f64 = 0.02;
/// Overlap of late steps from which ranks share a fault.
const SAME_STEPS_SHARE: f64 = 0.5;
/// Lateness, relative to the worst rank's, from which ranks share a fault.
const SAME_LATENESS_SHARE: f64 = 0.3;
/// Strikes from which a fault is no accident of a step or two. Ours.
pub(crate) const STRIKES_MIN: u64 = 5;
/// The same of a fault that strikes most steps, or rotates, and is not critical, in a job of which more is
/// known than these: in a window of a few steps a pause or two look like it. Ours.
const SMALL_STRIKES_MIN: u64 = 10;
/// The same of strikes as long as a stall in steps, however few seconds that is. Ours.
const STALLS_MIN: u64 = 3;
/// The same of stalls that must have been seen where only some steps were sampled: so many that all
/// would come to [`STALLS_MIN`]. Ours.
const STALLS_SEEN_MIN: u64 = 2;
/// Strikes from which half of the share is enough that those must cost that come without a pattern:
/// chance does not strike one rank in one stage as often. Ours.
const MANY_STRIKES: u64 = 20;
/// How much larger the next strike must be, when they are sorted by size, for it to belong to
/// another fault.
const OTHER_SIZE_RATIO: f64 = 2.5;
/// Share of a stage's lateness that must lie outside the worst ranks, and share of steps
/// struck, from which the fault is said to rotate.
const ROTATING_OUTSIDE_SHARE: f64 = 0.4;
/// Share of the struck steps in which the same ranks are late from which it does not: of two ranks that
/// are late by chance, one is so in 15 of 20 steps 2 % of the time.
const SAME_RANKS_SHARE: f64 = 0.75;
/// Turns of ranks that it takes. Ours: where one takes over from another, each is late for a while.
const ROTATING_TURNS: usize = 3;

/// Struck steps of a window that are looked at for who waited in them: it is the same ranks in
/// all of them.
const VICTIM_ROWS: usize = 8;
/// Share of what a fault cost the job that a rank must have waited for it, to be its victim. Ours:
/// who meets the culprits waits as long as the job loses, and who does not waits not at all.
const VICTIM_SHARE: f64 = 0.5;

/// Lateness of some ranks in one stage, before it is weighed.
struct Candidate {
    slot: StageSlot,
    /// All that were late for a rotating fault.
    columns: BTreeSet<RankColumn>,
    rotating: bool,
    in_turn: bool,
    rows: BTreeSet<StepRow>,
    late_s: f64,
}

/// How lateness that moves from rank to rank is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    /// As one fault of no rank: ranks meet in each step, so that each is late in turn.
    Rotate,
    /// The same unless one is late in most steps: the others may wait for it in some.
    WaitForOne,
    /// Each rank by itself: it may be late, or wait for its device and so for another rank.
    Apart,
}

/// Finds what ranks of a window did wrong, costliest first, notable or not.
///
/// Own work is compared, never waits: victims of a late rank are not late themselves. The
/// cost of a fault is what the step would save if the fault were fixed and everybody
/// waited less accordingly.
/// # Source
/// Ours: docs/math/replay.md.
pub fn find_faults(
    window: &Window,
    found: &WindowFrontier,
    gates: &Gates,
    settings: &IncidentSettings,
    turns: Turns,
) -> Vec<Fault> {
    let in_stages = find_in_stages(
        window,
        found,
        &Lateness::of_window(window, found, gates, settings),
        gates,
        turns,
    );
    let mut faults = join_stages(in_stages);
    judge_window(&mut faults, found, settings);
    faults
}

/// The same as [`find_faults`], stage by stage and not judged yet.
pub(crate) fn find_in_stages(
    window: &Window,
    found: &WindowFrontier,
    lateness: &Lateness<'_>,
    gates: &Gates,
    turns: Turns,
) -> Vec<Fault> {
    if window.ranks.len() < 2 || found.exposed_s < gates.denom_floor_s {
        return Vec::new();
    }
    let mut candidates: Vec<Candidate> = (0..found.stages.len())
        .flat_map(|slot| stage_candidates(lateness, StageSlot(slot), turns))
        // A fix saves no more than the lateness: what is dropped here could not have cost more.
        .filter(|candidate| candidate.late_s >= CANDIDATE_SHARE * found.exposed_s)
        .collect();
    candidates.sort_by(|a, b| b.late_s.total_cmp(&a.late_s));
    // Any two may hide one another, so that replays grow with the square of their number.
    candidates.truncate(MAX_CANDIDATES);
    weigh(window, found, lateness, &candidates)
}

/// Splits the lateness of one stage into groups of ranks that are late together.
fn stage_candidates(lateness: &Lateness<'_>, slot: StageSlot, turns: Turns) -> Vec<Candidate> {
    let ranks = lateness.ranks();
    let mut rows_of: Vec<BTreeSet<StepRow>> = vec![BTreeSet::new(); ranks];
    let mut late_s = vec![0.0; ranks];
    for row in lateness.rows() {
        for rank in 0..ranks {
            let late = lateness.late_s(row, slot, RankColumn(rank));
            if late > 0.0 {
                rows_of[rank].insert(row);
                late_s[rank] += late;
            }
        }
    }
    let total_s: f64 = late_s.iter().sum();
    let mut left: BTreeSet<RankColumn> = (0..ranks)
        .filter(|rank| late_s[*rank] > 0.0)
        .map(RankColumn)
        .collect();
    let (mut found, mut rotating) = (Vec::new(), None);
    // Of equals the lowest rank, so that a window always gives the same answer.
    while let Some(&worst) = left
        .iter()
        .max_by(|a, b| late_s[a.0].total_cmp(&late_s[b.0]).then(b.cmp(a)))
    {
        let worst_rows = &rows_of[worst.0];
        let columns: BTreeSet<RankColumn> = left
            .iter()
            .filter(|rank| {
                let common = rows_of[rank.0].intersection(worst_rows).count();
                // Of the larger set: who is late in few of the many steps of another
                // has another cause.
                let larger = rows_of[rank.0].len().max(worst_rows.len());
                common as f64 >= SAME_STEPS_SHARE * larger as f64
                    && late_s[rank.0] >= SAME_LATENESS_SHARE * late_s[worst.0]
            })
            .copied()
            .collect();
        let group_s: f64 = columns.iter().map(|rank| late_s[rank.0]).sum();
        let struck: BTreeSet<StepRow> = left
            .iter()
            .flat_map(|rank| rows_of[rank.0].iter().copied())
            .collect();
        let often = struck.len() * 2 >= lateness.rows().len();
        // As often as chance strikes one of several ranks that are late now and then.
        let is_chance = (STALLS_MIN..STRIKES_MIN).contains(&(worst_rows.len() as u64));
        let is_same = worst_rows.len() as f64 >= SAME_RANKS_SHARE * struck.len() as f64;
        // Only while no group is split off: behind one its remainder would look like a rotation.
        if found.is_empty()
            && (often || is_chance)
            && !is_same
            && left.len() > columns.len()
            && total_s - group_s >= ROTATING_OUTSIDE_SHARE * total_s
            && lateness.turns(slot, &struck) >= ROTATING_TURNS
        {
            rotating = Some(Candidate {
                slot,
                columns: left.clone(),
                rotating: true,
                in_turn: true,
                rows: struck,
                late_s: total_s,
            });
            if turns == Turns::Rotate {
                break;
            }
        }
        left = left.difference(&columns).copied().collect();
        let rows: BTreeSet<StepRow> = columns
            .iter()
            .flat_map(|rank| rows_of[rank.0].iter().copied())
            .collect();
        found.extend(by_size(lateness, slot, &columns, rows));
        // One group may be faults of several sizes, so that the limit may be passed by some.
        if found.len() >= MAX_FAULTS_PER_STAGE {
            break;
        }
    }
    let Some(rotating) = rotating else {
        return found;
    };
    if turns == Turns::Apart {
        for candidate in &mut found {
            candidate.in_turn = true;
        }
        return found;
    }
    let most = STEADY_SHARE * lateness.rows().len() as f64;
    found.retain(|candidate| candidate.rows.len() as f64 >= most);
    if found.is_empty() {
        found.push(rotating);
    }
    found
}

/// Tells a few large strikes from many small ones: a stall of seconds on a rank that is also
/// a little slow in every step is another fault with another pace.
fn by_size(
    lateness: &Lateness<'_>,
    slot: StageSlot,
    columns: &BTreeSet<RankColumn>,
    rows: BTreeSet<StepRow>,
) -> Vec<Candidate> {
    let latest_s = |row: &StepRow| lateness.latest_s(*row, slot, columns);
    let mut sorted: Vec<StepRow> = rows.into_iter().collect();
    sorted.sort_by(|a, b| latest_s(b).total_cmp(&latest_s(a)));
    let mut groups = Vec::new();
    while !sorted.is_empty() {
        let gap = sorted
            .windows(2)
            .position(|pair| latest_s(&pair[0]) > OTHER_SIZE_RATIO * latest_s(&pair[1]));
        let smaller = sorted.split_off(gap.map_or(sorted.len(), |at| at + 1));
        let rows: BTreeSet<StepRow> = std::mem::replace(&mut sorted, smaller)
            .into_iter()
            .collect();
        let late_s = rows
            .iter()
            .flat_map(|row| {
                columns
                    .iter()
                    .map(|rank| lateness.late_s(*row, slot, *rank))
            })
            .sum();
        groups.push(Candidate {
            slot,
            columns: columns.clone(),
            rotating: false,
            in_turn: false,
            rows,
            late_s,
        });
    }
    groups
}

/// Weighs the candidates against each other: what each costs, alone and behind the others.
fn weigh(
    window: &Window,
    found: &WindowFrontier,
    lateness: &Lateness<'_>,
    candidates: &[Candidate],
) -> Vec<Fault> {
    let of = |some: &[usize]| some.iter().map(|at| &candidates[*at]).collect::<Vec<_>>();
    let charges = share_out(candidates.len(), |some| {
        gain_of(window, found, lateness, &of(some))
    });
    let mut faults: Vec<Fault> = Vec::new();
    for (place, it) in charges.iter().enumerate() {
        let candidate = &candidates[it.at];
        let after: Vec<usize> = charges[place + 1..].iter().map(|later| later.at).collect();
        let mut fault = describe(window, found, lateness, candidate);
        fault.victims = victims(window, found, lateness, candidate, &of(&after));
        charge(&mut faults, fault, it);
    }
    // What ranks that wait in turn are late by is what the others wait.
    let rotating = faults
        .iter_mut()
        .filter(|it| it.kind == FaultKind::Rotating);
    for fault in rotating {
        fault.cost_s *= found.taken_share;
        fault.gain_alone_s *= found.taken_share;
    }
    faults
}

/// Adds a fault with its cost to those before it, one of which may hide it.
pub(crate) fn charge(faults: &mut Vec<Fault>, fault: Fault, charge: &Charge) {
    let Charge {
        cost_s,
        alone_s,
        hidden,
        hidden_by,
        ..
    } = *charge;
    // A rotating fault names no ranks, so that nobody would be next in line.
    if let Some((hider, gain_both_s)) = hidden_by.filter(|_| fault.kind == FaultKind::LateRanks) {
        faults[hider].hides.push(Hidden {
            ranks: fault.ranks.clone(),
            stage: fault.stage,
            lateness_s: fault.lateness_s,
            gain_alone_s: alone_s,
            gain_both_s,
        });
    }
    faults.push(Fault {
        cost_s,
        gain_alone_s: alone_s,
        hidden,
        ..fault
    });
}

/// Exposed seconds saved if the candidates did no more work than their peers.
fn gain_of(
    window: &Window,
    found: &WindowFrontier,
    lateness: &Lateness<'_>,
    fixed: &[&Candidate],
) -> f64 {
    let mut gain_s = 0.0;
    let rows = lateness.rows();
    for (row, (replay, account)) in rows.zip(lateness.replays.iter().zip(&found.steps)) {
        let struck: Vec<&&Candidate> = fixed
            .iter()
            .filter(|candidate| candidate.rows.contains(&row))
            .collect();
        // Replays are the work here, and a row without a strike gains nothing.
        if struck.is_empty() {
            continue;
        }
        let boundaries = &window.blocks[account.block].boundaries;
        let fixed = fixed_row(boundaries, found, lateness, row, &struck);
        let makespan_s = replay.makespan_with(&fixed);
        gain_s += (replay.makespan_s() - makespan_s).max(0.0);
    }
    gain_s
}

/// Ranks that would have ended their steps earlier without a candidate, those after it fixed as
/// its cost has it; what they worked themselves is the same.
///
/// Where they meet only after the step nobody is seen to wait in it, and all do.
fn victims(
    window: &Window,
    found: &WindowFrontier,
    lateness: &Lateness<'_>,
    candidate: &Candidate,
    after: &[&Candidate],
) -> Ranks {
    let ranks = window.ranks.len();
    if candidate.rotating {
        return window.ranks.iter().copied().collect();
    }
    let fixed: Vec<&Candidate> = after
        .iter()
        .copied()
        .chain(std::iter::once(candidate))
        .collect();
    let (mut cost_s, mut waited_s) = (0.0, vec![0.0; ranks]);
    for row in candidate.rows.iter().take(VICTIM_ROWS) {
        let boundaries = &window.blocks[found.steps[row.0].block].boundaries;
        let [before, without] = [after, &fixed].map(|fixed| {
            let struck = fixed.iter().filter(|one| one.rows.contains(row));
            let struck: Vec<&&Candidate> = struck.collect();
            let fixed = fixed_row(boundaries, found, lateness, *row, &struck);
            lateness.replays[row.0].ends_with(&fixed)
        });
        cost_s += (latest(&before) - latest(&without)).max(0.0);
        for (waited_s, (before, without)) in waited_s.iter_mut().zip(before.iter().zip(&without)) {
            *waited_s += before - without;
        }
    }
    if cost_s <= 0.0 {
        return Ranks::default();
    }
    let mut columns: Vec<RankColumn> = (0..ranks)
        .map(RankColumn)
        .filter(|column| !candidate.columns.contains(column))
        .collect();
    let has_waited = |column: &RankColumn| waited_s[column.0] >= VICTIM_SHARE * cost_s;
    if columns.iter().any(has_waited) {
        columns.retain(has_waited);
    }
    columns
        .into_iter()
        .map(|column| window.ranks[column.0])
        .collect()
}

/// When the last rank comes.
fn latest(ends_s: &[f64]) -> f64 {
    ends_s.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// A row's own work, as [`frontier::Replay::makespan_with`] takes it, with each late rank at the level
/// of the others: the median of those that are not late, of all others if everyone is.
fn fixed_row(
    boundaries: &[Boundary],
    found: &WindowFrontier,
    lateness: &Lateness<'_>,
    row: StepRow,
    struck: &[&&Candidate],
) -> Vec<Option<Vec<f64>>> {
    // Nothing for boundaries at which nobody is late.
    let fixed = boundaries.iter().enumerate().map(|(at, boundary)| {
        let here = struck
            .iter()
            .filter(|c| found.stages[c.slot.0] == boundary.stage);
        let mut is_late = vec![false; lateness.ranks()];
        for candidate in here {
            for rank in &candidate.columns {
                is_late[rank.0] |= lateness.late_s(row, candidate.slot, *rank) > 0.0;
            }
        }
        if !is_late.contains(&true) {
            return None;
        }
        let mut own_s = lateness.own_s(row, at).to_vec();
        let cells = own_s.iter().zip(&is_late);
        let punctual = cells
            .filter(|(_, is_late)| !**is_late)
            .map(|(own_s, _)| *own_s);
        let level_s = match median(&mut punctual.collect::<Vec<_>>()) {
            Some(level_s) => vec![level_s; own_s.len()],
            None => medians_of_others(&own_s),
        };
        for (own_s, (level_s, is_late)) in own_s.iter_mut().zip(level_s.iter().zip(is_late)) {
            if is_late {
                // A late rank may be quick at another boundary of the stage: a fix makes it no
                // slower there.
                *own_s = own_s.min(*level_s);
            }
        }
        Some(own_s)
    });
    fixed.collect()
}

fn describe(
    window: &Window,
    found: &WindowFrontier,
    lateness: &Lateness<'_>,
    candidate: &Candidate,
) -> Fault {
    let stage = found.stages[candidate.slot.0];
    let struck = candidate.rows.iter().map(|row| {
        let account = &found.steps[row.0];
        window.blocks[account.block].step_of(account.row, stage)
    });
    // Rows of two blocks may be struck in one step: where ranks differ, nothing is carried.
    let strikes: BTreeSet<u64> = struck.collect();
    let struck_s = candidate
        .rows
        .iter()
        .map(|row| lateness.latest_s(*row, candidate.slot, &candidate.columns));
    let lateness_s = struck_s.sum::<f64>() / strikes.len().max(1) as f64;
    let ranks = candidate
        .columns
        .iter()
        .map(|column| window.ranks[column.0]);
    Fault {
        kind: if candidate.rotating {
            FaultKind::Rotating
        } else {
            FaultKind::LateRanks
        },
        ranks: if candidate.rotating {
            Vec::new()
        } else {
            ranks.collect()
        },
        stage,
        other_stages: Vec::new(),
        place: place(window, found, lateness, candidate),
        side: None,
        level_s: 0.0,
        strikes: strikes.into_iter().collect(),
        sampled: false,
        lateness_s,
        cost_s: 0.0,
        gain_alone_s: 0.0,
        victims: Ranks::default(),
        hides: Vec::new(),
        hidden: false,
        reads_back: false,
        in_turn: candidate.in_turn,
        notable: false,
    }
}

/// Where in the stage the lateness arises, if the stage has several places.
fn place(
    window: &Window,
    found: &WindowFrontier,
    lateness: &Lateness<'_>,
    candidate: &Candidate,
) -> Option<StepPlace> {
    let stage = found.stages[candidate.slot.0];
    // Between the stage's own marks there is no place beyond its name: that is a vote as well.
    let mut votes: Vec<(Option<StepPlace>, usize)> = Vec::new();
    for row in &candidate.rows {
        let account = &found.steps[row.0];
        let block = &window.blocks[account.block];
        let worst = (0..block.boundaries.len())
            .filter(|at| block.boundaries[*at].stage == stage)
            .map(|at| {
                (
                    at,
                    largest_excess_s(lateness.own_s(*row, at), &candidate.columns),
                )
            })
            .max_by(|(_, a), (_, b)| a.total_cmp(b));
        let place = worst.and_then(|(worst, _)| {
            let Boundary { after, ending, .. } = block.boundaries[worst];
            place_of(after, ending, stage)
        });
        match votes.iter_mut().find(|(known, _)| *known == place) {
            Some((_, count)) => *count += 1,
            None => votes.push((place, 1)),
        }
    }
    votes
        .into_iter()
        .max_by_key(|(_, count)| *count)
        .and_then(|(place, _)| place)
}

/// By how much the worst of some ranks exceeds the median of its others.
fn largest_excess_s(own_s: &[f64], columns: &BTreeSet<RankColumn>) -> f64 {
    let level_s = medians_of_others(own_s);
    columns
        .iter()
        .map(|column| own_s[column.0] - level_s[column.0])
        .fold(f64::NEG_INFINITY, f64::max)
}

fn place_of(after: MarkKind, ending: Ending, stage: StageId) -> Option<StepPlace> {
    match ending {
        Ending::Issue { op, .. } => Some(StepPlace::BeforeIssue(op.name().to_owned())),
        Ending::Mark(until) => match (after, until) {
            (MarkKind::ForwardEnd, MarkKind::BackwardBegin) => {
                Some(StepPlace::BetweenForwardAndBackward)
            }
            (MarkKind::BackwardEnd, MarkKind::OptimizerBegin) => {
                Some(StepPlace::BetweenBackwardAndOptimizer)
            }
            (MarkKind::OptimizerEnd, MarkKind::DataBegin) => Some(StepPlace::AfterOptimizer),
            (MarkKind::OptimizerEnd | MarkKind::BackwardEnd, MarkKind::BackwardBegin) => {
                Some(StepPlace::BeforeBackward)
            }
            _ if stage == StageId::OTHER => Some(StepPlace::BetweenStages),
            _ => None,
        },
    }
}

/// Joins faults of the same ranks in the same steps, if both are their hosts' or their devices': one
/// cause, several stages.
pub(crate) fn join_stages(faults: Vec<Fault>) -> Vec<Fault> {
    let mut joined: Vec<Fault> = Vec::new();
    for fault in faults {
        let host = joined.iter_mut().find(|known| {
            let common = known
                .strikes
                .iter()
                .filter(|s| fault.strikes.contains(s))
                .count();
            let larger = known.strikes.len().max(fault.strikes.len());
            known.kind == FaultKind::LateRanks
                && fault.kind == FaultKind::LateRanks
                && known.ranks == fault.ranks
                && known.side == fault.side
                && common as f64 >= SAME_STEPS_SHARE * larger as f64
        });
        match host {
            Some(host) => {
                let lateness_s = host.lateness_s + fault.lateness_s;
                for known in &mut host.other_stages {
                    known.share *= host.lateness_s / lateness_s;
                }
                host.other_stages.push(LateShare {
                    stage: fault.stage,
                    share: fault.lateness_s / lateness_s,
                });
                host.lateness_s = lateness_s;
                // Costs were shared out so that they add up.
                host.cost_s += fault.cost_s;
                // Nothing was run without both stages: that saves what they cost now, or more.
                host.gain_alone_s = host.gain_alone_s.max(host.cost_s);
                host.victims = host.victims.and(&fault.victims);
                host.hides.extend(fault.hides);
            }
            None => joined.push(fault),
        }
    }
    joined
}

/// What is known of the steps before those of an account.
#[derive(Clone, Debug)]
pub(crate) struct LastAccount {
    /// The last of these steps, ascending, and what each took, in seconds.
    pub(crate) steps: Vec<(u64, f64)>,
    /// The last of them that was sampled.
    pub(crate) sampled: u64,
    /// What was found in them: ranks, and a stage.
    pub(crate) found: Vec<(Vec<u32>, StageId)>,
}

impl LastAccount {
    /// Whether the fault was found in them, in one of its stages.
    pub(crate) fn shows(&self, fault: &Fault) -> bool {
        let mut found = self.found.iter();
        found.any(|(ranks, stage)| *ranks == fault.ranks && fault.is_in(*stage))
    }
}

/// Steps that faults are judged over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch<'steps> {
    /// Their numbers, ascending, and what each took, in seconds.
    pub(crate) steps: &'steps [(u64, f64)],
    /// Their exposed time, in seconds.
    pub(crate) exposed_s: f64,
    /// What one of them usually takes, in seconds.
    pub(crate) median_s: f64,
    /// The account before them, if devices have one.
    pub(crate) last: Option<&'steps LastAccount>,
}

impl Stretch<'_> {
    /// The numbers of the steps, ascending.
    pub(crate) fn numbers(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.steps.iter().map(|(step, _)| *step)
    }
}

/// Decides which faults of some steps are alone reason enough to speak of.
pub(crate) fn judge(faults: &mut [Fault], stretch: Stretch<'_>, settings: &IncidentSettings) {
    let Stretch {
        exposed_s,
        median_s: step_s,
        ..
    } = stretch;
    let last_step = stretch.numbers().last().unwrap_or_default();
    let seen: Seen = stretch.numbers().collect();
    let record = |fault: &Fault, weight_s: f64| {
        let strikes = fault.strikes.len() as u64;
        let pace = pace_of(&fault.strikes, &seen, last_step);
        Record {
            kind: fault.kind,
            pace,
            strikes,
            lateness_s: fault.lateness_s,
            weight_s,
            exposed_s,
            step_s,
        }
    };
    for fault in faults.iter_mut() {
        fault.notable = record(fault, fault.cost_s).is_notable(settings);
    }
    // A hidden fault is worth a word if the one that hides it is, and if it would be one in
    // its own right.
    let named: Vec<Hidden> = faults
        .iter()
        .filter(|f| f.notable)
        .flat_map(|f| f.hides.clone())
        .collect();
    for fault in faults.iter_mut().filter(|fault| fault.hidden) {
        let is_named = named.iter().any(|it| it.is(fault));
        let weight_s = fault.late_sum_s();
        fault.notable |= is_named && record(fault, weight_s).is_notable(settings);
    }
    let notable: Vec<(Vec<u32>, StageId)> = faults
        .iter()
        .filter(|f| f.notable)
        .map(|f| (f.ranks.clone(), f.stage))
        .collect();
    for fault in faults.iter_mut() {
        fault
            .hides
            // A headline lists as next in line only what is an incident as well.
            .retain(|h| notable.iter().any(|(r, s)| *r == h.ranks && *s == h.stage));
    }
}

/// Charges some of a window's faults anew, by what fixing some of them saves, and judges all.
pub(crate) fn recharge(
    faults: &mut Vec<Fault>,
    which: impl Fn(&Fault) -> bool,
    found: &WindowFrontier,
    settings: &IncidentSettings,
    gain_s: impl Fn(&[usize]) -> f64,
) {
    let (those, others): (Vec<Fault>, Vec<Fault>) =
        std::mem::take(faults).into_iter().partition(which);
    for it in share_out(those.len(), gain_s) {
        // Which fault hides which follows from the new costs.
        let fault = Fault {
            hides: Vec::new(),
            ..those[it.at].clone()
        };
        charge(faults, fault, &it);
    }
    faults.extend(others);
    judge_window(faults, found, settings);
}

/// Judges the faults of a window once more, after they were charged anew.
pub(crate) fn judge_window(
    faults: &mut [Fault],
    found: &WindowFrontier,
    settings: &IncidentSettings,
) {
    let accounts = found.steps.iter();
    let steps: Vec<(u64, f64)> = accounts.map(|it| (it.step, it.makespan_s)).collect();
    let stretch = Stretch {
        steps: &steps,
        exposed_s: found.exposed_s,
        median_s: found.median_step_s(),
        last: None,
    };
    judge(faults, stretch, settings);
    faults.sort_by(|a, b| b.cost_s.total_cmp(&a.cost_s));
}

/// What is known of a fault, over one window or many, when its weight is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) kind: FaultKind,
    pub(crate) pace: Pace,
    /// Steps it was seen to strike.
    pub(crate) strikes: u64,
    /// Seconds of lateness in one of them.
    pub(crate) lateness_s: f64,
    /// Exposed seconds it cost, or would.
    pub(crate) weight_s: f64,
    /// Exposed seconds of the job over the same time.
    pub(crate) exposed_s: f64,
    /// A usual step of the job.
    pub(crate) step_s: f64,
}

impl Record {
    /// Strikes there were: where steps are sampled, those that were seen stand for as many as their weight has
    /// room for.
    fn stands_for(&self) -> f64 {
        (self.strikes as f64).max((self.weight_s / self.lateness_s).round())
    }

    /// Whether it may be a pause or two in the few steps that a job had since it was seen to be without it.
    pub(crate) fn may_be_chance(&self, settings: &IncidentSettings) -> bool {
        let is_frequent = self.kind == FaultKind::Rotating || self.pace == Pace::Steady;
        let is_critical = self.weight_s >= settings.critical_share * self.exposed_s;
        is_frequent && !is_critical && self.stands_for() < SMALL_STRIKES_MIN as f64
    }

    /// Whether it is worth a person's attention.
    pub(crate) fn is_notable(&self, settings: &IncidentSettings) -> bool {
        let share = self.weight_s / self.exposed_s;
        if self.kind == FaultKind::Rotating {
            return share >= settings.rotating_share_min;
        }
        // For each strike: many small ones are no stall.
        let strike_s = self.weight_s / self.strikes.max(1) as f64;
        let is_long = strike_s >= settings.stall_min_steps * self.step_s;
        let stopped = is_long && strike_s >= settings.stall_min_s;
        let is_often = self.strikes >= STRIKES_MIN;
        let are_several = self.strikes >= STALLS_SEEN_MIN && self.stands_for() >= STALLS_MIN as f64;
        let recurs = is_often || (is_long && are_several);
        match self.pace {
            Pace::Steady => is_often && share >= settings.steady_share_min,
            // A period takes four strikes, which are no accident either.
            Pace::Every { .. } => share >= settings.steady_share_min,
            Pace::Once { .. } => stopped,
            Pace::Sporadic | Pace::Rotating => {
                let many = self.strikes >= MANY_STRIKES;
                let share_min = settings.sporadic_share_min * if many { 0.5 } else { 1.0 };
                stopped || (recurs && share >= share_min)
            }
        }
    }
}

#[cfg(test)]
mod tests;
