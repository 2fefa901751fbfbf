//! Profile windows: ordered in the mailboxes of ranks, read once they are written, never kept.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use std::{fs, thread};

use formats::load_window;
use model::{Input, ProfileNote, ProfileWindow, SourceNote, Unrecorded};
use pattern::PatternSettings;
use ring::{
    ProfileAnswer, ProfileController, ProfileOrder, ProfileState, RankState, RingDirectory,
    RingError,
};
use verdict::{ProfileSettings, Settings, WantedProfile};

use crate::probes::{Probes, Used, wall_ns};

/// Times it should take, and seconds beside, after which ranks that did not answer are given up.
const PATIENCE: f64 = 10.0;
const PATIENCE_S: f64 = 30.0;
/// Seconds of a step where none is known yet.
const UNKNOWN_STEP_S: f64 = 1.0;
/// How much sooner than the settings say an order of all hosts may come: what it takes to reach
/// them differs.
const EARLY_S: f64 = 10.0;
/// How far ahead the first step of such an order may be.
const AHEAD_S: f64 = 60.0;

/// The profile windows of one job on this host.
#[derive(Debug, Default)]
pub(crate) struct Profiles {
    orders: u32,
    ordered_at: Option<Instant>,
    traces: Option<PathBuf>,
    under_way: Option<OrderedWindow>,
    reading: Option<Receiver<Input>>,
}

#[derive(Debug)]
struct OrderedWindow {
    order: ProfileOrder,
    ranks: BTreeMap<u32, OrderedRank>,
    until: Instant,
}

/// A rank that was given an order.
#[derive(Debug)]
struct OrderedRank {
    pid: u32,
    controller: ProfileController,
    /// When it was first seen to record, by the wall clock in nanoseconds.
    recorded_ns: Option<u64>,
    /// What it used since then.
    used: Used,
    answer: ProfileAnswer,
    /// Whether its process was gone when it was looked at last.
    has_ended: bool,
}

/// A trace that is written.
struct WrittenTrace {
    rank: u32,
    path: PathBuf,
    used: Used,
    answer: ProfileAnswer,
}

impl Profiles {
    /// Whether a window is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.under_way.is_some() || self.reading.is_some()
    }

    /// Holds an order that comes from elsewhere, to what this host allows; `step`
    /// is the one its ranks are in. If that leaves nothing it says why.
    pub(crate) fn allow(
        &self,
        mut wanted: WantedProfile,
        settings: &ProfileSettings,
        step: u32,
        usual_step_s: Option<f64>,
        now: Instant,
    ) -> Result<WantedProfile, ProfileNote> {
        let since_s = self
            .ordered_at
            .map(|at| now.duration_since(at).as_secs_f64());
        if let Some(since_s) = since_s
            && since_s < settings.every_s - EARLY_S
        {
            return Err(ProfileNote::TooSoon(since_s.round() as u64));
        }
        let ahead = f64::from(wanted.first_step.saturating_sub(step));
        if ahead * usual_step_s.unwrap_or(UNKNOWN_STEP_S) > AHEAD_S {
            return Err(ProfileNote::TooFar(wanted.first_step));
        }
        // Settings may say 0, and `clamp` panics where the most is below the least.
        wanted.steps = wanted.steps.clamp(1, settings.max_steps.max(1));
        wanted.limit_ms = wanted.limit_ms.min((settings.max_s * 1e3) as u32);
        Ok(wanted)
    }

    /// Orders a window in the mailboxes of its ranks; what to tell the analysis, or why it cannot
    /// be.
    pub(crate) fn order(
        &mut self,
        directory: &RingDirectory,
        ranks: &[RankState],
        wanted: &WantedProfile,
        usual_step_s: Option<f64>,
    ) -> Input {
        if let Err(error) = self.make_traces(directory) {
            return note(ProfileNote::NoFolder(error.to_string()));
        }
        let (mut ordered_ranks, mut step) = (BTreeMap::new(), 0);
        for rank in ranks
            .iter()
            .filter(|rank| wanted.ranks.contains(&rank.rank))
        {
            let Some(at) = rank.step else { continue };
            // By the first version's name of a mailbox: ranks may be of another build.
            let Ok(controller) = ProfileController::open(&rank.ring.with_extension("desk")) else {
                continue;
            };
            step = step.max(at);
            let ordered = OrderedRank {
                pid: rank.pid,
                controller,
                recorded_ns: None,
                used: Used::default(),
                answer: ProfileAnswer::default(),
                has_ended: false,
            };
            ordered_ranks.insert(rank.rank, ordered);
        }
        if ordered_ranks.is_empty() {
            return note(ProfileNote::NoMailbox);
        }
        // Ranks answer by this number: what they said to an earlier order does not count.
        self.orders += 1;
        self.ordered_at = Some(Instant::now());
        let WantedProfile {
            first_step,
            steps,
            limit_ms,
            ..
        } = *wanted;
        let order = ProfileOrder {
            number: self.orders,
            first_step,
            steps,
            limit_ms,
        };
        for ordered in ordered_ranks.values() {
            ordered.controller.order(order);
        }
        let ordered = ordered_ranks.keys().copied().collect();
        let ahead = first_step.saturating_sub(step).saturating_add(steps);
        let lasts_s = usual_step_s.unwrap_or(UNKNOWN_STEP_S) * f64::from(ahead);
        let patience_s = PATIENCE * lasts_s + PATIENCE_S;
        self.under_way = Some(OrderedWindow {
            order,
            ranks: ordered_ranks,
            // Bounded, as a step far ahead would be too long for an `Instant`.
            until: Instant::now() + Duration::from_secs_f64(patience_s.min(1e6)),
        });
        Input::ProfileOrdered {
            ranks: ordered,
            first_step,
            steps,
        }
    }

    fn make_traces(&mut self, directory: &RingDirectory) -> Result<(), RingError> {
        if self.traces.is_none() {
            self.traces = Some(directory.make_traces(&std::env::temp_dir())?);
        }
        Ok(())
    }

    /// Looks how far ranks have come, and gives `take` what was recorded. `is_alive` says
    /// whether a process still runs.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        settings: &Settings,
        probes: &Probes,
        is_alive: impl Fn(u32) -> bool,
        take: &mut dyn FnMut(Input),
    ) {
        if let Some(under_way) = &mut self.under_way
            && (under_way.look(probes, &is_alive) || now >= under_way.until)
        {
            self.end(settings, take);
        }
        let Some(reading) = &self.reading else { return };
        while let Ok(input) = reading.try_recv() {
            let over = matches!(input, Input::ProfileEnded { .. });
            take(input);
            if over {
                self.reading = None;
                return;
            }
        }
    }

    /// Takes what is written; for the end of the job, when no rank runs any more.
    pub(crate) fn finish(
        mut self,
        settings: &Settings,
        probes: &Probes,
        take: &mut dyn FnMut(Input),
    ) {
        if let Some(under_way) = &mut self.under_way {
            // No rank runs any more: what is not written never will be.
            under_way.look(probes, &|_| false);
            self.end(settings, take);
        }
        // Waits until the last trace is read: the final verdict should have what it shows.
        for input in self.reading.into_iter().flatten() {
            take(input);
        }
    }

    /// Ends the window under way: tells who was not recorded, and reads what the others wrote.
    fn end(&mut self, settings: &Settings, take: &mut dyn FnMut(Input)) {
        let Some(under_way) = self.under_way.take() else {
            return;
        };
        let ranks = under_way.ranks.keys().copied().collect();
        let (written, refused) = under_way.written();
        refused.into_iter().for_each(take);
        self.reading = Some(read(ranks, written, settings));
    }
}

impl OrderedWindow {
    /// Asks the ranks; whether all have said their last word.
    fn look(&mut self, probes: &Probes, is_alive: &impl Fn(u32) -> bool) -> bool {
        let mut over = true;
        for ordered in self.ranks.values_mut() {
            ordered.answer = ordered.controller.answer(self.order.number);
            let state = ordered.answer.state;
            // Taken at each look: the kernel's samples of the process are gone once it has ended.
            if state == ProfileState::Recording {
                let since_ns = *ordered.recorded_ns.get_or_insert_with(wall_ns);
                ordered.used = probes.since(ordered.pid, since_ns);
            }
            ordered.has_ended = !is_alive(ordered.pid);
            over &= state.is_final() || ordered.has_ended;
        }
        over
    }

    /// What is written, and why the rest is not.
    fn written(self) -> (Vec<WrittenTrace>, Vec<Input>) {
        let number = self.order.number;
        let (mut written, mut refused, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        for (
            rank,
            OrderedRank {
                controller,
                used,
                answer,
                has_ended,
                ..
            },
        ) in self.ranks
        {
            let why = match answer.state {
                ProfileState::Written => {
                    let path = controller.trace_path(number);
                    written.push(WrittenTrace {
                        rank,
                        path,
                        used,
                        answer,
                    });
                    continue;
                }
                ProfileState::Refused => Unrecorded::Busy,
                ProfileState::Failed => Unrecorded::Failed,
                ProfileState::Missed => Unrecorded::Late,
                // Most jobs end in some window: what they did not record is no fault.
                ProfileState::Waiting | ProfileState::Recording if has_ended => {
                    ended.push(rank);
                    continue;
                }
                ProfileState::Waiting => Unrecorded::NotBegun,
                ProfileState::Recording => Unrecorded::NotEnded,
            };
            refused.push(note(ProfileNote::Unrecorded { rank, why }));
        }
        if !ended.is_empty() {
            refused.push(note(ProfileNote::Ended(ended)));
        }
        (written, refused)
    }
}

/// Reads the traces of a window of `ranks` in a thread, one by one, and removes them.
fn read(ranks: Vec<u32>, written: Vec<WrittenTrace>, settings: &Settings) -> Receiver<Input> {
    let (sender, inputs) = channel();
    let settings = settings.pattern.clone();
    // Not here: a trace takes up to seconds to read, and rings must be drained meanwhile.
    thread::spawn(move || {
        for written in written {
            let path = written.path.clone();
            let input = written.load(&settings);
            remove(&path);
            if sender.send(input).is_err() {
                return;
            }
        }
        // Nobody listens any more if it fails.
        drop(sender.send(Input::ProfileEnded { ranks }));
    });
    inputs
}

impl WrittenTrace {
    /// Reads the trace; returns what the analysis takes of it.
    fn load(self, settings: &PatternSettings) -> Input {
        let Self {
            rank,
            path,
            used,
            answer,
        } = self;
        match load_window(&path, used.counters, settings) {
            Ok(window) => {
                let stall_ns = answer.start_ns.saturating_add(answer.stop_ns);
                let window = Box::new(ProfileWindow {
                    steps: answer.recorded_steps,
                    stall_s: stall_ns as f64 * 1e-9,
                    write_s: answer.write_ns as f64 * 1e-9,
                    without_core_share: used.without_core_share,
                    ..window
                });
                Input::Profiled { rank, window }
            }
            Err(error) => note(ProfileNote::Unread {
                rank,
                error: error.to_string(),
            }),
        }
    }
}

fn note(note: ProfileNote) -> Input {
    Input::Note(SourceNote::Profile(note))
}

/// Removes a trace; one that resists goes with its directory.
fn remove(path: &Path) {
    drop(fs::remove_file(path));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_from_elsewhere_are_held_to_what_the_host_allows() {
        let settings = ProfileSettings::default();
        let wanted = |first_step, steps, limit_ms| WantedProfile {
            ranks: vec![0],
            first_step,
            steps,
            limit_ms,
        };
        let now = Instant::now();
        let mut profiles = Profiles::default();
        let allow = |profiles: &Profiles, wanted, now| {
            profiles.allow(wanted, &settings, 100, Some(0.5), now)
        };
        let usual = wanted(110, 10, 20_000);
        assert_eq!(allow(&profiles, usual.clone(), now), Ok(usual.clone()));
        let greedy = wanted(110, u32::MAX, u32::MAX);
        assert_eq!(allow(&profiles, greedy, now), Ok(usual.clone()));
        let far = allow(&profiles, wanted(u32::MAX, 1, 1), now);
        assert_eq!(far, Err(ProfileNote::TooFar(u32::MAX)));
        // One after the other, as who wants to slow training down would order them.
        profiles.ordered_at = Some(now);
        for (after_s, is_allowed) in [(0, false), (300, false), (589, false), (591, true)] {
            let at = now + Duration::from_secs(after_s);
            assert_eq!(
                allow(&profiles, usual.clone(), at).is_ok(),
                is_allowed,
                "{after_s}"
            );
        }
    }
}
