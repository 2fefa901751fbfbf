//! What calls of NCCL say of a job's pipeline.

use collective::SlowLink;
use incident::{
    IncidentSettings, link_slowed, pipeline_halted, pipeline_slowed, ports_idle,
};
use model::{CallLogNote, Fact, Finding, Origin, PipelineSummary, Source, VerdictNote};
use schedule::{Axis, Diagnosis, Partial, RankCalls, diagnose};

use super::Job;

/// Collectives whose logs end at different places that are told.
const MAX_ENDS: usize = 8;

/// What telemetry of work requests says.
#[derive(Clone, Debug, Default)]
pub struct WorkRequests {
    /// Connections that were slow, with the ranks at their ends if these are known.
    pub slow: Vec<(SlowLink, Option<[u32; 2]>)>,
    /// How many ports are told, if nothing is in flight on any of them at the end.
    pub idle_ports: Option<usize>,
}

impl Job {
    /// What was compared of timed collectives, and where logs end.
    pub(super) fn timed_notes(&self) -> Vec<VerdictNote> {
        let collectives = self.arrivals.compared();
        let is_timed = self.source == Source::Inspector || collectives > 0;
        let compared =
            is_timed.then_some(VerdictNote::CollectivesCompared { collectives });
        let ends = self.arrivals.ends().into_iter().take(MAX_ENDS);
        let ends = ends.map(|(group, op, last, ends)| VerdictNote::LogsEndEarlier {
            op,
            group,
            last,
            first: ends.values().min().copied().unwrap_or(0),
            ranks: ends.into_keys().collect(),
        });
        compared.into_iter().chain(ends).collect()
    }

    /// Takes what ranks called, the log of each once, and what work requests were told then.
    pub fn take_calls(&mut self, logs: Vec<RankCalls>, requests: Option<WorkRequests>) {
        let slow = requests.iter().flat_map(|requests| &requests.slow);
        let network_ns: Vec<(u64, u64)> = slow.map(|(link, _)| link.span_ns).collect();
        self.requests = requests;
        if logs.is_empty() {
            return;
        }
        for log in &logs {
            self.seen_ranks.insert(log.rank);
            self.hosts.extend(log.host.clone().map(|host| (log.rank, host)));
        }
        let sizes = self.settings.layout.sizes();
        let found = sizes.and_then(|sizes| {
            diagnose(logs, &sizes, &network_ns, &self.settings.schedule)
        });
        match found {
            Ok(Some(found)) => {
                self.earlier_steps += found.iterations;
                self.call_logs = Some(found);
            }
            Ok(None) => self.note(VerdictNote::Calls(CallLogNote::NoIterations)),
            Err(refused) => {
                let why = refused.to_string();
                self.note(VerdictNote::Calls(CallLogNote::NothingCompared { why }));
            }
        }
    }

    /// Says what ranks call, of a job that runs and marks no blocks.
    pub(super) fn look_at_calls(&mut self) {
        let Ok(sizes) = self.settings.layout.sizes() else { return };
        for finding in self.called.look(&sizes, &self.hosts) {
            let Some(pipeline) = self.called.found() else { continue };
            let (scene, settings) = (self.scene(), &self.settings.incident);
            let id = String::new();
            let slowed = pipeline_slowed(&finding, pipeline, scene, id, settings);
            self.lines.push(narrate::headline(&slowed.claim));
        }
    }

    /// What was called in logs or, of a job that runs, by its marks.
    pub(super) fn calls(&self) -> Option<&Diagnosis> {
        self.call_logs.as_ref().or(self.called.found())
    }

    /// Connections that were slow: the network comes first.
    pub(super) fn link_incidents(&self) -> Vec<Finding> {
        let pipeline = self.call_logs.as_ref();
        let links = self.requests.iter().flat_map(|requests| &requests.slow);
        let links = links.enumerate().map(|(at, (link, ranks))| {
            let networked = pipeline.and_then(|said| said.networked.get(at));
            let total_s = pipeline.map_or(0.0, |said| said.total_s);
            let (scene, id) = (self.scene(), format!("n{}", at + 1));
            let found =
                link_slowed(link, *ranks, networked.zip(Some(total_s)), scene, id);
            Finding::worded(Origin::Connections, found)
        });
        links.collect()
    }

    pub(super) fn pipeline_incidents(&self) -> Vec<Finding> {
        let Some(pipeline) = self.calls() else { return Vec::new() };
        let (scene, settings) = (self.scene(), &self.settings.incident);
        // Where a job that runs stands still, its progress through collectives tells.
        let halt = self.call_logs.as_ref().and(pipeline.halt.as_ref()).into_iter();
        let halt = halt.filter(|halt| halt.overdue);
        let idle_ports = self.requests.as_ref().and_then(|requests| requests.idle_ports);
        let halt = halt.map(|halt| {
            let mut found = pipeline_halted(halt, scene, "p0".to_owned());
            found.facts.extend(idle_ports.map(ports_idle).map(Fact::worded));
            found
        });
        let least_s = least_lost_s(pipeline, settings);
        let slow = pipeline.findings.iter().filter(|found| found.lost_s >= least_s);
        let slow = slow.zip(1..);
        let slow = slow.map(|(finding, at)| {
            pipeline_slowed(finding, pipeline, scene, format!("p{at}"), settings)
        });
        halt.chain(slow).collect()
    }
}

/// Seconds that must be lost to something, to speak of it. Without a pipeline what a host does
/// between calls is all that is seen, so the rules for stages hold; by the published gate alone each
/// hiccup of a busy host is told.
fn least_lost_s(calls: &Diagnosis, settings: &IncidentSettings) -> f64 {
    if calls.layout.size(Axis::Pipeline) > 1 {
        return 0.0;
    }
    let once_s = settings.stall_min_s.max(settings.stall_min_steps * calls.usual_s);
    once_s.min(settings.steady_share_min * calls.total_s)
}

pub(super) fn pipeline_summary(pipeline: &Diagnosis) -> PipelineSummary {
    PipelineSummary {
        layout: pipeline.layout.to_string(),
        schedule: pipeline.schedule.map(|(scheme, _)| scheme.name().to_owned()),
        microbatches: pipeline.schedule.map_or(0, |(_, microbatches)| microbatches),
        iteration_s: pipeline.usual_s,
    }
}

/// What should stand beside a verdict on call logs.
pub(super) fn pipeline_notes(pipeline: &Diagnosis) -> Vec<CallLogNote> {
    let mut notes = Vec::new();
    if pipeline.schedule.is_none() {
        notes.push(CallLogNote::NoSchedule);
    }
    if pipeline.is_ahead {
        notes.push(CallLogNote::HostsAhead);
    }
    if pipeline.usual_s == 0.0 {
        notes.push(CallLogNote::FewIterations { timed: pipeline.timed });
    }
    if let Some(halt) = pipeline.halt.as_ref().filter(|halt| !halt.overdue) {
        notes.push(CallLogNote::LogsEnd(halt.clone()));
    }
    if !pipeline.unseen.is_empty() {
        notes.push(CallLogNote::NoLog { ranks: pipeline.unseen.clone() });
    }
    // Ranks that were seen in the same part of the run, together.
    let alike = pipeline.partial.chunk_by(|one, other| {
        (one.lost > 0, one.whole, one.span) == (other.lost > 0, other.whole, other.span)
    });
    notes.extend(alike.filter_map(|ranks| {
        let Partial { span, whole, .. } = *ranks.first()?;
        Some(CallLogNote::PartialLogs {
            ranks: ranks.iter().map(|rank| rank.rank).collect(),
            span,
            whole,
            iterations: pipeline.iterations,
            lost: ranks.iter().fold(0, |sum: u64, rank| sum.saturating_add(rank.lost)),
        })
    }));
    if !pipeline.off_clocks.is_empty() {
        notes.push(CallLogNote::OffClocks { ranks: pipeline.off_clocks.clone() });
    }
    notes
}
