//! The blocks of a schedule in the calls of one rank.

use std::collections::BTreeMap;

use model::{CollectiveOp, Pass, PipelineBlock};

use crate::lanes::LaneCall;
use crate::plan::StageOfAll;
use crate::{Plan, Scheme};

/// Schedules that are tried, most usual first. Calls do not tell zero bubble from 1F1B: weights
/// are nobody's message.
fn schemes() -> impl Iterator<Item = Scheme> {
    let interleaved = (2..=8).map(|chunks| Scheme::Interleaved { chunks });
    [Scheme::OneForwardOneBackward, Scheme::GPipe]
        .into_iter()
        .chain(interleaved)
}

/// Schedules that have as many sends as a rank of this stage was seen to issue.
pub(crate) fn plans(
    StageOfAll { stage, stages }: StageOfAll,
    sends: u32,
) -> impl Iterator<Item = (Scheme, Plan)> {
    schemes().filter_map(move |scheme| {
        let chunks = if let Scheme::Interleaved { chunks } = scheme {
            chunks
        } else {
            1
        };
        let at_end = stage == 0 || stage + 1 == stages;
        // Each chunk sends forward and backward, but into the ends of the pipeline.
        let each = if at_end { 2 * chunks - 1 } else { 2 * chunks };
        let microbatches = sends / each;
        let whole = microbatches > 0 && sends.is_multiple_of(each);
        // Interleaved microbatches go in groups of as many as there are stages.
        let grouped = chunks == 1 || microbatches.is_multiple_of(stages);
        (whole && grouped).then(|| (scheme, scheme.plan(stages, microbatches)))
    })
}

/// What one rank called in one iteration, in order of time.
#[derive(Debug)]
pub(crate) struct IterationCalls<'a> {
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
    /// Sends and receives.
    pub(crate) points: &'a [PointToPoint],
    /// Calls in which layers meet.
    pub(crate) layers: &'a [LaneCall],
    /// Times of all others.
    pub(crate) others_ns: &'a [u64],
}

impl IterationCalls<'_> {
    /// Its begin, and when it sent, received and met others in a layer, ascending.
    pub(crate) fn times_ns(&self) -> Vec<u64> {
        let mut times_ns: Vec<u64> = std::iter::once(self.begin_ns)
            .chain(self.points.iter().map(|point| point.at_ns))
            .chain(self.layers.iter().map(|call| call.at_ns))
            .collect();
        times_ns.sort_unstable();
        times_ns
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PointToPoint {
    pub(crate) at_ns: u64,
    pub(crate) sends: bool,
}

/// One block as one rank saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "all are times")]
pub(crate) struct SeenBlock {
    /// The end of what the rank did before.
    pub(crate) ready_ns: u64,
    /// First call of the block; none where layers do not meet.
    pub(crate) first_ns: Option<u64>,
    /// What closes it: a send, a receive, or the next block.
    pub(crate) end_ns: u64,
}

/// What stands between two blocks: the messages they exchange.
#[derive(Clone, Copy, Debug)]
struct Border {
    first_ns: u64,
    last_ns: u64,
}

/// Finds the blocks of a stage in the calls of one iteration, as far as they go.
///
/// # Shape
/// In order of execution. Fewer than the stage has if calls end before, none if the messages
/// are not those of the schedule.
pub(crate) fn blocks(
    plan: &Plan,
    stage: usize,
    calls: &IterationCalls<'_>,
) -> Option<Vec<SeenBlock>> {
    let order = plan.order(stage);
    let borders = borders(plan, stage, calls.points)?;
    let mut seen: Vec<SeenBlock> = Vec::with_capacity(order.len());
    let mut forward_calls = None;
    let mut at = 0;
    while at < order.len() && at < borders.len() {
        // Blocks without a message between them share what is called.
        let mut next = at + 1;
        while next < order.len() && borders.get(next).is_some_and(Option::is_none) {
            next += 1;
        }
        // Nothing closes the last block if it sends nothing: the calls that follow do.
        let closes = match borders.get(next) {
            Some(Some(border)) => Some(border.first_ns),
            Some(None) => None,
            None => break,
        };
        let before = at_border(&borders, at);
        let opens_ns = before.map_or(calls.begin_ns, |border| border.last_ns);
        let until_ns = closes.unwrap_or(calls.end_ns);
        let layers = between(calls.layers, opens_ns, until_ns);
        let first_layer_ns = layers.first().map(|call| call.at_ns);
        let end_ns = closes.unwrap_or_else(|| {
            let begun_ns = first_layer_ns.unwrap_or(opens_ns);
            after(calls.others_ns, begun_ns).unwrap_or(calls.end_ns)
        });
        let ready_ns = if let Some(before) = seen.last() {
            before.end_ns
        } else {
            // The first of an iteration: what the rank did before is outside the pipeline.
            let first_ns =
                before.map_or(first_layer_ns.unwrap_or(end_ns), |border| border.first_ns);
            let ready_ns = last_before(calls.others_ns, first_ns).unwrap_or(0);
            ready_ns.max(calls.begin_ns)
        };
        let layers = between(layers, opens_ns, end_ns);
        divide(
            &order[at..next],
            layers,
            forward_calls,
            (ready_ns, end_ns),
            &mut seen,
        );
        // A forward pass that stands alone says how many calls one has that shares them.
        if next == at + 1 && order[at].pass == Pass::Forward {
            forward_calls = Some(layers.len());
        }
        at = next;
    }
    Some(seen)
}

/// The longest time between the messages that a rank exchanges between two blocks of an
/// iteration.
pub(crate) fn apart_ns(plan: &Plan, stage: usize, points: &[PointToPoint]) -> Option<u64> {
    borders(plan, stage, points)?
        .into_iter()
        .flatten()
        .map(|border| border.last_ns - border.first_ns)
        .max()
}

fn at_border(borders: &[Option<Border>], at: usize) -> Option<Border> {
    borders.get(at).copied().flatten()
}

/// The messages before each block and after the last; `None` if they are not the schedule's.
/// As many as there are messages for.
fn borders(plan: &Plan, stage: usize, points: &[PointToPoint]) -> Option<Vec<Option<Border>>> {
    let order = plan.order(stage);
    let mut borders = Vec::with_capacity(order.len() + 1);
    let mut rest = points;
    for at in 0..=order.len() {
        let before = at.checked_sub(1).map(|before| order[before]);
        let sends = before.is_some_and(|block| plan.target(stage, block).is_some());
        let receives = order
            .get(at)
            .is_some_and(|block| plan.source(stage, *block).is_some());
        let expected = usize::from(sends) + usize::from(receives);
        let (taken, after) = rest.split_at(expected.min(rest.len()));
        let sent = taken.iter().filter(|point| point.sends).count();
        let is_whole = taken.len() == expected;
        // Of a border that is cut off at the end of the log not all need to be there.
        if sent > usize::from(sends) || (is_whole && sent != usize::from(sends)) {
            return None;
        }
        if !is_whole && taken.is_empty() {
            return Some(borders);
        }
        rest = after;
        borders.push(match taken {
            [] => None,
            [first, ..] => Some(Border {
                first_ns: first.at_ns,
                last_ns: taken[taken.len() - 1].at_ns,
            }),
        });
        if !is_whole {
            return Some(borders);
        }
    }
    rest.is_empty().then_some(borders)
}

/// Gives each of the blocks its part of the calls.
fn divide(
    blocks: &[PipelineBlock],
    layers: &[LaneCall],
    forward_calls: Option<usize>,
    (ready_ns, end_ns): (u64, u64),
    seen: &mut Vec<SeenBlock>,
) {
    let first_ns = layers.first().map(|call| call.at_ns);
    let cut = match blocks {
        [first, _] if layers.len() > 1 => match forward_calls {
            // The backward pass comes first here, so that the last calls are the forward pass's.
            Some(forwards) if first.pass == Pass::Backward && forwards < layers.len() => {
                layers.len() - forwards
            }
            _ => after_loss(layers),
        },
        // One, or nothing to tell several by: one long block, then nothing.
        _ => layers.len(),
    };
    let cut_ns = layers.get(cut).map_or(end_ns, |call| call.at_ns);
    seen.push(SeenBlock {
        ready_ns,
        first_ns,
        end_ns: cut_ns,
    });
    for _ in 1..blocks.len() {
        let first_ns = Some(cut_ns).filter(|_| !layers.is_empty());
        seen.push(SeenBlock {
            ready_ns: cut_ns,
            first_ns,
            end_ns,
        });
    }
}

/// Where the backward pass begins on the last stage: after the loss, whose calls are of a
/// kind that layers do not have; else after the longest pause.
fn after_loss(layers: &[LaneCall]) -> usize {
    let mut kinds: BTreeMap<(CollectiveOp, u64), usize> = BTreeMap::new();
    for call in layers {
        *kinds.entry((call.op, call.size)).or_default() += 1;
    }
    let is_rare: Vec<bool> = layers
        .iter()
        .map(|call| kinds[&(call.op, call.size)] * 4 <= layers.len())
        .collect();
    // What the pass begins with is rare as well.
    let begin = is_rare.iter().take_while(|rare| **rare).count();
    is_rare
        .iter()
        .rposition(|rare| *rare)
        .filter(|loss| *loss >= begin)
        .or_else(|| {
            layers
                .windows(2)
                .enumerate()
                .skip(begin)
                .max_by_key(|(_, pair)| pair[1].at_ns - pair[0].at_ns)
                .map(|(at, _)| at)
        })
        .map_or(layers.len(), |at| at + 1)
}

pub(crate) fn between(calls: &[LaneCall], from_ns: u64, until_ns: u64) -> &[LaneCall] {
    let begin = calls.partition_point(|call| call.at_ns < from_ns);
    let end = calls.partition_point(|call| call.at_ns < until_ns);
    &calls[begin..end.max(begin)]
}

fn after(times_ns: &[u64], at_ns: u64) -> Option<u64> {
    times_ns
        .get(times_ns.partition_point(|time_ns| *time_ns <= at_ns))
        .copied()
}

fn last_before(times_ns: &[u64], at_ns: u64) -> Option<u64> {
    let place = times_ns
        .partition_point(|time_ns| *time_ns < at_ns)
        .checked_sub(1)?;
    times_ns.get(place).copied()
}
