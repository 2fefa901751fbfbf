use model::{NcclNote, UnlikeCounts};

use super::*;

mod failed;

fn read(text: &str) -> WatchdogLog {
    WatchdogLog::read(text.as_bytes(), None)
        .unwrap()
        .expect("lines of a watchdog")
}

fn inputs(text: &str) -> Vec<Input> {
    let mut inputs = Vec::new();
    report(&[&read(text)], 0, &mut |input| inputs.push(input));
    inputs
}

fn notes(text: &str) -> Vec<PrintedNote> {
    let notes = inputs(text).into_iter().filter_map(|input| match input {
        Input::Note(SourceNote::Printed(note)) => Some(note),
        _ => None,
    });
    notes.collect()
}

/// Of the default group.
fn incomparable(why: UnlikeCounts) -> PrintedNote {
    let group = "default".to_owned();
    PrintedNote::Incomparable { group, why }
}

/// Who entered what: rank, number, kind, sizes.
fn entries(text: &str) -> Vec<(u32, u64, String)> {
    let entries = inputs(text).into_iter().filter_map(|input| match input {
        Input::Entered {
            rank,
            number,
            op,
            detail,
            ..
        } => Some((rank, number, format!("{op} {detail}").trim_end().to_owned())),
        _ => None,
    });
    entries.collect()
}

fn members(text: &str) -> Vec<Vec<u32>> {
    let groups = inputs(text).into_iter().filter_map(|input| match input {
        Input::Group { members, .. } => Some(members.iter().collect()),
        _ => None,
    });
    groups.collect()
}

fn caught(rank: u32, number: u64, op: &str, elements: u64) -> String {
    format!(
        "[rank{rank}]:[E1 0:0:0 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective \
         operation timeout: WorkNCCL(SeqNum={number}, OpType={op}, NumelIn={elements}, \
         NumelOut={elements}, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n"
    )
}

/// How far a rank came in a group, in which it has a place.
fn status(rank: u32, group: &str, place: u32, enqueued: u64, completed: u64) -> String {
    format!(
        "[rank{rank}]:[E1 0:0:0 ProcessGroupNCCL.cpp:2268] [{group} Rank {place}]  failure detected by \
         watchdog at work sequence id: {} PG status: last enqueued work: {enqueued}, last completed \
         work: {completed}\n",
        completed + 1
    )
}

const DEFAULT: &str = "PG ID 0 PG GUID 0(default_pg)";

#[test]
fn a_rank_that_printed_nothing_is_known_by_the_size_of_a_communicator() {
    let made = |rank: u32, ranks: u32| {
        format!(
            "a:1:2 [0] NCCL INFO comm 0x55fb rank {rank} nranks {ranks} cudaDev 0 busId 41000 - Init \
             COMPLETE\n"
        )
    };
    // Communicators of parts of the job are smaller.
    let text = [
        made(0, 4),
        made(1, 2),
        status(0, DEFAULT, 0, 7, 6),
        status(1, DEFAULT, 1, 7, 6),
    ]
    .concat();
    assert_eq!(members(&text), [[0, 1, 2, 3]]);
    assert_eq!(notes(&text), [PrintedNote::Uncounted(vec![2, 3])]);
    // It is none of a job that stands still.
    let made = made(0, 4);
    assert!(WatchdogLog::read(made.as_bytes(), None).unwrap().is_none());
}

#[test]
fn a_group_of_some_ranks_has_the_ranks_of_the_job() {
    let log = read(
        &[
            caught(9, 52229, "_ALLGATHER_BASE", 1),
            status(9, "PG ID 4 PG GUID 17(EXPERT_GROUP)", 1, 52258, 52228),
        ]
        .concat(),
    );
    let group = &log.groups["17"];
    assert_eq!(group.name.as_deref(), Some("EXPERT_GROUP"));
    let timed_out = group.ranks[&9].timed_out.as_ref();
    assert_eq!(
        timed_out.map(|it| (it.number, &*it.op)),
        Some((52229, "ALLGATHER_BASE"))
    );
    assert!(log.timeouts.is_empty());
}

#[test]
fn what_ended_a_process_is_no_timeout_of_another_rank() {
    let caught = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, \
                  OpType=BROADCAST, NumelIn=1, Timeout(ms)=1)";
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
    assert_eq!(log.notes(), [PrintedNote::Starts(2)]);
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
    let text = format!("[Rank 0] {caught}\n[Rank 2] {caught}\n");
    let both = [0, 2].map(|rank| (rank, 9, "ALLGATHER_BASE".to_owned()));
    assert_eq!(entries(&text), both);
    // Rank 1 is there, and may be who they wait for.
    assert!(notes(&text).contains(&PrintedNote::Uncounted(vec![1])));
}

#[test]
fn ranks_of_a_group_in_which_nobody_waits_are_not_compared() {
    let text = "[PG 0 Rank 0] last enqueued NCCL work: 62, last completed NCCL work: 62.\n\
                [PG 0 Rank 1] last enqueued NCCL work: 61, last completed NCCL work: 61.\n";
    assert!(entries(text).is_empty());
}

#[test]
fn who_was_heard_of_in_another_group_has_not_therefore_missed_one_of_this() {
    // Rank 3's line with the default group is not in the log.
    let text = [
        status(1, DEFAULT, 1, 22, 21),
        status(3, "PG ID 2 PG GUID 7", 0, 5, 4),
    ]
    .concat();
    assert_eq!(members(&text), [vec![0, 1, 2], vec![3]]);
}

#[test]
fn a_rank_whose_group_is_not_named_is_where_others_timed_out_in_the_same() {
    let text = [
        caught(1, 78, "ALLREDUCE", 64),
        caught(2, 78, "ALLREDUCE", 64),
        status(1, DEFAULT, 1, 80, 77),
    ]
    .concat();
    let all = [1, 2].map(|rank| (rank, 78, "ALLREDUCE (64 elements)".to_owned()));
    assert_eq!(entries(&text), all);
    assert_eq!(members(&text), [vec![0, 1, 2]]);
}

#[test]
fn what_ended_a_watchdog_names_the_group() {
    let terminated = |rank| {
        caught(rank, 78, "ALLREDUCE", 64).replacen(
            &format!("[Rank {rank}]"),
            &format!(
                "[{DEFAULT} Rank {rank}] Process group watchdog thread terminated with exception: \
                 [Rank {rank}]"
            ),
            1,
        )
    };
    let text = [caught(1, 78, "ALLREDUCE", 64), terminated(1), terminated(0)].concat();
    let all = [0, 1].map(|rank| (rank, 78, "ALLREDUCE (64 elements)".to_owned()));
    assert_eq!(entries(&text), all);
    assert!(notes(&text).is_empty(), "{:?}", notes(&text));
}

#[test]
fn ranks_that_bring_other_sizes_or_kinds_are_sides() {
    let of = |rank, op, elements| {
        [
            caught(rank, 78, op, elements),
            status(rank, DEFAULT, rank, 80, 77),
        ]
        .concat()
    };
    let text = [of(0, "ALLREDUCE", 64), of(1, "ALLREDUCE", 32)].concat();
    let said = ["(64 elements)", "(32 elements)"].map(|size| format!("ALLREDUCE {size}"));
    let said: Vec<_> = (0..)
        .zip(said)
        .map(|(rank, what)| (rank, 78, what))
        .collect();
    assert_eq!(entries(&text), said);
    // A rank that does not say what it entered votes for neither side.
    let text = [&text, &*status(2, DEFAULT, 2, 80, 77)].concat();
    assert_eq!(entries(&text), said);
    // Others may pass unlike sizes, and are right.
    let text = [of(0, "ALLTOALL_BASE", 64), of(1, "ALLTOALL_BASE", 32)].concat();
    assert_eq!(entries(&text)[1].2, "ALLTOALL_BASE");
}

#[test]
fn unlike_timeouts_of_one_number_may_be_of_one_group() {
    let text = [
        caught(7, 78, "BROADCAST", 64),
        status(7, DEFAULT, 7, 78, 77),
        caught(3, 78, "ALLREDUCE", 64),
    ]
    .concat();
    let side = |rank, work: &str| (vec![rank], work.to_owned());
    let unlike = PrintedNote::UnlikeTimeouts {
        number: 78,
        sides: vec![
            side(3, "ALLREDUCE (64 elements)"),
            side(7, "BROADCAST (64 elements)"),
        ],
    };
    let notes = notes(&text);
    assert!(notes.contains(&unlike), "{notes:?}");
}

#[test]
fn sends_and_receives_are_not_compared() {
    let text = [
        caught(0, 57, "SEND", 64),
        status(0, DEFAULT, 0, 57, 56),
        caught(1, 12, "RECV", 64),
        status(1, DEFAULT, 1, 12, 11),
    ]
    .concat();
    assert!(entries(&text).is_empty());
    let why = UnlikeCounts::PointToPoint {
        ranks: vec![0, 1],
        op: "SEND".to_owned(),
        number: 57,
    };
    assert_eq!(notes(&text), [incomparable(why)]);
}

#[test]
fn groups_of_one_number_are_not_compared() {
    // Before PyTorch 2.4 each process counts its groups: these are two pairs.
    let pairs = [status(0, "PG 1", 0, 20, 19), status(3, "PG 1", 1, 12, 11)];
    assert!(entries(&pairs.concat()).is_empty());
    // Of later ones as well, where ranks split a group.
    let pairs = [
        status(0, "PG ID 2 PG GUID 9", 0, 20, 19),
        status(2, "PG ID 2 PG GUID 9", 0, 12, 11),
    ];
    assert!(entries(&pairs.concat()).is_empty());
    // One of all ranks is one.
    let all = [status(0, "PG 1", 0, 20, 19), status(3, "PG 1", 3, 21, 19)];
    assert_eq!(entries(&all.concat()).len(), 2);
}

#[test]
fn ranks_that_completed_what_another_still_waits_in_do_not_count_alike() {
    let of = |rank, op, number| {
        [
            caught(rank, number, op, 64),
            status(rank, DEFAULT, rank, number, number - 1),
        ]
        .concat()
    };
    let text = [of(0, "_REDUCE_SCATTER_BASE", 167), of(1, "ALLREDUCE", 135)].concat();
    assert!(entries(&text).is_empty());
    let why = UnlikeCounts::Apart {
        waiting: vec![
            (0, Some("REDUCE_SCATTER_BASE".to_owned()), 167),
            (1, Some("ALLREDUCE".to_owned()), 135),
        ],
        ahead: vec![0],
    };
    assert_eq!(notes(&text), [incomparable(why)]);
    // Who broadcasts goes on before the others have it.
    let text = [of(0, "ALLREDUCE", 167), of(1, "BROADCAST", 135)].concat();
    assert_eq!(entries(&text).len(), 2);
}

#[test]
fn a_rank_that_has_entered_nothing_is_behind() {
    let idle = "[rank1]: [PG 0 Rank 1] Received a dump signal. Last enqueued NCCL work: -1, last \
                completed NCCL work: -1.\n";
    let text = [&status(0, "PG 0", 0, 1, 0), idle].concat();
    assert_eq!(
        entries(&text),
        [(0, 1, String::new()), (1, 0, String::new())]
    );
}

#[test]
fn who_ended_for_a_reason_of_its_own_is_noted() {
    let killed = |text: &str| {
        inputs(text).iter().find_map(|input| match input {
            Input::Killed { rank, signal } => Some((*rank, *signal)),
            _ => None,
        })
    };
    let waits = [
        caught(0, 78, "ALLREDUCE", 64),
        status(0, DEFAULT, 0, 78, 77),
    ]
    .concat();
    let first = |rank: u32, code: i32| {
        format!(
            "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-02_03:04:05\n  rank      \
             : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 7)\n"
        )
    };
    let error = "[rank1]: ValueError: a batch of 0\n";
    for (parts, who) in [
        (vec![&*first(1, -9)], Some((1, Some(9)))),
        (vec![&waits, &first(1, -9)], Some((1, Some(9)))),
        // It waited like the others, and was ended for that.
        (vec![&waits, &first(0, -9)], None),
        (vec![&waits, &first(0, -6)], None),
        (vec![error], Some((1, None))),
        (vec![error, &waits, &first(1, 1)], Some((1, None))),
        (vec![error, &first(2, 1)], None),
        // What raises on all ranks is no rank's fault.
        (vec![error, "[rank2]: ValueError: a batch of 0\n"], None),
        (vec![&first(1, 1)], None),
    ] {
        let text = parts.concat();
        assert_eq!(killed(&text), who, "{text}");
    }
}

#[test]
fn a_watchdog_that_is_stuck_is_noted_and_judged_no_further() {
    let text = "[rank6]:[E1 0:0:0 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 6] \
                ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress";
    assert_eq!(notes(text), [PrintedNote::StuckWatchdog(6)]);
    assert_eq!(inputs(text).len(), 1);
}

#[test]
fn a_bar_that_prints_over_itself_hides_nothing() {
    let bar = "\r 99%|####| 99/100 [00:01<00:00]".repeat(4000);
    let log = read(&format!("{bar}{}", status(1, DEFAULT, 1, 3, 2)));
    assert!(log.groups["0"].ranks.contains_key(&1));
}

#[test]
fn a_hole_of_zeros_hides_nothing_and_a_binary_file_is_no_log() {
    let (hole, line) = ("\0".repeat(100_000), status(1, DEFAULT, 1, 3, 2));
    for text in [
        format!("{hole}{line}"),
        format!("{}{hole}{line}", status(0, DEFAULT, 0, 3, 2)),
        format!("{}{hole}{}", &line[..20], &line[20..]),
    ] {
        assert!(read(&text).groups["0"].ranks.contains_key(&1), "{text:?}");
    }
    let binary = format!("\x7fELF\x02\x01\0\0\n{line}");
    assert!(
        WatchdogLog::read(binary.as_bytes(), None)
            .unwrap()
            .is_none()
    );
}

#[test]
fn half_a_number_at_the_end_is_none() {
    let whole = status(1, DEFAULT, 1, 79, 77);
    let cut = whole.trim_end().trim_end_matches('7');
    let log = read(&[&status(0, DEFAULT, 0, 79, 77), cut].concat());
    assert!(!log.groups["0"].ranks.contains_key(&1));
    let log = read(&[&status(0, DEFAULT, 0, 79, 77), whole.trim_end()].concat());
    assert!(!log.groups["0"].ranks.contains_key(&1));
}

#[test]
fn an_operation_that_a_line_was_cut_off_in_is_none() {
    let whole = caught(1, 7, "ALLREDUCE", 1);
    for cut in ["OpType=ALLR", "OpType=ALLREDUCE,"] {
        let at = whole.find(cut).expect("an operation") + cut.len();
        let text = [&caught(0, 7, "ALLREDUCE", 1), &whole[..at]].concat();
        assert_eq!(
            entries(&text),
            [(0, 7, "ALLREDUCE (1 elements)".to_owned())]
        );
        assert_eq!(
            notes(&text).last(),
            Some(&PrintedNote::Uncounted(vec![1])),
            "{cut}"
        );
    }
}

#[test]
fn a_rank_waited_in_vain_for_what_makes_a_communicator() {
    let line = |rank: u32, why: &str, group: &str| {
        format!(
            "[rank{rank}]: torch.distributed.DistBackendError: [{rank}] is setting up NCCL communicator \
             and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but \
             store->get('0') got error: {why}, keys: /{group}/0//cuda//0\n"
        )
    };
    let timeout = "wait timeout after 600000ms";
    let text = line(3, timeout, "default_pg") + &line(2, timeout, "default_pg");
    assert_eq!(members(&text), [[0, 2, 3]]);
    let waiting = |rank| (rank, 1, String::new());
    assert_eq!(
        entries(&text),
        [waiting(2), waiting(3), (0, 0, String::new())]
    );
    // The store has ended, or these are no ranks of the job.
    for text in [
        line(3, "Connection reset by peer", "default_pg"),
        line(3, timeout, "tp_pg"),
    ] {
        assert_eq!(members(&text), [[0u32; 0]; 0]);
    }
    // Groups of some ranks, whose stores lie in that of all; a later communicator of all; a receive.
    for (place, key, keys, noted) in [
        (1, "0", "7//cuda//0", true),
        (3, "0", "7//cuda//0", true),
        (3, "1", "cuda//1", true),
        (3, "2:3", "cuda//2:3", false),
    ] {
        let text = format!(
            "[rank3]: torch.distributed.DistBackendError: [{place}] is setting up NCCL communicator and \
             retrieving ncclUniqueId from [0] via c10d key-value store by key '{key}', but \
             store->get('{key}') got error: {timeout}, keys: /default_pg/0//{keys}\n"
        );
        assert_eq!(members(&text), [[0u32; 0]; 0]);
        let (ranks, of) = (vec![place], 0);
        let waits = PrintedNote::AwaitedId { ranks, of };
        assert_eq!(notes(&text).contains(&waits), noted, "{keys}");
    }
    // It waits itself.
    let text = text + &caught(0, 1, "ALLREDUCE", 1);
    assert!(!entries(&text).contains(&(0, 0, String::new())));
}

#[test]
fn ranks_that_do_not_come_to_the_start_are_those_that_print_nothing_if_all_others_do() {
    let line = |rank: u32, barrier: u32, have_come: u32| {
        format!(
            "INFO: Waiting in store based barrier to initialize process group for rank: {rank}, key: \
             store_based_barrier_key:{barrier} (world_size=4, worker_count={have_come}, \
             timeout=0:30:00)\n"
        )
    };
    let minute = |barrier, have_come| {
        let lines = [0, 1, 3].map(|rank| line(rank, barrier, have_come));
        lines.concat().repeat(6)
    };
    let text = line(0, 1, 1) + &minute(1, 3);
    let waiting = |rank| (rank, 1, "INIT_PROCESS_GROUP".to_owned());
    let missing = [waiting(0), waiting(1), waiting(3), (2, 0, String::new())];
    assert_eq!(entries(&text), missing);
    let gave_up = text.replace("Waiting in", "Timed out initializing process group in");
    assert_eq!(
        entries(&gave_up.lines().rev().take(3).collect::<Vec<_>>().join("\n")),
        missing
    );
    // Of one that has come no line is there; the last has come; they wait for the next group; all came;
    // they do not wait for long.
    let done = "INFO: Rank 0: Completed store-based barrier for key:store_based_barrier_key:1 with 4 nodes.";
    for text in [
        minute(1, 4),
        text.clone() + &line(2, 1, 4),
        text.clone() + &line(0, 2, 2),
        text.clone() + done + "\n" + &line(0, 2, 1),
        line(0, 1, 3) + &line(1, 1, 3) + &line(3, 1, 3),
    ] {
        assert!(WatchdogLog::read(text.as_bytes(), None).unwrap().is_some());
        assert_eq!(entries(&text), []);
    }
}

#[test]
fn barriers_of_later_groups_are_no_start() {
    let line = |rank: u32, barrier: u32, joined: &str| {
        format!(
            "INFO: Waiting in store based barrier to initialize process group for rank: {rank}, key: \
             store_based_barrier_key:{barrier} (world_size=3, {joined}=2, timeout=0:30:00)\n"
        )
    };
    let minute = |barrier, joined| {
        [0, 2]
            .map(|rank| line(rank, barrier, joined))
            .concat()
            .repeat(6)
    };
    // Since PyTorch 2.1 only those that are in it come.
    assert_eq!(members(&minute(0, "num_workers_joined")), [[0, 1, 2]]);
    let raised = "[rank0]: torch.distributed.DistStoreError: Timed out initializing process group in store based \
                  barrier on rank 0, for key: store_based_barrier_key:0 (world_size=2, num_workers_joined=1, error=x)";
    assert_eq!(members(raised), [[0, 1]]);
    let later = minute(5, "num_workers_joined");
    assert!(WatchdogLog::read(later.as_bytes(), None).unwrap().is_none());
    let barrier = |rank| (rank, 5, "BARRIER".to_owned());
    assert_eq!(
        entries(&minute(5, "worker_count")),
        [barrier(0), barrier(2), (1, 4, String::new())]
    );
}

#[test]
fn who_was_killed_behind_the_end_of_a_job_did_not_end_it() {
    let killed =
        "mpirun noticed that process rank 7 with PID 9 on node a exited on signal 9 (Killed).\n";
    let ends = |text: &str| {
        let inputs = inputs(text);
        inputs.iter().any(|it| matches!(it, Input::Killed { .. }))
    };
    assert!(ends(killed));
    let cancelled = "slurmstepd: error: *** STEP 34.0 ON a CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME \
                     LIMIT ***\nsrun: error: a: task 0: Killed\n";
    let text = cancelled.to_owned() + killed;
    assert!(!ends(&text));
    let notes = notes(&text);
    assert!(notes.contains(&PrintedNote::Cancelled("TIME LIMIT".to_owned())));
    assert!(
        !notes
            .iter()
            .any(|it| matches!(it, PrintedNote::SlurmTasks { .. }))
    );
}

#[test]
fn sizes_of_an_all_gather_show_how_many_ranks_there_are() {
    let line = "[rank1]:[E1 0:0:0 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation \
                timeout: WorkNCCL(SeqNum=7, OpType=_ALLGATHER_BASE, NumelIn=2, NumelOut=8, Timeout(ms)=6) \
                ran for 600021 milliseconds before timing out.\n";
    let text = [line, &status(1, DEFAULT, 1, 7, 6)].concat();
    assert_eq!(members(&text), [[0, 1, 2, 3]]);
}

#[test]
fn processes_that_share_a_gpu_are_noted() {
    let said = "Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 4000\n";
    let shared = PrintedNote::SharedGpu {
        ranks: [0, 2],
        device: "4000".to_owned(),
    };
    for before in ["", "a:1:2 [0] init.cc:500 NCCL WARN "] {
        assert_eq!(
            notes(&[before, said].concat()),
            std::slice::from_ref(&shared)
        );
    }
}

#[test]
fn models_that_ddp_finds_unlike_are_noted() {
    let text = "[rank3]: RuntimeError: DDP expects same model across all ranks, but Rank 3 has 2247 \
                params, while rank 0 has inconsistent 12 params.\n";
    assert_eq!(
        notes(text),
        [PrintedNote::UnlikeModels([(3, 2247), (0, 12)])]
    );
}

#[test]
fn collectives_that_nccl_finds_unlike_are_noted() {
    let text = "init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls \
                at and around rank 39. You can use NCCL_DEBUG=INFO\n";
    assert_eq!(notes(text), [PrintedNote::Mismatched(vec![39])]);
}

#[test]
fn a_peer_that_has_gone_is_noted() {
    let text = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by \
                peer [10.0.0.7]:10895";
    assert_eq!(notes(text), [PrintedNote::LostPeer("10.0.0.7".to_owned())]);
}

#[test]
fn what_nccl_warns_of_is_noted_by_host() {
    let warns = |host: &str, what: &str| format!("{host}:9:13 [4] a.cc:1 NCCL WARN {what}\n");
    let no_answer = |host, peer| {
        let what =
            format!("NET/IB : Got completion from peer {peer}<4> with status=12 opcode=0 len=0");
        warns(host, &what)
    };
    let event = |event: &str| warns("a", &format!("NET/IB : mlx5_3:1 Got async event : {event}"));
    let log = [
        event("port active"),
        no_answer("b", "10.0.0.1"),
        no_answer("a", "10.0.0.2"),
        no_answer("c", "10.0.0.2"),
        warns("b", "Cuda failure 'out of memory'"),
        warns("b", "Cuda failure 'unspecified launch failure'"),
    ]
    .concat();
    let failed = |peer: &str, hosts: &[&str]| NcclNote::FailedRequest {
        peer: peer.to_owned(),
        status: 12,
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
    };
    let device = NcclNote::Device {
        host: "b".to_owned(),
        device: 4,
        error: "out of memory".to_owned(),
    };
    let quoted = "[E ProcessGroupNCCL.cpp:460] To avoid data inconsistency, we are taking the entire process \
                  down. what(): NCCL error: remote process exited, NCCL version 2.14.3 Last error: NET/IB : \
                  Got completion from peer 10.0.0.7<39138> with error 12, opcode 0, len 0";
    assert_eq!(notes(quoted), [PrintedNote::Nccl(failed("10.0.0.7", &[]))]);
    let others = [
        device,
        failed("10.0.0.2", &["a", "c"]),
        failed("10.0.0.1", &["b"]),
    ];
    assert_eq!(notes(&log), others.map(PrintedNote::Nccl));
    for (events, came_back) in [
        (&["port error"][..], false),
        (&["port error", "port active"], true),
        (&["port error", "port active", "port error"], false),
    ] {
        let down = NcclNote::LinkDown {
            host: "a".to_owned(),
            port: Some("mlx5_3:1".to_owned()),
            came_back,
        };
        let log: String = events.iter().map(|it| event(it)).collect();
        assert_eq!(notes(&log), [PrintedNote::Nccl(down)], "{log}");
    }
    let gone = warns(
        "a",
        "socketProgress: Connection closed by remote peer b.example<51159>",
    );
    assert_eq!(
        notes(&gone),
        [PrintedNote::LostPeer("b.example".to_owned())]
    );
}

#[test]
fn calls_that_pytorch_prints_are_notes() {
    let call = |rank: u32, number: u64| {
        format!(
            "[I ProcessGroupWrapper.cpp:562] [Rank {rank}] Running collective: \
             CollectiveFingerPrint(SequenceNumber={number}, OpType=ALLREDUCE, TensorShape=[], \
             TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default)))\n"
        )
    };
    let log = [call(0, 7), call(1, 7), call(0, 8), call(2, 8)].concat();
    let calls = [(vec![1], "ALLREDUCE #7"), (vec![0, 2], "ALLREDUCE #8")];
    let calls = calls.map(|(ranks, call)| (ranks, call.to_owned()));
    assert_eq!(notes(&log), [PrintedNote::LastCalls(calls.into())]);
    // Which group each line is of is unknown: nobody is accused.
    assert_eq!(entries(&log), []);
}

#[test]
fn ranks_that_a_barrier_waited_for_are_a_note() {
    let missed = |log: &str| match &notes(log)[..] {
        [PrintedNote::MissedBarrier(ranks)] => ranks.clone(),
        notes => panic!("{notes:?}"),
    };
    let one = "[rank0]:[E1 0:0:0 ProcessGroupGloo.cpp:143] [Rank 0]: Rank 1 failed to pass \
               monitoredBarrier in 1800000 ms";
    assert_eq!(missed(one), [1]);
    let several = "RuntimeError: [Rank 0]: Ranks 1, 12 failed to pass monitoredBarrier in 5000 ms\n\
                   [rank2]: RuntimeError: Rank 2 successfully reached monitoredBarrier, but received \
                   errors while waiting for send/recv from rank 0.";
    assert_eq!(missed(several), [1, 12]);
}

#[test]
fn a_heartbeat_that_timed_out_is_a_watchdog_that_is_stuck() {
    let timed_out = |rank: u32| {
        format!(
            "[rank{rank}]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank {rank}] Heartbeat monitor timed \
             out! Process will be terminated after dumping debug info. workMetaList_.size()=84\n"
        )
    };
    let log = [timed_out(1), timed_out(0)].concat();
    assert_eq!(notes(&log), [0, 1].map(PrintedNote::StuckWatchdog));
}

#[test]
fn other_launchers_say_what_ended() {
    let mpi =
        "mpirun noticed that process rank 7 with PID 12 on node a exited on signal 9 (Killed).";
    let killed = inputs(mpi).into_iter().find_map(|input| match input {
        Input::Killed { rank, signal } => Some((rank, signal)),
        _ => None,
    });
    assert_eq!(killed, Some((7, Some(9))));
    // The command is that of another process than the one that ended.
    let deepspeed = "[2026-01-02 03:04:05,678] [ERROR] [launch.py:321:sigkill_handler] ['python', '-u', \
                     'a.py', '--local_rank=3'] exits with return code = -9\n";
    assert_eq!(notes(deepspeed), [PrintedNote::EndedSomewhere(-9)]);
    let slurm = "srun: error: node7: tasks 4-6: Terminated\n\
                 srun: error: node7: task 3: Out Of Memory\n\
                 srun: error: Unable to create step\n";
    let [tasks, host, how] = ["3", "node7", "Out Of Memory"].map(str::to_owned);
    assert_eq!(notes(slurm), [PrintedNote::SlurmTasks { tasks, host, how }]);
}

#[test]
fn a_rank_whose_watchdog_gave_up_is_not_waited_for() {
    let signal = "[rank2]:[E1 0:0:0 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a \
                  dump signal due to a collective timeout from  rank 1 and we will try our best to dump the \
                  debug info. Last enqueued NCCL work: 79, last completed NCCL work: 78.";
    assert_eq!(members(signal), [vec![0, 2]]);
}

#[test]
fn silence_proves_nothing_where_lines_that_are_alike_are_left_out() {
    let of_ray = "[repeated 6x across cluster] (Ray deduplicates logs by default.)\n";
    let log = status(9, DEFAULT, 9, 79, 78).replace('\n', of_ray);
    assert_eq!(members(&log), [vec![9]]);
    assert!(notes(&log).contains(&PrintedNote::LeavesOut));
}

#[test]
fn jobs_of_several_actors_in_one_log_are_several() {
    let log = [
        "(Actor pid=3, ip=10.0.0.7) ",
        &status(1, DEFAULT, 1, 5919, 5918),
        "(Critic pid=4) ",
        &status(0, DEFAULT, 0, 120, 120),
    ];
    assert_eq!(entries(&log.concat()), [(1, 5919, String::new())]);
    // What stands behind the name of an actor is read as ever.
    let warns = "(Actor pid=3) a:9:13 [4] a.cc:1 NCCL WARN Cuda failure 'out of memory'\n";
    assert_eq!(notes(warns).len(), 1);
}

/// No other group has come as far as that of all ranks.
#[test]
fn timeouts_of_one_large_number_are_of_the_group_of_all_ranks() {
    let sides = |number: u64| {
        let log = [
            caught(0, number, "BROADCAST", 5056),
            status(0, DEFAULT, 0, number, number - 1),
            caught(1, number, "ALLREDUCE", 2106),
        ];
        members(&log.concat())
    };
    assert_eq!(sides(80078), [vec![0, 1]]);
    assert_eq!(sides(7), [[0], [1]].map(Vec::from));
}

#[test]
fn a_traceback_that_a_rank_prints_of_another_is_of_that_one() {
    let of_another = "[rank0]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException \
                      ranks:dict_keys([3])\n[rank0]: Traceback (most recent call last): (RANK 3)\n[rank0]: \
                      OSError: [Errno 28] No space left on device\n";
    let raised = PrintedNote::Raised {
        rank: 3,
        error: "OSError: [Errno 28] No space left on device".to_owned(),
    };
    assert_eq!(notes(of_another), [raised]);
}
