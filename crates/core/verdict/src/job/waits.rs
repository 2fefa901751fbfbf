//! Ranks that seem late and only wait for another stage of their pipeline.

use incident::{AFTER_OPTIMIZER, own_blocks};
use model::{Evidence, Incident, IncidentKind, Method, StageId, fold_ranks};
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
    evidence: Evidence,
}

impl Job {
    /// Incidents of ranks whose own blocks took no longer than those of their copies are part of the
    /// incident they wait for.
    pub(super) fn join_waits(&self, incidents: &mut Vec<Incident>) {
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
                        None => {
                            cause.evidence.iter().any(|e| e.method == Method::Schedule)
                        }
                    };
                    is_own
                        && !ranks.is_empty()
                        && ranks.iter().all(|rank| wait.pipeline.contains(rank))
                        && meet(cause, &incidents[at])
                        && cause.cost_s >= EXPLAINED_SHARE * incidents[at].cost_s
                });
            waits.extend(of_pipeline.map(|cause| (at, cause)));
        }
        for (at, cause) in &waits {
            let Incident { subject, mut evidence, victims, .. } = incidents[*at].clone();
            let waited = subject.ranks.iter().copied().collect();
            let told = &mut incidents[*cause];
            let all = told.victims.and(&victims).and(&waited);
            told.victims = all.without(&told.subject.ranks);
            evidence.extend(judged[*at].as_ref().map(|judged| judged.evidence.clone()));
            let named = evidence.into_iter().map(|evidence| {
                let ranks = subject.ranks.clone();
                match evidence.method {
                    // What its blocks say is not that it is to blame.
                    Method::Schedule => evidence,
                    Method::Frontier => {
                        let text =
                            format!("rank {}: {}", fold_ranks(&ranks), evidence.text);
                        Evidence { ranks, text, ..evidence }
                    }
                    _ => Evidence { ranks, ..evidence },
                }
            });
            let told = &mut incidents[*cause].evidence;
            told.extend(named);
            let own = judged[*cause].as_ref().map(|judged| judged.evidence.clone());
            let is_new = |own: &Evidence| !told.contains(own);
            let own = own.filter(is_new);
            told.extend(own);
        }
        let mut at = 0..incidents.len();
        incidents.retain(|_| {
            let at = at.next();
            !waits.iter().any(|(wait, _)| Some(*wait) == at)
        });
    }

    fn judged(&self, incident: &Incident) -> Option<Judged> {
        let ranks = &incident.subject.ranks;
        let stage = incident.subject.stage.as_deref()?;
        let [Evidence { method: Method::Frontier, values, .. }, ..] =
            &incident.evidence[..]
        else {
            return None;
        };
        let late_s = values.get("lateness_s")? * values.get("struck_steps")?;
        let is_asked = incident.kind == IncidentKind::Slow
            && !incident.text.contains(AFTER_OPTIMIZER)
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
            evidence: own_blocks(ranks, own_s, copies_s),
        })
    }
}

/// Whether something that cost so many seconds from the first to the last of these steps takes so much
/// of each that steps can be slower for it, as an incident says: what went on before as well is no reason
/// why a job is slower than it was.
pub(super) fn explains((cost_s, steps): (f64, (u64, u64)), incident: &Incident) -> bool {
    let per_step = |cost_s: f64, (first, last): (u64, u64)| {
        cost_s / last.saturating_sub(first).saturating_add(1) as f64
    };
    let of_incident =
        per_step(incident.cost_s, (incident.first_step, incident.last_step));
    per_step(cost_s, steps) >= EXPLAINED_SHARE * of_incident
}

/// Whether two incidents have steps in common, or steps beside one another.
pub(super) fn meet(one: &Incident, other: &Incident) -> bool {
    one.first_step <= other.last_step.saturating_add(1)
        && other.first_step <= one.last_step.saturating_add(1)
}
