//! Any bytes are no event lists, or lists that give a sound verdict.
#![no_main]

use formats::{Limits, Recording, load_bytes};
use fuzz::{eager, judge};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(recording @ Recording::Events(_)) = load_bytes("events", bytes, Limits::default()) {
        judge(&recording.replay("events", eager()));
    }
});
