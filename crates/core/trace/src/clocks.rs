use std::collections::BTreeMap;

use crate::{MatchedCollective, Trace};

/// Ends in common from which on their scatter is believed; with fewer, the longest of the
/// collectives is the error. Ours.
const MIN_ENDS: usize = 3;
/// Share of the ends that lie within the error. Ours: one in ten may be an outlier.
const WITHIN_SHARE: f64 = 0.9;

/// How the clocks of the ranks go together: those of one host have one clock.
///
/// # Properties
/// A constant added to all times of a host is added to its offsets and changes nothing else.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clocks {
    /// What was taken from each rank's times; empty if all have one clock.
    pub offsets_ns: BTreeMap<u32, i64>,
    /// How far each of these may be off, in nanoseconds.
    pub errors_ns: BTreeMap<u32, i64>,
    /// Median over the collectives of how far apart the ranks left them.
    pub end_spread_ns: i64,
    /// Whether instants of all ranks can be compared: they meet in collectives that end together.
    pub agree: bool,
    /// Which clock is whose.
    of_rank: BTreeMap<u32, usize>,
}

/// What is known of one clock.
#[derive(Clone, Copy)]
struct SetClock {
    offset_ns: i64,
    error_ns: i64,
}

impl Clocks {
    /// Which clock is whose; none is set.
    pub(crate) fn of(traces: &BTreeMap<u32, &Trace>) -> Self {
        let mut hosts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut of_rank = BTreeMap::new();
        for (number, (rank, trace)) in traces.iter().enumerate() {
            // Without a host, or times since the epoch, a rank has a clock of its own.
            let host = trace.host.as_deref().filter(|_| trace.absolute);
            let clock = host.map_or(number, |host| *hosts.entry(host).or_insert(number));
            of_rank.insert(*rank, clock);
        }
        Self {
            of_rank,
            ..Self::default()
        }
    }

    /// Sets the clocks of all ranks by when they leave collectives together.
    ///
    /// The first clock stands as it is. Another one is ahead of one that is set by the median of
    /// how much later its ranks leave the collectives both are in, and the error is what 9 of 10
    /// of these differ from it, at least what ranks of one clock differ: more than ends tell
    /// nobody knows. Errors add up from clock to clock. One that meets none of the others is not
    /// set.
    /// # Source
    /// Ours.
    pub(crate) fn set(&mut self, collectives: &[&MatchedCollective]) {
        let clocks = &self.of_rank;
        let ends: Vec<CollectiveEnds> = collectives
            .iter()
            .map(|collective| CollectiveEnds::of(collective, clocks))
            .collect();
        let mut spreads: Vec<i64> = ends.iter().filter_map(|ends| ends.spread_ns).collect();
        let spread_ns = median(&mut spreads).unwrap_or(0);
        let mut set: BTreeMap<usize, SetClock> = BTreeMap::new();
        if let Some(first) = clocks.values().next() {
            set.insert(
                *first,
                SetClock {
                    offset_ns: 0,
                    error_ns: 0,
                },
            );
        }
        // Each round sets the clocks that meet one that is set: the others may meet these.
        loop {
            let mut apart: BTreeMap<usize, BTreeMap<usize, Vec<(i64, i64)>>> = BTreeMap::new();
            for CollectiveEnds {
                by_clock,
                longest_ns,
                ..
            } in &ends
            {
                // Always the first of those that are set: differences to one clock gather in one
                // list, and the longer it is, the less an outlier counts.
                let known = by_clock.iter().find(|(clock, _)| set.contains_key(*clock));
                let Some((known, known_end)) = known else {
                    continue;
                };
                for (clock, end) in by_clock
                    .iter()
                    .filter(|(clock, _)| !set.contains_key(*clock))
                {
                    let of_clock = apart.entry(*clock).or_default().entry(*known).or_default();
                    of_clock.push((end - known_end, *longest_ns));
                }
            }
            if apart.is_empty() {
                break;
            }
            for (clock, by_known) in apart {
                // The clock it was seen with most often: errors do not grow with the others.
                let most = by_known.into_iter().max_by_key(|(_, apart)| apart.len());
                let Some((known, apart)) = most else { continue };
                // Each list has an entry and `known` is set, so a round sets every clock in
                // `apart`: else the loop would not end.
                let found = set.get(&known).copied().and_then(|known| {
                    let (ahead_ns, error_ns) = ahead(&apart)?;
                    let error_ns = error_ns.max(spread_ns).saturating_add(known.error_ns);
                    Some(SetClock {
                        offset_ns: known.offset_ns + ahead_ns,
                        error_ns,
                    })
                });
                set.extend(found.map(|found| (clock, found)));
            }
        }
        let several = clocks
            .values()
            .any(|clock| Some(clock) != clocks.values().next());
        self.agree = clocks.values().all(|clock| set.contains_key(clock));
        (self.offsets_ns, self.errors_ns) = clocks
            .iter()
            // One clock needs nothing taken from it: its times stay as the file has them.
            .filter(|_| several)
            .filter_map(|(rank, clock)| Some((*rank, set.get(clock)?)))
            .map(|(rank, set)| ((rank, set.offset_ns), (rank, set.error_ns)))
            .unzip();
    }

    /// How far apart instants of two ranks must lie for it to be known which was first; `None` if
    /// they cannot be compared.
    pub fn doubt_ns(&self, rank: u32, other: u32) -> Option<i64> {
        if self.of_rank.get(&rank)? == self.of_rank.get(&other)? {
            return Some(0);
        }
        Some(
            // Added up: the two clocks may be off in opposite directions.
            self.errors_ns
                .get(&rank)?
                .saturating_add(*self.errors_ns.get(&other)?),
        )
    }
}

/// When each clock's ranks left a collective.
struct CollectiveEnds {
    by_clock: BTreeMap<usize, i64>,
    longest_ns: i64,
    /// How far apart ranks of one clock left it, if several did.
    spread_ns: Option<i64>,
}

impl CollectiveEnds {
    fn of(collective: &MatchedCollective, clocks: &BTreeMap<u32, usize>) -> Self {
        let mut ends: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
        for arrival in &collective.arrivals {
            if let Some(clock) = clocks.get(&arrival.rank) {
                ends.entry(*clock).or_default().push(arrival.end_ns);
            }
        }
        let spread_ns = ends
            .values()
            .filter(|ends| ends.len() > 1)
            .filter_map(|ends| Some(ends.iter().max()? - ends.iter().min()?))
            .max();
        let by_clock = ends
            .into_iter()
            // The median: a rank that is held up as it leaves says nothing of its host's clock.
            .filter_map(|(clock, mut ends)| Some((clock, median(&mut ends)?)))
            .collect();
        Self {
            by_clock,
            longest_ns: collective.longest_ns(),
            spread_ns,
        }
    }
}

/// How far a clock is ahead of another, and by how much that may be wrong: from ends that are so
/// far apart, of collectives that took so long.
fn ahead(apart: &[(i64, i64)]) -> Option<(i64, i64)> {
    let ahead_ns = median(&mut apart.iter().map(|(apart, _)| *apart).collect::<Vec<_>>())?;
    if apart.len() < MIN_ENDS {
        return Some((ahead_ns, apart.iter().map(|(_, took)| *took).max()?));
    }
    let mut off: Vec<i64> = apart
        .iter()
        .map(|(apart, _)| (apart - ahead_ns).abs())
        .collect();
    off.sort_unstable();
    let within = (off.len() as f64 * WITHIN_SHARE).ceil() as usize;
    Some((ahead_ns, off[within.clamp(1, off.len()) - 1]))
}

/// The middle one of some values.
pub(crate) fn median(values: &mut [i64]) -> Option<i64> {
    let middle = values.len() / 2;
    (!values.is_empty()).then(|| *values.select_nth_unstable(middle).1)
}
