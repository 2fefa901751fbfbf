//! What hosts see of their networks.

use model::{
    Action, Cause, Fact, Finding, IncidentKind, LinkEnd, NetworkFault, Observation,
};

use super::waits::meet;
use super::{Job, Note};

/// Links of which it is kept that they are slow.
const MAX_LINKS: usize = 1024;

/// A link that was slow.
#[derive(Debug)]
pub(super) struct SlowerLink {
    /// The last step in which it was.
    step: u64,
    /// What it carries, as a part of what it used to.
    left_share: f64,
    fact: Fact,
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
        let what = Observation::Network { rank, fault: fault.clone(), peer };
        let fact = Fact::from(what);
        match fault {
            NetworkFault::Slower { .. } => {
                self.notes.insert(Note::Text(narrate::evidence(&fact).text), 1);
            }
            NetworkFault::SlowerLink { peer, bytes_per_s, usual_bytes_per_s } => {
                let host = self.hosts.get(&rank).cloned().unwrap_or_default();
                let ends = (LinkEnd::Host(host), LinkEnd::Host(peer));
                self.slower_link(ends, [bytes_per_s, usual_bytes_per_s], fact);
            }
            NetworkFault::SlowerFlow { bytes_per_s, usual_bytes_per_s, .. } => {
                let Some(peer) = peer else { return };
                let ends = (LinkEnd::Rank(rank), LinkEnd::Rank(peer));
                self.slower_link(ends, [bytes_per_s, usual_bytes_per_s], fact);
            }
            _ => {
                self.hangs.network(narrate::evidence(&fact));
                self.hangs.port_down(self.behind_port(rank, &fault));
            }
        }
    }

    fn slower_link(
        &mut self,
        ends: (LinkEnd, LinkEnd),
        [bytes_per_s, usual_bytes_per_s]: [u64; 2],
        fact: Fact,
    ) {
        if self.slower_links.len() < MAX_LINKS || self.slower_links.contains_key(&ends) {
            let step = self.hangs.step();
            let left_share = bytes_per_s as f64 / usual_bytes_per_s.max(1) as f64;
            self.slower_links.insert(ends, SlowerLink { step, left_share, fact });
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
    /// MegaTrace (2026), localisation of slowdowns: the network first; docs/math/schedule.md.
    pub(super) fn join_links(&self, incidents: &mut Vec<Finding>) {
        for incident in incidents.iter_mut() {
            let subject = &incident.subject;
            let of_all = subject.ranks.is_empty();
            let in_network = incident.blames(Cause::Network);
            let is_asked = match incident.kind {
                IncidentKind::Degraded => of_all,
                IncidentKind::Slow => subject.block.is_some() || in_network,
                IncidentKind::Hang => false,
            };
            // A host measures what it sends; either end of a flow may be the slow one.
            let at_its_end = |(from, to): &(LinkEnd, LinkEnd)| match from {
                LinkEnd::Host(from) => subject.hosts.contains(from),
                LinkEnd::Rank(_) => subject
                    .ranks
                    .iter()
                    .any(|rank| [from, to].contains(&&LinkEnd::Rank(*rank))),
            };
            let mut during: Vec<_> = self
                .slower_links
                .iter()
                .filter(|(_, link)| is_asked && incident.went_on_in(link.step, link.step))
                .filter(|(ends, _)| of_all || at_its_end(ends))
                .collect();
            during.sort_by(|(_, one), (_, other)| {
                one.left_share.total_cmp(&other.left_share)
            });
            let Some(((from, to), _)) = during.first() else { continue };
            let flow = narrate::connection(from, to);
            let network = Action::LookAtNetwork { from: from.clone(), to: to.clone() };
            if incident.blames(Cause::Code) {
                // A function that takes most of the time comes first.
                incident.actions.push(network);
            } else if of_all {
                incident.actions = vec![network];
            } else if !in_network {
                incident.actions.insert(0, network);
            }
            incident.facts.extend(during.iter().map(|(_, link)| link.fact.clone()));
            incident.subject.flow.get_or_insert(flow);
        }
        let by_network = |incident: &Finding| {
            incident.kind == IncidentKind::Degraded && incident.blames(Cause::Network)
        };
        let Some(slower) = incidents.iter().find(|it| by_network(it)).cloned() else {
            return;
        };
        // Blocks that took longer meanwhile did because of it, unless they cost more.
        let because_of_it = |incident: &mut Finding| {
            incident.subject.block.is_some()
                && incident.cost.exposed_s < slower.cost.exposed_s
                && meet(incident, &slower)
        };
        let blocks: Vec<_> = incidents.extract_if(.., because_of_it).collect();
        let Some(slower) = incidents.iter_mut().find(|it| by_network(it)) else { return };
        slower.facts.extend(blocks.into_iter().map(|blocks| {
            let (claim, cost_s) = (Box::new(blocks.claim), blocks.cost.exposed_s);
            Fact::from(Observation::Explains { claim, by: None, cost_s })
        }));
    }
}

#[cfg(test)]
mod tests {
    use incident::disagreements;
    use model::{
        Communicator, Cost, Event, Evidence, Input, Mark, Method, Position, RankNs, Source,
    };

    use super::*;
    use crate::Settings;
    use crate::job::tests::degraded;

    fn look(text: &str) -> Action {
        Action::Worded { text: text.to_owned() }
    }

    #[test]
    fn a_link_that_was_slow_meanwhile_is_why_all_are_slower() {
        let mut job = Job::new("job", Source::Run, Settings::default());
        let mark = Mark {
            at: RankNs(1),
            step: 50,
            on_loop_thread: true,
            event: Event::OptimizerEnd,
        };
        job.take(Input::Mark { rank: 0, mark });
        let fault = NetworkFault::SlowerLink {
            peer: "10.0.0.2".to_owned(),
            bytes_per_s: 1,
            usual_bytes_per_s: 9,
        };
        job.take(Input::Network { rank: 0, fault });
        let slower = degraded(40, 60);
        let told = |incident: Finding| {
            let mut incidents = vec![incident];
            job.join_links(&mut incidents);
            (incidents[0].facts.len(), incidents[0].subject.flow.is_some())
        };
        assert_eq!(told(slower.clone()), (1, true));
        let nobody = (0, false);
        let mut by_code = slower.clone();
        let code = Evidence::new(Method::Pattern, "common", "", &[]).blaming(Cause::Code);
        by_code.facts.push(Fact::worded(code));
        by_code.actions = vec![look("look at it")];
        let mut by_code = vec![by_code];
        job.join_links(&mut by_code);
        assert_eq!(by_code[0].actions.len(), 2);
        assert_eq!(by_code[0].actions[0], look("look at it"));
        let found = disagreements(&by_code[0]);
        let answers = [
            (Method::Pattern, Position::Cause(Cause::Code)),
            (Method::Host, Position::Cause(Cause::Network)),
        ];
        assert_eq!(found[0].answers, answers);
        let open = true;
        assert_eq!(told(Finding { last_step: 45, ..slower.clone() }), nobody);
        assert_eq!(told(Finding { last_step: 45, open, ..slower.clone() }), (1, true));
        assert_eq!(told(Finding { first_step: 51, open, ..slower.clone() }), nobody);
        assert_eq!(told(Finding { kind: IncidentKind::Slow, ..slower.clone() }), nobody);
        let mut of_rank = slower;
        of_rank.subject.ranks = vec![3];
        assert_eq!(told(of_rank), nobody);
        assert!(job.verdict().incidents.is_empty(), "a slow link alone is none");
    }

    #[test]
    fn the_link_that_lost_most_is_the_one_to_look_at() {
        let mut job = Job::new("job", Source::Run, Settings::default());
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
        let mut job = Job::new("job", Source::Run, Settings::default());
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
            incident.actions = vec![look("look at its GPU")];
            incident
        };
        let told = |mut incidents: Vec<Finding>| {
            job.join_links(&mut incidents);
            incidents
        };
        assert!(told(vec![slow_block(2)])[0].facts.is_empty(), "it is at no end of it");
        let [Finding { facts, subject, actions, .. }] = &told(vec![slow_block(3)])[..]
        else {
            panic!("one")
        };
        assert!(matches!(
            facts[0].what,
            Observation::Network { rank: 0, peer: Some(3), .. }
        ));
        assert_eq!(subject.flow.as_deref(), Some("rank 0 to rank 3"));
        let (from, to) = (LinkEnd::Rank(0), LinkEnd::Rank(3));
        let network = Action::LookAtNetwork { from, to };
        assert_eq!(actions[..], [network, look("look at its GPU")]);
        let costing = |exposed_s| {
            let block = slow_block(2);
            Finding { cost: Cost { exposed_s, ..block.cost }, ..block }
        };
        let (little, more) = (costing(0.1), costing(1.1));
        let later = Finding { first_step: 70, last_step: 80, ..little.clone() };
        let incidents = told(vec![later.clone(), little, degraded(0, 60), more.clone()]);
        let [first, slower, last] = &incidents[..] else { panic!("{incidents:?}") };
        assert_eq!((first, last), (&later, &more));
        assert_eq!(slower.kind, IncidentKind::Degraded);
        let [flow, blocks] = &slower.facts[..] else { panic!("{slower:?}") };
        assert!(matches!(flow.what, Observation::Network { .. }));
        assert!(matches!(blocks.what, Observation::Explains { by: None, .. }));
    }
}
