//! Our own recordings of pipelines as what-if traces, so that others can check what is said.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use model::{BlockPlace, Event, Input, Mark, Pass};
use whatif::{JobLayout, OpKind, Row};

use super::parquet_out::{FlatColumn, FlatValues, write_flat};
use crate::Journal;

/// The columns as Arrow has them: pandas is told by it that `optype` is a category, without which
/// the published tool refuses a trace.
///
/// Made once with pyarrow: `pa.schema(fields).serialize()` in base64.
const ARROW_SCHEMA: &str = "\
    /////6gCAAAQAAAAAAAKAAwABgAFAAgACgAAAAABBAAEAAAAdP7//wQAAAALAAAARAIAAAACAADMAQAAmAEA\
    AEgBAAAAAQAAzAAAAJgAAABoAAAANAAAAAQAAAD4/f//AAAAAhAAAAAUAAAABAAAAAAAAAADAAAAZ21jAOT9\
    //8AAAABIAAAACT+//8AAAACEAAAABgAAAAEAAAAAAAAAAUAAABtYl9pZAAAABT+//8AAAABIAAAAFT+//8A\
    AAACEAAAABQAAAAEAAAAAAAAAAIAAABtYwAAQP7//wAAAAEgAAAAgP7//wAAAAIQAAAAGAAAAAQAAAAAAAAA\
    BgAAAHNlcV9pZAAAcP7//wAAAAEgAAAAsP7//wAAAAMQAAAAHAAAAAQAAAAAAAAACAAAAGR1cmF0aW9uAAAA\
    ANL///8AAAEA4P7//wAAAAMQAAAAIAAAAAQAAAAAAAAACAAAAHN0YXJ0X3RzAAAGAAgABgAGAAAAAAABABAA\
    GAAIAAAABwAMABAAFAAQAAAAAAAABRQAAAA8AAAAIAAAAAQAAAAAAAAABgAAAG9wdHlwZQAACAAIAAAABAAI\
    AAAABAAAACj///8AAAABCAAAAAQABAAEAAAAcP///wAAAAIQAAAAGAAAAAQAAAAAAAAABAAAAHN0ZXAAAAAA\
    YP///wAAAAFAAAAAoP///wAAAAIQAAAAGAAAAAQAAAAAAAAABAAAAHJhbmsAAAAAkP///wAAAAEgAAAA0P//\
    /wAAAAIQAAAAGAAAAAQAAAAAAAAABQAAAHN0YWdlAAAAwP///wAAAAEgAAAAEAAUAAgAAAAHAAwAAAAQABAA\
    AAAAAAACEAAAACAAAAAEAAAAAAAAAAcAAABkcF9yYW5rAAgADAAIAAcACAAAAAAAAAEgAAAAAAAAAA==\
";

/// A block that ended.
#[derive(Clone, Copy, Debug)]
struct EndedBlock {
    backward: bool,
    microbatch: u32,
    /// Stage of the model.
    stage: u32,
    begin_ns: u64,
    end_ns: u64,
}

/// What a rank did in a step.
#[derive(Clone, Debug, Default)]
struct RankWork {
    blocks: Vec<EndedBlock>,
    /// From when to when its optimizer ran.
    optimizer_ns: Option<(u64, u64)>,
}

/// A step's ranks, by the lowest rank of their pipeline.
type StepPipelines = BTreeMap<u32, BTreeMap<u32, RankWork>>;

/// Steps of a recording as what-if traces tell them.
#[derive(Debug, Default)]
pub struct PipelineSteps {
    steps: BTreeMap<u32, StepPipelines>,
    stages: u32,
}

impl PipelineSteps {
    /// Takes the blocks of a recording; `None` if it has none, or blocks of only the weights'
    /// part of a backward pass, for which such traces have no rule.
    ///
    /// Ranks must share a clock: they are of one host.
    pub fn of(journal: &Journal) -> Option<Self> {
        let mut found = Self::default();
        // The block that a rank is in, with its mark.
        let mut open: BTreeMap<u32, (Mark, BlockPlace)> = BTreeMap::new();
        // The step and the pipeline of a rank's last block: an optimizer ends them.
        let mut last: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
        for input in journal.inputs() {
            let Input::Mark { rank, mark } = input else {
                continue;
            };
            match mark.event {
                Event::BlockBegin(place) => {
                    open.insert(*rank, (*mark, place));
                }
                Event::BlockEnd(place) => {
                    let begun = open.remove(rank).filter(|(_, begun)| *begun == place);
                    let Some((begun, _)) = begun else { continue };
                    found.add(*rank, &begun, &place, mark.at.0)?;
                    last.insert(*rank, (begun.step, place.first_rank));
                }
                Event::OptimizerBegin | Event::OptimizerEnd => {
                    let Some(last) = last.get(rank) else { continue };
                    let ranks = found.steps.entry(last.0).or_default().entry(last.1);
                    let work = ranks.or_default().entry(*rank).or_default();
                    // Several optimizers in a row are one.
                    let (_, end_ns) = work.optimizer_ns.get_or_insert((mark.at.0, mark.at.0));
                    *end_ns = mark.at.0;
                }
                _ => {}
            }
        }
        (found.stages > 1).then_some(found)
    }

    fn add(&mut self, rank: u32, begun: &Mark, place: &BlockPlace, end_ns: u64) -> Option<()> {
        let BlockPlace {
            pass,
            stage,
            microbatch,
            stages,
            first_rank,
        } = *place;
        let backward = match pass {
            Pass::Forward => false,
            Pass::Backward => true,
            Pass::Weight => return None,
        };
        self.stages = stages;
        let begin_ns = begun.at.0;
        let pipeline = self
            .steps
            .entry(begun.step)
            .or_default()
            .entry(first_rank)
            .or_default();
        pipeline.entry(rank).or_default().blocks.push(EndedBlock {
            backward,
            microbatch,
            stage,
            begin_ns,
            end_ns,
        });
        Some(())
    }

    /// Pipelines and ranks of each, by the fullest step.
    fn sizes(&self) -> (u32, u32) {
        self.steps
            .values()
            .map(|pipelines| {
                let ranks = pipelines.values().map(BTreeMap::len).max().unwrap_or(0);
                (pipelines.len() as u32, ranks as u32)
            })
            .max()
            .unwrap_or_default()
    }

    /// How the job is laid out.
    pub fn layout(&self) -> JobLayout {
        let (dp_size, pp_size) = self.sizes();
        JobLayout {
            trial_name: "laggard".to_owned(),
            run_id: 0,
            dp_size,
            dsp_size: 1,
            pp_size,
            tp_size: 1,
            vpp_size: (self.stages / pp_size.max(1)).max(1),
            world_size: dp_size * pp_size,
        }
    }

    /// Every pass of every step, and what was handed over between passes: from the end of the pass
    /// that gives it, on the other side from the end of what the rank did before, until the pass
    /// that takes it begins. Behind the last pass of a rank what the published tool asks for: its
    /// optimizer, before it with several pipelines the sum of gradients, which takes what lies
    /// between, and as operations that take no time those of which nothing is recorded. Ranks are
    /// counted by data-parallel rank and stage.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let (dp, pp) = self.sizes();
        for (step, pipelines) in &self.steps {
            let Some(begin_ns) = pipelines
                .values()
                .flat_map(BTreeMap::values)
                .flat_map(|work| &work.blocks)
                .map(|block| block.begin_ns)
                .min()
            else {
                continue;
            };
            let first = rows.len();
            for (dp_rank, ranks) in (0..).zip(pipelines.values()) {
                let number = u64::from(*step);
                let mut step = PipelineRows {
                    number,
                    begin_ns,
                    dp_rank,
                    dp,
                    pp,
                    rows: &mut rows,
                };
                step.pipeline(ranks, self.stages);
            }
            number(&mut rows[first..]);
        }
        rows
    }
}

/// One step of one pipeline.
struct PipelineRows<'a> {
    number: u64,
    begin_ns: u64,
    dp_rank: u32,
    /// Pipelines, and ranks of each.
    dp: u32,
    pp: u32,
    rows: &'a mut Vec<Row>,
}

impl PipelineRows<'_> {
    fn pipeline(&mut self, ranks: &BTreeMap<u32, RankWork>, stages: u32) {
        let by_place: BTreeMap<_, &EndedBlock> = ranks
            .values()
            .flat_map(|work| &work.blocks)
            .map(|block| ((block.backward, block.microbatch, block.stage), block))
            .collect();
        for work in ranks.values() {
            let mut before_ns = self.begin_ns;
            for block in &work.blocks {
                let kind = if block.backward {
                    OpKind::BackwardCompute
                } else {
                    OpKind::ForwardCompute
                };
                let microbatch = block.microbatch.cast_signed();
                let span_ns = (block.begin_ns, block.end_ns);
                self.add(kind, block.stage, microbatch, span_ns);
                let (from, until, send, receive) = if block.backward {
                    let (send, receive) = (OpKind::BackwardSend, OpKind::BackwardRecv);
                    // `stages` is that of no block: nobody gives to the last stage, nor to the first.
                    let from = block.stage.checked_add(1).unwrap_or(stages);
                    (from, block.stage.checked_sub(1), send, receive)
                } else {
                    let (send, receive) = (OpKind::ForwardSend, OpKind::ForwardRecv);
                    let from = block.stage.checked_sub(1).unwrap_or(stages);
                    (from, block.stage.checked_add(1), send, receive)
                };
                let giver = by_place.get(&(block.backward, block.microbatch, from));
                if let Some(giver) = giver {
                    let until_ns = block.begin_ns;
                    self.add(send, giver.stage, -1, (giver.end_ns, until_ns));
                    self.add(receive, block.stage, -1, (before_ns, until_ns));
                }
                // With several chunks on a rank each pass has both in such traces: those at the
                // ends of the model do nothing.
                if stages > self.pp {
                    if from >= stages {
                        self.add(receive, block.stage, -1, (before_ns, before_ns));
                    }
                    if until.is_none_or(|until| until >= stages) {
                        self.add(send, block.stage, -1, (block.end_ns, block.end_ns));
                    }
                }
                before_ns = block.end_ns;
            }
            if let Some(last) = work.blocks.last() {
                self.tail(last, work.optimizer_ns);
            }
        }
    }

    /// What follows the last pass of a rank.
    fn tail(&mut self, last: &EndedBlock, optimizer_ns: Option<(u64, u64)>) {
        let (end_ns, place) = (last.end_ns, last.stage % self.pp);
        let (begin_ns, done_ns) = optimizer_ns.unwrap_or((end_ns, end_ns));
        let none_ns = (end_ns, end_ns);
        self.add(OpKind::Gc, place, -1, none_ns);
        self.add(OpKind::LayernormAllReduce, place, -1, none_ns);
        if place == 0 || place + 1 == self.pp {
            self.add(OpKind::EmbeddingAllReduce, place, -1, none_ns);
        }
        if self.dp > 1 {
            self.add(OpKind::GradsReduceScatter, place, -1, (end_ns, begin_ns));
        }
        self.add(OpKind::OptimizerClip, place, -1, (begin_ns, begin_ns));
        self.add(OpKind::Optimizer, place, -1, (begin_ns, done_ns));
    }

    fn add(&mut self, kind: OpKind, stage: u32, microbatch: i32, (start_ns, end_ns): (u64, u64)) {
        // Not 0: what has a row has a rank, and `pp` is the most ranks of a pipeline.
        let (is_pass, pp) = (microbatch >= 0, self.pp);
        self.rows.push(Row {
            dp_rank: self.dp_rank,
            // Stages go round the ranks: with several a rank, each has every `pp`-th.
            stage: stage % pp,
            rank: self.dp_rank * pp + stage % pp,
            step: self.number,
            kind,
            start_s: seconds_between(self.begin_ns, start_ns),
            duration_s: seconds_between(start_ns, end_ns),
            end_s: seconds_between(self.begin_ns, end_ns),
            number: 0,
            chunk: if is_pass {
                (stage / pp).cast_signed()
            } else {
                -1
            },
            microbatch,
            global_chunk: if is_pass { stage.cast_signed() } else { -1 },
        });
    }
}

fn seconds_between(from_ns: u64, until_ns: u64) -> f64 {
    until_ns.saturating_sub(from_ns) as f64 * 1e-9
}

/// Numbers the operations of a step by their start, each kind of each rank from 0.
fn number(rows: &mut [Row]) {
    rows.sort_by(|a, b| {
        let order = (a.rank, a.kind).cmp(&(b.rank, b.kind));
        order
            .then(a.start_s.total_cmp(&b.start_s))
            .then(a.end_s.total_cmp(&b.end_s))
    });
    for alike in rows.chunk_by_mut(|a, b| (a.rank, a.kind) == (b.rank, b.kind)) {
        for (row, number) in alike.iter_mut().zip(0..) {
            row.number = number;
        }
    }
}

fn int32<'a>(name: &'static str, rows: &[Row], value: fn(&Row) -> i32) -> FlatColumn<'a> {
    FlatColumn {
        name,
        values: FlatValues::Int32(rows.iter().map(value).collect()),
    }
}

fn float<'a>(name: &'static str, rows: &[Row], value: fn(&Row) -> f64) -> FlatColumn<'a> {
    let values = rows.iter().map(|row| value(row) as f32).collect();
    FlatColumn {
        name,
        values: FlatValues::Float(values),
    }
}

/// Writes rows as Parquet, and the layout beside them as YAML.
///
/// # Errors
/// What the operating system says.
pub fn write_what_if(rows: &[Row], layout: &JobLayout, path: &Path) -> io::Result<()> {
    // The types are those of the published traces, as `ARROW_SCHEMA` has them: the tool that
    // reads them insists.
    let columns = [
        int32("dp_rank", rows, |row| row.dp_rank.cast_signed()),
        int32("stage", rows, |row| row.stage.cast_signed()),
        int32("rank", rows, |row| row.rank.cast_signed()),
        FlatColumn {
            name: "step",
            values: FlatValues::Int64(rows.iter().map(|row| row.step.cast_signed()).collect()),
        },
        FlatColumn {
            name: "optype",
            values: FlatValues::Text(rows.iter().map(|row| row.kind.name()).collect()),
        },
        float("start_ts", rows, |row| row.start_s),
        float("duration", rows, |row| row.duration_s),
        int32("seq_id", rows, |row| row.number.cast_signed()),
        int32("mc", rows, |row| row.chunk),
        int32("mb_id", rows, |row| row.microbatch),
        int32("gmc", rows, |row| row.global_chunk),
    ];
    let metadata = [("ARROW:schema", ARROW_SCHEMA)];
    fs::write(path, write_flat(&columns, rows.len(), &metadata))?;
    let yaml = yaml_serde::to_string(layout).map_err(io::Error::other)?;
    fs::write(path.with_extension("yaml"), yaml)
}
