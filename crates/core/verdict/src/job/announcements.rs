//! What is to be said at once to those who watch a job.

use std::collections::VecDeque;

use model::{Announcement, Fact, Finding};

/// What is kept if nobody takes it, as of a recording; the oldest makes room.
const MAX_ANNOUNCEMENTS: usize = 4096;

/// What was not taken yet, in its order.
#[derive(Debug, Default)]
pub(super) struct Announcements(VecDeque<Announcement>);

impl Announcements {
    fn push(&mut self, announcement: Announcement) {
        if self.0.len() == MAX_ANNOUNCEMENTS {
            self.0.pop_front();
        }
        self.0.push_back(announcement);
    }

    /// Adds what methods announce.
    pub(super) fn extend(&mut self, said: impl IntoIterator<Item = Announcement>) {
        said.into_iter()
            .for_each(|announcement| self.push(announcement));
    }

    /// Announces what a window shows, by its first and last step.
    pub(super) fn in_window(&mut self, steps: (u64, u64), shown: Vec<Finding>) {
        let (first_step, last_step) = steps;
        for Finding { claim, .. } in shown {
            self.push(Announcement::InWindow {
                first_step,
                last_step,
                claim,
            });
        }
    }

    /// Announces the end of a hang that lasted so long, if one ended.
    pub(super) fn moves_again(&mut self, after_s: Option<f64>) {
        if let Some(after_s) = after_s {
            self.push(Announcement::MovesAgain { after_s });
        }
    }

    /// Announces what a profile window shows.
    pub(super) fn profiled(&mut self, facts: impl IntoIterator<Item = Fact>) {
        self.extend(facts.into_iter().map(Announcement::Profiled));
    }

    /// All that was announced since the last call.
    pub(super) fn take(&mut self) -> Vec<Announcement> {
        std::mem::take(&mut self.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_takes_makes_room() {
        let mut announcements = Announcements::default();
        for second in 0..=MAX_ANNOUNCEMENTS as u32 {
            announcements.moves_again(Some(second.into()));
        }
        let taken = announcements.take();
        assert_eq!(taken.len(), MAX_ANNOUNCEMENTS);
        assert_eq!(
            taken.first(),
            Some(&Announcement::MovesAgain { after_s: 1.0 })
        );
        assert!(announcements.take().is_empty());
    }
}
