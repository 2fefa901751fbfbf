//! Ranks that are late in the stage in which all hosts wait for their devices, behind that wait.

use std::collections::BTreeMap;

use model::{Cut, Ending, Meeting, RankNs, RankStep, Segment, median};

use crate::align::JobStep;
use crate::cells::{DeliveredStep, DeliveredSteps, rank_rows};
use crate::meeting::{ChosenCut, cuts_at_marks, lateness};

/// Share of a step by which a rank must typically be later than half of the others. Ours: from there on
/// a fault must be named.
const LATE_SHARE: f64 = 0.05;
/// Share of that by which it may typically vary, and which must be there at every other cut. Ours.
const STEADY_SHARE: f64 = 0.25;
const THERE_SHARE: f64 = 0.5;
/// Share of a step that all hosts must wait, if they are not seen to meet. Ours: that of the note on waits
/// for devices.
const WAITS_SHARE: f64 = 0.5;

/// The same steps, each from where the first rank of a host leaves what all wait for, if a rank that shares its
/// host's clock with others is late behind that: what ranks do in that stage until they begin the next step is
/// its first segment. `None` if no rank is: it would be late by as much at every mark, though all wait for their
/// devices in each step.
///
/// # Source
/// Ours: docs/math/meetings.md.
pub(crate) fn from_read_backs(
    chosen: &ChosenCut,
    delivered: &DeliveredSteps<'_>,
    steps: &[JobStep],
    ranks: &[u32],
    hosts: &[Option<&str>],
) -> Option<Vec<JobStep>> {
    is_late_behind(chosen, delivered, hosts).then(|| moved(steps, ranks, hosts))
}

/// Whether hosts meet within the last stage of a step, and one of those that share a clock is late behind that.
fn is_late_behind(chosen: &ChosenCut, steps: &DeliveredSteps<'_>, hosts: &[Option<&str>]) -> bool {
    let cuts = cuts_at_marks(steps);
    // Ranks that issue no collectives wait for nobody.
    if !matches!(cuts[..], [Cut::After(_), .., Cut::Data]) || !are_joined(steps) {
        return false;
    }
    let takes_s = typical_s(steps, 0, |piece| {
        Some(piece.segments.last()?.end.seconds_since(piece.start))
    });
    let waits_s = |rank| {
        typical_s(steps, rank, |piece| {
            let (last, others) = piece.segments.split_last()?;
            // A collective may be issued behind the read-back, such as that of a metric.
            let is_mark = |segment: &&Segment| matches!(segment.ending, Ending::Mark(_));
            let before = others.iter().rfind(is_mark)?;
            Some(last.end.seconds_since(before.end))
        })
    };
    let is_seen = (chosen.cut, chosen.meeting) == (Cut::Data, Meeting::Seen);
    let all_wait = || (0..hosts.len()).all(|rank| waits_s(rank) >= WAITS_SHARE * takes_s);
    if !is_seen && !all_wait() {
        return false;
    }
    let Some(late) = last_at(Cut::Data, steps, hosts) else {
        return false;
    };
    let is_steady =
        late.late_s >= LATE_SHARE * takes_s && late.varies_s <= STEADY_SHARE * late.late_s;
    let is_there = |cut: &Cut| {
        let there = last_at(*cut, steps, hosts);
        there.is_some_and(|it| it.late_s >= THERE_SHARE * late.late_s)
    };
    // What it is late by it must have spent there.
    is_steady && late.late_s <= waits_s(late.rank) && cuts.iter().all(is_there)
}

/// Whether ranks issue the same collectives in the same communicators, and nothing else: those that meet in none
/// may be apart by anything, and those that send and receive by design.
fn are_joined(steps: &DeliveredSteps<'_>) -> bool {
    let sends =
        |it: &Segment| matches!(it.ending, Ending::Issue { op, .. } if op.is_point_to_point());
    let mut pieces = steps.whole_pieces();
    let sends_any = pieces.any(|piece| piece.segments.iter().any(sends));
    let mut rows = steps
        .pairs()
        .filter_map(|(before, step)| steps.between(before, step, Cut::Data));
    let is_shared = rows.all(|row| row.parts.iter().all(|part| part.is_in_same_groups()));
    is_shared && !sends_any
}

/// The median of something over the steps that a rank delivered whole.
fn typical_s(
    steps: &DeliveredSteps<'_>,
    rank: usize,
    of: impl Fn(&RankStep) -> Option<f64>,
) -> f64 {
    let whole = |step: &DeliveredStep<'_>| {
        let piece = step.pieces[rank].filter(|piece| piece.complete);
        piece.and_then(&of)
    };
    median(&mut steps.steps.iter().filter_map(whole).collect::<Vec<_>>()).unwrap_or(0.0)
}

/// The last rank of a host at a cut, and how late it typically is.
struct Last {
    rank: usize,
    late_s: f64,
    varies_s: f64,
}

/// The rank that is the last of a host at a cut in most steps, as [`lateness`] has it.
fn last_at(cut: Cut, steps: &DeliveredSteps<'_>, hosts: &[Option<&str>]) -> Option<Last> {
    let mut late_s: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for (before, step) in steps.pairs() {
        let Some(rows) = rank_rows(before, step, cut) else {
            continue;
        };
        let mut starts: BTreeMap<&str, Vec<(RankNs, usize)>> = BTreeMap::new();
        for (rank, (row, host)) in rows.iter().zip(hosts).enumerate() {
            starts.entry((*host)?).or_default().push((row.start, rank));
        }
        let of_host = |starts: &Vec<(RankNs, usize)>| {
            let ((first, _), (last, rank)) = (*starts.iter().min()?, *starts.iter().max()?);
            let since_s = starts.iter().map(|(at, _)| at.seconds_since(first));
            let late_s = lateness(&since_s.collect::<Vec<_>>(), last.seconds_since(first));
            Some((late_s, rank))
        };
        let last = starts
            .values()
            .filter_map(of_host)
            .max_by(|one, other| one.0.total_cmp(&other.0));
        if let Some((seconds, rank)) = last {
            late_s.entry(rank).or_default().push(seconds);
        }
    }
    let all: usize = late_s.values().map(Vec::len).sum();
    let (rank, mut late_s) = late_s.into_iter().max_by_key(|(_, steps)| steps.len())?;
    if late_s.len() * 2 <= all {
        return None;
    }
    let typical_s = median(&mut late_s)?;
    let mut off_s: Vec<f64> = late_s.iter().map(|it| (it - typical_s).abs()).collect();
    Some(Last {
        rank,
        late_s: typical_s,
        varies_s: median(&mut off_s)?,
    })
}

/// Steps from where the first rank of a host leaves its last segment.
fn moved(steps: &[JobStep], ranks: &[u32], hosts: &[Option<&str>]) -> Vec<JobStep> {
    let moved = |step: &JobStep| {
        let pieces: Vec<(u32, &RankStep, &str)> = ranks
            .iter()
            .zip(hosts)
            .filter_map(|(rank, host)| Some((*rank, step.ranks.get(rank)?, (*host)?)))
            .collect();
        let mut first: BTreeMap<&str, [RankNs; 2]> = BTreeMap::new();
        for (_, piece, host) in &pieces {
            let end = piece.segments.last().map_or(piece.start, |last| last.end);
            let [begins, leaves] = first.entry(host).or_insert([piece.start, end]);
            (*begins, *leaves) = ((*begins).min(piece.start), (*leaves).min(end));
        }
        let from_first = |(rank, piece, host): &(u32, &RankStep, &str)| {
            let mut moved = (*piece).clone();
            // The last one has no end to be compared.
            if !piece.complete {
                return Some((*rank, moved));
            }
            let [begins, leaves] = *first.get(host)?;
            let (last, others) = moved.segments.split_last_mut()?;
            let behind = Segment {
                end: piece.start,
                ..*last
            };
            let came = others.last().map_or(piece.start, |other| other.end);
            last.end = leaves.min(last.end).max(came);
            moved.segments.insert(0, behind);
            moved.start = begins;
            Some((*rank, moved))
        };
        JobStep {
            step: step.step,
            ranks: pieces.iter().filter_map(from_first).collect(),
        }
    };
    steps.iter().map(moved).collect()
}

#[cfg(test)]
mod tests {
    use model::CollectiveOp;

    use super::*;
    use crate::meeting::{OwnClocks, choose_cut};
    use crate::testkit::steps;

    const RANKS: [u32; 3] = [0, 1, 2];

    /// Three ranks that begin a step this long after the one before, and do this in it; the last begins each
    /// `late_ms` later than the others.
    fn job(waits_ms: u64, does: &str, late_ms: u64) -> Vec<JobStep> {
        let step = |begins_ms: u64| format!("D0+{begins_ms} {does} ");
        job_of([0, 0, late_ms].map(|late_ms| step(1 + late_ms) + &step(waits_ms).repeat(20)))
    }

    fn job_of(ranks: [String; 3]) -> Vec<JobStep> {
        let pieces = ranks.map(|text| steps(&text));
        let job_step = |at: usize| JobStep {
            step: pieces[0][at].step,
            ranks: RANKS
                .into_iter()
                .zip(pieces.each_ref().map(|of| of[at].clone()))
                .collect(),
        };
        (0..pieces[0].len()).map(job_step).collect()
    }

    /// Whether the last rank is found to be late behind what all wait for.
    fn is_late(steps: &[JobStep], hosts: [&str; 3]) -> bool {
        let (steps, hosts) = (DeliveredSteps::new(None, steps, &RANKS), hosts.map(Some));
        let chosen = choose_cut(&steps, &hosts, &mut OwnClocks::default());
        is_late_behind(&chosen, &steps, &hosts)
    }

    const TRAINS: &str = "D1+2 B0+5 K+1 B1+1 O0+1 O1+1";

    #[test]
    fn a_rank_that_is_late_by_as_much_at_every_mark_is_late_behind_the_read_back() {
        let host = ["a"; 3];
        assert!(is_late(&job(79, TRAINS, 60), host));
        assert!(!is_late(&job(79, TRAINS, 2), host));
        // Its own clock may be ahead.
        assert!(!is_late(&job(79, TRAINS, 60), ["a", "a", "b"]));
        // A launch queue lets hosts be apart, by a step and more.
        assert!(!is_late(&job(79, TRAINS, 200), host));
        // Ranks that wait in their collective are together behind it, whatever all wait for elsewhere.
        let trains = |begins_ms: u64, waits_ms: u64| {
            format!("D0+{begins_ms} D1+2 B0+5 K+1 B1+{waits_ms} O0+1 O1+1 ")
        };
        let [waits, late] = [(79, 61), (139, 1)]
            .map(|(begins_ms, waits_ms)| trains(begins_ms, waits_ms).repeat(20));
        assert!(!is_late(&job_of([waits.clone(), waits, late]), host));
        assert!(!is_late(&job(1, "D1+2 B0+5 K+1 B1+79 O0+1 O1+1", 60), host));
        // Ranks that issue nothing wait for nobody.
        assert!(!is_late(&job(79, "D1+2 B0+5 B1+1 O0+1 O1+1", 60), host));
    }

    #[test]
    fn a_collective_may_be_issued_behind_the_read_back() {
        let metric = "D1+2 B0+5 K+1 B1+1 O0+1 O1+1 K:2+78";
        assert!(is_late(&job(1, metric, 60), ["a"; 3]));
    }

    #[test]
    fn ranks_that_meet_in_no_communicator_or_send_are_not_compared() {
        let with = |of_first: fn(u32) -> (CollectiveOp, u32)| {
            let mut steps = job(79, "D1+2 K:2+1 B0+5 K+1 B1+1 O0+1 O1+1", 60);
            for (rank, piece) in steps.iter_mut().flat_map(|step| &mut step.ranks) {
                let (op, group) = of_first(*rank);
                let mut segments = piece.segments.iter_mut();
                let is_issue = |it: &&mut Segment| matches!(it.ending, Ending::Issue { .. });
                segments.find(is_issue).unwrap().ending = Ending::Issue { op, group };
            }
            is_late(&steps, ["a"; 3])
        };
        assert!(with(|_| (CollectiveOp::ALLREDUCE, 1)));
        assert!(!with(|rank| (CollectiveOp::ALLREDUCE, rank / 2)));
        assert!(!with(|_| (CollectiveOp::SEND, 1)));
    }

    #[test]
    fn steps_begin_where_the_first_rank_of_a_host_leaves_the_read_back() {
        let steps = job(79, TRAINS, 60);
        let moved = moved(&steps, &RANKS, &[Some("a"); 3]);
        let takes_ms = |rank: u32, at: usize| {
            let piece = &moved[5].ranks[&rank];
            let segments = &piece.segments;
            let from = if at == 0 {
                piece.start
            } else {
                segments[at - 1].end
            };
            (segments[at].end.seconds_since(from) * 1e3).round()
        };
        let last = moved[5].ranks[&0].segments.len() - 1;
        assert_eq!([0, 1, 2].map(|rank| takes_ms(rank, 0)), [0.0, 0.0, 60.0]);
        assert_eq!(
            [0, 1, 2].map(|rank| takes_ms(rank, last)),
            [79.0, 79.0, 19.0]
        );
        // Nothing is lost: each begins where it ended.
        let ends = |at: usize, rank: u32| moved[at].ranks[&rank].segments.last().map(|it| it.end);
        assert!((0..3).all(|rank| ends(4, rank) == Some(moved[5].ranks[&rank].start)));
    }
}
