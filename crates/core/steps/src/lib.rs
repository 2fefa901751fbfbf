//! From marks of single processes to aligned windows of a job.
//!
//! [`StepCounter`] numbers steps where the marks are made, [`Segmenter`] turns one rank's
//! marks into steps, [`Aligner`] puts the steps of all ranks side by side, cuts them where
//! the ranks last met and closes [`model::Window`]s. [`DeviceClock`] does so on the clock of the
//! devices, for steps that were sampled. [`IterationLearner`] finds the loop's
//! own period where one iteration takes several optimizer steps, [`IterationTimer`] times it.

mod align;
mod build;
mod counter;
mod device;
mod iteration;
mod learner;
mod meeting;
mod segment;
#[cfg(test)]
mod testkit;

pub use align::{Aligner, WindowSettings};
pub use counter::StepCounter;
pub use device::{DeviceClock, MAX_ASKED_STEPS, is_sampled, run_of, runs_from};
pub use iteration::{Iteration, IterationTimer};
pub use learner::{Heard, IterationLearner};
pub use segment::Segmenter;
