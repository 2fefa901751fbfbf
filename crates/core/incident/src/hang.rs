//! The words of a job that does not move.

use std::collections::BTreeMap;

use collective::Stall;
use model::{
    Desync, Evidence, FoldedStack, Frame, Incident, IncidentKind, MarkKind, Method, Pace,
    ProcessState, Ranks, Severity, Stack, StageId, StallKind, Subject, Wait, fold_ranks,
};

use crate::pause::pause;
use crate::words::{are, duration, who};
use crate::{Scene, inside};

/// Frames of a stack that are told.
const TOLD_FRAMES: usize = 4;
/// Frames of a folded stack, and different ones of one hang. Taste: more is no longer looked at.
const FOLDED_FRAMES: usize = 64;
const MAX_FOLDS: usize = 64;

/// Words an incident about a job that does not move, or did not for a while.
///
/// A pause that is known to take long is no hang, for `pause_max_s`.
pub fn hang(
    stall: &Stall,
    stacks: &BTreeMap<u32, Stack>,
    scene: Scene<'_>,
    id: String,
    quiet_s: f64,
    pause_max_s: f64,
    open: bool,
) -> Incident {
    let of_culprits = stall.culprits.iter().filter_map(|rank| stacks.get(rank));
    let may_pause = matches!(stall.kind, StallKind::Missing | StallKind::Nowhere);
    let long = pause(of_culprits).filter(|_| may_pause);
    let pause = long.filter(|_| quiet_s < pause_max_s);
    let since = stall.step;
    let starts = stall.is_of_start();
    // What is not seen may be a pause as well, and to start may take long. It did not pass if
    // the job ended in it.
    let severity = match stall.kind {
        _ if !open || pause.is_some() => Severity::Info,
        kind if scene.ended || starts || kind == StallKind::Unseen => Severity::Warning,
        // Hosts may be busy with something that has no marks.
        StallKind::Nowhere if quiet_s < pause_max_s => Severity::Warning,
        _ => Severity::Critical,
    };
    let open = open && !scene.ended;
    let head = match (severity, open) {
        (_, true) if starts => "the start stands still".to_owned(),
        (_, false) if starts => {
            format!("the start stood still for {}", duration(quiet_s))
        }
        (_, true) if stall.kind == StallKind::Nowhere => {
            format!("nothing has moved for {} since step {since}", duration(quiet_s))
        }
        // A snapshot does not know of steps.
        (_, true) if since == 0 && pause.is_none() => "hang".to_owned(),
        (Severity::Critical, true) => format!("hang since step {since}"),
        (_, true) => format!("waiting since step {since}"),
        (_, false) => format!("nothing moved for {} in step {since}", duration(quiet_s)),
    };
    let mut text = format!("{head}: {}", what(stall));
    for rank in &in_front(stall) {
        if let Some(place) = whereabouts(stall, stacks, *rank) {
            text += &format!("; rank {rank} {place}");
        }
        if let Some(before) = not_left(stall, stacks, *rank) {
            text += &format!(" and has not left #{before}");
        }
    }
    if let Some(does) = long {
        text += &format!(" and {does}");
    }
    if long.is_some() && pause.is_none() {
        text += &format!(", for more than {}", duration(pause_max_s));
    }
    let advice = advice(stall, stacks, pause);
    let stage = stall.culprits.first().and_then(|rank| stage_of(stall, *rank));
    let function = stall.culprits.first().and_then(|rank| own_frame(stacks.get(rank)?));
    let accused = stall.accused();
    let victims: Ranks = stall.waiting.iter().copied().collect();
    let is_named = |rank: &u32| stall.culprits.contains(rank);
    let waits = stall.waits.iter().map(|wait| {
        let ranks =
            if stall.kind == StallKind::Missing && !wait.missing.iter().any(is_named) {
                wait.missing.clone()
            } else {
                Vec::new()
            };
        Evidence { ranks, ..of_wait(stall.kind, wait) }
    });
    let mut evidence: Vec<Evidence> = waits.collect();
    evidence.extend(stall.failure.as_ref().map(inside::evidence));
    evidence.extend(of_stacks(stacks, &stall.culprits));
    Incident {
        id,
        kind: IncidentKind::Hang,
        severity,
        open,
        subject: Subject {
            hosts: scene.hosts_of(&accused),
            ranks: accused,
            stage: stage.map(|stage| scene.names.name(stage).to_owned()),
            collective: stall.waits.first().map(collective),
            function: function.map(Frame::text),
            flow: stall.failure.as_ref().and_then(inside::flows),
            ..Subject::default()
        },
        pace: Pace::Once { step: since },
        first_step: since,
        last_step: since,
        victims: victims.without(&stall.culprits),
        cost_s: quiet_s,
        cost_gpu_s: 0.0,
        cost_share: 0.0,
        gain_alone_s: quiet_s,
        next_in_line: Vec::new(),
        contradictions: Vec::new(),
        facts: Vec::new(),
        actions: Vec::new(),
        stacks: Vec::new(),
        progress: Vec::new(),
        text,
        evidence,
        advice,
    }
}

pub(crate) fn collective(wait: &Wait) -> String {
    let group = group_of(wait);
    if wait.number == 0 {
        return format!("group {group}");
    }
    format!("{} #{} of group {group}", wait.op.name(), wait.number)
}

fn group_of(wait: &Wait) -> &str {
    if wait.group.is_empty() { "unknown" } else { &wait.group }
}

fn what(stall: &Stall) -> String {
    if let Some(failure) = &stall.failure {
        return inside::what(failure);
    }
    let Some(wait) = stall.waits.first() else {
        return match (stall.kind, &stall.reason) {
            (_, Some(reason)) => reason.clone(),
            (StallKind::Nowhere, None) => {
                format!(
                    "{} did nothing, and in which collective they are is not known",
                    who(&stall.culprits)
                )
            }
            (_, None) => String::new(),
        };
    };
    match stall.kind {
        StallKind::Missing if wait.number == 0 => format!(
            "{} missing from {} ({} there)",
            are(&stall.culprits, &who(&stall.culprits)),
            collective(wait),
            are(&wait.entered, &who(&wait.entered))
        ),
        StallKind::Missing => {
            let verb = if wait.entered.len() == 1 { "waits" } else { "wait" };
            format!(
                "{} never entered {} ({} {verb} in it)",
                who(&stall.culprits),
                collective(wait),
                who(&wait.entered)
            )
        }
        StallKind::Unseen => format!(
            "{} wait{} in {} for {}, of which nothing is seen here",
            who(&wait.entered),
            if wait.entered.len() == 1 { "s" } else { "" },
            collective(wait),
            who(&stall.culprits)
        ),
        StallKind::Mismatch if wait.is_undecided() => sides(wait),
        StallKind::Mismatch => {
            let entered = |odd: &Desync| {
                let detail = if odd.detail == wait.detail { "" } else { &odd.detail };
                format!("rank {} entered {} {detail}", odd.rank, odd.op.name())
            };
            let odd: Vec<String> = wait.desyncs.iter().map(entered).collect();
            let known = !wait.detail.is_empty();
            let differs =
                known && wait.desyncs.iter().any(|odd| odd.detail != wait.detail);
            let detail =
                if differs { format!(" {}", wait.detail) } else { String::new() };
            let odd = odd.join(", ");
            format!(
                "{} where the others entered {}{detail}",
                odd.trim_end(),
                collective(wait)
            )
        }
        StallKind::Inside if wait.open.is_some() => of_devices(wait),
        StallKind::Nowhere => format!(
            "{} issued {} and did nothing since: whether devices stand still or hosts are busy \
             cannot be told",
            who(&wait.entered),
            collective(wait)
        ),
        StallKind::Inside => {
            let verb = if wait.entered.len() == 1 { "does" } else { "do" };
            format!(
                "{} entered {} and {verb} not leave it",
                who(&wait.entered),
                collective(wait)
            )
        }
        StallKind::Deadlock => {
            let part = |wait: &Wait| {
                format!(
                    "{} in {} without {}",
                    who(&wait.entered),
                    collective(wait),
                    who(&wait.missing)
                )
            };
            let parts: Vec<String> = stall.waits.iter().map(part).collect();
            format!("{} wait for one another: {}", who(&stall.culprits), parts.join("; "))
        }
    }
}

/// What each side entered where it cannot be told which is wrong.
fn sides(wait: &Wait) -> String {
    let side = |(ranks, odd): &(Vec<u32>, &Desync)| {
        let said = format!("{} {}", odd.op.name(), odd.detail);
        format!("{} entered {}", who(ranks), said.trim_end())
    };
    let sides: Vec<String> = wait.sides().iter().map(side).collect();
    let place = format!("#{} of group {}", wait.number, group_of(wait));
    let unseen = match &wait.missing[..] {
        [] => String::new(),
        missing => format!(", of {} nothing is seen", who(missing)),
    };
    let sides = sides.join(", ");
    format!("{sides} as {place}{unseen}: which of them is wrong cannot be told")
}

/// How far devices have come in a collective that all of them were given.
fn of_devices(wait: &Wait) -> String {
    let Some(open) = &wait.open else { return String::new() };
    let (behind, place) = (open.behind(), collective(wait));
    let device = |ranks: &[u32]| match ranks {
        [_] => format!("the device of {}", who(ranks)),
        _ => format!("the devices of {}", who(ranks)),
    };
    if behind.is_empty() {
        let verb = if wait.entered.len() == 1 { "has" } else { "have" };
        return format!(
            "{} {verb} issued {place} and it does not end: which device holds it up cannot be told",
            who(&wait.entered)
        );
    }
    let verb = if behind.len() == 1 { "has" } else { "have" };
    if behind == open.not_started {
        return format!(
            "{} {verb} not begun {place}, which others have begun",
            device(behind)
        );
    }
    let others = who(&open.ended);
    format!("{} {verb} not finished {place}, which has ended on {others}", device(behind))
}

/// The culprits of which it is said where they are: of each side one, or the first two.
fn in_front(stall: &Stall) -> Vec<u32> {
    let culprits = stall.culprits.iter().take(2).copied();
    match stall.waits.first() {
        Some(wait) if wait.is_undecided() => {
            wait.sides().iter().map(|(ranks, _)| ranks[0]).take(2).collect()
        }
        _ => culprits.collect(),
    }
}

/// Where a culprit is: its stack says most, its last mark something.
fn whereabouts(
    stall: &Stall,
    stacks: &BTreeMap<u32, Stack>,
    rank: u32,
) -> Option<String> {
    if stall.gone.contains(&rank) {
        return Some("has ended".to_owned());
    }
    let stack = stacks.get(&rank);
    let stage = || {
        let names = model::StageNames::default();
        stage_of(stall, rank).map(|stage| names.name(stage).to_owned())
    };
    let place = stack.and_then(own_frame).map(Frame::text).or_else(stage);
    let does = stack.map_or("is", does);
    let text = match place {
        Some(place) => Some(format!("{does} in {place}")),
        None => (does != "is").then(|| does.to_owned()),
    };
    match (text, worker(stall, stack, rank)) {
        (Some(text), Some(worker)) => Some(format!("{text}; {worker}")),
        (text, _) => text,
    }
}

/// The worker of its loader that a rank waits for in vain.
fn worker(stall: &Stall, stack: Option<&Stack>, rank: u32) -> Option<String> {
    let stack = stack.filter(|stack| stack.state != ProcessState::Stopped)?;
    let worker = stack.workers.first()?;
    let does = match worker.state {
        ProcessState::Ended => "has ended",
        _ => "is stopped",
    };
    let pid = worker.pid;
    Some(match stage_of(stall, rank) {
        Some(StageId::DATA) => {
            format!(
                "it waits in data.next_wait for its loader's worker (pid {pid}), which {does}"
            )
        }
        _ => format!("its worker process (pid {pid}) {does}"),
    })
}

/// What the main thread of a process does, as a verb. One that waits without the GIL is where
/// most of them are and needs no word.
fn does(stack: &Stack) -> &'static str {
    match (stack.state, stack.holds_gil) {
        (ProcessState::Stopped, _) => "is stopped",
        (ProcessState::Ended, _) => "has ended",
        (ProcessState::Uninterruptible, _) => "waits for a device or file system",
        (ProcessState::Running, Some(true)) => "is busy",
        (ProcessState::Sleeping, Some(true)) => "holds the GIL",
        _ => "is",
    }
}

/// The collective before the one that a culprit lacks, if it still stands in it.
fn not_left(stall: &Stall, stacks: &BTreeMap<u32, Stack>, rank: u32) -> Option<u64> {
    let wait = stall.waits.iter().find(|wait| wait.still_before.contains(&rank))?;
    let stays = stacks.get(&rank)?.is_in_collective();
    stays.then_some(wait.number.saturating_sub(1))
}

/// The stage a rank stands in after its last mark.
fn stage_of(stall: &Stall, rank: u32) -> Option<StageId> {
    match stall.last_kinds.get(&rank)? {
        MarkKind::DataBegin => Some(StageId::DATA),
        MarkKind::DataEnd | MarkKind::ForwardBegin => Some(StageId::FORWARD),
        MarkKind::BackwardBegin => Some(StageId::BACKWARD),
        MarkKind::OptimizerBegin => Some(StageId::OPTIMIZER),
        MarkKind::OptimizerEnd | MarkKind::BackwardEnd | MarkKind::DataStop => {
            Some(StageId::CALLBACKS)
        }
        _ => None,
    }
}

/// The innermost frame of the script's own code, or of any code.
fn own_frame(stack: &Stack) -> Option<&Frame> {
    stack.frames.iter().find(|frame| frame.is_own()).or(stack.frames.first())
}

/// What to look at next. The table stands in docs/incidents.md, as all advice does.
pub(crate) fn advice(
    stall: &Stall,
    stacks: &BTreeMap<u32, Stack>,
    pause: Option<&str>,
) -> String {
    if let (Some(failure), None) = (&stall.failure, pause) {
        return inside::advice(failure);
    }
    let stays = |rank: &u32| not_left(stall, stacks, *rank);
    let has_idle_worker = |rank: &u32| worker(stall, stacks.get(rank), *rank).is_some();
    let culprits = who(&stall.culprits);
    match stall.kind {
        _ if pause.is_some() => format!("wait, or look whether {culprits} still gets on"),
        StallKind::Missing | StallKind::Inside if !stall.gone.is_empty() => {
            format!("look at the output of {culprits}: its process has ended")
        }
        StallKind::Missing if stall.culprits.iter().find_map(stays).is_some() => {
            format!(
                "compare sizes and types in the collective that the others have left and \
                 not {culprits}"
            )
        }
        StallKind::Missing if stall.culprits.iter().any(has_idle_worker) => {
            format!("look at the loader's workers of {culprits}: one was stopped or has ended")
        }
        StallKind::Missing => {
            format!(
                "look at the stack of {culprits}; the others wait for it and are fine"
            )
        }
        StallKind::Unseen => {
            format!(
                "look at what is said on the hosts of {culprits}, and at the network there"
            )
        }
        StallKind::Mismatch if stall.waits.iter().any(Wait::is_undecided) => {
            "compare the lines of code of the sides, and what each chose its branch by".to_owned()
        }
        StallKind::Mismatch if same_op(stall) => {
            format!("give {culprits} tensors of the sizes and types the others have")
        }
        StallKind::Mismatch => {
            format!(
                "make {culprits} issue the same collectives in the same order as the others"
            )
        }
        StallKind::Inside if stall.is_of_devices() => {
            format!(
                "look at the device of {culprits}: errors in the kernel's log of its host, and \
                 what its stream runs before this collective"
            )
        }
        StallKind::Inside if !stall.is_of_start() => {
            "save Flight Recorder dumps of all ranks with TORCH_NCCL_ENABLE_TIMING=1: they tell \
             which device has not begun the collective; look at the devices and the network"
                .to_owned()
        }
        StallKind::Nowhere => {
            "look at the stacks and at the devices: a device that computes nothing and draws \
             little power waits, one that is busy may be the one; Flight Recorder dumps of all \
             ranks with TORCH_NCCL_ENABLE_TIMING=1 tell which has not begun a collective"
                .to_owned()
        }
        StallKind::Inside => {
            "look whether the hosts of the ranks reach one another: network interface \
             (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), firewall, addresses of an earlier start"
                .to_owned()
        }
        StallKind::Deadlock => {
            "issue the collectives of both groups in the same order on all ranks"
                .to_owned()
        }
    }
}

fn same_op(stall: &Stall) -> bool {
    let mut odd =
        stall.waits.iter().flat_map(|wait| wait.desyncs.iter().map(|o| o.op == wait.op));
    odd.all(|same| same)
}

pub(crate) fn of_wait(kind: StallKind, wait: &Wait) -> Evidence {
    let (entered, missing) = (who(&wait.entered), who(&wait.missing));
    let mut text = if wait.number == 0 {
        format!("{} in {}", are(&wait.entered, &entered), collective(wait))
    } else {
        format!("{entered} entered {}", collective(wait))
    };
    if !wait.missing.is_empty() {
        text += &match kind {
            StallKind::Unseen => {
                format!("; {} not seen here", are(&wait.missing, &missing))
            }
            _ if wait.number == 0 => format!("; {missing} could not be reached"),
            _ => format!("; {missing} did not"),
        };
    }
    let values = [
        ("entered_ranks", wait.entered.len() as f64),
        ("missing_ranks", wait.missing.len() as f64),
    ];
    Evidence::new(Method::Collective, "min_op", text, &values)
}

/// Ranks that are in the same place, together: those of culprits first, then those of most ranks.
pub fn folded<'a>(
    stacks: impl Iterator<Item = (&'a u32, &'a Stack)>,
    culprits: &[u32],
) -> Vec<FoldedStack> {
    let mut together: BTreeMap<(Vec<String>, ProcessState), Vec<u32>> = BTreeMap::new();
    for (rank, stack) in stacks {
        let frames = stack.frames.iter().take(FOLDED_FRAMES).map(Frame::text).collect();
        together.entry((frames, stack.state)).or_default().push(*rank);
    }
    let is_named = |ranks: &Vec<u32>| ranks.iter().any(|rank| culprits.contains(rank));
    let mut folds: Vec<_> = together.into_iter().collect();
    folds.sort_by_key(|(_, ranks)| (!is_named(ranks), usize::MAX - ranks.len()));
    let folds = folds.into_iter().take(MAX_FOLDS).map(|((frames, state), ranks)| {
        FoldedStack { ranks: ranks.into_iter().collect(), state, frames }
    });
    folds.collect()
}

/// Why there are no frames, and what the kernel says instead.
fn unread(stack: &Stack) -> String {
    let Some(why) = &stack.unread else { return "no Python frame".to_owned() };
    let does = match (stack.state, &stack.waits_in) {
        (ProcessState::Running, _) => "; it runs".to_owned(),
        (ProcessState::Stopped, _) => "; it is stopped".to_owned(),
        (ProcessState::Ended, _) => "; it has ended".to_owned(),
        (ProcessState::Uninterruptible, None) => {
            "; it waits for a device or file system".to_owned()
        }
        (ProcessState::Sleeping, None) => "; it waits".to_owned(),
        (_, Some(function)) => format!("; it waits in {function} of the kernel"),
        (ProcessState::Unknown, None) => String::new(),
    };
    format!("its stack cannot be read: {why}{does}")
}

/// Stacks, equal ones folded, the culprits' first.
fn of_stacks(stacks: &BTreeMap<u32, Stack>, culprits: &[u32]) -> Vec<Evidence> {
    let mut folded: Vec<(String, Vec<u32>)> = Vec::new();
    let order = stacks.iter().filter(|(rank, _)| culprits.contains(rank));
    let order = order.chain(stacks.iter().filter(|(rank, _)| !culprits.contains(rank)));
    for (rank, stack) in order {
        let from =
            stack.frames.iter().position(Frame::is_own).unwrap_or(0).saturating_sub(1);
        let frames = stack.frames.iter().skip(from).take(TOLD_FRAMES).map(Frame::text);
        let frames: Vec<String> = frames.collect();
        let text = if frames.is_empty() { unread(stack) } else { frames.join(" < ") };
        match folded.iter_mut().find(|(known, _)| *known == text) {
            Some((_, ranks)) => ranks.push(*rank),
            None => folded.push((text, vec![*rank])),
        }
    }
    let evidence = folded.into_iter().map(|(text, ranks)| {
        let text = format!("rank {}: {text}", fold_ranks(&ranks));
        Evidence::new(Method::Stack, "stack", text, &[])
    });
    evidence.collect()
}
