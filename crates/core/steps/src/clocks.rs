//! What the clocks of ranks say of where they meet.

use std::collections::BTreeMap;

use model::{Cut, RankNs, median};

use crate::cells::{DeliveredSteps, RankRow, rank_rows};

/// Share of a step by which ranks of a host must typically be apart at a cut for them not to meet there.
/// Ours: that of a candidate for a fault.
pub(crate) const APART_SHARE: f64 = 0.02;
/// Share of that by which they are at most apart where they meet. Ours.
const TOGETHER_SHARE: f64 = 0.25;
/// Share of a step by which the times of a rank may be off that is asked. Ours: the distances above lie between
/// those of a few steps, which need not be large.
const ERROR_SHARE: f64 = 0.05;

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
    // On average: some may pause now and then.
    meets(cuts, |cut| {
        let rows = apart_in_rows(cut, steps, hosts, |_, _| Some([0; 2]), ERROR_SHARE);
        let (apart_s, takes_s) = rows.iter().fold((0.0, 0.0), |(apart_s, takes_s), row| {
            (apart_s + row.apart_s[0], takes_s + row.takes_s)
        });
        (takes_s > 0.0).then_some([apart_s / takes_s; 2])
    })
}

/// The same of devices in most steps, as far as their times on their hosts' clocks are known well.
///
/// # Source
/// Ours: docs/math/device.md.
pub(crate) fn devices_meet_on_hosts(
    cuts: &[Cut],
    steps: &DeliveredSteps<'_>,
    hosts: &[Option<&str>],
    offset_ns: impl Fn(u32, usize) -> Option<[i128; 2]>,
) -> Option<Cut> {
    meets(cuts, |cut| {
        typically_apart(cut, steps, hosts, &offset_ns, ERROR_SHARE)
    })
}

/// The share of a step by which devices of a host are apart at a cut in most steps, at least; zero where their
/// times on its clock are not known.
pub(crate) fn devices_apart_share(
    cut: Cut,
    steps: &DeliveredSteps<'_>,
    hosts: &[Option<&str>],
    offset_ns: impl Fn(u32, usize) -> Option<[i128; 2]>,
) -> f64 {
    let apart = typically_apart(cut, steps, hosts, offset_ns, f64::INFINITY);
    apart.map_or(0.0, |[least, _]| least)
}

/// The shares of a step by which devices of a host are apart at a cut, at least and at most: the medians.
fn typically_apart(
    cut: Cut,
    steps: &DeliveredSteps<'_>,
    hosts: &[Option<&str>],
    offset_ns: impl Fn(u32, usize) -> Option<[i128; 2]>,
    error_share: f64,
) -> Option<[f64; 2]> {
    let rows = apart_in_rows(cut, steps, hosts, offset_ns, error_share);
    let typical = |bound: usize| {
        let shares = rows.iter().map(|row| row.apart_s[bound] / row.takes_s);
        median(&mut shares.collect::<Vec<f64>>())
    };
    Some([typical(0)?, typical(1)?])
}

/// Of cuts with the shares of a step by which ranks are apart there, at least and at most.
fn meets(cuts: &[Cut], apart_shares: impl Fn(Cut) -> Option<[f64; 2]>) -> Option<Cut> {
    let (last, earlier) = cuts
        .split_last()
        .filter(|(_, earlier)| !earlier.is_empty())?;
    let [at_last, _] = apart_shares(*last)?;
    if at_last <= APART_SHARE {
        return None;
    }
    let is_together = |cut: &&Cut| {
        let at_cut = apart_shares(**cut);
        at_cut.is_some_and(|[_, most]| most <= TOGETHER_SHARE * at_last)
    };
    earlier.iter().rfind(is_together).copied()
}

/// How far ranks of a host are apart where a row begins, at least and at most, and what the row takes, in seconds.
struct Apart {
    apart_s: [f64; 2],
    takes_s: f64,
}

/// The same for each row in which the times of several ranks of a host are known.
///
/// `offset_ns` is by how much the host's clock stands before that of a rank's step, at least and at most; only
/// times that are off by no more than `error_share` of the row count.
fn apart_in_rows(
    cut: Cut,
    steps: &DeliveredSteps<'_>,
    hosts: &[Option<&str>],
    offset_ns: impl Fn(u32, usize) -> Option<[i128; 2]>,
    error_share: f64,
) -> Vec<Apart> {
    let of_row = |(before, step)| {
        let rows = rank_rows(before, step, cut)?;
        let takes_s = rows.iter().map(RankRow::took_s).fold(0.0, f64::max);
        // Behind a cut a row begins in the step before.
        let begins_in = step.step - u32::from(cut != Cut::Data);
        let mut starts: BTreeMap<&str, Vec<[i128; 2]>> = BTreeMap::new();
        for (rank, (row, host)) in rows.iter().zip(hosts).enumerate() {
            let offset_ns = offset_ns(begins_in, rank);
            // Off by half of what lies between the bounds.
            let is_close =
                |[least, most]: &[i128; 2]| (most - least) as f64 * 0.5e-9 <= error_share * takes_s;
            if let (Some(host), Some(offset_ns)) = (host, offset_ns.filter(is_close)) {
                let start = offset_ns.map(|ns| ns + i128::from(row.start.0));
                starts.entry(host).or_default().push(start);
            }
        }
        let of_hosts = starts.values().filter(|starts| starts.len() > 1);
        let apart_s = of_hosts.map(|starts| apart_s(starts));
        let apart_s = apart_s.reduce(|one, other| [one[0].max(other[0]), one[1].max(other[1])])?;
        (takes_s > 0.0).then_some(Apart { apart_s, takes_s })
    };
    steps.pairs().filter_map(of_row).collect()
}

/// How far some ranks are apart, at least and at most, in seconds, by when each is there at the soonest and at
/// the latest, in nanoseconds.
fn apart_s(ranks_ns: &[[i128; 2]]) -> [f64; 2] {
    let (mut first, mut last) = ([i128::MAX; 2], [i128::MIN; 2]);
    for [soonest, latest] in ranks_ns {
        first = [first[0].min(*soonest), first[1].min(*latest)];
        last = [last[0].max(*soonest), last[1].max(*latest)];
    }
    [(last[0] - first[1]).max(0), last[1] - first[0]].map(|ns| ns as f64 * 1e-9)
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

    #[test]
    fn devices_meet_where_they_are_together_whatever_error_their_times_have() {
        // One is late by 12 of 35 ms behind what it gathers, in each step.
        let step = |begin_ms: u64, waits_ms: u64| {
            format!("D0+{begin_ms} D1+5 B0+5 K+10 B1+{} O0 O1 K ", 1 + waits_ms)
        };
        let late = step(1, 0) + &step(13, 0).repeat(20);
        let waits = step(1, 0) + &step(1, 12).repeat(20);
        let [one, other] = [late, waits].map(|text| steps(&text).into_iter());
        let job_steps = one.zip(other).map(|(one, other)| JobStep {
            step: one.step,
            ranks: [(0, one), (1, other)].into(),
        });
        let job_steps: Vec<JobStep> = job_steps.collect();
        let steps = DeliveredSteps::new(None, &job_steps, &[0, 1]);
        let backward = Cut::After(MarkKind::BackwardEnd);
        let met = |error_s: Option<f64>, steps_known: u32| {
            let offset_ns =
                error_s.map(|error_s| [-1.0, 1.0].map(|sign| (sign * error_s * 1e9) as i128));
            let offset_ns = |step: u32, _| offset_ns.filter(|_| step < steps_known);
            let hosts = [Some("a"); 2];
            let apart = devices_apart_share(Cut::Data, &steps, &hosts, offset_ns);
            assert_eq!(apart > 0.0, steps_known > 1);
            devices_meet_on_hosts(&[backward, Cut::Data], &steps, &hosts, offset_ns)
        };
        assert_eq!(met(Some(0.0), u32::MAX), Some(backward));
        assert_eq!(met(Some(0.0005), 6), Some(backward));
        // They may as well be together at neither.
        assert_eq!(met(Some(0.0015), u32::MAX), None);
        assert_eq!(met(Some(0.0), 0), None);
    }
}
