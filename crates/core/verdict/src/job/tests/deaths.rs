//! Ranks that end with an exit code.

use super::hangs::{take_mark, waits_for_one};
use super::*;

const ENDED: &str = "rank 1 ended with exit code 7 in step 40, before it entered ALLREDUCE #47 of group default (ranks 0,2 were in it)";

/// What is said of the job in which ranks 0 and 2 wait for rank 1, if ranks end with these codes.
fn ends_with(codes: &[(u32, i32)]) -> Vec<String> {
    let mut job = waits_for_one();
    for (rank, code) in codes.iter().copied() {
        job.take(Input::Failed { rank, code });
        job.take(Input::Left {
            rank,
            step: 40,
            orderly: true,
        });
    }
    texts(&job)
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
    assert!(ends_with(&[(0, 1)]).is_empty());
    assert!(ends_with(&[(0, 1), (1, 7)]).is_empty());
}

#[test]
fn ranks_that_end_with_an_exit_code_for_one_reason_are_not_named() {
    let mut job = Job::new("job", Source::Run, Settings::default());
    let ranks = 0..2;
    ranks
        .clone()
        .for_each(|rank| take_mark(&mut job, rank, 10, Event::BackwardEnd));
    ranks.for_each(|rank| job.take(Input::Failed { rank, code: 1 }));
    let [end] = <[Incident; 1]>::try_from(job.verdict().incidents).unwrap();
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
