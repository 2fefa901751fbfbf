use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

use model::{Incident, Verdict};
use tracing::info;
use verdict::{Job, Settings};

use crate::access::Tokens;
use crate::api;
use crate::catalogue::Catalogue;
use crate::clock::seconds_now;
use crate::cluster_member::ClusterMember;
use crate::history::{Dated, HistoryOptions, Outbox, PlaceError, drop_unended};
use crate::job::JobHandle;
use crate::job_thread::{ENDED, EndedJob, VERDICT};
use crate::memory::MemoryBudget;
use crate::metrics::Metrics;
use crate::ownership::OwnershipTable;
use crate::retention::{Keep, Stock, folder_bytes};
use crate::silences::Silences;
use crate::state::ListedJob;
use crate::store;
use crate::tls::Certificate;
use crate::webhook::{AlertOutbox, Webhook};

/// How long a collector that was killed may take to let go of its folder.
const LEAVES_WITHIN: Duration = Duration::from_secs(2);
/// Threads that answer; the analysis of jobs has its own.
const THREADS: usize = 2;

/// How a collector is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where jobs are kept.
    pub data: PathBuf,
    /// How jobs are analysed.
    pub settings: Settings,
    /// Who may do what.
    pub tokens: Tokens,
    /// Jobs that are analysed at once at most.
    pub jobs: usize,
    /// Bytes that are kept of a job at most.
    pub job_bytes: u64,
    /// What is kept of jobs that have ended.
    pub keep: Keep,
    /// What it proves with who it is, to those who connect with TLS; without it nobody does.
    pub certificate: Option<Certificate>,
    /// Whom to tell of incidents.
    pub webhook: Option<Webhook>,
    /// Where what was found is kept as tables.
    pub history: Option<HistoryOptions>,
    /// The bus to read batches from, where several share the jobs.
    pub bus: Option<ClusterMember>,
}

/// How what is known is shown.
#[derive(Clone, Copy, Debug)]
pub struct Pages {
    /// A job, as a page that is complete in itself.
    pub report: fn(&Job) -> String,
    /// The same, which follows the job while it runs.
    pub live: fn(&Job) -> String,
    /// One incident of a verdict by its id, if there is such a one.
    pub incident: fn(&Verdict, &str) -> Option<String>,
    /// The list of jobs, which keeps itself up to date.
    pub overview: fn() -> String,
}

/// A collector that cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The operating system refuses the folder.
    #[error("cannot keep jobs in {}: {source}", path.display())]
    Data {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Two collectors would write the same files.
    #[error("another collector keeps its jobs in {}", path.display())]
    Shared {
        /// The folder.
        path: PathBuf,
    },
    /// The history cannot be kept there.
    #[error(transparent)]
    History(#[from] PlaceError),
    /// Anyone who reaches the address could send and read everything.
    #[error("{address} can be reached from other hosts: use --tokens FILE")]
    Open {
        /// The address.
        address: SocketAddr,
    },
}

/// Gathers, keeps and tells.
#[derive(Debug)]
pub struct Collector {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) options: Options,
    pub(crate) pages: Pages,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) memory: MemoryBudget,
    pub(crate) outbox: Option<Arc<Outbox>>,
    /// `None` where the disk refuses one.
    pub(crate) catalogue: Option<Catalogue>,
    /// Whether it took what it was sent last.
    is_listed: AtomicBool,
    pub(crate) alerts: Option<AlertOutbox>,
    pub(crate) silences: Arc<Silences>,
    /// Who keeps which job, if several share them.
    pub(crate) ownership: Option<OwnershipTable>,
    jobs: RwLock<BTreeMap<String, Arc<JobHandle>>>,
    /// For those who watch the collector itself.
    log: fn(&str),
    /// Locked as long as we live, so that nobody else writes to the folder.
    _lock: File,
}

impl Collector {
    /// Takes up the jobs that are kept in the folder. `log` is told what goes wrong.
    ///
    /// # Errors
    /// [`OpenError::Data`], [`OpenError::Shared`] and [`OpenError::History`].
    pub fn open(options: Options, pages: Pages, log: fn(&str)) -> Result<Self, OpenError> {
        let path = options.data.clone();
        let data = |source| OpenError::Data {
            path: path.clone(),
            source,
        };
        fs::create_dir_all(&path).map_err(data)?;
        // No folder of a job begins with a dot.
        let lock = File::create(path.join(".lock")).map_err(data)?;
        let begun = Instant::now();
        // The kernel takes the lock from a process that dies: a kill leaves nothing to clear away.
        while let Err(error) = lock.try_lock() {
            match error {
                fs::TryLockError::Error(source) => return Err(data(source)),
                fs::TryLockError::WouldBlock if begun.elapsed() >= LEAVES_WITHIN => {
                    return Err(OpenError::Shared { path });
                }
                fs::TryLockError::WouldBlock => thread::sleep(LEAVES_WITHIN / 20),
            }
        }
        let metrics = Arc::new(Metrics::new());
        let webhook = options.webhook.as_ref();
        // Before the jobs, whose threads resume in it what was announced.
        let alerts =
            webhook.map(|webhook| AlertOutbox::open(&path, webhook.form, Arc::clone(&metrics)));
        let outbox = match &options.history {
            Some(history) => {
                let place = history.place.open()?;
                let age_s = options.keep.age_s;
                let (history, metrics) = ((history, place), Arc::clone(&metrics));
                if options.bus.is_some() {
                    drop_unended(&path).map_err(data)?;
                }
                Some(Outbox::open(&path, history, age_s, metrics, log).map_err(data)?)
            }
            None => None,
        };
        let catalogue = Catalogue::open(&path)
            .inspect_err(|error| log(&format!("there is no catalogue: {error}")));
        let inner = Arc::new(Inner {
            alerts,
            silences: Arc::new(Silences::open(&path)),
            ownership: options
                .bus
                .as_ref()
                .map(|bus| OwnershipTable::new(&bus.url)),
            options,
            pages,
            metrics,
            memory: MemoryBudget::new(),
            outbox,
            catalogue: catalogue.ok(),
            is_listed: AtomicBool::new(true),
            jobs: RwLock::default(),
            log,
            _lock: lock,
        });
        // One query instead of a file for each job that has ended: there may be thousands.
        let mut listed = inner.listed();
        for id in store::jobs(&path).map_err(data)? {
            let known = listed.remove(&id);
            let bytes = store::batches_bytes(&path, &id);
            // By its length: if something came since, what the catalogue says is of the past.
            let ended = known
                .clone()
                .filter(|(_, ended)| ended.is_some() && *ended == bytes)
                .map(|(summary, _)| summary)
                .or_else(|| inner.ended(&id));
            if ended.is_none() && !store::is_begun(&path, &id) {
                continue;
            }
            let runs = ended.is_none();
            let summary = ended.or(known.map(|(summary, _)| summary));
            let held = summary.map_or_else(|| JobHandle::new(&id), JobHandle::known);
            let held = Arc::new(held);
            inner.write_jobs().insert(id.clone(), Arc::clone(&held));
            // Of those that are shared somebody else may have taken it.
            if runs && inner.ownership.is_none() && held.take_up(&inner).is_err() {
                inner.say(&id, &"no thread can be started for it");
            }
        }
        // What is left in the catalogue has no folder any more.
        for id in listed.keys() {
            inner.unlist(id);
        }
        Ok(Self { inner })
    }

    /// Whether it may answer at `address`.
    ///
    /// # Errors
    /// [`OpenError::Open`].
    pub fn check(&self, address: SocketAddr) -> Result<(), OpenError> {
        let is_safe = address.ip().is_loopback() || !self.inner.options.tokens.is_empty();
        if is_safe {
            Ok(())
        } else {
            Err(OpenError::Open { address })
        }
    }

    /// Answers until the process is told to end.
    ///
    /// # Errors
    /// What [`Collector::check`] and the operating system say.
    pub fn serve(self, listener: TcpListener) -> io::Result<()> {
        self.check(listener.local_addr()?)
            .map_err(io::Error::other)?;
        // tokio takes a socket over as it is: a blocking one would hold up a thread that answers.
        listener.set_nonblocking(true)?;
        let Inner {
            alerts,
            options,
            log,
            ..
        } = &*self.inner;
        if let Some((alerts, webhook)) = alerts.as_ref().zip(options.webhook.clone()) {
            alerts.start(webhook, *log)?;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .enable_all()
            .build()?;
        runtime.block_on(api::serve(self.inner, listener))
    }
}

impl Inner {
    pub(crate) fn held(&self, id: &str) -> Option<Arc<JobHandle>> {
        self.jobs
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(id)
            .cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<JobHandle>> {
        let jobs = self.jobs.read().unwrap_or_else(PoisonError::into_inner);
        jobs.values().cloned().collect()
    }

    /// The job with this id, new if need be; `None` if too many run. Those that have ended take
    /// no memory worth speaking of.
    pub(crate) fn held_or_new(&self, id: &str) -> Option<Arc<JobHandle>> {
        let held = self.held(id);
        if held.as_ref().is_some_and(|held| held.is_in_memory()) {
            return held;
        }
        if self.is_full() {
            return None;
        }
        // Others may have come since the look: the limit is about memory, and need not be exact.
        let mut jobs = self.write_jobs();
        Some(Arc::clone(
            jobs.entry(id.to_owned())
                .or_insert_with(|| Arc::new(JobHandle::new(id))),
        ))
    }

    /// Forgets a job that has ended, and deletes what is kept of it; `None` if it has not.
    pub(crate) fn delete(&self, id: &str) -> Option<io::Result<()>> {
        // Locked until the folder is gone: it may not be that of a new job with the name.
        let mut jobs = self.write_jobs();
        let removed = self.remove(&mut jobs, id);
        if let Some(ownership) = self.ownership.as_ref().filter(|_| removed.is_some()) {
            ownership.delete(id);
        }
        removed
    }

    /// The same where others know already.
    pub(crate) fn delete_copy(&self, id: &str) -> Option<io::Result<()>> {
        self.remove(&mut self.write_jobs(), id)
    }

    fn remove(
        &self,
        jobs: &mut BTreeMap<String, Arc<JobHandle>>,
        id: &str,
    ) -> Option<io::Result<()>> {
        if jobs.get(id)?.runs() {
            return None;
        }
        jobs.remove(id);
        let removed = fs::remove_dir_all(self.options.data.join(store::file_name(id)));
        self.unlist(id);
        Some(removed)
    }

    /// Deletes what is kept of jobs that are too old, or too much.
    pub(crate) fn forget_surplus(&self) {
        let keep = self.options.keep;
        if keep.age_s.is_none() && keep.bytes.is_none() {
            return;
        }
        let stock = self
            .all()
            .into_iter()
            .map(|held| Stock {
                id: held.id.clone(),
                last_seen_s: self.last_seen_s(&held),
                bytes: folder_bytes(&self.options.data.join(store::file_name(&held.id))),
                runs: held.runs(),
            })
            .collect();
        for id in keep.surplus(stock, seconds_now()) {
            info!(
                job = id,
                "job forgotten: too old, or the oldest of too many"
            );
            if let Some(Err(error)) = self.delete(&id) {
                self.say(&id, &format_args!("it cannot be deleted: {error}"));
            }
        }
    }

    /// When the newest batch of a job came, in seconds since 1970. Of a damaged one only its file
    /// may say so: as 0 it would count as the oldest of all.
    fn last_seen_s(&self, held: &JobHandle) -> u64 {
        match held.summary().last_seen_s {
            0 => store::written_s(&self.options.data, &held.id).unwrap_or(0),
            known_s => known_s,
        }
    }

    fn write_jobs(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Arc<JobHandle>>> {
        self.jobs.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no job can be added.
    pub(crate) fn is_full(&self) -> bool {
        let jobs = self.jobs.read().unwrap_or_else(PoisonError::into_inner);
        jobs.values().filter(|held| held.is_in_memory()).count() >= self.options.jobs
    }

    /// A job that has ended, if nothing came of it since; the catalogue does not know it.
    fn ended(&self, id: &str) -> Option<ListedJob> {
        let ended: EndedJob = serde_json::from_str(&self.written(id, ENDED)?).ok()?;
        let bytes = store::batches_bytes(&self.options.data, id);
        let verdict = self.written(id, VERDICT)?;
        (bytes == Some(ended.batches_bytes)).then(|| {
            self.list_ended(&ended, &verdict);
            ended.job
        })
    }

    /// What the catalogue says of all jobs.
    fn listed(&self) -> BTreeMap<String, (ListedJob, Option<u64>)> {
        self.catalogue
            .as_ref()
            .and_then(|all| all.jobs().inspect_err(|error| self.not_listed(error)).ok())
            .unwrap_or_default()
    }

    /// Tells the catalogue of a job.
    pub(crate) fn list(
        &self,
        job: &ListedJob,
        batches_bytes: Option<u64>,
        incidents: &[Dated<&Incident>],
    ) {
        let Some(catalogue) = &self.catalogue else {
            return;
        };
        match catalogue.put(job, batches_bytes, incidents) {
            Ok(()) => self.is_listed.store(true, Ordering::Relaxed),
            Err(error) => self.not_listed(&error),
        }
    }

    /// Tells the catalogue of a job that has ended.
    pub(crate) fn list_ended(&self, ended: &EndedJob, verdict: &str) {
        let Ok(verdict) = serde_json::from_str::<Verdict>(verdict) else {
            return;
        };
        let last_seen_s = ended.job.last_seen_s as f64;
        let dated: Vec<_> = verdict
            .incidents
            .iter()
            .map(|what| {
                // Files of the first versions have no dates: the end of the job stands for them.
                let dates = ended.dates.get(&what.id).copied();
                let (begun_s, ended_s) = dates.unwrap_or((last_seen_s, None));
                Dated {
                    what,
                    begun_s,
                    ended_s,
                }
            })
            .collect();
        self.list(&ended.job, Some(ended.batches_bytes), &dated);
    }

    fn unlist(&self, id: &str) {
        if let Some(Err(error)) = self.catalogue.as_ref().map(|all| all.forget(id)) {
            self.not_listed(&error);
        }
    }

    /// Says that the catalogue cannot be written, once until it can.
    fn not_listed(&self, error: &rusqlite::Error) {
        if self.is_listed.swap(false, Ordering::Relaxed) {
            (self.log)(&format!("the catalogue cannot be written: {error}"));
        }
    }

    /// A page of a job that has ended.
    pub(crate) fn written(&self, id: &str, page: &str) -> Option<String> {
        let folder = self.options.data.join(store::file_name(id));
        fs::read_to_string(folder.join(page)).ok()
    }

    /// Tells those who watch the collector.
    pub(crate) fn tell(&self, what: &str) {
        (self.log)(what);
    }

    pub(crate) fn say(&self, job: &str, what: &dyn std::fmt::Display) {
        self.tell(&format!("job {job}: {what}"));
    }
}
