use model::{Block, Boundary, Ending, MarkKind, StageId, Sync, Window};

/// The default schema.
pub const STAGES: [StageId; 6] = [
    StageId::DATA,
    StageId::FORWARD,
    StageId::BACKWARD,
    StageId::CALLBACKS,
    StageId::OPTIMIZER,
    StageId::OTHER,
];

/// A whole, undisturbed window over `steps`.
///
/// # Shape
/// `steps[step][rank][stage]` in seconds, stages as in `stages`.
/// # Panics
/// If there is no step, or rows differ in length.
pub fn window_of(stages: &[StageId], steps: &[Vec<Vec<f64>>]) -> Window {
    let ranks = steps[0].len();
    let mut durations_s = Vec::with_capacity(steps.len() * ranks * stages.len());
    for step in steps {
        for stage in 0..stages.len() {
            durations_s.extend(step.iter().map(|rank| rank[stage]));
        }
    }
    Block {
        // A matrix tells of no marks and no collectives: any kinds will do, and no boundary joins
        // ranks.
        boundaries: stages
            .iter()
            .map(|stage| Boundary {
                stage: *stage,
                after: MarkKind::StepBegin,
                ending: Ending::Mark(MarkKind::StepEnd),
                sync: Sync::None,
            })
            .collect(),
        groups: None,
        steps: (0..steps.len() as u64).collect(),
        durations_s,
        ranks,
        // Each step is given whole: none of its stages began in the step before.
        carried: 0,
    }
    .into()
}
