//! Batches from the bus in their order: what to hand on, what waits, and what is lost.
//!
//! Nothing here does I/O or reads a clock; `reader` does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use std::{mem, vec};

use bus::StreamMessage;
use protocol::{Command, HostOrders};

use crate::clock::Now;
use crate::job::INBOX;
use crate::worker::{BatchOutcome, REPLACED};

/// Batches that are handed on together: as many as may wait for the thread of a job.
pub(crate) const TOGETHER: usize = INBOX;
/// How long a batch that came before those it follows waits for them, and how many may.
pub(crate) const EARLY_FOR: Duration = Duration::from_secs(5);
const MOST_EARLY: usize = 1024;

/// A host, and an agent session of it.
type HostSession = (String, String);

fn session_of(arrival: &StreamMessage) -> HostSession {
    arrival
        .batch
        .as_ref()
        .map(|batch| (batch.host.clone(), batch.session.clone()))
        .unwrap_or_default()
}

/// Batches that came before those they follow, and agents whose missing ones never came: the bus
/// had dropped them for their age, or was told to.
#[derive(Debug, Default)]
pub(crate) struct EarlyBatches {
    waiting: Vec<StreamMessage>,
    since: Option<Instant>,
    lost: BTreeSet<HostSession>,
}

impl EarlyBatches {
    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What waits, in order, and after it what came; and of which lost agents something came.
    fn join(
        &mut self,
        arrivals: Vec<StreamMessage>,
    ) -> (Vec<StreamMessage>, BTreeSet<HostSession>) {
        let (lost, arrivals): (Vec<_>, Vec<_>) = arrivals
            .into_iter()
            .partition(|arrival| self.lost.contains(&session_of(arrival)));
        let mut round = mem::take(&mut self.waiting);
        // Those of an agent in their order, and those of the next agent of its host after them.
        let mut begun: BTreeMap<HostSession, u64> = BTreeMap::new();
        for arrival in &round {
            let at = begun.entry(session_of(arrival)).or_insert(arrival.position);
            *at = (*at).min(arrival.position);
        }
        round.sort_by_key(|arrival| {
            let sequence = arrival.batch.as_ref().map(|batch| batch.sequence);
            (begun.get(&session_of(arrival)).copied(), sequence)
        });
        round.extend(arrivals);
        (round, lost.iter().map(session_of).collect())
    }

    /// Lets batches wait, if they have not for too long; the agents of those that have.
    fn wait(&mut self, waiting: Vec<StreamMessage>, now: Now) -> BTreeSet<HostSession> {
        self.waiting = waiting;
        if self.waiting.is_empty() {
            self.since = None;
            return BTreeSet::new();
        }
        let since = *self.since.get_or_insert(now.at);
        // From when the first began to wait: later ones must not prolong its wait.
        if now.since(since) < EARLY_FOR && self.waiting.len() <= MOST_EARLY {
            return BTreeSet::new();
        }
        self.since = None;
        let lost: BTreeSet<_> = self.waiting.drain(..).map(|one| session_of(&one)).collect();
        self.lost.extend(lost.iter().cloned());
        lost
    }
}

/// How a round goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RoundStep {
    /// Some of what was early may not be so any more.
    Again,
    /// The disk takes none now.
    Wait,
    /// All is kept that can be.
    Done,
    /// The job may have no more room.
    Over(&'static str),
}

/// Batches that came together, and those that waited for them, until all are kept or have to wait.
#[derive(Debug)]
pub(crate) struct Round {
    rest: vec::IntoIter<StreamMessage>,
    /// How many there were when the others had been handed on last.
    before: usize,
    /// Those that follow others that did not come, or were not kept.
    early: Vec<StreamMessage>,
    /// By host, what to tell it.
    commands: BTreeMap<String, Command>,
    lost: BTreeSet<HostSession>,
    is_full: bool,
    over: Option<&'static str>,
}

impl Round {
    /// Begins with what came.
    pub(crate) fn begin(early: &mut EarlyBatches, arrivals: Vec<StreamMessage>) -> Self {
        let (round, lost) = early.join(arrivals);
        Self {
            before: round.len(),
            rest: round.into_iter(),
            early: Vec::new(),
            commands: BTreeMap::new(),
            lost,
            is_full: false,
            over: None,
        }
    }

    /// Batches to hand on together now; none if all were.
    pub(crate) fn part(&mut self) -> Vec<StreamMessage> {
        // What follows one that found no room waits with it: an agent's last batches must not come
        // after the first of the next.
        if self.is_full {
            self.early.extend(self.rest.by_ref());
        }
        self.rest.by_ref().take(TOGETHER).collect()
    }

    /// Takes the answer to a batch.
    pub(crate) fn answered(&mut self, arrival: StreamMessage, answer: BatchOutcome) {
        let (host, session) = session_of(&arrival);
        match answer {
            BatchOutcome::Kept { wanted, .. } => {
                // Each command is a message on the bus, and most answers ask for nothing.
                if wanted != HostOrders::default() {
                    self.commands.insert(host, Command::Wanted(wanted));
                }
            }
            // Those before it may still come.
            BatchOutcome::Gap { .. } => self.early.push(arrival),
            BatchOutcome::Stale => {
                let refused = (session, REPLACED.to_owned());
                self.commands.insert(host, Command::Refused { refused });
            }
            // It waits nowhere: room that a job may not have does not come back while it runs.
            BatchOutcome::Over(reason) => self.over = Some(reason),
            BatchOutcome::Full(_) => {
                self.is_full = true;
                self.early.push(arrival);
            }
        }
    }

    /// What to do once all parts were handed on.
    pub(crate) fn next(&mut self) -> RoundStep {
        if let Some(reason) = self.over {
            return RoundStep::Over(reason);
        }
        let early = mem::take(&mut self.early);
        let is_stuck = early.is_empty() || early.len() == self.before;
        self.before = early.len();
        if mem::take(&mut self.is_full) {
            self.rest = early.into_iter();
            RoundStep::Wait
        } else if is_stuck {
            self.early = early;
            RoundStep::Done
        } else {
            self.rest = early.into_iter();
            RoundStep::Again
        }
    }

    /// Lets wait what is early; what to tell hosts, and agents of which something is lost.
    pub(crate) fn end(
        mut self,
        early: &mut EarlyBatches,
        now: Now,
    ) -> (BTreeMap<String, Command>, BTreeSet<HostSession>) {
        self.lost.extend(early.wait(self.early, now));
        for (host, session) in self.lost.iter().cloned() {
            self.commands.insert(host, Command::Lost { lost: session });
        }
        (self.commands, self.lost)
    }
}

#[cfg(test)]
mod campaign;

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(session: &str, sequences: impl Iterator<Item = u64>) -> Vec<StreamMessage> {
        sequences
            .map(|sequence| {
                let (host, session) = ("h".to_owned(), session.to_owned());
                let body = Vec::new().into();
                let batch = bus::BusBatch {
                    host,
                    session,
                    sequence,
                    now_ns: 0,
                    body,
                };
                StreamMessage {
                    position: 1,
                    pending: 0,
                    at_ns: 0,
                    batch: Some(batch),
                }
            })
            .collect()
    }

    #[test]
    fn what_waits_goes_first_and_in_its_order() {
        let mut early = EarlyBatches::default();
        assert!(
            early
                .wait(arrivals("e", [3, 1, 2].into_iter()), Now::read())
                .is_empty()
        );
        let (round, lost) = early.join(arrivals("e", [7, 5].into_iter()));
        let order: Vec<u64> = round
            .iter()
            .map(|it| it.batch.as_ref().unwrap().sequence)
            .collect();
        assert_eq!((order, lost.len()), (vec![1, 2, 3, 7, 5], 0));
    }

    #[test]
    fn what_waits_of_an_agent_goes_before_what_waits_of_the_next() {
        let mut early = EarlyBatches::default();
        let mut waiting = arrivals("old", [7, 6].into_iter());
        waiting.extend(arrivals("new", [1, 0].into_iter()));
        for (position, arrival) in (1..).zip(&mut waiting) {
            arrival.position = position;
        }
        early.wait(waiting, Now::read());
        let (round, _) = early.join(Vec::new());
        let order: Vec<_> = round
            .iter()
            .map(|it| (session_of(it).1, it.batch.as_ref().unwrap().sequence))
            .collect();
        let of = |session: &str, sequence| (session.to_owned(), sequence);
        assert_eq!(
            order,
            [of("old", 6), of("old", 7), of("new", 0), of("new", 1)]
        );
    }

    #[test]
    fn an_agent_whose_batches_are_missing_hears_it_with_each_that_comes() {
        let mut early = EarlyBatches::default();
        let many = arrivals("old", 1..MOST_EARLY as u64 + 2);
        let lost = BTreeSet::from([("h".to_owned(), "old".to_owned())]);
        assert_eq!(early.wait(many, Now::read()), lost);
        assert!(early.is_empty());
        for _ in 0..2 {
            let (round, again) = early.join(arrivals("old", 5..6));
            assert_eq!((round.len(), &again), (0, &lost));
        }
        let (round, again) = early.join(arrivals("new", 0..1));
        assert_eq!((round.len(), again.len()), (1, 0), "it has begun anew");
    }
}
