//! `laggard analyze` on what-if traces: what a user reads, and what bad input is answered with.

use model::Source;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use insta::assert_snapshot;
use sim::{Drag, Pipeline};
use tempfile::TempDir;

fn pipeline(drags: Vec<Drag>) -> Pipeline {
    Pipeline {
        dp: 4,
        pp: 4,
        tp: 2,
        microbatches: 8,
        steps: 12,
        drags,
        seed: 1,
    }
}

/// A folder with `trace.parquet` and `meta.yaml`.
fn folder(pipeline: &Pipeline) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("trace.parquet"), pipeline.trace()).expect("a file");
    fs::write(folder.path().join("meta.yaml"), pipeline.meta()).expect("a file");
    folder
}

fn analyze(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    command.arg("analyze").args(arguments).current_dir(folder);
    command
        .env_remove("LAGGARD_CONFIG")
        .output()
        .expect("laggard runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn verdict(drags: Vec<Drag>) -> String {
    let output = analyze(folder(&pipeline(drags)).path(), &["trace.parquet"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn complaint(folder: &TempDir, arguments: &[&str]) -> String {
    let output = analyze(folder.path(), arguments);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout), "");
    text(&output.stderr)
}

#[test]
fn a_slow_rank() {
    assert_snapshot!(verdict(vec![Drag::Rank {
        dp_rank: 2,
        stage: 1,
        times: 1.6
    }]));
}

#[test]
fn a_heavy_stage() {
    assert_snapshot!(verdict(vec![Drag::Stage {
        stage: 3,
        times: 1.5
    }]));
}

#[test]
fn uneven_sequences() {
    assert_snapshot!(verdict(vec![Drag::Data { times: 3.0 }]));
}

#[test]
fn nothing() {
    assert_snapshot!(verdict(Vec::new()));
}

#[test]
fn the_document_reads_back() {
    let folder = folder(&pipeline(vec![Drag::Stage {
        stage: 3,
        times: 1.5,
    }]));
    let output = analyze(folder.path(), &["--json", "trace.parquet"]);
    let verdict: model::Verdict = serde_json::from_slice(&output.stdout).expect("JSON");
    let what_if = verdict.what_if.expect("a section");
    assert_eq!(
        (what_if.steps.len(), what_if.ranks.len(), what_if.peers),
        (12, 16, 2)
    );
    assert_eq!(verdict.job.source, Source::WhatIf);
    assert_eq!(verdict.incidents[0].evidence[0].label, "stage_imbalance");
}

/// The verdict on a trace that the method's authors publish, if it is there.
#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
fn published(name: &str) -> Option<model::Verdict> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let folder = root.join("../shared/data/whatif");
    let trace = format!("trace-{name}.parquet");
    if !folder.join(&trace).exists() {
        println!("skipped: {trace} is not in {}", folder.display());
        return None;
    }
    let output = analyze(&folder, &["--json", &trace]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

#[test]
fn the_published_slow_worker_is_named() {
    let Some(verdict) = published("AR") else {
        return;
    };
    let [incident] = &verdict.incidents[..] else {
        panic!("{:#?}", verdict.incidents)
    };
    assert_eq!(
        (
            &incident.subject.ranks[..],
            incident.subject.stage.as_deref()
        ),
        (&[0][..], Some("pipeline stage 0"))
    );
    assert!(
        incident.text.contains("or one of its peers 1-3"),
        "{}",
        incident.text
    );
    let what_if = verdict.what_if.expect("a section");
    let slow = |rank: &&model::RankSlowdown| rank.slowdown.is_some_and(|it| it > 1.02);
    let slow: Vec<u32> = what_if
        .ranks
        .iter()
        .filter(slow)
        .map(|it| it.rank)
        .collect();
    assert_eq!((slow, what_if.steps.len()), (vec![0], 44));
}

#[test]
fn the_published_heavy_stage_is_named_and_no_rank() {
    let Some(verdict) = published("ST") else {
        return;
    };
    let [incident] = &verdict.incidents[..] else {
        panic!("{:#?}", verdict.incidents)
    };
    assert_eq!(
        (
            &incident.subject.ranks[..],
            incident.subject.stage.as_deref()
        ),
        (&[][..], Some("pipeline stage 3"))
    );
    let what_if = verdict.what_if.expect("a section");
    let mut ranks = what_if.ranks.clone();
    ranks.sort_by(|a, b| b.slowdown.partial_cmp(&a.slowdown).expect("numbers"));
    assert_eq!([ranks[0].rank, ranks[1].rank], [7, 6]);
    // The embedding's reduction slows most in two of the steps only.
    let types = &what_if.stragglers.as_ref().expect("a section").op_types;
    let most = |at: usize| {
        let types = types.iter();
        let most = types.max_by(|a, b| a.step_slowdowns[at].total_cmp(&b.step_slowdowns[at]));
        most.map(|it| it.name.clone())
    };
    let steps = what_if.steps.iter().enumerate();
    let embedding =
        steps.filter(|(at, _)| most(*at).as_deref() == Some("embedding-grads-all-reduce"));
    assert_eq!(
        embedding.map(|(_, step)| *step).collect::<Vec<_>>(),
        [23, 25]
    );
}

#[test]
fn metadata_that_lies_elsewhere_is_named() {
    let folder = folder(&pipeline(Vec::new()));
    fs::rename(folder.path().join("meta.yaml"), folder.path().join("sizes")).expect("a file");
    assert_snapshot!(complaint(&folder, &["trace.parquet"]));
    let output = analyze(folder.path(), &["trace.parquet", "--meta", "sizes"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn metadata_that_disagrees_is_refused() {
    let folder = folder(&pipeline(Vec::new()));
    let path = folder.path().join("meta.yaml");
    let meta = fs::read_to_string(&path).expect("a file");
    let wider = meta.replace("world_size: 32", "world_size: 64");
    let said = [
        meta.replace("pp_size: 4", "pp_size: 8"),
        wider.replace("pp_size: 4", "pp_size: 8"),
        meta.replace("dp_size: 4\n", ""),
        meta.replace("dp_size: 4", "dp_size: four"),
        meta.replace("dp_size: 4", "dp_size: [4"),
    ]
    .map(|meta| {
        fs::write(&path, meta).expect("a file");
        complaint(&folder, &["trace.parquet"])
    });
    assert_snapshot!(said.concat());
}

#[test]
fn a_trace_that_is_cut_off_is_refused() {
    let folder = folder(&pipeline(Vec::new()));
    let path = folder.path().join("trace.parquet");
    let bytes = fs::read(&path).expect("a file");
    fs::write(&path, &bytes[..bytes.len() / 2]).expect("a file");
    assert_snapshot!(complaint(&folder, &["trace.parquet"]));
}

#[test]
fn the_report_draws_the_heat_map() {
    let folder = folder(&pipeline(vec![Drag::Rank {
        dp_rank: 2,
        stage: 1,
        times: 1.6,
    }]));
    let output = analyze(folder.path(), &["--report", "report.html", "trace.parquet"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = fs::read_to_string(folder.path().join("report.html")).expect("a report");
    assert_eq!(page.matches(r#"class="cold""#).count(), 16);
    assert!(page.contains("<title>rank 12 (dp 2, stage 1): 1."));
}
