//! What the calls of the API change in the live table.

use std::ffi::{c_int, c_void};

use model::{CollectiveOp, Direction};
use probe::{Records, Sequences, Switch, coarse, element_bytes, now};
use ring::{CommunicatorIndex, LiveSource, LiveWriter, OperationToken, Route};

use crate::communicators::Communicators;
use crate::group::{self, CommunicatorPlace};

/// Started by the first communicator of the process.
static CALLS: Switch<Calls> = Switch::new();

/// The one recorder of a process.
struct Calls {
    table: LiveWriter,
    communicators: Communicators,
    sequences: Sequences,
}

impl Records for Calls {
    fn count_fault(&self) {
        self.table.count_fault();
    }
}

/// What is called for.
#[derive(Clone, Copy)]
pub(crate) struct PreloadedCall {
    pub(crate) communicator: *mut c_void,
    pub(crate) op: CollectiveOp,
    /// The other rank of a send or a receive.
    pub(crate) peer: c_int,
    /// Elements: the rank's own part, as for the plugin.
    pub(crate) count: usize,
    pub(crate) datatype: c_int,
}

/// Runs in a forked child: it is another process, and this table is not its own.
unsafe extern "C" fn forget_after_fork() {
    CALLS.off();
}

/// A communicator was made.
pub(crate) fn open(address: *mut c_void, hash: u64, place: CommunicatorPlace) {
    CALLS.start(
        || {
            Some(Calls {
                table: probe::live_table(LiveSource::Calls)?,
                communicators: Communicators::new(),
                sequences: Sequences::new(),
            })
        },
        forget_after_fork,
    );
    CALLS.with(|calls| {
        let (rank, size) = (place.rank.cast_unsigned(), place.size.cast_unsigned());
        // The calls do not name a communicator: it goes by its hash.
        if let Some(index) = calls.table.communicator(hash, b"", rank, size) {
            calls.communicators.open(index, address.addr(), hash);
        }
    });
}

/// Which communicator one is, to be asked before NCCL ends it.
pub(crate) fn find(address: *mut c_void) -> Option<CommunicatorIndex> {
    CALLS
        .with(|calls| calls.communicators.find(address.addr()))
        .flatten()
}

/// NCCL has ended a communicator.
pub(crate) fn close(index: CommunicatorIndex, address: *mut c_void) {
    CALLS.with(|calls| {
        if calls.communicators.close(index, address.addr()) {
            calls.table.finalize(index);
        }
    });
}

/// The hash of the next part of a communicator.
pub(crate) fn split(address: *mut c_void, colour: c_int) -> Option<u64> {
    CALLS
        .with(|calls| {
            let index = calls.communicators.find(address.addr())?;
            calls.communicators.split(index, colour)
        })
        .flatten()
}

/// Something is called for, in a communicator that was seen to be made.
#[inline]
pub(crate) fn begin(call: PreloadedCall) -> Option<OperationToken> {
    CALLS.with(|calls| calls.begin(call)).flatten()
}

/// The call has returned: it is enqueued, unless a group is open.
#[inline]
pub(crate) fn returned(operation: Option<OperationToken>) {
    if let Some(operation) = operation.filter(|operation| !group::keep(*operation)) {
        enqueued(operation);
    }
}

/// An operation is enqueued. Its coarse time is not before its beginning, to the reader.
#[inline]
pub(crate) fn enqueued(operation: OperationToken) {
    CALLS.with(|calls| calls.table.enqueued(operation, coarse()));
}

impl Calls {
    #[inline]
    fn begin(&self, call: PreloadedCall) -> Option<OperationToken> {
        let Some(index) = self.communicators.find(call.communicator.addr()) else {
            self.table.count_dropped();
            return None;
        };
        let bytes = call.count as u64 * element_bytes(call.datatype.cast_unsigned());
        if !call.op.is_point_to_point() {
            let sequence = self.communicators.next(index, call.op)?;
            return self
                .table
                .begin_operation(index, call.op, sequence, bytes, now());
        }
        let direction = if call.op == CollectiveOp::SEND {
            Direction::Send
        } else {
            Direction::Receive
        };
        let peer = call.peer.cast_unsigned();
        let Some(sequence) = self.sequences.next(index, peer, direction) else {
            self.table.count_dropped();
            return None;
        };
        let at = now();
        let begun = self
            .table
            .begin_operation(index, call.op, sequence, bytes, at)?;
        // A flow of no transfers, begun and done: it says who the other is.
        let route = Route {
            channel: 0,
            peer,
            direction,
        };
        if let Some(flow) = self.table.announce_flow(begun, route, 0) {
            self.table.begin_flow(flow, || at);
        }
        Some(begun)
    }
}
