use std::collections::BTreeMap;

use model::{StageId, Window, median};

use crate::{Gates, WindowFrontier};

/// Who reaches a stage's boundary last, and by how much.
///
/// # Source
/// StageFrontier (2026); docs/math/frontier.md.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Localisation {
    /// Median over the steps of the frontier's distance to the median rank, in seconds.
    pub lag_s: f64,
    /// What the stage itself added to that lag, in seconds.
    pub lag_increment_s: f64,
    /// Columns within the noise of the frontier in more than half of the steps.
    pub tie_set: Vec<usize>,
    /// Confident steps each column led.
    pub leaders: BTreeMap<usize, usize>,
    /// Steps whose leader was ahead of the next rank by more than noise.
    pub confident_steps: usize,
    /// Share of neighbouring confident steps whose leader differs.
    pub switch_rate: f64,
}

/// Locates the lateness at one stage of an accounted window.
///
/// The boundary looked at is, step by step, the one of the stage that was charged most.
/// # Complexity
/// Linear in the matrix up to that boundary, plus two selections over the ranks a step.
pub fn localise(
    window: &Window,
    found: &WindowFrontier,
    stage: StageId,
    gates: &Gates,
) -> Localisation {
    let Some(slot) = found.slot(stage) else {
        return Localisation::default();
    };
    let ranks = window.ranks.len();
    let mut local = Localisation::default();
    let mut lags = Vec::new();
    let mut increments = Vec::new();
    let mut near = vec![0usize; ranks];
    let mut previous_leader = None;
    let mut switches = 0;
    let mut prefixes = vec![0.0; ranks];
    let mut rows = 0;
    for account in &found.steps {
        let Some(at) = account.stages[slot] else {
            continue;
        };
        rows += 1;
        let row = window.blocks[account.block].row(account.row);
        prefixes.fill(0.0);
        // In front of the first boundary all ranks are where they met, at 0.
        let mut lag_before = 0.0;
        for (boundary, durations) in row.chunks_exact(ranks).enumerate() {
            for (prefix, duration) in prefixes.iter_mut().zip(durations) {
                *prefix += duration;
            }
            if boundary + 1 == at.boundary {
                lag_before = lag_s(&prefixes);
            }
            if boundary == at.boundary {
                break;
            }
        }
        let lag = lag_s(&prefixes);
        lags.push(lag);
        increments.push(lag - lag_before);
        let notable = gates.notable_s(account.makespan_s);
        let frontier = prefixes.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        for (count, prefix) in near.iter_mut().zip(&prefixes) {
            *count += usize::from(frontier - prefix <= notable);
        }
        // Of a single rank the gap is infinite, and it leads nobody.
        if ranks >= 2 && at.gap_s > notable {
            local.confident_steps += 1;
            *local.leaders.entry(at.leader).or_default() += 1;
            // Neighbours among confident steps: who leads by noise in between is no change.
            switches += usize::from(previous_leader.is_some_and(|old| old != at.leader));
            previous_leader = Some(at.leader);
        }
    }
    local.lag_s = median(&mut lags).unwrap_or(0.0);
    local.lag_increment_s = median(&mut increments).unwrap_or(0.0);
    local.tie_set = (0..ranks).filter(|rank| near[*rank] * 2 > rows).collect();
    let pairs = local.confident_steps.saturating_sub(1);
    local.switch_rate = if pairs == 0 {
        0.0
    } else {
        switches as f64 / pairs as f64
    };
    local
}

fn lag_s(prefixes: &[f64]) -> f64 {
    let frontier = prefixes.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // A copy: the median reorders, and the prefixes run on to the next boundary.
    frontier - median(&mut prefixes.to_vec()).unwrap_or(frontier)
}
