//! Traces of several ranks: one job.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::{Input, ProfileWindow, Source, SourceNote, StageNames, TraceNote, WorkerPatterns};
use pattern::{PatternSettings, Resource, costliest};
use trace::{Counter, Names, SliceKind, Trace, match_collectives, profile, rank_steps};
use verdict::{Job, ProfiledRank, Settings};

use crate::file_name::{in_order, names_master, rank_in_job, worded};
use crate::rank_logs::{job_folder, named};
use crate::{FormatError, Limits, Recording, load};

/// What a profiler recorded of a rank, whole.
#[derive(Clone, Debug)]
pub struct ProfilerTrace {
    pub(crate) tool: Source,
    /// One for each rank that is in the file.
    pub(crate) traces: Vec<Trace>,
}

/// What is left of a trace for a verdict, and by which tool it was recorded.
#[derive(Clone, Debug)]
pub struct RankTrace {
    path: PathBuf,
    /// Its place among the traces of the file.
    place: usize,
    tool: Source,
    /// The trace; of its slices only collectives are left.
    trace: Trace,
    profiled: ProfiledRank,
    /// When it begins.
    start_ns: i64,
    end_ns: i64,
}

impl RankTrace {
    /// Keeps what verdicts are made of and lets the slices go.
    pub fn all(path: &Path, recorded: ProfilerTrace, settings: &PatternSettings) -> Vec<Self> {
        let ProfilerTrace { tool, traces } = recorded;
        traces
            .into_iter()
            .enumerate()
            .map(|(place, trace)| Self {
                place,
                ..Self::new(path, tool, trace, settings)
            })
            .collect()
    }

    fn new(path: &Path, tool: Source, mut trace: Trace, settings: &PatternSettings) -> Self {
        let mut names = StageNames::default();
        // `Trace::settle` has sorted them by their start.
        let start_ns = trace.slices.first().map_or(0, |slice| slice.start_ns);
        let end_ns = trace.slices.iter().map(|slice| slice.end_ns).max();
        let origin_ns = if trace.absolute { 0 } else { start_ns };
        let steps = rank_steps(&trace, origin_ns, |name| names.intern(name));
        let sent = trace.transfers.iter().filter(|it| it.is_point_to_point);
        let sends = 2 * sent.count() > steps.len().max(1);
        let profile = profile(&trace, settings);
        // All traces of a job are in memory at once, each may have millions of slices. Collectives
        // stay: they are matched across ranks once all are read.
        trace
            .slices
            .retain(|slice| slice.kind == SliceKind::Collective);
        trace.slices.shrink_to_fit();
        trace.frames = Vec::new();
        trace.counters = Vec::new();
        trace.names = Names::default();
        let profiled = ProfiledRank {
            rank: 0,
            host: trace.host.clone(),
            file: path.display().to_string(),
            profile,
            steps,
            names,
            lacks_kernels: trace.lacks_kernels,
            sends,
        };
        Self {
            path: path.to_owned(),
            place: 0,
            tool,
            trace,
            profiled,
            start_ns,
            end_ns: end_ns.unwrap_or(start_ns),
        }
    }

    /// The time its steps count from.
    pub(crate) fn origin_ns(&self) -> i64 {
        if self.trace.absolute {
            0
        } else {
            self.start_ns
        }
    }

    /// The trace, its slices read anew.
    pub(crate) fn whole(&self) -> Result<Option<Trace>, FormatError> {
        Ok(match load(&self.path, Limits::default())? {
            Recording::Trace(recorded) => recorded.traces.into_iter().nth(self.place),
            _ => None,
        })
    }

    /// What travels of it where traces stay on the host that recorded them.
    pub fn patterns(&self) -> WorkerPatterns {
        let worker = self.said_rank(false).unwrap_or(0);
        let profile = &self.profiled.profile;
        costliest(worker, &profile.patterns, &profile.dictionary)
    }

    /// The folder whose traces are of one job: the file's, or the one that has a folder for each rank.
    pub fn folder(&self) -> PathBuf {
        let own = job_folder(&self.path);
        // A number alone may as well be that of a run.
        let numbered = numbered_folder(&self.path).filter(|_| self.trace.world_size != Some(1));
        let is_numbered = numbered.is_some_and(|it| self.trace.rank == Some(it));
        let is_of_rank = is_numbered
            || rank_folder(&self.path).is_some_and(|it| self.said_rank(false) == Some(it));
        match own.parent() {
            Some(all) if is_of_rank => named(all),
            _ => own,
        }
    }

    /// Whether two traces are of unlike cycles of a profiler's schedule: they have neither a step nor a time in
    /// common.
    fn is_of_another_cycle(&self, other: &Self) -> bool {
        let numbers = |trace: &Self| {
            let steps = &trace.profiled.steps;
            Some([steps.first()?.step, steps.last()?.step])
        };
        let apart = |[first, last]: [i64; 2], [others_first, others_last]: [i64; 2]| {
            last < others_first || others_last < first
        };
        let (Some(own), Some(others)) = (numbers(self), numbers(other)) else {
            return false;
        };
        self.trace.absolute
            && other.trace.absolute
            && apart(own.map(i64::from), others.map(i64::from))
            && apart([self.start_ns, self.end_ns], [other.start_ns, other.end_ns])
    }

    /// The rank that the trace says it is of, or else its name or its folder's. A process that knew of no
    /// others does not know its rank.
    fn said_rank(&self, has_master: bool) -> Option<u32> {
        let Trace {
            rank, world_size, ..
        } = self.trace;
        rank.filter(|_| world_size != Some(1))
            .or_else(|| rank_in_job(&self.path, has_master))
            .or_else(|| rank_folder(&self.path))
            .or(rank)
    }
}

/// The rank whose folder a file is in: `rank_3/trace.json`.
fn rank_folder(path: &Path) -> Option<u32> {
    let name = folder_name(path)?;
    let (rank, place) = worded(name, &["rank"])?;
    let is_all = place.end == name.len() && name.to_ascii_lowercase().starts_with("rank");
    is_all.then_some(rank)
}

/// The number of the folder that a file is in: `3/trace.json`.
fn numbered_folder(path: &Path) -> Option<u32> {
    folder_name(path)?.parse().ok()
}

fn folder_name(path: &Path) -> Option<&str> {
    path.parent()?.file_name()?.to_str()
}

/// Summarises the trace of a profile window; steps and costs are left to who ordered it.
///
/// `used` is what the host saw of what the rank's functions use, by the wall clock; it counts for
/// what the trace has no counters of.
/// # Errors
/// Those of [`load`]; [`FormatError::Unknown`] for a file that is no trace.
pub fn load_window(
    path: &Path,
    used: Vec<Counter>,
    settings: &PatternSettings,
) -> Result<ProfileWindow, FormatError> {
    let trace = match load(path, Limits::default())? {
        Recording::Trace(recorded) => recorded.traces.into_iter().next(),
        _ => None,
    };
    let mut trace = trace.ok_or_else(|| FormatError::Unknown {
        path: path.to_owned(),
        found: "no trace of a profiler".to_owned(),
    })?;
    let recorded: Vec<Resource> = trace.counters.iter().map(|c| c.resource).collect();
    trace
        .counters
        .extend(used.into_iter().filter(|c| !recorded.contains(&c.resource)));
    let found = profile(&trace, settings);
    Ok(ProfileWindow {
        span_s: found.span_s,
        communication_share: found.communication_share,
        has_device: found.has_device,
        patterns: costliest(0, &found.patterns, &found.dictionary),
        ..ProfileWindow::default()
    })
}

/// Traces that begin further apart are not of one profile.
const SAME_TIME_NS: u64 = 600 * 1_000_000_000;

/// One job, from the traces of its ranks.
#[derive(Clone, Debug, Default)]
pub struct TraceSet {
    ranks: BTreeMap<u32, RankTrace>,
    notes: Vec<TraceNote>,
}

impl TraceSet {
    /// Puts traces together; where a rank was recorded several times, each recording of it goes
    /// to another set, in time order.
    pub fn sets(mut traces: Vec<RankTrace>) -> Vec<Self> {
        traces.sort_by(|a, b| (a.start_ns, &a.path).cmp(&(b.start_ns, &b.path)));
        let mut sets: Vec<Self> = Vec::new();
        let has_master = traces.iter().any(|trace| names_master(&trace.path));
        // Reports of several hosts number their processes each for itself.
        let first = traces.first().map(|trace| trace.path.clone());
        let is_one_report = traces
            .iter()
            .all(|trace| Some(&trace.path) == first.as_ref());
        let rank_of = |trace: &RankTrace| {
            let rank = trace.said_rank(has_master);
            rank.filter(|_| is_one_report || !trace.trace.is_rank_of_host)
        };
        // Those that say whose they are first, in time order; the others by name, as they get the
        // ranks that are left.
        let (known, mut unknown): (Vec<_>, Vec<_>) = traces
            .into_iter()
            .partition(|trace| rank_of(trace).is_some());
        unknown.sort_by_cached_key(|trace| (in_order(&trace.path), trace.place));
        for trace in known.into_iter().chain(unknown) {
            let rank = rank_of(&trace);
            let at = sets
                .iter()
                .position(|set| {
                    set.is_of(&trace) && rank.is_none_or(|rank| !set.ranks.contains_key(&rank))
                })
                .unwrap_or_else(|| {
                    sets.push(Self::default());
                    sets.len() - 1
                });
            sets[at].add(rank, trace);
        }
        sets
    }

    /// The traces of a single file.
    pub(crate) fn one(traces: Vec<RankTrace>) -> Self {
        Self::sets(traces).into_iter().next().unwrap_or_default()
    }

    /// Whether a trace may be of the same job and time as those that are there.
    fn is_of(&self, trace: &RankTrace) -> bool {
        self.ranks.values().all(|known| {
            // Without a clock that was set nothing is known of when a trace was recorded.
            let apart_ns = known.start_ns.abs_diff(trace.start_ns);
            let same_time =
                !known.trace.absolute || !trace.trace.absolute || apart_ns <= SAME_TIME_NS;
            let sizes = known.trace.world_size.zip(trace.trace.world_size);
            same_time
                && !known.is_of_another_cycle(trace)
                && sizes.is_none_or(|(one, other)| one == other)
        })
    }

    /// What it is about: the file, if there is only one.
    pub fn name(&self, folder: &Path) -> String {
        match self.ranks.values().next().filter(|_| self.ranks.len() == 1) {
            Some(trace) => trace.path.display().to_string(),
            None => folder.display().to_string(),
        }
    }

    fn add(&mut self, rank: Option<u32>, mut trace: RankTrace) {
        let file = trace.path.display().to_string();
        let rank = rank.unwrap_or_else(|| {
            let free = (0..u32::MAX).find(|rank| !self.ranks.contains_key(rank));
            let rank = free.unwrap_or_default();
            let file = file.clone();
            self.notes.push(TraceNote::RankGuessed { file, rank });
            rank
        });
        trace.profiled.rank = rank;
        let losses = trace.trace.losses.iter().cloned();
        self.notes.extend(losses.map(|loss| TraceNote::Lost {
            file: file.clone(),
            loss,
        }));
        self.ranks.insert(rank, trace);
    }

    /// The ranks: what is left of their traces, and of their profiles.
    pub(crate) fn traces(&self) -> impl Iterator<Item = (u32, &RankTrace, &Trace, &ProfiledRank)> {
        self.ranks
            .iter()
            .map(|(rank, kept)| (*rank, kept, &kept.trace, &kept.profiled))
    }

    /// Runs the traces through the analysis and returns the finished job.
    pub fn replay(&self, id: &str, settings: Settings) -> Job {
        let tool = self
            .ranks
            .values()
            .next()
            .map_or(Source::Kineto, |first| first.tool);
        let mut job = Job::new(id, tool, settings);
        let traces = self
            .ranks
            .iter()
            .map(|(rank, trace)| (*rank, &trace.trace))
            .collect();
        let matches = match_collectives(&traces);
        let profiled = self
            .ranks
            .values()
            .map(|trace| trace.profiled.clone())
            .collect();
        job.add_profiles(profiled, &matches);
        for note in self.all_notes() {
            job.take(Input::Note(SourceNote::Traces(note)));
        }
        job.finish();
        job
    }

    /// What could not be seen.
    fn all_notes(&self) -> Vec<TraceNote> {
        let mut notes = self.notes.clone();
        let sizes = self
            .ranks
            .values()
            .filter_map(|trace| trace.trace.world_size);
        let world = sizes.max().unwrap_or(0);
        // A damaged file may say any size; this list must not grow with it.
        let missing: Vec<u32> = (0..world.min(1 << 20))
            .filter(|rank| !self.ranks.contains_key(rank))
            .collect();
        if !missing.is_empty() && self.ranks.len() > 1 {
            notes.push(TraceNote::Missing(missing));
        } else if !missing.is_empty() {
            notes.push(TraceNote::Alone(world));
        }
        let stepless: Vec<u32> = self
            .ranks
            .iter()
            .filter(|(_, trace)| trace.profiled.steps.is_empty())
            .map(|(rank, _)| *rank)
            .collect();
        if !stepless.is_empty() {
            notes.push(TraceNote::NoSteps(stepless));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use trace::{NameId, Slice, Track};

    use super::*;

    /// A trace of these steps of 10 ms, which begins at its first step.
    fn trace(name: &str, steps: std::ops::Range<u32>) -> RankTrace {
        let mut trace = Trace {
            tracks: vec![Track::default()],
            absolute: true,
            ..Trace::default()
        };
        for step in steps {
            let name = trace.names.intern(&format!("ProfilerStep#{step}"));
            let start_ns = i64::from(step) * 10_000_000;
            trace.slices.push(slice(name, start_ns));
        }
        trace.settle(0);
        RankTrace::new(
            Path::new(name),
            Source::Kineto,
            trace,
            &PatternSettings::default(),
        )
    }

    fn slice(name: NameId, start_ns: i64) -> Slice {
        Slice {
            start_ns,
            end_ns: start_ns + 9_000_000,
            name,
            detail: 0,
            track: 0,
            kind: SliceKind::Step,
        }
    }

    /// The file of each rank, by job.
    fn ranks(traces: Vec<RankTrace>) -> Vec<Vec<(u32, String)>> {
        let sets = TraceSet::sets(traces).into_iter();
        let ranks = |set: TraceSet| {
            let traces = set.ranks.into_iter();
            traces
                .map(|(rank, it)| (rank, it.path.display().to_string()))
                .collect()
        };
        sets.map(ranks).collect()
    }

    fn of_files(files: &[&str]) -> Vec<(u32, String)> {
        let ranks = ranks(files.iter().map(|name| trace(name, 3..6)).collect());
        assert_eq!(ranks.len(), 1, "{ranks:?}");
        ranks.into_iter().next().unwrap()
    }

    #[test]
    fn files_that_name_no_rank_are_numbered_in_their_order() {
        let ranks = of_files(&["trace-10-of-12", "trace-2-of-12", "trace-1-of-12"]);
        assert_eq!(ranks[2], (2, "trace-10-of-12".to_owned()));
        let local = [
            "node1_local_rank0",
            "node0_local_rank1",
            "node0_local_rank0",
        ];
        assert_eq!(of_files(&local)[2], (2, "node1_local_rank0".to_owned()));
        let pods = ["pt-worker-1", "pt-worker-0", "pt-master-0"];
        assert_eq!(of_files(&pods)[2], (2, "pt-worker-1".to_owned()));
        // Without a master they are ranks.
        assert_eq!(of_files(&["worker-5", "worker-0"])[1].0, 5);
    }

    #[test]
    fn processes_of_several_reports_are_numbered_over_all() {
        let report = |name: &str, place: usize| {
            let mut trace = trace(name, 3..6);
            trace.place = place;
            trace.trace.rank = Some(place as u32);
            trace.trace.is_rank_of_host = true;
            trace
        };
        let of_one = || vec![report("node0", 0), report("node0", 1)];
        assert_eq!(ranks(of_one())[0].len(), 2);
        let both = ranks([of_one(), vec![report("node1", 0), report("node1", 1)]].concat());
        let expected = ["node0", "node0", "node1", "node1"];
        let expected: Vec<_> = (0..).zip(expected.map(str::to_owned)).collect();
        assert_eq!(both, [expected]);
    }

    #[test]
    fn cycles_of_a_schedule_are_not_mixed() {
        let mut first = vec![trace("a_rank0", 3..9)];
        let second = ["b_rank0", "b_rank1"].map(|name| trace(name, 20..26));
        first.extend(second);
        let sizes: Vec<usize> = ranks(first).iter().map(Vec::len).collect();
        assert_eq!(sizes, [1, 2]);
        // A rank that began later is of the same.
        let late = vec![trace("rank0", 3..9), trace("rank1", 5..11)];
        assert_eq!(ranks(late)[0].len(), 2);
    }
}
