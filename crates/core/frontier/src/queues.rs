//! Steps of hosts that run ahead of their devices, taken apart and run again.

mod apart;
mod awaited;

use model::{DeviceWindow, Meeting, Side, StageId, median};

use self::apart::Apart;
use self::awaited::awaited;
use crate::replay::last_arrivals;

/// Share of the rows that must have the same boundaries to stand for all. Ours.
const SAME_ROWS_SHARE: f64 = 0.8;
/// A row is one of those that a fault strikes if its excess is the fault's usual one within this
/// ratio. Ours: larger and smaller ones belong to other faults.
const SIZE_RATIO: f64 = 2.5;
/// How far the steps as they are run again may be off those that were measured for their gains to be
/// believed. Ours.
const UNEXPLAINED_SHARE: f64 = 0.15;
/// Late ranks that are run again at most, and others. Ours: more do not change who waits for whom.
const MAX_RANKS: usize = 16;
/// Rows that are run again at least: queues fill and drain in fewer. Ours.
const MIN_ROWS_RUN: usize = 48;
/// Rows between read-backs that are tried at most. Ours.
const MAX_DISTANCE: u64 = 1000;

/// Work of some ranks beyond that of the others.
#[derive(Clone, Debug)]
pub struct Excess {
    /// Columns of the window, ascending.
    pub columns: Vec<usize>,
    /// Stages in which they do it.
    pub stages: Vec<StageId>,
    /// Whether their hosts or their devices do it; both may, if unknown.
    pub side: Option<Side>,
    /// Rows in which they do, as the window numbers them, ascending.
    pub rows: Vec<u64>,
    /// Whether their hosts read back where others do not, and are late for that.
    pub reads_back: bool,
}

impl Excess {
    fn is_of(&self, column: usize, stage: StageId, side: Side) -> bool {
        self.side.is_none_or(|known| known == side)
            && self.stages.contains(&stage)
            && self.is_rank(column)
    }

    fn is_rank(&self, column: usize) -> bool {
        self.columns.binary_search(&column).is_ok()
    }

    /// Whether a rank's host is late for what it reads back there.
    fn reads_back(&self, column: usize) -> bool {
        self.reads_back && self.is_rank(column)
    }

    /// Whether it is known to strike a row.
    fn strikes(&self, row: u64) -> bool {
        self.rows.binary_search(&row).is_ok()
    }
}

/// Sampled steps of a job taken apart into what each host and each device does by itself, so that
/// they can be run again, over and over, with some of it changed.
///
/// A rank has a host and a device with a queue between them. A host works, waits for its device where
/// it reads something back, and is never further ahead than it was seen to be. A device does what is
/// launched, in order, and waits for the last rank where it needs what a collective brings.
/// # Units
/// Seconds.
/// # Source
/// Ours: docs/math/device.md.
#[derive(Clone, Debug)]
pub struct QueueReplay {
    ranks: usize,
    rows: Vec<QueueRow>,
    /// The steps of the rows, ascending.
    steps: Vec<u64>,
    /// Every so many rows one reads back, where some do and others do not.
    reads_every: usize,
    /// Communicator of each rank at each boundary, as [`Block::groups`] has it.
    groups: Option<Vec<u32>>,
    /// For each boundary, those at which collectives are issued that devices wait for right behind
    /// the boundary before it.
    awaited: Vec<Vec<usize>>,
    /// For each boundary, how many boundaries a host there was seen to be ahead of its device at most.
    ahead: Vec<usize>,
    as_is_s: f64,
}

/// One step.
#[derive(Clone, Debug)]
struct QueueRow {
    pieces: Vec<Piece>,
    /// `[piece][rank]`.
    cells: Vec<PieceCell>,
    /// By fault: what cells would be without it.
    fixed: Vec<Vec<(usize, PieceCell)>>,
}

/// A segment, or a part of one: up to where something is read back, or from there on.
#[derive(Clone, Copy, Debug)]
struct Piece {
    boundary: usize,
    begins: bool,
    ends: bool,
}

/// What a rank does in a piece.
#[derive(Clone, Copy, Debug, Default)]
struct PieceCell {
    host_s: f64,
    device_s: f64,
    /// What the device has left to do at least when the host has launched all of it.
    left_s: f64,
    /// Whether the host then waits until the device has done it.
    reads: bool,
}

impl PieceCell {
    fn work_s(&self) -> f64 {
        self.host_s + self.device_s
    }

    fn without(&mut self, fixed: &Self) {
        // Two faults may share a cell: without both, the smaller is left.
        self.host_s = self.host_s.min(fixed.host_s);
        self.device_s = self.device_s.min(fixed.device_s);
        self.reads &= fixed.reads;
    }
}

impl QueueRow {
    fn reads(&self) -> bool {
        self.cells.iter().any(|cell| cell.reads)
    }

    /// What a fault adds to it.
    fn excess_s(&self, fault: usize) -> f64 {
        self.fixed[fault]
            .iter()
            .map(|(at, without)| self.cells[*at].work_s() - without.work_s())
            .sum()
    }
}

impl QueueReplay {
    /// Takes the sampled steps of a window apart. `None` if they do not show where ranks meet, or if
    /// run again as they are they take another time than they did.
    pub fn of_window(sampled: &DeviceWindow, faults: &[Excess]) -> Option<Self> {
        let window = &sampled.window;
        let at = (0..window.blocks.len()).max_by_key(|at| window.blocks[*at].steps.len())?;
        let block = &window.blocks[at];
        let is_most = block.steps.len() as f64 >= SAME_ROWS_SHARE * window.rows() as f64;
        if window.meeting == Meeting::Unseen || block.ranks < 2 || !is_most {
            return None;
        }
        let columns = columns(block.ranks, faults);
        let groups = block.groups.as_ref().map(|groups| {
            groups
                .chunks_exact(block.ranks)
                .flat_map(|row| columns.iter().map(|column| row[*column]))
                .collect()
        });
        let awaited = awaited(block);
        let apart = Apart::of_block(sampled, at, &columns, &awaited);
        let mut replay = Self {
            ranks: columns.len(),
            rows: apart.rows(block, &columns, faults),
            steps: block.steps.clone(),
            reads_every: 1,
            groups,
            ahead: apart.ahead(),
            awaited,
            as_is_s: 0.0,
        };
        // Before anything is run: gains are those of the rows that a fault really strikes.
        replay.keep_struck(faults);
        replay.reads_every = reads_every(&replay.steps, &replay.rows);
        replay.as_is_s = replay.run(&[]);
        let measured_s = apart.mean_row_s();
        let off_s = (replay.as_is_s - measured_s).abs();
        (off_s <= UNEXPLAINED_SHARE * measured_s).then_some(replay)
    }

    /// The same of the steps from one on, where faults go on: run over and over together with those
    /// before, queues would absorb their first strike again and again. `None` if too few read back, or
    /// too many, to stand for the job.
    #[must_use]
    pub fn since(&self, step: u64) -> Option<Self> {
        let skipped = self.steps.partition_point(|known| *known < step);
        let rows = self.rows[skipped..].to_vec();
        let kinds = |rows: &[QueueRow]| {
            let reading = rows.iter().filter(|row| row.reads()).count();
            [reading > 0, reading < rows.len()]
        };
        if kinds(&rows) != kinds(&self.rows) {
            return None;
        }
        let mut replay = Self {
            rows,
            steps: self.steps[skipped..].to_vec(),
            ..self.clone()
        };
        replay.as_is_s = replay.run(&[]);
        Some(replay)
    }

    /// Whether it has most of some steps.
    pub fn has_most(&self, steps: &[u64]) -> bool {
        let known = |step: &&u64| self.steps.binary_search(step).is_ok();
        2 * steps.iter().filter(known).count() >= steps.len()
    }

    /// What a step takes as it is, run again.
    pub fn step_s(&self) -> f64 {
        self.as_is_s
    }

    /// By how much a step would be shorter without some of the faults.
    pub fn gain_s(&self, fixed: &[usize]) -> f64 {
        (self.as_is_s - self.run(fixed)).max(0.0)
    }

    /// Leaves each fault the rows in which it is as large as in those that it is known to strike.
    fn keep_struck(&mut self, faults: &[Excess]) {
        // What is read back adds no work.
        let sized = faults.iter().enumerate().filter(|(_, it)| !it.reads_back);
        for (at, fault) in sized {
            let mut struck_s: Vec<f64> = self
                .rows
                .iter()
                .zip(&self.steps)
                .filter(|(_, step)| fault.strikes(**step))
                .map(|(row, _)| row.excess_s(at))
                .collect();
            let Some(usual_s) = median(&mut struck_s) else {
                continue;
            };
            let sizes_s = usual_s / SIZE_RATIO..=usual_s * SIZE_RATIO;
            for row in &mut self.rows {
                if !sizes_s.contains(&row.excess_s(at)) {
                    row.fixed[at].clear();
                }
            }
        }
    }

    /// Runs the rows over and over without some faults; returns what one takes in the long run.
    fn run(&self, fixed: &[usize]) -> f64 {
        let (reading, plain): (Vec<&QueueRow>, Vec<&QueueRow>) =
            self.rows.iter().partition(|row| row.reads());
        // Apart, so that a run reads back as often as the job and not as often as samples.
        let (mut reading, mut plain) = (reading.iter().cycle(), plain.iter().cycle());
        // Queues are empty at first: rows count once they are as full as they usually are.
        let warm = self.rows.len().max(MIN_ROWS_RUN / 2);
        let measured = (2 * self.rows.len()).max(MIN_ROWS_RUN);
        let mut state = Running::new(self.ranks);
        let mut warm_s = 0.0;
        for step in 0..warm + measured {
            if step == warm {
                warm_s = state.now_s();
            }
            let reads = step % self.reads_every == self.reads_every - 1;
            let row = if reads { reading.next() } else { plain.next() };
            // All rows read back, or none does.
            let row = row.or_else(|| reading.next()).or_else(|| plain.next());
            if let Some(row) = row {
                state.pass(self, row, fixed);
            }
        }
        (state.now_s() - warm_s) / measured as f64
    }
}

/// Where hosts and devices are while steps are run again.
#[derive(Debug)]
struct Running {
    /// By rank, in seconds.
    hosts: Vec<f64>,
    devices: Vec<f64>,
    /// For each boundary so far, when each device got there.
    passed: Vec<Vec<f64>>,
}

impl Running {
    fn new(ranks: usize) -> Self {
        Self {
            hosts: vec![0.0; ranks],
            devices: vec![0.0; ranks],
            passed: Vec::new(),
        }
    }

    fn now_s(&self) -> f64 {
        self.devices.iter().copied().fold(0.0, f64::max)
    }

    /// Goes through a row without some of its faults.
    fn pass(&mut self, replay: &QueueReplay, row: &QueueRow, fixed: &[usize]) {
        let mut cells = row.cells.clone();
        for (at, without) in fixed.iter().flat_map(|fault| &row.fixed[*fault]) {
            cells[*at].without(without);
        }
        let first = self.passed.len();
        for (piece, cells) in row.pieces.iter().zip(cells.chunks_exact(replay.ranks)) {
            let Piece {
                boundary,
                begins,
                ends,
            } = *piece;
            // Once a boundary: its second piece goes on where the first has waited.
            for issued in replay.awaited[boundary].iter().filter(|_| begins) {
                let at_s = &self.passed[first + issued];
                let last_s = last_arrivals(replay.groups.as_deref(), *issued, at_s);
                for (device_s, last_s) in self.devices.iter_mut().zip(last_s) {
                    *device_s = device_s.max(last_s);
                }
            }
            let ahead = replay.ahead[boundary];
            // A queue that is full: the host goes on once its device got to where it was so long
            // ago.
            let full = (first + boundary)
                .checked_sub(ahead)
                // A host that is never ahead has no queue to fill.
                .filter(|_| ends && ahead > 0);
            for (rank, cell) in cells.iter().enumerate() {
                let (host_s, device_s) = (&mut self.hosts[rank], &mut self.devices[rank]);
                let ready_s = device_s.max(*host_s);
                *host_s += cell.host_s;
                if let Some(full) = full {
                    *host_s = host_s.max(self.passed[full][rank]);
                }
                // Nor sooner than it can do what the host launched last.
                *device_s = (ready_s + cell.device_s).max(*host_s + cell.left_s);
                if cell.reads {
                    *host_s = host_s.max(*device_s);
                }
            }
            if ends {
                self.passed.push(self.devices.clone());
            }
        }
    }
}

/// The columns that are run again: all, or some late ones and some others.
fn columns(ranks: usize, faults: &[Excess]) -> Vec<usize> {
    if ranks <= 2 * MAX_RANKS {
        return (0..ranks).collect();
    }
    let mut columns: Vec<usize> = faults
        .iter()
        .flat_map(|fault| fault.columns.iter().copied())
        .take(MAX_RANKS)
        // From all over the job: neighbours share a host, and with it what holds them back.
        .chain((0..MAX_RANKS).map(|at| at * ranks / MAX_RANKS))
        .collect();
    columns.sort_unstable();
    columns.dedup();
    columns
}

/// Every how many rows one reads back, where some do and others do not: the shortest distance that
/// agrees with all of them, or else their share.
fn reads_every(steps: &[u64], rows: &[QueueRow]) -> usize {
    let both: Vec<(u64, bool)> = steps
        .iter()
        .copied()
        .zip(rows.iter().map(QueueRow::reads))
        .collect();
    let reading: Vec<u64> = both
        .iter()
        .filter(|(_, reads)| *reads)
        .map(|(step, _)| *step)
        .collect();
    let (Some(first), Some(last)) = (reading.first(), steps.last()) else {
        // Nobody reads back: the turn never comes.
        return usize::MAX;
    };
    // Steps are sampled: between two that read back there may be some that were not seen.
    (1..=(last - steps[0]).saturating_add(1).min(MAX_DISTANCE))
        .find(|every| {
            both.iter()
                .all(|(step, reads)| *reads == step.abs_diff(*first).is_multiple_of(*every))
        })
        .unwrap_or_else(|| (steps.len() as f64 / reading.len() as f64).round() as u64)
        .max(1) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use model::{
        Block, Boundary, CollectiveOp, Ending, HostTimes, MarkKind, ReadBacks, Sync, Window,
    };

    use super::*;

    /// Forward, backward until its gradients are reduced, and until that is done. Milliseconds of each
    /// rank in each of these on the device, waits included, and on the host, which is 100 ms ahead.
    fn sampled(device_ms: &[[f64; 3]], host_ms: &[[f64; 3]]) -> DeviceWindow {
        const ROWS: usize = 10;
        let boundary = |stage, ending| Boundary {
            stage,
            after: MarkKind::DataEnd,
            ending,
            sync: Sync::None,
        };
        let reduces = Ending::Issue {
            op: CollectiveOp::ALLREDUCE,
            group: 0,
        };
        let ranks = device_ms.len();
        let rows_s = |ranks_ms: &[[f64; 3]]| -> Vec<f64> {
            let cells = (0..3).flat_map(|at| ranks_ms.iter().map(move |rank| rank[at] * 1e-3));
            cells.collect::<Vec<f64>>().repeat(ROWS)
        };
        let block = Block {
            boundaries: [
                boundary(StageId::FORWARD, Ending::Mark(MarkKind::BackwardBegin)),
                boundary(StageId::BACKWARD, reduces),
                boundary(StageId::BACKWARD, Ending::Mark(MarkKind::BackwardEnd)),
            ]
            .into(),
            groups: None,
            steps: (0..ROWS as u64).collect(),
            durations_s: rows_s(device_ms),
            ranks,
            carried: 0,
        };
        let none = vec![vec![0.0; block.durations_s.len()]];
        DeviceWindow {
            window: Window {
                meeting: Meeting::Seen,
                ..block.into()
            },
            host_bound_least_s: none.clone(),
            host_bound_most_s: none.clone(),
            run_ahead_s: 0.1,
            run_ahead_most_s: 0.1,
            read_backs: ReadBacks {
                lines: BTreeMap::new(),
                ..ReadBacks::default()
            },
            host: HostTimes {
                took_s: vec![rows_s(host_ms)],
                read_s: none.clone(),
                after_read_s: none.clone(),
                device_before_read_s: none,
                ahead_s: vec![vec![[0.1; 2]; ROWS * ranks]],
            },
            points_in: BTreeSet::new(),
        }
    }

    fn gain_ms(sampled: &DeviceWindow, side: Side) -> f64 {
        let fault = Excess {
            columns: vec![1],
            stages: vec![StageId::FORWARD],
            side: Some(side),
            rows: (0..10).collect(),
            reads_back: false,
        };
        let replay = QueueReplay::of_window(sampled, &[fault]).expect("explained");
        assert!(
            (replay.step_s() - 0.040).abs() < 1e-9,
            "{}",
            replay.step_s()
        );
        replay.gain_s(&[0]) * 1e3
    }

    const BLOCKED_MS: [f64; 3] = [2.0, 2.0, 36.0];

    #[test]
    fn others_wait_no_longer_for_a_device_that_is_as_fast() {
        let devices_ms = [[10.0, 10.0, 20.0], [30.0, 10.0, 0.0], [10.0, 10.0, 20.0]];
        let gain_ms = gain_ms(&sampled(&devices_ms, &[BLOCKED_MS; 3]), Side::Device);
        assert!((gain_ms - 20.0).abs() < 1e-6, "{gain_ms}");
    }

    #[test]
    fn one_that_reads_back_alone_does_not_drain_the_queues_of_others() {
        let devices_ms = [[10.0, 10.0, 20.0], [30.0, 10.0, 0.0], [10.0, 10.0, 20.0]];
        let mut sampled = sampled(&devices_ms, &[BLOCKED_MS; 3]);
        let host = &mut sampled.host;
        // The first rank reads back behind the last collective, up to the end of the step.
        for cell in (2 * 3..host.read_s[0].len()).step_by(3 * 3) {
            host.read_s[0][cell] = 0.036;
            host.device_before_read_s[0][cell] = 0.020;
        }
        for ahead_s in host.ahead_s[0].iter_mut().step_by(3) {
            *ahead_s = [0.0; 2];
        }
        let gain_ms = gain_ms(&sampled, Side::Device);
        assert!((gain_ms - 20.0).abs() < 1e-6, "{gain_ms}");
    }

    /// Devices that wait for each other behind the forward pass of one that is late, before any of
    /// them is at the collective of the backward pass.
    fn joined_in_backward() -> DeviceWindow {
        let mut sampled = sampled(
            &[[10.0, 30.0, 0.0], [30.0, 10.0, 0.0], [10.0, 30.0, 0.0]],
            &[BLOCKED_MS; 3],
        );
        let block = &mut sampled.window.blocks[0];
        let mut boundaries = block.boundaries.to_vec();
        boundaries[0].sync = Sync::Assumed;
        block.boundaries = boundaries.into();
        sampled
    }

    #[test]
    fn where_no_issues_are_recorded_others_wait_where_ranks_are_joined() {
        let mut sampled = joined_in_backward();
        let block = &mut sampled.window.blocks[0];
        let mut boundaries = block.boundaries.to_vec();
        boundaries[1].ending = Ending::Mark(MarkKind::BackwardEnd);
        boundaries[2].ending = Ending::Mark(MarkKind::OptimizerEnd);
        block.boundaries = boundaries.into();
        let gain_ms = gain_ms(&sampled, Side::Device);
        assert!((gain_ms - 20.0).abs() < 1e-6, "{gain_ms}");
    }

    #[test]
    fn others_wait_for_a_collective_that_is_not_recorded_before_one_that_is() {
        let gain_ms = gain_ms(&joined_in_backward(), Side::Device);
        assert!((gain_ms - 20.0).abs() < 1e-6, "{gain_ms}");
    }

    #[test]
    fn what_the_queue_hides_gains_nothing() {
        let hosts_ms = [BLOCKED_MS, [30.0, 2.0, 8.0], BLOCKED_MS];
        let gain_ms = gain_ms(&sampled(&[[30.0, 10.0, 0.0]; 3], &hosts_ms), Side::Host);
        assert!(gain_ms < 1e-6, "{gain_ms}");
    }

    /// Of two ranks the host of one is late in each step, and that of the other in one of ten.
    #[test]
    fn who_is_late_once_is_on_time_in_the_other_steps() {
        let hosts_ms = [[2.0, 2.0, 8.0], [30.0, 2.0, 8.0]];
        let mut sampled = sampled(&[[2.0, 2.0, 36.0], [30.0, 2.0, 8.0]], &hosts_ms);
        sampled.host.ahead_s = vec![vec![[0.0; 2]; 2 * 10]];
        let block = &mut sampled.window.blocks[0];
        let mut boundaries = block.boundaries.to_vec();
        boundaries[0].stage = StageId::DATA;
        block.boundaries = boundaries.into();
        let late = |rank, rows| Excess {
            columns: vec![rank],
            stages: vec![StageId::DATA],
            side: Some(Side::Host),
            rows,
            reads_back: false,
        };
        let faults = [late(0, vec![3]), late(1, (0..10).collect())];
        let replay = QueueReplay::of_window(&sampled, &faults).expect("explained");
        // In that one step nobody shows what the host takes else.
        let gain_ms = replay.gain_s(&[1]) * 1e3;
        assert!((gain_ms - 28.0 * 0.9).abs() < 0.5, "{gain_ms}");
    }

    #[test]
    fn a_few_of_many_ranks_are_run_again_and_all_late_ones_of_few() {
        let late = |columns: &[usize]| Excess {
            columns: columns.to_vec(),
            stages: Vec::new(),
            side: None,
            rows: Vec::new(),
            reads_back: false,
        };
        assert_eq!(columns(4, &[late(&[3])]), [0, 1, 2, 3]);
        let some = columns(10_000, &[late(&[4321]), late(&[9999])]);
        assert!(some.len() <= 2 * MAX_RANKS && some.contains(&4321) && some.contains(&9999));
    }

    #[test]
    fn steps_that_read_back_are_found_however_few_are_sampled() {
        let row = |reads| QueueRow {
            pieces: Vec::new(),
            cells: vec![PieceCell {
                reads,
                ..PieceCell::default()
            }],
            fixed: Vec::new(),
        };
        let every = |steps: &[u64], reads: fn(u64) -> bool| {
            let rows: Vec<QueueRow> = steps.iter().map(|step| row(reads(*step))).collect();
            reads_every(steps, &rows)
        };
        let steps = [4, 5, 6, 7, 17, 18, 19, 29, 30, 31];
        assert_eq!(every(&steps, |step| step % 10 == 9), 10);
        assert_eq!(every(&steps, |_| true), 1);
        assert_eq!(every(&steps, |_| false), usize::MAX);
    }
}
