mod drift;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::{Range, RangeInclusive};

use model::{Ending, MarkKind, RankNs, RankStep, StageId, Window, threshold};
use serde::{Deserialize, Serialize};

use self::drift::{Drift, drift};
use crate::IterationLearner;
use crate::build::{RankPlace, build_windows};
use crate::meeting::OwnClocks;

/// Parts of what is left out: a profile, and the stops of its profilers. Ours.
const MAX_LEFT_OUT: usize = 4;
/// Steps with a new signature that must follow each other before a window closes on it:
/// one evaluation or one logging collective is part of the loop, not a new loop.
const CHANGE_STEPS: usize = 3;
/// Times its usual number of steps after which a window closes however young it is.
const STEPS_AT_MOST: usize = 20;
/// Steps that may wait for a rank before they are settled without it.
const MAX_PENDING_STEPS: usize = 4096;
/// Steps, and seconds of the other ranks, after which a rank that was announced and never
/// delivered anything is no longer waited for: its process runs without laggard.
const UNSEEN_STEPS: usize = 200;
const UNSEEN_S: f64 = 20.0;
/// Steps that may wait for a rank to show whether the numbers of others' steps are larger by as many.
const MAX_DRIFT_STEPS: usize = 64;
/// Ranks that are waited for on the word of a rank beside them; no host has more.
pub const MAX_NEIGHBOURS: usize = 4096;

/// How steps become windows; the `[window]` table of the settings file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WindowSettings {
    /// First steps that are left out: caches, allocators and communicators warm up. The
    /// paper leaves out 20; jobs of a laptop are short.
    pub warmup_steps: u32,
    /// Steps after which a window closes, if it is at least `min_s` old.
    pub steps: usize,
    /// Seconds a window lasts at least, so that fast steps are not judged by the hiccups of
    /// a moment; twenty times `steps` close it in any case.
    #[serde(deserialize_with = "threshold")]
    pub min_s: f64,
    /// Seconds after which a window closes, if it has at least `min_steps`.
    #[serde(deserialize_with = "threshold")]
    pub max_s: f64,
    /// Fewest steps a window is closed on for its age, or analysed at all.
    pub min_steps: usize,
    /// Cut steps before the data wait as published, whatever collectives are seen.
    pub published_cut: bool,
}

impl Default for WindowSettings {
    fn default() -> Self {
        Self {
            warmup_steps: 5,
            steps: 50,
            min_s: 1.0,
            max_s: 30.0,
            min_steps: 5,
            published_cut: false,
        }
    }
}

/// One step of the job: what each rank delivered of it.
#[derive(Debug)]
pub(crate) struct JobStep {
    pub(crate) step: u32,
    pub(crate) ranks: BTreeMap<u32, RankStep>,
}

impl JobStep {
    /// What follows the last optimizer step, or the last that the script named, is not a step.
    pub(crate) fn is_trained(&self) -> bool {
        self.ranks.values().any(|rank| {
            rank.complete
                || rank.micro_steps > 0
                || rank
                    .segments
                    .iter()
                    .any(|segment| segment.ending == Ending::Mark(MarkKind::StepEnd))
        })
    }

    /// When the first rank began it, by that rank's clock.
    fn start(&self) -> Option<RankNs> {
        self.ranks.values().map(|rank| rank.start).min()
    }
}

/// A step that some ranks have delivered.
#[derive(Debug)]
struct PendingStep {
    /// When the first of them started it.
    start: RankNs,
    ranks: BTreeMap<u32, RankStep>,
}

#[derive(Debug, Default)]
struct ExpectedRank {
    role: Option<String>,
    host: Option<String>,
    /// First step the rank has not gone past.
    next: u32,
    gone: bool,
    /// By how much the job's numbers of its steps are larger than its own.
    ahead: u32,
}

impl ExpectedRank {
    fn place(&self) -> RankPlace<'_> {
        RankPlace {
            role: self.role.as_deref(),
            host: self.host.as_deref(),
        }
    }
}

/// Puts the steps of all ranks side by side and closes windows over them.
///
/// A window closes when it is long or old enough, and before a lasting change of the set of
/// ranks, the stages, the accumulation factor or the pattern of collectives. A step that
/// differs once stays in its window. Ranks may number their steps differently, as where one has
/// fewer batches in an epoch: a step that issues the collectives of another rank's later step is that
/// step.
/// # Properties
/// Windows hold each settled step once, in order; memory is bounded by one window and
/// 4096 pending steps.
/// # Complexity
/// A step costs each rank a few look-ups, however many ranks there are.
#[derive(Debug, Default)]
pub struct Aligner {
    settings: WindowSettings,
    expected: BTreeMap<u32, ExpectedRank>,
    /// Ranks that were announced and have delivered nothing yet.
    unseen: BTreeSet<u32>,
    pending: BTreeMap<u32, PendingStep>,
    /// The first pending step and the first rank it waits for, as last looked at.
    waits_for: Option<(u32, u32)>,
    /// A rank whose steps tell how others number theirs, and the first it had not gone past then.
    behind: Option<(u32, u32)>,
    /// Steps that are left out on every rank.
    left_out: Vec<RangeInclusive<u32>>,
    /// The settled step before the open window.
    previous: Option<JobStep>,
    open: Vec<JobStep>,
    /// Signatures that belong to the open window.
    regular: BTreeSet<u64>,
    learner: IterationLearner,
    /// By role.
    clocks: BTreeMap<Option<String>, OwnClocks>,
    closed: Vec<(Window, Range<RankNs>)>,
    steps: u64,
    world_size: usize,
}

impl Aligner {
    /// An aligner without ranks.
    pub fn new(settings: WindowSettings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Announces a rank: no step is settled without it until it delivers or leaves.
    ///
    /// `role` holds the coordinates that make ranks incomparable, such as the pipeline
    /// stage; `None` if nothing is known.
    pub fn expect(&mut self, rank: u32, role: Option<String>) {
        let is_new = !self.expected.contains_key(&rank);
        let changed = self
            .expected
            .get(&rank)
            .is_some_and(|known| known.role != role);
        // A window has the same ranks and roles in all its steps.
        if (is_new && self.settled_any()) || changed {
            self.close();
        }
        let expected = self.expected.entry(rank).or_default();
        expected.role = role;
        expected.gone = false;
        if expected.next == 0 {
            self.unseen.insert(rank);
        }
        // The new rank may come before the one that was waited for.
        self.waits_for = None;
    }

    /// Announces a rank of a host that is one of `host_ranks`: those beside it are taken to have its role
    /// until they say otherwise.
    pub fn expect_host(
        &mut self,
        rank: u32,
        host: &str,
        host_ranks: Range<u32>,
        role: Option<String>,
    ) {
        // A host says how many ranks it has: a wrong number must not let all steps wait for them.
        let room = MAX_NEIGHBOURS.saturating_sub(self.ranks());
        let peers: Vec<u32> = host_ranks
            .take(MAX_NEIGHBOURS)
            .filter(|peer| *peer != rank && !self.expects(*peer))
            .take(room)
            .collect();
        for peer in peers {
            self.expect(peer, role.clone());
        }
        self.expect(rank, role);
        if let Some(expected) = self.expected.get_mut(&rank) {
            expected.host = Some(host.to_owned());
        }
    }

    /// Whether a rank was announced.
    pub fn expects(&self, rank: u32) -> bool {
        self.expected.contains_key(&rank)
    }

    /// What makes a rank incomparable with others.
    pub fn role(&self, rank: u32) -> Option<&str> {
        self.expected.get(&rank)?.role.as_deref()
    }

    /// Number of ranks that were announced or have delivered something.
    pub fn ranks(&self) -> usize {
        self.expected.len()
    }

    /// Says how many ranks the whole job has, those of other hosts included.
    pub fn set_world_size(&mut self, ranks: u32) {
        // Each rank says it; one that knows less must not lower it.
        self.world_size = self.world_size.max(ranks as usize);
    }

    /// Says that a rank will deliver nothing more.
    pub fn leave(&mut self, rank: u32) {
        if let Some(expected) = self.expected.get_mut(&rank) {
            expected.gone = true;
        }
        self.settle();
    }

    /// The job's number of the step that a rank is in by its own: the furthest if these differ.
    pub fn job_step(&self, rank: u32, step: u32) -> u32 {
        let ahead = self.expected.get(&rank).map_or(0, |known| known.ahead);
        step.saturating_add(ahead)
    }

    /// Takes one step of one rank. Steps of a rank come in order.
    pub fn push(&mut self, rank: u32, mut step: RankStep) {
        if !self.expects(rank) {
            self.expect(rank, None);
        }
        step.step = self.job_step(rank, step.step);
        let expected = self.expected.entry(rank).or_default();
        expected.next = expected.next.max(step.step.saturating_add(1));
        self.unseen.remove(&rank);
        if self
            .settled_until()
            // The window went on without it.
            .is_some_and(|settled| step.step <= settled)
        {
            return;
        }
        if self.is_left_out(step.step) {
            self.settle();
            return;
        }
        self.wait_for_others(rank, step);
        self.settle();
    }

    fn wait_for_others(&mut self, rank: u32, step: RankStep) {
        let start = step.start;
        let pending = self
            .pending
            .entry(step.step)
            .or_insert_with(|| PendingStep {
                start,
                ranks: BTreeMap::new(),
            });
        pending.start = pending.start.min(start);
        pending.ranks.insert(rank, step);
    }

    /// Leaves out steps that say nothing of the job, on every rank; they are counted all the
    /// same, and no window reaches over them. Replaces what was left out before.
    pub fn leave_out(&mut self, steps: RangeInclusive<u32>) {
        self.left_out = vec![steps];
    }

    /// Leaves out more steps, if any are left out, and those between where that are many parts.
    pub fn leave_out_also(&mut self, steps: RangeInclusive<u32>) {
        let has_room = self.left_out.len() < MAX_LEFT_OUT;
        let Some(known) = self.left_out.last_mut() else {
            return;
        };
        let is_apart = *steps.start() > known.end().saturating_add(1);
        if is_apart && has_room {
            self.left_out.push(steps);
        } else {
            *known = *steps.start().min(known.start())..=*steps.end().max(known.end());
        }
        let is_left_out = |step: &u32| self.left_out.iter().any(|steps| steps.contains(step));
        self.pending.retain(|step, _| !is_left_out(step));
        self.waits_for = None;
    }

    /// The steps that are left out, ascending.
    pub fn left_out(&self) -> &[RangeInclusive<u32>] {
        &self.left_out
    }

    /// Whether a step is left out.
    pub fn is_left_out(&self, step: u32) -> bool {
        self.left_out.iter().any(|steps| steps.contains(&step))
    }

    /// Settles what is there and closes the last window.
    pub fn finish(&mut self) {
        while let Some((&step, _)) = self.pending.first_key_value() {
            self.realign(step, |_| false);
            self.settle_first();
        }
        self.close();
    }

    /// The windows that were closed since the last call.
    pub fn take_windows(&mut self) -> Vec<Window> {
        self.take_timed_windows()
            .into_iter()
            .map(|(window, _)| window)
            .collect()
    }

    /// The same, and when the first rank began and the last one ended their steps.
    pub fn take_timed_windows(&mut self) -> Vec<(Window, Range<RankNs>)> {
        mem::take(&mut self.closed)
    }

    /// Steps settled so far, warm-up included.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Optimizer steps that make up one iteration of the loop, once it is known.
    pub fn iteration_steps(&self) -> Option<usize> {
        Some(self.learner.cycle().len()).filter(|steps| *steps > 0)
    }

    fn settled_until(&self) -> Option<u32> {
        self.open
            .last()
            .or(self.previous.as_ref())
            .map(|settled| settled.step)
    }

    fn settled_any(&self) -> bool {
        self.previous.is_some() || !self.open.is_empty()
    }

    /// Gives up ranks that were announced and never came.
    fn give_up_unseen(&mut self) {
        let first = self.pending.values().next();
        let last = self.pending.values().next_back();
        // By the ranks' clock, not by ours: a recording is read in no time.
        let waited_s = first
            .zip(last)
            .map_or(0.0, |(first, last)| last.start.seconds_since(first.start));
        if self.pending.len() > UNSEEN_STEPS || waited_s > UNSEEN_S {
            for rank in mem::take(&mut self.unseen) {
                self.expected.entry(rank).or_default().gone = true;
            }
        }
    }

    fn settle(&mut self) {
        self.give_up_unseen();
        while let Some((&step, pending)) = self.pending.first_key_value() {
            // Ranks before the one it waited for have nothing left to deliver of it.
            let from = self.waits_for.filter(|(waiting, _)| *waiting == step);
            let missing = self
                .expected
                .range(from.map_or(0, |(_, rank)| rank)..)
                .find(|(rank, expected)| {
                    let delivered = pending.ranks.contains_key(rank) || expected.next > step;
                    !delivered && !expected.gone
                });
            self.waits_for = missing.map(|(rank, _)| (step, *rank));
            // A rank that delivers no more must not hold steps, and memory, forever.
            if self.waits_for.is_some() && self.pending.len() <= MAX_PENDING_STEPS {
                return;
            }
            let may_follow = self.pending.len() <= MAX_DRIFT_STEPS;
            if !self.realign(step, |gone| may_follow && !gone) {
                return;
            }
            self.settle_first();
        }
    }

    fn settle_first(&mut self) {
        if let Some((step, pending)) = self.pending.pop_first() {
            self.on_settled(JobStep {
                step,
                ranks: pending.ranks,
            });
        }
    }

    /// Moves steps of ranks that are a later one of the others by their collectives to where they
    /// belong. Returns false if steps that may still come tell whether they are; `may_follow` says it of
    /// a rank that is gone, or not.
    fn realign(&mut self, step: u32, may_follow: impl Fn(bool) -> bool) -> bool {
        let waits = |(rank, next): (u32, u32)| {
            let known = self.expected.get(&rank);
            known.is_some_and(|it| it.next == next && may_follow(it.gone))
        };
        if self.behind.is_some_and(waits) {
            return false;
        }
        self.behind = None;
        loop {
            let follows = |rank| {
                self.expected
                    .get(&rank)
                    .is_some_and(|it| may_follow(it.gone))
            };
            match drift(&self.pending, step, follows) {
                Drift::None => return true,
                Drift::Ahead { rank, steps } => self.move_ahead(rank, step, steps),
                Drift::Open { behind } => {
                    let known = self.expected.get(&behind);
                    self.behind = known.map(|it| (behind, it.next));
                    return false;
                }
            }
        }
    }

    /// Gives the steps of a rank from `step` on numbers that are larger by so much.
    fn move_ahead(&mut self, rank: u32, step: u32, by: u32) {
        let pending = self.pending.range_mut(step..);
        let moved: Vec<RankStep> = pending
            .filter_map(|(_, of_step)| of_step.ranks.remove(&rank))
            .collect();
        if let Some(expected) = self.expected.get_mut(&rank) {
            expected.ahead = expected.ahead.saturating_add(by);
            expected.next = expected.next.saturating_add(by);
        }
        for mut piece in moved {
            piece.step = piece.step.saturating_add(by);
            self.wait_for_others(rank, piece);
        }
    }

    fn on_settled(&mut self, step: JobStep) {
        let last = self.settled_until();
        let passed = self.left_out.iter().filter(|steps| {
            last.is_some_and(|last| last < *steps.start()) && step.step > *steps.end()
        });
        // Steps that nobody analyses were trained all the same.
        let passed: u64 = passed
            .map(|steps| u64::from(steps.end() - steps.start()) + 1)
            .sum();
        if passed > 0 {
            self.steps += passed;
            self.close();
            // No row may reach over steps that are left out.
            self.previous = None;
        }
        self.steps += u64::from(step.is_trained());
        let signature = signature(&step);
        if let Some(signature) = signature {
            self.learner.hear(signature);
        }
        // The last of them is kept: the cut of the first window may lie in it.
        if step.step < self.settings.warmup_steps {
            self.previous = Some(step);
            return;
        }
        if self.open.is_empty() {
            self.regular = self.learner.cycle().iter().copied().collect();
            self.regular.extend(signature);
        }
        self.open.push(step);
        self.close_before_change();
        if self.is_full() {
            self.close();
        }
    }

    /// Closes the window before its last steps if they all show the same new signature.
    fn close_before_change(&mut self) {
        let Some(kept) = self
            .open
            .len()
            .checked_sub(CHANGE_STEPS)
            .filter(|kept| *kept > 0)
        else {
            return;
        };
        let mut recent = self.open[kept..].iter().map(signature);
        let Some(Some(new)) = recent.next() else {
            return;
        };
        if self.regular.contains(&new) || !recent.all(|signature| signature == Some(new)) {
            return;
        }
        let changed = self.open.split_off(kept);
        self.close();
        self.open = changed;
        self.regular = BTreeSet::from([new]);
    }

    fn is_full(&self) -> bool {
        let steps = self.open.len();
        if steps < self.settings.min_steps {
            return false;
        }
        let first = self.open.first().and_then(JobStep::start);
        let last = self.open.last().and_then(JobStep::start);
        let span_s = first
            .zip(last)
            .map_or(0.0, |(first, last)| last.seconds_since(first));
        // Of a loop that trains two networks in turn each window must have as many steps of both.
        let whole_iterations = steps.is_multiple_of(self.learner.cycle().len().max(1));
        let is_long = steps >= self.settings.steps && span_s >= self.settings.min_s;
        (is_long && whole_iterations)
            || steps >= self.settings.steps.saturating_mul(STEPS_AT_MOST)
            || span_s >= self.settings.max_s
    }

    fn close(&mut self) {
        let steps = mem::take(&mut self.open);
        if steps.len() >= self.settings.min_steps {
            let expected = self.expected.iter();
            let places = expected
                .map(|(rank, known)| (*rank, known.place()))
                .collect::<BTreeMap<_, _>>();
            let windows = build_windows(
                self.previous.as_ref(),
                &steps,
                &places,
                self.world_size,
                self.settings.published_cut,
                &mut self.clocks,
            );
            let span = span(&steps);
            self.closed
                .extend(windows.into_iter().map(|window| (window, span.clone())));
        }
        // A cut may lie in the step before: the next window needs its last segments.
        self.previous = steps.into_iter().next_back().or(self.previous.take());
    }
}

fn span(steps: &[JobStep]) -> Range<RankNs> {
    let begun = steps
        .iter()
        .filter_map(JobStep::start)
        .min()
        .unwrap_or_default();
    let ended = steps
        .iter()
        .flat_map(|step| step.ranks.values())
        .filter_map(|rank| rank.segments.last())
        .map(|last| last.end)
        .max();
    begun..ended.unwrap_or(begun)
}

/// What must stay the same for steps to share a window: accumulation factor, stages, and
/// the stages that hold collectives, as most ranks have them.
fn signature(step: &JobStep) -> Option<u64> {
    let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
    for rank in step.ranks.values() {
        *votes.entry(rank_signature(rank)).or_default() += 1;
    }
    votes
        .into_iter()
        // Of equals the largest signature, so that a run repeats.
        .max_by_key(|(_, count)| *count)
        .map(|(signature, _)| signature)
}

fn rank_signature(step: &RankStep) -> u64 {
    // Which segments, not how many: a collective more or less is no other loop.
    let mut parts: BTreeSet<(StageId, bool)> = BTreeSet::new();
    for segment in &step.segments {
        parts.insert((
            segment.stage,
            matches!(segment.ending, Ending::Issue { .. }),
        ));
    }
    // FNV-1a: stable from run to run, unlike the standard hasher.
    parts
        .into_iter()
        .map(|(stage, issues)| u64::from(stage.0) << 1 | u64::from(issues))
        .fold(mix(0xcbf2_9ce4_8422_2325, u64::from(step.micro_steps)), mix)
}

fn mix(hash: u64, value: u64) -> u64 {
    (hash ^ value).wrapping_mul(0x0000_0100_0000_01b3)
}

#[cfg(test)]
mod tests;
