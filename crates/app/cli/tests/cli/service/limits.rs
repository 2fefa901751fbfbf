//! What a collector bears: callers that stall, are too many, tell too much or are not who they
//! should be.

use std::net::TcpStream;

use super::*;

/// Sends the beginning of a request to a server.
fn begin(server: &Server, head: &str, body: &[u8]) -> TcpStream {
    let address = server.url.strip_prefix("http://").expect("http");
    let mut stream = TcpStream::connect(address).expect("it is taken");
    let head = format!("{head}host: localhost\r\nlaggard-now-ns: 1000\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it is read");
    stream.write_all(body).expect("it is read");
    stream
}

#[test]
fn callers_that_stall_keep_nobody_from_telling() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), &[]);
    let batches = batches(2);
    let half = &batches[0][..batches[0].len() / 2];
    let stalled: Vec<TcpStream> = (0..80)
        .map(|at| {
            let place = format!("POST /api/v1/jobs/{at}/hosts/h/epochs/e/batches/0 HTTP/1.1\r\n");
            let length = format!("content-length: {}\r\n", batches[0].len());
            begin(&server, &(place + &length), half)
        })
        .collect();
    // Each of them has had its turn once this is answered.
    server.json("/api/v1/jobs");
    for (at, batch) in batches.iter().enumerate() {
        let (status, reply) = server.post(&place(at), batch).expect("an answer");
        assert_eq!(status, 200, "{reply}");
    }
    // None of them is waited for for ever.
    for mut stream in stalled {
        let mut answer = String::new();
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        stream.read_to_string(&mut answer).expect("it ends");
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    let (_, metrics) = server.get("/metrics", None);
    let reported = "laggard_batches_refused_total{reason=\"slow\"} 80\n";
    assert!(metrics.contains(reported), "{metrics}");
}

#[test]
fn callers_that_say_nothing_take_no_place_for_long() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("sh");
    let serve = format!(
        "ulimit -n 64 && exec {} serve --listen 127.0.0.1:0 --data {}",
        env!("CARGO_BIN_EXE_laggard"),
        folder.path().display()
    );
    let server = Server::run({
        command.args(["-c", &serve]);
        command
    });
    let silent: Vec<TcpStream> = (0..60)
        .map(|_| begin(&server, "GET / HTTP/1.1\r\n", b""))
        .collect();
    let idle: Vec<TcpStream> = (0..20)
        .filter_map(|_| TcpStream::connect(server.url.strip_prefix("http://")?).ok())
        .collect();
    assert_eq!(server.json("/api/v1/jobs")["jobs"], json!([]));
    drop((silent, idle));
}

#[test]
fn pages_of_others_change_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), &[]);
    let own = server.url.as_str();
    let post = |headers: &[(&str, &str)]| {
        let mut request = http().post(format!("{own}/api/v1/silences"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        read(
            request
                .send("{\"until_s\": 9000000000}")
                .expect("an answer"),
        )
        .0
    };
    let json = ("content-type", "application/json");
    // As a page sends it elsewhere without asking whether it may.
    assert_eq!(post(&[("content-type", "text/plain")]), 415);
    let elsewhere = ("origin", "https://attacker.example");
    assert_eq!(post(&[json, elsewhere]), 403);
    for site in ["cross-site", "same-site"] {
        assert_eq!(post(&[json, ("sec-fetch-site", site)]), 403);
    }
    assert_eq!(post(&[json, ("origin", "null")]), 403);
    assert_eq!(server.json("/api/v1/silences")["silences"], json!([]));
    assert_eq!(
        post(&[json, ("origin", own), ("sec-fetch-site", "same-origin")]),
        200
    );
    assert_eq!(
        post(&[("content-type", "application/json; charset=utf-8")]),
        200
    );
}

#[test]
fn a_job_or_a_batch_too_many_is_asked_to_come_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let batches = batches(4);
    let server = Server::start(folder.path(), &["--max-jobs", "1", "--max-job-bytes", "1"]);
    let sent = |place: &str, batch: &[u8]| {
        let url = format!("{}/api/v1/jobs/{place}", server.url);
        let answer = http()
            .post(url)
            .header("laggard-now-ns", "1000")
            .send(batch);
        let answer = answer.expect("an answer");
        let after = answer.headers().get("retry-after").is_some();
        let (status, text) = read(answer);
        (status, after, text)
    };
    // The job's first line is more than it may have.
    let (status, after, text) = sent(&place(0), &batches[0]);
    assert_eq!((status, after), (507, true), "{text}");
    assert!(text.contains("the job has no room left"), "{text}");
    let (status, after, text) = sent("other/hosts/h/epochs/e/batches/0", &batches[0]);
    assert_eq!((status, after), (429, true), "{text}");
    let (_, metrics) = server.get("/metrics", None);
    for reason in ["full", "jobs"] {
        let reported = format!("laggard_batches_refused_total{{reason=\"{reason}\"}} 1\n");
        assert!(metrics.contains(&reported), "{metrics}");
    }
    // Once there is room the same batches are taken.
    drop(server);
    let server = Server::start(folder.path(), &[]);
    for (at, batch) in batches.iter().enumerate() {
        assert_eq!(server.post(&place(at), batch).expect("an answer").0, 200);
    }
    assert_eq!(server.verdict_of_ended("job"), analysed(&recording()));
}

#[test]
fn jobs_that_have_ended_keep_no_other_from_being_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), &["--max-jobs", "1"]);
    for job in ["first", "second"] {
        let place = format!("{job}/hosts/h/epochs/e/batches/0");
        let begun = Instant::now();
        // The one before has ended once its pages are written.
        while server.post(&place, &batches(1)[0]).expect("an answer").0 != 200 {
            assert!(begun.elapsed() < PATIENCE, "{job}");
            sleep(Duration::from_millis(100));
        }
    }
    assert_eq!(
        server.json("/api/v1/jobs")["jobs"].as_array().map(Vec::len),
        Some(2)
    );
}

#[test]
fn what_is_refused_for_good_does_not_hold_the_rest_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), &[]);
    let (url, job, host) = (server.url.clone(), "job".to_owned(), "h".to_owned());
    let receiver = Receiver::Collector {
        tls: TlsConfig::default(),
        url,
        token: None,
    };
    let uplink = Uplink::start(Destination {
        receiver,
        job,
        host,
    })
    .expect("a thread");
    // Neither a mark of such a rank is taken, nor that one was lost.
    let mark = inputs().into_iter().find_map(|input| match input {
        Input::Mark { mark, .. } => Some(mark),
        _ => None,
    });
    uplink.tell(&Input::Mark {
        rank: 1 << 17,
        mark: mark.expect("a mark"),
    });
    let begun = Instant::now();
    let mut lines = uplink.take_lines();
    while lines.is_empty() && begun.elapsed() < PATIENCE {
        sleep(Duration::from_millis(20));
        lines = uplink.take_lines();
    }
    assert!(lines[0].contains("refuses a batch"), "{lines:?}");
    for input in &inputs() {
        uplink.tell(input);
    }
    uplink.advance_watermark(RankNs(u64::MAX >> 2));
    assert!(uplink.finish(Farewell::Leave, PATIENCE));
    assert_eq!(server.verdict_of_ended("job"), analysed(&recording()));
}
