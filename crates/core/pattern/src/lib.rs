//! PerfTracker: function patterns of workers, and whose differ.
//!
//! A profile of one worker becomes [`Event`]s. [`critical_shares`] finds how much of the
//! critical path each takes, [`summarise`] makes one [`model::Pattern`] (beta, mu, sigma) a function
//! of them, and [`localise`] compares the patterns of one function over all workers: against
//! what is expected of its class, and against each other. [`model::Dictionary`] gives functions,
//! call stacks included, an id that is the same on all workers.
//!
//! [`Trigger`] notices that a running job has become slower and is worth a profile.
//!
//! Pure. Ranks are called workers here where the paper does: any process that was profiled.
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
pub use event::{Event, Resource};
pub use expected::{Expected, ExpectedBox, Range};
pub use localise::{Abnormal, FunctionFinding, Problem, by_host, localise};
pub use settings::{Deviation, Overlap, PatternSettings};
pub use summary::{Series, summarise};
pub use trigger::{Shortest, Trigger, TriggerSettings};
pub use worker::costliest;
