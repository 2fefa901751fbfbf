//! What the calls of NCCL change in the live table.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use model::RankNs;
use probe::{Records, Sequences, coarse, now};
use ring::{Bytes, CommunicatorIndex, LiveSource, LiveWriter, Reached, Route};

use crate::abi::{EventHead, Named, NcclEvent, OperationArgs, StepArgs, Work, state, text};
use crate::token::{Salt, Token};

/// The one recorder of a process.
#[derive(Debug)]
pub(crate) struct Recorder {
    table: LiveWriter,
    sequences: Sequences,
    salt: Salt,
    pid: libc::pid_t,
}

/// A communicator as `init` tells of it.
pub(crate) struct Introduced {
    pub(crate) hash: u64,
    pub(crate) name: *const c_char,
    pub(crate) rank: c_int,
    pub(crate) size: c_int,
}

impl Records for Recorder {
    fn count_fault(&self) {
        self.table.count_fault();
    }
}

/// The time at which a transfer is ready: exact for the first, from which a flow counts.
#[inline]
fn of_ready(is_first: bool) -> RankNs {
    if is_first { now() } else { coarse() }
}

impl Recorder {
    /// The recorder the environment asks for, if any.
    pub(crate) fn start() -> Option<Self> {
        probe::live_table(LiveSource::Plugin).map(Self::of)
    }

    /// A recorder into this table.
    pub(crate) fn of(table: LiveWriter) -> Self {
        let pid = std::process::id().cast_signed();
        Self {
            table,
            sequences: Sequences::new(),
            salt: Salt::new(),
            pid,
        }
    }

    /// The context of a communicator.
    ///
    /// # Safety
    /// Its name must be null or a text that ends in zero.
    pub(crate) unsafe fn init(&self, introduced: Option<&Introduced>) -> *mut c_void {
        let index = introduced.and_then(|communicator| {
            let rank = communicator.rank.cast_unsigned();
            let size = communicator.size.cast_unsigned();
            // SAFETY: the caller's promise.
            let name = unsafe { text(communicator.name) };
            self.table.communicator(communicator.hash, name, rank, size)
        });
        self.salt
            .pack(index.map_or(Token::Nameless, Token::Communicator))
    }

    /// Ends a communicator; a context that is not of this process, or none, changes nothing.
    pub(crate) fn finalize(&self, context: *const c_void) {
        if let Some(Token::Communicator(index)) = self.salt.unpack(context) {
            self.table.finalize(index);
        }
    }

    /// The handle of an event, null if it is not followed.
    ///
    /// # Safety
    /// Texts of the event must end in zero.
    #[inline]
    pub(crate) unsafe fn start_event(
        &self,
        context: *const c_void,
        head: EventHead,
        event: NcclEvent,
    ) -> *mut c_void {
        let token = match event {
            NcclEvent::ProxyStep { step } => self.step(head.parent, step),
            NcclEvent::ProxyOp { pid, route, total } => {
                self.proxy_op(head.parent, pid, route, total)
            }
            // SAFETY: the caller's promise.
            NcclEvent::Collective { of, sequence, work } => unsafe {
                self.communicator(context, head.rank, of)
                    .and_then(|index| self.begin(index, sequence, work))
            },
            NcclEvent::PointToPoint {
                of,
                peer,
                direction,
                work,
            } => {
                // SAFETY: the caller's promise.
                let index = unsafe { self.communicator(context, head.rank, of) };
                index.and_then(|index| {
                    let sequence = self.sequences.next(index, peer, direction);
                    if sequence.is_none() {
                        self.table.count_dropped();
                    }
                    self.begin(index, sequence?, work)
                })
            }
            NcclEvent::Other => None,
        };
        token.map_or(ptr::null_mut(), |token| self.salt.pack(token))
    }

    /// Enqueued operations are stopped, and so are steps whose bytes have left or arrived.
    /// That a proxy operation is stopped says nothing: NCCL does so for several at once,
    /// when the last of them is done.
    #[inline]
    pub(crate) fn stop_event(&self, handle: *const c_void) {
        match self.salt.unpack(handle) {
            Some(Token::Step(flow, step)) => {
                self.table.done(flow, Reached::Step(step), now);
            }
            Some(Token::Operation(operation)) => self.table.enqueued(operation, now()),
            _ => {}
        }
    }

    /// A state since version 4: what steps go through, and that an operation is worked on.
    ///
    /// # Safety
    /// If the state is one of a step, `args` must be null or point to its arguments.
    #[inline]
    pub(crate) unsafe fn step_state(
        &self,
        handle: *const c_void,
        state: c_int,
        args: *const StepArgs,
    ) {
        match self.salt.unpack(handle) {
            Some(Token::Step(flow, step)) => {
                let step = Reached::Step(step);
                match state {
                    state::SEND_GPU_WAIT => self.table.begin_flow(flow, coarse),
                    state::SEND_PEER_WAIT | state::RECV_WAIT => {
                        // NCCL repeats these states at every poll: a coarse clock costs a quarter.
                        self.table.ready(flow, step, of_ready);
                    }
                    state::SEND_WAIT | state::RECV_FLUSH_WAIT => {
                        // SAFETY: the caller's promise; only these two states say a size.
                        let bytes = unsafe { args.as_ref() }.map_or(0, |args| args.bytes);
                        let bytes = Bytes::More(bytes as u64);
                        self.table.transmitted(flow, step, bytes, now);
                    }
                    _ => {}
                }
            }
            Some(Token::Flow(flow)) if state == state::IN_PROGRESS => {
                self.table.begin_flow(flow, now);
            }
            _ => {}
        }
    }

    /// A state before version 4: what a proxy operation has come to.
    ///
    /// # Safety
    /// If the state is one of an operation, `args` must be null or point to its arguments.
    pub(crate) unsafe fn operation_state(
        &self,
        handle: *const c_void,
        state: c_int,
        args: *const OperationArgs,
    ) {
        let Some(Token::Flow(flow)) = self.salt.unpack(handle) else {
            return;
        };
        if !(state::SEND_POSTED..=state::RECV_DONE).contains(&state) {
            return;
        }
        // SAFETY: the caller's promise.
        let (steps, bytes) =
            unsafe { args.as_ref() }.map_or((0, 0), |args| (args.steps, args.bytes));
        let reached = Reached::Count(u32::try_from(steps).unwrap_or(0));
        match state {
            state::SEND_REM_FIFO_WAIT | state::RECV_POSTED => {
                self.table.ready(flow, reached, of_ready);
            }
            state::SEND_TRANSMITTED | state::RECV_RECEIVED => {
                let bytes = Bytes::Total(bytes as u64);
                self.table.transmitted(flow, reached, bytes, now);
            }
            state::SEND_DONE | state::RECV_DONE => self.table.done(flow, reached, now),
            _ => {}
        }
        // Any of them says that it is worked on, also one that moves nothing.
        self.table.begin_flow(flow, coarse);
    }

    /// The communicator of an operation, from its context or from what came with it.
    ///
    /// # Safety
    /// Its name must be null or a text that ends in zero.
    unsafe fn communicator(
        &self,
        context: *const c_void,
        rank: c_int,
        of: Option<Named>,
    ) -> Option<CommunicatorIndex> {
        let index = match (self.salt.unpack(context), of) {
            (Some(Token::Communicator(index)), None) => Some(index),
            (Some(Token::Nameless), Some(Named { hash, name })) => {
                // SAFETY: the caller's promise.
                let name = unsafe { text(name) };
                // 0: before version 4 NCCL does not say how many ranks there are.
                return self.table.communicator(hash, name, rank.cast_unsigned(), 0);
            }
            _ => None,
        };
        if index.is_none() {
            self.table.count_dropped();
        }
        index
    }

    fn begin(&self, of: CommunicatorIndex, sequence: u64, work: Work) -> Option<Token> {
        let begun = self
            .table
            .begin_operation(of, work.op, sequence, work.bytes, now());
        begun.map(Token::Operation)
    }

    fn proxy_op(
        &self,
        parent: *const c_void,
        pid: libc::pid_t,
        route: Route,
        total: u32,
    ) -> Option<Token> {
        // With PXN a proxy works for other processes, whose handles mean nothing here.
        if pid != self.pid {
            self.table.count_foreign();
            return None;
        }
        let Token::Operation(operation) = self.salt.unpack(parent)? else {
            return None;
        };
        self.table
            .announce_flow(operation, route, total)
            .map(Token::Flow)
    }

    /// A step counts when it comes to something: NCCL begins those of receives again and
    /// again while it cannot post them.
    #[inline]
    fn step(&self, parent: *const c_void, step: u32) -> Option<Token> {
        let Token::Flow(flow) = self.salt.unpack(parent)? else {
            return None;
        };
        // A token keeps the last bits of the number; the table takes the nearest transfer that has
        // them.
        Some(Token::Step(flow, step as u16))
    }
}
