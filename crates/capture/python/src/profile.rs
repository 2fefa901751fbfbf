//! Profile windows that the agent orders: this rank's part, run at the boundaries of steps.

use std::cell::Cell;

use model::RankNs;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use ring::{ProfileAnswer, ProfileDesk, ProfileOrder, ProfileState};

use crate::probe::{now, with_probe};

/// `Recorder` of `python/laggard/_profile.py`.
static RECORDER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// What a rank keeps of its orders. Touched under the interpreter's lock only.
pub(crate) struct Windows {
    desk: ProfileDesk,
    /// The last order that needs no more looking at.
    done: Cell<u32>,
    recording: Cell<Option<Recording>>,
    answer: Cell<ProfileAnswer>,
    stopped_at: Cell<RankNs>,
    /// Whether the trace was written, if its thread was quicker than the loop.
    written: Cell<Option<bool>>,
}

/// An order that is carried out.
#[derive(Clone, Copy)]
struct Recording {
    order: ProfileOrder,
    since: RankNs,
}

impl Windows {
    pub(crate) fn new(desk: ProfileDesk) -> Self {
        Self {
            desk,
            done: Cell::new(0),
            recording: Cell::new(None),
            answer: Cell::default(),
            stopped_at: Cell::new(RankNs(0)),
            written: Cell::new(None),
        }
    }

    /// A step begins. Costs one load unless there is an order.
    #[inline]
    pub(crate) fn on_step(&self, step: u32) {
        if self.desk.last_order() != self.done.get() {
            self.attend(step);
        }
    }

    #[cold]
    fn attend(&self, step: u32) {
        match self.recording.get() {
            Some(recording) => self.go_on(recording, step),
            None => self.begin(step),
        }
    }

    fn begin(&self, step: u32) {
        let order = self.desk.order();
        if step < order.first_step {
            return;
        }
        let before = now();
        let state = if step > order.first_step {
            ProfileState::Missed
        } else {
            match ask("begin", (step,)) {
                Some(true) => ProfileState::Recording,
                Some(false) => ProfileState::Refused,
                None => ProfileState::Failed,
            }
        };
        let since = now();
        let start_ns = since.0.saturating_sub(before.0);
        self.tell(order, ProfileAnswer { state, start_ns, ..ProfileAnswer::default() });
        if state == ProfileState::Recording {
            self.recording.set(Some(Recording { order, since }));
        } else {
            self.done.set(order.number);
        }
    }

    fn go_on(&self, Recording { order, since }: Recording, step: u32) {
        let recorded_steps = step.wrapping_sub(order.first_step);
        let before = now();
        let late_ns = before.0.saturating_sub(since.0);
        if recorded_steps < order.steps && late_ns / 1_000_000 < order.limit_ms.into() {
            ask("step", (step,));
            return;
        }
        self.written.set(None);
        let path = self.desk.trace_path(order.number);
        let ended = ask("end", (path, order.number));
        self.stopped_at.set(now());
        let state = match (ended, self.written.take()) {
            (Some(true), None) => ProfileState::Writing,
            (Some(true), Some(true)) => ProfileState::Written,
            _ => ProfileState::Failed,
        };
        let stop_ns = self.stopped_at.get().0.saturating_sub(before.0);
        let answer = self.answer.get();
        self.tell(order, ProfileAnswer { state, recorded_steps, stop_ns, ..answer });
        self.recording.set(None);
        self.done.set(order.number);
    }

    fn tell(&self, order: ProfileOrder, answer: ProfileAnswer) {
        self.answer.set(answer);
        self.desk.answer(order.number, answer);
    }
}

/// Asks the recorder; `None` if it failed. What it raises ends here.
fn ask<'py>(method: &str, args: impl pyo3::call::PyCallArgs<'py>) -> Option<bool> {
    // SAFETY: marks are made by functions that Python calls.
    let py = unsafe { Python::assume_attached() };
    let done = RECORDER.get(py)?.bind(py).call_method1(method, args);
    done.ok().map(|done| done.is_truthy().unwrap_or(false))
}

/// Says what records profile windows: an object with ``begin(step)``, ``step(step)`` and
/// ``end(path, order)``, the first and last of which say whether they did.
#[pyfunction]
pub(crate) fn set_recorder(recorder: &Bound<'_, PyAny>) {
    drop(RECORDER.set(recorder.py(), recorder.clone().unbind()));
}

/// Says that the trace of an order is written, or cannot be.
#[pyfunction]
pub(crate) fn profile_written(order: u32, written: bool) {
    with_probe(|probe| {
        let Some(windows) = probe.windows() else { return };
        if windows.recording.get().is_some() {
            windows.written.set(Some(written));
            return;
        }
        let state = if written { ProfileState::Written } else { ProfileState::Failed };
        let write_ns = now().0.saturating_sub(windows.stopped_at.get().0);
        let answer = ProfileAnswer { state, write_ns, ..windows.answer.get() };
        windows.desk.answer(order, answer);
    });
}
