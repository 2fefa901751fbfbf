//! One colour a stage, the same everywhere on the page and from report to report.

use model::{StageId, StageNames, StageSummary};

/// Colours of their own: five for the stages most jobs have, and two to spare.
const OWN: usize = 7;
/// Built-in stages that always wear the same colour, by its number.
const FIXED: [StageId; 5] = [
    StageId::DATA,
    StageId::FORWARD,
    StageId::BACKWARD,
    StageId::CALLBACKS,
    StageId::OPTIMIZER,
];

/// What a stage is painted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    /// A colour of its own.
    Own(usize),
    /// The residual's grey.
    Residual,
    /// The one colour of all stages there is no colour left for.
    Shared,
}

impl Paint {
    /// The class that page.css gives the colour to.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Own(at) => ["s0", "s1", "s2", "s3", "s4", "s5", "s6"][at % OWN],
            Self::Residual => "sr",
            Self::Shared => "sx",
        }
    }
}

/// Gives every stage its paint; where colours run out, the costliest stages get them.
pub(crate) fn paints(stages: &[StageSummary], names: &StageNames) -> Vec<Paint> {
    let mut paints: Vec<Option<Paint>> = stages
        .iter()
        .map(|stage| {
            // A verdict has stages by name only; their ids may differ from job to job.
            if stage.name == names.name(StageId::OTHER) {
                return Some(Paint::Residual);
            }
            let place = FIXED.iter().position(|id| stage.name == names.name(*id));
            place.map(Paint::Own)
        })
        .collect();
    // Colours nobody wears yet, those that no built-in stage is known by first.
    let taken = paints.clone();
    let mut free = [5, 6, 4, 3, 2, 1, 0]
        .into_iter()
        .map(Paint::Own)
        .filter(|paint| !taken.contains(&Some(*paint)));
    let mut bare: Vec<usize> = (0..stages.len())
        .filter(|at| paints[*at].is_none())
        .collect();
    // Ties keep the order of the stages, so the same verdict is painted the same.
    bare.sort_by(|a, b| stages[*b].advance_s.total_cmp(&stages[*a].advance_s));
    for at in bare {
        paints[at] = Some(free.next().unwrap_or(Paint::Shared));
    }
    paints
        .into_iter()
        .map(|paint| paint.unwrap_or(Paint::Shared))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(name: &str, advance_s: f64) -> StageSummary {
        let name = name.to_owned();
        StageSummary {
            name,
            advance_s,
            share: 0.0,
            gain: 0.0,
            lead_ranks: Vec::new(),
        }
    }

    #[test]
    fn built_in_stages_keep_their_colour_whoever_else_is_there() {
        let names = StageNames::default();
        let stages = [
            stage("model.backward_cpu_wall", 1.0),
            stage("step.other_cpu_wall", 1.0),
            stage("tokenise", 9.0),
        ];
        let paints = paints(&stages, &names);
        assert_eq!(paints, [Paint::Own(2), Paint::Residual, Paint::Own(5)]);
    }

    #[test]
    fn when_colours_run_out_the_cheapest_stages_share_one() {
        let stages: Vec<_> = (0..20)
            .map(|at| stage(&format!("stage {at}"), f64::from(at)))
            .collect();
        let paints = paints(&stages, &StageNames::default());
        let shared: Vec<usize> = (0..20).filter(|at| paints[*at] == Paint::Shared).collect();
        assert_eq!(shared, (0..13).collect::<Vec<_>>());
    }
}
