//! What `python/laggard` hooks into PyTorch.

use std::ffi::{CStr, CString, c_int};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use model::{BlockPlace, CollectiveIssue, CollectiveOp, Event, MarkKind, Pass};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString, PyTuple, PyType};
use pyo3::{ffi, intern};

use crate::contexts::stage;
use crate::errors::quietly;
use crate::probe::{BackwardPass, is_active, is_loop_thread, with_probe};

/// Takes note of something the loop did; ``kind`` is a number of ``MarkKind``.
#[pyfunction]
pub(crate) fn mark(kind: u8) {
    let Some(kind) = MarkKind::from_number(kind).filter(|kind| kind.is_hook()) else {
        return;
    };
    with_probe(|probe| probe.hook(kind));
}

/// Takes note of a pipeline's block that begins, or ends.
///
/// :param passes: 0 forward, 1 backward, 2 the weights' part of the backward pass.
/// :param place: Stage of the model, microbatch, stages of the model, lowest rank of the
///     pipeline.
#[pyfunction]
pub(crate) fn block(begins: bool, passes: u16, place: [u32; 4]) {
    let Some(pass) = Pass::from_number(passes) else {
        return;
    };
    let [stage, microbatch, stages, first_rank] = place;
    let place = BlockPlace {
        pass,
        stage,
        microbatch,
        stages,
        first_rank,
    };
    let event = if begins {
        Event::BlockBegin(place)
    } else {
        Event::BlockEnd(place)
    };
    with_probe(|probe| probe.in_loop(event));
}

/// Takes note that the group of all ranks begins to be made, or was.
///
/// :param group: The same number on all ranks.
/// :param number: How often this process has begun to make it.
#[pyfunction]
pub(crate) fn init(begins: bool, group: u32, number: u64) {
    let event = if begins {
        Event::InitBegin { group, number }
    } else {
        Event::InitEnd { group, number }
    };
    with_probe(|probe| probe.beside(event));
}

/// Whether this is a sampled step, in which marks are recorded on the device.
#[pyfunction]
pub(crate) fn records_device() -> bool {
    let mut records = false;
    with_probe(|probe| records = probe.records_device());
    records
}

/// Takes note, for the device alone, that a collective is issued, if this step is sampled.
///
/// :param op: As [`CollectiveOp`] numbers it.
/// :param group: The same number on all members of its group.
#[pyfunction]
pub(crate) fn issued_on_device(op: u16, group: u32) {
    with_probe(|probe| probe.issued_on_device(CollectiveOp(op), group));
}

/// Takes note of a measurement on the device.
#[pyfunction]
pub(crate) fn side_sample(name: &Bound<'_, PyAny>, seconds: f64) -> PyResult<()> {
    let named = stage(name)?;
    with_probe(|probe| {
        let name = named.get().code(probe);
        let nanoseconds = (seconds * 1e9) as u64;
        probe.beside(Event::SideSample { name, nanoseconds });
    });
    Ok(())
}

/// Takes note of a device event that never became ready.
#[pyfunction]
pub(crate) fn side_lost(name: &Bound<'_, PyAny>) -> PyResult<()> {
    let named = stage(name)?;
    with_probe(|probe| {
        let name = named.get().code(probe);
        probe.beside(Event::SideLost { name });
    });
    Ok(())
}

/// A global optimizer hook.
#[pyclass(frozen, module = "laggard")]
#[derive(Debug)]
pub(crate) struct OptimizerHook {
    kind: MarkKind,
    become_rank: Option<Py<PyAny>>,
}

#[pymethods]
impl OptimizerHook {
    /// :param become_rank: Called while the process is no rank: an optimizer runs in it, so
    ///     it may be one.
    #[new]
    #[pyo3(signature = (kind, become_rank = None))]
    fn new(kind: u8, become_rank: Option<Py<PyAny>>) -> Self {
        let begin = kind == MarkKind::OptimizerBegin as u8;
        let kind = if begin {
            MarkKind::OptimizerBegin
        } else {
            MarkKind::OptimizerEnd
        };
        Self { kind, become_rank }
    }

    /// PyTorch passes optimizer, args and kwargs; of the first, only which it is counts.
    #[pyo3(signature = (*of_pytorch))]
    fn __call__(&self, of_pytorch: &Bound<'_, PyTuple>) {
        if let Some(become_rank) = &self.become_rank
            && !is_active()
        {
            // It reports its own faults and must not stop the optimizer.
            quietly(of_pytorch.py(), become_rank.call0(of_pytorch.py()));
        }
        let optimizer = of_pytorch.get_borrowed_item(0);
        with_probe(|probe| {
            probe.optimizer(
                self.kind,
                optimizer.map_or(0, |which| which.as_ptr() as usize),
            );
        });
    }
}

/// Stands before the autograd engine: every way into backward leads through it.
#[pyclass(frozen, module = "laggard")]
#[derive(Debug)]
pub(crate) struct EngineProxy {
    engine: Py<PyAny>,
    run_backward: Py<PyAny>,
    on_begin: Option<Py<PyAny>>,
    before_waits: Option<Py<PyAny>>,
}

#[pymethods]
impl EngineProxy {
    /// :param on_begin: Called as a backward pass begins; it reports its own faults.
    /// :param before_waits: Called in sampled steps, with what a backward pass begins with if that ends
    ///     with a wait for what all ranks reduce, or with nothing inside a pass that something is put
    ///     off in until its end; it reports its own faults, too.
    #[new]
    #[pyo3(signature = (engine, on_begin = None, before_waits = None))]
    fn new(
        engine: Bound<'_, PyAny>,
        on_begin: Option<Py<PyAny>>,
        before_waits: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let run_backward = engine
            .getattr(intern!(engine.py(), "run_backward"))?
            .unbind();
        Ok(Self {
            engine: engine.unbind(),
            run_backward,
            on_begin,
            before_waits,
        })
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn run_backward(
        &self,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let _pass = BackwardPass::begin();
        if let Some(on_begin) = self.on_begin.as_ref().filter(|_| is_loop_thread()) {
            quietly(args.py(), on_begin.call0(args.py()));
        }
        let mut reduces = false;
        with_probe(|probe| {
            probe.hook(MarkKind::BackwardBegin);
            reduces = probe.reduces();
        });
        if let Some(before_waits) = self.before_waits.as_ref().filter(|_| reduces)
            && let Ok(roots) = args.get_item(0)
        {
            quietly(args.py(), before_waits.call1(args.py(), (roots,)));
        }
        let done = self.run_backward.call(args.py(), args, kwargs);
        // After an error too: the depth of nested passes must come back to zero.
        with_probe(|probe| probe.hook(MarkKind::BackwardEnd));
        done
    }

    /// FSDP waits in what it queues.
    fn queue_callback(&self, callback: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = callback.py();
        if let Some(before_waits) = self.before_waits.as_ref().filter(|_| records_device()) {
            quietly(py, before_waits.call1(py, (py.None(),)));
        }
        let queue = intern!(py, "queue_callback");
        self.engine.call_method1(py, queue, (callback,))
    }

    /// PyTorch's compiler knows the engine by its class.
    #[getter(__class__)]
    fn class<'py>(&self, py: Python<'py>) -> Bound<'py, PyType> {
        self.engine.bind(py).get_type()
    }

    fn __getattr__(&self, name: &Bound<'_, PyString>) -> PyResult<Py<PyAny>> {
        self.engine.getattr(name.py(), name)
    }
}

/// What stands behind `__next__` of the data loader's iterators.
struct Next {
    original: Py<PyAny>,
    on_batch: Option<Py<PyAny>>,
}

static NEXT: PyOnceLock<Next> = PyOnceLock::new();

/// Puts a method before ``__next__`` of a class, once in a process.
///
/// :param on_batch: Called after each batch of the loop's thread; it reports its own faults.
#[pyfunction]
#[pyo3(signature = (iterator, on_batch = None))]
pub(crate) fn hook_next(iterator: &Bound<'_, PyType>, on_batch: Option<Py<PyAny>>) -> PyResult<()> {
    let py = iterator.py();
    let original = iterator.getattr(intern!(py, "__next__"))?.unbind();
    if NEXT.set(py, Next { original, on_batch }).is_err() {
        return Ok(());
    }
    let method = ffi::PyMethodDefPointer { PyCFunction: next };
    replace_method(iterator, c"__next__", method, ffi::METH_NOARGS)
}

/// Puts a method of C in the place of one of a class. Unlike a callable object, the interpreter calls it without
/// binding.
pub(crate) fn replace_method(
    class: &Bound<'_, PyType>,
    name: &'static CStr,
    method: ffi::PyMethodDefPointer,
    flags: c_int,
) -> PyResult<()> {
    let py = class.py();
    let text = name.to_string_lossy();
    let documented = class
        .getattr(text.as_ref())?
        .getattr(intern!(py, "__doc__"))?;
    let documented = documented.extract::<String>().ok();
    let documented = documented.and_then(|text| CString::new(text).ok());
    // They live as long as the class, and so does the process.
    let definition = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: name.as_ptr(),
        ml_meth: method,
        ml_flags: flags,
        ml_doc: documented.map_or(std::ptr::null(), |text| text.into_raw().cast_const()),
    }));
    // SAFETY: the class is one, the definition is never freed, and the call gives a new
    // reference or none with an exception set.
    let method = unsafe {
        let made = ffi::PyDescr_NewMethod(class.as_type_ptr(), definition);
        Bound::from_owned_ptr_or_err(py, made)?
    };
    class.setattr(text.as_ref(), method)
}

extern "C" fn next(iterator: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the interpreter calls this, attached; `hook_next` has set NEXT before.
    let py = unsafe { Python::assume_attached() };
    let Some(Next { original, on_batch }) = NEXT.get(py) else {
        return std::ptr::null_mut();
    };
    with_probe(|probe| probe.hook(MarkKind::DataBegin));
    // SAFETY: both are live objects; the result is a new reference or null with an exception.
    let batch = unsafe {
        ffi::PyObject_CallFunctionObjArgs(
            original.as_ptr(),
            iterator,
            std::ptr::null_mut::<ffi::PyObject>(),
        )
    };
    if !batch.is_null() {
        with_probe(|probe| probe.hook(MarkKind::DataEnd));
        if let Some(on_batch) = on_batch.as_ref().filter(|_| is_loop_thread()) {
            quietly(py, on_batch.call0(py));
        }
    // SAFETY: an exception is set.
    } else if unsafe { ffi::PyErr_ExceptionMatches(ffi::PyExc_StopIteration) } != 0 {
        with_probe(|probe| probe.hook(MarkKind::DataStop));
    }
    batch
}

/// Tensors of a collective that are looked at; of one with more the size stays unknown.
const COUNTED_TENSORS: usize = 8;

/// What a rank passes to a collective.
struct CollectiveArguments {
    bytes: u64,
    /// Bytes of an element of the first tensor; 0 if unknown.
    element_bytes: u64,
}

/// What a rank passes to a collective, `None` if that is unknown.
///
/// Only tensors that the script itself passes to a function of `functions` are looked at. One
/// that PyTorch made would become Python's by the look, and the thread that lets go of it need
/// the interpreter: as the process ends, that is its end.
fn passed(args: &Bound<'_, PyAny>, functions: &Bound<'_, PyDict>) -> Option<CollectiveArguments> {
    let py = args.py();
    // SAFETY: the interpreter is attached; the pointer, null without a caller, is only compared.
    if unsafe { ffi::PyEval_GetGlobals() } != functions.as_ptr() {
        return None;
    }
    let tensors = args.getattr(intern!(py, "input_tensors")).ok()?;
    let tensors = tensors.cast::<PyList>().ok()?;
    if tensors.len() > COUNTED_TENSORS {
        return None;
    }
    let first = tensors.iter().next();
    // Older tensors do not say it.
    let element_bytes = first.and_then(|first| number(&first, intern!(py, "itemsize")));
    Some(CollectiveArguments {
        bytes: tensors
            .iter()
            .map(|tensor| number(&tensor, intern!(py, "nbytes")))
            .sum::<Option<u64>>()?,
        element_bytes: element_bytes.unwrap_or(0),
    })
}

/// A number that a tensor has by a name.
fn number(tensor: &Bound<'_, PyAny>, name: &Bound<'_, PyString>) -> Option<u64> {
    tensor.getattr(name).ok()?.extract().ok()
}

/// A pre-hook of a process group: called as each collective is issued.
#[pyclass(frozen, module = "laggard")]
#[derive(Debug)]
pub(crate) struct CollectiveHook {
    group: u32,
    /// Globals of the module with the functions that a script calls.
    functions: Py<PyDict>,
    /// Collectives of the whole group that were issued so far: all members count alike.
    issued: AtomicU64,
}

#[pymethods]
impl CollectiveHook {
    /// :param group: The same number on all members of the group, another for any other.
    /// :param functions: What `torch.distributed.distributed_c10d` defines.
    #[new]
    fn new(group: u32, functions: Py<PyDict>) -> Self {
        Self {
            group,
            functions,
            issued: AtomicU64::new(0),
        }
    }

    fn __call__(&self, args: &Bound<'_, PyAny>) {
        with_probe(|probe| {
            let py = args.py();
            let op = args
                .getattr(intern!(py, "name"))
                .and_then(|name| name.extract::<u16>());
            let op_id = args
                .getattr(intern!(py, "op_id"))
                .and_then(|id| id.extract::<u64>());
            // An unknown kind of arguments still says when a collective was issued.
            let op = op.map_or(CollectiveOp::UNKNOWN, CollectiveOp);
            let number = if op.is_point_to_point() {
                0
            } else {
                self.issued.fetch_add(1, Relaxed) + 1
            };
            let passed = passed(args, self.functions.bind(py));
            probe.collective(CollectiveIssue {
                op,
                group: self.group,
                op_id: op_id.unwrap_or(0),
                number,
                bytes: passed.as_ref().map(|passed| passed.bytes),
                element_bytes: passed.map_or(0, |passed| passed.element_bytes),
            });
        });
    }
}
