//! What a process has given to the network for each peer of a communicator on each channel, over
//! all operations: what flows of theirs add up to.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use model::RankNs;

/// Connections of a live table: rings and trees have up to three peers for each of their channels.
pub(crate) const CONNECTIONS: usize = 1024;
/// Slots from its own in which a connection is looked for.
const REACH: usize = 8;

/// Written by the one thread that gets the flows of the connection on; of two threads that do
/// at once some counts get lost.
#[repr(C, align(64))]
pub(crate) struct ConnectionSlot {
    /// Index of the communicator in 8 bits, the channel in 8 and the peer in 32; bit 63 once it
    /// is used.
    key: AtomicU64,
    posted: AtomicU64,
    posted_bytes: AtomicU64,
    completed: AtomicU64,
    /// Nanoseconds in which something was in flight, up to when nothing was last.
    busy_ns: AtomicU64,
    /// Since when something is in flight; 0 if nothing is.
    busy_since: AtomicU64,
    /// Transfers and their bytes when nothing was in flight last.
    idle: [AtomicU64; 2],
}

/// What was given to the network for one peer on one channel, and what came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Hash of the communicator.
    pub communicator: u64,
    /// The channel of the communicator.
    pub channel: u8,
    /// Rank of the other end in the communicator.
    pub peer: u32,
    /// Transfers given to the network.
    pub posted: u64,
    /// Transfers that came back.
    pub completed: u64,
    /// Bytes of those. While some are in flight these are taken to be as large as the others
    /// since nothing was.
    pub bytes: u64,
    /// Nanoseconds in which something was in flight.
    pub busy_ns: u64,
}

/// The place of a connection, which is taken if it is new; none if there is no room near it.
#[inline]
pub(crate) fn place(
    slots: &[ConnectionSlot],
    communicator: u32,
    channel: u8,
    peer: u32,
) -> Option<u16> {
    // The top bit: no key is 0, which stands for a free slot.
    let key = 1 << 63 | u64::from(communicator) << 40 | u64::from(channel) << 32 | u64::from(peer);
    // Fibonacci hashing: the upper bits of the product depend on all of the key.
    let own = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize;
    for at in (own..own + REACH).map(|at| at % slots.len().max(1)) {
        let Some(slot) = slots.get(at) else { break };
        let found = match slot.key.load(Relaxed) {
            0 => slot
                .key
                .compare_exchange(0, key, Release, Relaxed)
                .unwrap_or_else(|it| it),
            found => found,
        };
        if found == key || found == 0 {
            return Some(at as u16);
        }
    }
    None
}

impl ConnectionSlot {
    /// Adds transfers that were given to the network.
    #[inline]
    pub(crate) fn post(&self, transfers: u32, bytes: u64, at: RankNs) {
        let posted = self.posted.load(Relaxed);
        if posted == self.completed.load(Relaxed) {
            // 0 stands for nothing in flight.
            self.busy_since.store(at.0.max(1), Relaxed);
        }
        // Before `posted`: a reader that sees the transfers sees their bytes.
        add(&self.posted_bytes, bytes);
        self.posted.store(posted + u64::from(transfers), Release);
    }

    /// Adds transfers that came back.
    #[inline]
    pub(crate) fn complete(&self, transfers: u32, at: RankNs) {
        let posted = self.posted.load(Relaxed);
        let completed = self.completed.load(Relaxed) + u64::from(transfers);
        if completed >= posted {
            let since = self.busy_since.swap(0, Relaxed);
            if since != 0 {
                add(&self.busy_ns, at.0.saturating_sub(since));
            }
            let [count, bytes] = &self.idle;
            count.store(posted, Relaxed);
            bytes.store(self.posted_bytes.load(Relaxed), Relaxed);
        }
        self.completed.store(completed.min(posted), Release);
    }

    /// What it has come to, if it is used; `hash_of` says of which communicator it is.
    pub(crate) fn read(
        &self,
        now: RankNs,
        hash_of: impl FnOnce(u32) -> Option<u64>,
    ) -> Option<Sent> {
        /// A writer may be in the middle of a change: what is read twice alike is whole, but for
        /// a change in between that its counters tell.
        const ATTEMPTS: usize = 4;
        let key = self.key.load(Acquire);
        let index = (key != 0).then_some((key >> 40) as u8)?;
        let communicator = hash_of(index.into())?;
        let mut read = self.counters(now);
        for _ in 0..ATTEMPTS {
            let again = self.counters(now);
            if again == read {
                break;
            }
            read = again;
        }
        let [posted, completed, bytes, busy_ns] = read;
        let (channel, peer) = ((key >> 32) as u8, key as u32);
        Some(Sent {
            communicator,
            channel,
            peer,
            posted,
            completed,
            bytes,
            busy_ns,
        })
    }

    fn counters(&self, now: RankNs) -> [u64; 4] {
        // Before `posted`: else more could have come back than was given to the network.
        let completed = self.completed.load(Acquire);
        let [idle, idle_bytes] = [&self.idle[0], &self.idle[1]].map(|it| it.load(Relaxed));
        let since = self.busy_since.load(Relaxed);
        let busy_ns = self.busy_ns.load(Relaxed);
        let posted = self.posted.load(Acquire);
        let posted_bytes = self.posted_bytes.load(Relaxed);
        let came_back = completed.saturating_sub(idle);
        let bytes = u128::from(posted_bytes.saturating_sub(idle_bytes)) * u128::from(came_back)
            / u128::from(posted.saturating_sub(idle).max(1));
        let open_ns = if since == 0 {
            0
        } else {
            now.0.saturating_sub(since)
        };
        let bytes = idle_bytes.saturating_add(bytes as u64);
        [
            posted,
            completed.min(posted),
            bytes,
            busy_ns.saturating_add(open_ns),
        ]
    }
}

/// Adds to what only one thread writes.
#[inline]
fn add(word: &AtomicU64, more: u64) {
    word.store(word.load(Relaxed).wrapping_add(more), Relaxed);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slot() -> ConnectionSlot {
        let zero = || AtomicU64::new(0);
        ConnectionSlot {
            key: AtomicU64::new(1 << 63),
            posted: zero(),
            posted_bytes: zero(),
            completed: zero(),
            busy_ns: zero(),
            busy_since: zero(),
            idle: [zero(), zero()],
        }
    }

    #[test]
    fn each_connection_keeps_its_place_until_there_is_no_room_near_it() {
        let slots: Vec<_> = (0..CONNECTIONS).map(|_| slot()).collect();
        for slot in &slots {
            slot.key.store(0, Relaxed);
        }
        let all = || {
            let of = |channel: u32| [1, 2, 700].map(|peer| (channel % 3, channel, peer));
            (0..200).flat_map(of)
        };
        let places: Vec<_> = all()
            .map(|(of, channel, peer)| place(&slots, of, channel as u8, peer))
            .collect();
        let again: Vec<_> = all()
            .map(|(of, channel, peer)| place(&slots, of, channel as u8, peer))
            .collect();
        assert_eq!(places, again);
        let mut taken: Vec<_> = places.iter().flatten().collect();
        assert!(taken.len() > 590, "{} of 600 found room", taken.len());
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), places.iter().flatten().count());
    }

    proptest! {
        /// Whatever is posted and comes back, and however little of it at once: counts and
        /// bytes are those told, and what is busy is the time in which something was in flight.
        #[test]
        fn counts_add_up(steps in prop::collection::vec((0..4_u32, 0..4_u32, 1..1000_u64), 1..100)) {
            let slot = slot();
            let (mut at, mut busy_ns) = (RankNs(1), 0);
            let (mut posted, mut completed) = (0_u64, 0_u64);
            for (posts, comes_back, pause) in steps {
                if posts > 0 {
                    slot.post(posts, u64::from(posts) * 100, at);
                    posted += u64::from(posts);
                }
                let before = at;
                at.0 += pause;
                if posted > completed {
                    busy_ns += at.0 - before.0;
                }
                let back = u64::from(comes_back).min(posted - completed);
                if back > 0 {
                    slot.complete(back as u32, at);
                    completed += back;
                }
                let sent = slot.read(at, |_| Some(7)).expect("it is used");
                prop_assert_eq!((sent.posted, sent.completed), (posted, completed));
                prop_assert_eq!((sent.bytes, sent.busy_ns), (completed * 100, busy_ns));
            }
        }
    }
}
