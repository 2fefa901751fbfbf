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

/// Makes [`Detectors`] of a row for each method.
macro_rules! detectors {
    ($settings:ident, $baseline:ident: $($name:ident: $method:ty = $new:expr,)*) => {
        /// The methods of a job, in the order in which they look and find.
        #[derive(Debug)]
        pub(crate) struct Detectors {
            $(pub(crate) $name: $method,)*
        }

        impl Detectors {
            pub(crate) fn new($settings: &Settings, $baseline: Baseline) -> Self {
                Self { $($name: $new,)* }
            }

            fn all(&self) -> impl Iterator<Item = &dyn Detector> {
                [$(&self.$name as &dyn Detector),*].into_iter()
            }

            /// Each takes the next thing there is to know; what is to be said at once.
            pub(crate) fn observe(
                &mut self,
                input: &Input,
                context: JobContext<'_>,
            ) -> Vec<Announcement> {
                let mut said = Vec::new();
                // Not through `all_mut`: each mark passes here, most methods take no marks, and
                // hardly ever is anything said.
                $(
                    let new = self.$name.observe(input, context);
                    if !new.is_empty() {
                        said.extend(new);
                    }
                )*
                said
            }

            fn all_mut(&mut self) -> impl Iterator<Item = &mut dyn Detector> {
                [$(&mut self.$name as &mut dyn Detector),*].into_iter()
            }
        }
    };
}

// To add a method, implement `Detector` in a module here and add its row.
detectors! { settings, baseline:
    stages: Stages = Stages::new(settings, baseline),
    collectives: InCollectives =
        InCollectives::new(settings.hang.clone(), settings.arrival.share_min),
    timed: TimedCollectives =
        TimedCollectives::new(settings.arrival.clone(), settings.incident.clone()),
    pipelines: Pipelines =
        Pipelines::new(settings.schedule.clone(), settings.incident.clone()),
    calls: Calls = Calls::new(settings),
    functions: Functions = Functions::new(settings.incident.clone()),
    what_if: WhatIfTrace = WhatIfTrace::new(settings.incident.clone()),
}

impl Detectors {
    /// Nothing more comes.
    pub(crate) fn finish(&mut self, context: JobContext<'_>) -> Vec<Announcement> {
        self.all_mut()
            .flat_map(|detector| detector.finish(context))
            .collect()
    }

    /// What each found.
    pub(crate) fn findings(&self, context: JobContext<'_>) -> Vec<Finding> {
        self.all()
            .flat_map(|detector| detector.findings(context))
            .collect()
    }

    /// All ranks start over.
    pub(crate) fn restart(&mut self) {
        self.all_mut().for_each(Detector::restart);
    }
}
