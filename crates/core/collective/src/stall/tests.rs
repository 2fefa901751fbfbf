use proptest::prelude::*;

use super::*;
use crate::{Entered, HangSettings};
use model::{CollectiveIssue, Event, InFlight};

const WORLD: u32 = 1;
const PAIR: u32 = 2;
const REDUCE: CollectiveOp = CollectiveOp(3);

fn job() -> Collectives {
    let mut job = Collectives::new(HangSettings::default());
    job.join(WORLD, "default", &[0, 1, 2, 3].into());
    job.join(PAIR, "tp", &[0, 1].into());
    job
}

fn issue(job: &mut Collectives, rank: u32, group: u32, number: u64, op: CollectiveOp) {
    let issue = CollectiveIssue::new(op, group, number);
    job.mark(rank, &mark(Event::CollectiveIssue(issue)));
}

fn mark(event: Event) -> model::Mark {
    let at = RankNs(1_000_000_000);
    model::Mark {
        at,
        step: 61,
        on_loop_thread: true,
        event,
    }
}

fn entered(number: u64, detail: &str, completed: bool) -> Entered {
    let (detail, in_flight) = (detail.to_owned(), InFlight::Unknown);
    Entered {
        group: WORLD,
        number,
        op: REDUCE,
        detail,
        completed,
        in_flight,
    }
}

fn stall_after(job: &Collectives, seconds: u64) -> Option<Stall> {
    job.stall(RankNs(1_000_000_000 * (1 + seconds)))
}

#[test]
fn of_ranks_that_never_came_those_that_others_wait_for_elsewhere_remain() {
    let mut job = job();
    issue(&mut job, 3, WORLD, 1, REDUCE);
    issue(&mut job, 0, PAIR, 1, REDUCE);
    job.arrive(1);
    job.arrive(2);
    let stall = stall_after(&job, 5).unwrap();
    assert_eq!(
        (&stall.culprits[..], &stall.waiting[..]),
        (&[1, 2][..], &[0, 3][..])
    );
    let narrowed = |roots: &[u32]| {
        let stall = stall.clone().narrowed(&roots.iter().copied().collect());
        let waits = stall.waits.iter().map(|wait| wait.group.clone());
        (stall.culprits, stall.waiting, waits.collect::<Vec<_>>())
    };
    let both = vec!["default".to_owned(), "tp".to_owned()];
    assert_eq!(narrowed(&[2]), (vec![2], vec![0, 1, 3], both));
    let all = narrowed(&[]);
    assert_eq!(all.0, [1, 2]);
    assert_eq!(narrowed(&[2, 3]), narrowed(&[2]), "3 has come");
}

#[test]
fn a_rank_that_never_entered_is_named_with_those_that_wait() {
    let mut job = job();
    for rank in [0, 1, 3] {
        issue(&mut job, rank, WORLD, 42, REDUCE);
    }
    issue(&mut job, 2, WORLD, 41, REDUCE);
    job.mark(2, &mark(Event::DataBegin));
    assert_eq!(stall_after(&job, 1), None);
    let stall = stall_after(&job, 2).unwrap();
    assert_eq!(
        (stall.kind, &stall.culprits),
        (StallKind::Missing, &vec![2])
    );
    let wait = &stall.waits[0];
    assert_eq!(
        (wait.number, wait.op, wait.group.as_str()),
        (42, REDUCE, "default")
    );
    assert_eq!((&wait.entered, &wait.missing), (&vec![0, 1, 3], &vec![2]));
    assert_eq!(
        (stall.step, stall.last_kinds[&2]),
        (61, MarkKind::DataBegin)
    );
}

/// Four ranks that come to make the group of all ranks, of which some get done.
fn starting(come: &[u32], done: &[u32]) -> Collectives {
    const INIT: u32 = 9;
    let mut job = Collectives::new(HangSettings::default());
    job.join(INIT, "default", &[0, 1, 2, 3].into());
    let mut mark = |ranks: &[u32], event| {
        let mark = mark(event);
        for rank in ranks {
            job.mark(*rank, &model::Mark { step: 0, ..mark });
        }
    };
    mark(
        come,
        Event::InitBegin {
            group: INIT,
            number: 1,
        },
    );
    mark(
        done,
        Event::InitEnd {
            group: INIT,
            number: 1,
        },
    );
    job
}

#[test]
fn a_start_that_a_rank_does_not_come_to_waits_for_it() {
    let mut job = starting(&[0, 1, 3], &[]);
    assert_eq!(stall_after(&job, 59), None);
    let stall = stall_after(&job, 61).unwrap();
    assert_eq!((stall.kind, &stall.culprits), (StallKind::Unseen, &vec![2]));
    assert_eq!(stall.waits[0].op, CollectiveOp::INIT);
    job.arrive(2);
    let stall = stall_after(&job, 61).unwrap();
    assert_eq!(
        (stall.kind, &stall.culprits),
        (StallKind::Missing, &vec![2])
    );
}

#[test]
fn a_start_that_all_have_come_to_stands_still_at_those_who_do_not_get_done() {
    let all = [0, 1, 2, 3];
    let mut job = starting(&all, &[0]);
    let stall = stall_after(&job, 61).unwrap();
    assert_eq!(
        (stall.kind, &stall.culprits),
        (StallKind::Inside, &vec![1, 2, 3])
    );
    job.leave(2);
    let stall = stall_after(&job, 61).unwrap();
    assert_eq!((&stall.culprits, &stall.gone), (&vec![2], &vec![2]));
    assert_eq!(stall.waiting, [1, 3]);
    assert_eq!(stall_after(&starting(&all, &all), 600), None);
}

#[test]
fn how_long_a_start_takes_is_no_measure_of_pauses() {
    let mut job = starting(&[0, 1, 2, 3], &[0, 1, 2, 3]);
    let later = |seconds: u64, step| {
        let at = RankNs(seconds * 1_000_000_000);
        model::Mark {
            at,
            step,
            ..mark(Event::DataBegin)
        }
    };
    for (seconds, step) in [(300, 0), (301, 4)] {
        for rank in 0..4 {
            job.mark(rank, &later(seconds, step));
        }
    }
    assert!(job.patience_s() < 4.0, "{}", job.patience_s());
}

#[test]
fn ranks_that_launch_ahead_wait_in_the_first_collective_that_lacks_one() {
    let mut job = job();
    for (rank, number) in [(0, 44), (1, 42), (2, 41), (3, 46)] {
        issue(&mut job, rank, WORLD, number, REDUCE);
    }
    let stall = stall_after(&job, 9).unwrap();
    assert_eq!(
        (stall.kind, &stall.culprits),
        (StallKind::Missing, &vec![2])
    );
    let wait = &stall.waits[0];
    assert_eq!((wait.number, wait.op), (42, REDUCE));
    assert_eq!((&wait.entered, &wait.missing), (&vec![0, 1, 3], &vec![2]));
}

#[test]
fn what_ranks_further_ahead_entered_is_not_compared() {
    let mut job = job();
    for (rank, number) in [(0, 44), (1, 43), (2, 41), (3, 43)] {
        let op = if rank == 0 {
            CollectiveOp::BARRIER
        } else {
            REDUCE
        };
        issue(&mut job, rank, WORLD, number, op);
    }
    let stall = stall_after(&job, 9).unwrap();
    let wait = &stall.waits[0];
    assert_eq!((wait.number, wait.op), (42, CollectiveOp::UNKNOWN));
    assert_eq!((&wait.missing, wait.desyncs.len()), (&vec![2], 0));
}

#[test]
fn who_stands_still_since_the_collective_before_is_said_to() {
    let mut job = job();
    for (rank, number) in [(0, 42), (1, 42), (2, 41), (3, 42)] {
        issue(&mut job, rank, WORLD, number, REDUCE);
    }
    assert_eq!(stall_after(&job, 9).unwrap().waits[0].still_before, [2]);
    job.mark(2, &mark(Event::DataBegin));
    assert_eq!(stall_after(&job, 9).unwrap().waits[0].still_before, [0; 0]);
}

#[test]
fn a_member_that_issued_nothing_in_the_group_is_missing_from_its_first() {
    let mut job = job();
    for (rank, number) in [(0, 11), (1, 11), (2, 11), (3, 11)] {
        issue(&mut job, rank, WORLD, number, REDUCE);
    }
    issue(&mut job, 0, PAIR, 3, REDUCE);
    let stall = stall_after(&job, 9).unwrap();
    assert_eq!((stall.culprits, stall.waits[0].number), (vec![1], 1));
}

#[test]
fn ranks_of_which_nothing_is_seen_are_not_accused() {
    let mut job = job();
    for rank in [0, 1] {
        issue(&mut job, rank, WORLD, 42, REDUCE);
    }
    let stall = stall_after(&job, 9).unwrap();
    assert_eq!(
        (stall.kind, &stall.culprits),
        (StallKind::Unseen, &vec![2, 3])
    );
    assert_eq!((stall.waits[0].number, &stall.waiting), (42, &vec![0, 1]));
    // Rank 1 may still wait for them in the collective that rank 0 has left.
    issue(&mut job, 0, WORLD, 43, REDUCE);
    let stall = stall_after(&job, 9).unwrap();
    assert_eq!(
        (stall.kind, &stall.culprits),
        (StallKind::Unseen, &vec![2, 3])
    );
    assert_eq!((stall.waits[0].number, &stall.waiting), (42, &vec![0, 1]));
    // Once it goes on it is the one to name.
    job.mark(1, &mark(Event::DataBegin));
    let stall = stall_after(&job, 9).unwrap();
    assert_eq!(
        (stall.kind, &stall.culprits),
        (StallKind::Missing, &vec![1])
    );
}

#[test]
fn what_is_not_seen_accuses_nobody() {
    let mut job = job();
    for rank in [0, 1, 3] {
        issue(&mut job, rank, WORLD, 42, REDUCE);
    }
    let stall = stall_after(&job, 9).unwrap();
    assert_eq!((stall.kind, stall.accused().len()), (StallKind::Unseen, 0));
}

#[test]
fn who_entered_something_else_is_named_whatever_is_not_seen() {
    const BARRIER: CollectiveOp = CollectiveOp::BARRIER;
    let entered = |ops: &[(u32, CollectiveOp)]| {
        let mut job = job();
        for (rank, op) in ops {
            issue(&mut job, *rank, WORLD, 42, *op);
        }
        let stall = stall_after(&job, 9).unwrap();
        assert_eq!(stall.kind, StallKind::Desync);
        let sides = stall.waits[0].sides().into_iter().map(|(ranks, _)| ranks);
        (stall.accused(), sides.collect::<Vec<_>>())
    };
    let all = entered(&[(0, REDUCE), (1, BARRIER), (2, REDUCE), (3, REDUCE)]);
    assert_eq!(all, (vec![1], vec![vec![1]]));
    // With what rank 2 entered it may be two against two.
    let (accused, sides) = entered(&[(0, REDUCE), (1, BARRIER), (3, REDUCE)]);
    assert_eq!((accused.len(), sides.len()), (0, 2));
    let (accused, sides) = entered(&[(0, REDUCE), (1, BARRIER)]);
    assert_eq!((accused.len(), sides.len()), (0, 2));
    let halves = entered(&[(0, REDUCE), (1, BARRIER), (2, REDUCE), (3, BARRIER)]);
    assert_eq!(halves, (vec![0, 1, 2, 3], vec![vec![0, 2], vec![1, 3]]));
}

/// Collectives that recorders tell of: the rank, its number, whether it has ended.
fn recorded(job: &mut Collectives, group: u32, reported: &[(u32, u64, Option<InFlight>)]) {
    for (rank, number, in_flight) in reported {
        let completed = in_flight.is_none();
        let in_flight = in_flight.unwrap_or_default();
        job.enter(
            *rank,
            Entered {
                group,
                in_flight,
                ..entered(*number, "", completed)
            },
        );
    }
}

#[test]
fn a_collective_that_ends_on_no_device_is_reported_and_accuses_nobody() {
    let mut job = job();
    let issued = Some(InFlight::Issued);
    // Hosts run ahead by different numbers.
    let ahead = [
        (0, 42),
        (0, 45),
        (1, 42),
        (1, 43),
        (2, 42),
        (3, 42),
        (3, 46),
    ];
    recorded(
        &mut job,
        WORLD,
        &ahead.map(|(rank, number)| (rank, number, issued)),
    );
    let stall = job.stuck().unwrap();
    assert_eq!((stall.kind, stall.waits[0].number), (StallKind::Inside, 42));
    assert_eq!((stall.culprits.len(), stall.accused().len()), (4, 0));
}

#[test]
fn what_has_a_root_may_end_there_first() {
    for (op, culprits) in [(CollectiveOp::BROADCAST, vec![]), (REDUCE, vec![3])] {
        let mut job = job();
        for (rank, completed) in [(0, true), (1, true), (2, true), (3, false)] {
            let in_flight = if completed {
                InFlight::Unknown
            } else {
                InFlight::Issued
            };
            job.enter(
                rank,
                Entered {
                    op,
                    in_flight,
                    ..entered(42, "", completed)
                },
            );
        }
        let stall = job.stuck().unwrap();
        assert_eq!((stall.kind, stall.accused()), (StallKind::Inside, culprits));
    }
}

#[test]
fn the_device_that_is_behind_the_others_is_named() {
    use InFlight::{NotStarted, Started};
    for (others, culprits) in [
        ([Some(Started), Some(NotStarted)], vec![2]),
        ([None, Some(Started)], vec![2]),
        ([None, Some(NotStarted)], vec![2]),
        ([Some(NotStarted), Some(NotStarted)], vec![]),
    ] {
        let mut job = job();
        let [others, two] = others;
        let reported = [
            (0, 42, others),
            (1, 42, others),
            (2, 42, two),
            (3, 42, others),
        ];
        recorded(&mut job, WORLD, &reported);
        let stall = job.stuck().unwrap();
        assert_eq!((stall.kind, stall.accused()), (StallKind::Inside, culprits));
    }
}

#[test]
fn a_device_that_waits_in_one_group_is_no_culprit_of_another() {
    use InFlight::{NotStarted, Started};
    let mut job = job();
    // Rank 0 waits in the pair for the device of rank 1.
    recorded(
        &mut job,
        PAIR,
        &[(0, 7, Some(Started)), (1, 7, Some(NotStarted))],
    );
    let (begun, not) = (Some(Started), Some(NotStarted));
    recorded(
        &mut job,
        WORLD,
        &[(0, 9, not), (1, 9, not), (2, 9, begun), (3, 9, begun)],
    );
    let stall = job.stuck().unwrap();
    assert_eq!((stall.kind, stall.accused()), (StallKind::Inside, vec![1]));
}

#[test]
fn a_collective_that_no_device_has_begun_holds_nobody_up() {
    use InFlight::{NotStarted, Started};
    let mut job = job();
    let (begun, not) = (Some(Started), Some(NotStarted));
    recorded(&mut job, PAIR, &[(0, 7, begun), (1, 7, not)]);
    // Hosts ran ahead of it.
    recorded(
        &mut job,
        WORLD,
        &[(0, 9, not), (1, 9, not), (2, 9, not), (3, 9, not)],
    );
    let stall = job.stuck().unwrap();
    assert_eq!((stall.kind, stall.accused()), (StallKind::Inside, vec![1]));
    assert_eq!(stall.waits[0].group, "tp");
}

#[test]
fn who_is_in_a_send_or_receive_waits_for_others() {
    let mut job = job();
    issue(&mut job, 3, WORLD, 1, REDUCE);
    (0..3).for_each(|rank| job.arrive(rank));
    job.wait_in_transfers(&[0, 1]);
    let stall = job.stuck().unwrap();
    assert_eq!((stall.kind, stall.accused()), (StallKind::Missing, vec![2]));
    job.wait_in_transfers(&[2]);
    assert_eq!(job.stuck(), None);
}

#[test]
fn who_is_inside_a_collective_is_not_accused_of_missing_another() {
    let mut job = job();
    let issued = Some(InFlight::Issued);
    recorded(&mut job, PAIR, &[(0, 7, issued), (1, 7, issued)]);
    recorded(
        &mut job,
        WORLD,
        &[(0, 8, None), (1, 8, None), (2, 9, issued), (3, 9, issued)],
    );
    let stall = job.stuck().unwrap();
    assert_eq!((stall.kind, stall.accused().len()), (StallKind::Inside, 0));
    assert_eq!(
        (stall.waits[0].group.as_str(), stall.waits[0].number),
        ("tp", 7)
    );
    assert_eq!(stall.waiting, [2, 3]);
}

#[test]
fn a_job_in_which_nothing_moves_for_long_stands_still() {
    let mut job = job();
    for rank in 0..4 {
        issue(&mut job, rank, WORLD, 11, REDUCE);
    }
    let standstill =
        |job: &Collectives, second: u64| job.standstill(RankNs(1_000_000_000 * (1 + second)));
    assert_eq!(stall_after(&job, 99), None);
    assert_eq!(standstill(&job, 59), None);
    let stall = standstill(&job, 61).unwrap();
    assert_eq!((stall.kind, stall.culprits.len()), (StallKind::Nowhere, 4));
    assert_eq!((stall.accused().len(), stall.waits[0].number), (0, 11));
    // After its loop a job may do anything.
    job.mark(3, &mark(Event::DataStop));
    assert_eq!(standstill(&job, 99), None);
}

#[test]
fn ranks_that_have_not_come_yet_may_say_who_is_wrong() {
    let mut job = job();
    for (rank, number, op) in [
        (0, 11, REDUCE),
        (1, 11, CollectiveOp::BARRIER),
        (2, 10, REDUCE),
        (3, 10, REDUCE),
    ] {
        issue(&mut job, rank, WORLD, number, op);
    }
    let stall = stall_after(&job, 9).unwrap();
    assert_eq!(
        (stall.kind, stall.accused()),
        (StallKind::Missing, vec![2, 3])
    );
}

#[test]
fn a_wait_for_ranks_that_are_not_seen_is_over_when_nobody_is_left_in_it() {
    let mut job = job();
    for rank in [0, 1] {
        issue(&mut job, rank, WORLD, 42, REDUCE);
    }
    job.leave(0);
    assert_eq!(stall_after(&job, 9).unwrap().culprits, [2, 3]);
    job.leave(1);
    assert_eq!(stall_after(&job, 9), None);
}

#[test]
fn a_victim_of_a_victim_is_not_blamed() {
    let mut job = job();
    // Rank 1 waits for rank 0 in the pair; rank 0 waits for rank 2 in the world.
    issue(&mut job, 1, PAIR, 7, REDUCE);
    issue(&mut job, 0, PAIR, 6, REDUCE);
    for (rank, number) in [(0, 11), (1, 10), (2, 10), (3, 11)] {
        issue(&mut job, rank, WORLD, number, REDUCE);
    }
    assert_eq!(stall_after(&job, 9).unwrap().culprits, [2]);
}

#[test]
fn collectives_in_crossed_order_are_a_deadlock_with_both_groups() {
    let mut job = job();
    for (rank, number) in [(0, 11), (1, 10), (2, 11), (3, 11)] {
        issue(&mut job, rank, WORLD, number, REDUCE);
    }
    issue(&mut job, 0, PAIR, 5, REDUCE);
    issue(&mut job, 1, PAIR, 6, REDUCE);
    let stall = stall_after(&job, 9).unwrap();
    assert_eq!(
        (stall.kind, &stall.culprits),
        (StallKind::Deadlock, &vec![0, 1])
    );
    let groups: Vec<&str> = stall.waits.iter().map(|wait| wait.group.as_str()).collect();
    assert_eq!(groups, ["default", "tp"]);
}

#[test]
fn the_minority_entered_the_wrong_collective() {
    let mut job = job();
    for rank in 0..4 {
        let op = if rank == 0 {
            CollectiveOp::BARRIER
        } else {
            REDUCE
        };
        issue(&mut job, rank, WORLD, 11, op);
    }
    let stall = stall_after(&job, 9).unwrap();
    assert_eq!((stall.kind, &stall.culprits), (StallKind::Desync, &vec![0]));
    let desync = &stall.waits[0].desyncs[0];
    assert_eq!((desync.rank, desync.op), (0, CollectiveOp::BARRIER));
}

#[test]
fn of_two_against_two_all_are_named() {
    let mut job = job();
    for rank in 0..4 {
        let op = if rank < 2 {
            CollectiveOp::BARRIER
        } else {
            REDUCE
        };
        issue(&mut job, rank, WORLD, 11, op);
    }
    let stall = stall_after(&job, 9).unwrap();
    let all = vec![0, 1, 2, 3];
    assert_eq!((stall.kind, &stall.culprits), (StallKind::Desync, &all));
}

#[test]
fn ranks_that_all_arrived_or_compute_are_no_hang() {
    let mut job = job();
    assert_eq!(stall_after(&job, 99), None);
    for rank in 0..4 {
        issue(&mut job, rank, WORLD, 11, REDUCE);
    }
    assert_eq!(stall_after(&job, 99), None);
}

#[test]
fn the_minority_entered_with_another_size() {
    let mut job = job();
    for rank in 0..4 {
        let detail = if rank == 0 { "[[8]]" } else { "[[4]]" };
        job.enter(rank, entered(11, detail, false));
    }
    let stall = job.stuck().unwrap();
    assert_eq!((stall.kind, &stall.culprits), (StallKind::Desync, &vec![0]));
    assert_eq!(
        (stall.waits[0].detail.as_str(), stall.waits[0].desyncs.len()),
        ("[[4]]", 1)
    );
}

#[test]
fn ranks_that_passed_do_not_hide_who_brought_too_much() {
    let mut job = job();
    let bytes = |rank| if rank == 2 { 32 } else { 16 };
    let enter = |job: &mut Collectives, rank, number, bytes: u64| {
        let issue = CollectiveIssue::new(REDUCE, WORLD, number);
        let issue = CollectiveIssue {
            bytes: Some(bytes),
            ..issue
        };
        job.mark(rank, &mark(Event::CollectiveIssue(issue)));
    };
    for rank in 0..4 {
        enter(&mut job, rank, 41, bytes(rank));
    }
    for rank in [0, 1, 3] {
        enter(&mut job, rank, 42, 16);
    }
    let stall = stall_after(&job, 9).unwrap();
    assert_eq!((stall.kind, &stall.culprits), (StallKind::Desync, &vec![2]));
    let wait = &stall.waits[0];
    assert_eq!((wait.number, wait.detail.as_str()), (41, "(16 bytes)"));
    assert_eq!(wait.desyncs[0].detail, "(32 bytes)");
}

#[test]
fn what_is_completed_is_not_stuck() {
    let mut job = job();
    for rank in 0..3 {
        job.enter(rank, entered(11, "", true));
    }
    assert_eq!(job.stuck(), None);
}

#[test]
fn a_job_is_given_three_times_its_longest_pause() {
    let mut job = job();
    issue(&mut job, 0, WORLD, 1, REDUCE);
    let later = model::Mark {
        at: RankNs(11_000_000_000),
        ..mark(Event::DataEnd)
    };
    job.mark(0, &later);
    assert_eq!(job.stall(RankNs(40_000_000_000)), None);
    assert!(job.stall(RankNs(42_000_000_000)).is_some());
}

/// A chain of pairs, each waiting for the next, that ends in a circle of two.
#[test]
fn a_long_way_to_the_circle_is_walked_once() {
    let mut job = Collectives::new(HangSettings::default());
    let ranks = 20_000;
    for rank in 0..ranks {
        let next = if rank + 1 == ranks {
            rank - 1
        } else {
            rank + 1
        };
        job.join(rank, "pair", &[rank, next].into());
        issue(&mut job, rank, rank, 1, REDUCE);
    }
    let stall = stall_after(&job, 9).unwrap();
    assert_eq!(stall.kind, StallKind::Deadlock);
    assert_eq!(stall.culprits, [ranks - 2, ranks - 1]);
}

/// The circle by its definition: ranks that wait inside and are awaited inside.
fn circle_by_definition(waits: &[&Wait]) -> BTreeSet<u32> {
    let mut left: BTreeSet<u32> = waits.iter().flat_map(|wait| wait.entered.clone()).collect();
    loop {
        let inside = |ranks: &[u32]| ranks.iter().any(|rank| left.contains(rank));
        let stays = |rank: &u32| {
            let mut waits_for = waits.iter().filter(|w| w.entered.contains(rank));
            let mut awaited = waits.iter().filter(|w| w.missing.contains(rank));
            waits_for.any(|w| inside(&w.missing)) && awaited.any(|w| inside(&w.entered))
        };
        let next: BTreeSet<u32> = left.iter().filter(|r| stays(r)).copied().collect();
        if next.len() == left.len() {
            return next;
        }
        left = next;
    }
}

proptest! {
    #[test]
    fn a_circle_is_what_its_definition_says(
        waits in prop::collection::vec((0u32..256, 0u32..256), 1..12),
    ) {
        // Eight ranks, a bit each: those that entered, and of the others those missing.
        let ranks = |bits: u32| (0..8).filter(|rank| bits >> rank & 1 == 1).collect();
        let waits: Vec<Wait> = waits.into_iter().map(|(entered, members)| Wait {
            group: String::new(),
            number: 1,
            op: REDUCE,
            entered: ranks(entered),
            missing: ranks(members & !entered),
            ..Wait::default()
        }).collect();
        let waits: Vec<&Wait> = waits.iter().collect();
        prop_assert_eq!(deadlock_cycle(&waits), circle_by_definition(&waits));
    }

    /// MY-P2.
    #[test]
    fn a_stuck_collective_always_has_a_culprit(
        issues in prop::collection::vec((0u32..6, 0u32..4, 1u64..5), 1..40),
    ) {
        let mut job = Collectives::new(HangSettings::default());
        for group in 0..4 {
            job.join(group, "g", &[group, group + 1, group + 2].into());
        }
        for (rank, group, number) in issues {
            if (group..group + 3).contains(&rank) {
                issue(&mut job, rank, group, number, REDUCE);
            }
        }
        if let Some(stall) = stall_after(&job, 99) {
            prop_assert!(!stall.culprits.is_empty() && !stall.waits.is_empty());
        } else {
            let seen = job.seen();
            let lacks = job.groups.values().filter_map(|group| wait_in(group, &seen));
            prop_assert!(lacks.filter(|wait| !wait.missing.is_empty()).count() == 0);
        }
    }
}
