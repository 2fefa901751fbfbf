use std::fmt;

use model::{Announcement, Finding, Input, JobContext};

/// A method that finds what holds a job back: it takes what there is to know of the job, and says
/// what it found. What several of them find is put together by [`fuse`](crate::fuse).
///
/// # Example
/// A method that finds ranks that lost records:
/// ```
/// use laggard_diagnosis::Detector;
/// use model::{Announcement, Claim, Finding, Input, JobContext, Origin, StepSpan};
///
/// #[derive(Debug, Default)]
/// struct LostRecords(Vec<u32>);
///
/// impl Detector for LostRecords {
///     fn observe(&mut self, input: &Input, _: JobContext<'_>) -> Vec<Announcement> {
///         if let Input::Lost { rank, .. } = input {
///             self.0.push(*rank);
///         }
///         Vec::new()
///     }
///
///     fn findings(&self, _: JobContext<'_>) -> Vec<Finding> {
///         let of_rank = |rank: &u32| {
///             let steps = StepSpan { first: 0, last: 0, open: true };
///             let claim = Claim::UnknownRank { stage: "any".to_owned(), stage_share: 0.0, steps };
///             let mut finding = Finding::new(Origin::Stages, format!("l{rank}"), claim);
///             finding.subject.ranks = vec![*rank];
///             finding
///         };
///         self.0.iter().map(of_rank).collect()
///     }
///
///     fn restart(&mut self) {
///         self.0.clear();
///     }
/// }
/// ```
pub trait Detector: fmt::Debug {
    /// Takes the next thing there is to know of the job; what is to be said at once.
    fn observe(&mut self, _input: &Input, _context: JobContext<'_>) -> Vec<Announcement> {
        Vec::new()
    }

    /// Looks at what it has not looked at yet, since nothing more comes; what is to be said at once.
    fn finish(&mut self, _context: JobContext<'_>) -> Vec<Announcement> {
        Vec::new()
    }

    /// What it found, in its own order.
    fn findings(&self, context: JobContext<'_>) -> Vec<Finding>;

    /// All ranks start over: what was seen of them is no word on the next start. No id is given
    /// twice.
    fn restart(&mut self);
}
