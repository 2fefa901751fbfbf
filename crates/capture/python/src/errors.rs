//! Errors of what laggard calls in Python. None reaches the script, but for what is the script's own.

use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyException;
use pyo3::ffi;
use pyo3::prelude::*;

/// What a call gave, nothing if it failed.
pub(crate) fn quietly<T>(py: Python<'_>, done: PyResult<T>) -> Option<T> {
    match done {
        Ok(done) => Some(done),
        Err(error) => {
            drop(fault(py, error));
            None
        }
    }
}

/// An error, if it is a fault. What a signal handler raised while laggard's code ran, such as
/// `KeyboardInterrupt`, is the script's: it is raised there as soon as the interpreter next looks for signals.
pub(crate) fn fault(py: Python<'_>, error: PyErr) -> Option<PyErr> {
    if error.is_instance_of::<PyException>(py) {
        return Some(error);
    }
    let kept = Box::into_raw(Box::new(error));
    // SAFETY: `raise` takes what it is given, once.
    if unsafe { ffi::Py_AddPendingCall(Some(raise), kept.cast()) } != 0 {
        // SAFETY: no call is pending, so that it is still ours.
        drop(unsafe { Box::from_raw(kept) });
    }
    None
}

/// Runs on the main thread, as signal handlers do.
extern "C" fn raise(kept: *mut c_void) -> c_int {
    // SAFETY: the interpreter calls this, attached, once with what `fault` gave it.
    let (py, error) = unsafe {
        let py = Python::assume_attached();
        (py, Box::from_raw(kept.cast::<PyErr>()))
    };
    error.restore(py);
    -1
}
