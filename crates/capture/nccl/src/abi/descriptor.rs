//! Descriptors of events, version by version, and what they have in common.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

use model::{CollectiveOp, Direction};
use probe::element_bytes;
use ring::Route;

use crate::abi::kind;
use crate::abi::names::{element_bytes_of_name, name, op_of_name, op_of_number};

/// What stands before an event's own fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventHead {
    /// The handle of the event it is part of.
    pub(crate) parent: *const c_void,
    /// The rank in the communicator; not set for every event.
    pub(crate) rank: c_int,
}

/// An event, as much of it as is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NcclEvent {
    /// A collective is enqueued.
    Collective {
        of: Option<Named>,
        sequence: u64,
        work: Work,
    },
    /// A send or a receive is enqueued.
    PointToPoint {
        of: Option<Named>,
        peer: u32,
        direction: Direction,
        work: Work,
    },
    /// A proxy has been given a part of an operation, of so many transfers.
    ProxyOp {
        pid: libc::pid_t,
        route: Route,
        total: u32,
    },
    /// A transfer begins.
    ProxyStep { step: u32 },
    /// Anything else.
    Other,
}

/// A communicator, told with an operation because `init` did not (before version 4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub(crate) hash: u64,
    pub(crate) name: *const c_char,
}

/// What an operation does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) op: CollectiveOp,
    /// Count times element size: the rank's own part, so what it contributes to an
    /// all-gather and what it gets of a reduce-scatter.
    pub(crate) bytes: u64,
}

/// The start of any version's descriptor, and the union of events after it.
#[repr(C)]
pub(crate) struct Descriptor<Kind, Coll: Copy, P2p: Copy, const WORDS: usize> {
    kind: Kind,
    parent: *const c_void,
    rank: c_int,
    body: Body<Coll, P2p, WORDS>,
}

#[repr(C)]
union Body<Coll: Copy, P2p: Copy, const WORDS: usize> {
    coll: Coll,
    p2p: P2p,
    proxy_op: ProxyOp,
    proxy_step: ProxyStep,
    /// As much as the largest event takes, which may be one that is not recorded.
    _room: [u64; WORDS],
}

// The kind is a byte up to version 4 and 64 bits since. The parent is aligned to 8 in both.
pub(crate) type DescriptorV1 = Descriptor<u8, CollV1, P2pV1, 12>;
pub(crate) type DescriptorV2 = Descriptor<u8, CollV2, P2pV2, 13>;
pub(crate) type DescriptorV3 = Descriptor<u8, CollV3, P2pV2, 12>;
pub(crate) type DescriptorV4 = Descriptor<u8, CollV4, P2pV4, 10>;
/// The version appends a parent group to collectives, sends and receives, not read here.
pub(crate) type DescriptorV5 = Descriptor<u64, CollV4, P2pV4, 11>;
pub(crate) type DescriptorV6 = Descriptor<u64, CollV4, P2pV4, 11>;
pub(crate) type DescriptorV7 = Descriptor<u64, CollV4, P2pV4, 14>;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CollV1 {
    name: *const c_char,
    hash: u64,
    sequence: u64,
    function: u8,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    root: c_int,
    datatype: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CollV2 {
    name: *const c_char,
    hash: u64,
    sequence: u64,
    function: *const c_char,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    root: c_int,
    datatype: *const c_char,
}

/// As [`CollV2`] up to the data type; what follows is not read.
pub(crate) type CollV3 = CollV2;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CollV4 {
    sequence: u64,
    function: *const c_char,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    root: c_int,
    datatype: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct P2pV1 {
    name: *const c_char,
    hash: u64,
    function: u8,
    buffer: *mut c_void,
    datatype: u8,
    count: usize,
    peer: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct P2pV2 {
    name: *const c_char,
    hash: u64,
    function: *const c_char,
    buffer: *mut c_void,
    datatype: *const c_char,
    count: usize,
    peer: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct P2pV4 {
    function: *const c_char,
    buffer: *mut c_void,
    datatype: *const c_char,
    count: usize,
    peer: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ProxyOp {
    pid: libc::pid_t,
    channel: u8,
    peer: c_int,
    steps: c_int,
    chunk_bytes: c_int,
    is_send: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ProxyStep {
    step: c_int,
}

/// Where the union begins; offsets below are those of the whole descriptor.
const BODY: usize = 24;

const _: () = {
    assert!(size_of::<DescriptorV1>() == 120);
    assert!(size_of::<DescriptorV2>() == 128);
    assert!(size_of::<DescriptorV3>() == 120);
    assert!(size_of::<DescriptorV4>() == 104);
    assert!(size_of::<DescriptorV5>() == 112);
    assert!(size_of::<DescriptorV6>() == 112);
    assert!(size_of::<DescriptorV7>() == 136);
    assert!(offset_of!(DescriptorV1, parent) == 8);
    assert!(offset_of!(DescriptorV7, parent) == 8);
    assert!(offset_of!(DescriptorV1, rank) == 16);
    assert!(offset_of!(DescriptorV7, rank) == 16);
    assert!(offset_of!(DescriptorV1, body) == BODY);
    assert!(offset_of!(DescriptorV7, body) == BODY);
};
const _: () = {
    assert!(BODY + offset_of!(CollV1, hash) == 32);
    assert!(BODY + offset_of!(CollV1, sequence) == 40);
    assert!(BODY + offset_of!(CollV1, function) == 48);
    assert!(BODY + offset_of!(CollV1, send) == 56);
    assert!(BODY + offset_of!(CollV1, receive) == 64);
    assert!(BODY + offset_of!(CollV1, count) == 72);
    assert!(BODY + offset_of!(CollV1, root) == 80);
    assert!(BODY + offset_of!(CollV1, datatype) == 84);
    assert!(BODY + offset_of!(CollV2, function) == 48);
    assert!(BODY + offset_of!(CollV2, count) == 72);
    assert!(BODY + offset_of!(CollV2, root) == 80);
    assert!(BODY + offset_of!(CollV2, datatype) == 88);
    assert!(offset_of!(CollV4, sequence) == 0);
    assert!(BODY + offset_of!(CollV4, function) == 32);
    assert!(BODY + offset_of!(CollV4, send) == 40);
    assert!(BODY + offset_of!(CollV4, receive) == 48);
    assert!(BODY + offset_of!(CollV4, count) == 56);
    assert!(BODY + offset_of!(CollV4, root) == 64);
    assert!(BODY + offset_of!(CollV4, datatype) == 72);
};
const _: () = {
    assert!(BODY + offset_of!(P2pV1, function) == 40);
    assert!(BODY + offset_of!(P2pV1, buffer) == 48);
    assert!(BODY + offset_of!(P2pV1, datatype) == 56);
    assert!(BODY + offset_of!(P2pV1, count) == 64);
    assert!(BODY + offset_of!(P2pV1, peer) == 72);
    assert!(BODY + offset_of!(P2pV2, function) == 40);
    assert!(BODY + offset_of!(P2pV2, datatype) == 56);
    assert!(BODY + offset_of!(P2pV2, count) == 64);
    assert!(BODY + offset_of!(P2pV2, peer) == 72);
    assert!(offset_of!(P2pV4, function) == 0);
    assert!(BODY + offset_of!(P2pV4, buffer) == 32);
    assert!(BODY + offset_of!(P2pV4, datatype) == 40);
    assert!(BODY + offset_of!(P2pV4, count) == 48);
    assert!(BODY + offset_of!(P2pV4, peer) == 56);
    assert!(BODY + offset_of!(ProxyOp, pid) == 24);
    assert!(BODY + offset_of!(ProxyOp, channel) == 28);
    assert!(BODY + offset_of!(ProxyOp, peer) == 32);
    assert!(BODY + offset_of!(ProxyOp, steps) == 36);
    assert!(BODY + offset_of!(ProxyOp, chunk_bytes) == 40);
    assert!(BODY + offset_of!(ProxyOp, is_send) == 44);
};

/// Reads one field through a pointer, never the whole structure.
macro_rules! field {
    ($this:ident . $($field:tt)+) => {
        (&raw const (*$this).$($field)+).read()
    };
}

/// A descriptor of any version.
pub(crate) trait Describes {
    /// Reads the event.
    ///
    /// # Safety
    /// `this` must point to a descriptor of this version, of which the fields before the
    /// union and those of the event's kind are set.
    unsafe fn read(this: *const Self) -> (EventHead, NcclEvent);
}

/// A part of the union that tells of an operation.
pub(crate) trait Tells: Copy {
    /// Whether the version has all states of steps; before, proxy operations have them.
    const STEPS_TELL: bool;

    /// # Safety
    /// `this` must point to one whose fields are set.
    unsafe fn event(this: *const Self) -> NcclEvent;
}

impl<Kind: Into<u64> + Copy, Coll: Tells, P2p: Tells, const WORDS: usize> Describes
    for Descriptor<Kind, Coll, P2p, WORDS>
{
    #[inline]
    unsafe fn read(this: *const Self) -> (EventHead, NcclEvent) {
        // SAFETY: the caller's promise; which part of the union is set follows from the kind.
        unsafe {
            let head = EventHead {
                parent: field!(this.parent),
                rank: field!(this.rank),
            };
            let event = match field!(this.kind).into() {
                kind::PROXY_STEP if Coll::STEPS_TELL => {
                    let step = field!(this.body.proxy_step.step);
                    u32::try_from(step)
                        .map_or(NcclEvent::Other, |step| NcclEvent::ProxyStep { step })
                }
                kind::PROXY_OP => proxy_op(&raw const (*this).body.proxy_op),
                kind::COLL => Coll::event(&raw const (*this).body.coll),
                kind::P2P => P2p::event(&raw const (*this).body.p2p),
                _ => NcclEvent::Other,
            };
            (head, event)
        }
    }
}

unsafe fn proxy_op(this: *const ProxyOp) -> NcclEvent {
    // SAFETY: the caller's promise.
    unsafe {
        let sends = field!(this.is_send) != 0;
        let route = Route {
            channel: field!(this.channel),
            peer: field!(this.peer).cast_unsigned(),
            direction: if sends {
                Direction::Send
            } else {
                Direction::Receive
            },
        };
        let total = u32::try_from(field!(this.steps)).unwrap_or(0);
        NcclEvent::ProxyOp {
            pid: field!(this.pid),
            route,
            total,
        }
    }
}

fn point_to_point(of: Option<Named>, peer: c_int, work: Work) -> NcclEvent {
    let direction = match work.op.name() {
        "SEND" => Direction::Send,
        "RECV" => Direction::Receive,
        _ => return NcclEvent::Other,
    };
    NcclEvent::PointToPoint {
        of,
        peer: peer.cast_unsigned(),
        direction,
        work,
    }
}

fn bytes(count: usize, element_bytes: u64) -> u64 {
    (count as u64).saturating_mul(element_bytes)
}

impl Tells for CollV1 {
    const STEPS_TELL: bool = false;

    unsafe fn event(this: *const Self) -> NcclEvent {
        // SAFETY: the caller's promise.
        unsafe {
            let of = Named {
                hash: field!(this.hash),
                name: field!(this.name),
            };
            let element_bytes = element_bytes(field!(this.datatype).into());
            let work = Work {
                op: op_of_number(field!(this.function)),
                bytes: bytes(field!(this.count), element_bytes),
            };
            NcclEvent::Collective {
                of: Some(of),
                sequence: field!(this.sequence),
                work,
            }
        }
    }
}

impl Tells for CollV2 {
    const STEPS_TELL: bool = false;

    unsafe fn event(this: *const Self) -> NcclEvent {
        // SAFETY: the caller's promise.
        unsafe {
            let of = Named {
                hash: field!(this.hash),
                name: field!(this.name),
            };
            let work = named_work(
                field!(this.function),
                field!(this.count),
                field!(this.datatype),
            );
            NcclEvent::Collective {
                of: Some(of),
                sequence: field!(this.sequence),
                work,
            }
        }
    }
}

impl Tells for CollV4 {
    const STEPS_TELL: bool = true;

    unsafe fn event(this: *const Self) -> NcclEvent {
        // SAFETY: the caller's promise.
        unsafe {
            let work = named_work(
                field!(this.function),
                field!(this.count),
                field!(this.datatype),
            );
            NcclEvent::Collective {
                of: None,
                sequence: field!(this.sequence),
                work,
            }
        }
    }
}

impl Tells for P2pV1 {
    const STEPS_TELL: bool = false;

    unsafe fn event(this: *const Self) -> NcclEvent {
        // SAFETY: the caller's promise.
        unsafe {
            let of = Named {
                hash: field!(this.hash),
                name: field!(this.name),
            };
            let element_bytes = element_bytes(field!(this.datatype).into());
            let work = Work {
                op: op_of_number(field!(this.function)),
                bytes: bytes(field!(this.count), element_bytes),
            };
            point_to_point(Some(of), field!(this.peer), work)
        }
    }
}

impl Tells for P2pV2 {
    const STEPS_TELL: bool = false;

    unsafe fn event(this: *const Self) -> NcclEvent {
        // SAFETY: the caller's promise.
        unsafe {
            let of = Named {
                hash: field!(this.hash),
                name: field!(this.name),
            };
            let work = named_work(
                field!(this.function),
                field!(this.count),
                field!(this.datatype),
            );
            point_to_point(Some(of), field!(this.peer), work)
        }
    }
}

impl Tells for P2pV4 {
    const STEPS_TELL: bool = true;

    unsafe fn event(this: *const Self) -> NcclEvent {
        // SAFETY: the caller's promise.
        unsafe {
            let work = named_work(
                field!(this.function),
                field!(this.count),
                field!(this.datatype),
            );
            point_to_point(None, field!(this.peer), work)
        }
    }
}

/// # Safety
/// Both names must be null or texts that end in zero.
unsafe fn named_work(function: *const c_char, count: usize, datatype: *const c_char) -> Work {
    // SAFETY: the caller's promise.
    let (function, datatype) = unsafe { (name(function), name(datatype)) };
    Work {
        op: op_of_name(function),
        bytes: bytes(count, element_bytes_of_name(datatype)),
    }
}
