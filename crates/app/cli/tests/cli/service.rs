//! `laggard serve` as agents and readers meet it: what it answered for is kept whatever
//! happens to it, nothing counts twice, and its verdict is that of `laggard analyze`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use agent::{Destination, Farewell, Receiver, Uplink};
use formats::{Limits, Recording, input_line, load, pack_batch};
use model::{Input, RankNs};
use protocol::BatchHead;
use serde_json::{Value, json};
use ureq::tls::TlsConfig;

mod agents;
mod alerting;
mod campaign;
mod catalogue;
mod deploy;
mod full;
mod fuzzed;
mod history;
mod limits;
mod logging;
mod shared;
mod shared_campaign;
mod tls;

/// Far more than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

struct Server {
    child: Child,
    url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Server {
    fn start(data: &Path, more: &[&str]) -> Self {
        Self::at("127.0.0.1:0", data, more)
    }

    fn at(address: &str, data: &Path, more: &[&str]) -> Self {
        Self::run(serve(address, data, more))
    }

    /// Starts it with a library that makes its host a bad one, if there is one.
    fn on(bad: Option<&Path>, address: &str, data: &Path, more: &[&str]) -> Self {
        let mut command = serve(address, data, more);
        command.envs(bad.map(|library| ("LD_PRELOAD", library)));
        Self::run(command)
    }

    fn run(mut command: Command) -> Self {
        let mut child = command
            .stderr(Stdio::piped())
            .spawn()
            .expect("laggard runs");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        // What it warns of may come before.
        let mut said = Vec::new();
        let serving = lines.by_ref().find_map(|line| {
            let line = line.expect("text");
            let serving = line.strip_prefix("laggard: serving ").map(str::to_owned);
            said.push(line);
            serving
        });
        let serving = serving.unwrap_or_else(|| panic!("it does not serve: {said:?}"));
        let url = serving.split(',').next().unwrap_or_default().to_owned();
        // The rest is read, lest the server has to wait for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url }
    }

    /// As `kill -9` does.
    fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    fn get(&self, path: &str, token: Option<&str>) -> (u16, String) {
        let mut request = http().get(format!("{}{path}", self.url));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        read(request.call().expect("an answer"))
    }

    /// The answer once the server has read what it has.
    fn get_once_read(&self, path: &str) -> (u16, String) {
        let (mut status, mut text) = self.get(path, None);
        let begun = Instant::now();
        while status == 503 && begun.elapsed() < PATIENCE {
            sleep(Duration::from_millis(20));
            (status, text) = self.get(path, None);
        }
        (status, text)
    }

    fn json(&self, path: &str) -> Value {
        let (status, text) = self.get_once_read(path);
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Sends a batch; `Err` if the server went away.
    fn post(&self, place: &str, body: &[u8]) -> Result<(u16, Value), ureq::Error> {
        let url = format!("{}/api/v1/jobs/{place}", self.url);
        let request = http().post(url).header("laggard-now-ns", "1000");
        let (status, text) = read(request.send(body)?);
        Ok((status, serde_json::from_str(&text).unwrap_or(json!(text))))
    }

    /// Waits until one of the metrics is so.
    fn wait_for_metric(&self, line: &str) {
        let begun = Instant::now();
        loop {
            let (_, metrics) = self.get("/metrics", None);
            if metrics.lines().any(|found| found == line) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "not {line}:\n{metrics}");
            sleep(Duration::from_millis(50));
        }
    }

    /// The verdict of a job once all of it was taken, but for what is not the job's own.
    fn verdict_of_ended(&self, job: &str) -> Value {
        self.verdict_as(job, &analysed(&recording()))
    }

    /// The same of a job that was recorded as one with this verdict.
    fn verdict_as(&self, job: &str, whole: &Value) -> Value {
        let begun = Instant::now();
        loop {
            let jobs = self.json("/api/v1/jobs");
            let ended = |one: &&Value| one["id"] == job && one["state"] == "ended";
            if jobs["jobs"]
                .as_array()
                .expect("jobs")
                .iter()
                .find(ended)
                .is_some()
            {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "{jobs}");
            sleep(Duration::from_millis(50));
        }
        // The last lines are analysed when the job is ended, two seconds later.
        let mut verdict = self.json(&format!("/api/v1/jobs/{job}/verdict"));
        while own(verdict.clone()) != *whole && begun.elapsed() < PATIENCE {
            sleep(Duration::from_millis(50));
            verdict = self.json(&format!("/api/v1/jobs/{job}/verdict"));
        }
        own(verdict)
    }
}

fn serve(address: &str, data: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    command
        .args(["serve", "--listen", address, "--data"])
        .arg(data)
        .args(more);
    command
}

fn http() -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .timeout_global(Some(PATIENCE))
        .build();
    config.into()
}

fn read(mut response: ureq::http::Response<ureq::Body>) -> (u16, String) {
    let text = response.body_mut().read_to_string().expect("text");
    (response.status().as_u16(), text)
}

fn recording() -> PathBuf {
    recording_of("data")
}

fn recording_of(job: &str) -> PathBuf {
    let jobs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../testdata/jobs");
    jobs.join(format!("{job}.jsonl.zst"))
}

/// What `laggard analyze` says of a recording.
fn analysed(recording: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    let output = command
        .args(["analyze", "--json"])
        .arg(recording)
        .output()
        .expect("it runs");
    own(serde_json::from_slice(&output.stdout).expect("JSON"))
}

/// A verdict but for where it comes from.
fn own(mut verdict: Value) -> Value {
    let job = verdict["job"].as_object_mut().expect("a job");
    job.remove("id");
    job.remove("source");
    verdict
}

fn inputs() -> Vec<Input> {
    inputs_of(&recording())
}

fn inputs_of(recording: &Path) -> Vec<Input> {
    match load(recording, Limits::default()) {
        Ok(Recording::Journal(journal)) => journal.inputs().to_vec(),
        other => panic!("no journal: {other:?}"),
    }
}

/// The recording in as many batches, the last one last.
fn batches(count: usize) -> Vec<Vec<u8>> {
    batches_of(&recording(), count)
}

fn batches_of(recording: &Path, count: usize) -> Vec<Vec<u8>> {
    in_batches(&inputs_of(recording), count)
}

fn in_batches(inputs: &[Input], count: usize) -> Vec<Vec<u8>> {
    let parts = inputs.chunks(inputs.len().div_ceil(count));
    let last = parts.len() - 1;
    parts
        .enumerate()
        .map(|(at, part)| packed(part, at == last))
        .collect()
}

fn packed<'a>(inputs: impl IntoIterator<Item = &'a Input>, last: bool) -> Vec<u8> {
    let (mut lines, mut until) = (Vec::new(), RankNs::default());
    for input in inputs {
        input_line(input, &mut lines).expect("room");
        until = until.max(input.at().unwrap_or_default());
    }
    pack_batch(&BatchHead::new("boot", until, last), &lines).expect("room")
}

fn place(sequence: usize) -> String {
    format!("job/hosts/h/epochs/e/batches/{sequence}")
}

#[test]
fn batches_sent_twice_out_of_order_and_damaged_give_the_verdict_of_the_recording() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), &[]);
    let batches = batches(7);
    let post = |at: usize, body: &[u8]| server.post(&place(at), body).expect("an answer");
    let (status, reply) = post(1, &batches[1]);
    assert_eq!((status, &reply["next"]), (409, &json!(0)), "{reply}");
    for (at, batch) in batches.iter().enumerate() {
        let (status, reply) = post(at, &batch[..batch.len() - 5]);
        assert_eq!(status, 400, "{reply}");
        for _ in 0..2 {
            let (status, reply) = post(at, batch);
            assert_eq!((status, &reply["next"]), (200, &json!(at + 1)), "{reply}");
        }
        let (status, reply) = post(at / 2, &batches[at / 2]);
        assert_eq!(
            (status, &reply["next"]),
            (200, &json!(at / 2 + 1)),
            "{reply}"
        );
    }
    let bomb = pack_batch(
        &BatchHead::new("boot", RankNs(0), false),
        &b"[0,1,0,1,1,0]\n".repeat(1_300_000),
    );
    assert_eq!(post(batches.len(), &bomb.expect("room")).0, 413);
    // The server need not read on to refuse what is far too long.
    let refused = server.post(&place(batches.len()), &vec![0; 5 << 20]);
    assert!(refused.map_or(true, |(status, _)| status == 413));
    let long = format!("{}/hosts/h/epochs/e/batches/0", "j".repeat(129));
    assert_eq!(server.post(&long, &batches[0]).expect("an answer").0, 400);
    assert_eq!(server.verdict_of_ended("job"), analysed(&recording()));
    let (_, metrics) = server.get("/metrics", None);
    assert!(metrics.contains("laggard_batches_total 7\n"), "{metrics}");
    assert!(
        metrics.contains("laggard_batches_duplicate_total 14\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("laggard_jobs{state=\"ended\"} 1\n"),
        "{metrics}"
    );
}

#[test]
fn an_agent_that_was_replaced_hears_so_and_counts_no_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(folder.path(), &[]);
    let batches = batches(4);
    let post = |server: &Server, session: &str, at: usize| {
        let place = format!("job/hosts/h/epochs/{session}/batches/{at}");
        server.post(&place, &batches[at]).expect("an answer")
    };
    let taken = [("old", 0), ("old", 1), ("new", 0), ("new", 1), ("old", 1)];
    for (session, at) in taken {
        assert_eq!(post(&server, session, at).0, 200, "{session} {at}");
    }
    for _ in 0..2 {
        let (status, reply) = post(&server, "old", 2);
        assert_eq!(status, 400, "{reply}");
        assert!(reply["error"].to_string().contains("--host"), "{reply}");
        server.kill();
        server = Server::start(folder.path(), &[]);
    }
    assert_eq!(
        [post(&server, "new", 2).0, post(&server, "new", 3).0],
        [200, 200]
    );
    assert_eq!(server.verdict_of_ended("job"), analysed(&recording()));
}

#[test]
fn hosts_are_asked_once_to_profile_the_same_steps_of_a_suspect_and_its_peers() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), &[]);
    let mut asked = Vec::new();
    for (at, batch) in batches(60).iter().enumerate() {
        let (_, reply) = server.post(&place(at), batch).expect("an answer");
        let profile = &reply["profile"];
        if !profile.is_null() && asked.last() != Some(profile) {
            asked.push(profile.clone());
        }
        // What a batch says is analysed once it is answered for.
        server.json("/api/v1/jobs");
    }
    let [profile] = asked.as_slice() else {
        panic!("{asked:?}")
    };
    assert_eq!(profile["ranks"], json!([0, 1, 2]), "rank 2 is late");
    assert_eq!(profile["steps"], 10);
}

#[test]
fn what_was_answered_for_outlives_kills_at_any_moment_and_counts_once() {
    let whole = analysed(&recording());
    let batches = batches(60);
    for seed in 0..3_u64 {
        let folder = tempfile::tempdir().expect("a folder");
        let mut server = Server::start(folder.path(), &[]);
        let (mut at, mut random, mut kills) = (0, seed * 7919 + 1, 0);
        while at < batches.len() {
            // Numerical Recipes' generator: a kill every eighth batch or so.
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) % (1 << 32);
            if random >> 29 == 0 && kills < 6 {
                // Killed while the batch is on its way: whether it was taken is not known.
                let pid = server.child.id();
                let killer = std::thread::spawn(move || {
                    sleep(Duration::from_micros(random >> 18));
                    let mut kill = Command::new("kill");
                    kill.args(["-9", &pid.to_string()])
                        .status()
                        .expect("kill runs");
                });
                drop(server.post(&place(at), &batches[at]));
                killer.join().expect("it was killed");
                server.child.wait().expect("it ends");
                server = Server::start(folder.path(), &[]);
                kills += 1;
            }
            let (status, reply) = server.post(&place(at), &batches[at]).expect("an answer");
            assert_eq!(status, 200, "{reply}");
            at += 1;
        }
        assert!(kills > 0);
        assert_eq!(server.verdict_of_ended("job"), whole, "seed {seed}");
        let kept = folder.path().join("job/batches.zst");
        assert_eq!(analysed(&kept), whole, "seed {seed}");
        // It is the same after one more start, from what was written down.
        server.kill();
        let server = Server::start(folder.path(), &[]);
        assert_eq!(server.verdict_of_ended("job"), whole, "seed {seed}");
        let (status, page) = server.get("/api/v1/jobs/job/report", None);
        assert!(status == 200 && page.contains("rank 2 is late in data.next_wait"));
    }
}

#[test]
fn an_agent_waits_for_its_collector_and_then_tells_it_all() {
    let folder = tempfile::tempdir().expect("a folder");
    // A port nobody listens on until the collector is started anew there.
    let server = Server::start(folder.path(), &[]);
    let url = server.url.clone();
    drop(server);
    let job = "job".to_owned();
    let receiver = Receiver::Collector {
        tls: TlsConfig::default(),
        url: url.clone(),
        token: None,
    };
    let destination = Destination {
        receiver,
        job,
        host: "h".to_owned(),
    };
    let uplink = Uplink::start(destination).expect("a thread");
    for input in &inputs() {
        uplink.tell(input);
    }
    uplink.advance_watermark(RankNs(u64::MAX >> 2));
    let begun = Instant::now();
    let mut lines = uplink.take_lines();
    while lines.is_empty() && begun.elapsed() < PATIENCE {
        sleep(Duration::from_millis(20));
        lines = uplink.take_lines();
    }
    assert!(lines[0].contains("does not accept batches"), "{lines:?}");
    let server = Server::at(
        url.strip_prefix("http://").expect("http"),
        folder.path(),
        &[],
    );
    assert!(uplink.finish(Farewell::Leave, PATIENCE));
    assert_eq!(server.verdict_of_ended("job"), analysed(&recording()));
}

#[test]
fn a_collector_that_never_answers_costs_the_patience_of_the_end_and_nothing_else() {
    // Connections are made, and nobody reads from them.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", deaf.local_addr().expect("an address"));
    let (job, host) = ("job".to_owned(), "h".to_owned());
    let tls = TlsConfig::default();
    let receiver = Receiver::Collector {
        url,
        tls,
        token: None,
    };
    let destination = Destination {
        receiver,
        job,
        host,
    };
    let uplink = Uplink::start(destination).expect("a thread");
    for _ in 0..3 {
        for input in &inputs() {
            uplink.tell(input);
        }
        sleep(Duration::from_millis(400));
    }
    let begun = Instant::now();
    assert!(!uplink.finish(Farewell::Leave, Duration::from_millis(300)));
    // Its answer alone would be waited for ten seconds.
    assert!(begun.elapsed() < Duration::from_secs(8));
}

#[test]
fn tokens_open_what_their_roles_may_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens.toml");
    let text = "agent = \"agent-agent-agent\"\nviewer = \"viewer-viewer-viewer\"\n";
    fs::write(&tokens, text).expect("a file");
    let data = folder.path().join("data");
    let server = Server::start(&data, &["--tokens", tokens.to_str().expect("UTF-8")]);
    let status = |token| server.get("/api/v1/jobs", token).0;
    assert_eq!(status(None), 401);
    assert_eq!(status(Some("viewer-viewer-viewes")), 401);
    assert_eq!(status(Some("agent-agent-agent")), 403);
    assert_eq!(status(Some("viewer-viewer-viewer")), 200);
    assert_eq!(server.get("/healthz", None).0, 200);
    assert_eq!(
        server.post(&place(0), &batches(1)[0]).expect("an answer").0,
        401
    );
    // What a browser shows by itself opens pages and nothing else.
    let basic = |method: &str| {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(match method {
                "GET" => format!("{}/", server.url),
                _ => format!("{}/api/v1/jobs/{}", server.url, place(0)),
            });
        // "me:viewer-viewer-viewer", "me:agent-agent-agent"
        let shown = match method {
            "GET" => "bWU6dmlld2VyLXZpZXdlci12aWV3ZXI=",
            _ => "bWU6YWdlbnQtYWdlbnQtYWdlbnQ=",
        };
        let request = request.header("authorization", format!("Basic {shown}"));
        read(
            http()
                .run(request.body(()).expect("a request"))
                .expect("an answer"),
        )
        .0
    };
    assert_eq!((basic("GET"), basic("POST")), (200, 401));
}

#[test]
fn an_address_that_others_reach_takes_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    command
        .args(["serve", "--listen", "0.0.0.0:0", "--data"])
        .arg(folder.path());
    let output = command.output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("use --tokens FILE"), "{printed}");
    // Nor is a page of somebody else's answered that reaches us by a name of its own.
    let server = Server::start(folder.path(), &[]);
    let request = http().get(format!("{}/api/v1/jobs", server.url));
    let answer = request
        .header("host", "attacker.example")
        .call()
        .expect("an answer");
    assert_eq!(read(answer).0, 403);
    // Two collectors would write the same files.
    command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(folder.path());
    let output = command.output().expect("it runs");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(
        printed.contains("another collector keeps its jobs in"),
        "{printed}"
    );
}

#[test]
fn the_api_is_as_it_says_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), &[]);
    let document = server.json("/api/v1/openapi.json");
    let paths = document["paths"].as_object().expect("paths");
    for (path, methods) in paths
        .iter()
        .filter(|(_, methods)| methods["get"].is_object())
    {
        let (status, text) = server.get(&path.replace("{job}", "none"), None);
        let said = methods["get"]["responses"].get(status.to_string());
        assert!(
            said.is_some() || text == "{\"error\":\"there is no such job\"}",
            "{path}: {text}"
        );
    }
    let (status, text) = server.get("/api/v2/jobs", None);
    assert_eq!(
        (status, text.as_str()),
        (404, "{\"error\":\"there is nothing at this address\"}")
    );
    // What the framework refuses is refused in the same form.
    let (status, reply) = server
        .post("job/hosts/h/epochs/e/batches/-1", b"")
        .expect("an answer");
    assert_eq!((status, reply), (400, json!({"error": "Bad Request"})));
    let (status, reply) = server.post("%ff/verdict", b"").expect("an answer");
    assert_eq!(
        (status, reply),
        (405, json!({"error": "Method Not Allowed"}))
    );
    server.post(&place(0), &batches(2)[0]).expect("an answer");
    let listed = &server.json("/api/v1/jobs")["jobs"][0];
    let schema = &document["components"]["schemas"]["job"]["properties"];
    let names = |value: &Value| {
        let mut names: Vec<_> = value
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(listed), names(schema));
    let delete = || {
        let request = http().delete(format!("{}/api/v1/jobs/job", server.url));
        read(request.call().expect("an answer")).0
    };
    assert_eq!(delete(), 409, "it runs");
    server.post(&place(1), &batches(2)[1]).expect("an answer");
    server.verdict_of_ended("job");
    let begun = Instant::now();
    while delete() != 204 {
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(50));
    }
    assert_eq!(delete(), 404);
    assert_eq!(server.json("/api/v1/jobs")["jobs"], json!([]));
    assert!(!folder.path().join("job").exists());
}

/// Takes messages until somebody drops the receiver; answers the first with an error.
fn hook() -> (String, std::sync::mpsc::Receiver<Value>) {
    hook_over("http", |stream| stream)
}

fn hook_over<S: Read + Write>(
    scheme: &str,
    wrap: impl Fn(std::net::TcpStream) -> S + Send + 'static,
) -> (String, std::sync::mpsc::Receiver<Value>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    hook_on(listener, scheme, wrap)
}

fn hook_on<S: Read + Write>(
    listener: std::net::TcpListener,
    scheme: &str,
    wrap: impl Fn(std::net::TcpStream) -> S + Send + 'static,
) -> (String, std::sync::mpsc::Receiver<Value>) {
    let url = format!(
        "{scheme}://{}/hook",
        listener.local_addr().expect("an address")
    );
    let (sender, messages) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for (at, stream) in listener.incoming().enumerate() {
            let mut stream = BufReader::new(wrap(stream.expect("a connection")));
            let mut length = 0;
            let mut line = String::new();
            while stream.read_line(&mut line).is_ok_and(|read| read > 2) {
                let lower = line.to_ascii_lowercase();
                if let Some(value) = lower.strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a number");
                }
                line.clear();
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).expect("a body");
            let status = if at == 0 { "500 No" } else { "200 OK" };
            let answer =
                format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream
                .get_mut()
                .write_all(answer.as_bytes())
                .expect("it is read");
            let message = serde_json::from_slice(&body).expect("JSON");
            if at > 0 && sender.send(message).is_err() {
                return;
            }
        }
    });
    (url, messages)
}

#[test]
fn jobs_of_a_collector_are_compared_and_their_report_is_fetched() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens.toml");
    let text = "agent = \"agent-agent-agent\"\nviewer = \"viewer-viewer-viewer\"\n";
    fs::write(&tokens, text).expect("a file");
    let server = Server::start(
        &folder.path().join("data"),
        &["--tokens", tokens.to_str().expect("UTF-8")],
    );
    let url = format!(
        "{}/api/v1/jobs/a%20job/hosts/h/epochs/e/batches/0",
        server.url
    );
    let request = http().post(url).header("laggard-now-ns", "1000");
    let request = request.header("authorization", "Bearer agent-agent-agent");
    assert_eq!(
        read(request.send(&batches(1)[0]).expect("an answer")).0,
        200
    );
    let page = folder.path().join("page.html");
    let ask = |token: &str, arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
        command.args(arguments).args(["--collector", &server.url]);
        command
            .env("LAGGARD_TOKEN", token)
            .output()
            .expect("it runs")
    };
    let report = ["report", "a job", "--out", page.to_str().expect("UTF-8")];
    let refused = ask("agent-agent-agent", &report);
    let printed = String::from_utf8_lossy(&refused.stderr);
    assert!(
        printed.contains("this token does not allow that; set LAGGARD_TOKEN"),
        "{printed}"
    );
    assert_eq!((refused.status.code(), page.exists()), (Some(2), false));
    let begun = Instant::now();
    loop {
        let answer = ask("viewer-viewer-viewer", &report);
        let page = fs::read_to_string(&page).unwrap_or_default();
        if answer.status.success() && page.contains("rank 2 is late in data.next_wait") {
            break;
        }
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(100));
    }
    let compared = ask(
        "viewer-viewer-viewer",
        &["compare", "a job", "a job", "--json"],
    );
    let found: Value = serde_json::from_slice(&compared.stdout).expect("JSON");
    assert_eq!(
        (&found["a"]["id"], &found["outcome"]),
        (&json!("a job"), &json!("undecided"))
    );
    let other = ask("viewer-viewer-viewer", &["compare", "a job", "another"]);
    let printed = String::from_utf8_lossy(&other.stderr);
    assert!(printed.contains("there is no such job (404)"), "{printed}");
}

#[test]
fn jobs_that_have_ended_are_forgotten_by_age_and_by_size() {
    let folder = tempfile::tempdir().expect("a folder");
    for keep in [["--keep-days", "0"], ["--keep-gb", "0"]] {
        let server = Server::start(folder.path(), &[]);
        server.post(&place(0), &batches(1)[0]).expect("an answer");
        server.verdict_of_ended("job");
        // What is written down last.
        let begun = Instant::now();
        while !folder.path().join("job/ended.json").exists() {
            assert!(begun.elapsed() < PATIENCE);
            sleep(Duration::from_millis(50));
        }
        drop(server);
        let server = Server::start(folder.path(), &["--keep-days", "1", "--keep-gb", "1"]);
        assert_eq!(server.json("/api/v1/jobs")["jobs"][0]["state"], "ended");
        drop(server);
        // Heard of a second ago, at least.
        sleep(Duration::from_millis(1100));
        let server = Server::start(folder.path(), &keep);
        let begun = Instant::now();
        while server.json("/api/v1/jobs")["jobs"] != json!([]) {
            assert!(begun.elapsed() < PATIENCE, "{keep:?}");
            sleep(Duration::from_millis(50));
        }
        assert!(!folder.path().join("job").exists());
    }
}

#[test]
fn top_wants_a_terminal() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    let output = command
        .arg("top")
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(printed.contains("top needs a terminal"), "{printed}");
}
