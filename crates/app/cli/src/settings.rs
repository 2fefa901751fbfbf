use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use verdict::Settings;

use crate::environment;

/// How the analysis is set.
#[derive(Debug, clap::Args)]
pub(crate) struct SettingsArgs {
    /// Settings file (TOML); docs/settings.md lists every key
    ///
    /// Otherwise the file named by LAGGARD_CONFIG, if any.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Cut steps before the data wait, as published, instead of where ranks last met
    #[arg(long)]
    published_cut: bool,
}

impl SettingsArgs {
    /// Reads and checks them. A file that cannot be understood is an error, never a default.
    pub(crate) fn load(&self) -> Result<Settings> {
        let named = || environment::value(environment::CONFIG).map(PathBuf::from);
        let mut settings = match self.config.clone().or_else(named) {
            None => Settings::default(),
            Some(path) => {
                let place = || format!("failed to read settings {}", path.display());
                let text = fs::read_to_string(&path).with_context(place)?;
                toml::from_str(&text).with_context(place)?
            }
        };
        settings.window.published_cut |= self.published_cut;
        Ok(settings)
    }
}
