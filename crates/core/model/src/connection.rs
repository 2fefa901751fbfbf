//! Connections that were slow, as telemetry of work requests tells.

use serde::{Deserialize, Serialize};

/// Two ends of a connection, as MegaTrace's telemetry names them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConnectionEnds {
    /// Hash of the communicator.
    pub communicator: u64,
    /// Rank inside the communicator that sends.
    pub from: u32,
    /// Rank inside the communicator that is sent to.
    pub to: u32,
    /// Host, card and port it leaves by.
    pub port: String,
}

/// A connection that was slow or still.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowConnection {
    /// Which.
    pub ends: ConnectionEnds,
    /// From when to when, in nanoseconds since 1970.
    pub span_ns: (u64, u64),
    /// Whether what was recorded ends before it does.
    pub open: bool,
    /// What was wrong.
    pub fault: LinkFault,
}

/// What was wrong with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkFault {
    /// It lost bandwidth.
    Slower {
        /// Bytes a second, the least of its windows.
        bytes_per_s: f64,
        /// The usual.
        usual_bytes_per_s: f64,
    },
    /// Nothing came back although requests were in flight.
    Stalled {
        /// How many.
        in_flight: u64,
    },
}

impl SlowConnection {
    /// Seconds it lasted.
    pub fn lasted_s(&self) -> f64 {
        self.span_ns.1.saturating_sub(self.span_ns.0) as f64 * 1e-9
    }

    /// Whether its path carries nothing, by the rule of probes: the count of requests in flight did
    /// not fall again.
    pub fn is_broken(&self) -> bool {
        self.open && matches!(self.fault, LinkFault::Stalled { .. })
    }

    /// Seconds that were lost: beyond what its bytes usually take, or all.
    pub fn lost_s(&self) -> f64 {
        match self.fault {
            LinkFault::Slower {
                bytes_per_s,
                usual_bytes_per_s,
            } => self.lasted_s() * (1.0 - bytes_per_s / usual_bytes_per_s),
            LinkFault::Stalled { .. } => self.lasted_s(),
        }
    }
}

/// What is said of a slow connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectionClaim {
    /// The connection.
    pub connection: SlowConnection,
    /// The ranks of the job at its ends, if they are known.
    pub ranks: Option<[u32; 2]>,
    /// What iterations lost meanwhile.
    pub lost: Option<LostIterations>,
}

/// Iterations that took longer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LostIterations {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// Seconds that they lost.
    pub lost_s: f64,
}
