//! Replies of NCCL's RAS: which collectives each rank has launched, and who does not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use model::fold_ranks;
use serde::Deserialize;
use serde_json::Value;

use crate::FormatError;
use crate::ranks::Place;
use crate::snapshot::content;

/// `ncclInProgress`: no error.
const IN_PROGRESS: i64 = 7;

/// Functions that are counted at most; NCCL 2.30 counts 5.
const MAX_FUNCTIONS: usize = 64;

/// What a process of the job answered for all of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RasReply {
    /// Local time of the answering host; empty if it was not told.
    pub(crate) at: String,
    pub(crate) communicators: Vec<Communicator>,
    pub(crate) notes: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Communicator {
    pub(crate) name: String,
    pub(crate) ranks: BTreeMap<u32, Present>,
    pub(crate) missing: BTreeMap<u32, Missing>,
}

/// What a reply is about, as far as it says so: a report in words names few processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RasJob {
    /// Hashes of communicators.
    pub hashes: BTreeSet<u64>,
    /// Processes by the address of their host.
    pub processes: BTreeMap<String, BTreeSet<i64>>,
}

/// A rank that answered.
#[derive(Clone, Debug)]
pub(crate) struct Present {
    pub(crate) place: Place,
    /// Collectives it has launched, by function.
    pub(crate) launched: BTreeMap<String, u64>,
}

impl Present {
    /// One of which no more is known.
    pub(crate) fn new(place: Place) -> Self {
        Self { place, launched: BTreeMap::new() }
    }
}

/// A rank that did not, or not for this communicator.
#[derive(Clone, Debug)]
pub(crate) struct Missing {
    pub(crate) place: Place,
    pub(crate) why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    /// RAS considers its process dead.
    Dead,
    /// Its process does not answer.
    Silent,
    /// Its process answers and says it is not in the communicator.
    Elsewhere,
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    timestamp: String,
    communicators: Vec<DocumentCommunicator>,
}

#[derive(Deserialize)]
struct DocumentCommunicator {
    hash: String,
    #[serde(default)]
    secondary_hash: String,
    size: u32,
    ranks: Vec<DocumentRank>,
    #[serde(default)]
    missing_ranks: Vec<DocumentMissing>,
}

#[derive(Deserialize)]
struct DocumentRank {
    rank: u32,
    #[serde(default)]
    host: String,
    #[serde(default = "unknown")]
    pid: i64,
    #[serde(default = "unknown")]
    cuda_dev: i64,
    #[serde(default)]
    status: DocumentStatus,
    collective_counts: BTreeMap<String, u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DocumentStatus {
    init_state: i64,
    async_error: i64,
    abort_flag: bool,
}

#[derive(Deserialize)]
struct DocumentMissing {
    rank: u32,
    #[serde(default)]
    host: String,
    #[serde(default = "unknown")]
    pid: i64,
    #[serde(default = "unknown")]
    cuda_dev: i64,
    #[serde(default)]
    status: DocumentAbsence,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DocumentAbsence {
    unresponsive: bool,
    considered_dead: bool,
}

fn unknown() -> i64 {
    -1
}

/// Where a rank runs; one that is nowhere known stands for itself.
pub(crate) fn place(host: String, pid: i64, device: i64, rank: u32) -> Place {
    if pid < 0 { (host, -1, i64::from(rank)) } else { (host, pid, device) }
}

impl RasReply {
    /// Which job it is about.
    pub(crate) fn job(&self) -> RasJob {
        let mut job = RasJob::default();
        for communicator in &self.communicators {
            let hash = communicator.name.strip_prefix("comm 0x").and_then(|rest| {
                let digits = rest.split(' ').next().unwrap_or_default();
                u64::from_str_radix(digits, 16).ok()
            });
            job.hashes.extend(hash);
            let present = communicator.ranks.values().map(|told| &told.place);
            let missing = communicator.missing.values().map(|told| &told.place);
            let processes = present.chain(missing);
            for (host, pid, _) in processes.filter(|(_, pid, _)| *pid >= 0) {
                job.processes.entry(host.clone()).or_default().insert(*pid);
            }
        }
        job
    }

    /// Reads a reply in JSON.
    pub(crate) fn read(path: &Path, document: Value) -> Result<Self, FormatError> {
        let document: Document = content(path, document)?;
        let mut reply = Self { at: document.timestamp, ..Self::default() };
        let mut known = BTreeSet::new();
        let hashes = document.communicators.iter().map(|communicator| &communicator.hash);
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        for hash in hashes {
            *times.entry(hash.clone()).or_default() += 1;
        }
        for (at, communicator) in document.communicators.into_iter().enumerate() {
            let refuse = |place: String, reason: String| FormatError::Content {
                path: path.to_owned(),
                place: format!("communicators[{at}].{place}"),
                reason,
            };
            let hash = &communicator.hash;
            if !is_hexadecimal(hash) {
                let reason = format!("{hash:?} is no hexadecimal number such as 0x1f");
                return Err(refuse("hash".to_owned(), reason));
            }
            let mut name = format!("comm {hash}");
            if times.get(hash).is_some_and(|times| *times > 1) {
                name += &format!(" ({})", communicator.secondary_hash);
            }
            if !known.insert(name.clone()) {
                return Err(refuse(
                    "hash".to_owned(),
                    format!("{name} is told of twice"),
                ));
            }
            let present = communicator.ranks.iter().map(|rank| rank.rank).enumerate();
            let missing =
                communicator.missing_ranks.iter().map(|rank| rank.rank).enumerate();
            let lists = present.map(|rank| ("ranks", rank));
            let mut seen = BTreeSet::new();
            for (list, (at, rank)) in
                lists.chain(missing.map(|rank| ("missing_ranks", rank)))
            {
                let place = format!("{list}[{at}].rank");
                if rank >= communicator.size {
                    let size = communicator.size;
                    let reason = format!("rank {rank} in a communicator of {size}");
                    return Err(refuse(place, reason));
                }
                if !seen.insert(rank) {
                    return Err(refuse(place, format!("rank {rank} is told of twice")));
                }
            }
            let functions: BTreeSet<&String> = communicator
                .ranks
                .iter()
                .flat_map(|r| r.collective_counts.keys())
                .collect();
            if functions.len() > MAX_FUNCTIONS {
                let reason = format!("{} functions are counted", functions.len());
                return Err(refuse("ranks".to_owned(), reason));
            }
            reply.notes.extend(troubles(&name, &communicator.ranks));
            reply.communicators.push(Communicator {
                name,
                ranks: communicator
                    .ranks
                    .into_iter()
                    .map(DocumentRank::present)
                    .collect(),
                missing: communicator
                    .missing_ranks
                    .into_iter()
                    .map(DocumentMissing::missing)
                    .collect(),
            });
        }
        Ok(reply)
    }
}

impl DocumentRank {
    fn present(self) -> (u32, Present) {
        let place = place(self.host, self.pid, self.cuda_dev, self.rank);
        (self.rank, Present { place, launched: self.collective_counts })
    }

    /// What is wrong with it, by its own account.
    fn trouble(&self) -> Option<String> {
        let status = &self.status;
        if status.abort_flag {
            return Some("aborts it".to_owned());
        }
        let error = |state: i64| (state != 0 && state != IN_PROGRESS).then_some(state);
        match (error(status.async_error), error(status.init_state)) {
            (Some(error), _) => {
                Some(format!("reports {} (async_error {error})", error_name(error)))
            }
            (None, Some(error)) => Some(format!(
                "could not join it: {} (init_state {error})",
                error_name(error)
            )),
            (None, None) if status.init_state == IN_PROGRESS => {
                Some("has not joined it yet".to_owned())
            }
            (None, None) => None,
        }
    }
}

impl DocumentMissing {
    fn missing(self) -> (u32, Missing) {
        let why = match (self.status.considered_dead, self.status.unresponsive) {
            (true, _) => Why::Dead,
            (false, true) => Why::Silent,
            (false, false) => Why::Elsewhere,
        };
        let place = place(self.host, self.pid, self.cuda_dev, self.rank);
        (self.rank, Missing { place, why })
    }
}

/// Whether it is a hash as NCCL prints them.
pub(crate) fn is_hexadecimal(hash: &str) -> bool {
    hash.strip_prefix("0x").is_some_and(|digits| u64::from_str_radix(digits, 16).is_ok())
}

/// NCCL's names of its results.
fn error_name(error: i64) -> &'static str {
    match error {
        1 => "an unhandled CUDA error",
        2 => "a system error",
        3 => "an internal error",
        4 => "an invalid argument",
        5 => "invalid usage",
        6 => "an error of another process",
        _ => "an unknown error",
    }
}

/// What ranks of a communicator say is wrong with them.
fn troubles(name: &str, ranks: &[DocumentRank]) -> Vec<String> {
    let mut by_trouble: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for rank in ranks {
        if let Some(trouble) = rank.trouble() {
            by_trouble.entry(trouble).or_default().push(rank.rank);
        }
    }
    let note = |(trouble, mut ranks): (String, Vec<u32>)| {
        ranks.sort_unstable();
        format!("{name}: its rank {} {trouble}", fold_ranks(&ranks))
    };
    by_trouble.into_iter().map(note).collect()
}
