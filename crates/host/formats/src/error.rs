use std::io;
use std::path::{Path, PathBuf};

/// All kinds of recordings. Help and errors quote it; docs/recordings.md has a row for each.
macro_rules! kinds {
    () => {
        "stage matrices (JSON with \"schema\": \"stage-matrix/1\"), mark events (a JSON list of \
         [time_ns, kind] per rank), recordings of laggard run and laggard serve, traces of \
         PyTorch's profiler and of Nsight Systems (SQLite), Flight Recorder dumps, py-spy stacks, \
         replies of NCCL's RAS, logs of NCCL Inspector, logs of NCCL calls, telemetry of work \
         requests, output of jobs with PyTorch's NCCL watchdog and what-if traces (Parquet), plain \
         or as .gz, .xz, .zst"
    };
}

/// All kinds of recordings, as a list in words.
pub const RECORDING_KINDS: &str = kinds!();

/// A recording that cannot be read: which file, where in it, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The operating system refused the file, or its compression is damaged.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is none of the recordings laggard knows.
    #[error("{} is not a recording laggard knows: {found}", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// What stands at its beginning.
        found: String,
    },
    /// The text is not the JSON it should be.
    #[error("{}, line {line}, column {column}, at {place}: {reason}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// Path inside the document.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// The document is well-formed and makes no sense.
    #[error("{}, at {place}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Path inside the document.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// Bytes that cannot be what the file's format makes of them.
    #[error("{}, at {place}: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Column, group or end of the file.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// A recording of a job without a rank.
    #[error("{}: the job ended before laggard saw a rank of it", path.display())]
    NoRank {
        /// The file.
        path: PathBuf,
    },
    /// A file of one rank whose name does not say of which.
    #[error("{}: its name does not end with the number of a rank", path.display())]
    Unnamed {
        /// The file.
        path: PathBuf,
    },
    /// A what-if trace whose metadata is not beside it.
    #[error("{}: its metadata is not beside it; looked for {names}", path.display())]
    NoLayout {
        /// The trace.
        path: PathBuf,
        /// Files that would have been taken.
        names: String,
    },
    /// The file is larger than what is read of any recording.
    #[error("{} is larger than {limit_bytes} bytes unpacked", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit_bytes: u64,
    },
}

impl FormatError {
    /// A well-formed document that makes no sense at `place`.
    pub(crate) fn content(
        path: &Path,
        place: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self::Content {
            path: path.to_owned(),
            place: place.into(),
            reason: reason.into(),
        }
    }

    /// What the operator can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Io { .. } => "check the path, its permissions and that it was copied whole",
            Self::Unknown { .. } => {
                concat!(
                    "laggard analyze reads ",
                    kinds!(),
                    "; docs/formats.md shows them"
                )
            }
            Self::Json { .. } | Self::Damaged { .. } => {
                "write the file again: it is cut off or damaged at that place"
            }
            Self::Content { .. } => "correct the values at that place and run again",
            Self::NoRank { .. } => "look at the output of the job",
            Self::Unnamed { .. } => "rename it, as in dump_rank_3.json or stack_rank_3.txt",
            Self::NoLayout { .. } => {
                "name the YAML file with the sizes of the job (dp_size, pp_size, ...): \
                 --meta FILE; docs/formats.md shows one"
            }
            Self::TooLarge { .. } => {
                "cut the recording into parts and analyze one at a time; unpack a report of Nsight \
                 Systems first"
            }
        }
    }
}
