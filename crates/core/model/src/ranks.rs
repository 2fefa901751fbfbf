use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::MAX_RANKS;

/// Ranks of a group, as runs that go up evenly: all members of a job of many thousand ranks
/// are told by each of them.
///
/// In text a run is `FIRST`, `FIRST-LAST`, or `FIRST-LAST:STRIDE`, and runs are parted by
/// commas: `0-3,8-120:8`. Where it is read a list of numbers stands for the same.
///
/// # Invariants
/// At most [`MAX_RANKS`] ranks, all below that, however it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "TextOrList")]
pub struct Ranks {
    runs: Vec<Run>,
    count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
            "ranks are numbers below {MAX_RANKS}, and ranges of them, as in 0-3,8-120:8"
        )
    }
}

impl std::error::Error for NoRanks {}

impl Run {
    fn last(self) -> u32 {
        self.first + self.stride * (self.count - 1)
    }
}

impl Ranks {
    /// Each of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let each = |run: &Run| {
            let Run { first, count, stride } = *run;
            (0..count).map(move |nth| first + nth * stride)
        };
        self.runs.iter().flat_map(each)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds the next one; whether it has a place.
    fn push(&mut self, rank: u32) -> bool {
        if rank >= MAX_RANKS || self.count == MAX_RANKS {
            return false;
        }
        self.count += 1;
        match self.runs.last_mut() {
            Some(run) if run.count == 1 && rank > run.first => {
                (run.count, run.stride) = (2, rank - run.first);
            }
            Some(run) if run.count > 1 && run.last() + run.stride == rank => {
                run.count += 1
            }
            _ => self.runs.push(Run { first: rank, count: 1, stride: 1 }),
        }
        true
    }
}

/// What has no place is left out.
impl FromIterator<u32> for Ranks {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Self {
        let mut all = Self::default();
        for rank in ranks {
            all.push(rank);
        }
        all
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, run) in self.runs.iter().enumerate() {
            let comma = if nth > 0 { "," } else { "" };
            let (first, last) = (run.first, run.last());
            match (run.count, run.stride) {
                (1, _) => write!(formatter, "{comma}{first}")?,
                (_, 1) => write!(formatter, "{comma}{first}-{last}")?,
                (_, stride) => write!(formatter, "{comma}{first}-{last}:{stride}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for Ranks {
    type Err = NoRanks;

    fn from_str(text: &str) -> Result<Self, NoRanks> {
        let mut all = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let number = |text: &str| text.parse::<u32>().map_err(|_| NoRanks);
            let (range, stride) = part.split_once(':').unwrap_or((part, "1"));
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last, stride) = (number(first)?, number(last)?, number(stride)?);
            if first > last || last >= MAX_RANKS || stride == 0 {
                return Err(NoRanks);
            }
            let run = Run { first, count: (last - first) / stride + 1, stride };
            all.count += run.count;
            if all.count > MAX_RANKS {
                return Err(NoRanks);
            }
            all.runs.push(run);
        }
        Ok(all)
    }
}

impl From<Ranks> for String {
    fn from(ranks: Ranks) -> Self {
        ranks.to_string()
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrList {
    Text(String),
    List(Vec<u32>),
}

impl TryFrom<TextOrList> for Ranks {
    type Error = NoRanks;

    fn try_from(told: TextOrList) -> Result<Self, NoRanks> {
        match told {
            TextOrList::Text(text) => text.parse(),
            TextOrList::List(list) => {
                let mut all = Self::default();
                let fits = list.into_iter().all(|rank| all.push(rank));
                fits.then_some(all).ok_or(NoRanks)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn ranks(text: &str) -> Result<Vec<u32>, NoRanks> {
        Ok(text.parse::<Ranks>()?.iter().collect())
    }

    #[test]
    fn ranks_read_as_they_are_written() {
        assert_eq!(ranks("0-2,7"), Ok(vec![0, 1, 2, 7]));
        assert_eq!(ranks("8-24:8,3"), Ok(vec![8, 16, 24, 3]));
        assert_eq!(ranks(""), Ok(Vec::new()));
        for wrong in ["x", "0-x", "3-1", "0-4:0", "0-4294967295", "131072"] {
            assert_eq!(ranks(wrong), Err(NoRanks), "{wrong}");
        }
        assert_eq!(ranks(&"0-131071,".repeat(2)), Err(NoRanks));
        let of = |list: &[u32]| list.iter().copied().collect::<Ranks>().to_string();
        assert_eq!(of(&[0, 1, 2, 3]), "0-3");
        assert_eq!(of(&[0, 8, 16, 24, 25]), "0-24:8,25");
        assert_eq!(of(&[5]), "5");
    }

    #[test]
    fn a_list_of_older_recordings_is_read_too() {
        let read = |text| serde_json::from_str::<Ranks>(text).map_err(drop);
        assert_eq!(read("[0,1,2,7]"), read("\"0-2,7\""));
        assert_eq!(read("[131072]"), Err(()));
    }

    proptest! {
        #[test]
        fn folding_loses_nothing(list in vec(0_u32..40, 0..60)) {
            let folded: Ranks = list.iter().copied().collect();
            prop_assert_eq!(folded.len(), list.len());
            prop_assert_eq!(ranks(&folded.to_string()), Ok(list));
        }
    }
}
