use std::ops::RangeInclusive;

/// Parts of a run whose work is kept apart: enough to tell an incident from the rest.
const PARTS: u64 = 64;

/// The parts of a run, of equal length and the same for all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunParts {
    steps: u64,
}

impl Default for RunParts {
    fn default() -> Self {
        Self { steps: 1 }
    }
}

impl RunParts {
    /// Whether a step lies in them. Where one does not they are to be [doubled](Self::double).
    pub(crate) fn have(self, step: u64) -> bool {
        step / self.steps < PARTS
    }

    /// How many steps up to `last` the parts have that some of `steps` lie in.
    pub(crate) fn steps_around(self, steps: &RangeInclusive<u64>, last: u64) -> u64 {
        let [first, end] = [steps.start(), steps.end()].map(|step| step / self.steps);
        let end = end.saturating_add(1).saturating_mul(self.steps);
        end.min(last.saturating_add(1))
            .saturating_sub(first * self.steps)
    }

    /// Makes them twice as long; [`OwnWork::join`] does so with what is kept of each rank.
    pub(crate) fn double(&mut self) {
        self.steps *= 2;
    }
}

/// Seconds that a rank worked in blocks, in each of a run's parts.
///
/// # Properties
/// Memory is bounded, and nothing is forgotten: longer runs have longer parts.
#[derive(Debug, Default)]
pub(crate) struct OwnWork(Vec<f64>);

impl OwnWork {
    pub(crate) fn add(&mut self, parts: RunParts, step: u64, work_s: f64) {
        let at = (step / parts.steps) as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0.0);
        }
        self.0[at] += work_s;
    }

    /// Puts each two parts together.
    pub(crate) fn join(&mut self) {
        self.0 = self.0.chunks(2).map(|pair| pair.iter().sum()).collect();
    }

    /// Seconds worked in the parts that some of `steps` lie in.
    pub(crate) fn during(&self, parts: RunParts, steps: &RangeInclusive<u64>) -> f64 {
        let worked = self.0.iter().zip(0..);
        worked
            .filter(|(_, part)| {
                let first = part * parts.steps;
                first <= *steps.end() && *steps.start() < first + parts.steps
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
        #[test]
        fn the_steps_of_parts_are_those_whose_work_counts(
            last in 0_u64..100_000,
            first in 0_u64..100_000,
            more in 0_u64..100,
        ) {
            let (mut parts, mut work) = (RunParts::default(), OwnWork::default());
            while !parts.have(last) {
                parts.double();
            }
            for step in 0..=last {
                work.add(parts, step, 1.0);
            }
            let steps = first..=first + more;
            prop_assert_eq!(work.during(parts, &steps), parts.steps_around(&steps, last) as f64);
        }

        /// However long the run, no work is lost, and what lies outside is left out by parts.
        #[test]
        fn work_is_kept(steps in proptest::collection::vec(0_u64..100_000, 1..50), first in 0_u64..100_000) {
            let (mut parts, mut work) = (RunParts::default(), OwnWork::default());
            for step in &steps {
                while !parts.have(*step) {
                    parts.double();
                    work.join();
                }
                work.add(parts, *step, 1.0);
            }
            let during = |steps| work.during(parts, &steps);
            prop_assert_eq!(during(0..=100_000), steps.len() as f64);
            let since = steps.iter().filter(|step| **step >= first).count() as f64;
            prop_assert!(during(first..=100_000) >= since);
            prop_assert!(during(first..=100_000) <= steps.iter().filter(|step| **step + parts.steps > first).count() as f64);
        }
    }
}
