use serde::{Deserialize, Serialize};

/// What one rank's process did with cores for a while, as the kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreUsage {
    /// Seconds it was looked at.
    pub lasted_s: f64,
    /// Cores that all its threads kept busy, on the average.
    pub cores: f64,
    /// Standard deviation of that over samples of a tenth of a second.
    pub cores_deviation: f64,
    /// Share of the time in which the thread of its loop stood ready and had no core.
    pub without_core_share: f64,
    /// Share of the periods of its control group in which this had used up its CPU quota.
    #[serde(default)]
    pub throttled_share: f64,
}

impl CoreUsage {
    /// Both, one after the other.
    ///
    /// # Properties
    /// Neither order nor grouping matters, but for rounding.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let lasted_s = self.lasted_s + other.lasted_s;
        if lasted_s <= 0.0 {
            // No time at all: the parts below would be NaN.
            return Self::default();
        }
        let part = other.lasted_s / lasted_s;
        // Variance of both together: that within each, and what their means are apart.
        let apart = other.cores - self.cores;
        let variance = between(
            self.cores_deviation.powi(2),
            other.cores_deviation.powi(2),
            part,
        ) + apart * apart * part * (1.0 - part);
        Self {
            lasted_s,
            cores: between(self.cores, other.cores, part),
            cores_deviation: variance.sqrt(),
            without_core_share: between(self.without_core_share, other.without_core_share, part),
            throttled_share: between(self.throttled_share, other.throttled_share, part),
        }
    }

    /// Whether a host may have sent such numbers.
    pub fn is_sound(&self) -> bool {
        let numbers = [self.lasted_s, self.cores, self.cores_deviation];
        let share = 0.0..=1.0;
        // Far above any host and any run.
        // NaN lies in no range.
        numbers.iter().all(|number| (0.0..1e9).contains(number))
            && share.contains(&self.without_core_share)
            && share.contains(&self.throttled_share)
    }
}

fn between(one: f64, other: f64, part: f64) -> f64 {
    one + (other - one) * part
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(lasted_s: f64, cores: f64) -> CoreUsage {
        let share = cores / 8.0;
        CoreUsage {
            lasted_s,
            cores,
            without_core_share: share,
            throttled_share: share,
            ..CoreUsage::default()
        }
    }

    fn is_near(one: CoreUsage, other: CoreUsage) -> bool {
        let near = |one: f64, other: f64| (one - other).abs() < 1e-6;
        near(one.lasted_s, other.lasted_s)
            && near(one.cores, other.cores)
            && near(one.cores_deviation, other.cores_deviation)
            && near(one.without_core_share, other.without_core_share)
            && near(one.throttled_share, other.throttled_share)
    }

    #[test]
    fn two_equal_halves_have_their_mean_and_its_deviation() {
        let both = sample(1.0, 0.2).and(sample(1.0, 0.6));
        let expected = CoreUsage {
            lasted_s: 2.0,
            cores: 0.4,
            cores_deviation: 0.2,
            without_core_share: 0.05,
            throttled_share: 0.05,
        };
        assert!(is_near(both, expected), "{both:?}");
        assert_eq!(
            CoreUsage::default().and(CoreUsage::default()),
            CoreUsage::default()
        );
    }

    proptest! {
        #[test]
        fn usages_add_up_in_any_order_and_grouping(
            parts in proptest::collection::vec((0.0..10.0, 0.0..8.0), 0..12),
            cut in 0_usize..12,
        ) {
            let parts: Vec<CoreUsage> =
                parts.into_iter().map(|(lasted_s, cores)| sample(lasted_s, cores)).collect();
            let sum = |parts: &mut dyn Iterator<Item = &CoreUsage>| {
                parts.fold(CoreUsage::default(), |sum, part| sum.and(*part))
            };
            let whole = sum(&mut parts.iter());
            prop_assert!(is_near(whole, sum(&mut parts.iter().rev())));
            let (first, second) = parts.split_at(cut.min(parts.len()));
            let grouped = sum(&mut first.iter()).and(sum(&mut second.iter()));
            prop_assert!(is_near(whole, grouped));
            prop_assert!(whole.is_sound());
        }
    }
}
