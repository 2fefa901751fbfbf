//! Rows measured on real `torchrun` jobs (gloo, CPU) on this machine.

mod ahead;
mod gain;
mod service;
mod turns;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use formats::{Limits, Recording, load};
use frontier::{Baseline, Gates, PeerMethod, analyse, peer_scores, ranking};
use model::{Pace, StageId, Verdict, Window};
use sha2::{Digest, Sha256};
use sim::{STAGES, window_of};

use super::AcceptanceRow;

type Print<'a> = &'a mut dyn FnMut(AcceptanceRow);
type Rows = fn(&Lab, &str, Print<'_>) -> Result<()>;

pub(super) const ROWS: [(&str, Rows); 19] = [
    ("peers", recorded_peers),
    ("SF-A10", seeded_stage_on_gloo),
    ("SF-A11", host_only_late_work),
    ("SF-A12", callback_magnitudes),
    ("SF-A13", removal),
    ("SF-A14", accumulation),
    ("SF-A15", telemetry_failure),
    ("SF-A17", profiler_agreement),
    ("alone", without_an_agent),
    ("fault", fault_matrix),
    ("X1", service::slow_loader),
    ("X4", service::healthy),
    ("pipelines", service::pipelines),
    ("service", service::fault_matrix),
    ("ahead", ahead::late_waits),
    ("device-ddp", ahead::on_devices),
    ("device-fsdp2", ahead::on_devices),
    ("device-pipeline", ahead::on_devices),
    ("gain", gain::predicted),
];

const DATA: &str = "data.next_wait";
const FORWARD: &str = "model.fwd_loss_cpu_wall";
const BACKWARD: &str = "model.backward_cpu_wall";
const CALLBACKS: &str = "callbacks.cpu_wall";
const OPTIMIZER: &str = "optim.step_cpu_wall";
const OTHER: &str = "step.other_cpu_wall";

/// How far from its step time before the fault a job may stay to count as recovered, as a
/// share of it. The paper's value is not known in these terms; ours.
const RECOVERY_TOL: f64 = 0.10;

/// Where jobs are run.
pub(super) struct Lab {
    root: PathBuf,
    bin: PathBuf,
    scratch: tempfile::TempDir,
}

impl Lab {
    pub(super) fn new(root: &Path, venv: &Path) -> Result<Self> {
        let bin = fs::canonicalize(venv)
            .with_context(|| format!("no virtual environment at {}", venv.display()))?
            .join("bin");
        let scratch = tempfile::tempdir()?;
        Ok(Self {
            root: fs::canonicalize(root)?,
            bin,
            scratch,
        })
    }

    /// A command of the virtual environment, or else of this machine.
    fn command(&self, program: &str) -> Result<Command> {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command
            .current_dir(self.scratch.path())
            // Ranks share few cores. torchrun sets this by itself, `launch.py` does not.
            .env("OMP_NUM_THREADS", "1");
        command.env(
            "PATH",
            format!("{}:{path}", self.bin.to_str().context("a path")?),
        );
        Ok(command)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn torchrun(&self, ranks: u32, script: &str, arguments: &str) -> Vec<String> {
        let script = self.root.join(script).display().to_string();
        let launcher = format!("torchrun --standalone --nproc-per-node {ranks}");
        let words = launcher.split_whitespace().map(str::to_owned);
        let arguments = arguments.split_whitespace().map(str::to_owned);
        words.chain([script]).chain(arguments).collect()
    }

    /// The verdict of a command that ends with one on its standard output.
    fn verdict(&self, arguments: &[String]) -> Result<Verdict> {
        Ok(self.verdict_and_output(arguments)?.0)
    }

    /// The standard output of a command, and what it wrote beside it.
    fn outputs(&self, program: &str, arguments: &[String]) -> Result<(String, String)> {
        let output = self.command(program)?.args(arguments).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.success(),
            "{} failed:\n{said}",
            arguments.join(" ")
        );
        Ok((String::from_utf8(output.stdout)?, said))
    }

    /// The verdict of a command, and its whole standard output.
    fn verdict_and_output(&self, arguments: &[String]) -> Result<(Verdict, String)> {
        let (text, said) = self.outputs("laggard", arguments)?;
        // `run` ends with one line; `analyze` prints a document.
        let json = if text.starts_with("{\n") {
            &text
        } else {
            last_line(&text)
        };
        let verdict = serde_json::from_str(json).with_context(|| format!("no verdict:\n{said}"));
        Ok((verdict?, text))
    }

    /// The verdict of a training under `laggard run`.
    fn run(&self, options: &str, command: Vec<String>) -> Result<Verdict> {
        Ok(self.run_with_output(options, command)?.0)
    }

    /// The verdict of a training, and its whole standard output.
    fn run_with_output(&self, options: &str, command: Vec<String>) -> Result<(Verdict, String)> {
        let mut arguments = vec!["run".to_owned(), "--json".to_owned()];
        arguments.extend(options.split_whitespace().map(str::to_owned));
        arguments.push("--".to_owned());
        arguments.extend(command);
        self.verdict_and_output(&arguments)
    }

    fn study(&self, options: &str, ranks: u32, arguments: &str) -> Result<Verdict> {
        let command = self.torchrun(ranks, "python/tests/jobs/study.py", arguments);
        self.run(options, command)
    }

    fn demo(&self, fault: &str, ranks: u32, seed: u32) -> Result<Verdict> {
        let arguments =
            format!("demo --json --fault {fault} --ranks {ranks} --seed {seed} --report demo.html");
        self.verdict(
            &arguments
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    }

    /// The final weights of the demo's training, run as it is or under something.
    fn weights(&self, prefix: &[&str], arguments: &str) -> Result<Vec<u8>> {
        let path = self.file("weights");
        if path.exists() {
            fs::remove_file(&path)?;
        }
        let arguments = format!("{arguments} --save weights");
        let command = self.torchrun(2, "python/laggard/demo/train.py", &arguments);
        let mut words = prefix
            .iter()
            .copied()
            .chain(command.iter().map(String::as_str));
        let program = words.next().context("a command")?;
        let mut command = self.command(program)?;
        // Rings of a run without agent stay in the scratch folder.
        command.env("LAGGARD_DIR", self.scratch.path()).args(words);
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{said}");
        Ok(Sha256::digest(fs::read(path)?).to_vec())
    }
}

fn last_line(text: &str) -> &str {
    text.trim_end().rsplit('\n').next().unwrap_or_default()
}

/// Stages by share, largest first.
fn by_share(verdict: &Verdict) -> Vec<&str> {
    let mut stages: Vec<_> = verdict.stages.iter().collect();
    stages.sort_by(|a, b| b.share.total_cmp(&a.share));
    stages
        .into_iter()
        .map(|stage| stage.name.as_str())
        .collect()
}

fn share(verdict: &Verdict, stage: &str) -> f64 {
    let found = verdict.stages.iter().find(|found| found.name == stage);
    found.map_or(0.0, |found| found.share)
}

/// Whether the first incident names these ranks and this stage.
fn names(verdict: &Verdict, ranks: &[u32], stage: &str) -> bool {
    verdict.incidents.first().is_some_and(|incident| {
        incident.subject.ranks == ranks && incident.subject.stage.as_deref() == Some(stage)
    })
}

/// Recordings of real jobs with one late rank in one stage, timed by the script itself.
const RECORDED: [(&str, StageId); 9] = [
    ("data", StageId::DATA),
    ("data_workers", StageId::DATA),
    ("data_tail", StageId::DATA),
    ("data_random", StageId::DATA),
    ("forward", StageId::FORWARD),
    ("backward", StageId::BACKWARD),
    ("backward_comm", StageId::BACKWARD),
    ("callback_barrier", StageId::CALLBACKS),
    ("optim_barrier", StageId::OPTIMIZER),
];

/// Of how many windows a way of ranking has the true stage first, and of how many among the first
/// two; without a method, the frontier.
fn first_and_second(windows: &[(Window, StageId)], method: Option<PeerMethod>) -> (usize, usize) {
    let (mut first, mut second) = (0, 0);
    for (window, truth) in windows {
        let scores = match method {
            None => analyse(window, &Gates::default(), &Baseline::CohortMedian).share,
            Some(method) => peer_scores(window, &STAGES, method),
        };
        let place = ranking(&scores)
            .iter()
            .position(|slot| STAGES[*slot] == *truth);
        first += usize::from(place == Some(0));
        second += usize::from(matches!(place, Some(0 | 1)));
    }
    (first, second)
}

/// The ways of ranking stages that the paper compares, on those recordings.
fn recorded_peers(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    let mut windows = Vec::new();
    for (name, truth) in RECORDED {
        let path = lab.root.join(format!("testdata/matrices/{name}.json.gz"));
        let Recording::Matrix(matrix) = load(&path, Limits::default())? else {
            bail!("{} is no stage matrix", path.display());
        };
        windows.push((window_of(&STAGES, &matrix.durations_s()), truth));
    }
    let (frontier, total) = (first_and_second(&windows, None), windows.len());
    let methods = PeerMethod::ALL.map(Some);
    for method in [None].into_iter().chain(methods) {
        let (first, second) = first_and_second(&windows, method);
        let name = method.map_or("frontier", PeerMethod::name);
        let scenario = format!("{total} recorded gloo jobs, 120 ms in one stage: {name}");
        let measured = format!("top-1 {first}/{total}, top-2 {second}/{total}");
        let (target, holds) = match method {
            None => ("all", (first, second) == (total, total)),
            Some(_) => (
                "not more than the frontier",
                first <= frontier.0 && second <= frontier.1,
            ),
        };
        print(AcceptanceRow::new(id, scenario, measured, target, holds));
    }
    Ok(())
}

/// 120 ms in four stages, three seeds each with 2, 4 and 8 processes. The published step order.
fn seeded_stage_on_gloo(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    let faults = [
        ("data", DATA),
        ("forward", FORWARD),
        ("backward", BACKWARD),
        ("optim_barrier", OPTIMIZER),
    ];
    let (mut first, mut second, mut rows) = (0, 0, 0);
    for (fault, stage) in faults {
        for (ranks, seed) in SETUPS {
            let arguments = format!("--fault {fault} --seed {seed} --delay 0.12 --steps 60");
            let command = lab.torchrun(ranks, "python/laggard/demo/train.py", &arguments);
            let verdict = lab.run("--published-cut", command)?;
            let order = by_share(&verdict);
            first += usize::from(order.iter().take(1).any(|found| *found == stage));
            second += usize::from(order.iter().take(2).any(|found| *found == stage));
            rows += 1;
        }
    }
    let measured = format!("top-2 {second}/{rows}, top-1 {first}/{rows}");
    let scenario =
        "120 ms in data, forward, backward, optimizer+barrier; 2, 4, 8 ranks, 3 seeds each";
    print(AcceptanceRow::new(
        id,
        scenario,
        measured,
        "top-2 50/50",
        second == rows,
    ));
    Ok(())
}

/// 120 ms in the optimizer of one rank and nothing in the step that waits for it.
fn host_only_late_work(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    let (mut routed, mut displaced, mut named) = (0, 0, 0);
    for seed in 1..=3 {
        let arguments = format!("--fault optim --delay-ms 120 --slow {seed}");
        let published = lab.study("--published-cut", 4, &arguments)?;
        routed += usize::from(by_share(&published)[0] == OPTIMIZER);
        // Nobody waits within the step. The others meet the late rank in the next all-reduce, and
        // the published cut counts that wait as backward of the next step.
        displaced += usize::from(by_share(&published)[0] == BACKWARD);
        let step_cut = lab.study("", 4, &arguments)?;
        named += usize::from(names(&step_cut, &[seed], OPTIMIZER));
    }
    let scenario = "120 ms in one optimizer, no barrier: published cut";
    let measured = format!("routed {routed}/3; shows in the next backward {displaced}/3");
    print(AcceptanceRow::new(
        id,
        scenario,
        measured,
        "0/18 routed",
        routed == 0 && displaced == 3,
    ));
    let scenario = "the same, step cut";
    let measured = format!("rank and stage named {named}/3");
    print(AcceptanceRow::new(
        id,
        scenario,
        measured,
        "3/3 (ours)",
        named == 3,
    ));
    Ok(())
}

/// A callback with a barrier behind it, beside a backward pass of 150 ms.
fn callback_magnitudes(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    // Every rank exposes 150 ms of backward; a callback leads only where it is late by more.
    for (delay_ms, above) in [(60, false), (120, false), (180, true), (240, true)] {
        let (mut first, mut second) = (0, 0);
        for seed in 1..=3 {
            let arguments = format!(
                "--fault callback --barrier --delay-ms {delay_ms} --backward-ms 150 \
                 --slow {seed} --steps 40"
            );
            let verdict = lab.study("--published-cut", 4, &arguments)?;
            let order = by_share(&verdict);
            first += usize::from(order[0] == CALLBACKS);
            second += usize::from(order[..2].contains(&CALLBACKS));
        }
        let scenario = format!("callback {delay_ms} ms + barrier, backward 150 ms");
        let measured = format!("top-1 {first}/3, top-2 {second}/3");
        let expected = if above { 3 } else { 0 };
        let paper = format!("top-1 {expected}/3, top-2 3/3");
        print(AcceptanceRow::new(
            id,
            scenario,
            measured,
            paper,
            first == expected && second == 3,
        ));
    }
    Ok(())
}

/// What a step takes in the windows that lie within some steps.
fn mean_step_s(verdict: &Verdict, within: Range<u64>) -> f64 {
    let (sum_s, steps) = verdict
        .windows
        .iter()
        // A window across the first or the last step of a fault holds steps of both kinds.
        .filter(|window| {
            window.first_step >= within.start && window.first_step + window.steps <= within.end
        })
        .fold((0.0, 0), |(sum_s, steps), window| {
            (
                sum_s + window.step_s * window.steps as f64,
                steps + window.steps,
            )
        });
    // Without a window this is not a number, and no comparison with it holds.
    sum_s / steps as f64
}

/// A fault that comes and goes: steps 100 to 199 of 300.
fn removal(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    for seed in 1..=3 {
        let arguments =
            format!("--fault callback --barrier --from 100 --to 200 --steps 300 --slow {seed}");
        let verdict = lab.study("--published-cut", 4, &arguments)?;
        let [before, during, after] =
            [0, 100, 200].map(|first| mean_step_s(&verdict, first..first + 100));
        let recovery = 1.0 - (after - before).abs() / (during - before);
        let off_ms = (after - before).abs() * 1e3;
        let tolerance_ms = RECOVERY_TOL * before * 1e3;
        let measured = format!("{recovery:.3}, back within {off_ms:.2} ms");
        let paper = format!(">= 0.98 (0.998), tolerance {tolerance_ms:.2} ms");
        let holds = recovery >= 0.98 && off_ms <= tolerance_ms;
        print(AcceptanceRow::new(
            id,
            "A/B/A, 120 ms callback + barrier",
            measured,
            paper,
            holds,
        ));
    }
    Ok(())
}

fn accumulation(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    for (fault, stage) in [("data", DATA), ("backward", BACKWARD)] {
        let (mut first, mut named) = (0, 0);
        for seed in 1..=3 {
            let arguments =
                format!("--fault {fault} --delay-ms 50 --accumulation 4 --steps 40 --slow {seed}");
            let verdict = lab.study("", 4, &arguments)?;
            first += usize::from(by_share(&verdict)[0] == stage);
            named += usize::from(names(&verdict, &[seed], stage));
        }
        let scenario = format!("{fault} fault, accumulation 4 with no_sync");
        let measured = format!("top-1 {first}/3, rank and stage named {named}/3");
        let holds = first == 3 && named == 3;
        print(AcceptanceRow::new(
            id,
            scenario,
            measured,
            "top-1 in all rows",
            holds,
        ));
    }
    let collapsed = lab.file("collapsed.json");
    let stages = [DATA, FORWARD, BACKWARD, CALLBACKS, OPTIMIZER, OTHER];
    let cell = [0.2, 0.1, 0.1, 0.0, 0.01, 0.0];
    let document = serde_json::json!({
        // Four micro-steps in one row of six stages: the sums say nothing of their order.
        "schema": "stage-matrix/1", "unit": "s", "stages": stages, "grad_accum": 4,
        "matrix": vec![vec![cell; 4]; 20],
    });
    fs::write(&collapsed, document.to_string())?;
    let arguments = ["analyze", "--json", "collapsed.json"].map(str::to_owned);
    let verdict = lab.verdict(&arguments)?;
    let labels: Vec<&str> = verdict
        .windows
        .iter()
        .flat_map(|w| &w.labels)
        .map(|label| label.name())
        .collect();
    let ambiguous = labels.contains(&"gradient_accumulation_ambiguous");
    let measured = labels.join(", ");
    print(AcceptanceRow::new(
        id,
        "micro-steps summed",
        measured,
        "ambiguous",
        ambiguous,
    ));
    Ok(())
}

/// One rank's telemetry is missing altogether.
fn telemetry_failure(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    let training = "--fault none --steps 60 --seed 1";
    let plain = lab.weights(&[], training)?;
    let watched = lab.weights(&["laggard", "run", "--"], training)?;
    let same = if plain == watched {
        "identical"
    } else {
        "different"
    };
    let scenario = "weights under laggard and without";
    print(AcceptanceRow::new(
        id,
        scenario,
        same,
        "unchanged",
        plain == watched,
    ));
    let script = lab.root.join("python/laggard/demo/train.py");
    // torchrun gives all ranks one environment, so the rank that differs sets its own.
    let shell = "if [ $RANK = 1 ]; then export LAGGARD_ENABLE=0; fi; exec python $0 $@";
    let mut command: Vec<String> = "torchrun --standalone --nproc-per-node 2 --no-python bash -c"
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    command.push(shell.to_owned());
    command.push(script.display().to_string());
    command.extend(
        "--fault none --steps 60 --seed 1"
            .split_whitespace()
            .map(str::to_owned),
    );
    let verdict = lab.run("", command)?;
    let limited = verdict.windows.iter().all(|window| {
        window
            .labels
            .iter()
            .any(|label| label.name() == "telemetry_limited")
            && !window.labels.iter().any(|label| label.is_strong())
    });
    let measured = format!(
        "telemetry_limited in {} windows, {} incidents",
        if limited { "all" } else { "not all" },
        verdict.incidents.len()
    );
    let holds = limited && !verdict.windows.is_empty() && verdict.incidents.is_empty();
    print(AcceptanceRow::new(
        id,
        "one rank without telemetry",
        measured,
        "telemetry_limited",
        holds,
    ));
    Ok(())
}

/// The job measures its own stages with torch.profiler, laggard with its hooks.
fn profiler_agreement(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    let mut worst = 0.0f64;
    let faults = [
        "--fault data",
        "--fault forward",
        "--fault callback --barrier",
        "",
    ];
    for fault in faults {
        let arguments = format!("{fault} --delay-ms 40 --steps 60 --matrix profiled.json");
        let hooks = lab.study("--published-cut", 4, &arguments)?;
        let arguments = ["analyze", "--json", "--published-cut", "profiled.json"];
        let profiled = lab.verdict(&arguments.map(str::to_owned))?;
        for stage in &profiled.stages {
            worst = worst.max((stage.share - share(&hooks, &stage.name)).abs());
        }
    }
    let measured = format!("largest share difference {worst:.4} over 4 jobs");
    let scenario = "shares from hooks and from torch.profiler ranges";
    print(AcceptanceRow::new(
        id,
        scenario,
        measured,
        "< 0.05 (.039)",
        worst < 0.05,
    ));
    Ok(())
}

/// A job that records for 200 s while nobody reads.
fn without_an_agent(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    let training = "--fault none --steps 6700 --seed 1";
    let plain = lab.weights(&[], training)?;
    let started = std::time::Instant::now();
    // `laggard run` would set this and read the rings.
    let alone = lab.weights(&["env", "LAGGARD_ENABLE=1"], training)?;
    let took_s = started.elapsed().as_secs();
    let same = if plain == alone {
        "identical"
    } else {
        "different"
    };
    let measured = format!("{took_s} s, weights {same}");
    let holds = plain == alone && took_s >= 200;
    print(AcceptanceRow::new(
        id,
        "200 s without the agent",
        measured,
        "unchanged",
        holds,
    ));
    Ok(())
}

/// What the first incident must name: is a rank named, the stage, the pace.
type Truth = (&'static str, bool, &'static str, Pace);

const MATRIX: [Truth; 16] = [
    ("data", true, DATA, Pace::Steady),
    ("forward", true, FORWARD, Pace::Steady),
    ("backward", true, BACKWARD, Pace::Steady),
    ("between", true, OTHER, Pace::Steady),
    ("optim_barrier", true, OPTIMIZER, Pace::Steady),
    ("callback_barrier", true, CALLBACKS, Pace::Steady),
    ("late_collective", true, CALLBACKS, Pace::Steady),
    ("rotating", false, DATA, Pace::Rotating),
    ("periodic", true, DATA, Pace::Every { steps: 10 }),
    ("two", true, DATA, Pace::Steady),
    ("all_data", false, DATA, Pace::Steady),
    ("stall", true, DATA, Pace::Once { step: 60 }),
    ("optim", true, OPTIMIZER, Pace::Steady),
    ("callback", true, CALLBACKS, Pace::Steady),
    ("forward_fsdp2", true, FORWARD, Pace::Steady),
    ("backward_fsdp2", true, BACKWARD, Pace::Steady),
];

/// Three seeds with 2, 4 and 8 ranks each.
const SETUPS: [(u32, u32); 9] = [
    (2, 1),
    (2, 2),
    (2, 3),
    (4, 1),
    (4, 2),
    (4, 3),
    (8, 1),
    (8, 2),
    (8, 3),
];

fn fault_matrix(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    for truth in MATRIX {
        let (fault, rank_named, stage, _) = truth;
        // With two ranks the second fault would be on the first one's rank.
        let setups = SETUPS
            .iter()
            .filter(|(ranks, _)| fault != "two" || *ranks > 2);
        let mut outcomes = Outcomes::default();
        for (ranks, seed) in setups {
            let verdict = lab.demo(fault, *ranks, *seed)?;
            outcomes.add(
                &judged(truth, *ranks, *seed, &verdict),
                *ranks,
                *seed,
                &verdict,
            );
            let cost_s = verdict.incidents.first().map_or(0.0, |first| first.cost_s);
            outcomes
                .charged
                // Faults of steps in no window were not charged, so they are not counted as injected.
                .push(cost_s / service::injected_s(fault, &verdict));
        }
        let who = if rank_named { "rank" } else { "no rank" };
        let target = format!("{who}, {stage}; 0.9 to 1.1 charged");
        let holds = outcomes.wrong.is_empty();
        print(AcceptanceRow::new(
            id,
            format!("`{fault}`"),
            outcomes.text(),
            target,
            holds,
        ));
    }
    let mut outcomes = Outcomes::default();
    for (ranks, seed) in SETUPS {
        let verdict = lab.demo("none", ranks, seed)?;
        let wrong = if verdict.incidents.is_empty() {
            vec![]
        } else {
            vec!["an incident"]
        };
        outcomes.add(&wrong, ranks, seed, &verdict);
    }
    let holds = outcomes.wrong.is_empty();
    print(AcceptanceRow::new(
        id,
        "`none`",
        outcomes.text(),
        "no incident",
        holds,
    ));
    Ok(())
}

/// Whether seconds are the true ones, but for a tenth of what was injected.
fn is_near(seconds: f64, truth_s: f64, injected_s: f64) -> bool {
    (seconds - truth_s).abs() <= 0.1 * injected_s
}

/// What is wrong with what is said of a fault.
fn judged(truth: Truth, ranks: u32, seed: u32, verdict: &Verdict) -> Vec<&'static str> {
    let (fault, rank_named, stage, pace) = truth;
    let Some((first, others)) = verdict.incidents.split_first() else {
        return vec!["no incident"];
    };
    let slow = if rank_named {
        vec![seed % ranks]
    } else {
        Vec::new()
    };
    let injected_s = service::injected_s(fault, verdict);
    // `train.py` picks the two ranks in this way.
    let hidden = vec![(seed + 2) % ranks];
    let others: Vec<_> = others.iter().map(|other| &other.subject.ranks).collect();
    let alone = if fault == "two" {
        others == [&hidden]
    } else {
        others.is_empty()
    };
    // Of two, the second is late by nine tenths of the first: behind it, it costs nothing, and
    // the first alone costs what it exceeds the second by.
    let gains = match &first.next_in_line[..] {
        _ if fault != "two" => true,
        [next] => {
            next.ranks == hidden
                && next.stage == FORWARD
                && is_near(next.gain_alone_s, 0.0, injected_s)
                && is_near(next.gain_both_s, injected_s, injected_s)
                && is_near(first.gain_alone_s, 0.1 * injected_s, injected_s)
        }
        _ => false,
    };
    let words = match fault {
        "between" => "between forward and backward",
        "rotating" => "rotates",
        _ => "",
    };
    let asked = [
        (names(verdict, &slow, stage), "who or where"),
        (first.pace == pace, "pace"),
        (alone, "other incidents"),
        (is_near(first.cost_s, injected_s, injected_s), "cost"),
        (gains, "gains"),
        (first.text.contains(words), "words"),
        (verdict.job.lost_records == 0, "records lost"),
    ];
    asked
        .into_iter()
        .filter(|(right, _)| !right)
        .map(|(_, what)| what)
        .collect()
}

#[derive(Default)]
struct Outcomes {
    rows: usize,
    wrong: Vec<String>,
    /// Cost of the first incident as a part of what was injected.
    charged: Vec<f64>,
}

impl Outcomes {
    fn add(&mut self, wrong: &[&str], ranks: u32, seed: u32, verdict: &Verdict) {
        self.rows += 1;
        if !wrong.is_empty() {
            let said = verdict
                .incidents
                .iter()
                .map(|incident| incident.text.as_str());
            let said = said.collect::<Vec<_>>().join(" / ");
            let wrong = wrong.join(", ");
            self.wrong
                .push(format!("{ranks} ranks, seed {seed}: {wrong}: {said}"));
        }
    }

    fn text(&self) -> String {
        let mut parts = vec![format!("{} of {}", self.rows - self.wrong.len(), self.rows)];
        let least = self.charged.iter().copied().reduce(f64::min);
        let most = self.charged.iter().copied().reduce(f64::max);
        parts.extend(
            least
                .zip(most)
                .map(|(least, most)| format!("charged {least:.2} to {most:.2}")),
        );
        parts.extend(self.wrong.iter().cloned());
        parts.join("; ")
    }
}
