/// The median of `values`, the mean of the middle two for an even count; `None` if empty.
///
/// Reorders `values`.
/// # Complexity
/// Linear on average.
pub fn median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len() / 2;
    if values.is_empty() {
        return None;
    }
    let even = values.len().is_multiple_of(2);
    // Selected and not sorted: there may be as many values as ranks.
    let (below, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let upper = *upper;
    if !even {
        return Some(upper);
    }
    let lower = below.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(f64::midpoint(lower, upper))
}

/// The lower of the middle two for an even count, else the middle one; `None` if empty. Where half of the
/// values are unusual, [`median`] is between those and the others.
///
/// Reorders `values`.
/// # Complexity
/// Linear on average.
pub fn lower_median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable_by(middle, f64::total_cmp).1)
}

/// For each value the median of the others; the value itself if there is no other.
///
/// # Complexity
/// Linear on average.
pub fn medians_of_others(values: &[f64]) -> Vec<f64> {
    let Some(others) = values.len().checked_sub(1).filter(|others| *others > 0) else {
        return values.to_vec();
    };
    let mut sorted = values.to_vec();
    let middle = others / 2;
    let (below, at, above) = sorted.select_nth_unstable_by(middle, f64::total_cmp);
    let before = below.iter().copied().max_by(f64::total_cmp);
    let after = above.iter().copied().min_by(f64::total_cmp);
    // Without a value, those behind it move up by one place. Of equals it does not matter which
    // one is taken away.
    // `before` is missing only beside a single other value, where it is not needed.
    let [before, at, after] = [before.unwrap_or(*at), *at, after.unwrap_or(*at)];
    let nth = |value: &f64, here: f64, next: f64| {
        if value.total_cmp(&here).is_le() {
            next
        } else {
            here
        }
    };
    values
        .iter()
        .map(|value| {
            let upper = nth(value, at, after);
            if others.is_multiple_of(2) {
                f64::midpoint(nth(value, before, at), upper)
            } else {
                upper
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_the_mean_of_both_middles() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn a_lower_median_is_one_of_the_values() {
        assert_eq!(lower_median(&mut []), None);
        assert_eq!(lower_median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(lower_median(&mut [4.0, 1.0, 2.0, 3.0]), Some(2.0));
    }

    #[test]
    fn a_value_is_compared_with_the_median_of_the_others() {
        assert_eq!(medians_of_others(&[]), [] as [f64; 0]);
        assert_eq!(medians_of_others(&[7.0]), [7.0]);
        assert_eq!(medians_of_others(&[7.0, 5.0]), [5.0, 7.0]);
        assert_eq!(medians_of_others(&[3.0, 1.0, 2.0]), [1.5, 2.5, 2.0]);
        for count in 2..40 {
            let value = |at: usize| (at * 7919 % 23) as f64;
            let values: Vec<f64> = (0..count).map(value).collect();
            for (at, found) in medians_of_others(&values).into_iter().enumerate() {
                let mut others = values.clone();
                others.remove(at);
                assert_eq!(Some(found), median(&mut others));
            }
        }
    }
}
