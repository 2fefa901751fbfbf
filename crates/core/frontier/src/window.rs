use model::{Downgrade, Label, StageId, Window, median};

use crate::{Axes, Baseline, Front, Gates, RowAccount, StageBaseline, account_row, label};

/// A stage in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageStep {
    /// Exposed seconds it was charged with.
    pub advance_s: f64,
    /// The boundary of the stage that was charged most.
    pub boundary: usize,
    /// Column of the rank that reached that boundary last.
    pub leader: usize,
    /// Its lead over the next rank, in seconds; infinite for a single rank.
    pub gap_s: f64,
}

/// One step of a window, accounted for.
#[derive(Clone, Debug, PartialEq)]
pub struct StepAccount {
    /// Its number.
    pub step: u64,
    /// Its block in the window.
    pub block: usize,
    /// Its row in that block.
    pub row: usize,
    /// Exposed makespan, in seconds.
    pub makespan_s: f64,
    /// One entry a stage of the window, `None` if the step does not have it.
    pub stages: Vec<Option<StageStep>>,
}

/// What StageFrontier says about one window.
#[derive(Clone, Debug)]
pub struct WindowFrontier {
    /// Stages in schema order; the vectors below follow it.
    pub stages: Vec<StageId>,
    /// Exposed seconds each was charged with.
    pub advance_s: Vec<f64>,
    /// Share of exposed time, all zero below [`Gates::denom_floor_s`].
    pub share: Vec<f64>,
    /// Direct-exposure gain.
    pub gain: Vec<f64>,
    /// Exposed seconds of the window.
    pub exposed_s: f64,
    /// Its steps, in order.
    pub steps: Vec<StepAccount>,
    /// Labels in their fixed order.
    pub labels: Vec<Label>,
    /// Stages to look at first, by share.
    pub candidates: Vec<StageId>,
    /// Stages that cannot be told apart.
    pub co_critical: Vec<StageId>,
    /// Why labels were weakened.
    pub downgrades: Vec<Downgrade>,
    /// Which part of their makespans steps take: 1 if ranks meet in each step. Hosts that run ahead wait
    /// in turn, even those that come together somewhere, and makespans add up their waits: of these, and
    /// where no rank takes nearly as long as all makespans, all steps take as long as the slowest rank
    /// does.
    pub taken_share: f64,
}

/// Steps from which on a window shows that its hosts run ahead. Ours: by chance few seem to.
const AHEAD_STEPS: usize = 20;
/// Share by which makespans may add up to more than any rank takes. Ours: ranks that meet in each step
/// leave a meeting that far apart at most.
const OVERRUN_SHARE: f64 = 0.05;

impl WindowFrontier {
    /// What each step took, in seconds, by its number: [a part](Self::taken_share) of its makespan.
    pub fn took_s(&self) -> impl Iterator<Item = (u64, f64)> {
        let steps = self.steps.iter();
        steps.map(|it| (it.step, it.makespan_s * self.taken_share))
    }

    /// Mean exposed time of a step, in seconds.
    pub fn step_s(&self) -> f64 {
        self.exposed_s / self.steps.len().max(1) as f64
    }

    /// Median exposed time of a step, in seconds.
    pub fn median_step_s(&self) -> f64 {
        let mut makespans: Vec<f64> = self.steps.iter().map(|s| s.makespan_s).collect();
        median(&mut makespans).unwrap_or(0.0)
    }

    /// Place of a stage in the vectors.
    pub fn slot(&self, stage: StageId) -> Option<usize> {
        self.stages.iter().position(|known| *known == stage)
    }
}

/// Accounts a window and labels it.
///
/// # Properties
/// Advances are not negative and sum to the exposed time; shares sum to 1 unless the
/// exposed time is below the floor.
/// # Complexity
/// Linear in the matrix for the accounting; the cohort baseline adds a selection over the
/// steps of each rank and stage.
/// # Source
/// StageFrontier (2026); docs/math/frontier.md.
pub fn analyse(window: &Window, gates: &Gates, baseline: &Baseline) -> WindowFrontier {
    let stages = window.stages();
    let slots: Vec<Vec<usize>> = window
        .blocks
        .iter()
        .map(|block| {
            block
                .boundaries
                .iter()
                // Each is found, for `stages` are those of all boundaries: no slot moves up.
                .filter_map(|it| stages.iter().position(|stage| *stage == it.stage))
                .collect()
        })
        .collect();
    let baseline = StageBaseline::of_window(window, &stages, &slots, baseline);
    let mut advance_s = vec![0.0; stages.len()];
    let mut relieved_s = vec![0.0; stages.len()];
    let mut exposed_s = 0.0;
    let mut steps = Vec::with_capacity(window.rows());
    let mut account = RowAccount::default();
    for (index, (block, slots)) in window.blocks.iter().zip(&slots).enumerate() {
        for (row, (step, values)) in block.rows().enumerate() {
            account_row(values, block.ranks, slots, Some(&baseline), &mut account);
            exposed_s += account.makespan_s();
            for (total, value) in relieved_s.iter_mut().zip(&account.relieved_s) {
                *total += value;
            }
            for (slot, front) in slots.iter().zip(&account.fronts) {
                advance_s[*slot] += front.advance_s;
            }
            let makespan_s = account.makespan_s();
            let stages = stage_steps(stages.len(), slots, &account.fronts);
            steps.push(StepAccount {
                step,
                block: index,
                row,
                makespan_s,
                stages,
            });
        }
    }
    // Blocks group steps by their boundaries; what follows leaders or paces needs their order.
    steps.sort_by_key(|account| account.step);
    // The floor may be set to 0, and nothing is a share of no time.
    let measurable = exposed_s > 0.0 && exposed_s >= gates.denom_floor_s;
    let (share, gain): (Vec<f64>, Vec<f64>) = if measurable {
        (
            advance_s
                .iter()
                .map(|seconds| seconds / exposed_s)
                .collect(),
            relieved_s
                .iter()
                .map(|relieved| (exposed_s - relieved) / exposed_s)
                .collect(),
        )
    } else {
        (vec![0.0; stages.len()], vec![0.0; stages.len()])
    };
    let candidates = candidates(&stages, &share, gates.candidate_tau);
    let taken_share = taken_share(window, exposed_s, steps.len());
    let mut found = WindowFrontier {
        stages,
        advance_s,
        share,
        gain,
        exposed_s,
        steps,
        labels: Vec::new(),
        candidates,
        co_critical: Vec::new(),
        downgrades: Vec::new(),
        taken_share,
    };
    let Axes {
        labels,
        co_critical,
        downgrades,
    } = label(window, &found, gates);
    (found.labels, found.co_critical, found.downgrades) = (labels, co_critical, downgrades);
    found
}

/// Which part of the makespans of so many steps these take.
fn taken_share(window: &Window, exposed_s: f64, steps: usize) -> f64 {
    let longest_s = window.longest_s();
    let are_few = steps < AHEAD_STEPS;
    // Ranks may be apart by a step where few of them begin, and somewhere else where they end.
    let apart_s = if are_few {
        exposed_s / steps.max(1) as f64
    } else {
        0.0
    };
    let is_overrun = exposed_s > (1.0 + OVERRUN_SHARE) * longest_s + apart_s;
    if is_overrun || (window.runs_ahead && !are_few) {
        longest_s / exposed_s.max(f64::MIN_POSITIVE)
    } else {
        1.0
    }
}

fn stage_steps(stages: usize, slots: &[usize], fronts: &[Front]) -> Vec<Option<StageStep>> {
    let mut found: Vec<Option<(f64, StageStep)>> = vec![None; stages];
    for (boundary, (slot, front)) in slots.iter().zip(fronts).enumerate() {
        let here = StageStep {
            advance_s: front.advance_s,
            boundary,
            leader: front.leader,
            gap_s: front.gap_s(),
        };
        found[*slot] = Some(match found[*slot].take() {
            None => (front.advance_s, here),
            Some((largest, mut known)) => {
                let total = known.advance_s + front.advance_s;
                let largest_now = largest.max(front.advance_s);
                // Compared with the largest single boundary: `known` already holds the sum.
                known = if front.advance_s > largest {
                    here
                } else {
                    known
                };
                (
                    largest_now,
                    StageStep {
                        advance_s: total,
                        ..known
                    },
                )
            }
        });
    }
    found
        .into_iter()
        .map(|stage| stage.map(|(_, stage)| stage))
        .collect()
}

/// Indices of stages by falling score, ties in schema order.
pub fn ranking(scores: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    order
}

/// The routing set: the shortest prefix of stages, by falling share, that explains `tau`.
///
/// # Source
/// StageFrontier (2026). Independent of the ambiguity set.
pub fn candidates(stages: &[StageId], shares: &[f64], tau: f64) -> Vec<StageId> {
    let mut explained = 0.0;
    let mut set = Vec::new();
    for slot in ranking(shares) {
        // A stage that costs nothing explains nothing, even if rounding keeps the sum below `tau`.
        if explained >= tau || shares[slot] <= 0.0 {
            break;
        }
        explained += shares[slot];
        set.push(stages[slot]);
    }
    set
}

#[cfg(test)]
mod tests {
    use model::{Block, Boundary, Ending, MarkKind, Sync};

    use super::*;

    /// What so many steps of two ranks take, which take so many seconds for each.
    fn took_s(steps: usize, row_s: impl Fn(usize) -> [f64; 2]) -> f64 {
        let boundary = Boundary {
            stage: StageId::FORWARD,
            after: MarkKind::ForwardBegin,
            ending: Ending::Mark(MarkKind::ForwardEnd),
            sync: Sync::None,
        };
        let block = Block {
            boundaries: [boundary].into(),
            groups: None,
            steps: (0..steps as u64).collect(),
            durations_s: (0..steps).flat_map(row_s).collect(),
            ranks: 2,
            carried: 0,
        };
        let window = block.into();
        let found = analyse(&window, &Gates::default(), &Baseline::CohortMedian);
        found.took_s().map(|(_, took_s)| took_s).sum()
    }

    #[test]
    fn steps_take_their_makespans_unless_ranks_wait_in_turn() {
        let meets = took_s(40, |_| [0.03, 0.01]);
        assert!((meets - 1.2).abs() < 1e-9, "{meets}");
        let in_turn = |at: usize| {
            if at.is_multiple_of(2) {
                [0.03, 0.01]
            } else {
                [0.01, 0.03]
            }
        };
        for steps in [8, 40] {
            let took_s = took_s(steps, in_turn);
            assert!((took_s - 0.02 * steps as f64).abs() < 1e-9, "{took_s}");
        }
        // One wait in a few steps shows nothing.
        let one = took_s(5, |at| if at == 0 { [0.01, 0.03] } else { [0.03, 0.01] });
        assert!((one - 0.15).abs() < 1e-9, "{one}");
    }
}
