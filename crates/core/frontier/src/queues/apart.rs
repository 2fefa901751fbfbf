//! What hosts and devices do by themselves in the steps of a block.

use model::{Block, DeviceWindow, Side, StageId, StepRow, lower_median, median};

use super::{Excess, Piece, PieceCell, QueueRow};
use crate::replay::{last_arrivals, prefixes};

/// Shares of what a host is ever ahead at a place from which its queue may be full: of one that is
/// on time, and of one that is late, which seldom fills it. Ours.
const FULL_SHARES: [f64; 2] = [0.5, 0.8];
/// Share of what a host seems to work while its queue is full that is taken for work. Ours: its
/// device is what holds it up, and it does not hold its device up with half of it.
const FULL_WORK_SHARE: f64 = 0.5;
/// Share of what a host takes for which its device may wait for other ranks if it shows what the host
/// takes by itself, and rows that must show it. Ours.
const FREE_SHARE: f64 = 0.1;
const MIN_FREE_ROWS: usize = 3;
/// Seconds by which what is worked out may be off what was measured, by rounding.
const ROUNDING_S: f64 = 1e-9;

/// The rows of a block, taken apart.
#[derive(Debug)]
pub(super) struct Apart {
    ranks: usize,
    rows: Vec<TakenRow>,
    /// For each boundary, how many boundaries a host there is ahead of its device at most.
    ahead: Vec<usize>,
    /// By rank: whether its queue may fill. Of one that reads back in each row, it is drained before.
    may_fill: Vec<bool>,
    /// `[boundary][rank]`: what a host usually takes while its device waits for nobody, in seconds.
    free_s: Vec<f64>,
}

/// What is known of one row.
#[derive(Debug)]
struct TakenRow {
    row_s: f64,
    pieces: Vec<Piece>,
    /// `[piece][rank]`.
    known: Vec<RankPiece>,
}

/// What is known of a rank in a piece, in seconds since its device began the row.
#[derive(Clone, Copy, Debug, Default)]
struct RankPiece {
    /// What the host took, without what it read back for.
    host_s: f64,
    host_end_s: f64,
    device_end_s: f64,
    /// From when on the device could do it, as far as it and other ranks are concerned.
    ready_s: f64,
    reads: bool,
    /// How long the device waited for other ranks while the host took that, and how many boundaries
    /// it was behind at the end.
    waited_s: f64,
    behind: usize,
}

impl RankPiece {
    /// What the device took at most.
    fn device_most_s(&self) -> f64 {
        self.device_end_s - self.ready_s
    }

    /// What it took at least: it had all of it once the host was done.
    fn device_least_s(&self) -> f64 {
        (self.device_end_s - self.ready_s.max(self.host_end_s)).max(0.0)
    }

    /// Whether the device may have waited for its host.
    fn may_starve(&self) -> bool {
        self.host_end_s > self.ready_s
    }
}

/// A rank's device in one row. Rows before are taken to be as this one.
#[derive(Debug, Default)]
struct Passage {
    takes_s: f64,
    /// When it gets to each boundary, in seconds.
    ends: Vec<f64>,
    /// From when to when it waits for other ranks, and how long it did before, in seconds.
    waits: Vec<[f64; 3]>,
}

impl Passage {
    fn wait(&mut self, from_s: f64, to_s: f64) {
        let before_s = self
            .waits
            .last()
            .map_or(0.0, |[from_s, to_s, before_s]| before_s + to_s - from_s);
        self.waits.push([from_s, to_s, before_s]);
    }

    /// A time as so many rows and a time in this one.
    fn place(&self, at_s: f64) -> (f64, f64) {
        // Rounds down for times before the row, too: a host may have launched it rows ago.
        let rows = (at_s / self.takes_s.max(ROUNDING_S)).floor();
        (rows, at_s - rows * self.takes_s)
    }

    /// How long it has waited until then.
    fn waited_s(&self, at_s: f64) -> f64 {
        let (rows, at_s) = self.place(at_s);
        rows * self.waited_in_row_s(f64::INFINITY) + self.waited_in_row_s(at_s)
    }

    /// The same of this row only.
    fn waited_in_row_s(&self, at_s: f64) -> f64 {
        let begun = self.waits.partition_point(|[from_s, ..]| *from_s < at_s);
        let last = begun.checked_sub(1).map(|last| self.waits[last]);
        last.map_or(0.0, |[from_s, to_s, before_s]| {
            before_s + at_s.min(to_s) - from_s
        })
    }

    /// How many boundaries it is behind a host that gets to one then.
    fn behind(&self, boundary: usize, at_s: f64) -> usize {
        let (rows, at_s) = self.place(at_s);
        let passed = self
            .ends
            .partition_point(|end_s| *end_s <= at_s + ROUNDING_S);
        let passed = rows * self.ends.len() as f64 + passed as f64;
        (boundary as f64 + 1.0 - passed).max(0.0) as usize
    }
}

impl Apart {
    /// `columns` are the ranks that count; `awaited` says where devices wait for which collectives.
    pub(super) fn of_block(
        sampled: &DeviceWindow,
        block: usize,
        columns: &[usize],
        awaited: &[Vec<usize>],
    ) -> Self {
        let rows: Vec<TakenRow> = (0..sampled.window.blocks[block].steps.len())
            .map(|row| Times::of_row(sampled, block, StepRow(row)).take(columns, awaited))
            .collect();
        let ranks = columns.len();
        let mut ahead = vec![0; awaited.len()];
        for TakenRow { pieces, known, .. } in &rows {
            for (piece, known) in pieces.iter().zip(known.chunks_exact(ranks)) {
                // Only the last piece of a boundary says how far a host is ahead behind it.
                let most = known.iter().map(|it| it.behind).filter(|_| piece.ends);
                ahead[piece.boundary] = most.fold(ahead[piece.boundary], usize::max);
            }
        }
        let free_s = free_s(&rows, awaited.len(), ranks);
        let drains = |row: &TakenRow, rank: usize| {
            let mut own = row.known.iter().skip(rank).step_by(ranks);
            own.any(|it| it.reads)
        };
        let may_fill = (0..ranks)
            .map(|rank| !rows.iter().all(|row| drains(row, rank)))
            .collect();
        Self {
            ranks,
            rows,
            ahead,
            may_fill,
            free_s,
        }
    }

    pub(super) fn ahead(&self) -> Vec<usize> {
        self.ahead.clone()
    }

    /// What a row took, in seconds.
    pub(super) fn mean_row_s(&self) -> f64 {
        self.rows.iter().map(|row| row.row_s).sum::<f64>() / self.rows.len() as f64
    }

    /// The rows, and what they would be without each of the faults.
    pub(super) fn rows(
        &self,
        block: &Block,
        columns: &[usize],
        faults: &[Excess],
    ) -> Vec<QueueRow> {
        let mut rows = Vec::with_capacity(self.rows.len());
        for (taken, step) in self.rows.iter().zip(&block.steps) {
            let mut row = QueueRow {
                pieces: taken.pieces.clone(),
                cells: Vec::new(),
                fixed: vec![Vec::new(); faults.len()],
            };
            // A host that holds its device up in this row has no full queue, wherever it is late.
            let holds_up = |column: &usize| {
                let mut its = faults.iter().filter(|it| it.strikes(*step));
                its.any(|it| it.side == Some(Side::Host) && it.is_rank(*column))
            };
            let holds_up: Vec<bool> = columns.iter().map(holds_up).collect();
            for (piece, known) in taken
                .pieces
                .iter()
                .zip(taken.known.chunks_exact(self.ranks))
            {
                let boundary = piece.boundary;
                let stage = block.boundaries[boundary].stage;
                let late_on = |side: Side, in_row: bool| -> Vec<bool> {
                    let counts = |it: &Excess| !in_row || it.strikes(*step);
                    let is_late = |column: &usize| {
                        faults
                            .iter()
                            .any(|it| counts(it) && it.is_of(*column, stage, side))
                    };
                    columns.iter().map(is_late).collect()
                };
                let late = [Side::Host, Side::Device].map(|side| {
                    // Where each rank is late at times, those show what is usual that are not in this row.
                    let late = Some(late_on(side, false)).filter(|late| late.contains(&false));
                    late.unwrap_or_else(|| late_on(side, true))
                });
                let of_stage = OfStage {
                    known,
                    late,
                    slow: late_on(Side::Device, true),
                    holds_up: &holds_up,
                    is_loader: stage == StageId::DATA,
                };
                let (cells, levels) = self.cells(&of_stage, boundary);
                for (rank, cell) in cells.into_iter().enumerate() {
                    for (fault, fixed) in faults.iter().zip(&mut row.fixed) {
                        let mut without = cell;
                        if fault.is_of(columns[rank], stage, Side::Host) {
                            without.host_s = cell.host_s.min(levels[0]);
                        }
                        if fault.is_of(columns[rank], stage, Side::Device) {
                            without.device_s = cell.device_s.min(levels[1]);
                        }
                        if fault.reads_back(columns[rank]) {
                            let mut all = known.iter().zip(columns);
                            without.reads &=
                                all.any(|(it, column)| it.reads && !fault.reads_back(*column));
                        }
                        if without.work_s() < cell.work_s() || without.reads != cell.reads {
                            fixed.push((row.cells.len(), without));
                        }
                    }
                    row.cells.push(cell);
                }
            }
            rows.push(row);
        }
        rows
    }

    /// What ranks do in a piece, and what the hosts and the devices do of those that are on time.
    fn cells(&self, here: &OfStage<'_>, boundary: usize) -> (Vec<PieceCell>, [f64; 2]) {
        let OfStage {
            known,
            late: [host_late, device_late],
            slow,
            holds_up,
            is_loader,
        } = here;
        let most = self.ahead[boundary] as f64;
        // A host whose queue is full waits as long as its device does, and for an unknown part of
        // what it seems to work. Nothing is launched while data is loaded.
        let is_full: Vec<bool> = (0..known.len())
            .map(|rank| {
                let share = FULL_SHARES[usize::from(host_late[rank])];
                let may_be = self.may_fill[rank] && !holds_up[rank] && !is_loader;
                may_be && known[rank].behind as f64 >= share * most
            })
            .collect();
        let hosts_s: Vec<f64> = (0..known.len())
            .map(|rank| {
                let RankPiece {
                    host_s, waited_s, ..
                } = known[rank];
                if is_full[rank] {
                    return FULL_WORK_SHARE * (host_s - waited_s).max(0.0);
                }
                // A host that takes longer than otherwise while its device waits is held up by it.
                let free_s = self.free_s[boundary * known.len() + rank];
                if host_late[rank] || *is_loader {
                    host_s
                } else {
                    host_s.min((host_s - waited_s).max(free_s))
                }
            })
            .collect();
        // What hosts take is at most this: a host that waits for its queue seems to work.
        let mut punctual_s: Vec<f64> = hosts_s
            .iter()
            .zip(host_late)
            .filter(|(_, is_late)| !**is_late)
            .map(|(host_s, _)| *host_s)
            .collect();
        let host_level_s = lower_median(&mut punctual_s).unwrap_or(f64::INFINITY);
        let mut busy_s: Vec<f64> = known
            .iter()
            .zip(device_late)
            .filter(|(it, is_late)| !**is_late && !it.may_starve())
            .map(|(it, _)| it.device_most_s())
            .collect();
        let device_level_s = median(&mut busy_s).unwrap_or_else(|| {
            // A device that may have waited for its host takes no longer than that.
            known
                .iter()
                .map(RankPiece::device_most_s)
                .fold(f64::INFINITY, f64::min)
        });
        let mut cells = Vec::with_capacity(known.len());
        for (rank, it) in known.iter().enumerate() {
            let most_s = it.device_most_s();
            let device_s = if it.may_starve() && !slow[rank] {
                device_level_s.min(most_s).max(it.device_least_s())
            } else {
                most_s
            };
            let starves = it.ready_s + device_s < it.device_end_s - ROUNDING_S;
            let left_s = if starves {
                (it.device_end_s - it.host_end_s).max(0.0)
            } else {
                0.0
            };
            // Only of hosts that are on time: beyond that a late one works.
            let is_held = is_full[rank] && !host_late[rank];
            let most_s = if is_held { host_level_s } else { f64::INFINITY };
            cells.push(PieceCell {
                host_s: hosts_s[rank].min(most_s),
                device_s,
                left_s,
                reads: it.reads,
            });
        }
        (cells, [host_level_s, device_level_s])
    }
}

/// What hosts usually take while their devices wait for nobody, `[boundary][rank]`, in seconds; infinite
/// where too few rows show it.
fn free_s(rows: &[TakenRow], boundaries: usize, ranks: usize) -> Vec<f64> {
    let mut taken_s = vec![Vec::new(); boundaries * ranks];
    for TakenRow { pieces, known, .. } in rows {
        for (piece, known) in pieces.iter().zip(known.chunks_exact(ranks)) {
            // What is read back splits a segment in two.
            let is_whole = piece.begins && piece.ends;
            for (rank, it) in known.iter().enumerate().filter(|_| is_whole) {
                if it.waited_s <= FREE_SHARE * it.host_s {
                    taken_s[piece.boundary * ranks + rank].push(it.host_s);
                }
            }
        }
    }
    let usual_s = |mut taken_s: Vec<f64>| {
        let enough = taken_s.len() >= MIN_FREE_ROWS;
        median(&mut taken_s).filter(|_| enough)
    };
    let taken_s = taken_s.into_iter();
    taken_s
        .map(|taken_s| usual_s(taken_s).unwrap_or(f64::INFINITY))
        .collect()
}

/// Ranks in a piece, which of them have a host or a device that is late in its stage, whose device is slow
/// there in this row, and whose host is late anywhere in it.
#[derive(Debug)]
struct OfStage<'row> {
    known: &'row [RankPiece],
    late: [Vec<bool>; 2],
    slow: Vec<bool>,
    holds_up: &'row [bool],
    is_loader: bool,
}

/// The times of one row, `[boundary][rank]`, in seconds.
#[derive(Debug)]
struct Times<'window> {
    block: &'window Block,
    /// When devices get to boundaries.
    device_s: Vec<f64>,
    host_s: &'window [f64],
    read_s: &'window [f64],
    after_read_s: &'window [f64],
    before_read_s: &'window [f64],
    /// By rank.
    ahead_s: &'window [[f64; 2]],
}

impl<'window> Times<'window> {
    fn of_row(sampled: &'window DeviceWindow, at: usize, row: StepRow) -> Self {
        let StepRow(row) = row;
        let block = &sampled.window.blocks[at];
        let size = block.boundaries.len() * block.ranks;
        let host = &sampled.host;
        let [host_s, read_s, after_read_s, before_read_s] = [
            &host.took_s,
            &host.read_s,
            &host.after_read_s,
            &host.device_before_read_s,
        ]
        .map(|plane| &plane[at][row * size..(row + 1) * size]);
        Self {
            block,
            device_s: prefixes(block.row(row), block.ranks),
            host_s,
            read_s,
            after_read_s,
            before_read_s,
            ahead_s: &host.ahead_s[at][row * block.ranks..(row + 1) * block.ranks],
        }
    }

    fn take(&self, columns: &[usize], awaited: &[Vec<usize>]) -> TakenRow {
        let all = self.block.ranks;
        let boundaries = self.block.boundaries.len();
        let ends_s = &self.device_s[(boundaries - 1) * all..];
        let row_s = ends_s.iter().copied().fold(0.0, f64::max);
        let mut pieces = Vec::new();
        for (boundary, read_s) in self.read_s.chunks_exact(all).enumerate() {
            let reads = read_s.iter().any(|read_s| *read_s > 0.0);
            pieces.push(Piece {
                boundary,
                begins: true,
                ends: !reads,
            });
            if reads {
                pieces.push(Piece {
                    boundary,
                    begins: false,
                    ends: true,
                });
            }
        }
        let groups = self.block.groups.as_deref();
        let last_s: Vec<Vec<f64>> = self
            .device_s
            .chunks_exact(all)
            .enumerate()
            .map(|(boundary, at_s)| last_arrivals(groups, boundary, at_s))
            .collect();
        let mut known = vec![RankPiece::default(); pieces.len() * columns.len()];
        for (rank, column) in columns.iter().enumerate() {
            let of_rank = self.take_rank(*column, row_s, &pieces, |boundary| {
                awaited[boundary]
                    .iter()
                    .map(|issued| last_s[*issued][*column])
                    .fold(f64::NEG_INFINITY, f64::max)
            });
            let places = known[rank..].iter_mut().step_by(columns.len());
            places
                .zip(of_rank)
                .for_each(|(place, known)| *place = known);
        }
        TakenRow {
            row_s,
            pieces,
            known,
        }
    }

    /// `meets_s` is when the last rank is where a device waits for it behind the boundary before.
    fn take_rank(
        &self,
        column: usize,
        row_s: f64,
        pieces: &[Piece],
        meets_s: impl Fn(usize) -> f64,
    ) -> Vec<RankPiece> {
        let [least_s, most_s] = self.ahead_s[column];
        // Times count from where the device begins the row; the host began it that much earlier.
        let (mut host_s, mut device_s) = (-least_s, 0.0f64);
        let mut passage = Passage {
            takes_s: row_s,
            ends: self.device_s[column..]
                .iter()
                .step_by(self.block.ranks)
                .copied()
                .collect(),
            waits: Vec::new(),
        };
        let mut known = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let cell = piece.boundary * self.block.ranks + column;
            let end_s = self.device_s[cell].max(device_s);
            let has_read = self.read_s[cell] > 0.0;
            let reads = has_read && !piece.ends;
            let [took_s, end_s] = match (reads, piece.begins) {
                (true, _) => {
                    let begun_s = passage.ends.get(piece.boundary.wrapping_sub(1));
                    let drained_s = begun_s.unwrap_or(&0.0) + self.before_read_s[cell];
                    let behind_s = self.read_s[cell] + self.after_read_s[cell];
                    [
                        self.host_s[cell] - behind_s,
                        drained_s.clamp(device_s, end_s),
                    ]
                }
                (_, true) => [self.host_s[cell], end_s],
                _ if has_read => [self.after_read_s[cell], end_s],
                // It took all of it in the piece before: another rank reads back.
                _ => [0.0, end_s],
            };
            let meets_s = if piece.begins {
                meets_s(piece.boundary)
            } else {
                device_s
            };
            let met_s = meets_s.clamp(device_s, end_s);
            if met_s > device_s {
                passage.wait(device_s, met_s);
            }
            let host_begin_s = host_s;
            host_s += took_s.max(0.0);
            known.push(RankPiece {
                host_s: took_s.max(0.0),
                host_end_s: host_s,
                device_end_s: end_s,
                ready_s: met_s.max(host_begin_s).min(end_s),
                reads,
                ..RankPiece::default()
            });
            host_s += if reads { self.read_s[cell] } else { 0.0 };
            device_s = end_s;
        }
        // A host is ahead by no more than it may be.
        for (piece, it) in pieces.iter().zip(&mut known) {
            let begin_s = it.host_end_s - it.host_s;
            it.waited_s = passage.waited_s(it.host_end_s) - passage.waited_s(begin_s);
            it.behind = passage.behind(piece.boundary, it.host_end_s + least_s - most_s);
        }
        known
    }
}
