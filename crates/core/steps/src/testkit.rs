//! Marks from a line of text, for tests.

use model::{CollectiveIssue, CollectiveOp, Event, Mark, MarkKind, RankNs, RankStep, StageId};

use crate::{Segmenter, StepCounter};

/// Marks `1 ms` apart; `kind+n` comes `n` ms after the one before. Kinds as in recordings:
/// `D0 D1 DX F0 F1 B0 B1 O0 O1 S0 S1 K`, `E0:id E1:id` for explicit stages, `K:number` for a
/// collective that was counted.
pub(crate) fn marks(text: &str) -> Vec<(Mark, StageId)> {
    let mut counter = StepCounter::default();
    let mut now = 0;
    let mut marks = Vec::new();
    for word in text.split_whitespace() {
        let (word, after_ms) = word.split_once('+').unwrap_or((word, "1"));
        now += after_ms.parse::<u64>().unwrap() * 1_000_000;
        let (word, id) = word.split_once(':').unwrap_or((word, "0"));
        let kind = match word {
            "D0" => MarkKind::DataBegin,
            "D1" => MarkKind::DataEnd,
            "DX" => MarkKind::DataStop,
            "F0" => MarkKind::ForwardBegin,
            "F1" => MarkKind::ForwardEnd,
            "B0" => MarkKind::BackwardBegin,
            "B1" => MarkKind::BackwardEnd,
            "O0" => MarkKind::OptimizerBegin,
            "O1" => MarkKind::OptimizerEnd,
            "S0" => MarkKind::StepBegin,
            "S1" => MarkKind::StepEnd,
            "E0" => MarkKind::StageBegin,
            "E1" => MarkKind::StageEnd,
            "R0" => MarkKind::ReadBackBegin,
            "R1" => MarkKind::ReadBackEnd,
            "K" => MarkKind::CollectiveIssue,
            other => panic!("unknown word {other}"),
        };
        let event = if kind == MarkKind::CollectiveIssue {
            let op = CollectiveOp::ALLREDUCE;
            let number = id.parse().unwrap();
            let issue = CollectiveIssue::new(op, 0, number);
            Event::CollectiveIssue(CollectiveIssue {
                op_id: number,
                ..issue
            })
        } else {
            kind.into()
        };
        let step = counter.count(kind);
        let mark = Mark {
            at: RankNs(now),
            step,
            on_loop_thread: true,
            event,
        };
        marks.push((mark, StageId(id.parse().unwrap())));
    }
    marks
}

/// The steps those marks make.
pub(crate) fn steps(text: &str) -> Vec<RankStep> {
    let mut segmenter = Segmenter::default();
    let mut steps: Vec<RankStep> = marks(text)
        .iter()
        .filter_map(|(mark, stage)| segmenter.push(mark, *stage))
        .collect();
    steps.extend(segmenter.finish());
    steps
}
