//! What replies of NCCL's RAS mean for a job: who has launched a collective the others are
//! in, and who cannot be reached.

use std::collections::{BTreeMap, BTreeSet};

use model::{CollectiveOp, InFlight, Input, Ranks, RasNote, SourceNote};

use crate::ranks::{ProcessPlace, job_ranks, tell_hosts};
use crate::ras::{Present, RasCommunicator, RasReply, Why};

/// Tells a job what the latest of some replies says; groups are numbered from `group` on.
pub(crate) fn tell(replies: &[&RasReply], mut group: u32, take: &mut dyn FnMut(Input)) -> u32 {
    let mut replies = replies.to_vec();
    // Times are written as `2026-11-25 16:00:00`, which sorts as text.
    replies.sort_by(|a, b| a.at.cmp(&b.at));
    let Some((latest, before)) = replies.split_last() else {
        return group;
    };
    let places: Vec<Vec<(u32, ProcessPlace)>> = latest
        .communicators
        .iter()
        .map(RasCommunicator::places)
        .collect();
    let (ranks, numbering) = job_ranks(&places);
    tell_hosts(&places, &ranks, take);
    numbering.note().into_iter().for_each(&mut *take);
    let mut notes = latest.notes.clone();
    let mut absent: BTreeMap<(u32, Why), &ProcessPlace> = BTreeMap::new();
    let before_by_name: BTreeMap<&str, &RasCommunicator> = before
        .last()
        .into_iter()
        .flat_map(|reply| &reply.communicators)
        .map(|known| (known.name.as_str(), known))
        .collect();
    for (communicator, of_job) in latest.communicators.iter().zip(&ranks) {
        let earlier = before_by_name.get(communicator.name.as_str()).copied();
        group = communicator.tell(of_job, earlier, group, &mut notes, take);
        for (rank, missing) in &communicator.missing {
            if let Some(rank) = of_job.get(rank) {
                absent.insert((*rank, missing.why), &missing.place);
            }
        }
    }
    for ((rank, why), (host, pid, _)) in absent {
        if why == Why::Elsewhere {
            continue;
        }
        let is_dead = why == Why::Dead;
        notes.push(RasNote::Unreachable {
            rank,
            process: (*pid >= 0).then(|| (*pid, host.clone())),
            is_dead,
        });
        // A rank that is only silent may come back: a stopped process does.
        if is_dead {
            take(Input::Left {
                rank,
                step: 0,
                orderly: false,
            });
        }
    }
    let stands_alike = |it: &RasCommunicator| {
        let earlier = before_by_name.get(it.name.as_str());
        let went_on = earlier.is_some_and(|earlier| it.launched_since(earlier));
        it.missing.is_empty() && !went_on && it.ahead().values().all(BTreeMap::is_empty)
    };
    if !latest.communicators.is_empty() && latest.communicators.iter().all(stands_alike) {
        notes.push(RasNote::Alike);
    }
    if !before.is_empty() {
        notes.push(RasNote::Replies(replies.len() as u64));
    }
    for note in notes {
        take(Input::Note(SourceNote::Ras(note)));
    }
    group
}

impl RasCommunicator {
    /// Where each of its ranks runs, those that did not answer included.
    fn places(&self) -> Vec<(u32, ProcessPlace)> {
        let present = self
            .ranks
            .iter()
            .map(|(rank, member)| (*rank, member.place.clone()));
        let missing = self
            .missing
            .iter()
            .map(|(rank, member)| (*rank, member.place.clone()));
        present.chain(missing).collect()
    }

    /// Tells a group for each function in which ranks are apart, or one of all ranks.
    fn tell(
        &self,
        of_job: &BTreeMap<u32, u32>,
        earlier: Option<&Self>,
        group: u32,
        notes: &mut Vec<RasNote>,
        take: &mut dyn FnMut(Input),
    ) -> u32 {
        let unreachable: Vec<u32> = self
            .missing
            .iter()
            .filter(|(_, missing)| matches!(missing.why, Why::Dead | Why::Silent))
            .filter_map(|(rank, _)| of_job.get(rank).copied())
            .collect();
        let elsewhere: Vec<u32> = self
            .missing
            .iter()
            .filter(|(_, missing)| missing.why == Why::Elsewhere)
            .map(|(rank, _)| *rank)
            .collect();
        if !elsewhere.is_empty() {
            notes.push(RasNote::Elsewhere {
                communicator: self.name.clone(),
                ranks: elsewhere,
            });
        }
        let ahead = self.ahead();
        let moved = earlier.is_some_and(|earlier| self.moved_since(earlier, &ahead));
        let apart = unreachable.is_empty() && ahead.values().any(|ahead| !ahead.is_empty());
        if apart && moved {
            notes.push(RasNote::Moving(self.name.clone()));
        }
        let there: Vec<u32> = self
            .ranks
            .keys()
            .filter_map(|rank| of_job.get(rank).copied())
            .collect();
        if !apart || moved {
            // How far a rank came that cannot be reached nobody knows.
            let completed = unreachable.is_empty();
            let members = there.iter().copied().chain(unreachable).collect();
            take(Input::Group {
                group,
                name: self.name.clone(),
                members,
            });
            for rank in there {
                take(entered(
                    rank,
                    group,
                    0,
                    CollectiveOp::UNKNOWN.name(),
                    completed,
                ));
            }
            return group + 1;
        }
        if earlier.is_none() {
            notes.push(RasNote::OneMoment);
        }
        let members: Ranks = there.into_iter().collect();
        if let Some((op, number)) = self.crossed(&ahead) {
            take(Input::Group {
                group,
                name: self.name.clone(),
                members,
            });
            for (rank, ahead) in &ahead {
                let Some(rank) = of_job.get(rank) else {
                    continue;
                };
                let own = ahead.keys().next().copied().unwrap_or(op);
                take(entered(*rank, group, number, own, false));
            }
            return group + 1;
        }
        let functions: BTreeSet<&str> = ahead.values().flat_map(BTreeMap::keys).copied().collect();
        // Counts are by function, and those of two functions do not say which came first: each is
        // compared as a group of its own.
        let next_group = group + functions.len() as u32;
        for (group, op) in (group..).zip(functions) {
            let (name, members) = (self.name.clone(), members.clone());
            take(Input::Group {
                group,
                name,
                members,
            });
            // What the one that launched least has not launched, the others may wait in;
            // that they launched more since then says nothing.
            let least = self.least(op);
            for (rank, ahead) in &ahead {
                let Some(rank) = of_job.get(rank) else {
                    continue;
                };
                let number = least.saturating_add(u64::from(ahead.contains_key(op)));
                take(entered(*rank, group, number, op, false));
            }
        }
        next_group
    }

    /// The fewest collectives of a function that a rank has launched.
    fn least(&self, op: &str) -> u64 {
        self.ranks
            .values()
            .map(|member| member.launched.get(op).copied().unwrap_or_default())
            .min()
            .unwrap_or(0)
    }

    /// What each rank has launched beyond what all have.
    fn ahead(&self) -> BTreeMap<u32, BTreeMap<&str, u64>> {
        let functions: BTreeSet<&str> = self
            .ranks
            .values()
            .flat_map(|member| member.launched.keys())
            .map(String::as_str)
            .collect();
        let least: BTreeMap<&str, u64> = functions
            .into_iter()
            .map(|op| (op, self.least(op)))
            .collect();
        self.ranks
            .iter()
            .map(|(rank, member)| {
                let beyond = least.iter().filter_map(|(op, least)| {
                    let launched = member.launched.get(*op).copied().unwrap_or(0);
                    (launched > *least).then(|| (*op, launched - least))
                });
                (*rank, beyond.collect())
            })
            .collect()
    }

    /// Where every rank went on with one function, and not all with the same: that of most of
    /// them, and its number.
    fn crossed<'a>(&self, ahead: &BTreeMap<u32, BTreeMap<&'a str, u64>>) -> Option<(&'a str, u64)> {
        let mut ranks: BTreeMap<&'a str, usize> = BTreeMap::new();
        for ahead in ahead.values() {
            let (op, _) = ahead.iter().next().filter(|_| ahead.len() == 1)?;
            *ranks.entry(op).or_default() += 1;
        }
        let (op, _) = ranks.iter().max_by_key(|(_, count)| **count)?;
        Some((op, self.least(op).saturating_add(1)))
    }

    /// Whether any rank has launched something since an earlier reply.
    fn launched_since(&self, earlier: &Self) -> bool {
        self.ranks.keys().any(|rank| self.went_on(*rank, earlier))
    }

    /// Whether this rank has.
    fn went_on(&self, rank: u32, earlier: &Self) -> bool {
        let launched = |of: &Self| of.ranks.get(&rank).map(Present::all_launched);
        let before = launched(earlier);
        before.is_some() && before < launched(self)
    }

    /// Whether a rank that is behind has launched something since an earlier reply.
    fn moved_since(&self, earlier: &Self, ahead: &BTreeMap<u32, BTreeMap<&str, u64>>) -> bool {
        let furthest = ahead.values().map(BTreeMap::len).max().unwrap_or(0);
        // A rank that leads may go on for a while when others hang; one that is behind and moves
        // says that nobody hangs.
        ahead
            .iter()
            .filter(|(_, ahead)| ahead.len() < furthest.max(1))
            .any(|(rank, _)| self.went_on(*rank, earlier))
    }
}

impl Present {
    /// Collectives it has launched, of all functions.
    fn all_launched(&self) -> u64 {
        self.launched
            .values()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }
}

fn entered(rank: u32, group: u32, number: u64, op: &str, completed: bool) -> Input {
    Input::Entered {
        rank,
        group,
        number,
        op: op.to_owned(),
        detail: String::new(),
        completed,
        // RAS counts launches by the host: what the device does with them it does not say.
        in_flight: InFlight::Unknown,
    }
}
