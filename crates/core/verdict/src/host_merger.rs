use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use model::{Announcement, Batch, Input, RankNs, Source, VerdictNote};

use crate::{Job, Remember, Settings, Suspicion, WantedProfile, WindowRecord};

/// How far the others go on before a host that is behind is waited for no more: its agent
/// has much to catch up with, and what is held back for it takes memory.
const MOST_BEHIND_S: f64 = 15.0;
/// More than a host of eight ranks tells in the half second between its batches.
const USUALLY_QUEUED: usize = 512;
/// What hosts have to look where ranks of a job that stands still are.
const STACKS_WITHIN_S: f64 = Suspicion::Standstill.rule().lasts_s;
/// What an order of a profile window takes to reach all hosts: they ask for it once a second, and
/// what is known of their steps is as old.
const ORDER_AHEAD_S: f64 = 4.0;

/// A job reported by several hosts, each in batches.
///
/// What hosts report is put into the order of its times: whether a job stands still can be
/// said only up to where every host has spoken.
///
/// # Properties
/// A job of one host receives exactly what the host reports, at once and in its order. The same
/// batches in the same order give the same verdict.
#[derive(Debug)]
pub struct HostMerger {
    job: Job,
    hosts: Vec<Host>,
    places: BTreeMap<String, usize>,
    /// The first time in each queue that is not empty.
    heads: BTreeSet<(RankNs, usize)>,
    /// Up to where each host has spoken, and those that are waited for.
    reached: BTreeSet<(RankNs, usize)>,
    waited: BTreeSet<(RankNs, usize)>,
    start: Start,
    /// Since when stacks are wanted.
    asked_at: Option<RankNs>,
    /// The profile window that hosts are asked for until they have come to it.
    profile: Option<WantedProfile>,
    /// Steps in which hosts should have all devices marked.
    device_steps: Option<Range<u32>>,
    profile_asked_at: Option<RankNs>,
}

/// Which start of the job something is about: a new agent after the last one deregistered,
/// then the launcher's own restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Start {
    run: u32,
    attempt: u32,
}

#[derive(Debug, Default)]
struct Host {
    session: String,
    /// What is held back; nothing where its next agent begins after the last deregistered.
    queue: VecDeque<(RankNs, Option<Input>)>,
    /// The latest time in the queue so far.
    at: RankNs,
    watermark: RankNs,
    start: Start,
    ended: bool,
    silent: bool,
    /// Restarts of the launcher it reported.
    attempt: u32,
    /// What was reported of its ranks by all its agents since the last deregistered.
    reported: BTreeMap<u32, ReportedRank>,
    /// Of ranks that an agent that was started anew reports again, what was reported before it.
    again: BTreeMap<u32, Again>,
    /// Its ranks in the profile window under way.
    profiled: Vec<u32>,
}

/// What was reported of a rank's process.
#[derive(Clone, Copy, Debug, Default)]
struct ReportedRank {
    names: usize,
    /// Marks, and records that were lost.
    records: u64,
    /// Time of the last mark.
    at: RankNs,
    left: bool,
}

/// A rank that is reported again, from the oldest mark that its ring has.
#[derive(Clone, Copy, Debug)]
struct Again {
    /// What was reported before, less the names that were reported again.
    before: ReportedRank,
    /// Records that its ring had before the next.
    passed: u64,
}

impl HostMerger {
    /// A job nothing is known of yet.
    pub fn new(id: &str, settings: Settings) -> Self {
        Self {
            job: Job::new(id, Source::Run, settings),
            hosts: Vec::new(),
            places: BTreeMap::new(),
            heads: BTreeSet::new(),
            reached: BTreeSet::new(),
            waited: BTreeSet::new(),
            start: Start::default(),
            asked_at: None,
            profile: None,
            device_steps: None,
            profile_asked_at: None,
        }
    }

    /// Begins to remember windows for [`HostMerger::take_records`].
    pub fn remember(&mut self, remember: Remember) {
        self.job.remember(remember);
    }

    /// The windows closed since the last call, as they are remembered.
    pub fn take_records(&mut self) -> Vec<WindowRecord> {
        self.job.take_records()
    }

    /// The job as far as it was reported.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Hosts that have reported anything.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Hosts that have not been heard of for long and did not deregister.
    pub fn silent_hosts(&self) -> Vec<&str> {
        let places = self.places.iter().filter(|(_, at)| self.hosts[**at].silent);
        places.map(|(name, _)| name.as_str()).collect()
    }

    /// Whether a host has deregistered.
    pub fn has_left(&self, host: &str) -> bool {
        self.places
            .get(host)
            .is_some_and(|place| self.hosts[*place].ended)
    }

    /// Whether every host has deregistered.
    pub fn ended(&self) -> bool {
        !self.hosts.is_empty() && self.hosts.iter().all(|host| host.ended)
    }

    /// Takes the next batch of a host.
    pub fn take(&mut self, batch: Batch) {
        let Batch {
            host,
            session,
            shift_ns,
            watermark,
            last,
            inputs,
            ..
        } = batch;
        let new = self.hosts.len();
        let place = *self.places.entry(host).or_insert(new);
        if place == new {
            let start = Start {
                // A host that joins late belongs to the present run, not to an earlier one.
                run: self.start.run,
                attempt: 0,
            };
            self.hosts.push(Host {
                session: session.clone(),
                start,
                ..Host::default()
            });
        }
        let sender = &mut self.hosts[place];
        if sender.session != session {
            sender.session = session;
            sender.begin_anew();
        }
        for mut input in inputs {
            input.shift(shift_ns);
            sender.take(input);
        }
        let before = sender.watermark;
        sender.watermark = RankNs(watermark.0.saturating_add_signed(shift_ns));
        (sender.ended, sender.silent) = (last, false);
        // Both sets are sorted by watermark, so that an entry moves by being taken out and put
        // back.
        self.reached.remove(&(before, place));
        self.waited.remove(&(before, place));
        self.reached.insert((sender.watermark, place));
        // Who has deregistered has no more to say.
        if !last {
            self.waited.insert((sender.watermark, place));
        }
        if let Some((at, _)) = sender.queue.front() {
            // The first time of a queue changes only in `release`: a place that is in here stays as
            // it is.
            self.heads.insert((*at, place));
        }
        self.release(self.watermark());
        self.stop_asking();
        self.want_profile();
    }

    /// Says that a host was not heard of for long: it is waited for no more until it is.
    pub fn lose(&mut self, host: &str) {
        let Some(place) = self.places.get(host) else {
            return;
        };
        let host_lost = &mut self.hosts[*place];
        host_lost.silent = true;
        self.waited.remove(&(host_lost.watermark, *place));
        let ranks = std::mem::take(&mut host_lost.profiled);
        self.job.note(VerdictNote::HostUnheard {
            host: host.to_owned(),
        });
        // Nor is it waited for with what a profile of its ranks shows.
        if !ranks.is_empty() {
            self.job.take(Input::ProfileEnded { ranks });
        }
        self.release(self.watermark());
    }

    /// The job alone.
    pub fn into_job(self) -> Job {
        self.job
    }

    /// Ends the job: what was held back is released, what is open is closed.
    pub fn finish(&mut self) {
        self.release(RankNs(u64::MAX));
        self.job.finish();
    }

    /// Ranks whose stacks would help to say why the job does not move.
    pub fn wanted_stacks(&self) -> Vec<u32> {
        self.job.wanted_stacks()
    }

    /// The profile window that hosts should order of their ranks.
    pub fn wanted_profile(&self) -> Option<&WantedProfile> {
        self.profile.as_ref()
    }

    /// Steps in which hosts should have the devices of their ranks marked.
    pub fn wanted_device_steps(&self) -> Option<&Range<u32>> {
        self.device_steps.as_ref()
    }

    /// What was announced since the last call, for people who watch.
    pub fn take_announcements(&mut self) -> Vec<Announcement> {
        self.job.take_announcements()
    }

    fn furthest(&self) -> RankNs {
        self.reached
            .last()
            .map_or(RankNs::default(), |(watermark, _)| *watermark)
    }

    /// The time up to which every host that is waited for has spoken.
    fn watermark(&self) -> RankNs {
        let furthest = self.furthest();
        let mut waited = self.waited.iter().map(|(watermark, _)| *watermark);
        let first = waited.find(|watermark| furthest.seconds_since(*watermark) <= MOST_BEHIND_S);
        // Nobody is waited for: all that is held back may go out.
        first.unwrap_or(RankNs(u64::MAX))
    }

    fn release(&mut self, watermark: RankNs) {
        while let Some(head) = self.heads.first().copied()
            && head.0 <= watermark
        {
            self.heads.remove(&head);
            let (_, place) = head;
            // Up to where the next host has something to tell.
            let next = self
                .heads
                .first()
                .map_or(watermark, |(at, _)| watermark.min(*at));
            while self.hosts[place].head().is_some_and(|at| at <= next) {
                if let Some((_, input)) = self.hosts[place].queue.pop_front() {
                    self.tell(place, input);
                }
            }
            let Some(at) = self.hosts[place].head() else {
                // One that had much to catch up with must not keep the room for ever.
                let queue = &mut self.hosts[place].queue;
                if queue.capacity() > USUALLY_QUEUED {
                    queue.shrink_to(0);
                }
                continue;
            };
            self.heads.insert((at, place));
        }
    }

    fn tell(&mut self, place: usize, input: Option<Input>) {
        let Start { run, attempt } = self.hosts[place].start;
        match input {
            None => self.restart(
                place,
                Start {
                    run: run.saturating_add(1),
                    attempt: 0,
                },
                0,
            ),
            Some(Input::Restart { attempt: known }) => {
                let attempt = if known == 0 {
                    attempt.saturating_add(1)
                } else {
                    known
                };
                self.restart(place, Start { run, attempt }, known);
            }
            // Who has not spoken may well have moved.
            Some(Input::NoProgress { at } | Input::EndAsked { at })
                if self
                    .waited
                    .first()
                    .is_some_and(|(watermark, _)| *watermark < at) => {}
            // All that one host has; those of the others are yet to come.
            Some(Input::StacksComplete) if self.hosts.len() > 1 => {}
            // What is left of an earlier start, of ranks that are no more.
            Some(_) if self.hosts[place].start < self.start => {}
            Some(other) => {
                // If this host is lost, nobody waits for what a profile of these shows.
                if let Input::ProfileOrdered { ranks, .. } = &other {
                    self.hosts[place].profiled.clone_from(ranks);
                }
                self.job.take(other);
            }
        }
    }

    /// Starts the job over, unless another host has reported it before. `attempt` is as [`Input::Restart`] has it.
    fn restart(&mut self, place: usize, start: Start, attempt: u32) {
        // Also where another host came first: what this one sends from now on is of the new start.
        self.hosts[place].start = start;
        if start > self.start {
            self.start = start;
            self.job.take(Input::Restart { attempt });
            // Steps are counted anew: what was wanted of the last start would be asked for until this one
            // comes as far.
            (self.profile, self.device_steps) = (None, None);
        }
    }

    /// Reports a hang with the stacks that came. No host of several can say that they are all.
    fn stop_asking(&mut self) {
        // A single host says itself when its stacks are complete.
        if self.hosts.len() < 2 || self.job.wanted_stacks().is_empty() {
            self.asked_at = None;
            return;
        }
        let now = self.furthest();
        // By the clock of the hosts: the same batches give the same verdict whenever they arrive.
        let since = *self.asked_at.get_or_insert(now);
        if now.seconds_since(since) >= STACKS_WITHIN_S {
            self.job.take(Input::StacksComplete);
            // What is asked for next has its own time.
            self.asked_at = None;
        }
    }

    /// Asks hosts for a profile window of the suspects of the whole job, and for marks of devices, in
    /// time for all of them.
    fn want_profile(&mut self) {
        let (now, step) = (self.furthest(), self.job.step());
        self.device_steps.take_if(|wanted| step >= wanted.start);
        if self.device_steps.is_none() {
            self.device_steps = self.job.wanted_device_steps(now, ORDER_AHEAD_S);
        }
        // Hosts are asked until the job has come to it: an answer may be lost on the way.
        self.profile.take_if(|wanted| step >= wanted.first_step);
        let settings = self.job.settings.profile.clone();
        // The job counts only windows that a host has begun. An order that no host carries out must
        // not be repeated at once either.
        if self.profile.is_some()
            || self
                .profile_asked_at
                .is_some_and(|asked| now.seconds_since(asked) < settings.every_s)
        {
            return;
        }
        let Some(ranks) = self.job.wanted_profile(now) else {
            return;
        };
        let usual_s = self.job.usual_step_s();
        self.profile = Some(settings.window(ranks, step, usual_s, ORDER_AHEAD_S));
        self.profile_asked_at = Some(now);
    }
}

impl Host {
    /// When what it reports next happened.
    fn head(&self) -> Option<RankNs> {
        self.queue.front().map(|(at, _)| *at)
    }

    /// Another agent begins. If the last deregistered the job was started anew, else what the rings
    /// still have is reported again.
    fn begin_anew(&mut self) {
        if self.ended {
            self.queue.push_back((self.at, None));
            // A new start of the job has new rings, of which nothing was reported.
            (self.attempt, self.reported) = (0, BTreeMap::new());
        }
        let before = self
            .reported
            .iter()
            .map(|(rank, reported)| (*rank, *reported));
        self.again = before
            .map(|(rank, before)| (rank, Again { before, passed: 0 }))
            .collect();
    }

    /// Takes an input, unless it was reported before.
    fn take(&mut self, input: Input) {
        match &input {
            Input::Restart { attempt } => {
                // An agent that was started anew reads the same restart again. One without a number
                // cannot be recognised.
                if *attempt > 0 && *attempt == self.attempt {
                    return;
                }
                self.attempt = *attempt;
                self.reported.clear();
                self.again.clear();
            }
            Input::Name { rank, .. } => {
                if let Some(Again { before, .. }) = self.again.get_mut(rank)
                    && before.names > 0
                    && !before.left
                {
                    // A process tells its names in one order: the first so many are known.
                    before.names -= 1;
                    return;
                }
                self.reported(*rank).names += 1;
            }
            Input::Lost { rank, records } => {
                if let Some(again) = self.again.get_mut(rank) {
                    // Most of these were reported before as marks. What is new of them is known at
                    // the next new mark.
                    again.passed = again.passed.saturating_add(*records);
                    return;
                }
                let reported = self.reported(*rank);
                reported.records = reported.records.saturating_add(*records);
            }
            Input::Mark { rank, mark } => {
                if let Some(again) = self.again.get_mut(rank) {
                    if again.has(mark.at) {
                        return;
                    }
                    self.end_again(*rank);
                }
                self.reported(*rank).mark(mark.at);
            }
            Input::Left { rank, .. } => {
                self.end_again(*rank);
                self.reported(*rank).left = true;
            }
            _ => {}
        }
        self.push(input);
    }

    /// What was reported of the process that has the rank now.
    fn reported(&mut self, rank: u32) -> &mut ReportedRank {
        let reported = self.reported.entry(rank).or_default();
        if reported.left {
            *reported = ReportedRank {
                at: reported.at,
                ..ReportedRank::default()
            };
        }
        reported
    }

    /// What comes from now on of a rank is new, but for records that were lost while no agent
    /// read its ring.
    fn end_again(&mut self, rank: u32) {
        let Some(Again { before, passed }) = self.again.remove(&rank) else {
            return;
        };
        let records = passed.saturating_sub(before.records);
        if records > 0 {
            let reported = self.reported(rank);
            reported.records = reported.records.saturating_add(records);
            self.push(Input::Lost { rank, records });
        }
    }

    fn push(&mut self, input: Input) {
        // What has no time, or an earlier one, keeps its place: times of a queue never go back, for
        // what is released goes by the first.
        self.at = self.at.max(input.at().unwrap_or_default());
        self.queue.push_back((self.at, Some(input)));
    }
}

impl ReportedRank {
    fn mark(&mut self, at: RankNs) {
        self.records = self.records.saturating_add(1);
        self.at = self.at.max(at);
    }
}

impl Again {
    /// Whether the next mark was reported before. Times say so even where an agent reports more marks
    /// than the ring has; those of one time are distinguished by their number.
    fn has(&mut self, at: RankNs) -> bool {
        let ReportedRank {
            at: last, records, ..
        } = self.before;
        let was_reported = at < last || at == last && self.passed < records;
        self.passed += u64::from(was_reported);
        was_reported
    }
}

#[cfg(test)]
mod tests;
