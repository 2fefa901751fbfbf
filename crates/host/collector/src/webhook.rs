//! Posting alerts to a webhook, from a thread of its own.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, io, thread};

use chrono::SecondsFormat;
use serde_json::{Value, json};
use tracing::debug;
use ureq::tls::TlsConfig;

use crate::alert_queue::{Alert, AlertQueue, Delivery, PostOutcome, Settled};
use crate::clock::{Now, calendar};
use crate::metrics::Metrics;
use crate::store::write_whole;

/// How long one sending may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// For how long Alertmanager takes an alert to hold unless it comes again: it keeps alerts in
/// memory, and is sent those that go on every minute.
const HOLDS_FOR_S: u64 = 5 * 60;
/// Alerts that were not taken yet, in the data folder.
const FILE: &str = "alerts.json";

/// What a message looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookForm {
    /// `laggard.alert/1`: the incident as in the verdict.
    Json,
    /// Alertmanager's API, version 2.
    Alertmanager,
    /// A line of text, as Slack and those like it take it.
    Slack,
}

/// Whom to tell.
#[derive(Clone, Debug)]
pub struct Webhook {
    /// Where messages are posted.
    pub url: String,
    /// What they look like.
    pub form: WebhookForm,
    /// Whom to trust if it is an address with TLS.
    pub tls: TlsConfig,
}

/// The way of alerts to the thread that posts them.
#[derive(Clone, Debug)]
pub(crate) struct AlertOutbox(Arc<OutboxState>);

#[derive(Debug)]
struct OutboxState {
    queue: Mutex<AlertQueue>,
    wake: Condvar,
    file: PathBuf,
    metrics: Arc<Metrics>,
}

impl AlertOutbox {
    /// Takes up what an earlier collector did not get rid of; nothing is posted yet.
    pub(crate) fn open(data: &Path, form: WebhookForm, metrics: Arc<Metrics>) -> Self {
        let file = data.join(FILE);
        let waiting = fs::read(&file)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        // Alertmanager drops an alert at its `endsAt`; the others would show each repetition as
        // news.
        let repeats = form == WebhookForm::Alertmanager;
        let queue = AlertQueue::new(waiting, repeats, Now::read());
        metrics.count_waiting_alerts(queue.waiting().len());
        let (queue, wake) = (Mutex::new(queue), Condvar::new());
        Self(Arc::new(OutboxState {
            queue,
            wake,
            file,
            metrics,
        }))
    }

    /// Begins to post to `webhook`; `log` is told what could not be.
    pub(crate) fn start(&self, webhook: Webhook, log: fn(&str)) -> io::Result<()> {
        let shared = Arc::clone(&self.0);
        let builder = thread::Builder::new().name("laggard-alerts".to_owned());
        builder.spawn(move || WebhookSender::new(shared, webhook, log).run())?;
        Ok(())
    }

    /// Adds an alert: on disk when it returns, unless that is full.
    pub(crate) fn push(&self, alert: Alert) {
        let mut queue = self.0.queue();
        let (is_new, dropped) = queue.push(alert);
        if dropped.is_some() {
            self.0.metrics.alerts_failed.inc();
        }
        if is_new {
            self.0.write(&queue);
            self.0.wake.notify_all();
        }
    }

    /// Notes that what was announced earlier goes on.
    pub(crate) fn resume(&self, alert: Alert) {
        self.0.queue().resume(alert);
    }

    /// Notes that somebody else tells of a job.
    pub(crate) fn forget(&self, job: &str) {
        self.0.queue().forget(job);
    }
}

impl OutboxState {
    fn queue(&self) -> MutexGuard<'_, AlertQueue> {
        // Whatever panicked, alerts stay alerts.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, queue: &AlertQueue) {
        let waiting = queue.waiting();
        self.metrics.count_waiting_alerts(waiting.len());
        // On a full disk they are in memory all the same.
        drop(serde_json::to_vec(waiting).map(|bytes| write_whole(&self.file, &bytes)));
    }

    /// What to send next, once there is something.
    fn next(&self) -> Delivery {
        let mut queue = self.queue();
        loop {
            let now = Now::read();
            if let Some(delivery) = queue.next(now) {
                return delivery;
            }
            let patience = queue.patience(now);
            (queue, _) = self
                .wake
                .wait_timeout(queue, patience)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Posts alerts, one after the other.
struct WebhookSender {
    shared: Arc<OutboxState>,
    webhook: Webhook,
    http: ureq::Agent,
    log: fn(&str),
}

impl WebhookSender {
    fn new(shared: Arc<OutboxState>, webhook: Webhook, log: fn(&str)) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            // The status decides whether an alert waits or is dropped.
            .http_status_as_error(false)
            .proxy(None)
            .tls_config(webhook.tls.clone())
            // A redirect after a POST would become a GET, and the alert count as taken.
            .max_redirects(0)
            .build();
        Self {
            shared,
            webhook,
            http: config.into(),
            log,
        }
    }

    fn run(&self) {
        loop {
            match self.shared.next() {
                Delivery::Next(alert) => self.send(&alert),
                Delivery::Repeat(alerts) => {
                    debug!(alerts = alerts.len(), "open incidents are posted again");
                    let now = Now::read();
                    let alerts: Vec<_> = alerts
                        .iter()
                        .map(|alert| alertmanager(alert, now))
                        .collect();
                    // In a minute they are sent again.
                    drop(self.post(&Value::from(alerts)));
                }
            }
        }
    }

    fn send(&self, alert: &Alert) {
        let Alert { job, .. } = alert;
        let (outcome, reason) = self.post(&body(alert, self.webhook.form, Now::read()));
        let settled = {
            let mut queue = self.shared.queue();
            let settled = queue.settle(alert, outcome, Now::read());
            // What waits is on disk as it is.
            if !matches!(settled, Settled::Waits { .. }) {
                self.shared.write(&queue);
            }
            settled
        };
        let incident = &alert.incident.id;
        debug!(job, incident, reason, ?settled, "alert posted");
        let metrics = &self.shared.metrics;
        match settled {
            Settled::Sent { .. } => metrics.alerts_sent.inc(),
            _ => metrics.alerts_failed.inc(),
        };
        match settled {
            Settled::Sent { recovered: true } => (self.log)("alerts are accepted again"),
            Settled::Sent { recovered: false } | Settled::Waits { is_first: false } => {}
            Settled::Dropped => {
                (self.log)(&format!("an alert of job {job} is refused: {reason}"));
            }
            Settled::Waits { is_first: true } => (self.log)(&format!(
                "an alert of job {job} was not accepted: {reason}; it is retried"
            )),
            Settled::GivenUp => {
                (self.log)(&format!("an alert of job {job} was given up"));
            }
        }
    }

    /// What became of it, and why.
    fn post(&self, body: &Value) -> (PostOutcome, String) {
        let request = self
            .http
            .post(&self.webhook.url)
            .header("content-type", "application/json");
        // The address may hold a secret; errors do not repeat it.
        match request.send(body.to_string()) {
            Ok(answer) => {
                let status = answer.status();
                let outcome = match status.as_u16() {
                    200..300 => PostOutcome::Taken,
                    // The message itself is wrong. Others, such as 401 and 404, last until somebody
                    // changes a setting: the alert waits for that.
                    400 | 413 | 422 => PostOutcome::Refused,
                    _ => PostOutcome::Later,
                };
                (outcome, status.to_string())
            }
            Err(error) => (PostOutcome::Later, error.to_string()),
        }
    }
}

fn body(alert: &Alert, form: WebhookForm, now: Now) -> Value {
    let Alert {
        job,
        incident,
        begun_s,
        ended_s,
    } = alert;
    match form {
        WebhookForm::Json => json!({
            "schema": "laggard.alert/1",
            "event": if ended_s.is_some() { "ended" } else { "opened" },
            "job": job,
            "begun_s": begun_s,
            "ended_s": ended_s,
            "incident": incident,
        }),
        WebhookForm::Alertmanager => json!([alertmanager(alert, now)]),
        WebhookForm::Slack => {
            let over = if ended_s.is_some() { "over: " } else { "" };
            let text = format!("{over}job {job}: {}", incident.text);
            // The characters that mean something there.
            let text = text
                .replace('&', "&amp;")
                .replace('<', "&lt;")
                .replace('>', "&gt;");
            json!({ "text": text })
        }
    }
}

/// As Alertmanager takes it.
fn alertmanager(alert: &Alert, now: Now) -> Value {
    let Alert {
        job,
        incident,
        begun_s,
        ended_s,
    } = alert;
    json!({
        "labels": {
            "alertname": format!("laggard_{}", incident.kind.name()),
            // Not `job`: in Prometheus and Alertmanager that is the label of who was scraped.
            "training_job": job,
            "incident": incident.id,
            "severity": incident.severity,
        },
        "annotations": { "summary": incident.text, "description": incident.advice },
        "startsAt": rfc3339(*begun_s),
        "endsAt": rfc3339(ended_s.unwrap_or_else(|| now.seconds() + HOLDS_FOR_S)),
    })
}

/// A time as Alertmanager writes it.
fn rfc3339(since_1970_s: u64) -> String {
    calendar(since_1970_s).to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        let days = [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
        ];
        for (second, day) in days {
            assert_eq!(rfc3339(second), format!("{day}T00:00:00Z"));
        }
        assert_eq!(rfc3339(4_107_542_399), "2100-02-28T23:59:59Z");
        assert_eq!(rfc3339(1_795_269_165), "2026-11-21T13:52:45Z");
        assert_eq!(rfc3339(u64::MAX), "1970-01-01T00:00:00Z");
    }
}
