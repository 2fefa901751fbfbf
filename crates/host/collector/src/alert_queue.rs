//! Alerts on their way to people who watch for incidents: each is kept until it is taken.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use model::Incident;
use serde::{Deserialize, Serialize};

use crate::clock::Now;

/// Alerts that may wait.
const MOST: usize = 1024;
/// Waits after an alert was not taken double from the first to the last of these.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LAST_WAIT: Duration = Duration::from_mins(1);
/// Nobody wants to hear of what was longer ago.
const GIVE_UP_AFTER_S: u64 = 24 * 3600;
/// How often a receiver that forgets is sent what goes on.
pub(crate) const REPEAT_EVERY: Duration = Duration::from_mins(1);

/// That an incident has begun, or is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Alert {
    pub(crate) job: String,
    pub(crate) incident: Incident,
    pub(crate) begun_s: u64,
    pub(crate) ended_s: Option<u64>,
}

/// A job and an incident of it.
type AlertKey = (String, String);

impl Alert {
    fn key(&self) -> AlertKey {
        (self.job.clone(), self.incident.id.clone())
    }

    fn has_ended(&self) -> bool {
        self.ended_s.is_some()
    }
}

/// What is to be sent next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Delivery {
    /// The oldest alert that waits.
    Next(Box<Alert>),
    /// All that goes on, as a receiver may have forgotten it. Nothing waits for it to be taken.
    Repeat(Vec<Alert>),
}

/// What became of an alert that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostOutcome {
    /// It was taken.
    Taken,
    /// It will never be.
    Refused,
    /// It was not taken now.
    Later,
}

/// What an outcome means for the alert, and so for readers of logs and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It was taken; `recovered` if the one before was not.
    Sent { recovered: bool },
    /// It was refused, and is dropped.
    Dropped,
    /// It waits; `is_first` if the one before was taken.
    Waits { is_first: bool },
    /// It has waited for too long, and is dropped.
    GivenUp,
}

/// Which alerts are sent when. It reads no clock and sends nothing itself.
///
/// # Properties
/// Alerts of an incident are sent in their order. An alert that is not taken delays those behind
/// it, and never a repetition of what goes on.
#[derive(Debug)]
pub(crate) struct AlertQueue {
    /// Oldest first.
    waiting: VecDeque<Alert>,
    /// What was announced and is not over.
    ongoing: BTreeMap<AlertKey, Alert>,
    /// When to send again what goes on, to a receiver that forgets it.
    repeat_at: Option<Instant>,
    retry_at: Instant,
    wait: Duration,
    /// Whether the last one was not taken.
    is_refused: bool,
}

impl AlertQueue {
    /// Takes up the alerts that an earlier collector did not get rid of.
    pub(crate) fn new(waiting: VecDeque<Alert>, repeats: bool, now: Now) -> Self {
        Self {
            waiting,
            ongoing: BTreeMap::new(),
            repeat_at: repeats.then(|| now.at + REPEAT_EVERY),
            retry_at: now.at,
            wait: FIRST_WAIT,
            is_refused: false,
        }
    }

    /// Alerts that wait, oldest first.
    pub(crate) fn waiting(&self) -> &VecDeque<Alert> {
        &self.waiting
    }

    /// Adds an alert; whether it is new. If there is no room the oldest is dropped, and returned.
    pub(crate) fn push(&mut self, alert: Alert) -> (bool, Option<Alert>) {
        if alert.has_ended() {
            self.ongoing.remove(&alert.key());
        } else {
            self.ongoing.insert(alert.key(), alert.clone());
        }
        // After a kill between this and what the job knows it comes again.
        let last = self.waiting.iter().rfind(|last| last.key() == alert.key());
        if last.is_some_and(|last| last.has_ended() == alert.has_ended()) {
            return (false, None);
        }
        self.waiting.push_back(alert);
        let is_full = self.waiting.len() > MOST;
        (
            true,
            if is_full {
                self.waiting.pop_front()
            } else {
                None
            },
        )
    }

    /// Notes that what was announced earlier goes on.
    pub(crate) fn resume(&mut self, alert: Alert) {
        self.ongoing.insert(alert.key(), alert);
    }

    /// Notes that somebody else tells of a job.
    pub(crate) fn forget(&mut self, job: &str) {
        self.ongoing.retain(|(of, _), _| of != job);
    }

    /// What to send now, if anything.
    pub(crate) fn next(&mut self, now: Now) -> Option<Delivery> {
        if self.repeat_at.is_some_and(|at| now.at >= at) {
            // From now on: after a post that hung for minutes one repetition is enough.
            self.repeat_at = Some(now.at + REPEAT_EVERY);
            // What waits has not been taken yet: it is sent in its turn, not twice.
            let known: Vec<Alert> = self
                .ongoing
                .iter()
                .filter(|(key, _)| self.waiting.iter().all(|one| one.key() != **key))
                .map(|(_, alert)| alert.clone())
                .collect();
            if !known.is_empty() {
                return Some(Delivery::Repeat(known));
            }
        }
        let is_due = now.at >= self.retry_at;
        self.waiting
            .front()
            .filter(|_| is_due)
            .cloned()
            .map(|next| Delivery::Next(Box::new(next)))
    }

    /// How long to wait until there may be something to send, unless an alert is added.
    pub(crate) fn patience(&self, now: Now) -> Duration {
        let retry_at = Some(self.retry_at).filter(|_| !self.waiting.is_empty());
        retry_at
            .into_iter()
            .chain(self.repeat_at)
            .min()
            .map_or(REPEAT_EVERY, |at| at.saturating_duration_since(now.at))
    }

    /// Takes what became of an alert that [`AlertQueue::next`] gave out.
    pub(crate) fn settle(&mut self, alert: &Alert, outcome: PostOutcome, now: Now) -> Settled {
        let sent_s = alert.ended_s.unwrap_or(alert.begun_s);
        // By the time of day: alerts outlive the process, and with it the clock that goes evenly.
        let is_old = now.seconds().saturating_sub(sent_s) > GIVE_UP_AFTER_S;
        let settled = match outcome {
            PostOutcome::Taken => {
                self.wait = FIRST_WAIT;
                let recovered = std::mem::take(&mut self.is_refused);
                Settled::Sent { recovered }
            }
            // The wait stays as it is: the receiver is there, and did not take this one alone.
            PostOutcome::Refused => Settled::Dropped,
            PostOutcome::Later => {
                self.retry_at = now.at + self.wait;
                self.wait = (self.wait * 2).min(LAST_WAIT);
                let is_first = !std::mem::replace(&mut self.is_refused, true);
                if is_old {
                    Settled::GivenUp
                } else {
                    Settled::Waits { is_first }
                }
            }
        };
        // The oldest may have been dropped meanwhile.
        let is_front = self.waiting.front() == Some(alert);
        if is_front && !matches!(settled, Settled::Waits { .. }) {
            self.waiting.pop_front();
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerts::incident;

    const SECOND: Duration = Duration::from_secs(1);

    fn alert(id: &str, begun_s: u64, ended_s: Option<u64>) -> Alert {
        let incident = Incident {
            id: id.to_owned(),
            ..incident(ended_s.is_none())
        };
        Alert {
            job: "job".to_owned(),
            incident,
            begun_s,
            ended_s,
        }
    }

    /// What is sent in so many seconds, second by second: an incident as `id` where it begins and
    /// `id!` where it is over, repetitions in brackets, each with the second.
    fn sent(
        queue: &mut AlertQueue,
        begin: Now,
        seconds: std::ops::Range<u64>,
        outcome: impl Fn(u64) -> PostOutcome,
    ) -> Vec<String> {
        let name = |alert: &Alert| {
            let over = if alert.has_ended() { "!" } else { "" };
            format!("{}{over}", alert.incident.id)
        };
        let mut sent = Vec::new();
        for second in seconds {
            let now = begin + SECOND * second as u32;
            while let Some(delivery) = queue.next(now) {
                match delivery {
                    Delivery::Next(alert) => {
                        sent.push(format!("{} {second}", name(&alert)));
                        queue.settle(&alert, outcome(second), now);
                    }
                    Delivery::Repeat(alerts) => {
                        let names: Vec<_> = alerts.iter().map(name).collect();
                        sent.push(format!("[{}] {second}", names.join(" ")));
                    }
                }
            }
            assert!(queue.patience(now) > Duration::ZERO, "it would not sleep");
        }
        sent
    }

    #[test]
    fn what_goes_on_is_repeated_while_an_alert_is_not_taken() {
        let begin = Now::read();
        let mut queue = AlertQueue::new(VecDeque::new(), true, begin);
        queue.push(alert("a", begin.seconds(), None));
        let taken = sent(&mut queue, begin, 0..60, |_| PostOutcome::Taken);
        assert_eq!(taken, ["a 0"]);
        queue.push(alert("b", begin.seconds(), None));
        // The receiver takes nothing for half an hour; the waits between tries grow to a minute.
        let later = sent(&mut queue, begin, 60..1860, |_| PostOutcome::Later);
        let repeated = later
            .iter()
            .filter_map(|one| one.strip_prefix("[a] ")?.parse::<u64>().ok());
        assert!(repeated.eq((60..1860).step_by(60)), "{later:?}");
        let tried = later.iter().filter(|one| one.starts_with('b')).count();
        assert_eq!(tried, 35, "{later:?}");
        let taken = sent(&mut queue, begin, 1860..1981, |_| PostOutcome::Taken);
        let is_sent = |what: &str| taken.iter().any(|one| one.starts_with(what));
        assert!(is_sent("b ") && is_sent("[a b] "), "{taken:?}");
    }

    #[test]
    fn what_is_over_is_repeated_no_more_and_others_forget_nothing() {
        let begin = Now::read();
        let mut queue = AlertQueue::new(VecDeque::new(), true, begin);
        queue.push(alert("a", 0, None));
        queue.resume(alert("b", 0, None));
        assert_eq!(
            sent(&mut queue, begin, 0..61, |_| PostOutcome::Taken),
            ["a 0", "[a b] 60"]
        );
        queue.push(alert("a", 0, Some(61)));
        let rest = sent(&mut queue, begin, 61..121, |_| PostOutcome::Taken);
        assert_eq!(rest, ["a! 61", "[b] 120"]);
        queue.forget("job");
        assert!(sent(&mut queue, begin, 121..4000, |_| PostOutcome::Taken).is_empty());
        let mut queue = AlertQueue::new(VecDeque::new(), false, begin);
        queue.push(alert("a", 0, None));
        assert_eq!(
            sent(&mut queue, begin, 0..4000, |_| PostOutcome::Taken),
            ["a 0"]
        );
    }

    #[test]
    fn an_alert_is_given_up_after_a_day_and_a_refused_one_at_once() {
        let begin = Now::read();
        let mut queue = AlertQueue::new(VecDeque::new(), false, begin);
        for id in ["a", "b"] {
            queue.push(alert(id, begin.seconds(), None));
        }
        sent(&mut queue, begin, 0..24 * 3600 + 1, |_| PostOutcome::Later);
        assert_eq!(queue.waiting().len(), 2, "a day is not over");
        sent(&mut queue, begin, 24 * 3600 + 1..24 * 3600 + 200, |_| {
            PostOutcome::Later
        });
        assert_eq!(queue.waiting().len(), 0);
        queue.push(alert("c", begin.seconds(), None));
        let late = begin + SECOND * 100_000;
        assert!(matches!(queue.next(late), Some(Delivery::Next(_))));
        let settled = queue.settle(
            &alert("c", begin.seconds(), None),
            PostOutcome::Refused,
            late,
        );
        assert_eq!((settled, queue.waiting().len()), (Settled::Dropped, 0));
    }

    #[test]
    fn the_oldest_of_too_many_is_dropped_and_one_that_comes_again_counts_once() {
        let mut queue = AlertQueue::new(VecDeque::new(), false, Now::read());
        for id in 0..MOST {
            assert_eq!(queue.push(alert(&id.to_string(), 0, None)), (true, None));
            assert_eq!(queue.push(alert(&id.to_string(), 0, None)), (false, None));
        }
        let (is_new, dropped) = queue.push(alert("0", 0, Some(1)));
        assert!(is_new && dropped == Some(alert("0", 0, None)));
        assert_eq!(queue.waiting().len(), MOST);
    }
}
