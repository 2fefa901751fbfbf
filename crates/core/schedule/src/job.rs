//! The logs of all ranks put together: who stands where, and which block took how long.

use std::collections::{BTreeMap, BTreeSet};

use crate::iterations::{Iterations, RankMarker, Wide, wide_lanes};
use crate::lanes::{LaneCalls, LaneKind, lanes_of, median};
use crate::lateness::{AlignedLanes, CallLateness, lateness};
use crate::passes::{IterationCalls, PointToPoint, SeenBlock, apart_ns, between, blocks, plans};
use crate::plan::StageOfAll;
use crate::shape::{PipelineEnd, layer_lane, layout};
use crate::{Axis, Gap, Graph, Layout, LayoutError, RankCalls, Scheme, Sizes};

/// Clocks of hosts that differ by more are set right by when ranks meet. Ours: what is late by
/// less is lateness, what is off by more for a whole run is a clock.
const CLOCK_OFFSET_NS: u64 = 20_000_000;
/// Iterations that schedules are tried on.
const TRIED: usize = 5;
/// The least message of a communicator that does more than let ranks meet. MegaTrace's analyser.
const PAYLOAD: u64 = 1024;
/// Axes whose ranks meet in each layer.
const LAYER_AXES: [Axis; 2] = [Axis::Tensor, Axis::Context];

/// What one rank's log says.
#[derive(Debug)]
pub(crate) struct RankView {
    pub(crate) rank: u32,
    pub(crate) lanes: Vec<LaneCalls>,
    /// The lane on which its layers meet.
    pub(crate) layers: Option<usize>,
    pub(crate) points: Vec<PointToPoint>,
    /// Times of calls that are neither.
    others_ns: Vec<u64>,
    pub(crate) gaps: Vec<Gap>,
    /// Which pipeline it works in, and on which stage.
    pub(crate) pipeline: usize,
    pub(crate) stage: usize,
}

/// A job as its call logs show it.
#[derive(Debug)]
pub(crate) struct LoggedJob {
    pub(crate) ranks: Vec<RankView>,
    pub(crate) layout: Layout,
    pub(crate) iterations: Iterations,
    /// Times of the markers on the reference rank.
    pub(crate) marks_ns: Vec<u64>,
    /// Communicators of all ranks.
    wide: Vec<Wide>,
    pub(crate) schedule: Option<(Scheme, Graph)>,
    pub(crate) pipelines: usize,
    /// Ranks whose clocks were set right.
    pub(crate) off_clocks: Vec<u32>,
}

/// A stage of one of the pipelines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StageOfPipeline {
    pub(crate) pipeline: usize,
    pub(crate) stage: usize,
}

/// One block as all ranks of its stage together saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed {
    pub(crate) ready_ns: u64,
    pub(crate) first_ns: u64,
    pub(crate) end_ns: u64,
    /// Seconds from when it could begin to its first call.
    pub(crate) lead_s: f64,
    /// Seconds from there to its end.
    pub(crate) body_s: f64,
}

impl LoggedJob {
    /// Puts the logs together; `None` if they have no iterations.
    pub(crate) fn new(
        mut logs: Vec<RankCalls>,
        sizes: &Sizes,
    ) -> Result<Option<Self>, LayoutError> {
        // A rank without a call has nothing to be put beside the others by: it counts as unseen.
        logs.retain(|log| !log.calls.is_empty());
        logs.sort_by_key(|log| log.rank);
        let Some(reference) = reference(&logs) else {
            return Ok(None);
        };
        let mut lanes: Vec<Vec<LaneCalls>> = logs.iter().map(lanes_of).collect();
        let mut wide = wide_lanes(&lanes, reference);
        let off_clocks = set_clocks(&mut logs, &wide, reference);
        if !off_clocks.is_empty() {
            // Both hold times of the clocks as they were.
            lanes = logs.iter().map(lanes_of).collect();
            wide = wide_lanes(&lanes, reference);
        }
        let mut ranks: Vec<RankView> = logs
            .iter()
            .zip(lanes)
            .enumerate()
            .map(|(at, (log, lanes))| {
                let wide: Vec<usize> = wide.values().map(|wide| wide[at].0).collect();
                view(log, lanes, &wide)
            })
            .collect();
        let work_ns: Vec<u64> = ranks[reference]
            .points
            .iter()
            .map(|point| point.at_ns)
            .collect();
        // `find` takes lanes without their ranks: lent for the call instead of copied.
        let lanes: Vec<Vec<LaneCalls>> = ranks
            .iter_mut()
            .map(|rank| std::mem::take(&mut rank.lanes))
            .collect();
        let iterations = Iterations::find(&lanes, reference, &wide, &work_ns);
        for (rank, lanes) in ranks.iter_mut().zip(lanes) {
            rank.lanes = lanes;
        }
        let Some(iterations) = iterations else {
            return Ok(None);
        };
        let layout = shape(&ranks, &iterations, sizes)?;
        let mut firsts = BTreeMap::new();
        for rank in &mut ranks {
            // Ranks that differ on these alone work on the same microbatches: they are one
            // pipeline.
            let axes = [Axis::Tensor, Axis::Context, Axis::Pipeline];
            let next = firsts.len();
            let first = layout.first_of_group(rank.rank, &axes);
            rank.pipeline = *firsts.entry(first).or_insert(next);
            rank.stage = layout.coordinate(rank.rank, Axis::Pipeline) as usize;
        }
        let marks_ns = iterations.marks_ns[reference]
            .iter()
            .copied()
            .flatten()
            .collect();
        let mut job = Self {
            marks_ns,
            pipelines: firsts.len(),
            ranks,
            layout,
            iterations,
            wide: wide.into_values().collect(),
            schedule: None,
            off_clocks,
        };
        job.schedule = job.find_schedule();
        Ok(Some(job))
    }

    /// Whether nothing of an iteration is missing in a rank's log.
    pub(crate) fn is_whole(&self, of: RankMarker) -> bool {
        self.iterations.span_ns(of).is_some_and(|(begin, end)| {
            let gaps = &self.ranks[of.at].gaps;
            !gaps
                .iter()
                .any(|gap| gap.from_ns < end && gap.until_ns > begin)
        })
    }

    /// What a rank called between two times.
    pub(crate) fn calls(&self, at: usize, begin_ns: u64, end_ns: u64) -> IterationCalls<'_> {
        let rank = &self.ranks[at];
        let points = {
            let begin = rank.points.partition_point(|point| point.at_ns < begin_ns);
            let end = rank.points.partition_point(|point| point.at_ns < end_ns);
            &rank.points[begin..end.max(begin)]
        };
        let layers = rank.layers.map_or(&[][..], |lane| &rank.lanes[lane].calls);
        let layers = between(layers, begin_ns, end_ns);
        IterationCalls {
            begin_ns,
            end_ns,
            points,
            layers,
            others_ns: &rank.others_ns,
        }
    }

    fn blocks(&self, graph: &Graph, of: RankMarker) -> Option<Vec<SeenBlock>> {
        let (begin_ns, end_ns) = self.iterations.span_ns(of).filter(|_| self.is_whole(of))?;
        let stage = self.ranks[of.at].stage;
        let seen = blocks(graph.plan(), stage, &self.calls(of.at, begin_ns, end_ns))?;
        // Fewer were seen where the log ends within the iteration.
        (seen.len() == graph.plan().order(stage).len()).then_some(seen)
    }

    /// The schedule that explains what most ranks send and receive.
    fn find_schedule(&self) -> Option<(Scheme, Graph)> {
        let stages = self.layout.size(Axis::Pipeline);
        let markers = self.marks_ns.len();
        let tried: Vec<RankMarker> = (0..self.ranks.len())
            .flat_map(|at| {
                (0..markers)
                    .rev()
                    .map(move |marker| RankMarker { at, marker })
                    .filter(|of| self.is_whole(*of))
                    .take(TRIED)
            })
            .collect();
        // How many messages an iteration has is read off one of the middle: all have as many.
        let middle = *tried.get(tried.len() / 2)?;
        let (begin_ns, end_ns) = self.iterations.span_ns(middle)?;
        let points = self.calls(middle.at, begin_ns, end_ns).points.iter();
        let sends = points.filter(|point| point.sends).count() as u32;
        if stages < 2 {
            return None;
        }
        let mut best: Option<(usize, Scheme, Graph)> = None;
        let stage = self.ranks[middle.at].stage as u32;
        for (scheme, plan) in plans(StageOfAll { stage, stages }, sends) {
            let Ok(graph) = Graph::new(plan) else {
                continue;
            };
            let fits = tried
                .iter()
                .filter(|of| self.blocks(&graph, **of).is_some() && self.exchanges(&graph, **of))
                .count();
            // The first of the best: the most usual.
            if best.as_ref().is_none_or(|(most, ..)| fits > *most) {
                best = Some((fits, scheme, graph));
            }
        }
        let (fits, scheme, graph) = best?;
        // Most, not all: one odd iteration must not hide the schedule.
        (fits * 2 > tried.len()).then_some((scheme, graph))
    }

    /// Whether a rank sends and receives together where a schedule says that it does. No longer
    /// apart than half a block: GPipe of two microbatches has the messages of 1F1B.
    fn exchanges(&self, graph: &Graph, of: RankMarker) -> bool {
        let Some((begin_ns, end_ns)) = self.iterations.span_ns(of) else {
            return false;
        };
        let stage = self.ranks[of.at].stage;
        let points = self.calls(of.at, begin_ns, end_ns).points;
        let apart_ns = apart_ns(graph.plan(), stage, points);
        let blocks = graph.plan().order(stage).len() as u64;
        apart_ns.is_some_and(|apart_ns| apart_ns * 2 * blocks < end_ns - begin_ns)
    }

    /// What the blocks of all pipelines took in an iteration.
    ///
    /// # Shape
    /// `[pipeline][node]`; `None` for what no rank saw whole.
    pub(crate) fn observe(&self, marker: usize) -> Vec<Vec<Option<Observed>>> {
        let Some((_, graph)) = &self.schedule else {
            return vec![Vec::new(); self.pipelines];
        };
        let mut seen: Vec<Vec<Option<SeenBlock>>> = vec![vec![None; graph.nodes()]; self.pipelines];
        for (at, rank) in self.ranks.iter().enumerate() {
            let Some(blocks) = self.blocks(graph, RankMarker { at, marker }) else {
                continue;
            };
            let nodes = graph.nodes_of(rank.stage);
            for (node, block) in nodes.zip(blocks) {
                let last = seen[rank.pipeline][node].get_or_insert(block);
                // The others wait for the last of the ranks that share the stage.
                last.ready_ns = last.ready_ns.max(block.ready_ns);
                last.first_ns = last.first_ns.max(block.first_ns);
                last.end_ns = last.end_ns.max(block.end_ns);
            }
        }
        seen.iter()
            .map(|seen| {
                (0..graph.nodes())
                    .map(|node| observed(graph, seen, node))
                    .collect()
            })
            .collect()
    }

    /// How late each rank was where all meet, by iteration.
    pub(crate) fn wide_lateness(&self) -> Vec<CallLateness> {
        let mut sums = vec![CallLateness::default(); self.marks_ns.len() + 1];
        for wide in &self.wide {
            // Keys are counted from the first member's, fits from the reference's.
            let first = wide.first().map_or(0, |(_, fit)| fit.shift);
            let members: AlignedLanes<'_> = wide
                .iter()
                .zip(&self.ranks)
                .map(|((lane, fit), rank)| (&rank.lanes[*lane], fit.shift - first))
                .collect();
            for (sum, found) in sums.iter_mut().zip(lateness(&members, &self.marks_ns)) {
                sum.add(&found);
            }
        }
        sums
    }

    /// How late ranks were where the copies of their stage meet, as they do for gradients: each
    /// group's ranks, by place, and their lateness by iteration.
    pub(crate) fn copies_lateness(&self) -> Vec<(Vec<usize>, Vec<CallLateness>)> {
        let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, rank) in self.ranks.iter().enumerate() {
            let first = self.layout.first_of_group(rank.rank, &[Axis::Data]);
            groups.entry(first).or_default().push(at);
        }
        groups.retain(|_, members| members.len() > 1);
        let mut found = Vec::new();
        for members in groups.into_values() {
            for lane in self.copy_lanes(members[0]) {
                if let Some(lateness) = self.copy_lane_lateness(&members, lane) {
                    found.push((members.clone(), lateness));
                }
            }
        }
        found
    }

    /// How late the copies of a stage were on a communicator of the first of them. `None` if one of
    /// the others has none that fits.
    fn copy_lane_lateness(&self, members: &[usize], lane: &LaneCalls) -> Option<Vec<CallLateness>> {
        let mut lanes: AlignedLanes<'_> = vec![(lane, 0)];
        for at in &members[1..] {
            // Pointers mean nothing in another process: calls and their times tell which it is.
            let nearest = self
                .copy_lanes(*at)
                .filter_map(|other| Some((lane.fit(other)?, other)))
                .min_by_key(|(fit, _)| fit.distance_ns());
            lanes.push(nearest.map(|(fit, other)| (other, fit.shift))?);
        }
        Some(lateness(&lanes, &self.marks_ns))
    }

    /// Communicators of a rank that may be those of the copies of its stage.
    fn copy_lanes(&self, at: usize) -> impl Iterator<Item = &LaneCalls> {
        let rank = &self.ranks[at];
        rank.lanes
            .iter()
            .enumerate()
            .filter(move |(place, lane)| {
                lane.kind == LaneKind::Collective
                    && Some(*place) != rank.layers
                    && !self.wide.iter().any(|wide| wide[at].0 == *place)
                    && lane.calls.iter().any(|call| call.size >= PAYLOAD)
            })
            .map(|(_, lane)| lane)
    }

    /// How late the ranks that share a stage were where its layers meet, by iteration, in the
    /// order of [`LoggedJob::members`].
    pub(crate) fn layer_lateness(&self, members: &[usize]) -> Vec<CallLateness> {
        lateness(&self.layer_members(members), &self.marks_ns)
    }

    /// The communicator of a stage's layers on each of its ranks; none unless all have it.
    fn layer_members(&self, members: &[usize]) -> AlignedLanes<'_> {
        let lanes: Option<Vec<&LaneCalls>> = members
            .iter()
            .map(|at| {
                let rank = &self.ranks[*at];
                rank.layers.map(|lane| &rank.lanes[lane])
            })
            .collect();
        let lanes = lanes.unwrap_or_default();
        let Some(first) = lanes.first().copied() else {
            return Vec::new();
        };
        lanes
            .iter()
            .map(|lane| Some((*lane, first.fit(lane)?.shift)))
            .collect::<Option<_>>()
            .unwrap_or_default()
    }

    /// How much later than all others that share its stage a rank entered one of its layers'
    /// calls in a stretch of time, at most, in seconds.
    pub(crate) fn most_late_s(&self, members: &[usize], who: usize, span: (u64, u64)) -> f64 {
        let lanes = self.layer_members(members);
        let Some(own) = members.iter().position(|at| *at == who) else {
            return 0.0;
        };
        let Some((lane, own_shift)) = lanes.get(own) else {
            return 0.0;
        };
        let mut most_ns = 0;
        for call in between(&lane.calls, span.0, span.1) {
            let there_ns = lanes
                .iter()
                .enumerate()
                .filter(|(member, _)| *member != own)
                .filter_map(|(_, (other, shift))| {
                    // Shifts are counted from the first member's keys, this call's key is the
                    // rank's own.
                    let key = call.key.checked_add_signed(shift - own_shift)?;
                    Some(other.calls[other.place(key)?].at_ns)
                })
                .max();
            // A call that no other log has says nothing of lateness.
            if let Some(there_ns) = there_ns {
                most_ns = most_ns.max(call.at_ns.saturating_sub(there_ns));
            }
        }
        most_ns as f64 * 1e-9
    }

    /// How far apart two ranks' clocks and habits may be, in seconds: as far as their calls are
    /// where all ranks meet.
    pub(crate) fn clocks_differ_s(&self, one: usize, other: usize) -> f64 {
        let differ_ns = self.wide.iter().map(|wide| {
            let [one, other] = [wide[one].1, wide[other].1];
            one.offset_ns.abs_diff(other.offset_ns) + one.spread_ns + other.spread_ns
        });
        // Each communicator gives a bound, and the tightest holds as well.
        differ_ns.min().unwrap_or(0) as f64 * 1e-9
    }

    /// The last thing a rank called.
    pub(crate) fn last_call_ns(&self, at: usize) -> u64 {
        let lanes = self.ranks[at].lanes.iter().flat_map(|lane| &lane.calls);
        lanes.map(|call| call.at_ns).max().unwrap_or(0)
    }

    /// Places of the ranks that share a stage of a pipeline.
    pub(crate) fn members(&self, of: StageOfPipeline) -> Vec<usize> {
        self.ranks
            .iter()
            .enumerate()
            .filter(|(_, rank)| (rank.pipeline, rank.stage) == (of.pipeline, of.stage))
            .map(|(at, _)| at)
            .collect()
    }

    /// Ranks that share a stage with this one, whether they have a log or not.
    pub(crate) fn sharers(&self, rank: u32) -> Vec<u32> {
        let group = self.layout.first_of_group(rank, &LAYER_AXES);
        (0..self.layout.ranks())
            .filter(|other| self.layout.first_of_group(*other, &LAYER_AXES) == group)
            .collect()
    }

    /// Ranks without a log.
    pub(crate) fn unseen(&self) -> Vec<u32> {
        let seen: BTreeSet<u32> = self.ranks.iter().map(|rank| rank.rank).collect();
        (0..self.layout.ranks())
            .filter(|rank| !seen.contains(rank))
            .collect()
    }
}

fn observed(graph: &Graph, seen: &[Option<SeenBlock>], node: usize) -> Option<Observed> {
    let SeenBlock {
        ready_ns: own_ready_ns,
        first_ns,
        end_ns,
    } = seen[node]?;
    let (stage, block) = graph.block(node);
    let source_ns = if graph.plan().source(stage, block).is_some() {
        let [_, source] = graph.predecessors(node);
        source
            .and_then(|source| seen[source])
            .map(|source| source.end_ns)
    } else {
        // What its own stage hands over is there as soon as the rank is.
        Some(own_ready_ns)
    };
    let ready_ns = match (source_ns, first_ns) {
        (Some(input_ns), first_ns) => {
            // Hosts' clocks differ a little: input is not there later than the block begins, nor
            // sooner than its rank is ready.
            let latest_ns = first_ns.unwrap_or(end_ns);
            own_ready_ns.max(input_ns).min(latest_ns).max(own_ready_ns)
        }
        // Who handed the input over was not seen: what came before the first call may be a
        // wait.
        (None, Some(first_ns)) => first_ns,
        (None, None) => return None,
    };
    let first_ns = first_ns.unwrap_or(ready_ns).max(ready_ns);
    let [lead_s, body_s] = [(ready_ns, first_ns), (first_ns, end_ns)]
        .map(|(from_ns, until_ns)| until_ns.saturating_sub(from_ns) as f64 * 1e-9);
    Some(Observed {
        ready_ns,
        first_ns,
        end_ns,
        lead_s,
        body_s,
    })
}

/// The rank that the others are compared with: one of the longer logs, with the fewest losses.
fn reference(logs: &[RankCalls]) -> Option<usize> {
    let longest = logs.iter().map(|log| log.calls.len()).max()?;
    (0..logs.len())
        // A log of a few calls has lost nothing, and shows next to nothing of the run.
        .filter(|at| logs[*at].calls.len() * 2 >= longest)
        .min_by_key(|at| {
            logs[*at]
                .gaps()
                .iter()
                .fold(0, |sum: u64, gap| sum.saturating_add(gap.lost))
        })
}

/// Sets clocks right that differ for the whole of the run; the ranks they are of. The ranks of a
/// host have one clock, and ranks whose host is not known one each.
fn set_clocks(logs: &mut [RankCalls], wide: &BTreeMap<usize, Wide>, reference: usize) -> Vec<u32> {
    let clocks: Vec<Option<i64>> = logs
        .iter()
        .map(|log| {
            // The reference's clock is the one that the others are set to.
            if share_clock(log, &logs[reference]) {
                return None;
            }
            // One rank's habit of being late is not its host's clock: the median of the host is.
            let mut offsets: Vec<i64> = (0..logs.len())
                .filter(|at| share_clock(log, &logs[*at]))
                .flat_map(|at| wide.values().map(move |wide| wide[at].1.offset_ns))
                .collect();
            median(&mut offsets)
        })
        .collect();
    let mut off = Vec::new();
    for (log, offset_ns) in logs.iter_mut().zip(clocks) {
        let Some(offset_ns) = offset_ns else { continue };
        if offset_ns.unsigned_abs() > CLOCK_OFFSET_NS {
            for call in &mut log.calls {
                call.at_ns = call.at_ns.saturating_add_signed(-offset_ns);
            }
            off.push(log.rank);
        }
    }
    off
}

fn share_clock(one: &RankCalls, other: &RankCalls) -> bool {
    one.rank == other.rank || one.host.is_some() && one.host == other.host
}

fn view(log: &RankCalls, lanes: Vec<LaneCalls>, wide: &[usize]) -> RankView {
    let layers = layer_lane(&lanes, wide);
    let mut points = Vec::new();
    let mut others_ns = Vec::new();
    for call in &log.calls {
        let (at_ns, lane) = (call.at_ns, call.lane as usize);
        if call.op.is_point_to_point() {
            let sends = call.op == model::CollectiveOp::SEND;
            points.push(PointToPoint { at_ns, sends });
        } else if Some(lane) != layers && lanes[lane].kind != LaneKind::Point {
            others_ns.push(at_ns);
        }
    }
    RankView {
        rank: log.rank,
        lanes,
        layers,
        points,
        others_ns,
        gaps: log.gaps(),
        pipeline: 0,
        stage: 0,
    }
}

/// The layout, from what was given and what ranks do at the begin of iterations.
fn shape(
    ranks: &[RankView],
    iterations: &Iterations,
    sizes: &Sizes,
) -> Result<Layout, LayoutError> {
    let given: Vec<u32> = sizes.given.iter().map(|(_, size)| *size).collect();
    let all_given = given.len() == Axis::ALL.len();
    let seen = ranks.iter().map(|rank| rank.rank + 1).max().unwrap_or(1);
    let world = if all_given {
        given.iter().product()
    } else {
        seen
    };
    // Sizes given for fewer ranks than have logs are for `layout` to refuse.
    let mut ends = vec![None; world.max(seen) as usize];
    let mut layers = vec![None; ends.len()];
    for (at, rank) in ranks.iter().enumerate() {
        // A majority of iterations decides: a record may be missing in some.
        let (mut sends, mut receives) = (0, 0);
        for marker in 1..iterations.numbers.len() {
            let Some((begin_ns, end_ns)) = iterations.span_ns(RankMarker { at, marker }) else {
                continue;
            };
            let first = rank.points.partition_point(|point| point.at_ns < begin_ns);
            match rank.points.get(first).filter(|point| point.at_ns < end_ns) {
                Some(point) if point.sends => sends += 1,
                Some(_) => receives += 1,
                None => {}
            }
        }
        let place = rank.rank as usize;
        if sends + receives > 0 {
            ends[place] = Some(if sends > receives {
                PipelineEnd::First
            } else {
                PipelineEnd::Other
            });
        }
        layers[place] = rank.layers.map(|lane| &rank.lanes[lane]);
    }
    layout(sizes, &ends, &layers)
}
