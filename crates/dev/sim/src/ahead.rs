//! A data-parallel job whose hosts run ahead of their devices.

use model::{
    CollectiveIssue, CollectiveOp, DeviceReached, DeviceTime, Event, Input, Mark, MarkKind, RankNs,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Time from a launch until an idle device begins, in seconds: what GPUs take.
const LAUNCH_S: f64 = 10e-6;
/// Collectives of a step, issued as parts of the backward pass are done.
const BUCKETS: usize = 3;
/// Kernels that a pass is launched as.
const KERNELS: usize = 6;
/// Number of the group of all ranks.
const GROUP: u32 = 1;
/// Where the script reads the loss back from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBack {
    /// After the optimizer, every so many steps.
    Every(u32),
    /// Between backward and optimizer.
    BeforeOptimizer,
    /// In the optimizer, which clips gradients.
    InOptimizer,
    /// Between forward and backward.
    BeforeBackward,
    /// Nowhere.
    Never,
}

/// A part of the loop that can be slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowSpot {
    /// The host loads data.
    Data,
    /// The host's part of the forward pass, at its begin.
    HostForward,
    /// What the host does between optimizer and data.
    Callback,
    /// Each launch of forward and backward takes longer.
    Launches,
    /// The device's part of the forward pass.
    DeviceForward,
    /// The device's part of the backward pass.
    DeviceBackward,
    /// The device's part of the optimizer.
    DeviceOptimizer,
}

impl SlowSpot {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Data,
        Self::HostForward,
        Self::Callback,
        Self::Launches,
        Self::DeviceForward,
        Self::DeviceBackward,
        Self::DeviceOptimizer,
    ];

    /// Whether it is a part of the device's work.
    pub fn is_device(self) -> bool {
        matches!(
            self,
            Self::DeviceForward | Self::DeviceBackward | Self::DeviceOptimizer
        )
    }
}

/// What is wrong.
#[derive(Clone, Copy, Debug)]
pub struct Slow {
    /// Where.
    pub spot: SlowSpot,
    /// On which rank, on all if none.
    pub rank: Option<u32>,
    /// By how much a step, in seconds.
    pub late_s: f64,
    /// From which step on.
    pub since: u32,
    /// In every so many steps.
    pub every: u32,
}

/// The job. Times are seconds a step.
#[derive(Clone, Debug)]
pub struct AheadJob {
    /// Ranks.
    pub ranks: u32,
    /// Steps.
    pub steps: u32,
    /// What the host takes in loader, forward, backward, optimizer and callbacks.
    pub host_s: [f64; 5],
    /// What the device takes in forward, backward and optimizer.
    pub device_s: [f64; 3],
    /// What a collective takes once all have arrived.
    pub collective_s: f64,
    /// Whether parameters are sharded: each layer's are gathered before it is computed, forward and
    /// backward, and its gradients scattered behind it.
    pub sharded: bool,
    /// Kernels that may be launched and not begun.
    pub queue: usize,
    /// Relative noise of each time.
    pub noise: f64,
    /// Where the loss is read.
    pub read_back: ReadBack,
    /// Faults.
    pub slow: Vec<Slow>,
    /// Whether the device makes marks, too.
    pub device_marks: bool,
    /// Seed of the noise.
    pub seed: u64,
}

/// What a job did.
#[derive(Debug)]
pub struct AheadRun {
    /// What its analysis is given, in order.
    pub inputs: Vec<Input>,
    /// What a step took from the sixth on, in seconds.
    pub step_s: f64,
}

/// What a host does next.
#[derive(Clone, Copy, Debug)]
enum Act {
    Work(f64),
    Launch(f64),
    Issue(CollectiveOp),
    /// The compute stream waits for all collectives so far.
    Join,
    ReadBack,
    Mark(MarkKind),
}

/// What stands in the queue of a compute stream.
#[derive(Clone, Copy, Debug)]
struct QueuedTask {
    launched_s: f64,
    takes_s: f64,
    /// The collective it waits for, plus 1.
    waits_for: usize,
    ended_s: Option<f64>,
}

/// One rank as it runs.
#[derive(Debug)]
struct AheadRank {
    acts: Vec<(u32, Act)>,
    next: usize,
    now_s: f64,
    tasks: Vec<QueuedTask>,
    /// Tasks whose end is known.
    known: usize,
    /// Kernels only: places in `tasks`.
    kernels: Vec<usize>,
    /// For each collective, the task after which the device arrives, and the host's time.
    issued: Vec<(usize, f64)>,
    marks: Vec<HostMark>,
    steps_began_s: Vec<f64>,
}

/// A mark of the host, and the task by which the device gets there.
#[derive(Clone, Copy, Debug)]
struct HostMark {
    step: u32,
    kind: MarkKind,
    at_s: f64,
    task: usize,
    number: u64,
    /// What it issues, if it is of that kind.
    op: CollectiveOp,
}

impl HostMark {
    fn event(&self) -> Event {
        if self.kind == MarkKind::CollectiveIssue {
            let issue = CollectiveIssue::new(self.op, GROUP, self.number);
            return Event::CollectiveIssue(issue);
        }
        self.kind.into()
    }
}

impl AheadRank {
    fn push(&mut self, takes_s: f64, waits_for: usize) {
        // A task may begin only after the launch has reached the device.
        let launched_s = self.now_s + LAUNCH_S;
        self.tasks.push(QueuedTask {
            launched_s,
            takes_s,
            waits_for,
            ended_s: None,
        });
    }

    /// When the device ends a task, once that is known; `usize::MAX` is before all.
    fn ended_s(&self, task: usize) -> Option<f64> {
        if task == usize::MAX {
            Some(0.0)
        } else {
            self.tasks.get(task)?.ended_s
        }
    }

    /// When the device gets to a mark; never, if that is not known.
    fn reached_s(&self, seen: &HostMark) -> f64 {
        self.ended_s(seen.task).unwrap_or(f64::INFINITY)
    }

    fn settle(&mut self, collectives: &[Option<f64>]) -> bool {
        let before = self.known;
        while let Some(task) = self.tasks.get(self.known).copied() {
            // Before the first task this is `usize::MAX`, which counts as ended at 0.
            let previous_s = self.ended_s(self.known.wrapping_sub(1)).unwrap_or(0.0);
            let met_s = match task.waits_for.checked_sub(1) {
                Some(at) => match collectives.get(at).copied().flatten() {
                    Some(met_s) => met_s,
                    None => break,
                },
                None => 0.0,
            };
            let begins_s = previous_s.max(task.launched_s).max(met_s);
            self.tasks[self.known].ended_s = Some(begins_s + task.takes_s);
            self.known += 1;
        }
        self.known > before
    }

    /// Does what comes next, unless it must wait for something not known yet.
    fn act(&mut self, queue: usize) -> bool {
        let Some((step, act)) = self.acts.get(self.next).copied() else {
            return false;
        };
        let last = self.tasks.len().wrapping_sub(1);
        match act {
            Act::Work(seconds) => self.now_s += seconds,
            Act::Launch(takes_s) => {
                // A full queue holds up the host in its launch.
                if let Some(full) = self.kernels.len().checked_sub(queue) {
                    // The kernel `queue` launches ago must have ended before this one fits. Marks
                    // take no place.
                    let Some(free_s) = self.ended_s(self.kernels[full]) else {
                        return false;
                    };
                    self.now_s = self.now_s.max(free_s);
                }
                self.kernels.push(self.tasks.len());
                self.push(takes_s, 0);
            }
            Act::Issue(op) => {
                self.mark(step, MarkKind::CollectiveIssue);
                if let Some(mark) = self.marks.last_mut() {
                    mark.op = op;
                }
                // `mark` has pushed a task, so there is one to arrive with.
                self.issued.push((self.tasks.len() - 1, self.now_s));
            }
            Act::Join => self.push(0.0, self.issued.len()),
            Act::ReadBack => {
                self.mark(step, MarkKind::ReadBackBegin);
                let Some(ended_s) = self.ended_s(last) else {
                    // When the device gets here is not known yet: the mark is made anew when it
                    // is.
                    self.marks.pop();
                    self.tasks.pop();
                    return false;
                };
                self.now_s = self.now_s.max(ended_s) + LAUNCH_S;
                self.mark(step, MarkKind::ReadBackEnd);
            }
            Act::Mark(kind) => {
                if kind == MarkKind::DataBegin {
                    self.steps_began_s.push(self.now_s);
                }
                self.mark(step, kind);
            }
        }
        self.next += 1;
        true
    }

    /// Records an event, too: a task that takes no time.
    fn mark(&mut self, step: u32, kind: MarkKind) {
        let number = self.issued.len() as u64 + 1;
        self.push(0.0, 0);
        let (at_s, task) = (self.now_s, self.tasks.len() - 1);
        self.marks.push(HostMark {
            step,
            kind,
            at_s,
            task,
            number,
            op: CollectiveOp::UNKNOWN,
        });
    }
}

impl AheadJob {
    /// A job like those that were measured: 27 ms a step on the device, 9 ms on the host.
    pub fn new(seed: u64) -> Self {
        Self {
            ranks: 4,
            steps: 160,
            host_s: [0.002, 0.003, 0.002, 0.001, 0.001],
            device_s: [0.012, 0.010, 0.005],
            collective_s: 0.0005,
            sharded: false,
            queue: 48,
            noise: 0.05,
            read_back: ReadBack::Every(1),
            slow: Vec::new(),
            device_marks: true,
            seed,
        }
    }

    /// The same without its faults.
    #[must_use]
    pub fn healthy(&self) -> Self {
        Self {
            slow: Vec::new(),
            ..self.clone()
        }
    }

    /// Runs it.
    pub fn run(&self) -> AheadRun {
        let mut ranks: Vec<AheadRank> = (0..self.ranks).map(|rank| self.rank(rank)).collect();
        let mut collectives: Vec<Option<f64>> = Vec::new();
        loop {
            let mut moves = false;
            for rank in &mut ranks {
                // Not `||`: the host goes on in a round in which the device does.
                while rank.settle(&collectives) | rank.act(self.queue) {
                    moves = true;
                }
            }
            // Ranks run on until all of them need a collective that is not known, so a round ends
            // each that all have arrived at.
            moves |= self.meet(&ranks, &mut collectives);
            if !moves {
                break;
            }
        }
        let end_s = ranks
            .iter()
            .map(|rank| {
                let task = rank.tasks.last();
                rank.now_s
                    .max(task.and_then(|task| task.ended_s).unwrap_or(0.0))
            })
            .fold(0.0, f64::max);
        // The first steps fill the queue, and are quicker by that.
        let first = 5.min(self.steps.saturating_sub(1)) as usize;
        let begin_s = ranks
            .iter()
            .map(|rank| rank.steps_began_s[first])
            .fold(0.0, f64::max);
        let step_s = (end_s - begin_s) / (self.steps as usize - first) as f64;
        AheadRun {
            inputs: self.inputs(&ranks),
            step_s,
        }
    }

    /// Ends the collectives that all devices have arrived at, in order.
    fn meet(&self, ranks: &[AheadRank], collectives: &mut Vec<Option<f64>>) -> bool {
        let mut moves = false;
        loop {
            let at = collectives.len();
            let arrivals = ranks.iter().map(|rank| {
                let (task, issued_s) = rank.issued.get(at)?;
                Some(rank.ended_s(*task)?.max(*issued_s))
            });
            let Some(arrivals) = arrivals.collect::<Option<Vec<f64>>>() else {
                return moves;
            };
            let before = collectives.last().copied().flatten().unwrap_or(0.0);
            // Collectives of one group run one after another.
            let all_s = arrivals.into_iter().fold(before, f64::max);
            collectives.push(Some(all_s + self.collective_s));
            moves = true;
        }
    }

    fn rank(&self, rank: u32) -> AheadRank {
        // All draws are made before the job runs: a fault changes when things happen, not what is
        // drawn, and the same job without it is the true comparison.
        let mut rng = SmallRng::seed_from_u64(self.seed * 1000 + u64::from(rank));
        let mut acts = Vec::new();
        for step in 0..self.steps {
            self.acts_of_step(rank, step, &mut rng, &mut acts);
        }
        AheadRank {
            acts,
            next: 0,
            now_s: 0.0,
            tasks: Vec::new(),
            known: 0,
            kernels: Vec::new(),
            issued: Vec::new(),
            marks: Vec::new(),
            steps_began_s: Vec::new(),
        }
    }

    fn acts_of_step(&self, rank: u32, step: u32, rng: &mut SmallRng, acts: &mut Vec<(u32, Act)>) {
        let mut noisy =
            |seconds: f64| seconds * (1.0 + self.noise * (2.0 * rng.random::<f64>() - 1.0));
        let late_s = |spot: SlowSpot| -> f64 {
            let strikes = self.slow.iter().filter(|slow| {
                slow.spot == spot
                    && slow.rank.is_none_or(|slow| slow == rank)
                    && step >= slow.since
                    && (step - slow.since).is_multiple_of(slow.every)
            });
            strikes.map(|slow| slow.late_s).sum()
        };
        let [data_s, forward_s, backward_s, optimizer_s, callback_s] = self.host_s;
        let [on_forward_s, on_backward_s, on_optimizer_s] = self.device_s;
        // Forward and backward launch `KERNELS` each, so the step is late by the whole.
        let launches_s = late_s(SlowSpot::Launches) / (2 * KERNELS) as f64;
        let mut push = |act| acts.push((step, act));
        push(Act::Mark(MarkKind::DataBegin));
        push(Act::Work(noisy(data_s) + late_s(SlowSpot::Data)));
        push(Act::Mark(MarkKind::DataEnd));
        for kernel in 0..KERNELS {
            if is_first_of_layer(kernel) {
                // A third before each layer. A sharded job meets between them.
                push(Act::Work(late_s(SlowSpot::HostForward) / BUCKETS as f64));
            }
            if self.sharded && is_first_of_layer(kernel) {
                push(Act::Issue(CollectiveOp::ALLGATHER_BASE));
                push(Act::Join);
            }
            push(Act::Work(of_kernel(noisy(forward_s)) + launches_s));
            let late_s = late_s(SlowSpot::DeviceForward);
            push(Act::Launch(of_kernel(noisy(on_forward_s) + late_s)));
        }
        if self.read_back == ReadBack::BeforeBackward {
            push(Act::ReadBack);
        }
        push(Act::Mark(MarkKind::BackwardBegin));
        for kernel in 0..KERNELS {
            if self.sharded && is_first_of_layer(kernel) {
                push(Act::Issue(CollectiveOp::ALLGATHER_BASE));
                push(Act::Join);
            }
            push(Act::Work(of_kernel(noisy(backward_s)) + launches_s));
            let late_s = late_s(SlowSpot::DeviceBackward);
            push(Act::Launch(of_kernel(noisy(on_backward_s) + late_s)));
            // Gradients of a layer are ready after its last kernel.
            if is_first_of_layer(kernel + 1) {
                let op = if self.sharded {
                    CollectiveOp::REDUCE_SCATTER_BASE
                } else {
                    CollectiveOp::ALLREDUCE
                };
                push(Act::Issue(op));
            }
        }
        push(Act::Join);
        push(Act::Mark(MarkKind::BackwardEnd));
        if self.read_back == ReadBack::BeforeOptimizer {
            push(Act::ReadBack);
        }
        push(Act::Mark(MarkKind::OptimizerBegin));
        if self.read_back == ReadBack::InOptimizer {
            push(Act::ReadBack);
        }
        push(Act::Work(noisy(optimizer_s)));
        push(Act::Launch(
            noisy(on_optimizer_s) + late_s(SlowSpot::DeviceOptimizer),
        ));
        push(Act::Mark(MarkKind::OptimizerEnd));
        if matches!(self.read_back, ReadBack::Every(steps) if (step + 1).is_multiple_of(steps)) {
            push(Act::ReadBack);
        }
        push(Act::Work(noisy(callback_s) + late_s(SlowSpot::Callback)));
    }

    fn inputs(&self, ranks: &[AheadRank]) -> Vec<Input> {
        let mut inputs = Vec::new();
        for rank in 0..self.ranks {
            inputs.push((
                0,
                Input::Rank {
                    rank,
                    host: "sim".to_owned(),
                    role: None,
                    first_local: 0,
                    locals: self.ranks,
                    world_size: self.ranks,
                },
            ));
        }
        for (rank, timeline) in (0..).zip(ranks) {
            for seen in &timeline.marks {
                if matches!(seen.kind, MarkKind::ReadBackBegin | MarkKind::ReadBackEnd) {
                    continue;
                }
                let (at, event) = (RankNs(clock_ns(seen.at_s)), seen.event());
                let mark = Mark {
                    at,
                    step: seen.step,
                    on_loop_thread: true,
                    event,
                };
                inputs.push((mark.at.0, Input::Mark { rank, mark }));
            }
            if self.device_marks {
                let times = device_times(timeline).into_iter();
                inputs.extend(times.map(|mark| (mark.at.0, Input::Mark { rank, mark })));
            }
        }
        // The sort is stable, so the ranks, declared at 0, stay first.
        inputs.sort_by_key(|(at, _)| *at);
        inputs.into_iter().map(|(_, input)| input).collect()
    }
}

/// The part of a pass that is one kernel's.
fn of_kernel(seconds: f64) -> f64 {
    seconds / KERNELS as f64
}

fn is_first_of_layer(kernel: usize) -> bool {
    kernel.is_multiple_of(KERNELS / BUCKETS)
}

/// A time on the clock of marks, which begins at 1.
fn clock_ns(seconds: f64) -> u64 {
    1 + (seconds * 1e9) as u64
}

/// The device marks of a rank's sampled steps, as a probe makes them: seen at a later mark.
fn device_times(rank: &AheadRank) -> Vec<Mark> {
    let mut times = Vec::new();
    let mut at = 0;
    while let Some(first) = rank.marks.get(at).copied() {
        if !steps::is_sampled(first.step) {
            at += 1;
            continue;
        }
        let run = steps::run_of(first.step);
        let here = &rank.marks[at..];
        let end = here.iter().position(|seen| !run.contains(&seen.step));
        let length = end.map_or(here.len(), |end| end + 1);
        let began_s = rank.reached_s(&first);
        let mut seen_s = 0.0f64;
        for (place, seen) in here[..length].iter().enumerate() {
            let later = here[place + 1..].iter().map(|later| later.at_s);
            let Some(polled_s) = later.into_iter().find(|at_s| *at_s >= rank.reached_s(seen))
            else {
                return times;
            };
            seen_s = seen_s.max(polled_s);
            // A look that finds a mark waiting asks for none behind it.
            let before = place
                .checked_sub(1)
                .map_or(0.0, |before| rank.reached_s(&here[before]));
            let looks = here[place + 1..].iter().map(|later| later.at_s);
            let mut missed = looks.filter(|at_s| (before..rank.reached_s(seen)).contains(at_s));
            let missed_s = missed.next_back();
            let time = DeviceTime {
                reached: DeviceReached::mark(&seen.event()),
                made_at: RankNs(clock_ns(seen.at_s)),
                device_ns: ((rank.reached_s(seen) - began_s) * 1e9) as u64,
                first_step: *run.start(),
                place: place as u64,
                seen_within_us: missed_s.map_or(0, |at_s| ((seen_s - at_s) * 1e6).ceil() as u32),
            };
            times.push(Mark {
                at: RankNs(clock_ns(seen_s)),
                step: seen.step,
                on_loop_thread: true,
                event: Event::DeviceTime(time),
            });
        }
        let time = DeviceTime {
            reached: DeviceReached::END,
            made_at: RankNs(0),
            device_ns: 0,
            first_step: *run.start(),
            place: length as u64,
            seen_within_us: 0,
        };
        times.push(Mark {
            event: Event::DeviceTime(time),
            // The run has its first mark at least, so there is a time before this end.
            ..times[times.len() - 1]
        });
        // The mark that ends a run may begin the next one.
        at += length.saturating_sub(1).max(1);
    }
    times
}
