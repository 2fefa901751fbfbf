use model::{Severity, threshold};
use serde::{Deserialize, Serialize};

/// When a finding becomes an incident; the `[incident]` table of the settings file.
///
/// All values are our choice: set so that the fault matrix of the demo is named and
/// healthy jobs on a busy two-core machine stay silent (docs/incidents.md).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IncidentSettings {
    /// Share of exposed time a steady or periodic fault must cost.
    #[serde(deserialize_with = "threshold")]
    pub steady_share_min: f64,
    /// Share a fault must cost that strikes now and then without a pattern.
    #[serde(deserialize_with = "threshold")]
    pub sporadic_share_min: f64,
    /// Share a fault must cost that moves from rank to rank.
    #[serde(deserialize_with = "threshold")]
    pub rotating_share_min: f64,
    /// Seconds a single stall must cost.
    #[serde(deserialize_with = "threshold")]
    pub stall_min_s: f64,
    /// The same in median steps.
    #[serde(deserialize_with = "threshold")]
    pub stall_min_steps: f64,
    /// Lateness counts in a step if it exceeds this many times the spread of the stage beside
    /// the others, or whatever the spread if the rank is late in every step.
    #[serde(deserialize_with = "threshold")]
    pub noise_factor: f64,
    /// Share of exposed time that waiting for data must have before the job is called
    /// input-bound although no rank is to blame.
    #[serde(deserialize_with = "threshold")]
    pub input_share_min: f64,
    /// Median step over the best earlier window's at which the job is called degraded.
    #[serde(deserialize_with = "threshold")]
    pub degraded_ratio: f64,
    /// Seconds the median step must have grown by as well.
    #[serde(deserialize_with = "threshold")]
    pub degraded_min_s: f64,
    /// Slow windows it takes; a few quiet ones between them do not matter.
    pub degraded_windows: u32,
    /// Share at which a stage that synchronises without known arrival times is mentioned.
    #[serde(deserialize_with = "threshold")]
    pub unknown_share_min: f64,
    /// Share of exposed time from which an incident is a warning.
    #[serde(deserialize_with = "threshold")]
    pub warning_share: f64,
    /// Share of exposed time from which an incident is critical.
    #[serde(deserialize_with = "threshold")]
    pub critical_share: f64,
    /// Windows without a trace after which an incident is closed.
    pub resolve_windows: u32,
}

impl IncidentSettings {
    /// How much an incident matters that costs this share.
    pub fn severity(&self, share: f64) -> Severity {
        if share >= self.critical_share {
            Severity::Critical
        } else if share >= self.warning_share {
            Severity::Warning
        } else {
            Severity::Info
        }
    }
}

impl Default for IncidentSettings {
    fn default() -> Self {
        Self {
            steady_share_min: 0.05,
            sporadic_share_min: 0.20,
            rotating_share_min: 0.15,
            stall_min_s: 1.0,
            stall_min_steps: 3.0,
            noise_factor: 7.0,
            input_share_min: 0.25,
            degraded_ratio: 1.3,
            degraded_min_s: 2e-3,
            degraded_windows: 2,
            unknown_share_min: 0.75,
            warning_share: 0.10,
            critical_share: 0.30,
            resolve_windows: 2,
        }
    }
}
