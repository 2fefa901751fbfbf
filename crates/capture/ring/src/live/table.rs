//! A live table in mapped memory.
#![expect(
    clippy::cast_ptr_alignment,
    reason = "mappings begin at a page, and the parts of a table at multiples of a line"
)]

use std::slice;

use crate::live::connections::{CONNECTIONS, ConnectionSlot};
use crate::live::layout::{FlowSlot, LiveSize, LiveTableHead, OperationSlot};

/// The parts of a mapped table. All that changes in them is atomic.
#[derive(Clone, Copy)]
pub(crate) struct LiveTableView<'map> {
    pub(crate) head: &'map LiveTableHead,
    operations: &'map [OperationSlot],
    flows: &'map [FlowSlot],
    pub(crate) connections: &'map [ConnectionSlot],
}

impl LiveTableView<'_> {
    /// # Safety
    /// `map` must be the start of a mapping of `size.bytes()` bytes that outlives the result.
    #[inline]
    pub(crate) unsafe fn of(map: *const u8, size: LiveSize) -> Self {
        let operations_at = size_of::<LiveTableHead>();
        let flows_at = operations_at + size.operations() * size_of::<OperationSlot>();
        let connections_at = flows_at + size.flows() * size_of::<FlowSlot>();
        // SAFETY: the caller's promise; every bit pattern is valid for all four, and the
        // parts are multiples of a line long, so each keeps its alignment.
        unsafe {
            let operations = map.add(operations_at).cast::<OperationSlot>();
            let flows = map.add(flows_at).cast::<FlowSlot>();
            let connections = map.add(connections_at).cast::<ConnectionSlot>();
            Self {
                head: &*map.cast::<LiveTableHead>(),
                operations: slice::from_raw_parts(operations, size.operations()),
                flows: slice::from_raw_parts(flows, size.flows()),
                connections: slice::from_raw_parts(connections, CONNECTIONS),
            }
        }
    }
}

impl<'map> LiveTableView<'map> {
    /// The slot of operation `number`; there is one for every number.
    #[inline]
    pub(crate) fn operation(&self, number: u64) -> Option<&'map OperationSlot> {
        self.operations
            .get(number as usize & self.operations.len().wrapping_sub(1))
    }

    /// The slot of flow `number`; there is one for every number.
    #[inline]
    pub(crate) fn flow(&self, number: u64) -> Option<&'map FlowSlot> {
        self.flows
            .get(number as usize & self.flows.len().wrapping_sub(1))
    }
}
