//! The thread of one job: batches to disk, answers to agents, inputs to the analysis.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use formats::{StoredBatch, StoredEntry, StoredError};
use model::Batch;
use protocol::Wanted;
use tokio::sync::oneshot;
use verdict::{Gathering, Remember};

use crate::alerts::Alerts;
use crate::chronicle::Chronicle;
use crate::collector::{Inner, Pages};
use crate::history::{Dates, Origin};
use crate::job::Held;
use crate::room::Room;
use crate::state::JobState;
use crate::store::{Store, write_whole};

/// Batches that go to disk together.
const GROUP: usize = 256;
/// How often the verdict is told anew at most, and looked after at least.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// How long a host that did not take leave may be quiet before it is waited for no more.
/// Agents speak every second.
const SILENT_AFTER: Duration = Duration::from_secs(30);
/// How long a job whose hosts all took leave may come back.
const LINGER: Duration = Duration::from_secs(2);
/// How long a job of which no host was heard of keeps its thread and its memory.
const GIVEN_UP_AFTER: Duration = Duration::from_hours(1);
/// Hosts of a job.
const MAX_HOSTS: usize = 1 << 14;
/// Epochs of all hosts of a job: each is an agent that was started anew.
const MAX_EPOCHS: usize = 1 << 16;

/// Pages of a job that has ended: complete in itself, and with the way back to the others.
pub(crate) const REPORT: &str = "report.html";
pub(crate) const LIVE: &str = "page.html";
/// Its verdict, and what is needed to list it.
pub(crate) const VERDICT: &str = "verdict.json";
pub(crate) const ENDED: &str = "ended.json";

/// A batch that came, and who waits for an answer.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) batch: Batch,
    pub(crate) boot: String,
    /// The host's clock when it was sent.
    pub(crate) now_ns: u64,
    /// When it came, in nanoseconds since 1970.
    pub(crate) at_ns: i64,
    /// As it came.
    pub(crate) body: axum::body::Bytes,
    pub(crate) answer: oneshot::Sender<Answer>,
    /// Where it came in a row: if the disk refuses one of a row, none that follows in it is taken.
    pub(crate) row: Option<u64>,
    /// What it takes of memory until it is analysed.
    pub(crate) room: Room,
}

/// Why an agent's batches are not taken once its host has another.
pub(crate) const REPLACED: &str = "another agent of this host has begun since: agents beside each \
                                   other need hosts' names of their own (--host)";

/// What is answered to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is on disk, now or since before.
    Kept { next: u64, wanted: Wanted, is_new: bool },
    /// Those from `next` on are missing.
    Gap { next: u64 },
    /// There is no room now.
    Full(String),
    /// The job has all the room it may have.
    Over(&'static str),
    /// Its host has another agent since.
    Stale,
}

/// What is known of the batches of a job.
#[derive(Debug, Default)]
struct Ledger {
    /// The next batch of each epoch of each host.
    next: BTreeMap<(String, String), u64>,
    /// The epoch of each host that began last.
    newest: BTreeMap<String, String>,
    /// The clock of each boot of each host.
    offsets_ns: BTreeMap<(String, String), i64>,
    /// Of the first batch: when it came, and the clock of its host.
    origin: Option<Origin>,
    last_seen_s: u64,
}

impl Ledger {
    fn note(&mut self, batch: &StoredBatch) {
        let StoredBatch { host, epoch, sequence, boot, offset_ns, at_s, .. } = batch;
        let known = self.next.insert((host.clone(), epoch.clone()), sequence + 1);
        if known.is_none() {
            self.newest.insert(host.clone(), epoch.clone());
        }
        self.offsets_ns.entry((host.clone(), boot.clone())).or_insert(*offset_ns);
        self.origin.get_or_insert(Origin { begun_s: *at_s, offset_ns: *offset_ns });
        self.last_seen_s = self.last_seen_s.max(*at_s);
    }

    fn next(&self, batch: &Batch) -> u64 {
        let key = (batch.host.clone(), batch.epoch.clone());
        self.next.get(&key).copied().unwrap_or(0)
    }

    fn offset_ns(&self, host: &str, boot: &str) -> Option<i64> {
        self.offsets_ns.get(&(host.to_owned(), boot.to_owned())).copied()
    }

    fn has_room(&self, batch: &Batch) -> bool {
        let is_known = self.next.contains_key(&(batch.host.clone(), batch.epoch.clone()));
        is_known || self.next.len() < MAX_EPOCHS && self.offsets_ns.len() < MAX_HOSTS
    }
}

/// A batch that is to be kept, and who waits to hear that it is.
type Kept = (StoredBatch, Batch, oneshot::Sender<Answer>, Room);

/// Whether nothing more is expected of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    No,
    Yes,
}

/// Why a job is not kept any more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parting {
    /// It has ended, as far as we know.
    Over,
    /// Somebody else keeps it.
    LetGo,
}

/// Keeps a job until it has ended.
pub(crate) struct Keeper {
    inner: Arc<Inner>,
    held: Arc<Held>,
    store: Store,
    ledger: Ledger,
    heard: BTreeMap<String, Instant>,
    /// When hosts were last looked through for silent ones.
    looked_at: Instant,
    /// Whether anything came since readers were told how the job is.
    is_fresh: bool,
    told_at: Instant,
    alerts: Option<Alerts>,
    chronicle: Chronicle,
    /// Whether the job was ended: its analysis takes nothing more.
    is_finished: bool,
    /// The last row of batches of which the disk refused one.
    refused: Option<u64>,
}

impl Keeper {
    /// Takes up a job: reads what is kept of it.
    pub(crate) fn open(inner: Arc<Inner>, held: Arc<Held>) -> Result<Self, StoredError> {
        let mut gathering = Gathering::new(&held.id, inner.options.settings.clone());
        let has_history = inner.outbox.is_some();
        gathering.remember(if has_history { Remember::Stages } else { Remember::Times });
        let mut chronicle = Chronicle::new(&inner, &held.id);
        let mut ledger = Ledger::default();
        let mut heard = BTreeMap::new();
        let store =
            Store::open(&inner.options.data, &held.id, |entry, batch| match entry {
                StoredEntry::Batch(stored) => {
                    ledger.note(&stored);
                    heard.insert(stored.host, Instant::now());
                    if let Some(batch) = batch {
                        gathering.take(batch);
                        let windows = gathering.take_records();
                        chronicle.take(windows, ledger.origin, gathering.job());
                    }
                }
                StoredEntry::Silent { host, .. } => {
                    gathering.lose(&host);
                    heard.remove(&host);
                }
                StoredEntry::Job { .. } => {}
            })?;
        gathering.take_lines();
        *held.gathering() = Some(gathering);
        let messenger = inner.messenger.clone();
        let alerts = messenger.map(|to| Alerts::open(to, &held.id, store.folder()));
        let mut keeper = Self {
            inner,
            held,
            store,
            ledger,
            heard,
            looked_at: Instant::now(),
            is_fresh: true,
            told_at: Instant::now(),
            alerts,
            chronicle,
            is_finished: false,
            refused: None,
        };
        keeper.tell(Over::No).ok();
        Ok(keeper)
    }

    /// Serves until all hosts have taken leave, or are silent for long, or somebody else keeps the
    /// job.
    pub(crate) fn run(&mut self, inbox: &Receiver<Arrived>) -> Parting {
        let mut last = Instant::now();
        loop {
            match inbox.recv_timeout(TELL_EVERY) {
                Ok(first) => {
                    let more = inbox.try_iter().take(GROUP - 1);
                    self.take(std::iter::once(first).chain(more).collect());
                    last = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Parting::LetGo,
            }
            // Not after every few batches: there may be ten thousand hosts.
            if self.looked_at.elapsed() >= TELL_EVERY {
                self.looked_at = Instant::now();
                self.look_for_silence();
            }
            let waits = self.alerts.as_ref().is_some_and(Alerts::waits);
            if (self.is_fresh || waits) && self.told_at.elapsed() >= TELL_EVERY {
                // What fails was said, and is tried again.
                self.tell(Over::No).ok();
            }
            let ended = self.held.gathering().as_ref().is_some_and(Gathering::ended);
            if ended && last.elapsed() >= LINGER
                || self.heard.is_empty() && last.elapsed() >= GIVEN_UP_AFTER
            {
                return Parting::Over;
            }
        }
    }

    /// Takes batches that came together: to disk first, then answered for, then analysed.
    pub(crate) fn take(&mut self, arrived: Vec<Arrived>) {
        self.is_fresh = true;
        let mut entries = Vec::new();
        let mut kept: Vec<Kept> = Vec::new();
        let mut again = Vec::new();
        let last_row = arrived.last().and_then(|last| last.row);
        for arrived in arrived {
            let Arrived { mut batch, boot, now_ns, at_ns, body, answer, row, room } =
                arrived;
            if row.is_some() && row == self.refused {
                let reason = "one before it could not be written".to_owned();
                drop(answer.send(Answer::Full(reason)));
                continue;
            }
            let same = |(stored, ..): &&Kept| {
                (&stored.host, &stored.epoch) == (&batch.host, &batch.epoch)
            };
            let before = kept.iter().rfind(same).map(|(stored, ..)| stored.sequence + 1);
            let next = before.unwrap_or_else(|| self.ledger.next(&batch));
            if batch.sequence < next {
                again.push((batch.sequence + 1, answer));
                continue;
            }
            // Another agent of the host has begun since, and tells again what this one had to tell.
            let newest = kept.iter().rfind(|(stored, ..)| stored.host == batch.host);
            let newest = newest.map(|(stored, ..)| &stored.epoch);
            let newest = newest.or_else(|| self.ledger.newest.get(&batch.host));
            if next > 0 && newest != Some(&batch.epoch) {
                drop(answer.send(Answer::Stale));
                continue;
            }
            if batch.sequence > next {
                drop(answer.send(Answer::Gap { next }));
                continue;
            }
            let most = self.inner.options.job_bytes;
            if self.store.bytes() + entries.len() as u64 > most {
                drop(answer.send(Answer::Over("the job has no room left")));
                continue;
            }
            if !self.ledger.has_room(&batch) {
                drop(answer.send(Answer::Over("too many agents told of the job")));
                continue;
            }
            let measured_ns = at_ns.saturating_sub_unsigned(now_ns);
            let (offset_ns, first_ns) =
                self.offsets_ns(&kept, (&batch.host, &boot), measured_ns);
            batch.shift_ns = offset_ns.saturating_sub(first_ns);
            let stored = StoredBatch {
                host: batch.host.clone(),
                epoch: batch.epoch.clone(),
                sequence: batch.sequence,
                boot,
                offset_ns,
                at_s: at_ns.cast_unsigned() / 1_000_000_000,
                bytes: body.len() as u32,
            };
            drop(StoredEntry::Batch(stored.clone()).write(&mut entries));
            entries.extend_from_slice(&body);
            kept.push((stored, batch, answer, room));
        }
        let written = if entries.is_empty() { Ok(()) } else { self.append(&entries) };
        if let Err(error) = written {
            self.refused = last_row;
            let text = format!("the batches cannot be written: {error}");
            let refused = kept.into_iter().map(|(_, _, answer, _)| answer);
            for answer in refused.chain(again.into_iter().map(|(_, answer)| answer)) {
                drop(answer.send(Answer::Full(text.clone())));
            }
            return;
        }
        let wanted = self.held.gathering().as_ref().map(|gathering| Wanted {
            stacks: gathering.wanted_stacks(),
            profile: gathering.wanted_profile().cloned(),
            device_steps: gathering.wanted_device_steps().cloned(),
        });
        let wanted = wanted.unwrap_or_default();
        for (next, answer) in again {
            let wanted = wanted.clone();
            drop(answer.send(Answer::Kept { next, wanted, is_new: false }));
        }
        for (stored, batch, answer, _room) in kept {
            let (next, wanted) = (stored.sequence + 1, wanted.clone());
            drop(answer.send(Answer::Kept { next, wanted, is_new: true }));
            self.ledger.note(&stored);
            self.heard.insert(stored.host, Instant::now());
            if let Some(gathering) = self.held.gathering().as_mut() {
                gathering.take(batch);
                // Nobody watches here: incidents are told as messages.
                drop(gathering.take_lines());
                let windows = gathering.take_records();
                self.chronicle.take(windows, self.ledger.origin, gathering.job());
            }
        }
    }

    /// What leads to our clock from that of a host and its boot, and from that of the first batch;
    /// `measured_ns` if nothing is known yet.
    fn offsets_ns(
        &self,
        kept: &[Kept],
        of: (&str, &str),
        measured_ns: i64,
    ) -> (i64, i64) {
        let known = self.ledger.offset_ns(of.0, of.1).or_else(|| {
            let same =
                kept.iter().find(|(stored, ..)| (&*stored.host, &*stored.boot) == of);
            same.map(|(stored, ..)| stored.offset_ns)
        });
        let offset_ns = known.unwrap_or(measured_ns);
        let first = self.ledger.origin.map(|origin| origin.offset_ns);
        let first = first.or(kept.first().map(|(stored, ..)| stored.offset_ns));
        (offset_ns, first.unwrap_or(offset_ns))
    }

    /// Leaves the job to somebody else.
    pub(crate) fn leave(&self) {
        if let Some(alerts) = &self.alerts {
            alerts.leave();
        }
    }

    fn append(&mut self, entries: &[u8]) -> io::Result<()> {
        let begun = Instant::now();
        let written = self.store.append(entries);
        self.inner.metrics.appended(begun.elapsed(), written.is_ok(), entries.len());
        written
    }

    /// Waits no more for hosts that were not heard of for long.
    fn look_for_silence(&mut self) {
        if self.held.is_behind() {
            // Hosts may speak all the time: we cannot hear them, or not yet.
            self.heard.values_mut().for_each(|heard| *heard = Instant::now());
        }
        let is_silent = |heard: &Instant| heard.elapsed() >= SILENT_AFTER;
        let silent = self.heard.iter().filter(|(_, heard)| is_silent(heard));
        let silent: Vec<String> = silent.map(|(host, _)| host.clone()).collect();
        for host in silent {
            let leaves = self.held.gathering().as_ref().is_none_or(|g| g.has_left(&host));
            if !leaves {
                let at_s = seconds_now();
                let silent = StoredEntry::Silent { host: host.clone(), at_s };
                let mut entry = Vec::new();
                drop(silent.write(&mut entry));
                // What is not on disk did not happen; it is tried again with the next look.
                if self.append(&entry).is_err() {
                    return;
                }
                self.is_fresh = true;
                if let Some(gathering) = self.held.gathering().as_mut() {
                    gathering.lose(&host);
                }
            }
            self.heard.remove(&host);
        }
    }

    /// Tells readers how the job is. Fails if it is over, and its history cannot be written.
    fn tell(&mut self, over: Over) -> io::Result<()> {
        (self.told_at, self.is_fresh) = (Instant::now(), false);
        let Some(verdict) = self.held.tell(self.ledger.last_seen_s) else {
            return Ok(());
        };
        let written = self.chronicle.tell(&verdict, &self.held.summary(), over);
        // What is to be told of the past was told by who kept the job then.
        if let Some(alerts) = self.alerts.as_mut().filter(|_| !self.held.is_behind()) {
            let has_ended = self.held.summary().state == JobState::Ended;
            let is_silent = self.inner.silences.cover(&self.held.id, seconds_now());
            let has_ended = has_ended || over == Over::Yes;
            alerts.look(&verdict.incidents, has_ended, is_silent, Instant::now());
        }
        written
    }

    /// Ends the job and writes down what is to be said of it. If that fails it can be tried again;
    /// the job takes nothing more.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        let (report, live) = {
            let mut gathering = self.held.gathering();
            let Some(gathering) = gathering.as_mut() else { return Ok(()) };
            if !std::mem::replace(&mut self.is_finished, true) {
                gathering.finish();
                let windows = gathering.take_records();
                self.chronicle.take(windows, self.ledger.origin, gathering.job());
            }
            let Pages { report, live, .. } = self.inner.pages;
            (report(gathering.job()), live(gathering.job()))
        };
        self.tell(Over::Yes)?;
        let folder = self.store.folder();
        write_whole(&folder.join(REPORT), report.as_bytes())?;
        write_whole(&folder.join(LIVE), live.as_bytes())?;
        write_whole(&folder.join(VERDICT), self.held.verdict().as_bytes())?;
        let ended = Ended {
            batches_bytes: self.store.bytes(),
            job: self.held.summary(),
            dates: self.chronicle.dates(),
        };
        write_whole(&folder.join(ENDED), &serde_json::to_vec(&ended)?)?;
        self.inner.list_ended(&ended, &self.held.verdict());
        *self.held.gathering() = None;
        Ok(())
    }
}

/// What is written of a job that has ended, so that it is not analysed anew.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Ended {
    pub(crate) batches_bytes: u64,
    pub(crate) job: crate::JobSummary,
    /// When its incidents were.
    #[serde(default)]
    pub(crate) dates: Dates,
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

pub(crate) fn seconds_now() -> u64 {
    since_1970().as_secs()
}

pub(crate) fn nanoseconds_now() -> i64 {
    i64::try_from(since_1970().as_nanos()).unwrap_or(i64::MAX)
}
