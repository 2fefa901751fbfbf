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

/// The median; the upper one of two.
pub(crate) fn middle(mut values: Vec<f32>) -> f32 {
    let at = values.len() / 2;
    if values.is_empty() {
        return 0.0;
    }
    *values.select_nth_unstable_by(at, f32::total_cmp).1
}
