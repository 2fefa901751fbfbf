//! What a dead job has printed: lines of PyTorch's NCCL watchdog, among whatever else.
//!
//! Ranks print how many collectives of a group they have enqueued and how many have completed when
//! one of them times out. A log is partial and unordered: who printed first proves nothing, and of a
//! rank that printed nothing nothing is known.
//!
//! # Source
//! `ProcessGroupNCCL.cpp` of PyTorch 2.3 to 2.15; docs/formats.md shows the lines.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead};

use model::{InFlight, Input, fold_ranks};

/// Ranks of a job; a larger number is a line that is damaged.
const MAX_RANKS: u32 = 100_000;
/// Bytes of a line that are looked at: the watchdog's have some hundreds.
const MAX_LINE_BYTES: usize = 1 << 16;
/// Errors of ranks that are quoted, and characters of each.
const MAX_ERRORS: usize = 8;
const MAX_ERROR_CHARS: usize = 200;
/// Names of errors that follow from the end of another rank.
const CONSEQUENCES: [&str; 3] = ["DistBackendError", "DistNetworkError", "NCCL"];
/// Where the watchdog says again, without a rank of the job, what ended its process.
const REPEATS: &str = "terminated with exception";
/// What torchrun's agent says before it starts all ranks anew.
const RESTARTS: &str = "will restart worker group";

/// A log of one rank or of several.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchdogLog {
    groups: BTreeMap<String, LoggedGroup>,
    /// All ranks that printed anything.
    ranks: BTreeSet<u32>,
    /// What raised on a rank of its own.
    errors: BTreeMap<u32, String>,
    /// The collective that timed out last on a rank, as long as no line has named its group: its
    /// number and kind.
    timeouts: BTreeMap<u32, (u64, String)>,
    earlier_starts: u64,
}

#[derive(Clone, Debug, Default)]
struct LoggedGroup {
    name: Option<String>,
    ranks: BTreeMap<u32, LoggedRank>,
}

/// How far a rank came in a group, by its last line.
#[derive(Clone, Debug, Default)]
struct LoggedRank {
    enqueued: u64,
    completed: u64,
    /// The collective that timed out on it.
    timed_out: Option<(u64, String)>,
}

/// `[PG ID 0 PG GUID 0(default_pg) Rank 8]`, and how it was written before.
struct GroupPrefix<'a> {
    key: &'a str,
    name: Option<&'a str>,
    rank: u32,
}

impl WatchdogLog {
    /// Reads a log; `None` if no watchdog has printed anything.
    ///
    /// # Errors
    /// What the reader says.
    pub(crate) fn read(mut reader: impl BufRead) -> io::Result<Option<Self>> {
        let (mut log, mut line) = (Self::default(), Vec::new());
        loop {
            let block = reader.fill_buf()?;
            // Text has none: whatever this is need not be read to its end.
            if block.is_empty() || memchr::memchr(0, block).is_some() {
                break;
            }
            let end = memchr::memchr(b'\n', block);
            let part = &block[..end.unwrap_or(block.len())];
            let kept = part.len().min(MAX_LINE_BYTES - line.len());
            line.extend_from_slice(&part[..kept]);
            let read = part.len() + usize::from(end.is_some());
            reader.consume(read);
            if end.is_some() {
                log.line(&String::from_utf8_lossy(line.trim_ascii_end()));
                line.clear();
            }
        }
        log.line(&String::from_utf8_lossy(&line));
        let is_one = !log.groups.is_empty() || !log.timeouts.is_empty();
        Ok(is_one.then_some(log))
    }

    fn line(&mut self, line: &str) {
        if line.contains(RESTARTS) {
            self.start_anew();
        }
        let printed_by = printed_by(line);
        self.ranks.extend(printed_by);
        if line.contains(REPEATS) {
            return;
        }
        if let Some(work) = after(
            line,
            "Watchdog caught collective operation timeout: WorkNCCL(",
        ) {
            // Before PyTorch 2.2 the rank in its group is all there is: in the default group it is
            // the rank of the job, and the line that names the group follows.
            let in_group = after(line, "[Rank ").and_then(|rest| number_before(rest, "]"));
            let number = after(work, "SeqNum=").and_then(|rest| number_before(rest, ","));
            let op = after(work, "OpType=").and_then(|rest| rest.split([',', ')']).next());
            if let Some(((rank, number), op)) = printed_by.or(in_group).zip(number).zip(op) {
                self.timeouts.insert(rank, (number, op.to_owned()));
            }
        } else if let Some((enqueued, completed)) = progress(line)
            && let Some(group) = group_prefix(line)
        {
            let rank = printed_by.or_else(|| (group.key == "0").then_some(group.rank));
            if let Some(rank) = rank.filter(|rank| *rank < MAX_RANKS) {
                self.place(rank, &group, enqueued, completed);
            }
        } else if let (Some(rank), Some(error)) = (printed_by, raised(line))
            && self.errors.len() < MAX_ERRORS
        {
            self.errors.entry(rank).or_insert(error);
        }
    }

    fn place(&mut self, rank: u32, group: &GroupPrefix<'_>, enqueued: u64, completed: u64) {
        let known = self
            .groups
            .get(group.key)
            .and_then(|it| it.ranks.get(&rank));
        // Numbers only grow while a process lives.
        if known.is_some_and(|known| enqueued < known.enqueued) {
            self.start_anew();
        }
        self.ranks.insert(rank);
        let logged = self.groups.entry(group.key.to_owned()).or_default();
        if let Some(name) = group.name {
            logged.name = Some(name.to_owned());
        }
        let of_rank = logged.ranks.entry(rank).or_default();
        (of_rank.enqueued, of_rank.completed) = (enqueued, completed);
        // One that is not under way in this group timed out in another.
        if self
            .timeouts
            .get(&rank)
            .is_some_and(|(number, _)| (completed + 1..=enqueued).contains(number))
        {
            of_rank.timed_out = self.timeouts.remove(&rank);
        }
    }

    /// What was printed of an earlier start says nothing about this one.
    fn start_anew(&mut self) {
        if !self.groups.is_empty() || !self.timeouts.is_empty() {
            let earlier_starts = self.earlier_starts + 1;
            *self = Self {
                earlier_starts,
                ..Self::default()
            };
        }
    }
}

/// Says what logs of one job show; `group` is the first number that is free for a group, returned is
/// the next.
pub(crate) fn report(logs: &[&WatchdogLog], mut group: u32, take: &mut dyn FnMut(Input)) -> u32 {
    let mut groups: BTreeMap<&str, LoggedGroup> = BTreeMap::new();
    let ranks: BTreeSet<u32> = logs.iter().flat_map(|log| &log.ranks).copied().collect();
    for log in logs {
        for (key, logged) in &log.groups {
            let known = groups.entry(key).or_default();
            known.name = known.name.take().or_else(|| logged.name.clone());
            known.ranks.extend(logged.ranks.clone());
        }
        for text in log.notes() {
            take(Input::Note { text });
        }
    }
    for (key, logged) in groups {
        let mut members: Vec<u32> = logged.ranks.keys().copied().collect();
        // All of a job are in its default group, also those that printed nothing of it.
        if key == "0" {
            members = ranks
                .last()
                .map_or(Vec::new(), |last| (0..=*last).collect());
            let silent: Vec<u32> = members
                .iter()
                .filter(|rank| !logged.ranks.contains_key(rank))
                .copied()
                .collect();
            if !silent.is_empty() {
                let plural = if silent.len() == 1 { "" } else { "s" };
                let text = format!(
                    "rank{plural} {} printed no line of the watchdog: which collectives they \
                     entered is not known",
                    fold_ranks(&silent)
                );
                take(Input::Note { text });
            }
        }
        let name = match &logged.name {
            Some(name) => name.trim_end_matches("_pg").to_owned(),
            None if key == "0" => "default".to_owned(),
            None => format!("group_{key}"),
        };
        take(Input::Group {
            group,
            name,
            members: members.into_iter().collect(),
        });
        logged.enter(group, take);
        group += 1;
    }
    // Ranks in collectives of one number and kind may be in one group, and no others are in it.
    let mut unplaced: BTreeMap<&(u64, String), Vec<u32>> = BTreeMap::new();
    for (rank, timed_out) in logs.iter().flat_map(|log| &log.timeouts) {
        unplaced.entry(timed_out).or_default().push(*rank);
    }
    for ((number, op), members) in unplaced {
        take(Input::Group {
            group,
            name: "unknown".to_owned(),
            members: members.iter().copied().collect(),
        });
        for rank in members {
            take(entered(rank, group, *number, op, false));
        }
        group += 1;
    }
    group
}

fn entered(rank: u32, group: u32, number: u64, op: &str, completed: bool) -> Input {
    Input::Entered {
        rank,
        group,
        number,
        op: op.trim_start_matches('_').to_owned(),
        detail: String::new(),
        completed,
        in_flight: if completed {
            InFlight::Unknown
        } else {
            InFlight::Issued
        },
    }
}

impl LoggedGroup {
    /// Who is in the collective that has not ended: the first that a rank waits in. Hosts run on, so
    /// that one which has enqueued more is not ahead of one which has enqueued that. Where nobody
    /// waits, ranks that printed at different times differ without any fault.
    fn enter(&self, group: u32, take: &mut dyn FnMut(Input)) {
        let Some(waited_in) = self
            .ranks
            .values()
            .filter(|rank| rank.completed < rank.enqueued)
            .map(|rank| rank.completed + 1)
            .min()
        else {
            return;
        };
        let op = self
            .ranks
            .values()
            .filter_map(|rank| rank.timed_out.as_ref())
            .find(|(number, _)| *number == waited_in)
            .map(|(_, op)| op);
        for (rank, logged) in &self.ranks {
            let number = waited_in.min(logged.enqueued);
            if number == 0 {
                continue;
            }
            let own = logged
                .timed_out
                .as_ref()
                .filter(|(timed_out, _)| *timed_out == number);
            // A rank does not say what it has enqueued, only what timed out.
            let op = own.map(|(_, op)| op).or(op);
            let completed = logged.completed >= number;
            let op = op.map_or("", String::as_str);
            take(entered(*rank, group, number, op, completed));
        }
    }
}

impl WatchdogLog {
    /// What should stand beside a verdict on this log.
    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self
            .errors
            .iter()
            .map(|(rank, error)| format!("rank {rank} raised: {error}"))
            .collect();
        if !self.timeouts.is_empty() {
            let ranks = fold_ranks(&self.timeouts.keys().copied().collect::<Vec<_>>());
            notes.push(format!(
                "collectives of ranks {ranks} timed out and no line names their group, which \
                 PyTorch 2.3 and later do: who is behind cannot be compared"
            ));
        }
        if self.earlier_starts > 0 {
            notes.push(format!(
                "the log has {} starts of the job: the last is analysed",
                self.earlier_starts + 1
            ));
        }
        notes
    }
}

/// Collectives that a rank has enqueued and completed; -1 is none.
fn progress(line: &str) -> Option<(u64, u64)> {
    let [enqueued, completed] = ["ast enqueued ", "ast completed "].map(|word| {
        let rest = after(line, word)?;
        let number = after(rest, "work: ")?;
        let length = number
            .find(|c: char| !c.is_ascii_digit() && c != '-')
            .unwrap_or(number.len());
        let number: i64 = number[..length].parse().ok()?;
        Some(u64::try_from(number).unwrap_or(0))
    });
    // The host notices late that a collective has ended, never that it was enqueued.
    enqueued
        .zip(completed)
        .filter(|(enqueued, completed)| completed <= enqueued)
}

/// The rank of the job in `[rank8]:`, which other brackets may stand before.
fn printed_by(line: &str) -> Option<u32> {
    line.match_indices("[rank")
        .find_map(|(at, word)| number_before(&line[at + word.len()..], "]"))
        .filter(|rank| *rank < MAX_RANKS)
}

fn group_prefix(line: &str) -> Option<GroupPrefix<'_>> {
    let inside = after(line, "[PG ")?.split(']').next()?;
    let (group, rank) = inside.rsplit_once("Rank ")?;
    let group = after(group, "GUID ").unwrap_or(group).trim();
    let (key, name) = match group.split_once('(') {
        Some((key, name)) => (key.trim(), Some(name.trim_end_matches(')'))),
        None => (group, None),
    };
    Some(GroupPrefix {
        key,
        name: name.filter(|name| !name.is_empty() && *name != "undefined"),
        rank: rank.parse().ok()?,
    })
}

/// The last line of a traceback, `RuntimeError: why`, unless it is what follows from the end of
/// another rank.
fn raised(line: &str) -> Option<String> {
    let (_, text) = line.split_once("]: ")?;
    let (kind, why) = text.split_once(": ")?;
    let kind = kind.rsplit('.').next().unwrap_or(kind);
    let is_kind = kind.chars().all(char::is_alphanumeric)
        && (kind.ends_with("Error") || kind.ends_with("Exception"));
    let follows = CONSEQUENCES
        .iter()
        .any(|it| kind.contains(it) || why.contains(it));
    let quoted = why.chars().take(MAX_ERROR_CHARS).collect::<String>();
    (is_kind && !follows).then(|| format!("{kind}: {quoted}"))
}

fn after<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.split_once(word).map(|(_, after)| after)
}

fn number_before<T: std::str::FromStr>(text: &str, end: &str) -> Option<T> {
    text.split_once(end)?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> WatchdogLog {
        WatchdogLog::read(text.as_bytes())
            .unwrap()
            .expect("lines of a watchdog")
    }

    #[test]
    fn lines_of_all_versions_say_how_far_a_rank_came() {
        let lines = [
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
                "(Worker pid=7) [rank3]:[E1 0:0:0 ProcessGroupNCCL.cpp:1858] [PG ID 0 PG GUID \
                 0(default_pg) Rank 3]  failure detected by watchdog at work sequence id: 5 PG \
                 status: last enqueued work: 7, last completed work: 4",
                Some("default_pg"),
            ),
        ];
        for (line, name) in lines {
            let log = read(line);
            let group = &log.groups["0"];
            assert_eq!(group.name.as_deref(), name, "{line}");
            let of_rank = &group.ranks[&3];
            assert_eq!((of_rank.enqueued, of_rank.completed), (7, 4), "{line}");
        }
        let none = "[PG 0 Rank 3] last enqueued NCCL work: -1, last completed NCCL work: -1.";
        assert_eq!(read(none).groups["0"].ranks[&3].enqueued, 0);
        assert!(
            WatchdogLog::read(&b"step 1 loss 2.3\n[rank0]: hello"[..])
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_group_of_some_ranks_has_the_ranks_of_the_job() {
        let log = read(
            "[rank9]:[E1 0:0:0 a.cpp:1] [Rank 1] Watchdog caught collective operation timeout: \
             WorkNCCL(SeqNum=52229, OpType=_ALLGATHER_BASE, NumelIn=1) ran for 600 milliseconds\n\
             [rank9]:[E1 0:0:0 a.cpp:2] [PG ID 4 PG GUID 17(EXPERT_GROUP) Rank 1]  failure detected \
             by watchdog at work sequence id: 52229 PG status: last enqueued work: 52258, last \
             completed work: 52228\n",
        );
        let group = &log.groups["17"];
        assert_eq!(group.name.as_deref(), Some("EXPERT_GROUP"));
        let timed_out = group.ranks[&9].timed_out.clone();
        assert_eq!(timed_out, Some((52229, "_ALLGATHER_BASE".to_owned())));
        assert!(log.timeouts.is_empty());
    }

    #[test]
    fn what_ended_a_process_is_no_timeout_of_another_rank() {
        let caught = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, \
                      OpType=BROADCAST, NumelIn=1)";
        let log = read(&format!(
            "[rank9]: [Rank 1] {caught}\n\
             [rank9]: [PG ID 4 PG GUID 17 Rank 1]  failure detected by watchdog at work sequence id: \
             9 PG status: last enqueued work: 9, last completed work: 8\n\
             what():  [PG ID 4 PG GUID 17 Rank 1] Process group watchdog thread terminated with \
             exception: [Rank 1] {caught}\n\
             [rank1]: [PG 0 Rank 1] last enqueued NCCL work: 50, last completed NCCL work: 50.\n"
        ));
        assert_eq!(log.groups["0"].ranks[&1].timed_out, None);
        assert!(log.timeouts.is_empty());
    }

    #[test]
    fn a_job_that_was_started_anew_is_judged_by_its_last_start() {
        let line = |rank: u32, number: u64| {
            format!(
                "[rank{rank}]: [PG 0 Rank {rank}] last enqueued NCCL work: {number}, last completed \
                 NCCL work: {}.\n",
                number - 1
            )
        };
        let log = read(&[line(0, 50), line(1, 50), line(0, 9)].concat());
        assert_eq!(log.groups["0"].ranks.keys().collect::<Vec<_>>(), [&0]);
        assert!(log.notes()[0].contains("2 starts"));
        let log = read(
            &[
                &line(0, 5),
                "agent: will restart worker group\n",
                &line(1, 9),
            ]
            .concat(),
        );
        assert_eq!(log.groups["0"].ranks.keys().collect::<Vec<_>>(), [&1]);
    }

    #[test]
    fn launchers_may_print_ranks_of_their_own_before() {
        let log = read(
            "(Worker[rank=9] pid=3) [rank9]:[E1 0:0:0 a.cpp:1] [PG ID 5 PG GUID 17(EXPERT) Rank 1] \
             last enqueued NCCL work: 7, last completed NCCL work: 6.",
        );
        assert!(log.groups["17"].ranks.contains_key(&9));
    }

    #[test]
    fn timeouts_of_a_group_that_no_line_names_are_a_hang_of_those_ranks() {
        let caught = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, \
                      OpType=_ALLGATHER_BASE, Timeout(ms)=1800000)";
        let log = read(&format!("[Rank 0] {caught}\n[Rank 2] {caught}\n"));
        let mut inputs = Vec::new();
        report(&[&log], 3, &mut |input| inputs.push(input));
        let entered = inputs.iter().filter(|it| {
            matches!(it, Input::Entered { group: 3, number: 9, op, completed: false, .. }
                if op == "ALLGATHER_BASE")
        });
        assert_eq!(entered.count(), 2);
    }

    #[test]
    fn ranks_of_a_group_in_which_nobody_waits_are_not_compared() {
        let log = read(
            "[PG 0 Rank 0] last enqueued NCCL work: 62, last completed NCCL work: 62.\n\
             [PG 0 Rank 1] last enqueued NCCL work: 61, last completed NCCL work: 61.\n",
        );
        let mut inputs = Vec::new();
        report(&[&log], 0, &mut |input| inputs.push(input));
        assert!(matches!(inputs.as_slice(), [Input::Group { group: 0, .. }]));
    }

    #[test]
    fn errors_that_follow_from_another_rank_are_not_quoted() {
        let log = read(
            "[rank2]: ValueError: a batch of 0\n\
             [rank1]: torch.distributed.DistBackendError: NCCL error in: a.cpp\n\
             [PG 0 Rank 0] last enqueued NCCL work: 2, last completed NCCL work: 1.\n",
        );
        assert_eq!(log.notes(), ["rank 2 raised: ValueError: a batch of 0"]);
    }
}
