//! Faults in a simulated cluster, named from live tables that the plugin wrote: one copy of
//! the built library a rank, each driven as NCCL's proxy would, by a clock of our own.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{CString, c_int};
use std::fs;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use model::{CollectiveOp, Direction, Operation, RankNs};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use ring::LiveReader;
use sim::{Begun, Callback, Cluster, ClusterFault, ClusterRun, Stage, job_of, watch_by};

use crate::driver::{Handle, Introduction, Plugin, Sandbox, alone};

/// Faults that are tried; `LAGGARD_TEST_FAULTS` sets another number.
const FAULTS: u64 = 24;
/// Seconds after its onset in which a fault must be named; the paper's detection P90.
const PATIENCE_S: f64 = 15.0;
/// Bytes of a transfer.
const BYTES: u64 = 1 << 20;
/// Children at work at the same time.
const TOGETHER: usize = 2;

/// The time of all clocks of this process, in nanoseconds; 0 while they are the host's.
static CLOCK_NS: AtomicU64 = AtomicU64::new(0);

/// Stands before the C library's for all of the process, and so for the plugin.
// SAFETY: it does what the C library's does, at another time.
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: libc::clockid_t, at: *mut libc::timespec) -> c_int {
    let now_ns = CLOCK_NS.load(Relaxed);
    if now_ns == 0 {
        // SAFETY: the caller's arguments, as they are.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, at) } as c_int;
    }
    let (seconds, ns) = (now_ns / 1_000_000_000, now_ns % 1_000_000_000);
    let time = libc::timespec {
        tv_sec: seconds.cast_signed(),
        tv_nsec: ns.cast_signed(),
    };
    // SAFETY: the caller's place for a time.
    unsafe { at.write(time) };
    0
}

/// One connection of an operation of a rank.
struct Flow {
    handle: Handle,
    sends: bool,
    steps: Vec<Handle>,
}

/// One rank's process, as far as NCCL and the agent see it.
struct Rank {
    plugin: Plugin,
    contexts: BTreeMap<u64, Handle>,
    operations: Vec<Vec<Flow>>,
    reader: LiveReader,
}

impl Rank {
    fn begin(&mut self, begun: &Begun) {
        let Begun {
            communicator,
            op,
            sequence,
            flows,
        } = begun;
        let (plugin, context) = (&self.plugin, self.contexts[communicator]);
        let event = match *op {
            CollectiveOp::SEND | CollectiveOp::RECEIVE => {
                let first = flows[0];
                plugin.p2p(*communicator, first.sends, first.peer.cast_signed())
            }
            op => {
                let (name, function) = match op {
                    CollectiveOp::ALLREDUCE => (c"AllReduce", 4),
                    CollectiveOp::REDUCE_SCATTER_BASE => (c"ReduceScatter", 3),
                    _ => (c"AllGather", 2),
                };
                let event = plugin.coll(*communicator, *sequence);
                match plugin.version {
                    1 => event.u8(48, function),
                    2 | 3 => event.pointer(48, name.as_ptr()),
                    _ => event.pointer(32, name.as_ptr()),
                }
            }
        };
        let operation = plugin.start(context, &event);
        let flows = flows.iter().map(|route| {
            let (peer, transfers) = (route.peer.cast_signed(), route.transfers.cast_signed());
            let event = plugin.proxy_op(operation, route.channel, peer, route.sends, transfers);
            let handle = plugin.start(context, &event);
            Flow {
                handle,
                sends: route.sends,
                steps: Vec::new(),
            }
        });
        let flows: Vec<Flow> = flows.collect();
        plugin.stop(operation);
        for flow in &flows {
            match (plugin.version, flow.sends) {
                (4.., _) => plugin.record(flow.handle, 19),
                // Posted, and nothing yet.
                (_, true) => plugin.record_with(flow.handle, 0, [0, 0]),
                (_, false) => plugin.record_with(flow.handle, 4, [0, 0]),
            }
        }
        self.operations.push(flows);
    }

    fn step(&mut self, operation: usize, flow: usize, step: u32, reached: Stage) {
        let plugin = &self.plugin;
        let Flow {
            handle,
            sends,
            steps,
        } = &mut self.operations[operation][flow];
        if plugin.version < 4 {
            // The operation says how far it is; of steps nothing is asked for.
            let count = u64::from(step) + 1;
            let (state, bytes) = match (reached, *sends) {
                (Stage::Ready, true) => (1, 0),
                (Stage::Ready, false) => (4, 0),
                (Stage::Transmitted, true) => (2, count * BYTES),
                (Stage::Transmitted, false) => (5, count * BYTES),
                (Stage::Done, true) => (3, count * BYTES),
                (Stage::Done, false) => (7, count * BYTES),
            };
            plugin.record_with(*handle, state, [bytes, count]);
            return;
        }
        let known = |steps: &[Handle]| steps[step as usize];
        match reached {
            Stage::Ready => {
                let event = plugin.proxy_step(*handle, step.cast_signed());
                // Steps know their flow: the context is not looked at.
                let started = plugin.start(ptr::null_mut(), &event);
                if *sends {
                    plugin.record(started, 8);
                    plugin.record_with(started, 20, [BYTES, 0]);
                } else {
                    plugin.record(started, 10);
                }
                steps.push(started);
            }
            Stage::Transmitted => {
                let state = if *sends { 9 } else { 11 };
                plugin.record_with(known(steps), state, [BYTES, 0]);
            }
            Stage::Done => {
                if !*sends {
                    plugin.record(known(steps), 12);
                }
                plugin.stop(known(steps));
            }
        }
    }
}

/// A simulated job that is replayed to the plugin as time goes on.
struct ReplayedJob {
    ranks: BTreeMap<u32, Rank>,
    calls: std::iter::Peekable<std::vec::IntoIter<(f64, u32, Callback)>>,
}

impl ReplayedJob {
    /// Opens a copy of the plugin for each rank.
    fn new(sandbox: &Sandbox, run: &ClusterRun, version: usize) -> Self {
        let mut ranks: BTreeMap<u32, Rank> = BTreeMap::new();
        for (rank, communicator) in run.communicators() {
            let of_rank = ranks
                .entry(rank)
                .or_insert_with(|| open(sandbox, rank, version));
            let name = CString::new(communicator.name.as_str()).unwrap();
            let (context, _) = of_rank.plugin.init(Introduction {
                hash: communicator.hash,
                name: name.as_ptr(),
                ranks: communicator.size.cast_signed(),
                rank: communicator.rank.cast_signed(),
            });
            of_rank.contexts.insert(communicator.hash, context);
        }
        Self {
            ranks,
            calls: run.callbacks().into_iter().peekable(),
        }
    }

    /// Tells the plugin all that happens until `at_s`, and looks at a rank's table.
    fn look(&mut self, rank: u32, at_s: f64) -> (RankNs, Vec<Operation>, Vec<Operation>) {
        while let Some((then_s, rank, call)) = self.calls.next_if(|(then_s, ..)| *then_s <= at_s) {
            CLOCK_NS.store(clock_ns(then_s), Relaxed);
            let rank = self.ranks.get_mut(&rank).unwrap();
            match call {
                Callback::Begin(begun) => rank.begin(&begun),
                Callback::Step {
                    operation,
                    flow,
                    step,
                    reached,
                } => {
                    rank.step(operation, flow, step, reached);
                }
            }
        }
        let now = RankNs(clock_ns(at_s));
        CLOCK_NS.store(now.0, Relaxed);
        let state = self.ranks.get_mut(&rank).unwrap().reader.read(now);
        assert_eq!(state.lost, 0, "rank {rank} at {at_s} s");
        (now, state.in_progress, state.ended)
    }
}

/// Simulated seconds on a clock that began long before, as the simulation has it.
fn clock_ns(at_s: f64) -> u64 {
    1_000_000_000_000 + (at_s * 1e9) as u64
}

/// Opens a copy of the library in a file of its own: one that is open is not opened twice.
fn open(sandbox: &Sandbox, rank: u32, version: usize) -> Rank {
    let path = library_of(&sandbox.root, rank);
    // SAFETY: nothing else of this process is at work.
    unsafe { env::set_var("RANK", rank.to_string()) };
    let plugin = Plugin::open_at(&path, version);
    // The table is there from the first communicator on; this one is no rank's.
    let (context, _) = plugin.init(Introduction::of(0));
    plugin.finalize(context);
    let name = format!("rank{rank}.{}.live", std::process::id());
    let is_its = |path: &&PathBuf| path.file_name().is_some_and(|file| *file == *name);
    let tables = sandbox.tables();
    let reader = LiveReader::open(tables.iter().find(is_its).unwrap()).unwrap();
    let (contexts, operations) = (BTreeMap::new(), Vec::new());
    Rank {
        plugin,
        contexts,
        operations,
        reader,
    }
}

fn library_of(root: &Path, rank: u32) -> PathBuf {
    root.join(format!("plugin{rank}.so"))
}

fn copy_libraries(sandbox: &Sandbox) {
    for rank in 0..cluster(1, None, 0).ranks() {
        fs::copy(Plugin::library(), library_of(&sandbox.root, rank)).unwrap();
    }
}

fn cluster(iterations: u64, fault: Option<(ClusterFault, f64)>, seed: u64) -> Cluster {
    Cluster {
        machines: 4,
        iterations,
        fault,
        jitter: 0.2,
        seed,
    }
}

/// What the tables of the plugin tell is what happened, at each of many moments.
#[test]
fn a_cluster_is_described_as_it_is() {
    alone(|sandbox| {
        copy_libraries(sandbox);
        in_children(1..=7, |version| {
            // SAFETY: nothing else of this process is at work.
            unsafe { env::set_var("LAGGARD_JOB", version.to_string()) };
            let job = cluster(2, None, 1);
            let run = job.run();
            let mut replayed = ReplayedJob::new(sandbox, &run, version as usize);
            let (mut gone, mut wanted) = (Vec::new(), Vec::new());
            let mut before_s = 0.0;
            for at_s in (1..30).map(|number| f64::from(number) * 0.1) {
                for rank in 0..job.ranks() {
                    let (now, open, ended) = replayed.look(rank, at_s);
                    let (clock, inside, left) = run.look(rank, before_s, at_s);
                    assert_eq!((now, counters(&open)), (clock, counters(&inside)));
                    // Those that have just ended are told at the next look.
                    gone.extend(ended.into_iter().map(|operation| (rank, operation)));
                    wanted.extend(left.into_iter().map(|operation| (rank, operation)));
                }
                before_s = at_s;
            }
            let of_ranks = |mut ended: Vec<(u32, Operation)>| {
                ended.sort_by_key(|(rank, operation)| (*rank, operation.ended_at));
                let times = ended.iter().map(|(_, o)| (o.begun_at, o.ended_at));
                let times: Vec<_> = times.collect();
                let ended: Vec<_> = ended.into_iter().map(|(_, o)| o).collect();
                (times, counters(&ended))
            };
            assert!(wanted.len() > 200, "{} operations", wanted.len());
            // What connections have carried is what flows of their operations add up to.
            let now = RankNs(clock_ns(30.0));
            let sends = |flow: &&model::Flow| flow.direction == Direction::Send;
            for (rank, of_rank) in &replayed.ranks {
                let mut done = BTreeMap::new();
                let ended = wanted.iter().filter(|(of, _)| of == rank);
                for (_, operation) in ended {
                    for flow in operation.flows.iter().filter(sends) {
                        let link = (operation.communicator, flow.channel, flow.peer);
                        *done.entry(link).or_insert(0) += u64::from(flow.done);
                    }
                }
                let sent = of_rank.reader.sent(now).into_iter();
                let sent: BTreeMap<_, _> = sent
                    .inspect(|it| {
                        assert_eq!(it.posted, it.completed);
                        assert_eq!(it.bytes, it.completed * BYTES);
                        assert!(it.busy_ns > 0);
                    })
                    .map(|it| ((it.communicator, it.channel, it.peer), it.completed))
                    .collect();
                assert_eq!(sent, done, "rank {rank}");
            }
            assert_eq!(of_ranks(gone), of_ranks(wanted));
        });
    });
}

type Counters = (u64, CollectiveOp, u64, Vec<[u32; 6]>);

fn counters(operations: &[Operation]) -> Vec<Counters> {
    let of = |operation: &Operation| {
        let mut flows: Vec<[u32; 6]> = operation
            .flows
            .iter()
            .map(|flow| {
                let route = [flow.channel.into(), flow.peer, flow.direction as u32];
                let [channel, peer, direction] = route;
                [
                    channel,
                    peer,
                    direction,
                    flow.ready,
                    flow.transmitted,
                    flow.done,
                ]
            })
            .collect();
        flows.sort_unstable();
        (
            operation.communicator,
            operation.op,
            operation.sequence,
            flows,
        )
    };
    operations.iter().map(of).collect()
}

/// MY-A13 and MY-A14, in small: detected in time, and named alone or as one end of a link.
#[test]
fn faults_of_a_cluster_are_named_from_tables_of_the_plugin() {
    alone(|sandbox| {
        copy_libraries(sandbox);
        let faults = env::var("LAGGARD_TEST_FAULTS");
        let faults = faults.map_or(FAULTS, |number| number.parse().unwrap());
        in_children(0..=faults - 1, |number| try_fault(sandbox, number));
        let reported_of =
            |number| fs::read_to_string(outcome(sandbox, number)).expect("a child wrote it");
        let reported_of: Vec<String> = (0..faults).map(reported_of).collect();
        let named = reported_of
            .iter()
            .filter_map(|reported| reported.split_once(' '));
        let (after_s, ranks): (Vec<&str>, Vec<&str>) = named.unzip();
        let mut after_s: Vec<f64> = after_s.iter().map(|s| s.parse().unwrap()).collect();
        after_s.sort_by(f64::total_cmp);
        let quantile = |share: f64| after_s[(share * (after_s.len() - 1) as f64) as usize];
        println!(
            "{} of {faults} faults named, {} of them alone, the others as one end of a link; \
             P50 {:.1} s, P90 {:.1} s, the latest after {:.1} s",
            after_s.len(),
            ranks.iter().filter(|ranks| **ranks == "1").count(),
            quantile(0.5),
            quantile(0.9),
            quantile(1.0)
        );
        // What makes operations take twice as long at most is none of Mycroft's (2025).
        assert!(after_s.len() as f64 >= 0.99 * faults as f64);
    });
}

/// Strikes a cluster with a fault and checks who is named.
fn try_fault(sandbox: &Sandbox, number: u64) {
    let mut random = SmallRng::seed_from_u64(number);
    let (fault, culprit) = ClusterFault::any(&mut random, cluster(1, None, 0).ranks());
    let onset_s = 6.0 + 0.13 * (number % 8) as f64;
    let job = cluster(40, Some((fault.clone(), onset_s)), number);
    // SAFETY: nothing else of this process is at work.
    unsafe { env::set_var("LAGGARD_JOB", number.to_string()) };
    let run = job.run();
    let mut replayed = ReplayedJob::new(sandbox, &run, 1 + (number % 7) as usize);
    let watched = watch_by(
        job_of(&run),
        job.ranks(),
        onset_s + PATIENCE_S,
        |rank, _, at_s| replayed.look(rank, at_s),
    );
    let named = watched.named(|rank| job.has_port_down(rank));
    let reported_of = named.map(|(at_s, named)| {
        assert!(
            at_s > onset_s,
            "{fault:?} at {onset_s} s: {named:?} at {at_s} s"
        );
        assert!(
            named.contains(&culprit) && named.len() <= 2,
            "{fault:?}: {named:?}"
        );
        format!("{} {}", at_s - onset_s, named.len())
    });
    for rank in replayed.ranks.values() {
        assert_eq!((rank.reader.faults(), rank.reader.dropped()), (0, 0));
        fs::remove_file(rank.reader.path()).unwrap();
    }
    fs::write(outcome(sandbox, number), reported_of.unwrap_or_default()).unwrap();
}

/// Where it stands how long it took until a fault was named, and with how many ranks.
fn outcome(sandbox: &Sandbox, number: u64) -> PathBuf {
    sandbox.root.join(format!("fault{number}"))
}

/// Runs `body` for each number in a process of its own, which has opened no plugin yet.
fn in_children(numbers: RangeInclusive<u64>, body: impl Fn(u64)) {
    let numbers: Vec<u64> = numbers.collect();
    for together in numbers.chunks(TOGETHER) {
        let fork = |number: &u64| {
            // SAFETY: the child runs `body` only, and ends without what its parent would do.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    let body = AssertUnwindSafe(|| body(*number));
                    libc::_exit(i32::from(catch_unwind(body).is_err()));
                }
                child
            }
        };
        let children: Vec<libc::pid_t> = together.iter().map(fork).collect();
        for child in children {
            let mut status = -1;
            // SAFETY: the child is ours.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0, "the child ended well");
        }
    }
}
