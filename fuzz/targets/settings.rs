//! Any text is refused, or is settings that survive being written and under which a job
//! still gets a sound verdict.
#![no_main]

use std::sync::LazyLock;

use formats::{Limits, Recording, load_bytes};
use fuzz::judge;
use verdict::Settings;

/// Three ranks, one of them late in loading data.
static JOB: LazyLock<Recording> = LazyLock::new(|| {
    let job = include_bytes!("../seeds/events/late_in_data.json");
    load_bytes("job", job, Limits::default()).expect("a seed")
});

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(settings) = toml::from_str::<Settings>(text) else {
        return;
    };
    let written = toml::to_string(&settings).expect("settings are TOML");
    assert_eq!(toml::from_str(&written), Ok(settings.clone()));
    judge(&JOB.replay("job", settings));
});
