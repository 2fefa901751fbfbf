use proptest::prelude::*;

use super::*;
use model::FunctionClass;

use crate::Expected;

fn columns(rows: impl IntoIterator<Item = [f32; 3]>) -> Columns {
    let mut columns = Columns::default();
    for (worker, [beta, mu, sigma]) in (0..).zip(rows) {
        let measured = u32::from(mu > 0.0 || sigma > 0.0);
        columns.push(
            worker,
            &Pattern {
                beta,
                mu,
                sigma,
                events: 1,
                measured,
            },
        );
    }
    columns
}

fn found(rows: impl IntoIterator<Item = [f32; 3]>, class: FunctionClass) -> FunctionFinding {
    let expected = ExpectedBox::of_class(class);
    localise(&columns(rows), &expected, &PatternSettings::default(), 7)
}

fn workers(found: &FunctionFinding) -> Vec<u32> {
    found
        .abnormal
        .iter()
        .map(|abnormal| abnormal.worker)
        .collect()
}

/// A deviation of a fraction of a percent that differs from worker to worker.
fn jitter(worker: u32) -> f32 {
    (worker.wrapping_mul(2_654_435_761) >> 16) as f32 / 65_536.0 * 0.01
}

/// A host without counters among others that have them.
#[test]
fn who_was_not_measured_does_not_differ_in_what_was_not_measured() {
    let rows = |idle: [f32; 3]| [vec![[0.4, 0.9, 0.1]; 7], vec![idle]].concat();
    let class = FunctionClass::GpuCompute;
    assert_eq!(workers(&found(rows([0.4, 0.0, 0.0]), class)), [0; 0]);
    assert_eq!(found(rows([0.4, 0.0, 0.0]), class).median, [0.4, 0.9, 0.1]);
    // One that was, and is unlike the others, does; and so does one by its beta.
    assert_eq!(workers(&found(rows([0.4, 0.01, 0.0]), class)), [7]);
    assert_eq!(workers(&found(rows([0.8, 0.0, 0.0]), class)), [7]);
}

/// PT-A1, the example of docs/math/pattern.md.
#[test]
fn of_a_ring_with_half_a_link_the_ends_of_the_link_stand_out_most() {
    let healthy = [0.2, 1.0, 0.0];
    let victim = [0.2, 0.5, 0.5];
    let culprit = [0.2, 0.5, 0.0];
    let rows = [vec![healthy; 24], vec![victim; 6], vec![culprit; 2]].concat();
    let found = found(rows, FunctionClass::Collective);
    assert_eq!(workers(&found), (24..32).collect::<Vec<_>>());
    assert_eq!(found.usual, (0.25, 0.0));
    let differential = |worker: usize| found.abnormal[worker - 24].differential;
    assert_eq!((differential(24), differential(30)), (0.8125, 0.9375));
    assert_eq!(found.problem, Some(Problem::Partial));
}

/// PT-A2: case C1P1.
#[test]
fn throttled_gpus_are_exactly_the_ones_that_are_found_and_cluster_by_host() {
    let throttled = |worker: u32| (worker / 8).is_multiple_of(8) && worker < 2400;
    let rows = (0..2560).map(|worker| {
        let [beta, mu] = if throttled(worker) {
            [0.45, 0.55]
        } else {
            [0.30, 0.90]
        };
        [beta + jitter(worker), mu + jitter(worker), 0.02]
    });
    let found = found(rows, FunctionClass::GpuCompute);
    let expected: Vec<u32> = (0..2560).filter(|worker| throttled(*worker)).collect();
    assert_eq!(expected.len(), 304);
    assert_eq!(workers(&found), expected);
    let names: Vec<String> = (0..320).map(|host| format!("h{host}")).collect();
    let hosts = by_host(&found.abnormal, |worker| &names[worker as usize / 8]);
    assert_eq!(hosts.len(), 38);
    assert!(hosts.iter().all(|(_, workers)| workers.len() == 8));
}

/// PT-A3: case C1P2.
#[test]
fn a_link_that_is_down_is_distinguished_from_those_that_wait_for_it() {
    let rows = (0..3072).map(|worker| match worker {
        100..103 => [0.30 + jitter(worker), 0.85, 0.1],
        103..148 => [0.29 + jitter(worker), 0.20, 0.1],
        _ => [0.05 + jitter(worker), 0.20, 0.1],
    });
    let found = found(rows, FunctionClass::Collective);
    assert_eq!(workers(&found), (100..148).collect::<Vec<_>>());
    let differential: Vec<f64> = found.abnormal.iter().map(|a| a.differential).collect();
    assert!(
        differential[..3].iter().all(|delta| *delta == 1.0),
        "{differential:?}"
    );
    assert!(
        differential[3..]
            .iter()
            .all(|delta| (0.9..=1.0).contains(delta))
    );
}

/// PT-A4 and PT-A5: cases C2P1 and C2P2.
#[test]
fn what_all_workers_wait_for_is_a_common_problem_and_what_one_does_a_partial_one() {
    let all = found(
        (0..64).map(|w| [0.2 + jitter(w), 0.1, 0.0]),
        FunctionClass::Python,
    );
    assert_eq!(all.abnormal.len(), 64);
    assert_eq!(all.problem, Some(Problem::Common));
    assert!(
        all.abnormal
            .iter()
            .all(|abnormal| abnormal.distance() > 0.0)
    );
    let one = |worker| {
        if worker == 9 {
            [0.3, 0.9, 0.0]
        } else {
            [0.003, 0.9, 0.0]
        }
    };
    let found = found((0..64).map(one), FunctionClass::Python);
    assert_eq!(
        (workers(&found), found.problem),
        (vec![9], Some(Problem::Partial))
    );
}

/// PT-A6: case C2P3, as far as patterns go: the functions differ from worker to worker.
#[test]
fn a_pause_that_strikes_a_worker_is_found_with_its_low_utilisation() {
    let rows = (0..200).map(|w| {
        if w == 41 {
            [0.04, 0.05, 0.01]
        } else {
            [0.004, 0.8, 0.1]
        }
    });
    let found = found(rows, FunctionClass::Python);
    assert_eq!(workers(&found), [41]);
    assert!(found.abnormal[0].values[1] < found.median[1] / 2.0);
}

#[test]
fn what_takes_less_than_a_hundredth_of_a_step_is_not_compared() {
    for (beta, named) in [(0.2, vec![41]), (0.008, Vec::new())] {
        let rows = (0..200).map(|w| {
            if w == 41 {
                [beta, 0.1, 0.6]
            } else {
                [beta, 0.9, 0.1]
            }
        });
        assert_eq!(workers(&found(rows, FunctionClass::GpuCompute)), named);
    }
}

/// docs/math/pattern.md: with samples of their own, 268 of these are flagged.
#[test]
fn healthy_workers_are_not_flagged_by_the_luck_of_the_draw() {
    let rows = (0..20_000).map(|worker| {
        if worker < 3 {
            [0.5, 0.2, 0.3]
        } else {
            [0.2, 0.9, 0.05]
        }
    });
    for seed in 0..20 {
        let columns = columns(rows.clone());
        let expected = ExpectedBox::of_class(FunctionClass::GpuCompute);
        let found = localise(&columns, &expected, &PatternSettings::default(), seed);
        assert_eq!(workers(&found), [0, 1, 2], "seed {seed}");
    }
}

#[test]
fn a_kernel_that_is_slow_on_every_worker_shows_only_against_its_own_range() {
    let rows = [[0.6, 0.4, 0.1]; 16];
    assert!(found(rows, FunctionClass::GpuCompute).abnormal.is_empty());
    let entry = Expected {
        function: "gemm".to_owned(),
        mu: Some([0.7, 1.0]),
        ..Expected::default()
    };
    let expected = ExpectedBox::of(FunctionClass::GpuCompute, "sgemm", &[entry]);
    let found = localise(&columns(rows), &expected, &PatternSettings::default(), 1);
    assert_eq!(found.problem, Some(Problem::Common));
    assert_eq!(found.abnormal.len(), 16);
}

fn any_rows() -> impl Strategy<Value = Vec<[f32; 3]>> {
    // Eighths are scaled by powers of two without rounding.
    proptest::collection::vec([0..=8u8, 0..=8, 0..=8], 1..150).prop_map(|rows| {
        rows.iter()
            .map(|row| row.map(|v| f32::from(v) / 8.0))
            .collect()
    })
}

fn by_worker(found: &FunctionFinding) -> BTreeMap<u32, (f64, bool)> {
    found
        .abnormal
        .iter()
        .map(|a| (a.worker, (a.differential, a.differs)))
        .collect()
}

proptest! {
    /// PT-P4: same sample, other names.
    #[test]
    fn names_of_workers_do_not_matter(rows in any_rows(), offset in 0..1000u32) {
        let here = columns(rows);
        let mut there = here.clone();
        for worker in &mut there.workers {
            *worker = *worker * 7 + offset;
        }
        let expected = ExpectedBox::of_class(FunctionClass::GpuCompute);
        let settings = PatternSettings::default();
        let here = by_worker(&localise(&here, &expected, &settings, 3));
        let there = by_worker(&localise(&there, &expected, &settings, 3));
        let renamed: BTreeMap<_, _> =
            here.into_iter().map(|(worker, found)| (worker * 7 + offset, found)).collect();
        prop_assert_eq!(renamed, there);
    }

    /// PT-P5.
    #[test]
    fn the_unit_of_a_dimension_does_not_matter(
        rows in any_rows(), dimension in 1..3usize, power in -4..=0i32,
    ) {
        let scaled = rows.iter().map(|row| {
            let mut row = *row;
            row[dimension] *= 2f32.powi(power);
            row
        });
        let class = FunctionClass::GpuCompute;
        prop_assert_eq!(by_worker(&found(scaled, class)), by_worker(&found(rows, class)));
    }

    /// PT-P6.
    #[test]
    fn identical_kernels_are_never_abnormal(row in [0.0..=1.0f32, 0.0..=1.0, 0.0..=1.0], n in 1..300usize) {
        prop_assert!(found(vec![row; n], FunctionClass::GpuCompute).abnormal.is_empty());
    }

    /// PT-P7.
    #[test]
    fn no_kernel_lies_outside_of_what_is_expected(rows in any_rows()) {
        let found = found(rows, FunctionClass::GpuCompute);
        prop_assert!(found.abnormal.iter().all(|abnormal| abnormal.distance() == 0.0));
        prop_assert!(found.problem != Some(Problem::Common));
    }

    #[test]
    fn a_sample_is_drawn_without_repetition(workers in 0..5000usize, size in 1..200usize, seed: u64) {
        let sample = draw(workers, size, seed);
        prop_assert_eq!(sample.len(), workers.min(size));
        prop_assert!(sample.windows(2).all(|pair| pair[0] < pair[1]));
        prop_assert!(sample.iter().all(|at| *at < workers));
    }
}
