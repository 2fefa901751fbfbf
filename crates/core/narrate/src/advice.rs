//! Advice. The pages of docs/incidents give it, too.

use model::{Action, DevicePart, FunctionNeed, LinkEnd, PipelineAction, Side, StepPart};

use crate::words::{its, of, who, whose};
use crate::{connection, rank_part};

/// What to do next, in the order of the actions.
pub fn advice(actions: &[Action]) -> String {
    actions.iter().map(sentence).collect::<Vec<_>>().join("; ")
}

fn sentence(action: &Action) -> String {
    match action {
        Action::LookAtWhatRanksShare => {
            "look at what the ranks share rather than at one of them: storage, network, CPU \
             cores, garbage collection"
                .to_owned()
        }
        Action::CompareBatches => {
            "compare what the ranks have to compute in each step, such as sequence lengths; if that \
             is the same, look at what they share: CPU cores, garbage collection, power"
                .to_owned()
        }
        Action::LookAtInputPipeline => {
            "look at the input pipeline: more loader workers, prefetching, faster storage, \
             cheaper decoding"
                .to_owned()
        }
        Action::LookAtWhatChanged => {
            "look at what changed then on all hosts: clocks, other jobs, storage, input sizes"
                .to_owned()
        }
        // PyTorch calls hooks before a collective from 2.15 on (docs/python.md).
        Action::RecordArrivals => {
            "run the job under `laggard run` with PyTorch 2.15 or later, which records when each \
             rank issues each collective"
                .to_owned()
        }
        Action::CompareDevices { ranks } => format!(
            "compare the clocks, power, temperature and links of {} devices with those of \
             their peers, and the sizes of their inputs",
            whose(ranks)
        ),
        Action::RemoveReadBacks { ranks } => format!(
            "remove what only {} {} back or {} in each step (`.item()`, `.cpu()`): the other hosts \
             run ahead, and their devices never wait for them",
            who(ranks),
            of(ranks, "reads", "read"),
            of(ranks, "synchronizes", "synchronize")
        ),
        Action::LookAtStage { ranks, part } => stage(ranks, part),
        Action::LookForPeriod { steps } => {
            format!("look for what happens every {steps} steps")
        }
        Action::LookAtFunction { ranks, at } => function(ranks, *at),
        Action::FreeCores { ranks } => format!(
            "on {}, look at what limits or shares {} cores: CPU affinity, cgroup limits, other \
             processes",
            who(ranks),
            its(ranks)
        ),
        // Both files: that of cgroup v2 and that of v1.
        Action::RaiseQuota { ranks } => {
            let who = if ranks.is_empty() {
                "all ranks".to_owned()
            } else {
                who(ranks)
            };
            format!(
                "give {who} more CPU: the limit of the container or job (cpu.max, \
                 cpu.cfs_quota_us), or fewer threads under it"
            )
        }
        Action::LookAtLoadOfHosts => {
            "look at what else runs on the hosts: other jobs, more threads than cores".to_owned()
        }
        Action::LookAtDevice { ranks, part } => {
            format!("on {}, look at {}", who(ranks), device_part(*part))
        }
        Action::LookAtNetwork { from, to } => {
            format!(
                "look at the network between {} and {}: cards, cables, switch, and what else \
                 uses it",
                link_end(from),
                link_end(to)
            )
        }
        Action::LookAtRanks { ranks, part } => rank_part::sentence(ranks, *part),
        Action::LookAtPort { port, ranks } => connection::advice(port, ranks),
        Action::InPipeline(action) => in_pipeline(action),
    }
}

/// "rank 2 does".
fn who_does(ranks: &[u32]) -> String {
    format!("{} {}", who(ranks), of(ranks, "does", "do"))
}

/// Two ends of a slow link: "rank 0 to rank 3".
pub(crate) fn link(from: &LinkEnd, to: &LinkEnd) -> String {
    format!("{} to {}", link_end(from), link_end(to))
}

fn link_end(end: &LinkEnd) -> String {
    match end {
        LinkEnd::Rank(rank) => format!("rank {rank}"),
        LinkEnd::Host(name) => name.clone(),
    }
}

fn in_pipeline(action: &PipelineAction) -> String {
    match action {
        PipelineAction::LookAtMachine { ranks } => format!(
            "look at the machine of {}: clocks, temperature, other load; remove it from the job if \
             nothing helps",
            who(ranks)
        ),
        PipelineAction::BalanceSequences => {
            "balance the sequences so that every microbatch costs the same; the cost of attention \
             grows with the square of the sequence length"
                .to_owned()
        }
        // The last stage has both on top of its layers.
        PipelineAction::MoveLayers { stage } => format!(
            "repartition the model with fewer layers on stage {stage}, and count the output layer and \
             the loss with their cost in layers; no machine is at fault"
        ),
        PipelineAction::LookAtOperations { op_type } => {
            format!("look at {op_type}, and at the heat map for ranks above the others")
        }
        PipelineAction::LookAtGpu { ranks } => format!(
            "look at the GPU of {} at that time: clocks, power, temperature, other work on it; \
             the ranks that wait for it are fine",
            who(ranks)
        ),
        PipelineAction::LookAtHost { ranks } => format!(
            "look at the host of {} at that time: CPU cores, garbage collection, storage",
            who(ranks)
        ),
        PipelineAction::LookAtLinkInto { ranks } => format!(
            "look at the link into {}: network card, switch, other traffic on it",
            who(ranks)
        ),
        PipelineAction::LookBetweenIterations { ranks } => format!(
            "look at what {} between iterations: optimizer, input, logging, checkpoints",
            who_does(ranks)
        ),
        PipelineAction::GetLogs { ranks } => {
            format!("get the logs of {}", who(ranks))
        }
        PipelineAction::LookAtProcess { ranks } => {
            let doing = of(
                ranks,
                "is doing: its stack, its GPU",
                "are doing: their stacks, their GPUs",
            );
            format!("look at what {} {doing}", who(ranks))
        }
        PipelineAction::LookAtBlocks { ranks, side } => blocks(ranks, *side),
    }
}

fn blocks(ranks: &[u32], side: Option<Side>) -> String {
    let who = who(ranks);
    match side {
        Some(Side::Device) => format!(
            "compare the clocks, power, temperature and links of {who}'s devices with those of \
             their peers: the ranks that wait for them are fine"
        ),
        Some(Side::Host) => format!(
            "look at what the host does in that part of the model on {who}: CPU cores, Python, \
             read-backs; the ranks that wait for it are fine"
        ),
        None => {
            format!("profile that part of the model on {who}: the ranks that wait for it are fine")
        }
    }
}

fn stage(ranks: &[u32], part: &StepPart) -> String {
    let whose = whose(ranks);
    match part {
        StepPart::Loader => {
            format!("look at {whose} data loader: storage, decoding, worker processes, CPU cores")
        }
        StepPart::BetweenPasses => format!(
            "look at what only {} before the forward pass: batches, logging, checkpoints",
            who_does(ranks)
        ),
        StepPart::BeforeBackward => format!(
            "look at what only {} after the optimizer or the previous batch: batches, logging, the \
             forward pass; `laggard.stage(\"name\")` distinguishes them",
            who_does(ranks)
        ),
        StepPart::Forward => format!(
            "compare {whose} device clocks, CPU cores and input sizes with those of {its} peers, \
             and profile {its} forward pass",
            its = its(ranks)
        ),
        StepPart::Backward => format!(
            "compare {whose} device clocks and CPU cores with those of {} peers, and look for \
             gradient hooks that only {}",
            its(ranks),
            of(ranks, "it runs", "they run")
        ),
        StepPart::Callbacks => format!(
            "look at what only {} between steps: logging, checkpoints, evaluation",
            who_does(ranks)
        ),
        StepPart::Optimizer => {
            format!("look at {whose} optimizer step: state size, offloading, CPU cores")
        }
        StepPart::Uncovered => {
            "no stage covers this code: wrap it in `laggard.stage(\"name\")` to see it by name"
                .to_owned()
        }
        StepPart::Named(name) => format!("look at {whose} code inside the stage {name}"),
    }
}

fn function(ranks: &[u32], at: Option<FunctionNeed>) -> String {
    let what = at.map(|need| match need {
        FunctionNeed::Reads => "the storage and network that the function reads from",
        FunctionNeed::Loader => "the data loader: storage, decoding, worker processes, CPU cores",
        FunctionNeed::GarbageCollection => {
            "garbage collection: collect on all ranks in the same step, or freeze long-lived \
             objects"
        }
        FunctionNeed::Sleep => "why the function sleeps",
        FunctionNeed::DeviceWait => "why the host waits for the device",
        FunctionNeed::GpuHealth => {
            "clocks, temperature and power of its GPU, and other processes that use it"
        }
        FunctionNeed::Links => "its links: NVLink, PCIe, network card and what they are bound to",
    });
    match (what, ranks) {
        (Some(what), []) => format!("look at {what}"),
        (Some(what), ranks) => format!("on {}, look at {what}", who(ranks)),
        (None, []) => {
            "look at what the function does on every rank: it is on the critical path".to_owned()
        }
        (None, ranks) => format!(
            "compare what {} in the function with what {} peers do there: input, clocks, CPU cores",
            who_does(ranks),
            its(ranks)
        ),
    }
}

fn device_part(part: DevicePart) -> &'static str {
    match part {
        DevicePart::Cooling => "the cooling of the GPU",
        DevicePart::PowerSupply => "the power supply of the host",
        DevicePart::PowerLimit => "the power limit of the GPU",
        DevicePart::ClockSettings => "the clock settings of the GPU",
        DevicePart::Slot => "the slot of this device: PCIe errors, seating, risers",
        DevicePart::Nvlinks => {
            "the NVLinks of the GPU: nvidia-smi nvlink --status, the fabric manager"
        }
        DevicePart::Cable => "the cable and the switch port of this card",
        DevicePart::OtherUsers => {
            "other processes that use this card, and data that is read over it"
        }
        DevicePart::Health => {
            "whether the GPU still works: Xid errors in the kernel log, nvidia-smi"
        }
    }
}

#[cfg(test)]
mod tests {
    use model::RankPart;

    use super::*;

    /// The pages of the catalogue that give advice.
    const DOCS: &str = concat!(
        include_str!("../../../../docs/incidents/degraded.md"),
        include_str!("../../../../docs/incidents/function.md"),
        include_str!("../../../../docs/incidents/hang.md"),
        include_str!("../../../../docs/incidents/host.md"),
        include_str!("../../../../docs/incidents/input-bound.md"),
        include_str!("../../../../docs/incidents/killed.md"),
        include_str!("../../../../docs/incidents/late-ranks.md"),
        include_str!("../../../../docs/incidents/late-to-collective.md"),
        include_str!("../../../../docs/incidents/network.md"),
        include_str!("../../../../docs/incidents/pipeline-block.md"),
        include_str!("../../../../docs/incidents/pipeline-calls.md"),
        include_str!("../../../../docs/incidents/rank-unknown.md"),
        include_str!("../../../../docs/incidents/rotating.md"),
        include_str!("../../../../docs/incidents/slow-collective.md"),
        include_str!("../../../../docs/incidents/slow-communicator.md"),
        include_str!("../../../../docs/incidents/stuck-collective.md"),
    );

    /// Asserts that a sentence stands in the documentation, whatever lines it is broken into.
    fn assert_documented(advice: &str) {
        let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            plain(DOCS).contains(&plain(advice)),
            "not in the docs: {advice}"
        );
    }

    #[test]
    fn advice_about_stages_is_documented() {
        for part in [
            StepPart::Loader,
            StepPart::BetweenPasses,
            StepPart::Forward,
            StepPart::BeforeBackward,
            StepPart::Backward,
            StepPart::Callbacks,
            StepPart::Optimizer,
            StepPart::Uncovered,
            StepPart::Named("tokenise".to_owned()),
        ] {
            assert_documented(&stage(&[2], &part));
        }
        for action in [
            Action::LookAtWhatRanksShare,
            Action::CompareBatches,
            Action::LookAtInputPipeline,
            Action::LookAtWhatChanged,
            Action::RecordArrivals,
        ] {
            assert_documented(&sentence(&action));
        }
        let periodic = Action::LookForPeriod { steps: 10 };
        assert_documented(&format!("; {}", sentence(&periodic)));
    }

    #[test]
    fn advice_about_calls_of_pipelines_is_documented() {
        for action in [
            PipelineAction::LookAtGpu { ranks: vec![2] },
            PipelineAction::LookAtHost { ranks: vec![2] },
            PipelineAction::LookAtLinkInto { ranks: vec![2] },
            PipelineAction::LookBetweenIterations { ranks: vec![2] },
            PipelineAction::GetLogs { ranks: vec![2] },
        ] {
            assert_documented(&in_pipeline(&action));
        }
    }

    #[test]
    fn advice_about_functions_is_documented() {
        let needs = [
            FunctionNeed::Reads,
            FunctionNeed::Loader,
            FunctionNeed::GarbageCollection,
            FunctionNeed::Sleep,
            FunctionNeed::DeviceWait,
            FunctionNeed::GpuHealth,
            FunctionNeed::Links,
        ];
        for need in needs.map(Some).into_iter().chain([None]) {
            let of_rank = function(&[2], need);
            assert_documented(of_rank.strip_prefix("on rank 2, ").unwrap_or(&of_rank));
            assert_documented(&function(&[], need));
        }
    }

    #[test]
    fn advice_about_devices_is_documented() {
        for part in [
            DevicePart::Cooling,
            DevicePart::PowerSupply,
            DevicePart::PowerLimit,
            DevicePart::ClockSettings,
            DevicePart::Slot,
            DevicePart::Nvlinks,
            DevicePart::Cable,
            DevicePart::OtherUsers,
            DevicePart::Health,
        ] {
            assert_documented(device_part(part));
        }
    }

    #[test]
    fn advice_about_ranks_that_hold_collectives_up_is_documented() {
        for part in RankPart::ALL {
            let ranks = if part == RankPart::LinkEnds {
                vec![1, 2]
            } else {
                vec![2]
            };
            assert_documented(&sentence(&Action::LookAtRanks { ranks, part }));
        }
    }
}
