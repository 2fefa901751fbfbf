//! Any bytes are no journal, or one that is read back as it was and gives a sound verdict.
#![no_main]

use formats::{Journal, JournalWriter, Limits, Recording, load, load_bytes};
use fuzz::{eager, judge};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let recording = load_bytes("journal", bytes, Limits::default());
    let Ok(Recording::Journal(journal)) = &recording else {
        return;
    };
    assert_eq!(written_and_read(journal).inputs(), journal.inputs());
    judge(&Recording::Journal(journal.clone()).replay("journal", eager()));
});

fn written_and_read(journal: &Journal) -> Journal {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal.jsonl");
    let mut writer = JournalWriter::create(&path, "journal").expect("a file");
    for input in journal.inputs() {
        writer.write(input).expect("room");
    }
    writer.finish().expect("room");
    match load(&path, Limits::default()) {
        Ok(Recording::Journal(journal)) => journal,
        other => panic!("not the journal that was written: {other:?}"),
    }
}
