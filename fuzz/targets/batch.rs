//! Any bytes are no batch, or one that packs to the same again; told by two hosts whose clocks
//! differ it gives a sound verdict. The same bytes as a collector's file are read without harm.
#![no_main]

use formats::{StoredJob, input_line, pack_batch, unpack_batch};
use fuzz::{eager, judge};
use model::Batch;
use verdict::HostMerger;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok((mut stored, _)) = StoredJob::open(bytes) {
        while let Ok(Some(_)) = stored.next() {}
        assert!(stored.whole_bytes() <= bytes.len() as u64);
    }
    // Lines are what is worth trying: packed, few changes would pass the checksum.
    let lines = bytes
        .split_inclusive(|byte| *byte == b'\n')
        .next()
        .map_or(0, <[u8]>::len);
    let Ok(head) = serde_json::from_slice(&bytes[..lines]) else {
        drop(unpack_batch(bytes));
        return;
    };
    let packed = pack_batch(&head, &bytes[lines..]).expect("room");
    let Ok((head, inputs)) = unpack_batch(&packed) else {
        return;
    };
    let mut again = Vec::new();
    for input in &inputs {
        input_line(input, &mut again).expect("room");
    }
    let again = pack_batch(&head, &again).expect("room");
    assert_eq!(
        unpack_batch(&again).expect("what was written"),
        (head.clone(), inputs.clone())
    );
    let mut merger = HostMerger::new("job", eager());
    for (sequence, host) in ["a", "b", "a", "a"].into_iter().enumerate() {
        let session = (sequence / 2).to_string();
        merger.take(Batch {
            host: host.to_owned(),
            session,
            sequence: sequence as u64,
            shift_ns: if host == "a" { 0 } else { -3_000_000_000 },
            watermark: head.watermark,
            last: head.last || sequence == 2,
            inputs: inputs.clone(),
        });
    }
    merger.lose("b");
    merger.finish();
    judge(merger.job());
});
