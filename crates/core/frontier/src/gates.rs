use model::threshold;
use serde::{Deserialize, Serialize};

/// Every threshold of the labeler, by name.
///
/// Each can be set in the `[frontier]` table of the settings file. Where the paper names a
/// value the field says so; the others are our choice (docs/settings.md).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gates {
    /// Largest share of wall time outside every stage; above it telemetry is limited.
    #[serde(deserialize_with = "threshold")]
    pub closure_residual_max: f64,
    /// Largest share of wall time claimed twice; above it telemetry is limited.
    #[serde(deserialize_with = "threshold")]
    pub overlap_error_max: f64,
    /// Ranks that may be missing. The purpose is complete evidence, so none.
    pub missing_rank_max: usize,
    /// Smallest share of device events that must have become ready.
    #[serde(deserialize_with = "threshold")]
    pub event_ready_ratio_min: f64,
    /// Fewest device events that a median is taken of; one event never suffices (paper).
    pub event_min_samples: usize,
    /// Share a stage must have to be called dominant.
    #[serde(deserialize_with = "threshold")]
    pub dominance_min: f64,
    /// Gain a stage must have before it is called directly exposed.
    #[serde(deserialize_with = "threshold")]
    pub static_gain_min: f64,
    /// Shares closer than this cannot be told apart; the paper calls 0.039 a tie.
    #[serde(deserialize_with = "threshold")]
    pub share_tie_tol: f64,
    /// Gains closer than this cannot be told apart.
    #[serde(deserialize_with = "threshold")]
    pub gain_tie_tol: f64,
    /// Lead, in seconds, below which a step's leader is not counted.
    #[serde(deserialize_with = "threshold")]
    pub leader_gap_abs_s: f64,
    /// The same as a share of the step.
    #[serde(deserialize_with = "threshold")]
    pub leader_gap_rel: f64,
    /// Highest rate at which confident leaders may change from step to step.
    #[serde(deserialize_with = "threshold")]
    pub leader_switch_max: f64,
    /// Share the candidate set must explain.
    #[serde(deserialize_with = "threshold")]
    pub candidate_tau: f64,
    /// Whether the caller vouches that waits follow the synchronisation model. The labeler
    /// never infers it (paper).
    pub model_fit: bool,
    /// Device share of the step above which device work is a candidate.
    #[serde(deserialize_with = "threshold")]
    pub device_high_share: f64,
    /// Device time over host time of the forward pass below which the host is suspected.
    #[serde(deserialize_with = "threshold")]
    pub device_low_ratio: f64,
    /// Exposed seconds of a window below which no shares are given.
    #[serde(deserialize_with = "threshold")]
    pub denom_floor_s: f64,
}

impl Default for Gates {
    fn default() -> Self {
        Self {
            closure_residual_max: 0.05,
            overlap_error_max: 0.01,
            missing_rank_max: 0,
            event_ready_ratio_min: 0.80,
            event_min_samples: 3,
            dominance_min: 0.40,
            static_gain_min: 0.10,
            share_tie_tol: 0.05,
            gain_tie_tol: 0.05,
            leader_gap_abs_s: 1e-3,
            leader_gap_rel: 0.01,
            leader_switch_max: 0.25,
            candidate_tau: 0.80,
            model_fit: false,
            device_high_share: 0.30,
            device_low_ratio: 0.50,
            denom_floor_s: 1e-6,
        }
    }
}

impl Gates {
    /// Lead or lag of a step that is more than clock and scheduling noise, in seconds.
    pub fn notable_s(&self, makespan_s: f64) -> f64 {
        self.leader_gap_abs_s.max(self.leader_gap_rel * makespan_s)
    }
}
