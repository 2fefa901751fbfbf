//! The bytes of a live table; docs/formats.md describes them.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use crate::RingError;
use crate::header::StoredIdentity;
use crate::live::connections::{CONNECTIONS, ConnectionSlot};

pub(crate) const MAGIC: [u8; 8] = *b"LAGLIVE\0";
/// Bump it with any change of the structures here.
pub(crate) const LAYOUT: u32 = 2;
/// Communicators a process may have; a job with every kind of parallelism has about ten.
pub(crate) const MAX_COMMUNICATORS: usize = 64;
/// Words of a communicator's name.
pub(crate) const NAME_WORDS: usize = 15;
/// Flow slots for each operation slot: two channels, both ways.
const FLOWS_PER_OPERATION: usize = 4;

/// Bits of a transfer's number that [`Reached::Step`](crate::Reached::Step) needs: 4096,
/// where at most 32 transfers of a flow are under way at once.
pub const STEP_BITS: u32 = 12;

/// How many operations and flows a live table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveSize {
    operations: usize,
}

impl LiveSize {
    /// A table for `operations` operations and four times as many flows.
    ///
    /// # Errors
    /// [`RingError::Operations`] if it is no power of two from 64 to 65536.
    pub fn new(operations: usize) -> Result<Self, RingError> {
        // A slot is the low bits of an operation's number.
        if !operations.is_power_of_two() || !(64..=1 << 16).contains(&operations) {
            return Err(RingError::Operations { operations });
        }
        Ok(Self { operations })
    }

    pub(crate) fn operations(self) -> usize {
        self.operations
    }

    pub(crate) fn flows(self) -> usize {
        self.operations * FLOWS_PER_OPERATION
    }

    /// Bytes of the whole table.
    pub(crate) fn bytes(self) -> usize {
        size_of::<LiveTableHead>()
            + self.operations() * size_of::<OperationSlot>()
            + self.flows() * size_of::<FlowSlot>()
            + CONNECTIONS * size_of::<ConnectionSlot>()
    }
}

impl Default for LiveSize {
    /// 4096 operations, 1.4 MB: some dozens of steps.
    fn default() -> Self {
        Self { operations: 4096 }
    }
}

/// Who fills a live table, and so what it knows of an operation's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveSource {
    /// NCCL's profiler: an operation has ended once its flows are done.
    Plugin,
    /// NCCL's API: calls are seen to begin and to return, and nothing after that.
    Calls,
}

impl LiveSource {
    /// What the names of its tables end with.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Self::Plugin => "live",
            Self::Calls => "calls",
        }
    }
}

/// What comes before the slots.
#[repr(C, align(64))]
pub(crate) struct LiveTableHead {
    pub(crate) magic: [u8; 8],
    pub(crate) layout: u32,
    pub(crate) operations: u32,
    /// 1 if only calls are seen ([`LiveSource::Calls`]), 0 otherwise.
    pub(crate) calls: u64,
    pub(crate) identity: StoredIdentity,
    /// 1 while no communicator is open.
    pub(crate) closed: AtomicU32,
    /// Communicator slots claimed.
    pub(crate) communicators_begun: AtomicU32,
    /// Faults of the plugin itself.
    pub(crate) faults: AtomicU64,
    /// Communicators, operations and flows given up unfinished.
    pub(crate) dropped: AtomicU64,
    /// Flows run for other processes.
    pub(crate) foreign: AtomicU64,
    pub(crate) operations_begun: Line,
    pub(crate) flows_begun: Line,
    pub(crate) communicators: [CommunicatorSlot; MAX_COMMUNICATORS],
}

/// A counter with a cache line to itself.
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) AtomicU64);

/// Written once, then published.
#[repr(C, align(64))]
pub(crate) struct CommunicatorSlot {
    /// One of the states below.
    pub(crate) state: AtomicU32,
    pub(crate) rank: AtomicU32,
    pub(crate) hash: AtomicU64,
    pub(crate) size: AtomicU32,
    pub(crate) name_bytes: AtomicU32,
    pub(crate) name: [AtomicU64; NAME_WORDS],
}

/// A [`CommunicatorSlot::state`]: in use.
pub(crate) const OPEN: u32 = 1;
/// A [`CommunicatorSlot::state`]: finalized. Its operations are over, ended or not.
pub(crate) const FINALIZED: u32 = 2;

#[repr(C, align(64))]
pub(crate) struct OperationSlot {
    pub(crate) stamp: Stamp,
    /// Index of the communicator in the low half, number of the operation's kind above.
    pub(crate) what: AtomicU64,
    pub(crate) sequence: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) begun_at: AtomicU64,
    /// When it was enqueued or a flow was done, whichever came last.
    pub(crate) ended_at: AtomicU64,
    /// Flows begun before it: its own come later.
    pub(crate) first_flow: AtomicU64,
    /// A [`Progress`].
    pub(crate) progress: AtomicU64,
}

#[repr(C, align(64))]
pub(crate) struct FlowSlot {
    pub(crate) stamp: Stamp,
    /// Number of its operation.
    pub(crate) operation: AtomicU64,
    /// The peer in the low half, then a byte for the channel, one that is 1 if it receives, and
    /// two for the place of its connection, plus 1.
    pub(crate) route: AtomicU64,
    pub(crate) total: AtomicU32,
    pub(crate) ready: AtomicU32,
    pub(crate) transmitted: AtomicU32,
    pub(crate) done: AtomicU32,
    pub(crate) bytes: AtomicU64,
    /// 0 while it is only announced.
    pub(crate) begun_at: AtomicU64,
    pub(crate) moved_at: AtomicU64,
}

// The places that docs/formats.md gives, and that readers of other builds look at.
const _: () = {
    assert!(std::mem::offset_of!(LiveTableHead, identity) == 24);
    assert!(std::mem::offset_of!(LiveTableHead, closed) == 312);
    assert!(std::mem::offset_of!(LiveTableHead, operations_begun) == 384);
    assert!(std::mem::offset_of!(LiveTableHead, communicators) == 512);
    assert!(size_of::<CommunicatorSlot>() == 192);
    assert!(size_of::<LiveTableHead>() == 12_800);
    assert!(size_of::<OperationSlot>() == 64);
    assert!(size_of::<FlowSlot>() == 64);
    assert!(size_of::<ConnectionSlot>() == 64);
};

/// How far an operation is: bit 63 once it is enqueued, 31 bits for the flows it has begun,
/// 32 for those that are done. One word, so that the thread that completes it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationProgress(pub(crate) u64);

impl OperationProgress {
    pub(crate) const ENQUEUED: u64 = 1 << 63;
    pub(crate) const BEGUN: u64 = 1 << 32;
    pub(crate) const DONE: u64 = 1;

    pub(crate) fn is_enqueued(self) -> bool {
        self.0 & Self::ENQUEUED != 0
    }

    /// Whether it is enqueued and all flows begun so far are done.
    pub(crate) fn is_complete(self) -> bool {
        self.is_enqueued() && (self.0 & !Self::ENQUEUED) >> 32 == self.0 & 0xffff_ffff
    }
}

/// Which record is in a slot: 0 while it was never used, `2n + 1` while record `n` is being
/// written and `2n + 2` once it is whole.
#[repr(transparent)]
pub(crate) struct Stamp(AtomicU64);

/// What was in a slot that now is ours to write.
pub(crate) enum Claimed {
    Unused,
    Overwriting,
}

impl Stamp {
    fn whole(number: u64) -> u64 {
        number.wrapping_mul(2).wrapping_add(2)
    }

    /// Takes the slot for record `number`, unless another thread has stood still in the
    /// middle of writing it for a whole lap.
    #[inline]
    pub(crate) fn claim(&self, number: u64) -> Option<Claimed> {
        let busy = Self::whole(number).wrapping_sub(1);
        let before = self.0.load(Relaxed);
        let free = before & 1 == 0 && before < busy;
        // Acquire: the words of the record before must not land on top of ours.
        if !free
            || self
                .0
                .compare_exchange(before, busy, Acquire, Relaxed)
                .is_err()
        {
            return None;
        }
        // Readers that see a word of this record must see `busy` or later.
        fence(Release);
        Some(if before == 0 {
            Claimed::Unused
        } else {
            Claimed::Overwriting
        })
    }

    /// Makes record `number` visible.
    #[inline]
    pub(crate) fn publish(&self, number: u64) {
        self.0.store(Self::whole(number), Release);
    }

    /// The number of the record in the slot, if it is whole.
    #[inline]
    pub(crate) fn number(&self) -> Option<u64> {
        let stamp = self.0.load(Acquire);
        (stamp & 1 == 0)
            .then(|| (stamp / 2).checked_sub(1))
            .flatten()
    }

    /// Whether record `number` is still there, after its words were read.
    #[inline]
    pub(crate) fn still_has(&self, number: u64) -> bool {
        fence(Acquire);
        self.0.load(Relaxed) == Self::whole(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_processes_take_less_than_their_share_of_a_container_s_shared_memory() {
        // 64 MiB is what container runtimes give /dev/shm; a rank's ring takes 2 MiB of it.
        assert!(8 * LiveSize::default().bytes() < 16 << 20);
        assert!(LiveSize::default().bytes() < 2 << 20);
    }

    #[test]
    fn an_operation_is_complete_once_it_is_enqueued_and_its_flows_are_done() {
        let enqueued = OperationProgress::ENQUEUED;
        assert!(!OperationProgress(0).is_complete());
        assert!(OperationProgress(enqueued).is_complete());
        assert!(
            !OperationProgress(enqueued | (2 * OperationProgress::BEGUN) | OperationProgress::DONE)
                .is_complete()
        );
        assert!(
            OperationProgress(enqueued | OperationProgress::BEGUN | OperationProgress::DONE)
                .is_complete()
        );
        assert!(
            !OperationProgress(OperationProgress::BEGUN | OperationProgress::DONE).is_complete()
        );
    }
}
