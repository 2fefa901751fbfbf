//! Jobs whose ranks have different roles, and faults that come and go, as matrices.

use laggard_formats::{Limits, load_bytes};
use serde_json::json;
use verdict::{Job, Settings};

/// A matrix of four ranks; `late_s[step][rank]` is added to the data wait.
fn job(roles: Option<[&str; 4]>, steps: usize, late_s: impl Fn(usize, usize) -> f64) -> Job {
    let cell = |step: usize, rank: usize| {
        // Everybody leaves the backward pass together with the last of its role.
        let noise = ((step * 7 + rank * 3) % 5) as f64 * 1e-4;
        let late = late_s(step, rank);
        let peers = (0..4).filter(|peer| roles.is_none_or(|r| r[*peer] == r[rank]));
        let last = peers.map(|peer| late_s(step, peer)).fold(0.0, f64::max);
        vec![
            0.002 + late + noise,
            0.008,
            0.016 + last - late,
            0.0005,
            0.003,
            0.0001,
        ]
    };
    let matrix: Vec<Vec<Vec<f64>>> = (0..steps)
        .map(|step| (0..4).map(|rank| cell(step, rank)).collect())
        .collect();
    let mut document = json!({
        "schema": "stage-matrix/1", "unit": "s", "matrix": matrix,
        "stages": ["data.next_wait", "model.fwd_loss_cpu_wall", "model.backward_cpu_wall",
                   "callbacks.cpu_wall", "optim.step_cpu_wall", "step.other_cpu_wall"],
    });
    if let Some(roles) = roles {
        document["roles"] = json!(roles);
    }
    let bytes = serde_json::to_vec(&document).expect("JSON");
    let recording = load_bytes("job", &bytes, Limits::default()).expect("a matrix");
    recording.replay("job", Settings::default())
}

const ROLES: [&str; 4] = ["pp=0", "pp=0", "pp=1", "pp=1"];

#[test]
fn a_fault_in_one_role_is_one_incident_over_all_windows() {
    let job = job(
        Some(ROLES),
        200,
        |_, rank| if rank == 2 { 0.05 } else { 0.0 },
    );
    let verdict = job.verdict();
    let named: Vec<_> = verdict.incidents.iter().map(|i| &i.subject.ranks).collect();
    assert_eq!(named, [&[2]]);
    let incident = &verdict.incidents[0];
    assert!(incident.open);
    assert_eq!((incident.first_step, incident.last_step), (1, 199));
    assert!(
        (incident.cost_s - 0.05 * 199.0).abs() < 0.2,
        "{}",
        incident.cost_s
    );
    assert!(
        incident.cost_share > 0.5,
        "of its own role's time: {}",
        incident.cost_share
    );
}

#[test]
fn windows_of_several_roles_count_their_steps_once() {
    let verdict = job(Some(ROLES), 200, |_, _| 0.0).verdict();
    let alone = job(None, 200, |_, _| 0.0).verdict();
    assert_eq!(verdict.job.steps, 200);
    assert_eq!(verdict.job.analysed_steps, alone.job.analysed_steps);
    assert!((verdict.job.exposed_s / alone.job.exposed_s - 1.0).abs() < 0.01);
}

#[test]
fn the_picture_shows_the_ranks_of_every_role() {
    let job = job(
        Some(ROLES),
        100,
        |_, rank| if rank == 3 { 0.05 } else { 0.0 },
    );
    let series = job.series();
    assert_eq!(series.ranks(), [0, 1, 2, 3]);
    let data = model::StageId::DATA;
    let column = &series.columns()[10];
    assert_eq!(series.columns().len(), 99);
    assert!(column.lag_s[&data][3] > 0.04 && column.lag_s[&data][1] < 0.001);
}

#[test]
fn what_all_ranks_of_a_role_do_is_said_of_that_role() {
    let job = job(
        Some(ROLES),
        100,
        |_, rank| if rank >= 2 { 0.05 } else { 0.0 },
    );
    let verdict = job.verdict();
    let text = &verdict.incidents[0].text;
    assert!(
        text.starts_with("all of ranks 2-3 wait in data.next_wait"),
        "{text}"
    );
}

#[test]
fn a_fault_that_pauses_for_one_window_stays_one_incident() {
    let paused = job(None, 200, |step, rank| {
        if rank == 1 && step / 50 != 1 {
            0.05
        } else {
            0.0
        }
    });
    assert_eq!(paused.verdict().incidents.len(), 1);
    let away = job(None, 300, |step, rank| {
        if rank == 1 && !(1..5).contains(&(step / 50)) {
            0.05
        } else {
            0.0
        }
    });
    assert_eq!(away.verdict().incidents.len(), 2);
}

#[test]
fn a_tail_too_short_for_a_window_is_counted_as_seen() {
    let verdict = job(None, 53, |_, _| 0.0).verdict();
    assert_eq!((verdict.job.steps, verdict.job.analysed_steps), (53, 49));
}
