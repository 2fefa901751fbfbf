//! Watches the rings of one host.
//!
//! An [`Agent`] is polled by whoever hosts it; it starts no thread and never blocks. Its
//! absence, or its death, costs the job nothing but records.

mod agent;

pub use agent::Agent;
