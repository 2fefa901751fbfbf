//! Frontier accounting against the memory it reads.
//!
//! `copy` moves the same bytes with `memcpy` and is the limit; `account` finds frontier,
//! advance, leader and runner-up at every boundary; `analyse` adds cohort baseline, gain,
//! localisation, candidates and labels for a whole window.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use laggard_frontier::{Baseline, Gates, RowAccount, account_row, analyse};
use model::{Block, Boundary, Ending, MarkKind, StageId, Sync, Window};

fn main() {
    divan::main();
}

const STAGES: usize = 6;

/// Durations of `steps` steps, noisy, with one late rank.
fn durations(steps: usize, ranks: usize) -> Vec<f64> {
    let usual = [0.038, 0.058, 0.106, 0.0, 0.004, 0.001];
    let mut state = 1u64;
    let mut values = Vec::with_capacity(steps * STAGES * ranks);
    for _ in 0..steps {
        for usual in usual {
            for rank in 0..ranks {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let noise = (state >> 40) as f64 / (1u64 << 24) as f64;
                let late = if rank == ranks / 3 && usual == 0.038 {
                    0.05
                } else {
                    0.0
                };
                values.push(usual * (1.0 + 0.02 * noise) + late);
            }
        }
    }
    values
}

#[divan::bench(args = [8, 1_000, 100_000])]
fn copy(bencher: Bencher<'_, '_>, ranks: usize) {
    let row = durations(10, ranks);
    let mut to = vec![0.0; row.len()];
    bencher.counter(BytesCount::of_slice(&row)).bench_local(|| {
        to.copy_from_slice(black_box(&row));
        black_box(&mut to);
    });
}

#[divan::bench(args = [8, 1_000, 100_000])]
fn account(bencher: Bencher<'_, '_>, ranks: usize) {
    let rows = durations(10, ranks);
    let slots: Vec<usize> = (0..STAGES).collect();
    let mut account = RowAccount::default();
    bencher
        .counter(BytesCount::of_slice(&rows))
        .bench_local(|| {
            for row in rows.chunks_exact(STAGES * ranks) {
                account_row(black_box(row), ranks, &slots, None, &mut account);
                black_box(&account);
            }
        });
}

#[divan::bench(args = [8, 1_000, 100_000], sample_count = 5, sample_size = 1)]
fn analyse_100_steps(bencher: Bencher<'_, '_>, ranks: usize) {
    let window = window(100, ranks);
    let gates = Gates::default();
    bencher
        .counter(BytesCount::of_slice(&window.blocks[0].durations_s))
        .bench_local(|| analyse(black_box(&window), &gates, &Baseline::CohortMedian));
}

fn window(steps: usize, ranks: usize) -> Window {
    let stages = [
        StageId::DATA,
        StageId::FORWARD,
        StageId::BACKWARD,
        StageId::CALLBACKS,
        StageId::OPTIMIZER,
        StageId::OTHER,
    ];
    let boundaries = stages.map(|stage| Boundary {
        stage,
        after: MarkKind::StepBegin,
        ending: Ending::Mark(MarkKind::StepEnd),
        sync: Sync::None,
    });
    Block {
        boundaries: boundaries.into(),
        groups: None,
        steps: (0..steps as u64).collect(),
        durations_s: durations(steps, ranks),
        ranks,
        carried: 0,
    }
    .into()
}
