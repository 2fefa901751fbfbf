//! Any file is no ring, or one that hands out no more marks than it has slots and whose job
//! gives a sound verdict.
#![no_main]

use model::Source;
use std::path::Path;
use std::sync::LazyLock;
use std::{env, fs, process};

use fuzz::{eager, judge};
use ring::{Drained, JobReader, RingDirectory, RingReader, process_started};
use verdict::Job;

/// Bytes of a ring's header that are taken from the input: the header and two names.
const HEAD_BYTES: usize = 1024;
/// Where the slots of a ring begin, and what one takes.
const SLOTS_AT: usize = 36_864;
const SLOT_BYTES: usize = 64;
/// Where the header has the process and its start time.
const PID_AT: usize = 44;
const STARTED_AT: usize = 48;
/// Drains after which a reader has given up every record that stays unfinished.
const DRAINS: usize = 25;

/// Used again by every input and every run: making a folder takes longer than reading a ring.
static DIRECTORY: LazyLock<RingDirectory> = LazyLock::new(|| {
    let root = env::temp_dir().join("laggard-fuzz");
    RingDirectory::create(&root, "job").expect("a directory")
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let path = DIRECTORY.path().join("rank0.1.ring");
    let file = ring_file(bytes);
    fs::write(&path, &file).expect("a file");
    read_ring(&path, file.len());
    read_job(DIRECTORY.clone());
});

/// A small input, with room between its header and its slots. A process of number zero
/// becomes this one, which is alive.
fn ring_file(bytes: &[u8]) -> Vec<u8> {
    let Some((head, slots)) = bytes.split_at_checked(HEAD_BYTES) else {
        return bytes.to_vec();
    };
    let mut file = head.to_vec();
    file.resize(SLOTS_AT, 0);
    file.extend(slots);
    if file[PID_AT..STARTED_AT] == [0; 4] {
        let started = process_started(process::id()).expect("this process");
        file[PID_AT..STARTED_AT].copy_from_slice(&process::id().to_le_bytes());
        file[STARTED_AT..STARTED_AT + 8].copy_from_slice(&started.to_le_bytes());
    }
    file
}

fn read_ring(path: &Path, file_bytes: usize) {
    let Ok(mut reader) = RingReader::open(path) else {
        return;
    };
    let slots = file_bytes.saturating_sub(SLOTS_AT) / SLOT_BYTES;
    let (mut marks, mut told_lost) = (0, 0u64);
    for _ in 0..DRAINS {
        reader.drain(usize::MAX, |drained| match drained {
            Drained::Mark(_) => marks += 1,
            Drained::Lost(records) => told_lost += records,
        });
    }
    assert!(marks <= slots, "{marks} marks of {slots} slots");
    assert_eq!(told_lost, reader.lost());
    assert!(reader.names_from(0).len() >= reader.names_from(1).len());
}

fn read_job(directory: RingDirectory) {
    let mut reader = JobReader::new(directory);
    let mut job = Job::new("ring", Source::Run, eager());
    reader.look(&mut |input| job.take(input));
    for _ in 0..DRAINS {
        reader.drain(&mut |input| job.take(input));
    }
    job.finish();
    judge(&job);
}
