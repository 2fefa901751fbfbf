//! What a dead job has printed: lines of PyTorch's NCCL watchdog, of launchers and of NCCL itself, among
//! whatever else.
//!
//! Ranks print how many collectives of a group they have enqueued and how many have completed when
//! one of them times out. A log is partial and unordered: who printed first proves nothing, and of a
//! rank that printed nothing nothing is known.
//!
//! # Source
//! `ProcessGroupNCCL.cpp` of PyTorch 1.12 to 2.15, `torch/distributed/elastic`; docs/formats.md shows
//! the lines, and what was read of logs of other people's jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead};
use std::ops::RangeInclusive;

use model::{InFlight, Input, PrintedNote, SourceNote};

mod cause;
mod deaths;
mod ended;
mod group;
mod labels;
mod nccl;
mod notes;
mod record;
mod said;
mod start;
mod traceback;

use cause::Whose;
use ended::Summary;
use group::{LoggedGroup, LoggedRank};
use labels::Labels;
use nccl::Warnings;
use record::Records;
use said::{
    Fingerprint, GroupRank, Progress, Said, Work, actor, gave_up, printed_by, quotes, said,
};
use start::{AwaitedId, CameToStart};
use traceback::{Frames, Tracebacks, of_worker};

/// Bytes of a line that are looked at: the watchdog's have some hundreds.
const MAX_LINE_BYTES: usize = 1 << 16;
/// Control characters that no terminal takes: beside a zero they show that a file is no text.
const IN_NO_TEXT: RangeInclusive<u8> = 1..=6;
/// What a hole in a log is compared with.
const ZEROS: [u8; 1 << 12] = [0; 1 << 12];
/// Number of a collective from which no two groups have come as far by chance.
const FAR: u64 = 1000;
/// How many of each kind a note lists at most: errors, addresses, timeouts of a rank.
const MAX_NOTED: usize = 8;

/// A log of one rank or of several.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchdogLog {
    groups: BTreeMap<String, LoggedGroup>,
    /// The rank that writes it, if it is known to be of one alone.
    owner: Option<u32>,
    /// All ranks that printed anything.
    ranks: BTreeSet<u32>,
    /// Those whose lines say so.
    printers: BTreeSet<u32>,
    /// Ranks of the largest communicator that NCCL says it has made, 0 if it says of none.
    size: u32,
    tracebacks: Tracebacks,
    labels: Labels,
    /// In the traceback that a rank prints.
    frames: BTreeMap<u32, Frames>,
    /// What timed out on a rank, as long as no line has named its group.
    timeouts: BTreeMap<u32, BTreeSet<Work>>,
    /// Whether something timed out on a rank that no line names.
    timed_out_somewhere: bool,
    /// What raised on a rank of its own.
    errors: BTreeMap<u32, (String, Whose)>,
    /// The same on a rank that no line names.
    error_somewhere: Option<String>,
    /// Ranks that gave up a collective, by what others print.
    gave_up: BTreeSet<u32>,
    /// Whether lines are left out that several processes printed.
    leaves_out: bool,
    /// By a rank, the one whose traceback it prints.
    quoted: BTreeMap<u32, u32>,
    /// The class of Ray's actors that printed the last line, and of those that were first to.
    actor: Option<String>,
    first_actor: Option<String>,
    /// Whether there are others, whose ranks are those of another job.
    is_of_several: bool,
    /// Ranks that gloo kept waiting for too long, and the line of the script that each waited in.
    in_gloo: BTreeMap<u32, Option<String>>,
    /// Ranks that raised an error that follows from another rank's.
    following: BTreeSet<u32>,
    /// Ranks whose watchdog does not get on itself.
    stuck: BTreeSet<u32>,
    differing: Vec<[Fingerprint; 2]>,
    /// What each rank was last about to do, where PyTorch prints each call.
    calls: BTreeMap<u32, Work>,
    /// Ranks, as their group counts them, that did not come to a `monitored_barrier`.
    missed_barrier: BTreeSet<u32>,
    /// The same, by PyTorch's report of a desync.
    never_joined: BTreeSet<u32>,
    awaited_ids: BTreeSet<AwaitedId>,
    /// Ranks that came to make the group of all ranks, and how often each printed the same.
    came_to_start: BTreeMap<u32, (CameToStart, u32)>,
    shared_gpus: BTreeSet<([u32; 2], String)>,
    /// Models that DDP found to be unlike.
    unlike_models: Option<[(u32, u64); 2]>,
    lost_peers: BTreeSet<String>,
    warnings: Warnings,
    mismatched: BTreeSet<u32>,
    summary: Summary,
    earlier_starts: u64,
}

/// What the logs of a job gave.
pub(crate) struct Reported {
    /// The next number that is free for a group.
    pub(crate) group: u32,
    /// Whether a rank has ended for a reason of its own: what others wait in follows from it.
    pub(crate) has_death: bool,
}

impl WatchdogLog {
    /// Reads a log; `None` if none of them has printed anything. `owner` is the rank whose lines are
    /// those that say nothing of theirs.
    ///
    /// # Errors
    /// What the reader says.
    pub(crate) fn read(mut reader: impl BufRead, owner: Option<u32>) -> io::Result<Option<Self>> {
        let mut log = Self {
            owner,
            ..Self::default()
        };
        let mut line = Vec::new();
        let mut records = Records::default();
        loop {
            let block = reader.fill_buf()?;
            if block.is_empty() {
                break;
            }
            // A progress bar prints over itself.
            let end = memchr::memchr2(b'\n', b'\r', block);
            let part = &block[..end.unwrap_or(block.len())];
            // Does not underflow: no more than the room there is gets appended.
            let room = MAX_LINE_BYTES - line.len();
            if memchr::memchr(0, part).is_none() {
                line.extend_from_slice(&part[..part.len().min(room)]);
            } else if part
                .chunks(ZEROS.len())
                .all(|chunk| *chunk == ZEROS[..chunk.len()])
            {
                // Nothing of a hole is text. It may be the whole of a file of any size.
            } else if part.iter().any(|byte| IN_NO_TEXT.contains(byte)) {
                // Whatever this is need not be read to its end.
                break;
            } else {
                // A log that was cut while it was written to, or on NFS, has holes of zeros.
                line.extend(part.iter().filter(|byte| **byte != 0).take(room));
            }
            let read = part.len() + usize::from(end.is_some());
            reader.consume(read);
            if end.is_some() {
                let text = String::from_utf8_lossy(&line);
                log.labels.take(&text);
                records.line(&text, &mut |record| log.take(record));
                line.clear();
            }
        }
        // What a log was cut off in may end in half a number.
        let text = String::from_utf8_lossy(&line);
        let whole = text.trim_end_matches(|c: char| c.is_ascii_digit());
        log.labels.take(whole);
        records.line(whole, &mut |record| log.take(record));
        records.end(&mut |record| log.take(record));
        log.end();
        Ok((!log.is_empty() || log.earlier_starts > 0).then_some(log))
    }

    fn is_empty(&self) -> bool {
        self.groups.is_empty()
            && self.timeouts.is_empty()
            && !self.timed_out_somewhere
            && self.errors.is_empty()
            && self.error_somewhere.is_none()
            && self.following.is_empty()
            && self.ranks.is_empty()
            && self.stuck.is_empty()
            && self.differing.is_empty()
            && self.calls.is_empty()
            && self.missed_barrier.is_empty()
            && self.never_joined.is_empty()
            && self.awaited_ids.is_empty()
            && self.came_to_start.is_empty()
            && self.shared_gpus.is_empty()
            && self.unlike_models.is_none()
            && self.lost_peers.is_empty()
            && self.warnings.is_empty()
            && self.mismatched.is_empty()
            && self.summary.is_empty()
    }

    /// Takes what processes ended with of which no line has the name of a rank.
    fn end(&mut self) {
        let labels = std::mem::take(&mut self.labels);
        let are_ranks = labels.are_ranks();
        for (rank, error, follows) in labels.ended_by() {
            match (are_ranks, follows) {
                (true, true) => self.take_said(Said::Follows(rank)),
                (true, false) => self.take_said(Said::of_error(rank, &error)),
                (false, false) if !self.is_empty() => {
                    self.take_said(Said::RaisedSomewhere(error));
                }
                (false, _) => {}
            }
        }
        let tracebacks = std::mem::take(&mut self.tracebacks);
        let Some((error, follows)) = tracebacks.ended_by() else {
            return;
        };
        match self.owner.or_else(|| self.unprefixed()) {
            Some(owner) if follows => self.take_said(Said::Follows(owner)),
            Some(owner) => self.take_said(Said::of_error(owner, &error)),
            // A traceback alone makes no log of a job.
            None if !follows && !self.is_empty() => self.take_said(Said::RaisedSomewhere(error)),
            None => {}
        }
    }

    /// The rank that an error is of which no line names, in a log of all: the only one that failed, if it
    /// printed nothing else. Before it has made its group PyTorch does not know its number.
    fn unprefixed(&self) -> Option<u32> {
        let failed = self.summary.only_failed().filter(|it| it.code == 1)?;
        let is_silent = self.errors.is_empty() && !self.printers.contains(&failed.rank);
        is_silent.then_some(failed.rank)
    }

    /// The ranks whose lines are in it, as far as these say so.
    pub(crate) fn printers(&self) -> &BTreeSet<u32> {
        // Before PyTorch 2.2 lines have only the place in a group.
        if self.printers.is_empty() && self.ranks.len() == 1 {
            &self.ranks
        } else {
            &self.printers
        }
    }

    fn take(&mut self, record: &str) {
        if self.summary.take(record) {
            // What the summary has by now is of the new start. If nothing else was read of the one
            // before, `start_anew` does not count it.
            let summary = std::mem::take(&mut self.summary);
            self.start_anew();
            self.earlier_starts = self.earlier_starts.max(1);
            self.summary = summary;
        }
        if let Some(class) = actor(record) {
            self.actor = Some(class.to_owned());
        }
        // Ray prints one of the lines that are alike.
        self.leaves_out |= record.contains("x across cluster]");
        self.gave_up.extend(gave_up(record));
        self.quoted.extend(quotes(record));
        match printed_by(record) {
            Some(rank) => {
                self.printers.insert(rank);
                self.frames.entry(rank).or_default().take(record);
            }
            // Behind its summary stands the launcher's own.
            None if self.owner.is_some() || self.summary.is_empty() => {
                self.tracebacks.take(record);
            }
            None => {}
        }
        if let Some(said) = said(record, self.owner) {
            self.take_said(said);
        }
    }

    fn take_said(&mut self, said: Said) {
        match said {
            Said::Restarts => self.start_anew(),
            Said::OfWatchdog(rank) => _ = self.ranks.insert(rank),
            Said::RaisedSomewhere(error) => _ = self.error_somewhere.get_or_insert(error),
            Said::TimedOutSomewhere => self.timed_out_somewhere = true,
            Said::Warned(warning) => self.warnings.take(warning),
            Said::Mismatched(rank) => _ = self.mismatched.insert(rank),
            Said::Communicates { ranks } => self.size = self.size.max(ranks),
            Said::Stuck(rank) => {
                self.ranks.insert(rank);
                self.stuck.insert(rank);
            }
            Said::AwaitedId { rank, awaited } => {
                self.ranks.extend(rank);
                self.following.extend(rank);
                self.awaited_ids.insert(awaited);
            }
            Said::CameToStart(came) => {
                self.came_to_start
                    .retain(|_, (it, _)| it.barrier == came.barrier);
                let known = self.came_to_start.get(&came.rank);
                let known = known.filter(|(it, _)| it.have_come == came.have_come);
                let times = known.map_or(0, |(_, times)| *times) + 1;
                self.came_to_start.insert(came.rank, (came, times));
            }
            Said::AllCame => self.came_to_start.clear(),
            Said::SharedGpu(ranks, device) => {
                if self.shared_gpus.len() < MAX_NOTED {
                    self.shared_gpus.insert((ranks, device));
                }
            }
            Said::UnlikeModels { rank, models } => {
                self.ranks.extend(rank);
                self.following.extend(rank);
                self.unlike_models.get_or_insert(models);
            }
            Said::LostPeer { rank, peer } => {
                self.following.extend(rank);
                if self.lost_peers.len() < MAX_NOTED {
                    self.lost_peers.insert(peer);
                }
            }
            Said::WaitedInGloo(rank) => {
                self.following.insert(rank);
                let line = self.frames.remove(&rank).and_then(Frames::line);
                self.in_gloo.insert(rank, line);
            }
            Said::Differ(both) => {
                self.ranks.extend(both.iter().map(|it| it.rank));
                if self.differing.len() < MAX_NOTED && !self.differing.contains(&both) {
                    self.differing.push(both);
                }
            }
            Said::Calls(called) => _ = self.calls.insert(called.rank, called.work),
            Said::MissedBarrier(ranks) => self.missed_barrier.extend(ranks),
            Said::NeverJoined(ranks) => self.never_joined.extend(ranks),
            Said::Follows(rank) => _ = self.following.insert(rank),
            Said::MayFollow { rank, error } => {
                let frames = self.frames.get(&rank).cloned().unwrap_or_default();
                self.take_said(if frames.follows(&error) {
                    Said::Follows(rank)
                } else {
                    Said::of_error(rank, &error)
                });
            }
            Said::Raised { rank, error, whose } => {
                let mut frames = self.frames.remove(&rank).unwrap_or_default();
                if frames.is_ignored() {
                    return;
                }
                let rank = self.quoted.remove(&rank).unwrap_or(rank);
                self.ranks.insert(rank);
                // Raised while that was handled.
                if whose == Whose::Process && self.following.contains(&rank) {
                    return;
                }
                let known = self.errors.get_mut(&rank);
                let of_worker =
                    known.and_then(|(known, _)| Some((of_worker(known, &error)?, known)));
                if let Some((error, known)) = of_worker {
                    *known = frames.of(error);
                } else if self.errors.len() < MAX_NOTED {
                    let error = || (frames.of(error), whose);
                    self.errors.entry(rank).or_insert_with(error);
                }
            }
            Said::CameTo {
                rank,
                group,
                progress,
            } => self.place(rank, group, progress),
            Said::TimedOut { rank, group, work } => {
                self.ranks.insert(rank);
                match group {
                    // Without a number, as before PyTorch 1.13, it does not say how far the rank
                    // came.
                    Some(group) if work.number > 0 => self.place_timeout(rank, group, &work),
                    _ => self.time_out(rank, work),
                }
            }
        }
    }

    fn time_out(&mut self, rank: u32, work: Work) {
        let is_placed = self
            .groups
            .values()
            .filter_map(|group| group.ranks.get(&rank))
            .any(|it| it.timed_out.as_ref() == Some(&work));
        if is_placed {
            return;
        }
        let works = self.timeouts.entry(rank).or_default();
        if works.len() < MAX_NOTED {
            works.insert(work);
        }
    }

    /// A timeout of a rank whose group is known now.
    fn take_timeout(&mut self, rank: u32, is_it: impl Fn(&Work) -> bool) -> Option<Work> {
        let works = self.timeouts.get_mut(&rank)?;
        let work = works.iter().find(|work| is_it(work)).cloned()?;
        works.remove(&work);
        if works.is_empty() {
            self.timeouts.remove(&rank);
        }
        Some(work)
    }

    /// The key of a group: jobs that one log of Ray holds each have a group 0.
    fn key(&mut self, group: &GroupRank) -> String {
        let Some(actor) = &self.actor else {
            return group.key.clone();
        };
        let first = self.first_actor.get_or_insert_with(|| actor.clone());
        if first == actor {
            return group.key.clone();
        }
        self.is_of_several = true;
        format!("{} of {actor}", group.key)
    }

    fn place(&mut self, rank: u32, group: GroupRank, progress: Progress) {
        let key = self.key(&group);
        let known = self.groups.get(&key).and_then(|it| it.ranks.get(&rank));
        // Numbers only grow while a process lives.
        if known.is_some_and(|known| progress.enqueued < known.progress.enqueued) {
            self.start_anew();
        }
        self.ranks.insert(rank);
        // One that is not under way in this group timed out in another.
        let timed_out = self.take_timeout(rank, |work| progress.is_under_way(work));
        let of_rank = self.groups.entry(key).or_default();
        let of_rank = of_rank.rank(rank, group, progress);
        of_rank.progress = progress;
        of_rank.timed_out = timed_out.or(of_rank.timed_out.take());
    }

    /// A rank gave up an operation of a group, and how far it came may not have been printed.
    fn place_timeout(&mut self, rank: u32, group: GroupRank, work: &Work) {
        let least = Progress {
            enqueued: work.number,
            // Does not underflow: callers place only operations that have a number, from 1 on.
            completed: work.number - 1,
        };
        let key = self.key(&group);
        let of_rank = self.groups.entry(key).or_default();
        let of_rank = of_rank.rank(rank, group, least);
        if of_rank.progress.is_under_way(work) {
            of_rank.timed_out = Some(work.clone());
        }
        self.take_timeout(rank, |it| it == work);
    }

    /// What was printed of an earlier start says nothing about this one.
    fn start_anew(&mut self) {
        if !self.is_empty() {
            let earlier_starts = self.earlier_starts + 1;
            *self = Self {
                earlier_starts,
                owner: self.owner,
                printers: std::mem::take(&mut self.printers),
                ..Self::default()
            };
        }
    }

    /// Logs of one job together.
    fn merged(logs: &[&Self]) -> Self {
        let mut all = Self::default();
        for log in logs {
            for (key, logged) in &log.groups {
                let known = all.groups.entry(key.clone()).or_default();
                known.name = known.name.take().or_else(|| logged.name.clone());
                known.is_of_process |= logged.is_of_process;
                known.ranks.extend(logged.ranks.clone());
            }
            all.ranks.extend(&log.ranks);
            all.size = all.size.max(log.size);
            all.timeouts.extend(log.timeouts.clone());
            all.timed_out_somewhere |= log.timed_out_somewhere;
            all.errors.extend(log.errors.clone());
            all.error_somewhere = all.error_somewhere.or_else(|| log.error_somewhere.clone());
            all.gave_up.extend(&log.gave_up);
            all.leaves_out |= log.leaves_out;
            all.is_of_several |= log.is_of_several;
            all.stuck.extend(&log.stuck);
            all.differing.extend(log.differing.clone());
            all.calls.extend(log.calls.clone());
            all.missed_barrier.extend(&log.missed_barrier);
            all.never_joined.extend(&log.never_joined);
            all.in_gloo.extend(log.in_gloo.clone());
            all.following.extend(&log.following);
            all.awaited_ids.extend(&log.awaited_ids);
            all.came_to_start.extend(&log.came_to_start);
            all.shared_gpus.extend(log.shared_gpus.clone());
            all.unlike_models = all.unlike_models.or(log.unlike_models);
            all.lost_peers.extend(log.lost_peers.clone());
            all.warnings.extend(&log.warnings);
            all.mismatched.extend(&log.mismatched);
            all.summary.ended.extend(log.summary.ended.clone());
            all.summary.on_host = all.summary.on_host.or(log.summary.on_host);
            all.summary.spawned = all.summary.spawned.or(log.summary.spawned);
            all.summary.somewhere = all.summary.somewhere.or(log.summary.somewhere);
            let cancelled = || log.summary.cancelled.clone();
            all.summary.cancelled = all.summary.cancelled.or_else(cancelled);
            all.summary.to_launcher = all.summary.to_launcher.or(log.summary.to_launcher);
            all.summary.tasks.extend(log.summary.tasks.clone());
            // Logs of several ranks tell of the same starts: a sum would count them several times.
            all.earlier_starts = all.earlier_starts.max(log.earlier_starts);
        }
        all.adopt();
        all.place_never_joined();
        all
    }

    /// Puts ranks of which PyTorch says that they did not join a collective behind those that wait in it, if that
    /// is of the group of all ranks, whose numbers are those of the job.
    fn place_never_joined(&mut self) {
        let mut groups = self.groups.iter_mut();
        let (Some((key, group)), None) = (groups.next(), groups.next()) else {
            return;
        };
        let Some(number) = group.waits_in().filter(|_| key == "0") else {
            return;
        };
        for rank in &self.never_joined {
            self.ranks.insert(*rank);
            group.ranks.entry(*rank).or_insert(LoggedRank {
                place: Some(*rank),
                progress: Progress {
                    enqueued: number - 1,
                    completed: number - 1,
                },
                timed_out: None,
            });
        }
    }

    /// Puts ranks whose line with the group is missing beside those that timed out in the same.
    fn adopt(&mut self) {
        let mut placed = Vec::new();
        for (rank, works) in &self.timeouts {
            for work in works.iter().filter(|work| work.number > 0) {
                let mut same = self.groups.iter().filter(|(key, group)| {
                    let mut others = group.ranks.values();
                    // No other group has as many collectives as that of all ranks.
                    let is_far = *key == "0" && work.number >= FAR;
                    !group.ranks.contains_key(rank)
                        && others.any(|it| match &it.timed_out {
                            Some(timed_out) if is_far => timed_out.number == work.number,
                            Some(timed_out) => timed_out == work,
                            None => it.waits_in() == Some(work.number),
                        })
                });
                // Where two groups fit, which of them the rank is in is unknown.
                if let (Some((key, _)), None) = (same.next(), same.next()) {
                    placed.push((*rank, key.clone(), work.clone()));
                }
            }
        }
        for (rank, key, work) in placed {
            self.take_timeout(rank, |it| *it == work);
            let group = self.groups.entry(key).or_default();
            group.ranks.entry(rank).or_insert_with(|| LoggedRank {
                place: None,
                progress: Progress {
                    enqueued: work.number,
                    completed: work.number - 1,
                },
                timed_out: Some(work),
            });
        }
    }

    /// Ranks of which it was printed how far they came, or what timed out.
    fn counted(&self) -> BTreeSet<u32> {
        let placed = self.groups.values().flat_map(|group| group.ranks.keys());
        placed.chain(self.timeouts.keys()).copied().collect()
    }

    /// Ranks of the job, as far as communicators and sizes in its default group show.
    fn size(&self) -> u32 {
        let of_all = self.groups.get("0").into_iter();
        let timed_out = of_all.flat_map(|it| it.ranks.values());
        let ranks = timed_out.filter_map(|it| Some(it.timed_out.as_ref()?.ranks));
        ranks.max().unwrap_or(0).max(self.size)
    }
}

/// Ranks on which a collective timed out, by the logs of one job.
pub(crate) fn timed_out(logs: &[&WatchdogLog]) -> BTreeSet<u32> {
    let log = WatchdogLog::merged(logs);
    let in_groups = log.groups.values().flat_map(|group| &group.ranks);
    let in_groups = in_groups.filter(|(_, it)| it.timed_out.is_some());
    let placed = in_groups.map(|(rank, _)| rank);
    placed.chain(log.timeouts.keys()).copied().collect()
}

/// Says what logs of one job show; `group` is the first number that is free for a group.
pub(crate) fn report(
    logs: &[&WatchdogLog],
    mut group: u32,
    take: &mut dyn FnMut(Input),
) -> Reported {
    let log = WatchdogLog::merged(logs);
    let death = log.death();
    let dead = death.map(|(rank, _)| rank);
    let counted = log.counted();
    // Nobody knows what a rank that ended had entered.
    // `said` takes no rank from `MAX_RANKS` on, so that a damaged line does not make this long.
    let silence_counts = !log.leaves_out && !log.is_of_several;
    let ended = log.summary.ended.iter().map(|it| &it.rank).max();
    let last = log.ranks.last().max(log.gave_up.last()).max(ended);
    let ranks = last.map_or(0, |last| last + 1).max(log.size());
    let unknown: Vec<u32> = (0..ranks)
        .filter(|_| silence_counts)
        .filter(|rank| !counted.contains(rank) && Some(*rank) != dead)
        .filter(|rank| !log.gave_up.contains(rank))
        .collect();
    // All that are known wait alike, and one that no line names has ended.
    let mut groups = log.groups.values();
    let is_unnamed = log.has_unnamed_end()
        && unknown.is_empty()
        && groups.all(|group| {
            group
                .ranks
                .values()
                .all(|it| it.waits_in() == group.waits_in())
        });
    let has_death = dead.is_some() || is_unnamed || log.raised_for_themselves().next().is_some();
    let is_waited =
        !log.timeouts.is_empty() || log.groups.values().any(|it| it.waits_in().is_some());
    let mut notes = log.notes();
    for (key, logged) in &log.groups {
        let mut members: BTreeSet<u32> = logged.ranks.keys().copied().collect();
        let name = logged.name(key);
        // All of a job are in its default group. What ranks that were heard of elsewhere have
        // entered of it is not known either, but the others do not wait for nobody knows whom.
        if key == "0" {
            members.extend(&unknown);
        }
        if let Some(why) = logged.incomparable() {
            notes.push(PrintedNote::Incomparable { group: name, why });
            continue;
        }
        if let Some(number) = logged.waits_in() {
            if has_death {
                let waiting = logged
                    .ranks
                    .iter()
                    .filter(|(_, it)| it.waits_in() == Some(number));
                notes.push(PrintedNote::Waiting {
                    op: logged.ops(number).next().map(|work| work.op.clone()),
                    number,
                    group: name.clone(),
                    ranks: waiting.map(|(rank, _)| *rank).collect(),
                });
            // Of the default group every rank up to the last is a member by now. A single one would
            // wait for nobody: others must be in it.
            } else if key != "0" || members.len() == 1 {
                notes.push(PrintedNote::PartOfGroup {
                    group: name.clone(),
                    ranks: logged.all(),
                    number,
                });
            }
        }
        take(Input::Group {
            group,
            name,
            members: members.into_iter().collect(),
        });
        logged.enter(group, take);
        group += 1;
    }
    if dead.is_none() {
        for start in log.starts() {
            start.take(group, take);
            group += 1;
        }
    }
    // Ranks in collectives of one number and kind may be in one group, and no others are in it. What
    // a rank entered first it waits in.
    let mut unplaced: BTreeMap<&Work, Vec<u32>> = BTreeMap::new();
    for (rank, works) in &log.timeouts {
        if let Some(first) = works.iter().find(|work| work.number > 0) {
            unplaced.entry(first).or_default().push(*rank);
        }
    }
    for (work, members) in unplaced {
        take(Input::Group {
            group,
            name: "unknown".to_owned(),
            members: members.iter().copied().collect(),
        });
        for rank in members {
            take(entered(rank, group, work.number, Some(work), false));
        }
        group += 1;
    }
    if is_waited && log.leaves_out {
        notes.push(PrintedNote::LeavesOut);
    }
    for sides in compared(&log.differing) {
        take(Input::Group {
            group,
            name: "unknown".to_owned(),
            members: sides.keys().copied().collect(),
        });
        for (rank, work) in sides {
            take(entered(rank, group, work.number, Some(work), false));
        }
        group += 1;
    }
    if is_waited && !unknown.is_empty() {
        notes.push(PrintedNote::Uncounted(unknown));
    }
    for note in notes {
        take(Input::Note(SourceNote::Printed(note)));
    }
    if let Some((rank, signal)) = death {
        take(Input::Killed { rank, signal });
    }
    Reported { group, has_death }
}

/// What ranks were about to do that PyTorch compared two by two, those of one group together: a rank that
/// two pairs share calls the same in both.
fn compared(pairs: &[[Fingerprint; 2]]) -> Vec<BTreeMap<u32, &Work>> {
    let mut all: Vec<BTreeMap<u32, &Work>> = Vec::new();
    // Sides are unlike operations at one number; ranks at two numbers are only apart.
    let unlike = pairs
        .iter()
        .filter(|[one, other]| one.work.number == other.work.number && one.work != other.work);
    for both in unlike {
        let works = both.each_ref().map(|it| (it.rank, &it.work));
        let known = |sides: &&mut BTreeMap<u32, &Work>| {
            let of_both = works.map(|(rank, work)| sides.get(&rank).map(|known| *known == work));
            of_both.contains(&Some(true)) && !of_both.contains(&Some(false))
        };
        match all.iter_mut().find(known) {
            Some(sides) => sides.extend(works),
            None => all.push(works.into()),
        }
    }
    all
}

fn entered(rank: u32, group: u32, number: u64, work: Option<&Work>, completed: bool) -> Input {
    Input::Entered {
        rank,
        group,
        number,
        op: work.map_or(String::new(), |work| work.op.clone()),
        detail: work.map_or(String::new(), |work| work.detail.clone()),
        completed,
        in_flight: if completed {
            InFlight::Unknown
        } else {
            InFlight::Issued
        },
    }
}

#[cfg(test)]
mod tests;
