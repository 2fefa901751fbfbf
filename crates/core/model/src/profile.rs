use serde::{Deserialize, Serialize};

use crate::WorkerPatterns;

/// What profiles of the ranks say: where their time goes, who is late to collectives, which
/// functions stand out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileSummary {
    /// The profiled ranks, ascending.
    pub ranks: Vec<RankProfile>,
    /// Collectives that were matched over the ranks; null if there is none.
    pub collectives: Option<CollectiveTimes>,
    /// Functions that cost most on any rank, and all that stand out.
    pub functions: Vec<FunctionSummary>,
}

/// What a profile window showed of one rank, and what it cost it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileWindow {
    /// Steps that were recorded.
    pub steps: u32,
    /// Length of what was analysed, in seconds.
    pub span_s: f64,
    /// Share in which a collective runs, exposed or not.
    pub communication_share: f64,
    /// Whether anything ran on a device.
    pub has_device: bool,
    /// Its costliest functions.
    pub patterns: WorkerPatterns,
    /// Seconds its loop stood still for the profiler to start and to stop.
    pub stall_s: f64,
    /// Seconds it stood still for its trace to be written.
    pub write_s: f64,
    /// Share of the window in which its loop stood ready and had no core; null if nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_core_share: Option<f64>,
}

/// Where one rank's time goes, on its critical path: the shares sum to 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankProfile {
    /// The rank.
    pub rank: u32,
    /// Its host, if recorded.
    pub host: Option<String>,
    /// The file.
    pub file: String,
    /// Length of what was analysed, in seconds.
    pub span_s: f64,
    /// Share in which something computes.
    pub compute_share: f64,
    /// Share in which memory is copied and nothing computes.
    pub memory_share: f64,
    /// Share in which a collective runs and nothing hides it.
    pub exposed_communication_share: f64,
    /// Share in which only the host works.
    pub host_share: f64,
    /// Share in which nothing that was recorded runs.
    pub idle_share: f64,
    /// Share in which the device does nothing; null without a device.
    pub device_idle_share: Option<f64>,
    /// Share in which a collective runs, exposed or not.
    pub communication_share: f64,
    /// Whether utilisation of hardware was recorded; without it mu and sigma say nothing.
    pub no_hw: bool,
}

/// Collectives of all ranks, side by side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CollectiveTimes {
    /// Collectives that were matched over at least two ranks.
    pub matched: u64,
    /// Recorded on one rank only, or not the same on others.
    pub unmatched: u64,
    /// Median over the collectives of how far apart ranks leave them, in seconds.
    pub end_spread_s: f64,
    /// Whether clocks were set by the ends of collectives.
    pub clocks_were_set: bool,
    /// Each rank's part.
    pub ranks: Vec<RankArrivals>,
}

/// One rank in the matched collectives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankArrivals {
    /// The rank.
    pub rank: u32,
    /// Collectives it was in.
    pub collectives: u64,
    /// In how many of them it came last.
    pub last: u64,
    /// Seconds it waited in them for the last to come.
    pub waited_s: f64,
    /// Seconds after the first rank at which it entered the first common step; null without
    /// steps or comparable clocks.
    pub entry_skew_s: Option<f64>,
    /// Seconds its clock is ahead of the first rank's; null if all have one clock, or this one
    /// meets no other.
    #[serde(default)]
    pub clock_offset_s: Option<f64>,
    /// By how much that may be wrong. Lateness between two ranks of different hosts below the sum
    /// of theirs is not shown.
    #[serde(default)]
    pub clock_error_s: Option<f64>,
}

/// One function over the ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionSummary {
    /// Its name.
    pub name: String,
    /// Its callers, innermost first; empty if not recorded.
    pub callers: Vec<String>,
    /// Kind of work: `gpu_compute`, `cpu_compute`, `memory`, `collective`, `python`, `other_cpu`.
    pub class: String,
    /// Ranks that ran it.
    pub ranks: usize,
    /// Median share of the critical path.
    pub beta: f64,
    /// Median utilisation of its resource.
    pub mu: f64,
    /// Median standard deviation of that.
    pub sigma: f64,
    /// `common` or `partial`; null if it is as expected everywhere.
    pub problem: Option<String>,
    /// Ranks on which it is not, worst first.
    pub abnormal: Vec<AbnormalRank>,
    /// Their hosts, those with most of them first, as far as recorded.
    pub hosts: Vec<String>,
}

/// A rank on which a function behaves unlike expectation or unlike its peers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AbnormalRank {
    /// The rank.
    pub rank: u32,
    /// Share of the critical path.
    pub beta: f64,
    /// Utilisation of its resource.
    pub mu: f64,
    /// Standard deviation of that.
    pub sigma: f64,
    /// How far it lies outside of what is expected.
    pub distance: f64,
    /// The same for each dimension: what is above 0 is not as expected.
    #[serde(default)]
    pub excess: Dimensions,
    /// How far each dimension is from its median: above 0 more, below 0 less; 0 if not measured.
    #[serde(default)]
    pub deviation: Dimensions,
    /// Part of the compared ranks it differs from.
    pub differential: f64,
    /// What that looks like; null if it looks like nothing in particular.
    #[serde(default)]
    pub kind: Option<FunctionFaultKind>,
}

/// A number for each dimension of a pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Dimensions {
    /// Of the share of the critical path.
    pub beta: f64,
    /// Of utilisation.
    pub mu: f64,
    /// Of its standard deviation.
    pub sigma: f64,
}

/// What the pattern of a function on a rank looks like beside the others', where utilisation was
/// measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FunctionFaultKind {
    /// A device that works at less: throttled, or shared with others.
    Throttled,
    /// A link that carries less, and steadily so.
    SlowLink,
    /// A link that carries more: what another should.
    Detour,
    /// It waits: for a rank, storage, a network or a lock.
    Waits,
    /// It keeps a core busy.
    Computes,
}

impl FunctionFaultKind {
    /// Whether a link is to blame, rather than what goes over it.
    pub fn is_of_link(self) -> bool {
        matches!(self, Self::SlowLink | Self::Detour)
    }
}
