//! Rows about noticing that iterations have become slower.

use pattern::{Shortest, Trigger, TriggerSettings};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::AcceptanceRow;
use super::simulated::RowMeasure;

pub(super) const ROWS: [(&str, RowMeasure); 4] = [
    ("PT-A7", false_alarms),
    ("PT-A7", published),
    ("PT-A7", step_up),
    ("PT-A7", block),
];

const RUNS: u64 = 50;

/// Iterations with a coefficient of variation, near normal: each the sum of twelve draws.
fn iterations(seed: u64, cv: f64, count: usize) -> impl Iterator<Item = f64> {
    let mut random = SmallRng::seed_from_u64(seed);
    (0..count).map(move |_| {
        // Twelve uniform draws sum to a mean of 6 and a variance of 1.
        let sum: f64 = (0..12).map(|_| random.random::<f64>()).sum();
        1.0 + cv * (sum - 6.0)
    })
}

fn trigger(shortest: Shortest) -> Trigger {
    Trigger::new(TriggerSettings {
        shortest,
        ..TriggerSettings::default()
    })
}

/// Iterations until it fires.
fn fires(trigger: &mut Trigger, durations: impl Iterator<Item = f64>) -> Option<usize> {
    let mut now_s = 0.0;
    let mut fired = durations.map(|duration_s| {
        now_s += duration_s;
        trigger.iteration(duration_s, now_s)
    });
    fired.position(|fired| fired).map(|at| at + 1)
}

fn alarms(shortest: Shortest, cv: f64, count: usize) -> usize {
    let alarmed = (0..RUNS)
        .filter(|seed| fires(&mut trigger(shortest), iterations(*seed, cv, count)).is_some());
    alarmed.count()
}

fn false_alarms(id: &str) -> AcceptanceRow {
    let (calm, noisy) = (
        alarms(Shortest::Mean, 0.02, 5000),
        alarms(Shortest::Mean, 0.05, 5000),
    );
    let measured = format!("{calm} of 50 at 2 % jitter, {noisy} of 50 at 5 %");
    let scenario = "trigger, 50 healthy runs of 5,000 iterations";
    AcceptanceRow::new(
        id,
        scenario,
        measured,
        "0 of 50, 5 of 50",
        calm == 0 && noisy <= 5,
    )
}

fn published(id: &str) -> AcceptanceRow {
    let alarms = alarms(Shortest::Min, 0.02, 500);
    let measured = format!("{alarms} of 50");
    let scenario = "the same by the published rule, 500 iterations, 2 % jitter";
    AcceptanceRow::new(
        id,
        scenario,
        measured,
        "50 of 50 (our reading)",
        alarms == 50,
    )
}

fn step_up(id: &str) -> AcceptanceRow {
    let mut steady = trigger(Shortest::Mean);
    fires(&mut steady, std::iter::repeat_n(1.0, 500));
    let fifth = fires(&mut steady, std::iter::repeat_n(1.2, 500)).unwrap_or(0);
    let small = (0..RUNS).filter(|seed| {
        let mut trigger = trigger(Shortest::Mean);
        fires(&mut trigger, iterations(*seed, 0.02, 500));
        // With the seed of before, the same draws would come again and the two means differ by 6 %
        // exactly.
        let slower = iterations(seed + RUNS, 0.02, 2000).map(|duration_s| 1.06 * duration_s);
        fires(&mut trigger, slower).is_some()
    });
    let small = small.count();
    let measured = format!("after {fifth} iterations; {small} of 50");
    let scenario = "trigger, +20 % without jitter; +6 % with 2 %";
    // The mean of 50 exceeds the usual by 5 % once 13 of them are longer by 20 %.
    let holds = (12..=13).contains(&fifth) && small == 50;
    AcceptanceRow::new(id, scenario, measured, "12 to 13; 50 of 50", holds)
}

fn block(id: &str) -> AcceptanceRow {
    let mut trigger = trigger(Shortest::Mean);
    fires(&mut trigger, std::iter::repeat_n(2.0, 50));
    let tenths = (0..1000).find(|tenths| trigger.is_blocked(f64::from(*tenths) / 10.0));
    let after_s = tenths.map_or(0.0, |tenths| f64::from(tenths) / 10.0);
    let measured = format!("blocked after {after_s:.1} s");
    let scenario = "trigger, iterations of 2 s, then silence";
    AcceptanceRow::new(
        id,
        scenario,
        measured,
        "10 s",
        (after_s - 10.0).abs() < 1e-9,
    )
}
