//! Jobs as all methods see them, and jobs of two hosts that tell a collector.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use model::{Method, Question, Verdict};
use serde_json::Value;

use super::{AcceptanceRow, DATA, FORWARD, Lab, MATRIX, Print, Truth, names};
use crate::server::ServeProcess;

/// Ranks of each of the two hosts.
const LOCAL_RANKS: u32 = 2;
const RANKS: u32 = 2 * LOCAL_RANKS;
const SEEDS: [u32; 3] = [1, 2, 3];
/// Fault-free jobs, and steps of each.
const HEALTHY_JOBS: u32 = 24;
const HEALTHY_STEPS: u32 = 520;
/// Trainings, below `python`.
const DEMO: &str = "laggard/demo/train.py";
const STUDY: &str = "tests/jobs/study.py";
/// Far more than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(3);

/// The verdict on a job of two hosts, a script of ours, once both have reported its end.
fn verdict(collector: &ServeProcess, lab: &Lab, job: &str, training: &str) -> Result<Verdict> {
    // Both hosts need the same port before either starts; the kernel knows one that is free.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut hosts = Vec::new();
    for (node, host) in ["a", "b"].into_iter().enumerate() {
        let words = format!(
            "run --collector {} --job {job} --host {host} -- torchrun --nnodes 2 \
             --node-rank {node} --nproc-per-node {LOCAL_RANKS} --master-addr 127.0.0.1 \
             --master-port {port} {}/python/{training}",
            collector.url,
            lab.root.display(),
        );
        let mut command = lab.command("laggard")?;
        command
            .args(words.split_whitespace())
            .stderr(Stdio::piped());
        hosts.push(command.spawn()?);
    }
    for host in hosts {
        let output = host.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{job}: {said}");
    }
    // An agent may end before its collector has analysed the last batch.
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let jobs: Value = serde_json::from_str(&collector.get("jobs")?)?;
        let mut jobs = jobs["jobs"].as_array().into_iter().flatten();
        if jobs.any(|one| one["id"] == job && one["state"] == "ended") {
            let verdict = collector.get(&format!("jobs/{job}/verdict"))?;
            return Ok(serde_json::from_str(&verdict)?);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    bail!("{job} never ended for its collector")
}

/// Exposed seconds that were hidden in the steps that were analysed.
pub(super) fn injected_s(fault: &str, verdict: &Verdict) -> f64 {
    let late_s = match fault {
        // The delays of `train.py`.
        "periodic" => 0.2,
        "stall" => 5.0,
        _ => 0.05,
    };
    let struck = verdict
        .windows
        .iter()
        .flat_map(|window| window.first_step..window.first_step + window.steps)
        .filter(|step| match fault {
            "periodic" => step.is_multiple_of(10),
            "stall" => *step == 60,
            _ => true,
        })
        .count();
    late_s * struck as f64
}

/// What is wrong with what the collector says of a fault, and what part of the injected time it
/// charges.
fn judged(truth: Truth, seed: u32, verdict: &Verdict) -> (Vec<String>, f64) {
    let (fault, rank_named, stage, pace) = truth;
    let Some((first, others)) = verdict.incidents.split_first() else {
        return (vec!["no incident".to_owned()], 0.0);
    };
    let slow = if rank_named {
        vec![seed % RANKS]
    } else {
        Vec::new()
    };
    let charged = first.cost_s / injected_s(fault, verdict);
    // All but the culprits waited.
    let victims: Vec<u32> = (0..RANKS).filter(|rank| !slow.contains(rank)).collect();
    let named: Vec<u32> = first.victims.iter().collect();
    let alone = match others {
        [hidden] if fault == "two" => {
            hidden.subject.ranks == [(seed + 2) % RANKS]
                && hidden.subject.stage.as_deref() == Some(FORWARD)
        }
        _ => fault != "two" && others.is_empty(),
    };
    let agreed = verdict
        .incidents
        .iter()
        .all(|i| i.contradictions.is_empty());
    let asked = [
        (names(verdict, &slow, stage), "who or where"),
        (first.pace == pace, "pace"),
        (alone, "another incident"),
        (named == victims, "victims"),
        (
            // Each victim loses what the fault costs.
            (first.cost_gpu_s - first.cost_s * named.len() as f64).abs() < 1e-6,
            "GPU-seconds",
        ),
        ((charged - 1.0).abs() <= 0.1, "cost"),
        (agreed, "a contradiction"),
        (verdict.job.lost_records == 0, "records lost"),
    ];
    let wrong: Vec<&str> = asked
        .into_iter()
        .filter(|(right, _)| !right)
        .map(|(_, what)| what)
        .collect();
    if wrong.is_empty() {
        return (Vec::new(), charged);
    }
    let texts = verdict
        .incidents
        .iter()
        .map(|incident| incident.text.clone());
    ([vec![wrong.join(", ")], texts.collect()].concat(), charged)
}

/// The fault matrix once more, with two hosts of two ranks that tell a collector.
pub(super) fn fault_matrix(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    let collector = ServeProcess::start(lab.command("laggard")?, &["--data", "collected"])?;
    for truth in MATRIX {
        let fault = truth.0;
        let (mut lines, mut charged) = (Vec::new(), Vec::new());
        for seed in SEEDS {
            let (job, training) = (
                format!("{fault}-{seed}"),
                format!("{DEMO} --fault {fault} --seed {seed}"),
            );
            let verdict = verdict(&collector, lab, &job, &training)?;
            let (wrong, share) = judged(truth, seed, &verdict);
            charged.push(format!("{share:.3}"));
            if !wrong.is_empty() {
                lines.push(format!("seed {seed}: {}", wrong.join("; ")));
            }
        }
        let holds = lines.is_empty();
        let right = SEEDS.len() - lines.len();
        let charged = charged.join(", ");
        lines.insert(0, format!("{right} of {}; charged {charged}", SEEDS.len()));
        let target = "one incident; who, stage, pace; 0.9 to 1.1 of what was injected";
        print(AcceptanceRow::new(
            id,
            format!("`{fault}`"),
            lines.join("; "),
            target,
            holds,
        ));
    }
    Ok(())
}

/// Fault-free jobs of two hosts that tell a collector.
pub(super) fn healthy(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    let collector = ServeProcess::start(lab.command("laggard")?, &["--data", "collected"])?;
    let (mut lines, mut windows, mut strong) = (Vec::new(), 0, 0);
    for seed in 1..=HEALTHY_JOBS {
        let training = format!("{DEMO} --fault none --steps {HEALTHY_STEPS} --seed {seed}");
        let verdict = verdict(&collector, lab, &format!("none-{seed}"), &training)?;
        windows += verdict.windows.len();
        let labels = verdict.windows.iter().flat_map(|window| &window.labels);
        strong += labels.filter(|label| label.is_strong()).count();
        let said = verdict.incidents.iter();
        lines.extend(said.map(|incident| format!("seed {seed}: {}", incident.text)));
    }
    let holds = lines.is_empty() && strong == 0;
    let incidents = lines.len();
    lines.insert(
        0,
        format!("{incidents} incidents, {strong} strong labels in {windows} windows"),
    );
    let scenario = format!(
        "{HEALTHY_JOBS} jobs of {HEALTHY_STEPS} steps without a fault, 4 ranks on 2 hosts, told \
         to a collector"
    );
    print(AcceptanceRow::new(
        id,
        scenario,
        lines.join("; "),
        "none",
        holds,
    ));
    Ok(())
}

/// Whether a method is among those that name the rank first.
fn names_by(verdict: &Verdict, rank: u32, method: Method) -> bool {
    verdict.incidents.first().is_some_and(|first| {
        first.subject.ranks == [rank]
            && first
                .evidence
                .iter()
                .any(|evidence| evidence.method == method)
    })
}

/// Jobs of two hosts in which the loader of one rank becomes slow, as the methods see it.
pub(super) fn slow_loader(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    // A window that a hiccup before asked for must not be the only one.
    std::fs::write(lab.file("laggard.toml"), "[profile]\nevery_s = 5.0\n")?;
    let options = ["--data", "collected", "--config", "laggard.toml"];
    let collector = ServeProcess::start(lab.command("laggard")?, &options)?;
    let (mut lines, mut functions) = (Vec::new(), BTreeSet::new());
    for seed in SEEDS {
        let (job, slow) = (format!("slow-{seed}"), seed % RANKS);
        let training =
            format!("{STUDY} --fault data --delay-ms 50 --from 160 --steps 400 --slow {slow}");
        let verdict = verdict(&collector, lab, &job, &training)?;
        let (kept, calls) = (
            format!("collected/{job}/batches.zst"),
            format!("calls-{seed}"),
        );
        let export = ["analyze", "--json", "--export-calls", &calls, &kept];
        lab.verdict(&export.map(str::to_owned))?;
        let called = lab.verdict(&["analyze", "--json", &calls].map(str::to_owned))?;
        let first = verdict.incidents.first();
        functions.extend(first.and_then(|first| first.subject.function.clone()));
        let asked = [
            (names(&verdict, &[slow], DATA), "stages: rank, data"),
            (
                names_by(&verdict, slow, Method::Pattern),
                "a profile: rank, function",
            ),
            (names_by(&called, slow, Method::Schedule), "call logs: rank"),
            (
                first.is_some_and(|first| first.contradictions.is_empty()),
                "no contradiction",
            ),
        ];
        let wrong: Vec<_> = asked
            .into_iter()
            .filter(|(right, _)| !right)
            .map(|(_, what)| what)
            .collect();
        if !wrong.is_empty() {
            lines.push(format!("seed {seed} lacks: {}", wrong.join("; ")));
        }
    }
    let holds = lines.is_empty();
    let right = SEEDS.len() - lines.len();
    let functions = functions.into_iter().collect::<Vec<_>>().join("`, `");
    lines.insert(
        0,
        format!(
            "{right} of {}: by stages, by a profile (`{functions}`) and by calls",
            SEEDS.len()
        ),
    );
    let scenario = "4 ranks on 2 hosts, told to a collector; the loader of one becomes slow in \
                    step 160 of 400";
    print(AcceptanceRow::new(
        id,
        scenario,
        lines.join("; "),
        "data and rank by all methods",
        holds,
    ));
    Ok(())
}

/// Two pipelines side by side, blocks of one rank slow: its neighbour only waits.
pub(super) fn pipelines(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    let (mut right, mut faults, mut contradicted) = (0, Vec::new(), 0);
    let places = (0..RANKS).flat_map(|rank| ["F", "B"].map(|pass| (rank, pass)));
    for (rank, pass) in places {
        let slow = format!("SLOW_BLOCKS={rank},{pass},10,39");
        let mut command: Vec<String> = ["env", "STEPS=40", &slow].map(str::to_owned).into();
        command.extend(lab.torchrun(RANKS, "python/tests/jobs/pipelines.py", ""));
        let verdict = lab.run("", command)?;
        let named: Vec<_> = verdict
            .incidents
            .iter()
            .map(|i| &i.subject.ranks[..])
            .collect();
        if named == [[rank]] {
            right += 1;
        } else {
            faults.push(format!("rank {rank}, pass {pass}: {named:?} named"));
        }
        let mut found = verdict.incidents.iter().flat_map(|i| &i.contradictions);
        contradicted += usize::from(found.any(|found| found.about == Question::Ranks));
    }
    let holds = faults.is_empty();
    faults.insert(
        0,
        format!("{right} of 8; in {contradicted} stages named the other rank too"),
    );
    let scenario = "two pipelines of two stages side by side, blocks of one rank 50 ms longer";
    print(AcceptanceRow::new(
        id,
        scenario,
        faults.join("; "),
        "that rank alone",
        holds,
    ));
    Ok(())
}
