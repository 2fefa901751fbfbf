//! Who makes the others wait in collectives, and for how long.

use crate::lanes::LaneCalls;

/// How late the ranks of a communicator were in some stretch of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CallLateness {
    /// Seconds that only this rank was missing, summed over the collectives.
    pub(crate) alone_s: Vec<f64>,
    /// Collectives that it was the last to enter.
    pub(crate) last: Vec<u64>,
    /// Collectives.
    pub(crate) operations: u64,
}

impl CallLateness {
    fn new(members: usize) -> Self {
        Self {
            alone_s: vec![0.0; members],
            last: vec![0; members],
            operations: 0,
        }
    }

    /// Mean seconds an operation waited for a member alone.
    fn mean_s(&self, member: usize) -> f64 {
        self.alone_s
            .get(member)
            .map_or(0.0, |sum_s| sum_s / self.operations.max(1) as f64)
    }

    /// Seconds each member was late beyond what it is where all is well. Who is always a
    /// little later than its neighbours holds nobody up.
    pub(crate) fn beyond_s(&self, healthy: &Self) -> Vec<f64> {
        self.alone_s
            .iter()
            .enumerate()
            .map(|(member, sum_s)| {
                let usual_s = healthy.mean_s(member) * self.operations as f64;
                (sum_s - usual_s).max(0.0)
            })
            .collect()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        if self.alone_s.is_empty() {
            *self = other.clone();
            return;
        }
        for (sum_s, more_s) in self.alone_s.iter_mut().zip(&other.alone_s) {
            *sum_s += more_s;
        }
        for (last, more) in self.last.iter_mut().zip(&other.last) {
            *last += more;
        }
        self.operations += other.operations;
    }
}

/// One communicator: for each member its lane, and what to add to the first's keys.
pub(crate) type AlignedLanes<'a> = Vec<(&'a LaneCalls, i64)>;

/// Sorts the lateness of a communicator's members by iteration.
///
/// # Shape
/// One more than there are `marks_ns`: the times, ascending, that iterations end.
///
/// A call that a log lacks, on any member, says nothing of lateness.
pub(crate) fn lateness(members: &AlignedLanes<'_>, marks_ns: &[u64]) -> Vec<CallLateness> {
    let mut found = vec![CallLateness::new(members.len()); marks_ns.len() + 1];
    let Some(((first, _), others)) = members.split_first() else {
        return found;
    };
    // Keys ascend on all members: each is walked once.
    let mut places = vec![0; others.len()];
    let mut at_ns = vec![0; members.len()];
    'calls: for call in &first.calls {
        at_ns[0] = call.at_ns;
        for (other, ((lane, shift), place)) in others.iter().zip(&mut places).enumerate() {
            let Some(key) = call.key.checked_add_signed(*shift) else {
                continue 'calls;
            };
            while lane.calls.get(*place).is_some_and(|there| there.key < key) {
                *place += 1;
            }
            match lane.calls.get(*place) {
                Some(there) if there.key == key => at_ns[other + 1] = there.at_ns,
                _ => continue 'calls,
            }
        }
        // Only what the last one is later than the second last is its alone: until then others
        // were missing too.
        let (mut last, mut second_ns) = (0, 0);
        for member in 1..members.len() {
            if at_ns[member] > at_ns[last] {
                second_ns = at_ns[last];
                last = member;
            } else {
                second_ns = second_ns.max(at_ns[member]);
            }
        }
        // Nobody waits for the only member.
        if last == 0 && members.len() == 1 {
            continue;
        }
        let iteration = marks_ns.partition_point(|mark_ns| *mark_ns < at_ns[last]);
        let found = &mut found[iteration];
        found.operations += 1;
        found.last[last] += 1;
        found.alone_s[last] += (at_ns[last] - second_ns) as f64 * 1e-9;
    }
    found
}

#[cfg(test)]
mod tests {
    use model::CollectiveOp;

    use super::*;
    use crate::lanes::LaneCall;

    fn lane(at_ns: &[(u64, u64)]) -> LaneCalls {
        let op = CollectiveOp::ALLREDUCE;
        let calls = at_ns.iter().map(|(key, at_ns)| LaneCall {
            key: *key,
            at_ns: *at_ns,
            op,
            size: 1,
        });
        LaneCalls {
            calls: calls.collect(),
            ..LaneCalls::default()
        }
    }

    #[test]
    fn only_what_a_rank_is_later_than_the_second_last_counts() {
        let lanes = [
            lane(&[(0, 10), (1, 20), (2, 50)]),
            lane(&[(0, 13), (1, 21), (2, 40)]),
            lane(&[(0, 17), (2, 45)]),
        ];
        let members: AlignedLanes<'_> = lanes.iter().map(|lane| (lane, 0)).collect();
        let found = lateness(&members, &[30]);
        assert_eq!(found[0].alone_s, [0.0, 0.0, 4e-9]);
        assert_eq!(found[1].alone_s, [5e-9, 0.0, 0.0]);
        // The second call is missing in the last log.
        assert_eq!(
            (found[0].operations, &found[0].last[..]),
            (1, &[0, 0, 1][..])
        );
    }
}
