//! What a [`JobWorker`] wants done: its batches on disk, answers on their way, pages written.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use formats::StoredError;
use tracing::{debug, info, warn};
use verdict::Remember;

use crate::alerts::{ANNOUNCED, JobAlerts};
use crate::clock::Now;
use crate::collector::{Inner, Pages};
use crate::history::Dates;
use crate::history_recorder::HistoryRecorder;
use crate::job::JobHandle;
use crate::store::{Store, write_whole};
use crate::worker::{Effect, JobWorker, LOOK_EVERY, Message, PendingBatch};

/// Batches that go to disk together.
const GROUP: usize = 256;

/// Pages of a job that has ended: complete in itself, and with the way back to the others.
pub(crate) const REPORT: &str = "report.html";
pub(crate) const LIVE: &str = "page.html";
/// Its verdict, and what is needed to list it.
pub(crate) const VERDICT: &str = "verdict.json";
pub(crate) const ENDED: &str = "ended.json";

/// Why a job is not kept any more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerExit {
    /// It has ended, as far as we know.
    Over,
    /// Somebody else keeps it.
    LetGo,
}

/// Does what the worker of a job asks for, until the job has ended.
pub(crate) struct JobThread {
    inner: Arc<Inner>,
    handle: Arc<JobHandle>,
    store: Store,
    worker: JobWorker,
    recorder: HistoryRecorder,
    has_exited: bool,
}

impl JobThread {
    /// Takes up a job: reads what is kept of it.
    pub(crate) fn open(inner: Arc<Inner>, handle: Arc<JobHandle>) -> Result<Self, StoredError> {
        let has_history = inner.outbox.is_some();
        let remember = if has_history {
            Remember::Stages
        } else {
            Remember::Times
        };
        let mut worker = JobWorker::new(
            Arc::clone(&handle),
            inner.options.settings.clone(),
            remember,
            Arc::clone(&inner.silences),
            inner.options.job_bytes,
            Now::read(),
        );
        let mut recorder = HistoryRecorder::new(&inner, &handle.id);
        let store = Store::open(&inner.options.data, &handle.id, |entry, batch| {
            let now = Now::read();
            let effect = worker.replay(now, entry, batch);
            if let Some(Effect::Record(origin, windows)) = effect {
                recorder.record(now, origin, windows);
            }
        })?;
        let alerts = inner.alerts.as_ref().map(|outbox| {
            let announced = fs::read(store.folder().join(ANNOUNCED)).ok();
            let alerts = JobAlerts::new(&handle.id, announced.as_deref());
            alerts
                .ongoing()
                .into_iter()
                .for_each(|alert| outbox.resume(alert));
            alerts
        });
        let now = Now::read();
        let effects = worker.ready(now, store.bytes(), alerts);
        info!(job = handle.id, bytes = store.bytes(), "job taken up");
        let mut thread = Self {
            inner,
            handle,
            store,
            worker,
            recorder,
            has_exited: false,
        };
        // What fails was said, and is tried again.
        drop(thread.perform(now, effects));
        Ok(thread)
    }

    /// Serves until all hosts have deregistered, or are silent for long, or somebody else keeps the
    /// job.
    pub(crate) fn run(&mut self, inbox: &Receiver<PendingBatch>) -> WorkerExit {
        self.has_exited = false;
        while !self.has_exited {
            match inbox.recv_timeout(LOOK_EVERY) {
                Ok(first) => {
                    // One sync for all that wait: with one for each batch a slow disk could not
                    // follow many hosts.
                    let more = inbox.try_iter().take(GROUP - 1);
                    self.take(std::iter::once(first).chain(more).collect());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return WorkerExit::LetGo,
            }
            // Between batches too: a job that never pauses has silent hosts and alerts as well.
            self.tell(Message::Tick).ok();
        }
        WorkerExit::Over
    }

    /// Takes batches that came together.
    pub(crate) fn take(&mut self, batches: Vec<PendingBatch>) {
        // What fails was said, and is tried again.
        self.tell(Message::Batches(batches)).ok();
    }

    /// Leaves the job to somebody else.
    pub(crate) fn leave(&self) {
        info!(job = self.handle.id, "job left to another collector");
        if let Some(alerts) = &self.inner.alerts {
            alerts.forget(&self.handle.id);
        }
    }

    /// Ends the job and writes down what is to be said of it. If that fails it can be tried again;
    /// the job takes nothing more.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.tell(Message::Finish)?;
        let Pages { report, live, .. } = self.inner.pages;
        // Before anything is written: the analysis is locked while pages are made, not while a disk
        // is slow.
        let pages = self
            .handle
            .merger()
            .as_ref()
            .map(|merger| (report(merger.job()), live(merger.job())));
        let Some((report, live)) = pages else {
            return Ok(());
        };
        let folder = self.store.folder();
        write_whole(&folder.join(REPORT), report.as_bytes())?;
        write_whole(&folder.join(LIVE), live.as_bytes())?;
        write_whole(&folder.join(VERDICT), self.handle.verdict().as_bytes())?;
        // Last: where it is, the others are whole.
        let ended = EndedJob {
            batches_bytes: self.store.bytes(),
            job: self.handle.summary(),
            dates: self.worker.dates(),
        };
        write_whole(&folder.join(ENDED), &serde_json::to_vec(&ended)?)?;
        self.inner.list_ended(&ended, &self.handle.verdict());
        info!(
            job = self.handle.id,
            bytes = ended.batches_bytes,
            "job ended"
        );
        *self.handle.merger() = None;
        Ok(())
    }

    /// Tells the worker, and does what it asks for; fails if the history cannot be written.
    fn tell(&mut self, message: Message) -> io::Result<()> {
        let now = Now::read();
        let effects = self.worker.step(now, message);
        self.perform(now, effects)
    }

    fn perform(&mut self, mut now: Now, mut effects: Vec<Effect>) -> io::Result<()> {
        let mut done = Ok(());
        while !effects.is_empty() {
            let mut next = None;
            for effect in effects {
                match effect {
                    Effect::Append(entries) => {
                        next = Some(Message::Appended(self.append(&entries)));
                    }
                    Effect::Resume => next = Some(Message::Resume),
                    Effect::Answer(to, answer) => to.answer(answer),
                    Effect::Record(origin, windows) => {
                        self.recorder.record(now, origin, windows);
                    }
                    Effect::Publish(origin, incidents, over) => {
                        let summary = self.handle.summary();
                        let published = self
                            .recorder
                            .publish(now, origin, &incidents, &summary, over);
                        // What comes after a failure is done all the same.
                        done = done.and(published);
                    }
                    Effect::Alert(alert) => {
                        if let Some(alerts) = &self.inner.alerts {
                            alerts.push(*alert);
                        }
                    }
                    Effect::Announced(bytes) => {
                        // Not written: after a restart it is sent once more.
                        drop(write_whole(&self.store.folder().join(ANNOUNCED), &bytes));
                    }
                    Effect::Exit => self.has_exited = true,
                }
            }
            // Read anew: a slow disk may have taken seconds.
            now = Now::read();
            effects = next.map_or_else(Vec::new, |message| self.worker.step(now, message));
        }
        done
    }

    fn append(&mut self, entries: &[u8]) -> io::Result<()> {
        let begun = Instant::now();
        let written = self.store.append(entries);
        let (took, bytes) = (begun.elapsed(), entries.len());
        self.inner.metrics.appended(took, written.is_ok(), bytes);
        match &written {
            Ok(()) => debug!(job = self.handle.id, bytes, ?took, "batches are on disk"),
            Err(error) => {
                warn!(job = self.handle.id, %error, "batches cannot be written");
            }
        }
        written
    }
}

/// What is written of a job that has ended, so that it is not analysed anew.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct EndedJob {
    pub(crate) batches_bytes: u64,
    pub(crate) job: crate::ListedJob,
    /// When its incidents were.
    #[serde(default)]
    pub(crate) dates: Dates,
}
