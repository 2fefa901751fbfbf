//! `stage-matrix/1`: durations of stages, step by step and rank by rank.

use std::path::Path;

use model::{
    CollectiveOp, Ending, MarkKind, RankColumn, RankNs, RankStep, Segment, Source, StageId, StepRow,
};
use serde::{Deserialize, Serialize};
use steps::Aligner;
use verdict::{Job, Settings};

use crate::FormatError;

/// Cells a matrix may have: what fits comfortably in memory.
const MAX_CELLS: usize = 1 << 31;
/// Stages a step may have: what a page can show, and more than any schema times any
/// accumulation.
const MAX_STAGES: usize = 4096;
/// Nanoseconds all steps of a rank may take: its clock counts no further.
const MAX_NS: f64 = u64::MAX as f64;

/// `[step][rank][stage]`, `None` where a rank delivered nothing.
type Cells = Vec<Vec<Option<Vec<f64>>>>;

/// A recorded stage matrix.
///
/// # Shape
/// `matrix[step][rank][stage]`; a rank that delivered nothing in a step is `null`.
/// # Units
/// `unit`: `s`, `ms`, `us` or `ns`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StageMatrix {
    schema: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scenario: Option<String>,
    stages: Vec<String>,
    unit: String,
    matrix: Cells,
    /// `[step][rank]`: measured wall time of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wall: Option<Vec<Vec<f64>>>,
    /// `[step][rank][stage]`: time of the stage spent inside a blocking collective at its
    /// end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    python_collective_time: Option<Vec<Vec<Vec<f64>>>>,
    /// Gradient accumulation factor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    grad_accum: Option<u16>,
    /// Stages of an expanded matrix, each named `stage@k`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    micro_stages: Option<Vec<String>>,
    /// The expanded matrix, used instead of `matrix` where it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    micro_matrix: Option<Cells>,
    /// A role for each rank; ranks of different roles are not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    roles: Option<Vec<String>>,
}

impl StageMatrix {
    /// The only version there is.
    pub const SCHEMA: &str = "stage-matrix/1";

    /// A matrix in seconds.
    pub fn new(stages: Vec<String>, matrix: Vec<Vec<Option<Vec<f64>>>>) -> Self {
        Self {
            schema: Self::SCHEMA.to_owned(),
            scenario: None,
            stages,
            unit: "s".to_owned(),
            matrix,
            wall: None,
            python_collective_time: None,
            grad_accum: None,
            micro_stages: None,
            micro_matrix: None,
            roles: None,
        }
    }

    /// Durations in seconds, `[step][rank][stage]`, of the steps that every rank delivered.
    pub fn durations_s(&self) -> Vec<Vec<Vec<f64>>> {
        let unit_s = self.nanoseconds().unwrap_or(1e9) * 1e-9;
        let (_, _, matrix) = self.chosen();
        matrix
            .iter()
            .filter_map(|step| {
                step.iter()
                    .map(|row| Some(row.as_ref()?.iter().map(|it| it * unit_s).collect()))
                    .collect()
            })
            .collect()
    }

    /// Refuses what the analysis must not see.
    pub(crate) fn check(&self, path: &Path) -> Result<(), FormatError> {
        self.first_mistake()
            .map_err(|(place, reason)| FormatError::content(path, place, reason))
    }

    /// Nothing, or the place of what is wrong and why.
    fn first_mistake(&self) -> Result<(), (String, String)> {
        if self.schema != Self::SCHEMA {
            let reason = format!("expected {:?}, found {:?}", Self::SCHEMA, self.schema);
            return Err(("schema".into(), reason));
        }
        let Some(unit_ns) = self.nanoseconds() else {
            let reason = format!("expected s, ms, us or ns, found {:?}", self.unit);
            return Err(("unit".into(), reason));
        };
        let (name, stages, matrix) = self.chosen();
        if stages.is_empty() || matrix.is_empty() {
            return Err((name.into(), "no step or no stage".into()));
        }
        if self.micro_stages.is_some() != self.micro_matrix.is_some() {
            let reason = "micro_stages and micro_matrix belong together".into();
            return Err(("micro_stages".into(), reason));
        }
        if stages.len() > MAX_STAGES {
            let reason = format!("{} stages, at most {MAX_STAGES}", stages.len());
            return Err((name.into(), reason));
        }
        // There is a step: a matrix without one was refused above.
        let ranks = matrix[0].len();
        if ranks == 0 || matrix.len().saturating_mul(ranks * stages.len()) > MAX_CELLS {
            let reason = format!("{} steps of {ranks} ranks", matrix.len());
            return Err((name.into(), reason));
        }
        for (step, rows) in matrix.iter().enumerate() {
            if rows.len() != ranks {
                let reason = format!("{} ranks, the first step has {ranks}", rows.len());
                return Err((format!("{name}[{step}]"), reason));
            }
            for (rank, row) in rows.iter().enumerate() {
                let Some(row) = row else { continue };
                if row.len() != stages.len() {
                    let reason = format!("{} values for {} stages", row.len(), stages.len());
                    return Err((format!("{name}[{step}][{rank}]"), reason));
                }
                if let Some((stage, value)) = bad_duration(row) {
                    let reason = format!("{value} is not a duration");
                    return Err((format!("{name}[{step}][{rank}][{stage}]"), reason));
                }
            }
        }
        self.check_companions(matrix.len(), ranks)?;
        // Replay lays steps end to end on a clock of whole nanoseconds, which must not run over.
        let mut until_ns = vec![0.0; ranks];
        for (step, rows) in matrix.iter().enumerate() {
            for (rank, row) in rows.iter().enumerate() {
                let Some(row) = row else { continue };
                let wall = self.wall(StepRow(step), RankColumn(rank)).unwrap_or(0.0);
                until_ns[rank] += row.iter().sum::<f64>().max(wall) * unit_ns;
                if until_ns[rank] >= MAX_NS {
                    let reason = "the steps of this rank take centuries".into();
                    return Err((format!("{name}[{step}][{rank}]"), reason));
                }
            }
        }
        Ok(())
    }

    fn check_companions(&self, steps: usize, ranks: usize) -> Result<(), (String, String)> {
        if let Some(wall) = &self.wall {
            let fits = wall.len() == steps && wall.iter().all(|row| row.len() == ranks);
            if !fits {
                return Err(("wall".into(), "not as large as the matrix".into()));
            }
            for (step, row) in wall.iter().enumerate() {
                if let Some((rank, value)) = bad_duration(row) {
                    let reason = format!("{value} is not a duration");
                    return Err((format!("wall[{step}][{rank}]"), reason));
                }
            }
        }
        if let Some(times) = &self.python_collective_time {
            let fits = times.len() == steps
                && times.iter().all(|ranks_of_step| {
                    ranks_of_step.len() == ranks
                        && ranks_of_step.iter().all(|row| {
                            row.len() == self.stages.len() && bad_duration(row).is_none()
                        })
                });
            if !fits {
                let reason = "not durations, or not as large as the matrix".into();
                return Err(("python_collective_time".into(), reason));
            }
        }
        if self
            .roles
            .as_ref()
            .is_some_and(|roles| roles.len() != ranks)
        {
            let reason = format!("expected one for each of {ranks} ranks");
            return Err(("roles".into(), reason));
        }
        Ok(())
    }

    /// Measured wall time of a rank's step.
    fn wall(&self, step: StepRow, rank: RankColumn) -> Option<f64> {
        self.wall.as_ref().map(|wall| wall[step.0][rank.0])
    }

    /// The expanded matrix if there is one, else the plain one.
    fn chosen(&self) -> (&'static str, &[String], &Cells) {
        match (&self.micro_stages, &self.micro_matrix) {
            (Some(stages), Some(matrix)) => ("micro_matrix", stages, matrix),
            _ => ("matrix", &self.stages, &self.matrix),
        }
    }

    fn nanoseconds(&self) -> Option<f64> {
        let unit = match self.unit.as_str() {
            "s" => 1e9,
            "ms" => 1e6,
            "us" => 1e3,
            "ns" => 1.0,
            _ => return None,
        };
        Some(unit)
    }

    pub(crate) fn replay(&self, id: &str, mut settings: Settings) -> Job {
        // A matrix begins where its recorder wanted it to: nothing is warm-up.
        settings.window.warmup_steps = 0;
        let mut aligner = Aligner::new(settings.window.clone());
        let mut job = Job::new(id, Source::StageMatrix, settings);
        let (name, stages, matrix) = self.chosen();
        let expanded = name == "micro_matrix";
        let mut ids: Vec<StageId> = stages
            .iter()
            // The micro-steps of a stage, `stage@k`, are charged to the stage.
            .map(|stage| job.intern(stage.split('@').next().unwrap_or(stage)))
            .collect();
        // What the stages leave of the measured time goes there.
        if self.wall.is_some() && !ids.contains(&StageId::OTHER) {
            ids.push(StageId::OTHER);
        }
        for rank in 0..matrix[0].len() {
            let role = self
                .roles
                .as_ref()
                .and_then(|roles| roles.get(rank))
                .cloned();
            aligner.expect(rank as u32, role);
        }
        // `check` has refused other units.
        let unit_ns = self.nanoseconds().unwrap_or(1e9);
        let mut now = vec![0.0f64; matrix[0].len()];
        for (step, rows) in matrix.iter().enumerate() {
            for (rank, row) in rows.iter().enumerate() {
                let Some(row) = row else { continue };
                // They have a value for each stage of the plain matrix, not of the expanded one.
                let waits = self
                    .python_collective_time
                    .as_ref()
                    .filter(|_| !expanded)
                    .map(|waits| waits[step].as_slice());
                let wall = self.wall(StepRow(step), RankColumn(rank));
                let row = closed(row, &ids, wall);
                let ticks = Ticks {
                    unit_ns,
                    now: &mut now[rank],
                };
                aligner.push(
                    rank as u32,
                    rank_step(
                        StepRow(step),
                        &ids,
                        &row,
                        RankColumn(rank),
                        waits,
                        wall,
                        ticks,
                    ),
                );
            }
        }
        aligner.finish();
        job.add_steps(aligner.steps());
        let collapsed = self.grad_accum.is_some_and(|factor| factor > 1) && !expanded;
        for mut window in aligner.take_windows() {
            window.accumulation_collapsed = collapsed;
            job.add_window(window);
        }
        job.finish();
        job
    }
}

/// A rank's clock while its steps are laid end to end.
struct Ticks<'a> {
    unit_ns: f64,
    now: &'a mut f64,
}

impl Ticks<'_> {
    fn instant(&self) -> RankNs {
        // Rounded here only: durations rounded one by one would drift from their sum.
        RankNs((*self.now * self.unit_ns).round() as u64)
    }

    fn advance(&mut self, by: f64) -> RankNs {
        *self.now += by;
        self.instant()
    }
}

/// The durations of one rank's step, closed up to its measured wall time: what the stages
/// leave of it is the residual, whether the recorder had a stage for that or not.
fn closed(row: &[f64], stages: &[StageId], wall: Option<f64>) -> Vec<f64> {
    let mut row = row.to_vec();
    row.resize(stages.len(), 0.0);
    let rest = wall.map_or(0.0, |wall| wall - row.iter().sum::<f64>());
    // The last: an expanded matrix may have one for each micro-step.
    if let Some(residual) = stages.iter().rposition(|stage| *stage == StageId::OTHER) {
        row[residual] += rest.max(0.0);
    }
    row
}

fn rank_step(
    step: StepRow,
    stages: &[StageId],
    row: &[f64],
    rank: RankColumn,
    waits: Option<&[Vec<f64>]>,
    wall: Option<f64>,
    mut ticks: Ticks<'_>,
) -> RankStep {
    let start = ticks.instant();
    let mut segments = Vec::with_capacity(row.len());
    let mut after = MarkKind::StepBegin;
    for (at, (stage, duration)) in stages.iter().zip(row).enumerate() {
        // Of all ranks: the one that comes last does not wait, and is at the collective too.
        let synchronises = waits.is_some_and(|waits| {
            waits
                .iter()
                .any(|of_rank| of_rank.get(at).is_some_and(|wait| *wait > 0.0))
        });
        // Capped below at the duration: the segment before the wait must not end before it begins.
        let wait = waits
            .and_then(|waits| waits[rank.0].get(at).copied())
            .unwrap_or(0.0)
            .min(*duration);
        if synchronises {
            // Which collective it was is not recorded. In a barrier all wait, as these times say.
            let ending = Ending::Issue {
                op: CollectiveOp::BARRIER,
                group: 0,
            };
            let end = ticks.advance(duration - wait);
            segments.push(Segment {
                stage: *stage,
                after,
                ending,
                end,
            });
        }
        let end = ticks.advance(if synchronises { wait } else { *duration });
        let kind = end_of(*stage);
        segments.push(Segment {
            stage: *stage,
            after,
            ending: Ending::Mark(kind),
            end,
        });
        after = kind;
    }
    let named: f64 = stages
        .iter()
        .zip(row)
        .filter(|(stage, _)| **stage != StageId::OTHER)
        .map(|(_, duration)| duration)
        .sum();
    let overlap = wall.map_or(0.0, |wall| (named - wall).max(0.0));
    // An expanded matrix has a backward stage for each micro-step.
    let backward = stages
        .iter()
        .filter(|stage| **stage == StageId::BACKWARD)
        .count();
    RankStep {
        step: step.0 as u32,
        start,
        segments,
        micro_steps: backward.min(usize::from(u16::MAX)) as u16,
        batches: backward.min(usize::from(u16::MAX)) as u16,
        first_collective: None,
        side: Vec::new(),
        overlap_s: overlap * ticks.unit_ns * 1e-9,
        complete: true,
    }
}

/// The mark that ends a stage.
fn end_of(stage: StageId) -> MarkKind {
    match stage.hook_marks() {
        Some([_, end]) => end,
        None if stage == StageId::OTHER => MarkKind::StepEnd,
        None => MarkKind::StageEnd,
    }
}

fn bad_duration(values: &[f64]) -> Option<(usize, f64)> {
    values
        .iter()
        .copied()
        .enumerate()
        .find(|(_, value)| !value.is_finite() || *value < 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(stages: usize, row: &[f64]) -> bool {
        let stages = (0..stages).map(|stage| stage.to_string()).collect();
        let matrix = StageMatrix::new(stages, vec![vec![Some(row.to_vec()); 2]; 3]);
        matrix.check(Path::new("matrix")).is_err()
    }

    #[test]
    fn durations_that_no_clock_can_add_up_are_refused() {
        assert!(!refused(2, &[1e9, 1e9]));
        assert!(refused(2, &[1e308, 1e308]));
        assert!(refused(2, &[1e10, 1.0]), "three steps of 317 years");
    }

    #[test]
    fn wall_time_that_no_clock_can_add_up_is_refused() {
        let refused = |wall: f64| {
            let stages = vec!["a".to_owned()];
            let mut matrix = StageMatrix::new(stages, vec![vec![Some(vec![1.0]); 2]; 3]);
            matrix.wall = Some(vec![vec![wall; 2]; 3]);
            matrix.check(Path::new("matrix")).is_err()
        };
        assert!(!refused(1e9));
        assert!(refused(1e10), "three steps of 317 years");
    }

    #[test]
    fn wall_time_that_no_stage_covers_is_the_residual() {
        let limited = |stages: &[&str], row: &[f64], wall: Option<f64>| {
            let stages = stages.iter().map(|stage| (*stage).to_owned()).collect();
            let mut matrix = StageMatrix::new(stages, vec![vec![Some(row.to_vec()); 2]; 10]);
            matrix.wall = wall.map(|wall| vec![vec![wall; 2]; 10]);
            matrix.check(Path::new("matrix")).expect("a matrix");
            let verdict = matrix.replay("job", Settings::default()).verdict();
            let labels = &verdict.windows[0].labels;
            let other = verdict
                .stages
                .iter()
                .find(|s| s.name == "step.other_cpu_wall");
            let share = other.map(|stage| (stage.share * 1000.0).round() / 1000.0);
            (labels.contains(&model::Label::TelemetryLimited), share)
        };
        let named = ["data.next_wait", "model.backward_cpu_wall"];
        let whole = [
            "data.next_wait",
            "model.backward_cpu_wall",
            "step.other_cpu_wall",
        ];
        assert_eq!(limited(&named, &[0.5, 0.393], None), (false, None));
        assert_eq!(
            limited(&named, &[0.5, 0.393], Some(0.893)),
            (false, Some(0.0))
        );
        assert_eq!(
            limited(&named, &[0.5, 0.393], Some(1.0)),
            (true, Some(0.107))
        );
        assert_eq!(
            limited(&whole, &[0.5, 0.393, 0.0], Some(1.0)),
            (true, Some(0.107))
        );
        assert_eq!(
            limited(&whole, &[0.5, 0.393, 0.107], Some(1.0)),
            (true, Some(0.107))
        );
    }

    #[test]
    fn more_stages_than_a_page_can_show_are_refused() {
        assert!(!refused(MAX_STAGES, &vec![1.0; MAX_STAGES]));
        assert!(refused(MAX_STAGES + 1, &vec![1.0; MAX_STAGES + 1]));
    }
}
