//! Causes that no rank in particular is to blame for.

use std::collections::BTreeMap;

use frontier::WindowFrontier;
use model::{Meeting, StageId, Sync, Window, median};

use crate::{Fault, FaultKind, IncidentSettings};

/// Fewest rows of a window that may serve as, or be compared with, the job's own past.
const MIN_ROWS: usize = 10;

/// The job's own best window: what its steps cost when nothing was wrong.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reference {
    step_s: f64,
    advance_s: BTreeMap<StageId, f64>,
}

impl Reference {
    /// What a window would set as reference, `None` if it is too short.
    pub(crate) fn of(found: &WindowFrontier) -> Option<Self> {
        if found.steps.len() < MIN_ROWS {
            return None;
        }
        let advances = found.stages.iter().enumerate().map(|(slot, stage)| {
            let steps = found.steps.iter();
            let mut advances: Vec<f64> =
                steps.filter_map(|step| Some(step.stages[slot]?.advance_s)).collect();
            (*stage, median(&mut advances).unwrap_or(0.0))
        });
        Some(Self { advance_s: advances.collect(), step_s: found.median_step_s() })
    }

    /// The better of two.
    pub(crate) fn better(self, other: Self) -> Self {
        if other.step_s < self.step_s { other } else { self }
    }
}

/// Finds what holds all ranks of a window back alike.
///
/// `faults` are those of single ranks: what they explain is not explained again.
pub(crate) fn common_causes(
    window: &Window,
    found: &WindowFrontier,
    faults: &[Fault],
    reference: Option<&Reference>,
    settings: &IncidentSettings,
) -> Vec<Fault> {
    let mut causes = Vec::new();
    let explained_s = |stage: StageId| {
        let of_stage = faults.iter().filter(|fault| fault.stage == stage);
        of_stage.map(|fault| fault.cost_s).sum::<f64>()
    };
    if let Some(slot) = found.slot(StageId::DATA) {
        let cost_s = (found.advance_s[slot] - explained_s(StageId::DATA))
            .min(usual_s(window, StageId::DATA));
        let dominant = cost_s >= settings.input_share_min * found.exposed_s;
        if dominant && cost_s > 0.0 {
            let kind = FaultKind::InputBound;
            causes.push(common(kind, StageId::DATA, cost_s, (window, found)));
        }
    }
    if causes.is_empty() {
        let all_s: f64 = faults.iter().map(|fault| fault.cost_s).sum();
        causes.extend(degraded(window, found, all_s, reference, settings));
    }
    if causes.is_empty() && !faults.iter().any(|fault| fault.notable) {
        causes.extend(unknown_rank(window, found, settings));
    }
    causes
}

/// Seconds the usual rank spends in a stage, over all steps: where all wait, so does it.
fn usual_s(window: &Window, stage: StageId) -> f64 {
    let mut sum_s = 0.0;
    for block in &window.blocks {
        for (_, row) in block.rows() {
            let mut totals_s = vec![0.0; block.ranks];
            let segments = row.chunks_exact(block.ranks).zip(block.boundaries.iter());
            for (cells, _) in segments.filter(|(_, boundary)| boundary.stage == stage) {
                for (total_s, seconds) in totals_s.iter_mut().zip(cells) {
                    *total_s += seconds;
                }
            }
            sum_s += median(&mut totals_s).unwrap_or(0.0);
        }
    }
    sum_s
}

fn degraded(
    window: &Window,
    found: &WindowFrontier,
    explained_s: f64,
    reference: Option<&Reference>,
    settings: &IncidentSettings,
) -> Option<Fault> {
    let reference = reference?;
    let now = Reference::of(found)?;
    let steps = found.steps.len() as f64;
    let unexplained_s = now.step_s - explained_s / steps;
    let slower = unexplained_s >= settings.degraded_ratio * reference.step_s
        && unexplained_s - reference.step_s >= settings.degraded_min_s;
    if !slower {
        return None;
    }
    let growth = |stage: &StageId| {
        let before = reference.advance_s.get(stage).copied().unwrap_or(0.0);
        now.advance_s.get(stage).copied().unwrap_or(0.0) - before
    };
    let stage =
        found.stages.iter().copied().max_by(|a, b| growth(a).total_cmp(&growth(b)))?;
    let cost_s = (unexplained_s - reference.step_s) * steps;
    // One slow window is weather: the tracker speaks of it when a second one follows.
    Some(Fault {
        notable: false,
        ..common(FaultKind::Degraded, stage, cost_s, (window, found))
    })
}

fn unknown_rank(
    window: &Window,
    found: &WindowFrontier,
    settings: &IncidentSettings,
) -> Option<Fault> {
    let boundaries = || window.blocks.iter().flat_map(|block| block.boundaries.iter());
    let assumed = boundaries().any(|boundary| boundary.sync == Sync::Assumed)
        && !boundaries().any(|boundary| matches!(boundary.sync, Sync::Issue(_)));
    let slot = frontier::ranking(&found.share).first().copied()?;
    let dominant = found.share[slot] >= settings.unknown_share_min;
    let synchronises = found.stages[slot] == StageId::BACKWARD
        || frontier::synchronising_stages(window).contains(&found.stages[slot]);
    // Where ranks meet elsewhere, who comes last is measured.
    let assumed = assumed && window.meeting == Meeting::Issued;
    let unknown = window.ranks.len() > 1 && assumed && dominant && synchronises;
    unknown
        .then(|| common(FaultKind::UnknownRank, found.stages[slot], 0.0, (window, found)))
}

fn common(
    kind: FaultKind,
    stage: StageId,
    cost_s: f64,
    (window, found): (&Window, &WindowFrontier),
) -> Fault {
    let steps = found.steps.len().max(1) as f64;
    Fault {
        kind,
        ranks: Vec::new(),
        stage,
        other_stages: Vec::new(),
        place: None,
        strikes: found.steps.iter().map(|account| account.step).collect(),
        lateness_s: cost_s / steps,
        cost_s,
        gain_alone_s: cost_s,
        victims: window.ranks.iter().copied().collect(),
        hides: Vec::new(),
        hidden: false,
        notable: true,
    }
}
