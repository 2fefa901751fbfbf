//! Windows of steps: measured, accounted, followed, remembered.

use std::ops::Range;

use frontier::WindowFrontier;
use model::{JobContext, RankNs, Window};

use super::Job;
use super::notes::Counted;
use crate::{Remember, WindowRecord};

impl Job {
    /// Begins to remember windows for [`Job::take_records`].
    pub(crate) fn remember(&mut self, remember: Remember) {
        self.records.remember(remember);
    }

    /// The windows closed since the last call, as they are remembered.
    pub(crate) fn take_records(&mut self) -> Vec<WindowRecord> {
        self.records.take()
    }

    /// Analyses the windows that ranks closed.
    pub(super) fn take_windows(&mut self) {
        for (window, span) in self.aligner.take_timed_windows() {
            self.analyse(window, Some(span));
            // What a window shows may be worth a profile. Without a new one that was asked already.
            self.escalation.look_again();
        }
    }

    /// Accounts a window and follows what it shows; one that has a time is remembered.
    pub(crate) fn analyse(&mut self, window: Window, span: Option<Range<RankNs>>) {
        let (window, mut found) = self.measure(window);
        self.account(&window, &found);
        // Before the window is recorded and listed: its labels may be raised here.
        self.follow(&window, &mut found);
        if let Some(span) = span {
            let context = self.placement.context(&self.names);
            self.records
                .add((&window, span), &found, &self.settings.frontier, context);
        }
        self.list(&window, &found);
    }

    /// What is found in a window whose ranks are joined where they meet.
    pub(super) fn measure(&mut self, window: Window) -> (Window, WindowFrontier) {
        self.notes.count_arrivals(&window);
        self.accounting.measure(window)
    }

    /// Adds a window to the accounts.
    pub(super) fn account(&mut self, window: &Window, found: &WindowFrontier) {
        self.notes.count_missing(window);
        self.accounting.add(window, found);
    }

    /// Follows what a window shows from those before.
    pub(super) fn follow(&mut self, window: &Window, found: &mut WindowFrontier) {
        let context = JobContext {
            left_out: self.aligner.left_out(),
            ..self.placement.context(&self.names)
        };
        let mut shown = self.detectors.stages.close_window(window, found, context);
        // Fusion takes all findings of the job: nobody asks for it over a healthy window.
        if !shown.is_empty() && self.detectors.pipelines.has_waits() {
            // Ranks that only wait for another stage are part of what that stage's say.
            let fused = self.findings();
            shown.retain(|one| fused.iter().any(|finding| finding.claim == one.claim));
        }
        let first_step = window.first_step;
        let last_step = first_step + window.steps.saturating_sub(1);
        self.announcements.in_window((first_step, last_step), shown);
    }

    /// Lists a window in the verdict.
    pub(super) fn list(&mut self, window: &Window, found: &WindowFrontier) {
        let dropped = self.accounting.list(window, found, &self.names);
        self.notes.count(Counted::WindowsDropped, dropped);
    }
}
