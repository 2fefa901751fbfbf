//! Links that carry less than they used to.

use std::time::{Duration, Instant};

use collective::{Connection, Counted, Lost};

/// How often a link that is slow is reported.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// Readings on end in which a link must be slow.
const SLOW_READINGS: u32 = 2;
/// Busy time from one bandwidth to the next: the kernel counts it in ticks of up to 10 ms, and
/// operations of different sizes go at different speeds.
const MIN_BUSY_NS: u64 = 100_000_000;

/// One link, as it is read again and again.
#[derive(Debug, Default)]
pub(crate) struct WatchedLink {
    connection: Connection,
    /// What was busy when it was read last.
    busy_ns: u64,
    slow_readings: u32,
    reported_at: Option<Instant>,
}

impl WatchedLink {
    /// Takes what was counted until now; what was lost, if that is to be reported: less than
    /// `slow_ratio` of the usual is left.
    pub(crate) fn read(
        &mut self,
        asked: Instant,
        counted: Counted,
        slow_ratio: f64,
    ) -> Option<Lost> {
        // Either way: a connection that was made anew counts from zero.
        if counted.busy_ns.abs_diff(self.busy_ns) < MIN_BUSY_NS {
            return None;
        }
        self.busy_ns = counted.busy_ns;
        self.connection.read(counted);
        let lost = self
            .connection
            .lost()
            .filter(|lost| lost.bytes_per_s < slow_ratio * lost.usual_bytes_per_s);
        // In a row: one reading at the usual speed, and the link counts as healthy again.
        self.slow_readings = lost.map_or(0, |_| self.slow_readings + 1);
        let is_reported = self
            .reported_at
            .is_some_and(|reported_at| asked.duration_since(reported_at) < TELL_EVERY);
        let lost = lost.filter(|_| self.slow_readings >= SLOW_READINGS && !is_reported)?;
        self.reported_at = Some(asked);
        Some(lost)
    }
}
