//! What the script draws: exposed time and lag over the run, small enough for a page.

use model::{StageId, StageNames, Verdict, WindowSummary};
use serde::Serialize;
use verdict::{Column, Series};

use crate::palette::Paint;

/// Cells of one stage's heat map of which each lag is shown. Of more, those that would hardly
/// show are left out.
const FEW_CELLS: usize = 1 << 18;
/// Bytes of the page that lags may take; neighbouring columns are joined until they fit.
const MAX_LAG_BYTES: usize = 8 << 20;
/// Lags below are drawn as none: far below what a clock or a scheduler is good for.
const LAG_FLOOR_S: f64 = 1e-6;
/// The same in a picture of many cells, as a share of the mean step: a tenth of the least top
/// of the scale.
const LAG_FLOOR_SHARE: f64 = 0.02;
/// From the floor to 10,000 s.
const LAG_DECADES: f64 = 10.0;
/// Codes above zero: what two digits of [`DIGITS`] can tell apart.
const LAG_CODES: f64 = 4095.0;
/// Zeros that one can stand for: as many as two digits can say.
const MOST_ZEROS: usize = 4095;
/// Digits of a lag's code, the lowest first.
const DIGITS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";

/// The series of the page.
///
/// # Shape
/// All lists of columns are equally long and in the order the steps were run; `stages` is
/// in the order of the verdict's stages.
#[derive(Debug, Serialize)]
pub(crate) struct Picture {
    /// First and last step of a column and the analysed steps in it.
    first_step: Vec<u64>,
    last_step: Vec<u64>,
    steps: Vec<u64>,
    stages: Vec<StagePicture>,
    /// Ranks of the lags.
    ranks: Vec<u32>,
    lag_code: LagCode,
    /// When ranks delivered nothing.
    absences: Vec<Absence>,
    /// In the order of the verdict's incidents.
    incidents: Vec<Option<IncidentSpan>>,
}

/// A rank that delivered nothing, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Absence {
    /// Its place among the ranks.
    row: usize,
    first_column: usize,
    last_column: usize,
}

#[derive(Debug, Serialize)]
struct StagePicture {
    /// The class with its colour.
    paint: &'static str,
    /// Exposed time of the mean step, column by column.
    step_advance_us: Vec<u64>,
    /// Mean lag, rank by rank and column by column: two digits each, and two more after a zero
    /// that say how many zeros it stands for. None if nobody is ever late.
    lag: Option<String>,
}

/// How a lag of the mean step is read: code 0 is none, code `n` is
/// `floor_s * 10^((n - 1) * decades / (codes - 1))`.
#[derive(Debug, Serialize)]
struct LagCode {
    digits: &'static str,
    floor_s: f64,
    decades: f64,
    codes: f64,
}

/// Columns an incident covers, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct IncidentSpan {
    first_column: usize,
    last_column: usize,
}

/// Neighbouring columns of the series, drawn as one.
struct Joined<'a> {
    columns: &'a [Column],
    steps: u64,
}

impl Joined<'_> {
    fn first_step(&self) -> u64 {
        self.columns.first().map_or(0, |column| column.first_step)
    }

    fn last_step(&self) -> u64 {
        let last = self.columns.last();
        last.map_or(0, |column| {
            column.first_step + column.steps.saturating_sub(1)
        })
    }

    /// A sum over the columns, for the mean step.
    fn mean_s(&self, seconds: impl Fn(&Column) -> Option<f64>) -> f64 {
        let sum: f64 = self.columns.iter().filter_map(seconds).sum();
        sum / self.steps.max(1) as f64
    }
}

impl Picture {
    pub(crate) fn new(
        verdict: &Verdict,
        paints: &[Paint],
        series: &Series,
        names: &StageNames,
    ) -> Self {
        let ids: Vec<Option<StageId>> = verdict
            .stages
            .iter()
            // The series has stages by id, the verdict by name.
            .map(|s| stage_id(series, names, &s.name))
            .collect();
        let cells = series.columns().len() * series.ranks().len();
        // Noise is what fills a large picture: each lag above the floor ends a run of zeros.
        let floor_s = if cells > FEW_CELLS {
            let steps = steps_of(series.columns());
            LAG_FLOOR_S.max(LAG_FLOOR_SHARE * verdict.job.exposed_s / steps.max(1) as f64)
        } else {
            LAG_FLOOR_S
        };
        let mut width = 1;
        let (columns, lags) = loop {
            let columns = joined(series.columns(), width);
            let lags: Vec<Option<String>> = ids
                .iter()
                .map(|id| lag(&columns, series.ranks().len(), (*id)?, floor_s))
                .collect();
            let bytes = lags.iter().flatten().map(String::len).sum::<usize>();
            // One column cannot be joined any further.
            if columns.len() <= 1 || bytes <= MAX_LAG_BYTES {
                break (columns, lags);
            }
            // Tried out, not worked out: how short late ranks make it is not known before.
            width *= 2;
        };
        let first_step: Vec<u64> = columns.iter().map(Joined::first_step).collect();
        let last_step: Vec<u64> = columns.iter().map(Joined::last_step).collect();
        Self {
            stages: paints
                .iter()
                .zip(ids)
                .zip(lags)
                .map(|((paint, id), lag)| StagePicture {
                    paint: paint.class(),
                    step_advance_us: columns.iter().map(|it| advance_us(it, id)).collect(),
                    lag,
                })
                .collect(),
            incidents: verdict
                .incidents
                .iter()
                .map(|it| span(&first_step, &last_step, it.first_step, it.last_step))
                .collect(),
            absences: absences(&verdict.windows, &first_step, series.ranks()),
            steps: columns.iter().map(|column| column.steps).collect(),
            ranks: series.ranks().to_vec(),
            lag_code: LagCode {
                digits: str::from_utf8(DIGITS).unwrap_or_default(),
                floor_s,
                decades: LAG_DECADES,
                codes: LAG_CODES,
            },
            first_step,
            last_step,
        }
    }

    /// Whether there is nothing to draw.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Ranks of the heat map.
    pub(crate) fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// When an incident strikes, as parts of the analysed steps: (begin, end).
    pub(crate) fn part_of_run(&self, incident: usize) -> Option<(f64, f64)> {
        let span = self.incidents.get(incident).copied().flatten()?;
        // Both are places in the columns, so the slices below are in bounds. Columns may hold
        // different numbers of steps: the part is one of steps.
        let [begin, end, all] = [span.first_column, span.last_column + 1, self.steps.len()]
            .map(|column| self.steps[..column].iter().sum::<u64>() as f64);
        Some((begin / all.max(1.0), end / all.max(1.0)))
    }
}

fn stage_id(series: &Series, names: &StageNames, name: &str) -> Option<StageId> {
    series
        .columns()
        .iter()
        .flat_map(|column| column.advance_s.keys())
        .find(|id| names.name(**id) == name)
        .copied()
}

fn advance_us(column: &Joined<'_>, stage: Option<StageId>) -> u64 {
    let Some(stage) = stage else { return 0 };
    whole(column.mean_s(|column| column.advance_s.get(&stage).copied()) * 1e6)
}

/// Columns, some side by side as one.
fn joined(columns: &[Column], width: usize) -> Vec<Joined<'_>> {
    columns
        .chunks(width)
        .map(|columns| Joined {
            columns,
            steps: steps_of(columns),
        })
        .collect()
}

fn steps_of(columns: &[Column]) -> u64 {
    columns.iter().map(|column| column.steps).sum()
}

fn lag(columns: &[Joined<'_>], ranks: usize, stage: StageId, floor_s: f64) -> Option<String> {
    // Rank by rank: who is on time mostly stays so, and a run of zeros takes four digits.
    let mut lags = LagDigits::default();
    let mut late = false;
    for rank in 0..ranks {
        for column in columns {
            let mean_s =
                column.mean_s(|column| column.lag_s.get(&stage)?.get(rank).copied().map(f64::from));
            let code = lag_code(mean_s, floor_s);
            late |= code > 0;
            lags.push(code);
        }
    }
    late.then(|| lags.finish()).flatten()
}

/// Codes of lags as they are written down. Most ranks are on time: runs of zeros take four digits.
#[derive(Default)]
struct LagDigits {
    digits: Vec<u8>,
    /// Zeros that are not written down yet.
    zeros: usize,
}

impl LagDigits {
    fn push(&mut self, code: usize) {
        if code > 0 {
            self.close();
            self.digits.extend(two_digits(code));
            return;
        }
        self.zeros += 1;
        if self.zeros == MOST_ZEROS {
            self.close();
        }
    }

    fn close(&mut self) {
        if self.zeros > 0 {
            self.digits.extend(two_digits(0));
            self.digits
                .extend(two_digits(std::mem::take(&mut self.zeros)));
        }
    }

    fn finish(mut self) -> Option<String> {
        self.close();
        String::from_utf8(self.digits).ok()
    }
}

fn two_digits(code: usize) -> [u8; 2] {
    // A code is at most 4095, 64 times 64 less one; no digit of it is lost.
    [DIGITS[code % 64], DIGITS[code / 64 % 64]]
}

fn lag_code(lag_s: f64, floor_s: f64) -> usize {
    if lag_s.is_nan() || lag_s < floor_s {
        return 0;
    }
    // By ratios: lags go from microseconds to hours.
    let step = (lag_s / floor_s).log10() * (LAG_CODES - 1.0) / LAG_DECADES;
    usize::try_from(whole((1.0 + step).clamp(0.0, LAG_CODES))).unwrap_or(0)
}

/// The nearest whole number; what is none becomes zero.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and what is below zero is meant to become zero"
)]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// When ranks were missing. Windows and columns are both in the order they were run, so
/// one walk over both finds them, restarts and all.
fn absences(windows: &[WindowSummary], first_step: &[u64], ranks: &[u32]) -> Vec<Absence> {
    let mut absences: Vec<Absence> = Vec::new();
    let mut at = 0;
    for (column, step) in first_step.iter().enumerate() {
        // Of a column whose window is no longer listed nothing is known. A joined column counts by
        // its first step.
        let Some(ahead) = windows[at..].iter().position(|window| {
            window.first_step <= *step && *step < window.first_step + window.steps
        }) else {
            continue;
        };
        at += ahead;
        for rank in &windows[at].missing_ranks {
            // Ranks of a series ascend. One beyond those that it keeps has no row.
            let Ok(row) = ranks.binary_search(rank) else {
                continue;
            };
            match absences
                .iter_mut()
                .rev()
                // The latest absences stand last; one that did not end in the column before is
                // another.
                .find(|it| it.row == row && it.last_column + 1 == column)
            {
                Some(absence) => absence.last_column = column,
                None => {
                    absences.push(Absence {
                        row,
                        first_column: column,
                        last_column: column,
                    });
                }
            }
        }
    }
    absences
}

/// Columns between two steps. Steps are counted anew after a restart: what happens in the
/// last attempt that has the first step is meant.
fn span(first_step: &[u64], last_step: &[u64], from: u64, to: u64) -> Option<IncidentSpan> {
    let mut end = first_step.len();
    while end > 0 {
        // Attempts are looked at from the last one back.
        let restart = (1..end)
            .rev()
            .find(|at| first_step[*at] < first_step[at - 1]);
        let start = restart.unwrap_or(0);
        let first = (start..end).find(|column| last_step[*column] >= from);
        let last = (start..end).rev().find(|column| first_step[*column] <= to);
        if let Some((first_column, last_column)) = first.zip(last)
            && first_column <= last_column
        {
            return Some(IncidentSpan {
                first_column,
                last_column,
            });
        }
        end = start;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    /// What the page reads.
    fn decode(code: &LagCode, text: &str) -> Vec<f64> {
        let digit = |byte: u8| code.digits.bytes().position(|d| d == byte).unwrap();
        let pairs = text.as_bytes().chunks(2);
        let mut numbers = pairs.map(|pair| digit(pair[0]) + 64 * digit(pair[1]));
        let mut lags_s = Vec::new();
        while let Some(number) = numbers.next() {
            if number == 0 {
                let zeros = numbers.next().unwrap();
                lags_s.resize(lags_s.len() + zeros, 0.0);
                continue;
            }
            let decade = (number - 1) as f64 * code.decades / (code.codes - 1.0);
            lags_s.push(code.floor_s * 10f64.powf(decade));
        }
        lags_s
    }

    #[test]
    fn lag_and_exposed_time_read_back_as_they_were() {
        let job = sample::late_in_data(4, 60);
        let (verdict, series) = (job.verdict(), job.series());
        let paints = crate::palette::paints(&verdict.stages, job.names());
        let picture = Picture::new(&verdict, &paints, series, job.names());
        assert_eq!(picture.steps, vec![1; series.columns().len()]);
        let reported = picture.stages[0].lag.as_ref().unwrap();
        let reported = decode(&picture.lag_code, reported);
        assert_eq!(reported.len(), 4 * picture.steps.len());
        for (at, column) in series.columns().iter().enumerate() {
            let stage = &picture.stages[0];
            let advance_us = stage.step_advance_us[at] as f64;
            assert!((advance_us - column.advance_s[&StageId::DATA] * 1e6).abs() <= 0.5);
            for (rank, lag_s) in column.lag_s[&StageId::DATA].iter().enumerate() {
                let read = reported[rank * picture.steps.len() + at];
                let lag_s = f64::from(*lag_s);
                assert!(
                    (read - lag_s).abs() <= 0.004 * lag_s + LAG_FLOOR_S,
                    "{read} {lag_s}"
                );
            }
        }
    }

    #[test]
    fn lags_beyond_the_scale_stop_at_its_ends() {
        let code = |lag_s| lag_code(lag_s, LAG_FLOOR_S);
        assert_eq!(code(0.0), 0);
        assert_eq!(code(f64::NAN), 0);
        assert_eq!(code(LAG_FLOOR_S), 1);
        assert_eq!(code(1e4), 4095);
        assert_eq!(code(1e9), 4095);
    }

    #[test]
    fn ten_thousand_ranks_keep_their_columns_and_a_small_page() {
        let job = sample::late_in_data(10_000, 60);
        let (verdict, series) = (job.verdict(), job.series());
        let paints = crate::palette::paints(&verdict.stages, job.names());
        let picture = Picture::new(&verdict, &paints, series, job.names());
        let columns = picture.steps.len();
        assert_eq!(
            (picture.ranks.len(), columns),
            (10_000, series.columns().len())
        );
        let lags = picture.stages[0].lag.as_ref().unwrap();
        assert!(lags.len() < 10_000, "{}", lags.len());
        let lags = decode(&picture.lag_code, lags);
        let (punctual, late) = lags.split_at(9_999 * columns);
        assert!(punctual.iter().all(|lag_s| *lag_s == 0.0));
        assert_eq!(late.len(), columns);
        assert!((late[columns - 1] - 0.12).abs() < 0.001);
    }

    #[test]
    fn columns_are_joined_until_the_page_is_small_enough() {
        let columns: Vec<Column> = (0..5)
            .map(|at| Column {
                first_step: at,
                steps: 1,
                ..Column::default()
            })
            .collect();
        let joined = joined(&columns, 2);
        assert_eq!(
            joined.iter().map(|c| c.steps).collect::<Vec<_>>(),
            [2, 2, 1]
        );
        assert_eq!(joined.last().unwrap().first_step(), 4);
    }

    #[test]
    fn a_rank_that_delivered_nothing_is_not_drawn_as_punctual() {
        let window = |first_step, missing: &[u32]| {
            let window = sample::healthy().verdict().windows.swap_remove(0);
            WindowSummary {
                first_step,
                steps: 10,
                missing_ranks: missing.into(),
                ..window
            }
        };
        // The third window is the first of another attempt.
        let windows = [
            window(0, &[]),
            window(10, &[7]),
            window(0, &[7]),
            window(10, &[]),
        ];
        let absences = absences(&windows, &[0, 5, 10, 15, 0, 5, 10], &[2, 7]);
        assert_eq!(
            absences,
            [Absence {
                row: 1,
                first_column: 2,
                last_column: 5
            }]
        );
    }

    #[test]
    fn an_incident_covers_the_columns_of_its_steps() {
        let (first, last) = ([10, 20, 30], [19, 29, 35]);
        let covered = |from, to| {
            span(&first, &last, from, to).map(|span| (span.first_column, span.last_column))
        };
        assert_eq!(covered(10, 35), Some((0, 2)));
        assert_eq!(covered(25, 29), Some((1, 1)));
        assert_eq!(covered(36, 40), None);
    }

    #[test]
    fn after_a_restart_the_last_attempt_is_meant() {
        let (first, last) = ([0, 10, 20, 0, 10], [9, 19, 29, 9, 19]);
        let covered = |from, to| {
            span(&first, &last, from, to).map(|span| (span.first_column, span.last_column))
        };
        assert_eq!(covered(5, 12), Some((3, 4)));
        assert_eq!(covered(25, 29), Some((2, 2)));
    }
}
