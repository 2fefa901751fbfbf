//! Any bytes are refused, or are a verdict that is like itself, and is compared with a sound one
//! in numbers that can be told.
#![no_main]

use std::sync::LazyLock;

use comparison::{Comparison, MIN_CHANGE_SHARE, Outcome, Run, compare};
use formats::{Limits, parse_verdict};

static SOUND: LazyLock<Run> = LazyLock::new(|| {
    let verdict = include_bytes!("../seeds/verdict/late_in_data.json");
    Run::of_verdict(parse_verdict("verdict", verdict, Limits::default()).expect("a seed"))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let limits = Limits {
        unpacked_bytes: 1 << 22,
    };
    let Ok(verdict) = parse_verdict("verdict", bytes, limits) else {
        return;
    };
    let run = Run::of_verdict(verdict);
    let itself = compare(&run, &run, MIN_CHANGE_SHARE);
    assert!(!itself.regression && itself.incidents.is_empty());
    assert!([Outcome::Same, Outcome::Undecided].contains(&itself.outcome));
    for found in [
        itself,
        compare(&SOUND, &run, 0.0),
        compare(&run, &SOUND, 0.0),
    ] {
        let json = serde_json::to_value(&found).expect("a comparison is JSON");
        // Numbers that are not finite are null in JSON and do not come back.
        let back: Comparison = serde_json::from_value(json).expect("a comparison is read back");
        assert_eq!(back, found);
    }
});
