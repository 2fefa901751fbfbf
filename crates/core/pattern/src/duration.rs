use std::ops::Range;

/// The part of an event in which its work was done, by the samples of its resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// Places of its samples.
    pub samples: Range<usize>,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation.
    pub deviation: f64,
}

/// Finds the critical execution duration of an event.
///
/// Samples are cut where more than `g` of them in a row are zero; the smallest `g` is taken at
/// which one piece holds `coverage` of all use, and that piece without its outer zeros is
/// returned. `None` if nothing was used at all.
/// # Complexity
/// O(n log n).
/// # Source
/// PerfTracker (2025), Algorithm 1; that the smallest `g` is what is searched, and the trimming,
/// are our reading (docs/math/pattern.md).
pub fn critical_execution(samples: &[f32], coverage: f64) -> Option<Execution> {
    let total: f64 = samples.iter().map(|sample| f64::from(*sample)).sum();
    if total <= 0.0 {
        return None;
    }
    // The longer the gap that is let through, the more a piece holds: halving finds it.
    // With gaps as long as all samples nothing is cut, so the upper end always has a piece.
    let (mut low, mut high) = (0, samples.len());
    while low < high {
        let middle = usize::midpoint(low, high);
        if piece(samples, middle, coverage * total).is_some() {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let samples_of = piece(samples, low, coverage * total)?;
    let part = &samples[samples_of.clone()];
    let count = part.len() as f64;
    let mean = part.iter().map(|sample| f64::from(*sample)).sum::<f64>() / count;
    let squares: f64 = part
        .iter()
        .map(|sample| (f64::from(*sample) - mean).powi(2))
        .sum();
    let deviation = (squares / count).sqrt();
    Some(Execution {
        samples: samples_of,
        mean,
        deviation,
    })
}

/// The piece that holds `needed`, if samples are cut at runs of more than `zeros` zeros.
fn piece(samples: &[f32], zeros: usize, needed: f64) -> Option<Range<usize>> {
    // Sums of the same samples in another order differ by rounding.
    let needed = needed * (1.0 - 1e-9);
    let (mut piece, mut sum) = (0..0, 0.0);
    for (at, sample) in samples
        .iter()
        .enumerate()
        .filter(|(_, sample)| **sample > 0.0)
    {
        // The sum is 0 before the first sample only, as all that are added are positive.
        if sum == 0.0 || at - piece.end > zeros {
            if sum >= needed {
                break;
            }
            (piece.start, sum) = (at, 0.0);
        }
        sum += f64::from(*sample);
        piece.end = at + 1;
    }
    (sum >= needed).then_some(piece)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The example of docs/math/pattern.md.
    #[test]
    fn a_kernel_that_waits_in_its_middle_is_judged_by_its_work() {
        let samples = [
            0.3, 0.0, 0.0, 0.0, 0.0, 0.9, 0.8, 0.0, 0.9, 1.0, 0.9, 0.0, 0.0, 0.0,
        ];
        let found = critical_execution(&samples, 0.8).unwrap();
        assert_eq!(found.samples, 5..11);
        assert!((found.mean - 0.75).abs() < 1e-6, "{}", found.mean);
    }

    #[test]
    fn what_uses_nothing_has_no_execution() {
        assert_eq!(critical_execution(&[0.0; 9], 0.8), None);
        assert_eq!(critical_execution(&[], 0.8), None);
        assert_eq!(
            critical_execution(&[0.0, 0.5, 0.0], 0.8).unwrap().samples,
            1..2
        );
    }

    /// Every way to cut, tried one after the other.
    fn by_brute_force(samples: &[f32], coverage: f64) -> Option<Range<usize>> {
        let total: f64 = samples.iter().map(|s| f64::from(*s)).sum();
        for zeros in 0..=samples.len() {
            let mut pieces: Vec<Vec<usize>> = vec![Vec::new()];
            let mut run = 0;
            for (at, sample) in samples.iter().enumerate() {
                run = if *sample > 0.0 { 0 } else { run + 1 };
                if *sample > 0.0 {
                    pieces.last_mut()?.push(at);
                } else if run == zeros + 1 {
                    pieces.push(Vec::new());
                }
            }
            let sum =
                |piece: &Vec<usize>| piece.iter().map(|at| f64::from(samples[*at])).sum::<f64>();
            let held = |piece: &&Vec<usize>| {
                !piece.is_empty() && sum(piece) >= coverage * total * (1.0 - 1e-9)
            };
            if let Some(piece) = pieces.iter().find(held) {
                return Some(*piece.first()?..piece.last()? + 1);
            }
        }
        None
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn the_search_finds_what_trying_everything_finds(
            samples in proptest::collection::vec(
                prop_oneof![2 => Just(0u8), 3 => 1..=10u8], 0..40),
        ) {
            let samples: Vec<f32> = samples.iter().map(|s| f32::from(*s) / 10.0).collect();
            let found = critical_execution(&samples, 0.8);
            if let Some(found) = &found {
                prop_assert!((0.0..=1.0).contains(&found.mean));
                prop_assert!(found.deviation <= 0.5 + 1e-9);
            }
            let found = found.map(|found| found.samples);
            prop_assert_eq!(found, by_brute_force(&samples, 0.8));
        }
    }
}
