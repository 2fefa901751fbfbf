//! Verdicts on traces of real jobs, where they are at hand.

use std::fs;
use std::path::{Path, PathBuf};

use laggard_formats::{Limits, RankTrace, Recording, TraceSet, load};
use model::Verdict;
use proptest::prelude::*;
use verdict::Settings;

fn data(folder: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/data");
    path.join(folder)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(".json.gz"));
    files.sort();
    files
}

/// The verdict on all traces of a folder.
fn verdict(folder: &Path) -> Verdict {
    let settings = Settings::default();
    let ranks = files(folder)
        .into_iter()
        .flat_map(|path| match load(&path, Limits::default()) {
            Ok(Recording::Trace(trace)) => RankTrace::all(&path, trace, &settings.pattern),
            other => panic!("{}: {other:?}", path.display()),
        });
    let sets = TraceSet::sets(ranks.collect());
    assert_eq!(sets.len(), 1);
    sets[0].replay("job", settings).verdict()
}

#[test]
fn traces_of_all_years_and_devices_load_without_loss() {
    let folder = data("kineto_single_rank");
    if !folder.is_dir() {
        println!("skipped: no recordings at {}", folder.display());
        return;
    }
    for path in files(&folder) {
        let recording = load(&path, Limits::default());
        let trace = match recording {
            Ok(Recording::Trace(trace)) => trace,
            other => panic!("{}: {other:?}", path.display()),
        };
        let ranks = RankTrace::all(&path, trace, &Settings::default().pattern);
        // PT-A9: what travels of a rank, call stacks included.
        let travels = serde_json::to_vec(&ranks[0].patterns())
            .expect("JSON")
            .len();
        assert!(travels <= 30_000, "{}: {travels} bytes", path.display());
        let verdict = TraceSet::sets(ranks)[0]
            .replay("t", Settings::default())
            .verdict();
        let profile = verdict.profile.expect("a profile");
        assert!(profile.ranks[0].span_s > 0.0, "{}", path.display());
        assert!(verdict.incidents.is_empty(), "{}", path.display());
        let lost = verdict
            .notes
            .iter()
            .any(|n| n.contains("not JSON") || n.contains("cut off"));
        assert!(!lost, "{:?}", verdict.notes);
    }
}

/// Shares of stages by independent timers of the same steps.
fn timed_shares(folder: &Path, ranks: usize) -> Vec<(String, f64)> {
    let timers: Vec<serde_json::Value> = (0..ranks)
        .map(|rank| {
            let path = folder.join(format!("rank{rank}.stages.json"));
            serde_json::from_slice(&fs::read(path).expect("timers")).expect("JSON")
        })
        .collect();
    let names = timers[0]["cols"].as_array().expect("names")[1..].iter();
    let names: Vec<String> = names
        .map(|n| n.as_str().unwrap_or_default().into())
        .collect();
    let first = timers[0]["loop_of_first_active_step"]
        .as_u64()
        .expect("a step") as usize;
    let mut advances = vec![0.0; names.len()];
    for step in first..first + 6 {
        let mut prefixes = vec![0.0; ranks];
        let mut frontier = 0.0f64;
        for (stage, advance) in advances.iter_mut().enumerate() {
            for (prefix, timer) in prefixes.iter_mut().zip(&timers) {
                *prefix += timer["rows"][step][stage + 1].as_f64().expect("seconds");
            }
            let next = prefixes.iter().copied().fold(0.0, f64::max);
            *advance += next - frontier;
            frontier = next;
        }
    }
    let total: f64 = advances.iter().sum();
    names
        .into_iter()
        .zip(advances.into_iter().map(|advance| advance / total))
        .collect()
}

#[test]
fn shares_of_stages_are_those_of_independent_timers() {
    let folder = data("kineto_gloo_torch215");
    if !folder.is_dir() {
        println!("skipped: no recordings at {}", folder.display());
        return;
    }
    for (job, ranks) in [("none4", 4), ("data4", 4), ("stack2", 2)] {
        let folder = folder.join(job);
        let verdict = verdict(&folder);
        for (name, share) in timed_shares(&folder, ranks) {
            let stage = verdict.stages.iter().find(|stage| stage.name == name);
            let off = (stage.map_or(0.0, |stage| stage.share) - share).abs();
            assert!(off < 0.03, "{job} {name}: {off}");
        }
        if job == "data4" {
            assert_eq!(verdict.incidents.len(), 1, "{:?}", verdict.incidents);
            let subject = &verdict.incidents[0].subject;
            assert_eq!(subject.ranks, [3]);
            assert_eq!(subject.stage.as_deref(), Some("data.next_wait"));
            assert_eq!(subject.function.as_deref(), Some("data.next_wait"));
        } else {
            assert!(
                verdict.incidents.is_empty(),
                "{job}: {:?}",
                verdict.incidents
            );
        }
    }
}

/// Rank 1 entered the step first and waited in its forward pass: it is not to blame.
#[test]
fn who_entered_the_only_step_early_is_not_taken_for_late() {
    let folder = data("kineto_dlrm8");
    if !folder.is_dir() {
        println!("skipped: no recordings at {}", folder.display());
        return;
    }
    let verdict = verdict(&folder);
    assert!(
        verdict
            .incidents
            .iter()
            .all(|i| !i.subject.ranks.contains(&1))
    );
    let lead = verdict.stages.iter().flat_map(|stage| &stage.lead_ranks);
    assert!({ lead }.all(|rank| *rank != 1));
    let forward = verdict
        .stages
        .iter()
        .find(|s| s.name == "model.fwd_loss_cpu_wall");
    assert!(forward.is_some_and(|stage| stage.share < 0.25));
    let collectives = verdict
        .profile
        .and_then(|p| p.collectives)
        .expect("collectives");
    assert_eq!((collectives.matched, collectives.unmatched), (8, 0));
    let last: Vec<u64> = collectives.ranks.iter().map(|rank| rank.last).collect();
    assert_eq!(last, [0, 0, 0, 0, 1, 2, 0, 5]);
    let waited: Vec<f64> = collectives
        .ranks
        .iter()
        .map(|rank| (rank.waited_s * 1e4).round() / 10.0)
        .collect();
    assert_eq!(waited, [5.6, 11.1, 3.3, 9.6, 6.4, 6.0, 3.3, 1.5]);
    assert!(collectives.end_spread_s < 1e-5);
}

/// Counted by SQLite itself: kernels, and nanoseconds of them and of copies.
#[test]
fn reports_of_nsight_systems_give_what_a_database_engine_counts() {
    let folder = data("nsys");
    if !folder.is_dir() {
        println!("skipped: no recordings at {}", folder.display());
        return;
    }
    let reports = [
        ("power_iter", 1, 1_131_742_684 + 322_040),
        ("h100_2gpu_1s", 2, 44_829_522 + 1_880_842_214),
        ("cloverleaf", 1, 294_404_540 + 9_390_923),
    ];
    for (name, ranks, device_ns) in reports {
        let path = folder.join(format!("{name}.sqlite.gz"));
        let trace = match load(&path, Limits::default()) {
            Ok(Recording::Trace(trace)) => trace,
            other => panic!("{name}: {other:?}"),
        };
        let traces = RankTrace::all(&path, trace, &Settings::default().pattern);
        assert_eq!(traces.len(), ranks, "{name}");
        let verdict = TraceSet::sets(traces)[0]
            .replay(name, Settings::default())
            .verdict();
        let profile = verdict.profile.expect("a profile");
        // Streams overlap a little: what is critical is not more than what ran.
        let busy_s: f64 = profile
            .ranks
            .iter()
            .map(|rank| rank.span_s * (rank.compute_share + rank.memory_share))
            .sum();
        let share = busy_s / (f64::from(device_ns) * 1e-9);
        assert!((0.97..1.001).contains(&share), "{name}: {share}");
    }
}

/// A report and a list of events, with some bytes changed and the end cut off.
fn damaged(
    bytes: &[u8],
    changes: &[(prop::sample::Index, u8)],
    end: prop::sample::Index,
) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (at, value) in changes {
        let at = at.index(bytes.len());
        bytes[at] = *value;
    }
    let end = end.index(bytes.len() * 2).min(bytes.len());
    bytes.truncate(end);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn no_damage_to_a_trace_of_a_profiler_panics(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        end: prop::sample::Index, which: bool,
    ) {
        let report = include_bytes!("../../../../../fuzz/seeds/nsys/report.sqlite").as_slice();
        let events = include_bytes!("../../../../../fuzz/seeds/kineto/events").as_slice();
        let events = [b"{\"schemaVersion\": 1, \"traceEvents\": [", events].concat();
        let bytes = damaged(if which { report } else { &events }, &changes, end);
        if let Ok(recording) = laggard_formats::load_bytes("rank1", &bytes, Limits::default()) {
            let verdict = recording.replay("rank1", Settings::default()).verdict();
            let json = serde_json::to_value(&verdict).expect("a verdict is JSON");
            let back: Verdict = serde_json::from_value(json).expect("a verdict is read back");
            prop_assert_eq!(back, verdict);
        }
    }
}
