//! Calls of a pipeline as they come, of a job that marks no blocks: what is said while it runs is
//! what its logs say when it is over.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test says what it skips, and fails where a recording is not what it was"
)]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

use laggard_formats::{Limits, Recording, Snapshot, load};
use model::{
    CollectiveIssue, CollectiveOp, Event, Input, Mark, Pass, PipelineBlock, RankNs, Source, Verdict,
};
use sim::{CalledJob, Delay, Spot};
use verdict::{Job, Settings};

use crate::live_devices::only;

/// One line of a log.
struct Line<'a> {
    at_ns: u64,
    op: CollectiveOp,
    size: u64,
    stream: &'a str,
    count: u64,
}

fn line(text: &str) -> Line<'_> {
    let (_, after) = text.split_once("] [").unwrap();
    let (time, _) = after.split_once(']').unwrap();
    let (seconds, ns) = time.split_once('.').unwrap();
    let words: Vec<&str> = text.split(' ').collect();
    let [
        ..,
        "Fun",
        op,
        "Data",
        size,
        "stream",
        stream,
        "opCount",
        count,
    ] = words[..]
    else {
        panic!("{text}")
    };
    let op = match op {
        "Recv" => CollectiveOp::RECEIVE,
        _ => CollectiveOp::from_name(op),
    };
    Line {
        at_ns: seconds.parse::<u64>().unwrap() * 1_000_000_000 + ns.parse::<u64>().unwrap(),
        op,
        size: size.parse().unwrap(),
        stream,
        count: count.parse().unwrap(),
    }
}

/// The recorded job of 8 ranks of which rank 2 was slow in iterations 21 to 31: its logs, and what
/// hooks would have marked of the same calls. `None` where it is not at hand.
fn recorded() -> Option<(Snapshot, Vec<Input>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../../../shared/data/megatrace_rank2_slow");
    let (mut parts, mut marks) = (Vec::new(), Vec::new());
    for rank in 0..8_u32 {
        let path = folder.join(format!("rank_{rank}.log.xz"));
        let Ok(packed) = std::fs::read(&path) else {
            println!("skipped: {} is not there", path.display());
            return None;
        };
        let Ok(Recording::Part(part)) = load(&path, Limits::default()) else {
            panic!("{} is no log", path.display())
        };
        parts.push(part);
        let mut text = String::new();
        liblzma::read::XzDecoder::new(packed.as_slice())
            .read_to_string(&mut text)
            .unwrap();
        let lines: Vec<Line<'_>> = text.lines().map(line).collect();
        // What a communicator is can be told from its last count.
        let last: BTreeMap<&str, (u64, bool)> = lines
            .iter()
            .map(|line| (line.stream, (line.count, line.op.is_point_to_point())))
            .collect();
        for line in &lines {
            let group = match last[line.stream] {
                (_, true) => 500 + rank % 2,
                (0, _) => 600 + rank,
                (40, _) => 700,
                (122, _) => 701,
                (585..600, _) => 702,
                _ => 800 + rank / 2,
            };
            let number = if line.op.is_point_to_point() {
                0
            } else {
                line.count + 1
            };
            let issue = CollectiveIssue {
                op: line.op,
                group,
                op_id: 0,
                number,
                bytes: Some(line.size),
                element_bytes: 1,
            };
            let (at, event) = (RankNs(line.at_ns), Event::CollectiveIssue(issue));
            let mark = Mark {
                at,
                step: 0,
                on_loop_thread: true,
                event,
            };
            marks.push(Input::Mark { rank, mark });
        }
    }
    marks.sort_by_key(Input::at);
    Some((Snapshot::new(parts), ranks(8).chain(marks).collect()))
}

/// Ranks of one host.
fn ranks(count: u32) -> impl Iterator<Item = Input> {
    (0..count).map(move |rank| Input::Rank {
        rank,
        host: "a".to_owned(),
        role: None,
        first_local: 0,
        locals: count,
        world_size: count,
    })
}

/// What is said at the end, and how far it had come when it first named somebody. On the way nobody
/// but `culprit` is named.
fn live(inputs: Vec<Input>, culprit: u32) -> (Verdict, Option<f64>) {
    let mut job = Job::new("job", Source::Run, Settings::default());
    let (count, mut named) = (inputs.len(), None);
    for (at, input) in inputs.into_iter().enumerate() {
        job.take(input);
        if at % 1000 == 0 {
            for incident in job.verdict().incidents {
                assert_eq!(incident.subject.ranks, [culprit], "{}", incident.text);
                named.get_or_insert(at as f64 / count as f64);
            }
        }
    }
    job.finish();
    (job.verdict(), named)
}

#[test]
fn a_recorded_pipeline_played_as_it_ran_gives_what_its_logs_give() {
    let Some((logs, inputs)) = recorded() else {
        return;
    };
    let offline = logs.replay("job", Settings::default()).verdict();
    let (live, named) = live(inputs, 2);
    let (offline, incident) = (only(&offline), only(&live));
    assert_eq!(incident.subject.ranks, [2]);
    assert_eq!((incident.first_step, incident.last_step), (21, 31));
    assert_eq!(incident.text, offline.text);
    assert_eq!(incident.subject.block, offline.subject.block);
    assert!((incident.cost_s - offline.cost_s).abs() < 0.01 * offline.cost_s);
    assert_eq!(live.pipeline.unwrap().schedule.as_deref(), Some("1F1B"));
    // It was slow from 58 to 87 % of the time on.
    let named = named.unwrap();
    assert!((0.4..0.8).contains(&named), "{named}");
}

/// What is called of a simulated job, without the blocks that it marks.
fn called(job: &CalledJob) -> Vec<Input> {
    let calls = job.inputs().into_iter().filter(|input| match input {
        Input::Mark { mark, .. } => matches!(mark.event, Event::CollectiveIssue(_)),
        _ => true,
    });
    ranks(job.tp * job.pp * job.dp).chain(calls).collect()
}

#[test]
fn a_pipeline_that_marks_no_blocks_is_judged_by_its_calls() {
    for (tp, pp, dp) in [(2, 4, 1), (1, 4, 2), (2, 2, 2)] {
        let mut job = CalledJob {
            iterations: 60,
            ..CalledJob::healthy(tp, pp, dp)
        };
        let (healthy, _) = live(called(&job), u32::MAX);
        assert_eq!(healthy.incidents, [], "{tp} {pp} {dp}");
        let rank = job.rank(1, dp - 1, tp - 1);
        job.delays = (30..50)
            .flat_map(|iteration| (0..4).map(move |microbatch| (iteration, microbatch)))
            .map(|(iteration, microbatch)| {
                let block = PipelineBlock {
                    pass: Pass::Forward,
                    microbatch,
                    chunk: 0,
                };
                Delay {
                    at: Spot {
                        iteration,
                        rank,
                        block,
                    },
                    extra_s: 0.1,
                }
            })
            .collect();
        let (slow, named) = live(called(&job), rank);
        let incident = only(&slow);
        assert_eq!(incident.subject.ranks, [rank], "{tp} {pp} {dp}");
        assert_eq!(incident.subject.stage.as_deref(), Some("pipeline stage 1"));
        assert_eq!((incident.first_step, incident.last_step), (30, 49));
        assert!(named.is_some_and(|named| named < 0.8), "{named:?}");
    }
}
