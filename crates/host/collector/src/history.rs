//! What was found, as tables that others read: windows, lags, incidents and their evidence.
//!
//! The thread of a job writes parts of tables into the outbox, a folder; one thread puts them
//! where the history is kept, and removes them from the outbox once they are there. A part has
//! the same name and rows whenever the job is read again, so nothing is there twice.

mod columns;
mod outbox;
mod place;
mod tables;
mod timeline;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, mem};

use model::Incident;
use sha2::{Digest, Sha256};
use verdict::{StageRecord, WindowRecord};

use crate::clock::{Now, calendar};
use crate::store::file_name;
pub(crate) use outbox::{Outbox, drop_unended};
pub use place::{HistoryPlace, PlaceError};
pub(crate) use timeline::{Dated, Dates, Timeline};

/// Windows and lags of a part; taste: some hundred kilobytes.
const PART_ROWS: usize = 16_384;
const PART_LAGS: usize = 131_072;

/// Where the history of jobs is kept, and how often those that run are written to it.
#[derive(Clone, Debug)]
pub struct HistoryOptions {
    /// Where.
    pub place: HistoryPlace,
    /// How often at most.
    pub every: Duration,
}

/// What makes the times of a job comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobOrigin {
    /// When it was first heard of, in seconds since 1970; tells it from others of its name.
    pub(crate) begun_s: u64,
    /// From the clock of its first host to time since 1970.
    pub(crate) offset_ns: i64,
}

impl JobOrigin {
    fn seconds(self, at: model::RankNs) -> f64 {
        self.offset_ns.saturating_add_unsigned(at.0) as f64 * 1e-9
    }
}

/// The history of one job.
#[derive(Debug)]
pub(crate) struct JobHistory {
    outbox: Arc<Outbox>,
    /// The job's name in the names of folders.
    job: String,
    origin: JobOrigin,
    /// Windows of each day since its last whole part: of one day, unless the disk has refused a
    /// part.
    open: BTreeMap<String, Vec<Dated<WindowRecord>>>,
    /// Whole parts of each day.
    parts: BTreeMap<String, u32>,
    /// Every file so far, and what is in it.
    written: BTreeMap<String, [u8; 32]>,
    /// Whether files that another version or other settings left behind may be there.
    may_have_others: bool,
    published_at: Instant,
}

impl JobHistory {
    pub(crate) fn new(outbox: Arc<Outbox>, job: &str, origin: JobOrigin, now: Now) -> Self {
        Self {
            outbox,
            job: file_name(job),
            origin,
            open: BTreeMap::new(),
            parts: BTreeMap::new(),
            written: BTreeMap::new(),
            may_have_others: true,
            published_at: now.at,
        }
    }

    /// Takes the next window. Where the disk refuses a part, its rows stay here for the next try.
    pub(crate) fn add(&mut self, window: Dated<WindowRecord>) -> io::Result<()> {
        let day = day(window.begun_s);
        let (mut rows, mut lags) = (0, 0);
        for stage in stages(self.open.values().flatten()) {
            rows += 1;
            lags += stage.late.len();
        }
        let is_full = rows >= PART_ROWS || lags >= PART_LAGS;
        // A part is of one day, so that days which are too old can be removed whole.
        let closed = if is_full || !self.open.contains_key(&day) {
            self.close()
        } else {
            Ok(())
        };
        self.open.entry(day).or_default().push(window);
        closed
    }

    /// Whether it is time to publish what there is.
    pub(crate) fn is_due(&self, now: Now) -> bool {
        now.since(self.published_at) >= self.outbox.every
    }

    /// Publishes what there is so far.
    pub(crate) fn publish(&mut self, now: Now, incidents: &[Dated<&Incident>]) -> io::Result<()> {
        // Also where it fails: what the disk refuses is not tried again with each look.
        self.published_at = now.at;
        self.write_open()?;
        let mut days: BTreeMap<String, Vec<Dated<&Incident>>> = BTreeMap::new();
        for dated in incidents {
            days.entry(day(dated.begun_s))
                .or_default()
                .push(dated.clone());
        }
        let name = format!("{}.parquet", self.origin.begun_s);
        let mut published = Vec::new();
        for (day, dated) in days {
            let tables = [
                (tables::INCIDENTS, tables::incidents(&dated)),
                (tables::EVIDENCE, tables::evidence(&dated)),
            ];
            for (table, bytes) in tables {
                let file = format!("{table}.{day}.{name}");
                self.write(&file, &bytes.map_err(io::Error::other)?)?;
                published.push(file);
            }
        }
        // Those that are reported no more, because they turned out to be part of others.
        let before = self.written.len();
        self.written.retain(|file, _| {
            let is_of_incidents = matches!(
                file.split('.').next(),
                Some(tables::INCIDENTS | tables::EVIDENCE)
            );
            !is_of_incidents || published.contains(file)
        });
        if self.may_have_others || self.written.len() < before {
            let names: Vec<&str> = self.written.keys().map(String::as_str).collect();
            self.outbox
                .keep_only(&self.job, self.origin.begun_s, &names)?;
            self.may_have_others = false;
        }
        self.outbox.wake();
        Ok(())
    }

    /// The same for the last time; the job may come back.
    pub(crate) fn finish(&mut self, now: Now, incidents: &[Dated<&Incident>]) -> io::Result<()> {
        self.may_have_others = true;
        self.publish(now, incidents)
    }

    fn close(&mut self) -> io::Result<()> {
        self.write_open()?;
        // Counted once they are written: a part that failed is tried again under its number.
        for day in mem::take(&mut self.open).into_keys() {
            *self.parts.entry(day).or_default() += 1;
        }
        Ok(())
    }

    fn write_open(&mut self) -> io::Result<()> {
        let mut files = Vec::new();
        for (day, open) in &self.open {
            let number = self.parts.get(day).copied().unwrap_or_default();
            let name = format!("{day}.{}-{number:05}.parquet", self.origin.begun_s);
            files.push((format!("{}.{name}", tables::WINDOWS), tables::windows(open)));
            if stages(open).any(|stage| !stage.late.is_empty()) {
                files.push((format!("{}.{name}", tables::LAGS), tables::lags(open)));
            }
        }
        for (file, bytes) in files {
            self.write(&file, &bytes.map_err(io::Error::other)?)?;
        }
        Ok(())
    }

    fn write(&mut self, file: &str, bytes: &[u8]) -> io::Result<()> {
        // What has not changed is not put again.
        let digest: [u8; 32] = Sha256::digest(bytes).into();
        let before = self.written.get(file);
        // A file of a new name: the list of all that should be there does not have it, and would
        // remove it.
        if before.is_none() && self.outbox.take_back(&self.job, self.origin.begun_s)? {
            self.may_have_others = true;
        }
        if before != Some(&digest) {
            self.outbox.put(&self.job, file, bytes)?;
            self.written.insert(file.to_owned(), digest);
        }
        Ok(())
    }
}

fn stages<'all>(
    windows: impl IntoIterator<Item = &'all Dated<WindowRecord>>,
) -> impl Iterator<Item = &'all StageRecord> {
    windows.into_iter().flat_map(|window| &window.what.stages)
}

/// The day of a moment, in UTC.
fn day(since_1970_s: f64) -> String {
    calendar(since_1970_s as u64).date_naive().to_string()
}

/// A window with its moments.
pub(crate) fn dated(window: WindowRecord, origin: JobOrigin) -> Dated<WindowRecord> {
    let (begun_s, ended_s) = (
        origin.seconds(window.span.start),
        origin.seconds(window.span.end),
    );
    Dated {
        what: window,
        begun_s,
        ended_s: Some(ended_s),
    }
}
