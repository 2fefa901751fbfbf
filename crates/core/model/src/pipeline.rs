//! What holds pipelines back, and where they stand still.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Pace, Pass, Side, StepSpan};

/// One pass of one microbatch through one part of a stage's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PipelineBlock {
    /// What it computes.
    pub pass: Pass,
    /// Which microbatch, from 0.
    pub microbatch: u32,
    /// Which of the stage's parts of the model, from 0; more than one if interleaved.
    pub chunk: u32,
}

impl fmt::Display for PipelineBlock {
    /// `forward of microbatch 3`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} of microbatch {}",
            self.pass.name(),
            self.microbatch
        )?;
        // Only interleaved schedules have more than one; a number that is always 0 says nothing.
        if self.chunk > 0 {
            write!(formatter, " (chunk {})", self.chunk)
        } else {
            Ok(())
        }
    }
}

/// What of a stage is slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlowPart {
    /// One block.
    Block(PipelineBlock),
    /// Blocks of these passes.
    Passes(Vec<Pass>),
}

impl fmt::Display for SlowPart {
    /// `forward of microbatch 3`, or `forward and backward`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(block) => block.fmt(formatter),
            Self::Passes(passes) => {
                let names: Vec<&str> = passes.iter().map(|pass| pass.name()).collect();
                formatter.write_str(&names.join(" and "))
            }
        }
    }
}

/// What made a stretch of iterations slow, by calls of NCCL.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowIterations {
    /// Who; several if any of them may be the cause, none if no rank that was seen is.
    pub ranks: Vec<u32>,
    /// Ranks without a log that it may be instead.
    pub unseen: Vec<u32>,
    /// The stage of the pipeline.
    pub stage: Option<u32>,
    /// Its passes that were slow.
    pub passes: Vec<SlowPass>,
    /// What kind of thing it is.
    pub cause: BlockCause,
    /// First iteration that was slow.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// Whether the logs end before it does.
    pub open: bool,
    /// What an iteration took then, the median, in seconds.
    pub took_s: f64,
    /// What one takes otherwise.
    pub usual_s: f64,
    /// Seconds lost in all.
    pub lost_s: f64,
    /// When the first slow block began and the last ended, in nanoseconds since 1970.
    pub span_ns: Option<(u64, u64)>,
    /// Ranks that were late through it only.
    pub victims: Vec<u32>,
    /// Seconds of an iteration outside the pipeline: usually, and then.
    pub outside_s: Option<(f64, f64)>,
    /// Part of what all ranks were waited for where all meet that was for these.
    pub wide_share: Option<f64>,
    /// The same where the copies of stages meet.
    pub copies_share: Option<f64>,
    /// Part of the calls of its stage that the first of the ranks was last to enter.
    pub last_share: Option<f64>,
    /// The only block it struck, if it is one.
    pub block: Option<PipelineBlock>,
}

impl SlowIterations {
    /// The block or the passes that were slow, if any were.
    pub fn part(&self) -> Option<SlowPart> {
        match self.block {
            Some(block) => Some(SlowPart::Block(block)),
            None if self.passes.is_empty() => None,
            None => {
                let passes = self.passes.iter().map(|slow| slow.pass);
                Some(SlowPart::Passes(passes.collect()))
            }
        }
    }
}

/// A kind of pass that took too long.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowPass {
    /// Which.
    pub pass: Pass,
    /// What one took, the median, in seconds.
    pub took_s: f64,
    /// What one takes otherwise.
    pub usual_s: f64,
    /// How many were slow.
    pub slow: u64,
    /// Of how many.
    pub of: u64,
}

/// What kind of thing made blocks slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockCause {
    /// The work of the blocks: their ranks issue calls as they used to, and finish late.
    Compute,
    /// A host that stood still before it entered a call.
    Host,
    /// Input that was handed over in time and arrived late.
    Transfer,
    /// Work between the pipelines: optimizer, input, logging.
    Outside,
    /// Nothing that is in the logs.
    Unseen,
}

/// Where a job stands still at the end of its logs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PipelineHalt {
    /// Who does not go on.
    pub ranks: Vec<u32>,
    /// The stage of the pipeline.
    pub stage: u32,
    /// The block it does not finish.
    pub block: PipelineBlock,
    /// The iteration.
    pub iteration: u64,
    /// Seconds for which others went on after its last call, or after its input came if that was
    /// later.
    pub silent_s: f64,
    /// Seconds that usually pass from there to its next call.
    pub usual_s: f64,
    /// Of ranks that share the stage and made that call: seconds for which others went on after
    /// it, and how late this rank was at most before.
    pub ahead_s: Option<(f64, f64)>,
    /// Whether it takes too long; otherwise the logs may merely end in the middle of work.
    pub overdue: bool,
}

/// The block at which a rank of a running pipeline stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standstill {
    /// The rank that is to work on it.
    pub rank: u32,
    /// Its place in the pipeline.
    pub stage: usize,
    /// The block.
    pub block: PipelineBlock,
    /// What is known of the rank.
    pub state: PipelineRankState,
}

/// What a rank does that stands still. What comes first explains what comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PipelineRankState {
    /// It has begun the block.
    Works,
    /// It has finished the block and does not send its output.
    Owes,
    /// It could begin the block, and asks for no input.
    Idles,
    /// It could begin the block, but for the input that it has asked for.
    Receives,
    /// The input of the block cannot be there yet.
    Waits,
}

/// Blocks of some ranks that hold up their pipelines while the job runs, by marks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldUpSteps {
    /// The ranks.
    pub ranks: Vec<u32>,
    /// Their place in the pipeline.
    pub stage: usize,
    /// What is slow there.
    pub part: SlowPart,
    /// Whether their hosts or their devices are slow, if the devices' clocks say.
    pub side: Option<Side>,
    /// When it strikes.
    pub pace: Pace,
    /// The steps.
    pub steps: StepSpan,
    /// What a struck step took, the mean, in seconds.
    pub took_s: f64,
    /// What one usually takes.
    pub usual_s: f64,
    /// What one lost.
    pub lost_s: f64,
    /// The cost of all as a share of exposed time.
    pub cost_share: f64,
}

/// A block that was slow at no cost: its pipeline had slack for it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AbsorbedBlock {
    /// The iteration by calls of NCCL, or the step by marks.
    pub step: u64,
    /// The rank, where marks name it.
    pub rank: Option<u32>,
    /// The stage of the pipeline.
    pub stage: usize,
    /// The block.
    pub block: PipelineBlock,
    /// What it took longer than usual, in seconds.
    pub excess_s: f64,
    /// What the slack was, in seconds.
    pub slack_s: f64,
}

/// What supports claims about pipelines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "about")]
pub enum PipelineFact {
    /// Passes of one kind were slow on the critical path.
    SlowPass(SlowPass),
    /// What iterations take outside the pipeline.
    Outside {
        /// Seconds then.
        took_s: f64,
        /// Seconds otherwise.
        usual_s: f64,
    },
    /// Others waited for these ranks alone.
    WaitedForAlone {
        /// The ranks.
        ranks: Vec<u32>,
        /// Whether only copies of a stage meet there, and not all ranks.
        of_copies: bool,
        /// Part of what was waited longer than usual for one rank alone.
        share: f64,
    },
    /// A rank was the last of its stage to enter calls in which its layers meet.
    LastToEnter {
        /// The rank.
        ranks: Vec<u32>,
        /// Part of the calls.
        share: f64,
    },
    /// When slow blocks ran.
    Span {
        /// When the first began, in nanoseconds since 1970.
        first_ns: u64,
        /// When the last ended.
        last_ns: u64,
    },
    /// Only one block could go on, and did not.
    Overdue {
        /// Seconds for which others went on after its last call and input.
        silent_s: f64,
        /// Seconds that its next call usually takes.
        usual_s: f64,
    },
    /// Ranks of the same stage made the call that one has not made.
    OthersWentOn {
        /// Seconds before the logs end.
        ahead_s: f64,
        /// Seconds that they are apart at most.
        usual_late_s: f64,
    },
    /// A rank of a running pipeline does not go on, and waits for nothing.
    Standstill(Standstill),
    /// A block was slow, and its pipeline had no slack for it.
    CriticalBlock {
        /// The block.
        block: PipelineBlock,
        /// What it took, the mean, in seconds.
        took_s: f64,
        /// What it takes otherwise.
        usual_s: f64,
        /// How often it was slow.
        times: usize,
    },
    /// What ranks worked in their blocks, beside the same stages of other pipelines.
    OwnBlocks {
        /// The ranks.
        ranks: Vec<u32>,
        /// Their own, in seconds.
        own_s: f64,
        /// The same of the others, the median.
        copies_s: f64,
    },
}

/// What somebody can do about a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum PipelineAction {
    /// Look at the machine of ranks, or take it out.
    LookAtMachine {
        /// Which.
        ranks: Vec<u32>,
    },
    /// Let every microbatch cost the same.
    BalanceSequences,
    /// Give a stage of a pipeline fewer layers.
    MoveLayers {
        /// Which.
        stage: u32,
    },
    /// Look at operations of a type.
    LookAtOperations {
        /// The type.
        op_type: String,
    },
    /// Look at the GPU of ranks at the time in question.
    LookAtGpu {
        /// Whose.
        ranks: Vec<u32>,
    },
    /// Look at the host of ranks at the time in question.
    LookAtHost {
        /// Whose.
        ranks: Vec<u32>,
    },
    /// Look at the link that the input of ranks comes over.
    LookAtLinkInto {
        /// Whose.
        ranks: Vec<u32>,
    },
    /// Look at what ranks do between iterations.
    LookBetweenIterations {
        /// Which.
        ranks: Vec<u32>,
    },
    /// Get logs that are missing.
    GetLogs {
        /// Whose.
        ranks: Vec<u32>,
    },
    /// Look at what processes are doing.
    LookAtProcess {
        /// Whose.
        ranks: Vec<u32>,
    },
    /// Look at the blocks of ranks.
    LookAtBlocks {
        /// Whose.
        ranks: Vec<u32>,
        /// Whether at what their hosts or their devices do there, where that is known.
        side: Option<Side>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Claim, Fact, Observation};

    #[test]
    fn actions_in_pipelines_are_read_back_from_json() {
        let (ranks, side) = (vec![2], Some(Side::Host));
        for (action, json) in [
            (
                PipelineAction::BalanceSequences,
                r#"{"action":"balance_sequences"}"#,
            ),
            (
                PipelineAction::LookAtBlocks { ranks, side },
                r#"{"action":"look_at_blocks","ranks":[2],"side":"host"}"#,
            ),
        ] {
            let action = Action::InPipeline(action);
            assert_eq!(serde_json::to_string(&action).unwrap(), json);
            assert_eq!(serde_json::from_str::<Action>(json).unwrap(), action);
        }
    }

    #[test]
    fn facts_about_pipelines_are_read_back_from_json() {
        let block = PipelineBlock {
            pass: Pass::Backward,
            microbatch: 3,
            chunk: 1,
        };
        let ranks = vec![2];
        let (took_s, usual_s) = (0.2, 0.1);
        let pass = SlowPass {
            pass: Pass::Forward,
            took_s,
            usual_s,
            slow: 1,
            of: 2,
        };
        let state = PipelineRankState::Owes;
        let halted = Standstill {
            rank: 2,
            stage: 1,
            block,
            state,
        };
        let claim = HeldUpSteps {
            ranks: ranks.clone(),
            stage: 1,
            part: SlowPart::Passes(vec![Pass::Forward]),
            side: None,
            pace: Pace::Steady,
            steps: StepSpan {
                first: 5,
                last: 9,
                open: true,
            },
            took_s,
            usual_s,
            lost_s: 0.1,
            cost_share: 0.5,
        };
        let claim = Box::new(Claim::HeldUpSteps(Box::new(claim)));
        for what in [
            PipelineFact::SlowPass(pass),
            PipelineFact::WaitedForAlone {
                ranks,
                of_copies: true,
                share: 0.5,
            },
            PipelineFact::Standstill(halted),
            PipelineFact::CriticalBlock {
                block,
                took_s,
                usual_s,
                times: 2,
            },
        ] {
            let seen = Observation::Pipeline(Box::new(what));
            let by = Some(Box::new(seen.clone()));
            let claim = claim.clone();
            for what in [
                seen,
                Observation::Explains {
                    claim,
                    by,
                    cost_s: 1.0,
                },
            ] {
                let fact = Fact::from(what);
                let json = serde_json::to_string(&fact).unwrap();
                assert_eq!(serde_json::from_str::<Fact>(&json).unwrap(), fact, "{json}");
            }
        }
    }
}
