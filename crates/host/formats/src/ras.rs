//! Replies of NCCL's RAS: which collectives each rank has launched, and who does not answer.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use model::{RankTrouble, RasNote};
use serde::Deserialize;
use serde_json::Value;

use crate::FormatError;
use crate::ranks::ProcessPlace;
use crate::snapshot::content;

/// `ncclInProgress`: no error.
const IN_PROGRESS: i64 = 7;

/// Functions that are counted at most; NCCL 2.30 counts 5.
const MAX_FUNCTIONS: usize = 64;

/// What a process of the job answered for all of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RasReply {
    /// Local time of the answering host; empty if it was not given.
    pub(crate) at: String,
    pub(crate) communicators: Vec<RasCommunicator>,
    pub(crate) notes: Vec<RasNote>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct RasCommunicator {
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
    pub(crate) place: ProcessPlace,
    /// Collectives it has launched, by function.
    pub(crate) launched: BTreeMap<String, u64>,
}

impl Present {
    /// One of which no more is known.
    pub(crate) fn new(place: ProcessPlace) -> Self {
        Self {
            place,
            launched: BTreeMap::new(),
        }
    }
}

/// A rank that did not, or not for this communicator.
#[derive(Clone, Debug)]
pub(crate) struct Missing {
    pub(crate) place: ProcessPlace,
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

/// A reply in JSON with the comma that NCCL 2.28.9 leaves out behind the last number of a missing rank.
pub(crate) fn with_commas(text: &str) -> Cow<'_, str> {
    let before = text
        .match_indices("\"status\"")
        .map(|(at, _)| text[..at].trim_end());
    let lacks = before.filter(|before| before.ends_with(|c: char| c.is_ascii_digit()));
    let lacks: Vec<usize> = lacks.map(str::len).collect();
    if lacks.is_empty() || !text.contains("\"missing_ranks\"") {
        return Cow::Borrowed(text);
    }
    let mut whole = text.to_owned();
    // From behind, where nothing has moved yet.
    for at in lacks.into_iter().rev() {
        whole.insert(at, ',');
    }
    Cow::Owned(whole)
}

fn unknown() -> i64 {
    -1
}

/// Where a rank runs; one that is nowhere known stands for itself.
pub(crate) fn place(host: String, pid: i64, device: i64, rank: u32) -> ProcessPlace {
    if pid < 0 {
        (host, -1, i64::from(rank))
    } else {
        (host, pid, device)
    }
}

impl RasReply {
    /// Which job it is about.
    pub(crate) fn job(&self) -> RasJob {
        let mut job = RasJob::default();
        for communicator in &self.communicators {
            job.hashes
                .extend(communicator.name.strip_prefix("comm 0x").and_then(|rest| {
                    // Behind the hash may stand the second one, of parts of a split communicator.
                    let digits = rest.split(' ').next().unwrap_or_default();
                    u64::from_str_radix(digits, 16).ok()
                }));
            let present = communicator.ranks.values().map(|member| &member.place);
            let missing = communicator.missing.values().map(|member| &member.place);
            for (host, pid, _) in present.chain(missing) {
                // Below zero: the reply does not say which process it is.
                if *pid >= 0 {
                    job.processes.entry(host.clone()).or_default().insert(*pid);
                }
            }
        }
        job
    }

    /// Whether ranks are apart, or some do not answer.
    pub(crate) fn tells(&self) -> bool {
        let mut communicators = self.communicators.iter();
        communicators.any(|it| !it.missing.is_empty() || it.is_apart())
    }

    /// Reads a reply in JSON.
    pub(crate) fn read(path: &Path, document: Value) -> Result<Self, FormatError> {
        let document: Document = content(path, document)?;
        let mut reply = Self {
            at: document.timestamp,
            ..Self::default()
        };
        let mut known = BTreeSet::new();
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        for communicator in &document.communicators {
            *times.entry(communicator.hash.clone()).or_default() += 1;
        }
        for (at, communicator) in document.communicators.into_iter().enumerate() {
            let hash = &communicator.hash;
            if !is_hexadecimal(hash) {
                let place = format!("communicators[{at}].hash");
                let reason = format!("{hash:?} is not a hexadecimal number such as 0x1f");
                return Err(FormatError::content(path, place, reason));
            }
            let mut name = format!("comm {hash}");
            // The parts of a split communicator may share the hash.
            if times.get(hash).is_some_and(|times| *times > 1) {
                name += &format!(" ({})", communicator.secondary_hash);
            }
            // Replies are compared by it, so one name must mean one communicator.
            if !known.insert(name.clone()) {
                let place = format!("communicators[{at}].hash");
                let reason = format!("{name} is listed twice");
                return Err(FormatError::content(path, place, reason));
            }
            communicator.check_ranks().map_err(|(place, reason)| {
                FormatError::content(path, format!("communicators[{at}].{place}"), reason)
            })?;
            reply.notes.extend(troubles(&name, &communicator.ranks));
            reply.communicators.push(RasCommunicator {
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

impl RasCommunicator {
    /// Whether ranks have launched unlike numbers of collectives.
    fn is_apart(&self) -> bool {
        let mut launched = self.ranks.values().map(|it| &it.launched);
        let first = launched.next();
        launched.any(|it| Some(it) != first)
    }
}

impl DocumentCommunicator {
    /// Nothing, or the field that is wrong and why.
    fn check_ranks(&self) -> Result<(), (String, String)> {
        let present = self.ranks.iter().map(|it| it.rank).enumerate();
        let missing = self.missing_ranks.iter().map(|it| it.rank).enumerate();
        let mut seen = BTreeSet::new();
        for (list, (at, rank)) in present
            .map(|rank| ("ranks", rank))
            .chain(missing.map(|rank| ("missing_ranks", rank)))
        {
            let place = format!("{list}[{at}].rank");
            if rank >= self.size {
                let reason = format!("rank {rank} in a communicator of {}", self.size);
                return Err((place, reason));
            }
            if !seen.insert(rank) {
                return Err((place, format!("rank {rank} is listed twice")));
            }
        }
        let functions: BTreeSet<&String> = self
            .ranks
            .iter()
            .flat_map(|rank| rank.collective_counts.keys())
            .collect();
        if functions.len() > MAX_FUNCTIONS {
            let reason = format!("{} functions are counted", functions.len());
            return Err(("ranks".to_owned(), reason));
        }
        Ok(())
    }
}

impl DocumentRank {
    fn present(self) -> (u32, Present) {
        let place = place(self.host, self.pid, self.cuda_dev, self.rank);
        (
            self.rank,
            Present {
                place,
                launched: self.collective_counts,
            },
        )
    }

    /// What is wrong with it, by its own account.
    fn trouble(&self) -> Option<RankTrouble> {
        let status = &self.status;
        if status.abort_flag {
            return Some(RankTrouble::Aborts);
        }
        match (status.async_error, status.init_state) {
            // A call that does not block leaves this as its error while it is under way.
            (0 | IN_PROGRESS, 0) => None,
            (0 | IN_PROGRESS, IN_PROGRESS) => Some(RankTrouble::NotJoined),
            (0 | IN_PROGRESS, error) => Some(RankTrouble::CouldNotJoin(error)),
            (error, _) => Some(RankTrouble::Error(error)),
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
    hash.strip_prefix("0x")
        .is_some_and(|digits| u64::from_str_radix(digits, 16).is_ok())
}

/// What ranks of a communicator say is wrong with them.
fn troubles(name: &str, ranks: &[DocumentRank]) -> impl Iterator<Item = RasNote> {
    let mut by_trouble: BTreeMap<RankTrouble, Vec<u32>> = BTreeMap::new();
    for rank in ranks {
        if let Some(trouble) = rank.trouble() {
            by_trouble.entry(trouble).or_default().push(rank.rank);
        }
    }
    by_trouble.into_iter().map(|(trouble, mut ranks)| {
        ranks.sort_unstable();
        RasNote::Trouble {
            communicator: name.to_owned(),
            ranks,
            trouble,
        }
    })
}
