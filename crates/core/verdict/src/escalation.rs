//! When a running job is worth a profile, of which ranks, and what of it was sent.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use model::{ProfileWindow, RankNs, RankStep, median, threshold};
use pattern::{Trigger, TriggerSettings};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use steps::{Iteration, IterationTimer};

use crate::{Rule, Suspicion};

/// What is profiled where somebody is suspected, and where nobody is.
const SUSPECTED: Rule = Suspicion::Slow.rule();
const UNSUSPECTED: Rule = Suspicion::LongerSteps.rule();
/// Steps whose length is remembered, to say what a window does to it.
const REMEMBERED_STEPS: usize = 50;
/// Steps by which a window is ordered ahead, beside the time that the order takes.
const AHEAD_STEPS: f64 = 2.0;
/// Seconds no window is longer than, however it was asked for: what is recorded, some 10 MB a
/// second with stacks, stands in the memory of training, which waits until it is written. Chosen.
pub const MAX_WINDOW_S: f64 = 60.0;
/// Seconds of a step where none is known yet.
const UNKNOWN_STEP_S: f64 = 1.0;

/// When ranks of a running job are profiled, and for how long; the `[profile]` table of the
/// settings file.
///
/// # Source
/// [`Suspicion::rule`]; that of `max_steps` is our choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProfileSettings {
    /// Whether a job that is slow is profiled unasked.
    pub enabled: bool,
    /// Seconds from one such window to the next.
    #[serde(deserialize_with = "threshold")]
    pub every_s: f64,
    /// Seconds a window lasts at most; [`MAX_WINDOW_S`] at most.
    #[serde(deserialize_with = "window_length")]
    pub max_s: f64,
    /// Steps a window has at most: stopping a profiler takes as long as it recorded much.
    pub max_steps: u32,
    /// Ranks that are profiled beside the suspects, to compare with.
    pub peers: usize,
}

impl Default for ProfileSettings {
    fn default() -> Self {
        let Rule {
            others: peers,
            every_s,
            lasts_s: max_s,
            ..
        } = SUSPECTED;
        Self {
            enabled: true,
            every_s,
            max_s,
            max_steps: 10,
            peers,
        }
    }
}

fn window_length<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let seconds = threshold(deserializer)?;
    if seconds <= MAX_WINDOW_S {
        return Ok(seconds);
    }
    Err(D::Error::custom(format!(
        "expected {MAX_WINDOW_S} or less, found {seconds}"
    )))
}

/// A profile window that is wanted: the same steps on all its ranks, whatever their hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedProfile {
    /// The ranks.
    pub ranks: Vec<u32>,
    /// The first step.
    pub first_step: u32,
    /// How many.
    pub steps: u32,
    /// Milliseconds after which it ends at the next step all the same.
    pub limit_ms: u32,
}

impl ProfileSettings {
    /// The window of `ranks` for a job that is in `step`, as near as all of them can be told of it
    /// in `ahead_s`.
    pub fn window(
        &self,
        ranks: Vec<u32>,
        step: u32,
        usual_step_s: Option<f64>,
        ahead_s: f64,
    ) -> WantedProfile {
        let steps = (self.max_s / known_step_s(usual_step_s)).floor();
        WantedProfile {
            ranks,
            first_step: step_in(ahead_s, step, usual_step_s),
            // `clamp` panics where the most is below the least, and settings may say 0.
            steps: steps.clamp(1.0, f64::from(self.max_steps.max(1))) as u32,
            limit_ms: (self.max_s * 1e3) as u32,
        }
    }
}

/// What a step takes, in seconds.
pub(crate) fn known_step_s(usual_step_s: Option<f64>) -> f64 {
    // Steps of a recording may take no time, and this is divided by.
    usual_step_s.unwrap_or(UNKNOWN_STEP_S).max(1e-6)
}

/// The step of a job that is in `step` which all ranks can be told of in `ahead_s`.
pub(crate) fn step_in(ahead_s: f64, step: u32, usual_step_s: Option<f64>) -> u32 {
    let ahead = (AHEAD_STEPS + ahead_s / known_step_s(usual_step_s)).ceil();
    // The cast saturates as well: short steps make this large.
    step.saturating_add(ahead as u32)
}

/// What is known of windows: the one under way, and when the next may be.
#[derive(Debug, Default)]
pub(crate) struct Escalation {
    settings: ProfileSettings,
    timer: IterationTimer,
    trigger: Trigger,
    /// The rank whose iterations are timed: all ranks of a job keep step.
    timed: Option<u32>,
    /// Whether something has happened that may be worth a window.
    fresh: bool,
    slower: bool,
    ordered_at: Option<RankNs>,
    under_way: Option<Ordered>,
    /// Seconds of the last steps outside windows.
    usual_s: Vec<f64>,
}

/// A window under way, on one host or several.
#[derive(Debug, Default)]
pub(crate) struct Ordered {
    pub(crate) first_step: u32,
    pub(crate) steps: u32,
    ranks: BTreeSet<u32>,
    /// Ranks whose hosts have not sent all of it.
    awaited: BTreeSet<u32>,
    pub(crate) profiled: BTreeMap<u32, ProfileWindow>,
    /// Seconds of its steps, without those in which the profiler starts and stops.
    lasted_s: Vec<f64>,
}

impl Escalation {
    pub(crate) fn new(settings: ProfileSettings, trigger: TriggerSettings) -> Self {
        Self {
            settings,
            trigger: Trigger::new(trigger),
            ..Self::default()
        }
    }

    /// Takes a rank's next step.
    pub(crate) fn step(&mut self, rank: u32, step: &RankStep) {
        if *self.timed.get_or_insert(rank) != rank {
            return;
        }
        let Some(end) = step.segments.last().map(|segment| segment.end) else {
            return;
        };
        let lasted_s = end.seconds_since(step.start);
        match &mut self.under_way {
            // The profiler lengthens these: they are neither usual nor a reason for another window.
            Some(window) if window.covers(step.step) => {
                if step.step > window.first_step && step.step < window.last_step() {
                    window.lasted_s.push(lasted_s);
                }
                return;
            }
            _ => {
                self.usual_s.push(lasted_s);
                if self.usual_s.len() > REMEMBERED_STEPS {
                    self.usual_s.remove(0);
                }
            }
        }
        match self.timer.push(step) {
            Iteration::Open => {}
            // What counts as an iteration has changed, and with it how long one usually takes.
            Iteration::Relearned => self.trigger.relearn(),
            Iteration::Done { duration_s } => {
                if self
                    .trigger
                    .iteration(duration_s, end.seconds_since(RankNs(0)))
                {
                    self.slower = true;
                    self.fresh = true;
                }
            }
        }
    }

    /// The job is started over, perhaps without the rank whose iterations were timed, and with steps
    /// of another length. When the last window was ordered stays.
    pub(crate) fn restart(&mut self) {
        self.timed = None;
        self.timer = IterationTimer::default();
        self.trigger.relearn();
        self.slower = false;
        self.usual_s.clear();
    }

    /// What a step usually takes.
    pub(crate) fn usual_step_s(&self) -> Option<f64> {
        median(&mut self.usual_s.clone())
    }

    /// A window of steps was analysed.
    pub(crate) fn look_again(&mut self) {
        self.fresh = true;
    }

    /// Whether a window may be ordered, and something has happened since it was asked last.
    pub(crate) fn may_order(&mut self, now: RankNs, last_at: RankNs) -> bool {
        // A job that stands still comes to no step's beginning: its stacks are asked for.
        self.settings.enabled
            && self.under_way.is_none()
            && !self.is_blocked(now, last_at)
            && self
                .ordered_at
                .is_none_or(|ordered_at| now.seconds_since(ordered_at) >= self.settings.every_s)
            // Last, for asking uses it up: what happens while no window may be ordered is kept.
            && std::mem::take(&mut self.fresh)
    }

    /// Whether nobody has done anything for as long as several iterations take.
    pub(crate) fn is_blocked(&self, now: RankNs, last_at: RankNs) -> bool {
        self.trigger.is_blocked(now.seconds_since(last_at))
    }

    /// Whether the loop has become slower, and still is; asked once, answered once.
    pub(crate) fn take_slower(&mut self) -> bool {
        std::mem::take(&mut self.slower) && self.trigger.is_slow()
    }

    /// Whether the loop is slower than it was.
    pub(crate) fn is_slow(&self) -> bool {
        self.trigger.is_slow()
    }

    /// The ranks to profile: suspects and some to compare them with, or just some. Ranks that are
    /// `named` for something else come last, the others by turns from the first suspect's host and
    /// from others: what a host does to its ranks is told from what the suspect does.
    pub(crate) fn choose(
        &self,
        suspects: &[u32],
        all: &[u32],
        named: &BTreeSet<u32>,
        hosts: &BTreeMap<u32, String>,
    ) -> Vec<u32> {
        let host = suspects
            .first()
            .or(all.first())
            .and_then(|rank| hosts.get(rank));
        let (mut beside, mut elsewhere) = (0, 0);
        let mut others: Vec<(bool, usize, u32)> = all
            .iter()
            .filter(|rank| !suspects.contains(rank))
            .map(|rank| {
                let is_named = named.contains(rank);
                // Of two at the same turn the first rank comes first.
                let turn = if hosts.get(rank) == host {
                    &mut beside
                } else {
                    &mut elsewhere
                };
                *turn += usize::from(!is_named);
                (is_named, *turn, *rank)
            })
            .collect();
        others.sort_unstable();
        // Without a suspect there is no side to compare with: all are peers.
        let room = if suspects.is_empty() {
            UNSUSPECTED.others
        } else {
            self.settings.peers
        };
        let others = others.into_iter().take(room).map(|(_, _, rank)| rank);
        let suspects = suspects.iter().take(SUSPECTED.named).copied();
        let mut ranks: Vec<u32> = suspects.chain(others).collect();
        ranks.sort_unstable();
        ranks
    }

    /// A window is ordered, or another host's part of it.
    pub(crate) fn order(&mut self, ranks: &[u32], steps: &Range<u32>, at: RankNs) {
        self.ordered_at = Some(at);
        let window = self.under_way.get_or_insert_with(|| Ordered {
            first_step: steps.start,
            steps: steps.end - steps.start,
            ..Ordered::default()
        });
        // Hosts order their parts one by one, and may begin in different steps.
        // Before `first_step` changes: `last_step` is counted from it.
        let last = window.last_step().max(steps.end);
        window.first_step = window.first_step.min(steps.start);
        window.steps = last - window.first_step;
        window.ranks.extend(ranks);
        window.awaited.extend(ranks);
    }

    /// Whether a window of such steps and ranks is another than the one under way: it lies apart,
    /// or what came of a rank's part was never sent.
    pub(crate) fn is_another(&self, ranks: &[u32], steps: &Range<u32>) -> bool {
        self.under_way.as_ref().is_some_and(|window| {
            steps.start > window.last_step()
                || steps.end < window.first_step
                || ranks.iter().any(|rank| window.ranks.contains(rank))
        })
    }

    /// A rank's window came.
    pub(crate) fn take_window(&mut self, rank: u32, window: ProfileWindow) {
        if let Some(ordered) = self
            .under_way
            .as_mut()
            .filter(|ordered| ordered.ranks.contains(&rank))
        {
            ordered.profiled.insert(rank, window);
        }
    }

    /// All that came of the window was sent of these ranks, or of all if there are none; the
    /// window once that is so of each.
    pub(crate) fn end(&mut self, ranks: &[u32]) -> Option<Ordered> {
        self.under_way.take_if(|window| {
            window
                .awaited
                .retain(|rank| !ranks.is_empty() && !ranks.contains(rank));
            window.awaited.is_empty()
        })
    }
}

impl Ordered {
    /// The step in which profilers stop.
    pub(crate) fn last_step(&self) -> u32 {
        self.first_step.saturating_add(self.steps)
    }

    fn covers(&self, step: u32) -> bool {
        (self.first_step..=self.last_step()).contains(&step)
    }

    /// How many times as long as usual its steps took, if both are known. Hosts that run ahead launch some
    /// steps at once, which are none the shorter for that.
    pub(crate) fn slowdown(&self, usual_s: Option<f64>) -> Option<f64> {
        let lasted_s = median(&mut self.lasted_s.clone())?;
        let usual_s = usual_s.filter(|usual_s| *usual_s > 0.0)?;
        Some(lasted_s / usual_s).filter(|times| *times >= 1.0)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use model::{Ending, MarkKind, Segment, StageId};

    use super::*;
    use crate::testkit::rank_step;

    const fn at(seconds: u64) -> RankNs {
        RankNs(seconds * 1_000_000_000)
    }

    fn escalation(settings: ProfileSettings) -> Escalation {
        Escalation::new(settings, TriggerSettings::default())
    }

    #[test]
    fn steps_that_hosts_launch_at_once_are_no_shorter_than_usual() {
        let slowdown = |lasted_s: f64| {
            let window = Ordered {
                lasted_s: vec![lasted_s],
                ..Ordered::default()
            };
            window.slowdown(Some(0.5))
        };
        assert_eq!(slowdown(1.0), Some(2.0));
        assert_eq!(slowdown(0.1), None);
    }

    #[test]
    fn suspects_are_compared_with_two_peers_and_without_suspects_four_ranks() {
        let escalation = escalation(ProfileSettings::default());
        let all: Vec<u32> = (0..8).collect();
        let choose = |suspects: &[u32]| {
            escalation.choose(suspects, &all, &BTreeSet::new(), &BTreeMap::new())
        };
        assert_eq!(choose(&[5]), [0, 1, 5]);
        assert_eq!(choose(&[0, 1]), [0, 1, 2, 3]);
        assert_eq!(choose(&[]), [0, 1, 2, 3]);
        assert_eq!(choose(&all), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn peers_are_named_by_no_other_incident_and_one_is_of_another_host() {
        let escalation = escalation(ProfileSettings::default());
        let all: Vec<u32> = (0..8).collect();
        let choose = |suspects: &[u32], named: &[u32], of_host: u32| {
            let hosts = all
                .iter()
                .map(|rank| (*rank, format!("n{}", rank / of_host)));
            let named = named.iter().copied().collect();
            escalation.choose(suspects, &all, &named, &hosts.collect())
        };
        assert_eq!(choose(&[2], &[0, 2], 8), [1, 2, 3]);
        assert_eq!(choose(&[2], &[0, 2], 4), [1, 2, 4]);
        assert_eq!(choose(&[5], &[4, 5], 4), [0, 5, 6]);
        assert_eq!(choose(&[], &[1], 4), [0, 2, 4, 5]);
        // Where all others are named, too, they are better than none.
        assert_eq!(choose(&[2], &all, 8), [0, 1, 2]);
    }

    /// Steps of a plain loop that last `lasts_s` each, from `start_s` on.
    fn steps(start_s: f64, lasts_s: f64, numbers: Range<u32>) -> Vec<RankStep> {
        let at = |steps: u32| RankNs(((start_s + lasts_s * f64::from(steps)) * 1e9) as u64);
        let of_step = numbers.zip(0..).map(|(step, before)| {
            let segment = Segment {
                stage: StageId::OTHER,
                after: MarkKind::OptimizerBegin,
                ending: Ending::Mark(MarkKind::OptimizerEnd),
                end: at(before + 1),
            };
            rank_step(step, at(before), vec![segment])
        });
        of_step.collect()
    }

    #[test]
    fn a_loop_that_became_slower_and_is_as_fast_again_is_not_profiled_for_it() {
        let slower = |back: u32| {
            let mut escalation = escalation(ProfileSettings::default());
            let spans = [
                (0.0, 0.1, 0..100),
                (10.0, 0.2, 100..130),
                (16.0, 0.1, 130..130 + back),
            ];
            for (start_s, lasts_s, numbers) in spans {
                for step in steps(start_s, lasts_s, numbers) {
                    escalation.step(3, &step);
                }
            }
            (escalation.take_slower(), escalation.take_slower())
        };
        assert_eq!(slower(0), (true, false), "it is told once");
        assert_eq!(slower(60), (false, false));
    }

    #[test]
    fn a_start_without_the_rank_that_was_timed_is_timed_by_another() {
        let mut escalation = escalation(ProfileSettings::default());
        for (start_s, lasts_s, numbers) in [(0.0, 0.1, 0..100), (10.0, 0.2, 100..130)] {
            for step in steps(start_s, lasts_s, numbers) {
                escalation.step(7, &step);
            }
        }
        assert!(escalation.is_slow());
        escalation.restart();
        assert!(!escalation.is_slow());
        for step in steps(20.0, 0.4, 0..30) {
            escalation.step(0, &step);
        }
        assert!((escalation.usual_step_s().unwrap() - 0.4).abs() < 1e-6);
        assert!(!escalation.is_slow());
    }

    #[test]
    fn no_window_is_longer_than_a_minute() {
        let read = |text: &str| serde_json::from_str::<ProfileSettings>(text);
        assert!(read("{\"max_s\": 60}").is_ok());
        let refused = read("{\"max_s\": 61}").unwrap_err().to_string();
        assert!(
            refused.starts_with("expected 60 or less, found 61"),
            "{refused}"
        );
    }

    #[test]
    fn windows_are_ten_minutes_apart_and_need_news() {
        let mut escalation = escalation(ProfileSettings::default());
        assert!(
            !escalation.may_order(at(100), at(100)),
            "nothing has happened"
        );
        escalation.look_again();
        assert!(escalation.may_order(at(100), at(100)));
        escalation.order(&[0, 1], &(50..60), at(100));
        escalation.look_again();
        assert!(
            !escalation.may_order(at(701), at(701)),
            "a window is under way"
        );
        escalation.take_window(0, ProfileWindow::default());
        escalation.take_window(7, ProfileWindow::default());
        let ordered = escalation.end(&[]).unwrap();
        assert_eq!(ordered.profiled.len(), 1, "rank 7 was not asked");
        assert!(!escalation.may_order(at(699), at(699)));
        assert!(escalation.may_order(at(700), at(700)));
    }

    #[test]
    fn a_job_that_stands_still_is_not_profiled_nor_one_whose_owner_says_no() {
        let mut standing = escalation(ProfileSettings::default());
        standing.trigger.iteration(1.0, 0.0);
        standing.look_again();
        assert!(!standing.may_order(at(106), at(100)));
        assert!(standing.may_order(at(104), at(100)));
        let mut off = escalation(ProfileSettings {
            enabled: false,
            ..ProfileSettings::default()
        });
        off.look_again();
        assert!(!off.may_order(at(100), at(100)));
    }
}
