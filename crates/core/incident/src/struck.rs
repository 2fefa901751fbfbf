//! What lateness now and then costs where hosts run ahead of devices that make no marks.

use frontier::WindowFrontier;
use model::{Block, Meeting, Window, keep_variation};

use crate::fault::judge_window;
use crate::{Fault, FaultKind, IncidentSettings};

/// Steps behind one that is struck which count with it: the others may wait in the next one only, where
/// ranks are seen to meet in each. Else hosts catch up, and a launch queue holds the work of a few steps.
/// Ours.
const NEXT: usize = 1;
const CATCH_UP: usize = 10;

/// Charges late ranks no more than what the steps they strike take longer than those that nothing
/// strikes: launch queues absorb a part of the lateness. Changes nothing where these are fewer.
///
/// # Source
/// Ours: docs/math/meetings.md.
pub(crate) fn charge_struck(
    faults: &mut [Fault],
    window: &Window,
    found: &WindowFrontier,
    settings: &IncidentSettings,
) {
    let behind = match window.meeting {
        Meeting::Seen => NEXT,
        _ => CATCH_UP,
    };
    let place = |at: usize| {
        let step = &found.steps[at];
        (&window.blocks[step.block], step.row)
    };
    let count = found.steps.len();
    let struck: Vec<Vec<usize>> = faults
        .iter()
        .map(|fault| {
            let mut left = 0;
            let places = (0..count).filter(|at| {
                let (block, row) = place(*at);
                left = if strikes_row(fault, block, row) {
                    behind + 1
                } else {
                    left.saturating_sub(1)
                };
                left > 0
            });
            places.collect()
        })
        .collect();
    let free: Vec<usize> = (0..count)
        .filter(|at| struck.iter().all(|its| its.binary_search(at).is_err()))
        .collect();
    let rare: Vec<(&mut Fault, Vec<usize>)> = faults
        .iter_mut()
        .zip(struck)
        .filter(|(fault, its)| fault.kind == FaultKind::LateRanks && its.len() < free.len())
        .collect();
    // Mostly there is none, and adding up what many ranks take is the work.
    if rare.is_empty() {
        return;
    }
    let took_s = |at: &usize| {
        let (block, row) = place(*at);
        block.took_s(row)
    };
    let (usual_s, _) = usual_s(free.iter().map(took_s).collect());
    for (fault, its) in rare {
        let longer_s = its.iter().map(|at| took_s(at) - usual_s).sum::<f64>();
        fault.cost_s = fault.cost_s.min(longer_s.max(0.0));
        fault.gain_alone_s = fault.gain_alone_s.min(longer_s.max(0.0));
    }
    judge_window(faults, found, settings);
}

/// What steps take on average, those that are far off counted as the furthest that are not, and the square of
/// its standard error.
pub(crate) fn usual_s(mut took_s: Vec<f64>) -> (f64, f64) {
    let count = took_s.len().max(1) as f64;
    let median_s = keep_variation(&mut took_s);
    let mean_s = took_s.iter().sum::<f64>() / count;
    let squares: f64 = took_s.iter().map(|it| (it - mean_s).powi(2)).sum();
    (median_s + mean_s, squares / count.powi(2))
}

/// Whether a fault strikes a row of a block, some of whose stages may lie in the step before.
pub(crate) fn strikes_row(fault: &Fault, block: &Block, row: usize) -> bool {
    let mut stages = block.boundaries.iter().map(|boundary| boundary.stage);
    stages.any(|stage| fault.strikes_in(block, row, stage))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{CollectiveOp, MarkKind, StageId, Sync};

    use super::*;
    use crate::testkit::{block, faults_of};

    /// What faults cost of 50 steps of four ranks that meet where they read something back: hosts take
    /// 9 ms, devices 29. Every tenth or each step, as asked for, rank 2 is 60 ms late in its forward pass.
    fn charged_s(every: u64) -> f64 {
        let segments = [
            (StageId::DATA, MarkKind::DataEnd),
            (StageId::FORWARD, MarkKind::BackwardBegin),
            (StageId::CALLBACKS, MarkKind::DataBegin),
        ];
        let mut durations_s = Vec::new();
        for step in 0..50 {
            let late_s = if step % every == 5 % every {
                0.060
            } else {
                0.0
            };
            let late = |rank: usize| if rank == 2 { late_s } else { 0.0 };
            let noise_s = |rank: usize| ((step * 4 + rank as u64) * 7919 % 13) as f64 * 1e-6;
            let forward_s = |rank: usize| 0.006 + late(rank) + noise_s(rank);
            // Of what the host launches late, 2 ms are left when it has.
            let done_s = f64::max(0.029, 0.002 + forward_s(2) + 0.002);
            durations_s.extend([0.002; 4]);
            durations_s.extend((0..4).map(forward_s));
            durations_s.extend((0..4).map(|rank| done_s - 0.002 - forward_s(rank)));
        }
        let mut block = block(&segments, 4, 50, durations_s);
        Arc::make_mut(&mut block.boundaries)[1].sync = Sync::Issue(CollectiveOp::ALLREDUCE);
        let window = Window {
            meeting: Meeting::Seen,
            ..block.into()
        };
        let faults = faults_of(&window, |faults, found, settings| {
            assert_eq!(faults[0].ranks, [2]);
            charge_struck(faults, &window, found, settings);
        });
        faults.iter().map(|fault| fault.cost_s).sum()
    }

    #[test]
    fn what_the_queue_absorbs_of_a_pause_costs_nothing() {
        // Steps of 70 ms instead of 29.
        assert!(
            (charged_s(10) - 5.0 * 0.041).abs() < 1e-3,
            "{}",
            charged_s(10)
        );
    }

    #[test]
    fn usual_steps_are_their_mean_and_those_far_off_count_little() {
        assert!((usual_s(vec![1.0, 2.0, 2.0, 4.0]).0 - 2.25).abs() < 1e-9);
        assert!((usual_s(vec![1.0, 2.0, 3.0, 90.0]).0 - 3.125).abs() < 1e-9);
    }

    #[test]
    fn without_a_step_that_is_not_struck_nothing_is_known_of_it() {
        assert!(
            (charged_s(1) - 50.0 * 0.060).abs() < 1e-2,
            "{}",
            charged_s(1)
        );
    }
}
