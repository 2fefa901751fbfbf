use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use model::CoreUsage;

/// Tellings of a rank that are kept: some ten minutes, as agents tell them.
const KEPT: usize = 64;

/// What ranks' processes did with cores, lately.
#[derive(Debug, Default)]
pub(crate) struct Usages {
    ranks: BTreeMap<u32, VecDeque<(RangeInclusive<u64>, CoreUsage)>>,
}

impl Usages {
    /// Takes what a rank's process did in these steps.
    pub(crate) fn take(
        &mut self,
        rank: u32,
        steps: RangeInclusive<u64>,
        usage: CoreUsage,
    ) {
        if usage.is_sound() {
            let told = self.ranks.entry(rank).or_default();
            told.push_back((steps, usage));
            if told.len() > KEPT {
                told.pop_front();
            }
        }
    }

    /// What each rank's process did in these steps, as far as it was told.
    pub(crate) fn during(&self, steps: &RangeInclusive<u64>) -> BTreeMap<u32, CoreUsage> {
        let meets = |told: &RangeInclusive<u64>| {
            told.start() <= steps.end() && steps.start() <= told.end()
        };
        let of_rank = |told: &VecDeque<(RangeInclusive<u64>, CoreUsage)>| {
            let told = told.iter().filter(|(steps, _)| meets(steps));
            told.map(|(_, usage)| *usage).reduce(CoreUsage::and)
        };
        let ranks = self.ranks.iter();
        ranks.filter_map(|(rank, told)| Some((*rank, of_rank(told)?))).collect()
    }
}
