//! Where the time of steps went, by stage.

use std::collections::BTreeMap;

use frontier::{Gates, WindowFrontier};
use model::{StageId, StageNames, StageSummary, Window};

/// The accounts of windows, added up.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    stages: BTreeMap<StageId, StageTotal>,
    pub(crate) exposed_s: f64,
    /// Each role's part of the ranks counts for as much.
    pub(crate) steps: f64,
}

#[derive(Debug, Default)]
struct StageTotal {
    advance_s: f64,
    gained_s: f64,
    /// Steps each rank led by more than noise.
    led: BTreeMap<u32, u64>,
}

impl Totals {
    /// Adds what was found in a window.
    pub(crate) fn add(&mut self, window: &Window, found: &WindowFrontier, gates: &Gates) {
        let took_s: f64 = found.took_s().map(|(_, took_s)| took_s).sum();
        // Windows of several roles cover the same steps, and together count once.
        self.exposed_s += took_s * window.group_share;
        self.steps += found.steps.len() as f64 * window.group_share;
        // Stages add up to what steps take.
        let part = took_s / found.exposed_s.max(f64::MIN_POSITIVE) * window.group_share;
        for (slot, stage) in found.stages.iter().enumerate() {
            let total = self.stages.entry(*stage).or_default();
            total.advance_s += found.advance_s[slot] * part;
            // A gain is a share of its window; only as seconds does it add up over windows.
            total.gained_s += found.gain[slot] * found.exposed_s * part;
            for account in &found.steps {
                let Some(at) = account.stages[slot] else {
                    continue;
                };
                let notable = gates.notable_s(account.makespan_s);
                // A single rank leads each step, and nobody waits for it.
                if window.ranks.len() > 1 && at.gap_s > notable {
                    *total.led.entry(window.ranks[at.leader]).or_default() += 1;
                }
            }
        }
    }

    /// All of them, in order.
    pub(crate) fn stages(&self) -> impl Iterator<Item = &StageId> {
        self.stages.keys()
    }

    /// Some stages, as parts of so many seconds.
    pub(crate) fn summaries<'a>(
        &self,
        stages: impl Iterator<Item = &'a StageId>,
        exposed_s: f64,
        names: &StageNames,
    ) -> Vec<StageSummary> {
        let none = StageTotal::default();
        let share = |seconds: f64, of_s: f64| if of_s > 0.0 { seconds / of_s } else { 0.0 };
        // 1 for these seconds themselves.
        let part = share(exposed_s, self.exposed_s);
        stages
            .map(|stage| (stage, self.stages.get(stage).unwrap_or(&none)))
            .map(|(stage, total)| StageSummary {
                name: names.name(*stage).to_owned(),
                advance_s: total.advance_s * part,
                share: share(total.advance_s, self.exposed_s),
                gain: share(total.gained_s, self.exposed_s),
                lead_ranks: total
                    .led
                    .iter()
                    // Weighed by role, all steps count once: as many as one rank can lead.
                    .filter(|(_, led)| **led as f64 * 2.0 > self.steps)
                    .map(|(rank, _)| *rank)
                    .collect(),
            })
            .collect()
    }
}
