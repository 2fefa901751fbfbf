//! The live table between real processes and threads: what a reader is told, and when.
#![expect(unsafe_code, reason = "tests fork")]
#![expect(clippy::unwrap_used, reason = "what tests share is a test too")]

use std::path::Path;
use std::time::Duration;

use laggard_ring::{
    Bytes, CommunicatorIndex, FlowToken, Identity, LiveReader, LiveSize, LiveSource, LiveState,
    LiveWriter, OperationToken, Reached, RingDirectory, RingError, RingWriter, Route, clean_stale,
    process_started,
};
use model::{CollectiveOp, Communicator, Direction, Flow, RankNs};

const ALLREDUCE: CollectiveOp = CollectiveOp(3);
/// Long after everything that is recorded here.
const LATER: RankNs = RankNs(1 << 50);

fn identity() -> Identity {
    let pid = std::process::id();
    Identity {
        job: "job".into(),
        host: "host".into(),
        rank: 3,
        world_size: 4,
        pid,
        started: process_started(pid).unwrap(),
        ..Identity::default()
    }
}

struct Live {
    _root: tempfile::TempDir,
    writer: LiveWriter,
    reader: LiveReader,
    communicator: CommunicatorIndex,
}

fn live() -> Live {
    let root = tempfile::tempdir().unwrap();
    let directory = RingDirectory::create(root.path(), "job").unwrap();
    let size = LiveSize::new(64).unwrap();
    let writer = LiveWriter::create(&directory, &identity(), size, LiveSource::Plugin).unwrap();
    let reader = LiveReader::open(writer.path()).unwrap();
    let communicator = writer.communicator(77, b"dp", 1, 4).unwrap();
    Live {
        _root: root,
        writer,
        reader,
        communicator,
    }
}

impl Live {
    fn begin(&self, sequence: u64) -> OperationToken {
        let at = RankNs(1000 * (sequence + 1));
        let begun = self
            .writer
            .begin_operation(self.communicator, ALLREDUCE, sequence, 4096, at);
        begun.unwrap()
    }

    fn announce(&self, operation: OperationToken, route: Route) -> FlowToken {
        self.writer.announce_flow(operation, route, 4).unwrap()
    }

    fn run(&self, flow: FlowToken, transfers: u32, at: u64) {
        let reached = Reached::Count(transfers);
        self.writer.ready(flow, reached, |_| RankNs(at));
        self.writer
            .transmitted(flow, reached, Bytes::Total(100), || RankNs(at));
        self.writer.done(flow, reached, || RankNs(at));
    }
}

fn to_peer(peer: u32) -> Route {
    Route {
        channel: 0,
        peer,
        direction: Direction::Send,
    }
}

#[test]
fn a_reader_sees_an_operation_begin_move_and_end() {
    let mut live = live();
    assert_eq!(live.reader.identity(), &identity());
    let communicator = Communicator {
        hash: 77,
        name: "dp".into(),
        rank: 1,
        size: 4,
    };
    assert_eq!(live.reader.communicators(), [communicator]);
    let operation = live.begin(0);
    let state = live.reader.read(LATER);
    assert_eq!((state.in_progress.len(), state.ended.len()), (1, 0));
    let reported = &state.in_progress[0];
    assert_eq!(
        (reported.communicator, reported.op, reported.sequence),
        (77, ALLREDUCE, 0)
    );
    assert_eq!(
        (reported.bytes, reported.begun_at, reported.ended_at),
        (4096, RankNs(1000), None)
    );

    let flow = live.announce(operation, to_peer(2));
    live.writer.enqueued(operation, RankNs(1100));
    live.writer.begin_flow(flow, || RankNs(1200));
    live.writer.ready(flow, Reached::Step(0), |_| RankNs(1300));
    live.writer.ready(flow, Reached::Step(1), |_| RankNs(1400));
    live.writer
        .transmitted(flow, Reached::Step(0), Bytes::More(512), || RankNs(1500));
    let state = live.reader.read(LATER);
    let moving = Flow {
        channel: 0,
        peer: 2,
        direction: Direction::Send,
        total: 4,
        ready: 2,
        transmitted: 1,
        done: 0,
        bytes: 512,
        // When its GPU got to it.
        begun_at: RankNs(1300),
        moved_at: RankNs(1500),
    };
    assert_eq!(state.in_progress[0].flows, [moving]);

    live.run(flow, 4, 1600);
    let state = live.reader.read(LATER);
    assert_eq!((state.in_progress.len(), state.lost), (0, 0));
    assert_eq!(state.ended[0].ended_at, Some(RankNs(1600)));
    assert_eq!(state.ended[0].flows[0].done, 4);
    assert_eq!(
        live.reader.read(LATER),
        LiveState::default(),
        "it is told once"
    );
}

#[test]
fn counters_reported_twice_late_or_beyond_the_total_stay_in_order() {
    let mut live = live();
    let operation = live.begin(0);
    let flow = live.announce(operation, to_peer(0));
    let mut clock = 0;
    for _ in 0..1000 {
        live.writer.ready(flow, Reached::Step(0), |_| {
            clock += 1;
            RankNs(clock)
        });
    }
    assert_eq!(clock, 1, "a repeat does not even look at the clock");
    // The third transfer is acknowledged though nobody told of the first two.
    live.writer.done(flow, Reached::Step(2), || RankNs(9));
    live.writer.done(flow, Reached::Step(2), || RankNs(10));
    live.writer.done(flow, Reached::Step(4), || RankNs(10));
    live.writer
        .transmitted(flow, Reached::Step(0), Bytes::More(1), || RankNs(11));
    live.writer.ready(flow, Reached::Count(99), |_| RankNs(7));
    let flow = live.reader.read(LATER).in_progress[0].flows[0];
    assert_eq!((flow.done, flow.transmitted, flow.ready), (3, 3, 4));
    assert_eq!((flow.moved_at, flow.bytes), (RankNs(9), 0));
}

#[test]
fn steps_are_distinguished_however_many_there_are() {
    let mut live = live();
    let flow = live
        .writer
        .announce_flow(live.begin(0), to_peer(0), 10_000)
        .unwrap();
    for step in 0..10_000u32 {
        live.writer
            .ready(flow, Reached::Step((step % 4096) as u16), |_| RankNs(1));
    }
    assert_eq!(
        live.reader.read(LATER).in_progress[0].flows[0].ready,
        10_000
    );
}

#[test]
fn an_operation_that_has_just_been_enqueued_has_not_ended_without_network() {
    let mut live = live();
    let operation = live.begin(0);
    live.writer.enqueued(operation, RankNs(2000));
    assert_eq!(
        live.reader.read(RankNs(3000)),
        LiveState::default(),
        "it may yet begin"
    );
    let flow = live.announce(operation, to_peer(0));
    live.writer.begin_flow(flow, || RankNs(4000));
    assert_eq!(live.reader.read(LATER).in_progress.len(), 1);
    live.run(flow, 4, 5000);
    assert_eq!(live.reader.read(LATER).ended.len(), 1);
    // A channel that comes too late: the operation runs, but does not end a second time.
    let late = live.announce(operation, to_peer(1));
    live.writer.begin_flow(late, || RankNs(6000));
    let state = live.reader.read(LATER);
    assert_eq!((state.in_progress.len(), state.ended.len()), (1, 0));
    assert_eq!(state.in_progress[0].flows.len(), 2);
    live.run(late, 4, 7000);
    assert_eq!(live.reader.read(LATER), LiveState::default());
}

#[test]
fn an_operation_behind_another_waits_and_a_silent_one_has_ended() {
    let mut live = live();
    let stuck = live.begin(0);
    let flow = live.announce(stuck, to_peer(2));
    live.writer.begin_flow(flow, || RankNs(1500));
    live.writer.enqueued(stuck, RankNs(1500));
    let behind = live.begin(1);
    live.announce(behind, to_peer(2));
    live.writer.enqueued(behind, RankNs(2500));
    let silent = live.begin(2);
    live.announce(silent, to_peer(9));
    live.writer.enqueued(silent, RankNs(3500));
    let sequences = |operations: &[model::Operation]| -> Vec<u64> {
        operations
            .iter()
            .map(|operation| operation.sequence)
            .collect()
    };
    let state = live.reader.read(LATER);
    assert_eq!(sequences(&state.in_progress), [0, 1]);
    assert_eq!(sequences(&state.ended), [2]);
    assert!(
        state.in_progress[1].flows.is_empty(),
        "what has not begun is not told"
    );
}

#[test]
fn an_operation_whose_turn_has_just_come_has_not_ended() {
    let mut live = live();
    let first = live.begin(0);
    let flow = live.announce(first, to_peer(2));
    live.writer.enqueued(first, RankNs(1500));
    let second = live.begin(1);
    let behind = live.announce(second, to_peer(2));
    live.writer.enqueued(second, RankNs(2500));
    let minute = 60_000_000_000;
    live.run(flow, 4, minute);
    let state = live.reader.read(RankNs(minute + 1));
    assert_eq!((state.in_progress.len(), state.ended.len()), (1, 0));
    live.run(behind, 4, minute + 2);
    let ended = live.reader.read(RankNs(2 * minute)).ended;
    assert!(ended.iter().all(|operation| operation.flows[0].done == 4));
    assert_eq!(ended.len(), 2);
}

#[test]
fn operations_that_were_overwritten_unread_are_counted() {
    let mut live = live();
    for sequence in 0..10 {
        live.writer.enqueued(live.begin(sequence), RankNs(1));
    }
    assert_eq!(live.reader.read(LATER).ended.len(), 10);
    let overwritten = live.begin(10);
    for sequence in 11..200 {
        live.writer.enqueued(live.begin(sequence), RankNs(1));
    }
    let state = live.reader.read(LATER);
    assert_eq!(state.ended.len(), 64);
    assert_eq!(state.lost, 200 - 10 - 64);
    assert_eq!(live.reader.dropped(), 1, "the one that was never enqueued");
    // Its token means nothing any more.
    assert_eq!(live.writer.announce_flow(overwritten, to_peer(0), 1), None);
    live.writer.enqueued(overwritten, RankNs(5));
    let state = live.reader.read(LATER);
    assert_eq!((state.ended.len(), state.lost), (0, 0));
    // It went over no network, so nobody saw whether it has ended.
    let [last] = &state.in_progress[..] else {
        panic!("{state:?}")
    };
    assert!(last.sequence == 199 && last.may_have_ended);
}

#[test]
fn aborted_operations_are_neither_in_progress_nor_ended() {
    let mut live = live();
    let flow = live.announce(live.begin(0), to_peer(0));
    live.writer.begin_flow(flow, || RankNs(1));
    assert!(!live.reader.is_closed());
    live.writer.finalize(live.communicator);
    assert!(live.reader.is_closed());
    assert_eq!(live.reader.read(LATER), LiveState::default());
    // A communicator like it is another one.
    let again = live.writer.communicator(77, b"dp", 1, 4).unwrap();
    assert_ne!(again, live.communicator);
    assert!(!live.reader.is_closed());
}

#[test]
fn communicators_beyond_the_table_s_room_are_counted() {
    let live = live();
    let long = [b'x'; 300];
    assert!(live.writer.communicator(0, &long, 0, 1).is_some());
    assert_eq!(live.reader.communicators()[1].name.len(), 120);
    let more = (1..100).filter(|n| live.writer.communicator(*n, b"", 0, 1).is_some());
    assert_eq!(more.count(), 62);
    assert_eq!(live.reader.dropped(), 99 - 62);
}

#[test]
fn a_table_outlives_its_killed_writer() {
    let root = tempfile::tempdir().unwrap();
    let directory = RingDirectory::create(root.path(), "job").unwrap();
    let identity = Identity {
        pid: 1,
        ..identity()
    };
    let path = directory.live_path(&identity, LiveSource::Plugin);
    // SAFETY: the child only touches its own table and then waits to be killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        write_for_ever(&directory, &identity);
    }
    let mut reader = loop {
        if let Ok(mut reader) = LiveReader::open(&path)
            && reader
                .read(LATER)
                .in_progress
                .iter()
                .any(|op| op.sequence > 2000)
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
    let state = reader.read(LATER);
    assert_eq!(
        reader.read(LATER).in_progress,
        state.in_progress,
        "nothing moves"
    );
    let mut afterwards = LiveReader::open(&path).unwrap();
    assert_eq!(afterwards.read(LATER).in_progress, state.in_progress);
    assert!(!afterwards.is_closed());
    assert_eq!(afterwards.communicators().len(), 1);
}

/// Operations of one flow, all but each last one ended.
fn write_for_ever(directory: &RingDirectory, identity: &Identity) -> ! {
    let size = LiveSize::new(64).unwrap();
    let writer = LiveWriter::create(directory, identity, size, LiveSource::Plugin).unwrap();
    let communicator = writer.communicator(1, b"", 0, 2).unwrap();
    for sequence in 0.. {
        let at = RankNs(sequence);
        let begun = writer.begin_operation(communicator, ALLREDUCE, sequence, 8, at);
        let begun = begun.unwrap();
        let flow = writer.announce_flow(begun, to_peer(1), 2).unwrap();
        writer.enqueued(begun, at);
        for step in 0..2 {
            writer.ready(flow, Reached::Step(step), |_| at);
            writer.transmitted(flow, Reached::Step(step), Bytes::More(4), || at);
            writer.done(flow, Reached::Step(step), || at);
        }
    }
    unreachable!("the numbers do not run out")
}

/// Several threads overwrite a small table as fast as they can while a reader looks on.
#[test]
fn what_is_reported_is_whole_however_hard_the_table_is_driven() {
    const EACH: u64 = 50_000;
    let Live {
        _root,
        writer,
        mut reader,
        communicator,
    } = live();
    let mut reported = 0;
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let writer = &writer;
            scope.spawn(move || {
                for number in 0..EACH {
                    let tag = number * 3 + thread;
                    drive(writer, communicator, tag);
                }
            });
        }
        for _ in 0..2000 {
            let state = reader.read(LATER);
            reported += state.ended.len() as u64 + state.lost;
            state.ended.iter().chain(&state.in_progress).for_each(check);
        }
    });
    let state = reader.read(LATER);
    reported += state.ended.len() as u64 + state.lost;
    let left = state.in_progress.len() as u64;
    assert!(reported + left <= 3 * EACH, "none is reported twice");
    // Numbers whose slot a writer stood still in are in the table until it is overwritten.
    assert!(
        reported + left + reader.dropped() >= 3 * EACH,
        "and none is forgotten"
    );
}

/// One operation whose words all follow from its tag.
fn drive(writer: &LiveWriter, communicator: CommunicatorIndex, tag: u64) {
    let at = RankNs(tag);
    let begun = writer.begin_operation(communicator, ALLREDUCE, tag, tag, at);
    let Some(operation) = begun else { return };
    let Some(flow) = writer.announce_flow(operation, to_peer(tag as u32), 3) else {
        return;
    };
    writer.enqueued(operation, at);
    for step in 0..3 {
        writer.ready(flow, Reached::Step(step), |_| at);
        writer.transmitted(flow, Reached::Step(step), Bytes::More(1), || at);
        writer.done(flow, Reached::Step(step), || at);
    }
}

fn check(operation: &model::Operation) {
    assert_eq!(operation.bytes, operation.sequence, "torn: {operation:?}");
    for flow in &operation.flows {
        assert_eq!(flow.peer, operation.sequence as u32, "torn: {operation:?}");
        assert!(flow.done <= flow.transmitted && flow.transmitted <= flow.ready);
        assert!(flow.ready <= flow.total);
    }
}

#[test]
fn foreign_files_are_refused_by_name() {
    let live = live();
    let path = live.writer.path().with_file_name("rank0.1.live");
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        LiveReader::open(&path).err()
    };
    let not_ours = |error| matches!(error, Some(RingError::NotALiveTable { .. }));
    assert!(not_ours(refused(&vec![7; 100_000])));
    assert!(not_ours(refused(b"LAGLIVE\0")));
    let mut bytes = std::fs::read(live.writer.path()).unwrap();
    assert!(not_ours(refused(&bytes[..bytes.len() - 1])), "cut off");
    bytes[12..16].copy_from_slice(&65_536u32.to_le_bytes());
    assert!(
        not_ours(refused(&bytes)),
        "more operations than it has room for"
    );
    bytes[8] = 9;
    assert!(matches!(
        refused(&bytes),
        Some(RingError::Layout { found: 9, .. })
    ));
    assert!(matches!(
        LiveSize::new(100),
        Err(RingError::Operations { operations: 100 })
    ));
}

#[test]
fn directories_of_processes_that_have_only_a_live_table_are_kept_while_they_live() {
    let root = tempfile::tempdir().unwrap();
    let living = RingDirectory::create(root.path(), "living").unwrap();
    let dead = RingDirectory::create(root.path(), "dead").unwrap();
    let size = LiveSize::default();
    let _writer = LiveWriter::create(&living, &identity(), size, LiveSource::Plugin).unwrap();
    let gone = Identity {
        started: 1,
        ..identity()
    };
    let _orphan = LiveWriter::create(&dead, &gone, size, LiveSource::Calls).unwrap();
    assert_eq!(clean_stale(root.path(), Duration::ZERO).unwrap(), 1);
    assert!(living.path().exists() && !dead.path().exists());
}

#[test]
fn a_process_s_ring_and_live_table_stand_beside_each_other() {
    let live = live();
    let directory = live.writer.path().parent().unwrap().to_owned();
    let root = directory.parent().unwrap();
    let directory = RingDirectory::create(root, "job").unwrap();
    let ring = RingWriter::create(&directory, &identity(), 64).unwrap();
    assert_eq!(directory.rings().unwrap(), [ring.path()]);
    assert_eq!(
        directory.live_tables(LiveSource::Plugin).unwrap(),
        [live.writer.path()]
    );
    let stem = |path: &Path| path.file_stem().unwrap().to_owned();
    assert_eq!(stem(ring.path()), stem(live.writer.path()));
}

#[test]
fn where_only_calls_are_seen_the_last_of_each_lane_may_still_run() {
    let root = tempfile::tempdir().unwrap();
    let directory = RingDirectory::create(root.path(), "job").unwrap();
    let size = LiveSize::new(64).unwrap();
    let writer = LiveWriter::create(&directory, &identity(), size, LiveSource::Calls).unwrap();
    let mut reader = LiveReader::open(writer.path()).unwrap();
    assert_eq!(reader.source(), LiveSource::Calls);
    let communicator = writer.communicator(77, b"dp", 1, 4).unwrap();
    let call = |op, sequence| {
        let begun = writer.begin_operation(communicator, op, sequence, 8, RankNs(5));
        begun.unwrap()
    };
    let send = |peer| {
        let route = Route {
            channel: 0,
            peer,
            direction: Direction::Send,
        };
        let operation = call(CollectiveOp::SEND, 0);
        let flow = writer.announce_flow(operation, route, 0).unwrap();
        writer.begin_flow(flow, || RankNs(5));
        operation
    };
    let calls = [
        call(ALLREDUCE, 0),
        call(CollectiveOp::BARRIER, 0),
        send(2),
        send(3),
    ];
    for operation in calls {
        writer.enqueued(operation, RankNs(6));
    }
    let inside = call(ALLREDUCE, 1);
    let state = reader.read(RankNs(u64::MAX));
    assert_eq!(state.ended.len(), 4);
    let open = |state: &LiveState| -> Vec<_> {
        let open = state.in_progress.iter();
        open.map(|open| (open.op, open.sequence, open.may_have_ended))
            .collect()
    };
    let sends = [(CollectiveOp::SEND, 0, true); 2];
    assert_eq!(
        open(&state),
        [&[(ALLREDUCE, 1, false)][..], &sends].concat()
    );
    writer.enqueued(inside, RankNs(7));
    let state = reader.read(RankNs(u64::MAX));
    assert_eq!(open(&state), [&sends[..], &[(ALLREDUCE, 1, true)]].concat());
    assert_eq!(reader.read(RankNs(u64::MAX)).in_progress, state.in_progress);
    writer.finalize(communicator);
    assert!(reader.read(RankNs(u64::MAX)).in_progress.is_empty());
}
