//! What is said of jobs that do not move, and of ranks that were killed.

use serde::{Deserialize, Serialize};

use crate::{
    CollectiveOp, Failure, ProcessState, Severity, StageId, StallKind, Standstill, Wait, Worker,
};

/// A job that does not move, or did not for a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StallClaim {
    /// Why.
    pub kind: StallKind,
    /// How much it mattered when it was found.
    pub severity: Severity,
    /// Whether it went on then.
    pub open: bool,
    /// The furthest step a rank is in; 0 if steps are not known.
    pub step: u64,
    /// Seconds without a move.
    pub quiet_s: f64,
    /// Ranks that everybody waits for, or that wait for one another.
    pub culprits: Vec<u32>,
    /// The stuck collectives they are part of.
    pub waits: Vec<Wait>,
    /// What the live tables of the ranks say is wrong.
    pub failure: Option<Failure>,
    /// Where pipelines stand still, if no collective says why nothing moves.
    pub halts: Vec<Standstill>,
    /// Where some of the culprits are.
    pub whereabouts: Vec<Whereabouts>,
    /// What they do that is known to take long.
    pub pause: Option<KnownPause>,
}

impl StallClaim {
    /// Whether the job has not begun: ranks make the group of all ranks.
    pub fn is_of_start(&self) -> bool {
        self.waits
            .first()
            .is_some_and(|wait| wait.op == CollectiveOp::INIT)
    }

    /// Whether it says that a rank is in a stage.
    pub fn names_stage(&self, name: &str) -> bool {
        self.whereabouts.iter().any(|it| {
            it.place.as_deref() == Some(name)
                // The words for a loader's worker name the stage that waits for it.
                || it.waits_for_data
                    && it.worker.is_some()
                    && StageId::DATA.built_in() == Some(name)
        })
    }
}

/// Where a rank is that others wait for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whereabouts {
    /// The rank.
    pub rank: u32,
    /// Whether its process has ended.
    pub has_ended: bool,
    /// What its main thread does, as far as somebody could look.
    pub state: ProcessState,
    /// Whether it holds the interpreter's lock.
    pub holds_gil: Option<bool>,
    /// The function or stage it is in: `read_shard (dataset.py:77)`.
    pub place: Option<String>,
    /// Whether its loop waits for data.
    pub waits_for_data: bool,
    /// Whether its host waits for its device.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits_for_device: bool,
    /// A process it has started that was stopped or has ended.
    pub worker: Option<Worker>,
    /// Number of the collective before the stuck one, if it still stands in that.
    pub not_left: Option<u64>,
}

/// What ranks do that is known to take long and to end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownPause {
    /// What.
    pub kind: PauseKind,
    /// Seconds that such a pause may take, if it takes longer.
    pub overdue_s: Option<f64>,
}

/// What ranks do that takes its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseKind {
    /// A checkpoint is written.
    WritesCheckpoint,
    /// A checkpoint is read.
    ReadsCheckpoint,
    /// One or the other.
    HandlesCheckpoint,
    /// Code is compiled.
    Compiles,
    /// The model is evaluated.
    Evaluates,
    /// Something is downloaded.
    Downloads,
}

/// How a process ended that should not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Death {
    /// The signal that killed it, where that is known.
    pub signal: Option<i32>,
    /// Its exit code, if it ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
}

/// A rank that was killed, or ended by itself; or several, of which nobody knows for whose sake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KilledRanks {
    /// The ranks.
    pub ranks: Vec<u32>,
    /// How, where they all ended alike.
    #[serde(flatten)]
    pub death: Death,
    /// The error that it printed, of one rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Their step, of several the furthest.
    pub step: u64,
    /// The collective that others were left waiting in.
    pub wait: Option<Wait>,
}

/// Why there are no frames of a stack, and what the kernel says instead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadStack {
    /// Why it cannot be read.
    pub why: String,
    /// What its process does.
    pub state: ProcessState,
    /// The function of the kernel it waits in.
    pub waits_in: Option<String>,
}
