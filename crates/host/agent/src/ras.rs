//! What NCCL's RAS knows of a job that does not move: collectives that ranks of all hosts
//! have launched, and processes that are dead.
//!
//! Any process of the job answers for all of them. One query lasts seconds where processes
//! do not answer, so a thread of ours waits for it.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use formats::{Limits, load_bytes};
use model::Input;
use verdict::{Finding, Rule, Settings};

/// Where NCCL says RAS is to be asked.
const ADDRESS_VARIABLE: &str = "NCCL_RAS_ADDR";
/// Where it is otherwise.
const DEFAULT_ADDRESS: &str = "localhost:28028";
/// How often a job is asked at most, and how long one query may take. RAS itself is given 10 s to
/// collect what processes say.
const ASK: Rule = Finding::HangWithNccl.rule();
const PATIENCE: Duration = Duration::from_secs(ASK.lasts_s as u64);
/// Largest reply taken: 100,000 ranks in some communicators each take less.
const MAX_REPLY_BYTES: u64 = 256 << 20;
/// Longest line RAS may acknowledge a command with.
const MAX_LINE_BYTES: u64 = 4096;

/// Asks NCCL's RAS about a job.
#[derive(Debug)]
pub(crate) struct Ras {
    address: String,
    asked: Option<Instant>,
    answer: Option<Receiver<io::Result<Vec<u8>>>>,
}

impl Default for Ras {
    fn default() -> Self {
        let address = std::env::var(ADDRESS_VARIABLE).ok();
        let address = address.filter(|address| !address.is_empty());
        Self::at(address.unwrap_or_else(|| DEFAULT_ADDRESS.to_owned()))
    }
}

impl Ras {
    fn at(address: String) -> Self {
        Self { address, asked: None, answer: None }
    }

    /// Asks, unless that was done a short while ago or none of the processes has NCCL.
    pub(crate) fn ask(&mut self, now: Instant, mut pids: impl Iterator<Item = u32>) {
        let lately =
            |asked: Instant| now.duration_since(asked).as_secs_f64() < ASK.every_s;
        if self.answer.is_some() || self.asked.is_some_and(lately) || !pids.any(has_nccl)
        {
            return;
        }
        self.asked = Some(now);
        let (sender, answer) = channel();
        let address = self.address.clone();
        thread::spawn(move || sender.send(query(&address, PATIENCE)));
        self.answer = Some(answer);
    }

    /// What the answer says, once it is there.
    pub(crate) fn poll(&mut self, settings: &Settings, take: &mut dyn FnMut(Input)) {
        let Some(answer) = self.answer.as_ref().and_then(|answer| answer.try_recv().ok())
        else {
            return;
        };
        self.answer = None;
        // A job may run without RAS: that is no news.
        let Ok(reply) = answer else { return };
        for text in told(&reply, settings) {
            take(Input::Note { text: format!("NCCL's RAS: {text}") });
        }
    }
}

/// What a reply says, in the words of a verdict.
fn told(reply: &[u8], settings: &Settings) -> Vec<String> {
    let recording = match load_bytes("the reply", reply, Limits::default()) {
        Ok(recording) => recording,
        Err(error) => return vec![error.to_string()],
    };
    let verdict = recording.replay("ras", settings.clone()).verdict();
    let incidents = verdict.incidents.into_iter().map(|incident| incident.text);
    incidents.chain(verdict.notes).collect()
}

/// Whether a process has NCCL in it.
fn has_nccl(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/maps"))
        .is_ok_and(|maps| maps.contains("libnccl"))
}

/// Asks for a report, in JSON where RAS can.
fn query(address: &str, patience: Duration) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + patience;
    let stream = connect(address, deadline)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(Until { stream, deadline });
    let mut send = |command: &str| {
        writer.set_write_timeout(Some(left(deadline)?))?;
        writer.write_all(command.as_bytes())
    };
    // RAS before 2.28.7 refuses the format, and answers in words.
    for command in ["CLIENT PROTOCOL 2\n", "TIMEOUT 10\n", "SET FORMAT json\n"] {
        send(command)?;
        let mut line = Vec::new();
        (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
        let known: [&[u8]; 3] = [b"SERVER PROTOCOL", b"OK", b"ERROR"];
        if !known.iter().any(|known| line.starts_with(known)) {
            return Err(io::Error::other("this is not RAS"));
        }
    }
    send("VERBOSE STATUS\n")?;
    let mut reply = Vec::new();
    let length = reader.take(MAX_REPLY_BYTES + 1).read_to_end(&mut reply)? as u64;
    if length > MAX_REPLY_BYTES {
        return Err(io::Error::other("the reply is too long"));
    }
    Ok(reply)
}

fn connect(address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the address stands for none");
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

    use super::*;

    const COMMANDS: [&str; 4] =
        ["CLIENT PROTOCOL 2", "TIMEOUT 10", "SET FORMAT json", "VERBOSE STATUS"];

    /// A RAS that answers each command with a line, and the last one with a reply.
    fn server(format: &'static str, reply: Vec<u8>) -> (String, thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answers = ["SERVER PROTOCOL 2\n", "OK\n", format];
        let served = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut commands = BufReader::new(stream.try_clone().unwrap()).lines();
            for (command, answer) in COMMANDS.iter().zip(answers) {
                assert_eq!(commands.next().unwrap().unwrap(), *command);
                stream.write_all(answer.as_bytes()).unwrap();
            }
            assert_eq!(commands.next().unwrap().unwrap(), COMMANDS[3]);
            stream.write_all(&reply).unwrap();
        });
        (address, served)
    }

    fn sample(name: &str) -> Vec<u8> {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..");
        fs::read(root.join("testdata/ras").join(name)).unwrap()
    }

    fn asked(format: &'static str, name: &str) -> Vec<String> {
        let (address, served) = server(format, sample(name));
        let reply = query(&address, PATIENCE).unwrap();
        served.join().unwrap();
        told(&reply, &Settings::default())
    }

    #[test]
    fn a_reply_in_json_names_the_rank_the_others_wait_for() {
        let told = asked("OK\n", "missing.json");
        assert!(told[0].contains("rank 2 never entered ALLREDUCE #641"), "{told:?}");
    }

    #[test]
    fn where_json_is_refused_the_report_in_words_is_read() {
        let told = asked("ERROR: Unknown command SET FORMAT json\n", "dead.txt");
        assert!(told[0].contains("rank 5 is missing"), "{told:?}");
        assert!(told.iter().any(|text| text.contains("considered dead")), "{told:?}");
    }

    #[test]
    fn a_healthy_reply_says_nothing() {
        assert_eq!(asked("OK\n", "healthy.json"), Vec::<String>::new());
    }

    #[test]
    fn who_does_not_answer_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert!(query(&address, Duration::from_millis(50)).is_err());
        drop(listener);
        assert!(query(&address, PATIENCE).is_err(), "nobody listens any more");
    }

    #[test]
    fn a_process_without_nccl_costs_no_query() {
        let mut ras = Ras::at("127.0.0.1:1".to_owned());
        ras.ask(Instant::now(), std::iter::once(std::process::id()));
        assert!(ras.asked.is_none() && ras.answer.is_none());
    }

    #[test]
    fn the_answer_arrives_as_notes() {
        let (sender, answer) = channel();
        let mut ras = Ras { answer: Some(answer), ..Ras::at(String::new()) };
        sender.send(Ok(sample("silent.json"))).unwrap();
        let mut notes = Vec::new();
        ras.poll(&Settings::default(), &mut |input| notes.push(input));
        let Some(Input::Note { text }) = notes.first() else { panic!("{notes:?}") };
        assert!(text.starts_with("NCCL's RAS: hang: rank 1 is missing"), "{text}");
    }
}
