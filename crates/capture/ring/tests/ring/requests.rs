//! The table of work requests, from both sides.
#![expect(clippy::unwrap_used, reason = "what tests share is a test too")]

use std::fs;

use laggard_ring::{
    Identity, QUEUE_PAIRS, QueuePairIndex, RequestReader, RequestWriter, RingDirectory, RingError,
};
use model::RankNs;
use tempfile::TempDir;

fn table() -> (TempDir, RequestWriter, RequestReader) {
    let root = tempfile::tempdir().unwrap();
    let directory = RingDirectory::create(root.path(), "job").unwrap();
    let identity = Identity {
        rank: 3,
        pid: 7,
        ..Identity::default()
    };
    let writer = RequestWriter::create(&directory, &identity).unwrap();
    assert_eq!(directory.request_tables().unwrap(), [writer.path()]);
    let reader = RequestReader::open(writer.path()).unwrap();
    assert_eq!(reader.identity(), &identity);
    (root, writer, reader)
}

#[test]
fn a_queue_pair_is_read_as_it_was_written() {
    let (_root, writer, reader) = table();
    let index = writer.open(b"mlx5_0", 77).unwrap();
    writer.connect(index, 1, *b"0123456789abcdef", 88);
    assert_eq!(writer.posted(index, 3, 300, || RankNs(1000)), (3, 300));
    assert_eq!(
        writer.posted(index, 1, 100, || unreachable!("it is busy")),
        (4, 400)
    );
    writer.completed(index, 2, 200, || unreachable!("it is still busy"));
    writer.failed(index, 12);
    let read = &reader.read(RankNs(1500))[0];
    assert_eq!(
        (read.device.as_str(), read.port, read.number),
        ("mlx5_0", 1, 77)
    );
    assert_eq!(read.peer, (88, *b"0123456789abcdef"));
    assert_eq!((read.posted, read.posted_bytes), (4, 400));
    assert_eq!(
        (read.completed, read.completed_bytes, read.busy_ns),
        (2, 200, 500)
    );
    assert_eq!((read.failed, read.status, read.open), (1, 12, true));
    writer.refused(index, 1, 100, || unreachable!("it is still busy"));
    writer.completed(index, 3, 300, || RankNs(1800));
    writer.close(index);
    let read = &reader.read(RankNs(9000))[0];
    assert_eq!((read.posted, read.completed, read.busy_ns), (3, 3, 800));
    assert!(!read.open);
}

#[test]
fn what_is_refused_was_never_in_flight() {
    let (_root, writer, reader) = table();
    let index = writer.open(b"mlx5_0", 77).unwrap();
    writer.posted(index, 1, 100, || RankNs(1000));
    writer.refused(index, 1, 100, || RankNs(1002));
    assert_eq!(reader.read(RankNs(9000))[0].busy_ns, 2);
}

#[test]
fn what_finds_no_room_is_counted() {
    let (_root, writer, reader) = table();
    let found = (0..QUEUE_PAIRS + 5).filter(|_| writer.open(b"a", 1).is_some());
    assert_eq!(found.count(), QUEUE_PAIRS);
    assert_eq!(
        (reader.read(RankNs(0)).len(), reader.dropped()),
        (QUEUE_PAIRS, 5)
    );
    let none = QueuePairIndex(u32::MAX);
    assert_eq!(writer.posted(none, 1, 1, || RankNs(0)), (0, 0));
}

#[test]
fn a_foreign_file_is_refused() {
    let (root, writer, _) = table();
    let path = root.path().join("rank0.1.requests");
    fs::write(&path, "something else").unwrap();
    let refused = RequestReader::open(&path);
    assert!(matches!(refused, Err(RingError::NotARequestTable { .. })));
    let mut bytes = fs::read(writer.path()).unwrap();
    bytes[8] = 9;
    fs::write(&path, bytes).unwrap();
    let refused = RequestReader::open(&path);
    assert!(matches!(refused, Err(RingError::Layout { found: 9, .. })));
}
