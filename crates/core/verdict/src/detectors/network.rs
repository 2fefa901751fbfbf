//! Links of the network that carry less than they did.

use std::collections::BTreeMap;

use diagnosis::SlowLink;
use model::{JobContext, LinkEnd, NetworkFault, Observation};

/// Links of which it is kept that they are slow.
const MAX_LINKS: usize = 1024;

/// The slow links of a job, by their ends.
#[derive(Debug, Default)]
pub(crate) struct SlowLinks(BTreeMap<(LinkEnd, LinkEnd), SlowLink>);

impl SlowLinks {
    /// Takes what the host of a rank sees of a link, in `step` of the job; `peer` is the rank at the
    /// other end of a flow, where it is known.
    pub(crate) fn take(
        &mut self,
        rank: u32,
        fault: &NetworkFault,
        peer: Option<u32>,
        step: u64,
        context: JobContext<'_>,
    ) {
        let (ends, [bytes_per_s, usual_bytes_per_s]) = match fault {
            NetworkFault::SlowerLink {
                peer,
                bytes_per_s,
                usual_bytes_per_s,
            } => {
                let host = context.hosts.get(&rank).cloned().unwrap_or_default();
                let ends = (LinkEnd::Host(host), LinkEnd::Host(peer.clone()));
                (ends, [*bytes_per_s, *usual_bytes_per_s])
            }
            NetworkFault::SlowerFlow {
                bytes_per_s,
                usual_bytes_per_s,
                ..
            } => {
                // Of a communicator that was not seen to be made nobody knows which rank of the job
                // it is.
                let Some(peer) = peer else { return };
                let ends = (LinkEnd::Rank(rank), LinkEnd::Rank(peer));
                (ends, [*bytes_per_s, *usual_bytes_per_s])
            }
            _ => return,
        };
        if self.0.len() < MAX_LINKS || self.0.contains_key(&ends) {
            let left_share = bytes_per_s as f64 / usual_bytes_per_s.max(1) as f64;
            let fact = Observation::Network {
                rank,
                fault: fault.clone(),
                peer,
            }
            .into();
            let link = SlowLink {
                ends: ends.clone(),
                step,
                left_share,
                fact,
            };
            // The latest word replaces the one before: rules ask whether a link was slow while a
            // finding went on.
            self.0.insert(ends, link);
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<SlowLink> {
        self.0.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use diagnosis::Witnesses;
    use model::{Communicator, Input, Source};

    use super::*;
    use crate::{Job, Settings};

    #[test]
    fn a_link_that_carries_less_is_known_by_its_ends_and_no_incident_by_itself() {
        let mut job = Job::new("job", Source::Run, Settings::default());
        for member in 0..2 {
            let name = "pp".to_owned();
            let communicator = Communicator {
                hash: 7,
                name,
                rank: member,
                size: 2,
            };
            job.take(Input::Communicator {
                rank: 3 * member,
                communicator,
            });
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
        let link = NetworkFault::SlowerLink {
            peer,
            bytes_per_s,
            usual_bytes_per_s,
        };
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
