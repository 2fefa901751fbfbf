use std::io;
use std::path::PathBuf;

/// A ring, or a live table, that cannot be made or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The operating system refused the directory, the file or the mapping.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The directory belongs to somebody else or is open to others.
    #[error("{} is not a private directory of this user", path.display())]
    NotPrivate {
        /// The directory.
        path: PathBuf,
    },
    /// The file is not a ring.
    #[error("{} is not a ring", path.display())]
    NotARing {
        /// The file.
        path: PathBuf,
    },
    /// The ring was written by a build with another layout.
    #[error("{} has layout {found}, this build reads {supported}", path.display())]
    Layout {
        /// The file.
        path: PathBuf,
        /// Its layout.
        found: u32,
        /// Ours.
        supported: u32,
    },
    /// The number of slots is not a power of two between 64 and 16 million.
    #[error("{slots} slots: a ring needs a power of two between 64 and 16777216")]
    Slots {
        /// The number asked for.
        slots: usize,
    },
    /// The file is not a live table.
    #[error("{} is not a live table", path.display())]
    NotALiveTable {
        /// The file.
        path: PathBuf,
    },
    /// The file is not a table of work requests.
    #[error("{} is not a table of work requests", path.display())]
    NotARequestTable {
        /// The file.
        path: PathBuf,
    },
    /// The file is not the mailbox of a rank.
    #[error("{} is not the profile mailbox of a rank", path.display())]
    NotAProfileMailbox {
        /// The file.
        path: PathBuf,
    },
    /// The number of operations is not a power of two between 64 and 65536.
    #[error("{operations} operations: a live table needs a power of two from 64 to 65536")]
    Operations {
        /// The number asked for.
        operations: usize,
    },
}
