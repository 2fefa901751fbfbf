//! Who the process is and where it records, from the same variables as the Python module
//! reads; docs/environment.md describes them.

use std::env;
use std::io::{Write, stderr};
use std::path::PathBuf;

use ring::{
    Identity, Launched, LiveSize, LiveSource, LiveWriter, RingDirectory, RingError, process_started,
};

/// `0` switches everything off.
const ENABLE: &str = "LAGGARD_ENABLE";
/// Where rings and live tables stand.
const DIR: &str = "LAGGARD_DIR";
/// The job's id.
const JOB: &str = "LAGGARD_JOB";
/// Operations the live table holds.
const OPERATIONS: &str = "LAGGARD_NCCL_OPERATIONS";

/// Makes the live table of this process, as [`record_in`] says.
pub fn live_table(source: LiveSource) -> Option<LiveWriter> {
    record_in("collectives", |directory, identity| {
        LiveWriter::create(directory, identity, size(), source)
    })
}

/// Makes something to record in; `None` if this process is not to be recorded, or cannot be,
/// which is said on standard error.
pub fn record_in<T>(
    what: &str,
    make: impl FnOnce(&RingDirectory, &Identity) -> Result<T, RingError>,
) -> Option<T> {
    if value(ENABLE).as_deref() == Some("0") {
        return None;
    }
    let identity = identity();
    let root = env::var_os(DIR).filter(|root| !root.is_empty());
    let root = root.map_or_else(RingDirectory::default_root, PathBuf::from);
    RingDirectory::create(&root, &identity.job)
        .and_then(|directory| make(&directory, &identity))
        .inspect_err(|error| {
            say(&format!(
                "training continues without recording its {what}: {error}"
            ));
        })
        .ok()
}

fn identity() -> Identity {
    let pid = std::process::id();
    let Launched {
        rank,
        local_rank,
        world_size,
        local_world_size,
    } = Launched::here();
    let rank = rank.unwrap_or(0);
    Identity {
        // The launcher's process id: all ranks that it started come to the same name.
        job: value(JOB).unwrap_or_else(|| format!("job-{}", std::os::unix::process::parent_id())),
        host: host(),
        rank,
        local_rank: local_rank.unwrap_or(rank),
        world_size: world_size.unwrap_or(1),
        local_world_size: local_world_size.unwrap_or(0),
        attempt: number("TORCHELASTIC_RESTART_COUNT").unwrap_or(0),
        pid,
        started: process_started(pid).unwrap_or(0),
    }
}

fn size() -> LiveSize {
    let Some(text) = value(OPERATIONS) else {
        return LiveSize::default();
    };
    let size = text
        .trim()
        .parse()
        .ok()
        .and_then(|number| LiveSize::new(number).ok());
    size.unwrap_or_else(|| {
        say(&format!(
            "{OPERATIONS}={text} is not a power of two from 64 to 65536; the default is used"
        ));
        LiveSize::default()
    })
}

fn host() -> String {
    let mut name = [0; 256];
    // SAFETY: the buffer is as long as is said; the last byte is kept as its end.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

fn number(name: &str) -> Option<u32> {
    value(name)?.trim().parse().ok()
}

/// The value of a variable; one that is set to nothing counts as not set.
fn value(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn say(text: &str) {
    // Nobody to tell if standard error is closed.
    drop(writeln!(stderr(), "laggard: {text}"));
}
