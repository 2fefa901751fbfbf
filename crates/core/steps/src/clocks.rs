//! What the clocks of ranks say of where they meet.

use std::collections::BTreeMap;

use model::{Cut, RankNs, median};

use crate::cells::{DeliveredSteps, RankRow, rank_rows};

/// Share of a step by which ranks of a host must typically be apart at a cut for them not to meet there.
/// Ours: that of a candidate for a fault.
const APART_SHARE: f64 = 0.02;
/// Share of that by which they are at most apart where they meet. Ours.
const TOGETHER_SHARE: f64 = 0.25;

/// The last of some cuts at which ranks that share a host's clock are together, if they are apart at the last
/// of all: behind the collective that is issued there, one of them does something else before the
/// mark that ends the stage.
///
/// # Source
/// Ours: docs/math/meetings.md.
pub(crate) fn meets_on_hosts(
    cuts: &[Cut],
    steps: &DeliveredSteps<'_>,
    hosts: &[Option<&str>],
) -> Option<Cut> {
    let (last, earlier) = cuts
        .split_last()
        .filter(|(_, earlier)| !earlier.is_empty())?;
    let at_last = apart_share(*last, steps, hosts)?;
    if at_last <= APART_SHARE {
        return None;
    }
    let is_together = |cut: &&Cut| {
        let at_cut = apart_share(**cut, steps, hosts);
        at_cut.is_some_and(|share| share <= TOGETHER_SHARE * at_last)
    };
    earlier.iter().rfind(is_together).copied()
}

/// How far ranks of a host are apart at a cut: the mean over the steps, as a share of what these take. Ranks
/// that are not known to share a host are not apart. `None` if no step shows it.
fn apart_share(cut: Cut, steps: &DeliveredSteps<'_>, hosts: &[Option<&str>]) -> Option<f64> {
    let (mut apart_s, mut takes_s) = (0.0, 0.0);
    for (before, step) in steps.pairs() {
        let Some(rows) = rank_rows(before, step, cut) else {
            continue;
        };
        let mut starts: BTreeMap<&str, (RankNs, RankNs)> = BTreeMap::new();
        for (row, host) in rows.iter().zip(hosts) {
            let Some(host) = host else { continue };
            let (first, last) = starts.entry(host).or_insert((row.start, row.start));
            (*first, *last) = ((*first).min(row.start), (*last).max(row.start));
        }
        let apart = starts
            .values()
            .map(|(first, last)| last.seconds_since(*first));
        apart_s += apart.fold(0.0, f64::max);
        takes_s += rows.iter().map(RankRow::took_s).fold(0.0, f64::max);
    }
    (takes_s > 0.0).then(|| apart_s / takes_s)
}

/// How much later than usual ranks are at a cut, `[step][rank]` in seconds, each by its own clock;
/// zero where it is not followed.
pub(crate) fn lags_s(cut: Cut, steps: &DeliveredSteps<'_>, ranks: usize) -> Vec<f64> {
    let mut lags_s = vec![0.0; steps.steps.len() * ranks];
    let mut first: Option<Vec<RankNs>> = None;
    let mut known = Vec::new();
    for ((before, step), lags_s) in steps.pairs().zip(lags_s.chunks_exact_mut(ranks)) {
        let Some(rows) = rank_rows(before, step, cut) else {
            continue;
        };
        let first = first.get_or_insert_with(|| rows.iter().map(|row| row.start).collect());
        for ((lag_s, row), first) in lags_s.iter_mut().zip(&rows).zip(first) {
            *lag_s = row.start.seconds_since(*first);
        }
        let mean_s = lags_s.iter().sum::<f64>() / ranks as f64;
        for lag_s in lags_s.iter_mut() {
            *lag_s -= mean_s;
        }
        known.push(lags_s);
    }
    for rank in 0..ranks {
        let mut of_rank: Vec<f64> = known.iter().map(|lags_s| lags_s[rank]).collect();
        let usual_s = median(&mut of_rank).unwrap_or(0.0);
        for lags_s in &mut known {
            lags_s[rank] -= usual_s;
        }
    }
    lags_s
}

#[cfg(test)]
mod tests {
    use model::MarkKind;

    use super::*;
    use crate::align::JobStep;
    use crate::testkit::steps;

    /// Where two ranks are found to meet that reduce their gradients, and gather something behind the
    /// optimizer. Then one pauses, and the other waits for it in its next backward pass; the other's clock is
    /// ahead by so much.
    fn met(pause_ms: u64, ahead_ms: u64, hosts: [&str; 2]) -> Option<Cut> {
        let step = |begin_ms: u64, waits_ms: u64| {
            format!("D0+{begin_ms} D1+5 B0+5 K+10 B1+{} O0 O1 K ", 1 + waits_ms)
        };
        let pauses = step(1, 0) + &step(1 + pause_ms, 0).repeat(30);
        let waits = step(1 + ahead_ms, 0) + &step(1, pause_ms).repeat(30);
        let ranks = [pauses, waits].map(|text| steps(&text));
        let [one, other] = ranks.map(IntoIterator::into_iter);
        let job_steps = one.zip(other).map(|(one, other)| JobStep {
            step: one.step,
            ranks: [(0, one), (1, other)].into(),
        });
        let steps: Vec<JobStep> = job_steps.collect();
        let steps = DeliveredSteps::new(steps.first(), &steps[1..], &[0, 1]);
        let cuts = [Cut::After(MarkKind::BackwardEnd), Cut::Data];
        meets_on_hosts(&cuts, &steps, &hosts.map(Some))
    }

    #[test]
    fn a_pause_behind_the_last_collective_is_no_place_to_meet() {
        let backward = Some(Cut::After(MarkKind::BackwardEnd));
        assert_eq!(met(25, 0, ["a", "a"]), backward);
        assert_eq!(met(0, 0, ["a", "a"]), None);
        // What is not one clock shows nothing: it is off by as much at any cut.
        assert_eq!(met(25, 0, ["a", "b"]), None);
        assert_eq!(met(25, 7_000, ["a", "a"]), None);
    }
}
