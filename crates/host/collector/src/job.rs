//! A job as readers see it.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use formats::StoredError;
use model::Verdict;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use verdict::HostMerger;

use crate::collector::Inner;
use crate::job_thread::{JobThread, WorkerExit};
use crate::rendered::Rendered;
use crate::state::{JobState, ListedJob};
use crate::worker::PendingBatch;

/// Batches that may wait for the thread of a job.
pub(crate) const INBOX: usize = 64;
/// Wait before it is tried again to read or to write what a disk refused.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// One job: what readers see of it, and the way to its thread.
#[derive(Debug)]
pub(crate) struct JobHandle {
    pub(crate) id: String,
    /// `None` once the job has ended: then all there is to say is on disk.
    merger: Mutex<Option<HostMerger>>,
    verdict: Mutex<Arc<str>>,
    summary: watch::Sender<ListedJob>,
    inbox: Mutex<Option<SyncSender<PendingBatch>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Whether what comes is of the past, and more of it is there.
    is_behind: AtomicBool,
    /// Whether what is kept of it is damaged.
    is_damaged: AtomicBool,
    /// Its pages while it runs.
    pub(crate) report: Rendered,
    pub(crate) live: Rendered,
    /// How often it was let go of.
    exits: AtomicU64,
    /// Every thread with an analysis of the job in memory has a copy.
    threads: Arc<()>,
}

/// Why a batch was not handed on.
#[derive(Debug)]
pub(crate) enum NotTaken {
    /// Too many wait.
    Busy,
    /// The job cannot be kept.
    Broken,
}

/// Whichever thread panicked with it, what is behind the lock is whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl JobHandle {
    pub(crate) fn new(id: &str) -> Self {
        let summary = ListedJob {
            id: id.to_owned(),
            state: JobState::Starting,
            headline: None,
            severity: None,
            ranks: 0,
            hosts: 0,
            silent_hosts: Vec::new(),
            steps: 0,
            exposed_s: 0.0,
            incidents: 0,
            open_incidents: 0,
            lost_records: 0,
            last_seen_s: 0,
            version: 0,
        };
        Self::known(summary)
    }

    /// A job of which so much is known.
    pub(crate) fn known(summary: ListedJob) -> Self {
        Self {
            id: summary.id.clone(),
            merger: Mutex::new(None),
            verdict: Mutex::new(Arc::from("")),
            summary: watch::Sender::new(summary),
            inbox: Mutex::new(None),
            thread: Mutex::new(None),
            is_behind: AtomicBool::new(false),
            is_damaged: AtomicBool::new(false),
            report: Rendered::default(),
            live: Rendered::default(),
            exits: AtomicU64::new(0),
            threads: Arc::new(()),
        }
    }

    pub(crate) fn merger(&self) -> MutexGuard<'_, Option<HostMerger>> {
        locked(&self.merger)
    }

    /// The verdict as JSON; empty before there is one, and once all there is to say is on disk.
    pub(crate) fn verdict(&self) -> Arc<str> {
        Arc::clone(&locked(&self.verdict))
    }

    pub(crate) fn summary(&self) -> ListedJob {
        self.summary.borrow().clone()
    }

    /// Counts changes of the verdict.
    pub(crate) fn version(&self) -> u64 {
        self.summary.borrow().version
    }

    /// How the job is whenever that changes, until it is let go of.
    pub(crate) fn changes(self: Arc<Self>) -> impl Stream<Item = ListedJob> {
        let exits = self.exits.load(Ordering::Relaxed);
        let changes = WatchStream::new(self.summary.subscribe());
        changes.take_while(move |_| self.exits.load(Ordering::Relaxed) == exits)
    }

    /// Tells readers how the job is; its verdict.
    pub(crate) fn publish(&self, last_seen_s: u64) -> Option<Verdict> {
        let guard = self.merger();
        let merger = guard.as_ref()?;
        let verdict = merger.job().verdict();
        let silent = merger.silent_hosts();
        let (hosts, ended) = (merger.hosts(), merger.ended());
        let state = JobState::of(&verdict, hosts, silent.len(), ended);
        let silent_hosts = silent.into_iter().map(str::to_owned).collect();
        // The analysis goes on while the document is written.
        drop(guard);
        let document = serde_json::to_string(&verdict).unwrap_or_default();
        let mut known = locked(&self.verdict);
        let is_same = **known == *document;
        if !is_same {
            *known = document.into();
        }
        drop(known);
        let first = verdict.incidents.first();
        self.summary.send_if_modified(|summary| {
            let new = ListedJob {
                id: self.id.clone(),
                state,
                headline: first.map(|incident| incident.text.clone()),
                severity: first.map(|incident| incident.severity),
                ranks: verdict.job.ranks,
                hosts,
                silent_hosts,
                steps: verdict.job.steps,
                exposed_s: verdict.job.exposed_s,
                incidents: verdict.incidents.len(),
                open_incidents: verdict.incidents.iter().filter(|i| i.open).count(),
                lost_records: verdict.job.lost_records,
                last_seen_s,
                version: summary.version + u64::from(!is_same),
            };
            // The rest changes with every batch, as `last_seen_s` does, and is no news to a page.
            let changed = new.version != summary.version || new.state != summary.state;
            *summary = new;
            changed
        });
        Some(verdict)
    }

    /// Whether there is a thread that keeps it.
    pub(crate) fn runs(&self) -> bool {
        locked(&self.inbox).is_some()
    }

    /// Counts a thread with an analysis of it, as long as somebody has the answer.
    pub(crate) fn count_thread(&self) -> Arc<()> {
        Arc::clone(&self.threads)
    }

    /// Whether an analysis of it is in memory; never waits for its thread.
    pub(crate) fn is_in_memory(&self) -> bool {
        Arc::strong_count(&self.threads) > 1
    }

    /// Hands a batch to the thread of the job; starts it if there is none.
    pub(crate) fn hand(
        self: &Arc<Self>,
        inner: &Arc<Inner>,
        batch: PendingBatch,
    ) -> Result<(), NotTaken> {
        let mut inbox = locked(&self.inbox);
        let sender = match inbox.as_ref() {
            Some(sender) => sender,
            None => inbox.insert(self.start(inner)?),
        };
        // Without waiting: the threads that answer are few.
        sender.try_send(batch).map_err(|error| match error {
            TrySendError::Full(_) => NotTaken::Busy,
            TrySendError::Disconnected(_) => {
                // The next batch tries anew: a disk that was full may have room by then.
                *inbox = None;
                NotTaken::Broken
            }
        })
    }

    /// Takes up a job that has not ended.
    pub(crate) fn take_up(self: &Arc<Self>, inner: &Arc<Inner>) -> Result<(), NotTaken> {
        // Locked before there is a thread, which takes its inbox away if the file is damaged.
        let mut inbox = locked(&self.inbox);
        *inbox = Some(self.start(inner)?);
        Ok(())
    }

    /// Lets go of a job that somebody else keeps: returns when nobody writes to its folder.
    pub(crate) fn let_go(&self) {
        drop(locked(&self.inbox).take());
        self.exits.fetch_add(1, Ordering::Relaxed);
        // Who watches looks again.
        self.summary.send_modify(|_| ());
        if let Some(thread) = locked(&self.thread).take() {
            // It has said what went wrong.
            drop(thread.join());
        }
    }

    /// Whether what comes is of the past, and more of it is there.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// Whether what is kept of it cannot be read, however often that is tried.
    pub(crate) fn is_damaged(&self) -> bool {
        self.is_damaged.load(Ordering::Relaxed)
    }

    pub(crate) fn set_behind(&self, is_behind: bool) {
        self.is_behind.store(is_behind, Ordering::Relaxed);
    }

    fn start(self: &Arc<Self>, inner: &Arc<Inner>) -> Result<SyncSender<PendingBatch>, NotTaken> {
        let (sender, inbox) = sync_channel(INBOX);
        let (handle, inner) = (Arc::clone(self), Arc::clone(inner));
        let alive = self.count_thread();
        let builder = thread::Builder::new().name("laggard-job".to_owned());
        match builder.spawn(move || {
            handle.keep(&inner, &inbox);
            drop(alive);
        }) {
            Ok(thread) => {
                *locked(&self.thread) = Some(thread);
                Ok(sender)
            }
            // No thread can be had now: the agent sends it again.
            Err(_) => Err(NotTaken::Busy),
        }
    }

    /// Serves until the job is over, or somebody else keeps it.
    fn keep(self: &Arc<Self>, inner: &Arc<Inner>, inbox: &Receiver<PendingBatch>) {
        let Some(mut thread) = self.open(inner, inbox) else {
            return;
        };
        loop {
            if thread.run(inbox) == WorkerExit::LetGo {
                return self.leave(inner, &thread);
            }
            // From here on a batch starts a thread of its own, which waits for the end of this
            // one.
            let way = locked(&self.inbox);
            if let Ok(late) = inbox.try_recv() {
                drop(way);
                thread.take(vec![late]);
                continue;
            }
            return self.end(inner, &mut thread, inbox, way);
        }
    }

    /// Takes up the job, however often that is tried; `None` if what is kept cannot be read, or
    /// somebody else keeps it.
    fn open(
        self: &Arc<Self>,
        inner: &Arc<Inner>,
        inbox: &Receiver<PendingBatch>,
    ) -> Option<JobThread> {
        let (mut waiting, mut is_said) = (Vec::new(), false);
        loop {
            let error = match JobThread::open(Arc::clone(inner), Arc::clone(self)) {
                Ok(mut thread) => {
                    self.is_damaged.store(false, Ordering::Relaxed);
                    thread.take(waiting);
                    return Some(thread);
                }
                Err(error) => error,
            };
            if !mem::replace(&mut is_said, true) {
                inner.say(&self.id, &error);
            }
            // A disk may take up its work again; a damaged file stays damaged.
            if !matches!(error, StoredError::Io(_)) {
                self.is_damaged.store(true, Ordering::Relaxed);
                *self.merger() = None;
                // A job that counted as running could never be deleted.
                *locked(&self.inbox) = None;
                return None;
            }
            // Who sent what could not be kept is answered so, and sends it again.
            waiting.clear();
            match inbox.recv_timeout(AGAIN_AFTER) {
                Ok(batch) => waiting.push(batch),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Writes down what is to be said of a job that is over, however often that is tried. A holder
    /// of the `way` to its thread waits for that.
    fn end<'a>(
        &'a self,
        inner: &Inner,
        thread: &mut JobThread,
        inbox: &Receiver<PendingBatch>,
        mut way: MutexGuard<'a, Option<SyncSender<PendingBatch>>>,
    ) {
        let mut is_said = false;
        while let Err(error) = thread.finish() {
            drop(way);
            if !mem::replace(&mut is_said, true) {
                inner.say(&self.id, &format_args!("{error}; it is tried again"));
            }
            match inbox.recv_timeout(AGAIN_AFTER) {
                // The job begins again. Its host tells it once more, to a thread that reads the
                // job anew.
                Ok(_) => {
                    *locked(&self.inbox) = None;
                    return;
                }
                Err(RecvTimeoutError::Disconnected) => return self.leave(inner, thread),
                Err(RecvTimeoutError::Timeout) => way = locked(&self.inbox),
            }
        }
        // All there is to say is on disk.
        *locked(&self.verdict) = Arc::from("");
        self.report.forget();
        self.live.forget();
        *way = None;
    }

    /// Drops what was known of a job that somebody else keeps now.
    fn leave(&self, inner: &Inner, thread: &JobThread) {
        thread.leave();
        let dropped = inner
            .outbox
            .as_ref()
            .map_or(Ok(()), |all| all.drop_job(&self.id));
        if let Err(error) = dropped {
            inner.say(&self.id, &error);
        }
        *self.merger() = None;
    }
}
