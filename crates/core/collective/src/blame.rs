//! Who slow operations wait for, moment by moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{CollectiveOp, Direction, HoldUp, Operation, RankChannel, Slowness, Straggler, Wait};

use crate::Root;
use crate::arrival::median;
use crate::communication::Communication;

/// Looks it takes to blame anybody.
const MIN_LOOKS: u32 = 10;
/// Share of the waiting that must be explained by those who are blamed.
const BLAMED_SHARE: f64 = 0.5;
/// Share of the waiting inside operations from which it is what makes them slow.
const INSIDE_SHARE: f64 = 0.3;
/// Seconds others must have waited for ranks that enter late, in operations that take longer
/// than usual. Ours: Mycroft (2025) asks for 1 s, with which 90 % of the simulated faults are named
/// later than after 2 s.
const LATE_START_S: f64 = 0.75;
/// Waiting for another culprit, relative to the worst, from which it is one as well.
const ALSO_BLAMED_RATIO: f64 = 0.5;
/// The same for channels.
const SLOW_CHANNEL_RATIO: f64 = 0.5;
/// Ranks whose waiting differs by less cannot be told apart.
const TIE_RATIO: f64 = 0.75;

/// Seconds that were waited for one end of a link elsewhere too, from which on the other end is
/// not blamed; how much more that is than what was waited for the other end elsewhere; and the share
/// of what was waited for the link: its ends pass on what comes through, which takes time as well.
const APART_S: f64 = 0.1;
const APART_RATIO: f64 = 4.0;
const APART_SHARE: f64 = 0.1;

/// Seconds of the job in which slow operations waited, by root.
type Waited = BTreeMap<(HoldUp, Vec<u32>, Option<RankChannel>), f64>;

/// Communicator, kind and number of an operation.
pub(crate) type OperationKey = (u64, CollectiveOp, u64);

/// What was seen of slow operations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blame {
    /// What was said of a rank's next look: operations that take it longer than they should.
    suspects: BTreeMap<u32, BTreeSet<OperationKey>>,
    /// Communicators whose operations are slow, and the worst of them.
    slow: BTreeMap<u64, Slowness>,
    waited_s: Waited,
    /// An operation of each that is blamed.
    waits: BTreeMap<Vec<u32>, Arc<Wait>>,
    looks: u32,
    /// Seconds that operations took each rank longer than usual, by communicator.
    cost_s: BTreeMap<u64, BTreeMap<u32, f64>>,
}

impl Communication {
    /// Takes note that an operation in progress already takes a rank longer than it should, to be
    /// said before each look.
    pub fn suspect(&mut self, rank: u32, operation: &Operation) {
        let op = if operation.op.is_point_to_point() {
            CollectiveOp::SEND
        } else {
            operation.op
        };
        let key = (
            operation.communicator,
            op,
            // Waits are numbered from 1: 0 is no collective.
            operation.sequence.saturating_add(1),
        );
        self.blame.suspects.entry(rank).or_default().insert(key);
    }

    /// Takes note that operations of a rank in a communicator have become slow.
    pub fn slow(&mut self, rank: u32, communicator: u64, slow: Slowness) {
        if slow.usual_s <= 0.0 || slow.took_s <= slow.usual_s {
            return;
        }
        let worst = self.blame.slow.entry(communicator).or_insert(slow);
        if slow.took_s / slow.usual_s > worst.took_s / worst.usual_s {
            *worst = slow;
        }
        let of_ranks = self.blame.cost_s.entry(communicator).or_default();
        *of_ranks.entry(rank).or_default() += slow.took_s - slow.usual_s;
    }

    /// Seconds slow operations took longer than usual until now: [`Straggler::cost_s`].
    pub fn slow_s(&self) -> f64 {
        let waited_s = self.blame.waited_s.values().sum();
        self.longer_s().min(waited_s)
    }

    /// The same, also where operations that run at once are each counted.
    fn longer_s(&self) -> f64 {
        self.blame
            .cost_s
            .values()
            // Ranks wait at the same time: their sum would count a second for each of them.
            .map(|ranks| median(ranks.values().copied().collect()))
            .fold(0.0, f64::max)
    }

    /// What was said of a rank's look.
    pub(crate) fn take_suspects(&mut self, rank: u32) -> BTreeSet<OperationKey> {
        self.blame.suspects.remove(&rank).unwrap_or_default()
    }

    /// Charges `for_s` seconds to those whom slow operations wait for now.
    pub(crate) fn charge(&mut self, for_s: f64) {
        if self.ranks.values().all(|look| look.late.is_empty()) {
            return;
        }
        let mut roots = self.roots();
        let waiting = waiting(&roots);
        roots.retain(|root| match root.cause {
            HoldUp::NotEntered => root
                .wait
                .entered
                .iter()
                .any(|rank| self.is_late(*rank, root)),
            _ if self.is_ahead_of_gpu(root) => false,
            // The last to enter it waited for nobody: what it loses is lost inside.
            _ => self
                .last_in(root)
                .is_some_and(|last| self.is_late(last, root)),
        });
        // Who enters late may have been held up by what is slow inside another operation.
        if roots.iter().any(|root| is_inside(root.cause)) {
            roots.retain(|root| is_inside(root.cause));
        }
        // What is waited for at once shares the moment: by who else waits for it, and what a
        // single operation waits for by parts.
        let mut sharing: BTreeMap<_, u32> = BTreeMap::new();
        for root in &roots {
            *sharing.entry(key_of(root)).or_default() += 1;
        }
        let weights: Vec<f64> = roots
            .iter()
            .map(|root| {
                let waiting = root.ranks.iter().find_map(|rank| waiting.get(rank));
                let count = match root.cause {
                    HoldUp::NotEntered => waiting.map_or(1, BTreeSet::len),
                    _ => 1,
                };
                count as f64 / f64::from(sharing[&key_of(root)])
            })
            .collect();
        let all: f64 = weights.iter().sum();
        let blame = &mut self.blame;
        blame.looks += u32::from(!roots.is_empty());
        for (root, weight) in roots.into_iter().zip(weights) {
            let Root {
                cause,
                ranks,
                link,
                wait,
                ..
            } = root;
            blame.waits.entry(ranks.clone()).or_insert(wait);
            *blame.waited_s.entry((cause, ranks, link)).or_default() += for_s * (weight / all);
        }
    }

    /// Whether a send or receive waits for a GPU that has moved nothing of it: its host may have
    /// enqueued it long before, and the GPU still works on what comes first.
    fn is_ahead_of_gpu(&self, root: &Root) -> bool {
        root.cause.is_of_gpu()
            && root.wait.op.is_point_to_point()
            && root.ranks.iter().any(|rank| {
                let flow = self
                    .operation_of(*rank, root)
                    .and_then(|it| it.flows.first());
                flow.is_some_and(|flow| match flow.direction {
                    Direction::Send => flow.ready == 0,
                    Direction::Receive => flow.done == 0,
                })
            })
    }

    /// Whether the operation that a root is in takes a rank longer than it should.
    fn is_late(&self, rank: u32, root: &Root) -> bool {
        self.ranks
            .get(&rank)
            .is_some_and(|look| look.late.contains(&key_of(root)))
    }

    /// Whose GPU got to an operation last: it has been in it for the shortest time, by its own clock.
    fn last_in(&self, root: &Root) -> Option<u32> {
        root.wait
            .entered
            .iter()
            .filter_map(|rank| {
                let since = self.operation_of(*rank, root)?.under_way_since()?;
                let at = self.ranks.get(rank)?.at;
                Some((at.0.saturating_sub(since.0), *rank))
            })
            .min()
            .map(|(_, rank)| rank)
    }

    /// What a rank knows of the operation that a root is in.
    fn operation_of(&self, rank: u32, root: &Root) -> Option<&Operation> {
        let look = self.ranks.get(&rank)?;
        let (_, operation) = look.open.iter().find(|(meeting, operation)| {
            meeting.lane.communicator == root.communicator
                && meeting.op == root.wait.op
                && operation.sequence.saturating_add(1) == root.wait.number
        })?;
        Some(operation)
    }

    /// Who makes operations slow, once enough was seen to say.
    ///
    /// # Properties
    /// Healthy operations have no say: who is waited for in them by turns is nobody's fault.
    /// # Source
    /// Ours, for Mycroft's (2025) straggler analysis: instead of times on several clocks,
    /// counters of both ends say at each look who is waited for.
    pub fn straggler(&self) -> Option<Straggler> {
        let blame = &self.blame;
        if blame.looks < MIN_LOOKS {
            return None;
        }
        let all_s: f64 = blame.waited_s.values().sum();
        let inside_s: f64 = blame
            .waited_s
            .iter()
            .filter(|((cause, ..), _)| is_inside(*cause))
            .map(|(_, waited_s)| waited_s)
            .sum();
        let mut waited_s = blame.waited_s.clone();
        let all_s = if inside_s >= INSIDE_SHARE * all_s {
            waited_s.retain(|(cause, ..), _| is_inside(*cause));
            inside_s
        } else {
            // Little is lost inside: then who enters late is to blame, for a share of all that was
            // lost.
            waited_s.retain(|(cause, ..), _| *cause == HoldUp::NotEntered);
            all_s
        };
        let Cover {
            ranks: culprits,
            either,
            blamed_s,
            causes,
            channels,
            ..
        } = Cover::of(waited_s);
        let (cause, _) = causes.iter().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        let (_, wait) = blame
            .waits
            .iter()
            .find(|(ranks, _)| ranks.iter().any(|rank| culprits.contains(rank)))?;
        // If nothing was waited for, this is not a number and reaches no share.
        let blamed_share = blamed_s / all_s;
        // Some ranks always enter a little later than others.
        let lasting = blamed_s >= LATE_START_S && culprits.len() * 2 <= self.ranks.len();
        if *cause == HoldUp::NotEntered && !lasting {
            return None;
        }
        // Devices that run behind their hosts are all late to what these enqueue: where most are, none
        // stands out.
        let are_most = culprits.len() * 2 > self.ranks.len()
            || wait.entered.iter().all(|rank| culprits.contains(rank));
        if cause.is_of_gpu() && culprits.len() > 1 && are_most {
            return None;
        }
        let slow = blame
            .slow
            .values()
            .max_by(|a, b| (a.took_s / a.usual_s).total_cmp(&(b.took_s / b.usual_s)))?;
        (blamed_share >= BLAMED_SHARE).then(|| Straggler {
            cause: *cause,
            either,
            channels: self.some_channels(&culprits, &channels),
            ranks: culprits.into_iter().collect(),
            wait: (**wait).clone(),
            slow: *slow,
            blamed_share,
            cost_s: self.longer_s().min(blamed_s),
        })
    }

    /// The channels, unless they are all that the ranks have.
    fn some_channels(&self, ranks: &BTreeSet<u32>, waited_s: &BTreeMap<u8, f64>) -> Vec<u8> {
        let most_s = waited_s.values().copied().fold(0.0, f64::max);
        let channels: Vec<u8> = waited_s
            .iter()
            .filter(|(_, waited_s)| **waited_s >= SLOW_CHANNEL_RATIO * most_s)
            .map(|(channel, _)| *channel)
            .collect();
        let all = ranks
            .iter()
            .filter_map(|rank| self.ranks.get(rank))
            .map(|look| look.channels)
            .max()
            .unwrap_or(0);
        if channels.len() < all {
            channels
        } else {
            Vec::new()
        }
    }

    /// Forgets who was blamed: nothing is slow any more.
    pub fn forgive(&mut self) {
        self.blame = Blame::default();
    }
}

/// The operation that a root is in.
fn key_of(root: &Root) -> OperationKey {
    (root.communicator, root.wait.op, root.wait.number)
}

/// Whether it shows in an operation that all have entered.
fn is_inside(cause: HoldUp) -> bool {
    !matches!(cause, HoldUp::NotEntered | HoldUp::Unknown)
}

/// Who waits for a rank that has not entered an operation, slow or not: its tensor group, too.
fn waiting(roots: &[Root]) -> BTreeMap<u32, BTreeSet<u32>> {
    let mut waiting: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for root in roots.iter().filter(|root| root.cause == HoldUp::NotEntered) {
        for rank in &root.ranks {
            waiting.entry(*rank).or_default().extend(&root.wait.entered);
        }
    }
    waiting
}

/// The few ranks that most of the waiting was for.
#[derive(Default)]
struct Cover {
    ranks: BTreeSet<u32>,
    /// Whether some are only the other ends of the links of others.
    either: bool,
    /// Seconds in which the worst of them was waited for, and any.
    worst_s: f64,
    blamed_s: f64,
    causes: BTreeMap<HoldUp, f64>,
    channels: BTreeMap<u8, f64>,
}

impl Cover {
    /// Takes the rank that most was waited for, then the next for what is left.
    fn of(mut left: Waited) -> Self {
        let mut cover = Self::default();
        loop {
            let mut of_rank: BTreeMap<u32, f64> = BTreeMap::new();
            for ((_, ranks, _), waited_s) in &left {
                for rank in ranks {
                    *of_rank.entry(*rank).or_default() += waited_s;
                }
            }
            let Some((rank, most_s)) = of_rank
                .iter()
                // Of equals the lowest, so that the same looks name the same rank.
                .max_by(|(a, x), (b, y)| x.total_cmp(y).then(b.cmp(a)))
            else {
                return cover;
            };
            if *most_s < ALSO_BLAMED_RATIO * cover.worst_s {
                return cover;
            }
            cover.worst_s = most_s.max(cover.worst_s);
            // Each round takes one entry at least, so the loop ends.
            let taken: Vec<_> = left
                .extract_if(.., |(_, ranks, _), _| ranks.contains(rank))
                .collect();
            // The other end of its links, if as much was waited for that one.
            let tied = taken
                .iter()
                .flat_map(|((_, ranks, _), _)| ranks)
                .find(|other| *other != rank && of_rank[*other] >= TIE_RATIO * most_s)
                .filter(|other| {
                    let shared_s: f64 = taken
                        .iter()
                        .filter(|((_, ranks, _), _)| ranks.contains(other))
                        .map(|(_, waited_s)| waited_s)
                        .sum();
                    let [own_s, others_s] = [most_s - shared_s, of_rank[other] - shared_s];
                    let little_s = APART_S.max(APART_SHARE * shared_s);
                    own_s < little_s.max(APART_RATIO * others_s)
                });
            cover.either |= tied.is_some();
            cover.ranks.extend(tied);
            cover.ranks.insert(*rank);
            for ((cause, _, link), waited_s) in taken {
                cover.blamed_s += waited_s;
                *cover.causes.entry(cause).or_default() += waited_s;
                if let Some(link) = link {
                    *cover.channels.entry(link.channel).or_default() += waited_s;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{Communicator, Flow, RankNs};

    use super::*;
    use crate::HangSettings;

    const COMMUNICATOR: u64 = 7;
    const LOOK_MS: u64 = 100;

    const fn at(ms: u64) -> RankNs {
        RankNs(ms * 1_000_000)
    }

    /// One end of a transfer from rank 0 to rank 1, of which the receiver's GPU took some.
    fn end(rank: u32, taken: u32) -> Operation {
        let (op, direction, done) = match rank {
            0 => (CollectiveOp::SEND, Direction::Send, taken),
            _ => (CollectiveOp::from_name("RECV"), Direction::Receive, taken),
        };
        let flow = Flow {
            channel: 0,
            peer: 1 - rank,
            direction,
            total: 8,
            ready: 4,
            transmitted: 4,
            done,
            bytes: 0,
            begun_at: at(0),
            moved_at: at(0),
        };
        Operation {
            communicator: COMMUNICATOR,
            op,
            sequence: 3,
            bytes: 8,
            begun_at: at(0),
            ended_at: None,
            may_have_ended: false,
            flows: vec![flow],
        }
    }

    /// Looks at two ranks at these times, of which operations say that they took seconds longer, once
    /// for each that ran at the same time.
    fn straggler(
        looks: impl IntoIterator<Item = (u32, u64)>,
        operation: impl Fn(u32, u64) -> Operation,
    ) -> Option<Straggler> {
        let mut communication = Communication::new(HangSettings::default());
        for rank in 0..2 {
            let (hash, name, size) = (COMMUNICATOR, String::new(), 2);
            let joined = Communicator {
                hash,
                name,
                rank,
                size,
            };
            communication.join(rank, &joined);
        }
        for (rank, look) in looks {
            let slow = Slowness {
                took_s: 2.0,
                usual_s: 0.1,
                of_channels: false,
            };
            communication.slow(rank, COMMUNICATOR, slow);
            let operation = operation(rank, look);
            communication.suspect(rank, &operation);
            communication.look(rank, at(look * LOOK_MS), vec![operation], &[]);
        }
        communication.straggler()
    }

    /// Two seconds, ranks in their order.
    fn looks() -> impl Iterator<Item = (u32, u64)> {
        (0..=20).flat_map(|look| [(0, look), (1, look)])
    }

    #[test]
    fn slow_operations_cost_no_more_than_the_time_in_which_they_are_waited_for() {
        let found = straggler(looks(), |rank, _| end(rank, 2)).expect("its GPU takes data, slowly");
        assert_eq!((found.cause, found.ranks), (HoldUp::GpuNotTaking, vec![1]));
        assert!((found.cost_s - 2.0).abs() < 0.2, "{}", found.cost_s);
    }

    /// Both GPUs work behind their hosts: now the one does not take what is there, now the other gives
    /// nothing.
    #[test]
    fn gpus_that_are_waited_for_by_turns_are_not_named() {
        let by_turns = |rank, look| end(rank, if look % 2 == 0 { 2 } else { 4 });
        assert_eq!(straggler(looks(), by_turns), None);
    }

    #[test]
    fn a_gpu_that_has_not_come_to_a_receive_is_not_slow_in_it() {
        assert_eq!(straggler(looks(), |rank, _| end(rank, 0)), None);
    }

    /// At each look the ranks are in the next transfer, which the sender's GPU has not come to. The
    /// first look misses rank 0: then the last one before a look at rank 1 is not of its moment.
    #[test]
    fn what_ranks_are_in_is_compared_at_one_moment() {
        let next = |rank, look| {
            let mut operation = end(rank, 0);
            operation.sequence = look;
            operation.flows[0].transmitted = 0;
            operation.flows[0].ready = rank;
            operation
        };
        assert_eq!(straggler(looks().skip(1), next), None);
    }
}
