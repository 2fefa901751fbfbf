//! What closing a window takes: the last step of the last rank, with everything that follows from
//! it, until incidents are there.
//!
//! Steps of 2 s with 8 marks of stages and 20 all-reduces each, 14 to a window; on all ranks alike,
//! or one waits for data.

use std::ops::Range;

use divan::{Bencher, black_box};
use laggard_verdict::{Job, Settings};
use model::{CollectiveIssue, CollectiveOp, Event, Input, Mark, RankNs, Source};

fn main() {
    divan::main();
}

const MS: u64 = 1_000_000;
const STEP: u64 = 2_000 * MS;
const LATE: u64 = 400 * MS;
const COLLECTIVES: u64 = 20;

/// What a rank does in a step; `late` is how long the data of a slow rank takes.
fn marks(rank: u32, step: u32, ranks: u32, late: u64) -> impl Iterator<Item = Mark> {
    // The slow rank sets the pace of all: were its own work to vary, so would the ends of their steps.
    let is_slow = late > 0 && rank == ranks / 3;
    let noise = u64::from((rank * 40 + step).wrapping_mul(0x9e37_79b1) >> 8) % (20 * MS);
    let (noise, own) = if is_slow { (0, late) } else { (noise, 0) };
    let begin = u64::from(step) * (STEP + late);
    let end = begin + STEP + late;
    let data = begin + 100 * MS + noise + own;
    let forward = data + 500 * MS + noise / 2;
    let backward = end - 200 * MS + noise / 3;
    let issues = (0..COLLECTIVES).map(move |nth| {
        let number = u64::from(step) * COLLECTIVES + nth + 1;
        let issue = CollectiveIssue::new(CollectiveOp::ALLREDUCE, 1, number);
        let issue = CollectiveIssue {
            bytes: Some(0),
            ..issue
        };
        (Event::CollectiveIssue(issue), forward + 1 + nth * 40 * MS)
    });
    let before = [
        (Event::DataBegin, begin),
        (Event::DataEnd, data),
        (Event::ForwardBegin, data),
        (Event::ForwardEnd, forward),
        (Event::BackwardBegin, forward),
    ];
    let after = [
        (Event::BackwardEnd, backward),
        (Event::OptimizerBegin, backward),
        (Event::OptimizerEnd, end),
    ];
    let all = before.into_iter().chain(issues).chain(after);
    all.map(move |(event, at)| Mark {
        at: RankNs(at),
        step,
        on_loop_thread: true,
        event,
    })
}

/// Takes what some ranks do in a step.
fn take(job: &mut Job, who: Range<u32>, step: u32, (ranks, late): (u32, u64)) {
    for rank in who {
        for mark in marks(rank, step, ranks, late) {
            job.take(Input::Mark { rank, mark });
        }
    }
}

/// A job that lacks a step of its last rank to close its second window, and that step.
fn before_a_window(ranks: u32, late: u64) -> (Job, u32) {
    let begin = || {
        let mut job = Job::new("job", Source::Marks, Settings::default());
        let members = (0..ranks).collect();
        job.take(Input::Group {
            group: 1,
            name: "default".to_owned(),
            members,
        });
        job
    };
    let mut job = begin();
    let closes = (0..100).find(|step| {
        take(&mut job, 0..ranks, *step, (ranks, late));
        job.verdict().windows.len() == 2
    });
    assert_eq!(job.verdict().incidents.len(), usize::from(late > 0));
    let closes = closes.expect("windows close");
    let mut job = begin();
    for step in 0..closes {
        take(&mut job, 0..ranks, step, (ranks, late));
    }
    take(&mut job, 0..ranks - 1, closes, (ranks, late));
    (job, closes)
}

#[divan::bench(args = [1_000, 10_000], sample_count = 5, sample_size = 1)]
fn all_alike(bencher: Bencher<'_, '_>, ranks: u32) {
    closes(bencher, ranks, 0);
}

#[divan::bench(args = [1_000, 10_000, 100_000], sample_count = 3, sample_size = 1)]
fn one_late(bencher: Bencher<'_, '_>, ranks: u32) {
    closes(bencher, ranks, LATE);
}

fn closes(bencher: Bencher<'_, '_>, ranks: u32, late: u64) {
    let job = || before_a_window(ranks, late);
    bencher.with_inputs(job).bench_local_refs(|(job, step)| {
        take(job, ranks - 1..ranks, *step, (ranks, late));
        black_box(job.take_announcements());
    });
}
