use std::collections::VecDeque;

/// Repetitions that must agree before a pattern is believed. The paper's.
const REPETITIONS: usize = 10;
/// Longest iteration looked for, in pieces. Ours.
const LONGEST: usize = 20;
/// Unmatched pieces before the pattern is learned anew. The paper's.
const RELEARN_AFTER: usize = 200;

/// What the learner made of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// No pattern is known yet.
    Learning,
    /// The piece is the expected one.
    Expected,
    /// The piece does not belong to the iteration: an evaluation, a skipped step.
    Odd,
}

/// Learns how many pieces of the event stream make up one iteration of a loop.
///
/// A piece is what stands between two cuts of [`crate::StepCounter`], given by a key of its
/// kind. An iteration is the shortest sequence of up to 20 pieces whose last 10 repetitions
/// agree.
/// # Source
/// PerfTracker (2025), iteration detection.
#[derive(Clone, Debug, Default)]
pub struct IterationLearner {
    recent: VecDeque<u64>,
    cycle: Vec<u64>,
    next: usize,
    unmatched: usize,
}

impl IterationLearner {
    /// The pieces of one iteration, empty while none is known.
    pub fn cycle(&self) -> &[u64] {
        &self.cycle
    }

    /// Takes note of a piece.
    pub fn hear(&mut self, piece: u64) -> Heard {
        if self.cycle.is_empty() {
            self.recent.push_back(piece);
            if self.recent.len() > REPETITIONS * LONGEST {
                self.recent.pop_front();
            }
            self.lock();
            return Heard::Learning;
        }
        // `next` is taken modulo the length, and the cycle is not empty here.
        if self.cycle[self.next] == piece {
            self.next = (self.next + 1) % self.cycle.len();
            self.unmatched = 0;
            return Heard::Expected;
        }
        self.unmatched += 1;
        if self.unmatched >= RELEARN_AFTER {
            *self = Self::default();
        } else if let Some(at) = self.cycle.iter().position(|known| *known == piece) {
            // A piece of the iteration out of turn: go on from there.
            self.next = (at + 1) % self.cycle.len();
        }
        Heard::Odd
    }

    fn lock(&mut self) {
        let newest_first: Vec<u64> = self.recent.iter().rev().copied().collect();
        // The shortest, as its multiples repeat as well.
        let period = (1..=LONGEST).find(|period| {
            let needed = period * REPETITIONS;
            newest_first.len() >= needed
                && (*period..needed).all(|at| newest_first[at] == newest_first[at - period])
        });
        if let Some(period) = period {
            self.cycle = newest_first[..period].iter().rev().copied().collect();
            // Until another loop is learned, pieces are only compared with the cycle.
            self.recent.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(pieces: impl IntoIterator<Item = u64>) -> IterationLearner {
        let mut learner = IterationLearner::default();
        for piece in pieces {
            learner.hear(piece);
        }
        learner
    }

    #[test]
    fn a_plain_loop_is_learned_after_ten_pieces() {
        assert!(learned([1; 9]).cycle().is_empty());
        assert_eq!(learned([1; 10]).cycle(), [1]);
    }

    /// `DO DO DO DDO` is never learned piece by piece.
    #[test]
    fn a_group_of_four_pieces_is_one_iteration() {
        let learner = learned([1, 1, 1, 2].repeat(12));
        assert_eq!(learner.cycle().len(), 4);
    }

    #[test]
    fn an_evaluation_between_iterations_is_odd_and_forgotten() {
        let mut learner = learned([1; 10]);
        assert_eq!(learner.hear(7), Heard::Odd);
        assert_eq!(learner.hear(1), Heard::Expected);
    }

    #[test]
    fn a_new_loop_is_learned_after_two_hundred_strangers() {
        let mut learner = learned([1; 10]);
        for _ in 0..RELEARN_AFTER {
            learner.hear(2);
        }
        for _ in 0..10 {
            learner.hear(2);
        }
        assert_eq!(learner.cycle(), [2]);
    }
}
