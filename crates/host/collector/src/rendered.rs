//! Pages of jobs that run: made once for all who look, and never so often that it holds the job up.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use verdict::Job;

use crate::job::JobHandle;

/// While a page is made its job takes no batch: at most this part of the time.
const SHARE: u32 = 5;

/// A page, plain and as browsers rather take it.
#[derive(Clone, Debug)]
pub(crate) struct RenderedPage {
    pub(crate) plain: Bytes,
    pub(crate) gzip: Bytes,
}

/// The newest page of a job; empty until somebody asks.
#[derive(Debug, Default)]
pub(crate) struct Rendered(Mutex<Option<MadePage>>);

#[derive(Debug)]
struct MadePage {
    /// Of the verdict when it was made, or an earlier one.
    version: u64,
    page: RenderedPage,
    took: Duration,
    at: Instant,
}

impl Rendered {
    /// The page of a job as it is now; `None` if it does not run.
    pub(crate) async fn page(
        &self,
        held: &Arc<JobHandle>,
        render: fn(&Job) -> String,
    ) -> Option<RenderedPage> {
        // Held until it is made: others who ask meanwhile get the same page.
        let mut made = self.0.lock().await;
        if let Some(made) = made.as_ref() {
            if held.is_in_memory() && made.version == held.version() {
                return Some(made.page.clone());
            }
            sleep((made.took * (SHARE - 1)).saturating_sub(made.at.elapsed())).await;
        }
        let held = Arc::clone(held);
        *made = spawn_blocking(move || make(&held, render))
            .await
            .ok()
            .flatten();
        made.as_ref().map(|made| made.page.clone())
    }

    /// Forgets it: what there is to say is on disk.
    pub(crate) fn forget(&self) {
        *self.0.blocking_lock() = None;
    }
}

fn make(held: &JobHandle, render: fn(&Job) -> String) -> Option<MadePage> {
    // Read first: what changes while the page is made leaves it old, and the next look makes it
    // anew.
    let version = held.version();
    let begun = Instant::now();
    let text = held.merger().as_ref().map(|merger| render(merger.job()))?;
    let (took, at) = (begun.elapsed(), Instant::now());
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    // What is written to memory has room.
    let gzip = gzip
        .write_all(text.as_bytes())
        .and_then(|()| gzip.finish())
        .ok()?;
    let page = RenderedPage {
        plain: text.into(),
        gzip: gzip.into(),
    };
    Some(MadePage {
        version,
        page,
        took,
        at,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use verdict::{HostMerger, Settings};

    use super::*;

    static MADE: AtomicUsize = AtomicUsize::new(0);

    fn counted(job: &Job) -> String {
        format!(
            "page {} of {}",
            MADE.fetch_add(1, Ordering::Relaxed),
            job.verdict().job.id
        )
    }

    #[tokio::test]
    async fn a_page_is_made_once_for_all_who_look_until_there_is_something_new() {
        let held = Arc::new(JobHandle::new("job"));
        let alive = held.count_thread();
        *held.merger() = Some(HostMerger::new("job", Settings::default()));
        held.publish(0);
        let rendered = Rendered::default();
        for _ in 0..3 {
            let page = rendered.page(&held, counted).await.unwrap();
            assert_eq!(page.plain, "page 0 of job");
        }
        if let Some(merger) = held.merger().as_mut() {
            merger.lose("nobody");
        }
        // Nothing new came of it.
        held.publish(1);
        assert_eq!(
            rendered.page(&held, counted).await.unwrap().plain,
            "page 0 of job"
        );
        *held.merger() = Some(HostMerger::new("another", Settings::default()));
        held.publish(2);
        let page = rendered.page(&held, counted).await.unwrap();
        assert_eq!(page.plain, "page 1 of another");
        let mut unpacked = String::new();
        let mut packed = flate2::read::GzDecoder::new(page.gzip.as_ref());
        std::io::Read::read_to_string(&mut packed, &mut unpacked).unwrap();
        assert_eq!(unpacked, "page 1 of another");
        *held.merger() = None;
        drop(alive);
        assert!(rendered.page(&held, counted).await.is_none());
    }
}
