//! Advice about ranks that hold collectives up.

use model::RankPart;

use crate::words::{of, who};

/// What to do about ranks whose collectives are slow or do not end.
pub(crate) fn sentence(ranks: &[u32], part: RankPart) -> String {
    let (who, its) = (who(ranks), of(ranks, "its", "their"));
    match part {
        RankPart::Pause => format!(
            "wait, or check whether {who} still {} progress",
            of(ranks, "makes", "make")
        ),
        RankPart::EndedOutput => {
            let ended = of(ranks, "its process has", "their processes have");
            format!("look at the output of {who}: {ended} ended")
        }
        RankPart::CollectiveBefore => format!(
            "compare sizes and types in the collective that the others have left and {who} {} not",
            of(ranks, "has", "have")
        ),
        RankPart::LoaderWorkers => {
            format!("look at the data-loader workers of {who}: one was stopped or has ended")
        }
        RankPart::StackOfMissing => {
            let them = of(ranks, "it", "them");
            format!("look at the stack of {who}; the others wait for {them} and are fine")
        }
        RankPart::Loop => format!(
            "look at the stack of {who} for the loop that {} not leave, and at the condition that ends it; \
             the others wait for it and are fine",
            of(ranks, "it does", "they do")
        ),
        RankPart::Stack => format!("look at the stack of {who}"),
        RankPart::UnseenHosts => {
            format!(
                "look at the output of {who}, at laggard's reports on {its} {}, and at the network",
                of(ranks, "host", "hosts")
            )
        }
        RankPart::Branches => {
            "compare the lines of code of the sides, and the conditions that chose their branches"
                .to_owned()
        }
        RankPart::Tensors => {
            format!("give {who} tensors of the sizes and types the others have")
        }
        RankPart::CollectiveOrder => {
            format!("make {who} issue the same collectives in the same order as the others")
        }
        RankPart::GroupOrder => {
            "issue the collectives of both groups in the same order on all ranks".to_owned()
        }
        RankPart::LaggingDevice => format!(
            "look at the device of {who}: errors in the kernel log of {its} host, and earlier work \
             in {its} stream"
        ),
        // Without timing the recorder has no event at the begin: issued and begun look alike.
        RankPart::RecorderDumps => {
            "save Flight Recorder dumps of all ranks with TORCH_NCCL_ENABLE_TIMING=1: they show \
             which device has not begun the collective; look at the devices and the network"
                .to_owned()
        }
        RankPart::StacksAndDevices => {
            "look at the stacks and at the devices: a device that computes nothing and draws \
             little power waits, and a busy device may be the cause; Flight Recorder dumps of all \
             ranks with TORCH_NCCL_ENABLE_TIMING=1 show which device has not begun a collective"
                .to_owned()
        }
        RankPart::StartNetwork => {
            "check whether the hosts of the ranks reach one another: network interface \
             (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), firewall, addresses of an earlier start"
                .to_owned()
        }
        RankPart::DeadCard => format!("look at the network card and cable of {who}"),
        RankPart::SlowCard => {
            format!("look at the network card of {who}: errors, speed, other traffic")
        }
        // A port that is down at one end decides it: then that end alone is named.
        RankPart::LinkEnds => format!(
            "look at the network cards of {who} and the switch between them: counters cannot \
             distinguish the two ends of a link"
        ),
        RankPart::StillProxy => {
            format!(
                "look at NCCL's proxy thread of {who}: {its} core, {its} memory, {its} network card"
            )
        }
        RankPart::SlowProxy => {
            format!("look at NCCL's proxy thread of {who}: is {its} core taken by something else?")
        }
        RankPart::Stream => {
            format!("check what the stream of {who} waits for: an earlier kernel hangs")
        }
        RankPart::StillGpu => {
            format!("look at the GPU of {who}: errors, clocks, a kernel that does not end")
        }
        RankPart::SlowGpu => {
            format!("look at the GPU of {who}: clocks, power, PCIe width, other work on it")
        }
        RankPart::AllGpus => {
            "look at the GPUs: laggard cannot observe operations that do not use the network"
                .to_owned()
        }
        RankPart::WorkBefore => {
            format!(
                "look at what {who} {} before the operation: input, compute, host",
                of(ranks, "does", "do")
            )
        }
        RankPart::ConstantWorkBefore => format!(
            "look at what {who} {} before the collective: input, compute, host; the others wait \
             for it and are fine",
            of(ranks, "does", "do")
        ),
        RankPart::HostLinks => {
            "look at links and network cards of these hosts, and at other jobs on them".to_owned()
        }
        // The kernel ends a process by SIGKILL when memory is short, and only its log says so.
        RankPart::Memory => {
            "look in the kernel log of its host for \"Out of memory\", and for services that kill \
             processes there; the other ranks are fine"
                .to_owned()
        }
        // A write to a mapping for which /dev/shm has no page left ends in SIGBUS.
        RankPart::SharedMemory => {
            format!("look at the shared memory of {who}'s host: is it full?")
        }
        RankPart::LastOutput => {
            format!("look at the last lines of {who}'s output, and at {its} core dump")
        }
    }
}
