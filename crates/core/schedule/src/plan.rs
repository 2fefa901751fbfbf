use model::{Pass, PipelineBlock};

/// The place of a block as rank `stage` names it, in a pipeline of the ranks 0, 1, 2, …, a stage
/// on each.
#[cfg(test)]
pub(crate) fn place(block: PipelineBlock, stage: u32, stages: u32) -> model::BlockPlace {
    let PipelineBlock {
        pass, microbatch, ..
    } = block;
    model::BlockPlace {
        pass,
        stage,
        microbatch,
        stages,
        first_rank: 0,
    }
}

/// A mark of a training loop, at `at_ns` on its rank's clock.
#[cfg(test)]
pub(crate) fn mark(step: u32, at_ns: u64, event: model::Event) -> model::Mark {
    model::Mark {
        at: model::RankNs(at_ns),
        step,
        on_loop_thread: true,
        event,
    }
}

/// One of the stages of a pipeline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageOfAll {
    pub(crate) stage: u32,
    /// How many there are.
    pub(crate) stages: u32,
}

/// In which order each stage of a pipeline works: a schedule, as data.
///
/// # Shape
/// `stages[stage][place]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    stages: Vec<Vec<PipelineBlock>>,
    chunks: u32,
}

/// The schedules that are known by name; each is only a way to write a [`Plan`] down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// All forward passes, then all backward passes.
    GPipe,
    /// Warm-up, then one forward and one backward in turn.
    OneForwardOneBackward,
    /// The same with several parts of the model on each stage.
    Interleaved {
        /// Parts a stage holds.
        chunks: u32,
    },
    /// The backward pass in two, weights last: ZB-H1.
    ZeroBubble,
}

impl Scheme {
    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Self::GPipe => "GPipe",
            Self::OneForwardOneBackward => "1F1B",
            Self::Interleaved { .. } => "interleaved 1F1B",
            Self::ZeroBubble => "zero bubble",
        }
    }

    /// Writes the schedule down for so many stages and microbatches. Interleaved, only a
    /// multiple of the stages makes an order that can be worked off.
    ///
    /// # Source
    /// GPipe (2019); PipeDream-Flush in Megatron-LM (2021), with its interleaved order, in
    /// which microbatches go in groups of as many as there are stages; ZB-H1 in Zero Bubble
    /// Pipeline Parallelism (2024), here with weights `stage` blocks late.
    pub fn plan(self, stages: u32, microbatches: u32) -> Plan {
        let chunks = if let Self::Interleaved { chunks } = self {
            chunks
        } else {
            1
        };
        let orders =
            (0..stages).map(|stage| self.order(StageOfAll { stage, stages }, microbatches));
        Plan {
            stages: orders.collect(),
            chunks,
        }
    }

    /// The blocks of one stage in the order of their execution.
    fn order(self, of: StageOfAll, microbatches: u32) -> Vec<PipelineBlock> {
        let StageOfAll { stage, stages } = of;
        match self {
            Self::GPipe => all(Pass::Forward, microbatches)
                .chain(all(Pass::Backward, microbatches))
                .collect(),
            Self::OneForwardOneBackward => alternate(
                all(Pass::Forward, microbatches),
                all(Pass::Backward, microbatches),
                // As far ahead as it takes the first microbatch to come back from the last stage.
                stages - 1 - stage,
            ),
            Self::Interleaved { chunks } => {
                let [forwards, backwards] = [Pass::Forward, Pass::Backward].map(|pass| {
                    (0..microbatches * chunks)
                        .map(move |at| nth_interleaved(pass, at, stages, chunks))
                });
                // Twice as far ahead: the output of each chunk comes back to the same stages.
                let warmup = (stages - 1 - stage) * 2 + (chunks - 1) * stages;
                alternate(forwards, backwards, warmup)
            }
            Self::ZeroBubble => {
                let passes = Self::OneForwardOneBackward.order(of, microbatches);
                let mut order = Vec::new();
                for done in passes {
                    order.push(done);
                    if done.pass == Pass::Backward {
                        let due = done.microbatch.checked_sub(stage);
                        order.extend(due.map(|due| whole_block(Pass::Weight, due)));
                    }
                }
                // Those that no later backward pass made room for.
                let first = microbatches.saturating_sub(stage);
                order.extend((first..microbatches).map(|m| whole_block(Pass::Weight, m)));
                order
            }
        }
    }
}

/// A block of a stage that holds one part of the model.
fn whole_block(pass: Pass, microbatch: u32) -> PipelineBlock {
    PipelineBlock {
        pass,
        microbatch,
        chunk: 0,
    }
}

fn all(pass: Pass, microbatches: u32) -> impl Iterator<Item = PipelineBlock> {
    (0..microbatches).map(move |microbatch| whole_block(pass, microbatch))
}

/// Forwards ahead of the backwards by `warmup`, then both in turn.
fn alternate(
    forwards: impl Iterator<Item = PipelineBlock>,
    mut backwards: impl Iterator<Item = PipelineBlock>,
    warmup: u32,
) -> Vec<PipelineBlock> {
    let mut order = Vec::new();
    for (forward, at) in forwards.zip(0..) {
        order.push(forward);
        if at >= warmup {
            order.extend(backwards.next());
        }
    }
    order.extend(backwards);
    order
}

/// The block at a place of the interleaved order.
fn nth_interleaved(pass: Pass, at: u32, stages: u32, chunks: u32) -> PipelineBlock {
    let chunk = at / stages % chunks;
    let chunk = if pass == Pass::Forward {
        chunk
    } else {
        chunks - 1 - chunk
    };
    PipelineBlock {
        pass,
        microbatch: at / (stages * chunks) * stages + at % stages,
        chunk,
    }
}

impl Plan {
    /// A schedule as it was seen: the blocks of each stage in the order of their execution.
    pub fn observed(stages: Vec<Vec<PipelineBlock>>) -> Self {
        let chunks = stages
            .iter()
            .flatten()
            .map(|block| block.chunk.saturating_add(1));
        Self {
            chunks: chunks.max().unwrap_or(1),
            stages,
        }
    }

    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.stages.len()
    }

    /// A stage's blocks in the order of their execution.
    pub fn order(&self, stage: usize) -> &[PipelineBlock] {
        &self.stages[stage]
    }

    /// Parts of the model each stage holds.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Number of blocks of all stages.
    pub fn blocks(&self) -> usize {
        self.stages.iter().map(Vec::len).sum()
    }

    /// The stage and the block that this block's input comes from, if it is not its stage's
    /// own.
    pub fn source(&self, stage: usize, block: PipelineBlock) -> Option<(usize, PipelineBlock)> {
        let last = self.stages() - 1;
        let (from, chunk) = match block.pass {
            Pass::Forward if stage > 0 => (stage - 1, block.chunk),
            Pass::Forward if block.chunk > 0 => (last, block.chunk - 1),
            Pass::Backward if stage < last => (stage + 1, block.chunk),
            Pass::Backward if block.chunk + 1 < self.chunks => (0, block.chunk + 1),
            _ => return None,
        };
        // On a single stage one part of the model follows the other: nothing is sent.
        (from != stage).then_some((from, PipelineBlock { chunk, ..block }))
    }

    /// The stage that this block's output goes to, if it is another.
    pub fn target(&self, stage: usize, block: PipelineBlock) -> Option<usize> {
        let last = self.stages() - 1;
        let other = match block.pass {
            Pass::Forward if stage < last => stage + 1,
            Pass::Forward if block.chunk + 1 < self.chunks => 0,
            Pass::Backward if stage > 0 => stage - 1,
            Pass::Backward if block.chunk > 0 => last,
            _ => return None,
        };
        (other != stage).then_some(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(plan: &Plan, stage: usize) -> String {
        let mut letters = Vec::new();
        for block in plan.order(stage) {
            let letter = &block.pass.name()[..1].to_uppercase();
            letters.push(format!("{letter}{}", block.microbatch + block.chunk * 10));
        }
        letters.join(" ")
    }

    #[test]
    fn schedules_are_lists_of_blocks() {
        let plan = Scheme::OneForwardOneBackward.plan(4, 4);
        assert_eq!(text(&plan, 0), "F0 F1 F2 F3 B0 B1 B2 B3");
        assert_eq!(text(&plan, 1), "F0 F1 F2 B0 F3 B1 B2 B3");
        assert_eq!(text(&plan, 3), "F0 B0 F1 B1 F2 B2 F3 B3");
        assert_eq!(text(&Scheme::GPipe.plan(2, 2), 1), "F0 F1 B0 B1");
        let plan = Scheme::Interleaved { chunks: 2 }.plan(2, 2);
        assert_eq!(text(&plan, 0), "F0 F1 F10 F11 B10 B11 B0 B1");
        assert_eq!(text(&plan, 1), "F0 F1 F10 B10 F11 B11 B0 B1");
        let plan = Scheme::ZeroBubble.plan(2, 3);
        assert_eq!(text(&plan, 0), "F0 F1 B0 W0 F2 B1 W1 B2 W2");
        assert_eq!(text(&plan, 1), "F0 B0 F1 B1 W0 F2 B2 W1 W2");
    }

    #[test]
    fn every_block_stands_once_in_every_schedule() {
        let schemes = [
            Scheme::GPipe,
            Scheme::OneForwardOneBackward,
            Scheme::Interleaved { chunks: 3 },
            Scheme::ZeroBubble,
        ];
        for (scheme, stages, microbatches) in schemes
            .into_iter()
            .flat_map(|s| [(s, 4, 8), (s, 1, 3), (s, 3, 6), (s, 2, 2)])
        {
            let plan = scheme.plan(stages, microbatches);
            for stage in 0..stages as usize {
                let mut blocks = plan.order(stage).to_vec();
                let passes = if scheme == Scheme::ZeroBubble { 3 } else { 2 };
                assert_eq!(blocks.len() as u32, passes * microbatches * plan.chunks());
                blocks.sort();
                blocks.dedup();
                assert_eq!(blocks.len() as u32, passes * microbatches * plan.chunks());
            }
        }
    }
}
