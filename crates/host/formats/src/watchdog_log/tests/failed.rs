//! Ranks that failed by themselves, and those that waited for them in gloo.

use super::*;

/// As torchrun's summary has them: a rank and its exit code, the first that failed last.
fn ended(all: &[(u32, i32)]) -> String {
    let mut text =
        "E1129 api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 10)\nFailures:\n".to_owned();
    for (at, (rank, code)) in all.iter().enumerate() {
        if at + 1 == all.len() {
            text.push_str("Root Cause (first observed failure):\n");
        }
        text.push_str(&format!(
            "[{at}]:\n  time      : 2026-11-29_06:44:04\n  rank      : {rank} (local_rank: {rank})\n  \
             exitcode  : {code} (pid: 1{rank})\n"
        ));
    }
    text
}

fn dead(text: &str) -> Option<u32> {
    inputs(text).into_iter().find_map(|input| match input {
        Input::Killed { rank, .. } => Some(rank),
        _ => None,
    })
}

fn gave_up(rank: u32) -> String {
    format!(
        "[rank{rank}]: RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 15000ms \
         for recv operation to complete\n"
    )
}

fn lost(rank: u32) -> String {
    format!(
        "[rank{rank}]: RuntimeError: [/gloo/pair.cc:561] Connection closed by peer [127.0.0.1]:5.\n"
    )
}

#[test]
fn ranks_that_gave_up_are_victims_and_the_one_that_printed_nothing_is_noted() {
    let summary = ended(&[(1, 1), (3, 1), (2, -15), (0, 1)]);
    let text = [gave_up(0), gave_up(3), gave_up(1), summary].concat();
    assert_eq!(dead(&text), None);
    let noted = Input::Note(SourceNote::Printed(PrintedNote::GaveUpInGloo {
        ranks: vec![0, 1, 3],
        silent: vec![2],
        places: Vec::new(),
    }));
    assert!(inputs(&text).contains(&noted));
}

#[test]
fn ranks_that_wait_in_gloo_at_different_lines_are_sides() {
    let waited = |rank: u32, line: u32| {
        let frame = format!("[rank{rank}]:   File \"/job/train.py\", line {line}, in <module>\n");
        [frame, gave_up(rank)].concat()
    };
    let noted = |text: &str| {
        let noted = inputs(text).into_iter().find_map(|input| match input {
            Input::Note(SourceNote::Printed(PrintedNote::GaveUpInGloo { places, .. })) => {
                Some(places)
            }
            _ => None,
        });
        noted.unwrap()
    };
    let apart = [waited(0, 34), waited(1, 38), waited(3, 34)].concat();
    let sides = [
        (vec![0, 3], "train.py:34".to_owned()),
        (vec![1], "train.py:38".to_owned()),
    ];
    assert_eq!(noted(&apart), sides);
    assert_eq!(noted(&[waited(0, 34), waited(1, 34)].concat()), []);
}

#[test]
fn who_exits_with_a_code_of_its_own_has_ended_for_itself() {
    let others = |code| ended(&[(0, -15), (2, -15), (1, code)]);
    assert_eq!(dead(&[lost(0), lost(2), others(3)].concat()), Some(1));
    // Its peers say that it was the first, and an exception of its own would stand here.
    assert_eq!(dead(&[lost(0), lost(2), others(1)].concat()), Some(1));
    assert_eq!(dead(&[lost(0), lost(1), others(1)].concat()), None);
    // An exception that was not printed here may be of another rank's end, and all misread arguments.
    assert_eq!(dead(&others(1)), None);
    assert_eq!(dead(&others(2)), None);
    assert_eq!(dead(&[lost(1), others(3)].concat()), None);
    assert_eq!(dead(&ended(&[(0, 3), (2, -15), (1, 3)])), None);
    // Of another host than the first.
    assert_eq!(dead(&ended(&[(4, -15), (5, 3)])), None);
}

#[test]
fn an_error_before_a_rank_knows_its_number_is_of_the_one_that_failed() {
    let traceback = "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    \
         import flash\nModuleNotFoundError: No module named 'flash'\n";
    let launcher = "Traceback (most recent call last):\n  File \"torchrun\", line 8, in <module>\n    \
         main()\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n";
    let text = [traceback, &ended(&[(0, -15), (1, 1)]), launcher].concat();
    assert_eq!(dead(&text), Some(1));
    let raised = Input::Note(SourceNote::Printed(PrintedNote::Raised {
        rank: 1,
        error: "ModuleNotFoundError: No module named 'flash', at a.py:3".to_owned(),
    }));
    assert!(inputs(&text).contains(&raised));
    // Two have failed, and nobody knows whose it is.
    assert_eq!(dead(&[traceback, &ended(&[(0, 1), (1, 1)])].concat()), None);
}

#[test]
fn an_error_of_a_loaders_worker_is_quoted_with_what_it_says() {
    let text = "[rank2]: Traceback (most recent call last):\n[rank2]:   File \"a.py\", line 44, in <module>\n\
         [rank2]: ValueError: Caught ValueError in DataLoader worker process 0.\n\
         [rank2]: Original Traceback (most recent call last):\n[rank2]:   File \"a.py\", line 14, in __getitem__\n\
         [rank2]:   File \"/v/site-packages/tar.py\", line 9, in read\n\
         [rank2]: ValueError: corrupt sample 80 in shard-0007.tar\n";
    assert_eq!(dead(text), Some(2));
    let raised = Input::Note(SourceNote::Printed(PrintedNote::Raised {
        rank: 2,
        error: "ValueError: corrupt sample 80 in shard-0007.tar, in DataLoader worker process 0, at a.py:14"
            .to_owned(),
    }));
    assert!(inputs(text).contains(&raised));
}

/// As rank 3 prints an error that it raised in this file.
fn raised_in(file: &str, error: &str) -> String {
    format!(
        "[rank3]: Traceback (most recent call last):\n[rank3]:   File \"{file}\", line 30, in fetch\n[rank3]: \
         {error}\n"
    )
}

#[test]
fn an_error_of_a_connection_is_a_ranks_own_if_it_talks_to_no_other_rank() {
    let fetches = |error| dead(&raised_in("/job/data.py", error));
    for error in [
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='a'): Read timed out.",
        "OSError: [Errno 110] Connection timed out: '/data'",
        "KeyError: 'timeout'",
        "wandb.errors.CommError: Run initialization has timed out after 90.0 sec.",
        "RuntimeError: DataLoader timed out after 5 seconds",
    ] {
        assert_eq!(fetches(error), Some(3), "{error}");
    }
    // PyTorch raises it out of native code wherever a collective was issued.
    assert_eq!(fetches("RuntimeError: Connection reset by peer"), None);
    assert_eq!(
        fetches("ConnectionResetError: [Errno 104] Connection reset by peer"),
        None
    );
    let refused = "ConnectionRefusedError: [Errno 111] Connection refused";
    for file in [
        "/v/torch/distributed/rpc/api.py",
        "/usr/lib/python3.11/multiprocessing/connection.py",
    ] {
        assert_eq!(dead(&raised_in(file, refused)), None, "{file}");
    }
    assert_eq!(dead(&format!("[rank3]: {refused}\n")), None);
    // An only rank's log says it without its name.
    let text = raised_in("/job/data.py", refused).replace("[rank3]: ", "");
    let summary = ended(&[(0, -15), (3, 1)]);
    assert_eq!(dead(&[text, summary].concat()), Some(3));
}

#[test]
fn an_exception_that_python_ignores_ends_no_process() {
    let ignored = "Exception ignored in: <function Loader.__del__ at 0x7f>\nTraceback (most recent call \
                   last):\n  File \"a.py\", line 3, in __del__\nAssertionError: can only test a child process\n";
    let labelled = |text: &str| {
        format!(
            "[rank3]: {}\n",
            text.trim_end().replace('\n', "\n[rank3]: ")
        )
    };
    assert_eq!(dead(&[labelled(ignored), lost(0)].concat()), None);
    let summary = ended(&[(0, -15), (3, 1)]);
    assert_eq!(dead(&[ignored, &summary].concat()), None);
    let of_thread = labelled(&ignored.replace(
        "ignored in: <function Loader.__del__ at 0x7f>",
        "in thread Thread-4:",
    ));
    assert_eq!(dead(&[of_thread, lost(0)].concat()), None);
    // What ended it stands before.
    let raised = raised_in("a.py", "ValueError: nan loss");
    assert_eq!(dead(&[&*raised, &*labelled(ignored)].concat()), Some(3));
    let raised = raised.replace("[rank3]: ", "");
    assert_eq!(dead(&[&*raised, ignored, &summary].concat()), Some(3));
}

#[test]
fn labels_of_launchers_name_the_rank_of_an_error() {
    for label in ["[rank=3] ", "[1,3]<stderr>: ", "[1,3]<stderr>:", "[rank3]:"] {
        let text = raised_in("a.py", "ValueError: nan loss").replace("[rank3]: ", label);
        assert_eq!(dead(&text), Some(3), "{label}");
    }
    let several = "[1,2,3]<stderr>:ValueError: nan loss\n";
    assert_eq!(dead(&[several, &lost(0)].concat()), None);
}

#[test]
fn an_error_that_no_line_names_is_noted_beside_what_else_a_log_says() {
    let error = raised_in("a.py", "ValueError: nan loss").replace("[rank3]: ", "");
    let raised = PrintedNote::RaisedSomewhere("ValueError: nan loss, at a.py:30".to_owned());
    assert!(notes(&[&*lost(0), &*error].concat()).contains(&raised));
    // What those wait in that are known follows from it.
    let waits = |rank: u32| status(rank, DEFAULT, rank, 9, 8);
    let has_death = |text: &str| report(&[&read(text)], 0, &mut |_| {}).has_death;
    let all = [waits(0), waits(1)].concat();
    assert!(has_death(&[&*all, &*error].concat()));
    assert!(!has_death(&all));
    assert!(!has_death(&[&*waits(0), &*waits(2), &*error].concat()));
    // A script's output is no log of a job.
    assert!(WatchdogLog::read(error.as_bytes(), None).unwrap().is_none());
}

#[test]
fn of_what_slurm_says_of_a_step_and_of_its_job_the_reason_counts() {
    let cancelled = |text: &str| {
        notes(text).into_iter().find_map(|note| match note {
            PrintedNote::Cancelled(why) => Some(why),
            _ => None,
        })
    };
    let step = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-29T06:44:04 ***\n";
    let job = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-29T06:44:05 DUE TO PREEMPTION ***\n";
    assert_eq!(
        cancelled(&[step, job].concat()),
        Some("PREEMPTION".to_owned())
    );
    assert_eq!(
        cancelled(&[job, step].concat()),
        Some("PREEMPTION".to_owned())
    );
    assert_eq!(cancelled(step), Some(String::new()));
    // srun ends a step in which a task has failed.
    let failed = "srun: error: n1: task 3: Segmentation fault\n";
    assert_eq!(cancelled(&[failed, step].concat()), None);
}

#[test]
fn signals_to_torchrun_have_numbers_or_names() {
    for received in ["15", "Signals.SIGTERM"] {
        let line = format!(
            "W1129 06:44:04 api.py:852] Received {received} death signal, shutting down workers\n"
        );
        assert_eq!(notes(&line), [PrintedNote::ToLauncher(15)]);
    }
}

#[test]
fn ranks_that_a_report_of_a_desync_names_are_noted() {
    for (line, ranks) in [
        (
            "\t - [5] finished collective #282, but didn't join collective #283 (count from 1)",
            vec![5],
        ),
        (
            "- To our best knowledge, ranks [2, 3] are the lagging ranks that caused this timeout. They never \
             joined any collectives",
            vec![2, 3],
        ),
    ] {
        assert_eq!(
            notes(line),
            [PrintedNote::NeverJoined(ranks.clone())],
            "{line}"
        );
        let waits = status(0, DEFAULT, 0, 283, 282);
        let entered = entries(&[&*waits, line].concat());
        let behind = entered.iter().filter(|(_, number, _)| *number == 282);
        assert_eq!(behind.map(|it| it.0).collect::<Vec<_>>(), ranks);
    }
}

#[test]
fn ranks_up_to_one_that_others_heard_of_are_not_recorded() {
    let caught = status(0, DEFAULT, 0, 9, 8);
    let heard = "[rank0]:[E1 ProcessGroupNCCL.cpp:1] Received a dump signal due to a collective timeout from  \
                 rank 4 and we will try our best to dump\n";
    let uncounted = notes(&[&*caught, "\n", heard].concat());
    assert!(
        uncounted.contains(&PrintedNote::Uncounted(vec![1, 2, 3])),
        "{uncounted:?}"
    );
}

#[test]
fn mpich_says_which_process_ended() {
    let process = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK 3 PID 2210 RUNNING AT node4\n";
    let killed = [process, "=   KILLED BY SIGNAL: 9 (Killed)\n"].concat();
    let killed = inputs(&killed);
    let (rank, signal) = (3, Some(9));
    assert!(killed.contains(&Input::Killed { rank, signal }));
    let code = notes(&[process, "=   EXIT CODE: 1\n"].concat());
    let with_it = Vec::new();
    assert_eq!(
        code,
        [PrintedNote::FirstEnded {
            rank,
            code: 1,
            with_it
        }]
    );
}

#[test]
fn labels_that_agree_with_ranks_name_the_rank_of_an_error() {
    let raised = raised_in("a.py", "ValueError: nan loss");
    for label in ["N: ", "[defaultN]:", "[trainerN]: "] {
        let of = |rank: u32, text: &str| {
            let label = label.replace('N', &rank.to_string());
            let lines = text.lines().map(|line| [&*label, line, "\n"].concat());
            lines.collect::<String>()
        };
        let error = of(3, &raised.replace("[rank3]: ", ""));
        assert_eq!(
            dead(&[&*error, &*of(0, &lost(0))].concat()),
            Some(3),
            "{label}"
        );
        // A number of a task or of a process on its host.
        let text = [&*error, &*of(0, &lost(0)), &*of(1, &lost(5))].concat();
        assert_eq!(dead(&text), None, "{label}");
        let raised = PrintedNote::RaisedSomewhere("ValueError: nan loss, at a.py:30".to_owned());
        assert!(notes(&text).contains(&raised), "{label}");
    }
    let of_mpi = raised.replace("[rank3]", "[1,mpirank:3,algo-2]<stderr>");
    assert_eq!(dead(&of_mpi), Some(3));
}

#[test]
fn what_ranks_wait_in_follows_from_errors_of_several_others() {
    let waits = status(0, DEFAULT, 0, 9, 8);
    let raised = |rank: u32| {
        raised_in("a.py", "OutOfMemoryError: CUDA out of memory").replace('3', &rank.to_string())
    };
    let text = [waits, raised(1), raised(2)].concat();
    assert_eq!(dead(&text), None);
    assert!(report(&[&read(&text)], 0, &mut |_| {}).has_death);
}

#[test]
fn a_task_that_crashed_is_what_the_others_wait_for() {
    let all = [status(0, DEFAULT, 0, 9, 8), status(1, DEFAULT, 1, 9, 8)].concat();
    let has_death = |how: &str| {
        let task = format!("srun: error: n1: task 2: {how}\n");
        report(&[&read(&[&*all, &*task].concat())], 0, &mut |_| {}).has_death
    };
    assert!(has_death("Out Of Memory"));
    assert!(has_death("Segmentation fault (core dumped)"));
    // So do ranks that gave up.
    assert!(!has_death("Exited with exit code 1"));
}

#[test]
fn who_ended_first_and_printed_nothing_is_waited_for() {
    let all = [status(0, DEFAULT, 0, 9, 8), status(1, DEFAULT, 1, 9, 8)].concat();
    let text = [all, ended(&[(0, -6), (1, -6), (2, 1)])].concat();
    assert_eq!(members(&text), [[0, 1, 2]]);
    assert!(notes(&text).contains(&PrintedNote::Uncounted(vec![2])));
}

#[test]
fn ranks_that_pytorch_compares_with_one_are_of_one_group() {
    let compared = |rank: u32, number: u64| {
        let call = |rank: u32, op: &str| {
            format!(
                "Rank {rank} is running collective: CollectiveFingerPrint(SequenceNumber={number}, OpType={op}, \
                 TensorShape=[10], TensorDtypes=Float)"
            )
        };
        format!(
            "[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. {}, but {}.\n",
            call(rank, "ALLREDUCE"),
            call(2, "BROADCAST")
        )
    };
    let text = [compared(0, 12), compared(1, 12), compared(3, 12)].concat();
    assert_eq!(members(&text), [[0, 1, 2, 3]]);
    assert_eq!(members(&[text, compared(0, 15)].concat()).len(), 2);
}
