//! One function over the ranks: whom it costs what, and what that looks like.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    AbnormalRank, Dictionary, Dimension, Dimensions, FunctionClass, FunctionFaultKind, FunctionId,
    FunctionSummary,
};
use pattern::{
    Abnormal, Columns, ExpectedBox, FunctionFinding, PatternSettings, Problem, by_host, rate_in_use,
};

/// Ranks named of one function.
const MAX_ABNORMAL: usize = 64;
/// Callers of a function that are kept.
pub(super) const MAX_CALLERS: usize = 12;

/// What is wrong with a function, and on which ranks.
pub(super) struct Blamed {
    /// The ranks that it costs more than it should; empty if it is all of them.
    pub(super) ranks: Vec<u32>,
    /// Its share on the worst of them, and the median of the others'.
    pub(super) beta: f64,
    pub(super) peers_beta: f64,
    /// Share it costs more than it should.
    pub(super) excess_share: f64,
    /// In what it is not as the settings file expects it: dimension, value and range.
    pub(super) unexpected: Vec<(Dimension, f64, [f64; 2])>,
}

/// One function over the ranks.
pub(super) struct Compared {
    pub(super) id: FunctionId,
    pub(super) class: FunctionClass,
    pub(super) is_garbage_collection: bool,
    pub(super) expected: ExpectedBox,
    pub(super) columns: Columns,
    pub(super) found: FunctionFinding,
}

impl Compared {
    /// Its largest share on any rank.
    pub(super) fn largest(&self) -> f32 {
        self.columns.values[0].iter().copied().fold(0.0, f32::max)
    }

    /// What it costs each rank, the least first; zero for ranks that never ran it.
    fn shares(&self, ranks: usize) -> Vec<f64> {
        let mut shares: Vec<f64> = self.columns.values[0]
            .iter()
            .map(|beta| f64::from(*beta))
            .collect();
        shares.resize(ranks, 0.0);
        shares.sort_by(f64::total_cmp);
        shares
    }

    /// What is worth an incident.
    ///
    /// What the settings file expects of it goes first. A collective that takes long is waited in: who
    /// waits is not to blame, but whose link was measured to carry less, or more, than the others'. Garbage
    /// collection on most ranks is no work of theirs, and may be little.
    pub(super) fn blamed(&self, ranks: usize, settings: &PatternSettings) -> Option<Blamed> {
        let problem = self.found.problem?;
        if let Some(found) = self.outside(ranks) {
            return Some(found);
        }
        if self.class == FunctionClass::Collective {
            return self.links(ranks, settings.partial_share_min);
        }
        let shares = self.shares(ranks);
        let median = f64::from(self.found.median[0]);
        let usual = match shares[..] {
            // Of two ranks the larger share is not both's.
            [least, _] => least,
            _ => median,
        };
        let middle = shares.get(shares.len().saturating_sub(1) / 2);
        let least = if self.is_garbage_collection {
            settings.partial_share_min
        } else {
            settings.common_share_min
        };
        let common = problem == Problem::Common
            && usual >= least
            && middle.is_some_and(|middle| *middle >= settings.partial_share_min);
        if !common {
            return self.culprits(&shares, problem, settings.partial_share_min);
        }
        // What all ranks do on their devices is the work itself.
        let on_host = matches!(self.class, FunctionClass::Python | FunctionClass::OtherCpu);
        (on_host && ranks > 1).then(|| Blamed {
            ranks: Vec::new(),
            beta: usual,
            peers_beta: 0.0,
            excess_share: usual,
            unexpected: Vec::new(),
        })
    }

    /// Ranks it costs more than it does the others, the largest share of them and the median of
    /// the others', given what it costs each.
    ///
    /// The others are all it costs what is expected; where that is less than half of the ranks,
    /// the half it costs least.
    fn culprits(&self, shares: &[f64], problem: Problem, excess_min: f64) -> Option<Blamed> {
        let abnormal = &self.found.abnormal;
        // Of an odd number the larger half is the others', so that culprits are fewer than they.
        let half = shares.len().div_ceil(2);
        let mut others = match problem {
            Problem::Common => shares[..half].to_vec(),
            Problem::Partial => {
                let columns = &self.columns;
                let known: BTreeSet<u32> = abnormal.iter().map(|worker| worker.worker).collect();
                let ran = columns.workers.iter().zip(&columns.values[0]);
                let others = ran.filter(|(worker, _)| !known.contains(worker));
                let idle = shares.len().saturating_sub(columns.workers.len());
                let idle = std::iter::repeat_n(0.0, idle);
                others
                    .map(|(_, beta)| f64::from(*beta))
                    .chain(idle)
                    .collect()
            }
        };
        let peers = model::median(&mut others)?;
        let more = abnormal
            .iter()
            .filter(|worker| f64::from(worker.values[0]) - peers >= excess_min);
        let mut culprits: Vec<u32> = more.clone().map(|worker| worker.worker).collect();
        culprits.sort_unstable();
        let largest = more
            .map(|worker| f64::from(worker.values[0]))
            .fold(0.0, f64::max);
        let are_few = problem == Problem::Partial || culprits.len() <= shares.len() - half;
        (!culprits.is_empty() && are_few).then_some(Blamed {
            ranks: culprits,
            beta: largest,
            peers_beta: peers,
            excess_share: largest - peers,
            unexpected: Vec::new(),
        })
    }

    /// Ranks whose links are to blame for what a collective costs. It costs those that wait for
    /// them as much: what it would cost at the rate at which the others carry, when they do, is
    /// what they lose.
    fn links(&self, ranks: usize, excess_min: f64) -> Option<Blamed> {
        let culprits: Vec<&Abnormal> = self
            .found
            .abnormal
            .iter()
            .filter(|worker| {
                worker.differs
                    && worker
                        .kind(self.class)
                        .is_some_and(FunctionFaultKind::is_of_link)
            })
            .collect();
        let mut named: Vec<u32> = culprits.iter().map(|worker| worker.worker).collect();
        named.sort_unstable();
        let unlike = self.unlike();
        let Columns {
            workers, values, ..
        } = &self.columns;
        let healthy = |value: &dyn Fn(usize) -> f64| {
            let places = (0..workers.len()).filter(|at| !unlike.contains(&workers[*at]));
            model::median(&mut places.map(value).collect::<Vec<_>>())
        };
        // If all ranks differ, nothing shows what a healthy link carries.
        let peers_beta = healthy(&|at| values[0][at].into())?;
        let peers_rate = healthy(&|at| rate_in_use(values[1][at], values[2][at]))?;
        let excess = |worker: &&Abnormal| {
            let [beta, mu, sigma] = worker.values;
            let (beta, rate) = (f64::from(beta), rate_in_use(mu, sigma));
            let slower = if peers_rate > 0.0 {
                beta * (1.0 - rate / peers_rate)
            } else {
                0.0
            };
            // A slow link carries less while it is in use, or is in use for longer.
            slower.max(beta - peers_beta)
        };
        let excess_share = culprits.iter().map(excess).fold(0.0, f64::max);
        let beta = culprits.iter().map(|worker| f64::from(worker.values[0]));
        let beta = beta.fold(0.0, f64::max);
        // Where most links differ from the rest, the rest is no norm.
        let are_few = named.len() * 2 <= ranks;
        (excess_share >= excess_min && are_few && !named.is_empty()).then_some(Blamed {
            ranks: named,
            beta,
            peers_beta,
            excess_share,
            unexpected: Vec::new(),
        })
    }

    /// Ranks on which the function is not as the settings file expects it, and in what. What it
    /// costs is what it takes beyond the range, or would not take at the least utilisation that is
    /// expected.
    fn outside(&self, ranks: usize) -> Option<Blamed> {
        let ExpectedBox {
            ranges,
            is_declared,
        } = self.expected;
        let is_out =
            |worker: &&Abnormal| (0..3).any(|at| is_declared[at] && worker.excess[at] > 0.0);
        let out: Vec<&Abnormal> = self.found.abnormal.iter().filter(is_out).collect();
        let mean = |of: &dyn Fn(&Abnormal) -> f64| {
            out.iter().map(|worker| of(worker)).sum::<f64>() / out.len().max(1) as f64
        };
        let dimensions = [Dimension::Beta, Dimension::Mu, Dimension::Sigma];
        let unexpected = dimensions.into_iter().enumerate().filter(|(at, _)| {
            is_declared[*at] && out.iter().any(|worker| worker.excess[*at] > 0.0)
        });
        let unexpected: Vec<_> = unexpected
            .map(|(at, dimension)| {
                (
                    dimension,
                    mean(&|worker| worker.values[at].into()),
                    ranges[at],
                )
            })
            .collect();
        let excess_share = mean(&|worker| {
            let [beta, mu, _] = worker.values.map(f64::from);
            let beyond = if is_declared[0] {
                beta - ranges[0][1]
            } else {
                0.0
            };
            let least = ranges[1][0];
            let slower = if is_declared[1] && mu < least {
                beta * (1.0 - mu / least)
            } else {
                0.0
            };
            beyond.max(slower).max(0.0)
        });
        let mut named: Vec<u32> = out.iter().map(|worker| worker.worker).collect();
        named.sort_unstable();
        if named.len() * 2 > ranks {
            // On most ranks it is the function, not they.
            named.clear();
        }
        let beta = mean(&|worker| worker.values[0].into());
        let peers_beta = f64::from(self.found.median[0]);
        (!unexpected.is_empty()).then_some(Blamed {
            ranks: named,
            beta,
            peers_beta,
            excess_share,
            unexpected,
        })
    }

    /// What the function looks like on these ranks, if on all of them alike.
    pub(super) fn kind(&self, ranks: &[u32]) -> Option<FunctionFaultKind> {
        let abnormal = self.found.abnormal.iter();
        let of_ranks = abnormal.filter(|it| ranks.is_empty() || ranks.contains(&it.worker));
        let mut kinds = of_ranks.map(|worker| worker.kind(self.class));
        let first = kinds.next()??;
        kinds.all(|kind| kind == Some(first)).then_some(first)
    }

    /// Ranks that differ from their peers, and say nothing of what is usual.
    fn unlike(&self) -> BTreeSet<u32> {
        let differ = self.found.abnormal.iter().filter(|worker| worker.differs);
        differ.map(|worker| worker.worker).collect()
    }

    /// Mean utilisation on these ranks, or on all if there are none, and on the others that ran
    /// it and do not differ themselves; `None` for what was not measured.
    pub(super) fn mu(&self, ranks: &[u32]) -> (Option<f64>, Option<f64>) {
        self.means(ranks, &|mu, _| f64::from(mu))
    }

    /// Likewise the utilisation while it is in use.
    pub(super) fn rate(&self, ranks: &[u32]) -> (Option<f64>, Option<f64>) {
        self.means(ranks, &rate_in_use)
    }

    /// Means of what is made of mu and sigma, on these ranks and on the others.
    fn means(&self, ranks: &[u32], of: &dyn Fn(f32, f32) -> f64) -> (Option<f64>, Option<f64>) {
        let unlike = self.unlike();
        let mean = |of_ranks: bool| {
            let Columns {
                workers,
                values,
                measured,
            } = &self.columns;
            let is_chosen = |rank: &u32| {
                let is_named = ranks.is_empty() || ranks.contains(rank);
                is_named == of_ranks && (of_ranks || !unlike.contains(rank))
            };
            let chosen = (0..workers.len()).filter(|at| measured[*at] && is_chosen(&workers[*at]));
            let (count, sum) = chosen.fold((0.0, 0.0), |(n, sum), at| {
                (n + 1.0, sum + of(values[1][at], values[2][at]))
            });
            (count > 0.0).then(|| sum / count)
        };
        (mean(true), mean(false))
    }

    pub(super) fn summary(
        &self,
        dictionary: &Dictionary,
        hosts: &BTreeMap<u32, String>,
    ) -> FunctionSummary {
        let mut names = dictionary
            .stack(self.id)
            .map(|function| function.name.clone());
        let median = self.found.median.map(f64::from);
        let abnormal = self.found.abnormal.iter().map(|abnormal| {
            let [beta, mu, sigma] = abnormal.values.map(f64::from);
            // What was not measured does not deviate.
            let measured = f64::from(u8::from(abnormal.measured));
            let [excess_beta, excess_mu, excess_sigma] = abnormal.excess;
            AbnormalRank {
                rank: abnormal.worker,
                beta,
                mu,
                sigma,
                distance: abnormal.distance(),
                excess: Dimensions {
                    beta: excess_beta,
                    mu: excess_mu,
                    sigma: excess_sigma,
                },
                deviation: Dimensions {
                    beta: beta - median[0],
                    mu: measured * (mu - median[1]),
                    sigma: measured * (sigma - median[2]),
                },
                differential: abnormal.differential,
                kind: abnormal.kind(self.class),
            }
        });
        let [beta, mu, sigma] = median;
        let mut abnormal: Vec<AbnormalRank> = abnormal.collect();
        let hosts = by_host(&self.found.abnormal, |rank| {
            hosts.get(&rank).map_or("", String::as_str)
        });
        let hosts = hosts.into_iter().filter(|(host, _)| !host.is_empty());
        abnormal.sort_by(|a, b| {
            b.differential
                .total_cmp(&a.differential)
                .then(b.beta.total_cmp(&a.beta))
        });
        abnormal.truncate(MAX_ABNORMAL);
        let problem = self.found.problem.map(|problem| match problem {
            Problem::Common => "common".to_owned(),
            Problem::Partial => "partial".to_owned(),
        });
        FunctionSummary {
            name: names.next().unwrap_or_default(),
            callers: names.take(MAX_CALLERS).collect(),
            class: self.class.name().to_owned(),
            ranks: self.found.workers,
            beta,
            mu,
            sigma,
            problem,
            abnormal,
            hosts: hosts.map(|(host, _)| host.to_owned()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{Incident, Pattern, Source, Verdict};
    use pattern::Expected;
    use trace::{Matches, Profile};

    use super::*;
    use crate::{Job, ProfiledRank, Settings};

    /// What is said of a recording in which a function has such a pattern on each rank, eight
    /// ranks on a host.
    fn said_of(
        function: (FunctionClass, &str),
        ranks: u32,
        of: impl Fn(u32) -> [f32; 3],
    ) -> Verdict {
        said_with(Settings::default(), function, ranks, of)
    }

    fn said_with(
        settings: Settings,
        (class, name): (FunctionClass, &str),
        ranks: u32,
        of: impl Fn(u32) -> [f32; 3],
    ) -> Verdict {
        let profiled = (0..ranks).map(|rank| {
            let mut profile = Profile {
                span_s: 10.0,
                ..Profile::default()
            };
            let id = profile.dictionary.intern(class, name, None);
            let [beta, mu, sigma] = of(rank);
            let pattern = Pattern {
                beta,
                mu,
                sigma,
                events: 1,
                measured: 1,
            };
            profile.patterns.insert(id, pattern);
            let host = Some(format!("node{}", rank / 8));
            ProfiledRank {
                rank,
                host,
                profile,
                ..ProfiledRank::default()
            }
        });
        let mut job = Job::new("job", Source::Run, settings);
        job.add_profiles(profiled.collect(), &Matches::default());
        job.verdict()
    }

    fn only(verdict: &Verdict) -> &Incident {
        let [incident] = &verdict.incidents[..] else {
            panic!("{:?}", verdict.incidents)
        };
        incident
    }

    fn kinds(verdict: &Verdict) -> Vec<(u32, Option<FunctionFaultKind>)> {
        let functions = &verdict.profile.as_ref().expect("a profile").functions;
        let abnormal = functions[0].abnormal.iter();
        abnormal
            .map(|abnormal| (abnormal.rank, abnormal.kind))
            .collect()
    }

    fn noise(rank: u32) -> f32 {
        (rank.wrapping_mul(2_654_435_761) >> 16) as f32 / 65_536.0 * 0.01
    }

    /// PT-A1: two of four rings of eight share a host pair, one bond is at half rate.
    #[test]
    fn the_ranks_of_a_slow_bond_are_named_and_those_that_wait_for_it_are_not() {
        let all_reduce = (FunctionClass::Collective, "AllReduce");
        let verdict = said_of(all_reduce, 32, |rank| match rank {
            0 | 1 => [0.2, 0.5, 0.0],
            2..8 => [0.2, 0.5, 0.5],
            _ => [0.2, 1.0, 0.0],
        });
        let incident = only(&verdict);
        assert_eq!(incident.subject.ranks, [0, 1]);
        assert_eq!(
            incident.text,
            "the link of each of ranks 0-1 carries AllReduce at 50 %, its peers' at 100 %"
        );
        assert!((incident.cost_s - 1.0).abs() < 1e-6, "half of 0.2 of 10 s");
        let kinds = kinds(&verdict);
        assert_eq!(kinds.len(), 8);
        for (rank, kind) in kinds {
            let expected = if rank < 2 {
                FunctionFaultKind::SlowLink
            } else {
                FunctionFaultKind::Waits
            };
            assert_eq!(kind, Some(expected), "rank {rank}");
        }
    }

    /// X2: in one ring of all ranks every link carries as much in the same time.
    #[test]
    fn the_slow_link_of_the_only_ring_is_the_one_that_never_pauses() {
        let all_reduce = (FunctionClass::Collective, "AllReduce");
        let ring = |slow_sigma: f32| {
            said_of(all_reduce, 8, |rank| {
                [
                    0.9,
                    0.1 + noise(rank),
                    if rank == 5 { slow_sigma } else { 0.2 },
                ]
            })
        };
        let verdict = ring(0.02);
        let incident = only(&verdict);
        assert_eq!(incident.subject.ranks, [5]);
        assert_eq!(
            incident.text,
            "the link of rank 5 carries AllReduce at 10 %, its peers' at 49 %"
        );
        assert!(ring(0.2).incidents.is_empty());
    }

    /// PT-A3: NVLink of three is down, their traffic goes over PCIe, 45 others wait for them.
    #[test]
    fn the_ranks_whose_traffic_makes_a_detour_are_named() {
        let all_gather = (FunctionClass::Collective, "AllGather");
        let verdict = said_of(all_gather, 1200, |rank| match rank {
            100..103 => [0.30 + noise(rank), 0.85, 0.1],
            103..148 => [0.29 + noise(rank), 0.20, 0.1],
            _ => [0.05 + noise(rank), 0.20, 0.1],
        });
        let incident = only(&verdict);
        assert_eq!(incident.subject.ranks, [100, 101, 102]);
        assert!(
            incident.evidence[0]
                .text
                .ends_with("it carries traffic that belongs on another link")
        );
        let kinds = kinds(&verdict);
        assert_eq!(kinds.len(), 48);
        assert!(
            kinds[..3]
                .iter()
                .all(|(_, kind)| *kind == Some(FunctionFaultKind::Detour))
        );
        assert!(
            kinds[3..]
                .iter()
                .all(|(_, kind)| *kind == Some(FunctionFaultKind::Waits))
        );
    }

    /// PT-A2.
    #[test]
    fn throttled_devices_are_named_with_their_hosts_and_in_what_they_differ() {
        let gemm = (FunctionClass::GpuCompute, "gemm");
        let verdict = said_of(gemm, 2560, |rank| {
            let throttled = rank % 64 < 8 && rank < 2400;
            let [beta, mu] = if throttled {
                [0.45, 0.55]
            } else {
                [0.30, 0.90]
            };
            [beta + noise(rank), mu + noise(rank), 0.02]
        });
        let incident = only(&verdict);
        assert_eq!(
            (incident.subject.ranks.len(), incident.subject.hosts.len()),
            (304, 38)
        );
        assert!(incident.advice.contains("clocks, temperature and power"));
        let functions = &verdict.profile.as_ref().expect("a profile").functions;
        let worst = &functions[0].abnormal[0];
        assert_eq!(
            (worst.kind, worst.distance),
            (Some(FunctionFaultKind::Throttled), 0.0)
        );
        let Dimensions { beta, mu, sigma } = worst.deviation;
        assert!(
            (beta - 0.15).abs() < 0.02 && (mu + 0.35).abs() < 0.02,
            "{worst:?}"
        );
        assert!(sigma.abs() < 1e-6);
    }

    #[test]
    fn a_function_of_the_host_waits_or_computes_and_what_is_unexpected_is_reported() {
        for (mu, kind) in [
            (0.1, Some(FunctionFaultKind::Waits)),
            (0.5, None),
            (0.9, Some(FunctionFaultKind::Computes)),
        ] {
            let read = (FunctionClass::Python, "read_shard");
            let verdict = said_of(read, 8, |rank| {
                if rank == 3 {
                    [0.4, mu, 0.1]
                } else {
                    [0.004, 0.5, 0.1]
                }
            });
            assert_eq!(only(&verdict).subject.ranks, [3]);
            assert_eq!(kinds(&verdict), [(3, kind)]);
            let functions = &verdict.profile.as_ref().expect("a profile").functions;
            let excess = functions[0].abnormal[0].excess;
            assert!(
                (excess.beta - 0.39).abs() < 1e-6 && excess.mu == 0.0,
                "{excess:?}"
            );
        }
    }

    #[test]
    fn a_kernel_that_is_slow_on_every_rank_is_named_where_somebody_says_what_it_should_be() {
        let said = |entries: &[Expected]| {
            let mut settings = Settings::default();
            settings.pattern.expected = entries.to_vec();
            said_with(
                settings,
                (FunctionClass::GpuCompute, "flash_fwd"),
                8,
                |rank| [0.4 + noise(rank), 0.35, 0.1],
            )
        };
        assert!(said(&[]).incidents.is_empty());
        let function = "flash".to_owned();
        let expected = Expected {
            function,
            mu: Some([0.7, 1.0]),
            ..Expected::default()
        };
        let verdict = said(std::slice::from_ref(&expected));
        let incident = only(&verdict);
        assert!(incident.subject.ranks.is_empty());
        let text = "all ranks spend 40 % of the time in flash_fwd at 35 % utilisation, where 70 to \
                    100 % is expected";
        assert_eq!(incident.text, text);
        // Half of it, at twice the utilisation.
        assert!(
            (incident.cost_share - 0.2).abs() < 0.01,
            "{}",
            incident.cost_share
        );
        let more = Expected {
            mu: Some([0.3, 1.0]),
            ..expected
        };
        assert!(said(&[more]).incidents.is_empty());
    }

    #[test]
    fn a_range_for_a_collective_names_the_ranks_that_leave_it() {
        let mut settings = Settings::default();
        let function = "AllReduce".to_owned();
        let expected = Expected {
            function,
            beta: Some([0.0, 0.1]),
            ..Expected::default()
        };
        settings.pattern.expected = vec![expected];
        let all_reduce = (FunctionClass::Collective, "AllReduce");
        let verdict = said_with(settings, all_reduce, 8, |rank| {
            if rank == 5 {
                [0.25, 0.5, 0.1]
            } else {
                [0.05, 0.5, 0.1]
            }
        });
        let incident = only(&verdict);
        assert_eq!(incident.subject.ranks, [5]);
        assert!(
            incident.text.ends_with("where 0 to 10 % is expected"),
            "{}",
            incident.text
        );
    }

    /// Without counters a collective shows only who waits how long.
    #[test]
    fn a_collective_that_was_not_measured_names_nobody() {
        let mut profiled = Vec::new();
        for rank in 0..8 {
            let mut profile = Profile {
                span_s: 10.0,
                ..Profile::default()
            };
            let class = FunctionClass::Collective;
            let id = profile.dictionary.intern(class, "AllReduce", None);
            let beta = if rank == 3 { 0.05 } else { 0.6 };
            let pattern = Pattern {
                beta,
                events: 1,
                ..Pattern::default()
            };
            profile.patterns.insert(id, pattern);
            profiled.push(ProfiledRank {
                rank,
                profile,
                ..ProfiledRank::default()
            });
        }
        let mut job = Job::new("job", Source::Run, Settings::default());
        job.add_profiles(profiled, &Matches::default());
        assert!(job.verdict().incidents.is_empty());
    }

    #[test]
    fn of_two_ranks_one_alone_is_not_all() {
        let sleep = (FunctionClass::Python, "sleep");
        let verdict = said_of(sleep, 2, |rank| {
            [if rank == 1 { 0.86 } else { 0.06 }, 0.0, 0.0]
        });
        assert_eq!(only(&verdict).subject.ranks, [1]);
        let verdict = said_of(sleep, 2, |rank| {
            [if rank == 1 { 0.86 } else { 0.5 }, 0.0, 0.0]
        });
        assert_eq!(only(&verdict).subject.ranks, [0; 0]);
    }

    #[test]
    fn code_that_no_range_covers_blames_a_rank_only_if_it_is_much() {
        let outside = (FunctionClass::OtherCpu, trace::OUTSIDE);
        let said = |beta: f32| {
            said_of(outside, 6, |rank| {
                [if rank > 3 { beta } else { 0.2 }, 0.0, 0.0]
            })
        };
        assert_eq!(said(0.37).incidents.len(), 0);
        assert_eq!(only(&said(0.5)).subject.ranks, [4, 5]);
    }
}
