//! Jobs for tests.

use formats::{Limits, load_bytes};
use verdict::{Job, Settings};

fn replay(id: &str, stages: &[&str], ranks: u32, steps: u32, late_s: f64) -> Job {
    // Small and different for every rank and step, but the same in every run.
    let mut matrix = Vec::new();
    for step in 0..steps {
        let mut rows = Vec::new();
        for rank in 0..ranks {
            let noise = f64::from((rank * 7 + step * 13) % 11) * 1e-4;
            let late = if rank + 1 == ranks && step >= steps / 2 {
                late_s
            } else {
                0.0
            };
            rows.push([0.002 + late + noise, 0.010, 0.028 - noise]);
        }
        matrix.push(rows);
    }
    let recording = serde_json::json!({
        "schema": "stage-matrix/1",
        "stages": stages,
        "unit": "s",
                "matrix": matrix,
    });
    let recording = load_bytes(
        "sample",
        recording.to_string().as_bytes(),
        Limits::default(),
    );
    recording.unwrap().replay(id, Settings::default())
}

const STAGES: [&str; 3] = [
    "data.next_wait",
    "model.fwd_loss_cpu_wall",
    "model.backward_cpu_wall",
];

/// The last rank is late in loading data in the second half of the run.
pub(crate) fn late_in_data(ranks: u32, steps: u32) -> Job {
    replay("late in data", &STAGES, ranks, steps, 0.120)
}

/// Nothing is wrong.
pub(crate) fn healthy() -> Job {
    replay("healthy", &STAGES, 4, 120, 0.0)
}

/// As [`late_in_data`], with an id and a stage from somebody who means harm.
pub(crate) fn hostile(name: &str) -> Job {
    replay(name, &[name, STAGES[1], STAGES[2]], 4, 120, 0.120)
}
