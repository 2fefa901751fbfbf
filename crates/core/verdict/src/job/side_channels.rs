//! Times that a program measures beside its steps.

use std::collections::BTreeMap;

use model::{Event, SideSummary, StageId, StageNames};

/// The samples of each side channel.
#[derive(Debug, Default)]
pub(super) struct SideChannels(BTreeMap<StageId, SideTotal>);

#[derive(Debug, Default)]
struct SideTotal {
    samples: u64,
    sum_s: f64,
    lost: u64,
}

impl SideChannels {
    /// Takes what happened in `channel`, if it is a sample or the loss of one.
    pub(super) fn take(&mut self, channel: StageId, event: &Event) {
        match event {
            Event::SideSample { nanoseconds, .. } => {
                let total = self.0.entry(channel).or_default();
                total.samples += 1;
                total.sum_s += *nanoseconds as f64 * 1e-9;
            }
            Event::SideLost { .. } => self.0.entry(channel).or_default().lost += 1,
            _ => {}
        }
    }

    /// Each of them.
    pub(super) fn summaries(&self, names: &StageNames) -> Vec<SideSummary> {
        self.0
            .iter()
            .map(|(channel, total)| SideSummary {
                name: names.name(*channel).to_owned(),
                samples: total.samples,
                lost: total.lost,
                mean_s: total.sum_s / total.samples.max(1) as f64,
            })
            .collect()
    }
}
