//! What to do next.

use serde::{Deserialize, Serialize};

use crate::{PipelineAction, RankPart};

/// What somebody can do about a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum Action {
    /// Look at what all ranks share.
    LookAtWhatRanksShare,
    /// Compare how much the ranks have to compute in each step.
    CompareBatches,
    /// Look at the input pipeline of all ranks.
    LookAtInputPipeline,
    /// Look at what changed when steps became longer.
    LookAtWhatChanged,
    /// Record when ranks arrive in collectives.
    RecordArrivals,
    /// Compare devices with those of their peers.
    CompareDevices {
        /// Whose.
        ranks: Vec<u32>,
    },
    /// Remove what only some ranks read back from their devices.
    RemoveReadBacks {
        /// Which.
        ranks: Vec<u32>,
    },
    /// Look at a part of the step of some ranks.
    LookAtStage {
        /// Whose; empty for all.
        ranks: Vec<u32>,
        /// Which.
        part: StepPart,
    },
    /// Look for what happens every few steps.
    LookForPeriod {
        /// How many.
        steps: u64,
    },
    /// Look at what a function does, or what it needs.
    LookAtFunction {
        /// On which ranks; empty for all.
        ranks: Vec<u32>,
        /// At what; nothing where the function is not a known one.
        at: Option<FunctionNeed>,
    },
    /// Look at what shares the cores of ranks.
    FreeCores {
        /// Whose.
        ranks: Vec<u32>,
    },
    /// Give ranks a larger CPU quota.
    RaiseQuota {
        /// Which; empty for all.
        ranks: Vec<u32>,
    },
    /// Look at what else runs on all hosts.
    LookAtLoadOfHosts,
    /// Look at a part of a device.
    LookAtDevice {
        /// The ranks that use it.
        ranks: Vec<u32>,
        /// Which part.
        part: DevicePart,
    },
    /// Look at the network between two ends.
    LookAtNetwork {
        /// A host or a rank.
        from: LinkEnd,
        /// An address or a rank.
        to: LinkEnd,
    },
    /// Look at what holds collectives up.
    LookAtRanks {
        /// On which ranks; empty where no rank is to blame.
        ranks: Vec<u32>,
        /// At what.
        part: RankPart,
    },
    /// Look at a port and the way from it.
    LookAtPort {
        /// Host, card and port.
        port: String,
        /// The ranks of the job at both ends, if they are known.
        ranks: Vec<u32>,
    },
    /// Something about a pipeline; in JSON like the others.
    #[serde(untagged)]
    InPipeline(PipelineAction),
}

/// A part of the step that somebody can look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepPart {
    /// The data loader.
    Loader,
    /// What happens before the forward pass of a loop without a loader.
    BetweenPasses,
    /// The forward pass.
    Forward,
    /// The forward pass and what happens before it, where no mark divides them.
    BeforeBackward,
    /// The backward pass.
    Backward,
    /// What happens between steps.
    Callbacks,
    /// The optimizer.
    Optimizer,
    /// Code that no stage covers.
    Uncovered,
    /// A stage that the user named.
    Named(String),
}

/// What a known function needs, or does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FunctionNeed {
    /// It reads from storage or a network.
    Reads,
    /// It is part of a data loader.
    Loader,
    /// It collects garbage.
    GarbageCollection,
    /// It sleeps.
    Sleep,
    /// It waits for a device.
    DeviceWait,
    /// It runs on a GPU that works at less than others.
    GpuHealth,
    /// It goes over links.
    Links,
}

/// A part of a device that somebody can look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DevicePart {
    /// The cooling of a GPU.
    Cooling,
    /// The power supply of its host.
    PowerSupply,
    /// The power limit of a GPU.
    PowerLimit,
    /// The clocks that a GPU is set to.
    ClockSettings,
    /// The slot that it sits in.
    Slot,
    /// Its links to other GPUs.
    Nvlinks,
    /// The cable and the switch port of a card.
    Cable,
    /// Others that use a card.
    OtherUsers,
    /// Whether a GPU still works.
    Health,
}

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkEnd {
    /// A rank of the job.
    Rank(u32),
    /// A host, by its name or its address.
    Host(String),
}
