//! Where devices wait for collectives.

use model::{Block, Growth, Sync};

use crate::replay::{last_arrivals, prefixes};

/// Share of the time by which ranks are early at a collective that they may go past a place before
/// the last one is there, if they are to wait there. Ours: starts of steps scatter.
const OVERTAKEN_SHARE: f64 = 0.1;

/// For each boundary, the collectives that devices wait for right behind the boundary before it: the
/// first place that nobody goes past before the last rank is there, and where ranks are joined or
/// nothing speaks against it. At the last place at the latest, for there ranks meet. Before the first
/// that was recorded as issued, devices wait where ranks are joined: not every collective can be
/// recorded.
///
/// # Source
/// Ours: docs/math/device.md.
pub(super) fn awaited(block: &Block) -> Vec<Vec<usize>> {
    let (ranks, places) = (block.ranks, block.boundaries.len());
    let mut awaited = vec![Vec::new(); places];
    let first = block.boundaries.iter().position(|it| it.ending.joins());
    let unrecorded = &block.boundaries[..first.unwrap_or(places)];
    // With the first skipped, `at` is the boundary before `behind`.
    let behind = awaited.iter_mut().skip(1).enumerate();
    for ((at, behind), boundary) in behind.zip(unrecorded) {
        behind.extend((boundary.sync == Sync::Assumed).then_some(at));
    }
    if first.is_none() {
        return awaited;
    }
    let rows: Vec<Vec<f64>> = block.rows().map(|(_, row)| prefixes(row, ranks)).collect();
    for (issued, boundary) in block.boundaries.iter().enumerate() {
        if !boundary.ending.joins() {
            continue;
        }
        let last_s: Vec<Vec<f64>> = rows
            .iter()
            .map(|row| {
                let here = &row[issued * ranks..(issued + 1) * ranks];
                last_arrivals(block.groups.as_deref(), issued, here)
            })
            .collect();
        let early_s = before_s(&rows, &last_s, issued);
        // None for a collective that is issued at the last place: the row ends there.
        let waits_at = (issued + 1..places).find(|at| {
            let is_last = at + 1 == places;
            let is_joined = *at == issued + 1 && boundary.sync == Sync::Assumed;
            before_s(&rows, &last_s, *at) <= OVERTAKEN_SHARE * early_s
                && (is_last || is_joined || may_wait(&rows, &last_s, *at))
        });
        if let Some(at) = waits_at {
            awaited[at].push(issued);
        }
    }
    awaited
}

/// By how much ranks get to a place before the last one is where a collective is issued, in all.
fn before_s(rows: &[Vec<f64>], last_s: &[Vec<f64>], at: usize) -> f64 {
    rows.iter()
        .zip(last_s)
        .flat_map(|(row, last_s)| last_s.iter().zip(&row[at * last_s.len()..]))
        .map(|(last_s, at_s)| (last_s - at_s).max(0.0))
        .sum()
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
