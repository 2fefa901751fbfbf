//! Any file is no table of work requests, or one in which nothing comes back that was not
//! given, and that says the same when nothing has changed.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;
use std::{env, fs};

use model::RankNs;
use ring::RequestReader;

/// Bytes of a table, of which the first are taken from the input.
const BYTES: usize = 384 + 1024 * 128;

/// Used again by every input and every run: making a folder takes longer than reading.
static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
    let root = env::temp_dir().join("laggard-fuzz-requests");
    fs::create_dir_all(&root).expect("a directory");
    root.join("rank0.1.requests")
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut file = bytes.to_vec();
    if file.len() >= 384 {
        file.resize(BYTES, 0);
    }
    fs::write(&*PATH, file).expect("a file");
    let Ok(reader) = RequestReader::open(&PATH) else {
        return;
    };
    let first = reader.read(RankNs(u64::MAX));
    for pair in &first {
        assert!(pair.completed <= pair.posted);
        assert!(pair.completed_bytes <= pair.posted_bytes);
    }
    assert!(first.len() <= 1024);
    assert_eq!(reader.read(RankNs(u64::MAX)), first);
});
