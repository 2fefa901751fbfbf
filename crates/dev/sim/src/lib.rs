//! Synthetic jobs with injected faults.
//!
//! [`Campaign`] is the calibrated simulation of the paper's controlled study. Its base times
//! were chosen to meet the paper's tables, so it is a **fitted fixture**: it notices when
//! our results change, and is no independent evidence for the method. [`patterns`] holds the
//! small worked examples, with noise.
//!
//! # Source
//! StageFrontier (2026), its controlled study and examples.

mod campaign;
pub mod patterns;
mod window;

pub use campaign::{Campaign, Row, Scenario, Score, simulate};
pub use window::{STAGES, window_of};
