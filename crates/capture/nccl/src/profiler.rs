//! The functions NCCL calls, and the tables it finds them in.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

use probe::Switch;

use crate::abi::{
    Describes, DescriptorV1, DescriptorV2, DescriptorV3, DescriptorV4, DescriptorV5, DescriptorV6,
    DescriptorV7, InitV1, InitV4, InitV5, Log, OperationArgs, Profiler, SUCCESS, StepArgs, kind,
};
use crate::recorder::{Introduced, Recorder};

/// Started by the first `init` of the process.
static RECORDER: Switch<Recorder> = Switch::new();

/// Events asked for since version 4. Of those that NCCL adds above them nothing is recorded.
const STEP_EVENTS: u64 = kind::COLL | kind::P2P | kind::PROXY_OP | kind::PROXY_STEP;
/// Events asked for before: there proxy operations tell what steps do later.
const OPERATION_EVENTS: u64 = kind::COLL | kind::P2P | kind::PROXY_OP;

/// Runs one call; whatever comes of it, NCCL hears success.
#[inline]
fn guarded(callback: impl FnOnce(&Recorder)) -> c_int {
    RECORDER.with(callback);
    SUCCESS
}

/// Runs in a forked child: it is another process, and this table is not its own.
unsafe extern "C" fn forget_after_fork() {
    RECORDER.off();
}

/// Never fails, as some releases unload the plugin twice if it does; a context is never
/// null, as some hand that on as a communicator's.
///
/// # Safety
/// `context` and `mask` must be null or writable, the communicator's name null or a text.
unsafe fn init(
    context: *mut *mut c_void,
    mask: *mut c_int,
    events: u64,
    introduced: Option<&Introduced>,
) -> c_int {
    RECORDER.start(Recorder::start, forget_after_fork);
    // Not null, and no token of ours: those say a kind.
    let mut token = ptr::without_provenance_mut(1);
    let mut wanted = 0;
    guarded(|recorder| {
        // SAFETY: the caller's promise.
        token = unsafe { recorder.init(introduced) };
        wanted = events as c_int;
    });
    // SAFETY: the caller's promise. NCCL reads the mask from other threads meanwhile.
    unsafe {
        if !context.is_null() {
            context.write(token);
        }
        // NCCL has one mask for all communicators: the last `init` decides.
        if !mask.is_null() {
            AtomicI32::from_ptr(mask).store(wanted, Relaxed);
        }
    }
    SUCCESS
}

unsafe extern "C" fn init_v1(context: *mut *mut c_void, mask: *mut c_int) -> c_int {
    // SAFETY: what NCCL promises.
    unsafe { init(context, mask, OPERATION_EVENTS, None) }
}

unsafe extern "C" fn init_v4(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    hash: u64,
    _nodes: c_int,
    size: c_int,
    rank: c_int,
    _log: Option<Log>,
) -> c_int {
    // SAFETY: what NCCL promises.
    unsafe {
        init(
            context,
            mask,
            STEP_EVENTS,
            Some(&Introduced {
                hash,
                name,
                rank,
                size,
            }),
        )
    }
}

unsafe extern "C" fn init_v5(
    context: *mut *mut c_void,
    hash: u64,
    mask: *mut c_int,
    name: *const c_char,
    _nodes: c_int,
    size: c_int,
    rank: c_int,
    _log: Option<Log>,
) -> c_int {
    // SAFETY: what NCCL promises.
    unsafe {
        init(
            context,
            mask,
            STEP_EVENTS,
            Some(&Introduced {
                hash,
                name,
                rank,
                size,
            }),
        )
    }
}

unsafe extern "C" fn finalize(context: *mut c_void) -> c_int {
    guarded(|recorder| recorder.finalize(context))
}

/// Always writes the handle: NCCL does not clear all of them, and would stop an old one.
unsafe extern "C" fn start_event<Descriptor: Describes>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descriptor: *const Descriptor,
) -> c_int {
    if handle.is_null() {
        return SUCCESS;
    }
    let mut token = ptr::null_mut();
    if !descriptor.is_null() {
        guarded(|recorder| {
            // SAFETY: what NCCL promises of a descriptor of its version.
            token = unsafe {
                let (head, event) = Descriptor::read(descriptor);
                recorder.start_event(context, head, event)
            };
        });
    }
    // SAFETY: NCCL hands over a place for the handle.
    unsafe { handle.write(token) };
    SUCCESS
}

unsafe extern "C" fn stop_event(handle: *mut c_void) -> c_int {
    guarded(|recorder| recorder.stop_event(handle))
}

unsafe extern "C" fn record_operation_state(
    handle: *mut c_void,
    state: c_int,
    args: *const OperationArgs,
) -> c_int {
    // SAFETY: what NCCL promises of arguments of these states.
    guarded(|recorder| unsafe { recorder.operation_state(handle, state, args) })
}

unsafe extern "C" fn record_step_state(
    handle: *mut c_void,
    state: c_int,
    args: *const StepArgs,
) -> c_int {
    // SAFETY: what NCCL promises of arguments of these states.
    guarded(|recorder| unsafe { recorder.step_state(handle, state, args) })
}

macro_rules! profilers {
    ($($(#[$doc:meta])* $name:ident: $init:ident $Init:ty, $Descriptor:ty, $record:ident $Args:ty;)+) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub(crate) static $name: Profiler<$Init, $Descriptor, $Args> = Profiler {
                name: c"laggard".as_ptr(),
                init: $init,
                start_event: start_event::<$Descriptor>,
                stop_event,
                record_event_state: $record,
                finalize,
            };
        )+
    };
}

// Each release takes the newest it knows. Its shims for older ones lose the communicator and
// the states of steps, so all are here.
profilers! {
    /// For NCCL 2.23.
    ncclProfiler_v1: init_v1 InitV1, DescriptorV1, record_operation_state OperationArgs;
    /// For NCCL 2.24 and 2.25.
    ncclProfiler_v2: init_v1 InitV1, DescriptorV2, record_operation_state OperationArgs;
    /// For NCCL 2.26.
    ncclProfiler_v3: init_v1 InitV1, DescriptorV3, record_operation_state OperationArgs;
    /// For NCCL 2.27.
    ncclProfiler_v4: init_v4 InitV4, DescriptorV4, record_step_state StepArgs;
    /// For NCCL 2.28.
    ncclProfiler_v5: init_v5 InitV5, DescriptorV5, record_step_state StepArgs;
    /// For NCCL 2.29 and 2.30.
    ncclProfiler_v6: init_v5 InitV5, DescriptorV6, record_step_state StepArgs;
    /// For NCCL 2.31.
    ncclProfiler_v7: init_v5 InitV5, DescriptorV7, record_step_state StepArgs;
}
