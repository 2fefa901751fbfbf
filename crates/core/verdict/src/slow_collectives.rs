use std::collections::VecDeque;

use collective::Communication;
use incident::straggler;
use model::{Finding, HoldUp, JobContext, RankNs, Straggler};

/// Seconds in which slow operations cost little after which what made them slow is over; Mycroft's
/// (2025) period of detection.
const OVER_AFTER_S: f64 = 10.0;
/// Seconds after which slow operations that cost little by then were nothing. Ours.
const WEATHER_S: f64 = 1.0;
/// Seconds from one reading of what they cost to the next.
const READ_EVERY_S: f64 = 0.1;
/// Spans that are kept, the costliest.
const MAX_SPANS: usize = 64;

/// Spans of slow operations, and who made them slow.
#[derive(Debug)]
pub(crate) struct SlowCollectives {
    /// Share of the time that slow operations must cost.
    share_min: f64,
    now: Option<Span>,
    over: Vec<(u64, Straggler, (u64, u64))>,
    /// Spans so far, of all starts of the job.
    spans: u64,
}

#[derive(Debug)]
struct Span {
    number: u64,
    first_step: u64,
    last_step: u64,
    /// When it was looked at first.
    first_at: Option<RankNs>,
    /// What it had cost since then, lately.
    cost_s: VecDeque<(RankNs, f64)>,
    /// Whether it has cost enough lately to be reported, and whether it was.
    is_much: bool,
    reported: bool,
}

impl Span {
    /// Reads what it has cost by now, which takes a while with many ranks, now and then; whether it
    /// is over.
    fn is_over(&mut self, at: RankNs, communication: &Communication, share_min: f64) -> bool {
        // Slow operations bring a step and no time: a span begins with its first look.
        let age_s = at.seconds_since(*self.first_at.get_or_insert(at));
        let last_at = self.cost_s.back().map(|(last_at, _)| *last_at);
        if last_at.is_some_and(|last_at| at.seconds_since(last_at) < READ_EVERY_S) {
            return false;
        }
        // The first reading counts as zero: what began the span has cost something by now.
        let cost_s = communication.slow_s();
        self.cost_s
            .push_back((at, if last_at.is_none() { 0.0 } else { cost_s }));
        // One reading from before the period stays: what the period cost is counted from it.
        while self
            .cost_s
            .get(1)
            .is_some_and(|(then, _)| at.seconds_since(*then) >= OVER_AFTER_S)
        {
            self.cost_s.pop_front();
        }
        let (since, before_s) = self.cost_s.front().copied().unwrap_or((at, 0.0));
        let lately_s = cost_s - before_s;
        // Of the whole period, also where the span is younger: a burst of a second reports nothing.
        self.is_much = lately_s >= share_min * OVER_AFTER_S;
        lately_s < share_min * at.seconds_since(since).max(WEATHER_S)
            && age_s
                >= if self.reported {
                    OVER_AFTER_S
                } else {
                    WEATHER_S
                }
    }
}

impl SlowCollectives {
    pub(crate) fn new(share_min: f64) -> Self {
        Self {
            share_min,
            now: None,
            over: Vec::new(),
            spans: 0,
        }
    }

    /// An operation was slow, in `step` of the job.
    pub(crate) fn slow(&mut self, step: u64) {
        let spans = &mut self.spans;
        let span = self.now.get_or_insert_with(|| {
            *spans += 1;
            Span {
                number: *spans,
                first_step: step,
                last_step: step,
                first_at: None,
                cost_s: VecDeque::new(),
                is_much: false,
                reported: false,
            }
        });
        span.last_step = step;
    }

    /// Ranks were looked at; what is to be said of them now.
    pub(crate) fn look(
        &mut self,
        at: RankNs,
        communication: &mut Communication,
        context: JobContext<'_>,
    ) -> Option<Finding> {
        let span = self.now.as_mut()?;
        if span.is_over(at, communication, self.share_min) {
            let steps = (span.first_step, span.last_step);
            // Before the blame is forgotten below: afterwards nobody is named.
            let found = communication.straggler().filter(|_| span.reported);
            self.over
                .extend(found.map(|found| (span.number, found, steps)));
            self.over
                .sort_by(|(_, a, _), (_, b, _)| b.cost_s.total_cmp(&a.cost_s));
            self.over.truncate(MAX_SPANS);
            self.now = None;
            // The next span blames the ranks that make that one slow.
            communication.forgive();
            return None;
        }
        if span.reported || !span.is_much {
            return None;
        }
        let found = communication.straggler()?;
        span.reported = true;
        let steps = (span.first_step, span.last_step);
        Some(straggler(
            &found,
            context,
            format!("c{}", span.number),
            steps,
            true,
        ))
    }

    /// The job is started over; no number is given twice.
    pub(crate) fn restart(&mut self) {
        *self = Self {
            spans: self.spans,
            ..Self::new(self.share_min)
        };
    }

    /// All that was found, what goes on first.
    ///
    /// Who enters late is left out if stages were seen: they say more of it.
    pub(crate) fn findings(
        &self,
        communication: &Communication,
        context: JobContext<'_>,
        stages_seen: bool,
    ) -> Vec<Finding> {
        let now = self
            .now
            .as_ref()
            .filter(|span| span.reported)
            .and_then(|span| {
                let steps = (span.first_step, span.last_step);
                Some((span.number, communication.straggler()?, steps, true))
            });
        let over = self
            .over
            .iter()
            .map(|(number, found, steps)| (*number, found.clone(), *steps, false));
        now.into_iter()
            .chain(over)
            .filter(|(_, found, ..)| !stages_seen || found.cause != HoldUp::NotEntered)
            .map(|(number, found, steps, open)| {
                straggler(&found, context, format!("c{number}"), steps, open)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use collective::HangSettings;
    use model::{CollectiveOp, Communicator, Operation, Slowness, StageNames};

    use super::*;

    const RANKS: u32 = 4;

    const fn ns(ms: u64) -> RankNs {
        RankNs(ms * 1_000_000)
    }

    /// A communicator of all ranks, in which nothing happened yet.
    fn ring() -> Communication {
        let mut communication = Communication::new(HangSettings::default());
        for rank in 0..RANKS {
            let (name, size) = ("ring".to_owned(), RANKS);
            communication.join(
                rank,
                &Communicator {
                    hash: 7,
                    name,
                    rank,
                    size,
                },
            );
        }
        communication
    }

    /// Looks every second at operations of which one in five takes `lost_s` longer, from step 5 to
    /// 40, and from then on `then_lost_s`.
    fn spans(lost_s: f64, then_lost_s: f64) -> Vec<(String, u64, u64)> {
        let (names, hosts) = (StageNames::default(), BTreeMap::new());
        let seen = (0..RANKS).collect();
        let context = JobContext::new(&names, &hosts, &seen);
        let mut communication = ring();
        let mut slow_collectives = SlowCollectives::new(0.05);
        for step in 0..80 {
            let lost_s = if step < 40 { lost_s } else { then_lost_s };
            let slow = Slowness {
                took_s: 0.1 + lost_s,
                usual_s: 0.1,
                of_channels: false,
            };
            if step % 5 == 0 && lost_s > 0.0 {
                for rank in 0..RANKS {
                    communication.slow(rank, 7, slow);
                }
                slow_collectives.slow(step);
            }
            for look in 0..10 {
                let at = ns(1000 * step + 100 * look);
                for rank in 0..RANKS {
                    let operation = Operation {
                        communicator: 7,
                        op: CollectiveOp::from_name("ALLREDUCE"),
                        sequence: step,
                        bytes: 1,
                        begun_at: ns(1000 * step),
                        ended_at: None,
                        may_have_ended: false,
                        flows: Vec::new(),
                    };
                    let open = (rank != 2).then_some(operation);
                    if let Some(operation) = &open {
                        communication.suspect(rank, operation);
                    }
                    communication.look(rank, at, open.into_iter().collect(), &[]);
                }
                slow_collectives.look(at, &mut communication, context);
            }
        }
        let found = slow_collectives.findings(&communication, context, false);
        found
            .into_iter()
            .map(|it| (it.id, it.first_step, it.last_step))
            .collect()
    }

    #[test]
    fn what_costs_little_is_weather_and_no_onset_of_what_follows() {
        assert_eq!(spans(0.04, 0.04), []);
        let [(_, first, last)] = &spans(0.04, 2.0)[..] else {
            panic!("one")
        };
        assert_eq!((*first, *last), (40, 75));
        let [(_, first, last)] = &spans(2.0, 0.04)[..] else {
            panic!("one")
        };
        // It takes as long as operations are compared until it is over.
        assert!(*first == 0 && (35..=45).contains(last), "{first} to {last}");
    }

    #[test]
    fn each_span_has_a_number_of_its_own_whatever_it_costs() {
        let (names, hosts) = (StageNames::default(), BTreeMap::new());
        let seen = (0..RANKS).collect();
        let context = JobContext::new(&names, &hosts, &seen);
        let mut communication = ring();
        let mut slow_collectives = SlowCollectives::new(0.05);
        // Ranks 1 and 2 come late to one operation each, the second one longer.
        for (sequence, late, looks) in [(0, 1, 20), (1, 2, 40)] {
            let begun_ms = sequence * 100_000;
            let took_s = looks as f64 / 10.0;
            let slow = Slowness {
                took_s,
                usual_s: 0.1,
                of_channels: false,
            };
            communication.slow(0, 7, slow);
            slow_collectives.slow(sequence);
            let operation = Operation {
                communicator: 7,
                op: CollectiveOp::from_name("ALLREDUCE"),
                sequence,
                bytes: 1,
                begun_at: ns(begun_ms),
                ended_at: None,
                may_have_ended: false,
                flows: Vec::new(),
            };
            for look in 0..looks {
                let at = ns(begun_ms + 100 * look);
                for rank in 0..RANKS {
                    let open = (rank != late).then(|| operation.clone());
                    if let Some(operation) = &open {
                        communication.suspect(rank, operation);
                    }
                    communication.look(rank, at, open.into_iter().collect(), &[]);
                }
                slow_collectives.look(at, &mut communication, context);
            }
            let over = ns(begun_ms + 50_000);
            for rank in 0..RANKS {
                communication.look(rank, over, Vec::new(), std::slice::from_ref(&operation));
            }
            slow_collectives.look(over, &mut communication, context);
        }
        let found = slow_collectives.findings(&communication, context, false);
        let spans: Vec<_> = found
            .iter()
            .map(|it| (&*it.id, &it.subject.ranks[..]))
            .collect();
        assert_eq!(spans, [("c2", &[2][..]), ("c1", &[1][..])]);
    }
}
