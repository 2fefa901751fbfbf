use std::collections::BTreeMap;

use model::{Dictionary, FunctionClass, FunctionId, Pattern};
use pattern::{
    FunctionCall, Overlap, PatternSettings, Resource, UtilisationSeries, critical_shares, summarise,
};
use rustc_hash::FxHashMap;

use crate::{NameId, Slice, SliceKind, Trace};

/// What the functions of one rank cost.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Length of what was analysed, in seconds.
    pub span_s: f64,
    /// A pattern for each function.
    pub patterns: BTreeMap<FunctionId, Pattern>,
    /// What stands behind the ids.
    pub dictionary: Dictionary,
    /// Share of the critical path of each class; what is missing to 1 is idle.
    pub shares: BTreeMap<FunctionClass, f64>,
    /// Share of the time in which a collective runs, exposed or not.
    pub communication_share: f64,
    /// Whether anything ran on a device.
    pub has_device: bool,
}

/// Summarises the functions of a rank.
///
/// Of the host only the training thread counts, and there the innermost Python function; where no
/// stacks were recorded the innermost named range, and in a job without devices the operator.
/// # Complexity
/// O(n log n) in slices.
/// # Source
/// PerfTracker (2025), docs/math/pattern.md; what stands for Python where it was not recorded
/// is our choice.
pub fn profile(trace: &Trace, settings: &PatternSettings) -> Profile {
    let Some((from_ns, to_ns)) = trace.span_ns() else {
        return Profile::default();
    };
    let (events, dictionary) = executions(trace);
    let has_device = trace.has_device();
    let series = series(trace);
    let patterns = summarise(
        &events,
        (from_ns, to_ns),
        |event| {
            resources(event.class)
                .iter()
                .find_map(|resource| series.get(resource))
        },
        settings,
    );
    let collectives: Vec<FunctionCall> = events
        .into_iter()
        .filter(|event| event.class == FunctionClass::Collective)
        .collect();
    // Split: while two collectives overlap their time counts once, so that the sum is the time in
    // which any runs.
    let communication = critical_shares(&collectives, (from_ns, to_ns), Overlap::Split);
    Profile::of_patterns(
        patterns,
        dictionary,
        (to_ns - from_ns) as f64 * 1e-9,
        communication.iter().sum(),
        has_device,
    )
}

/// When which functions of a rank ran: what [`profile`] weighs, not in order.
pub fn executions(trace: &Trace) -> (Vec<FunctionCall>, Dictionary) {
    let mut gatherer = Gatherer::new(trace);
    gatherer.device();
    gatherer.host();
    (gatherer.events, gatherer.dictionary)
}

impl Profile {
    /// A profile whose patterns were made elsewhere.
    pub fn of_patterns(
        patterns: BTreeMap<FunctionId, Pattern>,
        dictionary: Dictionary,
        span_s: f64,
        communication_share: f64,
        has_device: bool,
    ) -> Self {
        let mut shares: BTreeMap<FunctionClass, f64> = BTreeMap::new();
        for (id, pattern) in &patterns {
            if let Some(function) = dictionary.get(*id) {
                *shares.entry(function.class).or_default() += f64::from(pattern.beta);
            }
        }
        Self {
            span_s,
            patterns,
            dictionary,
            shares,
            communication_share,
            has_device,
        }
    }
}

struct Gatherer<'a> {
    trace: &'a Trace,
    events: Vec<FunctionCall>,
    dictionary: Dictionary,
    has_device: bool,
    /// Ids of functions without a caller.
    // A hash is quick for millions of slices; it is looked up and never walked.
    known: FxHashMap<(FunctionClass, NameId), FunctionId>,
}

impl<'a> Gatherer<'a> {
    fn new(trace: &'a Trace) -> Self {
        let has_device = trace.has_device();
        let known = FxHashMap::default();
        Self {
            trace,
            events: Vec::new(),
            dictionary: Dictionary::default(),
            has_device,
            known,
        }
    }

    /// A function that is known by its name alone.
    fn plain(&mut self, class: FunctionClass, name: NameId) -> FunctionId {
        *self.known.entry((class, name)).or_insert_with(|| {
            let text = self.trace.names.text(name);
            // Arguments of a kernel do not make another function of it.
            let text = match class {
                FunctionClass::Collective => text.split('(').next().unwrap_or(text),
                // Nor does the number of its turn.
                FunctionClass::OtherCpu => without_number(text),
                _ => text,
            };
            self.dictionary.intern(class, text, None)
        })
    }

    fn device(&mut self) {
        for slice in &self.trace.slices {
            let class = match slice.kind {
                SliceKind::Kernel => FunctionClass::GpuCompute,
                SliceKind::Memory => FunctionClass::Memory,
                SliceKind::Collective => FunctionClass::Collective,
                _ => continue,
            };
            let function = self.plain(class, slice.name);
            let Slice {
                start_ns, end_ns, ..
            } = *slice;
            self.events.push(FunctionCall {
                start_ns,
                end_ns,
                function,
                class,
            });
        }
    }

    /// The innermost function of the training thread at each time.
    fn host(&mut self) {
        let trace = self.trace;
        let Some(thread) = trace.loop_track() else {
            return;
        };
        let stacks = self.python_stacks(thread);
        let mut open: Vec<usize> = Vec::new();
        let mut now = i64::MIN;
        for (at, slice) in trace.slices.iter().enumerate() {
            // A collective that this thread is in was taken with the device's work.
            if slice.track != thread
                || slice.kind.is_device()
                || slice.kind == SliceKind::Collective
            {
                continue;
            }
            self.pass(&mut open, &mut now, slice.start_ns, &stacks);
            open.push(at);
        }
        self.pass(&mut open, &mut now, i64::MAX, &stacks);
    }

    /// Gives the time until `until` to the innermost range. Ranges need not nest: the one that
    /// started last counts, and one that has ended is forgotten when it would be its turn.
    fn pass(
        &mut self,
        open: &mut Vec<usize>,
        now: &mut i64,
        until: i64,
        stacks: &FxHashMap<usize, FunctionId>,
    ) {
        while let Some(innermost) = open.last() {
            let end = self.trace.slices[*innermost].end_ns;
            let to = end.min(until);
            if to > *now {
                self.give(open, *now, to, stacks);
            }
            *now = (*now).max(to);
            if end > until {
                return;
            }
            open.pop();
        }
        *now = (*now).max(until);
    }

    fn give(
        &mut self,
        open: &[usize],
        start_ns: i64,
        end_ns: i64,
        stacks: &FxHashMap<usize, FunctionId>,
    ) {
        let slices = &self.trace.slices;
        let Some(innermost) = open.last().map(|at| slices[*at]) else {
            return;
        };
        let computes = !self.has_device && is_compute(self.trace.name(&innermost));
        let (class, function) = if innermost.kind == SliceKind::Op && computes {
            let class = FunctionClass::CpuCompute;
            (class, self.plain(class, innermost.name))
        } else if let Some(function) = open.iter().rev().find_map(|at| stacks.get(at)) {
            (FunctionClass::Python, *function)
        } else {
            let range = open
                .iter()
                .rev()
                .map(|at| &slices[*at])
                .find(|slice| matches!(slice.kind, SliceKind::Annotation | SliceKind::Step));
            let name = range.map_or(innermost.name, |range| range.name);
            let class = FunctionClass::OtherCpu;
            let is_step = self.trace.names.text(name).starts_with("ProfilerStep#");
            let function = if is_step {
                // One function, whatever the number of the step.
                self.dictionary.intern(class, OUTSIDE, None)
            } else {
                self.plain(class, name)
            };
            (class, function)
        };
        match self.events.last_mut() {
            // What it called in between has no name of its own: it is one execution.
            Some(last) if last.function == function && last.end_ns == start_ns => {
                last.end_ns = end_ns;
            }
            _ => self.events.push(FunctionCall {
                start_ns,
                end_ns,
                function,
                class,
            }),
        }
    }

    /// The function of each Python slice of a thread: its name and those of its callers.
    fn python_stacks(&mut self, thread: u16) -> FxHashMap<usize, FunctionId> {
        let mut by_call: FxHashMap<u32, FunctionId> = FxHashMap::default();
        let mut by_name: FxHashMap<(Option<FunctionId>, NameId), FunctionId> = FxHashMap::default();
        let mut stacks = FxHashMap::default();
        for (at, slice) in self.trace.slices.iter().enumerate() {
            if slice.kind != SliceKind::Python || slice.track != thread {
                continue;
            }
            let frame = self.trace.frames.get(slice.detail as usize);
            // Callers begin before what they call, so they are known by now.
            let caller = frame.and_then(|frame| by_call.get(&frame.parent?).copied());
            let name = self.trace.names.text(slice.name);
            let function = match caller.filter(|_| name.starts_with(OWN_FILES)) {
                // What laggard does on the way is part of what called it.
                Some(caller) => caller,
                None => *by_name.entry((caller, slice.name)).or_insert_with(|| {
                    let name = name.replace(OWN_ENGINE, ENGINE);
                    self.dictionary.intern(FunctionClass::Python, &name, caller)
                }),
            };
            if let Some(frame) = frame {
                by_call.insert(frame.id, function);
            }
            stacks.insert(at, function);
        }
        stacks
    }
}

/// What the names of laggard's own Python functions begin with, and what its stand-in for PyTorch's
/// engine is called, and that itself.
const OWN_FILES: &str = "laggard/_";
const OWN_ENGINE: &str = "laggard.EngineProxy object";
const ENGINE: &str = "torch._C._EngineBase object";

/// What code of a step is called that no range covers.
pub const OUTSIDE: &str = "code outside every range";

/// Whether an operator of the host computes, rather than drives others or waits.
fn is_compute(name: &str) -> bool {
    let drives = [
        "autograd::engine",
        "torch::autograd",
        "c10d::",
        "record_param_comms",
    ];
    // Nodes of autograd only call the operators that compute. PyTorch numbers those of an operator's
    // variants (`SumBackward1`); a function of the job has no number (`ScaleBackward`).
    let variant = name.trim_end_matches(|c: char| c.is_ascii_digit());
    !drives.iter().any(|prefix| name.starts_with(prefix)) && !variant.ends_with("Backward")
}

/// A name without the number that stands apart at its end.
fn without_number(name: &str) -> &str {
    let bare = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let apart = bare.trim_end_matches([' ', '#']);
    if apart.len() < bare.len() && !apart.is_empty() {
        apart
    } else {
        name
    }
}

/// What a class of functions uses, what is asked for first in front.
///
/// # Source
/// PerfTracker (2025); docs/math/pattern.md has what is ours.
fn resources(class: FunctionClass) -> &'static [Resource] {
    match class {
        FunctionClass::GpuCompute => &[Resource::Sm],
        FunctionClass::Memory => &[Resource::Pcie, Resource::Dram],
        FunctionClass::Collective => &[Resource::Network, Resource::NvLink],
        FunctionClass::CpuCompute | FunctionClass::Python | FunctionClass::OtherCpu => {
            &[Resource::Cpu]
        }
    }
}

/// Counters as evenly spaced samples: each holds until the next one.
fn series(trace: &Trace) -> BTreeMap<Resource, UtilisationSeries> {
    trace
        .counters
        .iter()
        .filter_map(|counter| Some((counter.resource, evenly(&counter.samples)?)))
        .collect()
}

fn evenly(samples: &[(i64, f32)]) -> Option<UtilisationSeries> {
    let (first, last) = (samples.first()?.0, samples.last()?.0);
    let count = i64::try_from(samples.len()).ok()?;
    let interval_ns = (last - first) / (count - 1).max(1);
    // Nobody knows how long a single sample holds.
    if interval_ns <= 0 {
        return None;
    }
    let mut even = Vec::with_capacity(samples.len());
    let mut at = 0;
    for index in 0..count {
        // What holds in the middle of an interval stands for it.
        let wanted = first + index * interval_ns + interval_ns / 2;
        while samples.get(at + 1).is_some_and(|(next, _)| *next <= wanted) {
            at += 1;
        }
        even.push(samples[at].1);
    }
    Some(UtilisationSeries {
        start_ns: first,
        interval_ns,
        samples: even,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counter, PythonFrame, Track};

    struct Draft(Trace);

    impl Draft {
        fn new(threads: usize) -> Self {
            let tracks = vec![Track::default(); threads];
            Self(Trace {
                tracks,
                ..Trace::default()
            })
        }

        fn slice(&mut self, kind: SliceKind, name: &str, track: u16, from: i64, to: i64) {
            let name = self.0.names.intern(name);
            let (start_ns, end_ns, detail) = (from, to, 0);
            self.0.slices.push(Slice {
                start_ns,
                end_ns,
                name,
                detail,
                track,
                kind,
            });
        }

        fn python(&mut self, name: &str, (id, parent): (u32, u32), from: i64, to: i64) {
            self.slice(SliceKind::Python, name, 0, from, to);
            let parent = Some(parent).filter(|parent| *parent > 0);
            self.0.frames.push(PythonFrame { id, parent });
            let detail = self.0.frames.len() as u32 - 1;
            self.0.slices.last_mut().unwrap().detail = detail;
        }

        fn profile(&mut self) -> Vec<(String, String, f32)> {
            self.0.settle(0);
            let found = profile(&self.0, &PatternSettings::default());
            let mut named: Vec<_> = found
                .patterns
                .iter()
                .map(|(id, pattern)| {
                    let stack: Vec<_> = found
                        .dictionary
                        .stack(*id)
                        .map(|f| f.name.clone())
                        .collect();
                    let class = found.dictionary.get(*id).unwrap().class.name();
                    (stack.join(" < "), class.to_owned(), pattern.beta)
                })
                .collect();
            named.sort_by(|a, b| a.0.cmp(&b.0));
            named
        }
    }

    fn row(name: &str, class: &str, beta: f32) -> (String, String, f32) {
        (name.to_owned(), class.to_owned(), beta)
    }

    #[test]
    fn the_innermost_python_function_has_the_time_no_device_takes() {
        let mut draft = Draft::new(2);
        draft.slice(SliceKind::Step, "ProfilerStep#1", 0, 0, 100);
        draft.python("train", (1, 0), 0, 100);
        draft.python("read_shard", (2, 1), 10, 60);
        draft.python("recv_into", (3, 2), 20, 60);
        draft.slice(SliceKind::Op, "aten::mm", 0, 60, 70);
        draft.slice(SliceKind::Kernel, "gemm", 1, 50, 90);
        assert_eq!(
            draft.profile(),
            [
                row("gemm", "gpu_compute", 0.4),
                row("read_shard < train", "python", 0.1),
                row("recv_into < read_shard < train", "python", 0.3),
                row("train", "python", 0.2),
            ]
        );
    }

    #[test]
    fn what_laggard_does_on_the_way_is_part_of_what_called_it() {
        let mut draft = Draft::new(1);
        draft.slice(SliceKind::Step, "ProfilerStep#1", 0, 0, 100);
        draft.python("train", (1, 0), 0, 100);
        draft.python("laggard/_device.py(100): waiting", (2, 1), 10, 60);
        draft.python("<built-in method item of Tensor>", (3, 2), 20, 60);
        let engine = "<built-in method run_backward of laggard.EngineProxy object at 0x…>";
        draft.python(engine, (4, 1), 70, 90);
        assert_eq!(
            draft.profile(),
            [
                row("<built-in method item of Tensor> < train", "python", 0.4),
                row(
                    "<built-in method run_backward of torch._C._EngineBase object at 0x…> < train",
                    "python",
                    0.2
                ),
                row("train", "python", 0.4),
            ]
        );
    }

    #[test]
    fn without_a_device_operators_compute_and_without_stacks_ranges_stand_for_python() {
        let mut draft = Draft::new(2);
        draft.slice(SliceKind::Step, "ProfilerStep#1", 0, 0, 100);
        draft.slice(SliceKind::Annotation, "data.next_wait", 0, 0, 40);
        draft.slice(SliceKind::Annotation, "backward", 0, 40, 90);
        draft.slice(
            SliceKind::Op,
            "autograd::engine::evaluate_function: X",
            0,
            40,
            60,
        );
        draft.slice(SliceKind::Op, "aten::mm", 0, 45, 60);
        draft.slice(SliceKind::Collective, "gloo:all_reduce", 1, 50, 85);
        assert_eq!(
            draft.profile(),
            [
                row("aten::mm", "cpu_compute", 0.15),
                row("backward", "other_cpu", 0.1),
                row("code outside every range", "other_cpu", 0.1),
                row("data.next_wait", "other_cpu", 0.4),
                row("gloo:all_reduce", "collective", 0.25),
            ]
        );
    }

    #[test]
    fn nodes_of_autograd_do_not_compute() {
        for node in ["AddmmBackward0", "SumBackward1", "ScaleBackward"] {
            assert!(!is_compute(node), "{node}");
        }
        for operator in ["aten::mm", "aten::_softmax_backward_data"] {
            assert!(is_compute(operator), "{operator}");
        }
    }

    /// pytorch#174555: 120 of 35,760 slices overlap their neighbour.
    #[test]
    fn ranges_that_overlap_without_nesting_lose_no_time() {
        let mut draft = Draft::new(1);
        draft.slice(SliceKind::Annotation, "a", 0, 0, 50);
        draft.slice(SliceKind::Annotation, "b", 0, 30, 100);
        let rows = [row("a", "other_cpu", 0.3), row("b", "other_cpu", 0.7)];
        assert_eq!(draft.profile(), rows);
    }

    #[test]
    fn counters_say_how_well_a_kernel_uses_its_device() {
        let mut draft = Draft::new(1);
        draft.slice(SliceKind::Kernel, "gemm", 0, 0, 1000);
        let samples = (0..20).map(|at| (at * 100, if at < 10 { 0.9 } else { 0.1 }));
        let samples = samples.collect();
        draft.0.counters.push(Counter {
            resource: Resource::Sm,
            samples,
        });
        draft.0.settle(0);
        let found = profile(&draft.0, &PatternSettings::default());
        let pattern = found.patterns.values().next().unwrap();
        assert!(
            (pattern.mu - 0.9).abs() < 1e-6 && pattern.is_measured(),
            "{pattern:?}"
        );
    }
}
