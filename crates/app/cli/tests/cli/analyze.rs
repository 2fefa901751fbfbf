//! `laggard analyze`: verdicts on recordings as a user reads them, and what bad input is
//! answered with.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use insta::assert_snapshot;

/// The repository's root: recordings are named relative to it.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn analyze(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    command.arg("analyze").args(arguments).current_dir(root());
    command
        .env_remove("LAGGARD_CONFIG")
        .output()
        .expect("laggard runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn verdict(recording: &str) -> String {
    let output = analyze(&[&format!("testdata/jobs/{recording}.jsonl.zst")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Analyzes a file with these bytes in it and returns what is said about it.
fn complaint(name: &str, bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    fs::write(&path, bytes).expect("a file");
    complaint_about(&path)
}

fn complaint_about(path: &Path) -> String {
    let output = analyze(&[path.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout), "");
    let folder = path.parent().expect("a folder").to_str().expect("UTF-8");
    text(&output.stderr).replace(folder, "FOLDER")
}

/// What is said of the job with the slow data loader if hosts tell this too.
fn verdict_with(lines: &[u8]) -> String {
    let packed = fs::read(root().join("testdata/jobs/data.jsonl.zst")).expect("a file");
    let mut recording = zstd::decode_all(packed.as_slice()).expect("zstd");
    recording.extend_from_slice(lines);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("job.jsonl");
    fs::write(&path, recording).expect("a file");
    text(&analyze(&[path.to_str().expect("UTF-8")]).stdout)
}

#[test]
fn a_slow_data_loader() {
    assert_snapshot!(verdict("data"), @"
    laggard testdata/jobs/data.jsonl.zst: 4 ranks, 70 steps, 5.48 s of exposed step time in 65 analysed steps

    CRITICAL  rank 2 is late in data.next_wait: 50.0 ms a step, 59 % of exposed step time since step 5
      host  vm
      why   own work in data.next_wait exceeded the other ranks' by 50.0 ms a step in 65 steps; without this excess the job would have been 3.22 s faster
      next  look at rank 2's data loader: storage, decoding, worker processes, CPU cores

    stage                      exposed  share   gain  last to arrive
    data.next_wait              3.32 s   61 %    0 %  rank 2
    model.fwd_loss_cpu_wall   540.1 ms   10 %    0 %  rank 2
    model.backward_cpu_wall     1.36 s   25 %    0 %  rank 2
    callbacks.cpu_wall         41.6 ms    1 %    0 %  -
    optim.step_cpu_wall       212.7 ms    4 %    0 %  -
    step.other_cpu_wall         5.3 ms    0 %    0 %  rank 2
    ");
}

#[test]
fn what_hosts_say_of_the_processes_stands_beside_what_stages_say() {
    let mut lines = Vec::new();
    for (rank, cores, without) in [(0, 0.97, 0.02), (1, 0.98, 0.03), (2, 0.31, 0.69)] {
        // The second one is of steps after the incident.
        for (first_step, part) in [(20, 1.0), (900, 0.0)] {
            let usage = format!(
                r#"{{"lasted_s":10.0,"cores":{},"cores_deviation":0.05,"without_core_share":{}}}"#,
                cores * part,
                without * part,
            );
            let steps = format!(
                r#""first_step":{first_step},"last_step":{}"#,
                first_step + 9
            );
            let line = format!(r#"{{"is":"usage","rank":{rank},{steps},"usage":{usage}}}"#);
            writeln!(lines, "{line}").expect("room");
        }
    }
    let said = verdict_with(&lines);
    let of_host: Vec<&str> = said.lines().filter(|line| line.contains("core")).collect();
    assert_eq!(
        of_host,
        [
            "  why   the loop of rank 2 waited for a core for 69 % of the time, its peers' for 2.5 \
         %; the process of rank 2 kept 0.31 cores busy (deviation 0.05), its peers' 0.97",
            "  next  on rank 2, look at what limits or shares its cores: CPU affinity, cgroup limits, other \
         processes",
        ]
    );
}

#[test]
fn what_hosts_say_of_devices_stands_beside_it_and_advises() {
    let mut lines = Vec::new();
    for rank in 0..4 {
        let (heat, mhz) = if rank == 2 { (0.78, 1005) } else { (0.0, 1980) };
        let mean = |value: f64| format!(r#"{{"value":{value},"over_s":10.0}}"#);
        let gauges = format!(
            r#""heat_share":{},"clock_mhz":{}"#,
            mean(heat),
            mean(f64::from(mhz))
        );
        let usage = format!(r#"{{"device":{{"gpu":{rank}}},"gauges":{{{gauges}}}}}"#);
        let steps = r#""first_step":20,"last_step":29"#;
        writeln!(
            lines,
            r#"{{"is":"device","ranks":[{rank}],{steps},"usage":{usage}}}"#
        )
        .expect("room");
    }
    // All ranks share it: it says nothing of one of them.
    let shared = r#"{"device":{"card":"eth0"},"errors":{"rx_errors":7}}"#;
    writeln!(
        lines,
        r#"{{"is":"device","ranks":[0,1,2,3],"first_step":20,"last_step":29,"usage":{shared}}}"#
    )
    .expect("room");
    let said = verdict_with(&lines);
    let of_device: Vec<&str> = said
        .lines()
        .filter(|line| ["GPU", "eth0"].iter().any(|device| line.contains(device)))
        .collect();
    assert_eq!(
        of_device,
        [
            "  why   heat slowed the GPU of rank 2 down for 78 % of the time, its peers' for 0.0 %; it \
             ran at 1005 MHz, its peers' at 1980 MHz",
            "  next  on rank 2, look at the cooling of the GPU",
        ]
    );
}

/// What is said of two ranks that are profiled from step 40 on, of which rank 1 stops before a
/// collective at 10 s, and nothing moves until so many seconds; `more` marks of it are told.
fn said_of_a_window(more: &[(u64, u8)], until_s: u64) -> String {
    let mut lines = vec![
        r#"{"schema":"laggard.marks/1","job":"job"}"#.to_owned(),
        r#"{"is":"group","group":1,"name":"default","members":[0,1]}"#.to_owned(),
        r#"{"is":"profile_ordered","ranks":[0,1],"first_step":40,"steps":10}"#.to_owned(),
        "[0,10000000000,40,14,1,3,1,0,47]".to_owned(),
        "[1,10000000000,40,14,1,3,1,0,46]".to_owned(),
    ];
    // Profilers begin (20) and end (21).
    lines.extend(
        more.iter()
            .map(|(at_s, kind)| format!("[1,{at_s}000000000,40,{kind},1,0]")),
    );
    let quiet = |at_s| format!(r#"{{"is":"quiet","at":{at_s}000000000}}"#);
    lines.extend((11..=until_s).map(quiet));
    lines.push(r#"{"is":"stacks_told"}"#.to_owned());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("job.jsonl");
    fs::write(&path, lines.join("\n")).expect("a file");
    text(&analyze(&[path.to_str().expect("UTF-8")]).stdout)
}

#[test]
fn a_hang_in_a_profile_window_is_reported_but_not_that_a_profiler_starts() {
    let reported = "hang since step 40: rank 1 never entered ALLREDUCE #47 of group default";
    assert!(said_of_a_window(&[], 13).contains(reported));
    assert!(said_of_a_window(&[(10, 20), (11, 21)], 14).contains(reported));
    let starts = said_of_a_window(&[(10, 20)], 20);
    assert!(!starts.contains("hang"), "{starts}");
    assert!(
        said_of_a_window(&[(10, 20)], 45).contains(reported),
        "it never comes back from it"
    );
}

#[test]
fn a_fault_hidden_behind_another() {
    assert_snapshot!(verdict("two"), @"
    laggard testdata/jobs/two.jsonl.zst: 4 ranks, 70 steps, 5.53 s of exposed step time in 65 analysed steps

    CRITICAL  rank 2 is late in data.next_wait: 50.0 ms a step, 58 % of exposed step time since step 5; next in line: rank 0 in model.fwd_loss_cpu_wall (45.0 ms a step); fixing the first alone saves 330.7 ms, the second alone nothing, both 3.23 s
      host  vm
      why   own work in data.next_wait exceeded the other ranks' by 50.0 ms a step in 65 steps; without this excess the job would have been 330.7 ms faster
      next  look at rank 2's data loader: storage, decoding, worker processes, CPU cores

    INFO  rank 0 is late in model.fwd_loss_cpu_wall: 45.0 ms a step, 0 % of exposed step time since step 5; hidden behind a later rank for now
      host  vm
      why   own work in model.fwd_loss_cpu_wall exceeded the other ranks' by 45.0 ms a step in 65 steps; without this excess the job would have been no faster
      next  compare rank 0's device clocks, CPU cores and input sizes with those of its peers, and profile its forward pass

    stage                      exposed  share   gain  last to arrive
    data.next_wait              3.32 s   60 %    0 %  rank 2
    model.fwd_loss_cpu_wall   538.9 ms   10 %    0 %  rank 2
    model.backward_cpu_wall     1.42 s   26 %    0 %  rank 2
    callbacks.cpu_wall         41.5 ms    1 %    0 %  -
    optim.step_cpu_wall       212.3 ms    4 %    0 %  -
    step.other_cpu_wall         5.0 ms    0 %    0 %  rank 2
    ");
}

#[test]
fn a_fault_that_strikes_every_tenth_step() {
    assert_snapshot!(verdict("periodic"), @"
    laggard testdata/jobs/periodic.jsonl.zst: 4 ranks, 70 steps, 3.51 s of exposed step time in 65 analysed steps

    CRITICAL  rank 2 is late in data.next_wait every 10 steps: 200.1 ms each time, 36 % of exposed step time since step 10
      host  vm
      why   own work in data.next_wait exceeded the other ranks' by 200.1 ms a step in 6 steps; without this excess the job would have been 1.20 s faster
      next  look at rank 2's data loader: storage, decoding, worker processes, CPU cores; look for what happens every 10 steps

    stage                      exposed  share   gain  last to arrive
    data.next_wait              1.28 s   36 %    0 %  -
    model.fwd_loss_cpu_wall   553.5 ms   16 %    0 %  -
    model.backward_cpu_wall     1.41 s   40 %    2 %  -
    callbacks.cpu_wall         43.9 ms    1 %    0 %  -
    optim.step_cpu_wall       213.8 ms    6 %    0 %  -
    step.other_cpu_wall         7.2 ms    0 %    0 %  -
    ");
}

#[test]
fn a_fault_that_rotates() {
    assert_snapshot!(verdict("rotating"), @"
    laggard testdata/jobs/rotating.jsonl.zst: 4 ranks, 70 steps, 5.61 s of exposed step time in 65 analysed steps

    CRITICAL  lateness in data.next_wait rotates: a different rank is late from step to step, 50.1 ms a step, 57 % of exposed step time since step 5
      why   own work in data.next_wait exceeded the other ranks' by 50.1 ms a step in 65 steps; without this excess the job would have been 3.22 s faster
      next  look at what the ranks share rather than at one of them: storage, network, CPU cores, garbage collection

    stage                      exposed  share   gain  last to arrive
    data.next_wait              3.32 s   59 %    0 %  -
    model.fwd_loss_cpu_wall   543.0 ms   10 %    0 %  -
    model.backward_cpu_wall     1.47 s   26 %    1 %  -
    callbacks.cpu_wall         47.9 ms    1 %    0 %  -
    optim.step_cpu_wall       217.6 ms    4 %    0 %  -
    step.other_cpu_wall         7.9 ms    0 %    0 %  -
    ");
}

#[test]
fn a_slow_backward_under_fsdp2() {
    assert_snapshot!(verdict("backward_fsdp2"), @"
    laggard testdata/jobs/backward_fsdp2.jsonl.zst: 4 ranks, 70 steps, 7.88 s of exposed step time in 65 analysed steps

    CRITICAL  rank 2 is late in model.backward_cpu_wall, before it issues REDUCE_SCATTER_BASE: 49.7 ms a step, 41 % of exposed step time since step 5
      host  vm
      why   own work in model.backward_cpu_wall exceeded the other ranks' by 49.7 ms a step in 65 steps; without this excess the job would have been 3.26 s faster
      next  compare rank 2's device clocks and CPU cores with those of its peers, and look for gradient hooks that only it runs

    stage                      exposed  share   gain  last to arrive
    data.next_wait            115.2 ms    1 %    0 %  -
    model.fwd_loss_cpu_wall     1.39 s   18 %    2 %  -
    model.backward_cpu_wall     6.03 s   77 %    3 %  rank 2
    callbacks.cpu_wall         62.5 ms    1 %    0 %  -
    optim.step_cpu_wall       273.1 ms    3 %    0 %  -
    ");
}

#[test]
fn a_slow_callback_that_nobody_waits_for() {
    assert_snapshot!(verdict("callback"), @"
    laggard testdata/jobs/callback.jsonl.zst: 4 ranks, 70 steps, 5.60 s of exposed step time in 65 analysed steps

    CRITICAL  rank 2 is late in callbacks.cpu_wall, between optimizer and the next batch: 50.0 ms a step, 57 % of exposed step time since step 4
      host  vm
      why   own work in callbacks.cpu_wall exceeded the other ranks' by 50.0 ms a step in 65 steps; without this excess the job would have been 3.19 s faster
      next  look at what only rank 2 does between steps: logging, checkpoints, evaluation

    stage                      exposed  share   gain  last to arrive
    data.next_wait             97.9 ms    2 %    0 %  rank 2
    model.fwd_loss_cpu_wall   555.9 ms   10 %    0 %  rank 2
    model.backward_cpu_wall     1.42 s   25 %    0 %  rank 2
    callbacks.cpu_wall          3.29 s   59 %    0 %  rank 2
    optim.step_cpu_wall       223.6 ms    4 %    0 %  -
    step.other_cpu_wall        12.0 ms    0 %    0 %  rank 2
    ");
}

#[test]
fn a_healthy_job() {
    assert_snapshot!(verdict("none"), @"
    laggard testdata/jobs/none.jsonl.zst: 4 ranks, 70 steps, 2.39 s of exposed step time in 65 analysed steps

    HEALTHY  no rank and no stage stands out

    stage                      exposed  share   gain  last to arrive
    data.next_wait             83.3 ms    3 %    0 %  -
    model.fwd_loss_cpu_wall   576.4 ms   24 %    0 %  -
    model.backward_cpu_wall     1.46 s   61 %    4 %  -
    callbacks.cpu_wall         44.7 ms    2 %    0 %  -
    optim.step_cpu_wall       219.9 ms    9 %    0 %  -
    step.other_cpu_wall         8.3 ms    0 %    0 %  -
    ");
}

#[test]
fn the_document_of_a_verdict() {
    let output = analyze(&["--json", "testdata/jobs/data.jsonl.zst"]);
    assert_snapshot!("document", text(&output.stdout));
}

#[test]
fn several_recordings_are_one_document() {
    let output = analyze(&["--json", "testdata/jobs"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(document["schema"], "laggard.verdicts/1");
    assert_eq!(document["verdicts"].as_array().map(Vec::len), Some(7));
    assert_eq!(document["verdicts"][0]["schema"], "laggard.verdict/1");
}

#[test]
fn fail_on_exits_with_one_from_its_severity_on() {
    let code = |severity, recording| {
        let path = format!("testdata/jobs/{recording}.jsonl.zst");
        analyze(&["--fail-on", severity, &path]).status.code()
    };
    assert_eq!(code("critical", "data"), Some(1));
    assert_eq!(code("info", "data"), Some(1));
    assert_eq!(code("info", "none"), Some(0));
}

#[test]
fn a_report_that_cannot_be_written_is_an_error() {
    let output = analyze(&["--report", "/proc/no.html", "testdata/jobs/data.jsonl.zst"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/proc/no.html"));
}

/// What a folder of Flight Recorder dumps and stacks must say, where they are at hand.
const DUMPS: [(&str, &str); 15] = [
    (
        "gloo_missing",
        "rank 2 never entered ALLREDUCE #11 of group default (ranks 0-1,3 wait in it); rank 2 is in load_batch (fr_hang.py:30)",
    ),
    (
        "gloo_hold_gil",
        "rank 1 never entered ALLREDUCE #11 of group default",
    ),
    (
        "gloo_python_spin",
        "rank 1 never entered ALLREDUCE #11 of group default",
    ),
    (
        "gloo_type",
        "rank 3 entered BROADCAST where the others entered ALLREDUCE #11",
    ),
    (
        "gloo_order",
        "ranks 0-1 wait for one another: ranks 1-3 in ALLREDUCE #11 of group default without rank 0; rank 0 in ALLREDUCE #6 of group tp without rank 1",
    ),
    ("gloo_size", "rank 1 entered ALLREDUCE [[256,64]]"),
    (
        "gloo_dtype",
        "rank 1 entered ALLREDUCE [[128,64]] [\"Double\"]",
    ),
    ("hook_size", "rank 1 entered ALLREDUCE [[8,4]]"),
    ("hook_dtype", "rank 1 entered ALLREDUCE [[16,4]] [\"Half\"]"),
    (
        "hook_type",
        "rank 3 entered BROADCAST where the others entered ALLREDUCE #4",
    ),
    (
        "hook_missing",
        "rank 2 never entered ALLREDUCE #4 of group default",
    ),
    (
        "hook_type_r0",
        "rank 0 entered BROADCAST where the others entered ALLREDUCE #4",
    ),
    ("hook_size_r0", "rank 0 entered ALLREDUCE [[8,4]]"),
    (
        "nccl_shape_missing",
        "rank 2 never entered ALLREDUCE #4 of group default",
    ),
    ("hook_p2p", "NOTHING STUCK"),
];

#[test]
fn dumps_of_hung_jobs_name_the_culprit() {
    let dumps = root().join("../shared/data/flight_recorder");
    if !dumps.is_dir() {
        println!("skipped: no dumps at {}", dumps.display());
        return;
    }
    for (folder, sentence) in DUMPS {
        let output = analyze(&[dumps.join(folder).to_str().expect("UTF-8")]);
        let said = text(&output.stdout);
        assert!(said.contains(sentence), "{folder}: {said}");
    }
}

/// What jobs printed before they died. Who is behind is named; who printed nothing is no culprit.
#[test]
fn logs_of_dead_jobs_say_as_much_as_their_lines_do() {
    for (log, sentence) in [
        (
            "behind",
            "rank 1 never entered BROADCAST #78 of group default",
        ),
        (
            "silent",
            "CRITICAL  rank 1 raised RuntimeError: DataLoader worker",
        ),
        (
            "killed",
            "CRITICAL  rank 1 was killed by signal 9 (SIGKILL)\n",
        ),
        (
            "folded",
            "rank 1 never entered BROADCAST #78 of group default (ranks 0,2-3 wait in it)",
        ),
        (
            "sizes",
            "rank 2 entered ALLREDUCE (512 elements) where the others entered ALLREDUCE #78 of \
             group default (1024 elements)",
        ),
        (
            "idle",
            "NO VERDICT  the logs do not show which rank failed first, or which one the others waited for",
        ),
        (
            "device",
            "which does not end: laggard cannot determine which device holds it up",
        ),
        (
            "other",
            "rank 2 entered ALLGATHER_BASE where the others entered ALLREDUCE #78",
        ),
    ] {
        let path = root().join(format!("testdata/watchdog/{log}.log"));
        let output = analyze(&[path.to_str().expect("UTF-8")]);
        let said = text(&output.stdout);
        assert!(said.contains(sentence), "{log}: {said}");
        assert_eq!(
            said.contains("rank 1 raised: RuntimeError: DataLoader worker"),
            log == "silent"
        );
    }
}

/// The recorded dumps without those of one rank: the one that never came, or one that waits.
#[test]
fn dumps_of_which_one_is_lost_still_tell() {
    let dumps = root().join("../shared/data/flight_recorder");
    if !dumps.is_dir() {
        println!("skipped: no dumps at {}", dumps.display());
        return;
    }
    for (folder, lost, sentence) in [
        (
            "gloo_missing",
            2,
            "ranks 0-1,3 wait in ALLREDUCE #11 of group default for rank 2 (not recorded",
        ),
        (
            "gloo_missing",
            0,
            "rank 2 never entered ALLREDUCE #11 of group default (ranks 1,3 wait in it)",
        ),
        (
            "hook_missing",
            2,
            "ranks 0-1,3 wait in ALLREDUCE #4 of group default for rank 2 (not recorded",
        ),
        (
            "nccl_shape_missing",
            2,
            "ranks 0-1,3 wait in ALLREDUCE #4 of group default for rank 2 (not recorded",
        ),
        (
            "nccl_shape_missing",
            0,
            "rank 2 never entered ALLREDUCE #4 of group default (ranks 1,3 wait in it)",
        ),
    ] {
        let files: Vec<PathBuf> = std::fs::read_dir(dumps.join(folder))
            .expect("a folder")
            .map(|file| file.expect("a file").path())
            .filter(|path| path.extension().is_none_or(|it| it != "txt"))
            .filter(|path| {
                let name = path.file_name().expect("a name").to_string_lossy();
                let stem = name.split('.').next().unwrap_or_default();
                !stem.ends_with(&format!("rank_{lost}"))
            })
            .collect();
        let files: Vec<&str> = files.iter().filter_map(|path| path.to_str()).collect();
        let said = text(&analyze(&files).stdout);
        assert!(said.contains(sentence), "{folder} without {lost}: {said}");
    }
}

/// Dumps of rank 0 to `ranks`, one in each of them if it is `there`: all wait in a collective
/// that the others never entered.
fn dumps_without(there: &[u32], ranks: u32) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let members: Vec<u32> = (0..ranks).collect();
    for rank in there {
        let entry = |group: &str, number: u64, state: &str| {
            format!(
                r#"{{"process_group": ["{group}", "default_pg"], "record_id": {number},
                    "collective_seq_id": {number}, "profiling_name": "nccl:all_reduce",
                    "time_created_ns": 1, "state": "{state}"}}"#
            )
        };
        let entries = [entry("0", 10, "completed"), entry("0", 11, "started")].join(", ");
        let text = format!(
            r#"{{"version": "2.10", "entries": [{entries}],
                "pg_config": {{"0": {{"name": "0", "ranks": "{members:?}"}}}}}}"#
        );
        let name = format!("dump_rank_{rank}.json");
        std::fs::write(folder.path().join(name), text).expect("it is written");
    }
    text(&analyze(&[folder.path().to_str().expect("UTF-8")]).stdout)
}

#[test]
fn a_rank_that_left_no_dump_is_waited_for() {
    let unseen =
        |ranks: &str| format!("ALLREDUCE #11 of group default for {ranks} (not recorded here)");
    let said = dumps_without(&[0, 1, 3], 4);
    assert!(
        said.contains(&format!("ranks 0-1,3 wait in {}", unseen("rank 2"))),
        "{said}"
    );
    let said = dumps_without(&[0, 1], 4);
    assert!(
        said.contains(&format!("ranks 0-1 wait in {}", unseen("ranks 2-3"))),
        "{said}"
    );
    let said = dumps_without(&[0, 1, 2, 3], 4);
    assert!(said.contains("NOTHING STUCK"), "{said}");
}

#[test]
fn a_dump_of_another_version_is_refused() {
    let dump = br#"{"version": "3.0", "pg_config": {}, "entries": []}"#;
    assert_snapshot!(complaint("dump_rank_0.json", dump), @"
    laggard: FOLDER/dump_rank_0.json, at version: version 3.0 of the dump, laggard reads 2.x
      correct the values at that place and run again
    ");
}

#[test]
fn a_pickle_with_code_in_it_is_refused() {
    assert_snapshot!(complaint("dump_rank_0", b"\x80\x02cos\nsystem\n."), @"
    laggard: FOLDER/dump_rank_0, at byte 3: opcode 0x63 has no place in a dump
      correct the values at that place and run again
    ");
}

#[test]
fn a_dump_whose_name_has_no_rank() {
    let dump = br#"{"version": "2.10", "pg_config": {}, "entries": []}"#;
    assert_snapshot!(complaint("dump.json", dump), @"
    laggard: FOLDER/dump.json: its name does not end with the number of a rank
      rename it, as in dump_rank_3.json or stack_rank_3.txt
    ");
}

const MATRIX: &str = r#"{"schema": "stage-matrix/1", "unit": "s",
    "stages": ["data.next_wait", "model.fwd_loss_cpu_wall"], "matrix": "#;

fn matrix_complaint(rows: &str) -> String {
    complaint("matrix.json", format!("{MATRIX}{rows}}}").as_bytes())
}

#[test]
fn a_missing_file() {
    assert_snapshot!(complaint_about(Path::new("/nowhere/at-all.json")), @"laggard: failed to read FOLDER/at-all.json: No such file or directory (os error 2)");
}

#[test]
fn an_empty_file() {
    assert_snapshot!(complaint("empty.json", b""), @r#"
    laggard: FOLDER/empty.json is not a recording laggard knows: it is empty
      laggard analyze reads stage matrices (JSON with "schema": "stage-matrix/1"), mark events (a JSON list of [time_ns, kind] per rank), recordings of laggard run and laggard serve, traces of PyTorch's profiler and of Nsight Systems (SQLite), Flight Recorder dumps, py-spy stacks, replies of NCCL's RAS, logs of NCCL Inspector, logs of NCCL calls, telemetry of work requests, output of jobs with PyTorch's NCCL watchdog and what-if traces (Parquet), plain or as .gz, .xz, .zst; docs/formats.md shows them
    "#);
}

#[test]
fn a_file_that_is_something_else() {
    assert_snapshot!(complaint("photo.json", b"\x89PNG\r\n\x1a\n\0\0"), @r#"
    laggard: FOLDER/photo.json is not a recording laggard knows: it begins with '\u{89}' (byte 137)
      laggard analyze reads stage matrices (JSON with "schema": "stage-matrix/1"), mark events (a JSON list of [time_ns, kind] per rank), recordings of laggard run and laggard serve, traces of PyTorch's profiler and of Nsight Systems (SQLite), Flight Recorder dumps, py-spy stacks, replies of NCCL's RAS, logs of NCCL Inspector, logs of NCCL calls, telemetry of work requests, output of jobs with PyTorch's NCCL watchdog and what-if traces (Parquet), plain or as .gz, .xz, .zst; docs/formats.md shows them
    "#);
}

#[test]
fn a_ragged_matrix() {
    assert_snapshot!(matrix_complaint("[[[1, 2], [1]]]"), @"
    laggard: FOLDER/matrix.json, at matrix[0][1]: 1 values for 2 stages
      correct the values at that place and run again
    ");
    assert_snapshot!(matrix_complaint("[[[1, 2], [1, 2]], [[1, 2]]]"), @"
    laggard: FOLDER/matrix.json, at matrix[1]: 1 ranks, the first step has 2
      correct the values at that place and run again
    ");
}

#[test]
fn a_negative_duration() {
    assert_snapshot!(matrix_complaint("[[[1, 2], [1, -2]]]"), @"
    laggard: FOLDER/matrix.json, at matrix[0][1][1]: -2 is not a duration
      correct the values at that place and run again
    ");
}

#[test]
fn a_duration_that_is_no_number() {
    assert_snapshot!(matrix_complaint("[[[1, 2], [1, NaN]]]"), @"
    laggard: FOLDER/matrix.json, line 2, column 86, at matrix[0][1][1]: expected value
      write the file again: it is cut off or damaged at that place
    ");
    assert_snapshot!(matrix_complaint("[[[1, 2], [1, \"2\"]]]"), @r#"
    laggard: FOLDER/matrix.json, line 2, column 88, at matrix[0][1][1]: invalid type: string "2", expected f64
      write the file again: it is cut off or damaged at that place
    "#);
    assert_snapshot!(matrix_complaint("[[[1, 2], [1, 1e999]]]"), @"
    laggard: FOLDER/matrix.json, line 2, column 91, at matrix[0][1][1]: number out of range
      write the file again: it is cut off or damaged at that place
    ");
}

#[test]
fn a_matrix_without_steps() {
    assert_snapshot!(matrix_complaint("[]"), @"
    laggard: FOLDER/matrix.json, at matrix: no step or no stage
      correct the values at that place and run again
    ");
}

#[test]
fn a_schema_of_another_version() {
    let text = format!("{MATRIX}[[[1, 2]]]}}").replace("matrix/1", "matrix/9");
    assert_snapshot!(complaint("new.json", text.as_bytes()), @r#"
    laggard: FOLDER/new.json, at schema: expected "stage-matrix/1", found "stage-matrix/9"
      correct the values at that place and run again
    "#);
}

#[test]
fn a_recording_of_a_later_version() {
    let journal = b"{\"schema\":\"laggard.marks/2\",\"job\":\"j\"}\n[0]\n";
    assert_snapshot!(complaint("journal.jsonl", journal), @r#"
    laggard: FOLDER/journal.jsonl, at schema: "laggard.marks/2" is not a recording that this version reads
      correct the values at that place and run again
    "#);
}

#[test]
fn a_folder_is_searched_and_what_is_no_recording_is_skipped() {
    let folder = tempfile::tempdir().expect("a folder");
    let matrix = format!("{MATRIX}{:?}}}", vec![vec![vec![0.5, 0.5]; 2]; 9]);
    for (name, text) in [
        ("config.json", r#"{"lr": 0.1, "layers": [1, 2]}"#),
        ("losses.json", "[3.5, 2.5]"),
        ("matrix.json", &matrix),
        ("notes.txt", "slow today"),
        ("other.json", r#"{"schema": "somebody/1"}"#),
    ] {
        fs::write(folder.path().join(name), text).expect("a file");
    }
    let path = folder.path().to_str().expect("UTF-8");
    let output = analyze(&[path]);
    assert!(output.status.success());
    assert!(text(&output.stdout).contains("matrix.json: 2 ranks, 9 steps"));
    assert_snapshot!(text(&output.stderr).replace(path, "FOLDER"), @r#"
    laggard: skipped: FOLDER/config.json is not a recording laggard knows: it is a JSON object without a schema
    laggard: skipped: FOLDER/losses.json is not a recording laggard knows: it is neither a JSON list of lists nor output of a watchdog, a launcher or PyTorch's checks of collectives
    laggard: skipped: FOLDER/notes.txt is not a recording laggard knows: it is text, and no line of it is a launcher's, a watchdog's or NCCL's
    laggard: skipped: FOLDER/other.json is not a recording laggard knows: its schema is "somebody/1"
    "#);
}

#[test]
fn a_matrix_that_was_cut_off() {
    let text = format!("{MATRIX}[[[1, 2], [1, ");
    assert_snapshot!(complaint("cut.json", text.as_bytes()), @"
    laggard: FOLDER/cut.json, line 2, column 85, at matrix[0][1]: EOF while parsing a value
      write the file again: it is cut off or damaged at that place
    ");
}

#[test]
fn a_journal_with_a_line_that_is_no_mark() {
    let journal = b"{\"schema\":\"laggard.marks/1\",\"job\":\"j\"}\n[0,1,2]\n[0]\n";
    assert_snapshot!(complaint("journal.jsonl", journal), @"
    laggard: FOLDER/journal.jsonl, at line 2: a mark has at least 6 numbers, this one 3
      correct the values at that place and run again
    ");
}

#[test]
fn a_journal_of_a_job_that_never_began() {
    let journal = b"{\"schema\":\"laggard.marks/1\",\"job\":\"j\"}\n";
    assert_snapshot!(complaint("journal.jsonl", journal), @"
    laggard: FOLDER/journal.jsonl: the job ended before laggard saw a rank of it
      look at the output of the job
    ");
}

#[test]
fn settings_with_a_key_nobody_knows() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("settings.toml");
    fs::write(&path, "[window]\nwarmup = 3\n").expect("a file");
    let path = path.to_str().expect("UTF-8");
    let output = analyze(&["--config", path, "testdata/jobs/data.jsonl.zst"]);
    assert_eq!(output.status.code(), Some(2));
    assert_snapshot!(text(&output.stderr).replace(path, "SETTINGS"), @"
    laggard: failed to read settings SETTINGS: TOML parse error at line 2, column 1
      |
    2 | warmup = 3
      | ^^^^^^
    unknown field `warmup`, expected one of `warmup_steps`, `steps`, `min_s`, `max_s`, `min_steps`, `published_cut`
    ");
}

/// A gigabyte that begins like a recording is refused at once, and in little memory.
#[test]
fn a_gigabyte_of_garbage() {
    let beginnings = [
        "",
        "{",
        "[",
        "{\"a\":\"",
        "[[[1,\"",
        "{\"schema\":\"laggard.marks/1\",\"job\":\"j\"}\n",
    ];
    let folder = tempfile::tempdir().expect("a folder");
    for beginning in beginnings {
        let path = folder.path().join("garbage.json");
        let mut file = File::create(&path).expect("a file");
        file.write_all(beginning.as_bytes()).expect("a beginning");
        file.set_len(1 << 30).expect("room");
        let shell = format!(
            "ulimit -v 262144; exec {} analyze {}",
            env!("CARGO_BIN_EXE_laggard"),
            path.display()
        );
        let output = Command::new("sh")
            .args(["-c", &shell])
            .output()
            .expect("a shell");
        assert_eq!(output.status.code(), Some(2), "{beginning:?}");
        assert!(
            text(&output.stderr).contains("garbage.json"),
            "{beginning:?}"
        );
    }
}
