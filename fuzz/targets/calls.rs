//! Any bytes are a log of NCCL calls that gives a sound verdict, or are refused.
#![no_main]

use formats::{Limits, Recording, load_bytes};
use fuzz::{eager, judge_document};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // What marks a log stands in front, so that every input is one.
    let line = b"[1755590104.25] [Rank 1] Fun AllReduce Data 1 stream 0x1 opCount 0\n";
    let bytes = [line.as_slice(), bytes].concat();
    if let Ok(recording @ Recording::Part(_)) = load_bytes("rank_1.log", &bytes, Limits::default())
    {
        // Seconds outside the pipeline may be negative where calls are out of order.
        judge_document(&recording.replay("rank_1.log", eager()));
    }
});
