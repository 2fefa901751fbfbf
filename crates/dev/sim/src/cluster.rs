//! A training job of tensor, pipeline and data parallel ranks, seen by its live tables.

use std::collections::BTreeMap;
use std::ops::Range;

use model::{CollectiveOp, Communicator, Operation, RankNs};
use rand::RngExt;
use rand::rngs::SmallRng;

use crate::transfer::{Channel, Machine, TransferShape, ns, transfers};

/// Ranks of a machine.
pub const LOCALS: u32 = 8;
/// Seconds a stage of the pipeline computes, forward and back each.
const COMPUTE_S: f64 = 0.15;
/// Parts of that, each of which ends where the tensor group meets, and seconds of a meeting: the
/// ranks of a machine need no network for it.
const PARTS: u32 = 4;
const MEETING_S: f64 = 0.5e-3;
const MEETING_BYTES: u64 = 1 << 26;
/// Seconds after which a call is known to need no network, as the reader of live tables has it.
const SETTLES_S: f64 = 0.02;
/// Transfers of a data parallel operation and of a pipeline operation, a channel.
const TRANSFERS: [usize; 2] = [32, 8];
/// Channels of the same.
const CHANNELS: [u8; 2] = [4, 2];
/// Seconds for one transfer: the GPU, the network.
const GPU_S: f64 = 0.8e-3;
const WIRE_S: f64 = 0.8e-3;

/// What goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum ClusterFault {
    /// Nothing that a rank's network card sends or receives arrives any more.
    CardDown {
        /// The rank.
        rank: u32,
    },
    /// A rank's network card is slower by a factor.
    CardSlow {
        /// The ranks that share it.
        ranks: Vec<u32>,
        /// The factor.
        factor: f64,
    },
    /// What goes between two ranks, either way, is slower by a factor, and nothing else of them.
    LinkSlow {
        /// The ranks.
        ends: [u32; 2],
        /// The factor.
        factor: f64,
    },
    /// The GPUs of some ranks, or their way to the host, are slower by a factor.
    GpuSlow {
        /// The ranks.
        ranks: Vec<u32>,
        /// The factor.
        factor: f64,
    },
    /// A rank's GPU stops in the middle of what it does.
    GpuStops {
        /// The rank.
        rank: u32,
    },
    /// A rank's GPU is slower on one channel by a factor.
    ChannelSlow {
        /// The rank.
        rank: u32,
        /// The channel.
        channel: u8,
        /// The factor.
        factor: f64,
    },
    /// A rank's proxy thread does nothing for some time.
    ProxySleeps {
        /// The rank.
        rank: u32,
        /// Seconds; infinite if it never wakes.
        seconds: f64,
    },
    /// A rank enters nothing any more: its loop stands still.
    LoopStops {
        /// The rank.
        rank: u32,
    },
}

impl ClusterFault {
    /// Any fault of a single rank, and that rank.
    pub fn any(random: &mut SmallRng, ranks: u32) -> (Self, u32) {
        let rank = random.random_range(0..ranks);
        let factor = random.random_range(4.0..8.0);
        let fault = match random.random_range(0..8) {
            0 => Self::CardDown { rank },
            1 => Self::GpuStops { rank },
            2 => Self::LoopStops { rank },
            3 => Self::ProxySleeps {
                rank,
                seconds: f64::INFINITY,
            },
            4 => Self::CardSlow {
                ranks: vec![rank],
                factor,
            },
            5 => Self::GpuSlow {
                ranks: vec![rank],
                factor,
            },
            6 => Self::ChannelSlow {
                rank,
                // All channels of a data group; a pipeline's operations use the first two of these.
                channel: random.random_range(0..4),
                factor,
            },
            _ => Self::ProxySleeps {
                rank,
                seconds: random.random_range(1.0..3.0),
            },
        };
        (fault, rank)
    }
}

/// A job to simulate: `machines` in two pipeline stages, the first half the first; the ranks of a
/// machine are a tensor group, those of a stage with the same local rank a data group.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// An even number of machines, at least 4.
    pub machines: u32,
    /// Iterations.
    pub iterations: u64,
    /// What goes wrong, and when, in seconds from the beginning.
    pub fault: Option<(ClusterFault, f64)>,
    /// How far times of transfers scatter, as a share of them, and what they are drawn from.
    pub jitter: f64,
    /// Another seed, another run.
    pub seed: u64,
}

/// One operation of one rank.
#[derive(Debug)]
pub(crate) struct EnteredOperation {
    pub(crate) operation: Operation,
    pub(crate) begun: f64,
    ended: f64,
    /// Its channels in `ClusterRun::channels`, and the rank of the peer in the communicator.
    channels: Range<usize>,
    peers: BTreeMap<u32, u32>,
}

impl EnteredOperation {
    /// Whether it is only seen to be called for.
    fn is_unseen(&self) -> bool {
        self.operation.may_have_ended
    }
}

/// What happened, for every rank and at every moment.
#[derive(Debug, Default)]
pub struct ClusterRun {
    channels: Vec<Channel>,
    entered: BTreeMap<u32, Vec<EnteredOperation>>,
    communicators: BTreeMap<u32, Vec<Communicator>>,
    /// When the job ended; infinite if it never did.
    pub ended_s: f64,
}

impl Machine for Cluster {
    fn gpu_s(&self, rank: u32, channel: u8, at: f64) -> f64 {
        let usual_s = GPU_S * self.scatter(rank, at);
        match self.struck(at) {
            Some(ClusterFault::GpuSlow { ranks, factor }) if ranks.contains(&rank) => {
                factor * usual_s
            }
            Some(ClusterFault::ChannelSlow {
                rank: slow,
                channel: on,
                factor,
            }) if (*slow, *on) == (rank, channel) => factor * usual_s,
            Some(ClusterFault::GpuStops { rank: stopped }) if *stopped == rank => f64::INFINITY,
            _ => usual_s,
        }
    }

    fn wire_s(&self, from: u32, to: u32, at: f64) -> f64 {
        // The way back scatters by itself.
        let usual_s = WIRE_S * self.scatter(from ^ to << 16, at);
        match self.struck(at + usual_s) {
            Some(ClusterFault::CardDown { rank }) if [from, to].contains(rank) => f64::INFINITY,
            Some(ClusterFault::CardSlow { ranks, factor })
                if ranks.contains(&from) || ranks.contains(&to) =>
            {
                factor * usual_s
            }
            Some(ClusterFault::LinkSlow { ends, factor })
                if ends.contains(&from) && ends.contains(&to) =>
            {
                factor * usual_s
            }
            _ => usual_s,
        }
    }

    fn proxy(&self, rank: u32, at: f64) -> f64 {
        match &self.fault {
            Some((
                ClusterFault::ProxySleeps {
                    rank: asleep,
                    seconds,
                },
                from,
            )) if *asleep == rank && at >= *from && at < from + seconds => from + seconds,
            _ => at,
        }
    }
}

impl Cluster {
    /// Ranks of the job.
    pub fn ranks(&self) -> u32 {
        self.machines * LOCALS
    }

    /// Whether a port is down on a rank's machine, as its kernel tells.
    pub fn has_port_down(&self, rank: u32) -> bool {
        let down = match self.fault {
            Some((ClusterFault::CardDown { rank }, _)) => Some(rank),
            _ => None,
        };
        down.is_some_and(|down| down / LOCALS == rank / LOCALS)
    }

    /// Simulates the job.
    pub fn run(&self) -> ClusterRun {
        let mut run = ClusterRun::default();
        let (ranks, half) = (self.ranks(), self.ranks() / 2);
        let mut free = vec![0.0; ranks as usize];
        // Operations look up their communicator, so all are joined first, as at the start of a job.
        self.join_all(&mut run);
        for iteration in 0..self.iterations {
            self.compute(&mut run, &mut free, 0..half);
            // Microbatches are not simulated: one forward and one backward pass cross the two
            // stages.
            for rank in 0..half {
                self.pass(&mut run, &mut free, (rank, rank + half), iteration);
            }
            self.compute(&mut run, &mut free, half..ranks);
            self.compute(&mut run, &mut free, half..ranks);
            for rank in 0..half {
                self.pass(&mut run, &mut free, (rank + half, rank), iteration);
            }
            self.compute(&mut run, &mut free, 0..half);
            for op in [
                CollectiveOp::REDUCE_SCATTER_BASE,
                CollectiveOp::ALLGATHER_BASE,
            ] {
                for group in self.data_groups() {
                    self.reduce(&mut run, &mut free, &group, op, iteration);
                }
            }
            // Who waits for one that never comes is free never: nobody moves any more.
            if free.iter().all(|at| at.is_infinite()) {
                break;
            }
        }
        run.ended_s = free.into_iter().fold(0.0, f64::max);
        run
    }

    /// A stage computes, forward or back: its tensor groups meet after each part.
    fn compute(&self, run: &mut ClusterRun, free: &mut [f64], stage: Range<u32>) {
        for machine in stage.step_by(LOCALS as usize) {
            let group = machine..machine + LOCALS;
            for _ in 0..PARTS {
                for rank in group.clone() {
                    let at = &mut free[rank as usize];
                    *at += self.compute_s(rank, *at) / f64::from(PARTS);
                }
                // The whole group waits for its slowest rank four times a pass, as tensor
                // parallelism does in every layer: no rank of a machine gets ahead of a slow one.
                self.meet(run, free, group.clone());
            }
        }
    }

    /// A tensor group reduces over its machine's own links.
    fn meet(&self, run: &mut ClusterRun, free: &mut [f64], group: Range<u32>) {
        let all_in = group
            .clone()
            .map(|rank| free[rank as usize])
            .fold(0.0, f64::max);
        let ended = match self.struck(all_in + MEETING_S) {
            Some(ClusterFault::GpuStops { rank }) if group.contains(rank) => f64::INFINITY,
            _ => all_in + MEETING_S,
        };
        let name = tensor_name(group.start);
        for rank in group {
            let begun = std::mem::replace(&mut free[rank as usize], ended);
            // A rank that never comes enters nothing; the others of the group wait for ever in what
            // they did enter.
            if begun.is_infinite() {
                continue;
            }
            let of_rank = run.entered.entry(rank).or_default();
            // Only meetings are unseen: the last of them carries the number of the last.
            let before = of_rank.iter().rev().find(|entered| entered.is_unseen());
            let operation = Operation {
                communicator: hash(&name),
                op: CollectiveOp::ALLREDUCE,
                sequence: before.map_or(0, |before| before.operation.sequence + 1),
                bytes: MEETING_BYTES,
                begun_at: ns(begun),
                ended_at: Some(ns(begun)),
                // Inside of a machine no proxy moves data, and only proxies say when a call has
                // ended.
                may_have_ended: true,
                flows: Vec::new(),
            };
            let (channels, peers) = (0..0, BTreeMap::new());
            of_rank.push(EnteredOperation {
                operation,
                begun,
                ended,
                channels,
                peers,
            });
        }
    }

    /// Ranks of one stage with the same local rank.
    fn data_groups(&self) -> impl Iterator<Item = Vec<u32>> + '_ {
        let of_stage = self.machines / 2;
        (0..2 * LOCALS).map(move |at| {
            let (stage, local) = (at / LOCALS, at % LOCALS);
            (0..of_stage)
                .map(|machine| (stage * of_stage + machine) * LOCALS + local)
                .collect()
        })
    }

    fn join_all(&self, run: &mut ClusterRun) {
        for group in self.data_groups() {
            run.join(&data_name(&group), &group);
        }
        for rank in 0..self.ranks() / 2 {
            run.join(&pipe_name(rank), &[rank, rank + self.ranks() / 2]);
        }
        for machine in 0..self.machines {
            let group: Vec<u32> = (machine * LOCALS..(machine + 1) * LOCALS).collect();
            run.join(&tensor_name(group[0]), &group);
        }
    }

    fn compute_s(&self, rank: u32, at: f64) -> f64 {
        let usual_s = COMPUTE_S * self.scatter(rank, at);
        match self.struck(at + usual_s) {
            Some(ClusterFault::GpuSlow { ranks, factor }) if ranks.contains(&rank) => {
                factor * usual_s
            }
            Some(
                ClusterFault::GpuStops { rank: stopped }
                | ClusterFault::LoopStops { rank: stopped },
            ) if *stopped == rank => f64::INFINITY,
            _ => usual_s,
        }
    }

    /// The fault, if it has struck by `at`.
    fn struck(&self, at: f64) -> Option<&ClusterFault> {
        self.fault
            .as_ref()
            .filter(|(_, from)| at >= *from)
            .map(|(fault, _)| fault)
    }

    /// A factor about 1 that depends on who, when and the seed only.
    fn scatter(&self, who: u32, at: f64) -> f64 {
        // Drawn from who and when instead of from a stream, a time does not depend on how often
        // others drew before: a fault changes no time but those that it reaches.
        let key = [self.seed, u64::from(who), at.to_bits()];
        let mixed = key.iter().fold(0x9e37_79b9_7f4a_7c15_u64, |hash, word| {
            (hash ^ word)
                .wrapping_mul(0xbf58_476d_1ce4_e5b9)
                .rotate_left(31)
        });
        // The upper 53 bits fill a mantissa: a number from 0 up to 1.
        1.0 + self.jitter * ((mixed >> 11) as f64 / (1_u64 << 53) as f64 - 0.5)
    }

    /// One rank sends to another of the next or the last stage.
    fn pass(&self, run: &mut ClusterRun, free: &mut [f64], ranks: (u32, u32), number: u64) {
        let (from, to) = ranks;
        // The pair has one communicator for both ways, named by its rank of the first stage.
        let stage_one = from.min(to);
        let starts = [free[from as usize], free[to as usize]];
        self.operate(
            run,
            free,
            &[from, to],
            &starts,
            (TransferShape::Pair, pipe_name(stage_one)),
            (CollectiveOp::SEND, number),
        );
    }

    fn reduce(
        &self,
        run: &mut ClusterRun,
        free: &mut [f64],
        group: &[u32],
        op: CollectiveOp,
        number: u64,
    ) {
        let starts: Vec<f64> = group.iter().map(|rank| free[*rank as usize]).collect();
        self.operate(
            run,
            free,
            group,
            &starts,
            (TransferShape::Ring, data_name(group)),
            (op, number),
        );
    }

    fn operate(
        &self,
        run: &mut ClusterRun,
        free: &mut [f64],
        ranks: &[u32],
        starts: &[f64],
        (shape, name): (TransferShape, String),
        (op, sequence): (CollectiveOp, u64),
    ) {
        let kind = usize::from(shape == TransferShape::Pair);
        let (channels, count) = (CHANNELS[kind], TRANSFERS[kind]);
        let first = run.channels.len();
        run.channels
            .extend(transfers(self, shape, ranks, starts, channels, count));
        let known = first..run.channels.len();
        for (at, rank) in ranks.iter().enumerate() {
            let begun = starts[at];
            let own = run.channels[known.clone()].iter();
            let own = own.filter(|channel| [channel.from, channel.to].contains(rank));
            let ended = own
                .map(|channel| channel.end_of(*rank))
                .fold(begun, f64::max);
            // The next operation starts here, so those of a rank never overlap.
            free[*rank as usize] = ended;
            if begun.is_infinite() {
                continue;
            }
            let in_communicator = run.communicators[rank]
                .iter()
                .find(|communicator| communicator.hash == hash(&name));
            let op = match (op.is_point_to_point(), at) {
                // NCCL reports each end of a transfer by what its rank called.
                (true, 0) => CollectiveOp::SEND,
                (true, _) => CollectiveOp::RECEIVE,
                (false, _) => op,
            };
            let peers = run.peers(ranks, &name);
            let operation = Operation {
                communicator: in_communicator.map_or(0, |known| known.hash),
                op,
                sequence,
                bytes: (u64::from(channels) * count as u64) << 20,
                begun_at: ns(begun),
                ended_at: ended.is_finite().then(|| ns(ended)),
                may_have_ended: false,
                flows: Vec::new(),
            };
            let channels = known.clone();
            let entered = EnteredOperation {
                operation,
                begun,
                ended,
                channels,
                peers,
            };
            run.entered.entry(*rank).or_default().push(entered);
        }
    }
}

impl ClusterRun {
    /// The communicators of every rank.
    pub fn communicators(&self) -> impl Iterator<Item = (u32, &Communicator)> {
        let ranks = self.communicators.iter();
        ranks.flat_map(|(rank, known)| known.iter().map(|one| (*rank, one)))
    }

    /// What a reader of a rank's live table finds at `at` that it had not found at `before`:
    /// the time, what is in progress, what has ended since.
    pub fn look(
        &self,
        rank: u32,
        before: f64,
        at: f64,
    ) -> (RankNs, Vec<Operation>, Vec<Operation>) {
        let of_rank = self
            .entered
            .get(&rank)
            .map(Vec::as_slice)
            .unwrap_or_default();
        // Operations of a rank follow one another.
        // An unseen operation is reported `SETTLES_S` after it began: those that ended as long
        // before are done with.
        let first = of_rank.partition_point(|entered| entered.ended <= before - SETTLES_S);
        let (mut open, mut ended) = (Vec::new(), Vec::new());
        for entered in of_rank[first..]
            .iter()
            .take_while(|entered| entered.begun <= at)
        {
            let mut operation = entered.operation.clone();
            if entered.is_unseen() {
                let settled = entered.begun + SETTLES_S;
                if before < settled && settled <= at {
                    ended.push(operation);
                }
                continue;
            }
            if entered.ended <= before {
                continue;
            }
            operation.flows = self.flows(entered, rank, at);
            if entered.ended <= at {
                ended.push(operation);
            } else {
                operation.ended_at = None;
                open.push(operation);
            }
        }
        let begun = of_rank.partition_point(|entered| entered.begun + SETTLES_S <= at);
        let last = of_rank[..begun]
            .iter()
            .rev()
            .find(|entered| entered.is_unseen());
        // The live table keeps the last call of a communicator: nothing says that it has ended.
        open.extend(last.map(|last| Operation {
            ended_at: None,
            ..last.operation.clone()
        }));
        (ns(at), open, ended)
    }

    fn join(&mut self, name: &str, ranks: &[u32]) {
        for (at, rank) in ranks.iter().enumerate() {
            self.communicators
                .entry(*rank)
                .or_default()
                .push(Communicator {
                    hash: hash(name),
                    name: name.to_owned(),
                    rank: at as u32,
                    size: ranks.len() as u32,
                });
        }
    }

    /// Ranks of a communicator by the job's number of them.
    fn peers(&self, ranks: &[u32], name: &str) -> BTreeMap<u32, u32> {
        ranks
            .iter()
            .filter_map(|rank| {
                let mut own = self.communicators[rank].iter();
                let joined = own.find(|communicator| communicator.hash == hash(name))?;
                Some((*rank, joined.rank))
            })
            .collect()
    }

    /// What each rank entered.
    pub(crate) fn entered(&self) -> impl Iterator<Item = (u32, &[EnteredOperation])> {
        self.entered
            .iter()
            .map(|(rank, entered)| (*rank, entered.as_slice()))
    }

    /// The ends of an operation's channels that are a rank's: whether it sends, and to whom.
    pub(crate) fn ends(&self, entered: &EnteredOperation, rank: u32) -> Vec<(&Channel, bool, u32)> {
        let mut ends = Vec::new();
        for channel in &self.channels[entered.channels.clone()] {
            // In a ring of two, a rank is both ends of different channels to the same peer.
            for (end, other) in [(channel.from, channel.to), (channel.to, channel.from)] {
                if let Some(peer) = entered.peers.get(&other).filter(|_| end == rank) {
                    ends.push((channel, end == channel.from, *peer));
                }
            }
        }
        ends
    }

    fn flows(&self, entered: &EnteredOperation, rank: u32, at: f64) -> Vec<model::Flow> {
        let mut flows: Vec<model::Flow> = self
            .ends(entered, rank)
            .into_iter()
            .map(|(channel, _, peer)| channel.flow(rank, peer, entered.begun, at))
            .collect();
        flows.sort_by_key(|flow| (flow.channel, flow.peer, flow.direction));
        flows
    }
}

fn data_name(group: &[u32]) -> String {
    format!("dp{}", group[0])
}

fn tensor_name(first: u32) -> String {
    format!("tp{first}")
}

fn pipe_name(first: u32) -> String {
    format!("pp{first}")
}

/// A number for a name, as good as any.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
