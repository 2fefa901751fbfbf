//! Which ranks a job has, and where they run.

use std::collections::{BTreeMap, BTreeSet};

use model::{JobContext, StageNames};

/// Ranks that were seen, and the hosts of ranks.
#[derive(Debug, Default)]
pub(super) struct Placement {
    seen: BTreeSet<u32>,
    hosts: BTreeMap<u32, String>,
}

impl Placement {
    /// A rank did something.
    pub(super) fn see(&mut self, rank: u32) {
        self.seen.insert(rank);
    }

    /// Ranks did something.
    pub(super) fn see_all(&mut self, ranks: impl IntoIterator<Item = u32>) {
        self.seen.extend(ranks);
    }

    /// A rank runs on a host.
    pub(super) fn place(&mut self, rank: u32, host: String) {
        // The latest word counts: after a restart a rank may run elsewhere.
        self.hosts.insert(rank, host);
    }

    /// Ranks that were seen.
    pub(super) fn seen(&self) -> &BTreeSet<u32> {
        &self.seen
    }

    /// The host of each rank, where it is known.
    pub(super) fn hosts(&self) -> &BTreeMap<u32, String> {
        &self.hosts
    }

    /// What methods need to know of these ranks.
    pub(super) fn context<'a>(&'a self, names: &'a StageNames) -> JobContext<'a> {
        JobContext::new(names, &self.hosts, &self.seen)
    }
}
