use std::collections::VecDeque;

use model::threshold;
use serde::{Deserialize, Serialize};

/// With what the mean of the last iterations is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortest {
    /// The smallest such mean so far.
    #[default]
    Mean,
    /// The shortest of the same iterations, as published: any jitter of 2 % fires it.
    Min,
}

/// When iterations are said to have become slower; the `[trigger]` table of the settings file.
///
/// # Source
/// PerfTracker (2025) for recent, slow_ratio and blocked_ratio; the others are ours
/// (docs/math/pattern.md).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TriggerSettings {
    /// Iterations whose mean is looked at.
    pub recent: usize,
    /// Mean of these over the shortest from which the job has become slower.
    #[serde(deserialize_with = "threshold")]
    pub slow_ratio: f64,
    /// Pause, as a multiple of the mean iteration, from which the job is blocked.
    #[serde(deserialize_with = "threshold")]
    pub blocked_ratio: f64,
    /// What the mean is compared with.
    pub shortest: Shortest,
    /// Seconds for which it is silent once it has fired.
    #[serde(deserialize_with = "threshold")]
    pub cool_down_s: f64,
}

impl Default for TriggerSettings {
    fn default() -> Self {
        Self {
            recent: 50,
            slow_ratio: 1.05,
            blocked_ratio: 5.0,
            shortest: Shortest::Mean,
            cool_down_s: 600.0,
        }
    }
}

/// Notices that a loop has become slower than it was.
///
/// # Units
/// Seconds throughout; times since any fixed moment.
/// # Complexity
/// O(`recent`) an iteration.
/// # Source
/// PerfTracker (2025), docs/math/pattern.md.
#[derive(Clone, Debug, Default)]
pub struct Trigger {
    settings: TriggerSettings,
    recent: VecDeque<f64>,
    shortest_s: Option<f64>,
    fired_at_s: Option<f64>,
}

impl Trigger {
    /// A trigger that has seen nothing.
    pub fn new(settings: TriggerSettings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Takes an iteration that ended at `now_s`; says whether the loop has become slower.
    pub fn iteration(&mut self, duration_s: f64, now_s: f64) -> bool {
        self.recent.push_back(duration_s);
        if self.recent.len() > self.settings.recent {
            self.recent.pop_front();
        }
        let Some(mean_s) = self.mean_s().filter(|_| self.is_full()) else {
            return false;
        };
        let shortest_s = match self.settings.shortest {
            Shortest::Mean => self.shortest_s.map_or(mean_s, |known| known.min(mean_s)),
            Shortest::Min => self.recent.iter().copied().fold(f64::INFINITY, f64::min),
        };
        self.shortest_s = Some(shortest_s);
        // Only now: what is shortest is learnt while it is silent, too.
        let cools = self
            .fired_at_s
            .is_some_and(|fired_at_s| now_s - fired_at_s < self.settings.cool_down_s);
        if !self.is_slow() || cools {
            return false;
        }
        self.fired_at_s = Some(now_s);
        true
    }

    /// Whether its last iterations are slower than it was.
    pub fn is_slow(&self) -> bool {
        let mean_s = self.mean_s().filter(|_| self.is_full());
        mean_s
            .zip(self.shortest_s)
            .is_some_and(|(mean_s, shortest_s)| mean_s > self.settings.slow_ratio * shortest_s)
    }

    /// Whether a loop of which nothing was heard for `quiet_s` is blocked.
    pub fn is_blocked(&self, quiet_s: f64) -> bool {
        // The mean of what there is: a loop may block before it has made as many as are looked
        // at.
        let limit_s = self
            .mean_s()
            .map(|mean_s| self.settings.blocked_ratio * mean_s);
        limit_s.is_some_and(|limit_s| quiet_s >= limit_s)
    }

    /// Forgets how long iterations took: another loop runs.
    pub fn relearn(&mut self) {
        // When it fired stays known: another loop is no reason to fire again at once.
        self.recent.clear();
        self.shortest_s = None;
    }

    fn is_full(&self) -> bool {
        // The settings may say 0, and there is no mean of none.
        self.recent.len() >= self.settings.recent.max(1)
    }

    fn mean_s(&self) -> Option<f64> {
        let count = self.recent.len() as f64;
        // Summed anew: a running sum would gather the rounding of millions of iterations.
        (count > 0.0).then(|| self.recent.iter().sum::<f64>() / count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trigger(shortest: Shortest) -> Trigger {
        Trigger::new(TriggerSettings {
            shortest,
            ..TriggerSettings::default()
        })
    }

    /// Iterations until the trigger fires.
    fn fires(trigger: &mut Trigger, durations: impl Iterator<Item = f64>) -> Option<usize> {
        let mut now_s = 0.0;
        for (at, duration_s) in durations.enumerate() {
            now_s += duration_s;
            if trigger.iteration(duration_s, now_s) {
                return Some(at + 1);
            }
        }
        None
    }

    /// Durations with a coefficient of variation, near normal: the sum of twelve uniform draws.
    fn jitter(seed: u64, cv: f64) -> impl FnMut() -> f64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut uniform = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        move || 1.0 + cv * ((0..12).map(|_| uniform()).sum::<f64>() - 6.0)
    }

    /// docs/math/pattern.md: +20 % on a steady loop fires 13 iterations after its onset.
    #[test]
    fn a_fifth_more_is_noticed_after_thirteen_iterations() {
        for shortest in [Shortest::Mean, Shortest::Min] {
            let mut trigger = trigger(shortest);
            assert_eq!(fires(&mut trigger, std::iter::repeat_n(1.0, 500)), None);
            assert_eq!(fires(&mut trigger, std::iter::repeat_n(1.2, 500)), Some(13));
        }
    }

    #[test]
    fn a_healthy_loop_fires_the_published_rule_and_not_ours() {
        let false_alarms = |shortest, cv| {
            let runs = (0..50).filter(|seed| {
                let mut draw = jitter(*seed, cv);
                let durations = std::iter::repeat_with(&mut draw).take(500);
                fires(&mut trigger(shortest), durations).is_some()
            });
            runs.count()
        };
        assert_eq!(false_alarms(Shortest::Min, 0.05), 50);
        assert_eq!(false_alarms(Shortest::Mean, 0.02), 0);
        assert!(false_alarms(Shortest::Mean, 0.05) <= 5);
    }

    #[test]
    fn six_percent_more_is_noticed_in_spite_of_jitter() {
        let noticed = (0..50).filter(|seed| {
            let mut draw = jitter(*seed, 0.02);
            let before: Vec<f64> = (0..500).map(|_| draw()).collect();
            let after: Vec<f64> = (0..2000).map(|_| 1.06 * draw()).collect();
            fires(
                &mut trigger(Shortest::Mean),
                before.into_iter().chain(after),
            )
            .is_some_and(|at| at > 500)
        });
        assert_eq!(noticed.count(), 50);
    }

    #[test]
    fn it_fires_once_until_it_has_cooled_down() {
        let mut trigger = trigger(Shortest::Mean);
        fires(&mut trigger, std::iter::repeat_n(1.0, 100));
        let fired = (0..1300).filter(|at| trigger.iteration(1.2, 100.0 + f64::from(*at)));
        assert_eq!(fired.count(), 3, "at 13, 613 and 1213 seconds");
        assert!(trigger.is_slow());
        assert_eq!(fires(&mut trigger, std::iter::repeat_n(1.0, 50)), None);
        assert!(!trigger.is_slow(), "it is as fast as it was");
        trigger.relearn();
        assert_eq!(fires(&mut trigger, std::iter::repeat_n(1.2, 100)), None);
    }

    #[test]
    fn a_loop_is_blocked_after_five_iterations_of_silence() {
        let mut trigger = trigger(Shortest::Mean);
        assert!(
            !trigger.is_blocked(1e9),
            "how long its iterations take is not known"
        );
        trigger.iteration(2.0, 0.0);
        assert!(!trigger.is_blocked(9.9) && trigger.is_blocked(10.0));
    }

    proptest! {
        #[test]
        fn a_loop_that_never_slows_down_fires_nothing(
            mut durations in proptest::collection::vec(0.001..100.0f64, 0..300),
        ) {
            durations.sort_by(|a, b| b.total_cmp(a));
            let found = fires(&mut trigger(Shortest::Mean), durations.into_iter());
            prop_assert_eq!(found, None);
        }
    }
}
