//! What is on the screen, and what keys do to it.

use collector::ListedJob;
use model::Verdict;

/// What the collector said.
#[derive(Debug, Default)]
pub(crate) struct TopUpdate {
    pub(crate) jobs: Vec<ListedJob>,
    /// Of the job that is open, if it is another one than before.
    pub(crate) verdict: Option<Verdict>,
    /// Why it said nothing.
    pub(crate) error: Option<String>,
}

impl TopUpdate {
    pub(crate) fn failed(error: &anyhow::Error) -> Self {
        Self {
            error: Some(format!("{error:#}")),
            ..Self::default()
        }
    }
}

/// The list of jobs, or one of them.
#[derive(Debug)]
pub(crate) struct Screen {
    pub(crate) url: String,
    /// Those that need somebody first.
    pub(crate) jobs: Vec<ListedJob>,
    /// The chosen one; it stays chosen where it moves.
    chosen: Option<String>,
    /// The one that is open.
    opened: Option<String>,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) error: Option<String>,
    /// Lines of an open job above the screen.
    pub(crate) scrolled: u16,
}

impl Screen {
    pub(crate) fn new(url: &str, opened: Option<String>) -> Self {
        Self {
            url: url.to_owned(),
            jobs: Vec::new(),
            chosen: opened.clone(),
            opened,
            verdict: None,
            error: None,
            scrolled: 0,
        }
    }

    /// Takes in what the collector said. What it said before stays if it says nothing.
    pub(crate) fn show(&mut self, seen: TopUpdate) {
        self.error = seen.error;
        if self.error.is_some() {
            return;
        }
        self.jobs = seen.jobs;
        // States are declared in the order of urgency.
        self.jobs
            .sort_by(|one, other| (one.state, &one.id).cmp(&(other.state, &other.id)));
        // An answer about a job that was left is of no use.
        let verdict = seen
            .verdict
            .filter(|verdict| Some(verdict.job.id.as_str()) == self.opened.as_deref());
        self.verdict = verdict.or(self.verdict.take());
    }

    /// The job that is open.
    pub(crate) fn opened(&self) -> Option<&str> {
        self.opened.as_deref()
    }

    /// The job that is open, as in the list.
    pub(crate) fn summary(&self) -> Option<&ListedJob> {
        self.jobs
            .iter()
            .find(|job| Some(&job.id) == self.opened.as_ref())
    }

    /// Place of the chosen job in the list.
    pub(crate) fn chosen(&self) -> usize {
        self.jobs
            .iter()
            .position(|job| Some(&job.id) == self.chosen.as_ref())
            .unwrap_or(0)
    }

    pub(crate) fn up(&mut self) {
        self.scrolled = self.scrolled.saturating_sub(1);
        self.choose(self.chosen().saturating_sub(1));
    }

    pub(crate) fn down(&mut self) {
        self.scrolled = self.scrolled.saturating_add(1);
        self.choose(self.chosen() + 1);
    }

    fn choose(&mut self, at: usize) {
        if let (None, Some(job)) = (&self.opened, self.jobs.get(at)) {
            self.chosen = Some(job.id.clone());
        }
    }

    pub(crate) fn open(&mut self) {
        if self.opened.is_none() {
            self.opened = self.jobs.get(self.chosen()).map(|job| job.id.clone());
            (self.verdict, self.scrolled) = (None, 0);
        }
    }

    pub(crate) fn close(&mut self) {
        (self.opened, self.verdict) = (None, None);
    }
}
