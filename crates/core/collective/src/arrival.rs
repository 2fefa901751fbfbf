use std::collections::{BTreeMap, BTreeSet};

use model::{CollectiveOp, LateArrivals, LateIn, threshold};
use serde::{Deserialize, Serialize};

/// Operations looked back on, and how many of them must have been struck.
///
/// Mycroft (2025) asks for constant lateness; that this is 3 of 5, or all of fewer, is our
/// choice.
const LAST_OPS: usize = 5;
const STRUCK_OF_LAST: usize = 3;
/// How many times smaller than usual a lateness must be to be another one's. Ours.
const SIZE_RATIO: f64 = 2.5;
/// Findings of each kind that are reported; the costliest.
pub(crate) const MAX_FINDINGS: usize = 64;

/// When timed collectives are said to be held up; the `[arrival]` table of the settings file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ArrivalSettings {
    /// Seconds by which a rank arrives after the others, below which it does not count.
    #[serde(deserialize_with = "threshold")]
    pub late_min_s: f64,
    /// The same as a multiple of what the operation takes without waits; the larger holds.
    #[serde(deserialize_with = "threshold")]
    pub late_ratio: f64,
    /// Share of the time in collectives, from its beginning on, that a fault must cost.
    #[serde(deserialize_with = "threshold")]
    pub share_min: f64,
    /// Bandwidth over the usual one below which a communicator is slow.
    #[serde(deserialize_with = "threshold")]
    pub bandwidth_ratio: f64,
}

impl Default for ArrivalSettings {
    /// `bandwidth_ratio` is Mycroft's (2025), the others are our choice. Its 1 s of lateness is
    /// for logs of 100 ms; kernels are timed by the device, so the least lateness is that of
    /// steps.
    fn default() -> Self {
        Self {
            late_min_s: 1e-3,
            late_ratio: 0.5,
            share_min: 0.05,
            bandwidth_ratio: 0.5,
        }
    }
}

/// Times that ranks spent in completed collectives.
///
/// # Properties
/// What is given in another order gives the same findings.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    pub(crate) settings: ArrivalSettings,
    groups: BTreeMap<u32, String>,
    sequences: BTreeMap<(u32, CollectiveOp), BTreeMap<u64, TimedOperation>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TimedOperation {
    pub(crate) bytes: u64,
    /// Nanoseconds each rank was in it.
    pub(crate) busy_ns: BTreeMap<u32, u64>,
}

/// What one rank did in one sequence.
#[derive(Default)]
struct Strikes {
    struck: Vec<Strike>,
}

/// Place in the sequence, number, lateness.
type Strike = (usize, u64, f64);

/// One sequence, looked through.
struct TimedSequence {
    group: u32,
    op: CollectiveOp,
    ranks: BTreeSet<u32>,
    /// Seconds of the median rank in each operation.
    busy_s: Vec<f64>,
    strikes: BTreeMap<u32, Strikes>,
}

impl Arrivals {
    /// A job nothing is known of yet.
    pub fn new(settings: ArrivalSettings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Says what a group is called.
    pub fn join(&mut self, group: u32, name: &str) {
        self.groups.insert(group, name.to_owned());
    }

    /// Takes the time a rank was in a collective. The first word on it holds.
    pub fn add(
        &mut self,
        rank: u32,
        (group, op, number): (u32, CollectiveOp, u64),
        bytes: u64,
        busy_ns: u64,
    ) {
        let sequence = self.sequences.entry((group, op)).or_default();
        let operation = sequence.entry(number).or_default();
        operation.bytes = operation.bytes.max(bytes);
        operation.busy_ns.entry(rank).or_insert(busy_ns);
    }

    /// Collectives that were timed on more than one rank.
    pub fn compared(&self) -> usize {
        self.comparable()
            .map(|(_, operations)| operations.len())
            .sum()
    }

    /// Ranks that constantly arrive after the others, costliest first.
    ///
    /// In a collective that nobody leaves before all have arrived, the rank that comes last
    /// waits least: its lateness is the median time of the others less its own. A rank that is
    /// late because it waited for another late rank before is that one's victim.
    ///
    /// # Properties
    /// Costs are not negative; no clocks of different ranks are compared.
    /// # Complexity
    /// Each operation is sorted once.
    /// # Source
    /// Mycroft (2025), constant lateness; that it is read off durations is ours.
    pub fn late(&self) -> Vec<LateArrivals> {
        let seen: Vec<TimedSequence> = self
            .comparable()
            .map(|sequence| self.look(sequence))
            .collect();
        let mut sequences: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, sequence) in seen.iter().enumerate() {
            for rank in sequence.strikes.keys() {
                sequences.entry(*rank).or_default().push(at);
            }
        }
        let mut found: Vec<(LateArrivals, Places)> = sequences
            .into_iter()
            .filter_map(|(rank, at)| self.late_rank(rank, &at, &seen))
            .collect();
        // Costliest first: who is late because of another must not become a finding before it.
        found.sort_by(|(a, _), (b, _)| b.cost_s.total_cmp(&a.cost_s));
        // Before they are compared with one another, which takes the square of their number.
        found.truncate(MAX_FINDINGS);
        let mut kept: Vec<(LateArrivals, Places)> = Vec::new();
        for (late, places) in found {
            if let Some((other, _)) = kept
                .iter_mut()
                // Late in mostly the same operations is late for one reason: a host, a group.
                .find(|(other, at)| other.ranks.len() < MAX_FINDINGS && overlap(at, &places))
            {
                other.ranks.extend(&late.ranks);
                other.open |= late.open;
            } else if let Some((culprit, _)) = kept
                .iter_mut()
                .find(|(other, _)| is_victim(&late, other, &seen))
            {
                culprit.victims.extend(&late.ranks);
            } else {
                kept.push((late, places));
            }
        }
        for (late, places) in &mut kept {
            late.ranks.sort_unstable();
            late.victims.sort_unstable();
            let sequences: BTreeSet<usize> = places.iter().map(|(at, _)| *at).collect();
            let waited: BTreeSet<u32> = sequences
                .into_iter()
                .flat_map(|at| seen[at].ranks.iter().copied())
                .filter(|rank| late.ranks.binary_search(rank).is_err())
                .collect();
            late.waited = waited.into_iter().collect();
        }
        kept.into_iter().map(|(late, _)| late).collect()
    }

    /// The number of the last timed operation of each rank, where they differ: group name,
    /// operation, the last of all, and those that ended earlier.
    pub fn ends(&self) -> Vec<(String, CollectiveOp, u64, BTreeMap<u32, u64>)> {
        let mut ends = Vec::new();
        for ((group, op), operations) in &self.sequences {
            let mut last: BTreeMap<u32, u64> = BTreeMap::new();
            for (number, operation) in operations {
                // Numbers come in ascending order: the last one written is the last of the rank.
                last.extend(operation.busy_ns.keys().map(|rank| (*rank, *number)));
            }
            let furthest = last.values().copied().max().unwrap_or(0);
            last.retain(|_, number| *number < furthest);
            if !last.is_empty() {
                ends.push((self.name(*group), *op, furthest, last));
            }
        }
        ends
    }

    pub(crate) fn name(&self, group: u32) -> String {
        self.groups.get(&group).cloned().unwrap_or_default()
    }

    /// Sequences of collectives that synchronise, and their operations in order that more
    /// than one rank was timed in.
    pub(crate) fn comparable(
        &self,
    ) -> impl Iterator<Item = ((u32, CollectiveOp), Vec<(u64, &TimedOperation)>)> {
        self.sequences
            .iter()
            .filter(|((_, op), _)| op.joins_all())
            .map(|(key, operations)| {
                let several = operations
                    .iter()
                    .filter(|(_, operation)| operation.busy_ns.len() > 1)
                    .map(|(number, operation)| (*number, operation))
                    .collect();
                (*key, several)
            })
    }

    fn look(&self, ((group, op), operations): Sequence<'_>) -> TimedSequence {
        let mut classes: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for (_, operation) in &operations {
            let class = classes.entry(operation.class()).or_default();
            // The last to arrive waits for nobody: its time is what the operation takes.
            class.push(operation.shortest_s());
        }
        let usual_s: BTreeMap<u32, f64> = classes
            .into_iter()
            .map(|(class, times)| (class, median(times)))
            .collect();
        let mut seen = TimedSequence {
            group,
            op,
            ranks: BTreeSet::new(),
            busy_s: Vec::with_capacity(operations.len()),
            strikes: BTreeMap::new(),
        };
        for (at, (number, operation)) in operations.into_iter().enumerate() {
            let usual_s = usual_s.get(&operation.class()).copied().unwrap_or(0.0);
            let bar_s = self
                .settings
                .late_min_s
                .max(self.settings.late_ratio * usual_s);
            seen.ranks.extend(operation.busy_ns.keys());
            let mut busy: Vec<(u64, u32)> = operation
                .busy_ns
                .iter()
                .map(|(rank, busy)| (*busy, *rank))
                .collect();
            busy.sort_unstable();
            // Who stands before the middle is late, if anybody is; without it the middle of
            // the others lies half a place further on.
            let middle = busy.len() / 2;
            let others_s = if busy.len().is_multiple_of(2) {
                seconds(busy[middle].0)
            } else {
                // Operations that are compared have two ranks at least, so an odd number is three
                // or more.
                f64::midpoint(seconds(busy[middle].0), seconds(busy[middle + 1].0))
            };
            seen.busy_s.push(seconds(busy[middle].0));
            for (busy_ns, rank) in &busy[..middle] {
                let lateness_s = others_s - seconds(*busy_ns);
                // They stand by how long they were in it: all further ones are less late.
                if lateness_s <= bar_s {
                    break;
                }
                let strikes = seen.strikes.entry(*rank).or_default();
                strikes.struck.push((at, number, lateness_s));
            }
        }
        let length = seen.busy_s.len();
        seen.strikes
            .retain(|_, strikes| strikes.keep_constant(length));
        seen
    }

    fn late_rank(
        &self,
        rank: u32,
        sequences: &[usize],
        seen: &[TimedSequence],
    ) -> Option<(LateArrivals, Places)> {
        let (mut in_order, mut struck) = (Vec::new(), Places::new());
        let (mut time_s, mut open) = (0.0, false);
        for at in sequences.iter().copied() {
            let sequence = &seen[at];
            let Some(strikes) = sequence.strikes.get(&rank) else {
                continue;
            };
            let usual = strikes.of_usual_size();
            let Some((first_at, first, _)) = usual.first().copied() else {
                continue;
            };
            let cost_s: f64 = usual.iter().map(|(.., lateness)| lateness).sum();
            let count = usual.len();
            // Since its first strike: else what begins late in a run would cost little of it.
            time_s += sequence.busy_s[first_at..].iter().sum::<f64>();
            struck.extend(strikes.struck.iter().map(|(_, number, _)| (at, *number)));
            open |= strikes.goes_on(sequence.busy_s.len());
            in_order.push(LateIn {
                group: self.name(sequence.group),
                op: sequence.op,
                first,
                struck: count as u64,
                operations: (sequence.busy_s.len() - first_at) as u64,
                lateness_s: cost_s / count as f64,
                cost_s,
            });
        }
        in_order.sort_by(|a, b| b.cost_s.total_cmp(&a.cost_s));
        let cost_s: f64 = in_order.iter().map(|place| place.cost_s).sum();
        let cost_share = if time_s > 0.0 {
            // The median of the others may exceed that of all: lateness may exceed the time of an
            // operation.
            (cost_s / time_s).min(1.0)
        } else {
            0.0
        };
        // In sequences of one or two operations each strike is constant: all together must be as
        // many as a long sequence needs.
        let notable = struck.len() >= STRUCK_OF_LAST && cost_share >= self.settings.share_min;
        let late = LateArrivals {
            ranks: vec![rank],
            places: in_order,
            victims: Vec::new(),
            waited: Vec::new(),
            cost_s,
            cost_share,
            open,
        };
        notable.then_some((late, struck))
    }
}

type Sequence<'a> = ((u32, CollectiveOp), Vec<(u64, &'a TimedOperation)>);
/// Operations a rank was late to: sequence and number.
type Places = BTreeSet<(usize, u64)>;

impl TimedOperation {
    /// What the last to arrive saw of it.
    pub(crate) fn shortest_s(&self) -> f64 {
        seconds(self.busy_ns.values().copied().min().unwrap_or(0))
    }

    /// Operations of about the same size: the power of two below it.
    pub(crate) fn class(&self) -> u32 {
        self.bytes.checked_ilog2().unwrap_or(0)
    }
}

impl TimedSequence {
    /// Whether one of these ranks is late in it.
    fn has_late(&self, ranks: &[u32]) -> bool {
        ranks.iter().any(|rank| self.strikes.contains_key(rank))
    }

    /// Whether a rank takes part in it and is never late.
    fn waits(&self, rank: u32) -> bool {
        self.ranks.contains(&rank) && !self.strikes.contains_key(&rank)
    }
}

impl Strikes {
    /// Keeps what is constant: at least 3 of 5 in a row, or all of fewer.
    fn keep_constant(&mut self, length: usize) -> bool {
        if length < LAST_OPS {
            // Too few for three of five: all of them must be struck.
            return self.struck.len() == length;
        }
        let mut constant = vec![false; self.struck.len()];
        // Strikes stand in the order of operations: the first and the last of three bound them.
        for (from, few) in self.struck.windows(STRUCK_OF_LAST).enumerate() {
            if few[STRUCK_OF_LAST - 1].0 - few[0].0 < LAST_OPS {
                constant[from..from + STRUCK_OF_LAST].fill(true);
            }
        }
        let mut constant = constant.into_iter();
        self.struck.retain(|_| constant.next().unwrap_or(false));
        !self.struck.is_empty()
    }

    /// Those that are not far below what a second of lateness is usually a part of: who is late by 80 ms now
    /// and then, and by a millisecond or two by chance, is not late by the mean of both.
    fn of_usual_size(&self) -> Vec<Strike> {
        let sum = |of: fn(f64) -> f64| {
            self.struck
                .iter()
                .map(|(.., late_s)| of(*late_s))
                .sum::<f64>()
        };
        let usual_s = sum(|late_s| late_s * late_s) / sum(|late_s| late_s);
        let struck = self.struck.iter().copied();
        struck
            .filter(|(.., late_s)| *late_s >= usual_s / SIZE_RATIO)
            .collect()
    }

    /// Whether the last operations are among them.
    fn goes_on(&self, length: usize) -> bool {
        let struck = self
            .struck
            .iter()
            .rev()
            .take_while(|(at, ..)| at + LAST_OPS >= length)
            .count();
        struck >= STRUCK_OF_LAST.min(length)
    }
}

/// Whether two ranks are late together: in half of the operations of the one that is late
/// more often.
fn overlap(a: &Places, b: &Places) -> bool {
    a.intersection(b).count() * 2 >= a.len().max(b.len())
}

/// Whether a rank waits, elsewhere, for one that is late and costs as much.
fn is_victim(late: &LateArrivals, culprit: &LateArrivals, seen: &[TimedSequence]) -> bool {
    let mut waits = false;
    for sequence in seen {
        if sequence.has_late(&late.ranks) && culprit.ranks.iter().any(|rank| sequence.waits(*rank))
        {
            // Where the culprit waits for it, it is late by itself.
            return false;
        }
        waits |= sequence.has_late(&culprit.ranks)
            && late.ranks.iter().all(|rank| sequence.waits(*rank));
    }
    waits
}

fn seconds(ns: u64) -> f64 {
    ns as f64 * 1e-9
}

/// The median, 0 of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    model::median(&mut values).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WORLD: u32 = 1;
    const PAIR: u32 = 2;
    const REDUCE: CollectiveOp = CollectiveOp(3);
    const MS: u64 = 1_000_000;

    fn job() -> Arrivals {
        let mut job = Arrivals::new(ArrivalSettings::default());
        job.join(WORLD, "world");
        job.join(PAIR, "pair");
        job
    }

    /// An operation of 8 MiB and 2 ms in which one rank is late.
    fn operation(job: &mut Arrivals, group: u32, number: u64, ranks: &[u32], late: (u32, u64)) {
        for rank in ranks {
            let wait_ms = if *rank == late.0 { 0 } else { late.1 };
            // Some microseconds of noise.
            let noise = (number * 7 + u64::from(*rank) * 13) % 11 * 1000;
            job.add(
                *rank,
                (group, REDUCE, number),
                8 << 20,
                (2 + wait_ms) * MS + noise,
            );
        }
    }

    #[test]
    fn what_is_late_by_chance_is_not_counted_with_what_is_late_by_far() {
        let mut job = job();
        for number in 0..32 {
            let late_ms = if number % 5 == 0 { 80 } else { 3 };
            operation(&mut job, WORLD, number, &[0, 1, 2, 3], (2, late_ms));
        }
        let late = job.late();
        let place = &late[0].places[0];
        assert_eq!((place.first, place.struck, place.operations), (0, 7, 32));
        assert!(
            (place.lateness_s - 0.08).abs() < 0.001,
            "{}",
            place.lateness_s
        );
    }

    #[test]
    fn who_waits_least_arrives_last() {
        let mut job = job();
        for number in 0..40 {
            let late_ms = if number < 10 { 0 } else { 6 };
            operation(&mut job, WORLD, number, &[0, 1, 2, 3], (2, late_ms));
        }
        let late = job.late();
        assert_eq!(late.len(), 1);
        assert_eq!((&late[0].ranks, late[0].open), (&vec![2], true));
        let place = &late[0].places[0];
        assert_eq!((place.first, place.struck, place.operations), (10, 30, 30));
        assert!((late[0].cost_s - 0.18).abs() < 0.001, "{}", late[0].cost_s);
        assert!(
            (late[0].cost_share - 0.75).abs() < 0.01,
            "{}",
            late[0].cost_share
        );
        assert!(job.slowed().is_empty());
    }

    #[test]
    fn a_healthy_job_has_no_late_rank_and_neither_has_one_that_takes_turns() {
        let mut job = job();
        for number in 0..200 {
            operation(&mut job, WORLD, number, &[0, 1, 2, 3], (0, 0));
            operation(
                &mut job,
                PAIR,
                number,
                &[0, 1, 2, 3],
                ((number % 4) as u32, 9),
            );
        }
        assert_eq!((job.late(), job.slowed()), (vec![], vec![]));
    }

    #[test]
    fn ranks_that_are_late_together_are_one_finding() {
        let mut job = job();
        for number in 0..20 {
            for rank in 0..8 {
                let busy_ms = if rank == 4 || rank == 5 { 2 } else { 9 };
                job.add(rank, (WORLD, REDUCE, number), 1 << 20, busy_ms * MS);
            }
        }
        let late = job.late();
        assert_eq!((late.len(), &late[0].ranks), (1, &vec![4, 5]));
        assert!((late[0].cost_s - 20.0 * 0.007).abs() < 1e-9);
    }

    #[test]
    fn who_waits_for_a_late_rank_elsewhere_is_its_victim() {
        let mut job = job();
        for number in 0..20 {
            // Rank 5 waits for rank 4, and so rank 1 waits for rank 5.
            operation(&mut job, PAIR, number, &[4, 5], (4, 8));
            operation(&mut job, WORLD, number, &[1, 5], (5, 8));
        }
        let late = job.late();
        assert_eq!(
            (late.len(), &late[0].ranks, &late[0].victims),
            (1, &vec![4], &vec![5])
        );
    }

    #[test]
    fn the_root_of_a_broadcast_leaves_early_and_is_not_late() {
        let mut job = job();
        for number in 0..20 {
            for rank in 0..4 {
                let busy_ms = if rank == 0 { 1 } else { 9 };
                job.add(
                    rank,
                    (WORLD, CollectiveOp(2), number),
                    1 << 20,
                    busy_ms * MS,
                );
            }
        }
        assert_eq!((job.late(), job.compared()), (vec![], 0));
    }

    #[test]
    fn three_of_the_last_five_are_constant_and_two_are_not() {
        let strikes = |places: &[usize]| Strikes {
            struck: places.iter().map(|at| (*at, 0, 1.0)).collect(),
        };
        assert!(strikes(&[0, 2, 4]).keep_constant(9));
        assert!(!strikes(&[0, 3, 5, 8]).keep_constant(9));
        assert!(strikes(&[0, 1]).keep_constant(2));
        assert!(!strikes(&[0, 1]).keep_constant(3));
    }

    proptest! {
        #[test]
        fn findings_do_not_depend_on_the_order_they_are_reported_in(
            times in prop::collection::vec((0u32..6, 0u64..30, 0u64..40), 1..300),
        ) {
            let mut times = times;
            // Of several words on one thing the first holds.
            times.sort_unstable();
            times.dedup_by_key(|(rank, number, _)| (*rank, *number));
            let reported = |times: &mut dyn Iterator<Item = &(u32, u64, u64)>| {
                let mut job = job();
                for (rank, number, ms) in times {
                    job.add(*rank, (WORLD, REDUCE, *number), 1 << 20, ms * MS);
                }
                (job.late(), job.slowed(), job.ends())
            };
            prop_assert_eq!(reported(&mut times.iter()), reported(&mut times.iter().rev()));
        }

        #[test]
        fn costs_are_not_negative_and_shares_are_shares(
            times in prop::collection::vec((0u32..5, 0u64..40, 0u64..u64::MAX), 1..300),
        ) {
            let mut job = job();
            for (rank, number, busy_ns) in times {
                let group = if rank % 2 == 0 { WORLD } else { PAIR };
                job.add(rank, (group, REDUCE, number), busy_ns, busy_ns);
                job.add(rank, (WORLD, REDUCE, number / 2), 1, busy_ns);
            }
            for late in job.late() {
                prop_assert!(late.cost_s >= 0.0 && late.cost_s.is_finite());
                prop_assert!((0.0..=1.0).contains(&late.cost_share));
                prop_assert!(!late.ranks.is_empty() && !late.places.is_empty());
            }
            for slowed in job.slowed() {
                prop_assert!(slowed.cost_s >= 0.0 && slowed.cost_s.is_finite());
                prop_assert!(slowed.bytes_per_s < slowed.usual_bytes_per_s);
            }
        }

        /// The rank that is told to be late is found, wherever it is and however many there
        /// are; nobody else is.
        #[test]
        fn the_late_rank_is_named(ranks in 2u32..9, late in 0u32..9, late_ms in 2u64..50) {
            let late = late % ranks;
            let all: Vec<u32> = (0..ranks).collect();
            let mut job = job();
            for number in 0..12 {
                operation(&mut job, WORLD, number, &all, (late, late_ms));
            }
            let found = job.late();
            prop_assert_eq!(found.len(), 1);
            prop_assert_eq!(&found[0].ranks, &vec![late]);
            let truth_s = 12.0 * late_ms as f64 * 1e-3;
            prop_assert!((found[0].cost_s - truth_s).abs() < 12.0 * 20e-6);
        }
    }
}
