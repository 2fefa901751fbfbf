//! A disk that is full when something is to be written that no host tells again.

use super::campaign::Disk;
use super::*;

#[test]
fn the_end_of_a_job_is_written_down_once_there_is_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(disk) = Disk::mount(folder.path()) else {
        println!("not tested: nothing may be mounted here");
        return;
    };
    let server = Server::start(folder.path(), &[]);
    let batches = batches(2);
    assert_eq!(
        server.post(&place(0), &batches[0]).expect("an answer").0,
        200
    );
    // Room for the batch, and for no page.
    disk.fill_but(batches[1].len() as u64 + (16 << 10));
    assert_eq!(
        server.post(&place(1), &batches[1]).expect("an answer").0,
        200
    );
    // It is tried to end the job two seconds after its hosts deregistered.
    sleep(Duration::from_secs(4));
    let ended = folder.path().join("job/ended.json");
    assert!(!ended.exists());
    assert_eq!(server.verdict_of_ended("job"), analysed(&recording()));
    disk.free();
    let begun = Instant::now();
    while !ended.exists() {
        assert!(begun.elapsed() < PATIENCE, "it is not tried again");
        sleep(Duration::from_millis(50));
    }
    assert_eq!(server.verdict_of_ended("job"), analysed(&recording()));
}

#[test]
fn a_host_that_falls_silent_while_the_disk_is_full_is_missed_all_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(disk) = Disk::mount(folder.path()) else {
        println!("not tested: nothing may be mounted here");
        return;
    };
    let server = Server::start(folder.path(), &[]);
    assert_eq!(
        server.post(&place(0), &batches(2)[0]).expect("an answer").0,
        200
    );
    disk.fill();
    server.wait_for_metric("laggard_appends_failed_total 1");
    assert_ne!(server.json("/api/v1/jobs")["jobs"][0]["state"], "silent");
    disk.free();
    let begun = Instant::now();
    while server.json("/api/v1/jobs")["jobs"][0]["state"] != "silent" {
        assert!(begun.elapsed() < PATIENCE, "nobody misses it");
        sleep(Duration::from_millis(100));
    }
}
