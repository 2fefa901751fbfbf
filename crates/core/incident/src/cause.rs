//! Causes that no rank in particular is to blame for.

use std::collections::BTreeMap;

use frontier::WindowFrontier;
use model::{Ending, MarkKind, Meeting, Side, StageId, Sync, Window, lower_median, median};

use crate::{DeviceAccount, Devices, Fault, FaultKind, IncidentSettings};

/// Fewest rows of a window that may serve as, or be compared with, the job's own past.
const MIN_ROWS: usize = 10;
/// Numbers of passes of which the best is remembered. Ours: a job whose steps differ by more has no usual step.
const MAX_PASSES: usize = 16;

/// The job's own best window: what its steps cost when nothing was wrong.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reference {
    step_s: f64,
    advance_s: BTreeMap<StageId, f64>,
}

impl Reference {
    /// What a window would set as reference, `None` if it is too short.
    pub(crate) fn of(found: &WindowFrontier) -> Option<Self> {
        (found.steps.len() >= MIN_ROWS).then(|| Self::of_rows(found))
    }

    /// The same of sampled steps, however few.
    pub(crate) fn of_rows(found: &WindowFrontier) -> Self {
        let advances = found.stages.iter().enumerate().map(|(slot, stage)| {
            let steps = found.steps.iter();
            let mut advances: Vec<f64> = steps
                .filter_map(|step| Some(step.stages[slot]?.advance_s))
                .collect();
            (*stage, median(&mut advances).unwrap_or(0.0))
        });
        Self {
            advance_s: advances.collect(),
            step_s: found.median_step_s(),
        }
    }

    /// The better of two.
    pub(crate) fn better(self, other: Self) -> Self {
        if other.step_s < self.step_s {
            other
        } else {
            self
        }
    }

    /// The stage that takes longer now, by most.
    fn slower_stage(&self, now: &Self) -> Option<StageId> {
        now.advance_s
            .iter()
            .map(|(stage, now_s)| {
                // A stage that the best window lacks took nothing then.
                let before_s = self.advance_s.get(stage).copied().unwrap_or(0.0);
                (*stage, now_s - before_s)
            })
            // Of equals the first stage, so that a window always gives the same answer.
            .max_by(|(a, more_s), (b, other_s)| more_s.total_cmp(other_s).then(b.cmp(a)))
            .map(|(stage, _)| stage)
    }
}

/// What a group of ranks did at best, by its hosts' clocks and by its devices'.
#[derive(Clone, Debug, Default)]
pub(crate) struct Best {
    host: BestByPasses,
    device: BestByPasses,
}

impl Best {
    /// Takes in another window, and the account of its devices.
    pub(crate) fn take(&mut self, window: &Window, found: &WindowFrontier, devices: Devices<'_>) {
        if let Some(now) = Reference::of(found) {
            self.host.take(window, now);
        }
        if let Devices::Accounted(account) = devices {
            let now = Reference::of_rows(&account.found);
            self.device.take(&account.sampled.window, now);
        }
    }
}

/// By how many backward passes a step has: what accumulates more gradients takes longer and is not slower.
#[derive(Clone, Debug, Default)]
struct BestByPasses(BTreeMap<usize, Reference>);

impl BestByPasses {
    fn of(&self, window: &Window) -> Option<&Reference> {
        self.0.get(&passes(window))
    }

    fn take(&mut self, window: &Window, now: Reference) {
        let passes = passes(window);
        let best = match self.0.remove(&passes) {
            Some(known) => known.better(now),
            None => now,
        };
        if self.0.len() < MAX_PASSES {
            self.0.insert(passes, best);
        }
    }
}

/// How many backward passes most steps of a window have.
fn passes(window: &Window) -> usize {
    let most = window.blocks.iter().max_by_key(|block| block.steps.len());
    let boundaries = most.into_iter().flat_map(|block| block.boundaries.iter());
    let ends = boundaries.filter(|it| it.ending == Ending::Mark(MarkKind::BackwardEnd));
    ends.count()
}

/// Finds what holds all ranks of a window back alike.
///
/// `faults` are those of single ranks: what they explain is not explained again. Where hosts run
/// ahead of their devices, these say in which stage, and nothing is found until they do.
pub(crate) fn common_causes(
    window: &Window,
    found: &WindowFrontier,
    faults: &[Fault],
    best: &Best,
    devices: Devices<'_>,
    settings: &IncidentSettings,
) -> Vec<Fault> {
    let account = match devices {
        Devices::Awaited { .. } => return Vec::new(),
        Devices::Accounted(account) if account.runs_ahead() => Some(account),
        _ => None,
    };
    let mut causes = Vec::new();
    causes.extend(input_bound(window, found, faults, account, settings));
    // A loader that became slow makes steps longer, too: what all wait for is the nearer cause.
    if causes.is_empty() {
        let all_s: f64 = faults.iter().map(|fault| fault.cost_s).sum();
        let devices = account.and_then(|it| Some((it, best.device.of(&it.sampled.window)?)));
        // Hosts that seldom read back launch some steps at once, and wait long in others.
        let (now, reference) = match devices.filter(|(account, _)| account.shows_waits()) {
            Some((account, best)) => (Some(Reference::of_rows(&account.found)), Some(best)),
            None => (Reference::of(found), best.host.of(window)),
        };
        let degraded = now.zip(reference).and_then(|(now, reference)| {
            degraded((window, found), all_s, &now, reference, settings)
        });
        causes.extend(degraded.map(|fault| match devices {
            Some((account, best)) => on_devices(fault, account, best),
            None => fault,
        }));
    }
    let is_open = causes.is_empty() && !faults.iter().any(|fault| fault.notable);
    // Where devices are accounted, who comes last is measured on their clocks.
    if is_open && account.is_none() {
        causes.extend(unknown_rank(window, found, settings));
    }
    causes
}

/// All ranks wait for data, their devices too.
fn input_bound(
    window: &Window,
    found: &WindowFrontier,
    faults: &[Fault],
    account: Option<&DeviceAccount>,
    settings: &IncidentSettings,
) -> Option<Fault> {
    let of_stage = faults.iter().filter(|fault| fault.stage == StageId::DATA);
    // What late ranks cost in their loaders is an incident of theirs.
    let explained_s: f64 = of_stage.map(|fault| fault.cost_s).sum();
    let cost_s = match account {
        Some(DeviceAccount {
            sampled,
            found: sampled_found,
            ..
        }) => {
            // Faults cost what they do in all steps; this account is of the sampled ones.
            let scale = found.exposed_s / sampled_found.exposed_s;
            scale * waited_for_data_s(&sampled.window, sampled_found, explained_s / scale)?
        }
        None => waited_for_data_s(window, found, explained_s)?,
    };
    let dominant = cost_s >= settings.input_share_min * found.exposed_s;
    let is_bound = dominant && cost_s > 0.0;
    is_bound.then(|| {
        common(
            FaultKind::InputBound,
            StageId::DATA,
            cost_s,
            (window, found),
        )
    })
}

/// Where the devices became slower, and whether they wait for their hosts there.
fn on_devices(fault: Fault, account: &DeviceAccount, best: &Reference) -> Fault {
    let now = Reference::of_rows(&account.found);
    let Some(stage) = best.slower_stage(&now) else {
        return fault;
    };
    let side = if account.is_host_bound(stage) {
        Side::Host
    } else {
        Side::Device
    };
    Fault {
        stage,
        side: Some(side),
        ..fault
    }
}

/// Seconds the usual rank spends in a stage, over all steps: where all wait, so does it. The lower one of
/// two: if only half of the ranks are late there, it is theirs.
fn usual_s(window: &Window, stage: StageId) -> f64 {
    let mut sum_s = 0.0;
    for block in &window.blocks {
        for (_, row) in block.rows() {
            let mut totals_s = vec![0.0; block.ranks];
            let segments = row.chunks_exact(block.ranks).zip(block.boundaries.iter());
            for (cells, _) in segments.filter(|(_, boundary)| boundary.stage == stage) {
                for (total_s, seconds) in totals_s.iter_mut().zip(cells) {
                    *total_s += seconds;
                }
            }
            sum_s += lower_median(&mut totals_s).unwrap_or(0.0);
        }
    }
    sum_s
}

/// All ranks became slower than they were at best, beyond what faults of a window explain.
fn degraded(
    (window, found): (&Window, &WindowFrontier),
    explained_s: f64,
    now: &Reference,
    reference: &Reference,
    settings: &IncidentSettings,
) -> Option<Fault> {
    let steps = found.steps.len() as f64;
    // Late ranks that came up since make every step longer: that is their incident.
    let unexplained_s = now.step_s - explained_s / steps;
    let slower = unexplained_s >= settings.degraded_ratio * reference.step_s
        && unexplained_s - reference.step_s >= settings.degraded_min_s;
    if !slower {
        return None;
    }
    let stage = reference.slower_stage(now)?;
    let cost_s = (unexplained_s - reference.step_s) * steps;
    // One slow window is weather: the tracker speaks of it when a second one follows.
    Some(Fault {
        notable: false,
        ..common(FaultKind::Degraded, stage, cost_s, (window, found))
    })
}

/// What ranks wait for their data beyond what is explained; nothing if no rank did.
fn waited_for_data_s(window: &Window, found: &WindowFrontier, explained_s: f64) -> Option<f64> {
    let charged_s = found.advance_s[found.slot(StageId::DATA)?];
    // What is charged may be one rank's wait; what all wait for, the usual rank waits for too.
    Some((charged_s - explained_s).min(usual_s(window, StageId::DATA)))
}

fn unknown_rank(
    window: &Window,
    found: &WindowFrontier,
    settings: &IncidentSettings,
) -> Option<Fault> {
    let boundaries = window
        .blocks
        .iter()
        .flat_map(|block| block.boundaries.iter());
    let assumed = boundaries
        .clone()
        .any(|boundary| boundary.sync == Sync::Assumed)
        && !boundaries
            .clone()
            .any(|boundary| matches!(boundary.sync, Sync::Issue(_)));
    let slot = frontier::ranking(&found.share).first().copied()?;
    let dominant = found.share[slot] >= settings.unknown_share_min;
    // Where nothing is recorded, backward is where ranks are assumed to meet
    // (docs/math/frontier.md).
    let synchronises = found.stages[slot] == StageId::BACKWARD
        || frontier::synchronising_stages(window).contains(&found.stages[slot]);
    // Where ranks meet elsewhere, who comes last is measured.
    let assumed = assumed && window.meeting == Meeting::Issued;
    let unknown = window.ranks.len() > 1 && assumed && dominant && synchronises;
    unknown.then(|| {
        common(
            FaultKind::UnknownRank,
            found.stages[slot],
            0.0,
            (window, found),
        )
    })
}

fn common(
    kind: FaultKind,
    stage: StageId,
    cost_s: f64,
    (window, found): (&Window, &WindowFrontier),
) -> Fault {
    let steps = found.steps.len().max(1) as f64;
    Fault {
        kind,
        ranks: Vec::new(),
        stage,
        other_stages: Vec::new(),
        place: None,
        side: None,
        level_s: 0.0,
        strikes: found.steps.iter().map(|account| account.step).collect(),
        sampled: false,
        lateness_s: cost_s / steps,
        cost_s,
        gain_alone_s: cost_s,
        victims: window.ranks.iter().copied().collect(),
        hides: Vec::new(),
        hidden: false,
        reads_back: false,
        in_turn: false,
        notable: true,
    }
}
