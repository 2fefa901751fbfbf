//! The words of ranks that make collectives slow from the inside.

use model::{
    Cause, Evidence, HoldUp, Incident, IncidentKind, Method, Pace, Ranks, Severity,
    Straggler, Subject, fold_ranks,
};

use crate::Scene;
use crate::hang::collective;
use crate::inside::label;
use crate::words::{duration, percent, who};

/// Words an incident about ranks that slow operations wait for.
///
/// `first_step` and `last_step` are those of the job while it lasted.
pub fn straggler(
    found: &Straggler,
    scene: Scene<'_>,
    id: String,
    (first_step, last_step): (u64, u64),
    open: bool,
) -> Incident {
    let ratio = found.slow.took_s / found.slow.usual_s;
    let place = collective(&found.wait);
    let victims: Ranks = found.wait.entered.iter().copied().collect();
    let victims = victims.without(&found.ranks);
    let since =
        if first_step == 0 { String::new() } else { format!(" since step {first_step}") };
    let text = format!(
        "{} up to {ratio:.1} times as long {}{since}: {}",
        collective_takes(found),
        if found.slow.of_channels { "on one channel as on most" } else { "as usual" },
        what(found)
    );
    Incident {
        id,
        kind: IncidentKind::Slow,
        severity: Severity::Warning,
        open,
        subject: Subject {
            ranks: found.ranks.clone(),
            hosts: scene.hosts_of(&found.ranks),
            collective: Some(place),
            flow: channels(found),
            ..Subject::default()
        },
        pace: Pace::Steady,
        first_step,
        last_step,
        victims,
        cost_s: found.cost_s,
        cost_gpu_s: 0.0,
        cost_share: 0.0,
        gain_alone_s: found.cost_s,
        next_in_line: Vec::new(),
        contradictions: Vec::new(),
        facts: Vec::new(),
        actions: Vec::new(),
        stacks: Vec::new(),
        progress: Vec::new(),
        text,
        evidence: vec![evidence(found)],
        advice: advice(found),
    }
}

fn collective_takes(found: &Straggler) -> String {
    format!("{} of group {} takes", found.wait.op.name(), found.wait.group)
}

fn channels(found: &Straggler) -> Option<String> {
    let channels = found.channels.iter().map(|channel| u32::from(*channel));
    let channels = channels.collect::<Vec<_>>();
    let plural = if channels.len() == 1 { "" } else { "s" };
    (!channels.is_empty()).then(|| format!("channel{plural} {}", fold_ranks(&channels)))
}

fn what(found: &Straggler) -> String {
    let who = who(&found.ranks);
    let text = match found.cause {
        HoldUp::NotDelivered if found.either => {
            format!("what is sent between {who} arrives late")
        }
        HoldUp::NotDelivered => format!("what {who} sends and is sent arrives late"),
        HoldUp::NotTransmitted => format!("{who} hands ready data to the network late"),
        HoldUp::ReceiverNotReady => format!("{who} takes data from the network late"),
        HoldUp::ProxyStill => format!("NCCL's proxy thread of {who} lags behind"),
        HoldUp::GpuNotStarted | HoldUp::GpuNotReady | HoldUp::GpuNotTaking => {
            format!("the GPU of {who} does not keep up with its network")
        }
        HoldUp::NotEntered | HoldUp::DeadlockCycle | HoldUp::Unknown => {
            format!("{who} enters it late")
        }
    };
    match channels(found) {
        Some(channels) => format!("{text}, on {channels} only"),
        None => text,
    }
}

fn evidence(found: &Straggler) -> Evidence {
    let text = format!(
        "{} of the time in slow operations was spent waiting for {}; the slowest took {} \
         instead of {}",
        percent(found.blamed_share),
        who(&found.ranks),
        duration(found.slow.took_s),
        duration(found.slow.usual_s),
    );
    let values = [
        ("blamed_share", found.blamed_share),
        ("took_s", found.slow.took_s),
        ("usual_s", found.slow.usual_s),
        ("cost_s", found.cost_s),
    ];
    let cause = match found.cause {
        HoldUp::NotDelivered => Some(Cause::Network),
        HoldUp::GpuNotStarted | HoldUp::GpuNotReady | HoldUp::GpuNotTaking => {
            Some(Cause::Gpu)
        }
        _ => None,
    };
    let evidence = Evidence::new(Method::Collective, label(found.cause), text, &values);
    Evidence { cause, ..evidence }
}

pub(crate) fn advice(found: &Straggler) -> String {
    let who = who(&found.ranks);
    match found.cause {
        HoldUp::NotDelivered if found.either => format!(
            "look at the network cards of {who} and the switch between them: counters \
             cannot tell the two ends of a link apart"
        ),
        HoldUp::NotDelivered => {
            format!("look at the network card of {who}: errors, speed, other traffic")
        }
        HoldUp::NotTransmitted | HoldUp::ReceiverNotReady | HoldUp::ProxyStill => {
            format!(
                "look at NCCL's proxy thread of {who}: is its core taken by something else?"
            )
        }
        HoldUp::GpuNotStarted | HoldUp::GpuNotReady | HoldUp::GpuNotTaking => format!(
            "look at the GPU of {who}: clocks, power, PCIe width, other work on it"
        ),
        HoldUp::NotEntered | HoldUp::DeadlockCycle | HoldUp::Unknown => {
            format!("look at what {who} does before: input, compute, host")
        }
    }
}
