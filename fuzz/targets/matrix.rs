//! Any bytes are no stage matrix, or one that gives a sound verdict.
#![no_main]

use formats::{Limits, Recording, load_bytes};
use fuzz::{eager, judge};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(recording @ Recording::Matrix(_)) = load_bytes("matrix", bytes, Limits::default()) {
        judge(&recording.replay("matrix", eager()));
    }
});
