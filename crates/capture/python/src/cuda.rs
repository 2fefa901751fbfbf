//! Events of CUDA, asked of its driver: by way of PyTorch's each takes several times as long.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use libloading::os::unix::{Library, RTLD_NOW};
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;

use crate::device::EventSource;

/// A `CUresult`: all went well.
const SUCCESS: c_int = 0;
/// A `CUresult`: the device has not got there.
const NOT_READY: c_int = 600;
/// A `CUstreamCaptureMode`: what this thread does disturbs no capture of others.
const RELAXED: c_int = 2;
const DRIVER: &str = "libcuda.so.1";
const EXCHANGE: &str = "cuThreadExchangeStreamCaptureMode";

/// A `CUevent`. It is never destroyed: those that are no longer needed are used again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaEvent(*mut c_void);

/// A `CUstream`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaStream(*mut c_void);

/// What is needed of the driver of the process.
pub(crate) struct CudaEvents {
    create: unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int,
    record: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
    query: unsafe extern "C" fn(*mut c_void) -> c_int,
    elapsed: unsafe extern "C" fn(*mut f32, *mut c_void, *mut c_void) -> c_int,
    is_capturing: unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int,
    exchange_mode: unsafe extern "C" fn(*mut c_int) -> c_int,
    /// Gives the address of the calling thread's stream.
    stream: Py<PyAny>,
    /// `Accelerator` of `python/laggard/_device.py`, which counts captures on other threads.
    accelerator: Py<PyAny>,
}

impl CudaEvents {
    /// Events of the driver that the process has loaded; `None` if its device is none of CUDA's, or
    /// the driver lacks something.
    pub(crate) fn of(py: Python<'_>, accelerator: &Py<PyAny>) -> PyResult<Option<Self>> {
        let stream = accelerator.call_method0(py, intern!(py, "raw_stream"))?;
        if stream.is_none(py) {
            return Ok(None);
        }
        // SAFETY: a library that is loaded already runs nothing as it is opened.
        let driver = unsafe { Library::open(Some(DRIVER), RTLD_NOW | libc::RTLD_NOLOAD) };
        let Ok(driver) = driver else {
            return Ok(None);
        };
        let found = || {
            // SAFETY: the driver's functions of these names have these types, and stay: PyTorch
            // never unloads it.
            unsafe {
                Some(Self {
                    create: *driver.get(b"cuEventCreate\0").ok()?,
                    record: *driver.get(b"cuEventRecord\0").ok()?,
                    query: *driver.get(b"cuEventQuery\0").ok()?,
                    elapsed: *driver.get(b"cuEventElapsedTime\0").ok()?,
                    is_capturing: *driver.get(b"cuStreamIsCapturing\0").ok()?,
                    exchange_mode: *driver.get(b"cuThreadExchangeStreamCaptureMode\0").ok()?,
                    stream,
                    accelerator: accelerator.clone_ref(py),
                })
            }
        };
        // On a thread that has not used the device the driver has no context, and PyTorch makes one.
        Ok(found().filter(|cuda| cuda.event(py).is_ok()))
    }
}

impl EventSource for CudaEvents {
    type Event = CudaEvent;
    type Stream = CudaStream;

    fn event(&self, _: Python<'_>) -> PyResult<CudaEvent> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is a valid place to write to; the process has started its device.
        checked("cuEventCreate", unsafe { (self.create)(&raw mut event, 0) })?;
        Ok(CudaEvent(event))
    }

    fn same(_: Python<'_>, event: &CudaEvent) -> CudaEvent {
        *event
    }

    fn stream(&self, py: Python<'_>) -> PyResult<CudaStream> {
        let address: usize = self.stream.call0(py)?.extract(py)?;
        Ok(CudaStream(ptr::with_exposed_provenance_mut(address)))
    }

    fn is_capturing(&self, py: Python<'_>) -> PyResult<bool> {
        let captures = self.accelerator.getattr(py, intern!(py, "captures"))?;
        if captures.extract::<i64>(py)? > 0 {
            return Ok(true);
        }
        let (stream, mut status) = (self.stream(py)?, 0);
        // SAFETY: the stream is PyTorch's, which destroys none; `status` is a valid place.
        let result = unsafe { (self.is_capturing)(stream.0, &raw mut status) };
        // An error says that a capture elsewhere is in the way.
        Ok(result != SUCCESS || status != 0)
    }

    fn record(
        &self,
        py: Python<'_>,
        event: &CudaEvent,
        stream: Option<&CudaStream>,
    ) -> PyResult<()> {
        let stream = stream.map_or_else(|| self.stream(py), |stream| Ok(*stream))?;
        // SAFETY: events are never destroyed, and PyTorch destroys none of its streams.
        checked("cuEventRecord", unsafe { (self.record)(event.0, stream.0) })
    }

    fn is_reached(&self, _: Python<'_>, event: &CudaEvent) -> PyResult<bool> {
        let mut mode = RELAXED;
        // Else a query would end a capture that is under way on another stream.
        // SAFETY: `mode` is a valid place; events are never destroyed.
        let result = unsafe {
            checked(EXCHANGE, (self.exchange_mode)(&raw mut mode))?;
            let result = (self.query)(event.0);
            checked(EXCHANGE, (self.exchange_mode)(&raw mut mode))?;
            result
        };
        if result == NOT_READY {
            return Ok(false);
        }
        checked("cuEventQuery", result).map(|()| true)
    }

    fn ms_between(&self, _: Python<'_>, first: &CudaEvent, event: &CudaEvent) -> PyResult<f64> {
        let mut ms = 0.0f32;
        // SAFETY: `ms` is a valid place; events are never destroyed.
        let result = unsafe { (self.elapsed)(&raw mut ms, first.0, event.0) };
        checked("cuEventElapsedTime", result)?;
        Ok(f64::from(ms))
    }
}

fn checked(call: &str, result: c_int) -> PyResult<()> {
    if result == SUCCESS {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(format!(
        "{call}: CUDA error {result}"
    )))
}
