//! Shared memory between real processes.

mod live;
mod processes;
mod requests;
