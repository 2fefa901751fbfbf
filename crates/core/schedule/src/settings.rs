use model::threshold;
use serde::{Deserialize, Serialize};

/// When a pipeline is said to be held back; the `[schedule]` table of the settings file.
///
/// # Source
/// MegaTrace (2026), its threshold study, unless a field says otherwise; docs/math/schedule.md.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleSettings {
    /// An iteration is looked at if its throughput is below this part of the usual.
    #[serde(deserialize_with = "threshold")]
    pub performance_gate: f64,
    /// A block is slow if it takes longer than expected by more than this part.
    #[serde(deserialize_with = "threshold")]
    pub block_excess: f64,
    /// Pipelines whose blocks sum to less than the largest sum by more than this part are not
    /// the ones the others wait for. Ours.
    #[serde(deserialize_with = "threshold")]
    pub straggler_share: f64,
    /// The slow blocks of a stage must explain at least this part of what the iteration lost, or
    /// of a usual iteration if it lost more, to be named. Ours: noise of short blocks is no cause.
    #[serde(deserialize_with = "threshold")]
    pub cause_share_min: f64,
    /// How what is expected follows what is seen.
    pub update: Update,
    /// Values this near to what is expected are believed by `alpha_mean` and `last`.
    #[serde(deserialize_with = "threshold")]
    pub update_alpha: f64,
    /// Healthy iterations before anything is said. MegaTrace's analyser.
    pub min_iterations: u32,
}

/// How the expected time of a block follows what is seen of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Update {
    /// Running mean over iterations that pass the performance gate, slow blocks left out.
    /// Ours: it does not starve where blocks scatter by more than `update_alpha`.
    #[default]
    PassedGate,
    /// Running mean of values within `update_alpha` of it. MegaTrace, its text.
    AlphaMean,
    /// The last value within `update_alpha`. MegaTrace, its Algorithm 2.
    Last,
    /// Running mean of all blocks that are not slow, of every iteration. MegaTrace's analyser.
    AllUnflagged,
}

impl ScheduleSettings {
    /// Whether an iteration is about as quick as one that takes `usual_s`.
    pub(crate) fn passes_gate(&self, took_s: f64, usual_s: f64) -> bool {
        took_s * self.performance_gate <= usual_s
    }
}

impl Default for ScheduleSettings {
    fn default() -> Self {
        Self {
            performance_gate: 0.9,
            block_excess: 0.5,
            straggler_share: 0.01,
            cause_share_min: 0.1,
            update: Update::PassedGate,
            update_alpha: 0.05,
            min_iterations: 3,
        }
    }
}
