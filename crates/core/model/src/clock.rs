use serde::{Deserialize, Serialize};

/// An instant of one process: nanoseconds of its host's monotonic clock.
///
/// Instants of processes on one host share an origin; instants of different hosts do not,
/// so no analysis compares them: only differences within one rank are used.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct RankNs(pub u64);

impl RankNs {
    /// Seconds from `earlier` to this instant, zero if this one is not later.
    pub fn seconds_since(self, earlier: Self) -> f64 {
        self.0.saturating_sub(earlier.0) as f64 * 1e-9
    }

    /// Puts it on another clock.
    pub(crate) fn shift(&mut self, by_ns: i64) {
        // A host may claim any shift: wrapped, an early instant would become the latest of all.
        self.0 = self.0.saturating_add_signed(by_ns);
    }
}
