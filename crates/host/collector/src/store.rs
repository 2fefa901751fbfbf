//! The folder of one job: its batches, and its verdict once it has ended.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use formats::{StoredEntry, StoredError, StoredJob};
use model::Batch;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Longest name of a job, host or agent session.
const LONGEST_NAME_BYTES: usize = 128;
/// The same of a job's folder: file systems take 255, and the history puts something before it.
const LONGEST_FOLDER_BYTES: usize = 240;
const BATCHES: &str = "batches.zst";

/// Appends to the batches of a job.
///
/// # Invariants
/// Whole entries only, but for one that was cut off at the end; what was appended by a call
/// of [`Store::append`] that succeeded survives a kill.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
    file: File,
    bytes: u64,
    /// Whether something that failed to be added stands after them.
    is_torn: bool,
}

impl Store {
    /// Opens the folder of a job, and reads what is there. An entry that was cut off, and so
    /// never answered for, is cut away.
    pub(crate) fn open(
        data: &Path,
        job: &str,
        mut each: impl FnMut(StoredEntry, Option<Batch>),
    ) -> Result<Self, StoredError> {
        let folder = data.join(file_name(job));
        fs::create_dir_all(&folder).map_err(StoredError::Io)?;
        let path = folder.join(BATCHES);
        let file = OpenOptions::new()
            .read(true)
            // What is added goes to the end, wherever reading has stopped.
            .append(true)
            .create(true)
            .open(&path)
            .map_err(StoredError::Io)?;
        let bytes = match read(&file, &mut each) {
            Ok(bytes) | Err((StoredError::Torn, bytes)) => bytes,
            Err((error, _)) => return Err(error),
        };
        file.set_len(bytes).map_err(StoredError::Io)?;
        let mut store = Self {
            folder,
            file,
            bytes,
            is_torn: false,
        };
        if bytes == 0 {
            let mut begin = Vec::new();
            StoredEntry::of_job(job)
                .write(&mut begin)
                .map_err(StoredError::Io)?;
            store.append(&begin).map_err(StoredError::Io)?;
            // The names too, or a power failure loses a file that was written to disk.
            [store.folder.as_path(), data]
                .iter()
                .try_for_each(|at| File::open(at)?.sync_all())
                .map_err(StoredError::Io)?;
        }
        Ok(store)
    }

    /// Adds whole entries. Once it returns they are on disk; if it fails, none of them counts.
    pub(crate) fn append(&mut self, entries: &[u8]) -> io::Result<()> {
        // Behind what a failed write has left nothing could be read.
        if self.is_torn {
            self.file.set_len(self.bytes)?;
        }
        // Until it is all on disk: a write or a sync that fails may leave any part of it behind.
        self.is_torn = true;
        self.file.write_all(entries)?;
        self.file.sync_data()?;
        self.bytes += entries.len() as u64;
        self.is_torn = false;
        Ok(())
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Reads what is there; the bytes of whole entries.
pub(crate) fn read(
    file: impl io::Read,
    each: &mut impl FnMut(StoredEntry, Option<Batch>),
) -> Result<u64, (StoredError, u64)> {
    let (mut stored, _) =
        StoredJob::open(BufReader::with_capacity(1 << 16, file)).map_err(|error| (error, 0))?;
    loop {
        match stored.next() {
            Ok(Some((entry, batch))) => each(entry, batch),
            Ok(None) => return Ok(stored.whole_bytes()),
            Err(error) => return Err((error, stored.whole_bytes())),
        }
    }
}

/// The names of all jobs that have a folder with batches.
pub(crate) fn jobs(data: &Path) -> io::Result<Vec<String>> {
    let mut jobs = Vec::new();
    for entry in fs::read_dir(data)? {
        let entry = entry?;
        let job = entry.file_name().to_str().and_then(job_name);
        // A folder without batches may hold what was announced of a job that was just taken over.
        jobs.extend(job.filter(|_| entry.path().join(BATCHES).exists()));
    }
    jobs.sort();
    Ok(jobs)
}

/// The batches of a job.
pub(crate) fn batches(data: &Path, job: &str) -> PathBuf {
    data.join(file_name(job)).join(BATCHES)
}

/// Whether anything was ever answered for: not if the file was cut off at its very beginning.
pub(crate) fn is_begun(data: &Path, job: &str) -> bool {
    File::open(batches(data, job)).is_ok_and(|file| StoredJob::open(BufReader::new(file)).is_ok())
}

/// Bytes of a job's batches.
pub(crate) fn batches_bytes(data: &Path, job: &str) -> Option<u64> {
    fs::metadata(batches(data, job))
        .ok()
        .map(|metadata| metadata.len())
}

/// When a job's batches were written to last, in seconds since 1970.
pub(crate) fn written_s(data: &Path, job: &str) -> Option<u64> {
    let modified = fs::metadata(batches(data, job)).ok()?.modified().ok()?;
    Some(modified.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// Writes a file of a job: whole, or not at all.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // No two files of one folder differ in their extension only.
    let partial = path.with_extension("tmp");
    let mut file = File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    // After the data: a power failure could otherwise leave the name with an empty file.
    fs::rename(&partial, path)
}

/// Bytes that are escaped in the name of a folder.
const ODD: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// A job's folder: letters, digits, `-` and `_` stand for themselves.
pub(crate) fn file_name(job: &str) -> String {
    utf8_percent_encode(job, ODD).to_string()
}

/// The job that a folder is of, if it is one.
fn job_name(folder: &str) -> Option<String> {
    let job = percent_decode_str(folder).decode_utf8().ok()?.into_owned();
    (file_name(&job) == folder).then_some(job)
}

/// What [`is_name`] asks for, for people.
pub(crate) const NAMES: &str = "names have 1 to 128 bytes and no control characters; those other \
    than a-z, A-Z, 0-9, - and _ count three times, and all together at most 240";

/// Whether something may be the name of a job, a host or an agent session.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= LONGEST_NAME_BYTES
        && file_name(name).len() <= LONGEST_FOLDER_BYTES
        && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_fits_into_a_folder() {
        assert!(is_name(&"a".repeat(128)) && is_name(&"ü".repeat(40)));
        assert!(!is_name(&"a".repeat(129)) && !is_name(&"ü".repeat(41)));
        assert!(!is_name("") && !is_name("a\nb"));
    }

    proptest! {
        #[test]
        fn a_folder_says_which_job_it_is_of(job in ".{1,20}", other in "[a-z%2E.]{0,6}") {
            prop_assert_eq!(job_name(&file_name(&job)), Some(job));
            prop_assert!(job_name(&other).is_none_or(|job| file_name(&job) == other));
        }
    }
}
