//! What changed between two runs of a job, beyond what chance explains.
//!
//! A [`Run`] holds what a job says of itself and what its steps took, in blocks of
//! neighbouring steps; [`compare`] tells which stage, rank or function changed and whether
//! steps became slower. Words are left to those who show it.

mod blocks;
mod chance;
mod compare;

pub use blocks::Run;
pub use compare::{
    Change, Compared, Comparison, FunctionChange, IncidentChange, MIN_CHANGE_SHARE, Outcome,
    RankChange, SCHEMA, StageChange, compare,
};
