//! Functions that stand out.

use model::{
    Action, Claim, Cost, Fact, Finding, FunctionFault, JobContext, Observation, Origin, Subject,
};

use crate::IncidentSettings;

/// The finding about a function that costs some ranks, or all, more than it should.
pub fn function(
    found: &FunctionFault,
    context: JobContext<'_>,
    settings: &IncidentSettings,
) -> Finding {
    let ranks = found.ranks.clone();
    Finding {
        severity: settings.severity(found.excess_share),
        subject: Subject {
            hosts: context.hosts_of(&ranks),
            ranks: ranks.clone(),
            function: Some(found.name.clone()),
            ..Subject::default()
        },
        first_step: found.steps.0,
        last_step: found.steps.1,
        victims: context.others(&ranks),
        cost: Cost::saved_whole(found.cost_s, found.excess_share),
        facts: vec![Fact {
            ranks: Vec::new(),
            stage: found
                .stage()
                .map(|stage| context.names.name(stage).to_owned()),
            what: Observation::Function(Box::new(found.clone())),
        }],
        actions: vec![Action::LookAtFunction {
            ranks,
            at: found.need(),
        }],
        ..Finding::new(
            Origin::Profile,
            format!("f{}", found.number),
            Claim::Function(Box::new(found.clone())),
        )
    }
}
