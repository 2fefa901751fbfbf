use model::MarkKind;

/// Optimizer runs without a new batch after which a loop counts as one without a loader.
///
/// Enough for GANs that train their critic several times on one batch; a loop that fetched
/// a single batch before it began is recognised after this many steps.
const RUNS_WITHOUT_DATA: u8 = 8;

/// Numbers the steps of one rank, from its own marks alone.
///
/// A step ends where a new batch is asked for after an optimizer ran; in a loop without a
/// data loader, where the next forward or backward pass begins. Explicit steps override
/// both. All ranks of a job run the same loop, so they count alike.
/// # Source
/// PerfTracker (2025): the stream is cut before each D that follows an O.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepCounter {
    step: u32,
    after_optimizer: bool,
    /// Whether work was seen since the optimizer last ran.
    worked: bool,
    loader: bool,
    runs_without_data: u8,
    explicit: bool,
}

impl StepCounter {
    /// The step the last mark belonged to.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// Takes note of a mark of the training loop and returns the step it belongs to.
    pub fn count(&mut self, kind: MarkKind) -> u32 {
        match kind {
            MarkKind::StepBegin => {
                // What precedes the first explicit step is set-up of that step, unless it has
                // trained.
                if self.explicit || self.after_optimizer {
                    self.advance();
                }
                self.explicit = true;
            }
            // Hooks would count a second step inside one that the script names.
            _ if self.explicit => {}
            MarkKind::OptimizerEnd => {
                self.after_optimizer = true;
                self.worked = false;
            }
            MarkKind::DataBegin => {
                self.loader = true;
                self.runs_without_data = 0;
                if self.after_optimizer {
                    self.advance();
                }
            }
            MarkKind::ForwardBegin | MarkKind::BackwardBegin | MarkKind::BlockBegin
                if self.after_optimizer =>
            {
                if !self.loader {
                    self.advance();
                // Passes that lead to the same run of the optimizer count once.
                } else if !self.worked {
                    self.worked = true;
                    // Cannot overflow: at the limit `loader` is cleared, and only a batch sets it
                    // again, which resets the count.
                    self.runs_without_data += 1;
                    if self.runs_without_data >= RUNS_WITHOUT_DATA {
                        self.loader = false;
                        self.advance();
                    }
                }
            }
            _ => {}
        }
        self.step
    }

    fn advance(&mut self) {
        // This runs in training: a count that wraps is better than a panic.
        self.step = self.step.wrapping_add(1);
        self.after_optimizer = false;
    }
}

#[cfg(test)]
mod tests {
    use model::MarkKind::{BackwardBegin as B, DataBegin as D, OptimizerEnd as O, StepBegin as S};

    use super::*;

    fn steps(kinds: &[MarkKind]) -> Vec<u32> {
        let mut counter = StepCounter::default();
        kinds.iter().map(|kind| counter.count(*kind)).collect()
    }

    #[test]
    fn a_plain_loop_steps_at_each_batch() {
        assert_eq!(steps(&[D, B, O, D, B, O, D]), [0, 0, 0, 1, 1, 1, 2]);
    }

    #[test]
    fn accumulation_and_read_ahead_stay_in_one_step() {
        assert_eq!(steps(&[D, D, B, D, B, O, D, B]), [0, 0, 0, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn two_optimizers_on_one_batch_are_one_step() {
        assert_eq!(
            steps(&[D, B, O, B, O, D, B, O, B, O]),
            [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]
        );
    }

    #[test]
    fn a_loop_without_a_loader_steps_at_each_backward() {
        assert_eq!(steps(&[B, O, B, O, B]), [0, 0, 1, 1, 2]);
    }

    #[test]
    fn a_pipeline_steps_at_its_first_block() {
        use MarkKind::BlockBegin as P;
        assert_eq!(steps(&[P, P, B, B, O, P, P, B]), [0, 0, 0, 0, 0, 1, 1, 1]);
    }

    #[test]
    fn a_loader_used_once_does_not_stop_the_count() {
        let mut kinds = vec![D];
        for _ in 0..20 {
            kinds.extend([B, O]);
        }
        assert_eq!(steps(&kinds).last(), Some(&12));
    }

    #[test]
    fn explicit_steps_override_the_hooks() {
        assert_eq!(
            steps(&[S, D, B, O, D, B, O, S, B]),
            [0, 0, 0, 0, 0, 0, 0, 1, 1]
        );
        // What was trained before the first one is a step of its own.
        assert_eq!(steps(&[D, B, O, S, D, B, O, S]), [0, 0, 0, 1, 1, 1, 1, 2]);
    }
}
