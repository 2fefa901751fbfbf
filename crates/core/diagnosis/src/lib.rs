//! Findings of all methods about one cause become one finding.
//!
//! A [`Detector`] is a method that finds what holds a job back.
//! [`fuse`] takes what the methods found, in any order, and applies rules, those of a job the
//! [`RULES`] in the order of the table. A rule says when two findings are one cause, and which of them keeps its headline, its
//! place and its cost; the other's facts become facts of that one. [`Witnesses`] are asked what they
//! know of a finding's ranks and steps. docs/math/fusion.md has the table and the laws.
//!
//! ```
//! use laggard_diagnosis::{RULES, Witnesses, fuse};
//! use model::{Claim, Finding, Fact, Observation, Origin};
//!
//! struct Nobody;
//! impl Witnesses for Nobody {}
//!
//! let of_ranks = |origin, ranks: &[u32]| {
//!     let steps = model::StepSpan { first: 5, last: 9, open: false };
//!     let stage = "data.next_wait".to_owned();
//!     let claim = Claim::UnknownRank { stage, stage_share: 0.8, steps };
//!     let mut finding = Finding::new(origin, format!("{origin:?}"), claim);
//!     (finding.first_step, finding.last_step) = (5, 9);
//!     finding.subject.ranks = ranks.to_vec();
//!     finding.facts.push(Fact::from(Observation::TooFewCores { share: 0.5, before_share: 0.0 }));
//!     finding
//! };
//! let late = of_ranks(Origin::Stages, &[2]);
//! let stall = of_ranks(Origin::PassedStall, &[2]);
//! let fused = fuse(vec![stall, late], &RULES, &Nobody);
//! assert_eq!((fused.len(), fused[0].origin, fused[0].facts.len()), (1, Origin::Stages, 2));
//! ```
//!
//! Pure: no rule reads a sentence, and the same findings give the same answer.

mod detector;
mod disagreement;
mod fuse;
mod rules;
#[cfg(test)]
mod tests;
mod witness;

pub use detector::Detector;
pub use disagreement::disagreements;
pub use fuse::fuse;
pub use rules::{FusionRule, RULES};
pub use witness::{OwnBlocks, SlowLink, Witnesses};
