//! When a fault began that only sampled steps show.

use model::median;

/// By how much steps must take longer with the fault than without it to show where it began. Ours:
/// the usual step scatters by as much.
const LONGER: f64 = 1.05;
/// Share of the steps behind it that must take as long: what comes and goes has no one begin. Ours.
const STAY_SHARE: f64 = 0.8;

/// The step in which a fault began that none of the sampled steps up to `free` shows, and one does
/// in `first`, by what steps took: their numbers, ascending, and seconds. `None` if they do not
/// show it, or that it went on from there.
pub(crate) fn onset(steps: &[(u64, f64)], free: u64, first: u64) -> Option<u64> {
    let usual_s = |is_one: &dyn Fn(u64) -> bool| {
        let those = steps.iter().filter(|(step, _)| is_one(*step));
        median(&mut those.map(|(_, took_s)| *took_s).collect::<Vec<_>>())
    };
    let (before_s, behind_s) = usual_s(&|step| step <= free).zip(usual_s(&|step| step >= first))?;
    if behind_s < LONGER * before_s {
        return None;
    }
    let level_s = f64::midpoint(before_s, behind_s);
    let behind = || steps.iter().filter(|(step, _)| *step >= first);
    let long = behind().filter(|(_, took_s)| *took_s > level_s).count();
    if (long as f64) < STAY_SHARE * behind().count() as f64 {
        return None;
    }
    let between = || {
        steps
            .iter()
            .filter(|(step, _)| (free + 1..first).contains(step))
    };
    // Where the fewest steps are on the wrong side: one that takes long alone is no onset.
    (free + 1..=first).min_by_key(|begin| {
        let wrong = between().filter(|(step, took_s)| (step >= begin) != (*took_s > level_s));
        wrong.count()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of 10 ms, which take `longer_s` more in steps 12 to `last`, and in step 8, which does so
    /// alone.
    fn began(longer_s: f64, last: u64) -> Option<u64> {
        let is_long = |step| (12..=last).contains(&step) || step == 8;
        let took_s = |step| 0.010 + if is_long(step) { longer_s } else { 0.0 };
        let steps: Vec<(u64, f64)> = (0..30).map(|step| (step, took_s(step))).collect();
        onset(&steps, 6, 20)
    }

    #[test]
    fn steps_that_take_longer_show_where_it_began() {
        assert_eq!(began(0.003, 30), Some(12));
    }

    #[test]
    fn steps_that_take_hardly_longer_show_nothing() {
        assert_eq!(began(0.0003, 30), None);
    }

    #[test]
    fn what_ends_before_the_steps_do_shows_nothing() {
        assert_eq!(began(0.003, 26), None);
    }

    #[test]
    fn without_a_step_on_one_side_nothing_is_known() {
        assert_eq!(onset(&[(5, 0.01)], 4, 5), None);
        assert_eq!(onset(&[], 4, 5), None);
    }
}
