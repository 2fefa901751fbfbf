//! Who waits and who works, by what varies.

use crate::median;

/// Times the median deviation beyond which a single one counts no more. Ours: a busy host's hiccup
/// must not decide.
const USUAL_SCATTER: f64 = 4.0;
/// Times its standard error by which the growth of waits must differ from none. Ours: by chance in
/// one of 160 places.
const SURE_ERRORS: f64 = 2.5;
/// Part of its earliness that a rank must lose again. Ours: one that waits loses all of it, one that
/// works nothing.
const GROWTH_MIN: f64 = 0.5;
/// The same where all of it is a wait, and the share of what varies in what ranks take that may have
/// another cause then. Ours: marks scatter by less than ranks do.
const EXACT_SLOPE: f64 = 0.9;
const UNEXPLAINED_SHARE: f64 = 0.05;

/// How much what ranks take grows with how early they are, both by how they differ from the rank's
/// usual.
///
/// A rank that waits for a late one takes longer by as much as it is early; one that works does
/// not. Where a rank is late by as much in every step, only what varies distinguishes the two.
/// # Source
/// Ours: docs/math/meetings.md.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growth {
    count: f64,
    /// Sums in square seconds: how early ranks are, squared; that by what they take; what they
    /// take, squared.
    early: f64,
    both: f64,
    takes: f64,
}

impl Growth {
    /// Of values `[rank][row]`, in seconds: how early ranks are, and what they take next.
    pub fn of(mut early_s: Vec<Vec<f64>>, mut takes_s: Vec<Vec<f64>>) -> Self {
        // Each rank about its own median: that ranks differ for good says nothing of waits.
        for values in early_s.iter_mut().chain(&mut takes_s) {
            keep_variation(values);
        }
        // Both have the same rows of the same ranks, so flattened they pair up.
        let pairs = early_s.iter().flatten().zip(takes_s.iter().flatten());
        let mut growth = Self::default();
        for (early, takes) in pairs {
            growth.count += 1.0;
            growth.early += early * early;
            growth.both += early * takes;
            growth.takes += takes * takes;
        }
        growth
    }

    /// Slope of what ranks take over how early they are; no number if nothing varies.
    fn slope(&self) -> f64 {
        self.both / self.early
    }

    /// Standard error of the slope.
    fn error(&self) -> f64 {
        // Rounding may leave less than nothing of what a perfect slope explains.
        let rest = (self.takes - self.slope() * self.both).max(0.0);
        (rest / (self.count * self.early)).sqrt()
    }

    /// Whether there is any step to judge by.
    pub fn is_measured(&self) -> bool {
        self.count > 0.0
    }

    /// Whether ranks certainly wait.
    pub fn is_certain(&self) -> bool {
        // Without variation the slope is NaN, and no comparison with NaN holds.
        self.slope() >= GROWTH_MIN.max(SURE_ERRORS * self.error())
    }

    /// Whether ranks certainly lose at least half of how early they are. A rank that waits for a
    /// full launch queue may lose about half of it by chance.
    pub fn is_proven(&self) -> bool {
        self.slope() - SURE_ERRORS * self.error() >= GROWTH_MIN
    }

    /// Whether nearly all of what varies is that ranks lose again what they are early by: of no other
    /// cause is that so exact.
    pub fn is_exact(&self) -> bool {
        let rest = self.takes - self.slope() * self.both;
        self.slope() >= EXACT_SLOPE && rest <= UNEXPLAINED_SHARE * self.takes
    }

    /// Whether ranks may wait, as far as what varies shows.
    pub fn is_possible(&self) -> bool {
        // Where nothing varies, nothing is refuted.
        self.early <= 0.0 || self.slope() + SURE_ERRORS * self.error() >= GROWTH_MIN
    }

    /// Whether ranks vary by at least so many seconds (root mean square) in how early they are.
    pub fn varies_by(&self, seconds: f64) -> bool {
        self.count > 0.0 && self.early >= self.count * seconds * seconds
    }
}

impl std::ops::AddAssign for Growth {
    /// Joins what other steps of the same ranks show.
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.early += other.early;
        self.both += other.both;
        self.takes += other.takes;
    }
}

/// Leaves of some values what differs from their median, single ones cut to what is usual. Returns the median.
pub fn keep_variation(values: &mut [f64]) -> f64 {
    let usual = median(&mut values.to_vec()).unwrap_or(0.0);
    for value in values.iter_mut() {
        *value -= usual;
    }
    // Squares are summed: a single pause would decide the slope.
    let mut scatter: Vec<f64> = values.iter().map(|value| value.abs()).collect();
    let most = USUAL_SCATTER * median(&mut scatter).unwrap_or(0.0);
    for value in values {
        *value = value.clamp(-most, most);
    }
    usual
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_wait_are_distinguished_from_ranks_that_work() {
        let early_s: Vec<f64> = (0..40).map(|row| f64::from(row * 7919 % 23)).collect();
        let noise = |row: usize| (row * 104_729 % 17) as f64 * 0.1;
        let waits = early_s
            .iter()
            .enumerate()
            .map(|(row, early)| early + noise(row));
        let works = (0..40).map(noise);
        let [waits, works] = [waits.collect(), works.collect()]
            .map(|takes_s: Vec<f64>| Growth::of(vec![early_s.clone()], vec![takes_s]));
        assert!(waits.is_certain() && waits.is_possible() && waits.varies_by(5.0));
        assert!(waits.is_exact() && !works.is_exact());
        assert!(!works.is_certain() && !works.is_possible());
        let still = Growth::of(vec![vec![3.0; 40]], vec![vec![5.0; 40]]);
        assert!(!still.is_certain() && still.is_possible() && !still.varies_by(1e-9));
    }

    #[test]
    fn what_one_window_leaves_open_several_decide() {
        let early_s: Vec<f64> = (0..6).map(|row| f64::from(row * 5 % 7)).collect();
        let takes_s: Vec<f64> = [3.0, 6.0, 0.0, 4.0, 8.0, 5.0].to_vec();
        let one = Growth::of(vec![early_s], vec![takes_s]);
        let mut several = one;
        for _ in 0..30 {
            several += one;
        }
        assert!(!one.is_certain() && several.is_certain());
    }
}
