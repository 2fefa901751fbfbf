use model::{
    CollectiveIssue, CollectiveNumber, CollectiveOp, Ending, Event, Mark, MarkKind, RankNs,
    RankStep, Segment, SideSample, StageId,
};

/// Segments one step may have; further collective issues are not kept as boundaries.
const MAX_SEGMENTS: usize = 1024;
/// Side samples of one step that are kept; a loop without steps takes them for ever.
const MAX_SIDE_SAMPLES: usize = 1024;

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
    broken: bool,
}

impl Segmenter {
    /// Takes the next mark; returns the step that it completes.
    ///
    /// `stage` is the job-wide id behind the name that the event gives, where it gives one.
    pub fn push(&mut self, mark: &Mark, stage: StageId) -> Option<RankStep> {
        match &mark.event {
            Event::SideSample { nanoseconds, .. } => {
                self.side(stage, Some(*nanoseconds as f64 * 1e-9));
                None
            }
            Event::SideLost { .. } => {
                self.side(stage, None);
                None
            }
            Event::CollectiveIssue(issue) => {
                self.issue(mark, issue);
                None
            }
            // Blocks lie inside stages, and so do read-backs and what a profiler costs; groups are
            // made before the first step; what devices say is on another clock.
            Event::BlockBegin(_)
            | Event::BlockEnd(_)
            | Event::ProfilerBegin
            | Event::ProfilerEnd
            | Event::InitBegin { .. }
            | Event::InitEnd { .. }
            | Event::DeviceTime(_)
            | Event::ReadBackBegin
            | Event::ReadBackEnd { .. } => None,
            _ if !mark.on_loop_thread => None,
            _ => self.push_loop_mark(mark, stage),
        }
    }

    /// Forgets the current step: marks were lost.
    pub fn lose(&mut self) {
        self.broken = true;
        // Where the segment they cut began is lost.
        self.issues.clear();
    }

    /// Ends the current step at its last mark, as incomplete.
    pub fn finish(&mut self) -> Option<RankStep> {
        let step = self.step.take()?;
        (!self.broken && !step.segments.is_empty()).then_some(step)
    }

    fn side(&mut self, channel: StageId, seconds: Option<f64>) {
        let step = self.step.as_mut();
        if let Some(step) = step.filter(|step| step.side.len() < MAX_SIDE_SAMPLES) {
            step.side.push(SideSample { channel, seconds });
        }
    }

    fn issue(&mut self, mark: &Mark, issue: &CollectiveIssue) {
        // A collective of another thread marks progress of the loop only while the loop
        // stands inside the backward pass, where autograd runs threads of its own.
        let counts = mark.on_loop_thread || self.backward_open;
        let Some(step) = self.step.as_mut().filter(|_| counts) else {
            return;
        };
        let CollectiveIssue {
            group,
            op_id,
            number,
            ..
        } = *issue;
        // Those that a Flight Recorder tells have no id. They are read some steps later, many at a time.
        if number > 0 && op_id > 0 {
            let first = CollectiveNumber { group, number };
            step.first_collective.get_or_insert(first);
        }
        if self.issues.len() < MAX_SEGMENTS {
            self.issues.push((mark.at, issue.op, group));
        }
    }

    fn push_loop_mark(&mut self, mark: &Mark, stage: StageId) -> Option<RankStep> {
        let kind = mark.kind();
        let explicit = matches!(
            kind,
            MarkKind::StageBegin | MarkKind::StageEnd | MarkKind::StepBegin | MarkKind::StepEnd
        );
        let kind = as_hook(kind, stage);
        let completed = match &self.step {
            Some(step) if step.step == mark.step => None,
            _ => self.turn(mark, kind, explicit),
        };
        // Where the mark began a step, `turn` has closed the last segment of the one before.
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
                // A number that is left out means that marks in between were lost.
                step.complete = step.step.wrapping_add(1) == mark.step;
                step
            });
        }
        self.broken = false;
        // A mark may be older than the one before: segments must not run backwards.
        self.now = self.now.max(mark.at);
        self.step = Some(RankStep {
            step: mark.step,
            start: self.now,
            segments: Vec::new(),
            micro_steps: 0,
            batches: 0,
            first_collective: None,
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
                step.segments.push(Segment {
                    stage: charged,
                    after,
                    ending,
                    end: self.now,
                });
            }
        }
        self.now = self.now.max(at);
        let ending = Ending::Mark(kind);
        // Issues stop at half of that, so that the marks of a stage still find room.
        if step.segments.len() >= 2 * MAX_SEGMENTS {
            // A loop this fine is kept as one lump, so that memory stays bounded.
            if let Some(last) = step.segments.last_mut() {
                (last.end, last.ending) = (self.now, ending);
            }
        } else {
            step.segments.push(Segment {
                stage: charged,
                after,
                ending,
                end: self.now,
            });
        }
    }

    /// The stage of the time between the last mark and one of `kind`.
    fn stage_until(&self, kind: MarkKind, stage: StageId, explicit: bool) -> StageId {
        // What the user has named keeps its name, whatever hooks see inside.
        if let Some(open) = self.named_open {
            return open;
        }
        if kind == MarkKind::StageEnd {
            return stage;
        }
        if self.after_explicit && explicit && !kind.ends_stage() {
            return if self.step_open {
                StageId::OTHER
            } else {
                StageId::CALLBACKS
            };
        }
        if let Some(ended) = kind.stage().filter(|_| kind.ends_stage()) {
            return ended;
        }
        match kind {
            _ if self.backward_open => StageId::BACKWARD,
            // The loss lies behind forward marks; where there are none, it is part of forward.
            MarkKind::BackwardBegin => match self.context {
                Some(MarkKind::ForwardEnd) => StageId::OTHER,
                _ => StageId::FORWARD,
            },
            _ if self.optimizer_open => StageId::OPTIMIZER,
            MarkKind::ForwardBegin => match self.context {
                Some(MarkKind::OptimizerEnd) if self.read_no_batch() => StageId::DATA_GAP,
                // The gradients of several batches are accumulated.
                Some(MarkKind::BackwardEnd) => StageId::DATA_GAP,
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

    fn read_no_batch(&self) -> bool {
        self.step.as_ref().is_none_or(|step| step.batches == 0)
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
                step.batches = step.batches.saturating_add(1);
            }
            if kind == MarkKind::BackwardEnd {
                step.micro_steps = step.micro_steps.saturating_add(1);
            }
        }
        self.after = Some(kind);
        self.after_explicit = explicit;
        // A named stage may stand anywhere: it does not say how far the loop is in its step.
        if !matches!(kind, MarkKind::StageBegin | MarkKind::StageEnd) {
            self.context = Some(kind);
        }
    }
}

/// An explicit stage with a built-in name says what the hook of that stage says.
fn as_hook(kind: MarkKind, stage: StageId) -> MarkKind {
    match (kind, stage.hook_marks()) {
        (MarkKind::StageBegin, Some([begin, _])) => begin,
        (MarkKind::StageEnd, Some([_, end])) => end,
        _ => kind,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testkit::{marks, steps};

    /// Stage and milliseconds of each segment of a step.
    fn parts(step: &RankStep) -> Vec<(u16, f64)> {
        let mut from = step.start;
        let part = |segment: &Segment| {
            let ms = segment.end.seconds_since(from) * 1e3;
            from = segment.end;
            (segment.stage.0, (ms * 10.0).round() / 10.0)
        };
        step.segments.iter().map(part).collect()
    }

    const DATA: u16 = StageId::DATA.0;
    const FWD: u16 = StageId::FORWARD.0;
    const BWD: u16 = StageId::BACKWARD.0;
    const CB: u16 = StageId::CALLBACKS.0;
    const OPT: u16 = StageId::OPTIMIZER.0;
    const OTHER: u16 = StageId::OTHER.0;
    const GAP: u16 = StageId::DATA_GAP.0;

    #[test]
    fn a_step_begins_with_a_collective_that_was_counted_as_it_was_issued() {
        let first = |is_live| {
            let mut segmenter = Segmenter::default();
            let steps = marks("D0 D1 B0 K:7 K:8 B1 O0 O1 D0").into_iter();
            let steps = steps.filter_map(|(mut mark, stage)| {
                if let Event::CollectiveIssue(issue) = &mut mark.event {
                    issue.op_id *= u64::from(is_live);
                }
                segmenter.push(&mark, stage)
            });
            let firsts: Vec<_> = steps.map(|step| step.first_collective).collect();
            firsts
        };
        let (group, number) = (0, 7);
        assert_eq!(first(true), [Some(CollectiveNumber { group, number })]);
        // As a Flight Recorder has them.
        assert_eq!(first(false), [None]);
    }

    #[test]
    fn a_plain_step_is_tiled_by_its_stages() {
        let steps = steps("D0 D1+5 B0+7 B1+9 O0 O1+3 D0+2");
        assert_eq!(
            parts(&steps[0]),
            [
                (DATA, 5.0),
                (FWD, 7.0),
                (BWD, 9.0),
                (CB, 1.0),
                (OPT, 3.0),
                (CB, 2.0)
            ]
        );
        assert!(steps[0].complete);
        assert_eq!(steps[0].micro_steps, 1);
    }

    #[test]
    fn time_between_forward_and_backward_is_the_residual_where_the_end_is_known() {
        let steps = steps("D0 D1 F0 F1+8 B0+50 B1 O0 O1 D0");
        assert_eq!(parts(&steps[0])[2..4], [(FWD, 8.0), (OTHER, 50.0)]);
    }

    #[test]
    fn a_collective_splits_the_stage_it_is_issued_in() {
        let steps = steps("D0 D1 B0 K+6 K+2 B1+4 O0 O1 D0");
        let backward = &parts(&steps[0])[2..5];
        assert_eq!(backward, [(BWD, 6.0), (BWD, 2.0), (BWD, 4.0)]);
        assert!(matches!(steps[0].segments[2].ending, Ending::Issue { .. }));
    }

    #[test]
    fn accumulation_keeps_every_micro_step() {
        let steps = steps("D0 D1+2 B0 B1 D0 D1+3 B0 B1 O0 O1 D0");
        let data: Vec<_> = parts(&steps[0])
            .into_iter()
            .filter(|(s, _)| *s == DATA)
            .collect();
        assert_eq!(data, [(DATA, 2.0), (DATA, 3.0)]);
        assert_eq!(steps[0].micro_steps, 2);
        assert_eq!(steps[0].batches, 2);
    }

    #[test]
    fn an_optimizer_that_runs_the_model_keeps_only_its_own_time() {
        let steps = steps("D0 D1 O0+1 F0+2 F1+8 B0+1 B1+16 O1+4 D0");
        assert_eq!(
            parts(&steps[0])[1..],
            [
                (CB, 1.0),
                (OPT, 2.0),
                (FWD, 8.0),
                (OTHER, 1.0),
                (BWD, 16.0),
                (OPT, 4.0),
                (CB, 1.0)
            ]
        );
    }

    #[test]
    fn an_optimizer_inside_backward_keeps_its_own_time() {
        let steps = steps("D0 D1 B0 O0+5 O1+2 O0+5 O1+2 B1+1 D0");
        assert_eq!(
            parts(&steps[0])[2..7],
            [(BWD, 5.0), (OPT, 2.0), (BWD, 5.0), (OPT, 2.0), (BWD, 1.0)]
        );
    }

    #[test]
    fn a_loop_without_loader_has_a_gap_instead() {
        let gaps = |text| {
            let parts = parts(&steps(text)[0]).into_iter();
            parts.filter(|(stage, _)| *stage == GAP).collect::<Vec<_>>()
        };
        let whole = gaps("F0 F1 B0 B1 O0 O1 F0+50 F1 B0 B1 O0 O1 F0");
        assert_eq!(whole, [(GAP, 50.0)]);
        // Of three batches the gradients are accumulated; the first two are not reduced.
        let of_three = gaps("F0 B0 B1 F0+20 B0 B1 F0+30 F1 B0 B1 O0 O1 F0+10 B0 B1 O0 O1 F0");
        assert_eq!(of_three, [(GAP, 20.0), (GAP, 30.0), (GAP, 10.0)]);
    }

    #[test]
    fn explicit_stages_with_built_in_names_are_what_the_hooks_record() {
        let hooks = steps("D0 D1+5 F0 F1+8 B0 B1+16 O0 O1+3 D0");
        let named = steps("E0:0 E1:0+5 E0:1 E1:1+8 E0:2 E1:2+16 E0:4 E1:4+3 E0:0");
        let totals = |step: &RankStep, stage| {
            parts(step)
                .iter()
                .filter(|(s, _)| *s == stage)
                .map(|(_, ms)| ms)
                .sum::<f64>()
        };
        for stage in [DATA, BWD, OPT] {
            assert_eq!(totals(&named[0], stage), totals(&hooks[0], stage));
        }
        // Hooks also charge the way from the batch to the model.
        assert_eq!(totals(&named[0], FWD) + 1.0, totals(&hooks[0], FWD));
    }

    #[test]
    fn inside_an_explicit_step_what_no_stage_covers_is_the_residual() {
        let steps = steps("S0 E0:9 E1:9+5 E0:10+7 E1:10+2 S1+3 S0+4 S1");
        assert_eq!(
            parts(&steps[0]),
            [
                (OTHER, 1.0),
                (9, 5.0),
                (OTHER, 7.0),
                (10, 2.0),
                (OTHER, 3.0),
                (CB, 4.0)
            ]
        );
    }

    #[test]
    fn a_named_stage_leaves_its_surroundings_as_they_are() {
        let steps = steps("D0 D1 E0:9+2 E1:9+5 B0+3 B1 O0 O1 D0");
        assert_eq!(parts(&steps[0])[1..4], [(FWD, 2.0), (9, 5.0), (FWD, 3.0)]);
    }

    #[test]
    fn a_loss_discards_the_step_it_fell_into_and_no_other() {
        let mut segmenter = Segmenter::default();
        let mut steps = Vec::new();
        let all = marks("D0 D1 B0 B1 O0 O1 D0 D1 B0 B1 O0 O1 D0 D1 B0 B1 O0 O1 D0");
        for (at, (mark, stage)) in all.iter().enumerate() {
            if at == 8 {
                segmenter.lose();
            }
            steps.extend(segmenter.push(mark, *stage).map(|step| step.step));
        }
        assert_eq!(steps, [0, 2]);
        // The last step, which nothing but the end of the job ends, is no other case.
        for (lost, left) in [(false, Some(0)), (true, None)] {
            let mut segmenter = Segmenter::default();
            for (mark, stage) in &all[..6] {
                segmenter.push(mark, *stage);
            }
            if lost {
                segmenter.lose();
            }
            assert_eq!(segmenter.finish().map(|step| step.step), left);
        }
    }

    #[test]
    fn a_step_that_never_ends_takes_bounded_memory() {
        let mut segmenter = Segmenter::default();
        let begin = marks("D0")[0];
        segmenter.push(&begin.0, begin.1);
        for kind in [MarkKind::CollectiveIssue, MarkKind::SideSample].repeat(5000) {
            segmenter.push(
                &Mark {
                    event: kind.into(),
                    ..begin.0
                },
                StageId::FORWARD_EVENT,
            );
        }
        assert_eq!(segmenter.issues.len(), MAX_SEGMENTS);
        assert_eq!(segmenter.step.unwrap().side.len(), MAX_SIDE_SAMPLES);
    }

    #[test]
    fn marks_of_other_threads_are_not_about_the_loop() {
        let mut segmenter = Segmenter::default();
        let mut steps = Vec::new();
        for (mut mark, stage) in marks("D0 D1 B0 K B1 D0 D1 K O0 O1 D0") {
            // A prefetching thread's batch, and a collective outside backward.
            mark.on_loop_thread = !matches!(mark.at.0 / 1_000_000, 4 | 6..=8);
            steps.extend(segmenter.push(&mark, stage));
        }
        let issues = steps[0].segments.iter();
        let issues = issues
            .filter(|s| matches!(s.ending, Ending::Issue { .. }))
            .count();
        assert_eq!(issues, 1);
        assert_eq!(steps[0].batches, 1);
    }

    proptest! {
        /// Whatever the loop does, its time is charged once and whole.
        #[test]
        fn segments_tile_the_time_of_the_rank(
            words in prop::collection::vec(
                prop::sample::select(vec![
                    "D0", "D1", "DX", "F0", "F1", "B0", "B1", "O0", "O1", "K", "E0:9", "E1:9",
                ]),
                1..200,
            ),
        ) {
            let steps = steps(&words.join(" "));
            for pair in steps.windows(2) {
                if pair[0].complete && pair[0].step + 1 == pair[1].step {
                    let end = pair[0].segments.last().map(|segment| segment.end);
                    prop_assert_eq!(end, Some(pair[1].start));
                }
            }
            for step in &steps {
                let ends: Vec<_> = step.segments.iter().map(|segment| segment.end).collect();
                prop_assert!(ends.is_sorted());
                prop_assert!(ends.first().is_none_or(|first| *first >= step.start));
            }
        }
    }
}
