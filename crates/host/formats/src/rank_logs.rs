//! Logs that one rank each writes, where only their places say which.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::SnapshotPart;
use crate::file_name::{numbered, worded};
use crate::recording::rank_log;

/// Where a log stands among those of its job.
struct Numbered {
    /// What logs of all ranks have in common: the path, its number left out.
    family: (PathBuf, String),
    number: u32,
    /// Whether that is the rank, as far as names go.
    is_rank: bool,
}

impl Numbered {
    fn of(path: &Path) -> Option<Self> {
        if let Some((attempt, number)) = of_torchrun(path) {
            return Some(Self {
                family: (attempt.to_owned(), String::new()),
                number,
                is_rank: true,
            });
        }
        let name = path.file_name()?.to_string_lossy();
        let (number, place) = numbered(&name)?;
        let without = format!("{}*{}", &name[..place.start], &name[place.end..]);
        Some(Self {
            family: (path.parent()?.to_owned(), without),
            number,
            is_rank: worded(&name, &["rank"]).is_some(),
        })
    }
}

/// The folder of a start that torchrun's `--log-dir` has, and the number of the process on its host:
/// `attempt_0/3/stderr.log`.
fn of_torchrun(path: &Path) -> Option<(&Path, u32)> {
    let process = path.parent()?;
    let attempt = process.parent()?;
    let is_its = matches!(path.file_name()?.to_str()?, "stdout.log" | "stderr.log")
        && attempt.file_name()?.to_str()?.starts_with("attempt_");
    let number = process.file_name()?.to_str()?.parse().ok()?;
    is_its.then_some((attempt, number))
}

/// The folder whose files are those of one job: the file's, or the one in which torchrun gives each
/// process a folder.
pub fn job_folder(file: &Path) -> PathBuf {
    let torchruns = of_torchrun(file).map(|(attempt, _)| attempt);
    named(torchruns.or(file.parent()).unwrap_or(file))
}

/// A folder under a name: that of a bare file is empty, and would leave a job without one.
pub(crate) fn named(folder: &Path) -> PathBuf {
    if folder.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        folder.to_owned()
    }
}

/// Reads logs again that one rank each writes, now that it is known whose they are: among the `parts` of
/// jobs, and the files that were `refused` because none of their lines names a rank. Returns those that
/// remain refused.
///
/// Numbers in names are ranks if logs say so in their lines: all that name a rank name one, as far
/// from their number as all others, and more than one does. Where no two do, names must say `rank`.
pub fn read_rank_logs(
    parts: &mut BTreeMap<PathBuf, Vec<(PathBuf, SnapshotPart)>>,
    mut refused: BTreeSet<PathBuf>,
) -> BTreeSet<PathBuf> {
    let mut families: BTreeMap<(PathBuf, String), Family> = BTreeMap::new();
    let logs = parts
        .values()
        .flatten()
        .filter_map(|(file, part)| Some((file, part.printers()?)));
    let none = BTreeSet::new();
    for (file, printers) in logs.chain(refused.iter().map(|file| (file, &none))) {
        if let Some(numbered) = Numbered::of(file) {
            let family = families.entry(numbered.family).or_default();
            family.add(file, numbered.number, numbered.is_rank, printers);
        }
    }
    let ranks = families.values().filter_map(Family::ranks).flatten();
    let mut read: BTreeMap<&PathBuf, SnapshotPart> = ranks
        .filter_map(|(file, rank)| Some((file, rank_log(file, rank)?)))
        .collect();
    for (file, part) in parts.values_mut().flatten() {
        if let Some(again) = read.remove(&*file) {
            *part = again;
        }
    }
    for (file, part) in read {
        refused.remove(file);
        let of_job = parts.entry(job_folder(file)).or_default();
        of_job.push((file.clone(), part));
    }
    refused
}

/// Logs whose paths differ in a number.
#[derive(Default)]
struct Family {
    logs: Vec<(PathBuf, u32)>,
    are_ranks: bool,
    /// How far the ranks that lines name are from the number of their log: of several in one log no two
    /// are alike.
    apart: Vec<i64>,
}

impl Family {
    fn add(&mut self, file: &Path, number: u32, is_rank: bool, printers: &BTreeSet<u32>) {
        self.logs.push((file.to_owned(), number));
        self.are_ranks |= is_rank;
        let ranks = printers.iter().copied().map(i64::from);
        self.apart
            .extend(ranks.map(|rank| rank - i64::from(number)));
    }

    /// Each log with the rank that writes it, if that is known of all.
    fn ranks(&self) -> Option<impl Iterator<Item = (&PathBuf, u32)>> {
        let apart = match self.apart[..] {
            [] | [_] if !self.are_ranks => return None,
            [] => 0,
            [first, ..] => first,
        };
        let is_known = self.logs.len() > 1 && self.apart.iter().all(|it| *it == apart);
        is_known.then(|| {
            self.logs.iter().filter_map(move |(file, number)| {
                Some((file, u32::try_from(i64::from(*number) + apart).ok()?))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranks of logs, by the number of each and what its lines say.
    fn ranks(are_ranks: bool, logs: &[(u32, &[u32])]) -> Option<Vec<u32>> {
        let mut family = Family::default();
        for (number, printers) in logs {
            let printers = printers.iter().copied().collect();
            family.add(Path::new("a"), *number, are_ranks, &printers);
        }
        Some(family.ranks()?.map(|(_, rank)| rank).collect())
    }

    #[test]
    fn numbers_are_ranks_where_lines_or_words_say_so() {
        let two: [(u32, &[u32]); 3] = [(0, &[0]), (1, &[]), (2, &[2])];
        assert_eq!(ranks(false, &two), Some(vec![0, 1, 2]));
        // The second host of a job: torchrun counts its processes from 0.
        let second: [(u32, &[u32]); 3] = [(0, &[8]), (1, &[9]), (2, &[])];
        assert_eq!(ranks(true, &second), Some(vec![8, 9, 10]));
        let unsaid: [(u32, &[u32]); 2] = [(0, &[]), (1, &[])];
        assert_eq!(ranks(true, &unsaid), Some(vec![0, 1]));
        assert_eq!(ranks(false, &unsaid), None);
        // Runs, of which each has a rank 0, or hosts with several ranks each.
        assert_eq!(ranks(false, &[(0, &[0]), (1, &[])]), None);
        assert_eq!(ranks(true, &[(0, &[0]), (1, &[0])]), None);
        assert_eq!(ranks(true, &[(0, &[0, 1]), (1, &[2, 3])]), None);
    }

    #[test]
    fn logs_of_a_job_differ_in_a_number() {
        let family = |path: &str| {
            let of = Numbered::of(Path::new(path))?;
            Some((of.family.1, of.number, of.is_rank))
        };
        let is = |name: &str, number, is_rank| Some((name.to_owned(), number, is_rank));
        assert_eq!(family("logs/rank_03.err"), is("rank_*.err", 3, true));
        assert_eq!(family("slurm-88-3.out"), is("slurm-88-*.out", 3, false));
        assert_eq!(family("worker-3.log"), is("worker-*.log", 3, false));
        assert_eq!(family("a/attempt_0/3/stderr.log"), is("", 3, true));
        assert_eq!(family("a/3/stderr.log"), None);
        let folder = job_folder(Path::new("a/attempt_0/3/stderr.log"));
        assert_eq!(folder, Path::new("a/attempt_0"));
        assert_eq!(job_folder(Path::new("rank0.log")), Path::new("."));
    }
}
