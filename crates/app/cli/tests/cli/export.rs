//! `laggard analyze --export-calls`: what is written of a recording says the same.
#![expect(
    clippy::unwrap_used,
    reason = "a test fails where a verdict lacks a field"
)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use formats::input_line;
use model::{BlockPlace, CollectiveIssue, CollectiveOp, Event, Input, Mark, Pass, RankNs};
use schedule::{Graph, Scheme, Timing};
use serde_json::Value;

const RANKS: u32 = 4;
const MS: u64 = 1_000_000;

fn analyze(arguments: &[&str], path: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    let command = command
        .args(["analyze", "--json"])
        .args(arguments)
        .arg(path);
    command
        .env_remove("LAGGARD_CONFIG")
        .output()
        .expect("laggard runs")
}

fn verdict(output: &Output) -> Value {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("a verdict")
}

/// A recording of a pipeline of four ranks, a sum over all in each step, and one slow block.
fn recording() -> Vec<u8> {
    let graph = Graph::new(Scheme::OneForwardOneBackward.plan(RANKS, 8)).unwrap();
    let mut text = b"{\"schema\":\"laggard.marks/1\",\"job\":\"pipeline\"}\n".to_vec();
    let mut marks: Vec<(u64, Input)> = Vec::new();
    let mut begin_ns = 1000 * MS;
    for step in 0..14_u64 {
        let took_ns = |node: usize| {
            let (stage, block) = graph.block(node);
            let is_slow = (step, stage, block.pass, block.microbatch) == (9, 1, Pass::Forward, 3);
            let usual_ms = if block.pass == Pass::Forward { 10 } else { 20 };
            // No two blocks are quite alike.
            let noise_us = (step * 37 + node as u64 * 11) % 400;
            (usual_ms + if is_slow { 300 } else { 0 }) * MS + noise_us * 1000
        };
        let durations_s: Vec<f64> = (0..graph.nodes())
            .map(|node| took_ns(node) as f64 * 1e-9)
            .collect();
        let mut timing = Timing::default();
        graph.time(&durations_s, &mut timing);
        let mut mark = |rank: usize, at_ns: u64, event: Event| {
            let (at, step) = (RankNs(at_ns), step as u32);
            let mark = Mark {
                at,
                step,
                on_loop_thread: true,
                event,
            };
            marks.push((
                at_ns,
                Input::Mark {
                    rank: rank as u32,
                    mark,
                },
            ));
        };
        let issue = |op, group, number, bytes| {
            let issue = CollectiveIssue::new(op, group, number);
            let (bytes, element_bytes) = (Some(bytes), 4);
            Event::CollectiveIssue(CollectiveIssue {
                bytes,
                element_bytes,
                ..issue
            })
        };
        for rank in 0..RANKS as usize {
            let mut free_ns = begin_ns;
            for node in graph.nodes_of(rank) {
                let (_, block) = graph.block(node);
                let end_ns = begin_ns + (timing.ends_s[node] * 1e9) as u64;
                let place = BlockPlace {
                    pass: block.pass,
                    stage: rank as u32,
                    microbatch: block.microbatch,
                    stages: RANKS,
                    first_rank: 0,
                };
                if graph.plan().source(rank, block).is_some() {
                    mark(
                        rank,
                        free_ns + 1000,
                        issue(CollectiveOp::RECEIVE, 5, 0, 128),
                    );
                }
                let works_ns = (end_ns - took_ns(node)).max(free_ns);
                mark(rank, works_ns, Event::BlockBegin(place));
                mark(rank, end_ns, Event::BlockEnd(place));
                if graph.plan().target(rank, block).is_some() {
                    mark(rank, end_ns + 500, issue(CollectiveOp::SEND, 5, 0, 128));
                }
                free_ns = end_ns;
            }
            // The sum over all that ends a step begins when a rank is done, and holds it until all
            // are; two more follow.
            let met_ns = begin_ns + (timing.makespan_s * 1e9) as u64;
            for (at, at_ns) in (1..).zip([free_ns, met_ns, met_ns + MS]) {
                let sum = issue(CollectiveOp::ALLREDUCE, 6, step * 3 + at, 4 * at);
                mark(rank, at_ns + MS, sum);
            }
        }
        begin_ns += (timing.makespan_s * 1e9) as u64 + 5 * MS;
    }
    marks.sort_by_key(|(at_ns, _)| *at_ns);
    for (_, input) in marks {
        input_line(&input, &mut text).unwrap();
    }
    text
}

#[test]
fn what_is_exported_of_a_pipeline_says_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, calls) = (folder.path().join("job.jsonl"), folder.path().join("calls"));
    fs::write(&path, recording()).unwrap();
    let output = analyze(&["--export-calls", calls.to_str().unwrap()], &path);
    let said = verdict(&output);
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(printed.contains("calls of 4 ranks written"), "{printed}");
    let first = fs::read_to_string(calls.join("rank_0.log")).unwrap();
    let line = "Fun Send Data 32 stream 0x100000006 opCount 0 groupHash 4294967302";
    assert!(first.lines().next().unwrap().ends_with(line), "{first}");
    let again = verdict(&analyze(&[], &calls));
    assert_eq!(again["pipeline"]["layout"], "pp 4");
    assert_eq!(again["pipeline"]["schedule"], "1F1B");
    for verdict in [&said, &again] {
        let [incident] = &verdict["incidents"].as_array().unwrap()[..] else {
            panic!("{verdict:#}")
        };
        assert_eq!(incident["subject"]["ranks"], serde_json::json!([1]));
        assert_eq!(incident["subject"]["stage"], "pipeline stage 1");
        assert_eq!(incident["subject"]["block"], "forward of microbatch 3");
        assert_eq!(
            (&incident["first_step"], &incident["last_step"]),
            (&9.into(), &9.into())
        );
        let cost_s = incident["cost_s"].as_f64().unwrap();
        assert!((cost_s - 0.3).abs() < 0.02, "{cost_s}");
    }
}

#[test]
fn what_is_exported_as_a_what_if_trace_says_what_the_block_costs() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, trace) = (
        folder.path().join("job.jsonl"),
        folder.path().join("job.parquet"),
    );
    fs::write(&path, recording()).unwrap();
    verdict(&analyze(
        &["--export-what-if", trace.to_str().unwrap()],
        &path,
    ));
    let layout = fs::read_to_string(folder.path().join("job.yaml")).unwrap();
    assert!(
        layout.contains("dp_size: 1\n") && layout.contains("pp_size: 4\n"),
        "{layout}"
    );
    let said = verdict(&analyze(&[], &trace));
    let steps = said["what_if"]["simulated_s"].as_array().unwrap();
    let steps: Vec<f64> = steps
        .iter()
        .map(|step_s| step_s.as_f64().unwrap())
        .collect();
    assert_eq!(steps.len(), 14);
    // The slow block makes one step 0.3 s longer.
    for (at, step_s) in steps.iter().enumerate() {
        let longer_s = if at == 9 { 0.3 } else { 0.0 };
        assert!(
            (step_s - steps[0] - longer_s).abs() < 0.01,
            "{at}: {step_s}"
        );
    }
    // What the published tool cannot do without.
    let kinds = said["what_if"]["stragglers"]["op_types"]
        .as_array()
        .unwrap();
    let kinds: Vec<&str> = kinds
        .iter()
        .map(|kind| kind["name"].as_str().unwrap())
        .collect();
    for kind in [
        "gc",
        "layernorm-grads-all-reduce",
        "embedding-grads-all-reduce",
        "optimizer-clip-main-grad",
        "optimizer",
    ] {
        assert!(kinds.contains(&kind), "{kind} is not in {kinds:?}");
    }
    assert!(
        fs::read(&trace)
            .unwrap()
            .windows(12)
            .any(|bytes| bytes == b"ARROW:schema")
    );
}

/// A loop that sums its gradients in one bucket, behind a few broadcasts of its parameters.
#[test]
fn calls_of_a_healthy_loop_are_healthy() {
    let jobs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../testdata/jobs");
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    let options = ["--export-calls", calls.to_str().unwrap()];
    verdict(&analyze(&options, &jobs.join("none.jsonl.zst")));
    let said = verdict(&analyze(&[], &calls));
    assert_eq!(said["job"]["steps"], 71, "and the barrier at the end");
    assert_eq!(
        said["incidents"].as_array().unwrap().len(),
        0,
        "{}",
        said["incidents"]
    );
}

#[test]
fn what_has_no_calls_is_not_exported() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rank_0.log");
    fs::write(&path, "[1.5] [Rank 0] Fun Send Data 8 stream 0x5\n").unwrap();
    let output = analyze(&["--export-calls", folder.path().to_str().unwrap()], &path);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("an export takes one recording of `laggard run`, found 0"),
        "{said}"
    );
}

#[test]
fn the_steps_around_a_slow_block_are_a_trace_with_the_block_in_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, trace) = (
        folder.path().join("job.jsonl"),
        folder.path().join("moment.json"),
    );
    fs::write(&path, recording()).unwrap();
    verdict(&analyze(&["--perfetto", trace.to_str().unwrap()], &path));
    let trace: Value = serde_json::from_slice(&fs::read(&trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |name: &str| {
        events
            .iter()
            .filter(|event| event["name"] == name)
            .collect::<Vec<_>>()
    };
    let blocks = named("forward of microbatch 3");
    // Steps 6 to 13, the last there is, of four ranks.
    assert_eq!(blocks.len(), 8 * 4);
    let slow: Vec<_> = blocks
        .iter()
        .filter(|block| block["dur"].as_f64() > Some(300e3))
        .collect();
    let [slow] = slow.as_slice() else {
        panic!("{slow:?}")
    };
    assert_eq!(
        (&slow["pid"], &slow["args"]["stage"]),
        (&1.into(), &1.into())
    );
    let incident = events
        .iter()
        .find(|event| event["args"]["advice"].is_string());
    let incident = incident.expect("the incident");
    let at = |event: &Value| event["ts"].as_f64().unwrap();
    assert!(incident["pid"] == 1 && at(incident) <= at(slow));
    assert!(named("ALLREDUCE").iter().all(|event| event["ph"] == "i"));
}

#[test]
fn a_trace_of_a_hang_shows_since_when_nobody_moves() {
    let lines = [
        r#"{"schema":"laggard.marks/1","job":"job"}"#,
        r#"{"is":"group","group":1,"name":"default","members":[0,1]}"#,
        // Both have met; then one asks its loader for a batch, which never comes.
        "[0,9000000000,40,14,1,3,1,0,46]",
        "[1,9000000000,40,14,1,3,1,0,46]",
        "[1,9500000000,41,1,1,0]",
        "[0,9500000000,41,1,1,0]",
        "[0,9600000000,41,2,1,0]",
        "[0,10000000000,41,14,1,3,1,0,47]",
        r#"{"is":"quiet","at":11000000000}"#,
        r#"{"is":"quiet","at":13000000000}"#,
        r#"{"is":"stacks_told"}"#,
    ];
    let folder = tempfile::tempdir().expect("a folder");
    let (path, trace) = (
        folder.path().join("job.jsonl"),
        folder.path().join("moment.json"),
    );
    fs::write(&path, lines.join("\n")).unwrap();
    let said = verdict(&analyze(&["--perfetto", trace.to_str().unwrap()], &path));
    assert_eq!(said["incidents"][0]["kind"], "hang");
    let trace: Value = serde_json::from_slice(&fs::read(&trace).unwrap()).unwrap();
    let still = trace["traceEvents"].as_array().unwrap().iter();
    let still = still.filter(|event| event["name"] == "nothing more");
    let still: Vec<_> = still.map(|event| [&event["pid"], &event["dur"]]).collect();
    assert_eq!(
        still,
        [
            [&Value::from(1), &Value::from(3.5e6)],
            [&Value::from(0), &Value::from(3e6)]
        ]
    );
}
