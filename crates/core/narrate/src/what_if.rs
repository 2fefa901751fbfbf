//! What makes steps of a pipeline slower than they would ideally be.

use model::{PassRatios, Removal, SlowdownCause, StepSlowdown, fold_ranks};

use crate::fact::Worded;
use crate::words::{duration, percent, who};

/// Ranks one recorded rank stands for, as far as they are named; no machine holds more.
const MAX_PEERS: u32 = 4096;

pub(crate) fn headline(found: &StepSlowdown) -> String {
    match &found.cause {
        SlowdownCause::Rank {
            rank,
            dp_rank,
            stage,
            passes,
            ..
        } => format!(
            "{} is slow, data-parallel rank {dp_rank} of pipeline stage {stage}: {} those of the \
             same stage elsewhere; without it {}",
            with_peers_in_words(*rank, found.peers),
            ratios(*passes),
            saving(found)
        ),
        SlowdownCause::Stage { stage, passes } => {
            let removal = found.removal.as_ref();
            let ranks = removal.map(|removal| removal.ranks.as_slice());
            format!(
                "pipeline stage {stage} has more work than the others, on all its ranks alike \
                 ({}): {} those of the other stages; balanced, {}",
                fold_ranks(&with_peers(ranks.unwrap_or_default(), found.peers)),
                ratios(*passes),
                saving(found)
            )
        }
        SlowdownCause::Data { spread, .. } => format!(
            "microbatches take different times on every rank: forward passes vary by {}, backward \
             passes by {}, and both vary together; up to {} of step time, and no rank is to blame",
            percent(spread.forward),
            percent(spread.backward),
            percent(found.saved_s / found.simulated_s)
        ),
        SlowdownCause::Unexplained { .. } => format!(
            "steps take {} what they would without stragglers, and no rank, stage or input alone \
             explains it",
            times(found.slowdown)
        ),
    }
}

pub(crate) fn fact(found: &StepSlowdown) -> Worded {
    let removal = found.removal.as_ref();
    match &found.cause {
        SlowdownCause::Rank {
            rank,
            passes,
            top_share,
            ..
        } => {
            let text = format!(
                "it is the slowest rank in {} of the steps, and {} of the slowdown vanishes with \
                 {} as fast as the others",
                percent(*top_share),
                removed(removal),
                removal.map_or_else(
                    || with_peers_in_words(*rank, found.peers),
                    |removal| who(&removal.ranks)
                )
            );
            let mut values = pass_values(*passes, removal);
            values.push(("top_steps_share", *top_share));
            Worded::new("rank_fault", text, &values)
        }
        SlowdownCause::Stage { passes, .. } => {
            let doubt = if found.has_copies {
                ""
            } else {
                // More work shows in all copies of a stage, a slow machine in one.
                "; with one data-parallel rank a slow machine would look the same"
            };
            let text = format!(
                "{} of the slowdown vanishes with this stage as fast as the mean{doubt}",
                removed(removal)
            );
            Worded::new("stage_imbalance", text, &pass_values(*passes, removal))
        }
        SlowdownCause::Data {
            spread,
            top_dp_ranks,
            worst: (step, dp_rank),
        } => {
            let text = format!(
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
            Worded::new("data_imbalance", text, &values)
        }
        SlowdownCause::Unexplained { op_type, slowdown } => {
            let text = format!(
                "{op_type} slows steps most: with everything else ideal, a step would take {}",
                times(*slowdown)
            );
            Worded::new("unexplained", text, &[("slowdown", *slowdown)])
        }
    }
}

/// Recorded ranks and those they stand for, as far as a sentence goes.
fn with_peers(ranks: &[u32], peers: u32) -> Vec<u32> {
    // How many share a row is read from a file, which may say anything.
    let peers = peers.min(MAX_PEERS);
    ranks
        .iter()
        // Peers follow the recorded rank in number (docs/what-if.md).
        .flat_map(|rank| *rank..rank.saturating_add(peers))
        .collect()
}

fn with_peers_in_words(rank: u32, peers: u32) -> String {
    match with_peers(&[rank], peers).as_slice() {
        [] | [_] => format!("rank {rank}"),
        [_, peer] => format!("rank {rank} (or its peer {peer})"),
        [_, peers @ ..] => {
            format!("rank {rank} (or one of its peers {})", fold_ranks(peers))
        }
    }
}

fn saving(found: &StepSlowdown) -> String {
    let StepSlowdown {
        simulated_s,
        saved_s,
        ..
    } = found;
    format!(
        "a step would take {} instead of {}: {} of step time",
        duration(simulated_s - saved_s),
        duration(*simulated_s),
        percent(saved_s / simulated_s)
    )
}

/// How much of the slowdown vanishes; more than all of it where less than the mean would do.
fn removed(removal: Option<&Removal>) -> String {
    percent(removal.map_or(0.0, |removal| removal.removed_share.min(1.0)))
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

fn pass_values(passes: PassRatios, removal: Option<&Removal>) -> Vec<(&'static str, f64)> {
    let mut values = vec![
        ("forward_ratio", passes.forward),
        ("backward_ratio", passes.backward),
    ];
    if let Some(removal) = removal {
        values.push(("removed_share", removal.removed_share));
        values.push(("added_share", removal.added_share));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow_rank(peers: u32) -> StepSlowdown {
        StepSlowdown {
            cause: SlowdownCause::Rank {
                rank: 4,
                dp_rank: 1,
                stage: 2,
                passes: PassRatios {
                    forward: 1.5,
                    backward: 1.25,
                },
                top_share: 1.0,
            },
            slowdown: 1.25,
            simulated_s: 2.5,
            saved_s: 0.5,
            removal: None,
            peers,
            has_copies: true,
        }
    }

    #[test]
    fn a_rank_is_named_with_those_that_it_stands_for() {
        assert_eq!(
            headline(&slow_rank(1)),
            "rank 4 is slow, data-parallel rank 1 of pipeline stage 2: its forward passes take \
             1.50 x, its backward passes 1.25 x those of the same stage elsewhere; without it a \
             step would take 2.00 s instead of 2.50 s: 20 % of step time"
        );
        let of_two = headline(&slow_rank(2));
        assert!(
            of_two.starts_with("rank 4 (or its peer 5) is slow"),
            "{of_two}"
        );
        let of_four = headline(&slow_rank(4));
        assert!(
            of_four.starts_with("rank 4 (or one of its peers 5-7) is slow"),
            "{of_four}"
        );
    }

    #[test]
    fn a_stage_without_copies_may_be_a_machine() {
        let cause = SlowdownCause::Stage {
            stage: 3,
            passes: PassRatios {
                forward: 1.5,
                backward: 1.25,
            },
        };
        let removal = Removal {
            ranks: vec![3],
            without_s: 2.0,
            alone_s: 2.4,
            removed_share: 1.2,
            added_share: 0.9,
        };
        let has_copies = false;
        let removal = Some(removal);
        let found = StepSlowdown {
            cause,
            removal,
            has_copies,
            ..slow_rank(1)
        };
        let Worded {
            label,
            text,
            values,
        } = fact(&found);
        assert_eq!(
            format!("{label}: {text}"),
            "stage_imbalance: 100 % of the slowdown vanishes with this stage as fast as the mean; \
             with one data-parallel rank a slow machine would look the same"
        );
        assert_eq!(values.len(), 4);
    }
}
