//! Looks at a simulated job as the agents of its hosts would, and what the analysis says.

use std::collections::BTreeMap;

use collective::{ArrivalSettings, Communication, HangSettings, OperationTrigger};
use model::{Failure, Operation, RankNs, Straggler};

use crate::{Cluster, ClusterRun};

/// Seconds between two looks at the live tables, as the agent has it: usually, and while
/// operations take longer than they should.
pub const LOOK_S: f64 = 0.1;
const CLOSE_LOOK_S: f64 = 0.02;
/// Seconds for which it looks closely.
const CLOSE_FOR_S: f64 = 12.0;

/// What was said of a job, and when, in seconds from its beginning.
#[derive(Debug, Default)]
pub struct Watched {
    /// The first failures.
    pub failures: Option<(f64, Vec<Failure>)>,
    /// When somebody was first blamed for slow operations, and who was in the end.
    pub straggler: Option<(f64, Straggler)>,
}

impl Watched {
    /// When somebody was named first, and who, ascending, once all hosts have said whose
    /// `has_port_down`.
    pub fn named(self, has_port_down: impl Fn(u32) -> bool) -> Option<(f64, Vec<u32>)> {
        let failed = self.failures.map(|(at, failures)| {
            let ranks: Vec<u32> = failures
                .into_iter()
                .flat_map(|failure| failure.of_ports(&has_port_down).ranks)
                .collect();
            (at, ranks)
        });
        // Where a failure names nobody, the word is left to what was found of slow operations.
        let failed = failed.filter(|(_, ranks)| !ranks.is_empty());
        let slow = self.straggler.map(|(at, found)| (at, found.ranks));
        let (at, mut named) = failed.or(slow)?;
        named.sort_unstable();
        named.dedup();
        Some((at, named))
    }
}

/// A job whose communicators are known, and nothing else.
pub fn job_of(run: &ClusterRun) -> Communication {
    let mut job = Communication::new(HangSettings::default());
    for (rank, communicator) in run.communicators() {
        job.join(rank, communicator);
    }
    job
}

/// Watches a job until something fails, or until `until_s`.
pub fn watch(cluster: &Cluster, until_s: f64) -> Watched {
    let run = cluster.run();
    watch_by(
        job_of(&run),
        cluster.ranks(),
        until_s,
        |rank, before_s, at_s| run.look(rank, before_s, at_s),
    )
}

/// Watches a job of which `look` says what a rank's live table tells at a time that it had not
/// told at the time before: the clock, what is in progress, what has ended since.
pub fn watch_by(
    mut job: Communication,
    ranks: u32,
    until_s: f64,
    mut look: impl FnMut(u32, f64, f64) -> (RankNs, Vec<Operation>, Vec<Operation>),
) -> Watched {
    let mut watched = Watched::default();
    let mut first_blamed = None;
    let mut triggers: BTreeMap<u32, OperationTrigger> = BTreeMap::new();
    let (mut before, mut at, mut close_until) = (0.0, LOOK_S, 0.0);
    while at <= until_s {
        for rank in 0..ranks {
            let (clock, open, ended) = look(rank, before, at);
            let trigger = triggers
                .entry(rank)
                .or_insert_with(|| OperationTrigger::new(ArrivalSettings::default()));
            for operation in &ended {
                if let Some(slow) = trigger.ended(operation) {
                    job.slow(rank, operation.communicator, slow);
                    close_until = at + CLOSE_FOR_S;
                }
            }
            for operation in open.iter().filter(|open| trigger.is_suspect(open, clock)) {
                job.suspect(rank, operation);
                close_until = at + CLOSE_FOR_S;
            }
            job.look(rank, clock, open, &ended);
        }
        let failures = job.failures();
        if !failures.is_empty() {
            watched.failures = Some((at, failures));
            break;
        }
        first_blamed = first_blamed.or(job.straggler().map(|_| at));
        before = at;
        at += if at < close_until {
            CLOSE_LOOK_S
        } else {
            LOOK_S
        };
    }
    watched.straggler = first_blamed.zip(job.straggler());
    watched
}
