//! The methods of a job.

mod calls;
mod what_if;

use diagnosis::Detector;
use model::{Claim, Finding, Input, JobContext};

use crate::Settings;
use crate::pipelines::Pipelines;
pub use calls::WorkRequests;
pub(crate) use calls::{Calls, pipeline_notes, pipeline_summary};
pub(crate) use what_if::WhatIfTrace;

/// The methods of a job. A method more is a [`Detector`] more.
#[derive(Debug)]
pub(crate) struct Detectors {
    pub(crate) calls: Calls,
    pub(crate) what_if: WhatIfTrace,
    pub(crate) pipelines: Pipelines,
}

impl Detectors {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            calls: Calls::new(settings),
            what_if: WhatIfTrace::new(settings.incident.clone()),
            pipelines: Pipelines::new(
                settings.schedule.clone(),
                settings.incident.clone(),
            ),
        }
    }

    fn all(&self) -> [&dyn Detector; 3] {
        [&self.pipelines, &self.calls, &self.what_if]
    }

    fn all_mut(&mut self) -> [&mut dyn Detector; 3] {
        [&mut self.pipelines, &mut self.calls, &mut self.what_if]
    }

    /// Each takes the next thing there is to know; what is to be said at once.
    pub(crate) fn observe(
        &mut self,
        input: &Input,
        context: JobContext<'_>,
    ) -> Vec<Claim> {
        let all = self.all_mut().into_iter();
        all.flat_map(|detector| detector.observe(input, context)).collect()
    }

    /// Nothing more comes.
    pub(crate) fn finish(&mut self, context: JobContext<'_>) -> Vec<Claim> {
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
