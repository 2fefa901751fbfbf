use crate::graph::DependencyGraph;
use crate::{PipelineTrace, TraceError};

/// Lateness that is an error of clocks, in seconds: an operation that starts earlier than
/// what it waits for ends by more than this is taken not to have waited.
///
/// # Source
/// StragglerAnalysis: 10 ms, for delays and for transfers.
const CLOCK_S: f64 = 1e-2;

/// Times of all operations in all lanes, worked out from durations and the graph.
///
/// An operation starts once everything before it has ended, plus its delay. What computes
/// ends after its duration. What communicates ends a transfer after its whole group started.
///
/// # Source
/// Simulator of ByteDance-Seed/StragglerAnalysis, written anew in f64.
#[derive(Debug)]
pub(crate) struct Simulator<'a> {
    trace: &'a PipelineTrace,
    pub(crate) graph: DependencyGraph,
    /// `[op][lane]`, of the last simulation.
    ends: Vec<f64>,
    /// Starts of the unit under way, by lane.
    start: Vec<f64>,
    met: Vec<f64>,
}

impl<'a> Simulator<'a> {
    pub(crate) fn new(trace: &'a PipelineTrace) -> Result<Self, TraceError> {
        let lanes = trace.lanes();
        Ok(Self {
            graph: DependencyGraph::new(trace)?,
            ends: vec![0.0; trace.ops().len() * lanes],
            start: vec![0.0; lanes],
            met: vec![0.0; lanes],
            trace,
        })
    }

    /// Seconds each step takes with these durations, and delays if there are any.
    ///
    /// # Shape
    /// Arguments are `[op][lane]`; of operations that meet others a duration is the transfer
    /// alone.
    pub(crate) fn step_s(&mut self, durations: &[f64], delays: Option<&[f64]>) -> Vec<f64> {
        let (lanes, dp) = (self.trace.lanes(), self.trace.dp());
        for unit in &self.graph.units {
            self.met.fill(f64::MIN);
            for op in &unit.ops {
                match self.graph.after[*op].split_first() {
                    None => self.start.fill(0.0),
                    Some((first, others)) => {
                        self.start.copy_from_slice(&self.ends[row(*first, lanes)]);
                        for other in others {
                            raise(&mut self.start, &self.ends[row(*other, lanes)]);
                        }
                    }
                }
                if let Some(delays) = delays {
                    add(&mut self.start, &delays[row(*op, lanes)]);
                }
                raise(&mut self.met, &self.start);
            }
            if unit.across_dp {
                level(&mut self.met, dp);
            }
            for op in &unit.ops {
                let ends = &mut self.ends[row(*op, lanes)];
                ends.copy_from_slice(&self.met);
                add(ends, &durations[row(*op, lanes)]);
            }
        }
        let mut step_s = vec![0.0; self.trace.steps().len()];
        // What ends last is among those that nothing waits for.
        for op in &self.graph.last {
            for (step_s, ends) in step_s.iter_mut().zip(self.ends[row(*op, lanes)].chunks(dp)) {
                *step_s = ends.iter().copied().fold(*step_s, f64::max);
            }
        }
        step_s
    }

    /// What operations took as recorded: transfers of those that meet others.
    pub(crate) fn recorded(&self) -> Vec<f64> {
        let (lanes, dp) = (self.trace.lanes(), self.trace.dp());
        let mut durations = vec![0.0; self.ends.len()];
        let mut met = vec![0.0; lanes];
        for unit in &self.graph.units {
            met.fill(f64::MIN);
            for op in &unit.ops {
                raise(&mut met, self.trace.starts(*op));
            }
            if unit.across_dp {
                level(&mut met, dp);
            }
            for op in &unit.ops {
                let recorded = self.trace.ends(*op).iter().zip(self.trace.durations(*op));
                let slots = durations[op * lanes..][..lanes].iter_mut().zip(&met);
                for ((slot, met), (end, duration)) in slots.zip(recorded) {
                    // From the last start on: before that the operation waited for others, which
                    // is their cost.
                    let transfer = end - met;
                    *slot = match unit.meets {
                        true if transfer <= -CLOCK_S => 0.0,
                        true => transfer,
                        false => *duration,
                    };
                }
            }
        }
        durations
    }

    /// How much later than what it waited for each operation started, as recorded.
    pub(crate) fn delays(&self) -> Vec<f64> {
        let (lanes, dp) = (self.trace.lanes(), self.trace.dp());
        let mut begin = vec![f64::MAX; self.trace.steps().len()];
        for op in 0..self.trace.ops().len() {
            for (begin, starts) in begin.iter_mut().zip(self.trace.starts(op).chunks(dp)) {
                *begin = starts.iter().copied().fold(*begin, f64::min);
            }
        }
        let mut delays = Vec::with_capacity(self.ends.len());
        for (op, after) in self.graph.after.iter().enumerate() {
            let starts = self.trace.starts(op);
            delays.extend((0..lanes).map(|lane| {
                let ended = after
                    .iter()
                    .map(|other| self.trace.ends(*other)[lane])
                    .reduce(f64::max)
                    // What waits for nothing is late by the begin of its step.
                    .unwrap_or(begin[lane / dp]);
                let delay = starts[lane] - ended;
                if delay <= -CLOCK_S { 0.0 } else { delay }
            }));
        }
        delays
    }
}

/// Where an operation stands in a flat table.
fn row(op: usize, lanes: usize) -> std::ops::Range<usize> {
    op * lanes..(op + 1) * lanes
}

fn raise(values: &mut [f64], others: &[f64]) {
    for (value, other) in values.iter_mut().zip(others) {
        *value = if *other > *value { *other } else { *value };
    }
}

/// Raises the data-parallel ranks of each step to the latest of them.
fn level(values: &mut [f64], dp: usize) {
    for step in values.chunks_mut(dp) {
        let latest = step.iter().copied().fold(f64::MIN, f64::max);
        step.fill(latest);
    }
}

fn add(values: &mut [f64], others: &[f64]) {
    for (value, other) in values.iter_mut().zip(others) {
        *value += other;
    }
}
