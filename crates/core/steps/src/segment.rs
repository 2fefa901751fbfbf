use model::{CollectiveOp, Ending, Mark, MarkKind, RankNs, RankStep, Segment, SideSample, StageId};

/// Segments one step may have; further collective issues are not kept as boundaries.
const MAX_SEGMENTS: usize = 1024;

/// Turns the marks of one rank into steps whose segments tile its time.
///
/// # Properties
/// Segments of consecutive steps follow each other without gap or overlap as long as no
/// mark was lost; a loss discards the step it fell into.
#[derive(Debug, Default)]
pub struct Segmenter {
    step: Option<RankStep>,
    /// End of the last segment.
    now: RankNs,
    /// The last mark of the loop, as if explicit stages were hooks.
    after: Option<MarkKind>,
    /// The last mark that was not about a named stage: what a named stage is part of.
    context: Option<MarkKind>,
    /// Whether that mark came from an explicit context.
    after_explicit: bool,
    backward_open: bool,
    optimizer_open: bool,
    named_open: Option<StageId>,
    step_open: bool,
    issues: Vec<(RankNs, CollectiveOp, u32)>,
    data_begins: u16,
    broken: bool,
}

impl Segmenter {
    /// Takes the next mark; returns the step that it completes.
    ///
    /// `stage` is the job-wide id behind `mark.code` where the kind has one.
    pub fn push(&mut self, mark: &Mark, stage: StageId) -> Option<RankStep> {
        match mark.kind {
            MarkKind::SideSample | MarkKind::SideLost => {
                let seconds = (mark.kind == MarkKind::SideSample)
                    .then(|| mark.args.first().map_or(0.0, |ns| *ns as f64 * 1e-9));
                if let Some(step) = &mut self.step {
                    step.side.push(SideSample { channel: stage, seconds });
                }
                None
            }
            MarkKind::CollectiveIssue => {
                self.issue(mark);
                None
            }
            _ if !mark.on_loop_thread => None,
            _ => self.push_loop_mark(mark, stage),
        }
    }

    /// Forgets the current step: marks were lost.
    pub fn lose(&mut self) {
        self.broken = true;
        self.issues.clear();
    }

    /// Ends the current step at its last mark, as incomplete.
    pub fn finish(&mut self) -> Option<RankStep> {
        let step = self.step.take()?;
        (!self.broken && !step.segments.is_empty()).then_some(step)
    }

    fn issue(&mut self, mark: &Mark) {
        // A collective of another thread marks progress of the loop only while the loop
        // stands inside the backward pass, where autograd runs threads of its own.
        if self.step.is_some() && (mark.on_loop_thread || self.backward_open) {
            let group = mark.args.first().map_or(0, |group| *group as u32);
            self.issues.push((mark.at, CollectiveOp(mark.code), group));
        }
    }

    fn push_loop_mark(&mut self, mark: &Mark, stage: StageId) -> Option<RankStep> {
        let explicit = matches!(
            mark.kind,
            MarkKind::StageBegin
                | MarkKind::StageEnd
                | MarkKind::StepBegin
                | MarkKind::StepEnd
        );
        let kind = as_hook(mark.kind, stage);
        let completed = match &self.step {
            Some(step) if step.step == mark.step => None,
            _ => self.turn(mark, kind, explicit),
        };
        if completed.is_none() {
            self.close_segment(mark.at, kind, stage, explicit);
        }
        self.note(kind, stage, explicit);
        completed
    }

    /// Ends the current step at `mark` and begins the next there.
    fn turn(&mut self, mark: &Mark, kind: MarkKind, explicit: bool) -> Option<RankStep> {
        let mut finished = None;
        if self.step.is_some() {
            self.close_segment(mark.at, kind, StageId::OTHER, explicit);
            finished = self.step.take().filter(|_| !self.broken).map(|mut step| {
                step.complete = step.step.wrapping_add(1) == mark.step;
                step
            });
        }
        self.broken = false;
        self.now = self.now.max(mark.at);
        self.data_begins = 0;
        self.step = Some(RankStep {
            step: mark.step,
            start: self.now,
            segments: Vec::new(),
            micro_steps: 0,
            read_ahead: 0,
            side: Vec::new(),
            overlap_s: 0.0,
            complete: false,
        });
        if finished.is_none() {
            // The first step of all, or the first after a loss: nothing precedes it.
            self.after = None;
        }
        finished
    }

    fn close_segment(&mut self, at: RankNs, kind: MarkKind, stage: StageId, explicit: bool) {
        let Some(after) = self.after else {
            self.now = self.now.max(at);
            self.issues.clear();
            return;
        };
        let charged = self.stage_until(kind, stage, explicit);
        let Some(step) = &mut self.step else { return };
        for (at, op, group) in self.issues.drain(..) {
            if step.segments.len() < MAX_SEGMENTS {
                self.now = self.now.max(at);
                let ending = Ending::Issue { op, group };
                step.segments.push(Segment { stage: charged, after, ending, end: self.now });
            }
        }
        self.now = self.now.max(at);
        let ending = Ending::Mark(kind);
        if step.segments.len() >= 2 * MAX_SEGMENTS {
            // A loop this fine is kept as one lump, so that memory stays bounded.
            if let Some(last) = step.segments.last_mut() {
                (last.end, last.ending) = (self.now, ending);
            }
        } else {
            step.segments.push(Segment { stage: charged, after, ending, end: self.now });
        }
    }

    /// The stage of the time between the last mark and one of `kind`.
    fn stage_until(&self, kind: MarkKind, stage: StageId, explicit: bool) -> StageId {
        if let Some(open) = self.named_open {
            return open;
        }
        if kind == MarkKind::StageEnd {
            return stage;
        }
        if self.after_explicit && explicit && !is_end(kind) {
            return if self.step_open { StageId::OTHER } else { StageId::CALLBACKS };
        }
        match kind {
            MarkKind::DataEnd | MarkKind::DataStop => StageId::DATA,
            MarkKind::ForwardEnd => StageId::FORWARD,
            MarkKind::BackwardEnd => StageId::BACKWARD,
            MarkKind::OptimizerEnd => StageId::OPTIMIZER,
            _ if self.backward_open => StageId::BACKWARD,
            MarkKind::BackwardBegin => match self.context {
                Some(MarkKind::ForwardEnd) => StageId::OTHER,
                _ => StageId::FORWARD,
            },
            _ if self.optimizer_open => StageId::OPTIMIZER,
            MarkKind::ForwardBegin => match self.context {
                Some(MarkKind::OptimizerEnd) if self.data_begins == 0 => StageId::DATA_GAP,
                _ => StageId::FORWARD,
            },
            MarkKind::StageBegin | MarkKind::StepEnd => match self.context {
                Some(MarkKind::DataEnd | MarkKind::ForwardBegin) => StageId::FORWARD,
                Some(MarkKind::ForwardEnd | MarkKind::StepBegin) => StageId::OTHER,
                _ => StageId::CALLBACKS,
            },
            _ => StageId::CALLBACKS,
        }
    }

    fn note(&mut self, kind: MarkKind, stage: StageId, explicit: bool) {
        match kind {
            MarkKind::BackwardBegin => self.backward_open = true,
            MarkKind::BackwardEnd => self.backward_open = false,
            MarkKind::OptimizerBegin => self.optimizer_open = true,
            MarkKind::OptimizerEnd => self.optimizer_open = false,
            MarkKind::StageBegin => self.named_open = Some(stage),
            MarkKind::StageEnd => self.named_open = None,
            MarkKind::StepBegin => self.step_open = true,
            MarkKind::StepEnd => self.step_open = false,
            _ => {}
        }
        if let Some(step) = &mut self.step {
            if kind == MarkKind::DataBegin {
                self.data_begins += 1;
                if step.micro_steps == 0 && self.data_begins > 1 {
                    step.read_ahead += 1;
                }
            }
            if kind == MarkKind::BackwardEnd {
                step.micro_steps = step.micro_steps.saturating_add(1);
            }
        }
        self.after = Some(kind);
        self.after_explicit = explicit;
        if !matches!(kind, MarkKind::StageBegin | MarkKind::StageEnd) {
            self.context = Some(kind);
        }
    }
}

/// An explicit stage with a built-in name says what the hook of that stage says.
fn as_hook(kind: MarkKind, stage: StageId) -> MarkKind {
    match (kind, stage) {
        (MarkKind::StageBegin, StageId::DATA) => MarkKind::DataBegin,
        (MarkKind::StageEnd, StageId::DATA) => MarkKind::DataEnd,
        (MarkKind::StageBegin, StageId::FORWARD) => MarkKind::ForwardBegin,
        (MarkKind::StageEnd, StageId::FORWARD) => MarkKind::ForwardEnd,
        (MarkKind::StageBegin, StageId::BACKWARD) => MarkKind::BackwardBegin,
        (MarkKind::StageEnd, StageId::BACKWARD) => MarkKind::BackwardEnd,
        (MarkKind::StageBegin, StageId::OPTIMIZER) => MarkKind::OptimizerBegin,
        (MarkKind::StageEnd, StageId::OPTIMIZER) => MarkKind::OptimizerEnd,
        _ => kind,
    }
}

fn is_end(kind: MarkKind) -> bool {
    matches!(
        kind,
        MarkKind::DataEnd
            | MarkKind::DataStop
            | MarkKind::ForwardEnd
            | MarkKind::BackwardEnd
            | MarkKind::OptimizerEnd
            | MarkKind::StageEnd
    )
}
