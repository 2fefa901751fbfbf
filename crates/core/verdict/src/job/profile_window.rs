//! Profile windows of a running job: which are wanted, and what they show.

use std::ops::Range;

use model::{IncidentKind, Method, ProfileWindow, RankNs, VerdictNote};
use trace::Profile;

use super::{Job, ProfiledRank};
use crate::escalation::Ordered;

impl Job {
    /// Ranks whose functions should be recorded now: those of the costliest incident that goes
    /// on and whose function is not known, and a few of their peers; some of all ranks if none
    /// is suspected. `None` on a healthy job, and while the last window is too near.
    pub fn wanted_profile(&mut self, now: RankNs) -> Option<Vec<u32>> {
        let last_at = self.last_at()?;
        if !self.escalation.may_order(now, last_at) {
            return None;
        }
        // The suspects are why it is slower.
        let slower = self.escalation.take_slower();
        let suspects = match self.suspects() {
            Some(suspects) => suspects,
            None if slower => Vec::new(),
            None => return None,
        };
        let ranks = self.with_peers(&suspects);
        // The functions of a single rank have nothing to be compared with.
        (ranks.len() > 1).then_some(ranks)
    }

    /// The same of any job, because somebody asks for it.
    pub fn ranks_to_profile(&self) -> Vec<u32> {
        self.with_peers(&self.suspects().unwrap_or_default())
    }

    /// Ranks of the costliest incident that goes on and whose function is not known. One that costs
    /// nothing would use up the window of one that does.
    fn suspects(&self) -> Option<Vec<u32>> {
        let mut slow = self.findings().into_iter().filter(|incident| {
            incident.open
                && incident.cost.exposed_s > 0.0
                && incident.kind != IncidentKind::Hang
                && incident.subject.function.is_none()
        });
        slow.next().map(|incident| incident.subject.ranks)
    }

    fn with_peers(&self, suspects: &[u32]) -> Vec<u32> {
        let role = suspects.first().and_then(|rank| self.aligner.role(*rank));
        let all: Vec<u32> = self
            .placement
            .seen()
            .iter()
            .copied()
            // Ranks of other roles run other functions, which are no measure of the suspects'.
            .filter(|rank| role.is_none() || self.aligner.role(*rank) == role)
            .collect();
        let incidents = self.findings().into_iter().filter(|incident| incident.open);
        let named = incidents
            .flat_map(|incident| incident.subject.ranks)
            .collect();
        self.escalation
            .choose(suspects, &all, &named, self.placement.hosts())
    }

    /// What a step usually takes, in seconds.
    pub fn usual_step_s(&self) -> Option<f64> {
        self.escalation.usual_step_s()
    }

    /// The furthest step a rank is in.
    pub(crate) fn step(&self) -> u32 {
        u32::try_from(self.detectors.collectives.hangs.step()).unwrap_or(u32::MAX)
    }

    pub(super) fn order_profile(&mut self, ranks: &[u32], steps: &Range<u32>) {
        let at = self.last_at().unwrap_or(RankNs(0));
        if self.escalation.is_another(ranks, steps) {
            self.end_profile(&[]);
        }
        self.aligner.leave_out(steps.start..=steps.end);
        self.escalation.order(ranks, steps, at);
    }

    /// Compares what the window showed once all hosts have sent what their ranks did in it:
    /// these, or all if none is named.
    pub(super) fn end_profile(&mut self, ranks: &[u32]) {
        let Some(ordered) = self.escalation.end(ranks) else {
            return;
        };
        // No rank sent anything: what an earlier window showed stays.
        if ordered.profiled.is_empty() {
            return;
        }
        self.tell_cost(&ordered);
        let steps = (
            u64::from(ordered.first_step),
            u64::from(ordered.last_step()).saturating_sub(1),
        );
        let without_core = ordered.profiled.iter();
        let without_core = without_core
            .filter_map(|(rank, window)| Some((*rank, window.without_core_share?)))
            .collect();
        let ranks = ordered.profiled.into_iter().map(|(rank, window)| {
            let host = self.placement.hosts().get(&rank).cloned();
            profiled_rank(rank, host, window)
        });
        let mut profiled = self.compare(&ranks.collect::<Vec<_>>(), steps);
        profiled.without_core = without_core;
        profiled.window = Some(steps);
        self.detectors.functions.keep(profiled);
        let findings = self.findings().into_iter();
        let found = findings.filter(|finding| finding.subject.function.is_some());
        let facts = found.flat_map(|finding| finding.facts);
        let of_window =
            facts.filter(|fact| matches!(fact.what.method(), Method::Pattern | Method::Host));
        self.announcements.profiled(of_window);
    }

    /// Says what the window cost.
    fn tell_cost(&mut self, ordered: &Ordered) {
        let longest = |seconds: fn(&ProfileWindow) -> f64| {
            ordered.profiled.values().map(seconds).fold(0.0, f64::max)
        };
        self.note(VerdictNote::Profiled {
            steps: (ordered.first_step, ordered.last_step().saturating_sub(1)),
            ranks: ordered.profiled.keys().copied().collect(),
            stall_s: longest(|window| window.stall_s),
            write_s: longest(|window| window.write_s),
            slowdown: ordered.slowdown(self.usual_step_s()),
        });
    }
}

fn profiled_rank(rank: u32, host: Option<String>, window: ProfileWindow) -> ProfiledRank {
    let ProfileWindow {
        span_s,
        communication_share,
        has_device,
        patterns,
        ..
    } = window;
    let profile = Profile::of_patterns(
        patterns.patterns,
        patterns.functions,
        span_s,
        communication_share,
        has_device,
    );
    ProfiledRank {
        rank,
        host,
        profile,
        ..ProfiledRank::default()
    }
}
