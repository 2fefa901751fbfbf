//! What is answered over HTTP; `openapi.json` describes it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::Verdict;
use protocol::{BATCH_ROUTE, Refusal};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio_stream::StreamExt;

use crate::access::Role;
use crate::clock::seconds_now;
use crate::cluster_member::take_part;
use crate::collector::Inner;
use crate::connections::answer;
use crate::intake::take_batch;
use crate::job::JobHandle;
use crate::job_thread::{LIVE, REPORT, VERDICT};
use crate::metrics::classic;
use crate::ownership::Owner;
use crate::rendered::Rendered;
use crate::silences::Silence;
use crate::store::{NAMES, file_name, is_name};
use crate::tls::TlsListener;
use crate::{catalogue, incident_trace, retention};

/// The description of all this.
const OPENAPI: &str = include_str!("openapi.json");
/// Longest reason of a silence.
const LONGEST_REASON_BYTES: usize = 1024;
/// Batches that are unpacked and kept at once.
const AT_ONCE: usize = 32;
/// Seconds after which a caller may try again.
const AGAIN_AFTER_S: &str = "1";
/// What browsers say of the page that asks.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What handlers share.
pub(crate) struct ApiState {
    pub(crate) inner: Arc<Inner>,
    /// Places for batches that are whole.
    pub(crate) places: Semaphore,
    /// Traces are made one at a time: each reads much.
    traces: Semaphore,
    /// Whether only this machine reaches us, and nobody has to prove who they are.
    is_private: bool,
}

impl ApiState {
    /// Whether nobody else keeps a job.
    fn keeps(&self, job: &str) -> bool {
        self.inner
            .ownership
            .as_ref()
            .is_none_or(|ownership| ownership.owner(job) == Owner::Us)
    }
}

pub(crate) type App = State<Arc<ApiState>>;

pub(crate) async fn serve(inner: Arc<Inner>, listener: TcpListener) -> io::Result<()> {
    let is_private = inner.options.tokens.is_empty();
    let shared = Arc::new(ApiState {
        inner,
        places: Semaphore::new(AT_ONCE),
        traces: Semaphore::new(1),
        is_private,
    });
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let inner = Arc::clone(&shared.inner);
    if inner.ownership.is_some() {
        tokio::spawn(take_part(Arc::clone(&inner)));
    }
    tokio::spawn(async move {
        let mut look = tokio::time::interval(retention::LOOK_EVERY);
        loop {
            look.tick().await;
            let inner = Arc::clone(&inner);
            // To remove folders takes a while, and the threads that answer are few.
            drop(spawn_blocking(move || inner.forget_surplus()).await);
        }
    });
    let (certificate, router) = (shared.inner.options.certificate.clone(), router(&shared));
    let served = async {
        match certificate {
            Some(certificate) => {
                answer(TlsListener::new(listener, certificate)?, router).await;
            }
            None => answer(listener, router).await,
        }
        Ok(())
    };
    // Streams of events never end by themselves; what was answered for is on disk.
    tokio::select! {
        served = served => served,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

fn router(shared: &Arc<ApiState>) -> Router {
    let agents = Router::new().route(BATCH_ROUTE, post(take_batch));
    let viewers = Router::new()
        .route("/", get(overview))
        .route("/jobs/{job}", get(live))
        .route("/jobs/{job}/incidents/{incident}", get(incident))
        .route("/api/v1/jobs", get(jobs))
        .route("/api/v1/jobs/{job}/verdict", get(verdict))
        .route("/api/v1/jobs/{job}/report", get(report))
        .route("/api/v1/jobs/{job}/events", get(events))
        .route("/api/v1/jobs/{job}/incidents/{incident}/trace", get(trace))
        .route("/api/v1/incidents", get(incidents))
        .route(
            "/api/v1/openapi.json",
            get(async || typed("application/json", OPENAPI)),
        )
        .route("/api/v1/silences", get(silences))
        .route("/metrics", get(metrics));
    let admins = Router::new()
        .route("/api/v1/jobs/{job}", delete(delete_job))
        .route("/api/v1/silences", post(add_silence))
        .route("/api/v1/silences/{silence}", delete(end_silence));
    Router::new()
        .merge(for_role(shared, agents, Role::Agent))
        .merge(for_role(shared, admins, Role::Admin))
        .merge(for_role(shared, viewers, Role::Viewer))
        // Without a role: probes of Kubernetes and of load balancers show no token.
        .route("/healthz", get(async || "ok\n"))
        .fallback(async || refuse(StatusCode::NOT_FOUND, "there is nothing at this address"))
        // Outermost, so that refusals of the layers within have the headers too.
        .layer(from_fn(harden))
        .with_state(Arc::clone(shared))
}

fn for_role(
    shared: &Arc<ApiState>,
    routes: Router<Arc<ApiState>>,
    role: Role,
) -> Router<Arc<ApiState>> {
    // The layer that is added last is asked first: nobody is led on before they may ask at all.
    routes
        .route_layer(from_fn_with_state(Arc::clone(shared), lead))
        .route_layer(from_fn_with_state((Arc::clone(shared), role), admit))
}

/// Lets pass who may.
async fn admit(
    State((shared, role)): State<(Arc<ApiState>, Role)>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    // A page of somebody else's must not reach us through a name that leads here.
    if shared.is_private && !is_local(headers) {
        let reason = "without tokens, only requests from localhost are answered";
        return refuse(StatusCode::FORBIDDEN, reason);
    }
    // Nor must it change anything where it need not read the answer.
    if !request.method().is_safe() && is_of_another_page(headers) {
        let reason = "pages of other sites cannot change anything here";
        return refuse(StatusCode::FORBIDDEN, reason);
    }
    let token = token(headers, role);
    match shared.inner.options.tokens.allow(token.as_deref(), role) {
        Some(true) => next.run(request).await,
        Some(false) => refuse(StatusCode::FORBIDDEN, "this token does not allow that"),
        None => {
            let mut refusal = refuse(StatusCode::UNAUTHORIZED, "a token is needed");
            if role == Role::Viewer {
                // Browsers ask for it, and show it with every request of the page.
                let ask = HeaderValue::from_static("Basic realm=\"laggard\"");
                refusal.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
            }
            refusal
        }
    }
}

/// Leads to the collector that keeps the job that is asked for, if several collectors share the
/// jobs.
async fn lead(
    State(shared): App,
    names: Result<Path<BTreeMap<String, String>>, PathRejection>,
    request: Request,
    next: Next,
) -> Response {
    // What is not about one job any collector answers.
    let owner = names
        .ok()
        .and_then(|Path(mut names)| names.remove("job"))
        .zip(shared.inner.ownership.as_ref())
        .map(|(job, ownership)| ownership.owner(&job));
    let (keeper, is_alive) = match owner {
        None | Some(Owner::Us) => return next.run(request).await,
        Some(Owner::Other(keeper)) => (keeper, true),
        Some(Owner::Absent(keeper)) => (keeper, false),
    };
    let path = request
        .uri()
        .path_and_query()
        .map_or("", |path| path.as_str());
    let address = HeaderValue::from_str(&format!("{keeper}{path}")).ok();
    if let Some(address) = address.filter(|_| is_alive) {
        let location = [(header::LOCATION, address)];
        // This redirect keeps method and body; after others a DELETE becomes a GET.
        return (StatusCode::TEMPORARY_REDIRECT, location).into_response();
    }
    let reason = format!("the job is kept by {keeper}, which is not reachable");
    later(StatusCode::SERVICE_UNAVAILABLE, &reason)
}

/// The token a caller shows. A browser shows it as the password, for reading only: what it
/// shows by itself must not change anything.
fn token(headers: &HeaderMap, role: Role) -> Option<String> {
    let shown = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    if let Some(token) = shown.strip_prefix("Bearer ") {
        return Some(token.to_owned());
    }
    let pair = shown
        .strip_prefix("Basic ")
        .filter(|_| role == Role::Viewer)?;
    let pair = String::from_utf8(BASE64_STANDARD.decode(pair).ok()?).ok()?;
    Some(pair.split_once(':')?.1.to_owned())
}

fn is_local(headers: &HeaderMap) -> bool {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or("");
    // Only a number behind the last colon is a port: IPv6 addresses have colons too.
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    ["localhost", "[::1]"].contains(&name)
        || name
            .parse()
            .is_ok_and(|ip: std::net::Ipv4Addr| ip.is_loopback())
}

/// Whether a browser asks for a page that we did not serve. Programs say nothing of pages.
fn is_of_another_page(headers: &HeaderMap) -> bool {
    let host = headers
        .get(header::HOST)
        .map(HeaderValue::as_bytes)
        .unwrap_or_default();
    let is_other_site = headers
        .get(SITE)
        .is_some_and(|site| !matches!(site.as_bytes(), b"same-origin" | b"none"));
    // Browsers that do not know the first header have the second.
    let is_other_origin = headers.get(header::ORIGIN).is_some_and(|origin| {
        let origin = origin.as_bytes();
        origin.strip_prefix(b"http://") != Some(host)
            && origin.strip_prefix(b"https://") != Some(host)
    });
    is_other_site || is_other_origin
}

/// Headers of every answer.
async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let status = response.status();
    let json = HeaderValue::from_static("application/json");
    if status.is_client_error() && response.headers().get(header::CONTENT_TYPE) != Some(&json) {
        // The framework's refusal: an address that is no text or no number, another method.
        let allowed = response.headers_mut().remove(header::ALLOW);
        response = refuse(status, status.canonical_reason().unwrap_or("refused"));
        response
            .headers_mut()
            .extend(allowed.map(|allowed| (header::ALLOW, allowed)));
    }
    let headers = response.headers_mut();
    let always = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in always {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Pages carry a policy of their own beside this one; both hold.
    // Inline, as each page is complete in itself, with its scripts and styles in it.
    let policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                  connect-src 'self'; base-uri 'none'; form-action 'none'; \
                  frame-ancestors 'none'";
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(policy),
    );
    response
}

pub(crate) fn refuse(status: StatusCode, reason: &str) -> Response {
    let refusal = Refusal {
        error: reason.to_owned(),
        next: None,
    };
    (status, axum::Json(refusal)).into_response()
}

fn typed(kind: &'static str, body: impl IntoResponse) -> Response {
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

fn no_job() -> Response {
    refuse(StatusCode::NOT_FOUND, "there is no such job")
}

/// What is kept of a job is damaged.
fn unreadable() -> Response {
    let reason = "the stored job cannot be read";
    refuse(StatusCode::INTERNAL_SERVER_ERROR, reason)
}

/// There is no answer about a job, now or for good.
fn unanswered(held: &JobHandle) -> Response {
    if held.is_damaged() {
        unreadable()
    } else {
        being_read()
    }
}

/// The collector was started anew, and has not come to the end of what it kept.
fn being_read() -> Response {
    later(StatusCode::SERVICE_UNAVAILABLE, "the job is being read")
}

pub(crate) fn later(status: StatusCode, reason: &str) -> Response {
    let mut refusal = refuse(status, reason);
    let after = HeaderValue::from_static(AGAIN_AFTER_S);
    refusal.headers_mut().insert(header::RETRY_AFTER, after);
    refusal
}

async fn jobs(State(shared): App) -> Response {
    let mut jobs: Vec<_> = shared
        .inner
        .all()
        .iter()
        .map(|held| held.summary())
        .collect();
    if let Some(ownership) = &shared.inner.ownership {
        jobs = ownership.all(jobs);
    }
    axum::Json(json!({ "schema": "laggard.jobs/1", "jobs": jobs })).into_response()
}

async fn incidents(
    State(shared): App,
    wanted: Result<Query<catalogue::IncidentQuery>, QueryRejection>,
) -> Response {
    let wanted = match wanted {
        Ok(Query(wanted)) => wanted,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.body_text()),
    };
    let inner = Arc::clone(&shared.inner);
    let found = spawn_blocking(move || inner.catalogue.as_ref()?.incidents(&wanted).ok());
    match found.await {
        Ok(Some(found)) => axum::Json(found).into_response(),
        _ => later(
            StatusCode::SERVICE_UNAVAILABLE,
            "the catalogue cannot be read",
        ),
    }
}

async fn verdict(State(shared): App, Path(job): Path<String>) -> Response {
    let Some(held) = shared.inner.held(&job) else {
        return no_job();
    };
    let known = held.verdict();
    if !known.is_empty() {
        return typed("application/json", known.to_string());
    }
    // Of a job that runs again it is about an earlier end.
    let asked = Arc::clone(&held);
    let written = spawn_blocking(move || {
        (!asked.runs())
            .then(|| shared.inner.written(&asked.id, VERDICT))
            .flatten()
    });
    match written.await {
        Ok(Some(verdict)) => typed("application/json", verdict),
        _ => unanswered(&held),
    }
}

async fn overview(State(shared): App) -> Response {
    html((shared.inner.pages.overview)())
}

async fn report(state: App, job: Path<String>, headers: HeaderMap) -> Response {
    let page = state.0.inner.pages.report;
    show(state, job, &headers, |held| &held.report, page, REPORT).await
}

async fn live(state: App, job: Path<String>, headers: HeaderMap) -> Response {
    let page = state.0.inner.pages.live;
    show(state, job, &headers, |held| &held.live, page, LIVE).await
}

/// The page of an incident.
async fn incident(state: App, Path((job, id)): Path<(String, String)>) -> Response {
    let page = state.inner.pages.incident;
    of_incident(state, &job, move |_, verdict| {
        Some(html(page(verdict, &id)?))
    })
    .await
}

/// The trace of the steps around an incident.
async fn trace(state: App, Path((job, id)): Path<(String, String)>) -> Response {
    let shared = Arc::clone(&state.0);
    // Fails only on a semaphore that is closed, and nothing closes this one.
    let Ok(_place) = shared.traces.acquire().await else {
        return being_read();
    };
    // A header takes no control characters or quotes: names are escaped as those of folders.
    let name = format!(
        "attachment; filename=\"{}-{}.json\"",
        file_name(&job),
        file_name(&id)
    );
    of_incident(state, &job, move |inner, verdict| {
        Some(match incident_trace::trace(inner, verdict, &id)? {
            Ok(trace) => {
                let name = [(header::CONTENT_DISPOSITION, name)];
                (name, typed("application/json", trace)).into_response()
            }
            Err(error) => {
                inner.say(&verdict.job.id, &error);
                unreadable()
            }
        })
    })
    .await
}

/// An answer about an incident, by what was said of its job last: nobody waits for the job's
/// analysis.
async fn of_incident(
    State(shared): App,
    job: &str,
    answer: impl FnOnce(&Inner, &Verdict) -> Option<Response> + Send + 'static,
) -> Response {
    let Some(held) = shared.inner.held(job) else {
        return no_job();
    };
    let asked = Arc::clone(&held);
    let answered = spawn_blocking(move || {
        let known = asked.verdict();
        let verdict: Verdict = if known.is_empty() {
            serde_json::from_str(&shared.inner.written(&asked.id, VERDICT)?).ok()?
        } else {
            serde_json::from_str(&known).ok()?
        };
        Some(answer(&shared.inner, &verdict))
    });
    match answered.await {
        Ok(Some(Some(answer))) => answer,
        Ok(Some(None)) => refuse(StatusCode::NOT_FOUND, "the job has no such incident"),
        _ => unanswered(&held),
    }
}

/// The page of a job, of those that have ended as it was written down.
async fn show(
    State(shared): App,
    Path(job): Path<String>,
    headers: &HeaderMap,
    kept: fn(&JobHandle) -> &Rendered,
    page: fn(&verdict::Job) -> String,
    written: &'static str,
) -> Response {
    let Some(held) = shared.inner.held(&job) else {
        return no_job();
    };
    if let Some(page) = kept(&held).page(&held, page).await {
        let mut response = if takes(headers, header::ACCEPT_ENCODING, "gzip") {
            let gzip = HeaderValue::from_static("gzip");
            ([(header::CONTENT_ENCODING, gzip)], html(page.gzip)).into_response()
        } else {
            html(page.plain)
        };
        let vary = HeaderValue::from_static("accept-encoding");
        response.headers_mut().insert(header::VARY, vary);
        return response;
    }
    match spawn_blocking(move || shared.inner.written(&job, written)).await {
        Ok(Some(page)) => html(page),
        _ => unanswered(&held),
    }
}

fn html(page: impl IntoResponse) -> Response {
    typed("text/html; charset=utf-8", page)
}

async fn events(State(shared): App, Path(job): Path<String>) -> Response {
    let Some(held) = shared.inner.held(&job) else {
        return no_job();
    };
    let changes = held.changes().map(|summary| {
        let data = serde_json::to_string(&summary).unwrap_or_default();
        Ok::<_, Infallible>(Event::default().event("verdict").data(data))
    });
    // Proxies cut connections on which nothing comes.
    Sse::new(changes)
        .keep_alive(KeepAlive::default())
        .into_response()
}

async fn delete_job(State(shared): App, Path(job): Path<String>) -> Response {
    if shared.inner.held(&job).is_none() {
        return no_job();
    }
    let inner = Arc::clone(&shared.inner);
    match spawn_blocking(move || inner.delete(&job)).await {
        Ok(Some(Ok(()))) => StatusCode::NO_CONTENT.into_response(),
        Ok(None) => refuse(StatusCode::CONFLICT, "the job has not ended"),
        _ => refuse(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the job cannot be deleted",
        ),
    }
}

async fn silences(State(shared): App) -> Response {
    let silences = shared.inner.silences.all(seconds_now());
    let answer = json!({ "schema": "laggard.silences/1", "silences": silences });
    axum::Json(answer).into_response()
}

async fn add_silence(State(shared): App, headers: HeaderMap, body: axum::body::Bytes) -> Response {
    // What a page can send elsewhere unasked is of other kinds.
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok()?.split(';').next())
        .unwrap_or_default()
        .trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let reason = "send a silence as application/json";
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason);
    }
    let Ok(silence) = serde_json::from_slice::<Silence>(&body) else {
        let reason = "a silence is {\"job\": NAME or null, \"until_s\": SECONDS since 1970}";
        return refuse(StatusCode::BAD_REQUEST, reason);
    };
    let now_s = seconds_now();
    if silence.until_s <= now_s.max(silence.from_s) {
        return refuse(StatusCode::CONFLICT, "the silence is over before it begins");
    }
    if silence.job.as_ref().is_some_and(|job| !is_name(job)) {
        return refuse(StatusCode::BAD_REQUEST, NAMES);
    }
    if silence.reason.len() > LONGEST_REASON_BYTES {
        return refuse(
            StatusCode::BAD_REQUEST,
            "the reason is longer than 1024 bytes",
        );
    }
    let inner = Arc::clone(&shared.inner);
    match spawn_blocking(move || inner.silences.add(silence, now_s)).await {
        Ok(Ok(Some(silence))) => axum::Json(silence).into_response(),
        Ok(Ok(None)) => later(StatusCode::TOO_MANY_REQUESTS, "there are too many silences"),
        _ => later(
            StatusCode::INSUFFICIENT_STORAGE,
            "the silence cannot be written",
        ),
    }
}

async fn end_silence(State(shared): App, Path(silence): Path<u64>) -> Response {
    let inner = Arc::clone(&shared.inner);
    match spawn_blocking(move || inner.silences.end(silence)).await {
        Ok(Ok(true)) => StatusCode::NO_CONTENT.into_response(),
        Ok(Ok(false)) => refuse(StatusCode::NOT_FOUND, "there is no such silence"),
        _ => later(
            StatusCode::INSUFFICIENT_STORAGE,
            "the silences cannot be written",
        ),
    }
}

/// Whether a caller says that it takes something: not with a weight of zero.
fn takes(headers: &HeaderMap, what: header::HeaderName, name: &str) -> bool {
    headers
        .get_all(what)
        .into_iter()
        .filter_map(|said| said.to_str().ok())
        .flat_map(|said| said.split(','))
        .any(|one| {
            let mut parts = one.split(';').map(str::trim);
            let is_named = parts
                .next()
                .is_some_and(|said| said.eq_ignore_ascii_case(name));
            let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
            is_named && weight.is_none_or(|weight| weight > 0.0)
        })
}

async fn metrics(State(shared): App, headers: HeaderMap) -> Response {
    // Prometheus asks all collectors: a job that several reported would be counted twice.
    let jobs: Vec<_> = shared
        .inner
        .all()
        .into_iter()
        .filter(|held| shared.keeps(&held.id))
        .map(|held| held.summary())
        .collect();
    match shared.inner.metrics.text(&jobs) {
        Ok(text) if takes(&headers, header::ACCEPT, "application/openmetrics-text") => typed(
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            text,
        ),
        Ok(text) => typed("text/plain; version=0.0.4; charset=utf-8", classic(&text)),
        Err(_) => refuse(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the metrics cannot be written",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_caller_weighs_with_zero_it_does_not_take() {
        let takes = |said: &str, name: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, said.parse().unwrap());
            takes(&headers, header::ACCEPT, name)
        };
        for said in ["gzip", "br, GZIP;q=0.5", "gzip; q=1.0, *;q=0"] {
            assert!(takes(said, "gzip"), "{said}");
        }
        for said in ["", "br", "gzip;q=0", "gzip; q=0.000, br", "x-gzip"] {
            assert!(!takes(said, "gzip"), "{said}");
        }
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;q=0.5";
        assert!(takes(prometheus, "application/openmetrics-text"));
    }
}
