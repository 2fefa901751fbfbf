//! The first pages of a ring file: who writes it, and the names its records refer to.

use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::slots::Counters;

pub(crate) const MAGIC: [u8; 8] = *b"LAGGARD\0";
/// Layout of header, names and slots. Bump it with any change of them or of
/// [`model::Mark`]'s words.
pub(crate) const LAYOUT: u32 = 1;
// With its kind and its length a name takes 256 bytes.
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

/// An [`Identity`] as files have it.
#[repr(C)]
pub(crate) struct StoredIdentity {
    rank: u32,
    local_rank: u32,
    world_size: u32,
    local_world_size: u32,
    attempt: u32,
    pid: u32,
    started: u64,
    job: [u8; 128],
    host: [u8; 128],
}

impl StoredIdentity {
    pub(crate) fn of(identity: &Identity) -> Self {
        Self {
            rank: identity.rank,
            local_rank: identity.local_rank,
            world_size: identity.world_size,
            local_world_size: identity.local_world_size,
            attempt: identity.attempt,
            pid: identity.pid,
            started: identity.started,
            job: stored_text(&identity.job),
            host: stored_text(&identity.host),
        }
    }

    pub(crate) fn read(&self) -> Identity {
        Identity {
            job: text(&self.job),
            host: text(&self.host),
            rank: self.rank,
            local_rank: self.local_rank,
            world_size: self.world_size,
            local_world_size: self.local_world_size,
            attempt: self.attempt,
            pid: self.pid,
            started: self.started,
        }
    }
}

/// As much of a text as there is room for, cut at a character, filled up with zeros.
fn stored_text<const ROOM: usize>(text: &str) -> [u8; ROOM] {
    let mut stored = [0; ROOM];
    let kept = text.as_bytes().iter().take(text.floor_char_boundary(ROOM));
    for (into, byte) in stored.iter_mut().zip(kept) {
        *into = *byte;
    }
    stored
}

fn text(bytes: &[u8]) -> String {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

/// What a name in a ring's table is the name of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NameKind {
    /// A stage, a side channel, or a line that reads back from the device.
    Stage = 1,
    /// The rank's role; the last one written holds.
    Role = 2,
    /// Something a person should know about the sensors of this rank.
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
    pub(crate) identity: StoredIdentity,
    /// Steps begun; zero until the process has proved to be a rank.
    pub(crate) stepped: AtomicU32,
    /// 1 once the process has ended, or left the training, in good order.
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

const _: () = assert!(
    size_of::<Header>() <= SLOTS_AT,
    "names reach into the slots"
);
