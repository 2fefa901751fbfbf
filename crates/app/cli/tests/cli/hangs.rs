//! `laggard analyze` on recordings of real jobs that stood still: what testdata/README.md has of them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

/// Incidents of a recording, where a start may be quiet for 5 s.
fn incidents(recording: &str) -> Vec<Value> {
    incidents_with(recording, "[hang]\nfirst_quiet_s = 5.0\n")
}

fn incidents_with(recording: &str, settings_text: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = folder.path().join("laggard.toml");
    fs::write(&settings, settings_text).expect("settings");
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    command.args([
        "analyze",
        "--json",
        &format!("testdata/{recording}.jsonl.zst"),
    ]);
    command.current_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.."));
    let output = command
        .env("LAGGARD_CONFIG", settings)
        .output()
        .expect("laggard runs");
    assert!(output.status.success(), "{output:?}");
    let verdict: Value = serde_json::from_slice(&output.stdout).expect("a document");
    verdict["incidents"].as_array().expect("a list").clone()
}

#[test]
fn every_hang_has_its_culprit_and_says_why() {
    let missing = "rank 2 never entered ALLREDUCE #";
    for (recording, ranks, said) in [
        (
            "loader",
            vec![2],
            [missing, "rank 2 is in Shards.read_shard ("],
        ),
        (
            "exception",
            vec![1],
            [
                "rank 1 ended with exit code 1 in step 20, before it entered ALLREDUCE #26",
                "(ranks 0,2 were in it)",
            ],
        ),
        ("spin", vec![2], [missing, "rank 2 is busy in spin ("]),
        (
            "gil",
            vec![2],
            [missing, "rank 2 holds the GIL in hold_gil ("],
        ),
        (
            "stop",
            vec![2],
            [missing, "rank 2 is stopped in <module> ("],
        ),
        ("recompute", vec![2], [missing, "rank 2 is in read_shard ("]),
        ("compiled", vec![2], [missing, "rank 2 is in read_shard ("]),
        (
            "skip",
            vec![2],
            [
                "rank 2 entered BARRIER where the others entered ALLREDUCE #",
                "of group default",
            ],
        ),
        (
            "order",
            vec![2, 3],
            [
                "ranks 2-3 wait for one another: ranks 0-1,3 in ALLREDUCE #",
                "rank 2 in ALLREDUCE #1 of group pair without rank 3",
            ],
        ),
        (
            "size",
            vec![2],
            [
                "rank 2 entered ALLREDUCE (32 bytes) where the others",
                "(16 bytes)",
            ],
        ),
        (
            "small",
            vec![2],
            [
                "rank 2 entered ALLREDUCE (8 bytes) where the others",
                "(16 bytes)",
            ],
        ),
    ] {
        // Older versions know collectives from their Flight Recorders.
        let recorder = format!("hangs/recorder_{recording}");
        let has_recorder = matches!(recording, "loader" | "skip" | "order" | "small");
        for file in [format!("hangs/{recording}")]
            .into_iter()
            .chain(has_recorder.then_some(recorder))
        {
            let found = incidents(&file);
            let [hang] = &found[..] else {
                panic!("{file}: {found:?}")
            };
            assert_eq!(
                (&hang["kind"], &hang["severity"], &hang["open"]),
                (&json!("hang"), &json!("critical"), &json!(true)),
                "{file}"
            );
            assert_eq!(hang["subject"]["ranks"], json!(ranks), "{file}");
            let text = hang["text"].as_str().expect("a text");
            assert!(
                said.iter().all(|words| text.contains(words)),
                "{file}: {text}"
            );
        }
    }
}

#[test]
fn starts_that_stand_still_name_who_has_not_come_and_where_it_is() {
    for (recording, ranks, severity, words) in [
        (
            "first",
            vec![2],
            "critical",
            "rank 2 is in load_tokenizer (",
        ),
        (
            "start_apart",
            vec![0, 1, 2],
            "warning",
            "and do not leave it",
        ),
    ] {
        let found = incidents(&format!("hangs/{recording}"));
        let [start] = &found[..] else {
            panic!("{recording}: {found:?}")
        };
        assert_eq!(
            (&start["kind"], &start["severity"]),
            (&json!("hang"), &json!(severity))
        );
        assert_eq!(start["subject"]["ranks"], json!(ranks), "{recording}");
        let text = start["text"].as_str().expect("a text");
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn what_passes_is_a_stall_of_its_rank_and_no_hang() {
    for (recording, stage, least_s) in [
        ("pause_checkpoint", "callbacks.cpu_wall", 5.0),
        ("pause_compile", "callbacks.cpu_wall", 5.0),
        ("pause_evaluate", "callbacks.cpu_wall", 5.0),
        ("pause_download", "callbacks.cpu_wall", 5.0),
        ("stuck_for_a_while", "data.next_wait", 4.0),
    ] {
        let found = incidents(&format!("hangs/{recording}"));
        let [stall] = &found[..] else {
            panic!("{recording}: {found:?}")
        };
        assert_eq!(
            (&stall["kind"], &stall["open"]),
            (&json!("slow"), &json!(false))
        );
        let subject = &stall["subject"];
        assert_eq!(
            (&subject["ranks"], &subject["stage"]),
            (&json!([2]), &json!(stage))
        );
        assert!(
            stall["cost_s"].as_f64().expect("seconds") >= 0.98 * least_s,
            "{stall}"
        );
    }
}

#[test]
fn ranks_that_end_early_or_are_killed_when_they_are_done_are_no_incident() {
    for recording in ["hangs/join", "hangs/dismissed"] {
        assert_eq!(incidents(recording), [] as [Value; 0], "{recording}");
    }
}

#[test]
fn a_job_that_ends_in_silence_is_not_healthy() {
    for (recording, said, ended) in [
        (
            "wrong_peer",
            "s since step 19: ranks 0-2 did nothing, and their collective is unknown",
            "ranks 1-2 ended with exit code 1",
        ),
        (
            "all_wait",
            "s since step 29: ranks 0-2 issued ALLREDUCE",
            "ranks 0-2 ended with exit code 9",
        ),
        (
            "device_stops",
            "s since step 20: ranks 0-2 issued REDUCE_SCATTER_BASE",
            "ranks 0-2 ended with exit code 9",
        ),
    ] {
        // By their limits they are no hangs yet.
        let found = incidents_with(&format!("hangs/{recording}"), "");
        let [end] = &found[..] else {
            panic!("{recording}: {found:?}")
        };
        assert_eq!(
            (&end["kind"], &end["severity"], &end["subject"]["ranks"]),
            (&json!("hang"), &json!("warning"), &json!([])),
            "{recording}"
        );
        let text = end["text"].as_str().expect("a text");
        assert!(text.contains(said), "{text}");
        assert!(end["evidence"].to_string().contains(ended), "{end}");
    }
}

#[test]
fn devices_and_stacks_name_who_holds_up_a_job_whose_calls_do_not() {
    for (recording, said, next) in [
        (
            "device_waits",
            "rank 1 waits for its device in main (train.py:30)",
            "look at the device of rank 1",
        ),
        (
            "handed_on",
            "rank 1 is not in a communication call, and all other ranks wait in one; \
             rank 1 is in stage_forward (train.py:4)",
            "look at the stack of rank 1",
        ),
    ] {
        let found = incidents_with(&format!("hangs/{recording}"), "");
        let [hang] = &found[..] else {
            panic!("{recording}: {found:?}")
        };
        let subject = (&hang["kind"], &hang["subject"]["ranks"]);
        assert_eq!(subject, (&json!("hang"), &json!([1])), "{recording}");
        let text = hang["text"].as_str().expect("a text");
        assert!(text.contains(said), "{text}");
        let advice = hang["advice"].as_str().expect("an advice");
        assert!(advice.starts_with(next), "{advice}");
    }
}

#[test]
fn arrivals_from_a_flight_recorder_name_who_is_late_in_backward() {
    let found = incidents("recorders/backward");
    let [late] = &found[..] else {
        panic!("{found:?}")
    };
    let subject = &late["subject"];
    assert_eq!(
        (&subject["ranks"], &subject["stage"], &late["pace"]["kind"]),
        (
            &json!([1]),
            &json!("model.backward_cpu_wall"),
            &json!("steady")
        )
    );
}

/// The output of a job of four, of which rank 1 raised an error, in a file for each: without what says whose
/// its lines are. What `analyze` says of it, from inside their folder.
fn of_rank_logs(name: impl Fn(u32) -> String, paths: &[&str]) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let log = fs::read_to_string(root.join("testdata/watchdog/silent.log")).expect("a log");
    let folder = tempfile::tempdir().expect("a folder");
    for rank in 0..4 {
        let header = format!("[rank{rank}]:");
        let lines = log.lines().filter(|line| line.starts_with(&header));
        let mut own: String = lines.flat_map(|line| [line, "\n"]).collect();
        if rank == 1 {
            own = own.replace("[rank1]: ", "");
        }
        let file = folder.path().join(name(rank));
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(file, own).expect("a file");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    let output = command
        .arg("analyze")
        .args(paths)
        .current_dir(&folder)
        .output()
        .expect("laggard runs");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn the_error_of_a_rank_is_read_in_a_log_of_its_own() {
    let torchrun = |rank| format!("run_x1/attempt_0/{rank}/stderr.log");
    let tasks = |rank| format!("slurm-88-{rank}.out");
    for said in [
        of_rank_logs(torchrun, &["."]),
        of_rank_logs(tasks, &["."]),
        // As a shell lists them.
        of_rank_logs(
            |rank| format!("rank_{rank}.err"),
            &["rank_0.err", "rank_1.err", "rank_2.err", "rank_3.err"],
        ),
    ] {
        assert!(
            said.contains("CRITICAL  rank 1 raised RuntimeError: DataLoader worker"),
            "{said}"
        );
        assert!(
            said.contains("rank 1 raised: RuntimeError: DataLoader worker"),
            "{said}"
        );
        assert!(said.contains("default: ranks 0,2-3\n"), "{said}");
        assert!(!said.contains("skipped"), "{said}");
    }
    // No other file says that it is one of a rank's.
    let said = of_rank_logs(|rank| format!("rank_{rank}.err"), &["rank_1.err"]);
    assert!(said.contains("is not a recording laggard knows"), "{said}");
}
