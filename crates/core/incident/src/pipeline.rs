//! What holds a pipeline back by its calls, and where it stands still.

use model::{
    AbsorbedBlock, Action, BlockCause, Claim, Cost, Fact, Finding, IncidentKind, JobContext,
    Observation, Origin, Pace, PipelineAction, PipelineFact, PipelineHalt, Severity,
    SlowIterations, Subject,
};
use schedule::Diagnosis;

use crate::IncidentSettings;

/// The finding about iterations that a pipeline took too long for.
pub fn pipeline_slowed(
    found: &SlowIterations,
    pipeline: &Diagnosis,
    context: JobContext<'_>,
    id: String,
    settings: &IncidentSettings,
) -> Finding {
    let cost_share = found.lost_s / pipeline.total_s.max(found.lost_s);
    // Nobody is to blame: iterations took longer, and that is all.
    let kind = if found.ranks.is_empty() && found.stage.is_none() {
        IncidentKind::Degraded
    } else {
        IncidentKind::Slow
    };
    let pace = if found.first == found.last {
        Pace::Once { step: found.first }
    } else {
        Pace::Steady
    };
    Finding {
        kind,
        severity: settings.severity(cost_share),
        open: found.open,
        subject: Subject {
            ranks: found.ranks.clone(),
            hosts: context.hosts_of(&found.ranks),
            stage: found.stage.map(|stage| format!("pipeline stage {stage}")),
            block: found.part().map(|part| part.to_string()),
            ..Subject::default()
        },
        pace,
        first_step: found.first,
        last_step: found.last,
        victims: context.others(&found.ranks),
        cost: Cost::saved_whole(found.lost_s, cost_share),
        facts: facts(found),
        actions: vec![action(found)],
        ..Finding::new(
            Origin::Calls,
            id,
            Claim::SlowIterations(Box::new(found.clone())),
        )
    }
}

fn facts(found: &SlowIterations) -> Vec<Fact> {
    let waited_for = |of_copies| {
        let ranks = found.ranks.clone();
        move |share| PipelineFact::WaitedForAlone {
            ranks,
            of_copies,
            share,
        }
    };
    let passes = found.passes.iter().copied().map(PipelineFact::SlowPass);
    let outside = found
        .outside_s
        .map(|(usual_s, took_s)| PipelineFact::Outside { took_s, usual_s });
    let last = found.last_share.map(|share| {
        let ranks = found.ranks.clone();
        PipelineFact::LastToEnter { ranks, share }
    });
    let span = found
        .span_ns
        .map(|(first_ns, last_ns)| PipelineFact::Span { first_ns, last_ns });
    passes
        .chain(outside)
        .chain(found.wide_share.map(waited_for(false)))
        .chain(found.copies_share.map(waited_for(true)))
        .chain(last)
        .chain(span)
        .map(|what| Observation::Pipeline(Box::new(what)).into())
        .collect()
}

/// What to look at next, of ranks that are named or whose logs are missing.
fn action(found: &SlowIterations) -> Action {
    let ranks = found.ranks.clone();
    Action::InPipeline(match found.cause {
        BlockCause::Compute => PipelineAction::LookAtGpu { ranks },
        BlockCause::Host => PipelineAction::LookAtHost { ranks },
        BlockCause::Transfer => PipelineAction::LookAtLinkInto { ranks },
        BlockCause::Outside => PipelineAction::LookBetweenIterations { ranks },
        // All ranks have logs, and nothing in them explains it: more logs would not help.
        BlockCause::Unseen if found.unseen.is_empty() => {
            return Action::LookAtWhatChanged;
        }
        BlockCause::Unseen => PipelineAction::GetLogs {
            ranks: found.unseen.clone(),
        },
    })
}

/// The blocks that were slow and that the slack of a pipeline took.
pub fn pipeline_absorbed(diagnosis: &Diagnosis) -> Vec<AbsorbedBlock> {
    let absorbed = diagnosis.absorbed.iter();
    absorbed
        .map(|(iteration, slow)| slow.absorbed(*iteration, None))
        .collect()
}

/// The finding about a pipeline that stands still.
pub fn pipeline_halted(halt: &PipelineHalt, context: JobContext<'_>, id: String) -> Finding {
    let ranks = &halt.ranks;
    let PipelineHalt {
        silent_s, usual_s, ..
    } = *halt;
    let went_on = halt
        .ahead_s
        .map(|(ahead_s, usual_late_s)| PipelineFact::OthersWentOn {
            ahead_s,
            usual_late_s,
        });
    let facts = std::iter::once(PipelineFact::Overdue { silent_s, usual_s });
    Finding {
        kind: IncidentKind::Hang,
        severity: Severity::Critical,
        subject: Subject {
            ranks: ranks.clone(),
            hosts: context.hosts_of(ranks),
            stage: Some(format!("pipeline stage {}", halt.stage)),
            block: Some(halt.block.to_string()),
            ..Subject::default()
        },
        pace: Pace::Once {
            step: halt.iteration,
        },
        first_step: halt.iteration,
        last_step: halt.iteration,
        victims: context.others(ranks),
        facts: facts
            .chain(went_on)
            .map(|what| Observation::Pipeline(Box::new(what)).into())
            .collect(),
        actions: vec![Action::InPipeline(PipelineAction::LookAtProcess {
            ranks: ranks.clone(),
        })],
        ..Finding::new(
            Origin::Calls,
            id,
            Claim::PipelineHalt(Box::new(halt.clone())),
        )
    }
}
