//! All rings of one job, read as one stream of inputs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use model::{Input, SharedTable, SourceNote};

use crate::directory::{is_alive, remove_ring};
use crate::{Drained, Identity, NameKind, RingDirectory, RingReader};

/// Marks taken of one ring before the next has its turn, so that no rank runs so far ahead
/// that the others are given up.
const TURN: usize = 2048;

/// Ranks one host may have; more is a mistake in somebody's environment.
const MAX_LOCALS: u32 = 4096;

/// Reads every ring of a job, as they come and go.
#[derive(Debug)]
pub struct JobReader {
    directory: RingDirectory,
    rings: BTreeMap<PathBuf, Ring>,
    /// Files that are no rings, which is mentioned once, and rings of earlier attempts.
    left_out: BTreeSet<PathBuf>,
    attempt: u32,
}

/// One rank as its ring shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankState {
    /// The rank.
    pub rank: u32,
    /// Its place on its host.
    pub local_rank: u32,
    /// Whether its job has ranks on other hosts.
    pub spans_hosts: bool,
    /// Its process.
    pub pid: u32,
    /// The step it is in, `None` while it has not proved to be a rank.
    pub step: Option<u32>,
    /// Whether its process still runs.
    pub alive: bool,
    /// Whether it has said that it ends in good order.
    pub closed: bool,
    /// Its ring.
    pub ring: PathBuf,
}

#[derive(Debug)]
struct Ring {
    reader: RingReader,
    names: usize,
    role: Option<String>,
    announced: bool,
    /// Whether it was told that the process has ended.
    left: bool,
    alive: bool,
    /// Whether the process is known to be a rank.
    proven: bool,
}

impl JobReader {
    /// A reader of all rings in `directory`.
    pub fn new(directory: RingDirectory) -> Self {
        Self {
            directory,
            rings: BTreeMap::new(),
            left_out: BTreeSet::new(),
            attempt: 0,
        }
    }

    /// The directory.
    pub fn directory(&self) -> &RingDirectory {
        &self.directory
    }

    /// Looks for new rings and for processes that ended.
    pub fn look(&mut self, take: &mut dyn FnMut(Input)) {
        let mut found = Vec::new();
        for path in self.directory.rings().unwrap_or_default() {
            if self.rings.contains_key(&path) || self.left_out.contains(&path) {
                continue;
            }
            match RingReader::open(&path) {
                Ok(reader) => found.push((path, reader)),
                Err(error) => {
                    take(Input::Note(SourceNote::UnreadTable {
                        table: SharedTable::Ring,
                        error: error.to_string(),
                    }));
                    self.left_out.insert(path);
                }
            }
        }
        for ring in self.rings.values_mut().filter(|ring| ring.alive) {
            ring.alive = is_alive(ring.reader.identity());
        }
        let attempts = found.iter().map(|(_, reader)| reader.identity().attempt);
        let attempt = attempts.max().unwrap_or(0);
        if attempt > self.attempt {
            // An elastic restart: the ranks of the attempt before deliver nothing more.
            self.attempt = attempt;
            self.drain(take);
            let ended = std::mem::take(&mut self.rings);
            self.leave_out(ended);
            take(Input::Restart { attempt });
        }
        // Of a rank that was started anew before we came only the last ring is read.
        found.sort_by_key(|(_, reader)| std::cmp::Reverse(reader.identity().started));
        let mut ranks = BTreeSet::new();
        for (path, reader) in found {
            let Identity { attempt, rank, .. } = *reader.identity();
            let is_last = ranks.insert(rank);
            // Of several that run it is not known yet which is the rank: see `prove`. Another launcher counts
            // its restarts anew.
            let is_current = attempt == self.attempt || self.have_all_ended();
            if is_current && (is_last || is_alive(reader.identity())) {
                self.add(path, reader, take);
            } else {
                self.left_out.insert(path);
            }
        }
        self.prove();
        self.start_anew(take);
    }

    /// Whether all processes that were ranks have ended.
    fn have_all_ended(&self) -> bool {
        let mut proven = self.rings.values().filter(|ring| ring.proven).peekable();
        proven.peek().is_some() && proven.all(|ring| !ring.alive)
    }

    /// Leaves the rings of a training that has ended behind if another one has begun in the same job: each rank
    /// that lives had another process before.
    fn start_anew(&mut self, take: &mut dyn FnMut(Input)) {
        let ended_before = |living: &Ring| {
            let of = living.reader.identity();
            self.rings.values().any(|ring| {
                let ended = ring.reader.identity();
                ring.proven && !ring.alive && (ended.rank == of.rank && ended.started <= of.started)
            })
        };
        let mut living = self
            .rings
            .values()
            .filter(|ring| ring.proven && ring.alive)
            .peekable();
        if living.peek().is_none() || !living.all(ended_before) {
            return;
        }
        let (ended, living) = std::mem::take(&mut self.rings)
            .into_iter()
            .partition(|(_, ring): &(PathBuf, Ring)| ring.proven && !ring.alive);
        // What these wrote is of the start that has ended.
        self.rings = ended;
        self.drain(take);
        let ended = std::mem::replace(&mut self.rings, living);
        self.leave_out(ended);
        for ring in self.rings.values_mut() {
            (ring.names, ring.announced) = (0, false);
            self.attempt = ring.reader.identity().attempt;
        }
        take(Input::Restart { attempt: 0 });
    }

    /// Reads these rings no more, and frees their memory if their processes have ended: what is mapped stays.
    fn leave_out(&mut self, rings: BTreeMap<PathBuf, Ring>) {
        for (path, ring) in rings {
            if !ring.alive {
                remove_ring(&path);
            }
            self.left_out.insert(path);
        }
    }

    /// Tells ranks from processes that only have a rank's environment: ranks step, or belong to
    /// a group and nobody else claims their place.
    fn prove(&mut self) {
        let mut claims: BTreeMap<u32, usize> = BTreeMap::new();
        for ring in self.rings.values() {
            *claims.entry(ring.reader.identity().rank).or_default() += 1;
        }
        for ring in self.rings.values_mut() {
            // Programs that a rank starts inherit its environment, and with it the rank.
            let alone = claims.get(&ring.reader.identity().rank) == Some(&1);
            ring.proven = ring.reader.step().is_some() || alone && ring.is_in_group();
        }
    }

    fn add(&mut self, path: PathBuf, reader: RingReader, take: &mut dyn FnMut(Input)) {
        let Identity { rank, .. } = *reader.identity();
        // What the process wrote that had the rank before comes before what this one says.
        if self
            .rings
            .values()
            .any(|ring| ring.reader.identity().rank == rank)
        {
            self.drain(take);
        }
        let alive = is_alive(reader.identity());
        self.rings.insert(
            path,
            Ring {
                reader,
                names: 0,
                role: None,
                announced: false,
                left: false,
                alive,
                proven: false,
            },
        );
    }

    /// Reads what is there.
    pub fn drain(&mut self, take: &mut dyn FnMut(Input)) {
        loop {
            let mut taken = 0;
            for ring in self.rings.values_mut() {
                taken += ring.take_turn(take);
            }
            if taken == 0 {
                break;
            }
        }
        for ring in self.rings.values_mut().filter(|ring| ring.ends()) {
            if ring.reader.is_drained() || ring.take_turn(take) == 0 {
                let step = ring.reader.step().unwrap_or(0);
                let (rank, orderly) = (ring.reader.identity().rank, ring.reader.is_closed());
                take(Input::Left {
                    rank,
                    step,
                    orderly,
                });
                ring.left = true;
            }
        }
    }

    /// Each process that has a ring.
    pub fn ranks(&self) -> impl Iterator<Item = RankState> {
        self.rings.values().map(|ring| {
            let identity = ring.reader.identity();
            let locals = identity.local_world_size;
            RankState {
                rank: identity.rank,
                local_rank: identity.local_rank,
                spans_hosts: (1..identity.world_size).contains(&locals),
                pid: identity.pid,
                step: ring.reader.step(),
                alive: ring.alive,
                closed: ring.reader.is_closed(),
                ring: ring.reader.path().to_owned(),
            }
        })
    }

    /// Faults the probes counted of themselves.
    pub fn faults(&self) -> u64 {
        let faults = self.rings.values().map(|ring| ring.reader.faults());
        faults.fold(0, u64::saturating_add)
    }
}

impl Ring {
    /// Whether it is yet to be told that the process has ended.
    fn ends(&self) -> bool {
        !self.alive && self.announced && !self.left
    }

    /// Whether the process is in a group with others.
    fn is_in_group(&self) -> bool {
        self.reader
            .names_from(0)
            .iter()
            .filter(|(kind, _)| *kind == NameKind::Group)
            .filter_map(|(_, name)| group_of(name))
            .any(|group| matches!(group, Input::Group { members, .. } if members.len() > 1))
    }

    fn take_turn(&mut self, take: &mut dyn FnMut(Input)) -> usize {
        if !self.proven && self.reader.step().is_none() {
            return 0;
        }
        let rank = self.reader.identity().rank;
        // Before the marks that refer to them; a name given in between is rare and its marks
        // are then charged to the residual.
        self.learn_names(take);
        if !self.announced && !self.left {
            self.announced = true;
            self.announce(take);
        }
        self.reader.drain(TURN, |drained| {
            take(match drained {
                Drained::Lost(records) => Input::Lost { rank, records },
                Drained::Mark(mark) => Input::Mark { rank, mark },
            });
        })
    }

    fn learn_names(&mut self, take: &mut dyn FnMut(Input)) {
        let rank = self.reader.identity().rank;
        for (kind, name) in self.reader.names_from(self.names) {
            self.names += 1;
            match kind {
                NameKind::Role => {
                    self.role = Some(name.clone()).filter(|role| !role.is_empty());
                    self.announced = false;
                }
                NameKind::Note => take(Input::Note(SourceNote::Text(name.clone()))),
                NameKind::Group => {
                    if let Some(group) = group_of(&name) {
                        take(group);
                    }
                }
                NameKind::Stage => {}
            }
            // Codes count all entries, so those that are no stages hold a place too.
            take(Input::Name { rank, name });
        }
    }

    /// Announces this rank, and which neighbours on this host are to be waited for.
    fn announce(&self, take: &mut dyn FnMut(Input)) {
        let identity = self.reader.identity();
        let locals = match identity.local_world_size {
            0 => identity.world_size,
            locals => locals,
        };
        let first_local = identity.rank.saturating_sub(identity.local_rank);
        // Of one that says how many there are, and not how many on its host, those that may be.
        let locals = locals.min(identity.world_size.saturating_sub(first_local));
        take(Input::Rank {
            rank: identity.rank,
            host: identity.host.clone(),
            role: self.role.clone(),
            first_local,
            locals: locals.clamp(1, MAX_LOCALS),
            world_size: identity.world_size,
        });
    }
}

/// Bytes of a group's name. They leave most of an entry to the ranks: half a number at its end would
/// be another rank.
const GROUP_NAME_BYTES: usize = 60;

/// A group as an entry of the table of names: its number, its name and its ranks, as in
/// `0-3,8-120:8`.
pub fn group_entry(number: u32, name: &str, ranks: &str) -> String {
    // In bytes, as the room of an entry is.
    let name = name
        .get(..name.floor_char_boundary(GROUP_NAME_BYTES))
        .unwrap_or_default();
    // Spaces separate the three parts.
    let name = name.replace(char::is_whitespace, "_");
    format!("{number} {name} {ranks}")
}

/// Reads a group's entry, `NUMBER NAME RANKS` with ranks as in `0-3,8-120:8`.
fn group_of(entry: &str) -> Option<Input> {
    let mut parts = entry.splitn(3, ' ');
    let group = parts.next()?.parse().ok()?;
    let name = parts.next()?.to_owned();
    let members = parts.next()?.parse().ok()?;
    Some(Input::Group {
        group,
        name,
        members,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::mem::offset_of;
    use std::os::unix::fs::FileExt;

    use model::{Event, Mark, RankNs};

    use super::*;
    use crate::header::{Header, NAME_BYTES};
    use crate::{RingWriter, process_started};

    #[test]
    fn a_group_is_read_with_its_members() {
        let read = |entry: &str| match group_of(entry)? {
            Input::Group {
                group,
                name,
                members,
            } => Some((group, name, members.to_string())),
            _ => None,
        };
        assert_eq!(
            read("77 default 0-2,7"),
            Some((77, "default".into(), "0-2,7".into()))
        );
        assert_eq!(read("77 tp "), Some((77, "tp".into(), String::new())));
        let ranks = "1000,1003,1009,1020,1033,1049";
        for name in ["data parallel", &"数据并行".repeat(20)] {
            let entry = group_entry(u32::MAX, name, &ranks.repeat(6)[..149]);
            assert!(entry.len() <= NAME_BYTES, "{entry}");
            let (_, name, _) = read(&group_entry(7, name, ranks)).unwrap();
            assert!(
                ["data_parallel", &"数据并行".repeat(5)].contains(&&*name),
                "{name}"
            );
        }
        assert_eq!(read("x default 0"), None);
        assert_eq!(read("1 a 0-x"), None);
        assert_eq!(read("1 a 0-4294967295"), None);
    }

    #[test]
    fn fault_counts_of_damaged_rings_add_up_to_the_largest_number() {
        let root = tempfile::tempdir().unwrap();
        let directory = RingDirectory::create(root.path(), "job").unwrap();
        for rank in 0..2 {
            let identity = Identity {
                rank,
                ..Identity::default()
            };
            let ring = RingWriter::create(&directory, &identity, 64).unwrap();
            let file = File::options().write(true).open(ring.path()).unwrap();
            let at = offset_of!(Header, faults) as u64;
            file.write_all_at(&u64::MAX.to_le_bytes(), at).unwrap();
        }
        let mut reader = JobReader::new(directory);
        reader.look(&mut |_| {});
        assert_eq!(reader.faults(), u64::MAX);
    }

    /// The ring of a process that steps, with one mark.
    fn stepped(directory: &RingDirectory, identity: &Identity) -> RingWriter {
        let ring = RingWriter::create(directory, identity, 64).unwrap();
        ring.set_stepped(0);
        ring.write(Mark {
            at: RankNs(1),
            step: 0,
            on_loop_thread: true,
            event: Event::DataBegin,
        });
        ring
    }

    #[test]
    fn after_a_restart_rings_of_earlier_attempts_are_not_read() {
        let root = tempfile::tempdir().unwrap();
        let directory = RingDirectory::create(root.path(), "job").unwrap();
        let pid = std::process::id();
        let ring = |rank, attempt| {
            let started = process_started(pid).unwrap();
            let identity = Identity {
                rank,
                attempt,
                pid,
                started,
                ..Identity::default()
            };
            stepped(&directory, &identity)
        };
        let mut reader = JobReader::new(directory.clone());
        let mut read = Vec::new();
        let mut look = |reader: &mut JobReader| {
            let mut take = |input| match input {
                Input::Mark { rank, .. } => read.push(rank),
                Input::Restart { attempt } => assert_eq!(attempt, 1),
                _ => {}
            };
            reader.look(&mut take);
            reader.drain(&mut take);
            read.clone()
        };
        // Started again with a rank less, while the one that is left out still runs.
        let _rings = [ring(0, 1), ring(1, 0)];
        assert_eq!(look(&mut reader), [0]);
        // Nor is one that only now shows itself.
        let _late = ring(2, 0);
        assert_eq!(look(&mut reader), [0]);
        let _new = ring(3, 1);
        assert_eq!(look(&mut reader), [0, 3]);
    }

    /// Processes of this test by which a rank is alive or has ended: this one, and one that never was.
    fn process(lives: bool) -> (u32, u64) {
        let pid = std::process::id();
        let started = process_started(pid).unwrap();
        if lives {
            (pid, started)
        } else {
            (1, started - 1)
        }
    }

    #[test]
    fn a_training_that_follows_another_in_the_same_job_is_a_start_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let directory = RingDirectory::create(root.path(), "job").unwrap();
        let ring = |rank, attempt, lives| {
            let (pid, started) = process(lives);
            let identity = Identity {
                rank,
                attempt,
                pid,
                started,
                ..Identity::default()
            };
            stepped(&directory, &identity)
        };
        let mut reader = JobReader::new(directory.clone());
        let look = |reader: &mut JobReader| {
            let mut read = Vec::new();
            let mut take = |input| match input {
                Input::Mark { rank, .. } => read.push(Some(rank)),
                Input::Restart { .. } => read.push(None),
                _ => {}
            };
            reader.look(&mut take);
            reader.drain(&mut take);
            read
        };
        // Of a launcher that had restarted it once, which the next one has not.
        let _ended = [ring(0, 1, false), ring(1, 1, false)];
        assert_eq!(look(&mut reader), [None, Some(0), Some(1)]);
        let _first = ring(0, 0, true);
        assert_eq!(look(&mut reader), [None, Some(0)]);
        assert_eq!(directory.rings().unwrap().len(), 1);
        let _second = ring(1, 0, true);
        assert_eq!(look(&mut reader), [Some(1)]);
    }

    #[test]
    fn a_rank_that_comes_again_while_others_live_starts_nothing_anew() {
        let root = tempfile::tempdir().unwrap();
        let directory = RingDirectory::create(root.path(), "job").unwrap();
        let ring = |rank, lives| {
            let (pid, started) = process(lives);
            let identity = Identity {
                rank,
                pid,
                started,
                ..Identity::default()
            };
            stepped(&directory, &identity)
        };
        let mut reader = JobReader::new(directory.clone());
        let look = |reader: &mut JobReader| {
            let mut starts = 0;
            let mut take = |input| starts += usize::from(matches!(input, Input::Restart { .. }));
            reader.look(&mut take);
            starts
        };
        let _others = [ring(0, true), ring(1, false)];
        assert_eq!(look(&mut reader), 0);
        let _again = ring(1, true);
        assert_eq!(look(&mut reader), 0);
    }
}
