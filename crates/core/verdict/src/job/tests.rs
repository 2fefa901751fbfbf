use model::{CoreUsage, IncidentKind, Pace, RankNs, Severity, Subject};

use super::*;

#[test]
fn the_largest_numbers_are_taken_as_they_come() {
    let mut job = Job::new("job", "marks", Settings::default());
    for rank in [0, 0, u32::MAX] {
        job.take(Input::Lost { rank, records: u64::MAX });
        job.take(Input::Left { rank, step: u32::MAX, orderly: true });
    }
    job.finish();
    assert_eq!(job.verdict().job.lost_records, u64::MAX);
}

#[test]
fn a_job_that_took_no_time_has_neither_shares_nor_incidents() {
    let mut settings = Settings::default();
    (settings.window.warmup_steps, settings.frontier.denom_floor_s) = (0, 0.0);
    let mut job = Job::new("job", "marks", settings);
    for step in 0..20 {
        for kind in &MarkKind::ALL[..9] {
            let (at, kind, on_loop_thread) = (RankNs(0), *kind, true);
            let mark = Mark { at, step, kind, on_loop_thread, code: 0, args: [0; 5] };
            job.take(Input::Mark { rank: 0, mark });
        }
    }
    job.finish();
    let verdict = job.verdict();
    assert!(verdict.job.analysed_steps > 0 && verdict.incidents.is_empty());
    let shares = verdict.windows.iter().flat_map(|window| &window.shares);
    assert!(shares.chain(verdict.stages.iter().map(|s| &s.gain)).all(|s| *s == 0.0));
}

#[test]
fn the_rank_that_was_killed_first_is_told_also_after_a_restart() {
    let mut job = Job::new("job", "run", Settings::default());
    let members = (0..4).collect();
    job.take(Input::Group { group: 1, name: "default".to_owned(), members });
    for (rank, number) in [(0, 47), (1, 46), (2, 47), (3, 47)] {
        let mark = Mark {
            at: RankNs(1),
            step: 40,
            kind: MarkKind::CollectiveIssue,
            on_loop_thread: true,
            code: 3,
            args: [1, 0, number, 0, 0],
        };
        job.take(Input::Mark { rank, mark });
    }
    job.take(Input::Killed { rank: 1, signal: Some(9) });
    job.take(Input::Killed { rank: 0, signal: Some(6) });
    let told = "rank 1 was killed by signal 9 (SIGKILL) in step 40, before it entered \
                ALLREDUCE #47 of group default (ranks 0,2-3 were in it)";
    assert_eq!(job.take_lines(), [told]);
    let deaths = |job: &Job| {
        let deaths = job.verdict().incidents.into_iter();
        deaths.map(|death| (death.text, death.open)).collect::<Vec<_>>()
    };
    assert_eq!(deaths(&job), [(told.to_owned(), true)]);
    job.take(Input::Restart { attempt: 1 });
    assert_eq!(deaths(&job), [(told.to_owned(), false)]);
}

#[test]
fn a_rank_announces_no_more_neighbours_than_a_host_has() {
    let mut job = Job::new("job", "marks", Settings::default());
    for rank in 0..10 {
        let (host, role) = ("host".to_owned(), None);
        let (first_local, locals) = (rank << 24, u32::MAX);
        let world_size = u32::MAX;
        job.take(Input::Rank { rank, host, role, first_local, locals, world_size });
    }
    assert!(job.aligner.ranks() <= MAX_NEIGHBOURS + 10);
}

/// A job of two in which rank 0 waits for rank 1 while both are profiled.
fn hangs_in_a_window() -> Job {
    let mut job = Job::new("job", "run", Settings::default());
    let members = (0..2).collect();
    job.take(Input::Group { group: 1, name: "default".to_owned(), members });
    job.take(Input::ProfileOrdered { ranks: vec![0, 1], first_step: 40, steps: 10 });
    for (rank, number) in [(0, 47), (1, 46)] {
        take_mark(&mut job, rank, 10, MarkKind::CollectiveIssue, [1, 0, number, 0, 0]);
    }
    job
}

fn take_mark(job: &mut Job, rank: u32, at_s: u64, kind: MarkKind, args: [u64; 5]) {
    let (at, on_loop_thread) = (RankNs(at_s * 1_000_000_000), true);
    let mark = Mark { at, step: 40, kind, on_loop_thread, code: 3, args };
    job.take(Input::Mark { rank, mark });
}

fn quiet(job: &mut Job, at_s: u64) -> Vec<u32> {
    job.take(Input::Quiet { at: RankNs(at_s * 1_000_000_000) });
    job.wanted_stacks()
}

#[test]
fn a_hang_is_told_while_a_window_is_under_way() {
    let mut job = hangs_in_a_window();
    assert_eq!(quiet(&mut job, 12), [1, 0]);
}

#[test]
fn a_rank_that_stands_still_for_its_profiler_does_not_hang() {
    let mut job = hangs_in_a_window();
    take_mark(&mut job, 1, 10, MarkKind::ProfilerBegin, [0; 5]);
    assert_eq!(quiet(&mut job, 16), [] as [u32; 0]);
    take_mark(&mut job, 1, 17, MarkKind::ProfilerEnd, [0; 5]);
    // Nor is a pause of seven seconds usual from now on.
    assert_eq!(quiet(&mut job, 18), [] as [u32; 0]);
    assert_eq!(quiet(&mut job, 19), [1, 0]);
    // One that never comes back from it does.
    let mut job = hangs_in_a_window();
    take_mark(&mut job, 1, 10, MarkKind::ProfilerBegin, [0; 5]);
    assert_eq!(quiet(&mut job, 41), [1, 0]);
}

/// One rank stands still in its last backward, and the other waits for it in a collective.
#[test]
fn where_a_pipeline_stands_still_joins_what_its_collectives_say() {
    const STEP_S: u64 = 60;
    let plan = schedule::Scheme::OneForwardOneBackward.plan(2, 4);
    let mut job = Job::new("job", "run", Settings::default());
    job.take(Input::Group {
        group: 1,
        name: "default".to_owned(),
        members: (0..2).collect(),
    });
    let steps = 5;
    for step in 0..steps {
        let mut mark =
            |rank: u32, second: u64, kind: MarkKind, code: u16, args: [u64; 5]| {
                let at = RankNs((u64::from(step) * STEP_S + second) * 1_000_000_000);
                let mark = Mark { at, step, kind, on_loop_thread: true, code, args };
                job.take(Input::Mark { rank, mark });
            };
        for rank in [1, 0] {
            let order = plan.order(rank as usize);
            for (block, at) in order.iter().zip(0..) {
                let code = u16::from(block.pass == schedule::Pass::Backward);
                let place = [rank.into(), block.microbatch.into(), 2, 0, 0];
                mark(rank, 2 * at, MarkKind::BlockBegin, code, place);
                if (step, rank, at) == (steps - 1, 0, 7) {
                    continue;
                }
                mark(rank, 2 * at + 1, MarkKind::BlockEnd, code, place);
            }
            if (step, rank) != (steps - 1, 0) {
                let sum = [1, 0, u64::from(step) + 1, 0, 0];
                mark(rank, 20, MarkKind::CollectiveIssue, 3, sum);
            }
        }
    }
    let end_s = u64::from(steps) * STEP_S;
    assert_eq!(quiet(&mut job, end_s + 10 * STEP_S), [0, 1]);
    job.take(Input::StacksTold);
    let [hang] = &job.verdict().incidents[..] else { panic!("{:?}", job.verdict()) };
    assert_eq!(
        (hang.kind, &hang.subject.ranks[..]),
        (model::IncidentKind::Hang, &[0][..])
    );
    let halt = hang.evidence.iter().find(|it| it.label == "halt_point");
    let said = halt.map(|halt| halt.text.as_str()).unwrap_or_default();
    assert!(said.contains("backward of microbatch 3"), "{:?}", hang.evidence);
    let methods: Vec<model::Method> = hang.evidence.iter().map(|it| it.method).collect();
    assert!(methods.contains(&model::Method::Collective), "{:?}", hang.evidence);
}

#[test]
fn ranks_that_waited_for_other_hosts_and_end_in_good_order_did_not_hang() {
    let mut job = Job::new("job", "run", Settings::default());
    let members = (0..4).collect();
    job.take(Input::Group { group: 1, name: "default".to_owned(), members });
    for rank in [0, 1] {
        take_mark(&mut job, rank, 10, MarkKind::CollectiveIssue, [1, 0, 47, 0, 0]);
    }
    quiet(&mut job, 13);
    job.take(Input::StacksTold);
    assert_eq!(job.verdict().incidents.len(), 1);
    for rank in [0, 1] {
        job.take(Input::Left { rank, step: 40, orderly: true });
    }
    assert!(job.verdict().incidents.is_empty());
    // Nor while the launcher waits for the others' hosts.
    quiet(&mut job, 20);
    job.take(Input::StacksTold);
    assert!(job.verdict().incidents.is_empty());
}

/// An incident of all ranks, in these steps.
pub(super) fn degraded(first_step: u64, last_step: u64) -> Incident {
    Incident {
        kind: IncidentKind::Degraded,
        severity: Severity::Critical,
        open: false,
        subject: Subject::default(),
        pace: Pace::Steady,
        first_step,
        last_step,
        cost_s: 1.0,
        cost_gpu_s: 1.0,
        cost_share: 0.5,
        gain_alone_s: 1.0,
        id: String::new(),
        next_in_line: Vec::new(),
        contradictions: Vec::new(),
        text: String::new(),
        evidence: Vec::new(),
        advice: String::new(),
    }
}

#[test]
fn ranks_that_became_slower_for_want_of_cores_are_said_to() {
    let mut job = Job::new("job", "run", Settings::default());
    for (steps, without_core_share) in [(0..=49, 0.04), (50..=99, 0.47)] {
        for rank in 0..4 {
            let usage = CoreUsage {
                lasted_s: 10.0,
                cores: 0.5,
                without_core_share,
                ..CoreUsage::default()
            };
            job.usages.take(rank, steps.clone(), usage);
        }
    }
    let evidence = |incident: Incident| {
        let mut incidents = [incident];
        job.join_usages(&mut incidents);
        let [Incident { evidence, .. }] = incidents;
        evidence.into_iter().map(|it| it.text).collect::<Vec<_>>()
    };
    let text = "the loops of all ranks stood ready and had no core for 47 % of the time, before \
                for 4.0 %";
    assert_eq!(evidence(degraded(50, 99)), [text]);
    assert_eq!(evidence(degraded(20, 40)), [""; 0]);
    let slow = Incident { kind: IncidentKind::Slow, ..degraded(50, 99) };
    assert_eq!(evidence(slow), [""; 0]);
}
