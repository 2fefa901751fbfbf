use frontier::{Axes, Gates, WindowFrontier, label, ranking};
use model::{Meeting, StageId, Sync, Window};

/// Labels a window anew whose leading stage is where ranks were measured to be late before a
/// recorded collective, or before they are seen to meet: there the wait is no assumption, and we
/// vouch for it.
pub(crate) fn vouch(
    window: &Window,
    found: &mut WindowFrontier,
    late_stages: &[StageId],
    gates: &Gates,
) {
    let mut boundaries = window
        .blocks
        .iter()
        .flat_map(|block| block.boundaries.iter());
    let recorded = window.meeting == Meeting::Seen
        || boundaries.any(|boundary| matches!(boundary.sync, Sync::Issue(_)));
    let leading = ranking(&found.share)
        .first()
        .map(|slot| found.stages[*slot]);
    if recorded && leading.is_some_and(|leading| late_stages.contains(&leading)) {
        // The labeler never infers that waits follow the model (docs/labels/synchronisation.md): a
        // caller says so, and here the lateness was measured.
        let vouched = Gates {
            model_fit: true,
            ..gates.clone()
        };
        let Axes {
            labels,
            co_critical,
            downgrades,
        } = label(window, found, &vouched);
        (found.labels, found.co_critical, found.downgrades) = (labels, co_critical, downgrades);
    }
}
