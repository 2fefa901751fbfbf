//! A worker whose disk, clock and agents are played: days and thousands of faults take seconds.
//!
//! Whatever happens between, what was answered for is kept, nothing counts twice, and the verdict
//! is that of a job nothing happened to. `LAGGARD_TEST_FAULTS` sets the number of jobs,
//! `LAGGARD_TEST_SEED` the first of them.

use std::env;
use std::fmt::Write;
use std::path::Path;

use axum::body::Bytes;
use formats::{Limits, Recording, StoredError, input_line, load, pack_batch};
use model::{Input, RankNs};
use protocol::BatchHead;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::memory::MemoryBudget;
use crate::store;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_hours(1);

/// A batch as it is sent.
#[derive(Clone)]
pub(crate) struct PlayedBatch {
    body: Bytes,
    inputs: Vec<Input>,
    watermark: RankNs,
    last: bool,
}

impl PlayedBatch {
    fn of(inputs: &[Input], last: bool) -> Self {
        let (mut lines, mut watermark) = (Vec::new(), RankNs::default());
        for input in inputs {
            input_line(input, &mut lines).unwrap();
            watermark = watermark.max(input.at().unwrap_or_default());
        }
        let body = pack_batch(&BatchHead::new("boot", watermark, last), &lines).unwrap();
        Self {
            body: body.into(),
            inputs: inputs.to_vec(),
            watermark,
            last,
        }
    }
}

/// A job in batches, the last one last.
pub(crate) fn batches_of(inputs: &[Input], count: usize) -> Vec<PlayedBatch> {
    let parts = inputs.chunks(inputs.len().div_ceil(count));
    let last = parts.len() - 1;
    parts
        .enumerate()
        .map(|(at, part)| PlayedBatch::of(part, at == last))
        .collect()
}

/// A recorded job, up to its first so many inputs.
pub(crate) fn recorded(job: &str, most: usize) -> Vec<Input> {
    let jobs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../testdata/jobs");
    match load(&jobs.join(format!("{job}.jsonl.zst")), Limits::default()) {
        Ok(Recording::Journal(journal)) => journal.inputs().iter().take(most).cloned().collect(),
        other => panic!("no journal: {other:?}"),
    }
}

/// What the disk does with the next append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlayedDisk {
    Fine,
    /// It takes none of it.
    Full,
    /// The process is killed while so many thousandths of it are written.
    Killed(usize),
}

/// A job, its disk, and what came of it.
pub(crate) struct Played {
    pub(crate) now: Now,
    pub(crate) handle: Arc<JobHandle>,
    worker: JobWorker,
    budget: MemoryBudget,
    silences: Arc<Silences>,
    most_bytes: u64,
    kept: Vec<u8>,
    pub(crate) disk: PlayedDisk,
    /// How often it was started.
    pub(crate) starts: u32,
    announced: Option<Vec<u8>>,
    alerts: Vec<Alert>,
    windows: usize,
    pub(crate) has_exited: bool,
}

fn worker(
    now: Now,
    handle: &Arc<JobHandle>,
    silences: &Arc<Silences>,
    most_bytes: u64,
) -> JobWorker {
    let (handle, silences) = (Arc::clone(handle), Arc::clone(silences));
    let settings = Settings::default();
    JobWorker::new(handle, settings, Remember::Times, silences, most_bytes, now)
}

impl Played {
    /// A job nobody silences.
    pub(crate) fn new() -> Self {
        Self::silenced_in(Path::new("/no/folder"))
    }

    /// A job whose silences are kept in a folder.
    fn silenced_in(folder: &Path) -> Self {
        let now = Now::read();
        let silences = Arc::new(Silences::open(folder));
        let handle = Arc::new(JobHandle::new("job"));
        let most_bytes = 1 << 30;
        let mut kept = Vec::new();
        StoredEntry::of_job("job").write(&mut kept).unwrap();
        let mut played = Self {
            now,
            worker: worker(now, &handle, &silences, most_bytes),
            handle,
            budget: MemoryBudget::new(),
            silences,
            most_bytes,
            kept,
            disk: PlayedDisk::Fine,
            starts: 0,
            announced: None,
            alerts: Vec::new(),
            windows: 0,
            has_exited: false,
        };
        played.start_again();
        played
    }

    /// What a new process makes of what is kept.
    pub(crate) fn start_again(&mut self) {
        self.has_exited = false;
        self.starts += 1;
        self.handle = Arc::new(JobHandle::new("job"));
        self.worker = worker(self.now, &self.handle, &self.silences, self.most_bytes);
        let (worker, now) = (&mut self.worker, self.now);
        let read = store::read(self.kept.as_slice(), &mut |entry, batch| {
            drop(worker.replay(now, entry, batch));
        });
        let whole = match read {
            Ok(bytes) | Err((StoredError::Torn, bytes)) => bytes,
            Err((error, _)) => panic!("{error}"),
        };
        self.kept.truncate(usize::try_from(whole).unwrap());
        let alerts = JobAlerts::new("job", self.announced.as_deref());
        let effects = self.worker.ready(self.now, whole, Some(alerts));
        self.perform(effects);
    }

    fn step(&mut self, message: Message) {
        let effects = self.worker.step(self.now, message);
        self.perform(effects);
    }

    fn perform(&mut self, mut effects: Vec<Effect>) {
        while !effects.is_empty() {
            let mut next = None;
            for effect in mem::take(&mut effects) {
                match effect {
                    Effect::Append(entries) => match self.disk {
                        PlayedDisk::Fine => {
                            self.kept.extend_from_slice(&entries);
                            next = Some(Message::Appended(Ok(())));
                        }
                        PlayedDisk::Full => {
                            let full = io::ErrorKind::StorageFull.into();
                            next = Some(Message::Appended(Err(full)));
                        }
                        PlayedDisk::Killed(thousandths) => {
                            let bytes = entries.len() * thousandths / 1000;
                            self.kept.extend_from_slice(&entries[..bytes]);
                            self.disk = PlayedDisk::Fine;
                            return self.start_again();
                        }
                    },
                    Effect::Resume => next = Some(Message::Resume),
                    Effect::Answer(to, answer) => to.answer(answer),
                    Effect::Record(_, windows) => self.windows += windows.len(),
                    Effect::Publish(..) => {}
                    Effect::Alert(alert) => self.alerts.push(*alert),
                    Effect::Announced(bytes) => self.announced = Some(bytes),
                    Effect::Exit => self.has_exited = true,
                }
            }
            if let Some(message) = next {
                effects = self.worker.step(self.now, message);
            }
        }
    }

    /// Sends batches together; what is answered to each, `None` if nobody did.
    fn send(
        &mut self,
        row: Option<u64>,
        batches: &[(&str, usize, &PlayedBatch)],
    ) -> Vec<Option<BatchOutcome>> {
        let at_ns = self.now.nanoseconds();
        let batches = batches
            .iter()
            .map(|(session, at, sent)| (*session, *at, *sent, at_ns));
        self.hand(row, &batches.collect::<Vec<_>>())
    }

    /// The same of batches each of which came at some time, in nanoseconds since 1970.
    pub(crate) fn hand(
        &mut self,
        row: Option<u64>,
        batches: &[(&str, usize, &PlayedBatch, i64)],
    ) -> Vec<Option<BatchOutcome>> {
        let (mut pending, mut answers) = (Vec::new(), Vec::new());
        for (session, sequence, sent, at_ns) in batches {
            let (asker, answered) = PendingAnswer::new(Span::none());
            answers.push(answered);
            let batch = Batch {
                host: "h".to_owned(),
                session: (*session).to_owned(),
                sequence: *sequence as u64,
                shift_ns: 0,
                watermark: sent.watermark,
                last: sent.last,
                inputs: sent.inputs.clone(),
            };
            let (boot, now_ns, body) = ("boot".to_owned(), 1000, sent.body.clone());
            let (at_ns, memory) = (*at_ns, self.budget.none());
            pending.push(PendingBatch {
                batch,
                boot,
                now_ns,
                at_ns,
                body,
                asker,
                row,
                memory,
            });
        }
        self.step(Message::Batches(pending));
        answers
            .into_iter()
            .map(|mut answered| answered.try_recv().ok())
            .collect()
    }

    pub(crate) fn send_one(
        &mut self,
        session: &str,
        sequence: usize,
        sent: &PlayedBatch,
    ) -> Option<BatchOutcome> {
        self.send(None, &[(session, sequence, sent)])
            .pop()
            .flatten()
    }

    /// Lets time pass, as a thread that has nothing to do does.
    pub(crate) fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now.at < until.at && !self.has_exited {
            self.now = self.now + LOOK_EVERY;
            self.step(Message::Tick);
        }
    }

    pub(crate) fn finish(&mut self) -> Arc<str> {
        self.step(Message::Finish);
        self.handle.verdict()
    }

    /// Sessions and sequences of what is kept, and hosts that were given up.
    fn entries(&self) -> String {
        let mut entries = String::new();
        store::read(self.kept.as_slice(), &mut |entry, _| match entry {
            StoredEntry::Batch(StoredBatch {
                session, sequence, ..
            }) => {
                write!(entries, "{session}{sequence} ").unwrap();
            }
            StoredEntry::Silent { host, .. } => {
                write!(entries, "silent:{host} ").unwrap();
            }
            StoredEntry::Job { .. } => {}
        })
        .unwrap();
        entries
    }
}

fn is_kept(answer: Option<&BatchOutcome>, next: usize) -> bool {
    matches!(answer, Some(BatchOutcome::Kept { next: found, .. }) if *found == next as u64)
}

/// The verdict of a job nothing happens to.
fn undisturbed(batches: &[PlayedBatch]) -> Arc<str> {
    let mut played = Played::new();
    for (at, sent) in batches.iter().enumerate() {
        assert!(is_kept(played.send_one("e0-", at, sent).as_ref(), at + 1));
    }
    played.wait(LINGER);
    played.finish()
}

/// What of the inputs an agent that was started anew tells again.
pub(crate) fn again(sent: &PlayedBatch) -> PlayedBatch {
    let inputs: Vec<Input> = sent
        .inputs
        .iter()
        .filter(|input| {
            matches!(
                input,
                Input::Rank { .. } | Input::Name { .. } | Input::Group { .. } | Input::Mark { .. }
            )
        })
        .cloned()
        .collect();
    PlayedBatch::of(&inputs, false)
}

/// Plays a job with faults; what happened, to find out why it failed.
fn play(batches: &[PlayedBatch], whole: &str, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut played = Played::new();
    let mut log = format!("seed {seed}:");
    let (mut session, mut sessions, mut expected) = ("e0-".to_owned(), 0, String::new());
    let mut row = 0;
    for (at, sent) in batches.iter().enumerate() {
        let event = random.random_range(0..14);
        write!(log, " {event}").unwrap();
        match event {
            0 => played.start_again(),
            1 => {
                played.disk = PlayedDisk::Killed(random.random_range(0..=1000));
                assert_eq!(played.send_one(&session, at, sent), None, "{log}");
            }
            2 if at > 0 => {
                let known = random.random_range(0..at);
                let answer = played.send_one(&session, known, &batches[known]);
                assert!(is_kept(answer.as_ref(), known + 1), "{log}");
            }
            3 if at + 1 < batches.len() => {
                let answer = played.send_one(&session, at + 1, &batches[at + 1]);
                assert_eq!(answer, Some(BatchOutcome::Gap { next: at as u64 }), "{log}");
            }
            4 => {
                played.disk = PlayedDisk::Full;
                let answer = played.send_one(&session, at, sent);
                assert!(
                    matches!(answer, Some(BatchOutcome::Full(_))),
                    "{log} {answer:?}"
                );
                played.disk = PlayedDisk::Fine;
            }
            5 => played.wait(SECOND * random.random_range(1..20)),
            6 => {
                let hours = random.random_range(0..48);
                // The time of day jumps; the even clock does not.
                played.now = played.now.set_forward(HOUR * hours);
            }
            7 if at + 2 < batches.len() => {
                // A row of which the disk refuses the first: the second must wait too.
                row += 1;
                played.disk = PlayedDisk::Full;
                let pair = [(&*session, at, sent), (&*session, at + 1, &batches[at + 1])];
                let refused = played.send(Some(row), &pair[..1]);
                played.disk = PlayedDisk::Fine;
                let second = played.send(Some(row), &pair);
                for answer in refused.iter().chain(&second) {
                    assert!(
                        matches!(answer, Some(BatchOutcome::Full(_))),
                        "{log} {answer:?}"
                    );
                }
            }
            8 if at > 0 => {
                // The agent is started anew, and tells again what the rings have.
                let before = mem::take(&mut session);
                sessions += 1;
                session = format!("e{sessions}-");
                for (sequence, sent) in batches[..at].iter().enumerate() {
                    let answer = played.send_one(&session, sequence, &again(sent));
                    assert!(is_kept(answer.as_ref(), sequence + 1), "{log}");
                    write!(expected, "{session}{sequence} ").unwrap();
                }
                let answer = played.send_one(&before, at, sent);
                assert_eq!(answer, Some(BatchOutcome::Stale), "{log}");
            }
            _ => {}
        }
        let answer = played.send_one(&session, at, sent);
        assert!(is_kept(answer.as_ref(), at + 1), "{log} {answer:?}");
        write!(expected, "{session}{at} ").unwrap();
        assert!(!played.has_exited, "{log}");
    }
    assert_eq!(played.entries(), expected, "{log}");
    if random.random() {
        played.start_again();
    }
    played.wait(SECOND * 5);
    assert!(played.has_exited, "{log}");
    assert_eq!(&*played.finish(), whole, "{log}");
    let open = played
        .announced
        .as_deref()
        .map(|bytes| JobAlerts::new("job", Some(bytes)));
    assert!(
        open.is_none_or(|alerts| alerts.ongoing().is_empty()),
        "{log}"
    );
}

fn number(name: &str) -> Option<u64> {
    let number = env::var(name).ok()?;
    Some(
        number
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

/// Plays so many jobs, or as the environment has it.
pub(crate) fn campaign(
    jobs: &[Vec<PlayedBatch>],
    few: u64,
    play: impl Fn(&[PlayedBatch], &str, u64),
) {
    let first = number("LAGGARD_TEST_SEED");
    let few = number("LAGGARD_TEST_FAULTS").unwrap_or(first.map_or(few, |_| 1));
    let first = first.unwrap_or(0);
    let jobs: Vec<_> = jobs
        .iter()
        .map(|batches| (batches, undisturbed(batches)))
        .collect();
    for seed in first..first + few {
        let (batches, whole) = &jobs[seed as usize % jobs.len()];
        play(batches, whole, seed);
    }
}

#[test]
fn whatever_happens_to_a_job_its_beginning_is_kept_and_counts_once() {
    let jobs = ["data", "periodic", "two", "none"];
    let jobs = jobs.map(|job| batches_of(&recorded(job, 240), 12));
    campaign(&jobs, 2000, play);
}

#[test]
fn whatever_happens_to_a_job_its_verdict_is_that_of_the_recording() {
    let jobs = ["data", "periodic", "two", "none"];
    let jobs = jobs.map(|job| batches_of(&recorded(job, usize::MAX), 12));
    campaign(&jobs, 24, play);
}

#[test]
fn a_host_that_says_nothing_is_waited_for_no_more_and_its_job_is_given_up_after_an_hour() {
    let batches = batches_of(&recorded("none", 240), 12);
    let mut played = Played::new();
    assert!(is_kept(played.send_one("e0-", 0, &batches[0]).as_ref(), 1));
    played.wait(SECOND * 29);
    assert_eq!(played.entries(), "e0-0 ");
    // What is not on disk did not happen.
    played.disk = PlayedDisk::Full;
    played.wait(SECOND * 10);
    let silent = |played: &Played| played.handle.summary().silent_hosts;
    assert_eq!(
        (played.entries(), silent(&played)),
        ("e0-0 ".to_owned(), Vec::new())
    );
    played.disk = PlayedDisk::Fine;
    played.wait(SECOND);
    let known = ("e0-0 silent:h ".to_owned(), vec!["h".to_owned()]);
    assert_eq!((played.entries(), silent(&played)), known);
    played.wait(SECOND * (3600 - 60));
    assert!(!played.has_exited);
    played.wait(SECOND * 60);
    assert!(played.has_exited, "an hour is over");
    played.start_again();
    assert_eq!(silent(&played), ["h"], "it is known of old");
    assert!(is_kept(played.send_one("e0-", 1, &batches[1]).as_ref(), 2));
    played.wait(SECOND);
    assert_eq!(silent(&played), Vec::<String>::new(), "it speaks again");
}

#[test]
fn no_host_is_silent_while_batches_of_the_past_are_read() {
    let batches = batches_of(&recorded("none", 240), 12);
    let mut played = Played::new();
    played.send_one("e0-", 0, &batches[0]);
    played.handle.set_behind(true);
    played.wait(HOUR * 2);
    assert_eq!(
        (played.entries(), played.has_exited),
        ("e0-0 ".to_owned(), false)
    );
    played.handle.set_behind(false);
    played.wait(SILENT_AFTER + SECOND);
    assert_eq!(played.entries(), "e0-0 silent:h ");
}

#[test]
fn an_incident_that_begins_in_a_silence_of_hours_is_announced_at_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut played = Played::silenced_in(folder.path());
    let now_s = played.now.seconds();
    let (job, until_s) = (Some("job".to_owned()), now_s + 7200);
    let silence = crate::Silence {
        id: 0,
        job,
        from_s: now_s,
        until_s,
        reason: String::new(),
    };
    played.silences.add(silence, now_s).unwrap();
    let batches = batches_of(&recorded("data", usize::MAX), 8);
    let mut next = 0;
    let mut send = |played: &mut Played, sent: &PlayedBatch| {
        assert!(is_kept(
            played.send_one("e0-", next, sent).as_ref(),
            next + 1
        ));
        next += 1;
        played.wait(SECOND * 10);
    };
    for sent in &batches[..7] {
        send(&mut played, sent);
    }
    assert_eq!(played.handle.summary().open_incidents, 1);
    // It goes on, and its host says that nothing else happens.
    let quiet = PlayedBatch {
        watermark: batches[6].watermark,
        ..PlayedBatch::of(&[], false)
    };
    while played.now.seconds() + 10 < until_s {
        send(&mut played, &quiet);
        assert!(played.alerts.is_empty(), "in the silence");
    }
    for _ in 0..2 {
        send(&mut played, &quiet);
    }
    let [opened] = played.alerts.as_slice() else {
        panic!("{:?}", played.alerts)
    };
    assert!(opened.ended_s.is_none() && opened.begun_s >= until_s);
    // Killed, and started by somebody who knows only what was written down.
    played.start_again();
    send(&mut played, &batches[7]);
    let [_, ended] = played.alerts.as_slice() else {
        panic!("{:?}", played.alerts)
    };
    assert!(ended.ended_s.is_some());
}
