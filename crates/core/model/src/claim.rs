//! What headlines say.

use serde::{Deserialize, Serialize};

use crate::{
    ConnectionClaim, FunctionFault, HeldUpSteps, KilledRanks, LateArrivals, LateStage, NextInLine,
    Pace, PipelineHalt, Side, SlowCommunicator, SlowIterations, StallClaim, StepSlowdown,
    Straggler,
};

/// What the headline of a finding says, with its numbers as they were when it was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "claim")]
pub enum Claim {
    /// Some ranks do more work than their peers.
    LateRanks(LateRanks),
    /// The same, on changing ranks.
    Rotating {
        /// Where.
        stage: String,
        /// Where in the stage, if that says more than its name.
        place: Option<StepPlace>,
        /// Mean lateness of a struck step, in seconds.
        lateness_s: f64,
        /// Its cost as a share of exposed time.
        cost_share: f64,
        /// The steps.
        steps: StepSpan,
    },
    /// All ranks wait for data.
    InputBound {
        /// Where they wait.
        stage: String,
        /// The ranks, where they are not all of the job.
        group: Option<Vec<u32>>,
        /// Seconds a step.
        lateness_s: f64,
        /// Its cost as a share of exposed time.
        cost_share: f64,
        /// The steps.
        steps: StepSpan,
    },
    /// All ranks are slower than they were.
    Slower {
        /// Where most of it is.
        stage: String,
        /// The ranks, where they are not all of the job.
        group: Option<Vec<u32>>,
        /// What of them is slower, where their devices were seen.
        side: Option<Side>,
        /// Seconds a step.
        lateness_s: f64,
        /// The steps.
        steps: StepSpan,
    },
    /// A stage that synchronises leads, and nobody recorded who arrives last.
    UnknownRank {
        /// The stage.
        stage: String,
        /// Its share of exposed time.
        stage_share: f64,
        /// The steps.
        steps: StepSpan,
    },
    /// Steps of a pipeline take longer than they would ideally.
    StepSlowdown(Box<StepSlowdown>),
    /// A pipeline took too long for some iterations, by calls of NCCL.
    SlowIterations(Box<SlowIterations>),
    /// A pipeline stands still at the end of the logs of its calls.
    PipelineHalt(Box<PipelineHalt>),
    /// Blocks of some ranks hold up their pipelines, by marks.
    HeldUpSteps(Box<HeldUpSteps>),
    /// A function costs some ranks, or all, more than it should.
    Function(Box<FunctionFault>),
    /// Ranks constantly come late to collectives.
    LateToCollective(Box<LateArrivals>),
    /// A communicator became slow, and nobody is late.
    SlowCommunicator(Box<SlowCommunicator>),
    /// A connection was slow or still.
    SlowConnection(Box<ConnectionClaim>),
    /// Ranks make operations slow from the inside.
    Straggler {
        /// Which, and how.
        found: Box<Straggler>,
        /// The first step; 0 where steps are not known.
        first_step: u64,
    },
    /// A rank was killed.
    Killed(Box<KilledRanks>),
    /// The job does not move.
    Stall(Box<StallClaim>),
}

/// [`Claim::LateRanks`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LateRanks {
    /// The ranks.
    pub ranks: Vec<u32>,
    /// Where most of their lateness is.
    pub stage: String,
    /// Further stages in which they are late in the same steps.
    pub other_stages: Vec<LateStage>,
    /// Where in the stage, if that says more than its name.
    pub place: Option<StepPlace>,
    /// What of the ranks is late, where their devices were seen.
    pub side: Option<Side>,
    /// What the other ranks' devices take there, in seconds a step; 0 where devices were not
    /// seen.
    pub usual_s: f64,
    /// Mean lateness of a struck step in all of its stages, in seconds.
    pub lateness_s: f64,
    /// When it strikes.
    pub pace: Pace,
    /// The steps.
    pub steps: StepSpan,
    /// Its cost as a share of exposed time.
    pub cost_share: f64,
    /// Exposed seconds saved if only this were fixed.
    pub gain_alone_s: f64,
    /// Whether a later rank hides it.
    pub hidden: bool,
    /// What it hides.
    pub next_in_line: Vec<NextInLine>,
}

/// The steps of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepSpan {
    /// The first that suffered.
    pub first: u64,
    /// The last that suffered.
    pub last: u64,
    /// Whether it goes on.
    pub open: bool,
}

/// Where in a stage something happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepPlace {
    /// Before a collective of this name is issued.
    BeforeIssue(String),
    /// Between forward and backward pass.
    BetweenForwardAndBackward,
    /// Between backward pass and optimizer.
    BetweenBackwardAndOptimizer,
    /// Between the optimizer and the next batch.
    AfterOptimizer,
    /// Between the optimizer, or the pass of the batch before, and the backward pass: no mark shows where
    /// the forward pass begins.
    BeforeBackward,
    /// Between two other stages.
    BetweenStages,
}

impl Claim {
    /// Whether the headline names a stage of the step.
    pub fn names_stage(&self, name: &str) -> bool {
        match self {
            Self::LateRanks(late) => {
                late.stage == name
                    || late.other_stages.iter().any(|other| other.stage == name)
                    // The headline names what it hides, too.
                    || late.next_in_line.iter().any(|next| next.stage == name)
            }
            Self::Rotating { stage, .. }
            | Self::InputBound { stage, .. }
            | Self::Slower { stage, .. }
            | Self::UnknownRank { stage, .. } => stage == name,
            Self::Stall(stall) => stall.names_stage(name),
            // No wildcard: of a new claim somebody has to say whether it names a stage.
            Self::Function(_)
            | Self::StepSlowdown(_)
            | Self::SlowIterations(_)
            | Self::PipelineHalt(_)
            | Self::HeldUpSteps(_)
            | Self::LateToCollective(_)
            | Self::SlowCommunicator(_)
            | Self::SlowConnection(_)
            | Self::Straggler { .. }
            | Self::Killed(_) => false,
        }
    }

    /// Where in its stage it happens, if that says more than the stage's name.
    pub fn place(&self) -> Option<&StepPlace> {
        match self {
            Self::LateRanks(LateRanks { place, .. }) | Self::Rotating { place, .. } => {
                place.as_ref()
            }
            _ => None,
        }
    }
}
