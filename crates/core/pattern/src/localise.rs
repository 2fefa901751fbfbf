use std::cmp::Ordering;
use std::collections::BTreeMap;

use model::{FunctionClass, FunctionFaultKind, Pattern};

use crate::columns::middle;
use crate::{Columns, ExpectedBox, PatternSettings};

/// Whether what is wrong is wrong almost everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Unexpected on more than half of the workers: the program or what all of them share.
    Common,
    /// On some workers: these.
    Partial,
}

/// A worker on which a function behaves unlike expectation or unlike its peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Abnormal {
    /// The worker.
    pub worker: u32,
    /// Beta, mu and sigma.
    pub values: [f32; 3],
    /// How far each lies outside of what is expected.
    pub excess: [f64; 3],
    /// How each compares with the median: clearly less, about the same or clearly more. Of what was
    /// not measured it is the same.
    pub direction: [Ordering; 3],
    /// Whether mu and sigma were measured there.
    pub measured: bool,
    /// Part of the sample it differs from.
    pub differential: f64,
    /// Whether that alone makes it abnormal.
    pub differs: bool,
}

impl Abnormal {
    /// Distance to the expected box.
    ///
    /// # Source
    /// PerfTracker (2025), equation 7.
    pub fn distance(&self) -> f64 {
        self.excess.iter().sum()
    }

    /// What kind of fault it looks like, in a function of this class.
    ///
    /// # Source
    /// PerfTracker (2025), its cases: a throttled GPU works longer at less utilisation, a slow link
    /// carries steadily less while those that wait for it come and go, and where a link is down
    /// another carries more. In one ring of all ranks every link carries as much in the same time,
    /// and only the slow one does so without a pause. The bounds are ours.
    pub fn kind(&self, class: FunctionClass) -> Option<FunctionFaultKind> {
        if !self.measured {
            return None;
        }
        let [beta, mu, sigma] = self.direction;
        match class {
            FunctionClass::GpuCompute => mu.is_lt().then_some(FunctionFaultKind::Throttled),
            // Sigma comes before mu: ranks that wait in the ring of a slow link have its low mean
            // too, and differ from its ends in their deviation only (docs/math/pattern.md).
            FunctionClass::Collective if sigma.is_gt() => Some(FunctionFaultKind::Waits),
            FunctionClass::Collective | FunctionClass::Memory if mu.is_lt() => {
                Some(FunctionFaultKind::SlowLink)
            }
            FunctionClass::Collective if mu.is_gt() => Some(FunctionFaultKind::Detour),
            FunctionClass::Collective if sigma.is_lt() => Some(FunctionFaultKind::SlowLink),
            FunctionClass::Collective => beta.is_gt().then_some(FunctionFaultKind::Waits),
            // Copies that take longer at the usual rate are more copies, for which no link is to
            // blame.
            FunctionClass::Memory => None,
            FunctionClass::CpuCompute | FunctionClass::Python | FunctionClass::OtherCpu => {
                let busy_share = f64::from(self.values[1]);
                if busy_share <= WAITS_BELOW {
                    Some(FunctionFaultKind::Waits)
                } else {
                    (busy_share >= COMPUTES_FROM).then_some(FunctionFaultKind::Computes)
                }
            }
        }
    }
}

/// What the comparison of one function says.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionFinding {
    /// Workers that ran it.
    pub workers: usize,
    /// Medians of beta, mu and sigma over them.
    pub median: [f32; 3],
    /// Median of the differential distances, and their median absolute deviation.
    pub usual: (f64, f64),
    /// Abnormal workers, in the order they were given in.
    pub abnormal: Vec<Abnormal>,
    /// Common or partial; `None` if no worker is abnormal.
    pub problem: Option<Problem>,
}

/// Part of the largest value by which one must be off the median to be less or more: half of the
/// distance from which two patterns differ. Ours.
const OFF_SHARE: f32 = 0.2;
/// Utilisation of a core up to which a function of the host waits, and from which it computes.
/// Between them lie those that do both, or share their core with others. Ours.
const WAITS_BELOW: f64 = 0.25;
const COMPUTES_FROM: f64 = 0.75;

/// Lanes of the comparison: a whole number of vector registers.
const LANES: usize = 8;

/// Compares one function's patterns over the workers that ran it.
///
/// A worker is abnormal if the function costs it more than `beta_min` and either lies outside of
/// what is expected, or differs from more of the sampled workers than is usual by
/// `max(k_mad * MAD, min_excess)`. Of a worker without counters only beta counts. `seed` draws the sample, one for all workers: with samples of
/// their own healthy workers differ by chance.
/// # Properties
/// Relabelling workers or scaling one dimension of all changes nothing (PT-P4, PT-P5);
/// identical workers never differ (PT-P6).
/// # Complexity
/// O(workers × sample).
/// # Source
/// PerfTracker (2025), equations 7 to 11; shared sample and floor are ours
/// (docs/math/pattern.md).
pub fn localise(
    columns: &Columns,
    expected: &ExpectedBox,
    settings: &PatternSettings,
    seed: u64,
) -> FunctionFinding {
    let sample = draw(columns.len(), settings.sample, seed);
    let counts = differing(columns, &sample, settings.distance as f32);
    let (median, mad) = median_and_mad(&counts, sample.len());
    let size = sample.len().max(1) as f64;
    let threshold = median
        + (settings.k_mad * mad)
            .max(settings.min_excess * size)
            .max(f64::EPSILON);
    let [usual_mu, usual_sigma] = columns.usual();
    let usual = [middle(columns.values[0].clone()), usual_mu, usual_sigma];
    let scales = columns.scales();
    let mut abnormal = Vec::new();
    let mut unexpected = 0;
    for (at, count) in counts.iter().enumerate() {
        let values = columns.row(at);
        if f64::from(values[0]) <= settings.beta_min {
            continue;
        }
        let measured = u32::from(columns.measured[at]);
        let [beta, mu, sigma] = values;
        let pattern = Pattern {
            beta,
            mu,
            sigma,
            events: 1,
            measured,
        };
        let excess = expected.excess(&pattern);
        let is_unexpected = excess.iter().any(|excess| *excess > 0.0);
        let differs = f64::from(*count) > threshold;
        unexpected += usize::from(is_unexpected);
        if is_unexpected || differs {
            abnormal.push(Abnormal {
                worker: columns.workers[at],
                values,
                excess,
                direction: [0, 1, 2].map(|at: usize| {
                    let off_share = (values[at] - usual[at]) * scales[at];
                    if at > 0 && measured == 0 || off_share.abs() < OFF_SHARE {
                        return Ordering::Equal;
                    }
                    off_share.total_cmp(&0.0)
                }),
                measured: measured > 0,
                differential: f64::from(*count) / size,
                differs,
            });
        }
    }
    // Only what is unexpected can be common: most workers cannot differ from most.
    let problem = (!abnormal.is_empty()).then_some(if unexpected * 2 > columns.len() {
        Problem::Common
    } else {
        Problem::Partial
    });
    FunctionFinding {
        workers: columns.len(),
        median: usual,
        usual: (median / size, mad / size),
        abnormal,
        problem,
    }
}

/// Abnormal workers by host, those of most first.
pub fn by_host<'h>(
    abnormal: &[Abnormal],
    host: impl Fn(u32) -> &'h str,
) -> Vec<(&'h str, Vec<u32>)> {
    let mut hosts: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for found in abnormal {
        hosts
            .entry(host(found.worker))
            .or_default()
            .push(found.worker);
    }
    let mut hosts: Vec<_> = hosts.into_iter().collect();
    // Stable: of hosts with as many, names decide.
    hosts.sort_by_key(|(_, workers)| std::cmp::Reverse(workers.len()));
    hosts
}

/// Of how many sampled workers each differs.
fn differing(columns: &Columns, sample: &[usize], distance: f32) -> Vec<u32> {
    let (scales, usual) = (columns.scales(), columns.usual());
    let sample: Vec<[f32; 3]> = sample
        .iter()
        .map(|at| columns.normalised(*at, scales, usual))
        .collect();
    let mut counts = vec![0; columns.len()];
    for (chunk, counts) in counts.chunks_mut(LANES).enumerate() {
        // Whole registers of workers against one sampled worker at a time.
        let mut rows = [[0.0f32; LANES]; 3];
        for lane in 0..counts.len() {
            let row = columns.normalised(chunk * LANES + lane, scales, usual);
            for (values, value) in rows.iter_mut().zip(row) {
                values[lane] = value;
            }
        }
        let mut differs = [0u32; LANES];
        for other in &sample {
            for lane in 0..LANES {
                let apart = (rows[0][lane] - other[0]).abs()
                    + (rows[1][lane] - other[1]).abs()
                    + (rows[2][lane] - other[2]).abs();
                differs[lane] += u32::from(apart >= distance);
            }
        }
        // The last chunk may be shorter: its empty lanes were compared as zeros, and are dropped.
        counts.copy_from_slice(&differs[..counts.len()]);
    }
    counts
}

/// Draws without repetition; everybody if there are no more.
///
/// # Source
/// Floyd's algorithm (Bentley, Programming Pearls); numbers by splitmix64.
fn draw(workers: usize, size: usize, seed: u64) -> Vec<usize> {
    if workers <= size {
        return (0..workers).collect();
    }
    let mut state = seed;
    let mut drawn = std::collections::BTreeSet::new();
    for last in workers - size..workers {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // A remainder favours small places by parts in 2^64: no comparison notices.
        let at = ((mixed ^ (mixed >> 31)) % (last as u64 + 1)) as usize;
        drawn.insert(if drawn.contains(&at) { last } else { at });
    }
    drawn.into_iter().collect()
}

/// Median of counts up to `most`, and the median of the distances to it.
fn median_and_mad(counts: &[u32], most: usize) -> (f64, f64) {
    // Twice the count, so that a median between two counts is a whole number.
    // No count is larger than the sample, so each has a place.
    let mut places = vec![0usize; 2 * most + 1];
    for count in counts {
        places[2 * *count as usize] += 1;
    }
    let median = middle_of(&places, counts.len());
    let mut distances = vec![0usize; 2 * most + 1];
    for (at, count) in places.iter().enumerate() {
        distances[at.abs_diff(median as usize)] += count;
    }
    (median / 2.0, middle_of(&distances, counts.len()) / 2.0)
}

/// The median place of a histogram; the mean of the two middle ones, rounded down to a place.
fn middle_of(places: &[usize], total: usize) -> f64 {
    if total == 0 {
        return 0.0;
    }
    let [lower, upper] = [(total - 1) / 2, total / 2].map(|wanted| {
        let mut passed = 0;
        places
            .iter()
            .position(|count| {
                passed += count;
                passed > wanted
            })
            .unwrap_or(0)
    });
    usize::midpoint(lower, upper) as f64
}

#[cfg(test)]
mod tests;
