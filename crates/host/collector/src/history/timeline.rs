//! Moments of steps, and so of incidents.

use std::collections::BTreeMap;
use std::ops::Range;

use model::Incident;

/// Spans kept of a job: a month of windows of 40 s each. When there are more, neighbours are
/// joined.
const SPANS: usize = 1 << 16;

/// Something, and when it was, in seconds since 1970.
#[derive(Clone, Debug)]
pub(crate) struct Dated<T> {
    pub(crate) what: T,
    pub(crate) begun_s: f64,
    /// `None` while it goes on.
    pub(crate) ended_s: Option<f64>,
}

impl<T> Dated<T> {
    /// The same moments of what it borrows.
    pub(crate) fn as_ref(&self) -> Dated<&T> {
        Dated {
            what: &self.what,
            begun_s: self.begun_s,
            ended_s: self.ended_s,
        }
    }
}

impl<T: Clone> Dated<&T> {
    /// The same moments of a copy.
    pub(crate) fn cloned(self) -> Dated<T> {
        let Self {
            what,
            begun_s,
            ended_s,
        } = self;
        Dated {
            what: what.clone(),
            begun_s,
            ended_s,
        }
    }
}

/// When incidents began and ended, in seconds since 1970, by id.
pub(crate) type Dates = BTreeMap<String, (f64, Option<f64>)>;

/// When the steps of a job were.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    spans: Vec<TimedSteps>,
    /// When incidents began and ended, as it was found when they were first seen: after a restart
    /// of the job other steps have the same numbers.
    known: Dates,
}

#[derive(Clone, Debug)]
struct TimedSteps {
    steps: Range<u64>,
    time_s: Range<f64>,
}

impl TimedSteps {
    /// Whether it was over by then: steps with the same numbers are of another start of the job, and
    /// not of another role in it.
    fn is_before(&self, begun_s: f64) -> bool {
        self.time_s.start < begun_s && self.time_s.end <= begun_s
    }
}

impl Timeline {
    /// Notes when some steps were. Those of another role in the same steps are known already.
    pub(crate) fn note(&mut self, steps: Range<u64>, time_s: Range<f64>) {
        if self
            .spans
            .last()
            .is_some_and(|last| last.steps.start == steps.start && !last.is_before(time_s.start))
        {
            return;
        }
        self.spans.push(TimedSteps { steps, time_s });
        if self.spans.len() > SPANS {
            let mut joined: Vec<TimedSteps> = Vec::with_capacity(SPANS);
            for (at, span) in self.spans.drain(..).enumerate() {
                match joined.last_mut() {
                    // Not over a restart of the job.
                    Some(last) if at % 2 == 1 && last.steps.end <= span.steps.start => {
                        last.steps.end = span.steps.end;
                        last.time_s.end = span.time_s.end;
                    }
                    _ => joined.push(span),
                }
            }
            self.spans = joined;
        }
    }

    /// Whether a step is one that the job has come to before: it was started again, and what is
    /// known of its incidents is to be dated first.
    pub(crate) fn starts_over(&self, first_step: u64, begun_s: f64) -> bool {
        self.spans.last().is_some_and(|last| {
            first_step < last.steps.start
                || first_step == last.steps.start && last.is_before(begun_s)
        })
    }

    /// When incidents began and ended.
    pub(crate) fn known(&self) -> &Dates {
        &self.known
    }

    /// When a step began, in the last start of the job that came to it; when the step before it
    /// ended if it was not seen.
    fn begin_s(&self, step: u64) -> Option<f64> {
        let span = self.spans.iter().rfind(|span| span.steps.start <= step)?;
        let TimedSteps { steps, time_s } = span;
        // A span may be joined from several, so its steps are taken as equally long. One after its
        // end did not close in a window: it stands at the end.
        let part = (step - steps.start) as f64 / (steps.end - steps.start).max(1) as f64;
        Some(time_s.start + part.min(1.0) * (time_s.end - time_s.start))
    }

    /// Says of each incident when it was; `job_begun_s` where nothing is known of its steps.
    pub(crate) fn date<'a>(
        &mut self,
        incidents: &'a [Incident],
        job_begun_s: f64,
    ) -> Vec<Dated<&'a Incident>> {
        // Anew each time: an incident that became a part of another has no dates of its own any
        // more.
        let mut known = BTreeMap::new();
        let mut dated = Vec::with_capacity(incidents.len());
        for incident in incidents {
            let before = self.known.get(&incident.id);
            let begun_s = match before {
                Some((begun_s, _)) => *begun_s,
                None => self.begin_s(incident.first_step).unwrap_or(job_begun_s),
            };
            // One that is open again has no end any more, and gets a new one.
            let ended_s = if incident.open {
                None
            } else {
                before.and_then(|(_, ended_s)| *ended_s).or_else(|| {
                    let after = self.begin_s(incident.last_step + 1);
                    Some(after.unwrap_or(job_begun_s).max(begun_s))
                })
            };
            known.insert(incident.id.clone(), (begun_s, ended_s));
            dated.push(Dated {
                what: incident,
                begun_s,
                ended_s,
            });
        }
        self.known = known;
        dated
    }
}

#[cfg(test)]
mod tests {
    use model::{IncidentKind, Pace, Ranks, Severity, Subject};

    use super::*;

    fn incident(id: &str, first_step: u64, last_step: u64, open: bool) -> Incident {
        Incident {
            id: id.to_owned(),
            kind: IncidentKind::Slow,
            severity: Severity::Warning,
            open,
            subject: Subject::default(),
            pace: Pace::Steady,
            first_step,
            last_step,
            victims: Ranks::default(),
            cost_s: 1.0,
            cost_gpu_s: 1.0,
            cost_share: 0.1,
            gain_alone_s: 1.0,
            next_in_line: Vec::new(),
            text: String::new(),
            evidence: Vec::new(),
            contradictions: Vec::new(),
            facts: Vec::new(),
            actions: Vec::new(),
            stacks: Vec::new(),
            progress: Vec::new(),
            advice: String::new(),
        }
    }

    fn dates(timeline: &mut Timeline, incident: Incident) -> (f64, Option<f64>) {
        let incidents = [incident];
        let dated = timeline.date(&incidents, 5.0);
        (dated[0].begun_s, dated[0].ended_s)
    }

    #[test]
    fn an_incident_begins_and_ends_with_its_steps() {
        let mut timeline = Timeline::default();
        assert_eq!(dates(&mut timeline, incident("a", 3, 4, true)), (5.0, None));
        timeline.note(10..20, 100.0..110.0);
        timeline.note(10..20, 100.0..110.0);
        timeline.note(20..30, 110.0..130.0);
        assert_eq!(
            dates(&mut timeline, incident("b", 15, 19, true)),
            (105.0, None)
        );
        // What was found once stays.
        timeline.note(0..20, 200.0..220.0);
        let over = dates(&mut timeline, incident("b", 15, 19, false));
        assert_eq!(over, (105.0, Some(220.0)));
        assert_eq!(
            dates(&mut timeline, incident("c", 15, 19, true)),
            (215.0, None)
        );
    }

    #[test]
    fn a_job_that_crashes_in_its_first_window_again_and_again_is_dated_by_its_last_start() {
        let mut timeline = Timeline::default();
        timeline.note(0..10, 100.0..110.0);
        // Another role, which begins and ends a little later.
        assert!(!timeline.starts_over(0, 101.0));
        timeline.note(0..10, 101.0..111.0);
        assert_eq!(timeline.begin_s(5), Some(105.0));
        assert!(timeline.starts_over(0, 160.0));
        timeline.note(0..10, 160.0..170.0);
        assert_eq!(timeline.begin_s(5), Some(165.0));
    }

    #[test]
    fn a_long_job_keeps_its_moments_in_bounded_memory() {
        let mut timeline = Timeline::default();
        let windows = 3 * SPANS as u64;
        for at in 0..windows {
            timeline.note(at * 10..at * 10 + 10, at as f64..(at + 1) as f64);
        }
        assert!(timeline.spans.len() <= SPANS);
        for step in [0, 5, windows * 5, windows * 10 - 1] {
            let found = timeline.begin_s(step).unwrap();
            assert!((found - step as f64 / 10.0).abs() < 1e-9, "{step}: {found}");
        }
    }
}
