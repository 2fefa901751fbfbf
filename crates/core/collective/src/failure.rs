//! What is broken inside the communication of a job.

use std::collections::{BTreeMap, BTreeSet};

use model::{Direction, Failure, HoldUp, RankChannel, RankNs, StallKind, Wait};

use crate::communication::Communication;
use crate::{Counted, Root, Stall};

/// Failures that began within so many seconds began together. Ours: what follows from one in a
/// healthy job follows within an iteration, and looks are up to a second apart.
const TOGETHER_S: f64 = 2.0;

impl Communication {
    /// Says what keeps operations from their end that have stood still for longer than is
    /// usual in the job.
    ///
    /// # Properties
    /// Never names nobody (MY-P2); adding a constant to the clock of a rank changes nothing
    /// (MY-P3).
    /// # Source
    /// Mycroft (2025), failure analysis; one rank that all struck links share is named
    /// before the links are.
    pub fn failures(&self) -> Vec<Failure> {
        let patience_s = self.patience_s();
        let mut by_cause: BTreeMap<HoldUp, Vec<Root>> = BTreeMap::new();
        for root in self.roots() {
            // What has moved since may be slow, and is no failure.
            if root.still_s >= patience_s {
                by_cause.entry(root.cause).or_default().push(root);
            }
        }
        // What nobody can explain may be a consequence of what can be explained.
        if by_cause.keys().any(|cause| *cause != HoldUp::Unknown) {
            by_cause.remove(&HoldUp::Unknown);
        }
        let mut found: Vec<Failure> = by_cause
            .into_iter()
            .flat_map(|(cause, roots)| self.failures_of(cause, &roots))
            .collect();
        // Who is at fault alone explains what is not delivered over its links.
        let alone: BTreeSet<u32> = found
            .iter()
            .filter(|failure| failure.ranks.len() == 1)
            .map(|failure| failure.ranks[0])
            .collect();
        found.retain(|failure| {
            let mut ends = failure.ranks.iter();
            failure.ranks.len() == 1
                || failure.cause != HoldUp::NotDelivered
                || !ends.any(|end| alone.contains(end))
        });
        found
    }

    /// The failure that has lasted longest, as a job that does not move at `now`. Of several of
    /// one kind that began together all are named: which of them the others follow is not known.
    ///
    /// # Units
    /// `now` is the clock of the operations' own times, of this host.
    pub fn stall(&self, now: RankNs) -> Option<Stall> {
        let mut failures = self.failures();
        failures.sort_by(|a, b| b.still_s.total_cmp(&a.still_s));
        let mut failures = failures.into_iter();
        let longest = failures.next()?;
        let (cause, longest_s) = (longest.cause, longest.still_s);
        let failure = failures
            .filter(|it| it.cause == cause && it.still_s > longest_s - TOGETHER_S)
            .fold(longest, Failure::and);
        let waiting: BTreeSet<u32> = failure
            .waits
            .iter()
            .flat_map(|wait| wait.entered.iter().copied())
            .filter(|rank| !failure.ranks.contains(rank))
            .collect();
        Some(Stall {
            kind: match failure.cause {
                HoldUp::NotEntered => StallKind::Missing,
                HoldUp::DeadlockCycle => StallKind::Deadlock,
                _ => StallKind::Inside,
            },
            culprits: failure.ranks.clone(),
            gone: failure
                .ranks
                .iter()
                .filter(|rank| self.ranks.get(rank).is_some_and(|look| look.gone))
                .copied()
                .collect(),
            waits: failure.waits.clone(),
            waiting: waiting.into_iter().collect(),
            last_kinds: BTreeMap::new(),
            // Live tables know of no steps.
            step: 0,
            since: RankNs(now.0.saturating_sub((failure.still_s * 1e9) as u64)),
            failure: Some(failure),
            halts: Vec::new(),
            devices: Vec::new(),
        })
    }

    /// Joins roots of one cause that have the same culprits.
    fn failures_of(&self, cause: HoldUp, roots: &[Root]) -> Vec<Failure> {
        // Only what is not delivered has two suspects. Other causes name the end that is wrong.
        let shared = shared_end(roots).filter(|_| cause == HoldUp::NotDelivered);
        let mut joined: BTreeMap<Vec<u32>, Vec<&Root>> = BTreeMap::new();
        for root in roots {
            let ranks = shared.map_or(root.ranks.clone(), |rank| vec![rank]);
            joined.entry(ranks).or_default().push(root);
        }
        joined
            .into_iter()
            .map(|(ranks, roots)| {
                let mut waits = roots
                    .iter()
                    .map(|root| (*root.wait).clone())
                    .collect::<Vec<_>>();
                waits.sort_by_key(|wait| std::cmp::Reverse(wait.entered.len()));
                // Roots of one operation stand together. The sort is stable: equals stay so.
                waits.dedup();
                let links: Vec<RankChannel> = roots.iter().filter_map(|root| root.link).collect();
                // Of several the one that moved last: the failure is not older than any of them.
                let still_s = roots
                    .iter()
                    .map(|root| root.still_s)
                    .fold(f64::INFINITY, f64::min);
                Failure {
                    in_flight: self.in_flight(&ranks, &waits),
                    cause,
                    waits,
                    links: if self.are_all_flows(&ranks, &links) {
                        Vec::new()
                    } else {
                        links
                    },
                    ranks,
                    still_s,
                }
            })
            .collect()
    }

    /// What ranks have in flight in operations.
    fn in_flight(&self, ranks: &[u32], waits: &[Wait]) -> u64 {
        let mut in_flight = 0;
        for look in ranks.iter().filter_map(|rank| self.ranks.get(rank)) {
            in_flight += look
                .open
                .iter()
                .filter(|(meeting, operation)| {
                    // Sequences begin at 0; the number of a wait counts the operation itself.
                    let number = operation.sequence.saturating_add(1);
                    waits
                        .iter()
                        .any(|it| it.op == meeting.op && it.number == number)
                })
                .flat_map(|(_, operation)| &operation.flows)
                // Both ends count a transfer; only the sender knows what the network has not
                // brought back.
                .filter(|flow| flow.direction == Direction::Send)
                .map(|flow| Counted::of_flow(flow, look.at).in_flight())
                .sum::<u64>();
        }
        in_flight
    }

    /// Whether the links are all that a rank has in what it is in.
    fn are_all_flows(&self, ranks: &[u32], links: &[RankChannel]) -> bool {
        let [rank] = ranks else { return false };
        let Some(look) = self.ranks.get(rank) else {
            return false;
        };
        look.open
            .iter()
            .flat_map(|(_, operation)| &operation.flows)
            .filter(|flow| flow.direction == Direction::Send)
            .all(|flow| links.iter().any(|link| link.channel == flow.channel))
    }
}

/// The one rank that all links have at one of their ends, if they have different other ends.
fn shared_end(roots: &[Root]) -> Option<u32> {
    let mut links = roots.iter().filter_map(|root| root.link);
    let first = links.next()?;
    let mut ends = vec![first.from, first.to];
    for link in links {
        ends.retain(|end| *end == link.from || *end == link.to);
    }
    match ends[..] {
        [rank] => Some(rank),
        // No rank is an end of all, or two are: of a single link nothing says which end it is.
        _ => None,
    }
}
