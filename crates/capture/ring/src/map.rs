//! Ring files mapped into memory.
#![expect(
    clippy::cast_ptr_alignment,
    reason = "mappings begin at a page, and the parts of a ring at multiples of a line"
)]

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::{ptr, slice};

use memmap2::{Mmap, MmapMut};
use model::{Mark, PAYLOAD_WORDS};

use crate::header::{Header, LAYOUT, MAGIC, MAX_NAMES, NAME_BYTES, SLOTS_AT, StoredIdentity};
use crate::{Identity, NameKind, RingDirectory, RingError, file, slots};

type RingSlot = slots::Slot<PAYLOAD_WORDS>;

/// Slots of a ring unless told otherwise: 2 MiB, some thousand steps.
pub const fn default_slots() -> usize {
    32_768
}

/// The writing half, for the training process.
#[derive(Debug)]
pub struct RingWriter {
    map: MmapMut,
    path: PathBuf,
    slots: usize,
    /// Guards the name table, which is written a handful of times in a run.
    names: Mutex<()>,
}

impl RingWriter {
    /// Makes the ring of a process.
    ///
    /// It gets its name only when its header is whole.
    /// # Errors
    /// [`RingError::Slots`], or [`RingError::Io`] if the file system refuses.
    pub fn create(
        directory: &RingDirectory,
        identity: &Identity,
        slots: usize,
    ) -> Result<Self, RingError> {
        // A record's slot is the low bits of its number.
        if !slots.is_power_of_two() || !(64..=1 << 24).contains(&slots) {
            return Err(RingError::Slots { slots });
        }
        let path = directory.ring_path(identity);
        let bytes = SLOTS_AT + slots * size_of::<RingSlot>();
        let map = file::create(&path, bytes, |map| write_header(map, identity, slots))?;
        Ok(Self {
            map,
            path,
            slots,
            names: Mutex::new(()),
        })
    }

    fn header(&self) -> &Header {
        // SAFETY: the map holds a header that was written by `write_header`; its changing
        // fields are atomics, and names are written once before they are counted.
        unsafe { &*self.map.as_ptr().cast::<Header>() }
    }

    /// Writes one mark over the oldest. Never blocks, allocates, makes a system call or
    /// panics.
    ///
    /// Any thread may write, but one at a time; the interpreter's lock sees to that. Calls
    /// that overlap lose or mix their marks.
    #[inline]
    pub fn write(&self, mark: Mark) {
        // SAFETY: `slots` slots lie at `SLOTS_AT`, which the file was made to hold; all
        // bit patterns are valid and all access is atomic.
        let slots = unsafe { slots_of(self.map.as_ptr(), self.slots) };
        slots::write(&self.header().counters, slots, mark.to_words());
    }

    /// Adds a name to the ring's table; its code, or `None` if the table is full.
    pub fn name(&self, kind: NameKind, text: &str) -> Option<u16> {
        let _guard = self.names.lock().ok()?;
        let header = self.header();
        let at = header.names.load(Relaxed) as usize;
        if at >= MAX_NAMES {
            return None;
        }
        let text = text
            .get(..text.floor_char_boundary(NAME_BYTES))
            .unwrap_or_default();
        // SAFETY: entry `at` lies inside the table, is not yet counted, so nobody reads it,
        // and the guard keeps other writers out.
        unsafe {
            let entry = ptr::addr_of!(header.table)
                .cast::<crate::header::Name>()
                .add(at);
            let entry = entry.cast_mut();
            ptr::addr_of_mut!((*entry).kind).write(kind as u32);
            ptr::addr_of_mut!((*entry).bytes).write(text.len() as u32);
            let into = ptr::addr_of_mut!((*entry).text).cast::<u8>();
            ptr::copy_nonoverlapping(text.as_ptr(), into, text.len());
        }
        header.names.store(at as u32 + 1, Release);
        u16::try_from(at).ok()
    }

    /// Says that the process is in step `step` and so has proved to be a rank.
    #[inline]
    pub fn set_stepped(&self, step: u32) {
        self.header().stepped.store(step.saturating_add(1), Relaxed);
    }

    /// Counts a fault of the probe.
    pub fn count_fault(&self) {
        self.header().faults.fetch_add(1, Relaxed);
    }

    /// Says whether the process has left the training in good order.
    pub fn set_closed(&self, closed: bool) {
        self.header().closed.store(closed.into(), Release);
    }

    /// The ring's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// What a reader gets of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// The next record.
    Mark(Mark),
    /// So many records are gone.
    Lost(u64),
}

/// The reading half. Any number of readers may read a ring; none disturbs the writer.
#[derive(Debug)]
pub struct RingReader {
    map: Mmap,
    slots: usize,
    next: u64,
    lost: u64,
    identity: Identity,
    path: PathBuf,
}

fn not_a_ring(path: &Path) -> RingError {
    RingError::NotARing {
        path: path.to_owned(),
    }
}

impl RingReader {
    /// Opens a ring at its oldest record.
    ///
    /// # Errors
    /// [`RingError::NotARing`] and [`RingError::Layout`] for foreign files,
    /// [`RingError::Io`] if the file cannot be mapped.
    pub fn open(path: &Path) -> Result<Self, RingError> {
        let map = file::open(path)?;
        if map.len() < SLOTS_AT || !map.starts_with(&MAGIC) {
            return Err(not_a_ring(path));
        }
        // SAFETY: the map is longer than a header and page-aligned; any bytes are valid.
        let header = unsafe { &*map.as_ptr().cast::<Header>() };
        if header.layout != LAYOUT || header.payload_words != PAYLOAD_WORDS as u32 {
            let (path, found) = (path.to_owned(), header.layout);
            return Err(RingError::Layout {
                path,
                found,
                supported: LAYOUT,
            });
        }
        let slots = usize::try_from(header.slots).ok().filter(|slots| {
            let room = (map.len() - SLOTS_AT) / size_of::<RingSlot>();
            slots.is_power_of_two() && *slots <= room
        });
        let slots = slots.ok_or_else(|| not_a_ring(path))?;
        let identity = header.identity.read();
        let path = path.to_owned();
        Ok(Self {
            map,
            slots,
            next: 0,
            lost: 0,
            identity,
            path,
        })
    }

    fn header(&self) -> &Header {
        // SAFETY: checked in `open`.
        unsafe { &*self.map.as_ptr().cast::<Header>() }
    }

    /// Who writes the ring.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The ring's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Records that this reader never saw, since the ring was made.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The step the process is in, `None` while it has not proved to be a rank.
    pub fn step(&self) -> Option<u32> {
        self.header().stepped.load(Relaxed).checked_sub(1)
    }

    /// Whether the process ended in good order.
    pub fn is_closed(&self) -> bool {
        self.header().closed.load(Acquire) == 1
    }

    /// Faults of the probe in the process.
    pub fn faults(&self) -> u64 {
        self.header().faults.load(Relaxed)
    }

    /// The names in the ring's table from `first` on.
    pub fn names_from(&self, first: usize) -> Vec<(NameKind, String)> {
        let header = self.header();
        let count = (header.names.load(Acquire) as usize).min(MAX_NAMES);
        let entries = header.table.get(first..count).unwrap_or_default();
        let entries = entries.iter().map(|entry| {
            let kind = match entry.kind {
                2 => NameKind::Role,
                3 => NameKind::Note,
                4 => NameKind::Group,
                _ => NameKind::Stage,
            };
            let bytes = entry.text.get(..entry.bytes as usize).unwrap_or_default();
            (kind, String::from_utf8_lossy(bytes).into_owned())
        });
        entries.collect()
    }

    /// Hands at most `most` marks to `take`, oldest first; returns how many there were.
    ///
    /// Where records were lost, `take` is told how many. Marks of kinds this build does not
    /// know are left out.
    pub fn drain(&mut self, most: usize, mut take: impl FnMut(Drained)) -> usize {
        let written = self.header().counters.next.load(Acquire);
        // What was lapped is skipped at once, not record by record.
        let oldest = written.saturating_sub(self.slots as u64);
        if self.next < oldest {
            self.lose(oldest - self.next, &mut take);
            self.next = oldest;
        }
        let mut taken = 0;
        // Records that come meanwhile are left for the next call: a busy writer must not hold the
        // reader.
        while self.next < written && taken < most {
            // SAFETY: `open` checked that the slots lie inside the map.
            let slots = unsafe { slots_of(self.map.as_ptr(), self.slots) };
            if let Some(words) = slots::read(slots, self.next) {
                if let Some(mark) = Mark::from_words(words) {
                    take(Drained::Mark(mark));
                }
                taken += 1;
            } else {
                self.lose(1, &mut take);
            }
            self.next += 1;
        }
        taken
    }

    fn lose(&mut self, records: u64, take: &mut impl FnMut(Drained)) {
        self.lost += records;
        take(Drained::Lost(records));
    }

    /// Whether everything written so far was read.
    pub fn is_drained(&self) -> bool {
        self.next >= self.header().counters.next.load(Acquire)
    }
}

/// # Safety
/// `map` must be the start of a mapping that holds `slots` slots after [`SLOTS_AT`].
unsafe fn slots_of<'map>(map: *const u8, slots: usize) -> &'map [RingSlot] {
    // SAFETY: the caller's promise; `SLOTS_AT` keeps the alignment of a slot.
    unsafe { slice::from_raw_parts(map.add(SLOTS_AT).cast::<RingSlot>(), slots) }
}

fn write_header(map: &mut MmapMut, identity: &Identity, slots: usize) {
    // SAFETY: the map is larger than a header, page-aligned and zero-filled, for which all
    // fields are valid; `map` is the only access.
    let header = unsafe { &mut *map.as_mut_ptr().cast::<Header>() };
    header.magic = MAGIC;
    header.layout = LAYOUT;
    header.payload_words = PAYLOAD_WORDS as u32;
    header.slots = slots as u64;
    header.identity = StoredIdentity::of(identity);
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    #[test]
    fn a_pipe_by_the_name_of_a_ring_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank0.1.ring");
        let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a plain system call on a string that ends in zero.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(matches!(RingReader::open(&path), Err(RingError::Io { .. })));
    }
}
