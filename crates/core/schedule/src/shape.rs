//! How a job is divided, inferred from what its ranks call.

use crate::lanes::{LaneCalls, LaneKind};
use crate::{Axis, Layout, LayoutError, Sizes};

/// Times as far apart as neighbours that two groups must be to be two. Measured: groups of one
/// job differ by a factor of 40 where communicators are not the same.
const APART: u64 = 3;

/// What a rank's part of the pipeline looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PipelineEnd {
    /// It begins with a send.
    First,
    /// It is another.
    Other,
}

/// The lane of a rank on which its layers meet: neither sends nor receives, not shared by all,
/// and the busiest. Each block has a call on it, so that it is no less busy than sends and
/// receives are: gradients of pipelines meet less often.
pub(crate) fn layer_lane(lanes: &[LaneCalls], wide: &[usize]) -> Option<usize> {
    let mut candidates: Vec<usize> = (0..lanes.len())
        .filter(|place| lanes[*place].kind == LaneKind::Collective && !wide.contains(place))
        .collect();
    candidates.sort_by_key(|place| lanes[*place].calls.len());
    let points = lanes.iter().filter(|lane| lane.kind == LaneKind::Point);
    let messages: usize = points.map(|lane| lane.calls.len()).sum();
    candidates
        .pop()
        .filter(|place| lanes[*place].calls.len() > messages.max(1))
}

/// Completes what was given of the layout by what is seen.
///
/// `ends[rank]` and `layers[rank]` are `None` for ranks without a log.
pub(crate) fn layout(
    sizes: &Sizes,
    ends: &[Option<PipelineEnd>],
    layers: &[Option<&LaneCalls>],
) -> Result<Layout, LayoutError> {
    let ranks = ends.len() as u32;
    let mut sizes = sizes.clone();
    if !sizes.is_given(Axis::Pipeline) {
        let stage = stage_of_first(ends);
        let first = ends
            .iter()
            .filter(|end| **end == Some(PipelineEnd::First))
            .count() as u32;
        // Without rank 0 nobody knows how many of the first stage are missing.
        if stage > 0 && ranks.is_multiple_of(first) && first < ranks {
            sizes.given.push((Axis::Pipeline, ranks / first));
            if stage < first && sizes.order.is_empty() {
                sizes.order = vec![Axis::Tensor, Axis::Context, Axis::Pipeline];
            }
        }
    }
    if !sizes.is_given(Axis::Tensor) && layers.iter().any(Option::is_some) {
        let trial = Layout::new(ranks, &sizes)?;
        // Ranks of one stage that stand side by side.
        let side_by_side = match trial.stride(Axis::Pipeline) {
            1 if trial.size(Axis::Pipeline) > 1 => stage_of_first(ends),
            stride if trial.size(Axis::Pipeline) > 1 => stride,
            _ => ranks,
        };
        sizes
            .given
            .push((Axis::Tensor, tensor(side_by_side.max(1), layers)));
    }
    Layout::new(ranks, &sizes)
}

/// How many ranks of the first stage stand side by side, from rank 0 on.
fn stage_of_first(ends: &[Option<PipelineEnd>]) -> u32 {
    ends.iter()
        .take_while(|end| **end == Some(PipelineEnd::First))
        .count() as u32
}

/// The size of tensor groups: the largest whose first and last rank are as close in time as
/// those of the smallest, or have the same hash.
fn tensor(side_by_side: u32, layers: &[Option<&LaneCalls>]) -> u32 {
    let sizes = (2..=side_by_side).filter(|size| side_by_side.is_multiple_of(*size));
    let (mut found, mut nearest) = (1, None);
    for size in sizes {
        let groups = layers.chunks_exact(size as usize);
        let mut fits: Vec<u64> = groups
            .filter_map(|group| Some((group[0]?, group[group.len() - 1]?)))
            .map(|(first, last)| match first.fit(last) {
                // Hashes that go together leave no doubt, however far apart the calls are.
                Some(_) if !first.hash.is_empty() && !last.hash.is_empty() => 0,
                Some(fit) => fit.distance_ns(),
                None => u64::MAX,
            })
            .collect();
        // The median: a few groups of a wrong size may be near by chance.
        let Some(distance) = crate::lanes::median(&mut fits) else {
            continue;
        };
        let limit = *nearest.get_or_insert(distance);
        if distance == u64::MAX || distance > limit.saturating_mul(APART) {
            break;
        }
        found = size;
    }
    found
}
