use std::collections::BTreeMap;

use model::{
    BlockPlace, CollectiveIssue, CollectiveOp, Event, Input, Mark, Pass, PipelineBlock, RankNs,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use schedule::{Call, Lane, Plan, RankCalls, Scheme};

use crate::FORWARD_S;

/// Calls in which the layers of a stage meet in one pass.
const LAYER_CALLS: usize = 8;
/// Time between two calls of a host that runs ahead of its GPU, and how late it is at most, each
/// time anew and all the time, in seconds.
const LAUNCH_S: f64 = 0.000_8;
const LATE_S: f64 = 0.000_1;
const TRANSFER_S: f64 = 0.001;
/// Between the last block and the marker, and from there to the next iteration, in seconds.
const REDUCE_S: f64 = 0.050;
const INPUT_S: f64 = 0.005;
/// The time of the first call, in nanoseconds since 1970.
const BEGIN_NS: u64 = 1_755_590_104_000_000_000;
/// Where the streams of a process lie, about.
const STREAMS: u64 = 0x5591_0000_0000;
/// Characters that the patch has room for in a line, from the time on.
const LINE: usize = 127;
/// Message of a layer.
const ACTIVATIONS: u64 = 25_165_824;

/// A job with tensor, data and pipeline parallelism as MegaTrace's logs of NCCL calls tell it.
///
/// Ranks take the order of their blocks from a [`Plan`] and the rest from themselves: a block
/// begins once its input was sent and received, its ranks meet in each layer, hosts run ahead of
/// their GPUs and wait for them at the end of the block. No code that times blocks is shared with
/// the analysis.
#[derive(Clone, Debug)]
pub struct CalledJob {
    /// Ranks that share each layer.
    pub tp: u32,
    /// Pipelines.
    pub dp: u32,
    /// Stages.
    pub pp: u32,
    /// Microbatches of an iteration.
    pub microbatches: u32,
    /// The schedule; not [`Scheme::ZeroBubble`], which calls do not tell.
    pub scheme: Scheme,
    /// Whether the stages of a pipeline stand side by side, instead of its copies.
    pub pipeline_first: bool,
    /// Iterations.
    pub iterations: u64,
    /// Part by which blocks vary without a fault, the standard deviation of a normal distribution.
    pub noise: f64,
    /// Slow blocks.
    pub delays: Vec<Delay>,
    /// A rank that stops.
    pub stop: Option<Stop>,
    /// Whether the log tells communicators.
    pub hashes: bool,
    /// Of the noise.
    pub seed: u64,
}

/// A block of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The iteration, from 0.
    pub iteration: u64,
    /// The rank.
    pub rank: u32,
    /// The block.
    pub block: PipelineBlock,
}

/// A block that takes longer on one rank.
#[derive(Clone, Copy, Debug)]
pub struct Delay {
    /// Which.
    pub at: Spot,
    /// How much, in seconds.
    pub extra_s: f64,
}

/// A rank that calls nothing any more.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// In which block.
    pub at: Spot,
    /// What it does not call.
    pub before: Primitive,
}

/// A call of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Primitive {
    /// The one that receives its input.
    Receive,
    /// The one of this layer.
    Layer(usize),
    /// The one that sends its output.
    Send,
}

const WORLD: usize = 0;
const TENSOR: usize = 1;
const PIPELINE: usize = 2;
const DATA: usize = 3;
const MODEL: usize = 4;

/// A block that a rank worked on.
struct WorkedBlock {
    block: PipelineBlock,
    begin_s: f64,
    /// If it was done with it.
    end_s: Option<f64>,
}

/// One rank at work.
struct PipelineRank {
    stage: usize,
    copy: u32,
    tensor: u32,
    calls: Vec<Call>,
    /// Operations launched by communicator.
    counts: [u64; 5],
    /// Whether a send was just issued: a receive goes with it.
    sent: bool,
    /// How late it always is.
    late_s: f64,
    free_s: f64,
    /// The block it works on, and whether its input was asked for and its layers were called.
    at: usize,
    asked: bool,
    entered: bool,
    /// When its GPU is done with each block.
    due_s: Vec<f64>,
    stopped: bool,
    /// When its iterations began.
    begins_s: Vec<f64>,
    worked: Vec<WorkedBlock>,
}

impl PipelineRank {
    fn call(
        &mut self,
        free_s: f64,
        lane: usize,
        op: CollectiveOp,
        size: u64,
        random: &mut SmallRng,
    ) {
        let at_s = free_s + self.late_s + LATE_S * random.random_range(0.0..1.0);
        // Issued as a group, a send and a receive are one operation of the communicator.
        let joins = op == CollectiveOp::RECEIVE && std::mem::take(&mut self.sent);
        self.sent = op == CollectiveOp::SEND;
        let count = self.counts[lane] - u64::from(joins);
        self.counts[lane] += u64::from(!joins);
        self.calls.push(Call {
            at_ns: BEGIN_NS + (at_s * 1e9) as u64,
            op,
            size,
            lane: lane as u32,
            // Counted before the launch, so the first operation has 0.
            count: Some(count),
        });
    }
}

/// The number that marks have for a communicator of a kind.
fn group_number(lane: usize, group: u32) -> u32 {
    1 + lane as u32 * 1000 + group
}

impl CalledJob {
    /// A job of 1F1B to which nothing happens: 8 iterations of 8 microbatches, blocks that vary by
    /// 2 %, logs without hashes.
    pub fn healthy(tp: u32, pp: u32, dp: u32) -> Self {
        Self {
            tp,
            dp,
            pp,
            microbatches: 8,
            scheme: Scheme::OneForwardOneBackward,
            pipeline_first: false,
            iterations: 8,
            noise: 0.02,
            delays: Vec::new(),
            stop: None,
            hashes: false,
            seed: 7,
        }
    }

    /// The rank at these coordinates.
    pub fn rank(&self, stage: u32, copy: u32, tensor: u32) -> u32 {
        if self.pipeline_first {
            tensor + self.tp * (stage + self.pp * copy)
        } else {
            tensor + self.tp * (copy + self.dp * stage)
        }
    }

    /// What all ranks did until they were done, or none of them could go on.
    fn run(&self) -> BTreeMap<u32, PipelineRank> {
        let mut random = SmallRng::seed_from_u64(self.seed);
        let plan = self.scheme.plan(self.pp, self.microbatches);
        let mut ranks = BTreeMap::new();
        for stage in 0..self.pp {
            for (copy, tensor) in (0..self.dp).flat_map(|copy| (0..self.tp).map(move |t| (copy, t)))
            {
                let rank = PipelineRank {
                    stage: stage as usize,
                    copy,
                    tensor,
                    calls: Vec::new(),
                    counts: [0; 5],
                    sent: false,
                    late_s: LATE_S * random.random_range(0.0..1.0),
                    free_s: INPUT_S,
                    at: 0,
                    asked: false,
                    entered: false,
                    due_s: Vec::new(),
                    stopped: false,
                    begins_s: Vec::new(),
                    worked: Vec::new(),
                };
                ranks.insert(self.rank(stage, copy, tensor), rank);
            }
        }
        for iteration in 0..self.iterations {
            self.blocks(&plan, iteration, &mut ranks, &mut random);
            if !self.end(&mut ranks, &mut random) {
                break;
            }
        }
        for rank in ranks.values_mut() {
            // Each call is late by another time, and logs are in order of time.
            rank.calls.sort_by_key(|call| call.at_ns);
        }
        ranks
    }

    /// Which of the communicators of each kind a rank is in.
    fn groups(&self, rank: &PipelineRank) -> [u32; 5] {
        [
            0,
            rank.stage as u32 * self.dp + rank.copy,
            rank.copy * self.tp + rank.tensor,
            rank.stage as u32 * self.tp + rank.tensor,
            rank.copy,
        ]
    }

    /// The logs of all ranks, in the order of ranks; all end where no rank can go on.
    pub fn logs(&self) -> Vec<RankCalls> {
        self.run()
            .into_iter()
            .map(|(rank, seen)| {
                let lanes = self.lanes(rank, &seen);
                RankCalls {
                    rank,
                    host: None,
                    lanes,
                    calls: seen.calls,
                }
            })
            .collect()
    }

    /// The communicators of a rank, as logs name them.
    fn lanes(&self, rank: u32, seen: &PipelineRank) -> Vec<Lane> {
        let pointer = STREAMS + (u64::from(rank) << 16);
        self.groups(seen)
            .into_iter()
            .enumerate()
            .map(|(lane, group)| Lane {
                pointer: format!("{:#x}", pointer + ((lane as u64) << 8)),
                hash: if self.hashes {
                    // As long as the signed 64-bit numbers of real logs, so that long lines cut it
                    // off.
                    format!("-59562859790{lane}{group:07}")
                } else {
                    String::new()
                },
            })
            .collect()
    }

    /// The same job as its ranks tell it while it runs, in order of time: what they call, and the
    /// blocks they begin and end.
    pub fn inputs(&self) -> Vec<Input> {
        let ranks = self.run();
        // Only the chunks are asked for, which do not depend on the microbatches.
        let stages = self.scheme.plan(self.pp, 0).chunks() * self.pp;
        let mut groups: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut marks = Vec::new();
        for (name, rank) in &ranks {
            let lanes = self.groups(rank);
            for (lane, group) in lanes.into_iter().enumerate() {
                groups
                    .entry(group_number(lane, group))
                    .or_default()
                    .push(*name);
            }
            let mut mark = |at_s: f64, event: Event| {
                let step = rank.begins_s.partition_point(|begin_s| *begin_s <= at_s);
                let (at, step) = (RankNs((at_s * 1e9) as u64), step.saturating_sub(1));
                let (step, on_loop_thread) = (step as u32, true);
                let mark = Mark {
                    at,
                    step,
                    on_loop_thread,
                    event,
                };
                marks.push((at.0, Input::Mark { rank: *name, mark }));
            };
            let first_rank = self.rank(0, rank.copy, rank.tensor);
            for WorkedBlock {
                block,
                begin_s,
                end_s,
            } in &rank.worked
            {
                let PipelineBlock {
                    pass,
                    microbatch,
                    chunk,
                } = *block;
                let stage = rank.stage as u32 + chunk * self.pp;
                let place = BlockPlace {
                    pass,
                    stage,
                    microbatch,
                    stages,
                    first_rank,
                };
                mark(*begin_s, Event::BlockBegin(place));
                if let Some(end_s) = end_s {
                    mark(*end_s, Event::BlockEnd(place));
                }
            }
            let mut issued = [0; 5];
            for call in &rank.calls {
                let lane = call.lane as usize;
                let collective = u64::from(!call.op.is_point_to_point());
                issued[lane] += collective;
                let group = group_number(lane, lanes[lane]);
                // Sends and receives have no number.
                let nth = issued[lane] * collective;
                let issue = CollectiveIssue::new(call.op, group, nth);
                let issue = CollectiveIssue {
                    bytes: Some(call.size),
                    ..issue
                };
                let at_s = (call.at_ns - BEGIN_NS) as f64 * 1e-9;
                mark(at_s, Event::CollectiveIssue(issue));
            }
        }
        marks.sort_by_key(|(at_ns, _)| *at_ns);
        groups
            .into_iter()
            .filter(|(_, members)| members.len() > 1)
            .map(|(group, members)| {
                let name = format!("group {group}");
                Input::Group {
                    group,
                    name,
                    members: members.into_iter().collect(),
                }
            })
            .chain(marks.into_iter().map(|(_, mark)| mark))
            .collect()
    }

    /// The blocks of an iteration, as far as they come.
    fn blocks(
        &self,
        plan: &Plan,
        iteration: u64,
        ranks: &mut BTreeMap<u32, PipelineRank>,
        random: &mut SmallRng,
    ) {
        let mut sent_s: BTreeMap<(u32, u32, usize, PipelineBlock), f64> = BTreeMap::new();
        // The GPUs of a stage vary together: they wait for one another in each layer.
        let mut noise: BTreeMap<(u32, usize), Vec<f64>> = BTreeMap::new();
        let normal = rand_distr::Normal::new(1.0, self.noise).expect("a finite deviation");
        for rank in ranks.values_mut() {
            (rank.at, rank.asked, rank.entered) = (0, false, false);
            rank.due_s.clear();
            rank.begins_s.push(rank.free_s);
            let blocks = plan.order(rank.stage).len();
            noise.entry((rank.copy, rank.stage)).or_insert_with(|| {
                (0..blocks)
                    // However far a draw is out, no block takes less than nothing.
                    .map(|_| random.sample(normal).max(0.1))
                    .collect()
            });
        }
        let names: Vec<u32> = ranks.keys().copied().collect();
        let mut moved = true;
        // Stages wait for one another both ways: round after round, until nobody can go on.
        while std::mem::take(&mut moved) {
            for name in &names {
                let Some(rank) = ranks.get(name) else {
                    continue;
                };
                let Some(&block) = plan.order(rank.stage).get(rank.at) else {
                    continue;
                };
                let (stage, copy, tensor, at) = (rank.stage, rank.copy, rank.tensor, rank.at);
                // Ranks of a stage wait for one another: the time when all are done.
                // Looked at before the rank itself is borrowed for writing.
                let members = (0..self.tp).map(|t| self.rank(stage as u32, copy, t));
                let due_s = members
                    .map(|member| ranks[&member].due_s.get(at).copied())
                    .try_fold(0.0, |last: f64, due_s| Some(last.max(due_s?)));
                let spot = Spot {
                    iteration,
                    rank: *name,
                    block,
                };
                let stop = self.stop.filter(|stop| stop.at == spot);
                let stop = stop.map(|stop| stop.before);
                let source = plan.source(stage, block);
                let Some(rank) = ranks.get_mut(name).filter(|rank| !rank.stopped) else {
                    continue;
                };
                if !rank.asked {
                    moved = true;
                    rank.stopped = stop == Some(Primitive::Receive);
                    if !rank.stopped && source.is_some() {
                        let op = CollectiveOp::RECEIVE;
                        rank.call(rank.free_s, PIPELINE, op, ACTIVATIONS, random);
                    }
                    rank.asked = true;
                } else if !rank.entered {
                    let input_s = match source {
                        Some((from, of)) => {
                            let Some(sent_s) = sent_s.get(&(copy, tensor, from, of)) else {
                                continue;
                            };
                            sent_s + TRANSFER_S
                        }
                        None => 0.0,
                    };
                    moved = true;
                    // A receive after the input came is a call of its own, not the other half of a
                    // send.
                    rank.sent = false;
                    let begin_s = rank.free_s.max(input_s);
                    let delays = self.delays.iter().filter(|delay| delay.at == spot);
                    let extra_s: f64 = delays.map(|delay| delay.extra_s).sum();
                    let calls = match stop {
                        Some(Primitive::Layer(calls)) => calls,
                        _ => usize::MAX,
                    };
                    // The rank makes the calls before the one it stops at; without a due time its
                    // stage stays with it.
                    rank.stopped = calls < usize::MAX;
                    rank.worked.push(WorkedBlock {
                        block,
                        begin_s,
                        end_s: None,
                    });
                    self.layers(rank, block, (begin_s, extra_s), calls, random);
                    if rank.stopped {
                        continue;
                    }
                    // Backward has two gradients to compute, of inputs and of weights.
                    let times = if block.pass == Pass::Forward {
                        1.0
                    } else {
                        2.0
                    };
                    let chunks = f64::from(plan.chunks());
                    let usual_s = FORWARD_S * times / chunks * noise[&(copy, stage)][at];
                    rank.due_s.push(begin_s + usual_s + extra_s);
                    rank.entered = true;
                } else if let Some(due_s) = due_s {
                    moved = true;
                    rank.free_s = due_s;
                    if let Some(worked) = rank.worked.last_mut() {
                        worked.end_s = Some(due_s);
                    }
                    rank.stopped = stop == Some(Primitive::Send);
                    if rank.stopped {
                        continue;
                    }
                    if plan.target(stage, block).is_some() {
                        rank.call(due_s, PIPELINE, CollectiveOp::SEND, ACTIVATIONS, random);
                        sent_s.insert((copy, tensor, stage, block), due_s);
                    }
                    (rank.at, rank.asked, rank.entered) = (at + 1, false, false);
                }
            }
        }
    }

    /// Calls in which the layers of a block meet; a delay is spread over them.
    fn layers(
        &self,
        rank: &mut PipelineRank,
        block: PipelineBlock,
        (begin_s, extra_s): (f64, f64),
        most: usize,
        random: &mut SmallRng,
    ) {
        if self.tp == 1 {
            return;
        }
        let forward = block.pass == Pass::Forward;
        let first = forward && rank.stage == 0 && block.chunk == 0;
        let last = forward && rank.stage + 1 == self.pp as usize;
        // As in logs of Megatron-LM: the first stage broadcasts its input, the last one sums the
        // loss.
        let before = [(CollectiveOp::BROADCAST, 32_768); 3];
        let layers = [(CollectiveOp::ALLREDUCE, ACTIVATIONS); LAYER_CALLS];
        let after = [(CollectiveOp::ALLREDUCE, 4_096); 3];
        let calls = before.into_iter().filter(|_| first).chain(layers);
        let calls: Vec<_> = calls.chain(after.into_iter().filter(|_| last)).collect();
        for (at, (op, size)) in calls.iter().enumerate().take(most) {
            // Each layer takes its part of the delay, so that no single call stands out.
            let part = at as f64 / calls.len() as f64;
            let at_s = begin_s + at as f64 * LAUNCH_S + part * extra_s;
            rank.call(at_s, TENSOR, *op, *size, random);
        }
    }

    /// What all ranks do after their blocks; whether all came that far.
    fn end(&self, ranks: &mut BTreeMap<u32, PipelineRank>, random: &mut SmallRng) -> bool {
        let blocks = self.scheme.plan(self.pp, self.microbatches).order(0).len();
        let mut all = true;
        let mut met_s = 0.0f64;
        for rank in ranks.values_mut() {
            if rank.at < blocks {
                all = false;
                continue;
            }
            // Ranks that came so far ask, even if another never comes: a log ends in this call.
            rank.call(rank.free_s, WORLD, CollectiveOp::ALLREDUCE, 1, random);
            met_s = met_s.max(rank.free_s);
        }
        for rank in ranks.values_mut().filter(|_| all) {
            // The size in a real log; that of the first stage differs, as it has the embedding.
            let shard = 2_529_312_768 + 64 * u64::from(rank.stage == 0);
            let (reduce, gather) = (CollectiveOp::REDUCE_SCATTER, CollectiveOp::ALLGATHER);
            let tail = [
                (DATA, reduce, shard),
                (WORLD, CollectiveOp::ALLREDUCE, 1),
                (MODEL, CollectiveOp::ALLREDUCE, 1),
                (DATA, gather, 2 * shard),
                (WORLD, gather, 96),
            ];
            for (at, (lane, op, size)) in (1..).zip(tail) {
                let at_s = met_s + REDUCE_S * f64::from(at) / tail.len() as f64;
                rank.call(at_s, lane, op, size, random);
            }
            if self.dp == 1 {
                // The count of a communicator of one rank stands still.
                rank.calls
                    .iter_mut()
                    .filter(|call| call.lane == DATA as u32)
                    .for_each(|call| {
                        call.count = Some(0);
                    });
            }
            rank.free_s = met_s + REDUCE_S + INPUT_S;
        }
        all
    }
}

/// A log as MegaTrace's patch writes it: with hashes, if the communicators have some (V2), or
/// without (V1); without counts as its first release did (V0). The end of long lines is cut off.
pub fn log_text(log: &RankCalls) -> String {
    let mut text = String::new();
    for call in &log.calls {
        let lane = &log.lanes[call.lane as usize];
        let name = match call.op {
            CollectiveOp::ALLREDUCE => "AllReduce",
            CollectiveOp::ALLGATHER => "AllGather",
            CollectiveOp::REDUCE_SCATTER => "ReduceScatter",
            CollectiveOp::SEND => "Send",
            CollectiveOp::RECEIVE => "Recv",
            _ => "Broadcast",
        };
        let (seconds, ns) = (call.at_ns / 1_000_000_000, call.at_ns % 1_000_000_000);
        let mut written = format!(
            "[{seconds}.{ns:09}] [Rank {}] Fun {name} Data {} stream {}",
            log.rank, call.size, lane.pointer
        );
        if let Some(count) = call.count {
            // The patch adds this when it writes a line from its buffer, so it is not cut.
            text += "[save_count 1] ";
            written += &format!(" opCount {count}");
        }
        if !lane.hash.is_empty() {
            written += &format!(" groupHash {}", lane.hash);
        }
        // Every character is ASCII, so the cut hits none in its middle.
        written.truncate(LINE);
        text += &written;
        text.push('\n');
    }
    text
}
