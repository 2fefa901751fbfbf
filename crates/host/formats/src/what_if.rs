//! What-if traces: operations of sampled steps in Parquet, the job's layout in YAML beside it.

mod parquet;
mod read;
mod thrift;

pub(crate) use parquet::MAGIC;
pub(crate) use read::layout_beside;
pub use read::{read_layout, read_rows, read_what_if};
