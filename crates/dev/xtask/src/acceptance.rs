//! The acceptance table of the method: what was measured beside what the paper found.

mod communication;
mod pattern;
mod pipeline;
mod real;
mod simulated;
mod trigger;
mod what_if;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;

/// Which rows to measure, and with what.
#[derive(Debug, clap::Args)]
pub(crate) struct AcceptanceArgs {
    /// Virtual environment with PyTorch and laggard in it
    #[arg(long)]
    venv: PathBuf,
    /// Only rows whose id begins like this; may be repeated
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
}

/// One line of the table.
struct Row {
    id: String,
    scenario: String,
    measured: String,
    paper: String,
    holds: bool,
}

impl Row {
    fn new(
        id: impl Into<String>,
        scenario: impl Into<String>,
        measured: impl Into<String>,
        paper: impl Into<String>,
        holds: bool,
    ) -> Self {
        let (id, scenario) = (id.into(), scenario.into());
        Self { id, scenario, measured: measured.into(), paper: paper.into(), holds }
    }
}

/// Measures every row and prints the table as it goes; fails if a row does not hold.
pub(crate) fn acceptance(args: &AcceptanceArgs, root: &Path) -> Result<ExitCode> {
    let only = &args.only;
    let wanted = |id: &str| {
        only.is_empty() || only.iter().any(|only| id.starts_with(only.as_str()))
    };
    println!("| id | scenario | measured | paper or target | holds |");
    println!("|---|---|---|---|---|");
    let mut missed = 0;
    let mut print = |row: Row| {
        let holds = if row.holds { "yes" } else { "**no**" };
        let Row { id, scenario, measured, paper, .. } = &row;
        println!("| {id} | {scenario} | {measured} | {paper} | {holds} |");
        missed += usize::from(!row.holds);
    };
    for (id, row) in simulated::ROWS
        .into_iter()
        .chain(communication::ROWS)
        .chain(pattern::ROWS)
        .chain(trigger::ROWS)
        .chain(what_if::ROWS)
        .chain(pipeline::ROWS)
    {
        if wanted(id) {
            print(row(id));
        }
    }
    let lab = real::Lab::new(root, &args.venv)?;
    for (id, rows) in real::ROWS {
        if wanted(id) {
            rows(&lab, id, &mut print)?;
        }
    }
    println!("\nNot run: SF-A16, FSDP and ZeRO-1 on 8 to 32 GPUs.");
    println!("{missed} rows do not hold.");
    Ok(ExitCode::from(u8::from(missed > 0)))
}
