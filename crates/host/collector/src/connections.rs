//! Connections that are answered: each has a time to say what it wants, and there are so many.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::Semaphore;

/// How long a caller may take for the head of a request, from the end of the one before.
const ASKED_WITHIN: Duration = Duration::from_secs(10);
/// Connections at once, where the operating system allows as many files.
const MOST: u64 = 1 << 16;
/// Files that others than callers open, such as those of jobs, are one in so many.
const OTHER_FILES: u64 = 4;

/// Answers until the process ends. Who finds no place waits until another leaves.
pub(crate) async fn answer(mut listener: impl Listener, router: Router) {
    let places = Arc::new(Semaphore::new(
        usize::try_from(most()).unwrap_or(usize::MAX),
    ));
    let service = TowerToHyperService::new(router);
    // The semaphore is never closed.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let (stream, _) = listener.accept().await;
        let mut server = http1::Builder::new();
        server
            // hyper panics where a timeout is set and no timer is.
            .timer(TokioTimer::new())
            .header_read_timeout(ASKED_WITHIN);
        let connection = server.serve_connection(TokioIo::new(stream), service.clone());
        tokio::spawn(async move {
            // How a caller went away does not matter.
            drop(connection.await);
            drop(place);
        });
    }
}

/// Connections that the operating system has files for, once it is asked for all it allows.
fn most() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
    // None is without limit.
    let files = if raised.is_ok() { maximum } else { current }.unwrap_or(MOST * 2);
    (files - files / OTHER_FILES).min(MOST)
}
