//! What a profiler recorded of one rank, and what it says whichever profiler it was.
//!
//! A [`Trace`] holds slices of time on tracks. [`rank_steps`] makes steps with stages of it, as
//! they come from marks of a live job; [`profile`] makes function patterns; [`match_collectives`]
//! puts the collectives of all ranks side by side and finds who was late, and how far the clocks
//! are apart. A [`CallTree`] records calls within a bound. Reading files is left to `formats`,
//! verdicts to `verdict`.
//!
//! Pure: the same traces give the same answers.
//!
//! # Examples
//! A trace names each function once:
//! ```
//! use laggard_trace::Names;
//!
//! let mut names = Names::default();
//! let gemm = names.intern("gemm");
//! assert_eq!(names.intern("gemm"), gemm);
//! assert_eq!(names.text(gemm), "gemm");
//! ```
//! A trace without slices covers no time, and has no functions:
//! ```
//! use laggard_trace::{Trace, profile};
//! use pattern::PatternSettings;
//!
//! let trace = Trace::default();
//! assert_eq!(trace.span_ns(), None);
//! assert!(profile(&trace, &PatternSettings::default()).patterns.is_empty());
//! ```

mod calls;
mod clocks;
mod collectives;
mod functions;
mod slice;
mod steps;

pub use calls::{CallTree, RecordedCall};
pub use clocks::Clocks;
pub use collectives::{Arrival, MatchedCollective, Matches, match_collectives};
pub use functions::{OUTSIDE, Profile, executions, profile};
pub use slice::{Counter, NameId, Names, PythonFrame, Slice, SliceKind, Trace, Track, Transfer};
pub use steps::rank_steps;
