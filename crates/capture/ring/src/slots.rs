//! The algorithm of the ring, free of files so that loom can check it.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, fence};

use model::PAYLOAD_WORDS;

/// One record's place. A cache line, so that writers of neighbours do not disturb.
///
/// `stamp` is 0 while the slot was never used, `2n + 1` while record `n` is being written
/// and `2n + 2` once it is whole.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Slot {
    stamp: AtomicU64,
    words: [AtomicU64; PAYLOAD_WORDS],
}

/// What a writer and readers share besides the slots.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Counters {
    /// Records begun so far; the next one's number.
    pub(crate) next: AtomicU64,
    /// Records given up because their slot was still being written a lap earlier.
    pub(crate) dropped: AtomicU64,
}

/// What a reader found at its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// The record.
    Record([u64; PAYLOAD_WORDS]),
    /// It is not whole yet.
    Pending,
    /// It was overwritten.
    Lost,
}

/// Writes one record over the oldest.
///
/// Never blocks, allocates, makes a system call or panics. A record whose slot is still in
/// the hands of a writer from the lap before is dropped and counted; that takes a thread
/// that stands still for a whole lap in the middle of a write.
#[inline]
pub(crate) fn write(counters: &Counters, slots: &[Slot], words: [u64; PAYLOAD_WORDS]) {
    let number = counters.next.fetch_add(1, Relaxed);
    let Some(slot) = slots.get((number as usize) & (slots.len().wrapping_sub(1))) else {
        return;
    };
    let busy = number.wrapping_mul(2).wrapping_add(1);
    let before = slot.stamp.load(Relaxed);
    let free = before & 1 == 0 && before < busy;
    // Acquire: the words of the record before must not land on top of ours.
    if !free || slot.stamp.compare_exchange(before, busy, Acquire, Relaxed).is_err() {
        counters.dropped.fetch_add(1, Relaxed);
        return;
    }
    // Readers that see a word of this record must see `busy` or later (see `read`).
    fence(Release);
    for (word, value) in slot.words.iter().zip(words) {
        word.store(value, Relaxed);
    }
    slot.stamp.store(busy.wrapping_add(1), Release);
}

/// Reads record `number`.
#[inline]
pub(crate) fn read(slots: &[Slot], number: u64) -> Read {
    let Some(slot) = slots.get((number as usize) & (slots.len().wrapping_sub(1))) else {
        return Read::Lost;
    };
    let whole = number.wrapping_mul(2).wrapping_add(2);
    let before = slot.stamp.load(Acquire);
    if before < whole {
        return Read::Pending;
    }
    if before > whole {
        return Read::Lost;
    }
    let mut words = [0; PAYLOAD_WORDS];
    for (value, word) in words.iter_mut().zip(&slot.words) {
        *value = word.load(Relaxed);
    }
    fence(Acquire);
    if slot.stamp.load(Relaxed) == whole { Read::Record(words) } else { Read::Lost }
}

#[cfg(loom)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod model_check {
    use loom::sync::Arc;
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
        let counters = Counters { next: AtomicU64::new(0), dropped: AtomicU64::new(0) };
        Arc::new(Shared { counters, slots: (0..slots).map(|_| slot()).collect() })
    }

    /// A record whose words all carry the same value: a torn one shows.
    fn write_whole(shared: &Shared, value: u64) {
        write(&shared.counters, &shared.slots, [value; PAYLOAD_WORDS]);
    }

    fn read_whole(shared: &Shared, number: u64) -> Option<u64> {
        match read(&shared.slots, number) {
            Read::Record(words) => {
                assert!(words.iter().all(|word| *word == words[0]), "torn: {words:?}");
                Some(words[0])
            }
            Read::Pending | Read::Lost => None,
        }
    }

    #[test]
    fn two_writers_lapping_each_other_never_tear_a_record() {
        loom::model(|| {
            let ring = shared(1);
            let writers: Vec<_> = [1, 2]
                .map(|value| {
                    let ring = ring.clone();
                    thread::spawn(move || write_whole(&ring, value))
                })
                .into();
            for number in 0..2 {
                if let Some(value) = read_whole(&ring, number) {
                    assert!(value == 1 || value == 2);
                }
            }
            for writer in writers {
                writer.join().unwrap();
            }
            let kept = (0..2).filter(|n| read_whole(&ring, *n).is_some()).count() as u64;
            assert!(kept <= 1);
            assert!(kept + ring.counters.dropped.load(Relaxed) >= 1);
        });
    }

    #[test]
    fn a_reader_beside_a_lapping_writer_sees_whole_records_or_none() {
        loom::model(|| {
            let ring = shared(2);
            let writer = {
                let ring = ring.clone();
                thread::spawn(move || (1..=3).for_each(|value| write_whole(&ring, value)))
            };
            for number in 0..3 {
                if let Some(value) = read_whole(&ring, number) {
                    assert_eq!(value, number + 1);
                }
            }
            writer.join().unwrap();
            assert_eq!(read_whole(&ring, 1), Some(2));
            assert_eq!(read_whole(&ring, 2), Some(3));
            assert_eq!(read(&ring.slots, 0), Read::Lost);
        });
    }
}
