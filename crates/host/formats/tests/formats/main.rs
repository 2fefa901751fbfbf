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

use std::path::PathBuf;

use laggard_formats::{Limits, Recording, load};
use model::Input;

/// Where a recording of testdata lies: `late/loader_after`.
fn path(recording: &str) -> PathBuf {
    let testdata = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../testdata");
    testdata.join(format!("{recording}.jsonl.zst"))
}

/// What was recorded of a job.
fn inputs(recording: &str) -> Vec<Input> {
    match load(&path(recording), Limits::default()) {
        Ok(Recording::Journal(journal)) => journal.inputs().to_vec(),
        other => panic!("no journal: {other:?}"),
    }
}
