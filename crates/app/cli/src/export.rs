//! A recording of ours as files of other tools.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use formats::{
    Journal, PipelineSteps, WrittenCalls, write_call_logs, write_what_if, write_work_requests,
};

use crate::output::say;

#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// Write the collectives of a recording of `laggard run` as logs of NCCL calls, one file for
    /// each rank, and the transfers of NCCL as telemetry of work requests
    #[arg(long, value_name = "DIR")]
    export_calls: Option<PathBuf>,
    /// Write the blocks of a pipeline in such a recording as a what-if trace, with its metadata
    /// beside it
    #[arg(long, value_name = "FILE")]
    export_what_if: Option<PathBuf>,
}

impl ExportArgs {
    /// Whether anything is to be written.
    pub(crate) fn is_asked(&self) -> bool {
        self.export_calls.is_some() || self.export_what_if.is_some()
    }

    /// Writes what was asked for of a recording.
    pub(crate) fn write(&self, journal: &Journal) -> Result<()> {
        self.export_calls
            .as_deref()
            .map_or(Ok(()), |to| export_calls(journal, to))?;
        self.export_what_if
            .as_deref()
            .map_or(Ok(()), |to| export_what_if(journal, to))
    }
}

/// Writes the blocks of a recording as a what-if trace, and says so.
fn export_what_if(journal: &Journal, path: &Path) -> Result<()> {
    let place = path.display();
    let steps = PipelineSteps::of(journal).with_context(|| {
        format!("nothing to write to {place}: no pipeline with whole backward passes is recorded")
    })?;
    let rows = steps.rows();
    write_what_if(&rows, &steps.layout(), path)
        .with_context(|| format!("failed to write {place}"))?;
    say(&format!(
        "laggard: {} operations written to {place}",
        rows.len()
    ));
    Ok(())
}

/// Writes the collectives of a recording as logs of calls, and says so.
fn export_calls(journal: &Journal, folder: &Path) -> Result<()> {
    let written = write_call_logs(journal, folder)
        .with_context(|| format!("failed to write into {}", folder.display()))?;
    let WrittenCalls {
        ranks,
        calls,
        left_out,
    } = written;
    let place = folder.display();
    say(&format!(
        "laggard: {calls} calls of {ranks} ranks written to {place}; {left_out} without a call of \
         NCCL were left out"
    ));
    let rows = write_work_requests(journal, folder)
        .with_context(|| format!("failed to write into {place}"))?;
    // Rows come from looks into flows, and most recordings have none.
    if rows > 0 {
        say(&format!(
            "laggard: {rows} rows of work requests written to {place}"
        ));
    }
    Ok(())
}
