use serde::{Deserialize, Serialize};

use crate::listed::listed;
use crate::{Event, RankNs, StageId};

/// Words of payload one mark occupies on the wire and in the ring.
pub const PAYLOAD_WORDS: usize = 7;

listed! {
    /// What happened in the training process, without the facts that an [`Event`] has.
    ///
    /// The numbers are part of the ring's and of the recording's format: never reuse one. A reader
    /// passes over kinds that it does not know.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum MarkKind {
        /// The loop asks its data loader for a batch.
        DataBegin = 1,
        /// The batch is there.
        DataEnd = 2,
        /// The loader had no more batches.
        DataStop = 3,
        /// The outermost wrapped module is called.
        ForwardBegin = 4,
        /// It returned.
        ForwardEnd = 5,
        /// The autograd engine starts (outermost call).
        BackwardBegin = 6,
        /// It returned.
        BackwardEnd = 7,
        /// An optimizer's step starts (outermost call).
        OptimizerBegin = 8,
        /// It returned.
        OptimizerEnd = 9,
        /// An explicit stage is entered.
        StageBegin = 10,
        /// It is left.
        StageEnd = 11,
        /// An explicit step is entered.
        StepBegin = 12,
        /// It is left.
        StepEnd = 13,
        /// A collective is issued.
        CollectiveIssue = 14,
        /// A side channel measured something on the device.
        SideSample = 16,
        /// A side channel's event never became ready.
        SideLost = 17,
        /// A block of a pipeline begins.
        BlockBegin = 18,
        /// It is over.
        BlockEnd = 19,
        /// The loop stands still for laggard's own profiler: it starts, or stops and writes.
        ProfilerBegin = 20,
        /// The loop goes on.
        ProfilerEnd = 21,
        /// The rank begins to make the group of all ranks, for which all must come.
        InitBegin = 22,
        /// It has made it, or has failed to.
        InitEnd = 23,
        /// The host saw that its device got to what it issued at an earlier mark of a run of sampled
        /// steps.
        DeviceTime = 24,
        /// The host begins to read something back from its device; seen in sampled steps only.
        ReadBackBegin = 25,
        /// It has it.
        ReadBackEnd = 26,
    }
}

impl MarkKind {
    /// The kind behind a number, `None` if this build knows none.
    #[inline]
    pub fn from_number(number: u8) -> Option<Self> {
        const LAST: usize = MarkKind::ALL[MarkKind::ALL.len() - 1] as usize;
        // A table made by the compiler: each mark that is read passes here.
        const BY_NUMBER: [Option<MarkKind>; LAST + 1] = {
            let mut table = [None; LAST + 1];
            let mut at = 0;
            while at < MarkKind::ALL.len() {
                table[MarkKind::ALL[at] as usize] = Some(MarkKind::ALL[at]);
                at += 1;
            }
            table
        };
        BY_NUMBER.get(usize::from(number)).copied().flatten()
    }

    /// Whether something begins with it.
    // Ends are left out: a rank that gives up unwinds through them, which is no progress.
    // The profiler is laggard's own.
    pub fn begins(self) -> bool {
        matches!(
            self,
            Self::DataBegin
                | Self::ForwardBegin
                | Self::BackwardBegin
                | Self::OptimizerBegin
                | Self::StageBegin
                | Self::StepBegin
                | Self::BlockBegin
                | Self::InitBegin
                | Self::CollectiveIssue
        )
    }

    /// Whether a stage, of a hook or an explicit one, ends with it.
    pub fn ends_stage(self) -> bool {
        // By what is no begin: the data loader has two ends, and the table holds one.
        let is_begin = StageId::HOOKED.iter().any(|(_, [begin, _])| *begin == self);
        self == Self::StageEnd || self.is_hook() && !is_begin
    }

    /// The stage that it begins or ends, if a hook sees it.
    #[inline]
    pub fn stage(self) -> Option<StageId> {
        // The only stage with two ends.
        if self == Self::DataStop {
            return Some(StageId::DATA);
        }
        let of_it = StageId::HOOKED
            .iter()
            .find(|(_, marks)| marks.contains(&self));
        of_it.map(|(stage, _)| *stage)
    }

    /// Whether a hook sees it, rather than an explicit context or a collective.
    #[inline]
    pub fn is_hook(self) -> bool {
        self.stage().is_some()
    }
}

/// A number for a process group that is known by its name alone, the same on every rank. FNV-1a.
pub fn group_number(name: &str) -> u32 {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    // 0 is a group that nobody knows.
    hash.max(1)
}

/// The kind of a collective, numbered as PyTorch's `HookOpName`, in text by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub struct CollectiveOp(pub u16);

impl Default for CollectiveOp {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

impl From<CollectiveOp> for String {
    fn from(op: CollectiveOp) -> Self {
        op.name().to_owned()
    }
}

impl From<String> for CollectiveOp {
    fn from(name: String) -> Self {
        Self::from_name(&name)
    }
}

impl CollectiveOp {
    const NAMES: [&str; 20] = [
        "SEND",
        "RECV",
        "BROADCAST",
        "ALLREDUCE",
        "REDUCE",
        "ALLGATHER",
        "REDUCE_SCATTER",
        "ALLTOALL",
        "BARRIER",
        "SCATTER",
        "GATHER",
        "SPLIT",
        "NEW_WINDOW",
        "ALLREDUCE_COALESCED",
        "ALLGATHER_BASE",
        "ALLGATHER_COALESCED",
        "ALLGATHER_INTO_TENSOR_COALESCED",
        "REDUCE_SCATTER_BASE",
        "REDUCE_SCATTER_TENSOR_COALESCED",
        "ALLTOALL_BASE",
    ];

    /// A collective whose kind nobody gave.
    pub const UNKNOWN: Self = Self(20);
    /// One rank sends to another.
    pub const SEND: Self = Self(0);
    /// One rank receives from another.
    pub const RECEIVE: Self = Self(1);
    /// One rank gives all the same.
    pub const BROADCAST: Self = Self(2);
    /// All get the sum, or the like, of what all have.
    pub const ALLREDUCE: Self = Self(3);
    /// One rank gets it.
    pub const REDUCE: Self = Self(4);
    /// All get what all have.
    pub const ALLGATHER_BASE: Self = Self(14);
    /// Each gets its part of the sum.
    pub const REDUCE_SCATTER_BASE: Self = Self(17);
    /// The same, as NCCL calls it.
    pub const ALLGATHER: Self = Self(5);
    /// Each gets its part of the sum, as NCCL calls it.
    pub const REDUCE_SCATTER: Self = Self(6);
    /// A barrier.
    pub const BARRIER: Self = Self(8);
    /// All make the group of all ranks. Not one of PyTorch's hooks, so far from their numbers.
    pub const INIT: Self = Self(u16::MAX);
    const INIT_NAME: &str = "INIT_PROCESS_GROUP";

    /// The operation's name, "COLLECTIVE" if its number is unknown.
    pub fn name(self) -> &'static str {
        if self == Self::INIT {
            return Self::INIT_NAME;
        }
        Self::NAMES
            .get(usize::from(self.0))
            .copied()
            .unwrap_or("COLLECTIVE")
    }

    /// Finds an operation by PyTorch's name for it, in any case and with or without
    /// underscores (`ALLREDUCE`, `all_reduce`, `_allgather_base`).
    pub fn from_name(name: &str) -> Self {
        let wanted = bare_name(name);
        if wanted == bare_name(Self::INIT_NAME) {
            return Self::INIT;
        }
        let found = Self::NAMES
            .iter()
            .position(|known| bare_name(known) == wanted);
        found
            .and_then(|at| u16::try_from(at).ok())
            .map_or(Self::UNKNOWN, Self)
    }

    /// Whether all get what all have, as of the parameters of a layer that is computed next.
    pub fn is_all_gather(self) -> bool {
        self.name().starts_with("ALLGATHER")
    }

    /// Whether the operation joins two ranks only.
    pub fn is_point_to_point(self) -> bool {
        // SEND and RECV are PyTorch's first two numbers.
        self.0 < 2
    }

    /// Whether it ends on no rank before all have entered it.
    pub fn joins_all(self) -> bool {
        // Some ranks end as soon as their own part is sent: the root of a broadcast, for example.
        const ONE_SIDED: [&str; 7] = [
            "SEND",
            "RECV",
            "BROADCAST",
            "REDUCE",
            "SCATTER",
            "GATHER",
            "NEW_WINDOW",
        ];
        let name = self.name();
        // Nothing is claimed of a number that this build does not know.
        self.0 < Self::UNKNOWN.0 && !ONE_SIDED.contains(&name)
    }

    /// Whether all ranks must pass as many bytes.
    pub fn is_of_one_size(self) -> bool {
        // Lists of tensors may be uneven, and so may splits: kinds with these are left out.
        const OF_ONE_SIZE: [&str; 6] = [
            "BROADCAST",
            "ALLREDUCE",
            "REDUCE",
            "ALLREDUCE_COALESCED",
            "ALLGATHER_BASE",
            "REDUCE_SCATTER_BASE",
        ];
        OF_ONE_SIZE.contains(&self.name())
    }
}

/// One thing that happened in a training process.
///
/// # Units
/// `at` is the rank's monotonic clock.
/// # Invariants
/// Encoding and decoding are inverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When it happened.
    pub at: RankNs,
    /// The step it belongs to, counted by the process since it became a rank.
    pub step: u32,
    /// Whether it happened on the thread that runs the training loop.
    pub on_loop_thread: bool,
    /// What happened.
    pub event: Event,
}

impl Mark {
    /// The kind of what happened.
    #[inline]
    pub fn kind(&self) -> MarkKind {
        self.event.kind()
    }

    /// Packs the mark into words, as it stands in the ring.
    #[inline]
    pub fn to_words(self) -> [u64; PAYLOAD_WORDS] {
        let (code, [first, second, third, fourth, fifth]) = self.event.encode();
        let meta = u64::from(self.step)
            | u64::from(self.kind() as u8) << 32
            | u64::from(self.on_loop_thread) << 40
            | u64::from(code) << 48;
        [self.at.0, meta, first, second, third, fourth, fifth]
    }

    /// Unpacks a mark; `None` for one that this build does not know.
    pub fn from_words(words: [u64; PAYLOAD_WORDS]) -> Option<Self> {
        let [at, meta, numbers @ ..] = words;
        let [s0, s1, s2, s3, kind, flags, c0, c1] = meta.to_le_bytes();
        let (kind, code) = (MarkKind::from_number(kind)?, u16::from_le_bytes([c0, c1]));
        Some(Self {
            at: RankNs(at),
            step: u32::from_le_bytes([s0, s1, s2, s3]),
            on_loop_thread: flags & 1 == 1,
            event: Event::decode(kind, code, numbers)?,
        })
    }
}

fn bare_name(text: &str) -> String {
    text.replace('_', "").to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::tests::any_event;

    proptest! {
        #[test]
        fn a_mark_survives_its_encoding(
            at: u64, step: u32, on_loop_thread: bool, event in any_event(),
        ) {
            let mark = Mark { at: RankNs(at), step, on_loop_thread, event };
            prop_assert_eq!(Mark::from_words(mark.to_words()), Some(mark));
        }

        #[test]
        fn any_words_decode_or_are_refused(words: [u64; PAYLOAD_WORDS]) {
            if let Some(mark) = Mark::from_words(words) {
                prop_assert_eq!(mark.at.0, words[0]);
            }
        }
    }

    #[test]
    fn collectives_are_found_by_every_spelling_of_their_name() {
        assert_eq!(CollectiveOp::from_name("all_reduce").name(), "ALLREDUCE");
        assert_eq!(
            CollectiveOp::from_name("_allgather_base").name(),
            "ALLGATHER_BASE"
        );
        for op in [CollectiveOp::BARRIER, CollectiveOp::INIT] {
            assert_eq!(CollectiveOp::from_name(op.name()), op);
        }
        assert_eq!(CollectiveOp::from_name("teleport").name(), "COLLECTIVE");
    }
}
