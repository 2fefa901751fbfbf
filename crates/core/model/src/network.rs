use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What does not get on in the network of a rank, as its host sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum NetworkFault {
    /// Work requests do not come back.
    Requests {
        /// Between whom.
        pair: QueuePairName,
        /// Requests in flight.
        in_flight: u64,
        /// Nanoseconds in which none came back.
        still_ns: u64,
        /// Requests that failed.
        failed: u64,
        /// How the last one failed (`ibv_wc_status`).
        status: u32,
    },
    /// Nothing is in flight on any of its queue pairs: the fault is not in the network.
    Idle {
        /// How many there are.
        pairs: u64,
    },
    /// Work requests come back more slowly than they used to.
    Slower {
        /// Between whom.
        pair: QueuePairName,
        /// Bytes a second now.
        bytes_per_s: u64,
        /// The same before.
        usual_bytes_per_s: u64,
    },
    /// What goes to another host over TCP comes through more slowly than it used to.
    SlowerLink {
        /// Address of the host.
        peer: String,
        /// Bytes a second of a connection while something is in flight that the peer would take.
        bytes_per_s: u64,
        /// The same before.
        usual_bytes_per_s: u64,
    },
    /// What NCCL sends to another rank on a channel comes back more slowly than it used to.
    SlowerFlow {
        /// [`Communicator::hash`](crate::Communicator::hash).
        communicator: u64,
        /// The channel of the communicator.
        channel: u8,
        /// Rank of the other end in the communicator.
        peer: u32,
        /// Bytes a second while something is in flight.
        bytes_per_s: u64,
        /// The same before.
        usual_bytes_per_s: u64,
    },
    /// Bytes given to a TCP socket are not acknowledged.
    Socket {
        /// Address and port of the peer.
        peer: String,
        /// How many.
        bytes: u64,
        /// How often they were sent again.
        resent: u32,
        /// Whether the peer's host takes no more, as nobody reads there.
        refused: bool,
    },
    /// A port of a network card is down or counts errors.
    Port {
        /// The card.
        device: String,
        /// Which of its ports.
        port: u32,
        /// Its state: [`NetworkFault::ACTIVE`], or another.
        state: String,
        /// Errors since the job began, by counter.
        errors: BTreeMap<String, u64>,
    },
}

impl NetworkFault {
    /// The state of a port that carries something.
    pub const ACTIVE: &str = "ACTIVE";

    /// Whether it is a port that carries nothing.
    pub fn is_port_down(&self) -> bool {
        matches!(self, Self::Port { state, .. } if state != Self::ACTIVE)
    }
}

/// A queue pair by its card, and its peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePairName {
    /// The card.
    pub device: String,
    /// Which of its ports.
    pub port: u32,
    /// The pair's number.
    pub number: u32,
    /// Address of the peer.
    pub peer: String,
}
