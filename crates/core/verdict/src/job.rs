use std::collections::{BTreeMap, BTreeSet, VecDeque};

use frontier::{Baseline, WindowFrontier, analyse, assume_synchronisation};
use incident::{Scene, Tracker};
use model::{
    Cut, JobSummary, Mark, MarkKind, SCHEMA, StageId, StageNames, StageSummary, Sync,
    Verdict, Window, WindowSummary, fold_ranks,
};
use steps::{Aligner, Segmenter};

use crate::{Series, Settings};

/// Window summaries kept; the oldest make room.
const MAX_WINDOWS: usize = 4096;

/// What is known of a rank besides its marks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankFacts {
    /// Its host.
    pub host: Option<String>,
    /// Coordinates that make ranks incomparable, such as the pipeline stage.
    pub role: Option<String>,
}

/// One job, from marks to verdict.
#[derive(Debug)]
pub struct Job {
    id: String,
    source: String,
    settings: Settings,
    baseline: Baseline,
    names: StageNames,
    hosts: BTreeMap<u32, String>,
    segmenters: BTreeMap<u32, Segmenter>,
    aligner: Aligner,
    tracker: Tracker,
    totals: BTreeMap<StageId, StageTotal>,
    windows: VecDeque<(WindowSummary, BTreeMap<StageId, f64>)>,
    series: Series,
    lines: Vec<String>,
    cut: Option<Cut>,
    notes: BTreeMap<Note, u64>,
    exposed_s: f64,
    /// Steps of recordings' own windows, and of attempts before the last restart.
    earlier_steps: u64,
    analysed_steps: u64,
    seen_ranks: BTreeSet<u32>,
    lost_records: u64,
}

#[derive(Debug, Default)]
struct StageTotal {
    advance_s: f64,
    gained_s: f64,
    /// Steps each rank led by more than noise.
    led: BTreeMap<u32, u64>,
}

/// Things worth a note in the verdict, counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Note {
    MissingRank(u32),
    RankLeft(u32, u32),
    IncompleteSteps,
    MismatchedSteps,
    ArrivalsUnknown,
    WindowsDropped,
    Restarted,
    OtherHosts,
    Text(String),
}

impl Job {
    /// A job nothing is known of yet.
    pub fn new(id: &str, source: &str, settings: Settings) -> Self {
        let mut names = StageNames::default();
        Self {
            id: id.to_owned(),
            source: source.to_owned(),
            baseline: settings.baseline(&mut names),
            names,
            hosts: BTreeMap::new(),
            segmenters: BTreeMap::new(),
            aligner: Aligner::new(settings.window.clone()),
            tracker: Tracker::new(settings.incident.clone(), settings.frontier.clone()),
            totals: BTreeMap::new(),
            windows: VecDeque::new(),
            series: Series::default(),
            lines: Vec::new(),
            cut: None,
            notes: BTreeMap::new(),
            exposed_s: 0.0,
            earlier_steps: 0,
            analysed_steps: 0,
            seen_ranks: BTreeSet::new(),
            lost_records: 0,
            settings,
        }
    }

    /// The job's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Stage names of the job.
    pub fn names(&mut self) -> &mut StageNames {
        &mut self.names
    }

    /// Exposed time and lag over the run.
    pub fn series(&self) -> &Series {
        &self.series
    }

    /// Announces a rank, or what became known of it.
    pub fn expect(&mut self, rank: u32, facts: RankFacts) {
        if let Some(host) = facts.host {
            self.hosts.insert(rank, host);
        }
        self.aligner.expect(rank, facts.role);
    }

    /// Announces ranks that run beside one that was announced, and the size of the job.
    ///
    /// They are taken to have its role until they say otherwise.
    pub fn expect_peers(
        &mut self,
        ranks: impl IntoIterator<Item = u32>,
        role: Option<&str>,
        world_size: u32,
    ) {
        for rank in ranks {
            if !self.aligner.expects(rank) {
                self.aligner.expect(rank, role.map(str::to_owned));
            }
        }
        self.aligner.set_world_size(world_size);
    }

    /// Says that all ranks start over: an elastic restart.
    pub fn restart(&mut self) {
        self.finish();
        self.earlier_steps += self.aligner.steps();
        self.aligner = Aligner::new(self.settings.window.clone());
        *self.notes.entry(Note::Restarted).or_default() += 1;
    }

    /// Takes the next mark of a rank; `stage` is the job-wide id behind the mark's code.
    pub fn mark(&mut self, rank: u32, mark: &Mark, stage: StageId) {
        let segmenter = self.segmenters.entry(rank).or_default();
        if let Some(step) = segmenter.push(mark, stage) {
            self.seen_ranks.insert(rank);
            self.aligner.push(rank, step);
            self.take_windows();
        } else if mark.kind == MarkKind::OptimizerEnd {
            self.seen_ranks.insert(rank);
        }
    }

    /// Says that records of a rank were lost before they could be read.
    pub fn lose(&mut self, rank: u32, records: u64) {
        self.lost_records += records;
        self.segmenters.entry(rank).or_default().lose();
    }

    /// Says that a rank's process has ended; `step` is the last it was in.
    pub fn leave(&mut self, rank: u32, step: u32) {
        if let Some(step) = self.segmenters.remove(&rank).and_then(|mut s| s.finish()) {
            self.aligner.push(rank, step);
        }
        self.aligner.leave(rank);
        self.notes.insert(Note::RankLeft(rank, step), 1);
        self.take_windows();
    }

    /// Adds something the verdict should say.
    pub fn note(&mut self, text: &str) {
        self.notes.insert(Note::Text(text.to_owned()), 1);
    }

    /// Takes a whole window, from a recording that has the matrix itself.
    pub fn add_window(&mut self, window: Window) {
        self.seen_ranks.extend(&window.ranks);
        self.earlier_steps += window.steps;
        self.analyse(window);
    }

    /// Ends the job: what is still open is closed.
    pub fn finish(&mut self) {
        for (rank, mut segmenter) in std::mem::take(&mut self.segmenters) {
            if let Some(step) = segmenter.finish() {
                self.aligner.push(rank, step);
            }
        }
        self.aligner.finish();
        self.take_windows();
    }

    /// Lines about the windows closed since the last call, for people who watch.
    pub fn take_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    /// Number of ranks seen so far.
    pub fn ranks(&self) -> usize {
        self.seen_ranks.len()
    }

    /// Number of steps seen so far.
    pub fn steps(&self) -> u64 {
        self.earlier_steps + self.aligner.steps()
    }

    fn take_windows(&mut self) {
        for window in self.aligner.take_windows() {
            self.analyse(window);
        }
    }

    fn analyse(&mut self, mut window: Window) {
        let issues = window.blocks.iter().flat_map(|block| block.boundaries.iter());
        if window.ranks.len() > 1 && !issues.into_iter().any(|b| b.sync != Sync::None) {
            assume_synchronisation(&mut window);
            *self.notes.entry(Note::ArrivalsUnknown).or_default() += 1;
        }
        let found = analyse(&window, &self.settings.frontier, &self.baseline);
        self.cut = Some(window.cut);
        self.exposed_s += found.exposed_s;
        self.analysed_steps += found.steps.len() as u64;
        for rank in &window.missing_ranks {
            *self.notes.entry(Note::MissingRank(*rank)).or_default() += window.steps;
        }
        if window.unseen_ranks > 0 {
            self.notes.insert(Note::OtherHosts, 1);
        }
        if window.incomplete_steps > 0 {
            *self.notes.entry(Note::IncompleteSteps).or_default() += window.incomplete_steps;
        }
        if window.mismatched_steps > 0 {
            *self.notes.entry(Note::MismatchedSteps).or_default() += window.mismatched_steps;
        }
        self.add_totals(&window, &found);
        self.series.add(&window, &found);
        let scene = Scene { names: &self.names, hosts: &self.hosts };
        let lines = self.tracker.observe(&window, &found, scene);
        let last = window.first_step + window.steps.saturating_sub(1);
        let steps = format!("steps {}-{last}", window.first_step);
        self.lines.extend(lines.into_iter().map(|line| format!("{steps}: {line}")));
        let shares = found.stages.iter().copied().zip(found.share.iter().copied());
        self.windows.push_back((self.summary(&window, &found), shares.collect()));
        if self.windows.len() > MAX_WINDOWS {
            self.windows.pop_front();
            *self.notes.entry(Note::WindowsDropped).or_default() += 1;
        }
    }

    fn add_totals(&mut self, window: &Window, found: &WindowFrontier) {
        for (slot, stage) in found.stages.iter().enumerate() {
            let total = self.totals.entry(*stage).or_default();
            total.advance_s += found.advance_s[slot];
            total.gained_s += found.gain[slot] * found.exposed_s;
            for account in &found.steps {
                let Some(at) = account.stages[slot] else { continue };
                let notable = self.settings.frontier.notable_s(account.makespan_s);
                if window.ranks.len() > 1 && at.gap_s > notable {
                    *total.led.entry(window.ranks[at.leader]).or_default() += 1;
                }
            }
        }
    }

    fn summary(&self, window: &Window, found: &WindowFrontier) -> WindowSummary {
        let name = |stage: &StageId| self.names.name(*stage).to_owned();
        WindowSummary {
            first_step: window.first_step,
            steps: window.steps,
            labels: found.labels.clone(),
            candidates: found.candidates.iter().map(name).collect(),
            co_critical_stages: found.co_critical.iter().map(name).collect(),
            downgrades: found.downgrades.clone(),
            step_s: found.step_s(),
            shares: Vec::new(),
            missing_ranks: window.missing_ranks.clone(),
        }
    }

    /// What is to be said of the job now.
    pub fn verdict(&self) -> Verdict {
        let part = |seconds: f64| if self.exposed_s > 0.0 { seconds / self.exposed_s } else { 0.0 };
        let stages = self.totals.iter().map(|(stage, total)| StageSummary {
            name: self.names.name(*stage).to_owned(),
            advance_s: total.advance_s,
            share: part(total.advance_s),
            gain: part(total.gained_s),
            lead_ranks: total
                .led
                .iter()
                .filter(|(_, led)| **led * 2 > self.analysed_steps)
                .map(|(rank, _)| *rank)
                .collect(),
        });
        let windows = self.windows.iter().map(|(window, shares)| {
            let share = |stage| shares.get(stage).copied().unwrap_or(0.0);
            let shares = self.totals.keys().map(share).collect();
            WindowSummary { shares, ..window.clone() }
        });
        Verdict {
            schema: SCHEMA.to_owned(),
            job: JobSummary {
                id: self.id.clone(),
                ranks: self.seen_ranks.len(),
                steps: self.steps(),
                analysed_steps: self.analysed_steps,
                source: self.source.clone(),
                cut: self.cut.map_or("none".into(), Cut::name),
                exposed_s: self.exposed_s,
                lost_records: self.lost_records,
            },
            stages: stages.collect(),
            windows: windows.collect(),
            incidents: self
                .tracker
                .incidents(Scene { names: &self.names, hosts: &self.hosts }),
            notes: self.note_texts(),
        }
    }

    fn note_texts(&self) -> Vec<String> {
        let mut texts = Vec::new();
        // A rank that left with all the others simply finished.
        let last_steps = self.notes.keys().filter_map(|note| match note {
            Note::RankLeft(_, step) => Some(*step),
            _ => None,
        });
        let last_step = last_steps.max().unwrap_or(0);
        for (note, count) in &self.notes {
            texts.push(match note {
                Note::RankLeft(_, step) if step + 1 >= last_step => continue,
                Note::RankLeft(rank, step) => format!(
                    "rank {rank} ended in step {step}; the others went on to step {last_step}"
                ),
                Note::MissingRank(rank) => {
                    format!("rank {rank} delivered nothing in {count} steps")
                }
                Note::IncompleteSteps => {
                    format!("{count} steps were not seen whole on every rank and are left out")
                }
                Note::MismatchedSteps => format!(
                    "collectives differed over the ranks in {count} steps; those are \
                     accounted without arrival times"
                ),
                Note::ArrivalsUnknown => "nobody recorded when ranks issue collectives: a \
                     late rank can be named only in stages that do not synchronise"
                    .to_owned(),
                Note::WindowsDropped => {
                    format!("the first {count} windows are left out of this list")
                }
                Note::Restarted => format!(
                    "the job was restarted {count} times; steps are counted from the last start"
                ),
                Note::OtherHosts => "ranks of other hosts are not seen: this is about the \
                     ranks of this host only"
                    .to_owned(),
                Note::Text(text) => text.clone(),
            });
        }
        if self.analysed_steps == 0 {
            let warmup = self.settings.window.warmup_steps;
            texts.push(format!(
                "no window was analysed: {} steps of {} ranks seen, of which the first \
                 {warmup} are warm-up and at least {} more are needed",
                self.steps(),
                self.seen_ranks.len(),
                self.settings.window.min_steps,
            ));
        }
        if self.seen_ranks.len() > 1 && self.lost_records > 0 {
            let ranks: Vec<u32> = self.seen_ranks.iter().copied().collect();
            texts.push(format!(
                "{} records of ranks {} were overwritten before they were read",
                self.lost_records,
                fold_ranks(&ranks)
            ));
        }
        texts
    }
}
