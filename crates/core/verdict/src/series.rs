use std::collections::BTreeMap;

use frontier::{StageStep, StepAccount, WindowFrontier};
use model::{StageId, Window};

/// Columns kept of a job of many ranks, and of few; when there are more, neighbours are joined.
const COLUMNS: [usize; 2] = [128, 1024];
/// Lags kept of a stage, within the bounds on columns.
const CELLS: usize = 1 << 21;
/// Ranks whose lag is kept one by one.
const MAX_RANKS: usize = 16_384;

/// Exposed time and lag over the run, at a resolution that fits a picture.
///
/// # Invariants
/// At most 1024 columns, fewer of thousands of ranks; together they hold every analysed step
/// once.
#[derive(Clone, Debug, Default)]
pub struct Series {
    columns: Vec<Column>,
    /// Steps a column holds.
    width: u64,
    ranks: Vec<u32>,
    /// First step of the last window.
    window_first: Option<u64>,
}

/// Neighbouring steps of a [`Series`].
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// First step.
    pub first_step: u64,
    /// Number of steps.
    pub steps: u64,
    /// Exposed seconds of each stage; the mean over the groups where roles divide the job.
    pub advance_s: BTreeMap<StageId, f64>,
    /// Seconds each rank of the series reached a stage's leading boundary after the median
    /// rank, summed over the column's steps.
    pub lag_s: BTreeMap<StageId, Vec<f32>>,
}

impl Series {
    /// The columns, in step order.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The ranks of the lags, ascending.
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// Adds the steps of a window.
    pub(crate) fn add(&mut self, window: &Window, found: &WindowFrontier) {
        self.admit(&window.ranks);
        // Windows of another role over the same steps.
        let beside = window.group_share < 1.0 && self.window_first == Some(window.first_step);
        self.window_first = Some(window.first_step);
        let places: Vec<Option<usize>> = self
            .ranks
            .iter()
            .map(|rank| window.ranks.binary_search(rank).ok())
            .collect();
        for account in &found.steps {
            let mut column = Column {
                first_step: account.step,
                steps: 1,
                ..Column::default()
            };
            each_stage(window, found, account, |stage, leading, spent_s| {
                let advance_s = leading.advance_s * window.group_share;
                column.advance_s.insert(stage, advance_s);
                column.lag_s.insert(stage, lags(&places, spent_s));
            });
            let known = self.columns.iter_mut().rev();
            let mut known = known.filter(|known| known.first_step <= account.step);
            match known.next().filter(|_| beside) {
                // Its steps were counted with the role that came first.
                Some(known) => known.absorb(Column { steps: 0, ..column }),
                None => self.push(column),
            }
        }
    }

    /// Makes room for ranks that were not seen before.
    fn admit(&mut self, ranks: &[u32]) {
        let known = self.ranks.clone();
        for rank in ranks {
            if let Err(place) = self.ranks.binary_search(rank)
                && self.ranks.len() < MAX_RANKS
            {
                self.ranks.insert(place, *rank);
            }
        }
        if self.ranks.len() == known.len() {
            return;
        }
        let places: Vec<Option<usize>> = self
            .ranks
            .iter()
            .map(|rank| known.binary_search(rank).ok())
            .collect();
        for lags in self
            .columns
            .iter_mut()
            .flat_map(|column| column.lag_s.values_mut())
        {
            *lags = places
                .iter()
                .map(|place| place.map_or(0.0, |place| lags[place]))
                .collect();
        }
    }

    fn push(&mut self, step: Column) {
        self.width = self.width.max(1);
        match self.columns.last_mut() {
            Some(last) if last.steps < self.width => last.absorb(step),
            _ => self.columns.push(step),
        }
        let most = (CELLS / self.ranks.len().max(1)).clamp(COLUMNS[0], COLUMNS[1]);
        while self.columns.len() > most {
            // Doubled, so that whole columns are joined and none is split.
            self.width *= 2;
            let mut joined: Vec<Column> = Vec::with_capacity(most);
            for column in std::mem::take(&mut self.columns) {
                match joined.last_mut() {
                    Some(last) if last.steps < self.width => last.absorb(column),
                    _ => joined.push(column),
                }
            }
            self.columns = joined;
        }
    }
}

/// Tells of each stage of a step what it cost at the boundary that leads it, and what each rank
/// of the window had spent in the step when it came there, in seconds.
pub(crate) fn each_stage(
    window: &Window,
    found: &WindowFrontier,
    account: &StepAccount,
    mut each: impl FnMut(StageId, &StageStep, &[f64]),
) {
    let block = &window.blocks[account.block];
    let mut spent_s = vec![0.0; window.ranks.len()];
    let rows = block.row(account.row).chunks_exact(block.ranks);
    for (boundary, durations) in rows.enumerate() {
        for (spent, duration) in spent_s.iter_mut().zip(durations) {
            *spent += duration;
        }
        let stage = block.boundaries[boundary].stage;
        let leading = found
            .slot(stage)
            .and_then(|slot| account.stages[slot].as_ref());
        if let Some(leading) = leading.filter(|leading| leading.boundary == boundary) {
            each(stage, leading, &spent_s);
        }
    }
}

/// Lag of each rank of the series behind the median rank of a window, given its place there.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a picture needs no more digits"
)]
pub(crate) fn lags(places: &[Option<usize>], prefixes: &[f64]) -> Vec<f32> {
    // The lower middle: with two ranks, the punctual one.
    let mut order = prefixes.to_vec();
    let middle = (order.len().max(1) - 1) / 2;
    let middle_s = match order.get(middle) {
        Some(_) => *order.select_nth_unstable_by(middle, f64::total_cmp).1,
        None => 0.0,
    };
    places
        .iter()
        .map(|place| place.map_or(0.0, |at| (prefixes[at] - middle_s).max(0.0) as f32))
        .collect()
}

impl Column {
    fn absorb(&mut self, other: Self) {
        self.steps += other.steps;
        for (stage, seconds) in other.advance_s {
            *self.advance_s.entry(stage).or_default() += seconds;
        }
        for (stage, lags) in other.lag_s {
            let sums = self
                .lag_s
                .entry(stage)
                .or_insert_with(|| vec![0.0; lags.len()]);
            for (sum, lag) in sums.iter_mut().zip(lags) {
                *sum += lag;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: StageId = StageId::DATA;

    fn step(first_step: u64, lags_s: &[f32]) -> Column {
        Column {
            first_step,
            steps: 1,
            advance_s: [(DATA, 1.0)].into(),
            lag_s: [(DATA, lags_s.to_vec())].into(),
        }
    }

    #[test]
    fn what_is_joined_keeps_every_step_and_every_second() {
        let ranks = 10_000;
        let mut series = Series {
            ranks: (0..ranks).collect(),
            ..Series::default()
        };
        let mut lags_s = vec![0.0; ranks as usize];
        lags_s[7] = 0.5;
        for at in 0..1000 {
            series.push(step(at, &lags_s));
        }
        let columns = series.columns();
        assert!((105..=209).contains(&columns.len()), "{}", columns.len());
        assert_eq!(columns.iter().map(|column| column.steps).sum::<u64>(), 1000);
        let total = |of: &dyn Fn(&Column) -> f64| columns.iter().map(of).sum::<f64>();
        assert!((total(&|c| c.advance_s[&DATA]) - 1000.0).abs() < 1e-9);
        assert!((total(&|c| f64::from(c.lag_s[&DATA][7])) - 500.0).abs() < 1e-3);
    }

    #[test]
    fn lag_counts_from_the_median_rank_of_the_window() {
        let places = [Some(0), None, Some(1), Some(2)];
        assert_eq!(lags(&places, &[1.0, 3.0, 2.0]), [0.0, 0.0, 1.0, 0.0]);
        assert_eq!(lags(&[Some(0), Some(1)], &[1.0, 1.5]), [0.0, 0.5]);
    }
}
