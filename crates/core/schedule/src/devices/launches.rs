//! Whether a host launched its blocks later than hosts do on this machine.

use std::collections::{BTreeMap, BTreeSet};

use model::Pass;

use super::level::Level;
use crate::judge::SCATTERS;

/// Part of all distances from the usual within which launches scatter.
const SCATTER_QUANTILE: f64 = 0.9;

/// What hosts take to launch the blocks of an iteration.
///
/// Whether lateness of a host shows on its device depends on how far it is ahead: the last stage
/// of a pipeline has nothing to be ahead with, the others hide as much in their queues. Therefore
/// hosts are compared by what they take themselves.
/// # Source
/// Ours: docs/math/device.md.
#[derive(Debug, Default)]
pub(super) struct Launches {
    /// Passes apart: a launch waits at a full queue in one of them, and hides what another takes.
    of_passes: BTreeMap<Pass, PassLaunches>,
}

/// The same of one pass.
#[derive(Debug, Default)]
struct PassLaunches {
    of_ranks: BTreeMap<u32, Level>,
}

impl Launches {
    /// Takes what the hosts of an iteration took for each pass, in seconds by rank. The ranks whose
    /// hosts took longer than they usually do, by more than the others at the same time and than
    /// launches scatter.
    pub(super) fn take(&mut self, took_s: &BTreeMap<Pass, BTreeMap<u32, f64>>) -> BTreeSet<u32> {
        let mut late = BTreeSet::new();
        for (pass, took_s) in took_s {
            late.extend(self.of_passes.entry(*pass).or_default().late(took_s));
        }
        // What a late host takes is not usual; the others are compared with it in this iteration.
        if late.is_empty() {
            for (pass, took_s) in took_s {
                let of_pass = self.of_passes.entry(*pass).or_default();
                for (rank, took_s) in took_s {
                    of_pass.of_ranks.entry(*rank).or_default().learn(*took_s);
                }
            }
        }
        late
    }

    /// How many times as long as the others a host usually takes to launch a pass.
    pub(super) fn times_others(&self, rank: u32, pass: Pass) -> Option<f64> {
        let of_ranks = &self.of_passes.get(&pass)?.of_ranks;
        let others = of_ranks.iter().filter(|(other, _)| **other != rank);
        let mut others_s: Vec<f64> = others.filter_map(|(_, level)| level.known()).collect();
        Some(of_ranks.get(&rank)?.known()? / model::median(&mut others_s)?)
    }
}

impl PassLaunches {
    fn late(&self, took_s: &BTreeMap<u32, f64>) -> BTreeSet<u32> {
        let beyond_s: Option<Vec<f64>> = took_s
            .iter()
            .map(|(rank, took_s)| Some(took_s - self.of_ranks.get(rank)?.known()?))
            .collect();
        let (Some(beyond_s), Some(scatter_s)) = (beyond_s, self.scatter_s()) else {
            return BTreeSet::new();
        };
        let others_s = model::medians_of_others(&beyond_s);
        let beside = beyond_s.into_iter().zip(others_s);
        took_s
            .keys()
            .zip(beside)
            .filter(|&(_, (own_s, common_s))| own_s - common_s > SCATTERS * scatter_s)
            .map(|(rank, _)| *rank)
            .collect()
    }

    /// By how much launches of all hosts are off what each of them usually takes: on a machine
    /// that lacks cores any host may be the next to wait for one.
    fn scatter_s(&self) -> Option<f64> {
        let mut all_s: Vec<f64> = self.of_ranks.values().flat_map(Level::distances).collect();
        all_s.sort_by(f64::total_cmp);
        let at = (SCATTER_QUANTILE * all_s.len() as f64) as usize;
        all_s.get(at).copied()
    }
}
