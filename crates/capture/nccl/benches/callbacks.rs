//! What a transfer costs NCCL's progress thread: the ten calls of a step that sends and one
//! that receives, beside a plugin that does nothing.
//!
//! The plugin is called as NCCL calls it, in its library and through its table. A sample
//! takes its flows through a thousand transfers, as many as they have, so that what is
//! measured is counting and not what is beyond the total; the next sample begins others.
#![expect(unsafe_code, reason = "NCCL calls through C pointers")]

mod table;

use std::env;
use std::ffi::c_int;

use divan::Bencher;
use divan::counter::ItemsCount;

use crate::table::{Functions, NOTHING, begin, plugin, transfer};

const CALLS: u32 = 10;
const TRANSFERS: i32 = 1000;

fn main() {
    let root = tempfile::tempdir().expect("a temporary directory");
    // SAFETY: no other thread runs yet.
    unsafe { env::set_var("LAGGARD_DIR", root.path()) };
    divan::main();
}

#[divan::bench(sample_size = 1)]
fn ten_calls_of_the_plugin(bencher: Bencher<'_, '_>) {
    measure(bencher, plugin(), 30);
}

#[divan::bench(sample_size = 1)]
fn ten_calls_of_one_that_does_nothing(bencher: Bencher<'_, '_>) {
    measure(bencher, &NOTHING, 0);
}

/// A sample is a thousand times ten calls; the throughput counts single ones.
fn measure(bencher: Bencher<'_, '_>, functions: &'static Functions, events: c_int) {
    let (context, mask) = functions.init();
    assert_eq!(mask, events);
    let mut sequence = 0;
    bencher
        .counter(ItemsCount::new(CALLS * TRANSFERS.unsigned_abs()))
        .with_inputs(|| {
            sequence += 1;
            let flows = begin(functions, context, sequence, TRANSFERS);
            assert_eq!(flows.1.is_null(), events == 0, "flows are followed");
            flows
        })
        .bench_local_values(|(send, receive)| {
            for step in 0..TRANSFERS {
                transfer(functions, context, send, receive, step);
            }
        });
}
