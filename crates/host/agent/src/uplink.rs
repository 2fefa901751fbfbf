use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use formats::{input_line, pack_batch};
use model::{Input, RankNs};
use protocol::BatchAddress;
use tracing::{debug, info};
use verdict::WantedProfile;

use crate::collector_link::{BatchAnswer, CollectorLink, Receiver};
use crate::outbox::{BatchOutbox, FIRST_WAIT, SEND_EVERY};
use crate::spool::{SpooledLines, lost_line, thin};

/// Lines that wait for the thread that sends, while it waits for an answer.
const OPEN_BYTES: usize = 32 << 20;

/// Whom to tell, and about what.
#[derive(Clone, Debug)]
pub struct Destination {
    /// A collector, or a bus that collectors read.
    pub receiver: Receiver,
    /// The job, named the same on all its hosts.
    pub job: String,
    /// This host.
    pub host: String,
}

/// Sends a collector what the analysis here is given, from a thread of its own.
///
/// Nothing here waits for the network. What cannot be sent is kept, within bounds, and then
/// dropped and counted.
#[derive(Debug)]
pub struct Uplink {
    shared: Arc<UplinkShared>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct UplinkShared {
    open: Mutex<Exchange>,
    wake: Condvar,
}

/// What the end of an uplink means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// The job has ended on this host.
    Leave,
    /// Another agent goes on with it.
    Pause,
}

/// What the two sides have to say to each other.
#[derive(Debug, Default)]
struct Exchange {
    unsent: SpooledLines,
    /// Records of ranks that found no room among them.
    lost: BTreeMap<u32, u64>,
    /// How it ends, once all is sent, and until when the rest may be sent.
    end: Option<(Farewell, Instant)>,
    /// Whether something was not taken when it was sent.
    is_behind: bool,
    /// Ranks whose stacks the collector asks for.
    wanted: Vec<u32>,
    /// The profile window it asks for.
    profile: Option<WantedProfile>,
    /// Steps in which it asks for device marks.
    device_steps: Option<Range<u32>>,
    /// For people who watch.
    lines: Vec<String>,
    /// Whether the last batch was taken.
    delivered: bool,
}

impl Exchange {
    /// Adds an input.
    fn add(&mut self, input: &Input) {
        let unsent = &mut self.unsent.lines;
        let before = unsent.len();
        drop(input_line(input, unsent));
        // The thread that sends waits for an answer. Who tells must not wait for it: marks are
        // dropped and counted.
        if unsent.len() > OPEN_BYTES {
            let line = unsent.split_off(before);
            thin(&line, unsent, &mut self.lost);
        }
    }

    /// The lines to send, then a count of lost records, one line for each rank: a line for each
    /// mark would be as long as the marks.
    fn take_unsent(&mut self) -> SpooledLines {
        let mut lines = mem::take(&mut self.unsent.lines);
        for (rank, records) in mem::take(&mut self.lost) {
            lines.extend(lost_line(rank, records).into_bytes());
        }
        SpooledLines {
            watermark: self.unsent.watermark,
            lines,
        }
    }
}

impl UplinkShared {
    fn open(&self) -> MutexGuard<'_, Exchange> {
        // Whatever panicked, lines stay lines.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Uplink {
    /// Begins to tell.
    ///
    /// # Errors
    /// If there can be no thread, or a file of credentials cannot be read.
    pub fn start(destination: Destination) -> io::Result<Self> {
        let shared = Arc::new(UplinkShared::default());
        let mut sender = Sender::new(destination, Arc::clone(&shared))?;
        let thread = thread::Builder::new()
            .name("laggard-uplink".to_owned())
            .spawn(move || sender.run())?;
        Ok(Self { shared, thread })
    }

    /// Adds an input.
    pub fn tell(&self, input: &Input) {
        self.shared.open().add(input);
    }

    /// Says that all there is to tell of the time up to `now` was given to [`Self::tell`].
    pub fn advance_watermark(&self, now: RankNs) {
        self.shared.open().unsent.watermark = now;
    }

    /// Ranks whose stacks the collector asks for.
    pub fn wanted_stacks(&self) -> Vec<u32> {
        mem::take(&mut self.shared.open().wanted)
    }

    /// The profile window the collector asks for, once.
    pub fn wanted_profile(&self) -> Option<WantedProfile> {
        self.shared.open().profile.take()
    }

    /// Steps in which the collector asks for device marks, once.
    pub fn wanted_device_steps(&self) -> Option<Range<u32>> {
        self.shared.open().device_steps.take()
    }

    /// Lines about the collector since the last call.
    pub fn take_lines(&self) -> Vec<String> {
        mem::take(&mut self.shared.open().lines)
    }

    /// Whether the collector did not take something when it was sent, and has not since.
    pub fn is_behind(&self) -> bool {
        self.shared.open().is_behind
    }

    /// Sends the rest, and waits for that no longer than `patience`; whether all was taken.
    pub fn finish(self, farewell: Farewell, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        self.shared.open().end = Some((farewell, until));
        self.shared.wake.notify_all();
        // Looked at again and again: a join knows no limit.
        while !self.thread.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        self.shared.open().delivered
    }
}

impl Drop for Uplink {
    /// The agent is gone, perhaps by a panic: what it reported is sent if that can be done at once,
    /// and nothing is said of the time after it.
    fn drop(&mut self) {
        self.shared
            .open()
            .end
            .get_or_insert((Farewell::Pause, Instant::now()));
        self.shared.wake.notify_all();
    }
}

/// The thread that sends: it owns the connection and reads the clock. What is sent and when, the
/// outbox decides.
struct Sender {
    shared: Arc<UplinkShared>,
    link: CollectorLink,
    destination: Destination,
    outbox: BatchOutbox,
}

impl Sender {
    fn new(destination: Destination, shared: Arc<UplinkShared>) -> io::Result<Self> {
        let Destination {
            receiver,
            job,
            host,
        } = &destination;
        let link = CollectorLink::to(receiver, job, host)?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        // Later agents of a host sort behind earlier ones, and two of one moment are not alike.
        let session = format!("{}-{}", since_epoch.as_micros(), std::process::id());
        let boot = boot.unwrap_or_default().trim().to_owned();
        Ok(Self {
            shared,
            link,
            destination,
            outbox: BatchOutbox::new(boot, session, Instant::now()),
        })
    }

    fn run(&mut self) {
        loop {
            let open = self.shared.open();
            let (mut open, _) = self
                .shared
                .wake
                .wait_timeout_while(open, SEND_EVERY, |open| open.end.is_none())
                .unwrap_or_else(PoisonError::into_inner);
            let (unsent, end) = (open.take_unsent(), open.end);
            drop(open);
            self.outbox.push(&unsent);
            let leaves = matches!(end, Some((Farewell::Leave, _)));
            // At the end there is no time to be patient: no wait between tries is kept.
            while end.is_some() || self.outbox.may_try(Instant::now()) {
                if !self.send_next(leaves) {
                    break;
                }
            }
            let is_behind = self.outbox.is_behind();
            self.shared.open().is_behind = is_behind;
            match end {
                Some(_) if !is_behind && self.outbox.has_said_all(leaves) => {
                    self.shared.open().delivered = true;
                    return;
                }
                Some((_, end)) if Instant::now() >= end => return,
                // There is little time left to send the rest.
                Some(_) => thread::sleep(FIRST_WAIT / 5),
                None => {}
            }
        }
    }

    /// Sends the next batch; whether it is worth to go on.
    fn send_next(&mut self, leaves: bool) -> bool {
        let Some((head, lines)) = self.outbox.next(Instant::now(), leaves) else {
            return false;
        };
        let packed = pack_batch(&head, lines);
        let answer = match packed {
            Ok(body) => self.send(body),
            Err(error) => BatchAnswer::Later {
                reason: error.to_string(),
                wait: None,
            },
        };
        // Read again: an answer may take as long as the longest wait.
        let outcome = self.outbox.answered(Instant::now(), answer);
        if outcome.began_anew {
            let (job, (session, _)) = (&self.destination.job, self.outbox.place());
            info!(job, session, "tells all anew");
        }
        let mut open = self.shared.open();
        if let Some(orders) = outcome.orders {
            // Replaced, also by nothing: ranks that are no longer asked for are not looked at.
            open.wanted = orders.stacks;
            open.device_steps = orders.device_steps;
            // It asks until the job has come to the window.
            if orders.profile.is_some() {
                open.profile = orders.profile;
            }
        }
        let receiver = &self.destination.receiver;
        open.lines
            .extend(outcome.said.map(|what| format!("{receiver} {what}")));
        outcome.goes_on
    }

    fn send(&mut self, body: Vec<u8>) -> BatchAnswer {
        let Destination { job, host, .. } = &self.destination;
        let (session, sequence) = self.outbox.place();
        let address = BatchAddress {
            job,
            host,
            session,
            sequence,
        };
        let bytes = body.len();
        let answer = self.link.send(&address, body);
        debug!(job, host, session, sequence, bytes, ?answer, "batch sent");
        answer
    }
}

#[cfg(test)]
mod tests {
    use model::{Event, Mark};

    use super::*;

    #[test]
    fn marks_that_find_no_room_take_none_and_are_counted() {
        let mut open = Exchange::default();
        open.unsent.lines = vec![b'\n'; OPEN_BYTES];
        for rank in [3, 3, 5, 3] {
            let mark = Mark {
                at: RankNs(7),
                step: 1,
                on_loop_thread: true,
                event: Event::DataBegin,
            };
            open.add(&Input::Mark { rank, mark });
        }
        assert_eq!(open.unsent.lines.len(), OPEN_BYTES);
        let lines = open.take_unsent().lines;
        let lost = lost_line(3, 3) + &lost_line(5, 1);
        assert_eq!(&lines[OPEN_BYTES..], lost.as_bytes());
        assert!(open.take_unsent().lines.is_empty());
    }

    #[test]
    fn the_thread_of_an_uplink_that_is_dropped_ends() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", nobody.local_addr().unwrap());
        drop(nobody);
        let (job, host) = ("job".to_owned(), "h".to_owned());
        let tls = ureq::tls::TlsConfig::default();
        let receiver = Receiver::Collector {
            url,
            tls,
            token: None,
        };
        let destination = Destination {
            receiver,
            job,
            host,
        };
        let uplink = Uplink::start(destination).unwrap();
        let shared = Arc::downgrade(&uplink.shared);
        drop(uplink);
        let began = Instant::now();
        while shared.strong_count() > 0 {
            assert!(began.elapsed() < Duration::from_mins(1), "it lives on");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
