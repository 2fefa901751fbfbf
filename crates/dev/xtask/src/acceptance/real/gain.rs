//! Step times that are predicted for jobs some of whose faults are fixed, beside those that they take then.

use anyhow::Result;
use model::{Incident, Side, Subject, Verdict};

use super::ahead::{DEVICE_FAULTS, HOST_FAULTS, LATE_WAITS, ON_DEVICES, Ran, quantile};
use super::turns::in_turn;
use super::{AcceptanceRow, Lab, Print};

/// Median and 95th percentile of the errors of predicted step times.
const TARGETS: (f64, f64) = (0.05, 0.1);

/// A fault as jobs take it: its place, its rank, and by how many seconds a host is late or how many
/// times as long kernels take.
type Fault = &'static str;

/// For each place to read the loss three faults, of which jobs have one, two or all.
type Families = [(&'static str, [Fault; 3]); 5];

const OF_LATE_WAITS: Families = [
    (
        "after",
        ["loader@1@0.05", "forward@2@0.03", "callback@3@0.02"],
    ),
    (
        "before",
        ["forward@0@0.04", "callback@0@0.025", "loader@3@0.03"],
    ),
    (
        "ten",
        ["loader@2@0.04", "launches@1@0.06", "callback@2@0.02"],
    ),
    (
        "never",
        ["forward@3@0.05", "loader@3@0.02", "callback@0@0.04"],
    ),
    (
        "clip",
        ["callback@1@0.045", "loader@0@0.035", "forward@2@0.045"],
    ),
];
const OF_DEVICES: Families = [
    (
        "after",
        ["loader@1@0.05", "device_forward@2@3", "callback@3@0.02"],
    ),
    (
        "before",
        ["forward@0@0.04", "device_backward@0@2.5", "loader@3@0.03"],
    ),
    (
        "ten",
        ["loader@2@0.04", "device_forward@1@2.5", "callback@2@0.02"],
    ),
    (
        "never",
        ["forward@3@0.05", "device_optimizer@3@4", "callback@0@0.04"],
    ),
    (
        "clip",
        ["device_backward@1@3", "loader@0@0.035", "forward@2@0.045"],
    ),
];

/// A loop, how many times as much its devices have to do, and its faults. With 1, steps on two cores wait for
/// hosts and devices alike, and with 3 for devices.
type Bed = (&'static str, &'static str, &'static str, Families);

const BEDS: [Bed; 3] = [
    ("late waits", LATE_WAITS, "1", OF_LATE_WAITS),
    ("ddp on devices, load 1", ON_DEVICES, "1", OF_DEVICES),
    ("ddp on devices, load 3", ON_DEVICES, "3", OF_DEVICES),
];

/// Those of three faults whose bits are set.
fn faults_of(three: &[Fault; 3], subset: usize) -> Vec<Fault> {
    let numbered = three.iter().enumerate();
    numbered
        .filter(|(at, _)| subset >> at & 1 == 1)
        .map(|(_, fault)| *fault)
        .collect()
}

/// Step times predicted for jobs some of whose faults are fixed, beside those of jobs without them.
pub(super) fn predicted(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    for (bed, script, load, families) in BEDS {
        // Relative errors of jobs with one, two and three faults.
        let mut errors: [Vec<f64>; 3] = Default::default();
        for (read, three) in families {
            let family = [("READ", read), ("LOAD", load), ("SEED", "4")];
            let subsets: Vec<String> = (0..8).map(|subset| subset_of(&three, subset)).collect();
            let took_s = in_turn(lab, script, &family, &subsets)?;
            for subset in 1..took_s.len() {
                let faults = subset_of(&three, subset);
                let own = [("FAULT", faults.as_str()), ("STEPS", FAMILY_STEPS)];
                let job = Ran::new(lab, script, &[&own[..], &family].concat())?;
                let had = subset.count_ones() as usize;
                // Every choice among its faults, all of them included.
                for fixed in (1..=subset).filter(|fixed| fixed & subset == *fixed) {
                    let faults = faults_of(&three, fixed);
                    let saved_s = saved_s(&job.verdict, &faults, fixed == subset);
                    let saved_share = job.of_a_step(saved_s) / job.step_s;
                    let step_s = (1.0 - saved_share) * took_s[subset];
                    let truth_s = took_s[subset & !fixed];
                    errors[had - 1].push((step_s - truth_s).abs() / truth_s);
                }
            }
        }
        let all = errors.concat();
        let rows = ["one fault", "two faults", "three faults"]
            .into_iter()
            .zip(&errors);
        for (faults, errors) in rows.chain([("one to three faults", &all)]) {
            let [median, late] = [0.5, 0.95].map(|share| quantile(errors, share));
            let measured = format!(
                "{} step times: median error {:.1} %, P95 {:.1} %",
                errors.len(),
                median * 1e2,
                late * 1e2
            );
            // Of the eight subsets of three faults, one is empty.
            let jobs = 7 * families.len();
            let scenario = format!(
                "{bed}: {jobs} jobs, those with {faults}: step time with any of them fixed"
            );
            let holds = median <= TARGETS.0 && late <= TARGETS.1;
            print(AcceptanceRow::new(
                id,
                scenario,
                measured,
                "median 5 %, P95 10 %",
                holds,
            ));
        }
    }
    Ok(())
}

/// A subset of three faults by their bits, as jobs take it.
fn subset_of(three: &[Fault; 3], subset: usize) -> String {
    let faults = faults_of(three, subset).join(",");
    if faults.is_empty() {
        "none".to_owned()
    } else {
        faults
    }
}

/// Steps of a job whose faults are predicted.
const FAMILY_STEPS: &str = "105";
/// Exposed seconds that a verdict expects to be saved by fixing some faults, or all that there are.
fn saved_s(verdict: &Verdict, fixed: &[Fault], are_all: bool) -> f64 {
    if are_all {
        // What incidents cost sums to what fixing all of them saves.
        return verdict
            .incidents
            .iter()
            .map(|incident| incident.cost_s)
            .sum();
    }
    let both_s = match *fixed {
        [one, other] => hidden_gain_s(verdict, one, other),
        _ => None,
    };
    // Faults that do not hide one another save what each saves alone.
    both_s.unwrap_or_else(|| fixed.iter().map(|fault| alone_s(verdict, fault)).sum())
}

/// Seconds saved by fixing a fault alone, whether it is incidents, a part of one, or hidden behind one.
fn alone_s(verdict: &Verdict, fault: Fault) -> f64 {
    let incidents = verdict.incidents.iter();
    let of_incidents = incidents.filter_map(|it| Some(part_in(fault, it)? * it.gain_alone_s));
    let incident = of_incidents.reduce(|one, other| one + other);
    let mut hidden = verdict
        .incidents
        .iter()
        .flat_map(|incident| &incident.next_in_line);
    let hidden = hidden.find(|next| is_at(fault, &next.ranks, Some(&next.stage)));
    let hidden = hidden.map(|it| it.gain_alone_s);
    incident.or(hidden).unwrap_or(0.0)
}

/// What of an incident is this fault, by the lateness in its stages: a rank may have two faults.
fn part_in(fault: Fault, incident: &Incident) -> Option<f64> {
    let Subject { ranks, side, .. } = &incident.subject;
    let account = incident.facts.iter().find_map(|fact| fact.what.account())?;
    let stages = account.stages.iter();
    let its = stages.filter(|it| is_on(fault, *side) && is_at(fault, ranks, Some(&it.stage)));
    let share = its.map(|it| it.lateness_s).sum::<f64>() / account.lateness_s;
    (share > 0.0).then_some(share)
}

/// Seconds saved by fixing two faults, if one hides the other.
fn hidden_gain_s(verdict: &Verdict, one: Fault, other: Fault) -> Option<f64> {
    [(one, other), (other, one)]
        .into_iter()
        .find_map(|(first, behind)| {
            let incidents = verdict
                .incidents
                .iter()
                .filter(|incident| is_of(first, incident));
            let mut hidden = incidents.flat_map(|incident| &incident.next_in_line);
            let next = hidden.find(|next| is_at(behind, &next.ranks, Some(&next.stage)))?;
            Some(next.gain_both_s)
        })
}

/// Whether an incident is this fault.
fn is_of(fault: Fault, incident: &Incident) -> bool {
    let Subject {
        ranks, stage, side, ..
    } = &incident.subject;
    is_on(fault, *side) && is_at(fault, ranks, stage.as_deref())
}

/// Whether a fault is on this side of its rank, as far as that is known.
fn is_on(fault: Fault, side: Option<Side>) -> bool {
    let is_of_device = fault.starts_with("device");
    side.is_none_or(|side| (side == Side::Device) == is_of_device)
}

/// Whether this is where a fault was hidden.
fn is_at(fault: Fault, ranks: &[u32], stage: Option<&str>) -> bool {
    let mut parts = fault.split('@');
    let (place, rank) = (parts.next(), parts.next());
    let of_hosts = HOST_FAULTS.iter().map(|(name, places, _)| (name, places));
    let of_devices = DEVICE_FAULTS.iter().map(|(name, places)| (name, places));
    let mut faults = of_hosts.chain(of_devices);
    let places = faults.find(|(name, _)| Some(**name) == place);
    matches!((ranks, rank), ([one], Some(rank)) if one.to_string() == rank)
        && places
            .zip(stage)
            .is_some_and(|((_, places), stage)| places.contains(&stage))
}
