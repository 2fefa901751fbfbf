//! Any bytes are a trace of a profiler that gives a sound verdict, or are refused.
#![no_main]

use formats::{Limits, Recording, load_bytes};
use fuzz::{eager, judge};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // What marks a trace stands in front, so that every input is one.
    let bytes = [
        b"{\"schemaVersion\": 1, \"traceEvents\": [".as_slice(),
        bytes,
    ]
    .concat();
    if let Ok(recording @ Recording::Trace(_)) = load_bytes("rank1.json", &bytes, Limits::default())
    {
        judge(&recording.replay("rank1.json", eager()));
    }
});
