//! Hosts that are no slower than others, and whose devices are behind all the same.

use model::{Boundary, StepRow, median, medians_of_others};

use crate::lateness::Lateness;
use crate::sides::HOST_SHARE;
use crate::{DeviceAccount, Fault};

/// Share of rows that it must strike, and in which its host reads nothing back, for the hosts to be compared. Ours.
const STRUCK_SHARE: f64 = 0.8;
const READS_SHARE: f64 = 0.5;
/// By how much of that hosts may be ahead by unlike times, and by times that vary, if their queues are full. Ours.
const UNLIKE_SHARE: f64 = 0.1;
const VARIES_SHARE: f64 = 0.05;

/// Whether the hosts of a fault take no longer than the others', which run ahead as they like: where hosts are
/// slower than their devices, one that was once held up stays behind, and costs nothing any more.
///
/// Hosts that stand at full queues take as long as one that is late. These are all ahead by as much.
///
/// # Source
/// Ours: docs/math/device.md.
pub(crate) fn is_no_slower(
    account: &DeviceAccount,
    fault: &Fault,
    lateness: &Lateness<'_>,
) -> bool {
    let DeviceAccount { sampled, found, .. } = account;
    let (window, host) = (&sampled.window, &sampled.host);
    if window.calls_differ() {
        return false;
    }
    let (mut late_s, mut longer_s) = (0.0, 0.0);
    let (mut struck, mut with_reads) = (0, 0);
    for (row, step) in found.steps.iter().enumerate() {
        let block = &window.blocks[step.block];
        let of_row = step.row * block.boundaries.len() * block.ranks;
        let cells = of_row..of_row + block.boundaries.len() * block.ranks;
        let read_s = &host.read_s[step.block][cells];
        let is_read = |column: usize| {
            read_s
                .iter()
                .skip(column)
                .step_by(block.ranks)
                .any(|it| *it > 0.0)
        };
        with_reads += usize::from(columns(account, fault).any(is_read));
        let is_struck = |it: &Boundary| fault.strikes_in(block, step.row, it.stage);
        struck += usize::from(block.boundaries.iter().any(is_struck));
        for (at, boundary) in block.boundaries.iter().enumerate() {
            if !is_struck(boundary) {
                continue;
            }
            let own_s = lateness.own_s(StepRow(row), at);
            let first = (step.row * block.boundaries.len() + at) * block.ranks;
            let cells = first..first + block.ranks;
            let took_s = host.took_s[step.block][cells.clone()].iter();
            let read_s = host.read_s[step.block][cells].iter();
            let took_s: Vec<f64> = took_s.zip(read_s).map(|(took, read)| took - read).collect();
            let (usual_s, usual_took_s) = (medians_of_others(own_s), medians_of_others(&took_s));
            for column in columns(account, fault) {
                late_s += (own_s[column] - usual_s[column]).max(0.0);
                longer_s += took_s[column] - usual_took_s[column];
            }
        }
    }
    let rows = found.steps.len() as f64;
    longer_s < HOST_SHARE * late_s
        && struck as f64 >= STRUCK_SHARE * rows
        && (with_reads as f64) < READS_SHARE * rows
        && !stand_at_queues(account, fault)
}

/// Places of the ranks of a fault.
fn columns(account: &DeviceAccount, fault: &Fault) -> impl Iterator<Item = usize> {
    let ranks = &account.sampled.window.ranks;
    fault
        .ranks
        .iter()
        .filter_map(|rank| ranks.binary_search(rank).ok())
}

/// Whether the other hosts may stand at full queues, or are not ahead by what the fault is late.
fn stand_at_queues(account: &DeviceAccount, fault: &Fault) -> bool {
    let DeviceAccount { sampled, found, .. } = account;
    let late: Vec<usize> = columns(account, fault).collect();
    let ranks = sampled.window.ranks.len();
    let (mut least_s, mut most_s, mut are_steady) = (f64::INFINITY, 0.0f64, true);
    for rank in (0..ranks).filter(|rank| !late.contains(rank)) {
        let rows = found.steps.iter().map(|step| {
            let [least_s, most_s] = sampled.host.ahead_s[step.block][step.row * ranks + rank];
            least_s.midpoint(most_s)
        });
        let mut rows: Vec<f64> = rows.collect();
        let usual_s = median(&mut rows).unwrap_or(0.0);
        let mut off_s: Vec<f64> = rows.iter().map(|it| (it - usual_s).abs()).collect();
        are_steady &= median(&mut off_s).unwrap_or(0.0) <= VARIES_SHARE * usual_s;
        (least_s, most_s) = (least_s.min(usual_s), most_s.max(usual_s));
    }
    let are_alike = least_s >= (1.0 - UNLIKE_SHARE) * most_s;
    most_s < fault.lateness_s || (are_steady && are_alike)
}
