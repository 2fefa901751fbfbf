//! Why steps of a pipeline take longer than they would ideally.

use serde::{Deserialize, Serialize};

use crate::Removal;

/// Why steps are slower than they would ideally be.
///
/// # Source
/// Eq. 4 and 5 of the what-if analysis (OSDI 2025) are what decides. The thresholds are ours:
/// they tell apart the three traces the authors publish. So is the demand that every
/// data-parallel rank shows a stage's excess.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlowdownCause {
    /// One rank is slow in nearly all steps.
    Rank {
        /// The recorded rank.
        rank: u32,
        /// Its coordinate in data parallelism.
        dp_rank: u32,
        /// Its pipeline stage.
        stage: u32,
        /// Its passes against the same stage's of other data-parallel ranks.
        passes: PassRatios,
        /// Share of the steps in which it is the slowest.
        top_share: f64,
    },
    /// Microbatches take unlike time, wherever they are: sequences of unlike length.
    Data {
        /// How passes vary.
        spread: PassSpread,
        /// Data-parallel ranks that are the slowest of some step.
        top_dp_ranks: usize,
        /// The slowest step, and the data-parallel rank that alone makes it slowest.
        worst: (u64, u32),
    },
    /// One stage has more work than the others.
    Stage {
        /// The stage.
        stage: u32,
        /// Its passes against the other stages'.
        passes: PassRatios,
    },
    /// None of these: no single cause stands out.
    Unexplained {
        /// The type of operation that slows most.
        op_type: String,
        /// How slow it alone would make the job.
        slowdown: f64,
    },
}

/// Median forward and backward passes over those they are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassRatios {
    /// Of forward passes.
    pub forward: f64,
    /// Of backward passes.
    pub backward: f64,
}

impl PassRatios {
    /// Quotient of medians up to which passes are alike. Ours.
    pub const ALIKE: f64 = 1.05;

    /// Whether forward passes are longer than those they are compared with.
    pub fn forward_is_longer(self) -> bool {
        self.forward > Self::ALIKE
    }

    /// The same of backward passes.
    pub fn backward_is_longer(self) -> bool {
        self.backward > Self::ALIKE
    }
}

/// How the passes of one rank vary over microbatches and steps: medians over the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassSpread {
    /// Standard deviation over mean, of forward passes.
    pub forward: f64,
    /// The same of backward passes.
    pub backward: f64,
    /// Correlation of forward and backward passes of the same microbatch.
    pub correlation: f64,
}

/// A cause of a slowdown with what it costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepSlowdown {
    /// The cause.
    pub cause: SlowdownCause,
    /// Mean simulated step over the ideal one.
    pub slowdown: f64,
    /// Mean simulated step, in seconds.
    pub simulated_s: f64,
    /// What a step would be shorter without the cause, in seconds.
    pub saved_s: f64,
    /// What ideal operations on the ranks of the cause would save.
    pub removal: Option<Removal>,
    /// Ranks that each recorded rank stands for, itself included.
    pub peers: u32,
    /// Whether more than one data-parallel rank was recorded.
    pub has_copies: bool,
}
