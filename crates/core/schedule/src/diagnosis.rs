use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::hang::halt;
use crate::iterations::RankMarker;
use crate::job::{LoggedJob, Observed, StageOfPipeline};
use crate::lanes::median_s;
use crate::lateness::CallLateness;
use crate::{
    Axis, Graph, Layout, LayoutError, Localiser, RankCalls, ScheduleSettings, Scheme, Sizes,
    SlowBlock,
};
use model::{BlockCause, Pass, PipelineHalt, SlowIterations, SlowPass};

/// Part of what was lost, or of a usual iteration if more was, that one stage must explain to be
/// named. Ours.
const EXPLAINS: f64 = 0.1;
/// Part of a stage's lateness that one rank must have to be named alone. Ours.
const ALONE: f64 = 2.0 / 3.0;
/// Lateness of a rank, as a part of the culprit's, from which it is a victim. Ours.
const VICTIM: f64 = 0.1;
/// Part of a block's delay that must be of one kind to call it so. Ours.
const MOSTLY: f64 = 0.5;
/// Blocks that slack absorbed that are named.
const MAX_ABSORBED: usize = 256;
/// The last iteration that is left out. MegaTrace.
const WARMUP: u64 = 1;
/// Quantile of iteration times that stands for a healthy iteration while nothing is known:
/// fewer than three quarters of a run may be slow. Ours.
const HEALTHY_QUANTILE: f64 = 0.25;

/// What call logs say about a job.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// How its ranks divide the work.
    pub layout: Layout,
    /// The schedule its stages follow, and over how many microbatches, if one was recognised.
    pub schedule: Option<(Scheme, u32)>,
    /// Iterations from the first whose end was seen to the last.
    pub iterations: u64,
    /// Iterations whose time is known.
    pub timed: u64,
    /// Their time in all, in seconds.
    pub total_s: f64,
    /// What an iteration usually takes, in seconds; 0 if too few were seen.
    pub usual_s: f64,
    /// What held it back, costliest first.
    pub findings: Vec<SlowIterations>,
    /// What iterations lost while the network was slow, for each stretch that was given: nothing is
    /// known of one in which no iteration has begun and ended.
    pub networked: Vec<Option<Networked>>,
    /// Blocks that were slow and that nobody had to wait for, with the iteration, longest first.
    pub absorbed: Vec<(u64, SlowBlock)>,
    /// Where it stands still at the end of the logs, if it does.
    pub halt: Option<PipelineHalt>,
    /// Ranks that have no log.
    pub unseen: Vec<u32>,
    /// Of the ranks whose logs lack records: how many, and in which iterations they were seen
    /// whole.
    pub partial: Vec<Partial>,
    /// Ranks whose clocks were set right.
    pub off_clocks: Vec<u32>,
    /// Whether hosts do not wait for the input of their blocks: their calls tell launches, and
    /// nobody is called slow by them.
    pub is_ahead: bool,
}

/// Iterations in which the network was slow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Networked {
    /// First and last of them.
    pub span: (u64, u64),
    /// What they took longer than usual, in seconds.
    pub lost_s: f64,
}

/// Which part of a run is in a rank's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    /// The rank.
    pub rank: u32,
    /// Operations that are missing.
    pub lost: u64,
    /// Iterations that were recorded whole.
    pub whole: u64,
    /// The first and last of them.
    pub span: Option<(u64, u64)>,
}

/// Says what call logs show: what made iterations slow, and where the job hangs. `None` if
/// nothing in them tells iterations apart.
///
/// Iterations in which the network is known to have been slow, from when to when in nanoseconds
/// since 1970, are not looked at further.
///
/// # Errors
/// [`LayoutError`] if the sizes that were given do not divide the ranks.
/// # Source
/// MegaTrace (2026); docs/math/schedule.md. What is healthy is taken of the whole run instead
/// of its begin, since all of it is there; who is late is counted in seconds beyond its own
/// usual lateness instead of in how often it is last.
pub fn diagnose(
    logs: Vec<RankCalls>,
    sizes: &Sizes,
    network_ns: &[(u64, u64)],
    settings: &ScheduleSettings,
) -> Result<Option<Diagnosis>, LayoutError> {
    let Some(job) = LoggedJob::new(logs, sizes)? else {
        return Ok(None);
    };
    let took_s: Vec<Option<f64>> = (0..job.marks_ns.len())
        .map(|marker| {
            // Jobs warm up in the first iteration.
            let is_warm = job.iterations.numbers[marker] > WARMUP;
            job.iterations.took_s(marker).filter(|_| is_warm)
        })
        .collect();
    let mut diagnosis = Diagnosis {
        layout: job.layout.clone(),
        schedule: job.schedule.as_ref().map(|(scheme, graph)| {
            let order = graph.plan().order(0).iter();
            let forwards = order.filter(|block| block.pass == Pass::Forward).count() as u32;
            // The stage runs a microbatch once for each part of the model that it holds.
            (*scheme, forwards / graph.plan().chunks())
        }),
        iterations: job.iterations.count(),
        timed: took_s.iter().flatten().count() as u64,
        total_s: took_s.iter().flatten().sum(),
        usual_s: 0.0,
        findings: Vec::new(),
        networked: Vec::new(),
        absorbed: Vec::new(),
        halt: None,
        unseen: job.unseen(),
        partial: partial(&job),
        off_clocks: job.off_clocks.clone(),
        is_ahead: false,
    };
    let Some(mut run) = IterationAnalysis::new(&job, took_s, settings) else {
        return Ok(Some(diagnosis));
    };
    diagnosis.usual_s = run.usual_s;
    diagnosis.halt = halt(&job, &run.blocks);
    // Before anything is named: of hosts that only launch, block times say nothing.
    diagnosis.is_ahead = run.is_ahead();
    if diagnosis.is_ahead {
        return Ok(Some(diagnosis));
    }
    // First of all: findings and absorbed blocks must not count iterations the network explains.
    diagnosis.networked = run.set_aside(network_ns);
    diagnosis.absorbed = run.absorbed();
    diagnosis.findings = run.findings();
    Ok(Some(diagnosis))
}

fn partial(job: &LoggedJob) -> Vec<Partial> {
    let mut partial = Vec::new();
    for (at, rank) in job.ranks.iter().enumerate() {
        // The first marker ends an iteration whose begin nobody saw.
        let whole: Vec<u64> = (1..job.marks_ns.len())
            .map(|marker| RankMarker { at, marker })
            .filter(|of| job.is_whole(*of))
            .map(|of| job.iterations.numbers[of.marker])
            .collect();
        let lost = rank
            .gaps
            .iter()
            .fold(0, |sum: u64, gap| sum.saturating_add(gap.lost));
        // A log that was cut may begin within the first.
        if lost > 0 || whole.len() + 2 < job.marks_ns.len() {
            let span = whole.first().copied().zip(whole.last().copied());
            partial.push(Partial {
                rank: rank.rank,
                lost,
                whole: whole.len() as u64,
                span,
            });
        }
    }
    partial
}

/// A job's iterations, and what is usual in them.
struct IterationAnalysis<'a> {
    job: &'a LoggedJob,
    /// What a healthy iteration takes, the median.
    usual_s: f64,
    took_s: Vec<Option<f64>>,
    /// Markers of iterations that passed the performance gate.
    healthy: Vec<usize>,
    slow: Vec<usize>,
    localiser: Localiser,
    /// `[marker][pipeline][node]` of all iterations, as far as they were seen.
    blocks: BTreeMap<usize, Vec<Vec<Option<Observed>>>>,
    /// Slow blocks of all iterations that nobody had to wait for, with the marker.
    absorbed: Vec<(usize, SlowBlock)>,
}

/// The blocks of one stage that made iterations slow.
type BlamedBlocks = Vec<(usize, SlowBlock, Observed)>;

impl<'a> IterationAnalysis<'a> {
    /// `None` if too few iterations were seen to say what is usual.
    fn new(
        job: &'a LoggedJob,
        took_s: Vec<Option<f64>>,
        settings: &'a ScheduleSettings,
    ) -> Option<Self> {
        let mut known: Vec<f64> = took_s.iter().copied().flatten().collect();
        known.sort_by(f64::total_cmp);
        let low_s = *known.get((known.len() as f64 * HEALTHY_QUANTILE) as usize)?;
        let (mut healthy, mut slow) = (Vec::new(), Vec::new());
        for (marker, took_s) in took_s.iter().enumerate() {
            match took_s {
                Some(took_s) if settings.passes_gate(*took_s, low_s) => {
                    healthy.push(marker);
                }
                Some(_) => slow.push(marker),
                None => {}
            }
        }
        if healthy.len() < settings.min_iterations as usize {
            return None;
        }
        let graph = match &job.schedule {
            Some((_, graph)) => graph.clone(),
            // Nothing is known of blocks.
            None => Graph::new(Scheme::GPipe.plan(1, 0)).ok()?,
        };
        let mut localiser = Localiser::new(graph, settings);
        let mut blocks = BTreeMap::new();
        for marker in healthy.iter().chain(&slow).copied() {
            let observed = job.observe(marker);
            if let Some(took_s) = took_s[marker] {
                // What is usual is known before anything of slow iterations may be believed.
                // `healthy` was filled in ascending order.
                let passed_gate = healthy.binary_search(&marker).is_ok();
                localiser.learn(took_s, &durations_s(&observed), passed_gate);
            }
            blocks.insert(marker, observed);
        }
        let mut absorbed = Vec::new();
        // What an iteration would have taken without its slow blocks is known better than what it
        // usually takes: the rest of it is as noisy as it was.
        let (slow, healthy): (Vec<usize>, Vec<usize>) =
            blocks.keys().copied().partition(|marker| {
                let Some(took_s) = took_s[*marker] else {
                    return false;
                };
                let seen_s = durations_s(&blocks[marker]);
                let found = localiser.judge(took_s, &seen_s);
                let saved_s = localiser.saved_s(&found, &seen_s);
                absorbed.extend(found.absorbed.into_iter().map(|slow| (*marker, slow)));
                let gated_s = took_s * settings.performance_gate;
                // Slow through its slow blocks, or for another reason: it would not pass without them either.
                took_s - saved_s < gated_s || !settings.passes_gate(took_s - saved_s, low_s)
            });
        let usual_s = median_s(healthy.iter().filter_map(|marker| took_s[*marker]))?;
        Some(Self {
            job,
            usual_s,
            took_s,
            healthy,
            slow,
            localiser,
            blocks,
            absorbed,
        })
    }

    /// Whether blocks begin before their input is there, in most iterations that were recorded whole.
    fn is_ahead(&self) -> bool {
        let (mut whole, mut ahead) = (0, 0);
        for observed in self.blocks.values().flatten() {
            let seen: Option<Vec<&Observed>> = observed.iter().map(Option::as_ref).collect();
            let Some(seen) = seen.filter(|seen| !seen.is_empty()) else {
                continue;
            };
            let begun_ns: Vec<u64> = seen.iter().map(|seen| seen.first_ns).collect();
            let ended_ns: Vec<u64> = seen.iter().map(|seen| seen.end_ns).collect();
            whole += 1;
            ahead += u32::from(self.localiser.graph().is_ahead(&begun_ns, &ended_ns));
        }
        ahead * 2 > whole
    }

    /// Sets iterations aside in which the network was slow, and says what they lost.
    fn set_aside(&mut self, network_ns: &[(u64, u64)]) -> Vec<Option<Networked>> {
        let mut networked = Vec::new();
        for span_ns in network_ns {
            let during = iterations_during(&self.job.marks_ns, *span_ns);
            self.slow.retain(|marker| !during.contains(marker));
            self.absorbed.retain(|(marker, _)| !during.contains(marker));
            let numbers = self.job.iterations.numbers.get(during.clone());
            let ends = numbers.and_then(|its| Some((*its.first()?, *its.last()?)));
            let lost_s = during
                .filter_map(|marker| Some((self.took_s[marker]? - self.usual_s).max(0.0)))
                .sum();
            networked.push(ends.map(|span| Networked { span, lost_s }));
        }
        networked
    }

    /// The longest of what slack absorbed.
    fn absorbed(&mut self) -> Vec<(u64, SlowBlock)> {
        let mut absorbed = std::mem::take(&mut self.absorbed);
        absorbed.sort_by(|(_, a), (_, b)| b.excess_s().total_cmp(&a.excess_s()));
        absorbed.truncate(MAX_ABSORBED);
        let numbers = &self.job.iterations.numbers;
        absorbed
            .into_iter()
            .map(|(marker, slow)| (numbers[marker], slow))
            .collect()
    }

    fn findings(mut self) -> Vec<SlowIterations> {
        let wide = self.job.wide_lateness();
        let slow = std::mem::take(&mut self.slow);
        let mut found: Vec<SlowIterations> = slow
            // One iteration that happens to be quick does not end it.
            .chunk_by(|before, after| *after <= before + 2)
            .flat_map(|episode| self.of_episode(episode, &wide))
            .collect();
        found.sort_by(|a, b| b.lost_s.total_cmp(&a.lost_s));
        found
    }

    fn took(&self, marker: usize) -> f64 {
        self.took_s[marker].unwrap_or(0.0)
    }

    /// What made a stretch of iterations slow.
    fn of_episode(&mut self, episode: &[usize], wide: &[CallLateness]) -> Vec<SlowIterations> {
        let lost_s: f64 = episode
            .iter()
            .map(|marker| self.took(*marker) - self.usual_s)
            .sum();
        let mut blamed: BTreeMap<StageOfPipeline, BlamedBlocks> = BTreeMap::new();
        for marker in episode {
            // Always there: slow iterations are picked from those that were observed.
            let observed = &self.blocks[marker];
            let found = self
                .localiser
                .judge(self.took(*marker), &durations_s(observed));
            for slow in found.causes {
                // Never: a block that was not recorded counts as usual, and so is not slow.
                let Some(seen) = observed[slow.pipeline][slow.node] else {
                    continue;
                };
                let SlowBlock {
                    pipeline, stage, ..
                } = slow;
                let place = StageOfPipeline { pipeline, stage };
                blamed.entry(place).or_default().push((*marker, slow, seen));
            }
        }
        let base = self.base(episode, lost_s);
        // Measured by a usual iteration as well: a huge delay must not hide a smaller one beside it.
        let least_s = lost_s.min(self.usual_s * episode.len() as f64) * EXPLAINS;
        blamed.retain(|_, blamed| excess_s(blamed) >= least_s);
        if blamed.is_empty() {
            return vec![self.unexplained(base, episode, wide)];
        }
        let all_s: f64 = blamed.values().map(excess_s).sum();
        let mut found = Vec::new();
        for (place, blamed) in blamed {
            let by_rank = self.by_rank(place, &blamed);
            // Only where several ranks stood still are blocks shared out among them: else all
            // that the stage was late says who it is.
            let parts = if by_rank.len() > 1 {
                by_rank
                    .into_iter()
                    .map(|(at, blamed)| (Some(at), blamed))
                    .collect()
            } else {
                vec![(None, blamed)]
            };
            for (known, blamed) in parts {
                // Parts of what was really lost: blocks that were slow at the same time cost it
                // once.
                let lost_s = lost_s * excess_s(&blamed) / all_s;
                let base = SlowIterations {
                    lost_s,
                    ..base.clone()
                };
                found.push(self.of_stage(&base, place, (&blamed, known), (episode, wide)));
            }
        }
        found
    }

    /// Slow blocks of one stage by the rank that stood still in them, as its place among the
    /// stage's members. Blocks in which nobody did go with those of the rank that cost most.
    fn by_rank(
        &self,
        place: StageOfPipeline,
        blamed: &BlamedBlocks,
    ) -> BTreeMap<usize, BlamedBlocks> {
        let members = self.job.members(place);
        let mut by_rank: BTreeMap<usize, BlamedBlocks> = BTreeMap::new();
        let mut others = Vec::new();
        for it in blamed {
            let late_s: Vec<f64> = members
                .iter()
                .map(|at| self.stood_s(it, &members, *at))
                .collect();
            match largest(&late_s).filter(|at| late_s[*at] > it.1.excess_s() * MOSTLY) {
                Some(at) => by_rank.entry(at).or_default().push(*it),
                None => others.push(*it),
            }
        }
        let costliest = by_rank
            .values_mut()
            .max_by(|a, b| excess_s(a).total_cmp(&excess_s(b)));
        if let Some(blamed) = costliest {
            blamed.extend(others);
        }
        by_rank
    }

    /// How long a rank stood still in a block while the others of its stage did not, at most, in
    /// seconds.
    fn stood_s(
        &self,
        (_, _, seen): &(usize, SlowBlock, Observed),
        members: &[usize],
        at: usize,
    ) -> f64 {
        self.job
            // The call that ends a block belongs to it, and the end of a span does not.
            .most_late_s(members, at, (seen.ready_ns, seen.end_ns + 1))
    }

    /// What is known without knowing who.
    fn base(&self, episode: &[usize], lost_s: f64) -> SlowIterations {
        let numbers = &self.job.iterations.numbers;
        let last = self.took_s.iter().rposition(Option::is_some);
        SlowIterations {
            ranks: Vec::new(),
            unseen: Vec::new(),
            stage: None,
            passes: Vec::new(),
            cause: BlockCause::Unseen,
            first: episode.first().map_or(0, |marker| numbers[*marker]),
            last: episode.last().map_or(0, |marker| numbers[*marker]),
            // Nothing came after it, so nobody knows that it is over.
            open: last.as_ref() == episode.last(),
            took_s: median_s(episode.iter().map(|marker| self.took(*marker))).unwrap_or(0.0),
            usual_s: self.usual_s,
            lost_s,
            span_ns: None,
            victims: Vec::new(),
            outside_s: None,
            wide_share: None,
            copies_share: None,
            last_share: None,
            block: None,
        }
    }

    /// Names the rank of a stage that made iterations slow, unless it is known: a place among the
    /// stage's members.
    fn of_stage(
        &self,
        base: &SlowIterations,
        place: StageOfPipeline,
        (blamed, known): (&BlamedBlocks, Option<usize>),
        (episode, wide): (&[usize], &[CallLateness]),
    ) -> SlowIterations {
        let members = self.job.members(place);
        let layers = self.job.layer_lateness(&members);
        let (then, healthy) = (sum(&layers, episode), sum(&layers, &self.healthy));
        let layers_s = then.beyond_s(&healthy);
        let wide_s = sum(wide, episode).beyond_s(&sum(wide, &self.healthy));
        let mut late_s: Vec<f64> = members.iter().map(|at| wide_s[*at]).collect();
        // None where a stage has one rank only, or layers do not meet: then where all meet is all
        // there is.
        for (late_s, layers_s) in late_s.iter_mut().zip(&layers_s) {
            *late_s += layers_s;
        }
        let all_s: f64 = late_s.iter().sum();
        let seen: Vec<u32> = members.iter().map(|at| self.job.ranks[*at].rank).collect();
        // Not empty: a block that is blamed was seen in the log of a member.
        let mut unseen = self.job.sharers(seen[0]);
        unseen.retain(|rank| !seen.contains(rank));
        let latest = largest(&late_s)
            .filter(|at| late_s[*at] >= all_s * ALONE)
            // Nobody of several is the latest where nobody was late at all.
            .filter(|_| all_s > 0.0 || members.len() == 1);
        // A rank that was not seen may be the one that is late.
        let culprit = known.or(latest).filter(|_| unseen.is_empty());
        let ranks = culprit.map_or_else(|| seen.clone(), |at| vec![seen[at]]);
        let wide_all_s: f64 = wide_s.iter().sum();
        let wide_own_s: f64 = members
            .iter()
            .zip(&seen)
            .filter(|(_, rank)| ranks.contains(rank))
            .map(|(at, _)| wide_s[*at])
            .sum();
        // Who is a victim is measured by the culprit's lateness: without one nobody is.
        let victims = culprit.map_or(Vec::new(), |at| {
            let own_s = layers_s.get(at).copied().unwrap_or(0.0);
            self.victims(place, own_s, episode)
        });
        let last_share = culprit
            .filter(|at| *at < then.last.len())
            .map(|at| then.last[at] as f64 / then.operations.max(1) as f64);
        let begin_ns = blamed.iter().map(|(_, _, seen)| seen.ready_ns).min();
        let end_ns = blamed.iter().map(|(_, _, seen)| seen.end_ns).max();
        let mut blocks: Vec<_> = blamed.iter().map(|(_, slow, _)| slow.block).collect();
        // Not sorted before: only whether all are one block counts.
        blocks.dedup();
        SlowIterations {
            ranks,
            unseen,
            stage: Some(place.stage as u32),
            passes: self.passes(place, blamed, episode),
            cause: self.cause(blamed, &members, culprit),
            span_ns: begin_ns.zip(end_ns),
            victims,
            outside_s: self.outside(place.pipeline, episode),
            // NaN where nobody was late, which no comparison passes.
            wide_share: Some(wide_own_s / wide_all_s).filter(|share| *share > MOSTLY),
            last_share,
            block: Some(blocks[0]).filter(|_| blocks.len() == 1),
            ..*base
        }
    }

    /// Ranks of other stages that are late in their layers' calls while this lasts.
    fn victims(&self, place: StageOfPipeline, own_s: f64, episode: &[usize]) -> Vec<u32> {
        let mut victims = Vec::new();
        for stage in 0..self.job.layout.size(Axis::Pipeline) as usize {
            if stage == place.stage {
                continue;
            }
            let members = self.job.members(StageOfPipeline { stage, ..place });
            let layers = self.job.layer_lateness(&members);
            let late_s = sum(&layers, episode).beyond_s(&sum(&layers, &self.healthy));
            for (at, late_s) in members.into_iter().zip(late_s) {
                if late_s > own_s * VICTIM {
                    victims.push(self.job.ranks[at].rank);
                }
            }
        }
        victims
    }

    fn passes(
        &self,
        place: StageOfPipeline,
        blamed: &BlamedBlocks,
        episode: &[usize],
    ) -> Vec<SlowPass> {
        let mut passes = Vec::new();
        for pass in [Pass::Forward, Pass::Backward] {
            let slow_s: Vec<f64> = blamed
                .iter()
                .filter(|(_, slow, _)| slow.block.pass == pass)
                .map(|(_, slow, _)| slow.took_s)
                .collect();
            let usual_s = self
                .healthy
                .iter()
                .flat_map(|marker| self.took_in_pass(*marker, place, pass));
            let of = episode
                .iter()
                .map(|marker| self.took_in_pass(*marker, place, pass).count());
            let Some((took_s, usual_s)) = median_s(slow_s.iter().copied()).zip(median_s(usual_s))
            else {
                continue;
            };
            passes.push(SlowPass {
                pass,
                took_s,
                usual_s,
                slow: slow_s.len() as u64,
                of: of.sum::<usize>() as u64,
            });
        }
        passes
    }

    /// What the blocks of one pass took on a stage in an iteration, as far as they were seen, in
    /// seconds.
    fn took_in_pass(
        &self,
        marker: usize,
        place: StageOfPipeline,
        pass: Pass,
    ) -> impl Iterator<Item = f64> {
        let graph = self.localiser.graph();
        let observed = &self.blocks[&marker][place.pipeline];
        graph
            .nodes_of(place.stage)
            .filter(move |node| graph.block(*node).1.pass == pass)
            .filter_map(|node| observed[node])
            .map(|seen| seen.lead_s + seen.body_s)
    }

    fn cause(
        &self,
        blamed: &BlamedBlocks,
        members: &[usize],
        culprit: Option<usize>,
    ) -> BlockCause {
        let graph = self.localiser.graph();
        let (mut excess_s, mut input_s) = (0.0, 0.0);
        for (_, slow, seen) in blamed {
            excess_s += slow.excess_s();
            // Only a block whose input comes from another stage can have waited for a transfer.
            if graph.plan().source(slow.stage, slow.block).is_some() {
                let usual_s = median_s(self.healthy.iter().filter_map(|marker| {
                    Some(self.blocks[marker][slow.pipeline][slow.node]?.lead_s)
                }));
                input_s += seen.lead_s - usual_s.unwrap_or(0.0);
            }
        }
        let worst = blamed
            .iter()
            .max_by(|(_, a, _), (_, b, _)| a.excess_s().total_cmp(&b.excess_s()));
        let stood_s = worst.zip(culprit).map_or(0.0, |(worst, at)| {
            self.stood_s(worst, members, members[at]) / worst.1.excess_s()
        });
        // Asked first: a host whose input comes late stands still as well.
        if input_s > excess_s * MOSTLY {
            BlockCause::Transfer
        } else if stood_s > MOSTLY {
            BlockCause::Host
        } else {
            BlockCause::Compute
        }
    }

    /// Seconds of an iteration in which no block of a pipeline runs: usually, and in these.
    fn outside(&self, pipeline: usize, episode: &[usize]) -> Option<(f64, f64)> {
        let [usual_s, then_s] = [&self.healthy[..], episode].map(|markers| {
            median_s(markers.iter().filter_map(|marker| {
                let blocks = self.blocks[marker][pipeline].iter().flatten();
                let begin_ns = blocks.clone().map(|block| block.first_ns).min()?;
                let end_ns = blocks.map(|block| block.end_ns).max()?;
                Some(self.took_s[*marker]? - end_ns.saturating_sub(begin_ns) as f64 * 1e-9)
            }))
        });
        usual_s.zip(then_s)
    }

    /// Seconds that each rank was late where the copies of its stage meet, beyond the usual.
    fn copies_late_s(&self, episode: &[usize]) -> Vec<f64> {
        let mut late_s = vec![0.0; self.job.ranks.len()];
        for (members, found) in self.job.copies_lateness() {
            let beyond_s = sum(&found, episode).beyond_s(&sum(&found, &self.healthy));
            for (at, beyond_s) in members.into_iter().zip(beyond_s) {
                late_s[at] += beyond_s;
            }
        }
        late_s
    }

    /// Nobody's blocks say why iterations are slow: somebody may be late where all meet, or not
    /// be seen.
    fn unexplained(
        &self,
        base: SlowIterations,
        episode: &[usize],
        wide: &[CallLateness],
    ) -> SlowIterations {
        let wide_s = sum(wide, episode).beyond_s(&sum(wide, &self.healthy));
        // Copies that wait for one of them come late together to where all meet.
        let copies_s = self.copies_late_s(episode);
        let worst = [wide_s, copies_s].map(|late_s| late_alone(&late_s, base.lost_s * EXPLAINS));
        if let Some((at, _)) = worst[0].or(worst[1]) {
            let rank = &self.job.ranks[at];
            let [wide_share, copies_share] = worst.map(|worst| {
                worst
                    .filter(|(worst, _)| *worst == at)
                    .map(|(_, share)| share)
            });
            return SlowIterations {
                ranks: vec![rank.rank],
                cause: BlockCause::Outside,
                wide_share,
                copies_share,
                outside_s: self.outside(rank.pipeline, episode),
                ..base
            };
        }
        // The stages of which no rank was seen.
        let unseen = self.job.unseen();
        let dark: Vec<u32> = unseen
            .iter()
            .copied()
            .filter(|rank| self.job.sharers(*rank).iter().all(|r| unseen.contains(r)))
            .collect();
        let stages: BTreeSet<u32> = dark
            .iter()
            .map(|rank| self.job.layout.coordinate(*rank, Axis::Pipeline))
            .collect();
        let stage = stages.first().copied().filter(|_| stages.len() == 1);
        SlowIterations {
            unseen: if dark.is_empty() { unseen } else { dark },
            stage,
            ..base
        }
    }
}

/// The markers that end the iterations of a stretch of time, up to and with the one in which it ends;
/// none if all of it lies before the first marker or behind the last.
fn iterations_during(marks_ns: &[u64], (from_ns, until_ns): (u64, u64)) -> Range<usize> {
    let first = marks_ns.partition_point(|mark_ns| *mark_ns <= from_ns);
    let after = marks_ns.partition_point(|mark_ns| *mark_ns < until_ns) + 1;
    // The first marker ends no iteration that has a begin.
    first.max(1)..after.min(marks_ns.len())
}

/// Seconds by which blocks took too long, in all.
fn excess_s(blamed: &BlamedBlocks) -> f64 {
    blamed.iter().map(|(_, slow, _)| slow.excess_s()).sum()
}

/// The rank that is late by at least so many seconds and that most of all lateness is of, and its
/// share of it.
fn late_alone(late_s: &[f64], least_s: f64) -> Option<(usize, f64)> {
    let all_s: f64 = late_s.iter().sum();
    let at = largest(late_s)?;
    let enough = late_s[at] >= all_s * ALONE && late_s[at] >= least_s;
    enough.then(|| (at, late_s[at] / all_s))
}

/// What each block took, in seconds, and NaN for one that was not seen: the localiser puts there
/// what is usual.
fn durations_s(observed: &[Vec<Option<Observed>>]) -> Vec<Vec<f64>> {
    observed
        .iter()
        .map(|blocks| {
            blocks
                .iter()
                .map(|seen| seen.map_or(f64::NAN, |seen| seen.lead_s + seen.body_s))
                .collect()
        })
        .collect()
}

fn sum(lateness: &[CallLateness], markers: &[usize]) -> CallLateness {
    let mut sum = CallLateness::default();
    for marker in markers {
        sum.add(&lateness[*marker]);
    }
    sum
}

/// The place of the largest value.
fn largest(values: &[f64]) -> Option<usize> {
    let values = values.iter().enumerate();
    values
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(at, _)| at)
}

#[cfg(test)]
mod tests;
