use std::ops::Range;

use frontier::{Gates, WindowFrontier};
use incident::Scene;
use model::{Label, RankNs, Window};

use crate::series::{each_stage, lags};

/// What is remembered of a window when the job is over.
///
/// # Properties
/// Over all records of a job, the advances of a stage sum to its advance in the verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowRecord {
    /// First step.
    pub first_step: u64,
    /// Number of steps.
    pub steps: u64,
    /// When the first rank began and the last one ended its steps, by the clock of the job's
    /// first host.
    pub span: Range<RankNs>,
    /// Ranks that were compared.
    pub ranks: usize,
    /// Ranks that should have been there.
    pub missing_ranks: Vec<u32>,
    /// Labels in their fixed order.
    pub labels: Vec<Label>,
    /// Its stages, in schema order.
    pub stages: Vec<StageRecord>,
}

/// What is remembered of a stage of a window.
#[derive(Clone, Debug, PartialEq)]
pub struct StageRecord {
    /// The stage.
    pub stage: String,
    /// Exposed seconds it was charged with; where roles divide the job, weighed by the ranks of
    /// the window's role.
    pub advance_s: f64,
    /// Its share of the window's exposed time.
    pub share: f64,
    /// Share of the window's exposed time that would vanish at the baseline.
    pub gain: f64,
    /// Ranks that reached its boundary last in more than half of the steps.
    pub lead_ranks: Vec<u32>,
    /// Ranks that reached it late.
    pub late: Vec<LateRank>,
}

/// A rank that was later than its peers by more than noise.
#[derive(Clone, Debug, PartialEq)]
pub struct LateRank {
    /// The rank.
    pub rank: u32,
    /// Its host, where that is known.
    pub host: Option<String>,
    /// Seconds it came after the median rank, summed over the window's steps.
    pub lag_s: f64,
}

impl WindowRecord {
    /// What is remembered of `window`, in which `found` was found.
    pub(crate) fn new(
        (window, span): (&Window, Range<RankNs>),
        found: &WindowFrontier,
        gates: &Gates,
        scene: Scene<'_>,
    ) -> Self {
        let places: Vec<Option<usize>> = (0..window.ranks.len()).map(Some).collect();
        let stages = found.stages.len();
        let mut lag_s = vec![vec![0.0; places.len()]; stages];
        let mut led = vec![vec![0_u64; places.len()]; stages];
        for account in &found.steps {
            let notable_s = gates.notable_s(account.makespan_s);
            each_stage(window, found, account, |stage, leading, spent_s| {
                let Some(slot) = found.slot(stage) else { return };
                for (sum, lag) in lag_s[slot].iter_mut().zip(lags(&places, spent_s)) {
                    *sum += f64::from(lag);
                }
                led[slot][leading.leader] += u64::from(leading.gap_s > notable_s);
            });
        }
        let steps = found.steps.len() as u64;
        let notable_s = gates.notable_s(found.step_s()) * steps as f64;
        let stages = found.stages.iter().enumerate().map(|(slot, stage)| {
            let led = window.ranks.iter().zip(&led[slot]);
            let lag_s = window.ranks.iter().zip(&lag_s[slot]);
            StageRecord {
                stage: scene.names.name(*stage).to_owned(),
                advance_s: found.advance_s[slot] * window.group_share,
                share: found.share[slot],
                gain: found.gain[slot],
                lead_ranks: led
                    .filter(|(_, led)| places.len() > 1 && **led * 2 > steps)
                    .map(|(rank, _)| *rank)
                    .collect(),
                late: lag_s
                    .filter(|(_, lag_s)| **lag_s > notable_s)
                    .map(|(rank, lag_s)| LateRank {
                        rank: *rank,
                        host: scene.hosts.get(rank).cloned(),
                        lag_s: *lag_s,
                    })
                    .collect(),
            }
        });
        Self {
            first_step: window.first_step,
            steps: window.steps,
            span,
            ranks: window.ranks.len(),
            missing_ranks: window.missing_ranks.clone(),
            labels: found.labels.clone(),
            stages: stages.collect(),
        }
    }
}
