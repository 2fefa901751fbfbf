//! The way of messages to whoever is told of incidents: each is kept until it is taken.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, io, mem, thread};

use chrono::{DateTime, SecondsFormat, Utc};
use model::Incident;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use ureq::tls::TlsConfig;

use crate::keeper::seconds_now;
use crate::metrics::Metrics;
use crate::store::write_whole;

/// Messages that may wait for whoever is told.
const MOST: usize = 1024;
/// Waits after a message was not taken double from the first to the last of these.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LAST_WAIT: Duration = Duration::from_mins(1);
/// Nobody wants to hear of what was longer ago.
const GIVE_UP_AFTER_S: u64 = 24 * 3600;
/// How long one sending may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often Alertmanager is told of what goes on, and for how long it takes that to hold: it
/// keeps alerts in memory.
const REPEAT_EVERY: Duration = Duration::from_mins(1);
const HOLDS_FOR_S: u64 = 5 * 60;
/// Messages that were not taken yet, in the data folder.
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

/// One message: that an incident has begun, or is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) job: String,
    pub(crate) incident: Incident,
    pub(crate) begun_s: u64,
    pub(crate) ended_s: Option<u64>,
}

/// The way to the thread that posts.
#[derive(Clone, Debug)]
pub(crate) struct Messenger(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    open: Mutex<Open>,
    wake: Condvar,
    file: PathBuf,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Open {
    /// Oldest first.
    waiting: VecDeque<Message>,
    /// By job and incident, what was announced and is not over.
    going_on: BTreeMap<(String, String), Message>,
}

impl Messenger {
    /// Takes up what an earlier collector did not get rid of; nobody is told yet.
    pub(crate) fn open(data: &Path, metrics: Arc<Metrics>) -> Self {
        let file = data.join(FILE);
        let waiting = fs::read(&file).ok();
        let waiting = waiting.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let open = Open { waiting: waiting.unwrap_or_default(), ..Open::default() };
        metrics.count_waiting_alerts(open.waiting.len());
        let (open, wake) = (Mutex::new(open), Condvar::new());
        Self(Arc::new(Shared { open, wake, file, metrics }))
    }

    /// Begins to post to `webhook`; `log` is told what could not be.
    pub(crate) fn start(&self, webhook: Webhook, log: fn(&str)) -> io::Result<()> {
        let shared = Arc::clone(&self.0);
        let builder = thread::Builder::new().name("laggard-alerts".to_owned());
        builder.spawn(move || Poster::new(shared, webhook, log).run())?;
        Ok(())
    }

    /// Tells a message: on disk when it returns, unless that is full.
    pub(crate) fn tell(&self, message: Message) {
        let mut open = self.0.open();
        let has_ended = message.ended_s.is_some();
        if has_ended {
            open.going_on.remove(&message.key());
        } else {
            open.going_on.insert(message.key(), message.clone());
        }
        // After a kill between this and what the job knows it is told again.
        let last = open.waiting.iter().rfind(|last| last.key() == message.key());
        if last.is_none_or(|last| last.ended_s.is_some() != has_ended) {
            open.waiting.push_back(message);
            if open.waiting.len() > MOST {
                open.waiting.pop_front();
                self.0.metrics.alerts_failed.inc();
            }
            self.0.write(&open.waiting);
            self.0.wake.notify_all();
        }
    }

    /// Says that what was announced earlier goes on.
    pub(crate) fn goes_on(&self, message: Message) {
        self.0.open().going_on.insert(message.key(), message);
    }

    /// Says that somebody else tells of a job.
    pub(crate) fn leave(&self, job: &str) {
        self.0.open().going_on.retain(|(told, _), _| told != job);
    }

    /// What was not taken yet.
    #[cfg(test)]
    pub(crate) fn take_waiting(&self) -> Vec<Message> {
        self.0.open().waiting.drain(..).collect()
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, Open> {
        // Whatever panicked, messages stay messages.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, waiting: &VecDeque<Message>) {
        self.metrics.count_waiting_alerts(waiting.len());
        // On a full disk they are in memory all the same.
        drop(serde_json::to_vec(waiting).map(|bytes| write_whole(&self.file, &bytes)));
    }

    /// The next message if there is one, at the latest after `patience`.
    fn next(&self, patience: Duration) -> Option<Message> {
        let open = self.open();
        let (open, _) = self
            .wake
            .wait_timeout_while(open, patience, |open| open.waiting.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        open.waiting.front().cloned()
    }

    /// Forgets a message that is to be sent no more.
    fn done(&self, message: &Message) {
        let mut open = self.open();
        // The oldest may have been dropped meanwhile.
        if open.waiting.front().is_some_and(|front| front == message) {
            open.waiting.pop_front();
        }
        self.write(&open.waiting);
    }
}

/// What became of a message.
enum Outcome {
    Taken,
    /// It will never be.
    Refused(String),
    Later(String),
}

/// Posts messages, one after the other.
struct Poster {
    shared: Arc<Shared>,
    webhook: Webhook,
    http: ureq::Agent,
    log: fn(&str),
    wait: Duration,
    /// Whether somebody was told that messages are not taken.
    complained: bool,
    repeated: Instant,
}

impl Poster {
    fn new(shared: Arc<Shared>, webhook: Webhook, log: fn(&str)) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .proxy(None)
            .tls_config(webhook.tls.clone())
            .max_redirects(0)
            .build();
        let (http, wait) = (config.into(), FIRST_WAIT);
        let (complained, repeated) = (false, Instant::now());
        Self { shared, webhook, http, log, wait, complained, repeated }
    }

    fn run(&mut self) {
        loop {
            let next = self.shared.next(REPEAT_EVERY);
            if self.repeated.elapsed() >= REPEAT_EVERY {
                self.repeat();
            }
            if let Some(message) = next {
                self.send(&message);
            }
        }
    }

    /// Tells Alertmanager of all that goes on, as it may have forgotten.
    fn repeat(&mut self) {
        self.repeated = Instant::now();
        let open = self.shared.open();
        let waits =
            |key: &(String, String)| open.waiting.iter().any(|one| one.key() == *key);
        let told = open.going_on.iter().filter(|(key, _)| !waits(key));
        let alerts: Vec<Value> = told.map(|(_, message)| message.alert()).collect();
        drop(open);
        if self.webhook.form == WebhookForm::Alertmanager && !alerts.is_empty() {
            // In a minute they are told again.
            drop(self.post(&Value::from(alerts)));
        }
    }

    fn send(&mut self, message: &Message) {
        let Message { job, .. } = message;
        let metrics = Arc::clone(&self.shared.metrics);
        match self.post(&message.body(self.webhook.form)) {
            Outcome::Taken => {
                self.shared.done(message);
                metrics.alerts_sent.inc();
                self.wait = FIRST_WAIT;
                if mem::take(&mut self.complained) {
                    (self.log)("alerts are taken again");
                }
            }
            Outcome::Refused(reason) => {
                metrics.alerts_failed.inc();
                (self.log)(&format!("an alert of job {job} is refused: {reason}"));
                self.shared.done(message);
            }
            Outcome::Later(reason) => {
                metrics.alerts_failed.inc();
                if !mem::replace(&mut self.complained, true) {
                    let what = format!("an alert of job {job} was not taken: {reason}");
                    (self.log)(&format!("{what}; it is tried again"));
                }
                let told_s = message.ended_s.unwrap_or(message.begun_s);
                if seconds_now().saturating_sub(told_s) > GIVE_UP_AFTER_S {
                    (self.log)(&format!("an alert of job {job} was given up"));
                    self.shared.done(message);
                }
                thread::sleep(self.wait);
                self.wait = (self.wait * 2).min(LAST_WAIT);
            }
        }
    }

    fn post(&self, body: &Value) -> Outcome {
        let request =
            self.http.post(&self.webhook.url).header("content-type", "application/json");
        // The address may hold a secret; errors do not repeat it.
        match request.send(body.to_string()) {
            Ok(answer) if answer.status().is_success() => Outcome::Taken,
            Ok(answer) => {
                let reason = answer.status().to_string();
                match answer.status().as_u16() {
                    400 | 413 | 422 => Outcome::Refused(reason),
                    _ => Outcome::Later(reason),
                }
            }
            Err(error) => Outcome::Later(error.to_string()),
        }
    }
}

impl Message {
    fn key(&self) -> (String, String) {
        (self.job.clone(), self.incident.id.clone())
    }

    fn body(&self, form: WebhookForm) -> Value {
        let Self { job, incident, begun_s, ended_s } = self;
        match form {
            WebhookForm::Json => json!({
                "schema": "laggard.alert/1",
                "event": if ended_s.is_some() { "ended" } else { "opened" },
                "job": job,
                "begun_s": begun_s,
                "ended_s": ended_s,
                "incident": incident,
            }),
            WebhookForm::Alertmanager => json!([self.alert()]),
            WebhookForm::Slack => {
                let over = if ended_s.is_some() { "over: " } else { "" };
                let text = format!("{over}job {job}: {}", incident.text);
                // The characters that mean something there.
                let text =
                    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
                json!({ "text": text })
            }
        }
    }

    /// As Alertmanager takes it.
    fn alert(&self) -> Value {
        let Self { job, incident, begun_s, ended_s } = self;
        json!({
            "labels": {
                "alertname": format!("laggard_{}", incident.kind.name()),
                "training_job": job,
                "incident": incident.id,
                "severity": incident.severity,
            },
            "annotations": { "summary": incident.text, "description": incident.advice },
            "startsAt": rfc3339(*begun_s),
            "endsAt": rfc3339(ended_s.unwrap_or_else(|| seconds_now() + HOLDS_FOR_S)),
        })
    }
}

/// A moment of the calendar, in UTC.
pub(crate) fn moment(since_1970_s: u64) -> DateTime<Utc> {
    let since_1970_s = i64::try_from(since_1970_s).unwrap_or_default();
    DateTime::from_timestamp(since_1970_s, 0).unwrap_or_default()
}

/// A time as Alertmanager writes it.
fn rfc3339(since_1970_s: u64) -> String {
    moment(since_1970_s).to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        let days =
            [(0, "1970-01-01"), (951_782_400, "2000-02-29"), (951_868_800, "2000-03-01")];
        for (second, day) in days {
            assert_eq!(rfc3339(second), format!("{day}T00:00:00Z"));
        }
        assert_eq!(rfc3339(4_107_542_399), "2100-02-28T23:59:59Z");
        assert_eq!(rfc3339(1_795_269_165), "2026-11-21T13:52:45Z");
        assert_eq!(rfc3339(u64::MAX), "1970-01-01T00:00:00Z");
    }
}
