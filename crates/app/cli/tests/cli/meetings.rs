//! `laggard analyze` on jobs whose hosts run ahead of their devices: culprit, stage and cost as
//! testdata/README.md has them.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

fn verdict(recording: &str) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    command.args([
        "analyze",
        "--json",
        &format!("testdata/{recording}.jsonl.zst"),
    ]);
    command.current_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.."));
    let output = command
        .env_remove("LAGGARD_CONFIG")
        .output()
        .expect("laggard runs");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("a document")
}

/// Checks that rank 2 alone is named, in a stage, for what fixing it gains, within a tenth.
fn assert_named(recording: &str, cut: &str, stage: &str, gain_ms: f64) {
    let verdict = verdict(recording);
    let job = &verdict["job"];
    let incidents = verdict["incidents"].as_array().expect("a list");
    assert_eq!(job["cut"], cut);
    assert_eq!(incidents.len(), 1, "{incidents:?}");
    let subject = &incidents[0]["subject"];
    assert_eq!(
        (&subject["ranks"], &subject["stage"]),
        (&[2].as_slice().into(), &stage.into())
    );
    let steps = job["analysed_steps"].as_f64().expect("a number");
    let cost_ms = incidents[0]["cost_s"].as_f64().expect("a number") * 1e3 / steps;
    assert!(
        (0.9..=1.1).contains(&(cost_ms / gain_ms)),
        "{cost_ms} ms of {gain_ms} ms"
    );
}

#[test]
fn a_late_loader_is_named_wherever_the_loss_is_read() {
    assert_named("late/loader_after", "data, seen", "data.next_wait", 59.7);
    assert_named(
        "late/loader_before",
        "optimizer begin, seen",
        "data.next_wait",
        59.7,
    );
}

#[test]
fn the_stage_of_the_read_back_is_not_blamed() {
    let forward = "model.fwd_loss_cpu_wall";
    assert_named("late/forward_clip", "optimizer end, seen", forward, 56.3);
}

#[test]
fn a_late_callback_is_distinguished_from_the_wait_in_the_same_stage() {
    let callbacks = "callbacks.cpu_wall";
    assert_named(
        "late/callback_before",
        "optimizer begin, seen",
        callbacks,
        59.4,
    );
}

/// Behind the read-back: only the clock that ranks of a host share shows it.
#[test]
fn a_callback_behind_the_read_back_is_named() {
    assert_named(
        "late/callback_after",
        "data, seen",
        "callbacks.cpu_wall",
        19.3,
    );
    // Where another rank's loader hides it: what fixing that one saves, and both.
    let verdict = verdict("late/two_faults_after");
    let [loader, callback] = &verdict["incidents"].as_array().expect("a list")[..] else {
        panic!("{}", verdict["incidents"])
    };
    assert_eq!(callback["subject"]["ranks"], json!([3]));
    assert_eq!(
        (&loader["subject"]["ranks"], &callback["severity"]),
        (&json!([1]), &json!("info"))
    );
    let steps = verdict["job"]["analysed_steps"].as_f64().expect("a number");
    let next = &loader["next_in_line"][0];
    for (gain, truth_ms) in [
        (&loader["gain_alone_s"], 29.7),
        (&next["gain_both_s"], 49.2),
    ] {
        let gain_ms = gain.as_f64().expect("a number") * 1e3 / steps;
        assert!(
            (0.9..=1.1).contains(&(gain_ms / truth_ms)),
            "{gain_ms} ms of {truth_ms} ms"
        );
    }
}

#[test]
fn a_rank_that_is_late_behind_a_metric_is_named_and_ranks_that_do_not_meet_are_not() {
    let metric = verdict("late/metric_behind");
    let [late] = &metric["incidents"].as_array().expect("a list")[..] else {
        panic!("{}", metric["incidents"])
    };
    assert_eq!(late["subject"]["ranks"], json!([3]));
    let steps = metric["job"]["analysed_steps"].as_f64().expect("a number");
    let cost_ms = late["cost_s"].as_f64().expect("a number") * 1e3 / steps;
    assert!(
        (0.9..=1.1).contains(&(cost_ms / 38.6)),
        "{cost_ms} ms of 38.6 ms"
    );
    let groups = verdict("late/two_groups");
    assert_eq!(groups["incidents"], Value::Array(Vec::new()));
}

#[test]
fn lateness_that_the_launch_queue_absorbs_is_no_warning() {
    let verdict = verdict("late/absorbed_ten");
    assert_eq!(verdict["job"]["cut"], "data, no meeting seen");
    let incidents = verdict["incidents"].as_array().expect("a list");
    assert!(
        incidents
            .iter()
            .all(|incident| incident["severity"] == "info")
    );
}

/// On real accelerator paths of PyTorch, a device on the CPU whose events have times.
#[test]
fn a_slow_device_is_distinguished_from_a_slow_host() {
    // Of 45 sampled steps, those of a profile window are left out.
    for (recording, stage, gain_ms, side, steps) in [
        (
            "late/device_forward_after",
            "model.fwd_loss_cpu_wall",
            17.5,
            "device",
            41,
        ),
        (
            "late/device_loader_after",
            "data.next_wait",
            49.6,
            "host",
            42,
        ),
    ] {
        assert_named(recording, "data, seen", stage, gain_ms);
        let verdict = verdict(recording);
        assert_eq!(verdict["incidents"][0]["subject"]["side"], side);
        assert_eq!(verdict["job"]["sampled_steps"], steps);
        let [read_back] = &verdict["job"]["read_backs"].as_array().expect("lines")[..] else {
            panic!("one line")
        };
        assert_eq!(
            (&read_back["line"], &read_back["per_step"]),
            (&Value::Null, &json!(1.0))
        );
    }
}

/// The same beside other work: what collectives took varied by half of the step.
#[test]
fn a_slow_device_or_host_is_named_on_a_busy_machine() {
    for (recording, stage, side, least_ms) in [
        // 20 ms in 65 of 83 steps: behind a profile window too few are sampled for an account.
        (
            "late/device_backward_never",
            "model.backward_cpu_wall",
            "device",
            13.5,
        ),
        (
            "late/fsdp2_forward_after",
            "model.fwd_loss_cpu_wall",
            "host",
            45.0,
        ),
    ] {
        let verdict = verdict(recording);
        let [incident] = &verdict["incidents"].as_array().expect("a list")[..] else {
            panic!("{recording}: {}", verdict["incidents"])
        };
        let subject = &incident["subject"];
        assert_eq!(
            (&subject["ranks"], &subject["stage"]),
            (&json!([2]), &json!(stage))
        );
        assert_eq!(subject["side"], side);
        let steps = verdict["job"]["analysed_steps"].as_f64().expect("a number");
        let cost_ms = incident["cost_s"].as_f64().expect("a number") * 1e3 / steps;
        assert!(
            (least_ms..62.0).contains(&cost_ms),
            "{recording}: {cost_ms}"
        );
    }
}

#[test]
fn hosts_that_wait_for_their_devices_are_not_called_healthy_unseen() {
    let verdict = verdict("late/none_after");
    assert_eq!(verdict["incidents"], Value::Array(Vec::new()));
    let share = verdict["job"]["device_wait_share"]
        .as_f64()
        .expect("a share");
    assert!((0.5..0.9).contains(&share), "{share}");
}

/// Two of four ranks are late in different places; the other two wait for full launch queues.
#[test]
fn ranks_that_wait_for_several_late_ones_are_not_named() {
    for (recording, innocents) in [("three_faults_never", [1, 2]), ("two_faults_ten", [0, 3])] {
        let verdict = verdict(&format!("late/{recording}"));
        let named = verdict["incidents"]
            .as_array()
            .expect("a list")
            .iter()
            .flat_map(|incident| incident["subject"]["ranks"].as_array().expect("ranks"));
        for rank in named {
            assert!(innocents.iter().all(|it| rank != it), "{recording}: {rank}");
        }
        assert_ne!(verdict["job"]["ambiguous_steps"], Value::Null);
    }
}

#[test]
fn a_slow_device_behind_hosts_that_never_read_back_is_not_called_healthy() {
    let verdict = verdict("late/rank1_device_never");
    assert_eq!(verdict["incidents"], Value::Array(Vec::new()));
    let job = &verdict["job"];
    assert_eq!(
        (&job["hosts_run_ahead"], &job["hosts_may_run_ahead"]),
        (&Value::Null, &json!(true))
    );
}

#[test]
fn hosts_that_block_in_their_collectives_wait_for_no_device() {
    for recording in
        ["none", "data", "callback", "backward_fsdp2"].map(|name| format!("jobs/{name}"))
    {
        let job = &verdict(&recording)["job"];
        assert_eq!(job["cut"], "backward end");
        assert_eq!(job["device_wait_share"], Value::Null);
        assert_eq!(job["hosts_may_run_ahead"], Value::Null);
    }
}
