use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{MAX_RANKS, fold_ranks};

/// Ranks of a job, as runs that go up evenly: there may be many, and most of them neighbours, or
/// so many apart.
///
/// # Shape
/// In JSON a run is its first and last rank, and what lies between two of them if that is not one:
/// `[[0, 3], [8, 120, 8]]`. Where it is read a list of numbers stands for the same.
/// # Invariants
/// Ascending, each below [`MAX_RANKS`]; what is collected and has no place is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "Vec<Vec<u32>>", try_from = "SerializedRanks")]
pub struct Ranks {
    runs: Vec<Run>,
    count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    first: u32,
    count: u32,
    stride: u32,
}

/// Ranks that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRanks;

impl fmt::Display for NoRanks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "ranks are numbers below {MAX_RANKS}, or runs of them that go up"
        )
    }
}

impl std::error::Error for NoRanks {}

impl Run {
    fn one(rank: u32) -> Self {
        Self {
            first: rank,
            count: 1,
            stride: 1,
        }
    }

    fn new(first: u32, last: u32, stride: u32) -> Result<Self, NoRanks> {
        if first > last || last >= MAX_RANKS || stride == 0 {
            return Err(NoRanks);
        }
        Ok(Self {
            first,
            // A `last` that the stride does not meet is left out: `0-5:4` is 0 and 4.
            count: (last - first) / stride + 1,
            stride,
        })
    }

    fn last(self) -> u32 {
        // Cannot overflow: it is at most the `last` that [`Run::new`] has checked.
        self.first + self.stride * (self.count - 1)
    }

    fn ranks(self) -> impl Iterator<Item = u32> {
        (0..self.count).map(move |nth| self.first + nth * self.stride)
    }

    fn contains(self, rank: u32) -> bool {
        (self.first..=self.last()).contains(&rank)
            && (rank - self.first).is_multiple_of(self.stride)
    }

    /// Two ranks that are far apart are no run.
    fn is_pair(self) -> bool {
        self.count == 2 && self.stride > 1
    }
}

impl Ranks {
    /// Each of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs.iter().copied().flat_map(Run::ranks)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether a rank is one of them.
    pub fn contains(&self, rank: u32) -> bool {
        self.runs.iter().any(|run| run.contains(rank))
    }

    /// These and others.
    #[must_use]
    pub fn and(&self, others: &Self) -> Self {
        self.iter().chain(others.iter()).collect()
    }

    /// These without others.
    #[must_use]
    pub fn without(&self, others: &[u32]) -> Self {
        // A set: both may be nearly all ranks of a large job.
        let others: BTreeSet<&u32> = others.iter().collect();
        self.iter().filter(|rank| !others.contains(rank)).collect()
    }

    /// Adds a rank above all others.
    fn push(&mut self, rank: u32) {
        self.count += 1;
        match self.runs.last_mut() {
            // Any two may begin a run: the third decides at which stride.
            Some(run) if run.count == 1 => {
                (run.count, run.stride) = (2, rank - run.first);
            }
            Some(run) if run.last() + run.stride == rank => run.count += 1,
            // The third does not follow the stride of the first two: the first stands alone.
            Some(run) if run.is_pair() => {
                let between = Run {
                    first: run.last(),
                    count: 2,
                    stride: rank - run.last(),
                };
                *run = Run::one(run.first);
                self.runs.push(between);
            }
            _ => self.runs.push(Run::one(rank)),
        }
    }

    /// All ranks of runs that may overlap.
    fn of_runs(runs: impl IntoIterator<Item = Result<Run, NoRanks>>) -> Result<Self, NoRanks> {
        let mut all = Self::default();
        for run in runs {
            let run = run?;
            all.count = all.count.checked_add(run.count).ok_or(NoRanks)?;
            // Before anything is unfolded: a few bytes may claim billions of ranks.
            if all.count > MAX_RANKS {
                return Err(NoRanks);
            }
            all.runs.push(run);
        }
        // What we write ascends; only what others write may overlap and is unfolded.
        let ascends = all.runs.is_sorted_by(|a, b| a.last() < b.first);
        Ok(if ascends { all } else { all.iter().collect() })
    }
}

impl FromIterator<u32> for Ranks {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Self {
        let mut sorted: Vec<u32> = ranks.into_iter().filter(|rank| *rank < MAX_RANKS).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut all = Self::default();
        for rank in sorted {
            all.push(rank);
        }
        // No third came to make a run of it.
        if let Some(run) = all.runs.last_mut().filter(|run| run.is_pair()) {
            let last = Run::one(run.last());
            *run = Run::one(run.first);
            all.runs.push(last);
        }
        all
    }
}

impl<const N: usize> From<[u32; N]> for Ranks {
    fn from(ranks: [u32; N]) -> Self {
        ranks.into_iter().collect()
    }
}

/// For reading: `0-3,7`.
impl fmt::Display for Ranks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&fold_ranks(&self.iter().collect::<Vec<_>>()))
    }
}

/// From text as in `0-3,8-120:8`, where every eighth of the second run is meant.
impl FromStr for Ranks {
    type Err = NoRanks;

    fn from_str(text: &str) -> Result<Self, NoRanks> {
        let parts = text.split(',').filter(|part| !part.is_empty());
        Self::of_runs(parts.map(str::parse))
    }
}

impl FromStr for Run {
    type Err = NoRanks;

    fn from_str(text: &str) -> Result<Self, NoRanks> {
        let (range, stride) = text.split_once(':').unwrap_or((text, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Self::new(number(first)?, number(last)?, number(stride)?)
    }
}

fn number(text: &str) -> Result<u32, NoRanks> {
    text.parse().or(Err(NoRanks))
}

impl From<Ranks> for Vec<Vec<u32>> {
    fn from(ranks: Ranks) -> Self {
        ranks.runs.into_iter().map(Vec::from).collect()
    }
}

impl From<Run> for Vec<u32> {
    fn from(run: Run) -> Self {
        // Most runs are of neighbours: their stride goes without saying.
        match run.stride {
            1 => vec![run.first, run.last()],
            stride => vec![run.first, run.last(), stride],
        }
    }
}

/// Ranks as they are read.
#[derive(Deserialize)]
#[serde(untagged)]
enum SerializedRanks {
    Runs(Vec<Vec<u32>>),
    List(Vec<u32>),
}

impl TryFrom<SerializedRanks> for Ranks {
    type Error = NoRanks;

    fn try_from(serialized: SerializedRanks) -> Result<Self, NoRanks> {
        match serialized {
            SerializedRanks::Runs(runs) => {
                Self::of_runs(runs.into_iter().map(|run| match run[..] {
                    [first, last] => Run::new(first, last, 1),
                    [first, last, stride] => Run::new(first, last, stride),
                    _ => Err(NoRanks),
                }))
            }
            SerializedRanks::List(list) if list.iter().all(|rank| *rank < MAX_RANKS) => {
                Ok(list.into_iter().collect())
            }
            SerializedRanks::List(_) => Err(NoRanks),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::btree_set;
    use proptest::prelude::*;

    use super::*;

    fn ranks(text: &str) -> Result<Vec<u32>, NoRanks> {
        Ok(text.parse::<Ranks>()?.iter().collect())
    }

    #[test]
    fn ranks_are_kept_as_runs() {
        let ranks: Ranks = [7, 1, 0, 2, 2, u32::MAX, 5, 30, 20, 40]
            .into_iter()
            .collect();
        assert_eq!(ranks.to_string(), "0-2,5,7,20,30,40");
        let json = "[[0,2],[5,5],[7,7],[20,40,10]]";
        assert_eq!(serde_json::to_string(&ranks).unwrap(), json);
        assert_eq!(
            (ranks.len(), ranks.contains(30), ranks.contains(31)),
            (8, true, false)
        );
        let changed = ranks.without(&[1, 7, 30]).and(&Ranks::from([3]));
        assert_eq!(changed.to_string(), "0,2-3,5,20,40");
    }

    #[test]
    fn ranks_are_read_from_text_and_from_lists() {
        assert_eq!(ranks("0-2,7"), Ok(vec![0, 1, 2, 7]));
        assert_eq!(ranks("8-24:8,3"), Ok(vec![3, 8, 16, 24]));
        assert_eq!(ranks(""), Ok(Vec::new()));
        for wrong in ["x", "0-x", "3-1", "0-4:0", "0-4294967295", "131072"] {
            assert_eq!(ranks(wrong), Err(NoRanks), "{wrong}");
        }
        assert_eq!(ranks(&"0-131071,".repeat(2)), Err(NoRanks));
        let read = |text| serde_json::from_str::<Ranks>(text).map_err(drop);
        assert_eq!(read("[0,1,2,7]"), Ok("0-2,7".parse().unwrap()));
        assert_eq!(read("[[0,2],[7,7]]").map(|ranks| ranks.len()), Ok(4));
        assert_eq!(read("[]"), Ok(Ranks::default()));
        assert_eq!((read("[131072]"), read("[[0]]")), (Err(()), Err(())));
    }

    proptest! {
        #[test]
        fn folding_loses_nothing(set in btree_set(0_u32..60, 0..40)) {
            let folded: Ranks = set.iter().copied().collect();
            prop_assert_eq!(folded.len(), set.len());
            prop_assert!(folded.iter().eq(set.iter().copied()));
            let json = serde_json::to_string(&folded).unwrap();
            let read: Ranks = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(read.iter().collect::<Vec<_>>(), set.into_iter().collect::<Vec<_>>());
        }
    }
}
