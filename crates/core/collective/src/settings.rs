use model::threshold;
use serde::{Deserialize, Serialize};

/// When a job that does not move is said to hang; the `[hang]` table of the settings file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HangSettings {
    /// Seconds without any mark of any rank after which a stuck collective is spoken of.
    #[serde(deserialize_with = "threshold")]
    pub quiet_min_s: f64,
    /// The same as a multiple of the longest pause the job has shown lately.
    #[serde(deserialize_with = "threshold")]
    pub quiet_ratio: f64,
    /// Seconds for the first steps, in which jobs compile, allocate and connect.
    #[serde(deserialize_with = "threshold")]
    pub first_quiet_s: f64,
    /// Seconds for what is known to take long and to end: checkpoints, compilation, evaluation
    /// and downloads.
    #[serde(deserialize_with = "threshold")]
    pub pause_max_s: f64,
}

impl Default for HangSettings {
    /// Our choice: two seconds is what a person notices; three times the longest pause lets
    /// a job breathe as it used to. After ten minutes in one collective PyTorch ends jobs with
    /// NCCL, unless it was told otherwise.
    fn default() -> Self {
        let (quiet_min_s, quiet_ratio) = (1.5, 3.0);
        Self {
            quiet_min_s,
            quiet_ratio,
            first_quiet_s: 60.0,
            pause_max_s: 600.0,
        }
    }
}
