//! Rows about functions of simulated workers.

use std::time::Instant;

use model::{FunctionClass, Pattern};
use pattern::{Columns, ExpectedBox, FunctionFinding, PatternSettings, Problem, localise};

use super::AcceptanceRow;
use super::simulated::RowMeasure;

pub(super) const ROWS: [(&str, RowMeasure); 8] = [
    ("PT-A1", ring),
    ("PT-A2", throttling),
    ("PT-A3", link_down),
    ("PT-A4", slow_storage),
    ("PT-A5", bound_by_the_host),
    ("PT-A6", garbage_collection),
    ("PT-A8", hundred_thousand),
    ("PT-A8", million),
];

fn found(class: FunctionClass, workers: u32, of: impl Fn(u32) -> [f32; 3]) -> FunctionFinding {
    found_with(&PatternSettings::default(), class, workers, of)
}

/// What is found; `of` gives beta, mu and sigma of each worker.
fn found_with(
    settings: &PatternSettings,
    class: FunctionClass,
    workers: u32,
    of: impl Fn(u32) -> [f32; 3],
) -> FunctionFinding {
    let mut columns = Columns::default();
    for worker in 0..workers {
        let [beta, mu, sigma] = of(worker);
        columns.push(
            worker,
            &Pattern {
                beta,
                mu,
                sigma,
                events: 1,
                measured: 1,
            },
        );
    }
    localise(&columns, &ExpectedBox::of_class(class), settings, 1)
}

/// Up to a percent, different for each worker.
fn noise(worker: u32) -> f32 {
    // Knuth's multiplicative hash, 2^32 over the golden ratio: neighbours get different values.
    (worker.wrapping_mul(2_654_435_761) >> 16) as f32 / 65_536.0 * 0.01
}

fn ring(id: &str) -> AcceptanceRow {
    let found = found(FunctionClass::Collective, 32, |worker| match worker {
        // The two of the slow bond carry half the rate all the time. The others of their ring carry
        // the full rate half of the time: the same mean, and a deviation.
        0 | 1 => [0.2, 0.5, 0.0],
        2..8 => [0.2, 0.5, 0.5],
        _ => [0.2, 1.0, 0.0],
    });
    let worst = found
        .abnormal
        .iter()
        .map(|a| a.differential)
        .fold(0.0, f64::max);
    let worst: Vec<u32> = found
        .abnormal
        .iter()
        .filter(|abnormal| abnormal.differential == worst)
        .map(|abnormal| abnormal.worker)
        .collect();
    let count = found.abnormal.len();
    let measured = format!("{count} flagged, worst {worst:?}");
    let holds = count == 8 && worst == [0, 1];
    let scenario = "ring of 32, one bond at half rate";
    AcceptanceRow::new(
        id,
        scenario,
        measured,
        "8 flagged, the 2 of the bond worst",
        holds,
    )
}

fn throttling(id: &str) -> AcceptanceRow {
    let found = found(FunctionClass::GpuCompute, 2560, |worker| {
        // Whole hosts of 8 workers: every eighth, 38 of 320.
        let [beta, mu] = if worker % 64 < 8 && worker < 2400 {
            [0.45, 0.55]
        } else {
            [0.30, 0.90]
        };
        [beta + noise(worker), mu + noise(worker), 0.02]
    });
    let right = found
        .abnormal
        .iter()
        .all(|a| a.worker % 64 < 8 && a.worker < 2400);
    let count = found.abnormal.len();
    let measured = format!(
        "{count} of 304 flagged, others {}",
        if right { "none" } else { "some" }
    );
    let scenario = "2560 workers, 304 on 38 hosts with throttled GPUs (C1P1)";
    AcceptanceRow::new(
        id,
        scenario,
        measured,
        "exactly those",
        right && count == 304,
    )
}

/// What a worker shows of its collectives where the NVLinks of 3 are down, and 45 wait for them.
fn with_links_down(worker: u32) -> [f32; 3] {
    match worker {
        100..103 => [0.30 + noise(worker), 0.85, 0.1],
        103..148 => [0.29 + noise(worker), 0.20, 0.1],
        _ => [0.05 + noise(worker), 0.20, 0.1],
    }
}

fn link_down(id: &str) -> AcceptanceRow {
    // All are compared with all, for its numbers are theirs; a sample of 100 flags the same.
    let all = PatternSettings {
        sample: 1200,
        ..PatternSettings::default()
    };
    let class = FunctionClass::Collective;
    let sampled = found(class, 1200, with_links_down).abnormal.len();
    let found = found_with(&all, class, 1200, with_links_down);
    let healthy = found.usual.0;
    let holds = found.abnormal.len() == 48
        && sampled == 48
        && found.abnormal.iter().all(|abnormal| match abnormal.worker {
            // The 3 differ from the 1197 others of 1200, the 45 from the 1155 others. Healthy
            // workers differ from these 48 alone, which is 0.04.
            100..103 => (abnormal.differential - 0.9975).abs() < 1e-9,
            103..148 => (abnormal.differential - 0.9625).abs() < 1e-9,
            _ => true,
        })
        && healthy <= 0.04;
    let [of_down, of_waiting] = [100, 103].map(|worker| {
        let found = found
            .abnormal
            .iter()
            .find(|abnormal| abnormal.worker == worker);
        found.map_or(0.0, |abnormal| abnormal.differential)
    });
    let measured = format!(
        "{} flagged; the 3 at {of_down:.4}, the 45 at {of_waiting:.4}, others {healthy:.2}; {sampled} by a sample \
         of 100",
        found.abnormal.len()
    );
    let scenario = "1200 workers, NVLink of 3 down, 45 wait for them (C1P2)";
    AcceptanceRow::new(id, scenario, measured, "48; 1.0, 0.96, at most 0.04", holds)
}

fn slow_storage(id: &str) -> AcceptanceRow {
    let found = found(FunctionClass::Python, 512, |worker| {
        [0.2 + noise(worker), 0.1, 0.0]
    });
    let outside = found.abnormal.iter().filter(|a| a.distance() > 0.0).count();
    let is_common = found.problem == Some(Problem::Common);
    let problem = if is_common { "common" } else { "not common" };
    let measured = format!("D > 0 on {outside} of 512, {problem}");
    AcceptanceRow::new(
        id,
        "all workers in recv_into (C2P1)",
        measured,
        "D > 0 on all, common",
        outside == 512 && is_common,
    )
}

fn bound_by_the_host(id: &str) -> AcceptanceRow {
    let found = found(FunctionClass::Python, 512, |worker| {
        if worker == 9 {
            [0.3, 0.9, 0.0]
        } else {
            [0.003, 0.9, 0.0]
        }
    });
    let workers: Vec<u32> = found.abnormal.iter().map(|a| a.worker).collect();
    let distance = found
        .abnormal
        .first()
        .map_or(0.0, pattern::Abnormal::distance);
    let measured = format!("{workers:?}, D = {distance:.2}");
    let scenario = "forward of worker 9 in Python (C2P2)";
    AcceptanceRow::new(
        id,
        scenario,
        measured,
        "D > 0 there",
        workers == [9] && distance > 0.0,
    )
}

fn garbage_collection(id: &str) -> AcceptanceRow {
    // Each worker pauses in another function: eight of them, each on a worker of its own.
    let right = (0..8u32).filter(|function| {
        let struck = function * 61 + 5;
        let found = found(FunctionClass::Python, 512, |worker| {
            if worker == struck {
                [0.04, 0.05, 0.01]
            } else {
                [0.004, 0.8, 0.1]
            }
        });
        let low = found
            .abnormal
            .iter()
            // A pause leaves the core idle. Slow Python, as in PT-A5, would keep it busy.
            .all(|a| a.values[1] < found.median[1] / 2.0);
        found.abnormal.len() == 1 && found.abnormal[0].worker == struck && low
    });
    let right = right.count();
    let measured = format!("{right} of 8 functions, each on its worker, at low utilisation");
    let scenario = "unsynchronised garbage collection (C2P3)";
    AcceptanceRow::new(
        id,
        scenario,
        measured,
        "flagged, low CPU, no fixed worker",
        right == 8,
    )
}

fn hundred_thousand(id: &str) -> AcceptanceRow {
    scale(id, 100_000, 0.4, "target 0.4 s")
}

fn million(id: &str) -> AcceptanceRow {
    scale(id, 1_000_000, 5.0, "180 s; target 5 s")
}

fn scale(id: &str, workers: u32, target_s: f64, paper: &str) -> AcceptanceRow {
    let settings = PatternSettings::default();
    let expected = ExpectedBox::of_class(FunctionClass::GpuCompute);
    let functions: Vec<Columns> = (0..20u32)
        .map(|function| {
            let mut columns = Columns::default();
            for worker in 0..workers {
                let odd = worker % 1000 == function;
                let (beta, mu) = if odd { (0.4, 0.4) } else { (0.2, 0.9) };
                // A million workers stay below 2^20, so each function has noise of its own.
                let noise = noise(worker ^ function << 20);
                let sigma = 0.1 + noise;
                let (beta, mu) = (beta + noise, mu + noise);
                columns.push(
                    worker,
                    &Pattern {
                        beta,
                        mu,
                        sigma,
                        events: 1,
                        measured: 1,
                    },
                );
            }
            columns
        })
        .collect();
    let began = Instant::now();
    let found: usize = functions
        .iter()
        .zip(0..)
        .map(|(columns, seed)| localise(columns, &expected, &settings, seed).abnormal.len())
        .sum();
    let took_s = began.elapsed().as_secs_f64();
    let right = found == 20 * workers as usize / 1000;
    let measured = format!("{took_s:.2} s, {}", if right { "right" } else { "wrong" });
    let scenario = format!("{workers} workers, 20 functions, sample of 100, one core");
    AcceptanceRow::new(id, scenario, measured, paper, right && took_s <= target_s)
}
