//! Recordings of jobs, ours and other tools', read into the same records.
//!
//! [`load`] opens a file, plain or compressed, finds out what it is and returns a
//! [`Recording`]; [`Recording::replay`] runs it through the same analysis as a live job.
//!
//! # Examples
//! A stage matrix is the smallest recording. It names the late rank:
//! ```
//! use laggard_formats::{Limits, load_bytes};
//! use verdict::Settings;
//!
//! let matrix = r#"{"schema": "stage-matrix/1", "unit": "ms",
//!     "stages": ["data.next_wait", "model.fwd_loss_cpu_wall", "model.backward_cpu_wall"],
//!     "matrix": [[[1, 8, 66], [51, 8, 16]], [[1, 8, 66], [51, 8, 16]], [[1, 8, 66], [51, 8, 16]],
//!                [[1, 8, 66], [51, 8, 16]], [[1, 8, 66], [51, 8, 16]], [[1, 8, 66], [51, 8, 16]]]}"#;
//! let recording = load_bytes("matrix.json", matrix.as_bytes(), Limits::default())?;
//! let verdict = recording.replay("matrix", Settings::default()).verdict();
//! assert_eq!(verdict.incidents[0].subject.ranks, [1]);
//! # Ok::<(), laggard_formats::FormatError>(())
//! ```
//! A file that is no recording is an error, which names it:
//! ```
//! use laggard_formats::{Limits, load_bytes};
//!
//! let error = load_bytes("notes.txt", b"hello", Limits::default()).unwrap_err();
//! assert!(error.to_string().contains("notes.txt"));
//! ```

mod batch;
mod call_log;
mod dumps;
mod error;
mod events;
mod file_name;
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
mod py_spy;
mod rank_logs;
mod ranks;
mod ras;
mod ras_text;
mod recording;
mod snapshot;
mod stored;
mod traces;
mod verdict_document;
mod watchdog_log;
mod what_if;
mod work_requests;

pub use batch::{BatchError, pack_batch, unpack_batch};
pub use call_log::{WrittenCalls, write_call_logs};
pub use error::{FormatError, RECORDING_KINDS};
pub use events::MarkEvents;
pub use flight_recorder::{RecordedCollective, recorded_collectives};
pub use journal::{Journal, JournalWriter, input_line};
pub use matrix::StageMatrix;
pub use open::Limits;
pub use perfetto::{IncidentTrace, write_perfetto};
pub use rank_logs::{job_folder, read_rank_logs};
pub use ras::RasJob;
pub use recording::{Recording, load, load_bytes, load_watched, load_with_meta};
pub use snapshot::{Snapshot, SnapshotPart};
pub use stored::{StoredBatch, StoredBatches, StoredEntry, StoredError, StoredJob};
pub use traces::{ProfilerTrace, RankTrace, TraceSet, load_window};
pub use verdict_document::{load_verdict, parse_verdict};
pub use what_if::{PipelineSteps, read_layout, read_rows, read_what_if, write_what_if};
pub use work_requests::write_work_requests;
