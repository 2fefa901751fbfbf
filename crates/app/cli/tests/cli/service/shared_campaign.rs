//! Whatever faults hit collectors that share the jobs of a bus, the bus, and who sends to it:
//! nothing is lost, nothing counts twice, and the verdict is that of a job without faults.
//!
//! `LAGGARD_TEST_FAULTS=500` for the whole campaign; a few without it.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bus::Publisher;
use model::Input;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;

use super::campaign::{Disk, RecordedJob, bad_host, campaign, stop};
use super::shared::{Bus, keeper, publish_of};
use super::{PATIENCE, Server, http, own, packed, read};

const COLLECTORS: usize = 3;
/// Longer than a collector may be silent before its jobs are taken from it.
const CUT_OFF: Duration = Duration::from_secs(12);
const HOUR_NS: u64 = 3_600_000_000_000;

/// Faults that were injected in a campaign, by kind.
#[derive(Debug, Default)]
struct FaultCounts {
    kills: u64,
    lasting_kills: u64,
    bus_kills: u64,
    cut_off: u64,
    stopped: u64,
    bus_stopped: u64,
    repeated: u64,
    early: u64,
    damaged: u64,
    clock_jumps: u64,
    full: u64,
    agents_anew: u64,
    bad_hosts: u64,
}

struct Trial<'a> {
    bus: Bus,
    folder: &'a Path,
    /// `None` for one that was killed for good.
    servers: Vec<Option<Server>>,
    disk: Option<Disk>,
    bad: Option<PathBuf>,
    publisher: Publisher,
    recorded: &'a RecordedJob,
    seed: u16,
    /// How often the agent was started anew.
    session: u32,
    now_ns: u64,
    /// What was injected, and when.
    log: String,
    random: SmallRng,
    faults: &'a mut FaultCounts,
}

impl Trial<'_> {
    fn data(&self, at: usize) -> PathBuf {
        self.folder.join(format!("data{at}"))
    }

    fn start(&mut self, at: usize) {
        let bad = self.bad.as_deref().filter(|_| at == 1);
        // Where it was before, and nobody else may have gone meanwhile.
        let [high, low] = self.seed.to_be_bytes();
        let address = format!("127.{}.{low}.{}:8765", 77 + high, 1 + at);
        let server = Server::on(bad, &address, &self.data(at), &["--bus", &self.bus.url()]);
        self.servers[at] = Some(server);
    }

    /// Waits until a collector says of the job what is to be said, or leads to one that does.
    fn check(&self, server: &Server) {
        let begun = Instant::now();
        let url = format!("{}/api/v1/jobs/job/verdict", server.url);
        loop {
            // Who kept it may be dead, and not known to be.
            let answer = http()
                .get(&url)
                .call()
                .map(read)
                .map_err(|error| error.to_string());
            let verdict = match &answer {
                Ok((200, text)) => own(serde_json::from_str(text).expect("JSON")),
                _ => Value::Null,
            };
            if verdict == self.recorded.whole {
                return;
            }
            let (url, log) = (&server.url, &self.log);
            assert!(
                begun.elapsed() < PATIENCE,
                "{url} says {answer:?} after{log}"
            );
            sleep(Duration::from_millis(100));
        }
    }

    /// One that lives.
    fn any(&mut self) -> usize {
        let alive: Vec<usize> = (0..COLLECTORS)
            .filter(|at| self.servers[*at].is_some())
            .collect();
        alive[self.random.random_range(0..alive.len())]
    }

    /// The collector that keeps the job, or any of them if that is not known.
    fn keeper(&mut self) -> usize {
        let any = self.any();
        let keeper = self.servers[any].as_ref().and_then(keeper);
        self.servers
            .iter()
            .position(|server| {
                server
                    .as_ref()
                    .is_some_and(|it| Some(&it.url) == keeper.as_ref())
            })
            .unwrap_or(any)
    }

    fn publish(&self, sequence: usize, body: &[u8]) {
        let session = format!("e{}", self.session);
        publish_of(&self.publisher, &session, sequence, self.now_ns, body);
    }

    /// Something that may happen while the next batch is `at`.
    fn inject(&mut self, at: usize) {
        let batches = &self.recorded.batches;
        let what = self.random.random_range(0..18);
        self.log += &format!(" {what}@{at}");
        match what {
            0 | 1 => {
                let place = self.keeper();
                self.start_again(place);
                self.faults.kills += 1;
            }
            2 => {
                let place = self.any();
                self.start_again(place);
                self.faults.kills += 1;
            }
            3 if self.servers.iter().flatten().count() > 1 => {
                let place = self.keeper();
                self.servers[place] = None;
                self.faults.lasting_kills += 1;
            }
            4 => {
                self.bus.kill();
                let away = Duration::from_millis(self.random.random_range(0..1500));
                sleep(away);
                self.bus = Bus::at(self.bus.port.into(), self.folder);
                self.faults.bus_kills += 1;
            }
            5 if self.random.random_ratio(1, 4) => {
                let place = self.keeper();
                self.pause(place, CUT_OFF);
                self.faults.cut_off += 1;
            }
            5 | 6 => {
                let place = self.keeper();
                self.pause(place, Duration::from_millis(30));
                self.faults.stopped += 1;
            }
            7 => {
                stop(self.bus.child.id(), Duration::from_millis(500));
                self.faults.bus_stopped += 1;
            }
            8 => {
                let known = self.random.random_range(0..=at);
                self.raw(known, &batches[known]);
                self.faults.repeated += 1;
            }
            // An agent that has deregistered is not started anew: that would be another start of
            // the job.
            9 if at + 2 < batches.len() => {
                self.raw(at + 1, &batches[at + 1]);
                self.faults.early += 1;
            }
            10 => {
                let mut bytes = batches[at].clone();
                let cut = self.random.random_range(0..bytes.len());
                bytes.truncate(cut);
                self.raw(at, &bytes);
                self.faults.damaged += 1;
            }
            11 => {
                self.now_ns = self.random.random_range(0..100 * HOUR_NS);
                self.faults.clock_jumps += 1;
            }
            12 => {
                let Some(disk) = &self.disk else { return };
                disk.fill();
                self.publish(at, &batches[at]);
                sleep(Duration::from_millis(500));
                disk.free();
                self.faults.full += 1;
            }
            13 => {
                // It reads again what the rings have, and tells all of it.
                self.session += 1;
                let chunk = self.recorded.inputs.len().div_ceil(batches.len());
                for (sequence, inputs) in self.recorded.inputs.chunks(chunk).take(at).enumerate() {
                    self.publish(sequence, &again(inputs));
                }
                self.faults.agents_anew += 1;
            }
            _ => {}
        }
    }

    fn raw(&self, sequence: usize, body: &[u8]) {
        self.bus
            .raw()
            .batch(&format!("e{}", self.session), sequence, body);
    }

    fn start_again(&mut self, place: usize) {
        self.servers[place] = None;
        self.start(place);
    }

    fn pause(&self, place: usize, lasts: Duration) {
        stop(
            self.servers[place].as_ref().expect("it lives").child.id(),
            lasts,
        );
    }
}

/// What of a batch an agent that was started anew tells again.
fn again(inputs: &[Input]) -> Vec<u8> {
    let in_ring = inputs.iter().filter(|input| {
        matches!(
            input,
            Input::Rank { .. } | Input::Name { .. } | Input::Group { .. } | Input::Mark { .. }
        )
    });
    packed(in_ring, false)
}

#[test]
fn faults_of_collectors_and_their_bus_do_not_show_in_the_verdict() {
    campaign(6, 16, run_trial);
}

fn run_trial(recorded: &RecordedJob, seed: u64, faults: &mut FaultCounts) {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(bus) = Bus::start(folder.path()) else {
        return;
    };
    let mut random = SmallRng::seed_from_u64(seed);
    let bad = random.random_ratio(1, 4).then(|| bad_host(folder.path()));
    faults.bad_hosts += u64::from(bad.is_some());
    let data = folder.path().join("data0");
    std::fs::create_dir(&data).expect("a folder");
    let publisher = bus.publisher();
    let mut trial = Trial {
        bus,
        folder: folder.path(),
        servers: (0..COLLECTORS).map(|_| None).collect(),
        seed: seed as u16,
        disk: Disk::mount(&data),
        bad,
        publisher,
        recorded,
        session: 0,
        now_ns: 1000,
        log: String::new(),
        random,
        faults,
    };
    for place in 0..COLLECTORS {
        trial.start(place);
    }
    trial.publish(0, &recorded.batches[0]);
    for (at, batch) in recorded.batches.iter().enumerate().skip(1) {
        trial.inject(at);
        trial.publish(at, batch);
    }
    trial
        .servers
        .iter()
        .flatten()
        .for_each(|server| trial.check(server));
    // It is the same for a collector that comes back.
    for place in 0..COLLECTORS {
        trial.start_again(place);
    }
    trial
        .servers
        .iter()
        .flatten()
        .for_each(|server| trial.check(server));
}
