//! Mark events: for each rank a list of `[time_ns, kind]`.

use std::path::Path;

use model::{CollectiveOp, Mark, MarkKind, RankNs, StageId};
use steps::StepCounter;
use verdict::{Job, RankFacts, Settings};

use crate::FormatError;

/// Recorded marks of every rank.
#[derive(Clone, Debug)]
pub struct MarkEvents {
    ranks: Vec<Vec<(Mark, StageId)>>,
}

impl MarkEvents {
    /// Takes the lists as they stand in the file.
    ///
    /// # Errors
    /// [`FormatError::Content`] for an unknown kind or a time that runs backwards, with the
    /// place.
    pub(crate) fn new(
        path: &Path,
        lists: Vec<Vec<(u64, String)>>,
    ) -> Result<Self, FormatError> {
        let mut ranks = Vec::with_capacity(lists.len());
        for (rank, list) in lists.into_iter().enumerate() {
            let refuse = |at: usize, reason: String| FormatError::Content {
                path: path.to_owned(),
                place: format!("[{rank}][{at}]"),
                reason,
            };
            let mut marks = Vec::with_capacity(list.len());
            let mut counter = StepCounter::default();
            let mut last = 0;
            for (at, (time_ns, kind)) in list.into_iter().enumerate() {
                let Some((kind, code, stage)) = mark_of(&kind) else {
                    return Err(refuse(at, format!("unknown kind {kind:?}")));
                };
                if time_ns < last {
                    let reason = format!("time runs backwards from {last} to {time_ns} ns");
                    return Err(refuse(at, reason));
                }
                last = time_ns;
                let step = counter.count(kind);
                let at = RankNs(time_ns);
                let mark = Mark { at, step, kind, on_loop_thread: true, code, args: [0; 5] };
                marks.push((mark, stage));
            }
            ranks.push(marks);
        }
        if ranks.iter().all(Vec::is_empty) {
            let (path, place) = (path.to_owned(), ".".to_owned());
            return Err(FormatError::Content { path, place, reason: "no event".into() });
        }
        Ok(Self { ranks })
    }

    pub(crate) fn replay(&self, id: &str, settings: Settings) -> Job {
        let mut job = Job::new(id, "marks", settings);
        for rank in 0..self.ranks.len() {
            job.expect(rank as u32, RankFacts::default());
        }
        // By turns, so that no rank runs far ahead of the others.
        let longest = self.ranks.iter().map(Vec::len).max().unwrap_or(0);
        for at in 0..longest {
            for (rank, marks) in self.ranks.iter().enumerate() {
                if let Some((mark, stage)) = marks.get(at) {
                    job.mark(rank as u32, mark, *stage);
                }
            }
        }
        job.finish();
        job
    }
}

fn mark_of(kind: &str) -> Option<(MarkKind, u16, StageId)> {
    if let Some(op) = kind.strip_prefix("K:") {
        let op = CollectiveOp::from_name(op);
        return Some((MarkKind::CollectiveIssue, op.0, StageId::OTHER));
    }
    let (mark, stage) = match kind {
        "D0" => (MarkKind::DataBegin, StageId::DATA),
        "D1" => (MarkKind::DataEnd, StageId::DATA),
        "DX" => (MarkKind::DataStop, StageId::DATA),
        "F0" => (MarkKind::ForwardBegin, StageId::FORWARD),
        "F1" => (MarkKind::ForwardEnd, StageId::FORWARD),
        "B0" => (MarkKind::BackwardBegin, StageId::BACKWARD),
        "B1" => (MarkKind::BackwardEnd, StageId::BACKWARD),
        "O0" => (MarkKind::OptimizerBegin, StageId::OPTIMIZER),
        "O1" => (MarkKind::OptimizerEnd, StageId::OPTIMIZER),
        "C0" => (MarkKind::StageBegin, StageId::CALLBACKS),
        "C1" => (MarkKind::StageEnd, StageId::CALLBACKS),
        _ => return None,
    };
    Some((mark, 0, stage))
}
