use serde::{Deserialize, Serialize};

/// What steps would take without their stragglers: the what-if part of a verdict.
///
/// # Units
/// Times are seconds a step, slowdowns quotients of mean step times.
///
/// # Source
/// What-if analysis of stragglers in hybrid-parallel training (ByteDance, OSDI 2025); which
/// number is which of its equations stands at the fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WhatIf {
    /// The steps, in order; lists `..._s` and `step_slowdowns` go with them.
    pub steps: Vec<u64>,
    /// What each step took.
    pub recorded_s: Vec<f64>,
    /// What each step takes in the model: no delays between operations.
    pub simulated_s: Vec<f64>,
    /// What a step takes in the model if every operation takes what its kind usually does.
    pub ideal_s: f64,
    /// Mean recorded over mean simulated: 1 says that the model tells the steps well.
    pub launch_slowdown: f64,
    /// S: mean simulated over ideal (Eq. 1).
    pub slowdown: f64,
    /// Recorded data-parallel ranks and stages with their ranks, and how slow each alone would
    /// make the job: the smaller of its data-parallel rank's and its stage's (Eq. 4). Slowdowns
    /// are missing where there is no [`stragglers`](Self::stragglers).
    pub ranks: Vec<RankSlowdown>,
    /// Ranks each of them stands for, itself included.
    pub peers: u32,
    /// Where the slowdown comes from; missing where there is too little of it.
    pub stragglers: Option<Attribution>,
    /// The same of delays between operations; missing where they cost too little.
    pub launch: Option<Attribution>,
    /// M_W: the slowest 3 % of the ranks (Eq. 5).
    pub slowest_ranks: Option<Removal>,
    /// M_S: the last stage.
    pub last_stage: Option<Removal>,
    /// The stage that alone makes the job slowest.
    pub slowest_stage: Option<Removal>,
}

/// Slowdown of the job by one recorded rank alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankSlowdown {
    /// The rank.
    pub rank: u32,
    /// Its coordinate in data parallelism.
    pub dp_rank: u32,
    /// Its pipeline stage.
    pub stage: u32,
    /// How slow it alone would make the job.
    pub slowdown: Option<f64>,
}

/// What the job would be slowed by if only a part of its operations took their time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attribution {
    /// By type of operation; sends and receives of a direction are one.
    pub op_types: Vec<PartSlowdown>,
    /// By data-parallel rank.
    pub dp_ranks: Vec<PartSlowdown>,
    /// By pipeline stage.
    pub stages: Vec<PartSlowdown>,
}

/// One part's slowdown: mean step time with only this part as recorded, over ideal (Eq. 2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartSlowdown {
    /// Type, rank or stage.
    pub name: String,
    /// Over all steps.
    pub slowdown: f64,
    /// Step by step.
    pub step_slowdowns: Vec<f64>,
}

/// What ideal operations on some ranks would save.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Removal {
    /// The recorded ranks.
    pub ranks: Vec<u32>,
    /// Mean step with these ranks ideal and the others as recorded.
    pub without_s: f64,
    /// Mean step with these ranks as recorded and the others ideal.
    pub alone_s: f64,
    /// Share of the slowdown that vanishes without them.
    pub removed_share: f64,
    /// Share of the slowdown that they alone bring.
    pub added_share: f64,
}

impl WhatIf {
    /// Mean of what steps took in the model.
    pub fn mean_simulated_s(&self) -> f64 {
        // Never of none: a trace without a whole step is refused.
        self.simulated_s.iter().sum::<f64>() / self.simulated_s.len() as f64
    }
}
