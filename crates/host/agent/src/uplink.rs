use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use formats::{input_line, pack_batch};
use model::{Input, RankNs};
use protocol::{BatchAddress, BatchHead, HostOrders};
use tracing::{debug, info};
use verdict::WantedProfile;

use crate::collector_link::{BatchAnswer, CollectorLink, Receiver};
use crate::spool::{BATCH_BYTES, Spool, SpooledLines, is, lost_line, thin};

/// How often what was told is sent.
const SEND_EVERY: Duration = Duration::from_millis(500);
/// Lines that wait for the thread that sends, while it waits for an answer.
const OPEN_BYTES: usize = 32 << 20;
/// Waits after failures double from the first to the last of these.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LAST_WAIT: Duration = Duration::from_secs(30);

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

/// Tells a collector what the analysis here is told, from a thread of its own.
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
    /// How it ends, once all is told, and until when the rest may be sent.
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
        let unsent = &mut self.shared.open().unsent;
        let before = unsent.lines.len();
        drop(input_line(input, &mut unsent.lines));
        // The thread that sends waits for an answer. Who tells must not wait for it: marks are
        // dropped and counted.
        if unsent.lines.len() > OPEN_BYTES {
            let line = unsent.lines.split_off(before);
            let mut lost = BTreeMap::new();
            thin(&line, &mut unsent.lines, &mut lost);
            for (rank, records) in lost {
                unsent.lines.extend(lost_line(rank, records).into_bytes());
            }
        }
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
        while !self.thread.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        self.shared.open().delivered
    }
}

impl Drop for Uplink {
    /// Whoever told of the job is gone, perhaps by a panic: what was told is sent if that can be
    /// done at once, and nothing is said of the time after it.
    fn drop(&mut self) {
        self.shared
            .open()
            .end
            .get_or_insert((Farewell::Pause, Instant::now()));
        self.shared.wake.notify_all();
    }
}

/// The thread that sends.
struct Sender {
    shared: Arc<UplinkShared>,
    link: CollectorLink,
    destination: Destination,
    boot: String,
    /// The agent session, and how often it began anew.
    session: String,
    restarts: u32,
    sequence: u64,
    spool: Spool,
    /// What is being sent; the same until it is answered.
    batch: Option<SpooledLines>,
    /// The time up to which all is told that was taken.
    watermark: RankNs,
    last: bool,
    /// Lines that those after them stand on, for a collector that has lost them.
    known: Vec<u8>,
    sent_at: Option<Instant>,
    wait: Duration,
    retry_at: Instant,
    /// Whether somebody was told that the collector does not answer.
    complained: bool,
    /// Whether the batch is what is left of one that was refused for good.
    refused: bool,
    /// The profile window that was asked for last.
    profile: Option<WantedProfile>,
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
        Ok(Self {
            shared,
            link,
            destination,
            boot: boot.unwrap_or_default().trim().to_owned(),
            // Later agents of a host sort behind earlier ones, and two of one moment are not alike.
            session: format!("{}-{}", since_epoch.as_micros(), std::process::id()),
            restarts: 0,
            sequence: 0,
            spool: Spool::default(),
            batch: None,
            watermark: RankNs::default(),
            last: false,
            known: Vec::new(),
            sent_at: None,
            wait: FIRST_WAIT,
            retry_at: Instant::now(),
            complained: false,
            refused: false,
            profile: None,
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
            let lines = mem::take(&mut open.unsent.lines);
            let (watermark, end) = (open.unsent.watermark, open.end);
            drop(open);
            self.spool.push(&SpooledLines { watermark, lines });
            let leaves = matches!(end, Some((Farewell::Leave, _)));
            while end.is_some() || Instant::now() >= self.retry_at {
                if !self.send_next(watermark, leaves) {
                    break;
                }
            }
            let is_behind = self.batch.is_some() || !self.spool.is_empty();
            self.shared.open().is_behind = is_behind;
            match end {
                Some(_) if !is_behind && self.last == leaves => {
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
    fn send_next(&mut self, watermark: RankNs, leaves: bool) -> bool {
        if self.batch.is_none() {
            let is_due = self
                .sent_at
                .is_none_or(|sent| sent.elapsed() >= SEND_EVERY * 2);
            self.batch = self.next_batch(watermark, leaves, is_due);
        }
        if self.batch.is_none() {
            return false;
        }
        match self.send() {
            BatchAnswer::Taken {
                wanted:
                    HostOrders {
                        stacks,
                        profile,
                        device_steps,
                    },
                lost,
            } => {
                let mut open = self.shared.open();
                open.wanted = stacks;
                open.device_steps = device_steps;
                // It asks until the job has come to the window.
                if profile.is_some() && profile != self.profile {
                    open.profile.clone_from(&profile);
                    self.profile = profile;
                }
                drop(open);
                self.taken();
                // Only between batches: what is on its way may be in the stream.
                if lost.is_some_and(|session| session == self.session) {
                    self.begin_anew();
                }
                true
            }
            // The answer to it was lost on the way, and the batch was not.
            BatchAnswer::Next(next) if next > self.sequence => {
                self.taken();
                true
            }
            BatchAnswer::Next(_) => {
                self.begin_anew();
                true
            }
            BatchAnswer::Refused(reason) => {
                self.complain(&format!("refuses what it is sent ({reason})"));
                let batch = self.batch.take().unwrap_or_default();
                // What is lost is told; if that is refused too, nothing can be said of it.
                if !mem::take(&mut self.refused) {
                    let mut lost = BTreeMap::new();
                    thin(&batch.lines, &mut Vec::new(), &mut lost);
                    let lines = lost
                        .into_iter()
                        .map(|(rank, count)| lost_line(rank, count))
                        .collect::<String>()
                        .into_bytes();
                    self.refused = !lines.is_empty();
                    self.batch = self.refused.then_some(SpooledLines { lines, ..batch });
                }
                self.back_off(None);
                false
            }
            BatchAnswer::Later { reason, wait } => {
                self.complain(&format!(
                    "does not take what it is sent ({reason}); it is kept, the command goes on"
                ));
                self.back_off(wait);
                false
            }
        }
    }

    fn next_batch(
        &mut self,
        watermark: RankNs,
        leaves: bool,
        is_due: bool,
    ) -> Option<SpooledLines> {
        // Several in one: each answer is waited for, so after an outage fewer batches catch up
        // sooner.
        let mut batch = self.spool.pop();
        while let Some(begun) = &mut batch
            && begun.lines.len() < BATCH_BYTES / 2
            && let Some(more) = self.spool.pop()
        {
            begun.lines.extend(more.lines);
            begun.watermark = more.watermark;
        }
        if batch.is_none() && leaves && !self.last {
            self.last = true;
            return Some(SpooledLines {
                watermark,
                lines: Vec::new(),
            });
        }
        // That nothing happened is worth telling too.
        batch.or_else(|| {
            is_due.then(|| SpooledLines {
                watermark,
                lines: Vec::new(),
            })
        })
    }

    fn taken(&mut self) {
        let SpooledLines { watermark, lines } = self.batch.take().unwrap_or_default();
        self.watermark = watermark;
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            // Ranks tell again who they are after it.
            if is(line, "restart") {
                self.known.clear();
            }
            if ["restart", "rank", "name", "group", "communicator", "note"]
                .iter()
                .any(|kind| is(line, kind))
            {
                self.known.extend_from_slice(line);
            }
        }
        self.sequence += 1;
        self.refused = false;
        self.sent_at = Some(Instant::now());
        self.wait = FIRST_WAIT;
        if mem::take(&mut self.complained) {
            self.say("answers again");
        }
    }

    /// The collector has lost what it had: it is told again who the ranks are.
    fn begin_anew(&mut self) {
        self.restarts += 1;
        // A new session of the same agent: numbers begin at 0 again, and the collector waits for no
        // others.
        let base = self.session.split('.').next().unwrap_or_default();
        self.session = format!("{base}.{}", self.restarts);
        self.sequence = 0;
        info!(
            job = self.destination.job,
            session = self.session,
            "tells all anew"
        );
        let nothing = SpooledLines {
            watermark: self.watermark,
            lines: Vec::new(),
        };
        let batch = self.batch.get_or_insert(nothing);
        let mut lines = mem::take(&mut self.known);
        lines.append(&mut batch.lines);
        batch.lines = lines;
    }

    fn back_off(&mut self, wait: Option<Duration>) {
        self.retry_at = Instant::now() + wait.unwrap_or(self.wait).min(LAST_WAIT);
        self.wait = (self.wait * 2).min(LAST_WAIT);
    }

    fn complain(&mut self, what: &str) {
        if !mem::replace(&mut self.complained, true) {
            self.say(what);
        }
    }

    fn say(&self, what: &str) {
        let line = format!("{} {what}", self.destination.receiver);
        self.shared.open().lines.push(line);
    }

    fn send(&mut self) -> BatchAnswer {
        let Some(batch) = &self.batch else {
            return BatchAnswer::Next(self.sequence);
        };
        let head = BatchHead::new(&self.boot, batch.watermark, self.last);
        let body = match pack_batch(&head, &batch.lines) {
            Ok(body) => body,
            Err(error) => {
                return BatchAnswer::Later {
                    reason: error.to_string(),
                    wait: None,
                };
            }
        };
        let Destination { job, host, .. } = &self.destination;
        let (session, sequence) = (self.session.as_str(), self.sequence);
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
    use super::*;

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
