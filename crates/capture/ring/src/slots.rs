//! The algorithm of the ring, free of files so that loom can check it.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

// The standard library's here, loom's in `dev/model_check`, which compiles this file once more.
use super::atomics::{AtomicU64, fence};

/// One record's place.
///
/// `stamp` is 0 while the slot was never used, `2n + 1` while record `n` is being written
/// and `2n + 2` once it is whole.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Slot<const WORDS: usize> {
    pub(crate) stamp: AtomicU64,
    pub(crate) words: [AtomicU64; WORDS],
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
pub(crate) fn write<const WORDS: usize>(
    counters: &Counters,
    slots: &[Slot<WORDS>],
    words: [u64; WORDS],
) {
    // Nobody else writes it, as calls do not overlap.
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
    // After the words: a reader that sees it whole sees all of them.
    slot.stamp.store(whole, Release);
    counters.next.store(number.wrapping_add(1), Release);
}

/// Reads record `number`; `None` if it is overwritten.
#[inline]
pub(crate) fn read<const WORDS: usize>(slots: &[Slot<WORDS>], number: u64) -> Option<[u64; WORDS]> {
    let slot = slots.get((number as usize) & (slots.len().wrapping_sub(1)))?;
    let whole = number.wrapping_mul(2).wrapping_add(2);
    if slot.stamp.load(Acquire) != whole {
        return None;
    }
    let mut words = [0; WORDS];
    for (value, word) in words.iter_mut().zip(&slot.words) {
        *value = word.load(Relaxed);
    }
    fence(Acquire);
    // Behind the fence: had a word been of a later record, the stamp would show it.
    (slot.stamp.load(Relaxed) == whole).then_some(words)
}
