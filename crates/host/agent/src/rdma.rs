//! RDMA work requests of ranks, by the tables of the preloaded library.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use collective::{Connection, Counted, Lost, Path};
use model::{Input, NetworkFault, QueuePairName, RankNs, SharedTable, SourceNote};
use ring::{QueuePair, RequestReader, RingDirectory, process_started};

/// How often tables are read: several times within the half second after which requests are
/// late.
const READ_EVERY: Duration = Duration::from_millis(100);
/// Queue pairs of one rank that are reported at once.
const MAX_REPORTED: usize = 4;
/// How long after it was reported a queue pair may be reported again, once it has been as fast as
/// usual in between. Ours: what swings from one reading to the next is one thing to report.
const AGAIN_AFTER_S: f64 = 60.0;

/// The tables of work requests of one job on this host.
#[derive(Debug, Default)]
pub(crate) struct RdmaFeed {
    tables: BTreeMap<PathBuf, RdmaTable>,
    /// Tables that cannot be read, or of processes that ended.
    refused: BTreeSet<PathBuf>,
    read: Option<Instant>,
}

#[derive(Debug)]
struct RdmaTable {
    reader: RequestReader,
    pairs: Vec<WatchedPair>,
}

#[derive(Debug, Default)]
struct WatchedPair {
    pair: QueuePair,
    connection: Connection,
    /// The reading before the last.
    before: Counted,
    last: Counted,
    /// When it was reported as slower than usual, as long as that counts.
    slower: Option<RankNs>,
}

impl RdmaFeed {
    /// Looks for new tables and for processes that ended.
    pub(crate) fn look(&mut self, directory: &RingDirectory, take: &mut dyn FnMut(Input)) {
        let ended = self.tables.extract_if(.., |_, table| {
            // Another process may have its number.
            let identity = table.reader.identity();
            process_started(identity.pid) != Some(identity.started)
        });
        // Their files stay: the next look must not take them for new ones.
        self.refused.extend(ended.map(|(path, _)| path));
        for path in directory.request_tables().unwrap_or_default() {
            if self.tables.contains_key(&path) || self.refused.contains(&path) {
                continue;
            }
            match RequestReader::open(&path) {
                Ok(reader) => {
                    let table = RdmaTable {
                        reader,
                        pairs: Vec::new(),
                    };
                    self.tables.insert(path, table);
                }
                Err(error) => {
                    take(Input::Note(SourceNote::UnreadTable {
                        table: SharedTable::Requests,
                        error: error.to_string(),
                    }));
                    self.refused.insert(path);
                }
            }
        }
    }

    /// Reads all tables if it is time, and tells what has become slower.
    pub(crate) fn poll(&mut self, asked: Instant, now: RankNs, take: &mut dyn FnMut(Input)) {
        if self
            .read
            .is_some_and(|read| asked.duration_since(read) < READ_EVERY)
        {
            return;
        }
        self.read = Some(asked);
        for table in self.tables.values_mut() {
            table.read(now, take);
        }
    }

    /// What a rank has in flight and does not get back, or that it has nothing in flight.
    pub(crate) fn stalled(&self, rank: u32) -> Vec<NetworkFault> {
        let open: Vec<&WatchedPair> = self
            .tables
            .values()
            .filter(|table| table.reader.identity().rank == rank)
            .flat_map(|table| &table.pairs)
            .filter(|watched| watched.pair.open)
            .collect();
        let unused = open
            .iter()
            .filter(|it| it.connection.path_since(&it.before) == Some(Path::Unused))
            .count();
        // A rank that has nothing in flight does not wait for its network.
        if !open.is_empty() && unused == open.len() {
            return vec![NetworkFault::Idle {
                pairs: open.len() as u64,
            }];
        }
        open.into_iter()
            .filter_map(
                |WatchedPair {
                     pair, connection, ..
                 }| {
                    let still_ns = (connection.stalled_s()? * 1e9) as u64;
                    let (failed, status) = (pair.failed, pair.status);
                    let in_flight = connection.in_flight();
                    let pair = named(pair);
                    Some(NetworkFault::Requests {
                        pair,
                        in_flight,
                        still_ns,
                        failed,
                        status,
                    })
                },
            )
            .take(MAX_REPORTED)
            .collect()
    }
}

impl RdmaTable {
    fn read(&mut self, at: RankNs, take: &mut dyn FnMut(Input)) {
        let rank = self.reader.identity().rank;
        let read = self.reader.read(at);
        self.pairs
            .resize_with(read.len().max(self.pairs.len()), WatchedPair::default);
        let mut reported = self.pairs.iter().filter(|it| it.slower.is_some()).count();
        // By place: a table keeps its pairs in the order they were made, closed ones included.
        for (watched, pair) in self.pairs.iter_mut().zip(read) {
            let counted = Counted {
                at,
                posted: pair.posted,
                completed: pair.completed,
                bytes: pair.completed_bytes,
                busy_ns: pair.busy_ns,
            };
            watched.before = std::mem::replace(&mut watched.last, counted);
            watched.connection.read(counted);
            watched.pair = pair;
            let lost = watched.connection.lost().filter(|_| watched.pair.open);
            if let Some(Lost {
                bytes_per_s,
                usual_bytes_per_s,
            }) = lost
                && watched.slower.is_none()
                // A network that fails slows all pairs, and a few say so.
                && reported < MAX_REPORTED
            {
                watched.slower = Some(at);
                reported += 1;
                let fault = NetworkFault::Slower {
                    pair: named(&watched.pair),
                    bytes_per_s: bytes_per_s as u64,
                    usual_bytes_per_s: usual_bytes_per_s as u64,
                };
                take(Input::Network { rank, fault });
            }
            // What is over makes room for what is slow later in the run.
            let reported_at = watched.slower.filter(|_| lost.is_none());
            if reported_at.is_some_and(|since| at.seconds_since(since) >= AGAIN_AFTER_S) {
                watched.slower = None;
            }
        }
    }
}

fn named(pair: &QueuePair) -> QueuePairName {
    let (number, gid) = pair.peer;
    let peer = format!("{} queue pair {number}", Ipv6Addr::from(gid).to_canonical());
    let QueuePair {
        device,
        port,
        number,
        ..
    } = pair;
    QueuePairName {
        device: device.clone(),
        port: *port,
        number: *number,
        peer,
    }
}

#[cfg(test)]
mod tests {
    use ring::{Identity, RequestWriter};

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_process_that_took_the_number_of_another_is_not_watched() {
        let root = tempfile::tempdir().unwrap();
        let directory = RingDirectory::create(root.path(), "job").unwrap();
        let pid = std::process::id();
        let started = process_started(pid).unwrap() - 1;
        let identity = Identity {
            rank: 3,
            pid,
            started,
            ..Identity::default()
        };
        let _writer = RequestWriter::create(&directory, &identity).unwrap();
        let mut feed = RdmaFeed::default();
        feed.look(&directory, &mut |_| unreachable!("it can be read"));
        feed.look(&directory, &mut |_| unreachable!("it was read"));
        assert!(feed.tables.is_empty());
    }

    #[test]
    fn what_gets_slower_and_what_stalls_is_reported() {
        let root = tempfile::tempdir().unwrap();
        let directory = RingDirectory::create(root.path(), "job").unwrap();
        let pid = std::process::id();
        let started = process_started(pid).unwrap();
        let identity = Identity {
            rank: 3,
            pid,
            started,
            ..Identity::default()
        };
        let writer = RequestWriter::create(&directory, &identity).unwrap();
        let index = writer.open(b"mlx5_0", 77).unwrap();
        let mut gid = [0; 16];
        gid[15] = 1;
        writer.connect(index, 1, gid, 88);
        let mut feed = RdmaFeed::default();
        feed.look(&directory, &mut |_| unreachable!("it can be read"));
        let (began, mut at_ms, mut sent) = (Instant::now(), 0, 0);
        let mut reported = Vec::new();
        let mut poll = |feed: &mut RdmaFeed, at_ms: u64| {
            let asked = began + Duration::from_millis(at_ms);
            feed.poll(asked, RankNs(at_ms * MS), &mut |input| reported.push(input));
        };
        // A hundred requests of 1 MB in 100 ms, and later in 200.
        for round in 0..40 {
            let posted = writer.posted(index, 100, 100 << 20, || RankNs(at_ms * MS));
            at_ms += if round < 20 { 100 } else { 200 };
            sent += 100;
            writer.completed(index, posted.0, posted.1, || RankNs(at_ms * MS));
            poll(&mut feed, at_ms);
        }
        assert!(feed.stalled(3).is_empty(), "it works");
        poll(&mut feed, at_ms + 100);
        assert_eq!(feed.stalled(3), [NetworkFault::Idle { pairs: 1 }]);
        at_ms += 100;
        writer.posted(index, 5, 5 << 20, || RankNs(at_ms * MS));
        poll(&mut feed, at_ms + 100);
        assert!(feed.stalled(3).is_empty());
        poll(&mut feed, at_ms + 1100);
        let pair = QueuePairName {
            device: "mlx5_0".into(),
            port: 1,
            number: 77,
            peer: "::1 queue pair 88".into(),
        };
        let slower = NetworkFault::Slower {
            pair: pair.clone(),
            bytes_per_s: 524_288_000,
            usual_bytes_per_s: 1_048_576_000,
        };
        assert_eq!(
            reported,
            [Input::Network {
                rank: 3,
                fault: slower
            }]
        );
        let [
            NetworkFault::Requests {
                pair: of,
                in_flight,
                still_ns,
                ..
            },
        ] = &feed.stalled(3)[..]
        else {
            panic!("one queue pair is stalled after {sent}");
        };
        assert_eq!((of, *in_flight), (&pair, 5));
        assert!((900 * MS..=1000 * MS).contains(still_ns), "{still_ns}");
        assert!(feed.stalled(0).is_empty());
    }

    #[test]
    fn what_was_slow_and_is_over_leaves_room_for_what_is_slow_later() {
        let root = tempfile::tempdir().unwrap();
        let directory = RingDirectory::create(root.path(), "job").unwrap();
        let pid = std::process::id();
        let identity = Identity {
            rank: 3,
            pid,
            started: process_started(pid).unwrap(),
            ..Identity::default()
        };
        let writer = RequestWriter::create(&directory, &identity).unwrap();
        let pairs: Vec<_> = (0..5)
            .map(|number| writer.open(b"mlx5_0", number).unwrap())
            .collect();
        let mut feed = RdmaFeed::default();
        feed.look(&directory, &mut |_| unreachable!("it can be read"));
        let (began, mut at_ms) = (Instant::now(), 0);
        // All pairs carry as much in a round of so many milliseconds; how many are reported.
        let mut rounds = |count: usize, ms: u64| {
            let mut reported = 0;
            for _ in 0..count {
                let first_ms = at_ms;
                at_ms += ms;
                for pair in &pairs {
                    let posted = writer.posted(*pair, 100, 100 << 20, || RankNs(first_ms * MS));
                    writer.completed(*pair, posted.0, posted.1, || RankNs(at_ms * MS));
                }
                let asked = began + Duration::from_millis(at_ms);
                feed.poll(asked, RankNs(at_ms * MS), &mut |_| reported += 1);
            }
            reported
        };
        assert_eq!(rounds(20, 100), 0);
        assert_eq!(rounds(20, 200), MAX_REPORTED);
        // It swings: that is no news.
        assert_eq!(rounds(20, 100) + rounds(20, 200), 0);
        assert_eq!(rounds(700, 100), 0);
        assert_eq!(rounds(20, 200), MAX_REPORTED);
    }
}
