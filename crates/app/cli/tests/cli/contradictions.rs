//! What methods say differently of one incident is told, with whom to trust first.

use std::path::Path;
use std::process::Command;

use insta::assert_snapshot;
use serde_json::Value;

fn analyze(recording: &str, options: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    command.current_dir(root).arg("analyze").args(options);
    let output = command
        .arg(format!("testdata/{recording}.jsonl.zst"))
        .output();
    String::from_utf8(output.expect("laggard runs").stdout).expect("UTF-8")
}

/// Everything up to the table of stages.
fn said(recording: &str) -> String {
    let text = analyze(recording, &[]);
    text.split("\n\n").take(2).collect::<Vec<_>>().join("\n\n")
}

#[test]
fn a_rank_that_waits_for_another_stage_of_its_pipeline_is_not_to_blame() {
    assert_snapshot!(said("pipelines/slow"), @"
    laggard testdata/pipelines/slow.jsonl.zst: 4 ranks, 20 steps, 3.60 s of exposed step time in 15 analysed steps

    CRITICAL  rank 0 is slow in the backward on pipeline stage 0 in each step since step 8: 276.6 ms instead of 83.9 ms, 192.6 ms lost, 64 % of exposed step time
      host  vm
      why   the backward of microbatch 0 took 60.5 ms instead of 10.3 ms, and the pipeline had no slack for it, 12 times
      why   the backward of microbatch 1 took 60.6 ms instead of 10.3 ms, and the pipeline had no slack for it, 12 times
      why   the backward of microbatch 2 took 60.6 ms instead of 10.3 ms, and the pipeline had no slack for it, 12 times
      why   the backward of microbatch 3 took 60.6 ms instead of 10.3 ms, and the pipeline had no slack for it, 12 times
      why   own work in model.backward_cpu_wall exceeded the other ranks' by 200.9 ms a step in 12 steps; without this excess the job would have been 2.34 s faster
      why   rank 1: own work in model.fwd_loss_cpu_wall and callbacks.cpu_wall exceeded the other ranks' by 143.4 ms a step in 12 steps; without this excess the job would have been 1.73 s faster
      why   blocks of rank 1 took 818.6 ms then, blocks of the same stage in other pipelines took 815.5 ms
      but   schedule says rank 0, frontier says rank 1: trust schedule first, because it distinguishes a rank's own work from its waits for other stages
      next  profile that part of the model on rank 0: the ranks that wait for it are fine
    ");
}

#[test]
fn a_rank_that_waits_for_another_stage_does_not_hang() {
    assert_snapshot!(said("pipelines/hang"), @"
    laggard testdata/pipelines/hang.jsonl.zst: 4 ranks, 11 steps, 429.9 ms of exposed step time in 5 analysed steps

    CRITICAL  hang since step 10: rank 1 never entered ALLREDUCE #21 of group mesh_dp (rank 3 waits in it); rank 1 is in work (pipelines.py:30)
      host  vm
      why   rank 3 entered ALLREDUCE #21 of group mesh_dp; rank 1 did not
      why   rank 2 entered ALLREDUCE #21 of group mesh_dp; rank 0 did not
      why   rank 1: work (pipelines.py:30) < Work.forward (pipelines.py:36) < Part.forward (pipelines.py:51) < Module._call_impl (module.py:1798)
      why   rank 0: PipelineScheduleSingle.step (schedules.py:1190) < <module> (pipelines.py:68)
      why   ranks 2-3: _exception_logger.<locals>.wrapper (c10d_logger.py:83) < <module> (pipelines.py:72)
      why   rank 1 does not finish the forward of microbatch 0 on pipeline stage 1; everything it waits for is done
      but   schedule says rank 1, collective says rank 0: trust schedule first, because it distinguishes a rank's own work from its waits for other stages
      next  look at the stack of rank 1; the others wait for it and are fine
    ");
}

#[test]
fn the_document_names_who_says_what() {
    let verdict: Value =
        serde_json::from_str(&analyze("pipelines/slow", &["--json"])).expect("a verdict");
    let incident = &verdict["incidents"][0];
    let claims = serde_json::json!([
        {"method": "schedule", "says": "rank 0"},
        {"method": "frontier", "says": "rank 1"},
    ]);
    assert_eq!(incident["contradictions"][0]["about"], "ranks");
    assert_eq!(incident["contradictions"][0]["claims"], claims);
    assert_eq!(incident["subject"]["ranks"], serde_json::json!([0]));
    let evidence = incident["evidence"].as_array().expect("evidence");
    let of_others = evidence.iter().filter(|it| it["ranks"].is_array());
    assert_eq!(of_others.count(), 1);
    let healthy: Value =
        serde_json::from_str(&analyze("jobs/two", &["--json"])).expect("a verdict");
    assert!(healthy["incidents"][0].get("contradictions").is_none());
}

#[test]
fn the_report_tells_it_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    analyze(
        "pipelines/slow",
        &["--report", page.to_str().expect("UTF-8")],
    );
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("schedule says rank 0, frontier says rank 1: trust schedule"));
}
