//! The words of what hosts say of ranks' processes.

use std::collections::BTreeMap;

use model::{CoreUsage, Evidence, Method, fold_ranks, median};

use crate::words::{share, who};

/// Share of the time that a rank's loop must have stood ready without a core, more than its
/// peers', before it is spoken of. Taste: on a busy host everybody waits a little.
const WITHOUT_CORE_MIN: f64 = 0.2;
/// The same of the cores a process keeps busy: less says neither that it computes nor that it
/// waits.
const CORES_MIN: f64 = 0.25;

/// Says that ranks wanted for a core, and what to do, if they did more than their peers.
///
/// `shares` is for how much of `span` each rank's loop stood ready without a core.
pub fn without_core(
    ranks: &[u32],
    shares: &BTreeMap<u32, f64>,
    span: &str,
) -> Option<(Evidence, String)> {
    let (own, peers) = compared(ranks, shares)?;
    if own - peers < WITHOUT_CORE_MIN {
        return None;
    }
    let text = format!(
        "the loop of rank {} stood ready and had no core for {} of {span}, its peers' for {}",
        fold_ranks(ranks),
        share(own),
        share(peers),
    );
    let values = [("without_core_share", own), ("peers_without_core_share", peers)];
    let evidence = Evidence::new(Method::Host, "without_core", text, &values);
    let advice = format!(
        "on {}, look at what shares its cores: affinity, limits of its cgroup, other processes",
        who(ranks)
    );
    Some((evidence, advice))
}

/// Says what the processes of ranks got of cores, and what to do if they wanted for one; nothing
/// if it is what their peers got.
///
/// `usages` is what each rank's process did with cores while the incident went on.
pub fn cores(
    ranks: &[u32],
    usages: &BTreeMap<u32, CoreUsage>,
) -> Option<(Evidence, Option<String>)> {
    let of = |what: fn(&CoreUsage) -> f64| -> BTreeMap<u32, f64> {
        usages.iter().map(|(rank, usage)| (*rank, what(usage))).collect()
    };
    let (own, peers) = compared(ranks, &of(|usage| usage.cores))?;
    let mine = usages.iter().filter(|(rank, _)| ranks.contains(rank));
    let deviation = mine.map(|(_, usage)| usage.cores_deviation).fold(0.0, f64::max);
    let text = format!(
        "{} kept {own:.2} cores busy (deviation {deviation:.2}), its peers' {peers:.2}",
        process_of(ranks),
    );
    let mut values =
        vec![("cores", own), ("cores_deviation", deviation), ("peers_cores", peers)];
    let shares = of(|usage| usage.without_core_share);
    if let Some((evidence, advice)) = without_core(ranks, &shares, "the time") {
        values
            .extend(evidence.values.iter().map(|(name, value)| (name.as_str(), *value)));
        let text = format!("{}; {text}", evidence.text);
        let evidence = Evidence::new(Method::Host, "without_core", text, &values);
        return Some((evidence, Some(advice)));
    }
    let is_notable = (own - peers).abs() >= CORES_MIN;
    is_notable.then(|| (Evidence::new(Method::Host, "cores", text, &values), None))
}

fn process_of(ranks: &[u32]) -> String {
    format!("the process of rank {}", fold_ranks(ranks))
}

/// The number of those of `ranks` it is furthest from the others' median for, and that median.
fn compared(ranks: &[u32], numbers: &BTreeMap<u32, f64>) -> Option<(f64, f64)> {
    let (own, others): (Vec<_>, Vec<_>) =
        numbers.iter().partition(|(rank, _)| ranks.contains(rank));
    let peers =
        median(&mut others.into_iter().map(|(_, number)| *number).collect::<Vec<_>>())?;
    let own = own.into_iter().map(|(_, number)| *number);
    let own = own.max_by(|a, b| (a - peers).abs().total_cmp(&(b - peers).abs()))?;
    Some((own, peers))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of rank 2 of four whose processes kept so many cores busy, and whose loops
    /// stood ready without one for such shares.
    fn said(
        cores_busy: [f64; 4],
        without: [f64; 4],
    ) -> Option<(Evidence, Option<String>)> {
        let usages = (0..).zip(cores_busy).zip(without);
        let usage = |((rank, cores), without_core_share)| {
            let (lasted_s, cores_deviation) = (10.0, 0.05);
            (rank, CoreUsage { lasted_s, cores, cores_deviation, without_core_share })
        };
        cores(&[2], &usages.map(usage).collect())
    }

    #[test]
    fn a_process_without_a_core_is_told_with_what_it_got() {
        let (found, advice) =
            said([0.98, 0.97, 0.31, 0.99], [0.02, 0.02, 0.69, 0.02]).unwrap();
        let text = "the loop of rank 2 stood ready and had no core for 69 % of the time, its \
                    peers' for 2.0 %; the process of rank 2 kept 0.31 cores busy (deviation \
                    0.05), its peers' 0.98";
        assert_eq!((found.label.as_str(), found.text.as_str()), ("without_core", text));
        assert!(advice.unwrap().starts_with("on rank 2, look at what shares its cores"));
    }

    #[test]
    fn what_it_got_is_told_alone_if_it_differs_and_nothing_if_it_does_not() {
        let (found, advice) = said([0.1, 0.12, 1.0, 0.11], [0.0; 4]).unwrap();
        assert_eq!((found.label.as_str(), advice), ("cores", None));
        assert_eq!(said([0.9, 0.8, 1.0, 0.9], [0.1, 0.1, 0.2, 0.1]), None);
        assert_eq!(cores(&[2], &BTreeMap::new()), None);
    }
}
