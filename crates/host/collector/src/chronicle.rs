//! What stays of one job when it is over, beside its batches: when its windows and incidents
//! were, for whoever keeps them.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{Incident, Verdict};
use verdict::{Job, WindowRecord};

use crate::collector::Inner;
use crate::history::{Dated, Dates, JobHistory, Origin, Timeline, dated};
use crate::keeper::Over;
use crate::{JobState, JobSummary};

/// How often the catalogue is told of a job whose state and incidents stay what they are.
const LIST_EVERY: Duration = Duration::from_secs(10);

/// Passes on what was found of a job, with its dates.
#[derive(Debug)]
pub(crate) struct Chronicle {
    inner: Arc<Inner>,
    job: String,
    timeline: Timeline,
    origin: Option<Origin>,
    history: Option<JobHistory>,
    /// What the catalogue was told of its state and incidents, and when.
    said: (JobState, Vec<(String, bool)>),
    listed_at: Option<Instant>,
    /// Whether it was said that something cannot be written.
    has_failed: bool,
}

impl Chronicle {
    pub(crate) fn new(inner: &Arc<Inner>, job: &str) -> Self {
        Self {
            inner: Arc::clone(inner),
            job: job.to_owned(),
            timeline: Timeline::default(),
            origin: None,
            history: None,
            said: (JobState::Starting, Vec::new()),
            listed_at: None,
            has_failed: false,
        }
    }

    /// Takes windows in their order; `origin` is known once there are any.
    pub(crate) fn take(
        &mut self,
        windows: Vec<WindowRecord>,
        origin: Option<Origin>,
        job: &Job,
    ) {
        let Some(origin) = origin else { return };
        if self.origin.is_none() {
            self.origin = Some(origin);
            let outbox = self.inner.outbox.clone();
            self.history =
                outbox.map(|outbox| JobHistory::new(outbox, &self.job, origin));
        }
        for window in windows {
            if self.timeline.starts_over(window.first_step) {
                self.timeline.date(&job.verdict().incidents, origin.begun_s as f64);
            }
            let steps = window.first_step..window.first_step + window.steps;
            let window = dated(window, origin);
            let ended_s = window.ended_s.unwrap_or(window.begun_s);
            self.timeline.note(steps, window.begun_s..ended_s);
            let added = self.history.as_mut().map(|history| history.add(window));
            self.note(added.unwrap_or(Ok(()))).ok();
        }
    }

    /// Tells how the job is, where it is time to. What fails is tried again the next time.
    pub(crate) fn tell(
        &mut self,
        verdict: &Verdict,
        summary: &JobSummary,
        over: Over,
    ) -> io::Result<()> {
        let Some(origin) = self.origin else { return Ok(()) };
        let dated = self.timeline.date(&verdict.incidents, origin.begun_s as f64);
        let told = match &mut self.history {
            Some(history) if over == Over::Yes => history.finish(&dated),
            Some(history) if history.is_due() => history.tell(&dated),
            _ => Ok(()),
        };
        let open = |dated: &Dated<&Incident>| (dated.what.id.clone(), dated.what.open);
        let said = (summary.state, dated.iter().map(open).collect());
        let is_late = self.listed_at.is_none_or(|at| at.elapsed() >= LIST_EVERY);
        if said != self.said || is_late {
            self.listed_at = Some(Instant::now());
            self.said = said;
            self.inner.list(summary, None, &dated);
        }
        self.note(told)
    }

    /// When the job's incidents were.
    pub(crate) fn dates(&self) -> Dates {
        self.timeline.known().clone()
    }

    /// Says what fails, once until something succeeds.
    fn note(&mut self, written: io::Result<()>) -> io::Result<()> {
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
