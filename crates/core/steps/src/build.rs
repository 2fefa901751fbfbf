//! From aligned steps to the matrix of a window.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use model::{
    Block, Boundary, Closure, Cut, DeviceEvents, Ending, Growth, Meeting, Segment, StageId, Sync,
    Window,
};

use crate::align::JobStep;
use crate::cells::{
    CellRange, Cells, DeliveredStep, DeliveredSteps, Issues, RankRow, RowCells, boundary,
    issue_group, pieces, rank_rows,
};
use crate::meeting::{ChosenCut, OwnClocks, choose_cut};
use crate::read_back::from_read_backs;

/// Share of steps that use batches of an earlier step from which data waits are not trusted:
/// bursts of two batches halve the steps that wait.
const BURST_SHARE: f64 = 0.2;

/// Where a rank runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankPlace<'aligner> {
    /// What makes it incomparable with others.
    pub(crate) role: Option<&'aligner str>,
    pub(crate) host: Option<&'aligner str>,
}

/// Builds one window for each group of comparable ranks. `clocks` is what groups showed before.
pub(crate) fn build_windows(
    previous: Option<&JobStep>,
    steps: &[JobStep],
    places: &BTreeMap<u32, RankPlace<'_>>,
    world_size: usize,
    published_cut: bool,
    clocks: &mut BTreeMap<Option<String>, OwnClocks>,
) -> Vec<Window> {
    let unseen_ranks = world_size.saturating_sub(places.len());
    let mut groups: BTreeMap<Option<&str>, Vec<u32>> = BTreeMap::new();
    for (rank, place) in places {
        groups.entry(place.role).or_default().push(*rank);
    }
    groups
        .into_iter()
        .filter_map(|(role, ranks)| {
            let group_share = ranks.len() as f64 / places.len() as f64;
            let clocks = clocks.entry(role.map(str::to_owned)).or_default();
            let window = build(previous, steps, &ranks, places, published_cut, clocks)?;
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
    places: &BTreeMap<u32, RankPlace<'_>>,
    published_cut: bool,
    clocks: &mut OwnClocks,
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
    let hosts = ranks.iter().map(|rank| places.get(rank)?.host);
    let hosts: Vec<Option<&str>> = hosts.collect();
    let delivered = DeliveredSteps::new(previous, steps, &ranks);
    let (chosen, moved) = if published_cut {
        (ChosenCut::unmeasured(Cut::Data), None)
    } else {
        let chosen = choose_cut(&delivered, &hosts, clocks);
        let moved = from_read_backs(&chosen, &delivered, steps, &ranks, &hosts);
        (chosen, moved)
    };
    let (chosen, delivered) = match &moved {
        Some(steps) => (
            chosen.met_at_data(),
            DeliveredSteps::new(None, steps, &ranks),
        ),
        None => (chosen, delivered),
    };
    let window = build_cut(delivered, &ranks, chosen.cut)?;
    Some(Window {
        meeting: chosen.meeting,
        runs_ahead: chosen.runs_ahead,
        waits: chosen.waits,
        missing_ranks,
        ..window
    })
}

/// The window of ranks that delivered most of its steps, cut in one place.
pub(crate) fn build_cut(delivered: DeliveredSteps<'_>, ranks: &[u32], cut: Cut) -> Option<Window> {
    let steps = &delivered.steps;
    let first_step = steps.first()?.step;
    let mut window = Window {
        first_step: u64::from(first_step),
        steps: steps.iter().filter(|step| step.is_trained).count() as u64,
        ranks: ranks.to_vec(),
        missing_ranks: Vec::new(),
        unseen_ranks: 0,
        incomplete_steps: 0,
        incomplete_s: 0.0,
        blocks: Vec::new(),
        cut,
        meeting: Meeting::default(),
        runs_ahead: false,
        waits: Growth::default(),
        closure: Closure::default(),
        device: device_events(steps),
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
    let mut seconds = Vec::new();
    let mut incomplete_s = VecDeque::new();
    for (before, step) in delivered.pairs() {
        let number = u64::from(step.step);
        let groups = || issue_groups(&rank_rows(before, step, cut)?);
        if let Some(RowCells { parts, lies }) = delivered.between(before, step, cut) {
            blocks.add(number, parts, lies, groups);
            continue;
        }
        let rows = rank_rows(before, step, cut);
        let Some(rows) = rows.filter(|rows| !rows.is_empty()) else {
            incomplete_s.push_back(longest_s(step));
            continue;
        };
        seconds.clear();
        if let Some(cells) = Cells::of(&rows, Issues::Kept, &mut seconds) {
            blocks.add(number, cells.parts(&seconds), None, groups);
        } else if let Some(cells) = Cells::of(&rows, Issues::Ignored, &mut seconds) {
            window.mismatched_steps += 1;
            blocks.add(number, cells.parts(&seconds), None, || None);
        } else {
            role_votes += 1;
            // As text, because boundaries have no order: how many kinds of ranks there are is all that counts.
            let shape = |row: &RankRow<'_>| format!("{:?}", row.boundaries().collect::<Vec<_>>());
            shapes.extend(rows.iter().map(shape));
            blocks.add_by_stage(number, &rows);
        }
    }
    // A few steps with other segments on some ranks, as of an evaluation, make no roles.
    if role_votes * 2 > steps.len() {
        // Shapes of many steps add up, and there are no more roles than ranks.
        window.roles = shapes.len().min(window.ranks.len());
    }
    // Steps at the very edge of what was recorded are not a hole in the telemetry.
    if delivered.previous.is_none() && cut != Cut::Data {
        incomplete_s.pop_front();
    }
    let mut last = steps
        .last()
        .into_iter()
        .flat_map(|last| last.pieces.iter().flatten());
    if last.any(|piece| !piece.complete) {
        incomplete_s.pop_back();
    }
    window.incomplete_steps = incomplete_s.len() as u64;
    window.incomplete_s = incomplete_s.iter().sum();
    let pieces = steps.iter().flat_map(|step| step.pieces.iter().flatten());
    let overlap_s = pieces.map(|piece| piece.overlap_s).sum();
    window.blocks = blocks.finish(delivered.seconds);
    window.closure = closure(&window, overlap_s);
    Some(window)
}

/// What a step took on the rank that took longest, in seconds.
fn longest_s(step: &DeliveredStep<'_>) -> f64 {
    let pieces = step.pieces.iter().flatten();
    let took_s =
        pieces.filter_map(|piece| Some(piece.segments.last()?.end.seconds_since(piece.start)));
    took_s.fold(0.0, f64::max)
}

/// Blocks of a window under construction.
#[derive(Default)]
struct WindowBlocks(Vec<(Block, Vec<BlockRow>)>);

/// `[boundary][rank]`: a row of a block.
enum BlockRow {
    /// In [`DeliveredSteps::seconds`].
    Lies(Range<usize>),
    Apart(Vec<f64>),
}

impl WindowBlocks {
    /// Adds a row of ranks that went through the same boundaries. Ranks may issue the same
    /// collective in groups of their own: these are asked for only where they do.
    fn add(
        &mut self,
        step: u64,
        [carried, own]: [CellRange<'_>; 2],
        lies: Option<Range<usize>>,
        groups: impl FnOnce() -> Option<Vec<u32>>,
    ) {
        let shared = carried.is_in_same_groups() && own.is_in_same_groups();
        let groups = if shared { None } else { groups() };
        let boundaries = [carried.boundaries, own.boundaries].concat();
        let row = lies.map_or_else(
            || BlockRow::Apart([carried.seconds, own.seconds].concat()),
            BlockRow::Lies,
        );
        self.push(step, boundaries, groups, row, carried.boundaries.len());
    }

    /// Adds a row of ranks that went through different segments: sums by stage, in the
    /// order of the rank with the fewest segments. Up to the first collective that all of them issue
    /// ranks have waited for none of the others, so that what they took before it is summed apart.
    fn add_by_stage(&mut self, step: u64, rows: &[RankRow<'_>]) {
        let rows: Vec<TimedSegments<'_>> = rows.iter().map(|row| row.timed()).collect();
        let (mut boundaries, mut seconds) = (Vec::new(), Vec::new());
        let mut add = |part: &[&[(&Segment, f64)]], meeting: Option<&Segment>| {
            for (segment, row_s) in sums_by_stage(part, meeting.map(|issue| issue.stage)) {
                let meets = meeting.filter(|issue| issue.stage == segment.stage);
                boundaries.push(meets.map_or(
                    Boundary {
                        sync: Sync::None,
                        ..boundary(segment)
                    },
                    boundary,
                ));
                seconds.extend(row_s);
            }
        };
        match first_meeting(&rows) {
            Some(places) => {
                let halves: Vec<_> = rows
                    .iter()
                    .zip(&places)
                    .map(|(row, place)| row.split_at(place + 1))
                    .collect();
                let before: Vec<_> = halves.iter().map(|(before, _)| *before).collect();
                let behind: Vec<_> = halves.iter().map(|(_, behind)| *behind).collect();
                add(&before, Some(rows[0][places[0]].0));
                add(&behind, None);
            }
            None => add(&rows.iter().map(Vec::as_slice).collect::<Vec<_>>(), None),
        }
        // What lies in the step before is not known any more.
        self.push(step, boundaries, None, BlockRow::Apart(seconds), 0);
    }

    fn push(
        &mut self,
        step: u64,
        boundaries: Vec<Boundary>,
        groups: Option<Vec<u32>>,
        row: BlockRow,
        carried: usize,
    ) {
        // Most steps of a window are alike: their boundaries are kept once.
        let known = self.0.iter_mut().find(|(block, _)| {
            *block.boundaries == *boundaries
                && block.groups.as_deref() == groups.as_deref()
                && block.carried == carried
        });
        if let Some((block, rows)) = known {
            block.steps.push(step);
            rows.push(row);
            return;
        }
        let ranks = row.len() / boundaries.len().max(1);
        let block = Block {
            boundaries: Arc::from(boundaries),
            groups: groups.map(Arc::from),
            steps: vec![step],
            durations_s: Vec::new(),
            ranks,
            carried,
        };
        self.0.push((block, vec![row]));
    }

    /// The blocks, of what ranks took in all steps.
    fn finish(mut self, mut seconds: Vec<f64>) -> Vec<Block> {
        if let [(block, rows)] = &mut self.0[..]
            && let Some(place) = in_one_piece(rows)
        {
            // As in most windows. They may be large, and need not be copied.
            seconds.truncate(place.end);
            seconds.drain(..place.start);
            block.durations_s = seconds;
        } else {
            for (block, rows) in &mut self.0 {
                let rows = rows.iter().map(|row| row.of(&seconds));
                block.durations_s = rows.collect::<Vec<_>>().concat();
            }
        }
        self.0.into_iter().map(|(block, _)| block).collect()
    }
}

impl BlockRow {
    fn len(&self) -> usize {
        match self {
            Self::Lies(place) => place.len(),
            Self::Apart(row) => row.len(),
        }
    }

    fn of<'row>(&'row self, seconds: &'row [f64]) -> &'row [f64] {
        match self {
            Self::Lies(place) => &seconds[place.clone()],
            Self::Apart(row) => row,
        }
    }
}

/// Where rows lie behind each other, if they do.
fn in_one_piece(rows: &[BlockRow]) -> Option<Range<usize>> {
    let mut all: Option<Range<usize>> = None;
    for row in rows {
        let BlockRow::Lies(place) = row else {
            return None;
        };
        let begin = all.map_or(Some(place.start), |all| {
            (all.end == place.start).then_some(all.start)
        })?;
        all = Some(begin..place.end);
    }
    all
}

/// Segments of a rank with the seconds that each took.
type TimedSegments<'steps> = Vec<(&'steps Segment, f64)>;

/// Of each rank the segment that ends as it issues its first collective, if that is the same one and
/// none has sent or received before.
fn first_meeting(rows: &[TimedSegments<'_>]) -> Option<Vec<usize>> {
    let mut places = Vec::with_capacity(rows.len());
    let mut first: Option<&Segment> = None;
    for row in rows {
        let is_issue = |segment: &Segment| matches!(segment.ending, Ending::Issue { .. });
        let place = row.iter().position(|(segment, _)| is_issue(segment))?;
        let issue = row[place].0;
        let known = *first.get_or_insert(issue);
        let is_same = (known.stage, known.ending) == (issue.stage, issue.ending);
        let Ending::Issue { op, .. } = issue.ending else {
            return None;
        };
        if !is_same || op.is_point_to_point() {
            return None;
        }
        places.push(place);
    }
    Some(places)
}

/// For each stage in some segments of ranks one of them, and what each rank took in it, in seconds; `last`
/// is the last one.
fn sums_by_stage<'steps>(
    rows: &[&[(&'steps Segment, f64)]],
    last: Option<StageId>,
) -> Vec<(&'steps Segment, Vec<f64>)> {
    let Some(plainest) = rows.iter().min_by_key(|row| row.len()) else {
        return Vec::new();
    };
    let mut order: Vec<&Segment> = Vec::new();
    for (segment, _) in plainest.iter().chain(rows.iter().copied().flatten()) {
        if !order.iter().any(|known| known.stage == segment.stage) {
            order.push(segment);
        }
    }
    // Stages only some ranks have go first: what follows the cut is theirs alone.
    let is_plain = |stage| plainest.iter().any(|(segment, _)| segment.stage == stage);
    order.sort_by_key(|segment| (last == Some(segment.stage), is_plain(segment.stage)));
    let sums = order.into_iter().map(|known| {
        let in_stage = |row: &&[(&Segment, f64)]| {
            let here = row.iter().filter(|(it, _)| it.stage == known.stage);
            here.map(|(_, took_s)| took_s).sum()
        };
        (known, rows.iter().map(in_stage).collect())
    });
    sums.collect()
}

/// `[segment][rank]`: the communicator of each issue.
fn issue_groups(rows: &[RankRow<'_>]) -> Option<Vec<u32>> {
    let mut groups = vec![0; rows.first()?.segments(Issues::Kept).count() * rows.len()];
    for (column, row) in rows.iter().enumerate() {
        let places = groups[column..].iter_mut().step_by(rows.len());
        for (place, segment) in places.zip(row.segments(Issues::Kept)) {
            *place = issue_group(segment);
        }
    }
    Some(groups)
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

fn device_events(steps: &[DeliveredStep<'_>]) -> DeviceEvents {
    let mut events = DeviceEvents::default();
    for piece in steps.iter().flat_map(|step| step.pieces.iter().flatten()) {
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
fn batches_come_in_bursts(steps: &[DeliveredStep<'_>]) -> bool {
    let (mut ahead, mut short, mut batches, mut used) = (0, 0, 0.0, 0.0);
    for rank in steps
        .iter()
        .filter_map(|step| step.pieces.iter().flatten().next())
    {
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

fn odd_accumulation_steps(steps: &[DeliveredStep<'_>]) -> u64 {
    let factors: Vec<u16> = steps
        .iter()
        .filter_map(|step| Some(step.pieces.iter().flatten().next()?.micro_steps))
        .collect();
    let mut counts: BTreeMap<u16, u64> = BTreeMap::new();
    for factor in &factors {
        *counts.entry(*factor).or_default() += 1;
    }
    factors.len() as u64 - counts.values().copied().max().unwrap_or(0)
}
