//! Real jobs, one rank of which has a clock of its own.

use std::path::PathBuf;

use laggard_formats::{Limits, Recording, load};
use model::{Incident, Input, RankNs, Source};
use verdict::{Job, Settings};

const HOUR_NS: i64 = 3_600_000_000_000;
const FAR: u32 = 1;

/// The incidents of a recorded job whose rank 1 is on a host with another clock.
fn incidents(name: &str, shift_ns: i64) -> Vec<Incident> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../../testdata/jobs")
        .join(format!("{name}.jsonl.zst"));
    let Ok(Recording::Journal(journal)) = load(&path, Limits::default()) else {
        panic!("{name} is a journal");
    };
    let mut job = Job::new("job", Source::Marks, Settings::default());
    for input in journal.inputs() {
        let mut input = input.clone();
        match &mut input {
            Input::Rank {
                rank: FAR,
                host,
                first_local,
                ..
            } => {
                "far".clone_into(host);
                *first_local = FAR;
            }
            Input::Mark { rank: FAR, mark } => {
                mark.at = RankNs(mark.at.0.wrapping_add_signed(shift_ns));
            }
            _ => {}
        }
        job.take(input);
    }
    job.finish();
    job.verdict().incidents
}

#[test]
fn a_clock_that_is_an_hour_off_changes_no_verdict() {
    for name in [
        "data",
        "callback",
        "backward_fsdp2",
        "periodic",
        "rotating",
        "two",
    ] {
        let reported = incidents(name, 0);
        assert!(!reported.is_empty(), "{name}");
        for shift_ns in [HOUR_NS, -HOUR_NS] {
            assert_eq!(incidents(name, shift_ns), reported, "{name}, {shift_ns}");
        }
    }
    assert!(incidents("none", HOUR_NS).is_empty());
}
