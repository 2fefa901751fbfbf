//! `laggard analyze` on MegaTrace's telemetry of work requests, alone and beside logs of calls.
#![expect(
    clippy::unwrap_used,
    reason = "a test fails where a verdict lacks a field"
)]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use model::{Pass, PipelineBlock};
use serde_json::{Value, json};
use sim::{CalledJob, Delay, Primitive, Spot, Stop, log_text};

const MS: u64 = 1_000_000;
const HEADER: &str = "Time,Group,FromRank,ToRank,DevIndex,Func,FuncTimes,SrcIP,DstIP,Bandwidth,\
    SendWrCounter,RemainWrDataSize,Timestamp\n";
const FILE: &str = "node7_mlx5_0_Port1_A.log";

fn laggard(path: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    let command = command.args(["analyze", "--json"]).arg(path);
    command
        .env_remove("LAGGARD_CONFIG")
        .output()
        .expect("laggard runs")
}

fn verdict(path: &Path) -> Value {
    let output = laggard(path);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("a verdict")
}

/// A transfer of 100 requests every 100 ms, of which the last 50 are told; 200 Gbit/s but in
/// the times where it is slow.
fn telemetry(group: u64, from_ns: u64, until_ns: u64, slow_ns: (u64, u64)) -> String {
    let mut text = HEADER.to_owned();
    let transfers = (from_ns..until_ns).step_by(100 * MS as usize);
    for (transfer, begin_ns) in (1..).zip(transfers) {
        for request in 50..100 {
            let at_ns = begin_ns + request * MS;
            let is_slow = (slow_ns.0..slow_ns.1).contains(&at_ns);
            let (gibit, in_flight) = (if is_slow { 90 } else { 186 }, 99 - request);
            writeln!(
                text,
                "20260101120000,{group},1,2,0,6,{transfer},10.0.0.1,10.0.0.2,{gibit},{in_flight},\
                 {},{at_ns}",
                in_flight * 4096
            )
            .unwrap();
        }
    }
    text
}

#[test]
fn a_connection_that_loses_bandwidth_is_named_by_its_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let second = 1000 * MS;
    let text = telemetry(77, second, 9 * second, (5 * second, 6 * second));
    // As the two files of a port alternate.
    let half = text.len() / 2 + text[text.len() / 2..].find('\n').unwrap() + 1;
    fs::write(folder.path().join(FILE), &text[..half]).unwrap();
    let rest = format!("{HEADER}{}", &text[half..]);
    fs::write(folder.path().join(FILE.replace("_A", "_B")), rest).unwrap();
    let verdict = verdict(folder.path());
    let [incident] = &verdict["incidents"].as_array().unwrap()[..] else {
        panic!("{verdict:#}")
    };
    let text = incident["text"].as_str().unwrap();
    assert_eq!(
        text,
        "the connection from rank 1 to 2 of communicator 77 (port node7_mlx5_0_Port1) lost \
         bandwidth: 12.23 instead of 25.00 GB/s, for 1.00 s; network, not compute; recovered since"
    );
    assert_eq!(incident["subject"]["ranks"], json!([]));
    assert_eq!(labels(incident), ["bandwidth_lost", "path_works"]);
    let reported = "4000 completed work requests of 1 connections were reported";
    assert_eq!(verdict["notes"], json!([reported]));
}

fn labels(incident: &Value) -> Vec<&Value> {
    incident["evidence"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["label"])
        .collect()
}

#[test]
fn what_does_not_come_back_on_a_port_is_a_broken_path() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = telemetry(77, 0, 9000 * MS, (0, 0));
    fs::write(folder.path().join(FILE), &whole).unwrap();
    // The other port falls silent in the middle of a transfer.
    let silent: Vec<&str> = whole.lines().take(1 + 25 * 50 + 30).collect();
    let other = FILE.replace("mlx5_0", "mlx5_1");
    fs::write(folder.path().join(other), silent.join("\n") + "\n").unwrap();
    let verdict = verdict(folder.path());
    let [incident] = &verdict["incidents"].as_array().unwrap()[..] else {
        panic!("{verdict:#}")
    };
    assert_eq!(labels(incident), ["requests_stalled", "path_broken"]);
    assert_eq!(incident["severity"], "critical");
}

/// A rank that stops while all requests came back.
#[test]
fn a_hang_with_idle_ports_is_not_said_to_be_of_the_network() {
    let block = PipelineBlock {
        pass: Pass::Forward,
        microbatch: 3,
        chunk: 0,
    };
    let at = Spot {
        iteration: 6,
        rank: 3,
        block,
    };
    let stop = Some(Stop {
        at,
        before: Primitive::Layer(3),
    });
    let job = CalledJob {
        hashes: true,
        stop,
        ..CalledJob::healthy(2, 4, 1)
    };
    let folder = tempfile::tempdir().expect("a folder");
    for log in job.logs() {
        let path = folder.path().join(format!("rank_{}.log", log.rank));
        fs::write(path, log_text(&log)).unwrap();
    }
    let idle = "requests_idle";
    let is_idle = |verdict: &Value| {
        let incident = &verdict["incidents"][0];
        assert_eq!(incident["kind"], "hang", "{verdict:#}");
        labels(incident).contains(&&json!(idle))
    };
    assert!(
        !is_idle(&verdict(folder.path())),
        "nothing is told of requests"
    );
    let text = telemetry(77, 0, 9000 * MS, (0, 0));
    fs::write(folder.path().join(FILE), &text).unwrap();
    assert!(is_idle(&verdict(folder.path())));
    let cut = text.trim_end().rfind('\n').unwrap() + 1;
    fs::write(folder.path().join(FILE), &text[..cut]).unwrap();
    assert!(!is_idle(&verdict(folder.path())));
}

#[test]
fn a_healthy_connection_is_no_incident() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(
        folder.path().join(FILE),
        telemetry(77, 0, 9000 * MS, (0, 0)),
    )
    .unwrap();
    assert_eq!(verdict(folder.path())["incidents"], json!([]));
}

#[test]
fn the_network_comes_first() {
    let mut job = CalledJob {
        hashes: true,
        ..CalledJob::healthy(2, 4, 1)
    };
    let block = PipelineBlock {
        pass: Pass::Forward,
        microbatch: 3,
        chunk: 0,
    };
    job.delays.push(Delay {
        at: Spot {
            iteration: 5,
            rank: 5,
            block,
        },
        extra_s: 0.4,
    });
    let folder = tempfile::tempdir().expect("a folder");
    let logs = job.logs();
    for log in &logs {
        let path = folder.path().join(format!("rank_{}.log", log.rank));
        fs::write(path, log_text(log)).unwrap();
    }
    let blamed = verdict(folder.path());
    let [incident] = &blamed["incidents"].as_array().unwrap()[..] else {
        panic!("{blamed:#}")
    };
    assert_eq!(incident["subject"]["block"], "forward of microbatch 3");
    let span = &incident["evidence"].as_array().unwrap().last().unwrap()["values"];
    let ns = |name: &str| (span[name].as_f64().unwrap() * 1e9) as u64;
    // The communicator in which rank 5 sends: 1, 3, 5 and 7.
    let sends = logs[5]
        .calls
        .iter()
        .find(|call| call.op == model::CollectiveOp::SEND)
        .unwrap();
    let hash: i64 = logs[5].lanes[sends.lane as usize].hash.parse().unwrap();
    let first_ns = logs[5].calls[0].at_ns;
    let last_ns = logs[5].calls.last().unwrap().at_ns;
    let slow_ns = (ns("onset_unix_s"), ns("end_unix_s"));
    let text = telemetry(hash.cast_unsigned(), first_ns, last_ns, slow_ns);
    fs::write(folder.path().join(FILE), text).unwrap();
    let verdict = verdict(folder.path());
    let [link] = &verdict["incidents"].as_array().unwrap()[..] else {
        panic!("{verdict:#}")
    };
    assert_eq!(
        link["subject"]["ranks"],
        json!([3, 5]),
        "places 1 and 2 of the four"
    );
    assert_eq!(
        (&link["first_step"], &link["last_step"]),
        (&json!(5), &json!(5))
    );
    assert_eq!(link["cost_s"], incident["cost_s"]);
    assert!(
        link["text"].as_str().unwrap().contains("from rank 3 to 5"),
        "{link:#}"
    );
    assert_eq!(verdict["job"]["source"], "calls");
}

#[test]
fn what_cannot_be_read_is_reported_with_its_line_and_column() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(FILE);
    let text = telemetry(77, 0, 1000 * MS, (0, 0)).replacen(",1,2,0,", ",1,x,0,", 1);
    fs::write(&path, text).unwrap();
    let output = laggard(&path);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("at line 2, ToRank: \"x\" is not a rank"),
        "{said}"
    );
    assert!(said.contains("correct the values at that place"), "{said}");
}
