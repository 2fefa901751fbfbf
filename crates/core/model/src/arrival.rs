//! What timed collectives show.

use serde::{Deserialize, Serialize};

use crate::CollectiveOp;
use crate::wait::rank_runs;

/// Ranks that constantly arrive after the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LateArrivals {
    /// The ranks; never empty.
    pub ranks: Vec<u32>,
    /// Where, costliest first; never empty.
    pub places: Vec<LateIn>,
    /// Ranks that are late elsewhere because they wait for these.
    pub victims: Vec<u32>,
    /// The other ranks of the collectives they are late to.
    #[serde(with = "rank_runs")]
    pub waited: Vec<u32>,
    /// Seconds the others waited for them.
    pub cost_s: f64,
    /// That as a share of the time in these collectives from the first late one on.
    pub cost_share: f64,
    /// Whether they still are late at the end.
    pub open: bool,
}

/// Collectives of one kind and communicator to which ranks come late.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LateIn {
    /// Name of the communicator.
    pub group: String,
    /// The collective.
    pub op: CollectiveOp,
    /// Number of the first late one.
    pub first: u64,
    /// Late ones.
    pub struck: u64,
    /// All of them from the first late one on.
    pub operations: u64,
    /// Mean over the late ones: seconds the median of the others waited.
    pub lateness_s: f64,
    /// Seconds the others waited in total.
    pub cost_s: f64,
}

/// A communicator that became slow, without anybody being late.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowCommunicator {
    /// What tells it from all others of the job: number of the communicator, operation, size.
    pub key: String,
    /// Name of the communicator.
    pub group: String,
    /// Ranks that were timed in it.
    #[serde(with = "rank_runs")]
    pub ranks: Vec<u32>,
    /// The collective.
    pub op: CollectiveOp,
    /// Number of the first slow one.
    pub first: u64,
    /// Median bytes a second of the slow windows.
    pub bytes_per_s: f64,
    /// The same before.
    pub usual_bytes_per_s: f64,
    /// Seconds they took longer than at the usual bandwidth.
    pub cost_s: f64,
    /// That as a share of the time in these collectives from the first slow one on.
    pub cost_share: f64,
    /// Whether it still is slow at the end.
    pub open: bool,
}
