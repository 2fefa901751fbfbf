//! Time as an argument: what decides by time is given a [`Now`], so that tests can play hours.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Utc};

/// A moment, by both clocks of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    /// By the clock that goes on evenly: for how long something takes.
    pub(crate) at: Instant,
    /// By the time of day, which may jump: since 1970.
    since_1970: Duration,
}

impl Now {
    /// Reads the clocks.
    pub(crate) fn read() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            at: Instant::now(),
            since_1970: since_1970.unwrap_or_default(),
        }
    }

    /// Seconds since 1970.
    pub(crate) fn seconds(self) -> u64 {
        self.since_1970.as_secs()
    }

    /// Nanoseconds since 1970.
    pub(crate) fn nanoseconds(self) -> i64 {
        i64::try_from(self.since_1970.as_nanos()).unwrap_or(i64::MAX)
    }

    /// How long ago a moment was.
    pub(crate) fn since(self, earlier: Instant) -> Duration {
        self.at.saturating_duration_since(earlier)
    }
}

/// Seconds since 1970, now.
pub(crate) fn seconds_now() -> u64 {
    Now::read().seconds()
}

/// A moment of the calendar, in UTC.
pub(crate) fn calendar(since_1970_s: u64) -> DateTime<Utc> {
    let since_1970_s = i64::try_from(since_1970_s).unwrap_or_default();
    DateTime::from_timestamp(since_1970_s, 0).unwrap_or_default()
}

#[cfg(test)]
impl std::ops::Add<Duration> for Now {
    type Output = Self;

    /// What both clocks show later.
    fn add(self, later: Duration) -> Self {
        Self {
            at: self.at + later,
            since_1970: self.since_1970 + later,
        }
    }
}

#[cfg(test)]
impl Now {
    /// The same moment after the time of day was set forward.
    pub(crate) fn set_forward(self, by: Duration) -> Self {
        Self {
            since_1970: self.since_1970 + by,
            ..self
        }
    }
}
