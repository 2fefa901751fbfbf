//! What hosts see of their networks.

use incident::network;
use model::{Cause, Evidence, Incident, IncidentKind, Method, NetworkFault};

use super::waits::meet;
use super::{Job, Note};

/// Links of which it is kept that they are slow.
const MAX_LINKS: usize = 1024;

/// A link that was slow.
#[derive(Debug)]
pub(super) struct SlowerLink {
    /// The last step in which it was.
    step: u64,
    /// The ranks at its ends, if it is theirs alone.
    ranks: Vec<u32>,
    evidence: Evidence,
}

impl SlowerLink {
    /// What it carries, as a part of what it used to.
    fn left(&self) -> f64 {
        let value = |name| self.evidence.values.get(name).copied().unwrap_or(0.0);
        value("bytes_per_s") / value("usual_bytes_per_s").max(1.0)
    }
}

impl Job {
    /// Takes what the host of a rank sees. Of a job that stands still it is evidence, and so is a
    /// slow link of one that became slower.
    pub(super) fn take_network(&mut self, rank: u32, fault: NetworkFault) {
        let peer = match &fault {
            NetworkFault::SlowerFlow { communicator, peer, .. } => {
                self.hangs.communicated().job_rank(*communicator, *peer)
            }
            _ => None,
        };
        let evidence = network(rank, &fault, peer);
        match fault {
            NetworkFault::Slower { .. } => {
                self.notes.insert(Note::Text(evidence.text), 1);
            }
            NetworkFault::SlowerLink { peer, .. } => {
                let host = self.hosts.get(&rank).cloned().unwrap_or_default();
                self.slower_link((host, peer), Vec::new(), evidence);
            }
            NetworkFault::SlowerFlow { .. } => {
                let Some(peer) = peer else { return };
                let link = (format!("rank {rank}"), format!("rank {peer}"));
                self.slower_link(link, vec![rank, peer], evidence);
            }
            _ => {
                self.hangs.network(evidence);
                self.hangs.port_down(self.behind_port(rank, &fault));
            }
        }
    }

    fn slower_link(
        &mut self,
        link: (String, String),
        ranks: Vec<u32>,
        evidence: Evidence,
    ) {
        if self.slower_links.len() < MAX_LINKS || self.slower_links.contains_key(&link) {
            let step = self.hangs.step();
            self.slower_links.insert(link, SlowerLink { step, ranks, evidence });
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

    /// Links that carry less than they used to are why all ranks together are slower, and come
    /// before slow blocks of a rank at their ends; what is slow inside a collective of them they
    /// confirm.
    ///
    /// # Source
    /// MegaTrace (2026), localisation of slowdowns: the network first; SPEC.md §3.5.
    pub(super) fn join_links(&self, incidents: &mut Vec<Incident>) {
        for incident in incidents.iter_mut() {
            let subject = &incident.subject;
            let blames =
                |cause| incident.evidence.iter().any(|it| it.cause == Some(cause));
            let (of_all, in_network) = (subject.ranks.is_empty(), blames(Cause::Network));
            let is_asked = match incident.kind {
                IncidentKind::Degraded => of_all,
                IncidentKind::Slow => subject.block.is_some() || in_network,
                IncidentKind::Hang => false,
            };
            let at_its_end = |(from, _): &(String, String), link: &SlowerLink| {
                if link.ranks.is_empty() {
                    subject.hosts.contains(from)
                } else {
                    link.ranks.iter().any(|rank| subject.ranks.contains(rank))
                }
            };
            let mut during: Vec<_> = self
                .slower_links
                .iter()
                .filter(|(_, link)| is_asked && incident.went_on_in(link.step, link.step))
                .filter(|(ends, link)| of_all || at_its_end(ends, link))
                .collect();
            during.sort_by(|(_, one), (_, other)| one.left().total_cmp(&other.left()));
            let Some(((from, to), _)) = during.first() else { continue };
            let flow = format!("{from} to {to}");
            let network = format!(
                "look at the network between {from} and {to}: cards, cables, switch, and what \
                 else uses it"
            );
            if blames(Cause::Code) {
                // A function that takes most of the time comes first.
                incident.advice += &format!("; {network}");
            } else if of_all {
                incident.advice = network;
            } else if !in_network {
                incident.advice = format!("{network}; {}", incident.advice);
            }
            incident.subject.flow.get_or_insert(flow);
            incident
                .evidence
                .extend(during.iter().map(|(_, link)| link.evidence.clone()));
        }
        let by_network = |incident: &Incident| {
            incident.kind == IncidentKind::Degraded
                && incident.evidence.iter().any(|it| it.cause == Some(Cause::Network))
        };
        let Some(slower) = incidents.iter().find(|it| by_network(it)).cloned() else {
            return;
        };
        // Blocks that took longer meanwhile did because of it, unless they cost more.
        let because_of_it = |incident: &mut Incident| {
            incident.subject.block.is_some()
                && incident.cost_s < slower.cost_s
                && meet(incident, &slower)
        };
        let blocks: Vec<_> = incidents.extract_if(.., because_of_it).collect();
        let Some(slower) = incidents.iter_mut().find(|it| by_network(it)) else { return };
        slower.evidence.extend(blocks.into_iter().map(|blocks| {
            let lost = [("cost_s", blocks.cost_s)];
            Evidence::new(Method::Schedule, "slow_blocks", blocks.text, &lost)
        }));
    }
}

#[cfg(test)]
mod tests {
    use incident::contradictions;
    use model::{Communicator, Input, Mark, MarkKind, RankNs};

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
            let mut incidents = vec![incident];
            job.join_links(&mut incidents);
            (incidents[0].evidence.len(), incidents[0].subject.flow.is_some())
        };
        assert_eq!(told(slower.clone()), (1, true));
        let nobody = (0, false);
        let mut by_code = slower.clone();
        let code = Evidence::new(Method::Pattern, "common", "", &[]).blaming(Cause::Code);
        by_code.evidence.push(code);
        by_code.advice = "look at it".to_owned();
        let mut by_code = vec![by_code];
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

    #[test]
    fn the_link_that_lost_most_is_the_one_to_look_at() {
        let mut job = Job::new("job", "run", Settings::default());
        for (peer, bytes_per_s) in [("10.0.0.2", 20), ("10.0.0.3", 12), ("10.0.0.4", 60)]
        {
            let (peer, usual_bytes_per_s) = (peer.to_owned(), 100);
            let fault = NetworkFault::SlowerLink { peer, bytes_per_s, usual_bytes_per_s };
            job.take(Input::Network { rank: 0, fault });
        }
        let mut incidents = vec![degraded(0, 60)];
        job.join_links(&mut incidents);
        assert_eq!(incidents[0].subject.flow.as_deref(), Some(" to 10.0.0.3"));
    }

    #[test]
    fn the_network_comes_before_slow_blocks_at_its_ends() {
        let mut job = Job::new("job", "run", Settings::default());
        for member in 0..2 {
            let name = "pp".to_owned();
            let communicator = Communicator { hash: 7, name, rank: member, size: 2 };
            job.take(Input::Communicator { rank: 3 * member, communicator });
        }
        let fault = NetworkFault::SlowerFlow {
            communicator: 7,
            channel: 1,
            peer: 1,
            bytes_per_s: 1,
            usual_bytes_per_s: 9,
        };
        job.take(Input::Network { rank: 0, fault });
        let slow_block = |rank| {
            let mut incident = degraded(0, 60);
            incident.kind = IncidentKind::Slow;
            incident.subject.block = Some("forward of microbatch 3".to_owned());
            incident.subject.ranks = vec![rank];
            "look at its GPU".clone_into(&mut incident.advice);
            incident
        };
        let told = |mut incidents: Vec<Incident>| {
            job.join_links(&mut incidents);
            incidents
        };
        assert!(
            told(vec![slow_block(2)])[0].evidence.is_empty(),
            "it is at no end of it"
        );
        let [Incident { evidence, subject, advice, .. }] = &told(vec![slow_block(3)])[..]
        else {
            panic!("one")
        };
        assert!(
            evidence[0].text.starts_with("rank 0: what it sends to rank 3 on channel 1")
        );
        assert_eq!(subject.flow.as_deref(), Some("rank 0 to rank 3"));
        assert!(advice.starts_with("look at the network between rank 0 and rank 3"));
        assert!(advice.ends_with("; look at its GPU"));
        let little = Incident { cost_s: 0.1, ..slow_block(2) };
        let more = Incident { cost_s: 1.1, ..slow_block(2) };
        let later = Incident { first_step: 70, last_step: 80, ..little.clone() };
        let incidents = told(vec![later.clone(), little, degraded(0, 60), more.clone()]);
        let [first, slower, last] = &incidents[..] else { panic!("{incidents:?}") };
        assert_eq!((first, last), (&later, &more));
        assert_eq!(slower.kind, IncidentKind::Degraded);
        let of = |it: &Evidence| it.label.clone();
        let labels: Vec<_> = slower.evidence.iter().map(of).collect();
        assert_eq!(labels, ["flow_slower", "slow_blocks"]);
    }
}
