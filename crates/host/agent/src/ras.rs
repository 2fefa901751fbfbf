//! What NCCL's RAS knows of a job that does not move: collectives that ranks of all hosts
//! have launched, and processes that are dead.
//!
//! Any process of the job answers for all of them. One query lasts seconds where processes
//! do not answer, so a thread of ours waits for it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use formats::{Limits, RasJob, load_bytes};
use model::{Input, RasNote, SourceNote};
use verdict::{Rule, Settings, Suspicion};

/// Where NCCL says RAS is to be asked.
const ADDRESS_VARIABLE: &str = "NCCL_RAS_ADDR";
/// Where it is otherwise.
const DEFAULT_ADDRESS: &str = "localhost:28028";
/// How often a job is asked at most, and how long one query may take. RAS itself is given 10 s to
/// collect what processes say.
const ASK: Rule = Suspicion::HangWithNccl.rule();
const PATIENCE: Duration = Duration::from_secs(ASK.lasts_s as u64);
/// Largest reply taken: 100,000 ranks in some communicators each take less.
const MAX_REPLY_BYTES: u64 = 256 << 20;
/// Longest line RAS may acknowledge a command with.
const MAX_LINE_BYTES: u64 = 4096;

/// Processes that are asked until one of the job answers: several jobs of a host that were given
/// one address share it, and any process of any of them answers.
const MOST_ASKED: usize = 4;

/// What is known of the job that is asked about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Own {
    /// Its processes on this host.
    pub(crate) pids: BTreeSet<u32>,
    /// Its communicators.
    pub(crate) hashes: BTreeSet<u64>,
}

/// Asks NCCL's RAS about a job.
#[derive(Debug, Default)]
pub(crate) struct Ras {
    asked: Option<Instant>,
    answer: Option<Receiver<io::Result<RasAnswer>>>,
}

#[derive(Debug)]
enum RasAnswer {
    /// A reply, about this job as far as can be known.
    Own(Vec<u8>),
    /// The process that answered at this address said nothing about this job.
    Foreign(String),
}

impl Own {
    /// Whether a reply is about this job: it has one of its communicators, or of most processes
    /// of one host it is known that they are the job's.
    fn is_in(&self, job: &RasJob) -> bool {
        !self.hashes.is_disjoint(&job.hashes)
            || job.processes.values().any(|pids| {
                // Of most: other hosts may have processes with some of the same numbers.
                let own = pids
                    .iter()
                    .filter(|pid| u32::try_from(**pid).is_ok_and(|p| self.pids.contains(&p)))
                    .count();
                2 * own > pids.len()
            })
    }
}

impl Ras {
    /// Asks, unless that was done a short while ago or none of the processes has NCCL.
    pub(crate) fn ask(&mut self, now: Instant, own: Own) {
        let asked_lately = self
            .asked
            .is_some_and(|asked| now.duration_since(asked).as_secs_f64() < ASK.every_s);
        // One thread at a time, however long the answer takes.
        if self.answer.is_some() || asked_lately {
            return;
        }
        // Without NCCL the job has no RAS: who answers at the address is of another job.
        let Some(pid) = own.pids.iter().copied().find(|pid| has_nccl(*pid)) else {
            return;
        };
        self.asked = Some(now);
        let (sender, answer) = channel();
        thread::spawn(move || sender.send(ask_own(&address_of(pid), &own)));
        self.answer = Some(answer);
    }

    /// What the answer says, once it is there.
    pub(crate) fn poll(&mut self, settings: &Settings, take: &mut dyn FnMut(Input)) {
        let Some(answer) = self
            .answer
            .as_ref()
            .and_then(|answer| answer.try_recv().ok())
        else {
            return;
        };
        self.answer = None;
        let notes = match answer {
            Ok(RasAnswer::Own(reply)) => texts_of(&reply, settings)
                .into_iter()
                .map(RasNote::Replied)
                .collect(),
            Ok(RasAnswer::Foreign(address)) => vec![RasNote::OtherJob(address)],
            // A job may run without RAS: that is no news.
            Err(_) => return,
        };
        for note in notes {
            take(Input::Note(SourceNote::Ras(note)));
        }
    }
}

/// Where the RAS of a process is to be asked, by the environment it was started with.
fn address_of(pid: u32) -> String {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment
        .split(|byte| *byte == 0)
        .find_map(|variable| {
            let text = std::str::from_utf8(variable).ok()?;
            text.strip_prefix(ADDRESS_VARIABLE)?.strip_prefix('=')
        })
        .filter(|address| !address.is_empty())
        .unwrap_or(DEFAULT_ADDRESS)
        .to_owned()
}

/// Asks until a process of the job answers, or one whose answer cannot be read.
fn ask_own(address: &str, own: &Own) -> io::Result<RasAnswer> {
    let deadline = Instant::now() + PATIENCE;
    for _ in 0..MOST_ASKED {
        let reply = query(address, left(deadline)?)?;
        let job = load_bytes("the reply", &reply, Limits::default())
            .ok()
            .and_then(|recording| recording.ras_job());
        if job.is_none_or(|job| own.is_in(&job)) {
            return Ok(RasAnswer::Own(reply));
        }
    }
    Ok(RasAnswer::Foreign(address.to_owned()))
}

/// What a reply says, in the words of a verdict.
fn texts_of(reply: &[u8], settings: &Settings) -> Vec<String> {
    let recording = match load_bytes("the reply", reply, Limits::default()) {
        Ok(recording) => recording,
        Err(error) => return vec![error.to_string()],
    };
    let verdict = recording.replay("ras", settings.clone()).verdict();
    verdict
        .incidents
        .into_iter()
        .map(|incident| incident.text)
        .chain(verdict.notes)
        .collect()
}

/// Whether a process has NCCL in it.
fn has_nccl(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("libnccl"))
}

/// Asks for a report, in JSON where RAS can.
fn query(address: &str, patience: Duration) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + patience;
    let stream = connect(address, deadline)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(Until { stream, deadline });
    // RAS before 2.28.7 refuses the format, and answers in words.
    for command in ["CLIENT PROTOCOL 2\n", "TIMEOUT 10\n", "SET FORMAT json\n"] {
        send(&mut writer, command, deadline)?;
        let mut line = Vec::new();
        (&mut reader)
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)?;
        // Something else may listen at the port.
        let known: [&[u8]; 3] = [b"SERVER PROTOCOL", b"OK", b"ERROR"];
        if !known.iter().any(|known| line.starts_with(known)) {
            return Err(io::Error::other("this is not RAS"));
        }
    }
    send(&mut writer, "VERBOSE STATUS\n", deadline)?;
    let mut reply = Vec::new();
    // RAS says no length, and closes behind the report.
    let length = reader.take(MAX_REPLY_BYTES + 1).read_to_end(&mut reply)? as u64;
    if length > MAX_REPLY_BYTES {
        return Err(io::Error::other("the reply is too long"));
    }
    Ok(reply)
}

fn send(stream: &mut TcpStream, command: &str, deadline: Instant) -> io::Result<()> {
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(command.as_bytes())
}

fn connect(address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name resolves to no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(deadline)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Time until a deadline.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::Error::from(io::ErrorKind::TimedOut));
    }
    Ok(left)
}

/// Reads until a deadline, however slowly the bytes come.
struct Until {
    stream: TcpStream,
    deadline: Instant,
}

impl Read for Until {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.deadline)?))?;
        self.stream.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    use super::*;

    const COMMANDS: [&str; 4] = [
        "CLIENT PROTOCOL 2",
        "TIMEOUT 10",
        "SET FORMAT json",
        "VERBOSE STATUS",
    ];

    /// A RAS that answers each command with a line, and the last one with a reply.
    fn server(format: &'static str, reply: Vec<u8>) -> (String, thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let served = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            answer(stream, format, &reply);
        });
        (address, served)
    }

    fn answer(mut stream: TcpStream, format: &str, reply: &[u8]) {
        let mut commands = BufReader::new(stream.try_clone().unwrap()).lines();
        for (command, answer) in COMMANDS.iter().zip(["SERVER PROTOCOL 2\n", "OK\n", format]) {
            assert_eq!(commands.next().unwrap().unwrap(), *command);
            stream.write_all(answer.as_bytes()).unwrap();
        }
        assert_eq!(commands.next().unwrap().unwrap(), COMMANDS[3]);
        stream.write_all(reply).unwrap();
    }

    fn sample(name: &str) -> Vec<u8> {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..");
        fs::read(root.join("testdata/ras").join(name)).unwrap()
    }

    fn asked(format: &'static str, name: &str) -> Vec<String> {
        let (address, served) = server(format, sample(name));
        let reply = query(&address, PATIENCE).unwrap();
        served.join().unwrap();
        texts_of(&reply, &Settings::default())
    }

    #[test]
    fn a_reply_in_json_names_the_rank_the_others_wait_for() {
        let reported = asked("OK\n", "missing.json");
        assert!(
            reported[0].contains("rank 2 never entered ALLREDUCE #641"),
            "{reported:?}"
        );
    }

    #[test]
    fn where_json_is_refused_the_report_in_words_is_read() {
        let reported = asked("ERROR: Unknown command SET FORMAT json\n", "dead.txt");
        assert!(reported[0].contains("rank 5 is missing"), "{reported:?}");
        assert!(
            reported.iter().any(|text| text.contains("considered dead")),
            "{reported:?}"
        );
    }

    #[test]
    fn a_healthy_reply_says_what_it_does_not_show() {
        let said = asked("OK\n", "healthy.json");
        assert!(
            said[0].contains("the same number of collectives"),
            "{said:?}"
        );
        assert_eq!(said.len(), 1);
    }

    #[test]
    fn who_does_not_answer_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert!(query(&address, Duration::from_millis(50)).is_err());
        drop(listener);
        assert!(
            query(&address, PATIENCE).is_err(),
            "nobody listens any more"
        );
    }

    #[test]
    fn a_process_without_nccl_costs_no_query() {
        let mut ras = Ras::default();
        let pids = [std::process::id()].into();
        ras.ask(
            Instant::now(),
            Own {
                pids,
                ..Own::default()
            },
        );
        assert!(ras.asked.is_none() && ras.answer.is_none());
    }

    #[test]
    fn the_address_is_that_of_the_process() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo; read end"])
            .env(ADDRESS_VARIABLE, "10.0.0.7:28100");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut waiting = command.spawn().unwrap();
        // Until it has begun it has no environment of its own.
        let said = BufReader::new(waiting.stdout.take().unwrap())
            .lines()
            .next();
        assert_eq!(said.unwrap().unwrap(), "");
        let address = address_of(waiting.id());
        drop(waiting.stdin.take());
        waiting.wait().unwrap();
        assert_eq!(address, "10.0.0.7:28100");
        assert_eq!(address_of(std::process::id()), DEFAULT_ADDRESS);
    }

    /// What comes of asking a server that gives these replies in turn, as the processes of
    /// different jobs do, about a job.
    fn notes_of(own: &Own, names: &[&'static str]) -> (String, Vec<Input>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let replies: Vec<Vec<u8>> = names.iter().map(|name| sample(name)).collect();
        thread::spawn(move || {
            for reply in replies {
                let (stream, _) = listener.accept().unwrap();
                answer(stream, "OK\n", &reply);
            }
        });
        let (sender, answer) = channel();
        sender.send(ask_own(&address, own)).unwrap();
        let mut ras = Ras {
            answer: Some(answer),
            ..Ras::default()
        };
        let mut notes = Vec::new();
        ras.poll(&Settings::default(), &mut |input| {
            notes.push(input);
        });
        (address, notes)
    }

    #[test]
    fn only_what_is_said_of_this_job_is_reported() {
        let is_hang = |notes: &[Input]| {
            matches!(&notes[0], Input::Note(SourceNote::Ras(RasNote::Replied(text)))
                if text.starts_with("hang: rank 1 is missing"))
        };
        let by_process = Own {
            pids: [4101, 4102].into(),
            ..Own::default()
        };
        let (_, reported) = notes_of(&by_process, &["silent.json"]);
        assert!(is_hang(&reported), "{reported:?}");
        let hashes = [0xfa93_daea_854b_060b].into();
        let by_communicator = Own {
            hashes,
            ..Own::default()
        };
        let (_, reported) = notes_of(&by_communicator, &["silent.json"]);
        assert!(is_hang(&reported), "{reported:?}");
        // Another job's, and one process of another host that happens to have the same number.
        let (address, reported) = notes_of(
            &Own {
                pids: [77, 5101].into(),
                ..Own::default()
            },
            &["silent.json"; 4],
        );
        assert_eq!(
            reported,
            [Input::Note(SourceNote::Ras(RasNote::OtherJob(address)))]
        );
    }
}
