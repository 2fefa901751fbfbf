//! Real jobs, one rank of which has a clock of its own.

use model::{Incident, Input, RankNs, Source};
use verdict::{Job, Settings};

use crate::inputs;

const HOUR_NS: i64 = 3_600_000_000_000;
const FAR: u32 = 1;

/// The incidents of a recorded job whose rank 1 is on a host with another clock.
fn incidents(name: &str, shift_ns: i64) -> Vec<Incident> {
    let mut job = Job::new("job", Source::Marks, Settings::default());
    for mut input in inputs(&format!("jobs/{name}")) {
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
