//! The plugin's table as NCCL has it, what NCCL calls for one operation, and a plugin that does
//! nothing.

use std::env;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

/// Bytes of a transfer.
pub(crate) const BYTES: usize = 524_288;

pub(crate) type Handle = *mut c_void;

/// The table of version 6, as NCCL has it.
#[repr(C)]
pub(crate) struct Functions {
    name: *const c_char,
    init: Init,
    start: unsafe extern "C" fn(Handle, *mut Handle, *const Descriptor) -> c_int,
    stop: unsafe extern "C" fn(Handle) -> c_int,
    record: unsafe extern "C" fn(Handle, c_int, *const u64) -> c_int,
    finalize: unsafe extern "C" fn(Handle) -> c_int,
}

type Init = unsafe extern "C" fn(
    *mut Handle,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    *const c_void,
) -> c_int;

/// A descriptor of version 6: kind, parent, rank and the event's own words.
type Descriptor = [u64; 14];

// SAFETY: the table never changes.
unsafe impl Sync for Functions {}

impl Functions {
    /// Introduces a communicator; its context, and the events that are asked for.
    pub(crate) fn init(&self) -> (Handle, c_int) {
        let (mut context, mut mask) = (ptr::null_mut(), 0);
        // SAFETY: the signature is NCCL's for this version.
        unsafe {
            let (context, mask) = (&raw mut context, &raw mut mask);
            (self.init)(context, 1, mask, c"dp".as_ptr(), 2, 4, 1, ptr::null());
        }
        (context, mask)
    }
}

/// A collective with a flow each way.
pub(crate) fn begin(
    functions: &Functions,
    context: Handle,
    sequence: u64,
    transfers: i32,
) -> (Handle, Handle) {
    let mut coll = [0; 14];
    coll[0] = 2;
    coll[3] = sequence;
    coll[4] = c"AllReduce".as_ptr().addr() as u64;
    coll[7] = 1 << 20;
    coll[9] = c"ncclFloat32".as_ptr().addr() as u64;
    let coll = start(functions, context, &coll);
    let flow = |sends: u64| {
        let pid = u64::from(std::process::id());
        let mut event = [0; 14];
        event[0] = 8;
        event[1] = coll.addr() as u64;
        event[3] = pid;
        event[4] = 2 | (transfers as u64) << 32;
        event[5] = sends << 32;
        let flow = start(functions, context, &event);
        // SAFETY: states of operations have no arguments in this version.
        unsafe { (functions.record)(flow, 19, ptr::null()) };
        flow
    };
    (flow(1), flow(0))
}

fn start(functions: &Functions, context: Handle, event: &Descriptor) -> Handle {
    let mut handle = ptr::null_mut();
    // SAFETY: the descriptor is one of this version.
    unsafe { (functions.start)(context, &raw mut handle, event) };
    handle
}

/// The ten calls of a transfer that is sent and one that is received.
pub(crate) fn transfer(
    functions: &Functions,
    context: Handle,
    send: Handle,
    receive: Handle,
    step: i32,
) {
    let mut event = [0; 14];
    event[0] = 16;
    event[3] = step as u64;
    let bytes = BYTES as u64;
    for (flow, states) in [(send, [8, 20, 9]), (receive, [10, 11, 12])] {
        event[1] = flow.addr() as u64;
        let step = start(functions, context, &event);
        // SAFETY: the arguments of steps are one word in this version.
        unsafe {
            for state in states {
                (functions.record)(step, state, &raw const bytes);
            }
            (functions.stop)(step);
        }
    }
}

/// The built library's table.
pub(crate) fn plugin() -> &'static Functions {
    let library = env::current_exe().expect("this bench");
    let library = library.with_file_name("liblaggard_nccl.so");
    let library = CString::new(library.as_os_str().as_encoded_bytes());
    let library = library.expect("a path without zeros");
    // SAFETY: both are texts that end in zero, and the symbol is a table of functions in a
    // library that is never closed.
    unsafe {
        let library = libc::dlopen(library.as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null(), "the library is built beside the bench");
        let functions = libc::dlsym(library, c"ncclProfiler_v6".as_ptr());
        functions
            .cast::<Functions>()
            .as_ref()
            .expect("a table of this version")
    }
}

pub(crate) static NOTHING: Functions = Functions {
    name: c"nothing".as_ptr(),
    init: init_nothing,
    start: start_nothing,
    stop: stop_nothing,
    record: record_nothing,
    finalize: stop_nothing,
};

unsafe extern "C" fn init_nothing(
    _: *mut Handle,
    _: u64,
    _: *mut c_int,
    _: *const c_char,
    _: c_int,
    _: c_int,
    _: c_int,
    _: *const c_void,
) -> c_int {
    0
}

unsafe extern "C" fn start_nothing(_: Handle, _: *mut Handle, _: *const Descriptor) -> c_int {
    0
}

unsafe extern "C" fn stop_nothing(_: Handle) -> c_int {
    0
}

unsafe extern "C" fn record_nothing(_: Handle, _: c_int, _: *const u64) -> c_int {
    0
}
