use crate::{ScheduleSettings, Update};

/// What each block usually takes.
///
/// # Shape
/// One value for each node of a [`Graph`](crate::Graph); replicas of a pipeline share them.
/// # Source
/// MegaTrace (2026); its three published rules and ours are [`Update`]; docs/math/schedule.md.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    update: Update,
    alpha: f64,
    excess: f64,
    means_s: Vec<f64>,
    counts: Vec<u32>,
}

impl Expectation {
    /// Nothing is expected yet of so many nodes.
    pub(crate) fn new(nodes: usize, settings: &ScheduleSettings) -> Self {
        Self {
            update: settings.update,
            alpha: settings.update_alpha,
            excess: settings.block_excess,
            means_s: vec![0.0; nodes],
            counts: vec![0; nodes],
        }
    }

    /// What a node usually takes, `None` before it was seen.
    pub(crate) fn of(&self, node: usize) -> Option<f64> {
        (self.counts[node] > 0).then_some(self.means_s[node])
    }

    /// Whether a node takes too long.
    pub(crate) fn is_slow(&self, node: usize, duration_s: f64) -> bool {
        self.of(node)
            .is_some_and(|usual_s| duration_s > usual_s * (1.0 + self.excess))
    }

    /// Takes what blocks took, of iterations that passed the performance gate or not. Blocks
    /// that were not seen are not finite.
    pub(crate) fn learn(&mut self, durations_s: &[f64], passed_gate: bool) {
        for (node, duration_s) in durations_s.iter().copied().enumerate() {
            if duration_s.is_finite() && self.believes(node, duration_s, passed_gate) {
                self.counts[node] += 1;
                // With a weight of 1 the mean is the last value.
                let weight = if self.update == Update::Last {
                    1.0
                } else {
                    1.0 / f64::from(self.counts[node])
                };
                self.means_s[node] += (duration_s - self.means_s[node]) * weight;
            }
        }
    }

    fn believes(&self, node: usize, duration_s: f64, passed_gate: bool) -> bool {
        let Some(usual_s) = self.of(node) else {
            // The published rules take what comes first, slow or not.
            return passed_gate || self.update != Update::PassedGate;
        };
        match self.update {
            Update::PassedGate => passed_gate && !self.is_slow(node, duration_s),
            Update::AllUnflagged => !self.is_slow(node, duration_s),
            Update::AlphaMean | Update::Last => {
                (duration_s - usual_s).abs() <= usual_s * self.alpha
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(update: Update, seen: &[(f64, bool)]) -> f64 {
        let settings = ScheduleSettings {
            update,
            ..ScheduleSettings::default()
        };
        let mut expectation = Expectation::new(1, &settings);
        for (duration_s, passed_gate) in seen {
            expectation.learn(&[*duration_s], *passed_gate);
        }
        expectation.of(0).unwrap()
    }

    #[test]
    fn each_rule_believes_what_it_says() {
        let seen = [
            (1.0, true),
            (1.04, true),
            (1.2, true),
            (1.3, false),
            (9.0, false),
        ];
        assert!((after(Update::PassedGate, &seen) - (1.0 + 1.04 + 1.2) / 3.0).abs() < 1e-12);
        assert!((after(Update::AlphaMean, &seen) - 1.02).abs() < 1e-12);
        assert!((after(Update::Last, &seen) - 1.04).abs() < 1e-12);
        let all = (1.0 + 1.04 + 1.2 + 1.3) / 4.0;
        assert!((after(Update::AllUnflagged, &seen) - all).abs() < 1e-12);
        // What was seen first in a slow iteration only is not known to be usual.
        assert!((after(Update::PassedGate, &[(9.0, false), (1.0, true)]) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn nothing_is_slow_before_anything_was_seen() {
        let expectation = Expectation::new(1, &ScheduleSettings::default());
        assert!(!expectation.is_slow(0, 1e9));
    }
}
