use std::time::{Duration, Instant};

use ring::{JobReader, RankState, RingDirectory};
use verdict::{Job, Settings};

/// How often new rings and dead processes are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Reads the rings of one job on this host and analyses them on the spot.
#[derive(Debug)]
pub struct Agent {
    reader: JobReader,
    job: Job,
    looked: Option<Instant>,
}

impl Agent {
    /// An agent for the job whose rings stand in `directory`.
    pub fn new(directory: RingDirectory, id: &str, settings: Settings) -> Self {
        let job = Job::new(id, "run", settings);
        Self { reader: JobReader::new(directory), job, looked: None }
    }

    /// Reads what is there; returns lines about the windows that closed.
    pub fn poll(&mut self, now: Instant) -> Vec<String> {
        if self.looked.is_none_or(|looked| now.duration_since(looked) >= LOOK_EVERY) {
            self.looked = Some(now);
            self.reader.look(&mut self.job);
        }
        self.reader.drain(&mut self.job);
        self.job.take_lines()
    }

    /// Each process that has a ring.
    pub fn ranks(&self) -> impl Iterator<Item = RankState> {
        self.reader.ranks()
    }

    /// Reads the rest and ends the job.
    pub fn finish(mut self) -> Job {
        self.reader.look(&mut self.job);
        self.reader.drain(&mut self.job);
        let faults = self.reader.faults();
        if faults > 0 {
            self.job.note(&format!("the probes counted {faults} faults of their own"));
        }
        self.job.finish();
        self.job
    }
}
