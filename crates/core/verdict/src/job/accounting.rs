//! Where the time of steps went, over all windows of a job.

use std::collections::{BTreeMap, VecDeque};

use frontier::{
    Baseline, Gates, WindowFrontier, analyse, assume_synchronisation, device_wait_s,
    join_where_seen,
};
use model::{Cut, Meeting, StageId, StageNames, StageSummary, Window, WindowSummary};

use crate::Series;

/// Window summaries kept; the oldest make room.
const MAX_WINDOWS: usize = 4096;

/// The accounts of all windows of a job.
#[derive(Debug)]
pub(super) struct Accounting {
    gates: Gates,
    baseline: Baseline,
    series: Series,
    totals: BTreeMap<StageId, StageTotal>,
    windows: VecDeque<(WindowSummary, BTreeMap<StageId, f64>)>,
    cut: Option<(Cut, Meeting)>,
    /// Seconds that hosts waited for their devices where they meet.
    device_wait_s: f64,
    exposed_s: f64,
    /// What of it was exposed before the job was last started over.
    earlier_s: f64,
    /// Steps in it; each role's part of the ranks counts for as much.
    steps: f64,
}

#[derive(Debug, Default)]
struct StageTotal {
    advance_s: f64,
    gained_s: f64,
    /// Steps each rank led by more than noise.
    led: BTreeMap<u32, u64>,
}

impl Accounting {
    /// Nothing yet, of windows that are measured by `gates` against a baseline.
    pub(super) fn new(gates: Gates, baseline: Baseline) -> Self {
        Self {
            gates,
            baseline,
            series: Series::default(),
            totals: BTreeMap::new(),
            windows: VecDeque::new(),
            cut: None,
            device_wait_s: 0.0,
            exposed_s: 0.0,
            earlier_s: 0.0,
            steps: 0.0,
        }
    }

    /// Measures a window whose ranks are joined where they meet.
    pub(super) fn measure(&self, mut window: Window) -> (Window, WindowFrontier) {
        if window.ranks.len() > 1 {
            match window.meeting {
                Meeting::Issued => assume_synchronisation(&mut window),
                // To issue is not to meet: what these issue joins nobody (docs/math/meetings.md).
                Meeting::Seen | Meeting::Unseen => join_where_seen(&mut window),
            }
        }
        let found = analyse(&window, &self.gates, &self.baseline);
        (window, found)
    }

    /// Adds the steps of a trace that took so long.
    pub(super) fn add_steps(&mut self, steps: usize, exposed_s: f64) {
        self.steps += steps as f64;
        self.exposed_s += exposed_s;
    }

    /// Adds what was found in a window.
    pub(super) fn add(&mut self, window: &Window, found: &WindowFrontier) {
        self.series.add(window, found);
        self.cut = Some((window.cut, window.meeting));
        // Windows of several roles cover the same steps, and together count once.
        self.device_wait_s += device_wait_s(window) * window.group_share;
        let took_s: f64 = found.took_s(window).map(|(_, took_s)| took_s).sum();
        self.exposed_s += took_s * window.group_share;
        // Stages add up to it.
        let part = took_s / found.exposed_s.max(f64::MIN_POSITIVE) * window.group_share;
        self.steps += found.steps.len() as f64 * window.group_share;
        for (slot, stage) in found.stages.iter().enumerate() {
            let total = self.totals.entry(*stage).or_default();
            total.advance_s += found.advance_s[slot] * part;
            // A gain is a share of its window; only as seconds does it add up over windows.
            total.gained_s += found.gain[slot] * found.exposed_s * part;
            for account in &found.steps {
                let Some(at) = account.stages[slot] else {
                    continue;
                };
                let notable = self.gates.notable_s(account.makespan_s);
                // A single rank leads each step, and nobody waits for it.
                if window.ranks.len() > 1 && at.gap_s > notable {
                    *total.led.entry(window.ranks[at.leader]).or_default() += 1;
                }
            }
        }
    }

    /// Lists a window; how many make room for it.
    pub(super) fn list(
        &mut self,
        window: &Window,
        found: &WindowFrontier,
        names: &StageNames,
    ) -> u64 {
        let shares = found
            .stages
            .iter()
            .copied()
            .zip(found.share.iter().copied());
        self.windows
            .push_back((summary(window, found, names), shares.collect()));
        if self.windows.len() <= MAX_WINDOWS {
            return 0;
        }
        self.windows.pop_front();
        1
    }

    /// How many windows are listed.
    pub(super) fn listed(&self) -> usize {
        self.windows.len()
    }

    /// The first and last step of the listed windows.
    pub(super) fn span(&self) -> (u64, u64) {
        let windows = self.windows.iter().map(|(window, _)| window);
        let last = windows
            .clone()
            .map(|window| window.first_step + window.steps)
            .max();
        (
            windows.map(|window| window.first_step).min().unwrap_or(0),
            last.map_or(0, |last| last.saturating_sub(1)),
        )
    }

    /// What all of it took, in seconds.
    pub(super) fn exposed_s(&self) -> f64 {
        self.exposed_s
    }

    /// What of it was since the job was last started, in seconds.
    pub(super) fn exposed_in_start_s(&self) -> f64 {
        self.exposed_s - self.earlier_s
    }

    /// The job is started over. What follows adds to what was accounted before.
    pub(super) fn restart(&mut self) {
        self.earlier_s = self.exposed_s;
    }

    /// Steps that were accounted; each role's part of the ranks counts for as much.
    pub(super) fn steps(&self) -> f64 {
        self.steps
    }

    /// Exposed time and lag over the run.
    pub(super) fn series(&self) -> &Series {
        &self.series
    }

    /// How steps are cut, in words.
    pub(super) fn cut(&self) -> String {
        narrate::cut(self.cut)
    }

    /// The share of exposed time in which hosts waited for their devices; no number without any.
    pub(super) fn device_wait_share(&self) -> f64 {
        self.device_wait_s / self.exposed_s
    }

    fn share_of_exposed(&self, seconds: f64) -> f64 {
        if self.exposed_s > 0.0 {
            seconds / self.exposed_s
        } else {
            0.0
        }
    }

    /// Each stage over the run.
    pub(super) fn stages(&self, names: &StageNames) -> Vec<StageSummary> {
        self.totals
            .iter()
            .map(|(stage, total)| StageSummary {
                name: names.name(*stage).to_owned(),
                advance_s: total.advance_s,
                share: self.share_of_exposed(total.advance_s),
                gain: self.share_of_exposed(total.gained_s),
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

    /// Each listed window, with the shares of all stages of the run.
    pub(super) fn windows(&self) -> Vec<WindowSummary> {
        self.windows
            .iter()
            .map(|(window, shares)| {
                let shares = self
                    .totals
                    .keys()
                    .map(|stage| shares.get(stage).copied().unwrap_or(0.0));
                WindowSummary {
                    shares: shares.collect(),
                    ..window.clone()
                }
            })
            .collect()
    }
}

fn summary(window: &Window, found: &WindowFrontier, names: &StageNames) -> WindowSummary {
    let [candidates, co_critical_stages] = [&found.candidates, &found.co_critical].map(|stages| {
        stages
            .iter()
            .map(|stage| names.name(*stage).to_owned())
            .collect()
    });
    WindowSummary {
        first_step: window.first_step,
        steps: window.steps,
        labels: found.labels.clone(),
        candidates,
        co_critical_stages,
        downgrades: found.downgrades.iter().map(narrate::downgrade).collect(),
        step_s: found.step_s(),
        shares: Vec::new(),
        missing_ranks: window.missing_ranks.clone(),
    }
}
