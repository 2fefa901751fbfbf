use model::Pattern;

/// Patterns of one function on all workers that ran it, a column a dimension.
///
/// # Invariants
/// All columns are equally long.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Columns {
    /// The workers.
    pub workers: Vec<u32>,
    /// Beta, mu and sigma.
    pub values: [Vec<f32>; 3],
    /// Whether mu and sigma were measured there.
    pub measured: Vec<bool>,
}

impl Columns {
    /// Adds a worker.
    pub fn push(&mut self, worker: u32, pattern: &Pattern) {
        self.workers.push(worker);
        for (column, value) in self.values.iter_mut().zip(pattern.values()) {
            column.push(value);
        }
        self.measured.push(pattern.is_measured());
    }

    /// Number of workers.
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Whether no worker ran it.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Beta, mu and sigma in a row.
    pub(crate) fn row(&self, at: usize) -> [f32; 3] {
        [self.values[0][at], self.values[1][at], self.values[2][at]]
    }

    /// The same, each by its scale, `usual` in place of what was not measured.
    #[inline]
    pub(crate) fn normalised(&self, at: usize, scales: [f32; 3], usual: [f32; 2]) -> [f32; 3] {
        let mut row = self.row(at);
        if !self.measured[at] {
            [row[1], row[2]] = usual;
        }
        [row[0] * scales[0], row[1] * scales[1], row[2] * scales[2]]
    }

    /// What stands for mu and sigma of workers that had no counters: the medians of those that had
    /// them, from which they then do not differ.
    pub(crate) fn usual(&self) -> [f32; 2] {
        [1, 2].map(|dimension: usize| {
            let values = self.values[dimension].iter().zip(&self.measured);
            let measured = values.filter(|(_, measured)| **measured);
            middle(measured.map(|(value, _)| *value).collect())
        })
    }

    /// What each dimension is divided by, so that the largest becomes 1; nothing stays nothing.
    pub(crate) fn scales(&self) -> [f32; 3] {
        [0, 1, 2].map(|dimension: usize| {
            let largest = self.values[dimension].iter().copied().fold(0.0, f32::max);
            if largest > 0.0 { 1.0 / largest } else { 0.0 }
        })
    }
}

/// Mean utilisation weighted by use: of what comes and goes, how much it is used when it is.
///
/// # Units
/// From 0 to 1, as mu and sigma; never less than mu.
pub fn rate_in_use(mu: f32, sigma: f32) -> f64 {
    let (mu, sigma) = (f64::from(mu), f64::from(sigma));
    if mu > 0.0 {
        // The mean square over the mean: each height counts by how much it is used.
        // Utilisation is at most 1, and so is this ratio. Rounding may take it further.
        (mu + sigma * sigma / mu).min(1.0)
    } else {
        0.0
    }
}

/// The median; the upper one of two.
pub(crate) fn middle(mut values: Vec<f32>) -> f32 {
    let at = values.len() / 2;
    if values.is_empty() {
        return 0.0;
    }
    *values.select_nth_unstable_by(at, f32::total_cmp).1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_used_at_one_height_by_turns_is_used_at_that_height() {
        for (used, height) in [(1, 0.4_f32), (5, 0.4), (10, 0.4), (3, 1.0)] {
            let mu = height * used as f32 / 10.0;
            let sigma = (mu * (height - mu)).sqrt();
            let rate = rate_in_use(mu, sigma);
            assert!((rate - f64::from(height)).abs() < 1e-6, "{rate}");
        }
        assert_eq!(rate_in_use(0.0, 0.0), 0.0);
    }

    proptest! {
        #[test]
        fn rate_lies_between_the_mean_and_the_most(mu in 0.0_f32..=1.0, sigma in 0.0_f32..=0.5) {
            let rate = rate_in_use(mu, sigma);
            prop_assert!(f64::from(mu) <= rate && rate <= 1.0);
        }
    }
}
