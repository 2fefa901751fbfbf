//! NCCL's profiler interface, versions 1 to 7: its structures, and what is read of them.
//!
//! NCCL fills only what the version and the kind of event define, so a descriptor is never
//! looked at as a whole: single fields are read through raw pointers. Texts belong to NCCL
//! and are read at once.

mod descriptor;
mod names;

use std::ffi::{c_char, c_int, c_ulong, c_void};

pub(crate) use descriptor::{
    Describes, DescriptorV1, DescriptorV2, DescriptorV3, DescriptorV4, DescriptorV5, DescriptorV6,
    DescriptorV7, EventHead, Named, NcclEvent, Work,
};
pub(crate) use names::text;

/// `ncclSuccess`, the only answer NCCL gets.
pub(crate) const SUCCESS: c_int = 0;

/// Kinds of events, as bits of the activation mask.
pub(crate) mod kind {
    pub(crate) const COLL: u64 = 1 << 1;
    pub(crate) const P2P: u64 = 1 << 2;
    pub(crate) const PROXY_OP: u64 = 1 << 3;
    pub(crate) const PROXY_STEP: u64 = 1 << 4;
}

/// States of proxy operations and steps.
pub(crate) mod state {
    use std::ffi::c_int;

    // Of operations, before 2.27.
    pub(crate) const SEND_POSTED: c_int = 0;
    pub(crate) const SEND_REM_FIFO_WAIT: c_int = 1;
    pub(crate) const SEND_TRANSMITTED: c_int = 2;
    pub(crate) const SEND_DONE: c_int = 3;
    pub(crate) const RECV_POSTED: c_int = 4;
    pub(crate) const RECV_RECEIVED: c_int = 5;
    pub(crate) const RECV_DONE: c_int = 7;
    // Of steps.
    pub(crate) const SEND_GPU_WAIT: c_int = 8;
    pub(crate) const SEND_WAIT: c_int = 9;
    pub(crate) const RECV_WAIT: c_int = 10;
    pub(crate) const RECV_FLUSH_WAIT: c_int = 11;
    // Since 2.27: of operations the first, of steps the second.
    pub(crate) const IN_PROGRESS: c_int = 19;
    pub(crate) const SEND_PEER_WAIT: c_int = 20;
}

/// What comes with a state before version 4.
#[repr(C)]
pub(crate) struct OperationArgs {
    /// Bytes so far.
    pub(crate) bytes: usize,
    /// Transfers so far.
    pub(crate) steps: c_int,
}

/// What comes with a state since version 4, if it is that of a step.
#[repr(C)]
pub(crate) struct StepArgs {
    /// Bytes of the transfer.
    pub(crate) bytes: usize,
}

const _: () = {
    assert!(size_of::<OperationArgs>() == 16);
    assert!(std::mem::offset_of!(OperationArgs, steps) == 8);
    assert!(size_of::<StepArgs>() == 8);
};

/// NCCL's logger, which is not used.
pub(crate) type Log =
    unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

pub(crate) type InitV1 = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> c_int;
pub(crate) type InitV4 = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    Option<Log>,
) -> c_int;
pub(crate) type InitV5 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    Option<Log>,
) -> c_int;

/// The table of functions NCCL looks for; its parts differ by version, its shape does not.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Profiler<Init, Descriptor, Args> {
    pub(crate) name: *const c_char,
    pub(crate) init: Init,
    pub(crate) start_event:
        unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const Descriptor) -> c_int,
    pub(crate) stop_event: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(crate) record_event_state: unsafe extern "C" fn(*mut c_void, c_int, *const Args) -> c_int,
    pub(crate) finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: the table never changes, and its name is a literal.
unsafe impl<Init: Sync, Descriptor, Args> Sync for Profiler<Init, Descriptor, Args> {}

const _: () = assert!(
    size_of::<Profiler<InitV5, DescriptorV6, StepArgs>>() == 48,
    "six pointers"
);
