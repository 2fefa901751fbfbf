//! The words of connections that were slow, as telemetry of work requests tells.

use model::{
    Evidence, Incident, IncidentKind, LinkFault, Method, Pace, Severity, SlowConnection,
    Subject,
};
use schedule::Networked;

use crate::Scene;
use crate::words::{duration, who};

/// Words an incident about a connection that lost bandwidth or stood still.
///
/// `ranks` are those at its ends; `iterations` what iterations lost meanwhile, with what all took.
pub fn link_slowed(
    link: &SlowConnection,
    ranks: Option<[u32; 2]>,
    iterations: Option<(&Networked, f64)>,
    scene: Scene<'_>,
    id: String,
) -> Incident {
    let ends = &link.ends;
    let place = match ranks {
        Some([from, to]) => format!("from rank {from} to {to}"),
        None => format!(
            "from rank {} to {} of communicator {}",
            ends.from, ends.to, ends.communicator
        ),
    };
    let (what, severity, label, values) = match link.fault {
        LinkFault::Slower { bytes_per_s, usual_bytes_per_s } => (
            format!(
                "lost bandwidth: {:.2} instead of {:.2} GB/s",
                bytes_per_s * 1e-9,
                usual_bytes_per_s * 1e-9
            ),
            Severity::Warning,
            "bandwidth_lost",
            vec![("bytes_per_s", bytes_per_s), ("usual_bytes_per_s", usual_bytes_per_s)],
        ),
        LinkFault::Stalled { in_flight } => (
            format!(
                "stood still with {in_flight} {} in flight",
                if in_flight == 1 { "request" } else { "requests" }
            ),
            if link.open { Severity::Critical } else { Severity::Warning },
            "requests_stalled",
            vec![("in_flight", in_flight as f64)],
        ),
    };
    let mut text = format!(
        "the connection {place} (port {}) {what}, for {}; network, not compute",
        ends.port,
        duration(link.lasted_s())
    );
    let (mut first_step, mut last_step) = (0, 0);
    let (mut cost_s, mut cost_share) = (link.lost_s(), 0.0);
    if let Some((networked, total_s)) = iterations {
        (first_step, last_step) = networked.span;
        cost_s = networked.lost_s;
        cost_share = cost_s / total_s.max(cost_s).max(f64::MIN_POSITIVE);
        text += &format!(
            "; iterations {first_step}-{last_step} lost {}",
            duration(networked.lost_s)
        );
    }
    text += if link.open { "; it goes on" } else { "; recovered since" };
    let ranks = ranks.map_or(Vec::new(), Vec::from);
    let victims = scene.others(&ranks);
    let [first_s, last_s] = [link.span_ns.0, link.span_ns.1].map(|ns| ns as f64 * 1e-9);
    let values: Vec<(&str, f64)> = [("onset_unix_s", first_s), ("end_unix_s", last_s)]
        .into_iter()
        .chain(values)
        .collect();
    let said = format!("{what}, from {first_s:.3} to {last_s:.3} (seconds since 1970)");
    let advice = if ranks.is_empty() {
        format!("look at port {} and the way from it: card, cable, switch", ends.port)
    } else {
        format!("look at port {} and the way between {}", ends.port, who(&ranks))
    };
    Incident {
        id,
        kind: IncidentKind::Slow,
        severity,
        open: link.open,
        subject: Subject {
            hosts: scene.hosts_of(&ranks),
            ranks,
            flow: Some(format!("{place}, port {}", ends.port)),
            ..Subject::default()
        },
        pace: Pace::Steady,
        first_step,
        last_step,
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
        evidence: vec![
            Evidence::new(Method::Schedule, label, said, &values),
            probe(link),
        ],
        advice,
    }
}

/// The rule of probes, with the job's own requests.
fn probe(link: &SlowConnection) -> Evidence {
    let (label, said) = if link.is_broken() {
        (
            "path_broken",
            "the count of requests in flight did not fall again: what is sent does not come back",
        )
    } else {
        (
            "path_works",
            "the count of requests in flight fell again: the path works, and is slow",
        )
    };
    Evidence::new(Method::Schedule, label, said.to_owned(), &[])
}

/// Says that a job does not stand still because of its network, as far as this is told.
pub fn ports_idle(ports: usize) -> Evidence {
    let text = format!(
        "nothing was in flight on the {ports} ports that are told when their last requests came \
         back: nothing says that it is the network"
    );
    Evidence::new(Method::Schedule, "requests_idle", text, &[("ports", ports as f64)])
}
