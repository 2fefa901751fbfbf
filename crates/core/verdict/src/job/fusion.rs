//! Findings of all methods about one cause become one incident.

use incident::{
    Scene, cores, cpu_quota, devices, disagreements, late, slowed, too_few_cores,
};
use model::{
    Cause, Fact, Finding, IncidentKind, Method, Observation, Origin, StageId, Subject,
};

use super::Job;
use super::waits::{explains, meet};

/// How much more an incident of the same ranks must cost by their stages than by their blocks, to be
/// told as stages tell it: a block that was slow from the start is not known to be. And one of all
/// ranks than by all blocks, to be another.
const SEEN_MORE_RATIO: f64 = 2.0;

impl Job {
    /// A hang first, then what costs most. A stall that passed and the incident its steps
    /// belong to are one.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = self.told(self.scene());
        findings.extend_from_slice(&self.earlier);
        findings
    }

    /// The same of this start of the job.
    pub(super) fn told(&self, scene: Scene<'_>) -> Vec<Finding> {
        let mut incidents = self.tracker.findings(scene);
        for stall in self.hangs.passed(scene) {
            let stall = Finding::worded(Origin::PassedStall, stall);
            join(&mut incidents, stall, |incident, stall| {
                let steps = incident.first_step.saturating_sub(1)
                    ..=incident.last_step.saturating_add(1);
                let ranks = &incident.subject.ranks;
                steps.contains(&stall.first_step)
                    && (ranks.is_empty()
                        || stall.subject.ranks.iter().any(|rank| ranks.contains(rank)))
            });
        }
        for (held_up, alone) in self.held_up() {
            // What stages and collectives say about the same ranks is one incident.
            let same = |incident: &Finding, held_up: &Finding| {
                !held_up.subject.ranks.is_empty()
                    && incident.subject.ranks == held_up.subject.ranks
            };
            if alone || incidents.iter().any(|incident| same(incident, &held_up)) {
                join(&mut incidents, held_up, same);
            }
        }
        incidents.extend(self.link_incidents());
        incidents.extend(self.pipeline_incidents());
        self.join_functions(&mut incidents, scene);
        self.join_usages(&mut incidents);
        incidents.extend(self.straggling());
        self.add_pipelines(&mut incidents, scene);
        let death = self.hangs.death(scene);
        let death = death.map(|death| Finding::worded(Origin::Death, death));
        let of_death = |hang: &Finding| {
            death.as_ref().is_some_and(|death| death.subject.ranks == hang.subject.ranks)
        };
        let hang = self.hangs.under_way(scene);
        let hang = hang.map(|hang| Finding::worded(Origin::Hang, hang));
        let mut hang = hang.filter(|hang| !of_death(hang));
        if let Some(hang) = &mut hang {
            let halted = self.pipelines.halted(&hang.subject.ranks);
            hang.facts.extend(halted.map(Fact::worded));
        }
        let seen = self.analysed_steps > 0.0;
        for inside in self.holdups.incidents(self.hangs.communicated(), scene, seen) {
            let inside = Finding::worded(Origin::Flows, inside);
            // What made operations slow and then stopped them is told as what it is now.
            if hang
                .as_ref()
                .is_some_and(|hang| hang.subject.ranks == inside.subject.ranks)
            {
                continue;
            }
            // What stages and flows say about the same ranks is one incident.
            let inside = with_slower(&mut incidents, inside);
            join(&mut incidents, inside, |incident, inside| {
                incident.open == inside.open
                    && incident.subject.ranks == inside.subject.ranks
            });
        }
        let mut all: Vec<Finding> =
            death.into_iter().chain(hang).chain(incidents).collect();
        self.join_links(&mut all);
        for finding in &mut all {
            finding.open &= !scene.ended;
            finding.disagreements = disagreements(finding);
        }
        all
    }

    /// What the processes of ranks that are named did with cores meanwhile, or of all that became
    /// slower, and devices for them; of cores a profile window, where there was one, has looked closer.
    pub(super) fn join_usages(&self, incidents: &mut [Finding]) {
        for incident in incidents {
            let ranks = &incident.subject.ranks;
            let steps = incident.first_step..=incident.last_step;
            let looked = incident.is_seen_by(Method::Host);
            let meanwhile = self.usages.during(&steps);
            let cores = if looked {
                // A window sees that there is no core, but not why.
                cpu_quota(ranks, &meanwhile)
            } else if ranks.is_empty() && incident.kind == IncidentKind::Degraded {
                let before = 0..=incident.first_step.saturating_sub(1);
                cpu_quota(ranks, &meanwhile)
                    .or_else(|| too_few_cores(&meanwhile, &self.usages.during(&before)))
            } else {
                cores(ranks, &meanwhile)
            };
            let devices = devices(ranks, &self.usages.devices_during(ranks, &steps));
            let found = cores.into_iter().chain(devices);
            let (found, actions): (Vec<_>, Vec<_>) = found.unzip();
            let has_cores = found.iter().any(|it| it.cause() == Some(Cause::Cores));
            incident.facts.extend(found.into_iter().map(Fact::from));
            let Some(action) = actions.into_iter().flatten().next() else { continue };
            if has_cores && incident.subject.function.is_some() {
                // Whatever it does there takes longer for it.
                incident.actions.insert(0, action);
            } else if looked || incident.subject.function.is_some() {
                // What was seen in a profile comes first.
                incident.actions.push(action);
            } else {
                incident.actions = vec![action];
            }
        }
    }

    /// What timed collectives show, and whether it is an incident without other evidence.
    fn held_up(&self) -> Vec<(Finding, bool)> {
        let (scene, settings) = (self.scene(), &self.settings.incident);
        let ranks = self.arrivals.late().into_iter().map(|found| {
            let alone = self.is_constantly_late(&found);
            // No rank is late in two of them.
            let id = format!("a{}", found.ranks.first().copied().unwrap_or_default());
            let found = late(&found, scene, id, settings);
            (Finding::worded(Origin::Arrivals, found), alone)
        });
        let slow = self.arrivals.slowed().into_iter().map(|found| {
            let found = slowed(&found, scene, format!("b{}", found.key), settings);
            (Finding::worded(Origin::Bandwidth, found), true)
        });
        ranks.chain(slow).collect()
    }

    /// What held pipelines up. That steps became slower then, which stages show too, is the
    /// same, if blocks account for enough of it; it is told by whichever saw more of it. Waits for
    /// data are not.
    fn add_pipelines(&self, incidents: &mut Vec<Finding>, scene: Scene<'_>) {
        let data = self.names.name(StageId::DATA);
        let all_held = self.pipelines.incidents(scene, self.exposed_s).into_iter();
        let worded = |held| Finding::worded(Origin::Blocks, held);
        let mut all_held: Vec<Finding> = all_held.map(worded).collect();
        self.join_usages(&mut all_held);
        let explained_s = |incident: &Finding| -> f64 {
            let meanwhile = all_held.iter().filter(|held| meet(incident, held));
            meanwhile.map(|held| held.cost.exposed_s).sum()
        };
        let of_blocks = |incident: &Finding| {
            incident.cost.exposed_s <= SEEN_MORE_RATIO * explained_s(incident)
        };
        for mut held in all_held.clone() {
            let same = |incident: &Finding| {
                let Subject { ranks, stage, .. } = &incident.subject;
                (*ranks == held.subject.ranks || ranks.is_empty() && of_blocks(incident))
                    && stage.as_deref() != Some(data)
                    && meet(incident, &held)
            };
            if let Some(at) = incidents.iter().position(same) {
                let mut seen = incidents.remove(at);
                let is_more = !seen.subject.ranks.is_empty()
                    && seen.cost.exposed_s > SEEN_MORE_RATIO * held.cost.exposed_s;
                if is_more {
                    seen.subject.block.clone_from(&held.subject.block);
                    // Which of the two costs more may change: it is the same incident.
                    std::mem::swap(&mut seen.id, &mut held.id);
                    std::mem::swap(&mut seen, &mut held);
                }
                held.facts.extend(seen.facts);
            }
            incidents.push(held);
        }
        self.join_waits(incidents);
    }
}

/// Takes from the incidents that all ranks became slower, where what is slow inside a collective then
/// accounts for it: that names who is to blame and since which operation, stages how much it costs and
/// since which window.
fn with_slower(incidents: &mut Vec<Finding>, mut inside: Finding) -> Finding {
    let of_it = |slower: &mut Finding| {
        slower.kind == IncidentKind::Degraded
            && slower.subject.ranks.is_empty()
            && meet(slower, &inside)
            && explains(
                (inside.cost.exposed_s, (inside.first_step, inside.last_step)),
                slower,
            )
    };
    for slower in incidents.extract_if(.., of_it).collect::<Vec<_>>() {
        inside.open |= slower.open;
        inside.severity = inside.severity.max(slower.severity);
        inside.last_step = inside.last_step.max(slower.last_step);
        inside.cost = inside.cost.max(slower.cost);
        let Subject { stage, function, .. } = slower.subject;
        inside.subject.stage = inside.subject.stage.take().or(stage);
        inside.subject.function = inside.subject.function.take().or(function);
        let cost_s = slower.cost.exposed_s;
        let explained = slower.facts.into_iter().map(|fact| {
            if fact.what.account().is_none() {
                return fact;
            }
            let by = Some(Box::new(fact.what));
            let claim = Box::new(slower.claim.clone());
            Fact { what: Observation::Explains { claim, by, cost_s }, ..fact }
        });
        inside.facts.extend(explained);
    }
    inside
}

/// Gives the facts of `found` to the finding that is the same one, or adds `found`.
fn join(
    incidents: &mut Vec<Finding>,
    found: Finding,
    same: impl Fn(&Finding, &Finding) -> bool,
) {
    match incidents.iter_mut().find(|incident| same(incident, &found)) {
        Some(incident) => incident.facts.extend(found.facts),
        None => incidents.push(found),
    }
}

#[cfg(test)]
mod tests {
    use model::Claim;
    use narrate::headline;

    use super::*;
    use crate::job::tests::degraded;

    #[test]
    fn all_ranks_are_slower_because_of_what_is_slow_inside_a_collective() {
        let slower = degraded(40, 60);
        let per_step_s = slower.cost.exposed_s / 21.0;
        let inside = |first_step, steps: u32, cost_s| {
            let mut inside = degraded(first_step, first_step + u64::from(steps) - 1);
            inside.kind = IncidentKind::Slow;
            inside.subject.ranks = vec![1];
            inside.claim = Claim::Worded { text: "rank 1 is to blame".to_owned() };
            inside.cost.exposed_s = cost_s;
            inside
        };
        let told = |inside| {
            let mut incidents = vec![slower.clone()];
            let inside = with_slower(&mut incidents, inside);
            (incidents.len(), inside)
        };
        let (left, it) = told(inside(35, 30, 30.0 * per_step_s));
        assert_eq!((left, headline(&it.claim)), (0, "rank 1 is to blame".to_owned()));
        assert_eq!((it.first_step, it.last_step), (35, 64));
        assert_eq!(
            (it.cost.exposed_s, &it.subject.stage),
            (30.0 * per_step_s, &slower.subject.stage)
        );
        let (left, little) = told(inside(35, 30, 10.0 * per_step_s));
        assert_eq!((left, little.cost.exposed_s), (1, 10.0 * per_step_s));
        let (left, earlier) = told(inside(5, 30, 30.0 * per_step_s));
        assert_eq!((left, earlier.last_step), (1, 34));
    }
}
