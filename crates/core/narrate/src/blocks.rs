//! Blocks that hold up pipelines while a job runs.

use model::{HeldUpSteps, Pace};

use crate::claim::since;
use crate::words::{are, duration, percent, slow_side, who};

pub(crate) fn headline(found: &HeldUpSteps) -> String {
    let HeldUpSteps { part, stage, .. } = found;
    let [took, usual, lost] = [found.took_s, found.usual_s, found.lost_s].map(duration);
    let since = since(found.steps);
    let how = match found.pace {
        Pace::Once { step } => format!("once, in step {step}"),
        Pace::Every { steps } => format!("every {steps} steps {since}"),
        Pace::Steady => format!("in each step {since}"),
        Pace::Sporadic | Pace::Rotating => format!("now and then {since}"),
    };
    let of_all = match found.pace {
        // Of what struck once, a share of all time says nothing.
        Pace::Once { .. } => String::new(),
        _ => format!(", {} of exposed step time", percent(found.cost_share)),
    };
    let slow = match found.side {
        Some(side) => slow_side(&found.ranks, side),
        None => format!("{} slow", are(&found.ranks, &who(&found.ranks))),
    };
    format!(
        "{slow} in the {part} on pipeline stage {stage} {how}: {took} instead of {usual}, {lost} \
         lost{of_all}",
    )
}

#[cfg(test)]
mod tests {
    use model::{Pass, PipelineBlock, Side, SlowPart, StepSpan};

    use super::*;

    fn held_up(side: Option<Side>) -> HeldUpSteps {
        let block = PipelineBlock {
            pass: Pass::Backward,
            microbatch: 3,
            chunk: 0,
        };
        HeldUpSteps {
            ranks: vec![1],
            stage: 1,
            part: SlowPart::Block(block),
            side,
            pace: Pace::Steady,
            steps: StepSpan {
                first: 12,
                last: 19,
                open: true,
            },
            took_s: 0.5,
            usual_s: 0.2,
            lost_s: 0.3,
            cost_share: 0.6,
        }
    }

    #[test]
    fn ranks_that_hold_up_their_pipelines_are_worded() {
        let where_and_what = "in the backward of microbatch 3 on pipeline stage 1 in each step \
                              since step 12: 500.0 ms instead of 200.0 ms, 300.0 ms lost, 60 % of \
                              exposed step time";
        for (side, who) in [
            (None, "rank 1 is slow"),
            (Some(Side::Device), "rank 1's device is slow"),
            (Some(Side::Host), "rank 1's device waits for its host"),
        ] {
            assert_eq!(headline(&held_up(side)), format!("{who} {where_and_what}"));
        }
        let part = SlowPart::Passes(vec![Pass::Forward, Pass::Backward]);
        let pace = Pace::Once { step: 12 };
        let once = HeldUpSteps {
            ranks: vec![1, 3],
            part,
            pace,
            ..held_up(None)
        };
        assert_eq!(
            headline(&once),
            "ranks 1,3 are slow in the forward and backward on pipeline stage 1 once, in step 12: \
             500.0 ms instead of 200.0 ms, 300.0 ms lost"
        );
    }
}
