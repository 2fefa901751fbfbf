//! NCCL's API, as much of it as calls for operations or makes and ends communicators.
//!
//! An export keeps its caller's address and goes on to the function of the same name here,
//! whose first six arguments are those in registers; those on the stack come after two that
//! the export has put before them.

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::mem::transmute;

use model::CollectiveOp;

use crate::calls::{self, PreloadedCall};
use crate::communicators::hash_of;
use crate::forward::ForwardedFunction;
use crate::group::{self, CommunicatorPlace, NewCommunicator};

type Pointer = *mut c_void;
/// An argument the function does not have.
type Absent = usize;

/// `ncclSuccess`, and `ncclInProgress` of communicators that do not block.
const MADE: [c_int; 2] = [0, 7];

/// `ncclUniqueId`, which is passed by value: on the stack.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

macro_rules! exports {
    ($($name:ident => $body:ident;)+) => {
        $(
            #[doc = concat!("NCCL's `", stringify!($name), "`.")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                // The caller's address once more: the body's first argument on the stack.
                naked_asm!(
                    ".cfi_startproc",
                    // This push also keeps the stack aligned to 16 bytes for the call.
                    "push qword ptr [rsp]",
                    ".cfi_adjust_cfa_offset 8",
                    "call {body}",
                    "add rsp, 8",
                    ".cfi_adjust_cfa_offset -8",
                    "ret",
                    ".cfi_endproc",
                    body = sym $body,
                )
            }
        )+
    };
}

exports! {
    ncclCommInitRank => init_rank;
    ncclCommInitRankConfig => init_rank_config;
    ncclCommInitRankScalable => init_rank_scalable;
    ncclCommInitAll => init_all;
    ncclCommSplit => comm_split;
    ncclCommDestroy => destroy;
    ncclCommAbort => abort;
    ncclGroupStart => group_start;
    ncclGroupEnd => group_end;
    ncclAllReduce => all_reduce;
    ncclAllGather => all_gather;
    ncclReduceScatter => reduce_scatter;
    ncclBroadcast => broadcast;
    ncclBcast => bcast;
    ncclReduce => reduce;
    ncclSend => send;
    ncclRecv => receive;
}

/// Calls what is behind a function, by its own signature.
macro_rules! real {
    ($name:literal, $caller:expr, ($($argument:expr),*): ($($kind:ty),*)) => {{
        static REAL: ForwardedFunction = ForwardedFunction::named($name);
        // SAFETY: the function has this name, so NCCL's signature of it.
        unsafe {
            transmute::<*const c_void, unsafe extern "C" fn($($kind),*) -> c_int>(
                REAL.of($caller),
            )($($argument),*)
        }
    }};
}

/// A communicator is made, now or with the end of the group.
fn make(answer: c_int, made: NewCommunicator) {
    if MADE.contains(&answer) && !group::keep_made(made) {
        open(made);
    }
}

fn open(
    NewCommunicator {
        at,
        hash,
        place,
        caller,
    }: NewCommunicator,
) {
    if at.is_null() {
        return;
    }
    // SAFETY: NCCL has put the communicator's address there, or what was there before.
    let communicator = unsafe { at.read() };
    if communicator.is_null() {
        return;
    }
    if let Some(place) = place.or_else(|| ask(communicator, caller)) {
        calls::open(communicator, hash, place);
    }
}

/// Asks NCCL for a rank's place; a communicator that is not ready does not say.
fn ask(communicator: Pointer, caller: usize) -> Option<CommunicatorPlace> {
    let mut place = CommunicatorPlace { rank: -1, size: -1 };
    let (rank, size) = (&raw mut place.rank, &raw mut place.size);
    let answers = [
        real!(c"ncclCommUserRank", caller, (communicator, rank): (Pointer, *mut c_int)),
        real!(c"ncclCommCount", caller, (communicator, size): (Pointer, *mut c_int)),
    ];
    (answers == [0, 0]).then_some(place)
}

unsafe extern "C" fn init_rank(
    at: *mut Pointer,
    size: c_int,
    rank: c_int,
    _: Absent,
    _: Absent,
    _: Absent,
    caller: usize,
    _: Absent,
    id: UniqueId,
) -> c_int {
    // The id stands third in the signature. A structure of its size goes by the stack and takes
    // no register, so the rank comes in the third.
    let answer = real!(c"ncclCommInitRank", caller, (at, size, id, rank):
        (*mut Pointer, c_int, UniqueId, c_int));
    make(
        answer,
        NewCommunicator {
            at,
            hash: hash_of(&id.0),
            place: Some(CommunicatorPlace { rank, size }),
            caller,
        },
    );
    answer
}

unsafe extern "C" fn init_rank_config(
    at: *mut Pointer,
    size: c_int,
    rank: c_int,
    config: Pointer,
    _: Absent,
    _: Absent,
    caller: usize,
    _: Absent,
    id: UniqueId,
) -> c_int {
    let answer = real!(c"ncclCommInitRankConfig", caller, (at, size, id, rank, config):
        (*mut Pointer, c_int, UniqueId, c_int, Pointer));
    make(
        answer,
        NewCommunicator {
            at,
            hash: hash_of(&id.0),
            place: Some(CommunicatorPlace { rank, size }),
            caller,
        },
    );
    answer
}

unsafe extern "C" fn init_rank_scalable(
    at: *mut Pointer,
    size: c_int,
    rank: c_int,
    ids: c_int,
    id: *const UniqueId,
    config: Pointer,
    caller: usize,
) -> c_int {
    let answer = real!(c"ncclCommInitRankScalable", caller,
        (at, size, rank, ids, id, config):
        (*mut Pointer, c_int, c_int, c_int, *const UniqueId, Pointer));
    // SAFETY: NCCL has read the first as well.
    if let Some(id) = unsafe { id.as_ref() } {
        let place = Some(CommunicatorPlace { rank, size });
        make(
            answer,
            NewCommunicator {
                at,
                hash: hash_of(&id.0),
                place,
                caller,
            },
        );
    }
    answer
}

unsafe extern "C" fn init_all(
    at: *mut Pointer,
    devices: c_int,
    list: *const c_int,
    _: Absent,
    _: Absent,
    _: Absent,
    caller: usize,
) -> c_int {
    let answer = real!(c"ncclCommInitAll", caller, (at, devices, list):
        (*mut Pointer, c_int, *const c_int));
    if answer == 0 && !at.is_null() {
        // All its ranks are in this process, so any number that is its own will do.
        let words = [
            u64::from(std::process::id()),
            at.addr() as u64,
            probe::now().0,
        ];
        let hash = hash_of(words.map(u64::to_ne_bytes).as_flattened());
        for rank in 0..devices {
            let place = Some(CommunicatorPlace {
                rank,
                size: devices,
            });
            let at = at.cast_const().wrapping_offset(rank as isize);
            open(NewCommunicator {
                at,
                hash,
                place,
                caller,
            });
        }
    }
    answer
}

unsafe extern "C" fn comm_split(
    whole: Pointer,
    colour: c_int,
    key: c_int,
    at: *mut Pointer,
    config: Pointer,
    _: Absent,
    caller: usize,
) -> c_int {
    // Before the call: another thread may split the part at once.
    // Also for a negative colour: all ranks must count the splits alike.
    let hash = calls::split(whole, colour);
    let answer = real!(c"ncclCommSplit", caller, (whole, colour, key, at, config):
        (Pointer, c_int, c_int, *mut Pointer, Pointer));
    // A negative colour makes none for this rank.
    if let Some(hash) = hash.filter(|_| colour >= 0) {
        make(
            answer,
            NewCommunicator {
                at,
                hash,
                // Who else came with this colour only NCCL knows.
                place: None,
                caller,
            },
        );
    }
    answer
}

unsafe extern "C" fn destroy(
    communicator: Pointer,
    _: Absent,
    _: Absent,
    _: Absent,
    _: Absent,
    _: Absent,
    caller: usize,
) -> c_int {
    // Before the call: its address may be another's after it.
    let index = calls::find(communicator);
    let answer = real!(c"ncclCommDestroy", caller, (communicator): (Pointer));
    index.inspect(|index| calls::close(*index, communicator));
    answer
}

unsafe extern "C" fn abort(
    communicator: Pointer,
    _: Absent,
    _: Absent,
    _: Absent,
    _: Absent,
    _: Absent,
    caller: usize,
) -> c_int {
    let index = calls::find(communicator);
    let answer = real!(c"ncclCommAbort", caller, (communicator): (Pointer));
    index.inspect(|index| calls::close(*index, communicator));
    answer
}

unsafe extern "C" fn group_start(
    _: Absent,
    _: Absent,
    _: Absent,
    _: Absent,
    _: Absent,
    _: Absent,
    caller: usize,
) -> c_int {
    let answer = real!(c"ncclGroupStart", caller, (): ());
    if answer == 0 {
        group::begin();
    }
    answer
}

unsafe extern "C" fn group_end(
    _: Absent,
    _: Absent,
    _: Absent,
    _: Absent,
    _: Absent,
    _: Absent,
    caller: usize,
) -> c_int {
    let answer = real!(c"ncclGroupEnd", caller, (): ());
    // NCCL closes the group whatever it answers.
    let is_made = MADE.contains(&answer);
    group::end(calls::enqueued, |made| {
        if is_made {
            open(made);
        }
    });
    answer
}

/// Tells of a call, makes it, and tells that it has returned.
#[inline]
fn reported(
    communicator: Pointer,
    op: CollectiveOp,
    peer: c_int,
    (count, datatype): (usize, c_int),
    real: impl FnOnce() -> c_int,
) -> c_int {
    // Before the call, which may block: what is stuck in it shows as not enqueued.
    let begun = calls::begin(PreloadedCall {
        communicator,
        op,
        peer,
        count,
        datatype,
    });
    let answer = real();
    calls::returned(begun);
    answer
}

unsafe extern "C" fn all_reduce(
    from: Pointer,
    to: Pointer,
    count: usize,
    datatype: c_int,
    how: c_int,
    communicator: Pointer,
    caller: usize,
    _: Absent,
    stream: Pointer,
) -> c_int {
    reported(
        communicator,
        CollectiveOp::ALLREDUCE,
        0,
        (count, datatype),
        || {
            real!(c"ncclAllReduce", caller, (from, to, count, datatype, how, communicator, stream):
            (Pointer, Pointer, usize, c_int, c_int, Pointer, Pointer))
        },
    )
}

unsafe extern "C" fn all_gather(
    from: Pointer,
    to: Pointer,
    count: usize,
    datatype: c_int,
    communicator: Pointer,
    stream: Pointer,
    caller: usize,
) -> c_int {
    reported(
        communicator,
        // PyTorch's name, as the plugin gives it: both kinds of tables read alike.
        CollectiveOp::ALLGATHER_BASE,
        0,
        (count, datatype),
        || {
            real!(c"ncclAllGather", caller, (from, to, count, datatype, communicator, stream):
            (Pointer, Pointer, usize, c_int, Pointer, Pointer))
        },
    )
}

unsafe extern "C" fn reduce_scatter(
    from: Pointer,
    to: Pointer,
    count: usize,
    datatype: c_int,
    how: c_int,
    communicator: Pointer,
    caller: usize,
    _: Absent,
    stream: Pointer,
) -> c_int {
    reported(
        communicator,
        CollectiveOp::REDUCE_SCATTER_BASE,
        0,
        (count, datatype),
        || {
            real!(c"ncclReduceScatter", caller, (from, to, count, datatype, how, communicator, stream):
            (Pointer, Pointer, usize, c_int, c_int, Pointer, Pointer))
        },
    )
}

unsafe extern "C" fn broadcast(
    from: Pointer,
    to: Pointer,
    count: usize,
    datatype: c_int,
    root: c_int,
    communicator: Pointer,
    caller: usize,
    _: Absent,
    stream: Pointer,
) -> c_int {
    reported(
        communicator,
        CollectiveOp::BROADCAST,
        0,
        (count, datatype),
        || {
            real!(c"ncclBroadcast", caller, (from, to, count, datatype, root, communicator, stream):
            (Pointer, Pointer, usize, c_int, c_int, Pointer, Pointer))
        },
    )
}

unsafe extern "C" fn bcast(
    at: Pointer,
    count: usize,
    datatype: c_int,
    root: c_int,
    communicator: Pointer,
    stream: Pointer,
    caller: usize,
) -> c_int {
    reported(
        communicator,
        CollectiveOp::BROADCAST,
        0,
        (count, datatype),
        || {
            real!(c"ncclBcast", caller, (at, count, datatype, root, communicator, stream):
            (Pointer, usize, c_int, c_int, Pointer, Pointer))
        },
    )
}

unsafe extern "C" fn reduce(
    from: Pointer,
    to: Pointer,
    count: usize,
    datatype: c_int,
    how: c_int,
    root: c_int,
    caller: usize,
    _: Absent,
    communicator: Pointer,
    stream: Pointer,
) -> c_int {
    reported(
        communicator,
        CollectiveOp::REDUCE,
        0,
        (count, datatype),
        || {
            real!(c"ncclReduce", caller,
            (from, to, count, datatype, how, root, communicator, stream):
            (Pointer, Pointer, usize, c_int, c_int, c_int, Pointer, Pointer))
        },
    )
}

unsafe extern "C" fn send(
    from: Pointer,
    count: usize,
    datatype: c_int,
    peer: c_int,
    communicator: Pointer,
    stream: Pointer,
    caller: usize,
) -> c_int {
    reported(
        communicator,
        CollectiveOp::SEND,
        peer,
        (count, datatype),
        || {
            real!(c"ncclSend", caller, (from, count, datatype, peer, communicator, stream):
            (Pointer, usize, c_int, c_int, Pointer, Pointer))
        },
    )
}

unsafe extern "C" fn receive(
    to: Pointer,
    count: usize,
    datatype: c_int,
    peer: c_int,
    communicator: Pointer,
    stream: Pointer,
    caller: usize,
) -> c_int {
    reported(
        communicator,
        CollectiveOp::RECEIVE,
        peer,
        (count, datatype),
        || {
            real!(c"ncclRecv", caller, (to, count, datatype, peer, communicator, stream):
            (Pointer, usize, c_int, c_int, Pointer, Pointer))
        },
    )
}
