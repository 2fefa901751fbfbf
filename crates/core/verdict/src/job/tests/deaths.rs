//! Ranks that end with an exit code.

use super::hangs::{left, quiet, sum, take_mark, waits_for_one};
use super::*;

const ENDED: &str = "rank 1 ended with exit code 7 in step 40, before it entered ALLREDUCE #47 of group default (ranks 0,2 were in it)";

/// What is said of the job in which ranks 0 and 2 wait for rank 1, if ranks end with these codes.
fn ends_with(codes: &[(u32, i32)]) -> Vec<String> {
    texts(&ended_with(codes))
}

fn ended_with(codes: &[(u32, i32)]) -> Job {
    let mut job = waits_for_one();
    for (rank, code) in codes.iter().copied() {
        job.take(Input::Failed { rank, code });
        job.take(left(rank, true));
    }
    job
}

pub(super) fn ask_to_end(job: &mut Job, at_s: u64) {
    let at = RankNs(at_s * 1_000_000_000);
    job.take(Input::EndAsked { at });
}

/// Three ranks end in good order.
pub(super) fn all_leave(job: &mut Job) {
    (0..3).for_each(|rank| job.take(left(rank, true)));
}

pub(super) fn texts(job: &Job) -> Vec<String> {
    let incidents = job.verdict().incidents.into_iter();
    incidents.map(|incident| incident.text).collect()
}

#[test]
fn the_first_rank_that_ends_with_an_exit_code_is_named() {
    assert_eq!(ends_with(&[(1, 7)]), [ENDED]);
    assert_eq!(ends_with(&[(1, 7), (0, 1), (2, 1)]), [ENDED]);
    assert!(ends_with(&[(1, 0)]).is_empty());
}

#[test]
fn who_may_have_given_up_waiting_is_not_named_for_its_exit_code() {
    for (codes, said) in [
        (&[(0, 1)][..], "rank 0 ended with exit code 1 in step 40"),
        (
            &[(0, 1), (1, 7)],
            "ranks 0-1 ended with different exit codes in step 40",
        ),
    ] {
        let end = only(&ended_with(codes));
        assert_eq!((&end.subject.ranks[..], &end.text[..]), (&[][..], said));
    }
}

#[test]
fn ranks_that_end_with_an_exit_code_for_one_reason_are_not_named() {
    let mut job = Job::new("job", Source::Run, Settings::default());
    let ranks = 0..2;
    ranks
        .clone()
        .for_each(|rank| take_mark(&mut job, rank, 10, Event::BackwardEnd));
    ranks.for_each(|rank| job.take(Input::Failed { rank, code: 1 }));
    let end = only(&job);
    let said = (&end.subject.ranks[..], &end.text[..]);
    assert_eq!(
        said,
        (&[][..], "ranks 0-1 ended with exit code 1 in step 40")
    );
}

#[test]
fn a_rank_that_aborts_because_another_ended_is_a_victim() {
    let mut job = waits_for_one();
    job.take(Input::Failed { rank: 1, code: 7 });
    job.take(Input::Killed {
        rank: 0,
        signal: Some(6),
    });
    assert_eq!(texts(&job), [ENDED]);
}

#[test]
fn a_hang_in_which_somebody_ends_the_job_stays_as_it_was_found() {
    for is_asked in [true, false] {
        let mut job = waits_for_one();
        quiet(&mut job, 12);
        job.take(Input::StacksComplete);
        let found = texts(&job);
        if is_asked {
            ask_to_end(&mut job, 15);
            // What an exception passes on its way.
            take_mark(&mut job, 0, 16, Event::BackwardEnd);
            take_mark(&mut job, 1, 16, Event::OptimizerBegin);
        }
        all_leave(&mut job);
        assert_eq!(texts(&job).len(), 1);
        critical_hang(&job, &[1]);
        assert!(found[0].contains("rank 1 never entered ALLREDUCE #47"));
        assert!(!texts(&job)[0].contains("has ended"));
    }
}

#[test]
fn a_job_that_goes_on_though_it_was_asked_to_end_moves_again() {
    let mut job = waits_for_one();
    quiet(&mut job, 12);
    job.take(Input::StacksComplete);
    ask_to_end(&mut job, 15);
    let mark = Mark {
        at: RankNs(17_000_000_000),
        step: 41,
        on_loop_thread: true,
        event: Event::DataBegin,
    };
    job.take(Input::Mark { rank: 1, mark });
    let [passed] = &job.verdict().incidents[..] else {
        panic!("{:?}", texts(&job))
    };
    assert!(!passed.open);
}

#[test]
fn a_job_that_stood_still_when_it_was_asked_to_end_is_not_healthy() {
    let said = |is_asked: bool, until_s: u64| {
        let mut job = waits_for_one();
        take_mark(&mut job, 1, 11, sum(47));
        quiet(&mut job, until_s);
        if is_asked {
            ask_to_end(&mut job, until_s);
        }
        all_leave(&mut job);
        texts(&job)
    };
    let still = said(true, 30);
    assert!(
        still[0].starts_with("nothing has moved for 19.00 s since step 40"),
        "{still:?}"
    );
    // A pause as any other.
    assert_eq!(said(true, 12), [""; 0]);
    assert_eq!(said(false, 30), [""; 0]);
}

#[test]
fn of_ranks_that_wait_in_what_has_no_marks_the_first_that_gives_up_is_not_named() {
    let mut job = waits_for_one();
    take_mark(&mut job, 1, 11, sum(47));
    quiet(&mut job, 30);
    job.take(Input::Failed { rank: 0, code: 1 });
    all_leave(&mut job);
    let end = only(&job);
    assert_eq!(end.subject.ranks, [0; 0], "{}", end.text);
    assert!(
        end.text.starts_with("nothing has moved for"),
        "{}",
        end.text
    );
}

#[test]
fn a_rank_without_steps_has_not_ended_before_the_others() {
    let notes = |step: u32| {
        let mut job = waits_for_one();
        job.take(left(0, true));
        let orderly = true;
        job.take(Input::Left {
            rank: 1,
            step,
            orderly,
        });
        job.verdict().notes
    };
    let early = "rank 1 ended in step 3; the others went on to step 40";
    assert!(notes(3).iter().any(|note| note == early));
    assert!(notes(0).iter().all(|note| !note.contains("went on to")));
}
