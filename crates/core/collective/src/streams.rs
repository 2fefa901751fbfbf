//! How far devices are known to have come on the way to collectives that all hosts have issued.
//!
//! A host that runs ahead issues a collective long before its device gets there, so the counts of
//! issues are the same on all ranks while one device stands still. The marks of sampled steps say
//! what a device has got to, and each later mark of its host that it had not got further.

use std::collections::{BTreeMap, VecDeque};

use model::{CollectiveOp, DeviceArrival, DeviceProgress, DeviceTime, Event, Mark, RankNs, Wait};

use crate::Collectives;
use crate::progress::{CollectiveSignature, GroupProgress};

/// Collectives of a rank that are remembered until its device gets to them. Ours: some steps of a
/// job that issues a dozen in each.
const REMEMBERED: usize = 64;
/// Marks of its device that a host looks at by one mark of its own (`MAX_LOOKS` of the probe).
const LOOKS: u32 = 8;
/// How much later than the others a device must at least have been looked for in vain. Ours: above
/// what ranks of one host are apart in reading their devices, and what clocks of hosts are.
const LATER_MIN_S: f64 = 0.05;

/// How far the device of one rank is known to have come.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamProgress {
    issued: VecDeque<Issued>,
    /// The furthest collective of each group that the device has got to.
    reached: BTreeMap<u32, ReachedIssue>,
    /// The run of sampled steps that is reported.
    run: Option<SampledRun>,
    /// When its host last looked, and what it reported since.
    looked_at: RankNs,
    marks_since: u32,
}

#[derive(Clone, Copy, Debug)]
struct Issued {
    at: RankNs,
    group: u32,
    /// Zero for sends and receives.
    number: u64,
}

/// A collective that a device has got to.
#[derive(Clone, Copy, Debug)]
struct ReachedIssue {
    number: u64,
    /// When its host saw that.
    seen_at: RankNs,
    first_step: u32,
}

#[derive(Clone, Copy, Debug)]
struct SampledRun {
    first_step: u32,
    /// Marks that were reported.
    marks: u64,
    /// Whether all of them were, and each is known by what its host did.
    is_whole: bool,
}

impl StreamProgress {
    /// Takes a mark of the host.
    pub(crate) fn host(&mut self, mark: &Mark) {
        match mark.event {
            Event::CollectiveIssue(issue) => {
                if self.issued.len() >= REMEMBERED {
                    self.issued.pop_front();
                }
                self.issued.push_back(Issued {
                    at: mark.at,
                    group: issue.group,
                    number: issue.number,
                });
            }
            // The profiler's marks, and those that stand for no call of the loop, look at nothing.
            Event::ProfilerBegin
            | Event::ProfilerEnd
            | Event::InitBegin { .. }
            | Event::InitEnd { .. }
            | Event::SideSample { .. }
            | Event::SideLost { .. } => return,
            _ => {}
        }
        // Threads other than the loop's record marks, and do not ask for them.
        if mark.on_loop_thread {
            (self.looked_at, self.marks_since) = (mark.at, 0);
        }
    }

    /// The host saw at `at` that its device got to an earlier mark.
    pub(crate) fn device(&mut self, at: RankNs, time: &DeviceTime) {
        let DeviceTime {
            reached,
            made_at,
            first_step,
            place,
            ..
        } = *time;
        self.marks_since = self.marks_since.saturating_add(1);
        let run = self
            .run
            .take_if(|run| run.first_step == first_step)
            .unwrap_or(SampledRun {
                first_step,
                marks: 0,
                is_whole: true,
            });
        // Places count from 0: if this one is not the next, marks between were lost.
        let mut is_whole = run.is_whole && run.marks == place;
        if let Some(Event::CollectiveIssue(issue)) = reached.event() {
            let known = self
                .issued
                .iter()
                // A device time keeps no number. The time of the mark identifies the collective.
                .find(|it| (it.at, it.group) == (made_at, issue.group));
            // One that is no longer remembered leaves open what the device got to.
            is_whole &= known.is_some();
            if let Some(Issued { group, number, .. }) = known.filter(|it| it.number > 0) {
                let reached = ReachedIssue {
                    number: *number,
                    seen_at: at,
                    first_step,
                };
                self.reached.insert(*group, reached);
            }
        }
        self.run = Some(SampledRun {
            first_step,
            marks: run.marks.saturating_add(1),
            is_whole,
        });
    }

    /// When its host last saw that the device had not got to a collective of a run of sampled
    /// steps; `None` if that is not certain.
    fn looked_in_vain(&self, group: u32, number: u64, first_step: u32) -> Option<RankNs> {
        let is_whole = self
            .run
            .is_some_and(|run| run.is_whole && run.first_step == first_step);
        // Otherwise it would not be known if the device had.
        let is_remembered = self
            .issued
            .iter()
            .any(|it| (it.group, it.number) == (group, number));
        // A device may also wait for another in a receive, of which nothing is known.
        let sends = self.issued.iter().any(|it| it.number == 0);
        // A look that reported as many stopped there: the device may have got further.
        let is_over = self.marks_since < LOOKS;
        (is_whole && is_remembered && is_over && !sends).then_some(self.looked_at)
    }
}

/// Collectives that all members of a group have issued, and the devices of some were seen to get to
/// and those of others were not.
pub(crate) fn arrivals(job: &Collectives) -> Vec<DeviceArrival> {
    job.groups
        .iter()
        .filter(|(_, group)| !group.is_of_init())
        .filter_map(|(id, group)| arrival(job, *id, group))
        .collect()
}

fn arrival(job: &Collectives, id: u32, group: &GroupProgress) -> Option<DeviceArrival> {
    let reached: BTreeMap<u32, Option<&ReachedIssue>> = group
        .members
        .iter()
        .map(|rank| {
            (
                *rank,
                job.streams.get(rank).and_then(|it| it.reached.get(&id)),
            )
        })
        .collect();
    let least = reached.values().map(|it| number_of(*it)).min()?;
    // The first of which some are known to be behind: they may be so in later ones for it.
    let first = reached
        .values()
        .flatten()
        .filter(|it| it.number > least)
        .min_by_key(|it| it.number)?;
    let ReachedIssue {
        number, first_step, ..
    } = **first;
    // Where a host has not issued it, the counts of the hosts already say who is missing.
    let all_issued = group
        .members
        .iter()
        .all(|rank| group.last.get(rank).is_some_and(|it| it.number >= number));
    if !all_issued {
        return None;
    }
    let (entered, missing): (Vec<u32>, Vec<u32>) = reached
        .keys()
        .partition(|rank| number_of(reached[rank]) >= number);
    // The last of those that got there: the others must have been looked for after all of them.
    let seen_at = reached
        .values()
        .flatten()
        .filter(|it| it.number >= number)
        .map(|it| it.seen_at)
        .max()?;
    let later_s = missing
        .iter()
        .map(|rank| {
            let looked = job
                .streams
                .get(rank)?
                .looked_in_vain(id, number, first_step)?;
            Some(looked.seconds_since(seen_at))
        })
        // One device of which this is not certain may be the one that the others wait for.
        .collect::<Option<Vec<f64>>>()
        .map(|later| later.into_iter().fold(f64::INFINITY, f64::min));
    let what = group.recent.get(&number).map(|said| &said.first);
    Some(DeviceArrival {
        wait: Wait {
            group: group.name.clone(),
            number,
            op: what.map_or(CollectiveOp::UNKNOWN, |what| what.op),
            detail: what.map(CollectiveSignature::detail).unwrap_or_default(),
            entered,
            missing,
            ..Wait::default()
        },
        later_s: later_s.filter(|later_s| *later_s >= job.late_s(LATER_MIN_S)),
    })
}

fn number_of(reached: Option<&ReachedIssue>) -> u64 {
    reached.map_or(0, |it| it.number)
}

/// What is stuck by these arrivals, as far as it is certain whose device is behind; `None` if any of
/// these may wait for another device elsewhere.
pub(crate) fn waits(arrivals: &[DeviceArrival]) -> Option<Vec<Wait>> {
    let (certain, open): (Vec<&DeviceArrival>, Vec<&DeviceArrival>) =
        arrivals.iter().partition(|it| it.later_s.is_some());
    let mut behind = certain.iter().flat_map(|it| &it.wait.missing);
    if behind.any(|rank| open.iter().any(|it| it.wait.entered.contains(rank))) {
        return None;
    }
    let waits: Vec<Wait> = certain.iter().map(|it| issued_by_all(&it.wait)).collect();
    (!waits.is_empty()).then_some(waits)
}

/// A collective that all have issued, by whose devices got to it.
fn issued_by_all(arrived: &Wait) -> Wait {
    let mut all = [&arrived.entered[..], &arrived.missing[..]].concat();
    all.sort_unstable();
    Wait {
        entered: all.clone(),
        open: Some(DeviceProgress {
            under_way: all,
            not_started: arrived.missing.clone(),
            ended: Vec::new(),
        }),
        missing: Vec::new(),
        ..arrived.clone()
    }
}

#[cfg(test)]
mod tests {
    use model::{CollectiveIssue, DeviceReached, MarkKind, StallKind};

    use super::*;
    use crate::HangSettings;

    const WORLD: u32 = 1;
    const PAIR: u32 = 2;
    const SECOND: u64 = 1_000_000_000;

    fn sum(group: u32) -> Event {
        Event::CollectiveIssue(CollectiveIssue::new(CollectiveOp::ALLREDUCE, group, 46))
    }

    /// One thing that is known of a rank, at a second.
    #[derive(Clone, Copy)]
    enum Known {
        Did(u64, Event),
        /// Its device got to the mark made at this second, the so-manieth of the run.
        Reached(u64, (u64, Event), u64),
        Lost,
    }

    fn reported(ranks: &[Vec<Known>]) -> Collectives {
        let mut job = Collectives::new(HangSettings::default());
        job.join(WORLD, "default", &(0..4).collect());
        job.join(PAIR, "tp", &[1, 2].into());
        let mut all: Vec<(u64, u32, Known)> = Vec::new();
        for (rank, known) in (0..).zip(ranks) {
            let mut at = 0;
            for it in known {
                at = match it {
                    Known::Did(at, _) | Known::Reached(at, ..) => *at,
                    Known::Lost => at,
                };
                all.push((at, rank, *it));
            }
        }
        all.sort_by_key(|(at, ..)| *at);
        for (_, rank, known) in all {
            match known {
                Known::Did(at, event) => {
                    let (at, step, on_loop_thread) = (RankNs(at * SECOND), 40, true);
                    let mark = Mark {
                        at,
                        step,
                        on_loop_thread,
                        event,
                    };
                    job.mark(rank, &mark);
                }
                Known::Reached(at, (made_at, event), place) => {
                    let time = DeviceTime {
                        reached: DeviceReached::mark(&event),
                        made_at: RankNs(made_at * SECOND),
                        device_ns: 0,
                        first_step: 40,
                        place,
                        seen_within_us: 0,
                    };
                    job.device_time(rank, RankNs(at * SECOND), &time);
                }
                Known::Lost => job.lose(rank),
            }
        }
        job
    }

    /// A rank that issues an all-reduce in each of these groups, and looks for its device for ten
    /// seconds more; that gets to so many of them.
    fn rank(groups: &[u32], reached: usize) -> Vec<Known> {
        let mut known = vec![
            Known::Did(1, Event::ForwardBegin),
            Known::Reached(1, (1, Event::ForwardBegin), 0),
        ];
        let issued: Vec<(u64, Event)> = (2..).zip(groups.iter().map(|it| sum(*it))).collect();
        known.extend(issued.iter().map(|(at, event)| Known::Did(*at, *event)));
        known.push(Known::Did(5, Event::BackwardEnd));
        let places = (1..).zip(issued).take(reached);
        known.extend(places.map(|(place, issued)| Known::Reached(5, issued, place)));
        known.extend((6..=15).map(|at| Known::Did(at, Event::OptimizerBegin)));
        known
    }

    fn accused(ranks: &[Vec<Known>]) -> Vec<u32> {
        let stall = reported(ranks).standstill(RankNs(100 * SECOND)).unwrap();
        let accused = stall.accused();
        let kind = if accused.is_empty() {
            StallKind::Nowhere
        } else {
            StallKind::Inside
        };
        assert_eq!(stall.kind, kind);
        accused
    }

    #[test]
    fn a_device_that_waits_for_another_in_another_group_is_no_culprit() {
        // Rank 1 waits in the pair for the device of rank 2.
        let (others, waits) = (rank(&[WORLD], 1), rank(&[PAIR, WORLD], 1));
        let stopped = rank(&[PAIR, WORLD], 0);
        let mut ranks = [others.clone(), waits, stopped, others];
        assert_eq!(accused(&ranks), [2]);
        // The host of rank 2 blocks at once: nothing is certain of the pair, nor of who waits in it.
        ranks[2].truncate(5);
        assert_eq!(accused(&ranks), [0; 0]);
    }

    #[test]
    fn a_device_that_may_wait_for_a_send_is_not_accused() {
        let send = Event::CollectiveIssue(CollectiveIssue::new(CollectiveOp(13), WORLD, 0));
        let others = rank(&[WORLD], 1);
        let mut stopped = rank(&[WORLD], 0);
        stopped.insert(3, Known::Did(2, send));
        assert_eq!(
            accused(&[others.clone(), others.clone(), stopped, others]),
            [0; 0]
        );
    }

    /// Hosts stop to look at any time, and marks are lost at any place.
    #[test]
    fn less_evidence_accuses_nobody_else() {
        let arrived = rank(&[WORLD], 1);
        for (of_two, truth) in [(rank(&[WORLD], 0), &[2][..]), (arrived.clone(), &[])] {
            let whole = [arrived.clone(), arrived.clone(), of_two, arrived.clone()];
            assert_eq!(accused(&whole), truth);
            // All have issued the collective after three things.
            for cut in 3..whole[0].len() {
                for lost in 0..4 {
                    for other in 0..4 {
                        let mut ranks = whole.clone();
                        ranks[lost].truncate(cut);
                        let from = (cut * 7 + lost) % 12 + 3;
                        let until = (from + 3).min(ranks[other].len());
                        if from < until {
                            ranks[other].splice(from..until, [Known::Lost]);
                        }
                        let accused = accused(&ranks);
                        assert!(accused.iter().all(|it| truth.contains(it)), "{accused:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn who_was_looked_at_only_in_part_is_not_accused() {
        let others = rank(&[WORLD], 1);
        let mut stopped = rank(&[WORLD], 0);
        for place in 1..=u64::from(LOOKS) {
            stopped.push(Known::Reached(15, (1, MarkKind::DataBegin.into()), place));
        }
        assert_eq!(
            accused(&[others.clone(), others.clone(), stopped, others]),
            [0; 0]
        );
    }
}
