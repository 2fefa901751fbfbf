//! The first pages of a ring file: who writes it, and the names its records refer to.

use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::slots::Counters;

pub(crate) const MAGIC: [u8; 8] = *b"LAGGARD\0";
/// Layout of header, names and slots. Bump it with any change of them or of
/// [`model::Mark`]'s words.
pub(crate) const LAYOUT: u32 = 1;
pub(crate) const NAME_BYTES: usize = 248;
pub(crate) const MAX_NAMES: usize = 128;
/// Where the slots begin: header and names fit before it.
pub(crate) const SLOTS_AT: usize = 36_864;

/// Who writes a ring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The job, as its ring directory is named.
    pub job: String,
    /// Host name.
    pub host: String,
    /// Global rank.
    pub rank: u32,
    /// Rank on its host.
    pub local_rank: u32,
    /// Ranks of the job.
    pub world_size: u32,
    /// Ranks of the job on this host, zero if unknown.
    pub local_world_size: u32,
    /// Which start of the job this is: 0, and one more after each elastic restart.
    pub attempt: u32,
    /// Process id.
    pub pid: u32,
    /// Start time of the process in clock ticks since boot, which tells a reused pid.
    pub started: u64,
}

/// What a name in a ring's table is the name of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NameKind {
    /// A stage or side channel.
    Stage = 1,
    /// The rank's role; the last one written holds.
    Role = 2,
    /// Something a person should be told about the sensors of this rank.
    Note = 3,
    /// A group of ranks: its number, its name without spaces, its members.
    Group = 4,
}

#[repr(C)]
pub(crate) struct Header {
    pub(crate) magic: [u8; 8],
    pub(crate) layout: u32,
    pub(crate) payload_words: u32,
    pub(crate) slots: u64,
    pub(crate) rank: u32,
    pub(crate) local_rank: u32,
    pub(crate) world_size: u32,
    pub(crate) local_world_size: u32,
    pub(crate) attempt: u32,
    pub(crate) pid: u32,
    pub(crate) started: u64,
    pub(crate) job: [u8; 128],
    pub(crate) host: [u8; 128],
    /// Steps begun; zero until the process has proved to be a rank.
    pub(crate) stepped: AtomicU32,
    /// 1 once the process has ended in good order.
    pub(crate) closed: AtomicU32,
    /// Faults of the probe itself.
    pub(crate) faults: AtomicU64,
    pub(crate) names: AtomicU32,
    pub(crate) counters: Counters,
    pub(crate) table: [Name; MAX_NAMES],
}

/// One entry of the name table, written once, before `Header::names` counts it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Name {
    pub(crate) kind: u32,
    pub(crate) bytes: u32,
    pub(crate) text: [u8; NAME_BYTES],
}

const _: () = assert!(size_of::<Header>() <= SLOTS_AT, "names reach into the slots");
