//! Jobs that do not move.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use collective::Stall;
use model::{
    Action, Claim, Cost, Fact, Failure, Finding, FoldedStack, Frame, HoldUp, IncidentKind,
    JobContext, KnownPause, MarkKind, Observation, Origin, Pace, ProcessState, RankPart, Ranks,
    Severity, Stack, StageId, StageNames, StallClaim, StallKind, Subject, UnreadStack, Wait,
    Whereabouts, Worker,
};

use crate::pause::pause;

/// Frames of a stack that are shown.
const SHOWN_FRAMES: usize = 4;
/// Frames of a folded stack, and different ones of one hang. Taste: more is no longer looked at.
const FOLDED_FRAMES: usize = 64;
const MAX_FOLDS: usize = 64;
/// Culprits of which it is said where they are; and ranks where it is not known which of them one is.
const IN_FRONT: usize = 2;
const EQUALS: usize = 8;

/// The finding about a job that does not move, or did not for a while.
///
/// A pause that is known to take long is no hang, for `pause_max_s`.
pub fn hang(
    stall: &Stall,
    stacks: &BTreeMap<u32, Stack>,
    context: JobContext<'_>,
    id: String,
    quiet_s: f64,
    pause_max_s: f64,
    open: bool,
) -> Finding {
    let of_culprits = stall.culprits.iter().filter_map(|rank| stacks.get(rank));
    // Else culprits stand in collectives, or are not seen: no pause of theirs ends it.
    let may_pause = matches!(
        stall.kind,
        StallKind::Missing | StallKind::Livelock | StallKind::Nowhere
    );
    let long = pause(of_culprits).filter(|_| may_pause);
    let pause = long.filter(|_| quiet_s < pause_max_s);
    let since = stall.step;
    // What is not seen may be a pause as well, and to start may take long. It did not pass if
    // the job ended in it.
    let severity = match stall.kind {
        _ if !open || pause.is_some() => Severity::Info,
        kind if context.ended || stall.is_of_start() || kind == StallKind::Unseen => {
            Severity::Warning
        }
        _ if context.counted_once => Severity::Warning,
        // Hosts may be busy with something that has no marks.
        StallKind::Nowhere | StallKind::Livelock if quiet_s < pause_max_s => Severity::Warning,
        _ => Severity::Critical,
    };
    let open = open && !context.ended;
    let first = stall.culprits.first();
    let stage = first.and_then(|rank| stage_of(stall, *rank));
    let function = first.and_then(|rank| own_frame(stacks.get(rank)?));
    let accused = stall.accused();
    let victims: Ranks = stall.waiting.iter().copied().collect();
    let claim = StallClaim {
        kind: stall.kind,
        severity,
        open,
        step: since,
        quiet_s,
        culprits: stall.culprits.clone(),
        waits: stall.waits.clone(),
        failure: stall.failure.clone(),
        halts: stall.halts.clone(),
        whereabouts: in_front(stall)
            .into_iter()
            .map(|rank| whereabouts(stall, stacks, rank))
            .collect(),
        pause: long.map(|kind| KnownPause {
            kind,
            overdue_s: pause.is_none().then_some(pause_max_s),
        }),
    };
    Finding {
        kind: IncidentKind::Hang,
        severity,
        open,
        subject: Subject {
            hosts: context.hosts_of(&accused),
            ranks: accused,
            stage: stage.map(|stage| context.names.name(stage).to_owned()),
            function: function.map(Frame::text),
            ..Subject::default()
        },
        pace: Pace::Once { step: since },
        first_step: since,
        last_step: since,
        victims: victims.without(&stall.culprits),
        // Exposed time is that of steps, and a job that stands still makes none.
        cost: Cost::saved_whole(quiet_s, 0.0),
        facts: facts(stall, stacks),
        actions: vec![action(stall, stacks, pause.is_some())],
        ..Finding::new(Origin::Hang, id, Claim::Stall(Box::new(claim)))
    }
}

/// Who is in which collective, what does not move inside, and where main threads are.
fn facts(stall: &Stall, stacks: &BTreeMap<u32, Stack>) -> Vec<Fact> {
    let is_unseen = stall.kind == StallKind::Unseen;
    let waits = stall.waits.iter().map(|wait| {
        // A collective that lacks no culprit is about the ranks that it lacks.
        let is_of_others = stall.kind == StallKind::Missing
            && !wait
                .missing
                .iter()
                .any(|rank| stall.culprits.contains(rank));
        let ranks = if is_of_others {
            wait.missing.clone()
        } else {
            Vec::new()
        };
        let what = Observation::Wait {
            wait: Box::new(wait.clone()),
            is_unseen,
        };
        Fact {
            ranks,
            ..what.into()
        }
    });
    let inside = stall
        .failure
        .iter()
        .cloned()
        .map(Box::new)
        .map(Observation::Failure);
    let devices = stall
        .devices
        .iter()
        .cloned()
        .map(Box::new)
        .map(Observation::DeviceArrival);
    let stacks = of_stacks(stacks, &stall.culprits);
    let more = inside.chain(devices).chain(stacks);
    waits.chain(more.map(Fact::from)).collect()
}

/// The culprits of which it is said where they are: of each side one, or the first two.
fn in_front(stall: &Stall) -> Vec<u32> {
    match stall.waits.first() {
        Some(wait) if wait.is_undecided() => wait
            .sides()
            .iter()
            .map(|(ranks, _)| ranks[0])
            .take(IN_FRONT)
            .collect(),
        // Nobody is accused: all of them or none.
        _ if stall.kind == StallKind::Nowhere && stall.culprits.len() > EQUALS => Vec::new(),
        _ if stall.kind == StallKind::Nowhere => stall.culprits.clone(),
        _ => stall.culprits.iter().take(IN_FRONT).copied().collect(),
    }
}

/// Where a culprit is: its stack says most, its last mark something.
fn whereabouts(stall: &Stall, stacks: &BTreeMap<u32, Stack>, rank: u32) -> Whereabouts {
    let stack = stacks.get(&rank);
    let stage = stage_of(stall, rank);
    let has_ended = stall.gone.contains(&rank);
    // Where one that has ended was is known only if somebody looked before.
    let stage_now = stage.filter(|_| !has_ended);
    let in_stage = || Some(StageNames::default().name(stage_now?).to_owned());
    Whereabouts {
        rank,
        has_ended,
        state: stack.map_or(ProcessState::Unknown, |stack| stack.state),
        holds_gil: stack.and_then(|stack| stack.holds_gil),
        place: stack.and_then(own_frame).map(Frame::text).or_else(in_stage),
        waits_for_data: stage == Some(StageId::DATA),
        waits_for_device: stack.is_some_and(Stack::waits_for_device),
        worker: stack.and_then(worker).cloned(),
        not_left: not_left(stall, stacks, rank),
    }
}

/// The worker of its loader that a rank waits for in vain.
fn worker(stack: &Stack) -> Option<&Worker> {
    // A rank that was stopped itself does not wait for it.
    stack
        .workers
        .first()
        .filter(|_| stack.state != ProcessState::Stopped)
}

/// The collective before the one that a culprit lacks, if it still stands in it.
fn not_left(stall: &Stall, stacks: &BTreeMap<u32, Stack>, rank: u32) -> Option<u64> {
    let wait = stall
        .waits
        .iter()
        .find(|wait| wait.still_before.contains(&rank))?;
    let stays = stacks.get(&rank)?.is_in_collective();
    stays.then_some(wait.number.saturating_sub(1))
}

/// The stage a rank stands in after its last mark.
fn stage_of(stall: &Stall, rank: u32) -> Option<StageId> {
    match stall.last_kinds.get(&rank)? {
        kind if kind.begins() => kind.stage(),
        // The mark ends a stage: where the next one has no hook, the rank is in it all the same.
        MarkKind::DataEnd => Some(StageId::FORWARD),
        MarkKind::OptimizerEnd | MarkKind::BackwardEnd | MarkKind::DataStop => {
            Some(StageId::CALLBACKS)
        }
        _ => None,
    }
}

/// The innermost frame of the script's own code, or of any code.
fn own_frame(stack: &Stack) -> Option<&Frame> {
    stack
        .frames
        .iter()
        .find(|frame| frame.is_own())
        .or(stack.frames.first())
}

/// What to do next.
fn action(stall: &Stall, stacks: &BTreeMap<u32, Stack>, is_paused: bool) -> Action {
    let part = match &stall.failure {
        _ if is_paused => RankPart::Pause,
        Some(failure) => {
            let (ranks, part) = (failure.ranks.clone(), inside(failure));
            return Action::LookAtRanks { ranks, part };
        }
        None => part(stall, stacks),
    };
    Action::LookAtRanks {
        ranks: stall.culprits.clone(),
        part,
    }
}

/// What to look at where something has stopped inside an operation.
fn inside(failure: &Failure) -> RankPart {
    match failure.cause {
        // Counters show both ends of a broken link alike. A single rank means that several links or
        // a port speak against it.
        HoldUp::NotDelivered if failure.ranks.len() == 1 => RankPart::DeadCard,
        HoldUp::NotDelivered => RankPart::LinkEnds,
        HoldUp::NotTransmitted | HoldUp::ReceiverNotReady | HoldUp::ProxyStill => {
            RankPart::StillProxy
        }
        HoldUp::GpuNotStarted => RankPart::Stream,
        HoldUp::GpuNotReady | HoldUp::GpuNotTaking => RankPart::StillGpu,
        HoldUp::NotEntered | HoldUp::DeadlockCycle => RankPart::Stack,
        HoldUp::Unknown => RankPart::AllGpus,
    }
}

/// What to look at where ranks do not come to collectives, or do not leave them.
fn part(stall: &Stall, stacks: &BTreeMap<u32, Stack>) -> RankPart {
    let mut culprits = stall.culprits.iter();
    match stall.kind {
        // A process that has ended has no stack, whatever the kind of the stall.
        StallKind::Missing | StallKind::Inside if !stall.gone.is_empty() => RankPart::EndedOutput,
        StallKind::Missing => {
            if stall
                .culprits
                .iter()
                .any(|rank| not_left(stall, stacks, *rank).is_some())
            {
                RankPart::CollectiveBefore
            } else if culprits.any(|rank| stacks.get(rank).and_then(worker).is_some()) {
                RankPart::LoaderWorkers
            } else if culprits_wait_for_devices(stall, stacks) {
                RankPart::LaggingDevice
            } else {
                RankPart::StackOfMissing
            }
        }
        StallKind::Livelock => RankPart::Loop,
        StallKind::Unseen => RankPart::UnseenHosts,
        StallKind::Desync if stall.waits.iter().any(Wait::is_undecided) => RankPart::Branches,
        StallKind::Desync if is_same_op(stall) => RankPart::Tensors,
        StallKind::Desync => RankPart::CollectiveOrder,
        StallKind::Inside if stall.is_of_devices() => RankPart::LaggingDevice,
        StallKind::Inside if !stall.is_of_start() => RankPart::RecorderDumps,
        StallKind::Inside => RankPart::StartNetwork,
        StallKind::Nowhere => RankPart::StacksAndDevices,
        StallKind::Deadlock => RankPart::GroupOrder,
    }
}

/// Whether the hosts of all that do not come are seen to wait for their devices.
fn culprits_wait_for_devices(stall: &Stall, stacks: &BTreeMap<u32, Stack>) -> bool {
    let mut culprits = stall.culprits.iter();
    culprits.all(|rank| stacks.get(rank).is_some_and(Stack::waits_for_device))
}

/// Whether all of them entered the same operation, with other tensors.
fn is_same_op(stall: &Stall) -> bool {
    stall
        .waits
        .iter()
        .all(|wait| wait.desyncs.iter().all(|desync| desync.op == wait.op))
}

/// Ranks that are in the same place, together: those of culprits first, then those of most ranks.
pub fn folded<'a>(
    stacks: impl Iterator<Item = (&'a u32, &'a Stack)>,
    culprits: &[u32],
) -> Vec<FoldedStack> {
    let mut together: BTreeMap<(Vec<String>, ProcessState), Vec<u32>> = BTreeMap::new();
    for (rank, stack) in stacks {
        let frames = stack
            .frames
            .iter()
            .filter(|frame| !frame.is_laggards())
            .take(FOLDED_FRAMES)
            .map(Frame::text)
            .collect();
        together
            .entry((frames, stack.state))
            .or_default()
            .push(*rank);
    }
    let mut folds: Vec<_> = together.into_iter().collect();
    folds.sort_by_key(|(_, ranks)| {
        let is_named = ranks.iter().any(|rank| culprits.contains(rank));
        (!is_named, Reverse(ranks.len()))
    });
    folds
        .into_iter()
        .take(MAX_FOLDS)
        .map(|((frames, state), ranks)| FoldedStack {
            ranks: ranks.into_iter().collect(),
            state,
            frames,
        })
        .collect()
}

/// Stacks, equal ones folded, the culprits' first.
fn of_stacks(stacks: &BTreeMap<u32, Stack>, culprits: &[u32]) -> Vec<Observation> {
    let mut folded: Vec<(Vec<String>, Option<UnreadStack>, Vec<u32>)> = Vec::new();
    let (named, others): (Vec<_>, Vec<_>) =
        stacks.iter().partition(|(rank, _)| culprits.contains(rank));
    for (rank, stack) in named.into_iter().chain(others) {
        let theirs = stack.frames.iter().filter(|frame| !frame.is_laggards());
        let theirs: Vec<&Frame> = theirs.collect();
        // The frame below the script's own says what that called.
        let own = theirs.iter().position(|frame| frame.is_own());
        let from = own.unwrap_or(0).saturating_sub(1);
        let shown = theirs[from..].iter().take(SHOWN_FRAMES);
        let frames: Vec<String> = shown.map(|frame| frame.text()).collect();
        let unread = unread(stack).filter(|_| frames.is_empty());
        match folded
            .iter_mut()
            .find(|known| known.0 == frames && known.1 == unread)
        {
            Some((.., ranks)) => ranks.push(*rank),
            None => folded.push((frames, unread, vec![*rank])),
        }
    }
    folded
        .into_iter()
        .map(|(frames, unread, mut ranks)| {
            ranks.sort_unstable();
            Observation::Stack {
                ranks,
                frames,
                unread,
            }
        })
        .collect()
}

/// Why there are no frames, and what the kernel says instead.
fn unread(stack: &Stack) -> Option<UnreadStack> {
    // Of a process that runs or does not run at all the kernel's function says nothing.
    let waits = !matches!(
        stack.state,
        ProcessState::Running | ProcessState::Stopped | ProcessState::Ended
    );
    Some(UnreadStack {
        why: stack.unread.clone()?,
        state: stack.state,
        waits_in: stack.waits_in.clone().filter(|_| waits),
    })
}

#[cfg(test)]
mod tests {
    use model::{CollectiveOp, Desync, DeviceProgress, RankNs};

    use super::*;

    fn wait() -> Wait {
        Wait {
            group: "default".to_owned(),
            number: 46,
            op: CollectiveOp::ALLREDUCE,
            entered: vec![0, 1, 3],
            missing: vec![2],
            ..Wait::default()
        }
    }

    fn stall(kind: StallKind, wait: Wait) -> Stall {
        Stall {
            kind,
            culprits: vec![2],
            gone: Vec::new(),
            waits: vec![wait],
            waiting: vec![0, 1, 3],
            last_kinds: BTreeMap::new(),
            step: 40,
            since: RankNs(0),
            failure: None,
            halts: Vec::new(),
            devices: Vec::new(),
        }
    }

    fn failure(cause: HoldUp, ranks: &[u32]) -> Failure {
        Failure {
            cause,
            ranks: ranks.to_vec(),
            links: Vec::new(),
            waits: vec![wait()],
            still_s: 1.7,
            in_flight: 0,
        }
    }

    fn looked_at(stall: &Stall, stack: Option<Stack>) -> (Vec<u32>, RankPart) {
        let stacks = stack.map(|stack| (2, stack)).into_iter().collect();
        match action(stall, &stacks, false) {
            Action::LookAtRanks { ranks, part } => (ranks, part),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn of_ranks_of_which_none_is_accused_all_are_in_front_or_none() {
        let nowhere = |ranks: u32| Stall {
            culprits: (0..ranks).collect(),
            ..stall(StallKind::Nowhere, wait())
        };
        assert_eq!(in_front(&nowhere(4)), [0, 1, 2, 3]);
        assert_eq!(in_front(&nowhere(9)), [0; 0]);
    }

    #[test]
    fn what_to_look_at_follows_from_what_does_not_come() {
        let entered = |op| Wait {
            desyncs: vec![Desync {
                rank: 2,
                op,
                detail: "(8 bytes)".to_owned(),
            }],
            ..wait()
        };
        let undecided = Wait {
            desyncs: vec![Desync {
                rank: 2,
                op: wait().op,
                detail: String::new(),
            }],
            ..wait()
        };
        let open = |not_started| {
            let under_way = vec![0, 1, 2, 3];
            let open = DeviceProgress {
                under_way,
                not_started,
                ended: Vec::new(),
            };
            Wait {
                open: Some(open),
                ..wait()
            }
        };
        let start = Wait {
            op: CollectiveOp::INIT,
            ..wait()
        };
        let missing = stall(StallKind::Missing, wait());
        for (stall, part) in [
            (missing.clone(), RankPart::StackOfMissing),
            (
                Stall {
                    gone: vec![2],
                    ..missing
                },
                RankPart::EndedOutput,
            ),
            (stall(StallKind::Livelock, wait()), RankPart::Loop),
            (stall(StallKind::Unseen, wait()), RankPart::UnseenHosts),
            (
                stall(StallKind::Desync, entered(wait().op)),
                RankPart::Tensors,
            ),
            (
                stall(StallKind::Desync, entered(CollectiveOp::BARRIER)),
                RankPart::CollectiveOrder,
            ),
            (stall(StallKind::Desync, undecided), RankPart::Branches),
            (stall(StallKind::Deadlock, wait()), RankPart::GroupOrder),
            (stall(StallKind::Inside, start), RankPart::StartNetwork),
            (
                stall(StallKind::Inside, open(Vec::new())),
                RankPart::RecorderDumps,
            ),
            (
                stall(StallKind::Inside, open(vec![2])),
                RankPart::LaggingDevice,
            ),
            (
                stall(StallKind::Nowhere, wait()),
                RankPart::StacksAndDevices,
            ),
        ] {
            assert_eq!(looked_at(&stall, None), (vec![2], part), "{:?}", stall.kind);
        }
    }

    #[test]
    fn stacks_of_ranks_that_never_came_say_more() {
        let missing = stall(StallKind::Missing, wait());
        let stack = Stack::new(ProcessState::Sleeping, None, Vec::new());
        let worker = Worker {
            pid: 1234,
            state: ProcessState::Stopped,
        };
        let with_worker = Stack {
            workers: vec![worker],
            ..stack.clone()
        };
        assert_eq!(
            looked_at(&missing, Some(with_worker)).1,
            RankPart::LoaderWorkers
        );
        let frame = Frame {
            function: "all_reduce".to_owned(),
            file: "torch/distributed/distributed_c10d.py".to_owned(),
            line: 1,
        };
        let inside = Stack {
            frames: vec![frame],
            ..stack
        };
        let before = Wait {
            still_before: vec![2],
            ..wait()
        };
        let stays = stall(StallKind::Missing, before);
        assert_eq!(
            looked_at(&stays, Some(inside)).1,
            RankPart::CollectiveBefore
        );
        assert_eq!(
            action(&stays, &BTreeMap::new(), true),
            Action::LookAtRanks {
                ranks: vec![2],
                part: RankPart::Pause
            }
        );
    }

    /// Both ends of a link are looked at only if either may be the cause.
    #[test]
    fn what_counters_say_comes_before_who_is_missing() {
        for (cause, ranks, part) in [
            (HoldUp::NotDelivered, vec![1], RankPart::DeadCard),
            (HoldUp::NotDelivered, vec![1, 3], RankPart::LinkEnds),
            (HoldUp::ProxyStill, vec![1], RankPart::StillProxy),
            (HoldUp::GpuNotReady, vec![1], RankPart::StillGpu),
            (HoldUp::Unknown, vec![1], RankPart::AllGpus),
        ] {
            let failure = Some(failure(cause, &ranks));
            let stall = Stall {
                failure,
                ..stall(StallKind::Inside, wait())
            };
            assert_eq!(looked_at(&stall, None), (ranks, part));
        }
    }

    #[test]
    fn ranks_in_one_place_are_one_fact_and_culprits_come_first() {
        let frame = |function: &str| Frame {
            function: function.to_owned(),
            file: "/job/train.py".to_owned(),
            line: 7,
        };
        let at = |function| Stack::new(ProcessState::Sleeping, None, vec![frame(function)]);
        let stacks = [(0, at("wait")), (1, at("wait")), (2, at("read"))]
            .into_iter()
            .collect();
        let found = facts(&stall(StallKind::Missing, wait()), &stacks);
        let stack = |ranks: &[u32], frame: &str| {
            let (ranks, frames) = (ranks.to_vec(), vec![frame.to_owned()]);
            Fact::from(Observation::Stack {
                ranks,
                frames,
                unread: None,
            })
        };
        let waits = Observation::Wait {
            wait: Box::new(wait()),
            is_unseen: false,
        };
        assert_eq!(
            found,
            [
                waits.into(),
                stack(&[2], "read (train.py:7)"),
                stack(&[0, 1], "wait (train.py:7)"),
            ]
        );
    }
}
