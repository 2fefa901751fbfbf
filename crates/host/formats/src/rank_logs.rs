//! Logs that one rank each writes, where only their places say which.

use std::collections::BTreeMap;
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
    let own = file.parent().filter(|it| !it.as_os_str().is_empty());
    let folder = of_torchrun(file).map(|(attempt, _)| attempt).or(own);
    // Of a bare name it is empty, and would leave the job without one.
    folder.unwrap_or(Path::new(".")).to_owned()
}

/// Reads logs again that one rank each writes, now that it is known whose they are, among the `parts` of
/// jobs and files that were `refused`, as nothing in them told a rank. Gives those that still are.
///
/// Numbers in names are ranks if logs say so in their lines: all that name a rank name one, as far
/// from their number as all others, and more than one does. Where no two do, names must tell ranks in words.
pub fn read_rank_logs(
    parts: &mut BTreeMap<PathBuf, Vec<(PathBuf, SnapshotPart)>>,
    mut refused: Vec<PathBuf>,
) -> Vec<PathBuf> {
    let mut families: BTreeMap<(PathBuf, String), Family> = BTreeMap::new();
    let logs = parts.values().flatten().filter(|(_, part)| part.is_log());
    let known = logs.map(|(file, part)| (file, part.printer()));
    for (file, printer) in known.chain(refused.iter().map(|file| (file, None))) {
        if let Some(numbered) = Numbered::of(file) {
            let family = families.entry(numbered.family).or_default();
            family.add(file, numbered.number, numbered.is_rank, printer);
        }
    }
    for family in families.into_values() {
        let Some(ranks) = family.ranks() else {
            continue;
        };
        for (file, rank) in ranks {
            let Some(part) = rank_log(file, rank) else {
                continue;
            };
            refused.retain(|it| it != file);
            let of_job = parts.entry(job_folder(file)).or_default();
            match of_job.iter_mut().find(|(known, _)| known == file) {
                Some(known) => known.1 = part,
                None => of_job.push((file.clone(), part)),
            }
        }
    }
    refused
}

/// Logs whose paths differ in a number.
#[derive(Default)]
struct Family {
    logs: Vec<(PathBuf, u32)>,
    are_ranks: bool,
    /// How far the rank that a log names is from its number; `None` where one names several.
    apart: Vec<Option<i64>>,
}

impl Family {
    fn add(&mut self, file: &Path, number: u32, is_rank: bool, printer: Option<Result<u32, ()>>) {
        self.logs.push((file.to_owned(), number));
        self.are_ranks |= is_rank;
        let apart = |rank: u32| i64::from(rank) - i64::from(number);
        self.apart.extend(printer.map(|rank| rank.ok().map(apart)));
    }

    /// Each log with the rank that writes it, if that is known of all.
    fn ranks(&self) -> Option<impl Iterator<Item = (&PathBuf, u32)>> {
        let first = match self.apart.first() {
            Some(apart) => (*apart)?,
            None => self.are_ranks.then_some(0)?,
        };
        let is_known = self.logs.len() > 1
            && (self.are_ranks || self.apart.len() > 1)
            && self.apart.iter().all(|it| *it == Some(first));
        is_known.then(|| {
            self.logs.iter().filter_map(move |(file, number)| {
                Some((file, u32::try_from(i64::from(*number) + first).ok()?))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranks of logs, by the number of each and what its lines say.
    fn ranks(are_ranks: bool, logs: &[(u32, Option<Result<u32, ()>>)]) -> Option<Vec<u32>> {
        let mut family = Family::default();
        for (number, printer) in logs {
            family.add(Path::new("a"), *number, are_ranks, *printer);
        }
        Some(family.ranks()?.map(|(_, rank)| rank).collect())
    }

    #[test]
    fn numbers_are_ranks_where_lines_or_words_say_so() {
        let said = |rank| Some(Ok(rank));
        let two = [(0, said(0)), (1, None), (2, said(2))];
        assert_eq!(ranks(false, &two), Some(vec![0, 1, 2]));
        // The second host of a job: torchrun counts its processes from 0.
        let second = [(0, said(8)), (1, said(9)), (2, None)];
        assert_eq!(ranks(true, &second), Some(vec![8, 9, 10]));
        let unsaid = [(0, None), (1, None)];
        assert_eq!(ranks(true, &unsaid), Some(vec![0, 1]));
        assert_eq!(ranks(false, &unsaid), None);
        // Runs, of which each has a rank 0, or hosts with several ranks each.
        assert_eq!(ranks(false, &[(0, said(0)), (1, None)]), None);
        assert_eq!(ranks(true, &[(0, said(0)), (1, said(0))]), None);
        assert_eq!(ranks(true, &[(0, Some(Err(()))), (1, Some(Err(())))]), None);
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
