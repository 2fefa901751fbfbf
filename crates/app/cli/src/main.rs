//! The `laggard` command: what is typed becomes a checked plan, and the plan runs.
//!
//! Results go to standard output, everything else to standard error. Exit status: 0 fine,
//! 1 findings where `--fail-on` asked for it, 2 bad usage or input; `run` passes on that of
//! the command it wraps.

mod analyze;
mod ask;
mod child;
mod compare;
mod daemon;
mod demo;
mod doctor;
mod environment;
mod export;
mod job_report;
mod loading;
mod logging;
mod output;
mod package;
mod profile;
mod recordings;
mod render;
mod run;
#[cfg(feature = "service")]
mod serve;
mod server;
mod settings;
#[cfg(feature = "service")]
mod silence;
#[cfg(feature = "service")]
mod top;
mod trust;
mod what_if;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::logging::LogArgs;

/// Names what holds a distributed training job back: rank, stage, since when, at what cost.
#[derive(Debug, Parser)]
#[command(name = "laggard", version, max_term_width = 100, after_help = EXAMPLES)]
struct LaggardCli {
    #[command(subcommand)]
    command: LaggardCommand,
}

const EXAMPLES: &str = "\
Examples:
  laggard run -- torchrun --nproc-per-node 4 train.py
  laggard run --report run.html -- accelerate launch train.py
  laggard analyze run.jsonl.zst
  laggard compare before.jsonl.zst after.jsonl.zst
  laggard doctor";

#[derive(Debug, Subcommand)]
enum LaggardCommand {
    Run(run::RunArgs),
    Demo(demo::DemoArgs),
    Analyze(analyze::AnalyzeArgs),
    Profile(ask::ProfileArgs),
    #[cfg(feature = "service")]
    Serve(serve::ServeArgs),
    Agent(daemon::AgentArgs),
    #[cfg(feature = "service")]
    Top(top::TopArgs),
    Report(job_report::ReportArgs),
    Compare(compare::CompareArgs),
    #[cfg(feature = "service")]
    Silence(silence::SilenceArgs),
    Doctor(doctor::DoctorArgs),
}

fn main() -> ExitCode {
    let command = LaggardCli::parse().command;
    run_command(command).unwrap_or_else(|error| {
        output::say(&format!("laggard: {error:#}"));
        // Not 1, which says that a fault was found.
        ExitCode::from(2)
    })
}

fn run_command(command: LaggardCommand) -> Result<ExitCode> {
    match &command {
        #[cfg(feature = "service")]
        LaggardCommand::Serve(args) => args.log.start()?,
        LaggardCommand::Agent(args) => args.log.start()?,
        // Only commands that serve have flags for it.
        _ => LogArgs::default().start()?,
    }
    match command {
        LaggardCommand::Run(args) => run::run(&args),
        LaggardCommand::Demo(args) => demo::demo(args),
        LaggardCommand::Analyze(args) => analyze::analyze(&args),
        LaggardCommand::Profile(args) => ask::profile(&args),
        #[cfg(feature = "service")]
        LaggardCommand::Serve(args) => serve::serve(&args),
        LaggardCommand::Agent(args) => daemon::agent(&args),
        #[cfg(feature = "service")]
        LaggardCommand::Top(args) => top::top(&args),
        LaggardCommand::Report(args) => job_report::report(&args),
        LaggardCommand::Compare(args) => compare::compare(&args),
        #[cfg(feature = "service")]
        LaggardCommand::Silence(args) => silence::silence(&args),
        LaggardCommand::Doctor(args) => doctor::doctor(args),
    }
}
