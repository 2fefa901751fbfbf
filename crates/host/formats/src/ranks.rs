//! Ranks of a job behind ranks of its communicators.

use std::collections::{BTreeMap, BTreeSet};

use model::{Input, SourceNote};

/// Where a rank of a communicator runs: host, process, device.
pub(crate) type ProcessPlace = (String, i64, i64);

/// Which rank of the job each rank of each communicator is, and whether that is known.
///
/// The communicator that has all processes numbers them. Without one they are counted in
/// order of host, process and device, which is a guess.
pub(crate) fn job_ranks(
    communicators: &[Vec<(u32, ProcessPlace)>],
) -> (Vec<BTreeMap<u32, u32>>, Numbering) {
    let mut of_rank: Vec<BTreeMap<u32, (&ProcessPlace, u32)>> = Vec::new();
    for members in communicators {
        let members: BTreeMap<u32, &ProcessPlace> =
            members.iter().map(|(rank, place)| (*rank, place)).collect();
        // A process may have several ranks on one device: they are told apart by their order.
        let mut times: BTreeMap<&ProcessPlace, u32> = BTreeMap::new();
        let numbered = members.into_iter().map(|(rank, place)| {
            let nth = times.entry(place).or_default();
            *nth += 1;
            (rank, (place, *nth))
        });
        of_rank.push(numbered.collect());
    }
    let all: BTreeSet<(&ProcessPlace, u32)> = of_rank
        .iter()
        .flat_map(|members| members.values().copied())
        .collect();
    // Nothing was guessed where no process is known: no note.
    if all.is_empty() {
        return (vec![BTreeMap::new(); of_rank.len()], Numbering::Given);
    }
    let world = of_rank.iter().find(|members| members.len() == all.len());
    let (numbers, numbering): (BTreeMap<_, _>, _) = match world {
        Some(world) => (
            world.iter().map(|(rank, place)| (*place, *rank)).collect(),
            Numbering::Given,
        ),
        None => (all.into_iter().zip(0..).collect(), Numbering::Guessed),
    };
    let of_job = of_rank
        .iter()
        .map(|members| {
            members
                .iter()
                .filter_map(|(rank, place)| Some((*rank, *numbers.get(place)?)))
                .collect()
        })
        .collect();
    (of_job, numbering)
}

/// Whether a communicator says which rank of the job a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbering {
    Given,
    Guessed,
}

impl Numbering {
    /// What stands beside the verdict.
    pub(crate) fn note(self) -> Option<Input> {
        (self == Self::Guessed).then_some(Input::Note(SourceNote::RanksGuessed))
    }
}

/// Tells a job on which hosts its ranks are.
pub(crate) fn tell_hosts(
    places: &[Vec<(u32, ProcessPlace)>],
    ranks: &[BTreeMap<u32, u32>],
    take: &mut dyn FnMut(Input),
) {
    let mut hosts: BTreeMap<u32, &String> = BTreeMap::new();
    for (places, of_job) in places.iter().zip(ranks) {
        for (rank, (host, ..)) in places {
            if let Some(of_job) = of_job.get(rank)
                && !host.is_empty()
            {
                hosts.insert(*of_job, host);
            }
        }
    }
    let world_size = hosts.len() as u32;
    for (rank, host) in hosts {
        let (host, role) = (host.clone(), None);
        // Each speaks for itself, so none has neighbours that are to be waited for.
        let (first_local, locals) = (rank, 1);
        take(Input::Rank {
            rank,
            host,
            role,
            first_local,
            locals,
            world_size,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(pid: i64) -> ProcessPlace {
        ("host".to_owned(), pid, 0)
    }

    #[test]
    fn the_communicator_of_all_numbers_the_others() {
        let world = vec![(0, place(30)), (1, place(20)), (2, place(10))];
        let pair = vec![(0, place(20)), (1, place(10))];
        let (ranks, numbering) = job_ranks(&[pair, world]);
        assert_eq!(
            (&ranks[0], numbering),
            (&[(0, 1), (1, 2)].into(), Numbering::Given)
        );
    }

    #[test]
    fn without_one_processes_are_counted() {
        let pairs = [vec![(0, place(30)), (1, place(20))], vec![(0, place(10))]];
        let (ranks, numbering) = job_ranks(&pairs);
        assert_eq!(
            (&ranks[0], numbering),
            (&[(0, 2), (1, 1)].into(), Numbering::Guessed)
        );
        assert_eq!(ranks[1], [(0, 0)].into());
    }

    #[test]
    fn ranks_of_one_process_and_device_are_distinguished() {
        let world = vec![(0, place(10)), (1, place(10)), (2, place(20))];
        let (ranks, _) = job_ranks(&[world, vec![(0, place(10)), (1, place(20))]]);
        assert_eq!(ranks[1], [(0, 0), (1, 2)].into());
    }
}
