use std::collections::BTreeMap;

use crate::clocks::median;
use crate::{Clocks, Slice, SliceKind, Trace, Transfer};

/// How far apart ends of one collective may lie, as a part of its longest time, before it is
/// doubted that they are of one collective. Ours.
const END_SHARE: f64 = 0.5;
/// The same in nanoseconds, below which nothing is doubted.
const END_MIN_NS: i64 = 1_000_000;
/// How much worse any other way to put two recordings beside each other must fit, where only the
/// rhythm of their collectives tells. Ours.
const RHYTHM_RATIO: u64 = 2;

/// One rank's part of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The rank.
    pub rank: u32,
    /// When it was there, on the common clock.
    pub start_ns: i64,
    /// When it left.
    pub end_ns: i64,
}

/// A collective that was recorded on several ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedCollective {
    /// Which operation.
    pub op: String,
    /// Its process group, if recorded.
    pub group: Option<String>,
    /// Its number: in the group where that was recorded, else its place in the recordings.
    pub number: u64,
    /// Bytes of the message, zero if not recorded.
    pub bytes: u64,
    /// Who was there, by rank; at least two.
    pub arrivals: Vec<Arrival>,
}

impl MatchedCollective {
    /// Who came last, if the clocks tell.
    pub fn last(&self, clocks: &Clocks) -> Option<Arrival> {
        let last = self.latest()?;
        let is_sure = self
            .arrivals
            .iter()
            .filter(|other| other.rank != last.rank)
            .all(|other| {
                let later_ns = last.start_ns - other.start_ns;
                clocks
                    .doubt_ns(last.rank, other.rank)
                    .is_some_and(|it| later_ns >= it)
            });
        is_sure.then_some(last)
    }

    /// Nanoseconds that a rank waited in it for the last to come, as far as the clocks tell.
    pub fn waited_ns(&self, arrival: Arrival, clocks: &Clocks) -> i64 {
        let Some(last) = self.latest() else { return 0 };
        let waited_ns = last.start_ns - arrival.start_ns;
        let doubt_ns = clocks.doubt_ns(last.rank, arrival.rank);
        let is_known = doubt_ns.is_some_and(|doubt_ns| waited_ns >= doubt_ns);
        if is_known {
            // Nobody waits in it for longer than it is in it, whatever the clocks say.
            waited_ns.min(arrival.end_ns - arrival.start_ns)
        } else {
            0
        }
    }

    fn latest(&self) -> Option<Arrival> {
        self.arrivals
            .iter()
            .copied()
            .max_by_key(|arrival| arrival.start_ns)
    }

    fn end_spread_ns(&self) -> i64 {
        let ends = self.arrivals.iter().map(|arrival| arrival.end_ns);
        let (first, last) = (ends.clone().min(), ends.max());
        first.zip(last).map_or(0, |(first, last)| last - first)
    }

    pub(crate) fn longest_ns(&self) -> i64 {
        self.arrivals
            .iter()
            .map(|arrival| arrival.end_ns - arrival.start_ns)
            .max()
            .unwrap_or(0)
    }
}

/// The collectives of all ranks, side by side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matches {
    /// Those that were matched, in time order.
    pub collectives: Vec<MatchedCollective>,
    /// Recorded on some rank and not matched.
    pub unmatched: u64,
    /// The clocks.
    pub clocks: Clocks,
}

/// What the same collective has in common on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CollectiveKey {
    group: Option<String>,
    members: Vec<u32>,
    op: String,
    shape: String,
}

/// Ranks and their collectives of one key, in order.
type CollectiveSeries<'a> = BTreeMap<u32, Vec<(&'a Slice, &'a Transfer)>>;

/// Puts the collectives of ranks side by side.
///
/// The same collective has the same group, operation and size on all ranks, and the same number
/// where that was recorded, else the same place among its like. Where ranks recorded different
/// numbers of them, the clock they share decides which belong together, or the rhythm of their ends. All leave a collective together; where
/// they do not, it was not the same one, and it is left out.
/// # Source
/// Ours.
pub fn match_collectives(traces: &BTreeMap<u32, &Trace>) -> Matches {
    let mut keys: BTreeMap<CollectiveKey, CollectiveSeries<'_>> = BTreeMap::new();
    let mut recorded = 0;
    for (rank, trace) in traces {
        for slice in &trace.slices {
            let transfer = trace.transfers.get(slice.detail as usize);
            let Some(transfer) = transfer.filter(|transfer| {
                slice.kind == SliceKind::Collective && !transfer.is_point_to_point
            }) else {
                continue;
            };
            recorded += 1;
            let key = CollectiveKey {
                group: transfer.group.clone(),
                members: transfer.members.clone(),
                op: transfer.op.clone(),
                shape: transfer.shape.clone(),
            };
            let series = keys.entry(key).or_default();
            series.entry(*rank).or_default().push((slice, transfer));
        }
    }
    let mut clocks = Clocks::of(traces);
    let mut matched: Vec<Vec<MatchedCollective>> = keys
        .into_iter()
        .filter(|(_, series)| series.len() > 1)
        .map(|(key, series)| match_key(&key, &series, &clocks))
        .collect();
    let all: Vec<&MatchedCollective> = matched.iter().flatten().collect();
    clocks.set(&all);
    for collective in matched.iter_mut().flatten() {
        for arrival in &mut collective.arrivals {
            let offset = clocks.offsets_ns.get(&arrival.rank).copied().unwrap_or(0);
            arrival.start_ns -= offset;
            arrival.end_ns -= offset;
        }
    }
    // Once clocks are set: on clocks that differ nothing ends together.
    matched.retain(|collectives| are_the_same(collectives));
    let mut collectives: Vec<MatchedCollective> = matched.into_iter().flatten().collect();
    collectives.sort_by_key(|collective| collective.arrivals[0].start_ns);
    let used: u64 = collectives.iter().map(|c| c.arrivals.len() as u64).sum();
    let mut spreads: Vec<i64> = collectives
        .iter()
        .map(MatchedCollective::end_spread_ns)
        .collect();
    clocks.end_spread_ns = median(&mut spreads).unwrap_or(0);
    // With nothing matched, nothing shows that instants of the ranks can be compared.
    clocks.agree &= !collectives.is_empty();
    Matches {
        collectives,
        // Each arrival is one recorded slice, so this cannot fall below 0.
        unmatched: recorded - used,
        clocks,
    }
}

fn match_key(
    key: &CollectiveKey,
    series: &CollectiveSeries<'_>,
    clocks: &Clocks,
) -> Vec<MatchedCollective> {
    // By numbers only if all ranks have them: a place counts from the begin of a recording, and a
    // number from the begin of the group.
    let numbered = series
        .values()
        .flatten()
        .all(|(_, transfer)| transfer.sequence.is_some());
    let mut found: BTreeMap<u64, MatchedCollective> = BTreeMap::new();
    // The shortest: every other recording can be shifted to fit it.
    let reference = series.iter().min_by_key(|(_, slices)| slices.len());
    for (rank, slices) in series {
        // A recording that began earlier has more of them, at its begin.
        let skipped = match reference {
            Some((of, reference)) if !numbered && slices.len() > reference.len() => {
                let one_clock = clocks.doubt_ns(*rank, *of) == Some(0);
                let Some(shift) = best_shift(slices, reference, one_clock) else {
                    continue;
                };
                shift
            }
            _ => 0,
        };
        for (place, (slice, transfer)) in slices.iter().skip(skipped).enumerate() {
            let number = transfer
                .sequence
                .filter(|_| numbered)
                .unwrap_or(place as u64);
            let collective = found.entry(number).or_insert_with(|| MatchedCollective {
                op: key.op.clone(),
                group: key.group.clone(),
                number,
                bytes: 0,
                arrivals: Vec::new(),
            });
            // A number that comes twice on a rank: the first of them counts.
            if collective
                .arrivals
                .last()
                .is_some_and(|last| last.rank == *rank)
            {
                continue;
            }
            // A rank that recorded no size has 0 here, which must not replace another's.
            collective.bytes = collective.bytes.max(transfer.bytes);
            let (start_ns, end_ns) = (slice.start_ns, slice.end_ns);
            collective.arrivals.push(Arrival {
                rank: *rank,
                start_ns,
                end_ns,
            });
        }
    }
    found
        .into_values()
        .filter(|collective| collective.arrivals.len() > 1)
        .collect()
}

/// How many of the first slices are to be left out for the others to end when the reference's do;
/// `None` if nobody knows.
fn best_shift(
    slices: &[(&Slice, &Transfer)],
    reference: &[(&Slice, &Transfer)],
    one_clock: bool,
) -> Option<usize> {
    let mut shifts: Vec<(u64, usize)> = Vec::new();
    for shift in 0..=slices.len() - reference.len() {
        let mut apart: Vec<i64> = slices[shift..]
            .iter()
            .zip(reference)
            .map(|((a, _), (b, _))| a.end_ns - b.end_ns)
            .collect();
        // On one clock no shift in time is allowed: ends must agree as they stand.
        let ahead = if one_clock {
            0
        } else {
            median(&mut apart).unwrap_or(0)
        };
        let off = apart.into_iter().map(|apart| apart.abs_diff(ahead));
        shifts.push((off.fold(0, u64::saturating_add), shift));
    }
    shifts.sort_unstable();
    let (best, shift) = *shifts.first()?;
    let next = shifts.get(1).map_or(u64::MAX, |(next, _)| *next);
    // Collectives at equal distances fit one place further as well: then nobody knows.
    // Divided, as these sums saturate: twice a saturated one would overflow.
    let is_clear = one_clock || next / RHYTHM_RATIO > best;
    is_clear.then_some(shift)
}

/// Whether ranks leave these together, as they leave a collective.
fn are_the_same(collectives: &[MatchedCollective]) -> bool {
    let doubtful = collectives
        .iter()
        .filter(|collective| {
            let may_ns = (collective.longest_ns() as f64 * END_SHARE) as i64;
            collective.end_spread_ns() > may_ns.max(END_MIN_NS)
        })
        .count();
    doubtful * 2 < collectives.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Track;

    const MS: i64 = 1_000_000;

    /// A rank that enters collectives at these times and leaves them all at the ends.
    fn trace(host: &str, shift_ms: i64, times_ms: &[(i64, i64)]) -> Trace {
        let mut trace = Trace {
            absolute: true,
            host: Some(host.to_owned()),
            tracks: vec![Track::default()],
            ..Trace::default()
        };
        let name = trace.names.intern("ncclKernel_AllReduce");
        for (start_ms, end_ms) in times_ms {
            trace.transfers.push(Transfer {
                op: "AllReduce".to_owned(),
                ..Transfer::default()
            });
            trace.slices.push(Slice {
                start_ns: (start_ms + shift_ms) * MS,
                end_ns: (end_ms + shift_ms) * MS,
                name,
                detail: trace.transfers.len() as u32 - 1,
                track: 0,
                kind: SliceKind::Collective,
            });
        }
        trace.settle(0);
        trace
    }

    fn matched(traces: &[Trace]) -> Matches {
        match_collectives(&(0..).zip(traces).collect())
    }

    fn last(matches: &Matches) -> Vec<u32> {
        let last = matches
            .collectives
            .iter()
            .filter_map(|c| c.last(&matches.clocks));
        last.map(|last| last.rank).collect()
    }

    #[test]
    fn collectives_that_took_no_time_are_counted_as_others_are() {
        let traces = [trace("a", 0, &[(5, 5)]), trace("a", 0, &[(5, 5)])];
        let matches = matched(&traces);
        assert_eq!((matches.collectives.len(), matches.unmatched), (1, 0));
    }

    const EARLY: [(i64, i64); 4] = [(0, 50), (100, 150), (200, 250), (300, 350)];
    const LATE: [(i64, i64); 4] = [(40, 50), (140, 150), (240, 250), (340, 350)];

    #[test]
    fn who_starts_last_is_late() {
        let found = matched(&[trace("a", 0, &EARLY), trace("a", 0, &LATE)]);
        assert_eq!(last(&found), [1; 4]);
        assert!(found.clocks.agree && found.clocks.offsets_ns.is_empty());
        assert_eq!(found.unmatched, 0);
    }

    #[test]
    fn clocks_of_other_hosts_are_set_by_the_ends() {
        let found = matched(&[trace("a", 5000, &EARLY), trace("b", 0, &LATE)]);
        assert_eq!(last(&found), [1; 4]);
        assert_eq!(found.clocks.end_spread_ns, 0);
        assert_eq!(found.clocks.offsets_ns, [(0, 0), (1, -5000 * MS)].into());
        assert_eq!(found.clocks.errors_ns, [(0, 0), (1, 0)].into());
    }

    #[test]
    fn what_is_less_than_the_error_of_a_clock_is_not_reported() {
        // Rank 1 leaves up to 8 ms before and after rank 0, and enters 6 or 40 ms later.
        let jitter = [0, 8, -8, 4, -8, 8, 0];
        let times = |late_ms: i64| -> Vec<(i64, i64)> {
            let each = (0..).zip(jitter);
            each.map(|(at, off)| (at * 100 + late_ms, at * 100 + 50 + off))
                .collect()
        };
        let first: Vec<(i64, i64)> = (0..7).map(|at| (at * 100, at * 100 + 50)).collect();
        for (late_ms, expected) in [(6, 0), (40, 7)] {
            let found = matched(&[trace("a", 0, &first), trace("b", 70, &times(late_ms))]);
            assert_eq!(found.clocks.errors_ns[&1], 8 * MS);
            assert_eq!(last(&found).len(), expected);
            let waits = found
                .collectives
                .iter()
                .map(|c| c.waited_ns(c.arrivals[0], &found.clocks));
            assert_eq!(waits.filter(|waited| *waited > 0).count(), expected);
        }
    }

    #[test]
    fn clocks_that_meet_no_others_cannot_be_compared() {
        let found = matched(&[
            trace("a", 0, &EARLY),
            trace("b", 0, &[]),
            trace("a", 0, &LATE),
        ]);
        assert_eq!(
            (found.clocks.agree, found.clocks.doubt_ns(0, 1)),
            (false, None)
        );
        assert_eq!(found.clocks.doubt_ns(0, 2), Some(0));
    }

    /// Two hosts of two ranks whose ends differ by microseconds, entered by someone late.
    fn any_job() -> impl Strategy<Value = Vec<Vec<(i64, i64)>>> {
        let enters = prop::collection::vec((0..40i64, 0..3i64), 4);
        prop::collection::vec(enters, 3..12).prop_map(|collectives| {
            let of_rank = |rank: usize| -> Vec<(i64, i64)> {
                let times = (0..).zip(&collectives).map(|(at, ranks)| {
                    let (enters, leaves) = ranks[rank];
                    (
                        at * 100 + at * at + enters,
                        at * 100 + at * at + 50 + leaves,
                    )
                });
                times.collect()
            };
            (0..4).map(of_rank).collect()
        })
    }

    proptest! {
        #[test]
        fn a_constant_on_the_clock_of_a_host_changes_nothing(
            job in any_job(), hours in -1..=1_i64, host in 0..2_usize, cut in 0..2_usize,
        ) {
            // A recording that began earlier is put beside the others by its rhythm.
            let traces = |shift_ms: i64| -> Vec<Trace> {
                let ranks = job.iter().zip([0, 0, 1, 1]).map(|(times, of)| {
                    let shift_ms = if of == host { shift_ms } else { 0 };
                    let times = &times[if of == 1 { cut } else { 0 }..];
                    trace(["a", "b"][of], shift_ms, times)
                });
                ranks.collect()
            };
            let reported = |found: &Matches| {
                let waits = |collective: &MatchedCollective| {
                    let clocks = &found.clocks;
                    let waits = collective.arrivals.iter().map(|a| collective.waited_ns(*a, clocks));
                    (collective.number, collective.last(clocks).map(|last| last.rank), waits.collect::<Vec<_>>())
                };
                let waits: Vec<_> = found.collectives.iter().map(waits).collect();
                let Clocks { errors_ns, end_spread_ns, agree, .. } = found.clocks.clone();
                (waits, errors_ns, end_spread_ns, agree, found.unmatched)
            };
            let (as_is, shifted) = (matched(&traces(0)), matched(&traces(hours * 3_600_000)));
            prop_assert_eq!(reported(&as_is), reported(&shifted));
        }
    }

    #[test]
    fn a_recording_that_began_earlier_is_matched_by_its_clock() {
        let longer = [&[(-100, -50)], &EARLY[..]].concat();
        let found = matched(&[trace("a", 0, &longer), trace("a", 0, &LATE)]);
        assert_eq!(last(&found), [1; 4]);
        assert_eq!(found.unmatched, 1);
    }

    /// As in traces of which parts were cut out: the i-th kernels are not the same ones.
    #[test]
    fn what_does_not_end_together_is_not_the_same() {
        let other = [(10, 12), (190, 195), (260, 262), (420, 425)];
        let found = matched(&[trace("a", 0, &EARLY), trace("a", 0, &other)]);
        assert!(found.collectives.is_empty() && !found.clocks.agree);
        assert_eq!(found.unmatched, 8);
    }
}
