use model::{
    CollectiveIssue, CollectiveOp, Event, FunctionClass, Mark, Pattern, ProfileWindow,
    WorkerPatterns,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

/// A rank of two has entered so many collectives.
fn entered(rank: u32, number: u64) -> Vec<Input> {
    let members = (0..2).collect();
    let sum = CollectiveIssue::new(CollectiveOp::ALLREDUCE, 1, number);
    let (at, event) = (RankNs(SECOND), Event::CollectiveIssue(sum));
    let mark = Mark {
        at,
        step: 40,
        on_loop_thread: true,
        event,
    };
    vec![
        Input::Group {
            group: 1,
            name: "default".to_owned(),
            members,
        },
        Input::Mark { rank, mark },
    ]
}

fn batch(host: &str, until_s: u64, inputs: Vec<Input>) -> Batch {
    let (host, session) = (host.to_owned(), "e".to_owned());
    let watermark = RankNs(until_s * SECOND);
    Batch {
        host,
        session,
        sequence: 0,
        shift_ns: 0,
        watermark,
        last: false,
        inputs,
    }
}

fn quiet(at_s: u64) -> Vec<Input> {
    vec![Input::NoProgress {
        at: RankNs(at_s * SECOND),
    }]
}

fn two_hosts() -> HostMerger {
    let mut merger = HostMerger::new("job", Settings::default());
    merger.take(batch("a", 2, entered(0, 47)));
    merger.take(batch("b", 2, entered(1, 46)));
    merger
}

#[test]
fn a_job_hangs_only_up_to_where_every_host_has_spoken() {
    let mut merger = two_hosts();
    merger.take(batch("a", 12, quiet(12)));
    assert_eq!(merger.wanted_stacks(), [] as [u32; 0], "b may have moved");
    merger.take(batch("b", 12, Vec::new()));
    assert_eq!(merger.wanted_stacks(), [1, 0]);
    // One that is far behind is not waited for, and nobody is accused meanwhile.
    let mut merger = two_hosts();
    merger.take(batch("a", 60, quiet(60)));
    assert_eq!(merger.wanted_stacks(), [] as [u32; 0]);
    merger.lose("b");
    merger.take(batch("a", 61, quiet(61)));
    assert_eq!(merger.wanted_stacks(), [1, 0]);
    assert_eq!(merger.silent_hosts(), ["b"]);
}

#[test]
fn all_that_every_host_is_past_is_taken() {
    let issue = |rank, at_s| {
        let sum = CollectiveIssue::new(CollectiveOp::ALLREDUCE, 1, at_s);
        let mark = Mark {
            at: RankNs(at_s * SECOND),
            step: 40,
            on_loop_thread: true,
            event: Event::CollectiveIssue(sum),
        };
        Input::Mark { rank, mark }
    };
    let mut merger = two_hosts();
    merger.take(batch("a", 12, vec![issue(0, 3), issue(0, 12)]));
    merger.take(batch("b", 8, vec![issue(1, 5), issue(1, 7)]));
    let left: Vec<RankNs> = merger.heads.iter().map(|(at, _)| *at).collect();
    assert_eq!(left, [RankNs(12 * SECOND)]);
}

#[test]
fn one_host_that_has_reported_its_stacks_does_not_end_the_wait_for_the_others() {
    let mut merger = two_hosts();
    merger.take(batch("b", 12, Vec::new()));
    let reported = [quiet(12), vec![Input::StacksComplete]].concat();
    merger.take(batch("a", 12, reported));
    assert_eq!(merger.wanted_stacks(), [1, 0]);
    for host in ["a", "b"] {
        merger.take(batch(host, 16, Vec::new()));
    }
    let said = merger.take_announcements();
    let [Announcement::Hang { claim, .. }] = &said[..] else {
        panic!("{said:?}")
    };
    let headline = narrate::headline(claim);
    assert!(
        headline.contains("rank 1 never entered ALLREDUCE #47"),
        "{headline}"
    );
    assert_eq!(merger.wanted_stacks(), [] as [u32; 0]);
}

#[test]
fn a_restart_that_every_host_tells_of_counts_once() {
    let mut merger = two_hosts();
    for host in ["a", "b"] {
        merger.take(batch(host, 3, vec![Input::Restart { attempt: 1 }]));
    }
    for host in ["a", "b"] {
        merger.take(Batch {
            last: true,
            ..batch(host, 4, Vec::new())
        });
    }
    assert!(merger.ended());
    // The same job anew, and a host that was not there before.
    for host in ["a", "b", "c"] {
        let session = "later".to_owned();
        merger.take(Batch {
            session,
            ..batch(host, 5, entered(0, 1))
        });
    }
    assert!(!merger.ended());
    let notes = merger.job().verdict().notes;
    let restarts = "the job was restarted (2); steps are counted from the last start";
    assert!(notes.iter().any(|note| note == restarts), "{notes:?}");
}

/// Marks of rank 0 by their number, and its lost records, as they reach the job.
fn reported_of(host: &Host) -> (Vec<u64>, u64) {
    let (mut numbers, mut lost) = (Vec::new(), 0);
    for (_, input) in &host.queue {
        match input {
            Some(Input::Mark { mark, .. }) => match mark.event {
                Event::SideSample { nanoseconds, .. } => numbers.push(nanoseconds),
                other => panic!("{other:?}"),
            },
            Some(Input::Lost { records, .. }) => lost += records,
            _ => {}
        }
    }
    (numbers, lost)
}

proptest! {
    /// Each agent tells what the ring has when it comes, and dies before all it read is taken:
    /// every mark is reported once, or is among those that are counted as lost.
    #[test]
    fn what_agents_that_die_tell_again_counts_once(
        gaps in vec(0_u64..3, 1..200),
        slots in 1_usize..300,
        deaths in vec((0_usize..200, 0_usize..50), 0..6),
    ) {
        let times: Vec<u64> = gaps.iter().scan(1, |at, gap| { *at += gap; Some(*at) }).collect();
        let mut host = Host::default();
        // What was written when each agent came, and what was taken of what it read.
        let mut agents: Vec<(usize, usize)> = deaths;
        agents.sort_unstable();
        agents.push((times.len(), times.len()));
        for (written, taken) in agents {
            let written = written.min(times.len());
            let oldest = written.saturating_sub(slots);
            host.begin_anew();
            for name in ["a", "b"] {
                host.take(Input::Name { rank: 0, name: name.to_owned() });
            }
            if oldest > 0 {
                host.take(Input::Lost { rank: 0, records: oldest as u64 });
            }
            for (number, at) in times.iter().enumerate().take(written).skip(oldest).take(taken) {
                let event = Event::SideSample { name: 0, nanoseconds: number as u64 };
                let mark = Mark { at: RankNs(*at), step: 0, on_loop_thread: true, event };
                host.take(Input::Mark { rank: 0, mark });
            }
        }
        let (numbers, lost) = reported_of(&host);
        prop_assert!(numbers.is_sorted_by(|a, b| a < b), "{:?}", numbers);
        prop_assert_eq!(numbers.len() as u64 + lost, times.len() as u64);
        let names = host.queue.iter().filter(|(_, input)| matches!(input, Some(Input::Name { .. })));
        prop_assert_eq!(names.count(), 2);
    }
}

#[test]
fn a_rank_that_was_started_anew_has_its_own_names() {
    let mut host = Host::default();
    let name = |name: &str| Input::Name {
        rank: 0,
        name: name.to_owned(),
    };
    let left = Input::Left {
        rank: 0,
        step: 3,
        orderly: false,
    };
    host.take(name("a"));
    host.take(left);
    host.take(name("b"));
    // The next agent finds the second process only.
    host.begin_anew();
    host.take(name("b"));
    host.take(name("c"));
    let reported = host.queue.into_iter().filter_map(|(_, input)| match input {
        Some(Input::Name { name, .. }) => Some(name),
        _ => None,
    });
    assert_eq!(reported.collect::<Vec<_>>(), ["a", "b", "c"]);
}

/// What a host tells of a window: that it is ordered of its ranks, and what they did in it.
fn ordered(ranks: [u32; 2]) -> Vec<Input> {
    vec![Input::ProfileOrdered {
        ranks: ranks.to_vec(),
        first_step: 50,
        steps: 10,
    }]
}

fn profiled(ranks: [u32; 2]) -> Vec<Input> {
    let window = |rank| {
        let mut patterns = WorkerPatterns::default();
        let id = patterns
            .functions
            .intern(FunctionClass::Python, "sleep", None);
        // Three quarters of the time on rank 1, and next to nothing elsewhere.
        let beta = if rank == 1 { 0.75 } else { 0.005 };
        let pattern = Pattern {
            beta,
            events: 1,
            ..Pattern::default()
        };
        patterns.patterns.insert(id, pattern);
        let window = ProfileWindow {
            span_s: 1.0,
            patterns,
            ..Default::default()
        };
        Input::Profiled {
            rank,
            window: Box::new(window),
        }
    };
    let ended = Input::ProfileEnded {
        ranks: ranks.to_vec(),
    };
    ranks.into_iter().map(window).chain([ended]).collect()
}

/// The ranks that were compared, and of each function that stands out on which.
fn compared(merger: &HostMerger) -> Option<(Vec<u32>, Vec<Vec<u32>>)> {
    let profile = merger.job().verdict().profile?;
    let ranks = profile.ranks.iter().map(|rank| rank.rank).collect();
    let abnormal = profile.functions.iter().map(|function| {
        function
            .abnormal
            .iter()
            .map(|abnormal| abnormal.rank)
            .collect()
    });
    Some((ranks, abnormal.collect()))
}

#[test]
fn ranks_of_all_hosts_are_compared_once_each_has_reported_its_part_of_the_window() {
    let mut merger = HostMerger::new("job", Settings::default());
    merger.take(batch("a", 2, ordered([0, 1])));
    merger.take(batch("b", 2, ordered([2, 3])));
    merger.take(batch("a", 3, profiled([0, 1])));
    merger.take(batch("b", 3, Vec::new()));
    assert_eq!(compared(&merger), None, "the ranks of b are waited for");
    merger.take(batch("b", 4, profiled([2, 3])));
    merger.take(batch("a", 4, Vec::new()));
    assert_eq!(compared(&merger), Some((vec![0, 1, 2, 3], vec![vec![1]])));
}

#[test]
fn a_host_that_falls_silent_does_not_keep_a_window_from_its_end() {
    let mut merger = HostMerger::new("job", Settings::default());
    merger.take(batch("a", 2, ordered([0, 1])));
    merger.take(batch("b", 2, ordered([2, 3])));
    merger.take(batch("a", 3, profiled([0, 1])));
    merger.lose("b");
    assert_eq!(compared(&merger).map(|found| found.0), Some(vec![0, 1]));
}

#[test]
fn what_was_wanted_of_a_start_is_not_asked_for_in_the_next() {
    let mut merger = two_hosts();
    merger.profile = Some(WantedProfile {
        ranks: vec![0, 1],
        first_step: 10_012,
        steps: 10,
        limit_ms: 1000,
    });
    merger.device_steps = Some(10_012..10_020);
    merger.take(batch("a", 3, vec![Input::Restart { attempt: 1 }]));
    merger.take(batch("b", 3, vec![Input::Restart { attempt: 1 }]));
    assert_eq!(merger.wanted_profile(), None);
    assert_eq!(merger.wanted_device_steps(), None);
}
