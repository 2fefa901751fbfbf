//! Profile windows that the agent orders: this rank's part, run at the boundaries of steps.

use std::cell::Cell;

use model::{Event, RankNs};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use ring::{ProfileAnswer, ProfileMailbox, ProfileOrder, ProfileState};

use crate::errors::quietly;
use crate::probe::now;

/// `Recorder` of `python/laggard/_profile.py`.
static RECORDER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// What a recorder says of the step that begins, as `_profile.py` numbers it.
const RECORDED: u8 = 0;
const NOT_KEPT: u8 = 2;

/// What a rank keeps of its orders. Touched under the interpreter's lock only.
pub(crate) struct Windows {
    mailbox: ProfileMailbox,
    /// The last order that needs no more looking at.
    done: Cell<u32>,
    recording: Cell<Option<OrderInProgress>>,
}

/// An order that is carried out.
#[derive(Clone, Copy)]
struct OrderInProgress {
    order: ProfileOrder,
    since: RankNs,
    start_ns: u64,
    /// Whether the recorder has not begun with what it keeps: it stops after the first step, to see how
    /// long that takes, and begins again.
    begins: bool,
    /// The steps that were recorded, once they are enough.
    recorded_steps: Option<u32>,
}

impl Windows {
    pub(crate) fn new(mailbox: ProfileMailbox) -> Self {
        Self {
            mailbox,
            done: Cell::new(0),
            recording: Cell::new(None),
        }
    }

    /// Whether device marks of a step are asked for.
    #[inline]
    pub(crate) fn wants_device(&self, step: u32) -> bool {
        self.mailbox.wants_device(step)
    }

    /// A step begins. Costs one load unless there is an order. `mark` takes note of when the
    /// loop begins to stand still for it, and when it goes on.
    #[inline]
    pub(crate) fn on_step(&self, step: u32, mark: impl Fn(Event)) {
        if self.mailbox.last_order() != self.done.get() {
            self.attend(step, &mark);
        }
    }

    #[cold]
    fn attend(&self, step: u32, mark: &dyn Fn(Event)) {
        match self.recording.get() {
            Some(recording) => self.go_on(recording, step, mark),
            None => self.begin(step, mark),
        }
    }

    fn begin(&self, step: u32, mark: &dyn Fn(Event)) {
        let order = self.mailbox.order();
        if step < order.first_step {
            return;
        }
        let before = now();
        // Not begun late: ranks are compared over the same steps.
        let state = if step > order.first_step {
            ProfileState::Missed
        } else {
            mark(Event::ProfilerBegin);
            let begun = ask("begin", (step,)).map(|begun| begun != 0);
            if begun.is_none() {
                // It may have failed once the profiler ran.
                ask("close", ());
            }
            mark(Event::ProfilerEnd);
            match begun {
                Some(true) => ProfileState::Recording,
                Some(false) => ProfileState::Refused,
                None => ProfileState::Failed,
            }
        };
        let since = now();
        let start_ns = since.0.saturating_sub(before.0);
        let answer = ProfileAnswer {
            state,
            start_ns,
            ..ProfileAnswer::default()
        };
        self.mailbox.answer(order.number, answer);
        if state == ProfileState::Recording {
            self.recording.set(Some(OrderInProgress {
                order,
                since,
                start_ns,
                begins: true,
                recorded_steps: None,
            }));
        } else {
            self.done.set(order.number);
        }
    }

    fn go_on(&self, mut recording: OrderInProgress, step: u32, mark: &dyn Fn(Event)) {
        if let Some(recorded_steps) = recording.recorded_steps {
            return self.settle(recording, recorded_steps, step, mark);
        }
        let order = &mut recording.order;
        let recorded_steps = step.wrapping_sub(order.first_step);
        let before = now();
        let late_ns = before.0.saturating_sub(recording.since.0);
        if recorded_steps >= order.steps || late_ns / 1_000_000 >= order.limit_ms.into() {
            return self.settle(recording, recorded_steps, step, mark);
        }
        let wanted = order.steps - recorded_steps;
        if recording.begins {
            mark(Event::ProfilerBegin);
        }
        let says = ask("step", (step, wanted));
        if recording.begins {
            mark(Event::ProfilerEnd);
            recording.start_ns += now().0.saturating_sub(before.0);
        }
        match says {
            Some(RECORDED) => recording.begins = false,
            // Of the steps so far nothing is kept.
            Some(NOT_KEPT) => order.first_step = step,
            _ => return self.settle(recording, recorded_steps, step, mark),
        }
        self.recording.set(Some(recording));
    }

    /// Ends a window as soon as the recorder may stop.
    fn settle(
        &self,
        mut recording: OrderInProgress,
        recorded_steps: u32,
        step: u32,
        mark: &dyn Fn(Event),
    ) {
        if ask("settles", (step,)) != Some(0) {
            return self.end(recording, recorded_steps, mark);
        }
        recording.recorded_steps = Some(recorded_steps);
        self.recording.set(Some(recording));
    }

    fn end(&self, recording: OrderInProgress, recorded_steps: u32, mark: &dyn Fn(Event)) {
        let OrderInProgress {
            order, start_ns, ..
        } = recording;
        let before = now();
        mark(Event::ProfilerBegin);
        let stopped = ask("stop", ());
        let after = now();
        // `false` if a profiler of the user's has stopped ours: then there is nothing to write.
        let written = stopped.filter(|stopped| *stopped != 0).and_then(|_| {
            let path = self.mailbox.trace_path(order.number);
            ask("write", (path,))
        });
        mark(Event::ProfilerEnd);
        // `write` returns nothing: that it did not raise is what counts.
        let state = if written.is_some() {
            ProfileState::Written
        } else {
            ProfileState::Failed
        };
        let answer = ProfileAnswer {
            state,
            recorded_steps,
            start_ns,
            stop_ns: after.0.saturating_sub(before.0),
            write_ns: now().0.saturating_sub(after.0),
        };
        self.mailbox.answer(order.number, answer);
        self.recording.set(None);
        self.done.set(order.number);
    }
}

/// Asks the recorder; `None` if it failed. Nothing is 0, as `False` is.
fn ask<'py>(method: &str, args: impl pyo3::call::PyCallArgs<'py>) -> Option<u8> {
    // SAFETY: marks are made by functions that Python calls.
    let py = unsafe { Python::assume_attached() };
    let done = RECORDER.get(py)?.bind(py).call_method1(method, args);
    let done = quietly(py, done)?;
    done.extract().ok().or_else(|| done.is_none().then_some(0))
}

/// Says what records profile windows: an object with ``begin(step)``, ``step(step, wanted)``,
/// ``settles(step)``, ``stop()`` and ``write(path)``. ``begin`` and ``stop`` say whether they did,
/// ``step`` what becomes of the step, ``settles`` whether ``stop`` may be called.
#[pyfunction]
pub(crate) fn set_recorder(recorder: &Bound<'_, PyAny>) {
    drop(RECORDER.set(recorder.py(), recorder.clone().unbind()));
}
