use model::{CollectiveOp, Ending, MarkKind, RankNs, RankStep, Segment, StageId};

use crate::{NameId, Slice, SliceKind, Trace};

/// Share of a step from which a single range is taken for a frame around the stages.
const FRAME_SHARE: f64 = 0.9;
/// By how much a range may begin before the end of the one that it follows: begin and length of a slice
/// are rounded, by old profilers to microseconds.
const ROUNDED_NS: i64 = 1000;
/// Collectives of one step that are kept as boundaries, as in a live job.
const MAX_ISSUES: usize = 1024;

/// A stage of a step.
#[derive(Clone, Debug)]
struct StageSpan {
    stage: StageId,
    start_ns: i64,
    end_ns: i64,
}

/// Makes the steps the profiler was told of, with their stages.
///
/// Stages are the outermost named ranges of the training thread; where backward has none, it is
/// where autograd's operators run. Collectives end a segment where they are issued, as in a
/// live job. `origin_ns` is where time begins, `intern` gives a stage its id.
/// # Properties
/// Segments tile a step; a step ends where the next one begins, or at its own end.
pub fn rank_steps(
    trace: &Trace,
    origin_ns: i64,
    mut intern: impl FnMut(&str) -> StageId,
) -> Vec<RankStep> {
    let Some(thread) = trace.loop_track() else {
        return Vec::new();
    };
    let steps: Vec<(u32, &Slice)> = numbered(trace, thread);
    let ranges: Vec<&Slice> = trace
        .slices
        .iter()
        .filter(|slice| {
            slice.kind == SliceKind::Annotation
                && slice.track == thread
                && !is_communication(trace.name(slice))
        })
        .collect();
    let regular = regular_names(trace, &ranges, &steps);
    let backward = backward_ops(trace);
    // Collectives of gradients are issued by threads of autograd, while the training thread waits in backward.
    let mut of_autograd: Vec<u16> = backward.iter().map(|op| op.track).collect();
    of_autograd.sort_unstable();
    of_autograd.dedup();
    let mut issues = issues(trace);
    issues.retain(|it| it.track == thread || of_autograd.binary_search(&it.track).is_ok());
    let mut made = Vec::with_capacity(steps.len());
    for (at, (number, slice)) in steps.iter().enumerate() {
        let next = steps.get(at + 1);
        // Where a step is missing in between, nobody knows when this one ended.
        let follows = next.filter(|(next, _)| *next == number + 1);
        let end_ns = follows.map_or(slice.end_ns, |(_, next)| next.start_ns);
        let inside = within(&ranges, slice.start_ns, end_ns);
        let outermost = outermost(trace, inside, slice, &regular);
        let mut spans: Vec<StageSpan> = outermost
            .into_iter()
            .map(|range| StageSpan {
                stage: intern(&stage_name(trace.name(range))),
                start_ns: range.start_ns,
                end_ns: range.end_ns.min(end_ns),
            })
            .collect();
        add_backward(&mut spans, slice.start_ns, end_ns, &backward);
        made.push(tile(
            *number,
            (slice.start_ns, end_ns),
            &spans,
            &issues,
            |ns| RankNs(u64::try_from(ns - origin_ns).unwrap_or(0)),
        ));
    }
    made
}

/// Steps of a thread with their numbers, ascending; of those with one number the first.
fn numbered(trace: &Trace, thread: u16) -> Vec<(u32, &Slice)> {
    let mut found: Vec<(u32, &Slice)> = Vec::new();
    for slice in &trace.slices {
        if slice.kind != SliceKind::Step || slice.track != thread {
            continue;
        }
        // `ProfilerStep#12`.
        let number = trace
            .name(slice)
            .rsplit('#')
            .next()
            .and_then(|it| it.parse().ok());
        let Some(number) = number else { continue };
        if found
            .last()
            .is_none_or(|(last, before)| *last < number && before.start_ns < slice.start_ns)
        {
            found.push((number, slice));
        }
    }
    found
}

/// Ranges that begin in a time.
fn within<'s, 'a>(ranges: &'s [&'a Slice], from: i64, to: i64) -> &'s [&'a Slice] {
    let first = ranges.partition_point(|range| range.start_ns < from);
    let end = ranges.partition_point(|range| range.start_ns < to);
    &ranges[first..end.max(first)]
}

/// Names that ranges have in most of the steps: others are numbered, or rare.
fn regular_names(trace: &Trace, ranges: &[&Slice], steps: &[(u32, &Slice)]) -> Vec<bool> {
    let largest = ranges.iter().map(|range| range.name.0 as usize + 1).max();
    // Of each name the steps that have it, and the last of them.
    let mut found = vec![(0usize, None); largest.unwrap_or(0)];
    for range in ranges {
        let step = steps.partition_point(|(_, step)| step.start_ns <= range.start_ns);
        let (count, last) = &mut found[range.name.0 as usize];
        // One that comes often in a step is in one step all the same.
        *count += usize::from(*last != Some(step));
        *last = Some(step);
    }
    found
        .into_iter()
        .enumerate()
        .map(|(name, (count, _))| {
            let name = trace.names.text(NameId(name as u32));
            // Built-in stages count however rare they are: hooks mark each of them in a live job.
            count * 2 > steps.len() || (count > 0 && is_built_in(&stage_name(name)))
        })
        .collect()
}

/// The outermost regular ranges, looking into one that only frames the others.
fn outermost<'a>(
    trace: &Trace,
    ranges: &[&'a Slice],
    step: &Slice,
    regular: &[bool],
) -> Vec<&'a Slice> {
    let mut found: Vec<&Slice> = Vec::new();
    for range in ranges {
        // Of ranges that start together the longest stands first, so the outermost is found before
        // those it holds.
        let after = found
            .last()
            .is_none_or(|last| range.start_ns >= last.end_ns - ROUNDED_NS);
        let share = range.duration_ns() as f64 / step.duration_ns().max(1) as f64;
        // A built-in stage may well take nearly all of a step.
        if after
            && regular[range.name.0 as usize]
            && (share <= FRAME_SHARE || is_built_in(&stage_name(trace.name(range))))
        {
            found.push(range);
        }
    }
    found
}

/// What a stage is called whose range has this name.
fn stage_name(range: &str) -> String {
    let bare = range.trim_matches(['#', ' ']);
    let known = [
        ("enumerate(DataLoader)", "data.next_wait"),
        ("DistributedDataParallel.forward", "model.fwd_loss_cpu_wall"),
        (
            "FullyShardedDataParallel.forward",
            "model.fwd_loss_cpu_wall",
        ),
        ("Optimizer.step", "optim.step_cpu_wall"),
    ];
    // By prefix, as PyTorch appends the class: `Optimizer.step#SGD.step`.
    if let Some((_, stage)) = known.iter().find(|(prefix, _)| bare.starts_with(prefix)) {
        return (*stage).to_owned();
    }
    let stage = match bare.to_ascii_lowercase().as_str() {
        "forward" | "fwd" => "model.fwd_loss_cpu_wall",
        "backward" | "bwd" => "model.backward_cpu_wall",
        "optimizer" | "optimizer_step" | "optimizer.step" => "optim.step_cpu_wall",
        _ if bare.starts_with("Optimizer.zero_grad") => "zero_grad",
        _ => bare,
    };
    stage.to_owned()
}

/// Whether a stage is one that hooks record too.
fn is_built_in(stage: &str) -> bool {
    ["data.", "model.", "optim.", "callbacks.", "step."]
        .iter()
        .any(|prefix| stage.starts_with(prefix))
}

/// Ranges around calls of communication are no stages.
fn is_communication(name: &str) -> bool {
    ["nccl:", "gloo:", "c10d::"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || call_of_nccl(name).is_some()
}

/// The operation in the range that NCCL itself puts around a call, `ncclAllReduce`.
fn call_of_nccl(range: &str) -> Option<&str> {
    let op = range.strip_prefix("nccl")?;
    op.starts_with(|c: char| c.is_ascii_uppercase())
        .then_some(op)
}

/// An operator of autograd.
struct BackwardOp {
    start_ns: i64,
    end_ns: i64,
    track: u16,
}

/// Where autograd runs, on whichever thread, by start.
fn backward_ops(trace: &Trace) -> Vec<BackwardOp> {
    // By name, each of which stands in many slices: a trace has millions of these.
    let mut of_autograd: Vec<Option<bool>> = Vec::new();
    let mut found = Vec::new();
    for slice in trace
        .slices
        .iter()
        .filter(|slice| slice.kind == SliceKind::Op)
    {
        let at = slice.name.0 as usize;
        if at >= of_autograd.len() {
            of_autograd.resize(at + 1, None);
        }
        if *of_autograd[at].get_or_insert_with(|| {
            trace
                .name(slice)
                .starts_with("autograd::engine::evaluate_function")
        }) {
            found.push(BackwardOp {
                start_ns: slice.start_ns,
                end_ns: slice.end_ns,
                track: slice.track,
            });
        }
    }
    found
}

/// Adds backward between the other stages of a step, if none of them is it.
fn add_backward(spans: &mut Vec<StageSpan>, from: i64, to: i64, ops: &[BackwardOp]) {
    if spans.iter().any(|span| span.stage == StageId::BACKWARD) {
        return;
    }
    let first = ops.partition_point(|op| op.start_ns < from);
    let mut found: Vec<StageSpan> = Vec::new();
    for op in ops[first..].iter().take_while(|op| op.start_ns < to) {
        let (start_ns, mut end_ns) = (op.start_ns, op.end_ns.min(to));
        if spans
            .iter()
            .any(|it| it.start_ns <= start_ns && start_ns < it.end_ns)
        {
            continue;
        }
        let next = spans
            .iter()
            .map(|span| span.start_ns)
            .filter(|start| *start > start_ns);
        end_ns = next.min().map_or(end_ns, |next| end_ns.min(next));
        // One backward with what lies before, unless another stage is between.
        match found.last_mut().filter(|last| {
            !spans
                .iter()
                .any(|s| s.start_ns >= last.end_ns && s.end_ns <= start_ns)
        }) {
            Some(last) => last.end_ns = last.end_ns.max(end_ns),
            None => found.push(StageSpan {
                stage: StageId::BACKWARD,
                start_ns,
                end_ns,
            }),
        }
    }
    spans.extend(found);
    spans.sort_by_key(|span| span.start_ns);
}

/// A collective as the host issues it.
struct CollectiveCall {
    at_ns: i64,
    track: u16,
    op: CollectiveOp,
}

/// Collectives as the host issues them, by time: PyTorch's own calls where they were recorded,
/// else the ranges of its backends.
fn issues(trace: &Trace) -> Vec<CollectiveCall> {
    type OpOf = fn(&str) -> Option<&str>;
    // Of one kind only: a collective would be issued twice.
    let kinds: [(SliceKind, OpOf); 3] = [
        (SliceKind::Op, |name| name.strip_prefix("c10d::")),
        (SliceKind::Annotation, |name| name.strip_prefix("nccl:")),
        (SliceKind::Annotation, call_of_nccl),
    ];
    let mut issues = kinds
        .into_iter()
        .map(|(kind, op_of)| issues_of(trace, kind, op_of));
    issues.find(|issues| !issues.is_empty()).unwrap_or_default()
}

fn issues_of(
    trace: &Trace,
    kind: SliceKind,
    op_of: impl Fn(&str) -> Option<&str>,
) -> Vec<CollectiveCall> {
    let calls = trace.slices.iter().filter(|slice| slice.kind == kind);
    let issues = calls.filter_map(|slice| {
        // PyTorch's own calls in place end in `_`.
        let op = op_of(trace.name(slice))?.trim_end_matches('_');
        Some(CollectiveCall {
            at_ns: slice.start_ns,
            track: slice.track,
            op: CollectiveOp::from_name(op),
        })
    });
    issues.collect()
}

fn tile(
    number: u32,
    (start_ns, end_ns): (i64, i64),
    spans: &[StageSpan],
    issues: &[CollectiveCall],
    instant: impl Fn(i64) -> RankNs,
) -> RankStep {
    let mut segments: Vec<Segment> = Vec::new();
    let mut after = MarkKind::StepBegin;
    let mut now_ns = start_ns;
    let mut next_issue = issues.partition_point(|issue| issue.at_ns < start_ns);
    let mut close = |until_ns: i64, stage: StageId, kind: MarkKind, after: MarkKind| {
        while let Some(issue) = issues.get(next_issue).filter(|i| i.at_ns < until_ns) {
            next_issue += 1;
            if segments.len() < MAX_ISSUES {
                let ending = Ending::Issue {
                    op: issue.op,
                    group: 0,
                };
                // Segments tile a step: none ends before the one before it.
                let end = instant(issue.at_ns.max(now_ns));
                segments.push(Segment {
                    stage,
                    after,
                    ending,
                    end,
                });
            }
        }
        now_ns = now_ns.max(until_ns);
        let end = instant(now_ns);
        segments.push(Segment {
            stage,
            after,
            ending: Ending::Mark(kind),
            end,
        });
    };
    let (mut batches, mut micro_steps) = (0u16, 0u16);
    for span in spans {
        let [begin, finish] = marks_of(span.stage);
        close(span.start_ns, StageId::OTHER, begin, after);
        close(span.end_ns, span.stage, finish, begin);
        after = finish;
        batches = batches.saturating_add(u16::from(span.stage == StageId::DATA));
        micro_steps = micro_steps.saturating_add(u16::from(span.stage == StageId::BACKWARD));
    }
    close(end_ns, StageId::OTHER, MarkKind::StepEnd, after);
    RankStep {
        step: number,
        start: instant(start_ns),
        segments,
        micro_steps,
        batches,
        first_collective: None,
        side: Vec::new(),
        // Stages were taken one behind the other: none claims the time of another.
        overlap_s: 0.0,
        complete: true,
    }
}

/// The marks a live job has around a stage.
fn marks_of(stage: StageId) -> [MarkKind; 2] {
    stage
        .hook_marks()
        .unwrap_or([MarkKind::StageBegin, MarkKind::StageEnd])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Track;

    /// Adds a slice on a track, by its place among them.
    fn add(trace: &mut Trace, kind: SliceKind, name: &str, on: u16, [start_ns, end_ns]: [i64; 2]) {
        let name = trace.names.intern(name);
        trace.slices.push(Slice {
            start_ns,
            end_ns,
            name,
            detail: 0,
            track: on,
            kind,
        });
    }

    #[test]
    fn a_stage_that_begins_a_nanosecond_before_the_end_of_the_last_one_follows_it() {
        let mut trace = Trace {
            tracks: vec![Track::default()],
            ..Trace::default()
        };
        let mut add = |kind, name: &str, start_ns, end_ns| {
            add(&mut trace, kind, name, 0, [start_ns, end_ns]);
        };
        for step in 0..4 {
            let at_ns = step * 100_000;
            add(
                SliceKind::Step,
                &format!("ProfilerStep#{step}"),
                at_ns,
                at_ns + 100_000,
            );
            add(SliceKind::Annotation, "read", at_ns, at_ns + 40_001);
            add(
                SliceKind::Annotation,
                "inside",
                at_ns + 10_000,
                at_ns + 20_000,
            );
            add(
                SliceKind::Annotation,
                "train",
                at_ns + 40_000,
                at_ns + 90_000,
            );
        }
        trace.settle(0);
        let mut stages = Vec::new();
        rank_steps(&trace, 0, |name| {
            stages.push(name.to_owned());
            StageId::OTHER
        });
        assert_eq!(stages[..2], ["read", "train"]);
    }

    #[test]
    fn what_threads_of_autograd_issue_counts_whatever_the_range_around_backward_is_called() {
        let mut trace = Trace {
            tracks: vec![Track::default(); 3],
            ..Trace::default()
        };
        let mut add = |kind, name: &str, track, times| add(&mut trace, kind, name, track, times);
        for step in 0..4 {
            let [at, end] = [step * 100, step * 100 + 100];
            add(
                SliceKind::Step,
                &format!("ProfilerStep#{step}"),
                0,
                [at, end],
            );
            add(SliceKind::Annotation, "loss_pass", 0, [at + 10, at + 80]);
            let evaluates = "autograd::engine::evaluate_function: AddmmBackward0";
            add(SliceKind::Op, evaluates, 1, [at + 20, at + 40]);
            add(
                SliceKind::Annotation,
                "ncclAllReduce",
                1,
                [at + 30, at + 31],
            );
            // A thread that has nothing to do with the loop.
            add(
                SliceKind::Annotation,
                "ncclBroadcast",
                2,
                [at + 50, at + 51],
            );
            add(
                SliceKind::Annotation,
                "ncclAllGather",
                0,
                [at + 90, at + 91],
            );
        }
        trace.settle(0);
        let mut stages = Vec::new();
        let steps = rank_steps(&trace, 0, |name| {
            stages.push(name.to_owned());
            StageId::OTHER
        });
        let issued = steps[1].segments.iter().filter_map(|it| match it.ending {
            Ending::Issue { op, .. } => Some(op.name().to_owned()),
            Ending::Mark(_) => None,
        });
        assert_eq!(issued.collect::<Vec<_>>(), ["ALLREDUCE", "ALLGATHER"]);
        stages.dedup();
        assert_eq!(stages, ["loss_pass"]);
    }

    #[test]
    fn a_name_that_comes_often_in_one_step_is_not_in_most_of_them() {
        let mut trace = Trace {
            tracks: vec![Track::default()],
            ..Trace::default()
        };
        let mut add = |kind, name: &str, start_ns| {
            let takes_ns = if kind == SliceKind::Step { 100 } else { 5 };
            add(&mut trace, kind, name, 0, [start_ns, start_ns + takes_ns]);
        };
        for step in 0..4 {
            add(SliceKind::Step, &format!("ProfilerStep#{step}"), step * 100);
            add(SliceKind::Annotation, "mine", step * 100 + 10);
        }
        for at in 0..6 {
            add(SliceKind::Annotation, "save", 250 + at * 6);
        }
        trace.settle(0);
        let mut stages = Vec::new();
        let steps = rank_steps(&trace, 0, |name| {
            stages.push(name.to_owned());
            StageId::OTHER
        });
        assert_eq!(steps.len(), 4);
        stages.dedup();
        assert_eq!(stages, ["mine"]);
    }
}
