use std::ops::Range;

use model::{RankColumn, StageSlot};

use crate::StageBaseline;

/// Ranks handled at a time: their running sums stay in the first-level cache.
const RANK_CHUNK: usize = 1024;
/// Independent maxima kept side by side so that the compiler can use vector registers.
const LANES: usize = 8;

/// One boundary of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Front {
    /// Largest prefix over the ranks, in seconds.
    pub frontier_s: f64,
    /// How far it moved since the previous boundary: the exposed time of this segment.
    pub advance_s: f64,
    /// Second-largest prefix, equal to the frontier for a tie; `-inf` for a single rank.
    pub second_s: f64,
    /// Column of a rank with the largest prefix, the lowest of several.
    pub leader: usize,
}

impl Front {
    const NONE: Self = Self {
        frontier_s: f64::NEG_INFINITY,
        advance_s: 0.0,
        second_s: f64::NEG_INFINITY,
        leader: 0,
    };

    /// Lead of the latest rank over the next one, in seconds.
    pub fn gap_s(&self) -> f64 {
        self.frontier_s - self.second_s
    }
}

/// One step accounted for.
#[derive(Clone, Debug, Default)]
pub struct RowAccount {
    /// One front a boundary.
    pub fronts: Vec<Front>,
    /// Makespan if a stage had taken its baseline on every rank, a value a stage slot;
    /// empty without a baseline.
    pub relieved_s: Vec<f64>,
    scratch: ChunkScratch,
}

impl RowAccount {
    /// Exposed makespan of the step, in seconds.
    pub fn makespan_s(&self) -> f64 {
        self.fronts.last().map_or(0.0, |front| front.frontier_s)
    }
}

/// Accounts one step: frontier, advance, leader and runner-up at each boundary, and the
/// relieved makespans of the direct-exposure gain.
///
/// # Units
/// Seconds.
/// # Shape
/// `row[boundary][rank]`; `slots[boundary]` is the index of the boundary's stage in
/// `baseline`.
/// # Properties
/// Advances are not negative and sum to the makespan (SF-P1); relieved makespans do not
/// exceed it (SF-P8).
/// # Panics
/// If `row` is not as long as `slots` times `ranks`.
/// # Complexity
/// One pass over `row`, no allocation once `account` has grown.
/// # Source
/// StageFrontier (2026), equations 1, 2 and 4; docs/math/frontier.md.
pub fn account_row(
    row: &[f64],
    ranks: usize,
    slots: &[usize],
    baseline: Option<&StageBaseline>,
    account: &mut RowAccount,
) {
    assert_eq!(
        row.len(),
        slots.len() * ranks,
        "a row is boundaries times ranks"
    );
    account.fronts.clear();
    account.fronts.resize(slots.len(), Front::NONE);
    account.relieved_s.clear();
    if let Some(baseline) = baseline {
        account
            .relieved_s
            .resize(baseline.stages(), f64::NEG_INFINITY);
    }
    for first in (0..ranks).step_by(RANK_CHUNK) {
        let chunk = first..ranks.min(first + RANK_CHUNK);
        account_chunk(row, ranks, slots, baseline, chunk, account);
    }
    // Only now: while there are chunks to come a frontier is not yet that of all ranks.
    let mut previous = 0.0;
    for front in &mut account.fronts {
        front.advance_s = front.frontier_s - previous;
        previous = front.frontier_s;
    }
}

/// Working memory of one chunk, written over by the next.
#[derive(Clone, Debug, Default)]
struct ChunkScratch {
    prefixes: Vec<f64>,
    /// `[stage][rank]`: time of the stage so far.
    totals: Vec<f64>,
}

/// The inner half of [`account_row`], for the ranks in `chunk`.
fn account_chunk(
    row: &[f64],
    ranks: usize,
    slots: &[usize],
    baseline: Option<&StageBaseline>,
    chunk: Range<usize>,
    account: &mut RowAccount,
) {
    let RowAccount {
        fronts,
        relieved_s,
        scratch,
    } = account;
    let (first, count) = (chunk.start, chunk.len());
    scratch.prefixes.clear();
    scratch.prefixes.resize(count, 0.0);
    let stages = baseline.map_or(0, StageBaseline::stages);
    scratch.totals.clear();
    scratch.totals.resize(stages * count, 0.0);
    for (boundary, (slot, front)) in slots.iter().zip(fronts).enumerate() {
        let from = boundary * ranks + first;
        let durations = &row[from..from + count];
        let (largest, second) = add_and_find_top2(&mut scratch.prefixes, durations);
        // Strictly: of several ranks with the largest prefix the lowest leads, and chunks ascend.
        if largest > front.frontier_s {
            // Who led the chunks before may be second now.
            front.second_s = second.max(front.frontier_s);
            front.frontier_s = largest;
            // A second pass over the chunk, which is in the cache: an index beside each of the maxima would
            // keep the compiler from using vector registers.
            let place = scratch
                .prefixes
                .iter()
                .position(|prefix| *prefix >= largest);
            front.leader = first + place.unwrap_or(0);
        } else {
            front.second_s = front.second_s.max(largest);
        }
        if baseline.is_some() {
            let totals = &mut scratch.totals[slot * count..(slot + 1) * count];
            for (total, duration) in totals.iter_mut().zip(durations) {
                *total += duration;
            }
        }
    }
    // Behind the last boundary, for totals are of the step: a stage that has several micro-steps is
    // cut to its baseline as a whole (docs/math/frontier.md).
    let Some(baseline) = baseline else { return };
    for (slot, relieved) in relieved_s.iter_mut().enumerate() {
        let totals = &scratch.totals[slot * count..(slot + 1) * count];
        let (slot, first) = (StageSlot(slot), RankColumn(first));
        let largest = baseline.largest_relieved(slot, first, &scratch.prefixes, totals);
        // A maximum of maxima: the relieved makespan of all ranks, whatever the size of a chunk.
        *relieved = relieved.max(largest);
    }
}

/// Adds `durations` to `prefixes` and returns the two largest sums.
fn add_and_find_top2(prefixes: &mut [f64], durations: &[f64]) -> (f64, f64) {
    let mut largest = [f64::NEG_INFINITY; LANES];
    let mut second = [f64::NEG_INFINITY; LANES];
    let mut rows = prefixes
        .chunks_exact_mut(LANES)
        .zip(durations.chunks_exact(LANES));
    for (prefixes, durations) in &mut rows {
        for lane in 0..LANES {
            let prefix = prefixes[lane] + durations[lane];
            prefixes[lane] = prefix;
            // Not `f64::max`: it orders NaN, which costs an instruction more a value.
            let lower = if prefix < largest[lane] {
                prefix
            } else {
                largest[lane]
            };
            second[lane] = if lower > second[lane] {
                lower
            } else {
                second[lane]
            };
            largest[lane] = if prefix > largest[lane] {
                prefix
            } else {
                largest[lane]
            };
        }
    }
    let mut top = (f64::NEG_INFINITY, f64::NEG_INFINITY);
    for (a, b) in largest.into_iter().zip(second) {
        top = merge_top2(top, (a, b));
    }
    // What the lanes leave over, up to seven ranks.
    let rest = prefixes.len() - prefixes.len() % LANES;
    for (prefix, duration) in prefixes[rest..].iter_mut().zip(&durations[rest..]) {
        *prefix += duration;
        top = merge_top2(top, (*prefix, f64::NEG_INFINITY));
    }
    top
}

fn merge_top2(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
    if a.0 >= b.0 {
        (a.0, a.1.max(b.0))
    } else {
        (b.0, b.1.max(a.0))
    }
}

/// The advances of one step, for callers that need nothing else.
///
/// # Shape
/// `row[boundary][rank]`.
pub fn advances(row: &[f64], ranks: usize) -> Vec<f64> {
    let slots = vec![0; row.len() / ranks.max(1)];
    let mut account = RowAccount::default();
    account_row(row, ranks, &slots, None, &mut account);
    account.fronts.iter().map(|front| front.advance_s).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Rows of up to 9 stages and 40 ranks: (ranks, row).
    fn any_row() -> impl Strategy<Value = (usize, Vec<f64>)> {
        (1usize..40, 1usize..9).prop_flat_map(|(ranks, stages)| {
            let cells = prop::collection::vec(0.0..10.0f64, ranks * stages);
            cells.prop_map(move |row| (ranks, row))
        })
    }

    fn naive_prefixes(ranks: usize, row: &[f64]) -> Vec<Vec<f64>> {
        let mut prefixes = vec![0.0; ranks];
        row.chunks(ranks)
            .map(|durations| {
                for (prefix, duration) in prefixes.iter_mut().zip(durations) {
                    *prefix += duration;
                }
                prefixes.clone()
            })
            .collect()
    }

    fn max(values: &[f64]) -> f64 {
        values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    fn makespan(ranks: usize, row: &[f64]) -> f64 {
        max(naive_prefixes(ranks, row).last().unwrap())
    }

    proptest! {
        /// SF-P1.
        #[test]
        fn advances_are_not_negative_and_sum_to_the_makespan((ranks, row) in any_row()) {
            let advances = advances(&row, ranks);
            prop_assert!(advances.iter().all(|advance| *advance >= 0.0));
            let sum: f64 = advances.iter().sum();
            let makespan = makespan(ranks, &row);
            prop_assert!((sum - makespan).abs() <= 1e-12 * makespan.max(1e-300));
        }

        /// SF-P2.
        #[test]
        fn the_slack_form_equals_the_difference_form((ranks, row) in any_row()) {
            let prefixes = naive_prefixes(ranks, &row);
            let mut before = vec![0.0; ranks];
            for (stage, advance) in advances(&row, ranks).into_iter().enumerate() {
                let frontier = max(&before);
                let own = &row[stage * ranks..(stage + 1) * ranks];
                let slack_form = own.iter().zip(&before).map(|(d, p)| d - (frontier - p));
                let slack_form = slack_form.fold(f64::NEG_INFINITY, f64::max);
                prop_assert!((advance - slack_form).abs() < 1e-9);
                before.clone_from(&prefixes[stage]);
            }
        }

        /// SF-P3 and SF-P4.
        #[test]
        fn maxima_and_means_bound_the_makespan((ranks, row) in any_row()) {
            let makespan = makespan(ranks, &row);
            let stages = row.len() / ranks;
            let sum_max: f64 = row.chunks(ranks).map(max).sum();
            let sum_mean = row.iter().sum::<f64>() / ranks as f64;
            let slack = 1e-9;
            prop_assert!(makespan <= sum_max + slack);
            prop_assert!(sum_max <= ranks.min(stages) as f64 * makespan + slack);
            prop_assert!(makespan / ranks as f64 <= sum_mean + slack);
            prop_assert!(sum_mean <= makespan + slack);
        }

        /// SF-P5.
        #[test]
        fn small_errors_stay_small(
            (ranks, row) in any_row(), eps in 0.0..0.1f64, seed in 0u64..1000,
        ) {
            let noisy: Vec<f64> = row.iter().enumerate().map(|(at, duration)| {
                let hash = (seed ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                let error = (hash % 2001) as f64 / 1000.0 - 1.0;
                (duration + error * eps).max(0.0)
            }).collect();
            let pairs = advances(&row, ranks).into_iter().zip(advances(&noisy, ranks));
            for (stage, (before, after)) in pairs.enumerate() {
                let bound = (2 * stage + 1) as f64 * eps;
                prop_assert!((before - after).abs() <= bound + 1e-9);
            }
        }

        /// SF-P6.
        #[test]
        fn order_duplicates_and_units_of_ranks_do_not_matter(
            (ranks, row) in any_row(), turn in 0usize..40, scale in 0.1..10.0f64,
        ) {
            let expected = advances(&row, ranks);
            let turned: Vec<f64> = row.chunks(ranks).flat_map(|durations| {
                let mut durations = durations.to_vec();
                durations.rotate_left(turn % ranks);
                durations
            }).collect();
            prop_assert_eq!(&advances(&turned, ranks), &expected);
            let doubled: Vec<f64> = row.chunks(ranks).flat_map(|durations| {
                let mut durations = durations.to_vec();
                durations.push(durations[turn % ranks]);
                durations
            }).collect();
            prop_assert_eq!(&advances(&doubled, ranks + 1), &expected);
            let scaled: Vec<f64> = row.iter().map(|duration| duration * scale).collect();
            for (a, b) in advances(&scaled, ranks).into_iter().zip(&expected) {
                prop_assert!((a - b * scale).abs() < 1e-9);
            }
        }

        /// SF-P7.
        #[test]
        fn a_rank_that_never_leads_can_be_left_out((ranks, row) in any_row()) {
            let with_idler: Vec<f64> = row.chunks(ranks).flat_map(|durations| {
                let fastest = durations.iter().copied().fold(f64::INFINITY, f64::min);
                durations.iter().copied().chain([fastest * 0.5]).collect::<Vec<_>>()
            }).collect();
            prop_assert_eq!(advances(&with_idler, ranks + 1), advances(&row, ranks));
        }

        /// SF-P8, with stages that return: boundary `i` belongs to stage `i % stages`.
        #[test]
        fn the_gain_is_a_share_that_falls_with_the_baseline(
            (ranks, row) in any_row(), stages in 1usize..4, baseline in 0.0..10.0f64,
            more in 0.0..10.0f64,
        ) {
            let slots: Vec<usize> =
                (0..row.len() / ranks).map(|boundary| boundary % stages).collect();
            let relieved = |seconds: f64| {
                let baseline = StageBaseline::uniform(vec![seconds; stages]);
                let mut account = RowAccount::default();
                account_row(&row, ranks, &slots, Some(&baseline), &mut account);
                account.relieved_s
            };
            let makespan = makespan(ranks, &row);
            let slack = 1e-9;
            let (low, high) = (relieved(baseline), relieved(baseline + more));
            for (stage, (low, high)) in low.into_iter().zip(high).enumerate() {
                prop_assert!(-slack <= low && low <= high + slack && high <= makespan + slack);
                let naive = (0..ranks).map(|rank| {
                    let of = |wanted: bool| -> f64 {
                        let cells = slots.iter().zip(row.iter().skip(rank).step_by(ranks));
                        let cells = cells.filter(|(slot, _)| (**slot == stage) == wanted);
                        cells.map(|(_, duration)| duration).sum()
                    };
                    of(false) + of(true).min(baseline)
                });
                prop_assert!((low - naive.fold(0.0, f64::max)).abs() < slack);
            }
            for untouched in relieved(f64::INFINITY) {
                prop_assert!((untouched - makespan).abs() < slack, "no gain above the stage");
            }
        }

        /// SF-P9.
        #[test]
        fn splitting_a_stage_and_adding_up_changes_nothing(
            (ranks, row) in any_row(), split in 0.0..1.0f64,
        ) {
            let halves: Vec<f64> = row.chunks(ranks).flat_map(|durations| {
                let first = durations.iter().enumerate();
                let first: Vec<f64> = first
                    .map(|(rank, d)| d * (split + rank as f64 * 0.37).fract()).collect();
                let second = durations.iter().zip(&first).map(|(d, f)| d - f);
                let second: Vec<f64> = second.collect();
                [first, second].concat()
            }).collect();
            let parents = advances(&row, ranks);
            let children = advances(&halves, ranks);
            for (parent, pair) in parents.iter().zip(children.chunks(2)) {
                prop_assert!((parent - pair.iter().sum::<f64>()).abs() < 1e-9);
            }
        }

        /// SF-P10.
        #[test]
        fn behind_an_end_barrier_means_keep_the_total((ranks, row) in any_row()) {
            let makespan = makespan(ranks, &row);
            let last = naive_prefixes(ranks, &row).pop().unwrap();
            let mut padded = row.clone();
            padded.extend(last.iter().map(|prefix| makespan - prefix));
            let sum_mean = padded.iter().sum::<f64>() / ranks as f64;
            prop_assert!((sum_mean - makespan).abs() < 1e-9);
        }

        #[test]
        fn leader_and_runner_up_are_those_of_a_full_sort((ranks, row) in any_row()) {
            let slots = vec![0; row.len() / ranks];
            let mut account = RowAccount::default();
            account_row(&row, ranks, &slots, None, &mut account);
            for (front, prefixes) in account.fronts.iter().zip(naive_prefixes(ranks, &row)) {
                let mut sorted = prefixes.clone();
                sorted.sort_by(|a, b| b.total_cmp(a));
                prop_assert_eq!(front.frontier_s, sorted[0]);
                prop_assert_eq!(front.second_s, *sorted.get(1).unwrap_or(&f64::NEG_INFINITY));
                prop_assert_eq!(prefixes[front.leader], sorted[0]);
            }
        }
    }

    #[test]
    fn the_bounds_are_tight_where_the_paper_says_so() {
        let three_cells = [
            1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
        ];
        let sum_max: f64 = three_cells.chunks(3).map(max).sum();
        assert!((sum_max - 3.0 * makespan(3, &three_cells)).abs() < 1e-12);
        let one_rank = [1.0, 0.0, 0.0, 2.0, 0.0, 0.0];
        let sum_mean = one_rank.iter().sum::<f64>() / 3.0;
        assert!((sum_mean - makespan(3, &one_rank) / 3.0).abs() < 1e-12);
    }

    #[test]
    fn the_motivating_pattern_charges_the_late_data_wait() {
        let row = [1.0, 1.0, 5.0, 1.0, 1.0, 1.0, 6.0, 6.0, 2.0];
        assert_eq!(advances(&row, 3), [5.0, 1.0, 2.0]);
    }

    #[test]
    fn more_ranks_than_one_chunk_give_the_same_answer() {
        let ranks = 3 * RANK_CHUNK + 17;
        let row: Vec<f64> = (0..3 * ranks).map(|at| (at * 7919 % 1000) as f64).collect();
        let prefixes = naive_prefixes(ranks, &row);
        let mut before = 0.0;
        for (advance, prefixes) in advances(&row, ranks).into_iter().zip(prefixes) {
            assert!((advance - (max(&prefixes) - before)).abs() < 1e-12);
            before = max(&prefixes);
        }
        // The largest stands in the first chunk.
        let mut late = vec![1.0; ranks];
        late[3] = 9.0;
        let baseline = StageBaseline::uniform(vec![4.0]);
        let mut account = RowAccount::default();
        account_row(&late, ranks, &[0], Some(&baseline), &mut account);
        assert_eq!(account.relieved_s, [4.0]);
    }
}
