//! From marks of single processes to aligned windows of a job.
//!
//! [`StepCounter`] numbers steps where the marks are made, [`Segmenter`] turns one rank's
//! marks into steps, [`Aligner`] puts the steps of all ranks side by side, cuts them where
//! the ranks last met and closes [`model::Window`]s. [`DeviceClock`] does so on the clock of the
//! devices, for steps that were sampled. [`IterationLearner`] finds the loop's
//! own period where one iteration takes several optimizer steps, [`IterationTimer`] times it.
//!
//! # Examples
//! Steps are counted from the marks of a loop: a batch that is asked for after an optimizer
//! ran begins the next one.
//! ```
//! use laggard_steps::StepCounter;
//! use model::MarkKind::{DataBegin, DataEnd, OptimizerBegin, OptimizerEnd};
//!
//! let mut counter = StepCounter::default();
//! let marks = [DataBegin, DataEnd, OptimizerBegin, OptimizerEnd, DataBegin];
//! assert_eq!(marks.map(|mark| counter.count(mark)), [0, 0, 0, 0, 1]);
//! ```
//! A loop that repeats after two steps has iterations of two:
//! ```
//! use laggard_steps::IterationLearner;
//!
//! let mut learner = IterationLearner::default();
//! for piece in [1, 2].repeat(20) {
//!     learner.hear(piece);
//! }
//! assert_eq!(learner.cycle().len(), 2);
//! ```

mod align;
mod build;
mod cells;
mod clocks;
mod counter;
mod device;
mod iteration;
mod learner;
mod meeting;
mod read_back;
mod segment;
#[cfg(test)]
mod testkit;

pub use align::{Aligner, MAX_NEIGHBOURS, WindowSettings};
pub use counter::StepCounter;
pub use device::{DeviceClock, MAX_ASKED_STEPS, is_sampled, run_of, runs_from};
pub use iteration::{Iteration, IterationTimer};
pub use learner::{Heard, IterationLearner};
pub use segment::Segmenter;
