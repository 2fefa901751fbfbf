//! What stands beside the incidents of a verdict.

use crate::{CollectiveOp, NetworkFault, PipelineHalt, ReadBackSummary, SourceNote, UnlikeDevice};

/// Something worth saying beside the incidents: what was left out, or could not be seen.
#[derive(Clone, Debug, PartialEq)]
pub enum VerdictNote {
    /// A rank delivered nothing in some steps.
    MissingRank {
        /// Which.
        rank: u32,
        /// How many.
        steps: u64,
    },
    /// A rank ended before the others.
    RankLeft {
        /// Which.
        rank: u32,
        /// Its last step.
        step: u32,
        /// That of the others.
        last_step: u32,
    },
    /// Steps were not seen whole on every rank.
    IncompleteSteps {
        /// How many.
        steps: u64,
        /// Share of the time of steps that lies in them.
        share: f64,
    },
    /// Ranks did not issue the same collectives in some steps.
    MismatchedSteps {
        /// How many.
        steps: u64,
    },
    /// Nobody recorded when ranks issue collectives.
    ArrivalsUnknown,
    /// The first windows are not in the verdict.
    WindowsDropped {
        /// How many.
        windows: u64,
    },
    /// The job was started again.
    Restarted {
        /// How often.
        times: u64,
    },
    /// Ranks of other hosts are not seen.
    OtherHosts,
    /// A host was not heard of for a while.
    HostUnheard {
        /// Its name.
        host: String,
    },
    /// Only one step was recorded.
    OneStep {
        /// Whether clocks of the ranks could be compared.
        on_one_clock: bool,
    },
    /// No rank trained.
    NoTraining,
    /// Too few steps were seen to analyse one window.
    NoWindow {
        /// Steps seen.
        steps: u64,
        /// Ranks seen.
        ranks: usize,
        /// Steps that are left out first.
        warmup_steps: u64,
        /// Steps that a window needs.
        min_steps: u64,
    },
    /// What a profile window cost.
    Profiled {
        /// Its first and last step.
        steps: (u32, u32),
        /// The ranks.
        ranks: Vec<u32>,
        /// Seconds for which the loop stood still to start and stop.
        stall_s: f64,
        /// Seconds for which it stood still to write the trace.
        write_s: f64,
        /// How many times as long steps took, where that is known.
        slowdown: Option<f64>,
    },
    /// Timed collectives were compared.
    CollectivesCompared {
        /// How many.
        collectives: usize,
    },
    /// The logs of some ranks end before those of others.
    LogsEndEarlier {
        /// The collective.
        op: CollectiveOp,
        /// Its group.
        group: String,
        /// The number of the last in a log.
        last: u64,
        /// The ranks whose logs end earlier.
        ranks: Vec<u32>,
        /// The lowest number that one of these ends with.
        first: u64,
    },
    /// In some steps a rank was late, or waited for its device, and which one is unknown.
    AmbiguousSteps {
        /// How many.
        steps: u64,
    },
    /// Hosts run ahead of devices that nobody looked at.
    DevicesUnseen,
    /// The same in a trace: what devices took is in its functions, not in the stages of its hosts.
    StagesOfHosts,
    /// Profiles have devices, and no collective that several of them recorded.
    DevicesUncompared,
    /// Nothing marks on devices where collectives are issued.
    DeviceIssuesUnseen,
    /// Ranks call different things, so that work of their devices looks like waits for others.
    DevicesDiffer,
    /// Hosts may run ahead of devices that nobody looked at.
    DevicesMayBeUnseen,
    /// Hosts mostly wait for their devices.
    DeviceWait {
        /// Share of exposed time.
        share: f64,
        /// What is known of the devices.
        devices: DevicesSeen,
    },
    /// A line reads back from the device, which may have nothing to do for it.
    ReadBack(ReadBackSummary),
    /// Hosts wait for their devices although nothing is read back.
    SilentWait {
        /// How often, on the average rank in the average step.
        per_step: f64,
        /// Share of the step, at most, in which devices have nothing to do for it.
        idle_share_max: f64,
    },
    /// Ranks are alone in their roles, and nothing shows what their hosts do by themselves.
    Uncompared {
        /// Them.
        ranks: Vec<u32>,
    },
    /// A device takes longer than those of other roles, which its own may ask for.
    UnlikeDevice(UnlikeDevice),
    /// Hosts launch blocks of a pipeline early, and no device says when they ran.
    BlocksUnseen,
    /// The network of a rank was slow and nothing stood still.
    Network {
        /// The rank.
        rank: u32,
        /// What its host saw.
        fault: NetworkFault,
    },
    /// What logs of NCCL calls leave open.
    Calls(CallLogNote),
    /// Records were overwritten before they were read.
    LostRecords {
        /// How many.
        records: u64,
        /// Whose.
        ranks: Vec<u32>,
    },
    /// What an agent or a recording says of itself.
    Source(SourceNote),
}

/// Something worth saying of logs of NCCL calls.
#[derive(Clone, Debug, PartialEq)]
pub enum CallLogNote {
    /// Nothing in them marks iterations.
    NoIterations,
    /// They could not be compared.
    NothingCompared {
        /// Why.
        why: String,
    },
    /// No pipeline schedule explains what ranks send and receive.
    NoSchedule,
    /// Hosts call what a block needs before its input is there.
    HostsAhead,
    /// Too few iterations have a known time.
    FewIterations {
        /// How many have.
        timed: u64,
    },
    /// The logs end while one block is under way.
    LogsEnd(PipelineHalt),
    /// Ranks have no log.
    NoLog {
        /// Which.
        ranks: Vec<u32>,
    },
    /// Ranks were recorded whole in a part of the iterations only.
    PartialLogs {
        /// Which.
        ranks: Vec<u32>,
        /// The first and last iteration that was.
        span: Option<(u64, u64)>,
        /// How many were.
        whole: u64,
        /// Of how many.
        iterations: u64,
        /// Operations that are missing.
        lost: u64,
    },
    /// Clocks of ranks were set right.
    OffClocks {
        /// Whose.
        ranks: Vec<u32>,
    },
}

/// What is known of the devices that hosts wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevicesSeen {
    /// No device says when it got to what.
    None,
    /// One is slower than the others.
    Slower,
    /// None is.
    Alike,
}
