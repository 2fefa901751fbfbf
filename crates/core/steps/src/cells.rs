//! What the ranks of a window delivered of its steps, side by side.

use std::ops::Range;

use model::{Boundary, Cut, Ending, MarkKind, RankNs, RankStep, Segment, Sync};

use crate::align::JobStep;

/// The steps of a window as some ranks delivered them.
pub(crate) struct DeliveredSteps<'steps> {
    /// The step before the window: its rows may begin there.
    pub(crate) previous: Option<DeliveredStep<'steps>>,
    pub(crate) steps: Vec<DeliveredStep<'steps>>,
    /// `[step][boundary][rank]`, of steps that have [`DeliveredStep::cells`]: what lies between two
    /// cuts is in one piece, and all rows of a window mostly are.
    pub(crate) seconds: Vec<f64>,
}

/// A step as some ranks delivered it.
pub(crate) struct DeliveredStep<'steps> {
    pub(crate) step: u32,
    pub(crate) is_trained: bool,
    /// `[rank]`.
    pub(crate) pieces: Vec<Option<&'steps RankStep>>,
    /// What ranks took, if all went through the same boundaries from its begin to its end: then
    /// they did so between any two cuts, too.
    cells: Option<Cells>,
    /// Whether all begin it where they ended the step before.
    follows: bool,
}

impl<'steps> DeliveredSteps<'steps> {
    /// What some ranks delivered; they ascend.
    pub(crate) fn new(
        previous: Option<&'steps JobStep>,
        steps: &'steps [JobStep],
        ranks: &[u32],
    ) -> Self {
        let mut seconds = Vec::new();
        let previous = previous.map(|step| DeliveredStep::new(None, step, ranks, &mut seconds));
        let mut delivered: Vec<DeliveredStep<'_>> = Vec::with_capacity(steps.len());
        for step in steps {
            let before = delivered.last().or(previous.as_ref());
            let step = DeliveredStep::new(before, step, ranks, &mut seconds);
            if delivered.is_empty() {
                // Steps are mostly alike, and what grows is copied again and again.
                let cells = step.cells.as_ref().map_or(0, Cells::len);
                seconds.reserve(cells * steps.len().saturating_sub(1));
            }
            delivered.push(step);
        }
        Self {
            previous,
            steps: delivered,
            seconds,
        }
    }

    /// What ranks took between two cuts, if they went through the same boundaries of the steps these
    /// lie in.
    pub(crate) fn between(
        &self,
        before: Option<&'steps DeliveredStep<'_>>,
        step: &'steps DeliveredStep<'_>,
        cut: Cut,
    ) -> Option<RowCells<'_>> {
        let cells = step.cells.as_ref()?;
        let Cut::After(kind) = cut else {
            let all = 0..cells.boundaries.len();
            return Some(RowCells {
                lies: Some(cells.place(&all)),
                parts: [0..0, all].map(|range| cells.range(range, &self.seconds)),
            });
        };
        // Else the time between the two steps would be missing from the first segment.
        let before = before.filter(|before| before.is_before(step) && step.follows)?;
        let carried = before.cells.as_ref()?;
        let from = carried.last_end(kind)? + 1..carried.boundaries.len();
        let to = 0..cells.last_end(kind)? + 1;
        let (first, last) = (carried.place(&from), cells.place(&to));
        Some(RowCells {
            lies: (first.end == last.start).then_some(first.start..last.end),
            parts: [
                carried.range(from, &self.seconds),
                cells.range(to, &self.seconds),
            ],
        })
    }

    /// Each step, and the one before it.
    pub(crate) fn pairs(
        &self,
    ) -> impl Iterator<Item = (Option<&DeliveredStep<'steps>>, &DeliveredStep<'steps>)> {
        let before = [self.previous.as_ref()].into_iter();
        before.chain(self.steps.iter().map(Some)).zip(&self.steps)
    }

    /// What the first of the ranks delivered of steps that it went through from begin to end: all
    /// run the same loop, so one stands for them.
    pub(crate) fn whole_pieces(&self) -> impl Iterator<Item = &'steps RankStep> {
        self.steps
            .iter()
            .filter_map(|step| step.pieces.first().copied().flatten())
            .filter(|piece| piece.complete)
    }
}

impl<'steps> DeliveredStep<'steps> {
    /// Adds what ranks took to `seconds`.
    fn new(
        before: Option<&Self>,
        step: &'steps JobStep,
        ranks: &[u32],
        seconds: &mut Vec<f64>,
    ) -> Self {
        let mut delivered = Self {
            step: step.step,
            is_trained: step.is_trained(),
            pieces: pieces(step, ranks).collect(),
            cells: None,
            follows: false,
        };
        delivered.cells = rank_rows(None, &delivered, Cut::Data)
            .and_then(|rows| Cells::of(&rows, Issues::Kept, seconds));
        let ended = before.and_then(|before| before.cells.as_ref());
        delivered.follows = ended.is_some_and(|cells| {
            let starts = delivered
                .pieces
                .iter()
                .map(|piece| piece.map(|piece| piece.start));
            starts.eq(cells.ends.iter().copied().map(Some))
        });
        delivered
    }
}

/// What each of some ranks delivered of a step; they ascend.
pub(crate) fn pieces<'steps>(
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

/// One rank's part of a row.
#[derive(Clone, Copy)]
pub(crate) struct RankRow<'steps> {
    pub(crate) start: RankNs,
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
    pub(crate) fn segments(self, issues: Issues) -> impl Iterator<Item = &'steps Segment> {
        self.carried
            .iter()
            .chain(self.segments)
            .filter(move |segment| issues.counts(segment))
    }

    /// What it took, in seconds.
    pub(crate) fn took_s(&self) -> f64 {
        let last = self.segments.last().or(self.carried.last());
        last.map_or(0.0, |last| last.end.seconds_since(self.start))
    }

    /// Its segments with the seconds that each took.
    pub(crate) fn timed(self) -> Vec<(&'steps Segment, f64)> {
        let mut from = self.start;
        self.segments(Issues::Kept)
            .map(|segment| {
                let took_s = segment.end.seconds_since(from);
                from = segment.end;
                (segment, took_s)
            })
            .collect()
    }

    /// What all ranks of a row must agree on at least.
    pub(crate) fn boundaries(self) -> impl Iterator<Item = Boundary> + use<'steps> {
        self.segments(Issues::Ignored).map(boundary)
    }
}

/// The segments of each rank between two cuts, `None` if one did not deliver them.
pub(crate) fn rank_rows<'steps>(
    before: Option<&DeliveredStep<'steps>>,
    step: &DeliveredStep<'steps>,
    cut: Cut,
) -> Option<Vec<RankRow<'steps>>> {
    let Cut::After(kind) = cut else {
        return step
            .pieces
            .iter()
            .map(|piece| {
                // A step is complete if the next one followed: else what lies behind its last mark
                // is missing.
                let piece = piece.filter(|piece| piece.complete)?;
                Some(RankRow {
                    start: piece.start,
                    carried: &[],
                    segments: &piece.segments,
                })
            })
            .collect();
    };
    before
        .filter(|before| before.is_before(step))?
        .pieces
        .iter()
        .zip(&step.pieces)
        .map(|(before, piece)| {
            let (before, piece) = (before.filter(|before| before.complete)?, (*piece)?);
            let (ended, carried) = before
                .segments
                .split_at(last_end(endings(&before.segments), kind)? + 1);
            // The step itself need not be whole: what follows the cut is the next row's.
            let segments = &piece.segments[..=last_end(endings(&piece.segments), kind)?];
            Some(RankRow {
                start: ended.last()?.end,
                carried,
                segments,
            })
        })
        .collect()
}

impl DeliveredStep<'_> {
    /// Behind a cut in a step a row begins in the step before: without that it has no begin.
    fn is_before(&self, step: &Self) -> bool {
        self.step + 1 == step.step
    }
}

/// What ranks that go through the same boundaries take until each of them.
pub(crate) struct Cells {
    boundaries: Vec<Boundary>,
    /// Where in the seconds of all steps those of these cells begin, `[boundary][rank]`: ranks are
    /// compared boundary by boundary, so these lie side by side.
    first: usize,
    /// `[boundary]`: whether all ranks issue that collective in the same group.
    same_group: Vec<bool>,
    /// Boundaries that lie in the step before.
    carried: usize,
    /// `[rank]`.
    ends: Vec<RankNs>,
}

/// What ranks took between two cuts.
pub(crate) struct RowCells<'steps> {
    /// Of the step before, and of the step.
    pub(crate) parts: [CellRange<'steps>; 2],
    /// Where the two lie behind each other in [`DeliveredSteps::seconds`], if they do.
    pub(crate) lies: Option<Range<usize>>,
}

/// Some boundaries of cells.
#[derive(Clone, Copy)]
pub(crate) struct CellRange<'cells> {
    pub(crate) boundaries: &'cells [Boundary],
    /// `[boundary][rank]`.
    pub(crate) seconds: &'cells [f64],
    same_group: &'cells [bool],
}

impl Cells {
    /// Adds what ranks took to `seconds`. `None` if there is no rank, or if boundaries differ.
    pub(crate) fn of(rows: &[RankRow<'_>], issues: Issues, seconds: &mut Vec<f64>) -> Option<Self> {
        let first = seconds.len();
        let cells = Self::added(rows, issues, seconds);
        if cells.is_none() {
            seconds.truncate(first);
        }
        cells
    }

    fn added(rows: &[RankRow<'_>], issues: Issues, seconds: &mut Vec<f64>) -> Option<Self> {
        let first = rows.first()?;
        let firsts: Vec<&Segment> = first.segments(issues).collect();
        let begin = seconds.len();
        seconds.resize(begin + firsts.len() * rows.len(), 0.0);
        let mut same_group = vec![true; firsts.len()];
        let mut ends = Vec::with_capacity(rows.len());
        for (rank, row) in rows.iter().enumerate() {
            let mut from = row.start;
            let mut segments = row.segments(issues);
            let places = seconds[begin..].chunks_exact_mut(rows.len());
            let places = places.zip(&mut same_group);
            for ((places, same_group), first) in places.zip(&firsts) {
                let segment = segments.next().filter(|segment| is_alike(segment, first))?;
                *same_group &= segment.ending == first.ending;
                places[rank] = segment.end.seconds_since(from);
                from = segment.end;
            }
            // A rank with more segments than the first differs as much as one with fewer.
            if segments.next().is_some() {
                return None;
            }
            ends.push(from);
        }
        let carried = first.carried.iter();
        Some(Self {
            boundaries: firsts.into_iter().map(boundary).collect(),
            first: begin,
            same_group,
            carried: carried.filter(|segment| issues.counts(segment)).count(),
            ends,
        })
    }

    fn len(&self) -> usize {
        self.boundaries.len() * self.ends.len()
    }

    /// Where those of some boundaries lie.
    fn place(&self, range: &Range<usize>) -> Range<usize> {
        let ranks = self.ends.len();
        self.first + range.start * ranks..self.first + range.end * ranks
    }

    fn range<'cells>(
        &'cells self,
        range: Range<usize>,
        seconds: &'cells [f64],
    ) -> CellRange<'cells> {
        CellRange {
            boundaries: &self.boundaries[range.clone()],
            seconds: &seconds[self.place(&range)],
            same_group: &self.same_group[range],
        }
    }

    fn last_end(&self, kind: MarkKind) -> Option<usize> {
        last_end(self.boundaries.iter().map(|boundary| boundary.ending), kind)
    }

    /// Those of the step before, and those of the step; `seconds` are what they were added to.
    pub(crate) fn parts<'cells>(&'cells self, seconds: &'cells [f64]) -> [CellRange<'cells>; 2] {
        [
            self.range(0..self.carried, seconds),
            self.range(self.carried..self.boundaries.len(), seconds),
        ]
    }
}

impl<'cells> CellRange<'cells> {
    /// Boundaries with what each rank takes until there, in seconds.
    pub(crate) fn rows(self) -> impl Iterator<Item = (&'cells Boundary, &'cells [f64])> {
        let ranks = self.seconds.len() / self.boundaries.len().max(1);
        self.boundaries
            .iter()
            .zip(self.seconds.chunks_exact(ranks.max(1)))
    }

    /// Whether all ranks issue all collectives in the same groups.
    pub(crate) fn is_in_same_groups(self) -> bool {
        self.same_group.iter().all(|same| *same)
    }
}

/// The last of them behind which a cut of this kind lies.
fn last_end(
    mut endings: impl ExactSizeIterator<Item = Ending> + DoubleEndedIterator,
    kind: MarkKind,
) -> Option<usize> {
    endings.rposition(|ending| is_of_kind(ending, kind))
}

/// Whether a cut after the last mark of this kind may lie here: of issues, where all ranks meet.
pub(crate) fn is_of_kind(ending: Ending, kind: MarkKind) -> bool {
    match ending {
        Ending::Mark(known) => known == kind,
        Ending::Issue { op, .. } => kind == MarkKind::CollectiveIssue && op.joins_all(),
    }
}

/// What ends segments.
fn endings(segments: &[Segment]) -> impl ExactSizeIterator<Item = Ending> + DoubleEndedIterator {
    segments.iter().map(|segment| segment.ending)
}

/// Whether segments end at the same [`boundary`].
fn is_alike(one: &Segment, other: &Segment) -> bool {
    let ending = match (one.ending, other.ending) {
        // In whichever group: a block has that rank by rank, beside its boundaries.
        (Ending::Issue { op, .. }, Ending::Issue { op: other, .. }) => op == other,
        (one, other) => one == other,
    };
    ending && one.stage == other.stage && one.after == other.after
}

pub(crate) fn boundary(segment: &Segment) -> Boundary {
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

pub(crate) fn issue_group(segment: &Segment) -> u32 {
    match segment.ending {
        Ending::Issue { group, .. } => group,
        Ending::Mark(_) => 0,
    }
}
