//! Ranks that arrive late in timed collectives, and communicators that became slow.

use model::{CollectiveOp, LateArrivals, LateIn, SlowCommunicator};

use crate::fact::Worded;
use crate::words::{are, duration, percent, who};

pub(crate) fn late(late: &LateArrivals) -> String {
    let mut text = format!("{} late", are(&late.ranks, &who(&late.ranks)));
    // The costliest; each of the others has its own evidence.
    if let Some(place) = late.places.first() {
        text += &format!(
            " to {}: {} an operation, {} of collective time since #{}",
            collective(place.op, &place.group),
            duration(place.lateness_s),
            percent(late.cost_share),
            place.first
        );
    }
    if !late.victims.is_empty() {
        text += &format!(
            "; {} late only because of it",
            are(&late.victims, &who(&late.victims))
        );
    }
    text
}

/// The collective that ranks are late to most.
pub(crate) fn late_place(late: &LateArrivals) -> Option<String> {
    late.places
        .first()
        .map(|place| collective(place.op, &place.group))
}

pub(crate) fn late_fact(ranks: &[u32], place: &LateIn) -> Worded {
    // A rank's time runs from its own arrival, so the one that comes last has the shortest.
    let text = format!(
        "in {} of {} operations of {} the others waited {} longer than {}: the last to arrive \
         waits least; {} in total",
        place.struck,
        place.operations,
        collective(place.op, &place.group),
        duration(place.lateness_s),
        who(ranks),
        duration(place.cost_s),
    );
    let values = [
        ("lateness_s", place.lateness_s),
        ("struck_operations", place.struck as f64),
        ("operations", place.operations as f64),
    ];
    Worded::new("arrival", text, &values)
}

pub(crate) fn slow(slow: &SlowCommunicator) -> String {
    format!(
        "{} moves {} since #{}, {} before, {} of collective time; no rank in particular is late",
        slow_place(slow),
        bandwidth(slow.bytes_per_s),
        slow.first,
        bandwidth(slow.usual_bytes_per_s),
        percent(slow.cost_share),
    )
}

/// The collectives that became slow.
pub(crate) fn slow_place(slow: &SlowCommunicator) -> String {
    collective(slow.op, &slow.group)
}

pub(crate) fn slow_fact(slow: &SlowCommunicator) -> Worded {
    // The last to arrive waits for nobody: what it takes is the transfer.
    let text = format!(
        "median of windows of similar operations, against earlier healthy windows, measured by the \
         last of {} to arrive",
        who(&slow.ranks)
    );
    let values = [
        ("bytes_per_s", slow.bytes_per_s),
        ("usual_bytes_per_s", slow.usual_bytes_per_s),
    ];
    Worded::new("bandwidth", text, &values)
}

fn collective(op: CollectiveOp, group: &str) -> String {
    format!("{} of group {group}", op.name())
}

/// Bytes a second for reading: "12.3 GB/s".
fn bandwidth(bytes_per_s: f64) -> String {
    format!("{:.3} GB/s", bytes_per_s * 1e-9)
}
