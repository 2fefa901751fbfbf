//! How far ranks came in a group, by what they printed.

use std::collections::{BTreeMap, BTreeSet};

use model::{CollectiveOp, Input, UnlikeCounts};

use super::entered;
use super::said::{GroupRank, Progress, Work};

#[derive(Clone, Debug, Default)]
pub(super) struct LoggedGroup {
    pub(super) name: Option<String>,
    /// Whether its key stands for other groups on other ranks, as before PyTorch 2.4.
    pub(super) is_of_process: bool,
    pub(super) ranks: BTreeMap<u32, LoggedRank>,
}

/// How far a rank came in a group, by its last line.
#[derive(Clone, Debug)]
pub(super) struct LoggedRank {
    /// Its place in the group, if that is known.
    pub(super) place: Option<u32>,
    pub(super) progress: Progress,
    /// The collective that timed out on it.
    pub(super) timed_out: Option<Work>,
}

impl LoggedGroup {
    /// What is known of a rank in it, `progress` if nothing was.
    pub(super) fn rank(
        &mut self,
        rank: u32,
        group: GroupRank,
        progress: Progress,
    ) -> &mut LoggedRank {
        self.name = group.name.or(self.name.take());
        self.is_of_process |= !group.is_global;
        self.ranks.entry(rank).or_insert(LoggedRank {
            place: Some(group.rank),
            progress,
            timed_out: None,
        })
    }

    pub(super) fn name(&self, key: &str) -> String {
        match &self.name {
            Some(name) => name.trim_end_matches("_pg").to_owned(),
            None if key == "0" => "default".to_owned(),
            None => key.to_owned(),
        }
    }

    /// The ranks that printed anything of it.
    pub(super) fn all(&self) -> Vec<u32> {
        self.ranks.keys().copied().collect()
    }

    /// The collective in question: the first that a rank waits in.
    pub(super) fn waits_in(&self) -> Option<u64> {
        self.ranks.values().filter_map(LoggedRank::waits_in).min()
    }

    /// What ranks say that timed out as the collective of this number.
    pub(super) fn ops(&self, number: u64) -> impl Iterator<Item = &Work> {
        let works = self.ranks.values().filter_map(|it| it.timed_out.as_ref());
        works.filter(move |work| work.number == number)
    }

    /// Why counts of its ranks do not tell who is behind.
    pub(super) fn incomparable(&self) -> Option<UnlikeCounts> {
        // Each rank counts these for itself; a coalesced operation may consist of sends.
        const ONE_BY_ONE: [&str; 3] = ["SEND", "RECV", "COALESCED"];
        let waits_in = self.waits_in()?;
        let mut ops = self.ranks.values().filter_map(|it| it.timed_out.as_ref());
        if let Some(work) = ops.find(|it| ONE_BY_ONE.contains(&&*it.op)) {
            return Some(UnlikeCounts::PointToPoint {
                ranks: self.all(),
                op: work.op.clone(),
                number: work.number,
            });
        }
        let places: Vec<(u32, u32)> = self
            .ranks
            .iter()
            .filter_map(|(rank, it)| Some((*rank, it.place?)))
            .collect();
        // PyTorch sorts the members of a group by rank: places out of order are of several groups.
        // Where each process counts its groups, one number means one group only in that of all
        // ranks.
        let are_in_order = places.windows(2).all(|it| it[0].1 < it[1].1);
        let are_of_all = places.iter().all(|(rank, place)| rank == place);
        if !are_in_order || (self.is_of_process && places.len() > 1 && !are_of_all) {
            return Some(UnlikeCounts::SharedNumber(self.all()));
        }
        let joins_all = self
            .ops(waits_in)
            .all(|work| CollectiveOp::from_name(&work.op).joins_all());
        let ahead = self
            .ranks
            .iter()
            .filter(|(_, it)| it.progress.completed > waits_in);
        let ahead: Vec<u32> = ahead.map(|(rank, _)| *rank).collect();
        if ahead.is_empty() || !joins_all {
            return None;
        }
        let waiting = self.ranks.iter().filter_map(|(rank, it)| {
            let number = it.waits_in()?;
            let timed_out = it.timed_out.as_ref();
            Some((*rank, timed_out.map(|work| work.op.clone()), number))
        });
        Some(UnlikeCounts::Apart {
            waiting: waiting.collect(),
            ahead,
        })
    }

    /// Who is in the collective that has not ended: the first that a rank waits in. Hosts run on, so
    /// that one which has enqueued more is not ahead of one which has enqueued that. Where nobody
    /// waits, ranks that printed at different times differ without any fault.
    pub(super) fn enter(&self, group: u32, take: &mut dyn FnMut(Input)) {
        let Some(waited_in) = self.waits_in() else {
            return;
        };
        let own = |it: &LoggedRank| it.timed_out.clone().filter(|it| it.number == waited_in);
        let said: BTreeSet<Work> = self.ranks.values().filter_map(own).collect();
        for (rank, logged) in &self.ranks {
            let number = waited_in.min(logged.progress.enqueued);
            let completed = logged.progress.completed >= number;
            let own = own(logged);
            if number == 0 {
                // The first collective of a group that has none yet: it is not in it.
                take(entered(*rank, group, 0, None, true));
                continue;
            }
            // A rank does not say what it has enqueued, only what timed out. Where ranks differ
            // nobody knows what the others have.
            if own.is_none() && said.len() > 1 && number == waited_in {
                continue;
            }
            let work = own
                .as_ref()
                .or(said.first())
                .filter(|_| number == waited_in);
            take(entered(*rank, group, number, work, completed));
        }
    }
}

impl LoggedRank {
    pub(super) fn waits_in(&self) -> Option<u64> {
        let Progress {
            enqueued,
            completed,
        } = self.progress;
        (completed < enqueued).then_some(completed + 1)
    }
}
