//! Files on their way to where the history is kept.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use object_store::{ObjectStore, ObjectStoreExt};
use tokio_stream::StreamExt;
use tracing::debug;

use super::tables::TABLES;
use super::{HistoryOptions, day};
use crate::clock::seconds_now;
use crate::job_thread::ENDED;
use crate::metrics::Metrics;
use crate::store::{file_name, write_whole};

/// Beside the folders of jobs, of which none begins with a dot.
const FOLDER: &str = ".history";
/// The wait before what failed is tried again; it doubles up to the second.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// How often it is looked for days that are too old.
const EXPIRE_EVERY: Duration = Duration::from_hours(1);

/// Files that wait, a folder for each job: `TABLE.DAY.NAME`, and `NUMBER.keep` with all names there
/// should be of those that begin with the number.
#[derive(Debug)]
pub(crate) struct Outbox {
    folder: PathBuf,
    /// How often jobs tell at most.
    pub(super) every: Duration,
    /// Held while a file is replaced or removed.
    changes: Mutex<()>,
    wake: SyncSender<()>,
}

/// Drops what waits of jobs that had not ended when we did: the collector that keeps them now reads
/// them from their beginning, and writes all of it.
pub(crate) fn drop_unended(data: &Path) -> io::Result<()> {
    for job in there(fs::read_dir(data.join(FOLDER)))?
        .into_iter()
        .flatten()
    {
        let job = job?;
        let folder = data.join(job.file_name());
        if folder.exists() && !folder.join(ENDED).exists() {
            fs::remove_dir_all(job.path())?;
        }
    }
    Ok(())
}

/// What the thread that puts needs.
struct Shipper {
    outbox: Arc<Outbox>,
    place: Arc<dyn ObjectStore>,
    age_s: Option<u64>,
    metrics: Arc<Metrics>,
    expired_at: Option<Instant>,
}

impl Outbox {
    /// Begins to put what is there, and what will be.
    pub(crate) fn open(
        data: &Path,
        (options, place): (&HistoryOptions, Arc<dyn ObjectStore>),
        age_s: Option<u64>,
        metrics: Arc<Metrics>,
        log: fn(&str),
    ) -> io::Result<Arc<Self>> {
        let folder = data.join(FOLDER);
        fs::create_dir_all(&folder)?;
        let (wake, woken) = sync_channel(1);
        let (every, changes) = (options.every, Mutex::default());
        let outbox = Arc::new(Self {
            folder,
            every,
            changes,
            wake,
        });
        let shipper = Shipper {
            outbox: Arc::clone(&outbox),
            place,
            age_s,
            metrics,
            expired_at: None,
        };
        let kept_in = options.place.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        thread::Builder::new()
            .name("laggard-history".to_owned())
            .spawn(move || {
                // What is left of it hurts nobody who writes.
                kept_in.sweep().ok();
                shipper.run(&runtime, &woken, &kept_in.to_string(), log);
            })?;
        Ok(outbox)
    }

    /// Leaves a file to be put, whole or not at all; it replaces one of its name.
    pub(super) fn put(&self, job: &str, file: &str, bytes: &[u8]) -> io::Result<()> {
        let folder = self.folder.join(job);
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        fs::create_dir_all(&folder)?;
        write_whole(&folder.join(file), bytes)?;
        // The name too: a job that has ended writes nothing again.
        File::open(&folder)?.sync_all()
    }

    /// Leaves word that of a job's files these are all.
    pub(super) fn keep_only(&self, job: &str, number: u64, files: &[&str]) -> io::Result<()> {
        self.put(job, &format!("{number}.keep"), files.join("\n").as_bytes())
    }

    /// Takes such a word back, before there is a file it does not know of. Whether there was one.
    pub(super) fn take_back(&self, job: &str, number: u64) -> io::Result<bool> {
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.folder.join(job).join(format!("{number}.keep"));
        Ok(there(fs::remove_file(path))?.is_some())
    }

    /// Drops what waits of a job that somebody else keeps now: it would replace what they write.
    pub(crate) fn drop_job(&self, job: &str) -> io::Result<()> {
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        there(fs::remove_dir_all(self.folder.join(file_name(job)))).map(drop)
    }

    pub(super) fn wake(&self) {
        // One that was not heard yet is enough.
        self.wake.try_send(()).ok();
    }

    /// What waits, job by job; words about which files to keep come last.
    fn waiting(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let mut waiting = Vec::new();
        for job in fs::read_dir(&self.folder)? {
            let job = job?;
            let name = job.file_name().to_string_lossy().into_owned();
            for file in there(fs::read_dir(job.path()))?.into_iter().flatten() {
                let path = file?.path();
                let is_keep = path.extension().is_some_and(|end| end == "keep");
                let is_part = path.extension().is_some_and(|end| end == "parquet");
                if is_keep || is_part {
                    waiting.push((name.clone(), is_keep, path));
                }
            }
        }
        waiting.sort();
        Ok(waiting
            .into_iter()
            .map(|(job, _, path)| (job, path))
            .collect())
    }

    /// Removes a file that was put, unless there is a new one of its name.
    fn remove(&self, path: &Path, put: &[u8]) -> io::Result<()> {
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if there(fs::read(path))?.is_some_and(|there| there == put) {
            fs::remove_file(path)?;
            // It stays if others wait there.
            drop(path.parent().map(fs::remove_dir));
        }
        Ok(())
    }
}

/// `None` if what was asked for is not there.
fn there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Why something was not put.
#[derive(Debug, thiserror::Error)]
enum NotPut {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] object_store::Error),
    #[error(transparent)]
    Path(#[from] object_store::path::Error),
}

impl Shipper {
    fn run(
        mut self,
        runtime: &tokio::runtime::Runtime,
        woken: &Receiver<()>,
        place: &str,
        log: fn(&str),
    ) {
        let mut wait = FIRST_WAIT;
        let mut has_failed = false;
        loop {
            match runtime.block_on(self.ship()) {
                Ok(()) => {
                    if has_failed {
                        log(&format!("the history is written to {place} again"));
                    }
                    (wait, has_failed) = (FIRST_WAIT, false);
                    // Not for ever: days become too old while nothing is written.
                    let woken = woken.recv_timeout(EXPIRE_EVERY);
                    if woken == Err(RecvTimeoutError::Disconnected) {
                        return;
                    }
                }
                Err(error) => {
                    self.metrics.history_failed.inc();
                    if !has_failed {
                        log(&format!(
                            "the history cannot be written to {place}, and waits: {error}"
                        ));
                    }
                    has_failed = true;
                    // Not on `woken`: a new file does not make a place that fails answer sooner.
                    thread::sleep(wait);
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
            }
        }
    }

    async fn ship(&mut self) -> Result<(), NotPut> {
        let waiting = self.outbox.waiting()?;
        self.metrics
            .history_waiting
            .set(i64::try_from(waiting.len()).unwrap_or(i64::MAX));
        for (job, path) in waiting {
            let Some(bytes) = there(fs::read(&path))? else {
                continue;
            };
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            if let Some(number) = file.strip_suffix(".keep") {
                self.remove_others(&job, number, &bytes).await?;
            } else if let Some(key) = key(&job, &file) {
                self.place.put(&key?, bytes.clone().into()).await?;
                debug!(job, %file, bytes = bytes.len(), "table written");
                self.metrics.history_written.inc();
            } else {
                continue;
            }
            self.outbox.remove(&path, &bytes)?;
            self.metrics.history_waiting.dec();
        }
        self.expire().await
    }

    /// Removes what another version, or other settings, wrote of a job.
    async fn remove_others(&self, job: &str, number: &str, names: &[u8]) -> Result<(), NotPut> {
        let names = String::from_utf8_lossy(names);
        let keys = names
            .lines()
            .filter_map(|file| key(job, file))
            .collect::<Result<BTreeSet<_>, _>>()?;
        for table in TABLES {
            // Of all days: what another version found may have begun on others.
            let folder = object_store::path::Path::parse(format!("{table}/job={job}"))?;
            let mut found = self.place.list(Some(&folder));
            while let Some(object) = found.next().await {
                let at = object?.location;
                let name = at.filename().unwrap_or_default();
                // `NUMBER-PART.parquet`, or `NUMBER.parquet` where there is one a day.
                let is_ours = name.split(['-', '.']).next() == Some(number);
                if is_ours && !keys.contains(&at) {
                    self.place.delete(&at).await?;
                }
            }
        }
        Ok(())
    }

    /// Removes days that are too old.
    async fn expire(&mut self) -> Result<(), NotPut> {
        let Some(age_s) = self.age_s else {
            return Ok(());
        };
        if self
            .expired_at
            .is_some_and(|at| at.elapsed() < EXPIRE_EVERY)
        {
            return Ok(());
        }
        let oldest = day(seconds_now().saturating_sub(age_s) as f64);
        for table in TABLES {
            let folder = object_store::path::Path::parse(table)?;
            let mut found = self.place.list(Some(&folder));
            while let Some(object) = found.next().await {
                let at = object?.location;
                let day = at
                    .parts()
                    .find_map(|part| part.as_ref().strip_prefix("day=").map(str::to_owned));
                // Dates in the order of year, month and day sort as text.
                if day.is_some_and(|day| day < oldest) {
                    self.place.delete(&at).await?;
                }
            }
        }
        self.expired_at = Some(Instant::now());
        Ok(())
    }
}

/// Where a file of the outbox belongs; nowhere if it is none of ours.
fn key(
    job: &str,
    file: &str,
) -> Option<Result<object_store::path::Path, object_store::path::Error>> {
    let mut parts = file.splitn(3, '.');
    let (table, day, name) = (parts.next()?, parts.next()?, parts.next()?);
    let path = format!("{table}/job={job}/day={day}/{name}");
    Some(object_store::path::Path::parse(path))
}

#[cfg(test)]
mod tests {
    use model::RankNs;
    use verdict::{StageRecord, WindowRecord};

    use super::super::{Dated, JobHistory, JobOrigin};
    use super::*;
    use crate::clock::Now;

    fn window(begun_s: f64) -> Dated<WindowRecord> {
        let stage = StageRecord {
            stage: "data.next_wait".to_owned(),
            advance_s: 1.0,
            share: 1.0,
            gain: 0.0,
            lead_ranks: Vec::new(),
            late: Vec::new(),
        };
        let what = WindowRecord {
            first_step: 0,
            steps: 1,
            span: RankNs(0)..RankNs(1),
            ranks: 1,
            missing_ranks: Vec::new(),
            labels: Vec::new(),
            stages: vec![stage],
        };
        Dated {
            what,
            begun_s,
            ended_s: None,
        }
    }

    #[test]
    fn windows_that_the_disk_refused_stay_of_their_day() {
        const DAY_S: f64 = 86_400.0;
        let data = tempfile::tempdir().unwrap();
        let outbox = Arc::new(Outbox {
            folder: data.path().to_owned(),
            every: Duration::ZERO,
            changes: Mutex::default(),
            wake: sync_channel(1).0,
        });
        let origin = JobOrigin {
            begun_s: 7,
            offset_ns: 0,
        };
        let mut history = JobHistory::new(outbox, "job", origin, Now::read());
        history.add(window(0.0)).unwrap();
        let in_the_way = data.path().join("job");
        fs::write(&in_the_way, "").unwrap();
        history.add(window(DAY_S)).unwrap_err();
        history.add(window(DAY_S + 1.0)).unwrap();
        fs::remove_file(&in_the_way).unwrap();
        history.add(window(2.0 * DAY_S)).unwrap();
        let mut parts: Vec<_> = fs::read_dir(data.path().join("job"))
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        parts.sort();
        let days = ["1970-01-01", "1970-01-02"];
        assert_eq!(
            parts,
            days.map(|day| format!("windows.{day}.7-00000.parquet"))
        );
    }

    #[test]
    fn what_waits_of_jobs_that_others_may_keep_now_is_dropped() {
        let data = tempfile::tempdir().unwrap();
        let at = |path: &str| data.path().join(path);
        for folder in [
            "runs",
            "ended",
            ".history/runs",
            ".history/ended",
            ".history/gone",
        ] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        fs::write(at("ended").join(ENDED), "{}").unwrap();
        for job in ["runs", "ended", "gone"] {
            let file = "windows.2026-11-21.1-00000.parquet";
            fs::write(at(".history").join(job).join(file), "rows").unwrap();
        }
        drop_unended(data.path()).unwrap();
        assert!(!at(".history/runs").exists());
        assert!(at(".history/ended").exists() && at(".history/gone").exists());
        drop_unended(&at("elsewhere")).unwrap();
    }
}
