//! Any bytes, packed or not, are refused with advice or give a sound verdict; neither takes
//! more memory than the limit allows.
#![no_main]

use formats::{Limits, load_bytes};
use fuzz::{eager, judge};

/// Bytes after unpacking: far more than a small input should need, far less than a bomb has.
const LIMITS: Limits = Limits {
    unpacked_bytes: 1 << 20,
};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    match load_bytes("packed", bytes, LIMITS) {
        Ok(recording) => judge(&recording.replay("packed", eager())),
        Err(error) => assert!(!error.to_string().is_empty() && !error.hint().is_empty()),
    }
});
