use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use memmap2::Mmap;
use model::{CollectiveOp, Communicator, Direction, Flow, Operation, RankNs};

use crate::live::connections::Sent;
use crate::live::layout::{
    CommunicatorSlot, FINALIZED, LAYOUT, LiveSize, LiveSource, LiveTableHead, MAGIC, OPEN,
    OperationProgress,
};
use crate::live::table::LiveTableView;
use crate::{Identity, RingError, file};

/// How long an operation must have been complete before it counts as ended: the network
/// hears of it after the call has returned, so one that has just been enqueued may look as
/// if it needed no network. Idle threads are woken within microseconds; taste.
const SETTLES_IN_NS: u64 = 20_000_000;

/// The reading half of a live table. Any number of readers may read one; none disturbs the
/// writer.
#[derive(Debug)]
pub struct LiveReader {
    map: Mmap,
    path: PathBuf,
    size: LiveSize,
    identity: Identity,
    /// Operations before this one have left the table.
    oldest: u64,
    /// For each slot the number, plus 1, of the last operation in it that was reported as ended.
    reported: Vec<u64>,
    source: LiveSource,
    /// The last of each lane of which only the call was seen, unless a later one's end was.
    returned: BTreeMap<LiveLane, (u64, Option<Operation>)>,
}

/// What runs one after the other: the collectives of a communicator, by its index, or what it
/// sends to a peer or receives from one.
type LiveLane = (u32, Option<(u32, Direction)>);

/// What a reader finds in a live table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveState {
    /// What the process is in, oldest first.
    ///
    /// An operation that was reported as ended stands here again while a flow it began later
    /// runs; it is not reported as ended again. If the last of a lane went over no network, nobody
    /// sees its end: it stands here on, as one that may have ended.
    pub in_progress: Vec<Operation>,
    /// What ended, or may have, and was not reported before, in the order it was begun.
    pub ended: Vec<Operation>,
    /// Operations that left the table since the last look and were never reported as ended.
    pub lost: u64,
}

/// An operation as its slot has it.
struct OperationView {
    number: u64,
    /// Index of its communicator.
    communicator: u32,
    first_flow: u64,
    progress: OperationProgress,
    /// When it last seemed to end.
    ended_at: RankNs,
    operation: Operation,
}

/// A flow as its slot has it; its `begun_at` is 0 if it is only announced.
struct FlowView {
    operation: u64,
    flow: Flow,
}

fn foreign(path: &Path) -> RingError {
    RingError::NotALiveTable {
        path: path.to_owned(),
    }
}

/// The hash of a communicator that is open.
fn open_hash(head: &LiveTableHead, index: u32) -> Option<u64> {
    let slot = head.communicators.get(index as usize)?;
    (slot.state.load(Acquire) == OPEN).then(|| slot.hash.load(Relaxed))
}

impl LiveReader {
    /// Opens a live table.
    ///
    /// # Errors
    /// [`RingError::NotALiveTable`] and [`RingError::Layout`] for foreign files,
    /// [`RingError::Io`] if the file cannot be mapped.
    pub fn open(path: &Path) -> Result<Self, RingError> {
        let map = file::open(path)?;
        if map.len() < size_of::<LiveTableHead>() || !map.starts_with(&MAGIC) {
            return Err(foreign(path));
        }
        // SAFETY: the map is longer than a head and page-aligned; any bytes are valid.
        #[expect(clippy::cast_ptr_alignment, reason = "a mapping begins at a page")]
        let head = unsafe { &*map.as_ptr().cast::<LiveTableHead>() };
        if head.layout != LAYOUT {
            let (path, found) = (path.to_owned(), head.layout);
            return Err(RingError::Layout {
                path,
                found,
                supported: LAYOUT,
            });
        }
        let size = LiveSize::new(head.operations as usize).ok();
        let size = size
            .filter(|size| size.bytes() <= map.len())
            .ok_or_else(|| foreign(path))?;
        let identity = head.identity.read();
        let source = if head.calls == 1 {
            LiveSource::Calls
        } else {
            LiveSource::Plugin
        };
        let (reported, returned) = (vec![0; size.operations()], BTreeMap::new());
        let path = path.to_owned();
        Ok(Self {
            map,
            path,
            size,
            identity,
            oldest: 0,
            reported,
            source,
            returned,
        })
    }

    fn table(&self) -> LiveTableView<'_> {
        // SAFETY: `open` checked that the map is large enough; it lives as long as `self`.
        unsafe { LiveTableView::of(self.map.as_ptr(), self.size) }
    }

    /// Who writes the table.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Who fills the table.
    pub fn source(&self) -> LiveSource {
        self.source
    }

    /// The table's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the process has finalized all its communicators.
    pub fn is_closed(&self) -> bool {
        self.table().head.closed.load(Acquire) == 1
    }

    /// Faults of the plugin in the process; after the first it writes no more.
    pub fn faults(&self) -> u64 {
        self.table().head.faults.load(Relaxed)
    }

    /// Communicators, operations and flows that found no room or were overwritten while they
    /// were in progress.
    pub fn dropped(&self) -> u64 {
        self.table().head.dropped.load(Relaxed)
    }

    /// Flows the process runs for others, which are not in its table.
    pub fn foreign(&self) -> u64 {
        self.table().head.foreign.load(Relaxed)
    }

    /// The communicators the process has or had. A size of 0 is unknown.
    pub fn communicators(&self) -> Vec<Communicator> {
        self.table()
            .head
            .communicators
            .iter()
            .filter_map(CommunicatorSlot::read)
            .collect()
    }

    /// What was sent to whom by `now`, over all operations of communicators that are open.
    pub fn sent(&self, now: RankNs) -> Vec<Sent> {
        let table = self.table();
        table
            .connections
            .iter()
            .filter_map(|slot| slot.read(now, |index| open_hash(table.head, index)))
            .collect()
    }

    /// Looks at what the process is in at `now`, and at what has ended since the last look.
    ///
    /// # Invariants
    /// In every flow `done <= transmitted <= ready <= total`; every operation is reported as
    /// ended once, or counted as lost, unless its communicator was finalized under it.
    pub fn read(&mut self, now: RankNs) -> LiveState {
        let begun = self.table().head.operations_begun.0.load(Acquire);
        let lost = self.leave_behind(begun.saturating_sub(self.reported.len() as u64));
        let numbers = self.oldest..begun;
        let views = numbers
            .filter_map(|number| self.look_at(number))
            .collect::<Vec<_>>();
        let flows = self.flows_of(&views);
        let waiting = waiting(&views, &flows, now);
        let mut state = LiveState {
            lost,
            ..LiveState::default()
        };
        let mut inside = BTreeSet::new();
        for (view, flows) in views.into_iter().zip(flows) {
            let OperationView {
                number,
                communicator,
                progress,
                ended_at,
                ..
            } = view;
            let mut operation = view.operation;
            operation.flows = flows;
            operation.flows.retain(|flow| flow.begun_at.0 != 0);
            operation
                .flows
                .sort_by_key(|flow| (flow.channel, flow.peer, flow.direction));
            if !progress.is_complete() || waiting.contains(&number) {
                inside.insert(lane(communicator, &operation));
                state.in_progress.push(operation);
            } else if has_settled(ended_at, now) && self.is_unchanged(number, progress) {
                operation.ended_at = Some(ended_at);
                operation.may_have_ended = operation.flows.iter().all(|flow| flow.total == 0);
                self.tell(number);
                self.keep(lane(communicator, &operation), number, &operation);
                state.ended.push(operation);
            }
        }
        self.add_returned(&inside, &mut state.in_progress);
        state
    }

    /// Takes note of the last of a lane; of a send or receive without flows it is not known
    /// which lane that is.
    fn keep(&mut self, lane: LiveLane, number: u64, operation: &Operation) {
        let before = self.returned.get(&lane).map(|(before, _)| *before);
        let of_lane = !operation.op.is_point_to_point() || lane.1.is_some();
        if before < Some(number) && of_lane {
            let unseen = operation.may_have_ended.then(|| operation.clone());
            self.returned.insert(lane, (number, unseen));
        }
    }

    /// Adds the last call of each lane that is not inside another: nobody sees when it ends.
    fn add_returned(&mut self, inside: &BTreeSet<LiveLane>, in_progress: &mut Vec<Operation>) {
        let Self {
            map,
            size,
            returned,
            ..
        } = self;
        // SAFETY: as in `table`.
        let communicators = &unsafe { LiveTableView::of(map.as_ptr(), *size) }
            .head
            .communicators;
        returned.retain(|(index, _), _| {
            let slot = communicators.get(*index as usize);
            slot.is_some_and(|slot| slot.state.load(Acquire) == OPEN)
        });
        let last = returned.iter().filter(|(lane, _)| !inside.contains(*lane));
        let last = last.filter_map(|(_, (number, last))| Some((number, last.as_ref()?)));
        let mut last: Vec<_> = last.collect();
        last.sort_by_key(|(number, _)| *number);
        in_progress.extend(last.into_iter().map(|(_, operation)| Operation {
            ended_at: None,
            ..operation.clone()
        }));
    }

    /// Gives up the operations before `oldest`; returns how many of them were not reported.
    fn leave_behind(&mut self, oldest: u64) -> u64 {
        let slots = self.reported.len() as u64;
        let leaving = oldest.saturating_sub(self.oldest);
        // Those beyond a lap were never seen.
        let unseen = leaving.saturating_sub(slots);
        let seen = self.oldest..oldest.min(self.oldest.saturating_add(slots));
        let lost = seen.filter(|number| !self.was_reported(*number)).count() as u64;
        self.oldest = self.oldest.max(oldest);
        lost.saturating_add(unseen)
    }

    fn slot_of(&self, number: u64) -> usize {
        number as usize & self.reported.len().wrapping_sub(1)
    }

    fn was_reported(&self, number: u64) -> bool {
        self.reported.get(self.slot_of(number)) == Some(&number.wrapping_add(1))
    }

    fn tell(&mut self, number: u64) {
        let slot = self.slot_of(number);
        if let Some(reported) = self.reported.get_mut(slot) {
            *reported = number.wrapping_add(1);
        }
    }

    fn is_unchanged(&self, number: u64, progress: OperationProgress) -> bool {
        // A flow may have begun since the operation was looked at.
        self.table().operation(number).is_some_and(|slot| {
            slot.progress.load(Acquire) == progress.0 && slot.stamp.still_has(number)
        })
    }

    /// An operation, unless it is gone or there is nothing more to tell of it.
    fn look_at(&mut self, number: u64) -> Option<OperationView> {
        let table = self.table();
        let slot = table.operation(number)?;
        if slot.stamp.number() != Some(number) {
            return None;
        }
        let progress = OperationProgress(slot.progress.load(Acquire));
        let is_reported = self.was_reported(number);
        if is_reported && progress.is_complete() {
            return None;
        }
        let what = slot.what.load(Relaxed);
        let communicator = table.head.communicators.get(what as u32 as usize)?;
        let state = communicator.state.load(Acquire);
        let operation = Operation {
            communicator: communicator.hash.load(Relaxed),
            op: CollectiveOp((what >> 32) as u16),
            sequence: slot.sequence.load(Relaxed),
            bytes: slot.bytes.load(Relaxed),
            begun_at: RankNs(slot.begun_at.load(Relaxed)),
            ended_at: None,
            may_have_ended: false,
            flows: Vec::new(),
        };
        let ended_at = RankNs(slot.ended_at.load(Relaxed));
        let first_flow = slot.first_flow.load(Relaxed);
        if !slot.stamp.still_has(number) || !matches!(state, OPEN | FINALIZED) {
            return None;
        }
        if state == FINALIZED && !progress.is_complete() {
            // Aborted: nobody waits in it any more, and it never ends.
            self.tell(number);
            return None;
        }
        let communicator = what as u32;
        Some(OperationView {
            number,
            communicator,
            first_flow,
            progress,
            ended_at,
            operation,
        })
    }

    /// The flows of each of these operations, in the order they were announced.
    fn flows_of(&self, views: &[OperationView]) -> Vec<Vec<Flow>> {
        let mut flows = vec![Vec::new(); views.len()];
        let table = self.table();
        let begun = table.head.flows_begun.0.load(Acquire);
        let first = views
            .iter()
            .map(|view| view.first_flow)
            .min()
            .unwrap_or(begun);
        // Flows before these have left the table.
        let first = first.max(begun.saturating_sub(self.size.flows() as u64));
        for number in first..begun {
            let Some(FlowView { operation, flow }) = flow(table, number) else {
                continue;
            };
            let Ok(at) = views.binary_search_by_key(&operation, |view| view.number) else {
                continue;
            };
            let is_later = views.get(at).is_some_and(|view| view.first_flow <= number);
            if let Some(flows) = flows.get_mut(at).filter(|_| is_later) {
                flows.push(flow);
            }
        }
        flows
    }
}

fn lane(communicator: u32, operation: &Operation) -> LiveLane {
    let first = operation
        .flows
        .first()
        .filter(|_| operation.op.is_point_to_point());
    (communicator, first.map(|flow| (flow.peer, flow.direction)))
}

fn has_settled(ended: RankNs, now: RankNs) -> bool {
    now.0.saturating_sub(ended.0) >= SETTLES_IN_NS
}

/// The operations with a flow that cannot begin yet, because an earlier one of the same
/// communicator has not left its connection, or has just left it.
///
/// Flows that are announced and silent for any other reason never speak: what NCCL hands to
/// a switch or to a copy engine.
fn waiting(views: &[OperationView], flows: &[Vec<Flow>], now: RankNs) -> BTreeSet<u64> {
    let mut busy: BTreeSet<(u64, u8, u32, Direction)> = BTreeSet::new();
    let mut waiting = BTreeSet::new();
    for (view, flows) in views.iter().zip(flows) {
        let is_over = view.progress.is_complete() && has_settled(view.ended_at, now);
        for flow in flows {
            let connection = (
                view.operation.communicator,
                flow.channel,
                flow.peer,
                flow.direction,
            );
            let begun = flow.begun_at.0 != 0;
            if !begun && busy.contains(&connection) {
                waiting.insert(view.number);
            }
            let is_left = flow.done == flow.total && has_settled(flow.moved_at, now);
            if begun && !is_over && !is_left {
                busy.insert(connection);
            }
        }
    }
    waiting
}

/// A flow, unless it is gone.
fn flow(table: LiveTableView<'_>, number: u64) -> Option<FlowView> {
    let slot = table.flow(number)?;
    if slot.stamp.number() != Some(number) {
        return None;
    }
    // Against the order in which the writer raises them, so that each is at least the one
    // read before it. A writer whose slot was taken from under it may leave a counter too
    // high; the next ones bound it.
    let begun_at = RankNs(slot.begun_at.load(Acquire));
    let done = slot.done.load(Acquire);
    let transmitted = slot.transmitted.load(Acquire);
    let ready = slot.ready.load(Acquire);
    let total = slot.total.load(Relaxed);
    let ready = ready.min(total);
    let transmitted = transmitted.min(ready);
    let route = slot.route.load(Relaxed);
    let is_receive = route >> 40 & 1 == 1;
    let flow = Flow {
        channel: (route >> 32) as u8,
        peer: route as u32,
        direction: if is_receive {
            Direction::Receive
        } else {
            Direction::Send
        },
        total,
        ready,
        transmitted,
        done: done.min(transmitted),
        bytes: slot.bytes.load(Relaxed),
        begun_at,
        moved_at: RankNs(slot.moved_at.load(Relaxed)),
    };
    let operation = slot.operation.load(Relaxed);
    slot.stamp
        .still_has(number)
        .then_some(FlowView { operation, flow })
}

impl CommunicatorSlot {
    fn read(&self) -> Option<Communicator> {
        if !matches!(self.state.load(Acquire), OPEN | FINALIZED) {
            return None;
        }
        let words = self
            .name
            .iter()
            .flat_map(|word| word.load(Relaxed).to_ne_bytes());
        // A wrong length takes no more than there are words.
        let name: Vec<u8> = words.take(self.name_bytes.load(Relaxed) as usize).collect();
        Some(Communicator {
            hash: self.hash.load(Relaxed),
            name: String::from_utf8_lossy(&name).into_owned(),
            rank: self.rank.load(Relaxed),
            size: self.size.load(Relaxed),
        })
    }
}
