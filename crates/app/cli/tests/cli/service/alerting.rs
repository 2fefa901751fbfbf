//! Messages of incidents: none is lost, whichever side is away.

use std::net::TcpListener;

use super::*;

#[test]
fn a_message_nobody_takes_is_kept_until_somebody_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = nobody.local_addr().expect("an address");
    drop(nobody);
    let url = format!("http://{address}/hook");
    let start = || Server::start(folder.path(), &["--webhook", &url]);
    let batches = batches(8);
    let server = start();
    for (at, batch) in batches[..7].iter().enumerate() {
        server.post(&place(at), batch).expect("an answer");
    }
    server.wait_for_metric("laggard_alerts_waiting 1");
    server.wait_for_metric("laggard_alerts_failed_total 2");
    // Killed with the message, and once more with that of its end.
    drop(server);
    let server = start();
    server.wait_for_metric("laggard_alerts_waiting 1");
    server.post(&place(7), &batches[7]).expect("an answer");
    server.wait_for_metric("laggard_alerts_waiting 2");
    let begun = Instant::now();
    while !folder.path().join("job/ended.json").exists() {
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(50));
    }
    drop(server);
    let server = start();
    let listener = TcpListener::bind(address).expect("the port is free");
    let (_, messages) = hook_on(listener, "http", |stream| stream);
    let next = || messages.recv_timeout(PATIENCE).expect("a message");
    let (opened, ended) = (next(), next());
    assert_eq!(
        (&opened["event"], &ended["event"]),
        (&json!("opened"), &json!("ended"))
    );
    assert_eq!(opened["incident"]["id"], ended["incident"]["id"]);
    assert_eq!(opened["begun_s"], ended["begun_s"]);
    server.wait_for_metric("laggard_alerts_waiting 0");
    server.wait_for_metric("laggard_alerts_sent_total 2");
    assert!(messages.try_recv().is_err());
}

/// Ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().expect("it can be killed");
        self.0.wait().expect("it ends");
    }
}

#[test]
fn alertmanager_hears_of_what_goes_on_again_after_it_forgot() {
    let folder = tempfile::tempdir().expect("a folder");
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = nobody.local_addr().expect("an address").to_string();
    drop(nobody);
    let config = folder.path().join("alertmanager.yml");
    fs::write(
        &config,
        "route: {receiver: none}\nreceivers: [{name: none}]\n",
    )
    .expect("a file");
    let start = |storage: &str| {
        let mut command = Command::new("prometheus-alertmanager");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!(
            "--storage.path={}",
            folder.path().join(storage).display()
        ));
        command.arg(format!("--web.listen-address={address}"));
        command.args(["--cluster.listen-address=", "--log.level=error"]);
        command.spawn().map(Program).ok()
    };
    let alerts = || {
        let url = format!("http://{address}/api/v2/alerts");
        let answer = http().get(url).call().ok().map(read);
        let answer = answer.filter(|(status, _)| *status == 200);
        let all: Option<Value> = answer.and_then(|(_, text)| serde_json::from_str(&text).ok());
        all.and_then(|all| all.as_array().cloned())
            .unwrap_or_default()
    };
    let wait_for = |count: usize, patience: Duration| {
        let begun = Instant::now();
        while alerts().len() != count {
            assert!(begun.elapsed() < patience, "{:?}", alerts());
            sleep(Duration::from_millis(100));
        }
    };
    let Some(manager) = start("first") else {
        println!("not tested: there is no prometheus-alertmanager");
        return;
    };
    let url = format!("http://{address}/api/v2/alerts");
    let more = ["--webhook", &url, "--webhook-form", "alertmanager"];
    let server = Server::start(&folder.path().join("data"), &more);
    let batches = batches(8);
    for (at, batch) in batches[..7].iter().enumerate() {
        server.post(&place(at), batch).expect("an answer");
    }
    wait_for(1, PATIENCE);
    let labels = alerts()[0]["labels"].clone();
    assert_eq!(labels["alertname"], "laggard_slow");
    assert_eq!(labels["training_job"], "job");
    drop(manager);
    let _manager = start("second").expect("it was there before");
    wait_for(1, PATIENCE * 2);
    assert_eq!(alerts()[0]["labels"], labels);
    server.post(&place(7), &batches[7]).expect("an answer");
    // What is over is not active any more.
    wait_for(0, PATIENCE);
}

#[test]
fn an_incident_is_announced_once_and_its_end_once() {
    let batches = batches(8);
    for form in ["json", "alertmanager", "slack"] {
        let folder = tempfile::tempdir().expect("a folder");
        let (url, messages) = hook();
        let more = ["--webhook", &url, "--webhook-form", form];
        let server = Server::start(folder.path(), &more);
        for (at, batch) in batches[..7].iter().enumerate() {
            server.post(&place(at), batch).expect("an answer");
        }
        let next = || messages.recv_timeout(PATIENCE).expect("a message");
        let opened = next();
        server.wait_for_metric("laggard_alerts_sent_total 1");
        // One that is started anew does not repeat it.
        drop(server);
        let server = Server::start(folder.path(), &more);
        sleep(Duration::from_millis(1500));
        assert!(messages.try_recv().is_err());
        server.post(&place(7), &batches[7]).expect("an answer");
        let ended = next();
        let said = "rank 2 is late in data.next_wait";
        match form {
            "json" => {
                assert_eq!(opened["event"], "opened");
                assert_eq!(ended["event"], "ended");
                assert_eq!(opened["incident"]["id"], ended["incident"]["id"]);
                assert!(
                    opened["incident"]["text"]
                        .as_str()
                        .expect("text")
                        .starts_with(said)
                );
            }
            "alertmanager" => {
                assert_eq!(opened[0]["labels"], ended[0]["labels"]);
                assert_eq!(opened[0]["labels"]["alertname"], "laggard_slow");
                assert_eq!(opened[0]["startsAt"], ended[0]["startsAt"]);
                assert!(opened[0]["endsAt"].as_str() > ended[0]["endsAt"].as_str());
            }
            _ => {
                let text = |message: &Value| message["text"].as_str().expect("text").to_owned();
                assert!(text(&opened).starts_with(&format!("job job: {said}")));
                assert!(text(&ended).starts_with(&format!("over: job job: {said}")));
            }
        }
        sleep(Duration::from_millis(1500));
        assert!(messages.try_recv().is_err());
    }
}

#[test]
fn in_a_silence_nobody_is_alerted() {
    let folder = tempfile::tempdir().expect("a folder");
    let (url, messages) = hook();
    let server = Server::start(folder.path(), &["--webhook", &url]);
    let silence = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
        command
            .arg("silence")
            .args(arguments)
            .args(["--collector", &server.url]);
        let output = command.output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).expect("text"))
    };
    assert_eq!(silence(&[]), (Some(0), "no silence\n".to_owned()));
    let added = silence(&["job", "--for", "2h", "--reason", "storage is moved"]);
    assert_eq!(
        added,
        (
            Some(0),
            "   1  job  120 min left  storage is moved\n".to_owned()
        )
    );
    let parts = batches(8);
    for (at, batch) in parts[..7].iter().enumerate() {
        server.post(&place(at), batch).expect("an answer");
    }
    let begun = Instant::now();
    while server.json("/api/v1/jobs")["jobs"][0]["open_incidents"] != 1 {
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(50));
    }
    sleep(Duration::from_millis(1500));
    assert!(messages.try_recv().is_err());
    assert_eq!(
        silence(&["--end", "1"]),
        (Some(0), "no silence\n".to_owned())
    );
    let (status, reported) = silence(&["--end", "1"]);
    assert_eq!(status, Some(2));
    assert!(
        reported.contains("there is no such silence (404)"),
        "{reported}"
    );
    // A host that speaks again, as hosts do all the time.
    let (status, _) = server.post(&place(6), &parts[6]).expect("an answer");
    assert_eq!(status, 200);
    let message = messages.recv_timeout(PATIENCE).expect("a message");
    assert_eq!(message["event"], "opened");
    let (status, reported) = silence(&["--all"]);
    assert_eq!(status, Some(2), "{reported}");
}
