//! Any bytes are nothing that another tool tells of a job, or give a sound verdict.
#![no_main]

use formats::{Limits, Recording, load_bytes};
use fuzz::{eager, judge};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(recording @ Recording::Part(_)) = load_bytes("dump_rank_1", bytes, Limits::default())
    {
        judge(&recording.replay("snapshot", eager()));
    }
});
