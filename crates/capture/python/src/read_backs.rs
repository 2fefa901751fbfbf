//! Methods of tensors that make the host wait for its device.
//!
//! Methods of C stand in their place. They have no frame, which PyTorch's compiler would compile and its
//! warnings would point to, and are pickled by name.

use std::ffi::CStr;

use model::Event;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use pyo3::{ffi, intern};

use crate::contexts::stage;
use crate::errors::quietly;
use crate::hooks::replace_method;
use crate::probe::{NO_CODE, with_probe};

const METHODS: [(&CStr, ffi::PyCFunctionWithKeywords); 6] = [
    (c"item", waiting::<0>),
    (c"tolist", waiting::<1>),
    (c"cpu", waiting::<2>),
    (c"__bool__", waiting::<3>),
    (c"__float__", waiting::<4>),
    (c"__int__", waiting::<5>),
];

struct Waiting {
    tensor: Py<PyType>,
    originals: Vec<Py<PyAny>>,
    /// `__torch_function__` of classes of tensors that have none of their own.
    no_function: Py<PyAny>,
    /// A context in which no `__torch_function__` is called.
    without_functions: Py<PyAny>,
    /// Gives what the line of the script is called that runs.
    line: Py<PyAny>,
}

static WAITING: PyOnceLock<Waiting> = PyOnceLock::new();

/// Puts methods before those of tensors that make the host wait for its device, once in a process.
///
/// :param tensor: PyTorch's class.
/// :param no_function: ``torch._C._disabled_torch_function_impl``.
/// :param without_functions: ``torch._C.DisableTorchFunction``.
/// :param line: Called where one of these returns, with nothing, for what the script's line is called.
#[pyfunction]
pub(crate) fn hook_read_backs(
    tensor: &Bound<'_, PyType>,
    no_function: Py<PyAny>,
    without_functions: Py<PyAny>,
    line: Py<PyAny>,
) -> PyResult<()> {
    let py = tensor.py();
    let originals = METHODS.iter().map(|(name, _)| {
        let original = tensor.getattr(name.to_string_lossy().as_ref())?;
        Ok(original.unbind())
    });
    let waiting = Waiting {
        tensor: tensor.clone().unbind(),
        originals: originals.collect::<PyResult<_>>()?,
        no_function,
        without_functions,
        line,
    };
    if WAITING.set(py, waiting).is_err() {
        return Ok(());
    }
    for (name, method) in METHODS {
        let method = ffi::PyMethodDefPointer {
            PyCFunctionWithKeywords: method,
        };
        replace_method(tensor, name, method, ffi::METH_VARARGS | ffi::METH_KEYWORDS)?;
    }
    Ok(())
}

/// Stands in the place of a method.
extern "C" fn waiting<const METHOD: usize>(
    tensor: *mut ffi::PyObject,
    args: *mut ffi::PyObject,
    kwargs: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the interpreter calls this, attached.
    let py = unsafe { Python::assume_attached() };
    let known = WAITING.get(py);
    let Some((known, original)) = known.and_then(|it| Some((it, it.originals.get(METHOD)?))) else {
        return std::ptr::null_mut();
    };
    let mut may_wait = false;
    with_probe(|probe| may_wait = probe.records_read_backs());
    // SAFETY: the tuple is live; a dictionary is live, too.
    if !may_wait && kwargs.is_null() && unsafe { ffi::PyTuple_Size(args) } == 0 {
        let end = std::ptr::null_mut::<ffi::PyObject>();
        // SAFETY: all are live; the result is a new reference or null with an exception.
        return unsafe { ffi::PyObject_CallFunctionObjArgs(original.as_ptr(), tensor, end) };
    }
    // SAFETY: these are live: a tensor, a tuple, and a dictionary or null.
    let (tensor, args, kwargs) = unsafe {
        (
            Bound::from_borrowed_ptr(py, tensor),
            Bound::from_borrowed_ptr(py, args).cast_into_unchecked::<PyTuple>(),
            Bound::from_borrowed_ptr_or_opt(py, kwargs)
                .map(|kwargs| kwargs.cast_into_unchecked::<PyDict>()),
        )
    };
    let call = || {
        let all = std::iter::once(tensor.clone()).chain(args.iter());
        let all = PyTuple::new(py, all.collect::<Vec<_>>())?;
        original.bind(py).call(all, kwargs.as_ref())
    };
    let waits = may_wait && quietly(py, is_on_device(known, &tensor)).unwrap_or(false);
    let done = if waits { wait(py, known, call) } else { call() };
    match done {
        Ok(done) => done.into_ptr(),
        Err(error) => {
            error.restore(py);
            std::ptr::null_mut()
        }
    }
}

/// Marks a call in which the host waits for its device.
fn wait<'py>(
    py: Python<'py>,
    known: &Waiting,
    call: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    begin_read_back();
    let done = call();
    let line = quietly(py, known.line.bind(py).call0());
    end_read_back(line.as_ref());
    done
}

/// Whether the host may wait for a device that a tensor is on. Of a class with a `__torch_function__` of its
/// own nothing is asked: that would be called.
fn is_on_device(known: &Waiting, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = tensor.py();
    let class = tensor.get_type();
    if !class.is(&known.tensor) {
        let function = class.getattr(intern!(py, "__torch_function__"))?;
        if !function.is(&known.no_function) {
            return Ok(false);
        }
    }
    // A mode of the script's would see the question.
    let context = known.without_functions.bind(py).call0()?;
    context.call_method0(intern!(py, "__enter__"))?;
    // What is on the host already is not waited for: optimizers keep their counters there.
    let is_here = tensor.getattr(intern!(py, "is_cpu"));
    let nothing = py.None();
    context.call_method1(intern!(py, "__exit__"), (&nothing, &nothing, &nothing))?;
    Ok(!is_here?.is_truthy()?)
}

/// Takes note that the loop begins to read something back from its device; whether this step is
/// sampled.
#[pyfunction]
pub(crate) fn begin_read_back() -> bool {
    let mut recorded = false;
    with_probe(|probe| recorded = probe.read_back(Event::ReadBackBegin));
    recorded
}

/// Takes note that it has it.
///
/// :param line: What the line that wanted it is called, if it has a name.
#[pyfunction]
pub(crate) fn end_read_back(line: Option<&Bound<'_, PyAny>>) {
    // What it has is on its way to the script, which no fault of ours may reach.
    let named = line.filter(|line| !line.is_none());
    let named = named.and_then(|line| quietly(line.py(), stage(line)));
    with_probe(|probe| {
        let name = named.map_or(NO_CODE, |named| named.get().code(probe));
        probe.read_back(Event::ReadBackEnd { name });
    });
}
