use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::output::say;
use crate::package;
use crate::run::{RunArgs, run};
use crate::settings::SettingsArgs;

/// Train a small model with a fault hidden in it, and find the fault
///
/// Starts a real `torchrun` training on this machine's CPU with the gloo backend. The
/// training script knows nothing of laggard. Needs a Python with PyTorch.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  laggard demo
  laggard demo --fault two --ranks 4 --seed 1
  laggard demo --fault none --report healthy.html")]
pub(crate) struct DemoArgs {
    /// Fault to hide
    #[arg(long, value_enum, default_value_t = DemoFault::Data)]
    fault: DemoFault,
    /// Number of ranks
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: u32,
    /// Seed that chooses the slow rank and the noise
    #[arg(long, default_value_t = 2)]
    seed: u32,
    /// Number of steps
    #[arg(long, default_value_t = 120)]
    steps: u32,
    /// Write a self-contained HTML report
    #[arg(long, value_name = "FILE", default_value = "laggard-demo.html")]
    report: PathBuf,
    /// Print the verdict as one line of JSON at the end, on standard output
    #[arg(long)]
    json: bool,
    /// Python to train with
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// Faults that the training script of the demo can hide. Delays are 50 ms by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum DemoFault {
    /// No fault
    None,
    /// One rank's data loader is slow
    Data,
    /// One rank's forward pass is slow
    Forward,
    /// One rank is slow inside backward, in a gradient hook
    Backward,
    /// One rank loses time between forward and backward
    Between,
    /// One rank's optimizer is slow, and no rank waits for it there
    Optim,
    /// The same with a barrier in the optimizer step
    OptimBarrier,
    /// One rank's callback is slow, and no rank waits for it there
    Callback,
    /// The same with a barrier after it
    CallbackBarrier,
    /// One rank enters an extra all-reduce late
    LateCollective,
    /// Another rank's data loader is slow in each step
    Rotating,
    /// One rank's data loader takes 200 ms in every tenth step
    Periodic,
    /// One rank's data loader is slow, and another rank's forward pass is slow, but a little less so
    Two,
    /// All ranks' data loaders are slow
    AllData,
    /// One rank's data loader stalls once, for 5 s at step 60
    Stall,
    /// One rank's forward pass is slow under FSDP2
    #[value(name = "forward_fsdp2")]
    ForwardFsdp2,
    /// One rank is slow inside backward under FSDP2
    #[value(name = "backward_fsdp2")]
    BackwardFsdp2,
}

/// The step that [`DemoFault::Stall`] strikes.
const STALLED_STEP: u32 = 60;

pub(crate) fn demo(args: DemoArgs) -> Result<ExitCode> {
    ensure!(
        args.fault != DemoFault::Stall || args.steps > STALLED_STEP,
        "the stall comes in step {STALLED_STEP}: --steps must be larger"
    );
    let python = args
        .python
        .or_else(package::python_beside_us)
        .unwrap_or_else(|| PathBuf::from("python3"));
    let site = package::site_packages()
        .or_else(|| package::site_packages_of(&python))
        .with_context(|| format!("{} does not have the package laggard", python.display()))?;
    let script = site.join("laggard/demo/train.py");
    // The training script takes the same names.
    let fault = args.fault.to_possible_value();
    let fault = fault.as_ref().map_or("none", |fault| fault.get_name());
    say(&format!(
        "laggard: training with {} ranks on the CPU; the hidden fault is \"{fault}\"",
        args.ranks
    ));
    let mut command: Vec<OsString> = vec![python.into()];
    // `--standalone` takes a free port: another job may have torchrun's default one.
    let torchrun = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
    ];
    command.extend(torchrun.map(OsString::from));
    command.push(args.ranks.to_string().into());
    command.push(script.into());
    for (name, value) in [
        ("--fault", fault.to_owned()),
        ("--seed", args.seed.to_string()),
        ("--steps", args.steps.to_string()),
    ] {
        command.extend([name.into(), value.into()]);
    }
    run(&RunArgs::of_demo(
        command,
        args.report,
        args.json,
        args.settings,
    ))
}
