use collective::{Cause, Communication, Straggler};
use incident::{Scene, straggler};
use model::{Incident, RankNs};

/// Seconds without a slow operation after which what made them slow is over; Mycroft's
/// (2025) period of detection.
const OVER_AFTER_S: f64 = 10.0;
/// Spans that are kept, the costliest.
const MAX_SPANS: usize = 64;

/// Spans of slow operations, and who made them slow.
#[derive(Debug, Default)]
pub(crate) struct Holdups {
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
    last_at: Option<RankNs>,
    told: bool,
}

impl Holdups {
    /// An operation was slow, in `step` of the job.
    pub(crate) fn slow(&mut self, step: u64) {
        let spans = &mut self.spans;
        let span = self.now.get_or_insert_with(|| {
            *spans += 1;
            let (number, first_step, last_step) = (*spans, step, step);
            Span { number, first_step, last_step, last_at: None, told: false }
        });
        span.last_step = step;
        span.last_at = None;
    }

    /// Ranks were looked at; what is to be said of them now.
    pub(crate) fn look(
        &mut self,
        at: RankNs,
        communication: &mut Communication,
        scene: Scene<'_>,
    ) -> Option<Incident> {
        let span = self.now.as_mut()?;
        let last_at = *span.last_at.get_or_insert(at);
        if at.seconds_since(last_at) >= OVER_AFTER_S {
            let steps = (span.first_step, span.last_step);
            let found = communication.straggler();
            self.over.extend(found.map(|found| (span.number, found, steps)));
            self.over.sort_by(|(_, a, _), (_, b, _)| b.cost_s.total_cmp(&a.cost_s));
            self.over.truncate(MAX_SPANS);
            self.now = None;
            communication.forgive();
            return None;
        }
        if span.told {
            return None;
        }
        let found = communication.straggler()?;
        span.told = true;
        let steps = (span.first_step, span.last_step);
        Some(straggler(&found, scene, format!("c{}", span.number), steps, true))
    }

    /// The job is started over; no number is given twice.
    pub(crate) fn restart(&mut self) {
        *self = Self { spans: self.spans, ..Self::default() };
    }

    /// All that was found, what goes on first.
    ///
    /// Who enters late is left out if stages were seen: they say more of it.
    pub(crate) fn incidents(
        &self,
        communication: &Communication,
        scene: Scene<'_>,
        stages_seen: bool,
    ) -> Vec<Incident> {
        let now = self.now.as_ref().and_then(|span| {
            let steps = (span.first_step, span.last_step);
            Some((span.number, communication.straggler()?, steps, true))
        });
        let over = self.over.iter();
        let over =
            over.map(|(number, found, steps)| (*number, found.clone(), *steps, false));
        let told = now.into_iter().chain(over);
        let told = told
            .filter(|(_, found, ..)| !stages_seen || found.cause != Cause::NotEntered);
        told.map(|(number, found, steps, open)| {
            straggler(&found, scene, format!("c{number}"), steps, open)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use collective::{HangSettings, Slow};
    use model::{CollectiveOp, Communicator, Operation, StageNames};

    use super::*;

    const RANKS: u32 = 4;

    const fn ns(ms: u64) -> RankNs {
        RankNs(ms * 1_000_000)
    }

    #[test]
    fn each_span_has_a_number_of_its_own_whatever_it_costs() {
        let (names, hosts) = (StageNames::default(), BTreeMap::new());
        let seen = (0..RANKS).collect();
        let scene = Scene { names: &names, hosts: &hosts, seen: &seen, ended: false };
        let mut communication = Communication::new(HangSettings::default());
        for rank in 0..RANKS {
            let (name, size) = ("ring".to_owned(), RANKS);
            communication.join(rank, &Communicator { hash: 7, name, rank, size });
        }
        let mut holdups = Holdups::default();
        // Ranks 1 and 2 come late to one operation each, the second one longer.
        for (sequence, late, looks) in [(0, 1, 20), (1, 2, 40)] {
            let begun_ms = sequence * 100_000;
            let took_s = looks as f64 / 10.0;
            let slow = Slow { took_s, usual_s: 0.1, of_channels: false };
            communication.slow(7, slow);
            holdups.slow(sequence);
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
                holdups.look(at, &mut communication, scene);
            }
            let over = ns(begun_ms + 50_000);
            for rank in 0..RANKS {
                communication.look(
                    rank,
                    over,
                    Vec::new(),
                    std::slice::from_ref(&operation),
                );
            }
            holdups.look(over, &mut communication, scene);
        }
        let told = holdups.incidents(&communication, scene, false);
        let spans: Vec<_> =
            told.iter().map(|it| (&*it.id, &it.subject.ranks[..])).collect();
        assert_eq!(spans, [("c2", &[2][..]), ("c1", &[1][..])]);
    }
}
