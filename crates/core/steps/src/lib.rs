//! From marks of single processes to aligned windows of a job.
//!
//! [`StepCounter`] numbers steps where the marks are made, [`Segmenter`] turns one rank's
//! marks into steps, [`Aligner`] puts the steps of all ranks side by side, cuts them where
//! the ranks last met and closes [`model::Window`]s. [`IterationLearner`] finds the loop's
//! own period where one iteration takes several optimizer steps, [`IterationTimer`] times it.

mod align;
mod build;
mod counter;
mod iteration;
mod learner;
mod meeting;
mod segment;
#[cfg(test)]
mod testkit;

pub use align::{Aligner, WindowSettings};
pub use counter::StepCounter;
pub use iteration::{Iteration, IterationTimer};
pub use learner::{Heard, IterationLearner};
pub use segment::Segmenter;
