//! The catalogue of jobs and incidents: a cache that may be lost at any time.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{PATIENCE, Server, batches, batches_of, place, recording_of};

/// A collector that was told of two jobs, which have ended: rank 2 of one is late, the ranks of
/// the other are all well.
fn two_jobs(data: &Path) {
    let server = Server::start(data, &[]);
    for (at, batch) in batches(3).iter().enumerate() {
        server.post(&place(at), batch).expect("an answer");
    }
    for (at, batch) in batches_of(&recording_of("none"), 2).iter().enumerate() {
        let place = format!("well/hosts/h/epochs/e/batches/{at}");
        server.post(&place, batch).expect("an answer");
    }
    let begun = Instant::now();
    while !["job", "well"]
        .iter()
        .all(|job| data.join(job).join("ended.json").exists())
    {
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(50));
    }
    // It is listed after that; where it was not, it is read once more.
}

fn listed(server: &Server) -> Vec<Value> {
    asked(server, "")
}

fn asked(server: &Server, query: &str) -> Vec<Value> {
    let found = server.json(&format!("/api/v1/incidents{query}"));
    assert_eq!(
        (&found["schema"], &found["more"]),
        (&json!("laggard.incidents/1"), &json!(false))
    );
    found["incidents"].as_array().expect("incidents").clone()
}

#[test]
fn incidents_of_all_jobs_are_found_by_time_job_rank_and_host() {
    let folder = tempfile::tempdir().expect("a folder");
    two_jobs(folder.path());
    let server = Server::start(folder.path(), &[]);
    let all = listed(&server);
    let verdict = server.json("/api/v1/jobs/job/verdict");
    let [one] = all.as_slice() else {
        panic!("{all:?}")
    };
    assert_eq!(
        (&one["job"], &one["incident"]),
        (&json!("job"), &verdict["incidents"][0])
    );
    let host = one["incident"]["subject"]["hosts"][0]
        .as_str()
        .expect("a host");
    assert!(one["begun_s"].is_f64() && one["ended_s"].is_null(), "{one}");
    // It went on to the end of the job.
    let last_s = server.json("/api/v1/jobs")["jobs"][0]["last_seen_s"].as_f64();
    let last_s = last_s.expect("a time");
    for (query, count) in [
        ("?job=job&rank=2".to_owned(), 1),
        ("?rank=1".to_owned(), 0),
        ("?job=well".to_owned(), 0),
        (format!("?host={host}&since={last_s}"), 1),
        ("?host=elsewhere".to_owned(), 0),
        (format!("?since={}", last_s + 1.0), 0),
        (format!("?before={}", one["begun_s"]), 0),
        (
            format!("?before={}", one["begun_s"].as_f64().expect("a time") + 1.0),
            1,
        ),
    ] {
        assert_eq!(asked(&server, &query).len(), count, "{query}");
    }
    for query in ["?rank=-1", "?ranks=1", "?since=yesterday"] {
        let (status, text) = server.get(&format!("/api/v1/incidents{query}"), None);
        assert!(
            status == 400 && text.contains("query string"),
            "{query}: {text}"
        );
    }
}

#[test]
fn a_catalogue_that_is_lost_or_damaged_is_made_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    two_jobs(data);
    let server = Server::start(data, &[]);
    let state = |server: &Server| (server.json("/api/v1/jobs"), listed(server));
    let known = state(&server);
    assert_eq!(
        (known.0["jobs"].as_array().map(Vec::len), known.1.len()),
        (Some(2), 1)
    );
    drop(server);
    let file = data.join("catalogue.sqlite");
    let damages: [&dyn Fn(); 4] = [
        &|| fs::remove_file(&file).expect("it is there"),
        &|| fs::write(&file, "nothing of the kind").expect("room"),
        &|| {
            let mut bytes = fs::read(&file).expect("a file");
            bytes.truncate(bytes.len() / 2);
            fs::write(&file, bytes).expect("room");
        },
        &|| {
            // The layout's number, in SQLite's header.
            let mut bytes = fs::read(&file).expect("a file");
            bytes[63] += 1;
            fs::write(&file, bytes).expect("room");
        },
    ];
    for (at, damage) in damages.into_iter().enumerate() {
        damage();
        let server = Server::start(data, &[]);
        assert_eq!(state(&server), known, "damage {at}");
    }
    // Where it is whole, jobs that have ended are listed from it, and read when they are asked for.
    fs::remove_file(data.join("job/ended.json")).expect("it is there");
    let server = Server::start(data, &[]);
    assert_eq!(state(&server), known);
    assert_eq!(server.json("/api/v1/jobs/job/verdict")["job"]["id"], "job");
    sleep(Duration::from_secs(3));
    assert!(
        !data.join("job/ended.json").exists(),
        "the job was analysed anew"
    );
    // What is forgotten is not listed; what went behind our back neither.
    let request = super::http().delete(format!("{}/api/v1/jobs/job", server.url));
    assert_eq!(super::read(request.call().expect("an answer")).0, 204);
    assert_eq!(listed(&server), Vec::<Value>::new());
    drop(server);
    fs::remove_dir_all(data.join("well")).expect("it is there");
    let server = Server::start(data, &[]);
    assert_eq!(server.json("/api/v1/jobs")["jobs"], json!([]));
}

#[test]
fn a_job_of_which_the_batches_are_damaged_says_so_and_can_be_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    two_jobs(data);
    // As if it had not ended when the disk lost half of it.
    fs::remove_file(data.join("catalogue.sqlite")).expect("it is there");
    let job = data.join("job");
    for entry in fs::read_dir(&job).expect("a folder") {
        let path = entry.expect("a file").path();
        if !path.ends_with("batches.zst") {
            fs::remove_file(path).expect("it is there");
        }
    }
    let file = job.join("batches.zst");
    let mut bytes = fs::read(&file).expect("a file");
    let half = bytes.len() / 2;
    bytes[half..].fill(0xaa);
    fs::write(&file, bytes).expect("room");
    let server = Server::start(data, &[]);
    let answer = server.get_once_read("/api/v1/jobs/job/verdict");
    assert!(
        answer.0 == 500 && answer.1.contains("cannot be read"),
        "{answer:?}"
    );
    let request = super::http().delete(format!("{}/api/v1/jobs/job", server.url));
    assert_eq!(super::read(request.call().expect("an answer")).0, 204);
    assert!(!job.exists());
}
