use std::collections::BTreeMap;

use crate::job::{Job, Observed};
use crate::passes::blocks;
use crate::{Axis, Block};

/// Seconds by which the next call of a rank must be overdue when the last rank falls silent.
/// Ours: less may be where a log that was cut ends.
const OVERDUE_S: f64 = 0.02;

/// Where a job stands still at the end of its logs.
#[derive(Clone, Debug, PartialEq)]
pub struct Halt {
    /// Who does not go on.
    pub ranks: Vec<u32>,
    /// The stage of the pipeline.
    pub stage: u32,
    /// The block it does not finish.
    pub block: Block,
    /// The iteration.
    pub iteration: u64,
    /// Seconds for which others went on after its last call.
    pub silent_s: f64,
    /// Seconds that usually pass between begin and end of the block.
    pub usual_s: f64,
    /// Whether it takes too long; otherwise the logs may merely end in the middle of work.
    pub overdue: bool,
}

/// Finds the only block that is not finished although all it waits for is. Logs that merely end
/// have one on each stage that was at work, and none whose end is overdue.
///
/// # Source
/// MegaTrace (2026), hang localisation; SPEC.md §3.7. Of the ranks of the stage the one with
/// the fewest calls is named, then the one that fell silent first.
pub(crate) fn halt(
    job: &Job,
    healthy: &BTreeMap<usize, Vec<Vec<Option<Observed>>>>,
) -> Option<Halt> {
    let (_, graph) = job.schedule.as_ref()?;
    let marker = job.marks_ns.len().checked_sub(1)?;
    let begins = |at: usize| job.iterations.marks_ns[at][marker];
    let stages = job.layout.size(Axis::Pipeline) as usize;
    let ends_ns: Vec<u64> = (0..job.ranks.len()).map(|at| job.last_call_ns(at)).collect();
    let until_ns = ends_ns.iter().copied().max()?;
    let mut found = None;
    for pipeline in 0..job.pipelines {
        let mut finished = vec![true; graph.nodes()];
        let mut silent = BTreeMap::new();
        for stage in 0..stages {
            let nodes = graph.nodes_of(stage);
            for at in job.members(pipeline, stage) {
                let calls = job.calls(at, begins(at)?, until_ns + 1);
                let done = blocks(graph.plan(), stage, &calls)?.len();
                nodes.clone().skip(done).for_each(|node| finished[node] = false);
                let progress =
                    (done, calls.points.len() + calls.layers.len(), ends_ns[at]);
                silent.entry(stage).or_insert_with(Vec::new).push((progress, at));
            }
        }
        // Nothing of the next iteration has begun, or all of it is done.
        let begun = silent.values().flatten().any(|((_, calls, _), _)| *calls > 0);
        let halts = if begun { graph.halts(&finished) } else { Vec::new() };
        for node in halts {
            if found.replace((pipeline, node, silent.clone())).is_some() {
                return None;
            }
        }
    }
    let (pipeline, node, silent) = found?;
    let (stage, block) = graph.block(node);
    let members = silent.get(&stage)?;
    let ((_, least, _), _) = members.iter().min()?;
    let behind = members.iter().filter(|((_, calls, _), _)| calls == least);
    let behind: Vec<_> = behind.collect();
    // Ranks that stopped at the same call cannot be told apart.
    let last_ns = behind.iter().map(|((.., end_ns), _)| *end_ns).min()?;
    let took_s = |blocks: &Vec<Vec<Option<Observed>>>| {
        let seen = blocks[pipeline][node]?;
        Some(seen.lead_s + seen.body_s)
    };
    let usual_s = crate::lanes::median_s(healthy.values().filter_map(took_s))?;
    let silent_s = until_ns.saturating_sub(last_ns) as f64 * 1e-9;
    let overdue = silent_s >= usual_s + OVERDUE_S;
    let ranks = behind.iter().map(|(_, at)| job.ranks[*at].rank).collect();
    let iteration = job.iterations.numbers[marker] + 1;
    let stage = stage as u32;
    Some(Halt { ranks, stage, block, iteration, silent_s, usual_s, overdue })
}
