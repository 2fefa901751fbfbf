//! The environment variables the command reads; docs/environment.md describes them.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

#[cfg(feature = "service")]
use bus::Proof;
use ring::{Launched, RingDirectory};

/// `0` runs a command as if laggard were not there.
pub(crate) const ENABLE: &str = "LAGGARD_ENABLE";
/// Where rings stand.
pub(crate) const DIR: &str = "LAGGARD_DIR";
/// The job's id; set for the wrapped command.
pub(crate) const JOB: &str = "LAGGARD_JOB";
/// Settings file.
pub(crate) const CONFIG: &str = "LAGGARD_CONFIG";
/// What is logged.
pub(crate) const LOG: &str = "LAGGARD_LOG";
/// What proves to a collector that we may tell it.
const TOKEN: &str = "LAGGARD_TOKEN";
/// Where buckets are, if not at Amazon's.
#[cfg(feature = "service")]
const S3_ADDRESS: &str = "AWS_ENDPOINT_URL";
/// What proves to a bus who we are: a token, or a user and a password, or a file of credentials.
const BUS_TOKEN: &str = "LAGGARD_BUS_TOKEN";
const BUS_USER: &str = "LAGGARD_BUS_USER";
const BUS_PASSWORD: &str = "LAGGARD_BUS_PASSWORD";
const BUS_CREDENTIALS: &str = "LAGGARD_BUS_CREDENTIALS";
/// What is of no use to a wrapped command, nor anybody's business whom that shows its environment.
pub(crate) const SECRETS: [&str; 5] = [TOKEN, BUS_TOKEN, BUS_USER, BUS_PASSWORD, BUS_CREDENTIALS];
/// NCCL's: the profiler plugin it loads.
pub(crate) const NCCL_PLUGIN: &str = "NCCL_PROFILER_PLUGIN";
/// Kineto's, in PyTorch: the least severe of the lines it prints.
pub(crate) const KINETO_LOG: &str = "KINETO_LOG_LEVEL";
/// Above all of its levels: in each profile window it prints two lines a rank, and an error where
/// PyTorch was built for GPUs and there is none.
pub(crate) const KINETO_SILENT: &str = "6";

/// From this number on Slurm's steps are the script itself, and others that nobody started
/// (`SLURM_MAX_NORMAL_STEP_ID` in its `slurm.h`).
const FIRST_ODD_STEP: u32 = 0xffff_fff0;

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

/// What is logged, as it was typed.
pub(crate) fn log_level() -> Option<String> {
    text(LOG)
}

/// What proves to a collector who we are.
pub(crate) fn token() -> Option<String> {
    text(TOKEN)
}

/// Where buckets are, if not at Amazon's.
#[cfg(feature = "service")]
pub(crate) fn s3_address() -> Option<String> {
    text(S3_ADDRESS)
}

/// What proves to a bus who we are.
#[cfg(feature = "service")]
pub(crate) fn bus_proof() -> Option<Proof> {
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
#[cfg(feature = "service")]
pub(crate) fn data_folder() -> Option<PathBuf> {
    value("XDG_DATA_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(value("HOME")?).join(".local/share")))
        .map(|folder| folder.join("laggard"))
}

/// The job's name where a scheduler gives it one, the same on all its hosts.
pub(crate) fn scheduled_job() -> Option<String> {
    Some(slurm_job(&text("SLURM_JOB_ID")?, text("SLURM_STEP_ID")))
}

/// What this process and others on this host were started by at once, one for each rank, as `srun`
/// and `mpirun` do; `None` if it is alone.
pub(crate) fn launch() -> Option<String> {
    // No launcher counts as one rank: `None` is below `Some(2)`.
    if Launched::here().local_world_size < Some(2) {
        return None;
    }
    // A job that is started anew after a failure has the same number.
    let again = text("SLURM_RESTART_COUNT").map(|count| format!("-{count}"));
    // A script of sbatch has a job id too, but only tasks of srun have a step.
    text("SLURM_STEP_NUM_TASKS")
        .and_then(|_| scheduled_job())
        .map(|job| format!("{job}{}", again.unwrap_or_default()))
        .or_else(|| text("PMIX_NAMESPACE").map(|name| format!("mpi-{name}")))
}

fn text(name: &str) -> Option<String> {
    value(name)?.into_string().ok()
}

/// What a script starts with `srun`, one after the other or at once, are jobs of their own.
fn slurm_job(job: &str, step: Option<String>) -> String {
    match step.filter(|step| step.parse().is_ok_and(|it: u32| it < FIRST_ODD_STEP)) {
        Some(step) => format!("slurm-{job}.{step}"),
        None => format!("slurm-{job}"),
    }
}

/// This host's name.
pub(crate) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Some(name.trim())
        .filter(|name| !name.is_empty())
        .unwrap_or("localhost")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_of_a_slurm_job_has_a_name_of_its_own() {
        let named = |step: Option<&str>| slurm_job("71", step.map(str::to_owned));
        assert_eq!(named(Some("0")), "slurm-71.0");
        assert_eq!(named(Some("1")), "slurm-71.1");
        for script in [None, Some("4294967291"), Some("batch")] {
            assert_eq!(named(script), "slurm-71");
        }
    }
}
