use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Parts of a run whose work is kept apart: enough to tell an incident from the rest.
const PARTS: u64 = 64;

/// Seconds that ranks worked in blocks, in up to [`PARTS`] parts of the run of equal length.
///
/// # Properties
/// Memory is bounded by ranks, and nothing is forgotten: longer runs have longer parts.
#[derive(Debug)]
pub(crate) struct OwnWork {
    part_steps: u64,
    ranks: BTreeMap<u32, Vec<f64>>,
}

impl Default for OwnWork {
    fn default() -> Self {
        Self {
            part_steps: 1,
            ranks: BTreeMap::new(),
        }
    }
}

impl OwnWork {
    pub(crate) fn add(&mut self, rank: u32, step: u64, work_s: f64) {
        while step / self.part_steps >= PARTS {
            self.part_steps *= 2;
            // All at once: parts of different ranks must stay of one length.
            for parts in self.ranks.values_mut() {
                *parts = parts.chunks(2).map(|pair| pair.iter().sum()).collect();
            }
        }
        let parts = self.ranks.entry(rank).or_default();
        let at = (step / self.part_steps) as usize;
        parts.resize(parts.len().max(at + 1), 0.0);
        parts[at] += work_s;
    }

    /// Seconds a rank worked in the parts that some of `steps` lie in.
    pub(crate) fn during(&self, rank: u32, steps: &RangeInclusive<u64>) -> f64 {
        self.ranks
            .get(&rank)
            .into_iter()
            .flatten()
            .zip(0..)
            .filter(|(_, part)| {
                let first = part * self.part_steps;
                first <= *steps.end() && *steps.start() < first + self.part_steps
            })
            .map(|(work_s, _)| work_s)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However long the run, no work is lost, and what lies outside is left out by parts.
        #[test]
        fn work_is_kept(steps in proptest::collection::vec(0_u64..100_000, 1..50), first in 0_u64..100_000) {
            let mut work = OwnWork::default();
            for step in &steps {
                work.add(7, *step, 1.0);
            }
            let during = |steps| work.during(7, &steps);
            prop_assert_eq!(during(0..=100_000), steps.len() as f64);
            let since = steps.iter().filter(|step| **step >= first).count() as f64;
            prop_assert!(during(first..=100_000) >= since);
            prop_assert!(during(first..=100_000) <= steps.iter().filter(|step| **step + work.part_steps > first).count() as f64);
            prop_assert_eq!(work.during(8, &(0..=100_000)), 0.0);
        }
    }
}
