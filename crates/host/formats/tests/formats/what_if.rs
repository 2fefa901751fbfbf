//! What-if traces of ByteDance-Seed/StragglerAnalysis against what its authors' tools say of
//! them, number by number.

use std::fs;
use std::path::{Path, PathBuf};

use laggard_formats::{
    Limits, Recording, load, read_layout, read_rows, read_what_if, write_what_if,
};
use model::{Attribution, PartSlowdown, Removal, WhatIf};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use sim::{Drag, Pipeline};
use whatif::Row;

/// Their numbers are f32 in places; in f64 none of them moves by more than 5.2e-7.
const TOLERANCE: f64 = 1e-6;

#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
fn folder() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/data/whatif");
    if !folder.is_dir() {
        println!("skipped: {} is not there", folder.display());
    }
    folder.is_dir().then_some(folder)
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("a file")).expect("JSON")
}

type Parts = fn(&Attribution) -> &[PartSlowdown];

/// Our numbers under the names of theirs.
fn result(what_if: &WhatIf) -> Value {
    let steps = || what_if.steps.iter().map(u64::to_string);
    let by_step = |values: &mut dyn Iterator<Item = f64>| -> Value {
        steps()
            .zip(values.map(Value::from))
            .collect::<Map<_, _>>()
            .into()
    };
    let mut result = json!({
        "step_t_base": by_step(&mut what_if.recorded_s.iter().copied()),
        "step_t_nodelay": by_step(&mut what_if.simulated_s.iter().copied()),
        "step_t_noblk": by_step(&mut steps().map(|_| what_if.ideal_s)),
        "launch_slowdown": what_if.launch_slowdown,
        "blocking_slowdown": what_if.slowdown,
        "blocking_step_slowdown":
            by_step(&mut what_if.simulated_s.iter().map(|s| s / what_if.ideal_s)),
        "launch_step_slowdown": by_step(
            &mut what_if.recorded_s.iter().zip(&what_if.simulated_s).map(|(r, s)| r / s)),
    });
    let kinds: [(&str, Parts); 3] = [
        ("dp_rank", |parts| &parts.dp_ranks),
        ("stage", |parts| &parts.stages),
        ("optype", |parts| &parts.op_types),
    ];
    for (method, parts) in [
        ("blocking", &what_if.stragglers),
        ("launch", &what_if.launch),
    ] {
        for (kind, of_kind) in kinds {
            let parts = parts.as_ref().map(of_kind);
            let total = parts.map(|parts| {
                parts
                    .iter()
                    .map(|part| (part.name.clone(), part.slowdown.into()))
                    .collect::<Map<_, _>>()
            });
            let per_step = parts.map(|parts| {
                let mut per_step = Map::new();
                for (at, step) in steps().enumerate() {
                    let of_step: Map<_, _> = parts
                        .iter()
                        .map(|part| (part.name.clone(), part.step_slowdowns[at].into()))
                        .collect();
                    per_step.insert(step, of_step.into());
                }
                per_step
            });
            result[format!("{method}_decompose_by_{kind}")] = json!(total);
            result[format!("{method}_decompose_by_{kind}_per_step")] = json!(per_step);
        }
    }
    result
}

fn removal(name: &str, what_if: &WhatIf, removal: Option<&Removal>) -> Value {
    let removal = removal.expect("a slowdown");
    let tori = what_if.mean_simulated_s();
    json!({
        "trem": removal.without_s, "tadd": removal.alone_s, "tori": tori,
        "tideal": what_if.ideal_s, "rem": removal.removed_share,
        "add": removal.added_share, name: removal.removed_share,
    })
}

/// Number of numbers that are alike; fails at the first key or number that is not.
fn compare(place: &str, ours: &Value, theirs: &Value) -> usize {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            let keys = |map: &Map<String, Value>| {
                let mut keys: Vec<_> = map.keys().cloned().collect();
                keys.sort();
                keys
            };
            assert_eq!(keys(ours), keys(theirs), "{place}");
            let pairs = theirs
                .iter()
                .map(|(key, theirs)| compare(&format!("{place}.{key}"), &ours[key], theirs));
            pairs.sum()
        }
        (Value::Number(ours), Value::Number(theirs)) => {
            let (ours, theirs) = (
                ours.as_f64().expect("a number"),
                theirs.as_f64().expect("a number"),
            );
            let error = ((ours - theirs) / theirs).abs();
            assert!(error <= TOLERANCE, "{place}: {ours}, not {theirs}");
            1
        }
        _ => {
            assert_eq!(ours, theirs, "{place}");
            0
        }
    }
}

fn compare_all(name: &str) -> Option<usize> {
    let folder = folder()?;
    let path = folder.join(format!("trace-{name}.parquet"));
    let Recording::WhatIf(findings) = load(&path, Limits::default()).expect("a trace") else {
        panic!("{name} is no what-if trace");
    };
    let what_if = &findings.what_if;
    let mut theirs = read(&folder.join(format!("result-{name}.json")));
    theirs
        .as_object_mut()
        .expect("it is there")
        .remove("job_meta");
    let numbers = compare(name, &result(what_if), &theirs);
    for (kind, key, found) in [
        ("ms", "Ms", what_if.last_stage.as_ref()),
        ("mw", "Mw", what_if.slowest_ranks.as_ref()),
    ] {
        let theirs = read(&folder.join(format!("{kind}-{name}.json")));
        assert_eq!(compare(kind, &removal(key, what_if, found), &theirs), 7);
    }
    Some(numbers)
}

#[test]
fn every_number_of_a_slow_rank_is_theirs() {
    assert_eq!(compare_all("AR").unwrap_or(1077), 1077);
}

#[test]
fn every_number_of_a_heavy_stage_is_theirs() {
    assert_eq!(compare_all("ST").unwrap_or(723), 723);
}

/// What a file with `f32` times makes of a row.
fn as_read(row: &Row) -> Row {
    let (start, duration) = (row.start_s as f32, row.duration_s as f32);
    Row {
        start_s: f64::from(start),
        duration_s: f64::from(duration),
        end_s: f64::from(start + duration),
        ..*row
    }
}

const PIPELINE: Pipeline = Pipeline {
    dp: 2,
    pp: 3,
    tp: 2,
    microbatches: 4,
    steps: 5,
    drags: Vec::new(),
    seed: 7,
};

#[test]
fn what_is_written_is_read() {
    let rows = PIPELINE.rows();
    let read = read_rows(Path::new("trace"), &PIPELINE.trace(), Limits::default());
    assert_eq!(
        read.expect("it is there"),
        rows.iter().map(as_read).collect::<Vec<_>>()
    );
    let layout = PIPELINE.layout();
    assert_eq!(
        read_layout(Path::new("meta"), &PIPELINE.meta()).expect("it is there"),
        layout
    );
}

#[test]
fn no_cut_of_a_trace_is_read_or_panics() {
    let bytes = PIPELINE.trace();
    for length in 0..bytes.len() {
        let cut = &bytes[..length];
        assert!(
            read_rows(Path::new("trace"), cut, Limits::default()).is_err(),
            "{length}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_damage_to_a_trace_panics(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = PIPELINE.trace();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let limits = Limits { unpacked_bytes: 1 << 24 };
        match read_what_if(Path::new("trace"), &bytes, PIPELINE.layout(), limits) {
            Ok(findings) => prop_assert!(findings.what_if.slowdown.is_finite()),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}

/// The rows of a simulated pipeline, by the parquet crate and by us.
#[test]
fn both_writers_say_the_same() {
    let drags = vec![Drag::Stage {
        stage: 1,
        times: 2.0,
    }];
    let pipeline = Pipeline {
        dp: 2,
        pp: 3,
        tp: 2,
        microbatches: 4,
        steps: 3,
        drags,
        seed: 3,
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.parquet");
    write_what_if(&pipeline.rows(), &pipeline.layout(), &path).expect("files");
    let [ours, theirs] = [fs::read(&path).expect("a file"), pipeline.trace()]
        .map(|bytes| read_rows(&path, &bytes, Limits::default()).expect("rows"));
    assert_eq!(ours.len(), pipeline.rows().len());
    assert_eq!(ours, theirs);
    let yaml = fs::read_to_string(path.with_extension("yaml")).expect("a file");
    assert_eq!(
        read_layout(&path, &yaml).expect("a layout"),
        pipeline.layout()
    );
    assert!(matches!(
        load(&path, Limits::default()),
        Ok(Recording::WhatIf(_))
    ));
}
