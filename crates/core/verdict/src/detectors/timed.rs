//! Collectives whose times are known: who arrives late, and which communicator became slow.

use collective::{ArrivalSettings, Arrivals};
use diagnosis::Detector;
use incident::{IncidentSettings, late, slowed};
use model::{Announcement, Finding, Input, JobContext};

/// Timed collectives of a job.
#[derive(Debug)]
pub(crate) struct TimedCollectives {
    settings: ArrivalSettings,
    incident: IncidentSettings,
    pub(crate) arrivals: Arrivals,
}

impl TimedCollectives {
    pub(crate) fn new(settings: ArrivalSettings, incident: IncidentSettings) -> Self {
        let arrivals = Arrivals::new(settings.clone());
        Self {
            settings,
            incident,
            arrivals,
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
            late(&found, context, id, &self.incident)
        });
        let slow = self
            .arrivals
            .slowed()
            .into_iter()
            .map(|found| slowed(&found, context, format!("b{}", found.key), &self.incident));
        ranks.chain(slow).collect()
    }

    fn restart(&mut self) {
        self.arrivals = Arrivals::new(self.settings.clone());
    }
}
