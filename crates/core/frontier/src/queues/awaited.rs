//! Where devices wait for collectives.

use model::{Block, Ending, Growth};

use crate::replay::{last_arrivals, prefixes};

/// Share of the time by which ranks are early at a collective that they may go past a place before
/// the last one is there, if they are to wait there. Ours: starts of steps scatter.
const OVERTAKEN_SHARE: f64 = 0.1;

/// For each boundary, the collectives that devices wait for right behind the boundary before it: the
/// first place that nobody goes past before the last rank is there, and where nothing speaks against
/// it. At the last place at the latest, for there ranks meet.
///
/// # Source
/// Ours: docs/math/device.md.
pub(super) fn awaited(block: &Block) -> Vec<Vec<usize>> {
    let (ranks, places) = (block.ranks, block.boundaries.len());
    let mut awaited = vec![Vec::new(); places];
    let rows: Vec<Vec<f64>> = block.rows().map(|(_, row)| prefixes(row, ranks)).collect();
    for (issued, boundary) in block.boundaries.iter().enumerate() {
        if !matches!(boundary.ending, Ending::Issue { op, .. } if !op.is_point_to_point())
        {
            continue;
        }
        let of_rank = |row: &[f64], at: usize| row[at * ranks..(at + 1) * ranks].to_vec();
        let last_s = rows.iter().map(|row| {
            last_arrivals(block.groups.as_deref(), issued, &of_rank(row, issued))
        });
        let last_s: Vec<Vec<f64>> = last_s.collect();
        // By how much ranks get to a place before the last one is where the collective is issued.
        let before_s = |at: usize| -> f64 {
            let rows = rows.iter().zip(&last_s);
            let each = rows.flat_map(|(row, last_s)| last_s.iter().zip(of_rank(row, at)));
            each.map(|(last_s, at_s)| (last_s - at_s).max(0.0)).sum()
        };
        let early_s = before_s(issued);
        let waits = |at: &usize| {
            let is_last = at + 1 == places;
            before_s(*at) <= OVERTAKEN_SHARE * early_s
                && (is_last || may_wait(&rows, &last_s, *at))
        };
        if let Some(at) = (issued + 1..places).find(waits) {
            awaited[at].push(issued);
        }
    }
    awaited
}

/// Whether what the segment up to a boundary takes may grow with how early a rank is at its begin, as
/// where it waits for the last one.
fn may_wait(rows: &[Vec<f64>], last_s: &[Vec<f64>], at: usize) -> bool {
    let ranks = last_s.first().map_or(0, Vec::len);
    let mut early_s = vec![Vec::with_capacity(rows.len()); ranks];
    let mut takes_s = early_s.clone();
    for (row, last_s) in rows.iter().zip(last_s) {
        for (rank, last_s) in last_s.iter().enumerate() {
            let begins_s = row[(at - 1) * ranks + rank];
            early_s[rank].push((last_s - begins_s).max(0.0));
            takes_s[rank].push(row[at * ranks + rank] - begins_s);
        }
    }
    Growth::of(early_s, takes_s).is_possible()
}
