use std::time::{Duration, Instant};

use formats::JournalWriter;
use model::Input;
use ring::{JobReader, RankState, RingDirectory};
use verdict::{Job, Settings};

/// How often new rings and dead processes are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Reads the rings of one job on this host and analyses them on the spot.
#[derive(Debug)]
pub struct Agent {
    reader: JobReader,
    job: Job,
    journal: Option<JournalWriter>,
    looked: Option<Instant>,
}

impl Agent {
    /// An agent for the job whose rings stand in `directory`.
    pub fn new(directory: RingDirectory, id: &str, settings: Settings) -> Self {
        let job = Job::new(id, "run", settings);
        Self { reader: JobReader::new(directory), job, journal: None, looked: None }
    }

    /// Records what the analysis is told.
    pub fn record(&mut self, journal: JournalWriter) {
        self.journal = Some(journal);
    }

    /// Reads what is there; returns lines about the windows that closed.
    pub fn poll(&mut self, now: Instant) -> Vec<String> {
        if self.looked.is_none_or(|looked| now.duration_since(looked) >= LOOK_EVERY) {
            self.looked = Some(now);
            self.read(JobReader::look);
        }
        self.read(JobReader::drain);
        self.job.take_lines()
    }

    fn read(&mut self, how: impl FnOnce(&mut JobReader, &mut dyn FnMut(Input))) {
        let Self { reader, job, journal, .. } = self;
        how(reader, &mut |input| {
            if let Some(Err(error)) = journal.as_mut().map(|journal| journal.write(&input)) {
                // A full disk ends the recording, not the watching.
                *journal = None;
                job.take(Input::Note { text: format!("the recording ends early: {error}") });
            }
            job.take(input);
        });
    }

    /// Each process that has a ring.
    pub fn ranks(&self) -> impl Iterator<Item = RankState> {
        self.reader.ranks()
    }

    /// Reads the rest and ends the job.
    pub fn finish(mut self) -> Job {
        self.read(JobReader::look);
        self.read(JobReader::drain);
        let faults = self.reader.faults();
        if faults > 0 {
            let text = format!("the probes counted {faults} faults of their own");
            self.job.take(Input::Note { text });
        }
        if let Some(Err(error)) = self.journal.map(JournalWriter::finish) {
            self.job.take(Input::Note { text: format!("the recording ends early: {error}") });
        }
        self.job.finish();
        self.job
    }
}
