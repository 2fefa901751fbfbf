//! The verdict of a job, as a document.

use model::{JobSummary, SCHEMA, Verdict};

use super::Job;
use crate::detectors::pipeline_summary;

impl Job {
    /// What is to be said of the job now.
    pub fn verdict(&self) -> Verdict {
        // Once: it takes all findings of the job's stages.
        let hosts_may_run_ahead = self.hosts_may_run_ahead();
        // Stages are those of the clock on which ranks meet.
        let on_devices = self.detectors.stages.devices.totals();
        Verdict {
            side_channels: self.side_channels.summaries(&self.names),
            schema: SCHEMA.to_owned(),
            job: JobSummary {
                id: self.id.clone(),
                ranks: self.ranks(),
                steps: self.steps(),
                analysed_steps: match self.detectors.calls.logs() {
                    Some(said) => said.timed,
                    // Parts of roles add up to whole steps only but for rounding.
                    None => self.accounting.steps().round() as u64,
                },
                source: self.source,
                cut: self.accounting.cut(),
                exposed_s: self.accounting.exposed_s(),
                device_wait_share: self.device_wait_share(),
                hosts_run_ahead: self.detectors.stages.devices.hosts_run_ahead(),
                hosts_may_run_ahead,
                device_issues_unseen: self.detectors.stages.devices.waits_unseen(),
                partly_seen: self.is_partly_seen(),
                unrecorded_share: self.unrecorded_share(),
                ranks_unseen: self.has_unseen_ranks(),
                uncompared_ranks: self.uncompared_ranks(),
                unlike_devices: self.unlike_devices(),
                ambiguous_steps: self.detectors.stages.tracker.ambiguous_steps(),
                stages_on_devices: on_devices.is_some(),
                sampled_steps: self.detectors.stages.devices.sampled_steps(),
                read_backs: self.detectors.stages.devices.read_backs(&self.names),
                lost_records: self.streams.lost(),
            },
            stages: self.accounting.stages(on_devices, &self.names),
            windows: self.accounting.windows(),
            pipeline: self.detectors.calls.all().map(pipeline_summary),
            incidents: self.findings().into_iter().map(narrate::incident).collect(),
            absorbed: match self.detectors.calls.logs() {
                Some(said) => incident::pipeline_absorbed(said)
                    .iter()
                    .map(narrate::absorbed)
                    .collect(),
                None => self
                    .detectors
                    .pipelines
                    .absorbed()
                    .iter()
                    .map(narrate::absorbed)
                    .collect(),
            },
            what_if: self
                .detectors
                .what_if
                .shown
                .as_ref()
                .map(|shown| shown.what_if.clone()),
            notes: self
                .all_notes(hosts_may_run_ahead)
                .iter()
                .map(narrate::note)
                .collect(),
            profile: self
                .detectors
                .functions
                .profiled
                .as_ref()
                .map(|profiled| profiled.summary.clone()),
        }
    }
}
