//! What stands beside the incidents of a verdict.

use std::collections::{BTreeMap, BTreeSet};

use model::{RasNote, Source, SourceNote, Sync, TraceNote, VerdictNote, Window};

use super::Job;
use crate::detectors::pipeline_notes;

/// Notes that are no mere counts, of which the first are kept: a recording may have any number.
const MAX_SAID: usize = 1024;
/// Collectives whose logs end at different places: at most so many are reported.
const MAX_ENDS: usize = 8;

/// What is worth a note so far.
#[derive(Debug, Default)]
pub(super) struct Notes {
    counts: BTreeMap<Counted, u64>,
    /// What steps that were not recorded whole took, in seconds.
    incomplete_s: f64,
    said: Vec<VerdictNote>,
    of_sources: BTreeSet<SourceNote>,
}

/// Things worth a note that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Counted {
    MissingRank(u32),
    /// With its last step.
    RankLeft(u32, u32),
    IncompleteSteps,
    MismatchedSteps,
    ArrivalsUnknown,
    WindowsDropped,
    Restarts,
    OtherHosts,
    /// Whether clocks could be compared.
    OneStep(bool),
}

impl Notes {
    /// Counts something so many times more; nothing comes to pass no times.
    pub(super) fn count(&mut self, what: Counted, times: u64) {
        if times > 0 {
            *self.counts.entry(what).or_default() += times;
        }
    }

    /// Counts a window before its ranks are joined, if nobody recorded when they arrive.
    pub(super) fn count_arrivals(&mut self, window: &Window) {
        let boundaries = window.blocks.iter().flat_map(|b| b.boundaries.iter());
        let mut boundaries = boundaries.peekable();
        // Of a window in which no step is whole there is nothing to say.
        let has_any = boundaries.peek().is_some();
        if has_any && window.ranks.len() > 1 && boundaries.all(|it| it.sync == Sync::None) {
            self.count(Counted::ArrivalsUnknown, 1);
        }
    }

    /// Counts what is missing in a window.
    pub(super) fn count_missing(&mut self, window: &Window) {
        for rank in &window.missing_ranks {
            self.count(Counted::MissingRank(*rank), window.steps);
        }
        self.count(Counted::OtherHosts, u64::from(window.unseen_ranks > 0));
        self.count(Counted::IncompleteSteps, window.incomplete_steps);
        self.incomplete_s += window.incomplete_s * window.group_share;
        self.count(Counted::MismatchedSteps, window.mismatched_steps);
    }

    /// Whether all that is known of collectives is how many each rank had launched at one moment.
    pub(super) fn are_counted_once(&self) -> bool {
        let moment = SourceNote::Ras(RasNote::OneMoment);
        self.of_sources.contains(&moment)
    }

    /// Keeps a note, unless it is known.
    pub(super) fn say(&mut self, note: VerdictNote) {
        let (count, is_known) = match &note {
            // Notes of sources may come from programs, and have a bound of their own: they crowd out
            // none of laggard's.
            VerdictNote::Source(note) => (self.of_sources.len(), self.of_sources.contains(note)),
            note => (self.said.len(), self.said.contains(note)),
        };
        if is_known || count >= MAX_SAID {
            return;
        }
        match note {
            VerdictNote::Source(note) => {
                self.of_sources.insert(note);
            }
            note => self.said.push(note),
        }
    }

    /// Keeps notes, unless they are known.
    pub(super) fn extend(&mut self, notes: impl IntoIterator<Item = VerdictNote>) {
        notes.into_iter().for_each(|note| self.say(note));
    }

    /// The job is started again: who left before is not who left early.
    pub(super) fn restart(&mut self) {
        self.counts
            .retain(|what, _| !matches!(what, Counted::RankLeft(..)));
        self.count(Counted::Restarts, 1);
    }

    /// All of them, of a job with so many windows, in whose steps that were not recorded whole lies this
    /// share of the time.
    fn all(&self, windows: usize, share: f64) -> impl Iterator<Item = VerdictNote> {
        let last_steps = self.counts.keys().filter_map(|what| match what {
            Counted::RankLeft(_, step) => Some(*step),
            _ => None,
        });
        let last_step = last_steps.max().unwrap_or(0);
        let counted = self.counts.iter().filter_map(move |(what, count)| {
            let count = *count;
            Some(match *what {
                Counted::MissingRank(rank) => VerdictNote::MissingRank { rank, steps: count },
                // A rank that left with all the others simply finished, and one may have no steps, as an actor
                // beside the learners.
                Counted::RankLeft(_, step) if step == 0 || step.saturating_add(1) >= last_step => {
                    return None;
                }
                Counted::RankLeft(rank, step) => VerdictNote::RankLeft {
                    rank,
                    step,
                    last_step,
                },
                Counted::IncompleteSteps => VerdictNote::IncompleteSteps {
                    steps: count,
                    share,
                },
                Counted::MismatchedSteps => VerdictNote::MismatchedSteps { steps: count },
                Counted::ArrivalsUnknown if count * 2 < windows as u64 => return None,
                Counted::ArrivalsUnknown => VerdictNote::ArrivalsUnknown,
                Counted::WindowsDropped => VerdictNote::WindowsDropped { windows: count },
                Counted::Restarts => VerdictNote::Restarted { times: count },
                Counted::OtherHosts => VerdictNote::OtherHosts,
                Counted::OneStep(on_one_clock) => VerdictNote::OneStep { on_one_clock },
            })
        });
        let of_sources = self.of_sources.iter().cloned().map(VerdictNote::Source);
        counted.chain(self.said.iter().cloned()).chain(of_sources)
    }
}

impl Job {
    pub(crate) fn note(&mut self, note: VerdictNote) {
        self.notes.say(note);
    }

    /// Share of the time of steps that lies in those which were not recorded whole.
    pub(super) fn unrecorded_share(&self) -> f64 {
        let incomplete_s = self.notes.incomplete_s;
        let all_s = incomplete_s + self.accounting.exposed_s();
        incomplete_s / all_s.max(f64::MIN_POSITIVE)
    }

    /// Whether there are traces of some ranks, and of others none.
    pub(super) fn has_unseen_ranks(&self) -> bool {
        let mut notes = self.notes.of_sources.iter();
        notes.any(|it| matches!(it, SourceNote::Traces(TraceNote::Missing(_))))
    }

    /// Whether a snapshot shows something wrong that names nobody, or nothing to compare.
    pub(super) fn is_partly_seen(&self) -> bool {
        let leaves_open = || self.notes.of_sources.iter().any(SourceNote::leaves_open);
        self.source == Source::Snapshot && (self.ranks() == 0 || leaves_open())
    }

    /// What stands beside the incidents, of a job whose [hosts may run
    /// ahead](Self::hosts_may_run_ahead) or not.
    pub(super) fn all_notes(&self, hosts_may_run_ahead: bool) -> Vec<VerdictNote> {
        let mut notes: Vec<VerdictNote> = self
            .notes
            .all(self.accounting.listed(), self.unrecorded_share())
            .collect();
        notes.extend(self.nothing_analysed());
        // Profiles bring timed collectives too, and their summary counts them.
        if self.detectors.functions.profiled.is_none() {
            notes.extend(self.timed_notes());
        }
        let steps = self.detectors.stages.tracker.ambiguous_steps();
        notes.extend((steps > 0).then_some(VerdictNote::AmbiguousSteps { steps }));
        notes.extend(self.device_wait_note(hosts_may_run_ahead));
        notes.extend(self.read_back_notes());
        let devices = &self.detectors.stages.devices;
        notes.extend(
            devices
                .issues_unseen()
                .then_some(VerdictNote::DeviceIssuesUnseen),
        );
        notes.extend(devices.differ().then_some(VerdictNote::DevicesDiffer));
        let ranks = self.uncompared_ranks();
        let have_roles = !ranks.is_empty() && self.source.has_marks();
        notes.extend(have_roles.then_some(VerdictNote::Uncompared { ranks }));
        notes.extend(
            self.unlike_devices()
                .into_iter()
                .map(VerdictNote::UnlikeDevice),
        );
        notes.extend(
            self.detectors
                .pipelines
                .are_unseen()
                .then_some(VerdictNote::BlocksUnseen),
        );
        let logs = self
            .detectors
            .calls
            .logs()
            .into_iter()
            .flat_map(pipeline_notes);
        notes.extend(logs.map(VerdictNote::Calls));
        let ranks: Vec<u32> = self.streams.losers().collect();
        if !ranks.is_empty() {
            notes.push(VerdictNote::LostRecords {
                records: self.streams.lost(),
                ranks,
            });
        }
        notes
    }

    /// Why no window was analysed, if none was and nothing else says so.
    fn nothing_analysed(&self) -> Option<VerdictNote> {
        if self.placement.seen().is_empty() {
            let is_known = self.detectors.collectives.hangs.has_spoken()
                || self.detectors.calls.has_requests()
                || matches!(self.source, Source::Log | Source::Snapshot);
            return (!is_known).then_some(VerdictNote::NoTraining);
        }
        let is_due = self.accounting.steps() == 0.0
            && self.detectors.functions.profiled.is_none()
            && self.source.has_steps();
        is_due.then(|| VerdictNote::NoWindow {
            steps: self.steps(),
            ranks: self.ranks(),
            warmup_steps: self.settings.window.warmup_steps.into(),
            min_steps: self.settings.window.min_steps as u64,
        })
    }

    /// What was compared of timed collectives, and where logs end.
    fn timed_notes(&self) -> Vec<VerdictNote> {
        let collectives = self.detectors.timed.arrivals.compared();
        let is_timed = self.source == Source::Inspector || collectives > 0;
        let compared = is_timed.then_some(VerdictNote::CollectivesCompared { collectives });
        let ends = self
            .detectors
            .timed
            .arrivals
            .ends()
            .into_iter()
            .take(MAX_ENDS);
        let ends = ends.map(|(group, op, last, ends)| VerdictNote::LogsEndEarlier {
            op,
            group,
            last,
            first: ends.values().min().copied().unwrap_or(0),
            ranks: ends.into_keys().collect(),
        });
        compared.into_iter().chain(ends).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_without_a_whole_step_says_nothing_of_arrivals() {
        let block = model::Block {
            boundaries: [].into(),
            groups: None,
            steps: Vec::new(),
            durations_s: Vec::new(),
            ranks: 2,
            carried: 0,
        };
        let window = Window {
            blocks: Vec::new(),
            ..block.into()
        };
        let mut notes = Notes::default();
        notes.count_arrivals(&window);
        assert_eq!(notes.all(1, 0.0).count(), 0);
    }

    #[test]
    fn of_any_number_of_notes_the_first_are_kept() {
        let mut notes = Notes::default();
        for number in 0..2 * MAX_SAID as u64 {
            notes.say(VerdictNote::Source(SourceNote::ProbeFaults(number)));
        }
        assert_eq!(notes.all(0, 0.0).count(), MAX_SAID);
    }
}
