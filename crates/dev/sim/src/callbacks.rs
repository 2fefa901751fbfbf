//! What NCCL would call its profiler with, in the order of time.

use model::CollectiveOp;

use crate::ClusterRun;
use crate::transfer::Channel;

/// One call, or those that come together.
#[derive(Clone, Debug, PartialEq)]
pub enum Callback {
    /// A rank enqueues an operation, and its proxy takes it up.
    Begin(Begun),
    /// A transfer of an operation moves on.
    Step {
        /// The operation, by its place among those of the rank.
        operation: usize,
        /// The flow, by its place among those of the operation.
        flow: usize,
        /// The transfer.
        step: u32,
        /// How far it is now.
        reached: Stage,
    },
}

/// An operation of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Begun {
    /// The communicator's hash.
    pub communicator: u64,
    /// What it does.
    pub op: CollectiveOp,
    /// Its number in the communicator.
    pub sequence: u64,
    /// Its connections.
    pub flows: Vec<CallbackRoute>,
}

/// One connection of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallbackRoute {
    /// The channel.
    pub channel: u8,
    /// The peer, by its rank in the communicator.
    pub peer: u32,
    /// Whether it sends.
    pub sends: bool,
    /// Transfers.
    pub transfers: u32,
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Made by the GPU, or asked for.
    Ready,
    /// Handed to the network, or arrived.
    Transmitted,
    /// Acknowledged, or taken by the GPU.
    Done,
}

impl ClusterRun {
    /// What NCCL would tell of all ranks, as `(seconds, rank, call)`, ascending.
    ///
    /// # Source
    /// The order of calls of NCCL 2.30, as observed.
    pub fn callbacks(&self) -> Vec<(f64, u32, Callback)> {
        let mut calls = Vec::new();
        for (rank, entered) in self.entered() {
            for (operation, entered) in entered.iter().enumerate() {
                let ends: Vec<(&Channel, bool, u32)> = self.ends(entered, rank);
                let flows = ends.iter().map(|(channel, sends, peer)| CallbackRoute {
                    channel: channel.number,
                    peer: *peer,
                    sends: *sends,
                    transfers: channel.count(),
                });
                let (of, flows) = (&entered.operation, flows.collect());
                let (op, sequence) = (of.op, of.sequence);
                let communicator = of.communicator;
                let begun = Begun {
                    communicator,
                    op,
                    sequence,
                    flows,
                };
                calls.push((entered.begun, rank, Callback::Begin(begun)));
                for (flow, (channel, sends, _)) in ends.iter().enumerate() {
                    for (reached, times) in [Stage::Ready, Stage::Transmitted, Stage::Done]
                        .into_iter()
                        .zip(channel.times(*sends))
                    {
                        let moves = (0u32..).zip(times);
                        calls.extend(moves.map(|(step, at)| {
                            (
                                *at,
                                rank,
                                Callback::Step {
                                    operation,
                                    flow,
                                    step,
                                    reached,
                                },
                            )
                        }));
                    }
                }
            }
        }
        // What a fault prevents has an infinite time and is never called.
        calls.retain(|(at, ..)| at.is_finite());
        // The sort is stable: an operation begins before its transfers, even at the same time.
        calls.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
        calls
    }
}
