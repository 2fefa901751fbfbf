//! What the network was given at one end of a connection and what came back: work requests of
//! a queue pair, transfers of a flow, bytes of a socket.

use std::collections::VecDeque;

use model::{Flow, RankNs};

use crate::arrival::median;

/// Completions the bandwidth is taken over. MegaTrace's (2025) code; its text says 64.
pub(crate) const WINDOW: u64 = 50;
/// Seconds without a completion, with something in flight, after which it is said. MegaTrace.
pub(crate) const STALLED_S: f64 = 0.5;
/// Part of the usual bandwidth that must be lost to be said. MegaTrace.
const LOST_SHARE: f64 = 0.2;
/// Windows the usual bandwidth is the median of, and the fewest. Those of the trigger of slow
/// operations.
const USUAL_WINDOWS: usize = 30;
const MIN_USUAL_WINDOWS: usize = 6;

/// What was counted at one end of a connection until one moment.
///
/// # Invariants
/// Nothing ever shrinks, and `completed <= posted`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// When it was read.
    pub at: RankNs,
    /// Requests given to the network.
    pub posted: u64,
    /// Requests that came back.
    pub completed: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Nanoseconds in which something was in flight.
    pub busy_ns: u64,
}

impl Counted {
    /// How many requests are in flight.
    pub fn in_flight(&self) -> u64 {
        self.posted.saturating_sub(self.completed)
    }

    /// What a flow of an operation has counted when it was looked at: a connection for as long
    /// as it lasts, which is taken to be busy all the time.
    pub fn of_flow(flow: &Flow, at: RankNs) -> Self {
        let busy_until = if flow.done == flow.total {
            flow.moved_at
        } else {
            at
        };
        let transmitted = u64::from(flow.transmitted);
        // Bytes are counted where they are given to the network.
        let bytes = (flow.bytes * u64::from(flow.done)).checked_div(transmitted);
        Self {
            at,
            posted: transmitted,
            completed: flow.done.into(),
            bytes: bytes.unwrap_or(0),
            busy_ns: busy_until.0.saturating_sub(flow.begun_at.0),
        }
    }
}

/// What a connection does, from how its counts change.
///
/// # Source
/// MegaTrace (2026), probes; here the job's own requests are the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// The count rises and falls: the path works.
    Works,
    /// The count only rises, or stays: what is sent does not come back.
    Broken,
    /// Nothing new is sent, and nothing is in flight: the fault is in software.
    Unused,
}

/// Bandwidth that was lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lost {
    /// Bytes a second of the last window.
    pub bytes_per_s: f64,
    /// Median of the windows before.
    pub usual_bytes_per_s: f64,
}

/// One connection, watched.
///
/// # Properties
/// Read at every completion of a connection that is never idle, the bandwidth is MegaTrace's
/// `(S_i - S_{i-w}) / (t_i - t_{i-w})`. Read less often, its window is the shortest that has
/// as many completions. Memory is bounded: readings that completed nothing are not kept.
/// # Source
/// MegaTrace (2026), measurement of work requests. Time in which nothing was in flight does
/// not count, which is ours: an idle connection is not a slow one.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// From the latest that is a window ago, one for each reading that completed something.
    window: VecDeque<Counted>,
    last: Option<Counted>,
    /// When something completed last, or was put in flight after nothing was.
    moved_at: RankNs,
    /// Completions when the last window was taken as usual.
    judged: u64,
    usual: VecDeque<f64>,
}

impl Connection {
    /// Takes what was counted until now. Counts that have shrunk are another's, that took its
    /// place.
    pub fn read(&mut self, counted: Counted) {
        let before = self.last.replace(counted);
        let Some(before) = before.filter(|before| before.completed <= counted.completed) else {
            *self = Self {
                window: [counted].into(),
                last: Some(counted),
                moved_at: counted.at,
                judged: counted.completed,
                usual: VecDeque::new(),
            };
            return;
        };
        if counted.completed > before.completed {
            self.window.push_back(counted);
            // The first stays as long as the window without it is too short.
            while let Some(next) = self.window.get(1)
                && counted.completed - next.completed >= WINDOW
            {
                self.window.pop_front();
            }
        }
        // What is in flight after nothing was, was posted since: it has not been still for longer.
        if counted.completed > before.completed || before.in_flight() == 0 {
            self.moved_at = counted.at;
        }
        // A slow window is never usual: else a link would be healthy after thirty of them.
        if counted.completed >= self.judged + WINDOW && self.lost().is_none() {
            self.judged = counted.completed;
            self.usual.extend(self.bandwidth());
            if self.usual.len() > USUAL_WINDOWS {
                self.usual.pop_front();
            }
        }
    }

    /// Takes a whole window whose bandwidth somebody else measured.
    pub(crate) fn read_window(&mut self, at: RankNs, in_flight: u64, bytes_per_s: f64) {
        // How long the window was is not known, and only bytes over time count: any length will do.
        const SECOND_NS: u64 = 1_000_000_000;
        let last = self.last.unwrap_or_default();
        if self.last.is_none() {
            self.read(Counted { at, ..last });
        }
        let completed = last.completed + WINDOW;
        self.read(Counted {
            at,
            posted: completed.saturating_add(in_flight),
            completed,
            bytes: last.bytes.saturating_add(bytes_per_s as u64),
            busy_ns: last.busy_ns + SECOND_NS,
        });
    }

    /// How many requests are in flight.
    pub fn in_flight(&self) -> u64 {
        self.last.map_or(0, |last| last.in_flight())
    }

    /// Bytes a second over the last window; `None` before it is full.
    pub fn bandwidth(&self) -> Option<f64> {
        let (first, last) = (self.window.front()?, self.window.back()?);
        let busy_s = last.busy_ns.saturating_sub(first.busy_ns) as f64 * 1e-9;
        // Completions only grow within a window: `read` starts over where they have shrunk.
        let full = last.completed - first.completed >= WINDOW && busy_s > 0.0;
        full.then(|| last.bytes.saturating_sub(first.bytes) as f64 / busy_s)
    }

    /// The seconds in which nothing came back although something is in flight, if they are too
    /// many.
    pub fn stalled_s(&self) -> Option<f64> {
        let last = self.last.filter(|last| last.in_flight() > 0)?;
        let still_s = last.at.seconds_since(self.moved_at);
        (still_s >= STALLED_S).then_some(still_s)
    }

    /// What was lost of the usual bandwidth, if it is too much.
    pub fn lost(&self) -> Option<Lost> {
        self.lost_at(self.bandwidth()?)
    }

    /// The same, if this is the bandwidth now.
    pub(crate) fn lost_at(&self, bytes_per_s: f64) -> Option<Lost> {
        if self.usual.len() < MIN_USUAL_WINDOWS {
            return None;
        }
        let usual_bytes_per_s = median(self.usual.iter().copied().collect());
        let lost = bytes_per_s < (1.0 - LOST_SHARE) * usual_bytes_per_s;
        lost.then_some(Lost {
            bytes_per_s,
            usual_bytes_per_s,
        })
    }

    /// What the path does, since a reading from before.
    pub fn path_since(&self, before: &Counted) -> Option<Path> {
        let last = self.last?;
        Some(if last.completed > before.completed {
            Path::Works
        } else if last.in_flight() > 0 {
            Path::Broken
        } else {
            Path::Unused
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A connection that is never idle: requests of these bytes, each this long in flight.
    fn counts(requests: &[(u64, u64)]) -> Vec<Counted> {
        let mut now = Counted {
            posted: 1,
            ..Counted::default()
        };
        let mut all = vec![now];
        for (bytes, took_ns) in requests {
            now.at.0 += took_ns;
            now.busy_ns += took_ns;
            now.bytes += bytes;
            now.completed += 1;
            now.posted += 1;
            all.push(now);
        }
        all
    }

    fn watched(counts: &[Counted]) -> Connection {
        let mut connection = Connection::default();
        for counted in counts {
            connection.read(*counted);
        }
        connection
    }

    #[test]
    fn a_mebibyte_every_ten_microseconds_is_105_gigabytes_a_second() {
        let connection = watched(&counts(&[(MIB, 10_000); 50]));
        let bandwidth = connection.bandwidth().expect("a full window");
        assert!((bandwidth / 104.857_6e9 - 1.0).abs() < 1e-12, "{bandwidth}");
        assert_eq!(watched(&counts(&[(MIB, 10_000); 49])).bandwidth(), None);
    }

    #[test]
    fn idle_time_makes_nothing_slow() {
        let mut all = counts(&[(MIB, 10_000); 1000]);
        for (at, counted) in all.iter_mut().enumerate() {
            counted.at.0 += at as u64 / 100 * 5_000_000_000;
        }
        let connection = watched(&all);
        assert_eq!(connection.lost(), None);
        assert!(
            connection
                .bandwidth()
                .is_some_and(|bandwidth| bandwidth > 1e11)
        );
    }

    #[test]
    fn a_fifth_less_is_reported_and_does_not_become_usual() {
        let healthy = [(MIB, 10_000); 400];
        let lost = |took_ns: u64| {
            let requests = [&healthy[..], &[(MIB, took_ns); 500]].concat();
            watched(&counts(&requests)).lost()
        };
        assert_eq!(lost(12_000), None);
        let found = lost(13_000).expect("23 % are lost");
        assert!((found.usual_bytes_per_s / found.bytes_per_s - 1.3).abs() < 1e-9);
    }

    #[test]
    fn what_does_not_come_back_for_half_a_second_is_stalled() {
        let mut all = counts(&[(MIB, 10_000); 10]);
        let last = *all.last().expect("some");
        let before = watched(&all);
        assert_eq!((before.stalled_s(), before.in_flight()), (None, 1));
        let later = Counted {
            at: RankNs(last.at.0 + 600_000_000),
            posted: 20,
            ..last
        };
        all.push(later);
        let connection = watched(&all);
        let stalled_s = connection.stalled_s().expect("nothing came back");
        assert!((stalled_s - 0.6).abs() < 1e-9 && connection.in_flight() == 10);
        assert_eq!(connection.path_since(&last), Some(Path::Broken));
        let back = Counted {
            completed: 20,
            ..later
        };
        all.push(back);
        let connection = watched(&all);
        assert_eq!(connection.stalled_s(), None);
        assert_eq!(connection.path_since(&last), Some(Path::Works));
        all.push(Counted {
            at: RankNs(later.at.0 + 9_000_000_000),
            ..back
        });
        let connection = watched(&all);
        assert_eq!((connection.stalled_s(), connection.in_flight()), (None, 0));
        assert_eq!(connection.path_since(&back), Some(Path::Unused));
    }

    #[test]
    fn what_is_posted_after_a_pause_is_in_flight_from_then_on() {
        let idle = Counted {
            at: RankNs(1),
            posted: 5,
            completed: 5,
            ..Counted::default()
        };
        let posted = Counted {
            at: RankNs(10_000_000_001),
            posted: 6,
            ..idle
        };
        let connection = watched(&[idle, posted]);
        assert_eq!(connection.stalled_s(), None);
    }

    #[test]
    fn another_that_takes_its_place_starts_over() {
        let mut all = counts(&[(MIB, 10_000); 100]);
        all.push(Counted {
            at: RankNs(u64::MAX),
            posted: 1,
            ..Counted::default()
        });
        let connection = watched(&all);
        assert_eq!(
            (connection.bandwidth(), connection.stalled_s()),
            (None, None)
        );
    }

    #[test]
    fn a_flow_is_a_connection() {
        let flow = Flow {
            channel: 0,
            peer: 1,
            direction: model::Direction::Send,
            total: 100,
            ready: 80,
            transmitted: 80,
            done: 60,
            bytes: 80 * MIB,
            begun_at: RankNs(1000),
            moved_at: RankNs(5000),
        };
        let counted = Counted::of_flow(&flow, RankNs(9000));
        assert_eq!((counted.in_flight(), counted.bytes), (20, 60 * MIB));
        assert_eq!(counted.busy_ns, 8000);
    }

    proptest! {
        /// Read at each completion it is the published formula; read at some of them it is
        /// the same over a window that is at most one reading longer.
        #[test]
        fn bandwidth_is_bytes_over_the_time_of_the_last_window(
            requests in prop::collection::vec((0..MIB, 1..100_000_u64), 50..200),
            every in 1..7_usize,
        ) {
            let all = counts(&requests);
            let read: Vec<_> = all.iter().copied().step_by(every).collect();
            let last = read.len() - 1;
            let window = 50_usize.div_ceil(every);
            let connection = watched(&read);
            let expected = last.checked_sub(window).map(|first| {
                let (first, last) = (read[first], read[last]);
                let seconds = (last.at.0 - first.at.0) as f64 * 1e-9;
                (last.bytes - first.bytes) as f64 / seconds
            });
            prop_assert_eq!(connection.bandwidth().is_some(), expected.is_some());
            if let Some((is, should)) = connection.bandwidth().zip(expected) {
                prop_assert!((is - should).abs() <= 1e-9 * should.max(1.0));
            }
        }
    }
}
