use model::PipelineHalt;
use std::collections::BTreeMap;

use crate::Axis;
use crate::iterations::RankMarker;
use crate::job::{LoggedJob, Observed, StageOfPipeline};
use crate::lanes::median_s;
use crate::passes::blocks;

/// A call is overdue once it is further from the usual than so many times the furthest that was
/// seen, beyond what clocks may differ. Ours: less may be where a log that was cut ends.
const SCATTERS: f64 = 3.0;

/// How far a rank came in the last iteration.
#[derive(Debug)]
struct RankPosition {
    at: usize,
    /// Blocks.
    done: usize,
    /// The begin of the iteration, and what it called since.
    times_ns: Vec<u64>,
}

/// How far all came, of the pipeline that stands still.
#[derive(Debug)]
struct HaltedPipeline {
    pipeline: usize,
    /// The only node that could go on.
    node: usize,
    /// The ranks of its stage.
    members: Vec<RankPosition>,
    /// When its input was sent.
    input_ns: u64,
}

/// What the analysis saw of iterations, by the marker that ends them.
type ObservedIterations = BTreeMap<usize, Vec<Vec<Option<Observed>>>>;

/// Finds the only block that is not finished although all it waits for is. Logs that merely end
/// have one on each stage that was at work, and none whose next call is overdue.
///
/// # Source
/// MegaTrace (2026), hang localisation; docs/math/schedule.md. Of the ranks of the stage the
/// one with the fewest calls is named. When a call is overdue is ours.
pub(crate) fn halt(job: &LoggedJob, seen: &ObservedIterations) -> Option<PipelineHalt> {
    let (_, graph) = job.schedule.as_ref()?;
    let marker = job.marks_ns.len().checked_sub(1)?;
    let (until_ns, latest) = (0..job.ranks.len())
        .map(|at| (job.last_call_ns(at), at))
        .max()?;
    let HaltedPipeline {
        pipeline,
        node,
        members,
        input_ns,
    } = standing(job, marker, until_ns)?;
    let (behind, ahead) = apart(&members);
    let least = behind.first()?.times_ns.len();
    let due_ns = ahead
        .iter()
        .filter_map(|rank| rank.times_ns.get(least))
        .max();
    let places: Vec<usize> = members.iter().map(|rank| rank.at).collect();
    let (stage, block) = graph.block(node);
    let mut halt = PipelineHalt {
        ranks: behind.iter().map(|rank| job.ranks[rank.at].rank).collect(),
        stage: stage as u32,
        block,
        iteration: job.iterations.numbers[marker] + 1,
        silent_s: f64::INFINITY,
        usual_s: 0.0,
        ahead_s: None,
        // Ranks that stopped at the same call cannot be told apart: none may be early.
        overdue: true,
    };
    for RankPosition { at, times_ns, .. } in behind {
        let silent_since_ns = times_ns.last().copied()?.max(input_ns);
        let silent_s = until_ns.saturating_sub(silent_since_ns) as f64 * 1e-9;
        let pauses_s: Vec<f64> = seen
            .iter()
            .filter_map(|(marker, blocks)| {
                let input_ns = blocks[pipeline][node]?.ready_ns;
                let of = RankMarker {
                    at: *at,
                    marker: *marker,
                };
                // The call that is due is the one behind the `least` that were made.
                pause_s(job, of, (least, input_ns))
            })
            .collect();
        let usual_s = median_s(pauses_s.iter().copied())?;
        let longest_s = pauses_s.into_iter().fold(0.0, f64::max);
        let clocks_s = job.clocks_differ_s(*at, latest);
        // From the longest on, not from the usual: the longest was healthy.
        let latest_s = longest_s + SCATTERS * (longest_s - usual_s);
        let mut overdue = silent_s > latest_s + clocks_s;
        if let Some(due_ns) = due_ns {
            let late_s = seen
                .keys()
                .filter_map(|marker| {
                    let of = RankMarker {
                        at: *at,
                        marker: *marker,
                    };
                    job.iterations.span_ns(of)
                })
                .map(|span| job.most_late_s(&places, *at, span))
                .fold(0.0, f64::max);
            let ahead_s = until_ns.saturating_sub(*due_ns) as f64 * 1e-9;
            // Ranks that were never seen apart never met.
            overdue |= late_s > 0.0 && ahead_s > late_s * (1.0 + SCATTERS) + clocks_s;
            halt.ahead_s = Some((ahead_s, late_s)).filter(|_| late_s > 0.0);
        }
        halt.overdue &= overdue;
        halt.silent_s = halt.silent_s.min(silent_s);
        halt.usual_s = halt.usual_s.max(usual_s);
    }
    Some(halt)
}

/// The ranks that came least far, all equally far, and the others.
fn apart(members: &[RankPosition]) -> (Vec<&RankPosition>, Vec<&RankPosition>) {
    // Blocks before calls: who has done fewer blocks is behind, whatever it has called in them.
    let came = |rank: &RankPosition| (rank.done, rank.times_ns.len());
    let least = members.iter().map(came).min();
    members.iter().partition(|rank| Some(came(rank)) == least)
}

/// Works out how far the ranks came after a marker; `None` unless a single block could go on.
fn standing(job: &LoggedJob, marker: usize, until_ns: u64) -> Option<HaltedPipeline> {
    let (_, graph) = job.schedule.as_ref()?;
    let mut found = None;
    for pipeline in 0..job.pipelines {
        // What no log shows counts as done: nobody is accused of it.
        let mut finished = vec![true; graph.nodes()];
        let mut ends_ns = vec![0; graph.nodes()];
        let mut stages = Vec::new();
        for stage in 0..job.layout.size(Axis::Pipeline) as usize {
            let mut members = Vec::new();
            for at in job.members(StageOfPipeline { pipeline, stage }) {
                // Nobody knows how far a rank without this marker came: then nobody is accused.
                let begin_ns = job.iterations.marks_ns[at][marker]?;
                // The very last call belongs to them, and the end of a span does not.
                let calls = job.calls(at, begin_ns, until_ns + 1);
                let seen = blocks(graph.plan(), stage, &calls)?;
                // A last block that sends nothing is done once anything follows it.
                let open = seen.last().is_some_and(|last| last.end_ns == calls.end_ns);
                let done = seen.len() - usize::from(open);
                graph
                    .nodes_of(stage)
                    .skip(done)
                    .for_each(|node| finished[node] = false);
                for (node, seen) in graph.nodes_of(stage).zip(&seen) {
                    // Of the ranks that share a stage the last one ends a block.
                    ends_ns[node] = seen.end_ns.max(ends_ns[node]);
                }
                members.push(RankPosition {
                    at,
                    done,
                    times_ns: calls.times_ns(),
                });
            }
            stages.push(members);
        }
        // Nothing of the next iteration has begun, or all of it is done.
        let begun = stages.iter().flatten().any(|rank| rank.times_ns.len() > 1);
        for node in graph.halts(&finished).into_iter().filter(|_| begun) {
            // Two that could go on: the logs end in the middle of work, nothing stands still.
            if found.is_some() {
                return None;
            }
            let members = std::mem::take(&mut stages[graph.block(node).0]);
            let [_, source] = graph.predecessors(node);
            let input_ns = source.map_or(0, |source| ends_ns[source]);
            found = Some(HaltedPipeline {
                pipeline,
                node,
                members,
                input_ns,
            });
        }
    }
    found
}

/// Seconds from a rank's call before this one in an iteration, or from when its input was there,
/// to it.
fn pause_s(job: &LoggedJob, of: RankMarker, (number, input_ns): (usize, u64)) -> Option<f64> {
    let span = job.iterations.span_ns(of);
    let (begin_ns, end_ns) = span.filter(|_| job.is_whole(of))?;
    let times_ns = job.calls(of.at, begin_ns, end_ns).times_ns();
    let before_ns = *times_ns.get(number.checked_sub(1)?)?;
    let next_ns = *times_ns.get(number).unwrap_or(&end_ns);
    Some(next_ns.saturating_sub(before_ns.max(input_ns)) as f64 * 1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_has_done_more_blocks_in_as_many_calls_is_not_behind() {
        let rank = |at, done, calls| RankPosition {
            at,
            done,
            times_ns: vec![0; calls],
        };
        let members = [rank(0, 3, 8), rank(1, 2, 8), rank(2, 2, 9), rank(3, 3, 7)];
        let (behind, ahead) = apart(&members);
        let places = |ranks: Vec<&RankPosition>| -> Vec<usize> {
            ranks.into_iter().map(|rank| rank.at).collect()
        };
        assert_eq!((places(behind), places(ahead)), (vec![1], vec![0, 2, 3]));
    }
}
