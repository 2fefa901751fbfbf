//! What recordings bring that does not come mark by mark.

use model::{VerdictNote, Window};
use schedule::RankCalls;
use whatif::Findings;

use super::Job;
use super::notes::Counted;
use crate::WorkRequests;

impl Job {
    /// Takes a whole window, from a recording that has the matrix itself.
    pub fn add_window(&mut self, window: Window) {
        self.placement.see_all(window.ranks.iter().copied());
        self.analyse(window, None);
    }

    /// Counts the steps of a recording that brings its own windows.
    pub fn add_steps(&mut self, steps: u64) {
        self.earlier.add_steps(steps);
    }

    /// Takes what a what-if trace shows: the job is its sampled steps.
    pub fn add_what_if(&mut self, findings: Findings) {
        let what_if = &findings.what_if;
        self.placement
            .see_all(what_if.ranks.iter().map(|rank| rank.rank));
        self.earlier
            .add_steps((what_if.steps.len() + findings.left_out_steps) as u64);
        self.accounting
            .add_steps(what_if.steps.len(), what_if.recorded_s.iter().sum());
        self.notes
            .count(Counted::IncompleteSteps, findings.left_out_steps as u64);
        self.detectors.what_if.shown = Some(findings);
    }

    /// Takes what ranks called, the log of each once, and what work requests showed then.
    pub fn take_calls(&mut self, logs: Vec<RankCalls>, requests: Option<WorkRequests>) {
        for log in &logs {
            self.placement.see(log.rank);
            if let Some(host) = log.host.clone() {
                self.placement.place(log.rank, host);
            }
        }
        let refused = self.detectors.calls.take(logs, requests);
        self.notes.extend(refused.map(VerdictNote::Calls));
        let found = self.detectors.calls.logs();
        self.earlier
            .add_steps(found.map_or(0, |found| found.iterations));
    }
}
