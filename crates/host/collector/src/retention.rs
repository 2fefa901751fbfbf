//! Which jobs are forgotten for age or for room.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// How often it is looked whether there is too much.
pub(crate) const LOOK_EVERY: Duration = Duration::from_mins(1);

/// What is kept of jobs that nobody tells anything of any more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    /// Seconds since a host was last heard of; `None` for ever.
    pub age_s: Option<u64>,
    /// Bytes of all jobs together, those that run included; `None` for as many as there are.
    pub bytes: Option<u64>,
}

/// A job as far as that matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stock {
    pub(crate) id: String,
    pub(crate) last_seen_s: u64,
    pub(crate) bytes: u64,
    /// Whether something may still come of it: then it stays.
    pub(crate) runs: bool,
}

impl Keep {
    /// The jobs to forget: those that are too old, then the oldest until the rest has room.
    pub(crate) fn surplus(self, mut jobs: Vec<Stock>, now_s: u64) -> Vec<String> {
        jobs.sort_by(|one, other| (one.last_seen_s, &one.id).cmp(&(other.last_seen_s, &other.id)));
        let mut bytes: u64 = jobs.iter().map(|job| job.bytes).sum();
        let mut surplus = Vec::new();
        // A job that runs counts and stays: only those that have ended can make room for it.
        for job in jobs.into_iter().filter(|job| !job.runs) {
            let age_s = now_s.saturating_sub(job.last_seen_s);
            let is_old = self.age_s.is_some_and(|most| age_s > most);
            let is_large = self.bytes.is_some_and(|most| bytes > most);
            if is_old || is_large {
                bytes -= job.bytes;
                surplus.push(job.id);
            }
        }
        surplus
    }
}

/// Bytes of the files in a folder; none if it cannot be read.
pub(crate) fn folder_bytes(folder: &Path) -> u64 {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|file| file.metadata().ok())
        .map(|file| file.len())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stock(id: &str, last_seen_s: u64, bytes: u64, runs: bool) -> Stock {
        Stock {
            id: id.to_owned(),
            last_seen_s,
            bytes,
            runs,
        }
    }

    fn jobs() -> Vec<Stock> {
        vec![
            stock("new", 900, 10, false),
            stock("old", 100, 10, false),
            stock("running", 50, 40, true),
            stock("middle", 500, 10, false),
        ]
    }

    #[test]
    fn what_is_old_goes_and_what_runs_stays() {
        let surplus = |age_s| Keep { age_s, bytes: None }.surplus(jobs(), 1000);
        assert_eq!(surplus(Some(900)), Vec::<String>::new());
        assert_eq!(surplus(Some(899)), ["old"]);
        assert_eq!(surplus(Some(0)), ["old", "middle", "new"]);
        assert_eq!(surplus(None), Vec::<String>::new());
        // A clock that was set back makes nothing old.
        assert!(
            Keep {
                age_s: Some(0),
                bytes: None
            }
            .surplus(jobs(), 10)
            .is_empty()
        );
    }

    #[test]
    fn the_oldest_make_room() {
        let surplus = |bytes| {
            Keep {
                age_s: None,
                bytes: Some(bytes),
            }
            .surplus(jobs(), 1000)
        };
        assert_eq!(surplus(70), Vec::<String>::new());
        assert_eq!(surplus(69), ["old"]);
        assert_eq!(surplus(50), ["old", "middle"]);
        // What runs may be more than there is room for.
        assert_eq!(surplus(0), ["old", "middle", "new"]);
    }
}
