//! `laggard agent` on a host whose jobs write rings: who is found, and what no fault of the
//! agent or its collector changes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{PATIENCE, Server, analysed, inputs, own, recording};
use model::Input;
use ring::{Identity, RingDirectory, RingWriter, process_started};
use serde_json::Value;

/// A process that stands for one rank: its ring is written by the test.
struct Rank {
    process: Child,
    ring: RingWriter,
}

/// A job that does what a recorded one did.
struct Training {
    directory: RingDirectory,
    ranks: BTreeMap<u32, Rank>,
    left: std::vec::IntoIter<Input>,
}

impl Drop for Training {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Training {
    /// Far ahead of the clock: how fast the test gets on is no pause of the job.
    fn start(root: &Path, job: &str) -> Self {
        Self::shifted(root, job, Duration::from_hours(100).as_nanos() as i64)
    }

    fn shifted(root: &Path, job: &str, by_ns: i64) -> Self {
        let directory = RingDirectory::create(root, job).expect("a directory");
        let mut ranks = BTreeMap::new();
        let mut inputs = inputs();
        for input in &mut inputs {
            input.shift(by_ns);
        }
        for input in &inputs {
            let Input::Rank {
                rank,
                host,
                first_local,
                locals,
                world_size,
                ..
            } = input
            else {
                continue;
            };
            let process = Command::new("sleep").arg("600").spawn().expect("a process");
            let identity = Identity {
                job: job.to_owned(),
                host: host.clone(),
                rank: *rank,
                local_rank: rank - first_local,
                world_size: *world_size,
                local_world_size: *locals,
                attempt: 0,
                pid: process.id(),
                started: process_started(process.id()).expect("it runs"),
            };
            let ring = RingWriter::create(&directory, &identity, 32_768);
            ranks.insert(
                *rank,
                Rank {
                    process,
                    ring: ring.expect("a ring"),
                },
            );
        }
        Self {
            directory,
            ranks,
            left: inputs.into_iter(),
        }
    }

    /// Does the next `share` of what is left.
    fn go_on(&mut self, share: f64) {
        let count = (self.left.len() as f64 * share) as usize;
        for input in self.left.by_ref().take(count) {
            if let Input::Mark { rank, mark } = input {
                self.ranks[&rank].ring.write(mark);
                self.ranks[&rank].ring.set_stepped(mark.step);
            }
        }
    }

    /// Ends in good order.
    fn end(mut self) -> PathBuf {
        self.go_on(1.0);
        self.ranks
            .values()
            .for_each(|rank| rank.ring.set_closed(true));
        self.kill();
        self.directory.path().to_owned()
    }

    fn kill(&mut self) {
        for mut rank in std::mem::take(&mut self.ranks).into_values() {
            terminate(&rank.process);
            rank.process.wait().expect("it ends");
        }
    }
}

/// Asks a process to end, as launchers and systemd do.
fn terminate(process: &Child) {
    let pid = process.id().to_string();
    Command::new("kill")
        .args(["-TERM", &pid])
        .status()
        .expect("kill runs");
}

struct Agent {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Agent {
    fn start(root: &Path, url: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
        command.args(["agent", "--collector", url, "--host", "h"]);
        command.env("LAGGARD_DIR", root).stderr(Stdio::piped());
        let mut child = command.spawn().expect("laggard runs");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            stderr
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Self {
            child,
            lines,
            said: Vec::new(),
        }
    }

    /// Waits until it has said something.
    fn says(&mut self, what: &str) {
        let begun = Instant::now();
        while !self.said.iter().any(|line| line.contains(what)) {
            let patience = PATIENCE.saturating_sub(begun.elapsed());
            let line = self.lines.recv_timeout(patience);
            self.said
                .push(line.unwrap_or_else(|_| panic!("never {what:?}: {:?}", self.said)));
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Tells it to end.
    fn end(mut self) {
        terminate(&self.child);
        assert!(self.child.wait().expect("it ends").success());
    }
}

fn wait_until(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(20));
    }
}

fn state(server: &Server, id: &str) -> Value {
    let jobs = server.json("/api/v1/jobs");
    let mut jobs = jobs["jobs"].as_array().expect("jobs").iter();
    jobs.find(|job| job["id"] == id)
        .map_or(Value::Null, |job| job["state"].clone())
}

/// The verdict of a job that was told in one go.
fn whole() -> Value {
    analysed(&recording())
}

#[test]
fn an_agent_finds_the_jobs_of_its_host_and_tells_each_to_its_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, data) = (folder.path().join("rings"), folder.path().join("data"));
    let server = Server::start(&data, &[]);
    let mut agent = Agent::start(&root, &server.url);
    let names = ["pretrain-7", "finetune"];
    let mut jobs = names.map(|name| Training::start(&root, name));
    // What stands beside them is none of its business.
    std::fs::write(root.join("pretrain-7/rank9.1.ring"), "no ring").expect("a file");
    std::fs::create_dir(root.join("empty")).expect("a folder");
    std::fs::write(root.join("empty/rank0.1.ring"), "no ring").expect("a file");
    std::fs::write(root.join("file"), "").expect("a file");
    std::os::unix::fs::symlink("/etc", root.join("link")).expect("a link");
    for name in names {
        agent.says(&format!("job {name}: watched"));
    }
    for _ in 0..20 {
        for job in &mut jobs {
            job.go_on(0.1);
        }
        sleep(Duration::from_millis(20));
    }
    for training in jobs {
        let directory = training.end();
        wait_until(|| !directory.exists());
    }
    let whole = whole();
    assert_eq!(server.verdict_as("finetune", &whole), whole);
    // All that is said of the other is that a file is no ring.
    wait_until(|| {
        let mut verdict = own(server.json("/api/v1/jobs/pretrain-7/verdict"));
        let notes = verdict["notes"].as_array_mut().expect("notes");
        let count = notes.len();
        notes.retain(|note| !note.as_str().expect("text").contains("is not a ring"));
        notes.len() + 1 == count && verdict == whole
    });
    assert_eq!(
        server.json("/api/v1/jobs")["jobs"].as_array().map(Vec::len),
        Some(2)
    );
    assert!(root.join("empty/rank0.1.ring").exists());
}

#[test]
fn kills_of_the_agent_and_its_collector_lose_nothing_and_double_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, data) = (folder.path().join("rings"), folder.path().join("data"));
    let mut server = Server::start(&data, &[]);
    let address = server.url.strip_prefix("http://").expect("http").to_owned();
    let mut training = Training::start(&root, "job");
    let kept = data.join("job/batches.zst");
    let taken = || std::fs::metadata(&kept).map_or(0, |file| file.len());
    for round in 0..6 {
        let mut agent = Agent::start(&root, &server.url);
        training.go_on(0.2);
        // Some of it is taken.
        let before = taken();
        wait_until(|| taken() > before + 1000);
        match round {
            0 => agent.end(),
            2 => {
                server.kill();
                training.go_on(0.2);
                sleep(Duration::from_millis(700));
                agent.kill();
                server = Server::at(&address, &data, &[]);
            }
            4 => {
                server.kill();
                training.go_on(0.2);
                server = Server::at(&address, &data, &[]);
                agent.end();
            }
            // Whatever it read and had not told dies with it.
            _ => agent.kill(),
        }
        training.go_on(0.1);
        assert_ne!(state(&server, "job"), "ended", "round {round}");
    }
    // The last one finds that all is over.
    let directory = training.end();
    let _agent = Agent::start(&root, &server.url);
    wait_until(|| !directory.exists());
    let whole = whole();
    assert_eq!(server.verdict_as("job", &whole), whole);
}

#[test]
fn a_job_that_is_watched_is_left_to_its_watcher_until_that_dies() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, data) = (folder.path().join("rings"), folder.path().join("data"));
    let server = Server::start(&data, &[]);
    let mut training = Training::start(&root, "1795268852-7029");
    // As `laggard run --collector --job pretrain-7` does.
    let claim = training
        .directory
        .claim("pretrain-7")
        .expect("a file")
        .expect("free");
    let mut other = Training::start(&root, "job-4711");
    let mut agent = Agent::start(&root, &server.url);
    agent.says("job h-job-4711-");
    training.go_on(0.5);
    other.go_on(0.5);
    assert!(!agent.said.iter().any(|line| line.contains("pretrain-7")));
    drop(claim);
    agent.says("job pretrain-7: watched");
    training.end();
    let whole = whole();
    assert_eq!(server.verdict_as("pretrain-7", &whole), whole);
}

#[test]
fn a_job_that_stood_still_before_it_ended_has_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, data) = (folder.path().join("rings"), folder.path().join("data"));
    let server = Server::start(&data, &[]);
    let uptime = std::fs::read_to_string("/proc/uptime").expect("Linux");
    let now_s: f64 = uptime
        .split(' ')
        .next()
        .expect("a number")
        .parse()
        .expect("seconds");
    let last = inputs().iter().filter_map(Input::at).max().expect("marks");
    let by_ns = (now_s * 1e9) as i64 - 2_000_000_000 - last.0.cast_signed();
    let mut training = Training::shifted(&root, "job", by_ns);
    training.go_on(1.0);
    let _agent = Agent::start(&root, &server.url);
    wait_until(|| state(&server, "job") == "slow");
    let directory = training.end();
    wait_until(|| !directory.exists() && state(&server, "job") == "ended");
}

/// What a command finds in its environment that `laggard run` wraps.
fn environment_of_wrapped(laggard: &mut Command) -> String {
    let output = laggard
        .args(["run", "--", "env"])
        .output()
        .expect("it runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_wrapped_command_does_not_see_what_proves_who_we_are() {
    let secrets = [
        "TOKEN",
        "BUS_TOKEN",
        "BUS_USER",
        "BUS_PASSWORD",
        "BUS_CREDENTIALS",
    ];
    for is_on in ["1", "0"] {
        let root = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
        for name in secrets {
            command.env(format!("LAGGARD_{name}"), "secret-secret-secret");
        }
        command
            .env("LAGGARD_DIR", root.path())
            .env("LAGGARD_ENABLE", is_on);
        let printed = environment_of_wrapped(&mut command);
        assert!(
            printed.contains(&format!("LAGGARD_ENABLE={is_on}")),
            "{printed}"
        );
        assert!(!printed.contains("secret-secret-secret"), "{printed}");
    }
}

#[test]
fn what_the_profiler_of_pytorch_prints_is_silenced_unless_the_user_set_it() {
    for (set, expected) in [(None, "6"), (Some("2"), "2")] {
        let root = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
        command
            .env_remove("KINETO_LOG_LEVEL")
            .envs(set.map(|level| ("KINETO_LOG_LEVEL", level)))
            .env("LAGGARD_DIR", root.path());
        let printed = environment_of_wrapped(&mut command);
        assert!(
            printed.contains(&format!("KINETO_LOG_LEVEL={expected}\n")),
            "{printed}"
        );
    }
}
