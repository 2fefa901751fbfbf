//! Ranks that do the same again and again while others wait for them.

use super::deaths::{all_leave, ask_to_end, texts};
use super::hangs::{left, quiet, sum, take_mark, waits_for_one};
use super::*;

const PASS: [Event; 3] = [Event::DataBegin, Event::ForwardBegin, Event::ForwardEnd];
const REPEATS: &str = "rank 1 repeats a part of the step and never entered ALLREDUCE #47 of group default (ranks \
                       0,2 wait in it)";

fn pass(job: &mut Job, rank: u32, at_s: u64) {
    for event in PASS {
        take_mark(job, rank, at_s, event);
    }
}

/// A job of three in which ranks 0 and 2 wait for rank 1, which draws a batch in each second.
fn draws_until(end_s: u64) -> Job {
    let mut job = waits_for_one();
    for at_s in 11..=end_s {
        pass(&mut job, 1, at_s);
    }
    job
}

/// Looks at the job after so many seconds; rank 1 is in this function.
fn look(job: &mut Job, at_s: u64, function: &str) {
    assert_eq!(quiet(job, at_s), [1, 0, 2]);
    let frame = Frame {
        function: function.to_owned(),
        file: "/home/me/train.py".to_owned(),
        line: 7,
    };
    let stack = Stack::new(ProcessState::Running, Some(true), vec![frame]);
    job.take(Input::Stack { rank: 1, stack });
    job.take(Input::StacksComplete);
}

#[test]
fn a_rank_that_repeats_itself_while_others_wait_is_named() {
    let mut job = draws_until(80);
    assert!(!job.is_repeating(RankNs(70_000_000_000)));
    assert!(quiet(&mut job, 70).is_empty());
    assert!(job.is_repeating(RankNs(80_000_000_000)));
    look(&mut job, 80, "draw");
    let said = format!("waiting since step 40: {REPEATS}; rank 1 is busy in draw (train.py:7)");
    assert_eq!(lines(&mut job)[0], said);
    // Another pass ends nothing.
    pass(&mut job, 1, 81);
    let waits = only(&job);
    let victims: model::Ranks = [0, 2].into_iter().collect();
    assert_eq!(
        (&waits.subject.ranks[..], waits.victims),
        (&[1][..], victims)
    );
    assert_eq!((waits.severity, waits.open), (Severity::Warning, true));
    // That it comes at last does.
    take_mark(&mut job, 1, 82, sum(47));
    let passed = only(&job);
    let said = format!("ranks waited for 71.00 s in step 40: {REPEATS}");
    assert!(passed.text.starts_with(&said), "{}", passed.text);
    assert_eq!((passed.severity, passed.open), (Severity::Info, false));
    // For longer than usual is for longer than that.
    for at_s in 83..=180 {
        pass(&mut job, 1, at_s);
    }
    assert!(!job.is_repeating(RankNs(180_000_000_000)));
}

#[test]
fn a_rank_that_evaluates_may_repeat_itself() {
    let mut job = draws_until(80);
    look(&mut job, 80, "evaluate");
    let waits = only(&job);
    assert_eq!(waits.severity, Severity::Info);
    assert!(waits.text.ends_with("and evaluates"), "{}", waits.text);
}

#[test]
fn ranks_that_accumulate_gradients_wait_for_nobody() {
    let mut job = waits_for_one();
    take_mark(&mut job, 1, 11, sum(47));
    for (at_s, rank) in (12..=200).flat_map(|at_s| (0..3).map(move |rank| (at_s, rank))) {
        pass(&mut job, rank, at_s);
    }
    assert!(quiet(&mut job, 200).is_empty());
    assert_eq!(texts(&job), [""; 0]);
}

#[test]
fn a_job_that_is_ended_while_a_rank_repeats_itself_is_not_healthy() {
    let mut job = draws_until(20);
    ask_to_end(&mut job, 20);
    all_leave(&mut job);
    let ended = only(&job);
    assert!(ended.text.contains(REPEATS), "{}", ended.text);
    assert_eq!(ended.subject.ranks, [1]);
}

#[test]
fn ranks_that_give_up_waiting_for_one_that_repeats_itself_are_victims() {
    let mut job = draws_until(20);
    for rank in [0, 2] {
        // What an exception passes on its way.
        take_mark(&mut job, rank, 20, Event::BackwardEnd);
        job.take(Input::Failed { rank, code: 1 });
        job.take(left(rank, true));
    }
    job.take(left(1, false));
    let gave_up = critical_hang(&job, &[1]);
    assert!(gave_up.text.contains(REPEATS), "{}", gave_up.text);
}
