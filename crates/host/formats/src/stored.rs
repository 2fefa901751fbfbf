//! `laggard.batches/1`: the batches of one job as a collector keeps them, in the order it took
//! them.
//!
//! A zstd file. Each entry is a skippable frame with one JSON object, the [`StoredEntry`]; after
//! that of a batch stands the batch as it came. Unpacked by other tools it is lines of
//! inputs.

use std::io::{self, Read, Write};
use std::path::Path;

use model::{Batch, Input};
use protocol::BatchHead;
use serde::{Deserialize, Serialize};
use verdict::{HostMerger, Job, Settings};

use crate::batch::unpack;
use crate::{BatchError, FormatError};

const SCHEMA: &str = "laggard.batches/1";
/// A skippable frame of zstd.
pub(crate) const MAGIC: [u8; 4] = [0x50, 0x2a, 0x4d, 0x18];
/// Far above the longest entry.
const LONGEST_ENTRY_BYTES: u32 = 1 << 16;
/// Far above the longest batch, packed.
const LONGEST_BATCH_BYTES: u32 = 16 << 20;

/// What stands before a batch, or for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "stored")]
pub enum StoredEntry {
    /// The file begins.
    Job {
        /// Name and version of the format.
        schema: String,
        /// The job.
        job: String,
    },
    /// A batch follows.
    Batch(StoredBatch),
    /// A host was not heard of for long.
    Silent {
        /// The host.
        host: String,
        /// When that was noticed, in seconds since 1970.
        at_s: u64,
    },
}

/// Whose batch it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredBatch {
    /// [`Batch::host`].
    pub host: String,
    /// [`Batch::session`], by the name that the first version gave it.
    #[serde(rename = "epoch")]
    pub session: String,
    /// [`Batch::sequence`].
    pub sequence: u64,
    /// The boot of the host: its clock is one while this is.
    pub boot: String,
    /// What leads from the host's clock to the collector's, in nanoseconds. The job's clock is
    /// that of the host of the first batch.
    pub offset_ns: i64,
    /// When it came, in seconds since 1970.
    pub at_s: u64,
    /// Its length.
    pub bytes: u32,
}

/// A file of batches that cannot be read on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoredError {
    /// The file ends within an entry: its writer was killed.
    #[error("the file ends within an entry")]
    Torn,
    /// An entry is not what a collector writes.
    #[error("an entry is damaged: {0}")]
    Damaged(String),
    /// A batch is not what a collector would have taken.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The operating system refuses.
    #[error(transparent)]
    Io(io::Error),
}

impl StoredError {
    fn at(self, path: &Path, bytes: u64) -> FormatError {
        match self {
            Self::Io(source) => FormatError::Io {
                path: path.to_owned(),
                source,
            },
            other => FormatError::Damaged {
                path: path.to_owned(),
                place: format!("byte {bytes}"),
                reason: other.to_string(),
            },
        }
    }
}

impl StoredEntry {
    /// The first entry of a file.
    pub fn of_job(job: &str) -> Self {
        Self::Job {
            schema: SCHEMA.to_owned(),
            job: job.to_owned(),
        }
    }

    /// Writes the entry; the bytes of its batch are the caller's to write.
    ///
    /// # Errors
    /// What `out` says.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let json = serde_json::to_vec(self)?;
        out.write_all(&MAGIC)?;
        out.write_all(&(json.len() as u32).to_le_bytes())?;
        out.write_all(&json)
    }
}

/// All that a collector kept of a job.
#[derive(Clone, Debug)]
pub struct StoredBatches(Vec<(StoredEntry, Option<Batch>)>);

impl StoredBatches {
    /// Reads the file of a job; one that was cut off is read up to the cut.
    pub(crate) fn read(path: &Path, reader: impl Read) -> Result<Self, FormatError> {
        let (mut stored, _) = StoredJob::open(reader).map_err(|error| error.at(path, 0))?;
        let mut entries = Vec::new();
        loop {
            match stored.next() {
                Ok(Some(entry)) => entries.push(entry),
                // The collector was killed while it wrote, or writes just now.
                Ok(None) | Err(StoredError::Torn) => return Ok(Self(entries)),
                Err(error) => return Err(error.at(path, stored.whole_bytes())),
            }
        }
    }

    /// What was sent, in the order it came, with what leads from the clock of each host to that of
    /// the job.
    pub fn inputs(&self) -> impl Iterator<Item = (&Input, i64)> {
        self.0
            .iter()
            .filter_map(|(_, batch)| batch.as_ref())
            .flat_map(|batch| batch.inputs.iter().map(|input| (input, batch.shift_ns)))
    }

    pub(crate) fn replay(&self, id: &str, settings: Settings) -> Job {
        let mut merger = HostMerger::new(id, settings);
        for (entry, batch) in self.0.iter().cloned() {
            match (entry, batch) {
                (_, Some(batch)) => merger.take(batch),
                // As the collector did then: the same entries lead to the same verdict.
                (StoredEntry::Silent { host, .. }, _) => merger.lose(&host),
                _ => {}
            }
        }
        merger.finish();
        merger.into_job()
    }
}

/// Reads the file of a job, entry by entry.
#[derive(Debug)]
pub struct StoredJob<R> {
    inner: R,
    /// Bytes of whole entries so far.
    whole_bytes: u64,
    /// Of the first batch.
    offset_ns: Option<i64>,
}

impl<R: Read> StoredJob<R> {
    /// Begins to read; the job's name.
    ///
    /// # Errors
    /// Every variant of [`StoredError`].
    pub fn open(inner: R) -> Result<(Self, String), StoredError> {
        let mut stored = Self {
            inner,
            whole_bytes: 0,
            offset_ns: None,
        };
        match stored.entry()?.ok_or(StoredError::Torn)? {
            (StoredEntry::Job { schema, job }, bytes) if schema == SCHEMA => {
                stored.whole_bytes = bytes;
                Ok((stored, job))
            }
            _ => Err(StoredError::Damaged(format!(
                "the schema is not {SCHEMA:?}"
            ))),
        }
    }

    /// Bytes up to the end of the last whole entry.
    pub fn whole_bytes(&self) -> u64 {
        self.whole_bytes
    }

    /// The next entry, with its batch if it has one; `None` at the end.
    ///
    /// # Errors
    /// Every variant of [`StoredError`].
    #[expect(clippy::should_implement_trait, reason = "it ends at the first error")]
    pub fn next(&mut self) -> Result<Option<(StoredEntry, Option<Batch>)>, StoredError> {
        self.next_with(|_| true)
    }

    /// The same, without the marks of batches that they are not wanted of, which takes a small part
    /// of the time.
    ///
    /// # Errors
    /// Every variant of [`StoredError`].
    pub fn next_with(
        &mut self,
        wants_marks: impl FnOnce(&StoredBatch) -> bool,
    ) -> Result<Option<(StoredEntry, Option<Batch>)>, StoredError> {
        let Some((entry, bytes)) = self.entry()? else {
            return Ok(None);
        };
        self.whole_bytes += bytes;
        let StoredEntry::Batch(head) = &entry else {
            return Ok(Some((entry, None)));
        };
        if head.bytes > LONGEST_BATCH_BYTES {
            // An entry without its batch is not whole: a reader that cuts the file off cuts before
            // it.
            self.whole_bytes -= bytes;
            return Err(StoredError::Damaged(format!(
                "a batch of {} bytes",
                head.bytes
            )));
        }
        let mut body = vec![0; head.bytes as usize];
        if let Err(error) = self.fill(&mut body) {
            self.whole_bytes -= bytes;
            return Err(error);
        }
        let (
            BatchHead {
                watermark, last, ..
            },
            inputs,
        ) = unpack(&body, wants_marks(head))?;
        self.whole_bytes += u64::from(head.bytes);
        let StoredBatch {
            host,
            session,
            sequence,
            offset_ns,
            ..
        } = head.clone();
        let shift_ns = offset_ns.saturating_sub(*self.offset_ns.get_or_insert(offset_ns));
        let batch = Batch {
            host,
            session,
            sequence,
            shift_ns,
            watermark,
            last,
            inputs,
        };
        Ok(Some((entry, Some(batch))))
    }

    /// The next entry and its length.
    fn entry(&mut self) -> Result<Option<(StoredEntry, u64)>, StoredError> {
        // One byte alone: to end here is the end of the file, to end later a torn entry.
        let mut first = [0];
        if self.inner.read(&mut first).map_err(StoredError::Io)? == 0 {
            return Ok(None);
        }
        let mut rest = [0; 7];
        self.fill(&mut rest)?;
        let [m1, m2, m3, length @ ..] = rest;
        let length = u32::from_le_bytes(length);
        if [first[0], m1, m2, m3] != MAGIC || length > LONGEST_ENTRY_BYTES {
            return Err(StoredError::Damaged(
                "it does not begin like an entry".to_owned(),
            ));
        }
        let mut json = vec![0; length as usize];
        self.fill(&mut json)?;
        let entry = serde_json::from_slice(&json)
            .map_err(|error| StoredError::Damaged(error.to_string()))?;
        Ok(Some((entry, 8 + u64::from(length))))
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), StoredError> {
        self.inner
            .read_exact(buffer)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => StoredError::Torn,
                _ => StoredError::Io(error),
            })
    }
}
