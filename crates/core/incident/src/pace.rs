use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;

use model::Pace;

/// Share of steps since the first strike from which a fault is steady.
pub(crate) const STEADY_SHARE: f64 = 0.6;
/// Strikes from which a fixed distance is believed.
const PERIODIC_STRIKES: usize = 4;
/// Share of the distances that must be equal, or of the strikes that must have one phase.
const PERIODIC_SHARE: f64 = 0.8;
/// Share of the steps of that phase that must be struck, of those that were looked at. Ours.
const PHASE_SHARE: f64 = 0.85;
/// One in how many times strikes may have one phase by chance, at most. Ours.
const CHANCE: f64 = 60.0;

/// Runs of steps remembered; older ones are forgotten, as are the strikes in them.
const MAX_RUNS: usize = 512;

/// The steps of a job that were looked at. Others, as those of a profile window, speak
/// neither for a strike nor against one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Ascending, apart from one another.
    runs: VecDeque<RangeInclusive<u64>>,
}

impl Seen {
    /// Adds steps, in ascending order.
    pub(crate) fn extend(&mut self, steps: impl IntoIterator<Item = u64>) {
        for step in steps {
            match self.runs.back_mut() {
                Some(run) if step <= run.end().saturating_add(1) => {
                    *run = *run.start()..=step.max(*run.end());
                }
                _ => self.runs.push_back(step..=step),
            }
        }
        // Sampled steps make a run every few steps, so that a long job would grow by them.
        let forgotten = self.runs.len().saturating_sub(MAX_RUNS);
        self.runs.drain(..forgotten);
    }

    /// Whether a step was looked at.
    fn contains(&self, step: u64) -> bool {
        let at = self.runs.partition_point(|run| *run.end() < step);
        self.runs.get(at).is_some_and(|run| run.contains(&step))
    }

    /// How many steps of a range were looked at.
    pub(crate) fn count(&self, range: RangeInclusive<u64>) -> u64 {
        self.runs
            .iter()
            .map(|run| (run.start().max(range.start()), run.end().min(range.end())))
            .map(|(first, last)| last.saturating_add(1).saturating_sub(*first))
            .sum()
    }
}

impl From<RangeInclusive<u64>> for Seen {
    fn from(run: RangeInclusive<u64>) -> Self {
        Self { runs: [run].into() }
    }
}

impl FromIterator<u64> for Seen {
    fn from_iter<I: IntoIterator<Item = u64>>(steps: I) -> Self {
        let mut seen = Self::default();
        seen.extend(steps);
        seen
    }
}

/// Whether so many strikes are steady that long.
pub(crate) fn is_steady(strikes: usize, steps: usize) -> bool {
    strikes as f64 >= STEADY_SHARE * steps as f64
}

/// When a fault strikes, judged from the steps it struck in and those looked at until a last
/// one.
///
/// # Shape
/// `strikes` ascending, without duplicates.
pub(crate) fn pace_of(strikes: &[u64], seen: &Seen, until: u64) -> Pace {
    let (Some(first), Some(last)) = (strikes.first(), strikes.last()) else {
        return Pace::Sporadic;
    };
    // By the share below, a single strike in the last step seen would be steady.
    if strikes.len() == 1 {
        return Pace::Once { step: *first };
    }
    let in_most = |until: u64| is_steady(strikes.len(), seen.count(*first..=until) as usize);
    if in_most(until.max(*last)) {
        return Pace::Steady;
    }
    let mut distances: Vec<u64> = strikes.windows(2).map(|pair| pair[1] - pair[0]).collect();
    if let Some(steps) = period_of(strikes, &distances, seen) {
        return Pace::Every { steps };
    }
    distances.sort_unstable();
    // The usual one, not the mean: a strike that was missed doubles a distance.
    let usual = distances[distances.len() / 2];
    // A strike between two others that nobody saw, as in a profile window, breaks no period.
    let is_unseen = |step: u64| seen.count(step..=step) == 0;
    let is_usual = |pair: &&[u64]| {
        let mut between = (1..(pair[1] - pair[0]) / usual).map(|nth| pair[0] + nth * usual);
        (pair[1] - pair[0]).is_multiple_of(usual) && between.all(is_unseen)
    };
    let equal = strikes.windows(2).filter(is_usual).count();
    let enough = equal as f64 >= PERIODIC_SHARE * distances.len() as f64;
    // Strikes in neighbouring steps have no period; whether they go on is asked above and below.
    if strikes.len() >= PERIODIC_STRIKES && usual > 1 && enough {
        return Pace::Every { steps: usual };
    }
    // A fault that went away: steady while it lasted.
    // Five steps or more: two strikes in neighbouring steps are always in most of their own span.
    if last - first >= 4 && in_most(*last) {
        return Pace::Steady;
    }
    Pace::Sporadic
}

/// The longest period with which strikes have one phase and strike nearly all steps of that phase: where only some
/// steps are looked at, most distances between strikes are multiples of it.
fn period_of(strikes: &[u64], distances: &[u64], seen: &Seen) -> Option<u64> {
    let (first, last) = (*strikes.first()?, *strikes.last()?);
    if strikes.len() < PERIODIC_STRIKES {
        return None;
    }
    // Of strikes that are seldom looked at no two may be one period apart.
    let divisors = distances
        .windows(2)
        .map(|pair| common_divisor(pair[0], pair[1]));
    let periods = distances.iter().copied().chain(divisors);
    let periods: BTreeSet<u64> = periods.filter(|it| *it > 1).collect();
    let has_phase = |period: &u64| {
        let mut phases: BTreeMap<u64, usize> = BTreeMap::new();
        for strike in strikes {
            *phases.entry(strike % period).or_default() += 1;
        }
        let Some((phase, struck)) = phases.into_iter().max_by_key(|(_, struck)| *struck) else {
            return false;
        };
        let from = first + (phase + period - first % period) % period;
        let of_phase = (from..=last).step_by(*period as usize);
        let looked_at = of_phase.filter(|step| seen.contains(*step)).count();
        let chance = (*period as f64).powf(struck as f64 - 1.0);
        struck >= PERIODIC_STRIKES
            && chance >= CHANCE
            && struck as f64 >= PERIODIC_SHARE * strikes.len() as f64
            && struck as f64 >= PHASE_SHARE * looked_at as f64
    };
    periods.into_iter().rev().find(has_phase)
}

fn common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 {
        one
    } else {
        common_divisor(other, one % other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(strikes: impl IntoIterator<Item = u64>, until: u64) -> Pace {
        let strikes: Vec<u64> = strikes.into_iter().collect();
        pace_of(&strikes, &Seen::from(0..=until), until)
    }

    #[test]
    fn the_pace_is_distinguished_from_the_struck_steps() {
        assert_eq!(pace(20..120, 119), Pace::Steady);
        assert_eq!(pace((20..120).step_by(10), 119), Pace::Every { steps: 10 });
        assert_eq!(pace([60], 119), Pace::Once { step: 60 });
        assert_eq!(pace([20, 23, 41, 44, 80], 119), Pace::Sporadic);
        assert_eq!(pace(20..40, 119), Pace::Steady);
    }

    #[test]
    fn one_missed_strike_does_not_hide_a_period() {
        let strikes = (0..200).step_by(10).filter(|step| *step != 90);
        assert_eq!(pace(strikes, 199), Pace::Every { steps: 10 });
    }

    #[test]
    fn steps_nobody_saw_speak_neither_way() {
        let strikes: Vec<u64> = (5..12).chain(30..40).collect();
        assert_eq!(pace(strikes.clone(), 39), Pace::Sporadic);
        let seen = (0..12).chain(30..40).collect();
        assert_eq!(pace_of(&strikes, &seen, 39), Pace::Steady);
    }

    #[test]
    fn a_strike_in_steps_nobody_saw_does_not_hide_a_period() {
        let strikes = [11, 36, 61, 111, 136];
        assert_eq!(pace(strikes, 136), Pace::Sporadic);
        let seen = (5..76).chain(87..137).collect();
        assert_eq!(pace_of(&strikes, &seen, 136), Pace::Every { steps: 25 });
    }

    #[test]
    fn what_strikes_every_few_steps_of_which_some_are_looked_at_has_its_period() {
        for period in 2..12 {
            // Four of ten, in runs whose places vary.
            let steps =
                (0..40u64).flat_map(|run| (0..4).map(move |at| run * 10 + run * 7 % 6 + at));
            let steps: Vec<u64> = steps.collect();
            let strikes: Vec<u64> = steps
                .iter()
                .copied()
                .filter(|it| it % period == 1)
                .collect();
            let seen = steps.iter().copied().collect();
            let expected = Pace::Every { steps: period };
            assert_eq!(pace_of(&strikes, &seen, 399), expected, "{period}");
        }
    }

    #[test]
    fn the_steps_looked_at_are_counted() {
        let mut seen: Seen = [3, 4, 5, 9].into_iter().collect();
        seen.extend([9, 10, 12]);
        assert_eq!(seen.count(0..=20), 6);
        assert_eq!(seen.count(4..=9), 3);
        assert_eq!(seen.count(6..=8), 0);
    }
}
