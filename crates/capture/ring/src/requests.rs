//! The table of work requests: what one process has given to the network cards of its host,
//! and what came back, by queue pair; readable while it hangs or after it was killed.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use memmap2::{Mmap, MmapMut};
use model::RankNs;

use crate::header::StoredIdentity;
use crate::{Identity, RingDirectory, RingError, file};

pub(crate) const MAGIC: [u8; 8] = *b"LAGREQS\0";
/// Bump it with any change of the structures here.
const LAYOUT: u32 = 1;
/// Queue pairs a process may have had; with 32 channels to 8 peers and both ways it has 512.
pub const QUEUE_PAIRS: usize = 1024;
/// Words of a device's name; the kernel's have up to 64 bytes, and hardly more than 12.
const DEVICE_WORDS: usize = 3;

#[repr(C, align(64))]
struct RequestTableHead {
    magic: [u8; 8],
    layout: u32,
    slots: u32,
    /// Zeros.
    reserved: u64,
    identity: StoredIdentity,
    /// Faults of the library itself.
    faults: AtomicU64,
    /// Queue pairs that found no room, and requests nobody could follow.
    dropped: AtomicU64,
    /// Slots taken.
    begun: AtomicU32,
}

#[repr(C, align(64))]
struct RequestSlot {
    state: AtomicU32,
    port: AtomicU32,
    /// Its own number in the low half, the peer's above.
    numbers: AtomicU64,
    peer: [AtomicU64; 2],
    device: [AtomicU64; DEVICE_WORDS],
    posted: AtomicU64,
    posted_bytes: AtomicU64,
    completed: AtomicU64,
    completed_bytes: AtomicU64,
    busy_ns: AtomicU64,
    busy_since: AtomicU64,
    failed: AtomicU64,
    /// The last failure's status.
    status: AtomicU64,
}

impl RequestSlot {
    /// Counts the time since something has been in flight: nothing is any more.
    #[inline]
    fn rest(&self, now: impl FnOnce() -> RankNs) {
        let since = self.busy_since.swap(0, Relaxed);
        if since != 0 {
            let busy_ns = now().0.saturating_sub(since);
            self.busy_ns.fetch_add(busy_ns, Relaxed);
        }
    }
}

const OPEN: u32 = 1;
const CLOSED: u32 = 2;
const BYTES: usize = size_of::<RequestTableHead>() + QUEUE_PAIRS * size_of::<RequestSlot>();

// As docs/formats.md gives them: readers of other builds look there.
const _: () = {
    assert!(std::mem::offset_of!(RequestTableHead, faults) == 312);
    assert!(size_of::<RequestTableHead>() == 384);
    assert!(size_of::<RequestSlot>() == 128);
};

/// The table in mapped memory. All that changes in it is atomic.
struct RequestTableView<'map> {
    head: &'map RequestTableHead,
    slots: &'map [RequestSlot],
}

impl RequestTableView<'_> {
    /// # Safety
    /// `map` must be the start of a mapping of [`BYTES`] that outlives the result.
    #[expect(clippy::cast_ptr_alignment, reason = "mappings begin at a page")]
    #[inline]
    unsafe fn of(map: *const u8) -> Self {
        // SAFETY: the caller's promise; every bit pattern is valid for both.
        unsafe {
            let slots = map.add(size_of::<RequestTableHead>()).cast::<RequestSlot>();
            let slots = std::slice::from_raw_parts(slots, QUEUE_PAIRS);
            Self {
                head: &*map.cast::<RequestTableHead>(),
                slots,
            }
        }
    }
}

/// The writing half, for the training process. Any thread may call anything. Nothing here
/// blocks, allocates, makes a system call or panics, except for [`Self::create`].
#[derive(Debug)]
pub struct RequestWriter {
    map: MmapMut,
    path: PathBuf,
}

/// Which queue pair of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairIndex(pub u32);

impl RequestWriter {
    /// Makes the table of a process.
    ///
    /// # Errors
    /// [`RingError::Io`] if the file system refuses.
    pub fn create(directory: &RingDirectory, identity: &Identity) -> Result<Self, RingError> {
        let path = directory.requests_path(identity);
        let map = file::create(&path, BYTES, |map| {
            // SAFETY: the map is larger than a head, page-aligned and zero-filled, for which
            // all fields are valid; `map` is the only access.
            #[expect(clippy::cast_ptr_alignment, reason = "a mapping begins at a page")]
            let head = unsafe { &mut *map.as_mut_ptr().cast::<RequestTableHead>() };
            head.magic = MAGIC;
            head.layout = LAYOUT;
            head.slots = QUEUE_PAIRS as u32;
            head.identity = StoredIdentity::of(identity);
        })?;
        Ok(Self { map, path })
    }

    #[inline]
    fn table(&self) -> RequestTableView<'_> {
        // SAFETY: the map was made so large, and lives as long as `self`.
        unsafe { RequestTableView::of(self.map.as_ptr()) }
    }

    #[inline]
    fn slot(&self, index: QueuePairIndex) -> Option<&RequestSlot> {
        self.table().slots.get(index.0 as usize)
    }

    /// The table's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a queue pair; `None`, counted as dropped, if there is no room.
    pub fn open(&self, device: &[u8], number: u32) -> Option<QueuePairIndex> {
        let RequestTableView { head, slots } = self.table();
        let at = head.begun.fetch_add(1, Relaxed);
        let Some(slot) = slots.get(at as usize) else {
            // Not to come round to used slots after four billion attempts.
            head.begun.fetch_sub(1, Relaxed);
            self.count_dropped();
            return None;
        };
        for (word, chunk) in slot.device.iter().zip(device.chunks(8)) {
            let mut padded = [0; 8];
            for (into, byte) in padded.iter_mut().zip(chunk) {
                *into = *byte;
            }
            word.store(u64::from_ne_bytes(padded), Relaxed);
        }
        slot.numbers.store(number.into(), Relaxed);
        // Last: a reader that sees it open sees what it is, too.
        slot.state.store(OPEN, Release);
        Some(QueuePairIndex(at))
    }

    /// Says to whom a queue pair is connected: by which port of its device, to which address
    /// and queue pair.
    pub fn connect(&self, index: QueuePairIndex, port: u8, gid: [u8; 16], number: u32) {
        let Some(slot) = self.slot(index) else { return };
        slot.port.store(port.into(), Relaxed);
        for (word, chunk) in slot.peer.iter().zip(gid.as_chunks().0) {
            word.store(u64::from_ne_bytes(*chunk), Relaxed);
        }
        let own = slot.numbers.load(Relaxed) & 0xffff_ffff;
        slot.numbers.store(own | u64::from(number) << 32, Relaxed);
    }

    /// Says that a queue pair is no more.
    pub fn close(&self, index: QueuePairIndex) {
        if let Some(slot) = self.slot(index) {
            slot.state.store(CLOSED, Release);
        }
    }

    /// Counts requests that are about to be given to the network; how many there are now, and
    /// their bytes.
    #[inline]
    pub fn posted(
        &self,
        index: QueuePairIndex,
        requests: u64,
        bytes: u64,
        now: impl FnOnce() -> RankNs,
    ) -> (u64, u64) {
        let Some(slot) = self.slot(index) else {
            return (0, 0);
        };
        let bytes = slot
            .posted_bytes
            .fetch_add(bytes, Relaxed)
            .wrapping_add(bytes);
        let before = slot.posted.fetch_add(requests, Relaxed);
        // Nothing was in flight: busy time begins here. The clock is read only then.
        if before == slot.completed.load(Relaxed) {
            slot.busy_since.store(now().0, Relaxed);
        }
        (before.wrapping_add(requests), bytes)
    }

    /// Takes back what the network refused.
    pub fn refused(
        &self,
        index: QueuePairIndex,
        requests: u64,
        bytes: u64,
        now: impl FnOnce() -> RankNs,
    ) {
        let Some(slot) = self.slot(index) else { return };
        slot.posted_bytes.fetch_sub(bytes, Relaxed);
        let posted = slot.posted.fetch_sub(requests, Relaxed);
        if posted.wrapping_sub(requests) == slot.completed.load(Relaxed) {
            slot.rest(now);
        }
    }

    /// Says that as many requests, of so many bytes, have come back since the beginning.
    #[inline]
    pub fn completed(
        &self,
        index: QueuePairIndex,
        requests: u64,
        bytes: u64,
        now: impl FnOnce() -> RankNs,
    ) {
        let Some(slot) = self.slot(index) else { return };
        // By maximum: threads that poll at once may come here out of order.
        slot.completed_bytes.fetch_max(bytes, Relaxed);
        // After the bytes: a reader that sees requests back sees theirs.
        slot.completed.fetch_max(requests, Release);
        if requests == slot.posted.load(Relaxed) {
            slot.rest(now);
        }
    }

    /// Counts a request that failed, and keeps its status.
    pub fn failed(&self, index: QueuePairIndex, status: u32) {
        let Some(slot) = self.slot(index) else { return };
        slot.status.store(status.into(), Relaxed);
        slot.failed.fetch_add(1, Relaxed);
    }

    /// Counts something that found no room.
    pub fn count_dropped(&self) {
        self.table().head.dropped.fetch_add(1, Relaxed);
    }

    /// Counts a fault of the library.
    pub fn count_fault(&self) {
        self.table().head.faults.fetch_add(1, Relaxed);
    }
}

/// A queue pair as a reader finds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuePair {
    /// The device, as `/sys/class/infiniband` has it.
    pub device: String,
    /// The port of the device; 0 before it is connected.
    pub port: u32,
    /// Its number on the device.
    pub number: u32,
    /// The peer's number, and its address (GID).
    pub peer: (u32, [u8; 16]),
    /// Whether it is still there.
    pub open: bool,
    /// Requests given to the network, and their bytes.
    pub posted: u64,
    /// Bytes of those.
    pub posted_bytes: u64,
    /// Requests that came back.
    pub completed: u64,
    /// Bytes of those.
    pub completed_bytes: u64,
    /// Nanoseconds in which something was in flight.
    pub busy_ns: u64,
    /// Requests that failed, and how the last one did (`ibv_wc_status`).
    pub failed: u64,
    /// How the last one did.
    pub status: u32,
}

/// The reading half.
#[derive(Debug)]
pub struct RequestReader {
    map: Mmap,
    path: PathBuf,
    identity: Identity,
}

impl RequestReader {
    /// Opens a table.
    ///
    /// # Errors
    /// [`RingError::NotARequestTable`] and [`RingError::Layout`] for foreign files,
    /// [`RingError::Io`] if the file cannot be mapped.
    pub fn open(path: &Path) -> Result<Self, RingError> {
        let map = file::open(path)?;
        if map.len() < BYTES || !map.starts_with(&MAGIC) {
            return Err(RingError::NotARequestTable {
                path: path.to_owned(),
            });
        }
        // SAFETY: the map is as long as a table; any bytes are valid.
        let head = unsafe { RequestTableView::of(map.as_ptr()) }.head;
        if head.layout != LAYOUT || head.slots as usize != QUEUE_PAIRS {
            let (path, found) = (path.to_owned(), head.layout);
            return Err(RingError::Layout {
                path,
                found,
                supported: LAYOUT,
            });
        }
        let identity = head.identity.read();
        Ok(Self {
            map,
            path: path.to_owned(),
            identity,
        })
    }

    fn table(&self) -> RequestTableView<'_> {
        // SAFETY: `open` checked that the map is large enough; it lives as long as `self`.
        unsafe { RequestTableView::of(self.map.as_ptr()) }
    }

    /// Who writes the table.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The table's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Faults of the library in the process; after the first it counts no more.
    pub fn faults(&self) -> u64 {
        self.table().head.faults.load(Relaxed)
    }

    /// Queue pairs that found no room, and requests nobody could follow.
    pub fn dropped(&self) -> u64 {
        self.table().head.dropped.load(Relaxed)
    }

    /// The queue pairs the process has or had, in the order they were made.
    ///
    /// # Invariants
    /// `completed <= posted`, in requests and in bytes.
    pub fn read(&self, now: RankNs) -> Vec<QueuePair> {
        self.table()
            .slots
            .iter()
            .filter_map(|slot| slot.read(now))
            .collect()
    }
}

impl RequestSlot {
    fn read(&self, now: RankNs) -> Option<QueuePair> {
        let state = self.state.load(Acquire);
        if !matches!(state, OPEN | CLOSED) {
            return None;
        }
        let words = self
            .device
            .iter()
            .flat_map(|word| word.load(Relaxed).to_ne_bytes());
        let device: Vec<u8> = words.take_while(|byte| *byte != 0).collect();
        let numbers = self.numbers.load(Relaxed);
        let mut gid = [0; 16];
        let bytes = self
            .peer
            .iter()
            .flat_map(|word| word.load(Relaxed).to_ne_bytes());
        for (into, byte) in gid.iter_mut().zip(bytes) {
            *into = byte;
        }
        let since = self.busy_since.load(Relaxed);
        let busy_ns = self.busy_ns.load(Relaxed);
        let running_ns = if since == 0 {
            0
        } else {
            now.0.saturating_sub(since)
        };
        // What has completed is read first: more may be posted meanwhile, never less.
        let completed = self.completed.load(Acquire);
        let completed_bytes = self.completed_bytes.load(Relaxed);
        Some(QueuePair {
            device: String::from_utf8_lossy(&device).into_owned(),
            port: self.port.load(Relaxed),
            number: numbers as u32,
            peer: ((numbers >> 32) as u32, gid),
            open: state == OPEN,
            posted: self.posted.load(Relaxed).max(completed),
            posted_bytes: self.posted_bytes.load(Relaxed).max(completed_bytes),
            completed,
            completed_bytes,
            busy_ns: busy_ns.saturating_add(running_ns),
            failed: self.failed.load(Relaxed),
            status: self.status.load(Relaxed) as u32,
        })
    }
}
