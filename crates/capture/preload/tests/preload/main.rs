//! The library as a program meets it: preloaded, between a library that calls NCCL and one
//! that stands in for it, and looked at from outside.
#![cfg(target_arch = "x86_64")]
#![expect(
    unsafe_code,
    reason = "libraries are opened and called, and tests fork"
)]
#![expect(clippy::unwrap_used, reason = "what tests share is a test too")]

mod driver;
mod forwarding;
mod processes;
mod records;
mod verbs;
