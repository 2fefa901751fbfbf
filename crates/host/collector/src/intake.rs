//! Batches as they come from hosts over HTTP: received, unpacked, handed to their job.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use formats::{BatchError, unpack_batch};
use http_body_util::BodyExt;
use model::Batch;
use protocol::{CLOCK_HEADER, KeptReply, Refusal};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{Instrument, Span, debug, debug_span};

use crate::api::{ApiState, App, later, refuse};
use crate::clock::Now;
use crate::job::NotTaken;
use crate::memory::{MemoryPermit, unpacked_bytes};
use crate::store::{NAMES, is_name};
use crate::worker::{BatchOutcome, PendingAnswer, PendingBatch, REPLACED};

/// Bytes of a batch as it comes; agents pack a MiB of lines.
const LONGEST_BODY_BYTES: usize = 4 << 20;
/// How long a batch may take to come; agents wait ten seconds for the answer.
const RECEIVED_WITHIN: Duration = Duration::from_secs(15);

/// Where a batch belongs: its job, host and agent session, and its sequence there.
type BatchAddressPath = (String, String, String, u64);

/// Takes a batch of a host.
pub(crate) async fn take_batch(
    State(shared): App,
    Path(address): Path<BatchAddressPath>,
    headers: HeaderMap,
    request: Request,
) -> Response {
    let (job, host, session, sequence) = &address;
    let span = debug_span!("batch", job, host, session, sequence);
    take(&shared, address, &headers, request)
        .instrument(span)
        .await
}

async fn take(
    shared: &ApiState,
    (job, host, session, sequence): BatchAddressPath,
    headers: &HeaderMap,
    request: Request,
) -> Response {
    let refused = |reason: &'static str, refusal: Response| {
        debug!(reason, "refused");
        shared.inner.metrics.refused(reason);
        refusal
    };
    // The stream is what collectors take jobs over by: a batch beside it would be in one copy only.
    if shared.inner.ownership.is_some() {
        let reason = "this collector takes batches from the bus: use --bus";
        return refused(
            "misdirected",
            later(StatusCode::MISDIRECTED_REQUEST, reason),
        );
    }
    let mut memory = shared.inner.memory.none();
    let whole = timeout(RECEIVED_WITHIN, receive(request.into_body(), &mut memory)).await;
    let body = match whole {
        Ok(Ok(body)) => body,
        Ok(Err(NotReceived::Large)) => {
            let reason = format!("a batch has at most {LONGEST_BODY_BYTES} bytes");
            return refused("large", refuse(StatusCode::PAYLOAD_TOO_LARGE, &reason));
        }
        Ok(Err(NotReceived::Busy)) => return refused("busy", too_many()),
        Ok(Err(NotReceived::Cut)) => {
            let reason = "the batch is cut off";
            return refused("malformed", refuse(StatusCode::BAD_REQUEST, reason));
        }
        Err(_) => {
            let seconds = RECEIVED_WITHIN.as_secs();
            let reason = format!("the batch took more than {seconds} s to arrive");
            return refused("slow", later(StatusCode::REQUEST_TIMEOUT, &reason));
        }
    };
    // Only what is whole takes a place: others need not wait for who is slow.
    let Ok(_place) = shared.places.try_acquire() else {
        return refused("busy", too_many());
    };
    if ![&job, &host, &session]
        .into_iter()
        .all(|name| is_name(name))
    {
        return refused("malformed", refuse(StatusCode::BAD_REQUEST, NAMES));
    }
    let now = headers
        .get(CLOCK_HEADER)
        .and_then(|now| now.to_str().ok()?.parse().ok());
    let Some(now_ns) = now else {
        let reason = "the header laggard-now-ns must hold the time of the host";
        return refused("malformed", refuse(StatusCode::BAD_REQUEST, reason));
    };
    debug!(bytes = body.len(), "received");
    let (inner, span) = (Arc::clone(&shared.inner), Span::current());
    // To unpack takes the processor for milliseconds, and the threads that answer are few.
    let handed = spawn_blocking(move || {
        let (head, inputs) = unpack_batch(&body).map_err(NotHanded::Malformed)?;
        if !memory.hold(unpacked_bytes(&body, &inputs)) {
            return Err(NotHanded::Job(NotTaken::Busy));
        }
        let batch = Batch {
            host,
            session,
            sequence,
            // The worker sets it, which knows the clock of this boot of the host.
            shift_ns: 0,
            watermark: head.watermark,
            last: head.last,
            inputs,
        };
        let (asker, answered) = PendingAnswer::new(span);
        let (boot, at_ns) = (head.boot, Now::read().nanoseconds());
        let row = None;
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
        // After it was unpacked: what is no batch must not make a job.
        let job = inner.held_or_new(&job).ok_or(NotHanded::Jobs)?;
        job.hand(&inner, pending).map_err(NotHanded::Job)?;
        Ok(answered)
    });
    let answered = match handed.await {
        // Nobody answers if the job's thread has ended meanwhile: then the agent sends it again.
        Ok(Ok(answered)) => answered.await.ok(),
        Ok(Err(reason)) => return not_handed(shared, reason),
        Err(_) => None,
    };
    match answered {
        Some(BatchOutcome::Kept {
            next,
            wanted,
            is_new,
        }) => {
            shared.inner.metrics.kept(is_new);
            axum::Json(KeptReply { next, wanted }).into_response()
        }
        Some(BatchOutcome::Gap { next }) => {
            let error = "batches before this one are missing".to_owned();
            let reply = axum::Json(Refusal {
                error,
                next: Some(next),
            });
            refused("gap", (StatusCode::CONFLICT, reply).into_response())
        }
        Some(BatchOutcome::Full(reason)) => {
            refused("full", later(StatusCode::INSUFFICIENT_STORAGE, &reason))
        }
        Some(BatchOutcome::Stale) => refused("stale", refuse(StatusCode::BAD_REQUEST, REPLACED)),
        Some(BatchOutcome::Over(reason)) => {
            refused("full", later(StatusCode::INSUFFICIENT_STORAGE, reason))
        }
        None => refused(
            "broken",
            later(StatusCode::SERVICE_UNAVAILABLE, "the job is no longer kept"),
        ),
    }
}

fn too_many() -> Response {
    later(
        StatusCode::SERVICE_UNAVAILABLE,
        "too many batches arrive at once",
    )
}

/// Why a batch is not whole.
enum NotReceived {
    Large,
    Busy,
    /// Its sender went away.
    Cut,
}

/// Receives a batch, and takes memory for what has come of it.
async fn receive(mut body: Body, memory: &mut MemoryPermit) -> Result<Bytes, NotReceived> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Err(NotReceived::Cut);
        };
        // Trailers, which no agent sends.
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if bytes.len() + data.len() > LONGEST_BODY_BYTES {
            return Err(NotReceived::Large);
        }
        bytes.extend_from_slice(&data);
        // As they come: what senders say of the length is not believed.
        if !memory.hold(bytes.len()) {
            return Err(NotReceived::Busy);
        }
    }
    Ok(bytes.into())
}

/// Why a batch did not get to its job.
enum NotHanded {
    Malformed(BatchError),
    Jobs,
    Job(NotTaken),
}

fn not_handed(shared: &ApiState, reason: NotHanded) -> Response {
    let (name, refusal) = match reason {
        NotHanded::Malformed(BatchError::TooLarge) => {
            let text = BatchError::TooLarge.to_string();
            ("large", refuse(StatusCode::PAYLOAD_TOO_LARGE, &text))
        }
        NotHanded::Malformed(error) => (
            "malformed",
            refuse(StatusCode::BAD_REQUEST, &error.to_string()),
        ),
        NotHanded::Jobs => (
            "jobs",
            later(StatusCode::TOO_MANY_REQUESTS, "too many jobs run"),
        ),
        NotHanded::Job(NotTaken::Busy) => (
            "busy",
            later(
                StatusCode::SERVICE_UNAVAILABLE,
                "the job has many batches to catch up with",
            ),
        ),
        NotHanded::Job(NotTaken::Broken) => (
            "broken",
            later(StatusCode::SERVICE_UNAVAILABLE, "the job cannot be kept"),
        ),
    };
    debug!(reason = name, "refused");
    shared.inner.metrics.refused(name);
    refusal
}
