//! Progress of ranks as data, for people to look at.

use std::collections::{BTreeMap, BTreeSet};

use model::{FlowProgress, LastEntered, Progress, Ranks};

use crate::communication::{MeetingPlace, OperationLane, RankLook};
use crate::progress::GroupProgress;
use crate::{Collectives, Communication};

/// Groups, different last collectives of one, and flows of one that are named. Taste: more is no
/// longer looked at.
const MAX_GROUPS: usize = 16;
const MAX_ENTERED: usize = 64;
const MAX_FLOWS: usize = 256;

impl Collectives {
    /// How far the ranks of each group have come, groups in which they differ or wait first, the
    /// larger ones in front.
    pub fn progress(&self) -> Vec<Progress> {
        let mut groups: Vec<&GroupProgress> = self.groups.values().collect();
        // That a group was made is nothing to look at.
        groups.retain(|group| !group.last.is_empty() && (group.is_apart() || !group.is_of_init()));
        // The list is cut: groups whose ranks differ come first, and then the large ones.
        groups.sort_by_key(|group| (!group.is_apart(), usize::MAX - group.members.len()));
        groups
            .into_iter()
            .take(MAX_GROUPS)
            .map(|group| Progress {
                group: group.name.clone(),
                entered: folded(group.members.iter().map(|rank| {
                    let last = group.last.get(rank);
                    let entered = last.map_or((0, String::new(), false), |last| {
                        let left = last.left || last.completed;
                        (last.number, last.what.op.name().to_owned(), left)
                    });
                    (*rank, entered)
                })),
                flows: Vec::new(),
            })
            .collect()
    }
}

impl GroupProgress {
    /// Whether its members are in different collectives, or some have not left theirs.
    fn is_apart(&self) -> bool {
        let mut numbers = self.last.values().map(|last| last.number);
        let first = numbers.next();
        self.last.len() < self.members.len()
            || numbers.any(|number| Some(number) != first)
            || self.last.values().any(|last| !last.left && !last.completed)
    }
}

impl Communication {
    /// How far the ranks of each communicator have come that have something in progress, and its
    /// flows.
    pub fn progress(&self) -> Vec<Progress> {
        let mut open: BTreeMap<u64, BTreeSet<MeetingPlace>> = BTreeMap::new();
        for (meeting, _) in self.ranks.values().flat_map(|look| &look.open) {
            open.entry(meeting.lane.communicator)
                .or_default()
                .insert(*meeting);
        }
        open.into_iter()
            .take(MAX_GROUPS)
            .map(|(communicator, meetings)| {
                let members = self.members(OperationLane {
                    communicator,
                    pair: None,
                });
                let known = self.communicators.get(&communicator);
                Progress {
                    group: known.map(|known| known.name.clone()).unwrap_or_default(),
                    // What ranks send to one another shows in the flows.
                    entered: meetings
                        .iter()
                        .filter(|it| it.lane.pair.is_none())
                        .flat_map(|meeting| {
                            folded(
                                members
                                    .iter()
                                    .map(|rank| (*rank, entered(self.ranks.get(rank), meeting))),
                            )
                        })
                        .take(MAX_ENTERED)
                        .collect(),
                    flows: self.flows(communicator),
                }
            })
            .collect()
    }

    fn flows(&self, communicator: u64) -> Vec<FlowProgress> {
        let mut flows: Vec<FlowProgress> = Vec::new();
        for (rank, look) in &self.ranks {
            let here = look
                .open
                .iter()
                .filter(|(_, it)| it.communicator == communicator);
            for flow in here.flat_map(|(_, operation)| &operation.flows) {
                let Some(peer) = self.job_rank(communicator, flow.peer) else {
                    continue;
                };
                flows.push(FlowProgress {
                    rank: *rank,
                    peer,
                    direction: flow.direction,
                    channel: flow.channel,
                    total: flow.total,
                    ready: flow.ready,
                    transmitted: flow.transmitted,
                    done: flow.done,
                });
            }
        }
        // What is not done comes first, so that the cut takes what is.
        flows.sort_by_key(|flow| {
            (
                flow.done == flow.total,
                flow.rank,
                flow.channel,
                flow.peer,
                flow.direction,
            )
        });
        flows.truncate(MAX_FLOWS);
        flows
    }
}

/// The last operation of a kind that a rank began: number, name, and whether it has ended.
fn entered(look: Option<&RankLook>, meeting: &MeetingPlace) -> (u64, String, bool) {
    let number = look
        .and_then(|look| look.begun.get(meeting))
        .copied()
        .unwrap_or(0);
    let is_open = look.is_some_and(|look| {
        look.open.iter().any(|(open, operation)| {
            open == meeting && operation.sequence.saturating_add(1) == number
        })
    });
    let op = if number == 0 { "" } else { meeting.op.name() };
    (number, op.to_owned(), number > 0 && !is_open)
}

/// Ranks that entered the same last, together; the furthest first.
fn folded(ranks: impl Iterator<Item = (u32, (u64, String, bool))>) -> Vec<LastEntered> {
    let mut together: BTreeMap<(u64, String, bool), Vec<u32>> = BTreeMap::new();
    for (rank, entered) in ranks {
        together.entry(entered).or_default().push(rank);
    }
    together
        .into_iter()
        .rev()
        .take(MAX_ENTERED)
        .map(|((number, op, left), ranks)| {
            let ranks: Ranks = ranks.into_iter().collect();
            LastEntered {
                number,
                op,
                left,
                ranks,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use model::{
        CollectiveIssue, CollectiveOp, Communicator, Direction, Event, Flow, Mark, Operation,
        RankNs,
    };

    use super::*;
    use crate::HangSettings;

    fn reported(progress: &Progress) -> Vec<(u64, &str, bool, String)> {
        let rows = progress.entered.iter();
        rows.map(|row| (row.number, &*row.op, row.left, row.ranks.to_string()))
            .collect()
    }

    #[test]
    fn ranks_that_are_as_far_are_reported_together() {
        let mut job = Collectives::new(HangSettings::default());
        job.join(1, "default", &[0, 1, 2, 3, 4].into());
        job.join(2, "calm", &[0, 1].into());
        let mut mark = |rank, event| {
            let (at, on_loop_thread) = (RankNs(1), true);
            job.mark(
                rank,
                &Mark {
                    at,
                    step: 1,
                    on_loop_thread,
                    event,
                },
            );
        };
        let issue = |group, number| {
            let op = CollectiveOp::ALLREDUCE;
            Event::CollectiveIssue(CollectiveIssue::new(op, group, number))
        };
        for rank in [0, 1] {
            mark(rank, issue(2, 7));
        }
        for (rank, number) in [(0, 46), (1, 46), (2, 45), (3, 46)] {
            mark(rank, issue(1, number));
        }
        mark(2, Event::BackwardEnd);
        let op = CollectiveOp(3).name();
        let [all, calm] = &job.progress()[..] else {
            panic!("two groups")
        };
        let rows = [
            (46, op, false, "0-1,3".to_owned()),
            (45, op, true, "2".to_owned()),
            (0, "", false, "4".to_owned()),
        ];
        assert_eq!((&*all.group, reported(all)), ("default", rows.to_vec()));
        assert_eq!(reported(calm), [(7, op, true, "0-1".to_owned())]);
    }

    #[test]
    fn flows_that_are_not_done_come_first() {
        let mut job = Communication::new(HangSettings::default());
        for rank in 0..3 {
            let name = "ring".to_owned();
            job.join(
                rank,
                &Communicator {
                    hash: 7,
                    name,
                    rank,
                    size: 3,
                },
            );
        }
        let flow = |peer, done| Flow {
            channel: 0,
            peer,
            direction: Direction::Send,
            total: 8,
            ready: 8,
            transmitted: 8,
            done,
            bytes: 1,
            begun_at: RankNs(1),
            moved_at: RankNs(1),
        };
        for (rank, done) in [(0, 8), (1, 5)] {
            let operation = Operation {
                communicator: 7,
                op: CollectiveOp::ALLREDUCE,
                sequence: 4,
                bytes: 1,
                begun_at: RankNs(1),
                ended_at: None,
                may_have_ended: false,
                flows: vec![flow(rank + 1, done)],
            };
            job.look(rank, RankNs(9), vec![operation], &[]);
        }
        let [ring] = &job.progress()[..] else {
            panic!("one communicator")
        };
        let op = CollectiveOp::ALLREDUCE.name();
        let rows = [
            (5, op, false, "0-1".to_owned()),
            (0, "", false, "2".to_owned()),
        ];
        assert_eq!(reported(ring), rows);
        let flows: Vec<_> = ring
            .flows
            .iter()
            .map(|it| (it.rank, it.peer, it.done))
            .collect();
        assert_eq!(flows, [(1, 2, 5), (0, 1, 8)]);
    }
}
