use model::CollectiveOp;

/// What one rank asked of NCCL, as a call log has it.
///
/// Times are those at which the host entered the call: nothing is known of when an operation
/// began or ended on the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankCalls {
    /// The rank.
    pub rank: u32,
    /// Its host, if the log says.
    pub host: Option<String>,
    /// What stands for its communicators.
    pub lanes: Vec<Lane>,
    /// Its calls, in order of time.
    pub calls: Vec<Call>,
}

/// What stands for a communicator in the log of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    /// The stream's or communicator's pointer: means nothing in another process.
    pub pointer: String,
    /// Hash of the communicator, the same on all its ranks, as a signed decimal number; empty
    /// if the log has none. The end may be cut off.
    pub hash: String,
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// When the host entered it, since 1970.
    pub at_ns: u64,
    /// What was asked for.
    pub op: CollectiveOp,
    /// The message, in [`Call::unit`].
    pub size: u64,
    /// Place of its lane in [`RankCalls::lanes`].
    pub lane: u32,
    /// How many operations the communicator had launched before; calls that are launched
    /// together share it.
    pub count: Option<u64>,
}

/// What a message's size counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Elements of a type that is not logged.
    Elements,
    /// Bytes.
    Bytes,
}

impl Call {
    /// What [`Call::size`] counts: NCCL rewrites the count of two operations to bytes before
    /// it is logged.
    pub fn unit(&self) -> Unit {
        match self.op {
            CollectiveOp::ALLGATHER | CollectiveOp::BROADCAST => Unit::Bytes,
            _ => Unit::Elements,
        }
    }
}

impl RankCalls {
    /// The rank's records that are known to be missing after the first that is there: of each
    /// place the time before and after it, and how many.
    pub fn gaps(&self) -> Vec<Gap> {
        let mut seen: Vec<Option<Call>> = vec![None; self.lanes.len()];
        let mut gaps = Vec::new();
        for call in &self.calls {
            let before = seen[call.lane as usize].replace(*call);
            let counts = before.and_then(|before| Some((before.count?, call.count?)));
            if let (Some(before), Some((from, to))) = (before, counts)
                && to > from + 1
            {
                let lost = to - from - 1;
                gaps.push(Gap { from_ns: before.at_ns, until_ns: call.at_ns, lost });
            }
        }
        gaps
    }
}

/// A stretch of a log from which records are missing.
///
/// It is never lateness nor a missing call: nobody knows what happened in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The last record before it.
    pub from_ns: u64,
    /// The first after it.
    pub until_ns: u64,
    /// Operations that are missing.
    pub lost: u64,
}
