//! Reads the batches of one job from the bus, and hands them to whoever keeps the job.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bus::{Arrival, BusError, Session};
use formats::unpack_batch;
use futures_util::StreamExt;
use model::Batch;
use protocol::{Command, Wanted};
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;
use tracing::{debug, debug_span};

use crate::collector::Inner;
use crate::job::{INBOX, JobHandle};
use crate::memory::unpacked_bytes;
use crate::state::JobState;
use crate::store::is_name;
use crate::worker::{Answer, Asker, PendingBatch, REPLACED};

/// Batches that are handed on together: as many as may wait for the thread of a job.
const TOGETHER: usize = INBOX;
/// How long a batch that came before those it follows waits for them, and how many may.
const EARLY_FOR: Duration = Duration::from_secs(5);
const MOST_EARLY: usize = 1024;
/// How often it is looked whether what is kept of a job was read.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Wait before batches are handed on again that could not be kept.
const FULL_FOR: Duration = Duration::from_secs(1);

/// Reads until the bus fails, or nobody holds the other end of `stop`; `position` says up to where.
/// What was handed on is answered when it returns.
pub(crate) async fn read(
    inner: &Arc<Inner>,
    session: &Session,
    held: &Arc<JobHandle>,
    position: &AtomicU64,
    mut stop: watch::Receiver<()>,
) -> Result<(), BusError> {
    // Until we know better: what a copy says of its end is of the past.
    held.set_behind(true);
    let since_s = take_up(inner, held).await;
    let (pending, arrivals) = session.arrivals(&held.id, since_s).await?;
    let mut is_behind = pending > 0;
    held.set_behind(is_behind);
    let mut arrivals = arrivals.ready_chunks(TOGETHER);
    let mut early = Early::default();
    let mut reached = 0;
    loop {
        let patience = if early.is_empty() { Duration::MAX } else { EARLY_FOR / 5 };
        let next = tokio::select! {
            next = tokio::time::timeout(patience, arrivals.next()) => next,
            _ = stop.changed() => return Ok(()),
        };
        let next = next.ok().flatten().unwrap_or_default();
        let next = next.into_iter().collect::<Result<Vec<_>, _>>()?;
        if let Some(last) = next.last() {
            reached = last.position;
            is_behind = last.pending > 0;
        }
        let (mut round, mut lost) = early.join(next);
        let mut wanted = BTreeMap::new();
        loop {
            let before = round.len();
            let handed = hand_all(inner, held, round).await;
            wanted.extend(handed.wanted);
            round = handed.early;
            if let Some(reason) = handed.is_over {
                // What is kept stays as it is; a restart may find more room.
                inner.say(&held.id, &format_args!("{reason}; no more of it is read"));
                drop(stop.changed().await);
                return Ok(());
            }
            if handed.is_full {
                tokio::select! {
                    () = tokio::time::sleep(FULL_FOR) => {}
                    _ = stop.changed() => return Ok(()),
                }
            } else if round.is_empty() || round.len() == before {
                break;
            }
        }
        lost.extend(early.wait(round));
        held.set_behind(is_behind);
        if early.is_empty() {
            position.store(reached, Ordering::Relaxed);
        }
        for (host, epoch) in lost {
            debug!(job = held.id, host, session = epoch, "batches are lost on the bus");
            inner.metrics.refused("gap");
            wanted.insert(host, Command::Lost { lost: epoch });
        }
        // What is of the past is past.
        for (host, command) in wanted.into_iter().filter(|_| !is_behind) {
            session.order(&held.id, &host, command.to_json().into_bytes()).await?;
        }
    }
}

/// Sees to it that what is kept of a job is read; when its newest batch came, in seconds since
/// 1970.
async fn take_up(inner: &Arc<Inner>, held: &Arc<JobHandle>) -> u64 {
    // Of one that has ended all is known.
    let is_unread =
        || held.verdict().is_empty() && held.summary().state != JobState::Ended;
    if is_unread() && !held.runs() && held.take_up(inner).is_err() {
        inner.say(&held.id, &"no thread can be started for it");
    }
    while is_unread() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    held.summary().last_seen_s
}

/// An agent of a host.
type Epoch = (String, String);

fn epoch_of(arrival: &Arrival) -> Epoch {
    let batch = arrival.batch.as_ref();
    batch.map(|batch| (batch.host.clone(), batch.epoch.clone())).unwrap_or_default()
}

/// Batches that came before those they follow, and agents whose missing ones never came: the bus
/// had dropped them for their age, or was told to.
#[derive(Default)]
struct Early {
    waiting: Vec<Arrival>,
    since: Option<Instant>,
    lost: BTreeSet<Epoch>,
}

impl Early {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What waits, in order, and after it what came; and of which lost agents something came.
    fn join(&mut self, arrivals: Vec<Arrival>) -> (Vec<Arrival>, BTreeSet<Epoch>) {
        let is_lost = |arrival: &Arrival| self.lost.contains(&epoch_of(arrival));
        let (lost, arrivals): (Vec<_>, Vec<_>) = arrivals.into_iter().partition(is_lost);
        let mut round = mem::take(&mut self.waiting);
        // Those of an agent in their order, and those of the next agent of its host after them.
        let mut begun: BTreeMap<Epoch, u64> = BTreeMap::new();
        for arrival in &round {
            let at = begun.entry(epoch_of(arrival)).or_insert(arrival.position);
            *at = (*at).min(arrival.position);
        }
        round.sort_by_key(|arrival| {
            let sequence = arrival.batch.as_ref().map(|batch| batch.sequence);
            (begun.get(&epoch_of(arrival)).copied(), sequence)
        });
        round.extend(arrivals);
        (round, lost.iter().map(epoch_of).collect())
    }

    /// Lets batches wait, if they have not for too long; the agents of those that have.
    fn wait(&mut self, waiting: Vec<Arrival>) -> BTreeSet<Epoch> {
        self.waiting = waiting;
        if self.waiting.is_empty() {
            self.since = None;
            return BTreeSet::new();
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < EARLY_FOR && self.waiting.len() <= MOST_EARLY {
            return BTreeSet::new();
        }
        self.since = None;
        let lost: BTreeSet<_> =
            self.waiting.drain(..).map(|one| epoch_of(&one)).collect();
        self.lost.extend(lost.iter().cloned());
        lost
    }
}

/// What became of batches.
#[derive(Default)]
struct Handed {
    /// By host, what is wanted of it.
    wanted: BTreeMap<String, Command>,
    /// Those that follow others that did not come, or were not kept.
    early: Vec<Arrival>,
    /// Whether the disk takes none now.
    is_full: bool,
    /// Why the job may have no more room.
    is_over: Option<&'static str>,
}

async fn hand_all(
    inner: &Arc<Inner>,
    held: &Arc<JobHandle>,
    arrivals: Vec<Arrival>,
) -> Handed {
    /// Those that are handed on together are a row.
    static ROWS: AtomicU64 = AtomicU64::new(0);
    let mut handed = Handed::default();
    let mut arrivals = arrivals.into_iter();
    loop {
        let part: Vec<_> = arrivals.by_ref().take(TOGETHER).collect();
        if part.is_empty() {
            return handed;
        }
        // What follows one that found no room waits with it: an agent's last batches must not come
        // after the first of the next.
        if handed.is_full {
            handed.early.extend(part);
            continue;
        }
        let row = ROWS.fetch_add(1, Ordering::Relaxed);
        let (to, of) = (Arc::clone(inner), Arc::clone(held));
        let hand = move || {
            let hand = |arrival| {
                let answer = hand(&to, &of, &arrival, row);
                (arrival, answer)
            };
            part.into_iter().map(hand).collect::<Vec<_>>()
        };
        for (arrival, answer) in spawn_blocking(hand).await.unwrap_or_default() {
            handed.add(inner, arrival, answer).await;
        }
    }
}

impl Handed {
    async fn add(
        &mut self,
        inner: &Inner,
        arrival: Arrival,
        answer: Option<oneshot::Receiver<Answer>>,
    ) {
        let Some(answer) = answer else {
            inner.metrics.refused("malformed");
            return;
        };
        match answer.await {
            Ok(Answer::Kept { wanted, is_new, .. }) => {
                inner.metrics.kept(is_new);
                if wanted != Wanted::default() {
                    self.wanted.insert(epoch_of(&arrival).0, Command::Wanted(wanted));
                }
            }
            Ok(Answer::Gap { .. }) => self.early.push(arrival),
            Ok(Answer::Stale) => {
                inner.metrics.refused("stale");
                let (host, epoch) = epoch_of(&arrival);
                let refused = (epoch, REPLACED.to_owned());
                self.wanted.insert(host, Command::Refused { refused });
            }
            Ok(Answer::Over(reason)) => {
                inner.metrics.refused("full");
                self.is_over = Some(reason);
            }
            // No room, or the job's thread is gone: whoever reads the bus can wait.
            Ok(Answer::Full(_)) | Err(_) => {
                inner.metrics.refused("full");
                self.is_full = true;
                self.early.push(arrival);
            }
        }
    }
}

/// Hands a batch to the thread of its job; `None` if nothing can be made of it.
fn hand(
    inner: &Arc<Inner>,
    held: &Arc<JobHandle>,
    arrival: &Arrival,
    row: u64,
) -> Option<oneshot::Receiver<Answer>> {
    let bus::Batch { host, epoch, sequence, now_ns, body } = arrival.batch.as_ref()?;
    let is_named = [host, epoch].into_iter().all(|name| is_name(name));
    let (begin, inputs) = unpack_batch(body).ok().filter(|_| is_named)?;
    let mut memory = inner.memory.none();
    let has_room = memory.hold(unpacked_bytes(body, &inputs));
    let batch = Batch {
        host: host.clone(),
        epoch: epoch.clone(),
        sequence: *sequence,
        shift_ns: 0,
        until: begin.until_ns,
        last: begin.last,
        inputs,
    };
    let session = epoch;
    let span = debug_span!("batch", job = held.id, host, session, sequence);
    let (asker, answered) = Asker::new(span);
    let (now_ns, at_ns, body) = (*now_ns, arrival.at_ns, body.clone());
    let (boot, row) = (begin.boot, Some(row));
    let pending = PendingBatch { batch, boot, now_ns, at_ns, body, asker, row, memory };
    // One that is not taken takes the other end of the answer with it.
    if has_room {
        drop(held.hand(inner, pending));
    }
    Some(answered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(epoch: &str, sequences: impl Iterator<Item = u64>) -> Vec<Arrival> {
        let arrival = |sequence| {
            let (host, epoch) = ("h".to_owned(), epoch.to_owned());
            let body = Vec::new().into();
            let batch = bus::Batch { host, epoch, sequence, now_ns: 0, body };
            Arrival { position: 1, pending: 0, at_ns: 0, batch: Some(batch) }
        };
        sequences.map(arrival).collect()
    }

    #[test]
    fn what_waits_goes_first_and_in_its_order() {
        let mut early = Early::default();
        assert!(early.wait(arrivals("e", [3, 1, 2].into_iter())).is_empty());
        let (round, lost) = early.join(arrivals("e", [7, 5].into_iter()));
        let sequence = |arrival: &Arrival| arrival.batch.as_ref().map(|b| b.sequence);
        let order: Vec<u64> = round.iter().filter_map(sequence).collect();
        assert_eq!((order, lost.len()), (vec![1, 2, 3, 7, 5], 0));
    }

    #[test]
    fn what_waits_of_an_agent_goes_before_what_waits_of_the_next() {
        let mut early = Early::default();
        let mut waiting = arrivals("old", [7, 6].into_iter());
        waiting.extend(arrivals("new", [1, 0].into_iter()));
        for (position, arrival) in (1..).zip(&mut waiting) {
            arrival.position = position;
        }
        early.wait(waiting);
        let (round, _) = early.join(Vec::new());
        let place = |arrival: &Arrival| {
            Some((epoch_of(arrival).1, arrival.batch.as_ref()?.sequence))
        };
        let order: Vec<_> = round.iter().filter_map(place).collect();
        let of = |epoch: &str, sequence| (epoch.to_owned(), sequence);
        assert_eq!(order, [of("old", 6), of("old", 7), of("new", 0), of("new", 1)]);
    }

    #[test]
    fn an_agent_whose_batches_are_missing_hears_it_with_each_that_comes() {
        let mut early = Early::default();
        let many = arrivals("old", 1..MOST_EARLY as u64 + 2);
        let lost = BTreeSet::from([("h".to_owned(), "old".to_owned())]);
        assert_eq!(early.wait(many), lost);
        assert!(early.is_empty());
        for _ in 0..2 {
            let (round, again) = early.join(arrivals("old", 5..6));
            assert_eq!((round.len(), &again), (0, &lost));
        }
        let (round, again) = early.join(arrivals("new", 0..1));
        assert_eq!((round.len(), again.len()), (1, 0), "it has begun anew");
    }
}
