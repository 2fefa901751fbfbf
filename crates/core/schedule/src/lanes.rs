//! The same communicator in the logs of several ranks.

use model::CollectiveOp;

use crate::RankCalls;

/// Calls that are compared to find out whether two lanes are one communicator.
const SAMPLES: usize = 64;
/// Shifts of positions that are looked at closely.
const SHIFTS: usize = 16;
/// Room for calls that share a count in a [`LaneCall::key`].
// Leaves 52 bits for the count.
const SHARED: u64 = 1 << 12;

/// One communicator as one rank saw it.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneCalls {
    /// In order of key.
    pub(crate) calls: Vec<LaneCall>,
    pub(crate) kind: LaneKind,
    pub(crate) hash: String,
    /// Whether keys come from the log; otherwise they are positions in it.
    pub(crate) counted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneCall {
    /// The same on all ranks of the communicator.
    pub(crate) key: u64,
    pub(crate) at_ns: u64,
    pub(crate) op: CollectiveOp,
    pub(crate) size: u64,
}

impl LaneCall {
    /// The count its key was made of.
    pub(crate) fn count(&self) -> u64 {
        self.key / SHARED
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LaneKind {
    #[default]
    Collective,
    /// Sends and receives.
    Point,
    /// A communicator of one rank: its count never moves.
    Solo,
}

/// Sorts a log's calls by lane.
pub(crate) fn lanes_of(log: &RankCalls) -> Vec<LaneCalls> {
    let mut lanes: Vec<LaneCalls> = log
        .lanes
        .iter()
        .map(|lane| LaneCalls {
            hash: lane.hash.clone(),
            ..LaneCalls::default()
        })
        .collect();
    let mut last = vec![(None, 0); lanes.len()];
    for call in &log.calls {
        let place = call.lane as usize;
        let lane = &mut lanes[place];
        let (count, same) = &mut last[place];
        *same = if call.count.is_some() && *count == call.count {
            *same + 1
        } else {
            0
        };
        *count = call.count;
        lane.counted = call.count.is_some();
        let key = match call.count {
            Some(count) => count
                .saturating_mul(SHARED)
                // More would be keys of the next count.
                .saturating_add((*same).min(SHARED - 1)),
            None => lane.calls.len() as u64,
        };
        let (at_ns, op, size) = (call.at_ns, call.op, call.size);
        lane.calls.push(LaneCall {
            key,
            at_ns,
            op,
            size,
        });
    }
    for lane in &mut lanes {
        // Threads that enter calls at the same time are logged in any order.
        lane.calls.sort_by_key(|call| call.key);
        let points = lane
            .calls
            .iter()
            .filter(|call| call.op.is_point_to_point())
            .count();
        let counts =
            lane.calls.first().map(LaneCall::count) != lane.calls.last().map(LaneCall::count);
        // Of a single call it is unknown whether the count moves: it counts as a collective's.
        lane.kind = if points * 2 > lane.calls.len() {
            LaneKind::Point
        } else if lane.counted && lane.calls.len() > 1 && !counts {
            LaneKind::Solo
        } else {
            LaneKind::Collective
        };
    }
    lanes
}

/// How two lanes go together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fit {
    /// What to add to the first one's keys to get the other's.
    pub(crate) shift: i64,
    /// Median of how much later the other's calls are, in nanoseconds.
    pub(crate) offset_ns: i64,
    /// Median distance from that, in nanoseconds.
    pub(crate) spread_ns: u64,
}

impl Fit {
    /// Typical distance in time of calls that belong together.
    pub(crate) fn distance_ns(&self) -> u64 {
        self.offset_ns.unsigned_abs() + self.spread_ns
    }
}

impl LaneCalls {
    /// Place of a call.
    pub(crate) fn place(&self, key: u64) -> Option<usize> {
        self.calls.binary_search_by_key(&key, |call| call.key).ok()
    }

    /// Whether hashes, where both have one, are the same; one may be cut off.
    pub(crate) fn may_be(&self, other: &Self) -> bool {
        self.hash.starts_with(&other.hash) || other.hash.starts_with(&self.hash)
    }

    /// How another rank's lane goes with this one: `None` if they ask for different things.
    pub(crate) fn fit(&self, other: &Self) -> Option<Fit> {
        if !self.may_be(other) || self.kind != other.kind || self.counted != other.counted {
            return None;
        }
        if self.counted {
            // A communicator's calls have the same counts on all of its ranks.
            return self.fit_at(other, 0);
        }
        // Positions: the logs may begin at different places. Where the clocks agree, the
        // nearest call tells by how much.
        let mut shifts: Vec<i64> = self
            .samples()
            .map(|call| {
                let after = other
                    .calls
                    .partition_point(|other| other.at_ns < call.at_ns);
                after.cast_signed() as i64 - call.key.cast_signed()
            })
            // Logs that begin at the same call, whatever their clocks.
            .chain([0, 1])
            .collect();
        shifts.sort_unstable();
        shifts.dedup();
        // The nearest may be the call before as well.
        let mut fits: Vec<Fit> = shifts
            .iter()
            .copied()
            .chain(shifts.iter().map(|shift| shift - 1))
            .filter_map(|shift| self.fit_at(other, shift))
            .collect();
        fits.sort_by_key(Fit::distance_ns);
        // To walk all calls for each shift would take too long.
        fits.truncate(SHIFTS);
        // In a burst of like calls the nearest may be a neighbour: pauses between bursts tell.
        fits.into_iter()
            .min_by_key(|fit| self.mean_distance_ns(other, fit.shift))
    }

    fn mean_distance_ns(&self, other: &Self, shift: i64) -> u64 {
        let (mut sum_ns, mut calls) = (0u64, 0);
        for call in &self.calls {
            let key = call.key.checked_add_signed(shift);
            if let Some(there) = key.and_then(|key| other.calls.get(key as usize)) {
                sum_ns = sum_ns.saturating_add(there.at_ns.abs_diff(call.at_ns));
                calls += 1;
            }
        }
        sum_ns / calls.max(1)
    }

    fn samples(&self) -> impl Iterator<Item = &LaneCall> {
        self.calls
            .iter()
            .step_by(self.calls.len().div_ceil(SAMPLES).max(1))
    }

    fn fit_at(&self, other: &Self, shift: i64) -> Option<Fit> {
        let (first, last) = (other.calls.first()?.key, other.calls.last()?.key);
        let common = self.calls.iter().filter(|call| {
            let key = call.key.checked_add_signed(shift);
            key.is_some_and(|key| (first..=last).contains(&key))
        });
        let shared = common.clone().count();
        // Most of the shorter one must have a counterpart.
        if shared * 2 < self.calls.len().min(other.calls.len()) {
            return None;
        }
        let mut later_ns = Vec::with_capacity(SAMPLES);
        for call in common.step_by(shared.div_ceil(SAMPLES).max(1)) {
            let Some(place) = other.place(call.key.checked_add_signed(shift)?) else {
                continue;
            };
            let there = &other.calls[place];
            // One is enough: ranks of a communicator ask for the same in the same order.
            if (there.op, there.size) != (call.op, call.size) {
                return None;
            }
            later_ns.push(there.at_ns.cast_signed() - call.at_ns.cast_signed());
        }
        let offset_ns = median(&mut later_ns)?;
        let mut from: Vec<u64> = later_ns
            .iter()
            .map(|later_ns| later_ns.abs_diff(offset_ns))
            .collect();
        let spread_ns = median(&mut from)?;
        Some(Fit {
            shift,
            offset_ns,
            spread_ns,
        })
    }
}

/// The middle value, the lower of two.
pub(crate) fn median<T: Copy + Ord>(values: &mut [T]) -> Option<T> {
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable(middle).1)
}

/// The same for times.
pub(crate) fn median_s(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values
        .into_iter()
        // NaN stands for what was not seen.
        .filter(|value| value.is_finite())
        .collect();
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable_by(middle, f64::total_cmp).1)
}
