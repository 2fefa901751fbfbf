//! The words of what a what-if analysis finds.

use model::{
    Evidence, Incident, IncidentKind, Method, Pace, Ranks, Removal, Severity, Subject,
    WhatIf, fold_ranks,
};
use whatif::{Cause, Findings, PassRatios};

use crate::IncidentSettings;
use crate::words::{duration, percent, who};

/// Ranks one recorded rank stands for, as far as they are told; no machine holds more.
const MAX_PEERS: u32 = 4096;

/// Words an incident about one cause of a slowdown; `id` tells it from the job's others.
#[expect(clippy::too_many_lines, reason = "an arm for each cause")]
pub fn what_if(
    findings: &Findings,
    cause: &Cause,
    id: String,
    settings: &IncidentSettings,
) -> Incident {
    let what_if = &findings.what_if;
    let told = Told { what_if, simulated_s: what_if.mean_simulated_s() };
    let (words, cost_s, pace) = match cause {
        Cause::Rank { rank, dp_rank, stage, passes, top_share } => {
            let removal = what_if.slowest_ranks.as_ref();
            let words =
                told.rank((*rank, *dp_rank, *stage), *passes, *top_share, removal);
            (words, told.saved_s(removal), Pace::Steady)
        }
        Cause::Stage { stage, passes } => {
            let removal = what_if.slowest_stage.as_ref();
            (told.stage(*stage, *passes, removal), told.saved_s(removal), Pace::Steady)
        }
        Cause::Data { spread, top_dp_ranks, worst: (step, dp_rank) } => {
            let cost_s = told.simulated_s - what_if.ideal_s;
            let text = format!(
                "microbatches take unlike time on every rank: forward passes vary by {}, \
                 backward passes by {}, both together; up to {} of step time, and no rank is to \
                 blame",
                percent(spread.forward),
                percent(spread.backward),
                percent(cost_s / told.simulated_s)
            );
            let why = format!(
                "passes of one rank vary, forward and backward of a microbatch alike \
                 (correlation {:.3}); {top_dp_ranks} data-parallel ranks take turns at being the \
                 slowest, most of all data-parallel rank {dp_rank} in step {step}",
                spread.correlation
            );
            let values = [
                ("forward_variation_share", spread.forward),
                ("backward_variation_share", spread.backward),
                ("correlation", spread.correlation),
                ("top_dp_ranks", *top_dp_ranks as f64),
            ];
            let words = Words {
                subject: Subject {
                    block: Some("forward and backward passes".to_owned()),
                    ..Subject::default()
                },
                text,
                evidence: Evidence::new(Method::Schedule, "data_imbalance", why, &values),
                advice:
                    "balance the sequences: let every microbatch cost the same, counting \
                         that attention grows with the square of a sequence's length"
                        .to_owned(),
            };
            (words, cost_s, Pace::Rotating)
        }
        Cause::Unexplained { op_type, slowdown } => {
            let cost_s = told.simulated_s - what_if.ideal_s;
            let text = format!(
                "steps take {} what they would without stragglers, and no rank, stage or input \
                 alone explains it",
                times(what_if.slowdown)
            );
            let why = format!(
                "{op_type} slows most: with all else ideal a step would take {}",
                times(*slowdown)
            );
            let words = Words {
                subject: Subject::default(),
                text,
                evidence: Evidence::new(
                    Method::Schedule,
                    "unexplained",
                    why,
                    &[("slowdown", *slowdown)],
                ),
                advice: format!(
                    "look at {op_type}, and at the heat map for ranks above the others"
                ),
            };
            (words, cost_s, Pace::Sporadic)
        }
    };
    let cost_share = cost_s / told.simulated_s;
    let total_s = cost_s * what_if.steps.len() as f64;
    Incident {
        id,
        kind: IncidentKind::Slow,
        severity: severity(cause, cost_share, settings),
        open: true,
        victims: others(what_if, &words.subject.ranks),
        subject: words.subject,
        pace,
        first_step: what_if.steps.first().copied().unwrap_or_default(),
        last_step: what_if.steps.last().copied().unwrap_or_default(),
        cost_s: total_s,
        cost_gpu_s: 0.0,
        cost_share,
        gain_alone_s: total_s,
        next_in_line: Vec::new(),
        contradictions: Vec::new(),
        facts: Vec::new(),
        actions: Vec::new(),
        stacks: Vec::new(),
        progress: Vec::new(),
        text: words.text,
        evidence: vec![words.evidence],
        advice: words.advice,
    }
}

fn severity(cause: &Cause, share: f64, settings: &IncidentSettings) -> Severity {
    let explained = !matches!(cause, Cause::Unexplained { .. });
    if explained { settings.severity(share) } else { Severity::Info }
}

/// Recorded ranks that are not named.
fn others(what_if: &WhatIf, named: &[u32]) -> Ranks {
    let ranks: Ranks = what_if.ranks.iter().map(|rank| rank.rank).collect();
    ranks.without(named)
}

struct Words {
    subject: Subject,
    text: String,
    evidence: Evidence,
    advice: String,
}

/// What every cause is told against.
struct Told<'a> {
    what_if: &'a WhatIf,
    simulated_s: f64,
}

impl Told<'_> {
    /// Seconds a step would be shorter.
    fn saved_s(&self, removal: Option<&Removal>) -> f64 {
        removal.map_or(0.0, |removal| (self.simulated_s - removal.without_s).max(0.0))
    }

    /// Recorded ranks and those they stand for, as far as a sentence goes.
    fn with_peers(&self, ranks: &[u32]) -> Vec<u32> {
        let peers = self.what_if.peers.min(MAX_PEERS);
        ranks.iter().flat_map(|rank| *rank..rank.saturating_add(peers)).collect()
    }

    /// What would be saved, in words.
    fn saving(&self, removal: Option<&Removal>) -> String {
        let saved_s = self.saved_s(removal);
        format!(
            "a step would take {} instead of {}: {} of step time",
            duration(self.simulated_s - saved_s),
            duration(self.simulated_s),
            percent(saved_s / self.simulated_s)
        )
    }

    fn rank(
        &self,
        (rank, dp_rank, stage): (u32, u32, u32),
        passes: PassRatios,
        top_share: f64,
        removal: Option<&Removal>,
    ) -> Words {
        let peers = self.with_peers(&[rank]);
        let name = match peers.as_slice() {
            [] | [_] => format!("rank {rank}"),
            [_, peer] => format!("rank {rank} (or its peer {peer})"),
            [_, peers @ ..] => {
                format!("rank {rank} (or one of its peers {})", fold_ranks(peers))
            }
        };
        let text = format!(
            "{name} is slow, data-parallel rank {dp_rank} of pipeline stage {stage}: {} those \
             of the same stage elsewhere; without it {}",
            ratios(passes),
            self.saving(removal)
        );
        let why = format!(
            "it is the slowest rank in {} of the steps, and {} of the slowdown vanishes with {} \
             as fast as the others",
            percent(top_share),
            removed(removal),
            removal.map_or(name, |removal| who(&removal.ranks))
        );
        let mut values = pass_values(passes, removal);
        values.push(("top_steps_share", top_share));
        Words {
            subject: Subject {
                ranks: vec![rank],
                stage: Some(stage_name(stage)),
                block: Some(block(passes)),
                ..Subject::default()
            },
            text,
            evidence: Evidence::new(Method::Schedule, "rank_fault", why, &values),
            advice: format!(
                "look at the machine of {}: clocks, temperature, other load; take it out if \
                 nothing helps",
                who(&[rank])
            ),
        }
    }

    fn stage(&self, stage: u32, passes: PassRatios, removal: Option<&Removal>) -> Words {
        let ranks = removal.map(|removal| removal.ranks.as_slice()).unwrap_or_default();
        let text = format!(
            "pipeline stage {stage} has more work than the others, on all its ranks alike \
             ({}): {} those of the other stages; balanced, {}",
            fold_ranks(&self.with_peers(ranks)),
            ratios(passes),
            self.saving(removal)
        );
        let dp_ranks = self.what_if.ranks.iter().map(|rank| rank.dp_rank).max();
        let doubt = if dp_ranks == Some(0) {
            "; with one data-parallel rank a slow machine would look the same"
        } else {
            ""
        };
        let why = format!(
            "{} of the slowdown vanishes with this stage as fast as the mean{doubt}",
            removed(removal)
        );
        Words {
            subject: Subject {
                stage: Some(stage_name(stage)),
                block: Some(block(passes)),
                ..Subject::default()
            },
            text,
            evidence: Evidence::new(
                Method::Schedule,
                "stage_imbalance",
                why,
                &pass_values(passes, removal),
            ),
            advice: format!(
                "give stage {stage} fewer layers: partition the model anew, counting the output \
                 layer and the loss as the layers they cost; no machine is at fault"
            ),
        }
    }
}

/// How much of the slowdown vanishes; more than all of it where less than the mean would do.
fn removed(removal: Option<&Removal>) -> String {
    percent(removal.map_or(0.0, |removal| removal.removed_share.min(1.0)))
}

fn stage_name(stage: u32) -> String {
    format!("pipeline stage {stage}")
}

/// Which passes are longer than those they are compared with.
fn block(passes: PassRatios) -> String {
    match (passes.forward_is_longer(), passes.backward_is_longer()) {
        (true, false) => "forward passes",
        (false, true) => "backward passes",
        (true, true) => "forward and backward passes",
        (false, false) => "communication",
    }
    .to_owned()
}

fn ratios(passes: PassRatios) -> String {
    format!(
        "its forward passes take {}, its backward passes {}",
        times(passes.forward),
        times(passes.backward)
    )
}

fn times(ratio: f64) -> String {
    format!("{ratio:.2} x")
}

fn pass_values(
    passes: PassRatios,
    removal: Option<&Removal>,
) -> Vec<(&'static str, f64)> {
    let mut values =
        vec![("forward_ratio", passes.forward), ("backward_ratio", passes.backward)];
    if let Some(removal) = removal {
        values.push(("removed_share", removal.removed_share));
        values.push(("added_share", removal.added_share));
    }
    values
}
