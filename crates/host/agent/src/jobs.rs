//! All jobs of a host: found by their rings, each watched until its processes are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ring::{RingDirectory, RingError, WatchClaim, clean_stale};
use verdict::Settings;

use crate::agent::Agent;
use crate::collector_link::Receiver;
use crate::uplink::{Destination, Uplink};

/// How long processes that were killed, or crashed, may take to be started again: launchers wait
/// for the others to end, meet anew, and load PyTorch.
const BACK_WITHIN: Duration = Duration::from_mins(1);
/// Age from which rings of dead jobs that nobody watched are removed.
const STALE_AFTER: Duration = Duration::from_mins(10);
/// How often such rings are looked for.
const CLEAN_EVERY: Duration = Duration::from_mins(1);

/// Where jobs are looked for, and whom they are reported to.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// The directory that the jobs have theirs in.
    pub root: PathBuf,
    /// This host's name.
    pub name: String,
    /// Whom to tell of them.
    pub receiver: Receiver,
    /// How jobs are analysed.
    pub settings: Settings,
}

/// Watches all jobs of this host, and tells a collector of them.
///
/// A job is watched by one process at a time; one that `laggard run` watches is left to it. What
/// was read and not sent when an agent died is read again by the next from the rings: the
/// collector takes of it what it has not had.
#[derive(Debug)]
pub struct HostJobs {
    host: Arc<HostOptions>,
    watched: BTreeMap<PathBuf, JoinHandle<WatchOutcome>>,
    /// Directories that cannot be watched, until they are gone.
    left_alone: BTreeSet<PathBuf>,
    cleaned: Option<Instant>,
    stop: Arc<AtomicBool>,
    /// For those who watch the agent.
    log: fn(&str),
}

/// How the watching of a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchOutcome {
    /// All is sent, or the next agent will send it.
    Done,
    /// A fault of our own.
    Failed,
}

impl HostJobs {
    /// No job yet; `log` takes what is said of each.
    pub fn new(host: HostOptions, log: fn(&str)) -> Self {
        Self {
            host: Arc::new(host),
            watched: BTreeMap::new(),
            left_alone: BTreeSet::new(),
            cleaned: None,
            stop: Arc::default(),
            log,
        }
    }

    /// Looks for new jobs, and for those that have ended.
    pub fn look(&mut self, now: Instant) {
        for (path, thread) in self
            .watched
            .extract_if(.., |_, thread| thread.is_finished())
        {
            // The same rings would bring the same fault again at every look.
            if thread.join().ok() != Some(WatchOutcome::Done) {
                self.left_alone.insert(path);
            }
        }
        self.left_alone.retain(|path| path.is_dir());
        let entries = fs::read_dir(&self.host.root)
            .into_iter()
            .flatten()
            .flatten();
        for path in entries.map(|entry| entry.path()) {
            if self.watched.contains_key(&path) || self.left_alone.contains(&path) {
                continue;
            }
            match self.claim(&path) {
                Ok(Some((directory, claim))) => self.watch(directory, claim),
                Ok(None) => {}
                // Its watcher has just removed it.
                Err(_) if !path.is_dir() => {}
                Err(error) => {
                    (self.log)(&format!("a job is not watched: {error}"));
                    self.left_alone.insert(path);
                }
            }
        }
        if self
            .cleaned
            .is_none_or(|cleaned| now.duration_since(cleaned) >= CLEAN_EVERY)
        {
            self.cleaned = Some(now);
            // There may be no job yet, and so no directory.
            drop(clean_stale(&self.host.root, STALE_AFTER));
        }
    }

    /// Claims a job that has processes, or whose end nobody has reported.
    fn claim(&self, path: &Path) -> Result<Option<(RingDirectory, WatchClaim)>, RingError> {
        let Some(name) = path.file_name().and_then(OsStr::to_str) else {
            return Ok(None);
        };
        if !path.is_dir() {
            return Ok(None);
        }
        let directory = RingDirectory::open(path)?;
        if !directory.has_writer() {
            // The job has ended. If somebody has watched it and its rings are still there, that
            // watcher died before it reported the end.
            let is_unreported =
                directory.was_claimed() && directory.rings().is_ok_and(|rings| !rings.is_empty());
            if !is_unreported {
                return Ok(None);
            }
        }
        Ok(directory
            .claim(&self.name_of(name))?
            .map(|claim| (directory, claim)))
    }

    /// The job's name for the collector: one that it was given is the same on all its hosts, one
    /// that was made up, after the process that started it, is of this host and this time.
    fn name_of(&self, directory: &str) -> String {
        let number = directory.strip_prefix("job-").unwrap_or_default();
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return directory.to_owned();
        }
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        format!("{}-{directory}-{}", self.host.name, since_epoch.as_secs())
    }

    fn watch(&mut self, directory: RingDirectory, claim: WatchClaim) {
        let path = directory.path().to_owned();
        let (host, stop, log) = (Arc::clone(&self.host), Arc::clone(&self.stop), self.log);
        let name = claim.job().to_owned();
        let builder = thread::Builder::new().name("laggard-job".to_owned());
        let thread = builder.spawn(move || {
            let name = claim.job().to_owned();
            let say = |text: &str| log(&format!("job {name}: {text}"));
            say("watched");
            // A fault in the watching of one job must not end that of the others.
            catch_unwind(AssertUnwindSafe(|| {
                watch(&directory, &claim, &host, &stop, &say)
            }))
            .unwrap_or_else(|_| {
                say("no longer watched after an internal fault; the job continues");
                WatchOutcome::Failed
            })
        });
        match thread {
            Ok(thread) => drop(self.watched.insert(path, thread)),
            // Tried again at the next look.
            Err(error) => (self.log)(&format!("job {name}: not watched: {error}")),
        }
    }

    /// Tells the collector the rest of what is there, and ends. Jobs go on, and their next agent
    /// with them.
    pub fn leave(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.watched.into_values() {
            // It has said what went wrong.
            drop(thread.join());
        }
    }
}

/// Watches a job until its processes are gone, or we have to go.
fn watch(
    directory: &RingDirectory,
    claim: &WatchClaim,
    host: &HostOptions,
    stop: &AtomicBool,
    say: &dyn Fn(&str),
) -> WatchOutcome {
    let mut agent = Agent::new(directory.clone(), claim.job(), host.settings.clone());
    match Uplink::start(Destination {
        receiver: host.receiver.clone(),
        job: claim.job().to_owned(),
        host: host.name.clone(),
    }) {
        Ok(uplink) => agent.tell_collector(uplink),
        Err(error) => {
            say(&format!("not watched: {error}"));
            return WatchOutcome::Failed;
        }
    }
    let mut over_since = None;
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        agent.poll(now).iter().for_each(|line| say(line));
        over_since = over_since.or(Some(now)).filter(|_| agent.is_over());
        let is_over = over_since.is_some_and(|since| {
            // Ranks that closed their rings do not come back; others may be started again.
            let closed = agent.ranks().all(|rank| rank.closed);
            closed || now.duration_since(since) >= BACK_WITHIN
        });
        // Not before all is taken: what is not could only be read from the rings again.
        if is_over && !agent.is_behind() {
            let (job, is_delivered) = agent.finish();
            // Otherwise the rings stay: the next agent sends the rest of them.
            if is_delivered && !directory.has_writer() {
                // What resists is removed when it is stale.
                drop(directory.remove());
            }
            let verdict = job.verdict();
            let (steps, incidents) = (verdict.job.steps, verdict.incidents.len());
            say(&format!(
                "ended after {steps} steps, incidents: {incidents}"
            ));
            return WatchOutcome::Done;
        }
        thread::sleep(agent.patience(now));
    }
    agent.pause();
    WatchOutcome::Done
}
