//! What is known of earlier starts of a job.

use model::Finding;

/// Incidents of earlier starts that are kept, the latest.
const MAX_EARLIER: usize = 256;

/// What was found before the job was started again.
#[derive(Debug, Default)]
pub(super) struct EarlierStarts {
    /// The latest start first.
    findings: Vec<Finding>,
    steps: u64,
}

impl EarlierStarts {
    /// A start of so many steps is over.
    pub(super) fn add(&mut self, mut found: Vec<Finding>, steps: u64) {
        // The latest start in front, so that what is cut off below is the oldest.
        found.append(&mut self.findings);
        found.truncate(MAX_EARLIER);
        self.findings = found;
        self.add_steps(steps);
    }

    /// Counts steps that are not counted as they come, as those of recordings that bring windows.
    pub(super) fn add_steps(&mut self, steps: u64) {
        self.steps += steps;
    }

    /// What was found, the latest start first.
    pub(super) fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Steps so far.
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }
}
