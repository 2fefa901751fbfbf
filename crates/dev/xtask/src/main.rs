//! Repository tasks, run with `cargo run --package xtask -- TASK`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is what tasks do"
)]

mod acceptance;
mod check;
mod load;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Check that the house is as ARCHITECTURE.md says
    Check,
    /// Print the acceptance table, measured values beside the paper's
    Acceptance(acceptance::AcceptanceArgs),
    /// Tell a collector of simulated ranks, and time its answers
    Load(load::LoadArgs),
}

fn main() -> Result<ExitCode> {
    match Cli::parse().task {
        Task::Check => check::check(&root()),
        Task::Acceptance(args) => acceptance::acceptance(&args, &root()),
        Task::Load(args) => load::load(&args),
    }
}

/// The repository's root.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..")
}
