//! The report NCCL's RAS gives in words, the only one before NCCL 2.28.7.
//!
//! It lists ranks that are apart from the others and counts the others, so the others are
//! those that are not listed. Ranks of several communicators cannot be joined: the largest
//! one that is not as it should be is read, the others are mentioned.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use model::{RankTrouble, RasNote};

use crate::FormatError;
use crate::ranks::ProcessPlace;
use crate::ras::{Missing, Present, RasCommunicator, RasReply, Why, place};

/// How every report begins.
const BEGINNING: &[u8] = b"NCCL version ";
/// Ranks of a communicator at most: more than any has, and little enough to be listed.
const MAX_RANKS: u32 = 1 << 17;

/// Whether a text is a report, or one that was pasted without its first lines.
pub(crate) fn begins(start: &[u8]) -> bool {
    const LATER: [&[u8]; 2] = [b"Job summary", b"Communicators..."];
    let line = start.split(|byte| *byte == b'\n').next().unwrap_or(start);
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let is_table = ["Group", "Comms", "Nodes", "Ranks"]
        .iter()
        .all(|word| words.next() == Some(word.as_bytes()));
    is_table || start.starts_with(BEGINNING) || LATER.iter().any(|it| start.starts_with(it))
}

/// Bytes before a report, if it begins in the first lines of a text.
pub(crate) fn preamble(start: &[u8]) -> usize {
    const NEAR: usize = 1 << 12;
    let has = |part: &[u8]| memchr::memmem::find(start, part).is_some();
    let near = &start[..start.len().min(NEAR)];
    let at = memchr::memmem::find(near, &[b"\n", BEGINNING].concat());
    // Jobs print the version, too.
    at.filter(|_| has(b"\nJob summary")).map_or(0, |at| at + 1)
}

/// Dead processes that are listed at most where their ranks are unknown.
const MAX_NOTED: usize = 8;

/// Whether a line is an answer to a command before the report.
pub(crate) fn is_acknowledgement(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    line == b"OK" || line.starts_with(b"SERVER PROTOCOL ")
}

/// What the report says of one communicator.
#[derive(Default)]
struct ReportedComm {
    name: String,
    kind: String,
    size: u32,
    /// By function, how many ranks have launched how many.
    classes: BTreeMap<String, Vec<CountClass>>,
    /// Functions and ranks that were listed with a class.
    listed: BTreeSet<(String, u32)>,
    missing: BTreeMap<u32, Missing>,
    /// How many are missing, of which some may be listed.
    missing_count: u64,
    troubles: BTreeMap<RankTrouble, Vec<u32>>,
}

struct CountClass {
    launched: u64,
    count: u64,
    /// Those that are listed.
    ranks: BTreeMap<u32, ProcessPlace>,
}

/// What the ranks that are listed next are.
enum Listing {
    Nothing,
    Dead,
    Missing,
    Class(String),
    Trouble(RankTrouble),
}

struct RasTextReader<'a> {
    path: &'a Path,
    line: usize,
    sizes: BTreeMap<u32, u32>,
    dead: BTreeSet<(String, i64)>,
    /// What the table calls wrong.
    faults: BTreeSet<String>,
    said: Vec<ReportedComm>,
    /// Where in it a communicator is described, by name and size.
    places: BTreeMap<(String, u32), usize>,
    /// The one that is described now.
    current: usize,
    listing: Listing,
}

/// Reads a report.
pub(crate) fn read(path: &Path, text: &str) -> Result<RasReply, FormatError> {
    let mut reader = RasTextReader {
        path,
        line: 0,
        sizes: BTreeMap::new(),
        dead: BTreeSet::new(),
        faults: BTreeSet::new(),
        said: Vec::new(),
        places: BTreeMap::new(),
        current: 0,
        listing: Listing::Nothing,
    };
    for line in text.lines() {
        reader.line += 1;
        reader.take(line.trim())?;
    }
    // Every report has this section, behind all others, even where nothing is wrong.
    if !text.lines().any(|line| line.trim() == "Warnings") {
        let reason = "the report ends before its warnings: ask for it again".to_owned();
        return Err(reader.refuse(reason));
    }
    Ok(reader.reply())
}

impl RasTextReader<'_> {
    fn refuse(&self, reason: String) -> FormatError {
        FormatError::content(self.path, format!("line {}", self.line), reason)
    }

    fn number<T: std::str::FromStr>(&self, text: &str) -> Result<T, FormatError> {
        text.parse()
            .ok()
            .ok_or_else(|| self.refuse(format!("{text:?} is not a number of the expected kind")))
    }

    fn take(&mut self, line: &str) -> Result<(), FormatError> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            // A row of the table of communicators.
            [group, _, _, _, size, _, _, fault] if is_number(group) && is_number(size) => {
                if *fault != "OK" {
                    self.faults.insert((*fault).to_owned());
                }
                let (group, size) = (self.number(group)?, self.number(size)?);
                if size > MAX_RANKS {
                    return Err(self.refuse(format!("a communicator of {size} ranks")));
                }
                self.sizes.insert(group, size);
            }
            ["DEAD"] => self.listing = Listing::Dead,
            ["Process", pid, "on", "node", node, ..] if matches!(self.listing, Listing::Dead) => {
                let pid = self.number(pid)?;
                self.dead.insert(((*node).to_owned(), pid));
            }
            [number, hash, kind] if number.starts_with('#') => {
                self.begin(number, hash, kind)?;
            }
            [
                "Missing",
                "communicator",
                "data",
                "from",
                count,
                "rank" | "ranks",
            ] => {
                let count = self.number(count)?;
                self.listing = Listing::Missing;
                if let Some(said) = self.said.get_mut(self.current) {
                    said.missing_count = count;
                }
            }
            // Without their processes, before NCCL 2.26.
            ["The", "missing", "rank:" | "ranks:", ranks @ ..] => {
                for rank in ranks
                    .iter()
                    .flat_map(|it| it.split(','))
                    .filter(|it| !it.is_empty())
                {
                    self.rank(rank, &words)?;
                }
            }
            // The function is "collective" before NCCL 2.26, which counts all together.
            [
                "Communicator",
                "ranks",
                "have",
                "different",
                function,
                "operation",
                "counts",
            ] => {
                self.listing = Listing::Class((*function).to_owned());
            }
            [
                count,
                "ranks",
                "have",
                "launched",
                "up",
                "to",
                "operation",
                launched,
            ] => {
                let (count, launched) = (self.number(count)?, self.number(launched)?);
                self.class(count, launched);
            }
            [
                count,
                "ranks",
                "have",
                "not",
                "launched",
                "any",
                "operations",
            ] => {
                let count = self.number(count)?;
                self.class(count, 0);
            }
            [
                "Rank",
                rank,
                "has",
                "launched",
                "up",
                "to",
                "operation",
                launched,
                ..,
            ] => {
                let launched = self.number(launched)?;
                // A class of one rank has no line of its own before it.
                self.class(1, launched);
                self.rank(rank, &words)?;
            }
            [
                "Rank",
                rank,
                "has",
                "not",
                "launched",
                "any",
                "operations",
                ..,
            ] => {
                self.class(1, 0);
                self.rank(rank, &words)?;
            }
            [_, "ranks", "have", "status", status] => {
                self.listing = Listing::Trouble(RankTrouble::Status((*status).to_owned()));
            }
            ["Rank", rank, "has", "status", status, ..] => {
                self.listing = Listing::Trouble(RankTrouble::Status((*status).to_owned()));
                self.rank(rank, &words)?;
            }
            [_, "ranks", "reported", error @ ..] => {
                self.listing = Listing::Trouble(RankTrouble::Reported(error.join(" ")));
            }
            ["Rank", rank, "reported", rest @ ..] => {
                let error: Vec<&str> = rest
                    .iter()
                    .take_while(|word| **word != "--")
                    .copied()
                    .collect();
                self.listing = Listing::Trouble(RankTrouble::Reported(error.join(" ")));
                self.rank(rank, &words)?;
            }
            ["Rank", rank, "--", ..] => self.rank(rank, &words)?,
            _ => {}
        }
        Ok(())
    }

    /// What follows is about a communicator: `#0-0 (fa93daea854b060b) MISMATCH`.
    fn begin(&mut self, number: &str, hash: &str, kind: &str) -> Result<(), FormatError> {
        let group = number
            .trim_start_matches('#')
            .split('-')
            .next()
            .unwrap_or_default();
        let group: u32 = self.number(group)?;
        let hash = hash.trim_matches(['(', ')']);
        if u64::from_str_radix(hash, 16).is_err() {
            return Err(self.refuse(format!("{hash:?} is not the hash of a communicator")));
        }
        let Some(size) = self.sizes.get(&group).copied() else {
            return Err(self.refuse(format!("the table has no group {group}")));
        };
        self.listing = Listing::Nothing;
        // Of one that does not exist (NOCOMM), NCCL 2.27 lists whatever is in its memory.
        if size == 0 {
            self.current = usize::MAX;
            return Ok(());
        }
        // As replies in JSON write it, so that both kinds of reply name a communicator alike.
        let name = format!("comm 0x{}", hash.trim_start_matches('0'));
        // One communicator may stand under the errors and again under the warnings.
        self.current = *self
            .places
            .entry((name.clone(), size))
            .or_insert(self.said.len());
        if self.current == self.said.len() {
            self.said.push(ReportedComm {
                name,
                size,
                kind: kind.to_owned(),
                ..ReportedComm::default()
            });
        }
        Ok(())
    }

    fn class(&mut self, count: u64, launched: u64) {
        if let (Listing::Class(function), Some(said)) =
            (&self.listing, self.said.get_mut(self.current))
        {
            let classes = said.classes.entry(function.clone()).or_default();
            classes.push(CountClass {
                launched,
                count,
                ranks: BTreeMap::new(),
            });
        }
    }

    /// A rank of what is being listed: `Rank 3 -- GPU 3 managed by process 9 on node 10.0.0.1`.
    fn rank(&mut self, rank: &str, words: &[&str]) -> Result<(), FormatError> {
        let rank: u32 = self.number(rank)?;
        // An error that a rank reports may have these words, too.
        let at = words.iter().position(|word| *word == "--");
        let words = at.map_or(words, |at| &words[at..]);
        let pid = after("process", words).map_or(Ok(-1), |pid| self.number(pid))?;
        let host = after("node", words).unwrap_or_default().to_owned();
        let device = after("GPU", words).map_or(Ok(-1), |device| self.number(device))?;
        // Lists of missing ranks do not say who is dead: the section DEAD does, by process.
        let dead = self.dead.contains(&(host.clone(), pid));
        let place = place(host, pid, device, rank);
        let twice = match (&self.listing, self.said.get_mut(self.current)) {
            (_, Some(said)) if rank >= said.size => {
                let reason = format!("rank {rank} in a communicator of {}", said.size);
                return Err(self.refuse(reason));
            }
            (Listing::Missing, Some(said)) => {
                let why = if dead { Why::Dead } else { Why::Silent };
                said.missing.insert(rank, Missing { place, why }).is_some()
            }
            (Listing::Class(function), Some(said)) => {
                let classes = said.classes.entry(function.clone()).or_default();
                let twice = !said.listed.insert((function.clone(), rank));
                if let Some(class) = classes.last_mut() {
                    class.ranks.insert(rank, place);
                }
                twice
            }
            (Listing::Trouble(trouble), Some(said)) => {
                said.troubles.entry(trouble.clone()).or_default().push(rank);
                false
            }
            _ => false,
        };
        if twice {
            return Err(self.refuse(format!("rank {rank} is listed twice")));
        }
        Ok(())
    }

    fn reply(mut self) -> RasReply {
        let mut reply = RasReply::default();
        // Of those of one size the one described first.
        let size = self.said.iter().map(|said| said.size).max();
        let Some(at) = self.said.iter().position(|said| Some(said.size) == size) else {
            // Nothing is wrong with any, or nothing else is said of it.
            let dead = self.dead.iter().take(MAX_NOTED);
            reply.notes.extend(dead.map(|(host, pid)| RasNote::Dead {
                pid: *pid,
                host: host.clone(),
            }));
            reply
                .notes
                .extend(self.faults.into_iter().map(RasNote::Failed));
            let size = self.sizes.values().copied().max().unwrap_or(0);
            let ranks = (0..size).map(|rank| (rank, unlisted(rank))).collect();
            let (name, missing) = ("comm".to_owned(), BTreeMap::new());
            reply.communicators.push(RasCommunicator {
                name,
                ranks,
                missing,
            });
            return reply;
        };
        let said = self.said.remove(at);
        if self.sizes.values().any(|size| *size > said.size) {
            reply.notes.push(RasNote::NumberedBy(said.name.clone()));
        }
        if let Some(other) = self.said.first() {
            reply.notes.push(RasNote::MoreFaults {
                others: self.said.len() as u64,
                name: other.name.clone(),
                fault: other.kind.clone(),
            });
        }
        let unlisted = said.missing_count.saturating_sub(said.missing.len() as u64);
        if unlisted > 0 {
            reply.notes.push(RasNote::Incomplete {
                communicator: said.name.clone(),
                ranks: unlisted,
            });
        }
        for (trouble, ranks) in &said.troubles {
            reply.notes.push(RasNote::Trouble {
                communicator: said.name.clone(),
                ranks: ranks.clone(),
                trouble: trouble.clone(),
            });
        }
        reply
            .communicators
            .push(said.communicator(&mut reply.notes));
        reply
    }
}

/// A rank that the report does not list: where it runs is not known.
fn unlisted(rank: u32) -> Present {
    Present::new(place(String::new(), -1, -1, rank))
}

/// What follows a word.
fn after<'a>(word: &str, words: &[&'a str]) -> Option<&'a str> {
    let at = words.iter().position(|known| *known == word)?;
    words.get(at + 1).copied()
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit())
}

impl ReportedComm {
    fn communicator(self, notes: &mut Vec<RasNote>) -> RasCommunicator {
        let mut ranks: BTreeMap<u32, Present> = (0..self.size)
            .filter(|rank| !self.missing.contains_key(rank))
            .map(|rank| (rank, unlisted(rank)))
            .collect();
        for (function, classes) in self.classes {
            let listed: BTreeSet<u32> = classes
                .iter()
                .flat_map(|class| class.ranks.keys().copied())
                .collect();
            let counted: Vec<&CountClass> = classes
                .iter()
                .filter(|class| class.ranks.is_empty())
                .collect();
            // The report counts its largest class and lists the others: if there is one such and
            // the numbers add up, who is not listed is in it.
            let launched_by_rest = match counted.as_slice() {
                [] => None,
                [class] if class.count + listed.len() as u64 == ranks.len() as u64 => {
                    Some(class.launched)
                }
                _ => {
                    notes.push(RasNote::Unlisted {
                        communicator: self.name.clone(),
                        function,
                    });
                    // The listed alone would not do: the others would count as having launched
                    // none.
                    continue;
                }
            };
            if let Some(launched) = launched_by_rest {
                for (rank, member) in &mut ranks {
                    if !listed.contains(rank) {
                        member.launched.insert(function.clone(), launched);
                    }
                }
            }
            for class in classes {
                for (rank, place) in class.ranks {
                    let Some(member) = ranks.get_mut(&rank) else {
                        continue;
                    };
                    member.place = place;
                    member.launched.insert(function.clone(), class.launched);
                }
            }
        }
        RasCommunicator {
            name: self.name,
            ranks,
            missing: self.missing,
        }
    }
}
