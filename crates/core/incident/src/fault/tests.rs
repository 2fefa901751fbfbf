use frontier::{Baseline, analyse};
use model::{Block, Sync};

use super::*;
use crate::testkit::{self, block};

/// A window of one stage, durations in seconds by step and rank.
fn window(ranks: u32, steps: u64, duration_s: impl Fn(u64, u64) -> f64) -> Window {
    let segment = (StageId::BACKWARD, MarkKind::BackwardEnd);
    let all_ranks = 0..u64::from(ranks);
    let cells_s = (0..steps)
        .flat_map(|step| all_ranks.clone().map(move |rank| (step, rank)))
        .map(|(step, rank)| duration_s(step, rank));
    block(&[segment], ranks as usize, steps, cells_s.collect()).into()
}

fn faults_of(window: &Window) -> Vec<Fault> {
    testkit::faults_of(window, |_, _, _| {})
}

/// More ranks than cores: every step of every rank is off by up to 30 ms.
fn noise_s(step: u64, rank: u64) -> f64 {
    ((step * 8 + rank) * 7919 % 61) as f64 * 1e-3
}

#[test]
fn who_is_late_in_every_step_is_found_below_the_noise_of_a_step() {
    let late = |rank| if rank == 1 { 0.070 } else { 0.0 };
    let noisy = window(8, 50, |step, rank| 0.1 + noise_s(step, rank) + late(rank));
    let faults = faults_of(&noisy);
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].ranks, [1]);
    assert!(faults[0].notable);
}

#[test]
fn who_is_late_by_a_tenth_of_it_has_no_part_in_the_fault() {
    let late = |rank| [0.0, 0.100, 0.0, 0.010, 0.0, 0.080][rank as usize];
    let faults = faults_of(&window(6, 50, |_, rank| 0.1 + late(rank)));
    assert_eq!(faults[0].ranks, [1, 5]);
}

#[test]
fn what_varies_on_all_ranks_alike_hides_nobody() {
    // A collective that takes 20 to 80 ms, in too few steps to be late in each.
    let late = |rank| if rank == 1 { 0.020 } else { 0.0 };
    let busy = window(4, 8, |step, rank| 0.05 + noise_s(step, 0) + late(rank));
    let faults = faults_of(&busy);
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].ranks, [1]);
}

#[test]
fn noise_alone_is_no_fault() {
    assert_eq!(
        faults_of(&window(8, 50, |step, rank| 0.1 + noise_s(step, rank))),
        []
    );
}

/// Batches of random size: one of three ranks that are late now and then is so more often.
#[test]
fn who_is_late_three_times_among_others_is_late_by_chance() {
    let late_s = |step, rank| match (step, rank) {
        (2 | 9 | 15, 0) => 0.060,
        (5 | 12 | 20, 1) => 0.042,
        (7, 2) => 0.035,
        _ => 0.0,
    };
    let faults = faults_of(&window(3, 21, |step, rank| 0.04 + late_s(step, rank)));
    assert_eq!(faults.len(), 1, "{faults:#?}");
    assert_eq!(faults[0].kind, FaultKind::Rotating);
}

/// Ranks average their weights every eighth step, and wait for a slow one there.
#[test]
fn who_is_late_in_most_steps_does_not_rotate_with_those_that_wait_for_it() {
    let late_s = |step, rank| match rank {
        1 => f64::from(u8::from(step % 8 != 7)) * 0.025,
        _ => f64::from(u8::from(step % 8 == 7)) * (0.170 + rank as f64 * 1e-3),
    };
    let faults = faults_of(&window(3, 48, |step, rank| 0.02 + late_s(step, rank)));
    let steady = faults.iter().find(|fault| fault.strikes.len() == 42);
    assert_eq!(
        steady.map(|fault| &fault.ranks[..]),
        Some(&[1][..]),
        "{faults:#?}"
    );
}

/// The same with weights that are averaged every third step, and ranks that are not seen to meet.
#[test]
fn who_is_late_in_most_steps_is_named_where_ranks_do_not_meet_in_each() {
    let late_s = |step, rank| match rank {
        1 => f64::from(u8::from(step % 3 != 2)) * 0.025,
        _ => f64::from(u8::from(step % 3 == 2)) * (0.070 + rank as f64 * 1e-3),
    };
    let window = window(3, 48, |step, rank| 0.02 + late_s(step, rank));
    let (gates, settings) = (Gates::default(), IncidentSettings::default());
    let found = analyse(&window, &gates, &Baseline::CohortMedian);
    let lateness = Lateness::of_window(&window, &found, &gates, &settings);
    let kinds = |turns| {
        let faults = find_in_stages(&window, &found, &lateness, &gates, turns).into_iter();
        faults
            .map(|fault| (fault.kind, fault.ranks))
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds(Turns::Rotate), [(FaultKind::Rotating, vec![])]);
    assert_eq!(kinds(Turns::WaitForOne), [(FaultKind::LateRanks, vec![1])]);
}

/// Of steps that are cut before the optimizer, its stage lies in the one before. Where ranks went
/// through different stages nobody knows, so that two rows may tell of one step.
#[test]
fn two_rows_that_tell_of_one_step_strike_it_once() {
    let segments = [
        (StageId::OPTIMIZER, MarkKind::OptimizerEnd),
        (StageId::BACKWARD, MarkKind::BackwardEnd),
    ];
    let block = |steps: &[u64], carried| {
        let late = |step: u64, rank| f64::from(u8::from(rank == 2 && (step == 11 || step == 12)));
        let row = |step: &u64| {
            let optimizer_s = [0, 1, 2, 3].map(|rank| 0.01 + late(*step, rank));
            [optimizer_s, [0.1; 4]].concat()
        };
        Block {
            steps: steps.to_vec(),
            carried,
            ..testkit::block(&segments, 4, 0, steps.iter().flat_map(row).collect())
        }
    };
    let alike: Vec<u64> = (0..40).filter(|step| *step != 11).collect();
    let window = Window {
        blocks: vec![block(&alike, 1), block(&[11], 0)],
        ..Window::from(block(&alike, 1))
    };
    let faults = faults_of(&window);
    assert_eq!(faults[0].strikes, [11]);
    assert!(
        (faults[0].lateness_s - 2.0).abs() < 1e-9,
        "{}",
        faults[0].lateness_s
    );
}

/// Some steps go from forward to backward, and in two of them there is another mark between.
#[test]
fn a_step_without_a_place_does_not_hide_where_the_others_are_late() {
    let block = |after, steps: std::ops::Range<u64>| {
        let boundary = Boundary {
            stage: StageId::OTHER,
            after,
            ending: Ending::Mark(MarkKind::BackwardBegin),
            sync: Sync::None,
        };
        let row = [0.1, 0.2, 0.1, 0.1];
        Block {
            boundaries: [boundary].into(),
            durations_s: row.repeat((steps.end - steps.start) as usize),
            steps: steps.collect(),
            ..testkit::block(&[], 4, 0, Vec::new())
        }
    };
    let forward = block(MarkKind::ForwardEnd, 2..40);
    let window = Window {
        blocks: vec![block(MarkKind::BackwardEnd, 0..2), forward.clone()],
        ..forward.into()
    };
    let place = StepPlace::BetweenForwardAndBackward;
    assert_eq!(faults_of(&window)[0].place, Some(place));
}

/// Two groups of two that meet apart: rank 1 is late, and rank 0 waits for it.
#[test]
fn who_never_meets_a_late_rank_is_no_victim() {
    let mut window = window(4, 20, |_, _| 0.0);
    let boundary = |sync| Boundary {
        sync,
        ..window.blocks[0].boundaries[0].clone()
    };
    let boundaries = [boundary(Sync::Assumed), boundary(Sync::None)];
    let row = [0.1, 0.2, 0.1, 0.1, 0.15, 0.05, 0.05, 0.05];
    window.blocks[0] = Block {
        boundaries: boundaries.into(),
        groups: Some([0, 0, 1, 1, 0, 0, 1, 1].into()),
        durations_s: row.repeat(20),
        ..window.blocks[0].clone()
    };
    let faults = faults_of(&window);
    let found: Vec<_> = faults
        .iter()
        .map(|it| (&it.ranks[..], it.victims.to_string()))
        .collect();
    assert_eq!(found, [(&[1][..], "0".to_owned())]);
}

/// Each comparison of all ranks with all ranks shows here as minutes.
#[test]
fn ten_thousand_late_ranks_are_weighed_in_passing() {
    let every_other = window(20_001, 6, |step, rank| {
        1.0 + ((step * 20_001 + rank) % 2) as f64
    });
    assert_eq!(faults_of(&every_other)[0].lateness_s, 1.0);
}
