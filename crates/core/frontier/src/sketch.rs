use crate::{RowAccount, StageBaseline, account_row};

/// Latest ranks kept at each boundary.
const TOP: usize = 8;
/// Sub-buckets of one power of two: neighbouring values differ by at most 1/64.
const BUCKET_BITS: u32 = 6;
/// Smallest exponent told apart: 2^-30 s, a nanosecond.
const LOWEST_EXPONENT: u64 = 1023 - 30;

/// One step of some ranks, reduced to what merging with other ranks needs.
///
/// A host reduces its ranks, a collector merges hosts, in any order and grouping.
/// # Properties
/// Merging the sketches of any partition of the ranks equals the sketch of all ranks, bit
/// for bit. Frontiers, advances, leaders, gaps and relieved makespans are exact, tie sets
/// are exact up to [`BoundarySketch::tie_set`]'s limit, the median prefix is within 1/128 of
/// its value (docs/merging.md).
/// # Source
/// Ours; the frontier is a maximum, which is what makes it possible.
#[derive(Clone, Debug, PartialEq)]
pub struct Sketch {
    ranks: u64,
    boundaries: Vec<BoundarySketch>,
    /// Makespan if a stage had taken its baseline on every rank, a value a stage.
    relieved_s: Vec<f64>,
}

/// One boundary of a [`Sketch`].
#[derive(Clone, Debug, PartialEq)]
pub struct BoundarySketch {
    /// Prefix and rank of the latest, latest first, equal prefixes by rank.
    latest: Vec<(f64, u32)>,
    prefixes: Histogram,
}

/// Why two sketches cannot be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SketchError {
    /// They are of steps with different boundaries or stages.
    #[error("sketches have {left} and {right} boundaries or stages")]
    Shape {
        /// Of the one.
        left: usize,
        /// Of the other.
        right: usize,
    },
}

impl Sketch {
    /// Reduces one step of the ranks `ids`.
    ///
    /// Hosts that are to be merged must use the same baseline: a reference, or the cohort
    /// medians of the window before.
    /// # Shape
    /// `row[boundary][rank]`; `slots[boundary]` is the boundary's stage in `baseline`.
    /// # Panics
    /// If `row` is not as long as `slots` times `ids`.
    pub fn of_row(row: &[f64], ids: &[u32], slots: &[usize], baseline: &StageBaseline) -> Self {
        let mut account = RowAccount::default();
        account_row(row, ids.len(), slots, Some(baseline), &mut account);
        let mut prefixes = vec![0.0; ids.len()];
        let boundaries = row.chunks_exact(ids.len().max(1)).map(|durations| {
            for (prefix, duration) in prefixes.iter_mut().zip(durations) {
                *prefix += duration;
            }
            BoundarySketch::of_prefixes(&prefixes, ids)
        });
        Self {
            ranks: ids.len() as u64,
            boundaries: boundaries.collect(),
            relieved_s: account.relieved_s,
        }
    }

    /// Takes in the ranks of another sketch of the same step.
    ///
    /// # Errors
    /// [`SketchError::Shape`] if the steps do not have the same boundaries and stages.
    pub fn merge(&mut self, other: &Self) -> Result<(), SketchError> {
        for (left, right) in [
            (self.boundaries.len(), other.boundaries.len()),
            (self.relieved_s.len(), other.relieved_s.len()),
        ] {
            if left != right {
                return Err(SketchError::Shape { left, right });
            }
        }
        self.ranks += other.ranks;
        for (mine, theirs) in self.boundaries.iter_mut().zip(&other.boundaries) {
            mine.merge(theirs);
        }
        for (mine, theirs) in self.relieved_s.iter_mut().zip(&other.relieved_s) {
            // Maxima over ranks, as frontiers are: the larger is that of both.
            *mine = mine.max(*theirs);
        }
        Ok(())
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u64 {
        self.ranks
    }

    /// The boundaries, in time order.
    pub fn boundaries(&self) -> &[BoundarySketch] {
        &self.boundaries
    }

    /// Exposed seconds of each segment. Exact.
    pub fn advances_s(&self) -> Vec<f64> {
        let mut advances_s = Vec::with_capacity(self.boundaries.len());
        let mut previous = 0.0;
        for boundary in &self.boundaries {
            let frontier = boundary.frontier_s();
            advances_s.push(frontier - previous);
            previous = frontier;
        }
        advances_s
    }

    /// Exposed makespan, in seconds. Exact.
    pub fn makespan_s(&self) -> f64 {
        self.boundaries
            .last()
            .map_or(0.0, BoundarySketch::frontier_s)
    }

    /// Seconds of direct-exposure gain of each stage. Exact.
    pub fn gains_s(&self) -> Vec<f64> {
        self.relieved_s
            .iter()
            .map(|relieved| self.makespan_s() - relieved)
            .collect()
    }
}

impl BoundarySketch {
    fn of_prefixes(prefixes: &[f64], ids: &[u32]) -> Self {
        let mut latest: Vec<(f64, u32)> =
            prefixes.iter().copied().zip(ids.iter().copied()).collect();
        if latest.len() > TOP {
            // Ties are ordered by rank, so that it does not matter who was merged first.
            latest.select_nth_unstable_by(TOP, later_first);
            latest.truncate(TOP);
        }
        latest.sort_by(later_first);
        Self {
            latest,
            prefixes: prefixes.iter().copied().collect(),
        }
    }

    fn merge(&mut self, other: &Self) {
        // The latest of all are among the latest of each, so truncating loses none of them.
        self.latest.extend(&other.latest);
        self.latest.sort_by(later_first);
        self.latest.truncate(TOP);
        self.prefixes.merge(&other.prefixes);
    }

    /// The largest prefix, in seconds. Exact.
    pub fn frontier_s(&self) -> f64 {
        self.latest.first().map_or(0.0, |(prefix, _)| *prefix)
    }

    /// A rank with the largest prefix, the lowest of several. Exact.
    pub fn leader(&self) -> Option<u32> {
        self.latest.first().map(|(_, rank)| *rank)
    }

    /// Lead of the latest rank over the next, in seconds. Exact; `None` for one rank.
    pub fn gap_s(&self) -> Option<f64> {
        let [first, second, ..] = self.latest.as_slice() else {
            return None;
        };
        Some(first.0 - second.0)
    }

    /// Ranks within `eps_s` of the frontier, and whether these are all of them.
    ///
    /// Exact while there are fewer than eight; beyond that the eight latest are named.
    pub fn tie_set(&self, eps_s: f64) -> (Vec<u32>, bool) {
        let frontier = self.frontier_s();
        let ranks: Vec<u32> = self
            .latest
            .iter()
            .filter(|(prefix, _)| frontier - prefix <= eps_s)
            .map(|(_, rank)| *rank)
            .collect();
        // More may be as late as the last that was kept.
        let whole = ranks.len() < TOP;
        (ranks, whole)
    }

    /// Distance from the frontier to the median rank, in seconds.
    ///
    /// The median prefix is within 1/128 of its value, so the lag is within 1/128 of the
    /// median prefix.
    pub fn lag_s(&self) -> f64 {
        self.frontier_s() - self.prefixes.median().unwrap_or(0.0)
    }
}

fn later_first(a: &(f64, u32), b: &(f64, u32)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// How many values lie in each of many narrow, fixed buckets: a median that merges.
///
/// # Properties
/// Merging is exact. The median is within 1/128 of the true one, relative, for values of a
/// nanosecond and more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Bucket and count, by bucket.
    counts: Vec<(u16, u64)>,
}

impl FromIterator<f64> for Histogram {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut buckets: Vec<u16> = values.into_iter().map(bucket_of).collect();
        buckets.sort_unstable();
        let mut counts: Vec<(u16, u64)> = Vec::new();
        for bucket in buckets {
            match counts.last_mut() {
                Some((last, count)) if *last == bucket => *count += 1,
                _ => counts.push((bucket, 1)),
            }
        }
        Self { counts }
    }
}

impl Histogram {
    /// Takes in the values of another.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in &other.counts {
            match self
                .counts
                .binary_search_by_key(bucket, |(known, _)| *known)
            {
                Ok(at) => self.counts[at].1 += count,
                Err(at) => self.counts.insert(at, (*bucket, *count)),
            }
        }
    }

    /// The median, to the middle of its bucket; `None` if there is no value.
    pub fn median(&self) -> Option<f64> {
        let total: u64 = self.counts.iter().map(|(_, count)| count).sum();
        let upper = self.value_at(total / 2)?;
        let lower = if total.is_multiple_of(2) {
            self.value_at((total / 2).checked_sub(1)?)?
        } else {
            upper
        };
        Some(f64::midpoint(lower, upper))
    }

    /// The value at a place in ascending order, to the middle of its bucket.
    fn value_at(&self, place: u64) -> Option<f64> {
        let mut before = 0;
        let (bucket, _) = self.counts.iter().find(|(_, count)| {
            before += count;
            before > place
        })?;
        Some(middle_of(*bucket))
    }
}

/// Buckets are the leading bits of the number itself: its exponent and six more.
fn bucket_of(value: f64) -> u16 {
    // Bits of numbers that are not negative are ordered as the numbers are.
    let leading = value.max(0.0).to_bits() >> (52 - BUCKET_BITS);
    let lowest = LOWEST_EXPONENT << BUCKET_BITS;
    // Below a nanosecond all are bucket 0; only numbers from 2^993 on would not fit.
    u16::try_from(leading.saturating_sub(lowest)).unwrap_or(u16::MAX)
}

fn middle_of(bucket: u16) -> f64 {
    if bucket == 0 {
        return 0.0;
    }
    let leading = u64::from(bucket) + (LOWEST_EXPONENT << BUCKET_BITS);
    // The highest bit that the bucket leaves open is half of its width.
    f64::from_bits((leading << (52 - BUCKET_BITS)) | (1 << (51 - BUCKET_BITS)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use model::median;

    /// A step of up to 6 boundaries and 60 ranks, and a way to deal the ranks to hosts.
    fn any_step() -> impl Strategy<Value = (usize, Vec<f64>, Vec<usize>)> {
        (1usize..60, 1usize..6).prop_flat_map(|(ranks, boundaries)| {
            let time = prop_oneof![0.0..2.0f64, Just(0.5), Just(0.0)];
            let row = prop::collection::vec(time, ranks * boundaries);
            let hosts = prop::collection::vec(0usize..7, ranks);
            (Just(ranks), row, hosts)
        })
    }

    fn sketch(row: &[f64], ranks: usize, of: &[usize]) -> Sketch {
        let boundaries = row.len() / ranks;
        let slots: Vec<usize> = (0..boundaries).map(|at| at % 3).collect();
        let baseline = StageBaseline::uniform(vec![0.3, 0.5, 0.7]);
        let ids: Vec<u32> = of.iter().map(|rank| *rank as u32).collect();
        let part: Vec<f64> = row
            .chunks(ranks)
            .flat_map(|durations| of.iter().map(|rank| durations[*rank]))
            .collect();
        Sketch::of_row(&part, &ids, &slots, &baseline)
    }

    proptest! {
        #[test]
        fn merging_any_partition_equals_the_dense_sketch((ranks, row, hosts) in any_step()) {
            let everyone: Vec<usize> = (0..ranks).collect();
            let dense = sketch(&row, ranks, &everyone);
            let mut merged: Option<Sketch> = None;
            for host in (0..7).rev() {
                let of: Vec<usize> =
                    everyone.iter().copied().filter(|rank| hosts[*rank] == host).collect();
                if of.is_empty() {
                    continue;
                }
                let part = sketch(&row, ranks, &of);
                match &mut merged {
                    None => merged = Some(part),
                    Some(merged) => merged.merge(&part).unwrap(),
                }
            }
            prop_assert_eq!(merged.unwrap(), dense);
        }

        #[test]
        fn the_dense_answers_come_out_again((ranks, row, _) in any_step()) {
            let everyone: Vec<usize> = (0..ranks).collect();
            let dense = sketch(&row, ranks, &everyone);
            let slots: Vec<usize> = (0..row.len() / ranks).map(|at| at % 3).collect();
            let baseline = StageBaseline::uniform(vec![0.3, 0.5, 0.7]);
            let mut account = RowAccount::default();
            account_row(&row, ranks, &slots, Some(&baseline), &mut account);
            let advances: Vec<f64> = account.fronts.iter().map(|f| f.advance_s).collect();
            prop_assert_eq!(dense.advances_s(), advances);
            prop_assert_eq!(&dense.relieved_s, &account.relieved_s);
            let mut prefixes = vec![0.0; ranks];
            for (at, durations) in row.chunks(ranks).enumerate() {
                for (prefix, duration) in prefixes.iter_mut().zip(durations) {
                    *prefix += duration;
                }
                let boundary = &dense.boundaries()[at];
                let front = account.fronts[at];
                prop_assert_eq!(boundary.leader(), Some(front.leader as u32));
                prop_assert_eq!(boundary.gap_s().unwrap_or(f64::INFINITY), front.gap_s());
                let true_median = median(&mut prefixes.clone()).unwrap();
                let error = (front.frontier_s - true_median - boundary.lag_s()).abs();
                prop_assert!(error <= true_median / 128.0 + 1e-9, "off by {}", error);
                let (ties, whole) = boundary.tie_set(0.01);
                let near: Vec<u32> = (0..ranks as u32)
                    .filter(|rank| front.frontier_s - prefixes[*rank as usize] <= 0.01)
                    .collect();
                if whole {
                    let mut ties = ties;
                    ties.sort_unstable();
                    prop_assert_eq!(ties, near);
                } else {
                    prop_assert!(near.len() >= TOP);
                    prop_assert!(ties.iter().all(|rank| near.contains(rank)));
                }
            }
        }
    }

    #[test]
    fn steps_of_different_shape_are_not_merged() {
        let mut one = sketch(&[1.0, 1.0], 1, &[0]);
        let other = sketch(&[1.0], 1, &[0]);
        assert_eq!(
            one.merge(&other),
            Err(SketchError::Shape { left: 2, right: 1 })
        );
    }
}
