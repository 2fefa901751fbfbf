//! Collectives whose times are known: who arrives late, and which communicator became slow.

use collective::{ArrivalSettings, Arrivals};
use diagnosis::Detector;
use incident::{IncidentSettings, id_in_start, late, slowed};
use model::{Announcement, Finding, Input, JobContext};

/// Timed collectives of a job.
#[derive(Debug)]
pub(crate) struct TimedCollectives {
    settings: ArrivalSettings,
    incident: IncidentSettings,
    pub(crate) arrivals: Arrivals,
    /// Which start of the job it is.
    start: u32,
}

impl TimedCollectives {
    pub(crate) fn new(settings: ArrivalSettings, incident: IncidentSettings) -> Self {
        let arrivals = Arrivals::new(settings.clone());
        Self {
            settings,
            incident,
            arrivals,
            start: 0,
        }
    }
}

impl Detector for TimedCollectives {
    fn observe(&mut self, input: &Input, _: JobContext<'_>) -> Vec<Announcement> {
        match input {
            Input::Group { group, name, .. } => self.arrivals.join(*group, name),
            Input::Timed {
                rank,
                group,
                op,
                number,
                bytes,
                busy_ns,
            } => {
                self.arrivals
                    .add(*rank, (*group, *op, *number), *bytes, *busy_ns);
            }
            _ => {}
        }
        Vec::new()
    }

    fn findings(&self, context: JobContext<'_>) -> Vec<Finding> {
        let ranks = self.arrivals.late().into_iter().map(|found| {
            // No rank is late in two of them.
            let id = format!("a{}", found.ranks.first().copied().unwrap_or_default());
            late(&found, context, id_in_start(id, self.start), &self.incident)
        });
        let slow = self.arrivals.slowed().into_iter().map(|found| {
            let id = id_in_start(format!("b{}", found.key), self.start);
            slowed(&found, context, id, &self.incident)
        });
        ranks.chain(slow).collect()
    }

    fn restart(&mut self) {
        self.arrivals = Arrivals::new(self.settings.clone());
        self.start = self.start.saturating_add(1);
    }
}
