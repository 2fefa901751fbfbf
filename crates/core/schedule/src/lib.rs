//! The pipeline of a job: which block of which stage holds it back, or where it hangs.
//!
//! [`Plan`] is a schedule as data, [`Graph`] says who waits for whom in it, and
//! [`Graph::time`] which blocks the iteration's time depends on. [`Localiser`] follows
//! iterations and names the blocks that made one slow.
//!
//! # Examples
//! A uniform pipeline of 4 stages and 8 microbatches takes (8 + 3) times a forward and a
//! backward pass:
//! ```
//! use laggard_schedule::{Graph, Scheme, Timing};
//!
//! let graph = Graph::new(Scheme::OneForwardOneBackward.plan(4, 8))?;
//! let mut timing = Timing::default();
//! graph.time(&vec![1.0; graph.nodes()], &mut timing);
//! assert_eq!(timing.makespan_s, 22.0);
//! # Ok::<(), laggard_schedule::Circular>(())
//! ```
//! A block costs what exceeds its slack, and no more:
//! ```
//! use laggard_schedule::{Graph, Scheme, Timing};
//!
//! let graph = Graph::new(Scheme::GPipe.plan(2, 2))?;
//! let mut durations_s = vec![1.0; graph.nodes()];
//! let mut timing = Timing::default();
//! graph.time(&durations_s, &mut timing);
//! let (before_s, slack_s) = (timing.makespan_s, timing.slack_s[1]);
//! durations_s[1] += 5.0;
//! graph.time(&durations_s, &mut timing);
//! assert_eq!(timing.makespan_s, before_s + 5.0 - slack_s);
//! # Ok::<(), laggard_schedule::Circular>(())
//! ```
//!
//! # Source
//! MegaTrace (2026); docs/math/schedule.md says where its listings contradict its text, and
//! what we do.

mod calls;
mod devices;
mod diagnosis;
mod expectation;
mod graph;
mod hang;
mod iterations;
mod job;
mod judge;
mod lanes;
mod lateness;
mod layout;
mod localiser;
mod meetings;
mod own_work;
mod passes;
mod plan;
mod settings;
mod shape;
mod watch;

pub use calls::{Call, Gap, Lane, RankCalls, Unit};
pub use devices::{DeviceBlock, DeviceWatch, UnlikeStage};
pub use diagnosis::{Diagnosis, Networked, Partial, diagnose};
pub(crate) use expectation::Expectation;
pub use graph::{Circular, Graph, Timing};
pub use judge::HeldUp;
pub use layout::{Axis, Layout, LayoutError, Sizes};
pub use localiser::{Localiser, SlowBlock, Slowdown};
pub use plan::{Plan, Scheme};
#[cfg(test)]
pub(crate) use plan::{mark, place};
pub use settings::{ScheduleSettings, Update};
pub use watch::{Watch, Worked, holding_up};
