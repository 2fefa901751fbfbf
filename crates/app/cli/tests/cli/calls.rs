//! `laggard analyze` on recorded calls of NCCL: a real job of 8 ranks, one of them slowed for
//! eleven iterations, whole and in parts.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test says what it skips, and fails where a verdict lacks a field"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use model::{Pass, PipelineBlock};
use serde_json::Value;
use sim::{CalledJob, Delay, Primitive, Spot, Stop, log_text};

/// Lines of each rank.
type Logs = BTreeMap<u32, Vec<String>>;

fn folder() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..");
    root.join("../shared/data/megatrace_rank2_slow")
}

/// The recording, if it is there.
fn recording() -> Option<Logs> {
    let mut logs = Logs::new();
    for rank in 0..8 {
        let Ok(packed) = fs::read(folder().join(format!("rank_{rank}.log.xz"))) else {
            println!("skipped: {} is not there", folder().display());
            return None;
        };
        let mut text = String::new();
        let mut unpack = liblzma::read::XzDecoder::new(packed.as_slice());
        unpack.read_to_string(&mut text).expect("text");
        logs.insert(rank, text.lines().map(ToOwned::to_owned).collect());
    }
    Some(logs)
}

fn laggard(arguments: &[&str], path: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    command
        .arg("analyze")
        .args(arguments)
        .arg(path)
        .env_remove("LAGGARD_CONFIG");
    command.output().expect("laggard runs")
}

fn verdict_at(arguments: &[&str], path: &Path) -> Value {
    let output = laggard(&[&["--json"], arguments].concat(), path);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).expect("a verdict")
}

/// The verdict on logs as they stand here.
fn verdict(logs: &Logs) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    for (rank, lines) in logs {
        let path = folder.path().join(format!("rank_{rank}.log"));
        fs::write(path, lines.join("\n") + "\n").expect("a file");
    }
    verdict_at(&[], folder.path())
}

/// Seconds of a line since the hour the job ran in.
fn seconds(line: &str) -> f64 {
    let (_, after) = line.split_once("[17555").expect("a time");
    let (time, _) = after.split_once(']').expect("a time");
    time.parse().expect("a time")
}

/// When iterations end: the calls of the only communicator that is used once in each.
fn ends(logs: &Logs) -> BTreeMap<u64, f64> {
    let mut streams: BTreeMap<&str, BTreeMap<u64, f64>> = BTreeMap::new();
    for line in &logs[&0] {
        let words: Vec<&str> = line.split(' ').collect();
        let [.., "stream", stream, "opCount", count] = words[..] else {
            continue;
        };
        streams
            .entry(stream)
            .or_default()
            .insert(count.parse().unwrap(), seconds(line));
    }
    let marker = streams
        .into_values()
        .find(|counts| counts.keys().last() == Some(&40));
    marker.expect("a marker")
}

fn cut(logs: &Logs, from: f64, until: f64) -> Logs {
    let mut logs = logs.clone();
    for lines in logs.values_mut() {
        lines.retain(|line| (from..=until).contains(&seconds(line)));
    }
    logs
}

fn near(value: &Value, wanted: f64, tolerance: f64) {
    let value = value.as_f64().expect("a number");
    assert!(
        (value - wanted).abs() <= tolerance,
        "{value} is not {wanted}"
    );
}

fn evidence<'a>(incident: &'a Value, label: &str, value: &str) -> &'a Value {
    let all = incident["evidence"].as_array().expect("evidence");
    let found = all.iter().find(|evidence| evidence["label"] == label);
    &found.expect("its evidence")["values"][value]
}

/// All that is known of the recording.
fn is_the_truth(verdict: &Value) {
    let incidents = verdict["incidents"].as_array().expect("incidents");
    let [incident] = &incidents[..] else {
        panic!("{incidents:#?}")
    };
    assert_eq!(incident["kind"], "slow");
    assert_eq!(incident["subject"]["ranks"], serde_json::json!([2]));
    assert_eq!(incident["subject"]["stage"], "pipeline stage 1");
    assert_eq!(incident["subject"]["block"], "forward and backward");
    assert_eq!(
        (&incident["first_step"], &incident["last_step"]),
        (&21.into(), &31.into())
    );
    assert_eq!(incident["open"], false);
    near(&incident["cost_s"], 17.1, 1.0);
    near(
        evidence(incident, "span", "onset_unix_s"),
        1_755_590_171.4,
        1.7,
    );
    near(
        evidence(incident, "span", "end_unix_s"),
        1_755_590_205.2,
        1.7,
    );
    near(evidence(incident, "arrival", "alone_share"), 1.0, 0.05);
    near(evidence(incident, "last", "last_share"), 0.95, 0.05);
    near(evidence(incident, "outside", "outside_s"), 0.44, 0.05);
    near(evidence(incident, "outside", "usual_outside_s"), 0.06, 0.03);
    let usual_s = verdict["pipeline"]["iteration_s"].as_f64().unwrap();
    near(&usual_s.into(), 1.612, 0.005);
    let lost_s = incident["cost_s"].as_f64().unwrap() / 11.0;
    assert!(
        (1.95..=2.10).contains(&(1.0 + lost_s / usual_s)),
        "{lost_s} {usual_s}"
    );
    for pass in incident["evidence"].as_array().unwrap() {
        if pass["label"] == "critical_path" {
            let values = &pass["values"];
            let took_s = values["pass_s"].as_f64().unwrap();
            near(
                &(took_s / values["usual_pass_s"].as_f64().unwrap()).into(),
                2.5,
                0.1,
            );
        }
    }
    let text = incident["text"].as_str().unwrap();
    assert!(
        text.contains("iterations 21-31 took 3.25 s instead of 1.61 s, 2.0 times"),
        "{text}"
    );
    assert!(
        text.contains("compute, not network; recovered since"),
        "{text}"
    );
    assert!(text.ends_with("ranks 0,4 are victims"), "{text}");
    let blamed = incident.to_string();
    for other in ["rank 3", "rank 6", "rank 7", "ranks 6", "ranks 7"] {
        assert!(!blamed.contains(other), "{other} in {blamed}");
    }
}

#[test]
fn the_slow_rank_is_named_with_and_without_a_layout() {
    if recording().is_none() {
        return;
    }
    is_the_truth(&verdict_at(&[], &folder()));
    is_the_truth(&verdict_at(&["--tp", "2", "--pp", "4"], &folder()));
}

#[test]
fn hashes_change_nothing() {
    let Some(mut logs) = recording() else { return };
    for (rank, lines) in &mut logs {
        // What a communicator is can be told from its counts.
        let mut last: BTreeMap<String, (u64, bool)> = BTreeMap::new();
        let stream = |line: &str| line.split(' ').nth_back(2).unwrap().to_owned();
        for line in lines.iter() {
            let count = line.rsplit(' ').next().unwrap().parse().unwrap();
            let points = line.contains("Fun Send") || line.contains("Fun Recv");
            last.insert(stream(line), (count, points));
        }
        for line in lines.iter_mut() {
            let hash = match last[&stream(line)] {
                (_, true) => 500 + rank % 2,
                (0, _) => 600 + rank,
                (40, _) => 700,
                (122, _) => 701,
                (585..600, _) => 702,
                _ => 800 + rank / 2,
            };
            write!(line, " groupHash -5956285979098587{hash}").unwrap();
        }
    }
    is_the_truth(&verdict(&logs));
    // What the writer has room for in a line, behind its own count of them.
    let mut cut = 0;
    for line in logs.values_mut().flatten() {
        let room = line.find("] ").unwrap() + "] ".len() + 127;
        cut += u64::from(line.len() > room);
        line.truncate(room);
    }
    assert!(cut > 0);
    is_the_truth(&verdict(&logs));
}

#[test]
fn lines_without_counts_say_the_same() {
    let Some(mut logs) = recording() else { return };
    for line in logs.values_mut().flatten() {
        let bare = line
            .split_once("] ")
            .unwrap()
            .1
            .split(" opCount")
            .next()
            .unwrap();
        *line = bare.to_owned();
    }
    let verdict = verdict(&logs);
    let [incident] = &verdict["incidents"].as_array().unwrap()[..] else {
        panic!("{verdict:#}")
    };
    // Without counts nobody knows that the log lacks an iteration at its begin.
    assert_eq!(incident["first_step"], 20);
    assert_eq!(incident["subject"]["ranks"], serde_json::json!([2]));
}

#[test]
fn healthy_iterations_are_healthy_and_coverage_is_partial() {
    let Some(logs) = recording() else { return };
    let ends = ends(&logs);
    let verdict = verdict(&cut(&logs, ends[&3] - 1.6, ends[&20] + 0.05));
    assert_eq!(verdict["incidents"], serde_json::json!([]));
    let notes = verdict["notes"].to_string();
    assert!(
        notes.contains("coverage is partial: whole records of ranks 2-5 cover iterations 19-20"),
        "{notes}"
    );
}

#[test]
fn who_was_not_seen_is_said_and_nobody_else_is_blamed() {
    let Some(mut logs) = recording() else { return };
    logs.retain(|rank, _| ![2, 3].contains(rank));
    let verdict = verdict(&logs);
    let [incident] = &verdict["incidents"].as_array().unwrap()[..] else {
        panic!("{verdict:#}")
    };
    assert_eq!(incident["subject"]["ranks"], serde_json::json!([]));
    assert_eq!(incident["subject"]["stage"], "pipeline stage 1");
    let text = incident["text"].as_str().unwrap();
    assert!(
        text.contains("not recorded (ranks 2-3 without a log)"),
        "{text}"
    );
}

#[test]
fn a_rank_without_a_log_may_be_the_slow_one() {
    let Some(mut logs) = recording() else { return };
    logs.remove(&2);
    let verdict = verdict(&logs);
    let text = verdict["incidents"][0]["text"].as_str().unwrap();
    assert!(
        text.contains("rank 3 is slow in pipeline stage 1"),
        "{text}"
    );
    assert!(text.contains("(or rank 2, without a log)"), "{text}");
}

#[test]
fn clocks_an_hour_apart_change_nothing() {
    let Some(mut logs) = recording() else { return };
    for line in logs.range_mut(4..).flat_map(|(_, lines)| lines) {
        let (before, after) = line.split_once("[17555").unwrap();
        let (at, after) = after.split_at(5);
        let later: u32 = at.parse::<u32>().unwrap() + 3600;
        *line = format!("{before}[17555{later}{after}");
    }
    is_the_truth(&verdict(&logs));
}

#[test]
fn a_log_that_ends_in_the_middle_of_work_is_no_hang() {
    let Some(logs) = recording() else { return };
    let ends = ends(&logs);
    for part in 1..16 {
        let until = ends[&35] + f64::from(part) * 0.1;
        let verdict = verdict(&cut(&logs, 0.0, until));
        let kinds: Vec<_> = verdict["incidents"]
            .as_array()
            .unwrap()
            .iter()
            .map(|i| &i["kind"])
            .collect();
        assert_eq!(kinds, ["slow"], "{part}");
    }
}

#[test]
fn a_layout_that_cannot_be_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = "[1755590104.25] [Rank 7] Fun AllReduce Data 1 stream 0x5\n";
    fs::write(folder.path().join("rank_7.log"), line.repeat(9)).expect("a file");
    for (arguments, wanted) in [
        (["--tp", "3"], "tp 3 does not divide 8 ranks"),
        (
            ["--order", "tp-xp"],
            "\"xp\" is not one of tp, cp, ep, dp, pp",
        ),
    ] {
        let output = laggard(&arguments, folder.path());
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(wanted), "{said}");
    }
}

fn verdict_of(job: &CalledJob) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    for log in job.logs() {
        let path = folder.path().join(format!("rank_{}.log", log.rank));
        fs::write(path, log_text(&log)).expect("a file");
    }
    verdict_at(&[], folder.path())
}

#[test]
fn communicators_are_inferred_with_many_pipelines() {
    for (tp, pp, dp) in [(2, 4, 8), (1, 4, 4), (4, 2, 4), (2, 2, 1)] {
        for hashes in [true, false] {
            let mut job = CalledJob {
                hashes,
                ..CalledJob::healthy(tp, pp, dp)
            };
            let healthy = verdict_of(&job);
            assert_eq!(healthy["incidents"], serde_json::json!([]), "{healthy:#}");
            let rank = job.rank(1, dp - 1, tp - 1);
            let block = PipelineBlock {
                pass: Pass::Forward,
                microbatch: 3,
                chunk: 0,
            };
            let at = Spot {
                iteration: 5,
                rank,
                block,
            };
            job.delays.push(Delay { at, extra_s: 0.4 });
            let verdict = verdict_of(&job);
            let layout = verdict["pipeline"]["layout"].as_str().unwrap();
            let wanted = [("tp", tp), ("dp", dp), ("pp", pp)];
            let wanted = wanted.iter().filter(|(_, size)| *size > 1);
            let wanted: Vec<_> = wanted
                .map(|(axis, size)| format!("{axis} {size}"))
                .collect();
            assert_eq!(layout, wanted.join(", "), "{tp} {pp} {dp} {hashes}");
            // Lines of one communicator, some of which are cut off, lack none.
            assert_eq!(
                verdict["notes"],
                serde_json::json!([]),
                "{tp} {pp} {dp} {hashes}"
            );
            let [incident] = &verdict["incidents"].as_array().unwrap()[..] else {
                panic!("{verdict:#}")
            };
            assert_eq!(incident["subject"]["ranks"], serde_json::json!([rank]));
            assert_eq!(incident["subject"]["block"], "forward of microbatch 3");
            assert_eq!(incident["first_step"], 5);
        }
    }
}

/// The sizes and times of the log that MegaTrace's authors publish beside the recording of
/// 8 ranks, in the first release's format: one rank of 64 is slow in one of 25 iterations.
#[test]
fn one_rank_of_64_is_named_without_counts_and_hashes() {
    let plan = schedule::Scheme::OneForwardOneBackward.plan(4, 8);
    let whole_iteration: Vec<(PipelineBlock, f64)> = plan
        .order(0)
        .iter()
        .map(|block| (*block, 2.37 / 16.0))
        .collect();
    let in_one_block = vec![(plan.order(0)[9], 2.37)];
    for (seed, blocks) in [(1, in_one_block), (2, whole_iteration)] {
        let mut job = CalledJob {
            iterations: 25,
            noise: 0.08,
            seed,
            ..CalledJob::healthy(2, 4, 8)
        };
        for (block, extra_s) in blocks {
            let at = Spot {
                iteration: 13,
                rank: 4,
                block,
            };
            job.delays.push(Delay { at, extra_s });
        }
        let folder = tempfile::tempdir().expect("a folder");
        for mut log in job.logs() {
            log.calls.iter_mut().for_each(|call| call.count = None);
            let path = folder.path().join(format!("rank_{}.log", log.rank));
            fs::write(path, log_text(&log)).expect("a file");
        }
        for arguments in [&[][..], &["--tp", "2", "--pp", "4"]] {
            let verdict = verdict_at(arguments, folder.path());
            assert_eq!(verdict["pipeline"]["layout"], "tp 2, dp 8, pp 4");
            let [incident] = &verdict["incidents"].as_array().unwrap()[..] else {
                panic!("{seed}: {verdict:#}")
            };
            let subject = &incident["subject"];
            assert_eq!(subject["ranks"], serde_json::json!([4]), "{incident:#}");
            assert_eq!(subject["stage"], "pipeline stage 0");
            assert_eq!(
                (&incident["first_step"], &incident["last_step"]),
                (&13.into(), &13.into())
            );
            // What is spread over an iteration is absorbed in part.
            near(&incident["cost_s"], 2.1, 0.4);
        }
    }
}

/// MT-A9, and ranks that stop elsewhere.
#[test]
fn a_rank_that_stops_is_named_with_its_block() {
    let forward = PipelineBlock {
        pass: Pass::Forward,
        microbatch: 3,
        chunk: 0,
    };
    let backward = PipelineBlock {
        pass: Pass::Backward,
        microbatch: 2,
        chunk: 0,
    };
    for (tp, pp, dp) in [(2, 4, 1), (2, 4, 4), (1, 4, 2)] {
        for (stage, block, before) in [
            (1, forward, Primitive::Receive),
            (3, forward, Primitive::Receive),
            (2, backward, Primitive::Receive),
            (1, forward, Primitive::Send),
            (0, forward, Primitive::Send),
            (2, backward, Primitive::Layer(3)),
        ] {
            if tp == 1 && matches!(before, Primitive::Layer(_)) {
                continue;
            }
            for hashes in [true, false] {
                let mut job = CalledJob {
                    hashes,
                    ..CalledJob::healthy(tp, pp, dp)
                };
                let rank = job.rank(stage, dp - 1, tp - 1);
                job.stop = Some(Stop {
                    at: Spot {
                        iteration: 6,
                        rank,
                        block,
                    },
                    before,
                });
                let verdict = verdict_of(&job);
                let case = format!("{tp} {pp} {dp} {hashes} {stage} {block} {before:?}");
                let [incident] = &verdict["incidents"].as_array().unwrap()[..] else {
                    panic!("{case}: {verdict:#}")
                };
                assert_eq!(incident["kind"], "hang", "{case}");
                let subject = &incident["subject"];
                assert_eq!(subject["ranks"], serde_json::json!([rank]), "{case}");
                assert_eq!(
                    subject["stage"],
                    format!("pipeline stage {stage}"),
                    "{case}"
                );
                assert_eq!(subject["block"], block.to_string(), "{case}");
            }
        }
    }
}

fn delayed(iteration: u64, rank: u32, pass: Pass, microbatch: u32, extra_s: f64) -> Delay {
    Delay {
        at: Spot {
            iteration,
            rank,
            block: PipelineBlock {
                pass,
                microbatch,
                chunk: 0,
            },
        },
        extra_s,
    }
}

#[test]
fn what_slack_absorbed_is_reported_beside_the_cause() {
    let mut job = CalledJob::healthy(2, 4, 1);
    // The last stage waits for the second while it is in the third microbatch.
    job.delays = vec![
        delayed(5, 3, Pass::Forward, 3, 0.4),
        delayed(5, 7, Pass::Backward, 2, 0.15),
    ];
    let verdict = verdict_of(&job);
    let incidents = verdict["incidents"].as_array().unwrap();
    let [incident] = &incidents[..] else {
        panic!("{verdict:#}")
    };
    assert_eq!(incident["subject"]["ranks"], serde_json::json!([3]));
    let absorbed = verdict["absorbed"].as_array().unwrap();
    let [reported] = &absorbed[..] else {
        panic!("{absorbed:#?}")
    };
    let begin = "iteration 5: the backward of microbatch 2 on pipeline stage 3 took ";
    assert!(reported.as_str().unwrap().starts_with(begin), "{reported}");
}

#[test]
fn what_slack_absorbed_is_reported_of_healthy_iterations_too() {
    let mut job = CalledJob::healthy(2, 4, 1);
    // The first stage's last forward before it waits for the first gradient.
    job.delays = vec![delayed(5, 1, Pass::Forward, 3, 0.2)];
    let verdict = verdict_of(&job);
    assert_eq!(verdict["incidents"], serde_json::json!([]), "{verdict:#}");
    let absorbed = verdict["absorbed"].as_array().unwrap();
    let [reported] = &absorbed[..] else {
        panic!("{absorbed:#?}")
    };
    let begin = "iteration 5: the forward of microbatch 3 on pipeline stage 0 took 20";
    assert!(reported.as_str().unwrap().starts_with(begin), "{reported}");
}

#[test]
fn every_rule_of_expectation_names_the_rank() {
    for update in ["passed_gate", "alpha_mean", "last", "all_unflagged"] {
        let mut job = CalledJob::healthy(2, 4, 2);
        job.delays = vec![delayed(5, 6, Pass::Backward, 3, 0.4)];
        let folder = tempfile::tempdir().expect("a folder");
        let settings = folder.path().join("laggard.toml");
        fs::write(&settings, format!("[schedule]\nupdate = \"{update}\"\n")).unwrap();
        let logs = folder.path().join("logs");
        fs::create_dir(&logs).unwrap();
        for log in job.logs() {
            fs::write(logs.join(format!("rank_{}.log", log.rank)), log_text(&log)).unwrap();
        }
        let settings = settings.to_str().unwrap();
        let verdict = verdict_at(&["--config", settings], &logs);
        let [incident] = &verdict["incidents"].as_array().unwrap()[..] else {
            panic!("{update}: {verdict:#}")
        };
        assert_eq!(
            incident["subject"]["ranks"],
            serde_json::json!([6]),
            "{update}"
        );
        assert_eq!(
            incident["subject"]["block"], "backward of microbatch 3",
            "{update}"
        );
    }
}

/// A block that is somewhat long in a slow iteration is believed by the rule that believes all
/// that is not slow, and by no other.
#[test]
fn blocks_of_slow_iterations_are_believed_where_the_rule_says_so() {
    let mut job = CalledJob {
        iterations: 10,
        noise: 0.0,
        ..CalledJob::healthy(2, 4, 1)
    };
    let slow = |iteration| delayed(iteration, 3, Pass::Forward, 3, 0.4);
    let other = |iteration, extra_s| delayed(iteration, 7, Pass::Backward, 2, extra_s);
    job.delays = vec![slow(5), other(5, 0.036), slow(7), other(7, 0.15)];
    let usual_s = |update: schedule::Update| {
        let settings = schedule::ScheduleSettings {
            update,
            ..schedule::ScheduleSettings::default()
        };
        let said = schedule::diagnose(job.logs(), &schedule::Sizes::default(), &[], &settings);
        let said = said.unwrap().unwrap();
        let [(iteration, absorbed)] = said.absorbed[..] else {
            panic!("{said:#?}")
        };
        assert_eq!((iteration, absorbed.stage), (7, 3));
        absorbed.usual_s
    };
    let gated_s = usual_s(schedule::Update::PassedGate);
    // Warm iterations that passed the gate, and iteration 5.
    let believed_s = (gated_s * 6.0 + gated_s + 0.036) / 7.0;
    let unflagged_s = usual_s(schedule::Update::AllUnflagged);
    assert!(
        (unflagged_s - believed_s).abs() < 0.000_5,
        "{unflagged_s} {believed_s}"
    );
    assert!(unflagged_s - gated_s > 0.004);
    for update in [schedule::Update::AlphaMean, schedule::Update::Last] {
        assert!((usual_s(update) - gated_s).abs() < 0.001);
    }
}
