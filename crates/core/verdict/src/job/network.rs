//! What hosts see of their networks.

use incident::network;
use model::{Cause, Evidence, Incident, IncidentKind, NetworkFault};

use super::{Job, Note};

/// Links of which it is kept that they are slow.
const MAX_LINKS: usize = 1024;

/// A link that was slow.
#[derive(Debug)]
pub(super) struct SlowerLink {
    /// The last step in which it was.
    step: u64,
    evidence: Evidence,
}

impl Job {
    /// Takes what the host of a rank sees. Of a job that stands still it is evidence, and so is a
    /// slow link of one that became slower.
    pub(super) fn take_network(&mut self, rank: u32, fault: NetworkFault) {
        let evidence = network(rank, &fault);
        match fault {
            NetworkFault::Slower { .. } => {
                self.notes.insert(Note::Text(evidence.text), 1);
            }
            NetworkFault::SlowerLink { peer, .. } => {
                let host = self.hosts.get(&rank).cloned().unwrap_or_default();
                let link = (host, peer);
                if self.slower_links.len() < MAX_LINKS
                    || self.slower_links.contains_key(&link)
                {
                    let step = self.hangs.step();
                    self.slower_links.insert(link, SlowerLink { step, evidence });
                }
            }
            _ => {
                self.hangs.network(evidence);
                self.hangs.port_down(self.behind_port(rank, &fault));
            }
        }
    }

    /// The ranks that share a port which is down with a rank of its host.
    fn behind_port(&self, rank: u32, fault: &NetworkFault) -> Vec<u32> {
        let Some(here) = self.hosts.get(&rank).filter(|_| fault.is_port_down()) else {
            return Vec::new();
        };
        self.hosts
            .iter()
            .filter(|(_, host)| *host == here)
            .map(|(rank, _)| *rank)
            .collect()
    }

    /// Links that carry much less than they used to are why all ranks together are slower.
    pub(super) fn join_links(&self, incidents: &mut [Incident]) {
        let slower = |incident: &&mut Incident| {
            incident.kind == IncidentKind::Degraded && incident.subject.ranks.is_empty()
        };
        for incident in incidents.iter_mut().filter(slower) {
            let links = self.slower_links.iter();
            let during: Vec<_> = links
                .filter(|(_, link)| incident.went_on_in(link.step, link.step))
                .collect();
            let Some(((host, peer), _)) = during.first() else { continue };
            incident.subject.flow = Some(format!("{host} to {peer}"));
            let advice = format!(
                "look at the network between {host} and {peer}: cards, cables, switch, and what \
                 else uses it"
            );
            if incident.evidence.iter().any(|it| it.cause == Some(Cause::Code)) {
                // A function that takes most of the time comes first.
                incident.advice += &format!("; {advice}");
            } else {
                incident.advice = advice;
            }
            incident
                .evidence
                .extend(during.iter().map(|(_, link)| link.evidence.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use incident::contradictions;
    use model::{Input, Mark, MarkKind, Method, RankNs};

    use super::*;
    use crate::Settings;
    use crate::job::tests::degraded;

    #[test]
    fn a_link_that_was_slow_meanwhile_is_why_all_are_slower() {
        let mut job = Job::new("job", "run", Settings::default());
        let mark = Mark {
            at: RankNs(1),
            step: 50,
            kind: MarkKind::OptimizerEnd,
            on_loop_thread: true,
            code: 0,
            args: [0; 5],
        };
        job.take(Input::Mark { rank: 0, mark });
        let fault = NetworkFault::SlowerLink {
            peer: "10.0.0.2".to_owned(),
            bytes_per_s: 1,
            usual_bytes_per_s: 9,
        };
        job.take(Input::Network { rank: 0, fault });
        let slower = degraded(40, 60);
        let told = |incident: Incident| {
            let mut incidents = [incident];
            job.join_links(&mut incidents);
            let [incident] = incidents;
            (incident.evidence.len(), incident.subject.flow.is_some())
        };
        assert_eq!(told(slower.clone()), (1, true));
        let nobody = (0, false);
        let mut by_code = slower.clone();
        let code = Evidence::new(Method::Pattern, "common", "", &[]).blaming(Cause::Code);
        by_code.evidence.push(code);
        by_code.advice = "look at it".to_owned();
        let mut by_code = [by_code];
        job.join_links(&mut by_code);
        assert!(by_code[0].advice.starts_with("look at it; look at the network between"));
        let found = contradictions(&by_code[0]);
        assert!(found[0].text.starts_with("pattern says code, host says network: trust"));
        let open = true;
        assert_eq!(told(Incident { last_step: 45, ..slower.clone() }), nobody);
        assert_eq!(told(Incident { last_step: 45, open, ..slower.clone() }), (1, true));
        assert_eq!(told(Incident { first_step: 51, open, ..slower.clone() }), nobody);
        assert_eq!(told(Incident { kind: IncidentKind::Slow, ..slower.clone() }), nobody);
        let mut of_rank = slower;
        of_rank.subject.ranks = vec![3];
        assert_eq!(told(of_rank), nobody);
        assert!(job.verdict().incidents.is_empty(), "a slow link alone is none");
    }
}
