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
    /// The message, in the operation's [`Unit`].
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

impl Unit {
    /// What the size of an operation counts: NCCL rewrites the count of two to bytes before it
    /// is logged.
    pub fn of(op: CollectiveOp) -> Self {
        match op {
            CollectiveOp::ALLGATHER | CollectiveOp::BROADCAST => Self::Bytes,
            _ => Self::Elements,
        }
    }
}

impl RankCalls {
    /// The rank's records that are known to be missing after the first that is there: of each
    /// place the time before and after it, and how many.
    pub fn gaps(&self) -> Vec<Gap> {
        let counted = self.calls.iter();
        let mut counted: Vec<(u32, u64, u64)> = counted
            .filter_map(|call| Some((call.lane, call.count?, call.at_ns)))
            .collect();
        // Threads that enter calls at the same time are logged in any order.
        counted.sort_unstable();
        let neighbours = counted.windows(2).filter_map(|pair| {
            let [(lane, from, from_ns), (other, to, until_ns)] = *pair else {
                return None;
            };
            // Calls that are launched together share a count.
            // Counts of a lane ascend by the sort above, so that no difference underflows.
            (lane == other && to - from > 1).then(|| Gap {
                from_ns: from_ns.min(until_ns),
                until_ns: until_ns.max(from_ns),
                lost: to - from - 1,
            })
        });
        let mut gaps: Vec<Gap> = neighbours.collect();
        gaps.sort_by_key(|gap| gap.until_ns);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn call(at_ns: u64, op: CollectiveOp, size: u64, lane: u32, count: u64) -> Call {
        Call {
            at_ns,
            op,
            size,
            lane,
            count: Some(count),
        }
    }

    /// As the middle of a recorded job has it, whose gradients have two bytes: it gathers as many
    /// as it scatters.
    #[test]
    fn gathers_count_bytes_and_reductions_elements() {
        let scatter = call(1, CollectiveOp::REDUCE_SCATTER, 2_684_239_872, 0, 0);
        let gather = call(2, CollectiveOp::ALLGATHER, 5_368_479_744, 0, 0);
        let units = (Unit::of(scatter.op), Unit::of(gather.op));
        assert_eq!(units, (Unit::Elements, Unit::Bytes));
        assert_eq!(gather.size, 2 * scatter.size);
        for op in [
            CollectiveOp::ALLREDUCE,
            CollectiveOp::SEND,
            CollectiveOp::RECEIVE,
        ] {
            assert_eq!(Unit::of(op), Unit::Elements);
        }
        assert_eq!(Unit::of(CollectiveOp::BROADCAST), Unit::Bytes);
    }

    #[test]
    fn calls_of_threads_that_are_logged_in_any_order_are_no_gap() {
        let at = (1..).zip([5, 7, 6, 8, u64::MAX]);
        let call = |(at_ns, count)| call(at_ns, CollectiveOp::ALLREDUCE, 1, 0, count);
        let log = RankCalls {
            lanes: vec![Lane::default()],
            calls: at.map(call).collect(),
            ..RankCalls::default()
        };
        let gap = Gap {
            from_ns: 4,
            until_ns: 5,
            lost: u64::MAX - 9,
        };
        assert_eq!(log.gaps(), [gap]);
    }

    #[test]
    fn counts_that_jump_are_a_gap_and_those_that_are_shared_are_none() {
        let op = CollectiveOp::ALLREDUCE;
        let log = RankCalls {
            lanes: vec![Lane::default(); 2],
            calls: vec![
                call(10, op, 1, 0, 7),
                call(20, op, 1, 1, 100),
                call(30, op, 1, 0, 7),
                call(40, op, 1, 0, 8),
                call(50, op, 1, 0, 12),
                call(60, op, 1, 1, 101),
            ],
            ..RankCalls::default()
        };
        assert_eq!(
            log.gaps(),
            [Gap {
                from_ns: 40,
                until_ns: 50,
                lost: 3
            }]
        );
    }
}
