use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Metadata, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use model::group_number;

use crate::file::io_error;
use crate::{Identity, LiveReader, LiveSource, RequestReader, RingError, RingReader};

/// Says how the job is called, and is locked by the agent that reports it.
const CLAIM: &str = ".claim";
/// Longest name of a job.
const LONGEST_NAME_BYTES: usize = 128;
/// Stands in every directory we made, so that no other is ever cleaned away.
const MARKER: &str = ".laggard";
/// How the names of directories with traces begin.
const TRACES_PREFIX: &str = "laggard-traces-";

/// The directory with the rings of one job: private to the user, in memory where possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingDirectory {
    path: PathBuf,
}

/// The right to read a job's rings and tell of it: one process has it at a time, and loses it
/// with its life.
#[derive(Debug)]
pub struct WatchClaim {
    job: String,
    /// The lock is on the open file.
    _locked: File,
}

impl WatchClaim {
    /// What the job is called.
    pub fn job(&self) -> &str {
        &self.job
    }
}

impl RingDirectory {
    /// Name of the link to where traces are written: they need not be in memory.
    pub(crate) const TRACES: &str = "traces";

    /// Where rings stand unless `LAGGARD_DIR` says otherwise.
    pub fn default_root() -> PathBuf {
        // SAFETY: the call cannot fail and touches nothing.
        let user = unsafe { libc::geteuid() };
        let memory = Path::new("/dev/shm");
        let root = if memory.is_dir() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        };
        root.join(format!("laggard-{user}"))
    }

    /// Makes, or finds, the directory of a job under `root`.
    ///
    /// # Errors
    /// [`RingError::NotPrivate`] if somebody else owns it or may write to it,
    /// [`RingError::Io`] if it cannot be made.
    pub fn create(root: &Path, job: &str) -> Result<Self, RingError> {
        make_private(root)?;
        let path = root.join(file_name(job));
        if make_private(&path)? == Creation::New {
            // Without it the directory is merely not cleaned away by a later job.
            drop(File::create(path.join(MARKER)));
        }
        Ok(Self { path })
    }

    /// Finds the directory of a job that is there.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn open(path: &Path) -> Result<Self, RingError> {
        check_private(path)?;
        Ok(Self {
            path: path.to_owned(),
        })
    }

    /// Claims the job; `None` while another process has it. Who claims it first names it
    /// `job`, and who goes on after that one is told the name.
    ///
    /// # Errors
    /// [`RingError::Io`] if the file system refuses.
    pub fn claim(&self, job: &str) -> Result<Option<WatchClaim>, RingError> {
        let path = self.path.join(CLAIM);
        let mut options = File::options();
        options
            .read(true)
            .write(true)
            .create(true)
            // It holds the name that the first process to claim the job gave it.
            .truncate(false)
            .mode(0o600);
        let mut file = options.open(&path).map_err(io_error("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(source)) => return Err(io_error("lock", &path)(source)),
        }
        let mut known = String::new();
        let limit = LONGEST_NAME_BYTES as u64;
        // What is no text is no name.
        let read = Read::by_ref(&mut file)
            .take(limit)
            .read_to_string(&mut known);
        if read.is_err() || known.is_empty() {
            file.set_len(0).map_err(io_error("write", &path))?;
            file.write_all_at(job.as_bytes(), 0)
                .map_err(io_error("write", &path))?;
            job.clone_into(&mut known);
        }
        Ok(Some(WatchClaim {
            job: known,
            _locked: file,
        }))
    }

    /// Whether somebody has claimed the job, if only in the past.
    pub fn was_claimed(&self) -> bool {
        self.path.join(CLAIM).is_file()
    }

    /// Whether somebody has claimed the job, and still watches it.
    fn is_claimed(&self) -> bool {
        let claim = File::open(self.path.join(CLAIM));
        claim.is_ok_and(|claim| matches!(claim.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Whether a process still writes here.
    pub fn has_writer(&self) -> bool {
        self.writers().is_ok_and(|mut writers| {
            writers.any(|(_, writer)| writer.is_ok_and(|writer| is_alive(&writer)))
        })
    }

    /// Each of the files, and who wrote it, as far as it can be read.
    fn writers(&self) -> io::Result<impl Iterator<Item = (PathBuf, Result<Identity, RingError>)>> {
        let rings = self.rings()?.into_iter().map(|path| {
            let writer = RingReader::open(&path).map(|ring| ring.identity().clone());
            (path, writer)
        });
        let mut tables = self.live_tables(LiveSource::Plugin)?;
        tables.extend(self.live_tables(LiveSource::Calls)?);
        let tables = tables.into_iter().map(|path| {
            let writer = LiveReader::open(&path).map(|table| table.identity().clone());
            (path, writer)
        });
        let requests = self.request_tables()?.into_iter().map(|path| {
            let writer = RequestReader::open(&path).map(|table| table.identity().clone());
            (path, writer)
        });
        Ok(rings.chain(tables).chain(requests))
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the ring of a process stands.
    pub fn ring_path(&self, identity: &Identity) -> PathBuf {
        self.path
            .join(format!("rank{}.{}.ring", identity.rank, identity.pid))
    }

    /// Where the live table of a process stands.
    pub fn live_path(&self, identity: &Identity, source: LiveSource) -> PathBuf {
        let Identity { rank, pid, .. } = identity;
        self.path
            .join(format!("rank{rank}.{pid}.{}", source.extension()))
    }

    /// Where the table of work requests of a process stands.
    pub fn requests_path(&self, identity: &Identity) -> PathBuf {
        self.path
            .join(format!("rank{}.{}.requests", identity.rank, identity.pid))
    }

    /// Where the profile mailbox of a process stands. The extension is older than the name, and
    /// part of the layout that agents and ranks of different builds share.
    pub fn mailbox_path(&self, identity: &Identity) -> PathBuf {
        self.path
            .join(format!("rank{}.{}.desk", identity.rank, identity.pid))
    }

    /// The rings that are there now.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn rings(&self) -> io::Result<Vec<PathBuf>> {
        self.files("ring")
    }

    /// The live tables that are there now.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn live_tables(&self, source: LiveSource) -> io::Result<Vec<PathBuf>> {
        self.files(source.extension())
    }

    /// The tables of work requests that are there now.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn request_tables(&self) -> io::Result<Vec<PathBuf>> {
        self.files("requests")
    }

    fn files(&self, extension: &str) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension() == Some(OsStr::new(extension)) {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    /// Makes a private directory for traces under `root`, and a link to it; traces are large,
    /// and what the rings stand in may be memory.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn make_traces(&self, root: &Path) -> Result<PathBuf, RingError> {
        // SAFETY: the call cannot fail and touches nothing.
        let user = unsafe { libc::geteuid() };
        let job = self.path.file_name().unwrap_or_default().to_string_lossy();
        let target = root.join(format!("{TRACES_PREFIX}{user}-{job}"));
        make_private(&target)?;
        let link = self.path.join(Self::TRACES);
        match std::os::unix::fs::symlink(&target, &link) {
            // Of the agent that read the rings before.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => {
                return Err(RingError::Io {
                    action: "link",
                    path: link,
                    source,
                });
            }
            Ok(()) => {}
        }
        Ok(target)
    }

    /// Removes the directory with all its rings and traces. Processes that still write keep
    /// their mapping and notice nothing.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn remove(&self) -> io::Result<()> {
        let traces = fs::read_link(self.path.join(Self::TRACES))
            .ok()
            .filter(|target| {
                // A link that somebody else has put there leads anywhere.
                let name = target.file_name().unwrap_or_default();
                name.to_string_lossy().starts_with(TRACES_PREFIX)
            });
        // Traces that resist must not keep the rings.
        drop(traces.map(fs::remove_dir_all));
        fs::remove_dir_all(&self.path)
    }
}

/// When the process `pid` started, in clock ticks since boot; `None` if there is none.
pub fn process_started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may hold spaces and parentheses; the last ")" ends it.
    let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ');
    let state = fields.next()?;
    // Field 22 of proc(5); the state is field 3.
    let started = fields.nth(18)?.parse().ok()?;
    // A zombie will write no more.
    (state != "Z" && state != "X").then_some(started)
}

/// Whether it is still the process that says so of itself.
pub(crate) fn is_alive(identity: &Identity) -> bool {
    process_started(identity.pid) == Some(identity.started)
}

/// Removes a ring and what else its process has made. What is mapped stays readable.
pub(crate) fn remove_ring(ring: &Path) {
    let of_process = [
        "desk",
        "requests",
        LiveSource::Plugin.extension(),
        LiveSource::Calls.extension(),
        "ring.sock",
        "ring",
    ];
    for extension in of_process {
        // What resists goes with the directory.
        drop(fs::remove_file(ring.with_extension(extension)));
    }
}

/// Removes the job directories under `root` whose processes are all gone and that nobody
/// touched for `age`; returns how many. What laggard did not make is left alone.
///
/// # Errors
/// What the operating system says of `root`; single directories that resist are skipped.
pub fn clean_stale(root: &Path, age: Duration) -> io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        let directory = RingDirectory { path };
        if is_stale(&directory, age) && directory.remove().is_ok() {
            removed += 1;
        }
    }
    Ok(removed)
}

fn is_stale(directory: &RingDirectory, age: Duration) -> bool {
    // Of the entry itself: a link could lead to any directory.
    let Ok(metadata) = fs::symlink_metadata(directory.path()) else {
        return false;
    };
    let Ok(mut writers) = directory.writers() else {
        return false;
    };
    metadata.is_dir()
        && directory.path().join(MARKER).is_file()
        && untouched_for(&metadata) >= Some(age)
        && !directory.is_claimed()
        && writers.all(|(path, writer)| is_left(&path, &writer))
}

fn untouched_for(metadata: &Metadata) -> Option<Duration> {
    SystemTime::now()
        .duration_since(metadata.modified().ok()?)
        .ok()
}

/// Whether nobody will write to a file any more, by whom it says writes it.
fn is_left(path: &Path, writer: &Result<Identity, RingError>) -> bool {
    match writer {
        Ok(identity) => !is_alive(identity),
        // An error of the moment says nothing of the writer.
        Err(RingError::Io { .. }) => false,
        // Of another version only the name can be read.
        Err(_) => named_pid(path).is_none_or(|pid| process_started(pid).is_none()),
    }
}

/// The process that writes a file, by the file's name.
fn named_pid(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    // `rankR.PID.ring`, and tables alike.
    name.split('.').nth(1)?.parse().ok()
}

#[derive(PartialEq, Eq)]
enum Creation {
    New,
    Found,
}

fn make_private(path: &Path) -> Result<Creation, RingError> {
    // One level first, which tells a folder that is new from one that somebody else may own.
    match DirBuilder::new().mode(0o700).recursive(false).create(path) {
        Ok(()) => return Ok(Creation::New),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut builder = DirBuilder::new();
            return builder
                .mode(0o700)
                .recursive(true)
                .create(path)
                .map(|()| Creation::New)
                .map_err(io_error("create directory", path));
        }
        Err(error) => return Err(io_error("create directory", path)(error)),
    }
    check_private(path).map(|()| Creation::Found)
}

fn check_private(path: &Path) -> Result<(), RingError> {
    let metadata = fs::symlink_metadata(path).map_err(|source| RingError::Io {
        action: "look at",
        path: path.to_owned(),
        source,
    })?;
    // SAFETY: the call cannot fail and touches nothing.
    let user = unsafe { libc::geteuid() };
    let private =
        // Others may look. Who could write might put a file of another kind in the place of a ring.
        metadata.is_dir() && metadata.uid() == user && metadata.permissions().mode() & 0o022 == 0;
    if private {
        Ok(())
    } else {
        Err(RingError::NotPrivate {
            path: path.to_owned(),
        })
    }
}

/// A job's name as one path component, of its own for each job.
fn file_name(job: &str) -> String {
    let name: String = job
        .chars()
        .take(100)
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' => c,
            _ => '_',
        })
        .collect();
    if name.trim_matches('.').is_empty() {
        format!("job{name}")
    } else if name == job {
        name
    } else {
        // Two jobs in one directory would be read as one: `team/run1` is not `team_run1`. Groups
        // are hashed by their names in the same way.
        format!("{name}-{:08x}", group_number(job))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_job_name_stays_inside_its_root() {
        assert_eq!(file_name("../../etc"), ".._.._etc-cb7d5d3f");
        assert_eq!(file_name(".."), "job..");
        assert_eq!(file_name(""), "job");
    }

    #[test]
    fn two_jobs_never_share_a_directory() {
        assert_eq!(file_name("slurm-77.0"), "slurm-77.0");
        let (long, longer) = ("a".repeat(101), "a".repeat(102));
        let jobs = ["team/run1", "team_run1", "team run1", &long, &longer];
        let names: BTreeSet<String> = jobs.iter().map(|job| file_name(job)).collect();
        assert_eq!(names.len(), jobs.len(), "{names:?}");
    }

    #[test]
    fn a_directory_others_may_write_to_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let shared = root.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = RingDirectory::create(&shared, "job");
        assert!(matches!(refused, Err(RingError::NotPrivate { .. })));
    }

    #[test]
    fn only_directories_we_made_are_cleaned_away() {
        let root = tempfile::tempdir().unwrap();
        let theirs = root.path().join("papers");
        fs::create_dir(&theirs).unwrap();
        fs::write(theirs.join("draft"), "precious").unwrap();
        let ours = RingDirectory::create(root.path(), "job").unwrap();
        let found = RingDirectory::create(root.path(), "papers").unwrap();
        assert_eq!(clean_stale(root.path(), Duration::ZERO).unwrap(), 1);
        assert!(!ours.path().exists());
        assert!(found.path().join("draft").exists());
    }

    #[test]
    fn a_directory_whose_job_is_watched_is_not_cleaned_away() {
        let root = tempfile::tempdir().unwrap();
        let directory = RingDirectory::create(root.path(), "job").unwrap();
        let claim = directory.claim("job").unwrap();
        assert_eq!(clean_stale(root.path(), Duration::ZERO).unwrap(), 0);
        drop(claim);
        assert_eq!(clean_stale(root.path(), Duration::ZERO).unwrap(), 1);
    }

    #[test]
    fn traces_go_with_the_directory() {
        let root = tempfile::tempdir().unwrap();
        let rings = RingDirectory::create(&root.path().join("rings"), "job").unwrap();
        let traces = rings.make_traces(root.path()).unwrap();
        fs::write(rings.path().join("traces/rank0.json"), "{").unwrap();
        rings.remove().unwrap();
        assert!(!traces.exists() && !rings.path().exists());
    }

    #[test]
    fn a_job_is_claimed_by_one_at_a_time_and_keeps_its_first_name() {
        let root = tempfile::tempdir().unwrap();
        let rings = RingDirectory::create(root.path(), "job").unwrap();
        assert!(!rings.was_claimed());
        let first = rings.claim("pretrain-7").unwrap().unwrap();
        assert_eq!(first.job(), "pretrain-7");
        assert!(rings.claim("other").unwrap().is_none());
        drop(first);
        assert_eq!(rings.claim("other").unwrap().unwrap().job(), "pretrain-7");
        // A process that was killed before it had written the name.
        fs::write(rings.path().join(CLAIM), "").unwrap();
        assert_eq!(rings.claim("other").unwrap().unwrap().job(), "other");
    }

    #[test]
    fn traces_are_linked_again_by_the_next_reader() {
        let root = tempfile::tempdir().unwrap();
        let rings = RingDirectory::create(&root.path().join("rings"), "job").unwrap();
        let traces = rings.make_traces(root.path()).unwrap();
        assert_eq!(rings.make_traces(root.path()).unwrap(), traces);
    }

    #[test]
    fn this_process_has_a_start_time_and_a_dead_one_has_none() {
        assert!(process_started(std::process::id()).is_some());
        assert!(process_started(u32::MAX).is_none());
    }
}
