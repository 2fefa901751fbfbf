//! Batches of several hosts, put together again.

use std::io::Cursor;

use laggard_formats::{
    Limits, StoredBatch, StoredEntry, StoredError, StoredJob, input_line, load, pack_batch,
    unpack_batch,
};
use model::{Batch, Input, RankNs, Source, Verdict};
use proptest::prelude::*;
use protocol::BatchHead;
use verdict::{HostMerger, Settings};

use crate::{inputs, path};

fn batch(host: &str, sequence: u64, inputs: Vec<Input>, last: bool) -> Batch {
    let watermark = inputs
        .iter()
        .filter_map(Input::at)
        .max()
        .unwrap_or_default();
    let (host, session) = (host.to_owned(), "e".to_owned());
    Batch {
        host,
        session,
        sequence,
        shift_ns: 0,
        watermark,
        last,
        inputs,
    }
}

fn verdict(mut merger: HostMerger) -> Verdict {
    merger.finish();
    merger.job().verdict()
}

/// What one host of the whole job tells.
fn alone(inputs: Vec<Input>) -> Verdict {
    let mut merger = HostMerger::new("job", Settings::default());
    merger.take(batch("a", 0, inputs, true));
    verdict(merger)
}

#[test]
fn one_host_is_heard_as_its_recording_is_read() {
    for job in [
        "jobs/data",
        "jobs/none",
        "jobs/two",
        "late/rank1_device_never",
        "late/three_faults_never",
        "late/none_after",
    ] {
        let mut replayed = load(&path(job), Limits::default())
            .unwrap()
            .replay("job", Settings::default())
            .verdict();
        replayed.job.source = Source::Run;
        let all = inputs(job);
        assert_eq!(alone(all.clone()), replayed);
        let mut merger = HostMerger::new("job", Settings::default());
        for (sequence, inputs) in all.chunks(97).enumerate() {
            merger.take(batch("a", sequence as u64, inputs.to_vec(), false));
        }
        assert_eq!(verdict(merger), replayed, "{job}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Ranks 0 and 1 on one host, 2 and 3 on another whose clock is hours ahead, batches of
    /// any size, and the hosts taking turns in any order: the same verdict.
    #[test]
    fn hosts_are_put_together_whatever_their_clocks_say(
        sizes in prop::collection::vec((any::<bool>(), 1_usize..4000), 4..40),
        ahead_s in 0_i64..100_000,
    ) {
        let all = inputs("jobs/data");
        let ahead_ns = ahead_s * 1_000_000_000;
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for mut input in all.iter().cloned() {
            if input.highest_rank().is_some_and(|rank| rank > 1)
                && !matches!(input, Input::Group { .. })
            {
                input.shift(ahead_ns);
                b.push(input);
            } else {
                a.push(input);
            }
        }
        let mut merger = HostMerger::new("job", Settings::default());
        let (mut a, mut b) = (a.into_iter(), b.into_iter());
        let mut sequence = 0;
        // The host of the first batch has the job's clock.
        merger.take(batch("a", 0, a.by_ref().take(40).collect(), false));
        for (is_a, size) in sizes.iter().cycle() {
            let (host, from, shift_ns) =
                if *is_a { ("a", &mut a, 0) } else { ("b", &mut b, -ahead_ns) };
            let some: Vec<Input> = from.by_ref().take(*size).collect();
            sequence += 1;
            if !some.is_empty() {
                merger.take(Batch { shift_ns, ..batch(host, sequence, some, false) });
            }
            if a.len() + b.len() == 0 || sequence > 5000 {
                break;
            }
        }
        for (host, from, shift_ns) in [("a", a, 0), ("b", b, -ahead_ns)] {
            let rest = batch(host, sequence + 1, from.collect(), true);
            merger.take(Batch { shift_ns, ..rest });
        }
        prop_assert!(merger.ended());
        let (found, whole) = (verdict(merger), alone(all));
        prop_assert_eq!(&found.incidents, &whole.incidents);
        prop_assert_eq!(&found.windows, &whole.windows);
        prop_assert_eq!(&found.stages, &whole.stages);
    }
}

#[test]
fn a_batch_is_read_as_it_was_packed_and_damage_is_refused() {
    let inputs: Vec<Input> = inputs("jobs/data").into_iter().take(500).collect();
    let mut lines = Vec::new();
    for input in &inputs {
        input_line(input, &mut lines).unwrap();
    }
    let head = BatchHead::new("boot", RankNs(7), true);
    let packed = pack_batch(&head, &lines).unwrap();
    let whole = (head.clone(), inputs);
    assert_eq!(unpack_batch(&packed).unwrap(), whole);
    for cut in (0..packed.len()).step_by(7) {
        assert!(unpack_batch(&packed[..cut]).is_err(), "cut at {cut}");
    }
    for at in 8..packed.len() {
        let mut damaged = packed.clone();
        damaged[at] ^= 0x10;
        // Some bits mean nothing.
        assert!(
            unpack_batch(&damaged).map_or(true, |read| read == whole),
            "damaged at {at}"
        );
    }
    let refusal = |lines: &[u8]| {
        unpack_batch(&pack_batch(&head, lines).unwrap())
            .unwrap_err()
            .to_string()
    };
    assert!(refusal(b"{\"is\":\"?\"}\n").starts_with("line 2 of the batch: unknown variant"));
    let high = b"{\"is\":\"lost\",\"rank\":131072,\"records\":1}\n";
    assert_eq!(
        refusal(high),
        "line 2 of the batch: ranks are numbered below 131072"
    );
    let large = b"[0,1,0,1,1,0]\n".repeat(1_300_000);
    assert_eq!(
        refusal(&large),
        "the batch is larger than 16777216 bytes unpacked"
    );
}

#[test]
fn a_stored_job_is_read_up_to_where_its_writer_was_killed() {
    let body = pack_batch(&BatchHead::new("boot", RankNs(7), false), b"").unwrap();
    let mut bytes = Vec::new();
    StoredEntry::of_job("job").write(&mut bytes).unwrap();
    let mut ends = vec![bytes.len()];
    for sequence in 0..3_u64 {
        let stored = StoredBatch {
            host: "a".to_owned(),
            session: "e".to_owned(),
            sequence,
            boot: "boot".to_owned(),
            offset_ns: 5 + sequence.cast_signed(),
            at_s: 1,
            bytes: body.len() as u32,
        };
        StoredEntry::Batch(stored).write(&mut bytes).unwrap();
        bytes.extend_from_slice(&body);
        ends.push(bytes.len());
    }
    for cut in ends[0]..=bytes.len() {
        let (mut stored, job) = StoredJob::open(Cursor::new(&bytes[..cut])).unwrap();
        assert_eq!(job, "job");
        let whole = ends.iter().rposition(|end| *end <= cut).unwrap();
        for sequence in 0..whole as u64 {
            let (_, batch) = stored.next().unwrap().unwrap();
            let batch = batch.unwrap();
            assert_eq!(
                (batch.sequence, batch.shift_ns),
                (sequence, sequence.cast_signed())
            );
        }
        match stored.next() {
            Ok(None) => assert_eq!(cut, ends[whole]),
            Err(StoredError::Torn) => assert!(cut > ends[whole]),
            other => panic!("{other:?}"),
        }
        assert_eq!(stored.whole_bytes(), ends[whole] as u64);
    }
    for cut in 0..ends[0] {
        assert!(StoredJob::open(Cursor::new(&bytes[..cut])).is_err());
    }
}

#[test]
fn a_stored_head_is_written_as_in_the_first_version() {
    let line = r#"{"stored":"batch","host":"a","epoch":"e","sequence":1,"boot":"b","offset_ns":-5,"at_s":2,"bytes":3}"#;
    let entry: StoredEntry = serde_json::from_str(line).unwrap();
    let StoredEntry::Batch(StoredBatch { session, .. }) = &entry else {
        panic!("{entry:?}")
    };
    assert_eq!(session, "e");
    assert_eq!(serde_json::to_string(&entry).unwrap(), line);
}
