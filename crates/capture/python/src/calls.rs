//! The functions that the loop's thread calls during a profile window.
//!
//! PyTorch's profiler records them too. It keeps every call and takes 8 us for each when it stops,
//! so that the loop of a script that calls a million functions would stand still for 8 s.

use std::ffi::c_int;
use std::fs::OpenOptions;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use libloading::os::unix::Library;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi::{
    self, PyCFunction_Check, PyCFunction_GetFunction, PyCFunction_GetSelf, PyFrameObject, PyObject,
};
use pyo3::prelude::*;
use rustc_hash::FxHashMap;
use trace::CallTree;

use crate::probe::read_clock;

/// Calls that are kept: 4 MB in memory, some 16 MB in a trace.
const LIMIT: usize = 1 << 17;
/// What PyTorch calls a collection of garbage.
const GARBAGE_COLLECTION: &str = "Python GC";
/// Number of the function that collects garbage.
const COLLECTS: u32 = 0;
/// What is read of a trace at once: its list of events ends in the last such part.
const PART_BYTES: u64 = 64 << 10;

// What the interpreter tells a profile function of (`Include/cpython/pystate.h`).
const CALL: c_int = 0;
const RETURN: c_int = 3;
const C_CALL: c_int = 4;
const C_EXCEPTION: c_int = 5;
const C_RETURN: c_int = 6;

type ProfileFunction =
    unsafe extern "C" fn(*mut PyObject, *mut PyFrameObject, c_int, *mut PyObject) -> c_int;

/// Functions of the interpreter that are not in its stable ABI, and have been what they are since
/// Python 3.9.
struct Interpreter {
    set_profile: unsafe extern "C" fn(Option<ProfileFunction>, *mut PyObject),
    code: unsafe extern "C" fn(*mut PyFrameObject) -> *mut PyObject,
    back: unsafe extern "C" fn(*mut PyFrameObject) -> *mut PyFrameObject,
}

impl Interpreter {
    fn of_this_process() -> Option<Self> {
        let process = Library::this();
        // SAFETY: the interpreter's functions of these names have these types, and stay.
        unsafe {
            Some(Self {
                set_profile: *process.get(b"PyEval_SetProfile\0").ok()?,
                code: *process.get(b"PyFrame_GetCode\0").ok()?,
                back: *process.get(b"PyFrame_GetBack\0").ok()?,
            })
        }
    }
}

/// Records the functions that one thread calls, those of C included.
#[pyclass(frozen)]
pub(crate) struct CallRecorder {
    interpreter: Interpreter,
    // The interpreter's lock already keeps other threads away.
    recorded: Mutex<Recorded>,
}

struct Recorded {
    tree: CallTree,
    functions: Functions,
    thread: i64,
}

/// Functions by their numbers.
#[derive(Default)]
struct Functions {
    numbers: FxHashMap<(usize, usize), u32>,
    found: Vec<Function>,
}

enum Function {
    /// A code object. It is kept: another one may else get its address.
    Python(Py<PyAny>),
    /// One of C, or a collection of garbage, by its name.
    Named(String),
}

impl Functions {
    fn number(&mut self, key: (usize, usize), make: impl FnOnce() -> Function) -> u32 {
        *self.numbers.entry(key).or_insert_with(|| {
            self.found.push(make());
            self.found.len() as u32 - 1
        })
    }

    /// # Safety
    /// `code` is a code object, and the interpreter's lock is held.
    unsafe fn python(&mut self, py: Python<'_>, code: *mut PyObject) -> u32 {
        self.number((code as usize, 0), || {
            // SAFETY: by the caller.
            Function::Python(unsafe { Bound::from_borrowed_ptr(py, code) }.unbind())
        })
    }

    /// Methods of C are made anew for each call: they are known by what they run, and for which
    /// type.
    ///
    /// # Safety
    /// `function` is an object, and the interpreter's lock is held.
    unsafe fn c(&mut self, py: Python<'_>, function: *mut PyObject) -> u32 {
        // SAFETY: by the caller; what the object is is asked first.
        let (key, is_known) = unsafe {
            if PyCFunction_Check(function) == 0 {
                ((ffi::Py_TYPE(function) as usize, 1), false)
            } else {
                let runs = PyCFunction_GetFunction(function).map_or(0, |it| it as usize);
                let owner = PyCFunction_GetSelf(function);
                let of = if owner.is_null() {
                    ptr::null_mut()
                } else {
                    ffi::Py_TYPE(owner)
                };
                ((runs, of as usize | 1), true)
            }
        };
        self.number(key, || {
            // Only of such a function it runs no code of the user's.
            let named = is_known.then(|| {
                // SAFETY: by the caller.
                let function = unsafe { Bound::from_borrowed_ptr(py, function) };
                function
                    .repr()
                    .map(|repr| repr.to_string_lossy().into_owned())
            });
            let named = named.and_then(Result::ok);
            Function::Named(named.unwrap_or_else(|| "<built-in>".to_owned()))
        })
    }
}

#[pymethods]
impl CallRecorder {
    /// Records from now on what this thread calls.
    ///
    /// :raises RuntimeError: if this interpreter has no profile functions.
    #[staticmethod]
    fn start(py: Python<'_>) -> PyResult<Py<Self>> {
        let interpreter = Interpreter::of_this_process()
            .ok_or_else(|| PyRuntimeError::new_err("no profile functions"))?;
        let mut functions = Functions::default();
        functions.number((0, 0), || Function::Named(GARBAGE_COLLECTION.to_owned()));
        let mut tree = CallTree::new(LIMIT);
        let began_ns = now_ns();
        // SAFETY: frames and their code are valid as long as they are held, which is until they
        // are given back.
        let callers = unsafe {
            let mut callers = Vec::new();
            let mut frame = ffi::PyEval_GetFrame();
            ffi::Py_XINCREF(frame.cast());
            while !frame.is_null() {
                let code = (interpreter.code)(frame);
                callers.push(functions.python(py, code));
                ffi::Py_DECREF(code);
                let back = (interpreter.back)(frame);
                ffi::Py_DECREF(frame.cast());
                frame = back;
            }
            callers
        };
        for function in callers.into_iter().rev() {
            tree.begin(function, began_ns);
        }
        let state = Recorded {
            tree,
            functions,
            // SAFETY: takes no arguments and cannot fail.
            thread: unsafe { libc::syscall(libc::SYS_gettid) },
        };
        let recorder = Py::new(
            py,
            Self {
                interpreter,
                recorded: Mutex::new(state),
            },
        )?;
        let set_profile = recorder.get().interpreter.set_profile;
        // SAFETY: the interpreter holds the object as long as it calls the function with it.
        unsafe { set_profile(Some(on_call), recorder.as_ptr()) };
        Ok(recorder)
    }

    /// Stops to record. Says whether all was recorded: not if another profile function has come
    /// in the way.
    fn stop(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let installed = slf.py().import("sys")?.call_method0("getprofile")?;
        if !installed.is(slf) {
            return Ok(false);
        }
        // SAFETY: removes the function of this thread, which is ours.
        unsafe { (slf.get().interpreter.set_profile)(None, ptr::null_mut()) };
        slf.get().locked().tree.finish(now_ns());
        Ok(true)
    }

    /// A collection of garbage begins or ends: one of ``gc.callbacks``.
    fn __call__(&self, phase: &str, _info: &Bound<'_, PyAny>) {
        let Some(mut recorded) = self.try_locked() else {
            return;
        };
        // SAFETY: takes no arguments and cannot fail.
        if recorded.thread != unsafe { libc::syscall(libc::SYS_gettid) } {
            return;
        }
        match phase {
            "start" => recorded.tree.begin(COLLECTS, now_ns()),
            _ => recorded.tree.end(COLLECTS, now_ns()),
        }
    }

    /// Adds the calls to a trace of PyTorch's, as PyTorch would have written them.
    ///
    /// :param path: The trace, which is changed in place.
    /// :param prefixes: Beginnings that files are called without.
    /// :raises OSError: if it cannot be read or written.
    #[expect(clippy::needless_pass_by_value, reason = "Python passes values")]
    fn write(&self, py: Python<'_>, path: PathBuf, prefixes: Vec<String>) -> PyResult<()> {
        let recorded = self.locked();
        let mut names = Vec::with_capacity(recorded.functions.found.len());
        for function in &recorded.functions.found {
            let name = match function {
                Function::Python(code) => name_of_code(code.bind(py), &prefixes)?,
                Function::Named(name) => name.clone(),
            };
            names.push(serde_json::Value::String(name).to_string());
        }
        Ok(add_calls(&recorded, &names, &path)?)
    }
}

impl CallRecorder {
    fn locked(&self) -> MutexGuard<'_, Recorded> {
        // Nothing panics in between; and what was recorded would still be worth reading.
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For what the interpreter calls at any moment, also in the middle of a call of ours: that must
    /// never wait.
    fn try_locked(&self) -> Option<MutexGuard<'_, Recorded>> {
        match self.recorded.try_lock() {
            Ok(recorded) => Some(recorded),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// What the interpreter calls as functions begin and end.
///
/// # Safety
/// The interpreter calls it, with the recorder that it was given.
unsafe extern "C" fn on_call(
    object: *mut PyObject,
    frame: *mut PyFrameObject,
    what: c_int,
    arg: *mut PyObject,
) -> c_int {
    // A panic ends here: the call is not recorded.
    let caught = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the interpreter calls under its lock.
        let py = unsafe { Python::assume_attached() };
        // SAFETY: it is what `start` gave.
        let object = unsafe { Bound::from_borrowed_ptr(py, object) };
        // SAFETY: as before.
        let recorder = unsafe { object.cast_unchecked::<CallRecorder>() }.get();
        let Some(mut held) = recorder.try_locked() else {
            return;
        };
        let Recorded {
            tree, functions, ..
        } = &mut *held;
        // SAFETY: the interpreter passes a frame, and for functions of C the function.
        let function = unsafe {
            match what {
                CALL | RETURN => {
                    let code = (recorder.interpreter.code)(frame);
                    let function = functions.python(py, code);
                    ffi::Py_DECREF(code);
                    function
                }
                C_CALL | C_RETURN | C_EXCEPTION => functions.c(py, arg),
                _ => return,
            }
        };
        match what {
            CALL | C_CALL => tree.begin(function, now_ns()),
            _ => tree.end(function, now_ns()),
        }
    }));
    drop(caught);
    0
}

/// Time on the clock on which PyTorch writes its traces.
fn now_ns() -> u64 {
    read_clock(libc::CLOCK_REALTIME)
}

/// What PyTorch calls a function of Python.
fn name_of_code(code: &Bound<'_, PyAny>, prefixes: &[String]) -> PyResult<String> {
    let file: String = code.getattr("co_filename")?.extract()?;
    let line: u32 = code.getattr("co_firstlineno")?.extract()?;
    let name: String = code.getattr("co_name")?.extract()?;
    let bare = prefixes
        .iter()
        .find_map(|it| file.strip_prefix(it.as_str()));
    Ok(format!("{}({line}): {name}", bare.unwrap_or(&file)))
}

/// Adds events at the end of a trace's list of them.
fn add_calls(recorded: &Recorded, names: &[String], path: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut head = Vec::new();
    // What describes the job comes before, and may be long.
    while find_last(&head, b"\"traceEvents\"").is_none()
        && (&file).take(PART_BYTES).read_to_end(&mut head)? > 0
    {}
    let base_ns = number_after(&head, b"\"baseTimeNanoseconds\":").unwrap_or(0);
    let length = file.seek(SeekFrom::End(0))?;
    let from = length.saturating_sub(PART_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    (&file).read_to_end(&mut tail)?;
    // The name of the trace, which may follow, may have any character in it.
    let before = find_last(&tail, b"\"traceName\"").unwrap_or(tail.len());
    let events_end = tail.get(..before).and_then(|tail| find_last(tail, b"]"));
    let Some(events_end) = events_end else {
        return Err(std::io::Error::other("the trace has no list of events"));
    };
    file.seek(SeekFrom::Start(from + events_end as u64))?;
    let mut to = BufWriter::with_capacity(1 << 20, &file);
    let (process, thread) = (std::process::id(), recorded.thread);
    for (index, call) in recorded.tree.calls().iter().enumerate() {
        let name = names
            .get(call.function as usize)
            .map_or("\"\"", |name| name);
        let start_ns = call.start_ns.saturating_sub(base_ns);
        let took_ns = call.end_ns.saturating_sub(call.start_ns);
        write!(
            to,
            ",{{\"ph\":\"X\",\"cat\":\"python_function\",\"name\":{name},\"pid\":{process},\
             \"tid\":{thread},\"ts\":{}.{:03},\"dur\":{}.{:03},\"args\":{{",
            start_ns / 1000,
            start_ns % 1000,
            took_ns / 1000,
            took_ns % 1000
        )?;
        // A collection has no caller: the function that was running did not ask for it.
        if call.function != COLLECTS {
            write!(to, "\"Python id\":{}", index + 1)?;
            if let Some(caller) = call.caller {
                write!(to, ",\"Python parent id\":{}", caller + 1)?;
            }
        }
        to.write_all(b"}}\n")?;
    }
    to.write_all(tail.get(events_end..).unwrap_or(b"]}"))?;
    to.flush()
}

fn find_last(within: &[u8], what: &[u8]) -> Option<usize> {
    within.windows(what.len()).rposition(|part| part == what)
}

fn number_after(text: &[u8], key: &[u8]) -> Option<u64> {
    let at = text.windows(key.len()).position(|part| part == key)? + key.len();
    let digits = text.get(at..)?.trim_ascii_start();
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(digits.get(..end)?).ok()?.parse().ok()
}
