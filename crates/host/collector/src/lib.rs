//! Gathers what the hosts of many jobs see, keeps it, and tells it.
//!
//! [`Collector::open`] takes up what an earlier one kept; [`Collector::serve`] answers over
//! HTTP. Each job has a thread that keeps its batches on disk before it answers for them,
//! and feeds them to the same analysis as `laggard run` has.

mod access;
mod alerts;
mod api;
mod catalogue;
mod chronicle;
mod collector;
mod connections;
mod history;
mod intake;
mod job;
mod keeper;
mod membership;
mod messenger;
mod metrics;
mod moment;
mod reader;
mod rendered;
mod retention;
mod room;
mod shares;
mod silences;
mod state;
mod store;
mod tls;

pub use access::{Role, Tokens, TokensError};
pub use collector::{Collector, OpenError, Options, Pages};
pub use history::{HistoryOptions, Place, PlaceError};
pub use membership::Membership;
pub use messenger::{Webhook, WebhookForm};
pub use retention::Keep;
pub use silences::Silence;
pub use state::{JobState, JobSummary};
pub use tls::{Certificate, CertificateError};
