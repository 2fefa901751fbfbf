//! Who of several collectors keeps which job.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::state::ListedJob;

/// What collectors note of a job for each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobNote {
    /// The address of who keeps it.
    pub(crate) keeper: String,
    /// Up to where the stream was read when it had ended.
    #[serde(default)]
    pub(crate) ended_at: Option<u64>,
    /// How it is; nothing is known yet of one that was just taken.
    #[serde(default)]
    pub(crate) job: Option<ListedJob>,
    /// What was announced of it and is not over, as its keeper writes it down.
    #[serde(default)]
    pub(crate) announced: Option<serde_json::Value>,
}

/// Who keeps a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// We, if anybody.
    Us,
    /// The collector at this address.
    Other(String),
    /// The collector at this address, where nobody answers.
    Absent(String),
}

/// What is known of who keeps what.
#[derive(Debug)]
pub(crate) struct OwnershipTable {
    url: String,
    view: Mutex<OwnershipView>,
    /// Jobs that were deleted here, and not on the bus yet.
    deleted: Mutex<Vec<String>>,
}

/// Notes with their revisions, and collectors that are alive, each with whether it can take more.
#[derive(Debug, Default)]
pub(crate) struct OwnershipView {
    pub(crate) notes: BTreeMap<String, (u64, JobNote)>,
    pub(crate) alive: BTreeMap<String, bool>,
}

impl OwnershipTable {
    /// Nothing is known yet; others reach us at `url`.
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            view: Mutex::default(),
            deleted: Mutex::default(),
        }
    }

    /// Where others reach us.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, OwnershipView> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that a job was deleted here.
    pub(crate) fn delete(&self, job: &str) {
        self.deleted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(job.to_owned());
    }

    /// Whether that was said since [`OwnershipTable::take_deleted`] was last called.
    pub(crate) fn is_deleted(&self, job: &str) -> bool {
        let deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        deleted.iter().any(|id| id == job)
    }

    /// Jobs that were deleted here since the last call.
    pub(crate) fn take_deleted(&self) -> Vec<String> {
        std::mem::take(&mut *self.deleted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Who keeps a job.
    pub(crate) fn owner(&self, job: &str) -> Owner {
        let view = self.view();
        match view.notes.get(job) {
            Some((_, note)) if note.keeper != self.url => {
                let keeper = note.keeper.clone();
                let is_alive = view.alive.contains_key(&keeper);
                if is_alive {
                    Owner::Other(keeper)
                } else {
                    Owner::Absent(keeper)
                }
            }
            // Where nobody has noted the job nobody else can answer for it.
            _ => Owner::Us,
        }
    }

    /// All jobs: ours as they are, those of others as they noted it last.
    pub(crate) fn all(&self, ours: Vec<ListedJob>) -> Vec<ListedJob> {
        let view = self.view();
        let mut all: Vec<_> = view
            .notes
            .values()
            .filter(|(_, note)| note.keeper != self.url)
            .filter_map(|(_, note)| note.job.clone())
            .collect();
        // `owner` locks it too.
        drop(view);
        all.extend(
            ours.into_iter()
                .filter(|job| self.owner(&job.id) == Owner::Us),
        );
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }
}

impl OwnershipView {
    /// Of jobs that batches were `newest` of, or that we `have` and that have not ended: those that
    /// nobody keeps. `newest` says where the newest batch of a job stands in the stream.
    pub(crate) fn free(
        &self,
        newest: &BTreeMap<String, u64>,
        have: &BTreeSet<String>,
    ) -> Vec<String> {
        // In the order of names, by which all collectors share them out alike.
        let jobs: BTreeSet<&String> = newest.keys().chain(have).chain(self.notes.keys()).collect();
        jobs.into_iter()
            .filter(|job| {
                self.notes.get(*job).is_none_or(|(_, note)| {
                    // One that has ended goes on if batches came after its end.
                    // A job without batches in the stream is `None`, which is below every position.
                    let goes_on = note.ended_at.is_none_or(|at| newest.get(*job) > Some(&at));
                    goes_on && !self.alive.contains_key(&note.keeper)
                })
            })
            .cloned()
            .collect()
    }

    /// Of free jobs, those that `we` should take: each goes to who has fewest that run. All who
    /// see the same come to the same.
    pub(crate) fn share(&self, free: &[String], we: &str) -> Vec<String> {
        let mut loads: BTreeMap<&str, usize> = self
            .alive
            .iter()
            .filter(|(_, has_room)| **has_room)
            .map(|(url, _)| (url.as_str(), 0))
            .collect();
        for (_, note) in self
            .notes
            .values()
            .filter(|(_, note)| note.ended_at.is_none())
        {
            if let Some(load) = loads.get_mut(note.keeper.as_str()) {
                *load += 1;
            }
        }
        let mut ours = Vec::new();
        for job in free {
            // Of equals the first by address, which all see alike.
            let Some((url, load)) = loads.iter_mut().min_by_key(|(_, load)| **load) else {
                break;
            };
            *load += 1;
            if *url == we {
                ours.push(job.clone());
            }
        }
        ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    fn note(keeper: &str, ended_at: Option<u64>) -> JobNote {
        JobNote {
            keeper: keeper.to_owned(),
            ended_at,
            job: None,
            announced: None,
        }
    }

    fn any_view() -> impl Strategy<Value = OwnershipView> {
        let notes = btree_map("[a-f]", ("[r-z]", prop::option::of(0_u64..9)), 0..6);
        (notes, btree_map("[r-z]", any::<bool>(), 0..5)).prop_map(|(notes, alive)| {
            let notes = notes
                .into_iter()
                .map(|(job, (keeper, ended_at))| (job, (1, note(&keeper, ended_at))));
            OwnershipView {
                notes: notes.collect(),
                alive,
            }
        })
    }

    proptest! {
        /// Every free job is taken by exactly one, in whatever order they look, if any has room.
        #[test]
        fn collectors_that_see_the_same_take_each_job_once(
            view in any_view(), reported in btree_map("[a-h]", 1_u64..9, 0..8)
        ) {
            let free = view.free(&reported, &BTreeSet::new());
            let mut taken: Vec<String> =
                view.alive.keys().flat_map(|url| view.share(&free, url)).collect();
            taken.sort();
            let has_room = view.alive.values().any(|has_room| *has_room);
            prop_assert_eq!(taken, if has_room { free } else { Vec::new() });
        }

        /// Nobody takes what somebody alive keeps, or what has ended and was not told of since.
        #[test]
        fn what_is_kept_or_over_is_left_alone(
            view in any_view(), reported in btree_map("[a-h]", 1_u64..9, 0..8),
            have in vec("[a-h]", 0..3)
        ) {
            let have: BTreeSet<String> = have.into_iter().collect();
            for job in view.free(&reported, &have) {
                let Some((_, note)) = view.notes.get(&job) else { continue };
                prop_assert!(!view.alive.contains_key(&note.keeper));
                prop_assert!(note.ended_at.is_none_or(|at| reported[&job] > at));
            }
        }
    }

    #[test]
    fn new_jobs_go_to_who_has_fewest() {
        let alive = ["a", "b", "c"].map(|url| (url.to_owned(), url != "c"));
        let mut view = OwnershipView {
            alive: alive.into(),
            ..OwnershipView::default()
        };
        view.notes.insert("old".to_owned(), (1, note("a", None)));
        view.notes
            .insert("over".to_owned(), (1, note("b", Some(3))));
        let free = ["1", "2", "3"].map(str::to_owned);
        assert_eq!(view.share(&free, "a"), ["2"]);
        assert_eq!(view.share(&free, "b"), ["1", "3"]);
        assert!(view.share(&free, "c").is_empty(), "it has no room");
    }
}
