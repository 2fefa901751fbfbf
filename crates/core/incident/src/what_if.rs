//! What a what-if analysis finds.

use model::{
    Action, Claim, Cost, Finding, Observation, Origin, Pace, PassRatios, PipelineAction, Ranks,
    Removal, Severity, SlowdownCause, StepSlowdown, Subject, WhatIf,
};

use crate::IncidentSettings;

/// The finding about one cause of a slowdown; `id` tells it from the job's others.
pub fn what_if(
    what_if: &WhatIf,
    cause: &SlowdownCause,
    id: String,
    settings: &IncidentSettings,
) -> Finding {
    let simulated_s = what_if.mean_simulated_s();
    let saved_s = |removal: Option<&Removal>| {
        removal.map_or(0.0, |removal| (simulated_s - removal.without_s).max(0.0))
    };
    let (removal, saved_s, pace) = match cause {
        SlowdownCause::Rank { .. } => {
            let removal = what_if.slowest_ranks.as_ref();
            (removal, saved_s(removal), Pace::Steady)
        }
        SlowdownCause::Stage { .. } => {
            let removal = what_if.slowest_stage.as_ref();
            (removal, saved_s(removal), Pace::Steady)
        }
        // Long sequences move over ranks and steps: no simulation runs without them, so all that is
        // lost to the ideal is charged.
        SlowdownCause::Data { .. } => (None, simulated_s - what_if.ideal_s, Pace::Rotating),
        SlowdownCause::Unexplained { .. } => (None, simulated_s - what_if.ideal_s, Pace::Sporadic),
    };
    let subject = subject(cause);
    let cost_share = saved_s / simulated_s;
    let steps = &what_if.steps;
    let dp_ranks = what_if.ranks.iter().map(|rank| rank.dp_rank).max();
    let slowdown = Box::new(StepSlowdown {
        cause: cause.clone(),
        slowdown: what_if.slowdown,
        simulated_s,
        saved_s,
        removal: removal.cloned(),
        peers: what_if.peers,
        // Ranks of data parallelism count from 0: the largest is 0 where each stage exists once.
        has_copies: dp_ranks != Some(0),
    });
    Finding {
        severity: severity(cause, cost_share, settings),
        victims: others(what_if, &subject.ranks),
        subject,
        pace,
        first_step: steps.first().copied().unwrap_or_default(),
        last_step: steps.last().copied().unwrap_or_default(),
        cost: Cost::saved_whole(saved_s * steps.len() as f64, cost_share),
        facts: vec![Observation::StepSlowdown(slowdown.clone()).into()],
        actions: vec![Action::InPipeline(action(cause))],
        ..Finding::new(Origin::WhatIf, id, Claim::StepSlowdown(slowdown))
    }
}

fn severity(cause: &SlowdownCause, share: f64, settings: &IncidentSettings) -> Severity {
    let explained = !matches!(cause, SlowdownCause::Unexplained { .. });
    if explained {
        settings.severity(share)
    } else {
        // There is nobody to call for what no rank, stage or sequence explains.
        Severity::Info
    }
}

/// Recorded ranks that are not named.
fn others(what_if: &WhatIf, named: &[u32]) -> Ranks {
    let ranks: Ranks = what_if.ranks.iter().map(|rank| rank.rank).collect();
    ranks.without(named)
}

fn subject(cause: &SlowdownCause) -> Subject {
    let (ranks, stage, block) = match cause {
        SlowdownCause::Rank {
            rank,
            stage,
            passes,
            ..
        } => (vec![*rank], Some(*stage), Some(block(*passes))),
        SlowdownCause::Stage { stage, passes } => (Vec::new(), Some(*stage), Some(block(*passes))),
        SlowdownCause::Data { .. } => (Vec::new(), None, Some("forward and backward passes")),
        SlowdownCause::Unexplained { .. } => (Vec::new(), None, None),
    };
    Subject {
        ranks,
        stage: stage.map(|stage| format!("pipeline stage {stage}")),
        block: block.map(ToOwned::to_owned),
        ..Subject::default()
    }
}

/// Which passes are longer than those they are compared with.
fn block(passes: PassRatios) -> &'static str {
    match (passes.forward_is_longer(), passes.backward_is_longer()) {
        (true, false) => "forward passes",
        (false, true) => "backward passes",
        (true, true) => "forward and backward passes",
        (false, false) => "communication",
    }
}

fn action(cause: &SlowdownCause) -> PipelineAction {
    match cause {
        SlowdownCause::Rank { rank, .. } => PipelineAction::LookAtMachine { ranks: vec![*rank] },
        SlowdownCause::Stage { stage, .. } => PipelineAction::MoveLayers { stage: *stage },
        SlowdownCause::Data { .. } => PipelineAction::BalanceSequences,
        SlowdownCause::Unexplained { op_type, .. } => PipelineAction::LookAtOperations {
            op_type: op_type.clone(),
        },
    }
}
