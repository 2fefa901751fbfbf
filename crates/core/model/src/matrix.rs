//! Where a value stands in the matrix of a window.

/// Row of a matrix: an index into its steps in their order, not a step's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StepRow(pub usize);

/// Column of a matrix: an index into its ranks, [`Window::ranks`](crate::Window::ranks) of a
/// window's; not a rank's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RankColumn(pub usize);

/// Place of a stage: an index into [`Window::stages`](crate::Window::stages), not a stage's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StageSlot(pub usize);
