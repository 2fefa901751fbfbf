//! Hosts of ranks that are alone in their roles.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::{
    Action, Claim, Cost, Fact, Finding, JobContext, Label, LateRanks, Observation, Origin, Pace,
    Side, StageAccount, StageId, StepSpan, Subject, Window, median,
};

use crate::pace::{Seen, pace_of};
use crate::tracker::step_part;
use crate::{DeviceAccount, IncidentSettings};

/// Stages in which hosts of all roles do the same: what they do elsewhere, as in an optimizer, is
/// as much as their part of the model asks for.
const STAGES: [StageId; 2] = [StageId::DATA, StageId::CALLBACKS];
/// Sampled steps of a rank that are remembered: those of an account or two.
const MAX_ROWS: usize = 128;
/// Rows by which it is known what a rank does. Ours, as many as make an account.
const MIN_ROWS: usize = 5;
/// A rank that is done with a stage sooner has nothing to do there, and is no measure of others.
const LEAST_S: f64 = 1e-4;
/// How many times the scatter of the others a rank must be late by. Ours.
const SCATTERS: f64 = 3.0;

/// What hosts of ranks do that nobody shares a role with, as each stage of a pipeline is one.
///
/// Nobody is their peer in what is their role's. What a host does by itself before it launches the
/// next step is no role's: waits for devices, which ranks pass there as well, are known in sampled
/// steps and left out.
/// # Source
/// Ours: docs/math/device.md.
#[derive(Debug, Default)]
pub struct AcrossRoles {
    alone: BTreeMap<u32, Alone>,
}

/// A rank that is alone in its role.
#[derive(Debug, Default)]
struct Alone {
    rows: VecDeque<Row>,
    /// Exposed time of all of its windows, and their last step.
    exposed_s: f64,
    last_step: u64,
}

/// What its host did by itself in a sampled step.
#[derive(Debug)]
struct Row {
    step: u64,
    makespan_s: f64,
    own_s: BTreeMap<StageId, f64>,
    /// For how long it must have held its device up.
    held_s: BTreeMap<StageId, f64>,
}

/// A rank that is late beside those of other roles.
struct Late {
    rank: u32,
    stage: StageId,
    /// Sampled steps in which it was; the pace is steady.
    strikes: Vec<u64>,
    /// Whether it was late in the last sampled step.
    goes_on: bool,
    level_s: f64,
    lateness_s: f64,
    /// What steps lost to it.
    lost_s: f64,
}

/// What ranks of other roles do in a stage, and by how much more a rank is late beside them.
struct Beside {
    stage: StageId,
    level_s: f64,
    least_s: f64,
}

impl Beside {
    fn late_s(&self, row: &Row) -> f64 {
        let own_s = row.own_s.get(&self.stage);
        own_s.map_or(0.0, |own_s| own_s - self.level_s)
    }

    fn is_late(&self, row: &Row) -> bool {
        self.late_s(row) > self.least_s
    }
}

impl AcrossRoles {
    /// Takes a window that was exposed for so long, and what is known of its devices.
    pub fn take(&mut self, window: &Window, exposed_s: f64, account: Option<&DeviceAccount>) {
        let &[rank] = &window.ranks[..] else {
            return;
        };
        // The only rank of a job has no role.
        if window.group_share >= 1.0 {
            return;
        }
        let alone = self.alone.entry(rank).or_default();
        alone.exposed_s += exposed_s;
        alone.last_step = window.first_step + window.steps.saturating_sub(1);
        for row in account.into_iter().flat_map(rows_of) {
            if alone.rows.len() == MAX_ROWS {
                alone.rows.pop_front();
            }
            alone.rows.push_back(row);
        }
    }

    /// Ranks that are alone in their roles, and beside which nobody's host can be put: of none is it
    /// known what it did by itself.
    pub fn uncompared(&self) -> BTreeSet<u32> {
        let seen = self.alone.values().filter(|it| it.is_seen()).count();
        let alone = self.alone.iter();
        alone
            .filter(|(_, it)| !it.is_seen() || seen < 2)
            .map(|(rank, _)| *rank)
            .collect()
    }

    /// Whose hosts are late in what hosts of other roles do, too.
    pub fn findings(&self, settings: &IncidentSettings, context: JobContext<'_>) -> Vec<Finding> {
        let mut late = Vec::new();
        for stage in STAGES {
            let usual: BTreeMap<u32, [f64; 2]> = self
                .alone
                .iter()
                .filter_map(|(rank, alone)| Some((*rank, alone.level(stage)?)))
                .filter(|(_, [usual_s, _])| *usual_s >= LEAST_S)
                .collect();
            let ranks = self.alone.keys();
            late.extend(ranks.filter_map(|rank| self.late(*rank, stage, &usual, settings)));
        }
        late.iter()
            .map(|late| self.finding(late, settings, context))
            .collect()
    }

    /// `usual` are those of the ranks that do something in the stage, as [`Alone::level`] gives them.
    fn late(
        &self,
        rank: u32,
        stage: StageId,
        usual: &BTreeMap<u32, [f64; 2]>,
        settings: &IncidentSettings,
    ) -> Option<Late> {
        let alone = self.alone.get(&rank).filter(|it| it.is_seen())?;
        let [level_s, scatter_s] = [0, 1].map(|which| {
            let others = usual.iter().filter(|(other, _)| **other != rank);
            median(&mut others.map(|(_, level)| level[which]).collect::<Vec<_>>())
        });
        let step_s = alone.median_of(|_| true, |row| row.makespan_s)?;
        let beside = Beside {
            stage,
            level_s: level_s?,
            least_s: (settings.steady_share_min * step_s).max(SCATTERS * scatter_s?),
        };
        let strikes: Vec<u64> = alone
            .rows
            .iter()
            .filter(|row| beside.is_late(row))
            .map(|it| it.step)
            .collect();
        let first = *strikes.first()?;
        let seen: Seen = alone.rows.iter().map(|row| row.step).collect();
        let last = alone.rows.back()?.step;
        let strikes_last = *strikes.last()?;
        if pace_of(&strikes, &seen, last) != Pace::Steady || strikes.len() < MIN_ROWS {
            return None;
        }
        let lateness_s = alone.median_of(|row| beside.is_late(row), |row| beside.late_s(row))?;
        // Others may be later still, or a queue hides it: steps must have grown with it. Where it was
        // there from the first step on, its device must at least have waited.
        let before_s = alone.median_of(|row| row.step < first, |row| row.makespan_s);
        let struck_s = alone.median_of(|row| beside.is_late(row), |row| row.makespan_s)?;
        let is_known = alone.rows.iter().filter(|row| row.step < first).count() >= MIN_ROWS;
        let lost_s = if let Some(before_s) = before_s.filter(|_| is_known) {
            (struck_s - before_s).clamp(0.0, lateness_s)
        } else {
            let held_s = alone.median_of(
                |row| beside.is_late(row),
                |row| row.held_s.get(&stage).copied().unwrap_or(0.0),
            );
            held_s?.min(lateness_s)
        };
        (lost_s > 0.0 && lost_s >= settings.steady_share_min * struck_s).then_some(Late {
            rank,
            stage,
            strikes,
            goes_on: strikes_last == last,
            level_s: beside.level_s,
            lateness_s,
            lost_s,
        })
    }

    fn finding(
        &self,
        late: &Late,
        settings: &IncidentSettings,
        context: JobContext<'_>,
    ) -> Finding {
        let ranks = vec![late.rank];
        let alone = self.alone.get(&late.rank);
        let (exposed_s, seen_until) =
            alone.map_or((0.0, 0), |alone| (alone.exposed_s, alone.last_step));
        let [first, struck] =
            [late.strikes.first(), late.strikes.last()].map(|it| it.copied().unwrap_or(0));
        // Sampled steps stand for those between them, and for those since the last one.
        let last = if late.goes_on {
            seen_until.max(struck)
        } else {
            struck
        };
        let lost_s = late.lost_s * (last + 1 - first) as f64;
        let cost_share = lost_s / exposed_s.max(lost_s);
        let open = !context.ended && late.goes_on;
        let stage = context.names.name(late.stage).to_owned();
        let account = StageAccount {
            label: Label::FrontierAccounting,
            stages: vec![stage.clone()],
            struck_steps: late.strikes.len() as u64,
            lateness_s: late.lateness_s,
            cost_s: lost_s,
            stage_share: cost_share,
            stage_gain: cost_share,
            median_lag_s: late.lateness_s,
        };
        let claim = LateRanks {
            ranks: ranks.clone(),
            stage: stage.clone(),
            other_stages: Vec::new(),
            place: None,
            side: Some(Side::Host),
            usual_s: late.level_s,
            lateness_s: late.lateness_s,
            pace: Pace::Steady,
            steps: StepSpan { first, last, open },
            cost_share,
            gain_alone_s: lost_s,
            hidden: false,
            next_in_line: Vec::new(),
        };
        Finding {
            severity: settings.severity(cost_share),
            open,
            subject: Subject {
                ranks: ranks.clone(),
                hosts: context.hosts_of(&ranks),
                stage: Some(stage),
                side: Some(Side::Host),
                ..Subject::default()
            },
            pace: Pace::Steady,
            first_step: first,
            last_step: last,
            victims: context.others(&ranks),
            cost: Cost::saved_whole(lost_s, cost_share),
            facts: vec![Fact::from(Observation::OwnWork(account))],
            actions: vec![Action::LookAtStage {
                part: step_part(late.stage, context.names),
                ranks,
            }],
            ..Finding::new(
                Origin::Stages,
                format!("a{}-{}", late.rank, late.stage.0),
                Claim::LateRanks(claim),
            )
        }
    }
}

impl Alone {
    fn is_seen(&self) -> bool {
        self.rows.len() >= MIN_ROWS
    }

    /// What it usually takes in a stage, and how far it is off that, at the ninth of ten.
    fn level(&self, stage: StageId) -> Option<[f64; 2]> {
        let mut own_s: Vec<f64> = self
            .rows
            .iter()
            .filter_map(|row| row.own_s.get(&stage).copied())
            .collect();
        let usual_s = median(&mut own_s).filter(|_| own_s.len() >= MIN_ROWS)?;
        let mut off_s: Vec<f64> = own_s.iter().map(|own_s| (own_s - usual_s).abs()).collect();
        off_s.sort_by(f64::total_cmp);
        Some([usual_s, *off_s.get(off_s.len() * 9 / 10)?])
    }

    fn median_of(&self, of: impl Fn(&Row) -> bool, value: impl Fn(&Row) -> f64) -> Option<f64> {
        let rows = self.rows.iter().filter(|row| of(row));
        median(&mut rows.map(value).collect::<Vec<_>>())
    }
}

/// What the host of a rank did by itself in the rows of an account of it alone.
fn rows_of(account: &DeviceAccount) -> impl Iterator<Item = Row> {
    let sampled = &account.sampled;
    account.found.steps.iter().filter_map(|step| {
        let block = sampled.window.blocks.get(step.block)?;
        let size = block.boundaries.len();
        let cells = step.row * size..(step.row + 1) * size;
        let took_s = sampled.host.took_s.get(step.block)?.get(cells.clone())?;
        let read_s = sampled.host.read_s.get(step.block)?.get(cells.clone())?;
        let held_s = sampled.host_bound_least_s.get(step.block)?.get(cells)?;
        let mut own_s: BTreeMap<StageId, f64> = BTreeMap::new();
        let mut held_in_s: BTreeMap<StageId, f64> = BTreeMap::new();
        for (boundary, held_s) in block.boundaries.iter().zip(held_s) {
            *held_in_s.entry(boundary.stage).or_default() += held_s;
        }
        for (boundary, (took_s, read_s)) in block.boundaries.iter().zip(took_s.iter().zip(read_s)) {
            *own_s.entry(boundary.stage).or_default() += took_s - read_s;
        }
        Some(Row {
            step: step.step,
            makespan_s: step.makespan_s,
            own_s,
            held_s: held_in_s,
        })
    })
}
