//! What a collector bears: simulated hosts tell a real one of simulated ranks, over HTTP and from
//! this machine, and it is timed when windows and incidents can be read.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use formats::{input_line, pack_batch};
use model::{CollectiveIssue, CollectiveOp, Event, Input, Mark, RankNs, Verdict};
use protocol::{BatchAddress, BatchHead, CLOCK_HEADER};
use serde::Deserialize;

use crate::server::ServeProcess;

/// How often a host tells, as agents do.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// The same where a day goes by in minutes: what an agent is behind at most without being left.
const TELL_EVERY_SIMULATED: Duration = Duration::from_secs(10);
/// Threads that tell.
const TELLERS: usize = 16;
/// Far from the start of any clock.
const CLOCK_BEGINS_NS: u64 = 1_000_000_000_000;
/// How long the fault of a job makes its rank's data wait, as a part of the step.
const LATE: f64 = 0.2;
/// The group all ranks meet in.
const GROUP: u32 = 1;

/// Who tells, and how much.
#[derive(Debug, clap::Args)]
pub(crate) struct LoadArgs {
    /// Ranks of all jobs
    #[arg(long, default_value_t = 10_000)]
    ranks: u32,
    /// Jobs that the ranks are shared out to
    #[arg(long, default_value_t = 1)]
    jobs: u32,
    /// Ranks of a host
    #[arg(long, default_value_t = 8)]
    per_host: u32,
    /// Milliseconds of a step
    #[arg(long, default_value_t = 2_000)]
    step_ms: u64,
    /// Collectives that a rank issues in a step
    #[arg(long, default_value_t = 20)]
    collectives: u32,
    /// How long they tell
    #[arg(long, default_value_t = 180)]
    seconds: u64,
    /// They tell of this as fast as it is taken
    #[arg(long)]
    fast: bool,
    /// The command to measure
    #[arg(long, default_value = "laggard")]
    laggard: String,
}

/// Times of a job's steps: from `fault_step` on its slow rank waits for data, and all for it.
#[derive(Clone, Copy, Debug)]
struct Course {
    step_ns: u64,
    late_ns: u64,
    fault_step: u32,
    slow_rank: u32,
    collectives: u32,
}

impl Course {
    fn new(args: &LoadArgs, ranks: u32) -> Self {
        let step_ns = args.step_ms * 1_000_000;
        let steps = args.seconds * 1_000_000_000 / step_ns;
        Self {
            step_ns,
            late_ns: (step_ns as f64 * LATE) as u64,
            fault_step: (steps / 2) as u32,
            slow_rank: ranks / 3,
            collectives: args.collectives,
        }
    }

    /// When a step begins, on the clock of the hosts.
    fn begin_ns(&self, step: u32) -> u64 {
        let slow = u64::from(step.saturating_sub(self.fault_step));
        CLOCK_BEGINS_NS + u64::from(step) * self.step_ns + slow * self.late_ns
    }

    /// What a rank does in a step. Data takes it a twentieth of the step, forward a quarter, the
    /// optimizer a tenth, each up to a hundredth more; in backward it waits for the others.
    fn marks(&self, rank: u32, step: u32) -> impl Iterator<Item = Mark> + use<> {
        let (begin, end) = (self.begin_ns(step), self.begin_ns(step + 1));
        let is_late = rank == self.slow_rank && step >= self.fault_step;
        let noise = u64::from(mixed(rank, step)) % 100;
        let part = |percent: u64| self.step_ns / 10_000 * (percent * 100 + noise);
        let data = begin + part(5) + if is_late { self.late_ns } else { 0 };
        let forward = data + part(25);
        let backward = end - part(10);
        // The noise cancels out. Forward ends by 32 % of the step and issues by 82 %; backward ends
        // at 89 % at the earliest.
        let backward_ns = part(50) - part(0);
        let count = self.collectives;
        let issues = (0..count).map(move |nth| {
            let number = u64::from(step) * u64::from(count) + u64::from(nth) + 1;
            let issue = CollectiveIssue::new(CollectiveOp::ALLREDUCE, GROUP, number);
            let issue = CollectiveIssue {
                // The default size of a bucket of DDP.
                bytes: Some(25 << 20),
                ..issue
            };
            let at = forward + 1000 + backward_ns / u64::from(count) * u64::from(nth);
            (at, Event::CollectiveIssue(issue))
        });
        let before = [
            (begin, Event::DataBegin),
            (data, Event::DataEnd),
            (data, Event::ForwardBegin),
            (forward, Event::ForwardEnd),
            (forward, Event::BackwardBegin),
        ];
        let after = [
            (backward, Event::BackwardEnd),
            (backward, Event::OptimizerBegin),
            (end, Event::OptimizerEnd),
        ];
        let events = before.into_iter().chain(issues).chain(after);
        events.map(move |(at, event)| Mark {
            at: RankNs(at),
            step,
            on_loop_thread: true,
            event,
        })
    }
}

/// A number that two others make and that looks like neither.
fn mixed(a: u32, b: u32) -> u32 {
    let mixed = (a ^ b.rotate_left(16)).wrapping_mul(0x9e37_79b1);
    (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca77) >> 8
}

/// A host of a job, as its agent tells of it.
struct SyntheticHost {
    job: String,
    name: String,
    course: Course,
    ranks: Vec<(u32, u32, VecDeque<Mark>)>,
    world: u32,
    number: u64,
    http: ureq::Agent,
    /// The batch that is yet to be taken.
    batch: Option<Vec<u8>>,
}

/// What was sent, and how it was taken.
#[derive(Default)]
struct LoadCounters {
    marks: AtomicU64,
    bytes: AtomicU64,
    packed_bytes: AtomicU64,
    refused: AtomicU64,
}

impl SyntheticHost {
    /// Everything its ranks have done until now, as lines.
    fn lines(&mut self, now_ns: u64, counters: &LoadCounters) -> Vec<u8> {
        let mut lines = Vec::new();
        if self.number == 0 {
            // The first batch declares ranks and groups; later ones follow on it.
            let first_local = self.ranks[0].0;
            for (rank, ..) in &self.ranks {
                let members = (0..self.world).collect();
                let (host, name) = (self.name.clone(), "default".to_owned());
                let of_rank = Input::Rank {
                    rank: *rank,
                    host,
                    role: None,
                    first_local,
                    locals: self.ranks.len() as u32,
                    world_size: self.world,
                };
                let group = Input::Group {
                    group: GROUP,
                    name,
                    members,
                };
                for input in [group, of_rank] {
                    drop(input_line(&input, &mut lines));
                }
            }
        }
        let mut marks = 0;
        for (rank, step, queue) in &mut self.ranks {
            loop {
                if queue.is_empty() {
                    queue.extend(self.course.marks(*rank, *step));
                    *step += 1;
                }
                let Some(mark) = queue.pop_front_if(|mark| mark.at.0 <= now_ns) else {
                    break;
                };
                // A vector takes every line.
                drop(input_line(&Input::Mark { rank: *rank, mark }, &mut lines));
                marks += 1;
            }
        }
        // Relaxed, as all of these: a sum does not depend on the order of its parts.
        counters.marks.fetch_add(marks, Ordering::Relaxed);
        lines
    }

    /// Tells what there is, again if it was not taken; whether it was.
    fn tell(
        &mut self,
        url: &str,
        now_ns: u64,
        last: bool,
        counters: &LoadCounters,
    ) -> Result<bool> {
        if self.batch.is_none() {
            let lines = self.lines(now_ns, counters);
            let head = BatchHead::new("boot", RankNs(now_ns), last);
            let batch = pack_batch(&head, &lines)?;
            counters
                .bytes
                .fetch_add(lines.len() as u64, Ordering::Relaxed);
            counters
                .packed_bytes
                .fetch_add(batch.len() as u64, Ordering::Relaxed);
            self.batch = Some(batch);
        }
        let Self {
            job, name, number, ..
        } = self;
        let (session, sequence) = ("e", *number);
        let address = BatchAddress {
            job,
            host: name,
            session,
            sequence,
        };
        let request = self.http.post(format!("{url}{}", address.path()));
        let request = request.header(CLOCK_HEADER, now_ns.to_string());
        let mut answer = request.send(self.batch.as_deref().unwrap_or_default())?;
        let status = answer.status().as_u16();
        let said = answer.body_mut().read_to_string()?;
        match status {
            200 => {
                self.batch = None;
                self.number += 1;
                Ok(true)
            }
            503 => {
                // The batch stays, as in an agent. Its number tells the collector that it comes
                // again.
                counters.refused.fetch_add(1, Ordering::Relaxed);
                Ok(false)
            }
            other => anyhow::bail!("{}: {other} {said}", self.name),
        }
    }
}

/// The clock of the hosts.
#[derive(Clone, Copy)]
struct Clock {
    begun: Instant,
}

impl Clock {
    fn now_ns(self) -> u64 {
        CLOCK_BEGINS_NS + self.begun.elapsed().as_nanos() as u64
    }

    fn wait_until(self, ns: u64) {
        let now = self.now_ns();
        thread::sleep(Duration::from_nanos(ns.saturating_sub(now)));
    }
}

/// What a reader of the job saw.
#[derive(Default)]
struct ObservedJob {
    /// Seconds from the end of each window's last step until it could be read.
    windows_s: Vec<f64>,
    /// The same for the first incident.
    incident_s: Option<f64>,
}

#[derive(Deserialize)]
struct Summary {
    exposed_s: f64,
    incidents: usize,
    state: String,
}

/// Runs it and prints what was measured.
pub(crate) fn load(args: &LoadArgs) -> Result<ExitCode> {
    let scratch = tempfile::tempdir()?;
    let mut laggard = Command::new(&args.laggard);
    laggard.current_dir(scratch.path());
    let server = ServeProcess::start(laggard, &["--data", "collected"])?;
    let of_job = args.ranks / args.jobs;
    let course = Course::new(args, of_job);
    let jobs: Vec<String> = (0..args.jobs).map(|job| format!("job-{job}")).collect();
    let mut hosts = hosts(args, &jobs, course);
    let count = hosts.len();
    println!("{count} hosts, {} ranks, {} jobs", args.ranks, args.jobs);
    let counters = LoadCounters::default();
    let ended = AtomicBool::new(false);
    let clock = Clock {
        begun: Instant::now(),
    };
    let mut usage = Usage::default();
    let (answers_s, seen) = thread::scope(|scope| -> Result<_> {
        let watchers: Vec<_> = jobs
            .iter()
            // In simulated time, the age of a window says nothing about the collector.
            .filter(|_| !args.fast)
            .map(|job| {
                let (server, ended) = (&server, &ended);
                scope.spawn(move || watch(server, job, course, clock, ended))
            })
            .collect();
        let watched = scope.spawn(|| {
            let mut usage = Usage::default();
            while !ended.load(Ordering::Relaxed) {
                usage.look(server.id(), clock, args.fast.then_some(&counters))?;
                thread::sleep(Duration::from_secs(1));
            }
            Ok::<_, anyhow::Error>(usage)
        });
        let (url, counters) = (&server.url, &counters);
        let answers_s = if args.fast {
            tell_fast(&mut hosts, args.seconds, url, counters)
        } else {
            in_threads(&mut hosts, |hosts| {
                tell(hosts, args.seconds, url, clock, counters)
            })
        };
        ended.store(true, Ordering::Relaxed);
        usage = watched.join().expect("a thread that watches")?;
        let seen: Result<Vec<ObservedJob>> = watchers
            .into_iter()
            .map(|w| w.join().expect("a thread that reads"))
            .collect();
        Ok((answers_s?, seen?))
    })?;
    let seconds = clock.begun.elapsed().as_secs_f64();
    let [marks_per_s, bytes_per_s, packed_per_s] =
        [&counters.marks, &counters.bytes, &counters.packed_bytes]
            .map(|counter| counter.load(Ordering::Relaxed) as f64 / seconds);
    println!(
        "{marks_per_s:.0} marks/s, {:.1} MB/s ({:.1} packed), {} times asked to wait, {seconds:.0} s",
        bytes_per_s / 1e6,
        packed_per_s / 1e6,
        counters.refused.load(Ordering::Relaxed),
    );
    println!("answers: {}", quantiles(answers_s));
    let windows_s = seen
        .iter()
        .flat_map(|seen| seen.windows_s.iter().copied())
        .collect();
    println!(
        "windows, from the end of their last step: {}",
        quantiles(windows_s)
    );
    let incidents_s = seen.iter().filter_map(|seen| seen.incident_s).collect();
    println!("incidents, the same: {}", quantiles(incidents_s));
    println!(
        "collector: {:.2} cores, {:.0} MB at most, {:.0} MB at the end",
        usage.cpu_s / seconds,
        usage.peak_mb,
        usage.mb,
    );
    judge(&server, &jobs, course.slow_rank)
}

/// The hosts of all jobs.
fn hosts(args: &LoadArgs, jobs: &[String], course: Course) -> Vec<SyntheticHost> {
    let of_job = args.ranks / args.jobs;
    let mut hosts = Vec::new();
    for job in jobs {
        for first in (0..of_job).step_by(args.per_host as usize) {
            let ranks = first..(first + args.per_host).min(of_job);
            hosts.push(SyntheticHost {
                job: job.clone(),
                name: format!("host-{}", first / args.per_host),
                course,
                ranks: ranks.map(|rank| (rank, 0, VecDeque::new())).collect(),
                world: of_job,
                number: 0,
                http: ureq::Agent::config_builder()
                    .http_status_as_error(false)
                    // An agent keeps one connection.
                    .max_idle_connections_per_host(1)
                    .build()
                    .into(),
                batch: None,
            });
        }
    }
    hosts
}

/// Whether each job names its slow rank, and nothing of what was sent is lost.
fn judge(server: &ServeProcess, jobs: &[String], slow_rank: u32) -> Result<ExitCode> {
    for job in jobs {
        let verdict = server.get(&format!("jobs/{job}/verdict"))?;
        let verdict: Verdict = serde_json::from_str(&verdict)?;
        let texts: Vec<_> = verdict.incidents.iter().map(|i| i.text.as_str()).collect();
        let named = verdict
            .incidents
            .first()
            .map(|first| first.subject.ranks.as_slice());
        ensure!(named == Some(&[slow_rank][..]), "{job}: {texts:?}");
        ensure!(verdict.job.lost_records == 0, "{job}: records were lost");
    }
    println!(
        "rank {} named in each of {} jobs, no record lost",
        slow_rank,
        jobs.len()
    );
    Ok(ExitCode::SUCCESS)
}

/// Lets each of several threads tell of its share of the hosts; how long the answers took.
fn in_threads(
    hosts: &mut [SyntheticHost],
    tell: impl Fn(&mut [SyntheticHost]) -> Result<Vec<f64>> + Sync,
) -> Result<Vec<f64>> {
    let (share, tell) = (hosts.len().div_ceil(TELLERS), &tell);
    thread::scope(|scope| {
        let tellers: Vec<_> = hosts
            .chunks_mut(share)
            .map(|hosts| scope.spawn(move || tell(hosts)))
            .collect();
        let mut answers_s = Vec::new();
        for teller in tellers {
            answers_s.extend(teller.join().expect("a thread that tells")?);
        }
        Ok(answers_s)
    })
}

/// Tells of hosts in real time, each at its own moment of the half second, or later where the
/// collector takes longer: then of all that has happened since, as agents do.
fn tell(
    hosts: &mut [SyntheticHost],
    seconds: u64,
    url: &str,
    clock: Clock,
    counters: &LoadCounters,
) -> Result<Vec<f64>> {
    let mut answers_s = Vec::new();
    let every_ns = TELL_EVERY.as_nanos() as u64;
    let count = hosts.len() as u64;
    let end_ns = CLOCK_BEGINS_NS + seconds * 1_000_000_000;
    let mut due_ns = CLOCK_BEGINS_NS;
    while due_ns < end_ns {
        for (nth, host) in (0..).zip(&mut *hosts) {
            clock.wait_until(due_ns + every_ns * nth / count);
            let begun = Instant::now();
            host.tell(url, clock.now_ns(), false, counters)?;
            answers_s.push(begun.elapsed().as_secs_f64());
        }
        // A round that took too long is not made up for: the next batch holds what it missed.
        due_ns = clock.now_ns().max(due_ns + every_ns);
    }
    for host in hosts {
        host.tell(url, clock.now_ns(), true, counters)?;
    }
    Ok(answers_s)
}

/// Tells of hosts as fast as it is taken, of all until one moment before it goes on to the next:
/// ranks that train together do not get ahead of each other.
fn tell_fast(
    hosts: &mut [SyntheticHost],
    seconds: u64,
    url: &str,
    counters: &LoadCounters,
) -> Result<Vec<f64>> {
    let mut answers_s = Vec::new();
    let every_ns = TELL_EVERY_SIMULATED.as_nanos() as u64;
    for round in 1..=seconds * 1_000_000_000 / every_ns {
        let now_ns = CLOCK_BEGINS_NS + round * every_ns;
        answers_s.extend(in_threads(hosts, |hosts| {
            let mut answers_s = Vec::new();
            for host in hosts {
                let begun = Instant::now();
                while !host.tell(url, now_ns, false, counters)? {
                    thread::sleep(Duration::from_millis(5));
                }
                answers_s.push(begun.elapsed().as_secs_f64());
            }
            Ok(answers_s)
        })?);
    }
    Ok(answers_s)
}

/// Reads a job as its page does, until it has ended.
fn watch(
    server: &ServeProcess,
    job: &str,
    course: Course,
    clock: Clock,
    ended: &AtomicBool,
) -> Result<ObservedJob> {
    let mut seen = ObservedJob::default();
    let url = format!("{}/api/v1/jobs/{job}/events", server.url);
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    let http: ureq::Agent = config.build().into();
    let events = loop {
        let answer = http.get(&url).call()?;
        // Nobody knows the job before its first batch was taken.
        if answer.status() == 200 {
            break answer;
        }
        if ended.load(Ordering::Relaxed) {
            return Ok(seen);
        }
        thread::sleep(Duration::from_millis(50));
    };
    let mut exposed_s = 0.0;
    for line in BufReader::new(events.into_body().into_reader()).lines() {
        let line = line?;
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let Some(summary) = line.strip_prefix("data:") else {
            continue;
        };
        let now_ns = clock.now_ns();
        let summary: Summary = serde_json::from_str(summary)?;
        // No new window: something else of the job changed.
        if summary.exposed_s <= exposed_s {
            continue;
        }
        exposed_s = summary.exposed_s;
        let verdict: Verdict = serde_json::from_str(&server.get(&format!("jobs/{job}/verdict"))?)?;
        let window = verdict.windows.last().context("a window")?;
        let end_ns = course.begin_ns((window.first_step + window.steps) as u32);
        let late_s = now_ns.saturating_sub(end_ns) as f64 / 1e9;
        seen.windows_s.push(late_s);
        if summary.incidents > 0 && seen.incident_s.is_none() {
            seen.incident_s = Some(late_s);
            ensure!(summary.state == "slow", "{job} is {}", summary.state);
        }
    }
    Ok(seen)
}

/// What the collector takes.
#[derive(Default)]
struct Usage {
    cpu_s: f64,
    mb: f64,
    peak_mb: f64,
    said: u64,
}

impl Usage {
    fn look(&mut self, id: u32, clock: Clock, counters: Option<&LoadCounters>) -> Result<()> {
        let process = Path::new("/proc").join(id.to_string());
        let stat = fs::read_to_string(process.join("stat"))?;
        // The name before it may hold spaces and brackets of its own.
        let after_name = stat.rsplit(") ").next().context("a state")?;
        let ticks = after_name
            .split(' ')
            // utime and stime of proc(5), counted from the state.
            .skip(11)
            .take(2)
            .map(str::parse::<u64>);
        let ticks: Vec<u64> = ticks.collect::<Result<_, _>>()?;
        // Linux tells programs hundredths of a second, whatever its own clock.
        self.cpu_s = ticks.iter().sum::<u64>() as f64 / 100.0;
        let status = fs::read_to_string(process.join("status"))?;
        self.mb = megabytes(&status, "VmRSS:").context("memory")?;
        self.peak_mb = megabytes(&status, "VmHWM:").context("memory")?;
        let at = clock.begun.elapsed().as_secs();
        if let Some(counters) = counters
            && at >= self.said + 10
        {
            self.said = at;
            let marks = counters.marks.load(Ordering::Relaxed);
            println!("after {at} s: {marks} marks, {:.0} MB", self.mb);
        }
        Ok(())
    }
}

/// A line in kilobytes of `/proc/PID/status`.
fn megabytes(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes / 1e3)
}

fn quantiles(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else {
        return "none".to_owned();
    };
    let [median, most, max] =
        [0.5, 0.99, 1.0].map(|part| values[(last as f64 * part).round() as usize]);
    format!(
        "{} of them, P50 {median:.3} s, P99 {most:.3} s, max {max:.3} s",
        values.len()
    )
}
