//! What a rank that is alone in its role does in sampled steps.

use std::collections::{BTreeMap, VecDeque};

use model::{Block, Ending, Pace, StageId, median};

use crate::DeviceAccount;
use crate::pace::{Seen, pace_of};

/// Sampled steps of a rank that are remembered: those of an account or two.
const MAX_ROWS: usize = 128;
/// Rows by which it is known what a rank does. Ours, as many as make an account.
pub(super) const MIN_ROWS: usize = 5;
/// Steps by which it is known what a device usually takes: the latest in which it was not slow. Ours,
/// as for blocks.
const USUAL_OF: usize = 32;
/// How many times the scatter a rank must be late by. Ours.
pub(super) const SCATTERS: f64 = 3.0;

/// A rank that is alone in its role.
#[derive(Debug, Default)]
pub(super) struct Alone {
    pub(super) rows: VecDeque<Row>,
    /// What its device took in its optimizer in steps in which it was not slow there, what of it was its
    /// own, and what these steps took.
    usual_s: VecDeque<[f64; 3]>,
    /// Exposed time of all of its windows, and their last step.
    pub(super) exposed_s: f64,
    pub(super) last_step: u64,
}

/// What it did by itself in a sampled step.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) step: u64,
    pub(super) makespan_s: f64,
    /// Its host.
    pub(super) own_s: BTreeMap<StageId, f64>,
    /// For how long that must have held its device up.
    pub(super) held_s: BTreeMap<StageId, f64>,
    /// Its device in its optimizer, if it has one.
    pub(super) device: Option<DeviceRow>,
}

/// What a device did in its optimizer, up to where it may wait for other ranks there.
#[derive(Debug)]
pub(super) struct DeviceRow {
    pub(super) took_s: f64,
    /// What of it is the device's own, at least: for the rest its host may have held it up.
    pub(super) own_s: f64,
    /// What was usual when it did, if that was known.
    pub(super) usual: Option<UsualDevice>,
}

/// What a device took in its optimizer before.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "the unit")]
pub(super) struct UsualDevice {
    pub(super) took_s: f64,
    /// What the steps took.
    pub(super) makespan_s: f64,
    /// By how much longer a step is no chance.
    least_s: f64,
}

impl DeviceRow {
    /// What the device took by itself beyond what it took before.
    pub(super) fn late_s(&self) -> Option<f64> {
        Some(self.own_s - self.usual.as_ref()?.took_s)
    }
}

impl Row {
    /// Whether the device took longer in its optimizer than it does by chance.
    pub(super) fn is_device_late(&self) -> bool {
        self.device.as_ref().is_some_and(|row| {
            let usual = row.usual.as_ref().zip(row.late_s());
            usual.is_some_and(|(usual, late_s)| late_s > usual.least_s)
        })
    }
}

impl Alone {
    /// Takes what is known of its device. What costs less than `share_min` of a step is not late.
    pub(super) fn take(&mut self, account: Option<&DeviceAccount>, share_min: f64) {
        for mut row in account.into_iter().flat_map(rows_of) {
            if let Some(device) = &mut row.device {
                // Before the row itself is taken in: a slow one is put beside what came before it.
                device.usual = self.usual_device(share_min);
                let seen_s = [device.took_s, device.own_s, row.makespan_s];
                // What a slow device takes is not usual.
                if !row.is_device_late() {
                    if self.usual_s.len() == USUAL_OF {
                        self.usual_s.pop_front();
                    }
                    self.usual_s.push_back(seen_s);
                }
            }
            if self.rows.len() == MAX_ROWS {
                self.rows.pop_front();
            }
            self.rows.push_back(row);
        }
    }

    pub(super) fn is_seen(&self) -> bool {
        self.rows.len() >= MIN_ROWS
    }

    /// The steps in which it was late, if it was in most since the first of them.
    pub(super) fn steady_strikes(&self, is_late: impl Fn(&Row) -> bool) -> Option<Vec<u64>> {
        let late = self.rows.iter().filter(|row| is_late(row));
        let strikes: Vec<u64> = late.map(|row| row.step).collect();
        let seen: Seen = self.rows.iter().map(|row| row.step).collect();
        let last = self.rows.back()?.step;
        let is_steady = pace_of(&strikes, &seen, last) == Pace::Steady;
        (is_steady && strikes.len() >= MIN_ROWS).then_some(strikes)
    }

    /// What it usually takes in a stage, and how far it is off that, at the ninth of ten.
    pub(super) fn level(&self, stage: StageId) -> Option<[f64; 2]> {
        level_of(
            self.rows
                .iter()
                .filter_map(|row| row.own_s.get(&stage).copied()),
        )
    }

    pub(super) fn median_of(
        &self,
        of: impl Fn(&Row) -> bool,
        value: impl Fn(&Row) -> f64,
    ) -> Option<f64> {
        let rows = self.rows.iter().filter(|row| of(row));
        median(&mut rows.map(value).collect::<Vec<_>>())
    }

    /// What its device took in its optimizer while that was as usual.
    pub(super) fn device_level_s(&self, of: impl Fn(&DeviceRow) -> f64) -> Option<f64> {
        let rows = self.rows.iter().filter(|row| !row.is_device_late());
        let [level_s, _] = level_of(rows.filter_map(|row| row.device.as_ref()).map(of))?;
        Some(level_s)
    }

    /// By what part of the usual its device takes longer in its optimizer from a step on.
    pub(super) fn device_growth_since(&self, step: u64) -> Option<f64> {
        let rows = self.rows.iter().filter(|row| row.step >= step);
        let growth = rows.filter_map(|row| {
            let device = row.device.as_ref()?;
            Some(device.late_s()? / device.usual.as_ref()?.took_s)
        });
        median(&mut growth.collect::<Vec<_>>())
    }

    fn usual_device(&self, share_min: f64) -> Option<UsualDevice> {
        let [took_s, makespan_s] = [0, 2].map(|which| {
            let all_s = self.usual_s.iter().map(|seen_s| seen_s[which]);
            median(&mut all_s.collect::<Vec<_>>())
        });
        let (took_s, makespan_s) = took_s.zip(makespan_s)?;
        // That its host holds it up now and then does not make it seem slow.
        let beyond_s = self
            .usual_s
            .iter()
            .map(|[_, own_s, _]| (own_s - took_s).max(0.0));
        let scatter_s = at_most(beyond_s).filter(|_| self.usual_s.len() >= MIN_ROWS)?;
        Some(UsualDevice {
            took_s,
            makespan_s,
            least_s: (share_min * makespan_s).max(SCATTERS * scatter_s),
        })
    }
}

/// What values usually are, and how far they are off that, at the ninth of ten.
fn level_of(values: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    let mut values: Vec<f64> = values.collect();
    let usual = median(&mut values).filter(|_| values.len() >= MIN_ROWS)?;
    let scatter = at_most(values.iter().map(|value| (value - usual).abs()))?;
    Some([usual, scatter])
}

/// What nine of ten values are at most.
fn at_most(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    // The index is below the length unless there are no values.
    values.get(values.len() * 9 / 10).copied()
}

/// What a rank did by itself in the rows of an account of it alone.
fn rows_of(account: &DeviceAccount) -> impl Iterator<Item = Row> {
    let sampled = &account.sampled;
    account.found.steps.iter().filter_map(|step| {
        let block = sampled.window.blocks.get(step.block)?;
        // The account is of this rank alone: a row has one value for each boundary.
        let size = block.boundaries.len();
        let cells = step.row * size..(step.row + 1) * size;
        let of = |plane: &[Vec<f64>]| Some(plane.get(step.block)?.get(cells.clone())?.to_vec());
        let (took_s, read_s) = (of(&sampled.host.took_s)?, of(&sampled.host.read_s)?);
        let held_least_s = of(&sampled.host_bound_least_s)?;
        let held_most_s = of(&sampled.host_bound_most_s)?;
        let mut own_s: BTreeMap<StageId, f64> = BTreeMap::new();
        let mut held_s: BTreeMap<StageId, f64> = BTreeMap::new();
        for (boundary, held_least_s) in block.boundaries.iter().zip(&held_least_s) {
            *held_s.entry(boundary.stage).or_default() += held_least_s;
        }
        for (boundary, (took_s, read_s)) in block.boundaries.iter().zip(took_s.iter().zip(&read_s))
        {
            // In a read-back a host waits for its device, and by that for late ranks of other
            // roles.
            *own_s.entry(boundary.stage).or_default() += took_s - read_s;
        }
        Some(Row {
            step: step.step,
            makespan_s: step.makespan_s,
            own_s,
            held_s,
            device: in_optimizer(block, block.durations_s.get(cells.clone())?, &held_most_s),
        })
    })
}

/// What a device took from where it begins with its optimizer to the first collective in it, behind
/// which it may wait for other ranks, or to its end.
fn in_optimizer(block: &Block, took_s: &[f64], held_most_s: &[f64]) -> Option<DeviceRow> {
    let mut found: Option<DeviceRow> = None;
    for (boundary, (took_s, held_most_s)) in
        block.boundaries.iter().zip(took_s.iter().zip(held_most_s))
    {
        if boundary.stage != StageId::OPTIMIZER {
            continue;
        }
        let row = found.get_or_insert(DeviceRow {
            took_s: 0.0,
            own_s: 0.0,
            usual: None,
        });
        row.took_s += took_s;
        // The most for a device, as above the least for a host: neither is charged with what may be
        // the other's.
        row.own_s += (took_s - held_most_s).max(0.0);
        if matches!(boundary.ending, Ending::Issue { .. }) {
            break;
        }
    }
    found
}
