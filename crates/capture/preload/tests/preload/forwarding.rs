//! Calls go where they would have gone, with what they were given, and so do answers.

use std::ffi::CStr;
use std::process::Command;
use std::thread;

use crate::driver::{Library, alone, look};

/// Each collective, NCCL's name for it, and its arguments for communicator 0 and count 33.
type Case = (&'static CStr, &'static str, [u64; 8]);
const COLLECTIVES: [Case; 8] = [
    (c"all_reduce", "ncclAllReduce", [1, 2, 33, 7, 4, 0, 8, 0]),
    (c"all_gather", "ncclAllGather", [1, 2, 33, 7, 0, 8, 0, 0]),
    (
        c"reduce_scatter",
        "ncclReduceScatter",
        [1, 2, 33, 7, 4, 0, 8, 0],
    ),
    (c"broadcast", "ncclBroadcast", [1, 2, 33, 7, 4, 0, 8, 0]),
    (c"bcast", "ncclBcast", [1, 33, 7, 4, 0, 8, 0, 0]),
    (c"reduce", "ncclReduce", [1, 2, 33, 7, 4, 5, 0, 8]),
    (c"send_to", "ncclSend", [1, 33, 9, 3, 0, 8, 0, 0]),
    (c"receive_from", "ncclRecv", [1, 33, 9, 3, 0, 8, 0, 0]),
];

/// Calls everything, and checks that `nccl` was given what it should have been.
fn call_all(torch: Library, nccl: Library) {
    for (function, answer) in [
        (c"init_rank", 0),
        (c"init_rank_config", 7),
        (c"init_rank_scalable", 5),
    ] {
        nccl.answer(answer);
        let (_, answered) = torch.init(function, 'a');
        assert_eq!(answered, answer);
        let (name, arguments) = nccl.last();
        let in_id = [u64::from(b'a'), 42, 1];
        match name.as_str() {
            "ncclCommInitRank" => {
                assert_eq!(arguments[1..], [&[4], &in_id[..], &[0; 3]].concat());
            }
            "ncclCommInitRankConfig" => {
                assert_eq!(arguments[1..], [&[4], &in_id[..], &[9, 0, 0]].concat());
            }
            _ => {
                assert_eq!(name, "ncclCommInitRankScalable");
                assert_eq!(arguments[1..4], [4, 1, 2]);
                assert_eq!(arguments[5..], [9, 0, 0]);
            }
        }
    }
    nccl.answer(0);
    let comm = torch.init_rank('b');
    for (function, name, arguments) in COLLECTIVES {
        for answer in [0, 1, 2, 6, 7] {
            nccl.answer(answer);
            assert_eq!(torch.to(function, comm, 33, 3), answer);
        }
        let here = comm.addr() as u64;
        let is_comm = |at: usize| match name {
            "ncclAllReduce" | "ncclReduceScatter" | "ncclBroadcast" => at == 5,
            "ncclReduce" => at == 6,
            _ => at == 4,
        };
        let expected: Vec<u64> = (0..8)
            .map(|at| if is_comm(at) { here } else { arguments[at] })
            .collect();
        assert_eq!(nccl.last(), (name.to_owned(), expected.try_into().unwrap()));
    }
    nccl.answer(0);
    assert_eq!(
        (torch.call(c"group_start"), torch.call(c"group_end")),
        (0, 0)
    );
    nccl.answer(3);
    for function in [c"destroy", c"comm_abort"] {
        assert_eq!(torch.with(function, comm), 3);
        assert_eq!(nccl.last().1[0], comm.addr() as u64);
    }
}

#[test]
fn a_library_that_is_linked_with_nccl_gets_its_answers() {
    alone(|sandbox| {
        let (torch, nccl) = sandbox.linked();
        call_all(torch, nccl);
    });
}

#[test]
fn a_library_that_has_nccl_in_itself_gets_its_own_answers() {
    alone(|sandbox| {
        let bundled = sandbox.bundled();
        call_all(bundled, bundled);
    });
}

#[test]
fn of_two_nccls_each_is_called_by_whom_it_belongs_to() {
    alone(|sandbox| {
        let (torch, nccl) = sandbox.linked();
        let bundled = sandbox.bundled();
        let (ours, theirs) = (torch.init_rank('a'), bundled.init_rank('b'));
        for _ in 0..10 {
            torch.collective(c"all_reduce", ours, 1);
            torch.call(c"group_start");
            bundled.call(c"group_start");
            bundled.collective(c"all_reduce", theirs, 1);
            bundled.call(c"group_end");
            torch.call(c"group_end");
        }
        assert_eq!((nccl.calls(), bundled.calls()), (31, 31));
        assert_eq!(look(&mut sandbox.reader()).ended.len(), 20);
    });
}

#[test]
fn calls_from_many_places_and_threads_arrive() {
    alone(|sandbox| {
        let (torch, nccl) = sandbox.linked();
        let comms: Vec<_> = ('a'..='h')
            .map(|name| torch.init_rank(name).addr())
            .collect();
        thread::scope(|scope| {
            for comm in &comms {
                scope.spawn(move || {
                    let comm = std::ptr::without_provenance_mut(*comm);
                    for _ in 0..60 {
                        for (function, ..) in COLLECTIVES {
                            torch.to(function, comm, 1, 3);
                        }
                    }
                });
            }
        });
        assert!(nccl.calls() > 0);
        let mut reader = sandbox.reader();
        let state = look(&mut reader);
        assert_eq!((state.lost, reader.dropped()), (0, 0));
        assert_eq!(state.ended.len(), 8 * 60 * 8);
    });
}

#[test]
fn a_library_that_is_closed_and_opened_again_still_finds_nccl() {
    alone(|sandbox| {
        for _ in 0..3 {
            let (torch, nccl) = sandbox.linked();
            let comm = torch.init_rank('a');
            assert_eq!(torch.collective(c"all_reduce", comm, 33), 0);
            assert_eq!(nccl.last().0, "ncclAllReduce");
            torch.with(c"destroy", comm);
            torch.close();
            nccl.close();
        }
        assert_eq!(look(&mut sandbox.reader()).ended.len(), 3);
    });
}

#[test]
fn without_nccl_the_process_ends_as_it_would_without_us() {
    alone(|sandbox| {
        let source = "#include <dlfcn.h>
            int main(int count, char **names) {
                void *torch = dlopen(names[1], RTLD_LAZY);
                return ((int (*)(void *, long))dlsym(torch, \"all_reduce\"))(0, 1);
            }";
        let (file, program) = (sandbox.root.join("main.c"), sandbox.root.join("main"));
        std::fs::write(&file, source).unwrap();
        let built = Command::new("cc")
            .arg("-o")
            .args([&program, &file])
            .status();
        assert!(built.unwrap().success());
        let torch = sandbox.root.join("liborphan.so");
        let end = |command: &mut Command| {
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            (
                output.status.code(),
                said.contains("undefined symbol: ncclAllReduce"),
            )
        };
        let with = end(Command::new(&program).arg(&torch));
        assert_eq!(with, (Some(127), true));
        assert_eq!(
            end(Command::new(&program).arg(&torch).env_remove("LD_PRELOAD")),
            with
        );
    });
}
