//! One operation over the network, transfer by transfer.

use model::{Direction, Flow, RankNs};

/// Buffers of a connection: NCCL's steps.
const SLOTS: usize = 8;
/// Taking a transfer from its buffer costs the GPU this part of making one ready.
const TAKE_SHARE: f64 = 0.3;

/// What times of one operation depend on. All answers are seconds; `at` is when it begins.
pub(crate) trait Machine {
    /// How long the GPU of a rank works for one transfer.
    fn gpu_s(&self, rank: u32, channel: u8, at: f64) -> f64;
    /// How long a transfer is in the network; infinite if it never arrives.
    fn wire_s(&self, from: u32, to: u32, at: f64) -> f64;
    /// When the proxy of a rank does what it could do at `at`.
    fn proxy(&self, rank: u32, at: f64) -> f64;
}

/// All times of one channel from one rank to the next, in seconds, one a transfer.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    pub(crate) number: u8,
    pub(crate) from: u32,
    pub(crate) to: u32,
    ready: Vec<f64>,
    sent: Vec<f64>,
    done: Vec<f64>,
    asked: Vec<f64>,
    arrived: Vec<f64>,
    taken: Vec<f64>,
}

/// How ranks pass data on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferShape {
    /// Each to the next, and the last to the first; what is sent was received before.
    Ring,
    /// From the first to the second.
    Pair,
}

/// Times of all transfers of an operation that rank `i` of `ranks` enters at `starts[i]`.
///
/// A transfer is made ready once the one before was received from the other side of the
/// ring, a buffer is free and the GPU has made it; it is sent once the receiver has asked for
/// it, which it does while it has a free buffer; the proxy of each end notices what happened
/// when it looks. This is the loop of NCCL's proxy, solved for times.
pub(crate) fn transfers(
    machine: &impl Machine,
    shape: TransferShape,
    ranks: &[u32],
    starts: &[f64],
    channels: u8,
    count: usize,
) -> Vec<Channel> {
    let links = if shape == TransferShape::Ring {
        ranks.len()
    } else {
        1
    };
    let mut all = Vec::new();
    for channel in 0..channels {
        let mut times: Vec<Channel> = (0..links)
            .map(|at| Channel::new(channel, ranks[at], ranks[(at + 1) % ranks.len()]))
            .collect();
        // All links are done with transfer k before any turns to k + 1: in a ring, that one needs
        // what the link before received in k.
        for k in 0..count {
            for at in 0..links {
                let (from, start) = (ranks[at], starts[at]);
                // Adding `links` first keeps the difference above zero.
                let before = (at + links - 1) % links;
                let input = match (shape, k) {
                    // With its first transfer a rank of a ring passes on its own data, as the
                    // sender of a pair always does.
                    (TransferShape::Ring, 1..) => times[before].taken[k - 1],
                    _ => start,
                };
                let Channel { ready, done, .. } = &times[at];
                // A buffer is free again once its transfer was acknowledged.
                let slot = if k < SLOTS { start } else { done[k - SLOTS] };
                let begin = input.max(slot).max(ready.last().copied().unwrap_or(start));
                let made = begin + machine.gpu_s(from, channel, begin);
                times[at].ready.push(machine.proxy(from, made));
            }
            for (at, link) in times.iter_mut().enumerate() {
                let start = starts[(at + 1) % ranks.len()];
                let slot = if k < SLOTS {
                    start
                } else {
                    link.taken[k - SLOTS]
                };
                let asked = machine.proxy(link.to, start.max(slot));
                let could = asked.max(link.ready[k]);
                let sent = machine.proxy(link.from, could);
                // A connection carries one transfer at a time.
                let free = sent.max(link.done.last().copied().unwrap_or(sent));
                let there = free + machine.wire_s(link.from, link.to, free);
                let arrived = machine.proxy(link.to, there);
                let take = arrived.max(link.taken.last().copied().unwrap_or(arrived));
                let taken = TAKE_SHARE * machine.gpu_s(link.to, channel, take) + take;
                link.asked.push(asked);
                link.sent.push(sent);
                link.done.push(machine.proxy(link.from, there));
                link.arrived.push(arrived);
                link.taken.push(taken);
            }
        }
        all.extend(times);
    }
    all
}

impl Channel {
    fn new(number: u8, from: u32, to: u32) -> Self {
        let none = Vec::new;
        let (ready, sent, done) = (none(), none(), none());
        let (asked, arrived, taken) = (none(), none(), none());
        Self {
            number,
            from,
            to,
            ready,
            sent,
            done,
            asked,
            arrived,
            taken,
        }
    }

    /// When the end of the given rank has nothing left to do.
    pub(crate) fn end_of(&self, rank: u32) -> f64 {
        let ends = if rank == self.from {
            &self.done
        } else {
            &self.taken
        };
        ends.last().copied().unwrap_or(0.0)
    }

    /// Transfers.
    pub(crate) fn count(&self) -> u32 {
        self.ready.len() as u32
    }

    /// When each is ready, transmitted and done at one end.
    pub(crate) fn times(&self, sends: bool) -> [&Vec<f64>; 3] {
        if sends {
            [&self.ready, &self.sent, &self.done]
        } else {
            [&self.asked, &self.arrived, &self.taken]
        }
    }

    /// What the live table of a rank says of it at `at`, for a rank that began at `begun`.
    pub(crate) fn flow(&self, rank: u32, peer: u32, begun: f64, at: f64) -> Flow {
        let sends = rank == self.from;
        let times = self.times(sends);
        // No time is before that of an earlier transfer, and infinite ones come last.
        let counts = times.map(|times| times.partition_point(|time| *time <= at));
        let moves = times.iter().zip(counts);
        let moves = moves.filter_map(|(times, count)| times.get(count.checked_sub(1)?));
        let [ready, transmitted, done] = counts.map(|count| count as u32);
        Flow {
            channel: self.number,
            peer,
            direction: if sends {
                Direction::Send
            } else {
                Direction::Receive
            },
            total: self.count(),
            ready,
            transmitted,
            done,
            // A transfer moves 1 MiB.
            bytes: u64::from(transmitted) << 20,
            begun_at: ns(begun),
            moved_at: ns(moves.copied().fold(begun, f64::max)),
        }
    }
}

/// Seconds of simulated time on a clock that began long before.
pub(crate) fn ns(at: f64) -> RankNs {
    RankNs(1_000_000_000_000 + (at * 1e9) as u64)
}
