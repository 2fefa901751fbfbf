//! What sampled steps say a job would take without some of its faults, beside the job without them.

use std::collections::BTreeMap;

use frontier::{Excess, QueueReplay};
use laggard_sim::{AheadJob, ReadBack, Slow, SlowSpot};
use model::{DeviceWindow, Event, Input, Side, StageId};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use steps::DeviceClock;

use crate::ahead::{any_job, jobs, verdict};

/// Jobs that are tried, of each shape; `LAGGARD_TEST_JOBS` tries more.
const JOBS: u64 = 100;
/// How far off a step without some faults may be predicted: half of the time, and in 95 of 100 cases.
const OFF_HALF: f64 = 0.01;
const OFF_95: f64 = 0.05;
/// How far off what all faults cost together may be, of a step: half of the time, and in 95 of 100
/// jobs. Who is late is less sure than what it costs where half of the ranks are.
const CHARGED_OFF_HALF: f64 = 0.02;
const CHARGED_OFF_95: f64 = 0.20;

/// Sampled steps of a job.
fn sampled(job: &AheadJob, inputs: &[Input]) -> DeviceWindow {
    let mut clock = DeviceClock::default();
    for input in inputs {
        if let Input::Mark { rank, mark } = input
            && let Event::DeviceTime(time) = &mark.event
        {
            clock.push(*rank, mark, time, StageId::OTHER);
        }
    }
    let ranks: Vec<u32> = (0..job.ranks).collect();
    clock
        .take_window(&ranks, u32::MAX, &BTreeMap::new())
        .expect("enough steps")
}

fn excess(slow: &Slow, steps: u32) -> Excess {
    let stages = match slow.spot {
        SlowSpot::Data => vec![StageId::DATA],
        SlowSpot::HostForward | SlowSpot::DeviceForward => vec![StageId::FORWARD],
        SlowSpot::Callback => vec![StageId::CALLBACKS],
        SlowSpot::Launches => vec![StageId::FORWARD, StageId::BACKWARD],
        SlowSpot::DeviceBackward => vec![StageId::BACKWARD],
        SlowSpot::DeviceOptimizer => vec![StageId::OPTIMIZER],
    };
    Excess {
        columns: slow.rank.into_iter().map(|rank| rank as usize).collect(),
        stages,
        side: Some(if slow.spot.is_device() {
            Side::Device
        } else {
            Side::Host
        }),
        rows: (0..u64::from(steps)).collect(),
        reads_back: false,
    }
}

/// A job with one to three faults, each on a rank of its own.
fn any_faulty(seed: u64, sharded: bool) -> AheadJob {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut job = AheadJob {
        sharded,
        ..any_job(seed, &mut rng)
    };
    for _ in 0..rng.random_range(1..4) {
        let fault = Slow {
            spot: SlowSpot::ALL[rng.random_range(0..SlowSpot::ALL.len())],
            rank: Some(rng.random_range(0..job.ranks)),
            late_s: 0.06 * rng.random::<f64>(),
            since: 0,
            every: 1,
        };
        // Of two ranks that are late in one place, none shows what it should take.
        let same = |it: &Slow| it.rank == fault.rank || job.ranks == 2 && it.spot == fault.spot;
        if !job.slow.iter().any(same) {
            job.slow.push(fault);
        }
    }
    job
}

fn name(seed: u64, job: &AheadJob) -> String {
    let faults = job.slow.iter().map(|slow| {
        let late_ms = slow.late_s * 1e3;
        format!("{:?} {late_ms:.1} ms on rank {:?}", slow.spot, slow.rank)
    });
    let faults: Vec<String> = faults.collect();
    format!(
        "{seed}: {:?}, {} ranks, {faults:?}",
        job.read_back, job.ranks
    )
}

/// The value that a share of some errors does not exceed, and the largest with what they are of.
fn quantile(errors: &mut [(f64, String)], share: f64) -> (f64, Vec<&(f64, String)>) {
    errors.sort_by(|a, b| a.0.total_cmp(&b.0));
    let at = ((errors.len() - 1) as f64 * share) as usize;
    (errors[at].0, errors.iter().rev().take(20).collect())
}

#[test]
fn a_step_without_some_faults_is_predicted() {
    predict(false);
}

#[test]
fn a_step_without_some_faults_is_predicted_where_parameters_are_sharded() {
    predict(true);
}

fn predict(sharded: bool) {
    let (mut errors, mut charged_errors) = (Vec::new(), Vec::new());
    for seed in 0..jobs(JOBS) {
        let job = any_faulty(seed, sharded);
        let run = job.run();
        let faults: Vec<Excess> = job
            .slow
            .iter()
            .map(|slow| excess(slow, job.steps))
            .collect();
        let replay = QueueReplay::of_window(&sampled(&job, &run.inputs), &faults);
        let replay = replay.unwrap_or_else(|| panic!("not explained: {}", name(seed, &job)));
        let mut healthy_s = 0.0;
        for subset in 1..1usize << faults.len() {
            let (fixed, left): (Vec<usize>, Vec<usize>) =
                (0..faults.len()).partition(|at| subset >> at & 1 == 1);
            let slow = left.iter().map(|at| job.slow[*at]).collect();
            healthy_s = AheadJob {
                slow,
                ..job.clone()
            }
            .run()
            .step_s;
            let predicted_s = run.step_s - replay.gain_s(&fixed);
            let what = format!(
                "{} without {fixed:?}: {:.1} instead of {:.1} ms, predicted {:.1}",
                name(seed, &job),
                healthy_s * 1e3,
                run.step_s * 1e3,
                predicted_s * 1e3,
            );
            errors.push(((predicted_s / healthy_s - 1.0).abs(), what));
        }
        let (said, step_s) = verdict(&job);
        let culprits: Vec<u32> = job.slow.iter().filter_map(|slow| slow.rank).collect();
        for incident in &said.incidents {
            let ranks = &incident.subject.ranks;
            let is_right = ranks.iter().all(|rank| culprits.contains(rank));
            assert!(
                is_right,
                "innocent in {}: {}",
                name(seed, &job),
                incident.text
            );
        }
        let costs_s: f64 = said.incidents.iter().map(|incident| incident.cost_s).sum();
        let charged_s = costs_s / said.job.analysed_steps as f64;
        let gain_s = step_s - healthy_s;
        let what = format!(
            "{} charged {:.1} of {:.1} ms",
            name(seed, &job),
            charged_s * 1e3,
            gain_s * 1e3
        );
        charged_errors.push(((charged_s - gain_s).abs() / step_s, what));
    }
    for (what, errors, half, most) in [
        ("predicted", &mut errors, OFF_HALF, OFF_95),
        (
            "charged",
            &mut charged_errors,
            CHARGED_OFF_HALF,
            CHARGED_OFF_95,
        ),
    ] {
        let (off_half, _) = quantile(errors, 0.5);
        let (off_most, worst) = quantile(errors, 0.95);
        assert!(
            off_half <= half && off_most <= most,
            "sharded {sharded}, {what}: off by {off_half:.4}, {off_most:.4}; {worst:#?}"
        );
    }
}

#[test]
fn a_pause_that_the_queue_hides_is_no_incident() {
    let mut said_of = Vec::new();
    for seed in 0..jobs(JOBS) {
        let spots = [SlowSpot::Data, SlowSpot::HostForward, SlowSpot::Callback];
        let mut rng = SmallRng::seed_from_u64(seed);
        let (rank, since) = (Some(rng.random_range(0..4)), rng.random_range(30..50));
        let (spot, late_s) = (spots[seed as usize % 3], 0.02 + 0.02 * rng.random::<f64>());
        let pause = Slow {
            spot,
            rank,
            late_s,
            since,
            every: 25,
        };
        let healthy = AheadJob {
            read_back: ReadBack::Never,
            ..AheadJob::new(seed)
        };
        let job = AheadJob {
            slow: vec![pause],
            ..healthy.clone()
        };
        let (said, step_s) = verdict(&job);
        let healthy_s = healthy.run().step_s;
        assert!(
            step_s < 1.003 * healthy_s,
            "{}: {step_s} {healthy_s}",
            name(seed, &job)
        );
        let texts = said.incidents.iter().map(|it| &it.text);
        said_of.extend(texts.map(|text| format!("{}: {text}", name(seed, &job))));
    }
    assert!(said_of.is_empty(), "{}: {said_of:#?}", said_of.len());
}
