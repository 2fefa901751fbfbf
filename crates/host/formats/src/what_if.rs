//! What-if traces: operations of sampled steps in Parquet, the job's layout in YAML beside it.

mod contain;
mod read;
mod write;

pub(crate) use read::{MAGIC, layout_beside};
pub use read::{read_layout, read_rows, read_what_if};
pub use write::{layout_yaml, write_rows};
