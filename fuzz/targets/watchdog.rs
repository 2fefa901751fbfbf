//! Any bytes are what a dead job printed, and give a sound verdict.
#![no_main]

use formats::{Limits, Recording, load_bytes};
use fuzz::{eager, judge};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // What makes a text such a log stands in front, so that every input is one.
    let line = b"[rank1]: [PG 0 Rank 1] last enqueued NCCL work: 2, last completed NCCL work: 1.\n";
    let bytes = [line.as_slice(), bytes].concat();
    if let Ok(recording @ Recording::Part(_)) = load_bytes("job.log", &bytes, Limits::default()) {
        judge(&recording.replay("job.log", eager()));
    }
});
