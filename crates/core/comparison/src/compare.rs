use std::collections::BTreeSet;

use model::{ComparedRun, ComparisonNote, Incident, IncidentKind, Severity, Verdict};
use serde::{Deserialize, Serialize};

use crate::blocks::{MIN_BLOCKS, Run};
use crate::chance::{chance_above, shift};

/// Name and version of the comparison document. Changes within a version only add fields.
pub const SCHEMA: &str = "laggard.comparison/1";

/// Changes of a step that are smaller do not count, as a share of the step: equal runs differ by
/// that. What-if analysis calls a job slow from there (OSDI 2025), too.
pub const MIN_CHANGE_SHARE: f64 = 0.03;
/// The part of that from which a change is put down to a stage, a rank or a function: three of
/// them together may make a step slower.
const PART: f64 = 1.0 / 3.0;
/// How likely equal runs are said to differ, each way.
const CHANCE: f64 = 0.005;
/// No step is shorter: numbers below are rounding.
const SHORTEST_S: f64 = 1e-9;
/// Ranks and functions that are named at most.
const MAX_SHOWN: usize = 5;

/// What changed from run A to run B.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// [`SCHEMA`].
    pub schema: String,
    /// The run that is compared with.
    pub a: Compared,
    /// The run in question.
    pub b: Compared,
    /// What steps became.
    pub outcome: Outcome,
    /// Whether B is worse: its steps became slower; it hangs and A does not; or its steps look
    /// slower by what counts, if not surely, and it has an incident worth acting on that A has not.
    pub regression: bool,
    /// A step; null if there are too few to tell.
    pub step: Option<Change>,
    /// Its stages: those of A in schema order, then those that only B has.
    pub stages: Vec<StageChange>,
    /// Ranks, less than half of them, that come later to the end of a stage that changed, or less
    /// late; worst first.
    pub ranks: Vec<RankChange>,
    /// Functions whose part of a step changed, most first. Not tested: a run has one profile.
    pub functions: Vec<FunctionChange>,
    /// Incidents of one run that the other does not have.
    pub incidents: Vec<IncidentChange>,
    /// What could not be compared, in plain words.
    pub notes: Vec<String>,
}

/// One of the two runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// The job's id.
    pub id: String,
    /// Ranks seen.
    pub ranks: usize,
    /// Steps that were compared.
    pub steps: u64,
    /// Blocks of steps they were compared in.
    pub blocks: usize,
}

/// What steps became.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Slower, by more than counts and than chance explains.
    Slower,
    /// Faster, likewise.
    Faster,
    /// Neither.
    Same,
    /// Too few steps were seen to tell.
    Undecided,
}

/// Exposed time of a step, or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Median over A's blocks, in seconds a step.
    pub a_s: f64,
    /// Median over B's.
    pub b_s: f64,
    /// How much more B takes: the median difference of a block of B and a block of A.
    pub change_s: f64,
    /// That as a share of A's step.
    pub change_share: f64,
    /// How likely chance alone lets it look so much more than what counts; null if it
    /// is less.
    pub chance: Option<f64>,
    /// What it became.
    pub outcome: Outcome,
}

/// A stage in both runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageChange {
    /// The stage.
    pub stage: String,
    /// Its exposed time.
    #[serde(flatten)]
    pub change: Change,
}

/// A rank in both runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankChange {
    /// The rank.
    pub rank: u32,
    /// The stage to whose end it comes late.
    pub stage: String,
    /// How late, behind the median rank.
    #[serde(flatten)]
    pub change: Change,
}

/// A function in the profiles of both runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionChange {
    /// Its name.
    pub function: String,
    /// Seconds of a step on the critical path in A: its median share of the profile times A's
    /// median step.
    pub a_s: f64,
    /// In B.
    pub b_s: f64,
}

/// An incident of one run only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IncidentChange {
    /// Whether it is B's, and else A's.
    pub is_new: bool,
    /// Its kind.
    pub kind: IncidentKind,
    /// How much it matters there.
    pub severity: Severity,
    /// Its sentence.
    pub text: String,
}

/// Tells what changed from `a` to `b`. Changes of less than `min_change_share` of A's step do not
/// count.
///
/// Each run is 8 to 32 blocks of neighbouring steps. Steps are slower if B's blocks lie above A's plus what
/// counts, further than chance puts them once in 200 times.
/// # Properties
/// A run is neither slower nor faster than itself. The unit of time does not matter.
/// # Source
/// Ours, of known parts: Mann and Whitney's test with its variance corrected for neighbours that are
/// alike, Hodges and Lehmann's shift. How often it errs: docs/compare.md.
pub fn compare(a: &Run, b: &Run, min_change_share: f64) -> Comparison {
    let incidents = incidents(&a.verdict, &b.verdict);
    let hangs = incidents
        .iter()
        .any(|one| one.is_new && one.kind == IncidentKind::Hang);
    let mut comparison = Comparison {
        schema: SCHEMA.to_owned(),
        a: Compared::of(a),
        b: Compared::of(b),
        outcome: Outcome::Undecided,
        // Worse, however fast the steps before the hang were.
        regression: hangs,
        step: None,
        stages: Vec::new(),
        ranks: Vec::new(),
        functions: Vec::new(),
        incidents,
        notes: notes(a, b).iter().map(narrate::comparison_note).collect(),
    };
    if a.blocks.len().min(b.blocks.len()) < MIN_BLOCKS {
        return comparison;
    }
    let least = Least {
        step_s: middle(&a.steps_s()),
        share: min_change_share,
        chance: CHANCE,
    };
    let step = least.change(&a.steps_s(), &b.steps_s());
    comparison.outcome = step.outcome;
    let looks_slower = step.chance.is_some() && step.change_s > 0.0;
    let is_held_back = comparison
        .incidents
        .iter()
        .any(|incident| incident.is_new && incident.severity > Severity::Info);
    // What looks slower is not sure alone, but with an incident that A has not.
    comparison.regression |= step.outcome == Outcome::Slower || looks_slower && is_held_back;
    comparison.step = Some(step);

    let stages = stages(&a.verdict, &b.verdict);
    let part = least.of(stages.len());
    for stage in stages {
        let change = part.change(&a.stage_s(&stage), &b.stage_s(&stage));
        comparison.stages.push(StageChange { stage, change });
    }
    let ranks: BTreeSet<u32> = a.ranks.iter().chain(&b.ranks).copied().collect();
    let part = least.of(ranks.len());
    // Only of stages that changed: each further comparison is a chance to be wrong.
    for changed in comparison
        .stages
        .iter()
        .filter(|stage| stage.change.is_sure())
    {
        let stage = &changed.stage;
        let mut moved = Vec::new();
        for rank in ranks.iter().copied() {
            let change = part.change(&a.lag_s(stage, rank), &b.lag_s(stage, rank));
            if change.is_sure() {
                moved.push(RankChange {
                    rank,
                    stage: stage.clone(),
                    change,
                });
            }
        }
        // What most ranks do is nobody's own.
        if moved.len() * 2 < ranks.len() {
            comparison.ranks.append(&mut moved);
        }
    }
    comparison.ranks.sort_by(|one, other| {
        other
            .change
            .change_s
            .abs()
            .total_cmp(&one.change.change_s.abs())
    });
    comparison.ranks.truncate(MAX_SHOWN);
    comparison.functions = functions(a, b, step, least.step_s * least.share * PART);
    comparison
}

/// What a change must be to count.
#[derive(Clone, Copy)]
struct Least {
    /// A's step.
    step_s: f64,
    /// A part of it.
    share: f64,
    /// How likely chance may look like it, each way.
    chance: f64,
}

impl Least {
    /// The same for one of `count` parts of a step, of which any may change by chance.
    fn of(self, count: usize) -> Self {
        Self {
            share: self.share * PART,
            // Of many parts one looks changed by chance alone (Bonferroni).
            chance: CHANCE / count.max(1) as f64,
            ..self
        }
    }

    fn change(self, a: &[f64], b: &[f64]) -> Change {
        let least_s = self.step_s * self.share;
        let change_s = shift(a, b);
        // What must be surpassed by chance is what counts, not nothing.
        let (chance, sure) = if change_s > least_s {
            (Some(chance_above(&raised(a, least_s), b)), Outcome::Slower)
        } else if change_s < -least_s {
            (Some(chance_above(&raised(b, least_s), a)), Outcome::Faster)
        } else {
            (None, Outcome::Same)
        };
        let is_sure = chance.is_some_and(|chance| chance <= self.chance);
        let is_time = self.step_s > SHORTEST_S;
        let change_share = if is_time { change_s / self.step_s } else { 0.0 };
        Change {
            a_s: middle(a),
            b_s: middle(b),
            change_s,
            change_share,
            chance,
            outcome: if is_sure { sure } else { Outcome::Same },
        }
    }
}

impl Change {
    /// Whether it counts, and is more than chance.
    pub fn is_sure(&self) -> bool {
        matches!(self.outcome, Outcome::Slower | Outcome::Faster)
    }
}

impl Compared {
    fn of(run: &Run) -> Self {
        Self {
            id: run.verdict.job.id.clone(),
            ranks: run.verdict.job.ranks,
            steps: run.blocks.iter().map(|block| block.steps).sum(),
            blocks: run.blocks.len(),
        }
    }
}

fn raised(values: &[f64], by: f64) -> Vec<f64> {
    values.iter().map(|value| value + by).collect()
}

fn middle(values: &[f64]) -> f64 {
    model::median(&mut values.to_vec()).unwrap_or(0.0)
}

/// Stages of A, then those only B has.
fn stages(a: &Verdict, b: &Verdict) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for stage in a.stages.iter().chain(&b.stages) {
        if !names.contains(&stage.name) {
            names.push(stage.name.clone());
        }
    }
    names
}

/// What makes an incident the same in another run. Numbers of collectives and steps differ.
fn cause(incident: &Incident) -> impl PartialEq {
    let subject = &incident.subject;
    // Not the hosts: another run may get other machines.
    let names = [
        &subject.stage,
        &subject.flow,
        &subject.block,
        &subject.function,
    ];
    (
        incident.kind,
        subject.ranks.clone(),
        names.map(Clone::clone),
    )
}

fn incidents(a: &Verdict, b: &Verdict) -> Vec<IncidentChange> {
    let mut changes = Vec::new();
    for (here, there, is_new) in [(b, a, true), (a, b, false)] {
        changes.extend(
            here.incidents
                .iter()
                .filter(|one| there.incidents.iter().all(|it| cause(one) != cause(it)))
                .map(|incident| IncidentChange {
                    is_new,
                    kind: incident.kind,
                    severity: incident.severity,
                    text: incident.text.clone(),
                }),
        );
    }
    changes
}

fn functions(a: &Run, b: &Run, step: Change, least_s: f64) -> Vec<FunctionChange> {
    let (Some(in_a), Some(in_b)) = (&a.verdict.profile, &b.verdict.profile) else {
        return Vec::new();
    };
    let mut changes = Vec::new();
    for function in &in_b.functions {
        // One that is not listed costs little there; how little is not known.
        let same = in_a
            .functions
            .iter()
            .find(|other| (&other.name, &other.callers) == (&function.name, &function.callers));
        let Some(same) = same else { continue };
        // Verdicts are read from files, which may say anything.
        if [same, function]
            .iter()
            .any(|one| !(0.0..=1.0).contains(&one.beta))
        {
            continue;
        }
        // A profile has shares only: a function that takes as long is more of a shorter step.
        let (a_s, b_s) = (same.beta * step.a_s, function.beta * step.b_s);
        if (b_s - a_s).abs() > least_s {
            changes.push(FunctionChange {
                function: function.name.clone(),
                a_s,
                b_s,
            });
        }
    }
    changes.sort_by(|one, other| {
        (other.b_s - other.a_s)
            .abs()
            .total_cmp(&(one.b_s - one.a_s).abs())
    });
    changes.truncate(MAX_SHOWN);
    changes
}

fn notes(a: &Run, b: &Run) -> Vec<ComparisonNote> {
    let mut notes = Vec::new();
    let (in_a, in_b) = (&a.verdict.job, &b.verdict.job);
    if in_a.ranks != in_b.ranks {
        notes.push(ComparisonNote::OtherRanks {
            ranks: [in_a.ranks, in_b.ranks],
        });
    }
    // Another cut charges the same time to other stages.
    if in_a.cut != in_b.cut {
        let cuts = [in_a.cut.clone(), in_b.cut.clone()];
        notes.push(ComparisonNote::OtherCut { cuts });
    }
    for (which, run) in [(ComparedRun::A, a), (ComparedRun::B, b)] {
        let (analysed, records) = (run.blocks.len(), run.verdict.job.lost_records);
        if analysed < MIN_BLOCKS {
            notes.push(ComparisonNote::TooLittle {
                run: which,
                analysed,
                are_steps: !run.ranks.is_empty(),
                needed: MIN_BLOCKS,
            });
        }
        if records > 0 {
            notes.push(ComparisonNote::LostRecords {
                run: which,
                records,
            });
        }
    }
    notes
}
