//! Ranks that number their steps differently.

use std::collections::{BTreeMap, HashMap};

use model::CollectiveNumber;

use super::PendingStep;

/// Whether the step of a rank is a later one of another by the first collective that both issue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Drift {
    None,
    /// Not known before this rank's next step.
    Open {
        behind: u32,
    },
    /// The step of this rank is the one that is so many steps later.
    Ahead {
        rank: u32,
        steps: u32,
    },
}

/// How the ranks of a step drifted apart. `may_follow` says whether a rank may deliver more steps.
///
/// # Source
/// Ours: docs/math/frontier.md.
pub(super) fn drift(
    pending: &BTreeMap<u32, PendingStep>,
    step: u32,
    may_follow: impl Fn(u32) -> bool,
) -> Drift {
    let Some(here) = pending.get(&step) else {
        return Drift::None;
    };
    let numbered = || {
        let ranks = here.ranks.iter();
        ranks.filter_map(|(rank, piece)| Some((*rank, piece.first_collective?)))
    };
    // By group, the rank that has issued the fewest.
    let mut last: HashMap<u32, (u32, u64)> = HashMap::new();
    for (rank, CollectiveNumber { group, number }) in numbered() {
        let known = last.entry(group).or_insert((rank, number));
        if number < known.1 {
            *known = (rank, number);
        }
    }
    let mut open = None;
    for (rank, first) in numbered() {
        let (behind, number) = last[&first.group];
        if first.number == number {
            continue;
        }
        let later = pending.range(step + 1..).find_map(|(later, of_step)| {
            let its = of_step.ranks.get(&behind)?.first_collective?;
            (its.group == first.group && its.number >= first.number).then_some((*later, its))
        });
        match later {
            Some((later, its)) if its == first => {
                let steps = later - step;
                return Drift::Ahead { rank, steps };
            }
            // Some collectives of its were not counted: that says nothing of steps.
            Some(_) => {}
            None => open = open.or(Some(behind).filter(|behind| may_follow(*behind))),
        }
    }
    open.map_or(Drift::None, |behind| Drift::Open { behind })
}
