//! What hosts see of their networks.

use diagnosis::SlowLink;
use model::{Fact, LinkEnd, NetworkFault, Observation, VerdictNote};

use super::Job;

/// Links of which it is kept that they are slow.
const MAX_LINKS: usize = 1024;

impl Job {
    /// Takes what the host of a rank sees. Of a job that stands still it is evidence, and so is a
    /// slow link of one that became slower.
    pub(super) fn take_network(&mut self, rank: u32, fault: NetworkFault) {
        let peer = match &fault {
            NetworkFault::SlowerFlow { communicator, peer, .. } => self
                .detectors
                .collectives
                .hangs
                .communicated()
                .job_rank(*communicator, *peer),
            _ => None,
        };
        let what = Observation::Network { rank, fault: fault.clone(), peer };
        let fact = Fact::from(what);
        match fault {
            NetworkFault::Slower { .. } => {
                self.note(VerdictNote::Network { rank, fault });
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
                self.detectors.collectives.hangs.network(fact);
                self.detectors
                    .collectives
                    .hangs
                    .port_down(self.behind_port(rank, &fault));
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
            let step = self.detectors.collectives.hangs.step();
            let left_share = bytes_per_s as f64 / usual_bytes_per_s.max(1) as f64;
            let link = SlowLink { ends: ends.clone(), step, left_share, fact };
            self.slower_links.insert(ends, link);
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
}

#[cfg(test)]
mod tests {
    use diagnosis::Witnesses;
    use model::{Communicator, Input, Source};

    use super::*;
    use crate::Settings;

    #[test]
    fn a_link_that_carries_less_is_known_by_its_ends_and_no_incident_by_itself() {
        let mut job = Job::new("job", Source::Run, Settings::default());
        for member in 0..2 {
            let name = "pp".to_owned();
            let communicator = Communicator { hash: 7, name, rank: member, size: 2 };
            job.take(Input::Communicator { rank: 3 * member, communicator });
        }
        let (bytes_per_s, usual_bytes_per_s) = (1, 4);
        let (communicator, channel, peer) = (7, 1, 1);
        let flow = NetworkFault::SlowerFlow {
            communicator,
            channel,
            peer,
            bytes_per_s,
            usual_bytes_per_s,
        };
        let peer = "10.0.0.2".to_owned();
        let link = NetworkFault::SlowerLink { peer, bytes_per_s, usual_bytes_per_s };
        for fault in [flow, link] {
            job.take(Input::Network { rank: 0, fault });
        }
        let ends: Vec<_> = job
            .slow_links()
            .into_iter()
            .map(|link| (link.ends, link.left_share, link.step))
            .collect();
        let ranks = (LinkEnd::Rank(0), LinkEnd::Rank(3));
        let host = |name: &str| LinkEnd::Host(name.to_owned());
        let hosts = (host(""), host("10.0.0.2"));
        assert_eq!(ends, [(ranks, 0.25, 0), (hosts, 0.25, 0)]);
        assert!(job.verdict().incidents.is_empty());
    }
}
