//! What a host has to say to its collector: which batch is sent, and when.
//!
//! Nothing here does I/O or reads a clock: the thread of the uplink says what time it is and what
//! was answered, so a test can play hours of a silent collector.

use std::collections::BTreeMap;
use std::mem;
use std::time::{Duration, Instant};

use model::RankNs;
use protocol::{BatchHead, HostOrders};
use verdict::WantedProfile;

use crate::collector_link::BatchAnswer;
use crate::spool::{BATCH_BYTES, Spool, SpooledLines, is, lost_line, thin};

/// How often what was reported is sent.
pub(crate) const SEND_EVERY: Duration = Duration::from_millis(500);
/// Waits after failures double from the first to the last of these.
pub(crate) const FIRST_WAIT: Duration = Duration::from_millis(500);
const LAST_WAIT: Duration = Duration::from_secs(30);

/// The batches of a host that are not taken yet.
#[derive(Debug)]
pub(crate) struct BatchOutbox {
    boot: String,
    /// The agent session, and how often it began anew.
    session: String,
    restarts: u32,
    sequence: u64,
    spool: Spool,
    /// The time up to which everything is in the spool.
    pushed_watermark: RankNs,
    /// What is being sent; the same until it is answered.
    batch: Option<SpooledLines>,
    /// The time up to which everything was taken.
    watermark: RankNs,
    last: bool,
    /// Lines that those after them stand on, for a collector that has lost them.
    known: Vec<u8>,
    sent_at: Option<Instant>,
    wait: Duration,
    retry_at: Instant,
    /// Whether it was said that the collector does not answer.
    complained: bool,
    /// Whether the batch is what is left of one that was refused for good.
    refused: bool,
    /// The profile window that was asked for last.
    profile: Option<WantedProfile>,
}

/// What follows from an answer.
#[derive(Debug, Default)]
pub(crate) struct AnswerOutcome {
    /// What the collector asks for; a profile window only once.
    pub(crate) orders: Option<HostOrders>,
    /// What people are to hear of the collector.
    pub(crate) said: Option<String>,
    /// Whether it is worth to send the next batch at once.
    pub(crate) goes_on: bool,
    /// Whether a new session was begun.
    pub(crate) began_anew: bool,
}

impl BatchOutbox {
    pub(crate) fn new(boot: String, session: String, now: Instant) -> Self {
        Self {
            boot,
            session,
            restarts: 0,
            sequence: 0,
            spool: Spool::default(),
            pushed_watermark: RankNs::default(),
            batch: None,
            watermark: RankNs::default(),
            last: false,
            known: Vec::new(),
            sent_at: None,
            wait: FIRST_WAIT,
            retry_at: now,
            complained: false,
            refused: false,
            profile: None,
        }
    }

    /// Adds lines, all up to their watermark.
    pub(crate) fn push(&mut self, lines: &SpooledLines) {
        self.pushed_watermark = lines.watermark;
        self.spool.push(lines);
    }

    /// Whether the wait after the last failure is over.
    pub(crate) fn may_try(&self, now: Instant) -> bool {
        now >= self.retry_at
    }

    /// Whether something is not taken yet.
    pub(crate) fn is_behind(&self) -> bool {
        self.batch.is_some() || !self.spool.is_empty()
    }

    /// Whether the last batch was made, if this host `leaves` the job.
    pub(crate) fn has_said_all(&self, leaves: bool) -> bool {
        self.last == leaves
    }

    /// The session and the number of the next batch.
    pub(crate) fn place(&self) -> (&str, u64) {
        (&self.session, self.sequence)
    }

    /// The batch to send, the same until it is answered; `None` if there is nothing to say now.
    pub(crate) fn next(&mut self, now: Instant, leaves: bool) -> Option<(BatchHead, &[u8])> {
        if self.batch.is_none() {
            // Nothing new is said once a second: a collector takes a host for silent after 30 s.
            let is_due = self
                .sent_at
                .is_none_or(|sent| now.duration_since(sent) >= SEND_EVERY * 2);
            self.batch = self.next_batch(leaves, is_due);
        }
        let batch = self.batch.as_ref()?;
        let head = BatchHead::new(&self.boot, batch.watermark, self.last);
        Some((head, &batch.lines))
    }

    fn next_batch(&mut self, leaves: bool, is_due: bool) -> Option<SpooledLines> {
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
        let nothing = SpooledLines {
            watermark: self.pushed_watermark,
            lines: Vec::new(),
        };
        if batch.is_none() && leaves && !self.last {
            self.last = true;
            return Some(nothing);
        }
        // That nothing happened is worth telling too.
        batch.or_else(|| is_due.then_some(nothing))
    }

    /// Takes the answer to the batch that [`Self::next`] gave.
    pub(crate) fn answered(&mut self, now: Instant, answer: BatchAnswer) -> AnswerOutcome {
        match answer {
            BatchAnswer::Taken { mut wanted, lost } => {
                // It asks until the job has come to the window.
                wanted.profile = wanted
                    .profile
                    .filter(|profile| self.profile.as_ref() != Some(profile));
                if wanted.profile.is_some() {
                    self.profile.clone_from(&wanted.profile);
                }
                let said = self.taken(now);
                // Only between batches: what is on its way may be in the stream.
                let began_anew = lost.is_some_and(|session| session == self.session);
                if began_anew {
                    self.begin_anew();
                }
                AnswerOutcome {
                    orders: Some(wanted),
                    said,
                    goes_on: true,
                    began_anew,
                }
            }
            // The answer to it was lost on the way, and the batch was not.
            BatchAnswer::Next(next) if next > self.sequence => AnswerOutcome {
                said: self.taken(now),
                goes_on: true,
                ..AnswerOutcome::default()
            },
            // It asks for what it has been sent: no collector does.
            BatchAnswer::Next(_) if self.sequence == 0 => {
                let said = self.complain(
                    "answers as no collector does; batches are kept, and the command continues"
                        .to_owned(),
                );
                self.back_off(now, None);
                AnswerOutcome {
                    said,
                    ..AnswerOutcome::default()
                }
            }
            BatchAnswer::Next(_) => {
                self.begin_anew();
                AnswerOutcome {
                    goes_on: true,
                    began_anew: true,
                    ..AnswerOutcome::default()
                }
            }
            BatchAnswer::Refused(reason) => {
                let said = self.complain(format!("refuses a batch ({reason})"));
                self.drop_batch();
                self.back_off(now, None);
                AnswerOutcome {
                    said,
                    ..AnswerOutcome::default()
                }
            }
            BatchAnswer::Later { reason, wait } => {
                let said = self.complain(format!(
                    "does not accept batches ({reason}); they are kept, and the command continues"
                ));
                self.back_off(now, wait);
                AnswerOutcome {
                    said,
                    ..AnswerOutcome::default()
                }
            }
        }
    }

    /// The batch will never be taken: of its marks only the number is sent.
    fn drop_batch(&mut self) {
        let batch = self.batch.take().unwrap_or_default();
        // If what was lost is refused too, nothing can be said of it.
        if mem::take(&mut self.refused) {
            return;
        }
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

    /// The batch is taken; what people are to hear of it.
    fn taken(&mut self, now: Instant) -> Option<String> {
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
        self.sent_at = Some(now);
        self.wait = FIRST_WAIT;
        mem::take(&mut self.complained).then(|| "answers again".to_owned())
    }

    /// The collector has lost what it had: it hears again who the ranks are.
    fn begin_anew(&mut self) {
        self.restarts += 1;
        // A new session of the same agent: numbers begin at 0 again, and the collector waits for no
        // others.
        let base = self.session.split('.').next().unwrap_or_default();
        self.session = format!("{base}.{}", self.restarts);
        self.sequence = 0;
        let nothing = SpooledLines {
            watermark: self.watermark,
            lines: Vec::new(),
        };
        let batch = self.batch.get_or_insert(nothing);
        let mut lines = mem::take(&mut self.known);
        lines.append(&mut batch.lines);
        batch.lines = lines;
    }

    fn back_off(&mut self, now: Instant, wait: Option<Duration>) {
        // Also what the collector asks for: a wrong header must not silence a host.
        self.retry_at = now + wait.unwrap_or(self.wait).min(LAST_WAIT);
        self.wait = (self.wait * 2).min(LAST_WAIT);
    }

    /// Says it once until the collector takes something again: an outage is no reason to fill the
    /// terminal of the job.
    fn complain(&mut self, what: String) -> Option<String> {
        (!mem::replace(&mut self.complained, true)).then_some(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    /// A host in virtual time: what it was given, and what a collector has taken of it.
    struct Played {
        outbox: BatchOutbox,
        begin: Instant,
        now: Instant,
        given: Vec<u8>,
        taken: Vec<u8>,
        /// When each batch was sent, and its place.
        sent: Vec<(Duration, String, u64)>,
        watermark: RankNs,
        said: Vec<String>,
    }

    impl Played {
        fn new() -> Self {
            let begin = Instant::now();
            Self {
                outbox: BatchOutbox::new("boot".to_owned(), "5-1".to_owned(), begin),
                begin,
                now: begin,
                given: Vec::new(),
                taken: Vec::new(),
                sent: Vec::new(),
                watermark: RankNs(0),
                said: Vec::new(),
            }
        }

        fn since_begin_ns(&self) -> u64 {
            u64::try_from((self.now - self.begin).as_nanos()).unwrap()
        }

        /// Does what the thread of the uplink does, for so long; `answer` to each batch.
        fn run(&mut self, period: Duration, answer: impl Fn() -> BatchAnswer) {
            let end = self.now + period;
            while self.now < end {
                self.now += SEND_EVERY;
                let watermark = RankNs(self.since_begin_ns());
                let lines = format!("[1,{},0,1,1,0]\n", watermark.0).into_bytes();
                self.given.extend_from_slice(&lines);
                self.outbox.push(&SpooledLines { watermark, lines });
                while self.outbox.may_try(self.now) {
                    let (session, sequence) = self.outbox.place();
                    let place = (session.to_owned(), sequence);
                    let Some((head, lines)) = self.outbox.next(self.now, false) else {
                        break;
                    };
                    let at = self.now.duration_since(self.begin);
                    self.sent.push((at, place.0, place.1));
                    let answer = answer();
                    if matches!(answer, BatchAnswer::Taken { .. }) {
                        self.taken.extend_from_slice(lines);
                        assert!(head.watermark >= self.watermark);
                        self.watermark = head.watermark;
                    }
                    let outcome = self.outbox.answered(self.now, answer);
                    self.said.extend(outcome.said);
                    if !outcome.goes_on {
                        break;
                    }
                }
            }
        }
    }

    fn takes() -> BatchAnswer {
        BatchAnswer::Taken {
            wanted: HostOrders::default(),
            lost: None,
        }
    }

    fn is_silent() -> BatchAnswer {
        BatchAnswer::Later {
            reason: "no answer".to_owned(),
            wait: None,
        }
    }

    #[test]
    fn after_an_hour_of_a_silent_collector_everything_comes_once_and_in_order() {
        let mut played = Played::new();
        played.run(Duration::from_secs(10), takes);
        let before = played.sent.len();
        played.run(HOUR, is_silent);
        let tries = &played.sent[before..];
        // 0.5 + 1 + 2 + 4 + 8 + 16 s, then every 30 s.
        assert_eq!(tries.len(), 6 + (3600 - 31) / 30 + 1);
        let apart = tries.windows(2).map(|two| two[1].0.abs_diff(two[0].0));
        assert!(apart.clone().is_sorted());
        assert_eq!(apart.max(), Some(LAST_WAIT));
        // A batch keeps its number until it is answered: the collector knows it again.
        assert!(tries.iter().all(|it| it.1 == "5-1" && it.2 == tries[0].2));
        assert!(played.outbox.is_behind());
        let heard = "does not accept batches (no answer); they are kept, and the command continues";
        assert_eq!(played.said, [heard]);

        let silent = played.sent.len();
        played.run(LAST_WAIT + SEND_EVERY, takes);
        assert_eq!(played.taken, played.given);
        assert!(!played.outbox.is_behind());
        assert_eq!(played.watermark.0, played.since_begin_ns());
        assert_eq!(played.said, [heard, "answers again"]);
        // What was tried all the time, and the rest of the hour in one batch.
        let after = &played.sent[silent..];
        assert_eq!(after.iter().filter(|it| it.0 == after[0].0).count(), 2);
        let numbers: Vec<u64> = after.iter().map(|it| it.2).collect();
        assert!(numbers.is_sorted_by(|one, next| one + 1 == *next));
        // And the next outage begins with short waits again.
        let again = played.sent.len();
        played.run(Duration::from_secs(4), is_silent);
        assert_eq!(played.sent.len() - again, 4);
    }

    #[test]
    fn a_collector_decides_how_long_a_host_waits_within_bounds() {
        for (asked_s, waited_s) in [(2, 2), (86_400, 30)] {
            let mut played = Played::new();
            played.run(Duration::from_mins(2), || BatchAnswer::Later {
                reason: "busy".to_owned(),
                wait: Some(Duration::from_secs(asked_s)),
            });
            let apart = played
                .sent
                .windows(2)
                .map(|two| two[1].0.abs_diff(two[0].0));
            let waited = Duration::from_secs(waited_s);
            assert!(apart.clone().count() > 2 && apart.clone().all(|it| it == waited));
        }
    }

    #[test]
    fn a_collector_that_lost_an_hour_hears_again_who_the_ranks_are() {
        let mut played = Played::new();
        let name = b"{\"is\":\"name\",\"rank\":1,\"name\":\"n\"}\n";
        played.outbox.push(&SpooledLines {
            watermark: RankNs(0),
            lines: name.to_vec(),
        });
        played.run(Duration::from_secs(10), takes);
        assert!(played.taken.starts_with(name));
        played.run(HOUR, is_silent);
        // It was started anew without its disk.
        played.taken.clear();
        played.now += LAST_WAIT;
        played.outbox.next(played.now, false).unwrap();
        let lost = played.outbox.answered(played.now, BatchAnswer::Next(0));
        assert!(lost.goes_on);
        played.run(LAST_WAIT, takes);
        assert!(played.taken.starts_with(name));
        let (.., session, number) = played.sent.last().unwrap();
        assert_eq!(session, "5-1.1");
        assert!(*number > 0);
        assert!(!played.outbox.is_behind());
    }
}
