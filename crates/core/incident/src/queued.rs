//! What late hosts cost where nothing but full launch queues holds the others up: hosts run ahead of
//! devices that make no marks, and nothing is seen to be read back.

use frontier::WindowFrontier;
use model::{Block, Growth, RankColumn, StageId, Window, median};

use crate::fault::recharge;
use crate::lateness::beside_others;
use crate::pace::is_steady;
use crate::read_backs::may_read_back;
use crate::{Fault, FaultKind, IncidentSettings};

/// Share of a window's rows that must have the same boundaries to stand for all. Ours.
const SAME_ROWS_SHARE: f64 = 0.8;
/// How far from usual a rank's work must typically be to show whether it is held up behind it, in
/// seconds. Ours: clocks do not tick finer.
const VARIES_S: f64 = 1e-6;
/// Times its standard error, and share of a step, by which a rank must be quicker than the others to
/// get ahead of them. Ours.
const SURE_ERRORS: f64 = 2.5;
const QUICKER_SHARE: f64 = 2e-3;
/// Standard error of the median of so many values, times the root of their number, over their median
/// deviation: of the normal distribution.
const MEDIAN_ERROR: f64 = 1.86;

/// Steps of a window by what each rank takes in each segment.
struct Cycle<'window> {
    block: &'window Block,
    /// `[boundary][rank]`, the mean over the rows, in seconds.
    mean_s: Vec<f64>,
}

impl<'window> Cycle<'window> {
    fn of_window(window: &'window Window) -> Option<Self> {
        let block = window.blocks.iter().max_by_key(|block| block.steps.len())?;
        let rows = block.steps.len() as f64;
        let is_most = rows > 0.0 && rows >= SAME_ROWS_SHARE * window.rows() as f64;
        // A read-back holds hosts up as well: then no full queue shows who sets the pace.
        if !is_most || may_read_back(block) {
            return None;
        }
        let mut mean_s = vec![0.0; block.boundaries.len() * block.ranks];
        for (_, row) in block.rows() {
            for (mean_s, took_s) in mean_s.iter_mut().zip(row) {
                *mean_s += took_s / rows;
            }
        }
        Some(Self { block, mean_s })
    }

    fn places(&self) -> std::ops::Range<usize> {
        0..self.block.boundaries.len()
    }

    fn stage(&self, at: usize) -> StageId {
        self.block.boundaries[at].stage
    }

    fn mean_s(&self, at: usize, rank: RankColumn) -> f64 {
        self.mean_s[at * self.block.ranks + rank.0]
    }

    /// Whether the job goes as fast as a rank's host does. `None` if what varies does not show it.
    ///
    /// A host that is held up goes on when its device tells it to: what it takes longer elsewhere it
    /// then takes less there. One that nothing holds up and that is quicker than the others fills its
    /// launch queue meanwhile.
    fn sets_the_pace(&self, rank: usize, others: &[usize]) -> Option<bool> {
        let quicker_s = self.quicker_s(rank, others);
        let growths = self.growths(rank);
        let is_held = growths.iter().any(Growth::is_certain);
        if is_held || self.gets_ahead(&quicker_s) {
            return Some(false);
        }
        // Queues fill in a part of the window.
        let (first, second) = quicker_s.split_at(quicker_s.len() / 2);
        let gets_ahead = [first, second]
            .into_iter()
            .any(|half| self.gets_ahead(half));
        (is_free(&growths) && !gets_ahead).then_some(true)
    }

    /// What a rank takes in each segment but data waits by how early it comes there: by how much less
    /// than usual it took since it left that segment one step before.
    fn growths(&self, rank: usize) -> Vec<Growth> {
        let places = self.places().end;
        let rows: Vec<(u64, Vec<f64>)> = self
            .block
            .rows()
            .map(|(step, row)| {
                let of_rank = row.iter().skip(rank).step_by(self.block.ranks);
                (step, of_rank.copied().collect())
            })
            .collect();
        // `[boundary][row]`, in seconds.
        let mut early_s = vec![Vec::with_capacity(rows.len()); places];
        let mut takes_s = early_s.clone();
        for pair in rows.windows(2) {
            let [(before, before_s), (step, now_s)] = pair else {
                continue;
            };
            // Of a step that is left out it is unknown when the rank left the segment.
            if before + 1 != *step {
                continue;
            }
            let mut since_s: f64 = before_s.iter().sum();
            for at in self.places() {
                // A running sum over one cycle: it loses this segment of the step before, then
                // gains its own.
                since_s -= before_s[at];
                early_s[at].push(-since_s);
                takes_s[at].push(now_s[at]);
                since_s += now_s[at];
            }
        }
        early_s
            .into_iter()
            .zip(takes_s)
            .enumerate()
            .filter(|(at, _)| self.stage(*at) != StageId::DATA)
            .map(|(_, (early_s, takes_s))| Growth::of(vec![early_s], vec![takes_s]))
            .collect()
    }

    /// By how much a rank's steps are shorter than those of others.
    fn quicker_s(&self, rank: usize, others: &[usize]) -> Vec<f64> {
        let total_s = |row: &[f64], rank: usize| -> f64 {
            row.iter().skip(rank).step_by(self.block.ranks).sum()
        };
        let quicker_s = self.block.rows().map(|(_, row)| {
            let mut others_s: Vec<f64> = others.iter().map(|rank| total_s(row, *rank)).collect();
            median(&mut others_s).unwrap_or(0.0) - total_s(row, rank)
        });
        quicker_s.collect()
    }

    /// Whether steps that are shorter by so much get a rank ahead of the others: most of them, and all
    /// together.
    fn gets_ahead(&self, quicker_s: &[f64]) -> bool {
        let rows = quicker_s.len().max(1) as f64;
        let usual_s = median(&mut quicker_s.to_vec()).unwrap_or(0.0);
        let mut scatter_s: Vec<f64> = quicker_s.iter().map(|it| (it - usual_s).abs()).collect();
        let error_s = MEDIAN_ERROR * median(&mut scatter_s).unwrap_or(0.0) / rows.sqrt();
        let least_s = QUICKER_SHARE * self.mean_s.iter().sum::<f64>() / self.block.ranks as f64;
        let mean_s = quicker_s.iter().sum::<f64>() / rows;
        // The median alone overlooks rare long steps, and one of them makes the mean.
        usual_s > least_s.max(SURE_ERRORS * error_s) && mean_s > least_s
    }

    /// How much later than the others' each rank's step is for a fault, in seconds.
    fn lateness_s(&self, fault: &Fault) -> Vec<f64> {
        let ranks = self.block.ranks;
        let mut own_s = vec![0.0; ranks];
        for at in self.places().filter(|at| fault.is_in(self.stage(*at))) {
            (0..ranks).for_each(|rank| own_s[rank] += self.mean_s(at, RankColumn(rank)));
        }
        let beside_s = beside_others(&own_s).into_iter();
        beside_s.map(|late_s| late_s.max(0.0)).collect()
    }

    /// How long a step holds a rank up that is not late, beside one that nothing holds up.
    fn held_s(&self, rank: usize, free: usize, stages: impl Fn(StageId) -> bool) -> f64 {
        if is_free(&self.growths(rank)) {
            return 0.0;
        }
        // Its device waits for the late one once a step, and its host in one segment, behind a full queue.
        self.places()
            .filter(|at| !stages(self.stage(*at)))
            .map(|at| self.mean_s(at, RankColumn(rank)) - self.mean_s(at, RankColumn(free)))
            .fold(0.0, f64::max)
    }
}

/// Whether nothing holds a rank up: it waits for nobody.
fn is_free(growths: &[Growth]) -> bool {
    let mut growths = growths.iter();
    // Work that does not vary shows nothing: then a rank is not known to be free.
    growths.all(|growth| growth.varies_by(VARIES_S) && !growth.is_possible())
}

/// Charges late ranks what they hold up the others, if one of them is seen to set the pace of the job,
/// and nothing if none does.
///
/// # Source
/// Ours: docs/math/meetings.md.
pub(crate) fn charge_queued(
    faults: &mut Vec<Fault>,
    window: &Window,
    found: &WindowFrontier,
    settings: &IncidentSettings,
) {
    let Some(cycle) = Cycle::of_window(window) else {
        return;
    };
    let rows = found.steps.len();
    let is_steady =
        |fault: &Fault| fault.kind == FaultKind::LateRanks && is_steady(fault.strikes.len(), rows);
    let steady: Vec<&Fault> = faults.iter().filter(|fault| is_steady(fault)).collect();
    let late_s: Vec<Vec<f64>> = steady
        .iter()
        .map(|fault| {
            let is_its = |rank: usize| fault.ranks.contains(&window.ranks[rank]);
            let late_s = cycle.lateness_s(fault).into_iter().enumerate();
            late_s
                .map(|(rank, late_s)| if is_its(rank) { late_s } else { 0.0 })
                .collect()
        })
        .collect();
    // What all of some faults make a rank later by.
    let load_s = |rank: usize, fixed: &[usize]| -> f64 {
        let left = (0..late_s.len()).filter(|at| !fixed.contains(at));
        left.map(|at| late_s[at][rank]).sum()
    };
    let ranks = 0..window.ranks.len();
    let (late, punctual): (Vec<usize>, Vec<usize>) =
        ranks.partition(|rank| load_s(*rank, &[]) > 0.0);
    let pace: Vec<Option<bool>> = late
        .iter()
        .map(|rank| cycle.sets_the_pace(*rank, &punctual))
        .collect();
    let paced = late
        .iter()
        .zip(&pace)
        .filter(|(_, pace)| **pace == Some(true));
    let paced = paced.map(|(rank, _)| *rank);
    let Some(latest) = paced.max_by(|a, b| load_s(*a, &[]).total_cmp(&load_s(*b, &[]))) else {
        // Of a late rank that cannot be judged nobody knows that it costs nothing: the replay's
        // costs stay.
        let all_absorbed = pace.iter().all(|pace| *pace == Some(false));
        if !late.is_empty() && all_absorbed && !steady.iter().any(|fault| fault.launches()) {
            recharge(faults, is_steady, found, settings, |_| 0.0);
        }
        return;
    };
    let faults_late = steady.iter().zip(&late_s);
    let its: Vec<&Fault> = faults_late
        .filter(|(_, late_s)| late_s[latest] > 0.0)
        .map(|(fault, _)| *fault)
        .collect();
    let is_its = |stage: StageId| its.iter().any(|fault| fault.is_in(stage));
    let mut held_s: Vec<f64> = punctual
        .iter()
        .map(|rank| cycle.held_s(*rank, latest, is_its))
        .collect();
    // If all ranks are late, nobody shows how long one is held up.
    let Some(held_s) = median(&mut held_s) else {
        return;
    };
    let most_s = load_s(latest, &[]);
    // The host that sets the pace takes all of a step for its own work: without what it is late by it
    // takes what the others do. Devices take what is left of a step in which nobody waits.
    let of_step_s = |fixed: &[usize]| {
        let latest_s = late
            .iter()
            .map(|rank| load_s(*rank, fixed))
            .fold(0.0, f64::max);
        (most_s - latest_s).min(held_s).max(0.0)
    };
    recharge(faults, is_steady, found, settings, |fixed| {
        rows as f64 * of_step_s(fixed)
    });
}

#[cfg(test)]
mod tests {
    use model::MarkKind;

    use super::*;
    use crate::testkit::{block, faults_of};

    const STEPS: usize = 50;

    /// Steps of four ranks, of which rank 2 is 60 ms late in its loader. Hosts that a full queue holds
    /// up in their forward pass leave it when `freed_s` says, by the step and by when rank 2 would if
    /// nothing held it up. What they launch in the optimizer takes them 15 ms more than rank 2.
    fn window(freed_s: impl Fn(usize, f64) -> f64) -> Window {
        let segments = [
            (StageId::DATA, MarkKind::DataEnd),
            (StageId::FORWARD, MarkKind::BackwardBegin),
            (StageId::OPTIMIZER, MarkKind::OptimizerEnd),
            (StageId::CALLBACKS, MarkKind::DataBegin),
        ];
        let mut now_s = [0.0; 4];
        let mut durations_s = vec![0.0; STEPS * 16];
        // Xorshift: what looks random must be independent from segment to segment.
        let mut random = 88_172_645_463_325_252_u64;
        let mut took = |usual_s: f64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            usual_s + (random % 1000) as f64 * 2e-7
        };
        for step in 0..STEPS {
            // Rank 2 first: the others wait for it.
            let mut last_s = 0.0;
            for rank in [2, 0, 1, 3] {
                let is_late = rank == 2;
                let data_s = took(if is_late { 0.062 } else { 0.002 });
                let own_s = data_s + took(0.006);
                if is_late {
                    last_s = freed_s(step, now_s[rank] + own_s).max(now_s[rank] + own_s);
                }
                let forward_s = (last_s - now_s[rank] - data_s).max(own_s - data_s);
                let optimizer_s = took(if is_late { 0.001 } else { 0.016 });
                let callback_s = took(0.001);
                let row = [data_s, forward_s, optimizer_s, callback_s];
                for (at, seconds) in row.into_iter().enumerate() {
                    durations_s[step * 16 + at * 4 + rank] = seconds;
                    now_s[rank] += seconds;
                }
            }
        }
        Window {
            runs_ahead: true,
            ..block(&segments, 4, STEPS as u64, durations_s).into()
        }
    }

    /// What faults cost a step, in seconds.
    fn charged_s(window: &Window) -> f64 {
        let faults = faults_of(window, |faults, found, settings| {
            assert_eq!(faults[0].ranks, [2]);
            charge_queued(faults, window, found, settings);
        });
        faults.iter().map(|fault| fault.cost_s).sum::<f64>() / STEPS as f64
    }

    #[test]
    fn who_sets_the_pace_costs_what_it_holds_up_the_others() {
        // A step takes 70 ms, of which the others are busy for 25.
        let cost_s = charged_s(&window(|_, own_s| own_s));
        assert!((cost_s - 0.045).abs() < 1e-3, "{cost_s}");
    }

    #[test]
    fn what_a_full_queue_holds_up_as_well_costs_nothing() {
        // The device of rank 2 takes 80 ms for a step.
        let freed_s =
            |step: usize, _: f64| (step + 1) as f64 * 0.080 + (step * 104_729 % 17) as f64 * 5e-6;
        assert_eq!(charged_s(&window(freed_s)), 0.0);
    }
}
