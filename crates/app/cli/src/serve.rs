use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use collector::{
    Certificate, ClusterMember, Collector, HistoryOptions, HistoryPlace, Keep, Options, Pages,
    Tokens, Webhook, WebhookForm,
};

use crate::environment;
use crate::logging::LogArgs;
use crate::output::say;
use crate::settings::SettingsArgs;
use crate::trust::{BusAddress, TrustArgs, address, bus};

/// Collect, keep and show the jobs of many hosts
///
/// Agents are `laggard run --collector URL`, or `laggard agent`, on each host of a job. The address
/// itself serves the page with all jobs, /api/v1/openapi.json the description of the API, and
/// /metrics the metrics for Prometheus.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  laggard serve
  laggard serve --listen 0.0.0.0:8765 --tokens tokens.toml --tls-cert cert.pem --tls-key key.pem
  laggard serve --data /var/lib/laggard --keep-days 30 --keep-gb 200
  laggard serve --history /var/lib/laggard-history
  AWS_REGION=eu-central-1 laggard serve --history s3://cluster/laggard
  laggard serve --bus nats://bus:4222 --listen 0.0.0.0:8765 --tokens tokens.toml")]
pub(crate) struct ServeArgs {
    /// Address to listen on; use --tokens if others reach it
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8765")]
    listen: SocketAddr,
    /// Folder to keep jobs in [default: laggard in the user's data folder]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Tokens of agents, viewers and admins (TOML), one for each role
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// TLS certificate (PEM), followed by its intermediate certificates
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Bus (NATS JetStream) to read batches from, such as nats://bus:4222; all its collectors share
    /// the jobs
    #[arg(long, value_name = "URL", value_parser = bus)]
    bus: Option<BusAddress>,
    /// Address at which readers and the other collectors reach this one [default: the one it
    /// listens on, with the host's name if it listens on all]
    #[arg(long, value_name = "URL", value_parser = address, requires = "bus")]
    url: Option<String>,
    /// Maximum number of jobs that run at once
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    max_jobs: usize,
    /// Maximum number of bytes to keep for one job
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 30)]
    max_job_bytes: u64,
    /// Delete ended jobs that have been silent for this many days
    #[arg(long, value_name = "DAYS", value_parser = amount)]
    keep_days: Option<f64>,
    /// While all jobs together exceed this size, delete those that ended first
    #[arg(long, value_name = "GB", value_parser = amount)]
    keep_gb: Option<f64>,
    /// Keep the findings of all jobs as tables (Parquet) in a folder, or in s3://BUCKET/PREFIX
    #[arg(long, value_name = "DIR|URL")]
    history: Option<String>,
    /// Seconds between writes of the tables of a job that runs
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 300,
        requires = "history"
    )]
    history_every: u64,
    /// Post a message when an incident begins and one when it is over
    #[arg(long, value_name = "URL", value_parser = address)]
    webhook: Option<String>,
    /// Form of the messages
    #[arg(
        long,
        value_name = "FORM",
        default_value = "json",
        requires = "webhook"
    )]
    webhook_form: Form,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(flatten)]
    trust: TrustArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Form {
    Json,
    Alertmanager,
    Slack,
}

impl From<Form> for WebhookForm {
    fn from(form: Form) -> Self {
        match form {
            Form::Json => Self::Json,
            Form::Alertmanager => Self::Alertmanager,
            Form::Slack => Self::Slack,
        }
    }
}

fn amount(typed: &str) -> Result<f64, String> {
    typed
        .parse()
        .ok()
        .filter(|amount: &f64| *amount >= 0.0)
        .ok_or_else(|| "write a number from 0 on".to_owned())
}

/// A folder, or a bucket.
fn place(typed: &str, trust: &TrustArgs) -> Result<HistoryPlace> {
    if typed
        .strip_prefix("s3://")
        .is_some_and(|name| !name.is_empty())
    {
        let at = environment::s3_address();
        // Without an address the bucket is at Amazon's, which speaks TLS.
        let tls = trust.at(at.as_deref().unwrap_or("https://"))?;
        return Ok(HistoryPlace::Bucket {
            url: typed.to_owned(),
            tls,
        });
    }
    // As a folder, a mistyped `gs://bucket` would be written to without a word.
    if typed.contains("://") {
        bail!("{typed} is not supported: write --history DIR, or s3://BUCKET/PREFIX");
    }
    Ok(HistoryPlace::Folder(typed.into()))
}

pub(crate) fn serve(args: &ServeArgs) -> Result<ExitCode> {
    let data = match &args.data {
        Some(data) => data.clone(),
        None => environment::data_folder().context("name a folder: --data DIR")?,
    };
    let tokens = match &args.tokens {
        Some(path) => Tokens::read(path)?,
        None => Tokens::default(),
    };
    let certificate = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(Certificate::read(certificate, key)?),
        _ => None,
    };
    let webhook = match &args.webhook {
        Some(url) => Some(Webhook {
            url: url.clone(),
            form: args.webhook_form.into(),
            tls: args.trust.at(url)?,
        }),
        None => None,
    };
    let history = match &args.history {
        Some(typed) => Some(HistoryOptions {
            place: place(typed, &args.trust)?,
            every: Duration::from_secs(args.history_every),
        }),
        None => None,
    };
    let scheme = if certificate.is_some() {
        "https"
    } else {
        "http"
    };
    // Before the data is opened: who cannot listen leaves it alone.
    let listener = TcpListener::bind(args.listen)
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    let address = listener
        .local_addr()
        .context("failed to ask for the address")?;
    // 0.0.0.0 leads nobody to this host.
    let url = match (&args.url, address.ip().is_unspecified()) {
        // Paths begin with a slash of their own.
        (Some(url), _) => url.trim_end_matches('/').to_owned(),
        (None, true) => format!("{scheme}://{}:{}", environment::host(), address.port()),
        (None, false) => format!("{scheme}://{address}"),
    };
    let bus = args.bus.as_ref().map(|address| ClusterMember {
        address: args.trust.to_bus(address),
        url: url.clone(),
    });
    let options = Options {
        data: data.clone(),
        settings: args.settings.load()?,
        tokens,
        jobs: args.max_jobs,
        job_bytes: args.max_job_bytes,
        keep: Keep {
            // Such a cast saturates: `inf` days keep everything.
            age_s: args.keep_days.map(|days| (days * 86_400.0) as u64),
            bytes: args.keep_gb.map(|gigabytes| (gigabytes * 1e9) as u64),
        },
        certificate,
        webhook,
        history,
        bus,
    };
    // The collector does not depend on the crate that draws pages.
    let pages = Pages {
        report: |job| report::html(&job.verdict(), job.series(), job.names()),
        live: |job| report::live_html(&job.verdict(), job.series(), job.names()),
        incident: report::incident_html,
        overview: report::overview,
    };
    let collector = Collector::open(options, pages, |line| say(&format!("laggard: {line}")))?;
    // Before it answers anyone: without tokens, every host that reaches it could delete jobs.
    collector.check(address)?;
    say(&format!(
        "laggard: serving {scheme}://{address}, jobs are kept in {}",
        data.display()
    ));
    if let Some(bus) = &args.bus {
        say(&format!(
            "laggard: sharing the jobs of the bus at {bus}, known as {url}"
        ));
    }
    if scheme == "http" && !address.ip().is_loopback() {
        say(
            "laggard: tokens and verdicts cross the network unencrypted: use --tls-cert and --tls-key",
        );
    }
    collector.serve(listener).context("failed to serve")?;
    Ok(ExitCode::SUCCESS)
}
