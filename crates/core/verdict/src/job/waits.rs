//! Ranks that seem late and only wait for another stage of their pipeline.

use incident::own_blocks;
use model::{Fact, Finding, IncidentKind, Method, StageId, StepPlace};
use schedule::Worked;

use super::Job;

/// Share of its lateness that a rank must have worked longer in its blocks than its copies did, for
/// the lateness to be its own; with less than the second it waited. Ours: between them nothing is said.
const OWN_SHARE: f64 = 0.5;
const WAITED_SHARE: f64 = 0.25;
/// Part of what an incident costs that something must cost, to be why.
const EXPLAINED_SHARE: f64 = 0.5;
/// Stages in which a rank may wait for others' blocks, and no collective shows it: those up to its
/// optimizer.
const STAGES: [StageId; 4] =
    [StageId::FORWARD, StageId::BACKWARD, StageId::CALLBACKS, StageId::OTHER];

/// What blocks say of an incident that stages found.
struct Judged {
    pipeline: Vec<u32>,
    /// Share of the lateness that the ranks worked longer.
    own_share: f64,
    fact: Fact,
}

impl Job {
    /// Incidents of ranks whose own blocks took no longer than those of their copies are part of the
    /// incident they wait for.
    pub(super) fn join_waits(&self, incidents: &mut Vec<Finding>) {
        let judged: Vec<Option<Judged>> =
            incidents.iter().map(|incident| self.judged(incident)).collect();
        let mut waits = Vec::new();
        for (at, wait) in judged.iter().enumerate() {
            let Some(wait) = wait.as_ref().filter(|wait| wait.own_share < WAITED_SHARE)
            else {
                continue;
            };
            let of_pipeline =
                incidents.iter().zip(&judged).position(|(cause, judged)| {
                    let ranks = &cause.subject.ranks;
                    let is_own = match judged {
                        Some(judged) => judged.own_share >= OWN_SHARE,
                        None => cause.is_seen_by(Method::Schedule),
                    };
                    is_own
                        && !ranks.is_empty()
                        && ranks.iter().all(|rank| wait.pipeline.contains(rank))
                        && meet(cause, &incidents[at])
                        && cause.cost.exposed_s
                            >= EXPLAINED_SHARE * incidents[at].cost.exposed_s
                });
            waits.extend(of_pipeline.map(|cause| (at, cause)));
        }
        for (at, cause) in &waits {
            let Finding { subject, mut facts, victims, .. } = incidents[*at].clone();
            let waited = subject.ranks.iter().copied().collect();
            let told = &mut incidents[*cause];
            let all = told.victims.and(&victims).and(&waited);
            told.victims = all.without(&told.subject.ranks);
            facts.extend(judged[*at].as_ref().map(|judged| judged.fact.clone()));
            let named = facts.into_iter().map(|fact| match fact.what.method() {
                // What its blocks say is not that it is to blame.
                Method::Schedule => fact,
                _ => Fact { ranks: subject.ranks.clone(), ..fact },
            });
            let told = &mut incidents[*cause].facts;
            told.extend(named);
            let own = judged[*cause].as_ref().map(|judged| judged.fact.clone());
            let is_new = |own: &Fact| !told.contains(own);
            let own = own.filter(is_new);
            told.extend(own);
        }
        let mut at = 0..incidents.len();
        incidents.retain(|_| {
            let at = at.next();
            !waits.iter().any(|(wait, _)| Some(*wait) == at)
        });
    }

    fn judged(&self, incident: &Finding) -> Option<Judged> {
        let ranks = &incident.subject.ranks;
        let stage = incident.subject.stage.as_deref()?;
        let account = incident.facts.first()?.what.account()?;
        let late_s = account.lateness_s * account.struck_steps as f64;
        let is_asked = incident.kind == IncidentKind::Slow
            && incident.claim.place() != Some(&StepPlace::AfterOptimizer)
            && STAGES.iter().any(|known| self.names.name(*known) == stage);
        if !is_asked || late_s <= 0.0 {
            return None;
        }
        // A step of the accounting may begin in the one before.
        let steps = incident.first_step..=incident.last_step.saturating_add(1);
        let worked = ranks.iter().map(|rank| self.pipelines.own_work(*rank, &steps));
        let worked: Vec<Worked> = worked.collect::<Option<_>>()?;
        let sum = |of: fn(&Worked) -> f64| worked.iter().map(of).sum::<f64>();
        let (own_s, copies_s) = (sum(|it| it.own_s), sum(|it| it.copies_s));
        Some(Judged {
            pipeline: worked.into_iter().next()?.pipeline,
            own_share: (own_s - copies_s) / (late_s * ranks.len() as f64),
            fact: Fact::worded(own_blocks(ranks, own_s, copies_s)),
        })
    }
}

/// Whether something that cost so many seconds from the first to the last of these steps takes so much
/// of each that steps can be slower for it, as an incident says: what went on before as well is no reason
/// why a job is slower than it was.
pub(super) fn explains((cost_s, steps): (f64, (u64, u64)), incident: &Finding) -> bool {
    let per_step = |cost_s: f64, (first, last): (u64, u64)| {
        cost_s / last.saturating_sub(first).saturating_add(1) as f64
    };
    let of_incident =
        per_step(incident.cost.exposed_s, (incident.first_step, incident.last_step));
    per_step(cost_s, steps) >= EXPLAINED_SHARE * of_incident
}

/// Whether two incidents have steps in common, or steps beside one another.
pub(super) fn meet(one: &Finding, other: &Finding) -> bool {
    one.first_step <= other.last_step.saturating_add(1)
        && other.first_step <= one.last_step.saturating_add(1)
}
