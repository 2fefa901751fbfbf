use std::collections::BTreeSet;

use model::{Attribution, PartSlowdown, RankSlowdown, Removal, SlowdownCause, WhatIf};

use crate::cause::causes;
use crate::simulate::Simulator;
use crate::trace::{PipelineOp, TraceCell};
use crate::{OpKind, PipelineTrace, TraceError};

/// Slowdown from which it is asked where it comes from.
///
/// # Source
/// StragglerAnalysis.
pub(crate) const SLOWDOWN_MIN: f64 = 1.03;
/// One in how many ranks counts as one of the slowest: 3 %, rounded up.
///
/// # Source
/// StragglerAnalysis.
const SLOWEST_SHARE: (usize, usize) = (3, 100);

/// What a trace shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// What steps would take without their stragglers.
    pub what_if: WhatIf,
    /// Why they take longer, the first cause first; empty if they hardly do.
    pub causes: Vec<SlowdownCause>,
    /// Steps that were not recorded whole and are left out.
    pub left_out_steps: usize,
}

/// Works out what the job would take without its stragglers.
///
/// # Errors
/// Operations of the first step that fit no pipeline.
///
/// # Complexity
/// One pass over all operations for each type, data-parallel rank and stage.
///
/// # Source
/// What-if analysis (OSDI 2025), Eq. 1 to 5, and its released code. We differ: times are
/// f64, and the stage that slows most is taken out as well as the last one.
pub fn analyse(trace: &PipelineTrace) -> Result<Findings, TraceError> {
    let mut what = Experiment::new(Simulator::new(trace)?, trace);
    let recorded_s = recorded_step_s(trace);
    // Slowdowns are against these, not the recorded times: what was merely launched late is left
    // out here, and counted by `launch_slowdown`.
    let simulated_s = what.step_s(|_, _| true);
    let ideal_s = mean(&what.step_s(|_, _| false));
    let launch_slowdown = mean(&recorded_s) / mean(&simulated_s);
    let slowdown = mean(&simulated_s) / ideal_s;
    // Quotients of these are what all of it is about.
    if !(ideal_s > 0.0 && simulated_s.iter().all(|time_s| *time_s > 0.0)) {
        return Err(TraceError::new("rows", "a step takes no time"));
    }
    let stragglers = (slowdown >= SLOWDOWN_MIN).then(|| {
        // All steps share the graph, so ideal operations take each the same time.
        let ideal = vec![ideal_s; trace.steps().len()];
        attribute(trace, &ideal, &|op| op.kind.family(), |own| {
            what.step_s(own)
        })
    });
    let launch = (launch_slowdown >= SLOWDOWN_MIN).then(|| {
        let delays = what.simulator.delays();
        attribute(trace, &simulated_s, &first_or_family, |own| {
            what.delayed_s(&delays, own)
        })
    });
    let ranks = ranks(trace, stragglers.as_ref());
    let mut removals = [None, None, None];
    if let Some(stragglers) = &stragglers {
        let means_s = (mean(&simulated_s), ideal_s);
        let slowest = slowest(&ranks);
        // The published candidate: the last stage has the loss on top of its layers.
        let last = trace.pp() - 1;
        let heaviest = heaviest(&stragglers.stages);
        removals = [
            Some(what.removal(&|cell| slowest.contains(&trace.rank(cell)), means_s)),
            Some(what.removal(&|cell| cell.stage == last, means_s)),
            Some(what.removal(&|cell| cell.stage == heaviest, means_s)),
        ];
    }
    let [slowest_ranks, last_stage, slowest_stage] = removals;
    let what_if = WhatIf {
        steps: trace.steps().to_vec(),
        recorded_s,
        simulated_s,
        ideal_s,
        launch_slowdown,
        slowdown,
        ranks,
        peers: trace.layout().peers(),
        stragglers,
        launch,
        slowest_ranks,
        last_stage,
        slowest_stage,
    };
    let causes = causes(trace, &what_if);
    Ok(Findings {
        what_if,
        causes,
        left_out_steps: trace.left_out_steps(),
    })
}

/// Simulations of one trace with parts of it as recorded and the rest ideal.
struct Experiment<'a> {
    trace: &'a PipelineTrace,
    simulator: Simulator<'a>,
    /// `[op][lane]`.
    recorded: Vec<f64>,
    /// By operation.
    ideal: Vec<f64>,
    /// What is simulated.
    durations: Vec<f64>,
}

impl<'a> Experiment<'a> {
    fn new(simulator: Simulator<'a>, trace: &'a PipelineTrace) -> Self {
        let recorded = simulator.recorded();
        let ideal = ideal(trace, &recorded);
        Self {
            durations: recorded.clone(),
            recorded,
            ideal,
            simulator,
            trace,
        }
    }

    /// Step times with the operations as recorded of which `own(op, dp_rank)` holds.
    fn step_s(&mut self, own: impl Fn(usize, usize) -> bool) -> Vec<f64> {
        let (lanes, dp) = (self.trace.lanes(), self.trace.dp());
        let slots = self
            .durations
            .chunks_mut(lanes)
            .zip(self.recorded.chunks(lanes));
        for (op, (slots, recorded)) in slots.enumerate() {
            slots.fill(self.ideal[op]);
            for dp_rank in (0..dp).filter(|dp_rank| own(op, *dp_rank)) {
                let recorded = recorded.iter().skip(dp_rank).step_by(dp);
                for (slot, recorded) in slots.iter_mut().skip(dp_rank).step_by(dp).zip(recorded) {
                    *slot = *recorded;
                }
            }
        }
        self.simulator.step_s(&self.durations, None)
    }

    /// Step times as recorded, with the delays of which `own(op, dp_rank)` holds.
    fn delayed_s(&mut self, delays: &[f64], own: impl Fn(usize, usize) -> bool) -> Vec<f64> {
        let (lanes, dp) = (self.trace.lanes(), self.trace.dp());
        for (cell, (slot, delay)) in self.durations.iter_mut().zip(delays).enumerate() {
            // A lane is `step * dp + dp_rank`.
            *slot = if own(cell / lanes, cell % lanes % dp) {
                *delay
            } else {
                0.0
            };
        }
        self.simulator.step_s(&self.recorded, Some(&self.durations))
    }

    fn removal(
        &mut self,
        is_out: &dyn Fn(TraceCell) -> bool,
        (simulated_s, ideal_s): (f64, f64),
    ) -> Removal {
        let trace = self.trace;
        let ops = trace.ops();
        let without_s = mean(&self.step_s(|op, dp_rank| !is_out(ops[op].on(dp_rank))));
        let alone_s = mean(&self.step_s(|op, dp_rank| is_out(ops[op].on(dp_rank))));
        let mut ranks: Vec<u32> = trace
            .cells()
            .filter(|cell| is_out(*cell))
            .map(|cell| trace.rank(cell))
            .collect();
        ranks.sort_unstable();
        Removal {
            ranks,
            without_s,
            alone_s,
            // Not by zero: removals are asked for from a slowdown of [`SLOWDOWN_MIN`] on.
            removed_share: (simulated_s - without_s) / (simulated_s - ideal_s),
            added_share: (alone_s - ideal_s) / (simulated_s - ideal_s),
        }
    }
}

/// What an operation of each kind usually takes, by operation: the mean of what computes, the
/// median of transfers.
fn ideal(trace: &PipelineTrace, recorded: &[f64]) -> Vec<f64> {
    let lanes = trace.lanes();
    let mut of_kind = [0.0; OpKind::ALL.len()];
    for kind in OpKind::ALL {
        let mut all: Vec<f64> = trace
            .ops()
            .iter()
            .zip(recorded.chunks(lanes))
            .filter(|(op, _)| op.kind == kind)
            .flat_map(|(_, row)| row.iter().copied())
            .collect();
        if !all.is_empty() {
            // A few transfers that took very long would move a mean far from what is usual.
            of_kind[kind as usize] = if kind.computes() {
                mean(&all)
            } else {
                median(&mut all)
            };
        }
    }
    trace
        .ops()
        .iter()
        .map(|op| of_kind[op.kind as usize])
        .collect()
}

/// From the first start to the last end of each step.
fn recorded_step_s(trace: &PipelineTrace) -> Vec<f64> {
    let dp = trace.dp();
    let mut spans = vec![(f64::MAX, f64::MIN); trace.steps().len()];
    for op in 0..trace.ops().len() {
        let lanes = trace.starts(op).iter().zip(trace.ends(op));
        for (lane, (start, end_s)) in lanes.enumerate() {
            let (begin, end) = &mut spans[lane / dp];
            *begin = begin.min(*start);
            *end = end.max(*end_s);
        }
    }
    spans.into_iter().map(|(begin, end)| end - begin).collect()
}

/// Slowdowns of every part against the step times `base_s`; `step_s` simulates with the
/// operations of one part put back.
fn attribute(
    trace: &PipelineTrace,
    base_s: &[f64],
    family: &dyn Fn(&PipelineOp) -> &'static str,
    mut step_s: impl FnMut(&dyn Fn(usize, usize) -> bool) -> Vec<f64>,
) -> Attribution {
    let ops = trace.ops();
    let mut families: Vec<(OpKind, &str)> = ops.iter().map(|op| (op.kind, family(op))).collect();
    // By kind, so that types are listed in the order of the schema and not of the rows.
    families.sort_unstable();
    // A family's kinds need not be neighbours: first operations are of two kinds.
    let mut known = BTreeSet::new();
    families.retain(|(_, family)| known.insert(*family));
    Attribution {
        op_types: families
            .iter()
            .map(|(_, name)| {
                let times_s = step_s(&|op, _| family(&ops[op]) == *name);
                slowdown((*name).to_owned(), &times_s, base_s)
            })
            .collect(),
        dp_ranks: (0..trace.dp())
            .map(|rank| {
                let times_s = step_s(&|_, dp_rank| dp_rank == rank);
                slowdown(rank.to_string(), &times_s, base_s)
            })
            .collect(),
        stages: (0..trace.pp())
            .map(|stage| {
                let times_s = step_s(&|op, _| ops[op].stage as usize == stage);
                slowdown(stage.to_string(), &times_s, base_s)
            })
            .collect(),
    }
}

/// What a part slows steps by that take `times_s` with it.
fn slowdown(name: String, times_s: &[f64], base_s: &[f64]) -> PartSlowdown {
    PartSlowdown {
        name,
        slowdown: mean(times_s) / mean(base_s),
        step_slowdowns: times_s
            .iter()
            .zip(base_s)
            .map(|(time_s, base_s)| time_s / base_s)
            .collect(),
    }
}

/// A type of operation, the first of a step apart: its delay is that of the step.
fn first_or_family(op: &PipelineOp) -> &'static str {
    // The first stage has nobody to receive from.
    let first = if op.stage == 0 {
        OpKind::ForwardCompute
    } else {
        OpKind::ForwardRecv
    };
    if op.number == 0 && op.kind == first {
        "first-op"
    } else {
        op.kind.family()
    }
}

/// Every recorded rank, by stage within data-parallel rank.
fn ranks(trace: &PipelineTrace, stragglers: Option<&Attribution>) -> Vec<RankSlowdown> {
    trace
        .cells()
        .map(|cell| RankSlowdown {
            rank: trace.rank(cell),
            dp_rank: cell.dp_rank as u32,
            stage: cell.stage as u32,
            // Neither alone: a quick rank of a slow pipeline must not look slow, nor one of a slow
            // stage.
            slowdown: stragglers.map(|parts| {
                parts.dp_ranks[cell.dp_rank]
                    .slowdown
                    .min(parts.stages[cell.stage].slowdown)
            }),
        })
        .collect()
}

/// The slowest 3 % of the ranks, slowest first; of equals the smaller.
fn slowest(ranks: &[RankSlowdown]) -> Vec<u32> {
    let mut order: Vec<&RankSlowdown> = ranks.iter().collect();
    order.sort_by(|a, b| {
        let by_slowdown = b
            .slowdown
            .unwrap_or(0.0)
            .total_cmp(&a.slowdown.unwrap_or(0.0));
        by_slowdown.then(a.rank.cmp(&b.rank))
    });
    let (of, among) = SLOWEST_SHARE;
    // Rounded up: of few ranks at least one is taken out.
    let count = (ranks.len() * of).div_ceil(among);
    order
        .into_iter()
        .take(count)
        .map(|rank| rank.rank)
        .collect()
}

/// The part that slows most; of equals the first.
pub(crate) fn heaviest(parts: &[PartSlowdown]) -> usize {
    highest(parts.iter().map(|part| part.slowdown))
}

/// Place of the highest value; of equals the first.
pub(crate) fn highest(values: impl Iterator<Item = f64>) -> usize {
    // Not `max_by`, which gives the last of equals.
    values
        .enumerate()
        .reduce(|best, next| if next.1 > best.1 { next } else { best })
        .map_or(0, |(at, _)| at)
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The median, 0 of nothing.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    model::median(values).unwrap_or(0.0)
}
