//! Repository tasks, run with `cargo run --package xtask -- TASK`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is what tasks do"
)]

mod acceptance;
mod check;
mod load;
mod measure;
mod server;
mod source;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
struct XtaskCli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Check the structure, the documentation and its English
    Check,
    /// Measure the acceptance table, and write it to docs/acceptance.md
    Acceptance(acceptance::AcceptanceArgs),
    /// Print figures of how the code is written
    Measure,
    /// Send batches of simulated ranks to a collector, and time its answers
    Load(load::LoadArgs),
}

fn main() -> Result<ExitCode> {
    match XtaskCli::parse().task {
        Task::Check => check::check(&root()?),
        Task::Acceptance(args) => acceptance::acceptance(&args, &root()?),
        Task::Measure => measure::measure(&root()?),
        Task::Load(args) => load::load(&args),
    }
}

/// The repository's root, of the tree that the command is run in. Cargo takes a binary that was
/// built in another checkout for its own where both share a target folder, so the path at build
/// time may be that of another tree.
fn root() -> Result<PathBuf> {
    let here = env::current_dir()?;
    here.ancestors()
        .find(|folder| folder.join("ARCHITECTURE.md").is_file())
        .map(Path::to_path_buf)
        .context("run xtask in the repository")
}
