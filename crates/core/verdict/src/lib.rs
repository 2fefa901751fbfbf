//! One job from marks to verdict: the methods put together, without I/O or clock.
//!
//! A [`Job`] takes [`model::Input`]s, or whole windows where a recording has them, and
//! answers with announcements while the job runs and a [`model::Verdict`] at any time. The same
//! input gives the same answer, byte for byte, whether it is read live or from a file.
//!
//! # Example
//! Settings are those of docs/settings.md unless a file says otherwise:
//! ```
//! use laggard_verdict::Settings;
//!
//! let settings = Settings::default();
//! assert_eq!(settings.window.steps, 50);
//! assert_eq!(settings.incident.steady_share_min, 0.05);
//! ```

mod called;
mod detectors;
mod escalation;
mod hangs;
mod host_merger;
mod job;
mod pipelines;
mod policy;
mod record;
mod series;
mod settings;
mod slow_collectives;
#[cfg(test)]
mod testkit;
mod totals;
mod usages;

pub use detectors::WorkRequests;
pub use escalation::{MAX_WINDOW_S, ProfileSettings, WantedProfile};
pub use host_merger::HostMerger;
pub use job::{Job, ProfiledRank};
pub use policy::{Rule, Suspicion};
pub use record::{LateRank, Remember, StageRecord, WindowRecord};
pub use series::{Column, Series};
pub use settings::{BaselineChoice, LayoutSettings, Settings};
