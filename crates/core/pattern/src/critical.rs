use crate::{FunctionCall, Overlap};

/// Priorities there are.
// One more than the highest that a class has.
const PRIORITIES: usize = 4;

/// How much of the critical path each event takes, as a part of the span.
///
/// An instant of an event is critical if no event of a lower priority number runs; events of
/// one priority that run together share it ([`Overlap::Split`]) or have it each.
/// # Shape
/// As `events`, which may stand in any order and are cut to the span.
/// # Properties
/// Split shares sum to at most 1 (PT-P1), every share lies in 0 to 1 (PT-P2); deleting an event
/// never lowers the share of one of a lower number (PT-P8).
/// # Complexity
/// O(n log n).
/// # Source
/// PerfTracker (2025), docs/math/pattern.md; splitting is our choice where it is silent.
pub fn critical_shares(
    events: &[FunctionCall],
    (from_ns, to_ns): (i64, i64),
    overlap: Overlap,
) -> Vec<f64> {
    // Cut to the span, and by their place.
    let starts_ns: Vec<i64> = events
        .iter()
        .map(|event| event.start_ns.clamp(from_ns, to_ns))
        .collect();
    let ends_ns: Vec<i64> = events
        .iter()
        .map(|event| event.end_ns.clamp(from_ns, to_ns))
        .collect();
    let mut by_start: Vec<u32> = (0..events.len() as u32).collect();
    let mut by_end = by_start.clone();
    // Stable, as it is quick with what is nearly in order.
    by_start.sort_by_key(|at| starts_ns[*at as usize]);
    by_end.sort_by_key(|at| ends_ns[*at as usize]);
    let mut shares = vec![0.0; events.len()];
    let mut running = [0u32; PRIORITIES];
    // What an event of each priority that had run from the beginning would have been given.
    // An event's share is how much this grows from its start to its end, so a pass need not walk
    // all events that run.
    let mut given = [0.0; PRIORITIES];
    let mut now = from_ns;
    let (mut starts, mut ends) = (by_start.iter().peekable(), by_end.iter());
    for &ending in &mut ends {
        let end = ends_ns[ending as usize];
        // An event starts before it ends, so all that start until then are running.
        while let Some(&&starting) = starts.peek().filter(|at| starts_ns[***at as usize] <= end) {
            pass(
                &running,
                &mut given,
                &mut now,
                starts_ns[starting as usize],
                overlap,
            );
            let priority = events[starting as usize].class.priority();
            running[priority] += 1;
            shares[starting as usize] = given[priority];
            starts.next();
        }
        pass(&running, &mut given, &mut now, end, overlap);
        let priority = events[ending as usize].class.priority();
        running[priority] -= 1;
        shares[ending as usize] = given[priority] - shares[ending as usize];
    }
    let span = (to_ns - from_ns).max(1) as f64;
    for share in &mut shares {
        // The difference of two long sums may be a little off by rounding.
        *share = (*share / span).clamp(0.0, 1.0);
    }
    shares
}

/// Gives the time from `now` to `until` to the first priority that has something running.
fn pass(
    running: &[u32; PRIORITIES],
    given: &mut [f64; PRIORITIES],
    now: &mut i64,
    until: i64,
    overlap: Overlap,
) {
    if until <= *now {
        return;
    }
    if let Some(first) = running.iter().position(|count| *count > 0) {
        let among = match overlap {
            Overlap::Split => f64::from(running[first]),
            Overlap::Full => 1.0,
        };
        given[first] += (until - *now) as f64 / among;
    }
    *now = until;
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use model::{FunctionClass, FunctionId};

    fn event(start_ns: i64, end_ns: i64, class: FunctionClass) -> FunctionCall {
        FunctionCall {
            start_ns,
            end_ns,
            function: FunctionId(class as u64),
            class,
        }
    }

    pub(crate) fn any_event() -> impl Strategy<Value = FunctionCall> {
        let class = proptest::sample::select(&FunctionClass::ALL[..]);
        (0..1000i64, 0..300i64, class, 0..5u64).prop_map(|(start_ns, took, class, function)| {
            FunctionCall {
                start_ns,
                end_ns: start_ns + took,
                function: FunctionId(function * 8 + class as u64),
                class,
            }
        })
    }

    /// The example of docs/math/pattern.md.
    #[test]
    fn compute_hides_copies_and_these_collectives_and_these_python() {
        use FunctionClass::{Collective, GpuCompute, Memory, Python};
        let events = [
            event(0, 4, GpuCompute),
            event(8, 9, GpuCompute),
            event(3, 8, Collective),
            event(6, 7, Memory),
            event(0, 10, Python),
        ];
        let shares = critical_shares(&events, (0, 10), Overlap::Split);
        let expected = [0.4, 0.1, 0.3, 0.1, 0.1];
        let close = |(a, b): (&f64, f64)| (a - b).abs() < 1e-12;
        assert!(shares.iter().zip(expected).all(close), "{shares:?}");
    }

    #[test]
    fn two_of_a_kind_share_the_time_or_have_it_each() {
        let events = [event(0, 10, FunctionClass::GpuCompute); 2];
        assert_eq!(
            critical_shares(&events, (0, 10), Overlap::Split),
            [0.5, 0.5]
        );
        assert_eq!(critical_shares(&events, (0, 10), Overlap::Full), [1.0, 1.0]);
        assert_eq!(
            critical_shares(&events, (5, 25), Overlap::Full),
            [0.25, 0.25]
        );
    }

    proptest! {
        #[test]
        fn no_more_is_given_than_there_is(
            events in proptest::collection::vec(any_event(), 0..40),
        ) {
            let span = (100, 900);
            let split = critical_shares(&events, span, Overlap::Split);
            prop_assert!(split.iter().sum::<f64>() <= 1.0 + 1e-9);
            let full = critical_shares(&events, span, Overlap::Full);
            prop_assert!(full.iter().all(|share| (0.0..=1.0).contains(share)));
            // Somebody runs or nobody does: what is given is what is covered.
            let covered = (100..900).filter(|t| {
                events.iter().any(|e| e.start_ns <= *t && *t < e.end_ns)
            });
            let covered = covered.count() as f64 / 800.0;
            prop_assert!((split.iter().sum::<f64>() - covered).abs() < 1e-9);
        }

        #[test]
        fn less_work_of_a_later_kind_never_costs_an_earlier_one(
            events in proptest::collection::vec(any_event(), 1..40), deleted: prop::sample::Index,
        ) {
            let span = (0, 1300);
            let deleted = deleted.index(events.len());
            let all = critical_shares(&events, span, Overlap::Split);
            let mut fewer = events.clone();
            let gone = fewer.remove(deleted);
            let left = critical_shares(&fewer, span, Overlap::Split);
            let before = all.iter().enumerate().filter(|(at, _)| *at != deleted);
            for ((_, before), (event, after)) in before.zip(fewer.iter().zip(left)) {
                if event.class.priority() < gone.class.priority() {
                    prop_assert!(after >= before - 1e-9);
                }
            }
        }
    }
}
