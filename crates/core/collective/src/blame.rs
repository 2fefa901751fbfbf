//! Who slow operations wait for, moment by moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{CollectiveOp, Operation};

use crate::communication::Communication;
use crate::{Cause, Link, Root, Slow, Wait};

/// Looks it takes to blame anybody.
const MIN_LOOKS: u32 = 10;
/// Share of the waiting that must be explained by those who are blamed.
const BLAMED_SHARE: f64 = 0.5;
/// Share of the waiting inside operations from which it is what makes them slow.
const INSIDE_SHARE: f64 = 0.3;
/// Seconds others must have waited for a rank that enters late, in operations that take longer
/// than usual; Mycroft's (2025) lateness.
const LATE_START_S: f64 = 1.0;
/// Waiting for another culprit, relative to the worst, from which it is one as well.
const ALSO_BLAMED_RATIO: f64 = 0.5;
/// The same for channels.
const SLOW_CHANNEL_RATIO: f64 = 0.5;
/// Ranks whose waiting differs by less cannot be told apart.
const TIE_RATIO: f64 = 0.75;

/// Seconds that slow operations waited, by root.
type Waited = BTreeMap<(Cause, Vec<u32>, Option<Link>), f64>;

/// What was seen of slow operations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blame {
    /// Operations, by their number, that take these ranks longer than they should.
    suspects: BTreeMap<(u64, CollectiveOp, u64), BTreeSet<u32>>,
    /// Communicators whose operations are slow, and the worst of them.
    slow: BTreeMap<u64, Slow>,
    waited_s: Waited,
    /// An operation of each that is blamed.
    waits: BTreeMap<Vec<u32>, Arc<Wait>>,
    looks: u32,
    /// Seconds that operations took longer than usual, by communicator.
    cost_s: BTreeMap<u64, f64>,
}

/// Ranks that make operations slow from the inside.
#[derive(Clone, Debug, PartialEq)]
pub struct Straggler {
    /// What is wrong.
    pub cause: Cause,
    /// The culprits, ascending; never empty.
    pub ranks: Vec<u32>,
    /// Whether the ranks are the two ends of links that cannot be told apart.
    pub either: bool,
    /// The channels it shows in, if not in all.
    pub channels: Vec<u8>,
    /// An operation that is slow.
    pub wait: Wait,
    /// How slow the worst one was.
    pub slow: Slow,
    /// Share of the waiting in slow operations that was for them.
    pub blamed_share: f64,
    /// Seconds operations took longer than usual, in the worst communicator.
    pub cost_s: f64,
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
        let key = (operation.communicator, op, operation.sequence.saturating_add(1));
        self.blame.suspects.entry(key).or_default().insert(rank);
    }

    /// Takes note that operations of a communicator have become slow.
    pub fn slow(&mut self, communicator: u64, slow: Slow) {
        if slow.usual_s <= 0.0 || slow.took_s <= slow.usual_s {
            return;
        }
        let worst = self.blame.slow.entry(communicator).or_insert(slow);
        if slow.took_s / slow.usual_s > worst.took_s / worst.usual_s {
            *worst = slow;
        }
        let cost_s = self.blame.cost_s.entry(communicator).or_default();
        *cost_s += slow.took_s - slow.usual_s;
    }

    /// Charges `for_s` seconds to those whom slow operations wait for now.
    pub(crate) fn charge(&mut self, for_s: f64) {
        let suspects = std::mem::take(&mut self.blame.suspects);
        if suspects.is_empty() {
            return;
        }
        let mut roots = self.roots();
        roots.retain(|Root { cause, communicator, wait, .. }| {
            // Since the last of its ranks entered, an operation has been in progress for what
            // it has been for each of them at least.
            let late = suspects.get(&(*communicator, wait.op, wait.number));
            late.is_some_and(|late| {
                let mut entered = wait.entered.iter();
                *cause == Cause::NotEntered || entered.all(|rank| late.contains(rank))
            })
        });
        // What an operation waits for at once shares its time.
        let key = |root: &Root| (root.communicator, root.wait.op, root.wait.number);
        let mut sharing: BTreeMap<_, u32> = BTreeMap::new();
        for root in &roots {
            *sharing.entry(key(root)).or_default() += 1;
        }
        let blame = &mut self.blame;
        blame.looks += u32::from(!roots.is_empty());
        for root in roots {
            let part_s = for_s / f64::from(sharing[&key(&root)]);
            let Root { cause, ranks, link, wait, .. } = root;
            blame.waits.entry(ranks.clone()).or_insert(wait);
            *blame.waited_s.entry((cause, ranks, link)).or_default() += part_s;
        }
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
        let inside = |cause: Cause| !matches!(cause, Cause::NotEntered | Cause::Unknown);
        let seconds = |of: &dyn Fn(Cause) -> bool| -> f64 {
            let waited = blame.waited_s.iter().filter(|((cause, ..), _)| of(*cause));
            waited.map(|(_, waited_s)| waited_s).sum()
        };
        let (all_s, inside_s) = (seconds(&|_| true), seconds(&inside));
        let mut waited_s = blame.waited_s.clone();
        let all_s = if inside_s >= INSIDE_SHARE * all_s {
            waited_s.retain(|(cause, ..), _| inside(*cause));
            inside_s
        } else {
            waited_s.retain(|(cause, ..), _| *cause == Cause::NotEntered);
            all_s
        };
        let Cover { ranks: culprits, either, worst_s, blamed_s, causes, channels } =
            Cover::of(waited_s);
        let (cause, _) = causes.iter().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        let mut waits = blame.waits.iter();
        let (_, wait) =
            waits.find(|(ranks, _)| ranks.iter().any(|rank| culprits.contains(rank)))?;
        let blamed_share = blamed_s / all_s;
        // Some ranks always enter a little later than others.
        let lasting = worst_s >= LATE_START_S && culprits.len() * 2 <= self.ranks.len();
        if *cause == Cause::NotEntered && !lasting {
            return None;
        }
        let ratio = |slow: &Slow| slow.took_s / slow.usual_s;
        let slow = blame.slow.values().max_by(|a, b| ratio(a).total_cmp(&ratio(b)))?;
        (blamed_share >= BLAMED_SHARE).then(|| Straggler {
            cause: *cause,
            either,
            channels: self.some_channels(&culprits, &channels),
            ranks: culprits.into_iter().collect(),
            wait: (**wait).clone(),
            slow: *slow,
            blamed_share,
            cost_s: blame.cost_s.values().copied().fold(0.0, f64::max),
        })
    }

    /// The channels, unless they are all that the ranks have.
    fn some_channels(
        &self,
        ranks: &BTreeSet<u32>,
        waited_s: &BTreeMap<u8, f64>,
    ) -> Vec<u8> {
        let most_s = waited_s.values().copied().fold(0.0, f64::max);
        let slow = waited_s.iter().filter(|(_, s)| **s >= SLOW_CHANNEL_RATIO * most_s);
        let channels = slow.map(|(channel, _)| *channel).collect::<Vec<_>>();
        let looks = ranks.iter().filter_map(|rank| self.ranks.get(rank));
        let all = looks.map(|look| look.channels).max().unwrap_or(0);
        if channels.len() < all { channels } else { Vec::new() }
    }

    /// Forgets who was blamed: nothing is slow any more.
    pub fn forgive(&mut self) {
        self.blame = Blame::default();
    }
}

/// The few ranks that most of the waiting was for.
#[derive(Default)]
struct Cover {
    ranks: BTreeSet<u32>,
    /// Whether some are only the other ends of the links of others.
    either: bool,
    /// Seconds waited for the worst of them, and for all.
    worst_s: f64,
    blamed_s: f64,
    causes: BTreeMap<Cause, f64>,
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
            let Some((rank, most_s)) =
                of_rank.iter().max_by(|(a, x), (b, y)| x.total_cmp(y).then(b.cmp(a)))
            else {
                return cover;
            };
            if *most_s < ALSO_BLAMED_RATIO * cover.worst_s {
                return cover;
            }
            cover.worst_s = most_s.max(cover.worst_s);
            let taken = left.extract_if(.., |(_, ranks, _), _| ranks.contains(rank));
            let taken = taken.collect::<Vec<_>>();
            // The other end of its links, if as much was waited for that one.
            let mut others = taken.iter().flat_map(|((_, ranks, _), _)| ranks);
            let tied = others
                .find(|other| *other != rank && of_rank[*other] >= TIE_RATIO * most_s);
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
