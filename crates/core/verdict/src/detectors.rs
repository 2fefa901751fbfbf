//! The methods of a job.

mod calls;
mod collectives;
mod functions;
mod network;
mod stages;
mod timed;
mod what_if;

use diagnosis::Detector;
use frontier::Baseline;
use model::{Announcement, Finding, Input, JobContext};

use crate::Settings;
use crate::pipelines::Pipelines;
pub use calls::WorkRequests;
pub(crate) use calls::{Calls, pipeline_notes, pipeline_summary};
pub(crate) use collectives::InCollectives;
pub(crate) use functions::{Functions, Profiled};
pub(crate) use stages::Stages;
pub(crate) use timed::TimedCollectives;
pub(crate) use what_if::WhatIfTrace;

/// The methods of a job. A method more is a [`Detector`] more.
#[derive(Debug)]
pub(crate) struct Detectors {
    pub(crate) stages: Stages,
    pub(crate) collectives: InCollectives,
    pub(crate) timed: TimedCollectives,
    pub(crate) functions: Functions,
    pub(crate) calls: Calls,
    pub(crate) what_if: WhatIfTrace,
    pub(crate) pipelines: Pipelines,
}

impl Detectors {
    pub(crate) fn new(settings: &Settings, baseline: Baseline) -> Self {
        let incident = &settings.incident;
        Self {
            stages: Stages::new(settings, baseline),
            collectives: InCollectives::new(
                settings.hang.clone(),
                settings.arrival.share_min,
            ),
            timed: TimedCollectives::new(settings.arrival.clone(), incident.clone()),
            functions: Functions::new(incident.clone()),
            calls: Calls::new(settings),
            what_if: WhatIfTrace::new(incident.clone()),
            pipelines: Pipelines::new(settings.schedule.clone(), incident.clone()),
        }
    }

    fn all(&self) -> [&dyn Detector; 7] {
        [
            &self.stages,
            &self.collectives,
            &self.timed,
            &self.pipelines,
            &self.calls,
            &self.functions,
            &self.what_if,
        ]
    }

    fn all_mut(&mut self) -> [&mut dyn Detector; 7] {
        [
            &mut self.stages,
            &mut self.collectives,
            &mut self.timed,
            &mut self.pipelines,
            &mut self.calls,
            &mut self.functions,
            &mut self.what_if,
        ]
    }

    /// Each takes the next thing there is to know; what is to be said at once.
    pub(crate) fn observe(
        &mut self,
        input: &Input,
        context: JobContext<'_>,
    ) -> Vec<Announcement> {
        let all = self.all_mut().into_iter();
        all.flat_map(|detector| detector.observe(input, context)).collect()
    }

    /// Nothing more comes.
    pub(crate) fn finish(&mut self, context: JobContext<'_>) -> Vec<Announcement> {
        let all = self.all_mut().into_iter();
        all.flat_map(|detector| detector.finish(context)).collect()
    }

    /// What each found.
    pub(crate) fn findings(&self, context: JobContext<'_>) -> Vec<Finding> {
        let all = self.all().into_iter();
        all.flat_map(|detector| detector.findings(context)).collect()
    }

    /// All ranks start over.
    pub(crate) fn restart(&mut self) {
        self.all_mut().into_iter().for_each(Detector::restart);
    }
}
