//! Arrival times for PyTorch versions without collective hooks.
//!
//! Each rank then serves its Flight Recorder on a socket beside its ring. A thread of ours
//! asks for it every few seconds; until the answer is there the rank's marks are held back,
//! so that collectives take their place between them.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use formats::{RecordedCollective, recorded_collectives};
use model::{CollectiveIssue, Event, Input, Mark, MarkKind, RankNs, SourceNote, group_number};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tracing::debug;

/// How often recorders are asked, at most, and how much longer than their last answers took
/// they are left in peace: an answer costs its rank that much of one thread, up to 44 ms for
/// a full recorder.
const ASK_EVERY: Duration = Duration::from_secs(1);
const PEACE_FACTOR: u32 = 100;
/// How long one answer may take, from the connection to its last byte: a stopped rank must not
/// hold up the others for long.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a connection is tried while the rank's queue of them is full.
const TRY_EVERY: Duration = Duration::from_millis(10);
/// Largest answer taken.
const MAX_ANSWER_BYTES: u64 = 64 << 20;
/// Marks held back of one rank; more and they go on without collectives.
const MAX_HELD: usize = 200_000;

/// What a recorder said.
struct RecorderAnswer {
    rank: u32,
    socket: PathBuf,
    /// Instant, on the ranks' clock, up to which the answer is complete.
    until: RankNs,
    /// What to subtract from a time since the epoch to get the ranks' clock.
    offset_ns: u64,
    collectives: io::Result<Vec<RecordedCollective>>,
}

/// Feeds collectives from Flight Recorders into the marks of their ranks.
#[derive(Debug, Default)]
pub(crate) struct FlightFeed {
    ranks: BTreeMap<u32, HeldMarks>,
    asker: Option<RecorderAsker>,
    /// What any rank did last when recorders were asked out of turn.
    asked_after: Option<RankNs>,
}

#[derive(Debug)]
struct HeldMarks {
    socket: PathBuf,
    marks: VecDeque<Mark>,
    /// Collectives not yet given out.
    issues: VecDeque<Mark>,
    /// Number of the last collective taken.
    last_record: Option<u64>,
    /// The step of the last mark given out.
    step: u32,
    /// When the rank last did something that is known.
    last_did: Option<RankNs>,
    /// Until when collectives are known as far as they ever will be.
    asked: RankNs,
    /// The same, of a recorder that answered. What a rank did from then on until it ended nobody
    /// knows.
    answered: RankNs,
    /// Whether the rank has ended.
    ended: bool,
    /// Until when marks were given out with their collectives.
    known: RankNs,
}

#[derive(Debug)]
struct RecorderAsker {
    sockets: Arc<Mutex<BTreeMap<u32, PathBuf>>>,
    answers: Receiver<RecorderAnswer>,
    /// Ends the peace.
    wake: SyncSender<()>,
}

impl FlightFeed {
    /// Takes note of a rank's ring: with a socket beside it, its marks go through here.
    pub(crate) fn look_at(&mut self, rank: u32, ring: &Path) {
        let mut socket = ring.as_os_str().to_owned();
        socket.push(".sock");
        let socket = PathBuf::from(socket);
        if self.ranks.contains_key(&rank) || !socket.exists() {
            return;
        }
        self.ranks.insert(rank, HeldMarks::new(socket.clone()));
        let asker = self.asker.get_or_insert_with(RecorderAsker::start);
        if let Ok(mut sockets) = asker.sockets.lock() {
            sockets.insert(rank, socket);
        }
    }

    /// Passes an input on, or holds it back.
    pub(crate) fn pass(&mut self, input: Input, take: &mut dyn FnMut(Input)) {
        match &input {
            Input::Mark { rank, mark } => {
                if let Some(held) = self.ranks.get_mut(rank) {
                    held.last_did = held.last_did.max(Some(mark.at));
                    held.marks.push_back(*mark);
                    if held.marks.len() > MAX_HELD {
                        held.release(*rank, RankNs(u64::MAX), take);
                    }
                    return;
                }
            }
            Input::Left { rank, .. } | Input::Lost { rank, .. } => {
                // Of a rank that left nothing more will be answered.
                if let Some(held) = self.ranks.get_mut(rank) {
                    held.release(*rank, RankNs(u64::MAX), take);
                    held.ended |= matches!(input, Input::Left { .. });
                }
            }
            Input::Restart { .. } => {
                self.release_all(take);
                // Ranks come again, with sockets of their own.
                self.ranks.clear();
                if let Some(Ok(mut sockets)) = self.asker.as_ref().map(|asker| asker.sockets.lock())
                {
                    sockets.clear();
                }
            }
            _ => {}
        }
        take(input);
    }

    /// Gives out what the recorders have answered for; all marks until `read` were passed.
    pub(crate) fn poll(&mut self, read: RankNs, take: &mut dyn FnMut(Input)) {
        let Some(asker) = &self.asker else { return };
        while let Ok(answer) = asker.answers.try_recv() {
            // A rank that was started again has a socket of its own: old answers are not for it.
            let Some(held) = self
                .ranks
                .get_mut(&answer.rank)
                .filter(|held| held.socket == answer.socket)
            else {
                continue;
            };
            held.asked = held.asked.max(answer.until);
            match &answer.collectives {
                Ok(_) => held.answered = held.answered.max(answer.until),
                Err(error) if is_late(error) => {
                    take(Input::Note(SourceNote::RecorderLate(answer.rank)));
                }
                Err(_) => {}
            }
            // A recorder that does not answer leaves its marks without collectives.
            for collective in answer.collectives.unwrap_or_default() {
                let number = Some(collective.record_id);
                if number <= held.last_record {
                    continue;
                }
                held.last_record = number;
                let issued = collective.issued_unix_ns.saturating_sub(answer.offset_ns);
                held.last_did = held.last_did.max(Some(RankNs(issued)));
                held.issues.push_back(Mark {
                    at: RankNs(issued),
                    step: 0,
                    on_loop_thread: true,
                    event: Event::CollectiveIssue(CollectiveIssue {
                        op: collective.op,
                        group: group_number(&collective.group),
                        op_id: 0,
                        number: collective.number,
                        bytes: collective.bytes,
                        element_bytes: collective.element_bytes,
                    }),
                });
            }
        }
        for (rank, held) in &mut self.ranks {
            held.release(*rank, held.asked.min(read), take);
            held.known = held.answered.min(read);
        }
    }

    /// The time up to which everything is known, at most `now`: where ranks serve recorders,
    /// what these have answered for.
    pub(crate) fn known_until(&self, now: RankNs) -> RankNs {
        self.ranks
            .values()
            .map(|held| held.known)
            .fold(now, RankNs::min)
    }

    /// The time up to which everything was reported that will be, at most `now`.
    pub(crate) fn watermark(&self, now: RankNs) -> RankNs {
        self.ranks
            .values()
            .filter(|held| !held.ended)
            .map(|held| held.known)
            .fold(now, RankNs::min)
    }

    /// Asks recorders out of turn, once, if no rank has done anything for `patience_s`.
    pub(crate) fn hurry(&mut self, now: RankNs, patience_s: f64) {
        let last_did = self.ranks.values().filter_map(|held| held.last_did).max();
        let Some((last_did, asker)) = last_did.zip(self.asker.as_ref()) else {
            return;
        };
        // Once what the recorders have answered for lies long enough after it, the rank is known
        // to stand still, and asking again says no more.
        let known_s = self.known_until(now).seconds_since(last_did);
        if now.seconds_since(last_did) >= patience_s
            && known_s < patience_s
            && self.asked_after != Some(last_did)
        {
            // It is awake already if there is no room.
            if asker.wake.try_send(()).is_ok() {
                self.asked_after = Some(last_did);
            }
        }
    }

    /// Gives out everything: nothing more will be answered.
    pub(crate) fn release_all(&mut self, take: &mut dyn FnMut(Input)) {
        for (rank, held) in &mut self.ranks {
            held.release(*rank, RankNs(u64::MAX), take);
        }
    }
}

impl HeldMarks {
    /// Nothing is known of a rank that was found in the middle of its steps until its recorder answers.
    fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            marks: VecDeque::new(),
            issues: VecDeque::new(),
            last_record: None,
            step: 0,
            last_did: None,
            asked: RankNs(0),
            answered: RankNs(0),
            ended: false,
            known: RankNs(0),
        }
    }

    /// Gives out marks and collectives up to `until`, in time order.
    fn release(&mut self, rank: u32, until: RankNs, take: &mut dyn FnMut(Input)) {
        loop {
            let marked = self.marks.front().map(|mark| mark.at);
            let issued = self.issues.front().map(|issue| issue.at);
            let next = match (marked, issued) {
                (Some(marked), Some(issued)) if issued <= marked => &mut self.issues,
                (None, Some(_)) => &mut self.issues,
                (Some(_), _) => &mut self.marks,
                (None, None) => return,
            };
            // The first of both in time is beyond what was answered for, and so is all behind it.
            let Some(mut mark) = next.pop_front_if(|mark| mark.at <= until) else {
                return;
            };
            // A recorder does not know steps: a collective is of the one its rank is in.
            if mark.kind() == MarkKind::CollectiveIssue {
                mark.step = self.step;
            }
            self.step = mark.step;
            take(Input::Mark { rank, mark });
        }
    }
}

impl RecorderAsker {
    fn start() -> Self {
        let sockets = Arc::new(Mutex::new(BTreeMap::new()));
        let (sender, answers) = channel();
        let (wake, woken) = sync_channel(1);
        let to_ask = Arc::clone(&sockets);
        thread::spawn(move || ask_for_ever(&to_ask, &sender, &woken));
        Self {
            sockets,
            answers,
            wake,
        }
    }
}

/// Asks every recorder in turn until nobody listens any more.
fn ask_for_ever(
    sockets: &Mutex<BTreeMap<u32, PathBuf>>,
    answers: &Sender<RecorderAnswer>,
    woken: &Receiver<()>,
) {
    let mut peace = ASK_EVERY;
    loop {
        if woken.recv_timeout(peace) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        let asked = Instant::now();
        let Ok(to_ask) = sockets.lock().map(|sockets| sockets.clone()) else {
            return;
        };
        for (rank, socket) in to_ask {
            // Read before the question: what the rank does while it answers may be missing in the
            // answer.
            let until = monotonic_now();
            let since_epoch = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            let offset_ns = (since_epoch.as_nanos() as u64).saturating_sub(until.0);
            let begun = Instant::now();
            let collectives = ask(&socket);
            let (found, took) = (collectives.as_ref().map(Vec::len), begun.elapsed());
            debug!(rank, ?took, ?found, "Flight Recorder asked");
            let answer = RecorderAnswer {
                rank,
                socket,
                until,
                offset_ns,
                collectives,
            };
            if answers.send(answer).is_err() {
                return;
            }
        }
        peace = ASK_EVERY.max(asked.elapsed() * PEACE_FACTOR);
    }
}

/// Whether nobody answered, rather than that nobody is there.
fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Asks one recorder, of whichever backend has one. The first came with PyTorch 2.10.
fn ask(socket: &Path) -> io::Result<Vec<RecordedCollective>> {
    // Both are asked: a worker server has the handlers of all backends, and the recorder of one
    // that is not used answers with an empty dump.
    let mut answered = None;
    for handler in ["fr_trace_json", "dump_nccl_trace_json"] {
        let Some(body) = post(socket, handler)? else {
            continue;
        };
        let found = recorded_collectives(&body).map_err(io::Error::from)?;
        if !found.is_empty() {
            return Ok(found);
        }
        answered = Some(found);
    }
    answered.ok_or_else(|| io::Error::other("the worker server has no recorder"))
}

/// What a handler of a worker server answers; `None` if it has no such handler.
fn post(socket: &Path, handler: &str) -> io::Result<Option<Vec<u8>>> {
    let deadline = Instant::now() + PATIENCE;
    let mut stream = connect_until(socket, deadline)?;
    stream.set_write_timeout(Some(left_until(deadline)?))?;
    write!(
        stream,
        "POST /handler/{handler} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n"
    )?;
    let mut answer = read_until(stream, deadline)?;
    match answer.windows(4).position(|four| four == b"\r\n\r\n") {
        Some(end) if answer.starts_with(b"HTTP/1.1 200") => Ok(Some(answer.split_off(end + 4))),
        _ if answer.starts_with(b"HTTP/1.1 404") => Ok(None),
        _ => Err(io::Error::other(
            "the worker server did not answer with a dump",
        )),
    }
}

/// The time left, which is never zero: that would mean no limit to a socket.
fn left_until(deadline: Instant) -> io::Result<Duration> {
    deadline
        .checked_duration_since(Instant::now())
        .filter(|left| !left.is_zero())
        .ok_or_else(|| io::ErrorKind::TimedOut.into())
}

/// Connects without blocking: the kernel queues few connections for a process that is stopped, and
/// a blocking one would wait for it without limit.
fn connect_until(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    while let Err(error) = connect(&socket, &address) {
        if error != Errno::AGAIN {
            return Err(error.into());
        }
        thread::sleep(left_until(deadline)?.min(TRY_EVERY));
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// All that is sent before the other end closes, at most [`MAX_ANSWER_BYTES`] of it.
fn read_until(stream: UnixStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut part = vec![0; 1 << 16];
    let mut limited = stream.take(MAX_ANSWER_BYTES);
    loop {
        // The socket's own limit is for one read.
        limited
            .get_ref()
            .set_read_timeout(Some(left_until(deadline)?))?;
        match limited.read(&mut part) {
            Ok(0) => return Ok(answer),
            Ok(bytes) => answer.extend_from_slice(&part[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The clock of the marks.
pub(crate) fn monotonic_now() -> RankNs {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    RankNs(seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    use model::CollectiveOp;

    use super::*;

    fn mark(at: u64, kind: MarkKind) -> Mark {
        Mark {
            at: RankNs(at),
            step: 0,
            on_loop_thread: true,
            event: kind.into(),
        }
    }

    fn held(marks: &[u64], issues: &[u64]) -> HeldMarks {
        let mut held = HeldMarks::new(PathBuf::new());
        held.marks
            .extend(marks.iter().map(|at| mark(*at, MarkKind::DataBegin)));
        held.issues
            .extend(issues.iter().map(|at| mark(*at, MarkKind::CollectiveIssue)));
        held
    }

    /// A feed of one rank, and what its recorder is to answer.
    fn feed(held: HeldMarks) -> (FlightFeed, Sender<RecorderAnswer>, Receiver<()>) {
        let (sender, answers) = channel();
        let (wake, woken) = sync_channel(1);
        let asker = Some(RecorderAsker {
            sockets: Arc::default(),
            answers,
            wake,
        });
        let feed = FlightFeed {
            ranks: [(0, held)].into(),
            asker,
            asked_after: None,
        };
        (feed, sender, woken)
    }

    fn answer(until: u64, collectives: io::Result<Vec<RecordedCollective>>) -> RecorderAnswer {
        let (socket, until) = (PathBuf::new(), RankNs(until));
        RecorderAnswer {
            rank: 0,
            socket,
            until,
            offset_ns: 0,
            collectives,
        }
    }

    fn record(record_id: u64) -> RecordedCollective {
        let (op, group) = (CollectiveOp::BARRIER, "0".to_owned());
        let (bytes, element_bytes) = (Some(8), 4);
        RecordedCollective {
            record_id,
            op,
            group,
            number: 7,
            bytes,
            element_bytes,
            issued_unix_ns: 25,
        }
    }

    #[test]
    fn held_marks_and_collectives_come_out_in_time_order() {
        let mut held = held(&[10, 30, 50], &[20, 30, 35, 60]);
        held.marks[0].step = 4;
        let mut taken = Vec::new();
        let mut take = |input| {
            if let Input::Mark { mark, .. } = input {
                taken.push((mark.at.0, mark.step));
            }
        };
        held.release(0, RankNs(40), &mut take);
        // Also the one that no mark comes after: a rank may be stuck in it.
        held.release(0, RankNs(u64::MAX), &mut take);
        let steps = [
            (10, 4),
            (20, 4),
            (30, 4),
            (30, 0),
            (35, 0),
            (50, 0),
            (60, 0),
        ];
        assert_eq!(taken, steps);
    }

    #[test]
    fn each_record_is_taken_once_up_to_the_largest_number() {
        let (mut feed, sender, _woken) = feed(held(&[], &[]));
        for record_id in [0, 0, u64::MAX, u64::MAX] {
            sender.send(answer(0, Ok(vec![record(record_id)]))).unwrap();
        }
        feed.poll(RankNs(0), &mut |_| {});
        let issues = &feed.ranks[&0].issues;
        assert_eq!(issues.len(), 2);
        let recorded = CollectiveIssue {
            bytes: Some(8),
            element_bytes: 4,
            ..CollectiveIssue::new(CollectiveOp::BARRIER, group_number("0"), 7)
        };
        assert_eq!(issues[0].event, Event::CollectiveIssue(recorded));
    }

    #[test]
    fn nothing_counts_as_known_that_no_recorder_has_answered_for() {
        let (mut feed, sender, woken) = feed(held(&[10, 20], &[]));
        let second = 1_000_000_000;
        feed.ranks.get_mut(&0).unwrap().last_did = Some(RankNs(20));
        let ask = |feed: &mut FlightFeed, at_s: u64| {
            feed.hurry(RankNs(at_s * second), 2.0);
            woken.try_recv().is_ok()
        };
        assert!(!ask(&mut feed, 1), "that is no pause yet");
        assert!(ask(&mut feed, 3) && !ask(&mut feed, 4), "once");
        let mut taken = 0;
        let refused = Err(io::Error::from(io::ErrorKind::TimedOut));
        sender.send(answer(3 * second, refused)).unwrap();
        feed.poll(RankNs(3 * second), &mut |_| taken += 1);
        assert_eq!(feed.known_until(RankNs(4 * second)), RankNs(0));
        sender
            .send(answer(5 * second, Ok(vec![record(1)])))
            .unwrap();
        feed.poll(RankNs(4 * second), &mut |_| taken += 1);
        assert_eq!(
            feed.known_until(RankNs(6 * second)),
            RankNs(4 * second),
            "as far as read"
        );
        assert_eq!(
            taken, 4,
            "two marks, a collective, and a note on who does not answer"
        );
        feed.pass(
            Input::Left {
                rank: 0,
                step: 1,
                orderly: true,
            },
            &mut |_| {},
        );
        feed.poll(RankNs(9 * second), &mut |_| {});
        let end = RankNs(9 * second);
        assert_eq!(feed.watermark(end), end);
        assert_eq!(
            feed.known_until(end),
            RankNs(5 * second),
            "it may have done more"
        );
    }

    #[test]
    fn a_rank_found_in_the_middle_of_its_steps_is_held_back_until_its_recorder_answers() {
        let folder = tempfile::tempdir().unwrap();
        let ring = folder.path().join("ring");
        let _silent = UnixListener::bind(folder.path().join("ring.sock")).unwrap();
        let mut feed = FlightFeed::default();
        let before = RankNs(monotonic_now().0 - 1);
        feed.look_at(0, &ring);
        let mut taken = 0;
        let input = Input::Mark {
            rank: 0,
            mark: mark(before.0, MarkKind::DataBegin),
        };
        feed.pass(input, &mut |_| taken += 1);
        feed.poll(monotonic_now(), &mut |_| taken += 1);
        assert_eq!(taken, 0);
    }

    #[test]
    fn a_pause_counts_from_the_last_collective_that_an_answer_tells() {
        let (mut feed, sender, woken) = feed(held(&[10], &[]));
        let second = 1_000_000_000;
        feed.ranks.get_mut(&0).unwrap().last_did = Some(RankNs(10));
        feed.hurry(RankNs(2 * second), 2.0 - 1e-6);
        assert!(woken.try_recv().is_ok());
        let issued = RecordedCollective {
            issued_unix_ns: second,
            ..record(1)
        };
        sender.send(answer(2 * second, Ok(vec![issued]))).unwrap();
        feed.poll(RankNs(2 * second), &mut |_| {});
        for (at, is_asked) in [(2 * second, false), (3 * second, true)] {
            feed.hurry(RankNs(at), 2.0);
            assert_eq!(woken.try_recv().is_ok(), is_asked);
        }
    }

    #[test]
    fn an_older_recorder_is_asked_by_the_name_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("ring.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let entry =
            r#"{"record_id": 3, "profiling_name": "nccl:all_reduce", "time_created_ns": 9}"#;
        let server = thread::spawn(move || {
            for mut stream in listener.incoming().take(3).flatten() {
                let mut request = String::new();
                let mut lines = BufReader::new(&stream);
                while !request.ends_with("\r\n\r\n") {
                    lines.read_line(&mut request).unwrap();
                }
                let answer = if request.starts_with("POST /handler/dump_nccl_trace_json") {
                    format!("HTTP/1.1 200 OK\r\n\r\n{{\"entries\": [{entry}]}}")
                } else {
                    "HTTP/1.1 404 Not Found\r\n\r\n".to_owned()
                };
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let found = ask(&socket).unwrap();
        assert_eq!(found.iter().map(|it| it.record_id).collect::<Vec<_>>(), [3]);
        assert!(post(&socket, "ping").unwrap().is_none());
        server.join().unwrap();
    }

    #[test]
    fn an_answer_that_never_ends_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("ring.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Each byte comes long before a limit for one read would end.
            while stream.write_all(b"H").is_ok() {
                thread::sleep(PATIENCE / 20);
            }
        });
        assert!(is_late(&post(&socket, "ping").unwrap_err()));
        server.join().unwrap();
    }

    #[test]
    fn a_rank_that_takes_no_connection_is_given_up() {
        use rustix::net::{bind, listen};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring.sock");
        let flags = SocketFlags::CLOEXEC;
        let stopped = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        bind(&stopped, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&stopped, 0).unwrap();
        // It has room for one.
        let _waits = UnixStream::connect(&path).unwrap();
        assert!(is_late(&post(&path, "ping").unwrap_err()));
    }

    #[test]
    fn ranks_that_start_over_are_asked_at_their_new_sockets() {
        let (mut feed, sender, _woken) = feed(held(&[10], &[]));
        feed.pass(Input::Restart { attempt: 1 }, &mut |_| {});
        assert!(feed.ranks.is_empty());
        let new = HeldMarks::new(PathBuf::from("new"));
        feed.ranks.insert(0, new);
        sender.send(answer(5, Ok(vec![record(9)]))).unwrap();
        feed.poll(RankNs(9), &mut |_| {});
        assert_eq!(
            feed.ranks[&0].last_record, None,
            "that was the old one's answer"
        );
    }
}
