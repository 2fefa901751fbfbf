//! What the calls of verbs change in the table of work requests.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use probe::{Records, Switch, now};
use ring::{QUEUE_PAIRS, QueuePairIndex, RequestWriter};

/// Started by the first function of libibverbs that is asked for.
static REQUESTS: Switch<Requests> = Switch::new();

/// Places for numbers of queue pairs, a power of two: numbers that were used before stay.
const NUMBERS: usize = 4 * QUEUE_PAIRS;
/// Places looked at for a number.
const PROBES: usize = 32;
/// Signaled requests of a queue pair that are followed at once; NCCL has at most 512.
const SIGNALS: usize = 1024;

/// The one recorder of a process.
struct Requests {
    table: RequestWriter,
    /// A queue pair's device and number, plus 1, and its place in the table plus 1.
    numbers: Vec<(AtomicU64, AtomicU32)>,
    pairs: Vec<Pair>,
}

/// What is remembered of a queue pair, to know what a completion completes: all requests up
/// to the oldest signaled one, as cards complete in order.
struct Pair {
    all_signaled: AtomicU32,
    signaled: AtomicU64,
    completed: AtomicU64,
    /// Requests and bytes posted up to each signaled one. There once it is open.
    signals: OnceLock<Vec<(AtomicU64, AtomicU64)>>,
}

/// A request that is posted.
pub(crate) struct Posted {
    pub(crate) bytes: u64,
    /// Whether it will be told to be complete.
    pub(crate) signaled: bool,
}

impl Records for Requests {
    fn count_fault(&self) {
        self.table.count_fault();
    }
}

/// Runs in a forked child: it is another process, and this table is not its own.
unsafe extern "C" fn forget_after_fork() {
    REQUESTS.off();
}

/// Starts to record; whether anything is.
pub(crate) fn start() -> bool {
    REQUESTS.start(Requests::start, forget_after_fork);
    REQUESTS.is_on()
}

/// A queue pair was made on the device at this place.
pub(crate) fn open(place: u32, number: u32, device: &[u8], all_signaled: bool) {
    REQUESTS.with(|requests| {
        let Some(index) = requests.table.open(device, number) else {
            return;
        };
        if let Some(pair) = requests.pairs.get(index.0 as usize) {
            pair.open(all_signaled);
        }
        if !requests.name(key(place, number), index) {
            requests.table.close(index);
            requests.table.count_dropped();
        }
    });
}

/// A queue pair is no more.
pub(crate) fn close(place: u32, number: u32) {
    with_pair(place, number, |requests, index, _| {
        requests.table.close(index);
        requests.unname(key(place, number));
    });
}

/// A queue pair was connected to a peer.
pub(crate) fn connect(place: u32, number: u32, port: u8, gid: [u8; 16], peer: u32) {
    with_pair(place, number, |requests, index, _| {
        requests.table.connect(index, port, gid, peer);
    });
}

/// Requests are about to be given to a device; `list` is told whether all are signaled.
#[inline]
pub(crate) fn posted<Listed: Iterator<Item = Posted>>(
    place: u32,
    number: u32,
    list: impl FnOnce(bool) -> Listed,
) {
    with_pair(place, number, |requests, index, pair| {
        // One by one: a signaled request completes what was posted up to itself, not all.
        for Posted { bytes, signaled } in list(pair.all_signaled.load(Relaxed) != 0) {
            let until = requests.table.posted(index, 1, bytes, now);
            if signaled {
                pair.signal(until);
            }
        }
    });
}

/// The device has refused these.
pub(crate) fn refused<Listed: Iterator<Item = Posted>>(
    place: u32,
    number: u32,
    list: impl FnOnce(bool) -> Listed,
) {
    with_pair(place, number, |requests, index, pair| {
        for Posted { bytes, signaled } in list(pair.all_signaled.load(Relaxed) != 0) {
            requests.table.refused(index, 1, bytes, now);
            if signaled {
                // What a device refuses is the end of the list, so the newest signals are theirs.
                pair.signaled.fetch_sub(1, Relaxed);
            }
        }
    });
}

/// A signaled request has come back, and all before it.
#[inline]
pub(crate) fn completed(place: u32, number: u32) {
    with_pair(place, number, |requests, index, pair| {
        if let Some((posted, bytes)) = pair.complete() {
            requests.table.completed(index, posted, bytes, now);
        } else {
            requests.table.count_dropped();
        }
    });
}

/// A request has failed.
pub(crate) fn failed(place: u32, number: u32, status: u32) {
    with_pair(place, number, |requests, index, _| {
        requests.table.failed(index, status);
    });
}

#[inline]
fn with_pair(place: u32, number: u32, body: impl FnOnce(&Requests, QueuePairIndex, &Pair)) {
    REQUESTS.with(|requests| {
        if let Some(index) = requests.find(key(place, number))
            && let Some(pair) = requests.pairs.get(index.0 as usize)
        {
            body(requests, index, pair);
        }
    });
}

/// Not 0, which stands for a place that is free.
fn key(place: u32, number: u32) -> u64 {
    u64::from(place + 1) << 32 | u64::from(number)
}

impl Requests {
    fn start() -> Option<Self> {
        let table = probe::record_in("work requests", RequestWriter::create)?;
        Some(Self {
            table,
            numbers: (0..NUMBERS)
                .map(|_| (AtomicU64::new(0), AtomicU32::new(0)))
                .collect(),
            pairs: (0..QUEUE_PAIRS).map(|_| Pair::new()).collect(),
        })
    }

    /// The places a key may have.
    #[inline]
    fn places(&self, key: u64) -> impl Iterator<Item = &(AtomicU64, AtomicU32)> {
        // The golden ratio spreads keys that differ in their low bits (Knuth, volume 3, 6.4).
        // Its upper 12 bits are one of the places.
        let first = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize;
        (first..first + PROBES).filter_map(|at| self.numbers.get(at % NUMBERS))
    }

    #[inline]
    fn find(&self, key: u64) -> Option<QueuePairIndex> {
        for (number, index) in self.places(key) {
            match number.load(Acquire) {
                found if found == key => {
                    return index.load(Acquire).checked_sub(1).map(QueuePairIndex);
                }
                // Numbers that are gone keep their places: a free one ends the search.
                0 => return None,
                _ => {}
            }
        }
        None
    }

    /// Remembers where a queue pair stands; a number may have been another's before.
    fn name(&self, key: u64, at: QueuePairIndex) -> bool {
        // The table takes `QUEUE_PAIRS` in all: at most a quarter of the places is ever taken.
        self.places(key).any(|(number, index)| {
            let taken = number.compare_exchange(0, key, Relaxed, Relaxed);
            let is_ours = taken.is_ok() || taken == Err(key);
            if is_ours {
                // The place first: a reader that finds the number reads the place next.
                index.store(at.0 + 1, Release);
                number.store(key, Release);
            }
            is_ours
        })
    }

    fn unname(&self, key: u64) {
        let found = self
            .places(key)
            .find(|(number, _)| number.load(Relaxed) == key);
        if let Some((_, index)) = found {
            // The number stays: a free place would end the search for numbers behind it.
            index.store(0, Release);
        }
    }
}

impl Pair {
    fn new() -> Self {
        Self {
            all_signaled: AtomicU32::new(0),
            signaled: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            // 16 KiB, of all pairs together 16 MiB: only those that are opened pay for it.
            signals: OnceLock::new(),
        }
    }

    fn open(&self, all_signaled: bool) {
        self.signals.get_or_init(|| {
            (0..SIGNALS)
                .map(|_| (AtomicU64::new(0), AtomicU64::new(0)))
                .collect()
        });
        self.all_signaled.store(u32::from(all_signaled), Relaxed);
    }

    #[inline]
    fn signal_of(&self, number: u64) -> Option<&(AtomicU64, AtomicU64)> {
        self.signals.get()?.get(number as usize % SIGNALS)
    }

    /// Remembers up to where a signaled request goes.
    #[inline]
    fn signal(&self, (posted, bytes): (u64, u64)) {
        let number = self.signaled.load(Relaxed);
        if let Some(signal) = self.signal_of(number) {
            signal.0.store(posted, Relaxed);
            signal.1.store(bytes, Relaxed);
        }
        // After what it stands for: another thread may take the completion.
        self.signaled.store(number + 1, Release);
    }

    /// Up to where the next completion goes; `None` if nothing was signaled.
    #[inline]
    fn complete(&self) -> Option<(u64, u64)> {
        let number = self.completed.load(Relaxed);
        if number == self.signaled.load(Acquire) {
            return None;
        }
        self.completed.store(number + 1, Relaxed);
        let signal = self.signal_of(number)?;
        Some((signal.0.load(Relaxed), signal.1.load(Relaxed)))
    }
}
