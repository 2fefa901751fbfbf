//! What tests of this crate share.

use model::{RankNs, RankStep, Segment};

/// A step of a plain loop: a batch, and a backward pass.
pub(crate) fn rank_step(step: u32, start: RankNs, segments: Vec<Segment>) -> RankStep {
    RankStep {
        step,
        start,
        segments,
        micro_steps: 1,
        batches: 1,
        first_collective: None,
        side: Vec::new(),
        overlap_s: 0.0,
        complete: true,
    }
}
