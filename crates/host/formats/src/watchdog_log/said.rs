//! What a record of a log says.

use super::cause::{Cause, Whose};
use super::nccl::{self, Warning};
use super::record::squeezed;
use super::start::{self, AwaitedId, CameToStart};

/// Ranks of a job; a larger number is a line that is damaged.
pub(super) const MAX_RANKS: u32 = 100_000;
/// Characters of an error that are quoted.
const MAX_ERROR_CHARS: usize = 200;
/// What a process printed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// An operation took too long; which group it is of may not be said.
    TimedOut {
        rank: u32,
        group: Option<GroupRank>,
        work: Work,
    },
    /// How far a rank has come in a group.
    CameTo {
        rank: u32,
        group: GroupRank,
        progress: Progress,
    },
    /// The watchdog of a rank itself does not get on.
    Stuck(u32),
    /// An error that follows from another rank's, or may, of this rank.
    Follows(u32),
    /// An error of this rank that follows from another rank's if its traceback allows that.
    MayFollow { rank: u32, error: String },
    /// A rank that no line names raised an error of its own.
    RaisedSomewhere(String),
    /// A rank raised an error that follows from no other rank's, as far as is known.
    Raised {
        rank: u32,
        error: String,
        whose: Whose,
    },
    /// A timeout, and nothing says of which rank.
    TimedOutSomewhere,
    /// The watchdog ran, and says nothing of what ranks do.
    OfWatchdog(u32),
    /// PyTorch compared what two ranks were about to do.
    Differ([Fingerprint; 2]),
    /// A rank was about to do this.
    Calls(Fingerprint),
    /// DDP compared the models of two ranks, as its group counts them: how many parameters each has. Of
    /// which rank the line is may not be said.
    UnlikeModels {
        rank: Option<u32>,
        models: [(u32, u64); 2],
    },
    /// These ranks of some group did not come to its `monitored_barrier`.
    MissedBarrier(Vec<u32>),
    /// PyTorch's report of a desync names ranks of some group that did not join a collective.
    NeverJoined(Vec<u32>),
    /// A rank waited in vain for what another one must give to make a communicator. Which rank of the job
    /// it is may not be said.
    AwaitedId {
        rank: Option<u32>,
        awaited: AwaitedId,
    },
    /// A rank has come to make the group of all ranks, of which so many have by now.
    CameToStart(CameToStart),
    /// All have.
    AllCame,
    /// Two ranks, as a communicator counts them, use the GPU of this bus address.
    SharedGpu([u32; 2], String),
    /// The other end of a connection has gone. Which rank lost it may not be said.
    LostPeer { rank: Option<u32>, peer: String },
    /// A rank gave up waiting for others in gloo.
    WaitedInGloo(u32),
    /// NCCL itself warns of a fault.
    Warned(Warning),
    /// NCCL found different collectives near this rank, as a communicator counts it.
    Mismatched(u32),
    /// NCCL made a communicator of so many ranks.
    Communicates { ranks: u32 },
    /// The launcher starts all ranks anew.
    Restarts,
}

/// An operation, as the watchdog writes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Work {
    /// 0 before PyTorch 1.13.
    pub(super) number: u64,
    pub(super) op: String,
    /// Elements of what goes in, where all ranks must pass as many.
    pub(super) detail: String,
    /// Ranks of its group, if its sizes show that; 0 if not.
    pub(super) ranks: u32,
}

/// Operations of a group that a rank has enqueued and completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) enqueued: u64,
    pub(super) completed: u64,
}

impl Progress {
    /// Whether the rank waits in the operation, or will.
    pub(super) fn is_under_way(&self, work: &Work) -> bool {
        (self.completed + 1..=self.enqueued).contains(&work.number)
    }
}

/// `[PG ID 0 PG GUID 0(default_pg) Rank 8]`, and how it was written before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupRank {
    pub(super) key: String,
    pub(super) name: Option<String>,
    /// The rank in the group.
    pub(super) rank: u32,
    /// Whether the key is the same on all ranks: before PyTorch 2.4 each counts its groups.
    pub(super) is_global: bool,
}

/// What a rank was about to do, as `TORCH_DISTRIBUTED_DEBUG=DETAIL` compares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    pub(super) rank: u32,
    pub(super) work: Work,
}

/// What a record says; `None` of most. `owner` is the rank whose log it stands in, if it is of one alone.
pub(super) fn said(record: &str, owner: Option<u32>) -> Option<Said> {
    if record.contains("will restart worker group") {
        return Some(Said::Restarts);
    }
    if let Some((_, said)) = record.split_once("Duplicate GPU detected : ") {
        return shared_gpu(said);
    }
    if let Some((before, said)) = record.split_once("NCCL WARN ") {
        if said.contains("Mismatched collective detected") {
            let rank = number(said.split_once("around rank ")?.1)?;
            return (rank < MAX_RANKS).then_some(Said::Mismatched(rank));
        }
        let lost = nccl::lost_peer(said).map(|peer| Said::LostPeer { rank: None, peer });
        return lost.or_else(|| nccl::warning(before, said).map(Said::Warned));
    }
    if let Some((_, said)) = record.split_once("NCCL INFO comm 0x") {
        let ranks = number(said.split_once(" nranks ")?.1)?;
        return (ranks <= MAX_RANKS).then_some(Said::Communicates { ranks });
    }
    let named = printed_by(record);
    let rank = named.or(owner);
    if record.contains("mismatch between collectives") {
        return differ(&squeezed(record)).map(Said::Differ);
    }
    if record.contains("CollectiveFingerPrint(") {
        return calls(&squeezed(record), rank).map(Said::Calls);
    }
    if record.contains("ncclUniqueId from ") {
        return start::awaited_id(record, named);
    }
    if record.contains("Completed store-based barrier") {
        return Some(Said::AllCame);
    }
    if record.contains("store based barrier") {
        return start::came_to_start(record).map(Said::CameToStart);
    }
    if let Some((_, said)) = record.split_once("DDP expects same model across all ranks, but ") {
        let models = unlike_models(said)?;
        return Some(Said::UnlikeModels { rank, models });
    }
    if record.contains("monitoredBarrier") {
        return missed_barrier(&squeezed(record)).map(Said::MissedBarrier);
    }
    if let Some(ranks) = never_joined(record) {
        return Some(Said::NeverJoined(ranks));
    }
    // Folds may part words.
    if record.contains("ProcessGroupNCCL") || record.contains("[PG ") || record.contains("atchdog")
    {
        let said = squeezed(record);
        if let Some(said) = of_watchdog(record, &said, rank) {
            return Some(said);
        }
    }
    if let Some((_, peer)) = record.split_once("Connection closed by peer [") {
        let peer = peer.split(']').next()?.to_owned();
        return Some(Said::LostPeer { rank, peer });
    }
    let is_gloos =
        record.contains("Timed out waiting ") && record.contains(" operation to complete");
    if let Some(rank) = rank.filter(|_| is_gloos) {
        return Some(Said::WaitedInGloo(rank));
    }
    // PyTorch quotes the last warning, whether NCCL was asked to print any or not.
    let request = nccl::failed_request(record, None).map(Said::Warned);
    if let Some(said) = request.or_else(|| {
        let peer = nccl::lost_peer(record)?;
        Some(Said::LostPeer { rank: None, peer })
    }) {
        return Some(said);
    }
    // Without the name of a rank only the last line of a traceback is one.
    let (rank, (_, error)) = (named?, behind_label(record)?);
    let error = raised(error.trim_start())?;
    Some(match Cause::of(&error) {
        Cause::Peer => Said::Follows(rank),
        Cause::Connection => Said::MayFollow { rank, error },
        Cause::Own => Said::of_error(rank, &error),
    })
}

impl Said {
    /// A rank raised an error of its own.
    pub(super) fn of_error(rank: u32, error: &str) -> Self {
        let (error, whose) = (quoted(error), Whose::of(error));
        Self::Raised { rank, error, whose }
    }
}

fn of_watchdog(record: &str, said: &str, printed_by: Option<u32>) -> Option<Said> {
    let group = group_rank(said);
    // Of the default group the place in it is the rank of the job; before PyTorch 2.2 the place
    // in some group is all there is.
    let of_default = group.as_ref().filter(|it| it.key == "0").map(|it| it.rank);
    let in_some_group = || {
        let is_named = group.is_some();
        let (_, rest) = said.rsplit_once("[Rank").filter(|_| !is_named)?;
        bracketed(rest)
    };
    let rank = printed_by
        .or(of_default)
        .or_else(in_some_group)
        .filter(|rank| *rank < MAX_RANKS);
    if let Some((_, work)) = said.split_once("Watchdogcaughtcollectiveoperationtimeout:WorkNCCL(") {
        // Without the bracket the line was cut off, and what it has of the operation is no whole name.
        let work = work_of(work).filter(|_| work.contains(')'));
        return match (rank, work) {
            (Some(rank), Some(work)) => Some(Said::TimedOut { rank, group, work }),
            (Some(rank), None) => Some(Said::OfWatchdog(rank)),
            (None, work) => work.map(|_| Said::TimedOutSomewhere),
        };
    }
    if let Some((_, why)) = record.split_once("terminated with exception: ") {
        // A timeout that was cut off is none of its own either.
        if Cause::of(why) != Cause::Own || why.starts_with("[Rank") {
            return None;
        }
        let error = quoted(why);
        // The watchdog only queries the device: what follows from no other rank is its error.
        let whose = match Whose::of(&error) {
            Whose::Process => Whose::Device,
            whose => whose,
        };
        return Some(match rank {
            Some(rank) => Said::Raised { rank, error, whose },
            None => Said::RaisedSomewhere(error),
        });
    }
    let rank = rank?;
    // PyTorch 2.2 to 2.4 print both, of some ranks only the first.
    if said.contains("Heartbeatmonitortimedout") || said.contains("gotstuckfor") {
        return Some(Said::Stuck(rank));
    }
    if let (Some(group), Some(progress)) = (group, counts(said)) {
        return Some(Said::CameTo {
            rank,
            group,
            progress,
        });
    }
    said.contains("ProcessGroupNCCL.cpp:")
        .then_some(Said::OfWatchdog(rank))
}

/// `SeqNum=78, OpType=ALLREDUCE, NumelIn=1024, …`, without white space.
fn work_of(text: &str) -> Option<Work> {
    let op = op_of(text)?;
    let is_op = |it: &str| it.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_');
    let of = |name: &str| count(text.split_once(name)?.1);
    let number = of("SeqNum=").unwrap_or(0);
    let is_of_one_size = model::CollectiveOp::from_name(&op).is_of_one_size();
    let taken = of("NumelIn=");
    let detail = taken
        .filter(|_| is_of_one_size)
        .map_or_else(String::new, |elements| format!("({elements} elements)"));
    let ranks = taken
        .zip(of("NumelOut="))
        .map_or(0, |(taken, given)| ranks_of(&op, taken, given));
    is_op(&op).then_some(Work {
        number,
        op,
        detail,
        ranks,
    })
}

/// How many ranks a collective is of that gives each what all bring, or a part of what it brings.
fn ranks_of(op: &str, taken: u64, given: u64) -> u32 {
    let (one, all) = match op {
        "ALLGATHER" | "ALLGATHER_BASE" => (taken, given),
        "REDUCE_SCATTER" | "REDUCE_SCATTER_BASE" => (given, taken),
        _ => return 0,
    };
    let ranks = all.checked_div(one).filter(|ranks| ranks * one == all);
    let ranks = ranks.and_then(|ranks| u32::try_from(ranks).ok());
    ranks.filter(|ranks| *ranks <= MAX_RANKS).unwrap_or(0)
}

/// The kind of an operation, `OpType=_ALLGATHER_BASE`.
fn op_of(text: &str) -> Option<String> {
    let op = text.split_once("OpType=")?.1.split([',', ')']).next()?;
    Some(op.trim_start_matches('_').to_owned())
}

/// `RankNisrunningcollective:CollectiveFingerPrint(SequenceNumber=7,OpType=…,TensorShape=[…]`, twice.
fn differ(said: &str) -> Option<[Fingerprint; 2]> {
    let mut both = said.split("isrunningcollective:CollectiveFingerPrint(");
    let [before, first, second] = [both.next()?, both.next()?, both.next()?];
    Some([fingerprint(before, first)?, fingerprint(first, second)?])
}

/// `[Rank2]Runningcollective:CollectiveFingerPrint(SequenceNumber=7,OpType=…`, which is printed of each
/// call. The rank is the place in some group, unless a header has that of the job.
fn calls(said: &str, printed_by: Option<u32>) -> Option<Fingerprint> {
    let (before, text) = said.split_once("Runningcollective:CollectiveFingerPrint(")?;
    let mut called = fingerprint(before, text)?;
    called.rank = printed_by.unwrap_or(called.rank);
    Some(called)
}

/// What a rank was about to do; the rank is the last before it.
fn fingerprint(before: &str, text: &str) -> Option<Fingerprint> {
    let shape = text
        .split(")))")
        .next()?
        .split_once("TensorShape=")
        .and_then(|(_, shape)| shape.split(']').next());
    Some(Fingerprint {
        rank: number(before.rsplit_once("Rank")?.1).filter(|rank| *rank < MAX_RANKS)?,
        work: Work {
            // The first may be 0, which stands for none.
            number: count(text.split_once("SequenceNumber=")?.1)?.max(1),
            op: op_of(text)?,
            detail: shape.map_or_else(String::new, |shape| {
                format!("(shape {}])", shape.replace(',', ", "))
            }),
            ranks: 0,
        },
    })
}

/// `rank 2 and rank 0 both on CUDA device 4000`.
fn shared_gpu(said: &str) -> Option<Said> {
    let (one, rest) = said.strip_prefix("rank ")?.split_once(" and rank ")?;
    let (other, device) = rest.split_once(" both on CUDA device ")?;
    let mut both: [u32; 2] = [one.parse().ok()?, other.parse().ok()?];
    both.sort_unstable();
    let device = device.split_whitespace().next()?;
    let is_address = device.len() <= 16 && device.chars().all(|c| c.is_ascii_hexdigit());
    is_address.then(|| Said::SharedGpu(both, device.to_owned()))
}

/// `Rank 3 has 2247 params, while rank 0 has inconsistent 0 params.`
fn unlike_models(said: &str) -> Option<[(u32, u64); 2]> {
    let (one, rest) = said.strip_prefix("Rank ")?.split_once(" has ")?;
    let (other, rest) = rest
        .split_once(" while rank ")?
        .1
        .split_once(" has inconsistent ")?;
    let counts = [said.split_once(" has ")?.1, rest].map(number::<u64>);
    let ranks = [one, other].map(|it| it.parse().ok().filter(|rank| *rank < MAX_RANKS));
    Some([(ranks[0]?, counts[0]?), (ranks[1]?, counts[1]?)])
}

/// `Rank1failedtopassmonitoredBarrierin…`, or `Ranks1,2failed…`.
fn missed_barrier(said: &str) -> Option<Vec<u32>> {
    let (before, _) = said.split_once("failedtopassmonitoredBarrier")?;
    let (_, ranks) = before.rsplit_once("Rank")?;
    let ranks = ranks.trim_start_matches('s').split(',');
    ranks
        .map(|rank| rank.parse().ok().filter(|rank| *rank < MAX_RANKS))
        .collect()
}

/// `[5, 7] finished collective #282, but didn't join collective #283`, or `ranks [2, 3] are the lagging ranks
/// that caused this timeout`.
fn never_joined(record: &str) -> Option<Vec<u32>> {
    let of_report = [
        ("] finished collective #", "but didn't join collective #"),
        ("] are the lagging ranks", "caused this timeout"),
    ];
    let before = of_report.iter().find_map(|(behind, said)| {
        let (before, rest) = record.split_once(behind)?;
        rest.contains(said).then_some(before)
    })?;
    let (_, ranks) = before.rsplit_once('[')?;
    let rank = |it: &str| it.trim().parse().ok().filter(|rank| *rank < MAX_RANKS);
    ranks.split(',').map(rank).collect()
}

/// What a rank has enqueued and completed, without white space; -1 is none.
pub(super) fn counts(said: &str) -> Option<Progress> {
    // `Last enqueued NCCL work: 77` and `last enqueued work: 79` are both in use.
    let after = |word: &str| Some(said.split_once(word)?.1.split_once("work:")?.1);
    let of = |rest: &str| match rest.strip_prefix('-') {
        Some(none) if digits(none) > 0 => Some(0),
        _ => count(rest),
    };
    let enqueued = of(after("astenqueued")?)?;
    let completed = after("astcompleted")?;
    // Folded or cut before the number. The next line may continue it.
    if completed.trim_start_matches('-').is_empty() {
        return None;
    }
    if let Some(completed) = of(completed).filter(|completed| *completed <= enqueued) {
        return Some(Progress {
            enqueued,
            completed,
        });
    }
    // PyTorch 2.3 prints whatever is in its memory before anything has completed: what was not
    // completed in time tells more.
    let not_completed = after("imeoutatNCCL").or_else(|| after("watchdogat"))?;
    let not_completed = count(not_completed).filter(|it| (1..=enqueued).contains(it))?;
    Some(Progress {
        enqueued,
        completed: not_completed - 1,
    })
}

/// The rank of the job whose watchdog gave up a collective, `… due to a collective timeout from  rank 6`.
pub(super) fn gave_up(record: &str) -> Option<u32> {
    let (_, rank) = record.split_once("due to a collective timeout from ")?;
    number(rank.trim_start().strip_prefix("rank ")?).filter(|rank| *rank < MAX_RANKS)
}

/// The rank that prints the traceback of another one, and that rank: `[rank0]: Traceback (most recent call
/// last): (RANK 3)`, of a checkpoint that all ranks write.
pub(super) fn quotes(record: &str) -> Option<(u32, u32)> {
    let (_, rank) = record.split_once("Traceback (most recent call last): (RANK ")?;
    let rank = number(rank).filter(|rank| *rank < MAX_RANKS)?;
    Some((printed_by(record)?, rank))
}

/// The class of Ray's actors in `(ActorClass pid=12, ip=10.0.0.7)`.
pub(super) fn actor(record: &str) -> Option<&str> {
    let (class, _) = record.strip_prefix('(')?.split_once(" pid=")?;
    let is_name = class
        .chars()
        .all(|c| c.is_alphanumeric() || "_.".contains(c));
    (is_name && !class.is_empty()).then_some(class)
}

/// The rank of the job in `[rank8]:`, which other brackets may stand before, in Determined's `[rank=8]`, in
/// Open MPI's `[1,8]<stderr>:` or in SageMaker's `[1,mpirank:8,algo-2]<stderr>:`.
pub(super) fn printed_by(record: &str) -> Option<u32> {
    let of_rank =
        |(at, word): (usize, &str)| bracketed(record[at + word.len()..].trim_start_matches('='));
    let of_mpi = || {
        let (label, _) = record.split_once("]<std")?;
        let (job, rank) = label.strip_prefix('[')?.split_once(',')?;
        let rank = match rank.strip_prefix("mpirank:") {
            Some(rank) => rank.split(',').next()?,
            None => rank,
        };
        let is_number = |it: &str| digits(it) == it.len();
        is_number(job).then(|| rank.parse().ok()).flatten()
    };
    let labelled = record.match_indices("[rank").find_map(of_rank);
    labelled.or_else(of_mpi).filter(|rank| *rank < MAX_RANKS)
}

/// The label of a rank, and what it printed.
fn behind_label(record: &str) -> Option<(&str, &str)> {
    let ends = ["]: ", "]:", "<stderr>:", "<stdout>:"];
    let determined = record
        .find("[rank=")
        .and_then(|at| record[at..].split_once("] "));
    determined.or_else(|| ends.iter().find_map(|end| record.split_once(end)))
}

/// The number that a text begins with, if a bracket closes behind it.
fn bracketed(text: &str) -> Option<u32> {
    number(text).filter(|_| text[digits(text)..].starts_with(']'))
}

fn group_rank(said: &str) -> Option<GroupRank> {
    let inside = said.split_once("[PG")?.1.split(']').next()?;
    // From the right: the description of a group is the user's, and may have the word, too.
    let (group, rank) = inside.rsplit_once("Rank")?;
    let (group, has_guid) = match group.split_once("GUID") {
        Some((_, group)) => (group, true),
        None => (group, false),
    };
    let (key, name) = match group.split_once('(') {
        Some((key, name)) => (key, Some(name.trim_end_matches(')'))),
        None => (group, None),
    };
    let name = name.filter(|name| !name.is_empty() && *name != "undefined");
    Some(GroupRank {
        key: key.to_owned(),
        name: name.map(str::to_owned),
        rank: rank.parse().ok()?,
        is_global: has_guid || key == "0",
    })
}

/// What the last line of a traceback says, `RuntimeError: why`, or only `RuntimeError`.
pub(super) fn raised(text: &str) -> Option<String> {
    if text.starts_with("Cuda failure") || text.starts_with("HIP failure") {
        return Some(text.to_owned());
    }
    let (kind, why) = text.split_at(text.find(": ").unwrap_or(text.len()));
    let kind = kind.rsplit('.').next().unwrap_or(kind);
    let is_kind = kind.chars().all(char::is_alphanumeric)
        && ["Error", "Exception", "Timeout", "TimeoutExpired"]
            .iter()
            .any(|it| kind.ends_with(it));
    is_kind.then(|| format!("{kind}{why}"))
}

fn quoted(text: &str) -> String {
    text.trim_end().chars().take(MAX_ERROR_CHARS).collect()
}

/// Digits at the beginning of a text.
pub(super) fn digits(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len())
}

/// The number of collectives that a text begins with; a larger one than fits is damaged.
fn count(text: &str) -> Option<u64> {
    number(text).filter(|count| *count < u64::from(u32::MAX) << 16)
}

/// The number that a text begins with.
pub(super) fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text[..digits(text)].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn came_to(record: &str) -> (u32, GroupRank, Progress) {
        match said(record, None) {
            Some(Said::CameTo {
                rank,
                group,
                progress,
            }) => (rank, group, progress),
            other => panic!("{record}: {other:?}"),
        }
    }

    #[test]
    fn records_of_all_versions_say_how_far_a_rank_came() {
        for (record, name) in [
            (
                "[PG 0 Rank 3] Timeout at NCCL work: 5, last enqueued NCCL work: 7, last completed \
                 NCCL work: 4.",
                None,
            ),
            (
                "[rank3]:[E723 00:33:52.1 ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank 3] \
                 Exception (either an error or timeout) detected by watchdog at work: 5, last \
                 enqueued NCCL work: 7, last completed NCCL work: 4.",
                Some("default_pg"),
            ),
            (
                "[rank3]:[E1 0:0:0 ProcessGroupNCCL.cpp:1858] [PG ID 0 PG GUID 0(default_pg) Rank 3]  \
                 failure detected by watchdog at work sequence id: 5 PG status: last enqueued \
                 work: 7, last completed work: 4",
                Some("default_pg"),
            ),
        ] {
            let (rank, group, progress) = came_to(record);
            assert_eq!((rank, &*group.key), (3, "0"), "{record}");
            assert_eq!(group.name.as_deref(), name, "{record}");
            let expected = Progress {
                enqueued: 7,
                completed: 4,
            };
            assert_eq!(progress, expected, "{record}");
        }
        let none = "[PG 0 Rank 3] last enqueued NCCL work: -1, last completed NCCL work: -1.";
        assert_eq!(came_to(none).2.enqueued, 0);
        assert_eq!(said("[rank0]: hello", None), None);
    }

    #[test]
    fn a_number_that_was_never_set_is_not_believed() {
        let line = |at| {
            format!(
                "[rank2]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 2] Timeout at NCCL work: {at}, last \
                 enqueued NCCL work: 3, last completed NCCL work: 8123456789012345678."
            )
        };
        let (.., progress) = came_to(&line(2));
        assert_eq!((progress.enqueued, progress.completed), (3, 1));
        assert!(matches!(said(&line(9), None), Some(Said::OfWatchdog(2))));
    }

    #[test]
    fn a_timeout_has_the_rank_that_printed_it_or_its_place_in_the_group_of_all() {
        let caught = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, \
                      OpType=_ALLGATHER_BASE, NumelIn=16, NumelOut=32, Timeout(ms)=600000) ran for 1";
        for (before, rank) in [
            ("[rank9]:[E1 ProcessGroupNCCL.cpp:6] [Rank 1] ", Some(9)),
            ("[E ProcessGroupNCCL.cpp:475] [Rank 5] ", Some(5)),
            (
                "[E ProcessGroupNCCL.cpp:916] [Rank 5] NCCL watchdog thread terminated with exception: [Rank 5] ",
                Some(5),
            ),
            (
                "what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: [Rank 3] ",
                Some(3),
            ),
            // A place in some other group is no rank of the job.
            (
                "what():  [PG ID 4 PG GUID 17 Rank 1] Process group watchdog thread terminated with exception: [Rank 1] ",
                None,
            ),
        ] {
            match said(&format!("{before}{caught}"), None) {
                Some(Said::TimedOut {
                    rank: found, work, ..
                }) => {
                    assert_eq!(Some(found), rank, "{before}");
                    assert_eq!(
                        (work.number, &*work.op, &*work.detail),
                        (9, "ALLGATHER_BASE", "(16 elements)")
                    );
                }
                other => assert!(
                    rank.is_none() && other == Some(Said::TimedOutSomewhere),
                    "{before}: {other:?}"
                ),
            }
        }
        let old = "[E ProcessGroupNCCL.cpp:587] [Rank 12] Watchdog caught collective operation timeout: \
                   WorkNCCL(OpType=ALLGATHER, Timeout(ms)=1800000) ran for 1800172 milliseconds";
        assert!(matches!(
            said(old, None),
            Some(Said::TimedOut {
                rank: 12,
                work: Work { number: 0, .. },
                ..
            })
        ));
    }

    #[test]
    fn errors_that_follow_from_another_rank_are_none() {
        for (record, error) in [
            (
                "[rank2]: ValueError: a batch of 0",
                Some("ValueError: a batch of 0"),
            ),
            (
                "[rank2]: torch.OutOfMemoryError: CUDA out of memory.",
                Some("OutOfMemoryError: CUDA out of memory."),
            ),
            (
                "[rank1]: torch.distributed.DistBackendError: NCCL error in: a.cpp",
                None,
            ),
            // Behind that error, on a line of its own.
            (
                "[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote \
                 process exiting prematurely.",
                None,
            ),
            ("[rank1]: ncclInternalError: Internal check failed.", None),
            (
                "[rank1]: ncclUnhandledCudaError: Call to CUDA function failed.",
                None,
            ),
            (
                "[rank1]: Cuda failure 2 'out of memory'",
                Some("Cuda failure 2 'out of memory'"),
            ),
            (
                "[rank0]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException \
                 ranks:dict_keys([3])",
                None,
            ),
            (
                "[rank1]: RuntimeError: InnerRunOpApi: OPS function error: HcclAllreduce, error code is 6",
                None,
            ),
            (
                "[rank0]: ray.exceptions.ActorDiedError: The actor died unexpectedly",
                None,
            ),
            (
                "[rank1]: RuntimeError: DDP expects same model across all ranks, but Rank 1 has 7 params",
                None,
            ),
            (
                "what():  [PG ID 0 PG GUID 0(default_pg) Rank 4] Process group watchdog thread terminated \
                 with exception: CUDA error: misaligned address",
                Some("CUDA error: misaligned address"),
            ),
            (
                "[rank4]:[E1 ProcessGroupNCCL.cpp:1] [PG 0 Rank 4] Process group watchdog thread terminated \
                 with exception: NCCL error: remote process exited or there was a network error",
                None,
            ),
        ] {
            match said(record, None) {
                Some(Said::Raised { error: found, .. }) => {
                    assert_eq!(Some(&*found), error, "{record}");
                }
                other => assert!(error.is_none(), "{record}: {other:?}"),
            }
        }
    }

    #[test]
    fn errors_of_links_are_not_surely_of_the_rank_that_raises_them() {
        for (error, whose) in [
            ("ValueError: a batch of 0", Whose::Process),
            (
                "AcceleratorError: HIP error: an illegal memory access was encountered",
                Whose::Device,
            ),
            (
                "RuntimeError: CUDA error: uncorrectable NVLink error detected",
                Whose::Unknown,
            ),
            ("Cuda failure 2 'out of memory'", Whose::Device),
            (
                "Cuda failure 802 'system not yet initialized'",
                Whose::Unknown,
            ),
        ] {
            assert_eq!(Whose::of(error), whose, "{error}");
        }
    }

    #[test]
    fn what_pytorch_compared_is_read() {
        let record = "[rank1]: RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is \
            running collective: CollectiveFingerPrint(SequenceNumber=31, OpType=ALLREDUCE, TensorShape=[8, 4], \
            TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda, \
            memory_format=(nullopt))), but Rank 0 is running collective: \
            CollectiveFingerPrint(SequenceNumber=31, OpType=BARRIER).Collectives differ";
        let Some(Said::Differ([one, other])) = said(record, None) else {
            panic!("{:?}", said(record, None));
        };
        assert_eq!(
            (one.rank, &*one.work.op, &*one.work.detail),
            (1, "ALLREDUCE", "(shape [8, 4])")
        );
        assert_eq!(
            (other.rank, &*other.work.op, other.work.number),
            (0, "BARRIER", 31)
        );
    }
}
