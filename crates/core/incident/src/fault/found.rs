//! What is found wrong in a window.

use model::{Block, Ranks, Side, StageId, StepPlace};

use super::OTHER_SIZE_RATIO;

/// Stages in which a host launches nothing: its device may be done before it goes on.
const WITHOUT_LAUNCHES: [StageId; 4] = [
    StageId::DATA,
    StageId::DATA_GAP,
    StageId::CALLBACKS,
    StageId::OTHER,
];

/// What kind of thing was found in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// Some ranks do more work than their peers.
    LateRanks,
    /// The same, on changing ranks.
    Rotating,
    /// All ranks wait for data.
    InputBound,
    /// The whole job is slower than it was.
    Degraded,
    /// A stage that synchronises leads, and nobody recorded who arrives last.
    UnknownRank,
}

/// A fault another one hides.
#[derive(Clone, Debug, PartialEq)]
pub struct Hidden {
    /// Its ranks.
    pub ranks: Vec<u32>,
    /// Its stage.
    pub stage: StageId,
    /// Lateness a struck step, in seconds.
    pub lateness_s: f64,
    /// Exposed seconds saved by fixing only it.
    pub gain_alone_s: f64,
    /// Exposed seconds saved by fixing it and the fault that hides it.
    pub gain_both_s: f64,
}

impl Hidden {
    /// Whether this fault is it.
    pub(crate) fn is(&self, fault: &Fault) -> bool {
        (&self.ranks, self.stage) == (&fault.ranks, fault.stage)
    }
}

/// What of a fault's lateness is in a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LateShare {
    /// The stage.
    pub stage: StageId,
    /// The share.
    pub share: f64,
}

/// Something one window says is wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// What kind of thing it is.
    pub kind: FaultKind,
    /// The culprits, ascending; empty if nobody in particular.
    pub ranks: Vec<u32>,
    /// Where most of the lateness is.
    pub stage: StageId,
    /// Further stages in which the same ranks are late in the same steps.
    pub other_stages: Vec<LateShare>,
    /// Where in the stage, if that says more than its name.
    pub place: Option<StepPlace>,
    /// What of the ranks is late, where their devices were seen.
    pub side: Option<Side>,
    /// What the other ranks' devices take in its stages, in seconds a step; 0 where devices were
    /// not seen.
    pub level_s: f64,
    /// Steps it struck, ascending.
    pub strikes: Vec<u64>,
    /// Whether only sampled steps show that it strikes.
    pub sampled: bool,
    /// Mean lateness of a struck step, in seconds.
    pub lateness_s: f64,
    /// Exposed seconds it added to the window, as things stand. The costs of a window's
    /// faults sum to what fixing all of them would save.
    pub cost_s: f64,
    /// Exposed seconds of the window saved by fixing only it.
    pub gain_alone_s: f64,
    /// Ranks that waited for the culprits in the steps it struck, or were slower where there are
    /// none.
    pub victims: Ranks,
    /// Faults it hides.
    pub hides: Vec<Hidden>,
    /// Whether it is hidden itself: it costs nothing until another one is fixed.
    pub hidden: bool,
    /// Whether its hosts are late because they read back where others do not.
    pub reads_back: bool,
    /// Whether others are late in its stage in other steps, for whom it may wait in those that it strikes.
    pub in_turn: bool,
    /// Whether this window alone is reason enough to speak of it.
    pub notable: bool,
}

impl Fault {
    /// Its stages, the one with most of the lateness first.
    pub(crate) fn stages(&self) -> impl Iterator<Item = LateShare> {
        let others: f64 = self.other_stages.iter().map(|it| it.share).sum();
        let first = LateShare {
            stage: self.stage,
            share: 1.0 - others,
        };
        std::iter::once(first).chain(self.other_stages.iter().copied())
    }

    /// Whether it is in a stage.
    pub(crate) fn is_in(&self, stage: StageId) -> bool {
        self.stages().any(|it| it.stage == stage)
    }

    /// Whether it strikes a row of a block in a stage.
    pub(crate) fn strikes_in(&self, block: &Block, row: usize, stage: StageId) -> bool {
        let is_struck = || self.strikes.binary_search(&block.step_of(row, stage));
        self.is_in(stage) && is_struck().is_ok()
    }

    /// Seconds of lateness in all steps that it struck.
    pub(crate) fn late_sum_s(&self) -> f64 {
        self.lateness_s * self.strikes.len() as f64
    }

    /// Whether another one is late in a step by about as much.
    pub(crate) fn is_as_late_as(&self, other: &Self) -> bool {
        let ratio = other.lateness_s / self.lateness_s;
        (1.0 / OTHER_SIZE_RATIO..=OTHER_SIZE_RATIO).contains(&ratio)
    }

    /// Whether the late ranks may launch work where they are late: then their devices need not wait.
    pub(crate) fn launches(&self) -> bool {
        self.stages()
            .any(|it| !WITHOUT_LAUNCHES.contains(&it.stage))
    }

    /// Takes in the steps that another one of the same ranks strikes in the same stages.
    pub(crate) fn join_strikes(&mut self, other: &Self) {
        let late_s = self.late_sum_s() + other.late_sum_s();
        self.strikes.extend(&other.strikes);
        self.strikes.sort_unstable();
        self.strikes.dedup();
        self.lateness_s = late_s / self.strikes.len().max(1) as f64;
    }

    /// The same with what it costs in so many times the steps.
    pub(crate) fn times(mut self, times: f64) -> Self {
        self.cost_s *= times;
        self.gain_alone_s *= times;
        for hidden in &mut self.hides {
            hidden.gain_alone_s *= times;
            hidden.gain_both_s *= times;
        }
        self
    }
}
