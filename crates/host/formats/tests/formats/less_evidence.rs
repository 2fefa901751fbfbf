//! Fewer or damaged Flight Recorder dumps of a hung job: no innocent rank is ever accused.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use laggard_formats::{FormatError, Limits, Recording, Snapshot, SnapshotPart, load, load_bytes};
use model::{Severity, Verdict};
use verdict::Settings;

/// Real dumps, and the ranks that held the job up.
const CASES: [(&str, &[u32]); 15] = [
    ("gloo_dtype", &[1]),
    ("gloo_hold_gil", &[1]),
    ("gloo_missing", &[2]),
    ("gloo_order", &[0, 1]),
    ("gloo_python_spin", &[1]),
    ("gloo_size", &[1]),
    ("gloo_type", &[3]),
    ("hook_dtype", &[1]),
    ("hook_missing", &[2]),
    ("hook_p2p", &[]),
    ("hook_size", &[1]),
    ("hook_size_r0", &[0]),
    ("hook_type", &[3]),
    ("hook_type_r0", &[0]),
    ("nccl_shape_missing", &[2]),
];

/// Random halves of the files of each case.
const HALVES: usize = 40;

#[expect(clippy::print_stdout, reason = "what is skipped is listed")]
fn dumps() -> Option<PathBuf> {
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/data/flight_recorder");
    if !folder.is_dir() {
        println!("skipped: no dumps at {}", folder.display());
    }
    folder.is_dir().then_some(folder)
}

/// A file of a case: its rank, its name, what it says.
#[derive(Clone)]
struct File {
    rank: u32,
    path: PathBuf,
    part: SnapshotPart,
}

fn files(folder: &Path) -> Vec<File> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.retain(|path| path.extension().is_none_or(|it| it != "txt"));
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let stem = path
                .file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            let rank = stem.rsplit('_').next().and_then(|rank| rank.parse().ok());
            let Recording::Part(part) = load(&path, Limits::default()).expect("it loads") else {
                panic!("{} is no dump", path.display())
            };
            File {
                rank: rank.expect("a rank"),
                path,
                part,
            }
        })
        .collect()
}

fn verdict<'a>(files: impl IntoIterator<Item = &'a File>) -> Verdict {
    let parts = files.into_iter().map(|file| file.part.clone()).collect();
    Snapshot::new(parts)
        .replay("job", Settings::default())
        .verdict()
}

fn accused(verdict: &Verdict) -> BTreeSet<u32> {
    verdict
        .incidents
        .iter()
        .flat_map(|it| it.subject.ranks.iter().copied())
        .collect()
}

/// What came of the subsets of a case.
#[derive(Debug, Default)]
struct Tally {
    right: usize,
    open: usize,
    silent: usize,
    wrong: Vec<String>,
}

impl Tally {
    fn add(&mut self, truth: &[u32], what: &str, verdict: &Verdict) {
        let accused = accused(verdict);
        if accused.iter().any(|rank| !truth.contains(rank)) {
            let texts = verdict.incidents.iter().map(|it| it.text.as_str());
            self.wrong
                .push(format!("{what}: {}", texts.collect::<Vec<_>>().join(" | ")));
        } else if !accused.is_empty() {
            self.right += 1;
        } else if verdict
            .incidents
            .iter()
            .any(|it| it.severity > Severity::Info)
            || verdict
                .notes
                .iter()
                .any(|note| note.starts_with("there is no dump of"))
        {
            self.open += 1;
        } else {
            self.silent += 1;
        }
    }
}

/// Whether a file is of a kind.
type IsKind<'a> = &'a dyn Fn(&File) -> bool;

/// Every set of ranks, of all files, of those of one kind; each file left out; random halves.
fn subsets(files: &[File]) -> Vec<(String, Vec<File>)> {
    let is_stack = |file: &File| file.path.to_string_lossy().contains("pyspy");
    let is_json = |file: &File| file.path.extension().is_some_and(|it| it == "json");
    let mut subsets: Vec<(String, Vec<File>)> = Vec::new();
    let kinds: [(&str, IsKind<'_>); 4] = [
        ("all files", &|_| true),
        ("dumps", &|file| !is_stack(file)),
        ("pickles", &|file| !is_json(file)),
        ("JSON", &|file| is_json(file) && !is_stack(file)),
    ];
    for bits in 1_u32..16 {
        let is_there = |file: &&File| bits >> file.rank & 1 == 1;
        for (kind, is_kind) in kinds {
            let there = files.iter().filter(is_there).filter(|file| is_kind(file));
            subsets.push((
                format!("{kind} of ranks {bits:04b}"),
                there.cloned().collect(),
            ));
        }
    }
    for lost in 0..files.len() {
        let mut rest = files.to_vec();
        let lost = rest.remove(lost);
        subsets.push((format!("without {}", lost.path.display()), rest));
    }
    let mut state = 1_u64;
    for half in 0..HALVES {
        let is_there = |_: &&File| {
            // Knuth's MMIX generator: the same halves each time.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 63 == 1
        };
        subsets.push((
            format!("half {half}"),
            files.iter().filter(is_there).cloned().collect(),
        ));
    }
    subsets.retain(|(_, files)| files.iter().any(|file| !is_stack(file)));
    subsets
}

#[test]
fn fewer_dumps_accuse_no_innocent() {
    let Some(dumps) = dumps() else { return };
    let mut all = Tally::default();
    for (case, truth) in CASES {
        let files = files(&dumps.join(case));
        let found = accused(&verdict(&files));
        assert_eq!(
            found,
            truth.iter().copied().collect(),
            "{case} with all dumps"
        );
        let mut tally = Tally::default();
        for (what, files) in subsets(&files) {
            tally.add(truth, &format!("{case}, {what}"), &verdict(&files));
        }
        println!(
            "{case}: right {}, open {}, silent {}, wrong {}",
            tally.right,
            tally.open,
            tally.silent,
            tally.wrong.len()
        );
        if !truth.is_empty() {
            all.silent += tally.silent;
        }
        all.right += tally.right;
        all.open += tally.open;
        all.wrong.append(&mut tally.wrong);
    }
    println!(
        "right {}, open {}, silent about a hang {}, wrong {}",
        all.right,
        all.open,
        all.silent,
        all.wrong.len()
    );
    assert!(all.wrong.is_empty(), "{}", all.wrong.join("\n"));
    assert_eq!(all.silent, 0);
}

#[test]
fn dumps_that_were_cut_are_refused_and_the_rest_accuses_no_innocent() {
    let Some(dumps) = dumps() else { return };
    for (case, truth) in CASES {
        let files = files(&dumps.join(case));
        for cut in &files {
            let bytes = fs::read(&cut.path).expect("it is read");
            for share in [1, 50, 99] {
                let name = cut.path.to_string_lossy();
                let cut_at = bytes.len() * share / 100;
                let loaded = load_bytes(&name, &bytes[..cut_at], Limits::default());
                let error = loaded
                    .err()
                    .unwrap_or_else(|| panic!("{name} at {share} %"));
                assert!(!matches!(error, FormatError::Io { .. }), "{error}");
            }
            // What a folder with such a file is analysed as: the file is left out.
            let others = files.iter().filter(|file| file.path != cut.path);
            let found = accused(&verdict(others));
            assert!(
                found.iter().all(|rank| truth.contains(rank)),
                "{case}: {found:?}"
            );
        }
    }
}

/// The same bytes under the name of another rank.
fn renamed(file: &File, rank: u32) -> File {
    let name = file.path.to_string_lossy();
    let at = name.rfind(&file.rank.to_string()).expect("a rank");
    let name = format!("{}{rank}{}", &name[..at], &name[at + 1..]);
    let bytes = fs::read(&file.path).expect("it is read");
    let Ok(Recording::Part(part)) = load_bytes(&name, &bytes, Limits::default()) else {
        panic!("{name}")
    };
    File {
        rank,
        path: PathBuf::from(name),
        part,
    }
}

#[test]
fn a_dump_that_is_there_twice_accuses_no_innocent() {
    let Some(dumps) = dumps() else { return };
    for (case, truth) in CASES {
        let files = files(&dumps.join(case));
        for file in &files {
            let found = accused(&verdict(files.iter().chain([file])));
            assert_eq!(found, truth.iter().copied().collect(), "{case}: one twice");
        }
        let dumps: Vec<&File> = files
            .iter()
            .filter(|file| !file.path.to_string_lossy().contains("pyspy"))
            .collect();
        for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))) {
            let copies: Vec<File> = dumps
                .iter()
                .filter(|file| file.rank == from)
                .map(|file| renamed(file, to))
                .collect();
            let others = dumps.iter().copied().filter(|file| file.rank != to);
            let reported = verdict(others.chain(&copies));
            let found = accused(&reported);
            assert!(
                from == to || found.iter().all(|rank| truth.contains(rank)),
                "{case}, {from} copied to {to}: {found:?} {:?}",
                reported
                    .incidents
                    .iter()
                    .map(|it| &it.text)
                    .collect::<Vec<_>>()
            );
        }
    }
}

/// A dump in JSON as it was some collectives before.
fn earlier(file: &File, by: usize) -> File {
    let text = fs::read_to_string(&file.path).expect("it is read");
    let mut dump: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let entries = dump["entries"].as_array_mut().expect("entries");
    entries.truncate(entries.len().saturating_sub(by));
    let entries = entries.clone();
    for (group, status) in dump["pg_status"].as_object_mut().expect("groups") {
        let of_group = entries
            .iter()
            .filter(|it| it["process_group"][0] == group.as_str());
        let last = of_group
            .filter_map(|it| it["collective_seq_id"].as_u64())
            .max();
        let last = last.unwrap_or(0).to_string();
        status["last_enqueued_collective"] = last.clone().into();
        if status["last_completed_collective"] != "-1" {
            status["last_completed_collective"] = last.into();
        }
    }
    let name = file.path.to_string_lossy();
    let bytes = dump.to_string().into_bytes();
    let Ok(Recording::Part(part)) = load_bytes(&name, &bytes, Limits::default()) else {
        panic!("{name}")
    };
    File {
        part,
        ..file.clone()
    }
}

#[test]
fn dumps_of_two_moments_accuse_no_innocent() {
    let Some(dumps) = dumps() else { return };
    for (case, truth) in CASES {
        let files = files(&dumps.join(case));
        let dumps: Vec<&File> = files
            .iter()
            .filter(|file| {
                let name = file.path.file_name().expect("a name").to_string_lossy();
                name.starts_with("fr_rank")
            })
            .collect();
        for old in &dumps {
            for by in 2..9 {
                let before = earlier(old, by);
                let others = dumps.iter().copied().filter(|file| file.rank != old.rank);
                let reported = verdict(others.chain([&before]));
                let found = accused(&reported);
                // Fake groups tell of nothing that has ended.
                let is_reported = case.starts_with("gloo");
                assert!(
                    !is_reported || found.iter().all(|rank| truth.contains(rank)),
                    "{case}, rank {} {by} before: {:?}",
                    old.rank,
                    reported
                        .incidents
                        .iter()
                        .map(|it| &it.text)
                        .collect::<Vec<_>>()
                );
            }
        }
    }
}
