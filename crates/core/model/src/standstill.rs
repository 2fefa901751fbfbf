//! Where the ranks of a job are that does not move.

use serde::{Deserialize, Serialize};

use crate::{Direction, ProcessState, Ranks};

/// Ranks whose main threads are in the same place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoldedStack {
    /// Who.
    pub ranks: Ranks,
    /// What their processes do.
    pub state: ProcessState,
    /// Where, innermost first: `read_shard (dataset.py:77)`; empty if nobody could look.
    pub frames: Vec<String>,
}

/// How far the ranks of a group have come in its collectives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The group.
    pub group: String,
    /// What each rank entered last, the furthest first.
    pub entered: Vec<LastEntered>,
    /// What is under way inside, where transfers are counted; those that are not done first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<FlowProgress>,
}

/// A collective, and the ranks for which it is the last one they entered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LastEntered {
    /// How many collectives were issued in the group, this one included; 0 for ranks that entered
    /// none that is known.
    pub number: u64,
    /// Which collective; empty for none.
    pub op: String,
    /// Whether the ranks are known to have left it.
    pub left: bool,
    /// Who.
    pub ranks: Ranks,
}

/// One channel of an operation, to or from one peer.
///
/// # Units
/// Counters are transfers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowProgress {
    /// The rank that counts.
    pub rank: u32,
    /// The other end.
    pub peer: u32,
    /// Which way, as the rank sees it.
    pub direction: Direction,
    /// The channel.
    pub channel: u8,
    /// Transfers it consists of.
    pub total: u32,
    /// As of a live flow.
    pub ready: u32,
    /// As of a live flow.
    pub transmitted: u32,
    /// As of a live flow.
    pub done: u32,
}
