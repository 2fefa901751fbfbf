//! Faults inside the communication of a simulated job, named from its live tables alone:
//! the layout of Mycroft's testbed, 4 machines of 8 ranks, pipeline of 2, data parallel 2.

use collective::{Cause, Communication, Failure, HangSettings};
use sim::{Cluster, Fault, Run};

/// Seconds between two looks at the live tables.
const LOOK_S: f64 = 0.1;

fn cluster(fault: Option<(Fault, f64)>, seed: u64) -> Cluster {
    Cluster { machines: 4, iterations: 12, fault, jitter: 0.2, seed }
}

fn job_of(run: &Run) -> Communication {
    let mut job = Communication::new(HangSettings::default());
    for (rank, communicator) in run.communicators() {
        job.join(rank, communicator);
    }
    job
}

/// Looks at all ranks from time to time until something has failed.
fn first_failure(cluster: &Cluster, until_s: f64) -> Option<(f64, Vec<Failure>)> {
    let run = cluster.run();
    let mut job = job_of(&run);
    let looks = (until_s / LOOK_S) as u32;
    for number in 1..=looks {
        let at = f64::from(number) * LOOK_S;
        for rank in 0..cluster.ranks() {
            let (clock, open, ended) = run.look(rank, at - LOOK_S, at);
            job.look(rank, clock, open, &ended);
        }
        let failures = job.failures();
        if !failures.is_empty() {
            return Some((at, failures));
        }
    }
    None
}

fn failure_of(fault: Fault, onset_s: f64) -> (f64, Vec<Failure>) {
    let (at, failures) =
        first_failure(&cluster(Some((fault, onset_s)), 7), 20.0).expect("a failure");
    (at - onset_s, failures)
}

#[test]
fn nothing_fails_in_a_healthy_job() {
    assert_eq!(first_failure(&cluster(None, 3), 14.0), None);
}

/// MY-A1.
#[test]
fn a_card_that_is_down_is_found_at_one_end_of_its_links() {
    for onset_s in [3.0, 3.3, 3.61, 3.7, 4.2] {
        let (_, failures) = failure_of(Fault::CardDown { rank: 3 }, onset_s);
        assert_eq!(failures.len(), 1);
        assert_eq!(failures[0].cause, Cause::NotDelivered);
        assert!(failures[0].ranks.contains(&3), "{:?}", failures[0]);
    }
}

/// MY-A10 and MY-A12.
#[test]
fn a_rank_that_enters_nothing_is_waited_for() {
    for onset_s in [3.0, 3.3, 3.61, 3.7, 4.2] {
        let (_, failures) = failure_of(Fault::LoopStops { rank: 13 }, onset_s);
        assert_eq!(failures.len(), 1);
        assert_eq!(
            (failures[0].cause, &failures[0].ranks),
            (Cause::NotEntered, &vec![13])
        );
    }
}

#[test]
fn a_gpu_that_stops_is_told_from_its_victims() {
    for onset_s in [3.0, 3.3, 3.61, 3.7, 4.2] {
        let (_, failures) = failure_of(Fault::GpuStops { rank: 21 }, onset_s);
        let ranks: Vec<&Vec<u32>> = failures.iter().map(|f| &f.ranks).collect();
        assert!(ranks.iter().all(|ranks| **ranks == [21]), "{failures:?}");
    }
}

#[test]
fn a_proxy_that_never_wakes_is_found() {
    for onset_s in [3.0, 3.3, 3.61, 3.7, 4.2] {
        let fault = Fault::ProxySleeps { rank: 8, seconds: f64::INFINITY };
        let (_, failures) = failure_of(fault, onset_s);
        assert!(failures.iter().all(|f| f.ranks.contains(&8)), "{failures:?}");
    }
}
