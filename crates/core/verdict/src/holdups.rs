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
    over: Vec<(Straggler, (u64, u64))>,
}

#[derive(Debug)]
struct Span {
    first_step: u64,
    last_step: u64,
    last_at: Option<RankNs>,
    told: bool,
}

impl Holdups {
    /// An operation was slow, in `step` of the job.
    pub(crate) fn slow(&mut self, step: u64) {
        let new = Span { first_step: step, last_step: step, last_at: None, told: false };
        let span = self.now.get_or_insert(new);
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
            self.over.extend(communication.straggler().map(|found| (found, steps)));
            self.over.sort_by(|(a, _), (b, _)| b.cost_s.total_cmp(&a.cost_s));
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
        Some(straggler(&found, scene, "c0".to_owned(), steps, true))
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
            Some((communication.straggler()?, (span.first_step, span.last_step), true))
        });
        let over = self.over.iter().map(|(found, steps)| (found.clone(), *steps, false));
        let told = now.into_iter().chain(over);
        let told =
            told.filter(|(found, ..)| !stages_seen || found.cause != Cause::NotEntered);
        told.zip(0..)
            .map(|((found, steps, open), at)| {
                straggler(&found, scene, format!("c{at}"), steps, open)
            })
            .collect()
    }
}
