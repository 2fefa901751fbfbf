//! What holds operations up from the inside.

use serde::{Deserialize, Serialize};

use crate::{Cause, Wait};

/// What is wrong where operations wait.
///
/// # Source
/// Mycroft (2025), state classification; what the receiver's own counters add is
/// ours: docs/incidents.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldUp {
    /// The rank has not begun the operation.
    NotEntered,
    /// The ranks wait for one another.
    DeadlockCycle,
    /// The rank's GPU has not begun to send, although nothing is missing.
    GpuNotStarted,
    /// The rank's GPU does not go on to send, although it has what it needs.
    GpuNotReady,
    /// Data arrived at the rank, and its GPU does not take it.
    GpuNotTaking,
    /// The rank does not ask for data that is ready at its peer.
    ReceiverNotReady,
    /// The rank does not hand data to the network that its peer has asked for.
    NotTransmitted,
    /// The rank does not notice what its network has done: the other end has ended.
    ProxyStill,
    /// What was handed to the network does not arrive, or its arrival is not acknowledged.
    NotDelivered,
    /// All began it, it needed no network or none is seen, and it does not end.
    Unknown,
}

impl HoldUp {
    /// Whether a GPU does not keep up.
    pub fn is_of_gpu(self) -> bool {
        matches!(
            self,
            Self::GpuNotStarted | Self::GpuNotReady | Self::GpuNotTaking
        )
    }

    /// Whether it only says who does not come to an operation, and not what for.
    pub fn is_of_arrival(self) -> bool {
        matches!(self, Self::NotEntered | Self::DeadlockCycle)
    }
}

/// A channel from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RankChannel {
    /// The sender, as job rank.
    pub from: u32,
    /// The receiver, as job rank.
    pub to: u32,
    /// The channel.
    pub channel: u8,
}

/// Something inside operations that has stopped for good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// What is wrong.
    pub cause: HoldUp,
    /// The culprits, ascending; never empty. Two if either end of a link may be the cause.
    pub ranks: Vec<u32>,
    /// The flows it shows in, if not all flows of the rank are struck.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<RankChannel>,
    /// The operations it shows in, the one with the most ranks first; never empty.
    pub waits: Vec<Wait>,
    /// How long nothing of it has moved, in seconds.
    pub still_s: f64,
    /// Transfers the culprits have handed to the network there that did not come back.
    pub in_flight: u64,
}

impl Failure {
    /// The same, naming one end of a link if only that one's host `has_port_down`: what the
    /// counters of the two cannot tell apart, their hosts may.
    #[must_use]
    pub fn of_ports(mut self, has_port_down: impl Fn(u32) -> bool) -> Self {
        if let (HoldUp::NotDelivered, [a, b]) = (self.cause, &self.ranks[..])
            && has_port_down(*a) != has_port_down(*b)
        {
            self.ranks.retain(|rank| has_port_down(*rank));
        }
        self
    }

    /// Both, as one.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.ranks.extend(other.ranks);
        self.ranks.sort_unstable();
        self.ranks.dedup();
        self.links.extend(other.links);
        let new: Vec<Wait> = other
            .waits
            .into_iter()
            .filter(|wait| !self.waits.contains(wait))
            .collect();
        self.waits.extend(new);
        // For so long neither has moved.
        self.still_s = self.still_s.min(other.still_s);
        self.in_flight += other.in_flight;
        self
    }
}

/// Ranks that make operations slow from the inside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Straggler {
    /// What is wrong.
    pub cause: HoldUp,
    /// The culprits, ascending; never empty.
    pub ranks: Vec<u32>,
    /// Whether the ranks are the two ends of links, either of which may be the cause.
    pub either: bool,
    /// The channels it shows in, if not in all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<u8>,
    /// An operation that is slow.
    pub wait: Wait,
    /// How slow the worst one was.
    pub slow: Slowness,
    /// Share of the waiting in slow operations that was for them.
    pub blamed_share: f64,
    /// Seconds operations took longer than usual, in the worst communicator, for the median of the
    /// ranks that were held up; at most the time in which they waited for the culprits.
    pub cost_s: f64,
}

impl Straggler {
    /// What it blames, where its counters say more than who is late.
    pub fn blames(&self) -> Option<Cause> {
        match self.cause {
            HoldUp::NotDelivered => Some(Cause::Network),
            cause if cause.is_of_gpu() => Some(Cause::Gpu),
            // Late ranks and lagging threads of a host are neither card nor GPU.
            _ => None,
        }
    }
}

/// How much longer an operation took than it usually does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slowness {
    /// Seconds it took, or has taken until now.
    pub took_s: f64,
    /// Seconds it usually takes.
    pub usual_s: f64,
    /// Whether these are one of its channels and most of them: it may always have been so.
    pub of_channels: bool,
}
