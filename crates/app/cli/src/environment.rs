//! The environment variables the command reads; docs/environment.md describes them.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use bus::Proof;
use ring::RingDirectory;

/// `0` runs a command as if laggard were not there.
pub(crate) const ENABLE: &str = "LAGGARD_ENABLE";
/// Where rings stand.
pub(crate) const DIR: &str = "LAGGARD_DIR";
/// The job's id; set for the wrapped command.
pub(crate) const JOB: &str = "LAGGARD_JOB";
/// Settings file.
pub(crate) const CONFIG: &str = "LAGGARD_CONFIG";
/// What proves to a collector that we may tell it.
const TOKEN: &str = "LAGGARD_TOKEN";
/// Where buckets are, if not at Amazon's.
const S3_ADDRESS: &str = "AWS_ENDPOINT_URL";
/// What proves to a bus who we are: a token, or a user and a password, or a file of credentials.
const BUS_TOKEN: &str = "LAGGARD_BUS_TOKEN";
const BUS_USER: &str = "LAGGARD_BUS_USER";
const BUS_PASSWORD: &str = "LAGGARD_BUS_PASSWORD";
const BUS_CREDENTIALS: &str = "LAGGARD_BUS_CREDENTIALS";
/// NCCL's: the profiler plugin it loads.
pub(crate) const NCCL_PLUGIN: &str = "NCCL_PROFILER_PLUGIN";

/// The loader's: libraries that come before all others.
pub(crate) const PRELOAD: &str = "LD_PRELOAD";

/// Whether laggard is switched off.
pub(crate) fn is_off() -> bool {
    value(ENABLE).is_some_and(|value| value == "0")
}

/// The directory under which jobs have their rings.
pub(crate) fn ring_root() -> PathBuf {
    value(DIR).map_or_else(RingDirectory::default_root, PathBuf::from)
}

/// What proves to a collector who we are.
pub(crate) fn token() -> Option<String> {
    value(TOKEN).and_then(|token| token.into_string().ok())
}

/// Where buckets are, if not at Amazon's.
pub(crate) fn s3_address() -> Option<String> {
    value(S3_ADDRESS).and_then(|address| address.into_string().ok())
}

/// What proves to a bus who we are.
pub(crate) fn bus_proof() -> Option<Proof> {
    let text = |name| value(name).and_then(|value| value.into_string().ok());
    if let Some(path) = value(BUS_CREDENTIALS) {
        return Some(Proof::Credentials(path.into()));
    }
    if let Some(token) = text(BUS_TOKEN) {
        return Some(Proof::Token(token));
    }
    Some(Proof::Password(text(BUS_USER)?, text(BUS_PASSWORD)?))
}

/// The value of a variable; one that is set to nothing counts as not set.
pub(crate) fn value(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Where a collector keeps its jobs unless it is told otherwise.
pub(crate) fn data_folder() -> Option<PathBuf> {
    let folder = value("XDG_DATA_HOME").map(PathBuf::from);
    let folder =
        folder.or_else(|| Some(PathBuf::from(value("HOME")?).join(".local/share")));
    folder.map(|folder| folder.join("laggard"))
}

/// The job's name where a scheduler gives it one, the same on all its hosts.
pub(crate) fn scheduled_job() -> Option<String> {
    let number = value("SLURM_JOB_ID")?.into_string().ok()?;
    Some(format!("slurm-{number}"))
}

/// This host's name.
pub(crate) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Some(name.trim()).filter(|name| !name.is_empty()).unwrap_or("localhost").to_owned()
}
