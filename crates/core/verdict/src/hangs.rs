use std::collections::{BTreeMap, BTreeSet};

use collective::{Collectives, Communication, Entered, HangSettings, Stall};
use incident::{death, failures};
use model::{
    Communicator, Death, DeviceTime, Event, Fact, Finding, JobContext, Mark, Operation, Origin,
    PipelineRankState, Progress, RankNs, Ranks, Severity, Stack, StallKind, Standstill,
};
use schedule::holding_up;

use crate::{Rule, Suspicion};

mod under;

/// Whose stacks are asked for at first, and later.
const FIRST: Rule = Suspicion::Standstill.rule();
const LATER: Rule = Suspicion::Hang.rule();
/// Hangs of one job that are kept; later ones replace the shortest.
const MAX_HANGS: usize = 64;
/// How long laggard's own profiler may hold a rank up before that is a hang like any other.
/// Stopping one with stacks took up to 6 s on a busy machine.
const PROFILER_S: f64 = 30.0;
/// Seconds of a standstill after which its ranks are looked at, though it may pass: where they were is
/// reported if the job ends in it. Ours.
const LOOKED_AT_S: f64 = 5.0;
/// The signal by which a process ends itself, as watchdogs of collectives do.
const ABORT: i32 = 6;

/// Hangs of a job: the one under way, and those that passed.
#[derive(Debug, Default)]
pub(crate) struct Hangs {
    quiet_min_s: f64,
    /// [`HangSettings::pause_max_s`].
    pause_max_s: f64,
    collectives: Collectives,
    communication: Communication,
    now: Option<Under>,
    passed: Vec<Passed>,
    /// Ranks that stand still for laggard's own profiler, and since when.
    in_profiler: BTreeMap<u32, RankNs>,
    /// The first rank that was killed, and by which signal.
    killed: Option<(u32, Option<i32>)>,
    /// Exit codes of ranks, as a launcher printed them.
    printed_codes: BTreeMap<u32, i32>,
    /// Errors that ranks raised, as a log has them.
    raised: BTreeMap<u32, String>,
    /// The first rank that ended by itself, and its exit code, as long as nobody else did who did not wait
    /// for it.
    exited: Option<(u32, i32)>,
    /// Until when it is known that nobody has done anything.
    quiet_until: Option<RankNs>,
    /// A stall whose ranks seemed to have ended in good order.
    dismissed: Option<Under>,
    /// Hangs that were spoken of, of all starts of the job.
    spoken: u64,
    /// How often the job was started again.
    restarts: u64,
    /// Exit codes of ranks whose process has ended by itself, and not as one that is done.
    failed: BTreeMap<u32, i32>,
    /// The job as it stood when the first rank left it, if nothing had moved for longer than usual and no
    /// rank was known to wait for another.
    stood: Option<Under>,
    /// When ranks that no hang names were asked for where they are.
    others_asked: Option<RankNs>,
    /// Whether the job was asked to end while it stood still.
    is_ending: bool,
}

/// What was seen of a stall.
#[derive(Debug, Default)]
struct Seen {
    /// Of those that are named and some that wait for them.
    stacks: BTreeMap<u32, Stack>,
    /// Of others, once it was spoken of.
    others: BTreeMap<u32, Stack>,
    network: Vec<Fact>,
    /// How far ranks had come when nothing moved any more.
    progress: Vec<Progress>,
}

/// A stall that still goes on.
#[derive(Debug)]
struct Under {
    stall: Stall,
    seen: Seen,
    /// Whether anything was seen of the devices of ranks.
    sees_devices: bool,
    /// Ranks on whose hosts a port is down.
    ports_down: BTreeSet<u32>,
    /// Its number, once it was spoken of.
    number: Option<u64>,
    /// As what it was spoken of, and how seriously.
    reported: Option<(StallKind, Severity)>,
    asks: Asks,
    /// Whether it may pass by itself: it is blocked only, and has been quiet for longer before; or nobody is
    /// known to wait, and that has not lasted for long.
    is_early: bool,
    /// Whether it was spoken of because a rank gave up in it.
    gave_up: bool,
    /// How long it had lasted when it was looked at last.
    looked_s: f64,
    /// The time until which it is known to last.
    at: RankNs,
    left_orderly: BTreeSet<u32>,
}

/// Whose stacks are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    Nobody,
    /// Those that are named and some that wait for them, to say what it is.
    Named,
    /// The others, to see who is where.
    Others,
}

#[derive(Debug)]
struct Passed {
    number: u64,
    stall: Stall,
    seen: Seen,
    quiet_s: f64,
}

/// Whether a process that a signal killed, if it is known, may have ended itself.
fn ends_itself(signal: Option<i32>) -> bool {
    signal.is_none_or(|signal| signal == ABORT)
}

/// Whether a signal that killed a process is one that nobody sends: SIGILL, SIGBUS, SIGFPE or SIGSEGV.
fn crashes(signal: Option<i32>) -> bool {
    matches!(signal, Some(4 | 7 | 8 | 11))
}

impl Hangs {
    pub(crate) fn new(settings: HangSettings) -> Self {
        let (quiet_min_s, pause_max_s) = (settings.quiet_min_s, settings.pause_max_s);
        let communication = Communication::new(settings.clone());
        let collectives = Collectives::new(settings);
        Self {
            quiet_min_s,
            pause_max_s,
            collectives,
            communication,
            ..Self::default()
        }
    }

    /// The job is started over; no number is given twice.
    pub(crate) fn restart(&mut self, settings: HangSettings) {
        // Hundreds of ranks may have been asked a moment ago: a start that hangs again does not ask
        // them at once.
        let Self {
            spoken,
            others_asked,
            ..
        } = *self;
        let restarts = self.restarts + 1;
        *self = Self {
            spoken,
            restarts,
            others_asked,
            ..Self::new(settings)
        };
    }

    pub(crate) fn join(&mut self, group: u32, name: &str, members: &Ranks) {
        self.collectives.join(group, name, members);
    }

    pub(crate) fn arrive(&mut self, rank: u32) {
        self.collectives.arrive(rank);
    }

    pub(crate) fn wait_in_transfers(&mut self, ranks: &[u32]) {
        self.collectives.wait_in_transfers(ranks);
    }

    /// Takes a mark; the seconds of a stall that was spoken of and that it ends.
    pub(crate) fn mark(&mut self, rank: u32, mark: &Mark) -> Option<f64> {
        let advances = self.collectives.mark(rank, mark);
        match mark.event {
            Event::ProfilerBegin => {
                self.in_profiler.insert(rank, mark.at);
            }
            Event::SideSample { .. } | Event::SideLost { .. } => {}
            _ if mark.on_loop_thread => {
                self.in_profiler.remove(&rank);
            }
            _ => {}
        }
        // A rank that gives up leaves what it was in. One that is interrupted does what it does for that,
        // unless training goes on.
        let step = u64::from(mark.step);
        let goes_on = |under: &Under| {
            let moves = advances || under.stall.kind != StallKind::Livelock;
            moves && (!self.is_ending || step > under.stall.step)
        };
        let ends = mark.kind().begins() && self.now.as_ref().is_none_or(goes_on);
        ends.then(|| self.moved(mark.at)).flatten()
    }

    /// Something moved at `at`: a stall from before is over. Its seconds if it was spoken of.
    fn moved(&mut self, at: RankNs) -> Option<f64> {
        // Rings are read one after another: a mark from before the stall may come late.
        let under = self.now.take_if(|under| at > under.stall.since)?;
        let quiet_s = at.seconds_since(under.stall.since);
        let number = under.number?;
        let stall = under.explained();
        self.passed.push(Passed {
            number,
            stall,
            seen: under.seen,
            quiet_s,
        });
        if self.passed.len() > MAX_HANGS {
            // Of many those are kept that cost most.
            let shortest = self
                .passed
                .iter()
                .enumerate()
                .min_by(|(_, a), (_, b)| a.quiet_s.total_cmp(&b.quiet_s))
                .map(|(at, _)| at);
            if let Some(at) = shortest {
                self.passed.remove(at);
            }
        }
        Some(quiet_s)
    }

    /// A rank's process has ended. Where all ranks of a stall end in good order, the job was
    /// about to end and nothing was wrong.
    pub(crate) fn leave(&mut self, rank: u32, orderly: bool) {
        self.keep_standstill();
        self.collectives.leave(rank);
        self.in_profiler.remove(&rank);
        self.communication.leave(rank);
        let (failed, is_ending) = (&self.failed, self.is_ending);
        let dismissed = self.now.take_if(|under| {
            // Python may end in good order where somebody has interrupted a hang.
            let is_hang = |(kind, severity)| kind != StallKind::Unseen && severity > Severity::Info;
            if is_ending || under.reported.is_some_and(is_hang) {
                return false;
            }
            under.left_orderly.extend(orderly.then_some(rank));
            let Stall {
                kind,
                culprits,
                waiting,
                ..
            } = &under.stall;
            // Who is not recorded here is not seen to end either.
            let culprits = culprits.iter().filter(|_| *kind != StallKind::Unseen);
            let mut ranks = culprits.chain(waiting);
            ranks.all(|rank| under.left_orderly.contains(rank) && !failed.contains_key(rank))
        });
        // Kept at hand: one of these ranks may still turn out to have failed.
        self.dismissed = dismissed.or(self.dismissed.take());
    }

    /// Keeps how the job stands before a rank is gone, if it does.
    fn keep_standstill(&mut self) {
        let at = self.looked_at();
        if let Some(stall) = self.collectives.stood(at) {
            let looked = self.now.take_if(|under| under.is_early);
            self.stood = Some(self.under(stall, at).looked_at_before(looked));
        }
    }

    /// A rank's process was killed: the first one is the reason for whatever follows. In a
    /// hang it is how somebody ended it. `false` if it is not the reason.
    pub(crate) fn kill(&mut self, rank: u32, signal: Option<i32>) -> bool {
        // It gave up, or was ended, because of the one that had ended.
        if self.exited.is_some_and(|(first, _)| first != rank) {
            return false;
        }
        if ends_itself(signal) && self.gives_up(rank, signal.is_some()) {
            return false;
        }
        // How it ended may be known only once others have given up waiting for it, or it has written
        // its core.
        let is_late = self.now.as_ref().is_some_and(|under| {
            let Stall { kind, culprits, .. } = &under.stall;
            let is_known = under.gave_up || crashes(signal);
            is_known && *kind == StallKind::Missing && culprits.contains(&rank)
        });
        if self.is_reported() && !is_late {
            return false;
        }
        self.killed.get_or_insert((rank, signal));
        true
    }

    /// A launcher printed the exit code of a rank; below zero a signal.
    pub(crate) fn take_code(&mut self, rank: u32, code: i32) {
        self.printed_codes.insert(rank, code);
    }

    /// A rank raised an error, as it printed.
    pub(crate) fn raise(&mut self, rank: u32, error: &str) {
        self.raised.insert(rank, error.to_owned());
    }

    /// A rank's process has ended by itself, and not as one that is done.
    pub(crate) fn fail(&mut self, rank: u32, code: i32) {
        self.keep_standstill();
        let is_first = self.failed.is_empty() && self.killed.is_none();
        self.failed.insert(rank, code);
        if let Some(under) = self
            .dismissed
            .take_if(|it| it.stall.waiting.contains(&rank))
        {
            // Its ranks seemed to end in good order, and one of them did not.
            self.now.get_or_insert(under);
        }
        // Before it is gone: one that has ended waits for nobody.
        let stall = self.collectives.stuck();
        let waits = |(first, _): &mut (u32, i32)| {
            let waits = |it: &Stall| it.accused() == [*first] && it.waiting.contains(&rank);
            stall.as_ref().is_some_and(waits)
        };
        // Who ends without waiting for the first may have the same reason.
        self.exited = self.exited.take_if(waits);
        let gave_up = self.gives_up(rank, true);
        // Who waits for another may have noticed sooner than we that it had ended.
        let is_victim = stall.is_some_and(|it| it.waiting.contains(&rank));
        // A log does not know of steps, and not of who was the first.
        let has_steps = self.collectives.step_of(rank) > 0;
        // One that has waited for long may be the first to give up: in what, no mark says.
        let stood = self.stood().is_some();
        let is_reason = is_first && !is_victim && !gave_up && !stood && !self.is_reported();
        if is_reason && has_steps && code > 0 {
            self.exited = Some((rank, code));
        }
        self.collectives.leave(rank);
    }

    /// Whether a hang was spoken of that still goes on.
    fn is_reported(&self) -> bool {
        self.now
            .as_ref()
            .is_some_and(|under| under.number.is_some())
    }

    /// Whether a rank that ends now, `by_itself` if that is certain, gave up waiting for others:
    /// they had ended before, or nobody had done anything for long; or whether ranks had called
    /// different things. Then the hang is spoken of, whatever it was before.
    fn gives_up(&mut self, rank: u32, by_itself: bool) -> bool {
        // The others give up because of the rank that was killed.
        let is_dead = self.killed.is_some_and(|(_, signal)| !ends_itself(signal));
        if is_dead || self.exited.is_some() || self.is_reported() {
            return false;
        }
        let at = self.looked_at();
        let stood = || Some(self.stood()?.stall.clone()).filter(Stall::is_of_devices);
        let repeated = self.collectives.repeated(at);
        let stall = repeated.or_else(|| self.collectives.stuck());
        let Some(stall) = stall.or_else(stood) else {
            return false;
        };
        let accused = stall.accused();
        let is_over = !accused.is_empty() && accused.iter().all(|it| stall.gone.contains(it));
        let is_long = by_itself && at.seconds_since(stall.since) >= self.quiet_min_s;
        // One that is itself to blame did not give up waiting.
        let waits = !accused.contains(&rank) && stall.waiting.contains(&rank);
        let gave_up = self.killed.is_none() && waits && (is_over || is_long);
        // What they called cannot have ended well for any of them.
        let is_wrong = stall.kind == StallKind::Desync && !accused.is_empty();
        if !gave_up && !is_wrong {
            return false;
        }
        // One that had ended itself before gave up as well: the hang explains both.
        self.killed = None;
        self.spoken += 1;
        let new = self.under(stall, at);
        let (number, asks, gave_up) = (Some(self.spoken), Asks::Nobody, true);
        self.now = Some(Under {
            number,
            asks,
            gave_up,
            ..new
        });
        true
    }

    /// The hang that a rank gave up in, once.
    pub(crate) fn given_up(&mut self, context: JobContext<'_>) -> Option<Finding> {
        let pause_max_s = self.pause_max_s;
        let under = self
            .now
            .as_mut()
            .filter(|it| it.number.is_some() && it.reported.is_none())?;
        let finding = under.finding(context, pause_max_s)?;
        under.reported = Some((under.stall.kind, finding.severity));
        Some(finding)
    }

    /// Which rank was killed or ended by itself, and who was left waiting for it.
    pub(crate) fn death(&self, context: JobContext<'_>) -> Option<Finding> {
        let (rank, how) = match (self.killed, self.exited) {
            (Some((rank, signal)), _) => {
                let printed = self.printed_codes.get(&rank).copied();
                let code = printed.filter(|code| signal.is_none() && *code > 0);
                (rank, Death { signal, code })
            }
            (None, Some((rank, code))) => (
                rank,
                Death {
                    signal: None,
                    code: Some(code),
                },
            ),
            (None, None) => return None,
        };
        let step = u64::from(self.collectives.step_of(rank));
        let stall = self.collectives.stuck();
        // A start has one death, the first, so that its number is an id.
        let id = format!("k{}", self.restarts + 1);
        let error = self.raised.get(&rank).cloned();
        Some(death(rank, (how, error), step, stall.as_ref(), context, id))
    }

    /// Ranks that ended by themselves, each with an exit code, where nothing tells for whose sake; and how
    /// the job stood before.
    pub(crate) fn failures(&self, context: JobContext<'_>) -> Option<Finding> {
        // A log does not know of steps, and of what was before.
        let codes: BTreeMap<u32, i32> = self
            .failed
            .iter()
            .filter(|(rank, code)| **code > 0 && self.collectives.step_of(**rank) > 0)
            .map(|(rank, code)| (*rank, *code))
            .collect();
        let is_known = self.killed.is_some() || self.exited.is_some() || self.is_reported();
        if codes.is_empty() || is_known {
            return None;
        }
        let id = format!("k{}", self.restarts + 1);
        let stood = self.stood().map(|under| {
            let quiet = (under.quiet_s(), self.pause_max_s);
            under
                .seen
                .finding(&under.explained(), id.clone(), context, quiet, true)
        });
        Some(failures(&codes, self.step(), stood, context, id))
    }

    /// The job as it stood when ranks left it, unless it went on.
    fn stood(&self) -> Option<&Under> {
        let under = self.stood.as_ref()?;
        (self.last_at() == Some(under.stall.since)).then_some(under)
    }

    /// Until when it is known what ranks have done.
    fn looked_at(&self) -> RankNs {
        self.quiet_until.max(self.last_at()).unwrap_or_default()
    }

    /// Nobody has done anything until `at`; `standing` says where ranks of pipelines are then.
    ///
    /// A job that `is_blocked`, though it has paused for longer before, is looked at as well: what
    /// cannot pass by itself is reported then.
    pub(crate) fn quiet(
        &mut self,
        at: RankNs,
        is_blocked: bool,
        standing: impl FnOnce() -> Vec<Standstill>,
    ) {
        let is_still = self.collectives.is_still(at);
        // Of several hosts the furthest counts: a rank that gives up is judged by how long all
        // stood still.
        self.quiet_until = self.quiet_until.max(Some(at));
        let mut looked = None;
        if let Some(under) = &mut self.now {
            under.at = at;
            if !under.is_early || !is_still {
                under.doubt(self.pause_max_s);
                return;
            }
            // Now it is quiet for longer than ever: all of it is looked at anew.
            looked = self.now.take();
        }
        if self
            .in_profiler
            .values()
            .any(|since| at.seconds_since(*since) < PROFILER_S)
        {
            return;
        }
        // Who never came explains more than what the others wait in.
        let stall = self.collectives.stall(at).or_else(|| {
            let step = self.collectives.step();
            self.communication
                .stall(at)
                .map(|stall| Stall { step, ..stall })
        });
        let stall = match stall {
            // A rank that never comes to a collective may wait for its pipeline, in a receive.
            Some(stall) if stall.kind == StallKind::Missing => {
                Some(self.in_pipelines(stall, standing()))
            }
            Some(stall) => Some(stall),
            // Pipelines may wait in sends and receives only.
            None => is_still
                .then(standing)
                .and_then(|standing| self.halt(standing))
                .or_else(|| self.collectives.standstill(at))
                .or_else(|| self.collectives.livelock(at)),
        };
        self.now = stall.map(|stall| self.under(stall, at));
        let quiet_s = self
            .last_at()
            .map_or(0.0, |last_at| at.seconds_since(last_at));
        if self.now.is_none() && is_blocked && quiet_s >= self.quiet_min_s {
            // A launcher that ends a start which has failed is quick, and takes one by one.
            let stuck = self
                .collectives
                .stuck()
                .filter(|stall| !stall.is_of_start());
            self.now = stuck.map(|stall| self.early(stall, at));
        }
        if self.now.is_none() && quiet_s >= LOOKED_AT_S {
            let stood = || Some(self.early(self.collectives.stood(at)?, at));
            self.now = looked.or_else(stood);
            if let Some(under) = &mut self.now {
                under.look_again(self.pause_max_s);
            }
        }
    }

    /// The job was asked to end: how it stands then is known for good.
    pub(crate) fn end_asked(&mut self, at: RankNs, standing: impl FnOnce() -> Vec<Standstill>) {
        self.quiet(at, false, standing);
        if self.now.as_ref().is_none_or(|under| under.is_early) {
            let looked = self.now.take();
            let stood = self.collectives.stood(at);
            let stall = stood.or_else(|| self.collectives.repeated(at));
            self.now = stall.map(|stall| self.under(stall, at).looked_at_before(looked));
        }
        if let Some(under) = self.now.as_mut().filter(|it| !it.is_early) {
            under.speak(&mut self.spoken);
            under.asks = Asks::Nobody;
            self.is_ending = true;
        }
    }

    /// What it is where ranks that wait for others in sends and receives never come either.
    fn in_pipelines(&self, stall: Stall, standing: Vec<Standstill>) -> Stall {
        let (here, mut others): (Vec<_>, Vec<_>) = standing
            .into_iter()
            .partition(|it| stall.culprits.contains(&it.rank));
        let waits = |it: &Standstill| it.state >= PipelineRankState::Receives;
        if here.iter().filter(|it| waits(it)).count() == stall.culprits.len() {
            // For one that nobody waits for in a collective.
            others.retain(|it| !waits(it) && !stall.waiting.contains(&it.rank));
            if let Some(halt) = self.halt(others) {
                return halt;
            }
        }
        stall.narrowed(&holding_up(here).iter().map(|halt| halt.rank).collect())
    }

    /// Pipelines that stand still, by where their ranks do.
    fn halt(&self, standing: Vec<Standstill>) -> Option<Stall> {
        self.collectives.halt(holding_up(standing))
    }

    /// A rank has a communicator.
    pub(crate) fn communicate(&mut self, rank: u32, communicator: &Communicator) {
        self.communication.join(rank, communicator);
    }

    /// What ranks are in, for who makes it slow.
    pub(crate) fn communication(&mut self) -> &mut Communication {
        &mut self.communication
    }

    /// The same, to read.
    pub(crate) fn communicated(&self) -> &Communication {
        &self.communication
    }

    /// The furthest step a rank is in.
    pub(crate) fn step(&self) -> u64 {
        self.collectives.step()
    }

    /// What a rank is in; the seconds of a stall inside an operation that this ends.
    pub(crate) fn look(
        &mut self,
        rank: u32,
        at: RankNs,
        in_progress: Vec<Operation>,
        ended: &[Operation],
        late: &[usize],
    ) -> Option<f64> {
        for operation in late.iter().filter_map(|at| in_progress.get(*at)) {
            self.communication.suspect(rank, operation);
        }
        self.communication.look(rank, at, in_progress, ended);
        // Only a stall inside operations: that another one is over, marks say.
        let inside = self.now.as_ref()?.stall.failure.is_some();
        if !inside || self.communication.stall(at).is_some() {
            return None;
        }
        self.moved(at)
    }

    /// What the host of a rank saw of its device.
    pub(crate) fn device_time(&mut self, rank: u32, at: RankNs, time: &DeviceTime) {
        self.collectives.device_time(rank, at, time);
    }

    /// Marks of a rank were lost.
    pub(crate) fn lose(&mut self, rank: u32) {
        self.collectives.lose(rank);
    }

    pub(crate) fn enter(&mut self, rank: u32, entered: Entered) {
        self.collectives.enter(rank, entered);
    }

    /// What was given is one moment of a job that does not move.
    pub(crate) fn stuck(&mut self) {
        let stall = self.collectives.stuck();
        // A snapshot does not say for how long it has stood still.
        self.now = stall.map(|stall| self.under(stall, RankNs(0)));
    }

    /// A stall of which nothing was said yet.
    fn under(&self, stall: Stall, at: RankNs) -> Under {
        // Inside operations first.
        let progress = [self.communication.progress(), self.collectives.progress()].concat();
        Under {
            stall,
            seen: Seen {
                progress,
                ..Seen::default()
            },
            sees_devices: self.collectives.sees_devices(),
            ports_down: BTreeSet::new(),
            number: None,
            reported: None,
            asks: Asks::Named,
            is_early: false,
            looked_s: 0.0,
            gave_up: false,
            at,
            left_orderly: BTreeSet::new(),
        }
    }

    /// The same of one that may pass by itself.
    fn early(&self, stall: Stall, at: RankNs) -> Under {
        let is_early = true;
        Under {
            is_early,
            ..self.under(stall, at)
        }
    }

    /// The last mark of any rank.
    pub(crate) fn last_at(&self) -> Option<RankNs> {
        self.collectives.last_at()
    }

    /// Whether ranks have only repeated what they had done, for so long that others may wait in vain.
    pub(crate) fn is_repeating(&self, now: RankNs) -> bool {
        self.collectives.is_repeating(now)
    }

    /// Seconds without a mark after which the job may be said to hang.
    pub(crate) fn patience_s(&self) -> f64 {
        self.collectives.patience_s()
    }

    /// Ranks whose stacks would help to say what is wrong; once it was said those of the others, of
    /// `all`, to see who is where.
    pub(crate) fn wanted_stacks(&self, all: impl ExactSizeIterator<Item = u32>) -> Vec<u32> {
        let is_asked = |under: &&Under| under.asks != Asks::Nobody && !self.is_ending;
        let Some(under) = self.now.as_ref().filter(is_asked) else {
            return Vec::new();
        };
        if under.asks == Asks::Others {
            let Seen { stacks, others, .. } = &under.seen;
            // Spread over the job: the first ranks would be those of a few hosts.
            let every = all.len().div_ceil(LATER.others).max(1);
            let is_known = |rank: &u32| stacks.contains_key(rank) || others.contains_key(rank);
            return all.step_by(every).filter(|rank| !is_known(rank)).collect();
        }
        let culprits = under.stall.culprits.iter().take(FIRST.named);
        culprits
            .chain(under.stall.waiting.iter().take(FIRST.others))
            .copied()
            .collect()
    }

    /// What a host sees of the network of a rank that was asked for.
    pub(crate) fn network(&mut self, fact: Fact) {
        if let Some(under) = &mut self.now
            && !under.seen.network.contains(&fact)
        {
            under.seen.network.push(fact);
        }
    }

    /// A port of the host of these ranks is down.
    pub(crate) fn port_down(&mut self, ranks: impl IntoIterator<Item = u32>) {
        if let Some(under) = &mut self.now {
            under.ports_down.extend(ranks);
        }
    }

    pub(crate) fn stack(&mut self, rank: u32, stack: Stack) {
        if let Some(under) = &mut self.now {
            let Seen { stacks, others, .. } = &mut under.seen;
            let stacks = if under.asks == Asks::Others {
                others
            } else {
                stacks
            };
            stacks.insert(rank, stack);
        }
    }

    /// The hang to speak of, once all that can be known of it is: the stacks that were asked for
    /// were reported. Again once it is known to be worse than was said.
    pub(crate) fn tell(&mut self, context: JobContext<'_>) -> Option<Finding> {
        let under = self.now.as_mut()?;
        let asked = std::mem::replace(&mut under.asks, Asks::Nobody);
        if asked != Asks::Named {
            return None;
        }
        under.looked_s = under.quiet_s();
        if under.is_early && !under.is_final() {
            return None;
        }
        under.speak(&mut self.spoken);
        under.is_early = false;
        let finding = under.finding(context, self.pause_max_s)?;
        let reported = (under.explained().kind, finding.severity);
        let before = under.reported.replace(reported);
        if before == under.reported {
            return None;
        }
        let is_asked = self
            .others_asked
            .is_some_and(|asked| under.at.seconds_since(asked) < LATER.every_s);
        if finding.severity > Severity::Info && !is_asked {
            under.asks = Asks::Others;
            self.others_asked = Some(under.at);
        }
        Some(finding)
    }

    /// Whether any stall was spoken of.
    pub(crate) fn has_spoken(&self) -> bool {
        self.spoken > 0
    }

    /// The hang that goes on at the end of what was seen, if it was spoken of.
    pub(crate) fn under_way(&self, context: JobContext<'_>) -> Option<Finding> {
        self.now.as_ref()?.finding(context, self.pause_max_s)
    }

    /// Stalls that were spoken of and passed.
    pub(crate) fn passed(&self, context: JobContext<'_>) -> Vec<Finding> {
        self.passed
            .iter()
            .map(
                |Passed {
                     number,
                     stall,
                     seen,
                     quiet_s,
                 }| {
                    let id = format!("h{number}");
                    let quiet = (*quiet_s, self.pause_max_s);
                    let finding = seen.finding(stall, id, context, quiet, false);
                    Finding {
                        origin: Origin::PassedStall,
                        ..finding
                    }
                },
            )
            .collect()
    }
}
