//! What sources say of themselves.

use model::{
    DumpNote, InspectorNote, LogDefect, NcclNote, PrintedNote, ProfileNote, RankTrouble, RasNote,
    SharedTable, SourceNote, TraceNote, UnlikeCounts, Unrecorded,
};

use crate::death;
use crate::words::{are, its, of, who};

/// Words a note of a source.
pub fn source_note(note: &SourceNote) -> String {
    match note {
        SourceNote::LeftOut(error) => format!("left out: {error}"),
        SourceNote::UnreadTable { table, error } => {
            let lost = match table {
                SharedTable::Ring => "its rank",
                SharedTable::Live => "the communication of its rank",
                SharedTable::Requests => "the network traffic of its rank",
            };
            format!("{error}; {lost} is not observed")
        }
        SourceNote::ProbeFaults(faults) => {
            format!("the probes counted {faults} internal faults")
        }
        SourceNote::Undelivered => {
            "the collector did not accept all data in time: some data is missing".to_owned()
        }
        SourceNote::RecordingEnds(error) => format!("the recording ends early: {error}"),
        SourceNote::RecorderLate(rank) => format!(
            "the Flight Recorder of rank {rank} did not answer in time: its process was stopped or \
             very busy, and hangs are not reported meanwhile"
        ),
        SourceNote::Profile(note) => profile(note),
        SourceNote::RanksGuessed => {
            "no communicator contains all processes: ranks are numbered by host and process"
                .to_owned()
        }
        SourceNote::Ras(note) => ras(note),
        SourceNote::Inspector(note) => inspector(note),
        SourceNote::Dumps(note) => dumps(note),
        SourceNote::Traces(note) => traces(note),
        SourceNote::CallLog { rank, defect } => call_log(*rank, defect),
        SourceNote::WorkRequests {
            requests,
            connections,
        } => {
            format!("{requests} completed work requests of {connections} connections were reported")
        }
        SourceNote::Printed(note) => printed(note),
        SourceNote::Stacks { ranks, frames } if frames.is_empty() => {
            format!("{} in no Python frame", are(ranks, &who(ranks)))
        }
        SourceNote::Stacks { ranks, frames } => {
            format!("{} in {}", are(ranks, &who(ranks)), frames.join(" < "))
        }
        SourceNote::Text(text) => text.clone(),
    }
}

fn profile(note: &ProfileNote) -> String {
    const REFUSED: &str = "an order to profile ranks was refused";
    match note {
        ProfileNote::TooSoon(since_s) => format!("{REFUSED}: the last one was {since_s} s ago"),
        ProfileNote::TooFar(step) => format!("{REFUSED}: step {step} is far ahead"),
        ProfileNote::NoFolder(error) => format!("no rank can be profiled: {error}"),
        ProfileNote::NoMailbox => "no rank could be profiled: no rank has a mailbox".to_owned(),
        ProfileNote::Unrecorded { rank, why } => {
            let why = match why {
                Unrecorded::Busy => "a profiler runs in it",
                Unrecorded::Failed => "its profiler failed, or another was started",
                Unrecorded::Late => "it was past the first step",
                Unrecorded::NotBegun => "it did not reach the first step",
                Unrecorded::NotEnded => "it did not reach the end of the window",
            };
            format!("rank {rank} was not profiled: {why}")
        }
        ProfileNote::Ended(ranks) => {
            format!("{} ended before a profile of them was complete", who(ranks))
        }
        ProfileNote::Unread { rank, error } => {
            format!("the profile of rank {rank} cannot be read: {error}")
        }
    }
}

fn ras(note: &RasNote) -> String {
    match note {
        RasNote::Replied(text) => format!("NCCL's RAS: {text}"),
        RasNote::OtherJob(address) => format!(
            "NCCL's RAS: the process that answers at {address} does not know this job; give each \
             job on a host its own NCCL_RAS_ADDR"
        ),
        RasNote::NumberedBy(communicator) => format!("ranks are numbered as in {communicator}"),
        RasNote::MoreFaults {
            others,
            name,
            fault,
        } => format!(
            "{others} more communicators have faults, for example {fault} in {name}: only JSON \
             replies show which ranks of different communicators are the same"
        ),
        RasNote::Trouble {
            communicator,
            ranks,
            trouble,
        } => format!(
            "{communicator}: its {} {}",
            who(ranks),
            rank_trouble(ranks, trouble)
        ),
        RasNote::Unlisted {
            communicator,
            function,
        } => format!(
            "{communicator}: the report does not show how many {function} each rank launched: ask \
             for VERBOSE STATUS or JSON"
        ),
        RasNote::Elsewhere {
            communicator,
            ranks,
        } => format!(
            "{communicator}: its {} {} but {} not in it",
            who(ranks),
            of(ranks, "answers", "answer"),
            of(ranks, "is", "are")
        ),
        RasNote::Moving(communicator) => {
            format!(
                "{communicator}: ranks are at different collectives, but moved between the replies"
            )
        }
        RasNote::OneMoment => {
            "launched collectives were counted at one moment, when ranks of a healthy job may \
             differ too; a second reply some seconds later shows whether they still differ"
                .to_owned()
        }
        RasNote::Alike => {
            "all ranks have launched the same number of collectives, which does not show whether their \
             devices finish them"
                .to_owned()
        }
        RasNote::Unreachable {
            rank,
            process,
            is_dead,
        } => {
            let process = process.as_ref().map_or(String::new(), |(pid, host)| {
                format!(" (process {pid} on {host})")
            });
            let state = if *is_dead {
                "is considered dead by NCCL's RAS"
            } else {
                "does not answer NCCL's RAS: it is stopped, or its host cannot be reached"
            };
            format!("rank {rank}{process} {state}")
        }
        RasNote::Incomplete {
            communicator,
            ranks,
        } => format!(
            "{ranks} ranks of {communicator} did not answer NCCL's RAS, and the report does not list \
             them: ask for VERBOSE STATUS or JSON"
        ),
        RasNote::Dead { pid, host } => {
            format!("process {pid} on {host} is considered dead by NCCL's RAS: its rank is unknown")
        }
        RasNote::Failed(fault) => {
            format!("NCCL's RAS reports {fault}, and the report does not describe it")
        }
        RasNote::Replies(replies) => {
            format!("there are {replies} RAS replies: the latest is analysed")
        }
    }
}

fn rank_trouble(ranks: &[u32], trouble: &RankTrouble) -> String {
    match trouble {
        RankTrouble::Aborts => format!("{} it", of(ranks, "aborts", "abort")),
        RankTrouble::NotJoined => format!("{} not joined it yet", of(ranks, "has", "have")),
        RankTrouble::CouldNotJoin(result) => format!(
            "could not join it: {} (init_state {result})",
            nccl_error(*result)
        ),
        RankTrouble::Error(result) => {
            format!(
                "{} {} (async_error {result})",
                of(ranks, "reports", "report"),
                nccl_error(*result)
            )
        }
        RankTrouble::Status(status) => format!("{} status {status}", of(ranks, "has", "have")),
        RankTrouble::Reported(error) => format!("reported {error}"),
    }
}

/// NCCL's names of its results.
fn nccl_error(result: i64) -> &'static str {
    // Neither 0, success, nor 7, in progress, is an error, so that they need no name.
    match result {
        1 => "an unhandled CUDA error",
        2 => "a system error",
        3 => "an internal error",
        4 => "an invalid argument",
        5 => "invalid usage",
        6 => "an error of another process",
        _ => "an unknown error",
    }
}

fn inspector(note: &InspectorNote) -> String {
    match note {
        InspectorNote::TwoProcesses { communicator, rank } => format!(
            "two processes claim to be rank {rank} of comm {communicator}: the first is used"
        ),
        InspectorNote::Lacking {
            lacking,
            communicators,
            communicator,
            logs,
            size,
        } => format!(
            "{lacking} of {communicators} communicators lack logs of some ranks, for example \
             {logs} of {size} in comm {communicator}: a rank without a log cannot be named"
        ),
        InspectorNote::HostTimed(collectives) => format!(
            "{collectives} collectives were timed by the host and are left out: such times do not \
             show arrivals"
        ),
        InspectorNote::CutOff(logs) => {
            format!(
                "logs with an incomplete last line, because they were still being written: {logs}"
            )
        }
    }
}

fn dumps(note: &DumpNote) -> String {
    match note {
        DumpNote::Copies(ranks) => format!(
            "the dumps of {} are left out: they are copies of one dump, and its rank is unknown",
            who(ranks)
        ),
        DumpNote::Old {
            rank,
            op,
            number,
            group,
            ended_on,
        } => format!(
            "the dump of rank {rank} is left out: it is older than the others and lacks {} \
             #{number} of group {group}, which has ended on rank {ended_on}",
            op.name()
        ),
        DumpNote::Further {
            rank,
            op,
            number,
            group,
        } => format!(
            "the dump of rank {rank} is left out: it is from another moment than most; {} \
             #{number} of group {group} has ended in it and is missing from most others",
            op.name()
        ),
        DumpNote::Missing(ranks) => format!(
            "there is no dump of {}: {} collectives are unknown",
            who(ranks),
            its(ranks)
        ),
        DumpNote::EarlierRun(dumps) => {
            format!("{dumps} dumps are left out: they are of an earlier run")
        }
        DumpNote::TimedOut(ranks) => format!(
            "collectives of {} timed out according to the log, and there is no dump of {}",
            who(ranks),
            of(ranks, "it", "them")
        ),
        DumpNote::InTransfers(ranks) => format!(
            "{} {} in sends or receives that had not ended: which rank {} for is not determined",
            who(ranks),
            of(ranks, "is", "are"),
            of(ranks, "it waits", "they wait")
        ),
    }
}

fn traces(note: &TraceNote) -> String {
    match note {
        TraceNote::RankGuessed { file, rank } => {
            format!("{file} does not name its rank: rank {rank} is assumed")
        }
        TraceNote::Lost { file, loss } => format!("{file}: {loss}"),
        TraceNote::Missing(ranks) => format!("no trace of {}", who(ranks)),
        TraceNote::Alone(ranks) => {
            format!("there is a trace of only one of {ranks} ranks: nothing can be compared")
        }
        TraceNote::NoSteps(ranks) => format!(
            "no steps were recorded on {}: call prof.step() in the loop, or mark steps as NVTX \
             ranges called step N",
            who(ranks)
        ),
    }
}

fn call_log(rank: u32, defect: &LogDefect) -> String {
    match defect {
        LogDefect::Damaged { lines, first } => format!(
            "{lines} lines of the log of rank {rank} are damaged and left out, from line {first} on"
        ),
        LogDefect::CutOff => {
            format!("the last line of the log of rank {rank} is cut off: it was being written")
        }
        LogDefect::Runs(runs) => {
            format!("the log of rank {rank} has {runs} runs: the last is analysed")
        }
        LogDefect::Twice => {
            format!("there are two logs of rank {rank}: the one that ends last is analysed")
        }
    }
}

/// Hosts as a subject; of many only the first.
fn hosts(names: &[String]) -> String {
    const LISTED: usize = 4;
    let listed = names[..names.len().min(LISTED)].join(", ");
    match names.len() {
        0 => "a host".to_owned(),
        1 => format!("host {listed}"),
        2..=LISTED => format!("hosts {listed}"),
        all => format!("hosts {listed} and {} more", all - LISTED),
    }
}

/// `IBV_WC_RETRY_EXC_ERR`.
const NO_ANSWER: u32 = 12;

fn nccl(note: &NcclNote) -> String {
    match note {
        NcclNote::LinkDown {
            host,
            port,
            came_back,
        } => format!(
            "the link of {} of host {host} went down{}",
            port.as_deref().unwrap_or("an InfiniBand port"),
            if *came_back { " and came back" } else { "" }
        ),
        NcclNote::Device {
            host,
            device,
            error,
        } => format!("NCCL on host {host}: the driver of GPU {device} reported `{error}`"),
        NcclNote::FailedRequest {
            peer,
            status,
            hosts: of,
        } => {
            let of = hosts(of);
            if *status == NO_ANSWER {
                format!(
                    "NCCL on {of} got no answer from {peer} over RDMA after all retries: the link \
                     between them failed, or the process at {peer} ended"
                )
            } else {
                format!("RDMA requests of NCCL on {of} to {peer} failed with status {status}")
            }
        }
        NcclNote::NotConnected { peer, hosts: of } => format!(
            "NCCL on {} could not connect to {peer}: its process is not running, or the network blocks \
             the connection",
            hosts(of)
        ),
    }
}

fn missed_barrier(ranks: &[u32]) -> String {
    format!(
        "monitored_barrier timed out waiting for {}, numbered within the group of the barrier",
        who(ranks)
    )
}

fn never_joined(ranks: &[u32]) -> String {
    format!(
        "PyTorch's desync report says that {} did not join the collective in which the others wait, numbered \
         within its group",
        who(ranks)
    )
}

/// What ranks were last about to call.
fn last_calls(calls: &[(Vec<u32>, String)]) -> String {
    let sides = calls.iter().map(|(of, call)| format!("{} {call}", who(of)));
    let sides = sides.collect::<Vec<_>>().join(", ");
    let behind = match calls.len() {
        1 => "",
        // No claim: each group numbers its own.
        _ => {
            "; no line names their groups: the rank with the lowest number is behind only \
             if they share a group"
        }
    };
    format!("last collectives that ranks were about to call: {sides}{behind}")
}

/// Tasks that Slurm saw end.
fn slurm_tasks(tasks: &str, host: &str, how: &str) -> String {
    let kind = if tasks.contains([',', '-']) {
        "tasks"
    } else {
        "task"
    };
    format!(
        "Slurm saw {kind} {tasks} of {host} end: {how}; a task is a rank only where srun starts each rank \
         itself"
    )
}

/// Models that DDP found to be unlike.
fn unlike_models([(one, its), (other, others)]: [(u32, u64); 2]) -> String {
    format!(
        "DDP refuses to start: the model of rank {one} has {its} parameters and that of rank {other} has \
         {others} (ranks numbered within the group); a rank that failed earlier has 0"
    )
}

/// Ranks near which NCCL found different collectives.
fn mismatched(near: &[u32]) -> String {
    format!(
        "NCCL found that ranks call different collectives, at or near {} (numbered within a communicator): \
         with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=COLL it lists the calls",
        who(near)
    )
}

fn printed(note: &PrintedNote) -> String {
    match note {
        PrintedNote::Raised { rank, error } => format!("rank {rank} raised: {error}"),
        PrintedNote::FirstEnded {
            rank,
            code,
            with_it,
        } => first_ended(*rank, *code, with_it),
        PrintedNote::GaveUpInGloo {
            ranks,
            silent,
            places,
        } => gave_up_in_gloo(ranks, silent, places),
        PrintedNote::FirstOfHost { local_rank, code } => format!(
            "torchrun saw the process with local rank {local_rank} of its host end first, {}: this \
             log lacks torchrun's summary, which names the rank in the job",
            death::how(*code)
        ),
        PrintedNote::Ended(ranks) => format!(
            "torchrun saw {} end: this log does not show which rank ended first",
            who(ranks)
        ),
        PrintedNote::EndedSomewhere(code) => format!(
            "a process ended {}, and its launcher does not name it: DeepSpeed prints the command \
             of the process that it started last",
            death::how(*code)
        ),
        PrintedNote::Cancelled(why) if why.is_empty() => {
            "Slurm ended the job: a user or the scheduler cancelled it".to_owned()
        }
        PrintedNote::Cancelled(why) => format!("Slurm ended the job: {}", why.to_lowercase()),
        PrintedNote::ToLauncher(signal) => format!(
            "torchrun received {} and ended its processes: a user, a scheduler or a closed \
             terminal ended the job",
            death::named(*signal)
        ),
        PrintedNote::SlurmTasks { tasks, host, how } => slurm_tasks(tasks, host, how),
        PrintedNote::FirstSpawned { process, code } => format!(
            "torch.multiprocessing saw process {process} end first, {}: that is its rank if all \
             ranks run on one host",
            death::how(*code)
        ),
        PrintedNote::RaisedSomewhere(error) => {
            format!("a rank that no line names raised: {error}")
        }
        PrintedNote::LeavesOut => {
            "Ray drops lines that several processes print identically, so it is \
             unknown which ranks printed nothing; with RAY_DEDUP_LOGS=0 it prints all"
                .to_owned()
        }
        PrintedNote::StuckWatchdog(rank) => format!(
            "the watchdog of rank {rank} got stuck: a call of CUDA or NCCL does not return, or a \
             thread holds the GIL"
        ),
        // The line has an address only: which rank had it is unknown.
        PrintedNote::AwaitedId { ranks, of } => format!(
            "{} waited for the unique NCCL ID of rank {of} and did not get it (rank {of} is numbered within a \
             group that no line names): the output of that rank shows why",
            who(ranks)
        ),
        PrintedNote::SharedGpu { ranks, device } => format!(
            "NCCL refuses to run: {} (numbered within a communicator) use the same GPU (CUDA device \
             {device}); give each process its own",
            who(ranks)
        ),
        PrintedNote::UnlikeModels(models) => unlike_models(*models),
        PrintedNote::LostPeer(address) => format!(
            "a rank lost the connection to a process at {address}, which ended, or lost its network: \
             the output of that process shows why"
        ),
        PrintedNote::Nccl(note) => nccl(note),
        PrintedNote::Differ([one, other]) => format!(
            "PyTorch compared ranks {one} and {other} and found that they call different collectives"
        ),
        PrintedNote::Mismatched(near) => mismatched(near),
        PrintedNote::MissedBarrier(ranks) => missed_barrier(ranks),
        PrintedNote::NeverJoined(ranks) => never_joined(ranks),
        PrintedNote::LastCalls(calls) => last_calls(calls),
        PrintedNote::Unnumbered(ranks) => format!(
            "collectives of {} timed out, and PyTorch before 1.13 does not number them: {BEHIND}",
            who(ranks)
        ),
        PrintedNote::Ungrouped(ranks) => format!(
            "collectives of {} timed out, and no line names their group (PyTorch 2.3 and later \
             name it): {BEHIND}",
            who(ranks)
        ),
        PrintedNote::SomeTimeout => "a collective timed out, and no line names the rank".to_owned(),
        PrintedNote::UnlikeTimeouts { number, sides } => {
            let sides = sides
                .iter()
                .map(|(of, work)| format!("{} in {work}", who(of)));
            format!(
                // No claim: no line names their groups, and two groups may be at one number.
                "{} timed out, all as #{number}: if they share a group, its ranks called different \
                 collectives",
                sides.collect::<Vec<_>>().join(", ")
            )
        }
        PrintedNote::Starts(starts) => {
            format!("the log has {starts} starts of the job: the last is analysed")
        }
        PrintedNote::Waiting {
            op,
            number,
            group,
            ranks,
        } => format!(
            "waiting in {} of group {group}: {}",
            numbered(op.as_deref(), *number),
            who(ranks)
        ),
        PrintedNote::PartOfGroup {
            group,
            ranks,
            number,
        } => format!(
            "only {} of group {group} printed anything: the group may have other ranks that have \
             not entered #{number}",
            who(ranks)
        ),
        PrintedNote::Uncounted(ranks) => format!(
            "{} printed no progress, so it is unknown whether {} entered the collective that other \
             ranks wait in",
            who(ranks),
            of(ranks, "it", "they")
        ),
        PrintedNote::Incomparable { group, why } => {
            format!("group {group}: {}", unlike_counts(why))
        }
    }
}

fn gave_up_in_gloo(ranks: &[u32], silent: &[u32], places: &[(Vec<u32>, String)]) -> String {
    let mut gave_up = format!("{} gave up waiting for another rank in gloo", who(ranks));
    let places = places
        .iter()
        .map(|(ranks, line)| format!("{} at {line}", who(ranks)));
    let places: Vec<String> = places.collect();
    if !places.is_empty() {
        gave_up += &format!(" ({})", places.join(", "));
    }
    if silent.is_empty() {
        format!("{gave_up}: this log does not show for which one")
    } else {
        format!(
            "{gave_up}; {} printed no error: look at what {} did last",
            who(silent),
            of(silent, "it", "they")
        )
    }
}

fn first_ended(rank: u32, code: i32, with_it: &[u32]) -> String {
    let also = if with_it.is_empty() {
        String::new()
    } else {
        format!("; {} ended in the same second", who(with_it))
    };
    let how = death::how(code);
    format!("the launcher saw rank {rank} end first, {how}{also}")
}

/// A collective of a group, whose kind no line may name.
fn numbered(op: Option<&str>, number: u64) -> String {
    format!("{} #{number}", op.unwrap_or("collective"))
}

/// Where nothing of a group can be compared.
const BEHIND: &str = "it is unknown which rank is behind";

fn unlike_counts(why: &UnlikeCounts) -> String {
    match why {
        UnlikeCounts::PointToPoint { ranks, op, number } => format!(
            "{} timed out in {op} #{number}: each rank numbers its own sends and receives, so \
             {BEHIND}",
            who(ranks)
        ),
        UnlikeCounts::SharedNumber(ranks) => format!(
            "several groups of {} have this number, so {BEHIND}",
            who(ranks)
        ),
        UnlikeCounts::Apart { waiting, ahead } => {
            let waiting = waiting.iter().map(|(rank, op, number)| {
                format!("rank {rank} waits in {}", numbered(op.as_deref(), *number))
            });
            format!(
                "{}; {} completed later collectives than the first of these, which all ranks of a \
                 group must enter: these ranks called different collectives, or number them \
                 differently",
                waiting.collect::<Vec<_>>().join(", "),
                who(ahead)
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCS: &str = include_str!("../../../../docs/json.md");

    #[test]
    fn notes_that_the_document_lists_are_worded_so() {
        let not_a_ring = SourceNote::UnreadTable {
            table: SharedTable::Ring,
            error: "… is not a ring".to_owned(),
        };
        for note in [
            SourceNote::ProbeFaults(2),
            SourceNote::RecordingEnds("…".to_owned()),
            SourceNote::RecorderLate(2),
            not_a_ring,
        ] {
            let listed = format!("| `{}` |", source_note(&note));
            assert!(DOCS.contains(&listed), "docs/json.md lacks {listed}");
        }
    }

    #[test]
    fn a_log_says_how_the_first_rank_ended() {
        let first = |code, with_it| {
            printed(&PrintedNote::FirstEnded {
                rank: 1,
                code,
                with_it,
            })
        };
        let said = [
            first(1, vec![0, 2]),
            first(-9, vec![3]),
            first(-6, Vec::new()),
            first(-64, Vec::new()),
        ];
        assert_eq!(
            said,
            [
                "the launcher saw rank 1 end first, with exit code 1; ranks 0,2 ended in the same second",
                "the launcher saw rank 1 end first, by signal 9 (SIGKILL); rank 3 ended in the same second",
                "the launcher saw rank 1 end first, by signal 6 (SIGABRT), which watchdogs also \
                 send",
                "the launcher saw rank 1 end first, by signal 64",
            ]
        );
    }

    #[test]
    fn ranks_whose_counts_are_unlike_stand_with_what_they_wait_in() {
        let apart = UnlikeCounts::Apart {
            waiting: vec![
                (0, Some("REDUCE_SCATTER_BASE".to_owned()), 167),
                (1, None, 135),
            ],
            ahead: vec![0],
        };
        let group = "default".to_owned();
        assert_eq!(
            printed(&PrintedNote::Incomparable { group, why: apart }),
            "group default: rank 0 waits in REDUCE_SCATTER_BASE #167, rank 1 waits in collective \
             #135; rank 0 completed later collectives than the first of these, which all ranks of \
             a group must enter: these ranks called different collectives, or number them \
             differently"
        );
        let side = |rank, work: &str| (vec![rank], work.to_owned());
        let sides = vec![side(3, "ALLREDUCE (64 elements)"), side(7, "BROADCAST")];
        assert_eq!(
            printed(&PrintedNote::UnlikeTimeouts { number: 78, sides }),
            "rank 3 in ALLREDUCE (64 elements), rank 7 in BROADCAST timed out, all as #78: if they \
             share a group, its ranks called different collectives"
        );
    }

    #[test]
    fn a_process_that_nobody_knows_is_not_named() {
        let unreachable = |process| {
            ras(&RasNote::Unreachable {
                rank: 2,
                process,
                is_dead: true,
            })
        };
        assert_eq!(
            [
                unreachable(None),
                unreachable(Some((5101, "10.0.0.2".to_owned())))
            ],
            [
                "rank 2 is considered dead by NCCL's RAS",
                "rank 2 (process 5101 on 10.0.0.2) is considered dead by NCCL's RAS"
            ]
        );
    }
}
