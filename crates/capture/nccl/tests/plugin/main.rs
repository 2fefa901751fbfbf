//! The plugin as NCCL meets it: opened as a library, called through its C interface, looked
//! at from outside.
#![expect(unsafe_code, reason = "NCCL calls through C pointers, and tests fork")]
#![expect(clippy::unwrap_used, reason = "what tests share is a test too")]

mod cluster;
mod driver;
mod golden;
mod odd;
mod processes;
