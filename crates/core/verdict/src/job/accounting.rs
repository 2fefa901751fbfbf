//! Where the time of steps went, over all windows of a job.

use std::collections::{BTreeMap, VecDeque};

use frontier::{
    Baseline, Gates, WindowFrontier, analyse, assume_synchronisation, device_wait_s,
    join_where_seen,
};
use model::{Cut, Meeting, StageId, StageNames, StageSummary, Window, WindowSummary};

use crate::Series;
use crate::totals::Totals;

/// Window summaries kept; the oldest make room.
const MAX_WINDOWS: usize = 4096;

/// The accounts of all windows of a job.
#[derive(Debug)]
pub(super) struct Accounting {
    gates: Gates,
    baseline: Baseline,
    series: Series,
    totals: Totals,
    windows: VecDeque<(WindowSummary, BTreeMap<StageId, f64>)>,
    cut: Option<(Cut, Meeting)>,
    /// Seconds that hosts waited for their devices where they meet.
    device_wait_s: f64,
    /// What was exposed before the job was last started over.
    earlier_s: f64,
}

impl Accounting {
    /// Nothing yet, of windows that are measured by `gates` against a baseline.
    pub(super) fn new(gates: Gates, baseline: Baseline) -> Self {
        Self {
            gates,
            baseline,
            series: Series::default(),
            totals: Totals::default(),
            windows: VecDeque::new(),
            cut: None,
            device_wait_s: 0.0,
            earlier_s: 0.0,
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
        self.totals.steps += steps as f64;
        self.totals.exposed_s += exposed_s;
    }

    /// Adds what was found in a window.
    pub(super) fn add(&mut self, window: &Window, found: &WindowFrontier) {
        self.series.add(window, found);
        self.cut = Some((window.cut, window.meeting));
        self.device_wait_s += device_wait_s(window) * window.group_share;
        self.totals.add(window, found, &self.gates);
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
        self.totals.exposed_s
    }

    /// What of it was since the job was last started, in seconds.
    pub(super) fn exposed_in_start_s(&self) -> f64 {
        self.totals.exposed_s - self.earlier_s
    }

    /// The job is started over. What follows adds to what was accounted before.
    pub(super) fn restart(&mut self) {
        self.earlier_s = self.totals.exposed_s;
    }

    /// Steps that were accounted; each role's part of the ranks counts for as much.
    pub(super) fn steps(&self) -> f64 {
        self.totals.steps
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
        self.device_wait_s / self.totals.exposed_s
    }

    /// Each stage over the run, as the devices have it if their totals are given.
    pub(super) fn stages(
        &self,
        on_devices: Option<&Totals>,
        names: &StageNames,
    ) -> Vec<StageSummary> {
        // Windows list their shares in the order of these stages.
        let stages = self.totals.stages();
        let totals = on_devices.unwrap_or(&self.totals);
        totals.summaries(stages, self.totals.exposed_s, names)
    }

    /// Each listed window, with the shares of all stages of the run.
    pub(super) fn windows(&self) -> Vec<WindowSummary> {
        self.windows
            .iter()
            .map(|(window, shares)| {
                let shares = self
                    .totals
                    .stages()
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
