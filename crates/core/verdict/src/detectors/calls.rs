//! What calls of NCCL say of a job's pipeline.

use diagnosis::Detector;
use incident::{IncidentSettings, link_slowed, pipeline_halted, pipeline_slowed};
use model::{
    Announcement, CallLogNote, Claim, Fact, Finding, Input, JobContext, Observation,
    PipelineSummary, SlowConnection,
};
use schedule::{Axis, Diagnosis, Partial, RankCalls, ScheduleSettings, diagnose};

use crate::called::Called;
use crate::{LayoutSettings, Settings};

/// What telemetry of work requests says.
#[derive(Clone, Debug, Default)]
pub struct WorkRequests {
    /// Connections that were slow, with the ranks at their ends if these are known.
    pub slow: Vec<(SlowConnection, Option<[u32; 2]>)>,
    /// How many ports reported, if nothing is in flight on any of them at the end.
    pub idle_ports: Option<usize>,
}

/// Calls of NCCL, in logs or of a job that runs, and connections that work requests show.
#[derive(Debug)]
pub(crate) struct Calls {
    layout: LayoutSettings,
    schedule: ScheduleSettings,
    settings: IncidentSettings,
    called: Called,
    logs: Option<Diagnosis>,
    requests: Option<WorkRequests>,
}

impl Calls {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            layout: settings.layout.clone(),
            schedule: settings.schedule.clone(),
            settings: settings.incident.clone(),
            called: Called::new(settings.schedule.clone()),
            logs: None,
            requests: None,
        }
    }

    /// Takes what ranks called, the log of each once, and what work requests showed then; what
    /// keeps the logs from being compared.
    pub(crate) fn take(
        &mut self,
        logs: Vec<RankCalls>,
        requests: Option<WorkRequests>,
    ) -> Option<CallLogNote> {
        let slow = requests.iter().flat_map(|requests| &requests.slow);
        let network_ns: Vec<(u64, u64)> = slow.map(|(link, _)| link.span_ns).collect();
        self.requests = requests;
        if logs.is_empty() {
            return None;
        }
        let sizes = self.layout.sizes();
        let found = sizes.and_then(|sizes| diagnose(logs, &sizes, &network_ns, &self.schedule));
        match found {
            Ok(Some(found)) => {
                self.logs = Some(found);
                None
            }
            Ok(None) => Some(CallLogNote::NoIterations),
            Err(refused) => Some(CallLogNote::NothingCompared {
                why: refused.to_string(),
            }),
        }
    }

    /// What was called in logs.
    pub(crate) fn logs(&self) -> Option<&Diagnosis> {
        self.logs.as_ref()
    }

    /// What was called in logs or, of a job that runs, by its marks.
    pub(crate) fn all(&self) -> Option<&Diagnosis> {
        self.logs.as_ref().or(self.called.found())
    }

    /// Whether there were work requests.
    pub(crate) fn has_requests(&self) -> bool {
        self.requests.is_some()
    }

    /// Says what ranks call, of a job that runs and marks no blocks.
    fn look(&mut self, context: JobContext<'_>) -> Vec<Announcement> {
        let Ok(sizes) = self.layout.sizes() else {
            return Vec::new();
        };
        let new = self.called.look(&sizes, context.hosts);
        new.into_iter()
            .map(|slow| Announcement::Found(Claim::SlowIterations(Box::new(slow))))
            .collect()
    }

    /// Connections that were slow: the network comes first.
    fn links(&self, context: JobContext<'_>) -> impl Iterator<Item = Finding> {
        let pipeline = self.logs.as_ref();
        let links = self.requests.iter().flat_map(|requests| &requests.slow);
        links.enumerate().map(move |(at, (link, ranks))| {
            let networked = pipeline.and_then(|said| said.networked.get(at)?.as_ref());
            let total_s = pipeline.map_or(0.0, |said| said.total_s);
            let id = format!("n{}", at + 1);
            link_slowed(link, *ranks, networked.zip(Some(total_s)), context, id)
        })
    }

    fn halt(&self, context: JobContext<'_>) -> Option<Finding> {
        // Where a job that runs stands still, its progress through collectives tells.
        let halt = self
            .logs
            .as_ref()?
            .halt
            .as_ref()
            // Logs may end in the middle of anything: that is a note, no halt.
            .filter(|halt| halt.overdue)?;
        let idle_ports = self
            .requests
            .as_ref()
            .and_then(|requests| requests.idle_ports);
        let mut found = pipeline_halted(halt, context, "p0".to_owned());
        // Says that it is not the network, as far as the ports show.
        let idle = idle_ports.map(|ports| Observation::IdlePorts { ports });
        found.facts.extend(idle.map(Fact::from));
        Some(found)
    }

    fn slow(&self, context: JobContext<'_>) -> impl Iterator<Item = Finding> {
        let slow = self.all().into_iter().flat_map(|pipeline| {
            let least_s = least_lost_s(pipeline, &self.settings);
            // Logs are looked at once: there the place is as good as a number.
            let numbers: Vec<u64> = match self.logs {
                Some(_) => (1..).take(pipeline.findings.len()).collect(),
                None => self.called.numbers().to_vec(),
            };
            let slow = pipeline.findings.iter().zip(numbers);
            let slow = slow.filter(move |(found, _)| found.lost_s >= least_s);
            slow.map(move |(found, number)| (found, number, pipeline))
        });
        slow.map(move |(found, number, pipeline)| {
            let id = format!("p{number}");
            pipeline_slowed(found, pipeline, context, id, &self.settings)
        })
    }
}

impl Detector for Calls {
    fn observe(&mut self, input: &Input, context: JobContext<'_>) -> Vec<Announcement> {
        match input {
            Input::Mark { rank, mark } if self.called.mark(*rank, mark) => {
                return self.look(context);
            }
            Input::Lost { rank, records } => self.called.lose(*rank, *records),
            _ => {}
        }
        Vec::new()
    }

    fn finish(&mut self, context: JobContext<'_>) -> Vec<Announcement> {
        if self.called.is_due() {
            self.look(context)
        } else {
            Vec::new()
        }
    }

    fn findings(&self, context: JobContext<'_>) -> Vec<Finding> {
        let links = self.links(context);
        links
            .chain(self.halt(context))
            .chain(self.slow(context))
            .collect()
    }

    /// Logs are of one start.
    fn restart(&mut self) {
        self.called.restart();
    }
}

/// Seconds that must be lost to something, to speak of it. Without a pipeline what a host does
/// between calls is all that is seen, so the rules for stages hold; by the published gate alone each
/// hiccup of a busy host is reported.
fn least_lost_s(calls: &Diagnosis, settings: &IncidentSettings) -> f64 {
    if calls.layout.size(Axis::Pipeline) > 1 {
        return 0.0;
    }
    let once_s = settings
        .stall_min_s
        .max(settings.stall_min_steps * calls.usual_s);
    // Either makes an incident of stages: one stall, or a part of all time.
    once_s.min(settings.steady_share_min * calls.total_s)
}

pub(crate) fn pipeline_summary(pipeline: &Diagnosis) -> PipelineSummary {
    PipelineSummary {
        layout: pipeline.layout.to_string(),
        schedule: pipeline
            .schedule
            .map(|(scheme, _)| scheme.name().to_owned()),
        microbatches: pipeline
            .schedule
            .map_or(0, |(_, microbatches)| microbatches),
        iteration_s: pipeline.usual_s,
    }
}

/// What should stand beside a verdict on call logs.
pub(crate) fn pipeline_notes(pipeline: &Diagnosis) -> Vec<CallLogNote> {
    let mut notes = Vec::new();
    if pipeline.schedule.is_none() {
        notes.push(CallLogNote::NoSchedule);
    }
    if pipeline.is_ahead {
        notes.push(CallLogNote::HostsAhead);
    }
    // It stays 0 until enough iterations are timed to say what is usual.
    if pipeline.usual_s == 0.0 {
        notes.push(CallLogNote::FewIterations {
            timed: pipeline.timed,
        });
    }
    if let Some(halt) = pipeline.halt.as_ref().filter(|halt| !halt.overdue) {
        notes.push(CallLogNote::LogsEnd(halt.clone()));
    }
    if !pipeline.unseen.is_empty() {
        notes.push(CallLogNote::NoLog {
            ranks: pipeline.unseen.clone(),
        });
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
            lost: ranks
                .iter()
                .fold(0, |sum: u64, rank| sum.saturating_add(rank.lost)),
        })
    }));
    if !pipeline.off_clocks.is_empty() {
        notes.push(CallLogNote::OffClocks {
            ranks: pipeline.off_clocks.clone(),
        });
    }
    notes
}
