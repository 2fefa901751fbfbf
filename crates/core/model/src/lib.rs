//! The vocabulary every room of laggard speaks: marks, stages, steps, windows, verdicts.
//!
//! Start at [`Mark`], what a training process writes, follow it through [`RankStep`] (one
//! step of one rank) and [`Window`] (aligned steps of all ranks) to [`Verdict`], what a
//! person or a program reads. Nothing here computes: the methods live in the other core
//! crates.
//!
//! # Examples
//! Ranks read as people write them:
//! ```
//! use laggard_model::{Ranks, fold_ranks};
//!
//! assert_eq!(fold_ranks(&[2, 3, 7]), "2-3,7");
//! let ranks: Ranks = "0-3,8-120:8".parse()?;
//! assert!(ranks.contains(16) && !ranks.contains(17));
//! # Ok::<(), laggard_model::NoRanks>(())
//! ```
//! A stage has one number in all of a job:
//! ```
//! use laggard_model::{StageId, StageNames};
//!
//! let mut names = StageNames::default();
//! assert_eq!(names.intern("data.next_wait"), StageId::DATA);
//! let tokenise = names.intern("tokenise");
//! assert_eq!(names.name(tokenise), "tokenise");
//! ```
//! A collective has one name, in any of PyTorch's spellings:
//! ```
//! use laggard_model::CollectiveOp;
//!
//! assert_eq!(CollectiveOp::from_name("all_reduce"), CollectiveOp::from_name("ALLREDUCE"));
//! assert_eq!(CollectiveOp::from_name("all_reduce").name(), "ALLREDUCE");
//! ```

mod action;
mod announcement;
mod arrival;
mod batch;
mod claim;
mod clock;
mod comparison;
mod conclusion;
mod connection;
mod context;
mod device;
mod disagreement;
mod downgrade;
mod event;
mod fact;
mod finding;
mod flow;
mod function;
mod function_fault;
mod growth;
mod hold_up;
mod input;
mod listed;
mod mark;
mod matrix;
mod median;
mod network;
mod note;
mod pipeline;
mod profile;
mod rank_part;
mod ranks;
mod slowdown;
mod source_note;
mod stack;
mod stage;
mod stall;
mod standstill;
mod step;
mod threshold;
mod usage;
mod verdict;
mod wait;
mod what_if;
mod window;

pub use action::{Action, DevicePart, FunctionNeed, LinkEnd, StepPart};
pub use announcement::Announcement;
pub use arrival::{LateArrivals, LateIn, SlowCommunicator};
pub use batch::{Batch, MAX_RANKS};
pub use claim::{Claim, LateRanks, StepPlace, StepSpan};
pub use clock::RankNs;
pub use comparison::{ComparedRun, ComparisonNote};
pub use conclusion::Conclusion;
pub use connection::{ConnectionClaim, ConnectionEnds, LinkFault, LostIterations, SlowConnection};
pub use context::JobContext;
pub use device::{Device, DeviceUsage, Gauge, Mean};
pub use disagreement::{Disagreement, Position, Trust};
pub use downgrade::Downgrade;
pub use event::{BlockPlace, CollectiveIssue, DeviceReached, DeviceTime, Event, Pass};
pub use fact::{
    Beside, Brake, CoresBusy, During, Fact, LateStage, Observation, StageAccount, Unlike,
};
pub use finding::{Cost, Finding, Origin};
pub use flow::{Communicator, Direction, Flow, Operation};
pub use function::{Dictionary, Function, FunctionClass, FunctionId, Pattern, WorkerPatterns};
pub use function_fault::{Dimension, FunctionFault, is_garbage_collection};
pub use growth::{Growth, keep_variation};
pub use hold_up::{Failure, HoldUp, RankChannel, Slowness, Straggler};
pub use input::{InFlight, Input};
pub use mark::{CollectiveOp, Mark, MarkKind, PAYLOAD_WORDS, group_number};
pub use matrix::{RankColumn, StageSlot, StepRow};
pub use median::{lower_median, median, medians_of_others};
pub use network::{NetworkFault, QueuePairName};
pub use note::{CallLogNote, DevicesSeen, VerdictNote};
pub use pipeline::{
    AbsorbedBlock, BlockCause, HeldUpSteps, PipelineAction, PipelineBlock, PipelineFact,
    PipelineHalt, PipelineRankState, SlowIterations, SlowPart, SlowPass, Standstill,
};
pub use profile::{
    AbnormalRank, CollectiveTimes, Dimensions, FunctionFaultKind, FunctionSummary, ProfileSummary,
    ProfileWindow, RankArrivals, RankProfile,
};
pub use rank_part::RankPart;
pub use ranks::{NoRanks, Ranks};
pub use slowdown::{PassRatios, PassSpread, SlowdownCause, StepSlowdown};
pub use source_note::{
    DumpNote, InspectorNote, LogDefect, NcclNote, PrintedNote, ProfileNote, RankTrouble, RasNote,
    SharedTable, SourceNote, TraceNote, UnlikeCounts, Unrecorded,
};
pub use stack::{Frame, ProcessState, Stack, Worker};
pub use stage::{StageId, StageNames};
pub use stall::{Death, KilledRanks, KnownPause, PauseKind, StallClaim, UnreadStack, Whereabouts};
pub use standstill::{FlowProgress, FoldedStack, LastEntered, Progress};
pub use step::{CollectiveNumber, Ending, RankStep, Segment, SideSample};
pub use threshold::{threshold, thresholds};
pub use usage::CoreUsage;
pub use verdict::{
    Answer, Cause, Contradiction, Evidence, Incident, IncidentKind, JobSummary, Label, Method,
    NextInLine, Pace, PipelineSummary, Question, ReadBackSummary, SCHEMA, Severity, Side,
    SideSummary, Source, StageSummary, Subject, UnlikeDevice, Verdict, WindowSummary, fold_ranks,
};
pub use wait::{Desync, DeviceArrival, DeviceProgress, StallKind, Wait};
pub use what_if::{Attribution, PartSlowdown, RankSlowdown, Removal, WhatIf};
pub use window::{
    Block, BlockTime, Boundary, Closure, Cut, DeviceEvents, DeviceWindow, FEW_RANKS, HostTimes,
    Meeting, ReadBacks, ReadBacksOfLine, Sync, Window,
};
