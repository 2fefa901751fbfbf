//! How often runs that are equal but for noise are called different, and how often runs
//! that differ are: the numbers of docs/compare.md.

use laggard_comparison::{Comparison, MIN_CHANGE_SHARE, Outcome, Run, compare};
use model::{JobSummary, SCHEMA, Source, StageSummary, Verdict, WindowSummary};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Normal, StandardNormal};

const STAGES: [&str; 3] = ["data.next_wait", "forward", "backward"];
/// Parts of a step of 100 ms.
const PARTS_S: [f64; 3] = [0.02, 0.03, 0.05];

/// A run whose every step is a window of its own.
fn run(steps: &[[f64; 3]]) -> Run {
    let stages = STAGES.map(|name| StageSummary {
        name: name.to_owned(),
        advance_s: 0.0,
        share: 0.0,
        gain: 0.0,
        lead_ranks: Vec::new(),
    });
    let windows = steps.iter().zip(0..).map(|(parts, first_step)| {
        let whole_s: f64 = parts.iter().sum();
        WindowSummary {
            first_step,
            steps: 1,
            labels: Vec::new(),
            candidates: Vec::new(),
            co_critical_stages: Vec::new(),
            downgrades: Vec::new(),
            step_s: whole_s,
            shares: parts.iter().map(|part| part / whole_s.max(1e-12)).collect(),
            missing_ranks: Vec::new(),
        }
    });
    Run::of_verdict(Verdict {
        schema: SCHEMA.to_owned(),
        job: JobSummary {
            id: "job".to_owned(),
            ranks: 4,
            steps: steps.len() as u64,
            analysed_steps: steps.len() as u64,
            source: Source::Marks,
            cut: "backward end".to_owned(),
            exposed_s: 0.0,
            device_wait_share: None,
            hosts_run_ahead: false,
            hosts_may_run_ahead: false,
            device_issues_unseen: false,
            stages_on_devices: false,
            partly_seen: false,
            unrecorded_share: 0.0,
            ranks_unseen: false,
            uncompared_ranks: Vec::new(),
            unlike_devices: Vec::new(),
            ambiguous_steps: 0,
            sampled_steps: 0,
            read_backs: Vec::new(),
            lost_records: 0,
        },
        stages: stages.to_vec(),
        side_channels: Vec::new(),
        windows: windows.collect(),
        pipeline: None,
        incidents: Vec::new(),
        what_if: None,
        absorbed: Vec::new(),
        notes: Vec::new(),
        profile: None,
    })
}

/// What makes equal runs differ.
#[derive(Clone, Copy, Debug)]
enum Noise {
    /// Every step by itself, by 5 %.
    Steps,
    /// Five in a hundred steps take three times as long.
    Spikes,
    /// The machine is slower for some twenty steps, by 5 %.
    Spells,
    /// For some two hundred, by 3 %.
    LongSpells,
    /// Runs differ from each other by 1 % throughout, steps by 5 %.
    Runs,
}

const NOISES: [Noise; 5] = [
    Noise::Steps,
    Noise::Spikes,
    Noise::Spells,
    Noise::LongSpells,
    Noise::Runs,
];

/// Steps of a run whose data wait takes `more` of a step longer.
fn noisy(noise: Noise, steps: usize, more: f64, random: &mut SmallRng) -> Run {
    let mut normal = || -> f64 { StandardNormal.sample(random) };
    // A spell of n steps: each is like the one before, but for 1/n.
    let (own, memory) = match noise {
        Noise::Spells => (0.05, 0.95),
        Noise::LongSpells => (0.03, 0.995),
        _ => (0.05, 0.0),
    };
    let all = if matches!(noise, Noise::Runs) {
        0.01 * normal()
    } else {
        0.0
    };
    let mut now = own * normal();
    let fresh = f64::sqrt(1.0 - memory * memory);
    let factors: Vec<f64> = (0..steps)
        .map(|_| {
            now = memory * now + fresh * own * normal();
            (all + now).exp()
        })
        .collect();
    let steps: Vec<[f64; 3]> = factors
        .into_iter()
        .map(|factor| {
            let hit = matches!(noise, Noise::Spikes) && random.random_bool(0.05);
            let factor = if hit { factor * 3.0 } else { factor };
            let jitter = Normal::new(1.0, 0.02).expect("a deviation");
            let mut parts = PARTS_S.map(|part: f64| part * factor * jitter.sample(random));
            parts[0] += 0.1 * more * factor;
            parts
        })
        .collect();
    run(&steps)
}

/// Pairs of `steps` steps, of which B takes `more` longer: how many are called slower, and
/// of how many of these data loading is named first.
fn count(noise: Noise, steps: usize, more: f64, pairs: u64) -> (u64, u64) {
    let (mut slower, mut named) = (0, 0);
    for seed in 0..pairs {
        let mut random = SmallRng::seed_from_u64(seed);
        let a = noisy(noise, steps, 0.0, &mut random);
        let b = noisy(noise, steps, more, &mut random);
        let found = compare(&a, &b, MIN_CHANGE_SHARE);
        if found.outcome == Outcome::Slower {
            slower += 1;
            let sure = found.stages.iter().filter(|stage| stage.change.is_sure());
            let most =
                sure.max_by(|one, other| one.change.change_s.total_cmp(&other.change.change_s));
            named += u64::from(most.is_some_and(|stage| stage.stage == STAGES[0]));
        }
    }
    (slower, named)
}

#[test]
fn equal_runs_are_hardly_ever_called_slower() {
    for noise in NOISES {
        for steps in [60, 300, 1000] {
            let (slower, _) = count(noise, steps, 0.0, 400);
            eprintln!("{noise:?}, {steps} steps: {slower} of 400 equal pairs are slower");
            // A run that is shorter than a spell lies in or beside it: that is a change.
            let is_short = matches!(noise, Noise::LongSpells) && steps < 1000;
            assert!(
                is_short || slower <= 4,
                "{noise:?}, {steps} steps: {slower} of 400"
            );
        }
    }
}

#[test]
fn what_is_slower_by_more_than_noise_is_called_so_and_its_stage_named() {
    // Of 50. Of what is 5 % slower only 2 % are left above what counts.
    let least = [(0.05, [45, 0, 0, 0, 35]), (0.10, [45, 30, 35, 0, 45])];
    for (more, least) in least {
        for (noise, least) in NOISES.into_iter().zip(least) {
            let (slower, named) = count(noise, 1000, more, 50);
            eprintln!("{noise:?}, +{more}: {slower} of 50 are slower, {named} named");
            assert!(slower >= least && slower - named <= 3, "{noise:?}, +{more}");
        }
    }
}

fn steps(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<[f64; 3]>> {
    prop::collection::vec(prop::array::uniform3(0.001..1.0_f64), count)
}

/// What a comparison says, apart from numbers.
fn said(comparison: &Comparison) -> (Outcome, Vec<Outcome>) {
    let stages = comparison.stages.iter().map(|stage| stage.change.outcome);
    (comparison.outcome, stages.collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_run_is_like_itself(steps in steps(8..80), least in 0.0..0.5_f64) {
        let run = run(&steps);
        let found = compare(&run, &run, least);
        prop_assert_eq!(said(&found), (Outcome::Same, vec![Outcome::Same; 3]));
        prop_assert!(!found.regression);
    }

    /// Powers of two: they change no digit.
    #[test]
    fn the_unit_of_time_does_not_matter(a in steps(8..80), b in steps(8..80), power in -20..20_i32) {
        let scale = |steps: &[[f64; 3]]| -> Vec<[f64; 3]> {
            steps.iter().map(|parts| parts.map(|part| part * f64::powi(2.0, power))).collect()
        };
        let found = compare(&run(&a), &run(&b), 0.03);
        let scaled = compare(&run(&scale(&a)), &run(&scale(&b)), 0.03);
        prop_assert_eq!(said(&found), said(&scaled));
    }

    #[test]
    fn what_triples_every_step_is_always_found(a in steps(320..400)) {
        let b: Vec<[f64; 3]> = a.iter().map(|parts| parts.map(|part| part + 6.0)).collect();
        prop_assert_eq!(compare(&run(&a), &run(&b), 0.03).outcome, Outcome::Slower);
        prop_assert_eq!(compare(&run(&b), &run(&a), 0.03).outcome, Outcome::Faster);
    }

    #[test]
    fn too_few_steps_say_nothing(a in steps(0..8), b in steps(8..80)) {
        let found = compare(&run(&a), &run(&b), 0.03);
        prop_assert_eq!(found.outcome, Outcome::Undecided);
        prop_assert!(found.step.is_none() && !found.notes.is_empty());
    }
}
