//! Traces of a job's GPUs, played as the marks and device marks that probes would have written: what
//! is said while the job runs is what its traces say.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test says what it skips, and fails where a recording is not what it was"
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use laggard_formats::{Limits, RankTrace, Recording, TraceSet, load};
use model::{
    CollectiveIssue, CollectiveOp, DeviceReached, DeviceTime, Event, Input, Mark, MarkKind, RankNs,
    Source, Verdict,
};
use serde_json::Value;
use steps::{StepCounter, is_sampled, run_of};
use verdict::{Job, Settings};

const RANKS: u32 = 8;
/// Steps that the recorded one is played as.
const STEPS: u64 = 120;
/// What takes a stream from one launch to the next, at least.
const LAUNCH_NS: u64 = 2_000;

fn path(rank: u32) -> Option<PathBuf> {
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/data/kineto_dlrm8");
    let begin = format!("worker{rank}_");
    std::fs::read_dir(folder)
        .ok()?
        .filter_map(Result::ok)
        .find(|file| file.file_name().to_string_lossy().starts_with(&begin))
        .map(|file| file.path())
}

/// The recorded step of a rank: when it began and ended, what hooks mark in it, by the host's
/// clock, and when the compute stream was done with what was launched until then.
struct Step {
    begin_ns: u64,
    end_ns: u64,
    marks: Vec<(u64, MarkKind, CollectiveOp, u64)>,
}

/// What hooks mark at the begin and the end of a range.
fn marks_of(name: &str) -> Option<[MarkKind; 2]> {
    use MarkKind::{
        BackwardBegin, BackwardEnd, DataBegin, DataEnd, ForwardBegin, ForwardEnd, OptimizerBegin,
        OptimizerEnd,
    };
    match name {
        "## forward ##" => Some([ForwardBegin, ForwardEnd]),
        "## backward ##" => Some([BackwardBegin, BackwardEnd]),
        _ if name.starts_with("enumerate(DataLoader)") => Some([DataBegin, DataEnd]),
        _ if name.starts_with("Optimizer.step#") => Some([OptimizerBegin, OptimizerEnd]),
        _ => None,
    }
}

fn step(path: &Path) -> Step {
    let unpacked = flate2::read::GzDecoder::new(File::open(path).unwrap());
    let trace: Value = serde_json::from_reader(unpacked).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let ns = |event: &Value, key: &str| event[key].as_u64().unwrap() * 1000;
    let of = |category: &'static str| events.iter().filter(move |event| event["cat"] == category);
    let launched: BTreeMap<u64, u64> = of("cuda_runtime")
        .filter_map(|call| Some((call["args"]["correlation"].as_u64()?, ns(call, "ts"))))
        .collect();
    // The compute stream: launch and end of all that runs on it.
    let mut done: Vec<(u64, u64)> = ["kernel", "gpu_memcpy", "gpu_memset"]
        .into_iter()
        .flat_map(of)
        .filter(|work| work["tid"] == 7)
        .filter_map(|work| {
            let launch = launched.get(&work["args"]["correlation"].as_u64()?)?;
            Some((*launch, ns(work, "ts") + ns(work, "dur")))
        })
        .collect();
    done.sort_unstable();
    let device_ns = |host_ns: u64| {
        let before = done.iter().take_while(|(launch, _)| *launch <= host_ns);
        before
            .map(|(_, end)| *end)
            .max()
            .unwrap_or(0)
            .max(host_ns + LAUNCH_NS)
    };
    let mut found = Step {
        begin_ns: 0,
        end_ns: 0,
        marks: Vec::new(),
    };
    for range in of("user_annotation") {
        let name = range["name"].as_str().unwrap();
        let ends = [ns(range, "ts"), ns(range, "ts") + ns(range, "dur")];
        if name.starts_with("ProfilerStep#") {
            [found.begin_ns, found.end_ns] = ends;
        } else if let Some(op) = name.strip_prefix("nccl:") {
            let op = CollectiveOp::from_name(op);
            let issue = MarkKind::CollectiveIssue;
            found.marks.push((ends[0], issue, op, device_ns(ends[0])));
        } else if let Some(kinds) = marks_of(name) {
            for (kind, at_ns) in kinds.into_iter().zip(ends) {
                found
                    .marks
                    .push((at_ns, kind, CollectiveOp(0), device_ns(at_ns)));
            }
        }
    }
    found.marks.sort_by_key(|(at_ns, ..)| *at_ns);
    found
}

/// What probes write of a rank whose steps are all as the recorded one, one each `period_ns`.
fn marks(rank: u32, step: &Step, period_ns: u64) -> Vec<Input> {
    let (mut counter, mut issued) = (StepCounter::default(), 0);
    let mut made: Vec<(Mark, u64)> = Vec::new();
    for at in 0..STEPS {
        for (at_ns, kind, op, device_ns) in &step.marks {
            let event = if *kind == MarkKind::CollectiveIssue {
                issued += 1;
                Event::CollectiveIssue(CollectiveIssue::new(*op, 1, issued))
            } else {
                (*kind).into()
            };
            let mark = Mark {
                at: RankNs(at_ns + at * period_ns),
                step: counter.count(*kind),
                on_loop_thread: true,
                event,
            };
            made.push((mark, device_ns + at * period_ns));
        }
    }
    let mut reported: Vec<Mark> = Vec::new();
    // Marks of a run, and the device times that were not seen yet.
    let mut run: Option<(u32, u64, u64)> = None;
    let mut waiting: Vec<(u64, Mark)> = Vec::new();
    for (mark, device_ns) in made {
        reported.push(mark);
        let seen = waiting
            .iter()
            .take_while(|(device_ns, _)| *device_ns <= mark.at.0);
        for (_, time) in waiting.drain(..seen.count()) {
            reported.push(Mark {
                at: mark.at,
                ..time
            });
        }
        let ends = run.is_some_and(|(first, ..)| !run_of(first).contains(&mark.step));
        if run.is_none() && is_sampled(mark.step) && *run_of(mark.step).start() == mark.step {
            run = Some((mark.step, device_ns, 0));
        }
        let Some((first, first_ns, place)) = &mut run else {
            continue;
        };
        let reached = DeviceReached::mark(&mark.event);
        let made_at = mark.at;
        let time = |reached, first_ns, first_step, place| {
            let in_run_ns = device_ns - first_ns;
            let time = DeviceTime {
                reached,
                made_at,
                device_ns: in_run_ns,
                first_step,
                place,
                seen_within_us: 0,
            };
            (
                device_ns,
                Mark {
                    event: Event::DeviceTime(time),
                    ..mark
                },
            )
        };
        waiting.push(time(reached, *first_ns, *first, *place));
        *place += 1;
        if ends {
            waiting.push(time(DeviceReached::END, *first_ns, *first, *place));
            run = is_sampled(mark.step).then_some((mark.step, device_ns, 0));
            if let Some((first, first_ns, place)) = &mut run {
                waiting.push(time(reached, *first_ns, *first, 0));
                *place += 1;
            }
        }
    }
    reported
        .into_iter()
        .map(|mark| Input::Mark { rank, mark })
        .collect()
}

/// The verdict of `analyze`, and that of the job as it runs.
fn verdicts() -> Option<[Verdict; 2]> {
    let paths: Option<Vec<PathBuf>> = (0..RANKS).map(path).collect();
    let Some(paths) = paths else {
        println!("skipped: the traces are not there");
        return None;
    };
    let settings = Settings::default();
    let traces = paths.iter().flat_map(|path| {
        let Ok(Recording::Trace(trace)) = load(path, Limits::default()) else {
            panic!("{} is no trace", path.display())
        };
        RankTrace::all(path, trace, &settings.pattern)
    });
    let set = TraceSet::sets(traces.collect()).remove(0);
    let offline = set.replay("job", settings.clone()).verdict();
    let steps: Vec<Step> = paths.iter().map(|path| step(path)).collect();
    let begin_ns = steps.iter().map(|step| step.begin_ns).min()?;
    let end_ns = steps.iter().map(|step| step.end_ns).max()?;
    let mut inputs: Vec<Input> = (0..RANKS)
        .map(|rank| Input::Rank {
            rank,
            host: "a".to_owned(),
            role: None,
            first_local: 0,
            locals: RANKS,
            world_size: RANKS,
        })
        .collect();
    let members = (0..RANKS).collect();
    inputs.push(Input::Group {
        group: 1,
        name: "all".to_owned(),
        members,
    });
    let mut reported: Vec<Input> = (0..)
        .zip(&steps)
        .flat_map(|(rank, step)| marks(rank, step, end_ns - begin_ns))
        .collect();
    reported.sort_by_key(Input::at);
    let mut job = Job::new("job", Source::Run, settings);
    inputs
        .into_iter()
        .chain(reported)
        .for_each(|input| job.take(input));
    job.finish();
    Some([offline, job.verdict()])
}

/// What a stage is called in the traces, and what hooks call where its time goes; how far their
/// shares of a step may be apart.
const STAGES: [(&str, &str, f64); 4] = [
    ("model.fwd_loss_cpu_wall", "model.fwd_loss_cpu_wall", 0.04),
    ("model.backward_cpu_wall", "model.backward_cpu_wall", 0.04),
    ("optim.step_cpu_wall", "optim.step_cpu_wall", 0.01),
    // Ranks that enter the step late are late between the optimizer and the next batch.
    ("step.entry_skew", "callbacks.cpu_wall", 0.07),
];
/// Ranks that entered the step more than 5 ms after the first.
const LATE: [u32; 4] = [0, 2, 6, 7];

#[test]
fn what_gpus_did_is_reported_the_same_live() {
    let Some([offline, live]) = verdicts() else {
        return;
    };
    assert!(live.job.sampled_steps > 40, "{:?}", live.job);
    let share = |verdict: &Verdict, name: &str| {
        let stage = verdict.stages.iter().find(|stage| stage.name == name);
        stage.map_or(0.0, |stage| stage.share)
    };
    for (of_trace, of_hooks, apart) in STAGES {
        let [recorded, played] = [share(&offline, of_trace), share(&live, of_hooks)];
        assert!(
            (recorded - played).abs() < apart,
            "{of_trace}: {recorded} {played}"
        );
    }
    // Of one step nobody's entry is an incident, and who is named of it came last to collectives.
    let collectives = offline
        .profile
        .and_then(|it| it.collectives)
        .expect("collectives");
    for rank in offline.incidents.iter().flat_map(|one| &one.subject.ranks) {
        assert!(
            collectives.ranks[*rank as usize].last > 0,
            "{:?}",
            offline.incidents
        );
    }
    // Of many alike it is.
    let [incident] = &live.incidents[..] else {
        panic!("{:#?}", live.incidents)
    };
    assert_eq!(incident.subject.ranks, LATE);
    assert_eq!(
        incident.subject.stage.as_deref(),
        Some("callbacks.cpu_wall")
    );
}
