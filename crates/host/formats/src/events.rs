//! Mark events: for each rank a list of `[time_ns, kind]`.

use std::path::Path;

use model::{
    CollectiveIssue, CollectiveOp, Event, Input, Mark, RankNs, Source, StageId, StageNames,
};
use steps::StepCounter;
use verdict::{Job, Settings};

use crate::FormatError;

/// Recorded marks of every rank.
#[derive(Clone, Debug)]
pub struct MarkEvents {
    ranks: Vec<Vec<Mark>>,
}

impl MarkEvents {
    /// Takes the lists as they stand in the file.
    ///
    /// # Errors
    /// [`FormatError::Content`] for an unknown kind or a time that runs backwards, with the
    /// place.
    pub(crate) fn new(path: &Path, lists: Vec<Vec<(u64, String)>>) -> Result<Self, FormatError> {
        let mut ranks = Vec::with_capacity(lists.len());
        for (rank, list) in lists.into_iter().enumerate() {
            let mut marks = Vec::with_capacity(list.len());
            let mut counter = StepCounter::default();
            let mut last = 0;
            for (at, (time_ns, kind)) in list.into_iter().enumerate() {
                let Some(event) = event_of(&kind) else {
                    let reason = format!("unknown kind {kind:?}");
                    return Err(FormatError::content(
                        path,
                        format!("[{rank}][{at}]"),
                        reason,
                    ));
                };
                if time_ns < last {
                    let reason = format!("time runs backwards from {last} to {time_ns} ns");
                    return Err(FormatError::content(
                        path,
                        format!("[{rank}][{at}]"),
                        reason,
                    ));
                }
                last = time_ns;
                let step = counter.count(event.kind());
                let at = RankNs(time_ns);
                marks.push(Mark {
                    at,
                    step,
                    on_loop_thread: true,
                    event,
                });
            }
            ranks.push(marks);
        }
        if ranks.iter().all(Vec::is_empty) {
            return Err(FormatError::content(path, ".", "no event"));
        }
        Ok(Self { ranks })
    }

    pub(crate) fn replay(&self, id: &str, settings: Settings) -> Job {
        let mut job = Job::new(id, Source::Marks, settings);
        let world_size = self.ranks.len() as u32;
        for rank in 0..world_size {
            let (host, role) = ("recording".to_owned(), None);
            // Each speaks for itself, so none has neighbours that are to be waited for.
            let (first_local, locals) = (rank, 1);
            job.take(Input::Rank {
                rank,
                host,
                role,
                first_local,
                locals,
                world_size,
            });
            // The only explicit stage these lists have is the callbacks'.
            let name = StageNames::default().name(StageId::CALLBACKS).to_owned();
            job.take(Input::Name { rank, name });
        }
        // By turns, so that no rank runs far ahead of the others.
        let longest = self.ranks.iter().map(Vec::len).max().unwrap_or(0);
        for at in 0..longest {
            for (rank, marks) in (0..).zip(&self.ranks) {
                if let Some(mark) = marks.get(at) {
                    job.take(Input::Mark { rank, mark: *mark });
                }
            }
        }
        job.finish();
        job
    }
}

fn event_of(kind: &str) -> Option<Event> {
    if let Some(op) = kind.strip_prefix("K:") {
        let op = CollectiveOp::from_name(op);
        // These lists know no groups and no numbers: all ranks are in each collective.
        return Some(Event::CollectiveIssue(CollectiveIssue::new(op, 0, 0)));
    }
    Some(match kind {
        "D0" => Event::DataBegin,
        "D1" => Event::DataEnd,
        "DX" => Event::DataStop,
        "F0" => Event::ForwardBegin,
        "F1" => Event::ForwardEnd,
        "B0" => Event::BackwardBegin,
        "B1" => Event::BackwardEnd,
        "O0" => Event::OptimizerBegin,
        "O1" => Event::OptimizerEnd,
        "C0" => Event::StageBegin { name: 0 },
        "C1" => Event::StageEnd { name: 0 },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_without_marks_costs_no_more_than_its_list() {
        let mut lists = vec![Vec::new(); 20_000];
        lists.push(vec![(1, "D0".to_owned())]);
        let events = MarkEvents::new(Path::new("events"), lists).unwrap();
        assert_eq!(events.replay("events", Settings::default()).ranks(), 0);
    }
}
