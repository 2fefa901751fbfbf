use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::OpKind;

/// Cells of the table a trace fills that may be empty, for each that is filled: steps that
/// were not recorded whole are left out, a trace that is mostly holes is refused.
const HOLES_PER_ROW: usize = 3;

/// Times are refused beyond this, about thirty years: sums of them stay finite.
const LONGEST_S: f64 = 1e9;

/// How a job is laid out over its ranks.
///
/// # Source
/// The metadata of ByteDance-Seed/StragglerAnalysis, names included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobLayout {
    /// Name of the job.
    pub trial_name: String,
    /// Which of its runs.
    #[serde(default)]
    pub run_id: u64,
    /// Data-parallel ranks.
    pub dp_size: u32,
    /// Ranks that share one row of the trace beside tensor parallelism; they take part in
    /// the collectives of data parallelism.
    pub dsp_size: u32,
    /// Pipeline stages.
    pub pp_size: u32,
    /// Tensor-parallel ranks.
    pub tp_size: u32,
    /// Model chunks of a stage.
    pub vpp_size: u32,
    /// Ranks of the job: the product of all but `vpp_size`.
    pub world_size: u32,
}

impl JobLayout {
    /// Ranks one recorded rank stands for, itself included.
    pub fn peers(&self) -> u32 {
        self.tp_size.saturating_mul(self.dsp_size)
    }
}

/// One operation as a trace tells it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Coordinate in data parallelism.
    pub dp_rank: u32,
    /// Pipeline stage.
    pub stage: u32,
    /// Global rank that was recorded.
    pub rank: u32,
    /// Training step.
    pub step: u64,
    /// What it does.
    pub kind: OpKind,
    /// Start, in seconds since the step began.
    pub start_s: f64,
    /// Duration in seconds.
    pub duration_s: f64,
    /// End: start and duration added in the precision of their source.
    pub end_s: f64,
    /// Place among the operations of its kind on this rank in this step, by start, from 0.
    pub number: u32,
    /// Model chunk in the stage; -1 where the operation has none.
    pub chunk: i32,
    /// Microbatch; -1 where the operation has none.
    pub microbatch: i32,
    /// Model chunk in the model; -1 where the operation has none.
    pub global_chunk: i32,
}

/// A trace that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct TraceError {
    /// Step, rank or operation.
    pub place: String,
    /// What is wrong.
    pub reason: String,
}

impl TraceError {
    pub(crate) fn new(place: impl fmt::Display, reason: impl Into<String>) -> Self {
        Self {
            place: place.to_string(),
            reason: reason.into(),
        }
    }
}

/// An operation that every data-parallel rank carries out in every step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PipelineOp {
    pub(crate) kind: OpKind,
    pub(crate) number: u32,
    pub(crate) stage: u32,
    pub(crate) chunk: i32,
    pub(crate) microbatch: i32,
    pub(crate) global_chunk: i32,
}

impl PipelineOp {
    /// The rank that carries it out for one of the data-parallel ranks.
    pub(crate) fn on(&self, dp_rank: usize) -> TraceCell {
        let stage = self.stage as usize;
        TraceCell { dp_rank, stage }
    }
}

impl fmt::Display for PipelineOp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            number,
            stage,
            ..
        } = self;
        write!(formatter, "{} {number} of stage {stage}", kind.name())
    }
}

/// A recorded rank, by its coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceCell {
    pub(crate) dp_rank: usize,
    pub(crate) stage: usize,
}

/// Steps of a job, operation by operation.
///
/// # Shape
/// Tables are `[op][lane]`, flat; a lane is one data-parallel rank in one step, lane
/// `step * dp_size + dp_rank`. Operations stand by stage, kind and number.
#[derive(Clone, Debug)]
pub struct PipelineTrace {
    layout: JobLayout,
    ops: Vec<PipelineOp>,
    /// First operation of each kind of each stage; one entry more than there are.
    begins: Vec<usize>,
    steps: Vec<u64>,
    left_out_steps: usize,
    /// Recorded rank of `[dp_rank][stage]`.
    ranks: Vec<u32>,
    start_s: Vec<f64>,
    duration_s: Vec<f64>,
    end_s: Vec<f64>,
}

impl PipelineTrace {
    /// Puts rows, in any order, into tables.
    ///
    /// The step of which data-parallel rank 0 tells most says which operations there are;
    /// steps with other ones are left out and counted.
    ///
    /// # Errors
    /// Rows that disagree with the layout or with one another, times that are no times, and
    /// a trace without one whole step.
    pub fn new(layout: JobLayout, rows: &[Row]) -> Result<Self, TraceError> {
        check_layout(&layout)?;
        let ranks = ranks(&layout, rows)?;
        let mut steps: BTreeMap<u64, usize> = rows.iter().map(|row| (row.step, 0)).collect();
        for (at, place) in steps.values_mut().enumerate() {
            *place = at;
        }
        let (ops, begins) = operations(&layout, rows)?;
        let lanes = steps.len().saturating_mul(layout.dp_size as usize);
        let cells = ops.len().saturating_mul(lanes);
        // Before the tables are made: a few rows with huge numbers would ask for all memory there
        // is.
        if cells > rows.len().saturating_mul(1 + HOLES_PER_ROW) {
            let reason = format!(
                "{} rows are too few for {} operations of {} data-parallel ranks in {} steps",
                rows.len(),
                ops.len(),
                layout.dp_size,
                steps.len()
            );
            return Err(TraceError::new("rows", reason));
        }
        let mut trace = Self {
            // NaN marks what no row has given: any number could be a time.
            start_s: vec![f64::NAN; cells],
            duration_s: vec![f64::NAN; cells],
            end_s: vec![f64::NAN; cells],
            left_out_steps: 0,
            layout,
            ops,
            begins,
            steps: steps.keys().copied().collect(),
            ranks,
        };
        let mut is_odd = vec![false; trace.steps.len()];
        for row in rows {
            let step = steps[&row.step];
            let mut of_kind = trace.of_kind(row.kind, row.stage as usize);
            let Some(op) = of_kind.nth(row.number as usize) else {
                // The fullest step has no such operation: this one followed another schedule.
                is_odd[step] = true;
                continue;
            };
            // In bounds: [`ranks`] has checked the coordinates of each row.
            let cell = op * lanes + step * trace.layout.dp_size as usize;
            let cell = cell + row.dp_rank as usize;
            if !trace.start_s[cell].is_nan() {
                let reason = format!("{} appears there twice", trace.ops[op]);
                return Err(TraceError::new(place_of(row), reason));
            }
            trace.start_s[cell] = row.start_s;
            trace.duration_s[cell] = row.duration_s;
            trace.end_s[cell] = row.end_s;
        }
        trace.leave_out(&is_odd)?;
        Ok(trace)
    }

    /// Drops the steps that were not recorded whole.
    fn leave_out(&mut self, is_odd: &[bool]) -> Result<(), TraceError> {
        let (dp, lanes) = (self.dp(), self.lanes());
        // All tables have the same holes: one says which.
        let whole: Vec<usize> = (0..self.steps.len())
            .filter(|step| {
                let has_hole = (0..self.ops.len())
                    .flat_map(|op| &self.start_s[op * lanes + step * dp..][..dp])
                    .any(|start| start.is_nan());
                !is_odd[*step] && !has_hole
            })
            .collect();
        self.left_out_steps = self.steps.len() - whole.len();
        if whole.is_empty() {
            let reason = "no step has every operation on every data-parallel rank";
            return Err(TraceError::new("rows", reason));
        }
        if self.left_out_steps > 0 {
            for table in [&mut self.start_s, &mut self.duration_s, &mut self.end_s] {
                *table = table
                    .chunks(lanes)
                    .flat_map(|row| whole.iter().flat_map(|step| &row[step * dp..][..dp]))
                    .copied()
                    .collect();
            }
            self.steps = whole.iter().map(|step| self.steps[*step]).collect();
        }
        Ok(())
    }

    /// How the job is laid out.
    pub fn layout(&self) -> &JobLayout {
        &self.layout
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[u64] {
        &self.steps
    }

    /// Steps that were not recorded whole and are left out.
    pub fn left_out_steps(&self) -> usize {
        self.left_out_steps
    }

    /// Global rank of a recorded one.
    pub(crate) fn rank(&self, cell: TraceCell) -> u32 {
        self.ranks[cell.dp_rank * self.layout.pp_size as usize + cell.stage]
    }

    /// All recorded ranks, by stage within data-parallel rank.
    pub(crate) fn cells(&self) -> impl Iterator<Item = TraceCell> + use<> {
        let (dp, pp) = (self.dp(), self.pp());
        (0..dp).flat_map(move |dp_rank| (0..pp).map(move |stage| TraceCell { dp_rank, stage }))
    }

    pub(crate) fn dp(&self) -> usize {
        self.layout.dp_size as usize
    }

    pub(crate) fn pp(&self) -> usize {
        self.layout.pp_size as usize
    }

    pub(crate) fn lanes(&self) -> usize {
        self.steps.len() * self.dp()
    }

    pub(crate) fn ops(&self) -> &[PipelineOp] {
        &self.ops
    }

    /// Starts of an operation, lane by lane.
    pub(crate) fn starts(&self, op: usize) -> &[f64] {
        &self.start_s[op * self.lanes()..][..self.lanes()]
    }

    /// Durations of an operation, lane by lane.
    pub(crate) fn durations(&self, op: usize) -> &[f64] {
        &self.duration_s[op * self.lanes()..][..self.lanes()]
    }

    /// Ends of an operation, lane by lane.
    pub(crate) fn ends(&self, op: usize) -> &[f64] {
        &self.end_s[op * self.lanes()..][..self.lanes()]
    }

    /// The operations of a kind on a stage, by number.
    pub(crate) fn of_kind(&self, kind: OpKind, stage: usize) -> std::ops::Range<usize> {
        let slot = stage * OpKind::ALL.len() + kind as usize;
        self.begins[slot]..self.begins[slot + 1]
    }
}

fn check_layout(layout: &JobLayout) -> Result<(), TraceError> {
    let sizes = [
        layout.dp_size,
        layout.dsp_size,
        layout.pp_size,
        layout.tp_size,
    ];
    let product = sizes
        .iter()
        // Checked: a file may say any sizes.
        .try_fold(1u32, |product, size| product.checked_mul(*size));
    if layout.vpp_size == 0 || product.is_none_or(|product| product == 0) {
        return Err(TraceError::new("metadata", "every size must be at least 1"));
    }
    if product != Some(layout.world_size) {
        let [dp, dsp, pp, tp] = sizes;
        let reason = format!(
            "world_size is {}, but dp {dp} x dsp {dsp} x pp {pp} x tp {tp} is {}",
            layout.world_size,
            product.unwrap_or_default()
        );
        return Err(TraceError::new("metadata", reason));
    }
    Ok(())
}

/// The recorded rank of every data-parallel coordinate and stage; checks each row on the way.
fn ranks(layout: &JobLayout, rows: &[Row]) -> Result<Vec<u32>, TraceError> {
    let Some(dp) = rows.iter().map(|row| row.dp_rank).max() else {
        return Err(TraceError::new("rows", "there are none"));
    };
    let pp = rows.iter().map(|row| row.stage).max().unwrap_or(0);
    let chunks = rows.iter().map(|row| row.chunk).max().unwrap_or(0);
    for (name, highest, size) in [
        ("dp_rank", i64::from(dp), layout.dp_size),
        ("stage", i64::from(pp), layout.pp_size),
        ("mc", i64::from(chunks).max(0), layout.vpp_size),
    ] {
        if highest + 1 != i64::from(size) {
            let size_name = match name {
                "stage" => "pp_size",
                "mc" => "vpp_size",
                _ => "dp_size",
            };
            let reason = format!(
                "it goes from 0 to {highest} in the trace, but {size_name} is {size} in the metadata"
            );
            return Err(TraceError::new(format!("column {name}"), reason));
        }
    }
    let cells = layout.dp_size as usize * layout.pp_size as usize;
    // Before the table is made, whose size the file decides.
    if cells > rows.len() {
        return Err(TraceError::new("rows", "there are fewer than ranks"));
    }
    let mut ranks = vec![None; cells];
    for row in rows {
        if row.rank >= layout.world_size {
            let reason = format!("the job has {} ranks", layout.world_size);
            return Err(TraceError::new(place_of(row), reason));
        }
        let cell = row.dp_rank as usize * layout.pp_size as usize + row.stage as usize;
        // In bounds: the highest coordinates are those of the layout.
        let known = *ranks[cell].get_or_insert(row.rank);
        if known != row.rank {
            let reason = format!(
                "dp rank {} of stage {} is rank {known} elsewhere",
                row.dp_rank, row.stage
            );
            return Err(TraceError::new(place_of(row), reason));
        }
        // By an error of clocks an operation may start before its step; none takes less than
        // nothing.
        let times = [row.start_s.abs(), row.duration_s, row.end_s.abs()];
        if !times
            .iter()
            .all(|time_s| (0.0..=LONGEST_S).contains(time_s))
        {
            let reason = format!(
                "{} {} starts at {} s and takes {} s",
                row.kind.name(),
                row.number,
                row.start_s,
                row.duration_s
            );
            return Err(TraceError::new(place_of(row), reason));
        }
    }
    if let Some(cell) = ranks.iter().position(Option::is_none) {
        let pp = layout.pp_size as usize;
        let place = format!("dp rank {} of stage {}", cell / pp, cell % pp);
        return Err(TraceError::new(place, "it has no rows"));
    }
    Ok(ranks.into_iter().flatten().collect())
}

fn place_of(row: &Row) -> String {
    format!("step {}, rank {}", row.step, row.rank)
}

/// The operations of the fullest step of data-parallel rank 0, and where each kind begins.
fn operations(
    layout: &JobLayout,
    rows: &[Row],
) -> Result<(Vec<PipelineOp>, Vec<usize>), TraceError> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    // One data-parallel rank does: all carry out the same schedule.
    for row in rows.iter().filter(|row| row.dp_rank == 0) {
        *counts.entry(row.step).or_default() += 1;
    }
    let most = counts.values().max().copied();
    let fullest = counts.iter().find(|(_, count)| Some(**count) == most);
    let Some((&step, _)) = fullest else {
        return Err(TraceError::new("dp rank 0", "it has no rows"));
    };
    let mut ops: Vec<PipelineOp> = rows
        .iter()
        .filter(|row| row.step == step && row.dp_rank == 0)
        .map(|row| PipelineOp {
            kind: row.kind,
            number: row.number,
            stage: row.stage,
            chunk: row.chunk,
            microbatch: row.microbatch,
            global_chunk: row.global_chunk,
        })
        .collect();
    ops.sort_by_key(|op| (op.stage, op.kind, op.number));
    let kinds = OpKind::ALL.len();
    let mut sizes = vec![0u32; layout.pp_size as usize * kinds];
    for op in &ops {
        let size = &mut sizes[op.stage as usize * kinds + op.kind as usize];
        if op.number != *size {
            let place = format!("step {step}, dp rank 0");
            // They stand in order: a lower one is that of the operation before.
            let reason = if op.number < *size {
                format!("{op} appears there twice")
            } else {
                format!("{op} follows {size} of its kind: seq_id must count from 0")
            };
            return Err(TraceError::new(place, reason));
        }
        *size += 1;
    }
    let mut begins = vec![0];
    begins.extend(sizes.iter().scan(0, |end, size| {
        *end += *size as usize;
        Some(*end)
    }));
    Ok((ops, begins))
}
