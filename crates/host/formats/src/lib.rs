//! Recordings of jobs, ours and other tools', read into the same records.
//!
//! [`load`] opens a file, plain or compressed, finds out what it is and returns a
//! [`Recording`]; [`Recording::replay`] runs it through the same analysis as a live job.

mod batch;
mod call_log;
mod dumps;
mod error;
mod events;
mod flight_recorder;
mod inspector;
mod journal;
mod kineto;
mod launched;
mod matrix;
mod names;
#[cfg(feature = "nsys")]
mod nsys;
mod open;
mod perfetto;
mod pickle;
mod ranks;
mod ras;
mod ras_text;
mod recording;
mod snapshot;
mod stored;
mod traces;
mod verdict_document;
mod what_if;
mod work_requests;

pub use batch::{BatchError, pack_batch, unpack_batch};
pub use call_log::{WrittenCalls, write_call_logs};
pub use error::FormatError;
pub use events::MarkEvents;
pub use flight_recorder::{RecordedCollective, recorded_collectives};
pub use journal::{Journal, JournalWriter, input_line};
pub use matrix::StageMatrix;
pub use open::Limits;
pub use perfetto::{Moment, write_perfetto};
pub use ras::RasJob;
pub use recording::{Recording, load, load_bytes, load_watched, load_with_meta};
pub use snapshot::{Part, Snapshot};
pub use stored::{StoredBatch, StoredBatches, StoredEntry, StoredError, StoredJob};
pub use traces::{ProfilerTrace, RankTrace, TraceSet, load_window};
pub use verdict_document::{load_verdict, parse_verdict};
pub use what_if::{PipelineSteps, read_layout, read_rows, read_what_if, write_what_if};
pub use work_requests::write_work_requests;
