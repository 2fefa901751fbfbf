use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use whatif::{JobLayout, OpKind, Row};

/// A forward pass without a fault, in seconds; a backward pass takes twice as long.
pub const FORWARD_S: f64 = 0.040;
/// How much passes vary without a fault.
const NOISE: f64 = 0.02;
/// Transfers, and operations between the last pass and the optimizer, in seconds.
const TRANSFER_S: f64 = 0.001;
const GATHER_S: f64 = 0.010;
const REDUCE_S: f64 = 0.020;
const OPTIMIZER_S: f64 = 0.015;

/// What makes a pipeline slow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Drag {
    /// The passes of one rank take this many times as long.
    Rank {
        /// Its coordinate in data parallelism.
        dp_rank: u32,
        /// Its stage.
        stage: u32,
        /// How many times as long.
        times: f64,
    },
    /// The passes of one stage take this many times as long.
    Stage {
        /// The stage.
        stage: u32,
        /// How many times as long.
        times: f64,
    },
    /// Microbatches cost between one and this many times the shortest.
    Data {
        /// How many times.
        times: f64,
    },
}

/// A pipeline-parallel job with the 1F1B schedule: sampled steps of it, operation by
/// operation, as what-if traces tell them.
///
/// Times are solved rank by rank from the schedule; nothing is shared with the model that
/// reads the rows.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// Data-parallel ranks.
    pub dp: u32,
    /// Stages.
    pub pp: u32,
    /// Tensor-parallel ranks, of which the trace tells one.
    pub tp: u32,
    /// Microbatches of a step and rank.
    pub microbatches: u32,
    /// Steps.
    pub steps: u64,
    /// What makes it slow; nothing if empty.
    pub drags: Vec<Drag>,
    /// Of the noise and of the data.
    pub seed: u64,
}

/// One stage's part of one step of one data-parallel rank.
#[derive(Clone, Default)]
struct StageRun {
    /// Start and end of each forward pass, and of each backward pass.
    passes: [Vec<(f64, f64)>; 2],
    /// The order in which they are run: direction and microbatch.
    order: Vec<(usize, usize)>,
}

impl StageRun {
    /// When the receive of a pass is issued: after the pass before, of the first backward pass
    /// after the pass but one before it.
    fn issued_s(&self, direction: usize, at: usize) -> f64 {
        let before = match (direction, at.checked_sub(1)) {
            (_, Some(before)) => Some((direction, before)),
            (0, None) => None,
            (_, None) => {
                let first = self.order.iter().position(|pass| pass.0 == 1);
                first
                    .and_then(|first| first.checked_sub(2))
                    .map(|at| self.order[at])
            }
        };
        // The pass before has run whenever this one is looked at, so the index is in bounds.
        before.map_or(0.0, |(direction, at)| self.passes[direction][at].1)
    }

    /// When its last pass ends.
    fn last_s(&self) -> f64 {
        self.passes
            .iter()
            .flatten()
            .map(|pass| pass.1)
            .fold(0.0, f64::max)
    }
}

impl Pipeline {
    /// The layout of the job.
    pub fn layout(&self) -> JobLayout {
        JobLayout {
            trial_name: "sim".to_owned(),
            run_id: 0,
            dp_size: self.dp,
            dsp_size: 1,
            pp_size: self.pp,
            tp_size: self.tp,
            vpp_size: 1,
            world_size: self.dp * self.pp * self.tp,
        }
    }

    /// Every operation of every step.
    pub fn rows(&self) -> Vec<Row> {
        let mut random = SmallRng::seed_from_u64(self.seed);
        let mut rows = Vec::new();
        for step in 0..self.steps {
            // Sampled steps do not follow one another.
            self.step(10 + step * 3, &mut random, &mut rows);
        }
        rows
    }

    fn step(&self, step: u64, random: &mut SmallRng, rows: &mut Vec<Row>) {
        let ranks: Vec<Vec<StageRun>> = (0..self.dp)
            .map(|dp_rank| self.pipeline(dp_rank, random))
            .collect();
        // Everything meets in the reduction, stage by stage, and then in the clipping.
        let pp = self.pp as usize;
        let reduced_s: Vec<f64> = (0..pp)
            .map(|stage| {
                let ready = ranks.iter().map(|stages| ready_s(stages, stage));
                ready.fold(0.0, f64::max) + REDUCE_S
            })
            .collect();
        let clipped = reduced_s.iter().copied().fold(0.0, f64::max) + TRANSFER_S;
        for (dp_rank, stages) in (0..).zip(&ranks) {
            for (at, stage) in (0u32..).zip(0..pp) {
                let mut push = |kind, number, microbatch, (start_s, end_s): (f64, f64)| {
                    let is_pass = microbatch >= 0;
                    rows.push(Row {
                        dp_rank,
                        stage: at,
                        // Stages lie outermost and tensor ranks innermost, of which the trace has
                        // the first.
                        rank: (at * self.dp + dp_rank) * self.tp,
                        step,
                        kind,
                        start_s,
                        duration_s: end_s - start_s,
                        end_s,
                        number,
                        chunk: if is_pass || kind == OpKind::ParamsAllGather {
                            0
                        } else {
                            -1
                        },
                        microbatch,
                        global_chunk: if is_pass { at.cast_signed() } else { -1 },
                    });
                };
                push(OpKind::ParamsAllGather, 0, -1, (0.0, GATHER_S));
                transfers(stages, stage, &mut |kind, number, times| {
                    push(kind, number, -1, times);
                });
                for (kind, passes) in [OpKind::ForwardCompute, OpKind::BackwardCompute]
                    .into_iter()
                    .zip(&stages[stage].passes)
                {
                    for (number, times) in (0..).zip(passes) {
                        push(kind, number, number.cast_signed(), *times);
                    }
                }
                let end_s = stages[stage].last_s();
                let ready_s = ready_s(stages, stage);
                push(OpKind::Gc, 0, -1, (end_s, end_s));
                push(
                    OpKind::LayernormAllReduce,
                    0,
                    -1,
                    (end_s, end_s + TRANSFER_S),
                );
                if stage == 0 || stage + 1 == pp {
                    let begin_s = end_s + TRANSFER_S;
                    push(OpKind::EmbeddingAllReduce, 0, -1, (begin_s, ready_s));
                }
                push(
                    OpKind::GradsReduceScatter,
                    0,
                    -1,
                    (ready_s, reduced_s[stage]),
                );
                push(OpKind::OptimizerClip, 0, -1, (reduced_s[stage], clipped));
                push(OpKind::Optimizer, 0, -1, (clipped, clipped + OPTIMIZER_S));
            }
        }
    }

    /// The passes of one data-parallel rank in one step.
    fn pipeline(&self, dp_rank: u32, random: &mut SmallRng) -> Vec<StageRun> {
        let (pp, count) = (self.pp as usize, self.microbatches as usize);
        let longest = self.drags.iter().find_map(|drag| match drag {
            Drag::Data { times } => Some(*times),
            _ => None,
        });
        let costs: Vec<f64> = (0..count)
            // A microbatch costs the same on every stage of its rank: long sequences are long
            // everywhere.
            .map(|_| longest.map_or(1.0, |times| random.random_range(1.0..times)))
            .collect();
        let mut stages: Vec<StageRun> = (0..pp)
            .map(|stage| StageRun {
                // The first pass of the steady phase is a forward pass, so a stage is one ahead of
                // its warm-up.
                order: one_forward_one_backward((pp - stage).min(count), count),
                ..StageRun::default()
            })
            .collect();
        let mut free_s = vec![GATHER_S; pp];
        let mut next = vec![0; pp];
        // 1F1B has an order that can be worked off, so each round gets some stage on.
        while next.iter().any(|next| *next < 2 * count) {
            for stage in 0..pp {
                let Some(&(direction, at)) = stages[stage].order.get(next[stage]) else {
                    continue;
                };
                let from = match direction {
                    0 => stage.checked_sub(1).map(|from| (from, 0)),
                    // On the last stage, a backward pass follows on its own forward pass, with no
                    // transfer between.
                    _ if stage + 1 < pp => Some((stage + 1, 1)),
                    _ => Some((stage, 0)),
                };
                let input_s = match from {
                    None => 0.0,
                    Some((from, of)) => {
                        let Some(pass) = stages[from].passes[of].get(at) else {
                            continue;
                        };
                        if from == stage {
                            pass.1
                        } else {
                            // A transfer needs both ends: it runs once the sender has sent and the
                            // receiver has asked.
                            pass.1.max(stages[stage].issued_s(direction, at)) + TRANSFER_S
                        }
                    }
                };
                let start_s = free_s[stage].max(input_s);
                let noise = 1.0 + NOISE * random.random_range(-1.0..1.0);
                let usual_s = FORWARD_S * [1.0, 2.0][direction] * costs[at] * noise;
                let end_s = start_s + usual_s * self.times(dp_rank, stage as u32);
                stages[stage].passes[direction].push((start_s, end_s));
                free_s[stage] = end_s;
                next[stage] += 1;
            }
        }
        stages
    }

    /// How many times as long as usual the passes of a rank take.
    fn times(&self, dp_rank: u32, stage: u32) -> f64 {
        let times = self.drags.iter().map(|drag| match *drag {
            Drag::Rank {
                dp_rank: slow,
                stage: at,
                times,
            } if (slow, at) == (dp_rank, stage) => times,
            Drag::Stage { stage: slow, times } if slow == stage => times,
            _ => 1.0,
        });
        times.product()
    }
}

/// When a stage is ready for the reduction: the first and the last have met before, over the
/// embedding that they share.
fn ready_s(stages: &[StageRun], stage: usize) -> f64 {
    let ready_s = stages[stage].last_s() + TRANSFER_S;
    if stage > 0 && stage + 1 < stages.len() {
        return ready_s;
    }
    let ends_s = stages[0].last_s().max(stages[stages.len() - 1].last_s());
    ready_s.max(ends_s + TRANSFER_S) + TRANSFER_S
}

/// The passes of a stage in their order, as direction and microbatch: so many forward passes, then
/// one backward and one forward in turn.
fn one_forward_one_backward(ahead: usize, count: usize) -> Vec<(usize, usize)> {
    let first = (0..ahead).map(|at| (0, at));
    let pairs = (0..count).flat_map(|at| [(1, at), (0, at + ahead)]);
    first.chain(pairs.filter(|(_, at)| *at < count)).collect()
}

/// Sends and receives of a stage.
fn transfers(stages: &[StageRun], stage: usize, push: &mut dyn FnMut(OpKind, u32, (f64, f64))) {
    for (direction, send, receive) in [
        (0, OpKind::ForwardSend, OpKind::ForwardRecv),
        (1, OpKind::BackwardSend, OpKind::BackwardRecv),
    ] {
        let next = Some(stage + 1).filter(|next| *next < stages.len());
        let previous = stage.checked_sub(1);
        let (to, from) = if direction == 0 {
            (next, previous)
        } else {
            (previous, next)
        };
        if let Some(to) = to {
            for (number, pass) in (0..).zip(&stages[stage].passes[direction]) {
                let issued_s = stages[to].issued_s(direction, number as usize);
                push(send, number, (pass.1, pass.1.max(issued_s) + TRANSFER_S));
            }
        }
        if let Some(from) = from {
            for (number, pass) in (0..).zip(&stages[from].passes[direction]) {
                let start_s = stages[stage].issued_s(direction, number as usize);
                push(receive, number, (start_s, pass.1.max(start_s) + TRANSFER_S));
            }
        }
    }
}
