//! What hosts say of the cores that ranks' processes get.

use std::collections::BTreeMap;

use model::{Action, CoreUsage, CoresBusy, During, Observation, median};

/// Share of the time that a rank's loop must have stood ready without a core, more than its
/// peers', before it is spoken of. Taste: on a busy host everybody waits a little.
const WITHOUT_CORE_MIN: f64 = 0.2;
/// The same of the cores a process keeps busy: less says neither that it computes nor that it
/// waits.
const CORES_MIN: f64 = 0.25;

/// Finds which of `ranks` lacked a core more than their peers did, and what to do; nothing if
/// none of them.
///
/// `shares` is for how much of the time each rank's loop stood ready without a core.
pub fn without_core(
    ranks: &[u32],
    shares: &BTreeMap<u32, f64>,
    during: During,
) -> Option<(Observation, Action)> {
    let peers_share = of_peers(ranks, shares)?;
    let ranks = in_want(ranks, shares);
    let share = of(&ranks, shares)?;
    let action = Action::FreeCores {
        ranks: ranks.clone(),
    };
    Some((
        Observation::NoCore {
            ranks,
            share,
            peers_share,
            during,
            cores: None,
        },
        action,
    ))
}

/// Finds which of `ranks`, or all if there are none, are held back by CPU quotas of their control
/// groups more than their peers are, and what to do.
///
/// `usages` is what each rank's process did with cores while the incident went on.
pub fn cpu_quota(
    ranks: &[u32],
    usages: &BTreeMap<u32, CoreUsage>,
) -> Option<(Observation, Option<Action>)> {
    let shares = each(usages, |usage| usage.throttled_share);
    // Without named ranks all are peers: the typical share is that of the whole job.
    let typical = of_peers(ranks, &shares)?;
    let (ranks, share, peers_share) = if ranks.is_empty() {
        (Vec::new(), typical, None)
    } else {
        let ranks = in_want(ranks, &shares);
        let own = of(&ranks, &shares)?;
        (ranks, own, Some(typical))
    };
    // Named ranks passed this bound beside their peers; all ranks together pass it here.
    if share < WITHOUT_CORE_MIN {
        return None;
    }
    let action = Action::RaiseQuota {
        ranks: ranks.clone(),
    };
    let found = Observation::CpuQuota {
        ranks,
        share,
        peers_share,
        cores: None,
    };
    Some((found, Some(action)))
}

/// Finds what the processes of those of `ranks` got of cores that were held back or lacked one,
/// and what to do; else of those that got more or less than their peers, if any did.
///
/// `usages` is what each rank's process did with cores while the incident went on.
pub fn cores(
    ranks: &[u32],
    usages: &BTreeMap<u32, CoreUsage>,
) -> Option<(Observation, Option<Action>)> {
    let quota = cpu_quota(ranks, usages);
    if ranks.is_empty() {
        // All ranks have no peers; a quota says by itself that cores lack.
        return quota;
    }
    let kept_busy = each(usages, |usage| usage.cores);
    let peers = of_peers(ranks, &kept_busy)?;
    let busy = |ranks: &[u32]| {
        Some(CoresBusy {
            ranks: ranks.to_vec(),
            cores: of(ranks, &kept_busy)?,
            deviation: of(ranks, &each(usages, |usage| usage.cores_deviation))?,
            peers,
        })
    };
    let without = each(usages, |usage| usage.without_core_share);
    // A quota is why there is no core, so it goes first.
    let wanting = quota.or_else(|| {
        let (found, action) = without_core(ranks, &without, During::Incident)?;
        Some((found, Some(action)))
    });
    if let Some((mut found, action)) = wanting {
        if let Observation::NoCore { ranks, cores, .. }
        | Observation::CpuQuota { ranks, cores, .. } = &mut found
        {
            *cores = Some(busy(ranks)?);
        }
        return Some((found, action));
    }
    let ranks: Vec<_> = ranks
        .iter()
        .copied()
        // A rank of which nothing is known counts as its peers do.
        .filter(|rank| (kept_busy.get(rank).unwrap_or(&peers) - peers).abs() >= CORES_MIN)
        .collect();
    busy(&ranks).map(|busy| (Observation::Cores(busy), None))
}

/// Finds that the ranks together lacked cores more than they did before, and what to do.
///
/// `now` is what their processes did with cores while the incident went on, `before` until then.
pub fn too_few_cores(
    now: &BTreeMap<u32, CoreUsage>,
    before: &BTreeMap<u32, CoreUsage>,
) -> Option<(Observation, Option<Action>)> {
    let (share, before_share) = (typical_want(now)?, typical_want(before)?);
    (share - before_share >= WITHOUT_CORE_MIN).then_some((
        Observation::TooFewCores {
            share,
            before_share,
        },
        Some(Action::LookAtLoadOfHosts),
    ))
}

/// The median share of time that ranks wanted for a core.
fn typical_want(usages: &BTreeMap<u32, CoreUsage>) -> Option<f64> {
    let shares = usages.values().map(|usage| usage.without_core_share);
    median(&mut shares.collect::<Vec<_>>())
}

fn each(usages: &BTreeMap<u32, CoreUsage>, what: fn(&CoreUsage) -> f64) -> BTreeMap<u32, f64> {
    usages
        .iter()
        .map(|(rank, usage)| (*rank, what(usage)))
        .collect()
}

/// Those of `ranks` that wanted for cores for more of the time than their peers.
fn in_want(ranks: &[u32], shares: &BTreeMap<u32, f64>) -> Vec<u32> {
    // Without peers nobody lacks more than they do.
    let peers = of_peers(ranks, shares).unwrap_or(f64::INFINITY);
    ranks
        .iter()
        .copied()
        .filter(|rank| {
            shares
                .get(rank)
                .is_some_and(|share| share - peers >= WITHOUT_CORE_MIN)
        })
        .collect()
}

/// The median of what is known of `ranks`.
fn of(ranks: &[u32], numbers: &BTreeMap<u32, f64>) -> Option<f64> {
    median(
        &mut ranks
            .iter()
            .filter_map(|rank| numbers.get(rank))
            .copied()
            .collect::<Vec<_>>(),
    )
}

/// The median of the others'.
fn of_peers(ranks: &[u32], numbers: &BTreeMap<u32, f64>) -> Option<f64> {
    let others = numbers.keys().copied().filter(|rank| !ranks.contains(rank));
    of(&others.collect::<Vec<_>>(), numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found of ranks of four whose processes kept so many cores busy, and whose loops
    /// stood ready without one for such shares.
    fn found(
        ranks: &[u32],
        cores_busy: [f64; 4],
        without: [f64; 4],
    ) -> Option<(Observation, Option<Action>)> {
        let usages = (0..).zip(cores_busy).zip(without);
        let usage = |((rank, cores), without_core_share)| {
            let (lasted_s, cores_deviation) = (10.0, 0.05);
            let throttled_share = 0.0;
            let usage = CoreUsage {
                lasted_s,
                cores,
                cores_deviation,
                without_core_share,
                throttled_share,
            };
            (rank, usage)
        };
        cores(ranks, &usages.map(usage).collect())
    }

    fn no_core(share: f64, peers_share: f64, cores: CoresBusy) -> Observation {
        Observation::NoCore {
            ranks: vec![2],
            share,
            peers_share,
            during: During::Incident,
            cores: Some(cores),
        }
    }

    #[test]
    fn a_process_without_a_core_is_found_with_what_it_got() {
        let (fact, action) =
            found(&[2], [0.98, 0.97, 0.31, 0.99], [0.02, 0.02, 0.69, 0.02]).unwrap();
        let cores = CoresBusy {
            ranks: vec![2],
            cores: 0.31,
            deviation: 0.05,
            peers: 0.98,
        };
        assert_eq!(fact, no_core(0.69, 0.02, cores));
        assert_eq!(action, Some(Action::FreeCores { ranks: vec![2] }));
    }

    #[test]
    fn of_ranks_that_are_late_together_those_are_found_that_lacked_a_core() {
        let (fact, action) =
            found(&[2, 3], [0.29, 0.29, 0.31, 0.29], [0.2, 0.25, 0.57, 0.3]).unwrap();
        let cores = CoresBusy {
            ranks: vec![2],
            cores: 0.31,
            deviation: 0.05,
            peers: 0.29,
        };
        assert_eq!(fact, no_core(0.57, 0.225, cores));
        assert_eq!(action, Some(Action::FreeCores { ranks: vec![2] }));
        let (fact, _) = found(&[2, 3], [0.1, 0.12, 0.11, 1.0], [0.0; 4]).unwrap();
        let Observation::Cores(busy) = fact else {
            panic!("{fact:?}")
        };
        assert_eq!((busy.ranks, busy.cores), (vec![3], 1.0));
    }

    #[test]
    fn a_quota_that_is_used_up_is_found_of_those_it_holds_back_more_than_others() {
        let usages = |throttled: [f64; 4]| -> BTreeMap<u32, CoreUsage> {
            let usage = |throttled_share| CoreUsage {
                lasted_s: 10.0,
                cores: 0.5,
                cores_deviation: 0.02,
                without_core_share: 0.6 * throttled_share,
                throttled_share,
            };
            (0..).zip(throttled.map(usage)).collect()
        };
        let (fact, action) = cores(&[1, 2], &usages([0.0, 0.1, 0.93, 0.04])).unwrap();
        let busy = CoresBusy {
            ranks: vec![2],
            cores: 0.5,
            deviation: 0.02,
            peers: 0.5,
        };
        let quota = Observation::CpuQuota {
            ranks: vec![2],
            share: 0.93,
            peers_share: Some(0.02),
            cores: Some(busy),
        };
        assert_eq!(fact, quota);
        assert_eq!(action, Some(Action::RaiseQuota { ranks: vec![2] }));
        let all = usages([0.6, 0.61, 0.61, 0.7]);
        assert_eq!(cores(&[2], &all), None, "its peers have the same container");
        let (fact, action) = cores(&[], &all).unwrap();
        let (ranks, share) = (Vec::new(), 0.61);
        let of_all = Observation::CpuQuota {
            ranks,
            share,
            peers_share: None,
            cores: None,
        };
        assert_eq!(fact, of_all);
        assert_eq!(action, Some(Action::RaiseQuota { ranks: Vec::new() }));
        assert_eq!(cores(&[], &usages([0.1; 4])), None);
    }

    #[test]
    fn all_ranks_lack_cores_only_if_they_did_not_before() {
        let usages = |share: f64| -> BTreeMap<u32, CoreUsage> {
            let usage = CoreUsage {
                lasted_s: 10.0,
                cores: 0.5,
                cores_deviation: 0.1,
                without_core_share: share,
                throttled_share: 0.0,
            };
            (0..4).map(|rank| (rank, usage)).collect()
        };
        let (fact, _) = too_few_cores(&usages(0.43), &usages(0.05)).unwrap();
        assert_eq!(
            fact,
            Observation::TooFewCores {
                share: 0.43,
                before_share: 0.05
            }
        );
        assert_eq!(too_few_cores(&usages(0.43), &usages(0.3)), None);
        assert_eq!(too_few_cores(&usages(0.43), &BTreeMap::new()), None);
    }

    #[test]
    fn what_it_got_is_found_alone_if_it_differs_and_nothing_if_it_does_not() {
        let (fact, action) = found(&[2], [0.1, 0.12, 1.0, 0.11], [0.0; 4]).unwrap();
        assert!(matches!(fact, Observation::Cores(_)));
        assert_eq!(action, None);
        assert_eq!(
            found(&[2], [0.9, 0.8, 1.0, 0.9], [0.1, 0.1, 0.2, 0.1]),
            None
        );
        assert_eq!(cores(&[2], &BTreeMap::new()), None);
    }
}
