//! The plugin in its process: where it records, when it does not, and what is left of it.

use std::fs;
use std::ptr;
use std::thread;

use ring::{Identity, process_started};

use crate::driver::{Introduction, Plugin, Sandbox, alone, alone_with, look, only};

#[test]
fn the_table_says_who_writes_it() {
    alone(|sandbox| {
        Plugin::open(6).init(Introduction::of(1));
        let pid = std::process::id();
        let reader = sandbox.reader();
        let host = reader.identity().host.clone();
        assert!(!host.is_empty());
        let identity = Identity {
            job: "job".into(),
            host,
            rank: 5,
            local_rank: 1,
            world_size: 8,
            pid,
            started: process_started(pid).unwrap(),
            ..Identity::default()
        };
        assert_eq!(reader.identity(), &identity);
        let name = format!("rank5.{pid}.live");
        assert_eq!(
            reader.path().file_name().unwrap().to_str(),
            Some(name.as_str())
        );
    });
}

#[test]
fn switched_off_it_asks_for_nothing_and_writes_nothing() {
    alone_with(&[("LAGGARD_ENABLE", "0")], |sandbox| {
        calls_in_vain(sandbox);
        assert_eq!(
            fs::read_dir(&sandbox.root).unwrap().count(),
            0,
            "not even a directory"
        );
    });
}

#[test]
fn without_a_directory_it_asks_for_nothing() {
    alone_with(&[("LAGGARD_JOB", "..")], |sandbox| {
        // A file where the job's directory should be.
        let file = sandbox.root.join("job..");
        fs::write(&file, "").unwrap();
        let (_, mask) = Plugin::open(6).init(Introduction::of(1));
        assert_eq!(mask, 0);
        fs::remove_file(file).unwrap();
        calls_in_vain(sandbox);
    });
}

/// NCCL may call all the same; every call is answered, and nothing is written.
fn calls_in_vain(sandbox: &Sandbox) {
    for version in 1..=7 {
        let plugin = Plugin::open(version);
        let (context, mask) = plugin.init(Introduction::of(1));
        assert_eq!(mask, 0);
        let coll = plugin.start(context, &plugin.coll(1, 0));
        assert!(coll.is_null());
        plugin.record(coll, 9);
        plugin.stop(coll);
        plugin.finalize(context);
    }
    assert!(sandbox.tables().is_empty());
}

#[test]
fn a_size_that_is_none_leaves_the_default() {
    for size in ["100", "many", "-1", "131072"] {
        alone_with(&[("LAGGARD_NCCL_OPERATIONS", size)], |sandbox| {
            Plugin::open(6).init(Introduction::of(1));
            let table = fs::metadata(&sandbox.tables()[0]).unwrap();
            assert_eq!(table.len(), 12_800 + 4096 * 320 + 1024 * 64);
        });
    }
}

#[test]
fn a_forked_child_records_nothing() {
    alone(|sandbox| {
        let plugin = Plugin::open(6);
        let (context, _) = plugin.init(Introduction::of(1));
        let coll = plugin.start(context, &plugin.coll(1, 0));
        in_child(|| {
            plugin.stop(coll);
            assert!(plugin.start(context, &plugin.coll(1, 1)).is_null());
            assert_eq!(plugin.init(Introduction::of(2)).1, 0);
            plugin.finalize(context);
        });
        let mut reader = sandbox.reader();
        assert_eq!(only(&mut reader).sequence, 0, "the parent's goes on");
        assert_eq!(
            (reader.communicators().len(), reader.is_closed()),
            (1, false)
        );
        assert_eq!(sandbox.tables().len(), 1);
        plugin.stop(coll);
        assert_eq!(look(&mut reader).ended.len(), 1);
    });
}

/// Runs `body` in a child and waits for it to end well.
fn in_child(body: impl FnOnce()) {
    // SAFETY: the child runs `body` only, and ends without what its parent would do.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            libc::_exit(i32::from(result.is_err()));
        }
        let mut status = -1;
        libc::waitpid(child, &raw mut status, 0);
        assert_eq!(status, 0, "the child ended well");
    }
}

#[test]
fn a_stuck_transfer_shows_and_outlives_its_killed_process() {
    alone(|sandbox| {
        // SAFETY: the child calls the plugin, and then waits to be killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            get_stuck();
        }
        let stuck = loop {
            let tables = sandbox.tables();
            if let Some(operation) = tables.first().and_then(|_| {
                let operation = look(&mut sandbox.reader()).in_progress.pop()?;
                let flow = operation.flows.first()?;
                (flow.transmitted > 1).then_some(operation)
            }) {
                break operation;
            }
            thread::yield_now();
        };
        let flow = stuck.flows[0];
        assert_eq!((flow.ready, flow.transmitted, flow.done), (2, 2, 1));
        // SAFETY: the child is ours and not yet reaped.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, ptr::null_mut(), 0);
        }
        let mut reader = sandbox.reader();
        assert_eq!(only(&mut reader), stuck);
        assert_eq!(process_started(reader.identity().pid), None);
        assert!(!reader.is_closed());
    });
}

/// Begins a send of four transfers, of which the second never arrives.
fn get_stuck() -> ! {
    let plugin = Plugin::open(6);
    let (context, _) = plugin.init(Introduction::of(1));
    let coll = plugin.start(context, &plugin.coll(1, 0));
    let flow = plugin.start(context, &plugin.proxy_op(coll, 0, 2, true, 4));
    plugin.stop(coll);
    plugin.record(flow, 19);
    plugin.send_transfer(context, flow, 0);
    let step = plugin.start(context, &plugin.proxy_step(flow, 1));
    plugin.record(step, 8);
    plugin.record(step, 20);
    plugin.record_with(step, 9, [1000, 0]);
    loop {
        // SAFETY: the call touches nothing.
        unsafe { libc::pause() };
    }
}
