use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use verdict::{LayoutSettings, Settings};

use crate::environment;

/// How the ranks of call logs divide the work; inferred where it is left out.
#[derive(Debug, clap::Args)]
pub(crate) struct LayoutArgs {
    /// Size of tensor parallelism in call logs [default: inferred]
    #[arg(long, value_name = "RANKS")]
    tp: Option<u32>,
    /// Size of context parallelism
    #[arg(long, value_name = "RANKS")]
    cp: Option<u32>,
    /// Size of expert parallelism
    #[arg(long, value_name = "RANKS")]
    ep: Option<u32>,
    /// Size of data parallelism
    #[arg(long, value_name = "RANKS")]
    dp: Option<u32>,
    /// Size of pipeline parallelism
    #[arg(long, value_name = "RANKS")]
    pp: Option<u32>,
    /// Order of the parallel axes in rank numbers, fastest axis first, such as tp-cp-ep-dp-pp
    #[arg(long, value_name = "ORDER")]
    order: Option<String>,
}

impl LayoutArgs {
    /// Puts what was typed over what the settings file says.
    pub(crate) fn over(&self, settings: &mut LayoutSettings) {
        settings.tp = self.tp.or(settings.tp);
        settings.cp = self.cp.or(settings.cp);
        settings.ep = self.ep.or(settings.ep);
        settings.dp = self.dp.or(settings.dp);
        settings.pp = self.pp.or(settings.pp);
        settings.order = self.order.clone().or(settings.order.take());
    }
}

/// Settings of the analysis.
#[derive(Debug, clap::Args)]
pub(crate) struct SettingsArgs {
    /// Settings file (TOML); docs/settings.md lists every key
    ///
    /// Default: the file that LAGGARD_CONFIG names, if any.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Cut steps before the data wait, as StageFrontier (2026) does, instead of where ranks last met
    #[arg(long)]
    published_cut: bool,
}

impl SettingsArgs {
    /// Reads and checks them. A file that cannot be understood is an error, never a default.
    pub(crate) fn load(&self) -> Result<Settings> {
        let path = self
            .config
            .clone()
            .or_else(|| environment::value(environment::CONFIG).map(PathBuf::from));
        let mut settings = match path {
            None => Settings::default(),
            Some(path) => read(&path)
                .with_context(|| format!("failed to read settings {}", path.display()))?,
        };
        // The flag has no counterpart: it cannot switch off what the file switches on.
        settings.window.published_cut |= self.published_cut;
        Ok(settings)
    }
}

fn read(path: &Path) -> Result<Settings> {
    Ok(toml::from_str(&fs::read_to_string(path)?)?)
}
