//! Profiles of ranks: their steps go the way of all steps, their functions are compared.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    CollectiveOp, CollectiveTimes, Dictionary, Ending, FunctionClass, FunctionFault, FunctionId,
    Input, MarkKind, Pattern, RankArrivals, RankNs, RankProfile, RankStep, Ranks, Segment,
    StageNames, is_garbage_collection,
};
use pattern::{Columns, ExpectedBox, Problem, localise};
use steps::{Aligner, WindowSettings};
use trace::{MatchedCollective, Matches, OUTSIDE, Profile};

use super::Job;
use super::compared::{Blamed, Compared, MAX_CALLERS};
use super::notes::Counted;
use crate::detectors::Profiled;

/// Stage of the time by which a rank enters a recording's only step after the first to do so.
const ENTRY: &str = "step.entry_skew";
/// Functions that are shown for their cost alone, and altogether.
const SHOWN_FOR_COST: usize = 20;
const MAX_SHOWN: usize = 60;
/// Functions of one incident beside its own.
const MAX_OTHERS: usize = 3;
/// What is on the stack of whatever a step does, and waits for it: no reason for what all do.
const FRAMES: [&str; 1] = ["run_backward"];
/// What waits for a device, which a profile of hosts alone does not show. Nobody is to blame for what all wait for.
const WAITS: [&str; 4] = [
    "synchronize",
    "aten::item",
    "aten::_local_scalar_dense",
    "'item' of",
];

/// What is left of one rank's trace once its slices are gone.
#[derive(Clone, Debug, Default)]
pub struct ProfiledRank {
    /// Global rank.
    pub rank: u32,
    /// Its host, if recorded.
    pub host: Option<String>,
    /// The file.
    pub file: String,
    /// Its functions.
    pub profile: Profile,
    /// Its steps, on its own clock.
    pub steps: Vec<RankStep>,
    /// Names of their stages.
    pub names: StageNames,
    /// Whether kernels are missing that it launched: shares of its time are not known.
    pub lacks_kernels: bool,
    /// Whether its device sends or receives in most of its steps, or may.
    pub sends: bool,
}

impl ProfiledRank {
    /// Whether it hands work on to others, as a stage of a pipeline does.
    fn hands_on(&self) -> bool {
        let issues = |step: &&RankStep| {
            let mut segments = step.segments.iter();
            segments.any(|it| it.ending.is_point_to_point())
        };
        self.sends || 2 * self.steps.iter().filter(issues).count() > self.steps.len()
    }
}

impl Job {
    /// Takes the profiles of all ranks, and their collectives side by side.
    ///
    /// A recording of a single step begins for each rank when it entered the step. Where clocks
    /// can be compared the time by which a rank entered it later is a stage of its own, so that
    /// who came early and waited is not taken for late; where they cannot, labels are weakened.
    pub fn add_profiles(&mut self, mut ranks: Vec<ProfiledRank>, matches: &Matches) {
        // The order in which files are given has no say.
        ranks.sort_by_key(|rank| rank.rank);
        for rank in &ranks {
            self.placement.see(rank.rank);
            if let Some(host) = &rank.host {
                self.placement.place(rank.rank, host.clone());
            }
        }
        keep_common(&mut ranks);
        let senders: BTreeSet<u32> = ranks
            .iter()
            .filter(|rank| rank.hands_on())
            .map(|rank| rank.rank)
            .collect();
        self.take_collectives(matches, &senders);
        let entries = entries(&ranks, matches);
        if common_steps(&ranks).len() == 1 {
            share_the_longest(&mut ranks);
        }
        self.add_profiled_steps(&mut ranks, &senders, entries.as_ref());
        let steps = self.accounting.span();
        let mut profiled = self.compare(&ranks, steps);
        profiled.summary.collectives = collective_times(&ranks, matches, entries.as_ref());
        profiled.hand_on = !senders.is_empty();
        self.detectors.functions.keep(profiled);
    }

    /// Compares the functions of ranks that were recorded from the first to the last of `steps`.
    pub(super) fn compare(&self, ranks: &[ProfiledRank], steps: (u64, u64)) -> Profiled {
        let mut profiled = Profiled::default();
        profiled.summary.ranks = ranks.iter().map(rank_profile).collect();
        // While what a device did was not recorded, its host seems to hold it up.
        let whole: Vec<&ProfiledRank> = ranks.iter().filter(|it| !it.lacks_kernels).collect();
        self.compare_functions(&whole, steps, &mut profiled);
        profiled
    }

    /// Takes who came when to collectives, but for those of ranks that hand work on: the stages of a pipeline
    /// come to them one after another by design.
    fn take_collectives(&mut self, matches: &Matches, senders: &BTreeSet<u32>) {
        let mut groups: BTreeMap<Option<&str>, u32> = BTreeMap::new();
        let mut counts: BTreeMap<(u32, CollectiveOp), u64> = BTreeMap::new();
        let is_of_senders = |it: &&MatchedCollective| {
            let mut arrivals = it.arrivals.iter();
            arrivals.any(|arrival| senders.contains(&arrival.rank))
        };
        for collective in matches.collectives.iter().filter(|it| !is_of_senders(it)) {
            let next = groups.len() as u32;
            let name = collective.group.as_deref();
            let group = *groups.entry(name).or_insert(next);
            if group == next {
                let name = name.unwrap_or("default").to_owned();
                self.take(Input::Group {
                    group,
                    name,
                    members: Ranks::default(),
                });
            }
            let op = CollectiveOp::from_name(&collective.op);
            // Ranks are matched already: a number has only to be the same on all of them, and no
            // other's.
            let number = counts.entry((group, op)).or_default();
            for arrival in &collective.arrivals {
                let busy = arrival.end_ns.saturating_sub(arrival.start_ns);
                self.take(Input::Timed {
                    rank: arrival.rank,
                    group,
                    op,
                    number: *number,
                    bytes: collective.bytes,
                    busy_ns: u64::try_from(busy).unwrap_or(0),
                });
            }
            *number += 1;
        }
    }

    /// Accounts steps as published, from their own beginning: a profile is short, and the cut
    /// where ranks last met would leave out its first step. Incidents are looked for with that cut
    /// all the same, for only so the delays of one step are told from those of the next.
    fn add_profiled_steps(
        &mut self,
        ranks: &mut [ProfiledRank],
        senders: &BTreeSet<u32>,
        entries: Option<&BTreeMap<u32, i64>>,
    ) {
        let common = common_steps(ranks);
        let single = (common.len() == 1)
            .then(|| common.first().copied())
            .flatten();
        let settings = WindowSettings {
            // A profile has no steps to spare, and one is enough for an account.
            warmup_steps: 0,
            min_steps: 1,
            ..self.settings.window.clone()
        };
        let published = WindowSettings {
            published_cut: true,
            ..settings.clone()
        };
        let (mut accounted, mut followed) = (Aligner::new(published), Aligner::new(settings));
        // A rank whose file has no steps would be missing in each window.
        for rank in ranks.iter().filter(|rank| !rank.steps.is_empty()) {
            // Of one that hands work on to others nobody knows when it works and when it waits for them:
            // it has no peers.
            let is_sender = senders.contains(&rank.rank);
            let role = is_sender.then(|| format!("rank {}", rank.rank));
            accounted.expect(rank.rank, role.clone());
            followed.expect(rank.rank, role);
        }
        let entry = self.intern(ENTRY);
        for rank in ranks.iter_mut() {
            let skew = entries.and_then(|entries| entries.get(&rank.rank));
            for mut step in std::mem::take(&mut rank.steps) {
                for segment in &mut step.segments {
                    // Each file numbers its stages by itself.
                    segment.stage = self.names.intern(rank.names.name(segment.stage));
                }
                followed.push(rank.rank, step.clone());
                if Some(step.step) == single
                    && let Some(skew) = skew
                {
                    let ending = Ending::Mark(MarkKind::StageEnd);
                    let (after, end) = (MarkKind::StageBegin, step.start);
                    step.segments.insert(
                        0,
                        Segment {
                            stage: entry,
                            after,
                            ending,
                            end,
                        },
                    );
                    let earlier = u64::try_from(*skew).unwrap_or(0);
                    step.start = RankNs(step.start.0.saturating_sub(earlier));
                }
                accounted.push(rank.rank, step);
            }
        }
        accounted.finish();
        followed.finish();
        // The job's own aligner receives none of them, and counts none.
        self.add_steps(accounted.steps());
        if single.is_some() && ranks.len() > 1 {
            self.notes.count(Counted::OneStep(entries.is_some()), 1);
        }
        for mut window in accounted.take_windows() {
            if single.is_some() && entries.is_none() && ranks.len() > 1 {
                // Nobody knows who entered the only step late: as in a step that is not whole,
                // strong labels are withheld.
                window.incomplete_steps = window.incomplete_steps.max(1);
            }
            let (window, found) = self.measure(window);
            self.account(&window, &found);
            self.list(&window, &found);
        }
        for window in followed.take_windows().into_iter().filter(|w| w.rows() > 0) {
            let (window, mut found) = self.measure(window);
            self.follow(&window, &mut found);
        }
    }

    fn compare_functions(
        &self,
        ranks: &[&ProfiledRank],
        steps: (u64, u64),
        profiled: &mut Profiled,
    ) {
        let settings = &self.settings.pattern;
        let mut dictionary = Dictionary::default();
        let mut columns: BTreeMap<FunctionId, Columns> = BTreeMap::new();
        for rank in ranks {
            dictionary.merge(&rank.profile.dictionary);
            for (id, pattern) in &rank.profile.patterns {
                columns.entry(*id).or_default().push(rank.rank, pattern);
            }
        }
        let compared = columns.into_iter().filter_map(|(id, columns)| {
            let function = dictionary.get(id)?;
            let expected = ExpectedBox::of(function.class, &function.name, &settings.expected);
            // The seed is the function's own: the same functions give the same answer.
            let mut found = localise(&columns, &expected, settings, id.0);
            // What only a few ranks ran at all is their problem.
            if found.problem == Some(Problem::Common) && found.abnormal.len() * 2 <= ranks.len() {
                found.problem = Some(Problem::Partial);
            }
            let is_garbage_collection = is_garbage_collection(&function.name);
            let class = function.class;
            Some(Compared {
                id,
                class,
                is_garbage_collection,
                expected,
                columns,
                found,
            })
        });
        let mut compared: Vec<Compared> = compared.collect();
        compared.sort_by(|a, b| b.largest().total_cmp(&a.largest()).then(a.id.cmp(&b.id)));
        let shown = compared.iter().enumerate().filter(|(place, compared)| {
            *place < SHOWN_FOR_COST || compared.found.problem.is_some()
        });
        let shown = shown
            .take(MAX_SHOWN)
            .map(|(_, compared)| compared.summary(&dictionary, self.placement.hosts()));
        profiled.summary.functions = shown.collect();
        profiled.faults = self.function_faults(ranks, &compared, &dictionary, steps);
    }

    /// What is worth an incident: functions that cost some ranks more than their peers, one
    /// incident for the same ranks, and functions of the host that cost most ranks much.
    fn function_faults(
        &self,
        ranks: &[&ProfiledRank],
        compared: &[Compared],
        dictionary: &Dictionary,
        steps: (u64, u64),
    ) -> Vec<FunctionFault> {
        let settings = &self.settings.pattern;
        let span_s = ranks
            .iter()
            .map(|rank| rank.profile.span_s)
            .fold(0.0, f64::max);
        let mut faults: Vec<FunctionFault> = Vec::new();
        for one in compared {
            let Some(blamed) = one.blamed(ranks.len(), settings) else {
                continue;
            };
            let Blamed {
                ranks: culprits,
                beta,
                peers_beta,
                excess_share,
                ..
            } = blamed;
            let mut names = dictionary
                .stack(one.id)
                .map(|function| function.name.clone());
            let name = names.next().unwrap_or_default();
            let is_frame = FRAMES.iter().any(|frame| name.contains(frame));
            if is_frame && culprits.is_empty() && blamed.unexpected.is_empty() {
                continue;
            }
            let is_wait = WAITS.iter().any(|wait| name.contains(wait));
            if is_wait && culprits.is_empty() {
                continue;
            }
            // It may be any code, as what ranks of a pipeline wait in for one another.
            let is_little = name == OUTSIDE && excess_share < settings.common_share_min;
            if is_little && !culprits.is_empty() {
                continue;
            }
            let same = faults.iter_mut().find(|fault| fault.ranks == culprits);
            // What all ranks do has no culprits in common that would explain the rest: each is one
            // fault.
            if let Some(same) = same.filter(|same| !same.ranks.is_empty()) {
                if same.others.len() < MAX_OTHERS {
                    same.others.push((name, excess_share));
                }
                continue;
            }
            faults.push(FunctionFault {
                name,
                class: one.class,
                kind: one.kind(&culprits),
                callers: names.take(MAX_CALLERS).collect(),
                mu: one.mu(&culprits),
                rate: one.rate(&culprits),
                unexpected: blamed.unexpected,
                ranks: culprits,
                beta,
                peers_beta,
                excess_share,
                cost_s: excess_share * span_s,
                others: Vec::new(),
                steps,
                number: 0,
            });
        }
        faults
    }
}

fn seconds(ns: i64) -> f64 {
    ns as f64 * 1e-9
}

fn rank_profile(rank: &ProfiledRank) -> RankProfile {
    let profile = &rank.profile;
    let share = |classes: &[FunctionClass]| {
        let shares = classes.iter().filter_map(|class| profile.shares.get(class));
        // Shares are of single precision: their sum may exceed the whole a little.
        shares.fold(0.0, |sum, share| sum + share).min(1.0)
    };
    let compute_share = share(&[FunctionClass::GpuCompute, FunctionClass::CpuCompute]);
    let memory_share = share(&[FunctionClass::Memory]);
    let exposed_communication_share = share(&[FunctionClass::Collective]);
    let host_share = share(&[FunctionClass::Python, FunctionClass::OtherCpu]);
    let busy = compute_share + memory_share + exposed_communication_share + host_share;
    RankProfile {
        rank: rank.rank,
        host: rank.host.clone(),
        file: rank.file.clone(),
        span_s: profile.span_s,
        compute_share,
        memory_share,
        exposed_communication_share,
        host_share,
        idle_share: (1.0 - busy).max(0.0),
        device_idle_share: profile
            .has_device
            // While only the host works its device is idle too.
            .then_some((1.0 - busy + host_share).clamp(0.0, 1.0)),
        communication_share: profile.communication_share,
        no_hw: !profile.patterns.values().any(Pattern::is_measured),
    }
}

/// Steps that all ranks with steps have.
fn common_steps(ranks: &[ProfiledRank]) -> BTreeSet<u32> {
    let steps = ranks.iter().filter(|rank| !rank.steps.is_empty());
    let mut steps = steps.map(|rank| {
        rank.steps
            .iter()
            .map(|step| step.step)
            .collect::<BTreeSet<_>>()
    });
    let first = steps.next().unwrap_or_default();
    steps.fold(first, |common, steps| {
        common.intersection(&steps).copied().collect()
    })
}

/// Leaves only steps that all ranks have, if a rank was recorded for half of the others' steps or less: it would be
/// missing from most.
fn keep_common(ranks: &mut [ProfiledRank]) {
    let recorded = || ranks.iter().map(|rank| rank.steps.len());
    let most = recorded().max().unwrap_or(0);
    let is_short = recorded().any(|steps| steps > 0 && 2 * steps <= most);
    let common = common_steps(ranks);
    if !is_short || common.is_empty() {
        return;
    }
    for rank in ranks {
        rank.steps.retain(|step| common.contains(&step.step));
    }
}

/// Makes shares of a recorded step shares of the longest that a rank recorded: who entered it late
/// did no more in it for having waited less.
fn share_the_longest(ranks: &mut [ProfiledRank]) {
    let longest_s = ranks
        .iter()
        .map(|rank| rank.profile.span_s)
        .fold(0.0, f64::max);
    for rank in ranks.iter_mut().filter(|_| longest_s > 0.0) {
        let part = (rank.profile.span_s / longest_s) as f32;
        rank.profile
            .patterns
            .values_mut()
            .for_each(|pattern| pattern.beta *= part);
    }
}

/// Nanoseconds after the first rank at which each entered the first common step; `None` where
/// clocks cannot be compared.
fn entries(ranks: &[ProfiledRank], matches: &Matches) -> Option<BTreeMap<u32, i64>> {
    let first = common_steps(ranks).first().copied()?;
    let clocks = &matches.clocks;
    let comparable = clocks.agree && ranks.len() > 1;
    if !comparable {
        return None;
    }
    let starts = ranks.iter().filter_map(|rank| {
        let step = rank.steps.iter().find(|step| step.step == first)?;
        let offset = clocks.offsets_ns.get(&rank.rank).copied().unwrap_or(0);
        Some((rank.rank, i64::try_from(step.start.0).ok()? - offset))
    });
    let starts: BTreeMap<u32, i64> = starts.collect();
    let (first, earliest) = starts.iter().min_by_key(|(_, start)| **start)?;
    let later = starts.iter().map(|(rank, start)| {
        let known = clocks
            .doubt_ns(*rank, *first)
            // Less than the clocks are good for is nothing.
            .filter(|doubt| start - earliest >= *doubt);
        (*rank, known.map_or(0, |_| start - earliest))
    });
    Some(later.collect())
}

fn collective_times(
    ranks: &[ProfiledRank],
    matches: &Matches,
    entries: Option<&BTreeMap<u32, i64>>,
) -> Option<CollectiveTimes> {
    if matches.collectives.is_empty() && matches.unmatched == 0 {
        return None;
    }
    let mut times: BTreeMap<u32, RankArrivals> = ranks
        .iter()
        .map(|rank| {
            let skew = entries.and_then(|entries| entries.get(&rank.rank));
            let entry_skew_s = skew.map(|skew| seconds(*skew));
            let rank = rank.rank;
            let clocks = &matches.clocks;
            let [clock_offset_s, clock_error_s] = [&clocks.offsets_ns, &clocks.errors_ns]
                .map(|times| times.get(&rank).copied().map(seconds));
            let unseen = RankArrivals::default();
            let times = RankArrivals {
                rank,
                entry_skew_s,
                clock_offset_s,
                clock_error_s,
                ..unseen
            };
            (rank, times)
        })
        .collect();
    for collective in &matches.collectives {
        let last = collective.last(&matches.clocks).map(|last| last.rank);
        for arrival in &collective.arrivals {
            let of_rank = times.entry(arrival.rank).or_default();
            of_rank.collectives += 1;
            of_rank.last += u64::from(last == Some(arrival.rank));
            of_rank.waited_s += seconds(collective.waited_ns(*arrival, &matches.clocks));
        }
    }
    Some(CollectiveTimes {
        matched: matches.collectives.len() as u64,
        unmatched: matches.unmatched,
        end_spread_s: seconds(matches.clocks.end_spread_ns),
        clocks_were_set: !matches.clocks.offsets_ns.is_empty(),
        ranks: times.into_values().collect(),
    })
}

#[cfg(test)]
mod tests {
    use model::{Conclusion, Source, StageId};
    use trace::Arrival;

    use super::*;
    use crate::Settings;
    use crate::testkit::rank_step;

    /// What is found where one function costs these ranks such shares.
    fn found(shares: &[f32]) -> Vec<FunctionFault> {
        found_of("sleep", shares)
    }

    fn found_of(name: &str, shares: &[f32]) -> Vec<FunctionFault> {
        let ranks = shares.iter().zip(0..).map(|(beta, rank)| {
            let mut profile = Profile {
                span_s: 1.0,
                ..Profile::default()
            };
            let id = profile.dictionary.intern(FunctionClass::Python, name, None);
            let pattern = Pattern {
                beta: *beta,
                events: 1,
                ..Pattern::default()
            };
            profile.patterns.insert(id, pattern);
            ProfiledRank {
                rank,
                profile,
                ..ProfiledRank::default()
            }
        });
        job().compare(&ranks.collect::<Vec<_>>(), (1, 9)).faults
    }

    fn job() -> Job {
        Job::new("job", Source::Run, Settings::default())
    }

    fn faults(shares: &[f32]) -> Vec<(Vec<u32>, f64)> {
        let found = found(shares).into_iter();
        found.map(|fault| (fault.ranks, fault.peers_beta)).collect()
    }

    #[test]
    fn who_is_far_off_its_peers_is_named_though_all_take_more_than_expected() {
        let peers_beta = f64::from(0.016_f32);
        assert_eq!(faults(&[0.014, 0.58, 0.016]).first().unwrap().0, [1]);
        assert_eq!(faults(&[0.016, 0.58]), [(vec![1], peers_beta)]);
        assert_eq!(
            faults(&[0.016, 0.016, 0.58, 0.016]),
            [(vec![2], peers_beta)]
        );
    }

    #[test]
    fn what_takes_long_on_most_has_no_culprit() {
        assert_eq!(faults(&[0.4, 0.5, 0.6]), [(Vec::new(), 0.0)]);
        assert_eq!(faults(&[0.1, 0.2, 0.4, 0.5]), [(Vec::new(), 0.0)]);
        assert_eq!(faults(&[0.02, 0.02, 0.02, 0.02]), []);
        assert_eq!(faults(&[0.02, 0.2, 0.2, 0.2]), []);
        let backward = "<built-in method run_backward of Engine object at 0x…>";
        assert_eq!(found_of(backward, &[0.4, 0.5, 0.6]), []);
        assert_eq!(found_of(backward, &[0.0, 0.5, 0.0])[0].ranks, [1]);
    }

    /// Ranks that are late, of two of which the first takes 30 ms longer in each step until it issues this, and
    /// comes so much later to a collective.
    fn late(op: CollectiveOp) -> Vec<Vec<u32>> {
        let step = |number: u32, rank: u32| {
            let took_ns = if rank == 0 { 40_000_000 } else { 10_000_000 };
            let at = |ns: u64| RankNs(u64::from(number) * 50_000_000 + ns);
            let ends = |ending, end| Segment {
                stage: StageId::OTHER,
                after: MarkKind::StepBegin,
                ending,
                end,
            };
            let issues = |op| Ending::Issue { op, group: 0 };
            let segments = vec![
                ends(issues(op), at(took_ns)),
                // Where all meet.
                ends(issues(CollectiveOp::ALLREDUCE), at(took_ns + 1_000_000)),
                ends(Ending::Mark(MarkKind::StepEnd), at(50_000_000)),
            ];
            rank_step(number, at(0), segments)
        };
        let ranks = (0..2).map(|rank| ProfiledRank {
            rank,
            steps: (0..20).map(|number| step(number, rank)).collect(),
            profile: Profile {
                has_device: true,
                ..Profile::default()
            },
            ..ProfiledRank::default()
        });
        let mut job = Job::new("job", Source::Kineto, Settings::default());
        let collective = |number: u64| {
            let arrival = |rank: u32| {
                let start_ns = i64::from(1 - rank) * 30_000_000;
                Arrival {
                    rank,
                    start_ns,
                    end_ns: 31_000_000,
                }
            };
            MatchedCollective {
                op: "allreduce".to_owned(),
                group: None,
                number,
                bytes: 4,
                arrivals: vec![arrival(0), arrival(1)],
            }
        };
        let matches = Matches {
            collectives: (0..20).map(collective).collect(),
            ..Matches::default()
        };
        job.add_profiles(ranks.collect(), &matches);
        job.finish();
        let unseen = job.verdict().unobserved() == Some(Conclusion::DevicesUnseen);
        assert_eq!(unseen, op.is_point_to_point());
        let incidents = job.verdict().incidents.into_iter();
        incidents.map(|it| it.subject.ranks).collect()
    }

    #[test]
    fn who_hands_work_on_is_not_compared_with_those_that_wait_for_it() {
        let late_ranks = late(CollectiveOp::BROADCAST);
        assert!(!late_ranks.is_empty() && late_ranks.iter().all(|ranks| *ranks == [0]));
        assert!(late(CollectiveOp::SEND).is_empty());
    }
}
