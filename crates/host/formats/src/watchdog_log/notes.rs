//! What stands beside a verdict on what a dead job printed.

use std::collections::{BTreeMap, BTreeSet};

use model::PrintedNote;

use super::ended::{Ended, SlurmTasks};
use super::said::Work;
use super::{MAX_NOTED, WatchdogLog};

/// Ranks by what they share.
fn ranks_by<K: Ord>(each: impl Iterator<Item = (K, u32)>) -> BTreeMap<K, Vec<u32>> {
    let mut by: BTreeMap<K, Vec<u32>> = BTreeMap::new();
    for (key, rank) in each {
        by.entry(key).or_default().push(rank);
    }
    by
}

impl WatchdogLog {
    /// What should stand beside a verdict on this log.
    pub(super) fn notes(&self) -> Vec<PrintedNote> {
        let raised = self.errors.iter().map(|(rank, (error, _))| {
            let (rank, error) = (*rank, error.clone());
            PrintedNote::Raised { rank, error }
        });
        let mut notes: Vec<PrintedNote> = raised.collect();
        let first = self.summary.first();
        if first.is_none() && !self.summary.ended.is_empty() {
            let ended: BTreeSet<u32> = self.summary.ended.iter().map(|it| it.rank).collect();
            notes.push(PrintedNote::Ended(ended.into_iter().collect()));
        }
        if let Some((first, with_it)) = first {
            notes.push(PrintedNote::FirstEnded {
                rank: first.rank,
                code: first.code,
                with_it,
            });
        } else if let Some((local_rank, code)) = self.summary.on_host {
            notes.push(PrintedNote::FirstOfHost { local_rank, code });
        }
        let spawned = self.summary.spawned;
        notes.extend(spawned.map(|(process, code)| PrintedNote::FirstSpawned { process, code }));
        notes.extend(
            self.error_somewhere
                .clone()
                .map(PrintedNote::RaisedSomewhere),
        );
        notes.extend(self.summary.somewhere.map(PrintedNote::EndedSomewhere));
        // Where a task has failed, `srun` itself ends the step, and gives no reason.
        let mut tasks = self.summary.tasks.iter();
        let has_failed = tasks.any(|it| !it.were_killed());
        let cancelled = self.summary.cancelled.clone();
        let cancelled = cancelled.filter(|why| !(why.is_empty() && has_failed));
        notes.extend(cancelled.map(PrintedNote::Cancelled));
        notes.extend(self.summary.to_launcher.map(PrintedNote::ToLauncher));
        // Where Slurm ends a job it kills its tasks.
        let is_cancelled = self.summary.cancelled.is_some();
        let tasks = self.summary.tasks.iter().cloned();
        let tasks = tasks.filter(|it| !is_cancelled || !it.were_killed());
        notes.extend(
            tasks.map(|SlurmTasks { tasks, host, how }| PrintedNote::SlurmTasks {
                tasks,
                host,
                how,
            }),
        );
        notes.extend(self.stuck.iter().copied().map(PrintedNote::StuckWatchdog));
        notes.extend(self.warnings.notes().into_iter().map(PrintedNote::Nccl));
        let awaited = self.awaited(false).into_iter().take(MAX_NOTED);
        notes.extend(awaited.map(|(of, ranks)| PrintedNote::AwaitedId {
            ranks: ranks.into_iter().collect(),
            of,
        }));
        let shared = self.shared_gpus.iter().cloned();
        notes.extend(shared.map(|(ranks, device)| PrintedNote::SharedGpu { ranks, device }));
        notes.extend(self.unlike_models.map(PrintedNote::UnlikeModels));
        notes.extend(self.lost_peers.iter().cloned().map(PrintedNote::LostPeer));
        if !self.in_gloo.is_empty() {
            let is_silent = |it: &&Ended| {
                !self.following.contains(&it.rank) && !self.errors.contains_key(&it.rank)
            };
            let silent = self.summary.ended.iter().filter(is_silent);
            let silent: BTreeSet<u32> = silent.map(|it| it.rank).collect();
            notes.push(PrintedNote::GaveUpInGloo {
                ranks: self.in_gloo.keys().copied().collect(),
                silent: silent.into_iter().collect(),
                places: self.places_in_gloo(),
            });
        }
        let differing = self.differing.iter();
        notes.extend(differing.map(|both| PrintedNote::Differ(both.each_ref().map(|it| it.rank))));
        if !self.mismatched.is_empty() {
            let near = self.mismatched.iter().copied();
            notes.push(PrintedNote::Mismatched(near.take(MAX_NOTED).collect()));
        }
        if !self.missed_barrier.is_empty() {
            let missed = self.missed_barrier.iter().copied();
            notes.push(PrintedNote::MissedBarrier(missed.collect()));
        }
        if !self.never_joined.is_empty() {
            let ranks = self.never_joined.iter().copied();
            notes.push(PrintedNote::NeverJoined(ranks.collect()));
        }
        if !self.calls.is_empty() {
            notes.push(PrintedNote::LastCalls(self.last_calls()));
        }
        self.timeout_notes(&mut notes);
        if self.earlier_starts > 0 {
            notes.push(PrintedNote::Starts(self.earlier_starts + 1));
        }
        notes
    }

    /// Lines of the script in which ranks waited in gloo, if there are several.
    fn places_in_gloo(&self) -> Vec<(Vec<u32>, String)> {
        let lines = self.in_gloo.iter();
        let by_line = ranks_by(lines.filter_map(|(rank, line)| Some((line.as_ref()?, *rank))));
        if by_line.len() < 2 {
            return Vec::new();
        }
        let places = by_line.into_iter().take(MAX_NOTED);
        places.map(|(line, ranks)| (ranks, line.clone())).collect()
    }

    /// Ranks by what they were last about to do, the least number first.
    fn last_calls(&self) -> Vec<(Vec<u32>, String)> {
        let calls = self.calls.iter();
        let by_call = ranks_by(calls.map(|(rank, work)| ((work.number, &work.op), *rank)));
        let calls = by_call.into_iter().take(MAX_NOTED);
        calls
            .map(|((number, op), ranks)| (ranks, format!("{op} #{number}")))
            .collect()
    }

    /// Of collectives that timed out and are of no group that is known.
    fn timeout_notes(&self, notes: &mut Vec<PrintedNote>) {
        let of = |is_numbered: bool| {
            let with = self.timeouts.iter().filter(move |(_, works)| {
                works.iter().any(|work| (work.number > 0) == is_numbered)
            });
            with.map(|(rank, _)| *rank).collect::<Vec<u32>>()
        };
        let (numbered, others) = (of(true), of(false));
        if !others.is_empty() {
            notes.push(PrintedNote::Unnumbered(others));
        }
        if !numbered.is_empty() {
            notes.push(PrintedNote::Ungrouped(numbered));
        }
        if self.timed_out_somewhere && self.timeouts.is_empty() && self.groups.is_empty() {
            notes.push(PrintedNote::SomeTimeout);
        }
        self.unlike(notes);
    }

    /// Timeouts of one number and unlike kinds, which may be of one group.
    fn unlike(&self, notes: &mut Vec<PrintedNote>) {
        let placed = self.groups.values().flat_map(|group| &group.ranks);
        let placed = placed.filter_map(|(rank, it)| Some((it.timed_out.as_ref()?, *rank)));
        let unplaced: Vec<(&Work, u32)> = self
            .timeouts
            .iter()
            .flat_map(|(rank, works)| works.iter().map(|work| (work, *rank)))
            .filter(|(work, _)| work.number > 0)
            .collect();
        let all: BTreeSet<(&Work, u32)> = placed.chain(unplaced.iter().copied()).collect();
        let numbers: BTreeSet<u64> = unplaced.iter().map(|(work, _)| work.number).collect();
        for number in numbers {
            let its = all.iter().copied();
            let kinds = ranks_by(its.filter(|(work, _)| work.number == number));
            if kinds.len() > 1 {
                let sides = kinds.into_iter().map(|(work, of)| {
                    let what = format!("{} {}", work.op, work.detail);
                    (of, what.trim_end().to_owned())
                });
                notes.push(PrintedNote::UnlikeTimeouts {
                    number,
                    sides: sides.collect(),
                });
            }
        }
    }
}
