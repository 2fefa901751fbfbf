/// Which of two runs that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparedRun {
    /// The run that is compared with.
    A,
    /// The run in question.
    B,
}

/// What could not be compared of two runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComparisonNote {
    /// They have different numbers of ranks.
    OtherRanks {
        /// Of A and B.
        ranks: [usize; 2],
    },
    /// Their steps are cut at different places.
    OtherCut {
        /// In words, of A and B.
        cuts: [String; 2],
    },
    /// Too little of a run was analysed.
    TooLittle {
        /// Which.
        run: ComparedRun,
        /// Windows or steps of it that were.
        analysed: usize,
        /// Whether these are steps.
        are_steps: bool,
        /// How many are needed.
        needed: usize,
    },
    /// A run lost records.
    LostRecords {
        /// Which.
        run: ComparedRun,
        /// How many.
        records: u64,
    },
}
