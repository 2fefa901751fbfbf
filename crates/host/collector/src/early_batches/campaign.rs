//! Three collectors that share one job of a bus, all of them played: the stream, the clock, the
//! disks, kills and agents.
//!
//! Whichever collector keeps the job, and whatever happens to it, the verdict is that of a job
//! nothing happened to. `LAGGARD_TEST_FAULTS` sets the number of jobs, `LAGGARD_TEST_SEED` the
//! first.

use std::fmt::Write;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::worker::tests::{
    Played, PlayedBatch, PlayedDisk, SECOND, again, batches_of, campaign, recorded,
};

const COLLECTORS: usize = 3;
/// Longer than a collector may be silent before its jobs are taken from it.
const CUT_OFF: u32 = 12;
/// As the bus's sessions do: a collector that goes on with a job reads from so long before what it
/// has.
const READ_AGAIN_S: u64 = 60;

/// What stands in the stream; `None` is damaged.
#[derive(Default)]
struct Stream {
    arrivals: Vec<StreamMessage>,
    sent: Vec<Option<PlayedBatch>>,
}

impl Stream {
    fn publish(&mut self, now: Now, session: &str, sequence: usize, sent: Option<&PlayedBatch>) {
        let batch = bus::BusBatch {
            host: "h".to_owned(),
            session: session.to_owned(),
            sequence: sequence as u64,
            now_ns: 1000,
            body: Vec::new().into(),
        };
        self.sent.push(sent.cloned());
        self.arrivals.push(StreamMessage {
            position: self.sent.len() as u64,
            pending: 0,
            at_ns: now.nanoseconds(),
            batch: Some(batch),
        });
    }
}

/// A collector as far as the job goes.
struct PlayedCollector {
    played: Played,
    early: EarlyBatches,
    /// How much of the stream was read.
    read: usize,
    row: u64,
}

impl PlayedCollector {
    /// Goes on from its own copy of the job.
    fn take_up(&mut self, stream: &Stream, now: Now) {
        self.played.now = now;
        self.played.start_again();
        self.early = EarlyBatches::default();
        let since_s = self
            .played
            .handle
            .summary()
            .last_seen_s
            .saturating_sub(READ_AGAIN_S);
        self.read = stream
            .arrivals
            .partition_point(|one| (one.at_ns as u64) < since_s * 1_000_000_000);
    }

    /// Reads some of the stream.
    fn read(&mut self, stream: &Stream, now: Now, random: &mut SmallRng) {
        self.played.now = now;
        let until = stream
            .arrivals
            .len()
            .min(self.read + random.random_range(1..30));
        let mut round = Round::begin(&mut self.early, stream.arrivals[self.read..until].to_vec());
        self.read = until;
        loop {
            if !self.hand_all(stream, &mut round, random) {
                // Killed: what was on its way is read again.
                return self.take_up(stream, now);
            }
            match round.next() {
                RoundStep::Again => {}
                RoundStep::Done => break,
                RoundStep::Wait => {
                    if random.random() {
                        self.played.disk = PlayedDisk::Fine;
                    }
                }
                RoundStep::Over(reason) => panic!("{reason}"),
            }
        }
        self.played.handle.set_behind(until < stream.arrivals.len());
        let (_, lost) = round.end(&mut self.early, now);
        assert!(lost.is_empty(), "{lost:?}");
    }

    /// Hands on all parts of a round; whether it lived through that.
    fn hand_all(&mut self, stream: &Stream, round: &mut Round, random: &mut SmallRng) -> bool {
        loop {
            let part = round.part();
            if part.is_empty() {
                return true;
            }
            self.row += 1;
            let mut part = part.into_iter().peekable();
            while part.peek().is_some() {
                // The thread of the job takes of a row what has come by then.
                let whole: Vec<_> = part
                    .by_ref()
                    .take(random.random_range(1..9))
                    .filter_map(|arrival| {
                        let sent = stream.sent[arrival.position as usize - 1].clone()?;
                        Some((arrival, sent))
                    })
                    .collect();
                let batches: Vec<_> = whole
                    .iter()
                    .filter_map(|(arrival, sent)| {
                        let batch = arrival.batch.as_ref()?;
                        let (session, at) = (&*batch.session, batch.sequence as usize);
                        Some((session, at, sent, arrival.at_ns))
                    })
                    .collect();
                let starts = self.played.starts;
                let answers = self.played.hand(Some(self.row), &batches);
                if self.played.starts != starts {
                    return false;
                }
                for ((arrival, _), answer) in whole.into_iter().zip(answers) {
                    round.answered(arrival, answer.expect("an answer"));
                }
                if self.played.disk == PlayedDisk::Full && random.random() {
                    self.played.disk = PlayedDisk::Fine;
                }
            }
        }
    }
}

/// Plays a job on a bus.
fn play(batches: &[PlayedBatch], whole: &str, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut collectors: Vec<PlayedCollector> = (0..COLLECTORS)
        .map(|_| PlayedCollector {
            played: Played::new(),
            early: EarlyBatches::default(),
            read: 0,
            row: 0,
        })
        .collect();
    let mut now = collectors[0].played.now;
    let mut stream = Stream::default();
    let (mut keeper, mut sessions) = (0, 0);
    let mut session = "e0-".to_owned();
    let mut log = format!("seed {seed}:");
    for (at, sent) in batches.iter().enumerate() {
        now = now + SECOND;
        let event = random.random_range(0..14);
        write!(log, " {event}").unwrap();
        match event {
            0 => collectors[keeper].take_up(&stream, now),
            1 => {
                // Killed for good, or cut off: somebody else takes the job.
                now = now + SECOND * CUT_OFF;
                keeper = (keeper + random.random_range(1..COLLECTORS)) % COLLECTORS;
                collectors[keeper].take_up(&stream, now);
            }
            2 => {
                // The one before does not know it yet, and goes on with the same.
                let before = keeper;
                keeper = (keeper + 1) % COLLECTORS;
                collectors[keeper].take_up(&stream, now);
                collectors[before].read(&stream, now, &mut random);
            }
            3 => {
                let thousandths = random.random_range(0..=1000);
                collectors[keeper].played.disk = PlayedDisk::Killed(thousandths);
            }
            4 => collectors[keeper].played.disk = PlayedDisk::Full,
            5 if at > 0 => {
                let known = random.random_range(0..at);
                stream.publish(now, &session, known, Some(&batches[known]));
            }
            6 if at + 2 < batches.len() => {
                stream.publish(now, &session, at + 1, Some(&batches[at + 1]));
            }
            7 => stream.publish(now, &session, at, None),
            8 if at > 0 => {
                // The agent is started anew, and tells again what the rings have.
                sessions += 1;
                session = format!("e{sessions}-");
                for (sequence, sent) in batches[..at].iter().enumerate() {
                    stream.publish(now, &session, sequence, Some(&again(sent)));
                }
            }
            _ => {}
        }
        stream.publish(now, &session, at, Some(sent));
        if random.random() {
            collectors[keeper].read(&stream, now, &mut random);
        }
    }
    // The last keeper, and then each of them after a start from its own copy.
    let mut check = |collector: &mut PlayedCollector| {
        collector.played.disk = PlayedDisk::Fine;
        while collector.read < stream.arrivals.len() || !collector.early.is_empty() {
            collector.read(&stream, now, &mut random);
        }
        collector.played.wait(SECOND * 5);
        assert!(collector.played.has_exited, "{log}");
        assert_eq!(&*collector.played.finish(), whole, "{log}");
    };
    check(&mut collectors[keeper]);
    for collector in &mut collectors {
        collector.take_up(&stream, now);
        check(collector);
    }
}

#[test]
fn whatever_happens_to_collectors_that_share_a_job_its_beginning_counts_once() {
    let jobs = ["data", "periodic", "two", "none"];
    let jobs = jobs.map(|job| batches_of(&recorded(job, 240), 12));
    campaign(&jobs, 1000, play);
}

#[test]
fn whatever_happens_to_collectors_that_share_a_job_its_verdict_stays_the_same() {
    let jobs = ["data", "periodic", "two", "none"];
    let jobs = jobs.map(|job| batches_of(&recorded(job, usize::MAX), 12));
    campaign(&jobs, 12, play);
}

#[test]
fn an_agent_whose_batch_never_comes_hears_it_after_a_while_and_its_next_session_counts() {
    let batches = batches_of(&recorded("data", 240), 4);
    let mut early = EarlyBatches::default();
    let (mut stream, mut played) = (Stream::default(), Played::new());
    let begin = played.now;
    stream.publish(begin, "old", 1, Some(&batches[1]));
    let mut seen = Vec::new();
    for second in 0..20 {
        let now = begin + SECOND * second;
        let came = if second == 0 {
            stream.arrivals.clone()
        } else {
            Vec::new()
        };
        let mut round = Round::begin(&mut early, came);
        for arrival in round.part() {
            played.now = now;
            let answer = played.send_one("old", 1, &batches[1]).unwrap();
            round.answered(arrival, answer);
        }
        assert_eq!(round.next(), RoundStep::Done);
        let (commands, _) = round.end(&mut early, now);
        seen.extend(commands.into_values().map(|command| (second, command)));
    }
    assert_eq!(
        seen,
        [(
            5,
            Command::Lost {
                lost: "old".to_owned()
            }
        )]
    );
    for (at, sent) in batches.iter().enumerate() {
        let answer = played.send_one("new", at, sent);
        assert!(
            matches!(answer, Some(BatchOutcome::Kept { is_new: true, .. })),
            "{answer:?}"
        );
    }
}
