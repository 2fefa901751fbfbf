//! Collectors that share the jobs of a bus: if one dies, nothing is lost, nothing counts twice.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use agent::{Destination, Farewell, Receiver, Uplink};
use bus::{BusAddress, Publisher};
use model::Input;
use serde_json::{Value, json};

use super::campaign::Disk;
use super::{PATIENCE, Server, analysed, batches, hook, inputs, recording};

/// A server of the bus; its messages stand in a folder.
pub(super) struct Bus {
    pub(super) child: Child,
    pub(super) port: u16,
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Bus {
    /// `None`, with a line, where there is no server to start.
    #[expect(clippy::print_stdout, reason = "a test says what it skips")]
    pub(super) fn start(folder: &Path) -> Option<Self> {
        if Command::new("nats-server")
            .arg("--version")
            .output()
            .is_err()
        {
            println!("skipped: there is no nats-server (Debian's package nats-server)");
            return None;
        }
        Some(Self::at(-1, folder))
    }

    pub(super) fn at(port: i32, folder: &Path) -> Self {
        let mut command = Command::new("nats-server");
        command.args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"]);
        command
            .arg(folder.join("js"))
            .arg("--ports_file_dir")
            .arg(folder);
        let child = command
            .stderr(Stdio::null())
            .spawn()
            .expect("nats-server runs");
        let ports = folder.join(format!("nats-server_{}.ports", child.id()));
        let begun = Instant::now();
        let port = loop {
            let ports = fs::read(&ports).unwrap_or_default();
            let ports: Value = serde_json::from_slice(&ports).unwrap_or_default();
            if let Some(url) = ports["nats"][0].as_str() {
                break url
                    .rsplit(':')
                    .next()
                    .expect("a port")
                    .parse()
                    .expect("a number");
            }
            assert!(begun.elapsed() < PATIENCE);
            sleep(Duration::from_millis(20));
        };
        Self { child, port }
    }

    /// As `kill -9` does.
    pub(super) fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    pub(super) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    fn collector(&self, data: &Path) -> Server {
        Server::start(data, &["--bus", &self.url()])
    }

    pub(super) fn publisher(&self) -> Publisher {
        let address = BusAddress::parse(&self.url()).expect("an address");
        Publisher::start(&address, "job", "h").expect("a thread")
    }

    fn uplink(&self) -> Uplink {
        let receiver = Receiver::Bus(BusAddress::parse(&self.url()).expect("an address"));
        let (job, host) = ("job".to_owned(), "h".to_owned());
        Uplink::start(Destination {
            receiver,
            job,
            host,
        })
        .expect("a thread")
    }

    pub(super) fn raw(&self) -> Raw {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut raw = Raw(BufReader::new(stream));
        assert!(raw.line().starts_with("INFO "));
        raw.send(b"CONNECT {\"verbose\":false,\"headers\":true}\r\nSUB answers 1\r\n");
        raw
    }
}

/// Somebody who speaks to the bus by hand.
pub(super) struct Raw(BufReader<TcpStream>);

impl Raw {
    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("it is read");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line
    }

    /// Puts a message there, with these headers, and returns what is answered.
    fn request(&mut self, subject: &str, headers: &str, body: &[u8]) -> Value {
        let headers = format!("NATS/1.0\r\n{headers}\r\n");
        let (length, whole) = (headers.len(), headers.len() + body.len());
        self.send(format!("HPUB {subject} answers {length} {whole}\r\n").as_bytes());
        self.send(&[headers.as_bytes(), body, b"\r\n"].concat());
        loop {
            let line = self.line();
            if line.starts_with("PING") {
                self.send(b"PONG\r\n");
            } else if line.starts_with("MSG") || line.starts_with("HMSG") {
                let mut lengths = line.trim().rsplit(' ');
                let mut length = || lengths.next()?.parse::<usize>().ok();
                let whole = length().expect("a length");
                let headers = length().filter(|_| line.starts_with('H')).unwrap_or(0);
                let mut answer = vec![0; whole + 2];
                self.0.read_exact(&mut answer).expect("a message");
                return serde_json::from_slice(&answer[headers..]).expect("JSON");
            }
        }
    }

    /// Puts a batch there that the bus itself would not know again.
    pub(super) fn batch(&mut self, session: &str, sequence: usize, body: &[u8]) {
        let headers = format!(
            "Laggard-Epoch: {session}\r\nLaggard-Sequence: {sequence}\r\nLaggard-Now-Ns: 1000\r\n"
        );
        let answer = self.request("laggard.batches.job.h", &headers, body);
        assert!(answer["seq"].as_u64() > Some(0), "{answer}");
    }
}

/// Puts a batch there as an agent does, however long the bus is away.
fn publish(publisher: &Publisher, sequence: usize, body: &[u8]) {
    publish_of(publisher, "e", sequence, 1000, body);
}

/// The same as one of several agents, by a clock of its own.
pub(super) fn publish_of(
    publisher: &Publisher,
    session: &str,
    sequence: usize,
    now_ns: u64,
    body: &[u8],
) {
    let begun = Instant::now();
    while let Err(error) = publisher.publish(session, sequence as u64, now_ns, body.to_vec()) {
        assert!(begun.elapsed() < PATIENCE, "{error}");
        sleep(Duration::from_millis(50));
    }
}

/// Tells inputs, and that there were no others.
fn tell(uplink: &Uplink, inputs: &[Input]) {
    for input in inputs {
        uplink.tell(input);
    }
    uplink.advance_watermark(
        inputs
            .iter()
            .filter_map(Input::at)
            .max()
            .unwrap_or_default(),
    );
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        sleep(Duration::from_millis(50));
    }
}

/// The job as a collector lists it.
fn job(server: &Server) -> Value {
    server.json("/api/v1/jobs")["jobs"][0].clone()
}

/// Who keeps the job, asked of `server`.
pub(super) fn keeper(server: &Server) -> Option<String> {
    let config = ureq::Agent::config_builder();
    let config = config.http_status_as_error(false).max_redirects(0).build();
    let client: ureq::Agent = config.into();
    let answer = client
        .get(format!("{}/api/v1/jobs/job/verdict", server.url))
        .call();
    let answer = answer.expect("an answer");
    match answer.status().as_u16() {
        200 => Some(server.url.clone()),
        307 => {
            let to = answer.headers()["location"].to_str().expect("text");
            to.strip_suffix("/api/v1/jobs/job/verdict")
                .map(str::to_owned)
        }
        _ => None,
    }
}

#[test]
fn what_is_sent_through_a_bus_gives_the_verdict_of_the_recording() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(bus) = Bus::start(folder.path()) else {
        return;
    };
    let server = bus.collector(&folder.path().join("data"));
    let uplink = bus.uplink();
    tell(&uplink, &inputs());
    assert!(uplink.finish(Farewell::Leave, PATIENCE));
    assert_eq!(server.verdict_of_ended("job"), analysed(&recording()));
    let (status, reply) = server
        .post("job/hosts/h/epochs/e/batches/0", &batches(1)[0])
        .expect("an answer");
    assert_eq!(status, 421, "{reply}");
}

#[test]
fn an_incident_is_announced_once_whoever_keeps_its_job() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(bus) = Bus::start(folder.path()) else {
        return;
    };
    let (url, messages) = hook();
    let start = |name| {
        let more = ["--bus", &bus.url(), "--webhook", &url];
        Server::start(&folder.path().join(name), &more)
    };
    let mut server = start("first");
    let publisher = bus.publisher();
    let batches = batches(8);
    for (at, batch) in batches[..7].iter().enumerate() {
        publish(&publisher, at, batch);
    }
    let opened = messages.recv_timeout(PATIENCE).expect("a message");
    assert_eq!(opened["event"], "opened");
    let subject = "$JS.API.DIRECT.GET.KV_laggard_jobs.$KV.laggard_jobs.job";
    wait_for("what was announced is noted", || {
        let note = bus.raw().request(subject, "", b"");
        note["announced"]["going_on"]
            .as_object()
            .is_some_and(|all| !all.is_empty())
    });
    server.kill();
    let other = start("second");
    wait_for("it has taken the job over", || {
        keeper(&other).as_ref() == Some(&other.url) && job(&other)["open_incidents"] == 1
    });
    publish(&publisher, 7, &batches[7]);
    let ended = messages.recv_timeout(PATIENCE).expect("a message");
    assert_eq!(ended["event"], "ended", "{ended}");
    assert_eq!(opened["incident"]["id"], ended["incident"]["id"]);
}

#[test]
fn a_job_that_is_deleted_is_gone_from_the_bus() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(bus) = Bus::start(folder.path()) else {
        return;
    };
    let server = bus.collector(&folder.path().join("data"));
    let other = bus.collector(&folder.path().join("other"));
    publish(&bus.publisher(), 0, &batches(1)[0]);
    other.verdict_of_ended("job");
    wait_for("it has ended and is deleted", || {
        keeper(&other).is_some_and(|keeper| {
            let request = super::http().delete(format!("{keeper}/api/v1/jobs/job"));
            super::read(request.call().expect("an answer")).0 == 204
        })
    });
    let none = |server: &Server| server.json("/api/v1/jobs")["jobs"] == json!([]);
    wait_for("who kept it knows", || none(&server));
    wait_for("so does the other", || none(&other));
    wait_for("its batches are gone", || {
        let info = bus.raw().request("$JS.API.STREAM.INFO.LAGGARD", "", b"");
        info["state"]["messages"] == 0
    });
    // Who comes later finds nothing to take.
    let third = bus.collector(&folder.path().join("third"));
    sleep(Duration::from_secs(2));
    assert!(none(&third) && none(&server));
}

#[test]
fn hosts_hear_over_the_bus_what_is_wanted_of_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(bus) = Bus::start(folder.path()) else {
        return;
    };
    let server = bus.collector(&folder.path().join("data"));
    let mut publisher = bus.publisher();
    let mut orders = Vec::new();
    for (at, batch) in batches(60).iter().enumerate() {
        publish(&publisher, at, batch);
        let count = format!("laggard_batches_total {}\n", at + 1);
        wait_for("it is kept", || {
            server.get("/metrics", None).1.contains(&count)
        });
        orders.extend(publisher.orders());
    }
    let profile = |order: &Vec<u8>| {
        let order: Value = serde_json::from_slice(order).expect("JSON");
        order["profile"]["ranks"].clone()
    };
    let profile = orders.iter().map(profile).find(|ranks| !ranks.is_null());
    assert_eq!(profile, Some(json!([0, 1, 2])), "rank 2 is late");
}

#[test]
fn an_agent_that_was_replaced_hears_it_over_the_bus_and_tells_no_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(bus) = Bus::start(folder.path()) else {
        return;
    };
    let server = bus.collector(&folder.path().join("data"));
    let replaced = bus.uplink();
    let inputs = inputs();
    tell(&replaced, &inputs[..inputs.len() / 2]);
    wait_for("some of it came", || {
        job(&server)["steps"].as_u64() > Some(0)
    });
    let newest = bus.uplink();
    tell(&newest, &inputs);
    let count = |name: &str| {
        let metrics = server.get("/metrics", None).1;
        let count = metrics.lines().find_map(|line| line.strip_prefix(name));
        count.map_or(0, |count| count.trim().parse::<u32>().expect("a count"))
    };
    let stale = || count("laggard_batches_refused_total{reason=\"stale\"}");
    wait_for("it tells too late", || stale() > 0);
    // Both would tell every second that nothing happened.
    let taken = || count("laggard_batches_total ");
    let before = taken();
    wait_for("the other goes on", || taken() >= before + 5);
    assert!(stale() <= 2, "{} batches", stale());
    assert!(newest.finish(Farewell::Leave, PATIENCE));
    assert_eq!(server.verdict_of_ended("job"), analysed(&recording()));
}

#[test]
fn a_job_whose_collector_is_killed_moves_and_its_verdict_stays_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(bus) = Bus::start(folder.path()) else {
        return;
    };
    let data = |at: usize| folder.path().join(format!("data{at}"));
    let mut servers: Vec<Server> = (0..3).map(|at| bus.collector(&data(at))).collect();
    let publisher = bus.publisher();
    let batches = batches(60);
    let mut kept = Vec::new();
    for (at, batch) in batches.iter().enumerate() {
        publish(&publisher, at, batch);
        if ![20, 40].contains(&at) {
            continue;
        }
        let place = || {
            let keeper = keeper(&servers[0])?;
            servers.iter().position(|server| server.url == keeper)
        };
        wait_for("somebody keeps it who lives", || place().is_some());
        wait_for("some of it came", || {
            job(&servers[0])["steps"].as_u64() > Some(0)
        });
        let place = place().expect("nobody else has died");
        let mut dead = servers.remove(place);
        dead.kill();
        kept.push(dead.url.clone());
    }
    let [last] = servers.as_slice() else {
        panic!("two were killed")
    };
    assert!(!kept.contains(&last.url));
    let whole = analysed(&recording());
    assert_eq!(last.verdict_of_ended("job"), whole);
    assert_eq!(keeper(last).as_ref(), Some(&last.url));
    // It has all of it, however little of it came while it was the job's keeper.
    let whole_copy = (0..3).any(|at| {
        let copy = data(at).join("job/batches.zst");
        copy.exists() && analysed(&copy) == whole
    });
    assert!(whole_copy);
}

#[test]
fn a_job_is_taken_over_once_the_disk_of_who_takes_it_has_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(bus) = Bus::start(folder.path()) else {
        return;
    };
    let data = folder.path().join("data");
    fs::create_dir(&data).expect("a folder");
    let Some(disk) = Disk::mount(&data) else {
        println!("not tested: nothing may be mounted here");
        return;
    };
    let server = bus.collector(&data);
    disk.fill();
    publish(&bus.publisher(), 0, &batches(1)[0]);
    wait_for("it takes the job", || {
        !server.json("/api/v1/jobs")["jobs"][0].is_null()
    });
    sleep(Duration::from_secs(1));
    disk.free();
    assert_eq!(server.verdict_of_ended("job"), analysed(&recording()));
}

#[test]
fn an_agent_waits_for_its_bus_and_then_tells_it_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut bus) = Bus::start(folder.path()) else {
        return;
    };
    let server = bus.collector(&folder.path().join("data"));
    let uplink = bus.uplink();
    let inputs = inputs();
    let (first, second) = inputs.split_at(inputs.len() / 2);
    tell(&uplink, first);
    wait_for("some of it came", || {
        job(&server)["steps"].as_u64() > Some(0)
    });
    bus.kill();
    tell(&uplink, second);
    let mut said = Vec::new();
    let begun = Instant::now();
    while said.is_empty() {
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(20));
        said = uplink.take_lines();
    }
    assert!(said[0].contains("does not accept batches"), "{said:?}");
    let _bus = Bus::at(bus.port.into(), folder.path());
    assert!(uplink.finish(Farewell::Leave, PATIENCE));
    assert_eq!(server.verdict_of_ended("job"), analysed(&recording()));
}

#[test]
fn messages_that_come_twice_or_early_or_damaged_count_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(bus) = Bus::start(folder.path()) else {
        return;
    };
    let server = bus.collector(&folder.path().join("data"));
    let batches = batches(12);
    // The collector has made the stream by now, or an agent would wait.
    publish(&bus.publisher(), 0, b"no batch: nothing can be made of it");
    let mut raw = bus.raw();
    raw.request("laggard.batches.job.h", "", b"no headers");
    for pair in [[1, 0], [3, 2], [5, 4], [7, 6], [9, 8], [11, 10]] {
        for sequence in [pair[0], pair[1], pair[0], pair[1], 0] {
            raw.batch("e", sequence, &batches[sequence]);
        }
    }
    assert_eq!(server.verdict_of_ended("job"), analysed(&recording()));
    let (_, metrics) = server.get("/metrics", None);
    assert!(metrics.contains("laggard_batches_total 12\n"), "{metrics}");
    let malformed = "laggard_batches_refused_total{reason=\"malformed\"} 2\n";
    assert!(metrics.contains(malformed), "{metrics}");
}

#[test]
fn an_agent_begins_anew_with_a_collector_that_finds_the_beginning_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(bus) = Bus::start(folder.path()) else {
        return;
    };
    let mut server = bus.collector(&folder.path().join("data"));
    let uplink = bus.uplink();
    let inputs = inputs();
    let (first, second) = inputs.split_at(inputs.len() / 2);
    tell(&uplink, first);
    wait_for("some of it came", || {
        job(&server)["steps"].as_u64() > Some(0)
    });
    let before = job(&server);
    server.kill();
    // What is too old for the stream is dropped from it.
    let purged = bus.raw().request("$JS.API.STREAM.PURGE.LAGGARD", "", b"");
    assert_eq!(purged["success"], json!(true), "{purged}");
    let other = bus.collector(&folder.path().join("other"));
    // Agents that have nothing to say say so.
    wait_for("the agent tells it", || job(&other)["hosts"] == 1);
    tell(&uplink, second);
    assert!(uplink.finish(Farewell::Leave, PATIENCE));
    wait_for("it has ended", || job(&other)["state"] == "ended");
    let steps = job(&other)["steps"].as_u64().expect("a number");
    let before_steps = before["steps"].as_u64().expect("a number");
    assert!(
        steps > 0 && steps >= before_steps,
        "{before} {}",
        job(&other)
    );
    // Who the ranks are was told again.
    assert_eq!(job(&other)["ranks"], before["ranks"]);
}

#[test]
fn a_job_that_has_had_its_room_is_read_no_more_and_that_is_counted_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(bus) = Bus::start(folder.path()) else {
        return;
    };
    let data = folder.path().join("data");
    let batches = batches(8);
    let most = (batches[0].len() + 200).to_string();
    let server = Server::start(&data, &["--bus", &bus.url(), "--max-job-bytes", &most]);
    let publisher = bus.publisher();
    for (at, batch) in batches.iter().enumerate() {
        publish(&publisher, at, batch);
    }
    let full = "laggard_batches_refused_total{reason=\"full\"}";
    let refused = || {
        let (_, metrics) = server.get("/metrics", None);
        metrics
            .lines()
            .find_map(|line| line.strip_prefix(full)?.trim().parse().ok())
    };
    wait_for("one is refused", || refused() > Some(0));
    let before: Option<u64> = refused();
    sleep(Duration::from_secs(3));
    assert_eq!(refused(), before, "it is tried again and again");
    assert_eq!(job(&server)["ranks"], 4);
    // Once it has room, it reads on.
    drop(server);
    let server = bus.collector(&data);
    assert_eq!(server.verdict_of_ended("job"), analysed(&recording()));
}
