//! Telling others of incidents: one message when one begins, one when it is over.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use model::{Incident, Severity};
use serde_json::{Value, json};
use ureq::tls::TlsConfig;

use crate::keeper::seconds_now;
use crate::store::write_whole;

/// An incident that does not go on for so long is over; one that comes back sooner was not.
const OVER_AFTER: Duration = Duration::from_secs(30);
/// One that comes back again and again must stay away longer and longer: each time it comes back
/// doubles the time, up to this.
const OVER_AFTER_AT_MOST: Duration = Duration::from_mins(15);
/// Messages that may wait for whoever is told.
const QUEUE: usize = 1024;
/// How often a message is sent, and the wait before the second time; it doubles.
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// How long one sending may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Until when Alertmanager takes an incident to go on if nobody says more.
const GOES_ON_S: u64 = 24 * 3600;
/// What was announced of a job and is not over, in its folder.
pub(crate) const ANNOUNCED: &str = "announced.json";

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

/// One message.
#[derive(Debug)]
struct Message {
    job: String,
    incident: Incident,
    begun_s: u64,
    ended_s: Option<u64>,
}

/// The way to the thread that posts.
#[derive(Clone, Debug)]
pub(crate) struct Messenger(SyncSender<Message>);

impl Messenger {
    /// Begins to post to `webhook`; `log` is told what could not be.
    pub(crate) fn start(webhook: Webhook, log: fn(&str)) -> io::Result<Self> {
        let (sender, messages) = sync_channel(QUEUE);
        let builder = thread::Builder::new().name("laggard-alerts".to_owned());
        builder.spawn(move || post_all(&webhook, &messages, log))?;
        Ok(Self(sender))
    }
}

fn post_all(webhook: &Webhook, messages: &Receiver<Message>, log: fn(&str)) {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .proxy(None)
        .tls_config(webhook.tls.clone())
        .max_redirects(0)
        .build();
    let http: ureq::Agent = config.into();
    for message in messages {
        let body = message.body(webhook.form).to_string();
        let mut wait = FIRST_WAIT;
        for tried in 1..=TRIES {
            let request =
                http.post(&webhook.url).header("content-type", "application/json");
            let Err(error) = request.send(&body) else { break };
            if tried == TRIES {
                // The address may hold a secret; the error does not repeat it.
                log(&format!("an alert of job {} was not taken: {error}", message.job));
            } else {
                thread::sleep(wait);
                wait *= 2;
            }
        }
    }
}

impl Message {
    fn body(&self, form: WebhookForm) -> Value {
        let Self { job, incident, begun_s, ended_s } = self;
        let kind = incident.kind.name();
        match form {
            WebhookForm::Json => json!({
                "schema": "laggard.alert/1",
                "event": if ended_s.is_some() { "ended" } else { "opened" },
                "job": job,
                "begun_s": begun_s,
                "ended_s": ended_s,
                "incident": incident,
            }),
            WebhookForm::Alertmanager => json!([{
                "labels": {
                    "alertname": format!("laggard_{kind}"),
                    "training_job": job,
                    "incident": incident.id,
                    "severity": incident.severity,
                },
                "annotations": { "summary": incident.text, "description": incident.advice },
                "startsAt": rfc3339(*begun_s),
                "endsAt": rfc3339(ended_s.unwrap_or(begun_s + GOES_ON_S)),
            }]),
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
}

/// A time as Alertmanager writes it.
pub(crate) fn rfc3339(since_1970_s: u64) -> String {
    let (days, second) = (since_1970_s / 86_400, since_1970_s % 86_400);
    // Years from March on, so that the leap day is the last of its year; 0000-03-01 was
    // 719,468 days before 1970-01-01.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// How long an incident that came back so often must stay away to be over.
fn over_after(returns: u32) -> Duration {
    OVER_AFTER.saturating_mul(1 << returns.min(16)).min(OVER_AFTER_AT_MOST)
}

/// What was told of the incidents of one job.
#[derive(Debug)]
pub(crate) struct Alerts {
    messenger: Messenger,
    job: String,
    /// What was announced and is not over, and when it was.
    going_on: BTreeMap<String, (u64, Incident)>,
    quiet_since: BTreeMap<String, Instant>,
    /// How often one began again.
    returns: BTreeMap<String, u32>,
    file: PathBuf,
}

impl Alerts {
    /// Goes on where an earlier collector was.
    pub(crate) fn open(
        messenger: Messenger,
        job: &str,
        folder: &std::path::Path,
    ) -> Self {
        let file = folder.join(ANNOUNCED);
        let announced = fs::read(&file).ok();
        let going_on = announced.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Self {
            messenger,
            job: job.to_owned(),
            going_on: going_on.unwrap_or_default(),
            quiet_since: BTreeMap::new(),
            returns: BTreeMap::new(),
            file,
        }
    }

    /// Whether an incident may be over soon.
    pub(crate) fn waits(&self) -> bool {
        !self.quiet_since.is_empty()
    }

    /// Tells what is new: `incidents` are all of the job, none of which goes on once it has
    /// ended. In a silence what begins is not told yet; what is over is.
    pub(crate) fn look(
        &mut self,
        incidents: &[Incident],
        has_ended: bool,
        is_silent: bool,
        now: Instant,
    ) {
        let mut changed = false;
        let open = incidents.iter().filter(|incident| {
            incident.open && incident.severity > Severity::Info && !has_ended
        });
        for incident in open {
            if self.quiet_since.remove(&incident.id).is_some() {
                *self.returns.entry(incident.id.clone()).or_default() += 1;
            }
            if !is_silent && !self.going_on.contains_key(&incident.id) {
                let begun_s = seconds_now();
                let returns = self.returns.entry(incident.id.clone());
                returns.and_modify(|returns| *returns += 1).or_insert(0);
                self.going_on.insert(incident.id.clone(), (begun_s, incident.clone()));
                self.send(incident.clone(), begun_s, None);
                changed = true;
            }
        }
        let is_open = |id: &str| {
            !has_ended
                && incidents.iter().any(|incident| incident.id == id && incident.open)
        };
        let quiet: Vec<String> =
            self.going_on.keys().filter(|id| !is_open(id)).cloned().collect();
        for id in quiet {
            let since = *self.quiet_since.entry(id.clone()).or_insert(now);
            let returns = self.returns.get(&id).copied().unwrap_or(0);
            if has_ended || now.duration_since(since) >= over_after(returns) {
                self.quiet_since.remove(&id);
                let Some((begun_s, last)) = self.going_on.remove(&id) else { continue };
                let now = incidents.iter().find(|incident| incident.id == id).cloned();
                self.send(now.unwrap_or(last), begun_s, Some(seconds_now()));
                changed = true;
            }
        }
        if changed && let Ok(bytes) = serde_json::to_vec(&self.going_on) {
            // Not written: after a restart it is told once more.
            drop(write_whole(&self.file, &bytes));
        }
    }

    fn send(&self, incident: Incident, begun_s: u64, ended_s: Option<u64>) {
        let job = self.job.clone();
        // Nobody takes them: the verdict has it all the same.
        drop(self.messenger.0.try_send(Message { job, incident, begun_s, ended_s }));
    }
}

#[cfg(test)]
mod tests {
    use model::{IncidentKind, Input, Mark, MarkKind, Pace, RankNs, Ranks, Subject};

    use super::*;

    fn incident(open: bool) -> Incident {
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
            stacks: Vec::new(),
            progress: Vec::new(),
            text: "late".to_owned(),
            evidence: Vec::new(),
            advice: "look".to_owned(),
        }
    }

    /// What is told while an incident comes and goes, second by second.
    fn told(
        seconds: u64,
        is_open: impl Fn(u64) -> bool,
        is_silent: impl Fn(u64) -> bool,
    ) -> String {
        let folder = tempfile::tempdir().unwrap();
        let (sender, messages) = sync_channel(1000);
        let mut alerts = Alerts::open(Messenger(sender), "job", folder.path());
        let begin = Instant::now();
        let mut told = Vec::new();
        for second in 0..seconds {
            let now = begin + Duration::from_secs(second);
            alerts.look(&[incident(is_open(second))], false, is_silent(second), now);
            told.extend(messages.try_iter().map(|message| match message.ended_s {
                None => format!("begins {second}"),
                Some(_) => format!("over {second}"),
            }));
        }
        told.join(", ")
    }

    #[test]
    fn what_comes_and_goes_is_told_less_and_less() {
        let never = |_| false;
        assert_eq!(told(300, |at| at < 100, never), "begins 0, over 130");
        // Back within half a minute: it never was over.
        assert_eq!(told(300, |at| at % 50 < 30, never), "begins 0");
        // A minute here and a minute away, for two hours: told anew once.
        let told = told(7200, |at| at / 60 % 2 == 0, never);
        assert_eq!(told, "begins 0, over 90, begins 120");
    }

    #[test]
    fn what_begins_in_a_silence_is_told_at_its_end_if_it_goes_on() {
        let silent = |at| (10..100).contains(&at);
        assert_eq!(told(300, |at| (20..80).contains(&at), silent), "");
        assert_eq!(
            told(300, |at| (20..150).contains(&at), silent),
            "begins 100, over 180"
        );
        assert_eq!(told(300, |at| at < 50, silent), "begins 0, over 80");
    }

    /// What is told of a job whose rank 1 comes 4 s late to a collective, and whose rank 2 does not
    /// come to the next one, 5 s later.
    fn told_of_two_hangs() -> Vec<(String, Vec<u32>, &'static str)> {
        let folder = tempfile::tempdir().unwrap();
        let (sender, messages) = sync_channel(1000);
        let mut alerts = Alerts::open(Messenger(sender), "job", folder.path());
        let mut job = verdict::Job::new("job", "run", verdict::Settings::default());
        let members = (0..4).collect();
        job.take(Input::Group { group: 1, name: "default".to_owned(), members });
        let ns = |second: u64| RankNs(second * 1_000_000_000);
        let (begin, mut told) = (Instant::now(), Vec::new());
        for second in 0..200 {
            let ranks = match second {
                10 => vec![(0, 1), (2, 1), (3, 1)],
                14 => vec![(1, 1)],
                19 => vec![(0, 2), (1, 2), (3, 2)],
                60 => vec![(2, 2)],
                _ => Vec::new(),
            };
            for (rank, number) in ranks {
                let args = [1, 0, number, 0, 0];
                let (at, kind) = (ns(second), MarkKind::CollectiveIssue);
                let mark =
                    Mark { at, step: 40, kind, on_loop_thread: true, code: 3, args };
                job.take(Input::Mark { rank, mark });
            }
            if (12..14).contains(&second) || (20..60).contains(&second) {
                job.take(Input::Quiet { at: ns(second) });
                job.take(Input::StacksTold);
            }
            let incidents = job.verdict().incidents;
            alerts.look(&incidents, false, false, begin + Duration::from_secs(second));
            told.extend(messages.try_iter().map(|message| {
                let event = if message.ended_s.is_some() { "ended" } else { "opened" };
                (message.incident.id, message.incident.subject.ranks, event)
            }));
        }
        told
    }

    #[test]
    fn another_hang_soon_after_the_last_is_announced_and_each_has_its_end() {
        let told = told_of_two_hangs();
        let named: Vec<_> =
            told.iter().map(|(_, ranks, event)| (ranks[0], *event)).collect();
        assert_eq!(named, [(1, "opened"), (2, "opened"), (1, "ended"), (2, "ended")]);
        assert_eq!((&told[0].0, &told[1].0), (&told[2].0, &told[3].0));
        assert_ne!(told[0].0, told[1].0);
    }

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        let days =
            [(0, "1970-01-01"), (951_782_400, "2000-02-29"), (951_868_800, "2000-03-01")];
        for (second, day) in days {
            assert_eq!(rfc3339(second), format!("{day}T00:00:00Z"));
        }
        assert_eq!(rfc3339(4_107_542_399), "2100-02-28T23:59:59Z");
        assert_eq!(rfc3339(1_795_269_165), "2026-11-21T13:52:45Z");
    }
}
