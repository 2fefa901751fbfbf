//! How steps are accounted: where they are cut, and what weakens the labels of a window.

use model::{Cut, Downgrade, MarkKind, Meeting, StageId, StageNames};

use crate::words::who;

/// Where the loop is cut into steps, if any window was accounted.
pub fn cut(of_last_window: Option<(Cut, Meeting)>) -> String {
    let Some((cut, meeting)) = of_last_window else {
        return "none".to_owned();
    };
    let place = match cut {
        Cut::Data => "data".to_owned(),
        Cut::After(MarkKind::BackwardEnd) => "backward end".to_owned(),
        Cut::After(MarkKind::OptimizerBegin) => "optimizer begin".to_owned(),
        Cut::After(MarkKind::OptimizerEnd) => "optimizer end".to_owned(),
        Cut::After(MarkKind::ForwardEnd) => "forward end".to_owned(),
        Cut::After(MarkKind::CollectiveIssue) => "last collective".to_owned(),
        // A script with stages of its own may meet behind any mark; only these have a usual name.
        Cut::After(other) => format!("{other:?}"),
    };
    match meeting {
        Meeting::Issued => place,
        Meeting::Seen => format!("{place}, seen"),
        Meeting::Unseen => format!("{place}, no meeting seen"),
    }
}

/// Why labels of a window were weakened. docs/labels/limits.md lists what it may be.
pub fn downgrade(downgrade: &Downgrade) -> String {
    match downgrade {
        Downgrade::NoWholeStep => "no step was fully recorded on every rank".to_owned(),
        Downgrade::Uncovered { share } => {
            format!(
                "{:.1} % of the step lies outside every stage",
                share * 100.0
            )
        }
        Downgrade::ClaimedTwice { share } => {
            format!("stages claim {:.1} % of the step twice", share * 100.0)
        }
        Downgrade::MissingRanks { ranks } => {
            format!("no records of {}", who(ranks))
        }
        Downgrade::UnseenRanks { ranks: 1 } => "1 rank on another host is not recorded".to_owned(),
        Downgrade::UnseenRanks { ranks } => {
            format!("{ranks} ranks on other hosts are not recorded")
        }
        Downgrade::IncompleteSteps { steps: 1 } => {
            "1 step was not fully recorded on every rank".to_owned()
        }
        Downgrade::IncompleteSteps { steps } => {
            format!("{steps} steps were not fully recorded on every rank")
        }
        Downgrade::BatchesReadAhead => {
            "data waits could not be assigned to the step that uses the batch".to_owned()
        }
        Downgrade::RolesUngrouped { roles } => {
            format!("{roles} parallel roles were compared without grouping")
        }
        Downgrade::MicroSteps => "micro-steps were summed or differ in number".to_owned(),
    }
}

/// A short word for a stage: "data loading" for `data.next_wait`, the name of a stage the user
/// named.
pub fn plain_name(stage: StageId, names: &StageNames) -> String {
    match stage {
        StageId::DATA => "data loading".to_owned(),
        StageId::FORWARD => "the forward pass".to_owned(),
        StageId::BACKWARD => "the backward pass".to_owned(),
        StageId::CALLBACKS => "callbacks".to_owned(),
        StageId::OPTIMIZER => "the optimizer step".to_owned(),
        StageId::OTHER => "code outside every stage".to_owned(),
        StageId::DATA_GAP => "the code between optimizer and forward pass".to_owned(),
        // The device's forward time is a side channel and never a stage of the step.
        _ => format!("stage {}", names.name(stage)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_says_whether_ranks_were_seen_to_meet_there() {
        let cuts = [
            (Cut::Data, Meeting::Issued),
            (Cut::After(MarkKind::BackwardEnd), Meeting::Seen),
            (Cut::Data, Meeting::Unseen),
        ];
        let words = ["data", "backward end, seen", "data, no meeting seen"];
        assert_eq!(cuts.map(|place| cut(Some(place))), words);
        assert_eq!(cut(None), "none");
    }

    #[test]
    fn shares_are_percent_and_ranks_are_folded() {
        let doubts = [
            Downgrade::Uncovered { share: 0.111 },
            Downgrade::ClaimedTwice { share: 0.078 },
            Downgrade::MissingRanks {
                ranks: vec![2, 3, 4],
            },
            Downgrade::UnseenRanks { ranks: 1 },
        ];
        let words = [
            "11.1 % of the step lies outside every stage",
            "stages claim 7.8 % of the step twice",
            "no records of ranks 2-4",
            "1 rank on another host is not recorded",
        ];
        assert_eq!(doubts.map(|it| downgrade(&it)), words);
    }
}
