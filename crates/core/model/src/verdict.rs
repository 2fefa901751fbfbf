use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Action, Fact, FoldedStack, ProfileSummary, Progress, Ranks, WhatIf};

/// Name and version of the verdict document. Changes within a version only add fields.
// A field that came later has a serde default: collectors read verdicts of older versions.
pub const SCHEMA: &str = "laggard.verdict/1";

/// What laggard says about a job: the one document behind terminal, JSON and report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// [`SCHEMA`].
    pub schema: String,
    /// The job.
    pub job: JobSummary,
    /// Exposed time of each stage over the run, in schema order.
    pub stages: Vec<StageSummary>,
    /// What side channels measured beside the stages.
    #[serde(default)]
    pub side_channels: Vec<SideSummary>,
    /// Every window, in time order.
    pub windows: Vec<WindowSummary>,
    /// The pipeline, where calls of NCCL show one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<PipelineSummary>,
    /// What holds the job back, costliest first. Empty for a healthy job.
    pub incidents: Vec<Incident>,
    /// What steps would take without their stragglers; only of what-if traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what_if: Option<WhatIf>,
    /// Blocks of a pipeline that were slow and held nobody up, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absorbed: Vec<String>,
    /// What could not be seen, in plain words.
    pub notes: Vec<String>,
    /// What profiles of the ranks say; absent without profiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileSummary>,
}

/// Where a job's records came from, in JSON by the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The job itself, as it ran.
    Run,
    /// The job itself, of one rank, as its script asked.
    Summary,
    /// A recording of a job, or its marks as events.
    Marks,
    /// Seconds of steps, ranks and stages.
    StageMatrix,
    /// What is known of one moment, without steps: Flight Recorder dumps, stacks, replies of RAS.
    Snapshot,
    /// What a job printed before it died, without steps.
    Log,
    /// Collectives that ended and how long they took, without steps: logs of NCCL Inspector.
    Inspector,
    /// Calls of NCCL, without steps.
    Calls,
    /// Traces of PyTorch's profiler.
    Kineto,
    /// Exports of Nsight Systems.
    Nsys,
    /// Every operation of some steps.
    WhatIf,
}

impl Source {
    /// Whether the records are of steps.
    pub fn has_steps(self) -> bool {
        !matches!(
            self,
            Self::Snapshot | Self::Log | Self::Inspector | Self::Calls
        )
    }

    /// Whether they are what ranks marked in loops of their own, live or recorded.
    pub fn has_marks(self) -> bool {
        matches!(self, Self::Run | Self::Marks)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Summary => "summary",
            Self::Marks => "marks",
            Self::StageMatrix => "stage-matrix",
            Self::Snapshot => "snapshot",
            Self::Log => "log",
            Self::Inspector => "inspector",
            Self::Calls => "calls",
            Self::Kineto => "kineto",
            Self::Nsys => "nsys",
            Self::WhatIf => "what-if",
        }
    }
}

/// The job a verdict is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSummary {
    /// Its id.
    pub id: String,
    /// Ranks seen.
    pub ranks: usize,
    /// Steps seen.
    pub steps: u64,
    /// Steps that were analysed: seen whole on every rank and not warm-up.
    pub analysed_steps: u64,
    /// Where the records came from.
    pub source: Source,
    /// Where steps are cut for accounting.
    pub cut: String,
    /// Exposed time of all analysed steps, in seconds.
    pub exposed_s: f64,
    /// Share of it in which all hosts waited for their devices, where that is most of it. What
    /// devices do there is seen in sampled steps only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_wait_share: Option<f64>,
    /// Whether hosts are seen to run ahead of their devices.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hosts_run_ahead: bool,
    /// Whether nothing shows that hosts wait for one another, nor that they run ahead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hosts_may_run_ahead: bool,
    /// Whether ranks issue collectives, and nothing marks on their devices where these are, or ranks do
    /// not issue the same ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub device_issues_unseen: bool,
    /// Whether a snapshot shows something wrong that names nobody, or not all ranks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partly_seen: bool,
    /// Share of the time of steps that lies in those which were not recorded whole on every rank.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unrecorded_share: f64,
    /// Whether there are traces of some ranks, and of others none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ranks_unseen: bool,
    /// Ranks that are alone in their roles and could not be put beside those of other roles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncompared_ranks: Vec<u32>,
    /// Devices of ranks that are alone in their roles which take longer than those of other roles
    /// from the first step on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unlike_devices: Vec<UnlikeDevice>,
    /// Steps in which a host was late, or waited for its device, and which did what is unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ambiguous_steps: u64,
    /// Whether stages are those of the sampled steps on the devices' clocks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stages_on_devices: bool,
    /// Steps that were accounted on the clocks of the devices, too.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sampled_steps: u64,
    /// What hosts read back from their devices in those steps: what may cost most, first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_backs: Vec<ReadBackSummary>,
    /// Records that were lost before they could be read.
    pub lost_records: u64,
}

/// As a skip of serde's, for numbers.
fn is_zero<T: Default + PartialOrd>(number: &T) -> bool {
    *number <= T::default()
}

/// A line that reads something back from the device, for which its host waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadBackSummary {
    /// File and line, as `train.py:88`; null for lines beyond the first of many.
    pub line: Option<String>,
    /// How often, on the average rank in the average step.
    pub per_step: f64,
    /// Share of the step that hosts wait there.
    pub wait_share: f64,
    /// Share of the step, at most, in which devices have nothing to do for it.
    pub idle_share_max: f64,
}

/// A device that takes longer than those of other roles, and did from the first step on: nobody shares
/// its role, which may ask for as much.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnlikeDevice {
    /// The rank.
    pub rank: u32,
    /// Where it takes longer.
    pub stage: String,
    /// Whether it does so by itself, or because its host holds it up.
    pub side: Side,
    /// Seconds that it takes there in a step by itself, or for which its host holds it up.
    pub took_s: f64,
    /// Those of other roles.
    pub others_s: f64,
}

/// The pipeline of a job, as its calls of NCCL show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PipelineSummary {
    /// How ranks divide the work, fastest axis first: `tp 2, pp 4`.
    pub layout: String,
    /// The schedule of its stages: `1F1B`; null if none was recognised.
    pub schedule: Option<String>,
    /// Microbatches of an iteration; 0 without a schedule.
    pub microbatches: u32,
    /// What an iteration usually takes, in seconds; 0 if too few were seen.
    pub iteration_s: f64,
}

/// One stage's part of the exposed time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageSummary {
    /// The stage.
    pub name: String,
    /// Exposed time it was charged with, in seconds.
    pub advance_s: f64,
    /// Its share of all exposed time.
    pub share: f64,
    /// Share of exposed time that would vanish at the baseline, waits left in place.
    pub gain: f64,
    /// Ranks that reached its boundary last in most steps; empty if they took turns.
    pub lead_ranks: Vec<u32>,
}

/// What one side channel measured, over all ranks and steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SideSummary {
    /// The channel.
    pub name: String,
    /// Measurements that arrived.
    pub samples: u64,
    /// Device events that never became ready.
    pub lost: u64,
    /// Mean of the measurements, in seconds.
    pub mean_s: f64,
}

/// One window's labels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowSummary {
    /// First step.
    pub first_step: u64,
    /// Number of steps.
    pub steps: u64,
    /// Labels in their fixed order.
    pub labels: Vec<Label>,
    /// Stages to look at: the shortest prefix by share that explains enough.
    pub candidates: Vec<String>,
    /// Stages that cannot be told apart.
    pub co_critical_stages: Vec<String>,
    /// Why labels were weakened.
    pub downgrades: Vec<String>,
    /// Mean exposed time of a step, in seconds.
    pub step_s: f64,
    /// Share of exposed time of each stage, in the order of the verdict's stages.
    pub shares: Vec<f64>,
    /// Ranks that should have been there.
    pub missing_ranks: Vec<u32>,
}

/// The labels of StageFrontier; orthogonal, not a ladder of confidence.
///
/// # Source
/// StageFrontier (2026); docs/labels.md says what each means and what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Label {
    /// The accounting itself holds.
    FrontierAccounting,
    /// One rank's lateness is likely what the others wait for.
    LikelySyncWait,
    /// The leading stage's cost depends on a synchronisation downstream.
    SyncWaitDependent,
    /// Shortening the leading stage would shorten the step directly.
    DirectExposure,
    /// Device time supports the forward pass as a candidate.
    ForwardDeviceSupported,
    /// Device work of the forward pass likely surfaces in a later stage.
    ForwardSpilloverSuspected,
    /// The forward pass is long on the host and short on the device.
    ForwardHostOverheadSuspected,
    /// Too few device events to say anything about the device.
    ForwardEventScopeLimited,
    /// Several stages explain the window equally well.
    CoCritical,
    /// Micro-steps of gradient accumulation were mixed or summed.
    GradientAccumulationAmbiguous,
    /// Ranks with different roles were compared without being told apart.
    RoleAwareNeeded,
    /// Telemetry is incomplete.
    TelemetryLimited,
}

impl Label {
    /// All labels, in their fixed order.
    pub const ALL: [Self; 12] = [
        Self::FrontierAccounting,
        Self::LikelySyncWait,
        Self::SyncWaitDependent,
        Self::DirectExposure,
        Self::ForwardDeviceSupported,
        Self::ForwardSpilloverSuspected,
        Self::ForwardHostOverheadSuspected,
        Self::ForwardEventScopeLimited,
        Self::CoCritical,
        Self::GradientAccumulationAmbiguous,
        Self::RoleAwareNeeded,
        Self::TelemetryLimited,
    ];

    /// The label as it stands in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::FrontierAccounting => "frontier_accounting",
            Self::LikelySyncWait => "likely_sync_wait",
            Self::SyncWaitDependent => "sync_wait_dependent",
            Self::DirectExposure => "direct_exposure",
            Self::ForwardDeviceSupported => "forward_device_supported",
            Self::ForwardSpilloverSuspected => "forward_spillover_suspected",
            Self::ForwardHostOverheadSuspected => "forward_host_overhead_suspected",
            Self::ForwardEventScopeLimited => "forward_event_scope_limited",
            Self::CoCritical => "co_critical",
            Self::GradientAccumulationAmbiguous => "gradient_accumulation_ambiguous",
            Self::RoleAwareNeeded => "role_aware_needed",
            Self::TelemetryLimited => "telemetry_limited",
        }
    }

    /// Whether the label claims a cause, and so needs complete telemetry.
    pub fn is_strong(self) -> bool {
        matches!(
            self,
            Self::LikelySyncWait | Self::SyncWaitDependent | Self::DirectExposure
        )
    }
}

impl fmt::Display for Label {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The kind of an incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IncidentKind {
    /// Some ranks are slower than their peers, or the job waits for something.
    Slow,
    /// The job makes no progress.
    Hang,
    /// The whole job became slower than it was.
    Degraded,
}

impl IncidentKind {
    /// The kind as it stands in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::Hang => "hang",
            Self::Degraded => "degraded",
        }
    }
}

/// How much an incident matters, by its share of exposed time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
// In this order: alerts and exit codes compare severities.
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Worth acting on.
    Warning,
    /// Worth acting on now.
    Critical,
}

impl Severity {
    /// The severity as it stands in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// The method a piece of evidence comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Stage accounting.
    Frontier,
    /// Progress inside collectives.
    Collective,
    /// Pipeline schedule.
    Schedule,
    /// Function patterns.
    Pattern,
    /// Stacks.
    Stack,
    /// Host counters.
    Host,
}

impl Method {
    /// The method as it stands in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Frontier => "frontier",
            Self::Collective => "collective",
            Self::Schedule => "schedule",
            Self::Pattern => "pattern",
            Self::Stack => "stack",
            Self::Host => "host",
        }
    }
}

/// When an incident's lateness strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Pace {
    /// In most steps, on the same ranks.
    Steady,
    /// At a fixed distance.
    Every {
        /// Steps from one strike to the next.
        steps: u64,
    },
    /// Once.
    Once {
        /// The step.
        step: u64,
    },
    /// Now and then.
    Sporadic,
    /// In most steps, on changing ranks.
    Rotating,
}

/// Who and where. What does not apply is null, never zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// The culprits; empty if nobody in particular is to blame.
    pub ranks: Vec<u32>,
    /// Their hosts.
    pub hosts: Vec<String>,
    /// The stage.
    pub stage: Option<String>,
    /// The collective.
    pub collective: Option<String>,
    /// The flow.
    pub flow: Option<String>,
    /// The pipeline block.
    pub block: Option<String>,
    /// The function.
    pub function: Option<String>,
    /// Whether the ranks' hosts or their devices are slow, where device marks tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side: Option<Side>,
}

/// What of a rank is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Its host, for which the device waits.
    Host,
    /// Its device, for which the host waits.
    Device,
}

/// One method's support of an incident.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Whose.
    pub method: Method,
    /// The method's label, or a name of ours.
    pub label: String,
    /// In words.
    pub text: String,
    /// In numbers, unit in the name.
    // Sorted, so that the same inputs give the same bytes.
    pub values: std::collections::BTreeMap<String, f64>,
    /// The ranks it names itself, where those are not the incident's; else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u32>,
    /// The stage it names itself, where that is not the incident's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// What it blames, where it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
}

/// What a piece of evidence blames for lost time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A function of the host's code.
    Code,
    /// Cores that the process did not get.
    Cores,
    /// A GPU, or its way to the host.
    Gpu,
    /// The network between hosts, or a card.
    Network,
}

impl Cause {
    /// The cause in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Code => "code",
            Self::Cores => "cores",
            Self::Gpu => "GPU",
            Self::Network => "network",
        }
    }
}

/// What methods may disagree about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Who is to blame.
    Ranks,
    /// Where in the step.
    Stage,
    /// What is to blame.
    Cause,
}

/// Methods that say different things of one incident.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contradiction {
    /// About what.
    pub about: Question,
    /// What each says, the one to trust first in front.
    pub claims: Vec<Answer>,
    /// The same in words, and why that one is to be trusted first.
    pub text: String,
}

/// What a method answers to a [`Question`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Answer {
    /// Whose.
    pub method: Method,
    /// `rank 1`, `data.next_wait`, `network`.
    pub says: String,
}

/// A fault that the incident hides: it costs nothing now and everything once this one is
/// fixed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextInLine {
    /// The hidden culprits.
    pub ranks: Vec<u32>,
    /// Their stage.
    pub stage: String,
    /// Lateness per step, in seconds.
    pub lateness_s: f64,
    /// Exposed seconds saved by fixing only this one.
    pub gain_alone_s: f64,
    /// Exposed seconds saved by fixing this one and the incident's own.
    pub gain_both_s: f64,
}

/// Something that holds the job back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Incident {
    /// Stable within the job.
    pub id: String,
    /// Its kind.
    pub kind: IncidentKind,
    /// How much it matters.
    pub severity: Severity,
    /// Whether it still goes on at the end of what was seen.
    pub open: bool,
    /// Who and where.
    pub subject: Subject,
    /// When it strikes.
    pub pace: Pace,
    /// First step that suffered.
    pub first_step: u64,
    /// Last step that suffered.
    pub last_step: u64,
    /// Ranks that lost time to it through no fault of their own: they waited for those it names,
    /// or, where it names nobody, were slower themselves.
    #[serde(default)]
    pub victims: Ranks,
    /// Exposed seconds it added, waits of the victims included.
    pub cost_s: f64,
    /// The same in seconds of GPUs: times the victims. Zero until incidents of all methods are put
    /// together.
    #[serde(default)]
    pub cost_gpu_s: f64,
    /// [`Self::cost_s`] as a share of exposed time from its first step on.
    pub cost_share: f64,
    /// Exposed seconds saved if only this were fixed.
    pub gain_alone_s: f64,
    /// What it hides.
    pub next_in_line: Vec<NextInLine>,
    /// The sentence to read first.
    pub text: String,
    /// What supports it.
    pub evidence: Vec<Evidence>,
    /// What methods say differently of it; empty until incidents of all methods are put together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contradictions: Vec<Contradiction>,
    /// Of a hang: where the ranks that were looked at are, those it names first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<FoldedStack>,
    /// Of a hang: how far ranks had come in their collectives when nothing moved any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub progress: Vec<Progress>,
    /// What to look at next.
    pub advice: String,
    /// [`Self::evidence`] in values, in the same order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<Fact>,
    /// [`Self::advice`] in values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
}

/// Folds ranks into ranges for reading: `0-3,7`.
pub fn fold_ranks(ranks: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match parts.last_mut() {
            // Verdicts are read from files, where a rank may be the largest number.
            Some((_, last)) if last.checked_add(1) == Some(*rank) => *last = *rank,
            _ => parts.push((*rank, *rank)),
        }
    }
    let text = parts.iter().map(|(first, last)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    text.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_fold_into_ranges() {
        assert_eq!(fold_ranks(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(fold_ranks(&[3]), "3");
        assert_eq!(fold_ranks(&[]), "");
        assert_eq!(
            fold_ranks(&[u32::MAX - 1, u32::MAX, 0]),
            "4294967294-4294967295,0"
        );
    }

    #[test]
    fn a_label_reads_the_same_in_json_and_on_screen() {
        for label in Label::ALL {
            let json = serde_json::to_string(&label).unwrap();
            assert_eq!(json, format!("\"{label}\""));
        }
        let json = |value: serde_json::Value| value.as_str().unwrap().to_owned();
        for kind in [
            IncidentKind::Slow,
            IncidentKind::Hang,
            IncidentKind::Degraded,
        ] {
            assert_eq!(json(serde_json::to_value(kind).unwrap()), kind.name());
        }
        for severity in [Severity::Info, Severity::Warning, Severity::Critical] {
            assert_eq!(
                json(serde_json::to_value(severity).unwrap()),
                severity.name()
            );
        }
        for method in [
            Method::Frontier,
            Method::Collective,
            Method::Schedule,
            Method::Pattern,
            Method::Stack,
            Method::Host,
        ] {
            assert_eq!(json(serde_json::to_value(method).unwrap()), method.name());
        }
    }
}
