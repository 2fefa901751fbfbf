//! What blocks and launches usually take.

use std::collections::VecDeque;

/// Iterations a level is known by: the latest. As many as tell how far healthy ones scatter
/// (`judge`).
const LEVEL_OF: usize = 32;
/// As many are needed (`judge`).
const LEVEL_MIN: usize = 5;

/// The median of the latest iterations.
///
/// A mean follows each iteration that waited for a core, and one that leaves slow iterations out
/// is a mean of the luckiest: on a busy machine each block then seems slow half of the time.
#[derive(Clone, Debug, Default)]
pub(super) struct Level {
    latest: VecDeque<f64>,
}

impl Level {
    /// Takes what was seen in an iteration, if anything was.
    pub(super) fn learn(&mut self, value: impl Into<Option<f64>>) {
        let Some(value) = value.into() else {
            return;
        };
        if self.latest.len() == LEVEL_OF {
            self.latest.pop_front();
        }
        self.latest.push_back(value);
    }

    /// `None` before one was seen.
    pub(super) fn usual(&self) -> Option<f64> {
        model::median(&mut self.latest.iter().copied().collect::<Vec<_>>())
    }

    /// The same, `None` before enough are known to say how far they scatter.
    pub(super) fn known(&self) -> Option<f64> {
        self.usual().filter(|_| self.is_known())
    }

    /// Whether enough are known to say how far they scatter.
    pub(super) fn is_known(&self) -> bool {
        self.latest.len() >= LEVEL_MIN
    }

    /// How far each of the latest lies from the usual.
    pub(super) fn distances(&self) -> impl Iterator<Item = f64> {
        let usual = self.usual().unwrap_or(0.0);
        self.latest.iter().map(move |value| (value - usual).abs())
    }
}
