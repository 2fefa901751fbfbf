//! What Prometheus reads; docs/service.md lists it.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::state::{JobState, ListedJob};

/// Seconds of an append, from a fast disk to one that hangs.
const APPEND_S: [f64; 8] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfJob {
    job: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobInState {
    job: String,
    state: &'static str,
}

type Gauges = Family<OfJob, Gauge>;

/// Counters of the collector, and how its jobs are.
pub(crate) struct Metrics {
    registry: Registry,
    /// Held while the gauges of jobs are filled and written: of two that read at once one would
    /// find those that the other has just cleared.
    filling: Mutex<()>,
    batches: Counter,
    duplicates: Counter,
    refused: Family<Reason, Counter>,
    bytes: Counter,
    failed: Counter,
    append_s: Histogram,
    /// Files of the history that were put where it is kept.
    pub(crate) history_written: Counter,
    /// Times that failed.
    pub(crate) history_failed: Counter,
    /// Files that wait.
    pub(crate) history_waiting: Gauge,
    /// Messages of incidents that were taken.
    pub(crate) alerts_sent: Counter,
    /// Times that one was not.
    pub(crate) alerts_failed: Counter,
    /// Messages that wait.
    alerts_waiting: Gauge,
    jobs: Family<StateLabel, Gauge>,
    states: Family<JobInState, Gauge>,
    ranks: Gauges,
    steps: Gauges,
    open: Gauges,
    lost: Gauges,
    exposed_s: Family<OfJob, Gauge<f64, AtomicU64>>,
    last_seen_s: Gauges,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("laggard"),
            filling: Mutex::new(()),
            batches: Counter::default(),
            duplicates: Counter::default(),
            refused: Family::default(),
            bytes: Counter::default(),
            failed: Counter::default(),
            append_s: Histogram::new(APPEND_S),
            history_written: Counter::default(),
            history_failed: Counter::default(),
            history_waiting: Gauge::default(),
            alerts_sent: Counter::default(),
            alerts_failed: Counter::default(),
            alerts_waiting: Gauge::default(),
            jobs: Family::default(),
            states: Family::default(),
            ranks: Family::default(),
            steps: Family::default(),
            open: Family::default(),
            lost: Family::default(),
            exposed_s: Family::default(),
            last_seen_s: Family::default(),
        };
        let Self {
            registry,
            batches,
            duplicates,
            refused,
            bytes,
            ..
        } = &mut metrics;
        // The registry gets a clone, which shares its value with the one that is counted up here.
        // Counters are named without `_total`, which the encoder appends.
        registry.register("batches", "Batches that are kept", batches.clone());
        registry.register(
            "batches_duplicate",
            "Batches that were kept before",
            duplicates.clone(),
        );
        registry.register(
            "batches_refused",
            "Batches that were not taken",
            refused.clone(),
        );
        let unit = Unit::Bytes;
        registry.register_with_unit("stored", "Written to disk", unit, bytes.clone());
        let Self {
            registry,
            failed,
            append_s,
            ..
        } = &mut metrics;
        registry.register(
            "appends_failed",
            "Groups of batches the disk refused",
            failed.clone(),
        );
        let what = "Writing a group of batches to disk";
        registry.register_with_unit("append", what, Unit::Seconds, append_s.clone());
        let Self {
            registry,
            history_written,
            history_failed,
            history_waiting,
            ..
        } = &mut metrics;
        let what = "Files of the history that were put where it is kept";
        registry.register("history_written", what, history_written.clone());
        let what = "Times that files of the history could not be put there";
        registry.register("history_failed", what, history_failed.clone());
        let what = "Files of the history that wait to be put there";
        registry.register("history_waiting", what, history_waiting.clone());
        let Self {
            registry,
            alerts_sent,
            alerts_failed,
            alerts_waiting,
            ..
        } = &mut metrics;
        let what = "Messages of incidents that were taken";
        registry.register("alerts_sent", what, alerts_sent.clone());
        let what = "Times that a message of an incident was not taken";
        registry.register("alerts_failed", what, alerts_failed.clone());
        let what = "Messages of incidents that wait to be taken";
        registry.register("alerts_waiting", what, alerts_waiting.clone());
        let Self {
            registry,
            jobs,
            states,
            ranks,
            steps,
            ..
        } = &mut metrics;
        registry.register("jobs", "Jobs in each state", jobs.clone());
        let what = "The state a job is in: 1, and no sample of the others";
        registry.register("job_state", what, states.clone());
        registry.register("job_ranks", "Ranks seen", ranks.clone());
        registry.register("job_steps", "Steps seen", steps.clone());
        let Self {
            registry,
            open,
            lost,
            exposed_s,
            last_seen_s,
            ..
        } = &mut metrics;
        registry.register("job_open_incidents", "Incidents that go on", open.clone());
        let what = "Records that were lost before they were analysed";
        registry.register("job_lost_records", what, lost.clone());
        let what = "Exposed time of all analysed steps";
        registry.register_with_unit("job_exposed", what, Unit::Seconds, exposed_s.clone());
        let what = "When a host was last heard of, since 1970";
        let last_seen = last_seen_s.clone();
        registry.register_with_unit("job_last_seen_timestamp", what, Unit::Seconds, last_seen);
        metrics
    }

    pub(crate) fn kept(&self, is_new: bool) {
        if is_new {
            self.batches.inc()
        } else {
            self.duplicates.inc()
        };
    }

    pub(crate) fn count_waiting_alerts(&self, count: usize) {
        self.alerts_waiting
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&Reason { reason }).inc();
    }

    pub(crate) fn appended(&self, took: Duration, is_whole: bool, bytes: usize) {
        self.append_s.observe(took.as_secs_f64());
        if is_whole {
            self.bytes.inc_by(bytes as u64);
        } else {
            self.failed.inc();
        }
    }

    /// The text Prometheus reads, with jobs as they are now. Jobs that have ended are counted
    /// only.
    pub(crate) fn text(&self, jobs: &[ListedJob]) -> Result<String, fmt::Error> {
        let _filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        // Jobs that are gone must not be exported any more.
        for gauges in [
            &self.ranks,
            &self.steps,
            &self.open,
            &self.lost,
            &self.last_seen_s,
        ] {
            gauges.clear();
        }
        self.exposed_s.clear();
        self.states.clear();
        for state in JobState::ALL {
            // Also of states that no job is in, or the last count of one would stay.
            let count = jobs.iter().filter(|job| job.state == state).count();
            self.jobs
                .get_or_create(&StateLabel {
                    state: state.word(),
                })
                .set(number(count as u64));
        }
        for job in jobs.iter().filter(|job| job.state != JobState::Ended) {
            let in_state = JobInState {
                job: job.id.clone(),
                state: job.state.word(),
            };
            self.states.get_or_create(&in_state).set(1);
            let of = OfJob {
                job: job.id.clone(),
            };
            self.ranks.get_or_create(&of).set(number(job.ranks as u64));
            self.steps.get_or_create(&of).set(number(job.steps));
            self.open
                .get_or_create(&of)
                .set(number(job.open_incidents as u64));
            self.lost.get_or_create(&of).set(number(job.lost_records));
            self.last_seen_s
                .get_or_create(&of)
                .set(number(job.last_seen_s));
            self.exposed_s.get_or_create(&of).set(job.exposed_s);
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// OpenMetrics as Prometheus' older text format, for a client that does not ask for the new one:
/// there counters are announced by the name their samples have.
pub(crate) fn classic(openmetrics: &str) -> String {
    let counters: Vec<&str> = openmetrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::with_capacity(openmetrics.len());
    for line in openmetrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            // Only OpenMetrics has these two.
            (Some("#"), Some("UNIT" | "EOF"), ..) => {}
            (Some("#"), Some(what), Some(name), Some(rest)) if counters.contains(&name) => {
                text += &format!("# {what} {name}_total {rest}\n");
            }
            _ => text += &format!("{line}\n"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobHandle;

    #[test]
    fn who_reads_while_another_does_gets_all_jobs() {
        let metrics = Metrics::new();
        let jobs: Vec<ListedJob> = (0..50)
            .map(|at| JobHandle::new(&format!("job-{at}")).summary())
            .collect();
        let read = || {
            for _ in 0..50 {
                let text = metrics.text(&jobs).unwrap();
                assert_eq!(text.matches("\nlaggard_job_ranks{").count(), jobs.len());
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(read);
            scope.spawn(read);
        });
    }

    #[test]
    fn who_does_not_ask_for_openmetrics_gets_the_older_text() {
        let metrics = Metrics::new();
        metrics.kept(true);
        let text = metrics.text(&[]).unwrap();
        assert!(text.ends_with("# EOF\n") && text.contains("# TYPE laggard_batches counter\n"));
        let classic = classic(&text);
        let batches = "# HELP laggard_batches_total Batches that are kept.\n\
                       # TYPE laggard_batches_total counter\nlaggard_batches_total 1\n";
        assert!(classic.contains(batches), "{classic}");
        assert!(!classic.contains("# UNIT") && !classic.contains("# EOF"));
        assert!(classic.contains("# TYPE laggard_append_seconds histogram\n"));
        let samples = |text: &str| -> Vec<String> {
            text.lines()
                .filter(|line| !line.starts_with('#'))
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(samples(&classic), samples(&text));
    }
}
