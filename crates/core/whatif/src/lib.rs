//! What a training step would take without its stragglers.
//!
//! A [`PipelineTrace`] holds every operation of sampled steps of a pipeline-parallel job. [`analyse`]
//! builds what waits for what, simulates the steps with some operations as recorded and the
//! others as they usually are, and so turns "slow" into "costs this much":
//! [`model::WhatIf`], and a [`model::SlowdownCause`] if there is one. Words are left to
//! `narrate`, files to `formats`.
//!
//! # Example
//! A rank stands for those that share its row of the trace:
//! ```
//! use laggard_whatif::JobLayout;
//!
//! let layout = JobLayout {
//!     trial_name: "A".to_owned(),
//!     run_id: 0,
//!     dp_size: 4,
//!     dsp_size: 1,
//!     pp_size: 4,
//!     tp_size: 4,
//!     vpp_size: 1,
//!     world_size: 64,
//! };
//! assert_eq!(layout.peers(), 4);
//! ```
//!
//! # Source
//! What-if analysis of stragglers in hybrid-parallel training (ByteDance, OSDI 2025) and its
//! released code, ByteDance-Seed/StragglerAnalysis (Apache-2.0), of which nothing is copied.

mod analysis;
mod cause;
mod graph;
mod op;
mod simulate;
mod trace;

pub use analysis::{Findings, analyse};
pub use op::OpKind;
pub use trace::{JobLayout, PipelineTrace, Row, TraceError};
