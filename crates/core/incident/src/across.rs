//! Ranks that are alone in their roles.

mod alone;

use std::collections::{BTreeMap, BTreeSet};

use model::{
    Action, Claim, Cost, Fact, Finding, JobContext, Label, LateRanks, LateStage, Observation,
    Origin, Pace, Side, StageAccount, StageId, StepSpan, Subject, UnlikeDevice, Window, median,
};

use crate::tracker::step_part;
use crate::{DeviceAccount, IncidentSettings};
use alone::{Alone, DeviceRow, MIN_ROWS, Row, SCATTERS};

/// Stages in which hosts of all roles do the same: what they do elsewhere, as in an optimizer, is
/// as much as their part of the model asks for.
const STAGES: [StageId; 2] = [StageId::DATA, StageId::CALLBACKS];
/// A rank that is done with a stage sooner has nothing to do there, and is no measure of others.
const LEAST_S: f64 = 1e-4;
/// Part of what a device takes longer that most others must not take longer as well, to name it.
/// Ours, as in blocks.
const OWN_SHARE: f64 = 0.5;

/// What ranks do that nobody shares a role with, as each stage of a pipeline is one.
///
/// Nobody is their peer in what is their role's. What a host does by itself before it launches the
/// next step is no role's: waits for devices, which ranks pass there as well, are known in sampled
/// steps and left out. What a device does in its optimizer is compared with what it did there before.
/// # Source
/// Ours: docs/math/device.md.
#[derive(Debug, Default)]
pub struct AcrossRoles {
    alone: BTreeMap<u32, Alone>,
    /// Which start of the job it is.
    start: u32,
}

/// A rank that is late beside those of other roles, or beside what it took before.
struct Late {
    rank: u32,
    stage: StageId,
    side: Side,
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

/// The id of what is known by its place in the job, in its first start or in one of those after it:
/// incidents of all starts stand side by side.
pub fn id_in_start(id: String, start: u32) -> String {
    match start {
        0 => id,
        _ => format!("{id}.{}", start.saturating_add(1)),
    }
}

impl AcrossRoles {
    /// Takes a window that was exposed for so long, and what is known of its devices.
    pub fn take(
        &mut self,
        window: &Window,
        exposed_s: f64,
        account: Option<&DeviceAccount>,
        settings: &IncidentSettings,
    ) {
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
        alone.take(account, settings.steady_share_min);
    }

    /// The job is started over: what was seen of its ranks is no word on this start.
    pub fn restart(&mut self) {
        *self = Self {
            start: self.start.saturating_add(1),
            ..Self::default()
        };
    }

    /// Ranks that are alone in their roles, and beside which nobody's host can be put: of none is it
    /// known what it did by itself.
    pub fn uncompared(&self) -> BTreeSet<u32> {
        let seen = self.alone.values().filter(|it| it.is_seen()).count();
        let alone = self.alone.iter();
        alone
            // A rank that is the only one seen has nobody beside it.
            .filter(|(_, it)| !it.is_seen() || seen < 2)
            .map(|(rank, _)| *rank)
            .collect()
    }

    /// Whose hosts are late in what hosts of other roles do, too, and whose devices became slow.
    pub fn findings(&self, settings: &IncidentSettings, context: JobContext<'_>) -> Vec<Finding> {
        self.findings_of(&self.ranks(), settings, context)
    }

    /// The same of some ranks.
    pub fn findings_of(
        &self,
        ranks: &[u32],
        settings: &IncidentSettings,
        context: JobContext<'_>,
    ) -> Vec<Finding> {
        let besides = self.besides(ranks, settings).into_iter();
        let hosts = besides.filter_map(|(rank, beside)| self.late_host(rank, &beside, settings));
        let ranks = ranks.iter();
        let devices = ranks.filter_map(|rank| self.slow_device(*rank, settings));
        hosts
            .chain(devices)
            .map(|late| self.finding(&late, settings, context))
            .collect()
    }

    /// Whether more should be known of the devices: in its last sampled step a rank was late.
    pub fn suspects_devices(&self, settings: &IncidentSettings) -> bool {
        let mut besides = self.besides(&self.ranks(), settings).into_iter();
        let last = |rank| self.alone.get(&rank).and_then(|alone| alone.rows.back());
        besides.any(|(rank, beside)| last(rank).is_some_and(|row| beside.is_late(row)))
            || self
                .alone
                .keys()
                .any(|rank| last(*rank).is_some_and(Row::is_device_late))
    }

    /// Ranks whose devices take longer in their optimizers than those of other roles, and always did.
    pub fn unlike_devices(
        &self,
        settings: &IncidentSettings,
        context: JobContext<'_>,
    ) -> Vec<UnlikeDevice> {
        let seen: Vec<(u32, &Alone, [f64; 2])> = self
            .alone
            .iter()
            .filter_map(|(rank, alone)| {
                let own_s = alone.device_level_s(|row| row.own_s)?;
                Some((
                    *rank,
                    alone,
                    [own_s, alone.device_level_s(|row| row.took_s)?],
                ))
            })
            .collect();
        let took_s: Vec<f64> = seen.iter().map(|(_, _, [_, took_s])| *took_s).collect();
        let beside = seen.iter().zip(model::medians_of_others(&took_s));
        beside
            // Its own part alone against all that the others took: what hosts may have held up
            // names no device.
            .filter(|((_, alone, [own_s, _]), others_s)| {
                let step_s = alone.median_of(|_| true, |row| row.makespan_s);
                let least_s = step_s.map(|step_s| settings.steady_share_min * step_s);
                // Without another rank there is nothing to be unlike.
                seen.len() > 1 && least_s.is_some_and(|least_s| own_s - others_s >= least_s)
            })
            .map(|((rank, _, [own_s, _]), others_s)| UnlikeDevice {
                rank: *rank,
                stage: context.names.name(StageId::OPTIMIZER).to_owned(),
                side: Side::Device,
                took_s: *own_s,
                others_s,
            })
            .collect()
    }

    fn ranks(&self) -> Vec<u32> {
        self.alone.keys().copied().collect()
    }

    /// Of each of these ranks, what those of other roles do, by stage.
    fn besides(&self, ranks: &[u32], settings: &IncidentSettings) -> Vec<(u32, Beside)> {
        let of_ranks = ranks
            .iter()
            .filter_map(|rank| Some((rank, self.alone.get(rank)?)));
        let seen: Vec<(&u32, &Alone)> = of_ranks.filter(|(_, it)| it.is_seen()).collect();
        let mut besides = Vec::new();
        // Most windows are of ranks that share a role.
        if seen.is_empty() {
            return besides;
        }
        for stage in STAGES {
            // Of the ranks that do something there.
            let usual: BTreeMap<u32, [f64; 2]> = self
                .alone
                .iter()
                .filter_map(|(rank, alone)| Some((*rank, alone.level(stage)?)))
                .filter(|(_, [usual_s, _])| *usual_s >= LEAST_S)
                .collect();
            besides.extend(seen.iter().filter_map(|(rank, alone)| {
                // Both of the others: by its own scatter a rank that is late now and then would
                // excuse itself.
                let [level_s, scatter_s] = [0, 1].map(|which| {
                    let others = usual.iter().filter(|(other, _)| other != rank);
                    median(&mut others.map(|(_, level)| level[which]).collect::<Vec<_>>())
                });
                let step_s = alone.median_of(|_| true, |row| row.makespan_s)?;
                let beside = Beside {
                    stage,
                    level_s: level_s?,
                    least_s: (settings.steady_share_min * step_s).max(SCATTERS * scatter_s?),
                };
                Some((**rank, beside))
            }));
        }
        besides
    }

    fn late_host(&self, rank: u32, beside: &Beside, settings: &IncidentSettings) -> Option<Late> {
        let (alone, stage) = (self.alone.get(&rank)?, beside.stage);
        let strikes = alone.steady_strikes(|row| beside.is_late(row))?;
        let first = *strikes.first()?;
        let lateness_s = alone.median_of(|row| beside.is_late(row), |row| beside.late_s(row))?;
        // Others may be later still, or a queue hides it: steps must have grown with it. Where it was
        // there from the first step on, its device must at least have waited.
        let before_s = alone.median_of(|row| row.step < first, |row| row.makespan_s);
        let struck_s = alone.median_of(|row| beside.is_late(row), |row| row.makespan_s)?;
        let is_known = alone.rows.iter().filter(|row| row.step < first).count() >= MIN_ROWS;
        // Steps may have grown for other reasons too: at most the lateness counts. It is positive,
        // as late rows exceed a threshold of 0 or more, so that the clamp has a range.
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
            side: Side::Host,
            goes_on: strikes.last() == alone.rows.back().map(|row| &row.step),
            strikes,
            level_s: beside.level_s,
            lateness_s,
            lost_s,
        })
    }

    /// A rank whose device takes longer in its optimizer than it did before, while others do not.
    fn slow_device(&self, rank: u32, settings: &IncidentSettings) -> Option<Late> {
        let alone = self.alone.get(&rank).filter(|it| it.is_seen())?;
        let strikes = alone.steady_strikes(Row::is_device_late)?;
        let first = *strikes.first()?;
        let of_struck = |value: fn(&DeviceRow) -> Option<f64>| {
            let struck = alone.rows.iter().filter(|row| row.is_device_late());
            let values = struck.filter_map(|row| value(row.device.as_ref()?));
            median(&mut values.collect::<Vec<_>>())
        };
        let growth = alone.device_growth_since(first)?;
        let others = self.alone.iter().filter(|(other, _)| **other != rank);
        let mut others: Vec<f64> = others
            .filter_map(|(_, alone)| alone.device_growth_since(first))
            .collect();
        // What is slow everywhere is not its own.
        // Without another rank nothing shows whether it is.
        if growth - median(&mut others)? < OWN_SHARE * growth {
            return None;
        }
        let lateness_s = of_struck(DeviceRow::late_s)?;
        let before_s = of_struck(|row| Some(row.usual.as_ref()?.makespan_s))?;
        let struck_s = alone.median_of(Row::is_device_late, |row| row.makespan_s)?;
        // Where its next input is not there yet, nobody waits for it.
        let lost_s = (struck_s - before_s).clamp(0.0, lateness_s);
        (lost_s > 0.0 && lost_s >= settings.steady_share_min * struck_s).then_some(Late {
            rank,
            stage: StageId::OPTIMIZER,
            side: Side::Device,
            goes_on: strikes.last() == alone.rows.back().map(|row| &row.step),
            strikes,
            level_s: of_struck(|row| Some(row.usual.as_ref()?.took_s))?,
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
        // Strikes ascend, so that the last is not before the first.
        let lost_s = late.lost_s * (last + 1 - first) as f64;
        let cost_share = lost_s / exposed_s.max(lost_s);
        let open = !context.ended && late.goes_on;
        let stage = context.names.name(late.stage).to_owned();
        let account = StageAccount {
            label: Label::FrontierAccounting,
            stages: vec![LateStage {
                stage: stage.clone(),
                lateness_s: late.lateness_s,
            }],
            struck_steps: late.strikes.len() as u64,
            lateness_s: late.lateness_s,
            gain_alone_s: lost_s,
            stage_share: cost_share,
            stage_gain: cost_share,
            median_lag_s: late.lateness_s,
        };
        let claim = LateRanks {
            ranks: ranks.clone(),
            stage: stage.clone(),
            other_stages: Vec::new(),
            place: None,
            side: Some(late.side),
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
                side: Some(late.side),
                ..Subject::default()
            },
            pace: Pace::Steady,
            first_step: first,
            last_step: last,
            victims: context.others(&ranks),
            cost: Cost::saved_whole(lost_s, cost_share),
            facts: vec![Fact::from(Observation::OwnWork(account))],
            actions: vec![match late.side {
                Side::Device => Action::CompareDevices { ranks },
                Side::Host => Action::LookAtStage {
                    part: step_part(late.stage, context.names),
                    ranks,
                },
            }],
            ..Finding::new(
                Origin::Stages,
                // With the stage: `a3` alone is the id of a late arrival.
                id_in_start(format!("a{}-{}", late.rank, late.stage.0), self.start),
                Claim::LateRanks(claim),
            )
        }
    }
}
