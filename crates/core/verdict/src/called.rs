//! The pipeline of a running job that marks no blocks, by what its ranks send, receive and meet in.

use std::collections::BTreeMap;

use model::{BlockCause, CollectiveIssue, Event, Mark, RankNs, SlowIterations};
use schedule::{Axis, Call, Diagnosis, Lane, RankCalls, ScheduleSettings, Sizes, Unit, diagnose};

/// Calls of all ranks that are kept. Of more the first stay, which show what is usual, and the
/// latest.
const MAX_CALLS: usize = 1 << 19;
/// Calls after which a job is looked at first, and part of those that are kept after which it is
/// looked at again. Ours: a look at what is kept takes about a second.
const FIRST_LOOK: usize = 1 << 11;
const LOOK_AGAIN: usize = 4;
/// Communicators of a rank; no job has more.
const MAX_LANES: usize = 256;

/// Calls of a running job's ranks, by the algorithm for logs of calls.
///
/// # Properties
/// Memory is bounded by [`MAX_CALLS`].
#[derive(Debug)]
pub(crate) struct Called {
    settings: ScheduleSettings,
    ranks: BTreeMap<u32, Caller>,
    calls: usize,
    looked: usize,
    next_look: usize,
    found: Option<Diagnosis>,
    /// Of what was found, in its order: by cost it is another at each look.
    numbers: Vec<u64>,
    /// How many were given, in all starts of the job.
    numbered: u64,
    is_needed: bool,
}

/// One rank.
#[derive(Debug, Default)]
struct Caller {
    log: RankCalls,
    /// Of each group the lanes of its collectives and of its sends and receives.
    lanes: BTreeMap<(u32, bool), u32>,
    /// Operations so far, by lane.
    counts: Vec<u64>,
}

impl Called {
    pub(crate) fn new(settings: ScheduleSettings) -> Self {
        Self {
            settings,
            ranks: BTreeMap::new(),
            calls: 0,
            looked: 0,
            next_look: FIRST_LOOK,
            found: None,
            numbers: Vec::new(),
            numbered: 0,
            is_needed: true,
        }
    }

    /// The job is started over: of its ranks nothing is known. No number is given twice.
    pub(crate) fn restart(&mut self) {
        *self = Self {
            numbered: self.numbered,
            ..Self::new(self.settings.clone())
        };
    }

    /// Takes a mark; whether it is time to look. Before anybody sends or receives there is no
    /// pipeline, and nothing is kept.
    pub(crate) fn mark(&mut self, rank: u32, mark: &Mark) -> bool {
        if !self.is_needed {
            return false;
        }
        let issue = match &mark.event {
            Event::CollectiveIssue(issue) => issue,
            // Blocks are the framework's own word on what calls only suggest.
            Event::BlockBegin(_) => {
                self.stop();
                return false;
            }
            _ => return false,
        };
        if self.ranks.is_empty() && !issue.op.is_point_to_point() {
            return false;
        }
        let caller = self.ranks.entry(rank).or_insert_with(|| Caller {
            log: RankCalls {
                rank,
                ..RankCalls::default()
            },
            ..Caller::default()
        });
        let Some(call) = caller.call(mark.at, issue) else {
            return false;
        };
        caller.log.calls.push(call);
        self.calls += 1;
        if self.calls >= MAX_CALLS {
            self.make_room();
        }
        self.calls >= self.next_look
    }

    /// Records of a rank were lost: its counts jump.
    pub(crate) fn lose(&mut self, rank: u32, records: u64) {
        let counts = self.ranks.get_mut(&rank).map(|caller| &mut caller.counts);
        // Each lane may lack them: a gap is never lateness nor a missing call.
        for count in counts.into_iter().flatten() {
            *count = count.saturating_add(records);
        }
    }

    /// Looks at what was called so far by ranks of these hosts; what is slow that was not before.
    pub(crate) fn look(
        &mut self,
        sizes: &Sizes,
        hosts: &BTreeMap<u32, String>,
    ) -> Vec<SlowIterations> {
        self.looked = self.calls;
        // The more is kept, the longer a look takes: all looks together stay in proportion to the
        // calls.
        self.next_look = self.calls + (self.calls / LOOK_AGAIN).max(FIRST_LOOK / 2);
        let logs = self
            .ranks
            .iter()
            .map(|(rank, caller)| {
                // A copy: `diagnose` consumes the logs, and the next look needs them again.
                let mut log = caller.log.clone();
                log.host = hosts.get(rank).cloned();
                log.calls.sort_by_key(|call| call.at_ns);
                log
            })
            .collect();
        // What cannot be compared yet may be at the next look: a running job calls on.
        let found = diagnose(logs, sizes, &[], &self.settings).ok().flatten();
        let is_pipeline =
            |found: &Diagnosis| found.layout.size(Axis::Pipeline) > 1 && found.schedule.is_some();
        let Some(mut found) = found.filter(is_pipeline) else {
            return Vec::new();
        };
        // What no block explains, stages tell. That input comes late is seen on one clock only.
        let has_clocks = !found.off_clocks.is_empty();
        found.findings.retain(|one| {
            let is_sure = one.cause != BlockCause::Transfer || !has_clocks;
            !one.ranks.is_empty() && one.stage.is_some() && is_sure
        });
        let before = self
            .found
            .as_ref()
            .map_or(&[][..], |before| &before.findings);
        let new = found
            .findings
            .iter()
            .filter(|one| !before.iter().any(|other| goes_on(other, one)))
            .cloned()
            .collect();
        self.numbers = numbers(before, &self.numbers, &found.findings, &mut self.numbered);
        self.found = Some(found);
        new
    }

    /// Whether anything was called since the last look.
    pub(crate) fn is_due(&self) -> bool {
        self.calls > self.looked
    }

    /// Blocks are marked: nothing that was called is needed any more.
    fn stop(&mut self) {
        self.restart();
        self.is_needed = false;
    }

    /// What the last look showed.
    pub(crate) fn found(&self) -> Option<&Diagnosis> {
        self.found.as_ref()
    }

    /// The numbers of what it showed, in its order.
    pub(crate) fn numbers(&self) -> &[u64] {
        &self.numbers
    }

    fn make_room(&mut self) {
        for caller in self.ranks.values_mut() {
            let calls = &mut caller.log.calls;
            // A quarter at once: it moves all later calls, and so is to be rare.
            // Counts jump where calls are left out, so that this is a gap and no lateness.
            calls.drain(calls.len() / 8 * 3..calls.len() / 8 * 5);
        }
        let left = self
            .ranks
            .values()
            .map(|caller| caller.log.calls.len())
            .sum();
        self.looked = self.looked.saturating_sub(self.calls - left);
        self.next_look = self.next_look.saturating_sub(self.calls - left);
        self.calls = left;
    }
}

impl Caller {
    /// The call that issues a collective.
    fn call(&mut self, at: RankNs, issue: &CollectiveIssue) -> Option<Call> {
        let CollectiveIssue {
            op,
            group,
            number,
            bytes,
            element_bytes,
            ..
        } = *issue;
        let is_point = op.is_point_to_point();
        let next = self.lanes.len();
        if next == MAX_LANES && !self.lanes.contains_key(&(group, is_point)) {
            return None;
        }
        // Sends and receives have no numbers: beside collectives they would break a lane's counts.
        let lane = *self.lanes.entry((group, is_point)).or_insert(next as u32);
        if lane as usize == next {
            // The same on all ranks of a group, as the hash of a communicator is in logs.
            let hash = format!("{group}{}", if is_point { "p" } else { "c" });
            self.log.lanes.push(Lane {
                pointer: String::new(),
                hash,
            });
            self.counts.push(0);
        }
        let known = self.counts.get_mut(lane as usize)?;
        // Who sends or receives does not count with the group.
        let count = number.checked_sub(1).unwrap_or(*known);
        *known = count.saturating_add(1);
        let bytes = bytes.unwrap_or(0);
        let size = match Unit::of(op) {
            // 0 if the size of an element is unknown.
            Unit::Elements => bytes / element_bytes.max(1),
            Unit::Bytes => bytes,
        };
        Some(Call {
            at_ns: at.0,
            op,
            size,
            lane,
            count: Some(count),
        })
    }
}

/// The numbers of what a look found: those that the look before gave, or new ones.
fn numbers(
    before: &[SlowIterations],
    known: &[u64],
    found: &[SlowIterations],
    numbered: &mut u64,
) -> Vec<u64> {
    let mut known: Vec<(&SlowIterations, u64)> = before.iter().zip(known.iter().copied()).collect();
    let number = |one: &SlowIterations| {
        // Of two that were one only the first is it.
        if let Some(at) = known.iter().position(|(other, _)| is_same(other, one)) {
            return known.swap_remove(at).1;
        }
        *numbered += 1;
        *numbered
    };
    found.iter().map(number).collect()
}

/// Whether a finding of a later look is one of an earlier look, which may have gone on since.
fn is_same(before: &SlowIterations, now: &SlowIterations) -> bool {
    goes_on(before, now) && before.first <= now.last + 1
}

/// Whether a later finding is the same one, still going on.
fn goes_on(before: &SlowIterations, now: &SlowIterations) -> bool {
    (&now.ranks, now.stage) == (&before.ranks, before.stage) && now.first <= before.last + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(rank: u32, first: u64, last: u64) -> SlowIterations {
        SlowIterations {
            ranks: vec![rank],
            unseen: Vec::new(),
            stage: Some(rank),
            passes: Vec::new(),
            cause: BlockCause::Compute,
            first,
            last,
            open: false,
            took_s: 2.0,
            usual_s: 1.0,
            lost_s: 1.0,
            span_ns: None,
            victims: Vec::new(),
            outside_s: None,
            wide_share: None,
            copies_share: None,
            last_share: None,
            block: None,
        }
    }

    #[test]
    fn what_is_found_again_keeps_its_number_whatever_its_place() {
        let mut numbered = 0;
        let first = [slow(1, 10, 20), slow(2, 15, 30)];
        let given = numbers(&[], &[], &first, &mut numbered);
        assert_eq!(given, [1, 2]);
        // Rank 2 costs more by now, and rank 1 was slow once more, long after.
        let then = [slow(2, 15, 60), slow(1, 50, 60), slow(1, 10, 20)];
        let given = numbers(&first, &given, &then, &mut numbered);
        assert_eq!(given, [2, 3, 1]);
    }

    #[test]
    fn no_number_is_given_again_after_a_restart() {
        let mut called = Called::new(ScheduleSettings::default());
        called.numbered = 2;
        called.stop();
        called.restart();
        assert_eq!((called.numbered, called.is_needed), (2, true));
    }
}
