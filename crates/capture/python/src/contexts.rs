//! The contexts a script may use: `step()`, `stage(name)`, `side_channel(name)`.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use model::Event;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use ring::NameKind;

use crate::errors::quietly;
use crate::probe::{Probe, is_active, with_probe};

/// Names whose objects are kept: as many as a ring has room for. A script may make up a new
/// name in every step, and what it trains must not run out of memory over that.
const KEPT_NAMES: usize = 128;

/// Codes belong to a ring; zero stands for "not asked for yet", so codes are kept plus one,
/// together with the process they were asked in.
#[derive(Debug)]
struct Code {
    name: String,
    // Atomic as Python's classes must be `Sync`; the interpreter's lock keeps threads apart, so
    // the order of the two does not matter.
    plus_one: AtomicU32,
    pid: AtomicU32,
}

impl Code {
    fn new(name: String) -> Self {
        Self {
            name,
            plus_one: AtomicU32::new(0),
            pid: AtomicU32::new(0),
        }
    }

    fn of(&self, probe: &Probe) -> u16 {
        let known = self.plus_one.load(Relaxed);
        if known != 0 && self.pid.load(Relaxed) == probe.pid() {
            return (known - 1) as u16;
        }
        let code = probe.name(NameKind::Stage, &self.name);
        self.pid.store(probe.pid(), Relaxed);
        self.plus_one.store(u32::from(code) + 1, Relaxed);
        code
    }
}

/// One logical optimizer step.
#[pyclass(frozen, module = "laggard")]
#[derive(Debug)]
pub(crate) struct Step;

#[pymethods]
#[expect(clippy::unused_self, reason = "Python calls methods on an object")]
impl Step {
    fn __enter__(&self) {
        with_probe(|probe| probe.in_loop(Event::StepBegin));
    }

    #[expect(unused_variables, reason = "Python passes the exception")]
    fn __exit__(
        &self,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) {
        // Also after an exception: it goes on to the script, as nothing is returned to Python.
        with_probe(|probe| probe.in_loop(Event::StepEnd));
    }
}

/// An ordered stage of the step; stages do not overlap.
#[pyclass(frozen, module = "laggard")]
#[derive(Debug)]
pub(crate) struct Stage {
    code: Code,
}

impl Stage {
    /// The code of its name in the ring of this process.
    pub(crate) fn code(&self, probe: &Probe) -> u16 {
        self.code.of(probe)
    }
}

#[pymethods]
#[expect(clippy::unused_self, reason = "Python calls methods on an object")]
impl Stage {
    fn __enter__(&self) {
        with_probe(|probe| probe.enter_stage(self.code.of(probe)));
    }

    #[expect(unused_variables, reason = "Python passes the exception")]
    fn __exit__(
        &self,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) {
        with_probe(Probe::leave_stage);
    }
}

/// A measurement beside the step, which may overlap stages, on whatever thread.
#[pyclass(frozen, module = "laggard")]
#[derive(Debug)]
pub(crate) struct SideChannel {
    /// All that measure under this name share its code; each has a beginning of its own.
    named: Py<Stage>,
    entered_ns: AtomicU64,
}

#[pymethods]
impl SideChannel {
    fn __enter__(&self) {
        self.entered_ns.store(crate::probe::now().0, Relaxed);
    }

    #[expect(unused_variables, reason = "Python passes the exception")]
    fn __exit__(
        &self,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) {
        // The clock is read before the probe is asked for: what that takes is not part of the time.
        let entered_ns = self.entered_ns.load(Relaxed);
        let nanoseconds = crate::probe::now().0.saturating_sub(entered_ns);
        with_probe(|probe| {
            let name = self.named.get().code(probe);
            probe.beside(Event::SideSample { name, nanoseconds });
        });
    }
}

/// Return a context around one logical optimizer step.
///
/// You need it only if the loop is too unusual for the hooks. Once used, it alone decides
/// where steps begin.
#[pyfunction]
pub(crate) fn step(py: Python<'_>) -> PyResult<Py<Step>> {
    // It has no state, so that one object serves every step.
    static STEP: PyOnceLock<Py<Step>> = PyOnceLock::new();
    // A loop that no hook sees would otherwise never become a rank.
    if !is_active() {
        // It reports its own faults and must not stop the loop.
        let attach = py.import("laggard._attach");
        quietly(py, attach.and_then(|it| it.call_method0("become_rank")));
    }
    STEP.get_or_try_init(py, || Py::new(py, Step))
        .map(|step| step.clone_ref(py))
}

/// Return a context around one stage of the step.
///
/// :param name: Name of the stage. A built-in name, such as ``data.next_wait``, stands for
///     what the hook of that name records.
#[pyfunction]
pub(crate) fn stage(name: &Bound<'_, PyAny>) -> PyResult<Py<Stage>> {
    // A Python dict: its look-up of an interned string costs less than ours would.
    static STAGES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let py = name.py();
    let stages = STAGES.get_or_init(py, || PyDict::new(py).unbind()).bind(py);
    if let Some(known) = stages.get_item(name)? {
        return Ok(known.cast_into::<Stage>()?.unbind());
    }
    let code = Code::new(name.str()?.to_string_lossy().into_owned());
    let made = Py::new(py, Stage { code })?;
    if stages.len() < KEPT_NAMES {
        stages.set_item(name, &made)?;
    }
    Ok(made)
}

/// Return a context that measures something beside the step.
///
/// It may overlap stages and is never part of the accounting.
///
/// :param name: Name under which the verdict lists the measurements.
#[pyfunction]
pub(crate) fn side_channel(name: &Bound<'_, PyAny>) -> PyResult<SideChannel> {
    Ok(SideChannel {
        named: stage(name)?,
        entered_ns: AtomicU64::new(0),
    })
}
