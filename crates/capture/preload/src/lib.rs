//! Stands between a program and its NCCL, by `LD_PRELOAD`: tells what it calls for.
//!
//! NCCL before 2.23 knows no profiler plugin. Here its API is exported, each call is forwarded
//! to the function the caller would have got without us (`forward`), and what it calls for
//! becomes an operation in the process's live table ([`ring::LiveWriter`]). When an operation
//! ends is not seen.
//!
//! Whatever happens, the caller gets what NCCL answers: what cannot be recorded is not, a
//! panic switches recording off for good, and a forked child records nothing.
//!
//! Exports are written in assembly for x86-64, so that each knows its caller; built for
//! anything else the library exports nothing.
#![expect(
    unsafe_code,
    reason = "calls come by C pointers, and go on to functions found by name"
)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg(target_arch = "x86_64")]

mod calls;
mod communicators;
mod forward;
mod group;
mod nccl;
mod requests;
mod verbs;
