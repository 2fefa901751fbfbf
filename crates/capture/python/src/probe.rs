//! The one probe of a process: its ring and what it knows of the training loop.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

use model::{CollectiveIssue, CollectiveOp, Event, Mark, MarkKind, RankNs};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use ring::{
    Identity, Launched, NameKind, ProfileMailbox, RingDirectory, RingWriter, process_started,
};
use steps::StepCounter;

use crate::device::{DeviceMarks, uses_device};
use crate::profile::Windows;

/// The active probe, null while the process is no rank. A probe is never freed: a thread
/// may be in the middle of a write.
static PROBE: AtomicPtr<Probe> = AtomicPtr::new(ptr::null_mut());
static FORK_HANDLER: Once = Once::new();

/// The thread that is in a backward pass, 0 if none is. Autograd may run hooks of it on threads of its own.
static BACKWARD: AtomicUsize = AtomicUsize::new(0);

/// Code of what has no name, or whose name found no room in the table.
pub(crate) const NO_CODE: u16 = u16::MAX;

pub(crate) struct Probe {
    ring: RingWriter,
    /// The thread that runs the training loop: the one that became a rank, until an
    /// optimizer first runs on another.
    loop_thread: AtomicUsize,
    /// Touched by the loop thread only, and under the interpreter's lock.
    of_loop: LoopState,
    step: AtomicU32,
    pid: u32,
    /// Touched under the interpreter's lock only; `None` if there was no room for a mailbox.
    windows: Option<Windows>,
    device: DeviceMarks,
}

/// What the loop thread keeps to itself.
#[derive(Default)]
struct LoopState {
    counter: Cell<StepCounter>,
    backward_depth: Cell<u32>,
    optimizer_depth: Cell<u32>,
    /// Whether the loop has gone on since an optimizer began that did not end: an exception left it.
    is_optimizer_left: Cell<bool>,
    /// Whether an optimizer ran inside the backward pass, on a thread of autograd's.
    is_stepped_inside: Cell<bool>,
    /// Which optimizer has run, 0 for one that has no number.
    optimizer: Cell<usize>,
    /// The explicit stage that is open.
    open_stage: Cell<Option<u16>>,
    /// Explicit stages entered inside it, which are not recorded.
    nested: Cell<u32>,
    proved: Cell<bool>,
    /// Whether the next backward pass ends with a wait for what all ranks reduce.
    reduces: Cell<bool>,
}

// SAFETY: `of_loop`, `windows` and `device` are touched only by functions that Python calls, so
// under the interpreter's lock (the stable ABI excludes builds without one); everything else is
// atomic or never changes.
unsafe impl Sync for Probe {}

/// Runs `body` with the probe, if there is one. A panic switches the probe off for good and
/// goes no further.
#[inline]
pub(crate) fn with_probe(body: impl FnOnce(&Probe)) {
    let probe = PROBE.load(Acquire);
    if probe.is_null() {
        return;
    }
    // SAFETY: probes are leaked by `activate` and never freed.
    let probe = unsafe { &*probe };
    if catch_unwind(AssertUnwindSafe(|| body(probe))).is_err() {
        probe.ring.count_fault();
        PROBE.store(ptr::null_mut(), Release);
    }
}

/// A backward pass of the calling thread, until it is dropped.
pub(crate) struct BackwardPass {
    outer: usize,
}

impl BackwardPass {
    pub(crate) fn begin() -> Self {
        let outer = BACKWARD.swap(this_thread(), Relaxed);
        Self { outer }
    }
}

impl Drop for BackwardPass {
    fn drop(&mut self) {
        BACKWARD.store(self.outer, Relaxed);
    }
}

fn this_thread() -> usize {
    // `gettid` would be a system call for each mark.
    // SAFETY: the call cannot fail.
    unsafe { libc::pthread_self() as usize }
}

/// The thread that runs the training loop, if the calling one is of it.
fn thread_of_loop() -> usize {
    match BACKWARD.load(Relaxed) {
        0 => this_thread(),
        in_backward => in_backward,
    }
}

/// Whether the calling thread is the one that runs the training loop of a rank.
pub(crate) fn is_loop_thread() -> bool {
    let mut is_it = false;
    with_probe(|probe| is_it = probe.is_loop_thread());
    is_it
}

impl Probe {
    fn is_loop_thread(&self) -> bool {
        this_thread() == self.loop_thread.load(Relaxed)
    }

    /// Moves the loop to the calling thread if no optimizer has run yet.
    fn adopt_loop_thread(&self) {
        if !self.of_loop.proved.get() {
            self.loop_thread.store(thread_of_loop(), Relaxed);
        }
    }

    /// What the loop thread keeps to itself, `None` on any other thread.
    fn of_loop(&self) -> Option<&LoopState> {
        self.is_loop_thread().then_some(&self.of_loop)
    }

    /// Takes note that an optimizer begins or ends to run; `which` is the same for each of its runs.
    pub(crate) fn optimizer(&self, kind: MarkKind, which: usize) {
        if let Some(of_loop) = self.of_loop() {
            // Those of single parameters run inside the backward pass, not all in each step.
            let counts = of_loop.backward_depth.get() == 0;
            of_loop.optimizer.set(if counts { which } else { 0 });
        }
        self.hook(kind);
    }

    /// Takes note of something a hook saw. Hooks on other threads are not about the loop.
    #[inline]
    pub(crate) fn hook(&self, kind: MarkKind) {
        if kind == MarkKind::OptimizerBegin {
            self.adopt_loop_thread();
        }
        let Some(of_loop) = self.of_loop() else {
            let in_loop = BACKWARD.load(Relaxed) == self.loop_thread.load(Relaxed);
            if in_loop && kind == MarkKind::OptimizerEnd {
                self.of_loop.is_stepped_inside.set(true);
            }
            return;
        };
        if !of_loop.is_outermost(kind) {
            return;
        }
        if kind == MarkKind::ForwardEnd {
            // Of these only DistributedDataParallel tells, if it is to reduce.
            of_loop.reduces.set(true);
        }
        if of_loop.open_stage.get().is_some() {
            // Inside an explicit stage the user's word holds; steps are counted all the same.
            self.count(of_loop, kind);
            return;
        }
        self.write_of_loop(of_loop, kind.into());
    }

    pub(crate) fn enter_stage(&self, name: u16) {
        let Some(of_loop) = self.of_loop() else {
            return;
        };
        if of_loop.open_stage.get().is_some() {
            of_loop.nested.set(of_loop.nested.get() + 1);
            self.ring.count_fault();
            return;
        }
        self.write_of_loop(of_loop, Event::StageBegin { name });
        of_loop.open_stage.set(Some(name));
    }

    pub(crate) fn leave_stage(&self) {
        let Some(of_loop) = self.of_loop() else {
            return;
        };
        let nested = of_loop.nested.get();
        if nested > 0 {
            of_loop.nested.set(nested - 1);
        } else if let Some(name) = of_loop.open_stage.take() {
            self.write_of_loop(of_loop, Event::StageEnd { name });
        }
    }

    /// Takes note of a step that the script names, or of a block of a pipeline.
    pub(crate) fn in_loop(&self, event: Event) {
        if let Some(of_loop) = self.of_loop() {
            self.write_of_loop(of_loop, event);
        }
    }

    /// Takes note of a collective, from any thread.
    #[inline]
    pub(crate) fn collective(&self, issue: CollectiveIssue) {
        self.write(self.of_any_thread(Event::CollectiveIssue(issue)));
    }

    /// Whether the backward pass that begins is one of a sampled step that ends with a wait for what
    /// all ranks reduce.
    pub(crate) fn reduces(&self) -> bool {
        let reduces = self.of_loop().is_some_and(|of_loop| of_loop.reduces.take());
        reduces && self.device.is_recording()
    }

    /// Whether marks of this step are recorded on the device.
    pub(crate) fn records_device(&self) -> bool {
        self.device.is_recording()
    }

    /// Takes note, for the device alone, that a collective is issued; from any thread.
    pub(crate) fn issued_on_device(&self, op: CollectiveOp, group: u32) {
        if self.device.is_recording() {
            let issue = CollectiveIssue {
                op,
                group,
                op_id: 0,
                number: 0,
                bytes: None,
                element_bytes: 0,
            };
            let mark = self.of_any_thread(Event::CollectiveIssue(issue));
            self.device.mark(&mark, |time| self.ring.write(time));
        }
    }

    /// Takes note of what the device does not get to, from any thread.
    pub(crate) fn beside(&self, event: Event) {
        self.ring.write(self.of_any_thread(event));
    }

    #[inline]
    fn of_any_thread(&self, event: Event) -> Mark {
        Mark {
            at: now(),
            step: self.step.load(Relaxed),
            on_loop_thread: self.is_loop_thread(),
            event,
        }
    }

    #[inline]
    fn write_of_loop(&self, of_loop: &LoopState, event: Event) {
        // Before `count`, in which a profiler may start or stop for seconds.
        let at = now();
        let step = self.count(of_loop, event.kind());
        self.write(Mark {
            at,
            step,
            on_loop_thread: true,
            event,
        });
    }

    /// Writes a mark that the device gets to as well.
    #[inline]
    fn write(&self, mark: Mark) {
        self.ring.write(mark);
        self.device.mark(&mark, |time| self.ring.write(time));
    }

    /// Whether what the calling thread reads back from its device is recorded in this step.
    pub(crate) fn records_read_backs(&self) -> bool {
        self.device.is_recording() && self.is_loop_thread()
    }

    /// Takes note that the host waits for its device, or has waited, if this step is sampled;
    /// whether it is.
    pub(crate) fn read_back(&self, event: Event) -> bool {
        if !self.records_read_backs() {
            return false;
        }
        let (step, on_loop_thread) = (self.step.load(Relaxed), true);
        self.write(Mark {
            at: now(),
            step,
            on_loop_thread,
            event,
        });
        true
    }

    #[inline]
    fn count(&self, of_loop: &LoopState, kind: MarkKind) -> u32 {
        let mut counter = of_loop.counter.get();
        let before = counter.step();
        let step = match kind {
            MarkKind::OptimizerEnd => counter.count_optimizer(of_loop.optimizer.get()),
            MarkKind::BackwardEnd => {
                if of_loop.is_stepped_inside.take() {
                    counter.count_optimizer(0);
                }
                counter.count_pass(uses_device)
            }
            _ => counter.count(kind),
        };
        of_loop.counter.set(counter);
        if step != before {
            self.step.store(step, Relaxed);
            let windows = self.windows.as_ref();
            let wants_device = windows.is_some_and(|windows| windows.wants_device(step));
            self.device.on_step(step, wants_device);
            if let Some(windows) = &self.windows {
                windows.on_step(step, |event| {
                    let (at, on_loop_thread) = (now(), true);
                    self.ring.write(Mark {
                        at,
                        step,
                        on_loop_thread,
                        event,
                    });
                });
            }
        }
        // An optimizer has run, or many backward passes have: this process trains.
        let proves = matches!(kind, MarkKind::OptimizerEnd | MarkKind::StepEnd);
        if proves || step != before {
            of_loop.proved.set(true);
            // From here on the agent takes the process for a rank and reads its marks.
            self.ring.set_stepped(step);
        }
        step
    }

    /// The process the probe belongs to.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Writes a name into the ring's table, which keeps each for as long as it lives.
    pub(crate) fn name(&self, kind: NameKind, text: &str) -> u16 {
        self.ring.name(kind, text).unwrap_or_else(|| {
            self.ring.count_fault();
            NO_CODE
        })
    }
}

impl LoopState {
    /// Whether a begin or end is not inside another of its kind.
    fn is_outermost(&self, kind: MarkKind) -> bool {
        if matches!(kind, MarkKind::DataBegin | MarkKind::BackwardEnd) {
            self.is_optimizer_left.set(self.optimizer_depth.get() > 0);
        }
        if kind == MarkKind::OptimizerBegin && self.is_optimizer_left.take() {
            // Of a run that an exception left PyTorch tells no end.
            self.optimizer_depth.set(0);
        }
        let (depth, begins) = match kind {
            MarkKind::BackwardBegin => (&self.backward_depth, true),
            MarkKind::BackwardEnd => (&self.backward_depth, false),
            MarkKind::OptimizerBegin => (&self.optimizer_depth, true),
            MarkKind::OptimizerEnd => (&self.optimizer_depth, false),
            _ => return true,
        };
        let now = depth.get();
        if begins {
            depth.set(now + 1);
            return now == 0;
        }
        // An end without a begin: the hook was set in between.
        depth.set(now.saturating_sub(1));
        now == 1
    }
}

#[inline]
pub(crate) fn now() -> RankNs {
    // The clock that the agent reads too, and that no time service sets back.
    RankNs(read_clock(libc::CLOCK_MONOTONIC))
}

/// Nanoseconds on a clock that every Linux has.
#[inline]
pub(crate) fn read_clock(clock: libc::clockid_t) -> u64 {
    let mut at = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `at` is a valid place to write to, and the clock exists.
    unsafe { libc::clock_gettime(clock, &raw mut at) };
    (at.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(at.tv_nsec as u64)
}

/// Runs in a forked child: it is another process, and this ring is not its own.
extern "C" fn forget_after_fork() {
    PROBE.store(ptr::null_mut(), Release);
}

/// Makes this process a rank: from now on marks go to a ring of its own.
///
/// The calling thread is taken for the one that runs the training loop. Calling it again in
/// an active process changes nothing.
///
/// :param directory: Where rings stand, usually ``LAGGARD_DIR``; ``None`` for the default.
/// :param job: The job's id, the same on all its ranks.
/// :param rank: Its rank; ``None`` for what its launcher says.
/// :param world_size: Ranks of the job; ``None`` likewise.
/// :raises OSError: if the ring cannot be made.
/// :raises ValueError: if ``slots`` is not a power of two.
#[pyfunction]
#[pyo3(signature = (
    *, directory, job, host, rank, world_size, attempt, slots = None
))]
pub(crate) fn activate(
    directory: Option<PathBuf>,
    job: String,
    host: String,
    rank: Option<u32>,
    world_size: Option<u32>,
    attempt: u32,
    slots: Option<usize>,
) -> PyResult<()> {
    if is_active() {
        return Ok(());
    }
    let pid = std::process::id();
    let launched = Launched::here();
    // A script that no launcher started is a job of one rank.
    let rank = rank.or(launched.rank).unwrap_or(0);
    let identity = Identity {
        host,
        rank,
        local_rank: launched.local_rank.unwrap_or(rank),
        world_size: world_size.or(launched.world_size).unwrap_or(1),
        local_world_size: launched.local_world_size.unwrap_or(0),
        attempt,
        pid,
        started: process_started(pid).unwrap_or(0),
        job,
    };
    let root = directory.unwrap_or_else(RingDirectory::default_root);
    let (ring, mailbox) = RingDirectory::create(&root, &identity.job)
        .and_then(|directory| {
            let slots = slots.unwrap_or(ring::default_slots());
            // The mailbox first: it is there once the ring is seen.
            let mailbox = ProfileMailbox::create(&directory, &identity);
            Ok((RingWriter::create(&directory, &identity, slots)?, mailbox))
        })
        .map_err(|error| match error {
            ring::RingError::Slots { .. } => PyValueError::new_err(error.to_string()),
            _ => PyOSError::new_err(error.to_string()),
        })?;
    // Before the probe is there: a child forked in between must not go on with it.
    FORK_HANDLER.call_once(|| {
        // SAFETY: the handler only stores to an atomic, and this module is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(forget_after_fork)) };
    });
    let probe = Box::leak(Box::new(Probe {
        ring,
        loop_thread: AtomicUsize::new(thread_of_loop()),
        of_loop: LoopState::default(),
        step: AtomicU32::new(0),
        pid,
        // Without one it is watched all the same, and never profiled.
        windows: mailbox.ok().map(Windows::new),
        device: DeviceMarks::default(),
    }));
    PROBE.store(probe, Release);
    Ok(())
}

/// Whether this process is a rank.
#[pyfunction]
pub(crate) fn is_active() -> bool {
    !PROBE.load(Acquire).is_null()
}

/// The number of the step the training loop is in.
#[pyfunction]
pub(crate) fn current_step() -> u32 {
    let mut step = 0;
    with_probe(|probe| step = probe.step.load(Relaxed));
    step
}

/// The file of this rank's ring.
#[pyfunction]
pub(crate) fn ring_path() -> Option<PathBuf> {
    let mut path = None;
    with_probe(|probe| path = Some(probe.ring.path().to_owned()));
    path
}

/// Keeps an object for good, also when the interpreter ends.
#[pyfunction]
pub(crate) fn keep(object: Py<PyAny>) {
    std::mem::forget(object);
}

/// Says what makes this rank incomparable with others, such as its pipeline stage.
#[pyfunction]
pub(crate) fn set_role(role: &str) {
    with_probe(|probe| {
        probe.name(NameKind::Role, role);
    });
}

/// Says something about this rank's sensors that belongs beside the verdict.
#[pyfunction]
pub(crate) fn note(text: &str) {
    with_probe(|probe| {
        probe.name(NameKind::Note, text);
    });
}

/// Says who belongs to a process group: its number, its name and its ranks, as in ``0-3,8-120:8``.
#[pyfunction]
pub(crate) fn group(number: u32, name: &str, ranks: &str) {
    with_probe(|probe| {
        probe.name(NameKind::Group, &ring::group_entry(number, name, ranks));
    });
}

/// The number of a process group that is known by its name alone.
#[pyfunction]
pub(crate) fn group_number(name: &str) -> u32 {
    model::group_number(name)
}

/// Says whether the rank has left the training in good order.
#[pyfunction]
pub(crate) fn set_closed(closed: bool) {
    with_probe(|probe| probe.ring.set_closed(closed));
}

/// Ends the ring in good order.
#[pyfunction]
pub(crate) fn close() {
    set_closed(true);
    PROBE.store(ptr::null_mut(), Release);
}
