//! From aligned steps to the matrix of a window.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{
    Block, Boundary, Closure, Cut, DeviceEvents, Ending, Growth, MarkKind, Meeting, RankNs,
    RankStep, Segment, StageId, Sync, Window,
};

use crate::align::JobStep;
use crate::meeting::{ChosenCut, choose_cut};

/// Share of steps that use batches of an earlier step from which data waits are not trusted:
/// bursts of two batches halve the steps that wait.
const BURST_SHARE: f64 = 0.2;

/// One rank's part of a row.
#[derive(Clone, Copy)]
pub(crate) struct RankRow<'steps> {
    start: RankNs,
    /// Segments that lie in the step before.
    carried: &'steps [Segment],
    segments: &'steps [Segment],
}

/// Whether segments count that end as a collective is issued; else they are part of the next.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Issues {
    Kept,
    Ignored,
}

impl Issues {
    fn counts(self, segment: &Segment) -> bool {
        self == Self::Kept || matches!(segment.ending, Ending::Mark(_))
    }
}

impl<'steps> RankRow<'steps> {
    fn segments(self, issues: Issues) -> impl Iterator<Item = &'steps Segment> {
        self.carried
            .iter()
            .chain(self.segments)
            .filter(move |segment| issues.counts(segment))
    }

    /// The segments with their seconds.
    pub(crate) fn cells(self, issues: Issues) -> impl Iterator<Item = (&'steps Segment, f64)> {
        let mut from = self.start;
        self.segments(issues).map(move |segment| {
            let seconds = segment.end.seconds_since(from);
            from = segment.end;
            (segment, seconds)
        })
    }

    /// What all ranks of a row must agree on.
    fn boundaries(self, issues: Issues) -> impl Iterator<Item = Boundary> + use<'steps> {
        self.segments(issues).map(boundary)
    }
}

/// Builds one window for each group of comparable ranks.
pub(crate) fn build_windows(
    previous: Option<&JobStep>,
    steps: &[JobStep],
    roles: &BTreeMap<u32, Option<&str>>,
    world_size: usize,
    published_cut: bool,
) -> Vec<Window> {
    let unseen_ranks = world_size.saturating_sub(roles.len());
    let mut groups: BTreeMap<Option<&str>, Vec<u32>> = BTreeMap::new();
    for (rank, role) in roles {
        groups.entry(*role).or_default().push(*rank);
    }
    groups
        .into_values()
        .filter_map(|ranks| {
            let group_share = ranks.len() as f64 / roles.len() as f64;
            let window = build(previous, steps, &ranks, published_cut)?;
            Some(Window {
                unseen_ranks,
                group_share,
                ..window
            })
        })
        .collect()
}

fn build(
    previous: Option<&JobStep>,
    steps: &[JobStep],
    expected: &[u32],
    published_cut: bool,
) -> Option<Window> {
    let mut delivered = vec![0; expected.len()];
    for step in steps {
        for (delivered, piece) in delivered.iter_mut().zip(pieces(step, expected)) {
            *delivered += usize::from(piece.is_some());
        }
    }
    let (mut ranks, mut missing_ranks) = (Vec::new(), Vec::new());
    for (rank, delivered) in expected.iter().zip(delivered) {
        // A row needs all ranks of its window: one that is mostly missing would cost most rows.
        let is_there = delivered * 2 > steps.len();
        if is_there {
            &mut ranks
        } else {
            &mut missing_ranks
        }
        .push(*rank);
    }
    let chosen = if published_cut {
        ChosenCut::unmeasured(Cut::Data)
    } else {
        choose_cut(previous, steps, &ranks)
    };
    let window = build_cut(previous, steps, &ranks, chosen.cut)?;
    Some(Window {
        meeting: chosen.meeting,
        runs_ahead: chosen.runs_ahead,
        waits: chosen.waits,
        missing_ranks,
        ..window
    })
}

/// The window of ranks that delivered most of its steps, cut in one place.
pub(crate) fn build_cut(
    previous: Option<&JobStep>,
    steps: &[JobStep],
    ranks: &[u32],
    cut: Cut,
) -> Option<Window> {
    let first_step = steps.first()?.step;
    let mut window = Window {
        first_step: u64::from(first_step),
        steps: steps.iter().filter(|step| step.is_trained()).count() as u64,
        ranks: ranks.to_vec(),
        missing_ranks: Vec::new(),
        unseen_ranks: 0,
        incomplete_steps: 0,
        blocks: Vec::new(),
        cut,
        meeting: Meeting::default(),
        runs_ahead: false,
        waits: Growth::default(),
        closure: Closure::default(),
        device: device_events(steps, ranks),
        odd_accumulation_steps: odd_accumulation_steps(steps),
        accumulation_collapsed: false,
        roles: 1,
        group_share: 1.0,
        mismatched_steps: 0,
        unsafe_prefetch: batches_come_in_bursts(steps),
    };
    let mut blocks = WindowBlocks::default();
    let mut role_votes = 0;
    let mut shapes = BTreeSet::new();
    for (index, step) in steps.iter().enumerate() {
        let before = index.checked_sub(1).map_or(previous, |at| steps.get(at));
        let rows = rank_rows(before, step, &window.ranks, cut);
        let Some(rows) = rows.filter(|rows| !rows.is_empty()) else {
            window.incomplete_steps += 1;
            continue;
        };
        match agree(&rows) {
            Agreement::Whole => blocks.add(u64::from(step.step), &rows, Issues::Kept),
            Agreement::WithoutIssues => {
                window.mismatched_steps += 1;
                blocks.add(u64::from(step.step), &rows, Issues::Ignored);
            }
            Agreement::None => {
                role_votes += 1;
                // As text, because boundaries have no order: how many kinds of ranks there are is all that counts.
                shapes.extend(rows.iter().map(|row| {
                    format!("{:?}", row.boundaries(Issues::Ignored).collect::<Vec<_>>())
                }));
                blocks.add_by_stage(u64::from(step.step), &rows);
            }
        }
    }
    if role_votes * 2 > steps.len() {
        // Shapes of many steps add up, and there are no more roles than ranks.
        window.roles = shapes.len().min(window.ranks.len());
    }
    // Steps at the very edge of what was recorded are not a hole in the telemetry.
    if previous.is_none() && cut != Cut::Data {
        window.incomplete_steps = window.incomplete_steps.saturating_sub(1);
    }
    if steps
        .last()
        .is_some_and(|step| step.ranks.values().any(|rank| !rank.complete))
    {
        window.incomplete_steps = window.incomplete_steps.saturating_sub(1);
    }
    window.blocks = blocks.0;
    let overlap_s = steps
        .iter()
        .flat_map(|step| step.ranks.values())
        .map(|rank| rank.overlap_s);
    window.closure = closure(&window, overlap_s.sum());
    Some(window)
}

/// What each of some ranks delivered of a step; they ascend.
fn pieces<'steps>(
    step: &'steps JobStep,
    ranks: &[u32],
) -> impl Iterator<Item = Option<&'steps RankStep>> {
    // Ranks may be many: they are walked beside each other, not looked up.
    let mut delivered = step.ranks.iter().peekable();
    ranks.iter().map(move |rank| {
        while delivered.next_if(|(other, _)| *other < rank).is_some() {}
        delivered
            .next_if(|(other, _)| *other == rank)
            .map(|(_, piece)| piece)
    })
}

/// Whether all ranks went through the same boundaries of a step from its begin to its end: then
/// they have the same between any two cuts, too.
pub(crate) fn went_alike(step: &JobStep, ranks: &[u32]) -> bool {
    rank_rows(None, step, ranks, Cut::Data).is_some_and(|rows| are_same(&rows, Issues::Kept))
}

/// The segments of each rank between two cuts, `None` if one did not deliver them.
pub(crate) fn rank_rows<'steps>(
    before: Option<&'steps JobStep>,
    step: &'steps JobStep,
    ranks: &[u32],
    cut: Cut,
) -> Option<Vec<RankRow<'steps>>> {
    let Cut::After(kind) = cut else {
        return pieces(step, ranks)
            .map(|piece| {
                let RankStep {
                    start, segments, ..
                } = piece.filter(|piece| piece.complete)?;
                Some(RankRow {
                    start: *start,
                    carried: &[],
                    segments,
                })
            })
            .collect();
    };
    // Behind such a cut a row begins in the step before: without that it has no begin.
    let before = before.filter(|before| before.step + 1 == step.step)?;
    pieces(before, ranks)
        .zip(pieces(step, ranks))
        .map(|(before, piece)| {
            let (before, piece) = (before.filter(|before| before.complete)?, piece?);
            let (ended, carried) = before.segments.split_at(last_end(before, kind)? + 1);
            // The step itself need not be whole: what follows the cut is the next row's.
            let segments = &piece.segments[..=last_end(piece, kind)?];
            Some(RankRow {
                start: ended.last()?.end,
                carried,
                segments,
            })
        })
        .collect()
}

/// The last segment that ends with a mark of this kind.
fn last_end(piece: &RankStep, kind: MarkKind) -> Option<usize> {
    piece
        .segments
        .iter()
        .rposition(|segment| segment.ending == Ending::Mark(kind))
}

pub(crate) enum Agreement {
    Whole,
    WithoutIssues,
    None,
}

pub(crate) fn agree(rows: &[RankRow<'_>]) -> Agreement {
    if are_same(rows, Issues::Kept) {
        Agreement::Whole
    } else if are_same(rows, Issues::Ignored) {
        Agreement::WithoutIssues
    } else {
        Agreement::None
    }
}

fn are_same(rows: &[RankRow<'_>], issues: Issues) -> bool {
    let Some(first) = rows.first() else {
        return true;
    };
    // Kept, instead of worked out anew beside each of many ranks.
    let first: Vec<Boundary> = first.boundaries(issues).collect();
    rows.iter()
        .all(|row| row.boundaries(issues).eq(first.iter().cloned()))
}

/// Blocks of a window under construction.
#[derive(Default)]
struct WindowBlocks(Vec<Block>);

impl WindowBlocks {
    /// Adds a row of ranks that went through the same segments.
    fn add(&mut self, step: u64, rows: &[RankRow<'_>], issues: Issues) {
        let Some(first) = rows.first() else { return };
        let boundaries: Vec<Boundary> = first.boundaries(issues).collect();
        let first_groups: Vec<u32> = first.segments(issues).map(issue_group).collect();
        // Ranks may issue the same collective in groups of their own; kept only where they do.
        let mut shared = true;
        let mut values = vec![0.0; boundaries.len() * rows.len()];
        for (column, row) in rows.iter().enumerate() {
            // `[segment][rank]`: ranks are compared segment by segment, so these lie side by side.
            let places = values[column..].iter_mut().step_by(rows.len());
            for ((place, (segment, seconds)), group) in
                places.zip(row.cells(issues)).zip(&first_groups)
            {
                *place = seconds;
                shared &= issue_group(segment) == *group;
            }
        }
        let groups = (!shared).then(|| {
            let mut groups = vec![0; values.len()];
            for (column, row) in rows.iter().enumerate() {
                let places = groups[column..].iter_mut().step_by(rows.len());
                for (place, segment) in places.zip(row.segments(issues)) {
                    *place = issue_group(segment);
                }
            }
            groups
        });
        let carried = first
            .carried
            .iter()
            .filter(|segment| issues.counts(segment));
        self.push(step, boundaries, groups, values, carried.count());
    }

    /// Adds a row of ranks that went through different segments: sums by stage, in the
    /// order of the rank with the fewest segments.
    fn add_by_stage(&mut self, step: u64, rows: &[RankRow<'_>]) {
        let Some(plainest) = rows
            .iter()
            .min_by_key(|row| row.carried.len() + row.segments.len())
        else {
            return;
        };
        let mut order: Vec<&Segment> = Vec::new();
        for segment in [plainest]
            .into_iter()
            .chain(rows)
            .flat_map(|row| row.segments(Issues::Kept))
        {
            if !order.iter().any(|known| known.stage == segment.stage) {
                order.push(segment);
            }
        }
        // Stages only some ranks have go first: what follows the cut is theirs alone.
        let plain: BTreeSet<StageId> = plainest
            .segments(Issues::Kept)
            .map(|segment| segment.stage)
            .collect();
        order.sort_by_key(|segment| plain.contains(&segment.stage));
        let boundaries = order
            .iter()
            .map(|s| Boundary {
                sync: Sync::None,
                ..boundary(s)
            })
            .collect();
        let mut values = Vec::with_capacity(order.len() * rows.len());
        for known in &order {
            for row in rows {
                values.push(
                    row.cells(Issues::Kept)
                        .filter(|(segment, _)| segment.stage == known.stage)
                        .map(|(_, seconds)| seconds)
                        .sum(),
                );
            }
        }
        // What lies in the step before cannot be told any more.
        self.push(step, boundaries, None, values, 0);
    }

    fn push(
        &mut self,
        step: u64,
        boundaries: Vec<Boundary>,
        groups: Option<Vec<u32>>,
        values: Vec<f64>,
        carried: usize,
    ) {
        let ranks = values.len() / boundaries.len().max(1);
        // Most steps of a window are alike: their boundaries are kept once.
        let known = self.0.iter_mut().find(|block| {
            *block.boundaries == *boundaries
                && block.groups.as_deref() == groups.as_deref()
                && block.carried == carried
        });
        if let Some(block) = known {
            block.steps.push(step);
            block.durations_s.extend(values);
            return;
        }
        self.0.push(Block {
            boundaries: Arc::from(boundaries),
            groups: groups.map(Arc::from),
            steps: vec![step],
            durations_s: values,
            ranks,
            carried,
        });
    }
}

fn boundary(segment: &Segment) -> Boundary {
    let (ending, sync) = match segment.ending {
        Ending::Issue { op, .. } => (Ending::Issue { op, group: 0 }, Sync::Issue(op)),
        mark @ Ending::Mark(_) => (mark, Sync::None),
    };
    Boundary {
        stage: segment.stage,
        after: segment.after,
        ending,
        sync,
    }
}

fn issue_group(segment: &Segment) -> u32 {
    match segment.ending {
        Ending::Issue { group, .. } => group,
        Ending::Mark(_) => 0,
    }
}

fn closure(window: &Window, overlap_s: f64) -> Closure {
    let (mut residual_s, mut wall_s) = (0.0, 0.0);
    for block in &window.blocks {
        for (_, row) in block.rows() {
            let stages = row.chunks_exact(block.ranks).zip(block.boundaries.iter());
            for (durations, boundary) in stages {
                let seconds: f64 = durations.iter().sum();
                wall_s += seconds;
                residual_s += if boundary.stage == StageId::OTHER {
                    seconds
                } else {
                    0.0
                };
            }
        }
    }
    if wall_s > 0.0 {
        Closure {
            residual_share: residual_s / wall_s,
            overlap_share: overlap_s / wall_s,
        }
    } else {
        Closure {
            residual_share: 0.0,
            overlap_share: 0.0,
        }
    }
}

fn device_events(steps: &[JobStep], ranks: &[u32]) -> DeviceEvents {
    let mut events = DeviceEvents::default();
    for piece in steps.iter().flat_map(|step| pieces(step, ranks).flatten()) {
        for sample in piece
            .side
            .iter()
            .filter(|s| s.channel == StageId::FORWARD_EVENT)
        {
            events.enabled = true;
            match sample.seconds {
                Some(seconds) => events.ready_s.push(seconds),
                None => events.lost += 1,
            }
        }
    }
    events
}

/// Whether some steps read the batches that others use: their data waits cannot be given to
/// the step that uses the batch.
fn batches_come_in_bursts(steps: &[JobStep]) -> bool {
    let (mut ahead, mut short, mut batches, mut used) = (0, 0, 0.0, 0.0);
    for rank in steps.iter().filter_map(|step| step.ranks.values().next()) {
        ahead += usize::from(rank.batches > rank.micro_steps);
        short += usize::from(rank.batches < rank.micro_steps);
        batches += f64::from(rank.batches);
        used += f64::from(rank.micro_steps);
    }
    // A loop that is one batch ahead throughout is fine, and so is one that reads further
    // batches for evaluation.
    let same_batches = (batches - used).abs() <= 0.1 * used;
    ahead > 1 && short as f64 >= BURST_SHARE * steps.len() as f64 && same_batches
}

fn odd_accumulation_steps(steps: &[JobStep]) -> u64 {
    let factors: Vec<u16> = steps
        .iter()
        .filter_map(|step| Some(step.ranks.values().next()?.micro_steps))
        .collect();
    let mut counts: BTreeMap<u16, u64> = BTreeMap::new();
    for factor in &factors {
        *counts.entry(*factor).or_default() += 1;
    }
    factors.len() as u64 - counts.values().copied().max().unwrap_or(0)
}
