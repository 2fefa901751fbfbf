//! The algorithm of the ring, free of files so that loom can check it.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, fence};

use model::PAYLOAD_WORDS;

/// One record's place.
///
/// `stamp` is 0 while the slot was never used, `2n + 1` while record `n` is being written
/// and `2n + 2` once it is whole.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Slot {
    stamp: AtomicU64,
    words: [AtomicU64; PAYLOAD_WORDS],
}

/// What the writer and readers share besides the slots.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Counters {
    /// Records written so far; the next one's number.
    pub(crate) next: AtomicU64,
}

/// Writes one record over the oldest; calls must not overlap.
///
/// Never blocks, allocates, makes a system call or panics. Plain stores only: nothing waits
/// for the slot's line, which a training step has long pushed out of the cache.
#[inline]
pub(crate) fn write(counters: &Counters, slots: &[Slot], words: [u64; PAYLOAD_WORDS]) {
    let number = counters.next.load(Relaxed);
    let Some(slot) = slots.get((number as usize) & (slots.len().wrapping_sub(1))) else {
        return;
    };
    let whole = number.wrapping_mul(2).wrapping_add(2);
    slot.stamp.store(whole.wrapping_sub(1), Relaxed);
    // Readers that see a word of this record must see its stamp (see `read`).
    fence(Release);
    for (word, value) in slot.words.iter().zip(words) {
        word.store(value, Relaxed);
    }
    slot.stamp.store(whole, Release);
    counters.next.store(number.wrapping_add(1), Release);
}

/// Reads record `number`; `None` if it is overwritten.
#[inline]
pub(crate) fn read(slots: &[Slot], number: u64) -> Option<[u64; PAYLOAD_WORDS]> {
    let slot = slots.get((number as usize) & (slots.len().wrapping_sub(1)))?;
    let whole = number.wrapping_mul(2).wrapping_add(2);
    if slot.stamp.load(Acquire) != whole {
        return None;
    }
    let mut words = [0; PAYLOAD_WORDS];
    for (value, word) in words.iter_mut().zip(&slot.words) {
        *value = word.load(Relaxed);
    }
    fence(Acquire);
    (slot.stamp.load(Relaxed) == whole).then_some(words)
}

#[cfg(loom)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod model_check {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    struct Shared {
        counters: Counters,
        slots: Vec<Slot>,
    }

    fn shared(slots: usize) -> Arc<Shared> {
        let slot = || Slot {
            stamp: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Arc::new(Shared {
            counters: Counters { next: AtomicU64::new(0) },
            slots: (0..slots).map(|_| slot()).collect(),
        })
    }

    /// A record whose words all carry the same value: a torn one shows.
    fn write_whole(shared: &Shared, value: u64) {
        write(&shared.counters, &shared.slots, [value; PAYLOAD_WORDS]);
    }

    fn read_whole(shared: &Shared, number: u64) -> Option<u64> {
        let words = read(&shared.slots, number)?;
        assert!(words.iter().all(|word| *word == words[0]), "torn: {words:?}");
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
                assert!(read_whole(&ring, number).is_some(), "what is counted is whole");
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
            assert_eq!([0, 1].map(|number| read_whole(&ring, number)), [None, Some(2)]);
        });
    }
}
