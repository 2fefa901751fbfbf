//! What ranks are in, by their live tables: read often, reported only while something stands
//! still.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use collective::{ArrivalSettings, Counted, Lost, OperationTrigger};
use model::{
    CollectiveOp, Input, NetworkFault, Operation, RankNs, SharedTable, Slowness, SourceNote,
};
use ring::{JobReader, LiveReader, LiveSource, Sent, process_started};
use verdict::Suspicion;

use crate::slowing::WatchedLink;

/// How often live tables are read; Mycroft's (2025) period.
const READ_EVERY: Duration = Duration::from_millis(100);
/// The same while operations take longer than they should: collectives take as long.
pub(crate) const READ_CLOSELY_EVERY: Duration = Duration::from_millis(20);
/// How often a rank in which nothing changes is reported again.
const REPEAT_EVERY: Duration = Duration::from_millis(250);
/// Part of the usual bandwidth below which a connection is slow. MegaTrace (2025).
const SLOW_RATIO: f64 = 0.8;
/// An operation in which nothing moved for so long is worth telling the analysis about.
const STILL_S: f64 = 0.5;

/// How long ranks are looked at closely after an operation was slow.
const CLOSE_FOR: Duration = Duration::from_secs(Suspicion::SlowOperation.rule().lasts_s as u64);

/// The live tables of one job on this host.
#[derive(Debug, Default)]
pub(crate) struct LiveFeed {
    tables: BTreeMap<PathBuf, LiveTable>,
    /// Tables that cannot be read, or of processes that ended.
    refused: BTreeSet<PathBuf>,
    attempt: u32,
    read: Option<Instant>,
    /// Whether something stood still at the last reading.
    still: bool,
    /// Until when all ranks are looked at closely, as operations have become slow.
    close_until: Option<Instant>,
    settings: ArrivalSettings,
}

#[derive(Debug)]
struct LiveTable {
    reader: LiveReader,
    communicators: usize,
    in_progress: Vec<Operation>,
    /// Of each kind the last that ended since it was reported.
    ended: BTreeMap<(u64, CollectiveOp, Option<u32>), Operation>,
    /// What was reported last, and when.
    reported: Option<(Instant, Vec<Operation>)>,
    /// When the last seen to end did.
    ended_at: RankNs,
    trigger: OperationTrigger,
    /// By communicator, channel and peer.
    links: BTreeMap<(u64, u8, u32), WatchedLink>,
}

impl LiveFeed {
    /// No table yet; `settings` say what is slow.
    pub(crate) fn new(settings: ArrivalSettings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Looks for new tables and for processes that ended.
    pub(crate) fn look(&mut self, rings: &JobReader, take: &mut dyn FnMut(Input)) {
        for (path, table) in self.tables.extract_if(.., |_, table| has_ended(table)) {
            let rank = table.reader.identity().rank;
            // A rank with a ring is reported by its ring.
            if !rings.ranks().any(|with_ring| with_ring.rank == rank) {
                let orderly = table.reader.is_closed();
                take(Input::Left {
                    rank,
                    step: 0,
                    orderly,
                });
            }
            // Its file stays: the next look must not take it for a new one.
            self.refused.insert(path);
        }
        let found = [LiveSource::Plugin, LiveSource::Calls]
            .map(|source| rings.directory().live_tables(source).unwrap_or_default());
        for path in found.into_iter().flatten() {
            if self.tables.contains_key(&path) || self.refused.contains(&path) {
                continue;
            }
            match LiveReader::open(&path) {
                Ok(reader) => self.add(path, reader),
                Err(error) => {
                    take(Input::Note(SourceNote::UnreadTable {
                        table: SharedTable::Live,
                        error: error.to_string(),
                    }));
                    self.refused.insert(path);
                }
            }
        }
    }

    fn add(&mut self, path: PathBuf, reader: LiveReader) {
        let attempt = reader.identity().attempt;
        // The job was started again: what is left of the start before says nothing any more.
        if attempt < self.attempt {
            self.refused.insert(path);
            return;
        }
        if attempt > self.attempt {
            self.attempt = attempt;
            self.refused.extend(mem::take(&mut self.tables).into_keys());
        }
        // Of a process that has both, the plugin's table says more.
        let pid = reader.identity().pid;
        if reader.source() == LiveSource::Plugin {
            self.refused.extend(
                self.tables
                    .extract_if(.., |_, table| table.reader.identity().pid == pid)
                    .map(|(path, _)| path),
            );
        } else if self
            .tables
            .values()
            .any(|table| table.reader.identity().pid == pid)
        {
            self.refused.insert(path);
            return;
        }
        let table = LiveTable {
            reader,
            communicators: 0,
            in_progress: Vec::new(),
            ended: BTreeMap::new(),
            reported: None,
            ended_at: RankNs(0),
            trigger: OperationTrigger::new(self.settings.clone()),
            links: BTreeMap::new(),
        };
        self.tables.insert(path, table);
    }

    /// The ranks whose tables are read, and their processes.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (u32, u32)> {
        self.tables
            .values()
            .map(|table| table.reader.identity())
            .map(|identity| (identity.rank, identity.pid))
    }

    /// Hashes of the ranks' communicators.
    pub(crate) fn communicators(&self) -> impl Iterator<Item = u64> {
        self.tables
            .values()
            .flat_map(|table| table.reader.communicators())
            .map(|communicator| communicator.hash)
    }

    /// Whether something stood still at the last reading.
    pub(crate) fn is_still(&self) -> bool {
        self.still
    }

    /// Whether ranks are looked at closely.
    pub(crate) fn is_close(&self, now: Instant) -> bool {
        self.close_until.is_some_and(|until| now < until)
    }

    /// Reads all tables if it is time, and tells what ranks are in if something stands still,
    /// or did until now.
    pub(crate) fn poll(&mut self, asked: Instant, now: RankNs, take: &mut dyn FnMut(Input)) {
        let every = if self.is_close(asked) {
            READ_CLOSELY_EVERY
        } else {
            READ_EVERY
        };
        if self
            .read
            .is_some_and(|read| asked.duration_since(read) < every)
        {
            return;
        }
        self.read = Some(asked);
        let was_still = self.still;
        self.still = false;
        for table in self.tables.values_mut() {
            table.read_links(asked, now, take);
            if table.read(now, take) {
                self.close_until = Some(asked + CLOSE_FOR);
            }
            self.still |= table.is_still(now);
        }
        // Once more after something stood still: that it goes on ends what was said of it.
        let close = self.is_close(asked);
        if self.still || was_still || close {
            for table in self.tables.values_mut() {
                table.tell(asked, now, close, take);
            }
        }
    }
}

/// Whether the process of a table is gone, or another has its number.
fn has_ended(table: &LiveTable) -> bool {
    let identity = table.reader.identity();
    process_started(identity.pid) != Some(identity.started)
}

impl LiveTable {
    /// Reads the table; whether an operation takes, or took, longer than it should.
    fn read(&mut self, now: RankNs, take: &mut dyn FnMut(Input)) -> bool {
        let rank = self.reader.identity().rank;
        let communicators = self.reader.communicators();
        for communicator in communicators.iter().skip(self.communicators) {
            take(Input::Communicator {
                rank,
                communicator: communicator.clone(),
            });
        }
        // A table only adds communicators, so those beyond the last count are new.
        self.communicators = communicators.len();
        let state = self.reader.read(now);
        self.in_progress = state.in_progress;
        let mut is_slow = self
            .in_progress
            .iter()
            .any(|open| self.is_suspect(open, now));
        for operation in &state.ended {
            self.ended_at = operation.ended_at.unwrap_or_default().max(self.ended_at);
            if let Some(slow) = self.trigger.ended(operation) {
                let Slowness {
                    took_s,
                    usual_s,
                    of_channels,
                } = slow;
                let (took_ns, usual_ns) = ((took_s * 1e9) as u64, (usual_s * 1e9) as u64);
                let communicator = operation.communicator;
                take(Input::Slow {
                    rank,
                    communicator,
                    took_ns,
                    usual_ns,
                    of_channels,
                });
                is_slow = true;
            }
        }
        // Of each kind one, however long nothing stands still: until then nobody takes them.
        self.ended.extend(Operation::last_of_each_kind(state.ended));
        is_slow
    }

    /// Tells of connections that carry less than they used to.
    fn read_links(&mut self, asked: Instant, now: RankNs, take: &mut dyn FnMut(Input)) {
        let rank = self.reader.identity().rank;
        // Those of communicators that are no more are forgotten.
        let mut before = std::mem::take(&mut self.links);
        for Sent {
            communicator,
            channel,
            peer,
            posted,
            completed,
            bytes,
            busy_ns,
        } in self.reader.sent(now)
        {
            let ends = (communicator, channel, peer);
            let mut link = before.remove(&ends).unwrap_or_default();
            let counted = Counted {
                at: now,
                posted,
                completed,
                bytes,
                busy_ns,
            };
            if let Some(Lost {
                bytes_per_s,
                usual_bytes_per_s,
            }) = link.read(asked, counted, SLOW_RATIO)
            {
                let fault = NetworkFault::SlowerFlow {
                    communicator,
                    channel,
                    peer,
                    bytes_per_s: bytes_per_s as u64,
                    usual_bytes_per_s: usual_bytes_per_s as u64,
                };
                take(Input::Network { rank, fault });
            }
            self.links.insert(ends, link);
        }
    }

    fn is_suspect(&self, operation: &Operation, now: RankNs) -> bool {
        self.trigger.is_suspect(operation, now)
    }

    /// Whether something stands still; what may have ended only if all does.
    fn is_still(&self, now: RankNs) -> bool {
        let moved_at = self
            .in_progress
            .iter()
            .map(Operation::moved_at)
            .fold(self.ended_at, RankNs::max);
        let all_still = now.seconds_since(moved_at) >= STILL_S;
        self.in_progress.iter().any(|open| {
            let is_still = now.seconds_since(open.moved_at()) >= STILL_S;
            all_still || !open.may_have_ended && is_still
        })
    }

    fn tell(&mut self, asked: Instant, now: RankNs, close: bool, take: &mut dyn FnMut(Input)) {
        let is_reported = self.reported.as_ref().is_some_and(|(at, reported)| {
            *reported == self.in_progress && asked.duration_since(*at) < REPEAT_EVERY
        });
        // While ranks are looked at closely, each look says who is waited for: all count.
        if is_reported && !close && self.ended.is_empty() {
            return;
        }
        take(Input::InFlightSnapshot {
            rank: self.reader.identity().rank,
            at: now,
            in_progress: self.in_progress.clone(),
            ended: std::mem::take(&mut self.ended).into_values().collect(),
            late: (0..self.in_progress.len())
                .filter(|at| self.is_suspect(&self.in_progress[*at], now))
                .collect(),
        });
        self.reported = Some((asked, self.in_progress.clone()));
    }
}

#[cfg(test)]
mod tests {
    use model::Direction;
    use ring::{Bytes, Identity, LiveSize, LiveWriter, Reached, RingDirectory, Route};

    use super::*;

    const MS: u64 = 1_000_000;
    const TRANSFERS: u32 = 100;

    #[test]
    fn tables_of_a_start_before_say_nothing() {
        // Both processes still run, and either is found first.
        let pids = [std::process::id(), std::os::unix::process::parent_id()];
        for attempts in [[0, 1], [1, 0]] {
            let root = tempfile::tempdir().unwrap();
            let directory = RingDirectory::create(root.path(), "job").unwrap();
            let _writers = [0, 1].map(|rank| {
                let identity = Identity {
                    rank,
                    pid: pids[rank as usize],
                    attempt: attempts[rank as usize],
                    started: process_started(pids[rank as usize]).unwrap(),
                    ..Identity::default()
                };
                let (size, source) = (LiveSize::default(), LiveSource::Plugin);
                LiveWriter::create(&directory, &identity, size, source).unwrap()
            });
            let rings = JobReader::new(directory);
            let mut feed = LiveFeed::new(ArrivalSettings::default());
            for _ in 0..2 {
                feed.look(&rings, &mut |_| unreachable!("nobody has left"));
                let ranks: Vec<u32> = feed.processes().map(|(rank, _)| rank).collect();
                assert_eq!(ranks, [attempts[1]]);
            }
        }
    }

    #[test]
    fn a_connection_that_carries_less_than_it_used_to_is_reported() {
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
        let (size, source) = (LiveSize::default(), LiveSource::Plugin);
        let writer = LiveWriter::create(&directory, &identity, size, source).unwrap();
        let communicator = writer.communicator(77, b"dp", 1, 4).unwrap();
        let mut feed = LiveFeed::new(ArrivalSettings::default());
        feed.look(&JobReader::new(directory), &mut |_| {
            unreachable!("it can be read")
        });
        let (began, mut at_ms, mut inputs) = (Instant::now(), 1000, Vec::new());
        for operation in 0..60 {
            let at = || RankNs(at_ms * MS);
            let op = CollectiveOp::ALLREDUCE;
            let token = writer
                .begin_operation(communicator, op, operation, 1, at())
                .unwrap();
            let flows = [0, 1].map(|channel| {
                let route = Route {
                    channel,
                    peer: 2,
                    direction: Direction::Send,
                };
                writer.announce_flow(token, route, TRANSFERS).unwrap()
            });
            writer.enqueued(token, at());
            for flow in flows {
                let all = Reached::Count(TRANSFERS);
                writer.transmitted(flow, all, Bytes::Total(100 << 20), at);
            }
            // A GPU that comes late makes no connection slow, and 30 % less makes one.
            let (in_flight_ms, waits_ms) = match operation {
                0..20 => (100, 100),
                20..40 => (100, 900),
                _ => (143, 100),
            };
            for (flow, took_ms) in flows.into_iter().zip([100, in_flight_ms]) {
                let at = RankNs((at_ms + took_ms) * MS);
                writer.done(flow, Reached::Count(TRANSFERS), || at);
            }
            at_ms += in_flight_ms + waits_ms;
            let asked = began + Duration::from_millis(at_ms);
            feed.poll(asked, RankNs(at_ms * MS), &mut |input| {
                inputs.push((operation, input));
            });
        }
        inputs.retain(|(_, input)| matches!(input, Input::Network { .. }));
        let fault = NetworkFault::SlowerFlow {
            communicator: 77,
            channel: 1,
            peer: 2,
            bytes_per_s: 733_269_930,
            usual_bytes_per_s: 1_048_576_000,
        };
        assert_eq!(inputs, [(41, Input::Network { rank: 3, fault })]);
    }
}
