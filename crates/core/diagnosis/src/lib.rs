//! Findings of all methods about one cause become one finding.
//!
//! [`fuse`] takes what the methods found, in any order, and applies [`RULES`] in the order of the
//! table. A rule says when two findings are one cause, and which of them keeps its headline, its
//! place and its cost; the other's facts become facts of that one. [`Witnesses`] are asked what they
//! know of a finding's ranks and steps. docs/math/fusion.md has the table and the laws.
//!
//! Pure: no rule reads a sentence, and the same findings give the same answer.

mod disagreement;
mod fuse;
mod rules;
#[cfg(test)]
mod tests;
mod witness;

pub use disagreement::disagreements;
pub use fuse::fuse;
pub use rules::{FusionRule, RULES};
pub use witness::{OwnBlocks, SlowLink, Witnesses};
