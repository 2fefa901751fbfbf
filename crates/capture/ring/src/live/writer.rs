use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use memmap2::MmapMut;
use model::{CollectiveOp, Direction, RankNs};

use crate::header::StoredIdentity;
use crate::live::connections::{self, ConnectionSlot};
use crate::live::layout::{
    Claimed, CommunicatorSlot, FINALIZED, FlowSlot, LAYOUT, LiveSize, LiveSource, LiveTableHead,
    MAGIC, OPEN, OperationProgress, OperationSlot, STEP_BITS,
};
use crate::live::table::LiveTableView;
use crate::{Identity, RingDirectory, RingError, file};

/// The writing half of a live table, for the training process.
///
/// Any thread may call anything but what one flow has come to, which belongs to one thread
/// at a time. Nothing here blocks, allocates, makes a system call or panics, except for
/// [`Self::create`]. Tokens may be stale or made up: what they no longer stand for is left
/// alone.
#[derive(Debug)]
pub struct LiveWriter {
    map: MmapMut,
    path: PathBuf,
    size: LiveSize,
}

/// Which communicator of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommunicatorIndex(pub u32);

/// Which operation, by the low half of its number. Its slot is part of the number, and what
/// is above tells it from others that had the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationToken(pub u32);

/// Which flow, by the low half of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowToken(pub u32);

/// Where a flow goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The channel of the communicator.
    pub channel: u8,
    /// Rank of the other end in the communicator.
    pub peer: u32,
    /// Which way it goes.
    pub direction: Direction,
}

/// How far a counter of a flow has come. Counters only grow, and never beyond the flow's
/// total: given twice or out of order, they stay what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// So many transfers.
    Count(u32),
    /// All up to the transfer whose number, counted from 0, ends in these [`STEP_BITS`]
    /// bits. It is the one nearest to where the counter stands.
    Step(u16),
}

/// Bytes that went with a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// So many of this transfer.
    More(u64),
    /// So many of all transfers so far.
    Total(u64),
}

impl LiveWriter {
    /// Makes the live table of a process.
    ///
    /// # Errors
    /// [`RingError::Io`] if the file system refuses.
    pub fn create(
        directory: &RingDirectory,
        identity: &Identity,
        size: LiveSize,
        source: LiveSource,
    ) -> Result<Self, RingError> {
        let path = directory.live_path(identity, source);
        let map = file::create(&path, size.bytes(), |map| {
            // SAFETY: the map is larger than a head, page-aligned and zero-filled, for which
            // all fields are valid; `map` is the only access.
            #[expect(clippy::cast_ptr_alignment, reason = "a mapping begins at a page")]
            let head = unsafe { &mut *map.as_mut_ptr().cast::<LiveTableHead>() };
            head.magic = MAGIC;
            head.layout = LAYOUT;
            head.operations = size.operations() as u32;
            head.calls = u64::from(source == LiveSource::Calls);
            head.identity = StoredIdentity::of(identity);
        })?;
        Ok(Self { map, path, size })
    }

    #[inline]
    fn table(&self) -> LiveTableView<'_> {
        // SAFETY: the map was made with room for a table of this size and lives as long as
        // `self`.
        unsafe { LiveTableView::of(self.map.as_ptr(), self.size) }
    }

    /// The table's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where a communicator stands in the table, to which it is added if it is not there.
    /// `None`, counted as dropped, if there is no room.
    pub fn communicator(
        &self,
        hash: u64,
        name: &[u8],
        rank: u32,
        size: u32,
    ) -> Option<CommunicatorIndex> {
        let head = self.table().head;
        let known = head.communicators.iter().position(|slot| {
            slot.state.load(Acquire) == OPEN
                && slot.hash.load(Relaxed) == hash
                && slot.rank.load(Relaxed) == rank
                && slot.size.load(Relaxed) == size
        });
        let at = known.map(|at| at as u32).or_else(|| {
            let at = head.communicators_begun.fetch_add(1, Relaxed);
            let Some(slot) = head.communicators.get(at as usize) else {
                // Not to come round to used slots after four billion attempts.
                head.communicators_begun.fetch_sub(1, Relaxed);
                head.dropped.fetch_add(1, Relaxed);
                return None;
            };
            slot.write(hash, name, rank, size);
            Some(at)
        });
        head.closed.store(0, Relaxed);
        at.map(CommunicatorIndex)
    }

    /// Says that a communicator is finalized: its operations are over, ended or not.
    pub fn finalize(&self, communicator: CommunicatorIndex) {
        let head = self.table().head;
        if let Some(slot) = head.communicators.get(communicator.0 as usize)
            && slot.state.load(Acquire) == OPEN
        {
            slot.state.store(FINALIZED, Release);
        }
        if head
            .communicators
            .iter()
            .all(|slot| slot.state.load(Acquire) != OPEN)
        {
            head.closed.store(1, Release);
        }
    }

    /// Begins an operation, over the oldest; `None`, counted as dropped, if its communicator
    /// is not open or another thread stands still in the middle of doing so.
    pub fn begin_operation(
        &self,
        communicator: CommunicatorIndex,
        op: CollectiveOp,
        sequence: u64,
        bytes: u64,
        at: RankNs,
    ) -> Option<OperationToken> {
        let table = self.table();
        let of = table.head.communicators.get(communicator.0 as usize);
        if of.is_none_or(|of| of.state.load(Acquire) != OPEN) {
            self.count_dropped();
            return None;
        }
        let number = table.head.operations_begun.0.fetch_add(1, Relaxed);
        let slot = table.operation(number)?;
        let Some(claimed) = slot.stamp.claim(number) else {
            self.count_dropped();
            return None;
        };
        if let Claimed::Overwriting = claimed
            && !OperationProgress(slot.progress.load(Relaxed)).is_complete()
        {
            self.count_dropped();
        }
        // Its flows are announced after it: readers look for them from here on.
        let first_flow = table.head.flows_begun.0.load(Relaxed);
        slot.what
            .store(u64::from(communicator.0) | u64::from(op.0) << 32, Relaxed);
        slot.sequence.store(sequence, Relaxed);
        slot.bytes.store(bytes, Relaxed);
        slot.begun_at.store(at.0, Relaxed);
        slot.ended_at.store(at.0, Relaxed);
        slot.first_flow.store(first_flow, Relaxed);
        slot.progress.store(0, Relaxed);
        slot.stamp.publish(number);
        Some(OperationToken(number as u32))
    }

    /// Says that an operation is enqueued: nothing more of it will be announced by the
    /// thread that called for it, though the network may still begin flows.
    pub fn enqueued(&self, operation: OperationToken, at: RankNs) {
        if let Some((slot, _)) = self.operation(operation)
            && !OperationProgress(slot.progress.load(Relaxed)).is_enqueued()
        {
            // The time may be that of a coarser clock: an operation must not end before it begins.
            slot.ended_at.fetch_max(at.0, Relaxed);
            slot.progress.fetch_or(OperationProgress::ENQUEUED, Release);
        }
    }

    /// Announces a flow, over the oldest. It is not shown to readers before it begins: some
    /// never do. `None` if the operation is gone.
    pub fn announce_flow(
        &self,
        operation: OperationToken,
        route: Route,
        total: u32,
    ) -> Option<FlowToken> {
        let Some((of, operation)) = self.operation(operation) else {
            self.count_dropped();
            return None;
        };
        let table = self.table();
        // Connections count what is given to the network, which only the sender does.
        let place = if route.direction == Direction::Send && total > 0 {
            let communicator = of.what.load(Relaxed) as u32;
            connections::place(table.connections, communicator, route.channel, route.peer)
        } else {
            None
        };
        let number = table.head.flows_begun.0.fetch_add(1, Relaxed);
        let slot = table.flow(number)?;
        let Some(claimed) = slot.stamp.claim(number) else {
            self.count_dropped();
            return None;
        };
        let unfinished =
            slot.begun_at.load(Relaxed) != 0 && slot.done.load(Relaxed) < slot.total.load(Relaxed);
        if let Claimed::Overwriting = claimed
            && unfinished
        {
            self.count_dropped();
            // Nobody will tell when what it has in flight comes back.
            if let Some(connection) = self.connection_of(slot) {
                let at = RankNs(slot.moved_at.load(Relaxed));
                let transmitted = slot.transmitted.load(Relaxed);
                let in_flight = transmitted.saturating_sub(slot.done.load(Relaxed));
                connection.complete(in_flight, at);
            }
        }
        let receives = u64::from(route.direction == Direction::Receive);
        let words = u64::from(route.peer)
            | u64::from(route.channel) << 32
            | receives << 40
            | place.map_or(0, |place| u64::from(place) + 1) << 48;
        slot.operation.store(operation, Relaxed);
        slot.route.store(words, Relaxed);
        slot.total.store(total, Relaxed);
        for counter in [&slot.ready, &slot.transmitted, &slot.done] {
            counter.store(0, Relaxed);
        }
        for word in [&slot.bytes, &slot.begun_at, &slot.moved_at] {
            word.store(0, Relaxed);
        }
        slot.stamp.publish(number);
        Some(FlowToken(number as u32))
    }

    /// Begins a flow, if it has not begun. So does whatever it reaches.
    #[inline]
    pub fn begin_flow(&self, flow: FlowToken, now: impl FnOnce() -> RankNs) {
        if let Some(slot) = self.flow(flow)
            && slot.begun_at.load(Relaxed) == 0
        {
            self.begin(slot, now());
        }
    }

    /// Says up to where transfers are ready (sending) or asked for (receiving). The flow
    /// counts from the first, for which `now` gets `true`: others need no exact time.
    #[inline]
    pub fn ready(&self, flow: FlowToken, reached: Reached, now: impl FnOnce(bool) -> RankNs) {
        if let Some(slot) = self.flow(flow)
            && let Some(count) = slot.exceeds(&slot.ready, reached)
        {
            self.moved(slot, now(slot.ready.load(Relaxed) == 0));
            slot.ready.store(count, Release);
        }
    }

    /// Says up to where transfers were given to the network (sending) or arrived.
    #[inline]
    pub fn transmitted(
        &self,
        flow: FlowToken,
        reached: Reached,
        bytes: Bytes,
        now: impl FnOnce() -> RankNs,
    ) {
        if let Some(slot) = self.flow(flow)
            && let Some(count) = slot.exceeds(&slot.transmitted, reached)
        {
            let at = now();
            self.moved(slot, at);
            let before = slot.bytes.load(Relaxed);
            let so_far = match bytes {
                Bytes::More(bytes) => before.wrapping_add(bytes),
                Bytes::Total(bytes) => bytes.max(before),
            };
            slot.bytes.store(so_far, Relaxed);
            FlowSlot::catch_up(&slot.ready, count);
            if let Some(connection) = self.connection_of(slot) {
                // Another thread may have taken the slot for a flow of its own meanwhile.
                let transfers = count.saturating_sub(slot.transmitted.load(Relaxed));
                connection.post(transfers, so_far.wrapping_sub(before), at);
            }
            slot.transmitted.store(count, Release);
        }
    }

    /// Says up to where transfers were acknowledged (sending) or taken by the GPU. Once all
    /// are, the flow is done.
    #[inline]
    pub fn done(&self, flow: FlowToken, reached: Reached, now: impl FnOnce() -> RankNs) {
        if let Some(slot) = self.flow(flow)
            && let Some(count) = slot.exceeds(&slot.done, reached)
        {
            let at = now();
            self.moved(slot, at);
            FlowSlot::catch_up(&slot.ready, count);
            if let Some(connection) = self.connection_of(slot) {
                let unposted = count.saturating_sub(slot.transmitted.load(Relaxed));
                if unposted > 0 {
                    connection.post(unposted, 0, at);
                }
                let transfers = count.saturating_sub(slot.done.load(Relaxed));
                connection.complete(transfers, at);
            }
            // Before `done`: a reader must not see more of it done than transmitted.
            FlowSlot::catch_up(&slot.transmitted, count);
            slot.done.store(count, Release);
            if count == slot.total.load(Relaxed) {
                self.finish(slot, at);
            }
        }
    }

    /// Counts a flow that this process runs for another.
    pub fn count_foreign(&self) {
        self.table().head.foreign.fetch_add(1, Relaxed);
    }

    /// Counts something that found no room.
    pub fn count_dropped(&self) {
        self.table().head.dropped.fetch_add(1, Relaxed);
    }

    /// Counts a fault of the plugin.
    pub fn count_fault(&self) {
        self.table().head.faults.fetch_add(1, Relaxed);
    }

    #[inline]
    fn operation(&self, token: OperationToken) -> Option<(&OperationSlot, u64)> {
        let slot = self.table().operation(token.0.into())?;
        let number = slot.stamp.number()?;
        (number as u32 == token.0).then_some((slot, number))
    }

    #[inline]
    fn flow(&self, token: FlowToken) -> Option<&FlowSlot> {
        let slot = self.table().flow(token.0.into())?;
        let number = slot.stamp.number()?;
        (number as u32 == token.0).then_some(slot)
    }

    /// The operation of a flow, if its slot has not been given to another.
    #[inline]
    fn operation_of(&self, flow: &FlowSlot) -> Option<&OperationSlot> {
        let number = flow.operation.load(Relaxed);
        let slot = self.table().operation(number)?;
        (slot.stamp.number() == Some(number)).then_some(slot)
    }

    /// The connection of a flow, if it has one.
    #[inline]
    fn connection_of(&self, flow: &FlowSlot) -> Option<&ConnectionSlot> {
        let place = (flow.route.load(Relaxed) >> 48) as usize;
        self.table().connections.get(place.checked_sub(1)?)
    }

    fn begin(&self, flow: &FlowSlot, at: RankNs) {
        // Counted first: else the operation would look complete while this flow runs.
        if let Some(operation) = self.operation_of(flow) {
            operation
                .progress
                .fetch_add(OperationProgress::BEGUN, Relaxed);
        }
        flow.moved_at.store(at.0, Relaxed);
        // 0 stands for not begun.
        flow.begun_at.store(at.0.max(1), Release);
        // Without transfers nothing will ever be done: the flow ends as it begins.
        if flow.total.load(Relaxed) == 0 {
            self.finish(flow, at);
        }
    }

    /// Keeps the time of a movement, which may be that of a coarser clock than the one
    /// before.
    #[inline]
    fn moved(&self, flow: &FlowSlot, at: RankNs) {
        if flow.begun_at.load(Relaxed) == 0 {
            self.begin(flow, at);
            return;
        }
        // The proxy may have had it for long before the GPU got to it.
        if flow.ready.load(Relaxed) == 0 && flow.sends() {
            flow.begun_at.store(at.0.max(1), Relaxed);
        }
        if at.0 > flow.moved_at.load(Relaxed) {
            flow.moved_at.store(at.0, Relaxed);
        }
    }

    fn finish(&self, flow: &FlowSlot, at: RankNs) {
        if let Some(operation) = self.operation_of(flow) {
            operation.ended_at.fetch_max(at.0, Relaxed);
            operation
                .progress
                .fetch_add(OperationProgress::DONE, Release);
        }
    }
}

impl FlowSlot {
    #[inline]
    fn sends(&self) -> bool {
        self.route.load(Relaxed) >> 40 & 1 == 0
    }

    /// The count `reached` stands for, if it is more than `counter` has.
    #[inline]
    fn exceeds(&self, counter: &AtomicU32, reached: Reached) -> Option<u32> {
        let has = counter.load(Relaxed);
        let count = match reached {
            Reached::Count(count) => count.min(self.total.load(Relaxed)),
            Reached::Step(step) => {
                // The distance from where the counter stands, in STEP_BITS bits with a sign.
                let unused = u32::BITS - STEP_BITS;
                let ahead = (u32::from(step).wrapping_sub(has) << unused).cast_signed() >> unused;
                let step = has.checked_add_signed(ahead)?;
                (step < self.total.load(Relaxed)).then_some(step + 1)?
            }
        };
        (count > has).then_some(count)
    }

    /// Moves a counter that a later one has overtaken: what it counts was not reported.
    #[inline]
    fn catch_up(counter: &AtomicU32, count: u32) {
        if counter.load(Relaxed) < count {
            counter.store(count, Release);
        }
    }
}

impl CommunicatorSlot {
    fn write(&self, hash: u64, name: &[u8], rank: u32, size: u32) {
        self.hash.store(hash, Relaxed);
        self.rank.store(rank, Relaxed);
        self.size.store(size, Relaxed);
        let mut bytes = 0;
        for (word, chunk) in self.name.iter().zip(name.chunks(8)) {
            let mut padded = [0; 8];
            for (into, byte) in padded.iter_mut().zip(chunk) {
                *into = *byte;
            }
            word.store(u64::from_ne_bytes(padded), Relaxed);
            bytes += chunk.len() as u32;
        }
        self.name_bytes.store(bytes, Relaxed);
        // Last: a reader that sees it open sees what it is, too.
        self.state.store(OPEN, Release);
    }
}
