//! The algorithm of the ring in every interleaving that its memory orders allow, by loom.
//!
//! A crate of its own, so that what loom brings along is chosen alike for builds and for tests.
//!
//! Records have two words here. A torn record has two words of different records; all access to
//! words is relaxed and nothing depends on their values, so that what is left of an execution without
//! its other words is an execution too, and is one of those looked at.
#![cfg(test)]

use std::sync::atomic::Ordering::Acquire;

use loom::sync::{Arc, Mutex};
use loom::thread;

use self::atomics::AtomicU64;
use self::slots::{Counters, Slot, read, write};

mod atomics {
    pub(super) use loom::sync::atomic::{AtomicU64, fence};
}
#[path = "../../../capture/ring/src/slots.rs"]
mod slots;

const WORDS: usize = 2;

struct SharedRing {
    counters: Counters,
    slots: Vec<Slot<WORDS>>,
}

fn shared(slots: usize) -> Arc<SharedRing> {
    Arc::new(SharedRing {
        counters: Counters {
            next: AtomicU64::new(0),
        },
        slots: (0..slots)
            .map(|_| Slot {
                stamp: AtomicU64::new(0),
                words: std::array::from_fn(|_| AtomicU64::new(0)),
            })
            .collect(),
    })
}

/// A record whose words all carry the same value: a torn one shows.
fn write_whole(shared: &SharedRing, value: u64) {
    write(&shared.counters, &shared.slots, [value; WORDS]);
}

fn read_whole(shared: &SharedRing, number: u64) -> Option<u64> {
    let words = read(&shared.slots, number)?;
    assert!(
        words.iter().all(|word| *word == words[0]),
        "torn: {words:?}"
    );
    Some(words[0])
}

#[test]
fn threads_that_take_turns_lose_nothing() {
    loom::model(|| {
        let ring = shared(2);
        let turn = Arc::new(Mutex::new(()));
        let writers = [1, 2].map(|value| {
            let (ring, turn) = (ring.clone(), turn.clone());
            thread::spawn(move || {
                let _turn = turn.lock().unwrap();
                write_whole(&ring, value);
            })
        });
        let written = ring.counters.next.load(Acquire);
        for number in 0..written {
            assert!(
                read_whole(&ring, number).is_some(),
                "what is counted is whole"
            );
        }
        for writer in writers {
            writer.join().unwrap();
        }
        let kept: u64 = (0..2).filter_map(|number| read_whole(&ring, number)).sum();
        assert_eq!(kept, 3);
    });
}

#[test]
fn a_reader_beside_a_lapping_writer_sees_whole_records_or_none() {
    loom::model(|| {
        let ring = shared(1);
        let writer = {
            let ring = ring.clone();
            thread::spawn(move || [1, 2].map(|value| write_whole(&ring, value)))
        };
        for number in 0..2 {
            if let Some(value) = read_whole(&ring, number) {
                assert_eq!(value, number + 1);
            }
        }
        writer.join().unwrap();
        assert_eq!(
            [0, 1].map(|number| read_whole(&ring, number)),
            [None, Some(2)]
        );
    });
}
