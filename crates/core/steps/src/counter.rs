use model::MarkKind;

/// Optimizer runs without a new batch after which a loop counts as one without a loader.
///
/// Enough for GANs that train their critic several times on one batch; a loop that fetched
/// a single batch before it began is recognised after this many steps.
const RUNS_WITHOUT_DATA: u8 = 8;

/// Backward passes before the first run of an optimizer after which each counts as one: the script updates its
/// parameters by itself.
///
/// Enough for a loop that accumulates gradients of as many batches before it has an optimizer run.
const PASSES_WITHOUT_OPTIMIZER: u8 = 16;

/// Turns without the optimizer that ends them after which no optimizer is waited for.
///
/// Enough for GANs that train their critic several times for each run of the other optimizer.
const TURNS_UNENDED: u8 = 8;

/// Numbers the steps of one rank, from its own marks alone.
///
/// A step ends where a new batch is asked for after an optimizer ran; in a loop without a
/// data loader, where the next forward or backward pass begins after the last of its optimizers. A loop
/// without an optimizer has one at the end of each backward pass. Explicit steps override all of these.
/// All ranks of a job run the same loop, so they count alike.
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
    /// Whether only optimizers end its steps: one has run, or nothing else marks where hosts wait.
    needs_optimizer: bool,
    /// Backward passes before that is known.
    passes: u8,
    explicit: bool,
    turn: OptimizerTurn,
}

/// Which optimizer of a loop with several, each after passes of its own, ends a step.
#[derive(Clone, Copy, Debug, Default)]
struct OptimizerTurn {
    /// The optimizer that ran first of all, 0 before.
    first: usize,
    /// The one that ran last, 0 for one that has no number.
    last: usize,
    /// The one that ran before the first one ran again: it ends the turn.
    ends: Option<usize>,
    unended: u8,
}

impl OptimizerTurn {
    fn ran(&mut self, optimizer: usize) {
        if self.first == 0 {
            self.first = optimizer;
        } else if optimizer == self.first && self.unended < TURNS_UNENDED {
            if self.last != self.first {
                self.ends.get_or_insert(self.last);
            }
            if self.ends.is_some_and(|ends| ends != self.last) {
                self.unended += 1;
            } else {
                self.unended = 0;
            }
        }
        self.last = optimizer;
    }

    fn is_over(&self) -> bool {
        let ends = self.ends.filter(|_| self.unended < TURNS_UNENDED);
        self.last == 0 || ends.is_none_or(|ends| ends == self.last)
    }
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
            MarkKind::OptimizerEnd => return self.count_optimizer(0),
            MarkKind::BackwardEnd => self.after_optimizer |= self.is_without_optimizer(),
            MarkKind::DataBegin => {
                self.loader = true;
                self.runs_without_data = 0;
                if self.after_optimizer {
                    self.advance();
                }
            }
            MarkKind::ForwardBegin | MarkKind::BackwardBegin | MarkKind::BlockBegin => {
                let first = !std::mem::replace(&mut self.worked, true);
                if self.after_optimizer && !self.loader && self.turn.is_over() {
                    self.advance();
                // Passes that lead to the same run of the optimizer count once.
                } else if self.after_optimizer && self.loader && first {
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

    /// Takes note that an optimizer has run, and returns the step that it belongs to.
    ///
    /// `optimizer` is a number of its own, 0 where it has none.
    pub fn count_optimizer(&mut self, optimizer: usize) -> u32 {
        if !self.explicit {
            // Those that run one after the other after the same pass count once.
            if self.worked || self.turn.first == 0 {
                self.turn.ran(optimizer);
            }
            self.needs_optimizer = true;
            self.after_optimizer = true;
            self.worked = false;
        }
        self.step
    }

    /// Takes note of the end of a backward pass, and returns the step that it belongs to.
    ///
    /// `uses_device` is asked once at most: hosts that block in collectives need marks behind these, of which
    /// an optimizer makes the first.
    pub fn count_pass(&mut self, uses_device: impl FnOnce() -> bool) -> u32 {
        if !self.needs_optimizer && self.passes < PASSES_WITHOUT_OPTIMIZER {
            self.passes += 1;
            self.needs_optimizer = self.passes == PASSES_WITHOUT_OPTIMIZER && !uses_device();
        }
        self.count(MarkKind::BackwardEnd)
    }

    fn is_without_optimizer(&self) -> bool {
        !self.needs_optimizer && !self.explicit && self.passes == PASSES_WITHOUT_OPTIMIZER
    }

    fn advance(&mut self) {
        let passes = u32::from(PASSES_WITHOUT_OPTIMIZER);
        // The first step that counts in a loop without an optimizer stands for the passes before it.
        let is_first = self.is_without_optimizer() && self.step < passes;
        // This runs in training: a count that wraps is better than a panic.
        self.step = self.step.wrapping_add(if is_first { passes } else { 1 });
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

    /// The step after each of `runs`: of an optimizer, after a backward pass of its own unless it
    /// runs right after the one before.
    fn steps_of(runs: &str) -> Vec<u32> {
        let mut counter = StepCounter::default();
        let run = |word: &str| {
            let (after, name) = word.strip_prefix('+').map_or((false, word), |n| (true, n));
            if !after {
                counter.count(B);
            }
            counter.count_optimizer(usize::from(name.as_bytes()[0]))
        };
        runs.split(' ').map(run).collect()
    }

    #[test]
    fn without_a_loader_several_optimizers_are_one_step() {
        // The second run of the first one says which is the last.
        assert_eq!(steps_of("d g d g d g"), [0, 1, 2, 2, 3, 3]);
        // A critic that is trained three times.
        assert_eq!(
            steps_of("d d d g d d d g d d d g"),
            [0, 1, 2, 3, 4, 4, 4, 4, 5, 5, 5, 5]
        );
        // Optimizers of one model, of which one runs now and then.
        assert_eq!(steps_of("a +b a +b a a a +b"), [0, 0, 1, 1, 2, 3, 4, 4]);
        // First one model, then another, then the first again.
        assert_eq!(steps_of("a a b b b"), [0, 1, 2, 3, 4]);
        let again = "a b a b".to_owned() + &" a".repeat(20);
        assert_eq!(steps_of(&again).last(), Some(&14));
    }

    #[test]
    fn a_pipeline_steps_at_its_first_block() {
        use MarkKind::BlockBegin as P;
        assert_eq!(steps(&[P, P, B, B, O, P, P, B]), [0, 0, 0, 0, 0, 1, 1, 1]);
    }

    #[test]
    fn a_loop_without_an_optimizer_steps_at_each_backward() {
        // The step of each backward pass; an optimizer runs behind the passes of these numbers.
        let counted_on = |uses_device: bool, passes: u32, optimizer_behind: &[u32]| -> Vec<u32> {
            let mut counter = StepCounter::default();
            let step_of = |pass: u32| {
                let step = counter.count(B);
                counter.count_pass(|| uses_device);
                if optimizer_behind.contains(&pass) {
                    counter.count(O);
                }
                step
            };
            (0..passes).map(step_of).collect()
        };
        let counted = |passes, optimizer_behind| counted_on(true, passes, optimizer_behind);
        assert_eq!(counted(19, &[])[14..], [0, 0, 16, 17, 18]);
        assert_eq!(counted_on(false, 40, &[]), [0; 40]);
        // Batches are accumulated before the first run of an optimizer.
        assert_eq!(counted(18, &[15, 16])[14..], [0, 0, 1, 2]);
        assert_eq!(counted(40, &[7, 39])[30..], [1; 10]);
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
