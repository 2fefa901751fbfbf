//! Any file is no live table, or one whose flows are in order, that tells no operation as
//! ended twice, and that says the same when nothing has changed.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;
use std::{env, fs};

use model::{Operation, RankNs};
use ring::LiveReader;

/// Bytes of the head that are taken from the input: header and two communicators.
const HEAD_BYTES: usize = 896;
/// Where operations begin, and as many of them as are taken from the input.
const OPERATIONS_AT: usize = 12_800;
const OPERATION_BYTES: usize = 8 * 64;
/// Where the flows of a table of 64 operations begin, and where they end.
const FLOWS_AT: usize = OPERATIONS_AT + 64 * 64;
const END: usize = FLOWS_AT + 256 * 64;

/// Used again by every input and every run: making a folder takes longer than reading.
static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
    let root = env::temp_dir().join("laggard-fuzz-live");
    fs::create_dir_all(&root).expect("a directory");
    root.join("rank0.1.live")
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fs::write(&*PATH, table_file(bytes)).expect("a file");
    let Ok(mut reader) = LiveReader::open(&PATH) else {
        return;
    };
    let first = reader.read(RankNs(u64::MAX));
    first.in_progress.iter().chain(&first.ended).for_each(check);
    // Where only calls are seen, the last of a lane is both.
    assert!(first.ended.len() <= 64 && first.in_progress.len() <= 64);
    let second = reader.read(RankNs(u64::MAX));
    assert_eq!(second.in_progress, first.in_progress);
    assert!(second.ended.is_empty() && second.lost == 0);
    assert!(reader.communicators().len() <= 64);
});

/// A small input, with room between its parts.
fn table_file(bytes: &[u8]) -> Vec<u8> {
    let Some((head, slots)) = bytes.split_at_checked(HEAD_BYTES) else {
        return bytes.to_vec();
    };
    let (operations, flows) = slots.split_at(slots.len().min(OPERATION_BYTES));
    let mut file = head.to_vec();
    file.resize(OPERATIONS_AT, 0);
    file.extend(operations);
    file.resize(FLOWS_AT, 0);
    file.extend(flows);
    file.resize(END, 0);
    file
}

fn check(operation: &Operation) {
    for flow in &operation.flows {
        assert!(flow.done <= flow.transmitted && flow.transmitted <= flow.ready);
        assert!(flow.ready <= flow.total && flow.begun_at.0 != 0);
    }
    let keys = operation
        .flows
        .iter()
        .map(|flow| (flow.channel, flow.peer, flow.direction));
    assert!(keys.is_sorted(), "flows are in order");
}
