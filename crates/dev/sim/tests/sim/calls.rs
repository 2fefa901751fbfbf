//! Hangs and clocks in the call logs of simulated pipelines.

use laggard_sim::{CalledJob, Primitive, Spot, Stop};
use model::{BlockCause, CollectiveOp, Pass, PipelineBlock};
use schedule::{Call, Diagnosis, RankCalls, ScheduleSettings, Scheme, Sizes, diagnose};

fn job(tp: u32, scheme: Scheme, microbatches: u32) -> CalledJob {
    CalledJob {
        microbatches,
        scheme,
        seed: 3,
        ..CalledJob::healthy(tp, 2, 1)
    }
}

fn said_of(job: &CalledJob) -> Diagnosis {
    said_of_logs(job.logs())
}

fn said_of_logs(logs: Vec<RankCalls>) -> Diagnosis {
    diagnose(logs, &Sizes::default(), &[], &ScheduleSettings::default())
        .expect("a layout that can be")
        .expect("iterations")
}

fn stopped(rank: u32, pass: Pass, microbatch: u32, before: Primitive) -> Stop {
    let block = PipelineBlock {
        pass,
        microbatch,
        chunk: 0,
    };
    Stop {
        at: Spot {
            iteration: 6,
            rank,
            block,
        },
        before,
    }
}

/// Their messages are the same; only when they are asked for differs.
#[test]
fn gpipe_of_two_microbatches_is_not_taken_for_1f1b() {
    for tp in [1, 2] {
        for scheme in [Scheme::GPipe, Scheme::OneForwardOneBackward] {
            let said = said_of(&job(tp, scheme, 2));
            assert_eq!(said.schedule, Some((scheme, 2)), "tp {tp}");
            assert_eq!(said.halt, None, "tp {tp} {scheme:?}");
        }
    }
}

/// Nothing of the pipeline follows it.
#[test]
fn a_rank_that_stops_in_the_last_backward_is_named() {
    let mut job = job(2, Scheme::GPipe, 4);
    job.stop = Some(stopped(1, Pass::Backward, 3, Primitive::Layer(3)));
    let halt = said_of(&job).halt.expect("a halt");
    assert_eq!(
        (&halt.ranks[..], halt.stage, halt.overdue),
        (&[1][..], 0, true)
    );
}

/// The block takes 40 ms, and nobody goes on for longer than that; but the rank it shares the
/// stage with has sent.
#[test]
fn a_rank_is_overdue_once_those_beside_it_have_gone_on() {
    let mut job = job(2, Scheme::OneForwardOneBackward, 4);
    job.noise = 0.05;
    job.stop = Some(stopped(0, Pass::Forward, 0, Primitive::Send));
    let halt = said_of(&job).halt.expect("a halt");
    assert_eq!((&halt.ranks[..], halt.overdue), (&[0][..], true));
    let (ahead_s, late_s) = halt.ahead_s.expect("a rank that has sent");
    assert!(ahead_s > 5.0 * late_s, "{halt:?}");
}

/// A rank that was at work when logs were cut off may have gone on.
#[test]
fn a_rank_that_may_still_be_at_work_is_not_said_to_hang() {
    let mut job = job(1, Scheme::GPipe, 6);
    job.stop = Some(stopped(1, Pass::Backward, 0, Primitive::Send));
    let halt = said_of(&job).halt.expect("a halt");
    assert_eq!((&halt.ranks[..], halt.overdue), (&[1][..], false));
}

/// Who enters early what all enter has no other clock, if it is on the same host.
#[test]
fn the_ranks_of_a_host_have_one_clock() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    const EARLY_NS: u64 = 60_000_000;
    let job = CalledJob::healthy(1, 4, 1);
    let off_clocks = |hosts: [Option<&str>; 4], early: u32, later: &[u32]| {
        let mut logs = job.logs();
        for (log, host) in logs.iter_mut().zip(hosts) {
            log.host = host.map(ToOwned::to_owned);
            let points: Vec<bool> = (0..log.lanes.len() as u32)
                .map(|lane| {
                    let of_lane = |call: &&Call| call.lane == lane;
                    let first = log.calls.iter().find(of_lane);
                    first.is_some_and(|call| call.op.is_point_to_point())
                })
                .collect();
            for call in &mut log.calls {
                let is_early = log.rank == early && !points[call.lane as usize];
                call.at_ns -= if is_early { EARLY_NS } else { 0 };
                call.at_ns += if later.contains(&log.rank) {
                    HOUR_NS
                } else {
                    0
                };
            }
            log.calls.sort_by_key(|call| call.at_ns);
        }
        said_of_logs(logs).off_clocks
    };
    let (a, b) = (Some("a"), Some("b"));
    assert_eq!(off_clocks([None; 4], 3, &[]), [3]);
    assert_eq!(off_clocks([a; 4], 3, &[]), []);
    assert_eq!(off_clocks([a, a, b, b], 3, &[2, 3]), [2, 3]);
    assert_eq!(off_clocks([a, a, b, b], 9, &[2, 3]), [2, 3]);
}

/// Its copies wait for it, and come as late as it does to where all ranks meet.
#[test]
fn who_comes_late_to_the_copies_of_its_stage_is_named() {
    const LATE_NS: u64 = 500_000_000;
    let iteration = 5;
    for (tp, pp, dp) in [(2, 2, 4), (1, 4, 2), (2, 1, 4)] {
        for hashes in [true, false] {
            let job = CalledJob {
                hashes,
                ..CalledJob::healthy(tp, pp, dp)
            };
            let culprit = job.rank(pp - 1, 1, 0);
            let mut logs = job.logs();
            for log in &mut logs {
                let is_reduce = |call: &&Call| call.op == CollectiveOp::REDUCE_SCATTER;
                let reduces = log.calls.iter().filter(is_reduce);
                let reduced_ns = reduces.map(|call| call.at_ns).nth(iteration).unwrap();
                for call in &mut log.calls {
                    let is_late =
                        call.at_ns > reduced_ns || call.at_ns == reduced_ns && log.rank == culprit;
                    call.at_ns += if is_late { LATE_NS } else { 0 };
                }
            }
            let said = said_of_logs(logs);
            let [finding] = &said.findings[..] else {
                panic!("{said:?}")
            };
            let found = (&finding.ranks[..], finding.cause);
            assert_eq!(found, (&[culprit][..], BlockCause::Outside));
            // Without stages and hashes, communicators of copies look like one of all.
            let (copies, wide) = (finding.copies_share, finding.wide_share);
            let share = if pp == 1 { copies.or(wide) } else { copies };
            assert!(share > Some(0.9), "{finding:?}");
            assert!((finding.lost_s - 0.5).abs() < 0.05, "{finding:?}");
        }
    }
}

#[test]
fn without_a_pipeline_a_healthy_job_is_healthy() {
    for (tp, dp) in [(2, 1), (2, 4), (1, 4)] {
        for hashes in [true, false] {
            let said = said_of(&CalledJob {
                hashes,
                ..CalledJob::healthy(tp, 1, dp)
            });
            assert_eq!(
                (&said.findings[..], said.iterations),
                (&[][..], 8),
                "tp {tp}, dp {dp}"
            );
        }
    }
}

/// Half of the time is in it, and it is one.
#[test]
fn without_a_pipeline_a_stall_is_reported() {
    const STALL_NS: u64 = 30_000_000_000;
    let mut logs = CalledJob::healthy(2, 1, 2).logs();
    let stalled_ns = logs[0].calls[logs[0].calls.len() / 2].at_ns;
    for call in logs.iter_mut().flat_map(|log| &mut log.calls) {
        call.at_ns += if call.at_ns > stalled_ns { STALL_NS } else { 0 };
    }
    let said = said_of_logs(logs);
    let [finding] = &said.findings[..] else {
        panic!("{said:?}")
    };
    assert!((finding.lost_s - 30.0).abs() < 0.1, "{finding:?}");
}
