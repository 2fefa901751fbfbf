use model::Pace;

/// Share of steps since the first strike from which a fault is steady.
const STEADY_SHARE: f64 = 0.6;
/// Strikes from which a fixed distance is believed.
const PERIODIC_STRIKES: usize = 4;
/// Share of the distances that must be equal.
const PERIODIC_SHARE: f64 = 0.8;

/// When a fault strikes, judged from the steps it struck in and the last step looked at.
///
/// # Shape
/// `strikes` ascending, without duplicates.
pub fn pace_of(strikes: &[u64], last_seen: u64) -> Pace {
    let (Some(first), Some(last)) = (strikes.first(), strikes.last()) else {
        return Pace::Sporadic;
    };
    if strikes.len() == 1 {
        return Pace::Once { step: *first };
    }
    let seen = last_seen.max(*last) - first + 1;
    if strikes.len() as f64 >= STEADY_SHARE * seen as f64 {
        return Pace::Steady;
    }
    let mut distances: Vec<u64> =
        strikes.windows(2).map(|pair| pair[1] - pair[0]).collect();
    distances.sort_unstable();
    let usual = distances[distances.len() / 2];
    let equal = distances.iter().filter(|distance| **distance == usual).count();
    let enough = equal as f64 >= PERIODIC_SHARE * distances.len() as f64;
    if strikes.len() >= PERIODIC_STRIKES && usual > 1 && enough {
        return Pace::Every { steps: usual };
    }
    // A fault that went away: steady while it lasted.
    let lasted = last - first + 1;
    if lasted >= 5 && strikes.len() as f64 >= STEADY_SHARE * lasted as f64 {
        return Pace::Steady;
    }
    Pace::Sporadic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_told_from_the_struck_steps() {
        let every = |step: usize| (20..120).step_by(step).collect::<Vec<u64>>();
        assert_eq!(pace_of(&every(1), 119), Pace::Steady);
        assert_eq!(pace_of(&every(10), 119), Pace::Every { steps: 10 });
        assert_eq!(pace_of(&[60], 119), Pace::Once { step: 60 });
        assert_eq!(pace_of(&[20, 23, 41, 44, 80], 119), Pace::Sporadic);
        assert_eq!(pace_of(&(20..40).collect::<Vec<_>>(), 119), Pace::Steady);
    }

    #[test]
    fn one_missed_strike_does_not_hide_a_period() {
        let strikes: Vec<u64> = (0..200).step_by(10).filter(|step| *step != 90).collect();
        assert_eq!(pace_of(&strikes, 199), Pace::Every { steps: 10 });
    }
}
