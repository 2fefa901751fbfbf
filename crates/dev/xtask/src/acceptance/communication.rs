//! Rows about faults inside the communication of simulated jobs.

use std::collections::BTreeSet;
use std::time::Instant;

use collective::Communication;
use formats::pack_batch;
use model::{Communicator, Input, Operation, RankNs};
use protocol::BatchHead;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use sim::{Cluster, ClusterFault, ClusterRun, LOCALS, LOOK_S, job_of, watch};

use super::AcceptanceRow;
use super::simulated::RowMeasure;

pub(super) const ROWS: [(&str, RowMeasure); 8] = [
    ("MY-A13", latency),
    ("MY-who", localisation),
    ("MY-A15", hundred),
    ("MY-A15", thousand),
    ("MY-A15", ten_thousand),
    ("MY-A15", hundred_thousand),
    ("MY-volume", volume),
    ("MY-healthy", false_alarms),
];

const CAMPAIGN: usize = 200;
const HEALTHY_WINDOWS: usize = 500;
const WINDOW_S: f64 = 10.0;
/// Seconds after its onset in which a fault must be named; the paper's detection P90.
const PATIENCE_S: f64 = 15.0;

fn cluster(fault: Option<(ClusterFault, f64)>, seed: u64) -> Cluster {
    Cluster {
        machines: 4,
        iterations: 60,
        fault,
        jitter: 0.2,
        seed,
    }
}

/// One injected fault: what it was, how long it took until somebody was named, and who was.
struct Case {
    fault: ClusterFault,
    culprit: u32,
    after_s: Option<f64>,
    named: Vec<u32>,
}

impl Case {
    /// Whether the culprit is named as one end of a link.
    fn is_one_of_two(&self) -> bool {
        self.named.len() == 2 && self.named.contains(&self.culprit)
    }
}

fn campaign() -> Vec<Case> {
    let mut random = SmallRng::seed_from_u64(20);
    let cases = (0..CAMPAIGN).map(|seed| {
        let (fault, culprit) = ClusterFault::any(&mut random, 4 * LOCALS);
        // An iteration takes 0.8 s: by then the trigger has the six operations of each class that
        // it takes to know what is usual.
        let onset_s = random.random_range(10.0..14.0);
        let job = cluster(Some((fault.clone(), onset_s)), seed as u64);
        let watched = watch(&job, onset_s + PATIENCE_S);
        let (at, named) = watched.named(|rank| job.has_port_down(rank)).unzip();
        let after_s = at.map(|at| at - onset_s);
        Case {
            fault,
            culprit,
            after_s,
            named: named.unwrap_or_default(),
        }
    });
    cases.collect()
}

fn latency(id: &str) -> AcceptanceRow {
    let cases = campaign();
    let mut after_s: Vec<f64> = cases.iter().filter_map(|case| case.after_s).collect();
    after_s.sort_by(f64::total_cmp);
    let [half, most] =
        [0.5, 0.9].map(|share| after_s[(share * (after_s.len() - 1) as f64) as usize]);
    let measured = format!(
        "{} of {CAMPAIGN} detected; P50 {half:.1} s, P90 {most:.1} s after the onset",
        after_s.len()
    );
    let holds = after_s.len() == CAMPAIGN && most <= 2.0;
    AcceptanceRow::new(
        id,
        "random faults and onsets: detection",
        measured,
        "15 s; target 2 s",
        holds,
    )
}

fn localisation(id: &str) -> AcceptanceRow {
    let cases = campaign();
    let exact = cases
        .iter()
        .filter(|case| case.named == [case.culprit])
        .count();
    let either = cases.iter().filter(|case| case.is_one_of_two()).count();
    for case in &cases {
        if case.named != [case.culprit] && !case.is_one_of_two() {
            eprintln!("{:?}: named {:?}", case.fault, case.named);
        }
    }
    let measured = format!(
        "{exact} of {CAMPAIGN}: the rank alone; {either} more: as one end of a link whose ends \
         neither counters nor hosts tell apart"
    );
    let holds = exact as f64 >= 0.99 * CAMPAIGN as f64;
    AcceptanceRow::new(
        id,
        "random faults and onsets: who",
        measured,
        "target 99 %",
        holds,
    )
}

fn false_alarms(id: &str) -> AcceptanceRow {
    let seconds = HEALTHY_WINDOWS as f64 * WINDOW_S;
    let mut alarms = 0;
    let runs = 10;
    for seed in 0..runs {
        let job = Cluster {
            iterations: 10_000,
            ..cluster(None, 1000 + seed)
        };
        let until_s = seconds / runs as f64;
        // Simulated a little further than it is looked at: its end is no stall.
        let iterations = (until_s / 0.6) as u64 + 10;
        let watched = watch(&Cluster { iterations, ..job }, until_s);
        alarms += u32::from(watched.failures.is_some());
        alarms += u32::from(watched.straggler.is_some());
    }
    let measured = format!("{alarms} alarms in {HEALTHY_WINDOWS} windows of 10 s");
    AcceptanceRow::new(id, "healthy job, 32 ranks", measured, "0", alarms == 0)
}

fn hundred(id: &str) -> AcceptanceRow {
    localise(id, 16, 1, 0.1)
}

fn thousand(id: &str) -> AcceptanceRow {
    localise(id, 126, 1, 0.1)
}

fn ten_thousand(id: &str) -> AcceptanceRow {
    localise(id, 1250, 1, 0.1)
}

fn hundred_thousand(id: &str) -> AcceptanceRow {
    localise(id, 1250, 10, 2.0)
}

/// The hash that a communicator has in a copy of its job.
fn hash_in_copy(hash: u64, copy: u32) -> u64 {
    // With the same hash, ranks of all copies would be in one communicator.
    hash ^ u64::from(copy) << 32
}

/// Operations as a copy of their job has them.
fn in_copy(operations: Vec<Operation>, copy: u32) -> Vec<Operation> {
    operations
        .into_iter()
        .map(|operation| Operation {
            communicator: hash_in_copy(operation.communicator, copy),
            ..operation
        })
        .collect()
}

/// Jobs put beside one another as one, each with its fault, as they stand at one moment.
fn copied(base: &Cluster, run: &ClusterRun, copies: u32, at_s: f64) -> Communication {
    let mut job = job_of(run);
    for copy in 0..copies {
        let first = copy * base.ranks();
        for (rank, communicator) in run.communicators() {
            let hash = hash_in_copy(communicator.hash, copy);
            job.join(
                rank + first,
                &Communicator {
                    hash,
                    ..communicator.clone()
                },
            );
        }
        for rank in 0..base.ranks() {
            let (clock, open, ended) = run.look(rank, 0.0, at_s);
            job.look(
                rank + first,
                clock,
                in_copy(open, copy),
                &in_copy(ended, copy),
            );
        }
    }
    job
}

/// How many of the first ranks are in an operation at a time.
fn busy_ranks(run: &ClusterRun, at_s: f64) -> usize {
    // The whole job would be looked at 200 times, up to 10,000 ranks; 64 stand for it.
    (0..64)
        .filter(|rank| {
            let (_, open, _) = run.look(*rank, 0.0, at_s);
            open.iter().any(|operation| !operation.may_have_ended)
        })
        .count()
}

/// Time to localise from live tables.
fn localise(id: &str, machines: u32, copies: u32, target_s: f64) -> AcceptanceRow {
    let culprit = 77;
    let base = Cluster {
        machines,
        iterations: 4,
        fault: Some((ClusterFault::GpuStops { rank: culprit }, 1.5)),
        jitter: 0.2,
        seed: 1,
    };
    let run = base.run();
    // The moment at which most ranks are in an operation is the most work; that the fault is
    // named is seen later.
    let busiest_s = (1..200)
        .map(|number| f64::from(number) * 0.01)
        .max_by_key(|at_s| busy_ranks(&run, *at_s))
        .unwrap_or_default();
    let busy = copied(&base, &run, copies, busiest_s);
    let began = Instant::now();
    drop(busy.failures());
    let took_s = began.elapsed().as_secs_f64();
    let failures = copied(&base, &run, copies, 9.0).failures();
    let named: BTreeSet<u32> = failures
        .into_iter()
        .flat_map(|failure| failure.ranks)
        .collect();
    let right =
        named.len() == copies as usize && named.iter().all(|rank| rank % base.ranks() == culprit);
    let measured = format!(
        "{:.1} ms, {}",
        1e3 * took_s,
        if right { "right" } else { "wrong ranks" }
    );
    let scenario = format!("localisation, {} ranks", base.ranks() * copies);
    let target = format!("20 s to 60 s; target {} ms", 1e3 * target_s);
    AcceptanceRow::new(id, scenario, measured, target, right && took_s <= target_s)
}

/// Looks between two batches to a collector.
const LOOKS_A_BATCH: u32 = 5;

/// What one machine tells a collector of an iteration while something stands still.
fn volume(id: &str) -> AcceptanceRow {
    let job = cluster(None, 3);
    let run = job.run();
    let (from_s, iterations) = (5.0, 10.0);
    let per_iteration_s = run.ended_s / 60.0;
    let looks = (iterations * per_iteration_s / LOOK_S) as u32;
    let (mut plain, mut packed, mut lines) = (0, 0, Vec::new());
    for number in 1..=looks {
        let at = from_s + f64::from(number) * LOOK_S;
        for rank in 0..LOCALS {
            let (at, in_progress, ended) = run.look(rank, at - LOOK_S, at);
            // As agents do: of operations of one kind that ended between two looks, they send the
            // last.
            let ended = Operation::last_of_each_kind(ended).into_values().collect();
            let look = Input::InFlightSnapshot {
                rank,
                at,
                in_progress,
                ended,
                late: Vec::new(),
            };
            lines.extend(serde_json::to_vec(&look).unwrap_or_default());
            lines.push(b'\n');
        }
        if number % LOOKS_A_BATCH == 0 || number == looks {
            let head = BatchHead::new("boot", RankNs((at * 1e9) as u64), false);
            plain += lines.len();
            packed += pack_batch(&head, &lines).unwrap_or_default().len();
            lines.clear();
        }
    }
    let [packed_kb, plain_kb] = [packed, plain].map(|bytes| bytes as f64 / iterations / 1e3);
    let measured = format!(
        "nothing while all is well; {packed_kb:.1} KB an iteration of {per_iteration_s:.2} s while \
         something stands still ({plain_kb:.1} KB before it is packed); five times that while \
         operations are slow"
    );
    let holds = packed_kb <= 46.8;
    AcceptanceRow::new(
        id,
        "volume a machine of 8 ranks tells",
        measured,
        "46.8 KB",
        holds,
    )
}
