use std::ops::Range;

use frontier::{Gates, WindowFrontier};
use model::{JobContext, Label, RankNs, Window};

use crate::series::{each_stage, lags};

/// How much is remembered of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remember {
    /// When they were.
    Times,
    /// And what their stages cost, and who was late: as much work as [`crate::Series`].
    Stages,
}

/// What is remembered of a window when the job is over.
///
/// # Properties
/// With [`Remember::Stages`], over all records of a job, the advances of a stage sum to its advance in the verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowRecord {
    /// First step.
    pub first_step: u64,
    /// Number of steps.
    pub steps: u64,
    /// When the first rank began and the last one ended its steps, by the clock of the job's
    /// first host.
    pub span: Range<RankNs>,
    /// Ranks that were compared.
    pub ranks: usize,
    /// Ranks that should have been there.
    pub missing_ranks: Vec<u32>,
    /// Labels in their fixed order.
    pub labels: Vec<Label>,
    /// Its stages, in schema order; none with [`Remember::Times`].
    pub stages: Vec<StageRecord>,
}

/// What is remembered of a stage of a window.
#[derive(Clone, Debug, PartialEq)]
pub struct StageRecord {
    /// The stage.
    pub stage: String,
    /// Exposed seconds it was charged with; where roles divide the job, weighed by the ranks of
    /// the window's role.
    pub advance_s: f64,
    /// Its share of the window's exposed time.
    pub share: f64,
    /// Share of the window's exposed time that would vanish at the baseline.
    pub gain: f64,
    /// Ranks that reached its boundary last in more than half of the steps.
    pub lead_ranks: Vec<u32>,
    /// Ranks that reached it late.
    pub late: Vec<LateRank>,
}

/// A rank that was later than its peers by more than noise.
#[derive(Clone, Debug, PartialEq)]
pub struct LateRank {
    /// The rank.
    pub rank: u32,
    /// Its host, where that is known.
    pub host: Option<String>,
    /// Seconds it came after the median rank, summed over the window's steps.
    pub lag_s: f64,
}

impl WindowRecord {
    /// What is remembered of `window`, in which `found` was found.
    pub(crate) fn new(
        remember: Remember,
        (window, span): (&Window, Range<RankNs>),
        found: &WindowFrontier,
        gates: &Gates,
        context: JobContext<'_>,
    ) -> Self {
        let stages = match remember {
            Remember::Times => Vec::new(),
            Remember::Stages => stages(window, found, gates, context),
        };
        Self {
            first_step: window.first_step,
            steps: window.steps,
            span,
            ranks: window.ranks.len(),
            missing_ranks: window.missing_ranks.clone(),
            labels: found.labels.clone(),
            stages,
        }
    }
}

fn stages(
    window: &Window,
    found: &WindowFrontier,
    gates: &Gates,
    context: JobContext<'_>,
) -> Vec<StageRecord> {
    let places: Vec<Option<usize>> = (0..window.ranks.len()).map(Some).collect();
    let stages = found.stages.len();
    let mut lag_s = vec![vec![0.0; places.len()]; stages];
    let mut led = vec![vec![0_u64; places.len()]; stages];
    for account in &found.steps {
        let notable_s = gates.notable_s(account.makespan_s);
        each_stage(window, found, account, |stage, leading, spent_s| {
            let Some(slot) = found.slot(stage) else {
                return;
            };
            for (sum, lag) in lag_s[slot].iter_mut().zip(lags(&places, spent_s)) {
                *sum += f64::from(lag);
            }
            // Within noise any rank may come last.
            led[slot][leading.leader] += u64::from(leading.gap_s > notable_s);
        });
    }
    let steps = found.steps.len() as u64;
    // Lags are summed over the steps, and so is the noise that they are compared with.
    let notable_s = gates.notable_s(found.step_s()) * steps as f64;
    let stages = found.stages.iter().enumerate().map(|(slot, stage)| {
        let led = window.ranks.iter().zip(&led[slot]);
        let lag_s = window.ranks.iter().zip(&lag_s[slot]);
        StageRecord {
            stage: context.names.name(*stage).to_owned(),
            advance_s: found.advance_s[slot] * found.taken_share * window.group_share,
            share: found.share[slot],
            gain: found.gain[slot],
            lead_ranks: led
                // A single rank leads every step.
                .filter(|(_, led)| places.len() > 1 && **led * 2 > steps)
                .map(|(rank, _)| *rank)
                .collect(),
            late: lag_s
                .filter(|(_, lag_s)| **lag_s > notable_s)
                .map(|(rank, lag_s)| LateRank {
                    rank: *rank,
                    host: context.hosts.get(rank).cloned(),
                    lag_s: *lag_s,
                })
                .collect(),
        }
    });
    stages.collect()
}

/// Records of windows since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct WindowRecords {
    /// What is remembered; nothing where nobody takes them.
    remember: Option<Remember>,
    records: Vec<WindowRecord>,
}

impl WindowRecords {
    /// Begins to remember windows.
    pub(crate) fn remember(&mut self, remember: Remember) {
        self.remember = Some(remember);
    }

    /// Adds a window and when it was, if it is to be remembered.
    pub(crate) fn add(
        &mut self,
        window: (&Window, Range<RankNs>),
        found: &WindowFrontier,
        gates: &Gates,
        context: JobContext<'_>,
    ) {
        let record = self
            .remember
            .map(|remember| WindowRecord::new(remember, window, found, gates, context));
        self.records.extend(record);
    }

    /// The records since the last call.
    pub(crate) fn take(&mut self) -> Vec<WindowRecord> {
        std::mem::take(&mut self.records)
    }
}

#[cfg(test)]
mod tests {
    use model::{Block, Boundary, Ending, Input, MarkKind, Source, StageId, Sync};
    use proptest::prelude::*;

    use super::*;
    use crate::{Job, Settings};

    const STAGES: [StageId; 3] = [StageId::DATA, StageId::FORWARD, StageId::BACKWARD];

    /// A window of `ranks` from the first on, which are half of the job's.
    fn window(first_rank: u32, ranks: usize, durations_s: Vec<f64>) -> Window {
        let boundary = |stage: StageId| Boundary {
            stage,
            after: MarkKind::StepBegin,
            ending: Ending::Mark(MarkKind::StepEnd),
            sync: Sync::None,
        };
        let steps = durations_s.len() / ranks / STAGES.len();
        let block = Block {
            boundaries: STAGES.map(boundary).into_iter().collect(),
            groups: None,
            steps: (7..).take(steps).collect(),
            durations_s,
            ranks,
            carried: 0,
        };
        Window {
            ranks: (first_rank..).take(ranks).collect(),
            group_share: 0.5,
            ..block.into()
        }
    }

    fn job() -> Job {
        let mut job = Job::new("job", Source::Run, Settings::default());
        job.remember(Remember::Stages);
        job
    }

    const SPAN: Range<RankNs> = RankNs(5)..RankNs(9);

    proptest! {
        /// Whatever roles divide the job.
        #[test]
        fn advances_of_all_records_are_those_of_the_verdict(
            one in prop::collection::vec(0.0..2.0_f64, 3 * 4 * 5),
            other in prop::collection::vec(0.0..2.0_f64, 3 * 4 * 5),
        ) {
            let mut job = job();
            job.analyse(window(0, 4, one), Some(SPAN));
            job.analyse(window(4, 4, other), Some(SPAN));
            let records = job.take_records();
            prop_assert_eq!(records.len(), 2);
            prop_assert!(job.take_records().is_empty());
            for stage in job.verdict().stages {
                let stages = records.iter().flat_map(|record| &record.stages);
                let same = stages.filter(|known| known.stage == stage.name);
                let advance_s: f64 = same.map(|known| known.advance_s).sum();
                prop_assert!((advance_s - stage.advance_s).abs() < 1e-9);
            }
        }
    }

    /// In one window two faults go on with one incident, each in steps of its own.
    #[test]
    fn faults_that_one_incident_takes_together_strike_each_step_once() {
        let late = [
            [0.0, 0.0, 0.8, 0.0, 0.0, 0.0, 1.7, 0.0, 0.0, 0.5, 0.0, 0.7],
            [0.0, 0.0, 1.9, 0.0, 0.0, 0.2, 0.7, 0.1, 0.6, 0.0, 1.9, 0.0],
            [0.0, 1.6, 0.0, 0.0, 1.1, 0.0, 0.6, 1.7, 0.0, 2.0, 0.0, 0.7],
            [0.0, 0.0, 0.0, 1.3, 1.9, 0.0, 0.0, 1.7, 0.0, 1.7, 0.0, 1.5],
            [0.0, 0.0, 0.0, 0.0, 1.7, 0.0, 0.0, 0.0, 0.0, 1.9, 0.0, 0.4],
        ];
        let mut job = job();
        job.analyse(window(0, 4, vec![0.0; 60]), Some(SPAN));
        job.analyse(window(4, 4, late.concat()), Some(SPAN));
        let reported = job.verdict().incidents;
        let struck: Vec<f64> = reported
            .iter()
            .map(|it| it.evidence[0].values["struck_steps"])
            .collect();
        assert_eq!(struck, [4.0], "{reported:?}");
    }

    #[test]
    fn times_are_remembered_without_stages() {
        let mut job = Job::new("job", Source::Run, Settings::default());
        job.analyse(window(0, 4, vec![1.0; 60]), Some(SPAN));
        assert!(job.take_records().is_empty());
        job.remember(Remember::Times);
        job.analyse(window(0, 4, vec![1.0; 60]), Some(SPAN));
        let records = job.take_records();
        assert_eq!((records.len(), records[0].span.clone()), (1, SPAN));
        assert!(records[0].stages.is_empty());
    }

    #[test]
    fn a_late_rank_is_remembered_with_its_host_from_where_it_is_late() {
        let mut job = job();
        let (host, role) = ("h1".to_owned(), None);
        let (first_local, locals, world_size) = (0, 4, 8);
        job.take(Input::Rank {
            rank: 2,
            host,
            role,
            first_local,
            locals,
            world_size,
        });
        let step = [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.8, 0.5, 2.0, 2.0, 2.0, 2.0];
        job.analyse(window(0, 4, step.repeat(5)), Some(SPAN));
        let records = job.take_records();
        let late = |at: usize| records[0].stages[at].late.clone();
        assert_eq!(
            (late(0), records[0].stages[0].lead_ranks.len()),
            (Vec::new(), 0)
        );
        for at in [1, 2] {
            let [found] = late(at).try_into().unwrap();
            assert_eq!((found.rank, found.host.as_deref()), (2, Some("h1")));
            assert!((found.lag_s - 1.5).abs() < 1e-6, "{found:?}");
            assert_eq!(records[0].stages[at].lead_ranks, [2]);
        }
        assert_eq!((records[0].first_step, records[0].steps), (7, 5));
        assert_eq!((records[0].ranks, records[0].span.clone()), (4, SPAN));
    }
}
