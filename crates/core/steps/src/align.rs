use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::{Range, RangeInclusive};

use model::{Ending, MarkKind, RankNs, RankStep, Segment, StageId, Window, threshold};
use serde::{Deserialize, Serialize};

use crate::IterationLearner;
use crate::build::build_windows;

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
        let ended = |segment: &Segment| segment.ending == Ending::Mark(MarkKind::StepEnd);
        self.ranks.values().any(|rank| {
            rank.complete || rank.micro_steps > 0 || rank.segments.iter().any(ended)
        })
    }
}

/// A step that some ranks have delivered.
#[derive(Debug)]
struct Pending {
    /// When the first of them started it.
    start: RankNs,
    ranks: BTreeMap<u32, RankStep>,
}

#[derive(Debug, Default)]
struct Expected {
    role: Option<String>,
    /// First step the rank has not gone past.
    next: u32,
    gone: bool,
}

/// Puts the steps of all ranks side by side and closes windows over them.
///
/// A window closes when it is long or old enough, and before a lasting change of the set of
/// ranks, the stages, the accumulation factor or the pattern of collectives. A step that
/// differs once stays in its window.
/// # Properties
/// Windows hold each settled step once, in order; memory is bounded by one window and
/// 4096 pending steps.
/// # Complexity
/// A step costs each rank a few look-ups, however many ranks there are.
#[derive(Debug, Default)]
pub struct Aligner {
    settings: WindowSettings,
    expected: BTreeMap<u32, Expected>,
    /// Ranks that were announced and have delivered nothing yet.
    unseen: BTreeSet<u32>,
    pending: BTreeMap<u32, Pending>,
    /// The first pending step and the first rank it waits for, as last looked at.
    waits_for: Option<(u32, u32)>,
    /// Steps that are left out on every rank.
    left_out: Option<RangeInclusive<u32>>,
    /// The settled step before the open window.
    previous: Option<JobStep>,
    open: Vec<JobStep>,
    /// Signatures that belong to the open window.
    regular: BTreeSet<u64>,
    learner: IterationLearner,
    closed: Vec<(Window, Range<RankNs>)>,
    steps: u64,
    world_size: usize,
}

impl Aligner {
    /// An aligner without ranks.
    pub fn new(settings: WindowSettings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Announces a rank: no step is settled without it until it delivers or leaves.
    ///
    /// `role` holds the coordinates that make ranks incomparable, such as the pipeline
    /// stage; `None` if nothing is known.
    pub fn expect(&mut self, rank: u32, role: Option<String>) {
        let is_new = !self.expected.contains_key(&rank);
        let changed = self.expected.get(&rank).is_some_and(|known| known.role != role);
        if (is_new && self.settled_any()) || changed {
            self.close();
        }
        let expected = self.expected.entry(rank).or_default();
        expected.role = role;
        expected.gone = false;
        if expected.next == 0 {
            self.unseen.insert(rank);
        }
        self.waits_for = None;
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
        self.world_size = self.world_size.max(ranks as usize);
    }

    /// Says that a rank will deliver nothing more.
    pub fn leave(&mut self, rank: u32) {
        if let Some(expected) = self.expected.get_mut(&rank) {
            expected.gone = true;
        }
        self.settle();
    }

    /// Takes one step of one rank. Steps of a rank come in order.
    pub fn push(&mut self, rank: u32, step: RankStep) {
        if !self.expects(rank) {
            self.expect(rank, None);
        }
        let expected = self.expected.entry(rank).or_default();
        expected.next = expected.next.max(step.step.saturating_add(1));
        self.unseen.remove(&rank);
        if self.settled_until().is_some_and(|settled| step.step <= settled) {
            return;
        }
        if self.is_left_out(step.step) {
            self.settle();
            return;
        }
        let start = step.start;
        let new = || Pending { start, ranks: BTreeMap::new() };
        let pending = self.pending.entry(step.step).or_insert_with(new);
        pending.start = pending.start.min(start);
        pending.ranks.insert(rank, step);
        self.settle();
    }

    /// Leaves out steps that say nothing of the job, on every rank; they are counted all the
    /// same, and no window reaches over them. Replaces what was left out before.
    pub fn leave_out(&mut self, steps: RangeInclusive<u32>) {
        self.left_out = Some(steps);
    }

    /// Whether a step is left out.
    pub fn is_left_out(&self, step: u32) -> bool {
        self.left_out.as_ref().is_some_and(|steps| steps.contains(&step))
    }

    /// Settles what is there and closes the last window.
    pub fn finish(&mut self) {
        while let Some((step, pending)) = self.pending.pop_first() {
            self.on_settled(JobStep { step, ranks: pending.ranks });
        }
        self.close();
    }

    /// The windows that were closed since the last call.
    pub fn take_windows(&mut self) -> Vec<Window> {
        self.take_timed_windows().into_iter().map(|(window, _)| window).collect()
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
        self.open.last().or(self.previous.as_ref()).map(|settled| settled.step)
    }

    fn settled_any(&self) -> bool {
        self.previous.is_some() || !self.open.is_empty()
    }

    /// Gives up ranks that were announced and never came.
    fn give_up_unseen(&mut self) {
        let first = self.pending.values().next();
        let last = self.pending.values().next_back();
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
            let mut ranks = self.expected.range(from.map_or(0, |(_, rank)| rank)..);
            let missing = ranks.find(|(rank, expected)| {
                let delivered = pending.ranks.contains_key(rank) || expected.next > step;
                !delivered && !expected.gone
            });
            self.waits_for = missing.map(|(rank, _)| (step, *rank));
            if self.waits_for.is_some() && self.pending.len() <= MAX_PENDING_STEPS {
                return;
            }
            if let Some((step, pending)) = self.pending.pop_first() {
                self.on_settled(JobStep { step, ranks: pending.ranks });
            }
        }
    }

    fn on_settled(&mut self, step: JobStep) {
        let left_out = self.left_out.clone().zip(self.settled_until());
        if let Some((range, last)) = left_out
            && last < *range.start()
            && step.step > *range.end()
        {
            self.steps += u64::from(range.end() - range.start()) + 1;
            self.close();
            self.previous = None;
        }
        self.steps += u64::from(step.is_trained());
        let signature = signature(&step);
        if let Some(signature) = signature {
            self.learner.hear(signature);
        }
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
        let Some(kept) =
            self.open.len().checked_sub(CHANGE_STEPS).filter(|kept| *kept > 0)
        else {
            return;
        };
        let mut recent = self.open[kept..].iter().map(signature);
        let Some(Some(new)) = recent.next() else { return };
        if self.regular.contains(&new) || !recent.all(|signature| signature == Some(new))
        {
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
        let starts = |step: &JobStep| step.ranks.values().map(|rank| rank.start).min();
        let first = self.open.first().and_then(starts);
        let last = self.open.last().and_then(starts);
        let span_s =
            first.zip(last).map_or(0.0, |(first, last)| last.seconds_since(first));
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
            let roles: BTreeMap<u32, Option<&str>> =
                expected.map(|(rank, known)| (*rank, known.role.as_deref())).collect();
            let previous = self.previous.as_ref();
            let published_cut = self.settings.published_cut;
            let world_size = self.world_size;
            let windows =
                build_windows(previous, &steps, &roles, world_size, published_cut);
            let span = span(&steps);
            self.closed.extend(windows.into_iter().map(|window| (window, span.clone())));
        }
        self.previous = steps.into_iter().next_back().or(self.previous.take());
    }
}

fn span(steps: &[JobStep]) -> Range<RankNs> {
    let ranks = || steps.iter().flat_map(|step| step.ranks.values());
    let ends = ranks().filter_map(|rank| rank.segments.last()).map(|last| last.end);
    let begun = ranks().map(|rank| rank.start).min().unwrap_or_default();
    begun..ends.max().unwrap_or(begun)
}

/// What must stay the same for steps to share a window: accumulation factor, stages, and
/// the stages that hold collectives, as most ranks have them.
fn signature(step: &JobStep) -> Option<u64> {
    let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
    for rank in step.ranks.values() {
        *votes.entry(rank_signature(rank)).or_default() += 1;
    }
    votes.into_iter().max_by_key(|(_, count)| *count).map(|(signature, _)| signature)
}

fn rank_signature(step: &RankStep) -> u64 {
    let mut parts: BTreeSet<(StageId, bool)> = BTreeSet::new();
    for segment in &step.segments {
        parts.insert((segment.stage, matches!(segment.ending, Ending::Issue { .. })));
    }
    // FNV-1a: stable from run to run, unlike the standard hasher.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut mix = |value: u64| hash = (hash ^ value).wrapping_mul(0x0000_0100_0000_01b3);
    mix(u64::from(step.micro_steps));
    for (stage, issues) in parts {
        mix(u64::from(stage.0) << 1 | u64::from(issues));
    }
    hash
}

#[cfg(test)]
mod tests {
    use model::{Cut, MarkKind, Meeting, Sync};
    use proptest::prelude::*;

    use super::*;
    use crate::testkit::steps;

    fn settings() -> WindowSettings {
        let defaults = WindowSettings::default();
        WindowSettings { warmup_steps: 0, steps: 10, min_s: 0.0, ..defaults }
    }

    /// Windows of ranks that each go through the loop given for them.
    fn windows(ranks: &[String], settings: WindowSettings) -> Vec<Window> {
        let mut aligner = Aligner::new(settings);
        let ranks: Vec<Vec<RankStep>> = ranks.iter().map(|rank| steps(rank)).collect();
        for rank in 0..ranks.len() {
            aligner.expect(rank as u32, None);
        }
        for at in 0..ranks.iter().map(Vec::len).max().unwrap_or(0) {
            for (rank, steps) in ranks.iter().enumerate() {
                if let Some(step) = steps.get(at) {
                    aligner.push(rank as u32, step.clone());
                }
            }
        }
        aligner.finish();
        aligner.take_windows()
    }

    const PLAIN: &str = "D0 D1 B0 K B1 O0 O1 ";

    fn spans(windows: &[Window]) -> Vec<(u64, u64)> {
        windows.iter().map(|window| (window.first_step, window.steps)).collect()
    }

    #[test]
    fn windows_hold_each_step_once_and_in_order() {
        let ranks = [PLAIN.repeat(31), PLAIN.repeat(31)];
        let windows = windows(&ranks, settings());
        assert_eq!(spans(&windows), [(0, 10), (10, 10), (20, 10)]);
        let rows: Vec<u64> =
            windows.iter().flat_map(|w| w.blocks[0].steps.iter().copied()).collect();
        // The first step's beginning was not seen: it lies before the first cut.
        assert_eq!(rows, (1..30).collect::<Vec<_>>());
        assert!(windows.iter().all(|window| window.incomplete_steps == 0));
    }

    #[test]
    fn windows_end_with_an_iteration_once_it_is_known() {
        // Every third step accumulates a second batch.
        let iteration = format!("{PLAIN}{PLAIN}D0 D1 B0 B1 {PLAIN}");
        let ranks = [iteration.repeat(40), iteration.repeat(40)];
        let spans = spans(&windows(&ranks, settings()));
        let known = &spans[2..];
        assert!(known.iter().all(|(_, steps)| *steps == 12), "{spans:?}");
    }

    #[test]
    fn what_follows_a_step_that_nobody_delivered_has_no_beginning() {
        let mut aligner = Aligner::new(settings());
        aligner.expect(0, None);
        aligner.expect(1, None);
        for step in steps(&PLAIN.repeat(11)).into_iter().filter(|step| step.step != 5) {
            aligner.push(0, step.clone());
            aligner.push(1, step);
        }
        aligner.finish();
        let windows = aligner.take_windows();
        assert_eq!(windows[0].blocks[0].steps[..], [1, 2, 3, 4, 7, 8, 9, 10]);
    }

    #[test]
    fn the_cut_follows_the_last_regular_collective() {
        let cut = |step: &str| {
            let ranks = [step.repeat(12), step.repeat(12)];
            windows(&ranks, settings())[0].cut
        };
        assert_eq!(cut(PLAIN), Cut::After(MarkKind::BackwardEnd));
        assert_eq!(cut("D0 D1 B0 K B1 O0 K O1 "), Cut::After(MarkKind::OptimizerEnd));
        assert_eq!(cut("D0 D1 B0 K B1 O0 O1 K "), Cut::Data);
        assert_eq!(cut("D0 D1 B0 K B1 K O0 O1 "), Cut::After(MarkKind::OptimizerBegin));
        assert_eq!(cut("D0 D1 B0 B1 O0 O1 "), Cut::After(MarkKind::BackwardEnd));
        assert_eq!(cut("S0 E0:20 E1:20 E0:21 E1:21 S1 "), Cut::Data);
        let published = WindowSettings { published_cut: true, ..settings() };
        let ranks = [PLAIN.repeat(12), PLAIN.repeat(12)];
        assert_eq!(windows(&ranks, published)[0].cut, Cut::Data);
    }

    #[test]
    fn a_single_rank_is_cut_as_published() {
        assert_eq!(
            windows(&[PLAIN.repeat(12)], settings())[0].cut,
            Cut::After(MarkKind::BackwardEnd)
        );
        let lone = "D0 D1 B0 B1 O0 O1 ".repeat(12);
        assert_eq!(windows(&[lone], settings())[0].cut, Cut::Data);
    }

    #[test]
    fn a_delay_after_the_last_collective_belongs_to_the_next_step() {
        let late =
            "D0 D1 B0 K B1 O0 O1 ".to_owned() + &"D0+40 D1 B0 K B1 O0 O1 ".repeat(11);
        let waits = PLAIN.to_owned() + &"D0 D1 B0 K B1+40 O0 O1 ".repeat(11);
        let windows = windows(&[waits, late], settings());
        assert_eq!(windows[0].meeting, Meeting::Issued);
        let block = &windows[0].blocks[0];
        let stages: Vec<StageId> = block.boundaries.iter().map(|b| b.stage).collect();
        assert_eq!(stages[0], StageId::CALLBACKS);
        assert_eq!(stages.last(), Some(&StageId::BACKWARD));
        let slow =
            block.boundaries.iter().position(|b| b.after == MarkKind::OptimizerEnd);
        assert!((block.row(0)[slow.unwrap() * 2 + 1] - 0.040).abs() < 1e-9);
    }

    /// Cut and meeting of two ranks that go through these steps, after a first plain one.
    fn meeting(steps: [&str; 2]) -> (Cut, Meeting) {
        let ranks = steps.map(|step| PLAIN.to_owned() + &step.repeat(12));
        let window = &windows(&ranks, settings())[0];
        (window.cut, window.meeting)
    }

    #[test]
    fn ranks_that_wait_behind_where_they_issue_are_cut_there() {
        let late = "D0 D1+40 B0 K B1 O0 O1 ";
        for (waits, cut) in [
            ("D0 D1 B0 K B1 O0+40 O1 ", Cut::After(MarkKind::OptimizerBegin)),
            ("D0 D1 B0 K B1 O0 O1+40 ", Cut::After(MarkKind::OptimizerEnd)),
            ("D0+40 D1 B0 K B1 O0 O1 ", Cut::Data),
        ] {
            assert_eq!(meeting([waits, late]), (cut, Meeting::Seen));
        }
    }

    #[test]
    fn ranks_that_never_wait_are_cut_as_published() {
        let late = "D0 D1+40 B0 K B1 O0 O1 ";
        assert_eq!(meeting([PLAIN, late]), (Cut::Data, Meeting::Unseen));
    }

    #[test]
    fn where_ranks_never_get_apart_nothing_speaks_against_where_they_issue() {
        let issued = (Cut::After(MarkKind::BackwardEnd), Meeting::Issued);
        assert_eq!(meeting([PLAIN, PLAIN]), issued);
    }

    proptest! {
        /// Wherever the host reads back, and however far it runs ahead until then.
        #[test]
        fn moving_the_read_back_moves_no_lateness(
            place in 0usize..3, late_ms in 5u32..200, device_ms in 0u32..200,
        ) {
            let step = |data_ms, wait_ms| {
                let mut words =
                    ["D0", "D1", "B0", "K", "B1", "O0", "O1"].map(|word| (word, 1));
                words[1].1 += data_ms;
                words[[5, 6, 0][place]].1 += device_ms + wait_ms;
                words.map(|(word, ms)| format!("{word}+{ms} ")).concat()
            };
            let (late, waits) = (step(late_ms, 0), step(0, late_ms));
            let ranks = [waits, late].map(|step| step.repeat(13));
            let window = &windows(&ranks, settings())[0];
            prop_assert_eq!(window.meeting, Meeting::Seen);
            let block = &window.blocks[0];
            let data =
                block.boundaries.iter().position(|b| b.stage == StageId::DATA).unwrap();
            let row = block.row(2);
            let [waiting, culprit] = [row[2 * data], row[2 * data + 1]];
            prop_assert!((culprit - waiting - f64::from(late_ms) * 1e-3).abs() < 1e-9);
            let total = |rank| row.iter().skip(rank).step_by(2).sum::<f64>();
            prop_assert!((total(0) - total(1)).abs() < 1e-9, "they meet at the cut");
            let apart = row.chunks(2).scan([0.0; 2], |ends, cells| {
                ends[0] += cells[0];
                ends[1] += cells[1];
                Some(ends[1] - ends[0])
            });
            // Nobody but the culprit is ever the later one.
            prop_assert!(apart.fold(f64::INFINITY, f64::min) > -1e-9);
        }
    }

    #[test]
    fn a_lasting_change_of_accumulation_closes_the_window() {
        let four = "D0 D1 B0 B1 D0 D1 B0 B1 D0 D1 B0 B1 D0 D1 B0 K B1 O0 O1 ";
        let rank = PLAIN.repeat(7) + &four.repeat(8);
        let windows = windows(&[rank.clone(), rank], settings());
        assert_eq!(spans(&windows)[0], (0, 7));
        assert_eq!(windows[1].first_step, 7);
    }

    #[test]
    fn a_lasting_change_of_the_collectives_closes_the_window() {
        let rank = PLAIN.repeat(7) + &"D0 D1 B0 K B1 O0 K O1 ".repeat(8);
        let windows = windows(&[rank.clone(), rank], settings());
        assert_eq!(spans(&windows)[0], (0, 7));
        assert_eq!(windows[1].cut, Cut::After(MarkKind::OptimizerEnd));
    }

    #[test]
    fn a_step_that_differs_once_stays_in_its_window() {
        let logs = "D0 D1 B0 K B1 O0 O1 K ";
        let rank = PLAIN.repeat(5) + logs + &PLAIN.repeat(5);
        let windows = windows(&[rank.clone(), rank], settings());
        assert_eq!(spans(&windows), [(0, 10)]);
        assert_eq!(windows[0].rows(), 9);
        assert_eq!(windows[0].blocks.len(), 2);
    }

    #[test]
    fn batches_that_other_steps_use_are_told_from_batches_read_one_step_ahead() {
        let unsafe_prefetch = |first: &str, loop_: &str| {
            let rank = first.to_owned() + &loop_.repeat(12);
            windows(&[rank.clone(), rank], settings())[0].unsafe_prefetch
        };
        let bursts = "S0 D0 D1 D0 D1 B0 K B1 O0 O1 S1 S0 B0 K B1 O0 O1 S1 ";
        assert!(unsafe_prefetch("", bursts));
        assert!(!unsafe_prefetch("D0 D1 ", PLAIN), "one batch ahead throughout");
        let evaluates = PLAIN.repeat(4) + "D0 D1 D0 D1 D0 D1 ";
        assert!(!unsafe_prefetch("", &evaluates));
    }

    #[test]
    fn a_rank_that_joins_closes_the_window() {
        let all = steps(&PLAIN.repeat(20));
        for announced in [true, false] {
            let mut aligner = Aligner::new(settings());
            (0..2).for_each(|rank| aligner.expect(rank, None));
            for (at, step) in all.iter().enumerate() {
                if at == 7 && announced {
                    aligner.expect(2, None);
                }
                // The newcomer first: what comes before it would be settled without it.
                let ranks = if at < 7 { 0..2 } else { 0..3 };
                ranks.rev().for_each(|rank| aligner.push(rank, step.clone()));
            }
            aligner.finish();
            let windows = aligner.take_windows();
            assert_eq!(spans(&windows), [(0, 7), (7, 10)], "announced: {announced}");
            assert_eq!(
                (&windows[0].ranks[..], &windows[1].ranks[..]),
                (&[0, 1][..], &[0, 1, 2][..])
            );
            assert!(windows.iter().all(|window| window.missing_ranks.is_empty()));
        }
    }

    #[test]
    fn a_lasting_change_of_the_stages_closes_the_window() {
        let named = "D0 D1 E0:20 E1:20 B0 K B1 O0 O1 ";
        let rank = PLAIN.repeat(7) + &named.repeat(8);
        let windows = windows(&[rank.clone(), rank], settings());
        assert_eq!(spans(&windows), [(0, 7), (7, 8)]);
        assert!(!windows[0].stages().contains(&StageId(20)));
        assert!(windows[1].stages().contains(&StageId(20)));
    }

    #[test]
    fn a_rank_that_changes_its_role_closes_the_window() {
        let mut aligner = Aligner::new(settings());
        let all = steps(&PLAIN.repeat(20));
        aligner.expect(0, None);
        aligner.expect(1, None);
        for step in &all[..7] {
            aligner.push(0, step.clone());
            aligner.push(1, step.clone());
        }
        aligner.expect(1, Some("pp=1".into()));
        for step in &all[7..] {
            aligner.push(0, step.clone());
            aligner.push(1, step.clone());
        }
        aligner.finish();
        let windows = aligner.take_windows();
        assert_eq!(spans(&windows)[..3], [(0, 7), (7, 10), (7, 10)]);
        assert_eq!((&windows[1].ranks, &windows[2].ranks), (&vec![0], &vec![1]));
    }

    #[test]
    fn a_rank_that_delivers_nothing_is_missing_and_not_guessed() {
        let mut aligner = Aligner::new(settings());
        for rank in 0..3 {
            aligner.expect(rank, None);
        }
        for step in steps(&PLAIN.repeat(21)) {
            aligner.push(0, step.clone());
            aligner.push(1, step);
        }
        assert!(aligner.take_windows().is_empty(), "rank 2 may still come");
        aligner.leave(2);
        aligner.finish();
        for window in aligner.take_windows() {
            assert_eq!(window.ranks, [0, 1]);
            assert_eq!(window.missing_ranks, [2]);
        }
    }

    #[test]
    fn a_rank_that_never_comes_is_given_up_after_a_while() {
        let mut aligner = Aligner::new(settings());
        (0..2).for_each(|rank| aligner.expect(rank, None));
        for step in steps(&PLAIN.repeat(UNSEEN_STEPS + 20)) {
            aligner.push(0, step);
        }
        assert!(!aligner.take_windows().is_empty());
    }

    #[test]
    fn different_collectives_over_the_ranks_are_a_finding_and_no_boundary() {
        let more = "D0 D1 B0 K K B1 O0 O1 ".repeat(12);
        let windows = windows(&[PLAIN.repeat(12), more], settings());
        assert_eq!(windows[0].mismatched_steps, 9);
        let mut boundaries = windows[0].blocks.iter().flat_map(|b| b.boundaries.iter());
        assert!(boundaries.all(|boundary| boundary.sync == Sync::None));
    }

    #[test]
    fn no_window_reaches_over_steps_that_are_left_out() {
        let mut aligner = Aligner::new(settings());
        (0..2).for_each(|rank| aligner.expect(rank, None));
        aligner.leave_out(17..=21);
        for step in steps(&PLAIN.repeat(41)) {
            (0..2).for_each(|rank| aligner.push(rank, step.clone()));
        }
        aligner.finish();
        assert_eq!(aligner.steps(), 41);
        let windows = aligner.take_windows();
        assert_eq!(spans(&windows), [(0, 10), (10, 7), (22, 10), (32, 9)]);
        assert!(windows.iter().all(|window| window.incomplete_steps == 0));
    }

    #[test]
    fn ranks_that_do_different_things_need_roles() {
        let other = "F0 F1 B0 K B1 O0 O1 ".repeat(12);
        let windows = windows(&[PLAIN.repeat(12), other], settings());
        assert_eq!(windows[0].roles, 2);
    }

    #[test]
    fn communicators_of_some_ranks_are_kept_apart() {
        let mut ranks: Vec<Vec<RankStep>> =
            (0..2).map(|_| steps(&PLAIN.repeat(12))).collect();
        for segment in ranks[1].iter_mut().flat_map(|step| &mut step.segments) {
            if let Ending::Issue { group, .. } = &mut segment.ending {
                *group = 5;
            }
        }
        let mut aligner = Aligner::new(settings());
        (0..2).for_each(|rank| aligner.expect(rank, None));
        for (rank, steps) in (0..).zip(ranks) {
            for step in steps {
                aligner.push(rank, step);
            }
        }
        aligner.finish();
        let windows = aligner.take_windows();
        let groups = windows[0].blocks[0].groups.as_ref().unwrap();
        assert!(groups.chunks(2).any(|pair| pair == [0, 5]));
    }

    #[test]
    fn a_rank_that_joins_behind_the_others_is_waited_for() {
        let mut aligner = Aligner::new(settings());
        (1..3).for_each(|rank| aligner.expect(rank, None));
        let all = steps(&PLAIN.repeat(31));
        for step in &all[..25] {
            (1..3).for_each(|rank| aligner.push(rank, step.clone()));
        }
        // Unannounced, and with a step that is settled already.
        aligner.push(0, all[20].clone());
        let settled = aligner.steps();
        for step in &all[25..] {
            (1..3).for_each(|rank| aligner.push(rank, step.clone()));
        }
        assert_eq!(aligner.steps(), settled);
    }

    /// Each look-up that grows with the ranks shows here as minutes.
    #[test]
    fn twenty_thousand_ranks_are_aligned_in_passing() {
        let mut aligner = Aligner::new(settings());
        (0..20_000).for_each(|rank| aligner.expect(rank, None));
        let all = steps(&"D0 B1 O1 ".repeat(5));
        for step in &all {
            (0..20_000).for_each(|rank| aligner.push(rank, step.clone()));
        }
        aligner.finish();
        assert_eq!(aligner.steps(), all.len() as u64);
    }

    #[test]
    fn a_window_of_more_steps_than_can_be_counted_closes_at_the_end() {
        let endless = WindowSettings { steps: usize::MAX, ..settings() };
        assert_eq!(spans(&windows(&[PLAIN.repeat(31)], endless)).len(), 1);
    }

    #[test]
    fn steps_that_take_long_close_windows_by_age() {
        let slow = "D0 D1+9000 B0 K B1 O0 O1 ".repeat(12);
        let windows = windows(&[slow.clone(), slow], settings());
        assert_eq!(windows[0].steps, 5);
    }
}
