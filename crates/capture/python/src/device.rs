//! When the device gets to the marks of sampled steps: events recorded on its stream, looked at
//! later and never waited for.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use model::{DeviceReached, DeviceTime, Event, Mark, MarkKind, RankNs};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::{ffi, intern};
use steps::{is_sampled, run_of};

use crate::cuda::CudaEvents;
use crate::errors::{fault, quietly};
use crate::probe::now;

/// `Accelerator` of `python/laggard/_device.py`.
static ACCELERATOR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Events that may be in flight: a device this far behind is left alone.
const MAX_WAITING: usize = 4096;
/// Events that are looked at by one mark.
const MAX_LOOKS: usize = 8;
/// Runs of steps after which a process that has not started its device is one without.
const MAX_UNSTARTED: u32 = 64;

/// Device marks of a process. Touched under the interpreter's lock only.
#[derive(Default)]
pub(crate) struct DeviceMarks {
    /// Whether a mark is worth more than this look.
    awake: Cell<bool>,
    /// Whether this step is sampled.
    sampled: Cell<bool>,
    /// Whether the marks of this step are recorded.
    recording: Cell<bool>,
    state: RefCell<DeviceState>,
}

#[derive(Default)]
struct DeviceState {
    use_of: Use,
    last_step: Option<u32>,
}

/// What is known of the process's device.
enum Use {
    /// It was not started in so many runs of sampled steps. Starting it is not ours to do.
    Unstarted(u32),
    /// Its events are made and looked at by PyTorch, as those of any accelerator can be.
    Torch(EventRecorder<TorchEvents>),
    /// By CUDA's driver.
    Cuda(EventRecorder<CudaEvents>),
    /// There is none, or it failed.
    Without,
}

impl Default for Use {
    fn default() -> Self {
        Self::Unstarted(0)
    }
}

/// Who makes events on streams of a device, and looks at them.
pub(crate) trait EventSource {
    /// An event.
    type Event;
    /// A stream.
    type Stream;

    /// A new event with a time.
    fn event(&self, py: Python<'_>) -> PyResult<Self::Event>;
    /// The same event once more.
    fn same(py: Python<'_>, event: &Self::Event) -> Self::Event;
    /// The stream of the calling thread.
    fn stream(&self, py: Python<'_>) -> PyResult<Self::Stream>;
    /// Whether a graph is captured, in which no event may be recorded or asked for.
    fn is_capturing(&self, py: Python<'_>) -> PyResult<bool>;
    /// Records an event on a stream, or on that of the calling thread.
    fn record(
        &self,
        py: Python<'_>,
        event: &Self::Event,
        stream: Option<&Self::Stream>,
    ) -> PyResult<()>;
    /// Whether the device has got to an event.
    fn is_reached(&self, py: Python<'_>, event: &Self::Event) -> PyResult<bool>;
    /// Milliseconds from one event to another, if the device has got to both.
    fn ms_between(&self, py: Python<'_>, first: &Self::Event, event: &Self::Event)
    -> PyResult<f64>;
}

/// Events of PyTorch: its `Accelerator` in `python/laggard/_device.py`.
struct TorchEvents(Py<PyAny>);

impl EventSource for TorchEvents {
    type Event = Py<PyAny>;
    type Stream = Py<PyAny>;

    fn event(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.0.call_method0(py, intern!(py, "event"))
    }

    fn same(py: Python<'_>, event: &Py<PyAny>) -> Py<PyAny> {
        event.clone_ref(py)
    }

    fn stream(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.0.call_method0(py, intern!(py, "stream"))
    }

    fn is_capturing(&self, py: Python<'_>) -> PyResult<bool> {
        let is_capturing = self.0.call_method0(py, intern!(py, "is_capturing"))?;
        is_capturing.is_truthy(py)
    }

    fn record(
        &self,
        py: Python<'_>,
        event: &Py<PyAny>,
        stream: Option<&Py<PyAny>>,
    ) -> PyResult<()> {
        let record = intern!(py, "record");
        match stream {
            Some(stream) => event.call_method1(py, record, (stream,))?,
            None => event.call_method0(py, record)?,
        };
        Ok(())
    }

    fn is_reached(&self, py: Python<'_>, event: &Py<PyAny>) -> PyResult<bool> {
        event.call_method0(py, intern!(py, "query"))?.is_truthy(py)
    }

    fn ms_between(&self, py: Python<'_>, first: &Py<PyAny>, event: &Py<PyAny>) -> PyResult<f64> {
        let ms = first.call_method1(py, intern!(py, "elapsed_time"), (event,))?;
        ms.extract(py)
    }
}

/// Records marks on a device and tells when that gets to them.
struct EventRecorder<S: EventSource> {
    source: S,
    run: Option<RecordedRun<S>>,
    waiting: VecDeque<PendingMark<S>>,
    spare: Vec<S::Event>,
}

/// The run of sampled steps that is being recorded.
struct RecordedRun<S: EventSource> {
    first_step: u32,
    /// The event of its first mark, from which its times count; none before that.
    first: Option<S::Event>,
    /// The stream of the loop's thread. Collectives may be issued on others, and count by how far
    /// the computation is.
    stream: S::Stream,
    marks: u64,
}

/// A mark that the device has not been seen to get to.
struct PendingMark<S: EventSource> {
    /// `None` for the end of the run.
    event: Option<S::Event>,
    first: S::Event,
    first_step: u32,
    place: u64,
    mark: Mark,
    /// When the host last looked and the device was not there.
    missed_at: Option<RankNs>,
}

impl DeviceMarks {
    /// A step begins, which is sampled in any case if it is asked for.
    #[inline]
    pub(crate) fn on_step(&self, step: u32, asked_for: bool) {
        self.sampled.set(asked_for || is_sampled(step));
        if self.sampled.get() {
            self.awake.set(true);
        }
    }

    /// Whether the marks of this step are recorded.
    #[inline]
    pub(crate) fn is_recording(&self) -> bool {
        self.recording.get()
    }

    /// Takes note of a mark of the host. `write` takes what is to be recorded of earlier ones.
    #[inline]
    pub(crate) fn mark(&self, mark: &Mark, write: impl Fn(Mark)) {
        if self.awake.get() {
            self.attend(mark, &write);
        }
    }

    #[cold]
    fn attend(&self, mark: &Mark, write: &dyn Fn(Mark)) {
        // SAFETY: marks are made by functions that Python calls.
        let py = unsafe { Python::assume_attached() };
        // SAFETY: the interpreter is attached. What the loader raises at its end is on its way to
        // the script: nothing may be called before it is there.
        if !unsafe { ffi::PyErr_Occurred() }.is_null() {
            return;
        }
        // A call into PyTorch may let another thread run, which may come here.
        let Ok(mut state) = self.state.try_borrow_mut() else {
            return;
        };
        if let Err(error) = state.take(py, mark, self.sampled.get(), write) {
            match fault(py, error) {
                Some(error) => {
                    state.use_of = Use::Without;
                    note(py, &error);
                }
                None => state.abandon(),
            }
        }
        let (is_recording, is_waiting) = match &state.use_of {
            Use::Torch(recorder) => recorder.is_busy(),
            Use::Cuda(recorder) => recorder.is_busy(),
            Use::Unstarted(_) | Use::Without => (false, false),
        };
        self.recording.set(is_recording);
        self.awake.set(
            is_recording
                || is_waiting
                || (self.sampled.get() && !matches!(state.use_of, Use::Without)),
        );
    }
}

impl DeviceState {
    fn take(
        &mut self,
        py: Python<'_>,
        mark: &Mark,
        is_sampled: bool,
        write: &dyn Fn(Mark),
    ) -> PyResult<()> {
        let mut may_begin = false;
        if mark.on_loop_thread {
            let is_first = self.last_step.replace(mark.step) != Some(mark.step);
            may_begin = is_first && *run_of(mark.step).start() == mark.step;
        }
        if may_begin {
            self.settle_use(py)?;
        }
        let may_begin = may_begin && is_sampled;
        match &mut self.use_of {
            Use::Torch(recorder) => recorder.take(py, mark, may_begin, write),
            Use::Cuda(recorder) => recorder.take(py, mark, may_begin, write),
            Use::Unstarted(_) | Use::Without => Ok(()),
        }
    }

    /// Gives up what is recorded.
    fn abandon(&mut self) {
        match &mut self.use_of {
            Use::Torch(recorder) => recorder.abandon(),
            Use::Cuda(recorder) => recorder.abandon(),
            Use::Unstarted(_) | Use::Without => {}
        }
    }

    /// Finds out whether the script uses a device by now.
    fn settle_use(&mut self, py: Python<'_>) -> PyResult<()> {
        let Use::Unstarted(runs) = self.use_of else {
            return Ok(());
        };
        let Some(accelerator) = ACCELERATOR.get(py) else {
            self.use_of = Use::Without;
            return Ok(());
        };
        self.use_of = match is_started(py, accelerator)? {
            Some(true) => match CudaEvents::of(py, accelerator)? {
                Some(source) => Use::Cuda(EventRecorder::new(source)),
                None => Use::Torch(EventRecorder::new(TorchEvents(accelerator.clone_ref(py)))),
            },
            // Asked once in each run of steps only: the question is a call into Python.
            Some(false) if runs < MAX_UNSTARTED => Use::Unstarted(runs + 1),
            _ => Use::Without,
        };
        Ok(())
    }
}

impl<S: EventSource> EventRecorder<S> {
    fn new(source: S) -> Self {
        Self {
            source,
            run: None,
            waiting: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// Whether it records, and whether it waits for marks that were.
    fn is_busy(&self) -> (bool, bool) {
        (self.run.is_some(), !self.waiting.is_empty())
    }

    fn take(
        &mut self,
        py: Python<'_>,
        mark: &Mark,
        may_begin: bool,
        write: &dyn Fn(Mark),
    ) -> PyResult<()> {
        if mark.on_loop_thread {
            if self.source.is_capturing(py)? {
                // Neither recorded nor asked for: either would spoil what is captured.
                self.abandon();
                return Ok(());
            }
            self.look(py, write)?;
            let is_over = |run: &RecordedRun<S>| !run_of(run.first_step).contains(&mark.step);
            if self.run.as_ref().is_some_and(is_over) {
                // The mark behind the run ends its last step on the device's clock.
                self.record(py, mark)?;
                self.end();
            }
            if may_begin && self.waiting.len() < MAX_WAITING {
                self.run = Some(RecordedRun {
                    first_step: mark.step,
                    first: None,
                    stream: self.source.stream(py)?,
                    marks: 0,
                });
            }
        }
        self.record(py, mark)
    }

    fn record(&mut self, py: Python<'_>, mark: &Mark) -> PyResult<()> {
        let Some(run) = &mut self.run else {
            return Ok(());
        };
        if self.waiting.len() >= MAX_WAITING {
            self.abandon();
            return Ok(());
        }
        let event = match self.spare.pop() {
            Some(event) => event,
            None => self.source.event(py)?,
        };
        let is_issue = mark.kind() == MarkKind::CollectiveIssue;
        self.source
            .record(py, &event, is_issue.then_some(&run.stream))?;
        let first = run.first.get_or_insert_with(|| S::same(py, &event));
        self.waiting.push_back(PendingMark {
            first: S::same(py, first),
            event: Some(event),
            first_step: run.first_step,
            place: run.marks,
            mark: *mark,
            missed_at: None,
        });
        run.marks += 1;
        Ok(())
    }

    /// Ends the run with the mark that was recorded last.
    fn end(&mut self) {
        let Some(RecordedRun {
            first_step,
            first: Some(first),
            marks,
            ..
        }) = self.run.take()
        else {
            return;
        };
        if let Some(last) = self.waiting.back() {
            let mark = last.mark;
            self.waiting.push_back(PendingMark {
                event: None,
                first,
                first_step,
                place: marks,
                mark,
                missed_at: None,
            });
        }
    }

    /// Gives up the run that is recorded, and what it waits for.
    fn abandon(&mut self) {
        self.run = None;
        let waiting = std::mem::take(&mut self.waiting);
        // The first event of a run stands in its marks, too.
        self.spare
            .extend(waiting.into_iter().filter_map(|waiting| waiting.event));
    }

    /// Tells the marks that the device has got to since.
    fn look(&mut self, py: Python<'_>, write: &dyn Fn(Mark)) -> PyResult<()> {
        for _ in 0..MAX_LOOKS {
            let Some(next) = self.waiting.front_mut() else {
                return Ok(());
            };
            let mut device_ns = 0;
            if let Some(event) = &next.event {
                let asked_at = now();
                if !self.source.is_reached(py, event)? {
                    next.missed_at = Some(asked_at);
                    return Ok(());
                }
                // Times count from the first mark of the run, which is at 0 by itself.
                if next.place > 0 {
                    let ms = self.source.ms_between(py, &next.first, event)?;
                    device_ns = (ms * 1e6).max(0.0) as u64;
                }
            }
            let Some(next) = self.waiting.pop_front() else {
                return Ok(());
            };
            let PendingMark {
                event,
                first,
                first_step,
                place,
                mark,
                missed_at,
            } = next;
            let reached = match &event {
                Some(_) => DeviceReached::mark(&mark.event),
                None => DeviceReached::END,
            };
            let (made_at, at) = (mark.at, now());
            let time = DeviceTime {
                reached,
                made_at,
                device_ns,
                first_step,
                place,
                seen_within_us: missed_at.map_or(0, |missed_at| within_us(missed_at, at)),
            };
            write(Mark {
                at,
                event: Event::DeviceTime(time),
                ..mark
            });
            match event {
                // Times count from it to the run's end.
                Some(_) if place == 0 => {}
                Some(event) => self.spare.push(event),
                None => self.spare.push(first),
            }
        }
        Ok(())
    }
}

/// Microseconds from a look in vain to one that is none, no fewer than they are; zero if they are too many.
fn within_us(missed_at: RankNs, at: RankNs) -> u32 {
    let us = at.0.saturating_sub(missed_at.0).div_ceil(1_000).max(1);
    u32::try_from(us).unwrap_or(0)
}

/// Says beside the verdict why there are no device marks.
fn note(py: Python<'_>, error: &PyErr) {
    let Some(accelerator) = ACCELERATOR.get(py) else {
        return;
    };
    let failed = accelerator
        .bind(py)
        .call_method1("failed", (error.value(py),));
    quietly(py, failed);
}

/// Says what the device is, for marks on its clock: an object with ``is_started()``, ``event()``,
/// ``stream()``, ``raw_stream()``, ``captures``, ``is_capturing()`` and ``failed(error)``.
#[pyfunction]
pub(crate) fn set_accelerator(accelerator: &Bound<'_, PyAny>) {
    drop(ACCELERATOR.set(accelerator.py(), accelerator.clone().unbind()));
}

/// Whether the script uses a device by now.
pub(crate) fn uses_device() -> bool {
    // SAFETY: marks are made by functions that Python calls.
    let py = unsafe { Python::assume_attached() };
    let started = ACCELERATOR.get(py).map(|it| is_started(py, it));
    let started = started.and_then(|started| quietly(py, started));
    started.flatten() == Some(true)
}

/// The same of an accelerator; `None` if there is none to use.
fn is_started(py: Python<'_>, accelerator: &Py<PyAny>) -> PyResult<Option<bool>> {
    let started = accelerator.call_method0(py, intern!(py, "is_started"))?;
    started.extract(py)
}
