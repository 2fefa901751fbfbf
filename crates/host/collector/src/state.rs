use model::{IncidentKind, Severity, Verdict};
use serde::{Deserialize, Serialize};

/// How a job is, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It makes no progress.
    Hung,
    /// Something holds it back now.
    Slow,
    /// None of its hosts was heard of for long.
    Silent,
    /// Too little was recorded yet.
    Starting,
    /// Nothing was found, and part of what could hold it back was not observed.
    Unclear,
    /// Nothing holds it back.
    Healthy,
    /// All its hosts have said that it is over.
    Ended,
}

impl JobState {
    /// All states.
    pub const ALL: [Self; 7] = [
        Self::Hung,
        Self::Slow,
        Self::Silent,
        Self::Starting,
        Self::Unclear,
        Self::Healthy,
        Self::Ended,
    ];

    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Hung => "hung",
            Self::Slow => "slow",
            Self::Silent => "silent",
            Self::Starting => "starting",
            Self::Unclear => "unclear",
            Self::Healthy => "healthy",
            Self::Ended => "ended",
        }
    }

    pub(crate) fn of(verdict: &Verdict, hosts: usize, silent: usize, ended: bool) -> Self {
        let open: Vec<_> = verdict.incidents.iter().filter(|it| it.open).collect();
        // The end outranks what was open when it came: nobody can put that right any more.
        if ended {
            Self::Ended
        // Before what is open: whether it still holds nobody knows.
        } else if hosts > 0 && silent == hosts {
            Self::Silent
        } else if open
            .iter()
            .any(|incident| incident.kind == IncidentKind::Hang)
        {
            Self::Hung
        } else if open
            .iter()
            .any(|incident| incident.severity > Severity::Info)
        {
            Self::Slow
        // After incidents: a hang may come before the first step.
        } else if verdict.job.analysed_steps == 0 {
            Self::Starting
        } else if verdict.unobserved().is_some() {
            Self::Unclear
        } else {
            Self::Healthy
        }
    }
}

/// A job in the list of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListedJob {
    /// Its id.
    pub id: String,
    /// How it is.
    pub state: JobState,
    /// What to read first: the costliest incident.
    pub headline: Option<String>,
    /// Its severity.
    pub severity: Option<Severity>,
    /// Ranks seen.
    pub ranks: usize,
    /// Hosts that have sent anything.
    pub hosts: usize,
    /// Hosts that were not heard of for long and did not deregister.
    pub silent_hosts: Vec<String>,
    /// Steps seen.
    pub steps: u64,
    /// Exposed time of all analysed steps, in seconds.
    pub exposed_s: f64,
    /// Incidents, over ones included.
    pub incidents: usize,
    /// Incidents that go on.
    pub open_incidents: usize,
    /// Records that were lost before they were analysed.
    pub lost_records: u64,
    /// When a host was last heard of, in seconds since 1970.
    pub last_seen_s: u64,
    /// Counts changes of the verdict.
    pub version: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerts::incident;

    #[test]
    fn a_job_whose_devices_are_not_observed_is_not_healthy() {
        let job = verdict::Job::new("job", model::Source::Marks, verdict::Settings::default());
        let mut verdict = job.verdict();
        let state = |verdict: &Verdict| JobState::of(verdict, 1, 0, false);
        assert_eq!(state(&verdict), JobState::Starting);
        verdict.job.analysed_steps = 100;
        assert_eq!(state(&verdict), JobState::Healthy);
        verdict.job.hosts_run_ahead = true;
        assert_eq!(state(&verdict), JobState::Unclear);
        verdict.job.sampled_steps = 10;
        assert_eq!(state(&verdict), JobState::Healthy);
        verdict.job.ambiguous_steps = 1;
        assert_eq!(state(&verdict), JobState::Unclear);
    }

    #[test]
    fn a_job_that_hangs_is_hung_whatever_else_is_slow() {
        let job = verdict::Job::new("job", model::Source::Marks, verdict::Settings::default());
        let mut verdict = job.verdict();
        let slow = incident(true);
        let mut hang = slow.clone();
        hang.kind = IncidentKind::Hang;
        verdict.incidents = vec![slow.clone(), hang.clone()];
        assert_eq!(JobState::of(&verdict, 1, 0, false), JobState::Hung);
        hang.open = false;
        verdict.incidents = vec![slow, hang];
        assert_eq!(JobState::of(&verdict, 1, 0, false), JobState::Slow);
        assert_eq!(JobState::of(&verdict, 1, 1, false), JobState::Silent);
        assert_eq!(JobState::of(&verdict, 1, 0, true), JobState::Ended);
    }
}
