//! Which incidents of a job are announced: one alert when one begins, one when it is over.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use model::{Incident, Severity};
use serde::{Deserialize, Serialize};

use crate::alert_queue::Alert;
use crate::clock::Now;

/// An incident that does not go on for so long is over; one that comes back sooner was not.
const OVER_AFTER: Duration = Duration::from_secs(30);
/// One that comes back again and again must stay away longer and longer: each time it comes back
/// doubles the time, up to this.
const OVER_AFTER_AT_MOST: Duration = Duration::from_mins(15);
/// What was announced of a job and is not over, in its folder.
pub(crate) const ANNOUNCED: &str = "announced.json";

/// How long an incident that came back so often must stay away to be over.
fn over_after(returns: u32) -> Duration {
    OVER_AFTER
        // Five returns reach the longest time already. A shift by 32 or more would overflow.
        .saturating_mul(1 << returns.min(16))
        .min(OVER_AFTER_AT_MOST)
}

/// What was announced of the incidents of one job.
#[derive(Debug)]
pub(crate) struct JobAlerts {
    job: String,
    announced: Announced,
    quiet_since: BTreeMap<String, Instant>,
}

/// What outlives the collector.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Announced {
    /// What was announced and is not over, and when it was.
    going_on: BTreeMap<String, (u64, Incident)>,
    /// How often one began again.
    returns: BTreeMap<String, u32>,
}

/// What a look at the incidents of a job led to.
#[derive(Debug, Default)]
pub(crate) struct Announcements {
    /// What is to be sent.
    pub(crate) alerts: Vec<Alert>,
    /// What is to be written down if anything changed, for [`JobAlerts::new`].
    pub(crate) announced: Option<Vec<u8>>,
}

impl JobAlerts {
    /// Goes on from what an earlier collector wrote down, if there was one.
    pub(crate) fn new(job: &str, announced: Option<&[u8]>) -> Self {
        // Damaged, or none: what goes on is announced once more.
        let announced = announced
            .and_then(|bytes| serde_json::from_slice(bytes).ok())
            .unwrap_or_default();
        Self {
            job: job.to_owned(),
            announced,
            quiet_since: BTreeMap::new(),
        }
    }

    /// What was announced and is not over.
    pub(crate) fn ongoing(&self) -> Vec<Alert> {
        self.announced
            .going_on
            .values()
            .map(|(begun_s, what)| self.alert(what.clone(), *begun_s, None))
            .collect()
    }

    /// Whether an incident may be over soon.
    pub(crate) fn waits(&self) -> bool {
        !self.quiet_since.is_empty()
    }

    /// Announces what is new: `incidents` are all of the job, none of which goes on once it has
    /// ended. In a silence what begins is not announced yet; what is over is.
    pub(crate) fn look(
        &mut self,
        incidents: &[Incident],
        has_ended: bool,
        is_silent: bool,
        now: Now,
    ) -> Announcements {
        let mut found = Announcements::default();
        let mut changed = false;
        for incident in incidents {
            // Info is for those who look, not for those who are called.
            if !incident.open || incident.severity <= Severity::Info || has_ended {
                continue;
            }
            let Announced { going_on, returns } = &mut self.announced;
            // It was away and not over: the next time it must stay away longer.
            if self.quiet_since.remove(&incident.id).is_some() {
                *returns.entry(incident.id.clone()).or_default() += 1;
                changed = true;
            }
            if !is_silent && !going_on.contains_key(&incident.id) {
                let begun_s = now.seconds();
                let returns = returns.entry(incident.id.clone());
                // Also of one that was over: what comes and goes is announced less and less.
                returns.and_modify(|returns| *returns += 1).or_insert(0);
                going_on.insert(incident.id.clone(), (begun_s, incident.clone()));
                found
                    .alerts
                    .push(self.alert(incident.clone(), begun_s, None));
                changed = true;
            }
        }
        let quiet: Vec<String> = self
            .announced
            .going_on
            .keys()
            .filter(|id| has_ended || !incidents.iter().any(|it| it.id == **id && it.open))
            .cloned()
            .collect();
        for id in quiet {
            let since = *self.quiet_since.entry(id.clone()).or_insert(now.at);
            let returns = self.announced.returns.get(&id).copied().unwrap_or(0);
            if has_ended || now.since(since) >= over_after(returns) {
                self.quiet_since.remove(&id);
                let ended = self.announced.going_on.remove(&id);
                let Some((begun_s, last)) = ended else {
                    continue;
                };
                // It may have become part of another; then what was announced is all there is.
                let incident = incidents
                    .iter()
                    .find(|it| it.id == id)
                    .cloned()
                    .unwrap_or(last);
                found
                    .alerts
                    .push(self.alert(incident, begun_s, Some(now.seconds())));
                changed = true;
            }
        }
        // Only then: a job is looked at twice a second, and this goes to the disk.
        if changed {
            found.announced = serde_json::to_vec(&self.announced).ok();
        }
        found
    }

    fn alert(&self, incident: Incident, begun_s: u64, ended_s: Option<u64>) -> Alert {
        Alert {
            job: self.job.clone(),
            incident,
            begun_s,
            ended_s,
        }
    }
}

#[cfg(test)]
pub(crate) use tests::incident;

#[cfg(test)]
mod tests {
    use model::{
        CollectiveIssue, CollectiveOp, Event, IncidentKind, Input, Mark, Pace, RankNs, Ranks,
        Source, Subject,
    };

    use super::*;

    pub(crate) fn incident(open: bool) -> Incident {
        Incident {
            id: "i1".to_owned(),
            kind: IncidentKind::Slow,
            severity: Severity::Warning,
            open,
            subject: Subject::default(),
            pace: Pace::Steady,
            first_step: 0,
            last_step: 9,
            victims: Ranks::default(),
            cost_s: 1.0,
            cost_gpu_s: 0.0,
            cost_share: 0.5,
            gain_alone_s: 1.0,
            next_in_line: Vec::new(),
            contradictions: Vec::new(),
            facts: Vec::new(),
            actions: Vec::new(),
            stacks: Vec::new(),
            progress: Vec::new(),
            text: "late".to_owned(),
            evidence: Vec::new(),
            advice: "look".to_owned(),
        }
    }

    /// What is sent while an incident comes and goes, second by second.
    fn reported(
        seconds: u64,
        is_open: impl Fn(u64) -> bool,
        is_silent: impl Fn(u64) -> bool,
    ) -> String {
        let mut alerts = JobAlerts::new("job", None);
        let begin = Now::read();
        let mut reported = Vec::new();
        for second in 0..seconds {
            let now = begin + Duration::from_secs(second);
            let incidents = [incident(is_open(second))];
            let found = alerts.look(&incidents, false, is_silent(second), now);
            reported.extend(found.alerts.into_iter().map(|alert| match alert.ended_s {
                None => format!("begins {second}"),
                Some(_) => format!("over {second}"),
            }));
        }
        reported.join(", ")
    }

    #[test]
    fn what_comes_and_goes_is_reported_less_and_less() {
        let never = |_| false;
        assert_eq!(reported(300, |at| at < 100, never), "begins 0, over 130");
        // Back within half a minute: it never was over.
        assert_eq!(reported(300, |at| at % 50 < 30, never), "begins 0");
        // A minute here and a minute away, for two hours: sent anew once.
        let reported = reported(7200, |at| at / 60 % 2 == 0, never);
        assert_eq!(reported, "begins 0, over 90, begins 120");
    }

    #[test]
    fn what_begins_in_a_silence_is_reported_at_its_end_if_it_goes_on() {
        let silent = |at| (10..100).contains(&at);
        assert_eq!(reported(300, |at| (20..80).contains(&at), silent), "");
        assert_eq!(
            reported(300, |at| (20..150).contains(&at), silent),
            "begins 100, over 180"
        );
        assert_eq!(reported(300, |at| at < 50, silent), "begins 0, over 80");
    }

    /// What is sent of a job whose rank 1 comes 4 s late to a collective, and whose rank 2 does not
    /// come to the next one, 5 s later.
    fn reported_of_two_hangs() -> Vec<(String, Vec<u32>, &'static str)> {
        let mut alerts = JobAlerts::new("job", None);
        let mut job = verdict::Job::new("job", Source::Run, verdict::Settings::default());
        let members = (0..4).collect();
        job.take(Input::Group {
            group: 1,
            name: "default".to_owned(),
            members,
        });
        let ns = |second: u64| RankNs(second * 1_000_000_000);
        let (begin, mut reported) = (Now::read(), Vec::new());
        for second in 0..200 {
            let ranks = match second {
                // Of all of them something is seen.
                10 => vec![(0, 1), (1, 1), (2, 1), (3, 1), (0, 2), (2, 2), (3, 2)],
                14 => vec![(1, 2)],
                19 => vec![(0, 3), (1, 3), (3, 3)],
                60 => vec![(2, 3)],
                _ => Vec::new(),
            };
            for (rank, number) in ranks {
                let sum = CollectiveIssue::new(CollectiveOp::ALLREDUCE, 1, number);
                let (at, event) = (ns(second), Event::CollectiveIssue(sum));
                let mark = Mark {
                    at,
                    step: 40,
                    on_loop_thread: true,
                    event,
                };
                job.take(Input::Mark { rank, mark });
            }
            if (12..14).contains(&second) || (20..60).contains(&second) {
                job.take(Input::NoProgress { at: ns(second) });
                job.take(Input::StacksComplete);
            }
            let incidents = job.verdict().incidents;
            let now = begin + Duration::from_secs(second);
            let found = alerts.look(&incidents, false, false, now);
            reported.extend(found.alerts.into_iter().map(|alert| {
                let event = if alert.ended_s.is_some() {
                    "ended"
                } else {
                    "opened"
                };
                (alert.incident.id, alert.incident.subject.ranks, event)
            }));
        }
        reported
    }

    #[test]
    fn another_hang_soon_after_the_last_is_announced_and_each_has_its_end() {
        let reported = reported_of_two_hangs();
        let named: Vec<_> = reported
            .iter()
            .map(|(_, ranks, event)| (ranks[0], *event))
            .collect();
        assert_eq!(
            named,
            [(1, "opened"), (2, "opened"), (1, "ended"), (2, "ended")]
        );
        assert_eq!(
            (&reported[0].0, &reported[1].0),
            (&reported[2].0, &reported[3].0)
        );
        assert_ne!(reported[0].0, reported[1].0);
    }
}
