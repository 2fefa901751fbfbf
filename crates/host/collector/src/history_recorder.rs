//! What stays of one job when it is over, beside its batches: its windows and incidents, with
//! their dates, for a caller that keeps them.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::Incident;
use verdict::WindowRecord;

use crate::clock::Now;
use crate::collector::Inner;
use crate::history::{Dated, JobHistory, JobOrigin};
use crate::worker::Over;
use crate::{JobState, ListedJob};

/// How often the catalogue is given a job whose state and incidents stay what they are.
const LIST_EVERY: Duration = Duration::from_secs(10);

/// Writes what was found of a job to the history and to the catalogue.
#[derive(Debug)]
pub(crate) struct HistoryRecorder {
    inner: Arc<Inner>,
    job: String,
    history: Option<JobHistory>,
    /// What the catalogue was given of its state and incidents, and when.
    listed: (JobState, Vec<(String, bool)>),
    listed_at: Option<Instant>,
    /// Whether it was said that something cannot be written.
    has_failed: bool,
}

impl HistoryRecorder {
    pub(crate) fn new(inner: &Arc<Inner>, job: &str) -> Self {
        Self {
            inner: Arc::clone(inner),
            job: job.to_owned(),
            history: None,
            listed: (JobState::Starting, Vec::new()),
            listed_at: None,
            has_failed: false,
        }
    }

    fn history(&mut self, origin: JobOrigin, now: Now) -> Option<&mut JobHistory> {
        if self.history.is_none() {
            let outbox = self.inner.outbox.clone()?;
            self.history = Some(JobHistory::new(outbox, &self.job, origin, now));
        }
        self.history.as_mut()
    }

    /// Takes windows in their order.
    pub(crate) fn record(
        &mut self,
        now: Now,
        origin: JobOrigin,
        windows: Vec<Dated<WindowRecord>>,
    ) {
        for window in windows {
            let added = self
                .history(origin, now)
                .map_or(Ok(()), |it| it.add(window));
            // The history still has the rows: they are written with the next part.
            self.note(added).ok();
        }
    }

    /// Publishes how the job is, where it is time to. What fails is tried again the next time.
    pub(crate) fn publish(
        &mut self,
        now: Now,
        origin: JobOrigin,
        incidents: &[Dated<Incident>],
        summary: &ListedJob,
        over: Over,
    ) -> io::Result<()> {
        let dated: Vec<_> = incidents.iter().map(Dated::as_ref).collect();
        let published = match self.history(origin, now) {
            Some(history) if over == Over::Yes => history.finish(now, &dated),
            Some(history) if history.is_due(now) => history.publish(now, &dated),
            _ => Ok(()),
        };
        let open = dated
            .iter()
            .map(|it| (it.what.id.clone(), it.what.open))
            .collect();
        let listed = (summary.state, open);
        let is_late = self.listed_at.is_none_or(|at| now.since(at) >= LIST_EVERY);
        if listed != self.listed || is_late {
            self.listed_at = Some(now.at);
            self.listed = listed;
            // Without the bytes of its batches, by which a job counts as ended.
            self.inner.list(summary, None, &dated);
        }
        self.note(published)
    }

    /// Says what fails, once until something succeeds.
    fn note(&mut self, written: io::Result<()>) -> io::Result<()> {
        // It is tried again and again: a full disk must not fill the log too.
        if let Err(error) = &written
            && !self.has_failed
        {
            let what = format_args!("its history cannot be written, and waits: {error}");
            self.inner.say(&self.job, &what);
        }
        self.has_failed = written.is_err();
        written
    }
}
