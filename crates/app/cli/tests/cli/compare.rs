//! `laggard compare` as a user meets it: recordings, verdicts, and jobs of a collector.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use insta::assert_snapshot;
use serde_json::Value;

fn laggard(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..");
    command
        .args(arguments)
        .current_dir(root)
        .env_remove("LAGGARD_CONFIG");
    command.output().expect("laggard runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

const HEALTHY: &str = "testdata/jobs/none.jsonl.zst";
const SLOW: &str = "testdata/jobs/data.jsonl.zst";

#[test]
fn a_rank_that_became_late_is_named_with_its_stage() {
    let output = laggard(&["compare", HEALTHY, SLOW, "--fail-on", "regression"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert_snapshot!(text(&output.stdout), @"
    A testdata/jobs/none.jsonl.zst: 4 ranks, 65 steps in 13 blocks
    B testdata/jobs/data.jsonl.zst: 4 ranks, 65 steps in 13 blocks

    SLOWER  a step: 36.9 ms -> 83.8 ms, +127.6 %; chance below 0.01 %
      who   rank 2 is 49.9 ms later in data.next_wait
      new   rank 2 is late in data.next_wait: 50.0 ms a step, 59 % of exposed step time since step 5

    stage                            A          B  of a step  sure
    data.next_wait              1.3 ms    51.1 ms   +134.7 %  yes
    model.fwd_loss_cpu_wall     8.8 ms     8.3 ms     -1.3 %  -
    model.backward_cpu_wall    22.6 ms    20.2 ms     -5.1 %  -
    callbacks.cpu_wall          0.7 ms     0.6 ms     -0.1 %  -
    optim.step_cpu_wall         3.4 ms     3.2 ms     -0.3 %  -
    step.other_cpu_wall         0.1 ms     0.1 ms     -0.1 %  -
    ");
    let fixed = laggard(&["compare", SLOW, HEALTHY, "--fail-on", "regression"]);
    assert_eq!(fixed.status.code(), Some(0));
    assert!(text(&fixed.stdout).contains("FASTER"));
}

#[test]
fn what_strikes_every_tenth_step_is_found() {
    let periodic = "testdata/jobs/periodic.jsonl.zst";
    let output = laggard(&["compare", HEALTHY, periodic, "--fail-on", "regression"]);
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output.stdout);
    assert!(
        printed.contains("new   rank 2 is late in data.next_wait every 10 steps"),
        "{printed}"
    );
}

#[test]
fn a_recording_is_like_itself() {
    let output = laggard(&["compare", "--json", SLOW, SLOW, "--fail-on", "regression"]);
    assert_eq!(output.status.code(), Some(0));
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(found["schema"], "laggard.comparison/1");
    assert_eq!(
        (&found["outcome"], &found["regression"]),
        (&"same".into(), &false.into())
    );
    assert_eq!(found["incidents"], Value::Array(Vec::new()));
}

/// A verdict of a long job, made of the windows of a short one.
fn write_verdict(path: &Path, recording: &str, windows: usize) {
    let output = laggard(&["analyze", "--json", recording]);
    let mut verdict: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let seen = verdict["windows"].as_array().expect("windows").clone();
    verdict["windows"] = (0..windows)
        .map(|at| {
            let mut window = seen[at % seen.len()].clone();
            window["first_step"] = (at * 50).into();
            window
        })
        .collect();
    fs::write(path, verdict.to_string()).expect("a file");
}

#[test]
fn verdicts_are_compared_by_their_windows() {
    let folder = tempfile::tempdir().expect("a folder");
    let [a, b, short] = ["a.json", "b.json", "short.json"].map(|name| folder.path().join(name));
    write_verdict(&a, HEALTHY, 12);
    write_verdict(&b, SLOW, 12);
    write_verdict(&short, SLOW, 2);
    let named = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let compare =
        |a: &Path, b: &Path| laggard(&["compare", &named(a), &named(b), "--fail-on", "regression"]);
    assert_eq!(compare(&a, &b).status.code(), Some(1));
    assert_eq!(compare(&b, &a).status.code(), Some(0));
    let undecided = compare(&a, &short);
    assert_eq!(undecided.status.code(), Some(2));
    let printed = text(&undecided.stdout);
    assert!(
        printed.contains("note: B has 2 analysed windows, and at least 8 are needed"),
        "{printed}"
    );
}

#[test]
fn what_cannot_be_compared_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("verdict.json");
    let complaint = |content: &str| {
        fs::write(&path, content).expect("a file");
        let output = laggard(&["compare", HEALTHY, path.to_str().expect("UTF-8")]);
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr).replace(folder.path().to_str().expect("UTF-8"), "FOLDER")
    };
    assert_snapshot!(complaint("{\"schema\": \"laggard.verdict/1\", \"job\": 3}"), @"
    laggard: FOLDER/verdict.json, line 1, column 41, at job: invalid type: integer `3`, expected struct JobSummary
      write the file again: it is cut off or damaged at that place
    ");
    assert_snapshot!(complaint("{\"schema\": \"laggard.verdict/1\""), @"
    laggard: FOLDER/verdict.json, line 1, column 30, at ?: EOF while parsing an object
      write the file again: it is cut off or damaged at that place
    ");
    // Nobody listens there.
    let gone = [
        "compare",
        HEALTHY,
        "no-such-job",
        "--collector",
        "http://127.0.0.1:9",
    ];
    let output = laggard(&gone);
    assert_eq!(output.status.code(), Some(2));
    let printed = text(&output.stderr);
    assert!(
        printed.starts_with("laggard: no-such-job is neither a file nor a readable job"),
        "{printed}"
    );
    assert!(
        printed.contains("the collector at http://127.0.0.1:9 does not answer"),
        "{printed}"
    );
    let output = laggard(&["compare", HEALTHY, SLOW, "--min-change=-3"]);
    assert!(text(&output.stderr).contains("write a number from 0 to 100"));
}
