//! `laggard analyze` on what NCCL itself tells of a job: replies of RAS, logs of Inspector.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use insta::assert_snapshot;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn analyze(path: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    command.arg("analyze").arg(path).current_dir(root());
    command
        .env_remove("LAGGARD_CONFIG")
        .output()
        .expect("laggard runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// What is said about a path, named without the folder it is in.
fn verdict(path: &Path) -> String {
    let output = analyze(path);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (_, said) = text(&output.stdout).split_once(": ").map_or_else(
        || panic!("a verdict"),
        |(place, said)| (place.to_owned(), said.to_owned()),
    );
    said
}

fn of_reply(name: &str) -> String {
    verdict(&root().join("testdata/ras").join(name))
}

/// What is answered to a file with these bytes in it.
fn complaint(name: &str, bytes: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    fs::write(&path, bytes).expect("a file");
    let output = analyze(&path);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    assert_eq!(text(&output.stdout), "");
    text(&output.stderr).replace(folder.path().to_str().expect("UTF-8"), "FOLDER")
}

#[test]
fn a_rank_that_launched_nothing_more() {
    assert_snapshot!(of_reply("missing.json"), @"
    4 ranks, one moment

    WARNING  possible hang: rank 2 never entered ALLREDUCE #641 of group comm 0xfa93daea854b060b (ranks 0-1 wait in it)
      host  10.0.0.2
      why   ranks 0-1 entered ALLREDUCE #641 of group comm 0xfa93daea854b060b; ranks 2-3 did not
      why   rank 3 entered ALLGATHER #78 of group comm 0xb3398875b8b2a063; rank 2 did not
      next  look at the stack of rank 2; the others wait for it and are fine
    note: launched collectives were counted at one moment, when ranks of a healthy job may differ too; a second reply some seconds later shows whether they still differ
    ");
}

#[test]
fn a_rank_whose_process_is_dead() {
    assert_snapshot!(of_reply("dead.json"), @"
    3 ranks, one moment

    CRITICAL  hang: rank 2 is missing from group comm 0xfa93daea854b060b (ranks 0-1,3 are there); rank 2 has ended
      host  10.0.0.2
      why   ranks 0-1,3 are in group comm 0xfa93daea854b060b; rank 2 could not be reached
      why   rank 3 is in group comm 0xb3398875b8b2a063; rank 2 could not be reached
      next  look at the output of rank 2: its process has ended
    note: comm 0xfa93daea854b060b: its rank 3 reports an error of another process (async_error 6)
    note: rank 2 (process 5101 on 10.0.0.2) is considered dead by NCCL's RAS
    ");
}

#[test]
fn a_rank_that_does_not_answer() {
    assert_snapshot!(of_reply("silent.json"), @"
    3 ranks, one moment

    CRITICAL  hang: rank 1 is missing from group comm 0xfa93daea854b060b (ranks 0,2-3 are there)
      host  10.0.0.1
      why   ranks 0,2-3 are in group comm 0xfa93daea854b060b; rank 1 could not be reached
      next  look at the stack of rank 1; the others wait for it and are fine
    note: rank 1 (process 4102 on 10.0.0.1) does not answer NCCL's RAS: it is stopped, or its host cannot be reached
    ");
}

/// A report of RAS on one communicator, with these errors in it.
fn report(fault: &str, errors: &str) -> String {
    format!(
        "$ ncclras -v\nNCCL version 2.24.3 compiled with CUDA 12.6\n\nJob summary\n===========\n\n\
         Communicators... (0.01s)\n=============\n\nGroup     Comms     Nodes     Ranks     Ranks     Ranks    \
         Status  Errors\n    #  in group  per comm  per node  per comm  in group\n    0         1         4         \
         8        32        32   RUNNING  {fault}\n\nErrors\n======\n\n{errors}\nWarnings\n========\n"
    )
}

fn of_report(fault: &str, errors: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("reply.txt");
    fs::write(&path, report(fault, errors)).expect("a file");
    verdict(&path)
}

/// Before NCCL 2.26 missing ranks are listed without their processes.
#[test]
fn missing_ranks_of_early_reports_are_named() {
    let of = |count, list| {
        let errors = format!(
            "INCOMPLETE\n  Missing communicator data from {count} job process\n\n#0-0 (cf264af53edbe986) \
             INCOMPLETE\n  Missing communicator data from {count}\n  {list}\n"
        );
        of_report("INCOMPLETE", &errors)
    };
    let said = of("1 rank", "The missing rank: 21");
    assert!(
        said.contains("rank 21 is missing from group comm 0xcf264af53edbe986"),
        "{said}"
    );
    let said = of("2 ranks", "The missing ranks: 21,22");
    assert!(said.contains("ranks 21-22 are missing"), "{said}");
    let said = of("16 ranks", "");
    assert!(
        said.contains("NO VERDICT") && said.contains("16 ranks of comm"),
        "{said}"
    );
}

#[test]
fn a_report_of_which_something_is_wrong_does_not_say_that_nothing_is() {
    let said = of_report(
        "ERROR",
        "#0-0 (cf264af53edbe986) ERROR\n  Asynchronous error on 1 rank\n  Rank 9 reported Remote process error \
         -- GPU 1 managed by process 323033 on node 172.16.64.211\n",
    );
    let note = "its rank 9 reported Remote process error";
    assert!(said.contains("NO VERDICT") && said.contains(note), "{said}");
    assert!(of_report("MISMATCH", "").contains("NO VERDICT"));
    // Of devices it says nothing.
    assert!(of_report("OK", "").contains("does not show whether their devices finish them"));
}

#[test]
fn ranks_that_launched_more_since_an_earlier_reply_are_not_stuck() {
    let reply = fs::read_to_string(root().join("testdata/ras/healthy.json")).expect("a reply");
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("1.json"), reply.replace("640", "639")).expect("a file");
    fs::write(folder.path().join("2.json"), &reply).expect("a file");
    let said = verdict(folder.path());
    assert!(said.contains("NOTHING STUCK"), "{said}");
    // Of one that stays behind a second reply is not asked for.
    for name in ["1.json", "2.json"] {
        fs::copy(
            root().join("testdata/ras/missing.json"),
            folder.path().join(name),
        )
        .expect("a file");
    }
    let said = verdict(folder.path());
    assert!(
        said.contains("CRITICAL") && !said.contains("one moment,"),
        "{said}"
    );
}

/// NCCL 2.28.9 writes no comma behind the last number of a missing rank.
#[test]
fn a_missing_rank_without_its_comma_is_read() {
    let whole = fs::read_to_string(root().join("testdata/ras/silent.json")).expect("a reply");
    let (before, status) = whole.rsplit_once("\"status\"").expect("a missing rank");
    let damaged = format!(
        "{}\n \"status\"{status}",
        before.trim_end().trim_end_matches(',')
    );
    assert!(serde_json::from_str::<serde_json::Value>(&damaged).is_err());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("silent.json");
    fs::write(&path, damaged).expect("a file");
    assert_eq!(verdict(&path), of_reply("silent.json"));
}

/// That RAS counts all ranks does not say that those which printed nothing entered nothing.
#[test]
fn a_reply_in_which_all_is_well_accuses_nobody_beside_a_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = "[rank3]:[E1 0:0:0 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank 3]  failure \
               detected by watchdog at work sequence id: 641 PG status: last enqueued work: 641, last completed \
               work: 640\n";
    fs::write(folder.path().join("job.log"), log).expect("a file");
    let reply = root().join("testdata/ras/healthy.json");
    fs::copy(reply, folder.path().join("reply.json")).expect("a reply");
    let said = verdict(folder.path());
    assert!(said.contains("for ranks 0-2 (not recorded here)"), "{said}");
}

#[test]
fn where_ranks_are_is_shown_where_only_stacks_are_known() {
    let folder = tempfile::tempdir().expect("a folder");
    for (rank, frames) in [
        "get (queue.py:170)\n    load (data.py:7)",
        "all_reduce (torch/distributed/a.py:9)",
    ]
    .into_iter()
    .enumerate()
    {
        let text = format!(
            "Process 4{rank}: python train.py\nPython v3.11.2 (/usr/bin/python3.11)\n\nThread 4{rank} (idle): \
             \"MainThread\"\n    {frames}\n"
        );
        fs::write(folder.path().join(format!("rank{rank}.txt")), text).expect("a file");
    }
    let said = verdict(folder.path());
    assert!(said.contains("NO VERDICT"), "{said}");
    assert!(
        said.contains("rank 0 is in get (queue.py:170) < load (data.py:7)"),
        "{said}"
    );
    assert!(said.contains("rank 1 is in all_reduce (a.py:9)"), "{said}");
}

#[test]
fn a_rank_that_launched_something_else() {
    assert_snapshot!(of_reply("crossed.json"), @"
    4 ranks, one moment

    WARNING  possible hang: rank 3 entered BROADCAST where the others entered ALLREDUCE #11 of group comm 0xfa93daea854b060b
      host  10.0.0.2
      why   ranks 0-2 entered ALLREDUCE #11 of group comm 0xfa93daea854b060b; rank 3 entered BROADCAST
      next  make rank 3 issue the same collectives in the same order as the others
    note: launched collectives were counted at one moment, when ranks of a healthy job may differ too; a second reply some seconds later shows whether they still differ
    ");
}

#[test]
fn two_ranks_that_each_left_one_out() {
    let said = of_reply("circle.json");
    let sentence = "ranks 2-3 wait for one another: ranks 0-1,3 in ALLREDUCE #11 of group \
        comm 0xfa93daea854b060b without rank 2; ranks 0-2 in BROADCAST #6 of group \
        comm 0xfa93daea854b060b without rank 3";
    assert!(said.contains(sentence), "{said}");
}

#[test]
fn healthy_replies_have_no_incident() {
    assert_snapshot!(of_reply("healthy.json"), @"
    4 ranks, one moment

    NO VERDICT  no rank was found that the others wait for; this does not prove that nothing is stuck
    note: all ranks have launched the same number of collectives, which does not show whether their devices finish them
    ");
    assert_snapshot!(of_reply("healthy.txt"), @"
    8 ranks, one moment

    NO VERDICT  no rank was found that the others wait for; this does not prove that nothing is stuck
    note: all ranks have launched the same number of collectives, which does not show whether their devices finish them
    ");
}

#[test]
fn the_report_in_words() {
    assert_snapshot!(of_reply("missing.txt"), @"
    8 ranks, one moment

    WARNING  possible hang: rank 5 never entered ALLGATHER #641 of group comm 0xfa93daea854b060b (ranks 0-4,6-7 wait in it)
      host  10.137.190.124
      why   ranks 0-4,6-7 entered ALLGATHER #641 of group comm 0xfa93daea854b060b; rank 5 did not
      next  look at the stack of rank 5; the others wait for it and are fine
    note: launched collectives were counted at one moment, when ranks of a healthy job may differ too; a second reply some seconds later shows whether they still differ
    ");
    // Who is behind is not listed where it is most of them.
    let said = of_reply("behind.txt");
    assert!(
        said.contains("ranks 0-1,4-7 never entered COLLECTIVE #641"),
        "{said}"
    );
    let said = of_reply("dead.txt");
    assert!(
        said.contains("rank 5 is missing from group comm 0xfa93daea854b060b"),
        "{said}"
    );
    assert!(said.contains("rank 5 has ended"), "{said}");
}

#[test]
fn a_reply_joins_the_stacks_of_its_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let reply = fs::read_to_string(root().join("testdata/ras/missing.json")).expect("a reply");
    // As a client wrote it down that kept the acknowledgements.
    let reply = format!("SERVER PROTOCOL 2\nOK\nOK\n{reply}");
    fs::write(folder.path().join("ras.json"), reply).expect("a file");
    let stack = r#"[{"pid": 7, "os_thread_id": 7, "thread_name": "MainThread", "active": true,
        "frames": [{"name": "read_shard", "filename": "/job/dataset.py", "line": 77}]}]"#;
    fs::write(folder.path().join("stack_2.json"), stack).expect("a file");
    let said = verdict(folder.path());
    assert!(
        said.contains("rank 2 never entered ALLREDUCE #641"),
        "{said}"
    );
    assert!(
        said.contains("; rank 2 is in read_shard (dataset.py:77)"),
        "{said}"
    );
}

#[test]
fn a_reply_joins_the_dumps_of_its_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::copy(
        root().join("testdata/ras/missing.json"),
        folder.path().join("ras.json"),
    )
    .expect("a reply");
    for rank in 0..4 {
        let number = if rank == 2 { 6 } else { 7 };
        let dump = format!(
            r#"{{"version": "2.10", "pg_config": {{}}, "entries": [{{"process_group":
            ["0", "default_pg"], "collective_seq_id": {number}, "state": "scheduled",
            "profiling_name": "nccl:all_reduce"}}]}}"#
        );
        fs::write(folder.path().join(format!("dump_{rank}.json")), dump).expect("a file");
    }
    let said = verdict(folder.path());
    assert!(
        said.contains("rank 2 never entered ALLREDUCE #7 of group default"),
        "{said}"
    );
    assert!(
        said.contains("entered ALLGATHER #78 of group comm 0xb3398875b8b2a063"),
        "{said}"
    );
}

/// A second reply in which the rank behind got on.
#[test]
fn ranks_that_move_between_two_replies_are_not_stuck() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = fs::read_to_string(root().join("testdata/ras/missing.json")).expect("a reply");
    let later = first.replace("06:30:00", "06:30:30");
    let counts = [
        ("640", "700"),
        ("641", "701"),
        ("642", "702"),
        ("77", "87"),
        ("78", "88"),
    ];
    let later = counts.iter().fold(later, |text, (old, new)| {
        text.replace(&format!("\": {old}"), &format!("\": {new}"))
    });
    fs::write(folder.path().join("1.json"), later).expect("a file");
    fs::write(folder.path().join("0.json"), first).expect("a file");
    let said = verdict(folder.path());
    assert!(said.contains("NOTHING STUCK"), "{said}");
    assert!(said.contains("moved between the replies"), "{said}");
}

#[test]
fn replies_that_make_no_sense() {
    let reply = fs::read_to_string(root().join("testdata/ras/missing.json")).expect("a reply");
    let with = |old: &str, new: &str| complaint("ras.json", &reply.replacen(old, new, 1));
    assert_snapshot!(with("\"rank\": 3", "\"rank\": 4"), @"
    laggard: FOLDER/ras.json, at communicators[0].ranks[3].rank: rank 4 in a communicator of 4
      correct the values at that place and run again
    ");
    assert_snapshot!(with("\"rank\": 3", "\"rank\": 2"), @"
    laggard: FOLDER/ras.json, at communicators[0].ranks[3].rank: rank 2 is listed twice
      correct the values at that place and run again
    ");
    assert_snapshot!(with("\"rank\": 3", "\"rank\": -3"), @"
    laggard: FOLDER/ras.json, at communicators[0].ranks[3].rank: invalid value: integer `-3`, expected u32
      correct the values at that place and run again
    ");
    assert_snapshot!(with("0x27a079b828ff1a75", "twenty"), @r#"
    laggard: FOLDER/ras.json, at communicators[1].hash: "twenty" is not a hexadecimal number such as 0x1f
      correct the values at that place and run again
    "#);
    assert_snapshot!(with("\"AllReduce\": 640", "\"AllReduce\": 1e99"), @"
    laggard: FOLDER/ras.json, at communicators[0].ranks[2].collective_counts.AllReduce: invalid type: floating point `1e+99`, expected u64
      correct the values at that place and run again
    ");
    let clash = reply
        .replace("0xb3398875b8b2a063", "0x27a079b828ff1a75")
        .replace("11b5", "11b3");
    assert_snapshot!(complaint("ras.json", &clash), @"
    laggard: FOLDER/ras.json, at communicators[2].hash: comm 0x27a079b828ff1a75 (0x9b1d35a6c2e84f01:0x11b3) is listed twice
      correct the values at that place and run again
    ");
    assert_snapshot!(complaint("ras.json", &reply[..2000]), @"
    laggard: FOLDER/ras.json, line 14, column 279, at communicators[1].ranks[0].collective_counts.?: EOF while parsing a string
      write the file again: it is cut off or damaged at that place
    ");
    // Of a billion ranks claimed only those are read that are told of.
    let claimed = reply.replacen("\"size\": 4", "\"size\": 1000000000", 1);
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("ras.json"), claimed).expect("a file");
    assert!(verdict(folder.path()).contains("rank 2 never entered ALLREDUCE #641"));
    let report = fs::read_to_string(root().join("testdata/ras/missing.txt")).expect("a report");
    assert_snapshot!(complaint("ras.txt", &report[..report.len() / 2]), @"
    laggard: FOLDER/ras.txt, at line 15: the report ends before its warnings: ask for it again
      correct the values at that place and run again
    ");
    let claimed = report.replace("8         8   RUNNING", "1000000000  8   RUNNING");
    assert_snapshot!(complaint("ras.txt", &claimed), @"
    laggard: FOLDER/ras.txt, at line 16: a communicator of 1000000000 ranks
      correct the values at that place and run again
    ");
    assert_snapshot!(complaint("ras.txt", &report.replace("Rank 5", "Rank 8")), @"
    laggard: FOLDER/ras.txt, at line 27: rank 8 in a communicator of 8
      correct the values at that place and run again
    ");
}

#[test]
fn a_communicator_that_does_not_exist_hides_no_other() {
    let report = fs::read_to_string(root().join("testdata/ras/missing.txt")).expect("a report");
    // As NCCL 2.27 writes it.
    let row =
        "    1         1         0         0         0         0    NOCOMM  INCOMPLETE\n\nErrors\n";
    let garbage = "#1-0 (93d7000200000001) INCOMPLETE\n  Missing communicator data from 255 ranks\n  \
                   Rank 1057455228 --\n\nWarnings\n";
    let report = report
        .replace("\nErrors\n", row)
        .replace("Warnings\n", garbage);
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("ras.txt"), report).expect("a file");
    assert!(verdict(folder.path()).contains("rank 5 never entered ALLGATHER #641"));
}

#[test]
fn a_report_without_its_first_lines_is_read() {
    let report = fs::read_to_string(root().join("testdata/ras/missing.txt")).expect("a report");
    for beginning in ["Job summary", "Communicators...", "Group  "] {
        let at = report.find(beginning).expect("its beginning");
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("ras.txt"), &report[at..]).expect("a file");
        assert!(verdict(folder.path()).contains("rank 5 never entered ALLGATHER #641"));
    }
}

#[test]
fn what_a_job_printed_behind_a_reply_without_a_fault_counts() {
    let report = fs::read_to_string(root().join("testdata/ras/healthy.txt")).expect("a report");
    let log = fs::read_to_string(root().join("testdata/watchdog/behind.log")).expect("a log");
    let of_log = verdict(&root().join("testdata/watchdog/behind.log"));
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("paste.txt"), report + &log).expect("a file");
    let of_both = verdict(folder.path());
    assert_eq!(of_both.lines().nth(2), of_log.lines().nth(2));
    assert!(of_both.contains("CRITICAL"), "{of_both}");
}

/// A communicator of the made-up job: its hash and the ranks of the job in it.
const WORLD: (&str, &[u32]) = ("0xfa93daea854b060b", &[0, 1, 2, 3]);
const PAIRS: [(&str, &[u32]); 2] = [
    ("0x27a079b828ff1a75", &[0, 1]),
    ("0xb3398875b8b2a063", &[2, 3]),
];

/// Milliseconds a rank is in the operation of a number.
type Busy = fn(rank: u32, number: u64) -> f64;

/// The logs of a job of four ranks on two hosts, 60 operations of each communicator.
fn logs(folder: &Path, world_ms: Busy, pair_ms: Busy) {
    for rank in 0..4u32 {
        let (host, pid) = (rank / 2 + 1, 4100 + rank);
        let mut log = String::new();
        let mut write = |(hash, members): (&str, &[u32]), op: &str, number, ms: f64| {
            let own = members
                .iter()
                .position(|member| *member == rank)
                .expect("a member");
            // Some microseconds of noise.
            let noise_us = (number * 7 + u64::from(rank) * 13) % 11;
            let busy_us = (ms * 1e3) as u64 + noise_us;
            let size = members.len();
            writeln!(
                log,
                "{{\"header\":{{\"id\":\"{hash}\",\"comm_name\":\"unknown\",\"rank\":{own},\
                 \"n_ranks\":{size},\"nnodes\":2}},\"metadata\":{{\
                 \"inspector_output_format_version\":\"v4.2\",\"git_rev\":\"\",\
                 \"rec_mechanism\":\"nccl_profiler_interface\",\"dump_timestamp_us\":{number},\
                 \"hostname\":\"node{host}\",\"pid\":{pid}}},\"coll_perf\":{{\"coll\":\"{op}\",\
                 \"coll_sn\":{number},\"coll_msg_size_bytes\":67108864,\
                 \"coll_exec_time_us\":{busy_us},\"coll_timing_source\":\"kernel_gpu\",\
                 \"coll_algobw_gbs\":1.0,\"coll_busbw_gbs\":1.5,\"new_in_v4.9\":[1]}}}}"
            )
            .expect("text");
        };
        for number in 0..60 {
            write(WORLD, "AllReduce", number, world_ms(rank, number));
            let pair = PAIRS[rank as usize / 2];
            write(pair, "AllGather", number, pair_ms(rank, number));
        }
        let name = format!("node{host}-pid{pid}.log");
        fs::write(folder.join(name), log).expect("a log");
    }
}

fn of_logs(world_ms: Busy, pair_ms: Busy) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    logs(folder.path(), world_ms, pair_ms);
    verdict(folder.path())
}

#[test]
fn a_rank_that_arrives_late() {
    // From number 20 on the others wait 20 ms for rank 2, and rank 3 in the pair as well.
    let late = |rank: u32, number| if rank == 2 || number < 20 { 5.0 } else { 25.0 };
    let pair = |rank: u32, number| if rank == 3 && number >= 20 { 14.0 } else { 2.0 };
    assert_snapshot!(of_logs(late, pair), @"
    4 ranks, completed collectives

    CRITICAL  rank 2 is late to ALLREDUCE of group comm 0xfa93daea854b060b: 20.0 ms an operation, 82 % of collective time since #20
      host  node2
      why   in 40 of 40 operations of ALLREDUCE of group comm 0xfa93daea854b060b the others waited 20.0 ms longer than rank 2: the last to arrive waits least; 800.0 ms in total
      why   in 40 of 40 operations of ALLGATHER of group comm 0xb3398875b8b2a063 the others waited 12.0 ms longer than rank 2: the last to arrive waits least; 480.0 ms in total
      next  look at what rank 2 does before the collective: input, compute, host; the others wait for it and are fine
    note: 180 collectives were timed on more than one rank and compared
    ");
}

#[test]
fn healthy_logs_have_no_incident() {
    assert_snapshot!(of_logs(|_, _| 5.0, |_, _| 2.0), @"
    4 ranks, completed collectives

    NOTHING FOUND  no rank is constantly late and no communicator became slow
    note: 180 collectives were timed on more than one rank and compared
    ");
    // Ranks that take turns in being late.
    let turns = |rank: u32, number: u64| {
        if u64::from(rank) == number % 4 {
            5.0
        } else {
            9.0
        }
    };
    assert!(of_logs(turns, |_, _| 2.0).contains("NOTHING FOUND"));
}

#[test]
fn a_communicator_that_became_slow() {
    let slow = |_, number| if number < 40 { 5.0 } else { 20.0 };
    assert_snapshot!(of_logs(slow, |_, _| 2.0), @"
    4 ranks, completed collectives

    CRITICAL  ALLREDUCE of group comm 0xfa93daea854b060b moves 3.355 GB/s since #40, 13.419 GB/s before, 75 % of collective time; no rank in particular is late
      host  node1, node2
      why   median of windows of similar operations, against earlier healthy windows, measured by the last of ranks 0-3 to arrive
      next  look at links and network cards of these hosts, and at other jobs on them
    note: 180 collectives were timed on more than one rank and compared
    ");
}

#[test]
fn a_log_that_is_being_written_is_read_up_to_its_last_line() {
    let folder = tempfile::tempdir().expect("a folder");
    logs(folder.path(), |_, _| 5.0, |_, _| 2.0);
    let path = folder.path().join("node2-pid4103.log");
    let log = fs::read_to_string(&path).expect("a log");
    fs::write(&path, &log[..log.len() * 9 / 10]).expect("a log");
    assert_snapshot!(verdict(folder.path()), @"
    4 ranks, completed collectives

    NOTHING FOUND  no rank is constantly late and no communicator became slow
    note: logs with an incomplete last line, because they were still being written: 1
    note: 174 collectives were timed on more than one rank and compared
    note: the last ALLGATHER of group comm 0xb3398875b8b2a063 in a log is #59; the logs of rank 3 end earlier, at #53 or later: these ranks stopped before the others, or their logs were written earlier
    note: the last ALLREDUCE of group comm 0xfa93daea854b060b in a log is #59; the logs of rank 3 end earlier, at #53 or later: these ranks stopped before the others, or their logs were written earlier
    ");
}

#[test]
fn logs_of_some_ranks_and_times_of_the_host() {
    let folder = tempfile::tempdir().expect("a folder");
    logs(folder.path(), |_, _| 5.0, |_, _| 2.0);
    fs::remove_file(folder.path().join("node2-pid4103.log")).expect("a log");
    let path = folder.path().join("node2-pid4102.log");
    let log = fs::read_to_string(&path).expect("a log");
    fs::write(&path, log.replace("kernel_gpu", "collective_cpu")).expect("a log");
    let said = verdict(folder.path());
    assert!(
        said.contains("communicators lack logs of some ranks"),
        "{said}"
    );
    assert!(
        said.contains("120 collectives were timed by the host"),
        "{said}"
    );
}

#[test]
fn logs_that_make_no_sense() {
    let folder = tempfile::tempdir().expect("a folder");
    logs(folder.path(), |_, _| 5.0, |_, _| 2.0);
    let log = fs::read_to_string(folder.path().join("node1-pid4100.log")).expect("a log");
    let with = |old: &str, new: &str| complaint("node1.log", &log.replace(old, new));
    assert_snapshot!(with("\"v4.2\"", "\"v5.0\""), @r#"
    laggard: FOLDER/node1.log, at line 1, metadata.inspector_output_format_version: "v5.0" is not v4.x, the only version that laggard reads
      correct the values at that place and run again
    "#);
    assert_snapshot!(with("\"n_ranks\":2", "\"n_ranks\":0"), @"
    laggard: FOLDER/node1.log, at line 2, header.rank: rank 0 in a communicator of 0
      correct the values at that place and run again
    ");
    assert_snapshot!(with("\"id\":\"0xfa93daea854b060b\"", "\"id\":\"\""), @r#"
    laggard: FOLDER/node1.log, at line 1, header.id: "" is not a hexadecimal number such as 0x1f
      correct the values at that place and run again
    "#);
    assert_snapshot!(with("\"coll_sn\":1,", "\"coll_sn\":\"1\","), @r#"
    laggard: FOLDER/node1.log, at line 3, coll_perf.coll_sn: invalid type: string "1", expected u64
      correct the values at that place and run again
    "#);
    assert_snapshot!(with("\"coll_exec_time_us\":5", "\"coll_exec_time_us\":-5"), @"
    laggard: FOLDER/node1.log, at line 1, coll_perf.coll_exec_time_us: -5000 µs is not a duration
      correct the values at that place and run again
    ");
    assert_snapshot!(with("\"coll_sn\":1,", "\"coll_sn\":1,,"), @"
    laggard: FOLDER/node1.log, at line 3, coll_perf.?: key must be a string
      correct the values at that place and run again
    ");
    assert_snapshot!(with("\"hostname\":\"node1\"", "\"hostname\":\"node1"), @"
    laggard: FOLDER/node1.log, at line 1, metadata.?: expected `,` or `}`
      correct the values at that place and run again
    ");
}
