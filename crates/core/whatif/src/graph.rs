use std::collections::VecDeque;

use crate::OpKind::{
    BackwardCompute, BackwardRecv, BackwardSend, EmbeddingAllReduce, ForwardCompute, ForwardRecv,
    ForwardSend, Gc, GradsReduceScatter, LayernormAllReduce, Optimizer, OptimizerClip,
    ParamsAllGather, SeparateAllReduce,
};
use crate::trace::PipelineOp;
use crate::{OpKind, PipelineTrace, TraceError};

/// How far clocks of two recordings of one rank may be apart, in seconds: a receive that
/// starts later than the last pass, or a send that ends before the first, did nothing.
///
/// # Source
/// StragglerAnalysis, dependency model.
const CLOCK_S: f64 = 5e-5;

/// Operations that end together, or a single one.
#[derive(Clone, Debug)]
pub(crate) struct OpUnit {
    pub(crate) ops: Vec<usize>,
    /// Whether nobody ends before everybody started: all members, and all data-parallel
    /// ranks if `across_dp`.
    pub(crate) meets: bool,
    pub(crate) across_dp: bool,
}

/// What waits for what in one step of one data-parallel rank. All steps and ranks share it.
///
/// # Source
/// The dependency model of ByteDance-Seed/StragglerAnalysis, written anew: chains of each
/// stream, passes and their sends and receives, pairs of neighbouring stages, and the tail
/// from the last pass to the optimizer. Operations of the tail that a trace lacks are passed
/// over, there they are required.
#[derive(Clone, Debug)]
pub(crate) struct DependencyGraph {
    /// What each operation waits for.
    pub(crate) after: Vec<Vec<usize>>,
    /// In an order in which each unit stands behind what it waits for.
    pub(crate) units: Vec<OpUnit>,
    /// Operations nothing waits for.
    pub(crate) last: Vec<usize>,
}

impl DependencyGraph {
    pub(crate) fn new(trace: &PipelineTrace) -> Result<Self, TraceError> {
        let mut builder = DependencyBuilder {
            trace,
            after: vec![Vec::new(); trace.ops().len()],
            moves: vec![false; trace.ops().len()],
        };
        for stage in 0..trace.pp() {
            builder.stage(stage)?;
        }
        let groups = builder.groups()?;
        let units = in_order(groups, &builder.after)?;
        let mut is_last = vec![true; trace.ops().len()];
        for op in builder.after.iter().flatten() {
            is_last[*op] = false;
        }
        let last = (0..is_last.len()).filter(|op| is_last[*op]).collect();
        Ok(Self {
            after: builder.after,
            units,
            last,
        })
    }
}

struct DependencyBuilder<'a> {
    trace: &'a PipelineTrace,
    after: Vec<Vec<usize>>,
    /// Sends and receives that moved something.
    moves: Vec<bool>,
}

impl DependencyBuilder<'_> {
    fn op(&self, op: usize) -> &PipelineOp {
        &self.trace.ops()[op]
    }

    /// Start in the first step of the first data-parallel rank.
    fn start(&self, op: usize) -> f64 {
        // One lane does: all steps and ranks carry out the same schedule.
        self.trace.starts(op)[0]
    }

    fn end(&self, op: usize) -> f64 {
        self.trace.ends(op)[0]
    }

    /// Operations of some kinds on a stage, by start.
    fn sorted(&self, stage: usize, kinds: &[OpKind]) -> Vec<usize> {
        let mut ops: Vec<usize> = kinds
            .iter()
            .flat_map(|kind| self.trace.of_kind(*kind, stage))
            .collect();
        ops.sort_by(|a, b| {
            let [first, second] = [*a, *b].map(|op| (self.op(op).number, self.op(op).kind));
            self.start(*a)
                .total_cmp(&self.start(*b))
                // Of equal starts the order must not depend on the order of rows.
                .then(first.cmp(&second))
        });
        ops
    }

    fn chain(&mut self, ops: &[usize]) {
        for pair in ops.windows(2) {
            self.after[pair[1]].push(pair[0]);
        }
    }

    fn stage(&mut self, stage: usize) -> Result<(), TraceError> {
        let passes = self.sorted(stage, &[ForwardCompute, BackwardCompute]);
        self.chain(&passes);
        for kind in [ForwardSend, ForwardRecv, BackwardSend, BackwardRecv] {
            let stream = self.sorted(stage, &[kind]);
            self.chain(&stream);
            self.match_passes(kind, stage, &stream)?;
        }
        self.first_backward(stage, &passes);
        self.tail(stage, &passes)
    }

    /// A receive comes before its pass and after the pass before that one; a send after its
    /// pass.
    fn match_passes(
        &mut self,
        kind: OpKind,
        stage: usize,
        stream: &[usize],
    ) -> Result<(), TraceError> {
        let direction = match kind {
            ForwardSend | ForwardRecv => ForwardCompute,
            _ => BackwardCompute,
        };
        let receives = matches!(kind, ForwardRecv | BackwardRecv);
        let passes = self.trace.of_kind(direction, stage);
        let last_start = passes
            .clone()
            .map(|op| self.start(op))
            .fold(f64::MIN, f64::max);
        let first_end = passes
            .clone()
            .map(|op| self.end(op))
            .fold(f64::MAX, f64::min);
        let stream: Vec<usize> = stream
            .iter()
            .copied()
            .filter(|op| {
                if receives {
                    self.start(*op) <= last_start + CLOCK_S
                } else {
                    self.end(*op) >= first_end - CLOCK_S
                }
            })
            .collect();
        if stream.is_empty() {
            return Ok(());
        }
        let (found, wanted) = (stream.len(), passes.len());
        // At the ends of the model a message may be missing that would move nothing.
        let is_end = stage == 0 || stage + 1 == self.trace.pp();
        if found != wanted && (found + 1 != wanted || !is_end) {
            let reason = format!(
                "there are {found} of them and {wanted} {}",
                direction.name()
            );
            let place = format!("{} of stage {stage}", kind.name());
            return Err(TraceError::new(place, reason));
        }
        // The first stage may lack the receive that would have received nothing.
        let skipped = usize::from(receives && found != wanted);
        let chunks =
            i64::from(self.trace.layout().vpp_size) * i64::from(self.trace.layout().pp_size);
        let onward = matches!(kind, ForwardSend | BackwardRecv);
        for (op, pass) in stream.into_iter().zip(passes.clone().skip(skipped)) {
            let peer = i64::from(self.op(pass).global_chunk) + if onward { 1 } else { -1 };
            // Calls are recorded at the ends of the model too, where nobody is on the other side.
            self.moves[op] = (0..chunks).contains(&peer);
            if receives {
                self.after[pass].push(op);
                if pass > passes.start {
                    self.after[op].push(pass - 1);
                }
            } else {
                self.after[op].push(pass);
            }
        }
        Ok(())
    }

    /// The first backward transfers are issued after the last forward pass but one before
    /// the first backward pass.
    fn first_backward(&mut self, stage: usize, passes: &[usize]) {
        let first = passes
            .iter()
            .position(|op| self.op(*op).kind == BackwardCompute)
            .unwrap_or(0);
        if first < 2 {
            return;
        }
        let before = passes[first - 2];
        for kind in [BackwardRecv, BackwardSend] {
            if let Some(op) = self.trace.of_kind(kind, stage).next() {
                self.after[op].push(before);
            }
        }
    }

    /// The first operation of a kind on a stage, which steps have one of.
    fn first(&self, kind: OpKind, stage: usize) -> Option<usize> {
        self.trace.of_kind(kind, stage).next()
    }

    fn uses_dp(&self) -> bool {
        self.trace.layout().dp_size > 1 || self.trace.layout().dsp_size > 1
    }

    /// From the last pass to the optimizer, and the collectives of data parallelism.
    fn tail(&mut self, stage: usize, passes: &[usize]) -> Result<(), TraceError> {
        let Some(last) = self.last_to_end(passes.iter().copied()) else {
            let place = format!("stage {stage}");
            return Err(TraceError::new(place, "it has no forward-compute"));
        };
        let reduces = self.trace.of_kind(GradsReduceScatter, stage);
        let separate = self
            .first(SeparateAllReduce, stage)
            .filter(|_| self.uses_dp());
        let is_overlapped = separate.is_some();
        let mut tail = vec![last];
        tail.extend(self.first(Gc, stage));
        let begin = tail.len();
        tail.extend(self.first(LayernormAllReduce, stage));
        tail.extend(self.first(EmbeddingAllReduce, stage));
        if is_overlapped {
            tail.extend(separate);
        } else if self.uses_dp() {
            tail.extend(reduces.clone());
        }
        tail.extend(self.first(OptimizerClip, stage));
        tail.extend(self.first(Optimizer, stage));
        self.chain(&tail);
        if self.uses_dp() {
            let stream = self.sorted(stage, &[ParamsAllGather, GradsReduceScatter]);
            self.chain(&stream);
            self.gathers(stage)?;
        }
        if is_overlapped {
            // Overlapped with passes, but not with what follows them.
            if let (Some(next), Some(reduce)) = (tail.get(begin), reduces.last()) {
                self.after[*next].push(reduce);
            }
            self.overlapped_reduces(stage)?;
        }
        Ok(())
    }

    /// The first of those that end last.
    fn last_to_end(&self, ops: impl Iterator<Item = usize>) -> Option<usize> {
        ops.reduce(|last, op| {
            if self.end(op) > self.end(last) {
                op
            } else {
                last
            }
        })
    }

    /// The first forward pass of a chunk waits for the chunk's last gather.
    fn gathers(&mut self, stage: usize) -> Result<(), TraceError> {
        let passes = self.sorted(stage, &[ForwardCompute]);
        let mut known = Vec::new();
        // From behind: the first of a chunk that comes is its last.
        for gather in self.trace.of_kind(ParamsAllGather, stage).rev() {
            let chunk = self.op(gather).chunk;
            if known.contains(&chunk) {
                continue;
            }
            known.push(chunk);
            let pass = passes
                .iter()
                .find(|pass| self.op(**pass).chunk == chunk)
                .ok_or_else(|| self.no_pass(gather, ForwardCompute))?;
            self.after[*pass].push(gather);
        }
        Ok(())
    }

    /// The first reduction of a chunk waits for the chunk's last backward pass.
    fn overlapped_reduces(&mut self, stage: usize) -> Result<(), TraceError> {
        let passes = self.sorted(stage, &[BackwardCompute]);
        let mut known = Vec::new();
        for reduce in self.trace.of_kind(GradsReduceScatter, stage) {
            let chunk = self.op(reduce).chunk;
            if known.contains(&chunk) {
                continue;
            }
            known.push(chunk);
            let of_chunk = passes
                .iter()
                .copied()
                .filter(|pass| self.op(*pass).chunk == chunk);
            let pass = self
                .last_to_end(of_chunk)
                .ok_or_else(|| self.no_pass(reduce, BackwardCompute))?;
            self.after[reduce].push(pass);
        }
        Ok(())
    }

    fn no_pass(&self, op: usize, direction: OpKind) -> TraceError {
        let op = self.op(op);
        let reason = format!("no {} is of its chunk, mc {}", direction.name(), op.chunk);
        TraceError::new(op, reason)
    }

    /// Operations that end together; each operation is in one of them.
    fn groups(&self) -> Result<Vec<OpUnit>, TraceError> {
        let pp = self.trace.pp();
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for stage in 0..pp {
            // Around: with several parts to a stage the last one sends to the first.
            let next = (stage + 1) % pp;
            for (from, send, to, receive) in [
                (stage, ForwardSend, next, ForwardRecv),
                (next, BackwardSend, stage, BackwardRecv),
            ] {
                let [sends, receives] = [(from, send), (to, receive)].map(|(at, kind)| {
                    self.trace
                        .of_kind(kind, at)
                        // What moved nothing waited for nobody.
                        .filter(|op| self.moves[*op])
                        .collect::<Vec<_>>()
                });
                if sends.len() != receives.len() {
                    let place = format!("{} of stage {from}", send.name());
                    let reason = format!(
                        "there are {} of them and {} {} of stage {to}",
                        sends.len(),
                        receives.len(),
                        receive.name()
                    );
                    return Err(TraceError::new(place, reason));
                }
                groups.extend(
                    sends
                        .into_iter()
                        .zip(receives)
                        .map(|(send, receive)| vec![send, receive]),
                );
            }
        }
        // These two are collectives of all stages.
        groups.extend([EmbeddingAllReduce, OptimizerClip].map(|kind| {
            (0..pp)
                .filter_map(|stage| self.trace.of_kind(kind, stage).next())
                .collect()
        }));
        let mut grouped = vec![false; self.after.len()];
        for op in groups.iter().flatten() {
            grouped[*op] = true;
        }
        let alone = (0..grouped.len())
            .filter(|op| !grouped[*op])
            .map(|op| vec![op]);
        Ok(groups
            .into_iter()
            .filter(|ops| !ops.is_empty())
            .chain(alone)
            .map(|ops| {
                let kind = self.op(ops[0]).kind;
                let across_dp =
                    kind.meets_across_dp() && (self.uses_dp() || !kind.is_data_parallel());
                OpUnit {
                    meets: ops.len() > 1 || across_dp,
                    across_dp,
                    ops,
                }
            })
            .collect())
    }
}

/// Sorts units so that each stands behind what it waits for.
fn in_order(units: Vec<OpUnit>, after: &[Vec<usize>]) -> Result<Vec<OpUnit>, TraceError> {
    let mut unit_of = vec![0; after.len()];
    for (at, unit) in units.iter().enumerate() {
        for op in &unit.ops {
            unit_of[*op] = at;
        }
    }
    let mut waits = vec![0usize; units.len()];
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); units.len()];
    for (op, others) in after.iter().enumerate() {
        for other in others {
            waits[unit_of[op]] += 1;
            before[unit_of[*other]].push(unit_of[op]);
        }
    }
    let mut ready: VecDeque<usize> = (0..units.len()).filter(|at| waits[*at] == 0).collect();
    let mut order = Vec::new();
    while let Some(at) = ready.pop_front() {
        order.push(at);
        for next in &before[at] {
            waits[*next] -= 1;
            if waits[*next] == 0 {
                ready.push_back(*next);
            }
        }
    }
    // What never became ready waits for itself, directly or through others.
    if order.len() < units.len() {
        let reason = "operations of the first step wait for one another in a circle";
        return Err(TraceError::new("rows", reason));
    }
    let mut units: Vec<Option<OpUnit>> = units.into_iter().map(Some).collect();
    Ok(order
        .into_iter()
        .filter_map(|at| units[at].take())
        .collect())
}
