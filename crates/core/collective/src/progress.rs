use std::collections::{BTreeMap, BTreeSet};

use model::{
    CollectiveIssue, CollectiveOp, DeviceTime, Event, InFlight, Mark, MarkKind, RankNs, Ranks,
    StallKind, Standstill,
};

use crate::streams::StreamProgress;
use crate::{HangSettings, Stall, stall};

/// Steps that are the first ones.
const FIRST_STEPS: u32 = 3;
/// How many times as long as later the first ones may take before a job that does nothing is
/// spoken of. Ours: large models compile and allocate for minutes.
const FIRST_STEPS_RATIO: f64 = 5.0;
/// Collectives of a group of which it is remembered what they were: ranks that do not wait
/// for one another's sizes are rarely further apart.
const REMEMBERED: usize = 16;
/// What is left after a step of the longest pause remembered: a pause counts for some
/// hundred steps.
const PAUSE_DECAY: f64 = 0.98;

/// Progress of every rank of a job.
///
/// # Properties
/// Memory is bounded by ranks times groups.
#[derive(Clone, Debug, Default)]
pub struct Collectives {
    settings: HangSettings,
    pub(crate) groups: BTreeMap<u32, GroupProgress>,
    pub(crate) ranks: BTreeMap<u32, RankProgress>,
    /// Of ranks whose devices are marked.
    pub(crate) streams: BTreeMap<u32, StreamProgress>,
    /// The last mark of any rank.
    last_at: Option<RankNs>,
    step: u32,
    longest_pause_s: f64,
    /// The last mark by which a rank got on: the first of its kind in its step and since its last
    /// collective, or a collective.
    advanced_at: Option<RankNs>,
    /// The longest time lately in which ranks only repeated what they had done.
    longest_round_s: f64,
    /// Whether the last mark was of the group of all ranks in the making: what follows may take
    /// as long as it likes, once.
    starts: bool,
    /// Ranks in a send or receive, which wait for others, nobody knows for whom.
    pub(crate) in_transfers: BTreeSet<u32>,
}

/// One communicator.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupProgress {
    pub(crate) name: String,
    pub(crate) members: BTreeSet<u32>,
    /// As they were given last: each member gives them.
    last_members: Ranks,
    /// The last collective each member issued.
    pub(crate) last: BTreeMap<u32, LastIssue>,
    /// The latest collectives by their number, and what ranks say they are.
    pub(crate) recent: BTreeMap<u64, ReportedCollective>,
    /// The first collective of each member that is known to be under way on it.
    pub(crate) under_way: BTreeMap<u32, CollectiveUnderWay>,
    /// The last collective of each member that is known to have ended on it.
    pub(crate) ended: BTreeMap<u32, u64>,
}

/// A collective that is known to be under way on a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CollectiveUnderWay {
    pub(crate) number: u64,
    pub(crate) what: CollectiveSignature,
    /// Whether the rank's device has begun it.
    pub(crate) how: InFlight,
}

/// What a collective is; all ranks that enter it must agree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CollectiveSignature {
    pub(crate) op: CollectiveOp,
    /// Bytes, where all ranks must pass as many and they are known.
    pub(crate) bytes: Option<u64>,
    /// Sizes and types as another tool wrote them, empty if nothing is known.
    pub(crate) detail: String,
}

impl CollectiveSignature {
    pub(crate) fn detail(&self) -> String {
        match self.bytes {
            Some(bytes) => format!("({bytes} bytes)"),
            None => self.detail.clone(),
        }
    }
}

/// What the ranks that entered one collective say it is.
#[derive(Clone, Debug)]
pub(crate) struct ReportedCollective {
    /// What the first one says.
    pub(crate) first: CollectiveSignature,
    /// Who says something else.
    pub(crate) others: Vec<(u32, CollectiveSignature)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LastIssue {
    /// How many collectives the rank has issued in the group, this one included.
    pub(crate) number: u64,
    pub(crate) what: CollectiveSignature,
    /// Whether it is known to have ended on the rank.
    pub(crate) completed: bool,
    /// Whether the rank has done anything since.
    pub(crate) left: bool,
}

/// A collective that a rank has entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entered {
    /// The group, by its number.
    pub group: u32,
    /// How many collectives the rank has issued in the group, this one included.
    pub number: u64,
    /// Its kind.
    pub op: CollectiveOp,
    /// Its sizes and types; empty if nothing is known.
    pub detail: String,
    /// Whether it is known to have ended on the rank.
    pub completed: bool,
    /// What is known of it if it has not.
    pub in_flight: InFlight,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RankProgress {
    pub(crate) step: u32,
    /// Its last mark of the loop itself.
    pub(crate) kind: Option<MarkKind>,
    pub(crate) gone: bool,
    /// Its last mark.
    at: RankNs,
    /// The kinds of marks that it has made in its step and since its last collective, a bit each.
    made: u32,
    /// The group of the collective it issued last, if it has done nothing since.
    in_group: Option<u32>,
}

impl GroupProgress {
    /// Whether it stands for the making of the group of all ranks.
    pub(crate) fn is_of_init(&self) -> bool {
        self.last
            .values()
            .any(|last| last.what.op == CollectiveOp::INIT)
    }

    fn say(&mut self, rank: u32, number: u64, what: &CollectiveSignature) {
        let said = self
            .recent
            .entry(number)
            .or_insert_with(|| ReportedCollective {
                first: what.clone(),
                others: Vec::new(),
            });
        if said.first != *what {
            said.others.push((rank, what.clone()));
        }
        if self.recent.len() > REMEMBERED {
            self.recent.pop_first();
        }
    }
}

impl RankProgress {
    const NONE: Self = Self {
        step: 0,
        kind: None,
        gone: false,
        at: RankNs(0),
        made: 0,
        in_group: None,
    };

    /// Takes its next mark; whether it gets on by it, or only repeats what it has done.
    fn advances(&mut self, mark: &Mark) -> bool {
        let kind = mark.kind();
        let is_issue = kind == MarkKind::CollectiveIssue;
        if is_issue || mark.step != self.step {
            self.made = 0;
        }
        let made = 1 << kind as u8;
        let is_first = self.made & made == 0;
        self.made |= made;
        is_issue || is_first && kind.begins()
    }
}

impl Collectives {
    /// A job nothing is known of yet.
    pub fn new(settings: HangSettings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Says who belongs to a group.
    pub fn join(&mut self, group: u32, name: &str, members: &Ranks) {
        let group = self.groups.entry(group).or_default();
        name.clone_into(&mut group.name);
        // Each member says who all are: without this n ranks would cost n² insertions.
        if group.last_members != *members {
            group.members.extend(members.iter());
            group.last_members.clone_from(members);
        }
    }

    /// Says that ranks are in a send or receive that has not ended.
    pub fn wait_in_transfers(&mut self, ranks: &[u32]) {
        self.in_transfers.extend(ranks);
    }

    /// Says that a rank's process runs, whether or not it has done anything.
    pub fn arrive(&mut self, rank: u32) {
        self.ranks.entry(rank).or_insert(RankProgress::NONE);
    }

    /// Takes the next mark of a rank; whether the rank gets on by it, or only repeats what it has done
    /// since its last collective.
    pub fn mark(&mut self, rank: u32, mark: &Mark) -> bool {
        let starts = matches!(mark.event, Event::InitBegin { .. } | Event::InitEnd { .. });
        let started = std::mem::replace(&mut self.starts, starts);
        let progress = self.ranks.entry(rank).or_insert(RankProgress::NONE);
        let advances = progress.advances(mark);
        // What its own profiler stops a job for is no pause that it makes.
        let is_of_job = !(starts || started || mark.event == Event::ProfilerEnd);
        if let Some(last_at) = self.last_at.filter(|_| is_of_job) {
            self.longest_pause_s = self.longest_pause_s.max(mark.at.seconds_since(last_at));
        }
        if let Some(advanced_at) = self.advanced_at.filter(|_| is_of_job && advances) {
            let round_s = mark.at.seconds_since(advanced_at);
            self.longest_round_s = self.longest_round_s.max(round_s);
        }
        if advances {
            self.advanced_at = self.advanced_at.max(Some(mark.at));
        }
        // Rings are read one after another, so marks of ranks do not come in the order of time.
        self.last_at = self.last_at.max(Some(mark.at));
        if let Some(stream) = self.streams.get_mut(&rank) {
            stream.host(mark);
        }
        if mark.step > self.step {
            self.step = mark.step;
            // Once a step of the job, not of each rank: how long a pause is remembered must not
            // depend on how many ranks there are.
            self.longest_pause_s *= PAUSE_DECAY;
            self.longest_round_s *= PAUSE_DECAY;
        }
        progress.at = mark.at;
        progress.step = mark.step;
        progress.gone = false;
        let left = progress.in_group.take();
        let issue = match mark.event {
            // A send or a receive is no meeting of all members: nobody is missing from it.
            // Recordings of older versions do not count.
            Event::CollectiveIssue(issue) => {
                Some(issue).filter(|it| it.number > 0 && !it.op.is_point_to_point())
            }
            // What laggard stops a rank for is not where the rank stands.
            Event::InitBegin { .. }
            | Event::InitEnd { .. }
            | Event::ProfilerBegin
            | Event::ProfilerEnd => None,
            event => {
                progress.kind = Some(event.kind());
                None
            }
        };
        progress.in_group = issue.map(|issue| issue.group);
        // The next issue in a group takes the place of the last one there.
        let left = left.filter(|group| progress.in_group != Some(*group));
        if let Some(group) = left.and_then(|group| self.groups.get_mut(&group))
            && let Some(issue) = group.last.get_mut(&rank)
        {
            issue.left = true;
        }
        if let Some(issue) = issue {
            self.issue(rank, &issue);
        } else if let Event::InitBegin { group, number } = mark.event {
            self.enter(rank, init(group, number, false));
        } else if let Event::InitEnd { group, number } = mark.event {
            self.enter(rank, init(group, number, true));
        }
        advances
    }

    /// Says that a rank issued a collective.
    fn issue(&mut self, rank: u32, issue: &CollectiveIssue) {
        let CollectiveIssue { op, number, .. } = *issue;
        let group = self.groups.entry(issue.group).or_default();
        let what = CollectiveSignature {
            op,
            // In others ranks may pass unlike sizes and be right.
            bytes: issue.bytes.filter(|_| op.is_of_one_size()),
            detail: String::new(),
        };
        group.say(rank, number, &what);
        let issued = LastIssue {
            number,
            what,
            completed: false,
            left: false,
        };
        if let Some(last) = group.last.get_mut(&rank) {
            *last = issued;
        } else {
            group.members.insert(rank);
            group.last.insert(rank, issued);
        }
    }

    /// Says that a rank entered a collective, as another tool recorded it, or making the group
    /// of all ranks. Of a group the latest counts, and the first that is under way.
    pub fn enter(&mut self, rank: u32, entered: Entered) {
        let Entered {
            group,
            number,
            op,
            detail,
            completed,
            in_flight,
        } = entered;
        let group = self.groups.entry(group).or_default();
        group.members.insert(rank);
        let what = CollectiveSignature {
            op,
            bytes: None,
            detail,
        };
        let ended = group.ended.entry(rank).or_default();
        if completed {
            // Recorders tell of several in any order: the furthest counts.
            *ended = number.max(*ended);
        }
        // Collectives of a group run in order: once one has ended, none before it is under way.
        if group
            .under_way
            .get(&rank)
            .is_some_and(|first| first.number <= *ended)
        {
            group.under_way.remove(&rank);
        }
        // Recorders tell of several at once and in any order: the others wait for the first.
        if !in_flight.is_unknown()
            && number > *ended
            && group
                .under_way
                .get(&rank)
                .is_none_or(|first| number < first.number)
        {
            let first = CollectiveUnderWay {
                number,
                what: what.clone(),
                how: in_flight,
            };
            group.under_way.insert(rank, first);
        }
        // Also of the same number: making the group of all ranks is reported twice.
        if group
            .last
            .get(&rank)
            .is_none_or(|last| last.number <= number)
        {
            group.last.insert(
                rank,
                LastIssue {
                    number,
                    what,
                    completed,
                    // Recorders do not say what the rank did next. An end lets it go on.
                    left: completed,
                },
            );
        }
    }

    /// The host of a rank saw at `at` that its device got to an earlier mark.
    pub fn device_time(&mut self, rank: u32, at: RankNs, time: &DeviceTime) {
        self.streams.entry(rank).or_default().device(at, time);
    }

    /// Whether hosts saw anything of their devices.
    pub fn sees_devices(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Marks of a rank were lost: what its device was not seen to do it may have done.
    pub fn lose(&mut self, rank: u32) {
        self.streams.remove(&rank);
    }

    /// What is not complete, of a job that is known not to move.
    pub fn stuck(&self) -> Option<Stall> {
        stall::stuck(self, u64::from(self.step), self.last_at.unwrap_or_default())
    }

    /// Says that a rank's process has ended.
    pub fn leave(&mut self, rank: u32) {
        // One that ended before its first mark is known of, too.
        let progress = self.ranks.entry(rank).or_insert(RankProgress::NONE);
        progress.gone = true;
        self.streams.remove(&rank);
    }

    /// The furthest step a rank is in.
    pub fn step(&self) -> u64 {
        u64::from(self.step)
    }

    /// The step a rank is in, 0 if nothing is known of it.
    pub fn step_of(&self, rank: u32) -> u32 {
        self.ranks.get(&rank).map_or(0, |progress| progress.step)
    }

    /// Ranks of which anything is known but that they belong to a group.
    pub(crate) fn seen(&self) -> BTreeSet<u32> {
        self.groups
            .values()
            .flat_map(|group| group.last.keys())
            .chain(self.ranks.keys())
            .copied()
            .collect()
    }

    /// Whether a rank's process is known to have ended.
    pub(crate) fn is_gone(&self, rank: u32) -> bool {
        self.ranks.get(&rank).is_some_and(|progress| progress.gone)
    }

    /// The last mark of any rank.
    pub fn last_at(&self) -> Option<RankNs> {
        self.last_at
    }

    /// What is stuck at `now`, if nothing has moved for longer than usual.
    ///
    /// # Units
    /// `now` is the clock of the marks.
    pub fn stall(&self, now: RankNs) -> Option<Stall> {
        if !self.is_still(now) {
            return None;
        }
        self.stuck()
    }

    /// A job in which no rank has done anything for so long that it is no usual pause, and no
    /// rank waits for another as far as is known.
    pub fn standstill(&self, now: RankNs) -> Option<Stall> {
        let quiet_s = now.seconds_since(self.last_at?);
        let is_long = quiet_s >= self.patience_s().max(self.doubtful_s());
        is_long.then(|| self.stood(now)).flatten()
    }

    /// Seconds that a job may at least take for what need not be wrong.
    // It must always last as long as a job whose ranks are known to wait may be silent in its first
    // steps.
    fn doubtful_s(&self) -> f64 {
        let first = if self.step < FIRST_STEPS {
            FIRST_STEPS_RATIO
        } else {
            1.0
        };
        first * self.settings.first_quiet_s
    }

    /// Whether ranks have only repeated what they had done, for so long that somebody may wait for them in
    /// vain.
    pub fn is_repeating(&self, now: RankNs) -> bool {
        self.has_repeated(now, self.doubtful_s())
    }

    /// The same for at least so many seconds, and for longer than they usually do.
    fn has_repeated(&self, now: RankNs, least_s: f64) -> bool {
        let usual_s = self.settings.quiet_ratio * self.longest_round_s;
        let patience_s = self.patience_s().max(usual_s).max(least_s);
        self.advanced_at
            .is_some_and(|advanced_at| now.seconds_since(advanced_at) >= patience_s)
    }

    /// Ranks that do the same again and again while others wait for them in a collective.
    pub fn livelock(&self, now: RankNs) -> Option<Stall> {
        let is_long = self.is_repeating(now);
        is_long.then(|| self.repeated(now)).flatten()
    }

    /// The same of a job that is ended, or in which a rank gives up: it cannot pass any more.
    pub fn repeated(&self, now: RankNs) -> Option<Stall> {
        let since = self.advanced_at.filter(|_| self.has_repeated(now, 0.0))?;
        let repeats = |rank: &u32| {
            let progress = self.ranks.get(rank);
            // One that has been silent for as long as it repeated may be stuck elsewhere.
            progress.is_some_and(|it| it.at.seconds_since(since) > now.seconds_since(it.at))
        };
        let is_missing = |it: &Stall| it.kind == StallKind::Missing && it.gone.is_empty();
        let stall = self.stuck().filter(is_missing)?;
        let (culprits, others): (Vec<u32>, Vec<u32>) =
            stall.culprits.into_iter().partition(repeats);
        let mut waiting = [stall.waiting, others].concat();
        waiting.sort_unstable();
        (!culprits.is_empty()).then_some(Stall {
            kind: StallKind::Livelock,
            culprits,
            waiting,
            since,
            ..stall
        })
    }

    /// The same of a job in which a rank gives up: silence need not be the only evidence.
    pub fn stood(&self, now: RankNs) -> Option<Stall> {
        if !self.is_still(now) {
            return None;
        }
        // What follows the loop has no marks, nor need it be short.
        let mut ranks = self.ranks.values();
        if ranks.any(|rank| rank.gone || rank.kind == Some(MarkKind::DataStop)) {
            return None;
        }
        stall::standing(self, u64::from(self.step), self.last_at?)
    }

    /// Whether nothing has moved until `now` for longer than usual.
    pub fn is_still(&self, now: RankNs) -> bool {
        let Some(last_at) = self.last_at else {
            return false;
        };
        now.seconds_since(last_at) >= self.patience_s()
    }

    /// Seconds without a mark that are longer than usual.
    pub fn patience_s(&self) -> f64 {
        let usual_s = self.settings.quiet_ratio * self.longest_pause_s;
        let patience_s = self.settings.quiet_min_s.max(usual_s);
        if self.step < FIRST_STEPS {
            return patience_s.max(self.settings.first_quiet_s);
        }
        patience_s
    }

    /// Seconds by which one rank may be later than the others as the job goes.
    pub(crate) fn late_s(&self, least_s: f64) -> f64 {
        least_s.max(self.settings.quiet_ratio * self.longest_pause_s)
    }

    /// A job that does not move because ranks of pipelines stand still; `None` without any.
    pub fn halt(&self, halts: Vec<Standstill>) -> Option<Stall> {
        if halts.is_empty() {
            return None;
        }
        let ranks: BTreeSet<u32> = halts.iter().map(|halt| halt.rank).collect();
        Some(Stall {
            kind: StallKind::Missing,
            last_kinds: ranks
                .iter()
                .filter_map(|rank| Some((*rank, self.ranks.get(rank)?.kind?)))
                .collect(),
            gone: Vec::new(),
            waits: Vec::new(),
            waiting: self.seen().difference(&ranks).copied().collect(),
            culprits: ranks.into_iter().collect(),
            step: u64::from(self.step),
            since: self.last_at?,
            failure: None,
            halts,
            devices: Vec::new(),
        })
    }
}

/// Making the group of all ranks, as [`Collectives::enter`] takes it.
fn init(group: u32, number: u64, completed: bool) -> Entered {
    let (op, in_flight) = (CollectiveOp::INIT, InFlight::Unknown);
    Entered {
        group,
        number,
        op,
        detail: String::new(),
        completed,
        in_flight,
    }
}
