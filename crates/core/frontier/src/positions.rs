//! When ranks get to the boundaries of rows that follow one another.

use model::{Block, StageId, median};

use crate::replay::{prefixes, spread};

/// From this mean on a segment takes time, in seconds: less lies between two marks of which one is made
/// right behind the other.
const ANY_TIME_S: f64 = 1e-4;

/// Rows that follow one another by which it is known when ranks usually begin. Ours: of two, neither is
/// usual.
const MIN_ROWS: usize = 3;

/// Running sums of each row, `[row][boundary][rank]`, from when each rank began it.
pub(crate) fn positions(block: &Block) -> Vec<Vec<f64>> {
    let ranks = block.ranks;
    let mut rows: Vec<Vec<f64>> = block.rows().map(|(_, row)| prefixes(row, ranks)).collect();
    let is_next = |step: &u64, next: &u64| step.checked_add(1) == Some(*next);
    let mut left = &mut rows[..];
    for run in block.steps.chunk_by(is_next) {
        let (of_run, others) = left.split_at_mut(run.len());
        begin(of_run, ranks);
        left = others;
    }
    rows
}

/// Moves each rank in rows that follow one another to when it began them: rows of ranks that meet do
/// not begin at quite the same instant, and what the rows before took says by how much. Nothing is
/// moved if ranks then leave the rows further apart.
fn begin(rows: &mut [Vec<f64>], ranks: usize) {
    if rows.len() < MIN_ROWS {
        return;
    }
    // `[row][rank]`, and in the end where the last row is left.
    let mut begins = vec![vec![0.0; ranks]];
    for sums in rows.iter() {
        let before = &begins[begins.len() - 1];
        let after = before.iter().zip(ends(sums, ranks));
        begins.push(after.map(|(begin_s, took_s)| begin_s + took_s).collect());
    }
    for row in &mut begins {
        let usual_s = median(&mut row.clone()).unwrap_or(0.0);
        for begin_s in row {
            *begin_s -= usual_s;
        }
    }
    // Usually ranks begin together.
    for rank in 0..ranks {
        let of_rank = begins.iter().take(rows.len()).map(|row| row[rank]);
        let usual_s = median(&mut of_rank.collect::<Vec<_>>()).unwrap_or(0.0);
        for row in &mut begins {
            row[rank] -= usual_s;
        }
    }
    let apart_s: f64 = rows.iter().map(|sums| spread(ends(sums, ranks))).sum();
    let begun_apart_s: f64 = begins[1..].iter().map(|row| spread(row)).sum();
    if begun_apart_s >= apart_s {
        return;
    }
    for (sums, begins) in rows.iter_mut().zip(&begins) {
        for (sum, begin_s) in sums.iter_mut().zip(begins.iter().cycle()) {
            *sum += begin_s;
        }
    }
}

fn ends(sums: &[f64], ranks: usize) -> &[f64] {
    &sums[sums.len().saturating_sub(ranks)..]
}

/// The segment in which ranks would wait right behind a boundary: the next that takes any time.
/// Collectives may be issued one right behind the other.
pub(crate) fn wait_segment(block: &Block, at: usize) -> Option<usize> {
    let cells = (block.steps.len() * block.ranks) as f64;
    (at + 1..block.boundaries.len())
        .take_while(|to| block.boundaries[*to].stage != StageId::DATA)
        .find(|to| {
            let cells_s = block
                .rows()
                .flat_map(|(_, row)| &row[to * block.ranks..(to + 1) * block.ranks]);
            cells_s.sum::<f64>() >= ANY_TIME_S * cells
        })
}

#[cfg(test)]
mod tests {
    use model::{Boundary, Ending, MarkKind, Sync};

    use super::*;

    /// Milliseconds of two ranks in two segments.
    fn block(steps: Vec<u64>, rows_ms: impl Fn(u64) -> [f64; 4]) -> Block {
        let boundary = Boundary {
            stage: StageId::FORWARD,
            after: MarkKind::DataEnd,
            ending: Ending::Mark(MarkKind::BackwardBegin),
            sync: Sync::None,
        };
        let rows_ms = steps.iter().flat_map(|step| rows_ms(*step));
        Block {
            boundaries: vec![boundary; 2].into(),
            groups: None,
            durations_s: rows_ms.map(|ms| ms * 1e-3).collect(),
            steps,
            ranks: 2,
            carried: 0,
        }
    }

    /// By how many milliseconds the first rank gets to the first boundary before the other.
    fn early_ms(block: &Block) -> Vec<f64> {
        let rows = positions(block);
        rows.iter().map(|at| (at[1] - at[0]) * 1e3).collect()
    }

    /// The second rank begins every third step 4 ms late, and takes that much less to the end of it.
    fn begins_apart(step: u64) -> [f64; 4] {
        let late = |step: u64| if step.is_multiple_of(3) { 4.0 } else { 0.0 };
        [2.0, 10.0, 18.0, 10.0 - late(step) + late(step + 1)]
    }

    #[test]
    fn ranks_that_begin_rows_apart_are_where_the_rows_before_left_them() {
        let early = early_ms(&block((0..9).collect(), begins_apart));
        for (step, early) in early.iter().enumerate() {
            let late = if step % 3 == 0 { 4.0 } else { 0.0 };
            assert!((early - 8.0 - late).abs() < 1e-9, "{step}: {early}");
        }
    }

    #[test]
    fn of_rows_that_do_not_follow_one_another_nothing_is_known() {
        let early = early_ms(&block((0..9).map(|step| step * 2).collect(), begins_apart));
        assert!(
            early.iter().all(|early| (early - 8.0).abs() < 1e-9),
            "{early:?}"
        );
    }

    /// What a rank takes longer for good is not where it begins.
    #[test]
    fn ranks_whose_rows_never_meet_begin_together() {
        let drifts = |_| [2.0, 10.0, 18.0, 12.0];
        let early = early_ms(&block((0..9).collect(), drifts));
        assert!(
            early.iter().all(|early| (early - 8.0).abs() < 1e-9),
            "{early:?}"
        );
    }

    #[test]
    fn collectives_that_are_issued_at_once_are_waited_for_in_the_same_segment() {
        let mut waits = block(vec![0, 1], |_| [2.0, 10.0, 18.0, 10.0]);
        assert_eq!(wait_segment(&waits, 0), Some(1));
        assert_eq!(wait_segment(&waits, 1), None);
        waits = block(vec![0, 1], |_| [2.0, 10.0, 0.0, 0.02]);
        assert_eq!(wait_segment(&waits, 0), None);
    }
}
