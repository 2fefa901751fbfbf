//! Any bytes are neither a what-if trace nor its metadata, or give a sound verdict.
#![no_main]

use model::Source;
use std::path::Path;

use formats::{Limits, read_layout, read_what_if};
use fuzz::judge_document;
use verdict::{Job, Settings};
use whatif::JobLayout;

/// That of the seeds.
fn layout() -> JobLayout {
    JobLayout {
        trial_name: "seed".to_owned(),
        run_id: 0,
        dp_size: 2,
        dsp_size: 1,
        pp_size: 2,
        tp_size: 1,
        vpp_size: 1,
        world_size: 4,
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if !bytes.starts_with(b"PAR1") {
        let _ = std::str::from_utf8(bytes).map(|text| read_layout(Path::new("meta"), text));
        return;
    }
    let limits = Limits {
        unpacked_bytes: 1 << 24,
    };
    if let Ok(findings) = read_what_if(Path::new("trace"), bytes, layout(), limits) {
        let mut job = Job::new("trace", Source::WhatIf, Settings::default());
        job.add_what_if(findings);
        judge_document(&job);
    }
});
