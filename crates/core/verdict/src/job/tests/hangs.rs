use super::deaths::texts;
use super::*;

#[test]
fn the_rank_that_was_killed_first_is_reported_also_after_a_restart() {
    let mut job = Job::new("job", Source::Run, Settings::default());
    let members = (0..4).collect();
    job.take(Input::Group {
        group: 1,
        name: "default".to_owned(),
        members,
    });
    for (rank, number) in [(0, 47), (1, 46), (2, 47), (3, 47)] {
        let (at, on_loop_thread, event) = (RankNs(1), true, sum(number));
        let mark = Mark {
            at,
            step: 40,
            on_loop_thread,
            event,
        };
        job.take(Input::Mark { rank, mark });
    }
    job.take(Input::Killed {
        rank: 1,
        signal: Some(9),
    });
    job.take(Input::Killed {
        rank: 0,
        signal: Some(6),
    });
    let reported = "rank 1 was killed by signal 9 (SIGKILL) in step 40, before it entered \
                ALLREDUCE #47 of group default (ranks 0,2-3 were in it)";
    assert_eq!(lines(&mut job), [reported]);
    let deaths = |job: &Job| {
        let deaths = job.verdict().incidents.into_iter();
        deaths
            .map(|death| (death.text, death.open))
            .collect::<Vec<_>>()
    };
    assert_eq!(deaths(&job), [(reported.to_owned(), true)]);
    job.take(left(1, false));
    job.take(Input::Restart { attempt: 1 });
    assert_eq!(deaths(&job), [(reported.to_owned(), false)]);
    job.take(Input::Left {
        rank: 0,
        step: 0,
        orderly: false,
    });
    let notes = job.verdict().notes;
    assert!(
        notes.iter().all(|note| !note.contains("went on to")),
        "{notes:?}"
    );
}

/// A job of three in which ranks 0 and 2 wait for rank 1.
pub(super) fn waits_for_one() -> Job {
    let mut job = Job::new("job", Source::Run, Settings::default());
    let members = (0..3).collect();
    job.take(Input::Group {
        group: 1,
        name: "default".to_owned(),
        members,
    });
    for (rank, number) in [(0, 47), (1, 46), (2, 47)] {
        take_mark(&mut job, rank, 10, sum(number));
    }
    job
}

const NEVER: &str = "hang since step 40: rank 1 never entered ALLREDUCE #47 of group default (ranks 0,2 wait in it)";

#[test]
fn a_rank_that_a_watchdog_aborts_is_a_victim_of_the_one_that_never_came() {
    let mut job = waits_for_one();
    quiet(&mut job, 12);
    // Nothing was said yet: stacks were not read.
    job.take(Input::Killed {
        rank: 0,
        signal: Some(6),
    });
    job.take(Input::Killed {
        rank: 2,
        signal: Some(6),
    });
    job.take(left(0, false));
    job.take(left(2, false));
    assert_eq!(lines(&mut job), [NEVER]);
    let hang = critical_hang(&job, &[1]);
    assert_eq!(hang.victims, [0, 2].into_iter().collect());
}

#[test]
fn a_rank_that_aborts_where_others_were_about_to_come_is_the_reason() {
    let mut job = waits_for_one();
    job.take(Input::Killed {
        rank: 0,
        signal: Some(6),
    });
    take_mark(&mut job, 1, 11, sum(47));
    let [death] = &job.verdict().incidents[..] else {
        panic!("{:?}", job.verdict())
    };
    assert_eq!(death.subject.ranks, [0]);
}

#[test]
fn ranks_that_fail_once_another_has_ended_gave_up_waiting_for_it() {
    let mut job = waits_for_one();
    job.take(left(1, true));
    // What a rank leaves is no work.
    take_mark(&mut job, 0, 11, Event::BackwardEnd);
    for rank in [0, 2] {
        job.take(Input::Failed { rank, code: 1 });
        job.take(left(rank, true));
    }
    assert_eq!(lines(&mut job), [format!("{NEVER}; rank 1 has ended")]);
    critical_hang(&job, &[1]);
}

#[test]
fn how_a_rank_was_killed_may_be_heard_once_others_gave_up() {
    let mut job = waits_for_one();
    job.take(left(1, false));
    job.take(Input::Failed { rank: 0, code: 1 });
    job.take(Input::Killed {
        rank: 1,
        signal: Some(9),
    });
    let expected = "rank 1 was killed by signal 9 (SIGKILL) in step 40, before it entered \
                    ALLREDUCE #47 of group default (ranks 0,2 were in it)";
    assert_eq!(texts(&job), [expected]);
}

#[test]
fn who_called_something_else_is_the_reason_whoever_aborts_first() {
    let mut job = Job::new("job", Source::Run, Settings::default());
    let members = (0..4).collect();
    job.take(Input::Group {
        group: 1,
        name: "default".to_owned(),
        members,
    });
    let issue = |job: &mut Job, rank, bytes: u64| {
        let sum = CollectiveIssue::new(CollectiveOp::ALLREDUCE, 1, 47);
        let sum = CollectiveIssue {
            bytes: Some(bytes),
            ..sum
        };
        take_mark(job, rank, 10, Event::CollectiveIssue(sum));
    };
    issue(&mut job, 0, 800);
    issue(&mut job, 2, 16);
    job.take(Input::Killed {
        rank: 0,
        signal: Some(6),
    });
    issue(&mut job, 1, 800);
    issue(&mut job, 3, 800);
    job.take(Input::Killed {
        rank: 2,
        signal: None,
    });
    let [hang] = &job.verdict().incidents[..] else {
        panic!("{:?}", job.verdict())
    };
    let expected = "hang since step 40: rank 2 entered ALLREDUCE (16 bytes) where the others \
                    entered ALLREDUCE #47 of group default (800 bytes)";
    assert_eq!(
        (hang.text.as_str(), &hang.subject.ranks[..]),
        (expected, &[2][..])
    );
}

#[test]
fn a_hang_that_was_reported_stays_when_ranks_give_up() {
    for failed_first in [true, false] {
        let mut job = waits_for_one();
        quiet(&mut job, 12);
        job.take(Input::StacksComplete);
        assert_eq!(lines(&mut job), [NEVER]);
        for rank in [0, 1, 2] {
            // Leaving the loop is no movement.
            take_mark(&mut job, rank, 20, Event::BackwardEnd);
            let left = left(rank, true);
            let failed = Input::Failed { rank, code: 1 };
            let inputs = if failed_first {
                [failed, left]
            } else {
                [left, failed]
            };
            for input in inputs {
                job.take(input);
            }
        }
        assert!(lines(&mut job).is_empty());
        critical_hang(&job, &[1]);
    }
}

#[test]
fn a_job_in_which_nothing_moves_and_nobody_waits_is_reported() {
    let mut job = waits_for_one();
    take_mark(&mut job, 1, 11, sum(47));
    assert_unsaid(&mut job, 60);
    assert_eq!(quiet(&mut job, 72).len(), 3);
    job.take(Input::StacksComplete);
    let said = "nothing has moved for 61.00 s since step 40: ranks 0-2 issued ALLREDUCE #47 of \
                group default and have done nothing since: it is unknown whether devices have stalled or \
                hosts are busy";
    assert_eq!(lines(&mut job), [said]);
    let [hang] = &job.verdict().incidents[..] else {
        panic!("{:?}", job.verdict())
    };
    assert_eq!(
        (hang.subject.ranks.len(), hang.severity),
        (0, Severity::Warning)
    );
    // After as long as pauses may last at most it is serious.
    assert_eq!(quiet(&mut job, 700).len(), 3);
    job.take(Input::StacksComplete);
    assert_eq!(job.verdict().incidents[0].severity, Severity::Critical);
    take_mark(&mut job, 1, 701, Event::DataBegin);
    assert!(
        lines(&mut job)
            .last()
            .is_some_and(|line| line.starts_with("the job moves again"))
    );
}

/// A job of two that rank 0 waits for rank 1 to begin.
fn begins() -> Job {
    let mut job = Job::new("job", Source::Run, Settings::default());
    let members = (0..2).collect();
    job.take(Input::Group {
        group: 1,
        name: "default".to_owned(),
        members,
    });
    take_mark_in(
        &mut job,
        0,
        0,
        10,
        Event::InitBegin {
            group: 1,
            number: 1,
        },
    );
    job
}

#[test]
fn a_rank_that_does_not_come_to_the_start_is_named_once_it_is_found() {
    let mut job = begins();
    assert!(quiet(&mut job, 69).is_empty());
    assert_eq!(quiet(&mut job, 71), [1, 0]);
    job.take(Input::StacksComplete);
    let waits = "startup has stalled: rank 0 waits in INIT_PROCESS_GROUP #1 of group default for \
                 rank 1 (not recorded here)";
    assert_eq!(lines(&mut job)[0], waits);
    assert!(!quiet(&mut job, 131).contains(&1));
    assert!(
        quiet(&mut job, 135).contains(&1),
        "asked again after twice as long"
    );
    let frame = Frame {
        function: "prepare".to_owned(),
        file: "train.py".to_owned(),
        line: 7,
    };
    let stack = Stack::new(ProcessState::Sleeping, Some(false), vec![frame]);
    job.take(Input::Stack { rank: 1, stack });
    job.take(Input::StacksComplete);
    let never = "startup has stalled: rank 1 never entered INIT_PROCESS_GROUP #1 of group default \
                 (rank 0 waits in it); rank 1 is in prepare (train.py:7)";
    assert_eq!(lines(&mut job)[0], never);
    let verdict = job.verdict();
    assert_eq!(verdict.incidents[0].text, never);
    assert!(verdict.notes.is_empty(), "{:?}", verdict.notes);
}

#[test]
fn a_start_that_fails_is_not_reported_before_its_time() {
    let mut job = begins();
    take_mark_in(
        &mut job,
        0,
        1,
        10,
        Event::InitBegin {
            group: 1,
            number: 1,
        },
    );
    job.take(Input::Left {
        rank: 1,
        step: 0,
        orderly: false,
    });
    assert!(quiet(&mut job, 69).is_empty());
    assert_eq!(quiet(&mut job, 71), [1, 0]);
}

#[test]
fn a_rank_announces_no_more_neighbours_than_a_host_has() {
    let mut job = Job::new("job", Source::Marks, Settings::default());
    for rank in 0..10 {
        let (host, role) = ("host".to_owned(), None);
        let (first_local, locals) = (rank << 24, u32::MAX);
        let world_size = u32::MAX;
        job.take(Input::Rank {
            rank,
            host,
            role,
            first_local,
            locals,
            world_size,
        });
    }
    assert!(job.aligner.ranks() <= steps::MAX_NEIGHBOURS + 10);
}

/// A job of two in which rank 0 waits for rank 1 while both are profiled.
fn hangs_in_a_window() -> Job {
    let mut job = Job::new("job", Source::Run, Settings::default());
    let members = (0..2).collect();
    job.take(Input::Group {
        group: 1,
        name: "default".to_owned(),
        members,
    });
    job.take(Input::ProfileOrdered {
        ranks: vec![0, 1],
        first_step: 40,
        steps: 10,
    });
    for (rank, number) in [(0, 47), (1, 46)] {
        take_mark(&mut job, rank, 10, sum(number));
    }
    job
}

/// A rank ends in step 40.
pub(super) fn left(rank: u32, orderly: bool) -> Input {
    Input::Left {
        rank,
        step: 40,
        orderly,
    }
}

/// The `number`th all-reduce of group 1.
pub(super) fn sum(number: u64) -> Event {
    Event::CollectiveIssue(CollectiveIssue::new(CollectiveOp::ALLREDUCE, 1, number))
}

pub(super) fn take_mark(job: &mut Job, rank: u32, at_s: u64, event: Event) {
    take_mark_in(job, 40, rank, at_s, event);
}

fn take_mark_in(job: &mut Job, step: u32, rank: u32, at_s: u64, event: Event) {
    let (at, on_loop_thread) = (RankNs(at_s * 1_000_000_000), true);
    let mark = Mark {
        at,
        step,
        on_loop_thread,
        event,
    };
    job.take(Input::Mark { rank, mark });
}

pub(super) fn quiet(job: &mut Job, at_s: u64) -> Vec<u32> {
    job.take(Input::NoProgress {
        at: RankNs(at_s * 1_000_000_000),
    });
    job.wanted_stacks()
}

/// That nothing has moved until now may pass: its ranks are looked at, and nothing is said.
pub(super) fn assert_unsaid(job: &mut Job, at_s: u64) {
    quiet(job, at_s);
    job.take(Input::StacksComplete);
    assert!(lines(job).is_empty());
}

#[test]
fn a_hang_is_reported_while_a_window_is_under_way() {
    let mut job = hangs_in_a_window();
    assert_eq!(quiet(&mut job, 12), [1, 0]);
}

#[test]
fn a_rank_that_stands_still_for_its_profiler_does_not_hang() {
    let mut job = hangs_in_a_window();
    take_mark(&mut job, 1, 10, Event::ProfilerBegin);
    assert_eq!(quiet(&mut job, 16), [] as [u32; 0]);
    take_mark(&mut job, 1, 17, Event::ProfilerEnd);
    // Nor is a pause of seven seconds usual from now on.
    assert_eq!(quiet(&mut job, 18), [] as [u32; 0]);
    assert_eq!(quiet(&mut job, 19), [1, 0]);
    // One that never comes back from it does.
    let mut job = hangs_in_a_window();
    take_mark(&mut job, 1, 10, Event::ProfilerBegin);
    assert_eq!(quiet(&mut job, 41), [1, 0]);
}

/// A job of two, with iterations of 0.1 s, that has once paused for 30 s, and where rank 1 did not
/// come to its last collective.
fn pauses_at_times() -> (Job, u64) {
    let mut job = Job::new("job", Source::Run, Settings::default());
    job.take(Input::Group {
        group: 1,
        name: "default".to_owned(),
        members: (0..2).collect(),
    });
    let steps = 40;
    let mut at_ms = 1000;
    for step in 0..steps {
        at_ms += if step == 20 { 30_000 } else { 0 };
        let events = [
            (Event::DataBegin, 0),
            (Event::DataEnd, 10),
            (sum(u64::from(step) + 1), 40),
            (Event::OptimizerBegin, 80),
            (Event::OptimizerEnd, 90),
        ];
        for (event, after_ms) in events {
            for rank in [0, 1] {
                let is_issue = event.kind() == MarkKind::CollectiveIssue;
                if step == steps - 1 && after_ms >= 40 && (rank == 1 || !is_issue) {
                    continue;
                }
                let at = RankNs((at_ms + after_ms) * 1_000_000);
                let mark = Mark {
                    at,
                    step,
                    on_loop_thread: true,
                    event,
                };
                job.take(Input::Mark { rank, mark });
            }
        }
        at_ms += 100;
    }
    (job, at_ms)
}

fn take_stacks(job: &mut Job, state: ProcessState, function: &str) {
    let frame = |function: &str| Frame {
        function: function.to_owned(),
        file: "train.py".to_owned(),
        line: 7,
    };
    for (rank, state, function) in [(1, state, function), (0, ProcessState::Sleeping, "main")] {
        let stack = Stack::new(state, None, vec![frame(function)]);
        job.take(Input::Stack { rank, stack });
    }
    job.take(Input::StacksComplete);
}

/// It has paused for longer before: by that alone it would be looked at after a minute.
#[test]
fn a_blocked_job_is_looked_at_and_what_cannot_pass_is_reported() {
    let (mut job, at_ms) = pauses_at_times();
    let quiet = |job: &mut Job, after_ms: u64| {
        job.take(Input::NoProgress {
            at: RankNs((at_ms + after_ms) * 1_000_000),
        });
        job.wanted_stacks()
    };
    assert_eq!(quiet(&mut job, 1300), [] as [u32; 0]);
    assert_eq!(quiet(&mut job, 1700), [1, 0]);
    take_stacks(&mut job, ProcessState::Stopped, "main");
    let [hang] = &job.verdict().incidents[..] else {
        panic!("{:?}", job.verdict())
    };
    assert_eq!(
        (hang.subject.ranks.as_slice(), hang.severity),
        (&[1][..], Severity::Critical)
    );
    assert_eq!(quiet(&mut job, 60_000), [] as [u32; 0], "it is told once");
    assert_eq!(job.verdict().incidents.len(), 1);
}

#[test]
fn a_blocked_job_that_may_only_pause_is_reported_when_it_pauses_longer_than_usual() {
    for function in ["save_checkpoint", "log_everything"] {
        let (mut job, at_ms) = pauses_at_times();
        let quiet = |job: &mut Job, after_ms: u64| {
            job.take(Input::NoProgress {
                at: RankNs((at_ms + after_ms) * 1_000_000),
            });
            job.wanted_stacks()
        };
        assert_eq!(quiet(&mut job, 1700), [1, 0]);
        take_stacks(&mut job, ProcessState::Running, function);
        assert!(
            job.verdict().incidents.is_empty(),
            "{:?}",
            job.verdict().incidents
        );
        assert_eq!(quiet(&mut job, 20_000), [] as [u32; 0], "it was looked at");
        assert_eq!(quiet(&mut job, 90_000), [1, 0], "what they do now");
        take_stacks(&mut job, ProcessState::Running, function);
        let [hang] = &job.verdict().incidents[..] else {
            panic!("{:?}", job.verdict())
        };
        let is_pause = function == "save_checkpoint";
        assert_eq!(hang.severity == Severity::Info, is_pause, "{}", hang.text);
    }
}

#[test]
fn a_pause_that_becomes_a_hang_is_reported_again() {
    let stack = |function: &str| {
        let (function, file) = (function.to_owned(), "train.py".to_owned());
        let frames = vec![Frame {
            function,
            file,
            line: 7,
        }];
        Stack::new(ProcessState::Sleeping, Some(false), frames)
    };
    let look = |job: &mut Job, at_s: u64, function: &str| {
        assert_eq!(quiet(job, at_s), [1, 0], "at {at_s} s");
        job.take(Input::Stack {
            rank: 1,
            stack: stack(function),
        });
        job.take(Input::StacksComplete);
        lines(job).into_iter().next().unwrap_or_default()
    };
    let reported = "rank 1 never entered ALLREDUCE #47 of group default (rank 0 waits in it); \
                rank 1 is in save_checkpoint (train.py:7) and writes a checkpoint";
    let mut job = hangs_in_a_window();
    let said = look(&mut job, 12, "save_checkpoint");
    assert_eq!(said, format!("waiting since step 40: {reported}"));
    assert_eq!(quiet(&mut job, 13), [] as [u32; 0], "it was just looked at");
    assert_eq!(look(&mut job, 14, "save_checkpoint"), "", "that was said");
    assert_eq!(
        look(&mut job, 611, "save_checkpoint"),
        format!("hang since step 40: {reported}, for more than 600.00 s")
    );
    assert_eq!(quiet(&mut job, 9999), [] as [u32; 0], "all was said");
    // One that has left its pause for something that does not end.
    let mut job = hangs_in_a_window();
    look(&mut job, 12, "save_checkpoint");
    let said = look(&mut job, 20, "read_shard");
    assert!(
        said.starts_with("hang since step 40: ") && said.ends_with("is in read_shard (train.py:7)"),
        "{said}"
    );
    let [hang] = &job.verdict().incidents[..] else {
        panic!("{:?}", job.verdict())
    };
    assert_eq!((hang.severity, hang.open), (Severity::Critical, true));
}

/// One rank stands still in its last backward, and the other waits for it in a collective.
#[test]
fn where_a_pipeline_stands_still_joins_what_its_collectives_say() {
    const STEP_S: u64 = 60;
    let plan = schedule::Scheme::OneForwardOneBackward.plan(2, 4);
    let mut job = Job::new("job", Source::Run, Settings::default());
    job.take(Input::Group {
        group: 1,
        name: "default".to_owned(),
        members: (0..2).collect(),
    });
    let steps = 5;
    for step in 0..steps {
        let mut mark = |rank: u32, second: u64, event: Event| {
            let at = RankNs((u64::from(step) * STEP_S + second) * 1_000_000_000);
            let mark = Mark {
                at,
                step,
                on_loop_thread: true,
                event,
            };
            job.take(Input::Mark { rank, mark });
        };
        for rank in [1, 0] {
            let order = plan.order(rank as usize);
            for (block, at) in order.iter().zip(0..) {
                let place = BlockPlace {
                    pass: block.pass,
                    stage: rank,
                    microbatch: block.microbatch,
                    stages: 2,
                    first_rank: 0,
                };
                mark(rank, 2 * at, Event::BlockBegin(place));
                if (step, rank, at) == (steps - 1, 0, 7) {
                    continue;
                }
                mark(rank, 2 * at + 1, Event::BlockEnd(place));
            }
            if (step, rank) != (steps - 1, 0) {
                mark(rank, 20, sum(u64::from(step) + 1));
            }
        }
    }
    let end_s = u64::from(steps) * STEP_S;
    assert_eq!(quiet(&mut job, end_s + 10 * STEP_S), [0, 1]);
    job.take(Input::StacksComplete);
    let [hang] = &job.verdict().incidents[..] else {
        panic!("{:?}", job.verdict())
    };
    assert_eq!(
        (hang.kind, &hang.subject.ranks[..]),
        (model::IncidentKind::Hang, &[0][..])
    );
    let halt = hang.evidence.iter().find(|it| it.label == "halt_point");
    let said = halt.map(|halt| halt.text.as_str()).unwrap_or_default();
    assert!(
        said.contains("backward of microbatch 3"),
        "{:?}",
        hang.evidence
    );
    let methods: Vec<model::Method> = hang.evidence.iter().map(|it| it.method).collect();
    assert!(
        methods.contains(&model::Method::Collective),
        "{:?}",
        hang.evidence
    );
}

#[test]
fn ranks_that_waited_for_other_hosts_and_end_in_good_order_did_not_hang() {
    let mut job = Job::new("job", Source::Run, Settings::default());
    let members = (0..4).collect();
    job.take(Input::Group {
        group: 1,
        name: "default".to_owned(),
        members,
    });
    for rank in [0, 1] {
        take_mark(&mut job, rank, 10, sum(47));
    }
    quiet(&mut job, 13);
    job.take(Input::StacksComplete);
    assert_eq!(job.verdict().incidents.len(), 1);
    for rank in [0, 1] {
        job.take(left(rank, true));
    }
    assert!(job.verdict().incidents.is_empty());
    // Nor while the launcher waits for the others' hosts.
    quiet(&mut job, 20);
    job.take(Input::StacksComplete);
    assert!(job.verdict().incidents.is_empty());
}

#[test]
fn a_hang_is_reported_with_where_all_ranks_are_and_how_far_they_came() {
    let mut job = Job::new("job", Source::Run, Settings::default());
    let all = 0..8;
    let members = all.clone().collect();
    job.take(Input::Group {
        group: 1,
        name: "default".to_owned(),
        members,
    });
    for rank in all.clone() {
        let (host, role) = ("host".to_owned(), None);
        let (first_local, locals, world_size) = (0, 8, 8);
        job.take(Input::Rank {
            rank,
            host,
            role,
            first_local,
            locals,
            world_size,
        });
        let number = if rank == 5 { 46 } else { 47 };
        take_mark(&mut job, rank, 10, sum(number));
    }
    let answer = |job: &mut Job, ranks: &[u32]| {
        for rank in ranks {
            let function = if *rank == 5 {
                "read_shard"
            } else {
                "all_reduce"
            };
            let (function, file) = (function.to_owned(), "train.py".to_owned());
            let frames = vec![Frame {
                function,
                file,
                line: 7,
            }];
            let state = ProcessState::Sleeping;
            let stack = Stack::new(state, None, frames);
            job.take(Input::Stack { rank: *rank, stack });
        }
    };
    let first = quiet(&mut job, 12);
    assert_eq!(first, [5, 0, 1, 2]);
    answer(&mut job, &first);
    job.take(Input::StacksComplete);
    let reported = |job: &Job| {
        let hang = only(job);
        let folds = hang.stacks.iter();
        let folds = folds.map(|it| (it.ranks.to_string(), it.frames[0].clone()));
        (folds.collect::<Vec<_>>(), hang)
    };
    let (_, before) = reported(&job);
    // The others are asked for once it was said, and change nothing of that.
    let rest = job.wanted_stacks();
    assert_eq!(rest, [3, 4, 6, 7]);
    answer(&mut job, &rest[..3]);
    assert_eq!(job.wanted_stacks(), [7]);
    job.take(Input::StacksComplete);
    assert_eq!(job.wanted_stacks(), [] as [u32; 0]);
    let (folds, hang) = reported(&job);
    assert_eq!(
        (&before.text, &before.evidence),
        (&hang.text, &hang.evidence)
    );
    let fold = |ranks: &str, frame: &str| (ranks.to_owned(), frame.to_owned());
    let others = fold("0-4,6", "all_reduce (train.py:7)");
    assert_eq!(folds, [fold("5", "read_shard (train.py:7)"), others]);
    let rows = hang.progress[0].entered.iter();
    let rows: Vec<_> = rows
        .map(|row| (row.number, row.ranks.to_string()))
        .collect();
    assert_eq!(rows, [(47, "0-4,6-7".to_owned()), (46, "5".to_owned())]);
    assert_eq!(hang.victims.to_string(), "0-4,6-7");
}
