//! Reads the batches of one job from the bus, and hands them to the worker that keeps the job.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bus::{BusError, Session, StreamMessage};
use formats::unpack_batch;
use futures_util::StreamExt;
use model::Batch;
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;
use tracing::{debug, debug_span};

use crate::clock::Now;
use crate::collector::Inner;
use crate::early_batches::{EARLY_FOR, EarlyBatches, Round, RoundStep, TOGETHER};
use crate::job::JobHandle;
use crate::memory::unpacked_bytes;
use crate::state::JobState;
use crate::store::is_name;
use crate::worker::{BatchOutcome, PendingAnswer, PendingBatch};

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
    let mut early = EarlyBatches::default();
    let mut reached = 0;
    loop {
        // Nothing more may come that would end the wait for what is missing.
        let patience = if early.is_empty() {
            Duration::MAX
        } else {
            EARLY_FOR / 5
        };
        let next = tokio::select! {
            next = tokio::time::timeout(patience, arrivals.next()) => next,
            _ = stop.changed() => return Ok(()),
        };
        // A failure ends the session; a time that runs out hands on nothing but what waits.
        let next = next
            .ok()
            .flatten()
            .unwrap_or_default()
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(last) = next.last() {
            reached = last.position;
            is_behind = last.pending > 0;
        }
        let mut round = Round::begin(&mut early, next);
        loop {
            hand_all(inner, held, &mut round).await;
            match round.next() {
                RoundStep::Again => {}
                RoundStep::Done => break,
                RoundStep::Wait => tokio::select! {
                    () = tokio::time::sleep(FULL_FOR) => {}
                    _ = stop.changed() => return Ok(()),
                },
                RoundStep::Over(reason) => {
                    // What is kept stays as it is; a restart may find more room.
                    inner.say(
                        &held.id,
                        &format_args!("{reason}; its batches are no longer read"),
                    );
                    drop(stop.changed().await);
                    return Ok(());
                }
            }
        }
        let (commands, lost) = round.end(&mut early, Now::read());
        for (host, session) in &lost {
            debug!(job = held.id, host, session, "batches are lost on the bus");
            inner.metrics.refused("gap");
        }
        held.set_behind(is_behind);
        // What waits is not on disk yet: the collector that takes the job over must read it again.
        if early.is_empty() {
            position.store(reached, Ordering::Relaxed);
        }
        // What is of the past is past.
        for (host, command) in commands.into_iter().filter(|_| !is_behind) {
            session
                .order(&held.id, &host, command.to_json().into_bytes())
                .await?;
        }
    }
}

/// Sees to it that what is kept of a job is read; when its newest batch came, in seconds since
/// 1970.
async fn take_up(inner: &Arc<Inner>, held: &Arc<JobHandle>) -> u64 {
    // Of one that has ended all is known.
    if is_unread(held) && !held.runs() && held.take_up(inner).is_err() {
        inner.say(&held.id, &"no thread can be started for it");
    }
    while is_unread(held) {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    held.summary().last_seen_s
}

fn is_unread(held: &JobHandle) -> bool {
    held.verdict().is_empty() && held.summary().state != JobState::Ended
}

/// Hands on what a round has, as many batches together as may be.
async fn hand_all(inner: &Arc<Inner>, held: &Arc<JobHandle>, round: &mut Round) {
    /// Those that are handed on together are a row.
    // Of the process: a job is read anew after the bus was away, and its thread still knows which
    // row the disk refused.
    static ROWS: AtomicU64 = AtomicU64::new(0);
    loop {
        let part = round.part();
        if part.is_empty() {
            return;
        }
        let row = ROWS.fetch_add(1, Ordering::Relaxed);
        let (to, of) = (Arc::clone(inner), Arc::clone(held));
        let handed = spawn_blocking(move || {
            part.into_iter()
                .map(|arrival| {
                    let answered = hand(&to, &of, &arrival, row);
                    (arrival, answered)
                })
                .collect::<Vec<_>>()
        });
        for (arrival, answered) in handed.await.unwrap_or_default() {
            let Some(answered) = answered else {
                inner.metrics.refused("malformed");
                continue;
            };
            // The reader of the bus can wait, also for a thread of the job that is gone.
            let answer = answered
                .await
                .unwrap_or_else(|_| BatchOutcome::Full("the job is no longer kept".to_owned()));
            match &answer {
                BatchOutcome::Kept { is_new, .. } => inner.metrics.kept(*is_new),
                BatchOutcome::Gap { .. } => {}
                BatchOutcome::Stale => inner.metrics.refused("stale"),
                BatchOutcome::Over(_) | BatchOutcome::Full(_) => {
                    inner.metrics.refused("full");
                }
            }
            round.answered(arrival, answer);
        }
    }
}

/// Hands a batch to the thread of its job; `None` if nothing can be made of it.
fn hand(
    inner: &Arc<Inner>,
    held: &Arc<JobHandle>,
    arrival: &StreamMessage,
    row: u64,
) -> Option<oneshot::Receiver<BatchOutcome>> {
    let bus::BusBatch {
        host,
        session,
        sequence,
        now_ns,
        body,
    } = arrival.batch.as_ref()?;
    let is_named = [host, session].into_iter().all(|name| is_name(name));
    let (begin, inputs) = unpack_batch(body).ok().filter(|_| is_named)?;
    let mut memory = inner.memory.none();
    let has_room = memory.hold(unpacked_bytes(body, &inputs));
    let batch = Batch {
        host: host.clone(),
        session: session.clone(),
        sequence: *sequence,
        shift_ns: 0,
        watermark: begin.watermark,
        last: begin.last,
        inputs,
    };
    let span = debug_span!("batch", job = held.id, host, session, sequence);
    let (asker, answered) = PendingAnswer::new(span);
    let (now_ns, at_ns, body) = (*now_ns, arrival.at_ns, body.clone());
    let (boot, row) = (begin.boot, Some(row));
    let pending = PendingBatch {
        batch,
        boot,
        now_ns,
        at_ns,
        body,
        asker,
        row,
        memory,
    };
    // One that is not taken takes the other end of the answer with it.
    if has_room {
        drop(held.hand(inner, pending));
    }
    Some(answered)
}
