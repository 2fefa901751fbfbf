use model::{Downgrade, Label, StageId, Window, median};

use crate::{Gates, WindowFrontier, localise, ranking};

/// The labeler's answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axes {
    /// Labels in their fixed order.
    pub labels: Vec<Label>,
    /// Stages that cannot be told apart; empty unless [`Label::CoCritical`] is set.
    pub co_critical: Vec<StageId>,
    /// Why strong labels were withheld.
    pub downgrades: Vec<Downgrade>,
}

/// Labels an accounted window, always in the same order and from the same gates.
///
/// # Properties
/// [`Label::TelemetryLimited`] and [`Label::RoleAwareNeeded`] exclude every strong label.
/// A single rank gets no label about other ranks.
/// # Source
/// StageFrontier (2026), its labeler; docs/labels.md.
pub fn label(window: &Window, found: &WindowFrontier, gates: &Gates) -> Axes {
    if found.steps.is_empty() || window.ranks.is_empty() {
        let downgrades = vec![Downgrade::NoWholeStep];
        let labels = vec![Label::TelemetryLimited];
        return Axes {
            labels,
            co_critical: Vec::new(),
            downgrades,
        };
    }
    let mut axes = Axes {
        labels: vec![Label::FrontierAccounting],
        ..Axes::default()
    };
    axes.downgrades = limits(window, gates);
    let limited = !axes.downgrades.is_empty();
    if limited {
        axes.labels.push(Label::TelemetryLimited);
    }
    let heterogeneous = window.roles > 1;
    if heterogeneous {
        axes.labels.push(Label::RoleAwareNeeded);
        axes.downgrades.push(Downgrade::RolesUngrouped {
            roles: window.roles,
        });
    }
    // A shorter accumulation ends each epoch: only where many steps are odd does the loop vary.
    if window.accumulation_collapsed || window.odd_accumulation_steps * 5 > window.steps {
        axes.labels.push(Label::GradientAccumulationAmbiguous);
        axes.downgrades.push(Downgrade::MicroSteps);
    }
    // Below the floor all shares are zero: every stage would tie with every other.
    if found.exposed_s >= gates.denom_floor_s {
        let cause_allowed = !limited && !heterogeneous;
        label_leading_stage(window, found, gates, cause_allowed, &mut axes);
        label_device(window, found, gates, &mut axes.labels);
    }
    // The fixed order of labels is that of the enum.
    axes.labels.sort_unstable();
    axes
}

/// Reasons why the telemetry of a window is incomplete.
fn limits(window: &Window, gates: &Gates) -> Vec<Downgrade> {
    let mut limits = Vec::new();
    if window.closure.residual_share > gates.closure_residual_max {
        let share = window.closure.residual_share;
        limits.push(Downgrade::Uncovered { share });
    }
    if window.closure.overlap_share > gates.overlap_error_max {
        let share = window.closure.overlap_share;
        limits.push(Downgrade::ClaimedTwice { share });
    }
    if window.missing_ranks.len() > gates.missing_rank_max {
        let ranks = window.missing_ranks.clone();
        limits.push(Downgrade::MissingRanks { ranks });
    }
    if window.unseen_ranks > gates.missing_rank_max {
        limits.push(Downgrade::UnseenRanks {
            ranks: window.unseen_ranks,
        });
    }
    if window.incomplete_steps > 0 {
        limits.push(Downgrade::IncompleteSteps {
            steps: window.incomplete_steps,
        });
    }
    if window.unsafe_prefetch {
        limits.push(Downgrade::BatchesReadAhead);
    }
    limits
}

fn label_leading_stage(
    window: &Window,
    found: &WindowFrontier,
    gates: &Gates,
    cause_allowed: bool,
    axes: &mut Axes,
) {
    let by_share = ranking(&found.share);
    let by_gain = ranking(&found.gain);
    let Some(&first) = by_share.first() else {
        return;
    };
    let second_share = by_share.get(1).map_or(0.0, |slot| found.share[*slot]);
    let share_lead = found.share[first] - second_share;
    let share_tie = by_share.len() > 1 && share_lead <= gates.share_tie_tol;
    let top_gain = by_gain.first().map_or(0.0, |slot| found.gain[*slot]);
    let gain_lead = top_gain - by_gain.get(1).map_or(0.0, |slot| found.gain[*slot]);
    // Gains that are all next to nothing are close to each other too: that is no tie.
    let gain_tie = top_gain >= gates.static_gain_min && gain_lead <= gates.gain_tie_tol;
    if found.share[first] < gates.dominance_min && !share_tie {
        return;
    }
    let local = localise(window, found, found.stages[first], gates);
    let several_ranks = window.ranks.len() > 1;
    if share_tie || gain_tie || local.switch_rate > gates.leader_switch_max {
        axes.labels.push(Label::CoCritical);
    } else if found.gain[first] >= gates.static_gain_min {
        if cause_allowed {
            axes.labels.push(Label::DirectExposure);
        }
    } else if gates.model_fit && cause_allowed && several_ranks {
        axes.labels.push(Label::SyncWaitDependent);
        let notable = gates.dominance_min * found.median_step_s();
        // One rank alone, and late by this stage rather than by one before: then the others wait
        // for it.
        if local.tie_set.len() == 1 && local.lag_increment_s >= notable {
            axes.labels.push(Label::LikelySyncWait);
        }
    } else {
        // Nothing recorded says whether the stage leads or a wait behind it.
        axes.labels.push(Label::CoCritical);
    }
    if axes.labels.contains(&Label::CoCritical) {
        let mut slots: Vec<usize> = by_share.iter().take(2).copied().collect();
        // A stage without a gain worth the name is no candidate, though it is second.
        slots.extend(
            by_gain
                .iter()
                .take(2)
                .filter(|slot| found.gain[**slot] >= gates.gain_tie_tol),
        );
        slots.sort_unstable();
        slots.dedup();
        axes.co_critical = slots.into_iter().map(|slot| found.stages[slot]).collect();
    }
}

fn label_device(window: &Window, found: &WindowFrontier, gates: &Gates, labels: &mut Vec<Label>) {
    if !window.device.enabled {
        return;
    }
    let ready = window.device.ready_s.len();
    let asked = ready + window.device.lost;
    let ready_ratio = ready as f64 / asked.max(1) as f64;
    if ready_ratio < gates.event_ready_ratio_min || ready < gates.event_min_samples {
        labels.push(Label::ForwardEventScopeLimited);
        return;
    }
    let Some(device_s) = median(&mut window.device.ready_s.clone()) else {
        return;
    };
    let makespan_s = found.median_step_s();
    let host_s = median(&mut forward_times(window)).unwrap_or(0.0);
    let forward_share = found
        .slot(StageId::FORWARD)
        .map_or(0.0, |forward| found.share[forward]);
    let leading = ranking(&found.share)
        .first()
        .map(|slot| found.stages[*slot]);
    if device_s >= gates.device_high_share * makespan_s {
        if found.candidates.contains(&StageId::FORWARD) {
            labels.push(Label::ForwardDeviceSupported);
        }
        if leading.is_some_and(|leading| leads_after_forward(window, leading)) {
            labels.push(Label::ForwardSpilloverSuspected);
        }
    } else if forward_share >= gates.dominance_min && device_s <= gates.device_low_ratio * host_s {
        labels.push(Label::ForwardHostOverheadSuspected);
    }
}

/// Host time of the forward pass, a value a rank and step.
fn forward_times(window: &Window) -> Vec<f64> {
    let mut times = Vec::new();
    for block in &window.blocks {
        for (_, row) in block.rows() {
            let mut totals = vec![0.0; block.ranks];
            let cells = row.chunks_exact(block.ranks).zip(block.boundaries.iter());
            for (durations, _) in cells.filter(|(_, b)| b.stage == StageId::FORWARD) {
                for (total, duration) in totals.iter_mut().zip(durations) {
                    *total += duration;
                }
            }
            times.extend(totals);
        }
    }
    times
}

/// Whether `stage` comes after the forward pass of the same step, in the order of the
/// window's own boundaries.
fn leads_after_forward(window: &Window, stage: StageId) -> bool {
    window.blocks.iter().any(|block| {
        let [forward, own] = [StageId::FORWARD, stage]
            .map(|stage| block.boundaries.iter().position(|it| it.stage == stage));
        forward.zip(own).is_some_and(|(forward, own)| own > forward)
    })
}
