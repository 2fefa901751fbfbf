//! What all methods found, put together, and what the job knows beside it.

use std::ops::RangeInclusive;

use diagnosis::{OwnBlocks, RULES, SlowLink, Witnesses, fuse};
use incident::{
    cores, cpu_quota, devices, gpus_in_standstill, own_blocks, too_few_cores, without_core,
};
use model::{Action, Claim, During, Fact, Finding, IncidentKind, JobContext, Observation, Origin};
use schedule::Worked;

use super::Job;

/// Part of the time a host is late by in which its device must have nothing to do, for the lateness to
/// cost anything. Ours.
const ABSORBED_SHARE: f64 = 0.5;

impl Job {
    /// A hang first, then what costs most; then what was found before the job was started again.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = self.fused(self.context());
        findings.extend_from_slice(self.earlier.findings());
        findings
    }

    /// The same of this start of the job.
    pub(super) fn fused(&self, context: JobContext<'_>) -> Vec<Finding> {
        let mut fused = fuse(self.found(context), &RULES, self);
        for finding in &mut fused {
            // Nothing goes on in a job that has ended, whatever a method saw last.
            finding.open &= !context.ended;
        }
        fused
    }

    /// What each method found, numbered in its order.
    fn found(&self, context: JobContext<'_>) -> Vec<Finding> {
        let mut found = self.detectors.findings(context);
        found.retain(|finding| !self.is_absorbed(finding));
        for (number, finding) in found.iter_mut().enumerate() {
            finding.number = number;
            self.cap_cost(finding);
            if let Claim::LateToCollective(late) = &finding.claim {
                let functions = &self.detectors.functions;
                finding.supports_only = !functions.is_constantly_late(late);
            }
        }
        found
    }

    /// Share of the time in which the devices of hosts that are late have nothing to do, by a profile.
    fn idle_share(&self, finding: &Finding) -> Option<f64> {
        let is_of_profile = finding.origin == Origin::Stages && !self.source.has_marks();
        let functions = &self.detectors.functions;
        functions
            .device_idle(&finding.subject.ranks)
            .filter(|_| is_of_profile)
    }

    /// Whether a profile shows that a host is late and its device has work meanwhile.
    fn is_absorbed(&self, finding: &Finding) -> bool {
        self.idle_share(finding)
            .is_some_and(|idle_share| idle_share < ABSORBED_SHARE * finding.cost.share)
    }

    /// No more is saved than the time in which devices of late hosts have nothing to do.
    fn cap_cost(&self, finding: &mut Finding) {
        let idle_share = self.idle_share(finding);
        let Some(idle_share) = idle_share.filter(|idle_share| *idle_share < finding.cost.share)
        else {
            return;
        };
        let Claim::LateRanks(late) = &mut finding.claim else {
            return;
        };
        let part = idle_share / finding.cost.share;
        (finding.cost.share, late.cost_share) = (idle_share, idle_share);
        for seconds in [
            &mut finding.cost.exposed_s,
            &mut finding.cost.gain_alone_s,
            &mut late.gain_alone_s,
        ] {
            *seconds *= part;
        }
        for fact in &mut finding.facts {
            if let Observation::OwnWork(account) = &mut fact.what {
                account.gain_alone_s *= part;
            }
        }
        finding.severity = self.settings.incident.severity(idle_share);
    }
}

impl Witnesses for Job {
    fn profile_window(&self) -> Option<(u64, u64)> {
        self.detectors.functions.profiled.as_ref()?.window
    }

    fn common_share_min(&self) -> f64 {
        self.settings.pattern.common_share_min
    }

    fn cores_in_profile(&self, ranks: &[u32]) -> Option<(Observation, Action)> {
        without_core(
            ranks,
            &self.detectors.functions.profiled.as_ref()?.without_core,
            During::ProfileWindow,
        )
    }

    fn hosts(&self, finding: &Finding, is_seen: bool) -> Vec<(Observation, Option<Action>)> {
        let ranks = &finding.subject.ranks;
        let steps = finding.first_step..=finding.last_step;
        if finding.origin == Origin::Hang {
            let used = self.usages.devices_at(finding.last_step);
            return gpus_in_standstill(&used);
        }
        let meanwhile = self.usages.during(&steps);
        let cores = if is_seen {
            // A window sees that there is no core, but not why.
            cpu_quota(ranks, &meanwhile)
        } else if ranks.is_empty() && finding.kind == IncidentKind::Degraded {
            // All ranks have no peers: they are compared with what they got before.
            let before = 0..=finding.first_step.saturating_sub(1);
            cpu_quota(ranks, &meanwhile)
                .or_else(|| too_few_cores(&meanwhile, &self.usages.during(&before)))
        } else {
            cores(ranks, &meanwhile)
        };
        let devices = devices(ranks, &self.usages.devices_during(ranks, &steps));
        cores.into_iter().chain(devices).collect()
    }

    fn own_blocks(&self, ranks: &[u32], steps: &RangeInclusive<u64>) -> Option<OwnBlocks> {
        let worked = ranks
            .iter()
            .map(|rank| self.detectors.pipelines.own_work(*rank, steps));
        // Of all or of none: a sum that lacks a rank would make the ranks seem to wait.
        let worked: Vec<Worked> = worked.collect::<Option<_>>()?;
        let own_s = worked.iter().map(|it| it.own_s).sum();
        let copies_s = worked.iter().map(|it| it.copies_s).sum();
        let pipeline = worked.into_iter().next()?.pipeline;
        let fact = own_blocks(ranks, own_s, copies_s);
        Some(OwnBlocks {
            pipeline,
            own_s,
            copies_s,
            fact,
        })
    }

    fn halts(&self, ranks: &[u32]) -> Vec<Fact> {
        self.detectors.pipelines.halted(ranks).collect()
    }

    fn slow_links(&self) -> Vec<SlowLink> {
        self.detectors.collectives.slow_links.all()
    }
}
