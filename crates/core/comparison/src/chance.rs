//! Differences of two samples, and how far chance explains them.

/// Beyond, a sample says so little that nothing is ever sure.
const MOST_ALIKE: f64 = 0.95;

/// How likely chance alone would put `b` at least as far above `a` as it is: near 0, surely
/// above, to 1. Both are in time order.
///
/// The sum of `b`'s ranks among all values, equal values with their mean rank, against what it is
/// if it is arbitrary which value is in which sample: normal, a good approximation from eight
/// values each. Where a value resembles the next one there is less in a sample than it has
/// values: the variance grows by `(1 + r) / (1 - r)`, with `r` the correlation of ranks that are
/// next to each other in time.
/// # Source
/// Mann and Whitney, On a Test of Whether one of Two Random Variables is Stochastically Larger
/// than the Other, 1947. The variance of alike neighbours: Bartlett, 1935, as Yue and Wang (2002)
/// correct tests by ranks; the bias of `r` in short samples: Marriott and Pope, 1954.
pub(crate) fn chance_above(a: &[f64], b: &[f64]) -> f64 {
    let mut values: Vec<(f64, usize)> = a.iter().chain(b).copied().zip(0..).collect();
    values.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut ranks = vec![0.0; values.len()];
    let mut below = 0;
    for equal in values.chunk_by(|one, other| one.0 == other.0) {
        for (_, at) in equal {
            ranks[*at] = below as f64 + f64::midpoint(1.0, equal.len() as f64);
        }
        below += equal.len();
    }
    let count = ranks.len() as f64;
    // The rank to expect if it is arbitrary which value is in which sample.
    let middle = f64::midpoint(count, 1.0);
    let (of_a, of_b) = ranks.split_at(a.len());
    let above: f64 = of_b.iter().map(|rank| rank - middle).sum();
    // Of the ranks as they are: with ties they spread less, and need no further correction.
    let spread: f64 = ranks.iter().map(|rank| (rank - middle).powi(2)).sum();
    let (a, b) = (a.len() as f64, b.len() as f64);
    let variance = a * b / (count * (count - 1.0)) * spread;
    // All values are equal: none lies above another.
    if variance <= 0.0 {
        return 1.0;
    }
    let r = likeness(&[of_a, of_b]);
    let deviation = (variance * (1.0 + r) / (1.0 - r)).sqrt();
    // Ranks are whole or half: half a rank less lies between what is and what is next below.
    beyond((above - 0.5) / deviation)
}

/// How far values resemble the next ones: their correlation, 0 where it is none or negative.
fn likeness(samples: &[&[f64]]) -> f64 {
    let (mut together, mut alone, mut count) = (0.0, 0.0, 0.0);
    for sample in samples {
        // About the mean of each sample: that the two differ does not make neighbours alike.
        let mean = sample.iter().sum::<f64>() / sample.len() as f64;
        let apart: Vec<f64> = sample.iter().map(|value| value - mean).collect();
        together += apart.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>();
        alone += apart.iter().map(|apart| apart * apart).sum::<f64>();
        count += sample.len() as f64 / samples.len() as f64;
    }
    let r = if alone > 0.0 { together / alone } else { 0.0 };
    // In a short sample `r` comes out too small by about this (Marriott and Pope). Below zero it
    // would make a difference look surer than independent values do.
    (r + (1.0 + 3.0 * r) / count).clamp(0.0, MOST_ALIKE)
}

/// How likely a normal number is at least `z` deviations above its mean, to 1e-7.
///
/// # Source
/// Abramowitz and Stegun, Handbook of Mathematical Functions, 1964, 26.2.17.
fn beyond(z: f64) -> f64 {
    const B: [f64; 5] = [
        0.319_381_530,
        -0.356_563_782,
        1.781_477_937,
        -1.821_255_978,
        1.330_274_429,
    ];
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let series = B.iter().rev().fold(0.0, |sum, b| (sum + b) * t);
    let tail = (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt() * series;
    if z >= 0.0 { tail } else { 1.0 - tail }
}

/// How far `b` lies above `a`: the median of all differences; 0 if either is empty.
///
/// # Source
/// Hodges and Lehmann, Estimates of Location Based on Rank Tests, 1963.
pub(crate) fn shift(a: &[f64], b: &[f64]) -> f64 {
    let mut differences: Vec<f64> = b
        .iter()
        .flat_map(|b| a.iter().map(move |a| b - a))
        .collect();
    model::median(&mut differences).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The chance by looking at every way to divide 14 values.
    fn counted(values: &[f64]) -> f64 {
        let wins = |chosen: u32| -> usize {
            let of_b = |at: usize| chosen >> at & 1 == 1;
            let pairs = (0..14).flat_map(|x| (0..14).map(move |y| (x, y)));
            pairs
                .filter(|(x, y)| of_b(*x) && !of_b(*y) && values[*x] > values[*y])
                .count()
        };
        let divisions: Vec<u32> = (0..1 << 14)
            .filter(|chosen: &u32| chosen.count_ones() == 7)
            .collect();
        let observed = wins(0b11_1111_1000_0000);
        let as_far = divisions
            .iter()
            .filter(|chosen| wins(**chosen) >= observed)
            .count();
        as_far as f64 / divisions.len() as f64
    }

    fn some() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec((0..6_i32).prop_map(f64::from), 1..20)
    }

    #[test]
    fn chance_is_what_counting_all_divisions_gives() {
        // Nothing connects neighbours in either half.
        let halves = [
            ([5.0, 1.0, 7.0, 3.0, 9.0, 2.0, 8.0], 0.0),
            ([4.1, 0.2, 6.3, 2.4, 8.5, 1.6, 7.7], 2.75),
            ([4.1, 0.2, 6.3, 2.4, 8.5, 1.6, 7.7], 6.05),
        ];
        for (half, more) in halves {
            let b: Vec<f64> = half.iter().map(|value| value + 0.35 + more).collect();
            let all: Vec<f64> = half.iter().copied().chain(b.clone()).collect();
            let (near, exact) = (chance_above(&half, &b), counted(&all));
            assert!((near - exact).abs() < 0.01, "{near} {exact}");
        }
    }

    #[test]
    fn what_drifts_is_less_sure_than_what_jitters() {
        let jitters = [1.0, 9.0, 3.0, 7.0, 2.0, 8.0, 4.0, 6.0, 5.0, 10.0];
        let mut drifts = jitters;
        drifts.sort_by(f64::total_cmp);
        let more = |values: [f64; 10]| values.map(|value| value + 6.0);
        let chance = |values: [f64; 10]| chance_above(&values, &more(values));
        assert!(chance(jitters) < 0.005 && chance(drifts) > 0.05);
    }

    #[test]
    fn the_normal_tail_is_as_the_tables_have_it() {
        for (z, tail) in [
            (0.0, 0.5),
            (1.959_964, 0.025),
            (3.0, 0.001_349_9),
            (-1.0, 0.841_344_7),
        ] {
            assert!((beyond(z) - tail).abs() < 1e-6, "{z}");
        }
    }

    proptest! {
        #[test]
        fn a_shift_is_turned_round_with_the_samples(a in some(), b in some()) {
            prop_assert_eq!(shift(&a, &b), -shift(&b, &a));
            let moved: Vec<f64> = b.iter().map(|value| value + 3.0).collect();
            prop_assert_eq!(shift(&a, &moved), shift(&a, &b) + 3.0);
        }

        #[test]
        fn a_chance_is_one(a in some(), b in some()) {
            prop_assert!((0.0..=1.0).contains(&chance_above(&a, &b)));
        }
    }
}
