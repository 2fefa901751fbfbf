//! Jobs that do not move.

use std::collections::BTreeMap;

use model::{
    Desync, DeviceArrival, DeviceProgress, HoldUp, PauseKind, ProcessState, Severity, StallClaim,
    StallKind, UnreadStack, Wait, Whereabouts,
};

use crate::fact::Worded;
use crate::inside;
use crate::pipeline::standstill;
use crate::words::{are, duration, its, of, who};

pub(crate) fn headline(stall: &StallClaim) -> String {
    let mut text = format!("{}: {}", beginning(stall), what(stall));
    let mut places: BTreeMap<(Option<String>, Option<u64>), Vec<u32>> = BTreeMap::new();
    for it in &stall.whereabouts {
        let place = (whereabouts(it), it.not_left);
        places.entry(place).or_default().push(it.rank);
    }
    let mut places: Vec<_> = places.into_iter().collect();
    places.sort_by_key(|(_, ranks)| ranks[0]);
    for ((place, before), ranks) in places {
        if let Some(place) = place {
            let each = if ranks.len() > 1 { "each of " } else { "" };
            text += &format!("; {each}{} {place}", who(&ranks));
        }
        if let Some(before) = before {
            text += &format!(" and has not left #{before}");
        }
    }
    if let Some(pause) = stall.pause {
        text += &format!(" and {}", pauses(pause.kind));
        if let Some(overdue_s) = pause.overdue_s {
            text += &format!(", for more than {}", duration(overdue_s));
        }
    }
    text
}

/// What stands still, and since when.
fn beginning(stall: &StallClaim) -> String {
    let (since, quiet) = (stall.step, duration(stall.quiet_s));
    let is_paused = stall.pause.is_some_and(|pause| pause.overdue_s.is_none());
    match (stall.severity, stall.open) {
        // The group of all ranks is made before there is any step to speak of.
        (_, true) if stall.is_of_start() => "startup has stalled".to_owned(),
        (_, false) if stall.is_of_start() => format!("startup stalled for {quiet}"),
        // No rank is known to wait for another, so it is not called a hang.
        (_, true) if stall.kind == StallKind::Nowhere => {
            format!("nothing has moved for {quiet} since step {since}")
        }
        // Ranks were counted once.
        (Severity::Warning, true) if since == 0 && stall.kind != StallKind::Unseen => {
            "possible hang".to_owned()
        }
        // A snapshot does not know of steps.
        (_, true) if since == 0 && !is_paused => "hang".to_owned(),
        (Severity::Critical, true) => format!("hang since step {since}"),
        // A known reason makes it a pause; it is critical, and a hang, once that takes too long.
        (_, true) => format!("waiting since step {since}"),
        (_, false) if stall.kind == StallKind::Livelock => {
            format!("ranks waited for {quiet} in step {since}")
        }
        (_, false) => format!("nothing moved for {quiet} in step {since}"),
    }
}

/// A collective by its number: "ALLREDUCE #46 of group default".
pub(crate) fn collective(wait: &Wait) -> String {
    let group = group_of(wait);
    // No collective has this number: nothing but the group is known.
    if wait.number == 0 {
        return format!("group {group}");
    }
    format!("{} #{} of group {group}", wait.op.name(), wait.number)
}

fn group_of(wait: &Wait) -> &str {
    if wait.group.is_empty() {
        "unknown"
    } else {
        &wait.group
    }
}

/// The label of evidence for what holds operations up.
pub(crate) fn label(cause: HoldUp) -> &'static str {
    match cause {
        HoldUp::NotEntered => "min_op",
        HoldUp::DeadlockCycle => "circle",
        HoldUp::GpuNotStarted => "not_started",
        HoldUp::GpuNotReady | HoldUp::GpuNotTaking => "gpu_not_ready",
        HoldUp::ReceiverNotReady => "receiver_not_ready",
        HoldUp::NotTransmitted => "not_transmitted",
        HoldUp::ProxyStill => "proxy_still",
        HoldUp::NotDelivered => "not_delivered",
        HoldUp::Unknown => "unknown",
    }
}

fn what(stall: &StallClaim) -> String {
    // Counters inside the operation say more than who has entered it.
    if let Some(failure) = &stall.failure {
        return inside::what(failure);
    }
    let culprits = who(&stall.culprits);
    let Some(wait) = stall.waits.first() else {
        return match (stall.kind, &stall.halts[..]) {
            (StallKind::Nowhere, []) => {
                format!(
                    "{culprits} did nothing, and {} collective is unknown",
                    its(&stall.culprits)
                )
            }
            // The stacks say which.
            (_, []) => format!(
                "{culprits} {} not in a communication call, and all other ranks wait in one",
                of(&stall.culprits, "is", "are")
            ),
            // No collective says why nothing moves: the blocks of pipelines do.
            (_, halts) => halts.iter().map(standstill).collect::<Vec<_>>().join(", "),
        };
    };
    let (entered, place) = (who(&wait.entered), collective(wait));
    let is_one = wait.entered.len() == 1;
    let wait_verb = if is_one { "waits" } else { "wait" };
    match stall.kind {
        // Replies of RAS list who belongs to a group, and not which collective it is in.
        StallKind::Missing if wait.number == 0 => format!(
            "{} missing from {place} ({} there)",
            are(&stall.culprits, &culprits),
            are(&wait.entered, &entered)
        ),
        StallKind::Missing => {
            format!("{culprits} never entered {place} ({entered} {wait_verb} in it)")
        }
        StallKind::Livelock => {
            let repeats = of(&stall.culprits, "repeats", "repeat");
            format!(
                "{culprits} {repeats} a part of the step and never entered {place} ({entered} {wait_verb} in it)"
            )
        }
        StallKind::Unseen => {
            format!("{entered} {wait_verb} in {place} for {culprits} (not recorded here)")
        }
        StallKind::Desync if wait.is_undecided() => sides(wait),
        StallKind::Desync => desync(wait),
        StallKind::Inside => {
            if let Some(open) = &wait.open {
                return of_devices(wait, open);
            }
            let verb = if is_one { "does" } else { "do" };
            format!("{entered} entered {place} and {verb} not leave it")
        }
        StallKind::Nowhere => format!(
            "{entered} issued {place} and {} done nothing since: it is unknown whether devices have \
             stalled or hosts are busy",
            if is_one { "has" } else { "have" }
        ),
        StallKind::Deadlock => {
            let parts: Vec<String> = stall
                .waits
                .iter()
                .map(|wait| {
                    let (entered, missing) = (who(&wait.entered), who(&wait.missing));
                    format!("{entered} in {} without {missing}", collective(wait))
                })
                .collect();
            format!("{culprits} wait for one another: {}", parts.join("; "))
        }
    }
}

/// Who entered something else than the others.
fn desync(wait: &Wait) -> String {
    let entered: Vec<String> = wait
        .sides()
        .iter()
        .map(|(ranks, other)| {
            let mut text = format!("{} entered {}", who(ranks), other.op.name());
            // Sizes that are the same would only hide that the kind is another.
            if other.detail != wait.detail && !other.detail.is_empty() {
                text += " ";
                text += &other.detail;
            }
            text
        })
        .collect();
    let differs = !wait.detail.is_empty()
        && wait
            .desyncs
            .iter()
            .any(|desync| desync.detail != wait.detail);
    let detail = if differs {
        format!(" {}", wait.detail)
    } else {
        String::new()
    };
    format!(
        "{} where the others entered {}{detail}",
        entered.join(", "),
        collective(wait)
    )
}

/// What each side entered where it is unknown which is wrong.
fn sides(wait: &Wait) -> String {
    let unseen = match &wait.missing[..] {
        [] => String::new(),
        missing => format!("; {} not recorded", are(missing, &who(missing))),
    };
    format!(
        "{}{unseen}: laggard cannot determine which side is wrong",
        both_sides(wait)
    )
}

/// What each side entered.
fn both_sides(wait: &Wait) -> String {
    let sides: Vec<String> = wait
        .sides()
        .iter()
        .map(|(ranks, entered)| side(ranks, entered))
        .collect();
    format!(
        "{} as #{} of group {}",
        sides.join(", "),
        wait.number,
        group_of(wait)
    )
}

fn side(ranks: &[u32], entered: &Desync) -> String {
    let what = format!("{} {}", entered.op.name(), entered.detail);
    format!("{} entered {}", who(ranks), what.trim_end())
}

/// How far devices have come in a collective that all of them were given.
fn of_devices(wait: &Wait, open: &DeviceProgress) -> String {
    let (behind, place) = (open.behind(), collective(wait));
    if behind.is_empty() {
        let verb = if wait.entered.len() == 1 {
            "has"
        } else {
            "have"
        };
        return format!(
            "{} {verb} issued {place}, which does not end: laggard cannot determine which device \
             holds it up",
            who(&wait.entered)
        );
    }
    let verb = if behind.len() == 1 { "has" } else { "have" };
    let devices = of_ranks(behind);
    // Where all that are under way have not begun, both lists are equal, and this one says more.
    if behind == open.not_started {
        return format!("{devices} {verb} not begun {place}, which others have begun");
    }
    let others = who(&open.ended);
    format!("{devices} {verb} not finished {place}, which has ended on {others}")
}

/// Where a culprit is: its stack says most, its last mark something.
fn whereabouts(it: &Whereabouts) -> Option<String> {
    // A process that is gone is nowhere, whatever its last mark says.
    if it.has_ended {
        return Some(match &it.place {
            Some(place) => format!("was in {place}, and has ended"),
            None => "has ended".to_owned(),
        });
    }
    if let (Some(place), true) = (&it.place, it.waits_for_device) {
        return Some(format!("waits for its device in {place}"));
    }
    let text = match (&it.place, does(it.state, it.holds_gil)) {
        (Some(place), does) => format!("{} in {place}", does.unwrap_or("is")),
        (None, does) => does?.to_owned(),
    };
    Some(match worker(it) {
        Some(worker) => format!("{text}; {worker}"),
        None => text,
    })
}

/// The worker of its loader that a rank waits for in vain.
fn worker(it: &Whereabouts) -> Option<String> {
    let worker = it.worker.as_ref()?;
    let does = match worker.state {
        ProcessState::Ended => "has ended",
        // Only workers that were stopped or have ended are kept.
        _ => "is stopped",
    };
    let pid = worker.pid;
    Some(if it.waits_for_data {
        format!("it waits in data.next_wait for its data-loader worker (pid {pid}), which {does}")
    } else {
        format!("its worker process (pid {pid}) {does}")
    })
}

/// What the main thread of a process does, as a verb. One that waits without the GIL is where
/// most of them are and needs no word.
fn does(state: ProcessState, holds_gil: Option<bool>) -> Option<&'static str> {
    match (state, holds_gil) {
        (ProcessState::Stopped, _) => Some("is stopped"),
        (ProcessState::Ended, _) => Some("has ended"),
        (ProcessState::Uninterruptible, _) => Some("waits for a device or file system"),
        // With the GIL it runs Python; without, it may be native code that spins in a wait.
        (ProcessState::Running, Some(true)) => Some("is busy"),
        // Native code that blocks and has not released it: no other thread runs Python.
        (ProcessState::Sleeping, Some(true)) => Some("holds the GIL"),
        _ => None,
    }
}

fn pauses(kind: PauseKind) -> &'static str {
    match kind {
        PauseKind::WritesCheckpoint => "writes a checkpoint",
        PauseKind::ReadsCheckpoint => "reads a checkpoint",
        PauseKind::HandlesCheckpoint => "writes or reads a checkpoint",
        PauseKind::Compiles => "compiles",
        PauseKind::Evaluates => "evaluates",
        PauseKind::Downloads => "downloads",
    }
}

/// Who is in a collective and who is not.
pub(crate) fn wait(wait: &Wait, is_unseen: bool) -> Worded {
    let missing = who(&wait.missing);
    let mut text = if wait.is_undecided() {
        both_sides(wait)
    } else if wait.number == 0 {
        format!(
            "{} in {}",
            are(&wait.entered, &who(&wait.entered)),
            collective(wait)
        )
    } else {
        let entered: Vec<u32> = wait
            .entered
            .iter()
            .copied()
            // Those that entered something else under this number follow by their sides.
            .filter(|rank| wait.desyncs.iter().all(|desync| desync.rank != *rank))
            .collect();
        format!("{} entered {}", who(&entered), collective(wait))
    };
    if !wait.is_undecided() {
        for (ranks, other) in wait.sides() {
            text += &format!("; {}", side(&ranks, other));
        }
    }
    if !wait.missing.is_empty() {
        // Where ranks disagree, nothing is seen of those that are missing.
        text += &if is_unseen || !wait.desyncs.is_empty() {
            format!("; {} not recorded here", are(&wait.missing, &missing))
        } else if wait.number == 0 {
            // As above, RAS: it has no answer of their processes.
            format!("; {missing} could not be reached")
        } else {
            format!("; {missing} did not")
        };
    }
    let values = [
        ("entered_ranks", wait.entered.len() as f64),
        ("missing_ranks", wait.missing.len() as f64),
    ];
    Worded::new("min_op", text, &values)
}

/// Whose devices got to a collective, and whose were not seen to.
pub(crate) fn device_arrival(arrival: &DeviceArrival) -> Worded {
    let DeviceArrival { wait, later_s } = arrival;
    let (there, others) = (of_ranks(&wait.entered), of_ranks(&wait.missing));
    let place = collective(wait);
    let verb = if wait.missing.len() == 1 {
        "was"
    } else {
        "were"
    };
    let others = match later_s {
        Some(later_s) => format!("{others} had not reached it {} later", duration(*later_s)),
        // A host that waits for its device no longer looks, so this is no proof of absence.
        None => format!("{others} {verb} not observed there"),
    };
    let mut values = vec![
        ("arrived_ranks", wait.entered.len() as f64),
        ("late_ranks", wait.missing.len() as f64),
    ];
    values.extend(later_s.map(|later_s| ("later_s", later_s)));
    Worded::new(
        "device_marks",
        format!("{there} reached {place}; {others}"),
        &values,
    )
}

/// "the device of rank 2"
fn of_ranks(ranks: &[u32]) -> String {
    let devices = match ranks {
        [_] => "the device",
        _ => "the devices",
    };
    format!("{devices} of {}", who(ranks))
}

/// Where main threads are.
pub(crate) fn stack(ranks: &[u32], frames: &[String], stack: Option<&UnreadStack>) -> Worded {
    let place = match stack {
        _ if !frames.is_empty() => frames.join(" < "),
        Some(stack) => unread(ranks, stack),
        None => "no Python frame".to_owned(),
    };
    Worded::new("stack", format!("{}: {place}", who(ranks)), &[])
}

/// Why there are no frames, and what the kernel says instead.
fn unread(ranks: &[u32], stack: &UnreadStack) -> String {
    let it = |one: &str, several: &str| {
        let what = of(ranks, one, several);
        format!("; {} {what}", of(ranks, "it", "they"))
    };
    let does = match (stack.state, &stack.waits_in) {
        (ProcessState::Running, _) => it("runs", "run"),
        (ProcessState::Stopped, _) => it("is stopped", "are stopped"),
        (ProcessState::Ended, _) => it("has ended", "have ended"),
        (ProcessState::Uninterruptible, None) => it(
            "waits for a device or file system",
            "wait for devices or file systems",
        ),
        (ProcessState::Sleeping, None) => it("waits", "wait"),
        (_, Some(function)) => format!("{} in {function} of the kernel", it("waits", "wait")),
        (ProcessState::Unknown, None) => String::new(),
    };
    let stacks = of(ranks, "its stack", "their stacks");
    format!("{stacks} cannot be read: {}{does}", stack.why)
}

#[cfg(test)]
mod tests {
    use model::{CollectiveOp, KnownPause, Worker};

    use super::*;

    fn a_wait() -> Wait {
        Wait {
            group: "default".to_owned(),
            number: 46,
            op: CollectiveOp::ALLREDUCE,
            entered: vec![0, 1, 3],
            missing: vec![2],
            ..Wait::default()
        }
    }

    fn stall(kind: StallKind, wait: Wait) -> StallClaim {
        StallClaim {
            kind,
            severity: Severity::Critical,
            open: true,
            step: 40,
            quiet_s: 12.0,
            culprits: vec![2],
            waits: vec![wait],
            failure: None,
            halts: Vec::new(),
            whereabouts: Vec::new(),
            pause: None,
        }
    }

    fn at(place: Option<&str>) -> Whereabouts {
        Whereabouts {
            rank: 2,
            has_ended: false,
            state: ProcessState::Sleeping,
            holds_gil: None,
            place: place.map(str::to_owned),
            waits_for_data: false,
            waits_for_device: false,
            worker: None,
            not_left: None,
        }
    }

    #[test]
    fn a_rank_that_never_came_is_named_with_its_place() {
        let whereabouts = vec![at(Some("read_shard (dataset.py:77)"))];
        let hang = StallClaim {
            whereabouts,
            ..stall(StallKind::Missing, a_wait())
        };
        assert_eq!(
            headline(&hang),
            "hang since step 40: rank 2 never entered ALLREDUCE #46 of group default (ranks 0-1,3 \
             wait in it); rank 2 is in read_shard (dataset.py:77)"
        );
    }

    #[test]
    fn ranks_in_one_place_are_named_together() {
        let waits = |rank: u32, place| Whereabouts {
            rank,
            waits_for_device: true,
            ..at(Some(place))
        };
        let whereabouts = [(0, "a (a.py:1)"), (1, "b (b.py:2)"), (3, "a (a.py:1)")];
        let hang = StallClaim {
            whereabouts: whereabouts.map(|(rank, place)| waits(rank, place)).into(),
            ..stall(StallKind::Missing, a_wait())
        };
        let places = "; each of ranks 0,3 waits for its device in a (a.py:1); rank 1 waits for its device in \
                      b (b.py:2)";
        assert!(headline(&hang).ends_with(places), "{}", headline(&hang));
    }

    #[test]
    fn a_pause_that_takes_too_long_is_a_hang_with_its_reason() {
        let paused = |overdue_s| StallClaim {
            severity: Severity::Info,
            pause: Some(KnownPause {
                kind: PauseKind::WritesCheckpoint,
                overdue_s,
            }),
            ..stall(StallKind::Missing, a_wait())
        };
        let waiting = headline(&paused(None));
        assert!(
            waiting.starts_with("waiting since step 40: rank 2 never"),
            "{waiting}"
        );
        assert!(waiting.ends_with(" and writes a checkpoint"), "{waiting}");
        let overdue = headline(&paused(Some(600.0)));
        assert!(
            overdue.ends_with("and writes a checkpoint, for more than 600.00 s"),
            "{overdue}"
        );
    }

    #[test]
    fn a_stall_begins_with_what_stands_still() {
        let hang = stall(StallKind::Missing, a_wait());
        for (claim, begin) in [
            (
                StallClaim {
                    step: 0,
                    ..hang.clone()
                },
                "hang: ",
            ),
            (
                StallClaim {
                    open: false,
                    ..hang.clone()
                },
                "nothing moved for 12.00 s in ",
            ),
            (
                StallClaim {
                    severity: Severity::Warning,
                    ..stall(StallKind::Livelock, a_wait())
                },
                "waiting since step 40: rank 2 repeats a part of the step and never entered ALLREDUCE #46 \
                 of group default (ranks 0-1,3 wait in it)",
            ),
            (
                StallClaim {
                    open: false,
                    ..stall(StallKind::Livelock, a_wait())
                },
                "ranks waited for 12.00 s in step 40: rank 2 repeats",
            ),
            (
                stall(StallKind::Nowhere, a_wait()),
                "nothing has moved for 12.00 s since step 40: ranks 0-1,3 issued ALLREDUCE #46",
            ),
            (
                stall(
                    StallKind::Inside,
                    Wait {
                        op: CollectiveOp::INIT,
                        ..a_wait()
                    },
                ),
                "startup has stalled: ",
            ),
        ] {
            let text = headline(&claim);
            assert!(text.starts_with(begin), "{text}");
        }
    }

    #[test]
    fn ranks_that_disagree_are_distinguished_by_what_they_entered() {
        let desync = |rank, op, detail: &str| Desync {
            rank,
            op,
            detail: detail.to_owned(),
        };
        let (reduce, barrier) = (CollectiveOp::ALLREDUCE, CollectiveOp::BARRIER);
        let odd = Wait {
            desyncs: vec![desync(2, barrier, "")],
            ..a_wait()
        };
        assert_eq!(
            what(&stall(StallKind::Desync, odd.clone())),
            "rank 2 entered BARRIER where the others entered ALLREDUCE #46 of group default"
        );
        let odd = Wait {
            desyncs: vec![desync(2, barrier, ""), desync(3, reduce, "")],
            ..odd
        };
        let text = what(&stall(StallKind::Desync, odd));
        assert!(
            text.starts_with("rank 2 entered BARRIER, rank 3 entered ALLREDUCE"),
            "{text}"
        );
        let undecided = Wait {
            desyncs: vec![desync(0, reduce, ""), desync(2, barrier, "")],
            ..a_wait()
        };
        assert_eq!(
            what(&stall(StallKind::Desync, undecided)),
            "rank 0 entered ALLREDUCE, rank 2 entered BARRIER as #46 of group default; rank 2 is \
             not recorded: laggard cannot determine which side is wrong"
        );
    }

    #[test]
    fn devices_that_are_behind_are_named() {
        let open = |not_started: &[u32], ended: &[u32]| DeviceProgress {
            under_way: vec![1, 2],
            not_started: not_started.to_vec(),
            ended: ended.to_vec(),
        };
        let text = |open| of_devices(&a_wait(), &open);
        assert_eq!(
            text(open(&[2], &[])),
            "the device of rank 2 has not begun ALLREDUCE #46 of group default, which others have \
             begun"
        );
        assert_eq!(
            text(open(&[], &[0, 3])),
            "the devices of ranks 1-2 have not finished ALLREDUCE #46 of group default, which has \
             ended on ranks 0,3"
        );
        assert!(
            text(open(&[], &[])).ends_with("laggard cannot determine which device holds it up")
        );
    }

    #[test]
    fn devices_that_got_to_a_collective_are_distinguished_from_those_that_were_not_seen_there() {
        let text = |later_s| {
            let wait = a_wait();
            device_arrival(&DeviceArrival { wait, later_s }).text
        };
        let there = "the devices of ranks 0-1,3 reached ALLREDUCE #46 of group default";
        assert_eq!(
            text(None),
            format!("{there}; the device of rank 2 was not observed there")
        );
        assert_eq!(
            text(Some(0.5)),
            format!("{there}; the device of rank 2 had not reached it 500.0 ms later")
        );
    }

    #[test]
    fn a_rank_is_said_to_wait_for_its_worker() {
        let worker = |state| Some(Worker { pid: 12, state });
        let stopped = Whereabouts {
            worker: worker(ProcessState::Stopped),
            ..at(None)
        };
        assert_eq!(whereabouts(&stopped), None, "where it is is not known");
        let here = at(Some("data.next_wait"));
        let ended = worker(ProcessState::Ended);
        let waits = Whereabouts {
            worker: ended,
            waits_for_data: true,
            ..here
        };
        assert_eq!(
            whereabouts(&waits).as_deref(),
            Some(
                "is in data.next_wait; it waits in data.next_wait for its data-loader worker (pid \
                 12), which has ended"
            )
        );
    }

    #[test]
    fn a_stack_that_cannot_be_read_says_what_the_kernel_says() {
        let unread = UnreadStack {
            why: "no right to trace it".to_owned(),
            state: ProcessState::Sleeping,
            waits_in: Some("futex_wait_queue".to_owned()),
        };
        assert_eq!(
            stack(&[1, 2], &[], Some(&unread)).text,
            "ranks 1-2: their stacks cannot be read: no right to trace it; they wait in \
             futex_wait_queue of the kernel"
        );
        let frames = ["read (a.py:1)".to_owned(), "main (a.py:9)".to_owned()];
        assert_eq!(
            stack(&[1], &frames, None).text,
            "rank 1: read (a.py:1) < main (a.py:9)"
        );
    }

    #[test]
    fn who_entered_something_else_did_not_enter_the_same() {
        let other = |rank, op| Desync {
            rank,
            op,
            detail: String::new(),
        };
        let entered = vec![0, 1, 3];
        let odd = Wait {
            desyncs: vec![other(3, CollectiveOp::BROADCAST)],
            entered: entered.clone(),
            missing: Vec::new(),
            ..a_wait()
        };
        assert_eq!(
            wait(&odd, false).text,
            "ranks 0-1 entered ALLREDUCE #46 of group default; rank 3 entered BROADCAST"
        );
        let both = [(0, CollectiveOp::ALLREDUCE), (1, CollectiveOp::ALLREDUCE)];
        let desyncs = both.into_iter().chain([(3, CollectiveOp::BROADCAST)]);
        let undecided = Wait {
            desyncs: desyncs.map(|(rank, op)| other(rank, op)).collect(),
            entered,
            ..a_wait()
        };
        assert_eq!(
            wait(&undecided, false).text,
            "ranks 0-1 entered ALLREDUCE, rank 3 entered BROADCAST as #46 of group default; \
             rank 2 is not recorded here"
        );
    }
}
