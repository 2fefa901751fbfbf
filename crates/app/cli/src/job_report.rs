use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use protocol::url_segment;

use crate::output::say;
use crate::run::write_page;
use crate::server::ServerArgs;

/// Write the HTML report of a job that a collector keeps
///
/// The page is self-contained, like that of `laggard run --report`. For a job that runs, it shows
/// the present state.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  laggard report pretrain-7
  laggard report pretrain-7 --collector http://10.0.0.1:8765 --out /tmp/pretrain-7.html")]
pub(crate) struct ReportArgs {
    /// Name of the job
    job: String,
    #[command(flatten)]
    server: ServerArgs,
    /// File to write
    #[arg(long, value_name = "FILE", default_value = "laggard-report.html")]
    out: PathBuf,
}

pub(crate) fn report(args: &ReportArgs) -> Result<ExitCode> {
    let job = url_segment(&args.job);
    let page = args.server.server()?.get(&format!("jobs/{job}/report"))?;
    write_page(&args.out, &page)?;
    say(&format!(
        "laggard: report written to {}",
        args.out.display()
    ));
    Ok(ExitCode::SUCCESS)
}
