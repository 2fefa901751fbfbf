use crate::{CollectiveOp, MarkKind, RankNs, StageId};

/// What ends a segment of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// A mark of the loop itself.
    Mark(MarkKind),
    /// The rank issued a collective: until here the time is its own work.
    Issue {
        /// Which collective.
        op: CollectiveOp,
        /// Which communicator: equal on all its members, zero if unknown.
        group: u32,
    },
}

impl Ending {
    /// Whether a collective is issued here that may join more than two ranks.
    pub fn joins(self) -> bool {
        matches!(self, Self::Issue { op, .. } if !op.is_point_to_point())
    }

    /// Whether something is sent or received here.
    pub fn is_point_to_point(self) -> bool {
        matches!(self, Self::Issue { op, .. } if op.is_point_to_point())
    }
}

/// A span of one step on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The stage it is charged to.
    pub stage: StageId,
    /// The mark before it, for naming the place.
    pub after: MarkKind,
    /// What ends it.
    pub ending: Ending,
    /// When it ends.
    pub end: RankNs,
}

/// Which of the collectives that a group's ranks issue together one is: the same on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveNumber {
    /// The communicator.
    pub group: u32,
    /// How many its ranks have issued in it, this one included.
    pub number: u64,
}

/// A measurement beside the step's time line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SideSample {
    /// The side channel.
    pub channel: StageId,
    /// Seconds it measured, `None` if its event never became ready.
    pub seconds: Option<f64>,
}

/// One step of one rank: segments that tile it without gap or overlap.
///
/// # Invariants
/// Segment ends do not decrease and the first is not before `start`.
#[derive(Clone, Debug, PartialEq)]
pub struct RankStep {
    /// The step's number on this rank.
    pub step: u32,
    /// When it started.
    pub start: RankNs,
    /// Its spans, in time order.
    pub segments: Vec<Segment>,
    /// Outermost backward passes in it: the accumulation factor where there is one loss.
    pub micro_steps: u16,
    /// Batches that were read in it.
    pub batches: u16,
    /// The first collective that it issues, if somebody counted.
    pub first_collective: Option<CollectiveNumber>,
    /// Measurements beside the time line.
    pub side: Vec<SideSample>,
    /// Seconds that stages claimed twice; possible only in recordings.
    pub overlap_s: f64,
    /// Whether the step ended with a mark of the next one.
    pub complete: bool,
}
