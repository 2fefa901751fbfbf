//! Localisation: twenty functions over many workers, one core.
//!
//! Targets: 0.4 s for 10^5 workers, 5 s for 10^6 (PerfTracker: 180 s).

use divan::Bencher;
use laggard_pattern::{Columns, ExpectedBox, PatternSettings, localise};
use model::{FunctionClass, Pattern};

fn main() {
    divan::main();
}

/// One function: a hundredth of the workers behave otherwise.
fn columns(workers: u32, function: u32) -> Columns {
    let mut columns = Columns::default();
    for worker in 0..workers {
        let mixed = (worker ^ function << 20).wrapping_mul(2_654_435_761) >> 8;
        let noise = mixed as f32 / (1 << 24) as f32 * 0.01;
        let odd = worker % 100 == function;
        let (beta, mu) = if odd { (0.4, 0.4) } else { (0.2, 0.9) };
        let sigma = 0.1 + noise;
        columns.push(
            worker,
            &Pattern {
                beta: beta + noise,
                mu: mu + noise,
                sigma,
                events: 9,
                measured: 9,
            },
        );
    }
    columns
}

#[divan::bench(args = [100_000, 1_000_000], sample_count = 5)]
fn twenty_functions(bencher: Bencher, workers: u32) {
    let functions: Vec<Columns> = (0..20).map(|f| columns(workers, f)).collect();
    let expected = ExpectedBox::of_class(FunctionClass::GpuCompute);
    let settings = PatternSettings::default();
    bencher.bench_local(|| {
        let findings = functions.iter().zip(0..);
        let findings =
            findings.map(|(columns, seed)| localise(columns, &expected, &settings, seed));
        let abnormal: usize = findings.map(|found| found.abnormal.len()).sum();
        assert_eq!(abnormal, 20 * workers as usize / 100);
    });
}
