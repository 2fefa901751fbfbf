use std::ffi::{OsStr, OsString};
use std::io::{self, Write, stderr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, thread};

use agent::{Agent, Destination, Receiver, Uplink};
use anyhow::{Context, Result};
use formats::JournalWriter;
use ring::{RingDirectory, WatchClaim, clean_stale};
use verdict::{Job, Settings};

use crate::child::{self, WrappedCommand};
use crate::environment;
use crate::output::{print, say};
use crate::package;
use crate::render::{Colour, verdict_text};
use crate::settings::SettingsArgs;
use crate::trust::{BusAddress, TrustArgs, address, bus};

/// How often the command is looked after once it is watched no more.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// Age from which rings of dead jobs are removed: time enough to look at a crash.
const STALE_AFTER: Duration = Duration::from_mins(10);
/// How long other ranks of a launch may take to end after ours.
const OTHERS_END_WITHIN: Duration = Duration::from_secs(5);
/// How long a pipe or device may take for a report.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

/// Run a command and watch the training in it
///
/// Everything after `--` is the command, unchanged: torchrun, accelerate, deepspeed, srun
/// or python. Its output, exit status and signals pass through. laggard prints lines about the
/// training on standard error while it runs, and the verdict at its end.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  laggard run -- torchrun --nproc-per-node 4 train.py --lr 1e-3
  laggard run --report run.html -- python train.py
  laggard run --json -- torchrun train.py | tail -n 1 | jq .incidents")]
pub(crate) struct RunArgs {
    /// Write a self-contained HTML report
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Record the job for `laggard analyze`; .gz and .zst compress
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    collector: CollectorArgs,
    /// Preload the NCCL and ibverbs interposer (automatic for NCCL before 2.23)
    #[arg(long)]
    preload: bool,
    /// Print the verdict as one line of JSON at the end, on standard output
    #[arg(long)]
    json: bool,
    /// Also print the victims of each incident, and slow places that cost nothing
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    settings: SettingsArgs,
    /// Environment of the command, on top of ours
    #[arg(skip)]
    environment: Vec<(&'static str, &'static str)>,
    /// Command with its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Where to report, beside this terminal.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(group = clap::ArgGroup::new("destination").args(["collector", "bus"]))]
struct CollectorArgs {
    /// Collector (`laggard serve`) to report to, such as https://collector:8765
    #[arg(long, value_name = "URL", value_parser = address)]
    collector: Option<String>,
    /// Bus (NATS JetStream) of the collectors to report to, such as nats://bus:4222
    #[arg(long, value_name = "URL", value_parser = bus, conflicts_with = "collector")]
    bus: Option<BusAddress>,
    /// Name of the job for the collector, the same on all hosts of the job [default:
    /// slurm-JOB.STEP under Slurm, otherwise a new name]
    #[arg(long, value_name = "NAME", requires = "destination")]
    job: Option<String>,
    /// Name of this host for the collector [default: the host's name]
    #[arg(long, value_name = "NAME", requires = "destination")]
    host: Option<String>,
    #[command(flatten)]
    trust: TrustArgs,
}

impl CollectorArgs {
    /// Whom to tell, if anybody.
    fn receiver(&self) -> Result<Option<Receiver>> {
        self.trust
            .receiver(self.collector.as_ref(), self.bus.as_ref())
    }

    /// The way there; `id` names a job that has no name.
    fn destination(&self, id: &str, receiver: Receiver) -> Destination {
        let job = self.job.clone().or_else(environment::scheduled_job);
        Destination {
            receiver,
            job: job.unwrap_or_else(|| id.to_owned()),
            host: self.host.clone().unwrap_or_else(environment::host),
        }
    }
}

impl RunArgs {
    /// What the demo would have typed.
    pub(crate) fn of_demo(
        command: Vec<OsString>,
        report: PathBuf,
        json: bool,
        settings: SettingsArgs,
    ) -> Self {
        // torchrun would say at length that it sets this itself.
        let environment = vec![("OMP_NUM_THREADS", "1")];
        Self {
            report: Some(report),
            record: None,
            collector: CollectorArgs::default(),
            preload: false,
            json,
            verbose: false,
            settings,
            environment,
            command,
        }
    }
}

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let settings = args.settings.load()?;
    let receiver = args.collector.receiver()?;
    let mut command = child::command(&args.command);
    command.envs(args.environment.iter().copied());
    // What the command starts could read them in `/proc`, and has no use for them.
    for secret in environment::SECRETS {
        command.env_remove(secret);
    }
    if environment::is_off() {
        // No process of laggard stays between the command and its parent.
        let failed = child::replace(command);
        say(&failed.text());
        return Ok(failed.exit_code());
    }
    // A fault of ours before the command runs must not keep it from running.
    let watch = guarded(|| watched(&mut command, settings, receiver, args)).flatten();
    let mut wrapped = match WrappedCommand::start(command) {
        Ok(wrapped) => wrapped,
        Err(failed) => {
            say(&failed.text());
            if let Some(watch) = watch {
                watch.clean();
            }
            return Ok(failed.exit_code());
        }
    };
    let status = match watch {
        None => wrapped.wait()?,
        Some(watch) => {
            let (status, job) = watch.follow(&mut wrapped)?;
            if let Some(job) = job {
                // Nor may one at its end replace its exit status.
                guarded(|| tell(args, &job));
            }
            status
        }
    };
    Ok(child::end_like(status))
}

/// Begins to watch, and tells the command where to record; `None` if nobody needs to watch, or
/// nobody can.
fn watched(
    command: &mut Command,
    settings: Settings,
    receiver: Option<Receiver>,
    args: &RunArgs,
) -> Option<JobWatch> {
    match JobWatch::start(settings, receiver, args) {
        Ok((place, watch)) => {
            // Without it the package attaches only where a script imports it.
            command.env(environment::ENABLE, "1");
            command.env(environment::DIR, &place.root);
            command.env(environment::JOB, &place.id);
            // A plugin of the user's own wins.
            let plugin = environment::value(environment::NCCL_PLUGIN);
            if let (None, Some(plugin)) = (plugin, package::nccl_plugin()) {
                command.env(environment::NCCL_PLUGIN, plugin);
            }
            if environment::value(environment::KINETO_LOG).is_none() {
                command.env(environment::KINETO_LOG, environment::KINETO_SILENT);
            }
            // There is a first word: clap demands a command, and the demo gives one.
            if args.preload || has_old_nccl(&args.command[0]) {
                match package::preload() {
                    Some(library) => {
                        command.env(environment::PRELOAD, preloaded(library));
                    }
                    None => say("laggard: no library to preload for this machine"),
                }
            }
            if !package::attaches_itself(&args.command[0]) {
                match package::lend(place.directory.path()) {
                    Ok(path) => {
                        command.env("PYTHONPATH", path);
                    }
                    Err(error) => say(&format!(
                        "laggard: {} has no package laggard, and none can be added: {error}",
                        args.command[0].display()
                    )),
                }
            }
            watch
        }
        Err(error) => {
            say(&format!("laggard: the command runs unwatched: {error:#}"));
            None
        }
    }
}

/// Whether the command's environment has an NCCL that knows no profiler plugin.
fn has_old_nccl(program: &OsStr) -> bool {
    package::nccl_of(program).is_some_and(|version| version < package::FIRST_WITH_PLUGIN)
}

/// The value of `LD_PRELOAD` with our library before what is there.
fn preloaded(library: PathBuf) -> OsString {
    // Of two libraries that define a function the loader takes the first: ours passes calls on.
    let mut value = library.into_os_string();
    if let Some(others) = environment::value(environment::PRELOAD) {
        value.push(":");
        value.push(others);
    }
    value
}

/// Where the command records.
struct RecordingPlace {
    root: PathBuf,
    id: String,
    directory: RingDirectory,
}

/// What is watched, and where.
struct JobWatch {
    directory: RingDirectory,
    /// Keeps an agent of this host away.
    claim: WatchClaim,
    agent: Agent,
    /// Whether there are ranks that others than our command are.
    has_others: bool,
}

impl JobWatch {
    /// Finds a place to record in, and begins to watch. Of several that `srun` started on this
    /// host, all with one place, the first watches, and the others need not.
    fn start(
        settings: Settings,
        receiver: Option<Receiver>,
        args: &RunArgs,
    ) -> Result<(RecordingPlace, Option<Self>)> {
        let root = environment::ring_root();
        let launch = environment::launch();
        let has_others = launch.is_some();
        let id = launch.unwrap_or_else(|| {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            format!("{}-{}", now.as_secs(), std::process::id())
        });
        let directory = RingDirectory::create(&root, &id)?;
        let place = RecordingPlace {
            root,
            id,
            directory: directory.clone(),
        };
        let (root, id) = (&place.root, &place.id);
        // Somebody else's leftovers must not stop this job.
        drop(clean_stale(root, STALE_AFTER));
        let destination = receiver.map(|receiver| args.collector.destination(id, receiver));
        // An agent of this host that goes on after our death calls the job as we do.
        let job = destination
            .as_ref()
            .map_or(id, |destination| &destination.job);
        let Some(claim) = directory.claim(job)? else {
            anyhow::ensure!(has_others, "another process watches the job");
            return Ok((place, None));
        };
        let mut agent = Agent::new(directory.clone(), id, settings);
        if let Some(destination) = destination {
            let Destination { receiver, job, .. } = &destination;
            say(&format!("laggard: reporting job {job} to {receiver}"));
            // Neither this nor a recording that cannot be written keeps the command from running.
            match Uplink::start(destination) {
                Ok(uplink) => agent.tell_collector(uplink),
                Err(error) => {
                    say(&format!("laggard: cannot report: {error}"));
                }
            }
        }
        if let Some(path) = &args.record {
            match JournalWriter::create(path, id) {
                Ok(journal) => agent.record(journal),
                Err(error) => {
                    say(&format!(
                        "laggard: cannot record to {}: {error}",
                        path.display()
                    ));
                }
            }
        }
        let watch = Self {
            directory,
            claim,
            agent,
            has_others,
        };
        Ok((place, Some(watch)))
    }

    /// Watches until the command ends. A fault of the analysis ends the watching only.
    fn follow(self, wrapped: &mut WrappedCommand) -> Result<(ExitStatus, Option<Job>)> {
        let Self {
            directory,
            claim,
            agent,
            has_others,
        } = self;
        let mut agent = Some(agent);
        let mut ended: Option<(ExitStatus, Instant)> = None;
        let status = loop {
            // Not after the end: a signal would go to whatever process has the pid by then.
            if ended.is_none() {
                ended = wrapped.poll()?.map(|status| (status, Instant::now()));
            }
            if let Some((status, at)) = ended {
                // Of ranks that end about as ours all is seen; who has failed keeps nobody waiting.
                let waits = has_others
                    && status.success()
                    && at.elapsed() < OTHERS_END_WITHIN
                    && directory.has_writer();
                if !waits {
                    // What the ranks have recorded since the last look is read by `finish`.
                    break status;
                }
            }
            agent = agent.and_then(|mut agent| {
                // Ranks that die after such a signal are no incident.
                let lines = guarded(|| {
                    if wrapped.asked_to_end {
                        agent.expect_the_end();
                    }
                    agent.poll(Instant::now())
                })?;
                for line in lines {
                    say(&format!("laggard: {line}"));
                }
                Some(agent)
            });
            let patience = agent.as_ref().map(|agent| agent.patience(Instant::now()));
            std::thread::sleep(patience.unwrap_or(POLL_EVERY));
        };
        let job = agent.and_then(|agent| guarded(|| agent.finish().0));
        // In this order: an agent of this host that got the claim would find rings whose end was
        // reported, and report it again.
        drop(directory.remove());
        drop(claim);
        Ok((status, job))
    }

    fn clean(self) {
        // What resists is removed when it is stale.
        drop(self.directory.remove());
    }
}

/// Runs a part of the analysis; if it panics, watching ends and the command goes on.
fn guarded<T>(body: impl FnOnce() -> T) -> Option<T> {
    // What a panic leaves half changed is not used again: the agent is dropped with it.
    let result = catch_unwind(AssertUnwindSafe(body));
    if result.is_err() {
        say("laggard: stopped watching after an internal fault; the command continues");
    }
    result.ok()
}

fn tell(args: &RunArgs, job: &Job) {
    let verdict = job.verdict();
    let text = verdict_text(&verdict, Colour::of(&stderr()), args.verbose);
    // On standard error: standard output belongs to the command, and to `--json`.
    say(&format!("\n{}", text.trim_end()));
    if args.json {
        match serde_json::to_string(&verdict) {
            Ok(json) => {
                if let Err(error) = print(&format!("{json}\n")) {
                    say(&format!("laggard: cannot print the verdict: {error}"));
                }
            }
            Err(error) => say(&format!("laggard: cannot write the verdict: {error}")),
        }
    }
    if let Some(path) = &args.report {
        match guarded(|| write_report(path, job)) {
            Some(Ok(())) => {
                say(&format!("laggard: report written to {}", path.display()));
            }
            Some(Err(error)) => say(&format!("laggard: {error:#}")),
            None => {}
        }
    }
}

/// Writes the report of a job: whole, or not at all.
pub(crate) fn write_report(path: &Path, job: &Job) -> Result<()> {
    write_page(
        path,
        &report::html(&job.verdict(), job.series(), job.names()),
    )
}

fn unwritten(path: &Path) -> String {
    format!("failed to write the report to {}", path.display())
}

/// Writes a page: whole, or not at all.
pub(crate) fn write_page(path: &Path, page: &str) -> Result<()> {
    // Pipes and devices are written to, never replaced.
    if fs::metadata(path).is_ok_and(|file| !file.is_file()) {
        let (target, page) = (path.to_owned(), page.to_owned());
        // With room for one, the thread ends by itself where nobody waits any more.
        let (done, written) = sync_channel(1);
        thread::spawn(move || done.send(fs::write(target, page)));
        // A pipe may have no reader, and then opens for nobody.
        return written
            .recv_timeout(TAKEN_WITHIN)
            .unwrap_or_else(|_| {
                Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "no process reads it",
                ))
            })
            .with_context(|| unwritten(path));
    }
    // Behind a link stands the file that is meant.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = OsString::from(".");
    name.push(target.file_name().with_context(|| unwritten(path))?);
    // A name of our own: two runs may write the same report at once.
    name.push(format!(".{}.tmp", std::process::id()));
    let partial = target.with_file_name(name);
    // It follows no link that somebody else has put under this name in a shared folder.
    let written = fs::File::create_new(&partial)
        .and_then(|mut file| file.write_all(page.as_bytes()))
        .and_then(|()| fs::rename(&partial, &target));
    if written.is_err() {
        drop(fs::remove_file(&partial));
    }
    written.with_context(|| unwritten(path))
}
