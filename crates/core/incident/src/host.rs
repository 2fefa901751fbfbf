//! The words of what hosts say of ranks' processes.

use std::collections::BTreeMap;

use model::{Cause, CoreUsage, Evidence, Method, fold_ranks, median};

use crate::words::{share, who};

/// Share of the time that a rank's loop must have stood ready without a core, more than its
/// peers', before it is spoken of. Taste: on a busy host everybody waits a little.
const WITHOUT_CORE_MIN: f64 = 0.2;
/// The same of the cores a process keeps busy: less says neither that it computes nor that it
/// waits.
const CORES_MIN: f64 = 0.25;

/// Says which of `ranks` wanted for a core more than their peers did, and what to do; nothing if
/// none of them.
///
/// `shares` is for how much of `span` each rank's loop stood ready without a core.
pub fn without_core(
    ranks: &[u32],
    shares: &BTreeMap<u32, f64>,
    span: &str,
) -> Option<(Evidence, String)> {
    let peers = of_peers(ranks, shares)?;
    let ranks = in_want(ranks, shares);
    let own = of(&ranks, shares)?;
    let text = format!(
        "the loop of rank {} stood ready and had no core for {} of {span}, its peers' for {}",
        fold_ranks(&ranks),
        share(own),
        share(peers),
    );
    let values = [("without_core_share", own), ("peers_without_core_share", peers)];
    let evidence =
        Evidence::new(Method::Host, "without_core", text, &values).blaming(Cause::Cores);
    let advice = format!(
        "on {}, look at what shares its cores: affinity, limits of its cgroup, other processes",
        who(&ranks)
    );
    Some((evidence, advice))
}

/// Says which of `ranks`, or that all if there are none, are held back by CPU quotas of their
/// control groups more than their peers are, and what to do.
///
/// `usages` is what each rank's process did with cores while the incident went on.
pub fn cpu_quota(
    ranks: &[u32],
    usages: &BTreeMap<u32, CoreUsage>,
) -> Option<(Evidence, Option<String>)> {
    let shares = each(usages, |usage| usage.throttled_share);
    let typical = of_peers(ranks, &shares)?;
    let (own, text, who) = if ranks.is_empty() {
        let whose = "the control groups of all ranks had used up their CPU quota";
        (
            typical,
            format!("{whose} in {} of the periods", share(typical)),
            "all ranks".into(),
        )
    } else {
        let ranks = in_want(ranks, &shares);
        let own = of(&ranks, &shares)?;
        let text = format!(
            "the control group of rank {} had used up its CPU quota in {} of the periods, its \
             peers' in {}",
            fold_ranks(&ranks),
            share(own),
            share(typical),
        );
        (own, text, who(&ranks))
    };
    if own < WITHOUT_CORE_MIN {
        return None;
    }
    let mut values = vec![("throttled_share", own)];
    if !ranks.is_empty() {
        values.push(("peers_throttled_share", typical));
    }
    let evidence =
        Evidence::new(Method::Host, "cpu_quota", text, &values).blaming(Cause::Cores);
    let advice = format!(
        "give {who} more CPU: the limit of the container or job (cpu.max, cpu.cfs_quota_us), or \
         fewer threads under it"
    );
    Some((evidence, Some(advice)))
}

/// Says what the processes of those of `ranks` got of cores that were held back or wanted for one,
/// and what to do; else of those that got more or less than their peers, if any did.
///
/// `usages` is what each rank's process did with cores while the incident went on.
pub fn cores(
    ranks: &[u32],
    usages: &BTreeMap<u32, CoreUsage>,
) -> Option<(Evidence, Option<String>)> {
    let quota = cpu_quota(ranks, usages);
    if ranks.is_empty() {
        return quota;
    }
    let cores = each(usages, |usage| usage.cores);
    let peers = of_peers(ranks, &cores)?;
    let told = |ranks: &[u32]| {
        let own = of(ranks, &cores)?;
        let deviation = of(ranks, &each(usages, |usage| usage.cores_deviation))?;
        let text = format!(
            "the process of rank {} kept {own:.2} cores busy (deviation {deviation:.2}), its \
             peers' {peers:.2}",
            fold_ranks(ranks),
        );
        let values =
            [("cores", own), ("cores_deviation", deviation), ("peers_cores", peers)];
        Some(Evidence::new(Method::Host, "cores", text, &values))
    };
    let (wanting, shares) = if quota.is_some() {
        (quota, each(usages, |usage| usage.throttled_share))
    } else {
        let shares = each(usages, |usage| usage.without_core_share);
        let found = without_core(ranks, &shares, "the time");
        (found.map(|(evidence, advice)| (evidence, Some(advice))), shares)
    };
    if let Some((mut evidence, advice)) = wanting {
        let cores = told(&in_want(ranks, &shares))?;
        evidence.text = format!("{}; {}", evidence.text, cores.text);
        evidence.values.extend(cores.values);
        return Some((evidence, advice));
    }
    let differs =
        |rank: &u32| (cores.get(rank).unwrap_or(&peers) - peers).abs() >= CORES_MIN;
    let ranks: Vec<_> = ranks.iter().copied().filter(differs).collect();
    told(&ranks).map(|evidence| (evidence, None))
}

/// Says that the ranks together wanted for cores more than they did before, and what to do.
///
/// `now` is what their processes did with cores while the incident went on, `before` until then.
pub fn too_few_cores(
    now: &BTreeMap<u32, CoreUsage>,
    before: &BTreeMap<u32, CoreUsage>,
) -> Option<(Evidence, Option<String>)> {
    let typical = |usages: &BTreeMap<u32, CoreUsage>| {
        let shares = usages.values().map(|usage| usage.without_core_share);
        median(&mut shares.collect::<Vec<_>>())
    };
    let (now, before) = (typical(now)?, typical(before)?);
    if now - before < WITHOUT_CORE_MIN {
        return None;
    }
    let text = format!(
        "the loops of all ranks stood ready and had no core for {} of the time, before for {}",
        share(now),
        share(before),
    );
    let values = [("without_core_share", now), ("before_without_core_share", before)];
    let evidence =
        Evidence::new(Method::Host, "too_few_cores", text, &values).blaming(Cause::Cores);
    let advice =
        "look at what else runs on the hosts: other jobs, more threads than cores";
    Some((evidence, Some(advice.to_owned())))
}

fn each(
    usages: &BTreeMap<u32, CoreUsage>,
    what: fn(&CoreUsage) -> f64,
) -> BTreeMap<u32, f64> {
    usages.iter().map(|(rank, usage)| (*rank, what(usage))).collect()
}

/// Those of `ranks` that wanted for cores for more of the time than their peers.
fn in_want(ranks: &[u32], shares: &BTreeMap<u32, f64>) -> Vec<u32> {
    let peers = of_peers(ranks, shares).unwrap_or(f64::INFINITY);
    let wants = |rank: &u32| {
        shares.get(rank).is_some_and(|share| share - peers >= WITHOUT_CORE_MIN)
    };
    ranks.iter().copied().filter(wants).collect()
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

    /// What is said of ranks of four whose processes kept so many cores busy, and whose loops
    /// stood ready without one for such shares.
    fn said(
        ranks: &[u32],
        cores_busy: [f64; 4],
        without: [f64; 4],
    ) -> Option<(Evidence, Option<String>)> {
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

    #[test]
    fn a_process_without_a_core_is_told_with_what_it_got() {
        let (found, advice) =
            said(&[2], [0.98, 0.97, 0.31, 0.99], [0.02, 0.02, 0.69, 0.02]).unwrap();
        let text = "the loop of rank 2 stood ready and had no core for 69 % of the time, its \
                    peers' for 2.0 %; the process of rank 2 kept 0.31 cores busy (deviation \
                    0.05), its peers' 0.98";
        assert_eq!((found.label.as_str(), found.text.as_str()), ("without_core", text));
        assert!(advice.unwrap().starts_with("on rank 2, look at what shares its cores"));
    }

    #[test]
    fn of_ranks_that_are_late_together_those_are_told_that_wanted_for_a_core() {
        let (found, advice) =
            said(&[2, 3], [0.29, 0.3, 0.31, 0.29], [0.2, 0.25, 0.57, 0.3]).unwrap();
        let text = "the loop of rank 2 stood ready and had no core for 57 % of the time, its \
                    peers' for 22 %; the process of rank 2 kept 0.31 cores busy (deviation \
                    0.05), its peers' 0.29";
        assert_eq!(found.text, text);
        assert!(advice.unwrap().starts_with("on rank 2, look at what shares its cores"));
        let (found, _) = said(&[2, 3], [0.1, 0.12, 0.11, 1.0], [0.0; 4]).unwrap();
        assert!(found.text.starts_with("the process of rank 3 kept 1.00 cores busy"));
    }

    #[test]
    fn a_quota_that_is_used_up_is_told_of_those_it_holds_back_more_than_others() {
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
        let (found, advice) = cores(&[1, 2], &usages([0.0, 0.1, 0.93, 0.04])).unwrap();
        let text = "the control group of rank 2 had used up its CPU quota in 93 % of the \
                    periods, its peers' in 2.0 %; the process of rank 2 kept 0.50 cores busy \
                    (deviation 0.02), its peers' 0.50";
        assert_eq!((found.label.as_str(), found.text.as_str()), ("cpu_quota", text));
        assert!(advice.unwrap().starts_with("give rank 2 more CPU"));
        let all = usages([0.6, 0.61, 0.61, 0.7]);
        assert_eq!(cores(&[2], &all), None, "its peers have the same container");
        let (found, advice) = cores(&[], &all).unwrap();
        let text = "the control groups of all ranks had used up their CPU quota in 61 % of the \
                    periods";
        assert_eq!(found.text, text);
        assert!(advice.unwrap().starts_with("give all ranks more CPU"));
        assert_eq!(cores(&[], &usages([0.1; 4])), None);
    }

    #[test]
    fn all_ranks_want_for_cores_only_if_they_did_not_before() {
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
        let (found, _) = too_few_cores(&usages(0.43), &usages(0.05)).unwrap();
        let text = "the loops of all ranks stood ready and had no core for 43 % of the time, \
                    before for 5.0 %";
        assert_eq!(found.text, text);
        assert_eq!(too_few_cores(&usages(0.43), &usages(0.3)), None);
        assert_eq!(too_few_cores(&usages(0.43), &BTreeMap::new()), None);
    }

    #[test]
    fn what_it_got_is_told_alone_if_it_differs_and_nothing_if_it_does_not() {
        let (found, advice) = said(&[2], [0.1, 0.12, 1.0, 0.11], [0.0; 4]).unwrap();
        assert_eq!((found.label.as_str(), advice), ("cores", None));
        assert_eq!(said(&[2], [0.9, 0.8, 1.0, 0.9], [0.1, 0.1, 0.2, 0.1]), None);
        assert_eq!(cores(&[2], &BTreeMap::new()), None);
    }
}
