//! Work requests between what stands in for NCCL's network and for libibverbs.

use std::ffi::{CStr, c_int};

use model::RankNs;
use ring::{QUEUE_PAIRS, QueuePair, RequestReader};

use crate::driver::{Library, Sandbox, alone, alone_with};

/// NCCL's network, with a card opened.
struct Net(Library);

impl Net {
    fn open(sandbox: &Sandbox) -> Self {
        let net = Library::open(&sandbox.root.join("libnet.so"));
        assert_eq!(net.call(c"net_open"), 0);
        Self(net)
    }

    fn connect(&self, at: c_int, all_signaled: bool) -> c_int {
        self.0.numbers(c"net_connect", [at, all_signaled.into(), 0])
    }

    fn send(&self, at: c_int, count: c_int, bytes: c_int) -> c_int {
        self.0.numbers(c"net_send", [at, count, bytes])
    }

    fn poll(&self, let_them: c_int) -> c_int {
        self.0.numbers(c"net_poll", [let_them, 0, 0])
    }

    fn set(&self, name: &CStr, value: c_int) {
        self.0.name_and_number(c"net_set", name, value);
    }
}

fn reader(sandbox: &Sandbox) -> RequestReader {
    RequestReader::open(&sandbox.files("requests")[0]).unwrap()
}

fn only(sandbox: &Sandbox) -> QueuePair {
    let mut read = reader(sandbox).read(RankNs(u64::MAX));
    assert_eq!(read.len(), 1);
    read.remove(0)
}

#[test]
fn requests_are_counted_as_they_are_posted_and_complete() {
    alone(|sandbox| {
        let net = Net::open(sandbox);
        let number = net.connect(0, false);
        let pair = only(sandbox);
        assert_eq!(
            (pair.device.as_str(), pair.port, pair.open),
            ("fake_0", 1, true)
        );
        assert_eq!(i64::from(pair.number), i64::from(number));
        let mut here = [0; 16];
        here[15] = 1;
        assert_eq!(pair.peer, (pair.number + 1, here));
        for _ in 0..3 {
            assert_eq!(net.send(0, 8, 1001), 0);
        }
        let pair = only(sandbox);
        assert_eq!((pair.posted, pair.posted_bytes), (24, 24_024));
        assert_eq!((pair.completed, pair.completed_bytes), (0, 0));
        assert_eq!(net.poll(2), 2);
        let pair = only(sandbox);
        assert_eq!((pair.completed, pair.completed_bytes), (16, 16_016));
        assert_eq!(net.poll(5), 1);
        let pair = only(sandbox);
        assert_eq!((pair.completed, pair.failed), (24, 0));
        let busy_ns = pair.busy_ns;
        assert!(busy_ns > 0 && busy_ns < u64::MAX / 2, "it is idle again");
        assert_eq!(net.0.numbers(c"net_destroy", [0; 3]), 0);
        assert_eq!(net.0.call(c"net_close"), 0);
        assert!(!only(sandbox).open);
        assert_eq!(net.0.name_and_number(c"net_get", c"fake_closed", 0), 1);
        assert_eq!(
            (reader(sandbox).faults(), reader(sandbox).dropped()),
            (0, 0)
        );
    });
}

#[test]
fn each_request_completes_by_itself_where_all_are_signaled() {
    alone(|sandbox| {
        let net = Net::open(sandbox);
        net.connect(0, true);
        // The card signals the last only: that is its word against the queue pair's.
        net.send(0, 1, 10);
        net.send(0, 1, 10);
        assert_eq!(net.poll(1), 1);
        assert_eq!((only(sandbox).posted, only(sandbox).completed), (2, 1));
    });
}

#[test]
fn what_the_card_refuses_is_not_in_flight() {
    alone(|sandbox| {
        let net = Net::open(sandbox);
        net.connect(0, false);
        net.send(0, 4, 100);
        net.set(c"fake_takes", 3);
        assert_eq!(net.send(0, 5, 100), libc::ENOMEM);
        let pair = only(sandbox);
        assert_eq!((pair.posted, pair.posted_bytes), (7, 700));
        net.set(c"fake_takes", 100);
        net.send(0, 1, 100);
        assert_eq!(net.poll(9), 2);
        let pair = only(sandbox);
        assert_eq!(
            (pair.posted, pair.completed, pair.completed_bytes),
            (8, 8, 800)
        );
    });
}

#[test]
fn failures_are_counted_with_their_status() {
    alone(|sandbox| {
        let net = Net::open(sandbox);
        net.connect(0, false);
        net.set(c"fake_status", 12);
        net.send(0, 4, 100);
        assert_eq!(net.poll(1), 1);
        let pair = only(sandbox);
        assert_eq!((pair.completed, pair.failed, pair.status), (0, 1, 12));
    });
}

#[test]
fn a_device_that_is_closed_and_opened_again_is_followed() {
    alone(|sandbox| {
        for at in 0..3 {
            let net = Net::open(sandbox);
            net.connect(at, false);
            net.send(at, 2, 100);
            assert_eq!(net.poll(1), 1);
            net.0.numbers(c"net_destroy", [at, 0, 0]);
            net.0.call(c"net_close");
        }
        let read = reader(sandbox).read(RankNs(0));
        assert!(read.len() == 3 && read.iter().all(|pair| pair.completed == 2 && !pair.open));
    });
}

#[test]
fn receives_are_not_counted() {
    alone(|sandbox| {
        let net = Net::open(sandbox);
        net.connect(0, false);
        net.0.numbers(c"net_receive", [0; 3]);
        net.send(0, 1, 100);
        assert_eq!(net.poll(2), 2);
        assert_eq!((only(sandbox).posted, only(sandbox).completed), (1, 1));
        assert_eq!(reader(sandbox).dropped(), 0);
    });
}

#[test]
fn only_the_four_functions_are_wrapped_and_only_by_their_version() {
    alone(|sandbox| {
        let net = Net::open(sandbox);
        let is_own = |name: &CStr, version: &CStr| net.0.names(c"net_is_own", [name, version]);
        let wrapped = [
            c"ibv_open_device",
            c"ibv_create_qp",
            c"ibv_destroy_qp",
            c"ibv_modify_qp",
        ];
        for name in wrapped {
            assert_eq!(is_own(name, c"IBVERBS_1.1"), 0, "{name:?} is ours");
            assert_eq!(is_own(name, c"IBVERBS_1.0"), 2, "{name:?} was never there");
        }
        assert_eq!(is_own(c"ibv_fork_init", c"IBVERBS_1.1"), 1);
        assert_eq!(net.0.call(c"net_fork_init"), 77);
        assert_eq!(is_own(c"ibv_missing", c"IBVERBS_1.1"), 2);
        assert_eq!(
            net.0.call(c"net_next_is_libc"),
            1,
            "next to the caller, as ever"
        );
    });
}

#[test]
fn switched_off_nothing_is_wrapped() {
    alone_with(&[("LAGGARD_ENABLE", "0")], |sandbox| {
        let net = Net::open(sandbox);
        let names = [c"ibv_open_device", c"IBVERBS_1.1"];
        assert_eq!(net.0.names(c"net_is_own", names), 1);
        net.connect(0, false);
        net.send(0, 4, 100);
        assert_eq!(net.poll(1), 1);
        assert!(!sandbox.root.join("job").exists());
    });
}

#[test]
fn a_forked_child_sends_and_counts_nothing() {
    alone(|sandbox| {
        let net = Net::open(sandbox);
        net.connect(0, false);
        // SAFETY: the child calls the library only, and ends without what its parent does.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                net.send(0, 2, 10);
                libc::_exit(net.poll(1));
            }
            let mut status = -1;
            libc::waitpid(child, &raw mut status, 0);
            assert_eq!(libc::WEXITSTATUS(status), 1, "it completed");
        }
        assert_eq!(only(sandbox).posted, 0);
    });
}

#[test]
fn more_queue_pairs_than_there_is_room_for_send_all_the_same() {
    alone(|sandbox| {
        let net = Net::open(sandbox);
        let last = c_int::try_from(QUEUE_PAIRS).unwrap() + 9;
        for at in 0..=last {
            net.connect(at, false);
        }
        assert_eq!(
            (net.send(last, 1, 10), net.send(7, 1, 10), net.poll(2)),
            (0, 0, 2)
        );
        let read = reader(sandbox).read(RankNs(0));
        assert_eq!(
            (read.len(), read[7].completed, reader(sandbox).dropped()),
            (1024, 1, 10)
        );
    });
}
