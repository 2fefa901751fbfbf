//! `laggard agent`: watches all jobs of a host.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use agent::{HostJobs, HostOptions};
use anyhow::{Context, Result};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::environment;
use crate::logging::LogArgs;
use crate::output::say;
use crate::settings::SettingsArgs;
use crate::trust::{BusAddress, TrustArgs, address, bus};

/// How often new jobs are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Watch all jobs of this host and report them to a collector
///
/// Finds jobs by what their ranks record: their scripts say `import laggard`, or they start with
/// LAGGARD_ENABLE=1. LAGGARD_JOB names a job, the same on all its hosts. Runs until a signal ends
/// it; the jobs continue, and the next agent continues to watch them. Leaves jobs under
/// `laggard run` alone.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("destination").args(["collector", "bus"]).required(true))]
#[command(after_help = "\
Examples:
  laggard agent --collector https://collector:8765
  laggard agent --collector https://collector:8765 --tls-ca ca.pem --host rack3-node7
  laggard agent --bus nats://bus:4222
  LAGGARD_ENABLE=1 LAGGARD_JOB=pretrain-7 torchrun --nnodes 2 ... train.py   # a job that it finds")]
pub(crate) struct AgentArgs {
    /// Collector (`laggard serve`) to report to; LAGGARD_TOKEN holds an agent's token
    #[arg(long, value_name = "URL", value_parser = address)]
    collector: Option<String>,
    /// Bus (NATS JetStream) of the collectors to report to instead, such as nats://bus:4222
    #[arg(long, value_name = "URL", value_parser = bus)]
    bus: Option<BusAddress>,
    /// Name of this host for the collector [default: the host's name]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(flatten)]
    trust: TrustArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

pub(crate) fn agent(args: &AgentArgs) -> Result<ExitCode> {
    let root = environment::ring_root();
    let stop = Arc::new(AtomicBool::new(false));
    // Before the first look: a signal must not kill a process that holds claims and unsent batches.
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&stop)).context("failed to wait for signals")?;
    }
    let receiver = args
        .trust
        .receiver(args.collector.as_ref(), args.bus.as_ref())?;
    let receiver = receiver.context("name a receiver: --collector URL or --bus URL")?;
    let host = HostOptions {
        root: root.clone(),
        name: args.host.clone().unwrap_or_else(environment::host),
        receiver: receiver.clone(),
        settings: args.settings.load()?,
    };
    say(&format!(
        "laggard: reporting jobs in {} to {receiver}",
        root.display()
    ));
    let mut jobs = HostJobs::new(host, |line| say(&format!("laggard: {line}")));
    // Relaxed: the signal hands over nothing but the flag itself.
    while !stop.load(Ordering::Relaxed) {
        jobs.look(Instant::now());
        thread::sleep(LOOK_EVERY);
    }
    // What was read goes to the collector now: the next agent would have to read it again.
    jobs.leave();
    Ok(ExitCode::SUCCESS)
}
