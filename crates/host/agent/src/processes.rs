//! Processes of this host, as the kernel shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::str::SplitWhitespace;

/// The processes that run a rank of `wanted` for a job, as their environment says: of those of a
/// rank the outermost that is Python. The job is called as the directory of its rings.
pub(crate) fn of_ranks(job: &OsStr, wanted: &BTreeSet<u32>) -> BTreeMap<u32, u32> {
    if wanted.is_empty() {
        return BTreeMap::new();
    }
    let ranks: BTreeMap<u32, u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| Some((pid, rank_of(pid, job)?)))
        // Launchers and shells may be started with a rank too; only Python has frames.
        .filter(|(pid, rank)| wanted.contains(rank) && is_python(*pid))
        .collect();
    ranks
        .iter()
        // What a rank starts has its environment.
        .filter(|(pid, rank)| {
            parent_of(**pid).is_none_or(|parent| ranks.get(&parent) != Some(*rank))
        })
        .map(|(pid, rank)| (*rank, *pid))
        .collect()
}

/// The rank that a process has in a job.
fn rank_of(pid: u32, job: &OsStr) -> Option<u32> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    if variable(&environment, "LAGGARD_JOB=")? != job.as_bytes() {
        return None;
    }
    std::str::from_utf8(variable(&environment, "RANK=")?)
        .ok()?
        .parse()
        .ok()
}

/// What follows `name`, which ends with its equals sign.
fn variable<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    environment
        .split(|byte| *byte == 0)
        .find_map(|it| it.strip_prefix(name.as_bytes()))
}

fn is_python(pid: u32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("python")
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    fields(&stat)?.nth(1)?.parse().ok()
}

/// The fields of a process's `stat` from the third one on, its state; proc(5).
pub(crate) fn fields(stat: &str) -> Option<SplitWhitespace<'_>> {
    // The name before them may hold spaces and parentheses; the last ")" ends it.
    Some(stat.get(stat.rfind(')')? + 2..)?.split_whitespace())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn python(script: &str, job: &str, rank: &str) -> Child {
        let mut command = Command::new("python3");
        command
            .args(["-c", script])
            .env("LAGGARD_JOB", job)
            .env("RANK", rank);
        command.stdout(Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn a_rank_is_found_by_its_environment_and_not_what_it_starts() {
        let job = format!("job-of-{}", std::process::id());
        let sleep = "import time; print(flush=True); time.sleep(60)";
        let starts =
            format!("import subprocess, sys; subprocess.run([sys.executable, '-c', '{sleep}'])");
        let mut ranks = [
            python(&starts, &job, "2"),
            python(sleep, &job, "3"),
            python(sleep, "x", "4"),
        ];
        for rank in &mut ranks {
            // The innermost process runs.
            std::io::Read::read_exact(rank.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        }
        let found = of_ranks(job.as_ref(), &[2, 4].into());
        let inner = fs::read_to_string(format!("/proc/{0}/task/{0}/children", ranks[0].id()));
        for pid in inner.unwrap_or_default().split_whitespace() {
            Command::new("kill").arg(pid).status().unwrap();
        }
        let pids = ranks.each_ref().map(Child::id);
        for rank in &mut ranks {
            rank.kill().unwrap();
            rank.wait().unwrap();
        }
        assert_eq!(found, [(2, pids[0])].into());
    }
}
