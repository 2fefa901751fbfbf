//! Traces of profilers as other versions, vendors and launchers write them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

const RANKS: u32 = 4;
/// The device that is slow, where one is.
const SLOW: u32 = 2;

/// A job whose devices compute, and then meet twice in each of six steps: 20 ms after they began, or as
/// late as the slowest, and once more right behind.
struct Job {
    /// The kernels of both collectives, and what their arguments say.
    kernels: [(&'static str, Value); 2],
    /// By which part longer the slow device computes.
    excess: f64,
    /// What the host calls the collectives that it issues, if it says so.
    annotation: Option<&'static str>,
    /// The rank of whose kernels only the first step's were recorded.
    cut: Option<u32>,
    /// By how many microseconds the host of the slow rank takes longer, while its device works.
    late_us: f64,
}

impl Job {
    fn new(kernels: [(&'static str, Value); 2]) -> Self {
        Self {
            kernels,
            excess: 0.5,
            annotation: None,
            cut: None,
            late_us: 0.0,
        }
    }

    fn nccl(first: &str, second: &str) -> Self {
        let args = |op: &str| json!({"Collective name": op, "Process Group Name": "0"});
        let [first, second] = [args(first), args(second)];
        Self::new([
            ("ncclDevKernel_ReduceScatter_RING_LL(x)", first),
            ("ncclDevKernel_AllGather_RING_LL(x)", second),
        ])
    }

    fn trace(&self, rank: u32) -> Vec<Value> {
        let mut events = Vec::new();
        let mut event = |category: &str, name: &str, thread: u32, at: [f64; 2], args: &Value| {
            events.push(
                json!({"ph": "X", "cat": category, "name": name, "pid": 7, "tid": thread,
                "ts": at[0], "dur": at[1] - at[0], "args": args}),
            );
        };
        // Devices always have something to do.
        let step_us = 14_000.0 * (1.0 + self.excess) + 2_100.0;
        for step in 0..6 {
            let at = 1000.0 + step_us * f64::from(step);
            let own = if rank == SLOW { 1.0 + self.excess } else { 1.0 };
            let is_recorded = self.cut != Some(rank) || step == 0;
            let none = json!({});
            let name = format!("ProfilerStep#{step}");
            event("user_annotation", &name, 7, [at, at + step_us - 1.0], &none);
            let late_us = if rank == SLOW { self.late_us } else { 0.0 };
            let forward = [at, at + 900.0 + late_us];
            event("user_annotation", "## forward ##", 7, forward, &none);
            let mut ready = [at + 100.0, at + 100.0 + 14_000.0 * own];
            let mut all = at + 100.0 + 14_000.0 * (1.0 + self.excess);
            for (place, (kernel, args)) in self.kernels.iter().enumerate() {
                let issued = at + 200.0 + 50.0 * place as f64;
                event(
                    "cuda_runtime",
                    "cudaLaunchKernel",
                    7,
                    [issued, issued + 5.0],
                    &none,
                );
                event(
                    "cuda_runtime",
                    "cudaLaunchKernel",
                    7,
                    [issued + 9.0, issued + 15.0],
                    &none,
                );
                if let Some(name) = self.annotation {
                    event("user_annotation", name, 7, [issued, issued + 7.0], &none);
                }
                if is_recorded {
                    event("kernel", "gemm", 8, ready, &none);
                    event("kernel", kernel, 9, [ready[1], all + 500.0], args);
                }
                ready = [all + 500.0, all + 1500.0];
                all += 1500.0;
            }
        }
        events
    }

    /// What `analyze` says of its traces, each in this file and with this rank and size.
    fn said(&self, file: impl Fn(u32) -> String, info: impl Fn(u32) -> Value) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        for rank in 0..RANKS {
            let file = folder.path().join(file(rank));
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            let trace = json!({"schemaVersion": 1, "distributedInfo": info(rank),
                "baseTimeNanoseconds": 1_790_857_026_000_000_000_u64,
                "traceEvents": self.trace(rank)});
            fs::write(file, trace.to_string()).expect("a file");
        }
        analyze(folder.path())
    }

    fn verdict(&self) -> String {
        let info = |rank| json!({"rank": rank, "world_size": RANKS});
        self.said(|rank| format!("rank{rank}.json"), info)
    }
}

fn analyze(folder: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    let command = command.args(["analyze", "."]).current_dir(folder);
    let output = command.env_remove("LAGGARD_CONFIG").output();
    let output = output.expect("laggard runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The lines with incidents.
fn incidents(said: &str) -> Vec<&str> {
    let levels = ["CRITICAL", "WARNING", "INFO"];
    let lines = said.lines();
    let found = lines.filter(|line| levels.iter().any(|level| line.starts_with(level)));
    found.collect()
}

#[test]
fn a_slow_device_of_a_sharded_model_is_late_where_gradients_are_scattered() {
    for [scatter, gather] in [
        ["_reduce_scatter_base", "_allgather_base"],
        [
            "reduce_scatter_tensor_coalesced",
            "allgather_into_tensor_coalesced",
        ],
    ] {
        let said = Job::nccl(scatter, gather).verdict();
        let [one] = incidents(&said)[..] else {
            panic!("{said}");
        };
        assert!(one.contains("rank 2 is late to REDUCE_SCATTER_"), "{said}");
        let healthy = Job {
            excess: 0.0,
            ..Job::nccl(scatter, gather)
        };
        assert!(incidents(&healthy.verdict()).is_empty());
    }
}

#[test]
fn collectives_are_named_by_annotations_where_their_kernels_say_nothing() {
    let generic = "ncclDevKernel_Generic_1(x)";
    let unnamed = Job::new([(generic, json!({})), (generic, json!({}))]);
    let named = Job {
        annotation: Some("nccl:all_reduce"),
        ..unnamed
    };
    let said = named.verdict();
    assert!(said.contains("rank 2 is late to ALLREDUCE"), "{said}");
}

#[test]
fn who_waits_in_a_collective_of_any_library_is_not_to_blame() {
    for kernel in [
        "void vllm::cross_device_reduce_2stage<half, 8>(x)",
        "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<half, 16, 2>(x)",
    ] {
        let said = Job::new([(kernel, json!({})), (kernel, json!({}))]).verdict();
        let named: BTreeSet<&str> = incidents(&said).into_iter().collect();
        assert!(!named.is_empty(), "{said}");
        assert!(
            named.iter().all(|line| line.contains("  rank 2 ")),
            "{said}"
        );
    }
}

#[test]
fn a_rank_whose_kernels_were_lost_is_not_to_blame() {
    let job = Job {
        excess: 0.0,
        cut: Some(3),
        ..Job::nccl("allreduce", "allreduce")
    };
    let said = job.verdict();
    assert!(incidents(&said).is_empty(), "{said}");
    assert!(
        said.contains("rank3.json: 20 of 24 kernels that the host launched"),
        "{said}"
    );
}

#[test]
fn a_host_whose_device_has_work_meanwhile_holds_nobody_up() {
    let job = Job {
        excess: 0.0,
        late_us: 6000.0,
        ..Job::nccl("allreduce", "allreduce")
    };
    let said = job.verdict();
    assert!(incidents(&said).is_empty(), "{said}");
}

#[test]
fn traces_are_of_one_job_in_a_folder_each_and_where_processes_knew_of_no_others() {
    let job = Job::nccl("allreduce", "allreduce");
    for said in [
        job.said(
            |rank| format!("rank_{rank}/node_77.pt.trace.json"),
            |_| json!({}),
        ),
        job.said(
            |rank| format!("rank{rank}.json"),
            |_| json!({"rank": 0, "world_size": 1}),
        ),
    ] {
        assert!(said.contains("rank 2 is late to ALLREDUCE"), "{said}");
        assert_eq!(said.matches("laggard ").count(), 1, "{said}");
    }
}

#[test]
fn devices_that_were_compared_with_none_are_not_called_healthy() {
    let send = (
        "ncclDevKernel_SendRecv(x)",
        json!({"Collective name": "send"}),
    );
    let said = Job::new([send.clone(), send]).verdict();
    assert!(said.contains("NOTHING FOUND"), "{said}");
    assert!(
        said.contains("sends and receives do not show it either"),
        "{said}"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let alone = json!({"traceEvents": Job::nccl("allreduce", "allreduce").trace(0)});
    fs::write(folder.path().join("a.json"), alone.to_string()).expect("a file");
    let said = analyze(folder.path());
    assert!(
        said.contains("NOTHING FOUND  ranks that have no peers were not compared"),
        "{said}"
    );
}
