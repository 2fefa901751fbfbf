//! One of several collectors that share the jobs of a bus.
//!
//! The stream of a job is the truth while the job runs; what a collector keeps of it is a copy of
//! its beginning, on disk. Notes in a bucket say who keeps which job, and are replaced by
//! compare-and-set; another bucket forgets collectors that say nothing for ten seconds. A collector
//! that takes a job over reads its stream from where its own copy ends, so two that keep the same job
//! for a while do the same work twice and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bus::{BusAddress, BusError, Feed, KeeperNote, NewestBatch, Session};
use futures_util::StreamExt;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::{debug, info};

use crate::alerts::ANNOUNCED;
use crate::clock::Now;
use crate::collector::Inner;
use crate::ownership::{JobNote, Owner, OwnershipTable};
use crate::reader::read;
use crate::state::JobState;
use crate::store::{self, is_name, write_whole};

/// How often it is looked what is to be done.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a collector says that it is alive; it counts as dead after five times as long.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(2);
/// How often it is noted how a job is: if its verdict has changed, and at all.
const NOTE_EVERY: Duration = Duration::from_secs(2);
const NOTE_AT_LEAST_EVERY: Duration = Duration::from_secs(30);
/// How long to wait before the bus is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A bus, and who we are on it.
#[derive(Clone, Debug)]
pub struct ClusterMember {
    /// The bus.
    pub address: BusAddress,
    /// Where others reach us over HTTP.
    pub url: String,
}

/// Takes part until the process ends.
pub(crate) async fn take_part(inner: Arc<Inner>) {
    let Some((ownership, ClusterMember { address, .. })) =
        inner.ownership.as_ref().zip(inner.options.bus.as_ref())
    else {
        return;
    };
    let mut is_away = false;
    loop {
        let (tell, failed) = mpsc::channel(1);
        let error = match Box::pin(BusMember::join(&inner, ownership, address, tell)).await {
            Ok(mut member) => {
                info!(%address, "takes part");
                if std::mem::take(&mut is_away) {
                    inner.tell(&format!("the bus at {address} answers again"));
                }
                // A session is never repaired: whatever it has missed is read from the bus when it
                // is joined anew.
                let Err(error) = member.serve(failed).await;
                member.stop().await;
                error
            }
            Err(error) => error.to_string(),
        };
        if !std::mem::replace(&mut is_away, true) {
            inner.tell(&format!("the bus at {address}: {error}; it is tried again"));
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

/// A job that is read.
struct ReadJob {
    task: JoinHandle<()>,
    /// Dropped to end it.
    stop: watch::Sender<()>,
    /// Up to where its stream was read.
    position: Arc<AtomicU64>,
}

impl ReadJob {
    /// Reads no more: returns once nothing more is handed on.
    async fn end(self) {
        drop(self.stop);
        drop(self.task.await);
    }
}

/// A collector while it is connected.
struct BusMember<'a> {
    inner: Arc<Inner>,
    ownership: &'a OwnershipTable,
    session: Session,
    /// Where the newest batch of each job stands in the stream.
    newest: BTreeMap<String, u64>,
    newest_feed: Feed<NewestBatch>,
    notes: Feed<KeeperNote>,
    /// The newest note we know of each job: older ones that are still on their way say nothing.
    revisions: BTreeMap<String, u64>,
    kept: BTreeMap<String, ReadJob>,
    noted_at: BTreeMap<String, Instant>,
    announced_at: Option<Instant>,
    failed: mpsc::Sender<BusError>,
}

impl<'a> BusMember<'a> {
    async fn join(
        inner: &Arc<Inner>,
        ownership: &'a OwnershipTable,
        address: &BusAddress,
        failed: mpsc::Sender<BusError>,
    ) -> Result<Self, BusError> {
        let session = Session::open(address).await?;
        // Batches before notes: a job that begins between the two is then at worst taken a look
        // later.
        let (newest, newest_feed) = session.newest_batches().await?;
        let (before, notes) = session.notes().await?;
        let mut member = Self {
            inner: Arc::clone(inner),
            ownership,
            session,
            newest: BTreeMap::new(),
            newest_feed,
            notes,
            revisions: BTreeMap::new(),
            kept: BTreeMap::new(),
            noted_at: BTreeMap::new(),
            announced_at: None,
            failed,
        };
        for batch in newest {
            member.hear(batch);
        }
        // What was deleted while we were away is not there.
        ownership.view().notes.clear();
        for note in before {
            member.noted(note).await;
        }
        Ok(member)
    }

    async fn serve(
        &mut self,
        mut failed: mpsc::Receiver<BusError>,
    ) -> Result<std::convert::Infallible, String> {
        let mut look = tokio::time::interval(LOOK_EVERY);
        let session = self.session.clone();
        let lost = session.lost();
        tokio::pin!(lost);
        loop {
            let failure = tokio::select! {
                Some(batch) = self.newest_feed.next() => batch.map(|batch| self.hear(batch)),
                Some(note) = self.notes.next() => match note {
                    Ok(note) => {
                        self.noted(note).await;
                        Ok(())
                    }
                    Err(error) => Err(error),
                },
                _ = look.tick() => self.look(Now::read()).await,
                Some(error) = failed.recv() => Err(error),
                () = &mut lost => return Err("the connection is lost".to_owned()),
            };
            failure.map_err(|error| error.to_string())?;
        }
    }

    /// Reads no more; jobs stay ours until others know better. Their hosts cannot be heard.
    async fn stop(&mut self) {
        for (job, kept) in std::mem::take(&mut self.kept) {
            kept.end().await;
            if let Some(held) = self.inner.held(&job) {
                held.set_behind(true);
            }
        }
    }

    fn hear(&mut self, NewestBatch { job, position }: NewestBatch) {
        if is_name(&job) {
            let newest = self.newest.entry(job).or_default();
            *newest = position.max(*newest);
        }
    }

    /// Takes what somebody has noted of a job, perhaps we ourselves.
    async fn noted(
        &mut self,
        KeeperNote {
            job,
            revision,
            text,
        }: KeeperNote,
    ) {
        if text.is_empty() {
            // One of its name may be there again.
            if self
                .revisions
                .get(&job)
                .is_none_or(|known| *known < revision)
            {
                self.revisions.remove(&job);
                self.forgotten(&job).await;
                self.let_go(&job).await;
                // A collector that once kept the job has a copy.
                drop(self.inner.delete_copy(&job));
            }
            return;
        }
        let Ok(note) = serde_json::from_slice::<JobNote>(&text) else {
            return;
        };
        let is_ours = note.keeper == self.ownership.url();
        self.know(&job, revision, note);
        if is_ours {
            return;
        }
        if let Some(kept) = self.kept.remove(&job) {
            kept.end().await;
        }
        if self.let_go(&job).await {
            self.inner.say(&job, &"another collector keeps it");
        }
    }

    /// Ends the analysis of a job, if there is one; whether there was.
    async fn let_go(&mut self, job: &str) -> bool {
        let Some(held) = self.inner.held(job).filter(|held| held.runs()) else {
            return false;
        };
        // It waits for the job's thread, which may be writing.
        drop(spawn_blocking(move || held.let_go()).await);
        true
    }

    /// A job was deleted by its keeper.
    async fn forgotten(&mut self, job: &str) {
        self.ownership.view().notes.remove(job);
        self.newest.remove(job);
        if let Some(kept) = self.kept.remove(job) {
            kept.end().await;
        }
    }

    fn know(&mut self, job: &str, revision: u64, note: JobNote) {
        let known = self.revisions.entry(job.to_owned()).or_default();
        if revision > *known {
            *known = revision;
            self.ownership
                .view()
                .notes
                .insert(job.to_owned(), (revision, note));
        }
    }

    async fn look(&mut self, now: Now) -> Result<(), BusError> {
        if self
            .announced_at
            .is_none_or(|at| now.since(at) >= ANNOUNCE_EVERY)
        {
            // Others leave us out when they share free jobs: a job that we take and cannot hold
            // waits here.
            let has_room: &[u8] = if self.inner.is_full() {
                b"false"
            } else {
                b"true"
            };
            self.session
                .announce(self.ownership.url(), has_room.to_vec())
                .await?;
            self.look_who_is_here().await?;
            self.announced_at = Some(now.at);
        }
        for job in self.ownership.take_deleted() {
            // A copy of a job that somebody else keeps is only a copy.
            if self.ownership.owner(&job) == Owner::Us {
                self.forgotten(&job).await;
                self.session.forget(&job).await?;
            }
        }
        let have: BTreeSet<String> = self
            .inner
            .all()
            .into_iter()
            .filter(|held| held.summary().state != JobState::Ended)
            .map(|held| held.id.clone())
            .collect();
        let free = self.ownership.view().free(&self.newest, &have);
        if free
            .iter()
            .any(|job| self.ownership.view().notes.contains_key(job))
        {
            // Who keeps one of them may have come since.
            self.look_who_is_here().await?;
        }
        let ours = {
            let view = self.ownership.view();
            view.share(&view.free(&self.newest, &have), self.ownership.url())
        };
        for job in ours {
            self.take(&job, now).await?;
        }
        // Copied, so that nothing is locked while the bus is waited for.
        let ours: Vec<(String, u64, JobNote)> = self
            .ownership
            .view()
            .notes
            .iter()
            .filter(|(_, (_, note))| note.keeper == self.ownership.url())
            .map(|(job, (revision, note))| (job.clone(), *revision, note.clone()))
            .collect();
        for (job, revision, note) in ours {
            self.keep(&job, revision, note, now).await?;
        }
        Ok(())
    }

    async fn look_who_is_here(&mut self) -> Result<(), BusError> {
        let alive = self.session.alive().await?;
        self.ownership.view().alive = alive
            .into_iter()
            .map(|(url, has_room)| (url, has_room == b"true"))
            .collect();
        Ok(())
    }

    /// Takes a job that nobody keeps, unless somebody else is faster.
    async fn take(&mut self, job: &str, now: Now) -> Result<(), BusError> {
        let before = self.ownership.view().notes.get(job).cloned();
        let (revision, before) = before.map_or((0, None), |(at, note)| (at, Some(note)));
        let ours = JobNote {
            keeper: self.ownership.url().to_owned(),
            ended_at: None,
            job: before.as_ref().and_then(|note| note.job.clone()),
            announced: before.as_ref().and_then(|note| note.announced.clone()),
        };
        // Somebody else was faster: the note says who, and comes with the feed.
        if !self.note(job, revision, ours, now).await? {
            return Ok(());
        }
        if let Some(JobNote {
            keeper, announced, ..
        }) = before
        {
            self.inner
                .say(job, &format_args!("taken over from {keeper}"));
            let folder = self.inner.options.data.join(store::file_name(job));
            if let Some(announced) = announced.map(|announced| announced.to_string()) {
                // Not written: it is sent once more.
                drop(
                    std::fs::create_dir_all(&folder)
                        .and_then(|()| write_whole(&folder.join(ANNOUNCED), announced.as_bytes())),
                );
            }
        }
        Ok(())
    }

    /// Looks after a job of ours: that its stream is read, and others know how it is.
    async fn keep(
        &mut self,
        job: &str,
        revision: u64,
        note: JobNote,
        now: Now,
    ) -> Result<(), BusError> {
        let newest = self.newest.get(job).copied().unwrap_or(0);
        let held = self.inner.held(job);
        if held.is_none() && self.ownership.is_deleted(job) {
            // Since we began to look: the bus is told with the next look.
            return Ok(());
        }
        // One that has ended is read once more where the disk that had it was lost.
        let is_there = held.is_some() || newest == 0;
        if is_there && note.ended_at.is_some_and(|ended_at| newest <= ended_at) {
            return Ok(());
        }
        let Some(kept) = self.kept.get(job) else {
            if let Some(held) = held.or_else(|| self.inner.held_or_new(job)) {
                let position = Arc::new(AtomicU64::new(0));
                let (inner, session) = (Arc::clone(&self.inner), self.session.clone());
                let (failed, read_to) = (self.failed.clone(), Arc::clone(&position));
                let (stop, stopped) = watch::channel(());
                let task = tokio::spawn(async move {
                    let read = read(&inner, &session, &held, &read_to, stopped);
                    if let Err(error) = read.await {
                        // The first one that is heard ends the session.
                        drop(failed.try_send(error));
                    }
                });
                self.kept.insert(
                    job.to_owned(),
                    ReadJob {
                        task,
                        stop,
                        position,
                    },
                );
            }
            return Ok(());
        };
        let Some(held) = held else { return Ok(()) };
        let summary = held.summary();
        // Relaxed, as only a number is shared, and no data that it stands for.
        let is_read = kept.position.load(Ordering::Relaxed) >= newest;
        // Only at the end of the stream: batches that were not read yet may begin the job again.
        let has_ended = is_read && summary.state == JobState::Ended && !held.runs();
        if has_ended && let Some(kept) = self.kept.remove(job) {
            kept.end().await;
        }
        let since = self.noted_at.get(job).map(|at| now.since(*at));
        let known = note.job.as_ref().map(|job| (job.version, job.state));
        let is_new = known != Some((summary.version, summary.state));
        let every = if is_new {
            NOTE_EVERY
        } else {
            NOTE_AT_LEAST_EVERY
        };
        if has_ended || since.is_none_or(|since| since >= every) {
            let folder = self.inner.options.data.join(store::file_name(job));
            // It goes with the note: a collector that takes the job over must not announce it
            // again.
            let announced = std::fs::read(folder.join(ANNOUNCED)).ok();
            let note = JobNote {
                keeper: note.keeper,
                ended_at: has_ended.then_some(newest),
                job: Some(summary),
                announced: announced.and_then(|text| serde_json::from_slice(&text).ok()),
            };
            self.note(job, revision, note, now).await?;
        }
        Ok(())
    }

    /// Notes something of a job; whether nobody else has since.
    async fn note(
        &mut self,
        job: &str,
        revision: u64,
        note: JobNote,
        now: Now,
    ) -> Result<bool, BusError> {
        let text = serde_json::to_vec(&note).unwrap_or_default();
        let noted = self.session.note(job, revision, text).await?;
        if let Some(revision) = noted {
            debug!(job, revision, keeper = note.keeper, "noted");
            self.know(job, revision, note);
            self.noted_at.insert(job.to_owned(), now.at);
        }
        Ok(noted.is_some())
    }
}
