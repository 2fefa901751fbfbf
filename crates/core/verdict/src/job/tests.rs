use model::{
    Block, BlockPlace, Boundary, Claim, CollectiveIssue, CollectiveOp, CoreUsage, Cost,
    DeviceReached, DeviceTime, Ending, Finding, Frame, Incident, IncidentKind, MarkKind,
    Observation, Origin, ProcessState, RankNs, Severity, Stack, StepSpan, Sync, Window,
};

use diagnosis::Witnesses;

use super::*;

mod deaths;
mod hangs;
mod identity;
mod livelocks;
mod standstills;

/// What was announced, in words.
fn lines(job: &mut Job) -> Vec<String> {
    job.take_announcements()
        .iter()
        .flat_map(narrate::announcement)
        .collect()
}

/// The job's only incident.
fn only(job: &Job) -> Incident {
    let incidents = job.verdict().incidents;
    let [only] = <[Incident; 1]>::try_from(incidents).expect("one incident");
    only
}

/// The job's only incident, which is critical and names these ranks.
fn critical_hang(job: &Job, ranks: &[u32]) -> Incident {
    let hang = only(job);
    assert_eq!(
        (&hang.subject.ranks[..], hang.severity),
        (ranks, Severity::Critical)
    );
    hang
}

#[test]
fn the_largest_numbers_are_taken_as_they_come() {
    let mut job = Job::new("job", Source::Marks, Settings::default());
    for rank in [0, 0, u32::MAX] {
        job.take(Input::Lost {
            rank,
            records: u64::MAX,
        });
        job.take(Input::Left {
            rank,
            step: u32::MAX,
            orderly: true,
        });
    }
    job.finish();
    assert_eq!(job.verdict().job.lost_records, u64::MAX);
}

#[test]
fn a_job_that_took_no_time_has_neither_shares_nor_incidents() {
    let mut settings = Settings::default();
    (
        settings.window.warmup_steps,
        settings.frontier.denom_floor_s,
    ) = (0, 0.0);
    let mut job = Job::new("job", Source::Marks, settings);
    for step in 0..20 {
        for kind in &MarkKind::ALL[..9] {
            let (at, on_loop_thread, event) = (RankNs(0), true, (*kind).into());
            let mark = Mark {
                at,
                step,
                on_loop_thread,
                event,
            };
            job.take(Input::Mark { rank: 0, mark });
        }
    }
    job.finish();
    let verdict = job.verdict();
    assert!(verdict.job.analysed_steps > 0 && verdict.incidents.is_empty());
    let shares = verdict.windows.iter().flat_map(|window| &window.shares);
    assert!(
        shares
            .chain(verdict.stages.iter().map(|s| &s.gain))
            .all(|s| *s == 0.0)
    );
}

/// Both ranks of a job of two take a step of a second, nearly all of it backward.
fn take_step(job: &mut Job, step: u32, begin_ms: u64, data_ms: [u64; 2]) {
    for (rank, data_ms) in (0..).zip(data_ms) {
        let times_ms = [
            0,
            data_ms,
            data_ms,
            data_ms + 20,
            data_ms + 20,
            990,
            990,
            1000,
        ];
        let kinds = MarkKind::ALL
            .into_iter()
            .filter(|kind| *kind != MarkKind::DataStop);
        for (kind, at_ms) in kinds.zip(times_ms) {
            let (at, on_loop_thread) = (RankNs((begin_ms + at_ms) * 1_000_000), true);
            let mark = Mark {
                at,
                step,
                on_loop_thread,
                event: kind.into(),
            };
            job.take(Input::Mark { rank, mark });
        }
    }
}

#[test]
fn what_costs_nothing_does_not_use_up_the_windows_of_what_does() {
    let mut job = Job::new("job", Source::Run, Settings::default());
    let open = |job: &Job| -> Vec<Vec<u32>> {
        let open = job.findings().into_iter().filter(|finding| finding.open);
        open.map(|incident| incident.subject.ranks).collect()
    };
    for step in 0..120 {
        take_step(&mut job, step, u64::from(step) * 1000, [10, 10]);
    }
    // Backward hides who is late, if anybody is.
    assert_eq!(open(&job), [[0; 0]]);
    assert_eq!(job.wanted_profile(RankNs(120_000_000_000)), None);
    for step in 120..240 {
        take_step(&mut job, step, u64::from(step) * 1000, [10, 400]);
    }
    assert_eq!(open(&job)[0], [1]);
    assert_eq!(
        job.wanted_profile(RankNs(240_000_000_000)),
        Some(vec![0, 1])
    );
}

/// A finding about all ranks, in these steps.
fn degraded(first_step: u64, last_step: u64) -> Finding {
    let claim = Claim::Slower {
        stage: String::new(),
        group: None,
        side: None,
        lateness_s: 1.0,
        steps: StepSpan {
            first: first_step,
            last: last_step,
            open: false,
        },
    };
    Finding {
        kind: IncidentKind::Degraded,
        severity: Severity::Critical,
        open: false,
        first_step,
        last_step,
        cost: Cost::saved_whole(1.0, 0.5),
        ..Finding::new(Origin::Stages, String::new(), claim)
    }
}

#[test]
fn ranks_that_became_slower_for_want_of_cores_are_said_to() {
    let mut job = Job::new("job", Source::Run, Settings::default());
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
    let facts = |finding: Finding| -> Vec<Observation> {
        job.hosts(&finding, false)
            .into_iter()
            .map(|(what, _)| what)
            .collect()
    };
    let lacking = Observation::TooFewCores {
        share: 0.47,
        before_share: 0.04,
    };
    assert_eq!(facts(degraded(50, 99)), [lacking]);
    assert_eq!(facts(degraded(20, 40)), []);
    let slow = Finding {
        kind: IncidentKind::Slow,
        ..degraded(50, 99)
    };
    assert_eq!(facts(slow), []);
}

#[test]
fn roles_that_become_slower_together_are_one_incident() {
    let mut job = Job::new("job", Source::Run, Settings::default());
    // Two roles of two ranks, each a stage of a pipeline.
    for (window, seconds) in [0.1, 0.1, 0.2, 0.2, 0.2].into_iter().enumerate() {
        for first_rank in [0, 2] {
            let boundary = Boundary {
                stage: StageId::FORWARD,
                after: MarkKind::StepBegin,
                ending: Ending::Mark(MarkKind::StepEnd),
                sync: Sync::None,
            };
            let block = Block {
                boundaries: [boundary].into_iter().collect(),
                groups: None,
                steps: (20 * window as u64 + 1..).take(20).collect(),
                durations_s: vec![seconds; 40],
                ranks: 2,
                carried: 0,
            };
            let ranks = vec![first_rank, first_rank + 1];
            job.add_window(Window {
                ranks,
                group_share: 0.5,
                roles: 2,
                ..block.into()
            });
        }
    }
    let lines = lines(&mut job);
    let reported: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("slower"))
        .collect();
    assert_eq!(
        reported.len(),
        2,
        "one for each window but the first: {lines:?}"
    );
    let [incident] = &job.verdict().incidents[..] else {
        panic!("one")
    };
    assert!(
        incident
            .text
            .contains("slower than the job's best window since step 41, on all ranks")
    );
    assert_eq!(incident.victims.to_string(), "0-3");
    assert!((incident.cost_s - 6.0).abs() < 1e-9, "{}", incident.cost_s);
}
