//! What is said of a job while it runs.

use crate::{Claim, Fact};

/// Something that is said at once to those who watch a job, before there is a verdict.
#[derive(Clone, Debug, PartialEq)]
pub enum Announcement {
    /// A finding, as soon as it is one.
    Found(Claim),
    /// What a window of steps shows once it is closed.
    InWindow {
        /// Its first step.
        first_step: u64,
        /// Its last step.
        last_step: u64,
        /// What it shows.
        claim: Claim,
    },
    /// The job stands still.
    Hang {
        /// For whom it waits.
        claim: Claim,
        /// Where the ranks are that were looked at.
        stacks: Vec<Fact>,
    },
    /// Something moved after a hang.
    MovesAgain {
        /// Seconds for which nothing moved.
        after_s: f64,
    },
    /// What a profile window shows of a finding that was announced before.
    Profiled(Fact),
}
