//! Rows that need no real job.

use formats::{Limits, StageMatrix, load_bytes};
use frontier::{Baseline, Gates, PeerMethod, advances, analyse, peer_scores, ranking};
use model::{Label, StageId, Window};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use sim::{Campaign, MAGNITUDES, STAGES, Scenario, Score, magnitude, patterns, simulate};
use verdict::Settings;

use super::AcceptanceRow;

pub(super) type RowMeasure = fn(&str) -> AcceptanceRow;

pub(super) const ROWS: [(&str, RowMeasure); 16] = [
    ("SF-A1", telescoping),
    ("SF-A2", bounds),
    ("SF-A3", stability),
    ("SF-A4", sync_wait),
    ("SF-A5", direct_exposure),
    ("SF-A6", downgrades),
    ("SF-A7", campaign),
    ("SF-A7", |id| {
        peer(id, PeerMethod::Max, "22/50, 50/50, 50/50, 2.40")
    }),
    ("SF-A7", |id| {
        peer(id, PeerMethod::Mean, "20/50, 40/50, 40/50, 2.30")
    }),
    ("SF-A7", |id| {
        peer(id, PeerMethod::SlowestRank, "20/50, 40/50, 46/50, 2.40")
    }),
    ("SF-A7", |id| {
        peer(id, PeerMethod::FirstRank, "20/50, 40/50, 40/50, 2.16")
    }),
    ("SF-A7", |id| {
        peer(
            id,
            PeerMethod::Spread,
            "40/50, 40/50, 50/50, 2.20; by a formula not known",
        )
    }),
    ("SF-A8", tau_sweep),
    ("SF-A9", magnitudes),
    ("SF-A18", no_fault),
    ("SF-A19", periodic_callback),
];

const MATRICES: usize = 20_000;

/// Random rows, `row[stage][rank]` flat, of 1 to 64 ranks and 1 to 12 stages.
fn random_rows() -> impl Iterator<Item = (usize, Vec<f64>)> {
    let mut random = SmallRng::seed_from_u64(1);
    (0..MATRICES).map(move |_| {
        let ranks = random.random_range(1..=64);
        let stages = random.random_range(1..=12);
        let row = (0..ranks * stages)
            .map(|_| random.random_range(0.0..10.0))
            .collect();
        (ranks, row)
    })
}

fn max(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// The longest of the ranks' totals, computed on its own.
fn makespan(ranks: usize, row: &[f64]) -> f64 {
    let totals = (0..ranks).map(|rank| row.iter().skip(rank).step_by(ranks).sum());
    max(&totals.collect::<Vec<f64>>())
}

fn telescoping(id: &str) -> AcceptanceRow {
    let mut worst = 0.0f64;
    for (ranks, row) in random_rows() {
        let sum: f64 = advances(&row, ranks).iter().sum();
        let makespan = makespan(ranks, &row);
        worst = worst.max((sum - makespan).abs() / makespan);
    }
    let measured = format!("largest relative error {worst:.1e} of {MATRICES}");
    AcceptanceRow::new(
        id,
        "advances sum to the makespan",
        measured,
        "1e-12",
        worst <= 1e-12,
    )
}

fn bounds(id: &str) -> AcceptanceRow {
    let mut violations = 0;
    // Each rank has all its time in another stage: the maxima sum to three makespans, the bound.
    let tight: (usize, Vec<f64>) = (3, vec![1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    for (ranks, row) in random_rows().chain([tight]) {
        let makespan: f64 = advances(&row, ranks).iter().sum();
        let maxima: f64 = row.chunks(ranks).map(max).sum();
        let means = row.iter().sum::<f64>() / ranks as f64;
        let most = ranks.min(row.len() / ranks) as f64 * makespan;
        // Sums of the same durations in another order differ by rounding.
        let slack = 1e-9 * makespan;
        let holds = makespan <= maxima + slack
            && maxima <= most + slack
            && makespan / ranks as f64 <= means + slack
            && means <= makespan + slack;
        violations += usize::from(!holds);
    }
    let measured = format!("{violations} violations in {}", MATRICES + 1);
    AcceptanceRow::new(
        id,
        "per-stage maxima and means bound the makespan",
        measured,
        "0",
        violations == 0,
    )
}

fn stability(id: &str) -> AcceptanceRow {
    let mut random = SmallRng::seed_from_u64(2);
    let mut worst = 0.0f64;
    for (ranks, row) in random_rows() {
        let error_s = 1e-3;
        let shaken: Vec<f64> = row
            .iter()
            .map(|value| (value + random.random_range(-error_s..error_s)).max(0.0))
            .collect();
        let (before, after) = (advances(&row, ranks), advances(&shaken, ranks));
        for (stage, (before, after)) in before.iter().zip(&after).enumerate() {
            // SF-P5 counts stages from 1: its 2 s - 1 is 2 stage + 1 here.
            let bound = (2 * stage + 1) as f64 * error_s;
            worst = worst.max((before - after).abs() / bound);
        }
    }
    let measured = format!("largest change is {worst:.2} of the bound");
    AcceptanceRow::new(
        id,
        "advances of durations that err",
        measured,
        "at most 1",
        worst <= 1.0,
    )
}

fn first_stage(window: &Window, method: Option<PeerMethod>) -> StageId {
    let found = analyse(window, &Gates::default(), &Baseline::CohortMedian);
    let order = match method {
        None => ranking(&found.share),
        Some(method) => ranking(&peer_scores(window, &found.stages, method)),
    };
    found.stages[order[0]]
}

fn sync_wait(id: &str) -> AcceptanceRow {
    let counts = [None, Some(PeerMethod::Max), Some(PeerMethod::Mean)].map(|method| {
        (0..200)
            .map(|seed| patterns::sync_wait(1, 0.05, seed))
            .filter(|window| first_stage(window, method) == StageId::DATA)
            .count()
    });
    let [frontier, max, mean] = counts;
    let measured = format!("frontier {frontier}, max {max}, mean {mean} of 200");
    let scenario = "stage behind a sync wait ranked first";
    AcceptanceRow::new(
        id,
        scenario,
        measured,
        "100 / 0 / 0 %",
        counts == [200, 0, 0],
    )
}

fn direct_exposure(id: &str) -> AcceptanceRow {
    // All ranks are slow alike. The cohort's median is as slow, and a gain over it would be zero.
    let reference = Baseline::Reference([(StageId::FORWARD, 2.0)].into());
    let labelled = (0..200).filter(|seed| {
        let window = patterns::direct_exposure(1, 0.05, *seed);
        let found = analyse(&window, &Gates::default(), &reference);
        found.labels.contains(&Label::DirectExposure)
    });
    let labelled = labelled.count();
    let measured = format!("{labelled} of 200");
    AcceptanceRow::new(
        id,
        "direct exposure labelled",
        measured,
        "100 %",
        labelled == 200,
    )
}

fn labels(window: &Window) -> Vec<Label> {
    analyse(window, &Gates::default(), &Baseline::CohortMedian).labels
}

fn downgrades(id: &str) -> AcceptanceRow {
    // Undoubted, this window has a strong label, which each doubt has to withhold.
    let [mut missing, mut roles, mut collapsed] =
        std::array::from_fn(|_| patterns::late_optimizer(100, 0.01, 3));
    missing.missing_ranks.push(9);
    roles.roles = 2;
    collapsed.accumulation_collapsed = true;
    let fired = [
        (labels(&missing), Label::TelemetryLimited),
        (labels(&roles), Label::RoleAwareNeeded),
        (labels(&collapsed), Label::GradientAccumulationAmbiguous),
        (
            labels(&patterns::tied_stages(50, 0.01, 1)),
            Label::CoCritical,
        ),
    ];
    let fired = fired
        .iter()
        .filter(|(labels, label)| labels.contains(label))
        .count();
    let measured = format!("{fired} of 4 fire");
    AcceptanceRow::new(id, "four downgrades", measured, "all fire", fired == 4)
}

fn campaign(id: &str) -> AcceptanceRow {
    let score = Campaign::run().score(0.80);
    let holds = (score.top1, score.top2, score.hits) == (40, 50, 50)
        && (score.mean_size - 2.0).abs() < 1e-9;
    let scenario = "controlled study, frontier (fitted fixture)";
    AcceptanceRow::new(
        id,
        scenario,
        score_text(score),
        "40/50, 50/50, 50/50, 2.00",
        holds,
    )
}

/// Another way of ranking stages, on the same windows.
fn peer(id: &str, method: PeerMethod, paper: &str) -> AcceptanceRow {
    let campaign = Campaign::run();
    let (frontier, score) = (campaign.score(0.80), campaign.peer_score(method, 0.80));
    let scenario = format!("the same, {} (fitted fixture)", method.name());
    let holds = score.top1 <= frontier.top1 && score.top2 <= frontier.top2;
    AcceptanceRow::new(id, scenario, score_text(score), paper, holds)
}

fn score_text(score: Score) -> String {
    let Score {
        top1,
        top2,
        hits,
        mean_size,
        ..
    } = score;
    format!("top-1 {top1}/50, top-2 {top2}/50, in set {hits}/50, set {mean_size:.2}")
}

fn tau_sweep(id: &str) -> AcceptanceRow {
    let campaign = Campaign::run();
    let sizes = [0.70, 0.75, 0.80, 0.85, 0.90]
        .map(|tau| (campaign.score(tau).mean_size * 100.0).round() / 100.0);
    let measured = sizes.map(|size| size.to_string()).join(" / ");
    let scenario = "set size by tau (fitted fixture)";
    let holds = sizes == [2.0, 2.0, 2.0, 2.2, 3.0];
    AcceptanceRow::new(id, scenario, measured, "2 / 2 / 2 / 2.2 / 3", holds)
}

fn magnitudes(id: &str) -> AcceptanceRow {
    let found = MAGNITUDES.map(|(fault_ms, _)| magnitude(fault_ms));
    let shares = found.clone().map(|found| found.share[0]);
    let near = shares
        .iter()
        .zip(MAGNITUDES)
        .all(|(share, (_, to))| (share - to).abs() < 0.01);
    let strong = found
        .iter()
        .filter(|found| found.labels.iter().any(|label| label.is_strong()))
        .count();
    let first = found
        .iter()
        .position(|found| found.candidates[0] == StageId::DATA);
    let first_ms = first.map_or(u32::MAX, |at| MAGNITUDES[at].0);
    let measured = format!(
        "{}; leads from {first_ms} ms on, {strong} strong labels",
        shares.map(|share| format!("{share:.2}")).join(" ")
    );
    let scenario = "share of a data fault of 0 to 360 ms (fitted fixture)";
    let expected = MAGNITUDES.map(|(_, share)| format!("{share:.2}")).join(" ");
    let paper = format!("{expected} (ours); rises (paper)");
    let holds = near && shares.is_sorted() && first_ms == 120 && strong == 0;
    AcceptanceRow::new(id, scenario, measured, paper, holds)
}

fn no_fault(id: &str) -> AcceptanceRow {
    let strong = (0..105u64).filter(|seed| {
        let ranks = if seed % 2 == 0 { 8 } else { 32 };
        let window = simulate(Scenario::None, ranks, 0.0, *seed);
        let found = analyse(&window, &Gates::default(), &Baseline::CohortMedian);
        found.labels.iter().any(|label| label.is_strong())
    });
    let strong = strong.count();
    let measured = format!("{strong} of 105");
    // What stands as evidence are the healthy jobs of X4.
    let scenario = "strong labels without a fault (fitted fixture); real jobs: X4";
    AcceptanceRow::new(id, scenario, measured, "0 of 105", strong == 0)
}

/// A spike in one of ten steps, read from a recording as a user would.
fn periodic_callback(id: &str) -> AcceptanceRow {
    let (steps, spike_s) = (200, 0.36);
    let window = patterns::periodic_callback(steps, spike_s, 0.02, 5);
    let block = &window.blocks[0];
    let matrix = block
        .rows()
        .map(|(_, row)| {
            (0..block.ranks)
                .map(|rank| {
                    Some(
                        row.iter()
                            .skip(rank)
                            .step_by(block.ranks)
                            .copied()
                            .collect(),
                    )
                })
                .collect()
        })
        .collect();
    let names = model::StageNames::default();
    let stages = STAGES
        .iter()
        .map(|stage| names.name(*stage).to_owned())
        .collect();
    let text = serde_json::to_vec(&StageMatrix::new(stages, matrix)).unwrap_or_default();
    let recording = load_bytes("periodic", &text, Limits::default());
    let Ok(recording) = recording else {
        return AcceptanceRow::new(id, "rare spike", "unreadable", "", false);
    };
    let verdict = recording.replay("periodic", Settings::default()).verdict();
    // Stages keep the order of the schema; the fourth is callbacks.
    let share = verdict.stages[3].share;
    let truth = (steps / 10) as f64 * spike_s / verdict.job.exposed_s;
    let found = analyse(&window, &Gates::default(), &Baseline::CohortMedian);
    let mut middle: Vec<f64> = found
        .steps
        .iter()
        .filter_map(|step| Some(step.stages.get(3)?.as_ref()?.advance_s))
        .collect();
    let middle_ms = model::median(&mut middle).unwrap_or(f64::NAN) * 1e3;
    let measured =
        format!("share {share:.3}, spikes / makespans {truth:.3}, median {middle_ms:.1} ms");
    // The share includes the millisecond that callbacks take without a spike: 0.015.
    let holds = (share - truth).abs() < 0.03 && middle_ms < 2.0;
    let scenario = "callback that spikes in 1 of 10 steps";
    AcceptanceRow::new(
        id,
        scenario,
        measured,
        "share = spike sum / makespan sum",
        holds,
    )
}
