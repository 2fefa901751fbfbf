use std::collections::BTreeMap;

use crate::{Slice, SliceKind, Trace, Transfer};

/// How far apart ends of one collective may lie, as a part of its longest time, before it is
/// doubted that they are of one collective. Ours.
const END_SHARE: f64 = 0.5;
/// The same in nanoseconds, below which nothing is doubted.
const END_MIN_NS: i64 = 1_000_000;
/// An offset of a clock is believed if it exceeds the scatter of the ends so many times.
const OFFSET_FACTOR: f64 = 4.0;

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
    /// Who came last.
    pub fn last(&self) -> Option<Arrival> {
        self.arrivals.iter().copied().max_by_key(|arrival| arrival.start_ns)
    }

    fn end_spread_ns(&self) -> i64 {
        let ends = self.arrivals.iter().map(|arrival| arrival.end_ns);
        let (first, last) = (ends.clone().min(), ends.max());
        first.zip(last).map_or(0, |(first, last)| last - first)
    }

    fn longest_ns(&self) -> i64 {
        let took = self.arrivals.iter().map(|arrival| arrival.end_ns - arrival.start_ns);
        took.max().unwrap_or(0)
    }
}

/// How the clocks of the ranks go together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clocks {
    /// What was taken from each rank's times; empty if they agree as they are.
    pub offsets_ns: BTreeMap<u32, i64>,
    /// Median over the collectives of how far apart the ranks left them.
    pub end_spread_ns: i64,
    /// Whether instants of different ranks can be compared: collectives end together.
    pub agree: bool,
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
struct Key {
    group: Option<String>,
    members: Vec<u32>,
    op: String,
    shape: String,
}

/// Ranks and their collectives of one key, in order.
type Series<'a> = BTreeMap<u32, Vec<(&'a Slice, &'a Transfer)>>;

/// Puts the collectives of ranks side by side.
///
/// The same collective has the same group, operation and size on all ranks, and the same number
/// where that was recorded, else the same place among its like. Where ranks recorded different
/// numbers of them, clocks decide which belong together. All leave a collective together; where
/// they do not, it was not the same one, and it is left out.
/// # Source
/// Ours. Clock offsets are read off the ends of collectives, which differ by microseconds on one
/// host.
pub fn match_collectives(traces: &BTreeMap<u32, &Trace>) -> Matches {
    let mut keys: BTreeMap<Key, Series<'_>> = BTreeMap::new();
    let mut recorded = 0;
    for (rank, trace) in traces {
        let span = trace.span_ns();
        for slice in &trace.slices {
            let transfer = trace.transfers.get(slice.detail as usize);
            let Some(transfer) = transfer.filter(|transfer| {
                slice.kind == SliceKind::Collective && !transfer.is_point_to_point
            }) else {
                continue;
            };
            recorded += u64::from(span.is_some());
            let key = Key {
                group: transfer.group.clone(),
                members: transfer.members.clone(),
                op: transfer.op.clone(),
                shape: transfer.shape.clone(),
            };
            let series = keys.entry(key).or_default();
            series.entry(*rank).or_default().push((slice, transfer));
        }
    }
    let mut matched: Vec<Vec<MatchedCollective>> = keys
        .into_iter()
        .filter(|(_, series)| series.len() > 1)
        .map(|(key, series)| match_key(&key, &series, traces))
        .collect();
    let offsets = offsets(&matched, traces);
    for collective in matched.iter_mut().flatten() {
        for arrival in &mut collective.arrivals {
            let offset = offsets.get(&arrival.rank).copied().unwrap_or(0);
            arrival.start_ns -= offset;
            arrival.end_ns -= offset;
        }
    }
    matched.retain(|collectives| are_the_same(collectives));
    let mut collectives: Vec<MatchedCollective> = matched.into_iter().flatten().collect();
    collectives.sort_by_key(|collective| collective.arrivals[0].start_ns);
    let used: u64 = collectives.iter().map(|c| c.arrivals.len() as u64).sum();
    let mut spreads: Vec<i64> =
        collectives.iter().map(MatchedCollective::end_spread_ns).collect();
    let clocks = Clocks {
        offsets_ns: offsets,
        end_spread_ns: median(&mut spreads).unwrap_or(0),
        agree: !collectives.is_empty(),
    };
    Matches { collectives, unmatched: recorded - used, clocks }
}

fn match_key(
    key: &Key,
    series: &Series<'_>,
    traces: &BTreeMap<u32, &Trace>,
) -> Vec<MatchedCollective> {
    let numbered =
        series.values().flatten().all(|(_, transfer)| transfer.sequence.is_some());
    let mut found: BTreeMap<u64, MatchedCollective> = BTreeMap::new();
    let reference = series.values().min_by_key(|ranks| ranks.len());
    for (rank, slices) in series {
        let skipped = match reference {
            Some(reference) if !numbered && slices.len() > reference.len() => {
                // Without a clock in common there is no telling which are too many.
                if !traces.values().all(|trace| trace.absolute) {
                    continue;
                }
                best_shift(slices, reference)
            }
            _ => 0,
        };
        for (place, (slice, transfer)) in slices.iter().skip(skipped).enumerate() {
            let number = transfer.sequence.filter(|_| numbered).unwrap_or(place as u64);
            let new = || MatchedCollective {
                op: key.op.clone(),
                group: key.group.clone(),
                number,
                bytes: 0,
                arrivals: Vec::new(),
            };
            let collective = found.entry(number).or_insert_with(new);
            if collective.arrivals.last().is_some_and(|last| last.rank == *rank) {
                continue;
            }
            collective.bytes = collective.bytes.max(transfer.bytes);
            let (start_ns, end_ns) = (slice.start_ns, slice.end_ns);
            collective.arrivals.push(Arrival { rank: *rank, start_ns, end_ns });
        }
    }
    found.into_values().filter(|collective| collective.arrivals.len() > 1).collect()
}

/// How many of the first slices are to be left out for the others to end when the reference's do.
fn best_shift(
    slices: &[(&Slice, &Transfer)],
    reference: &[(&Slice, &Transfer)],
) -> usize {
    let off = |shift: &usize| {
        let pairs = slices[*shift..].iter().zip(reference);
        let apart = pairs.map(|((a, _), (b, _))| a.end_ns.abs_diff(b.end_ns));
        apart.fold(0u64, u64::saturating_add)
    };
    (0..=slices.len() - reference.len()).min_by_key(off).unwrap_or(0)
}

/// How far each rank's clock is ahead, by when it leaves collectives; nothing if the clocks agree.
fn offsets(
    matched: &[Vec<MatchedCollective>],
    traces: &BTreeMap<u32, &Trace>,
) -> BTreeMap<u32, i64> {
    let mut ahead: BTreeMap<u32, Vec<i64>> = BTreeMap::new();
    for collective in matched.iter().flatten() {
        let mut ends: Vec<i64> = collective.arrivals.iter().map(|a| a.end_ns).collect();
        let Some(middle) = median(&mut ends) else { continue };
        for arrival in &collective.arrivals {
            ahead.entry(arrival.rank).or_default().push(arrival.end_ns - middle);
        }
    }
    let mut scatter = Vec::new();
    let mut offsets = BTreeMap::new();
    for (rank, mut ends) in ahead {
        let Some(offset) = median(&mut ends) else { continue };
        let mut apart: Vec<i64> = ends.iter().map(|end| (end - offset).abs()).collect();
        scatter.extend(median(&mut apart));
        offsets.insert(rank, offset);
    }
    let scatter_ns = median(&mut scatter).unwrap_or(0) as f64;
    let largest_ns = offsets.values().map(|offset: &i64| offset.abs()).max().unwrap_or(0);
    let hosts: Vec<_> = traces.values().map(|trace| trace.host.as_ref()).collect();
    let one_host = hosts.windows(2).all(|pair| pair[0] == pair[1] && pair[0].is_some())
        && traces.values().all(|trace| trace.absolute);
    let believed = !one_host
        && largest_ns > END_MIN_NS
        && largest_ns as f64 > OFFSET_FACTOR * scatter_ns;
    if believed { offsets } else { BTreeMap::new() }
}

/// Whether ranks leave these together, as they leave a collective.
fn are_the_same(collectives: &[MatchedCollective]) -> bool {
    let apart = |collective: &MatchedCollective| {
        let may = (collective.longest_ns() as f64 * END_SHARE) as i64;
        collective.end_spread_ns() > may.max(END_MIN_NS)
    };
    let doubtful = collectives.iter().filter(|collective| apart(collective)).count();
    doubtful * 2 < collectives.len()
}

fn median(values: &mut [i64]) -> Option<i64> {
    let middle = values.len() / 2;
    (!values.is_empty()).then(|| *values.select_nth_unstable(middle).1)
}

#[cfg(test)]
mod tests {
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
            trace
                .transfers
                .push(Transfer { op: "AllReduce".to_owned(), ..Transfer::default() });
            trace.slices.push(Slice {
                start_ns: (start_ms + shift_ms) * MS,
                end_ns: (end_ms + shift_ms) * MS,
                name,
                detail: trace.transfers.len() as u32 - 1,
                track: 0,
                kind: SliceKind::Collective,
            });
        }
        trace.settle();
        trace
    }

    fn matched(traces: &[Trace]) -> Matches {
        match_collectives(&(0..).zip(traces).collect())
    }

    fn last(matches: &Matches) -> Vec<u32> {
        matches.collectives.iter().map(|c| c.last().unwrap().rank).collect()
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
        let offsets: Vec<i64> = found.clocks.offsets_ns.values().copied().collect();
        assert_eq!(offsets[0] - offsets[1], 5000 * MS);
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
