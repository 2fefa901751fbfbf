//! Which processes ended how, as launchers report it: torchrun, Open MPI, Slurm, DeepSpeed.

use super::record::{has_any, squeezed};
use super::said::{MAX_RANKS, digits, number};

/// Signals that end a process for the sake of another: a terminal's, an abort, a launcher's.
const OF_OTHERS: [i32; 4] = [-1, -2, -6, -15];
/// What MPICH and Open MPI print before how a process ended that they have named, and the sign of its code here.
const MPI_ENDS: [(&str, i32); 3] = [
    ("=   KILLED BY SIGNAL: ", -1),
    ("=   EXIT CODE: ", 1),
    ("Exit code:", 1),
];
/// Characters of `2026-01-01_00:00:00`.
const TIME_LEN: usize = 19;

/// Tasks of Slurm that are listed at most.
const MAX_TASKS: usize = 8;

/// A process that a launcher saw end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) rank: u32,
    /// Its exit code; below zero a signal.
    pub(super) code: i32,
    time: String,
    pid: u64,
    /// Whether the launcher calls it the first.
    is_first: bool,
}

/// Tasks that Slurm saw end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlurmTasks {
    /// As Slurm lists them, `0-3,7`.
    pub(super) tasks: String,
    pub(super) host: String,
    /// In its words.
    pub(super) how: String,
}

/// Reads what launchers say of processes that ended, line by line.
#[derive(Clone, Debug, Default)]
pub(super) struct Summary {
    pub(super) ended: Vec<Ended>,
    /// The first that failed on a host, and its number on it, which may not be its rank.
    pub(super) on_host: Option<(u32, i32)>,
    /// The first that a script's `torch.multiprocessing.spawn` saw end: its number there.
    pub(super) spawned: Option<(u32, i32)>,
    /// Exit code of a process of which only that is known.
    pub(super) somewhere: Option<i32>,
    /// The first that did not end for the sake of others.
    pub(super) tasks: Vec<SlurmTasks>,
    /// Why Slurm ended the job, empty if it does not say so.
    pub(super) cancelled: Option<String>,
    /// The signal that torchrun itself received.
    pub(super) to_launcher: Option<i32>,
    time: String,
    rank: Option<u32>,
    rank_of_mpi: Option<u32>,
    is_first: bool,
}

impl Summary {
    pub(super) fn is_empty(&self) -> bool {
        self.ended.is_empty()
            && self.on_host.is_none()
            && self.spawned.is_none()
            && self.somewhere.is_none()
            && self.tasks.is_empty()
            && self.cancelled.is_none()
            && self.to_launcher.is_none()
    }

    /// Takes a record; whether it shows that the job was started anew since an earlier summary.
    pub(super) fn take(&mut self, record: &str) -> bool {
        let (mut is_again, mut left) = (false, record);
        // All of torchrun's may stand on one line.
        while let Some((one, others)) = first_of_several(left) {
            is_again |= self.take_one(one);
            left = others;
        }
        is_again | self.take_one(left)
    }

    fn take_one(&mut self, record: &str) -> bool {
        if let Some((_, ended)) = record.split_once("exits with return code = ") {
            // DeepSpeed prints the command that it started last, not that of the process that ended.
            self.somewhere = self.somewhere.or(exit_code(ended));
            return false;
        }
        if let Some((_, ended)) = record.split_once("srun: error: ") {
            let tasks = SlurmTasks::read(ended).filter(|it| !self.tasks.contains(it));
            let room = MAX_TASKS.saturating_sub(self.tasks.len());
            self.tasks.extend(tasks.into_iter().take(room));
            return false;
        }
        if let Some((_, ended)) = record.split_once("noticed that process rank ") {
            return self.take_of_mpi(ended);
        }
        if let Some((_, name)) = record.split_once("Process name: [[") {
            // `[[12167,1],10]`: the process with rank 10 of a job.
            let rank = name.split_once("],").and_then(|(_, rank)| number(rank));
            self.rank_of_mpi = rank.filter(|rank| *rank < MAX_RANKS);
            return false;
        }
        if let Some((_, process)) = record.split_once("=   RANK ") {
            // MPICH: `=   RANK 3 PID 2210 RUNNING AT node4`, and how it ended on the next line.
            let rank = number(process).filter(|_| process.contains(" RUNNING AT "));
            self.rank_of_mpi = rank.filter(|rank| *rank < MAX_RANKS);
            return false;
        }
        let of_mpi = |(words, sign): &(&str, i32)| Some((record.split_once(words)?.1, *sign));
        if let Some((code, sign)) = MPI_ENDS.iter().find_map(of_mpi)
            && let Some(rank) = self.rank_of_mpi.take()
            && let Some(code) = exit_code(code.trim_start())
        {
            // Of all that end MPI reports the first.
            self.is_first = true;
            return self.end(rank, sign * code, 0);
        }
        if let Some((_, when)) = record
            .split_once(" CANCELLED AT ")
            .filter(|_| record.contains("***"))
        {
            let why = when
                .split_once(" DUE TO ")
                .and_then(|(_, why)| why.split(" ***").next());
            // Of a step and of its job one may say why.
            let known = self.cancelled.take().filter(|known| !known.is_empty());
            self.cancelled = known.or(Some(why.unwrap_or_default().to_owned()));
            return false;
        }
        if let Some((_, crashed)) = record.split_once("composer.cli.launcher:Rank ") {
            let (rank, code) = crashed
                .split_once(" crashed with exit code ")
                .unwrap_or_default();
            let Some((rank, code)) = rank.parse().ok().zip(exit_code(code)) else {
                return false;
            };
            self.is_first = self.ended.is_empty();
            return self.end(rank, code, 0);
        }
        if let Some((_, received)) = record.split_once("SignalException: Process ") {
            let signal = received.split_once(" got signal: ");
            self.to_launcher = self.to_launcher.or(signal.and_then(|(_, it)| number(it)));
            return false;
        }
        if let Some((before, _)) = record.split_once(" death signal") {
            self.to_launcher = self.to_launcher.or_else(|| received(before));
            return false;
        }
        if let Some(spawned) = spawned(record) {
            self.spawned.get_or_insert(spawned);
            return false;
        }
        // Its lines are short, and most of a log's are others.
        // With padding, as torchrun aligns its colons: the word `time` alone is in most logs.
        let is_of_summary = ["exitcode", "local_rank", "time  ", "Root Cause (first"];
        if !has_any(record, &is_of_summary) {
            return false;
        }
        let said = squeezed(record);
        let after = |word| said.split_once(word).map(|(_, rest)| rest);
        if let Some(rest) = after("failed(exitcode:") {
            let rank = after("local_rank:").and_then(number);
            if let (Some(rank), Some(code), None) = (rank, exit_code(rest), self.on_host) {
                self.on_host = Some((rank, code));
            }
            return false;
        }
        // Each of these has a line, or all of them have one.
        self.is_first |= said.contains("RootCause(firstobservedfailure):");
        if let Some(time) = after("time:") {
            self.time = time.chars().take(TIME_LEN).collect();
        }
        if let Some(rest) = after("rank:").filter(|rest| rest.contains("(local_rank:")) {
            self.rank = number(rest).filter(|rank| *rank < MAX_RANKS);
        }
        if let Some(rest) = after("exitcode:").filter(|rest| rest.contains("(pid:"))
            && let (Some(rank), Some(code)) = (self.rank.take(), exit_code(rest))
        {
            let pid = after("(pid:").and_then(number).unwrap_or_default();
            return self.end(rank, code, pid);
        }
        false
    }

    /// `7 with PID 12 on node a exited on signal 9 (Killed).`
    fn take_of_mpi(&mut self, ended: &str) -> bool {
        let after = |word| ended.split_once(word).map(|(_, rest)| rest);
        let rank = number(ended).filter(|rank| *rank < MAX_RANKS);
        let signal = after(" exited on signal ").and_then(number::<i32>);
        let (Some(rank), Some(signal)) = (rank, signal) else {
            return false;
        };
        // Of all that end `mpirun` reports the first.
        self.is_first = true;
        let pid = after(" with PID ").and_then(number).unwrap_or_default();
        self.end(rank, -signal, pid)
    }

    fn end(&mut self, rank: u32, code: i32, pid: u64) -> bool {
        let is_first = std::mem::take(&mut self.is_first);
        let is_again = self.ended.iter().any(|it| it.rank == rank && it.pid != pid);
        if is_again {
            self.ended.clear();
        }
        self.ended.push(Ended {
            rank,
            code,
            time: self.time.clone(),
            pid,
            is_first,
        });
        is_again
    }

    /// The only process that ended by itself.
    pub(super) fn only_failed(&self) -> Option<&Ended> {
        let (first, _) = self.first()?;
        let mut others = self.ended.iter().filter(|it| it.rank != first.rank);
        (first.by_itself() && !others.any(Ended::by_itself)).then_some(first)
    }

    /// The process that ended first, and those that ended by themselves in the same second.
    pub(super) fn first(&self) -> Option<(&Ended, Vec<u32>)> {
        // Each host's launcher reports its own.
        let first = self.ended.iter().filter(|it| it.is_first);
        // Times of this form have the order of their characters.
        let first = first.min_by(|a, b| a.time.cmp(&b.time))?;
        let with_it = self
            .ended
            .iter()
            .filter(|it| it.rank != first.rank && it.by_itself() && it.time <= first.time)
            .map(|it| it.rank)
            .collect();
        Some((first, with_it))
    }
}

impl Ended {
    /// The signal that killed it, unless one rank's signal follows from what another did.
    pub(super) fn killed_by(&self) -> Option<i32> {
        (self.code < 0 && !OF_OTHERS.contains(&self.code)).then_some(-self.code)
    }

    fn by_itself(&self) -> bool {
        // Launchers end the others with these.
        !matches!(self.code, -15 | -9)
    }
}

impl SlurmTasks {
    /// Whether somebody killed them, as Slurm does where it ends a job.
    pub(super) fn were_killed(&self) -> bool {
        self.how.starts_with("Killed")
    }

    /// Whether they ended for a reason of their own, whatever others did.
    pub(super) fn crashed(&self) -> bool {
        let of_itself = ["Out Of Memory", "Segmentation fault", "Bus error"];
        of_itself.iter().any(|it| self.how.starts_with(it))
    }

    /// `node7: task 0: Out Of Memory`, unless tasks ended for the sake of others.
    fn read(ended: &str) -> Option<Self> {
        let (host, rest) = ended.split_once(": task")?;
        let (tasks, how) = rest.trim_start_matches('s').split_once(": ")?;
        let (tasks, how) = (tasks.trim(), how.trim_end());
        let is_list = !tasks.is_empty()
            && tasks
                .chars()
                .all(|c| c.is_ascii_digit() || ",-".contains(c));
        let of_others = ["Terminated", "Aborted"]
            .iter()
            .any(|it| how.starts_with(it));
        (is_list && !of_others).then(|| Self {
            tasks: tasks.to_owned(),
            host: host.to_owned(),
            how: how.to_owned(),
        })
    }
}

/// Names of signals that end processes.
const SIGNALS: [(&str, i32); 7] = [
    ("SIGHUP", 1),
    ("SIGINT", 2),
    ("SIGABRT", 6),
    ("SIGBUS", 7),
    ("SIGKILL", 9),
    ("SIGSEGV", 11),
    ("SIGTERM", 15),
];

/// The signal in `Received 15 death signal`, or `Received Signals.SIGTERM death signal`.
fn received(before: &str) -> Option<i32> {
    let (_, signal) = before.rsplit_once("Received ")?;
    let named = |(name, _): &&(&str, i32)| signal.strip_prefix("Signals.") == Some(name);
    let known = SIGNALS.iter().find(named).map(|(_, signal)| *signal);
    known.or_else(|| signal.parse().ok())
}

/// `process 3 terminated with signal SIGKILL`, `process 3 terminated with exit code 1`, and
/// `-- Process 3 terminated with the following error:`, of `torch.multiprocessing.spawn`.
fn spawned(record: &str) -> Option<(u32, i32)> {
    let (before, how) = record.split_once(" terminated with ")?;
    let process = before
        .strip_prefix("-- Process ")
        .or_else(|| Some(before.split_once("xception: process ")?.1))?;
    let code = if let Some(name) = how.strip_prefix("signal ") {
        let known = SIGNALS.iter().find(|(signal, _)| name.starts_with(signal));
        -known?.1
    } else if let Some(code) = how.strip_prefix("exit code ") {
        exit_code(code)?
    } else {
        how.starts_with("the following error").then_some(1)?
    };
    Some((process.parse().ok()?, code))
}

/// What a record says of the first process that ended, and of those behind it, if there are any.
fn first_of_several(record: &str) -> Option<(&str, &str)> {
    const PID: &str = "(pid: ";
    let at = record.find(PID)? + PID.len();
    record[at..]
        .contains(PID)
        .then(|| record.split_at(at + digits(&record[at..])))
}

fn exit_code(text: &str) -> Option<i32> {
    match text.strip_prefix('-') {
        Some(signal) => number::<i32>(signal).map(|signal| -signal),
        None => number(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(rank: u32, time: &str, code: i32, pid: u32) -> String {
        format!(
            "  time      : 2026-01-02_03:04:{time}\n  host      : a\n  rank      : {rank} (local_rank: \
             {rank})\n  exitcode  : {code} (pid: {pid})\n"
        )
    }

    fn read(text: &str) -> Summary {
        let mut summary = Summary::default();
        for line in text.lines() {
            summary.take(line);
        }
        summary
    }

    #[test]
    fn a_summary_may_stand_on_one_line() {
        let line = |rank: u32, second: u32, code: i32| {
            format!(
                "| 2026-01-02T03:04:58.879Z | [2]: time : 2026-01-02_03:04:{second} host : a rank : {rank} \
                 (local_rank: 2) exitcode : {code} (pid: 189) error_file: <N/A> traceback : Signal\n"
            )
        };
        let root = "| 2026-01-02T03:04:58.880Z | Root Cause (first observed failure):\n";
        let summary = read(&[&line(2, 58, -15), root, &line(7, 55, -9)].concat());
        let (first, with_it) = summary.first().unwrap();
        assert_eq!(
            (first.rank, first.killed_by(), with_it),
            (7, Some(9), vec![])
        );
        // Also that of all processes.
        let root = "Root Cause (first observed failure):\n[0]:\n";
        let all = [
            block(1, "08", 1, 13),
            root.to_owned(),
            block(0, "07", 1, 10),
        ]
        .concat();
        let summary = read(&all.replace('\n', " "));
        let (first, with_it) = summary.first().unwrap();
        assert_eq!((first.rank, summary.ended.len(), with_it), (0, 2, vec![]));
    }

    #[test]
    fn what_mpirun_and_spawn_saw_end_is_read() {
        let mpi = "The first process to do so was:\n\n  Process name: [[12167,1],10]\n  Exit code:    3\n";
        let summary = read(mpi);
        let (first, _) = summary.first().unwrap();
        assert_eq!((first.rank, first.code), (10, 3));
        for (record, ended) in [
            (
                "Exception: process 3 terminated with signal SIGKILL",
                Some((3, -9)),
            ),
            (
                "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with exit code 2",
                Some((0, 2)),
            ),
            (
                "-- Process 1 terminated with the following error:",
                Some((1, 1)),
            ),
            ("the process 3 terminated with signal SIGKILL", None),
        ] {
            assert_eq!(read(record).spawned, ended, "{record}");
        }
    }

    #[test]
    fn the_first_that_ended_is_torchruns_and_others_of_its_second_are_listed() {
        let root = "Root Cause (first observed failure):\n[0]:\n";
        let summary = read(
            &[
                block(3, "07", 1, 13),
                block(0, "38", -9, 10),
                root.to_owned(),
                block(1, "07", 1, 11),
            ]
            .concat(),
        );
        let (first, with_it) = summary.first().expect("a first one");
        assert_eq!((first.rank, first.killed_by(), with_it), (1, None, vec![3]));
        let summary = read(
            &[
                block(2, "09", -15, 12),
                root.to_owned(),
                block(1, "07", -9, 11),
            ]
            .concat(),
        );
        let (first, with_it) = summary.first().expect("a first one");
        assert_eq!(
            (first.rank, first.killed_by(), with_it),
            (1, Some(9), vec![])
        );
    }

    #[test]
    fn the_summary_of_a_later_start_replaces_the_earlier() {
        let root = "Root Cause (first observed failure):\n";
        let of = |pid, rank| [root, &block(rank, "07", 1, pid)].concat();
        let mut summary = read(&of(11, 6));
        let again: Vec<bool> = of(12, 6).lines().map(|line| summary.take(line)).collect();
        assert_eq!(again.iter().filter(|it| **it).count(), 1);
        assert_eq!(summary.ended.len(), 1);
    }

    #[test]
    fn what_composer_saw_end_is_read_and_what_slurm_ended() {
        let summary = read("ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.\n");
        let (first, _) = summary.first().unwrap();
        assert_eq!((first.rank, first.killed_by()), (2, Some(7)));
        for (why, reason) in [(" DUE TO TIME LIMIT", "TIME LIMIT"), ("", "")] {
            let summary = read(&format!(
                "slurmstepd: error: *** STEP 34.0 ON a CANCELLED AT 2026-01-02T03:04:05{why} ***\n"
            ));
            assert_eq!(summary.cancelled.as_deref(), Some(reason));
        }
    }

    #[test]
    fn a_signal_to_the_launcher_is_of_no_rank() {
        let summary = read(
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 812 got signal: 1\n",
        );
        assert_eq!((summary.to_launcher, summary.first()), (Some(1), None));
    }

    #[test]
    fn a_number_on_a_host_is_no_rank() {
        let summary = read(
            "E0101 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: \
             3 (pid: 812) of binary: python",
        );
        assert_eq!((summary.on_host, summary.first()), (Some((3, -9)), None));
    }
}
