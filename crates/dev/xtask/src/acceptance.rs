//! The acceptance table of the method: what was measured beside what the paper found.

mod communication;
mod pattern;
mod pipeline;
mod real;
mod simulated;
mod table;
mod trigger;
mod what_if;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

/// Which rows to measure, and with what.
#[derive(Debug, clap::Args)]
pub(crate) struct AcceptanceArgs {
    /// Virtual environment with PyTorch and laggard in it
    #[arg(long)]
    venv: PathBuf,
    /// Only the rows of this id, or all whose ids begin like this; may be repeated
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
}

/// One line of the table.
struct AcceptanceRow {
    id: String,
    scenario: String,
    measured: String,
    paper: String,
    holds: bool,
}

impl AcceptanceRow {
    fn new(
        id: impl Into<String>,
        scenario: impl Into<String>,
        measured: impl Into<String>,
        paper: impl Into<String>,
        holds: bool,
    ) -> Self {
        let (id, scenario) = (id.into(), scenario.into());
        Self {
            id,
            scenario,
            measured: measured.into(),
            paper: paper.into(),
            holds,
        }
    }
}

impl fmt::Display for AcceptanceRow {
    /// A line of the table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            scenario,
            measured,
            paper,
            holds,
        } = self;
        let pass = if *holds { "yes" } else { "**no**" };
        write!(f, "| {id} | {scenario} | {measured} | {paper} | {pass} | ")?;
        write!(f, "`make acceptance ONLY={id}` |")
    }
}

/// Measures the rows that are wanted, prints each, and writes the page; fails if one does not hold.
pub(crate) fn acceptance(args: &AcceptanceArgs, root: &Path) -> Result<ExitCode> {
    let quick: Vec<_> = simulated::ROWS
        .into_iter()
        .chain(communication::ROWS)
        .chain(pattern::ROWS)
        .chain(trigger::ROWS)
        .chain(what_if::ROWS)
        .chain(pipeline::ROWS)
        .collect();
    let real = real::ROWS.into_iter().map(|(id, _)| id);
    let ids: Vec<&str> = quick.iter().map(|(id, _)| *id).chain(real).collect();
    let mut measured = Vec::new();
    let mut print = |row: AcceptanceRow| {
        println!("{row}");
        measured.push(row);
    };
    for (id, row) in quick
        .iter()
        .filter(|(id, _)| is_wanted(id, &args.only, &ids))
    {
        print(row(id));
    }
    let mut running = None;
    let outcome = real_rows(args, root, &ids, &mut running, &mut print);
    // What was measured before something failed is not lost, nor what was measured before that.
    let path = root.join("docs/acceptance.md");
    let before = fs::read_to_string(&path).unwrap_or_default();
    fs::write(&path, table::page(&before, &measured, &ids, running))
        .context("failed to write the page")?;
    outcome?;
    let missed = measured.iter().filter(|row| !row.holds).count();
    println!("{missed} rows do not hold.");
    Ok(ExitCode::from(u8::from(missed > 0)))
}

/// Rows of real jobs, which need the virtual environment. While those of an id are measured it is
/// `running`.
fn real_rows(
    args: &AcceptanceArgs,
    root: &Path,
    ids: &[&str],
    running: &mut Option<&str>,
    print: &mut impl FnMut(AcceptanceRow),
) -> Result<()> {
    let mut rows = real::ROWS
        .into_iter()
        .filter(|(id, _)| is_wanted(id, &args.only, ids))
        .peekable();
    // Rows without real jobs can be measured where there is no virtual environment.
    if rows.peek().is_none() {
        return Ok(());
    }
    let lab = real::Lab::new(root, &args.venv)?;
    for (id, rows) in rows {
        *running = Some(id);
        rows(&lab, id, print)?;
        *running = None;
    }
    Ok(())
}

/// Whether an id is asked for: by itself, or by what it begins with if no id is that; all are if
/// nothing is.
fn is_wanted(id: &str, only: &[String], ids: &[&str]) -> bool {
    only.is_empty()
        || only
            .iter()
            .any(|only| id == only || (!ids.contains(&only.as_str()) && id.starts_with(only)))
}
