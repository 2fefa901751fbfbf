//! PerfTracker: function patterns of workers, and whose differ.
//!
//! A profile of one worker becomes [`FunctionCall`]s. [`critical_shares`] finds how much of the
//! critical path each takes, [`summarise`] makes one [`model::Pattern`] (beta, mu, sigma) a function
//! of them, and [`localise`] compares the patterns of one function over all workers: against
//! what is expected of its class, and against each other. [`model::Dictionary`] gives functions,
//! call stacks included, an id that is the same on all workers.
//!
//! [`Trigger`] notices that a running job has become slower and is worth a profile.
//!
//! Pure. Ranks are called workers here where the paper does: any process that was profiled.
//!
//! # Examples
//! The utilisation of an execution is measured where it works, not where it waits:
//! ```
//! use laggard_pattern::critical_execution;
//!
//! let samples = [0.3, 0.0, 0.0, 0.0, 0.0, 0.9, 0.8, 0.0, 0.9, 1.0, 0.9, 0.0, 0.0, 0.0];
//! let found = critical_execution(&samples, 0.8).expect("something was used");
//! assert_eq!(found.samples, 5..11);
//! assert!((found.mean - 0.75).abs() < 1e-6);
//! ```
//! Executions of one kind that run at once share the time:
//! ```
//! use laggard_pattern::{FunctionCall, Overlap, critical_shares};
//! use model::{FunctionClass, FunctionId};
//!
//! let event = |id| FunctionCall {
//!     start_ns: 0,
//!     end_ns: 10,
//!     function: FunctionId(id),
//!     class: FunctionClass::GpuCompute,
//! };
//! assert_eq!(critical_shares(&[event(1), event(2)], (0, 10), Overlap::Split), [0.5, 0.5]);
//! ```
//! A loop is blocked after five iterations of silence, and slow at 5 % more than its best:
//! ```
//! use laggard_pattern::{Trigger, TriggerSettings};
//!
//! let mut trigger = Trigger::new(TriggerSettings::default());
//! for step in 0..50 {
//!     assert!(!trigger.iteration(2.0, 2.0 * f64::from(step)));
//! }
//! assert!(trigger.is_blocked(10.0) && !trigger.is_blocked(9.0));
//! ```
//!
//! # Source
//! PerfTracker (2025), docs/math/pattern.md; docs/patterns.md says what the findings mean.

mod columns;
mod critical;
mod duration;
mod event;
mod expected;
mod localise;
mod settings;
mod summary;
mod trigger;
mod worker;

pub use columns::{Columns, rate_in_use};
pub use critical::critical_shares;
pub use duration::{Execution, critical_execution};
pub use event::{FunctionCall, Resource};
pub use expected::{Expected, ExpectedBox, Range};
pub use localise::{Abnormal, FunctionFinding, Problem, by_host, localise};
pub use settings::{Deviation, Overlap, PatternSettings};
pub use summary::{UtilisationSeries, summarise};
pub use trigger::{Shortest, Trigger, TriggerSettings};
pub use worker::costliest;
