use std::collections::{BTreeMap, BTreeSet};

use model::{CollectiveOp, SlowCommunicator};

use crate::Arrivals;
use crate::arrival::{MAX_FINDINGS, TimedOperation, median};

/// Operations whose median is one bandwidth. Our choice: logs have no times of day to cut
/// Mycroft's windows of 10 s by.
const WINDOW_OPS: usize = 10;
/// Healthy windows the usual bandwidth is the median of, and the fewest.
///
/// Our choice. A baseline that each healthy window replaces would never see a slow decay.
const BASELINE_WINDOWS: usize = 6;
const MIN_BASELINE_WINDOWS: usize = 3;

impl Arrivals {
    /// Communicators whose bandwidth fell below a part of the usual one, costliest first.
    ///
    /// An operation's bandwidth is its bytes over the shortest time of a rank: what the last
    /// to arrive saw, without its wait for others. Compared by operation and size, of those that
    /// most often the same number of ranks were timed in: without a log, who arrives last may be
    /// missing, and the others waited.
    ///
    /// # Source
    /// Mycroft (2025), throughput drop to below half; that it is compared with the median of the
    /// last healthy windows, and class by class, is ours. Bus bandwidth is this times a
    /// constant of the communicator.
    pub fn slowed(&self) -> Vec<SlowCommunicator> {
        let mut found = Vec::new();
        for ((group, op), operations) in self.comparable() {
            let mut classes: BTreeMap<u32, Vec<(u64, &TimedOperation)>> = BTreeMap::new();
            for (number, operation) in operations {
                if operation.shortest_s() > 0.0 && operation.bytes > 0 {
                    classes
                        .entry(operation.class())
                        .or_default()
                        .push((number, operation));
                }
            }
            for (class, mut operations) in classes {
                let mut timed: BTreeMap<usize, usize> = BTreeMap::new();
                for (_, operation) in &operations {
                    *timed.entry(operation.busy_ns.len()).or_default() += 1;
                }
                let usual = timed
                    .into_iter()
                    .max_by_key(|(ranks, count)| (*count, *ranks));
                let ranks = usual.map_or(0, |(ranks, _)| ranks);
                operations.retain(|(_, operation)| operation.busy_ns.len() == ranks);
                let key = format!("{group}.{}.{class}", op.0);
                found.extend(self.slowed_class(key, (group, op), &operations));
            }
        }
        found.sort_by(|a: &SlowCommunicator, b| b.cost_s.total_cmp(&a.cost_s));
        found.truncate(MAX_FINDINGS);
        found
    }

    fn slowed_class(
        &self,
        key: String,
        (group, op): (u32, CollectiveOp),
        class: &[(u64, &TimedOperation)],
    ) -> Option<SlowCommunicator> {
        let mut healthy: Vec<f64> = Vec::new();
        let (mut slow, mut usual) = (Vec::new(), Vec::new());
        let (mut cost_s, mut time_s, mut first, mut open) = (0.0, 0.0, None, false);
        // A rest of fewer operations scatters more than a window and is left out.
        for window in class.chunks_exact(WINDOW_OPS) {
            let speeds = window
                .iter()
                .map(|(_, op)| op.bytes as f64 / op.shortest_s());
            let now = median(speeds.collect());
            let from = healthy.len().saturating_sub(BASELINE_WINDOWS);
            let baseline = median(healthy[from..].to_vec());
            open = healthy.len() >= MIN_BASELINE_WINDOWS
                && now < self.settings.bandwidth_ratio * baseline;
            if open {
                first = first.or(window.first().map(|(number, _)| *number));
                cost_s += window
                    .iter()
                    .map(|(_, op)| (op.shortest_s() - op.bytes as f64 / baseline).max(0.0))
                    .sum::<f64>();
                slow.push(now);
                usual.push(baseline);
            } else {
                healthy.push(now);
            }
            // The cost is a share of the time since it became slow, however late in the run that
            // was.
            if first.is_some() {
                time_s += window.iter().map(|(_, op)| op.shortest_s()).sum::<f64>();
            }
        }
        let cost_share = if time_s > 0.0 {
            (cost_s / time_s).min(1.0)
        } else {
            0.0
        };
        let ranks: BTreeSet<u32> = class
            .iter()
            .flat_map(|(_, op)| op.busy_ns.keys().copied())
            .collect();
        let first = first.filter(|_| cost_share >= self.settings.share_min)?;
        Some(SlowCommunicator {
            key,
            group: self.name(group),
            ranks: ranks.into_iter().collect(),
            op,
            first,
            bytes_per_s: median(slow),
            usual_bytes_per_s: median(usual),
            cost_s,
            cost_share,
            open,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ArrivalSettings;

    const WORLD: u32 = 1;
    const REDUCE: CollectiveOp = CollectiveOp(3);
    const MS: u64 = 1_000_000;

    fn job() -> Arrivals {
        Arrivals::new(ArrivalSettings::default())
    }

    #[test]
    fn a_communicator_at_a_third_of_its_bandwidth_is_slow() {
        let mut job = job();
        for number in 0..100 {
            for rank in 0..4 {
                let busy_ms = if number < 60 { 2 } else { 6 };
                job.add(rank, (WORLD, REDUCE, number), 8 << 20, busy_ms * MS);
            }
        }
        let slowed = job.slowed();
        assert_eq!(
            (slowed.len(), slowed[0].first, slowed[0].open),
            (1, 60, true)
        );
        assert!((slowed[0].cost_s - 40.0 * 0.004).abs() < 1e-9);
        assert!((slowed[0].usual_bytes_per_s / slowed[0].bytes_per_s - 3.0).abs() < 1e-9);
        assert!(job.late().is_empty());
    }

    #[test]
    fn a_log_that_ends_is_no_drop() {
        let mut job = job();
        for number in 0..100 {
            for rank in 0..4 {
                // Rank 3 comes last each time, and what it was timed in ends first.
                let busy_ms = if rank == 3 { 2 } else { 6 };
                if rank < 3 || number < 60 {
                    job.add(rank, (WORLD, REDUCE, number), 8 << 20, busy_ms * MS);
                }
            }
        }
        assert!(job.slowed().is_empty());
    }

    #[test]
    fn another_mix_of_sizes_is_no_drop() {
        let mut job = job();
        for number in 0..200 {
            let small = number >= 100;
            let (bytes, busy_ms) = if small { (1 << 16, 1) } else { (1 << 26, 4) };
            for rank in 0..2 {
                job.add(rank, (WORLD, REDUCE, number), bytes, busy_ms * MS);
            }
        }
        assert!(job.slowed().is_empty());
    }
}
