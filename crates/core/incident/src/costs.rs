//! What each of several things costs that are wrong at once.

use frontier::ranking;

/// One of them, and what it costs.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    /// Which one.
    pub(crate) at: usize,
    /// What it adds as things stand. Costs sum to what fixing all of them saves.
    pub(crate) cost_s: f64,
    /// What fixing only it saves.
    pub(crate) alone_s: f64,
    /// Whether it costs less than it will once others are fixed.
    pub(crate) hidden: bool,
    /// The place, in this order, of the first that hides it, and what fixing both saves.
    pub(crate) hidden_by: Option<(usize, f64)>,
}

/// Shares out what fixing all of `count` things saves, the weightiest first. `gain_s` is what fixing
/// some of them saves.
///
/// # Source
/// Ours: docs/math/replay.md.
pub(crate) fn share_out(count: usize, gain_s: impl Fn(&[usize]) -> f64) -> Vec<Charge> {
    let all: Vec<usize> = (0..count).collect();
    let all_s = gain_s(&all);
    let weights: Vec<f64> = all
        .iter()
        .map(|at| {
            let others = all.iter().copied().filter(|other| other != at);
            all_s - gain_s(&others.collect::<Vec<_>>())
        })
        .collect();
    // The weightiest first, so that it pays what is shared: what it hides then costs less than its
    // weight (docs/math/replay.md).
    let order = ranking(&weights);
    let mut left_s = all_s;
    let charges = order.iter().enumerate().map(|(place, at)| {
        let after_s = gain_s(&order[place + 1..]);
        let cost_s = (left_s - after_s).max(0.0);
        let with_after_s = std::mem::replace(&mut left_s, after_s);
        // Of the last one it is what is left, and most often there is only one: a gain is many replays.
        let is_last = place + 1 == count;
        let alone_s = if is_last {
            with_after_s
        } else {
            gain_s(&[*at])
        }
        .max(0.0);
        // This half and the quarter below are ours (docs/math/replay.md).
        let hidden = cost_s < 0.5 * weights[*at];
        // It is the first before it whose fixing sets it free that hides it.
        let hidden_by = order[..place]
            .iter()
            .enumerate()
            .filter(|_| hidden)
            .find_map(|(hider, first)| {
                let both_s = gain_s(&[*first, *at]);
                let is_free = both_s - gain_s(&[*first]) - alone_s > 0.25 * weights[*at];
                is_free.then_some((hider, both_s))
            });
        Charge {
            at: *at,
            cost_s,
            alone_s,
            hidden,
            hidden_by,
        }
    });
    charges.collect()
}
