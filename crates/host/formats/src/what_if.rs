//! What-if traces: operations of sampled steps in Parquet, the job's layout in YAML beside it.

mod parquet;
mod parquet_out;
mod read;
mod thrift;
mod write;

pub(crate) use parquet::MAGIC;
pub(crate) use read::layout_beside;
pub use read::{read_layout, read_rows, read_what_if};
pub use write::{PipelineSteps, write_what_if};
