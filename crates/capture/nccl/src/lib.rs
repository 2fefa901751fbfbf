//! The NCCL profiler plugin: tells what communication a training process is in.
//!
//! NCCL opens the library named by `NCCL_PROFILER_PLUGIN` and takes one of the symbols
//! `ncclProfiler_v1` to `ncclProfiler_v7`: a table of functions, which it calls as
//! operations are enqueued and as its proxy threads move their bytes. Here each call becomes
//! a change of a counter in the process's live table ([`ring::LiveWriter`]), which readers
//! outside look at. Analyses are theirs.
//!
//! Whatever happens, NCCL hears success: what cannot be recorded is not, a panic is
//! counted and switches the plugin off for good, and a forked child records nothing.
#![expect(
    unsafe_code,
    reason = "NCCL calls through C pointers and hands over C structures"
)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod abi;
mod profiler;
mod recorder;
mod token;
