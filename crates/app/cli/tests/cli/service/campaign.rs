//! Whatever faults hit a collector while hosts send it a job: what it answered for is kept, nothing
//! counts twice, and the verdict is that of a job without faults.
//!
//! `LAGGARD_TEST_FAULTS=500` for the whole campaign; a few without it.

use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{PATIENCE, Server, analysed, batches_of, in_batches, inputs_of, place, recording_of};
use formats::unpack_batch;
use model::Input;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

/// Recorded jobs, and one whose ranks are all well.
const JOBS: [&str; 4] = ["data", "periodic", "two", "none"];
const BATCHES: usize = 12;

/// A file system of its own that can be full, where we may mount one.
pub(super) struct Disk(PathBuf);

impl Disk {
    pub(super) fn mount(at: &Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
            .arg(at);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then(|| Self(at.to_owned()))
    }

    /// Leaves no room.
    pub(super) fn fill(&self) {
        self.fill_but(0);
    }

    /// Leaves so much room.
    pub(super) fn fill_but(&self, bytes: u64) {
        let mut file = std::fs::File::create(self.0.join("filler")).expect("a file");
        while file.write_all(&[0; 1 << 12]).is_ok() {}
        let length = file.metadata().expect("it is there").len();
        file.set_len(length.saturating_sub(bytes))
            .expect("it can be shorter");
    }

    pub(super) fn free(&self) {
        std::fs::remove_file(self.0.join("filler")).expect("it is there");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

/// Faults that were injected into the collectors of a campaign, by kind.
#[derive(Debug, Default)]
struct FaultCounts {
    kills: u64,
    kills_in_batch: u64,
    repeated: u64,
    early: u64,
    damaged: u64,
    cut: u64,
    stopped: u64,
    full: u64,
    bad_hosts: u64,
}

/// Starts a collector, on a [`bad_host`] if there is one.
fn start(data: &Path, bad: Option<&Path>) -> Server {
    Server::on(bad, "127.0.0.1:0", data, &[])
}

struct Trial<'a> {
    server: Server,
    data: &'a Path,
    disk: Option<&'a Disk>,
    bad: Option<&'a Path>,
    batches: &'a [Vec<u8>],
    random: SmallRng,
    faults: &'a mut FaultCounts,
}

impl Trial<'_> {
    fn start_again(&mut self) {
        self.server.kill();
        self.server = start(self.data, self.bad);
    }

    /// Sends a batch until it is taken.
    fn send(&mut self, at: usize) {
        let begun = Instant::now();
        let (mut status, mut reply) = self.post(at);
        // What was full takes a moment to be tried again.
        while status == 503 && begun.elapsed() < PATIENCE {
            sleep(Duration::from_millis(20));
            (status, reply) = self.post(at);
        }
        assert_eq!((status, &reply["next"]), (200, &json!(at + 1)), "{reply}");
    }

    fn post(&self, at: usize) -> (u16, Value) {
        self.server
            .post(&place(at), &self.batches[at])
            .expect("an answer")
    }

    /// Something that may happen while the next batch is `at`.
    fn inject(&mut self, at: usize) {
        let url = self.server.url.clone();
        match self.random.random_range(0..12) {
            0 => {
                self.start_again();
                self.faults.kills += 1;
            }
            1 => {
                let after = Duration::from_micros(self.random.random_range(0..6_000));
                let pid = self.server.child.id();
                let killer = std::thread::spawn(move || {
                    sleep(after);
                    let mut kill = Command::new("kill");
                    kill.args(["-9", &pid.to_string()])
                        .status()
                        .expect("kill runs");
                });
                drop(self.server.post(&place(at), &self.batches[at]));
                killer.join().expect("it was killed");
                self.start_again();
                self.faults.kills_in_batch += 1;
            }
            2 => {
                let known = self.random.random_range(0..=at);
                self.send(known);
                self.faults.repeated += 1;
            }
            3 if at + 1 < self.batches.len() => {
                let (status, reply) = self.post(at + 1);
                assert_eq!((status, &reply["next"]), (409, &json!(at)), "{reply}");
                self.faults.early += 1;
            }
            4 => {
                let mut bytes = self.batches[at].clone();
                let struck = self.random.random_range(0..bytes.len());
                bytes[struck] ^= 1 << self.random.random_range(0..8);
                let (status, reply) = self.server.post(&place(at), &bytes).expect("an answer");
                // Some bits of a frame mean nothing; what it says is under a checksum.
                let says = |bytes: &[u8]| unpack_batch(bytes).expect("a batch").1;
                assert!(
                    status == 400 || says(&bytes) == says(&self.batches[at]),
                    "{reply}"
                );
                self.faults.damaged += 1;
            }
            5 => {
                // The network is cut in the middle of a batch.
                let address = url.strip_prefix("http://").expect("http");
                let mut stream = TcpStream::connect(address).expect("a connection");
                let body = &self.batches[at];
                let head = format!(
                    "POST /api/v1/jobs/{} HTTP/1.1\r\nhost: {address}\r\n\
                     laggard-now-ns: 1000\r\ncontent-length: {}\r\n\r\n",
                    place(at),
                    body.len()
                );
                stream.write_all(head.as_bytes()).expect("room");
                let until = self.random.random_range(0..body.len());
                stream.write_all(&body[..until]).expect("room");
                self.faults.cut += 1;
            }
            6 => {
                stop(self.server.child.id(), Duration::from_millis(30));
                self.faults.stopped += 1;
            }
            7 => {
                let Some(disk) = self.disk else { return };
                disk.fill();
                let (status, reply) = self.post(at);
                // The last page of the file may have room for it; a job that is new has none.
                assert!([200, 503, 507].contains(&status), "{status} {reply}");
                self.faults.full += u64::from(status != 200);
                if self.random.random() {
                    self.server.kill();
                    disk.free();
                    self.server = start(self.data, self.bad);
                } else {
                    disk.free();
                }
            }
            _ => {}
        }
    }
}

/// Stops a process for a while.
pub(super) fn stop(pid: u32, lasts: Duration) {
    let signal = |name: &str| {
        Command::new("kill")
            .args([name, &pid.to_string()])
            .status()
            .expect("kill runs");
    };
    signal("-STOP");
    sleep(lasts);
    signal("-CONT");
}

/// A recorded job that is sent to collectors.
pub(super) struct RecordedJob {
    pub(super) job: &'static str,
    pub(super) inputs: Vec<Input>,
    pub(super) batches: Vec<Vec<u8>>,
    /// What is to be said of it.
    pub(super) whole: Value,
}

/// Tells jobs with seeds, so many at once: `few` of them, or `LAGGARD_TEST_FAULTS`, from `LAGGARD_TEST_SEED`
/// on. Prints the faults that were injected.
#[expect(clippy::print_stdout, reason = "a campaign says what it did")]
pub(super) fn campaign<FaultCounts: Default + std::fmt::Debug>(
    few: usize,
    at_once: usize,
    trial: impl Fn(&RecordedJob, u64, &mut FaultCounts) + Sync,
) {
    let number = |name| {
        let number = std::env::var(name).ok()?;
        Some(
            number
                .parse::<usize>()
                .unwrap_or_else(|_| panic!("{name} is a number")),
        )
    };
    let first = number("LAGGARD_TEST_SEED");
    let few = number("LAGGARD_TEST_FAULTS").unwrap_or(first.map_or(few, |_| 1));
    let first = first.unwrap_or(0);
    let seeds = first..first + few;
    let jobs = JOBS.map(|job| {
        let recording = recording_of(job);
        let (inputs, whole) = (inputs_of(&recording), analysed(&recording));
        RecordedJob {
            job,
            batches: in_batches(&inputs, BATCHES),
            inputs,
            whole,
        }
    });
    std::thread::scope(|scope| {
        for nth in 0..at_once.min(few) {
            let (jobs, trial, seeds) = (&jobs, &trial, seeds.clone());
            scope.spawn(move || {
                let mut faults = FaultCounts::default();
                for seed in seeds.skip(nth).step_by(at_once) {
                    trial(&jobs[seed % jobs.len()], seed as u64, &mut faults);
                }
                println!("{faults:?}");
            });
        }
    });
}

/// A host whose disk takes up to 0.1 s to write and whose time of day jumps by hours: a library to
/// preload.
pub(super) fn bad_host(folder: &Path) -> PathBuf {
    const SOURCE: &str = r"
        #include <stdlib.h>
        #include <sys/syscall.h>
        #include <time.h>
        #include <unistd.h>
        int fdatasync(int file) {
            usleep(rand() % 100000);
            return fsync(file);
        }
        int clock_gettime(clockid_t clock, struct timespec *time) {
            static __thread long jump;
            int failed = syscall(SYS_clock_gettime, clock, time);
            if (clock != CLOCK_REALTIME) return failed;
            if (rand() % 50 == 0) jump = (rand() % 5 - 2) * 3600;
            time->tv_sec += jump;
            return failed;
        }
    ";
    let (source, library) = (folder.join("bad_host.c"), folder.join("bad_host.so"));
    std::fs::write(&source, SOURCE).expect("a file");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source);
    assert!(cc.status().expect("a C compiler").success());
    library
}

#[test]
fn faults_of_a_collector_do_not_show_in_its_verdict() {
    // Trials mostly wait.
    campaign(6, 16, run_trial);
}

fn run_trial(recorded: &RecordedJob, seed: u64, faults: &mut FaultCounts) {
    let RecordedJob {
        job,
        batches,
        whole,
        ..
    } = recorded;
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    std::fs::create_dir(&data).expect("a folder");
    let disk = Disk::mount(&data);
    let mut random = SmallRng::seed_from_u64(seed);
    let bad = random.random_ratio(1, 4).then(|| bad_host(folder.path()));
    faults.bad_hosts += u64::from(bad.is_some());
    let mut trial = Trial {
        server: start(&data, bad.as_deref()),
        data: &data,
        disk: disk.as_ref(),
        bad: bad.as_deref(),
        batches,
        random,
        faults,
    };
    for at in 0..batches.len() {
        trial.inject(at);
        trial.send(at);
    }
    let verdict = trial.server.verdict_as("job", whole);
    assert_eq!(verdict, *whole, "{job}, seed {seed}");
    // It is the same after one more start, from what was written down.
    trial.start_again();
    let verdict = trial.server.verdict_as("job", whole);
    assert_eq!(verdict, *whole, "{job}, seed {seed}, read again");
    assert_eq!(
        analysed(&data.join("job/batches.zst")),
        *whole,
        "{job}, seed {seed}"
    );
}

#[test]
fn a_job_that_could_not_be_kept_is_kept_once_it_can() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), &[]);
    let batches = batches_of(&recording_of("data"), 2);
    let post = |at: usize| server.post(&place(at), &batches[at]).expect("an answer").0;
    // Where its folder should be.
    let obstacle = folder.path().join("job");
    std::fs::write(&obstacle, "").expect("a file");
    assert_eq!([post(0), post(0)], [503, 503]);
    std::fs::remove_file(&obstacle).expect("it is there");
    let begun = Instant::now();
    while post(0) != 200 {
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(20));
    }
    assert_eq!(post(1), 200);
    let whole = analysed(&recording_of("data"));
    assert_eq!(server.verdict_as("job", &whole), whole);
}
