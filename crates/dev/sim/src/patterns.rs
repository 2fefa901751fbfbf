//! The worked examples of the method, as windows.
//!
//! # Source
//! StageFrontier (2026), its examples; ours where docs/math/frontier.md has them.

use model::{StageId, Window};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::{STAGES, window_of};

const THREE: [StageId; 3] = [StageId::DATA, StageId::FORWARD, StageId::BACKWARD];

fn noisy(stages: &[StageId], ranks: &[&[f64]], steps: usize, noise: f64, seed: u64) -> Window {
    let mut random = SmallRng::seed_from_u64(seed);
    let rows: Vec<Vec<Vec<f64>>> = (0..steps)
        .map(|_| {
            ranks
                .iter()
                .map(|row| {
                    row.iter()
                        .map(|s| s * random.random_range(1.0 - noise..=1.0 + noise))
                        .collect()
                })
                .collect()
        })
        .collect();
    window_of(stages, &rows)
}

/// The motivating pattern: one rank waits five seconds for data, the others wait for it in
/// their backward pass.
pub fn sync_wait(steps: usize, noise: f64, seed: u64) -> Window {
    let ranks: [&[f64]; 3] = [&[1.0, 1.0, 6.0], &[1.0, 1.0, 6.0], &[5.0, 1.0, 2.0]];
    noisy(&THREE, &ranks, steps, noise, seed)
}

/// Every rank spends six seconds in a forward pass that should take two.
pub fn direct_exposure(steps: usize, noise: f64, seed: u64) -> Window {
    let ranks: [&[f64]; 3] = [&[1.0, 6.0, 2.0]; 3];
    noisy(&THREE, &ranks, steps, noise, seed)
}

/// Two ranks whose durations fit one straggler and two independent paths alike.
pub fn not_identifiable(steps: usize, noise: f64, seed: u64) -> Window {
    let ranks: [&[f64]; 2] = [&[10.0, 1.0], &[1.0, 10.0]];
    noisy(
        &[StageId::DATA, StageId::BACKWARD],
        &ranks,
        steps,
        noise,
        seed,
    )
}

/// Two stages that cost the same on every rank.
pub fn tied_stages(steps: usize, noise: f64, seed: u64) -> Window {
    let ranks: [&[f64]; 3] = [&[4.0, 4.0, 1.0]; 3];
    noisy(&THREE, &ranks, steps, noise, seed)
}

/// The leader of the data wait changes from step to step.
pub fn alternating_leader(steps: usize) -> Window {
    let rows: Vec<Vec<Vec<f64>>> = (0..steps)
        .map(|step| {
            let mut ranks = vec![vec![1.0, 1.0, 6.0]; 3];
            // Each rank leads every third step by a wide gap: all steps are confident, and no two
            // neighbours have one leader.
            ranks[step % 3] = vec![5.0, 1.0, 2.0];
            ranks
        })
        .collect();
    window_of(&THREE, &rows)
}

/// One rank's optimizer is late and nothing after it in the step waits.
pub fn late_optimizer(steps: usize, noise: f64, seed: u64) -> Window {
    let usual: [f64; 6] = [0.02, 0.03, 0.05, 0.0, 0.01, 0.002];
    let mut late = usual;
    late[4] += 0.08;
    noisy(
        &STAGES,
        &[&usual, &usual, &late, &usual],
        steps,
        noise,
        seed,
    )
}

/// Every tenth step one rank spends `spike_s` more in its callbacks; the others wait there.
pub fn periodic_callback(steps: usize, spike_s: f64, noise: f64, seed: u64) -> Window {
    let mut random = SmallRng::seed_from_u64(seed);
    let usual = [0.002, 0.008, 0.016, 0.001, 0.003, 0.0001];
    let rows: Vec<Vec<Vec<f64>>> = (0..steps)
        .map(|step| {
            let spike = if step % 10 == 0 { spike_s } else { 0.0 };
            (0..4)
                .map(|_| {
                    let mut row: Vec<f64> = usual
                        .iter()
                        .map(|s| s * random.random_range(1.0 - noise..=1.0 + noise))
                        .collect();
                    // All ranks have it: one is late, and the others wait for it in the same stage.
                    row[3] += spike;
                    row
                })
                .collect()
        })
        .collect();
    window_of(&STAGES, &rows)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use frontier::{Baseline, Gates, PeerMethod, analyse, localise, peer_scores, ranking};
    use model::Label;

    use super::*;

    fn labels(window: &Window, gates: &Gates, baseline: &Baseline) -> Vec<Label> {
        analyse(window, gates, baseline).labels
    }

    fn default_labels(window: &Window) -> Vec<Label> {
        labels(window, &Gates::default(), &Baseline::CohortMedian)
    }

    fn vouched() -> Gates {
        Gates {
            model_fit: true,
            ..Gates::default()
        }
    }

    fn reference(stage: StageId, seconds: f64) -> Baseline {
        Baseline::Reference(BTreeMap::from([(stage, seconds)]))
    }

    #[test]
    fn the_motivating_numbers_come_out() {
        let window = sync_wait(1, 0.0, 0);
        let found = analyse(&window, &Gates::default(), &Baseline::CohortMedian);
        assert_eq!(found.share, [0.625, 0.125, 0.25]);
        assert_eq!(found.gain[0], 0.0);
        let max = peer_scores(&window, &found.stages, PeerMethod::Max);
        assert_eq!(max, [5.0, 1.0, 6.0]);
        assert_eq!(ranking(&max)[0], 2);
    }

    /// SF-A4.
    #[test]
    fn a_sync_wait_is_ranked_first_by_the_frontier_only() {
        for seed in 0..200 {
            let window = sync_wait(1, 0.05, seed);
            let found = analyse(&window, &Gates::default(), &Baseline::CohortMedian);
            assert_eq!(ranking(&found.share)[0], 0);
            for method in [PeerMethod::Max, PeerMethod::Mean] {
                let scores = peer_scores(&window, &found.stages, method);
                assert_eq!(ranking(&scores)[0], 2, "{method:?}");
            }
        }
    }

    #[test]
    fn a_sync_wait_is_called_so_only_if_the_caller_vouches() {
        let window = sync_wait(100, 0.02, 1);
        assert!(default_labels(&window).contains(&Label::CoCritical));
        let vouched = labels(&window, &vouched(), &Baseline::CohortMedian);
        assert!(vouched.contains(&Label::SyncWaitDependent));
        assert!(vouched.contains(&Label::LikelySyncWait));
    }

    /// SF-A5.
    #[test]
    fn a_slow_stage_of_all_ranks_is_directly_exposed_against_a_reference() {
        for seed in 0..200 {
            let window = direct_exposure(1, 0.05, seed);
            let gates = Gates::default();
            let found = analyse(&window, &gates, &reference(StageId::FORWARD, 2.0));
            assert!(found.labels.contains(&Label::DirectExposure), "seed {seed}");
        }
        let window = direct_exposure(1, 0.0, 0);
        let found = analyse(
            &window,
            &Gates::default(),
            &reference(StageId::FORWARD, 2.0),
        );
        assert!((found.gain[1] - 4.0 / 9.0).abs() < 1e-12);
    }

    #[test]
    fn a_late_optimizer_that_nobody_waits_for_is_directly_exposed() {
        let window = late_optimizer(100, 0.01, 3);
        let found = analyse(&window, &Gates::default(), &Baseline::CohortMedian);
        assert!(found.labels.contains(&Label::DirectExposure));
        assert!((found.gain[4] - 0.417).abs() < 0.02, "{}", found.gain[4]);
    }

    #[test]
    fn what_cannot_be_distinguished_is_co_critical() {
        for window in [tied_stages(50, 0.01, 1), alternating_leader(60)] {
            let found = analyse(&window, &vouched(), &Baseline::CohortMedian);
            assert!(
                found.labels.contains(&Label::CoCritical),
                "{:?}",
                found.labels
            );
            assert!(!found.labels.iter().any(|label| label.is_strong()));
        }
        let found = analyse(
            &not_identifiable(50, 0.02, 1),
            &Gates::default(),
            &Baseline::CohortMedian,
        );
        assert_eq!(found.co_critical, [StageId::DATA, StageId::BACKWARD]);
    }

    #[test]
    fn who_is_last_now_and_then_is_not_in_the_tie() {
        let late = |rank: usize| -> Vec<Vec<f64>> {
            (0..3)
                .map(|one| vec![if one == rank { 5.0 } else { 1.0 }, 1.0])
                .collect()
        };
        let steps: Vec<_> = (0..60)
            .map(|step| late(usize::from(step % 3 == 0)))
            .collect();
        let window = window_of(&[StageId::DATA, StageId::BACKWARD], &steps);
        let gates = Gates::default();
        let found = analyse(&window, &gates, &Baseline::CohortMedian);
        let local = localise(&window, &found, StageId::DATA, &gates);
        assert_eq!((local.tie_set, local.leaders.len()), (vec![0], 2));
    }

    type Doubt = fn(&mut Window);

    /// SF-A6: each doubt about the evidence fires its own downgrade and no strong label.
    #[test]
    fn four_doubts_fire_four_downgrades() {
        let strong = late_optimizer(100, 0.01, 3);
        let doubts: [(Doubt, Label); 7] = [
            (|w| w.missing_ranks.push(9), Label::TelemetryLimited),
            (
                |w| w.closure.residual_share = 0.107,
                Label::TelemetryLimited,
            ),
            (|w| w.closure.overlap_share = 0.02, Label::TelemetryLimited),
            (|w| w.unsafe_prefetch = true, Label::TelemetryLimited),
            (|w| w.roles = 2, Label::RoleAwareNeeded),
            (
                |w| w.accumulation_collapsed = true,
                Label::GradientAccumulationAmbiguous,
            ),
            (
                |w| w.odd_accumulation_steps = 21,
                Label::GradientAccumulationAmbiguous,
            ),
        ];
        for (doubt, label) in doubts {
            let mut window = strong.clone();
            doubt(&mut window);
            let labels = default_labels(&window);
            assert!(labels.contains(&label), "{label} is not in {labels:?}");
            if label != Label::GradientAccumulationAmbiguous {
                assert!(!labels.iter().any(|label| label.is_strong()), "{labels:?}");
            }
        }
        assert!(default_labels(&tied_stages(50, 0.01, 1)).contains(&Label::CoCritical));
    }

    #[test]
    fn a_window_without_a_whole_step_says_only_that() {
        let mut window = sync_wait(1, 0.0, 0);
        window.blocks.clear();
        assert_eq!(default_labels(&window), [Label::TelemetryLimited]);
    }

    #[test]
    fn device_times_speak_for_and_against_the_forward_pass() {
        let mut window = direct_exposure(50, 0.01, 1);
        window.device.enabled = true;
        assert!(default_labels(&window).contains(&Label::ForwardEventScopeLimited));
        window.device.ready_s = vec![5.8; 20];
        assert!(default_labels(&window).contains(&Label::ForwardDeviceSupported));
        window.device.ready_s = vec![0.4; 20];
        assert!(default_labels(&window).contains(&Label::ForwardHostOverheadSuspected));
        window.device.lost = 20;
        assert!(default_labels(&window).contains(&Label::ForwardEventScopeLimited));
        let mut later = sync_wait(50, 0.01, 1);
        later.device.enabled = true;
        later.device.ready_s = vec![6.0; 20];
        for row in later.blocks[0].durations_s.chunks_mut(9) {
            row[6..9].fill(9.0);
        }
        assert!(default_labels(&later).contains(&Label::ForwardSpilloverSuspected));
    }

    /// SF-A19.
    #[test]
    fn a_rare_spike_keeps_its_exact_share() {
        let window = periodic_callback(200, 0.36, 0.02, 5);
        let found = analyse(&window, &Gates::default(), &Baseline::CohortMedian);
        let slot = found.slot(StageId::CALLBACKS).unwrap();
        let spikes = 20.0 * 0.36;
        assert!((found.share[slot] - spikes / found.exposed_s).abs() < 0.03);
        let mut middle: Vec<f64> = found
            .steps
            .iter()
            .filter_map(|step| Some(step.stages[slot]?.advance_s))
            .collect();
        assert!(model::median(&mut middle).unwrap() < 0.002);
    }
}
