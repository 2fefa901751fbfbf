//! The shared-memory ring between a training process and its readers.
//!
//! One process writes, from any of its threads; readers map the same file and may come,
//! go and die as they like. The writer never waits: the oldest record is overwritten, and a
//! reader that fell behind counts what it lost. The file outlives its writer, so that the
//! last seconds before a crash can be read.
//!
//! Beside its ring a process may have a live table, of the communication it is in
//! ([`LiveWriter`], [`LiveReader`]), and has a mailbox where profile windows are ordered
//! ([`ProfileMailbox`], [`ProfileController`]).
//!
//! [`RingWriter`] is for the process, [`RingReader`] for everyone else, [`JobReader`] reads
//! all rings of a job as one stream of [`model::Input`]s. docs/formats.md has the layouts.
//!
//! # Example
//! A job has a private directory, which one agent at a time claims:
//! ```
//! use laggard_ring::RingDirectory;
//!
//! let root = tempfile::tempdir()?;
//! let directory = RingDirectory::create(&root.path().join("rings"), "pretrain-7")?;
//! let claim = directory.claim("pretrain-7")?.expect("no agent has claimed it");
//! assert!(directory.claim("pretrain-7")?.is_none());
//! assert_eq!(claim.job(), "pretrain-7");
//! assert!(directory.rings()?.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![expect(
    unsafe_code,
    reason = "shared memory is mapped and read through atomics"
)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod atomics {
    pub(crate) use std::sync::atomic::{AtomicU64, fence};
}
mod directory;
mod error;
mod file;
mod header;
mod job;
mod launched;
mod live;
mod map;
mod profile;
mod requests;
mod slots;

pub use {
    directory::{RingDirectory, WatchClaim, clean_stale, process_started},
    error::RingError,
    header::{Identity, NameKind},
    job::{JobReader, RankState, group_entry},
    launched::Launched,
    live::{
        Bytes, CommunicatorIndex, FlowToken, LiveReader, LiveSize, LiveSource, LiveState,
        LiveWriter, OperationToken, Reached, Route, STEP_BITS, Sent,
    },
    map::{Drained, RingReader, RingWriter, default_slots},
    profile::{ProfileAnswer, ProfileController, ProfileMailbox, ProfileOrder, ProfileState},
    requests::{QUEUE_PAIRS, QueuePair, QueuePairIndex, RequestReader, RequestWriter},
};
