use std::collections::BTreeMap;

use model::{FunctionId, Pattern};

use crate::{Deviation, FunctionCall, PatternSettings, critical_execution, critical_shares};

/// Utilisation of the resource a function uses, over the profile.
///
/// # Units
/// Sample `i` is the mean over `interval_ns` from `start_ns + i * interval_ns` on, from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct UtilisationSeries {
    /// When the first sample begins.
    pub start_ns: i64,
    /// How long a sample lasts.
    pub interval_ns: i64,
    /// The samples.
    pub samples: Vec<f32>,
}

impl UtilisationSeries {
    /// Samples that lie in an event.
    fn of(&self, event: &FunctionCall) -> &[f32] {
        let [from, to] = [event.start_ns, event.end_ns].map(|at_ns| {
            let place = (at_ns - self.start_ns).div_euclid(self.interval_ns.max(1));
            // Counters may begin after the event, or end before it.
            usize::try_from(place).unwrap_or(0).min(self.samples.len())
        });
        self.samples.get(from..to).unwrap_or_default()
    }
}

#[derive(Default)]
struct Sums {
    beta: f64,
    events: u32,
    measured: u32,
    length: f64,
    mean: f64,
    deviation: f64,
    square: f64,
}

/// Makes one pattern a function of what a worker did.
///
/// `series` finds the samples for an event, if there are any.
/// # Source
/// PerfTracker (2025), equations 2 to 5; that executions count by their length is our reading
/// (docs/math/pattern.md).
pub fn summarise<'a>(
    events: &[FunctionCall],
    span_ns: (i64, i64),
    series: impl Fn(&FunctionCall) -> Option<&'a UtilisationSeries>,
    settings: &PatternSettings,
) -> BTreeMap<FunctionId, Pattern> {
    let shares = critical_shares(events, span_ns, settings.overlap);
    let mut functions: BTreeMap<FunctionId, Sums> = BTreeMap::new();
    for (event, share) in events.iter().zip(shares) {
        let sums = functions.entry(event.function).or_default();
        sums.beta += share;
        sums.events = sums.events.saturating_add(1);
        let Some(samples) = series(event).map(|series| series.of(event)) else {
            continue;
        };
        let Some(found) = critical_execution(samples, settings.coverage) else {
            continue;
        };
        let length = found.samples.len() as f64;
        sums.measured = sums.measured.saturating_add(1);
        sums.length += length;
        sums.mean += length * found.mean;
        sums.deviation += length * found.deviation;
        // Means of squares add up over executions, deviations do not.
        sums.square += length * (found.mean.powi(2) + found.deviation.powi(2));
    }
    functions
        .into_iter()
        .map(|(function, sums)| (function, sums.pattern(settings.deviation)))
        .collect()
}

impl Sums {
    fn pattern(self, deviation: Deviation) -> Pattern {
        // 0 where nothing was measured; then the sums are 0 as well.
        let length = self.length.max(1.0);
        let mu = self.mean / length;
        let sigma = match deviation {
            Deviation::PerEvent => self.deviation / length,
            // Rounding may leave less than nothing, which has no root.
            Deviation::Pooled => (self.square / length - mu * mu).max(0.0).sqrt(),
        };
        // Rounding may leave a share a little outside of 0 to 1.
        let [beta, mu, sigma] = [self.beta, mu, sigma].map(|value| value.clamp(0.0, 1.0) as f32);
        Pattern {
            beta,
            mu,
            sigma,
            events: self.events,
            measured: self.measured,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::critical::tests::any_event;

    fn any_series() -> impl Strategy<Value = UtilisationSeries> {
        (
            -50..50i64,
            1..20i64,
            proptest::collection::vec(0.0..=1.0f32, 0..200),
        )
            .prop_map(|(start_ns, interval_ns, samples)| UtilisationSeries {
                start_ns,
                interval_ns,
                samples,
            })
    }

    proptest! {
        #[test]
        fn patterns_lie_in_the_unit_cube_and_do_not_know_the_time(
            events in proptest::collection::vec(any_event(), 0..30),
            series in any_series(), shift in -1_000_000_000i64..1_000_000_000,
            deviation in prop_oneof![Just(Deviation::PerEvent), Just(Deviation::Pooled)],
        ) {
            let settings = PatternSettings { deviation, ..PatternSettings::default() };
            let span = (50, 1100);
            let here = summarise(&events, span, |_| Some(&series), &settings);
            for pattern in here.values() {
                let inside = |value: &f32| (0.0..=1.0).contains(value);
                prop_assert!(pattern.values().iter().all(inside));
                prop_assert!(pattern.is_measured() || pattern.values()[1..] == [0.0; 2]);
            }
            let later: Vec<FunctionCall> = events.iter().map(|event| FunctionCall {
                start_ns: event.start_ns + shift, end_ns: event.end_ns + shift, ..*event
            }).collect();
            let series = UtilisationSeries { start_ns: series.start_ns + shift, ..series };
            let span = (span.0 + shift, span.1 + shift);
            let there = summarise(&later, span, |_| Some(&series), &settings);
            prop_assert_eq!(here, there);
        }
    }
}
