//! The CPU quota of a process's control group, and how often the group uses it up.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::probes::text;

/// Where control groups are mounted.
const MOUNTED: &str = "/sys/fs/cgroup";

/// The nearest control group at or above a process's that has a CPU quota.
#[derive(Debug)]
pub(crate) struct Quota {
    /// `cpu.stat`, which stays open.
    stat: File,
    last: Option<Periods>,
}

/// Periods in which the group ran, and those of them in which it was held back.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Periods {
    all: u64,
    throttled: u64,
}

impl Quota {
    /// The quota that holds for a process now; `None` if it may use all cores.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let group = nearest(&groups, Path::new(MOUNTED))?;
        Some(Self {
            stat: File::open(group.join("cpu.stat")).ok()?,
            last: None,
        })
    }

    /// Share of the periods since the last call in which the group had used up its quota.
    pub(crate) fn throttled_share(&mut self) -> f64 {
        let Some(now) = text(&self.stat).and_then(|text| periods(&text)) else {
            return 0.0;
        };
        // The first call has nothing to compare with, and says that nothing was throttled.
        let before = self.last.replace(now).unwrap_or(now);
        let all = now.all.saturating_sub(before.all);
        let throttled = now.throttled.saturating_sub(before.throttled).min(all);
        throttled as f64 / all.max(1) as f64
    }
}

/// The folder of the nearest group with a quota, from `/proc/PID/cgroup`.
fn nearest(groups: &str, mounted: &Path) -> Option<PathBuf> {
    groups.lines().find_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, group) = line.split_once(':')?;
        let tops = match controllers {
            // The hierarchy of version 2, alone or beside those of version 1.
            "" => [mounted.to_owned(), mounted.join("unified")],
            of if of.split(',').any(|controller| controller == "cpu") => {
                [mounted.join(of), mounted.join("cpu")]
            }
            _ => return None,
        };
        // A container that sees its own group as the top may be told its path on the host.
        let group = Path::new(group.trim_start_matches('/'));
        tops.iter()
            .flat_map(|top| group.ancestors().map(|at| top.join(at)))
            .find(|place| has_quota(place))
    })
}

fn has_quota(group: &Path) -> bool {
    ["cpu.max", "cpu.cfs_quota_us"]
        .iter()
        .find_map(|name| fs::read_to_string(group.join(name)).ok())
        // `max 100000` in version 2 and `-1` in version 1 are none.
        .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .is_some()
}

fn periods(text: &str) -> Option<Periods> {
    Some(Periods {
        all: count(text, "nr_periods ")?,
        throttled: count(text, "nr_throttled ")?,
    })
}

fn count(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_group_with_a_quota_is_found_in_both_versions() {
        let mounted = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = mounted.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let found = |groups| {
            let group = nearest(groups, mounted.path())?;
            Some(group.strip_prefix(mounted.path()).unwrap().to_owned())
        };
        assert_eq!(found("0::/pod/box\n"), None);
        write("pod/cpu.max", "250000 100000\n");
        write("pod/box/cpu.max", "max 100000\n");
        assert_eq!(found("0::/pod/box\n"), Some("pod".into()));
        assert_eq!(found("0::/other\n"), None);
        write("cpu.max", "100000 100000\n");
        assert_eq!(found("0::/told/by/the/host\n"), Some("".into()));
        write("cpu/box/cpu.cfs_quota_us", "40000\n");
        write("cpu/open/cpu.cfs_quota_us", "-1\n");
        assert_eq!(
            found("3:cpuset:/box\n1:cpu,cpuacct:/box\n"),
            Some("cpu/box".into())
        );
        assert_eq!(found("1:cpu:/open\n"), None);
        assert_eq!(found("nonsense\n:\n"), None);
    }

    #[test]
    fn the_share_is_that_of_periods_since_the_last_look() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut quota = Quota {
            stat: File::open(file.path()).unwrap(),
            last: None,
        };
        let mut look = |all: u64, throttled: u64| {
            let stat = format!("usage_usec 9\nnr_periods {all}\nnr_throttled {throttled}\n");
            fs::write(file.path(), stat).unwrap();
            quota.throttled_share()
        };
        let shares = [look(100, 90), look(104, 93), look(104, 93), look(114, 93)];
        assert_eq!(shares, [0.0, 0.75, 0.0, 0.0]);
        assert_eq!(periods("nr_periods 3"), None);
    }
}
