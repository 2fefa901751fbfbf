use model::{Ending, MarkKind, RankNs, RankStep};

use crate::{Heard, IterationLearner};

/// What a step means for the loop it is part of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Iteration {
    /// Not the end of an iteration, or none is known yet.
    Open,
    /// An iteration is over.
    Done {
        /// From its first batch asked for to the end of its last optimizer, in seconds.
        duration_s: f64,
    },
    /// The loop is another: what was known of the one before is forgotten.
    Relearned,
}

/// Times the iterations of one rank's loop, however many steps they take.
///
/// # Source
/// PerfTracker (2025), docs/math/pattern.md. The alphabet is its D and O; a step is a piece.
#[derive(Clone, Debug, Default)]
pub struct IterationTimer {
    learner: IterationLearner,
    /// Steps of the iteration that were seen in turn, and when the first of them started.
    open: Option<(usize, RankNs)>,
}

impl IterationTimer {
    /// Takes the rank's next step.
    pub fn push(&mut self, step: &RankStep) -> Iteration {
        let was_known = !self.learner.cycle().is_empty();
        let mut optimizers = step
            .segments
            .iter()
            .filter(|segment| segment.ending == Ending::Mark(MarkKind::OptimizerEnd));
        // What tells the steps of one loop apart: a GAN runs one optimizer more often than the
        // other.
        let piece = u64::from(step.batches) << 32 | optimizers.clone().count() as u64;
        let heard = self.learner.hear(piece);
        let steps = self.learner.cycle().len();
        match heard {
            Heard::Learning => return Iteration::Open,
            Heard::Odd => {
                self.open = None;
                let forgotten = was_known && steps == 0;
                return if forgotten {
                    Iteration::Relearned
                } else {
                    Iteration::Open
                };
            }
            Heard::Expected => {}
        }
        let (before, start) = self.open.unwrap_or((0, step.start));
        self.open = Some((before + 1, start));
        if before + 1 < steps {
            return Iteration::Open;
        }
        self.open = None;
        // A step that the script names may run no optimizer: it lasts to its end.
        let end = optimizers.next_back().or(step.segments.last());
        end.map_or(Iteration::Open, |end| Iteration::Done {
            duration_s: end.end.seconds_since(start),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::steps;

    fn pushed(timer: &mut IterationTimer, marks: &str) -> Vec<Iteration> {
        steps(marks).iter().map(|step| timer.push(step)).collect()
    }

    #[test]
    fn a_plain_loop_is_timed_from_its_eleventh_step_on() {
        let mut timer = IterationTimer::default();
        let found = pushed(&mut timer, &"D0 D1 B0 B1 O0 O1+100 ".repeat(15));
        let (learning, rest) = found.split_at(10);
        assert!(learning.iter().all(|found| *found == Iteration::Open));
        let Iteration::Done { duration_s } = rest[0] else {
            panic!("{rest:?}")
        };
        assert!((0.1..0.2).contains(&duration_s), "{duration_s}");
    }

    /// `DO DO DO DDO`.
    #[test]
    fn an_iteration_of_four_steps_is_timed_as_one() {
        let mut timer = IterationTimer::default();
        let loop_ = "D0 D1 O0 O1 ".repeat(3) + "D0 D1 D0 D1 O0 O1 ";
        let found = pushed(&mut timer, &loop_.repeat(20));
        let done = found[40..]
            .iter()
            .filter(|found| **found != Iteration::Open);
        assert_eq!(done.count(), 10);
    }

    #[test]
    fn another_loop_is_learned_after_two_hundred_strangers() {
        let mut timer = IterationTimer::default();
        pushed(&mut timer, &"D0 D1 B0 B1 O0 O1 ".repeat(15));
        let found = pushed(&mut timer, &"D0 D1 D0 D1 B0 B1 O0 O1 ".repeat(230));
        let relearned = found
            .iter()
            .position(|found| *found == Iteration::Relearned);
        assert_eq!(relearned, Some(199));
        assert!(
            matches!(found[215], Iteration::Done { .. }),
            "{:?}",
            found[215]
        );
    }
}
