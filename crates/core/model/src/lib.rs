//! The vocabulary every room of laggard speaks: marks, stages, steps, windows, verdicts.
//!
//! Start at [`Mark`], what a training process writes, follow it through [`RankStep`] (one
//! step of one rank) and [`Window`] (aligned steps of all ranks) to [`Verdict`], what a
//! person or a program reads. Nothing here computes: the methods live in the other core
//! crates.

mod action;
mod batch;
mod claim;
mod clock;
mod device;
mod disagreement;
mod event;
mod fact;
mod finding;
mod flow;
mod function;
mod function_fault;
mod input;
mod mark;
mod median;
mod network;
mod profile;
mod ranks;
mod stack;
mod stage;
mod standstill;
mod step;
mod threshold;
mod usage;
mod verdict;
mod what_if;
mod window;

pub use action::{Action, DevicePart, FunctionNeed, LinkEnd, StepPart};
pub use batch::{Batch, MAX_RANKS};
pub use claim::{Claim, LateRanks, StepPlace, StepSpan};
pub use clock::RankNs;
pub use device::{Device, DeviceUsage, Gauge, Mean};
pub use disagreement::{Disagreement, Position, Trust};
pub use event::{BlockPlace, CollectiveIssue, DeviceReached, DeviceTime, Event, Pass};
pub use fact::{
    Beside, Brake, CoresBusy, During, Fact, Observation, StageAccount, Unlike,
};
pub use finding::{Cost, Finding, Origin};
pub use flow::{Communicator, Direction, Flow, Operation};
pub use function::{
    Dictionary, Function, FunctionClass, FunctionId, Pattern, WorkerPatterns,
};
pub use function_fault::{Dimension, FunctionFault, is_garbage_collection};
pub use input::{InFlight, Input};
pub use mark::{CollectiveOp, Mark, MarkKind, PAYLOAD_WORDS, group_number};
pub use median::median;
pub use network::{NetworkFault, QueuePairName};
pub use profile::{
    AbnormalRank, CollectiveTimes, Dimensions, FaultKind, FunctionSummary,
    ProfileSummary, ProfileWindow, RankArrivals, RankProfile,
};
pub use ranks::{NoRanks, Ranks};
pub use stack::{Frame, ProcessState, Stack, Worker};
pub use stage::{StageId, StageNames};
pub use standstill::{Entered, FlowProgress, FoldedStack, Progress};
pub use step::{Ending, RankStep, Segment, SideSample};
pub use threshold::{threshold, thresholds};
pub use usage::CoreUsage;
pub use verdict::{
    Answer, Cause, Contradiction, Evidence, Incident, IncidentKind, JobSummary, Label,
    Method, NextInLine, Pace, PipelineSummary, Question, ReadBackSummary, SCHEMA,
    Severity, Side, SideSummary, Source, StageSummary, Subject, Verdict, WindowSummary,
    fold_ranks,
};
pub use what_if::{Attribution, PartSlowdown, RankSlowdown, Removal, WhatIf};
pub use window::{
    Block, BlockTime, Boundary, Closure, Cut, DeviceEvents, DeviceWindow, Meeting,
    ReadBacks, ReadBacksOfLine, Sync, Window,
};
