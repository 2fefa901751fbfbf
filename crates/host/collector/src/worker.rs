//! One job, by what comes and when: batches to be kept, answers to agents, inputs to the analysis.
//!
//! A [`JobWorker`] does no I/O and reads no clock. It is given [`Message`]s, and says what is to
//! be done as [`Effect`]s; `job_thread` does it. So tests can play disks that fail, kills and days.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use formats::{StoredBatch, StoredEntry};
use model::{Batch, Incident};
use protocol::HostOrders;
use tokio::sync::oneshot;
use tracing::{Span, debug};
use verdict::{HostMerger, Remember, Settings, WindowRecord};

use crate::alert_queue::Alert;
use crate::alerts::{Announcements, JobAlerts};
use crate::clock::Now;
use crate::history::{Dated, Dates, JobOrigin, Timeline, dated};
use crate::job::JobHandle;
use crate::memory::MemoryPermit;
use crate::silences::Silences;
use crate::state::JobState;

/// How often the verdict is published anew at most, and looked after at least.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a host that did not deregister may be quiet before it is waited for no more.
/// Agents speak every second.
const SILENT_AFTER: Duration = Duration::from_secs(30);
/// How long a job whose hosts all deregistered may come back.
const LINGER: Duration = Duration::from_secs(2);
/// How long a job of which no host was heard of keeps its thread and its memory.
const GIVEN_UP_AFTER: Duration = Duration::from_hours(1);
/// Hosts of a job.
const MAX_HOSTS: usize = 1 << 14;
/// Agent sessions of all hosts of a job: each is an agent that was started anew.
const MAX_SESSIONS: usize = 1 << 16;

/// A batch that came, and who waits for an answer.
#[derive(Debug)]
pub(crate) struct PendingBatch {
    pub(crate) batch: Batch,
    pub(crate) boot: String,
    /// The host's clock when it was sent.
    pub(crate) now_ns: u64,
    /// When it came, in nanoseconds since 1970.
    pub(crate) at_ns: i64,
    /// As it came.
    pub(crate) body: axum::body::Bytes,
    pub(crate) asker: PendingAnswer,
    /// Where it came in a row: if the disk refuses one of a row, none that follows in it is taken.
    pub(crate) row: Option<u64>,
    /// What it takes of memory until it is analysed.
    pub(crate) memory: MemoryPermit,
}

/// Why an agent's batches are not taken once its host has another.
pub(crate) const REPLACED: &str = "a newer agent reports this job under this host name: agents on \
                                   one host need different names (--host)";

/// What is answered to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BatchOutcome {
    /// It is on disk, now or since before.
    Kept {
        next: u64,
        wanted: HostOrders,
        is_new: bool,
    },
    /// Those from `next` on are missing.
    Gap { next: u64 },
    /// There is no room now.
    Full(String),
    /// The job has all the room it may have.
    Over(&'static str),
    /// Its host has another agent since.
    Stale,
}

/// Who waits for the answer to a batch.
#[derive(Debug)]
pub(crate) struct PendingAnswer {
    answer: oneshot::Sender<BatchOutcome>,
    /// From when the batch came until it is answered.
    span: Span,
}

impl PendingAnswer {
    /// Somebody, and where they hear the answer.
    pub(crate) fn new(span: Span) -> (Self, oneshot::Receiver<BatchOutcome>) {
        let (answer, answered) = oneshot::channel();
        (Self { answer, span }, answered)
    }

    /// Answers. Who asked may be gone.
    pub(crate) fn answer(self, answer: BatchOutcome) {
        debug!(parent: &self.span, ?answer, "answered");
        drop(self.answer.send(answer));
    }
}

/// What happened.
#[derive(Debug)]
pub(crate) enum Message {
    /// Batches came together.
    Batches(Vec<PendingBatch>),
    /// What became of the last [`Effect::Append`].
    Appended(io::Result<()>),
    /// The effects before [`Effect::Resume`] are done.
    Resume,
    /// Some time has passed.
    Tick,
    /// The job is to be ended. If that fails it can come again; the job takes nothing more.
    Finish,
}

/// What is to be done, in this order.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Add whole entries to what is kept of the job: all of them or none. The next message is
    /// [`Message::Appended`].
    Append(Vec<u8>),
    /// Answer to a batch.
    Answer(PendingAnswer, BatchOutcome),
    /// Do nothing else before [`Message::Resume`].
    Resume,
    /// Add windows to the history.
    Record(JobOrigin, Vec<Dated<WindowRecord>>),
    /// Note how the job is: its incidents with their dates.
    Publish(JobOrigin, Vec<Dated<Incident>>, Over),
    /// Send an alert.
    Alert(Box<Alert>),
    /// Write down what was announced.
    Announced(Vec<u8>),
    /// The job is over, as far as we know.
    Exit,
}

/// Whether nothing more is expected of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    No,
    Yes,
}

/// What is known of the batches of a job.
#[derive(Debug, Default)]
struct Ledger {
    /// The next batch of each session of each host.
    next: BTreeMap<(String, String), u64>,
    /// The session of each host that began last.
    newest: BTreeMap<String, String>,
    /// The clock of each boot of each host.
    offsets_ns: BTreeMap<(String, String), i64>,
    /// Of the first batch: when it came, and the clock of its host.
    origin: Option<JobOrigin>,
    last_seen_s: u64,
}

impl Ledger {
    fn note(&mut self, batch: &StoredBatch) {
        let StoredBatch {
            host,
            session,
            sequence,
            boot,
            offset_ns,
            at_s,
            ..
        } = batch;
        let known = self
            .next
            .insert((host.clone(), session.clone()), sequence + 1);
        if known.is_none() {
            self.newest.insert(host.clone(), session.clone());
        }
        self.offsets_ns
            .entry((host.clone(), boot.clone()))
            .or_insert(*offset_ns);
        self.origin.get_or_insert(JobOrigin {
            begun_s: *at_s,
            offset_ns: *offset_ns,
        });
        self.last_seen_s = self.last_seen_s.max(*at_s);
    }

    fn next(&self, batch: &Batch) -> u64 {
        let key = (batch.host.clone(), batch.session.clone());
        self.next.get(&key).copied().unwrap_or(0)
    }

    fn offset_ns(&self, host: &str, boot: &str) -> Option<i64> {
        self.offsets_ns
            .get(&(host.to_owned(), boot.to_owned()))
            .copied()
    }

    fn has_room(&self, batch: &Batch) -> bool {
        let is_known = self
            .next
            .contains_key(&(batch.host.clone(), batch.session.clone()));
        // By clocks, of which a host has one for each boot: hosts are counted nowhere.
        is_known || self.next.len() < MAX_SESSIONS && self.offsets_ns.len() < MAX_HOSTS
    }
}

/// A batch that is to be kept, and who waits to hear that it is.
type KeptBatch = (StoredBatch, Batch, PendingAnswer, MemoryPermit);

/// What waits for the disk, or for answers to be on their way.
#[derive(Debug)]
enum WaitsFor {
    /// Batches, and those that were kept before with the sequence that comes next.
    Batches {
        kept: Vec<KeptBatch>,
        again: Vec<(u64, PendingAnswer)>,
        last_row: Option<u64>,
    },
    /// Batches that are on disk and answered for.
    Accepted(Vec<(StoredBatch, Batch, MemoryPermit)>),
    /// Hosts that were not heard of for long.
    Silent(Vec<String>),
}

/// What decides about one job.
#[derive(Debug)]
pub(crate) struct JobWorker {
    handle: Arc<JobHandle>,
    silences: Arc<Silences>,
    /// Bytes that are kept of the job at most, and are.
    most_bytes: u64,
    bytes: u64,
    /// Bytes of the append under way.
    appending: u64,
    /// The analysis while what is kept is read; then it is where readers find it.
    reading: Option<HostMerger>,
    ledger: Ledger,
    timeline: Timeline,
    alerts: Option<JobAlerts>,
    heard: BTreeMap<String, Instant>,
    /// When hosts were last looked through for silent ones.
    looked_at: Instant,
    /// Whether anything came since readers were told how the job is, and when they were.
    is_fresh: bool,
    published_at: Instant,
    last_batch_at: Instant,
    /// Whether the job was ended: its analysis takes nothing more.
    is_finished: bool,
    /// The last row of batches of which the disk refused one.
    refused: Option<u64>,
    waiting: Option<WaitsFor>,
}

impl JobWorker {
    /// A job of which nothing is kept, or not yet read: [`JobWorker::replay`] takes what is, and
    /// [`JobWorker::ready`] ends that.
    pub(crate) fn new(
        handle: Arc<JobHandle>,
        settings: Settings,
        remember: Remember,
        silences: Arc<Silences>,
        most_bytes: u64,
        now: Now,
    ) -> Self {
        let mut merger = HostMerger::new(&handle.id, settings);
        merger.remember(remember);
        Self {
            handle,
            silences,
            most_bytes,
            bytes: 0,
            appending: 0,
            reading: Some(merger),
            ledger: Ledger::default(),
            timeline: Timeline::default(),
            alerts: None,
            heard: BTreeMap::new(),
            looked_at: now.at,
            is_fresh: true,
            published_at: now.at,
            last_batch_at: now.at,
            is_finished: false,
            refused: None,
            waiting: None,
        }
    }

    /// Takes an entry of what is kept.
    pub(crate) fn replay(
        &mut self,
        now: Now,
        entry: StoredEntry,
        batch: Option<Batch>,
    ) -> Option<Effect> {
        match entry {
            StoredEntry::Batch(stored) => {
                self.ledger.note(&stored);
                self.heard.insert(stored.host, now.at);
                let mut merger = self.reading.take()?;
                if let Some(batch) = batch {
                    merger.take(batch);
                }
                let recorded = self.record(&mut merger);
                self.reading = Some(merger);
                return recorded;
            }
            // At the same place among the batches as then, so that the same windows close without
            // the host.
            StoredEntry::Silent { host, .. } => {
                if let Some(merger) = &mut self.reading {
                    merger.lose(&host);
                }
                self.heard.remove(&host);
            }
            StoredEntry::Job { .. } => {}
        }
        None
    }

    /// All that is kept was read, so many bytes; `alerts` are those of the job where somebody is
    /// sent any.
    pub(crate) fn ready(&mut self, now: Now, bytes: u64, alerts: Option<JobAlerts>) -> Vec<Effect> {
        if let Some(mut merger) = self.reading.take() {
            // What was found while the past was read was said then.
            merger.take_announcements();
            *self.handle.merger() = Some(merger);
        }
        (self.bytes, self.alerts) = (bytes, alerts);
        self.publish(now, Over::No)
    }

    /// Takes a message; what is to be done.
    pub(crate) fn step(&mut self, now: Now, message: Message) -> Vec<Effect> {
        match message {
            Message::Batches(batches) => {
                // Also of batches that are not kept: somebody still reports the job.
                self.last_batch_at = now.at;
                self.take(batches)
            }
            Message::Appended(written) => self.appended(now, written),
            Message::Resume => self.analyse(now),
            Message::Tick => self.tick(now),
            Message::Finish => self.finish(now),
        }
    }

    /// When the job's incidents were.
    pub(crate) fn dates(&self) -> Dates {
        self.timeline.known().clone()
    }

    /// Takes batches that came together: to disk first, then answered for, then analysed.
    fn take(&mut self, batches: Vec<PendingBatch>) -> Vec<Effect> {
        self.is_fresh = true;
        let mut effects = Vec::new();
        let mut entries = Vec::new();
        let mut kept: Vec<KeptBatch> = Vec::new();
        let mut again = Vec::new();
        let last_row = batches.last().and_then(|last| last.row);
        for pending in batches {
            let PendingBatch {
                mut batch,
                boot,
                now_ns,
                at_ns,
                body,
                asker,
                row,
                memory,
            } = pending;
            if row.is_some() && row == self.refused {
                let reason = "a batch before it could not be written".to_owned();
                effects.push(Effect::Answer(asker, BatchOutcome::Full(reason)));
                continue;
            }
            // Those before it in this call count as kept, although they are not on disk yet.
            let next = kept
                .iter()
                .rfind(|(stored, ..)| {
                    (&stored.host, &stored.session) == (&batch.host, &batch.session)
                })
                .map_or_else(
                    || self.ledger.next(&batch),
                    |(stored, ..)| stored.sequence + 1,
                );
            // Kept before; its agent did not hear the answer.
            if batch.sequence < next {
                again.push((batch.sequence + 1, asker));
                continue;
            }
            // Another agent of the host has begun since, and tells again what this one had to tell.
            let newest = kept
                .iter()
                .rfind(|(stored, ..)| stored.host == batch.host)
                .map(|(stored, ..)| &stored.session)
                .or_else(|| self.ledger.newest.get(&batch.host));
            // A session of which nothing is kept begins now, and so is the newest.
            if next > 0 && newest != Some(&batch.session) {
                effects.push(Effect::Answer(asker, BatchOutcome::Stale));
                continue;
            }
            // What is kept has no gaps: the agent sends again from there.
            if batch.sequence > next {
                effects.push(Effect::Answer(asker, BatchOutcome::Gap { next }));
                continue;
            }
            if self.bytes + entries.len() as u64 > self.most_bytes {
                let refusal = BatchOutcome::Over("the job has no room left");
                effects.push(Effect::Answer(asker, refusal));
                continue;
            }
            if !self.ledger.has_room(&batch) {
                let refusal = BatchOutcome::Over("too many agents reported the job");
                effects.push(Effect::Answer(asker, refusal));
                continue;
            }
            // With the time on the way, which looks like a difference of clocks. Agents read theirs
            // as late as may be, so that it is short.
            let measured_ns = at_ns.saturating_sub_unsigned(now_ns);
            let (offset_ns, first_ns) = self.offsets_ns(&kept, (&batch.host, &boot), measured_ns);
            batch.shift_ns = offset_ns.saturating_sub(first_ns);
            // `at_ns` counts from 1970, and a batch has a few MiB at most: no cast loses anything.
            let stored = StoredBatch {
                host: batch.host.clone(),
                session: batch.session.clone(),
                sequence: batch.sequence,
                boot,
                offset_ns,
                at_s: at_ns.cast_unsigned() / 1_000_000_000,
                bytes: body.len() as u32,
            };
            // What is written to memory has room.
            drop(StoredEntry::Batch(stored.clone()).write(&mut entries));
            entries.extend_from_slice(&body);
            kept.push((stored, batch, asker, memory));
        }
        if entries.is_empty() {
            effects.extend(self.accept(kept, again));
        } else {
            self.waiting = Some(WaitsFor::Batches {
                kept,
                again,
                last_row,
            });
            effects.push(self.append(entries));
        }
        effects
    }

    /// What leads to our clock from that of a host and its boot, and from that of the first batch;
    /// `measured_ns` if nothing is known yet.
    fn offsets_ns(&self, kept: &[KeptBatch], of: (&str, &str), measured_ns: i64) -> (i64, i64) {
        // One measurement for a whole boot: the next would differ by the time on the network, and
        // what the host did would jump by that.
        let offset_ns = self
            .ledger
            .offset_ns(of.0, of.1)
            .or_else(|| {
                kept.iter()
                    .find(|(stored, ..)| (&*stored.host, &*stored.boot) == of)
                    .map(|(stored, ..)| stored.offset_ns)
            })
            .unwrap_or(measured_ns);
        let first_ns = self
            .ledger
            .origin
            .map(|origin| origin.offset_ns)
            .or(kept.first().map(|(stored, ..)| stored.offset_ns))
            .unwrap_or(offset_ns);
        (offset_ns, first_ns)
    }

    /// Asks for entries to be added.
    fn append(&mut self, entries: Vec<u8>) -> Effect {
        self.appending = entries.len() as u64;
        Effect::Append(entries)
    }

    fn appended(&mut self, now: Now, written: io::Result<()>) -> Vec<Effect> {
        let appending = mem::take(&mut self.appending);
        if written.is_ok() {
            self.bytes += appending;
        }
        match self.waiting.take() {
            Some(WaitsFor::Batches {
                kept,
                again,
                last_row,
            }) => match written {
                Ok(()) => self.accept(kept, again),
                Err(error) => {
                    self.refused = last_row;
                    let text = format!("the batches cannot be written: {error}");
                    let kept = kept.into_iter().map(|(_, _, asker, _)| asker);
                    kept.chain(again.into_iter().map(|(_, asker)| asker))
                        .map(|to| Effect::Answer(to, BatchOutcome::Full(text.clone())))
                        .collect()
                }
            },
            Some(WaitsFor::Silent(hosts)) => {
                // What is not on disk did not happen; it is tried again with the next look.
                if written.is_ok() {
                    self.lose(&hosts);
                }
                self.settle(now)
            }
            other => {
                self.waiting = other;
                Vec::new()
            }
        }
    }

    /// Answers for batches that are on disk: agents need not wait for the analysis.
    fn accept(&mut self, kept: Vec<KeptBatch>, again: Vec<(u64, PendingAnswer)>) -> Vec<Effect> {
        let wanted = self
            .handle
            .merger()
            .as_ref()
            .map(|merger| HostOrders {
                stacks: merger.wanted_stacks(),
                profile: merger.wanted_profile().cloned(),
                device_steps: merger.wanted_device_steps().cloned(),
            })
            .unwrap_or_default();
        let mut effects = Vec::new();
        for (next, to) in again {
            let answer = BatchOutcome::Kept {
                next,
                wanted: wanted.clone(),
                is_new: false,
            };
            effects.push(Effect::Answer(to, answer));
        }
        let mut accepted = Vec::new();
        for (stored, batch, to, memory) in kept {
            let next = stored.sequence + 1;
            let answer = BatchOutcome::Kept {
                next,
                wanted: wanted.clone(),
                is_new: true,
            };
            effects.push(Effect::Answer(to, answer));
            accepted.push((stored, batch, memory));
        }
        if !accepted.is_empty() {
            self.waiting = Some(WaitsFor::Accepted(accepted));
            effects.push(Effect::Resume);
        }
        effects
    }

    fn analyse(&mut self, now: Now) -> Vec<Effect> {
        let accepted = match self.waiting.take() {
            Some(WaitsFor::Accepted(accepted)) => accepted,
            other => {
                self.waiting = other;
                return Vec::new();
            }
        };
        let mut effects = Vec::new();
        // Each `_memory` is given back as soon as its batch is analysed: other batches need it.
        for (stored, batch, _memory) in accepted {
            self.ledger.note(&stored);
            self.heard.insert(stored.host, now.at);
            let handle = Arc::clone(&self.handle);
            if let Some(merger) = handle.merger().as_mut() {
                merger.take(batch);
                // Nobody watches here: incidents are sent as alerts.
                drop(merger.take_announcements());
                effects.extend(self.record(merger));
            }
        }
        effects
    }

    /// Dates the windows that were closed since the last call.
    fn record(&mut self, merger: &mut HostMerger) -> Option<Effect> {
        let windows = merger.take_records();
        let origin = self.ledger.origin?;
        let mut recorded = Vec::with_capacity(windows.len());
        for window in windows {
            let window = dated(window, origin);
            // Before its windows are noted: from then on the same step numbers mean other moments.
            let steps = window.what.first_step..window.what.first_step + window.what.steps;
            if self.timeline.starts_over(steps.start, window.begun_s) {
                let incidents = merger.job().verdict().incidents;
                self.timeline.date(&incidents, origin.begun_s as f64);
            }
            let ended_s = window.ended_s.unwrap_or(window.begun_s);
            self.timeline.note(steps, window.begun_s..ended_s);
            recorded.push(window);
        }
        (!recorded.is_empty()).then_some(Effect::Record(origin, recorded))
    }

    fn tick(&mut self, now: Now) -> Vec<Effect> {
        // Not after every few batches: there may be ten thousand hosts.
        if now.since(self.looked_at) >= LOOK_EVERY {
            self.looked_at = now.at;
            let silent = self.silent_hosts(now);
            if !silent.is_empty() {
                let mut entries = Vec::new();
                for host in &silent {
                    let (host, at_s) = (host.clone(), now.seconds());
                    drop(StoredEntry::Silent { host, at_s }.write(&mut entries));
                }
                self.waiting = Some(WaitsFor::Silent(silent));
                // The rest follows once it is on disk: nobody is told of silence that a restart
                // would forget.
                return vec![self.append(entries)];
            }
        }
        self.settle(now)
    }

    /// Hosts that were not heard of for long and did not deregister.
    fn silent_hosts(&mut self, now: Now) -> Vec<String> {
        if self.handle.is_behind() {
            // Hosts may speak all the time: we cannot hear them, or not yet.
            self.heard.values_mut().for_each(|heard| *heard = now.at);
        }
        let merger = self.handle.merger();
        // A host that deregistered is quiet for good: it is dropped here, or each look would find
        // it again.
        let (left, silent): (Vec<_>, Vec<_>) = self
            .heard
            .extract_if(.., |_, heard| now.since(*heard) >= SILENT_AFTER)
            .partition(|(host, _)| merger.as_ref().is_none_or(|it| it.has_left(host)));
        drop((merger, left));
        // Until that is on disk they were heard of when they were.
        self.heard.extend(silent.iter().cloned());
        silent.into_iter().map(|(host, _)| host).collect()
    }

    /// Waits no more for hosts.
    fn lose(&mut self, hosts: &[String]) {
        self.is_fresh = true;
        for host in hosts {
            self.heard.remove(host);
            if let Some(merger) = self.handle.merger().as_mut() {
                merger.lose(host);
            }
        }
    }

    /// Says how the job is where that is due, and whether it is over.
    fn settle(&mut self, now: Now) -> Vec<Effect> {
        let waits = self.alerts.as_ref().is_some_and(JobAlerts::waits);
        let is_due = now.since(self.published_at) >= LOOK_EVERY;
        // An alert that waits to be over changes with time alone: nothing has to come for it.
        let mut effects = if (self.is_fresh || waits) && is_due {
            self.publish(now, Over::No)
        } else {
            Vec::new()
        };
        let ended = self.handle.merger().as_ref().is_some_and(HostMerger::ended);
        let quiet = now.since(self.last_batch_at);
        if ended && quiet >= LINGER || self.heard.is_empty() && quiet >= GIVEN_UP_AFTER {
            effects.push(Effect::Exit);
        }
        effects
    }

    /// Tells readers how the job is.
    fn publish(&mut self, now: Now, over: Over) -> Vec<Effect> {
        (self.published_at, self.is_fresh) = (now.at, false);
        let Some(verdict) = self.handle.publish(self.ledger.last_seen_s) else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        if let Some(origin) = self.ledger.origin {
            let dated = self
                .timeline
                .date(&verdict.incidents, origin.begun_s as f64)
                .into_iter()
                .map(Dated::cloned)
                .collect();
            effects.push(Effect::Publish(origin, dated, over));
        }
        // What is to be said of the past was said by who kept the job then.
        if let Some(alerts) = self.alerts.as_mut().filter(|_| !self.handle.is_behind()) {
            let has_ended = self.handle.summary().state == JobState::Ended;
            let is_silent = self.silences.cover(&self.handle.id, now.seconds());
            let has_ended = has_ended || over == Over::Yes;
            let Announcements { alerts, announced } =
                alerts.look(&verdict.incidents, has_ended, is_silent, now);
            effects.extend(alerts.into_iter().map(|one| Effect::Alert(Box::new(one))));
            effects.extend(announced.map(Effect::Announced));
        }
        effects
    }

    fn finish(&mut self, now: Now) -> Vec<Effect> {
        let mut effects = Vec::new();
        // Once, however often the end is tried: its last windows must not count twice.
        if !mem::replace(&mut self.is_finished, true) {
            let handle = Arc::clone(&self.handle);
            if let Some(merger) = handle.merger().as_mut() {
                merger.finish();
                effects.extend(self.record(merger));
            }
        }
        effects.extend(self.publish(now, Over::Yes));
        effects
    }
}

#[cfg(test)]
pub(crate) mod tests;
