//! Devices on the clocks of their hosts.

use std::collections::BTreeMap;

use model::{Cut, Meeting};

use super::SampledSteps;
use crate::cells::DeliveredSteps;
use crate::clocks::{APART_SHARE, devices_apart_share, devices_meet_on_hosts};

/// Share of a step by which devices are apart in most steps that do not meet there. Ours: what one does behind a
/// meeting before the cut is less.
const FAR_SHARE: f64 = 0.5;

/// Where devices were last found to meet by the clocks of their hosts, by the first of their ranks.
#[derive(Debug, Default)]
pub(super) struct MetOnHosts(BTreeMap<u32, Cut>);

impl MetOnHosts {
    /// The last of some cuts is the chosen one. If devices of a host are apart there on its clock, that at which
    /// they are together instead; or that they do not meet there, if they are far apart. What the clocks showed
    /// last holds until they show that it does not: hosts that are far ahead of their devices leave open by how
    /// much the clocks differ.
    ///
    /// `steps` are those that were sampled, on the clocks of the devices.
    /// # Source
    /// Ours: docs/math/device.md.
    pub(super) fn at(
        &mut self,
        cuts: &[Cut],
        steps: &DeliveredSteps<'_>,
        sampled: &SampledSteps,
        ranks: &[u32],
        hosts: &BTreeMap<u32, String>,
    ) -> Option<(Cut, Meeting)> {
        let (chosen, others) = cuts.split_last()?;
        let first = *ranks.first().filter(|_| ranks.len() > 1)?;
        let host_of = |rank| hosts.get(rank).map(String::as_str);
        let hosts: Vec<Option<&str>> = ranks.iter().map(host_of).collect();
        let bounds_ns: Vec<_> = ranks.iter().map(|it| offsets_ns(sampled, *it)).collect();
        let offset_ns = |step: u32, rank: usize| {
            let at = sampled.binary_search_by_key(&step, |(step, _)| *step);
            Some(bounds_ns[rank][at.ok()?])
        };
        if let Some(met) = devices_meet_on_hosts(cuts, steps, &hosts, offset_ns) {
            self.0.insert(first, met);
            return Some((met, Meeting::Seen));
        }
        let apart_share = |cut| devices_apart_share(cut, steps, &hosts, offset_ns);
        let known = self.0.get(&first).copied();
        let known = known.filter(|cut| others.contains(cut) && apart_share(*cut) <= APART_SHARE);
        match known {
            Some(known) => Some((known, Meeting::Seen)),
            None => (apart_share(*chosen) > FAR_SHARE).then_some((*chosen, Meeting::Unseen)),
        }
    }
}

/// `[step]`: by how much the host's clock of a rank stands before that of its steps on the device, at least
/// and at most. That clock goes on over runs that follow at once, so that what bounds one bounds all of them.
fn offsets_ns(sampled: &SampledSteps, rank: u32) -> Vec<[i128; 2]> {
    let mut offsets_ns = Vec::with_capacity(sampled.len());
    for runs in sampled.chunk_by(|(one, _), (next, _)| one + 1 == *next) {
        let of_steps = runs.iter().filter_map(|(_, steps)| steps.get(&rank));
        let bounds_ns = of_steps.map(|it| it.offset_ns);
        let bounds_ns = bounds_ns.reduce(|[least, most], [other_least, other_most]| {
            let least = least.max(other_least);
            // Devices and hosts tick alike but for their drift.
            [least, most.min(other_most).max(least)]
        });
        offsets_ns.extend(std::iter::repeat_n(
            bounds_ns.unwrap_or_default(),
            runs.len(),
        ));
    }
    offsets_ns
}
