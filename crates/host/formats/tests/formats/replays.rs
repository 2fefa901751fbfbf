//! The same records give the same incidents, byte for byte, also of a job that was started again.

use model::{Batch, Incident, Input, Verdict};
use proptest::prelude::*;
use verdict::{HostMerger, Settings};

use crate::inputs;

const RECORDINGS: [&str; 9] = [
    "jobs/backward_fsdp2",
    "jobs/callback",
    "jobs/data",
    "jobs/none",
    "jobs/periodic",
    "jobs/rotating",
    "jobs/two",
    "pipelines/hang",
    "pipelines/slow",
];
/// By how much later the second start of a job is.
const LATER_NS: i64 = 1_000_000_000_000;

/// The recording, a restart, and its first half once more.
fn restarted(name: &str) -> Vec<Input> {
    let first = inputs(name);
    let mut again = first[..first.len() / 2].to_vec();
    for input in &mut again {
        input.shift(LATER_NS);
    }
    [first, vec![Input::Restart { attempt: 1 }], again].concat()
}

/// What is said at the end, and what was said on the way, of inputs that came in batches of these
/// sizes, by turns.
fn reported(inputs: &[Input], sizes: &[usize]) -> (String, Vec<Verdict>) {
    let mut merger = HostMerger::new("job", Settings::default());
    let (mut rest, mut on_the_way) = (inputs, Vec::new());
    for (sequence, size) in (0..).zip(sizes.iter().cycle()) {
        let (batch, later) = rest.split_at(rest.len().min(*size));
        rest = later;
        let watermark = batch.iter().filter_map(Input::at).max().unwrap_or_default();
        merger.take(Batch {
            host: "a".to_owned(),
            session: "e".to_owned(),
            sequence,
            shift_ns: 0,
            watermark,
            last: rest.is_empty(),
            inputs: batch.to_vec(),
        });
        on_the_way.push(merger.job().verdict());
        if rest.is_empty() {
            break;
        }
    }
    merger.finish();
    let verdict = merger.job().verdict();
    (
        serde_json::to_string(&verdict).expect("a document"),
        on_the_way,
    )
}

fn incidents(inputs: &[Input]) -> Vec<Incident> {
    let verdict: Verdict = serde_json::from_str(&reported(inputs, &[1000]).0).expect("a verdict");
    verdict.incidents
}

#[test]
fn the_same_records_give_the_same_document_byte_for_byte() {
    for name in RECORDINGS {
        for inputs in [inputs(name), restarted(name)] {
            let whole = reported(&inputs, &[usize::MAX]).0;
            assert!(whole.len() > 100, "{name}");
            assert_eq!(reported(&inputs, &[usize::MAX]).0, whole, "{name} again");
            assert_eq!(reported(&inputs, &[997]).0, whole, "{name} in pieces");
        }
    }
}

#[test]
fn a_rank_that_is_slow_again_after_a_restart_goes_on_being_reported() {
    let reported = incidents(&restarted("jobs/data"));
    let reported: Vec<_> = reported
        .iter()
        .map(|it| {
            (
                &*it.id,
                it.open,
                &it.subject.ranks[..],
                it.victims.to_string(),
            )
        })
        .collect();
    let victims = || "0-1,3".to_owned();
    assert_eq!(
        reported,
        [
            ("i2", true, &[2][..], victims()),
            ("i1", false, &[2][..], victims())
        ]
    );
}

#[test]
fn a_fault_that_another_hides_has_no_victims() {
    let reported = incidents(&inputs("jobs/two"));
    let victims: Vec<_> = reported.iter().map(|it| it.victims.to_string()).collect();
    assert_eq!(victims, ["0-1,3", ""]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// However the records of a job come in, the document is the same, and an id never names
    /// another incident on the way.
    #[test]
    fn pieces_of_any_size_change_nothing(
        name in proptest::sample::select(&RECORDINGS[..]),
        sizes in prop::collection::vec(1_usize..5000, 1..10),
    ) {
        let inputs = restarted(name);
        let (text, on_the_way) = reported(&inputs, &sizes);
        prop_assert_eq!(text, reported(&inputs, &[usize::MAX]).0);
        let mut known = std::collections::BTreeMap::new();
        for incident in on_the_way.into_iter().flat_map(|verdict| verdict.incidents) {
            let what = (incident.kind, incident.subject.ranks);
            let before = known.entry(incident.id.clone()).or_insert_with(|| what.clone());
            prop_assert_eq!(&*before, &what, "{}", incident.id);
        }
    }
}
