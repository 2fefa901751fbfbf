/// Why labels of a window were weakened: something of it was not recorded, or not what the labels
/// assume.
#[derive(Clone, Debug, PartialEq)]
pub enum Downgrade {
    /// No step was seen whole on every rank.
    NoWholeStep,
    /// Too much of the step lies outside every stage.
    Uncovered {
        /// How much of it.
        share: f64,
    },
    /// Stages claim too much of the step twice.
    ClaimedTwice {
        /// How much of it.
        share: f64,
    },
    /// Ranks delivered nothing.
    MissingRanks {
        /// Which.
        ranks: Vec<u32>,
    },
    /// Ranks on other hosts are not watched.
    UnseenRanks {
        /// How many.
        ranks: usize,
    },
    /// Steps were not seen whole on every rank.
    IncompleteSteps {
        /// How many.
        steps: u64,
    },
    /// Waits for batches read ahead could not be given to the steps that use them.
    BatchesReadAhead,
    /// Ranks that do different work were compared as if they did the same.
    RolesUngrouped {
        /// Kinds of work.
        roles: usize,
    },
    /// Micro-steps were summed, or differ in number.
    MicroSteps,
}
