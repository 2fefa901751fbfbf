//! What holds pipelines back by calls of NCCL, and where they stand still.

use model::{
    AbsorbedBlock, BlockCause, PipelineFact, PipelineHalt, PipelineRankState, SlowIterations,
    SlowPass, Standstill,
};

use crate::fact::Worded;
use crate::words::{are, duration, of, percent, who};

pub(crate) fn slow_iterations(found: &SlowIterations) -> String {
    let mut text = subject(found);
    let (plural, last) = if found.first == found.last {
        ("", String::new())
    } else {
        ("s", format!("-{}", found.last))
    };
    text += &format!(
        ": iteration{plural} {}{last} took {} instead of {}, {:.1} times as long, {} lost",
        found.first,
        duration(found.took_s),
        duration(found.usual_s),
        found.took_s / found.usual_s,
        duration(found.lost_s),
    );
    match found.cause {
        BlockCause::Compute => text += "; compute, not network",
        BlockCause::Host => text += "; its host, not network",
        BlockCause::Transfer => text += "; network, not compute",
        // Outside of blocks, or unseen, nothing tells compute from network.
        BlockCause::Outside | BlockCause::Unseen => {}
    }
    text += if found.open {
        "; ongoing"
    } else {
        "; recovered since"
    };
    if !found.victims.is_empty() {
        let verb = if found.victims.len() == 1 {
            "is a victim"
        } else {
            "are victims"
        };
        text += &format!("; {} {verb}", who(&found.victims));
    }
    text
}

fn subject(found: &SlowIterations) -> String {
    let SlowIterations { ranks, cause, .. } = found;
    if ranks.is_empty() {
        return unseen(found);
    }
    let what = match cause {
        BlockCause::Compute => "slow in",
        BlockCause::Host => "stalled in",
        BlockCause::Transfer => "waiting for late input in",
        BlockCause::Outside => "late outside the pipeline",
        BlockCause::Unseen => "",
    };
    let mut text = format!("{} {what}", are(ranks, &who(ranks)));
    // Between two passes through the pipeline there is no block to name.
    if let Some(stage) = found.stage.filter(|_| *cause != BlockCause::Outside) {
        let part = found
            .part()
            .map(|part| part.to_string())
            .unwrap_or_default();
        text += &format!(" pipeline stage {stage}, {part}");
    }
    if !found.unseen.is_empty() {
        text += &format!(" (or {}, without a log)", who(&found.unseen));
    }
    text
}

fn unseen(found: &SlowIterations) -> String {
    match (found.stage, found.unseen.as_slice()) {
        (_, []) => "no recorded rank or block is slow enough to explain it".to_owned(),
        (Some(stage), ranks) => format!(
            "something is slow in pipeline stage {stage}, which was not recorded ({} without a \
             log)",
            who(ranks)
        ),
        (None, ranks) => {
            format!(
                "something is slow on ranks that were not recorded ({} without a log)",
                who(ranks)
            )
        }
    }
}

pub(crate) fn halt(found: &PipelineHalt) -> String {
    format!(
        "hang in iteration {}: {}",
        found.iteration,
        halt_point(found)
    )
}

/// Says where a pipeline stands still at the end of its logs.
pub(crate) fn halt_point(found: &PipelineHalt) -> String {
    format!(
        "{} {} not finish the {} on pipeline stage {}; everything it waits for is done",
        who(&found.ranks),
        if found.ranks.len() == 1 { "does" } else { "do" },
        found.block,
        found.stage
    )
}

/// Says where a running pipeline stands still, as in a sentence.
pub(crate) fn standstill(found: &Standstill) -> String {
    let Standstill {
        rank,
        stage,
        block,
        state,
    } = found;
    let what = match state {
        PipelineRankState::Works => "finish the",
        PipelineRankState::Owes => "send the output of the",
        PipelineRankState::Idles | PipelineRankState::Receives | PipelineRankState::Waits => {
            "begin the"
        }
    };
    format!("rank {rank} does not {what} {block} on pipeline stage {stage}")
}

/// Says which slow block the slack of a pipeline took.
pub fn absorbed(found: &AbsorbedBlock) -> String {
    let AbsorbedBlock {
        step, stage, block, ..
    } = found;
    let (excess, slack) = (duration(found.excess_s), duration(found.slack_s));
    // Calls show the stage; which of the ranks that share it was slow, only marks say.
    match found.rank {
        Some(rank) => format!(
            "step {step}: rank {rank} took {excess} longer than usual in the {block} on pipeline \
             stage {stage}; a slack of {slack} absorbed it"
        ),
        None => format!(
            "iteration {step}: the {block} on pipeline stage {stage} took {excess} longer than \
             usual; a slack of {slack} absorbed it"
        ),
    }
}

pub(crate) fn fact(found: &PipelineFact) -> Worded {
    match found {
        PipelineFact::SlowPass(pass) => slow_pass(pass),
        PipelineFact::Outside { took_s, usual_s } => Worded::new(
            "outside",
            format!(
                "outside the pipeline, in optimizer, input and logging, an iteration took {} \
                 instead of {}",
                duration(*took_s),
                duration(*usual_s)
            ),
            &[("outside_s", *took_s), ("usual_outside_s", *usual_s)],
        ),
        PipelineFact::WaitedForAlone {
            ranks,
            of_copies,
            share,
        } => {
            let (label, place) = if *of_copies {
                ("copies", "the copies of a stage meet")
            } else {
                ("arrival", "all ranks meet")
            };
            let text = format!(
                "where {place}, {} of the extra wait for a single rank was for {}",
                percent(*share),
                who(ranks)
            );
            Worded::new(label, text, &[("alone_share", *share)])
        }
        PipelineFact::LastToEnter { ranks, share } => Worded::new(
            "last",
            format!(
                "{} {} stage to enter {} of the calls in which its layers meet",
                who(ranks),
                of(ranks, "was the last of its", "were the last of their"),
                percent(*share)
            ),
            &[("last_share", *share)],
        ),
        PipelineFact::Span { first_ns, last_ns } => {
            let [first_s, last_s] = [first_ns, last_ns].map(|ns| *ns as f64 * 1e-9);
            Worded::new(
                "span",
                format!("from {first_s:.3} to {last_s:.3} (seconds since 1970)"),
                &[("onset_unix_s", first_s), ("end_unix_s", last_s)],
            )
        }
        PipelineFact::Overdue { silent_s, usual_s } => Worded::new(
            "halt_point",
            format!(
                "it is the only block that could continue; others continued for {} after its last \
                 call and input, and the next call usually takes {}",
                duration(*silent_s),
                duration(*usual_s)
            ),
            &[("silent_s", *silent_s), ("usual_s", *usual_s)],
        ),
        PipelineFact::OthersWentOn {
            ahead_s,
            usual_late_s,
        } => Worded::new(
            "ranks_beside_it_went_on",
            format!(
                "ranks beside it made that call {} before the logs end; they are never more than \
                 {} apart",
                duration(*ahead_s),
                duration(*usual_late_s)
            ),
            &[("ahead_s", *ahead_s), ("usual_late_s", *usual_late_s)],
        ),
        PipelineFact::Standstill(halt) => {
            let text = format!("{}; everything it waits for is done", standstill(halt));
            Worded::new("halt_point", text, &[])
        }
        PipelineFact::CriticalBlock {
            block,
            took_s,
            usual_s,
            times,
        } => {
            let times = if *times == 1 {
                "once".to_owned()
            } else {
                format!("{times} times")
            };
            Worded::new(
                "critical_path",
                format!(
                    "the {block} took {} instead of {}, and the pipeline had no slack for it, \
                     {times}",
                    duration(*took_s),
                    duration(*usual_s)
                ),
                &[("block_s", *took_s), ("usual_block_s", *usual_s)],
            )
        }
        PipelineFact::OwnBlocks {
            ranks,
            own_s,
            copies_s,
        } => Worded::new(
            "own_blocks",
            format!(
                "blocks of {} took {} then, blocks of the same stage in other pipelines took {}",
                who(ranks),
                duration(*own_s),
                duration(*copies_s),
            ),
            &[("blocks_s", *own_s), ("copies_blocks_s", *copies_s)],
        ),
    }
}

fn slow_pass(found: &SlowPass) -> Worded {
    Worded::new(
        "critical_path",
        format!(
            "{} passes took {} instead of {}, {:.2} times as long; {} of {} were slow and on \
             the critical path",
            found.pass.name(),
            duration(found.took_s),
            duration(found.usual_s),
            found.took_s / found.usual_s,
            found.slow,
            found.of,
        ),
        &[("pass_s", found.took_s), ("usual_pass_s", found.usual_s)],
    )
}
