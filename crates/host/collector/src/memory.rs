//! Memory for batches that came and are not analysed yet.

use std::sync::Arc;

use model::Input;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// All of it: some seconds of what a hundred thousand ranks tell.
const ALL_KIB: usize = 512 << 10;
/// What lines pack to is about a fifth of them; what was unpacked takes more than its lines.
const UNPACKED: usize = 16;

/// All the memory that batches may take together.
#[derive(Debug)]
pub(crate) struct MemoryBudget(Arc<Semaphore>);

/// A part of it, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct MemoryPermit(OwnedSemaphorePermit);

impl MemoryBudget {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(ALL_KIB)))
    }

    /// Memory for nothing yet.
    pub(crate) fn none(&self) -> MemoryPermit {
        let none = Arc::clone(&self.0).try_acquire_many_owned(0);
        // A semaphore that is never closed always has nothing to give.
        MemoryPermit(none.expect("nothing is always there"))
    }
}

impl MemoryPermit {
    /// Makes it large enough for so many bytes; whether that much is there.
    pub(crate) fn hold(&mut self, bytes: usize) -> bool {
        let missing = bytes.div_ceil(1 << 10).saturating_sub(self.0.num_permits());
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        Arc::clone(self.0.semaphore())
            .try_acquire_many_owned(missing)
            .map(|more| self.0.merge(more))
            .is_ok()
    }
}

/// Bytes of memory that a batch takes, packed and unpacked.
pub(crate) fn unpacked_bytes(body: &[u8], inputs: &[Input]) -> usize {
    // An estimate for what inputs own beside themselves: counting it would take a walk through all.
    body.len() * UNPACKED + size_of_val(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_taken_once_and_given_back() {
        let budget = MemoryBudget::new();
        let mut one = budget.none();
        assert!(one.hold(1) && one.hold(1 << 20) && one.hold(1 << 20));
        assert_eq!(budget.0.available_permits(), ALL_KIB - (1 << 10));
        assert!(!budget.none().hold(ALL_KIB << 10));
        drop(one);
        assert!(budget.none().hold(ALL_KIB << 10));
    }
}
