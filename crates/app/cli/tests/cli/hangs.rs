//! `laggard analyze` on recordings of real jobs that stood still: what testdata/README.md has of them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

/// Incidents of a recording, where a start may be quiet for 5 s.
fn incidents(recording: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = folder.path().join("laggard.toml");
    fs::write(&settings, "[hang]\nfirst_quiet_s = 5.0\n").expect("settings");
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
