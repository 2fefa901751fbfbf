use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{CollectiveOp, RankNs};

/// A communicator as one of its ranks knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Communicator {
    /// What tells it from the others; the same on all its ranks.
    pub hash: u64,
    /// Its name, empty if it was given none.
    pub name: String,
    /// The rank's number inside it.
    pub rank: u32,
    /// How many ranks it has.
    pub size: u32,
}

/// Which way a flow's bytes go, seen from the rank that tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// To the peer.
    Send,
    /// From the peer.
    Receive,
}

/// How far one channel of one operation has come, to or from one peer.
///
/// # Units
/// Counters are transfers: what the network is given at once.
/// # Invariants
/// `done <= transmitted <= ready <= total`, and none of them ever shrinks (MY-P1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// The channel of the communicator.
    pub channel: u8,
    /// Rank of the other end in the communicator.
    pub peer: u32,
    /// Which way it goes.
    pub direction: Direction,
    /// Transfers it consists of.
    pub total: u32,
    /// Sending: transfers the GPU has made ready. Receiving: transfers asked for.
    pub ready: u32,
    /// Sending: transfers given to the network. Receiving: transfers that arrived.
    pub transmitted: u32,
    /// Sending: transfers the network has acknowledged. Receiving: transfers the GPU took.
    pub done: u32,
    /// Bytes transmitted.
    pub bytes: u64,
    /// When it began. Sending: when the GPU had made the first transfer ready, once it has.
    pub begun_at: RankNs,
    /// When one of the counters last changed, or it began.
    pub moved_at: RankNs,
}

/// One collective, or one send or receive, that a rank is or was in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// [`Communicator::hash`].
    pub communicator: u64,
    /// What it is.
    pub op: CollectiveOp,
    /// Operations of this kind the communicator had before, the same on all its ranks; for
    /// sends and receives those to or from the peer.
    pub sequence: u64,
    /// Bytes of the whole operation on this rank.
    pub bytes: u64,
    /// When the rank enqueued it.
    pub begun_at: RankNs,
    /// When its last flow was done; `None` while it is in progress, or may be.
    pub ended_at: Option<RankNs>,
    /// Whether it may have ended since: only its call was seen, which has returned; its end is
    /// then when that was.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_have_ended: bool,
    /// Its flows, ordered by channel, peer and direction. None if it has not got to the
    /// network, or needs none.
    pub flows: Vec<Flow>,
}

impl Operation {
    /// Since when its time is that of the operation itself: since this rank's GPU got to it, as far as
    /// flows show. A host may enqueue it long before. `None` while the GPU has not.
    pub fn under_way_since(&self) -> Option<RankNs> {
        let mut sends = self
            .flows
            .iter()
            .filter(|flow| flow.direction == Direction::Send && flow.total > 0)
            .peekable();
        // Only a send shows when the GPU is there: receives are asked for ahead of it.
        if sends.peek().is_none() {
            return Some(self.begun_at);
        }
        let begun = sends
            .filter(|flow| flow.ready > 0)
            .map(|flow| flow.begun_at);
        Some(begun.min()?.max(self.begun_at))
    }

    /// When anything of it last moved, or it began.
    pub fn moved_at(&self) -> RankNs {
        let moves = self.flows.iter().map(|flow| flow.moved_at);
        // What has moved nothing yet has stood still since it began.
        moves.max().unwrap_or_default().max(self.begun_at)
    }

    /// The rank a send or receive is with, once it has a flow.
    pub fn peer(&self) -> Option<u32> {
        let peer = self.flows.first().map(|flow| flow.peer);
        peer.filter(|_| self.op.is_point_to_point())
    }

    /// Of operations that ended, in order, the last of each kind of each communicator, without its
    /// flows; of a send or receive the last with each peer, with the flow that says who that is.
    pub fn last_of_each_kind(
        ended: impl IntoIterator<Item = Self>,
    ) -> BTreeMap<(u64, CollectiveOp, Option<u32>), Self> {
        let mut last = BTreeMap::new();
        for mut operation in ended {
            let peer = operation.peer();
            // Who a send went to is known by its flow; of a collective that it ended is enough.
            operation.flows.truncate(usize::from(peer.is_some()));
            last.insert((operation.communicator, operation.op, peer), operation);
        }
        last
    }
}
