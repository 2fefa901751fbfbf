//! What methods know of their job.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::{Ranks, StageNames};

/// What a method needs to know of the job to name what it finds.
#[derive(Clone, Copy, Debug)]
pub struct JobContext<'job> {
    /// Stage names.
    pub names: &'job StageNames,
    /// Host of each rank, where known.
    pub hosts: &'job BTreeMap<u32, String>,
    /// Ranks seen.
    pub seen: &'job BTreeSet<u32>,
    /// Whether the job's processes are gone: what was found of them is over.
    pub ended: bool,
    /// Whether collectives were counted once, when ranks of a job that moves may differ, too.
    pub counted_once: bool,
    /// What all analysed steps took since the job was last started, in seconds.
    pub exposed_s: f64,
    /// Whether stages of steps were accounted.
    pub has_stages: bool,
    /// Steps that say nothing of the job, since they were profiled.
    pub left_out: &'job [RangeInclusive<u32>],
}

impl<'job> JobContext<'job> {
    /// A job that runs.
    pub fn new(
        names: &'job StageNames,
        hosts: &'job BTreeMap<u32, String>,
        seen: &'job BTreeSet<u32>,
    ) -> Self {
        Self {
            names,
            hosts,
            seen,
            ended: false,
            counted_once: false,
            exposed_s: 0.0,
            has_stages: false,
            left_out: &[],
        }
    }

    /// All ranks seen but these.
    pub fn others(&self, named: &[u32]) -> Ranks {
        let seen: Ranks = self.seen.iter().copied().collect();
        seen.without(named)
    }

    /// The hosts of some ranks, each once, in order.
    pub fn hosts_of(&self, ranks: &[u32]) -> Vec<String> {
        let hosts: BTreeSet<&String> = ranks
            .iter()
            .filter_map(|rank| self.hosts.get(rank))
            .collect();
        hosts.into_iter().cloned().collect()
    }

    /// Whether a step says nothing of the job.
    pub fn is_left_out(&self, step: u32) -> bool {
        self.left_out.iter().any(|steps| steps.contains(&step))
    }
}
