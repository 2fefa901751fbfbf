//! Any bytes are a report of Nsight Systems that gives a sound verdict, or are refused.
#![no_main]

use formats::{Limits, Recording, load_bytes};
use fuzz::{eager, judge};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(recording @ Recording::Trace(_)) =
        load_bytes("rank1.sqlite", bytes, Limits::default())
    {
        judge(&recording.replay("rank1.sqlite", eager()));
    }
});
