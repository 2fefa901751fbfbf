use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use model::Direction;
use ring::CommunicatorIndex;

/// Counters, a power of two: an all-to-all over a thousand ranks needs 2048 of them. 256 KiB
/// of address space, of which only what is used takes memory.
const COUNTERS: usize = 1 << 14;
/// Places looked at before a counter is given up.
const PROBES: usize = 64;

/// How many sends and receives there were between two ranks, which NCCL does not count: a
/// counter for each communicator, peer and direction, in a table without locks.
#[derive(Debug)]
pub struct Sequences {
    counters: Vec<(AtomicU64, AtomicU64)>,
}

impl Sequences {
    /// Nothing was counted yet.
    pub fn new() -> Self {
        let counters = (0..COUNTERS).map(|_| (AtomicU64::new(0), AtomicU64::new(0)));
        Self {
            counters: counters.collect(),
        }
    }

    /// How many there were before this one; `None` if there is no room for its counter.
    pub fn next(
        &self,
        communicator: CommunicatorIndex,
        peer: u32,
        direction: Direction,
    ) -> Option<u64> {
        let receives = u64::from(direction == Direction::Receive);
        // Plus 1: a key of 0 stands for a place that is free.
        let key = (u64::from(communicator.0) << 33 | u64::from(peer) << 1 | receives) + 1;
        // The golden ratio spreads keys that differ in their low bits (Knuth, volume 3, 6.4).
        // Its upper 14 bits are a place among the counters.
        let first = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50;
        for probe in 0..PROBES {
            let at = (first as usize + probe) % COUNTERS;
            let (place, count) = self.counters.get(at)?;
            // Relaxed is enough: a counter needs no setting up before its key is seen.
            let taken = place.compare_exchange(0, key, Relaxed, Relaxed);
            if taken.is_ok() || taken == Err(key) {
                return Some(count.fetch_add(1, Relaxed));
            }
        }
        None
    }
}

impl Default for Sequences {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_and_direction_has_its_own_count() {
        let sequences = Sequences::new();
        let next = |communicator, peer, direction| {
            sequences.next(CommunicatorIndex(communicator), peer, direction)
        };
        for round in 0..3 {
            for communicator in 0..4 {
                for peer in 0..1000 {
                    assert_eq!(next(communicator, peer, Direction::Send), Some(round));
                    assert_eq!(next(communicator, peer, Direction::Receive), Some(round));
                }
            }
        }
    }

    #[test]
    fn peers_that_find_no_room_are_refused() {
        let sequences = Sequences::new();
        let next = |peer| sequences.next(CommunicatorIndex(0), peer, Direction::Send);
        let found = (0..20_000).filter(|peer| next(*peer).is_some()).count();
        assert!(
            found <= COUNTERS && found > COUNTERS / 2,
            "{found} found room"
        );
        assert_eq!(next(0), Some(1), "those that are there go on counting");
    }
}
