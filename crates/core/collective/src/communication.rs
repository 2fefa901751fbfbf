//! What all ranks of a job are in, by their live tables.

use std::collections::{BTreeMap, BTreeSet};

use model::{CollectiveOp, Communicator, Direction, Operation, RankNs};

use crate::HangSettings;
use crate::blame::{Blame, OperationKey};

/// Seconds after which half of a long standstill is forgotten. Taste: an evaluation every few
/// minutes is remembered until the next.
const STILL_HALF_LIFE_S: f64 = 600.0;

/// The last look at the live tables of all ranks.
///
/// # Properties
/// Memory is bounded by what ranks are in at one moment and by the communicators they have.
/// No two clocks are compared: the clock of a rank only says how long its own operations
/// have stood still.
#[derive(Clone, Debug, Default)]
pub struct Communication {
    pub(crate) settings: HangSettings,
    pub(crate) communicators: BTreeMap<u64, CommunicatorMembers>,
    pub(crate) ranks: BTreeMap<u32, RankLook>,
    pub(crate) blame: Blame,
    /// When ranks were looked at since blame was charged last, each by its own clock.
    looked_at: BTreeSet<RankNs>,
}

/// Who is in a communicator.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommunicatorMembers {
    pub(crate) name: String,
    /// Job ranks by their rank in the communicator.
    pub(crate) ranks: BTreeMap<u32, u32>,
}

/// What one rank was in when it was looked at last.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankLook {
    /// On the rank's own clock.
    pub(crate) at: RankNs,
    /// When anything it was in last moved.
    moved_at: RankNs,
    /// Whether its process has ended.
    pub(crate) gone: bool,
    /// Oldest first.
    pub(crate) open: Vec<(MeetingPlace, Operation)>,
    /// Those that take it longer than they should.
    pub(crate) late: BTreeSet<OperationKey>,
    /// For each kind of meeting how many the rank has begun.
    pub(crate) begun: BTreeMap<MeetingPlace, u64>,
    /// The longest that an operation stood still lately before it went on or ended.
    longest_still_s: f64,
    /// The most channels of one operation.
    pub(crate) channels: usize,
}

/// Where ranks meet again and again: operations of one kind in one communicator, which all
/// its ranks count alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MeetingPlace {
    pub(crate) lane: OperationLane,
    pub(crate) op: CollectiveOp,
}

/// What runs one after the other: the collectives of a communicator, or what one of its ranks
/// sends to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OperationLane {
    pub(crate) communicator: u64,
    /// Sender and receiver, as job ranks.
    pub(crate) pair: Option<(u32, u32)>,
}

impl Communication {
    /// A job nothing is known of yet.
    pub fn new(settings: HangSettings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Says that a rank of the job has a communicator.
    pub fn join(&mut self, rank: u32, communicator: &Communicator) {
        let members = self.communicators.entry(communicator.hash).or_default();
        communicator.name.clone_into(&mut members.name);
        members.ranks.insert(communicator.rank, rank);
    }

    /// Takes what a rank is in at `at`, oldest first, and what it has ended since the last
    /// look.
    ///
    /// # Units
    /// `at` is the clock of the operations' own times.
    pub fn look(
        &mut self,
        rank: u32,
        at: RankNs,
        in_progress: Vec<Operation>,
        ended: &[Operation],
    ) {
        let open = in_progress
            .into_iter()
            .filter_map(|operation| Some((self.meeting(rank, &operation)?, operation)))
            .collect::<Vec<_>>();
        let ended: Vec<_> = ended
            .iter()
            .filter_map(|operation| Some((self.meeting(rank, operation)?, operation)))
            .collect();
        let before = self.ranks.get(&rank).map(|look| look.at);
        if let Some(before) = before.filter(|before| self.looked_at.contains(before)) {
            // All ranks that are looked at have been: that was one moment. It is over also for a rank
            // that was looked at together with one of them; ranks of a host are at the same time.
            // How long it was, one rank says: clocks of different hosts are never compared (MY-P3).
            self.charge(at.seconds_since(before));
            self.looked_at.clear();
        }
        self.looked_at.insert(at);
        let late = self.take_suspects(rank);
        let look = self.ranks.entry(rank).or_default();
        for (meeting, operation) in open
            .iter()
            .map(|(meeting, operation)| (meeting, operation))
            .chain(
                ended
                    .iter()
                    .map(|(meeting, operation)| (meeting, *operation)),
            )
        {
            let begun = look.begun.entry(*meeting).or_default();
            *begun = operation.sequence.saturating_add(1).max(*begun);
        }
        // How long things stand still in a healthy job is learned from what went on.
        let half_lives = at.seconds_since(look.at) / STILL_HALF_LIFE_S;
        look.longest_still_s *= (-half_lives).exp2();
        for (meeting, before) in &look.open {
            let now = open.iter().find(|(other, operation)| {
                other == meeting && operation.sequence == before.sequence
            });
            let went_on = now.is_none_or(|(_, operation)| operation.moved_at() > before.moved_at());
            if went_on {
                // Up to the last look only: when it went on after that is not known.
                let still_s = look.at.seconds_since(before.moved_at());
                look.longest_still_s = look.longest_still_s.max(still_s);
            }
        }
        for (_, operation) in &open {
            let channels: BTreeSet<u8> = operation.flows.iter().map(|flow| flow.channel).collect();
            look.channels = look.channels.max(channels.len());
        }
        look.moved_at = open
            .iter()
            .map(|(_, operation)| operation.moved_at())
            .chain(ended.iter().filter_map(|(_, operation)| operation.ended_at))
            .fold(look.moved_at, RankNs::max);
        look.at = at;
        look.late = late;
        look.gone = false;
        look.open = open;
    }

    /// Says that a rank's process has ended: what it was in then it will never end.
    pub fn leave(&mut self, rank: u32) {
        // Its last look is kept: what it had begun and not ended says what it is missing from.
        self.ranks.entry(rank).or_default().gone = true;
    }

    /// How long an operation may stand still before it is called stuck.
    pub(crate) fn patience_s(&self) -> f64 {
        let longest_s = self
            .ranks
            .values()
            .map(|look| look.longest_still_s)
            .fold(0.0, f64::max);
        // The longest of all ranks: what holds up one of them holds up those that wait for it.
        let usual_s = self.settings.quiet_ratio * longest_s;
        self.settings.quiet_min_s.max(usual_s)
    }

    /// How long nothing of an operation has moved on a rank.
    pub(crate) fn still_s(&self, rank: u32, operation: &Operation) -> f64 {
        let at = self.ranks.get(&rank).map_or(RankNs(0), |look| look.at);
        at.seconds_since(operation.moved_at())
    }

    /// How long a rank has done nothing in any of its communicators.
    pub(crate) fn rank_still_s(&self, rank: u32) -> f64 {
        let look = self.ranks.get(&rank).filter(|look| !look.gone);
        // Who has ended will not move again.
        look.map_or(f64::INFINITY, |look| look.at.seconds_since(look.moved_at))
    }

    /// The ranks that meet in a lane.
    pub(crate) fn members(&self, lane: OperationLane) -> BTreeSet<u32> {
        match lane.pair {
            Some((from, to)) => [from, to].into(),
            None => self
                .communicators
                .get(&lane.communicator)
                .map(|members| members.ranks.values().copied().collect())
                .unwrap_or_default(),
        }
    }

    /// The job's number of a communicator's rank.
    pub fn job_rank(&self, communicator: u64, rank: u32) -> Option<u32> {
        self.communicators
            .get(&communicator)?
            .ranks
            .get(&rank)
            .copied()
    }

    /// Where an operation meets others; `None` if its peer is not known.
    fn meeting(&self, rank: u32, operation: &Operation) -> Option<MeetingPlace> {
        let communicator = operation.communicator;
        if !operation.op.is_point_to_point() {
            let lane = OperationLane {
                communicator,
                pair: None,
            };
            return Some(MeetingPlace {
                lane,
                op: operation.op,
            });
        }
        let flow = operation.flows.first()?;
        let peer = self.job_rank(communicator, flow.peer)?;
        let pair = match flow.direction {
            Direction::Send => (rank, peer),
            Direction::Receive => (peer, rank),
        };
        let lane = OperationLane {
            communicator,
            pair: Some(pair),
        };
        Some(MeetingPlace {
            lane,
            // A send and its receive meet: both ends must name it alike.
            op: CollectiveOp::SEND,
        })
    }
}

#[cfg(test)]
mod tests {
    use model::{HoldUp, StallKind};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A call that has returned, at a second.
    fn called(op: CollectiveOp, sequence: u64, at_s: u64) -> Operation {
        Operation {
            communicator: 7,
            op,
            sequence,
            bytes: 4,
            begun_at: RankNs(at_s * SECOND),
            ended_at: None,
            may_have_ended: true,
            flows: Vec::new(),
        }
    }

    fn job(ranks: u32) -> Communication {
        let mut job = Communication::new(HangSettings::default());
        for rank in 0..ranks {
            let name = "dp".to_owned();
            job.join(
                rank,
                &Communicator {
                    hash: 7,
                    name,
                    rank,
                    size: ranks,
                },
            );
        }
        job
    }

    #[test]
    fn what_all_have_called_for_holds_nobody_up() {
        let mut job = job(2);
        for rank in 0..2 {
            let last = vec![called(CollectiveOp::ALLREDUCE, 5, 1)];
            job.look(rank, RankNs(90 * SECOND), last, &[]);
        }
        assert!(job.failures().is_empty());
    }

    #[test]
    fn who_has_not_called_is_waited_for_also_by_those_that_ran_ahead() {
        let mut job = job(3);
        for (rank, sequence) in [(0, 9), (1, 5), (2, 8)] {
            let last = vec![called(CollectiveOp::ALLREDUCE, sequence, 1)];
            job.look(rank, RankNs(90 * SECOND), last, &[]);
        }
        let failures = job.failures();
        let named = failures
            .iter()
            .map(|failure| (failure.cause, failure.ranks.clone()));
        assert_eq!(named.collect::<Vec<_>>(), [(HoldUp::NotEntered, vec![1])]);
    }

    #[test]
    fn of_equals_that_are_waited_for_all_are_named() {
        // Tensor-parallel ranks 0 and 1 stand still, each of which a group of its own waits for.
        let stall = |since_ms: u64| {
            let mut job = Communication::new(HangSettings::default());
            for (rank, peer, hash, since_ms) in [(0, 2, 7, 1000), (1, 3, 8, since_ms)] {
                for (at, rank) in [(0, rank), (1, peer)] {
                    let (name, size) = ("dp".to_owned(), 2);
                    job.join(
                        rank,
                        &Communicator {
                            hash,
                            name,
                            rank: at,
                            size,
                        },
                    );
                }
                for (rank, sequence, since_ms) in [(rank, 4, since_ms), (peer, 5, since_ms + 100)] {
                    let begun_at = RankNs(since_ms * SECOND / 1000);
                    let call = called(CollectiveOp::ALLREDUCE, sequence, 1);
                    let call = Operation {
                        communicator: hash,
                        begun_at,
                        ..call
                    };
                    job.look(rank, RankNs(90 * SECOND), vec![call], &[]);
                }
            }
            job.stall(RankNs(90 * SECOND)).unwrap()
        };
        let together = stall(1003);
        assert_eq!(
            (together.kind, together.culprits),
            (StallKind::Missing, vec![0, 1])
        );
        assert_eq!(together.waiting, [2, 3]);
        // One that stood still for long before the others is named alone.
        assert_eq!(stall(20_000).culprits, [0]);
    }

    #[test]
    fn who_still_gets_on_elsewhere_is_late_and_no_failure() {
        let mut job = job(2);
        let other = Communicator {
            hash: 8,
            name: "tp".to_owned(),
            rank: 0,
            size: 1,
        };
        job.join(1, &other);
        job.look(
            0,
            RankNs(90 * SECOND),
            vec![called(CollectiveOp::ALLREDUCE, 5, 1)],
            &[],
        );
        let elsewhere = Operation {
            communicator: 8,
            ..called(CollectiveOp::ALLREDUCE, 40, 89)
        };
        let calls = vec![called(CollectiveOp::ALLREDUCE, 4, 1), elsewhere];
        job.look(1, RankNs(90 * SECOND), calls.clone(), &[]);
        assert_eq!((job.roots().len(), job.failures().len()), (1, 0));
        job.look(1, RankNs(99 * SECOND), calls, &[]);
        assert_eq!(
            job.failures().first().map(|failure| &failure.ranks),
            Some(&vec![1])
        );
    }

    #[test]
    fn a_call_that_does_not_return_is_not_over() {
        let mut job = job(2);
        for rank in 0..2 {
            let call = called(CollectiveOp::ALLREDUCE, 5, 1);
            let inside = Operation {
                may_have_ended: rank == 0,
                ..call
            };
            job.look(rank, RankNs(90 * SECOND), vec![inside], &[]);
        }
        let failures = job.failures();
        assert_eq!((failures.len(), failures[0].cause), (1, HoldUp::Unknown));
    }
}
