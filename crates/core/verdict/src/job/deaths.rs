//! Ranks whose processes did not end in good order.

use model::{Finding, JobContext};

use super::Job;

impl Job {
    /// A rank's process was killed.
    pub(super) fn killed(&mut self, rank: u32, signal: Option<i32>) {
        let is_first = self.death().is_none();
        if self.detectors.collectives.hangs.kill(rank, signal) && is_first {
            self.announcements.found(self.death().map(|death| death.claim));
        }
        self.tell_given_up();
    }

    /// A rank's process has ended by itself, and not as one that is done.
    pub(super) fn failed(&mut self, rank: u32) {
        self.detectors.collectives.hangs.fail(rank);
        self.tell_given_up();
    }

    pub(super) fn death(&self) -> Option<Finding> {
        self.detectors.collectives.hangs.death(self.context())
    }

    /// A hang that was not said before a rank gave up in it.
    fn tell_given_up(&mut self) {
        let context = JobContext::new(&self.names, &self.hosts, &self.seen_ranks);
        let hang = self.detectors.collectives.hangs.given_up(context);
        self.announcements.found(hang.map(|hang| hang.claim));
    }
}
