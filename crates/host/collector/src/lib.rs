//! Gathers what the hosts of many jobs see, keeps it, and tells it.
//!
//! [`Collector::open`] takes up what an earlier one kept; [`Collector::serve`] answers over
//! HTTP. Each job has a thread that keeps its batches on disk before it answers for them,
//! and feeds them to the same analysis as `laggard run` has.

mod access;
mod alert_queue;
mod alerts;
mod api;
mod catalogue;
mod clock;
mod cluster_member;
mod collector;
mod connections;
mod early_batches;
mod history;
mod history_recorder;
mod incident_trace;
mod intake;
mod job;
mod job_thread;
mod memory;
mod metrics;
mod ownership;
mod reader;
mod rendered;
mod retention;
mod silences;
mod state;
mod store;
mod tls;
mod webhook;
mod worker;

pub use access::{Role, Tokens, TokensError};
pub use cluster_member::ClusterMember;
pub use collector::{Collector, OpenError, Options, Pages};
pub use history::{HistoryOptions, HistoryPlace, PlaceError};
pub use retention::Keep;
pub use silences::Silence;
pub use state::{JobState, ListedJob};
pub use tls::{Certificate, CertificateError};
pub use webhook::{Webhook, WebhookForm};
