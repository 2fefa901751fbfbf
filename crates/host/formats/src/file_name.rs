//! The rank that a file's name tells.

use std::ops::Range;
use std::path::Path;

use crate::call_log::MAX_RANKS;

/// What stands between a word and its number.
const SEPARATORS: [char; 4] = ['-', '_', '.', '='];

/// The rank a file's name tells in words: the number after the last `rank` that has one, or else
/// after the last `worker`.
///
/// The last, because names begin with those of hosts and runs: `franklin_rank3.json`.
pub(crate) fn worded_rank(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_string_lossy();
    worded(&name, &["rank", "worker"]).map(|(rank, _)| rank)
}

/// As [`worded_rank`], but for numbers that are of a host's ranks, and of workers beside which there is a
/// master: that is rank 0, and the first worker rank 1.
pub(crate) fn rank_in_job(path: &Path, has_master: bool) -> Option<u32> {
    let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
    let is_local = ["local_rank", "localrank", "local-rank"]
        .iter()
        .any(|it| name.contains(it));
    let words: &[&str] = if has_master {
        &["rank"]
    } else {
        &["rank", "worker"]
    };
    let rank = worded(&name, words).map(|(rank, _)| rank);
    rank.filter(|_| !is_local)
}

/// Whether a file is named after the first process of a job whose others are called workers.
pub(crate) fn names_master(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.to_ascii_lowercase();
    ["master", "launcher"].iter().any(|it| name.contains(it))
}

/// A path by which files are in the order in which people number them: `trace-2` before `trace-10`.
pub(crate) fn in_order(path: &Path) -> Vec<(String, u64)> {
    let text = path.to_string_lossy();
    let mut parts = Vec::new();
    let mut rest: &str = &text;
    while !rest.is_empty() {
        let words = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (word, behind) = rest.split_at(words);
        let digits = behind
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(behind.len());
        let number = behind[..digits].parse().unwrap_or(u64::MAX);
        parts.push((word.to_owned(), number));
        rest = &behind[digits..];
    }
    parts
}

/// As [`worded_rank`], or else the number that the name ends with, its extension left out: PyTorch
/// writes the rank behind whatever name its Flight Recorder is given.
///
/// Only one extension is left out, besides that of a compressed file: a dot may as well stand in
/// the name of a host, whose number is no rank.
pub(crate) fn named_rank(path: &Path) -> Option<u32> {
    numbered(&path.file_name()?.to_string_lossy()).map(|(rank, _)| rank)
}

/// The same of a name, with the place of the number in it.
pub(crate) fn numbered(name: &str) -> Option<(u32, Range<usize>)> {
    worded(name, &["rank", "worker"]).or_else(|| {
        let plain = [".gz", ".zst"]
            .iter()
            .find_map(|packed| name.strip_suffix(packed))
            .unwrap_or(name);
        // `trace.3` has no extension: PyTorch puts the rank right behind a prefix such as `trace.`.
        let ends_in_digit = |text: &str| text.ends_with(|c: char| c.is_ascii_digit());
        let stem = match plain.rsplit_once('.') {
            Some((stem, extension)) if !ends_in_digit(extension) => stem,
            _ => plain,
        };
        let before = stem.trim_end_matches(|c: char| c.is_ascii_digit());
        let is_process = before.trim_end_matches(SEPARATORS).ends_with("pid");
        if is_process {
            return None;
        }
        number(&stem[before.len()..]).map(|rank| (rank, before.len()..stem.len()))
    })
}

/// The number after the last of the first of these words that has one, and its place.
pub(crate) fn worded(name: &str, words: &[&str]) -> Option<(u32, Range<usize>)> {
    let name = name.to_ascii_lowercase();
    words.iter().find_map(|word| {
        name.rmatch_indices(word).find_map(|(at, _)| {
            let rest = name[at + word.len()..].trim_start_matches(SEPARATORS);
            let end = rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len());
            let from = name.len() - rest.len();
            // No digits are no number: then the word before it is tried, as in `rank3_ranks.json`.
            number(&rest[..end]).map(|rank| (rank, from..from + end))
        })
    })
}

/// A larger number is a time, or the number of a process.
fn number(digits: &str) -> Option<u32> {
    digits.parse().ok().filter(|rank| *rank < MAX_RANKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_host_or_a_run_is_no_rank() {
        for (name, rank) in [
            ("dump_rank_3.json", Some(3)),
            ("gpu-h100-7.cluster_rank_3.json", Some(3)),
            ("franklin_rank3", Some(3)),
            ("franklin3.json", Some(3)),
            ("rank8_of_run_rank-12.pt.trace.json.gz", Some(12)),
            ("rank3.gpu-h100-7.json", Some(3)),
            ("pid_3.txt", None),
            ("worker_5.node7.json", Some(5)),
            // As PyTorch names its dumps, by default and behind a prefix of the user's.
            ("nccl_trace_rank_12", Some(12)),
            ("comm_lib_trace_rank_0", Some(0)),
            ("dump-h100.node7_2", Some(2)),
            ("trace.3", Some(3)),
            ("3", Some(3)),
            ("dump3.pickle", Some(3)),
            ("dump_4.json.zst", Some(4)),
            ("gpu-h100-7.cluster.json", None),
            ("dump.json", None),
            ("dump_1732613883.json", None),
            ("rank.json", None),
        ] {
            assert_eq!(named_rank(Path::new(name)), rank, "{name}");
        }
    }

    #[test]
    fn numbers_of_a_host_and_of_workers_beside_a_master_are_none_of_a_job() {
        let rank = |name, has_master| rank_in_job(Path::new(name), has_master);
        assert_eq!(rank("node1_local_rank3.json", false), None);
        assert_eq!(rank("pt-worker-1.json", false), Some(1));
        assert_eq!(rank("pt-worker-1.json", true), None);
        assert_eq!(rank("pt-worker-1_rank2.json", true), Some(2));
        assert!(names_master(Path::new("pt-master-0.json")));
    }

    #[test]
    fn files_are_in_the_order_of_their_numbers() {
        let mut names = ["trace-10-of-12", "trace-2-of-12", "trace-1-of-12"];
        names.sort_by_key(|name| in_order(Path::new(name)));
        assert_eq!(names, ["trace-1-of-12", "trace-2-of-12", "trace-10-of-12"]);
    }

    #[test]
    fn a_number_without_a_word_is_left_to_files_that_are_named_by_it() {
        assert_eq!(worded_rank(Path::new("pod_17.log")), None);
        assert_eq!(worded_rank(Path::new("/run7/Rank=17.log")), Some(17));
    }
}
