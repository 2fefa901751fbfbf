//! What methods say differently of one finding.

use crate::{Cause, Method, Question};

/// Methods that answer a question about one finding differently.
/// [`Contradiction`](crate::Contradiction) is the same in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// The question.
    pub about: Question,
    /// What each method answers, the one to trust first in front.
    pub answers: Vec<(Method, Position)>,
    /// Why that one is to be trusted first.
    pub trust: Trust,
}

/// A method's answer to a [`Question`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Position {
    /// These ranks are to blame.
    Ranks(Vec<u32>),
    /// It is in this stage.
    Stage(String),
    /// This is to blame.
    Cause(Cause),
}

/// Why an answer is to be trusted; of answers to one question, the earlier reason counts for more.
/// The table stands in docs/incidents.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    /// A process without a core takes longer for whatever it does.
    LackOfCores,
    /// Counters know who is waited for at each moment.
    Counters,
    /// Blocks tell own work from waits for other stages.
    OwnBlocks,
    /// All own work in all steps is compared.
    OwnWork,
    /// It is known who came last, and not what for.
    LastToArrive,
    /// It is known who spends time, also in waits.
    TimeSpent,
    /// All time of all steps is accounted.
    AllSteps,
    /// A few steps were looked at.
    FewSteps,
    /// What takes the time was observed.
    TakesTime,
    /// What is lost was observed, and where.
    LosesBytes,
    /// What holds the device back was observed.
    HoldsDevice,
}
