//! Which communicator of the live table a communicator of NCCL is.

use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};

use model::CollectiveOp;
use ring::CommunicatorIndex;

/// Communicators of a live table.
const ROOM: usize = 64;
/// Kinds of collectives that are counted; PyTorch has 20.
const KINDS: usize = 32;

/// NCCL's communicators by their address, which NCCL may use again, and what was called for
/// in each.
pub(crate) struct Communicators {
    open: Vec<OpenCommunicator>,
}

#[derive(Default)]
struct OpenCommunicator {
    /// NCCL's address of it, 0 while it is not open.
    address: AtomicUsize,
    hash: AtomicU64,
    /// Communicators made by splitting it.
    splits: AtomicU64,
    /// Collectives called for, by kind.
    calls: [AtomicU64; KINDS],
}

impl Communicators {
    pub(crate) fn new() -> Self {
        Self {
            open: std::iter::repeat_with(OpenCommunicator::default)
                .take(ROOM)
                .collect(),
        }
    }

    /// Says at which address a communicator stands.
    pub(crate) fn open(&self, index: CommunicatorIndex, address: usize, hash: u64) {
        if let Some(communicator) = self.open.get(index.0 as usize) {
            communicator.hash.store(hash, Relaxed);
            // After the hash: a thread that finds the address may split it at once.
            communicator.address.store(address, Release);
        }
    }

    /// Which communicator stands at an address.
    #[inline]
    pub(crate) fn find(&self, address: usize) -> Option<CommunicatorIndex> {
        let found = self
            .open
            .iter()
            .position(|c| c.address.load(Acquire) == address);
        found.map(|at| CommunicatorIndex(at as u32))
    }

    /// Forgets a communicator, unless that has been done.
    pub(crate) fn close(&self, index: CommunicatorIndex, address: usize) -> bool {
        self.open.get(index.0 as usize).is_some_and(|communicator| {
            let free = communicator
                .address
                .compare_exchange(address, 0, Relaxed, Relaxed);
            free.is_ok()
        })
    }

    /// How many collectives of the kind were called for before.
    #[inline]
    pub(crate) fn next(&self, index: CommunicatorIndex, op: CollectiveOp) -> Option<u64> {
        let communicator = self.open.get(index.0 as usize)?;
        Some(
            communicator
                .calls
                .get(usize::from(op.0))?
                .fetch_add(1, Relaxed),
        )
    }

    /// The hash of the next part of a communicator with this colour, the same on all ranks
    /// of it: all ranks of the whole split it in the same order.
    pub(crate) fn split(&self, index: CommunicatorIndex, colour: i32) -> Option<u64> {
        let whole = self.open.get(index.0 as usize)?;
        let number = whole.splits.fetch_add(1, Relaxed);
        // `find` has acquired the address, so the hash stored before it is there.
        let hash = whole.hash.load(Relaxed);
        let words = [hash, number, u64::from(colour.cast_unsigned())];
        Some(hash_of(words.map(u64::to_ne_bytes).as_flattened()))
    }
}

/// A number for bytes that all ranks have alike.
pub(crate) fn hash_of(bytes: &[u8]) -> u64 {
    // Its keys are fixed, so it is the same in all processes of one build.
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_stands_for_its_latest_communicator() {
        let communicators = Communicators::new();
        let (first, second) = (CommunicatorIndex(0), CommunicatorIndex(1));
        communicators.open(first, 0x10, 7);
        assert_eq!(communicators.find(0x10), Some(first));
        assert!(communicators.close(first, 0x10) && !communicators.close(first, 0x10));
        assert_eq!(communicators.find(0x10), None);
        communicators.open(second, 0x10, 8);
        assert_eq!(communicators.find(0x10), Some(second));
        assert_eq!(communicators.find(0x20), None);
    }

    #[test]
    fn parts_are_distinguished_by_colour_and_by_time() {
        let (ours, theirs) = (Communicators::new(), Communicators::new());
        let index = CommunicatorIndex(3);
        for communicators in [&ours, &theirs] {
            communicators.open(index, 0x10, 7);
        }
        let (first, later) = (ours.split(index, 1), ours.split(index, 1));
        assert_ne!(first, later);
        assert_eq!(theirs.split(index, 1), first);
        assert_ne!(theirs.split(index, 2), later);
    }

    #[test]
    fn every_kind_has_its_own_count() {
        let communicators = Communicators::new();
        let next = |op| communicators.next(CommunicatorIndex(0), CollectiveOp(op));
        assert_eq!(
            [next(3), next(3), next(14), next(999)],
            [Some(0), Some(1), Some(0), None]
        );
    }
}
