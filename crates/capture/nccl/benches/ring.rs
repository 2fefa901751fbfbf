//! What the plugin costs an all-reduce (MY-A16): four ranks pass chunks around a ring of sockets and
//! add them up, each chunk with the calls that NCCL makes for its transfer, once to the plugin and
//! once to one that does nothing.
//!
//! Both take turns, and CPU time is compared: what else the machine does strikes both alike.
#![expect(unsafe_code, reason = "NCCL calls through C pointers")]
#![expect(clippy::print_stdout, reason = "a bench says what it measured")]

mod table;

use std::env;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::thread;

use crate::table::{BYTES, Functions, NOTHING, begin, plugin, transfer};

const RANKS: usize = 4;
/// Chunks that each of four ranks sends in an all-reduce: each part goes around twice, but for one
/// link each time.
const CHUNKS: i32 = 6;
const ALL_REDUCES: u64 = 40;
const ROUNDS: usize = 201;

fn main() {
    let root = tempfile::tempdir().expect("a temporary directory");
    // SAFETY: no other thread runs yet.
    unsafe { env::set_var("LAGGARD_DIR", root.path()) };
    let both = [plugin(), &NOTHING];
    let mut more = Vec::new();
    for round in 0..ROUNDS {
        let mut cpu_s = [0.0; 2];
        for turn in 0..2 {
            let which = (round + turn) % 2;
            cpu_s[which] = all_reduces(both[which]);
        }
        more.push(100.0 * (cpu_s[0] / cpu_s[1] - 1.0));
    }
    more.sort_by(f64::total_cmp);
    let quartile = |quarter: usize| more[quarter * (ROUNDS - 1) / 4];
    println!(
        "an all-reduce of {RANKS} ranks takes {:+.2} % more CPU time with the plugin, quartiles \
         {:+.2} to {:+.2}",
        quartile(2),
        quartile(1),
        quartile(3)
    );
}

/// CPU seconds of all ranks together.
fn all_reduces(functions: &'static Functions) -> f64 {
    let links: Vec<(UnixStream, UnixStream)> = (0..RANKS)
        .map(|_| UnixStream::pair().expect("a pair of sockets"))
        .collect();
    let (senders, receivers): (Vec<_>, Vec<_>) = links.into_iter().unzip();
    let before_s = cpu_s();
    thread::scope(|threads| {
        for (rank, sender) in senders.into_iter().enumerate() {
            let receiver = receivers[(rank + RANKS - 1) % RANKS].try_clone();
            let ends = (sender, receiver.expect("a socket"));
            threads.spawn(move || reduce(functions, rank, ends));
        }
    });
    cpu_s() - before_s
}

/// What one rank does: its GPU's adding, its proxy's sending and receiving.
fn reduce(functions: &Functions, rank: usize, (mut to, mut from): (UnixStream, UnixStream)) {
    let (context, _) = functions.init();
    let mut own = vec![1.0_f32; BYTES / 4];
    let (mut sent, mut received) = (vec![0; BYTES], vec![0; BYTES]);
    for sequence in 0..ALL_REDUCES {
        let (out, back) = begin(functions, context, sequence, CHUNKS);
        for step in 0..CHUNKS {
            for (bytes, number) in sent.chunks_exact_mut(4).zip(&own) {
                bytes.copy_from_slice(&number.to_ne_bytes());
            }
            // Those that send first and those that receive first stand in turns in the ring.
            if rank.is_multiple_of(2) {
                to.write_all(&sent).expect("sent");
                from.read_exact(&mut received).expect("received");
            } else {
                from.read_exact(&mut received).expect("received");
                to.write_all(&sent).expect("sent");
            }
            for (bytes, number) in received.chunks_exact(4).zip(&mut own) {
                *number += f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
            transfer(functions, context, out, back, step);
        }
    }
}

fn cpu_s() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a place for a time.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, ptr::from_mut(&mut time)) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
