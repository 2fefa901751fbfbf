//! What of ranks somebody can look at whose collectives are slow or do not end.

use serde::{Deserialize, Serialize};

/// What to look at, or to change, of ranks that hold collectives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankPart {
    /// Whether a pause gets on.
    Pause,
    /// The output of a process that has ended.
    EndedOutput,
    /// What the ranks passed to the collective before, which they have not left.
    CollectiveBefore,
    /// Processes of a data loader that were stopped or have ended.
    LoaderWorkers,
    /// The stack of ranks that never came.
    StackOfMissing,
    /// The loop that they do not leave.
    Loop,
    /// Their stacks.
    Stack,
    /// Hosts of which nothing is recorded.
    UnseenHosts,
    /// Why the sides chose different branches, where it is unknown which is wrong.
    Branches,
    /// Sizes and types of tensors.
    Tensors,
    /// The order of collectives.
    CollectiveOrder,
    /// The order of collectives of several groups.
    GroupOrder,
    /// Devices that are behind others in a collective.
    LaggingDevice,
    /// Flight Recorder dumps with times: they show whose device is behind.
    RecorderDumps,
    /// Stacks and devices, where nobody is known to wait.
    StacksAndDevices,
    /// Whether hosts reach one another at the start.
    StartNetwork,
    /// A card that carries nothing any more.
    DeadCard,
    /// A card that is slow.
    SlowCard,
    /// Both ends of a link and the switch between them.
    LinkEnds,
    /// A proxy thread of NCCL that stands still.
    StillProxy,
    /// A proxy thread of NCCL that is slow.
    SlowProxy,
    /// What a stream waits for that never began.
    Stream,
    /// A GPU that stands still.
    StillGpu,
    /// A GPU that is slow.
    SlowGpu,
    /// All GPUs, where what stands still is not seen.
    AllGpus,
    /// What ranks do before a collective that they enter late.
    WorkBefore,
    /// The same, of ranks that constantly do.
    ConstantWorkBefore,
    /// Links and cards of all hosts of a communicator.
    HostLinks,
    /// Who kills processes, and the memory of the host.
    Memory,
    /// Shared memory of the host.
    SharedMemory,
    /// The last lines of the output, and a core dump.
    LastOutput,
}

impl RankPart {
    /// All of them.
    pub const ALL: [Self; 30] = [
        Self::Pause,
        Self::EndedOutput,
        Self::CollectiveBefore,
        Self::LoaderWorkers,
        Self::StackOfMissing,
        Self::Stack,
        Self::UnseenHosts,
        Self::Branches,
        Self::Tensors,
        Self::CollectiveOrder,
        Self::GroupOrder,
        Self::LaggingDevice,
        Self::RecorderDumps,
        Self::StacksAndDevices,
        Self::StartNetwork,
        Self::DeadCard,
        Self::SlowCard,
        Self::LinkEnds,
        Self::StillProxy,
        Self::SlowProxy,
        Self::Stream,
        Self::StillGpu,
        Self::SlowGpu,
        Self::AllGpus,
        Self::WorkBefore,
        Self::ConstantWorkBefore,
        Self::HostLinks,
        Self::Memory,
        Self::SharedMemory,
        Self::LastOutput,
    ];
}
