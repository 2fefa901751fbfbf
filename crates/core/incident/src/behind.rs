//! Whether ranks that take longer now and then work or wait.

use model::{Block, StageId, Window, median};

use crate::Fault;

/// Share of their lateness by which late ranks must leave their stage later than the others do. Ours.
const BEHIND_SHARE: f64 = 0.5;

/// Whether the ranks of a fault leave its stage later than the others in the steps that it strikes,
/// by half of their lateness or more, beside what is usual. Ranks that wait there for their devices,
/// and so for others, were ahead of these before.
///
/// A step may have a stage in several places, with a wait for the late ranks between them: one will
/// do.
///
/// # Source
/// Ours: docs/math/device.md.
pub(crate) fn falls_behind(fault: &Fault, window: &Window) -> bool {
    let blocks = window.blocks.iter();
    let places = blocks.map(|block| places_of(block, fault.stage).count());
    (0..places.max().unwrap_or(0)).any(|place| falls_behind_at(fault, window, place))
}

/// The boundaries of a stage in a step, the last one first.
fn places_of(block: &Block, stage: StageId) -> impl Iterator<Item = usize> {
    let boundaries = block.boundaries.iter().enumerate().rev();
    boundaries
        .filter(move |(_, boundary)| boundary.stage == stage)
        .map(|(at, _)| at)
}

/// The same at one of the stage's places.
fn falls_behind_at(fault: &Fault, window: &Window, place: usize) -> bool {
    let columns = 0..window.ranks.len();
    let is_late = |column: &usize| fault.ranks.binary_search(&window.ranks[*column]).is_ok();
    let (late, others): (Vec<usize>, Vec<usize>) = columns.partition(is_late);
    let (mut behind_s, mut struck) = (0.0, 0.0);
    for block in &window.blocks {
        let Some(at) = places_of(block, fault.stage).nth(place) else {
            continue;
        };
        let rows: Vec<usize> = (0..block.steps.len()).collect();
        // How far ranks are apart is unknown where time does not run on from row to row.
        for stretch in rows.chunk_by(|row, next| block.steps[*row] + 1 == block.steps[*next]) {
            let left_s = left_s(block, stretch, at, [&late, &others]);
            let usual_s = median(&mut left_s.clone()).unwrap_or(0.0);
            for (row, left_s) in stretch.iter().zip(left_s) {
                if fault.strikes_in(block, *row, fault.stage) {
                    behind_s += left_s - usual_s;
                    struck += 1.0;
                }
            }
        }
    }
    struck > 0.0 && behind_s >= BEHIND_SHARE * fault.lateness_s * struck
}

/// For each row, how much later than the others the late ranks pass a boundary, in seconds, up to a
/// constant: each rank's clock begins with the first row.
fn left_s(block: &Block, rows: &[usize], at: usize, [late, others]: [&[usize]; 2]) -> Vec<f64> {
    let mut clocks_s = vec![0.0; block.ranks];
    let mut left_s = Vec::with_capacity(rows.len());
    for row in rows {
        for (boundary, cells_s) in block.row(*row).chunks(block.ranks).enumerate() {
            for (clock_s, took_s) in clocks_s.iter_mut().zip(cells_s) {
                *clock_s += took_s;
            }
            if boundary == at {
                let passed_s = |ranks: &[usize]| {
                    let mut all_s: Vec<f64> = ranks.iter().map(|rank| clocks_s[*rank]).collect();
                    median(&mut all_s).unwrap_or(0.0)
                };
                left_s.push(passed_s(late) - passed_s(others));
            }
        }
    }
    left_s
}

#[cfg(test)]
mod tests {
    use model::MarkKind;

    use super::*;
    use crate::testkit::{block, faults_of};

    /// Rank 1 of two pauses for 0.3 s in every twentieth step. Two steps later rank 0 finds its launch
    /// queue full, and waits for as long.
    #[test]
    fn who_pauses_falls_behind_and_who_waits_for_it_does_not() {
        let segments = [
            (StageId::FORWARD, MarkKind::BackwardBegin),
            (StageId::CALLBACKS, MarkKind::DataBegin),
        ];
        let mut durations_s = Vec::new();
        for step in 0..60 {
            let took_s = |strikes: bool| if strikes { 0.301 } else { 0.001 };
            durations_s.extend([took_s(step % 20 == 13), 0.001]);
            durations_s.extend([0.001, took_s(step % 20 == 11)]);
        }
        let window = Window::from(block(&segments, 2, 60, durations_s));
        let mut faults = faults_of(&window, |_, _, _| {});
        faults.sort_by_key(|fault| fault.ranks.clone());
        let falls: Vec<_> = faults
            .iter()
            .map(|fault| (&fault.ranks[..], falls_behind(fault, &window)))
            .collect();
        assert_eq!(falls, [(&[0][..], false), (&[1][..], true)], "{faults:#?}");
    }

    /// The same where rank 0 waits at a read-back of the next step, before callbacks that come after
    /// the backward pass, too.
    #[test]
    fn who_pauses_in_the_first_of_two_places_falls_behind_there() {
        let segments = [
            (StageId::CALLBACKS, MarkKind::DataBegin),
            (StageId::FORWARD, MarkKind::BackwardEnd),
            (StageId::CALLBACKS, MarkKind::OptimizerBegin),
        ];
        let mut durations_s = Vec::new();
        for step in 0..60 {
            let took_s = if step % 20 == 11 { 0.301 } else { 0.001 };
            durations_s.extend([0.001, took_s, took_s, 0.001, 0.001, 0.001]);
        }
        let window = Window::from(block(&segments, 2, 60, durations_s));
        let faults = faults_of(&window, |_, _, _| {});
        let pauses = faults.iter().find(|fault| fault.ranks == [1]);
        assert!(
            pauses.is_some_and(|fault| falls_behind(fault, &window)),
            "{faults:#?}"
        );
    }
}
