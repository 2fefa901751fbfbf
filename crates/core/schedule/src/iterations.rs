//! Where iterations begin and end: a collective of all ranks, once in each.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::lanes::{Fit, LaneCall, LaneCalls, LaneKind, median};

/// Markers it takes before one is believed.
const MIN_MARKERS: usize = 4;
/// Part of the intervals between markers that must have work of the pipeline in them.
const WORK_SHARE: f64 = 0.9;

/// Of a job without a pipeline: counts of kinds of calls that differ by less are one count; and an
/// interval of so many times the median is no iteration, if such make up half of the time. Ours.
const SAME_COUNT: f64 = 0.1;
const TOO_LONG: u64 = 3;

/// A communicator of all ranks: for each of them its lane and how it fits the reference's.
pub(crate) type Wide = Vec<(usize, Fit)>;

/// An iteration of a rank: the rank's place in the list of logs, and the marker that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankMarker {
    pub(crate) at: usize,
    pub(crate) marker: usize,
}

/// The ranks' view of one job, by place in the list of logs.
#[derive(Debug)]
pub(crate) struct Iterations {
    /// Number of the iteration each marker ends.
    pub(crate) numbers: Vec<u64>,
    /// `marks_ns[rank][marker]`, `None` where it was lost.
    pub(crate) marks_ns: Vec<Vec<Option<u64>>>,
}

/// Communicators that all ranks are in, as lanes of the reference rank.
pub(crate) fn wide_lanes(ranks: &[Vec<LaneCalls>], reference: usize) -> BTreeMap<usize, Wide> {
    let mut found = BTreeMap::new();
    for (place, lane) in ranks[reference].iter().enumerate() {
        if lane.kind != LaneKind::Collective || lane.calls.len() < 2 {
            continue;
        }
        let wide: Option<Wide> = ranks
            .iter()
            .map(|lanes| {
                lanes
                    .iter()
                    .enumerate()
                    .filter(|(_, other)| other.kind == LaneKind::Collective)
                    .filter_map(|(at, other)| Some((at, lane.fit(other)?)))
                    // Several may have the same calls: the one whose calls are nearest in time is
                    // the same.
                    .min_by_key(|(_, fit)| fit.distance_ns())
            })
            .collect();
        if let Some(wide) = wide {
            found.insert(place, wide);
        }
    }
    found
}

impl Iterations {
    /// Finds the collective that marks iterations: of those that all ranks take part in, the
    /// one most often called that never comes twice without work in between. Without a pipeline,
    /// one that comes as often as most do.
    ///
    /// `work_ns` are times of the reference rank's work in its pipeline, ascending.
    pub(crate) fn find(
        ranks: &[Vec<LaneCalls>],
        reference: usize,
        wide: &BTreeMap<usize, Wide>,
        work_ns: &[u64],
    ) -> Option<Self> {
        let mut kinds: Vec<(usize, Vec<LaneCall>)> = Vec::new();
        for place in wide.keys() {
            let mut classes: BTreeMap<_, Vec<LaneCall>> = BTreeMap::new();
            for call in &ranks[reference][*place].calls {
                classes.entry((call.op, call.size)).or_default().push(*call);
            }
            let classes = classes.into_values().filter(|c| c.len() >= MIN_MARKERS);
            kinds.extend(classes.map(|calls| (*place, calls)));
        }
        if work_ns.is_empty() {
            leave_out_brief(&mut kinds);
        }
        let usual = usual_count(&kinds);
        kinds.retain(|(_, calls)| {
            if work_ns.is_empty() {
                let usual = usual.as_ref();
                return usual.is_some_and(|usual| usual.contains(&calls.len())) && is_even(calls);
            }
            let worked = calls.windows(2).filter(|pair| {
                let after = work_ns.partition_point(|at_ns| *at_ns < pair[0].at_ns);
                work_ns
                    .get(after)
                    .is_some_and(|at_ns| *at_ns < pair[1].at_ns)
            });
            worked.count() as f64 >= (calls.len() - 1) as f64 * WORK_SHARE
        });
        // The first of the most often called.
        let best = kinds.into_iter().rev().max_by_key(|(_, calls)| calls.len());
        let (place, calls) = best?;
        let numbers = numbers(&ranks[reference][place], &calls);
        let marks_ns = wide[&place]
            .iter()
            .zip(ranks)
            .map(|((at, fit), lanes)| {
                let lane = &lanes[*at];
                calls
                    .iter()
                    .map(|call| {
                        let there = lane.place(call.key.checked_add_signed(fit.shift)?)?;
                        Some(lane.calls[there].at_ns)
                    })
                    .collect()
            })
            .collect();
        Some(Self { numbers, marks_ns })
    }

    /// From the first to the last.
    pub(crate) fn count(&self) -> u64 {
        let ends = self.numbers.first().zip(self.numbers.last());
        ends.map_or(0, |(first, last)| last - first + 1)
    }

    /// When a rank was in an iteration, if it is known.
    pub(crate) fn span_ns(&self, of: RankMarker) -> Option<(u64, u64)> {
        let RankMarker { at, marker } = of;
        let before = marker.checked_sub(1)?;
        // A marker between the two was lost: this would be the time of several iterations.
        if self.numbers[before] + 1 != self.numbers[marker] {
            return None;
        }
        let marks = &self.marks_ns[at];
        Some((marks[before]?, marks[marker]?)).filter(|(begin, end)| begin < end)
    }

    /// What the iteration took that a marker ends: the median of the ranks, in seconds.
    pub(crate) fn took_s(&self, marker: usize) -> Option<f64> {
        let mut took_ns: Vec<u64> = (0..self.marks_ns.len())
            .filter_map(|at| self.span_ns(RankMarker { at, marker }))
            .map(|(begin, end)| end - begin)
            .collect();
        median(&mut took_ns).map(|took_ns| took_ns as f64 * 1e-9)
    }
}

/// Leaves out what is called in a part of the run only: parameters are broadcast before the first
/// iteration, however evenly.
fn leave_out_brief(kinds: &mut Vec<(usize, Vec<LaneCall>)>) {
    let times = kinds
        .iter()
        .flat_map(|(_, calls)| calls.iter().map(|call| call.at_ns));
    let (first, last) = times.fold((u64::MAX, 0), |(first, last), at_ns| {
        (first.min(at_ns), last.max(at_ns))
    });
    let whole_ns = last.saturating_sub(first);
    kinds.retain(|(_, calls)| {
        let ends = calls.first().zip(calls.last());
        ends.is_some_and(|(first, last)| (last.at_ns - first.at_ns) * 2 >= whole_ns)
    });
}

/// The fewest and the most calls of the kinds that are made as often as most are.
fn usual_count(kinds: &[(usize, Vec<LaneCall>)]) -> Option<RangeInclusive<usize>> {
    let mut counts: Vec<usize> = kinds.iter().map(|(_, calls)| calls.len()).collect();
    counts.sort_unstable();
    counts
        .iter()
        .enumerate()
        .map(|(at, least)| {
            let most = least + (*least as f64 * SAME_COUNT) as usize;
            let alike = counts.partition_point(|count| *count <= most) - at;
            (alike, Reverse(*least), most)
        })
        .max()
        .map(|(_, Reverse(least), most)| least..=most)
}

/// Whether calls come one by one, instead of in bursts with long pauses between. A stretch in
/// which they come slower, or a stall, is one pause.
fn is_even(calls: &[LaneCall]) -> bool {
    let apart_ns: Vec<u64> = calls
        .windows(2)
        .map(|pair| pair[1].at_ns.saturating_sub(pair[0].at_ns))
        .collect();
    let usual_ns = median(&mut apart_ns.clone()).unwrap_or(0);
    let longest_ns = usual_ns.saturating_mul(TOO_LONG);
    let (mut pauses, mut pauses_ns, mut others_ns) = (0, 0.0, 0.0);
    let mut in_pause = true;
    for apart_ns in apart_ns {
        let is_long = apart_ns > longest_ns;
        // Several long intervals in a row are one pause.
        pauses += usize::from(is_long && !in_pause);
        *(if is_long {
            &mut pauses_ns
        } else {
            &mut others_ns
        }) += apart_ns as f64;
        in_pause = is_long;
    }
    pauses < MIN_MARKERS || pauses_ns < others_ns
}

/// Numbers iterations by the calls before, where these are known: a log may begin late, and
/// lack some.
fn numbers(lane: &LaneCalls, calls: &[LaneCall]) -> Vec<u64> {
    if !lane.counted {
        return (0..calls.len() as u64).collect();
    }
    let mut steps: Vec<u64> = calls
        .windows(2)
        .map(|pair| pair[1].count() - pair[0].count())
        .collect();
    let step = median(&mut steps).unwrap_or(1).max(1);
    let mut number = calls.first().map_or(0, |call| call.count() / step);
    let mut numbers = vec![number];
    for pair in calls.windows(2) {
        let [from, to] = [pair[0].key, pair[1].key].map(|key| lane.place(key));
        let seen = to.unwrap_or(0).saturating_sub(from.unwrap_or(0)) as u64;
        let lost = (pair[1].count() - pair[0].count()).saturating_sub(seen);
        // Rounded: a log loses records, not whole iterations of them.
        number += 1 + (lost + step / 2) / step;
        numbers.push(number);
    }
    numbers
}
