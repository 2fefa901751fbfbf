//! Waits for the other ranks of a communicator.

use std::collections::HashMap;

use model::{Block, Window};

/// How long ranks wait for the last one of the communicator in which each issued its last collective, over
/// all rows, in seconds: in the first segment behind it that ends no sooner than that one gets there, as
/// far as their hosts do not hold them up there, for `held_s` by block. `None` if all ranks are in the
/// same communicators.
pub(super) fn waits_in_groups_s(window: &Window, held_s: &[Vec<f64>]) -> Option<f64> {
    let blocks = window.blocks.iter().zip(held_s);
    let waits = blocks.filter_map(|(block, held_s)| of_block_s(block, held_s));
    waits.reduce(|one, other| one + other)
}

fn of_block_s(block: &Block, held_s: &[f64]) -> Option<f64> {
    let groups = block.groups.as_deref()?;
    let mut waits_s = 0.0;
    let cells = block.boundaries.len() * block.ranks;
    for ((_, row), held_s) in block.rows().zip(held_s.chunks_exact(cells)) {
        let mut ends_s = vec![0.0f64; block.ranks];
        // When the last rank was where this one issued what it has not waited for yet.
        let mut last_s: Vec<Option<f64>> = vec![None; block.ranks];
        let segments = row
            .chunks_exact(block.ranks)
            .zip(held_s.chunks_exact(block.ranks))
            .zip(groups.chunks_exact(block.ranks));
        for (((took_s, held_s), groups), boundary) in segments.zip(block.boundaries.iter()) {
            for (rank, end_s) in ends_s.iter_mut().enumerate() {
                let begin_s = *end_s;
                *end_s += took_s[rank];
                if let Some(last) = last_s[rank].filter(|last| *end_s >= *last) {
                    let free_s = took_s[rank] - held_s[rank];
                    waits_s += (last - begin_s).min(free_s).max(0.0);
                    last_s[rank] = None;
                }
            }
            if boundary.ending.joins() {
                let mut last: HashMap<u32, f64> = HashMap::new();
                for (group, end_s) in groups.iter().zip(&ends_s) {
                    let known_s = last.entry(*group).or_insert(*end_s);
                    *known_s = known_s.max(*end_s);
                }
                last_s = groups.iter().map(|group| Some(last[group])).collect();
            }
        }
    }
    Some(waits_s)
}

#[cfg(test)]
mod tests {
    use model::{Boundary, CollectiveOp, Ending, MarkKind, StageId, Sync};

    use super::*;

    #[test]
    fn a_rank_waits_for_those_of_its_group_only() {
        let boundary = |ending| Boundary {
            stage: StageId::FORWARD,
            after: MarkKind::DataEnd,
            ending,
            sync: Sync::None,
        };
        let issue = Ending::Issue {
            op: CollectiveOp::ALLREDUCE,
            group: 0,
        };
        let window = |groups: Option<[u32; 4]>| -> Window {
            Block {
                boundaries: [
                    boundary(issue),
                    boundary(Ending::Mark(MarkKind::BackwardBegin)),
                ]
                .into(),
                groups: groups.map(|groups| [groups, [0; 4]].concat().into()),
                steps: vec![0],
                // The last one is late. The third works as long as the first waits.
                durations_s: vec![1.0, 5.0, 1.0, 2.0, 6.0, 1.0, 4.0, 1.0],
                ranks: 4,
                carried: 0,
            }
            .into()
        };
        let in_two = window(Some([7, 7, 8, 8]));
        let mut held_s = vec![vec![0.0; 8]];
        assert_eq!(waits_in_groups_s(&in_two, &held_s), Some(5.0));
        assert_eq!(waits_in_groups_s(&window(None), &held_s), None);
        // Its host holds the first one up for most of that.
        held_s[0][4] = 5.0;
        assert_eq!(waits_in_groups_s(&in_two, &held_s), Some(2.0));
    }
}
