//! What every fuzz target holds of a job, whatever bytes it was made of.

use model::Verdict;
use serde_json::Value;
use steps::WindowSettings;
use verdict::{Job, Settings};

/// Settings under which windows close after a few steps, so that small inputs reach the
/// whole analysis.
pub fn eager() -> Settings {
    let window = WindowSettings {
        warmup_steps: 0,
        steps: 4,
        min_s: 0.0,
        min_steps: 2,
        ..WindowSettings::default()
    };
    Settings {
        window,
        ..Settings::default()
    }
}

/// Checks what is true of every job.
///
/// # Panics
/// If a number of the verdict is negative, if the stages do not add up to the exposed time, or
/// as [`judge_document`].
pub fn judge(job: &Job) {
    let verdict = judge_document(job);
    let json = serde_json::to_value(&verdict).expect("a verdict is JSON");
    check_numbers(&json, "verdict");
    let charged_s: f64 = verdict.stages.iter().map(|stage| stage.advance_s).sum();
    let exposed_s = verdict.job.exposed_s;
    assert!(
        (charged_s - exposed_s).abs() <= 1e-9 * exposed_s.max(1.0),
        "stages are charged {charged_s} s of {exposed_s} s"
    );
}

/// Checks that the verdict can be told; returns it.
///
/// # Panics
/// If the verdict does not survive being written as JSON, or has no report.
pub fn judge_document(job: &Job) -> Verdict {
    let verdict = job.verdict();
    let json = serde_json::to_value(&verdict).expect("a verdict is JSON");
    // Numbers that are not finite are null in JSON and do not come back.
    let back: Verdict = serde_json::from_value(json).expect("a verdict is read back");
    assert_eq!(back, verdict);
    assert!(report::html(&verdict, job.series(), job.names()).ends_with("</html>\n"));
    verdict
}

fn check_numbers(value: &Value, place: &str) {
    match value {
        Value::Number(number) => {
            assert!(number.as_f64() >= Some(0.0), "{place} is {number}");
        }
        Value::Array(values) => {
            for (at, value) in values.iter().enumerate() {
                check_numbers(value, &format!("{place}[{at}]"));
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                check_numbers(value, &format!("{place}.{name}"));
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
