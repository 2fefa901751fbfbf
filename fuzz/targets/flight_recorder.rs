//! Any bytes are no Flight Recorder dump, or collectives in the order of their numbers.
#![no_main]

use formats::recorded_collectives;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(collectives) = recorded_collectives(bytes) {
        assert!(collectives.is_sorted_by_key(|collective| collective.record_id));
        assert!(
            collectives
                .iter()
                .all(|collective| !collective.op.name().is_empty())
        );
    }
});
