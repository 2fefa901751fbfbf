//! The words of ranks that arrive late in timed collectives, and of communicators that
//! became slow.

use model::{
    CollectiveOp, Evidence, Incident, IncidentKind, LateArrivals, LateIn, Method, Pace,
    Ranks, SlowCommunicator, Subject,
};

use crate::words::{are, duration, percent, who};
use crate::{IncidentSettings, Scene};

/// Places of one incident that are told.
const TOLD_PLACES: usize = 3;

/// Words an incident about ranks that constantly arrive after the others.
pub fn late(
    late: &LateArrivals,
    scene: Scene<'_>,
    id: String,
    settings: &IncidentSettings,
) -> Incident {
    let culprits = who(&late.ranks);
    let place = late.places.first();
    let collective = place.map(|place| collective(place.op, &place.group));
    let mut text = format!("{} late", are(&late.ranks, &culprits));
    if let (Some(place), Some(collective)) = (place, &collective) {
        text += &format!(
            " to {collective}: {} an operation, {} of collective time since #{}",
            duration(place.lateness_s),
            percent(late.cost_share),
            place.first
        );
    }
    if !late.victims.is_empty() {
        text += &format!(
            "; {} late only through it",
            are(&late.victims, &who(&late.victims))
        );
    }
    let hosts = scene.hosts_of(&late.ranks);
    let victims = late.waited.iter().chain(&late.victims).copied().collect();
    Incident {
        kind: IncidentKind::Slow,
        subject: Subject {
            ranks: late.ranks.clone(),
            hosts,
            collective,
            ..Subject::default()
        },
        evidence: late
            .places
            .iter()
            .take(TOLD_PLACES)
            .map(|p| of_place(p, &culprits))
            .collect(),
        advice: format!(
            "look at what {culprits} {} before the collective: input, compute, host; the \
             others wait for it and are fine",
            if late.ranks.len() == 1 { "does" } else { "do" }
        ),
        ..incident(id, text, late.open, victims, (late.cost_s, late.cost_share), settings)
    }
}

/// Words an incident about a communicator that became slow.
pub fn slowed(
    slowed: &SlowCommunicator,
    scene: Scene<'_>,
    id: String,
    settings: &IncidentSettings,
) -> Incident {
    let collective = collective(slowed.op, &slowed.group);
    let before = bandwidth(slowed.usual_bytes_per_s);
    let text = format!(
        "{collective} moves {} since #{}, {before} before, {} of collective time; no rank in \
         particular is late",
        bandwidth(slowed.bytes_per_s),
        slowed.first,
        percent(slowed.cost_share),
    );
    let values = [
        ("bytes_per_s", slowed.bytes_per_s),
        ("usual_bytes_per_s", slowed.usual_bytes_per_s),
    ];
    let evidence = Evidence::new(
        Method::Collective,
        "bandwidth",
        format!(
            "median of windows of like operations against the healthy ones before, as seen by \
             the last of {} to arrive",
            who(&slowed.ranks)
        ),
        &values,
    );
    Incident {
        kind: IncidentKind::Degraded,
        subject: Subject {
            hosts: scene.hosts_of(&slowed.ranks),
            collective: Some(collective),
            ..Subject::default()
        },
        evidence: vec![evidence],
        advice:
            "look at links and network cards of these hosts, and at other jobs on them"
                .to_owned(),
        ..incident(
            id,
            text,
            slowed.open,
            slowed.ranks.iter().copied().collect(),
            (slowed.cost_s, slowed.cost_share),
            settings,
        )
    }
}

/// What all of them have in common.
fn incident(
    id: String,
    text: String,
    open: bool,
    victims: Ranks,
    (cost_s, cost_share): (f64, f64),
    settings: &IncidentSettings,
) -> Incident {
    Incident {
        id,
        kind: IncidentKind::Slow,
        severity: settings.severity(cost_share),
        open,
        subject: Subject::default(),
        pace: Pace::Steady,
        first_step: 0,
        last_step: 0,
        victims,
        cost_s,
        cost_gpu_s: 0.0,
        cost_share,
        gain_alone_s: cost_s,
        next_in_line: Vec::new(),
        contradictions: Vec::new(),
        facts: Vec::new(),
        actions: Vec::new(),
        stacks: Vec::new(),
        progress: Vec::new(),
        text,
        evidence: Vec::new(),
        advice: String::new(),
    }
}

fn of_place(place: &LateIn, culprits: &str) -> Evidence {
    let values = [
        ("lateness_s", place.lateness_s),
        ("struck_operations", place.struck as f64),
        ("operations", place.operations as f64),
    ];
    Evidence::new(
        Method::Collective,
        "arrival",
        format!(
            "in {} of {} operations of {} the others waited {} longer than {culprits}: who \
             arrives last waits least; {} in total",
            place.struck,
            place.operations,
            collective(place.op, &place.group),
            duration(place.lateness_s),
            duration(place.cost_s),
        ),
        &values,
    )
}

fn collective(op: CollectiveOp, group: &str) -> String {
    format!("{} of group {group}", op.name())
}

/// Bytes a second for reading: "12.3 GB/s".
fn bandwidth(bytes_per_s: f64) -> String {
    format!("{:.3} GB/s", bytes_per_s * 1e-9)
}
