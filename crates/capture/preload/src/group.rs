//! What a thread has called for inside the group it has open.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;

use ring::OperationToken;

/// Runs of calls of one group that are remembered: a run ends where another thread calls
/// for something in between. What is beyond counts as enqueued at once.
const RUNS: usize = 32;
/// Communicators of one group that are remembered: the GPUs of a host.
const MADE: usize = 16;

thread_local! {
    /// Small, as it is part of every thread's stack, and without a destructor.
    static GROUP: CallGroup = const { CallGroup::new() };
}

struct CallGroup {
    depth: Cell<u32>,
    /// First and last operation of each run.
    runs: [Cell<(u32, u32)>; RUNS],
    running: Cell<usize>,
    made: [Cell<NewCommunicator>; MADE],
    making: Cell<usize>,
}

/// A communicator that is there once the group has ended.
#[derive(Clone, Copy)]
pub(crate) struct NewCommunicator {
    /// Where NCCL puts its address.
    pub(crate) at: *const *mut c_void,
    pub(crate) hash: u64,
    /// `None` if NCCL must be asked.
    pub(crate) place: Option<CommunicatorPlace>,
    /// Where the call came from.
    pub(crate) caller: usize,
}

/// A rank's place in a communicator.
#[derive(Clone, Copy)]
pub(crate) struct CommunicatorPlace {
    pub(crate) rank: c_int,
    pub(crate) size: c_int,
}

impl CallGroup {
    const fn new() -> Self {
        const NONE: NewCommunicator = NewCommunicator {
            at: ptr::null(),
            hash: 0,
            place: None,
            caller: 0,
        };
        Self {
            depth: Cell::new(0),
            runs: [const { Cell::new((0, 0)) }; RUNS],
            running: Cell::new(0),
            made: [const { Cell::new(NONE) }; MADE],
            making: Cell::new(0),
        }
    }
}

/// Opens a group, or one inside it.
pub(crate) fn begin() {
    GROUP.with(|group| group.depth.set(group.depth.get().saturating_add(1)));
}

/// Closes the innermost group. After the outermost, what was called for in it is enqueued.
pub(crate) fn end(enqueued: impl Fn(OperationToken), made: impl Fn(NewCommunicator)) {
    GROUP.with(|group| {
        // NCCL refuses an end without a beginning, and is called all the same: none is open then.
        let depth = group.depth.get().saturating_sub(1);
        group.depth.set(depth);
        if depth > 0 {
            return;
        }
        for cell in group.made.iter().take(group.making.replace(0)) {
            made(cell.get());
        }
        for run in group.runs.iter().take(group.running.replace(0)) {
            let (first, last) = run.get();
            // Numbers of operations wrap around within a run: its last one may be below its first.
            for number in 0..=last.wrapping_sub(first) {
                enqueued(OperationToken(first.wrapping_add(number)));
            }
        }
    });
}

/// Keeps a call for the end of the group; false if none is open, or there is no room.
#[inline]
pub(crate) fn keep(operation: OperationToken) -> bool {
    GROUP.with(|group| {
        if group.depth.get() == 0 {
            return false;
        }
        let running = group.running.get();
        let last = running.checked_sub(1).and_then(|at| group.runs.get(at));
        if let Some(run) = last
            && run.get().1.wrapping_add(1) == operation.0
        {
            run.set((run.get().0, operation.0));
            return true;
        }
        let Some(run) = group.runs.get(running) else {
            return false;
        };
        run.set((operation.0, operation.0));
        group.running.set(running + 1);
        true
    })
}

/// The same of a communicator.
pub(crate) fn keep_made(made: NewCommunicator) -> bool {
    GROUP.with(|group| {
        let making = group.making.get();
        let cell = group.made.get(making).filter(|_| group.depth.get() > 0);
        cell.is_some_and(|cell| {
            cell.set(made);
            group.making.set(making + 1);
            true
        })
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn ended() -> Vec<u32> {
        let enqueued = RefCell::new(Vec::new());
        end(|operation| enqueued.borrow_mut().push(operation.0), |_| ());
        enqueued.into_inner()
    }

    #[test]
    fn what_is_called_for_in_a_group_is_enqueued_when_the_outermost_ends() {
        assert!(!keep(OperationToken(1)), "no group");
        begin();
        begin();
        let calls = [u32::MAX - 1, u32::MAX, 0, 7, 8, 3];
        assert!(calls.iter().all(|call| keep(OperationToken(*call))));
        assert!(ended().is_empty());
        assert_eq!(ended(), calls);
        assert!(ended().is_empty(), "an end too many");
    }

    #[test]
    fn runs_beyond_the_room_are_refused() {
        begin();
        let kept = (0..100)
            .filter(|call| keep(OperationToken(call * 2)))
            .count();
        assert_eq!((kept, ended().len()), (RUNS, RUNS));
    }
}
