//! The ring between real processes: killed writers, late and slow readers.
#![expect(unsafe_code, reason = "tests fork")]
#![expect(clippy::unwrap_used, reason = "what tests share is a test too")]

use std::sync::Mutex;
use std::time::Duration;

use laggard_ring::{
    Drained, Identity, NameKind, RingDirectory, RingError, RingReader, RingWriter, clean_stale,
    process_started,
};
use model::{CollectiveIssue, CollectiveOp, Event, Mark, RankNs};

fn identity(rank: u32) -> Identity {
    let pid = std::process::id();
    Identity {
        job: "job".into(),
        host: "host".into(),
        rank,
        pid,
        started: process_started(pid).unwrap(),
        world_size: 4,
        ..Identity::default()
    }
}

/// A mark whose words all follow from its number.
fn mark(number: u64) -> Mark {
    let issue = CollectiveIssue {
        op: CollectiveOp::ALLREDUCE,
        group: number as u32,
        op_id: number,
        number,
        bytes: Some(number),
        element_bytes: number,
    };
    Mark {
        at: RankNs(number),
        step: number as u32,
        on_loop_thread: true,
        event: Event::CollectiveIssue(issue),
    }
}

fn directory() -> (tempfile::TempDir, RingDirectory) {
    let root = tempfile::tempdir().unwrap();
    let directory = RingDirectory::create(root.path(), "job").unwrap();
    (root, directory)
}

fn drain(reader: &mut RingReader) -> (Vec<u64>, u64) {
    let (mut numbers, mut lost) = (Vec::new(), 0);
    reader.drain(usize::MAX, |drained| match drained {
        Drained::Mark(mark) => {
            assert_eq!(mark, self::mark(mark.at.0), "torn");
            numbers.push(mark.at.0);
        }
        Drained::Lost(records) => lost += records,
    });
    (numbers, lost)
}

#[test]
fn a_reader_gets_what_was_written_and_who_wrote_it() {
    let (_root, directory) = directory();
    let writer = RingWriter::create(&directory, &identity(3), 64).unwrap();
    let mut reader = RingReader::open(writer.path()).unwrap();
    assert_eq!(reader.identity(), &identity(3));
    assert_eq!(reader.step(), None);
    (0..10).for_each(|number| writer.write(mark(number)));
    writer.set_stepped(7);
    assert_eq!(writer.name(NameKind::Stage, "tokenise"), Some(0));
    assert_eq!(drain(&mut reader), ((0..10).collect(), 0));
    assert_eq!(reader.step(), Some(7));
    assert_eq!(
        reader.names_from(0),
        [(NameKind::Stage, "tokenise".to_owned())]
    );
    writer.set_closed(true);
    assert!(reader.is_closed() && reader.is_drained());
}

#[test]
fn a_lapped_or_late_reader_counts_what_it_lost() {
    let (_root, directory) = directory();
    let writer = RingWriter::create(&directory, &identity(0), 64).unwrap();
    let mut early = RingReader::open(writer.path()).unwrap();
    (0..5).for_each(|number| writer.write(mark(number)));
    assert_eq!(drain(&mut early).0.len(), 5);
    (5..205).for_each(|number| writer.write(mark(number)));
    let mut late = RingReader::open(writer.path()).unwrap();
    assert_eq!(drain(&mut early), ((141..205).collect(), 136));
    assert_eq!(drain(&mut late), ((141..205).collect(), 141));
    assert_eq!((early.lost(), late.lost()), (136, 141));
}

#[test]
fn names_that_find_no_room_are_refused_and_long_ones_cut_at_a_character() {
    let (_root, directory) = directory();
    let writer = RingWriter::create(&directory, &identity(0), 64).unwrap();
    let long = "ü".repeat(200);
    assert_eq!(writer.name(NameKind::Role, &long), Some(0));
    let accepted = (0..200).filter(|n| writer.name(NameKind::Stage, &n.to_string()).is_some());
    assert_eq!(accepted.count(), 127);
    let reader = RingReader::open(writer.path()).unwrap();
    assert_eq!(reader.names_from(0)[0], (NameKind::Role, "ü".repeat(124)));
}

#[test]
fn a_ring_outlives_its_killed_writer() {
    let (_root, directory) = directory();
    let path = directory.ring_path(&Identity {
        pid: 1,
        ..identity(0)
    });
    // SAFETY: the child only touches its own ring and then waits to be killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let identity = Identity {
            pid: 1,
            ..identity(0)
        };
        let writer = RingWriter::create(&directory, &identity, 1024).unwrap();
        for number in 0.. {
            writer.write(mark(number));
        }
    }
    let mut reader = loop {
        if let Ok(mut reader) = RingReader::open(&path)
            && drain(&mut reader).0.last() > Some(&2000)
        {
            break reader;
        }
        std::thread::yield_now();
    };
    // SAFETY: the child is ours and not yet reaped.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    let (numbers, _) = drain(&mut reader);
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
    let mut afterwards = RingReader::open(&path).unwrap();
    assert!(
        drain(&mut afterwards).0.len() > 500,
        "the last records are still there"
    );
}

/// Several threads take turns as fast as they can while readers read and die.
#[test]
fn records_are_whole_however_hard_the_ring_is_driven() {
    let (_root, directory) = directory();
    let writer = RingWriter::create(&directory, &identity(0), 64).unwrap();
    let path = writer.path().to_owned();
    let turn = Mutex::new(());
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (writer, turn) = (&writer, &turn);
            scope.spawn(move || {
                for n in 0..EACH {
                    let _turn = turn.lock().unwrap();
                    writer.write(mark(n * 3 + thread));
                }
            });
        }
        for _ in 0..20 {
            let mut reader = RingReader::open(&path).unwrap();
            for _ in 0..50 {
                drain(&mut reader);
            }
        }
    });
    let mut reader = RingReader::open(&path).unwrap();
    let (numbers, lost) = drain(&mut reader);
    assert_eq!((numbers.len(), lost), (64, 3 * EACH - 64));
}

const EACH: u64 = 200_000;

#[test]
fn foreign_files_are_refused_by_name() {
    let (_root, directory) = directory();
    let path = directory.path().join("rank0.1.ring");
    std::fs::write(&path, vec![7u8; 100_000]).unwrap();
    assert!(matches!(
        RingReader::open(&path),
        Err(RingError::NotARing { .. })
    ));
    std::fs::write(&path, b"LAGGARD\0").unwrap();
    assert!(matches!(
        RingReader::open(&path),
        Err(RingError::NotARing { .. })
    ));
    let writer = RingWriter::create(&directory, &identity(0), 64).unwrap();
    let mut bytes = std::fs::read(writer.path()).unwrap();
    bytes[8] = 99;
    std::fs::write(&path, &bytes).unwrap();
    assert!(matches!(
        RingReader::open(&path),
        Err(RingError::Layout { found: 99, .. })
    ));
    bytes[8] = 1;
    // A ring that claims more slots than it has.
    bytes[16..24].copy_from_slice(&(1u64 << 40).to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    assert!(matches!(
        RingReader::open(&path),
        Err(RingError::NotARing { .. })
    ));
}

#[test]
fn rings_of_dead_jobs_are_cleaned_up_and_those_of_living_ones_are_not() {
    let root = tempfile::tempdir().unwrap();
    let living = RingDirectory::create(root.path(), "living").unwrap();
    let dead = RingDirectory::create(root.path(), "dead").unwrap();
    let _writer = RingWriter::create(&living, &identity(0), 64).unwrap();
    // The same pid, started at another time: the process is gone and its number reused.
    let gone = Identity {
        started: 1,
        ..identity(0)
    };
    let _orphan = RingWriter::create(&dead, &gone, 64).unwrap();
    assert_eq!(
        clean_stale(root.path(), Duration::from_hours(1)).unwrap(),
        0,
        "too fresh"
    );
    assert_eq!(clean_stale(root.path(), Duration::ZERO).unwrap(), 1);
    assert!(living.path().exists() && !dead.path().exists());
    // A living job of another version.
    let path = living.ring_path(&identity(0));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8] = 99;
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(clean_stale(root.path(), Duration::ZERO).unwrap(), 0);
}

#[test]
fn a_ring_that_cannot_be_made_leaves_nothing_behind() {
    let (_root, directory) = directory();
    let refused = RingWriter::create(&directory, &identity(0), 100);
    assert!(matches!(refused, Err(RingError::Slots { slots: 100 })));
    let left = std::fs::read_dir(directory.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [".laggard"], "the directory's own marker");
}
