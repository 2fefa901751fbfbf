use model::threshold;
use serde::{Deserialize, Serialize};

use crate::Expected;

/// Who gets the time in which several events of one priority run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// They share it: betas sum to at most 1.
    #[default]
    Split,
    /// Each has all of it.
    Full,
}

/// How sigma is made of the executions of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deviation {
    /// The mean of the executions' deviations, by their length.
    #[default]
    PerEvent,
    /// The deviation of all their samples together.
    Pooled,
}

/// How functions are summarised and compared; the `[pattern]` table of the settings file.
///
/// # Source
/// PerfTracker (2025) for beta_min, distance, k_mad and coverage; the others are our choice
/// where it is silent (docs/math/pattern.md).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PatternSettings {
    /// Share of the critical path from which a function is looked at.
    #[serde(deserialize_with = "threshold")]
    pub beta_min: f64,
    /// Distance of normalised patterns from which two workers differ.
    #[serde(deserialize_with = "threshold")]
    pub distance: f64,
    /// How many median absolute deviations over the median make a worker differ from most.
    #[serde(deserialize_with = "threshold")]
    pub k_mad: f64,
    /// The same as a part of the sample, where the deviations are zero.
    #[serde(deserialize_with = "threshold")]
    pub min_excess: f64,
    /// Workers each is compared with; all of them if there are no more.
    pub sample: usize,
    /// Share of a function's use that its critical execution holds.
    #[serde(deserialize_with = "threshold")]
    pub coverage: f64,
    /// Who gets the time in which several events of one priority run.
    pub overlap: Overlap,
    /// How sigma is made.
    pub deviation: Deviation,
    /// Share of the time that a function must cost one worker more than its peers before an
    /// incident is opened.
    #[serde(deserialize_with = "threshold")]
    pub partial_share_min: f64,
    /// Share that a function must cost most workers before an incident is opened.
    #[serde(deserialize_with = "threshold")]
    pub common_share_min: f64,
    /// What is expected of functions, the first that fits; classes have their defaults.
    pub expected: Vec<Expected>,
}

impl Default for PatternSettings {
    fn default() -> Self {
        Self {
            beta_min: 0.01,
            distance: 0.4,
            k_mad: 5.0,
            min_excess: 0.05,
            sample: 100,
            coverage: 0.8,
            overlap: Overlap::Split,
            deviation: Deviation::PerEvent,
            partial_share_min: 0.05,
            common_share_min: 0.25,
            expected: Vec::new(),
        }
    }
}
