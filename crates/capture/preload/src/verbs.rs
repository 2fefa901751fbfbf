//! What NCCL gives to network cards: the functions of libibverbs it asks for, and the three of a
//! device's own that it calls for every transfer.
//!
//! NCCL opens libibverbs itself and takes its functions by name and version (`dlvsym`), so
//! that is what is exported here. A caller that asks for one of the four functions
//! that matter gets one of ours around it. A device's functions stand in its context, which
//! `ibv_open_device` makes: there ours are put in their places.
//!
//! Layouts are those of `infiniband/verbs.h`, which have not changed since its version 1.1.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{offset_of, transmute};
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::requests::{self, Posted};

/// Contexts whose functions are replaced; a host has at most 16 cards.
const CONTEXTS: usize = 64;

/// `struct ibv_device`, to the end of its name.
#[repr(C)]
struct IbvDevice {
    functions: [usize; 2],
    kinds: [c_int; 2],
    name: [u8; 64],
}

/// `struct ibv_context`, to the end of its functions.
#[repr(C)]
pub(crate) struct Context {
    device: *const IbvDevice,
    before: [usize; 11],
    poll_cq: AtomicUsize,
    between: [usize; 13],
    post_send: AtomicUsize,
}

/// `struct ibv_qp`, to the end of its number.
#[repr(C)]
struct IbvQueuePair {
    context: *const Context,
    others: [usize; 5],
    handle: u32,
    number: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
struct QueuePairInit {
    others: [usize; 4],
    capacities: [u32; 5],
    kind: c_int,
    all_signaled: c_int,
}

/// `struct ibv_qp_attr`, to the end of its first path.
#[repr(C)]
struct QueuePairAttributes {
    state: c_int,
    others: [u32; 6],
    peer: u32,
    capacities: [u32; 6],
    gid: Gid,
    flow_label: u32,
    indices: [u8; 4],
    lid: u16,
    of_path: [u8; 4],
    port: u8,
}

/// `union ibv_gid`.
#[repr(C, align(8))]
struct Gid([u8; 16]);

/// `struct ibv_cq`, its beginning.
#[repr(C)]
struct CompletionQueue {
    context: *const Context,
}

/// `struct ibv_send_wr`, to the end of its flags.
#[repr(C)]
struct SendRequest {
    id: u64,
    next: *const SendRequest,
    parts: *const Part,
    part_count: c_int,
    code: c_int,
    flags: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
struct Part {
    address: u64,
    length: u32,
    key: u32,
}

/// `struct ibv_wc`.
#[repr(C)]
struct Completion {
    id: u64,
    status: c_int,
    code: u32,
    vendor: u32,
    length: u32,
    immediate: u32,
    number: u32,
    others: [u32; 4],
}

const _: () = {
    assert!(offset_of!(IbvDevice, name) == 24);
    assert!(offset_of!(Context, poll_cq) == 96);
    assert!(offset_of!(Context, post_send) == 208);
    assert!(offset_of!(IbvQueuePair, number) == 52);
    assert!(offset_of!(QueuePairInit, all_signaled) == 56);
    assert!(offset_of!(QueuePairAttributes, peer) == 28);
    assert!(offset_of!(QueuePairAttributes, gid) == 56);
    assert!(offset_of!(QueuePairAttributes, port) == 86);
    assert!(offset_of!(SendRequest, flags) == 32);
    assert!(size_of::<Part>() == 16);
    assert!(offset_of!(Completion, number) == 28);
    assert!(size_of::<Completion>() == 48);
};

/// `IBV_SEND_SIGNALED`.
const SIGNALED: u32 = 1 << 1;
/// The bit that completions of receives have (`IBV_WC_RECV`).
const RECEIVED: u32 = 1 << 7;
/// `IBV_QPS_RTR`, and the masks that say that it, the path and the peer are set.
const READY_TO_RECEIVE: c_int = 2;
const WITH_PATH_AND_PEER: c_int = 1 | 1 << 7 | 1 << 20;

type OpenDevice = unsafe extern "C" fn(*const IbvDevice) -> *mut Context;
type Create = unsafe extern "C" fn(*mut c_void, *const QueuePairInit) -> *mut IbvQueuePair;
type Destroy = unsafe extern "C" fn(*mut IbvQueuePair) -> c_int;
type Modify = unsafe extern "C" fn(*mut IbvQueuePair, *const QueuePairAttributes, c_int) -> c_int;
type PostSend =
    unsafe extern "C" fn(*mut IbvQueuePair, *const SendRequest, *mut *const SendRequest) -> c_int;
type PollCq = unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut Completion) -> c_int;

/// A function of libibverbs that is wrapped, and the one behind it.
struct WrappedVerb {
    name: &'static CStr,
    ours: fn() -> *const c_void,
    real: AtomicUsize,
}

static WRAPPED: [WrappedVerb; 4] = [
    WrappedVerb::of(c"ibv_open_device", || {
        open_device as OpenDevice as *const c_void
    }),
    WrappedVerb::of(c"ibv_create_qp", || create_qp as Create as *const c_void),
    WrappedVerb::of(c"ibv_destroy_qp", || destroy_qp as Destroy as *const c_void),
    WrappedVerb::of(c"ibv_modify_qp", || modify_qp as Modify as *const c_void),
];

impl WrappedVerb {
    const fn of(name: &'static CStr, ours: fn() -> *const c_void) -> Self {
        Self {
            name,
            ours,
            real: AtomicUsize::new(0),
        }
    }
}

/// The function behind one of ours. There is one: ours was handed out for it.
fn real(at: usize) -> *const c_void {
    let real = WRAPPED
        .get(at)
        .map_or(0, |wrapped| wrapped.real.load(Acquire));
    ptr::with_exposed_provenance(real)
}

/// The C library's `dlvsym`, for all but our four names. It looks at where it is called from,
/// so it is jumped to.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlvsym() {
    naked_asm!(
        ".cfi_startproc",
        // Three pushes also align the stack to 16 bytes for the call.
        "push rdi",
        "push rsi",
        "push rdx",
        ".cfi_adjust_cfa_offset 24",
        "call {choose}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        ".cfi_adjust_cfa_offset -24",
        "jmp rax",
        ".cfi_endproc",
        choose = sym choose,
    )
}

type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *const c_void;

/// The C library's `dlvsym`.
fn real_dlvsym() -> *const c_void {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    let mut real = REAL.load(Acquire);
    if real == 0 {
        // SAFETY: a text that ends in zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlvsym".as_ptr()) };
        real = found.expose_provenance();
        REAL.store(real, Release);
    }
    ptr::with_exposed_provenance(real)
}

/// Where a call of `dlvsym` goes on.
unsafe extern "C" fn choose(handle: *mut c_void, name: *const c_char) -> *const c_void {
    // SAFETY: the name is one the C library would read.
    if is_special(handle) || unsafe { wrapped(name) }.is_none() {
        return real_dlvsym();
    }
    // A library's handle means the same to any caller: `find` may ask for it from here.
    find as Dlvsym as *const c_void
}

/// `RTLD_DEFAULT` and `RTLD_NEXT` mean what is global, or next to the caller.
fn is_special(handle: *mut c_void) -> bool {
    handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT
}

/// # Safety
/// The name must be null or end in zero.
unsafe fn wrapped(name: *const c_char) -> Option<&'static WrappedVerb> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    WRAPPED.iter().find(|wrapped| wrapped.name == name)
}

/// Finds one of the four, and hands out ours in its place.
unsafe extern "C" fn find(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *const c_void {
    // SAFETY: the C library's function, with what it was called with.
    let found = unsafe { transmute::<*const c_void, Dlvsym>(real_dlvsym())(handle, name, version) };
    // SAFETY: the name was read before.
    let Some(wrapped) = (unsafe { wrapped(name) }).filter(|_| !found.is_null()) else {
        return found;
    };
    if !requests::start() {
        return found;
    }
    let address = found.expose_provenance();
    let first = wrapped.real.compare_exchange(0, address, Release, Relaxed);
    // A second libibverbs in the process is left alone.
    if first.is_ok() || first == Err(address) {
        (wrapped.ours)()
    } else {
        found
    }
}

/// The functions of a device that ours stand before. They stay when it is closed, and make room
/// for those of another that is opened at its address.
struct Before {
    context: AtomicUsize,
    poll_cq: AtomicUsize,
    post_send: AtomicUsize,
}

static BEFORE: [Before; CONTEXTS] = [const {
    Before {
        context: AtomicUsize::new(0),
        poll_cq: AtomicUsize::new(0),
        post_send: AtomicUsize::new(0),
    }
}; CONTEXTS];

/// What stands behind the functions of a context, and its place.
#[inline]
fn before(context: *const Context) -> Option<(u32, &'static Before)> {
    (0..)
        .zip(&BEFORE)
        .find(|(_, before)| before.context.load(Acquire) == context.addr())
}

unsafe extern "C" fn open_device(device: *const IbvDevice) -> *mut Context {
    // SAFETY: libibverbs' function, with what it was called with.
    let context = unsafe { transmute::<*const c_void, OpenDevice>(real(0))(device) };
    // SAFETY: libibverbs has made it.
    if let Some(opened) = unsafe { context.as_ref() } {
        replace(opened);
    }
    context
}

/// Puts our functions into a context.
fn replace(context: &Context) {
    let address = ptr::from_ref(context).addr();
    let known = before(context).map(|(_, known)| known);
    let place = known.or_else(|| {
        BEFORE.iter().find(|before| {
            before
                .context
                .compare_exchange(0, address, Release, Relaxed)
                .is_ok()
        })
    });
    let Some(place) = place else { return };
    let (poll, post) = (poll_cq as PollCq as usize, post_send as PostSend as usize);
    let (theirs_poll, theirs_post) = (
        context.poll_cq.load(Relaxed),
        context.post_send.load(Relaxed),
    );
    // A function of ours must not stand behind itself: the call would never end.
    if theirs_poll == poll || theirs_post == post || theirs_poll == 0 || theirs_post == 0 {
        return;
    }
    // First what is behind: a transfer may run through ours at once.
    place.poll_cq.store(theirs_poll, Relaxed);
    place.post_send.store(theirs_post, Release);
    context.poll_cq.store(poll, Release);
    context.post_send.store(post, Release);
}

unsafe extern "C" fn create_qp(
    domain: *mut c_void,
    attributes: *const QueuePairInit,
) -> *mut IbvQueuePair {
    // SAFETY: libibverbs' function, with what it was called with; it has read the attributes
    // and made the queue pair, whose context and device live longer.
    unsafe {
        let made = transmute::<*const c_void, Create>(real(1))(domain, attributes);
        if let (Some(pair), Some(attributes)) = (made.as_ref(), attributes.as_ref())
            && let Some((place, _)) = before(pair.context)
            && let Some(device) = (*pair.context).device.as_ref()
        {
            let name = device
                .name
                .split(|byte| *byte == 0)
                .next()
                .unwrap_or_default();
            requests::open(place, pair.number, name, attributes.all_signaled != 0);
        }
        made
    }
}

unsafe extern "C" fn destroy_qp(pair: *mut IbvQueuePair) -> c_int {
    // SAFETY: before it is destroyed it is there.
    let of = unsafe { pair.as_ref() }.and_then(|pair| Some((before(pair.context)?.0, pair.number)));
    // SAFETY: libibverbs' function, with what it was called with.
    let answer = unsafe { transmute::<*const c_void, Destroy>(real(2))(pair) };
    // A pair that could not be destroyed goes on.
    if let Some((place, number)) = of.filter(|_| answer == 0) {
        requests::close(place, number);
    }
    answer
}

unsafe extern "C" fn modify_qp(
    pair: *mut IbvQueuePair,
    attributes: *const QueuePairAttributes,
    mask: c_int,
) -> c_int {
    // SAFETY: libibverbs' function, with what it was called with; it has read them.
    unsafe {
        let answer = transmute::<*const c_void, Modify>(real(3))(pair, attributes, mask);
        if answer == 0
            && mask & WITH_PATH_AND_PEER == WITH_PATH_AND_PEER
            && let (Some(pair), Some(attributes)) = (pair.as_ref(), attributes.as_ref())
            && attributes.state == READY_TO_RECEIVE
            && let Some((place, _)) = before(pair.context)
        {
            let QueuePairAttributes {
                port, gid, peer, ..
            } = attributes;
            requests::connect(place, pair.number, *port, gid.0, *peer);
        }
        answer
    }
}

unsafe extern "C" fn post_send(
    pair: *mut IbvQueuePair,
    first: *const SendRequest,
    refused: *mut *const SendRequest,
) -> c_int {
    // SAFETY: a device is given queue pairs of its own, and lists of requests that it may
    // read; what it refuses is part of the list.
    unsafe {
        let Some((place, before)) = before((*pair).context) else {
            // Cannot be: ours stands only in contexts that are in `BEFORE`, which forgets none.
            return libc::EINVAL;
        };
        let number = (*pair).number;
        // Before the device has them: another thread may poll their completion at once.
        requests::posted(place, number, |signaled| list(first, signaled));
        let theirs = ptr::with_exposed_provenance::<c_void>(before.post_send.load(Acquire));
        let answer = transmute::<*const c_void, PostSend>(theirs)(pair, first, refused);
        if answer != 0 && !refused.is_null() {
            requests::refused(place, number, |signaled| list(*refused, signaled));
        }
        answer
    }
}

/// What is in a list of requests.
///
/// # Safety
/// It must be null or a list that ends.
unsafe fn list(
    mut request: *const SendRequest,
    all_signaled: bool,
) -> impl Iterator<Item = Posted> {
    std::iter::from_fn(move || {
        // SAFETY: the caller's promise; a request's parts are as many as it says.
        unsafe {
            let SendRequest {
                next,
                parts,
                part_count,
                flags,
                ..
            } = request.as_ref()?;
            let parts = if parts.is_null() {
                &[]
            } else {
                let count = usize::try_from(*part_count).unwrap_or(0);
                std::slice::from_raw_parts(*parts, count)
            };
            request = *next;
            let bytes = parts.iter().map(|part| u64::from(part.length)).sum();
            Some(Posted {
                bytes,
                signaled: all_signaled || flags & SIGNALED != 0,
            })
        }
    })
}

unsafe extern "C" fn poll_cq(
    queue: *mut CompletionQueue,
    most: c_int,
    completions: *mut Completion,
) -> c_int {
    // SAFETY: a device is given queues of its own, and room for as many completions as it
    // may write; as many as it says are written.
    unsafe {
        let Some((place, before)) = before((*queue).context) else {
            return -1;
        };
        let theirs = ptr::with_exposed_provenance::<c_void>(before.poll_cq.load(Acquire));
        let answer = transmute::<*const c_void, PollCq>(theirs)(queue, most, completions);
        if let Ok(count @ 1..) = usize::try_from(answer) {
            for completion in std::slice::from_raw_parts(completions, count) {
                let Completion {
                    status,
                    code,
                    number,
                    ..
                } = completion;
                // A failure does not say of what; that a queue pair of NCCL fails at all ends
                // both.
                if *status != 0 {
                    requests::failed(place, *number, status.cast_unsigned());
                // Receives are posted by a function that is not wrapped: none is counted.
                } else if code & RECEIVED == 0 {
                    requests::completed(place, *number);
                }
            }
        }
        answer
    }
}
