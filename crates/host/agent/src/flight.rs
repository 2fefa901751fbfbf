//! Arrival times for PyTorch versions without collective hooks.
//!
//! Each rank then serves its Flight Recorder on a socket beside its ring. A thread of ours
//! asks for it every few seconds; until the answer is there the rank's marks are held back,
//! so that collectives take their place between them.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use formats::{RecordedCollective, recorded_collectives};
use model::{Input, Mark, MarkKind, RankNs};

/// How often recorders are asked, at most, and how much longer than their last answers took
/// they are left in peace: an answer costs its rank that much of one thread, up to 44 ms for
/// a full recorder.
const ASK_EVERY: Duration = Duration::from_secs(1);
const PEACE_FACTOR: u32 = 100;
/// How long one answer may take: a stopped rank must not hold up the others for long.
const PATIENCE: Duration = Duration::from_secs(1);
/// Largest answer taken.
const MAX_ANSWER_BYTES: u64 = 64 << 20;
/// Marks held back of one rank; more and they go on without collectives.
const MAX_HELD: usize = 200_000;

/// What a recorder said.
struct Answer {
    rank: u32,
    /// Instant, on the ranks' clock, up to which the answer is complete.
    until: RankNs,
    /// What to subtract from a time since the epoch to get the ranks' clock.
    offset_ns: u64,
    collectives: io::Result<Vec<RecordedCollective>>,
}

/// Feeds collectives from Flight Recorders into the marks of their ranks.
#[derive(Debug, Default)]
pub(crate) struct FlightFeed {
    ranks: BTreeMap<u32, Held>,
    asker: Option<Asker>,
}

#[derive(Debug, Default)]
struct Held {
    marks: VecDeque<Mark>,
    /// Collectives not yet given out.
    issues: VecDeque<Mark>,
    /// Number of the last collective taken.
    last_record: Option<u64>,
}

#[derive(Debug)]
struct Asker {
    sockets: Arc<Mutex<BTreeMap<u32, PathBuf>>>,
    answers: Receiver<Answer>,
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
        self.ranks.insert(rank, Held::default());
        let asker = self.asker.get_or_insert_with(Asker::start);
        if let Ok(mut sockets) = asker.sockets.lock() {
            sockets.insert(rank, socket);
        }
    }

    /// Passes an input on, or holds it back.
    pub(crate) fn pass(&mut self, input: Input, take: &mut dyn FnMut(Input)) {
        match &input {
            Input::Mark { rank, mark } => {
                if let Some(held) = self.ranks.get_mut(rank) {
                    held.marks.push_back(*mark);
                    if held.marks.len() > MAX_HELD {
                        held.release(*rank, RankNs(u64::MAX), take);
                    }
                    return;
                }
            }
            Input::Left { rank, .. } | Input::Lost { rank, .. } => {
                if let Some(held) = self.ranks.get_mut(rank) {
                    held.release(*rank, RankNs(u64::MAX), take);
                }
            }
            Input::Restart { .. } => self.release_all(take),
            _ => {}
        }
        take(input);
    }

    /// Gives out what the recorders have answered for.
    pub(crate) fn poll(&mut self, take: &mut dyn FnMut(Input)) {
        let Some(asker) = &self.asker else { return };
        while let Ok(answer) = asker.answers.try_recv() {
            let Some(held) = self.ranks.get_mut(&answer.rank) else { continue };
            // A recorder that does not answer leaves its marks without collectives.
            for collective in answer.collectives.unwrap_or_default() {
                let number = Some(collective.record_id);
                if number <= held.last_record {
                    continue;
                }
                held.last_record = number;
                held.issues.push_back(Mark {
                    at: RankNs(
                        collective.issued_unix_ns.saturating_sub(answer.offset_ns),
                    ),
                    step: 0,
                    kind: MarkKind::CollectiveIssue,
                    on_loop_thread: true,
                    code: collective.op.0,
                    args: [u64::from(number_of(&collective.group)), 0, 0, 0, 0],
                });
            }
            held.release(answer.rank, answer.until, take);
        }
    }

    /// Gives out everything: nothing more will be answered.
    pub(crate) fn release_all(&mut self, take: &mut dyn FnMut(Input)) {
        for (rank, held) in &mut self.ranks {
            held.release(*rank, RankNs(u64::MAX), take);
        }
    }
}

impl Held {
    /// Gives out marks and collectives up to `until`, in time order.
    fn release(&mut self, rank: u32, until: RankNs, take: &mut dyn FnMut(Input)) {
        while let Some(mark) = self.marks.front().filter(|mark| mark.at <= until) {
            let earlier = |issue: &&Mark| issue.at <= mark.at;
            let next = match self.issues.front().filter(earlier) {
                Some(_) => self.issues.pop_front(),
                None => self.marks.pop_front(),
            };
            if let Some(mark) = next {
                take(Input::Mark { rank, mark });
            }
        }
    }
}

impl Asker {
    fn start() -> Self {
        let sockets = Arc::new(Mutex::new(BTreeMap::new()));
        let (sender, answers) = channel();
        let to_ask = Arc::clone(&sockets);
        thread::spawn(move || ask_for_ever(&to_ask, &sender));
        Self { sockets, answers }
    }
}

/// Asks every recorder in turn until nobody listens any more.
fn ask_for_ever(sockets: &Mutex<BTreeMap<u32, PathBuf>>, answers: &Sender<Answer>) {
    let mut peace = ASK_EVERY;
    loop {
        thread::sleep(peace);
        let asked = Instant::now();
        let Ok(to_ask) = sockets.lock().map(|sockets| sockets.clone()) else { return };
        for (rank, socket) in to_ask {
            let until = monotonic_now();
            let since_epoch =
                SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let offset_ns = (since_epoch.as_nanos() as u64).saturating_sub(until.0);
            let collectives = ask(&socket);
            if answers.send(Answer { rank, until, offset_ns, collectives }).is_err() {
                return;
            }
        }
        peace = ASK_EVERY.max(asked.elapsed() * PEACE_FACTOR);
    }
}

/// Asks one recorder, of whichever backend has one.
fn ask(socket: &Path) -> io::Result<Vec<RecordedCollective>> {
    let mut found = Vec::new();
    for handler in ["fr_trace_json", "dump_nccl_trace_json"] {
        let body = post(socket, handler)?;
        found = recorded_collectives(&body).map_err(io::Error::from)?;
        if !found.is_empty() {
            break;
        }
    }
    Ok(found)
}

fn post(socket: &Path, handler: &str) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "POST /handler/{handler} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    match end {
        Some(end) if answer.starts_with(b"HTTP/1.1 200") => Ok(answer.split_off(end + 4)),
        _ => Err(io::Error::other("the worker server did not answer with a dump")),
    }
}

/// The clock of the marks.
pub(crate) fn monotonic_now() -> RankNs {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    RankNs(seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// A number for a process group's name, the same on every rank. FNV-1a, folded.
fn number_of(group: &str) -> u32 {
    let hash = group.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash.max(1)
}

#[cfg(test)]
mod tests {
    use model::CollectiveOp;

    use super::*;

    fn mark(at: u64, kind: MarkKind) -> Mark {
        Mark {
            at: RankNs(at),
            step: 0,
            kind,
            on_loop_thread: true,
            code: 0,
            args: [0; 5],
        }
    }

    #[test]
    fn held_marks_and_collectives_come_out_in_time_order() {
        let mut held = Held::default();
        held.marks.extend([10, 30, 50].map(|at| mark(at, MarkKind::DataBegin)));
        held.issues.extend([20, 60].map(|at| mark(at, MarkKind::CollectiveIssue)));
        let mut times = Vec::new();
        let mut take = |input| {
            if let Input::Mark { mark, .. } = input {
                times.push(mark.at.0);
            }
        };
        held.release(0, RankNs(40), &mut take);
        held.release(0, RankNs(u64::MAX), &mut take);
        assert_eq!(times, [10, 20, 30, 50]);
        assert_eq!(held.issues.len(), 1, "a collective waits for the mark after it");
    }

    #[test]
    fn each_record_is_taken_once_up_to_the_largest_number() {
        let (sender, answers) = channel();
        let asker = Some(Asker { sockets: Arc::default(), answers });
        let mut feed = FlightFeed { ranks: [(0, Held::default())].into(), asker };
        for record_id in [0, 0, u64::MAX, u64::MAX] {
            let (op, group) = (CollectiveOp::BARRIER, String::new());
            let record = RecordedCollective { record_id, op, group, issued_unix_ns: 0 };
            let (until, collectives) = (RankNs(0), Ok(vec![record]));
            sender.send(Answer { rank: 0, until, offset_ns: 0, collectives }).unwrap();
        }
        feed.poll(&mut |_| {});
        assert_eq!(feed.ranks[&0].issues.len(), 2);
    }
}
