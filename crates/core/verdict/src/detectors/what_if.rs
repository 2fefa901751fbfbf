use diagnosis::Detector;
use incident::{IncidentSettings, what_if};
use model::{Finding, JobContext};
use whatif::Findings;

/// What a what-if trace shows, of a job that is its sampled steps.
#[derive(Debug)]
pub(crate) struct WhatIfTrace {
    settings: IncidentSettings,
    pub(crate) shown: Option<Findings>,
}

impl WhatIfTrace {
    pub(crate) fn new(settings: IncidentSettings) -> Self {
        Self {
            settings,
            shown: None,
        }
    }
}

impl Detector for WhatIfTrace {
    fn findings(&self, _: JobContext<'_>) -> Vec<Finding> {
        let causes = self.shown.iter().flat_map(
            |Findings {
                 what_if, causes, ..
             }| { causes.iter().map(move |cause| (what_if, cause)) },
        );
        causes
            .zip(1..)
            .map(|((shown, cause), at)| what_if(shown, cause, format!("w{at}"), &self.settings))
            .collect()
    }

    /// A trace is of one start.
    fn restart(&mut self) {}
}
