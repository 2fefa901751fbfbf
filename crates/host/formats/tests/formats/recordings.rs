//! Verdicts on recordings of real jobs with known truth, where they are at hand.

use std::fs;
use std::path::PathBuf;

use laggard_formats::{JournalWriter, Limits, Recording, load};
use verdict::Settings;

const DATA: &str = "data.next_wait";
const FORWARD: &str = "model.fwd_loss_cpu_wall";
const BACKWARD: &str = "model.backward_cpu_wall";
const CALLBACKS: &str = "callbacks.cpu_wall";
const OPTIMIZER: &str = "optim.step_cpu_wall";
const DELAY_S: f64 = 0.12;

/// What a job's first incident must say.
enum Truth {
    /// Rank 2 is late in this stage in each step, or in each of several micro-steps.
    Late(&'static str, f64),
    /// No rank stands out, though the stage costs this much a step.
    NoRank(&'static str, &'static str),
    /// The stage takes most of the time; durations alone cannot name a rank.
    ArrivalsNeeded(&'static str),
    Healthy,
}

use Truth::{ArrivalsNeeded, Healthy, Late, NoRank};

const JOBS: [(&str, Truth); 32] = [
    ("backward", ArrivalsNeeded(BACKWARD)),
    ("backward_comm", ArrivalsNeeded(BACKWARD)),
    ("callback", Late(CALLBACKS, 1.0)),
    ("callback_barrier", Late(CALLBACKS, 1.0)),
    ("data", Late(DATA, 1.0)),
    ("data_accum4", Late(DATA, 4.0)),
    (
        "data_all",
        NoRank(DATA, "no rank in particular is to blame"),
    ),
    ("data_random", NoRank(DATA, "rotates")),
    ("data_tail", Late(DATA, 1.0)),
    // The worker loads ahead while the rank computes: what is left is 76 ms.
    ("data_workers", Late(DATA, 0.637)),
    ("forward", Late(FORWARD, 1.0)),
    ("forward_accum4", Late(FORWARD, 4.0)),
    ("none", Healthy),
    ("none_accum4", Healthy),
    ("optim", Late(OPTIMIZER, 1.0)),
    ("optim_barrier", Late(OPTIMIZER, 1.0)),
    ("collectives/backward.events", Late(BACKWARD, 1.0)),
    ("collectives/backward", ArrivalsNeeded(BACKWARD)),
    ("collectives/backward_comm.events", Late(BACKWARD, 1.0)),
    ("collectives/backward_comm", ArrivalsNeeded(BACKWARD)),
    ("collectives/backward_fsdp2.events", Late(BACKWARD, 1.0)),
    ("collectives/backward_fsdp2", ArrivalsNeeded(BACKWARD)),
    ("collectives/callback_barrier.events", Late(CALLBACKS, 1.0)),
    ("collectives/callback_barrier", Late(CALLBACKS, 1.0)),
    ("collectives/data.events", Late(DATA, 1.0)),
    ("collectives/data", Late(DATA, 1.0)),
    ("collectives/data_fsdp2.events", Late(DATA, 1.0)),
    ("collectives/data_fsdp2", Late(DATA, 1.0)),
    ("collectives/none.events", Healthy),
    ("collectives/none", Healthy),
    ("collectives/none_fsdp2.events", Healthy),
    ("collectives/none_fsdp2", Healthy),
];

#[test]
fn recorded_jobs_get_the_verdict_that_was_injected() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/data/gloo_ddp");
    if !folder.is_dir() {
        println!("skipped: no recordings at {}", folder.display());
        return;
    }
    for (name, truth) in JOBS {
        let path = folder.join(format!("{name}.json.gz"));
        let recording = load(&path, Limits::default()).expect(name);
        let verdict = recording.replay(name, Settings::default()).verdict();
        let stages: Vec<_> = verdict
            .incidents
            .iter()
            .map(|i| i.subject.stage.as_deref())
            .collect();
        match truth {
            Healthy => assert!(verdict.incidents.is_empty(), "{name}"),
            Late(stage, micro_steps) => {
                assert_eq!(stages, [Some(stage)], "{name}");
                let incident = &verdict.incidents[0];
                assert_eq!(incident.subject.ranks, [2], "{name}");
                let lateness_s = incident.evidence[0].values["lateness_s"];
                let truth_s = DELAY_S * micro_steps;
                let off = (lateness_s / truth_s - 1.0).abs();
                assert!(off < 0.03, "{name}: {lateness_s} s");
            }
            NoRank(stage, words) => {
                assert_eq!(stages, [Some(stage)], "{name}");
                let incident = &verdict.incidents[0];
                assert!(incident.subject.ranks.is_empty(), "{name}");
                assert!(incident.text.contains(words), "{name}: {}", incident.text);
            }
            ArrivalsNeeded(stage) => {
                assert_eq!(stages, [Some(stage)], "{name}");
                let incident = &verdict.incidents[0];
                assert!(incident.subject.ranks.is_empty(), "{name}");
                assert!(incident.text.contains("without arrival times"), "{name}");
            }
        }
    }
}

#[test]
fn a_packed_recording_that_was_cut_off_is_read_up_to_the_cut() {
    let jobs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../testdata/jobs");
    let whole = load(&jobs.join("data.jsonl.zst"), Limits::default()).expect("a job");
    let Recording::Journal(journal) = whole else {
        panic!("not ours")
    };
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["cut.jsonl.zst", "cut.jsonl.gz", "cut.jsonl"] {
        let path = folder.path().join(name);
        let mut writer = JournalWriter::create(&path, "job").expect("a file");
        for (input, number) in journal.inputs().iter().zip(1..) {
            writer.write(input).expect("room");
            if number % 200 == 0 {
                writer.flush().expect("room");
            }
        }
        writer.finish().expect("room");
        let bytes = fs::read(&path).expect("a recording");
        fs::write(&path, &bytes[..bytes.len() * 2 / 3]).expect("a file");
        let part = load(&path, Limits::default()).expect(name);
        let verdict = part.replay("cut", Settings::default()).verdict();
        assert!(
            (30..60).contains(&verdict.job.steps),
            "{name}: {}",
            verdict.job.steps
        );
        assert_eq!(verdict.incidents[0].subject.ranks, [2], "{name}");
    }
}
