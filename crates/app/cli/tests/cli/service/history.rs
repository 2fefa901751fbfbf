//! The history that others query: it holds what the verdict says, once, whatever happens to
//! the collector and to where the history is kept.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::Value;

use super::tls::Authority;
use super::{PATIENCE, Server, batches, place};

/// Rows of a table, those of all files below `root`.
fn rows(root: &Path, table: &str) -> Vec<Value> {
    let mut rows = Vec::new();
    let is_table = |path: &PathBuf| {
        // The server that speaks as S3 does keeps an object's bytes with others beside them.
        let name = path.to_string_lossy();
        name.ends_with(".parquet") || name.ends_with(".parquet._S3rver_object")
    };
    for path in files(&root.join(table)).into_iter().filter(is_table) {
        let reader = SerializedFileReader::new(File::open(&path).expect("a file"));
        let reader = reader.expect("Parquet");
        let row = |row: parquet::errors::Result<Row>| {
            let row = row.expect("a row");
            let columns = row.get_column_iter();
            columns
                .map(|(name, field)| (name.clone(), json(field)))
                .collect()
        };
        rows.extend(reader.get_row_iter(None).expect("rows").map(row));
    }
    rows
}

fn json(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(flag) => (*flag).into(),
        Field::Int(number) => (*number).into(),
        Field::Long(number) | Field::TimestampMicros(number) => (*number).into(),
        Field::Double(number) => (*number).into(),
        Field::Str(text) => text.clone().into(),
        Field::ListInternal(list) => list.elements().iter().map(json).collect(),
        other => panic!("{other:?} is in no table"),
    }
}

/// All files below a folder, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

/// Rows without moments, which differ from run to run.
fn timeless(rows: Vec<Value>) -> Vec<String> {
    let timeless = rows.into_iter().map(|mut row| {
        let columns = row.as_object_mut().expect("a row");
        columns.retain(|name, _| !name.ends_with("_at"));
        row.to_string()
    });
    let mut rows: Vec<String> = timeless.collect();
    rows.sort();
    rows
}

fn whole(root: &Path) -> Vec<Vec<String>> {
    let tables = ["windows", "lags", "incidents", "evidence"];
    tables
        .into_iter()
        .map(|table| timeless(rows(root, table)))
        .collect()
}

/// Waits until the job is written down and nothing waits to be put into the history.
fn settled(data: &Path) {
    let begun = Instant::now();
    let outbox = data.join(".history");
    while !data.join("job/ended.json").exists() || !files(&outbox).is_empty() {
        assert!(begun.elapsed() < PATIENCE, "{:?}", files(&outbox));
        sleep(Duration::from_millis(50));
    }
}

/// The history of the recording, told without any trouble.
fn history_of_recording(data: &Path, root: &Path, every: &str) -> Value {
    let more = [
        "--history",
        root.to_str().expect("UTF-8"),
        "--history-every",
        every,
    ];
    let server = Server::start(data, &more);
    for (at, batch) in batches(7).iter().enumerate() {
        server.post(&place(at), batch).expect("an answer");
    }
    let verdict = server.verdict_of_ended("job");
    settled(data);
    verdict
}

#[test]
fn the_history_says_what_the_verdict_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("history");
    let verdict = history_of_recording(&folder.path().join("data"), &root, "300");
    let windows = rows(&root, "windows");
    let exposed_s: f64 = windows.iter().map(|row| number(&row["advance_s"])).sum();
    assert!((exposed_s - number(&verdict["job"]["exposed_s"])).abs() < 1e-9);
    for stage in verdict["stages"].as_array().expect("stages") {
        let of = windows.iter().filter(|row| row["stage"] == stage["name"]);
        let advance_s: f64 = of.map(|row| number(&row["advance_s"])).sum();
        assert!(
            (advance_s - number(&stage["advance_s"])).abs() < 1e-9,
            "{stage}"
        );
    }
    for window in verdict["windows"].as_array().expect("windows") {
        let of = windows
            .iter()
            .find(|row| row["first_step"] == window["first_step"]);
        let of = of.expect("the window");
        assert_eq!(
            (&of["steps"], &of["labels"]),
            (&window["steps"], &window["labels"])
        );
        assert!(of["begun_at"].as_i64() < of["ended_at"].as_i64(), "{of}");
    }
    let mut late_s: BTreeMap<String, f64> = BTreeMap::new();
    for row in rows(&root, "lags")
        .iter()
        .filter(|row| row["stage"] == "data.next_wait")
    {
        *late_s.entry(row["rank"].to_string()).or_default() += number(&row["lag_s"]);
    }
    let latest = late_s
        .iter()
        .max_by(|a, b| a.1.total_cmp(b.1))
        .expect("a rank");
    assert_eq!(latest.0, "2", "{late_s:?}");
    let incidents = rows(&root, "incidents");
    let said = verdict["incidents"].as_array().expect("incidents");
    assert_eq!((incidents.len(), said.len()), (1, 1));
    for name in [
        "kind",
        "severity",
        "open",
        "cost_s",
        "cost_gpu_s",
        "text",
        "advice",
    ] {
        assert_eq!(incidents[0][name], said[0][name], "{name}");
    }
    assert_eq!(incidents[0]["ranks"], said[0]["subject"]["ranks"]);
    assert_eq!(incidents[0]["hosts"], said[0]["subject"]["hosts"]);
    let begun = |row: &Value| row["begun_at"].as_i64().expect("a time");
    let first = windows.iter().map(begun).min().expect("a window");
    assert!(
        begun(&incidents[0]) >= first
            && incidents[0]["ended_at"].is_null() == (said[0]["open"] == true)
    );
    let evidence = rows(&root, "evidence");
    assert_eq!(
        evidence.len(),
        said[0]["evidence"].as_array().expect("evidence").len()
    );
    assert_eq!(evidence[0]["text"], said[0]["evidence"][0]["text"]);
    let values: Value =
        serde_json::from_str(evidence[0]["values_json"].as_str().expect("text")).expect("JSON");
    assert_eq!(values, said[0]["evidence"][0]["values"]);
}

#[test]
fn a_job_that_runs_has_a_history_and_kills_double_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    history_of_recording(&path("quiet"), &path("quiet-history"), "300");
    let whole_rows = whole(&path("quiet-history"));
    let (data, root) = (path("data"), path("history"));
    let more = [
        "--history",
        root.to_str().expect("UTF-8"),
        "--history-every",
        "0",
    ];
    let mut server = Server::start(&data, &more);
    let parts = batches(12);
    for (at, batch) in parts.iter().enumerate() {
        let (status, reply) = server.post(&place(at), batch).expect("an answer");
        assert_eq!(status, 200, "{reply}");
        if at == 10 {
            let begun = Instant::now();
            while rows(&root, "incidents").is_empty() {
                assert!(
                    begun.elapsed() < PATIENCE,
                    "nothing is told of a job that runs"
                );
                sleep(Duration::from_millis(50));
            }
        }
        // Killed at different moments of writing and putting.
        sleep(Duration::from_millis(at as u64 * 130 % 700));
        if at % 3 == 1 {
            server.kill();
            server = Server::start(&data, &more);
        }
    }
    server.verdict_of_ended("job");
    settled(&data);
    assert_eq!(whole(&root), whole_rows);
    // What another version left behind is removed once the job is read again.
    let part = files(&root.join("windows")).remove(0);
    let name = part.file_name().expect("a name").to_str().expect("UTF-8");
    let other = part.with_file_name(name.replace("-00000", "-00007"));
    fs::copy(&part, &other).expect("a copy");
    let foreign = part.with_file_name("1-00000.parquet");
    fs::copy(&part, &foreign).expect("a copy");
    drop(server);
    for file in ["job/ended.json", "catalogue.sqlite"] {
        fs::remove_file(data.join(file)).expect("it is there");
    }
    let _server = Server::start(&data, &more);
    let begun = Instant::now();
    while other.exists() {
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(50));
    }
    assert!(foreign.exists(), "it is of another job of the same name");
    fs::remove_file(foreign).expect("it is there");
    settled(&data);
    assert_eq!(whole(&root), whole_rows);
}

#[test]
fn names_of_jobs_are_folders_and_days_that_are_too_old_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let (data, root) = (folder.path().join("data"), folder.path().join("history"));
    let old = root.join("windows/job=old/day=2020-02-28/1-00000.parquet");
    fs::create_dir_all(old.parent().expect("a folder")).expect("room");
    fs::write(&old, "").expect("room");
    // Half written when something was killed, long ago and just now.
    let [left, new] = ["1-00000.parquet#1", "1-00000.parquet#2"].map(|name| {
        let path = root.join("windows").join(name);
        (File::create(&path).expect("room"), path)
    });
    let long_ago = SystemTime::now() - Duration::from_hours(2);
    left.0.set_modified(long_ago).expect("a clock");
    let root_text = root.to_str().expect("UTF-8");
    let server = Server::start(&data, &["--history", root_text, "--keep-days", "30"]);
    let place = "a%20j%C3%B6b%2F..%251=/hosts/h/epochs/e/batches/0";
    assert_eq!(
        server.post(place, &batches(1)[0]).expect("an answer").0,
        200
    );
    let begun = Instant::now();
    let found = root.join("windows/job=a%20j%C3%B6b%2F%2E%2E%251%3D");
    while !found.exists() || old.exists() || left.1.exists() {
        assert!(begun.elapsed() < PATIENCE, "{:?}", files(&root));
        sleep(Duration::from_millis(50));
    }
    assert!(new.1.exists(), "somebody may be about to write it");
}

#[test]
fn a_place_that_is_absent_delays_nobody_and_gets_all_in_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let (data, root) = (folder.path().join("data"), folder.path().join("history"));
    // Nobody listens there.
    let bucket = Bucket {
        port: free_port(),
        authority: None,
        child: None,
    };
    {
        let server = bucket.collector(&data, "1");
        for (at, batch) in batches(7).iter().enumerate() {
            assert_eq!(server.post(&place(at), batch).expect("an answer").0, 200);
        }
        server.verdict_of_ended("job");
        let begun = Instant::now();
        while !data.join("job/ended.json").exists() {
            assert!(begun.elapsed() < PATIENCE);
            sleep(Duration::from_millis(50));
        }
        let (_, metrics) = server.get("/metrics", None);
        let failed = metrics
            .lines()
            .find_map(|line| line.strip_prefix("laggard_history_failed_total "));
        assert!(failed.is_some_and(|count| count != "0"), "{metrics}");
    }
    // The job may be forgotten meanwhile; what waits is not.
    fs::remove_dir_all(data.join("job")).expect("it is there");
    let _server = Server::start(&data, &["--history", root.to_str().expect("UTF-8")]);
    let begun = Instant::now();
    while !files(&data.join(".history")).is_empty() {
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(50));
    }
    history_of_recording(
        &folder.path().join("other"),
        &folder.path().join("whole"),
        "300",
    );
    assert_eq!(whole(&root), whole(&folder.path().join("whole")));
}

/// A server that speaks as S3 does, with one bucket, which it keeps in a folder.
struct Bucket<'a> {
    port: u16,
    /// Who signed its certificate, if it is spoken to with TLS.
    authority: Option<&'a Authority>,
    child: Option<Child>,
}

impl Drop for Bucket<'_> {
    fn drop(&mut self) {
        self.kill();
    }
}

impl<'a> Bucket<'a> {
    /// `None` where there is no such server.
    fn start(port: u16, folder: &Path, authority: Option<&'a Authority>) -> Option<Self> {
        let mut command = Command::new("s3rver");
        command.args(["--address", "127.0.0.1", "--port", &port.to_string()]);
        command
            .args(["--configure-bucket", "cluster", "--directory"])
            .arg(folder);
        if let Some(pair) = authority.map(|authority| authority.pair("127.0.0.1")) {
            command
                .arg("--cert")
                .arg(pair.certificate)
                .arg("--key")
                .arg(pair.key);
        }
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let bucket = Self {
            port,
            authority,
            child: Some(child),
        };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < PATIENCE, "the server does not answer");
            sleep(Duration::from_millis(100));
        }
        Some(bucket)
    }

    fn url(&self) -> String {
        let scheme = if self.authority.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// A collector that keeps its history here.
    fn collector(&self, data: &Path, every: &str) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(data);
        command.args([
            "--history",
            "s3://cluster/laggard",
            "--history-every",
            every,
        ]);
        if let Some(authority) = self.authority {
            command.args(["--tls-ca", &authority.file()]);
        }
        command
            .env("AWS_ENDPOINT_URL", self.url())
            .env("AWS_REGION", "us-east-1");
        // Those it knows; it verifies what is signed with them.
        command
            .env("AWS_ACCESS_KEY_ID", "S3RVER")
            .env("AWS_SECRET_ACCESS_KEY", "S3RVER");
        Server::run(command)
    }

    /// As `kill -9` does.
    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
        }
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

#[test]
fn a_bucket_whose_server_is_killed_and_a_collector_that_is_lose_and_double_nothing() {
    if loses_and_doubles_nothing(None).is_none() {
        eprintln!("skipped: there is no s3rver (npm install s3rver)");
    }
}

#[test]
fn nor_do_they_with_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new(folder.path(), "right");
    if loses_and_doubles_nothing(Some(&authority)).is_none() {
        eprintln!("skipped: there is no s3rver (npm install s3rver)");
    }
}

/// `None` where there is no server to try it on.
fn loses_and_doubles_nothing(authority: Option<&Authority>) -> Option<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let port = free_port();
    let start = || Bucket::start(port, &path("s3"), authority);
    let mut bucket = start()?;
    let data = path("data");
    let mut server = bucket.collector(&data, "0");
    for (at, batch) in batches(24).iter().enumerate() {
        assert_eq!(server.post(&place(at), batch).expect("an answer").0, 200);
        // Killed at different moments of writing and putting.
        sleep(Duration::from_millis(at as u64 * 130 % 700));
        if at % 5 == 4 {
            bucket.kill();
        }
        if at % 4 == 2 {
            server.kill();
            server = bucket.collector(&data, "0");
        }
        if at % 5 == 1 && at > 5 {
            bucket = start().expect("it was there before");
        }
    }
    server.verdict_of_ended("job");
    settled(&data);
    history_of_recording(&path("other"), &path("whole"), "300");
    assert_eq!(whole(&path("s3/cluster/laggard")), whole(&path("whole")));
    Some(())
}
