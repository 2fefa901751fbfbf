//! The profile mailbox of a rank: where the agent orders a profile window, and the rank says how it
//! went; and where it asks for device marks of more steps.
//!
//! One page that both map. The rank looks at two words as each step begins; an order is written
//! before its word counts it, and so is an answer.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use memmap2::MmapMut;

use crate::{Identity, RingDirectory, RingError, file};

// A mailbox's first name, by which agents and ranks of other builds know it.
const MAGIC: [u8; 8] = *b"LAGDESK\0";
/// Bump it with any change of [`Mailbox`].
const LAYOUT: u32 = 2;
const BYTES: usize = 4096;

#[repr(C)]
struct Mailbox {
    magic: [u8; 8],
    layout: u32,
    /// Number of the order, from 1 on; 0 before the first.
    order: AtomicU32,
    first_step: AtomicU32,
    steps: AtomicU32,
    limit_ms: AtomicU32,
    /// Number of the order the answer is about.
    answered: AtomicU32,
    state: AtomicU32,
    /// Steps that were recorded.
    recorded: AtomicU32,
    start_ns: AtomicU64,
    stop_ns: AtomicU64,
    write_ns: AtomicU64,
    /// Steps whose device marks are asked for: the first, and from bit 32 on the one behind the last.
    device_steps: AtomicU64,
}

const _: () = assert!(size_of::<Mailbox>() == 72);

/// A window that is to be profiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfileOrder {
    /// Number of the order, from 1 on.
    pub number: u32,
    /// First step, the same on all ranks.
    pub first_step: u32,
    /// Steps.
    pub steps: u32,
    /// Time after which it ends at the next step all the same.
    pub limit_ms: u32,
}

/// What became of an order on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum ProfileState {
    /// The rank has not come to the first step.
    #[default]
    Waiting = 0,
    /// It records.
    Recording = 1,
    /// The trace is there.
    Written = 2,
    /// A profiler of the user's runs.
    Refused = 3,
    /// The profiler failed, or the user started one meanwhile.
    Failed = 4,
    /// The rank was past the first step when it saw the order.
    Missed = 5,
}

impl ProfileState {
    const ALL: [Self; 6] = [
        Self::Waiting,
        Self::Recording,
        Self::Written,
        Self::Refused,
        Self::Failed,
        Self::Missed,
    ];

    /// Whether nothing more will come of the order.
    pub fn is_final(self) -> bool {
        self as u32 >= Self::Written as u32
    }
}

/// What a rank says of an order.
///
/// # Units
/// Nanoseconds the training loop stood still for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfileAnswer {
    /// What became of it.
    pub state: ProfileState,
    /// Steps that were recorded.
    pub recorded_steps: u32,
    /// Starting the profiler.
    pub start_ns: u64,
    /// Stopping it.
    pub stop_ns: u64,
    /// Writing the trace.
    pub write_ns: u64,
}

/// The rank's side. Nothing here waits, allocates or makes a system call, except for
/// [`Self::create`].
#[derive(Debug)]
pub struct ProfileMailbox {
    map: MmapMut,
    path: PathBuf,
}

/// The agent's side.
#[derive(Debug)]
pub struct ProfileController {
    map: MmapMut,
    path: PathBuf,
    /// Number of the order before: an agent that was started anew counts from 1 again, and the
    /// rank must not take its orders for old ones.
    before: u32,
}

#[expect(clippy::cast_ptr_alignment, reason = "a mapping begins at a page")]
fn mailbox(map: &MmapMut) -> &Mailbox {
    // SAFETY: both sides map whole pages, larger than a mailbox; every bit pattern is valid, and
    // what changes is atomic.
    unsafe { &*map.as_ptr().cast::<Mailbox>() }
}

impl ProfileMailbox {
    /// Sets up the mailbox of a process.
    ///
    /// # Errors
    /// [`RingError::Io`] if the file system refuses.
    pub fn create(directory: &RingDirectory, identity: &Identity) -> Result<Self, RingError> {
        let path = directory.mailbox_path(identity);
        let map = file::create(&path, BYTES, |map| {
            // SAFETY: the map is larger than a mailbox, page-aligned and zero-filled, for which all
            // fields are valid; `map` is the only access.
            #[expect(clippy::cast_ptr_alignment, reason = "a mapping begins at a page")]
            let mailbox = unsafe { &mut *map.as_mut_ptr().cast::<Mailbox>() };
            mailbox.magic = MAGIC;
            mailbox.layout = LAYOUT;
        })?;
        Ok(Self { map, path })
    }

    /// Number of the last order; one load.
    #[inline]
    pub fn last_order(&self) -> u32 {
        mailbox(&self.map).order.load(Relaxed)
    }

    /// The last order.
    pub fn order(&self) -> ProfileOrder {
        let mailbox = mailbox(&self.map);
        ProfileOrder {
            number: mailbox.order.load(Acquire),
            first_step: mailbox.first_step.load(Relaxed),
            steps: mailbox.steps.load(Relaxed),
            limit_ms: mailbox.limit_ms.load(Relaxed),
        }
    }

    /// Whether device marks of a step are asked for; one load.
    #[inline]
    pub fn wants_device(&self, step: u32) -> bool {
        let steps = mailbox(&self.map).device_steps.load(Relaxed);
        // Zeros, as in a new mailbox, are an empty range.
        (steps as u32..(steps >> 32) as u32).contains(&step)
    }

    /// Answers an order.
    pub fn answer(&self, number: u32, answer: ProfileAnswer) {
        let mailbox = mailbox(&self.map);
        mailbox.recorded.store(answer.recorded_steps, Relaxed);
        mailbox.start_ns.store(answer.start_ns, Relaxed);
        mailbox.stop_ns.store(answer.stop_ns, Relaxed);
        mailbox.write_ns.store(answer.write_ns, Relaxed);
        mailbox.state.store(answer.state as u32, Relaxed);
        // Last: an agent that finds the number finds the rest of the answer.
        mailbox.answered.store(number, Release);
    }

    /// Where the trace of an order is to be.
    pub fn trace_path(&self, number: u32) -> PathBuf {
        trace_path(&self.path, number)
    }
}

impl ProfileController {
    /// Opens the mailbox of a rank.
    ///
    /// # Errors
    /// [`RingError::NotAProfileMailbox`] and [`RingError::Layout`] for foreign files, [`RingError::Io`] if
    /// the file cannot be mapped.
    pub fn open(path: &Path) -> Result<Self, RingError> {
        let map = file::open_shared(path)?;
        if map.len() < BYTES || !map.starts_with(&MAGIC) {
            return Err(RingError::NotAProfileMailbox {
                path: path.to_owned(),
            });
        }
        let found = mailbox(&map).layout;
        if found != LAYOUT {
            let path = path.to_owned();
            return Err(RingError::Layout {
                path,
                found,
                supported: LAYOUT,
            });
        }
        let before = mailbox(&map).order.load(Relaxed);
        Ok(Self {
            map,
            path: path.to_owned(),
            before,
        })
    }

    /// Places an order; the one before must have come to its end.
    pub fn order(&self, order: ProfileOrder) {
        let mailbox = mailbox(&self.map);
        mailbox.first_step.store(order.first_step, Relaxed);
        mailbox.steps.store(order.steps, Relaxed);
        mailbox.limit_ms.store(order.limit_ms, Relaxed);
        // Last: a rank that finds the number finds the rest of the order.
        mailbox.order.store(self.in_mailbox(order.number), Release);
    }

    /// Asks for device marks of these steps, and no longer of others.
    pub fn ask_for_device(&self, steps: &Range<u32>) {
        // In one word: a rank never sees the beginning of one range with the end of another.
        let both = u64::from(steps.start) | u64::from(steps.end) << 32;
        mailbox(&self.map).device_steps.store(both, Relaxed);
    }

    /// What the rank says of order `number`.
    pub fn answer(&self, number: u32) -> ProfileAnswer {
        let mailbox = mailbox(&self.map);
        if mailbox.answered.load(Acquire) != self.in_mailbox(number) {
            return ProfileAnswer::default();
        }
        let state = mailbox.state.load(Relaxed) as usize;
        ProfileAnswer {
            state: ProfileState::ALL
                .get(state)
                .copied()
                .unwrap_or(ProfileState::Failed),
            recorded_steps: mailbox.recorded.load(Relaxed),
            start_ns: mailbox.start_ns.load(Relaxed),
            stop_ns: mailbox.stop_ns.load(Relaxed),
            write_ns: mailbox.write_ns.load(Relaxed),
        }
    }

    /// Where the trace of an order is to be.
    pub fn trace_path(&self, number: u32) -> PathBuf {
        trace_path(&self.path, self.in_mailbox(number))
    }

    /// The number the rank knows an order by.
    fn in_mailbox(&self, number: u32) -> u32 {
        self.before.wrapping_add(number)
    }
}

/// In [`RingDirectory::traces`], which need not be in memory as the mailbox is.
fn trace_path(mailbox: &Path, number: u32) -> PathBuf {
    let name = mailbox.file_stem().unwrap_or_default().to_string_lossy();
    mailbox
        .with_file_name(RingDirectory::TRACES)
        .join(format!("{name}.{number}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> (tempfile::TempDir, ProfileMailbox, ProfileController) {
        let root = tempfile::tempdir().unwrap();
        let directory = RingDirectory::create(root.path(), "job").unwrap();
        let identity = Identity {
            rank: 3,
            pid: 77,
            ..Identity::default()
        };
        let mailbox = ProfileMailbox::create(&directory, &identity).unwrap();
        let controller = ProfileController::open(&directory.mailbox_path(&identity)).unwrap();
        (root, mailbox, controller)
    }

    #[test]
    fn an_order_arrives_and_its_answer_comes_back() {
        let (_root, mailbox, controller) = both();
        assert_eq!(mailbox.last_order(), 0);
        let order = ProfileOrder {
            number: 1,
            first_step: 40,
            steps: 10,
            limit_ms: 20_000,
        };
        controller.order(order);
        assert_eq!((mailbox.last_order(), mailbox.order()), (1, order));
        assert_eq!(controller.answer(1).state, ProfileState::Waiting);
        let answer = ProfileAnswer {
            state: ProfileState::Written,
            recorded_steps: 10,
            start_ns: 1,
            stop_ns: 2,
            write_ns: 3,
        };
        mailbox.answer(1, answer);
        assert_eq!(controller.answer(1), answer);
        assert_eq!(
            controller.answer(2),
            ProfileAnswer::default(),
            "of another order"
        );
        assert_eq!(mailbox.trace_path(1), controller.trace_path(1));
        assert!(mailbox.trace_path(1).ends_with("traces/rank3.77.1.json"));
    }

    #[test]
    fn the_first_order_of_the_next_agent_is_a_new_one() {
        let (_root, mailbox, controller) = both();
        let order = ProfileOrder {
            number: 1,
            ..ProfileOrder::default()
        };
        controller.order(order);
        let written = ProfileAnswer {
            state: ProfileState::Written,
            ..ProfileAnswer::default()
        };
        mailbox.answer(1, written);
        let next = ProfileController::open(&controller.path).unwrap();
        next.order(order);
        assert_eq!(next.answer(1).state, ProfileState::Waiting);
        assert_ne!(mailbox.last_order(), 1);
        mailbox.answer(mailbox.last_order(), written);
        assert_eq!(next.answer(1), written);
        assert_eq!(next.trace_path(1), mailbox.trace_path(mailbox.last_order()));
    }

    #[test]
    fn device_marks_are_asked_for_by_step() {
        let (_root, mailbox, controller) = both();
        assert!(!mailbox.wants_device(0));
        controller.ask_for_device(&(40..48));
        let wanted = (0..60).filter(|step| mailbox.wants_device(*step));
        assert_eq!(wanted.collect::<Vec<u32>>(), (40..48).collect::<Vec<u32>>());
    }

    #[test]
    fn a_foreign_file_is_no_mailbox() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.desk");
        std::fs::write(&path, vec![1; BYTES]).unwrap();
        assert!(matches!(
            ProfileController::open(&path),
            Err(RingError::NotAProfileMailbox { .. })
        ));
        let other = MAGIC.into_iter().chain([9]).chain([0; BYTES]);
        std::fs::write(&path, other.collect::<Vec<u8>>()).unwrap();
        assert!(matches!(
            ProfileController::open(&path),
            Err(RingError::Layout { found: 9, .. })
        ));
    }
}
