//! All rings of one job, read into its analysis.

use std::collections::BTreeMap;
use std::path::PathBuf;

use model::{MarkKind, StageId};
use verdict::{Job, RankFacts};

use crate::{Drained, NameKind, RingDirectory, RingError, RingReader, process_started};

/// Marks taken of one ring before the next has its turn, so that no rank runs so far ahead
/// that the others are given up.
const TURN: usize = 2048;

/// Reads every ring of a job, as they come and go.
#[derive(Debug)]
pub struct JobReader {
    directory: RingDirectory,
    rings: BTreeMap<PathBuf, Ring>,
    /// Files that turned out not to be rings, so that each is mentioned once.
    refused: BTreeMap<PathBuf, RingError>,
    attempt: u32,
}

/// One rank as its ring shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankState {
    /// The rank.
    pub rank: u32,
    /// Its process.
    pub pid: u32,
    /// The step it is in, `None` while it has not proved to be a rank.
    pub step: Option<u32>,
    /// Whether its process still runs.
    pub alive: bool,
}

#[derive(Debug)]
struct Ring {
    reader: RingReader,
    stages: Vec<StageId>,
    role: Option<String>,
    announced: bool,
    alive: bool,
}

impl JobReader {
    /// A reader of all rings in `directory`.
    pub fn new(directory: RingDirectory) -> Self {
        Self { directory, rings: BTreeMap::new(), refused: BTreeMap::new(), attempt: 0 }
    }

    /// The directory.
    pub fn directory(&self) -> &RingDirectory {
        &self.directory
    }

    /// Looks for new rings and for processes that ended.
    pub fn look(&mut self, job: &mut Job) {
        for path in self.directory.rings().unwrap_or_default() {
            if self.rings.contains_key(&path) || self.refused.contains_key(&path) {
                continue;
            }
            match RingReader::open(&path) {
                Ok(reader) => self.add(path, reader, job),
                Err(error) => {
                    job.note(&format!("{error}; its rank is not seen"));
                    self.refused.insert(path, error);
                }
            }
        }
        for ring in self.rings.values_mut().filter(|ring| ring.alive) {
            let identity = ring.reader.identity();
            ring.alive = process_started(identity.pid) == Some(identity.started);
        }
    }

    fn add(&mut self, path: PathBuf, reader: RingReader, job: &mut Job) {
        let attempt = reader.identity().attempt;
        if attempt > self.attempt {
            // An elastic restart: the ranks of the attempt before deliver nothing more.
            self.attempt = attempt;
            self.drain(job);
            self.rings.clear();
            job.restart();
        }
        let (stages, role) = (Vec::new(), None);
        self.rings
            .insert(path, Ring { reader, stages, role, announced: false, alive: true });
    }

    /// Reads what is there into `job`.
    pub fn drain(&mut self, job: &mut Job) {
        loop {
            let mut taken = 0;
            for ring in self.rings.values_mut() {
                taken += ring.take_turn(job);
            }
            if taken == 0 {
                break;
            }
        }
        for ring in self.rings.values_mut().filter(|ring| !ring.alive && ring.announced) {
            if ring.reader.is_drained() || ring.take_turn(job) == 0 {
                let step = ring.reader.step().unwrap_or(0);
                job.leave(ring.reader.identity().rank, step);
                ring.announced = false;
            }
        }
    }

    /// Each process that has a ring.
    pub fn ranks(&self) -> impl Iterator<Item = RankState> {
        self.rings.values().map(|ring| RankState {
            rank: ring.reader.identity().rank,
            pid: ring.reader.identity().pid,
            step: ring.reader.step(),
            alive: ring.alive,
        })
    }

    /// Faults the probes counted of themselves.
    pub fn faults(&self) -> u64 {
        self.rings.values().map(|ring| ring.reader.faults()).sum()
    }
}

impl Ring {
    fn take_turn(&mut self, job: &mut Job) -> usize {
        // A process without an optimizer step is not a rank, whatever its environment says.
        if self.reader.step().is_none() {
            return 0;
        }
        let rank = self.reader.identity().rank;
        self.learn_names(job);
        if !self.announced && self.alive {
            self.announced = true;
            self.announce(job);
        }
        let stages = &self.stages;
        self.reader.drain(TURN, |drained| match drained {
            Drained::Lost(records) => job.lose(rank, records),
            Drained::Mark(mark) => match mark.kind {
                MarkKind::StageBegin
                | MarkKind::StageEnd
                | MarkKind::SideSample
                | MarkKind::SideLost => match stages.get(usize::from(mark.code)) {
                    Some(stage) => job.mark(rank, &mark, *stage),
                    // Named after the names were read, a moment ago: one step is left out.
                    None => job.lose(rank, 0),
                },
                _ => job.mark(rank, &mark, StageId::OTHER),
            },
        })
    }

    fn learn_names(&mut self, job: &mut Job) {
        for (kind, text) in self.reader.names_from(self.stages.len()) {
            // Codes count all entries, so those that are no stages hold a place too.
            self.stages.push(match kind {
                NameKind::Stage => job.names().intern(&text),
                NameKind::Role | NameKind::Note => StageId::OTHER,
            });
            match kind {
                NameKind::Role => {
                    self.role = Some(text).filter(|role| !role.is_empty());
                    self.announced = false;
                }
                NameKind::Note => job.note(&text),
                NameKind::Stage => {}
            }
        }
    }

    /// Announces this rank, and that its neighbours on this host are to be waited for.
    fn announce(&self, job: &mut Job) {
        let identity = self.reader.identity();
        let host = Some(identity.host.clone());
        job.expect(identity.rank, RankFacts { host, role: self.role.clone() });
        job.expect_peers(self.peers(), self.role.as_deref(), identity.world_size);
    }

    fn peers(&self) -> std::ops::Range<u32> {
        let identity = self.reader.identity();
        let local = match identity.local_world_size {
            0 => identity.world_size,
            local => local,
        };
        let first = identity.rank.saturating_sub(identity.local_rank);
        first..first.saturating_add(local.clamp(1, 4096))
    }
}
