//! What a server logs: nothing unless it is asked to, and then what programs can read.

use super::*;

/// A server that writes JSON, its address, and the rest of its lines.
fn start(data: &Path, level: &str) -> (Server, impl Iterator<Item = Value> + use<>) {
    let mut command = serve("127.0.0.1:0", data, &["--log-format", "json"]);
    command.env("LAGGARD_LOG", level).stderr(Stdio::piped());
    let mut child = command.spawn().expect("laggard runs");
    let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let mut lines = lines.map(|line| {
        let line = line.expect("text");
        serde_json::from_str::<Value>(&line).unwrap_or_else(|_| panic!("no JSON: {line}"))
    });
    let serving = lines.by_ref().find_map(|line| {
        let text = line["message"].as_str().unwrap_or_default().to_owned();
        text.strip_prefix("serving ").map(str::to_owned)
    });
    let serving = serving.expect("it says where it serves");
    let url = serving.split(',').next().unwrap_or_default().to_owned();
    (Server { child, url }, lines)
}

#[test]
fn a_batch_can_be_followed_from_when_it_comes_to_its_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, mut lines) = start(folder.path(), "warn,laggard_collector=debug");
    let (status, reply) = server.post(&place(0), &batches(2)[0]).expect("an answer");
    assert_eq!(status, 200, "{reply}");
    let mut said = Vec::new();
    let closed = loop {
        let line = lines.next().expect("the end of the batch");
        if line["span"]["name"] != "batch" {
            continue;
        }
        let span = &line["span"];
        assert_eq!(
            (&span["job"], &span["host"]),
            (&json!("job"), &json!("h")),
            "{line}"
        );
        assert_eq!(
            (&span["session"], &span["sequence"]),
            (&json!("e"), &json!(0))
        );
        if line["message"] == "close" {
            break line;
        }
        said.push(line["message"].as_str().unwrap_or_default().to_owned());
    };
    assert_eq!(said, ["received", "answered"]);
    assert!(closed["time.busy"].is_string(), "{closed}");
}

#[test]
fn a_level_that_is_none_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = serve("127.0.0.1:0", folder.path(), &[]);
    let output = command
        .env("LAGGARD_LOG", "collector=loud")
        .output()
        .expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.starts_with("laggard: LAGGARD_LOG=collector=loud: "),
        "{text}"
    );
}
