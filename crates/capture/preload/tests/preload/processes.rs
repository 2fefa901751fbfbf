//! The library in its process: where it records, and when it does not.

use std::fs;

use ring::process_started;

use crate::driver::{Sandbox, alone, alone_with, look};

#[test]
fn the_table_says_who_writes_it() {
    alone(|sandbox| {
        assert!(
            sandbox.tables().is_empty(),
            "nothing before the first communicator"
        );
        sandbox.linked().0.init_rank('a');
        let reader = sandbox.reader();
        let (identity, pid) = (reader.identity(), std::process::id());
        assert_eq!(
            (identity.rank, identity.world_size, identity.pid),
            (5, 8, pid)
        );
        assert_eq!(identity.started, process_started(pid).unwrap());
        let name = format!("rank5.{pid}.calls");
        assert_eq!(
            reader.path().file_name().unwrap().to_str(),
            Some(name.as_str())
        );
    });
}

#[test]
fn switched_off_it_forwards_and_writes_nothing() {
    alone_with(&[("LAGGARD_ENABLE", "0")], |sandbox| {
        calls_unrecorded(sandbox);
        assert!(!sandbox.root.join("job").exists(), "not even a directory");
    });
}

#[test]
fn without_a_directory_it_forwards() {
    alone_with(&[("LAGGARD_JOB", "..")], |sandbox| {
        // A file where the job's directory should be.
        fs::write(sandbox.root.join("job.."), "").unwrap();
        calls_unrecorded(sandbox);
    });
}

fn calls_unrecorded(sandbox: &Sandbox) {
    let (torch, nccl) = sandbox.linked();
    let comm = torch.init_rank('a');
    torch.call(c"group_start");
    torch.collective(c"all_reduce", comm, 33);
    torch.call(c"group_end");
    torch.with(c"destroy", comm);
    assert_eq!(nccl.calls(), 5);
    assert!(sandbox.tables().is_empty());
}

#[test]
fn a_forked_child_forwards_and_records_nothing() {
    alone(|sandbox| {
        let (torch, nccl) = sandbox.linked();
        let comm = torch.init_rank('a');
        torch.collective(c"all_reduce", comm, 1);
        // SAFETY: the child calls the library only, and ends without what its parent does.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                torch.collective(c"all_reduce", comm, 1);
                torch.with(c"destroy", comm);
                torch.init_rank('b');
                libc::_exit(nccl.calls());
            }
            let mut status = -1;
            libc::waitpid(child, &raw mut status, 0);
            assert_eq!(libc::WEXITSTATUS(status), 5, "all calls arrived");
        }
        let mut reader = sandbox.reader();
        assert_eq!(
            (look(&mut reader).ended.len(), sandbox.tables().len()),
            (1, 1)
        );
        assert_eq!(
            (reader.communicators().len(), reader.is_closed()),
            (1, false)
        );
        torch.collective(c"all_reduce", comm, 1);
        assert_eq!(look(&mut reader).ended.len(), 1, "the parent's go on");
    });
}

#[test]
fn what_a_killed_process_was_in_stays() {
    alone(|sandbox| {
        let (torch, _) = sandbox.linked();
        // SAFETY: the child calls the library, and is killed by itself.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let comm = torch.init_rank('a');
                torch.call(c"group_start");
                torch.collective(c"all_reduce", comm, 33);
                libc::raise(libc::SIGKILL);
            }
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        let mut reader = sandbox.reader();
        let state = look(&mut reader);
        assert_eq!(
            (state.in_progress.len(), state.in_progress[0].bytes),
            (1, 132)
        );
        assert_eq!(process_started(reader.identity().pid), None);
    });
}
