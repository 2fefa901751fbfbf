//! Who everybody waits for at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{Direction, Flow, HoldUp, Operation, RankChannel, Wait};

use crate::FlowState;
use crate::communication::{Communication, MeetingPlace, OperationLane};
use crate::wait::deadlock_cycle;

/// Operations of one lane that are told apart at one moment: ranks that are in more than
/// these, of a communicator, are in a state nobody can explain.
const MAX_FRONTS: usize = 8;

/// One end of the wait graph: what the others wait for.
#[derive(Clone, Debug, PartialEq)]
pub struct Root {
    /// What is wrong.
    pub cause: HoldUp,
    /// The culprits, ascending: one rank, the two ends of a link nobody can tell apart, or
    /// the ranks of a circle.
    pub ranks: Vec<u32>,
    /// The flow it shows in, if it shows in one.
    pub link: Option<RankChannel>,
    /// The operation, and the communicator it is of.
    pub wait: Arc<Wait>,
    /// [`model::Communicator::hash`].
    pub communicator: u64,
    /// How long nothing of the operation has moved, in seconds; nor anything of who has not
    /// entered it: who still gets on elsewhere is late and no failure.
    pub still_s: f64,
}

/// Both ends of a link, as far as they were seen.
#[derive(Clone, Copy, Debug, Default)]
struct LinkEnds {
    sender: Option<Flow>,
    receiver: Option<Flow>,
    /// Whether the end that has no flow has ended the operation, rather than not been seen.
    other_ended: bool,
}

impl Communication {
    /// Says who everybody waits for at the moment of the last looks.
    ///
    /// # Properties
    /// Not empty if a rank is in an operation that others have not begun, or that all have
    /// begun (MY-P2). Adding a constant to the clock of a rank changes nothing (MY-P3).
    /// # Complexity
    /// That of sorting the operations in progress by the ranks that are in them.
    /// # Source
    /// Mycroft (2025): wait graph, root group, MinOp; inside the root operation counters of
    /// both ends of each flow are compared instead of MinData alone.
    pub fn roots(&self) -> Vec<Root> {
        let fronts = self.fronts();
        let (lacking, full): (Vec<&LaneHead>, Vec<&LaneHead>) = fronts
            .iter()
            .partition(|front| !front.wait.missing.is_empty());
        let (mut waiting, mut awaited) = (BTreeSet::new(), BTreeSet::new());
        for front in &lacking {
            waiting.extend(&front.wait.entered);
            awaited.extend(&front.wait.missing);
        }
        // Who waits itself is late through somebody else.
        let free: BTreeSet<u32> = awaited.difference(&waiting).copied().collect();
        // The waits lead from rank to rank and back to the first: a cycle (MY-P2).
        if !lacking.is_empty() && free.is_empty() {
            let waits = lacking.iter().map(|front| &*front.wait).collect::<Vec<_>>();
            let ranks = deadlock_cycle(&waits);
            let culprits: Vec<u32> = ranks.iter().copied().collect();
            return lacking
                .iter()
                .filter(|front| front.wait.entered.iter().any(|it| ranks.contains(it)))
                .map(|front| self.root(HoldUp::DeadlockCycle, culprits.clone(), None, front))
                .collect();
        }
        let mut roots = Vec::new();
        let mut explained: BTreeSet<u32> = BTreeSet::new();
        for front in full {
            // What all have called for may have ended, where only calls are seen.
            if front
                .in_it
                .values()
                .all(|operation| operation.may_have_ended)
            {
                continue;
            }
            let found = self.explain(front);
            let mut entered = front.wait.entered.iter();
            let awaited = entered.any(|rank| free.contains(rank));
            // Without this root nobody might be named (MY-P2): ranks in it are `explained`, and not
            // charged below with what they have not entered.
            if found.is_empty() && (awaited || lacking.is_empty()) {
                let ranks = front.wait.entered.clone();
                roots.push(self.root(HoldUp::Unknown, ranks, None, front));
            }
            explained.extend(&front.wait.entered);
            roots.extend(found);
        }
        for front in lacking {
            // Who is held up inside an operation cannot enter another.
            let culprits: Vec<u32> = front
                .wait
                .missing
                .iter()
                .filter(|rank| free.contains(rank) && !explained.contains(*rank))
                .copied()
                .collect();
            if !culprits.is_empty() {
                let still_s = culprits
                    .iter()
                    .map(|rank| self.rank_still_s(*rank))
                    .fold(f64::INFINITY, f64::min);
                let root = self.root(HoldUp::NotEntered, culprits, None, front);
                roots.push(Root {
                    still_s: still_s.min(root.still_s),
                    ..root
                });
            }
        }
        roots
    }

    /// The operations that are at the head of some rank's lane.
    fn fronts(&self) -> Vec<LaneHead<'_>> {
        // For each lane the operations at its head, and who is in them.
        let mut heads: BTreeMap<OperationLane, BTreeMap<(MeetingPlace, u64), InIt<'_>>> =
            BTreeMap::new();
        // A rank that has ended is in nothing any more: it is missing from what it had not ended.
        for (rank, look) in self.ranks.iter().filter(|(_, look)| !look.gone) {
            let mut seen = BTreeSet::new();
            for (meeting, operation) in &look.open {
                // Operations of a lane run in order: behind the oldest none can move.
                if seen.insert(meeting.lane) {
                    let lane = heads.entry(meeting.lane).or_default();
                    let key = (*meeting, operation.sequence);
                    lane.entry(key).or_default().insert(*rank, operation);
                }
            }
        }
        let mut fronts = Vec::new();
        for (lane, heads) in heads {
            let members = self.members(lane);
            let mut heads = heads.into_iter().collect::<Vec<_>>();
            // The list is cut below: operations that most ranks are in explain most of the waiting.
            heads.sort_by_key(|(_, in_it)| std::cmp::Reverse(in_it.len()));
            for ((meeting, sequence), in_it) in heads.into_iter().take(MAX_FRONTS) {
                let wait = Wait {
                    group: self.name_of(lane),
                    number: sequence.saturating_add(1),
                    op: meeting.op,
                    entered: in_it.keys().copied().collect(),
                    missing: members
                        .iter()
                        .copied()
                        .filter(|rank| {
                            !in_it.contains_key(rank) && !self.is_past(*rank, meeting, sequence)
                        })
                        .collect(),
                    ..Wait::default()
                };
                let communicator = lane.communicator;
                fronts.push(LaneHead {
                    wait: Arc::new(wait),
                    communicator,
                    in_it,
                });
            }
        }
        fronts
    }

    /// Whether a rank has ended an operation.
    fn is_past(&self, rank: u32, meeting: MeetingPlace, sequence: u64) -> bool {
        // Who was never looked at cannot be blamed for being elsewhere.
        let Some(look) = self.ranks.get(&rank) else {
            return true;
        };
        // To have begun it is not enough: what is still open the rank has not left.
        let begun = look
            .begun
            .get(&meeting)
            .is_some_and(|begun| *begun > sequence);
        let open = look
            .open
            .iter()
            .any(|(other, operation)| *other == meeting && operation.sequence == sequence);
        begun && !open
    }

    fn name_of(&self, lane: OperationLane) -> String {
        let known = self.communicators.get(&lane.communicator);
        match known.map(|members| members.name.as_str()) {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => format!("comm {:#x}", lane.communicator),
        }
    }

    /// Says what keeps an operation that all have begun from its end.
    fn explain(&self, front: &LaneHead<'_>) -> Vec<Root> {
        let mut links: BTreeMap<RankChannel, LinkEnds> = BTreeMap::new();
        for (rank, operation) in &front.in_it {
            for flow in &operation.flows {
                let Some(peer) = self.job_rank(operation.communicator, flow.peer) else {
                    continue;
                };
                let channel = flow.channel;
                match flow.direction {
                    Direction::Send => {
                        let link = RankChannel {
                            from: *rank,
                            to: peer,
                            channel,
                        };
                        links.entry(link).or_default().sender = Some(*flow);
                    }
                    Direction::Receive => {
                        let link = RankChannel {
                            from: peer,
                            to: *rank,
                            channel,
                        };
                        links.entry(link).or_default().receiver = Some(*flow);
                    }
                }
            }
        }
        for (link, ends) in &mut links {
            let other = if ends.sender.is_none() {
                link.from
            } else {
                link.to
            };
            // A rank that is looked at and shows no flow here is done with its own end.
            ends.other_ended = self.ranks.contains_key(&other);
        }
        // On a channel a rank sends on what it receives, one transfer behind: it lacks input
        // if it has taken all that arrived and sent all that it could make of it.
        let sent = links
            .iter()
            .filter_map(|(link, ends)| Some(((link.from, link.channel), ends.sender?.ready)))
            .collect::<BTreeMap<_, _>>();
        let starved = links
            .iter()
            .filter_map(|(link, ends)| Some(((link.to, link.channel), ends.receiver?)))
            .filter(|(end, flow)| {
                let sent = sent.get(end).copied().unwrap_or(0);
                flow.transmitted == flow.done && flow.done < flow.total.min(sent)
            })
            .map(|(end, _)| end)
            .collect::<BTreeSet<_>>();
        links
            .iter()
            .filter_map(|(link, ends)| {
                let is_starved = starved.contains(&(link.from, link.channel));
                Some((*link, ends, cause_of(ends, is_starved)?))
            })
            .map(|(link, ends, cause)| {
                let ranks = match cause {
                    HoldUp::GpuNotTaking | HoldUp::ReceiverNotReady => vec![link.to],
                    HoldUp::ProxyStill if ends.sender.is_none() => vec![link.to],
                    // Counters cannot tell which end lost it; what several links share may
                    // (`failures`).
                    HoldUp::NotDelivered => {
                        let mut ends = vec![link.from, link.to];
                        ends.sort_unstable();
                        ends
                    }
                    _ => vec![link.from],
                };
                self.root(cause, ranks, Some(link), front)
            })
            .filter(|root| !root.cause.is_of_gpu() || self.has_turn(root.ranks[0], front))
            .collect()
    }

    /// Whether an operation is the oldest that a rank is in: its GPU works on none before.
    fn has_turn(&self, rank: u32, front: &LaneHead<'_>) -> bool {
        let oldest = self.ranks.get(&rank).and_then(|look| look.open.first());
        let own = front.in_it.get(&rank);
        oldest.map(|(_, oldest)| oldest) == own.copied()
    }

    fn root(
        &self,
        cause: HoldUp,
        ranks: Vec<u32>,
        link: Option<RankChannel>,
        front: &LaneHead<'_>,
    ) -> Root {
        // An operation moves as long as one of its flows does.
        let still_s = front
            .in_it
            .iter()
            .map(|(rank, operation)| self.still_s(*rank, operation))
            .fold(f64::INFINITY, f64::min);
        Root {
            cause,
            ranks,
            link,
            wait: front.wait.clone(),
            communicator: front.communicator,
            still_s,
        }
    }
}

/// Ranks in an operation, and what each of them knows of it.
type InIt<'look> = BTreeMap<u32, &'look Operation>;

/// An operation at the head of a lane.
struct LaneHead<'look> {
    wait: Arc<Wait>,
    communicator: u64,
    in_it: InIt<'look>,
}

/// Says what a link that is not complete waits for; `None` if it is complete or waits for
/// other links.
fn cause_of(ends: &LinkEnds, sender_starved: bool) -> Option<HoldUp> {
    let Some(sender) = ends.sender else {
        let receiver = ends.receiver?;
        return if receiver.done < receiver.transmitted {
            Some(HoldUp::GpuNotTaking)
        } else {
            let late = receiver.transmitted < receiver.total;
            (late && ends.other_ended).then_some(HoldUp::ProxyStill)
        };
    };
    let state = FlowState::of(&sender);
    let Some(receiver) = ends.receiver else {
        return match state {
            FlowState::Complete => None,
            _ if ends.other_ended => Some(HoldUp::ProxyStill),
            // What it would pass on has not come: another link is the cause.
            FlowState::NotStarted | FlowState::GpuNotReady if sender_starved => None,
            FlowState::NotStarted => Some(HoldUp::GpuNotStarted),
            FlowState::GpuNotReady => Some(HoldUp::GpuNotReady),
            FlowState::NotTransmitted => Some(HoldUp::NotTransmitted),
            FlowState::NotDelivered => Some(HoldUp::NotDelivered),
        };
    };
    let (asked, arrived, taken) = (receiver.ready, receiver.transmitted, receiver.done);
    let taking = arrived == taken;
    match state {
        // The network has delivered what the receiver has not noticed.
        FlowState::Complete if arrived < sender.done => Some(HoldUp::ReceiverNotReady),
        FlowState::Complete => (!taking).then_some(HoldUp::GpuNotTaking),
        // A network that buffers takes data nobody has asked for yet.
        FlowState::NotDelivered if arrived == asked && asked < receiver.total => Some(if taking {
            HoldUp::ReceiverNotReady
        } else {
            HoldUp::GpuNotTaking
        }),
        FlowState::NotDelivered => Some(HoldUp::NotDelivered),
        _ if arrived < sender.done => Some(HoldUp::ReceiverNotReady),
        FlowState::NotTransmitted if !taking => Some(HoldUp::GpuNotTaking),
        // The receiver has asked for more than came: there is room, and the sender does not send.
        FlowState::NotTransmitted if asked > arrived => Some(HoldUp::NotTransmitted),
        FlowState::NotTransmitted => Some(HoldUp::ReceiverNotReady),
        FlowState::NotStarted | FlowState::GpuNotReady if sender_starved => None,
        FlowState::NotStarted => Some(HoldUp::GpuNotStarted),
        FlowState::GpuNotReady => Some(HoldUp::GpuNotReady),
    }
}
