//! Recordings, from bytes to verdicts.

mod batches;
mod cards;
mod clocks;
mod less_evidence;
mod live_calls;
mod live_devices;
mod live_traces;
mod recordings;
mod replays;
mod roles;
mod traces;
mod what_if;
